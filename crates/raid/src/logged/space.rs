//! Want of space: members refuse what has no place on them yet.
//!
//! What was acknowledged must go home. Who has no space for that is set aside where the array can do
//! without all who have none. Where it cannot, nobody is set aside, and nothing is lost: what was
//! acknowledged stays in the log, reads and discards are served, and what needs more space is refused.
//!
//! A round that meets it has two ways. While the log has room, the round ends before its checkpoint,
//! and the log begins where it began. When the log must begin later, a few blocks are logged again
//! (`carry.rs`); where more wait, the log begins at the oldest of them, which is also the first that
//! gets space. When that gives no room either, users' writes are refused until it is worth another try.
//!
//! Each generation that logs something needs a beginning in the labels until the log begins behind it:
//! so what waits is logged again now and then when an array is opened often meanwhile (`renew.rs`).
//!
//! Invariant: discards always find room in the log before users' data does.

use alloc::{collections::BTreeMap, vec::Vec};

use netraid_block::{ErrorKind, IoError, narrow};

use super::{
    Event,
    carry::Stuck,
    log::BLOCKS_OF_DATA,
    state::State,
    tasks::{Array, Change},
};
use crate::{
    log::{Link, Position, Ring},
    member::MemberSet,
};

/// The part of the log that users' data leaves to discards.
const KEPT_FOR_DISCARDS: u64 = 16;
/// The least that it leaves to them, in blocks, but in a log that is only four times as long.
const KEPT_FOR_DISCARDS_MIN: u64 = 16;

/// Stripes that are nowhere for which a round finds no space before it no longer tries more of them,
/// where the round before found none either.
const TRIES_MAX: u32 = 4;

/// Who lacks space, and what waits for it.
#[derive(Debug, Default)]
pub(super) struct Space {
    /// Members that refused something since the last round began.
    refused: MemberSet,
    /// Members that refused what the last round was to bring home.
    short: MemberSet,
    /// Blocks of the volume that it could not bring home.
    waiting: u64,
    /// Stripes that are nowhere for which this round found no space.
    tries: u32,
    /// More waits than may be logged again: no round ends before there is space.
    is_blocked: bool,
    /// Discards, and stripes that they left, on the way to be given back.
    giving_back: u64,
    /// How many of these there were.
    given_back: u64,
}

/// How far a round is to let the log begin later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Aim {
    /// Not at all, if members have no space for what is below its cut.
    #[default]
    Try,
    /// So far that the log has room, also when members have no space.
    Room,
    /// As far as nothing is dirty; nothing is brought home.
    Reclaim,
    /// As far as there is room to log again what is dirty; nothing is brought home.
    Renew,
}

/// What an array lacks space for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// Members that have none, and that the array cannot do without.
    pub members: MemberSet,
    /// Blocks of 4 KiB of the volume that were acknowledged and wait in the log until there is some.
    pub blocks: u64,
}

impl Space {
    /// A member has no space for something.
    pub(super) const fn note_refusal(&mut self, member: crate::member::MemberIndex) {
        self.refused.insert(member);
    }

    pub(super) const fn begin_round(&mut self) {
        self.refused = MemberSet::EMPTY;
        self.tries = 0;
    }

    /// A stripe that is nowhere found no space.
    pub(super) const fn note_try(&mut self) {
        self.tries += 1;
    }

    /// A stripe is about to be given back; [`State::end_giving_back`] follows, or [`Self::gave_nothing_back`].
    pub(super) const fn begin_to_give_back(&mut self) {
        self.giving_back += 1;
    }

    /// There was nothing to be given back.
    pub(super) const fn gave_nothing_back(&mut self) {
        self.giving_back -= 1;
    }

    /// Rises whenever there may be more space.
    pub(super) const fn given_back(&self) -> u64 {
        self.given_back
    }

    pub(super) const fn is_short(&self) -> bool {
        self.waiting > 0
    }

    pub(super) const fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    pub(super) const fn shortage(&self) -> Option<Shortage> {
        if self.waiting == 0 {
            return None;
        }
        Some(Shortage { members: self.short, blocks: self.waiting })
    }
}

/// Blocks of a log that are left to discards, where `home` blocks bring a dirty one home: one block of a user's always has
/// room beside them in an empty log.
pub(super) fn kept_for_discards(ring: Ring, home: u64) -> u64 {
    let blocks = ring.blocks();
    let usual = (blocks / KEPT_FOR_DISCARDS).max(KEPT_FOR_DISCARDS_MIN.min(blocks / 4));
    usual.min(ring.room_when_empty().saturating_sub(BLOCKS_OF_DATA + home))
}

impl State {
    /// Blocks of the log that are left to discards.
    pub(super) fn kept_for_discards(&self) -> u64 {
        kept_for_discards(self.layout.ring, self.layout.blocks_to_bring_home())
    }

    /// What is dirty of a stripe for which no space needs to be looked for: others found none.
    pub(super) fn is_in_vain(&self, logical: u32) -> Option<Stuck> {
        let is_tried = self.space.is_short() && self.space.tries >= TRIES_MAX;
        if !is_tried || self.stripes.find(logical).is_some() {
            return None;
        }
        let blocks = self.dirty_of(logical).into_iter().map(|(block, _)| block).collect();
        Some(Stuck { blocks, why: self.no_space() })
    }

