//! Records: what a batch says. Each is encoded as a fixed part and, for some, a list.

use alloc::vec::Vec;

use netraid_block::narrow;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use super::{
    LOG_BLOCK_LEN, Position,
    batch::{BatchError, RAW_LEN},
};

/// Columns of a row at most; a list is never longer than what an array can have.
const COLUMNS_MAX: u16 = 64;
/// Rows of a stripe at most: chunks of 16 MiB.
const ROWS_MAX: u16 = 4096;
/// Checksums in a REMAP at most: a stripe of 64 chunks of 1 MiB.
pub const REMAP_SUMS_MAX: u32 = 64 << 8;
/// REMAPs that one OPEN drops at most: what its head has room for. A recovery that drops more
/// writes several.
pub const DROPPED_MAX: u32 = 8000;

/// What a batch says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// New contents of a block of the volume; they are in the batch's payload.
    Data {
        /// Which block, in 4 KiB.
        block: u64,
        /// CRC32C of the contents.
        crc: u32,
    },
    /// Blocks of the volume that are zeros now.
    Zeroes {
        /// The first, in 4 KiB.
        block: u64,
        /// How many.
        count: u64,
    },
    /// What a row of a physical stripe becomes; its new check blocks are in the payload.
    Parity {
        /// The physical stripe.
        stripe: u64,
        /// The row, in 4 KiB from the beginning of the chunks.
        row: u32,
        /// The round that it belongs to.
        round: u32,
        /// CRC32C of each check block.
        checks: Vec<u32>,
        /// The data blocks that change.
        basis: Vec<Basis>,
    },
    /// A logical stripe is elsewhere now.
    Remap {
        /// The logical stripe.
        stripe: u64,
        /// Its physical stripe; none when it was given back.
        to: Option<u64>,
        /// DATA of the stripe below this position are void.
        void_upto: Position,
        /// Which rows hold anything, in 4 KiB; the others read as zeros. None if `to` is none.
        written: Vec<bool>,
        /// CRC32C of every 4 KiB of those rows, column after column, check columns last.
        sums: Vec<u32>,
    },
    /// A generation begins: the first batch that it wrote.
    Open {
        /// REMAPs that do not count, by the position of their batch and their logical stripe.
        dropped: Vec<(Position, u64)>,
    },
}

/// A data block that a PARITY record contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Basis {
    /// Its data column.
    pub column: u8,
    /// CRC32C of its new contents.
    pub crc: u32,
    /// Where the log says so; none for a block that no user wrote, in a row's first contents.
    pub position: Option<Position>,
    /// These contents are zeros, and nowhere in the log.
    pub zeroes: bool,
}

impl Record {
    /// Blocks of payload.
    ///
    /// # Panics
    /// When there are more check blocks than a level has.
    #[must_use]
    pub fn payload_blocks(&self) -> u32 {
        match self {
            Self::Data { .. } => 1,
            Self::Parity { checks, .. } => u32::from(count(checks.len(), COLUMNS_MAX)),
            Self::Zeroes { .. } | Self::Remap { .. } | Self::Open { .. } => 0,
        }
    }

    /// The REMAPs that an OPEN drops; none of any other record.
    #[must_use]
    pub fn dropped(&self) -> Option<&[(Position, u64)]> {
        match self {
            Self::Open { dropped } => Some(dropped),
            Self::Data { .. } | Self::Zeroes { .. } | Self::Parity { .. } | Self::Remap { .. } => {
                None
            }
        }
    }

