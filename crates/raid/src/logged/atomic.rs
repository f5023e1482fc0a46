//! One write of several ranges, of which a crash leaves all or nothing: all of it is in one batch of the log, and a
//! batch counts whole or not at all.
//!
//! Such a write holds the locks of several stripes, and asks for them in ascending order. Every other operation holds
//! one lock of a stripe at a time, so operations do not wait for each other in a circle.

use alloc::{boxed::Box, collections::BTreeMap, vec::Vec};
use core::ops::Range;

use netraid_block::{IoError, SgList, narrow};

use super::{
    LoggedArray, RequestId,
    locks::Purpose,
    state::{BLOCK, Life, State},
    tasks::Array,
};
use crate::bytes;

/// Blocks of 4 KiB of an atomic write at most, in an array whose log is not a short one.
pub const ATOMIC_BLOCKS_MAX: u32 = 128;

/// Several ranges of the volume, each with its new contents, that are written at once.
#[derive(Debug, Clone)]
pub struct AtomicWrite {
    /// By first block.
    blocks: BTreeMap<u64, SgList>,
    fua: bool,
}

/// Why ranges cannot be written at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AtomicWriteError {
    /// There is nothing to write, or a range of no length.
    #[error("a write of several ranges has an empty range at {0}; leave it out")]
    Empty(u64),
    /// A range is not of whole blocks.
    #[error(
        "{len} bytes at {offset} are no whole blocks of 4096 bytes, of which a write of several ranges is made"
    )]
    Unaligned {
        /// First byte of the volume.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// A range ends behind the volume.
    #[error("{len} bytes at {offset} end behind the volume of {capacity} bytes")]
    OutOfRange {
        /// First byte of the volume.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Bytes of the volume.
        capacity: u64,
    },
    /// Two ranges have a block in common.
    #[error("two ranges of one write have the block at {0}; give each block once")]
    Overlap(u64),
    /// There are more blocks than one batch of the log may have.
    #[error("a write of {blocks} blocks of 4096 bytes at once; at most {max} in this array")]
    TooLong {
        /// Blocks of all ranges.
        blocks: u64,
        /// Most.
        max: u32,
    },
}

impl AtomicWrite {
    /// Ranges by their first byte, with their contents, for a volume of `capacity` bytes whose array takes `max`
    /// blocks at once. With `fua` the write is stable when it is completed.
    ///
    /// # Errors
    /// When these ranges cannot be written at once.
    pub fn new(
        ranges: Vec<(u64, SgList)>,
        fua: bool,
        capacity: u64,
        max: u32,
    ) -> Result<Self, AtomicWriteError> {
        let block = u64::from(BLOCK);
        if ranges.is_empty() {
            return Err(AtomicWriteError::Empty(0));
        }
        let mut blocks = BTreeMap::new();
        for (offset, data) in ranges {
            let len = data.len() as u64;
            if len == 0 {
                return Err(AtomicWriteError::Empty(offset));
            }
            if !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
                return Err(AtomicWriteError::Unaligned { offset, len });
            }
            if offset.checked_add(len).is_none_or(|end| end > capacity) {
                return Err(AtomicWriteError::OutOfRange { offset, len, capacity });
            }
            if blocks.insert(offset / block, data).is_some() {
                return Err(AtomicWriteError::Overlap(offset));
            }
        }
        let write = Self { blocks, fua };
        let ranges = || write.ranges();
        if let Some((_, next)) =
            ranges().zip(ranges().skip(1)).find(|(one, next)| one.end > next.start)
        {
            return Err(AtomicWriteError::Overlap(next.start * block));
        }
        let blocks = write.len();
        if blocks > u64::from(max) {
            return Err(AtomicWriteError::TooLong { blocks, max });
        }
        Ok(write)
    }

    /// Ranges of blocks of the volume, in 4 KiB, ascending.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let blocks = |data: &SgList| data.len() as u64 / u64::from(BLOCK);
        self.blocks.iter().map(move |(first, data)| *first..*first + blocks(data))
    }

    /// The ranges in bytes of the volume, ascending.
    pub(crate) fn ranges_of_bytes(&self) -> impl Iterator<Item = Range<u64>> {
        let block = u64::from(BLOCK);
        self.ranges().map(move |range| range.start * block..range.end * block)
    }

    /// Blocks of all ranges, in 4 KiB.
    fn len(&self) -> u64 {
        self.ranges().map(|range| range.end - range.start).sum()
    }

    /// Bytes of all ranges.
    pub(crate) fn data_len(&self) -> u64 {
        self.len() * u64::from(BLOCK)
    }

    /// The range of bytes from the first block to the last.
    #[must_use]
    pub fn span(&self) -> Range<u64> {
        let (first, last) = (self.ranges().next(), self.ranges().last());
        let blocks = first.map_or(0, |range| range.start)..last.map_or(0, |range| range.end);
        blocks.start * u64::from(BLOCK)..blocks.end * u64::from(BLOCK)
    }
}

impl LoggedArray {
    /// Blocks of 4 KiB that may be written at once, in several ranges: as many as a batch of the log is sure to
    /// have room for.
    #[must_use]
    pub fn atomic_blocks_max(&self) -> u32 {
        self.array.state().atomic_blocks_max()
    }

