//! Members whose sessions are lost while nobody asks for anything: which members are suspect, and when these
//! are set aside without a request that fails.
//!
//! A suspect member is set aside when it has been away for longer than it may take to come back. But a switch
//! that restarts takes all members away, and an array that sets one of them aside writes labels to the others,
//! which do not answer either: the array would fail although nobody uses it. So members are set aside only
//! when every other member was heard of just now, after the suspects were found away, and did not just come back;
//! the array then bears the loss of all suspects together, or all of them stay as they are until a request tells.
//!
//! The shell looks at all sessions about once a second. An engine that itself stood still looks late; what it
//! finds then says nothing of the members, and every absence begins anew.

use alloc::vec::Vec;
use core::time::Duration;

use crate::member::{MemberIndex, MemberSet};

/// From one look to the next one, at most, for an absence to count.
const LATE: Duration = Duration::from_secs(4);

/// How long a member has to be back for before others are given up for away: who was cut off together comes
/// back together.
const STEADY: Duration = Duration::from_secs(2);

/// What the sessions to one member that takes part say of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sighting {
    /// The member has a session.
    Connected {
        /// A count that grows whenever something comes from the member.
        signs: u64,
    },
    /// The member has no session.
    Lost {
        /// The same count.
        signs: u64,
        /// How long the member may take to come back, from the first look that finds it away.
        patience: Duration,
    },
    /// The sessions were ended by another engine that has taken the array over. Only a request ends this one.
    Fenced,
}

/// A member as it was seen.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    signs: u64,
    /// The look at which `signs` had grown last.
    heard_at: Option<Duration>,
    away: Option<Away>,
    /// The look that found the member back after an absence.
    back_at: Option<Duration>,
    takes_part: bool,
}

#[derive(Debug, Clone, Copy)]
struct Away {
    /// The first look that found the member away.
    since: Duration,
    /// None: however long it stays away.
    patience: Option<Duration>,
}

/// What is known of the sessions to all members.
#[derive(Debug)]
pub struct Presence {
    members: Vec<Seen>,
    looked_at: Option<Duration>,
}

impl Presence {
    /// Of an array with so many members, none of which was looked at.
    #[must_use]
    pub fn new(members: usize) -> Self {
        Self { members: alloc::vec![Seen::default(); members], looked_at: None }
    }

    /// Takes what the sessions say at one moment, by member; none of a member that takes no part. `now` never
    /// goes back.
    ///
    /// # Panics
    /// When there are more or fewer sightings than members.
    pub fn handle_look(&mut self, now: Duration, sightings: &[Option<Sighting>]) {
        assert_eq!(sightings.len(), self.members.len(), "a sighting of every member");
        let is_late = self.looked_at.is_some_and(|before| now.saturating_sub(before) > LATE);
        self.looked_at = Some(now);
        for (seen, sighting) in self.members.iter_mut().zip(sightings) {
            match *sighting {
                None => *seen = Seen::default(),
                Some(sighting) => seen.look(now, sighting, is_late),
            }
        }
    }

    /// When the last look was.
    #[must_use]
    pub const fn looked_at(&self) -> Option<Duration> {
        self.looked_at
    }

    /// Members that take part and had no session at the last look.
    #[must_use]
    pub fn suspects(&self) -> MemberSet {
        self.members_of(|seen| seen.away.is_some())
    }

    /// The members that are to be set aside together, where the array bears that: all suspects, once every
    /// one of them has been away for too long and every other member was heard of since, and since the look
    /// before; else none.
    #[must_use]
    pub fn overdue(&self) -> MemberSet {
        let Some(now) = self.looked_at else { return MemberSet::EMPTY };
        let away = || self.members.iter().filter_map(|seen| seen.away);
        let is_over =
            |away: Away| away.patience.is_some_and(|patience| now - away.since >= patience);
        let Some(last) = away().map(|away| away.since).max() else { return MemberSet::EMPTY };
        let mut others = self.members.iter().filter(|seen| seen.takes_part && seen.away.is_none());
        let all_steady = others.all(|seen| {
            let is_heard = seen.heard_at == Some(now) && now > last;
            is_heard && seen.back_at.is_none_or(|back| now - back >= STEADY)
        });
        match all_steady && away().all(is_over) {
            true => self.suspects(),
            false => MemberSet::EMPTY,
        }
    }

    /// For how long a suspect has been away, as far as that counts.
    #[must_use]
    pub fn away_for(&self, member: MemberIndex) -> Option<Duration> {
        let since = self.members.get(member.as_usize())?.away?.since;
        self.looked_at.map(|now| now - since)
    }

    fn members_of(&self, is_one: impl Fn(&Seen) -> bool) -> MemberSet {
        let all = (0..).map(MemberIndex).zip(&self.members);
        all.filter(|(_, seen)| is_one(seen)).map(|(member, _)| member).collect()
    }
}

