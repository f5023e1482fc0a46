//! What the machines of both sides share: how they tell their shell where received bytes belong
//! and what to send.
//!
//! The contract, for both sides. The shell reads a header, checks its digest, and calls
//! `handle_header`; it then polls events until there are none, asks `placement` where the data
//! segment belongs, receives it there, checks its digest, and calls `handle_control` for
//! [`Placement::Control`] or `handle_data` for the others; also when the segment is empty. Then it polls events again, and transmits while its socket takes them. It calls
//! `handle_timeout` once `next_timeout` has passed. `now` counts from any start and never runs
//! backwards. After a [`Fatal`] the connection is to be dropped; no call but `poll_event` has an
//! effect then.

use alloc::vec::Vec;

use crate::{
    negotiation::NegotiationError,
    pdu::{Bhs, RejectReason},
    text::TextError,
};

/// Longest data segment that is collected for a machine itself (text, NOP, sense, rejects).
pub const CONTROL_LEN_MAX: u32 = 64 * 1024;

/// A command's place in the task table of one connection; small, and reused after its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub(crate) u16);

impl TaskId {
    /// The index for a shell's own table, below the machine's number of tasks.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which digests a PDU carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digests {
    /// CRC32C after the header.
    pub header: bool,
    /// CRC32C after the data segment, if there is one.
    pub data: bool,
}

/// Where the data segment of the PDU at hand belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// To the machine: collect it (at most [`CONTROL_LEN_MAX`] bytes) for `handle_control`.
    Control,
    /// The first `len` bytes belong to the task's data at `offset`, the rest to nobody.
    Task {
        /// Whose data.
        task: TaskId,
        /// First byte.
        offset: u32,
        /// Number of bytes; at most those of the data segment.
        len: u32,
    },
    /// To nobody.
    Discard,
}

/// What follows a header that is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// Nothing.
    None,
    /// These bytes.
    Control(Vec<u8>),
    /// Bytes of a task's data.
    Task {
        /// Whose data.
        task: TaskId,
        /// First byte.
        offset: u32,
        /// Number of bytes.
        len: u32,
    },
}

/// One PDU to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// Its header, complete.
    pub header: Bhs,
    /// Its data segment, without padding.
    pub payload: Payload,
    /// The digests to add.
    pub digests: Digests,
}

/// Why a connection cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fatal {
    /// The peer broke the protocol.
    #[error("peer broke the protocol: {0}")]
    Protocol(&'static str),
    /// A data segment longer than agreed.
    #[error("peer sent a data segment of {len} bytes, agreed limit {limit}")]
    Oversize {
        /// Announced length.
        len: u32,
        /// Limit.
        limit: u32,
    },
    /// Nothing came for too long, not even the answer to a ping.
    #[error("peer is silent and does not answer pings")]
    Silent,
    /// The peer refused something that this side needs, with this Reject reason.
    #[error("peer rejected a pdu: {0:?}")]
    Rejected(RejectReason),
    /// The login took too long.
    #[error("login was not finished in time")]
    LoginTimeout,
    /// Text that cannot be read.
    #[error(transparent)]
    Text(#[from] TextError),
    /// Parameters that cannot be agreed on.
    #[error(transparent)]
    Negotiation(#[from] NegotiationError),
}
