//! PDUs that an initiator sends.

use super::{Bhs, LunField, NO_TAG, Opcode, bit};

/// SCSI Command (RFC 7143, section 11.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScsiCommand {
    /// Delivered at once, without advancing CmdSN.
    pub immediate: bool,
    /// No unsolicited Data-Out follows.
    pub last: bool,
    /// Data-In is expected.
    pub read: bool,
    /// Data-Out is expected.
    pub write: bool,
    /// Task attribute: 0 untagged, 1 simple, 2 ordered, 3 head of queue, 4 ACA.
    pub attribute: u8,
    /// Logical unit.
    pub lun: LunField,
    /// Initiator task tag.
    pub itt: u32,
    /// Expected data transfer length in bytes.
    pub expected_len: u32,
    /// Command descriptor block, padded with zeros.
    pub cdb: [u8; 16],
}

impl ScsiCommand {
    /// Reads the fields.
    #[must_use]
    pub fn parse(bhs: &Bhs) -> Self {
        Self {
            immediate: bhs.immediate(),
            last: bhs.flag(0x80),
            read: bhs.flag(0x40),
            write: bhs.flag(0x20),
            attribute: bhs.0[1] & 7,
            lun: bhs.lun(),
            itt: bhs.itt(),
            expected_len: bhs.u32_at(20),
            cdb: bhs.array_at(32),
        }
    }

    /// Writes the header.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let flags = bit(self.last, 0x80) | bit(self.read, 0x40) | bit(self.write, 0x20);
        let mut bhs = Bhs::new(Opcode::ScsiCommand, flags | (self.attribute & 7));
        bhs.0[0] |= bit(self.immediate, 0x40);
        bhs.put(8, &self.lun.0);
        bhs.put_u32(16, self.itt);
        bhs.put_u32(20, self.expected_len);
        bhs.put(32, &self.cdb);
        bhs
    }
}

/// SCSI Data-Out (RFC 7143, section 11.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataOut {
    /// Last of its sequence.
    pub last: bool,
    /// Logical unit; given when `ttt` is.
    pub lun: LunField,
    /// Initiator task tag.
    pub itt: u32,
    /// Tag of the R2T that this answers; [`NO_TAG`] for unsolicited data.
    pub ttt: u32,
    /// Number of this PDU within its sequence.
    pub data_sn: u32,
    /// Where the data belongs, in bytes from the start of the command's data.
    pub offset: u32,
}

impl DataOut {
    /// Reads the fields.
    #[must_use]
    pub fn parse(bhs: &Bhs) -> Self {
        Self {
            last: bhs.flag(0x80),
            lun: bhs.lun(),
            itt: bhs.itt(),
            ttt: bhs.u32_at(20),
            data_sn: bhs.u32_at(36),
            offset: bhs.u32_at(40),
        }
    }

    /// Writes the header.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::DataOut, bit(self.last, 0x80));
        bhs.put(8, &self.lun.0);
        bhs.put_u32(16, self.itt);
        bhs.put_u32(20, self.ttt);
        bhs.put_u32(36, self.data_sn);
        bhs.put_u32(40, self.offset);
        bhs
    }
}

/// NOP-Out (RFC 7143, section 11.18).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NopOut {
    /// Delivered at once, without advancing CmdSN.
    pub immediate: bool,
    /// Logical unit; copied from the NOP-In that this answers.
    pub lun: LunField,
    /// Initiator task tag; [`NO_TAG`] when no answer is wanted.
    pub itt: u32,
    /// Tag of the NOP-In that this answers; [`NO_TAG`] for a ping.
    pub ttt: u32,
}

impl NopOut {
    /// Reads the fields.
    #[must_use]
    pub fn parse(bhs: &Bhs) -> Self {
        Self { immediate: bhs.immediate(), lun: bhs.lun(), itt: bhs.itt(), ttt: bhs.u32_at(20) }
    }

    /// Writes the header.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::NopOut, 0x80);
        bhs.0[0] |= bit(self.immediate, 0x40);
        bhs.put(8, &self.lun.0);
        bhs.put_u32(16, self.itt);
        bhs.put_u32(20, self.ttt);
        bhs
    }
}