impl Seen {
    fn look(&mut self, now: Duration, sighting: Sighting, is_late: bool) {
        let (signs, patience) = match sighting {
            Sighting::Connected { signs } => (signs, None),
            Sighting::Lost { signs, patience } => (signs, Some(Some(patience))),
            Sighting::Fenced => (self.signs, Some(None)),
        };
        let is_heard = self.takes_part && signs != self.signs;
        if is_heard {
            self.heard_at = Some(now);
        }
        // A session that was made and lost between two looks ends one absence and begins another.
        let goes_on = self.away.filter(|_| !is_heard && !is_late);
        let since = goes_on.map_or(now, |away| away.since);
        if self.away.is_some() && patience.is_none() {
            self.back_at = Some(now);
        }
        self.away = patience.map(|patience| Away { since, patience });
        (self.signs, self.takes_part) = (signs, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(2);
    const GONE: Duration = Duration::ZERO;

    /// Looks once a second at members that answer everything, but for those that are told to be lost.
    struct Watch {
        presence: Presence,
        now: Duration,
        signs: Vec<u64>,
        lost: Vec<Option<Duration>>,
        /// Sessions are there, and nothing comes.
        silent: MemberSet,
    }

    impl Watch {
        fn new(members: usize) -> Self {
            let mut watch = Self {
                presence: Presence::new(members),
                now: Duration::ZERO,
                signs: alloc::vec![0; members],
                lost: alloc::vec![None; members],
                silent: MemberSet::EMPTY,
            };
            assert_eq!(watch.looks(3), 0);
            watch
        }

        /// What is overdue after so many looks, one bit a member.
        fn looks(&mut self, count: u32) -> u64 {
            for _ in 0..count {
                self.look_after(Duration::from_secs(1));
            }
            bits(self.presence.overdue())
        }

        fn look_after(&mut self, time: Duration) {
            self.now += time;
            let mut sightings = Vec::new();
            for (at, lost) in (0..).zip(&self.lost) {
                let signs = &mut self.signs[usize::from(at)];
                let is_silent = self.silent.contains(MemberIndex(at));
                *signs += u64::from(lost.is_none() && !is_silent);
                sightings.push(Some(match *lost {
                    None => Sighting::Connected { signs: *signs },
                    Some(patience) => Sighting::Lost { signs: *signs, patience },
                }));
            }
            self.presence.handle_look(self.now, &sightings);
        }
    }

    fn bits(set: MemberSet) -> u64 {
        set.iter().map(|member| 1 << member.0).sum()
    }

    #[test]
    fn a_member_that_refuses_connections_is_suspect_at_once_and_set_aside_at_the_next_look() {
        let mut watch = Watch::new(4);
        watch.lost[2] = Some(GONE);
        assert_eq!(watch.looks(1), 0, "nobody was heard of since");
        assert_eq!(bits(watch.presence.suspects()), 0b0100);
        assert_eq!(watch.looks(1), 0b0100);
    }

    #[test]
    fn a_silent_member_has_its_patience_to_come_back() {
        let mut watch = Watch::new(4);
        watch.lost[0] = Some(PATIENCE);
        assert_eq!(watch.looks(2), 0);
        watch.lost[0] = None;
        assert_eq!(watch.looks(5), 0, "back at another portal");
        assert_eq!(bits(watch.presence.suspects()), 0);
        watch.lost[0] = Some(PATIENCE);
        assert_eq!(watch.looks(2), 0);
        assert_eq!(watch.looks(1), 0b0001);
        assert_eq!(watch.presence.away_for(MemberIndex(0)), Some(PATIENCE));
    }

    #[test]
    fn a_session_that_is_made_and_lost_between_looks_begins_a_new_absence() {
        let mut watch = Watch::new(3);
        watch.lost[1] = Some(PATIENCE);
        for _ in 0..10 {
            assert_eq!(watch.looks(1), 0);
            watch.signs[1] += 1;
        }
        assert_eq!(watch.looks(1), 0);
        assert_eq!(watch.looks(2), 0b0010);
    }

    #[test]
    fn a_switch_that_restarts_has_no_member_set_aside_in_whichever_order_losses_are_found() {
        for first in 0..3_u8 {
            let mut watch = Watch::new(3);
            // All are cut off at once; one loss is found after the other.
            (0..3).for_each(|at| watch.silent.insert(MemberIndex(at)));
            for at in [first, (first + 1) % 3, (first + 2) % 3] {
                watch.lost[usize::from(at)] = Some(PATIENCE);
                assert_eq!(watch.looks(1), 0);
            }
            // All are overdue: the array has to refuse, as it bears one loss.
            assert_eq!(watch.looks(5), 0b111);
            watch.silent = MemberSet::EMPTY;
            for at in 0..3 {
                watch.lost[at] = None;
                assert_eq!(watch.looks(1), 0, "the others come back as well");
            }
            assert_eq!(watch.looks(3), 0);
        }
    }

    #[test]
    fn nobody_is_set_aside_while_another_member_is_not_heard_of() {
        let mut watch = Watch::new(4);
        watch.lost[3] = Some(GONE);
        watch.silent.insert(MemberIndex(1));
        assert_eq!(watch.looks(20), 0);
        watch.silent.remove(MemberIndex(1));
        assert_eq!(watch.looks(1), 0b1000);
    }

    #[test]
    fn two_members_are_set_aside_together_once_both_are_overdue() {
        let mut watch = Watch::new(5);
        watch.lost[1] = Some(PATIENCE);
        assert_eq!(watch.looks(2), 0);
        watch.lost[4] = Some(PATIENCE);
        assert_eq!(watch.looks(2), 0, "the second one may come back");
        assert_eq!(watch.looks(1), 0b1_0010);
    }

    #[test]
    fn an_engine_that_stood_still_begins_every_absence_anew() {
        let mut watch = Watch::new(3);
        watch.lost[0] = Some(PATIENCE);
        assert_eq!(watch.looks(1), 0);
        watch.look_after(Duration::from_secs(30));
        assert_eq!(bits(watch.presence.overdue()), 0);
        assert_eq!(watch.looks(1), 0);
        assert_eq!(watch.looks(1), 0b001);
    }

    #[test]
    fn a_member_that_another_engine_took_is_suspect_and_keeps_all_others_in() {
        let mut presence = Presence::new(3);
        for second in 0..20_u64 {
            let signs = second;
            let gone = Sighting::Lost { signs: 0, patience: GONE };
            let all = [Some(Sighting::Fenced), Some(gone), Some(Sighting::Connected { signs })];
            presence.handle_look(Duration::from_secs(second), &all);
            assert_eq!((bits(presence.overdue()), bits(presence.suspects())), (0, 0b011));
        }
    }

    #[test]
    fn a_member_that_takes_no_part_is_not_waited_for() {
        let mut presence = Presence::new(3);
        for second in 0..3_u64 {
            let gone = Sighting::Lost { signs: 7, patience: GONE };
            let all = [None, Some(gone), Some(Sighting::Connected { signs: second })];
            presence.handle_look(Duration::from_secs(second), &all);
        }
        assert_eq!(bits(presence.overdue()), 0b010);
        presence.handle_look(Duration::from_secs(4), &[None, None, None]);
        assert_eq!((bits(presence.overdue()), bits(presence.suspects())), (0, 0));
    }

    /// A network of five members that fails at random, seen every second: what is cut off, alone or together, is
    /// silent at once, found lost two seconds later, and back up to a second after its cut ends.
    struct Network {
        watch: Watch,
        dice: u64,
        /// Seconds from which and until which a member is cut off.
        cuts: Vec<(u64, u64)>,
        back_after: Vec<u64>,
    }

    impl Network {
        const FOUND_AFTER: u64 = 2;

        fn roll(&mut self, below: u64) -> u64 {
            self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.dice >> 33) % below
        }

        fn step(&mut self, second: u64) {
            for at in 0..self.cuts.len() {
                let (from, until) = self.cuts[at];
                let is_cut = (from..until).contains(&second);
                match is_cut {
                    true => self.watch.silent.insert(MemberIndex(u8::try_from(at).unwrap())),
                    false => self.watch.silent.remove(MemberIndex(u8::try_from(at).unwrap())),
                }
                if is_cut && second >= from + Self::FOUND_AFTER {
                    self.watch.lost[at] = Some(if at % 2 == 0 { PATIENCE } else { GONE });
                } else if second >= until + self.back_after[at] {
                    self.watch.lost[at] = None;
                }
            }
            self.watch.looks(1);
        }
    }

    #[test]
    fn whatever_is_cut_off_together_no_label_is_written_to_a_member_that_is_cut_off() {
        let mut set_aside = 0;
        for seed in 0..300 {
            let watch = Watch::new(5);
            let (cuts, back_after) = (alloc::vec![(0, 0); 5], alloc::vec![0; 5]);
            let mut network = Network { watch, dice: seed, cuts, back_after };
            for second in 1..200 {
                if network.roll(15) == 0 {
                    let (members, long) = (network.roll(32), 1 + network.roll(12));
                    for at in 0..5 {
                        if members >> at & 1 == 1 && network.cuts[at].1 + 2 < second {
                            network.cuts[at] = (second, second + long);
                            network.back_after[at] = network.roll(2);
                        }
                    }
                }
                network.step(second);
                let overdue = network.watch.presence.overdue();
                if overdue.is_empty() {
                    continue;
                }
                set_aside += 1;
                let others = (0..5).filter(|at| !overdue.contains(MemberIndex(*at)));
                for at in others {
                    let (from, until) = network.cuts[usize::from(at)];
                    let is_cut = (from..until).contains(&second);
                    assert!(!is_cut, "seed {seed}, second {second}, {at}");
                }
            }
        }
        assert!(set_aside > 100, "{set_aside}");
    }
}
