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
fn a_ring_with_more_blocks_than_a_batch_can_count_is_written() {
    let mut writer = writer(1 << 32);
    push(&mut writer, 1);
    let batch = writer.poll_batch(all(), MemberSet::EMPTY).unwrap();
    assert_eq!((batch.position, writer.used()), (Position(0), 2));
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
                    let batch = writer.poll_batch(all(), MemberSet::EMPTY).expect("room for OPEN");
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

/// Groups of records, beside single ones, in a ring that is nearly full: a batch has all of a group, and with the room that
/// was asked for, each gets its place.
#[test]
fn records_that_are_pushed_at_once_are_in_one_batch() {
    for seed in 0..300 {
        let mut rng = StdRng::seed_from_u64(seed);
        let ring = rng.random_range(64..400);
        let mut writer = writer(ring);
        let largest = u64::from(Ring::new(ring).batch_blocks_max()) - 1;
        let (mut number, mut groups) = (0, BTreeMap::new());
        let mut found: BTreeMap<u64, Position> = BTreeMap::new();
        for _ in 0..200 {
            let count = if rng.random() { 1 } else { rng.random_range(1..=largest.min(20)) };
            if writer.room() >= 2 * count {
                let block = || BufMut::zeroed(LOG_BLOCK_LEN as usize).freeze().into();
                let record = |block| Record::Data { block, crc: 0 };
                let records: Vec<_> =
                    (number..number + count).map(|at| (record(at), block(), at)).collect();
                writer.push_at_once(records);
                groups.insert(number, count);
                number += count;
            }
            if rng.random_ratio(1, 3) {
                continue;
            }
            let Some(batch) = writer.poll_batch(all(), MemberSet::EMPTY) else { continue };
            batch.members.iter().for_each(|member| {
                writer.handle_written(batch.position, member);
            });
            while let Some(acked) = writer.poll_acked() {
                found.insert(acked.tag, batch.position);
            }
            writer.handle_stable(writer.acked());
            writer.handle_tail(writer.acked());
        }
        assert!(found.len() > 100, "seed {seed}: {}", found.len());
        for (first, count) in groups {
            let places: Vec<_> = (first..first + count).map(|at| found.get(&at)).collect();
            assert!(places.iter().all(|place| *place == places[0]), "seed {seed}: {places:?}");
        }
    }
}
