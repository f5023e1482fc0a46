//! A disk: logical blocks, a volatile cache, and everything that goes wrong with both.
//!
//! What is assumed of the medium, and nothing more: a logical block is written whole or not at
//! all; everything larger may tear, in any order of blocks; of the writes that completed since
//! the last flush any may be lost when the power fails, each block on its own; a flush that
//! completes is true. On top of that come faults that the world asks for: bits that rot, blocks
//! that cannot be read, writes that are lost or land elsewhere (see [`Disk::write`]'s caller), and
//! a disk that comes back with an older image.
//!
//! It knows no time: how long a request takes is for the world (see [`crate::station`]).

use core::ops::Range;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use netraid_block::{Buf, Pool, SgList, narrow};

use crate::dice::{Dice, Seed};

/// What a block holds that was never written, or was given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// Zeros.
    Zeroes,
    /// Old bytes, another for each block and seed.
    Old(Seed),
}

/// A disk's size and kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskShape {
    /// Bytes of a logical block.
    pub block_len: u32,
    /// Number of logical blocks.
    pub blocks: u64,
    /// Completed writes stay in a volatile cache until a flush.
    pub volatile_cache: bool,
    /// What is there before anything is written.
    pub fill: Fill,
}

/// A block that the medium cannot read until it is written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable {
    /// Which.
    pub block: u64,
}

/// The content of a disk's medium at some moment, to be put back later.
#[derive(Debug, Clone)]
pub struct Image(Vec<Option<Arc<Page>>>);

const PAGE_LEN: usize = 4096;

type Page = [u8; PAGE_LEN];

/// A disk. Blocks are counted from 0.
#[derive(Debug, Clone)]
pub struct Disk {
    shape: DiskShape,
    /// What reads return; a page that is not here holds the fill.
    pages: Vec<Option<Arc<Page>>>,
    /// Writes since the last flush, oldest first: a power failure may undo them.
    unflushed: Vec<Unflushed>,
    unreadable: BTreeSet<u64>,
    /// Blocks that somebody wants to know of whether they were written since.
    watched: BTreeSet<u64>,
    /// Pages that take space.
    taken: Vec<bool>,
    /// Pages that more may take; none: as many as there are.
    space: Option<u64>,
    pool: Pool,
}

#[derive(Debug, Clone)]
struct Unflushed {
    first: u64,
    old: Box<[u8]>,
    new: Buf,
    /// Written with FUA: it survives, and what was there before does not come back.
    is_stable: bool,
}

impl Disk {
    /// A disk that nobody has written.
    #[must_use]
    pub fn new(shape: DiskShape) -> Self {
        let len = u64::from(shape.block_len) * shape.blocks;
        let count = narrow(len.div_ceil(PAGE_LEN as u64));
        Self {
            shape,
            pages: vec![None; count],
            unflushed: Vec::new(),
            unreadable: BTreeSet::new(),
            watched: BTreeSet::new(),
            taken: vec![false; count],
            space: None,
            pool: Pool::new(),
        }
    }

    /// Its size and kind.
    #[must_use]
    pub const fn shape(&self) -> &DiskShape {
        &self.shape
    }

    /// Reads blocks as a command would.
    ///
    /// # Errors
    /// The first block that cannot be read.
    ///
    /// # Panics
    /// When the range is not on the disk.
    pub fn read(&self, blocks: Range<u64>) -> Result<SgList, Unreadable> {
        self.check(&blocks);
        if let Some(block) = self.unreadable.range(blocks.clone()).next() {
            return Err(Unreadable { block: *block });
        }
        let mut data = self.pool.get(self.offset(blocks.end - blocks.start));
        self.copy_out(blocks.start, &mut data);
        Ok(data.freeze().into())
    }

    /// Writes whole blocks from `first` on. With `fua` they are on the medium when this returns.
    ///
    /// A write that is lost is one that the world answers without coming here; one that is
    /// misdirected comes here with another `first`.
    ///
    /// # Panics
    /// When the data is not whole blocks, or does not fit.
    pub fn write(&mut self, first: u64, data: &SgList, fua: bool) {
        self.put(first, data.to_contiguous(), fua);
    }

