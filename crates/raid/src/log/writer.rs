//! Writes the log: forms batches of what waits, and says what is acknowledged.
//!
//! Invariant: a batch is acknowledged when it and all before it are completed on every member
//! that it was sent to and that still takes part; so what is acknowledged is a prefix of the log.
//! A position is not written again before the tail has passed it.
//!
//! Does not send, flush, or judge members: whoever drives it does, and holds acknowledgements
//! back while labels are written.

use alloc::{collections::VecDeque, vec::Vec};

use netraid_block::{Buf, SgList};

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
        let head = u32::try_from(record.encoded_len()).unwrap_or(u32::MAX);
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
        self.waiting.push_back(Waiting { record, payload, tag });
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
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        [max, max.min(left)].into_iter().find_map(|max| {
            let (count, blocks) = self.fitting(max);
            let position = self.ring.place(self.link.end, blocks);
            let has_room = position.after(blocks).0 - self.tail.0 <= self.ring.blocks();
            (count > 0 && has_room).then_some((count, blocks, position))
        })
    }

    /// How many of the waiting records fit into a batch of so many blocks, and its blocks.
    fn fitting(&self, max: u32) -> (usize, u32) {
        let (mut payload, mut records) = (0, 0);
        let sizes = self.waiting.iter().map_while(|waiting| {
            payload += waiting.record.payload_blocks();
            records += waiting.record.encoded_len();
            batch_blocks(payload, records).filter(|blocks| *blocks <= max)
        });
        sizes.fold((0, 0), |(count, _), blocks| (count + 1, blocks))
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
mod tests {
    use super::*;
    use crate::log::{Begin, Beginnings, Walk};
    use netraid_block::BufMut;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::{collections::BTreeMap, vec};

    const KEY: LogKey = LogKey { array_uuid: [5; 16], salt: 77 };
    const MEMBERS: u8 = 4;

    fn all() -> MemberSet {
        (0..MEMBERS).map(MemberIndex).collect()
    }

    fn writer(ring: u64) -> LogWriter<u64> {
        LogWriter::new(
            Ring::new(ring),
            KEY,
            3,
            Copies::neighbours(MEMBERS, 2),
            (Position(0), Position(0), Link::default()),
        )
    }

    fn push(writer: &mut LogWriter<u64>, number: u64) {
        let record = Record::Data { block: number, crc: 0 };
        let block = BufMut::zeroed(LOG_BLOCK_LEN as usize).freeze();
        writer.push(record, block.into(), number);
    }

    #[test]
    fn what_is_acknowledged_is_a_prefix_whatever_completes_first() {
        for seed in 0..100 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut writer = writer(100_000);
            let mut under_way: Vec<(Position, MemberIndex)> = Vec::new();
            let mut media: BTreeMap<(MemberIndex, u64), Buf> = BTreeMap::new();
            let (mut pushed, mut acked) = (0, 0);
            while acked < 500 {
                match rng.random_range(0..3) {
                    0 if pushed < 500 => {
                        push(&mut writer, pushed);
                        pushed += 1;
                    }
                    1 => {
                        let Some(batch) = writer.poll_batch(all(), MemberSet::EMPTY) else {
                            continue;
                        };
                        assert_eq!(batch.members.len(), 2);
                        for member in batch.members.iter() {
                            media.insert((member, batch.offset), batch.head.clone());
                            under_way.push((batch.position, member));
                        }
                    }
                    _ if !under_way.is_empty() => {
                        let at = rng.random_range(0..under_way.len());
                        let (position, member) = under_way.swap_remove(at);
                        writer.handle_written(position, member);
                        let first_missing = under_way.iter().map(|(position, _)| *position).min();
                        while let Some(one) = writer.poll_acked() {
                            assert_eq!(one.tag, acked, "in order");
                            assert!(first_missing.is_none_or(|missing| one.position < missing));
                            acked += 1;
                        }
                    }
                    _ => {}
                }
            }
            // What was written is what a walk finds.
            let mut beginnings = Beginnings::default();
            beginnings.begin(Begin { generation: 3, position: Position(0) });
            let ring = Ring::new(100_000);
            let mut walk = Walk::new(ring, &beginnings, Link::default());
            let mut found = 0;
            let heads: BTreeMap<u64, &Buf> =
                media.iter().map(|((_, offset), head)| (*offset, head)).collect();
            while let Some(head) = heads.get(&ring.offset(walk.link().end)) {
                let (batch, crc) = Batch::decode(head, walk.link().end, &KEY).unwrap();
                assert!(walk.take(&batch, crc));
                found += batch.records.len();
            }
            assert_eq!((found, walk.link()), (500, writer.link()));
        }
    }

    #[test]
    fn a_member_that_is_gone_is_not_waited_for() {
        let mut writer = writer(1000);
        push(&mut writer, 0);
        let batch = writer.poll_batch(all(), MemberSet::EMPTY).unwrap();
        let holders: Vec<MemberIndex> = batch.members.iter().collect();
        writer.handle_written(batch.position, holders[0]);
        assert_eq!(writer.poll_acked(), None);
        writer.handle_member_gone(holders[1]);
        assert_eq!(writer.poll_acked().map(|acked| acked.tag), Some(0));
    }

    #[test]
    fn who_gets_every_batch_is_waited_for_as_those_that_have_copies_are() {
        let mut writer = writer(1000);
        let (copies, joining) = (all(), MemberIndex(MEMBERS));
        let more: MemberSet = [joining, MemberIndex(0)].into_iter().collect();
        for number in 0..3 {
            push(&mut writer, number);
            let batch = writer.poll_batch(copies, more).unwrap();
            assert!(batch.members.contains(joining) && batch.members.contains(MemberIndex(0)));
            let others = batch.members.iter().filter(|member| *member != joining);
            for member in others {
                writer.handle_written(batch.position, member);
            }
            assert_eq!(writer.poll_acked(), None);
            writer.handle_written(batch.position, joining);
            assert_eq!(writer.poll_acked().map(|acked| acked.tag), Some(number));
        }
    }

    #[test]
    fn a_full_ring_is_not_written_before_its_tail_goes_on() {
        let mut writer = writer(400);
        let (mut number, mut batches) = (0, Vec::new());
        while batches.len() < BATCHES_IN_FLIGHT_MAX {
            (0..100).for_each(|_| {
                push(&mut writer, number);
                number += 1;
            });
            let Some(batch) = writer.poll_batch(all(), MemberSet::EMPTY) else { break };
            batches.push(batch);
        }
        assert_eq!(writer.room(), 0);
        assert!(batches.len() == 4 && writer.link().end.0 <= 400);
        for batch in &batches {
            for member in batch.members.iter() {
                writer.handle_written(batch.position, member);
            }
        }
        while writer.poll_acked().is_some() {}
        assert!(writer.poll_batch(all(), MemberSet::EMPTY).is_none(), "acknowledged is not enough");
        writer.handle_stable(writer.acked());
        assert!(writer.poll_batch(all(), MemberSet::EMPTY).is_none(), "stable is not enough");
        writer.handle_tail(batches[1].position);
        let next = writer.poll_batch(all(), MemberSet::EMPTY);
        assert_eq!(next.map(|batch| batch.offset), Some(0), "the ring's next turn");
    }

    fn finish(writer: &mut LogWriter<u64>, batch: &BatchWrite) {
        for member in batch.members.iter() {
            writer.handle_written(batch.position, member);
        }
        while writer.poll_acked().is_some() {}
    }

    fn blocks_of(record: &Record) -> u64 {
        LogWriter::<u64>::blocks_of(record).into()
    }

    /// A record that takes exactly so many blocks.
    fn open_of(blocks: usize) -> Record {
        Record::Open { dropped: vec![(Position(1), 2); (blocks - 1) * 256 - 9] }
    }

    #[test]
    fn what_there_is_room_for_always_fits_and_leaves_what_recoveries_need() {
        let mut turns = 0;
        for seed in 0..300 {
            let mut rng = StdRng::seed_from_u64(seed);
            let ring = Ring::new(rng.random_range(48..300));
            let mut writer = writer(ring.blocks());
            for _ in 0..40 {
                let mut formed = Vec::new();
                for _ in 0..rng.random_range(0..60) {
                    let record = match rng.random_range(0..4) {
                        0 => Record::Zeroes { block: 0, count: 1 },
                        1 => Record::Parity {
                            stripe: 0,
                            row: 0,
                            round: 1,
                            checks: vec![0; 2],
                            basis: Vec::new(),
                        },
                        2 => Record::Remap {
                            stripe: 0,
                            to: Some(1),
                            void_upto: Position(0),
                            written: vec![true; 100],
                            sums: vec![0; rng.random_range(0..2000)],
                        },
                        _ => Record::Data { block: 0, crc: 0 },
                    };
                    let room = writer.room();
                    if room >= blocks_of(&record) {
                        let len = record.payload_blocks() as usize * LOG_BLOCK_LEN as usize;
                        let taken = blocks_of(&record);
                        writer.push(record, BufMut::zeroed(len).freeze().into(), 0);
                        assert_eq!(writer.room(), room - taken);
                    }
                    if rng.random_ratio(1, 8) {
                        let room = writer.room();
                        formed.extend(writer.poll_batch(all(), MemberSet::EMPTY));
                        assert!(writer.room() >= room, "forming a batch takes no more than said");
                    }
                }
                while let Some(batch) = writer.poll_batch(all(), MemberSet::EMPTY) {
                    finish(&mut writer, &batch);
                    formed.push(batch);
                }
                formed.iter().for_each(|batch| finish(&mut writer, batch));
                while let Some(batch) = writer.poll_batch(all(), MemberSet::EMPTY) {
                    finish(&mut writer, &batch);
                }
                assert!(writer.waiting.is_empty(), "seed {seed}: something found no room");
                assert!(writer.used() + ring.open_blocks() <= ring.blocks());
                assert_eq!(writer.acked_link(), writer.link());
                turns += u64::from(ring.turn(writer.tail()) < writer.link().end);
                let dropped = rng.random::<bool>();
                if dropped {
                    // Recoveries may take what is kept back for them, whatever else there is.
                    for _ in 0..ring.open_blocks() / 4 {
                        assert!(writer.room_for_recovery() >= 4);
                        writer.push(open_of(4), SgList::new(), 0);
                        let batch =
                            writer.poll_batch(all(), MemberSet::EMPTY).expect("room for OPEN");
                        finish(&mut writer, &batch);
                    }
                }
                if dropped || rng.random::<bool>() {
                    writer.handle_stable(writer.acked());
                    writer.handle_tail(writer.acked_link().end);
                    assert_eq!(writer.used(), 0);
                }
            }
        }
        assert!(turns > 1000, "the ring turned {turns} times");
    }

    #[test]
    fn the_largest_record_of_a_ring_goes_into_it_and_a_larger_one_is_refused() {
        let mut writer = writer(64);
        writer.push(open_of(17), SgList::new(), 0);
        let batch = writer.poll_batch(all(), MemberSet::EMPTY).unwrap();
        assert_eq!(batch.into_data().len(), 16 * 4096);
        let too_large = std::panic::catch_unwind(move || {
            writer.push(open_of(18), SgList::new(), 0);
        });
        assert!(too_large.is_err());
    }

    #[test]
    fn the_end_of_what_is_acknowledged_is_what_the_next_batch_follows() {
        let mut writer = writer(64);
        let ends: Vec<(BatchWrite, Link)> = (0..3)
            .map(|number| {
                push(&mut writer, number);
                (writer.poll_batch(all(), MemberSet::EMPTY).unwrap(), writer.link())
            })
            .collect();
        let (first, second) = (&ends[0], &ends[1]);
        finish(&mut writer, &second.0);
        assert_eq!(writer.acked_link(), Link::default(), "the first is missing");
        finish(&mut writer, &first.0);
        assert_eq!(writer.acked_link(), second.1);
        let key = KEY;
        let (third, _) = Batch::decode(&ends[2].0.head, ends[2].0.position, &key).unwrap();
        assert_eq!(third.previous, writer.acked_link());
        assert_eq!((writer.used(), writer.tail()), (6, Position(0)));
    }

    #[test]
    fn copies_move_on_so_that_all_members_have_their_share() {
        let mut writer = writer(10_000);
        let mut share = [0; MEMBERS as usize];
        for number in 0..4000 {
            push(&mut writer, number);
            let batch = writer.poll_batch(all(), MemberSet::EMPTY).unwrap();
            for member in batch.members.iter() {
                share[member.as_usize()] += 1;
                writer.handle_written(batch.position, member);
            }
            while writer.poll_acked().is_some() {}
        }
        let (least, most) = (share.iter().min().unwrap(), share.iter().max().unwrap());
        assert!(most - least <= 256, "{share:?}");
    }
}
