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
use std::collections::{BTreeMap, BTreeSet};

use netraid_block::{Buf, SgList};

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
pub struct Image(BTreeMap<u64, Buf>);

/// A disk. Blocks are counted from 0.
#[derive(Debug)]
pub struct Disk {
    shape: DiskShape,
    /// What a power failure leaves; a block that is not here holds the fill.
    medium: BTreeMap<u64, Buf>,
    /// What was written to each block since the last flush, oldest first.
    cache: BTreeMap<u64, Vec<Buf>>,
    unreadable: BTreeSet<u64>,
}

impl Disk {
    /// A disk that nobody has written.
    #[must_use]
    pub const fn new(shape: DiskShape) -> Self {
        Self { shape, medium: BTreeMap::new(), cache: BTreeMap::new(), unreadable: BTreeSet::new() }
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
        let mut data = SgList::new();
        blocks.for_each(|block| data.push(self.content(block)));
        Ok(data)
    }

    /// Writes whole blocks from `first` on. With `fua` they are on the medium when this returns.
    ///
    /// A write that is lost is one that the world answers without coming here; one that is
    /// misdirected comes here with another `first`.
    ///
    /// # Panics
    /// When the data is not whole blocks, or does not fit.
    pub fn write(&mut self, first: u64, data: &SgList, fua: bool) {
        self.write_some(first, data, fua, |_| true);
    }

    /// Writes as a disk does whose power fails, or whose command is aborted, in the middle of a
    /// write: each block is written or not.
    ///
    /// # Panics
    /// As [`Self::write`] does.
    pub fn tear(&mut self, first: u64, data: &SgList, fua: bool, dice: &mut Dice) {
        self.write_some(first, data, fua, |_| dice.one_in(2));
    }

    /// Puts everything in the cache onto the medium.
    pub fn flush(&mut self) {
        for (block, mut versions) in core::mem::take(&mut self.cache) {
            self.medium.extend(versions.pop().map(|last| (block, last)));
        }
    }

    /// Gives blocks back: they hold the fill again, at once on the medium as far as anybody can
    /// tell, for a later power failure may still bring back what was there.
    ///
    /// # Panics
    /// When the range is not on the disk.
    pub fn discard(&mut self, blocks: Range<u64>) {
        self.check(&blocks);
        for block in blocks {
            self.unreadable.remove(&block);
            if self.shape.volatile_cache {
                let fill = self.filled(block);
                self.cache.entry(block).or_default().push(fill);
            } else {
                self.medium.remove(&block);
            }
        }
    }

    /// The power fails: of each block that has unflushed writes any of them survives, or none.
    /// Answers how many blocks are not what they were.
    pub fn lose_power(&mut self, dice: &mut Dice) -> usize {
        let mut lost = 0;
        for (block, mut versions) in core::mem::take(&mut self.cache) {
            let survivor = dice.index(versions.len() + 1);
            lost += usize::from(survivor < versions.len());
            if survivor > 0 {
                self.medium.insert(block, versions.swap_remove(survivor - 1));
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
        let mut bytes = self.content(block).to_vec();
        let at = dice.index(bytes.len());
        bytes[at] ^= 1 << dice.below(8);
        let rotten = Buf::copy_from(&bytes);
        match self.cache.get_mut(&block).and_then(|versions| versions.last_mut()) {
            Some(newest) => *newest = rotten,
            None => drop(self.medium.insert(block, rotten)),
        }
    }

    /// Makes a block unreadable until it is written.
    ///
    /// # Panics
    /// When the block is not on the disk.
    pub fn spoil(&mut self, block: u64) {
        self.check(&(block..block + 1));
        self.unreadable.insert(block);
    }

    /// What is on the medium: without the cache.
    #[must_use]
    pub fn image(&self) -> Image {
        Image(self.medium.clone())
    }

    /// Puts an image back, as an administrator does with a disk from a shelf, or a snapshot.
    pub fn restore(&mut self, image: Image) {
        self.medium = image.0;
        self.cache.clear();
        self.unreadable.clear();
    }

    /// How many blocks have writes that a power failure may undo.
    #[must_use]
    pub fn unstable_blocks(&self) -> usize {
        self.cache.len()
    }

    fn write_some(
        &mut self,
        first: u64,
        data: &SgList,
        fua: bool,
        mut is_written: impl FnMut(u64) -> bool,
    ) {
        let len = self.shape.block_len as usize;
        assert_eq!(data.len() % len, 0, "a write of whole blocks");
        let blocks = first..first + (data.len() / len) as u64;
        self.check(&blocks);
        for (at, block) in blocks.enumerate() {
            if !is_written(block) {
                continue;
            }
            let bytes = data.slice(at * len..(at + 1) * len).to_contiguous();
            self.unreadable.remove(&block);
            if fua || !self.shape.volatile_cache {
                self.cache.remove(&block);
                self.medium.insert(block, bytes);
            } else {
                self.cache.entry(block).or_default().push(bytes);
            }
        }
    }

    fn content(&self, block: u64) -> Buf {
        let cached = self.cache.get(&block).and_then(|versions| versions.last());
        cached.or_else(|| self.medium.get(&block)).cloned().unwrap_or_else(|| self.filled(block))
    }

    fn filled(&self, block: u64) -> Buf {
        let mut bytes = vec![0; self.shape.block_len as usize];
        if let Fill::Old(seed) = self.shape.fill {
            rand::RngCore::fill_bytes(&mut Seed(seed.0 ^ block).dice("old bytes"), &mut bytes);
        }
        Buf::copy_from(&bytes)
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