    /// Writes as a disk does whose power fails, or whose command is aborted, in the middle of a
    /// write: each block is written or not.
    ///
    /// # Panics
    /// As [`Self::write`] does.
    pub fn tear(&mut self, first: u64, data: &SgList, fua: bool, dice: &mut Dice) {
        let data = data.to_contiguous();
        let len = self.shape.block_len as usize;
        for at in 0..data.len() / len {
            if dice.one_in(2) {
                self.put(first + at as u64, data.slice(at * len..(at + 1) * len), fua);
            }
        }
    }

    /// Has it take space for so many pages of 4 KiB more and refuse writes that need others; none:
    /// whatever is written. What is written has its space until it is given back.
    pub fn limit_space(&mut self, pages: Option<u64>) {
        self.space = pages;
    }

    /// Allocates space.
    ///
    /// # Panics
    /// When the range is not on the disk.
    pub fn reserve(&mut self, blocks: Range<u64>) {
        self.check(&blocks);
        for page in self.pages_of(&blocks) {
            let is_new = !core::mem::replace(&mut self.taken[page], true);
            self.space = self.space.map(|space| space.saturating_sub(is_new.into()));
        }
    }

    /// Whether there is space for blocks that are to be written.
    ///
    /// # Panics
    /// When the range is not on the disk.
    #[must_use]
    pub fn has_space(&self, blocks: Range<u64>) -> bool {
        self.check(&blocks);
        let more = self.pages_of(&blocks).filter(|page| !self.taken[*page]).count() as u64;
        self.space.is_none_or(|space| more <= space)
    }

    /// Puts everything in the cache onto the medium.
    pub fn flush(&mut self) {
        self.unflushed.clear();
    }

    /// Gives blocks back: they hold the fill again, at once on the medium as far as anybody can
    /// tell, for a later power failure may still bring back what was there.
    ///
    /// # Panics
    /// When the range is not on the disk.
    pub fn discard(&mut self, blocks: Range<u64>) {
        self.check(&blocks);
        let mut fill = self.pool.get(self.offset(blocks.end - blocks.start));
        let len = self.shape.block_len as usize;
        for (block, bytes) in blocks.clone().zip(fill.chunks_exact_mut(len)) {
            self.fill(block, bytes);
        }
        self.put(blocks.start, fill.freeze(), false);
        for page in self.pages_of(&blocks) {
            let was_taken = core::mem::replace(&mut self.taken[page], false);
            self.space = self.space.map(|space| space + u64::from(was_taken));
        }
    }

    /// The power fails: of each block that has unflushed writes any of them survives, or none.
    /// Answers how many blocks are not what they were.
    pub fn lose_power(&mut self, dice: &mut Dice) -> usize {
        let len = self.shape.block_len as usize;
        let unflushed = core::mem::take(&mut self.unflushed);
        let mut versions: BTreeMap<u64, Vec<&[u8]>> = BTreeMap::new();
        for write in &unflushed {
            let parts = write.old.chunks_exact(len).zip(write.new.chunks_exact(len));
            for (block, (old, new)) in (write.first..).zip(parts) {
                let all = versions.entry(block).or_insert_with(|| vec![old]);
                if write.is_stable {
                    all.clear();
                }
                all.push(new);
            }
        }
        let mut lost = 0;
        for (block, versions) in versions {
            let survivor = dice.index(versions.len());
            if survivor + 1 < versions.len() {
                lost += 1;
                self.watched.remove(&block);
                self.copy_in(block, versions[survivor]);
            }
        }
        lost
    }

    /// Flips a bit of what reads of a block return.
    ///
    /// # Panics
    /// When the block is not on the disk.
    pub fn rot(&mut self, block: u64, dice: &mut Dice) {
        self.check(&(block..block + 1));
        let mut bytes = vec![0; self.shape.block_len as usize];
        self.copy_out(block, &mut bytes);
        let at = dice.index(bytes.len());
        bytes[at] ^= 1 << dice.below(8);
        self.copy_in(block, &bytes);
    }

    /// Makes what reads of a block return be something else, as if it had always been that.
    ///
    /// # Panics
    /// When the block is not on the disk, or the bytes are not one block.
    pub fn set(&mut self, block: u64, bytes: &[u8]) {
        self.check(&(block..block + 1));
        assert_eq!(bytes.len(), self.shape.block_len as usize, "one block");
        self.copy_in(block, bytes);
    }

