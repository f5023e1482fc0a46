//! Commands that only report: what the logical unit is, has and can do.

use alloc::{vec, vec::Vec};

use super::{LogicalUnit, NexusId, Response};
use crate::{
    bytes::put,
    capacity::{Capacity, lba_status},
    cdb::{Command, Reported, table},
    inquiry,
    limits::{BlockLimits, Provisioning, characteristics_page},
    ports::target_port_groups,
    sense::{Additional, Sense, SenseFormat, SenseKey, Status},
    unit::UnitAttention,
};

const OPCODE_UNMAP: u8 = 0x42;
/// Most ranges of one UNMAP.
pub(crate) const UNMAP_EXTENTS_MAX: u32 = 256;
/// Longest WRITE SAME in blocks: what WRITE SAME (10) can say. It bounds how long one command can
/// keep the device busy.
pub(crate) const WRITE_SAME_BLOCKS_MAX: u32 = 0xffff;
/// Physical block that is reported: files and pages are kept in units of this many bytes.
const PHYSICAL_LEN: u32 = 4096;

impl LogicalUnit {
    /// Answers a command that only reports.
    pub(super) fn report(&mut self, nexus: NexusId, command: &Command) -> Result<Response, Sense> {
        match *command {
            Command::Inquiry { page, allocation_len } => {
                Ok(Response::data(&self.inquiry(page)?, allocation_len))
            }
            Command::RequestSense { descriptor, allocation_len } => {
                let format = if descriptor { SenseFormat::Descriptor } else { SenseFormat::Fixed };
                let sense = match self.attentions.take(nexus) {
                    Some(attention) => attention.sense(),
                    None => Sense::new(SenseKey::NoSense, Additional::NONE),
                };
                Ok(Response::data(&sense.encode(format), allocation_len))
            }
            Command::ReadCapacity10 => Ok(Response::data(&self.capacity().encode_10(), 8)),
            Command::ReadCapacity16 { allocation_len } => {
                Ok(Response::data(&self.capacity().encode_16(), allocation_len))
            }
            Command::ReportLuns { select, allocation_len } => {
                self.attentions.clear(nexus, UnitAttention::ReportedLunsChanged);
                report_luns([0].into_iter(), select, allocation_len)
            }
            Command::ReportTargetPortGroups { extended, allocation_len } => {
                Ok(Response::data(&target_port_groups(extended), allocation_len))
            }
            Command::ReportSupportedOpcodes { reported, timeouts, allocation_len } => {
                let data = self.supported_opcodes(reported, timeouts)?;
                Ok(Response::data(&data, allocation_len))
            }
            Command::ModeSense(request) => {
                let data = self.mode.sense(&request, self.mode_medium())?;
                Ok(Response::data(&data, request.allocation_len))
            }
            Command::GetLbaStatus { lba, allocation_len } => {
                if lba >= self.blocks() {
                    return Err(Sense::illegal(Additional::LBA_OUT_OF_RANGE));
                }
                Ok(Response::data(&lba_status(lba, self.blocks()), allocation_len))
            }
            // Ready whenever it exists; its medium cannot be removed.
            Command::TestUnitReady | Command::PreventAllowMediumRemoval => {
                Ok(Response::status(Status::Good))
            }
            Command::ModeSelect { .. }
            | Command::Read { .. }
            | Command::Write { .. }
            | Command::WriteAndVerify { .. }
            | Command::Verify { .. }
            | Command::WriteSame { .. }
            | Command::CompareAndWrite { .. }
            | Command::Unmap { .. }
            | Command::SynchronizeCache { .. }
            | Command::PreFetch { .. }
            | Command::StartStopUnit { .. }
            | Command::Reserve6
            | Command::Release6 => {
                Err(Sense::new(SenseKey::HardwareError, Additional::INTERNAL_TARGET_FAILURE))
            }
        }
    }

    fn inquiry(&self, page: Option<u8>) -> Result<Vec<u8>, Sense> {
        let identity = &self.config.identity;
        Ok(match page {
            None => identity.standard(),
            Some(inquiry::PAGE_SUPPORTED) => inquiry::supported_pages(),
            Some(inquiry::PAGE_SERIAL) => identity.serial_page(),
            Some(inquiry::PAGE_IDENTIFICATION) => identity.identification_page(),
            Some(inquiry::PAGE_PORTS) => identity.ports_page(),
            Some(inquiry::PAGE_BLOCK_LIMITS) => self.limits().encode(),
            Some(inquiry::PAGE_CHARACTERISTICS) => characteristics_page(),
            Some(inquiry::PAGE_PROVISIONING) => self.provisioning().encode(),
            Some(_) => return Err(Sense::invalid_cdb(2, None)),
        })
    }

    fn capacity(&self) -> Capacity {
        let block_len = self.config.info.block_len;
        let exponent = (PHYSICAL_LEN / block_len).checked_ilog2().unwrap_or(0);
        let Provisioning { unmap, reads_zeros, .. } = self.provisioning();
        Capacity {
            blocks: self.blocks(),
            block_len,
            physical_exponent: u8::try_from(exponent).unwrap_or(0),
            thin: unmap,
            reads_zeros,
        }
    }

