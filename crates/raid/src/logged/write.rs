//! Writes: small ones to the log, full stripes to a new place and then into the map.
//!
//! Who writes has room in the log, and a free stripe if it needs one, before it locks anything.

use alloc::vec::Vec;
use core::ops::Range;

use netraid_block::{ErrorKind, IoError, SgList, narrow};

use super::{
    Rule,
    io::IoKind,
    locks::Purpose,
    log::{Remaps, Room},
    read::Pin,
    state::{BLOCK, State},
    tasks::{Array, Change},
};
use crate::{
    bytes,
    log::{Position, Record},
};

/// Free stripes that users' writes leave to rounds.
const KEPT_FOR_ROUNDS: u32 = 1;
/// Allocations that are remembered, for the stripes that follow them.
const STREAMS_MAX: usize = 128;

/// A free stripe that was allocated, and is pinned.
pub(super) struct Allocated {
    pub(super) physical: u32,
    array: Array,
    _pin: Pin,
}

impl Drop for Allocated {
    fn drop(&mut self) {
        let mut state = self.array.state();
        state.allocated -= 1;
        state.waiters.wake(Change::Stripes);
    }
}

/// A stripe that is about to be left behind.
struct Leaving(Array);

impl Drop for Leaving {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.allocated -= 1;
        state.waiters.wake(Change::Stripes);
    }
}

impl State {
    /// Has stripes that were left made usable again, if anything can.
    fn want_stripes(&mut self) {
        if !self.limbo.is_empty() {
            self.want_flush();
        }
    }

    /// Stripes that are not mapped and cannot be used either.
    fn set_aside(&self) -> u32 {
        // Each is a physical stripe, and none is there twice.
        let limbo: u32 = narrow(self.limbo.len() + self.discards.len());
        limbo.saturating_add(self.allocated)
    }

    /// Whether one more stripe may be left behind: rounds must always find a free one for each
    /// logical stripe that is nowhere.
    pub(super) fn may_set_aside(&self) -> bool {
        let reserve = self.layout.physical - self.layout.logical;
        self.set_aside() + KEPT_FOR_ROUNDS < reserve
    }

    /// Takes a free stripe after that of the logical one before, so that streams stay in order:
    /// after where that is about to be, if it is being written. Else the first that is free: what
    /// was used before is used again.
    fn allocate(&mut self, logical: u32) -> Option<u32> {
        let before = logical.checked_sub(1).and_then(|before| {
            let last = self.streams.iter().find(|(last, _)| *last == before);
            last.map(|(_, physical)| *physical).or_else(|| self.stripes.find(before))
        });
        let physical = self.stripes.allocate(before.map_or(0, |before| before + 1))?;
        self.streams.truncate(STREAMS_MAX - 1);
        self.streams.push_front((logical, physical));
        // Ahead of need: what is left behind is of use again only after a flush.
        let reserve = (self.layout.physical - self.layout.logical) as usize;
        if self.limbo.len() * 2 > reserve {
            self.want_flush();
        }
        self.allocated += 1;
        Some(physical)
    }
}

impl Array {
    /// Waits for a free stripe, for a user's write.
    async fn allocate_for_user(&self, logical: u32) -> Allocated {
        let physical = self
            .until_rule(Change::Stripes, Rule::FreeStripe, |state| {
                let found = if state.may_set_aside() { state.allocate(logical) } else { None };
                if found.is_none() {
                    state.want_stripes();
                }
                found
            })
            .await;
        Allocated { physical, array: self.clone(), _pin: self.adopt_pin(physical) }
    }

    /// Waits until one more stripe may be left behind without a successor.
    async fn may_leave_stripe(&self) -> Leaving {
        self.until_rule(Change::Stripes, Rule::StripeToLeave, |state| {
            if state.may_set_aside() {
                state.allocated += 1;
                return Some(());
            }
            state.want_stripes();
            None
        })
        .await;
        Leaving(self.clone())
    }

    /// A free stripe for a round; there is always one.
    pub(super) async fn allocate_for_round(&self, logical: u32) -> Allocated {
        let physical = self
            .until(Change::Stripes, |state| {
                let found = state.allocate(logical);
                if found.is_none() {
                    state.want_stripes();
                }
                found
            })
            .await;
        Allocated { physical, array: self.clone(), _pin: self.adopt_pin(physical) }
    }