    /// Makes a block unreadable until it is written.
    ///
    /// # Panics
    /// When the block is not on the disk.
    pub fn spoil(&mut self, block: u64) {
        self.check(&(block..block + 1));
        self.unreadable.insert(block);
    }

    /// Begins to watch a block.
    pub fn watch(&mut self, block: u64) {
        self.watched.insert(block);
    }

    /// Whether a block has not been written, and no power failed, since it was watched.
    #[must_use]
    pub fn is_untouched(&self, block: u64) -> bool {
        self.watched.contains(&block)
    }

    /// Undoes rot: wherever a block holds what it rotted to, also where a power failure would bring
    /// that back, it holds again what it held before.
    ///
    /// # Panics
    /// When the block is not on the disk, or either is not one block.
    pub fn put_right(&mut self, block: u64, bad: &[u8], good: &[u8]) {
        let mut now = vec![0; self.shape.block_len as usize];
        self.copy_out(block, &mut now);
        if now == bad {
            self.set(block, good);
        }
        self.put_right_below(block, bad, good);
    }

    /// The same only where a power failure would bring it back, under what was written since.
    pub fn put_right_below(&mut self, block: u64, bad: &[u8], good: &[u8]) {
        let len = self.shape.block_len as usize;
        for write in &mut self.unflushed {
            let at = block.checked_sub(write.first).and_then(|at| usize::try_from(at).ok());
            let old = at.and_then(|at| write.old.chunks_exact_mut(len).nth(at));
            if let Some(old) = old.filter(|old| **old == *bad) {
                old.copy_from_slice(good);
            }
        }
    }

    /// A block that cannot be read can be read again.
    pub fn mend(&mut self, block: u64) {
        self.unreadable.remove(&block);
    }

    /// What is on the medium: without the cache.
    #[must_use]
    pub fn image(&self) -> Image {
        let len = self.shape.block_len as usize;
        let mut medium: BTreeMap<u64, &[u8]> = BTreeMap::new();
        for write in &self.unflushed {
            let parts = write.old.chunks_exact(len).zip(write.new.chunks_exact(len));
            for (block, (old, new)) in (write.first..).zip(parts) {
                let bytes = medium.entry(block).or_insert(old);
                if write.is_stable {
                    *bytes = new;
                }
            }
        }
        let mut pages = self.pages.clone();
        for (block, bytes) in medium {
            let at = self.offset(block);
            if let Some(Some(page)) = pages.get_mut(at / PAGE_LEN) {
                Arc::make_mut(page)[at % PAGE_LEN..at % PAGE_LEN + len].copy_from_slice(bytes);
            }
        }
        Image(pages)
    }

    /// Puts an image back, as an administrator does with a disk from a shelf, or a snapshot.
    pub fn restore(&mut self, image: Image) {
        self.pages = image.0;
        self.unflushed.clear();
        self.unreadable.clear();
        self.watched.clear();
    }

    /// How many blocks have writes that a power failure may undo.
    #[must_use]
    pub fn unstable_blocks(&self) -> usize {
        let len = self.shape.block_len as usize;
        let blocks = |write: &Unflushed| write.first..write.first + (write.new.len() / len) as u64;
        let unstable = self.unflushed.iter().filter(|write| !write.is_stable);
        unstable.flat_map(blocks).collect::<BTreeSet<u64>>().len()
    }

    fn put(&mut self, first: u64, new: Buf, fua: bool) {
        let len = self.shape.block_len as usize;
        assert_eq!(new.len() % len, 0, "a write of whole blocks");
        let blocks = first..first + (new.len() / len) as u64;
        self.check(&blocks);
        if !self.unreadable.is_empty() {
            self.unreadable.retain(|block| !blocks.contains(block));
        }
        if !self.watched.is_empty() {
            self.watched.retain(|block| !blocks.contains(block));
        }
        self.reserve(blocks);
        let is_cached = self.shape.volatile_cache && !fua;
        if is_cached || !self.unflushed.is_empty() {
            let mut old = vec![0; new.len()].into_boxed_slice();
            self.copy_out(first, &mut old);
            self.copy_in(first, &new);
            self.unflushed.push(Unflushed { first, old, new, is_stable: !is_cached });
        } else {
            self.copy_in(first, &new);
        }
    }

