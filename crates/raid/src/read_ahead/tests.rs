use alloc::vec::Vec;

use netraid_block::{Buf, ErrorKind};

use super::*;
use crate::geometry::Level;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 64 * MIB;

/// Four data columns of 64 KiB.
fn machine(memory: u64) -> ReadAhead {
    let geometry = Geometry::new(Level::Raid5, 5, 64 << 10, 512, 256, 0).unwrap();
    assert_eq!(geometry.capacity(), CAPACITY);
    ReadAhead::new(&geometry, memory)
}

/// What is at a place, and when it was written there.
fn bytes(range: &Range<u64>, version: u8) -> SgList {
    let bytes: Vec<u8> = (range.start / 512..range.end / 512)
        .flat_map(|block| [block.to_le_bytes()[0].wrapping_add(version); 512])
        .collect();
    Buf::copy_from(&bytes).into()
}

fn read(ahead: &mut ReadAhead, id: u64, start: u64, len: u64) -> Served {
    ahead.handle_read(RequestId(id), start..start + len)
}

/// What is asked for now; nothing else happens.
fn asked(ahead: &mut ReadAhead) -> Vec<(RequestId, Range<u64>)> {
    let actions = core::iter::from_fn(|| ahead.poll_action());
    let asked = actions.map(|action| match action {
        Action::Read { id, range } => (id, range),
        Action::Answer { .. } | Action::ReadAgain { .. } => panic!("no read waits"),
    });
    asked.collect()
}

fn arrive(ahead: &mut ReadAhead, asked: &[(RequestId, Range<u64>)]) {
    for (id, range) in asked {
        ahead.handle_ahead_done(*id, Ok(bytes(range, 0)));
    }
}

/// The array serves three reads in a row of `len` up to `end`; gives what is then asked for.
fn begin(ahead: &mut ReadAhead, end: u64, len: u64) -> Vec<(RequestId, Range<u64>)> {
    for left in (1..=3).rev() {
        assert!(matches!(read(ahead, 0, end - left * len, len), Served::ByArray));
        ahead.handle_done(RequestId(0));
    }
    asked(ahead)
}

/// A read at depth 1, whatever it takes; whether it needed the array.
fn pass(ahead: &mut ReadAhead, start: u64, len: u64) -> bool {
    let range = start..start + len;
    let is_same = |data: &SgList| {
        assert!(*data.to_contiguous() == *bytes(&range, 0).to_contiguous());
    };
    let mut by_array = false;
    match ahead.handle_read(RequestId(0), range.clone()) {
        Served::ByArray => {
            ahead.handle_done(RequestId(0));
            by_array = true;
        }
        Served::Now(data) => is_same(&data),
        Served::Later => {}
    }
    while let Some(action) = ahead.poll_action() {
        match action {
            Action::Read { id, range } => ahead.handle_ahead_done(id, Ok(bytes(&range, 0))),
            Action::Answer { data, .. } => is_same(&data),
            Action::ReadAgain { .. } => panic!("nothing failed"),
        }
    }
    by_array
}

#[test]
fn the_third_read_in_a_row_begins_it_and_the_next_ones_are_answered() {
    let mut ahead = machine(16 * MIB);
    let asked = begin(&mut ahead, 192 * KIB, 64 * KIB);
    assert_eq!((asked.len(), &asked[0].1), (1, &(192 * KIB..320 * KIB)));
    arrive(&mut ahead, &asked);
    let Served::Now(data) = read(&mut ahead, 0, 192 * KIB, 64 * KIB) else { panic!("it is there") };
    assert_eq!(&*data.to_contiguous(), &*bytes(&(192 * KIB..256 * KIB), 0).to_contiguous());
    assert!(matches!(read(&mut ahead, 0, 192 * KIB, 64 * KIB), Served::ByArray), "it was let go");
}

