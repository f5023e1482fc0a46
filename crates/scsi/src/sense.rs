//! Status codes and sense data: how a command ended (SAM-5 section 5.3, SPC-4 section 4.5).

use alloc::{vec, vec::Vec};
use core::fmt;

use netraid_block::ErrorKind;

use crate::bytes::{be16, be32, be64, put};

/// Most bytes of sense data that are ever looked at (SPC-4, section 4.5.1).
pub const SENSE_LEN_MAX: usize = 252;
const FIXED_LEN: usize = 18;

/// Status of a command (SAM-5, section 5.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// The command succeeded.
    Good = 0x00,
    /// The command failed, and sense data says how.
    CheckCondition = 0x02,
    /// The command succeeded, and what it asked for is so.
    ConditionMet = 0x04,
    /// The logical unit cannot take the command now; try again.
    Busy = 0x08,
    /// Another nexus holds a reservation that excludes this command.
    ReservationConflict = 0x18,
    /// The logical unit's queue is full; try again.
    TaskSetFull = 0x28,
    /// An auto contingent allegiance is in effect.
    AcaActive = 0x30,
    /// The command was aborted by another nexus.
    TaskAborted = 0x40,
}

impl Status {
    /// The status with this code, if there is one.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x00 => Self::Good,
            0x02 => Self::CheckCondition,
            0x04 => Self::ConditionMet,
            0x08 => Self::Busy,
            0x18 => Self::ReservationConflict,
            0x28 => Self::TaskSetFull,
            0x30 => Self::AcaActive,
            0x40 => Self::TaskAborted,
            _ => return None,
        })
    }

    /// The code of this status.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// What kind of condition sense data reports (SPC-4, table 48).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the standard's own")]
pub enum SenseKey {
    NoSense = 0x0,
    RecoveredError = 0x1,
    NotReady = 0x2,
    MediumError = 0x3,
    HardwareError = 0x4,
    IllegalRequest = 0x5,
    UnitAttention = 0x6,
    DataProtect = 0x7,
    BlankCheck = 0x8,
    VendorSpecific = 0x9,
    CopyAborted = 0xa,
    AbortedCommand = 0xb,
    Reserved = 0xc,
    VolumeOverflow = 0xd,
    Miscompare = 0xe,
    Completed = 0xf,
}

impl SenseKey {
    const fn from_low_bits(byte: u8) -> Self {
        match byte & 0x0f {
            0x0 => Self::NoSense,
            0x1 => Self::RecoveredError,
            0x2 => Self::NotReady,
            0x3 => Self::MediumError,
            0x4 => Self::HardwareError,
            0x5 => Self::IllegalRequest,
            0x6 => Self::UnitAttention,
            0x7 => Self::DataProtect,
            0x8 => Self::BlankCheck,
            0x9 => Self::VendorSpecific,
            0xa => Self::CopyAborted,
            0xb => Self::AbortedCommand,
            0xc => Self::Reserved,
            0xd => Self::VolumeOverflow,
            0xe => Self::Miscompare,
            _ => Self::Completed,
        }
    }
}

/// Additional sense code and its qualifier (SPC-4, annex F.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Additional {
    /// Additional sense code.
    pub asc: u8,
    /// Additional sense code qualifier.
    pub ascq: u8,
}

