//! Which numbers make sense. Beyond these bounds a run would not end, or time would overflow.

use std::collections::{BTreeMap, BTreeSet};

use netraid_block::narrow;
use netraid_raid::geometry::Geometry;

use super::{Config, Cost, Network, Operation, Rebuild, Workload};

/// Why a configuration was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// Text that is not TOML, or does not describe a model.
    #[error("the configuration cannot be understood: {0}")]
    Syntax(String),
    /// A path that leads nowhere.
    #[error("there is no parameter {path}: '{part}' is not one of {known:?}; give one of these")]
    NoSuchParameter {
        /// What was given.
        path: String,
        /// The part of it that is not there.
        part: String,
        /// What is there.
        known: Vec<String>,
    },
    /// A number out of its range.
    #[error("{name} is {value}; it must be from {min} to {max}")]
    Range {
        /// The parameter.
        name: String,
        /// Its value.
        value: f64,
        /// Least.
        min: f64,
        /// Most.
        max: f64,
    },
    /// A level that is not modelled.
    #[error("level {0} is not modelled; give 0, 5, 6 or 10")]
    Level(u8),
    /// A shape that the array refuses.
    #[error(transparent)]
    Geometry(#[from] netraid_raid::geometry::GeometryError),
    /// A histogram without sense.
    #[error("{name} {problem}; give `bounds_ms` and `counts` of a measurement")]
    Histogram {
        /// The parameter.
        name: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// Both lengths of a request, or none.
    #[error("give either workload.request_bytes or workload.request_stripes")]
    RequestLength,
    /// A request that is larger than what it goes to.
    #[error(
        "a request of {request_bytes} bytes does not fit into workload.data_set_bytes, {data_set_bytes}; make the data set larger"
    )]
    DataSet {
        /// Bytes of a request.
        request_bytes: u64,
        /// Bytes of the volume.
        data_set_bytes: u64,
    },
    /// A name that results have for something else, or twice.
    #[error(
        "the name '{0}' is taken or not made of a-z, 0-9 and _; give the station or cost another"
    )]
    Name(String),
    /// A cost for what no single request is.
    #[error("{0}.operation is \"mix\"; give \"read\", \"write\", or leave it out for both")]
    CostOfMix(String),
    /// Parity in the agents' hands, of which none has all data.
    #[error("parity_engine needs all disks at one agent, not at {0}; raise agent.disks")]
    ParityEngine(usize),
    /// More disks away than the level survives.
    #[error(
        "level {level} on {disks} disks survives the loss of {survives}, and {away} would be away or rebuilt; lower away, leave out rebuild, or give another level"
    )]
    Away {
        /// Disks that are away, or are rebuilt.
        away: usize,
        /// The array's level.
        level: u8,
        /// The array's disks.
        disks: usize,
        /// How many may be lost.
        survives: u32,
    },
    /// A disk away where an agent computes parity.
    #[error(
        "with parity_engine no disks are away or rebuilt, and {0} are; give 0 and no rebuild, or no parity_engine"
    )]
    AwayWithEngine(usize),
    /// A log where an agent computes parity.
    #[error("an array with parity_engine has no log; leave out log, or parity_engine")]
    LogWithEngine,
    /// A request that takes longer than anyone would wait.
    #[error(
        "a request would need {0:.0} seconds of work at most, more than {REQUEST_SECONDS_MAX}; raise rates or lower its length"
    )]
    Slow(f64),
    /// More events than can be waited for.
    #[error(
        "a run would take {0:.0} packets and accesses, more than {EVENTS_MAX}; lower workload.requests or the request's length, or raise network.packet_bytes"
    )]
    Long(f64),
}

