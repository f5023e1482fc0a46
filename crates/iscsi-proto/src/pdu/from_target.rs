//! PDUs that a target sends.

use super::{
    Bhs, LunField, NO_TAG, Opcode,
    fields::{
        At, Bits, Code, Coded, FINAL, Flag, ITT, LUN, MORE, OVERFLOW, Place as _, TTT, Underflow,
        pdu,
    },
};

pdu! {
    /// SCSI Response (RFC 7143, section 11.4); sense data follows in the data segment.
    ScsiResponse [FINAL => true] {
        /// The command wanted to move more than expected.
        overflow: bool = OVERFLOW,
        /// The command moved less than expected.
        underflow: bool = Underflow,
        /// 0: completed at the target; 1: target failure.
        response: u8 = At(2),
        /// SCSI status.
        status: u8 = At(3),
        /// Initiator task tag.
        itt: u32 = ITT,
        /// Number of Data-In and R2T PDUs sent for the command.
        exp_data_sn: u32 = At(36),
        /// Bytes over or under.
        residual: u32 = At(44),
    }
}

pdu! {
    /// SCSI Data-In (RFC 7143, section 11.7).
    DataIn [TTT => NO_TAG] {
        /// Last of its sequence.
        last: bool = FINAL,
        /// The command's status is in this PDU, and no SCSI Response follows.
        has_status: bool = Flag(1, 0x01),
        /// The command wanted to move more than expected; with `has_status`.
        overflow: bool = OVERFLOW,
        /// The command moved less than expected; with `has_status`.
        underflow: bool = Underflow,
        /// SCSI status; with `has_status`.
        status: u8 = At(3),
        /// Initiator task tag.
        itt: u32 = ITT,
        /// Number of this PDU within its command.
        data_sn: u32 = At(36),
        /// Where the data belongs, in bytes from the start of the command's data.
        offset: u32 = At(40),
        /// Bytes over or under; with `has_status`.
        residual: u32 = At(44),
    }
}

pdu! {
    /// Ready To Transfer (RFC 7143, section 11.8).
    R2t [FINAL => true] {
        /// Logical unit, for the initiator to copy.
        lun: LunField = LUN,
        /// Initiator task tag.
        itt: u32 = ITT,
        /// Tag that the data must carry.
        ttt: u32 = TTT,
        /// Number of this R2T within its command.
        r2t_sn: u32 = At(36),
        /// First byte wanted.
        offset: u32 = At(40),
        /// Number of bytes wanted.
        len: u32 = At(44),
    }
}