    /// Takes a user's write of several ranges. When it is completed, all of it is written; after a crash all of it
    /// is, or nothing.
    ///
    /// # Panics
    /// When the number is in use, the write was made for another volume, or the array is not open.
    pub fn handle_atomic_write(&mut self, id: RequestId, write: AtomicWrite) {
        {
            let mut state = self.array.state();
            assert!(write.span().end <= state.capacity(), "request out of range");
            assert!(
                write.len() <= state.atomic_blocks_max().into(),
                "{} blocks at once",
                write.len()
            );
            if let Some(error) = state.failed.clone() {
                state
                    .completed
                    .push_back(super::Action::Complete { request: id, result: Err(error) });
                return;
            }
            assert_eq!(state.life, Life::Open, "request to an array that is not open");
            assert!(state.requests.insert(id), "request number in use");
        }
        let array = self.array.clone();
        self.tasks.push(Box::pin(array.serve_atomic(id, write)));
        self.input = true;
    }
}

impl State {
    fn atomic_blocks_max(&self) -> u32 {
        let dirty = self.layout.limits.dirty_blocks / 2;
        self.piece_blocks().min(ATOMIC_BLOCKS_MAX).min(u32::try_from(dirty).unwrap_or(u32::MAX))
    }
}

impl Array {
    async fn serve_atomic(self, id: RequestId, write: AtomicWrite) {
        let operation = self.operation();
        let result = self.write_atomic(&write).await;
        if result.is_ok() && write.fua {
            self.flush().await;
        }
        drop(operation);
        self.state().complete(id, result.map(|()| SgList::new()));
    }

    async fn write_atomic(&self, write: &AtomicWrite) -> Result<(), IoError> {
        let stripes = self.state().stripes_of(write);
        let per_stripe = u64::from(self.state().layout.stripe_blocks());
        for block in write.ranges().flatten() {
            let at: u32 = narrow(block % per_stripe);
            self.check_space(narrow(block / per_stripe), at..at + 1)?;
        }
        let mut room = self.room(write.len(), 0).await?;
        let mut locks = Vec::with_capacity(stripes.len());
        for (logical, blocks) in stripes {
            locks.push(self.lock(logical, Purpose::Write(blocks)).await);
        }
        let checksum = self.state().layout.checksum;
        let mut contents = Vec::new();
        for (first, data) in &write.blocks {
            for at in 0..data.len() / BLOCK as usize {
                let (block, data) = (first + at as u64, bytes::block(data, at));
                contents.push((block, checksum.in_log(block, &data), data));
            }
        }
        for ticket in self.log_data_at_once(&mut room, contents) {
            ticket.answer().await?;
        }
        Ok(())
    }
}

impl State {
    /// The stripes that a write changes, ascending, each with the blocks of it from the first to the last.
    fn stripes_of(&self, write: &AtomicWrite) -> BTreeMap<u32, Range<u32>> {
        let per_stripe = u64::from(self.layout.stripe_blocks());
        let mut stripes: BTreeMap<u32, Range<u32>> = BTreeMap::new();
        for block in write.ranges().flatten() {
            let (logical, at) = (narrow(block / per_stripe), narrow(block % per_stripe));
            let range = stripes.entry(logical).or_insert(at..at);
            range.end = at + 1;
        }
        stripes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK_LEN: u64 = BLOCK as u64;

    fn write(ranges: &[(u64, u64)]) -> Result<AtomicWrite, AtomicWriteError> {
        let ranges = ranges.iter().map(|(offset, len)| (*offset, SgList::zeroes(narrow(*len))));
        AtomicWrite::new(ranges.collect(), false, 100 * BLOCK_LEN, 8)
    }

    #[test]
    fn ranges_are_whole_blocks_of_the_volume_each_once_and_not_too_many() {
        let (one, len) = (BLOCK_LEN, 100 * BLOCK_LEN);
        let good = write(&[(99 * one, one), (0, 3 * one), (3 * one, one)]).unwrap();
        assert_eq!(good.ranges().collect::<Vec<_>>(), [0..3, 3..4, 99..100]);
        assert_eq!((good.len(), good.span()), (5, 0..len));
        let errors = [
            (&[][..], AtomicWriteError::Empty(0)),
            (&[(0, one), (8 * one, 0)], AtomicWriteError::Empty(8 * one)),
            (&[(512, one)], AtomicWriteError::Unaligned { offset: 512, len: one }),
            (&[(0, 512)], AtomicWriteError::Unaligned { offset: 0, len: 512 }),
            (&[(0, one), (0, one)], AtomicWriteError::Overlap(0)),
            (&[(one, one), (0, 2 * one)], AtomicWriteError::Overlap(one)),
            (&[(0, 5 * one), (9 * one, 4 * one)], AtomicWriteError::TooLong { blocks: 9, max: 8 }),
        ];
        for (ranges, error) in errors {
            assert_eq!(write(ranges).unwrap_err(), error);
        }
        for offset in [len, u64::MAX / one * one] {
            let error = AtomicWriteError::OutOfRange { offset, len: one, capacity: len };
            assert_eq!(write(&[(offset, one)]).unwrap_err(), error);
        }
    }
}