    fn copy_out(&self, first: u64, mut out: &mut [u8]) {
        let mut at = self.offset(first);
        while !out.is_empty() {
            let len = out.len().min(PAGE_LEN - at % PAGE_LEN);
            let (part, rest) = out.split_at_mut(len);
            match &self.pages[at / PAGE_LEN] {
                Some(page) => part.copy_from_slice(&page[at % PAGE_LEN..at % PAGE_LEN + len]),
                None => self.fill_bytes(at, part),
            }
            at += len;
            out = rest;
        }
    }

    fn copy_in(&mut self, first: u64, mut bytes: &[u8]) {
        let mut at = self.offset(first);
        while !bytes.is_empty() {
            let len = bytes.len().min(PAGE_LEN - at % PAGE_LEN);
            if self.pages[at / PAGE_LEN].is_none() {
                let mut page = [0; PAGE_LEN];
                self.fill_bytes(at / PAGE_LEN * PAGE_LEN, &mut page);
                self.pages[at / PAGE_LEN] = Some(Arc::new(page));
            }
            if let Some(page) = &mut self.pages[at / PAGE_LEN] {
                let page = Arc::make_mut(page);
                page[at % PAGE_LEN..at % PAGE_LEN + len].copy_from_slice(&bytes[..len]);
            }
            at += len;
            bytes = &bytes[len..];
        }
    }

    /// Pages that blocks are in.
    fn pages_of(&self, blocks: &Range<u64>) -> Range<usize> {
        self.offset(blocks.start) / PAGE_LEN..self.offset(blocks.end).div_ceil(PAGE_LEN)
    }

    /// The fill from a byte on, at a block's beginning.
    fn fill_bytes(&self, at: usize, out: &mut [u8]) {
        let len = self.shape.block_len as usize;
        let first = (at / len) as u64;
        for (block, bytes) in (first..).zip(out.chunks_mut(len)) {
            self.fill(block, bytes);
        }
    }

