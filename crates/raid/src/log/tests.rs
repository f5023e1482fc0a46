use std::{collections::BTreeMap, vec, vec::Vec};

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;

const KEY: LogKey = LogKey { array_uuid: [5; 16], salt: 0x1234_5678_9abc_def0 };

fn any_record(rng: &mut StdRng) -> Record {
    let mut numbers = |max: usize| -> Vec<u32> {
        let len = rng.random_range(0..=max);
        (0..len).map(|_| rng.random()).collect()
    };
    match numbers(4).len() {
        0 => Record::Data { block: rng.random_range(0..1 << 40), crc: rng.random() },
        1 => Record::Zeroes { block: rng.random_range(0..1 << 40), count: rng.random() },
        2 => {
            let checks = numbers(2);
            let basis = numbers(6);
            let basis = basis.into_iter().enumerate().map(|(column, crc)| Basis {
                column: u8::try_from(column).unwrap(),
                crc,
                position: rng.random::<bool>().then(|| Position(rng.random_range(0..1 << 50))),
                zeroes: rng.random(),
            });
            let basis = basis.collect();
            let (stripe, row, round) = (rng.random_range(0..1 << 32), rng.random(), rng.random());
            Record::Parity { stripe, row, round, checks, basis }
        }
        3 => Record::Remap {
            sums: numbers(300),
            stripe: rng.random_range(0..1 << 32),
            to: rng.random::<bool>().then(|| rng.random_range(0..1 << 32)),
            void_upto: Position(rng.random_range(0..1 << 50)),
            written: (0..rng.random_range(0..200)).map(|_| rng.random()).collect(),
        },
        _ => {
            let dropped = numbers(40).into_iter();
            let dropped = dropped.map(|at| (Position(at.into()), u64::from(at) / 3)).collect();
            Record::Open { dropped }
        }
    }
}

fn any_batch(rng: &mut StdRng, position: Position, previous: Link, generation: u64) -> Batch {
    let records = (0..rng.random_range(0..12)).map(|_| any_record(rng)).collect();
    let (stable_upto, acked_upto) = (Position(0), previous.end);
    Batch { generation, position, previous, stable_upto, acked_upto, records }
}

#[test]
fn what_was_encoded_is_decoded_at_its_place_and_nowhere_else() {
    let mut rng = StdRng::seed_from_u64(1);
    for _ in 0..500 {
        let at = Position(rng.random_range(10..1 << 50));
        let previous = Link { end: Position(at.0 - rng.random_range(0..10)), crc: rng.random() };
        let batch = any_batch(&mut rng, at, previous, 7);
        let (head, crc) = batch.encode(&KEY);
        assert_eq!(Batch::decode(&head, at, &KEY), Ok((batch.clone(), crc)));
        assert_eq!(head.len() / 4096, head_blocks(&head[..4096], at, &KEY).unwrap() as usize);
        let payload: u32 = batch.records.iter().map(Record::payload_blocks).sum();
        assert_eq!(batch.blocks() as usize, head.len() / 4096 + payload as usize);
        let elsewhere = Position(at.0 + 1);
        assert_eq!(Batch::decode(&head, elsewhere, &KEY), Err(BatchError::Absent));
        let other_array = LogKey { array_uuid: [6; 16], ..KEY };
        assert_eq!(Batch::decode(&head, at, &other_array), Err(BatchError::Absent));
        let other_salt = LogKey { salt: 1, ..KEY };
        assert_eq!(Batch::decode(&head, at, &other_salt), Err(BatchError::Absent));
    }
}

#[test]
fn a_head_with_any_bit_flipped_or_any_byte_missing_is_none() {
    let mut rng = StdRng::seed_from_u64(2);
    for _ in 0..40 {
        let batch = any_batch(&mut rng, Position(64), Link::default(), 7);
        let batch = Batch { acked_upto: Position(0), ..batch };
        let (head, _) = batch.encode(&KEY);
        for _ in 0..200 {
            let mut bad = head.clone();
            let at = rng.random_range(0..bad.len());
            bad[at] ^= 1 << rng.random_range(0..8);
            assert_eq!(Batch::decode(&bad, Position(64), &KEY), Err(BatchError::Absent));
        }
        for len in [0, 1, 127, 128, head.len() - 1] {
            assert!(Batch::decode(&head[..len], Position(64), &KEY).is_err());
        }
    }
}

/// Bytes with a right checksum are what a bug, or an attacker who knows the salt, would write.
#[test]
fn a_head_of_nonsense_with_a_right_checksum_is_refused_without_harm() {
    let mut rng = StdRng::seed_from_u64(3);
    for _ in 0..3000 {
        let batch = any_batch(&mut rng, Position(64), Link::default(), 7);
        let (mut head, _) = batch.encode(&KEY);
        for _ in 0..rng.random_range(1..4) {
            let at = rng.random_range(48..head.len().min(600));
            head[at] = rng.random();
        }
        head[12..16].fill(0);
        let crc = crate::label::crc32c(KEY.salt, &[&head]);
        head[12..16].copy_from_slice(&crc.to_le_bytes());
        if let Ok((batch, _)) = Batch::decode(&head, Position(64), &KEY) {
            assert!(batch.blocks() <= BATCH_BLOCKS_MAX + HEAD_BLOCKS_MAX);
            assert_eq!(batch.encode(&KEY).0.len(), head.len());
        }
    }
}

