//! What a model is made of, as a file says it.
//!
//! Every number has its unit in its name. MB are 10^6 bytes, Mbit 10^6 bits. A file gives all
//! parameters that have no default here; one that is not known is refused, and so is one whose
//! value makes no sense ([`Config::check`]).

mod check;
mod overrides;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::distribution::Distribution;

pub use check::ConfigError;
pub(crate) use check::within;
pub use overrides::{Table, read_table, read_value, set};

/// All parameters of one point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What is modelled, in a line.
    pub about: String,
    /// Disks of the array, 1 to 64; those with check data are counted.
    pub disks: usize,
    /// Bytes in a row on one disk, which is the array's chunk: a power of two from 4 KiB to 16 MiB.
    pub transfer_unit_bytes: u32,
    /// Level of the array: 0, 5, 6 or 10. Where there are too few disks for check data beside data,
    /// levels 5, 6 and 10 are copies (two or three disks), and one disk has none.
    pub level: u8,
    /// Disks that are away, the first so many: 0 to what the level survives. What they had is computed
    /// from the others, and nothing is written to them.
    #[serde(default)]
    pub away: usize,
    /// A replaced disk that is rebuilt, the one after those that are away: a run ends when that does.
    pub rebuild: Option<Rebuild>,
    /// The array's log, as production has it; without it, all writes are in place and each for itself.
    /// Level 0 has none in any case.
    pub log: Option<Log>,
    /// What is asked for; without it, each of the three is a point.
    pub operation: Option<Operation>,
    /// What is asked for, more closely.
    pub workload: Workload,
    /// The host whose requests they are.
    pub client: Host,
    /// Each host that has disks.
    pub agent: Agent,
    /// What is between them.
    pub network: Network,
    /// Each disk.
    pub disk: Disk,
    /// What disks of an agent share on the way to its memory, from the disks on: strings,
    /// controllers, buses.
    #[serde(default)]
    pub stations: Vec<SharedStation>,
    /// The machine whose processors all hosts share, as processes of it; without it, each host has its own.
    pub machine: Option<Machine>,
    /// A device at the agent that computes check data; without it, the client's processor does.
    pub parity_engine: Option<ParityEngine>,
}

/// The rebuild of a replaced disk: for each stripe, what it takes of the other disks is read by the
/// client, and what was lost is computed and written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rebuild {
    /// Bytes to be written to the disk, 4 KiB to 2^50: what it had in use.
    pub used_bytes: u64,
    /// Most stripes that are rebuilt at once, 1 to 1024.
    #[serde(default = "default_stripes_at_once")]
    pub stripes_at_once: u32,
    /// Most MB that are written to the disk in a second, 0.01 to 10^9; without it, as fast as it goes.
    pub rate_limit_mb_s: Option<f64>,
    /// Whether the array has nothing else to do. If not, the rebuild begins after the warm-up, the
    /// workload goes on until it ends, and [`Workload::requests`] does not count.
    #[serde(default)]
    pub idle: bool,
    /// Most stripes that a run rebuilds, 1 to 100,000. Where the disk has more, these stand for all:
    /// when half of them are done, half of the volume is.
    #[serde(default = "default_sample_stripes")]
    pub sample_stripes: u32,
}

/// As production has it.
const fn default_stripes_at_once() -> u32 {
    32
}

const fn default_sample_stripes() -> u32 {
    2000
}

/// The array's log. Writes of less than a stripe go there, and rounds bring them home; writes in a row
/// gather to whole stripes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// Its bytes on each disk, 4 MiB to 2^40.
    pub bytes: u64,
    /// Blocks of 4 KiB that may be in the log and not home, 1024 to 2^24.
    #[serde(default = "default_dirty_blocks")]
    pub dirty_blocks: u32,
}

/// As production has it.
const fn default_dirty_blocks() -> u32 {
    32_768
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Reads alone.
    Read,
    /// Writes alone.
    Write,
    /// Both, by [`Workload::reads_in_mix`].
    Mix,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Mix];

    /// As files and results have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Mix => "mix",
        }
    }
}

/// Requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Part of the requests of a mix that are reads, 0 to 1.
    pub reads_in_mix: f64,
    /// Bytes of a request; or else [`Workload::request_stripes`].
    pub request_bytes: Option<u64>,
    /// Stripes of a request, so that it grows with disks and transfer unit.
    pub request_stripes: Option<u64>,
    /// Most requests at once: 1 has them one after another.
    pub outstanding: u32,
    /// Without it, a request comes when one ends. With it, they come independently, so many a
    /// second, and those above `outstanding` wait their turn.
    pub arrivals_per_second: Option<f64>,
    /// Without `arrivals_per_second`: from the end of a request to the next that takes its place.
    #[serde(default = "no_pause")]
    pub pause: Distribution,
    /// Where they are.
    pub offsets: Offsets,
    /// Bytes of the volume that requests go to; matters for [`Agent::cache_bytes`], and for where
    /// the sequence begins anew.
    #[serde(default = "default_data_set")]
    pub data_set_bytes: u64,
    /// Requests that are measured in a run.
    pub requests: u32,
    /// Requests before those, which are not.
    pub warm_up_requests: u32,
}

const fn no_pause() -> Distribution {
    Distribution::Constant { mean_ms: 0.0 }
}

const fn default_data_set() -> u64 {
    1 << 40
}

/// Where requests are in the volume. They begin at multiples of their length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Offsets {
    /// Each after the one before.
    Sequential,
    /// Anywhere.
    Random,
}

/// A host's processors and what they spend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// How many work at the same time.
    pub processors: usize,
    /// Million instructions a second, of each.
    pub mips: f64,
    /// What is spent, by part of the software: results show each.
    #[serde(default)]
    pub costs: BTreeMap<String, Cost>,
}

/// What a part of the software spends, in instructions.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cost {
    /// Only in requests of this kind.
    pub operation: Option<Operation>,
    /// Only in arrays with a log, which have checksums, too.
    pub logged: bool,
    /// Only where several agents are on one machine.
    pub beside_others: bool,
    /// For each request; at an agent, for each request that it takes part in.
    pub instructions_per_request: f64,
    /// For each packet that is sent or received.
    pub instructions_per_packet: f64,
    /// For each time that it turns to a peer of which nothing waits: what comes, or is to be sent, while it is
    /// still busy with that peer costs none more.
    pub instructions_per_batch: f64,
    /// For each byte that is sent or received.
    pub instructions_per_byte: f64,
    /// For each byte that goes into check data, and each check column that it goes into.
    pub instructions_per_parity_byte: f64,
    /// For each piece of check data that is computed by itself: of a stripe, or of a row of blocks that the log brings
    /// home.
    pub instructions_per_check_piece: f64,
}

/// A machine that all hosts are processes of: what they spend is as their own tables say, at their own
/// speed, on processors that are whoever's work comes first.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// How many work at the same time, 1 to 1024.
    pub processors: usize,
    /// Part of its time that a processor is at work for hosts which all have something to do, 0.1 to 1: the rest goes by
    /// until it has another process, and until that has the data in its cache.
    #[serde(default = "always")]
    pub busy_part: f64,
}

const fn always() -> f64 {
    1.0
}

/// A host with disks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agent {
    /// How many disks each has.
    pub disks: usize,
    /// Processors that work at the same time.
    pub processors: usize,
    /// Million instructions a second, of each.
    pub mips: f64,
    /// What is spent, by part of the software.
    #[serde(default)]
    pub costs: BTreeMap<String, Cost>,
    /// When data that was read leaves.
    pub reply: Reply,
    /// Memory that holds part of what is read: the chance that no disk is needed is this against
    /// the agent's share of the data set.
    #[serde(default)]
    pub cache_bytes: u64,
}

/// When data that was read leaves an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// What each access of a disk gave, by itself, as soon as it is there.
    EachAccess,
    /// All of a request that the agent has, when all is there.
    Whole,
}

