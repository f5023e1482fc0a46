//! The policy slot of a LUN: a say in which requests reach its device.
//!
//! A [`Policy`] sees each request before the device does, with who sends it, and allows or denies
//! it. Every request passes here, also those that one command makes one after the other, so that
//! nothing reaches the device around a policy. A LUN without one pays a single branch.
//!
//! A policy does not see commands that leave the medium alone (INQUIRY, MODE SENSE, ...).

use netraid_block::Op;
use netraid_scsi::Refusal;

/// Judges the requests to one LUN, on the target's thread: must not block.
pub trait Policy: Send + core::fmt::Debug {
    /// Whether this access may happen.
    fn judge(&mut self, access: &Access<'_>) -> Verdict;
}

/// Who wants to do what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access<'a> {
    /// Name of the initiator as it logged in.
    pub initiator: &'a str,
    /// What is to be done.
    pub op: Op,
    /// First byte; 0 for a flush.
    pub offset: u64,
    /// Number of bytes; 0 for a flush.
    pub len: u64,
    /// When this is asked.
    pub moment: Moment,
}

/// When a policy is asked. A policy that counts does so before requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The command has come, its data has not: a denial spares the transfer. Asked where the
    /// command itself names the bytes.
    BeforeData,
    /// The request goes to the device next.
    BeforeRequest,
}

/// What a policy says of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It may happen.
    Allow,
    /// It must not: the command ends with ACCESS DENIED - NO ACCESS RIGHTS.
    Deny,
}

impl Verdict {
    /// Why an access must not happen, if so.
    #[must_use]
    pub const fn refusal(self) -> Option<Refusal> {
        match self {
            Self::Allow => None,
            Self::Deny => Some(Refusal::AccessDenied),
        }
    }
}
