//! What a volume does by the time: it looks at the members' sessions, brings home what nobody asks for, makes stable
//! what is old, and looks for members that are away.

use alloc::{format, vec::Vec};
use core::{mem, time::Duration};

use super::{Event, Life, Look, Volume, machine::Machine, requests::CACHE_LOST};
use crate::{
    member::{MemberIndex, MemberSet},
    planted::{Planted, planted},
    presence::Sighting,
    read_ahead::ReadAhead,
};

/// From one look at the members' sessions to the next one.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Looks after which what was written is made stable, although nobody asked for it.
const LOOKS_OF_AGE: u32 = 5;

impl<M: Machine, U> Volume<M, U> {
    /// When [`Self::handle_timeout`] is due.
    #[must_use]
    pub fn next_timeout(&self) -> Duration {
        let others = [
            self.scrub_pace.next(),
            self.rebuild_pace.next(),
            self.pauses.next_timeout(),
            self.slowness.next_timeout(),
        ];
        others.into_iter().flatten().fold(self.look_at, Duration::min)
    }

    /// Whether [`Self::handle_timeout`] is due.
    #[must_use]
    pub fn is_due(&self, now: Duration) -> bool {
        self.next_timeout() <= now
    }

    /// Whether the members' places are to be looked at for [`Self::handle_timeout`].
    #[must_use]
    pub fn is_look_due(&self, now: Duration) -> bool {
        self.look_at <= now
    }

    /// Does what is due. `looks` is what there is to see in the members' places now, where a look is due.
    ///
    /// # Panics
    /// When there are more or fewer looks than members, and one is due.
    pub fn handle_timeout(&mut self, now: Duration, looks: &[Look]) {
        if self.is_look_due(now) {
            assert_eq!(looks.len(), self.places.len(), "a look at every place");
            self.look_at = now + LOOK_EVERY;
            self.look(now, looks);
        }
        if self.scrub_pace.is_due(now) {
            self.allow_scrub(now);
        }
        if self.rebuild_pace.is_due(now) {
            self.allow_rebuild(now);
        }
        self.attempt(now);
        self.look_at_reads(now);
    }

    /// Members that take part and have no session.
    #[must_use]
    pub fn suspects(&self, looks: &[Look]) -> MemberSet {
        let members = self.machine.geometry().member_indices();
        let is_away = |sighting| !matches!(sighting, Sighting::Connected { .. });
        members.filter(|member| self.sighting(looks, *member).is_some_and(is_away)).collect()
    }

    fn look(&mut self, now: Duration, looks: &[Look]) {
        self.ahead.iter_mut().for_each(ReadAhead::drop_old);
        self.users.look(now);
        self.measure(now);
        self.beat(looks);
        self.look_at_labels(now, looks);
        if self.life != Life::Open || self.machine.failure().is_some() {
            return;
        }
        self.look_at_members(now, looks);
        if !self.machine.is_read_only() && self.machine.failure().is_none() {
            self.look_for_spare(now, looks);
        }
        self.look_at_counters(now, looks);
        let may_write = self.machine.has_log() && !self.machine.is_read_only();
        if !may_write || self.machine.failure().is_some() {
            return;
        }
        self.looks = self.looks.wrapping_add(1);
        if !mem::take(&mut self.is_busy) {
            if !planted(Planted::IdleForgotten) {
                self.machine.handle_idle();
            }
        } else if self.looks.is_multiple_of(LOOKS_OF_AGE) {
            self.machine.handle_age();
        }
        self.begin_returns(looks);
    }

    /// Looks at the sessions, and sets aside who has been away for too long.
    fn look_at_members(&mut self, now: Duration, looks: &[Look]) {
        let members: Vec<MemberIndex> = self.machine.geometry().member_indices().collect();
        let sightings: Vec<_> =
            members.iter().map(|member| self.sighting(looks, *member)).collect();
        let before = self.presence.suspects();
        self.presence.handle_look(now, &sightings);
        let suspects = self.presence.suspects();
        for member in members.iter().copied() {
            let is_suspect = suspects.contains(member);
            if before.contains(member) != is_suspect && self.state(member).is_live() {
                let failure = is_suspect.then(|| failure(looks, member).into());
                self.tell(Event::Suspect { member, failure });
            }
        }
        let overdue = self.presence.overdue();
        // A member of an array without a log does not catch up: there a request tells, or the loss of its cache.
        let may_go = self.machine.has_log() && self.machine.can_lose_all(overdue);
        if !overdue.is_empty() && may_go {
            overdue.iter().for_each(|member| self.give_up(looks, member));
        }
        if !self.machine.is_read_only() {
            self.set_aside_who_forgot(looks, &members);
        }
    }

    /// Sets members aside that have lost what was not stable on them, also while nobody asks for anything: what such a
    /// member answers is not believed in any case, and one that has forgotten this engine's registration gets no session
    /// before its place takes it anew.
    fn set_aside_who_forgot(&mut self, looks: &[Look], members: &[MemberIndex]) {
        let has_lost = |member: &MemberIndex| {
            let losses = looks[member.as_usize()].report.as_ref().map(|it| it.cache_losses);
            let place = &self.places[member.as_usize()];
            losses.is_some_and(|losses| place.has_lost_its_cache(losses))
                && self.state(*member).is_live()
        };
        let lost: MemberSet = members.iter().copied().filter(has_lost).collect();
        // The labels that set a member aside would meet those that are away. More members than the array can do without
        // are not set aside while nobody asks for anything.
        let are_others_there = self.suspects(looks).iter().all(|member| lost.contains(member));
        if !lost.is_empty() && are_others_there && self.machine.can_lose_all(lost) {
            lost.iter().for_each(|member| self.machine.handle_gone(member, CACHE_LOST));
        }
    }

    fn give_up(&mut self, looks: &[Look], member: MemberIndex) {
        let away = self.presence.away_for(member).unwrap_or_default();
        let reason = format!("no session for {} s: {}", away.as_secs(), failure(looks, member));
        self.machine.handle_gone(member, &reason);
        self.places[member.as_usize()].stats.last_error = Some(reason);
    }

    /// What the sessions say of a member that takes part.
    fn sighting(&self, looks: &[Look], member: MemberIndex) -> Option<Sighting> {
        let report = looks[member.as_usize()].report.as_ref()?;
        self.state(member).is_live().then(|| report.sighting())
    }
}

fn failure(looks: &[Look], member: MemberIndex) -> &str {
    looks[member.as_usize()].report.as_ref().map_or("", |report| &report.failure)
}
