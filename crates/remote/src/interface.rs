//! What goes into a remote disk and comes out of it.

use alloc::{string::String, sync::Arc, vec::Vec};
use core::time::Duration;

use netraid_block::{DeviceInfo, IoError, Op, Portal, RequestFlags, SgList};
use netraid_iscsi_proto::{
    chap::{CHALLENGE_LEN, Credentials, Secret},
    initiator::Setup,
    machine::Digests,
    pdu::Bhs,
};
use netraid_scsi::cdb::build::CdbBytes;

use crate::{Reason, RemoteIdentity};

/// Where the disk is, and how its sessions are to be.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The address as people are shown it, without secrets.
    pub place: Arc<str>,
    /// Number of the logical unit.
    pub lun: u16,
    /// Where the target listens: one at least.
    pub portals: Vec<Portal>,
    /// What all sessions are; each has an ISID of its own, made from the one here.
    pub setup: Setup,
    /// What the target has to prove at each login, and the name that it must give with it, if any.
    pub target_proof: Option<(Option<String>, Secret)>,
    /// User and secret come with each connection ([`Fresh::credentials`]): they are those of a plan, which may end.
    pub goes_by_plan: bool,
    /// Somebody with this ISID may have been here before: the sessions that it left are ended first.
    pub takes_over: bool,
    /// Sessions that share the requests: 1 to [`Settings::SESSIONS_MAX`]. Each begins at another portal.
    pub sessions: u8,
    /// Longest that a request may take while the disk makes no progress.
    pub request_timeout: Duration,
    /// How long requests wait for a peer that surely is not there.
    pub refusal_limit: Duration,
    /// Longest that connecting may take, and again logging in, and again examining the disk; with several portals, a
    /// quarter of `request_timeout` when that is less.
    pub login_timeout: Duration,
    /// Keys of reservations of those who only read, and take nothing over: a mask, and what such a key shows under it.
    pub reader_keys: Option<(u64, u64)>,
}

impl Settings {
    /// Most sessions of one disk.
    pub const SESSIONS_MAX: u8 = 8;
}

/// A request to the disk, which lies within it and is aligned; `U` is what the shell knows it by.
#[derive(Debug)]
pub struct Request<U> {
    /// What to do.
    pub op: Op,
    /// First byte; 0 for a flush.
    pub offset: u64,
    /// Number of bytes; 0 for a flush.
    pub len: u64,
    /// Modifiers.
    pub flags: RequestFlags,
    /// The bytes of a write, exactly `len`; empty for all else.
    pub data: SgList,
    /// To be given back with the end.
    pub user: U,
}

/// Names an order to the shell that gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrderId(pub u64);

/// What is to be done beside the requests: persistent reservations (SPC-4, section 5.13). Orders are carried out one after
/// the other, since each depends on what the last one left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Registers every session with a key. A session that is not there within half the time of a request is registered
    /// when it comes, and carries nothing before.
    Register {
        /// The key; 0 takes the registrations back.
        key: u64,
        /// Whatever is registered there.
        ignore: bool,
    },
    /// CLEAR, after which no session is registered any more.
    Clear {
        /// The key that the sessions are registered with.
        key: u64,
    },
    /// One command on one session.
    Once {
        /// The command.
        cdb: CdbBytes,
        /// What it sends; empty when it reads.
        parameters: Vec<u8>,
        /// Most bytes that it reads.
        read_len: u32,
    },
}

/// Which of the connections: one for each session, and one by which sessions of a predecessor are ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place(pub usize);

/// What a login needs of its own.
#[derive(Debug, Clone)]
pub struct Fresh {
    /// User and secret of the moment, where [`Settings::goes_by_plan`].
    pub credentials: Option<Credentials>,
    /// A random byte.
    pub identifier: u8,
    /// Random bytes.
    pub challenge: [u8; CHALLENGE_LEN],
}

