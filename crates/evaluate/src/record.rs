//! What a run leaves: its header, baselines, and per target results, findings and a sheet.
//!
//! [`Evaluation`] is all of it, as `--json` and the report have it. The log holds the same parts in
//! lines ([`crate::log`]). Rates are in MB/s (10^6 bytes), sizes in bytes, times in seconds or, where
//! the name says so, microseconds. Fields may be added without another [`VERSION`]; readers take
//! what they know.

use serde::{Deserialize, Serialize};

use crate::catalogue::{TestId, Unit};

/// Version of all records. A reader refuses another one.
pub const VERSION: u32 = 1;

/// A run and all that came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// What was run, where, how.
    pub run: Run,
    /// What the machine gives without any target.
    pub baselines: Vec<Baseline>,
    /// The targets in the order in which they were given.
    pub targets: Vec<TargetReport>,
    /// Verdicts of the requirements, in the order of their file; empty without one.
    pub requirements: Vec<Verdict>,
    /// Whether it ran to its end.
    pub complete: bool,
    /// How often it was interrupted and resumed.
    pub resumed: u32,
    /// Seconds that it was expected to take, once rates had been probed.
    pub estimate_s: Option<f64>,
    /// Seconds that were expected on top where bursts of writes ask for controls.
    #[serde(default)]
    pub estimate_controls_s: f64,
    /// Seconds that it took after that, all sittings together.
    pub took_s: f64,
}

/// The header of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`VERSION`].
    pub version: u32,
    /// Tells runs in one log apart: letters and digits.
    pub id: String,
    /// When it began: RFC 3339, UTC.
    pub started_at: String,
    /// Version of netraid.
    pub netraid: String,
    /// The machine that it ran on.
    pub machine: Machine,
    /// Targets as they were given, without secrets.
    pub targets: Vec<TargetSpec>,
    /// Sizes, bounds and tests.
    pub settings: Settings,
    /// What was written, and that it does not compress.
    pub data: DataProof,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub host: String,
    /// Operating system and release.
    pub system: String,
    /// Architecture.
    pub architecture: String,
    /// Name of its processor, where it is told.
    pub processor: Option<String>,
    /// Processors that this program may use.
    pub processors: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
}

/// A target as it was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetSpec {
    /// Its address or path, without secrets.
    pub address: String,
    /// Control socket of the array behind it: `unix:PATH`.
    pub control: Option<String>,
}

/// Sizes, bounds and tests of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The tests, in the order in which they run.
    pub tests: Vec<TestId>,
    /// Bytes of a file of the host tests.
    pub file_bytes: u64,
    /// Bytes of a file of the network tests.
    pub net_file_bytes: u64,
    /// Bytes of a request of a stream.
    pub buffer_bytes: u32,
    /// Requests that a stream keeps in flight.
    pub stream_depth: u16,
    /// Longest that a stream may run, in seconds: it ends then, wherever it is.
    pub stream_s: f64,
    /// Depths of the random tests.
    pub depths: Vec<u16>,
    /// Seconds of one depth.
    pub random_s: f64,
    /// How often each of the tests `host` and `net` runs; their figures are medians.
    pub rounds: u16,
    /// Pairs of the trick tests.
    pub pairs: u16,
    /// Rate of the tape in bytes a second.
    pub tape_bytes_per_s: u64,
    /// What stands for the tape; none: a paced source and sink in memory.
    pub tape: Option<String>,
    /// Bytes that lie between target and tape before one of them has to wait.
    pub tape_buffer_bytes: u64,
    /// Hosts of the clients, by ssh; empty: processes of this machine.
    pub clients: Vec<String>,
    /// Memory of the machine behind the targets in bytes, where the user told.
    pub target_memory_bytes: Option<u64>,
    /// Member that is failed for the tests `degraded` and `rebuild`.
    pub fail_member: Option<u16>,
}

/// What data was written, and the proof that it does not compress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataProof {
    /// `generated`, or the file that the user gave.
    pub source: String,
    /// Tells the data of a file from any other's; none where it is made.
    #[serde(default)]
    pub digest: Option<String>,
    /// Places of the data that were compressed.
    #[serde(default)]
    pub places: u32,
    /// Bytes that were compressed for the proof.
    pub sample_bytes: u64,
    /// Bytes that came out.
    pub compressed_bytes: u64,
    /// What compressed them.
    pub compressor: String,
}

/// What the machine gives without any target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// What was measured.
    pub kind: BaselineKind,
    /// Where: a directory, a host; nothing where there is nothing to tell.
    pub place: String,
    /// Rates of the rounds in MB/s.
    pub samples_mb_per_s: Vec<f64>,
    /// Their median.
    pub mb_per_s: f64,
}