/// Task management functions (RFC 7143, section 11.5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskFunction {
    /// Ends one task.
    AbortTask,
    /// Ends all tasks of this session on one logical unit.
    AbortTaskSet,
    /// Clears the auto contingent allegiance condition.
    ClearAca,
    /// Ends all tasks of all sessions on one logical unit.
    ClearTaskSet,
    /// Resets one logical unit.
    LogicalUnitReset,
    /// Resets all logical units.
    TargetWarmReset,
    /// Resets all logical units and drops all sessions.
    TargetColdReset,
    /// Moves a task to this connection.
    TaskReassign,
    /// A function that RFC 7143 does not define.
    Unknown(u8),
}

impl TaskFunction {
    const fn from_byte(byte: u8) -> Self {
        match byte & 0x7f {
            1 => Self::AbortTask,
            2 => Self::AbortTaskSet,
            3 => Self::ClearAca,
            4 => Self::ClearTaskSet,
            5 => Self::LogicalUnitReset,
            6 => Self::TargetWarmReset,
            7 => Self::TargetColdReset,
            8 => Self::TaskReassign,
            other => Self::Unknown(other),
        }
    }

    const fn byte(self) -> u8 {
        match self {
            Self::AbortTask => 1,
            Self::AbortTaskSet => 2,
            Self::ClearAca => 3,
            Self::ClearTaskSet => 4,
            Self::LogicalUnitReset => 5,
            Self::TargetWarmReset => 6,
            Self::TargetColdReset => 7,
            Self::TaskReassign => 8,
            Self::Unknown(other) => other & 0x7f,
        }
    }
}

/// Task Management Function Request (RFC 7143, section 11.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskRequest {
    /// Delivered at once, without advancing CmdSN.
    pub immediate: bool,
    /// What to do.
    pub function: TaskFunction,
    /// Logical unit.
    pub lun: LunField,
    /// Initiator task tag of this request.
    pub itt: u32,
    /// Initiator task tag of the task to abort.
    pub referenced_itt: u32,
    /// CmdSN of the task to abort.
    pub ref_cmd_sn: u32,
}

impl TaskRequest {
    /// Reads the fields.
    #[must_use]
    pub fn parse(bhs: &Bhs) -> Self {
        Self {
            immediate: bhs.immediate(),
            function: TaskFunction::from_byte(bhs.0[1]),
            lun: bhs.lun(),
            itt: bhs.itt(),
            referenced_itt: bhs.u32_at(20),
            ref_cmd_sn: bhs.u32_at(32),
        }
    }

    /// Writes the header.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::TaskRequest, 0x80 | self.function.byte());
        bhs.0[0] |= bit(self.immediate, 0x40);
        bhs.put(8, &self.lun.0);
        bhs.put_u32(16, self.itt);
        bhs.put_u32(20, self.referenced_itt);
        bhs.put_u32(32, self.ref_cmd_sn);
        bhs
    }
}

/// Login Request (RFC 7143, section 11.12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginRequest {
    /// The sender is ready to leave the current stage.
    pub transit: bool,
    /// The text goes on in the next request.
    pub more: bool,
    /// Current stage: 0 security, 1 operational, 3 full feature.
    pub current_stage: u8,
    /// Stage after this one, when `transit`.
    pub next_stage: u8,
    /// Highest version that the sender speaks.
    pub version_max: u8,
    /// Lowest version that the sender speaks.
    pub version_min: u8,
    /// The initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// The target's part; 0 asks for a new session.
    pub tsih: u16,
    /// Initiator task tag.
    pub itt: u32,
    /// Connection identifier.
    pub cid: u16,
}

impl LoginRequest {
    /// Reads the fields.
    #[must_use]
    pub fn parse(bhs: &Bhs) -> Self {
        Self {
            transit: bhs.flag(0x80),
            more: bhs.flag(0x40),
            current_stage: bhs.0[1] >> 2 & 3,
            next_stage: bhs.0[1] & 3,
            version_max: bhs.0[2],
            version_min: bhs.0[3],
            isid: bhs.array_at(8),
            tsih: bhs.u16_at(14),
            itt: bhs.itt(),
            cid: bhs.u16_at(20),
        }
    }

