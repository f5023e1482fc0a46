//! What the machine asks for, and in what terms: requests, buffers, sources of bytes, actions,
//! events. The driver executes actions; bytes are only ever named here.

use alloc::{string::String, sync::Arc, vec::Vec};

use netraid_block::{IoError, Op};

use crate::member::{ArrayState, MemberIndex, MemberState};

/// A user's request, numbered by the volume; a number is free again once it was completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A member request in flight; the volume gives it back with its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoId(pub usize);

/// A buffer in the executor's table; numbers are small and reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub usize);

/// Where bytes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A user's data.
    Request {
        /// Whose.
        request: RequestId,
        /// First byte.
        offset: u32,
        /// Number of bytes.
        len: u32,
    },
    /// A buffer that was read or computed.
    Buffer {
        /// Which.
        buffer: BufferId,
        /// First byte.
        offset: u32,
        /// Number of bytes.
        len: u32,
    },
    /// Zeros.
    Zeroes {
        /// Number of bytes.
        len: u32,
    },
}

impl Source {
    /// Number of bytes.
    #[must_use]
    pub const fn len(&self) -> u32 {
        match self {
            Self::Request { len, .. } | Self::Buffer { len, .. } | Self::Zeroes { len } => *len,
        }
    }

    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What the volume is to do, in the order in which it is polled. Actions with an `io` end later,
/// through [`super::ArrayMachine::handle_io_done`]; the others are done at once by the executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Set a buffer to the XOR of sources of equal length.
    Xor {
        /// The buffer, new.
        into: BufferId,
        /// Its length.
        len: u32,
        /// What to combine.
        sources: Vec<Source>,
    },
    /// Forget a buffer.
    Free {
        /// Which.
        buffer: BufferId,
    },
    /// Read from a member into new buffers, which follow each other on the member.
    Read {
        /// To be given back.
        io: IoId,
        /// Which member.
        member: MemberIndex,
        /// First byte on it.
        offset: u64,
        /// The buffers and their lengths.
        parts: Vec<(BufferId, u32)>,
    },
    /// Write to a member.
    Write {
        /// To be given back.
        io: IoId,
        /// Which member.
        member: MemberIndex,
        /// First byte on it.
        offset: u64,
        /// Must be stable when it ends.
        fua: bool,
        /// The bytes.
        sources: Vec<Source>,
    },
    /// Write metadata to a member, with FUA.
    WriteMeta {
        /// To be given back.
        io: IoId,
        /// Which member.
        member: MemberIndex,
        /// First byte on it.
        offset: u64,
        /// The bytes.
        bytes: Arc<[u8]>,
    },
    /// Make what a member completed stable.
    Flush {
        /// To be given back.
        io: IoId,
        /// Which member.
        member: MemberIndex,
    },
    /// Give back space of a member.
    Discard {
        /// To be given back.
        io: IoId,
        /// Which member.
        member: MemberIndex,
        /// First byte on it.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// End a user's request; reads are answered with the sources in order.
    Complete {
        /// Which.
        request: RequestId,
        /// Its end.
        result: Result<Vec<Source>, IoError>,
    },
}

/// A user's request as the machine sees it: ranges, no bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserRequest {
    /// What to do.
    pub op: Op,
    /// First byte of the volume.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// Stable when completed.
    pub fua: bool,
    /// Zeros that must keep their space.
    pub no_unmap: bool,
}

/// What happened, for people and logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The array takes requests.
    Opened,
    /// A member's state changed.
    Member {
        /// Which.
        member: MemberIndex,
        /// To what.
        state: MemberState,
        /// Why.
        reason: String,
    },
    /// A member could not read a range; it was served from the others.
    Repaired {
        /// Which.
        member: MemberIndex,
        /// Where on it.
        offset: u64,
    },
    /// The array's state changed.
    State(ArrayState),
    /// Rebuild or resync has ended.
    Finished(Background),
    /// Rebuild or resync has ended, but for stripes that others could not give.
    Incomplete {
        /// Which.
        background: Background,
        /// How many stripes are left.
        stripes: u64,
    },
    /// Everything is stable and the label says so.
    Closed,
}

/// Work that goes on beside users' requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Background {
    /// Parity is made to match data after a crash.
    Resync,
    /// A member is written from the others.
    Rebuild(MemberIndex),
}

/// How far background work is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Which work.
    pub background: Background,
    /// Stripes that need no more work.
    pub done: u64,
    /// Stripes in all; of a rebuild, those that hold data.
    pub total: u64,
    /// Stripes that cannot be had from the other members: while there are any, a rebuild does not end.
    pub lost: u64,
}
