//! The initiator: [`Session`] logs in, carries commands, and logs out.
//!
//! A session has one connection and error recovery level 0: when the connection is lost, so is
//! the session, and who owns it starts another one. Every task that was submitted is reported as
//! completed, unless the session is lost first.

mod discovery;
mod login;
mod session;
mod tasks;

use alloc::{string::String, vec::Vec};
use core::time::Duration;

pub use login::LoginError;
pub use session::Session;
pub use tasks::Moves;

use crate::{
    chap::{Algorithm, CHALLENGE_LEN, Credentials, Secret},
    machine::TaskId,
    negotiation::Wishes,
    pdu::{LunField, TaskResponseCode},
};

/// What a session is to be.
#[derive(Debug, Clone)]
pub struct Setup {
    /// This side's iSCSI name.
    pub initiator_name: String,
    /// The target's iSCSI name; none for a discovery session.
    pub target_name: Option<String>,
    /// The initiator's part of the session identifier; the same one again replaces the session.
    pub isid: [u8; 6],
    /// Name and secret, for targets that want them.
    pub chap: Option<Credentials>,
    /// What the target has to prove in turn (mutual CHAP); only with `chap`.
    pub mutual: Option<Mutual>,
    /// Whether a target may let this side in without asking for the proof that `chap` gives.
    pub allow_none: bool,
    /// CHAP algorithms that are offered, the preferred first.
    pub algorithms: &'static [Algorithm],
    /// What is negotiated for.
    pub wishes: Wishes,
    /// Commands in progress: 1 to 1024; the target may allow fewer.
    pub queue_depth: u16,
    /// CmdSN of the first command; any value.
    pub first_cmd_sn: u32,
    /// Longest login.
    pub login_timeout: Duration,
    /// Silence after which the target is pinged while commands are in progress.
    pub ping_interval_busy: Duration,
    /// The same while there are none.
    pub ping_interval_idle: Duration,
    /// Silence after a ping that ends the session while commands are in progress.
    pub ping_timeout_busy: Duration,
    /// The same while there are none.
    pub ping_timeout_idle: Duration,
}

impl Setup {
    /// A session with the usual limits; for discovery without `target_name`.
    #[must_use]
    pub fn new(initiator_name: String, target_name: Option<String>, isid: [u8; 6]) -> Self {
        Self {
            initiator_name,
            target_name,
            isid,
            chap: None,
            mutual: None,
            allow_none: false,
            algorithms: &Algorithm::PREFERENCE,
            wishes: Wishes::default(),
            queue_depth: 128,
            first_cmd_sn: 1,
            login_timeout: Duration::from_secs(5),
            ping_interval_busy: Duration::from_secs(1),
            ping_interval_idle: Duration::from_secs(10),
            ping_timeout_busy: Duration::from_secs(2),
            ping_timeout_idle: Duration::from_secs(2),
        }
    }
}

/// What a target has to prove (mutual CHAP, RFC 7143, section 12.1.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mutual {
    /// The name that the target must give; none: any.
    pub user: Option<String>,
    /// What both sides know; another one than the initiator's own secret (RFC 7143, section
    /// 9.2.1), or a peer could have this side answer itself.
    pub secret: Secret,
    /// Identifies the challenge.
    pub identifier: u8,
    /// Random bytes, new ones for each login.
    pub challenge: [u8; CHALLENGE_LEN],
}

/// An ISID of the random format (RFC 7143, section 11.12.5), from three random bytes and a
/// qualifier that tells sessions of one host apart.
#[must_use]
pub const fn random_isid(random: [u8; 3], qualifier: u16) -> [u8; 6] {
    let [high, low] = qualifier.to_be_bytes();
    [0x80, random[0], random[1], random[2], high, low]
}

/// One SCSI command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// Logical unit.
    pub lun: LunField,
    /// Command descriptor block, padded with zeros.
    pub cdb: [u8; 16],
    /// Bytes of Data-In expected.
    pub read_len: u32,
    /// Bytes of Data-Out to send; a command that has both is refused.
    pub write_len: u32,
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskEnd {
    /// With a SCSI status.
    Status {
        /// SCSI status.
        status: u8,
        /// Sense data, empty when none.
        sense: Vec<u8>,
        /// Bytes of Data-In that came, from the start of the data without gaps.
        received: u32,
        /// Bytes of Data-Out that were sent, from the start of the data without gaps.
        sent: u32,
        /// Bytes that the target says it moved fewer than expected.
        underflow: u32,
        /// Bytes that the target says the command would have moved beyond what was expected.
        overflow: u32,
    },
    /// The target could not deliver the command (response code of the SCSI Response).
    TargetFailure(u8),
    /// It was aborted on request.
    Aborted,
}

/// A target that discovery found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundTarget {
    /// Its iSCSI name.
    pub name: String,
    /// Where it is: `host:port`, with the portal group after a comma.
    pub addresses: Vec<String>,
}

/// What a session tells its shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The login is complete; commands may be submitted.
    LoggedIn,
    /// The target refused the login.
    LoginFailed(LoginError),
    /// The targets that a discovery session found.
    Found(Vec<FoundTarget>),
    /// A task ended; its place may be taken again.
    Completed {
        /// Which.
        task: TaskId,
        /// How.
        end: TaskEnd,
    },
    /// The target did not abort a task; drop the connection.
    AbortFailed(TaskResponseCode),
    /// The target wants this session to end; the machine logs out once its tasks have ended.
    Ending,
    /// The session has ended in order: close the socket.
    LoggedOut,
}