#[test]
fn a_long_stream_needs_the_array_at_its_beginning_only_and_stays_within_its_window() {
    for len in [4 * KIB, 64 * KIB, 100 * KIB, 512 * KIB, MIB] {
        let mut ahead = machine(16 * MIB);
        let mut by_array = 0;
        let mut at = 0;
        while at + len <= CAPACITY {
            by_array += u32::from(pass(&mut ahead, at, len));
            at += len;
            let furthest = ahead.pieces.last().map_or(0, |piece| piece.range.end);
            assert!(furthest <= at + WINDOW_MAX && ahead.held <= 16 * MIB);
        }
        assert_eq!(by_array, 3, "reads of {len}");
        let Stats { answered, read_bytes, unused_bytes } = ahead.stats();
        assert_eq!((answered, unused_bytes), (CAPACITY / len - 3, 0));
        assert!(read_bytes <= CAPACITY - 3 * len, "nothing twice, nothing past the end");
    }
}

#[test]
fn requests_ahead_end_with_whole_stripes_once_the_stream_is_long() {
    let mut ahead = machine(16 * MIB);
    for at in 0..40 {
        pass(&mut ahead, at * 100 * KIB, 100 * KIB);
    }
    let last = ahead.pieces.last().unwrap();
    assert_eq!((last.whole.start % (256 * KIB), last.whole.end % (256 * KIB)), (0, 0));
}

#[test]
fn what_is_late_or_early_is_answered_all_the_same() {
    let mut ahead = machine(16 * MIB);
    let order = (0..100).flat_map(|pair| [2 * pair + 1, 2 * pair]);
    let by_array = order.filter(|at| pass(&mut ahead, at * 64 * KIB, 64 * KIB)).count();
    assert!(by_array < 10, "{by_array} of 200");
    assert!(ahead.pieces.len() < 20, "what the reader has gone past is let go");
}

#[test]
fn a_reader_that_keeps_enough_in_flight_is_left_alone() {
    let mut ahead = machine(16 * MIB);
    let depth = 16;
    for at in 0..60 {
        let id = at % depth;
        ahead.handle_done(RequestId(id));
        assert!(matches!(read(&mut ahead, id, at * MIB, MIB), Served::ByArray));
        assert!(asked(&mut ahead).is_empty(), "at {at}");
    }
}

/// Many reads end at once, so that few are in flight while the next ones come.
#[test]
fn a_reader_whose_reads_end_all_at_once_is_left_alone() {
    let mut ahead = machine(16 * MIB);
    let depth = 32;
    for burst in 0..8 {
        for id in 0..depth {
            ahead.handle_done(RequestId(id));
        }
        for id in 0..depth {
            let _ = read(&mut ahead, id, (burst * depth + id) * 128 * KIB, 128 * KIB);
        }
        let begun = core::iter::from_fn(|| ahead.poll_action());
        let begun: Vec<_> = begun.filter(|action| matches!(action, Action::Read { .. })).collect();
        assert!(burst == 0 || begun.is_empty(), "in burst {burst}");
        for action in begun {
            let Action::Read { id, range } = action else { unreachable!("nothing else is left") };
            ahead.handle_ahead_done(id, Ok(bytes(&range, 0)));
        }
    }
}

#[test]
fn a_change_takes_out_what_it_overlaps_and_leaves_what_is_behind_it() {
    let mut ahead = machine(16 * MIB);
    let asked_first = begin(&mut ahead, 192 * KIB, 64 * KIB);
    arrive(&mut ahead, &asked_first);
    ahead.handle_change(RequestId(1), 200 * KIB..204 * KIB);
    ahead.handle_done(RequestId(1));
    assert!(matches!(read(&mut ahead, 2, 200 * KIB, 8 * KIB), Served::ByArray), "it changed");
    assert!(matches!(read(&mut ahead, 3, 192 * KIB, 8 * KIB), Served::ByArray));
    let Served::Now(data) = read(&mut ahead, 4, 204 * KIB, 4 * KIB) else { panic!("it is there") };
    assert_eq!(&*data.to_contiguous(), &*bytes(&(204 * KIB..208 * KIB), 0).to_contiguous());
}