macro_rules! additional {
    ($($name:ident = $asc:literal / $ascq:literal, $text:literal;)*) => {
        #[expect(missing_docs, reason = "the names are the standard's own")]
        impl Additional {
            $(pub const $name: Self = Self { asc: $asc, ascq: $ascq };)*

            /// The standard's words for this code, in lower case.
            #[must_use]
            pub const fn text(self) -> Option<&'static str> {
                match (self.asc, self.ascq) {
                    $(($asc, $ascq) => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

additional! {
    NONE = 0x00/0x00, "no additional sense information";
    OPERATION_IN_PROGRESS = 0x00/0x16, "operation in progress";
    NOT_READY_BECOMING_READY = 0x04/0x01, "logical unit is in process of becoming ready";
    NOT_READY_START_REQUIRED = 0x04/0x02, "logical unit not ready, initializing command required";
    NOT_READY_OPERATION_IN_PROGRESS = 0x04/0x07, "logical unit not ready, operation in progress";
    NOT_READY_ACCESS_STATE_TRANSITION = 0x04/0x0a, "logical unit not accessible, asymmetric access state transition";
    NOT_READY_SPACE_ALLOCATION = 0x04/0x14, "logical unit not ready, space allocation in progress";
    SANITIZE_IN_PROGRESS = 0x04/0x1b, "logical unit not ready, sanitize in progress";
    LOGICAL_UNIT_COMMUNICATION_FAILURE = 0x08/0x00, "logical unit communication failure";
    WRITE_ERROR = 0x0c/0x00, "write error";
    THIRD_PARTY_FAILURE = 0x0d/0x01, "third party device failure";
    COPY_TARGET_NOT_REACHABLE = 0x0d/0x02, "copy target device not reachable";
    INCORRECT_COPY_TARGET_TYPE = 0x0d/0x03, "incorrect copy target device type";
    UNRECOVERED_READ_ERROR = 0x11/0x00, "unrecovered read error";
    PARAMETER_LIST_LENGTH_ERROR = 0x1a/0x00, "parameter list length error";
    MISCOMPARE_DURING_VERIFY = 0x1d/0x00, "miscompare during verify operation";
    INVALID_COMMAND_OPERATION_CODE = 0x20/0x00, "invalid command operation code";
    ACCESS_DENIED = 0x20/0x02, "access denied - no access rights";
    LBA_OUT_OF_RANGE = 0x21/0x00, "logical block address out of range";
    INVALID_FIELD_IN_CDB = 0x24/0x00, "invalid field in cdb";
    LOGICAL_UNIT_NOT_SUPPORTED = 0x25/0x00, "logical unit not supported";
    INVALID_FIELD_IN_PARAMETER_LIST = 0x26/0x00, "invalid field in parameter list";
    INVALID_RELEASE = 0x26/0x04, "invalid release of persistent reservation";
    TOO_MANY_TARGET_DESCRIPTORS = 0x26/0x06, "too many target descriptors";
    UNSUPPORTED_TARGET_DESCRIPTOR_TYPE = 0x26/0x07, "unsupported target descriptor type code";
    TOO_MANY_SEGMENT_DESCRIPTORS = 0x26/0x08, "too many segment descriptors";
    UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE = 0x26/0x09, "unsupported segment descriptor type code";
    UNEXPECTED_INEXACT_SEGMENT = 0x26/0x0a, "unexpected inexact segment";
    INLINE_DATA_LENGTH_EXCEEDED = 0x26/0x0b, "inline data length exceeded";
    WRITE_PROTECTED = 0x27/0x00, "write protected";
    SOFTWARE_WRITE_PROTECTED = 0x27/0x02, "logical unit software write protected";
    SPACE_ALLOCATION_FAILED = 0x27/0x07, "space allocation failed write protect";
    NOT_READY_TO_READY = 0x28/0x00, "not ready to ready change, medium may have changed";
    POWER_ON_OR_RESET = 0x29/0x00, "power on, reset, or bus device reset occurred";
    POWER_ON = 0x29/0x01, "power on occurred";
    BUS_RESET = 0x29/0x02, "scsi bus reset occurred";
    DEVICE_RESET = 0x29/0x03, "bus device reset function occurred";
    NEXUS_LOSS = 0x29/0x07, "i_t nexus loss occurred";
    MODE_PARAMETERS_CHANGED = 0x2a/0x01, "mode parameters changed";
    RESERVATIONS_PREEMPTED = 0x2a/0x03, "reservations preempted";
    RESERVATIONS_RELEASED = 0x2a/0x04, "reservations released";
    REGISTRATIONS_PREEMPTED = 0x2a/0x05, "registrations preempted";
    CAPACITY_DATA_CHANGED = 0x2a/0x09, "capacity data has changed";
    COMMAND_TIMEOUT = 0x2e/0x02, "command timeout during processing";
    COMMANDS_CLEARED_BY_ANOTHER = 0x2f/0x00, "commands cleared by another initiator";
    SANITIZE_COMMAND_FAILED = 0x31/0x03, "sanitize command failed";
    SAVING_NOT_SUPPORTED = 0x39/0x00, "saving parameters not supported";
    MEDIUM_NOT_PRESENT = 0x3a/0x00, "medium not present";
    INQUIRY_DATA_CHANGED = 0x3f/0x03, "inquiry data has changed";
    REPORTED_LUNS_CHANGED = 0x3f/0x0e, "reported luns data has changed";
    INSUFFICIENT_REGISTRATION_RESOURCES = 0x55/0x04, "insufficient registration resources";
    INTERNAL_TARGET_FAILURE = 0x44/0x00, "internal target failure";
    MEDIUM_REMOVAL_PREVENTED = 0x53/0x02, "medium removal prevented";
    INVALID_FIELD_IN_INFORMATION_UNIT = 0x0e/0x03, "invalid field in command information unit";
}

impl fmt::Debug for Additional {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}h/{:02x}h", self.asc, self.ascq)
    }
}

/// Which field was wrong (SPC-4, section 4.5.2.4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FieldPointer {
    /// Whether the field is in the CDB, not in the parameter list.
    pub in_cdb: bool,
    /// The field's first byte.
    pub byte: u16,
    /// The field's leftmost bit, 0 to 7, when one is named.
    pub bit: Option<u8>,
}

/// Sense data, as far as it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sense {
    /// What kind of condition.
    pub key: SenseKey,
    /// What exactly.
    pub additional: Additional,
    /// The wrong field of an illegal request.
    pub field: Option<FieldPointer>,
    /// How far a long operation is, in 65536ths; with NOT READY and NO SENSE.
    pub progress: Option<u16>,
    /// The INFORMATION field; for medium errors the first bad LBA.
    pub information: Option<u64>,
    /// The COMMAND-SPECIFIC INFORMATION field; for copies the number of the segment.
    pub command_specific: Option<u64>,
    /// Whether this belongs to an earlier command, not the one that reports it.
    pub deferred: bool,
}

/// How sense data is laid out (SPC-4, section 4.5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SenseFormat {
    /// 18 bytes; INFORMATION only below 2^32.
    #[default]
    Fixed,
    /// A header and descriptors.
    Descriptor,
}

