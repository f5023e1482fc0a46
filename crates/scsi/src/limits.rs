//! What a block device allows: VPD pages B0h, B1h and B2h (SBC-3, section 6.6), both directions.

use alloc::vec::Vec;

use crate::{
    bytes::{be16, be32, be64, put},
    inquiry::{PAGE_BLOCK_LIMITS, PAGE_CHARACTERISTICS, PAGE_PROVISIONING, vpd, vpd_body},
};

/// VPD page B0h. Lengths are in logical blocks; 0 means that no limit is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockLimits {
    /// WRITE SAME refuses a length of zero instead of taking it for the rest of the medium.
    pub write_same_nonzero: bool,
    /// Longest COMPARE AND WRITE; 0 when it is not supported.
    pub compare_and_write_max: u8,
    /// Unit that transfer lengths should be multiples of.
    pub optimal_granularity: u16,
    /// Longest transfer.
    pub transfer_max: u32,
    /// Transfer length that is not worth exceeding.
    pub optimal_transfer: u32,
    /// Most blocks of one UNMAP; 0 when UNMAP is not supported.
    pub unmap_blocks_max: u32,
    /// Most ranges of one UNMAP; 0 when UNMAP is not supported.
    pub unmap_extents_max: u32,
    /// Unit that unmapped ranges should be multiples of.
    pub unmap_granularity: u32,
    /// First block to which that unit is aligned, when it is known.
    pub unmap_alignment: Option<u32>,
    /// Longest WRITE SAME.
    pub write_same_max: u64,
    /// Longest WRITE ATOMIC, at any address and in any length; 0 when it is not supported.
    pub atomic_max: u32,
}

impl BlockLimits {
    /// The page.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vpd(PAGE_BLOCK_LIMITS, &[0; 60]);
        out[4] = u8::from(self.write_same_nonzero);
        out[5] = self.compare_and_write_max;
        put(&mut out, 6, self.optimal_granularity.to_be_bytes());
        put(&mut out, 8, self.transfer_max.to_be_bytes());
        put(&mut out, 12, self.optimal_transfer.to_be_bytes());
        put(&mut out, 20, self.unmap_blocks_max.to_be_bytes());
        put(&mut out, 24, self.unmap_extents_max.to_be_bytes());
        put(&mut out, 28, self.unmap_granularity.to_be_bytes());
        if let Some(alignment) = self.unmap_alignment {
            put(&mut out, 32, (0x8000_0000 | alignment).to_be_bytes());
        }
        put(&mut out, 36, self.write_same_max.to_be_bytes());
        put(&mut out, 44, self.atomic_max.to_be_bytes());
        out
    }

    /// Reads the page; fields that an older page lacks are 0.
    #[must_use]
    pub fn decode(data: &[u8]) -> Option<Self> {
        let body = vpd_body(data, PAGE_BLOCK_LIMITS)?;
        let word = |at| be32(body, at).unwrap_or(0);
        let alignment = word(28);
        Some(Self {
            write_same_nonzero: body.first()? & 0x01 != 0,
            compare_and_write_max: *body.get(1)?,
            optimal_granularity: be16(body, 2)?,
            transfer_max: word(4),
            optimal_transfer: word(8),
            unmap_blocks_max: word(16),
            unmap_extents_max: word(20),
            unmap_granularity: word(24),
            unmap_alignment: (alignment & 0x8000_0000 != 0).then_some(alignment & 0x7fff_ffff),
            write_same_max: be64(body, 32).unwrap_or(0),
            atomic_max: word(40),
        })
    }
}

/// VPD page B2h: how blocks can be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Provisioning {
    /// UNMAP is supported.
    pub unmap: bool,
    /// WRITE SAME (16) can unmap.
    pub write_same_16: bool,
    /// WRITE SAME (10) can unmap.
    pub write_same_10: bool,
    /// Unmapped blocks read as zeros.
    pub reads_zeros: bool,
}

impl Provisioning {
    /// The page; what can unmap is thin provisioned.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let flags = u8::from(self.unmap) << 7
            | u8::from(self.write_same_16) << 6
            | u8::from(self.write_same_10) << 5
            | u8::from(self.reads_zeros) << 2;
        vpd(PAGE_PROVISIONING, &[0, flags, if self.unmap { 0x02 } else { 0 }, 0])
    }

    /// Reads the page.
    #[must_use]
    pub fn decode(data: &[u8]) -> Option<Self> {
        let flags = *vpd_body(data, PAGE_PROVISIONING)?.get(1)?;
        Some(Self {
            unmap: flags & 0x80 != 0,
            write_same_16: flags & 0x40 != 0,
            write_same_10: flags & 0x20 != 0,
            reads_zeros: flags & 0x1c == 0x04,
        })
    }
}

/// VPD page B1h of a medium that does not rotate. `can_erase`: SANITIZE erases blocks, which read
/// without error afterwards (WABEREQ).
#[must_use]
pub fn characteristics_page(can_erase: bool) -> Vec<u8> {
    let mut out = vpd(PAGE_CHARACTERISTICS, &[0; 60]);
    put(&mut out, 4, 1_u16.to_be_bytes());
    out[7] = u8::from(can_erase) << 6;
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn limits_survive_the_wire() {
        let limits = BlockLimits {
            write_same_nonzero: true,
            compare_and_write_max: 200,
            optimal_granularity: 8,
            transfer_max: 8192,
            optimal_transfer: 2048,
            unmap_blocks_max: 1 << 31,
            unmap_extents_max: 256,
            unmap_granularity: 16,
            unmap_alignment: Some(3),
            write_same_max: 1 << 40,
            atomic_max: 77,
        };
        let page = limits.encode();
        assert_eq!((page.len(), page[3]), (64, 0x3c));
        assert_eq!(BlockLimits::decode(&page), Some(limits));
        let thin = Provisioning { unmap: true, write_same_16: true, ..Default::default() };
        assert_eq!(Provisioning::decode(&thin.encode()), Some(thin));
    }

    #[test]
    fn an_old_short_page_has_no_unmap() {
        let page = vpd(PAGE_BLOCK_LIMITS, &[0, 0, 0, 8, 0, 0, 1, 0, 0, 0, 0, 0]);
        let limits = BlockLimits::decode(&page).unwrap();
        assert_eq!((limits.transfer_max, limits.unmap_extents_max), (256, 0));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_without_panic(mut data in proptest::collection::vec(any::<u8>(), 2..80)) {
            for page in [PAGE_BLOCK_LIMITS, PAGE_PROVISIONING] {
                data[1] = page;
                let _ = (BlockLimits::decode(&data), Provisioning::decode(&data));
            }
        }
    }
}