#[test]
fn a_change_lets_nobody_else_wait_for_what_is_under_way() {
    let mut ahead = machine(16 * MIB);
    let under_way = begin(&mut ahead, 192 * KIB, 64 * KIB);
    assert!(matches!(read(&mut ahead, 1, 192 * KIB, 64 * KIB), Served::Later));
    assert!(matches!(read(&mut ahead, 5, 256 * KIB, 32 * KIB), Served::Later));
    while ahead.poll_action().is_some() {}
    ahead.handle_change(RequestId(2), 288 * KIB..292 * KIB);
    assert!(matches!(read(&mut ahead, 3, 288 * KIB, 16 * KIB), Served::ByArray));
    let (id, range) = &under_way[0];
    ahead.handle_ahead_done(*id, Ok(bytes(range, 0)));
    for (user, wanted) in [(1, 192 * KIB..256 * KIB), (5, 256 * KIB..288 * KIB)] {
        let Some(Action::Answer { id, data }) = ahead.poll_action() else { panic!("it waited") };
        assert_eq!(id, RequestId(user));
        assert_eq!(&*data.to_contiguous(), &*bytes(&wanted, 0).to_contiguous());
    }
    ahead.handle_done(RequestId(2));
    ahead.handle_done(RequestId(3));
    let again = read(&mut ahead, 4, 288 * KIB, 4 * KIB);
    assert!(matches!(again, Served::ByArray), "it is from before the change");
}

/// A reader in the middle of a block went on to where another one's had begun in the middle of another:
/// the change between the two was seen in half of that block.
#[test]
fn a_block_that_two_readers_part_is_seen_as_a_whole() {
    let mut ahead = machine(16 * MIB);
    let (len, middle) = (6 * KIB, 101 * KIB);
    let behind = begin(&mut ahead, middle, len);
    let before = begin(&mut ahead, middle - 41 * KIB, len);
    assert!(!behind.is_empty() && !before.is_empty());
    arrive(&mut ahead, &before);
    let change = 100 * KIB..104 * KIB;
    let Served::Now(data) = read(&mut ahead, 0, 98 * KIB, 2 * KIB) else { panic!("it is there") };
    assert_eq!(&*data.to_contiguous(), &*bytes(&(98 * KIB..100 * KIB), 0).to_contiguous());
    let reader = read(&mut ahead, 1, 100 * KIB, len);
    ahead.handle_change(RequestId(2), change.clone());
    for (id, range) in behind {
        ahead.handle_ahead_done(id, Ok(bytes(&range, 1)));
    }
    ahead.handle_done(RequestId(2));
    let answered = match reader {
        Served::Now(data) => Some(data),
        Served::Later => core::iter::from_fn(|| ahead.poll_action()).find_map(|one| match one {
            Action::Answer { id: RequestId(1), data } => Some(data),
            Action::Answer { .. } | Action::Read { .. } | Action::ReadAgain { .. } => None,
        }),
        Served::ByArray => None,
    };
    let answered = answered.expect("both readers' requests have its bytes").to_contiguous();
    let in_block = &answered[..4 << 10];
    let versions = [0, 1].map(|version| bytes(&change, version).to_contiguous());
    assert!(versions.iter().any(|version| **version == *in_block), "half a block of each");
}

#[test]
fn what_is_read_ahead_begins_and_ends_with_blocks_whatever_is_asked_for_and_changed() {
    let mut ahead = machine(16 * MIB);
    let mut place = 512;
    for step in 0..2000 {
        let len = 512 * (1 + step % 13);
        pass(&mut ahead, place, len);
        if step % 7 == 0 {
            ahead.handle_change(RequestId(9), place + 700 * 512..place + 709 * 512);
            ahead.handle_done(RequestId(9));
        }
        for Piece { range, whole, .. } in &ahead.pieces {
            assert!([range.start, range.end, whole.start].iter().all(|at| at % BLOCK == 0));
        }
        place += len;
    }
    assert!(ahead.stats().answered > 1500, "{:?}", ahead.stats());
}

#[test]
fn nothing_is_read_ahead_where_a_change_is_in_flight() {
    let mut ahead = machine(16 * MIB);
    ahead.handle_change(RequestId(7), 300 * KIB..304 * KIB);
    assert!(begin(&mut ahead, 192 * KIB, 64 * KIB).is_empty());
    ahead.handle_done(RequestId(7));
    assert!(pass(&mut ahead, 192 * KIB, 64 * KIB));
    assert!(!pass(&mut ahead, 256 * KIB, 64 * KIB), "the change is over");
}

