//! A batch: a head of one or more blocks, with the records, then the blocks that they carry.

use alloc::vec::Vec;

use netraid_block::narrow;
use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use super::{LOG_BLOCK_LEN, Position, Record};
use crate::label::{Uuid, crc32c};

/// Blocks of a batch at most.
pub const BATCH_BLOCKS_MAX: u32 = 256 + HEAD_BLOCKS_MAX;
/// Blocks of a head at most: a REMAP of the largest stripe fits.
pub const HEAD_BLOCKS_MAX: u32 = 32;

const MAGIC: [u8; 8] = *b"NRBATCH\n";
const VERSION: u16 = 1;
/// No array lives to write so much; a position beyond it is forged.
const POSITION_MAX: u64 = 1 << 60;

/// What makes batches of one array pass for nothing in another: its identity, and a secret that
/// no user of the volume knows, who could else write blocks that look like batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogKey {
    /// The array.
    pub array_uuid: Uuid,
    /// Random, drawn when the array was made.
    pub salt: u64,
}

/// What a batch follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Link {
    /// Where the batch before it ends.
    pub end: Position,
    /// The checksum of that batch's head.
    pub crc: u32,
}

/// A batch of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Who wrote it.
    pub generation: u64,
    /// Where it begins.
    pub position: Position,
    /// What it follows.
    pub previous: Link,
    /// Everything below this position is stable, with the stripes of its REMAPs.
    pub stable_upto: Position,
    /// Everything below this position was acknowledged.
    pub acked_upto: Position,
    /// What it says, in order.
    pub records: Vec<Record>,
}

/// Why bytes are no batch of this log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Nothing of this array stands here, or it is torn.
    #[error("no batch")]
    Absent,
    /// Written by another version.
    #[error("a batch has version {0}, this program knows {VERSION}; use a version that knows it")]
    Version(u16),
    /// A field with an impossible value, although the checksum matches.
    #[error("a batch's {0} is invalid")]
    Field(&'static str),
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U16,
    reserved: U16,
    crc: U32,
    array_uuid: Uuid,
    generation: U64,
    position: U64,
    previous_end: U64,
    previous_crc: U32,
    head_len: U32,
    stable_upto: U64,
    acked_upto: U64,
    record_count: U32,
    tail: [u8; 44],
}

pub(super) const RAW_LEN: usize = size_of::<Raw>();
const _: () = assert!(RAW_LEN == 128, "the fixed part of a head");

impl Batch {
    /// The head's bytes, whole blocks; the payload blocks follow it. And its checksum, for the
    /// batch that comes next.
    ///
    /// # Panics
    /// When the batch breaks its own limits.
    #[must_use]
    pub fn encode(&self, key: &LogKey) -> (Vec<u8>, u32) {
        let mut raw = Raw::new_zeroed();
        raw.magic = MAGIC;
        raw.version = VERSION.into();
        raw.array_uuid = key.array_uuid;
        raw.generation = self.generation.into();
        raw.position = self.position.0.into();
        raw.previous_end = self.previous.end.0.into();
        raw.previous_crc = self.previous.crc.into();
        raw.stable_upto = self.stable_upto.0.into();
        raw.acked_upto = self.acked_upto.0.into();
        raw.record_count = narrow::<_, u32>(self.records.len()).into();
        let mut bytes = raw.as_bytes().to_vec();
        self.records.iter().for_each(|record| record.encode(&mut bytes));
        let len: u32 = narrow(bytes.len());
        bytes[HEAD_LEN_AT..HEAD_LEN_AT + 4].copy_from_slice(&len.to_le_bytes());
        let blocks = len.div_ceil(LOG_BLOCK_LEN);
        assert!(blocks <= HEAD_BLOCKS_MAX, "a head of {blocks} blocks");
        assert!(self.position.0 <= POSITION_MAX, "position {}", self.position);
        bytes.resize((blocks * LOG_BLOCK_LEN) as usize, 0);
        let crc = checksum(&bytes, key);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        (bytes, crc)
    }

