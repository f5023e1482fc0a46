//! Commands that only report: what the logical unit is, has and can do.

use alloc::{vec, vec::Vec};

use netraid_block::narrow;

use super::{LogicalUnit, NexusId, Response, Rules};
use crate::{
    bytes::put,
    capacity::Capacity,
    cdb::Report,
    copy::third_party_copy_page,
    inquiry,
    limits::{BlockLimits, Provisioning, characteristics_page},
    ports::target_port_groups,
    sense::{Additional, Sense, SenseFormat, SenseKey, Status},
    unit::UnitAttention,
};

/// Most blocks of one UNMAP: it bounds how long one command can keep the device busy.
pub(crate) const UNMAP_BLOCKS_MAX: u32 = 1 << 20;
/// Most ranges of one UNMAP.
pub(crate) const UNMAP_EXTENTS_MAX: u32 = 256;
/// Longest transfer in bytes that is no slower than shorter ones together.
const OPTIMAL_LEN: u32 = 1 << 20;
/// Longest WRITE SAME in blocks: what WRITE SAME (10) can say. It bounds how long one command can
/// keep the device busy.
pub(crate) const WRITE_SAME_BLOCKS_MAX: u32 = 0xffff;

impl LogicalUnit {
    /// Answers a command that only reports.
    pub(super) fn report(&mut self, nexus: NexusId, report: Report) -> Result<Response, Sense> {
        match report {
            Report::Inquiry { page, allocation_len } => {
                Ok(Response::data(&self.inquiry(page)?, allocation_len))
            }
            Report::RequestSense { descriptor, allocation_len } => {
                let format = if descriptor { SenseFormat::Descriptor } else { SenseFormat::Fixed };
                let sense = match self.attentions.take(nexus) {
                    Some(attention) => attention.sense(),
                    // Pollable sense data (SPC-4, section 5.11.2).
                    None => match self.not_ready(Rules::STRICTEST) {
                        Some(sense) => sense,
                        None => Sense::new(SenseKey::NoSense, Additional::NONE),
                    },
                };
                Ok(Response::data(&sense.encode(format), allocation_len))
            }
            Report::ReadCapacity10 => Ok(Response::data(&self.capacity().encode_10(), 8)),
            Report::ReadCapacity16 { allocation_len } => {
                Ok(Response::data(&self.capacity().encode_16(), allocation_len))
            }
            Report::ReportLuns { select, allocation_len } => {
                self.attentions.clear(nexus, UnitAttention::ReportedLunsChanged);
                report_luns([0].into_iter(), select, allocation_len)
            }
            Report::ReportTargetPortGroups { extended, allocation_len } => {
                Ok(Response::data(&target_port_groups(extended), allocation_len))
            }
            Report::ReportSupportedOpcodes { reported, timeouts, allocation_len } => {
                let data = self.supported_opcodes(reported, timeouts)?;
                Ok(Response::data(&data, allocation_len))
            }
            Report::ModeSense(request) => {
                let data = self.mode.sense(&request, self.mode_medium())?;
                Ok(Response::data(&data, request.allocation_len))
            }
            Report::ReportSupportedTasks { extended, allocation_len } => {
                Ok(Response::data(supported_tasks(extended), allocation_len))
            }
            Report::LogSense { page, subpage, parameter, allocation_len } => {
                let data = log_page(page, subpage, parameter)?;
                Ok(Response::data(data, allocation_len))
            }
            Report::ReadDefectData { long, wanted, allocation_len } => {
                // No defects are known: both lists are there and empty (SBC-3, section 5.17).
                let header = [0, wanted, 0, 0, 0, 0, 0, 0];
                Ok(Response::data(&header[..if long { 8 } else { 4 }], allocation_len))
            }
            // Whether it is ready was asked before.
            Report::TestUnitReady => Ok(Response::status(Status::Good)),
        }
    }

    fn inquiry(&self, page: Option<u8>) -> Result<Vec<u8>, Sense> {
        let identity = &self.config.identity;
        Ok(match page {
            None => {
                let mut data = identity.standard();
                // RMB.
                data[1] |= if self.config.removable { 0x80 } else { 0 };
                data
            }
            Some(inquiry::PAGE_SUPPORTED) => inquiry::supported_pages(),
            Some(inquiry::PAGE_SERIAL) => identity.serial_page(),
            Some(inquiry::PAGE_IDENTIFICATION) => identity.identification_page(),
            Some(inquiry::PAGE_PORTS) => identity.ports_page(),
            Some(inquiry::PAGE_EXTENDED) => inquiry::extended_page(self.info().volatile_cache),
            Some(inquiry::PAGE_THIRD_PARTY_COPY) => third_party_copy_page(),
            Some(inquiry::PAGE_BLOCK_LIMITS) => self.limits().encode(),
            Some(inquiry::PAGE_CHARACTERISTICS) => {
                let can_erase = self.config.can_sanitize && self.info().can_discard;
                characteristics_page(can_erase)
            }
            Some(inquiry::PAGE_PROVISIONING) => self.provisioning().encode(),
            Some(_) => return Err(Sense::invalid_cdb(2, None)),
        })
    }

