//! What is asked of a running target through its control socket, and what it answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::target::{CommandCounts, PaceReport};

/// What can be asked of a running target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum TargetRequest {
    /// How the target is: answered with [`TargetStatus`].
    Status,
    /// Serve one more LUN: answered with its [`LunStatus`].
    AddLun {
        /// What it stores on, as `netraid target --lun` takes it.
        backing: String,
        /// Its number; the lowest free one if none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lun: Option<u16>,
        /// Logical block in bytes; as the target's other LUNs if none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        block_bytes: Option<u32>,
    },
    /// Give a LUN another size.
    ResizeLun {
        /// Its number.
        lun: u16,
        /// Bytes that it shall have.
        size: u64,
        /// Also when that is less: what is beyond is lost.
        #[serde(default)]
        shrink: bool,
    },
    /// Stop serving a LUN.
    RemoveLun {
        /// Its number.
        lun: u16,
        /// Although sessions use it.
        #[serde(default)]
        force: bool,
    },
    /// Put other filters before a LUN's backing.
    SetFilter {
        /// Its number.
        lun: u16,
        /// Filters as `netraid target --filter` takes them; none if none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        filter: Option<String>,
    },
    /// End sessions.
    DropSession {
        /// Which; all if none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<u64>,
    },
    /// Stop serving and end the process: answered when nothing is served any more.
    Stop {
        /// Although initiators are logged in.
        #[serde(default)]
        force: bool,
    },
}

/// How a running target is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetStatus {
    /// `target`.
    pub kind: String,
    /// iSCSI name.
    pub iqn: String,
    /// Where it listens.
    pub addresses: Vec<String>,
    /// Seconds since it began to serve.
    pub uptime_s: u64,
    /// LUNs, ascending.
    pub luns: Vec<LunStatus>,
    /// Sessions, oldest first.
    pub sessions: Vec<SessionStatus>,
    /// Logins, refusals, errors of peers and task management since then, by name.
    pub counters: BTreeMap<String, u64>,
}

/// How one LUN is, and what it did since it was added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LunStatus {
    /// Number.
    pub lun: u16,
    /// Address for initiators.
    pub uri: String,
    /// What it stores on.
    pub backing: String,
    /// The serial number by which initiators know it.
    #[serde(default)]
    pub serial: String,
    /// `serving`, `held` (it is being changed) or `leaving`.
    pub state: String,
    /// Filters before the backing, the first one first.
    #[serde(default)]
    pub filters: Vec<String>,
    /// Capacity in bytes.
    pub capacity_bytes: u64,
    /// Bytes that its contents take, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// Bytes that the file system below has left, for a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// A flush has failed: what was written before may be lost, and nothing is called stable until
    /// the backing is opened again.
    #[serde(default)]
    pub flush_failed: bool,
    /// The sanitize operation that keeps commands from the medium.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sanitize: Option<SanitizeStatus>,
    /// The type of the reservation, and by whom where that is no registrant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// Who is registered for persistent reservations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub registrants: Vec<RegistrantStatus>,
    /// Logical block in bytes.
    pub block_bytes: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Sessions that use the LUN: that have used its medium, are registered or hold it.
    pub sessions: usize,
    /// Commands at its device.
    pub running: u32,
    /// What it did.
    pub commands: CommandCounts,
}

/// How a sanitize operation is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SanitizeStatus {
    /// Another one has to succeed before the medium can be used.
    pub failed: bool,
    /// How far it is, in hundredths.
    pub done_percent: u8,
}

/// A registration for persistent reservations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistrantStatus {
    /// Name of the initiator.
    pub initiator: String,
    /// Its part of the session identifier, in hexadecimal.
    pub isid: String,
    /// The reservation key, in hexadecimal.
    pub key: String,
    /// It holds the reservation.
    pub holds: bool,
}

/// How one session is, and what it did since it logged in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Number that no other session gets while the target runs.
    pub session: u64,
    /// Name of the initiator.
    pub initiator: String,
    /// The initiator's part of the session identifier, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isid: Option<String>,
    /// The target's session handle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tsih: Option<u16>,
    /// Its address.
    pub peer: String,
    /// `normal` or `discovery`.
    pub kind: String,
    /// The CHAP digest by which it proved itself: `sha3-256`, `sha256`, `sha1` or `md5`; none where it did not have
    /// to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chap: Option<String>,
    /// Seconds since it logged in.
    pub age_s: u64,
    /// What it did.
    pub commands: CommandCounts,
    /// How fast it may go, if the target says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<PaceStatus>,
}

/// How fast all sessions of an initiator may go together, and what they got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaceStatus {
    /// Bytes a second that it gets at least.
    pub floor: u64,
    /// Bytes a second that it gets at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// How much it gets compared to others where that leaves a choice.
    pub weight: u32,
    /// Requests and pieces of data that wait for their turn.
    pub waiting: usize,
    /// Those whose turn has come.
    pub granted: u64,
    /// Bytes of these.
    pub granted_bytes: u64,
    /// Bytes of these whose turn had come by the floor.
    pub floor_bytes: u64,
    /// How long they waited, summed up, in microseconds.
    pub waited_us: u64,
    /// How long one waited at most, in microseconds.
    pub waited_us_max: u64,
}

impl From<PaceReport> for PaceStatus {
    fn from(report: PaceReport) -> Self {
        let PaceReport { pace, waiting, counts } = report;
        Self {
            floor: pace.floor.0,
            limit: pace.limit.map(|limit| limit.0),
            weight: pace.weight,
            waiting,
            granted: counts.granted,
            granted_bytes: counts.bytes,
            floor_bytes: counts.floor_bytes,
            waited_us: counts.waited_ns / 1000,
            waited_us_max: counts.waited_ns_max / 1000,
        }
    }
}