/// Most disks.
const DISKS_MAX: usize = netraid_raid::member::MEMBERS_MAX;
/// Largest request.
const REQUEST_BYTES_MAX: u64 = 1 << 30;
/// Largest volume.
const DATA_SET_BYTES_MAX: u64 = 1 << 50;
/// Most requests of a run, and most at once.
const REQUESTS_MAX: u32 = 1_000_000;
const OUTSTANDING_MAX: u32 = 4096;
/// Most stripes that a run rebuilds.
const SAMPLE_STRIPES_MAX: u32 = 100_000;
/// Largest instruction count per unit, and slowest and fastest processor.
const INSTRUCTIONS_MAX: f64 = 1e12;
const MIPS: [f64; 2] = [1e-3, 1e9];
/// Shortest and longest log, in bytes.
const LOG_BYTES: [f64; 2] = [4194304.0, 1099511627776.0];
/// Slowest and fastest rate of anything, in MB/s.
const RATE_MB_S: [f64; 2] = [1e-3, 1e9];
/// Longest fixed time, in microseconds.
const OVERHEAD_US_MAX: f64 = 1e7;
/// Longest sum of all work of one request, and most events of a run: together with the bounds
/// above they keep simulated time far below its end.
const REQUEST_SECONDS_MAX: f64 = 3600.0;
const EVENTS_MAX: f64 = 2e8;

/// What results have names for.
const TAKEN: [&str; 13] = [
    "client_s_per_request",
    "agents_s_per_request",
    "rate_mb_s",
    "client_cpu",
    "agent_cpu",
    "disk",
    "network",
    "parity_engine",
    "latency_ms",
    "latency_p99_ms",
    "requests_per_second",
    "rebuild_mb_s",
    "rebuild_seconds",
];

/// Refuses a number that is out of its range, infinite, or none.
pub(crate) fn within(name: &str, value: f64, min: f64, max: f64) -> Result<(), ConfigError> {
    if value >= min && value <= max {
        return Ok(());
    }
    Err(ConfigError::Range { name: name.to_owned(), value, min, max })
}