/// Kinds of baselines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BaselineKind {
    /// Copying in memory, one thread, buffers of the streams' length.
    Memory,
    /// TCP between two threads over loopback.
    Loopback,
    /// TCP to a client's host.
    Network,
    /// Writing to the disk of the temporary directory, with a flush at the end.
    DiskWrite,
    /// Reading from it, past the page cache where that is possible.
    DiskRead,
}

/// A target and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TargetReport {
    /// What it is.
    pub target: TargetInfo,
    /// Results in the order of the tests.
    pub results: Vec<TestResult>,
    /// What was looked for, found or not.
    pub findings: Vec<Finding>,
    /// Its score sheet.
    pub sheet: Vec<SheetLine>,
}

/// What a target is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TargetInfo {
    /// Number in the order in which they were given, from 0.
    pub index: u16,
    /// Its address or path, without secrets.
    pub address: String,
    /// Which kind.
    pub kind: TargetKind,
    /// Bytes: of the device, or free in the file system.
    pub capacity_bytes: u64,
    /// Whether requests go past this machine's page cache.
    pub direct: bool,
    /// The file system of a directory or file, by its usual name; none for devices and addresses.
    pub file_system: Option<String>,
    /// Whether the store is known to be this machine's memory.
    pub in_memory: bool,
    /// What tells a local device or file from any other that comes under its name.
    #[serde(default)]
    pub identity: Option<String>,
    /// What is known of its redundancy.
    pub redundancy: Redundancy,
}

/// Kinds of targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetKind {
    /// Files in a directory.
    Directory,
    /// A file that stands for a device.
    File,
    /// A block device.
    Block,
    /// A LUN over iSCSI.
    Iscsi,
    /// An NBD export.
    Nbd,
}

/// What is known of a target's redundancy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redundancy {
    /// Who told: `control socket`, `md`, `device mapper`, `nobody`.
    pub source: String,
    /// How it is.
    pub state: RedundancyState,
    /// RAID level as its source names it.
    pub level: Option<String>,
    /// In words.
    pub detail: String,
}

/// How a target's redundancy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RedundancyState {
    /// All that its level promises.
    Full,
    /// Less than its level promises.
    Degraded,
    /// Its level has none, or all of it is used up.
    Off,
    /// Nobody told.
    Unknown,
}

/// What came of one test at one target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TestResult {
    /// The test.
    pub test: TestId,
    /// Number of the target.
    pub target: u16,
    /// Whether it ran.
    pub outcome: Outcome,
    /// Its figure: median of [`TestResult::rounds`], or as the test says.
    pub figure: Option<Figure>,
    /// Streams, round by round (`host`, `net`, `degraded`, `rebuild`); of `trick.flush` the whole file.
    pub rounds: Vec<Round>,
    /// Depth by depth (`random`).
    pub random: Vec<RandomPoint>,
    /// Place by place (`trick.regions`).
    pub regions: Vec<RegionPoint>,
    /// Pairs (`trick.compression`, `trick.cache`, `trick.flush`).
    pub pairs: Vec<PairTable>,
    /// What limits the figure.
    pub limit: Option<Limit>,
    /// What a reader should know of it.
    pub notes: Vec<String>,
    /// Seconds that the test took with all that belongs to it.
    pub seconds: f64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Share of this machine's processors that was busy meanwhile, 0 to 1, by whomever.
    pub processor_busy: Option<f64>,
}

/// Whether a test ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Outcome {
    /// It ran.
    Done,
    /// It does not apply.
    Skipped {
        /// Why.
        reason: String,
    },
    /// It ran and failed.
    Failed {
        /// How.
        reason: String,
    },
}

/// A number with its unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The number.
    pub value: f64,
    /// Its unit.
    pub unit: Unit,
}

/// One round of a test with streams.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// The figure of this round in MB/s.
    pub mb_per_s: f64,
    /// All streams.
    pub streams: Vec<Stream>,
}

/// One stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    /// What it does.
    pub role: Role,
    /// Where it ran: empty for this machine, else its host.
    pub host: String,
    /// Bytes that it moved.
    pub bytes: u64,
    /// Seconds that it took, flush included.
    pub seconds: f64,
    /// Its rate.
    pub mb_per_s: f64,
    /// Of these seconds, those of the flush at the end.
    pub flush_s: f64,
    /// How the tape fared.
    pub tape: Option<TapeReport>,
}

/// What a stream does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Memory to target.
    Write,
    /// Target to memory.
    Read,
    /// Target to tape.
    ToTape,
    /// Tape to target.
    FromTape,
    /// Target to a remote disk.
    RemoteCopy,
}

