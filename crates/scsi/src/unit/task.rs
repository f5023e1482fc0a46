//! A command under way: what its owner does next, what it may do, and how it ends.

use alloc::{boxed::Box, vec::Vec};

use netraid_block::{Buf, Completion, Op, Request, RequestFlags, SgList};

use super::{
    NexusId, exclusion,
    medium::{self, State},
};
use crate::{
    cdb::{self, Access, WhileSanitizing, table::Row},
    sense::{Sense, SenseFormat, Status},
    target::Copy,
};

/// A request to the device behind the logical unit, without its completion.
#[derive(Debug)]
pub struct MediumRequest {
    /// What to do.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// Modifiers.
    pub flags: RequestFlags,
    /// The bytes of a write.
    pub data: SgList,
}

impl MediumRequest {
    /// The request that ends through `completion`.
    #[must_use]
    pub fn into_request(self, completion: Completion) -> Request {
        let Self { op, offset, len, flags, data } = self;
        Request { op, offset, len, flags, data, completion }
    }
}

/// How a command ends.
#[derive(Debug)]
pub struct Response {
    /// Its status.
    pub status: Status,
    /// Encoded sense data; empty unless the status is CHECK CONDITION.
    pub sense: Vec<u8>,
    /// What goes to the initiator, already cut to the allocation length.
    pub data_in: SgList,
}

impl Response {
    /// A response of this status alone.
    #[must_use]
    pub fn status(status: Status) -> Self {
        Self { status, sense: Vec::new(), data_in: SgList::new() }
    }

    /// CHECK CONDITION with this sense data in fixed format.
    #[must_use]
    pub fn check(sense: &Sense) -> Self {
        Self::check_in(sense, SenseFormat::Fixed)
    }

    pub(super) fn check_in(sense: &Sense, format: SenseFormat) -> Self {
        let status = Status::CheckCondition;
        Self { status, sense: sense.encode(format), data_in: SgList::new() }
    }

    /// GOOD with at most `allocation_len` of these bytes.
    pub(crate) fn data(bytes: &[u8], allocation_len: u32) -> Self {
        // Clamped: whatever is there is shorter.
        let limit = usize::try_from(allocation_len).unwrap_or(usize::MAX);
        let data_in = Buf::copy_from(&bytes[..bytes.len().min(limit)]).into();
        Self { status: Status::Good, sense: Vec::new(), data_in }
    }
}

/// What the owner of a task does next.
#[derive(Debug)]
#[must_use]
pub enum Step {
    /// Collect data-out and go on with `handle_data_out`.
    DataOut {
        /// Bytes that the CDB asks for; not 0.
        len: u32,
        /// Most bytes of memory that the command holds at a time besides its data-out: what it
        /// reads to compare, builds to write.
        memory: u64,
    },
    /// Submit this to the device and go on with `handle_medium_done`.
    Submit(MediumRequest),
    /// Call `begin_background`, and carry out what `poll_background` gives, until it gives nothing more; go on with
    /// `handle_medium_done` when it says [`Background::Wake`]. The work goes on when the task does
    /// not wait any more.
    Wait,
    /// Submit this to the device of another LUN, or of this, and go on with
    /// `handle_medium_done`.
    SubmitTo {
        /// Whose device.
        lun: u16,
        /// What.
        request: MediumRequest,
    },
    /// Store these bytes durably in place of those stored before, and go on with
    /// `handle_persisted`; none means that nothing is to be kept. At most one task of a logical
    /// unit is at this step.
    Persist(Vec<u8>),
    /// Abort all other tasks of these nexuses on this logical unit, and go on with
    /// `handle_aborted` once none of them runs any more.
    Abort {
        /// Whose tasks; also those of the nexus itself may be meant.
        nexuses: Vec<NexusId>,
    },
    /// Send this; the task has ended.
    Respond(Response),
}

/// Why a command ends before it has done what it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// CHECK CONDITION with this sense data.
    Check(Sense),
    /// This status alone.
    Status(Status),
}

impl Stop {
    /// Another command is in the way.
    pub(crate) const BUSY: Self = Self::Status(Status::Busy);
    /// A reservation keeps it out.
    pub(crate) const CONFLICT: Self = Self::Status(Status::ReservationConflict);
}

impl From<Sense> for Stop {
    fn from(sense: Sense) -> Self {
        Self::Check(sense)
    }
}

/// What may keep a command from going on, as its row of the table says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Which reservations keep it out.
    pub(super) access: Access,
    pub(super) needs_medium: bool,
    pub(super) while_sanitizing: WhileSanitizing,
}

impl Rules {
    /// Those of a command that writes the medium.
    pub(super) const STRICTEST: Self = Self {
        access: Access::Write,
        needs_medium: true,
        while_sanitizing: WhileSanitizing::Refused,
    };

    pub(super) const fn new(row: &Row, access: Access) -> Self {
        let Row { needs_medium, while_sanitizing, .. } = *row;
        Self { access, needs_medium, while_sanitizing }
    }
}

/// One command under way.
#[derive(Debug)]
#[must_use]
pub struct Task {
    pub(crate) lun: u16,
    /// Which of the logical units that had this LUN one after the other.
    pub(crate) incarnation: u64,
    pub(super) nexus: NexusId,
    pub(super) opcode: u8,
    /// Bytes of data-out that the initiator announced.
    pub(super) announced: u32,
    pub(super) rules: Rules,
    pub(super) state: State,
    pub(super) slot: Option<exclusion::Slot>,
    /// First byte and number of bytes of its latest read.
    pub(super) reading: (u64, u64),
    /// What an EXTENDED COPY holds; the target device drives it.
    pub(crate) copy: Option<Box<Copy>>,
    /// Something that was preempted may still be written.
    pub(super) is_beside_preempted: bool,
}

impl Task {
    /// Whether it is a PERSISTENT RESERVE OUT.
    #[must_use]
    pub const fn may_change_reservations(&self) -> bool {
        self.opcode == 0x5f
    }

    /// Tells it that something which was preempted at its logical unit, by whoever is gone since, may still be written:
    /// it ends with BUSY rather than change a registration or what is reserved.
    pub const fn note_preempted(&mut self) {
        self.is_beside_preempted = true;
    }

    pub(crate) const fn nexus(&self) -> NexusId {
        self.nexus
    }

    /// Number of bytes of its latest read, or of the one that comes after a flush.
    #[must_use]
    pub const fn read_len(&self) -> u64 {
        self.reading.1
    }

    /// A task that has ended already.
    pub(crate) fn ended(nexus: NexusId) -> Self {
        Self {
            lun: 0,
            incarnation: 0,
            nexus,
            opcode: 0,
            announced: 0,
            rules: Rules::STRICTEST,
            state: State::Ended,
            slot: None,
            reading: (0, 0),
            copy: None,
            is_beside_preempted: false,
        }
    }

    pub(super) fn read(&mut self, offset: u64, len: u64) -> Step {
        self.reading = (offset, len);
        medium::submit(Op::Read, offset, len)
    }

    /// INVALID FIELD IN CDB for the field that says how many blocks.
    pub(super) const fn invalid_length(&self) -> Sense {
        Sense::invalid_cdb(cdb::length_field(self.opcode), None)
    }
}

/// Why a medium request is not to be submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Its initiator has no right to it: ACCESS DENIED - NO ACCESS RIGHTS (20h/02h).
    AccessDenied,
    /// The device takes no requests for a short time: BUSY (SAM-5, section 5.3.1).
    Busy,
    /// The device is being taken away: LOGICAL UNIT NOT SUPPORTED.
    Gone,
}
