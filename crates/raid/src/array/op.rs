//! What the machine is working on: operations, each in one stripe, and member requests.

use alloc::vec::Vec;
use core::ops::Range;

use netraid_block::IoError;
use smallvec::SmallVec;

use super::action::{BufferId, RequestId, Source};
use crate::{
    geometry::{Rows, Segments},
    member::{MemberIndex, MemberSet},
    write_plan::ParityPlan,
};

/// An operation in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OpId(pub(super) usize);

/// What an operation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpKind {
    /// Part of a user's read.
    Read,
    /// Part of a user's write, or of zeros that do not fill the stripe.
    Write,
    /// Marks the stripe as not written.
    Clear,
    /// Makes the check columns match the data columns.
    Resync,
    /// Writes a member's chunk from the others.
    Rebuild(MemberIndex),
}

/// What an operation is waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its lock, or nothing yet.
    Queued,
    /// Chunks from members.
    Reading,
    /// Members to take chunks.
    Writing,
    /// The stripe's written bit to be stable.
    Committing,
    /// Members to give space back.
    Discarding,
}

/// A column's rows of one segment, read into a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadBuffer {
    pub(super) segment: usize,
    pub(super) column: u8,
    pub(super) buffer: BufferId,
}

#[derive(Debug)]
pub(super) struct Op {
    pub(super) kind: OpKind,
    pub(super) stripe: u64,
    pub(super) request: Option<RequestId>,
    /// Which part of the request's reply this is.
    pub(super) piece: usize,
    /// Bytes of the stripe's data that are addressed.
    pub(super) range: Range<u64>,
    pub(super) segments: Segments,
    /// Rows locked, or to be locked.
    pub(super) rows: Rows,
    pub(super) locked: bool,
    pub(super) phase: Phase,
    pub(super) outstanding: u32,
    /// Members whose medium failed here: not read in this operation.
    pub(super) avoid: MemberSet,
    /// A member request failed in this phase: plan again.
    pub(super) replan: bool,
    /// A merged read failed: read apart from others.
    pub(super) unmerged: bool,
    /// Read only under the lock.
    pub(super) exclusive: bool,
    /// A resync was put in front of this operation already.
    pub(super) resync_tried: bool,
    /// The whole stripe is written for the first time.
    pub(super) first: bool,
    pub(super) error: Option<IoError>,
    pub(super) plans: SmallVec<[ParityPlan; 3]>,
    pub(super) reads: SmallVec<[ReadBuffer; 8]>,
    /// Buffers to free at the end, beside those of `reads`.
    pub(super) computed: SmallVec<[BufferId; 4]>,
    /// A read's answer, while bad blocks are being written back.
    pub(super) reply: Vec<Source>,
}

/// Whom a member request's end concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Op(OpId),
    /// The running commit of written bits.
    Commit,
    /// The running label update.
    Labels,
    /// A user's flush.
    Flush(RequestId),
    /// The flush that makes rebuild progress stable.
    Rebuild,
    /// The flush of a closing array.
    Close,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IoKind {
    Read,
    Write,
    Meta,
    Flush,
    Discard,
}

/// A member request in flight.
#[derive(Debug)]
pub(super) struct Io {
    pub(super) member: MemberIndex,
    /// Which device of that member it went to: replaced ones no longer count.
    pub(super) incarnation: u32,
    pub(super) kind: IoKind,
    pub(super) owners: SmallVec<[Owner; 4]>,
}
