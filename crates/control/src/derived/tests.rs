use super::*;
use proptest::prelude::*;
use std::{format, vec, vec::Vec};

const NOW: Moment = Moment(1000);
const SEGMENT: SegmentNow = SegmentNow { generation: Generation(5), end: 0 };
const OPS: [Op; 6] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes, Op::Extents];

fn range(offset: u64, len: u64) -> ByteRange {
    ByteRange { offset, len }
}

fn terms(ranges: &[ByteRange], rights: Rights) -> Terms {
    Terms {
        ranges: Ranges::new(ranges).unwrap(),
        rights,
        append_only: false,
        generation: Generation(5),
        expires: Moment(2000),
    }
}

#[test]
fn ranges_are_few_ascending_whole_sectors_and_not_empty() {
    let new = |ranges: &[(u64, u64)]| {
        let ranges: Vec<_> = ranges.iter().map(|(offset, len)| range(*offset, *len)).collect();
        Ranges::new(&ranges).map(|ranges| ranges.as_slice().len())
    };
    assert_eq!(new(&[]), Ok(0));
    assert_eq!(new(&[(0, 512), (512, 512), (4096, 512), (8192, 512)]), Ok(4));
    assert_eq!(new(&[(0, 512); 5]), Err(RangesError::TooMany(5)));
    assert_eq!(new(&[(0, 512), (1024, 0)]), Err(RangesError::Empty { offset: 1024 }));
    assert_eq!(new(&[(1, 512)]), Err(RangesError::Unaligned { offset: 1, len: 512 }));
    assert_eq!(new(&[(0, 513)]), Err(RangesError::Unaligned { offset: 0, len: 513 }));
    assert_eq!(new(&[(0, 1024), (512, 1024)]), Err(RangesError::Order { offset: 512, end: 1024 }));
    assert_eq!(new(&[(1024, 512), (0, 512)]), Err(RangesError::Order { offset: 0, end: 1536 }));
    assert_eq!(new(&[(0, 512), (0, 512)]), Err(RangesError::Order { offset: 0, end: 512 }));
    let far = SECTORS_MAX * SECTOR_LEN;
    assert_eq!(new(&[(0, far)]), Ok(1));
    assert_eq!(new(&[(512, far)]), Err(RangesError::Far { offset: 512, len: far }));
    let last = u64::MAX - 511;
    assert_eq!(new(&[(last, last)]), Err(RangesError::Far { offset: last, len: last }));
}

#[test]
fn a_rule_fits_its_segment() {
    let rule = |ranges: &[ByteRange], capacity, block_len| {
        Rule::new(terms(ranges, Rights::ALL), capacity, block_len).map(|rule| rule.capacity())
    };
    assert_eq!(rule(&[], 8192, 4096), Ok(8192));
    assert_eq!(rule(&[range(0, 4096), range(8192, 4096)], 12288, 4096), Ok(8192));
    let beyond = RuleError::Beyond { end: 12288, capacity: 12287 };
    assert_eq!(rule(&[range(0, 4096), range(8192, 4096)], 12287, 512), Err(beyond));
    let blocks = RuleError::Blocks { range: range(512, 4096), block_len: 4096 };
    assert_eq!(rule(&[range(512, 4096)], 8192, 4096), Err(blocks));
    let blocks = RuleError::Blocks { range: range(0, 512), block_len: 4096 };
    assert_eq!(rule(&[range(0, 512)], 8192, 4096), Err(blocks));
    assert!(matches!(rule(&[], 0, 512), Err(RuleError::Segment { .. })));
}