    fn capacity(&self) -> Capacity {
        let block_len = self.info().block_len;
        let exponent = (self.config.physical_len / block_len).checked_ilog2().unwrap_or(0);
        // Clamped: the field has four bits.
        let exponent = exponent.min(15);
        let Provisioning { unmap, reads_zeros, .. } = self.provisioning();
        Capacity {
            blocks: self.blocks(),
            block_len,
            physical_exponent: narrow(exponent),
            thin: unmap,
            reads_zeros,
        }
    }

    fn limits(&self) -> BlockLimits {
        let info = self.info();
        let optimal = (info.optimal_len / info.block_len).max(1);
        let thin = info.can_discard;
        BlockLimits {
            write_same_nonzero: true,
            compare_and_write_max: self.compare_and_write_max(),
            // Clamped: 0 says that none is known, which is so of one that the field does not hold.
            optimal_granularity: u16::try_from(optimal).unwrap_or(0),
            transfer_max: self.transfer_max(),
            optimal_transfer: (OPTIMAL_LEN / info.block_len).min(self.transfer_max()),
            unmap_blocks_max: if thin { UNMAP_BLOCKS_MAX } else { 0 },
            unmap_extents_max: if thin { UNMAP_EXTENTS_MAX } else { 0 },
            unmap_granularity: if thin { optimal } else { 0 },
            unmap_alignment: thin.then_some(0),
            write_same_max: u64::from(WRITE_SAME_BLOCKS_MAX),
            atomic_max: self.atomic_max(),
        }
    }

    /// Longest WRITE ATOMIC in blocks; 0 when it is not supported.
    pub(super) fn atomic_max(&self) -> u32 {
        if self.is_in_pieces() {
            return 0;
        }
        let max = self.config.atomic_len / self.info().block_len;
        max.min(self.transfer_max()).min(u32::from(u16::MAX))
    }

    /// Longest COMPARE AND WRITE in blocks.
    pub(super) fn compare_and_write_max(&self) -> u8 {
        // Clamped: its CDB has one byte for the number of blocks.
        u8::try_from(self.transfer_max()).unwrap_or(u8::MAX)
    }

    fn provisioning(&self) -> Provisioning {
        let thin = self.info().can_discard;
        Provisioning {
            unmap: thin,
            write_same_16: thin,
            write_same_10: thin,
            reads_zeros: thin && self.config.discard_zeroes,
        }
    }
}

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
    let len: u32 = narrow(out.len() - 8);
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

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS data (SPC-4, section 6.35): ABORT TASK, ABORT TASK
/// SET, CLEAR TASK SET, LOGICAL UNIT RESET and TARGET RESET; no timeouts.
const fn supported_tasks(extended: bool) -> &'static [u8] {
    if extended {
        &[0xda, 0, 0, 0x0c, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    } else {
        &[0xda, 0, 0, 0]
    }
}

/// Log pages (SPC-4, section 7.3): which there are, and that no informational exception is known.
fn log_page(page: u8, subpage: u8, parameter: u16) -> Result<&'static [u8], Sense> {
    let (data, parameters): (&[u8], _) = match (page, subpage) {
        (0x00, 0x00) => (&[0x00, 0, 0, 2, 0x00, 0x2f], 0),
        (0x00, 0xff) => (&[0x40, 0xff, 0, 6, 0x00, 0x00, 0x00, 0xff, 0x2f, 0x00], 0),
        // Parameter 0: no additional sense code; the temperature is not known.
        (0x2f, 0x00) => (&[0x2f, 0, 0, 8, 0, 0, 0x03, 4, 0, 0, 0xff, 0xff], 0),
        (0x00 | 0x2f, _) => return Err(Sense::invalid_cdb(3, None)),
        _ => return Err(Sense::invalid_cdb(2, Some(5))),
    };
    if parameter > parameters {
        return Err(Sense::invalid_cdb(5, None));
    }
    Ok(data)
}