/// What a shell is to do, in the order in which it is polled. Before it does what one batch says, it publishes
/// [`crate::Remote::status`]: whoever hears of an end knows then what the disk told before.
#[derive(Debug)]
pub enum Action<U> {
    /// Make a connection; ends by [`crate::Remote::handle_connected`] or [`crate::Remote::handle_not_connected`], unless
    /// it is broken off before.
    Connect {
        /// Whose it is; there is none of this place now.
        place: Place,
        /// Where to.
        portal: Portal,
    },
    /// Close the connection, or break off what makes it: nothing that comes from it counts any more.
    Disconnect(Place),
    /// Tell whoever wanted the disk that it takes requests, or why it cannot be had; in the latter case all is over.
    Opened(Result<Opened, Reason>),
    /// End a request.
    Complete {
        /// Whose.
        user: U,
        /// How; a read's end brings its bytes.
        result: Result<SgList, IoError>,
    },
    /// Tell how an order ended, and what it read.
    Answer {
        /// Which.
        order: OrderId,
        /// How.
        result: Result<Vec<u8>, IoError>,
    },
    /// Tell what happened.
    Tell(Event),
    /// All is over: nothing comes any more, and nothing is waited for.
    Closed,
}

/// A disk that was examined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// What it is and can do.
    pub info: DeviceInfo,
    /// Who it says that it is.
    pub identity: RemoteIdentity,
}

/// What can be seen of the sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status {
    /// There is a session.
    pub is_connected: bool,
    /// The registration of this side's key is gone: another host has taken over; final.
    pub is_fenced: bool,
    /// The peer surely is not there, for longer than a restart takes.
    pub is_gone: bool,
    /// Bytes of the disk, as last read.
    pub capacity: u64,
    /// How often the disk may have lost what was not flushed.
    pub cache_losses: u64,
    /// How often a session was made again.
    pub reconnects: u64,
    /// Grows with what comes from the peer in a session.
    pub signs: u64,
    /// How often there was no session for another reason than before; the reason is
    /// [`crate::Remote::last_failure`].
    pub failures: u64,
}

/// What happened, for logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The process stood still, and has not looked at what came meanwhile: that time does not count.
    StoodStill {
        /// So long.
        time: Duration,
    },
    /// A session is lost.
    Lost {
        /// Which.
        session: usize,
        /// Why.
        reason: String,
    },
    /// A session could not be made.
    NotMade {
        /// Which.
        session: usize,
        /// Why.
        reason: String,
    },
    /// A session was made again.
    Reconnected {
        /// Which.
        session: usize,
    },
    /// The target asks for the end of a session.
    Ending {
        /// Which.
        session: usize,
    },
    /// A login is redirected.
    Redirected {
        /// By whom.
        from: Portal,
        /// Where to.
        to: Portal,
        /// For good.
        permanent: bool,
    },
    /// A portal lets nobody in: sessions of a predecessor may remain behind it.
    PredecessorMayRemain {
        /// Which.
        portal: Portal,
        /// Why.
        reason: String,
    },
    /// The disk has more blocks than before.
    Grown {
        /// So many.
        blocks: u64,
    },
    /// Another host has taken over.
    Fenced,
    /// A session could not be registered yet.
    NotRegistered {
        /// Which.
        session: usize,
        /// Why.
        reason: String,
    },
    /// A session cannot be registered, and is not used any more.
    GivenUp {
        /// Which.
        session: usize,
    },
    /// The disk has not answered commands of a kind, and gets no more of them.
    Unanswered {
        /// Which kind.
        kind: &'static str,
    },
    /// The disk refuses commands of a kind, and gets no more of them.
    DoneWithout {
        /// Which kind.
        kind: &'static str,
        /// How it refused.
        end: String,
    },
    /// The disk does not flush, and is taken to have no volatile cache.
    NoCache {
        /// How it refused.
        end: String,
    },
    /// The disk refuses the FUA bit that it told of; it is flushed instead.
    NoForcedWrites,
}

/// One PDU to send.
#[derive(Debug)]
pub struct Transmit {
    /// Its header, complete.
    pub header: Bhs,
    /// Its data segment, without padding.
    pub body: SgList,
    /// The digests to add.
    pub digests: Digests,
}
