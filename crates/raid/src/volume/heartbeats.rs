//! Heartbeats of a volume that another engine stands by for: [`crate::heartbeat`] is what is written.
//!
//! They are written at each look at the members' sessions to all members in sync, while the machine opens, serves or closes.
//! These requests are nobody's: they count nowhere, nothing waits for them, and what they end with has no other consequence.
//!
//! Invariants: a volume that has failed, is closed or only reads writes none, and one that pauses has nobody to write to; a
//! member that does not answer has one such write under way.

use netraid_block::{Buf, Op};

use super::{Action, Life, Look, Tag, Volume, machine::Machine};
use crate::{
    heartbeat::Heartbeat,
    label::Uuid,
    member::{MemberIndex, MemberSet, MemberState},
    regions::PAGE_LEN,
};

/// The number of these requests: no machine has so many under way.
const BEAT: usize = (1 << 40) - 4;

/// What a volume has of its heartbeats.
#[derive(Debug, Default)]
pub(super) struct Heartbeats {
    /// Whose they are; none: none are written.
    engine: Option<Uuid>,
    last: Heartbeat,
    /// Members to which one is under way.
    under_way: MemberSet,
}

impl<M: Machine, U> Volume<M, U> {
    /// The members are told at each look that this engine is alive, for one that stands by. The usual is that they are not.
    pub const fn set_heartbeats(&mut self, engine: Option<Uuid>) {
        self.heartbeats.engine = engine;
    }

    /// Writes the next heartbeat.
    pub(super) fn beat(&mut self, looks: &[Look]) {
        let may_write = !self.machine.is_read_only() && self.machine.failure().is_none();
        if !may_write || self.life == Life::Closed {
            return;
        }
        let (Some(engine), Some((holder, generation))) =
            (self.heartbeats.engine, self.machine.holder())
        else {
            return;
        };
        // A machine that opens has not named this engine in its labels yet: it will in those of the next generation.
        let generation = if holder == engine { generation } else { generation.saturating_add(1) };
        let beat = self.heartbeats.last.next(engine, generation);
        self.heartbeats.last = beat;
        let away = self.suspects(looks);
        for place in 0..self.places.len() {
            let Some(member) = u8::try_from(place).ok().map(MemberIndex) else { return };
            let is_there = self.places[place].device.is_some() && !self.places[place].is_awaited;
            let holds_all = self.state(member) == MemberState::InSync;
            let is_busy = self.heartbeats.under_way.contains(member) || away.contains(member);
            let Some((array, _)) = self.machine.identity(member) else { continue };
            if !is_there || !holds_all || is_busy {
                continue;
            }
            self.heartbeats.under_way.insert(member);
            let (op, offset, len) = (Op::Write, beat.offset(), u64::from(PAGE_LEN));
            let (tag, fua) = (Tag::new(member, BEAT, 0), false);
            let data = Buf::copy_from(&beat.encode(array)).into();
            self.actions.push_back(Action::Submit { tag, member, op, offset, len, fua, data });
        }
    }

    /// Whether a request was a heartbeat, which has ended now.
    pub(super) const fn hear_heartbeat(&mut self, tag: Tag) -> bool {
        let is_one = tag.io() == BEAT as u64;
        if is_one {
            self.heartbeats.under_way.remove(tag.member());
        }
        is_one
    }
}
