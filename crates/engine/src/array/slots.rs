//! The places of an array's members, as the shell has them: sessions, and how to make them.

use netraid_raid::{
    member::MemberIndex,
    reach::device_of,
    volume::{Found, Look, Report, Tag},
};
use tokio::task::JoinHandle;

use super::member::{Connected, MemberConfig};

/// A member as the driver sees it.
pub(super) struct Slot {
    pub(super) config: Option<MemberConfig>,
    pub(super) connected: Option<Connected>,
    /// A device that may take the place, or succeeds the one that is there.
    pub(super) candidate: Option<Connected>,
    /// The session of a device that was set aside, while it ends: until then it may send again what
    /// it has under way.
    pub(super) leaving: Option<JoinHandle<()>>,
    /// Looks for the member.
    pub(super) attempt: Option<JoinHandle<()>>,
}

impl Slot {
    pub(super) fn address(&self) -> String {
        self.config.as_ref().map(MemberConfig::address).unwrap_or_default()
    }

    /// Whether this device is in the place.
    pub(super) fn has(&self, device: &MemberConfig) -> bool {
        self.connected.as_ref().is_some_and(|own| own.address() == device.address())
    }

    pub(super) fn address_is(&self, given: &str) -> bool {
        let uri = netraid_block::TargetUri::parse(given).map(|uri| uri.to_string());
        self.config.is_some() && uri.is_ok_and(|uri| uri == self.address())
    }

    /// What there is to see of the member now.
    pub(super) fn look(&self) -> Look {
        let is_leaving = self.leaving.as_ref().is_some_and(|leaving| !leaving.is_finished());
        Look { report: self.connected.as_ref().map(report), is_leaving }
    }

    /// The device that a request is for.
    pub(super) fn device_for(&self, tag: Tag) -> Option<&Connected> {
        let successor = self.candidate.as_ref().filter(|_| tag.is_for_successor());
        successor.or(self.connected.as_ref())
    }

    /// The device in the place, and the one that may take it.
    pub(super) fn devices(&self) -> impl Iterator<Item = &Connected> {
        self.connected.iter().chain(&self.candidate)
    }

    pub(super) fn devices_mut(&mut self) -> impl Iterator<Item = &mut Connected> {
        self.connected.iter_mut().chain(&mut self.candidate)
    }

    /// Puts the device that was found into the place.
    pub(super) fn take(&mut self) {
        let Some(candidate) = self.candidate.take() else {
            unreachable!("no device was found for the place of {}", self.address())
        };
        self.config = Some(candidate.config.clone());
        self.connected = Some(candidate);
    }
}

/// What the sessions to a device say.
fn report(connected: &Connected) -> Report {
    let Connected { remote, config, .. } = connected;
    let (is_fenced, is_connected) = (remote.is_fenced(), remote.is_connected());
    let has_session = is_connected && !is_fenced;
    Report {
        is_fenced,
        is_connected,
        is_gone: remote.is_gone(),
        signs: remote.signs(),
        cache_losses: remote.cache_losses(),
        reconnects: remote.reconnects(),
        request_timeout: config.request_timeout,
        failure: if has_session { String::new() } else { remote.last_failure() },
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
        let (candidate, leaving, attempt) = (None, None, None);
        Slot { config, connected, candidate, leaving, attempt }
    };
    members.into_iter().enumerate().map(slot).collect()
}

/// The places of a volume. The devices of `liars` are there, and are not believed.
pub(super) fn places_of(slots: &mut [Slot], liars: Vec<(MemberIndex, MemberConfig)>) -> Vec<Found> {
    let place = |slot: &Slot| match &slot.connected {
        Some(connected) => Found::Device(device_of(connected)),
        None => Found::Nobody(slot.config.as_ref().map(MemberConfig::address)),
    };
    let mut places: Vec<Found> = slots.iter().map(place).collect();
    for (member, config) in liars {
        places[member.as_usize()] = Found::Liar(config.address());
        slots[member.as_usize()].config = Some(config);
    }
    places
}
