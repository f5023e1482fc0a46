//! What goes into the machine and comes out of it.

use alloc::string::String;

use netraid_block::{IoError, Op, Pool, SgList};

use crate::{
    faults::Fault,
    label::{Holder, Label, Uuid},
    log::Beginnings,
    member::{ArrayState, MemberIndex, MemberState},
};

pub use crate::array::{IoId, RequestId};

/// What the volume is to do, in the order in which it is polled.
#[derive(Debug, Clone)]
pub enum Action {
    /// Read from a member; the answer brings exactly so many bytes.
    Read {
        /// To be given back.
        io: IoId,
        /// Which member.
        member: MemberIndex,
        /// First byte on it.
        offset: u64,
        /// Number of bytes.
        len: u32,
    },
    /// Write to a member.
    Write {
        /// To be given back.
        io: IoId,
        /// Which member.
        member: MemberIndex,
        /// First byte on it.
        offset: u64,
        /// The bytes.
        data: SgList,
        /// Must be stable when it ends.
        fua: bool,
        /// Which of the devices in the member's place get it, while there are two.
        to: To,
    },
    /// Make what a member completed stable.
    Flush {
        /// To be given back.
        io: IoId,
        /// Which member.
        member: MemberIndex,
    },
    /// Give back space of a member. What is there afterwards does not matter.
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
    /// End a user's request; a read's end brings its bytes.
    Complete {
        /// Which.
        request: RequestId,
        /// Its end.
        result: Result<SgList, IoError>,
    },
}

/// Which devices in a member's place get a write, while the member is copied to another device, its successor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum To {
    /// The member's device, and its successor. So do flushes and discards.
    #[default]
    Both,
    /// The member's device alone: what its label says of it is not true of the other one.
    Member,
    /// The successor alone, in the copy of this number: what it lacks.
    Successor(u64),
}

/// A user's request.
#[derive(Debug, Clone)]
pub struct UserRequest {
    /// What to do.
    pub op: Op,
    /// First byte of the volume.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// Stable when completed.
    pub fua: bool,
    /// What to write; empty for all that is no write.
    pub data: SgList,
}

/// What the machine must know of a member's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemberCaps {
    /// Completed writes may be lost before a flush.
    pub volatile_cache: bool,
    /// Discards give space back.
    pub can_discard: bool,
}

/// A member's device, as it was found when the array is opened.
#[derive(Debug, Clone)]
pub struct FoundMember {
    /// What it can do.
    pub caps: MemberCaps,
    /// What it says of itself.
    pub label: Label,
    /// The counter of the newest checkpoint that it has, where that is known.
    pub checkpoint: Option<u64>,
}

/// How to open an array.
///
/// When it is opened, nothing that an earlier engine has sent to these members may have an effect
/// any more: the shell has fenced it, reset the units, or logged in again in its name.
#[derive(Debug, Clone)]
pub struct OpenConfig {
    /// By member; none for those that cannot be reached.
    pub members: alloc::vec::Vec<Option<FoundMember>>,
    /// Who opens it.
    pub holder: Holder,
    /// Largest member request in bytes; adjacent ones are merged up to it.
    pub max_io_len: u32,
    /// Where computed bytes are put.
    pub pool: Pool,
    /// What it may use.
    pub limits: Limits,
}

/// What an array may use at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Pages of checksums in memory, 4 KiB each, beside those that are in use or not written yet.
    pub sum_pages: usize,
    /// Blocks of 4 KiB in memory that are in the log and not home.
    pub dirty_blocks: usize,
    /// Stripes that one round works on at a time.
    pub stripes_at_once: usize,
    /// Stripes after which labels say how far a member has caught up; not 0.
    pub stripes_per_mark: u32,
    /// Bytes of whole stripes that are written and not stable, before they are made so by
    /// themselves; users wait when it is twice as much. A recovery may have to read all of it.
    pub unstable_len: u64,
    /// Beginnings of generations in the labels, before the log is begun behind them when the array is
    /// opened: 1 to half of [`Beginnings::MAX`], which counts if this is
    /// more.
    pub beginnings: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sum_pages: 65_536,
            dirty_blocks: 32_768,
            stripes_at_once: 128,
            stripes_per_mark: 4096,
            unstable_len: 1 << 30,
            beginnings: Beginnings::MAX / 2,
        }
    }
}

/// What happened, for people and logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The array takes requests.
    Opened,
    /// A member's state changed; or its device that is back was not taken, and it is as before.
    Member {
        /// Which.
        member: MemberIndex,
        /// To what.
        state: MemberState,
        /// Why.
        reason: String,
    },
    /// The array's state changed.
    State(ArrayState),
    /// Something was found wrong with what a member has.
    Found {
        /// Which.
        member: MemberIndex,
        /// What.
        fault: Fault,
        /// How many blocks or writes.
        count: u64,
    },
    /// Bytes on a member were wrong or unreadable and were written again.
    Repaired {
        /// Which.
        member: MemberIndex,
        /// Where on it.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// Bytes that a member lacks cannot be had from the others: what it holds there is not right.
    Lost {
        /// Which.
        member: MemberIndex,
        /// Where on it.
        offset: u64,
        /// How many bytes.
        len: u32,
    },
    /// A member holds everything again, but for what was told to be lost.
    CaughtUp(MemberIndex),
    /// A scrub tells something.
    Scrub(super::ScrubEvent),
    /// Something that an administrator should know.
    Notice(String),
    /// Nothing more is asked for: everything is stable and the labels say so, or the array failed.
    Closed,
}

/// What identifies a new device that takes a member's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewDevice {
    /// Its identity from now on.
    pub uuid: Uuid,
    /// What it can do.
    pub caps: MemberCaps,
}

/// What is in the log and on the members of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Blocks of 4 KiB of the log.
    pub log_blocks: u64,
    /// Those that are in use.
    pub log_used: u64,
    /// Blocks of the volume that are in the log and not home.
    pub dirty_blocks: u64,
    /// Round of the last checkpoint.
    pub round: u32,
    /// Stripes that hold data.
    pub mapped: u32,
    /// Stripes on the members.
    pub physical: u32,
}