impl Config {
    /// Whether all parameters make sense, alone and together.
    ///
    /// # Errors
    /// Names the first that does not, its value and its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        within("disks", self.disks as f64, 1.0, DISKS_MAX as f64)?;
        if ![0, 5, 6, 10].contains(&self.level) {
            return Err(ConfigError::Level(self.level));
        }
        self.workload.check()?;
        check_host("client", self.client.processors, self.client.mips, &self.client.costs)?;
        check_host("agent", self.agent.processors, self.agent.mips, &self.agent.costs)?;
        within("agent.disks", self.agent.disks as f64, 1.0, DISKS_MAX as f64)?;
        within("agent.cache_bytes", self.agent.cache_bytes as f64, 0.0, DATA_SET_BYTES_MAX as f64)?;
        self.network.check()?;
        self.check_disk()?;
        self.check_stations()?;
        if let Some(engine) = &self.parity_engine {
            within("parity_engine.overhead_us", engine.overhead_us, 0.0, OVERHEAD_US_MAX)?;
            check_rate("parity_engine.mb_s", engine.mb_s)?;
            if self.agents() != 1 {
                return Err(ConfigError::ParityEngine(self.agents()));
            }
        }
        let geometry = self.geometry()?;
        self.check_away(&geometry)?;
        if let Some(rebuild) = &self.rebuild {
            rebuild.check()?;
        }
        self.check_log()?;
        if let Some(machine) = &self.machine {
            within("machine.processors", machine.processors as f64, 1.0, 1024.0)?;
            within("machine.busy_part", machine.busy_part, 0.1, 1.0)?;
        }
        let request_bytes = self.request_bytes(&geometry);
        within("bytes of a request", request_bytes as f64, 1.0, REQUEST_BYTES_MAX as f64)?;
        if request_bytes > self.workload.data_set_bytes {
            let data_set_bytes = self.workload.data_set_bytes;
            return Err(ConfigError::DataSet { request_bytes, data_set_bytes });
        }
        self.check_effort(request_bytes)
    }

    fn check_away(&self, geometry: &Geometry) -> Result<(), ConfigError> {
        let (away, survives) = (self.disks_missing(), geometry.tolerance());
        if away > survives as usize {
            return Err(ConfigError::Away { away, level: self.level, disks: self.disks, survives });
        }
        match self.parity_engine {
            Some(_) if away > 0 => Err(ConfigError::AwayWithEngine(away)),
            Some(_) | None => Ok(()),
        }
    }

    fn check_log(&self) -> Result<(), ConfigError> {
        let Some(log) = &self.log else { return Ok(()) };
        within("log.bytes", log.bytes as f64, LOG_BYTES[0], LOG_BYTES[1])?;
        within("log.dirty_blocks", f64::from(log.dirty_blocks), 1024.0, f64::from(1 << 24))?;
        let sums = self.transfer_unit_bytes / 4096 * narrow::<_, u32>(self.disks);
        let most = f64::from(netraid_raid::log::REMAP_SUMS_MAX);
        within("blocks of a stripe of an array with a log", f64::from(sums), 1.0, most)?;
        match self.parity_engine {
            Some(_) => Err(ConfigError::LogWithEngine),
            None => Ok(()),
        }
    }

    fn check_disk(&self) -> Result<(), ConfigError> {
        let disk = &self.disk;
        disk.seek.check("disk.seek")?;
        disk.rotation.check("disk.rotation")?;
        within("disk.overhead_us", disk.overhead_us, 0.0, OVERHEAD_US_MAX)?;
        check_rate("disk.read_mb_s", disk.read_mb_s)?;
        check_rate("disk.write_mb_s", disk.write_mb_s)?;
        let cache = disk.write_cache_bytes as f64;
        within("disk.write_cache_bytes", cache, 0.0, DATA_SET_BYTES_MAX as f64)?;
        match disk.access_bytes_max {
            Some(max) => {
                let unit = f64::from(self.transfer_unit_bytes);
                within("disk.access_bytes_max", f64::from(max), unit, REQUEST_BYTES_MAX as f64)
            }
            None => Ok(()),
        }
    }

    fn check_stations(&self) -> Result<(), ConfigError> {
        let mut names: BTreeSet<&str> = TAKEN.into();
        within("stations, in number,", self.stations.len() as f64, 0.0, 16.0)?;
        for station in &self.stations {
            let name = &station.name;
            if !is_name(name) || !names.insert(name) {
                return Err(ConfigError::Name(name.clone()));
            }
            let path = |what: &str| format!("stations.{name}.{what}");
            within(&path("disks"), station.disks as f64, 1.0, DISKS_MAX as f64)?;
            within(&path("overhead_us"), station.overhead_us, 0.0, OVERHEAD_US_MAX)?;
            check_rate(&path("read_mb_s"), station.read_mb_s)?;
            check_rate(&path("write_mb_s"), station.write_mb_s)?;
        }
        Ok(())
    }

    /// Bounds of the work of a request and of a run, from above.
    fn check_effort(&self, request_bytes: u64) -> Result<(), ConfigError> {
        // What is computed instead of read may take all other disks.
        let is_whole = self.disks_missing() == 0;
        let sources = if is_whole { 1.0 } else { self.disks as f64 };
        let moved = (request_bytes as f64).max(f64::from(self.transfer_unit_bytes)) * sources;
        // Data, check data, and as much read before.
        let bytes = 6.0 * (moved + f64::from(self.transfer_unit_bytes));
        let accesses = bytes / 4096.0 + self.disks as f64;
        let packets = bytes / f64::from(self.network.packet_bytes) + 3.0 * accesses;
        let slowest = |rates: &[f64]| rates.iter().copied().fold(f64::INFINITY, f64::min);
        let mut seconds = packets * self.network.overhead_us_per_packet / 1e6;
        let pieces = self.network.segment_bytes.map_or(0.0, |segment| bytes / f64::from(segment));
        let wire = bytes + (packets + pieces) * f64::from(self.network.header_bytes_per_packet);
        let rate = self.network.client_rate_mbit_s.unwrap_or(self.network.rate_mbit_s);
        seconds += wire / (self.network.rate_mbit_s.min(rate) * 1e6 / 8.0);
        let stretch = self.machine.map_or(1.0, |machine| machine.busy_part.recip());
        for host in [(&self.client.costs, self.client.mips), (&self.agent.costs, self.agent.mips)] {
            for cost in host.0.values() {
                let instructions = cost.instructions_per_request * self.agents() as f64
                    + (cost.instructions_per_packet + cost.instructions_per_batch) * packets
                    + (cost.instructions_per_byte + cost.instructions_per_parity_byte) * bytes
                    + cost.instructions_per_check_piece * bytes / 4096.0;
                seconds += stretch * instructions / (host.1 * 1e6);
            }
        }
        let disk = &self.disk;
        seconds += bytes / (slowest(&[disk.read_mb_s, disk.write_mb_s]) * 1e6);
        let fixed_ms = disk.seek.mean_ms() + disk.rotation.mean_ms() + disk.overhead_us / 1e3;
        let chunks = bytes / f64::from(self.transfer_unit_bytes) + self.disks as f64;
        seconds += chunks * fixed_ms / 1e3;
        for station in &self.stations {
            seconds += bytes / (slowest(&[station.read_mb_s, station.write_mb_s]) * 1e6);
            seconds += chunks * station.overhead_us / 1e6;
        }
        if seconds > REQUEST_SECONDS_MAX {
            return Err(ConfigError::Slow(seconds));
        }
        let requests =
            f64::from(self.workload.requests) + f64::from(self.workload.warm_up_requests);
        let rebuild = self.rebuild.as_ref().map_or(0.0, |rebuild| {
            let chunk = self.transfer_unit_bytes;
            let bytes = f64::from(chunk) * self.disks as f64;
            rebuild.stripes(chunk) as f64 * self.events_of(bytes)
        });
        let events = requests * self.events_of_request(request_bytes) + rebuild;
        if events > EVENTS_MAX { Err(ConfigError::Long(events)) } else { Ok(()) }
    }

    /// Packets and accesses of a request, about.
    fn events_of_request(&self, request_bytes: u64) -> f64 {
        let sources = if self.disks_missing() == 0 { 1.0 } else { self.disks as f64 };
        self.events_of(request_bytes as f64 * sources)
    }

    fn events_of(&self, bytes: f64) -> f64 {
        bytes / f64::from(self.network.packet_bytes)
            + bytes / f64::from(self.transfer_unit_bytes)
            + 1.0
    }

    /// Most requests that a run can wait for while a disk is rebuilt.
    pub(crate) fn requests_beside_rebuild_max(&self, request_bytes: u64) -> f64 {
        let most = EVENTS_MAX / self.events_of_request(request_bytes);
        most.clamp(1.0, f64::from(REQUESTS_MAX))
    }
}