#[test]
fn who_rewrites_what_he_reads_reads_nothing_twice() {
    let mut ahead = machine(16 * MIB);
    for at in 0..500 {
        let by_array = pass(&mut ahead, at * 64 * KIB, 64 * KIB);
        assert!(!by_array || at < 3);
        ahead.handle_change(RequestId(1), at * 64 * KIB..(at + 1) * 64 * KIB);
        ahead.handle_done(RequestId(1));
    }
    assert!(ahead.stats().read_bytes <= 500 * 64 * KIB + WINDOW_MAX);
}

#[test]
fn an_error_is_nobodys_and_ends_the_stream() {
    let mut ahead = machine(16 * MIB);
    let under_way = begin(&mut ahead, 192 * KIB, 64 * KIB);
    assert!(matches!(read(&mut ahead, 1, 192 * KIB, 64 * KIB), Served::Later));
    assert_eq!(under_way.len(), 1);
    while ahead.poll_action().is_some() {}
    ahead.handle_ahead_done(under_way[0].0, Err(ErrorKind::Device.into()));
    let Some(Action::ReadAgain { id, range }) = ahead.poll_action() else { panic!("it waited") };
    assert_eq!((id, range), (RequestId(1), 192 * KIB..256 * KIB));
    ahead.handle_done(RequestId(1));
    assert!(matches!(read(&mut ahead, 1, 256 * KIB, 64 * KIB), Served::ByArray));
    assert!(asked(&mut ahead).is_empty(), "not before it is proven again");
}

#[test]
fn what_was_stopped_gives_nothing_and_asks_for_nothing() {
    let mut ahead = machine(16 * MIB);
    let under_way = begin(&mut ahead, 192 * KIB, 64 * KIB);
    assert!(matches!(read(&mut ahead, 1, 192 * KIB, 64 * KIB), Served::Later));
    let later = asked(&mut ahead);
    ahead.stop();
    assert_eq!(ahead.under_way(), 1 + later.len());
    arrive(&mut ahead, &under_way);
    assert!(matches!(ahead.poll_action(), Some(Action::Answer { id: RequestId(1), .. })));
    arrive(&mut ahead, &later);
    for at in 4..10 {
        assert!(matches!(read(&mut ahead, at, at * 64 * KIB, 64 * KIB), Served::ByArray));
    }
    assert!(ahead.poll_action().is_none() && ahead.is_empty());
    assert_eq!((ahead.under_way(), ahead.held), (0, 0));
}

#[test]
fn streams_share_the_memory_and_idle_ones_give_theirs() {
    let memory = 4 * MIB;
    let mut ahead = machine(memory);
    let mut by_array = 0;
    for step in 0..200 {
        for stream in 0..6 {
            let start = stream * 10 * MIB + step * 32 * KIB;
            by_array += u32::from(pass(&mut ahead, start, 32 * KIB));
            assert!(ahead.held <= memory);
        }
    }
    assert_eq!(by_array, 6 * 3);
    assert_eq!(ahead.stats().unused_bytes, 0, "none takes another's");
    for step in 0..600 {
        pass(&mut ahead, 32 * MIB + step * 32 * KIB, 32 * KIB);
    }
    let window = ahead.pieces.last().unwrap().range.end - (32 * MIB + 600 * 32 * KIB);
    assert!(window > MIB, "one alone has half of the memory: {window}");
    assert!(ahead.stats().unused_bytes > 0);
}

#[test]
fn what_was_read_ahead_is_dropped_after_two_looks_whoever_reads_there() {
    let mut ahead = machine(16 * MIB);
    let under_way = begin(&mut ahead, 192 * KIB, 64 * KIB);
    arrive(&mut ahead, &under_way);
    ahead.drop_old();
    assert!(!ahead.is_empty(), "it was begun since the last look");
    assert!(matches!(read(&mut ahead, 0, 192 * KIB, 4 * KIB), Served::Now(_)));
    ahead.drop_old();
    assert!(matches!(read(&mut ahead, 0, 196 * KIB, 4 * KIB), Served::ByArray));
}