    /// Blocks that each round may log again for want of space: what is dirty otherwise keeps its
    /// room, in the log and in memory.
    fn carried_for_space_max(&self) -> u64 {
        let each = 4 * (self.layout.blocks_to_bring_home() + 4);
        (self.layout.ring.blocks() / each).min(self.layout.limits.dirty_blocks as u64 / 4)
    }

    /// While there is want of space: stripes that are dirty from below `cut`, the oldest first.
    pub(super) fn oldest_first(&self, cut: Position) -> Option<Vec<u32>> {
        if !self.space.is_short() {
            return None;
        }
        let per_stripe = u64::from(self.layout.stripe_blocks());
        let mut oldest: BTreeMap<u64, Position> = BTreeMap::new();
        for (block, position) in self.dirty.below(cut) {
            let known = oldest.entry(block / per_stripe).or_insert(position);
            *known = position.min(*known);
        }
        let mut stripes: Vec<(Position, u64)> =
            oldest.into_iter().map(|(logical, position)| (position, logical)).collect();
        stripes.sort_unstable();
        Some(stripes.into_iter().map(|(_, logical)| narrow(logical)).collect())
    }

    /// A round could not bring these home from below its cut: where the log may begin now, if
    /// anywhere. What waits from below that is logged again.
    pub(super) fn pass(&mut self, stuck: &[(u32, Stuck)], aim: Aim, cut: Link) -> Option<Link> {
        let waits = stuck.iter().filter(|(_, stuck)| stuck.why.kind() == ErrorKind::NoSpace);
        let waiting: u64 = waits.map(|(_, stuck)| stuck.blocks.len() as u64).sum();
        self.note_waiting(waiting);
        self.space.is_blocked = false;
        if waiting == 0 || (aim == Aim::Room && waiting <= self.carried_for_space_max()) {
            return Some(cut);
        }
        if aim != Aim::Room {
            return None;
        }
        let oldest = self.dirty.below(cut.end).map(|(_, position)| position).min();
        let earlier = self.last_cut_before(oldest.unwrap_or(cut.end));
        if earlier.is_none() {
            self.space.is_blocked = true;
            self.waiters.wake(Change::Room);
        }
        earlier
    }

    fn note_waiting(&mut self, waiting: u64) {
        let was_short = self.space.is_short();
        self.space.waiting = waiting;
        self.space.short = if waiting > 0 { self.space.refused } else { MemberSet::EMPTY };
        if !was_short && waiting > 0 {
            self.events.push_back(Event::Notice(alloc::format!("{}", self.no_space())));
        } else if was_short && waiting == 0 {
            let text = "there is space again: all that waited for it in the log is home";
            self.events.push_back(Event::Notice(text.into()));
        }
    }

    /// There may be space now: it is tried. Nothing is logged again for that.
    pub(super) fn retry_space(&mut self) {
        if self.space.is_short() && self.failed.is_none() {
            self.space.is_blocked = false;
            self.try_round();
            self.waiters.wake(Change::Round);
        }
    }

    /// What was given back may be used by what waits.
    pub(super) fn end_giving_back(&mut self) {
        self.space.giving_back -= 1;
        self.space.given_back += 1;
        self.waiters.wake(Change::Stripes);
        self.retry_space();
    }

    /// Whether there will be more space without anybody's doing.
    pub(super) fn is_giving_back(&self) -> bool {
        let is_left = self.limbo.iter().any(|left| left.discard) || !self.discards.is_empty();
        self.space.giving_back > 0 || is_left
    }

    /// Why something is refused.
    pub(super) fn no_space(&self) -> IoError {
        let mut names = alloc::string::String::new();
        for member in self.space.short.iter() {
            let separator = if names.is_empty() { "" } else { ", " };
            names.push_str(&alloc::format!("{separator}{member}"));
        }
        let text = alloc::format!(
            "array '{}': no space left on members {names}; {} KiB that were acknowledged wait in the \
             log, and nothing is taken that needs more; discard what is not needed, or give these \
             members space",
            self.label.name,
            self.space.waiting * 4,
        );
        IoError::with_detail(ErrorKind::NoSpace, text)
    }
}

impl Array {
    /// Some had no space for what must go home. They are set aside if the array can do without all of
    /// them; true when they are, and it may be written again.
    pub(super) async fn set_aside_who_is_full(&self, why: &IoError) -> bool {
        {
            let mut state = self.state();
            let in_sync = state.in_sync();
            let full: MemberSet =
                state.space.refused.iter().filter(|one| in_sync.contains(*one)).collect();
            if !state.can_go_on_without_all(full) {
                return false;
            }
            let reason = alloc::format!("{why}");
            full.iter().for_each(|member| state.member_gone(member, &reason));
        }
        self.update_labels(|_| {}).await;
        true
    }

    /// Refuses new contents of blocks of a stripe that is nowhere, while what was acknowledged waits
    /// for space; what waits itself may change.
    ///
    /// # Errors
    /// There is no space.
    pub(super) fn check_space(
        &self,
        logical: u32,
        blocks: core::ops::Range<u32>,
    ) -> Result<(), IoError> {
        let state = self.state();
        if !state.space.is_short() || state.stripes.find(logical).is_some() {
            return Ok(());
        }
        let first = state.layout.first_block(logical);
        let range = first + u64::from(blocks.start)..first + u64::from(blocks.end);
        let waiting = state.dirty.range(range).count();
        if waiting == blocks.len() { Ok(()) } else { Err(state.no_space()) }
    }
}
