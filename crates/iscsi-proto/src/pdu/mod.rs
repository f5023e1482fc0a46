//! The 48-byte basic header segment and typed views of every PDU (RFC 7143, section 11).
//!
//! Parsing never fails for a header of the right length: fields that a peer may not use are
//! ignored, and what a machine must refuse it refuses by value. Views leave the sequence numbers
//! that a machine stamps at sending (StatSN, ExpCmdSN, MaxCmdSN, ExpStatSN) to [`Bhs`].

mod fields;
mod from_initiator;
mod from_target;

pub use from_initiator::{
    DataOut, LoginRequest, LogoutReason, LogoutRequest, NopOut, ScsiCommand, TaskFunction,
    TaskRequest, TextRequest,
};
pub use from_target::{
    AsyncEvent, AsyncMessage, DataIn, LoginResponse, LogoutResponse, NopIn, R2t, Reject,
    RejectReason, ScsiResponse, TaskResponse, TaskResponseCode, TextResponse,
};

use crate::serial::Serial;

/// Bytes of a basic header segment.
pub const BHS_LEN: usize = 48;
/// The reserved value of initiator and target task tags: "no task".
pub const NO_TAG: u32 = 0xffff_ffff;

/// What a PDU is (byte 0 of its header, bits 0 to 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// NOP-Out.
    NopOut = 0x00,
    /// SCSI Command.
    ScsiCommand = 0x01,
    /// Task Management Function Request.
    TaskRequest = 0x02,
    /// Login Request.
    LoginRequest = 0x03,
    /// Text Request.
    TextRequest = 0x04,
    /// SCSI Data-Out.
    DataOut = 0x05,
    /// Logout Request.
    LogoutRequest = 0x06,
    /// SNACK Request.
    Snack = 0x10,
    /// NOP-In.
    NopIn = 0x20,
    /// SCSI Response.
    ScsiResponse = 0x21,
    /// Task Management Function Response.
    TaskResponse = 0x22,
    /// Login Response.
    LoginResponse = 0x23,
    /// Text Response.
    TextResponse = 0x24,
    /// SCSI Data-In.
    DataIn = 0x25,
    /// Logout Response.
    LogoutResponse = 0x26,
    /// Ready To Transfer.
    R2t = 0x31,
    /// Asynchronous Message.
    AsyncMessage = 0x32,
    /// Reject.
    Reject = 0x3f,
}

impl Opcode {
    const ALL: [Self; 18] = [
        Self::NopOut,
        Self::ScsiCommand,
        Self::TaskRequest,
        Self::LoginRequest,
        Self::TextRequest,
        Self::DataOut,
        Self::LogoutRequest,
        Self::Snack,
        Self::NopIn,
        Self::ScsiResponse,
        Self::TaskResponse,
        Self::LoginResponse,
        Self::TextResponse,
        Self::DataIn,
        Self::LogoutResponse,
        Self::R2t,
        Self::AsyncMessage,
        Self::Reject,
    ];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|opcode| *opcode as u8 == byte & 0x3f)
    }
}

/// A logical unit number as it stands in headers: eight bytes (SAM-5, section 4.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LunField(pub [u8; 8]);

impl LunField {
    /// The field of a single-level LUN below 16384: peripheral addressing below 256, flat above.
    #[must_use]
    pub const fn from_number(lun: u16) -> Self {
        let [high, low] = lun.to_be_bytes();
        let method = if lun < 256 { 0 } else { 0x40 };
        Self([method | (high & 0x3f), low, 0, 0, 0, 0, 0, 0])
    }

    /// The number of a single-level LUN; `None` for any other form.
    #[must_use]
    pub const fn number(self) -> Option<u16> {
        match self.0 {
            [0, low, 0, 0, 0, 0, 0, 0] => Some(low as u16),
            [high, low, 0, 0, 0, 0, 0, 0] if high & 0xc0 == 0x40 => {
                Some(u16::from_be_bytes([high & 0x3f, low]))
            }
            _ => None,
        }
    }
}

/// A basic header segment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bhs(pub [u8; BHS_LEN]);

impl core::fmt::Debug for Bhs {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Bhs({:?}, itt {:#x}, {:02x?})", self.opcode(), self.itt(), self.0)
    }
}

impl Bhs {
    fn new(opcode: Opcode) -> Self {
        let mut bytes = [0; BHS_LEN];
        bytes[0] = opcode as u8;
        Self(bytes)
    }

    /// What the PDU is; `None` for opcodes that RFC 7143 does not define.
    #[must_use]
    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::from_byte(self.0[0])
    }

    /// The I bit: delivered at once, without advancing CmdSN.
    #[must_use]
    pub const fn immediate(&self) -> bool {
        self.0[0] & 0x40 != 0
    }

    /// Bytes of additional header segments: at most 1020.
    #[must_use]
    pub const fn ahs_len(&self) -> usize {
        self.0[4] as usize * 4
    }

    /// Bytes of the data segment, without padding: below 2^24.
    #[must_use]
    pub const fn data_len(&self) -> u32 {
        u32::from_be_bytes([0, self.0[5], self.0[6], self.0[7]])
    }