    /// Bytes in the head.
    pub(super) fn encoded_len(&self) -> usize {
        match self {
            Self::Data { .. } => size_of::<RawData>(),
            Self::Zeroes { .. } => size_of::<RawZeroes>(),
            Self::Parity { checks, basis, .. } => {
                size_of::<RawParity>() + checks.len() * 4 + basis.len() * size_of::<RawBasis>()
            }
            Self::Remap { written, sums, .. } => {
                size_of::<RawRemap>() + bitmap_len(written.len()) + sums.len() * 4
            }
            Self::Open { dropped } => size_of::<RawOpen>() + dropped.len() * 16,
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Data { block, crc } => put(
                out,
                &RawData {
                    tag: DATA.into(),
                    reserved: 0.into(),
                    crc: (*crc).into(),
                    block: (*block).into(),
                },
            ),
            Self::Zeroes { block, count } => put(
                out,
                &RawZeroes {
                    tag: ZEROES.into(),
                    reserved: [0; 6],
                    block: (*block).into(),
                    count: (*count).into(),
                },
            ),
            Self::Parity { stripe, row, round, checks, basis } => {
                put(
                    out,
                    &RawParity {
                        tag: PARITY.into(),
                        checks: count(checks.len(), COLUMNS_MAX).into(),
                        basis: count(basis.len(), COLUMNS_MAX).into(),
                        reserved: 0.into(),
                        row: (*row).into(),
                        round: (*round).into(),
                        stripe: (*stripe).into(),
                    },
                );
                checks.iter().for_each(|crc| put(out, &U32::from(*crc)));
                basis.iter().for_each(|one| put(out, &RawBasis::from(*one)));
            }
            Self::Remap { stripe, to, void_upto, written, sums } => {
                assert!(sums.len() <= REMAP_SUMS_MAX as usize, "checksums of one stripe");
                put(
                    out,
                    &RawRemap {
                        tag: REMAP.into(),
                        rows: count(written.len(), ROWS_MAX).into(),
                        sums: narrow::<_, u32>(sums.len()).into(),
                        stripe: (*stripe).into(),
                        to: plus_one(*to).into(),
                        void_upto: void_upto.0.into(),
                    },
                );
                let mut bits = alloc::vec![0_u8; bitmap_len(written.len())];
                for (row, _) in written.iter().enumerate().filter(|(_, written)| **written) {
                    bits[row / 8] |= 1 << (row % 8);
                }
                put(out, bits.as_slice());
                sums.iter().for_each(|crc| put(out, &U32::from(*crc)));
            }
            Self::Open { dropped } => {
                assert!(dropped.len() <= DROPPED_MAX as usize, "REMAPs dropped at once");
                put(
                    out,
                    &RawOpen {
                        tag: OPEN.into(),
                        reserved: 0.into(),
                        dropped: narrow::<_, u32>(dropped.len()).into(),
                    },
                );
                for (position, stripe) in dropped {
                    put(out, &[U64::from(position.0), U64::from(*stripe)]);
                }
            }
        }
    }

    /// Takes one record off the front of `bytes`.
    pub(super) fn decode(bytes: &mut &[u8]) -> Result<Self, BatchError> {
        let (tag, _) = U16::read_from_prefix(bytes).map_err(|_| BatchError::Field("records"))?;
        match tag.get() {
            DATA => {
                let raw: RawData = take(bytes)?;
                Ok(Self::Data { block: raw.block.get(), crc: raw.crc.get() })
            }
            ZEROES => {
                let raw: RawZeroes = take(bytes)?;
                Ok(Self::Zeroes { block: raw.block.get(), count: raw.count.get() })
            }
            PARITY => {
                let raw: RawParity = take(bytes)?;
                let checks = list(bytes, raw.checks.get().into(), COLUMNS_MAX.into())?;
                let basis = list(bytes, raw.basis.get().into(), COLUMNS_MAX.into())?;
                Ok(Self::Parity {
                    stripe: raw.stripe.get(),
                    row: raw.row.get(),
                    round: raw.round.get(),
                    checks: checks.into_iter().map(U32::get).collect(),
                    basis: basis.into_iter().map(|one: RawBasis| one.into()).collect(),
                })
            }
            REMAP => {
                let raw: RawRemap = take(bytes)?;
                let rows = usize::from(raw.rows.get());
                let bits: Vec<u8> = match u32::try_from(bitmap_len(rows)) {
                    Ok(len) => list(bytes, len, u32::from(ROWS_MAX))?,
                    Err(_) => return Err(BatchError::Field("rows of a stripe")),
                };
                let sums = list(bytes, raw.sums.get(), REMAP_SUMS_MAX)?;
                Ok(Self::Remap {
                    stripe: raw.stripe.get(),
                    to: raw.to.get().checked_sub(1),
                    void_upto: Position(raw.void_upto.get()),
                    written: (0..rows).map(|row| bits[row / 8] >> (row % 8) & 1 == 1).collect(),
                    sums: sums.into_iter().map(U32::get).collect(),
                })
            }
            OPEN => {
                let raw: RawOpen = take(bytes)?;
                let dropped = list(bytes, raw.dropped.get(), DROPPED_MAX)?;
                let pair = |[position, stripe]: [U64; 2]| (Position(position.get()), stripe.get());
                Ok(Self::Open { dropped: dropped.into_iter().map(pair).collect() })
            }
            _ => Err(BatchError::Field("record tag")),
        }
    }
}

