//! The target: [`Node`] knows all sessions, [`Connection`] is one of them.
//!
//! A connection orders commands, gathers their data, and sends what a logical unit answers. It
//! knows nothing of SCSI but status, sense and lengths. Sessions have one connection each and
//! error recovery level 0: whatever goes wrong on the wire ends the session.

mod connection;
mod control;
mod exchange;
mod fault;
mod login;
mod management;
mod node;
mod preempt;
mod replies;
mod statistics;
mod tags;
mod tasks;
mod window;

use alloc::{string::String, vec::Vec};
use core::{net::SocketAddr, time::Duration};

pub use connection::Connection;
pub use login::Claim;
pub use node::{ConnectionId, Full, Limits, Link, Node, Party, Realm, Seat, SessionView, Standing};
pub use statistics::{Count, Counters, Traffic};

pub use crate::chap::Challenge;
use crate::{
    chap::{Algorithm, Credentials},
    machine::TaskId,
    negotiation::{SessionType, Wishes},
    pdu::LunField,
};

/// What a target is and allows; the same for all its connections.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Its iSCSI name.
    pub name: String,
    /// Addresses (`host:port`) that discovery names besides the one that was asked.
    pub portals: Vec<String>,
    /// Who may log in; everybody when there is none.
    pub chap: Vec<Credentials>,
    /// How the target proves itself to initiators that ask for it; the secret is another than
    /// those of `chap` (see [`crate::chap::check_distinct`]).
    pub mutual_chap: Option<Credentials>,
    /// CHAP digests that may be chosen from what an initiator offers, in any order: its order counts.
    pub chap_allow: Vec<Algorithm>,
    /// Whether the shell judges who logs in, by name and proof ([`Event::AskStanding`]); then
    /// `chap` and `mutual_chap` are not used.
    pub asks_standing: bool,
    /// Names of the initiators that may log in, compared without case; all when empty.
    pub allow: Vec<String>,
    /// Where logins are sent instead of being served, by the portal they come to.
    pub redirects: Vec<Redirect>,
    /// What it negotiates for.
    pub wishes: Wishes,
    /// Whether each R2T and each command is granted before it goes ([`Event::AskGrant`]). No data
    /// is agreed to come unasked then, and R2Ts are as long as `wishes` say of bursts at most.
    pub paced: bool,
    /// Commands of one session in progress: 1 to 1024.
    pub queue_depth: u16,
    /// Data of one session held in memory, in bytes; one command may exceed it alone.
    pub data_budget: u64,
    /// Longest login.
    pub login_timeout: Duration,
    /// How long a task management function waits for tasks to end.
    pub task_function_timeout: Duration,
    /// Silence after which a session is pinged.
    pub ping_interval: Duration,
    /// Silence after a ping that ends a session. A process that is stopped for a while, or a host
    /// that is migrated, is not dead.
    pub ping_timeout: Duration,
}

impl Setup {
    /// The usual limits for a target of this name.
    #[must_use]
    pub fn new(name: String) -> Self {
        Self {
            name,
            portals: Vec::new(),
            chap: Vec::new(),
            mutual_chap: None,
            chap_allow: Algorithm::PREFERENCE.to_vec(),
            asks_standing: false,
            allow: Vec::new(),
            redirects: Vec::new(),
            wishes: Wishes::default(),
            paced: false,
            queue_depth: 128,
            data_budget: 64 << 20,
            login_timeout: Duration::from_secs(15),
            task_function_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(15),
            ping_timeout: Duration::from_secs(120),
        }
    }
}

/// Sends logins elsewhere (RFC 7143, section 11.13.5, status class 1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    /// The portal that does so; every one when none. An unspecified address (`0.0.0.0`) stands
    /// for all addresses with that port.
    pub portal: Option<SocketAddr>,
    /// Where to: `host:port`.
    pub address: String,
    /// From now on, else for this login only.
    pub permanent: bool,
}

impl Redirect {
    fn applies_to(&self, asked: SocketAddr) -> bool {
        self.portal.is_none_or(|portal| {
            portal == asked || (portal.ip().is_unspecified() && portal.port() == asked.port())
        })
    }
}

/// A login that was refused, or sent elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedLogin {
    /// The login status (RFC 7143, section 11.13.5).
    pub status: u16,
    /// The name that the initiator gave, if it came so far: at most 223 characters of any kind.
    pub initiator: Option<String>,
    /// Of what there were too many sessions, where that is why.
    pub full: Option<Full>,
}

/// What a logical unit says of a command that it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of Data-Out that the unit takes: at most those that the initiator sends.
    pub data_out: u32,
    /// Bytes of Data-Out that the command describes; the residual is counted against it.
    pub data_out_total: u64,
    /// Most bytes that executing the command holds in memory at a time besides its Data-Out; both
    /// are counted against the budgets.
    pub memory: u64,
}

/// How a command ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// SCSI status.
    pub status: u8,
    /// Sense data, empty when none.
    pub sense: Vec<u8>,
    /// Bytes of Data-In at hand; more than the initiator takes is residual.
    pub data_in: u64,
}

/// What a connection wants of its shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The login is complete.
    LoggedIn {
        /// The initiator's name, in lower case.
        initiator: String,
        /// The initiator's part of the session identifier.
        isid: [u8; 6],
        /// The target's part.
        tsih: u16,
        /// Kind of session.
        session: SessionType,
        /// The CHAP digest by which the initiator proved itself; none when it did not have to.
        chap: Option<Algorithm>,
    },
    /// An initiator gave a name and a proof, where `Setup::asks_standing` says so: look at
    /// [`Connection::claim`], and answer with `handle_standing` at any time. Whoever is not
    /// answered before its login has taken too long is gone.
    AskStanding,
    /// A command has come. Answer with `handle_plan` or `handle_outcome`, before anything else.
    Command {
        /// Its place.
        task: TaskId,
        /// Logical unit.
        lun: LunField,
        /// Command descriptor block.
        cdb: [u8; 16],
        /// Bytes of Data-Out that the initiator sends.
        data_out_max: u32,
        /// Bytes of Data-In that the initiator takes.
        data_in_max: u32,
    },
    /// Something may go that needs a grant, where `Setup::paced` says so: answer with
    /// `handle_grant`, at any time before the task's `Release`. A task asks for one at a time.
    AskGrant {
        /// Which command.
        task: TaskId,
        /// Bytes that it moves.
        len: u32,
        /// The command is to be executed, else data of it is asked for.
        executes: bool,
    },
    /// All Data-Out is in and there is memory for Data-In: execute, answer with `handle_outcome`.
    Submit {
        /// Which command.
        task: TaskId,
    },
    /// Nothing more is wanted of this task; its place may be taken again.
    Release {
        /// Which command.
        task: TaskId,
    },
    /// A logical unit (or all) was reset by this session.
    Reset {
        /// Which; all when none.
        lun: Option<u16>,
    },
    /// Commands of this session for a logical unit were cleared by another session: its
    /// initiator is to be told (COMMANDS CLEARED BY ANOTHER INITIATOR).
    Cleared {
        /// Which.
        lun: u16,
    },
    /// The tasks that `handle_preempt` named have ended, or nobody waits for them any more.
    Preempted {
        /// The command that waited.
        task: TaskId,
    },
    /// Tasks that another session waits for have ended: call `handle_wake`.
    Settled,
}
