//! Writes the log: forms batches of what waits, and says what is acknowledged.
//!
//! Invariant: a batch is acknowledged when it and all before it are completed on every member
//! that it was sent to and that still takes part; so what is acknowledged is a prefix of the log.
//! A position is not written again before the tail has passed it.
//!
//! Does not send, flush, or judge members: whoever drives it does, and holds acknowledgements
//! back while labels are written.

use alloc::{collections::VecDeque, vec::Vec};

use netraid_block::{Buf, SgList, narrow};

use super::{
    Batch, HEAD_BLOCKS_MAX, LOG_BLOCK_LEN, Link, LogKey, Position, Record, Ring, batch::RAW_LEN,
};
use crate::{
    copies::Copies,
    member::{MemberIndex, MemberSet},
    planted::{Planted, planted},
};

/// Batches under way at most; what comes meanwhile shares the next one. A batch costs a request to
/// each of its holders, so few large ones are better than many small ones; with one alone every
/// write would wait half a round trip for its turn.
pub const BATCHES_IN_FLIGHT_MAX: usize = 4;
/// Blocks after which other members hold the copies: a mebibyte.
const SEGMENT_BLOCKS: u64 = (1 << 20) / LOG_BLOCK_LEN as u64;

/// A batch to be written, at one offset of the log's region of some members.
#[derive(Debug, Clone)]
pub struct BatchWrite {
    /// Names it when a member has written it.
    pub position: Position,
    /// Where, from the beginning of the log's region.
    pub offset: u64,
    /// On which members.
    pub members: MemberSet,
    /// The head's bytes.
    pub head: Buf,
    /// What follows it.
    pub payload: SgList,
}

impl BatchWrite {
    /// All that is written: the head, then the payload.
    #[must_use]
    pub fn into_data(self) -> SgList {
        let mut data = SgList::from(self.head);
        data.append(self.payload);
        data
    }
}

/// A record that is acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acked<T> {
    /// Where it is.
    pub position: Position,
    /// What it says.
    pub record: Record,
    /// What whoever pushed it wanted to remember.
    pub tag: T,
}

#[derive(Debug)]
struct Waiting<T> {
    record: Record,
    payload: SgList,
    tag: T,
    /// The record behind it goes into the same batch.
    is_joined: bool,
}

#[derive(Debug)]
struct InFlight<T> {
    position: Position,
    /// What follows it.
    link: Link,
    /// Members that have not completed it.
    missing: MemberSet,
    entries: VecDeque<Acked<T>>,
}

/// The end of the log that grows.
#[derive(Debug)]
pub struct LogWriter<T> {
    ring: Ring,
    key: LogKey,
    generation: u64,
    /// Copies of a batch, where there are as many members.
    copies: Copies,
    tail: Position,
    link: Link,
    waiting: VecDeque<Waiting<T>>,
    waiting_blocks: u64,
    in_flight: VecDeque<InFlight<T>>,
    acked: Link,
    stable: Position,
}

impl<T> LogWriter<T> {
    /// A log of generation `generation` that goes on at `link` and begins at `tail`; below
    /// `stable` it is known to be stable. Heads say so: a generation that ends before it is
    /// decided must not have claimed more than what was found.
    ///
    /// # Panics
    /// When there is nothing to be copied to, or the positions are out of order.
    #[must_use]
    pub fn new(
        ring: Ring,
        key: LogKey,
        generation: u64,
        copies: Copies,
        (tail, stable, link): (Position, Position, Link),
    ) -> Self {
        assert!(tail <= stable && stable <= link.end, "a log from {tail} to {}", link.end);
        Self {
            ring,
            key,
            generation,
            copies,
            tail,
            link,
            waiting: VecDeque::new(),
            waiting_blocks: 0,
            in_flight: VecDeque::new(),
            acked: link,
            stable,
        }
    }

    /// Everything below this position is acknowledged, and [`Self::poll_acked`] has told so or
    /// does when it is polled next.
    #[must_use]
    pub const fn acked(&self) -> Position {
        self.acked.end
    }

    /// The end of what is acknowledged, as what comes after it follows it: where a checkpoint may
    /// have the log begin, once [`Self::poll_acked`] has nothing more.
    #[must_use]
    pub const fn acked_link(&self) -> Link {
        self.acked
    }

    /// Everything below this position is stable.
    #[must_use]
    pub const fn stable(&self) -> Position {
        self.stable
    }

    /// The end of what was formed into batches.
    #[must_use]
    pub const fn link(&self) -> Link {
        self.link
    }

    /// Where the log begins.
    #[must_use]
    pub const fn tail(&self) -> Position {
        self.tail
    }

