//! PDUs that a target sends.

use super::{Bhs, LunField, NO_TAG, Opcode, bit};

/// How many bytes more or fewer a command would have moved than the initiator expected
/// (RFC 7143, section 11.4.5). Of both bits set, overflow is believed.
fn residual_flags(overflow: bool, underflow: bool) -> u8 {
    bit(overflow, 0x04) | bit(underflow && !overflow, 0x02)
}

/// SCSI Response (RFC 7143, section 11.4); sense data follows in the data segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScsiResponse {
    /// The command wanted to move more than expected.
    pub overflow: bool,
    /// The command moved less than expected.
    pub underflow: bool,
    /// 0: completed at the target; 1: target failure.
    pub response: u8,
    /// SCSI status.
    pub status: u8,
    /// Initiator task tag.
    pub itt: u32,
    /// Number of Data-In and R2T PDUs sent for the command.
    pub exp_data_sn: u32,
    /// Bytes over or under.
    pub residual: u32,
}

impl ScsiResponse {
    /// Reads the fields.
    #[must_use]
    pub fn parse(bhs: &Bhs) -> Self {
        let overflow = bhs.flag(0x04);
        Self {
            overflow,
            underflow: bhs.flag(0x02) && !overflow,
            response: bhs.0[2],
            status: bhs.0[3],
            itt: bhs.itt(),
            exp_data_sn: bhs.u32_at(36),
            residual: bhs.u32_at(44),
        }
    }

    /// Writes the header.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let flags = 0x80 | residual_flags(self.overflow, self.underflow);
        let mut bhs = Bhs::new(Opcode::ScsiResponse, flags);
        bhs.0[2] = self.response;
        bhs.0[3] = self.status;
        bhs.put_u32(16, self.itt);
        bhs.put_u32(36, self.exp_data_sn);
        bhs.put_u32(44, self.residual);
        bhs
    }
}

/// SCSI Data-In (RFC 7143, section 11.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataIn {
    /// Last of its sequence.
    pub last: bool,
    /// The command's status is in this PDU, and no SCSI Response follows.
    pub has_status: bool,
    /// The command wanted to move more than expected; with `has_status`.
    pub overflow: bool,
    /// The command moved less than expected; with `has_status`.
    pub underflow: bool,
    /// SCSI status; with `has_status`.
    pub status: u8,
    /// Initiator task tag.
    pub itt: u32,
    /// Number of this PDU within its command.
    pub data_sn: u32,
    /// Where the data belongs, in bytes from the start of the command's data.
    pub offset: u32,
    /// Bytes over or under; with `has_status`.
    pub residual: u32,
}

impl DataIn {
    /// Reads the fields.
    #[must_use]
    pub fn parse(bhs: &Bhs) -> Self {
        let overflow = bhs.flag(0x04);
        Self {
            last: bhs.flag(0x80),
            has_status: bhs.flag(0x01),
            overflow,
            underflow: bhs.flag(0x02) && !overflow,
            status: bhs.0[3],
            itt: bhs.itt(),
            data_sn: bhs.u32_at(36),
            offset: bhs.u32_at(40),
            residual: bhs.u32_at(44),
        }
    }

    /// Writes the header.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let flags = bit(self.last, 0x80)
            | bit(self.has_status, 0x01)
            | residual_flags(self.overflow, self.underflow);
        let mut bhs = Bhs::new(Opcode::DataIn, flags);
        bhs.0[3] = self.status;
        bhs.put_u32(16, self.itt);
        bhs.put_u32(20, NO_TAG);
        bhs.put_u32(36, self.data_sn);
        bhs.put_u32(40, self.offset);
        bhs.put_u32(44, self.residual);
        bhs
    }
}

/// Ready To Transfer (RFC 7143, section 11.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct R2t {
    /// Logical unit, for the initiator to copy.
    pub lun: LunField,
    /// Initiator task tag.
    pub itt: u32,
    /// Tag that the data must carry.
    pub ttt: u32,
    /// Number of this R2T within its command.
    pub r2t_sn: u32,
    /// First byte wanted.
    pub offset: u32,
    /// Number of bytes wanted.
    pub len: u32,
}

impl R2t {
    /// Reads the fields.
    #[must_use]
    pub fn parse(bhs: &Bhs) -> Self {
        Self {
            lun: bhs.lun(),
            itt: bhs.itt(),
            ttt: bhs.u32_at(20),
            r2t_sn: bhs.u32_at(36),
            offset: bhs.u32_at(40),
            len: bhs.u32_at(44),
        }
    }

    /// Writes the header.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::R2t, 0x80);
        bhs.put(8, &self.lun.0);
        bhs.put_u32(16, self.itt);
        bhs.put_u32(20, self.ttt);
        bhs.put_u32(36, self.r2t_sn);
        bhs.put_u32(40, self.offset);
        bhs.put_u32(44, self.len);
        bhs
    }
}