    /// New contents of bytes of a logical stripe, which may begin and end within blocks, and are
    /// in few enough blocks for the log.
    pub(super) async fn write_small(
        &self,
        logical: u32,
        range: Range<u32>,
        data: SgList,
    ) -> Result<(), IoError> {
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        let count = u64::from(blocks.end - blocks.start);
        self.check_space(logical, blocks.clone())?;
        let mut room = self.room(count, 0).await?;
        let whole = range.start.is_multiple_of(BLOCK) && range.end.is_multiple_of(BLOCK);
        let purpose =
            if whole { Purpose::Write(blocks.clone()) } else { Purpose::Merge(blocks.clone()) };
        let _lock = self.lock(logical, purpose).await;
        let data = self.complete_edges(logical, &range, &blocks, data).await?;
        let (first, checksum) = {
            let state = self.state();
            (state.layout.first_block(logical), state.layout.checksum)
        };
        let mut tickets = Vec::new();
        for (at, block) in (0_usize..).zip(blocks) {
            let (block, contents) = (first + u64::from(block), bytes::block(&data, at));
            let crc = checksum.in_log(block, &contents);
            tickets.push(self.log_data(&mut room, block, crc, contents));
        }
        for ticket in tickets {
            ticket.answer().await?;
        }
        Ok(())
    }

    /// Zeros in bytes of a logical stripe, as [`Self::write_small`].
    pub(super) async fn zero_small(&self, logical: u32, range: Range<u32>) -> Result<(), IoError> {
        let whole = range.start.is_multiple_of(BLOCK) && range.end.is_multiple_of(BLOCK);
        if !whole {
            let zeroes = bytes::zeroes((range.end - range.start) as usize);
            return self.write_small(logical, range, zeroes).await;
        }
        let blocks = range.start / BLOCK..range.end / BLOCK;
        let count = u64::from(blocks.end - blocks.start);
        let mut room = self.room_for_zeroes(count).await?;
        let _lock = self.lock(logical, Purpose::Write(blocks.clone())).await;
        let first = {
            let state = self.state();
            let first = state.layout.first_block(logical) + u64::from(blocks.start);
            let dirty = state.dirty.range(first..first + count).next().is_some();
            if state.stripes.find(logical).is_none() && !dirty {
                return Ok(());
            }
            first
        };
        self.log_zeroes(&mut room, first, count).answer().await.map(drop)
    }

    /// The blocks that a write touches: its bytes over what is there. The caller has locked them.
    async fn complete_edges(
        &self,
        logical: u32,
        range: &Range<u32>,
        blocks: &Range<u32>,
        data: SgList,
    ) -> Result<SgList, IoError> {
        let head = range.start - blocks.start * BLOCK;
        let tail = blocks.end * BLOCK - range.end;
        if head == 0 && tail == 0 {
            return Ok(data);
        }
        let old = |block: u32| self.read_locked(logical, block..block + 1);
        let mut whole = SgList::new();
        if head > 0 {
            whole.append(old(blocks.start).await?.slice(0..head as usize));
        }
        whole.append(data);
        if tail > 0 {
            let block = old(blocks.end - 1).await?;
            whole.append(block.slice((BLOCK - tail) as usize..BLOCK as usize));
        }
        Ok(whole)
    }

    /// New contents of a whole logical stripe: written to a free one, and then it is there.
    /// Where a member has no space for that, and there is a place already, it goes to the log.
    pub(super) async fn write_full(&self, logical: u32, data: SgList) -> Result<(), IoError> {
        let end = self.write_elsewhere(logical, &data).await;
        let (has_place, len, step) = {
            let state = self.state();
            let has_place = state.stripes.find(logical).is_some();
            (has_place, state.layout.stripe_blocks() * BLOCK, state.piece_blocks() * BLOCK)
        };
        match end {
            Err(error) if error.kind() == ErrorKind::NoSpace && has_place => {}
            end => return end,
        }
        let mut from = 0;
        while from < len {
            let to = (from + step).min(len);
            let part = data.slice(from as usize..to as usize);
            self.write_small(logical, from..to, part).await?;
            from = to;
        }
        Ok(())
    }

    async fn write_elsewhere(&self, logical: u32, data: &SgList) -> Result<(), IoError> {
        // Apart from here, because it is rare: what is awaited is part of each write's task.
        let waits = self.state().has_much_unstable(2);
        if waits {
            alloc::boxed::Box::pin(self.may_write_whole()).await;
        }
        let room = self.room(0, 1).await?;
        let to = self.allocate_for_user(logical).await;
        let _lock = self.lock(logical, Purpose::Replace).await;
        let (chunk, columns, rows) = {
            let state = self.state();
            let geometry = &state.layout.geometry;
            (geometry.chunk_len() as usize, usize::from(geometry.data_columns()), state.layout.rows)
        };
        let columns: Vec<SgList> =
            (0..columns).map(|at| data.slice(at * chunk..(at + 1) * chunk)).collect();
        let written = alloc::vec![true; rows as usize];
        let upto = self.state().acked();
        let end = self.replace(logical, to, &columns, written, upto, (Remaps::Written, true)).await;
        drop(room);
        end
    }

