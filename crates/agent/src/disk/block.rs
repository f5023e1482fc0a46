//! The blocks of which an agent's notes on its disk are made: 4096 bytes each, that say what they are, where they
//! belong and on which disk, with a checksum (docs/formats/agent-disk.md). No input or output.
//!
//! Invariant: what [`open`] gives out was sealed for this place of this disk.

/// Bytes of a block.
pub(super) const BLOCK_LEN: usize = 4096;
/// Bytes in front of its payload.
const HEAD_LEN: usize = 64;
/// Bytes of its payload.
pub(super) const PAYLOAD_LEN: usize = BLOCK_LEN - HEAD_LEN;

const MAGIC: [u8; 8] = *b"NRDISK\n\0";
const VERSION: u16 = 1;
/// Where the checksum is, which is counted with zeros in its place.
const CRC: std::ops::Range<usize> = 12..16;

/// Who a disk is, drawn when it was formatted.
pub(crate) type DiskId = [u8; 16];

/// What a block is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Header,
    Extents,
    Row,
}

/// Where a block belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) disk: DiskId,
    pub(super) kind: Kind,
    pub(super) index: u32,
}

/// Why bytes are not the block that was looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// They are no block at all.
    Absent,
    /// Of a version that this program does not know.
    Version(u16),
    /// A block that was changed.
    Damaged,
    /// A whole block of another place or disk.
    Elsewhere,
}

/// Puts head and checksum in front of a payload that is in place.
pub(super) fn seal(block: &mut [u8], name: Name) {
    assert_eq!(block.len(), BLOCK_LEN, "a whole block");
    block[..HEAD_LEN].fill(0);
    put(block, 0, &MAGIC);
    put(block, 8, &VERSION.to_le_bytes());
    block[10] = name.kind.code();
    put(block, 16, &name.disk);
    put(block, 32, &name.index.to_le_bytes());
    let crc = crc32c::crc32c(block);
    put(block, CRC.start, &crc.to_le_bytes());
}

/// The payload of a block that belongs there.
pub(super) fn open(block: &[u8], name: Name) -> Result<&[u8], Fault> {
    let (disk, payload) = open_any(block)?;
    let is_here = disk == name.disk
        && block[10] == name.kind.code()
        && u32::from_le_bytes(get(block, 32)) == name.index;
    if is_here { Ok(payload) } else { Err(Fault::Elsewhere) }
}

/// The disk and the payload of a header, whatever the disk is.
pub(super) fn open_header(block: &[u8]) -> Result<(DiskId, &[u8]), Fault> {
    let (disk, _) = open_any(block)?;
    open(block, Name { disk, kind: Kind::Header, index: 0 }).map(|payload| (disk, payload))
}

/// `N` bytes of a payload or block.
pub(super) fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut found = [0; N];
    found.copy_from_slice(&bytes[at..at + N]);
    found
}

pub(super) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// The payload of a block that was sealed here.
pub(super) fn payload(block: &[u8]) -> &[u8] {
    &block[HEAD_LEN..]
}

/// Where a block's payload is.
pub(super) fn payload_mut(block: &mut [u8]) -> &mut [u8] {
    &mut block[HEAD_LEN..]
}

fn open_any(block: &[u8]) -> Result<(DiskId, &[u8]), Fault> {
    assert_eq!(block.len(), BLOCK_LEN, "a whole block");
    if block[..8] != MAGIC {
        return Err(Fault::Absent);
    }
    let crc = crc32c::crc32c(&block[..CRC.start]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    let crc = crc32c::crc32c_append(crc, &block[CRC.end..]);
    if crc.to_le_bytes() != block[CRC] {
        return Err(Fault::Damaged);
    }
    let version = u16::from_le_bytes(get(block, 8));
    if version != VERSION {
        return Err(Fault::Version(version));
    }
    Ok((get(block, 16), &block[HEAD_LEN..]))
}

impl Kind {
    const fn code(self) -> u8 {
        match self {
            Self::Header => 1,
            Self::Extents => 2,
            Self::Row => 3,
        }
    }
}
