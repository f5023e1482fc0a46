//! What goes into a volume and comes out of it.

use alloc::{string::String, vec::Vec};
use core::time::Duration;

use netraid_block::{IoError, Op, SgList};

use crate::{
    array::{Background, CommandError, MemberCaps},
    label::{Label, Uuid},
    logged::ScrubStatus,
    member::{ArrayState, MemberIndex, MemberSet, MemberState},
    slowness::Deadlines,
};

/// A request to the device in a member's place, in flight. Its end comes with the same tag.
///
/// A tag is one word, in which a shell may find the member: in the uppermost bit whether the request is for the device
/// that is to succeed the member's, the member's index in the 7 bits below, the number of a piece in the next 16 bits, and
/// the number of the member request in the lower 40.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag(pub u64);

/// What a shell is to do, in the order in which it is polled; `U` is what the shell knows a user's request by.
#[derive(Debug)]
pub enum Action<U> {
    /// Send a request to the device in a member's place; ends by [`super::Volume::handle_io_done`]. Where the tag says so
    /// ([`Tag::is_for_successor`]), it is for the device that was prepared for the place and was neither taken nor let go,
    /// or has been taken since.
    Submit {
        /// To be given back.
        tag: Tag,
        /// In whose place.
        member: MemberIndex,
        /// What to do.
        op: Op,
        /// First byte on the device.
        offset: u64,
        /// Number of bytes, no more than the device takes at once.
        len: u64,
        /// Must be stable when it ends.
        fua: bool,
        /// What to write; empty for all that is no write.
        data: SgList,
    },
    /// End a user's request.
    Complete {
        /// Whose.
        user: U,
        /// How; a read's end brings its bytes.
        result: Result<SgList, IoError>,
    },
    /// End the sessions to the device in a member's place, so that nothing more reaches it: it was set aside.
    Part(MemberIndex),
    /// End the sessions to the device in a member's place at once, as if this engine had died: requests to it end, and
    /// nothing more reaches it.
    Cut(MemberIndex),
    /// Open the array anew, with the devices whose addresses are known: nothing is under way any more, and no member has
    /// sessions. It ends by [`super::Volume::handle_reopened`].
    Reopen {
        /// Members that do not come back by themselves: their devices are not looked for.
        but: MemberSet,
    },
    /// Make a session to the member's own device again, and see whether it is that member's still; ends by
    /// [`super::Volume::handle_returned`].
    LookFor(MemberIndex),
    /// The device that is asked for next is the spare with this number; what becomes of it is told by
    /// [`super::Volume::handle_spare`].
    AskForSpare {
        /// Its place in the list that was given.
        number: usize,
    },
    /// Make a session to the device that was asked for, and prepare it; ends by [`super::Volume::handle_joined`] or
    /// [`super::Volume::handle_not_joined`]. Sessions to devices that were set aside have ended before.
    Join {
        /// In whose place it is to be.
        member: MemberIndex,
        /// What the device is to be.
        expect: Expect,
        /// The session to the device that is in the place ends before.
        ends_former: bool,
    },
    /// Put the device that was found into the member's place: requests go to it from now on.
    Take(MemberIndex),
    /// Give the device that was found back: it does not take the member's place. Requests to it that are under way end,
    /// however.
    LetGo(MemberIndex),
    /// Tell whoever opened the volume that it takes requests, or has failed before it did.
    Opened(Result<(), IoError>),
    /// Tell whoever asked for a device in a member's place what came of that: it takes part, or it does not and the
    /// place is free again.
    Joined {
        /// In whose place.
        member: MemberIndex,
        /// How it ended.
        result: Result<(), JoinError>,
    },
    /// Tell what happened.
    Tell(Event),
}

/// What a device that is to take a member's place is expected to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Unused.
    Unused,
    /// Whatever it is.
    Anything,
    /// What the member was before.
    Former,
}

/// What happened, for people and logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A member's state changed; or its device that is back was not taken, and it is as before.
    Member {
        /// Which.
        member: MemberIndex,
        /// To what.
        state: MemberState,
        /// Why.
        reason: String,
    },
    /// A member that takes part has no session, and why; or it has one again.
    Suspect {
        /// Which.
        member: MemberIndex,
        /// Why it has none; nothing when it has one again.
        failure: Option<String>,
    },
    /// A member answers reads so late that they go past it, and how late; or it is fast again.
    Slow {
        /// Which.
        member: MemberIndex,
        /// Why; nothing when it is fast again.
        failure: Option<String>,
    },
    /// The array's state changed.
    State(ArrayState),
    /// A range that a member could not read, or that was wrong, was written back from the others.
    Repaired {
        /// Which.
        member: MemberIndex,
        /// Where on it.
        offset: u64,
    },
    /// A member holds everything again.
    Rebuilt(MemberIndex),
    /// Parity matches again after a crash.
    Resynced,
    /// A rebuild or resync has ended, but for stripes that other members could not give.
    Incomplete {
        /// Which.
        background: Background,
        /// How many stripes are left.
        stripes: u64,
    },
    /// Bytes on a member are wrong, unreadable or unknown, and cannot be had from the others.
    Unrepaired {
        /// Which.
        member: MemberIndex,
        /// Where on it.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// What is the matter.
        reason: &'static str,
    },
    /// A scrub has ended.
    Scrubbed {
        /// What it found.
        status: ScrubStatus,
        /// Bytes of all members in one of its stripes.
        stripe_len: u64,
    },
    /// Something that an administrator should know.
    Notice(String),
    /// A member's device cannot come back now, for another reason than the last time.
    NotBack {
        /// Which.
        member: MemberIndex,
        /// Why.
        reason: String,
    },
}

