//! Bytes against the definitions, one byte at a time.

use super::*;
use crate::{
    code::{ColumnSet, Recipe},
    geometry::Geometry,
};
use netraid_parity::field::multiply;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{vec, vec::Vec};

/// Shapes of every level, the narrowest and wider ones.
const SHAPES: [(Level, usize); 14] = [
    (Level::Raid0, 1),
    (Level::Raid0, 4),
    (Level::Raid1, 2),
    (Level::Raid1, 4),
    (Level::Raid5, 3),
    (Level::Raid5, 6),
    (Level::Raid5, 12),
    (Level::Raid6, 4),
    (Level::Raid6, 5),
    (Level::Raid6, 8),
    (Level::Raid6, 12),
    (Level::Raid10, 4),
    (Level::Raid10, 6),
    (Level::Raid10, 10),
];

fn code(level: Level, members: usize) -> Code {
    Code::new(&Geometry::new(level, members, 4096, 512, 16, 0).unwrap())
}

fn random(rng: &mut StdRng, len: usize) -> Vec<u8> {
    (0..len).map(|_| rng.random()).collect()
}

/// The bytes as a list that is cut anywhere, of parts that begin anywhere in their memory.
fn scatter(rng: &mut StdRng, bytes: &[u8]) -> SgList {
    let mut list = SgList::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let longest = if rng.random() { rest.len() } else { rest.len().min(700) };
        let (part, after) = rest.split_at(rng.random_range(1..=longest));
        let before = rng.random_range(0..70);
        let mut memory = vec![0xee; before];
        memory.extend_from_slice(part);
        list.push(Buf::copy_from(&memory).slice(before..before + part.len()));
        rest = after;
    }
    list
}

/// A pool whose memory is never zero by chance.
fn dirty_pool() -> Pool {
    let pool = Pool::new();
    let dirty: Vec<_> = (0..8)
        .map(|class| {
            let mut buf = pool.get(4096 << class);
            buf.fill(0xdd);
            buf
        })
        .collect();
    drop(dirty);
    pool
}

/// All columns of a row by the definition of its level.
fn row(code: Code, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let len = data[0].len();
    let mut row = data.to_vec();
    match code.level() {
        Level::Raid0 => {}
        Level::Raid1 => (0..code.check_columns()).for_each(|_| row.push(data[0].clone())),
        Level::Raid10 => row.extend_from_slice(data),
        Level::Raid5 | Level::Raid6 => {
            let (mut p, mut q) = (vec![0; len], vec![0; len]);
            let mut power = 1;
            for column in data {
                for at in 0..len {
                    p[at] ^= column[at];
                    q[at] ^= multiply(power, column[at]);
                }
                power = multiply(2, power);
            }
            row.push(p);
            if code.level() == Level::Raid6 {
                row.push(q);
            }
        }
    }
    row
}

fn data(rng: &mut StdRng, code: Code, len: usize) -> Vec<Vec<u8>> {
    (0..code.data_columns()).map(|_| random(rng, len)).collect()
}

fn follow(pool: &Pool, recipe: &Recipe, row: &[SgList]) -> Buf {
    let sources: Vec<(u8, &SgList)> =
        recipe.iter().map(|(column, weight)| (*weight, &row[usize::from(*column)])).collect();
    combine(pool, row[0].len(), &sources)
}

#[test]
fn checks_are_those_of_the_definition_however_the_columns_are_cut() {
    let mut rng = StdRng::seed_from_u64(1);
    let pool = dirty_pool();
    for (level, members) in SHAPES {
        let code = code(level, members);
        for len in [0, 1, 127, 4096, 8192 + 4096, 20_001] {
            let data = data(&mut rng, code, len);
            let lists: Vec<SgList> = data.iter().map(|column| scatter(&mut rng, column)).collect();
            let checks = checks(&pool, &code, &lists);
            let expected = row(code, &data).split_off(data.len());
            assert_eq!(checks.len(), expected.len());
            for (check, expected) in checks.iter().zip(&expected) {
                assert_eq!(*check.to_contiguous(), **expected, "{code:?} {len}");
            }
        }
    }
}

#[test]
fn every_recipe_gives_the_columns_bytes_and_there_is_one_whenever_it_can_be() {
    let mut rng = StdRng::seed_from_u64(2);
    let pool = dirty_pool();
    for (level, members) in SHAPES.into_iter().filter(|(_, members)| *members <= 8) {
        let code = code(level, members);
        let data = data(&mut rng, code, 300);
        let row: Vec<Vec<u8>> = row(code, &data);
        let lists: Vec<SgList> = row.iter().map(|column| scatter(&mut rng, column)).collect();
        for mask in 0..1_u64 << members {
            let readable: ColumnSet =
                (0..code.columns()).filter(|column| mask >> column & 1 == 1).collect();
            for wanted in 0..code.columns() {
                let Some(recipe) = code.recipe(wanted, readable) else { continue };
                assert!(recipe.iter().all(|(column, weight)| {
                    readable.contains(*column) && *column != wanted && *weight != 0
                }));
                let got = follow(&pool, &recipe, &lists);
                assert_eq!(*got, *row[usize::from(wanted)], "{code:?} {wanted} {readable:?}");
            }
        }
    }
}

