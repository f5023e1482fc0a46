//! CDBs and parameter lists that an initiator sends.

use alloc::{vec, vec::Vec};

use netraid_block::narrow;

use super::Extent;
use crate::bytes::put;

/// A CDB padded with zeros to 16 bytes, as iSCSI carries it (RFC 7143, section 11.3.5).
pub type CdbBytes = [u8; super::CDB_LEN_MAX];

/// TEST UNIT READY.
#[must_use]
pub const fn test_unit_ready() -> CdbBytes {
    [0; super::CDB_LEN_MAX]
}

/// INQUIRY: standard data, or a vital product data page.
#[must_use]
pub fn inquiry(page: Option<u8>, allocation_len: u16) -> CdbBytes {
    let mut cdb = opcode(0x12);
    cdb[1] = u8::from(page.is_some());
    cdb[2] = page.unwrap_or(0);
    put(&mut cdb, 3, allocation_len.to_be_bytes());
    cdb
}

/// READ CAPACITY (10).
#[must_use]
pub fn read_capacity_10() -> CdbBytes {
    opcode(0x25)
}

/// READ CAPACITY (16).
#[must_use]
pub fn read_capacity_16(allocation_len: u32) -> CdbBytes {
    let mut cdb = opcode(0x9e);
    cdb[1] = 0x10;
    put(&mut cdb, 10, allocation_len.to_be_bytes());
    cdb
}

/// MODE SENSE (6) without block descriptors, current values.
#[must_use]
pub fn mode_sense_6(page: u8, allocation_len: u8) -> CdbBytes {
    let mut cdb = opcode(0x1a);
    cdb[1] = 0x08;
    cdb[2] = page & 0x3f;
    cdb[4] = allocation_len;
    cdb
}

/// REPORT LUNS: all that are not well known.
#[must_use]
pub fn report_luns(allocation_len: u32) -> CdbBytes {
    let mut cdb = opcode(0xa0);
    put(&mut cdb, 6, allocation_len.to_be_bytes());
    cdb
}

/// READ (10), or READ (16) when the range does not fit the short form or `long` asks for it.
#[must_use]
pub fn read(extent: Extent, long: bool) -> CdbBytes {
    transfer(0x28, 0x88, extent, long)
}

/// WRITE (10), or WRITE (16) when the range does not fit the short form or `long` asks for it.
/// `fua` asks for stability before the command completes; only for devices with DPOFUA.
#[must_use]
pub fn write(extent: Extent, fua: bool, long: bool) -> CdbBytes {
    let mut cdb = transfer(0x2a, 0x8a, extent, long);
    cdb[1] = if fua { 0x08 } else { 0 };
    cdb
}

/// SYNCHRONIZE CACHE (10), or (16) when `long`, of the whole medium.
#[must_use]
pub fn synchronize_cache(long: bool) -> CdbBytes {
    transfer(0x35, 0x91, Extent { lba: 0, blocks: 0 }, long)
}

/// WRITE SAME (16); the data-out is one logical block.
#[must_use]
pub fn write_same_16(extent: Extent, unmap: bool) -> CdbBytes {
    let mut cdb = transfer(0x93, 0x93, extent, true);
    cdb[1] = if unmap { 0x08 } else { 0 };
    cdb
}

/// UNMAP; the data-out is [`unmap_list`].
#[must_use]
pub fn unmap(parameter_len: u16) -> CdbBytes {
    let mut cdb = opcode(0x42);
    put(&mut cdb, 7, parameter_len.to_be_bytes());
    cdb
}

/// The parameter list of UNMAP (SBC-3, section 5.28.2).
///
/// # Panics
/// With more ranges than the list's 16-bit length holds (4095).
#[must_use]
pub fn unmap_list(extents: &[Extent]) -> Vec<u8> {
    assert!(extents.len() <= 4095, "an UNMAP list holds 4095 ranges");
    let mut list = vec![0; 8];
    for extent in extents {
        list.extend(extent.lba.to_be_bytes());
        list.extend(extent.blocks.to_be_bytes());
        list.extend([0; 4]);
    }
    let len: u16 = narrow(list.len());
    put(&mut list, 0, (len - 2).to_be_bytes());
    put(&mut list, 2, (len - 8).to_be_bytes());
    list
}

const fn opcode(code: u8) -> CdbBytes {
    let mut cdb = [0; super::CDB_LEN_MAX];
    cdb[0] = code;
    cdb
}

fn transfer(short_code: u8, long_code: u8, extent: Extent, long: bool) -> CdbBytes {
    let short = (u32::try_from(extent.lba), u16::try_from(extent.blocks));
    if let (Ok(lba), Ok(blocks), false) = (short.0, short.1, long) {
        let mut cdb = opcode(short_code);
        put(&mut cdb, 2, lba.to_be_bytes());
        put(&mut cdb, 7, blocks.to_be_bytes());
        return cdb;
    }
    let mut cdb = opcode(long_code);
    put(&mut cdb, 2, extent.lba.to_be_bytes());
    put(&mut cdb, 10, extent.blocks.to_be_bytes());
    cdb
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cdb::{Command, DataOut, Report, parse};

    #[test]
    fn the_target_reads_what_the_initiator_writes() {
        let near = Extent { lba: 7, blocks: 9 };
        for long in [false, true] {
            assert_eq!(parse(&read(near, long)), Ok(Command::Read { extent: near, fua: false }));
            for fua in [false, true] {
                let parsed = parse(&write(near, fua, long));
                assert_eq!(parsed, Ok(DataOut::Write { extent: near, fua }.into()));
            }
        }
        assert_eq!(read(near, false)[0], 0x28);
        for far in [Extent { lba: 1 << 32, blocks: 1 }, Extent { lba: 1, blocks: 1 << 16 }] {
            assert_eq!(parse(&read(far, false)), Ok(Command::Read { extent: far, fua: false }));
        }
        let same = DataOut::WriteSame { extent: near, unmap: true, no_data_out: false };
        assert_eq!(parse(&write_same_16(near, true)), Ok(same.into()));
        assert_eq!(parse(&test_unit_ready()), Ok(Report::TestUnitReady.into()));
        let page = Report::Inquiry { page: Some(0xb0), allocation_len: 64 };
        assert_eq!(parse(&inquiry(Some(0xb0), 64)), Ok(page.into()));
        assert_eq!(parse(&unmap(24)), Ok(DataOut::Unmap { parameter_len: 24 }.into()));
        let capacity = Report::ReadCapacity16 { allocation_len: 32 };
        assert_eq!(parse(&read_capacity_16(32)), Ok(capacity.into()));
        assert_eq!(parse(&read_capacity_10()), Ok(Report::ReadCapacity10.into()));
        let luns = Report::ReportLuns { select: 0, allocation_len: 256 };
        assert_eq!(parse(&report_luns(256)), Ok(luns.into()));
    }
}