#[test]
fn what_is_old_before_it_arrives_is_for_those_alone_who_wait() {
    let mut ahead = machine(16 * MIB);
    let under_way = begin(&mut ahead, 192 * KIB, 64 * KIB);
    assert!(matches!(read(&mut ahead, 0, 192 * KIB, 64 * KIB), Served::Later));
    (0..2).for_each(|_| ahead.drop_old());
    assert!(matches!(read(&mut ahead, 1, 256 * KIB, 64 * KIB), Served::ByArray));
    ahead.handle_done(RequestId(1));
    for (id, range) in under_way {
        ahead.handle_ahead_done(id, Ok(bytes(&range, 0)));
    }
    let answers = core::iter::from_fn(|| ahead.poll_action());
    assert!(
        answers.into_iter().any(|action| matches!(action, Action::Answer { id, .. } if id.0 == 0))
    );
}

/// After each pause nothing is left: the next burst is read ahead of all the same, and what is lost gets less.
#[test]
fn who_reads_in_bursts_is_read_ahead_of_in_each() {
    let mut ahead = machine(16 * MIB);
    let mut at = 0;
    for burst in 0..20 {
        let before = ahead.stats();
        let by_array =
            (0..40).filter(|read| pass(&mut ahead, at + read * 64 * KIB, 64 * KIB)).count();
        at += 40 * 64 * KIB;
        assert!(by_array <= 8, "burst {burst}: {by_array} of 40 reads needed the array");
        (0..3).for_each(|_| ahead.drop_old());
        assert!(ahead.is_empty() && ahead.held == 0);
        let unused = ahead.stats().unused_bytes - before.unused_bytes;
        assert!(burst < 6 || unused <= 2 * MIB, "burst {burst}: {unused} bytes for nothing");
    }
}

#[test]
fn random_reads_and_no_memory_ask_for_nothing() {
    let mut ahead = machine(16 * MIB);
    let mut place: u64 = 1;
    for _ in 0..10_000 {
        place =
            place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (place >> 33) % (CAPACITY / (4 * KIB)) * 4 * KIB;
        let _ = read(&mut ahead, 0, at, 4 * KIB);
        ahead.handle_done(RequestId(0));
    }
    assert!(ahead.stats().read_bytes < 10 * MIB, "a few seem to follow one another");
    assert!(begin(&mut machine(0), 192 * KIB, 64 * KIB).is_empty());
}

/// The most that is under way while one reads through all, with so many bytes coming between two looks.
fn most_under_way(by_look: u64) -> u64 {
    let mut ahead = machine(16 * MIB);
    let (mut asked, mut most) = (Vec::new(), 0);
    let (mut next, mut is_answered) = (0, true);
    for _ in 0..CAPACITY / by_look * 4 {
        let mut left = by_look;
        loop {
            if is_answered && next < CAPACITY {
                match read(&mut ahead, 0, next, 128 * KIB) {
                    Served::ByArray => ahead.handle_done(RequestId(0)),
                    Served::Now(_) => {}
                    Served::Later => is_answered = false,
                }
                next += 128 * KIB;
            }
            while let Some(action) = ahead.poll_action() {
                match action {
                    Action::Read { id, range } => asked.push((id, range)),
                    Action::Answer { .. } => is_answered = true,
                    Action::ReadAgain { .. } => panic!("nothing failed"),
                }
            }
            let len = |(_, range): &(RequestId, Range<u64>)| range.end - range.start;
            most = most.max(asked.iter().map(len).sum());
            match asked.first().map(len) {
                Some(len) if len <= left => left -= len,
                Some(_) => break,
                None if next < CAPACITY => continue,
                None => break,
            }
            arrive(&mut ahead, &[asked.remove(0)]);
        }
        ahead.drop_old();
    }
    most
}

#[test]
fn reads_wait_for_no_more_than_what_comes_in_two_looks() {
    assert!(most_under_way(512 * KIB) <= UNDER_WAY_MIN);
    assert!(most_under_way(MIB) <= 2 * MIB);
    let most = most_under_way(16 * MIB);
    assert!(most > 2 * MIB, "{most} where much more comes");
}