/// NOP-In (RFC 7143, section 11.19).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NopIn {
    /// Logical unit.
    pub lun: LunField,
    /// Tag of the NOP-Out that this answers; [`NO_TAG`] for a ping.
    pub itt: u32,
    /// Tag that the answer must carry; [`NO_TAG`] when none is wanted.
    pub ttt: u32,
}

impl NopIn {
    /// Reads the fields.
    #[must_use]
    pub fn parse(bhs: &Bhs) -> Self {
        Self { lun: bhs.lun(), itt: bhs.itt(), ttt: bhs.u32_at(20) }
    }

    /// Writes the header.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::NopIn, 0x80);
        bhs.put(8, &self.lun.0);
        bhs.put_u32(16, self.itt);
        bhs.put_u32(20, self.ttt);
        bhs
    }
}

/// How a task management function ended (RFC 7143, section 11.6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskResponseCode {
    /// Done.
    Complete,
    /// There is no such task.
    NoTask,
    /// There is no such logical unit.
    NoLun,
    /// The task still belongs to another connection.
    StillAllegiant,
    /// Tasks cannot be reassigned.
    NoReassignment,
    /// The target does not do this function.
    Unsupported,
    /// The initiator may not do this.
    Unauthorized,
    /// Refused, or a code that RFC 7143 does not define.
    Rejected,
}

/// Task Management Function Response (RFC 7143, section 11.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskResponse {
    /// How it ended.
    pub code: TaskResponseCode,
    /// Initiator task tag of the request.
    pub itt: u32,
}

impl TaskResponse {
    const CODES: [(u8, TaskResponseCode); 7] = [
        (0, TaskResponseCode::Complete),
        (1, TaskResponseCode::NoTask),
        (2, TaskResponseCode::NoLun),
        (3, TaskResponseCode::StillAllegiant),
        (4, TaskResponseCode::NoReassignment),
        (5, TaskResponseCode::Unsupported),
        (6, TaskResponseCode::Unauthorized),
    ];

    /// Reads the fields.
    #[must_use]
    pub fn parse(bhs: &Bhs) -> Self {
        let found = Self::CODES.iter().find(|(byte, _)| *byte == bhs.0[2]);
        let code = found.map_or(TaskResponseCode::Rejected, |(_, code)| *code);
        Self { code, itt: bhs.itt() }
    }

    /// Writes the header.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::TaskResponse, 0x80);
        let found = Self::CODES.iter().find(|(_, code)| *code == self.code);
        bhs.0[2] = found.map_or(255, |(byte, _)| *byte);
        bhs.put_u32(16, self.itt);
        bhs
    }
}

/// Login Response (RFC 7143, section 11.13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginResponse {
    /// The target agrees to leave the current stage.
    pub transit: bool,
    /// The text goes on in the next response.
    pub more: bool,
    /// Current stage.
    pub current_stage: u8,
    /// Stage after this one, when `transit`.
    pub next_stage: u8,
    /// Version in use.
    pub version_active: u8,
    /// The initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// The target's part; not 0 in the final response of a session's login.
    pub tsih: u16,
    /// Initiator task tag.
    pub itt: u32,
    /// Status: class in the high byte, detail in the low (RFC 7143, section 11.13.5); 0 is success.
    pub status: u16,
}

impl LoginResponse {
    /// Reads the fields.
    #[must_use]
    pub fn parse(bhs: &Bhs) -> Self {
        Self {
            transit: bhs.flag(0x80),
            more: bhs.flag(0x40),
            current_stage: bhs.0[1] >> 2 & 3,
            next_stage: bhs.0[1] & 3,
            version_active: bhs.0[3],
            isid: bhs.array_at(8),
            tsih: bhs.u16_at(14),
            itt: bhs.itt(),
            status: bhs.u16_at(36),
        }
    }

    /// Writes the header.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let stages = (self.current_stage & 3) << 2 | (self.next_stage & 3);
        let flags = bit(self.transit, 0x80) | bit(self.more, 0x40) | stages;
        let mut bhs = Bhs::new(Opcode::LoginResponse, flags);
        bhs.0[3] = self.version_active;
        bhs.put(8, &self.isid);
        bhs.put_u16(14, self.tsih);
        bhs.put_u32(16, self.itt);
        bhs.put_u16(36, self.status);
        bhs
    }
}

/// Text Response (RFC 7143, section 11.11).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextResponse {
    /// The negotiation is over.
    pub last: bool,
    /// The text goes on in the next response.
    pub more: bool,
    /// Initiator task tag.
    pub itt: u32,
    /// Tag that the next request must carry; [`NO_TAG`] when `last`.
    pub ttt: u32,
}

impl TextResponse {
    /// Reads the fields.
    #[must_use]
    pub fn parse(bhs: &Bhs) -> Self {
        Self { last: bhs.flag(0x80), more: bhs.flag(0x40), itt: bhs.itt(), ttt: bhs.u32_at(20) }
    }

    /// Writes the header.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::TextResponse, bit(self.last, 0x80) | bit(self.more, 0x40));
        bhs.put_u32(16, self.itt);
        bhs.put_u32(20, self.ttt);
        bhs
    }
}

