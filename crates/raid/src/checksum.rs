//! What an array's blocks are checked by: the one place that gives and judges their checksums, at home and in the
//! log.
//!
//! Invariant: the array's machine asks this module whether bytes of a block are right, and names the block; no other
//! module computes a checksum of contents. The machine asks for the zeros that it writes by itself, too.
//!
//! The kind of today is CRC32C of the bytes alone, so that a block has one checksum wherever it is. A keyed kind, to
//! come, binds a checksum to the array, the physical stripe, the row and the column; then a block that goes home
//! from the log gets another one there. Labels, pages and records have their own checksums, which are always CRC32C:
//! they are no contents of the volume.

use alloc::vec::Vec;

use netraid_block::{Pool, SgList};
use smallvec::SmallVec;

use crate::{bytes, code::Code};

/// A kind of checksums; the label says which one an array has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChecksumKind {
    /// CRC32C (Castagnoli) of the block's 4096 bytes.
    Crc32c,
}

/// Where blocks are at home: of one column, from a row on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Home {
    /// The physical stripe.
    pub physical: u32,
    /// The first row, in 4 KiB from the beginning of the chunks.
    pub row: u32,
    /// The column; check columns are behind the data columns.
    pub column: u8,
}

impl ChecksumKind {
    /// Its number in the label.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Crc32c => 0,
        }
    }

    /// The kind of that number, if there is one.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Crc32c),
            _ => None,
        }
    }

    /// The checksum of a block of 4 KiB at its home.
    ///
    /// # Panics
    /// When it has another length.
    #[must_use]
    pub fn at_home(self, _home: Home, block: &[u8]) -> u32 {
        match self {
            Self::Crc32c => bytes::sum(block),
        }
    }

    /// The checksums of all blocks of `data`, which follow each other from `first` on in one column.
    ///
    /// # Panics
    /// When it has no whole number of blocks.
    #[must_use]
    pub fn of_column(self, _first: Home, data: &SgList) -> SmallVec<[u32; 16]> {
        match self {
            Self::Crc32c => bytes::sums(data),
        }
    }

    /// The checksum of zeros at their home.
    #[must_use]
    pub const fn of_zeroes(self, _home: Home) -> u32 {
        match self {
            Self::Crc32c => bytes::zero_sum(),
        }
    }

    /// Zeros as they stand at their home, `blocks` of them from `first` on: users read zeros there.
    #[must_use]
    pub fn zeroes(self, _first: Home, blocks: u32) -> SgList {
        match self {
            Self::Crc32c => bytes::zeroes(blocks as usize * bytes::BLOCK_LEN),
        }
    }

    /// The checksum that a block of the volume, `block` in 4 KiB, has in a record of the log.
    ///
    /// # Panics
    /// When `data` has another length.
    #[must_use]
    pub fn in_log(self, _block: u64, data: &[u8]) -> u32 {
        match self {
            Self::Crc32c => bytes::sum(data),
        }
    }

    /// The same of a block that the log says is zeros.
    #[must_use]
    pub const fn zeroes_in_log(self, _block: u64) -> u32 {
        match self {
            Self::Crc32c => bytes::zero_sum(),
        }
    }

    /// The checksum at its home of a block that has checksum `in_log` in the log; at the home of a copy, too. A kind
    /// that binds checksums to their home has records of mirrors carry those of the copies.
    #[must_use]
    pub const fn brought_home(self, _home: Home, in_log: u32) -> u32 {
        match self {
            Self::Crc32c => in_log,
        }
    }

    /// The check columns of the rows of a physical stripe that are `written`, whose data columns `data` has, and the
    /// checksums of all of their blocks: of the first column, then of the next.
    ///
    /// # Panics
    /// As [`bytes::checks_and_sums`].
    #[must_use]
    pub fn of_rows(
        self,
        pool: &Pool,
        code: &Code,
        _rows: (u32, &[bool]),
        data: &[SgList],
    ) -> (SmallVec<[SgList; 2]>, Vec<u32>) {
        match self {
            Self::Crc32c => bytes::checks_and_sums(pool, code, data),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_have_the_checksum_of_a_block_of_zeros_wherever_they_are() {
        let kind = ChecksumKind::Crc32c;
        let home = Home { physical: 3, row: 1, column: 2 };
        let zeroes = [0; bytes::BLOCK_LEN];
        assert_eq!(kind.of_zeroes(home), kind.at_home(home, &zeroes));
        assert_eq!(kind.zeroes_in_log(7), kind.in_log(7, &zeroes));
        let column = kind.zeroes(home, 3);
        assert_eq!(kind.of_column(home, &column).as_slice(), [kind.of_zeroes(home); 3]);
    }

    #[test]
    fn a_kind_is_found_by_its_number_and_no_other_number_is_a_kind() {
        let kinds: Vec<ChecksumKind> =
            (0..=u8::MAX).filter_map(ChecksumKind::from_number).collect();
        assert_eq!(kinds, [ChecksumKind::Crc32c]);
        assert_eq!(ChecksumKind::from_number(kinds[0].number()), Some(kinds[0]));
    }
}
