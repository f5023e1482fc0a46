//! Targets of other makers: commands that a disk lacks come to the product's target in a form that it refuses, and its
//! answer does not tell of what the disk lacks.
//!
//! Invariant: a command that the disk has, and its answer, pass as they are.

use netraid_block::{Buf, SgList};
use netraid_iscsi_proto::pdu::{Bhs, Opcode};
use netraid_scsi::cdb::build::{CdbBytes, test_unit_ready};

use super::interface::Quirks;

/// Where the CDB of a command begins in its header.
const CDB: usize = 32;
/// An opcode of no standard that the target does not know.
const UNKNOWN: u8 = 0xc1;
/// An opcode of no standard: see [`task_function`].
const FUNCTION: u8 = 0xd0;
/// Task management functions (RFC 7143, section 11.5.1).
pub(super) const CLEAR_TASK_SET: u8 = 4;
pub(super) const LOGICAL_UNIT_RESET: u8 = 5;
/// A mode page that no disk has.
const NO_PAGE: u8 = 0x3e;
/// WRPROTECT: refused where there is no protection information.
const WRPROTECT: u8 = 0x20;
const FUA: u8 = 0x08;
const DPOFUA: u8 = 0x10;

/// The command as the target gets it, when that is another one. Notes the task whose answer tells of the FUA bit.
pub(super) fn command(quirks: Quirks, bhs: &Bhs, mode_task: &mut Option<[u8; 4]>) -> Option<Bhs> {
    let mut changed = *bhs;
    let cdb = &mut changed.0[CDB..];
    let is_forced = cdb[1] & FUA != 0;
    match cdb[0] {
        // MODE SENSE.
        0x1a | 0x5a if quirks.no_cache_page => cdb[2] = NO_PAGE,
        0x1a | 0x5a if quirks.no_fua => {
            *mode_task = task_of(bhs);
            return None;
        }
        // WRITE (10) and (16).
        0x2a | 0x8a if is_forced && quirks.refuses_fua => cdb[1] |= WRPROTECT,
        // SYNCHRONIZE CACHE.
        0x35 | 0x91 if quirks.no_flush => cdb[0] = UNKNOWN,
        // PERSISTENT RESERVE IN and OUT.
        0x5e | 0x5f if quirks.no_reservations => cdb[0] = UNKNOWN,
        _ => return None,
    }
    Some(changed)
}

/// What the target sends of an answer, without what the disk lacks.
pub(super) fn answer(mode_task: &mut Option<[u8; 4]>, header: &Bhs, body: SgList) -> SgList {
    let is_data = header.opcode() == Some(Opcode::DataIn) && body.len() > 2;
    if !is_data || mode_task.is_none() || *mode_task != task_of(header) {
        return body;
    }
    *mode_task = None;
    let mut bytes = body.to_contiguous().to_vec();
    bytes[2] &= !DPOFUA;
    Buf::copy_from(&bytes).into()
}

/// A command that comes to the target as this task management function on its logical unit. Its initiator takes the answer
/// for an error of the target, and ends the session.
pub(super) fn task_function(function: u8) -> CdbBytes {
    let mut cdb = test_unit_ready();
    (cdb[0], cdb[1]) = (FUNCTION, function);
    cdb
}

/// The task management function that a command stands for.
pub(super) fn function_of(bhs: &Bhs) -> Option<Bhs> {
    if bhs.0[CDB] != FUNCTION {
        return None;
    }
    let mut request = Bhs([0; _]);
    request.0[..2].copy_from_slice(&[Opcode::TaskRequest as u8, 0x80 | bhs.0[CDB + 1]]);
    // LUN and task tag; no task is referred to; CmdSN and ExpStatSN.
    request.0[8..20].copy_from_slice(&bhs.0[8..20]);
    request.0[20..24].fill(0xff);
    request.0[24..32].copy_from_slice(&bhs.0[24..32]);
    Some(request)
}

/// The initiator task tag.
fn task_of(bhs: &Bhs) -> Option<[u8; 4]> {
    bhs.0.get(16..20)?.try_into().ok()
}