impl Rebuild {
    fn check(&self) -> Result<(), ConfigError> {
        let used = self.used_bytes as f64;
        within("rebuild.used_bytes", used, 4096.0, DATA_SET_BYTES_MAX as f64)?;
        let counts = [
            ("rebuild.stripes_at_once", self.stripes_at_once, 1024),
            ("rebuild.sample_stripes", self.sample_stripes, SAMPLE_STRIPES_MAX),
        ];
        for (name, value, max) in counts {
            within(name, f64::from(value), 1.0, f64::from(max))?;
        }
        match self.rate_limit_mb_s {
            Some(limit) => within("rebuild.rate_limit_mb_s", limit, 0.01, RATE_MB_S[1]),
            None => Ok(()),
        }
    }
}

impl Workload {
    fn check(&self) -> Result<(), ConfigError> {
        within("workload.reads_in_mix", self.reads_in_mix, 0.0, 1.0)?;
        let data_set = self.data_set_bytes as f64;
        within("workload.data_set_bytes", data_set, 4096.0, DATA_SET_BYTES_MAX as f64)?;
        match (self.request_bytes, self.request_stripes) {
            (Some(bytes), None) => {
                let max = REQUEST_BYTES_MAX as f64;
                within("workload.request_bytes", bytes as f64, 512.0, max)?;
            }
            (None, Some(stripes)) => {
                within("workload.request_stripes", stripes as f64, 1.0, 65536.0)?;
            }
            (Some(_), Some(_)) | (None, None) => return Err(ConfigError::RequestLength),
        }
        let counts = [
            ("workload.outstanding", self.outstanding, 1, OUTSTANDING_MAX),
            ("workload.requests", self.requests, 1, REQUESTS_MAX),
            ("workload.warm_up_requests", self.warm_up_requests, 0, REQUESTS_MAX),
        ];
        for (name, value, min, max) in counts {
            within(name, f64::from(value), f64::from(min), f64::from(max))?;
        }
        self.pause.check("workload.pause")?;
        match self.arrivals_per_second {
            Some(rate) => within("workload.arrivals_per_second", rate, 1e-3, 1e7),
            None => Ok(()),
        }
    }
}

