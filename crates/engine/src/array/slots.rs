//! The places of an array's members: what is connected there, and what the shell keeps of it.

use std::time::Duration;

use netraid_raid::presence::Sighting;
use tokio::task::JoinHandle;

use super::{
    member::{Connected, MemberConfig},
    returns::Returning,
};
use crate::control::MemberStatus;

/// A member as the driver sees it.
pub(super) struct Slot {
    pub(super) config: Option<MemberConfig>,
    pub(super) connected: Option<Connected>,
    /// Raised when another device takes the place.
    pub(super) number: u32,
    /// Times that the device had lost its cache when it was taken.
    pub(super) cache_losses: u64,
    /// A replacement is being prepared.
    pub(super) joining: bool,
    /// The session of a device that was set aside, while it ends: until then it may send again what
    /// it has under way.
    pub(super) leaving: Option<JoinHandle<()>>,
    /// How it comes back by itself.
    pub(super) returning: Returning,
    pub(super) stats: MemberStatus,
}

impl Slot {
    pub(super) fn address(&self) -> String {
        self.config.as_ref().map(MemberConfig::address).unwrap_or_default()
    }

    pub(super) fn address_is(&self, given: &str) -> bool {
        let uri = netraid_block::TargetUri::parse(given).map(|uri| uri.to_string());
        self.config.is_some() && uri.is_ok_and(|uri| uri == self.address())
    }

    pub(super) fn has_lost_its_cache(&self) -> bool {
        let losses = self.connected.as_ref().map(|member| member.remote.cache_losses());
        losses.is_some_and(|losses| losses != self.cache_losses)
    }

    /// What the sessions to the device say of it; none without a device.
    pub(super) fn sighting(&self) -> Option<Sighting> {
        let Connected { remote, config, .. } = self.connected.as_ref()?;
        let signs = remote.signs();
        Some(if remote.is_fenced() {
            Sighting::Fenced
        } else if remote.is_connected() {
            Sighting::Connected { signs }
        } else {
            // Silence took its time before the session was lost: with both a request would have failed.
            let patience = config.request_timeout * 2 / 5;
            let patience = if remote.is_gone() { Duration::ZERO } else { patience };
            Sighting::Lost { signs, patience }
        })
    }

    /// The member's device is there, and is not believed: it does not come back by itself.
    pub(super) fn leave_out(&mut self, config: MemberConfig) {
        self.config = Some(config);
        self.returning.by_itself = false;
    }

    /// Puts a device in the place.
    pub(super) fn take(&mut self, connected: Connected) {
        if self.address() != connected.address() {
            self.stats = MemberStatus::default();
        }
        self.config = Some(connected.config.clone());
        self.cache_losses = connected.remote.cache_losses();
        self.number += 1;
        self.connected = Some(connected);
        self.returning.by_itself = true;
    }
}

/// One slot a member. The address of a member that is not there is known when it was given at
/// its place in the list.
pub(super) fn make_slots(members: Vec<Option<Connected>>, given: &[MemberConfig]) -> Vec<Slot> {
    let taken: Vec<String> = members.iter().flatten().map(Connected::address).collect();
    let left = |config: &&MemberConfig| !taken.contains(&config.address());
    let unplaced: Vec<&MemberConfig> = given.iter().filter(left).collect();
    let absent = members.iter().filter(|member| member.is_none()).count();
    let slot = |(at, connected): (usize, Option<Connected>)| {
        let at_its_place = given.get(at).filter(left);
        let only_one = unplaced.first().filter(|_| absent == 1 && unplaced.len() == 1).copied();
        let config = match &connected {
            Some(connected) => Some(connected.config.clone()),
            None => at_its_place.or(only_one).cloned(),
        };
        let cache_losses = connected.as_ref().map_or(0, |member| member.remote.cache_losses());
        let stats = MemberStatus::default();
        let returning = Returning::default();
        let (number, joining, leaving) = (0, false, None);
        Slot { config, connected, number, cache_losses, joining, leaving, returning, stats }
    };
    members.into_iter().enumerate().map(slot).collect()
}