    /// A whole logical stripe is given back.
    pub(super) async fn unmap(&self, logical: u32) -> Result<(), IoError> {
        let room = self.room_to_discard().await?;
        self.state().space.begin_to_give_back();
        if self.unmap_in(room, logical).await {
            // What waited for space there is void.
            self.state().end_giving_back();
        } else {
            let mut state = self.state();
            state.space.gave_nothing_back();
            state.waiters.wake(Change::Stripes);
        }
        Ok(())
    }

    /// Whether there was anything to be given back.
    async fn unmap_in(&self, room: Room, logical: u32) -> bool {
        let _leaving = self.may_leave_stripe().await;
        let _lock = self.lock(logical, Purpose::Replace).await;
        let void_upto = {
            let mut state = self.state();
            let first = state.layout.first_block(logical);
            let blocks = first..first + u64::from(state.layout.stripe_blocks());
            let dirty = state.dirty.range(blocks).next().is_some();
            if state.stripes.find(logical).is_none() && !dirty {
                return false;
            }
            state.acked()
        };
        let record = Record::Remap {
            stripe: u64::from(logical),
            to: None,
            void_upto,
            written: Vec::new(),
            sums: Vec::new(),
        };
        self.log_record(record, SgList::new(), Remaps::GivenBack).await;
        drop(room);
        true
    }

    /// Writes the data columns of a stripe's written rows, and their checks, to a free stripe, and
    /// maps the logical one there. DATA of it below `void_upto` is void then.
    ///
    /// What has no other place to go must go home, because the log must not fill up: unless
    /// this `may_fail`, a member that has no space for it is set aside where the array can do
    /// without it.
    ///
    /// # Errors
    /// A member has no space. Then nothing has changed.
    pub(super) async fn replace(
        &self,
        logical: u32,
        to: Allocated,
        data: &[SgList],
        written: Vec<bool>,
        void_upto: Position,
        (remaps, may_fail): (Remaps, bool),
    ) -> Result<(), IoError> {
        let physical = to.physical;
        let (code, pool, checksum) = {
            let state = self.state();
            (state.layout.code, state.layout.pool.clone(), state.layout.checksum)
        };
        let (checks, sums) = checksum.of_rows(&pool, &code, (physical, &written), data);
        let mut columns: Vec<SgList> = data.to_vec();
        columns.extend(checks);
        let _sums = self.sums(physical).await;
        let runs = runs_of(&written);
        while let Err(why) = self.write_chunks(physical, &columns, &runs, may_fail).await {
            if may_fail || !self.set_aside_who_is_full(&why).await {
                // What others had space for would be lost to everybody.
                self.discard_stripe(physical).await;
                return Err(why);
            }
        }
        let record = Record::Remap {
            stripe: u64::from(logical),
            to: Some(u64::from(physical)),
            void_upto,
            written,
            sums,
        };
        self.log_record(record, SgList::new(), remaps).await;
        Ok(())
    }

    /// Writes rows of all columns of a stripe. All writes have ended when this ends: then the stripe
    /// may be used for something else.
    async fn write_chunks(
        &self,
        physical: u32,
        columns: &[SgList],
        runs: &[Range<u32>],
        may_fail: bool,
    ) -> Result<(), IoError> {
        let writes = self.writes(if may_fail { IoKind::Chunk } else { IoKind::Home });
        for (column, data) in (0..).zip(columns) {
            let mut at = 0;
            for run in runs {
                let len = ((run.end - run.start) * BLOCK) as usize;
                let (member, offset) = self.state().home(physical, column, run.start);
                writes.add(member, offset, data.slice(at..at + len));
                at += len;
            }
        }
        writes.end().await
    }
}

/// Runs of rows that are written.
fn runs_of(written: &[bool]) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for (row, _) in (0..).zip(written).filter(|(_, written)| **written) {
        match runs.last_mut() {
            Some(run) if run.end == row => run.end = row + 1,
            _ => runs.push(row..row + 1),
        }
    }
    runs
}