#[test]
fn each_operation_takes_its_right_and_no_other() {
    let all = [Rights::READ, Rights::WRITE, Rights::DISCARD, Rights::FLUSH, Rights::RESERVE];
    for right in all {
        let rule = Rule::new(terms(&[], right), 4096, 512).unwrap();
        for op in OPS {
            let asked = if op == Op::Flush { range(0, 0) } else { range(0, 512) };
            let allowed = matches!(rule.judge(op, asked, SEGMENT, NOW), Verdict::Allow(_));
            let wanted = match right {
                Rights::READ => matches!(op, Op::Read | Op::Extents),
                Rights::WRITE => op == Op::Write,
                Rights::DISCARD => matches!(op, Op::Discard | Op::WriteZeroes),
                Rights::FLUSH => op == Op::Flush,
                _ => false,
            };
            assert_eq!(allowed, wanted, "{op:?} by {right:?}");
        }
        let reserves = rule.may_reserve(Generation(5), NOW).is_ok();
        assert_eq!(reserves, right == Rights::RESERVE);
        let changes = right == Rights::WRITE || right == Rights::DISCARD;
        assert_eq!(rule.is_read_only(), !changes, "{right:?}");
    }
    assert_eq!(Rights::from_bits(0b10_0000), None);
    assert_eq!(Rights::from_bits(0b1_1111), Some(Rights::ALL));
    assert_eq!(format!("{:?}", Rights::READ.and(Rights::FLUSH)), r#"{"read", "flush"}"#);
}

#[test]
fn time_and_generation_end_a_rule_between_two_requests() {
    let rule = Rule::new(terms(&[], Rights::ALL), 4096, 512).unwrap();
    let judge = |generation, now| {
        let segment = SegmentNow { generation: Generation(generation), end: 0 };
        let requests = OPS.map(|op| rule.judge(op, range(0, 0), segment, Moment(now)));
        let reserve = rule.may_reserve(Generation(generation), Moment(now));
        let first = match requests[0] {
            Verdict::Allow(_) => Ok(()),
            Verdict::Deny(denial) => Err(denial),
        };
        assert!(requests.iter().all(|verdict| *verdict == requests[0]) && first == reserve);
        first
    };
    assert_eq!(judge(5, 1999), Ok(()));
    assert_eq!(judge(5, 2000), Err(Denial::Lapsed(Lapsed::Expired { at: Moment(2000) })));
    for current in [4, 6] {
        let current = Generation(current);
        let fenced = Lapsed::Fenced { granted: Generation(5), current };
        assert_eq!(judge(current.0, 1000), Err(Denial::Lapsed(fenced)));
    }
}

#[test]
fn nothing_is_past_the_end() {
    let rule = Rule::new(terms(&[range(4096, 1024)], Rights::ALL), 1 << 20, 512).unwrap();
    for beyond in [range(512, 1024), range(1024, 512), range(u64::MAX, 512), range(512, u64::MAX)] {
        for op in OPS.into_iter().filter(|op| *op != Op::Flush) {
            let denied = Denial::Beyond { range: beyond, capacity: 1024 };
            assert_eq!(rule.judge(op, beyond, SEGMENT, NOW), Verdict::Deny(denied), "{op:?}");
        }
    }
}

#[test]
fn appending_goes_on_at_the_end_of_the_segment() {
    let appends = |ranges: &[ByteRange]| {
        let terms = Terms { append_only: true, ..terms(ranges, Rights::ALL) };
        Rule::new(terms, 8192, 512).unwrap()
    };
    let end_after = |rule: &Rule, op, offset, len, end| match rule.judge(
        op,
        range(offset, len),
        SegmentNow { end, ..SEGMENT },
        NOW,
    ) {
        Verdict::Allow(pieces) => Ok(pieces.end()),
        Verdict::Deny(denial) => Err(denial),
    };
    let whole = appends(&[]);
    assert_eq!(end_after(&whole, Op::Write, 0, 1024, 0), Ok(1024));
    assert_eq!(end_after(&whole, Op::Write, 1024, 512, 1024), Ok(1536));
    for offset in [0, 512, 1536] {
        let not_at_end = Denial::NotAtEnd { offset, end: 1024 };
        assert_eq!(end_after(&whole, Op::Write, offset, 512, 1024), Err(not_at_end));
    }
    for op in [Op::Discard, Op::WriteZeroes] {
        assert_eq!(end_after(&whole, op, 1024, 512, 1024), Err(Denial::AppendOnly));
    }
    assert!(end_after(&whole, Op::Read, 0, 8192, 1024).is_ok());
    // The end is the segment's: 1024 shown bytes are before it, and then come those at 4096.
    let parts = appends(&[range(0, 1024), range(4096, 1024)]);
    for end in [1024, 2048, 4096] {
        assert_eq!(end_after(&parts, Op::Write, 1024, 512, end), Ok(4608));
    }
    assert_eq!(end_after(&parts, Op::Write, 512, 1024, 512), Ok(4608));
    let full = Denial::NotAtEnd { offset: 1024, end: 2048 };
    assert_eq!(end_after(&parts, Op::Write, 1024, 512, 8192), Err(full));
    let discards = Terms { append_only: true, ..terms(&[], Rights::DISCARD) };
    assert!(Rule::new(discards, 8192, 512).unwrap().is_read_only());
}

const SECTORS: u64 = 40;

prop_compose! {
    /// Up to four ranges of a small segment, by gaps and lengths in sectors.
    fn some_ranges()(parts in prop::collection::vec((0_u64..4, 1_u64..6), 0..=RANGES_MAX)) -> Vec<ByteRange> {
        let mut end = 0;
        let place = |(gap, len): (u64, u64)| {
            let offset = end + gap;
            end = offset + len;
            range(offset * SECTOR_LEN, len * SECTOR_LEN)
        };
        parts.into_iter().map(place).collect()
    }
}

/// Sectors of the segment in the order in which they are shown.
fn shown(ranges: &[ByteRange]) -> Vec<u64> {
    if ranges.is_empty() {
        return (0..SECTORS).collect();
    }
    let sectors = |range: &ByteRange| range.offset / SECTOR_LEN..range.end() / SECTOR_LEN;
    ranges.iter().flat_map(sectors).collect()
}

fn sectors(pieces: &Pieces) -> Vec<u64> {
    let sectors = |piece: &ByteRange| piece.offset / SECTOR_LEN..piece.end() / SECTOR_LEN;
    pieces.as_slice().iter().flat_map(sectors).collect()
}

proptest! {
    #[test]
    fn offsets_are_those_of_a_table_of_sectors(
        ranges in some_ranges(),
        offset in 0..SECTORS + 2,
        len in 0..SECTORS + 2,
    ) {
        let rule = Rule::new(terms(&ranges, Rights::ALL), SECTORS * SECTOR_LEN, 512).unwrap();
        let table = shown(&ranges);
        prop_assert_eq!(rule.capacity(), table.len() as u64 * SECTOR_LEN);
        let wanted = table.get(usize::try_from(offset).unwrap()..usize::try_from(offset + len).unwrap());
        let found = rule.judge(Op::Read, range(offset * SECTOR_LEN, len * SECTOR_LEN), SEGMENT, NOW);
        match (wanted, found) {
            (Some(wanted), Verdict::Allow(pieces)) => {
                prop_assert_eq!(sectors(&pieces), wanted);
                prop_assert!(pieces.as_slice().iter().all(|piece| piece.len > 0));
            }
            (None, Verdict::Deny(denial)) => {
                let beyond = matches!(denial, Denial::Beyond { .. });
                prop_assert!(beyond);
            }
            (wanted, found) => prop_assert!(false, "{wanted:?}, {found:?}"),
        }
    }

    /// Several rules of one segment: what one has appended, none changes.
    #[test]
    fn what_was_appended_stays(
        all_ranges in prop::collection::vec(some_ranges(), 1..4),
        requests in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..6, 0_u64..12, 0_u64..4, any::<bool>()), 1..60),
    ) {
        let rules: Vec<_> = all_ranges
            .iter()
            .map(|ranges| Terms { append_only: true, ..terms(ranges, Rights::ALL) })
            .map(|terms| Rule::new(terms, SECTORS * SECTOR_LEN, 512).unwrap())
            .collect();
        let mut written = vec![false; usize::try_from(SECTORS).unwrap()];
        let mut end = 0;
        for (which, op, offset, len, at_end) in requests {
            let which = which.index(rules.len());
            let segment = SegmentNow { end, ..SEGMENT };
            let table = shown(&all_ranges[which]);
            let own_end = table.iter().filter(|sector| **sector * SECTOR_LEN < end).count() as u64;
            let offset = if at_end { own_end } else { offset };
            let asked = range(offset * SECTOR_LEN, len * SECTOR_LEN);
            let verdict = rules[which].judge(OPS[op], asked, segment, NOW);
            let fits = offset + len <= table.len() as u64;
            if OPS[op] == Op::Write {
                let allowed = matches!(verdict, Verdict::Allow(_));
                prop_assert_eq!(allowed, offset == own_end && fits);
            }
            let Verdict::Allow(pieces) = verdict else { continue };
            if !OPS[op].changes() {
                continue;
            }
            for sector in sectors(&pieces) {
                let place = &mut written[usize::try_from(sector).unwrap()];
                prop_assert!(!*place, "sector {} is changed", sector);
                *place = true;
            }
            end = end.max(pieces.end());
        }
    }
}
