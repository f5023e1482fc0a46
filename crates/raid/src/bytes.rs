//! What is done to bytes: the one place that makes or judges them, for production and simulation
//! alike. Which columns are summed up, and with which weights, is [`crate::code`]'s.
//!
//! Invariant: what is given is never changed; results are buffers of their own, or share memory
//! where the bytes are the same. The parts of lists may be cut anywhere, each list otherwise.

use alloc::{vec, vec::Vec};
use core::ops::Range;

use netraid_block::{Buf, BufMut, Pool, SgList};
use netraid_parity::{
    dual::{add_scaled, p_and_q},
    xor,
};
use smallvec::{SmallVec, smallvec};

use crate::{code::Code, crc, geometry::Level};

/// Bytes of a block of the volume.
pub const BLOCK_LEN: usize = 4096;

/// Bytes that are summed up over all sources before the next, so that the sum stays in the
/// nearest cache.
const RUN_LEN_MAX: usize = 8192;

/// What is summed up, each with its weight.
type Terms<'a> = SmallVec<[(u8, &'a SgList); 16]>;

/// The checksum (CRC32C) of a block of 4 KiB.
///
/// # Panics
/// When it has another length.
#[must_use]
pub fn sum(block: &[u8]) -> u32 {
    assert_eq!(block.len(), BLOCK_LEN, "bytes of a block");
    crc::append(0, block)
}

/// The checksums of all blocks of `data`.
///
/// # Panics
/// When it has no whole number of blocks.
#[must_use]
pub fn sums(data: &SgList) -> SmallVec<[u32; 16]> {
    let mut sums = SmallVec::with_capacity(blocks(data));
    let mut cursor = Cursor::new(data);
    for _ in 0..blocks(data) {
        let (mut sum, mut left) = (0, BLOCK_LEN);
        while left > 0 {
            let run = left.min(cursor.available());
            let piece = cursor.take(run);
            sum = crc::append(sum, piece);
            left -= piece.len();
        }
        sums.push(sum);
    }
    sums
}

/// The check columns of a row, or of several, as [`checks`] makes them, and the checksums of all blocks of every
/// column: those of the first column, then those of the next.
///
/// Bytes are summed up and their checksums taken in turns, a run of all columns at a time: they come from
/// memory once, however long a stripe is. A check column that is a plain sum of data columns is not read for its
/// checksums: up to what zeros have, the checksum of a sum is the sum of the checksums. So they also tell
/// whether the bytes of the sum are right.
///
/// # Panics
/// When there is not each of the data columns, their lengths differ, or they have no whole number of blocks.
#[must_use]
pub fn checks_and_sums(
    pool: &Pool,
    code: &Code,
    data: &[SgList],
) -> (SmallVec<[SgList; 2]>, Vec<u32>) {
    let count = data.first().map_or(0, blocks);
    let mut all = vec![0; count * usize::from(code.columns())];
    let (of_data, of_checks) = all.split_at_mut(count * data.len());
    let checks = match code.level() {
        Level::Raid0 | Level::Raid1 | Level::Raid10 => {
            let checks = checks(pool, code, data);
            for (sums, column) in of_data.chunks_exact_mut(count.max(1)).zip(data) {
                each_run(&[column], column.len(), |range, pieces| {
                    append(sums, range.start, pieces[0])
                });
            }
            checks
        }
        Level::Raid5 | Level::Raid6 => {
            assert_eq!(data.len(), usize::from(code.data_columns()), "every data column");
            let lists: SmallVec<[&SgList; 16]> = data.iter().collect();
            let len = count * BLOCK_LEN;
            let mut made: SmallVec<[BufMut; 2]> =
                (0..code.check_columns()).map(|_| pool.get(len)).collect();
            each_run(&lists, len, |range, pieces| {
                match made.as_mut_slice() {
                    [p] => xor(&mut p[range.clone()], pieces),
                    [p, q] => {
                        p_and_q(&mut p[range.clone()], &mut q[range.clone()], pieces);
                        append(&mut of_checks[count..], range.start, &q[range.clone()]);
                    }
                    _ => unreachable!("one or two check columns"),
                }
                for (sums, piece) in of_data.chunks_exact_mut(count).zip(pieces) {
                    append(sums, range.start, piece);
                }
            });
            made.into_iter().map(|check| check.freeze().into()).collect()
        }
    };
    for (at, sums) in (code.data_columns()..).zip(of_checks.chunks_exact_mut(count.max(1))) {
        let weight = |data: u8| code.check_weight(at, data);
        if (0..code.data_columns()).all(|data| weight(data) <= 1) {
            sums.fill(zero_sum());
            for column in (0..code.data_columns()).filter(|data| weight(*data) == 1) {
                let of_column = &of_data[usize::from(column) * count..][..count];
                sums.iter_mut().zip(of_column).for_each(|(sum, one)| *sum ^= one ^ zero_sum());
            }
        }
    }
    (checks, all)
}