/// Logout Response (RFC 7143, section 11.15).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogoutResponse {
    /// 0 closed, 1 no such connection, 2 recovery not supported, 3 cleanup failed.
    pub response: u8,
    /// Initiator task tag.
    pub itt: u32,
    /// Seconds to wait before coming back.
    pub time2wait_s: u16,
    /// Seconds for which tasks are kept after that.
    pub time2retain_s: u16,
}

impl LogoutResponse {
    /// Reads the fields.
    #[must_use]
    pub fn parse(bhs: &Bhs) -> Self {
        Self {
            response: bhs.0[2],
            itt: bhs.itt(),
            time2wait_s: bhs.u16_at(40),
            time2retain_s: bhs.u16_at(42),
        }
    }

    /// Writes the header.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::LogoutResponse, 0x80);
        bhs.0[2] = self.response;
        bhs.put_u32(16, self.itt);
        bhs.put_u16(40, self.time2wait_s);
        bhs.put_u16(42, self.time2retain_s);
        bhs
    }
}

/// What an Asynchronous Message tells (RFC 7143, section 11.9.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsyncEvent {
    /// Sense data of a logical unit is in the data segment.
    Sense,
    /// The target asks for a logout within `parameter3` seconds.
    LogoutRequested,
    /// The target will drop connection `parameter1`.
    ConnectionDropped,
    /// The target will drop all connections of the session.
    SessionDropped,
    /// The target asks for parameter negotiation within `parameter3` seconds.
    Renegotiate,
    /// A vendor's event, or one that RFC 7143 does not define.
    Other(u8),
}

/// Asynchronous Message (RFC 7143, section 11.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsyncMessage {
    /// What is told.
    pub event: AsyncEvent,
    /// Logical unit, for sense data.
    pub lun: LunField,
    /// Depends on the event.
    pub parameter1: u16,
    /// Seconds to wait before coming back.
    pub parameter2: u16,
    /// Seconds left.
    pub parameter3: u16,
}

impl AsyncMessage {
    /// Reads the fields.
    #[must_use]
    pub fn parse(bhs: &Bhs) -> Self {
        let event = match bhs.0[36] {
            0 => AsyncEvent::Sense,
            1 => AsyncEvent::LogoutRequested,
            2 => AsyncEvent::ConnectionDropped,
            3 => AsyncEvent::SessionDropped,
            4 => AsyncEvent::Renegotiate,
            other => AsyncEvent::Other(other),
        };
        Self {
            event,
            lun: bhs.lun(),
            parameter1: bhs.u16_at(38),
            parameter2: bhs.u16_at(40),
            parameter3: bhs.u16_at(42),
        }
    }

    /// Writes the header.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::AsyncMessage, 0x80);
        bhs.put(8, &self.lun.0);
        bhs.put_u32(16, NO_TAG);
        bhs.0[36] = match self.event {
            AsyncEvent::Sense => 0,
            AsyncEvent::LogoutRequested => 1,
            AsyncEvent::ConnectionDropped => 2,
            AsyncEvent::SessionDropped => 3,
            AsyncEvent::Renegotiate => 4,
            AsyncEvent::Other(other) => other,
        };
        bhs.put_u16(38, self.parameter1);
        bhs.put_u16(40, self.parameter2);
        bhs.put_u16(42, self.parameter3);
        bhs
    }
}

/// Why a PDU was refused (RFC 7143, section 11.17.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RejectReason {
    /// Data digest error.
    DataDigest = 0x02,
    /// SNACK reject.
    Snack = 0x03,
    /// Protocol error.
    Protocol = 0x04,
    /// Command not supported.
    Unsupported = 0x05,
    /// Too many immediate commands.
    TooManyImmediate = 0x06,
    /// Task in progress.
    TaskInProgress = 0x07,
    /// Invalid PDU field.
    InvalidField = 0x09,
    /// Out of resources.
    OutOfResources = 0x0a,
    /// Waiting for logout.
    WaitingForLogout = 0x0c,
    /// A reason that RFC 7143 does not define.
    Other = 0xff,
}

impl RejectReason {
    const ALL: [Self; 9] = [
        Self::DataDigest,
        Self::Snack,
        Self::Protocol,
        Self::Unsupported,
        Self::TooManyImmediate,
        Self::TaskInProgress,
        Self::InvalidField,
        Self::OutOfResources,
        Self::WaitingForLogout,
    ];
}

/// Reject (RFC 7143, section 11.17); the refused header is in the data segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reject {
    /// Why.
    pub reason: RejectReason,
}

impl Reject {
    /// Reads the fields.
    #[must_use]
    pub fn parse(bhs: &Bhs) -> Self {
        let found = RejectReason::ALL.into_iter().find(|reason| *reason as u8 == bhs.0[2]);
        Self { reason: found.unwrap_or(RejectReason::Other) }
    }

    /// Writes the header.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::Reject, 0x80);
        bhs.0[2] = self.reason as u8;
        bhs.put_u32(16, NO_TAG);
        bhs
    }
}