    /// The same header announcing `len` bytes of data.
    ///
    /// # Panics
    /// When `len` does not fit 24 bits; negotiated limits are far below.
    #[must_use]
    pub fn with_data_len(mut self, len: u32) -> Self {
        let [top, bytes @ ..] = len.to_be_bytes();
        assert!(top == 0, "data segment of {len} bytes");
        self.0[5..8].copy_from_slice(&bytes);
        self
    }

    /// The initiator task tag.
    #[must_use]
    pub fn itt(&self) -> u32 {
        self.u32_at(16)
    }

    /// The LUN field.
    #[must_use]
    pub fn lun(&self) -> LunField {
        LunField(self.array_at(8))
    }

    /// CmdSN of a PDU from an initiator.
    #[must_use]
    pub fn cmd_sn(&self) -> Serial {
        Serial(self.u32_at(24))
    }

    /// StatSN of a PDU from a target.
    #[must_use]
    pub fn stat_sn(&self) -> Serial {
        Serial(self.u32_at(24))
    }

    /// ExpStatSN of a PDU from an initiator, or ExpCmdSN of one from a target.
    #[must_use]
    pub fn expected_sn(&self) -> Serial {
        Serial(self.u32_at(28))
    }

    /// MaxCmdSN of a PDU from a target.
    #[must_use]
    pub fn max_cmd_sn(&self) -> Serial {
        Serial(self.u32_at(32))
    }

    /// Stamps CmdSN and ExpStatSN (initiator).
    pub fn stamp_command(&mut self, cmd_sn: Serial, exp_stat_sn: Serial) {
        self.put_u32(24, cmd_sn.0);
        self.put_u32(28, exp_stat_sn.0);
    }

    /// Stamps ExpStatSN only, for PDUs that have no CmdSN (initiator).
    pub fn stamp_exp_stat_sn(&mut self, exp_stat_sn: Serial) {
        self.put_u32(28, exp_stat_sn.0);
    }

    /// Stamps StatSN (target).
    pub fn stamp_stat_sn(&mut self, stat_sn: Serial) {
        self.put_u32(24, stat_sn.0);
    }

    /// Stamps the command window (target).
    pub fn stamp_window(&mut self, exp_cmd_sn: Serial, max_cmd_sn: Serial) {
        self.put_u32(28, exp_cmd_sn.0);
        self.put_u32(32, max_cmd_sn.0);
    }

    fn array_at<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.0[at..at + N]);
        out
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.array_at(at))
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_u32(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lun_fields_have_one_number() {
        for lun in [0, 1, 255, 256, 16383] {
            assert_eq!(LunField::from_number(lun).number(), Some(lun));
        }
        assert_eq!(LunField([0x40, 5, 0, 0, 0, 0, 0, 0]).number(), Some(5));
        assert_eq!(LunField([0, 1, 0, 1, 0, 0, 0, 0]).number(), None);
        assert_eq!(LunField([0xc1, 1, 0, 0, 0, 0, 0, 0]).number(), None);
    }

    /// Parsing and encoding again reaches a fixed point: nothing that a view carries is lost.
    #[track_caller]
    fn stable<T: PartialEq + core::fmt::Debug>(
        bytes: [u8; 48],
        parse: fn(&Bhs) -> T,
        encode: fn(&T) -> Bhs,
    ) {
        let first = parse(&Bhs(bytes));
        let encoded = encode(&first);
        assert_eq!(parse(&encoded), first);
        assert_eq!(encoded.itt(), if encoded.itt() == NO_TAG { NO_TAG } else { Bhs(bytes).itt() });
    }

    proptest! {
        #[test]
        fn views_keep_every_field(bytes in prop::array::uniform32(any::<u8>()), tail in prop::array::uniform16(any::<u8>())) {
            let mut all = [0; 48];
            all[..32].copy_from_slice(&bytes);
            all[32..].copy_from_slice(&tail);
            stable(all, NopOut::parse, NopOut::encode);
            stable(all, ScsiCommand::parse, ScsiCommand::encode);
            stable(all, TaskRequest::parse, TaskRequest::encode);
            stable(all, LoginRequest::parse, LoginRequest::encode);
            stable(all, TextRequest::parse, TextRequest::encode);
            stable(all, DataOut::parse, DataOut::encode);
            stable(all, LogoutRequest::parse, LogoutRequest::encode);
            stable(all, NopIn::parse, NopIn::encode);
            stable(all, ScsiResponse::parse, ScsiResponse::encode);
            stable(all, TaskResponse::parse, TaskResponse::encode);
            stable(all, LoginResponse::parse, LoginResponse::encode);
            stable(all, TextResponse::parse, TextResponse::encode);
            stable(all, DataIn::parse, DataIn::encode);
            stable(all, LogoutResponse::parse, LogoutResponse::encode);
            stable(all, R2t::parse, R2t::encode);
            stable(all, AsyncMessage::parse, AsyncMessage::encode);
            stable(all, Reject::parse, Reject::encode);
        }
    }
}