impl Network {
    fn check(&self) -> Result<(), ConfigError> {
        within("network.rate_mbit_s", self.rate_mbit_s, 8e-3, 8e9)?;
        let client_rate = self.client_rate_mbit_s.unwrap_or(self.rate_mbit_s);
        within("network.client_rate_mbit_s", client_rate, 8e-3, 8e9)?;
        within("network.latency_us", self.latency_us, 0.0, OVERHEAD_US_MAX)?;
        let control = self.control_latency_us.unwrap_or(0.0);
        within("network.control_latency_us", control, 0.0, OVERHEAD_US_MAX)?;
        let per_packet = self.overhead_us_per_packet;
        within("network.overhead_us_per_packet", per_packet, 0.0, OVERHEAD_US_MAX)?;
        let sizes = [
            (
                "network.segment_bytes",
                self.segment_bytes.unwrap_or(64),
                64.0,
                REQUEST_BYTES_MAX as f64,
            ),
            ("network.packet_bytes", self.packet_bytes, 64.0, REQUEST_BYTES_MAX as f64),
            ("network.header_bytes_per_packet", self.header_bytes_per_packet, 0.0, 1e6),
            (
                "network.sent_together_bytes",
                self.sent_together_bytes,
                0.0,
                REQUEST_BYTES_MAX as f64,
            ),
            ("network.control_bytes", self.control_bytes, 1.0, f64::from(self.packet_bytes)),
        ];
        sizes
            .into_iter()
            .try_for_each(|(name, size, min, max)| within(name, f64::from(size), min, max))
    }
}

fn check_rate(name: &str, value: f64) -> Result<(), ConfigError> {
    within(name, value, RATE_MB_S[0], RATE_MB_S[1])
}

fn check_host(
    host: &str,
    processors: usize,
    mips: f64,
    costs: &BTreeMap<String, Cost>,
) -> Result<(), ConfigError> {
    within(&format!("{host}.processors"), processors as f64, 1.0, 1024.0)?;
    within(&format!("{host}.mips"), mips, MIPS[0], MIPS[1])?;
    within(&format!("{host}.costs, in number,"), costs.len() as f64, 0.0, 32.0)?;
    for (name, cost) in costs {
        if !is_name(name) {
            return Err(ConfigError::Name(name.clone()));
        }
        if cost.operation == Some(Operation::Mix) {
            return Err(ConfigError::CostOfMix(format!("{host}.costs.{name}")));
        }
        let counts = [
            ("instructions_per_request", cost.instructions_per_request),
            ("instructions_per_packet", cost.instructions_per_packet),
            ("instructions_per_batch", cost.instructions_per_batch),
            ("instructions_per_byte", cost.instructions_per_byte),
            ("instructions_per_parity_byte", cost.instructions_per_parity_byte),
            ("instructions_per_check_piece", cost.instructions_per_check_piece),
        ];
        for (what, count) in counts {
            within(&format!("{host}.costs.{name}.{what}"), count, 0.0, INSTRUCTIONS_MAX)?;
        }
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    (1..=32).contains(&name.len()) && name.bytes().all(good)
}
