//! The log: batches of records in a ring that all members have alike. What they mean stands in
//! docs/decisions/0008-log-rounds-and-map.md, their bytes in docs/formats/log.md.
//!
//! A position counts blocks of 4 KiB since the array was made and never falls; what is at
//! position p stands at p modulo the ring's length on each member that has a copy. Invariant: a
//! batch that decodes is the one that was written at that position, in that array.
//!
//! Does not do: choose members, wait for writes, or decide what counts after a crash.

mod batch;
mod bounds;
mod record;
mod walk;
mod writer;

use netraid_block::narrow;

pub use batch::{BATCH_BLOCKS_MAX, Batch, BatchError, HEAD_BLOCKS_MAX, Link, LogKey, head_blocks};
pub use bounds::Bounds;
pub use record::{Basis, DROPPED_MAX, REMAP_SUMS_MAX, Record, remap_blocks};
pub use walk::{Begin, Beginnings, Walk};
pub use writer::{Acked, BATCHES_IN_FLIGHT_MAX, BatchWrite, LogWriter, segment};

/// Bytes of a block of the log, which is also the block of the volume that it protects.
pub const LOG_BLOCK_LEN: u32 = 4096;
/// Blocks of the volume that one request puts into the log at most: larger ones are cut.
pub const LOGGED_BLOCKS_MAX: u32 = 256;

/// A place in the log, in blocks since the array was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position(pub u64);

impl Position {
    /// The position `blocks` further on.
    #[must_use]
    pub const fn after(self, blocks: u32) -> Self {
        Self(self.0 + blocks as u64)
    }
}

impl core::fmt::Display for Position {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.fmt(f)
    }
}

/// Batches of the largest size that fit into a ring at least.
pub const BATCHES_PER_RING_MIN: u64 = 4;
/// What a batch may have in the smallest ring: a row's two check blocks, and what says so.
const BATCH_BLOCKS_MIN: u32 = 4;

/// The ring's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ring {
    blocks: u64,
}

impl Ring {
    /// A ring of so many blocks.
    ///
    /// # Panics
    /// When not even the smallest batches fit.
    #[must_use]
    pub const fn new(blocks: u64) -> Self {
        assert!(blocks >= BATCHES_PER_RING_MIN * BATCH_BLOCKS_MIN as u64, "a ring of few blocks");
        Self { blocks }
    }

    /// Blocks of a batch at most, so that a few batches fit into any ring.
    #[must_use]
    pub fn batch_blocks_max(self) -> u32 {
        let quarter = self.blocks / BATCHES_PER_RING_MIN;
        // Clamped first: the longest rings have more blocks.
        narrow(quarter.clamp(BATCH_BLOCKS_MIN.into(), BATCH_BLOCKS_MAX.into()))
    }

    /// Blocks that users' writes do not get: each recovery appends an OPEN, and several may follow
    /// each other before a round can move the tail.
    #[must_use]
    pub fn open_blocks(self) -> u64 {
        (self.blocks / 8).clamp(8, 64)
    }

    /// Blocks that users' writes have room for in a log that holds nothing, wherever it begins: one batch may leave less
    /// than its length unused before the ring's end.
    #[must_use]
    pub fn room_when_empty(self) -> u64 {
        let unused = u64::from(self.batch_blocks_max()) - 1;
        self.blocks.saturating_sub(unused + self.open_blocks())
    }

    /// Number of blocks.
    #[must_use]
    pub const fn blocks(self) -> u64 {
        self.blocks
    }

    /// First byte of `position`, from the beginning of the log's region.
    #[must_use]
    pub const fn offset(self, position: Position) -> u64 {
        position.0 % self.blocks * LOG_BLOCK_LEN as u64
    }

    /// Where a batch of `blocks` begins that follows what ends at `end`: there, or at the ring's
    /// next turn, because no batch is cut in two.
    ///
    /// # Panics
    /// When the batch is longer than the ring.
    #[must_use]
    pub const fn place(self, end: Position, blocks: u32) -> Position {
        assert!(blocks as u64 <= self.blocks, "a batch longer than the ring");
        let left = self.blocks - end.0 % self.blocks;
        if left >= blocks as u64 { end } else { self.turn(end) }
    }

    /// The first position at or after `end` that stands at the ring's beginning.
    #[must_use]
    pub const fn turn(self, end: Position) -> Position {
        Position(end.0.div_ceil(self.blocks) * self.blocks)
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod ring_tests {
    use super::*;

    #[test]
    fn a_batch_is_never_cut_at_the_end_of_the_ring() {
        let ring = Ring::new(20);
        let place = |end, blocks| ring.place(Position(end), blocks).0;
        assert_eq!([place(0, 20), place(17, 3), place(17, 4), place(40, 1)], [0, 17, 20, 40]);
        assert_eq!([0, 1, 20, 39].map(|end| ring.turn(Position(end)).0), [0, 20, 20, 40]);
        assert_eq!(ring.offset(Position(43)), 3 * 4096);
    }

    #[test]
    fn the_largest_batch_follows_from_the_ring() {
        let largest = [16, 19, 20, 64, 1151, 1152, 1 << 16, 1 << 34].map(|ring| {
            let max = Ring::new(ring).batch_blocks_max();
            assert!(u64::from(max) * BATCHES_PER_RING_MIN <= ring);
            max
        });
        assert_eq!(largest, [4, 4, 5, 16, 287, 288, 288, 288]);
    }
}