/// Why a device does not take a member's place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The volume is not open yet, or closes.
    #[error("the array is not open")]
    NotOpen,
    /// The array's machine refuses.
    #[error(transparent)]
    Refused(#[from] CommandError),
    /// Another device is on its way into this member's place.
    #[error("another device is about to take the place of member {0}")]
    Joining(MemberIndex),
    /// The device serves as this member.
    #[error("it serves as member {0}")]
    Serves(MemberIndex),
    /// The machine had it, and it does not take part.
    #[error("{0}")]
    NotTaken(String),
}

/// What the sessions to the device in a member's place say at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The sessions were ended by another engine that has taken the array over.
    pub is_fenced: bool,
    /// There is a session.
    pub is_connected: bool,
    /// The device said that it goes: it takes no time to be given up.
    pub is_gone: bool,
    /// A count that grows whenever something comes from the device.
    pub signs: u64,
    /// Times that the device has lost what was not flushed.
    pub cache_losses: u64,
    /// Times that a session to the device was made again.
    pub reconnects: u64,
    /// How long a request to the device may take.
    pub request_timeout: Duration,
    /// Why there is no session.
    pub failure: String,
}

/// What a volume must know of a device in a member's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Where it is: what is told of another address is not told of this one.
    pub address: String,
    /// What it can do.
    pub caps: MemberCaps,
    /// Most bytes that it takes at once.
    pub max_transfer_len: u32,
    /// Times that it had lost what was not flushed when its session began.
    pub cache_losses: u64,
}

/// A member's place when a volume is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// With the device that the machine was opened with.
    Device(Device),
    /// Nobody is there; the address is known if it was given.
    Nobody(Option<String>),
    /// Its device is there at this address, and is not believed: it does not come back by itself.
    Liar(String),
}

/// A device that is ready to take a member's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The device.
    pub device: Device,
    /// The label of a member of an array with a log that is back; none of a device that is new.
    pub label: Option<Label>,
    /// The identity of a device that is new.
    pub uuid: Uuid,
}

/// How a volume is to work.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// By member.
    pub places: Vec<Found>,
    /// Bytes of memory for what is read ahead; none: nothing is.
    pub read_ahead: Option<u64>,
    /// Bytes of large reads under way at once; found by trying when none.
    pub reads_under_way: Option<u64>,
    /// From so many bytes on a read is large; [`crate::read_window::BOUNDED_LEN`] when none.
    pub large_from: Option<u64>,
    /// How long users' requests wait for members where those that are left cannot serve; zero: the array fails at once.
    pub pause: Duration,
    /// When requests to members are late.
    pub deadlines: Deadlines,
}

/// What was asked of the device in a member's place, and what came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests that read.
    pub reads: u64,
    /// Requests that wrote.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Reads that were late: what they were for was asked of the other members as well.
    pub late: u64,
    /// Requests that failed.
    pub errors: u64,
    /// The last failure.
    pub last_error: Option<String>,
}

impl Tag {
    /// In whose place the device is.
    #[must_use]
    pub const fn member(self) -> MemberIndex {
        MemberIndex((self.0 >> Self::MEMBER_SHIFT) as u8 & 0x7f)
    }

    /// Whether the request is for the device that is to succeed the one in the member's place.
    #[must_use]
    pub const fn is_for_successor(self) -> bool {
        self.0 & Self::SUCCESSOR != 0
    }

    /// The same request, to the device that is to succeed the member's.
    pub(super) const fn for_successor(self) -> Self {
        Self(self.0 | Self::SUCCESSOR)
    }

    /// It is for the successor.
    const SUCCESSOR: u64 = 1 << 63;
    /// Bits below the member.
    const MEMBER_SHIFT: u32 = 56;
    /// Bits below the piece.
    const PIECE_SHIFT: u32 = 40;

    /// Of a piece of a member request.
    ///
    /// # Panics
    /// When there are more requests or pieces than a tag has room for.
    pub(super) fn new(member: MemberIndex, io: usize, piece: u64) -> Self {
        let io = io as u64;
        assert!(io < 1 << Self::PIECE_SHIFT && piece < 1 << 16, "request {io}, piece {piece}");
        assert!(member.0 < 0x80, "member {member} has no place in a tag");
        Self(u64::from(member.0) << Self::MEMBER_SHIFT | piece << Self::PIECE_SHIFT | io)
    }

    pub(super) const fn io(self) -> u64 {
        self.0 & ((1 << Self::PIECE_SHIFT) - 1)
    }

    pub(super) const fn piece(self) -> u64 {
        self.0 >> Self::PIECE_SHIFT & 0xffff
    }
}
