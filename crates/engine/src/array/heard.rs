//! What the array hears of its members without asking for anything: lost sessions, and caches that are lost.
//!
//! The sessions to the members are looked at once a second; [`Presence`] judges.

use netraid_raid::{
    member::{ArrayState, MemberIndex, MemberSet},
    presence::Sighting,
};

use super::{Event, driver::Driver};

/// The state of a member that takes part and has no session, as it is shown.
const SUSPECT: &str = "suspect";

/// Why a member is set aside that may have lost what was not flushed.
pub(super) const CACHE_LOST: &str =
    "restarted or was reset: writes that were not flushed may be lost";

impl Driver {
    /// Members that take part and have no session at the moment.
    pub(super) fn suspects(&self) -> MemberSet {
        let members = self.machine.geometry().member_indices();
        let is_away = |sighting| !matches!(sighting, Sighting::Connected { .. });
        members.filter(|member| self.sighting(*member).is_some_and(is_away)).collect()
    }

    /// The state of a member as it is shown.
    pub(super) fn shown_state(&self, member: MemberIndex, suspects: MemberSet) -> &'static str {
        if suspects.contains(member) { SUSPECT } else { self.state(member).name() }
    }

    /// Looks at the sessions, and sets aside who has been away for too long.
    pub(super) fn look_at_members(&mut self) {
        let members: Vec<MemberIndex> = self.machine.geometry().member_indices().collect();
        let sightings: Vec<_> = members.iter().map(|member| self.sighting(*member)).collect();
        let before = self.presence.suspects();
        self.presence.handle_look(self.started.elapsed(), &sightings);
        let now = self.presence.suspects();
        for member in members.iter().copied() {
            if before.contains(member) != now.contains(member) && self.state(member).is_live() {
                self.tell_suspicion(member, now.contains(member));
            }
        }
        let overdue = self.presence.overdue();
        if !overdue.is_empty() && self.machine.can_lose_all(overdue) {
            overdue.iter().for_each(|member| self.give_up(member));
        }
        // What such a member answers is not believed in any case; and the labels that set it aside would meet
        // those that are away.
        if self.machine.is_read_only() || !self.suspects().is_empty() {
            return;
        }
        let has_lost = |member: &MemberIndex| {
            self.slots[member.as_usize()].has_lost_its_cache() && self.state(*member).is_live()
        };
        // More than the array can do without are not set aside while nobody asks for anything.
        let lost: MemberSet = members.into_iter().filter(has_lost).collect();
        if !lost.is_empty() && self.machine.can_lose_all(lost) {
            lost.iter().for_each(|member| self.machine.handle_gone(member, CACHE_LOST));
        }
    }

    fn sighting(&self, member: MemberIndex) -> Option<Sighting> {
        let is_live = self.state(member).is_live();
        self.slots[member.as_usize()].sighting().filter(|_| is_live)
    }

    fn give_up(&mut self, member: MemberIndex) {
        let away = self.presence.away_for(member).unwrap_or_default();
        let reason = format!("no session for {} s: {}", away.as_secs(), self.why_away(member));
        self.slots[member.as_usize()].stats.last_error = Some(reason.clone());
        self.machine.handle_gone(member, &reason);
    }

    fn why_away(&self, member: MemberIndex) -> String {
        let connected = self.slots[member.as_usize()].connected.as_ref();
        connected.map(|connected| connected.remote.last_failure()).unwrap_or_default()
    }

    fn tell_suspicion(&mut self, member: MemberIndex, is_suspect: bool) {
        let url = self.slots[member.as_usize()].address();
        let (state, reason) = match is_suspect {
            true => (SUSPECT, format!("no session: {}", self.why_away(member))),
            false => (self.state(member).name(), "connected again".to_owned()),
        };
        match is_suspect {
            true => tracing::warn!(%member, %url, state, %reason, "member"),
            false => tracing::info!(%member, %url, state, %reason, "member"),
        }
        self.send_event(Event::Member { member: member.0, url, state, reason });
    }
}

/// The state of an array as it is shown: one with a suspect member may not survive a loss now.
pub(super) fn shown_array_state(state: String, suspects: MemberSet) -> String {
    match state == ArrayState::Optimal.name() && !suspects.is_empty() {
        true => ArrayState::Degraded.name().to_owned(),
        false => state,
    }
}