#[test]
fn the_widest_rows_come_back_from_any_columns_that_suffice() {
    let mut rng = StdRng::seed_from_u64(8);
    let pool = dirty_pool();
    for (level, members) in [(Level::Raid5, 64), (Level::Raid6, 64), (Level::Raid10, 64)] {
        let code = code(level, members);
        let data = data(&mut rng, code, 200);
        let row = row(code, &data);
        let lists: Vec<SgList> = row.iter().map(|column| scatter(&mut rng, column)).collect();
        let tolerance = if level == Level::Raid6 { 2 } else { 1 };
        for _ in 0..200 {
            let lost: ColumnSet = (0..tolerance).map(|_| rng.random_range(0..64)).collect();
            let readable = code.all().minus(lost);
            assert!(code.can_decode(readable));
            for wanted in lost.iter() {
                let recipe = code.recipe(wanted, readable).unwrap();
                assert_eq!(*follow(&pool, &recipe, &lists), *row[usize::from(wanted)]);
            }
        }
    }
}

#[test]
fn an_updated_check_is_that_of_the_new_row() {
    let mut rng = StdRng::seed_from_u64(3);
    let pool = dirty_pool();
    for (level, members) in SHAPES {
        let code = code(level, members);
        for len in [1, 512, 4096, 12_288] {
            let before = data(&mut rng, code, len);
            let mut after = before.clone();
            let changed: Vec<u8> =
                (0..code.data_columns()).filter(|_| rng.random_ratio(1, 2)).collect();
            for column in &changed {
                after[usize::from(*column)] = random(&mut rng, len);
            }
            let (old_row, new_row) = (row(code, &before), row(code, &after));
            for check in code.data_columns()..code.columns() {
                let pairs: Vec<(u8, SgList, SgList)> = changed
                    .iter()
                    .map(|column| {
                        let weight = code.check_weight(check, *column);
                        let (old, new) =
                            (&before[usize::from(*column)], &after[usize::from(*column)]);
                        (weight, scatter(&mut rng, old), scatter(&mut rng, new))
                    })
                    .collect();
                let deltas: Vec<(u8, &SgList, &SgList)> =
                    pairs.iter().map(|(weight, old, new)| (*weight, old, new)).collect();
                let old_check = scatter(&mut rng, &old_row[usize::from(check)]);
                let new_check = update(&pool, &old_check, &deltas);
                assert_eq!(*new_check, *new_row[usize::from(check)], "{code:?} {changed:?}");
            }
        }
    }
}

#[test]
fn weighted_sums_are_those_of_the_field() {
    let mut rng = StdRng::seed_from_u64(4);
    let pool = dirty_pool();
    for _ in 0..300 {
        let len = rng.random_range(0..20_000);
        let count = rng.random_range(0..12);
        let sources: Vec<(u8, Vec<u8>)> = (0..count)
            .map(|_| {
                let weight = if rng.random() { rng.random_range(0..3) } else { rng.random() };
                (weight, random(&mut rng, len))
            })
            .collect();
        let mut expected = vec![0; len];
        for (weight, source) in &sources {
            expected
                .iter_mut()
                .zip(source)
                .for_each(|(sum, byte)| *sum ^= multiply(*weight, *byte));
        }
        let lists: Vec<(u8, SgList)> =
            sources.iter().map(|(weight, source)| (*weight, scatter(&mut rng, source))).collect();
        let refs: Vec<(u8, &SgList)> = lists.iter().map(|(weight, list)| (*weight, list)).collect();
        assert_eq!(*combine(&pool, len, &refs), *expected);
    }
}

#[test]
fn sums_are_those_of_the_blocks_however_they_are_cut() {
    let mut rng = StdRng::seed_from_u64(5);
    for blocks in 0..20 {
        let bytes = random(&mut rng, blocks * BLOCK_LEN);
        let list = scatter(&mut rng, &bytes);
        let expected: Vec<u32> = bytes.chunks(BLOCK_LEN).map(sum).collect();
        assert_eq!(*sums(&list), *expected);
        for (at, expected) in bytes.chunks(BLOCK_LEN).enumerate() {
            assert_eq!(*block(&list, at), *expected);
        }
    }
    assert_eq!(sum(&[0; BLOCK_LEN]), zero_sum());
    assert_eq!(*sums(&zeroes(20 * BLOCK_LEN)), [zero_sum(); 20]);
}