/// How a tape fared.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TapeReport {
    /// The rate that it had to keep in MB/s.
    pub wanted_mb_per_s: f64,
    /// How often it had to wait for the target.
    pub starved: u64,
    /// Seconds that it waited in all.
    pub starved_s: f64,
    /// Its longest wait in seconds.
    pub longest_s: f64,
    /// Seconds that the tape itself was late: a real one that cannot keep the rate.
    pub own_late_s: f64,
}

/// Random requests at one depth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RandomPoint {
    /// Requests in flight.
    pub depth: u16,
    /// Requests that ended.
    pub requests: u64,
    /// Seconds.
    pub seconds: f64,
    /// Requests a second.
    pub iops: f64,
    /// Their rate.
    pub mb_per_s: f64,
    /// Latencies.
    pub latency: Latency,
}

/// Latencies in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50_us: u64,
    /// 90 in 100 are not longer.
    pub p90_us: u64,
    /// 99 in 100 are not longer.
    pub p99_us: u64,
    /// 999 in 1000 are not longer.
    pub p99_9_us: u64,
    /// The longest.
    pub max_us: u64,
}

/// Reads at one place of the address range.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RegionPoint {
    /// Where it begins, as a share of the capacity: 0 is the first byte (outer, on a disk).
    pub position: f64,
    /// Rates of the rounds in MB/s.
    pub samples_mb_per_s: Vec<f64>,
    /// Their median.
    pub mb_per_s: f64,
}

/// Two kinds of work, one after the other, again and again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairTable {
    /// What was done: `write`, `read`.
    pub what: String,
    /// The first kind of each pair: the honest one.
    pub base: String,
    /// The second kind: the one that a trick makes faster.
    pub other: String,
    /// Bytes of one piece.
    pub bytes: u64,
    /// Rates of the first and of the second kind in MB/s.
    pub pairs: Vec<(f64, f64)>,
}

/// What limits a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// The part: `target`, `tape`, `memory`, `loopback`, `network`, `processor`, `disk`.
    pub part: String,
    /// The figure as a share of what that part gives alone, where that is known.
    pub share: Option<f64>,
    /// In words.
    pub text: String,
}

/// Something that was looked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What.
    pub kind: FindingKind,
    /// Whether it is there.
    pub state: FindingState,
    /// One sentence.
    pub text: String,
    /// The figures that it rests on.
    pub evidence: Vec<String>,
    /// From where on it is said.
    pub threshold: String,
}

/// What is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// Data that compresses, or zeros, are faster.
    Compression,
    /// Results come from a cache.
    CacheOnly,
    /// Redundancy is off or degraded.
    Redundancy,
    /// Writes are acknowledged as stable before a device has them.
    UnstableWrites,
    /// What is short may be fast after a pause, and what is long is held to a rate.
    Throttled,
    /// Outer places are faster than inner ones.
    OuterRegion,
    /// The store is memory, or as fast: no device was seen.
    NoDevice,
    /// What was read is not what had been written.
    WrongBytes,
    /// A tape had to wait.
    TapeStarved,
}

/// Whether something is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingState {
    /// It is, and it speaks against the target or its figures.
    Found,
    /// It is, and one should know it.
    Note,
    /// It is not.
    Clear,
    /// The measurements do not say.
    CouldNotTell,
}

/// Whether a requirement is met.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Number of the target.
    pub target: u16,
    /// The requirement in words.
    pub requirement: String,
    /// What was found.
    pub found: String,
    /// Whether that is enough; what could not be measured is not.
    pub met: bool,
    /// Whether what was measured does not say; then it is not met either.
    #[serde(default)]
    pub could_not_tell: bool,
}

/// A line of a score sheet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SheetLine {
    /// The test.
    pub test: TestId,
    /// What it does.
    pub title: String,
    /// Its figure.
    pub figure: Option<Figure>,
    /// That over the best target's, 0 to 1; none with one target.
    pub of_best: Option<f64>,
    /// What limits it.
    pub limit: Option<String>,
    /// Remarks: starved tapes, results that may be from a cache, why it did not run.
    pub remarks: Vec<String>,
}

impl TestResult {
    /// The result of a test that did not run.
    #[must_use]
    pub const fn without(test: TestId, target: u16, outcome: Outcome) -> Self {
        Self {
            test,
            target,
            outcome,
            figure: None,
            rounds: Vec::new(),
            random: Vec::new(),
            regions: Vec::new(),
            pairs: Vec::new(),
            limit: None,
            notes: Vec::new(),
            seconds: 0.0,
            bytes: 0,
            processor_busy: None,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