/// A network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Who shares it with whom.
    pub topology: Topology,
    /// Rate of the ring, the cable, or each direction of each link.
    pub rate_mbit_s: f64,
    /// Rate of each direction of the client's link to a switch; without it, as that of the others.
    pub client_rate_mbit_s: Option<f64>,
    /// From the end of a packet's sending to its arrival; of a switched network, the switch's.
    pub latency_us: f64,
    /// Most data of a packet.
    pub packet_bytes: u32,
    /// What a packet is cut into on the network, in bytes of data; each piece has the headers. Without it, packets
    /// are whole.
    pub segment_bytes: Option<u32>,
    /// Bytes that each packet takes on the network beside its data: headers, gaps, and the part of
    /// acknowledgements and contention that falls on it.
    pub header_bytes_per_packet: u32,
    /// Time that each packet takes beside its bytes: a token, a connection.
    pub overhead_us_per_packet: f64,
    /// Bytes of a request or an acknowledgement.
    pub control_bytes: u32,
    /// Whether one packet brings a request to all agents.
    pub multicast: bool,
    /// Packets to the client with no more data than this leave when the agent has done all that it had to do when they
    /// were ready: as software does that takes what has come from a socket, and then sends all answers at once. With 0,
    /// each leaves when it is ready.
    #[serde(default)]
    pub sent_together_bytes: u32,
    /// With it, requests and acknowledgements go by another network, which takes them so long and
    /// no longer, however many there are.
    pub control_latency_us: Option<f64>,
}

/// Who shares a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topology {
    /// All, one packet at a time: a token ring.
    TokenRing,
    /// All, one packet at a time: an Ethernet without a switch. Collisions are not modelled.
    Ethernet,
    /// One line between a client and an agent, in one direction at a time.
    Line,
    /// Each host has a link of its own, each direction for itself, to a switch that stores packets
    /// and forwards them.
    Switched,
}

/// A disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// To the track.
    pub seek: Distribution,
    /// To the first byte on the track.
    pub rotation: Distribution,
    /// What each access takes besides.
    pub overhead_us: f64,
    /// Rate of reads after that.
    pub read_mb_s: f64,
    /// Rate of writes.
    pub write_mb_s: f64,
    /// Whether an access that begins where the last one ended needs neither seek nor rotation.
    #[serde(default)]
    pub sequential_without_seek: bool,
    /// Longest access: what is in a row on a disk is accessed at once up to this. Without it, the
    /// transfer unit.
    pub access_bytes_max: Option<u32>,
    /// Writes that are acknowledged before they are on the medium, up to so many bytes; 0 for
    /// none.
    #[serde(default)]
    pub write_cache_bytes: u64,
}

/// What several disks of an agent share on the way to its memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedStation {
    /// What results call it.
    pub name: String,
    /// How many disks share one: the first so many of an agent, the next so many, and so on.
    pub disks: usize,
    /// What each access takes.
    pub overhead_us: f64,
    /// Rate of reads after that.
    pub read_mb_s: f64,
    /// Rate of writes.
    pub write_mb_s: f64,
}

/// A device that computes check data of what is in its agent's memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParityEngine {
    /// For each request.
    pub overhead_us: f64,
    /// Rate after that, of all bytes that it moves, check data included.
    pub mb_s: f64,
}

impl Rebuild {
    /// Stripes that a run rebuilds of a disk with chunks of so many bytes.
    pub(crate) fn stripes(&self, chunk_bytes: u32) -> u64 {
        self.used_bytes.div_ceil(u64::from(chunk_bytes)).min(u64::from(self.sample_stripes))
    }
}

impl Config {
    /// Requests of the workload before a run begins to measure.
    pub(crate) fn warm_up(&self) -> u32 {
        let is_idle = self.rebuild.as_ref().is_some_and(|rebuild| rebuild.idle);
        if is_idle { 0 } else { self.workload.warm_up_requests }
    }

    /// Disks that have not all that they should have: those that are away, and one that is rebuilt.
    #[must_use]
    pub fn disks_missing(&self) -> usize {
        self.away.saturating_add(usize::from(self.rebuild.is_some()))
    }

    /// How many agents there are; the last one may have fewer disks.
    #[must_use]
    pub fn agents(&self) -> usize {
        self.disks.div_ceil(self.agent.disks.max(1))
    }
}