    fn fill(&self, block: u64, out: &mut [u8]) {
        let Fill::Old(seed) = self.shape.fill else { return out.fill(0) };
        let mut word = seed.0 ^ block.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for bytes in out.chunks_mut(8) {
            word = (word ^ word >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(29) ^ block;
            bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
        }
    }

    /// Bytes before a block; disks in memory are no larger than that.
    fn offset(&self, block: u64) -> usize {
        narrow(block * u64::from(self.shape.block_len))
    }

    fn check(&self, blocks: &Range<u64>) {
        let on_disk = blocks.start < blocks.end && blocks.end <= self.shape.blocks;
        assert!(on_disk, "blocks {blocks:?} of a disk that has {}", self.shape.blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: DiskShape =
        DiskShape { block_len: 512, blocks: 16, volatile_cache: true, fill: Fill::Zeroes };

    fn data(bytes: &[u8]) -> SgList {
        let blocks: Vec<u8> = bytes.iter().flat_map(|byte| [*byte; 512]).collect();
        Buf::copy_from(&blocks).into()
    }

    fn first_bytes(disk: &Disk, blocks: Range<u64>) -> Vec<u8> {
        let data = disk.read(blocks).unwrap().to_contiguous();
        data.chunks(512)
            .map(|block| {
                assert!(block.iter().all(|byte| *byte == block[0]), "a torn block");
                block[0]
            })
            .collect()
    }

    #[test]
    fn after_a_power_failure_each_block_holds_any_of_what_it_held_since_the_flush() {
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            let mut dice = Seed(seed).dice("power");
            let mut disk = Disk::new(SHAPE);
            disk.write(0, &data(&[1, 1]), false);
            disk.flush();
            disk.write(0, &data(&[2, 2]), false);
            disk.write(1, &data(&[3]), false);
            assert_eq!(first_bytes(&disk, 0..3), [2, 3, 0]);
            disk.lose_power(&mut dice);
            seen.insert(first_bytes(&disk, 0..3));
            assert_eq!(disk.unstable_blocks(), 0);
        }
        let all = [[1, 1], [1, 2], [1, 3], [2, 1], [2, 2], [2, 3]];
        assert_eq!(seen, all.map(|[first, second]| vec![first, second, 0]).into());
    }

    #[test]
    fn what_was_flushed_or_written_with_fua_or_without_a_cache_survives() {
        for seed in 0..50 {
            let mut dice = Seed(seed).dice("power");
            let mut disk = Disk::new(SHAPE);
            disk.write(3, &data(&[1]), false);
            disk.flush();
            disk.write(4, &data(&[8]), false);
            disk.write(4, &data(&[2]), true);
            assert_eq!(disk.lose_power(&mut dice), 0);
            assert_eq!(first_bytes(&disk, 3..5), [1, 2]);
            let mut safe = Disk::new(DiskShape { volatile_cache: false, ..SHAPE });
            safe.write(0, &data(&[5]), false);
            assert_eq!(safe.lose_power(&mut dice), 0);
            assert_eq!(first_bytes(&safe, 0..1), [5]);
        }
    }

    #[test]
    fn a_torn_write_is_whole_blocks_in_any_order() {
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            let mut disk = Disk::new(SHAPE);
            disk.tear(0, &data(&[1, 1, 1]), true, &mut Seed(seed).dice("tear"));
            seen.insert(first_bytes(&disk, 0..3));
        }
        assert_eq!(seen.len(), 8);
    }

    #[test]
    fn a_discard_that_was_not_flushed_may_be_undone() {
        let outcome = |seed| {
            let mut disk = Disk::new(SHAPE);
            disk.write(0, &data(&[1]), true);
            disk.discard(0..1);
            assert_eq!(first_bytes(&disk, 0..1), [0]);
            disk.lose_power(&mut Seed(seed).dice("power"));
            first_bytes(&disk, 0..1)
        };
        let seen: BTreeSet<_> = (0..50).map(outcome).collect();
        assert_eq!(seen, [vec![0], vec![1]].into());
    }

    #[test]
    fn rot_flips_one_bit_whether_cached_or_not_and_a_write_heals_it() {
        let mut dice = Seed(9).dice("rot");
        for fua in [false, true] {
            let mut disk = Disk::new(SHAPE);
            disk.write(2, &data(&[0]), fua);
            disk.rot(2, &mut dice);
            let read = disk.read(2..3).unwrap().to_contiguous();
            assert_eq!(read.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
            disk.write(2, &data(&[4]), fua);
            assert_eq!(first_bytes(&disk, 2..3), [4]);
        }
    }

    #[test]
    fn an_unreadable_block_is_named_until_it_is_written() {
        let mut disk = Disk::new(SHAPE);
        disk.spoil(5);
        assert_eq!(disk.read(4..7).unwrap_err(), Unreadable { block: 5 });
        assert!(disk.read(4..5).is_ok() && disk.read(6..7).is_ok());
        disk.write(5, &data(&[1]), false);
        assert_eq!(first_bytes(&disk, 4..7), [0, 1, 0]);
    }

    #[test]
    fn a_disk_without_space_takes_what_has_its_space_and_what_others_give_back() {
        let mut disk = Disk::new(SHAPE);
        disk.write(3, &data(&[1]), true);
        disk.limit_space(Some(0));
        assert!(disk.has_space(0..8) && !disk.has_space(8..9) && !disk.has_space(7..9));
        disk.discard(0..8);
        assert!(disk.has_space(8..16) && !disk.has_space(0..16));
        disk.write(8, &data(&[2]), true);
        assert!(disk.has_space(8..16) && !disk.has_space(0..1));
        disk.limit_space(None);
        assert!(disk.has_space(0..16));
    }

    #[test]
    fn an_older_image_has_nothing_of_what_came_later() {
        let mut disk = Disk::new(SHAPE);
        disk.write(0, &data(&[1]), true);
        disk.write(1, &data(&[1]), false);
        let image = disk.image();
        disk.write(0, &data(&[2]), true);
        disk.flush();
        disk.restore(image);
        assert_eq!(first_bytes(&disk, 0..2), [1, 0]);
    }

    #[test]
    fn old_bytes_are_other_ones_in_each_block_and_the_same_each_time() {
        let disk = Disk::new(DiskShape { fill: Fill::Old(Seed(4)), ..SHAPE });
        let read = |block| disk.read(block..block + 1).unwrap().to_contiguous().to_vec();
        assert_ne!(read(0), read(1));
        assert_eq!(read(1), read(1));
    }
}