impl Sense {
    /// Sense data of this kind without further fields.
    #[must_use]
    pub const fn new(key: SenseKey, additional: Additional) -> Self {
        let (field, progress, information, command_specific) = (None, None, None, None);
        Self { key, additional, field, progress, information, command_specific, deferred: false }
    }

    /// ILLEGAL REQUEST with this additional code.
    #[must_use]
    pub const fn illegal(additional: Additional) -> Self {
        Self::new(SenseKey::IllegalRequest, additional)
    }

    /// INVALID FIELD IN CDB that points to `byte`, and to `bit` where given.
    #[must_use]
    pub const fn invalid_cdb(byte: u16, bit: Option<u8>) -> Self {
        let mut sense = Self::illegal(Additional::INVALID_FIELD_IN_CDB);
        sense.field = Some(FieldPointer { in_cdb: true, byte, bit });
        sense
    }

    /// INVALID FIELD IN PARAMETER LIST that points to `byte`.
    #[must_use]
    pub const fn invalid_parameter(byte: u16) -> Self {
        let mut sense = Self::illegal(Additional::INVALID_FIELD_IN_PARAMETER_LIST);
        sense.field = Some(FieldPointer { in_cdb: false, byte, bit: None });
        sense
    }

    /// The same with a progress indication.
    #[must_use]
    pub const fn with_progress(mut self, progress: u16) -> Self {
        self.progress = Some(progress);
        self
    }

    /// The same with an INFORMATION field.
    #[must_use]
    pub const fn with_information(mut self, information: u64) -> Self {
        self.information = Some(information);
        self
    }

    /// The same with a COMMAND-SPECIFIC INFORMATION field.
    #[must_use]
    pub const fn with_command_specific(mut self, information: u64) -> Self {
        self.command_specific = Some(information);
        self
    }

    /// The bytes that report this.
    #[must_use]
    pub fn encode(&self, format: SenseFormat) -> Vec<u8> {
        match format {
            SenseFormat::Fixed => self.encode_fixed(),
            SenseFormat::Descriptor => self.encode_descriptors(),
        }
    }

