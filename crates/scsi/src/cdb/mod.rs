//! Command descriptor blocks: what a target understands, and what an initiator sends.
//!
//! A CDB is checked against its row of the [`table`] before any field is read: a bit that the row
//! does not use must be zero. So reserved bits, protection fields and features that are not
//! offered all end as INVALID FIELD IN CDB, in one place.

pub mod build;
pub mod reserve;
pub mod table;

use netraid_block::narrow;

pub use self::{
    reserve::{ReserveIn, ReserveInAction, ReserveOut, ReserveOutAction},
    table::{Access, Feature, WhileSanitizing},
};
use crate::{
    bytes::{be16, be32, be64},
    sense::{Additional, Sense},
};

/// Longest CDB that is understood, in bytes.
pub const CDB_LEN_MAX: usize = 16;

/// A range of logical blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First logical block.
    pub lba: u64,
    /// Number of logical blocks.
    pub blocks: u32,
}

/// How VERIFY and WRITE AND VERIFY compare (SBC-3, BYTCHK field).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteCheck {
    /// The medium is read and not compared.
    Medium,
    /// The medium is compared with the data-out buffer.
    Compare,
    /// Each block is compared with the one block of the data-out buffer (VERIFY only).
    CompareOne,
}

/// Fields of START STOP UNIT (SBC-3, section 5.25).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartStop {
    /// What was written need not be made stable first.
    pub no_flush: bool,
    /// The medium is loaded or ejected.
    pub load_eject: bool,
    /// Start, not stop.
    pub start: bool,
}

/// What SANITIZE is to do (SBC-3, section 5.22).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SanitizeAction {
    /// Write a pattern over everything; the pattern is in the parameter list.
    Overwrite,
    /// Unmap everything.
    BlockErase,
    /// Give up on a sanitize operation that failed.
    ExitFailureMode,
}

/// Fields of SANITIZE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sanitize {
    /// What is to be done.
    pub action: SanitizeAction,
    /// Status is returned when the operation has begun.
    pub immediate: bool,
    /// Allow unrestricted sanitize exit: EXIT FAILURE MODE may end a failed operation.
    pub unrestricted: bool,
    /// Bytes of parameters.
    pub parameter_len: u16,
}

/// Which values of mode pages MODE SENSE asks for (SPC-4, PC field).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageControl {
    /// Current values.
    Current,
    /// A mask of the bits that MODE SELECT may change.
    Changeable,
    /// Default values.
    Default,
    /// Saved values, which are not supported.
    Saved,
}

/// What REPORT SUPPORTED OPERATION CODES asks for (SPC-4, REPORTING OPTIONS field).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reported {
    /// Every command.
    All,
    /// One operation code that has no service actions.
    Opcode(u8),
    /// One operation code and service action.
    ServiceAction(u8, u16),
    /// One command, with a service action where the operation code has them.
    Either(u8, u16),
}

/// What RECEIVE COPY RESULTS asks for (SPC-4, section 6.17, service actions of LID1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyQuestion {
    /// How far a copy is, or how it ended.
    Status,
    /// What copies are possible.
    OperatingParameters,
    /// Why a copy failed.
    FailedSegment,
}

/// A command that a logical unit understands, with its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the standard's own")]
pub enum Command {
    Report(Report),
    DataOut(DataOut),
    Read { extent: Extent, fua: bool },
    GetLbaStatus { lba: u64, allocation_len: u32 },
    SynchronizeCache { extent: Extent },
    PreFetch { extent: Extent },
    StartStopUnit(StartStop),
    PreventAllowMediumRemoval { prevent: bool },
    Reserve,
    Release,
    PersistentReserveIn(ReserveIn),
    ExtendedCopy { parameter_len: u32 },
    ReceiveCopyResults { question: CopyQuestion, list_id: u8, allocation_len: u32 },
}

/// A command that only reports what the logical unit is, has and can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the standard's own")]
pub enum Report {
    TestUnitReady,
    RequestSense { descriptor: bool, allocation_len: u32 },
    Inquiry { page: Option<u8>, allocation_len: u32 },
    ReadCapacity10,
    ReadCapacity16 { allocation_len: u32 },
    ReportLuns { select: u8, allocation_len: u32 },
    ReportTargetPortGroups { extended: bool, allocation_len: u32 },
    ReportSupportedOpcodes { reported: Reported, timeouts: bool, allocation_len: u32 },
    ReportSupportedTasks { extended: bool, allocation_len: u32 },
    LogSense { page: u8, subpage: u8, parameter: u16, allocation_len: u32 },
    ReadDefectData { long: bool, wanted: u8, allocation_len: u32 },
    ModeSense(ModeSense),
}

/// A command of a logical unit that may ask for data-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the standard's own")]
pub enum DataOut {
    ModeSelect { long: bool, parameter_len: u16 },
    Write { extent: Extent, fua: bool },
    WriteAtomic { extent: Extent, boundary: u16, fua: bool },
    OrWrite { extent: Extent, fua: bool },
    WriteAndVerify { extent: Extent, check: ByteCheck },
    Verify { extent: Extent, check: ByteCheck },
    WriteSame { extent: Extent, unmap: bool, no_data_out: bool },
    CompareAndWrite { extent: Extent, fua: bool },
    Unmap { parameter_len: u16 },
    Sanitize(Sanitize),
    PersistentReserveOut(ReserveOut),
}