    /// Writes the header; login requests are always immediate.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let stages = (self.current_stage & 3) << 2 | (self.next_stage & 3);
        let flags = bit(self.transit, 0x80) | bit(self.more, 0x40) | stages;
        let mut bhs = Bhs::new(Opcode::LoginRequest, flags);
        bhs.0[0] |= 0x40;
        bhs.0[2] = self.version_max;
        bhs.0[3] = self.version_min;
        bhs.put(8, &self.isid);
        bhs.put_u16(14, self.tsih);
        bhs.put_u32(16, self.itt);
        bhs.put_u16(20, self.cid);
        bhs
    }
}

/// Text Request (RFC 7143, section 11.10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextRequest {
    /// Delivered at once, without advancing CmdSN.
    pub immediate: bool,
    /// The negotiation ends with this request as far as the sender is concerned.
    pub last: bool,
    /// The text goes on in the next request.
    pub more: bool,
    /// Logical unit; copied from the response that this goes on from.
    pub lun: LunField,
    /// Initiator task tag.
    pub itt: u32,
    /// Tag of the response that this goes on from; [`NO_TAG`] at the start.
    pub ttt: u32,
}

impl TextRequest {
    /// Reads the fields.
    #[must_use]
    pub fn parse(bhs: &Bhs) -> Self {
        Self {
            immediate: bhs.immediate(),
            last: bhs.flag(0x80),
            more: bhs.flag(0x40),
            lun: bhs.lun(),
            itt: bhs.itt(),
            ttt: bhs.u32_at(20),
        }
    }

    /// Writes the header.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::TextRequest, bit(self.last, 0x80) | bit(self.more, 0x40));
        bhs.0[0] |= bit(self.immediate, 0x40);
        bhs.put(8, &self.lun.0);
        bhs.put_u32(16, self.itt);
        bhs.put_u32(20, self.ttt);
        bhs
    }
}

/// Why an initiator logs out (RFC 7143, section 11.14.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogoutReason {
    /// Ends the session.
    CloseSession,
    /// Ends one connection.
    CloseConnection,
    /// Prepares a connection's recovery.
    Recovery,
    /// A reason that RFC 7143 does not define.
    Unknown(u8),
}

/// Logout Request (RFC 7143, section 11.14).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogoutRequest {
    /// Delivered at once, without advancing CmdSN.
    pub immediate: bool,
    /// Why.
    pub reason: LogoutReason,
    /// Initiator task tag.
    pub itt: u32,
    /// Connection to close.
    pub cid: u16,
}

impl LogoutRequest {
    /// Reads the fields.
    #[must_use]
    pub fn parse(bhs: &Bhs) -> Self {
        let reason = match bhs.0[1] & 0x7f {
            0 => LogoutReason::CloseSession,
            1 => LogoutReason::CloseConnection,
            2 => LogoutReason::Recovery,
            other => LogoutReason::Unknown(other),
        };
        Self { immediate: bhs.immediate(), reason, itt: bhs.itt(), cid: bhs.u16_at(20) }
    }

    /// Writes the header.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let reason = match self.reason {
            LogoutReason::CloseSession => 0,
            LogoutReason::CloseConnection => 1,
            LogoutReason::Recovery => 2,
            LogoutReason::Unknown(other) => other & 0x7f,
        };
        let mut bhs = Bhs::new(Opcode::LogoutRequest, 0x80 | reason);
        bhs.0[0] |= bit(self.immediate, 0x40);
        bhs.put_u32(16, self.itt);
        bhs.put_u16(20, self.cid);
        bhs
    }
}

impl NopOut {
    /// A ping under `itt`.
    #[must_use]
    pub const fn ping(itt: u32) -> Self {
        Self { immediate: true, lun: LunField([0; 8]), itt, ttt: NO_TAG }
    }
}
