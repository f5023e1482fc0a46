//! What goes into a [`super::Net`] and comes out of it.

use core::{ops::RangeInclusive, time::Duration};

use netraid_block::{IoError, Op, SgList};
use netraid_control::{
    keys::Keyring,
    units::{AgentId, Generation, MediatorId, Moment, PlanId, SegmentId},
};
use netraid_iscsi_proto::{chap::Credentials, initiator::random_isid, negotiation::Wishes};
use netraid_node::segments::Stuck;
use netraid_remote::{Event, Opened, OrderId, Reason};

use crate::{disk::DiskShape, time::Time};

/// A machine on which engines run: it has a network of its own, and dies as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId(pub usize);

/// A machine with one disk, and a target program that serves it as LUN 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub usize);

/// A [`netraid_remote::Remote`] and its driver: one engine's way to one host's disk. Numbers are never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineId(pub usize);

/// A connection, by a number that is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// How the network is while nobody does anything to it.
#[derive(Debug, Clone)]
pub struct Manners {
    /// How long a piece of a stream is on its way.
    pub latency: RangeInclusive<Duration>,
    /// One piece in so many is late by `late`; 0: none.
    pub late_one_in: u32,
    /// How late.
    pub late: RangeInclusive<Duration>,
    /// What is sent at once breaks into pieces, once in so many sends; 0: never.
    pub break_one_in: u32,
    /// Bytes that a direction of a connection holds until they are taken; each connection has its own bound.
    pub room: RangeInclusive<usize>,
    /// One dial in so many is refused though somebody listens; 0: none.
    pub refuse_one_in: u32,
    /// One dial in so many is never answered; 0: none.
    pub unanswered_one_in: u32,
    /// One dial in so many takes as long as this says; 0: none.
    pub slow_one_in: u32,
    /// How long those take.
    pub slow: RangeInclusive<Duration>,
    /// One dial in so many of a line's sessions beside its first one is never answered; 0: none.
    pub beside_unanswered_one_in: u32,
    /// How late a timer fires, and how long a task waits for its processor.
    pub scheduling: RangeInclusive<Duration>,
}

impl Default for Manners {
    fn default() -> Self {
        let (micro, milli) = (Duration::from_micros(1), Duration::from_millis(1));
        Self {
            latency: 20 * micro..=300 * micro,
            late_one_in: 50,
            late: milli..=20 * milli,
            break_one_in: 6,
            room: 32 << 10..=4 << 20,
            refuse_one_in: 0,
            unanswered_one_in: 0,
            slow_one_in: 0,
            slow: 100 * milli..=2000 * milli,
            beside_unanswered_one_in: 0,
            scheduling: Duration::ZERO..=100 * micro,
        }
    }
}

/// How a disk is.
#[derive(Debug, Clone)]
pub struct DiskConfig {
    /// Its size and kind.
    pub shape: DiskShape,
    /// How long a request takes, one by one: those that are there at a time end in any order.
    pub latency: RangeInclusive<Duration>,
    /// One request in so many takes as long as `slow` says; 0: none.
    pub slow_one_in: u32,
    /// How long those take.
    pub slow: RangeInclusive<Duration>,
    /// How long it takes to store reservations.
    pub store: RangeInclusive<Duration>,
    /// It can discard.
    pub can_discard: bool,
    /// Most bytes of a transfer, as it says.
    pub max_transfer_len: u32,
    /// What it lacks.
    pub quirks: Quirks,
}

/// What a disk lacks that the product's target has: it refuses such commands as other targets do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quirks {
    /// It refuses the mode page that tells of its cache.
    pub no_cache_page: bool,
    /// It does not tell of the FUA bit.
    pub no_fua: bool,
    /// It refuses the FUA bit that it tells of.
    pub refuses_fua: bool,
    /// It does not know SYNCHRONIZE CACHE; only for one without a volatile cache.
    pub no_flush: bool,
    /// It has no persistent reservations.
    pub no_reservations: bool,
}

impl DiskConfig {
    /// A fast disk.
    #[must_use]
    pub const fn new(shape: DiskShape) -> Self {
        let milli = Duration::from_millis(1);
        Self {
            shape,
            latency: Duration::from_micros(20)..=Duration::from_millis(2),
            slow_one_in: 200,
            slow: Duration::from_millis(5)..=Duration::from_millis(100),
            store: Duration::from_micros(50)..=milli,
            can_discard: true,
            max_transfer_len: 2 << 20,
            quirks: Quirks {
                no_cache_page: false,
                no_fua: false,
                refuses_fua: false,
                no_flush: false,
                no_reservations: false,
            },
        }
    }
}

/// How a host is.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// Its disk.
    pub disk: DiskConfig,
    /// Its portals: 1 to 8. All lead to the same program.
    pub portals: u16,
    /// Reservations survive a restart of the program and a power loss, where a registration asks for it.
    pub persists: bool,
    /// They do so whether a registration asks for it or not, as with targets of other makers.
    pub remembers: bool,
    /// Commands of one session in progress.
    pub queue_depth: u16,
    /// Longest data segment that the target takes.
    pub max_recv_len: u32,
    /// Silence after which the target pings.
    pub ping_interval: Duration,
    /// Silence after a ping that ends a session.
    pub ping_timeout: Duration,
    /// It is an agent's: tokens let in to its disk, which is one segment, and nobody else is let in.
    pub agent: Option<AgentConfig>,
}