    fn limits(&self) -> BlockLimits {
        let info = &self.config.info;
        let physical = (PHYSICAL_LEN / info.block_len).max(1);
        let optimal = info.optimal_len / info.block_len;
        let thin = info.can_discard;
        BlockLimits {
            write_same_nonzero: true,
            compare_and_write_max: self.compare_and_write_max(),
            optimal_granularity: u16::try_from(optimal).unwrap_or(0),
            transfer_max: self.transfer_max(),
            optimal_transfer: optimal.min(self.transfer_max()),
            unmap_blocks_max: if thin { u32::MAX } else { 0 },
            unmap_extents_max: if thin { UNMAP_EXTENTS_MAX } else { 0 },
            unmap_granularity: if thin { physical } else { 0 },
            unmap_alignment: thin.then_some(0),
            write_same_max: u64::from(WRITE_SAME_BLOCKS_MAX),
        }
    }

    /// Longest COMPARE AND WRITE in blocks.
    pub(super) fn compare_and_write_max(&self) -> u8 {
        u8::try_from(self.transfer_max()).unwrap_or(u8::MAX)
    }

    fn provisioning(&self) -> Provisioning {
        let thin = self.config.info.can_discard;
        Provisioning {
            unmap: thin,
            write_same_16: thin,
            write_same_10: thin,
            reads_zeros: thin && self.config.discard_zeroes,
        }
    }

    fn supports(&self, row: &table::Row) -> bool {
        row.opcode() != OPCODE_UNMAP || self.config.info.can_discard
    }

    /// REPORT SUPPORTED OPERATION CODES (SPC-4, section 6.34).
    fn supported_opcodes(&self, reported: Reported, timeouts: bool) -> Result<Vec<u8>, Sense> {
        let (opcode, action) = match reported {
            Reported::All => return Ok(self.all_opcodes(timeouts)),
            Reported::Opcode(opcode) => (opcode, None),
            Reported::ServiceAction(opcode, action) => (opcode, Some(action)),
            Reported::Either(opcode, action) => {
                let first = table::rows(opcode).first();
                (opcode, first.and_then(|row| row.service_action).map(|_| action))
            }
        };
        let rows = table::rows(opcode);
        // To ask with a service action where there are none, or the reverse, is an error.
        if rows.first().is_some_and(|row| row.service_action.is_some() != action.is_some()) {
            return Err(Sense::invalid_cdb(2, Some(2)));
        }
        let row = rows.iter().find(|row| row.service_action == action && self.supports(row));
        let Some(row) = row else { return Ok(vec![0, 0x01, 0, 0]) };
        let len = u8::try_from(row.usage.len()).unwrap_or(0);
        let mut out = vec![0, if timeouts { 0x83 } else { 0x03 }, 0, len];
        out.extend_from_slice(row.usage);
        if timeouts {
            out.extend(NO_TIMEOUTS);
        }
        Ok(out)
    }

    fn all_opcodes(&self, timeouts: bool) -> Vec<u8> {
        let mut out = vec![0; 4];
        for row in table::TABLE.iter().filter(|row| self.supports(row)) {
            let [high, low] = row.service_action.unwrap_or(0).to_be_bytes();
            let flags = u8::from(timeouts) << 1 | u8::from(row.service_action.is_some());
            let len = u8::try_from(row.usage.len()).unwrap_or(0);
            out.extend([row.opcode(), 0, high, low, 0, flags, 0, len]);
            if timeouts {
                out.extend(NO_TIMEOUTS);
            }
        }
        let len = u32::try_from(out.len() - 4).unwrap_or(u32::MAX);
        put(&mut out, 0, len.to_be_bytes());
        out
    }
}

/// A command timeouts descriptor that names none (SPC-4, section 6.34.4).
const NO_TIMEOUTS: [u8; 12] = [0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// REPORT LUNS data (SPC-4, section 6.33) for these LUNs, each below 16384.
pub(crate) fn report_luns(
    luns: impl Iterator<Item = u16>,
    select: u8,
    allocation_len: u32,
) -> Result<Response, Sense> {
    let mut out = vec![0; 8];
    match select {
        0x00 | 0x02 => luns.for_each(|lun| out.extend(encode_lun(lun))),
        // Only well known logical units, of which there are none.
        0x01 => {}
        _ => return Err(Sense::invalid_cdb(2, None)),
    }
    let len = u32::try_from(out.len() - 8).unwrap_or(u32::MAX);
    put(&mut out, 0, len.to_be_bytes());
    Ok(Response::data(&out, allocation_len))
}

/// Single level LUN structure: peripheral addressing below 256, flat space above
/// (SAM-5, section 4.7).
#[must_use]
pub fn encode_lun(lun: u16) -> [u8; 8] {
    let mut out = [0; 8];
    let flat = if lun < 256 { 0 } else { 0x4000 };
    put(&mut out, 0, (flat | (lun & 0x3fff)).to_be_bytes());
    out
}

/// The number in a single level LUN structure; `None` for any other.
#[must_use]
pub fn decode_lun(bytes: [u8; 8]) -> Option<u16> {
    let [high, low, rest @ ..] = bytes;
    if rest != [0; 6] {
        return None;
    }
    match high >> 6 {
        // Peripheral addressing of bus 0, and flat space addressing.
        0 if high == 0 => Some(u16::from(low)),
        1 => Some(u16::from_be_bytes([high & 0x3f, low])),
        _ => None,
    }
}