impl From<Report> for Command {
    fn from(report: Report) -> Self {
        Self::Report(report)
    }
}

impl From<DataOut> for Command {
    fn from(out: DataOut) -> Self {
        Self::DataOut(out)
    }
}

/// Fields of MODE SENSE (6) and (10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModeSense {
    /// Whether this is the 10-byte form.
    pub long: bool,
    /// Long LBA descriptors are accepted.
    pub long_lba: bool,
    /// Block descriptors shall be left out.
    pub no_descriptors: bool,
    /// Which values.
    pub control: PageControl,
    /// Page code; 3Fh is all pages.
    pub page: u8,
    /// Subpage code; FFh is all subpages.
    pub subpage: u8,
    /// Most bytes to return.
    pub allocation_len: u32,
}

/// Where the CDBs of an operation code that moves blocks say how many.
#[must_use]
pub const fn length_field(opcode: u8) -> u16 {
    match (opcode, opcode >> 5) {
        // COMPARE AND WRITE, WRITE ATOMIC (16).
        (0x89, _) => 13,
        (0x9c, _) => 12,
        (_, 0) => 4,
        (_, 1 | 2) => 7,
        (_, 5) => 6,
        _ => 10,
    }
}

/// Reads a CDB.
///
/// # Errors
/// INVALID COMMAND OPERATION CODE, or INVALID FIELD IN CDB with a pointer to the field.
pub fn parse(bytes: &[u8]) -> Result<Command, Sense> {
    parse_with_row(bytes).map(|(command, _, _)| command)
}

/// Reads a CDB; also its row, and which reservations keep it out.
pub(crate) fn parse_with_row(
    bytes: &[u8],
) -> Result<(Command, &'static table::Row, Access), Sense> {
    let unknown = Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE);
    let &opcode = bytes.first().ok_or(unknown)?;
    let rows = table::rows(opcode);
    let first = rows.first().ok_or(unknown)?;
    let row = match first.service_action {
        None => first,
        Some(_) => {
            let action = u16::from(bytes.get(1).copied().unwrap_or(0) & 0x1f);
            let row = rows.iter().find(|row| row.service_action == Some(action));
            // Bits 4 to 0 of byte 1 are the service action (SPC-4, section 4.2.5.1).
            row.ok_or(Sense::invalid_cdb(1, Some(4)))?
        }
    };
    let cdb = Cdb::checked(bytes, row)?;
    Ok(((row.parse)(&cdb)?, row, row.access_of(&cdb)))
}

/// What a command does to the medium, as statistics tell commands apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CommandKind {
    /// Reads bytes of it for the initiator.
    Read,
    /// Changes bytes of it, whatever else it does.
    Write,
    /// Makes bytes stable.
    Flush,
    /// Gives bytes back.
    Unmap,
    /// All else.
    #[default]
    Other,
}

/// The kind of the command with this operation code, supported or not.
#[must_use]
pub fn kind(opcode: u8) -> CommandKind {
    table::rows(opcode).first().map_or(CommandKind::Other, |row| row.kind)
}

/// The bytes of a CDB that passed its row's check.
pub(crate) struct Cdb([u8; CDB_LEN_MAX]);

impl Cdb {
    fn checked(bytes: &[u8], row: &table::Row) -> Result<Self, Sense> {
        let mut cdb = [0; CDB_LEN_MAX];
        for (at, usage) in row.usage.iter().enumerate() {
            let field = narrow(at);
            let byte = *bytes.get(at).ok_or(Sense::invalid_cdb(field, None))?;
            // The operation code and the service action (byte 1, bits 4 to 0) chose this row.
            let mask = match (at, row.service_action) {
                (0, _) => 0xff,
                (1, Some(_)) => usage | 0x1f,
                _ => *usage,
            };
            if let Some(bit) = (byte & !mask).checked_ilog2() {
                return Err(Sense::invalid_cdb(field, u8::try_from(bit).ok()));
            }
            cdb[at] = byte;
        }
        Ok(Self(cdb))
    }

    pub(crate) const fn byte(&self, at: usize) -> u8 {
        self.0[at]
    }

    pub(crate) const fn bit(&self, at: usize, bit: u8) -> bool {
        self.0[at] & 1 << bit != 0
    }

    pub(crate) fn be16(&self, at: usize) -> u16 {
        be16(&self.0, at).unwrap_or(0)
    }

    pub(crate) fn be32(&self, at: usize) -> u32 {
        be32(&self.0, at).unwrap_or(0)
    }

    pub(crate) fn be64(&self, at: usize) -> u64 {
        be64(&self.0, at).unwrap_or(0)
    }

    /// LBA and transfer length of the forms of 6, 10, 12 and 16 bytes (SPC-4, section 4.2.2).
    pub(crate) fn extent(&self) -> Extent {
        match self.0[0] >> 5 {
            0 => {
                let blocks = u32::from(self.byte(4));
                // In the 6-byte form a length of zero means 256.
                Extent {
                    lba: u64::from(self.be32(0) & 0x001f_ffff),
                    blocks: if blocks == 0 { 256 } else { blocks },
                }
            }
            1 | 2 => Extent { lba: u64::from(self.be32(2)), blocks: u32::from(self.be16(7)) },
            5 => Extent { lba: u64::from(self.be32(2)), blocks: self.be32(6) },
            _ => Extent { lba: self.be64(2), blocks: self.be32(10) },
        }
    }
}