/// Goes on with a column's checksums: these are its bytes from `at` on.
fn append(sums: &mut [u32], mut at: usize, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let (piece, rest) = bytes.split_at(bytes.len().min(BLOCK_LEN - at % BLOCK_LEN));
        let sum = &mut sums[at / BLOCK_LEN];
        *sum = crc::append(*sum, piece);
        (at, bytes) = (at + piece.len(), rest);
    }
}

/// The checksum of a block of zeros.
#[must_use]
pub const fn zero_sum() -> u32 {
    0x98f9_4189
}

/// Block number `at` of `data`; shares memory when it lies in one part.
///
/// # Panics
/// When there is no such block.
#[must_use]
pub fn block(data: &SgList, at: usize) -> Buf {
    let block = data.slice(at * BLOCK_LEN..(at + 1) * BLOCK_LEN);
    block.to_contiguous()
}

/// Zeros, sharing memory.
#[must_use]
pub fn zeroes(len: usize) -> SgList {
    SgList::zeroes(len)
}

/// The sum of `sources`, each times its weight, all of `len` bytes; zeros when there are none.
///
/// # Panics
/// When a source has another length.
#[must_use]
pub fn combine(pool: &Pool, len: usize, sources: &[(u8, &SgList)]) -> Buf {
    if let [(1, source)] = sources
        && let [one] = source.parts()
    {
        assert_eq!(one.len(), len, "a source of another length");
        return one.clone();
    }
    let lists: SmallVec<[&SgList; 16]> = sources.iter().map(|(_, source)| *source).collect();
    let mut sum = pool.get(len);
    each_run(&lists, len, |range, pieces| {
        let weighted = sources.iter().map(|(weight, _)| *weight).zip(pieces.iter().copied());
        let ones: SmallVec<[&[u8]; 16]> =
            weighted.clone().filter(|(weight, _)| *weight == 1).map(|(_, piece)| piece).collect();
        let sum = &mut sum[range];
        xor(sum, &ones);
        for (weight, piece) in weighted.filter(|(weight, _)| *weight != 1) {
            add_scaled(sum, weight, piece);
        }
    });
    sum.freeze()
}

/// All check columns of a row, or of several, from all of its data columns.
///
/// # Panics
/// When there is not each of the data columns, or their lengths differ.
#[must_use]
pub fn checks(pool: &Pool, code: &Code, data_columns: &[SgList]) -> SmallVec<[SgList; 2]> {
    assert_eq!(data_columns.len(), usize::from(code.data_columns()), "every data column");
    let len = data_columns[0].len();
    assert!(data_columns.iter().all(|column| column.len() == len), "columns of one length");
    match code.level() {
        Level::Raid0 => SmallVec::new(),
        Level::Raid1 => smallvec![data_columns[0].clone(); usize::from(code.check_columns())],
        Level::Raid10 => data_columns.iter().cloned().collect(),
        Level::Raid5 => {
            let sources: Terms<'_> = data_columns.iter().map(|column| (1, column)).collect();
            smallvec![combine(pool, len, &sources).into()]
        }
        Level::Raid6 => {
            let lists: SmallVec<[&SgList; 16]> = data_columns.iter().collect();
            let (mut p, mut q) = (pool.get(len), pool.get(len));
            each_run(&lists, len, |range, pieces| {
                p_and_q(&mut p[range.clone()], &mut q[range], pieces);
            });
            smallvec![p.freeze().into(), q.freeze().into()]
        }
    }
}

