//! PDUs that an initiator sends.

use super::{
    Bhs, LunField, NO_TAG, Opcode,
    fields::{At, Bits, Code, Coded, FINAL, Flag, IMMEDIATE, ITT, LUN, MORE, Place as _, TTT, pdu},
};

pdu! {
    /// SCSI Command (RFC 7143, section 11.3).
    ScsiCommand {
        /// Delivered at once, without advancing CmdSN.
        immediate: bool = IMMEDIATE,
        /// No unsolicited Data-Out follows.
        last: bool = FINAL,
        /// Data-In is expected.
        read: bool = Flag(1, 0x40),
        /// Data-Out is expected.
        write: bool = Flag(1, 0x20),
        /// Task attribute: 0 untagged, 1 simple, 2 ordered, 3 head of queue, 4 ACA.
        attribute: u8 = Bits(1, 0, 7),
        /// Logical unit.
        lun: LunField = LUN,
        /// Initiator task tag.
        itt: u32 = ITT,
        /// Expected data transfer length in bytes.
        expected_len: u32 = At(20),
        /// Command descriptor block, padded with zeros.
        cdb: [u8; 16] = At(32),
    }
}

pdu! {
    /// SCSI Data-Out (RFC 7143, section 11.7).
    DataOut {
        /// Last of its sequence.
        last: bool = FINAL,
        /// Logical unit; given when `ttt` is.
        lun: LunField = LUN,
        /// Initiator task tag.
        itt: u32 = ITT,
        /// Tag of the R2T that this answers; [`NO_TAG`] for unsolicited data.
        ttt: u32 = TTT,
        /// Number of this PDU within its sequence.
        data_sn: u32 = At(36),
        /// Where the data belongs, in bytes from the start of the command's data.
        offset: u32 = At(40),
    }
}

pdu! {
    /// NOP-Out (RFC 7143, section 11.18).
    NopOut [FINAL => true] {
        /// Delivered at once, without advancing CmdSN.
        immediate: bool = IMMEDIATE,
        /// Logical unit; copied from the NOP-In that this answers.
        lun: LunField = LUN,
        /// Initiator task tag; [`NO_TAG`] when no answer is wanted.
        itt: u32 = ITT,
        /// Tag of the NOP-In that this answers; [`NO_TAG`] for a ping.
        ttt: u32 = TTT,
    }
}

impl NopOut {
    /// A ping under `itt`.
    #[must_use]
    pub const fn ping(itt: u32) -> Self {
        Self { immediate: true, lun: LunField([0; 8]), itt, ttt: NO_TAG }
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

impl Code for TaskFunction {
    const KNOWN: &'static [(u8, Self)] = &[
        (1, Self::AbortTask),
        (2, Self::AbortTaskSet),
        (3, Self::ClearAca),
        (4, Self::ClearTaskSet),
        (5, Self::LogicalUnitReset),
        (6, Self::TargetWarmReset),
        (7, Self::TargetColdReset),
        (8, Self::TaskReassign),
    ];

    fn other(code: u8) -> Self {
        Self::Unknown(code)
    }

    fn other_code(self) -> u8 {
        if let Self::Unknown(code) = self { code } else { 0 }
    }
}

pdu! {
    /// Task Management Function Request (RFC 7143, section 11.5).
    TaskRequest [FINAL => true] {
        /// Delivered at once, without advancing CmdSN.
        immediate: bool = IMMEDIATE,
        /// What to do.
        function: TaskFunction = Coded(1, 0x7f),
        /// Logical unit.
        lun: LunField = LUN,
        /// Initiator task tag of this request.
        itt: u32 = ITT,
        /// Initiator task tag of the task to abort.
        referenced_itt: u32 = At(20),
        /// CmdSN of the task to abort.
        ref_cmd_sn: u32 = At(32),
    }
}

pdu! {
    /// Login Request (RFC 7143, section 11.12).
    LoginRequest [IMMEDIATE => true] {
        /// The sender is ready to leave the current stage.
        transit: bool = Flag(1, 0x80),
        /// The text goes on in the next request.
        more: bool = MORE,
        /// Current stage: 0 security, 1 operational, 3 full feature.
        current_stage: u8 = Bits(1, 2, 3),
        /// Stage after this one, when `transit`.
        next_stage: u8 = Bits(1, 0, 3),
        /// Highest version that the sender speaks.
        version_max: u8 = At(2),
        /// Lowest version that the sender speaks.
        version_min: u8 = At(3),
        /// The initiator's part of the session identifier.
        isid: [u8; 6] = At(8),
        /// The target's part; 0 asks for a new session.
        tsih: u16 = At(14),
        /// Initiator task tag.
        itt: u32 = ITT,
        /// Connection identifier.
        cid: u16 = At(20),
    }
}

pdu! {
    /// Text Request (RFC 7143, section 11.10).
    TextRequest {
        /// Delivered at once, without advancing CmdSN.
        immediate: bool = IMMEDIATE,
        /// The negotiation ends with this request as far as the sender is concerned.
        last: bool = FINAL,
        /// The text goes on in the next request.
        more: bool = MORE,
        /// Logical unit; copied from the response that this goes on from.
        lun: LunField = LUN,
        /// Initiator task tag.
        itt: u32 = ITT,
        /// Tag of the response that this goes on from; [`NO_TAG`] at the start.
        ttt: u32 = TTT,
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

impl Code for LogoutReason {
    const KNOWN: &'static [(u8, Self)] =
        &[(0, Self::CloseSession), (1, Self::CloseConnection), (2, Self::Recovery)];

    fn other(code: u8) -> Self {
        Self::Unknown(code)
    }

    fn other_code(self) -> u8 {
        if let Self::Unknown(code) = self { code } else { 0 }
    }
}

pdu! {
    /// Logout Request (RFC 7143, section 11.14).
    LogoutRequest [FINAL => true] {
        /// Delivered at once, without advancing CmdSN.
        immediate: bool = IMMEDIATE,
        /// Why.
        reason: LogoutReason = Coded(1, 0x7f),
        /// Initiator task tag.
        itt: u32 = ITT,
        /// Connection to close.
        cid: u16 = At(20),
    }
}