    /// Blocks from the tail to the end of what was formed into batches.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.link.end.0 - self.tail.0
    }

    /// Blocks that more records may take, each with a block for a head of its own, before the
    /// tail has to go on: so many always fit, with what waits already, and leave
    /// [`Ring::open_blocks`].
    #[must_use]
    pub fn room(&self) -> u64 {
        self.room_for_recovery().saturating_sub(self.ring.open_blocks())
    }

    /// As [`Self::room`], for what a recovery appends before any round can move the tail.
    #[must_use]
    pub fn room_for_recovery(&self) -> u64 {
        // A batch that does not fit before the ring's end leaves less than its length unused,
        // once before the tail has to go on.
        let turn = self.ring.turn(self.link.end.after(1));
        let turns = turn.0 - self.tail.0 < self.ring.blocks();
        let lost = if turns { u64::from(self.ring.batch_blocks_max()) - 1 } else { 0 };
        let taken = self.used() + self.waiting_blocks + lost;
        self.ring.blocks().saturating_sub(taken)
    }

    /// Blocks that a record takes at most.
    #[must_use]
    pub fn blocks_of(record: &Record) -> u32 {
        let head: u32 = narrow(record.encoded_len());
        record.payload_blocks() + head.div_ceil(LOG_BLOCK_LEN) + 1
    }

    /// Adds a record, with the blocks that it carries.
    ///
    /// # Panics
    /// When the payload has another length than the record says, or no batch of this ring has
    /// room for it.
    pub fn push(&mut self, record: Record, payload: SgList, tag: T) {
        let blocks = record.payload_blocks();
        assert_eq!(payload.len(), blocks as usize * LOG_BLOCK_LEN as usize, "bytes of payload");
        let (alone, max) =
            (batch_blocks(blocks, record.encoded_len()), self.ring.batch_blocks_max());
        assert!(alone.is_some_and(|alone| alone <= max), "{alone:?} blocks, at most {max}");
        self.waiting_blocks += u64::from(Self::blocks_of(&record));
        self.waiting.push_back(Waiting { record, payload, tag, is_joined: false });
    }

    /// Adds records, with what each carries, that go into one batch: a crash leaves all of them or none.
    ///
    /// # Panics
    /// As [`Self::push`], and when no batch of this ring has room for all of them.
    pub fn push_at_once(&mut self, records: Vec<(Record, SgList, T)>) {
        let payload = records.iter().map(|(record, ..)| record.payload_blocks()).sum();
        let len = records.iter().map(|(record, ..)| record.encoded_len()).sum();
        let (blocks, max) = (batch_blocks(payload, len), self.ring.batch_blocks_max());
        assert!(blocks.is_some_and(|blocks| blocks <= max), "{blocks:?} blocks, at most {max}");
        let last = records.len().saturating_sub(1);
        for (at, (record, payload, tag)) in records.into_iter().enumerate() {
            self.push(record, payload, tag);
            if let Some(waiting) = self.waiting.back_mut() {
                waiting.is_joined = at < last;
            }
        }
    }

    /// Forms the next batch for `members`, all that are in sync, and for `more`, which get every
    /// batch beside the copies that it has anyhow; none when nothing waits, enough is under way, or
    /// the ring is full.
    pub fn poll_batch(&mut self, members: MemberSet, more: MemberSet) -> Option<BatchWrite> {
        if self.in_flight.len() >= BATCHES_IN_FLIGHT_MAX || members.is_empty() {
            return None;
        }
        let (count, blocks, position) = self.next_place()?;
        let mut batch = Batch {
            generation: self.generation,
            position,
            previous: self.link,
            stable_upto: self.stable,
            acked_upto: self.acked.end,
            records: Vec::with_capacity(count),
        };
        let (mut payload, mut tags) = (SgList::new(), Vec::with_capacity(count));
        for waiting in self.waiting.drain(..count) {
            self.waiting_blocks -= u64::from(Self::blocks_of(&waiting.record));
            payload.append(waiting.payload);
            batch.records.push(waiting.record);
            tags.push(waiting.tag);
        }
        assert_eq!(batch.blocks(), blocks, "blocks of a batch");
        let (head, crc) = batch.encode(&self.key);
        self.link = Link { end: batch.end(), crc };
        let places: Vec<Position> = batch.records_at().map(|(position, _)| position).collect();
        let entries = places.into_iter().zip(batch.records).zip(tags);
        let entries = entries.map(|((position, record), tag)| Acked { position, record, tag });
        let holders = self.copies.among(segment(position), members);
        let members: MemberSet = holders.iter().chain(more.iter()).collect();
        self.in_flight.push_back(InFlight {
            position,
            link: self.link,
            missing: members,
            entries: entries.collect(),
        });
        let (offset, head) = (self.ring.offset(position), Buf::copy_from(&head));
        Some(BatchWrite { position, offset, members, head, payload })
    }

    /// A member has completed the batch at `position`. Whether all of its members have, and its
    /// acknowledgement waits for one before it.
    pub fn handle_written(&mut self, position: Position, member: MemberIndex) -> bool {
        let found = self.in_flight.iter().position(|batch| batch.position == position);
        let Some(at) = found else { return false };
        self.in_flight[at].missing.remove(member);
        if planted(Planted::AckAfterOneCopy) {
            self.in_flight[at].missing = MemberSet::EMPTY;
        }
        let is_whole = |batch: &InFlight<T>| batch.missing.is_empty();
        is_whole(&self.in_flight[at]) && !self.in_flight.range(..at).all(is_whole)
    }

    /// A member takes no part any more: nothing waits for it.
    pub fn handle_member_gone(&mut self, member: MemberIndex) {
        self.in_flight.iter_mut().for_each(|batch| batch.missing.remove(member));
    }

    /// The next record that is acknowledged, in the order of the log.
    pub fn poll_acked(&mut self) -> Option<Acked<T>> {
        if planted(Planted::AckOutOfOrder) {
            let is_data = |batch: &&mut InFlight<T>| {
                let first = batch.entries.front().map(|acked| &acked.record);
                batch.missing.is_empty() && matches!(first, Some(Record::Data { .. }))
            };
            let mut whole = self.in_flight.iter_mut().filter(is_data);
            if let Some(acked) = whole.find_map(|batch| batch.entries.pop_front()) {
                return Some(acked);
            }
        }
        loop {
            let batch = self.in_flight.front_mut().filter(|batch| batch.missing.is_empty())?;
            self.acked = batch.link;
            match batch.entries.pop_front() {
                Some(acked) => return Some(acked),
                None => drop(self.in_flight.pop_front()),
            }
        }
    }

    /// Flushes that were sent when everything below `upto` was acknowledged have completed on
    /// all members.
    ///
    /// # Panics
    /// When that was not acknowledged.
    pub fn handle_stable(&mut self, upto: Position) {
        assert!(upto <= self.acked(), "stable up to {upto}, acknowledged up to {}", self.acked());
        self.stable = self.stable.max(upto);
    }

    /// A checkpoint says, stable on all members, that the log begins at `tail` now.
    ///
    /// # Panics
    /// When what is passed was not stable, or the tail falls.
    pub fn handle_tail(&mut self, tail: Position) {
        let is_stable = tail <= self.stable || planted(Planted::TailWithoutFlush);
        assert!(self.tail <= tail && is_stable, "the tail at {tail}");
        self.tail = tail;
    }

    /// How many of the waiting records the next batch takes, its blocks, and where it goes: as many
    /// as a batch holds, or as the ring has room for.
    fn next_place(&self) -> Option<(usize, u32, Position)> {
        let max = self.ring.batch_blocks_max();
        let left = self.ring.blocks() - (self.link.end.0 - self.tail.0);
        // A ring may have more blocks left than a batch can count.
        [max, narrow(left.min(max.into()))].into_iter().find_map(|max| {
            let (count, blocks) = self.fitting(max);
            let position = self.ring.place(self.link.end, blocks);
            let has_room = position.after(blocks).0 - self.tail.0 <= self.ring.blocks();
            (count > 0 && has_room).then_some((count, blocks, position))
        })
    }

    /// How many of the waiting records fit into a batch of so many blocks, and its blocks. Records that are joined
    /// are taken together.
    fn fitting(&self, max: u32) -> (usize, u32) {
        let (mut payload, mut records) = (0, 0);
        let mut fitting = (0, 0);
        for (count, waiting) in (1..).zip(&self.waiting) {
            payload += waiting.record.payload_blocks();
            records += waiting.record.encoded_len();
            let Some(blocks) = batch_blocks(payload, records).filter(|blocks| *blocks <= max)
            else {
                break;
            };
            if !waiting.is_joined {
                fitting = (count, blocks);
            } else if planted(Planted::AtomicWriteSplit) {
                return (count, blocks);
            }
        }
        fitting
    }
}

/// The mebibyte of the log that a position is in: each has holders of its own.
#[must_use]
pub const fn segment(position: Position) -> u64 {
    position.0 / SEGMENT_BLOCKS
}

/// Blocks of a batch with so many blocks of payload and bytes of records; none when no head holds
/// them.
fn batch_blocks(payload: u32, records: usize) -> Option<u32> {
    let head = u32::try_from(RAW_LEN + records).ok()?.div_ceil(LOG_BLOCK_LEN);
    (head <= HEAD_BLOCKS_MAX).then(|| payload.saturating_add(head))
}

#[cfg(test)]
mod tests;