/// A check column after some data columns changed: `old_check`, and for each of them its weight
/// in that check, what it held and what it will hold.
///
/// # Panics
/// When lengths differ.
#[must_use]
pub fn update(pool: &Pool, old_check: &SgList, deltas: &[(u8, &SgList, &SgList)]) -> Buf {
    let changes = deltas.iter().flat_map(|(weight, old, new)| [(*weight, *old), (*weight, *new)]);
    let sources: Terms<'_> = core::iter::once((1, old_check)).chain(changes).collect();
    combine(pool, old_check.len(), &sources)
}

/// Puts `parts` over each other, each at its place, later ones over earlier ones. The first is
/// what the others are put over: all `len` bytes.
///
/// # Panics
/// When the first part does not cover all, or another reaches past the end.
#[must_use]
pub fn compose(pool: &Pool, len: usize, parts: &[(usize, &SgList)]) -> Buf {
    let whole = |(at, part): &(usize, &SgList)| *at == 0 && part.len() == len;
    assert!(parts.first().is_some_and(whole), "a first part of {len} bytes");
    // What is below the last part that covers all does not show.
    let base = parts.iter().rposition(whole).unwrap_or(0);
    if let [(_, only)] = &parts[base..]
        && let [one] = only.parts()
    {
        return one.clone();
    }
    let mut sum: BufMut = pool.get(len);
    for (at, part) in &parts[base..] {
        part.copy_to(&mut sum[*at..at + part.len()]);
    }
    sum.freeze()
}

/// How many blocks `data` has.
fn blocks(data: &SgList) -> usize {
    assert!(data.len().is_multiple_of(BLOCK_LEN), "{} bytes are no whole blocks", data.len());
    data.len() / BLOCK_LEN
}

/// Goes through lists of one length together, in runs that lie in one part of each.
fn each_run<'a>(lists: &[&'a SgList], len: usize, mut take: impl FnMut(Range<usize>, &[&'a [u8]])) {
    assert!(lists.iter().all(|list| list.len() == len), "sources of {len} bytes");
    let mut cursors: SmallVec<[Cursor<'_>; 16]> =
        lists.iter().map(|list| Cursor::new(list)).collect();
    let mut pieces: SmallVec<[&[u8]; 16]> = SmallVec::with_capacity(lists.len());
    let mut at = 0;
    while at < len {
        let shortest = cursors.iter_mut().map(Cursor::available).min();
        let run = shortest.unwrap_or(len - at).min(RUN_LEN_MAX);
        pieces.clear();
        pieces.extend(cursors.iter_mut().map(|cursor| cursor.take(run)));
        take(at..at + run, &pieces);
        at += run;
    }
}

/// A place in a list.
struct Cursor<'a> {
    parts: core::slice::Iter<'a, Buf>,
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn new(list: &'a SgList) -> Self {
        Self { parts: list.parts().iter(), rest: &[] }
    }

    /// Bytes from here to the end of the part.
    ///
    /// # Panics
    /// At the end of the list.
    fn available(&mut self) -> usize {
        while self.rest.is_empty() {
            match self.parts.next() {
                Some(part) => self.rest = part,
                None => unreachable!("bytes past the end of a list"),
            }
        }
        self.rest.len()
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        taken
    }
}

#[cfg(test)]
mod tests;
