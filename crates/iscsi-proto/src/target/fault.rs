//! Data-Out that is not as agreed, and how it is reported.

use alloc::vec::Vec;

/// What is wrong with the Data-Out of a task, which ends it with CHECK CONDITION and ABORTED
/// COMMAND once all of it has come (RFC 7143, sections 7.8, 7.9 and 11.4.7.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It came unasked, and that was not agreed on.
    Unexpected,
    /// Not as much as was asked for.
    WrongAmount,
    /// More than was asked for.
    TooMuch,
    /// PDUs are missing, or came in another order.
    Order,
    /// It begins at the wrong byte.
    Offset,
    /// A digest is wrong.
    Digest,
}

impl Fault {
    /// Additional sense code and qualifier.
    const fn additional(self) -> [u8; 2] {
        match self {
            Self::Unexpected => [0x0c, 0x0c],
            Self::WrongAmount => [0x0c, 0x0d],
            Self::TooMuch => [0x4b, 0x02],
            Self::Order => [0x4b, 0x00],
            Self::Offset => [0x4b, 0x05],
            Self::Digest => [0x47, 0x05],
        }
    }

    /// Sense data in fixed format (SPC-4, section 4.5.3).
    pub(super) fn sense(self) -> Vec<u8> {
        const ABORTED_COMMAND: u8 = 0x0b;
        let mut sense = alloc::vec![0; 18];
        (sense[0], sense[2], sense[7]) = (0x70, ABORTED_COMMAND, 10);
        sense[12..14].copy_from_slice(&self.additional());
        sense
    }
}