const DATA: u16 = 1;
const ZEROES: u16 = 2;
const PARITY: u16 = 3;
const REMAP: u16 = 4;
const OPEN: u16 = 5;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawData {
    tag: U16,
    reserved: U16,
    crc: U32,
    block: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawZeroes {
    tag: U16,
    reserved: [u8; 6],
    block: U64,
    count: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawParity {
    tag: U16,
    checks: U16,
    basis: U16,
    reserved: U16,
    row: U32,
    round: U32,
    stripe: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawBasis {
    column: u8,
    zeroes: u8,
    reserved: [u8; 2],
    crc: U32,
    /// One more than the position; 0 for none.
    position: U64,
}

impl From<Basis> for RawBasis {
    fn from(basis: Basis) -> Self {
        let position = plus_one(basis.position.map(|position| position.0)).into();
        Self {
            column: basis.column,
            zeroes: basis.zeroes.into(),
            reserved: [0; 2],
            crc: basis.crc.into(),
            position,
        }
    }
}

impl From<RawBasis> for Basis {
    fn from(raw: RawBasis) -> Self {
        let position = raw.position.get().checked_sub(1).map(Position);
        Self { column: raw.column, crc: raw.crc.get(), position, zeroes: raw.zeroes != 0 }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRemap {
    tag: U16,
    rows: U16,
    sums: U32,
    stripe: U64,
    /// One more than the physical stripe; 0 for none.
    to: U64,
    void_upto: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawOpen {
    tag: U16,
    reserved: U16,
    dropped: U32,
}

/// Blocks of a batch that has nothing but a REMAP of so many rows and checksums.
#[must_use]
pub fn remap_blocks(rows: u32, sums: u32) -> u32 {
    let head = RAW_LEN + size_of::<RawRemap>() + bitmap_len(rows as usize) + sums as usize * 4;
    narrow::<_, u32>(head).div_ceil(LOG_BLOCK_LEN)
}

/// Bytes of a bitmap of so many bits.
const fn bitmap_len(bits: usize) -> usize {
    bits.div_ceil(64) * 8
}

/// Numbers that may be absent stand as one more; no volume has 2^64 - 1 of anything.
const fn plus_one(number: Option<u64>) -> u64 {
    match number {
        Some(number) => number + 1,
        None => 0,
    }
}

fn count(len: usize, max: u16) -> u16 {
    assert!(len <= usize::from(max), "a list of {len}, at most {max}");
    narrow(len)
}

fn put(out: &mut Vec<u8>, raw: &(impl IntoBytes + Immutable + ?Sized)) {
    out.extend_from_slice(raw.as_bytes());
}

fn take<T: FromBytes>(bytes: &mut &[u8]) -> Result<T, BatchError> {
    let (raw, rest) = T::read_from_prefix(bytes).map_err(|_| BatchError::Field("records"))?;
    *bytes = rest;
    Ok(raw)
}

/// A list that is as long as it says, and no longer than anything that was ever written.
fn list<T: FromBytes>(bytes: &mut &[u8], count: u32, max: u32) -> Result<Vec<T>, BatchError> {
    if count > max || count as usize * size_of::<T>() > bytes.len() {
        return Err(BatchError::Field("record list"));
    }
    (0..count).map(|_| take(bytes)).collect()
}
