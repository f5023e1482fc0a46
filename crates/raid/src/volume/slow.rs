//! Requests that are late, and members that are slow: what [`crate::slowness`] finds is told the machine.

use alloc::format;
use core::time::Duration;

use netraid_block::{Op, SgList};

use super::{Action, Event, Life, Tag, Volume, machine::Machine};
use crate::{
    member::{MemberIndex, MemberSet, MemberState},
    slowness::Due,
};

/// The number of requests for a sign of life: no machine has so many under way.
const SIGN: usize = (1 << 40) - 1;
/// How old a look at the members' sessions may be by which one is given up.
const LOOK_AGE_MAX: Duration = Duration::from_millis(100);
/// Bytes of the label, which is read for that.
const SIGN_LEN: u64 = 4096;

impl<M: Machine, U> Volume<M, U> {
    /// Members that answer reads so late that what can be had from the others is not read from them. They take part.
    #[must_use]
    pub const fn slow(&self) -> MemberSet {
        self.slowness.slow()
    }

    /// Looks at the reads that are under way.
    pub(super) fn look_at_reads(&mut self, now: Duration) {
        if self.slowness.next_timeout().is_none_or(|at| at > now) {
            return;
        }
        let whole = self.whole_members();
        while let Some(due) = self.slowness.poll_due(now, whole) {
            match due {
                Due::Hedge(member, io) => {
                    let reads = self.machine.handle_late(io);
                    self.places[member.as_usize()].stats.late += u64::from(reads > 0);
                    // Reads that go past a slow member count as no hedges.
                    if !self.slow().contains(member) {
                        self.slowness.note_hedged(now, reads);
                    }
                }
                Due::Probe(member) => self.machine.handle_probe(member),
                Due::Slow(member, took) => {
                    self.machine.handle_slow(self.slow());
                    let took = took.as_secs_f64();
                    let failure =
                        format!("its reads take {took:.3} s: what it has is read from the others");
                    self.tell(Event::Slow { member, failure: Some(failure) });
                }
                Due::GiveUp { member, took, unheard, is_silent } => {
                    self.give_up_late(now, member, (took, is_silent), unheard);
                }
                Due::SuccessorLate(took) => self.give_up_successor(took),
                Due::NotSlow(member) => {
                    self.machine.handle_slow(self.slow());
                    self.tell(Event::Slow { member, failure: None });
                }
            }
        }
    }

    /// The array goes on without a member that keeps its writes waiting, where it can do without. It comes back by itself.
    fn give_up_late(
        &mut self,
        now: Duration,
        member: MemberIndex,
        (took, is_silent): (Duration, bool),
        unheard: MemberSet,
    ) {
        let is_running = matches!(self.life, Life::Open | Life::Ending);
        let mut alone = MemberSet::EMPTY;
        alone.insert(member);
        let may_go = self.state(member).is_live()
            && self.machine.has_log()
            && self.machine.can_lose_all(alone);
        if !is_running || !may_go {
            return;
        }
        if self.presence.looked_at().is_none_or(|at| at + LOOK_AGE_MAX < now) {
            // Sessions that were lost since the last look have their own time to come back.
            self.look_at = now;
            return;
        }
        if !self.presence.suspects().is_empty() {
            return;
        }
        // Who was cut off together owes nothing where nothing was asked of it since.
        if !unheard.is_empty() {
            return unheard.iter().for_each(|other| self.ask_for_a_sign(other));
        }
        let away = self.slowness.note_given_up(now, member, is_silent);
        self.places[member.as_usize()].returning.stay_away(away);
        let took = took.as_secs_f64();
        let mut reason = match is_silent {
            true => format!("nothing came from it for {took:.1} s, and writes wait"),
            false => format!("its writes take {took:.1} s, and all wait for them"),
        };
        if !away.is_zero() {
            reason += &format!(": it is looked for again in {} s", away.as_secs());
        }
        self.machine.handle_gone(member, &reason);
        self.places[member.as_usize()].stats.last_error = Some(reason);
    }

    /// Has a member's device read its first block, unless it has been asked already.
    fn ask_for_a_sign(&mut self, member: MemberIndex) {
        let place = &mut self.places[member.as_usize()];
        if place.device.is_none() || place.asked == Some(place.number) {
            return;
        }
        place.asked = Some(place.number);
        let tag = Tag::new(member, SIGN, 0);
        let (op, offset, len, fua, data) = (Op::Read, 0, SIGN_LEN, false, SgList::new());
        self.actions.push_back(Action::Submit { tag, member, op, offset, len, fua, data });
    }

    /// Whether a request was for a sign of life, which has ended now.
    pub(super) fn hear_sign(&mut self, now: Duration, tag: Tag, is_answer: bool) -> bool {
        if tag.io() != SIGN as u64 {
            return false;
        }
        let place = &mut self.places[tag.member().as_usize()];
        if place.asked.take() == Some(place.number) && place.device.is_some() && is_answer {
            self.slowness.note_answer(now, tag.member());
        }
        true
    }

    /// A member has left, or is another device: how fast it was says nothing.
    pub(super) fn forget_slowness(&mut self, member: MemberIndex) {
        let was_slow = self.slow().contains(member);
        self.slowness.forget(member);
        if was_slow {
            self.machine.handle_slow(self.slow());
            self.tell(Event::Slow { member, failure: None });
        }
    }

    /// Members that hold everything, and have devices.
    fn whole_members(&self) -> MemberSet {
        let is_whole = |member: &MemberIndex| {
            self.state(*member) == MemberState::InSync
                && self.places[member.as_usize()].device.is_some()
        };
        self.machine.geometry().member_indices().filter(is_whole).collect()
    }
}