    fn encode_fixed(&self) -> Vec<u8> {
        let mut out = vec![0; FIXED_LEN];
        out[0] = if self.deferred { 0x71 } else { 0x70 };
        if let Some(information) = self.information.and_then(|value| u32::try_from(value).ok()) {
            out[0] |= 0x80;
            put(&mut out, 3, information.to_be_bytes());
        }
        out[2] = self.key as u8;
        out[7] = 10;
        if let Some(value) = self.command_specific.and_then(|value| u32::try_from(value).ok()) {
            put(&mut out, 8, value.to_be_bytes());
        }
        out[12] = self.additional.asc;
        out[13] = self.additional.ascq;
        if let Some(bytes) = self.key_specific() {
            out[15..18].copy_from_slice(&bytes);
        }
        out
    }

    /// The sense key specific field (SPC-4, section 4.5.2.4), with SKSV set.
    fn key_specific(&self) -> Option<[u8; 3]> {
        if let Some(field) = self.field {
            return Some(field.encode());
        }
        let [high, low] = self.progress?.to_be_bytes();
        Some([0x80, high, low])
    }

    /// Takes what the sense key specific field says.
    fn take_key_specific(&mut self, bytes: &[u8]) {
        if self.key == SenseKey::IllegalRequest {
            self.field = FieldPointer::decode(bytes);
        } else if matches!(self.key, SenseKey::NotReady | SenseKey::NoSense) {
            let valid = bytes.first().is_some_and(|flags| flags & 0x80 != 0);
            self.progress = be16(bytes, 1).filter(|_| valid);
        }
    }

    fn encode_descriptors(&self) -> Vec<u8> {
        let code = if self.deferred { 0x73 } else { 0x72 };
        let mut out =
            vec![code, self.key as u8, self.additional.asc, self.additional.ascq, 0, 0, 0, 0];
        if let Some(information) = self.information {
            out.extend([0x00, 0x0a, 0x80, 0x00]);
            out.extend(information.to_be_bytes());
            out[7] += 12;
        }
        if let Some(information) = self.command_specific {
            out.extend([0x01, 0x0a, 0x00, 0x00]);
            out.extend(information.to_be_bytes());
            out[7] += 12;
        }
        if let Some([first, second, third]) = self.key_specific() {
            out.extend([0x02, 0x06, 0, 0, first, second, third, 0]);
            out[7] += 8;
        }
        out
    }

    /// Reads sense data of either format; `None` when it is neither or too short to say anything.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..bytes.len().min(SENSE_LEN_MAX))?;
        let code = bytes.first()? & 0x7f;
        match code {
            0x70 | 0x71 => Self::decode_fixed(bytes, code == 0x71),
            0x72 | 0x73 => Self::decode_descriptors(bytes, code == 0x73),
            _ => None,
        }
    }

    fn decode_fixed(bytes: &[u8], deferred: bool) -> Option<Self> {
        let key = SenseKey::from_low_bits(*bytes.get(2)?);
        let byte = |at| bytes.get(at).copied().unwrap_or(0);
        let mut sense = Self::new(key, Additional { asc: byte(12), ascq: byte(13) });
        sense.deferred = deferred;
        if bytes[0] & 0x80 != 0 {
            sense.information = be32(bytes, 3).map(u64::from);
        }
        if key == SenseKey::CopyAborted {
            sense.command_specific = be32(bytes, 8).map(u64::from);
        }
        if let Some(bytes) = bytes.get(15..18) {
            sense.take_key_specific(bytes);
        }
        Some(sense)
    }

    fn decode_descriptors(bytes: &[u8], deferred: bool) -> Option<Self> {
        let [_, key, asc, ascq] = crate::bytes::array(bytes, 0)?;
        let key = SenseKey::from_low_bits(key);
        let mut sense = Self::new(key, Additional { asc, ascq });
        sense.deferred = deferred;
        let mut rest = bytes.get(8..).unwrap_or(&[]);
        while let [kind, len, ..] = *rest {
            let end = 2 + usize::from(len);
            let Some(descriptor) = rest.get(..end) else { break };
            if kind == 0x00 && descriptor.get(2).is_some_and(|byte| byte & 0x80 != 0) {
                sense.information = be64(descriptor, 4);
            }
            if kind == 0x01 {
                sense.command_specific = be64(descriptor, 4);
            }
            if let (0x02, Some(bytes)) = (kind, descriptor.get(4..7)) {
                sense.take_key_specific(bytes);
            }
            rest = &rest[end..];
        }
        Some(sense)
    }

    /// The kind of failure that this means to whoever asked for the bytes.
    #[must_use]
    pub const fn error_kind(&self) -> ErrorKind {
        match (self.key, self.additional) {
            (_, Additional::LBA_OUT_OF_RANGE) => ErrorKind::OutOfRange,
            (_, Additional::INVALID_COMMAND_OPERATION_CODE) => ErrorKind::Unsupported,
            (_, Additional::SPACE_ALLOCATION_FAILED) => ErrorKind::NoSpace,
            (_, Additional::LOGICAL_UNIT_NOT_SUPPORTED) => ErrorKind::Unreachable,
            (_, Additional::COMMAND_TIMEOUT) => ErrorKind::Timeout,
            (SenseKey::DataProtect, _) => ErrorKind::ReadOnly,
            (SenseKey::MediumError | SenseKey::BlankCheck, _) => ErrorKind::Medium,
            (SenseKey::IllegalRequest, _) => ErrorKind::InvalidRequest,
            (SenseKey::NotReady, _) => ErrorKind::Unreachable,
            (SenseKey::AbortedCommand, _) => ErrorKind::Aborted,
            (
                SenseKey::NoSense
                | SenseKey::RecoveredError
                | SenseKey::HardwareError
                | SenseKey::UnitAttention
                | SenseKey::VendorSpecific
                | SenseKey::CopyAborted
                | SenseKey::Reserved
                | SenseKey::VolumeOverflow
                | SenseKey::Miscompare
                | SenseKey::Completed,
                _,
            ) => ErrorKind::Device,
        }
    }
}