    /// Reads the head of the batch that begins at `position`; [`head_blocks`] says how much of
    /// it there is. And its checksum. Payload is not looked at.
    ///
    /// # Errors
    /// When the bytes are no batch of that array at that position.
    pub fn decode(
        bytes: &[u8],
        position: Position,
        key: &LogKey,
    ) -> Result<(Self, u32), BatchError> {
        if head_blocks(bytes, position, key)? as usize * LOG_BLOCK_LEN as usize != bytes.len() {
            return Err(BatchError::Absent);
        }
        let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| BatchError::Absent)?;
        if raw.crc.get() != checksum(bytes, key) {
            return Err(BatchError::Absent);
        }
        if raw.version.get() != VERSION {
            return Err(BatchError::Version(raw.version.get()));
        }
        let mut rest = &bytes[RAW_LEN..raw.head_len.get() as usize];
        // The count is checked by what is there: each record takes bytes.
        let mut records = Vec::new();
        for _ in 0..raw.record_count.get() {
            records.push(Record::decode(&mut rest)?);
        }
        if !rest.is_empty() {
            return Err(BatchError::Field("record count"));
        }
        let batch = Self {
            generation: raw.generation.get(),
            position,
            previous: Link { end: Position(raw.previous_end.get()), crc: raw.previous_crc.get() },
            stable_upto: Position(raw.stable_upto.get()),
            acked_upto: Position(raw.acked_upto.get()),
            records,
        };
        batch.check()?;
        Ok((batch, raw.crc.get()))
    }

    /// Blocks of the head and the payload.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.head_blocks() + self.records.iter().map(Record::payload_blocks).sum::<u32>()
    }

    /// Where it ends, and the next may begin.
    #[must_use]
    pub fn end(&self) -> Position {
        self.position.after(self.blocks())
    }

    /// The records, each with the position of its first block of payload; of one without payload,
    /// that of the block before: so each is within the batch, and a record's position is higher
    /// than that of all before it, or the same.
    pub fn records_at(&self) -> impl Iterator<Item = (Position, &Record)> {
        let mut at = self.position.after(self.head_blocks());
        self.records.iter().map(move |record| {
            let blocks = record.payload_blocks();
            let here = if blocks == 0 { Position(at.0 - 1) } else { at };
            at = at.after(blocks);
            (here, record)
        })
    }

    fn head_blocks(&self) -> u32 {
        let len: usize = self.records.iter().map(Record::encoded_len).sum();
        narrow::<_, u32>(RAW_LEN + len).div_ceil(LOG_BLOCK_LEN)
    }

    fn check(&self) -> Result<(), BatchError> {
        let payload: u64 = self.records.iter().map(|one| u64::from(one.payload_blocks())).sum();
        if payload > u64::from(BATCH_BLOCKS_MAX) {
            return Err(BatchError::Field("length"));
        }
        let ordered = self.stable_upto <= self.acked_upto
            && self.acked_upto <= self.previous.end
            && self.previous.end <= self.position;
        if ordered { Ok(()) } else { Err(BatchError::Field("positions")) }
    }
}

/// How many blocks the head of the batch at `position` has, from the first of them. The answer
/// is only to be trusted when [`Batch::decode`] succeeds with them.
///
/// # Errors
/// When no batch of that array begins there.
pub fn head_blocks(first: &[u8], position: Position, key: &LogKey) -> Result<u32, BatchError> {
    let (raw, _) = Raw::read_from_prefix(first).map_err(|_| BatchError::Absent)?;
    let is_here = raw.magic == MAGIC
        && raw.array_uuid == key.array_uuid
        && raw.position.get() == position.0
        && position.0 <= POSITION_MAX;
    let blocks = raw.head_len.get().div_ceil(LOG_BLOCK_LEN);
    let fits = raw.head_len.get() as usize >= RAW_LEN && blocks <= HEAD_BLOCKS_MAX;
    if is_here && fits { Ok(blocks) } else { Err(BatchError::Absent) }
}

const CRC_AT: usize = core::mem::offset_of!(Raw, crc);
const HEAD_LEN_AT: usize = core::mem::offset_of!(Raw, head_len);

fn checksum(head: &[u8], key: &LogKey) -> u32 {
    crc32c(key.salt, &[&head[..CRC_AT], &[0; 4], &head[CRC_AT + 4..]])
}
