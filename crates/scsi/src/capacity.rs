//! READ CAPACITY and GET LBA STATUS (SBC-3, sections 5.15, 5.16 and 5.6), both directions.

use alloc::{vec, vec::Vec};

use crate::bytes::{be32, be64, put, saturate_u32};

/// How large a medium is, and in which blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Number of logical blocks.
    pub blocks: u64,
    /// Logical block in bytes.
    pub block_len: u32,
    /// Physical block is 2 to this power of logical blocks.
    pub physical_exponent: u8,
    /// Blocks can be unmapped.
    pub thin: bool,
    /// Unmapped blocks read as zeros.
    pub reads_zeros: bool,
}

impl Capacity {
    /// READ CAPACITY (10) data; a larger medium says FFFFFFFFh.
    #[must_use]
    pub fn encode_10(&self) -> Vec<u8> {
        let mut out = vec![0; 8];
        put(&mut out, 0, saturate_u32(self.blocks.saturating_sub(1)).to_be_bytes());
        put(&mut out, 4, self.block_len.to_be_bytes());
        out
    }

    /// READ CAPACITY (16) data.
    #[must_use]
    pub fn encode_16(&self) -> Vec<u8> {
        let mut out = vec![0; 32];
        put(&mut out, 0, self.blocks.saturating_sub(1).to_be_bytes());
        put(&mut out, 8, self.block_len.to_be_bytes());
        out[13] = self.physical_exponent & 0x0f;
        out[14] = u8::from(self.thin) << 7 | u8::from(self.reads_zeros) << 6;
        out
    }

    /// Reads READ CAPACITY (10) data. `None` when it is too short, when the medium is too large
    /// for it (ask again with the 16-byte form), or when the block length is zero.
    #[must_use]
    pub fn decode_10(data: &[u8]) -> Option<Self> {
        let last = be32(data, 0).filter(|last| *last != u32::MAX)?;
        let block_len = be32(data, 4).filter(|len| *len != 0)?;
        let blocks = u64::from(last) + 1;
        Some(Self { blocks, block_len, physical_exponent: 0, thin: false, reads_zeros: false })
    }

    /// Reads READ CAPACITY (16) data. `None` when it is too short or makes no sense.
    #[must_use]
    pub fn decode_16(data: &[u8]) -> Option<Self> {
        let blocks = be64(data, 0)?.checked_add(1)?;
        let block_len = be32(data, 8).filter(|len| *len != 0)?;
        // Lengths in bytes are 64 bits too.
        blocks.checked_mul(u64::from(block_len))?;
        let byte = |at| data.get(at).copied().unwrap_or(0);
        Some(Self {
            blocks,
            block_len,
            physical_exponent: byte(13) & 0x0f,
            thin: byte(14) & 0x80 != 0,
            reads_zeros: byte(14) & 0x40 != 0,
        })
    }
}

/// GET LBA STATUS data (SBC-3, section 5.6) of runs of blocks, each mapped or not, from `lba` on.
/// It ends early at a run that its field cannot tell.
#[must_use]
pub fn lba_status(lba: u64, runs: impl IntoIterator<Item = (u64, bool)>) -> Vec<u8> {
    let mut out = vec![0; 8];
    let mut at = lba;
    for (blocks, mapped) in runs {
        let told = saturate_u32(blocks);
        out.extend(at.to_be_bytes());
        out.extend(told.to_be_bytes());
        // PROVISIONING STATUS: mapped or anchored (0), deallocated (1).
        out.extend([u8::from(!mapped), 0, 0, 0]);
        if u64::from(told) != blocks {
            break;
        }
        at += blocks;
    }
    let len = saturate_u32(out.len() as u64 - 4);
    put(&mut out, 0, len.to_be_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_survive_the_wire() {
        let small = Capacity {
            blocks: 2048,
            block_len: 512,
            physical_exponent: 3,
            thin: true,
            reads_zeros: true,
        };
        assert_eq!(Capacity::decode_16(&small.encode_16()), Some(small));
        assert_eq!(Capacity::decode_10(&small.encode_10()).map(|it| it.blocks), Some(2048));
        let large = Capacity { blocks: 1 << 33, ..small };
        assert_eq!(Capacity::decode_10(&large.encode_10()), None, "ask with the long form");
        assert_eq!(Capacity::decode_16(&large.encode_16()), Some(large));
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(Capacity::decode_16(&[0xff; 32]), None);
        assert_eq!(Capacity::decode_10(&[0; 8]), None);
        assert_eq!(Capacity::decode_16(&[0; 11]), None);
    }
}