impl FieldPointer {
    fn encode(self) -> [u8; 3] {
        let [high, low] = self.byte.to_be_bytes();
        let bit = self.bit.map_or(0, |bit| 0x08 | (bit & 0x07));
        [0x80 | if self.in_cdb { 0x40 } else { 0 } | bit, high, low]
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let flags = *bytes.first()?;
        let bit = (flags & 0x08 != 0).then_some(flags & 0x07);
        let byte = be16(bytes, 1)?;
        (flags & 0x80 != 0).then_some(Self { in_cdb: flags & 0x40 != 0, byte, bit })
    }
}

impl fmt::Display for Sense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sense key {:?}, {:?}", self.key, self.additional)?;
        if let Some(text) = self.additional.text() {
            write!(f, " ({text})")?;
        }
        if let Some(FieldPointer { in_cdb, byte, .. }) = self.field {
            write!(f, ", byte {byte} of the {}", if in_cdb { "CDB" } else { "parameter list" })?;
        }
        match self.information {
            Some(information) => write!(f, ", information {information:#x}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_formats_carry_what_was_said() {
        let pointed = Sense::invalid_cdb(7, Some(3));
        let located = Sense::new(SenseKey::MediumError, Additional::UNRECOVERED_READ_ERROR)
            .with_information(0x1234);
        let far = located.with_information(1 << 40);
        let under_way =
            Sense::new(SenseKey::NotReady, Additional::SANITIZE_IN_PROGRESS).with_progress(0x8001);
        for sense in [pointed, located, far, under_way, Sense::invalid_parameter(300)] {
            let decoded = Sense::decode(&sense.encode(SenseFormat::Descriptor));
            assert_eq!(decoded, Some(sense));
        }
        assert_eq!(Sense::decode(&pointed.encode(SenseFormat::Fixed)), Some(pointed));
        assert_eq!(Sense::decode(&located.encode(SenseFormat::Fixed)), Some(located));
        let fixed = under_way.encode(SenseFormat::Fixed);
        assert_eq!(Sense::decode(&fixed), Some(under_way));
        assert_eq!(fixed[15..18], [0x80, 0x80, 0x01]);
        let short = Sense::decode(&far.encode(SenseFormat::Fixed)).unwrap();
        assert_eq!(short.information, None, "too large for the fixed format");
    }

    #[test]
    fn bytes_stand_where_the_standard_says() {
        let bytes = Sense::invalid_cdb(2, None).encode(SenseFormat::Fixed);
        assert_eq!(bytes[..8], [0x70, 0, 5, 0, 0, 0, 0, 10]);
        assert_eq!(bytes[12..18], [0x24, 0, 0, 0xc0, 0, 2]);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Sense::decode(&bytes);
        }
    }
}