#[test]
fn records_stand_where_their_payload_is() {
    let data = |block| Record::Data { block, crc: 0 };
    let remap = Record::Remap {
        stripe: 0,
        to: None,
        void_upto: Position(3),
        written: vec![],
        sums: vec![],
    };
    let batch = Batch {
        generation: 1,
        position: Position(100),
        previous: Link::default(),
        stable_upto: Position(0),
        acked_upto: Position(0),
        records: vec![data(5), remap, data(6)],
    };
    let places: Vec<u64> = batch.records_at().map(|(position, _)| position.0).collect();
    assert_eq!(places, [101, 101, 102]);
    assert_eq!(batch.end(), Position(103));
}

#[test]
fn a_generation_owns_the_log_from_its_beginning_to_the_next() {
    let mut beginnings = Beginnings::default();
    assert_eq!(beginnings.owner(Position(0)), None);
    for (generation, position) in [(1, 0), (4, 10), (5, 10), (9, 30)] {
        beginnings.begin(Begin { generation, position: Position(position) });
    }
    let owners = [0, 9, 10, 29, 30, 99].map(|at| beginnings.owner(Position(at)).unwrap());
    assert_eq!(owners, [1, 1, 5, 5, 9, 9]);
    beginnings.forget_before(Position(29));
    assert_eq!(beginnings.as_slice().len(), 2);
    assert_eq!(beginnings.owner(Position(29)), Some(5));
    let backwards = vec![beginnings.as_slice()[1], beginnings.as_slice()[0]];
    assert!(Beginnings::new(backwards).is_err());
}

/// A log of several generations in a small ring, with what dead ones left behind: the walk finds
/// exactly the batches that were adopted when each generation began.
#[test]
fn a_walk_finds_the_chain_and_nothing_that_an_older_generation_left() {
    let mut turns = 0;
    for seed in 0..300 {
        let mut rng = StdRng::seed_from_u64(seed);
        let ring = Ring::new(40);
        let mut media: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut beginnings = Beginnings::default();
        let (mut tail, mut link) = (Link::default(), Link::default());
        let mut chain = Vec::new();
        for generation in 1..rng.random_range(2..7) {
            beginnings.begin(Begin { generation, position: link.end });
            let adopted = rng.random_range(0..6);
            let left_behind = rng.random_range(0..3);
            let mut last = link;
            for number in 0..adopted + left_behind {
                let sketch = any_batch(&mut rng, Position(0), last, generation);
                let position = ring.place(last.end, sketch.blocks());
                turns += u32::from(position != last.end);
                let batch = Batch { position, ..sketch };
                if batch.end().0 - tail.end.0 > ring.blocks() {
                    break;
                }
                let (head, crc) = batch.encode(&KEY);
                media.insert(ring.offset(position), head);
                last = Link { end: batch.end(), crc };
                if number < adopted {
                    link = last;
                    chain.push(batch);
                }
            }
            if rng.random::<bool>() {
                tail = link;
                chain.clear();
                beginnings.forget_before(tail.end);
            }
        }
        // The next generation writes nothing, but the label says that it began.
        beginnings.begin(Begin { generation: 99, position: link.end });
        let mut walk = Walk::new(ring, &beginnings, tail);
        let mut found = Vec::new();
        while let Some(batch) = step(&mut walk, ring, &media) {
            found.push(batch);
        }
        assert_eq!(found, chain, "seed {seed}");
        assert_eq!(walk.link(), link);
    }
    assert!(turns > 20, "the ring turned {turns} times");
}

fn step(walk: &mut Walk<'_>, ring: Ring, media: &BTreeMap<u64, Vec<u8>>) -> Option<Batch> {
    walk.places().find_map(|place| {
        let head = media.get(&ring.offset(place))?;
        let (batch, crc) = Batch::decode(head, place, &KEY).ok()?;
        walk.take(&batch, crc).then_some(batch)
    })
}

#[test]
fn generations_that_begin_at_one_place_leave_room_for_others() {
    let mut beginnings = Beginnings::default();
    let at = |generation, position| Begin { generation, position: Position(position) };
    for generation in 1..=1000 {
        assert!(beginnings.has_room_at(Position(7)));
        beginnings.begin(at(generation, 7));
    }
    assert_eq!(beginnings.as_slice(), [at(1000, 7)]);
    let most = Beginnings::MAX as u64;
    (1..most).for_each(|more| beginnings.begin(at(1000 + more, 7 + more)));
    assert!(!beginnings.has_room_at(Position(7 + most)));
    assert!(beginnings.has_room_at(Position(6 + most)));
    beginnings.begin(at(5000, 6 + most));
    assert_eq!(beginnings.owner(Position(6 + most)), Some(5000));
    assert_eq!(beginnings.owner(Position(7)), Some(1000));
}
