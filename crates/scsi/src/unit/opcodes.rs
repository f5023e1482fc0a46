//! REPORT SUPPORTED OPERATION CODES (SPC-4, section 6.34): the table of commands, as far as this
//! logical unit supports them.

use alloc::{vec, vec::Vec};

use netraid_block::narrow;

use super::LogicalUnit;
use crate::{
    bytes::put,
    cdb::{
        Feature, Reported,
        table::{self, Row},
    },
    sense::Sense,
};

impl LogicalUnit {
    /// Whether a command of the table is supported here.
    pub(super) fn supports(&self, row: &Row) -> bool {
        row.features.iter().all(|feature| self.has(*feature))
    }

    /// Whether any command with this operation code is.
    pub(super) fn supports_opcode(&self, opcode: u8) -> bool {
        table::rows(opcode).iter().any(|row| self.supports(row))
    }

    fn has(&self, feature: Feature) -> bool {
        match feature {
            Feature::Discard => self.info().can_discard,
            Feature::AtomicWrite => self.atomic_max() > 0,
            Feature::Sanitize => self.config.can_sanitize,
        }
    }

    /// REPORT SUPPORTED OPERATION CODES (SPC-4, section 6.34).
    pub(super) fn supported_opcodes(
        &self,
        reported: Reported,
        timeouts: bool,
    ) -> Result<Vec<u8>, Sense> {
        let (opcode, action) = match reported {
            Reported::All => return Ok(self.all_opcodes(timeouts)),
            Reported::Opcode(opcode) => (opcode, None),
            Reported::ServiceAction(opcode, action) => (opcode, Some(action)),
            Reported::Either(opcode, action) => {
                let first = table::rows(opcode).first();
                let has_actions = first.is_some_and(|row| row.service_action.is_some());
                if !has_actions && action != 0 {
                    return Ok(NOT_SUPPORTED.to_vec());
                }
                (opcode, has_actions.then_some(action))
            }
        };
        let rows = table::rows(opcode);
        // To ask with a service action where there are none, or the reverse, is an error.
        if rows.first().is_some_and(|row| row.service_action.is_some() != action.is_some()) {
            return Err(Sense::invalid_cdb(2, Some(2)));
        }
        let row = rows.iter().find(|row| row.service_action == action && self.supports(row));
        let Some(row) = row else { return Ok(NOT_SUPPORTED.to_vec()) };
        let len = narrow(row.usage.len());
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
            let len = narrow(row.usage.len());
            out.extend([row.opcode(), 0, high, low, 0, flags, 0, len]);
            if timeouts {
                out.extend(NO_TIMEOUTS);
            }
        }
        let len: u32 = narrow(out.len() - 4);
        put(&mut out, 0, len.to_be_bytes());
        out
    }
}

/// One command parameter data of a command that is not supported.
const NOT_SUPPORTED: [u8; 4] = [0, 0x01, 0, 0];

/// A command timeouts descriptor that names none (SPC-4, section 6.34.4).
const NO_TIMEOUTS: [u8; 12] = [0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
