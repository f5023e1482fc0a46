//! Moves the beginning of the log to where this generation began to write. An array does so while it is
//! opened, when its labels have room for few more beginnings of generations.
//!
//! Where members have space, a round does it. Where members have no space, dirty blocks are logged
//! again, the oldest first, in steps that the log has room for.
//!
//! Invariant: each step ends with a checkpoint, which frees about as many blocks of the log as the step
//! wrote, or more. A step that was cut short has written blocks and freed none: the next opening frees
//! these first, because rounds need the room that is kept for dirty blocks.

use alloc::{collections::BTreeMap, vec::Vec};

use netraid_block::narrow;

use super::{Rule, log::BLOCKS_OF_DATA, space::Aim, state::State, tasks::Array};
use crate::log::{Link, Position};

/// Records that share a block of a batch's head, at least, in a ring of any but the smallest length.
const RECORDS_PER_HEAD_BLOCK: u64 = 64;
/// Blocks that a step takes beside contents and records.
const BLOCKS_OF_STEP: u64 = 4;

impl Array {
    /// Moves the beginning of the log to its present end, or as far as the log has room for.
    pub(super) async fn renew_log(&self) {
        let end = self.state().acked();
        self.round_to(Aim::Reclaim).await;
        let has_room = self.state().has_room_for_rounds();
        if has_room {
            self.round_to(Aim::Room).await;
        }
        loop {
            let before = self.state().writer().tail();
            if before >= end {
                return;
            }
            self.round_to(Aim::Renew).await;
            if self.state().writer().tail() == before {
                return;
            }
        }
    }
}

impl State {
    /// Where the log may begin after a round that brings no block home; none where it stays.
    pub(super) fn renewed_to(&mut self, aim: Aim, cut: Link) -> Option<Link> {
        let mut dirty: Vec<(Position, bool)> = self.dirty.contents_below(cut.end).collect();
        dirty.sort_unstable();
        let (kept, most) = (self.room(), self.room_to_log_again());
        // Stuck blocks are logged again wherever the log begins.
        let stuck = BLOCKS_OF_DATA * self.stuck.len() as u64;
        if stuck > most {
            return None;
        }
        let is_free = |upto: Position| dirty.first().is_none_or(|(oldest, _)| upto <= *oldest);
        if is_free(cut.end) {
            return Some(cut);
        }
        let free = self.last_cut(is_free);
        if free.is_some() || aim == Aim::Reclaim {
            return free;
        }

        let per_head =
            RECORDS_PER_HEAD_BLOCK.min(u64::from(self.layout.ring.batch_blocks_max()) / 2);
        let contents_before: Vec<u64> = dirty
            .iter()
            .scan(0, |count, (_, has_contents)| {
                *count += u64::from(*has_contents);
                Some(*count)
            })
            .collect();
        let cost = |upto: Position| {
            let records = dirty.partition_point(|(position, _)| *position < upto);
            let contents = records.checked_sub(1).map_or(0, |last| contents_before[last]);
            contents + (records as u64).div_ceil(per_head) + BLOCKS_OF_STEP + stuck
        };
        let to = if cost(cut.end) <= kept {
            Some(cut)
        } else {
            let within = self.last_cut(|earlier| earlier <= cut.end && cost(earlier) <= kept);
            // One step may use the room that is kept for rounds: the next opening frees it.
            within.or_else(|| self.first_cut().filter(|first| cost(first.end) <= most))
        };
        if to.is_some() {
            self.rules.note(Rule::LogBegunAnew);
        }
        to
    }

    /// The blocks that are logged again for the log to begin at `cut`, by logical stripe: dirty blocks from
    /// below `cut`, and all stuck blocks, because the round that ends may have logged PARITY of these,
    /// which was not redone.
    pub(super) fn logged_again_for(&self, cut: Position) -> BTreeMap<u32, Vec<u32>> {
        let per_stripe = u64::from(self.layout.stripe_blocks());
        let mut stripes: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let below = self.dirty.below(cut).map(|(block, _)| block);
        let stuck = self.stuck.iter().copied().filter(|block| {
            let dirty = self.dirty.range(*block..block + 1).next();
            dirty.is_some_and(|(_, dirty)| dirty.position >= cut)
        });
        for block in below.chain(stuck) {
            let blocks = stripes.entry(narrow(block / per_stripe)).or_default();
            blocks.push(narrow(block % per_stripe));
        }
        stripes
    }

    /// Whether rounds have the room in the log that is kept for them.
    fn has_room_for_rounds(&mut self) -> bool {
        let kept = self.kept_in_log();
        self.writer().room() >= kept
    }
}
