//! Requests of all kinds: logins, keys and CDBs.

use netraid_iscsi_proto::pdu::LoginRequest;

use super::BLOCK_LEN;

pub(super) fn login(transit: bool, more: bool, current_stage: u8, next_stage: u8) -> LoginRequest {
    LoginRequest {
        transit,
        more,
        current_stage,
        next_stage,
        version_max: 0,
        version_min: 0,
        isid: [0x80, 0, 0, 0, 0, 1],
        tsih: 0,
        itt: 1,
        cid: 1,
    }
}

/// A CDB, the bytes that it moves, and whether they go to the target.
pub(super) fn write_cdb(kind: u8, lba: u8, blocks: u8, flags: u8) -> ([u8; 16], u32, bool) {
    let mut cdb = [0; 16];
    let bytes = u32::from(blocks) * BLOCK_LEN as u32;
    let check = (flags & 1) << 1;
    let (moved, write) = match kind % 22 {
        0 => (0, false),
        1 | 2 => {
            (cdb[0], cdb[5], cdb[8]) = (0x28, lba, blocks);
            (bytes, false)
        }
        3..=6 => {
            (cdb[0], cdb[5], cdb[8]) = (0x2a, lba, blocks);
            (bytes, true)
        }
        7 => {
            (cdb[0], cdb[9], cdb[13]) = (0x8a, lba, blocks);
            (bytes, true)
        }
        8 => {
            (cdb[0], cdb[9], cdb[13]) = (0x89, lba, blocks % 4);
            (u32::from(blocks % 4) * 2 * BLOCK_LEN as u32, true)
        }
        9 => {
            (cdb[0], cdb[1], cdb[9], cdb[13]) = (0x93, flags & 9, lba, blocks);
            (BLOCK_LEN as u32, true)
        }
        10 => {
            (cdb[0], cdb[1], cdb[5], cdb[8]) = (0x2e, check, lba, blocks);
            (bytes, true)
        }
        11 => {
            (cdb[0], cdb[1], cdb[5], cdb[8]) = (0x2f, check, lba, blocks);
            (if check == 0 { 0 } else { bytes }, check != 0)
        }
        12 => {
            (cdb[0], cdb[8]) = (0x42, 24);
            (24, true)
        }
        13 => {
            (cdb[0], cdb[1], cdb[4]) = (0x15, 0x10, blocks);
            (u32::from(blocks), true)
        }
        14 => {
            cdb[0] = 0x35;
            (0, false)
        }
        15 => {
            (cdb[0], cdb[1], cdb[2], cdb[4]) = (0x12, flags & 1, lba, 255);
            (255, false)
        }
        16 => {
            (cdb[0], cdb[2], cdb[4]) = (0x1a, 0x3f, 255);
            (255, false)
        }
        17 => {
            (cdb[0], cdb[9]) = (0xa0, 255);
            (255, false)
        }
        19 => {
            (cdb[0], cdb[1], cdb[2], cdb[8]) = (0x5f, flags % 8, lba % 16, 24);
            (24, true)
        }
        20 => {
            (cdb[0], cdb[1], cdb[8]) = (0x5e, flags % 5, 255);
            (255, false)
        }
        18 => {
            (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x10 + (flags & 2), 64);
            (64, false)
        }
        _ => {
            cdb[0] = if flags & 1 == 0 { 0x16 } else { 0x17 };
            (0, false)
        }
    };
    (cdb, moved, write)
}