/// An agent with one segment.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Whose segment it is.
    pub mediator: MediatorId,
    /// The agent.
    pub agent: AgentId,
    /// The segment.
    pub segment: SegmentId,
    /// The keys that the agent shares with its mediators.
    pub keys: Keyring,
    /// The generation that the segment begins with.
    pub generation: Generation,
    /// The wall clock when the run begins.
    pub begins: Moment,
    /// For how long nobody uses the segment until its device is closed.
    pub idle_limit: Duration,
    /// One opening in so many fails, for want of something.
    pub unopened_one_in: u32,
}

/// What the owner of a segment orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentOrder {
    /// It has this generation, which the agent knows already: sessions of older ones end.
    Raise(Generation),
    /// A plan ends, and the sessions that it let in.
    EndPlan(PlanId),
    /// It is closed.
    Close,
    /// A plan lasts until this moment, for the sessions that it has then. See [`super::Net::extend_plan`] for an order that does
    /// not wait for others.
    Extend(PlanId, Moment),
}

impl HostConfig {
    /// The usual target on this disk.
    #[must_use]
    pub const fn new(disk: DiskConfig) -> Self {
        Self {
            disk,
            portals: 1,
            persists: true,
            remembers: false,
            queue_depth: 128,
            max_recv_len: 1 << 20,
            ping_interval: Duration::from_secs(15),
            ping_timeout: Duration::from_secs(120),
            agent: None,
        }
    }
}

/// How an engine is to reach a disk: what `InitiatorConfig` of the engine says, with its defaults.
#[derive(Debug, Clone)]
pub struct LineConfig {
    /// iSCSI name of this side.
    pub initiator_name: String,
    /// Given: sessions of a predecessor with the same are ended first (it takes over). None: a random one.
    pub isid: Option<[u8; 6]>,
    /// Sessions that share the requests, 1 to 8, at one portal after the other.
    pub sessions: u8,
    /// Longest that a request may take while the disk makes no progress.
    pub request_timeout: Duration,
    /// How long requests wait for a peer that surely is not there.
    pub refusal_limit: Duration,
    /// Longest that connecting may take, and again logging in.
    pub login_timeout: Duration,
    /// Insist on digests of headers, and of data.
    pub digests: (bool, bool),
    /// What is negotiated for else.
    pub wishes: Wishes,
    /// Commands in progress: 1 to 1024.
    pub queue_depth: u16,
    /// The token that lets in, and its secret.
    pub credentials: Option<Credentials>,
}

impl LineConfig {
    /// The engine's defaults.
    #[must_use]
    pub fn new(initiator_name: impl Into<String>) -> Self {
        Self {
            initiator_name: initiator_name.into(),
            isid: None,
            sessions: 1,
            request_timeout: Duration::from_secs(5),
            refusal_limit: Duration::from_millis(500),
            login_timeout: Duration::from_secs(5),
            digests: (false, false),
            wishes: Wishes::default(),
            queue_depth: 128,
            credentials: None,
        }
    }

    /// The same for one that takes over: an ISID from these bytes.
    #[must_use]
    pub fn taking_over(mut self, random: [u8; 3], qualifier: u16) -> Self {
        self.isid = Some(random_isid(random, qualifier));
        self
    }
}

/// What a line has to tell. When something is told, [`super::Net::status`] is what was so then.
#[derive(Debug)]
pub enum News<U> {
    /// The disk takes requests, or cannot be had; in the latter case [`News::Closed`] follows.
    Opened(Result<Opened, Reason>),
    /// A request has ended; a read brings its bytes.
    Ended {
        /// Whose.
        user: U,
        /// How.
        result: Result<SgList, IoError>,
    },
    /// An order has ended; one that reads brings its bytes.
    Answered {
        /// Which.
        order: OrderId,
        /// How.
        result: Result<Vec<u8>, IoError>,
    },
    /// Something happened.
    Told(Event),
    /// All is over: nothing comes any more.
    Closed,
}

/// How an order of a segment's owner ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordered {
    /// It is done.
    Done,
    /// It was not done in time.
    Stuck(Stuck),
    /// The program died, or there was none: nothing of any session is at the disk.
    Died,
}

/// What [`super::Net::step`] did.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<X> {
    /// Nothing is to come.
    Nothing,
    /// Something happened beneath; there may be news.
    Beneath,
    /// An event of the owner's is due.
    Own(X),
}

/// A direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// From the engine to the host.
    ToHost,
    /// From the host to the engine.
    ToEngine,
}

/// What becomes of what is on its way when a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It comes up to any byte, and no further.
    Lost,
    /// It comes, so much later.
    Delivered(Duration),
}

/// How a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// When the engine hears of it, after what is still delivered; none: never.
    pub engine_hears: Option<Duration>,
    /// When the host hears of it, after what is still delivered; none: never.
    pub host_hears: Option<Duration>,
    /// What is on its way to the host.
    pub to_host: Fate,
    /// What is on its way to the engine.
    pub to_engine: Fate,
}

/// How an engine dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// Its process: the system closes its connections, behind what was sent.
    Process,
    /// Its machine: what was sent may come, and nobody is told of the end.
    Machine,
}

/// What a disk did, as the medium saw it; only kept where [`super::Net::watch`] asked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effect {
    /// When.
    pub at: Time,
    /// Whose disk.
    pub host: HostId,
    /// By whose command.
    pub engine: EngineId,
    /// By which connection.
    pub stream: StreamId,
    /// What.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// A part of it only: the rest was lost in a crash.
    pub is_torn: bool,
}