pdu! {
    /// NOP-In (RFC 7143, section 11.19).
    NopIn [FINAL => true] {
        /// Logical unit.
        lun: LunField = LUN,
        /// Tag of the NOP-Out that this answers; [`NO_TAG`] for a ping.
        itt: u32 = ITT,
        /// Tag that the answer must carry; [`NO_TAG`] when none is wanted.
        ttt: u32 = TTT,
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

impl Code for TaskResponseCode {
    const KNOWN: &'static [(u8, Self)] = &[
        (0, Self::Complete),
        (1, Self::NoTask),
        (2, Self::NoLun),
        (3, Self::StillAllegiant),
        (4, Self::NoReassignment),
        (5, Self::Unsupported),
        (6, Self::Unauthorized),
    ];

    fn other(_: u8) -> Self {
        Self::Rejected
    }

    fn other_code(self) -> u8 {
        255
    }
}

pdu! {
    /// Task Management Function Response (RFC 7143, section 11.6).
    TaskResponse [FINAL => true] {
        /// How it ended.
        code: TaskResponseCode = Coded(2, 0xff),
        /// Initiator task tag of the request.
        itt: u32 = ITT,
    }
}

pdu! {
    /// Login Response (RFC 7143, section 11.13).
    LoginResponse {
        /// The target agrees to leave the current stage.
        transit: bool = Flag(1, 0x80),
        /// The text goes on in the next response.
        more: bool = MORE,
        /// Current stage.
        current_stage: u8 = Bits(1, 2, 3),
        /// Stage after this one, when `transit`.
        next_stage: u8 = Bits(1, 0, 3),
        /// Version in use.
        version_active: u8 = At(3),
        /// The initiator's part of the session identifier.
        isid: [u8; 6] = At(8),
        /// The target's part; not 0 in the final response of a session's login.
        tsih: u16 = At(14),
        /// Initiator task tag.
        itt: u32 = ITT,
        /// Status: class in the high byte, detail in the low (RFC 7143, section 11.13.5); 0 is success.
        status: u16 = At(36),
    }
}

pdu! {
    /// Text Response (RFC 7143, section 11.11).
    TextResponse {
        /// The negotiation is over.
        last: bool = FINAL,
        /// The text goes on in the next response.
        more: bool = MORE,
        /// Initiator task tag.
        itt: u32 = ITT,
        /// Tag that the next request must carry; [`NO_TAG`] when `last`.
        ttt: u32 = TTT,
    }
}

pdu! {
    /// Logout Response (RFC 7143, section 11.15).
    LogoutResponse [FINAL => true] {
        /// 0 closed, 1 no such connection, 2 recovery not supported, 3 cleanup failed.
        response: u8 = At(2),
        /// Initiator task tag.
        itt: u32 = ITT,
        /// Seconds to wait before coming back.
        time2wait_s: u16 = At(40),
        /// Seconds for which tasks are kept after that.
        time2retain_s: u16 = At(42),
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

impl Code for AsyncEvent {
    const KNOWN: &'static [(u8, Self)] = &[
        (0, Self::Sense),
        (1, Self::LogoutRequested),
        (2, Self::ConnectionDropped),
        (3, Self::SessionDropped),
        (4, Self::Renegotiate),
    ];

    fn other(code: u8) -> Self {
        Self::Other(code)
    }

    fn other_code(self) -> u8 {
        if let Self::Other(code) = self { code } else { 0 }
    }
}

pdu! {
    /// Asynchronous Message (RFC 7143, section 11.9).
    AsyncMessage [FINAL => true, ITT => NO_TAG] {
        /// What is told.
        event: AsyncEvent = Coded(36, 0xff),
        /// Logical unit, for sense data.
        lun: LunField = LUN,
        /// Depends on the event.
        parameter1: u16 = At(38),
        /// Seconds to wait before coming back.
        parameter2: u16 = At(40),
        /// Seconds left.
        parameter3: u16 = At(42),
    }
}

/// Why a PDU was refused (RFC 7143, section 11.17.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectReason {
    /// Data digest error.
    DataDigest,
    /// SNACK reject.
    Snack,
    /// Protocol error.
    Protocol,
    /// Command not supported.
    Unsupported,
    /// Too many immediate commands.
    TooManyImmediate,
    /// Task in progress.
    TaskInProgress,
    /// Invalid PDU field.
    InvalidField,
    /// Out of resources.
    OutOfResources,
    /// Waiting for logout.
    WaitingForLogout,
    /// A reason that RFC 7143 does not define.
    Other,
}

impl Code for RejectReason {
    const KNOWN: &'static [(u8, Self)] = &[
        (0x02, Self::DataDigest),
        (0x03, Self::Snack),
        (0x04, Self::Protocol),
        (0x05, Self::Unsupported),
        (0x06, Self::TooManyImmediate),
        (0x07, Self::TaskInProgress),
        (0x09, Self::InvalidField),
        (0x0a, Self::OutOfResources),
        (0x0c, Self::WaitingForLogout),
    ];

    fn other(_: u8) -> Self {
        Self::Other
    }

    fn other_code(self) -> u8 {
        0xff
    }
}

pdu! {
    /// Reject (RFC 7143, section 11.17); the refused header is in the data segment.
    Reject [FINAL => true, ITT => NO_TAG] {
        /// Why.
        reason: RejectReason = Coded(2, 0xff),
    }
}