#[test]
fn checks_and_checksums_made_together_are_those_made_apart() {
    let mut rng = StdRng::seed_from_u64(12);
    let pool = dirty_pool();
    for (level, members) in SHAPES {
        for blocks in [0, 1, 3, 7] {
            let code = code(level, members);
            let data = data(&mut rng, code, blocks * BLOCK_LEN);
            let mut columns: Vec<SgList> =
                data.iter().map(|column| scatter(&mut rng, column)).collect();
            let (checks_of_all, sums_of_all) = checks_and_sums(&pool, &code, &columns);
            let apart = checks(&pool, &code, &columns);
            let contents = |list: &SgList| list.to_contiguous().to_vec();
            let both = [&checks_of_all, &apart]
                .map(|checks| checks.iter().map(contents).collect::<Vec<_>>());
            assert_eq!(both[0], both[1], "{level:?} of {members}");
            columns.extend(apart);
            let each: Vec<u32> = columns.iter().flat_map(sums).collect();
            assert_eq!(sums_of_all, each, "{level:?} of {members}, {blocks} blocks");
        }
    }
}

#[test]
fn a_checksum_tells_every_changed_bit() {
    let mut rng = StdRng::seed_from_u64(6);
    let mut bytes = random(&mut rng, BLOCK_LEN);
    let good = sum(&bytes);
    for at in 0..BLOCK_LEN * 8 {
        bytes[at / 8] ^= 1 << (at % 8);
        assert_ne!(sum(&bytes), good);
        bytes[at / 8] ^= 1 << (at % 8);
    }
}

#[test]
fn later_parts_lie_over_earlier_ones() {
    let mut rng = StdRng::seed_from_u64(7);
    let pool = dirty_pool();
    for _ in 0..300 {
        let len = rng.random_range(1..9) * 512;
        let mut parts = vec![(0, random(&mut rng, len))];
        for _ in 0..rng.random_range(0..5) {
            let at = rng.random_range(0..=len);
            let part = rng.random_range(0..=len - at);
            parts.push((at, random(&mut rng, part)));
        }
        if rng.random() {
            parts.push((0, random(&mut rng, len)));
        }
        let mut expected = vec![0; len];
        for (at, part) in &parts {
            expected[*at..at + part.len()].copy_from_slice(part);
        }
        let lists: Vec<(usize, SgList)> =
            parts.iter().map(|(at, part)| (*at, scatter(&mut rng, part))).collect();
        let refs: Vec<(usize, &SgList)> = lists.iter().map(|(at, list)| (*at, list)).collect();
        assert_eq!(*compose(&pool, len, &refs), *expected);
    }
}

#[test]
fn bytes_that_stay_as_they_are_share_memory() {
    let pool = Pool::new();
    let one: SgList = Buf::copy_from(&[7; 3 * BLOCK_LEN]).into();
    let address = one.parts()[0].as_ptr();
    assert_eq!(block(&one, 2).as_ptr(), address.wrapping_add(2 * BLOCK_LEN));
    assert_eq!(combine(&pool, one.len(), &[(1, &one)]).as_ptr(), address);
    assert_eq!(compose(&pool, one.len(), &[(0, &zeroes(one.len())), (0, &one)]).as_ptr(), address);
    for check in checks(&pool, &code(Level::Raid1, 3), core::slice::from_ref(&one)) {
        assert_eq!(check.parts()[0].as_ptr(), address);
    }
}

#[test]
fn what_would_show_wrong_bytes_is_refused() {
    let refused = |act: &dyn Fn(&Pool)| {
        let act = std::panic::AssertUnwindSafe(|| act(&Pool::new()));
        assert!(std::panic::catch_unwind(act).is_err());
    };
    let (short, long) = (zeroes(512), zeroes(1024));
    refused(&|pool| drop(combine(pool, 1024, &[(1, &short)])));
    refused(&|pool| drop(combine(pool, 1024, &[(1, &long), (2, &short)])));
    refused(&|pool| drop(update(pool, &long, &[(1, &long, &short)])));
    refused(&|pool| drop(compose(pool, 1024, &[])));
    refused(&|pool| drop(compose(pool, 1024, &[(0, &short)])));
    refused(&|pool| drop(compose(pool, 1024, &[(512, &short), (0, &short)])));
    refused(&|pool| drop(compose(pool, 1024, &[(0, &long), (1000, &short)])));
    refused(&|pool| drop(checks(pool, &code(Level::Raid5, 3), core::slice::from_ref(&long))));
    refused(&|pool| drop(checks(pool, &code(Level::Raid6, 4), &[long.clone(), short.clone()])));
    refused(&|pool| drop(checks_and_sums(pool, &code(Level::Raid5, 3), &[zeroes(4096)])));
    refused(&|pool| {
        drop(checks_and_sums(pool, &code(Level::Raid5, 3), &[zeroes(4096), zeroes(8192)]))
    });
    refused(&|pool| {
        drop(checks_and_sums(pool, &code(Level::Raid10, 4), &[zeroes(4096), zeroes(8192)]))
    });
    refused(&|pool| {
        drop(checks_and_sums(pool, &code(Level::Raid6, 4), &[long.clone(), long.clone()]))
    });
    refused(&|_| drop(sums(&short)));
    refused(&|_| drop(block(&zeroes(BLOCK_LEN), 1)));
    refused(&|_| {
        let _ = sum(&[0; 512]);
    });
}
