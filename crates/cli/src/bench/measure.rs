//! Workloads, and what is measured of them.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::pattern;

/// What a client does over and over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Workload {
    pub(super) write: bool,
    pub(super) random: bool,
    /// Bytes of one request.
    pub(super) len: u32,
}

/// Small at random and large in order, each way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    WriteLarge,
    ReadLarge,
    WriteSmall,
    ReadSmall,
}

impl Kind {
    pub(super) const ALL: [Self; 4] =
        [Self::WriteLarge, Self::ReadLarge, Self::WriteSmall, Self::ReadSmall];

    /// It, with so many bytes in a large request.
    pub(super) const fn workload(self, large: u32) -> Workload {
        match self {
            Self::WriteLarge => Workload { write: true, random: false, len: large },
            Self::ReadLarge => Workload { write: false, random: false, len: large },
            Self::WriteSmall => Workload { write: true, random: true, len: 4 << 10 },
            Self::ReadSmall => Workload { write: false, random: true, len: 4 << 10 },
        }
    }
}

impl Workload {
    /// The workload in words.
    pub(super) fn name(self) -> String {
        let operation = if self.write { "write" } else { "read" };
        let order = if self.random { "random" } else { "sequential" };
        format!("{operation} {} KiB {order}", self.len >> 10)
    }
}

/// The places of a workload's requests within the first `span` bytes, and when to stop.
pub(super) struct Places {
    workload: Workload,
    count: u64,
    next: u64,
    until: Until,
}

/// When a run ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Until {
    /// At this time.
    Time(Instant),
    /// After this many requests.
    Requests(u64),
    /// At this time, or after this many requests.
    First(Instant, u64),
}

impl Places {
    pub(super) fn new(workload: Workload, span: u64, until: Until) -> Self {
        Self { workload, count: (span / u64::from(workload.len)).max(1), next: 0, until }
    }

    /// Where the next request goes; `None` at the end.
    pub(super) fn next(&mut self) -> Option<u64> {
        let over = match self.until {
            Until::Time(time) => Instant::now() >= time,
            Until::Requests(count) => self.next >= count,
            Until::First(time, count) => self.next >= count || Instant::now() >= time,
        };
        if over {
            return None;
        }
        let number = if self.workload.random { pattern::mix(self.next) } else { self.next };
        self.next += 1;
        Some(number % self.count * u64::from(self.workload.len))
    }
}

/// What one or more runs of a workload measured.
pub(super) struct Tally {
    requests: u64,
    bytes: u64,
    seconds: f64,
    latency_us: Histogram<u64>,
    client: Used,
    servers: Used,
    rounds_mb_per_s: Vec<f64>,
}

impl Tally {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            requests: 0,
            bytes: 0,
            seconds: 0.0,
            latency_us: Histogram::new_with_bounds(1, 600_000_000, 3)?,
            client: Used::default(),
            servers: Used::default(),
            rounds_mb_per_s: Vec::new(),
        })
    }

    /// Requests so far.
    pub(super) const fn requests(&self) -> u64 {
        self.requests
    }

    /// Counts one request.
    pub(super) fn request(&mut self, len: u32, latency: Duration) {
        self.requests += 1;
        self.bytes += u64::from(len);
        // Clamped: that is after 584,000 years.
        self.latency_us.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
    }

    /// Adds a whole round.
    pub(super) fn round(&mut self, round: &Self, seconds: f64, used: (Used, Used)) -> Result<()> {
        self.requests += round.requests;
        self.bytes += round.bytes;
        self.seconds += seconds;
        self.latency_us.add(&round.latency_us).context("latencies")?;
        for (sum, used) in [(&mut self.client, used.0), (&mut self.servers, used.1)] {
            sum.cpu_s += used.cpu_s;
            sum.waits += used.waits;
        }
        self.rounds_mb_per_s.push(round.bytes as f64 / 1e6 / seconds);
        Ok(())
    }

    /// Adds what ran at the same time, to be counted as one.
    pub(super) fn join(&mut self, other: &Self) -> Result<()> {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.latency_us.add(&other.latency_us).context("latencies")
    }

    /// MB/s of each round.
    pub(super) fn rounds(&self) -> &[f64] {
        &self.rounds_mb_per_s
    }

    /// Bytes so far.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its figures, of a workload that another one may have run beside.
    pub(super) fn figures(&self, workload: Workload, beside: Option<Workload>) -> Figures {
        let gigabytes = self.bytes as f64 / 1e9;
        let at = |quantile| self.latency_us.value_at_quantile(quantile);
        Figures {
            workload: workload.name(),
            is_write: workload.write,
            is_random: workload.random,
            request_bytes: workload.len,
            beside: beside.map(Workload::name),
            mb_per_s: self.bytes as f64 / 1e6 / self.seconds,
            iops: self.requests as f64 / self.seconds,
            latency_us_p50: at(0.5),
            latency_us_p99: at(0.99),
            latency_us_p99_9: at(0.999),
            latency_us_max: self.latency_us.max(),
            client_cpu_s_per_gb: self.client.cpu_s / gigabytes,
            server_cpu_s_per_gb: self.servers.cpu_s / gigabytes,
            client_waits: self.client.waits as f64 / self.requests as f64,
            server_waits: self.servers.waits as f64 / self.requests as f64,
            rounds_mb_per_s: self.rounds_mb_per_s.clone(),
        }
    }
}

/// The figures of one workload.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    workload: String,
    is_write: bool,
    is_random: bool,
    request_bytes: u32,
    /// What ran at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    beside: Option<String>,
    mb_per_s: f64,
    pub(super) iops: f64,
    pub(super) latency_us_p50: u64,
    pub(super) latency_us_p99: u64,
    latency_us_p99_9: u64,
    latency_us_max: u64,
    /// User and system time of this process.
    pub(super) client_cpu_s_per_gb: f64,
    /// The same of the processes that it measures.
    pub(super) server_cpu_s_per_gb: f64,
    /// How often threads of this process waited, by request.
    client_waits: f64,
    /// The same of the processes that it measures.
    server_waits: f64,
    pub(super) rounds_mb_per_s: Vec<f64>,
}

/// The head of a table of figures, in Markdown.
pub(super) const TABLE_HEAD: &str = "\
| workload                  |  MB/s | of rounds     |    IOPS | p50 us | p99 us | p99.9 us | client CPU s/GB | servers CPU s/GB |
| ------------------------- | ----: | ------------: | ------: | -----: | -----: | -------: | --------------: | ---------------: |";

impl Figures {
    pub(super) const fn mb_per_s(&self) -> f64 {
        self.mb_per_s
    }

    /// The median of its rounds.
    pub(super) fn median_mb_per_s(&self) -> f64 {
        median(self.rounds_mb_per_s.clone())
    }

    /// Processor seconds of all processes.
    pub(super) const fn cpu_s_per_gb(&self) -> f64 {
        self.client_cpu_s_per_gb + self.server_cpu_s_per_gb
    }

    fn name(&self) -> String {
        let beside = self.beside.iter().map(|other| format!(" beside {other}"));
        beside.fold(self.workload.clone(), |name, beside| name + &beside)
    }

    /// One line of the table.
    pub(super) fn line(&self) -> String {
        let least = self.rounds_mb_per_s.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.rounds_mb_per_s.iter().copied().fold(0.0, f64::max);
        format!(
            "| {:<25} | {:>5.0} | {:>13} | {:>7.0} | {:>6} | {:>6} | {:>8} | {:>15.2} | {:>16.2} |",
            self.name(),
            self.mb_per_s,
            format!("{least:.0} to {most:.0}"),
            self.iops,
            self.latency_us_p50,
            self.latency_us_p99,
            self.latency_us_p99_9,
            self.client_cpu_s_per_gb,
            self.server_cpu_s_per_gb
        )
    }
}

impl Figures {
    /// What this is of `base`, in one line: rate (median of rounds), latency, processor time.
    pub(super) fn ratio_line(&self, base: &Self) -> String {
        let pairs = self.rounds_mb_per_s.iter().zip(&base.rounds_mb_per_s);
        let rate = median(pairs.map(|(one, other)| one / other).collect());
        let p99 = self.latency_us_p99 as f64 / base.latency_us_p99 as f64;
        let client = self.client_cpu_s_per_gb / base.client_cpu_s_per_gb;
        let servers = self.server_cpu_s_per_gb / base.server_cpu_s_per_gb;
        format!(
            "{:<25} rate {rate:.2}, p99 {p99:.2}, client CPU {client:.2}, servers CPU {servers:.2}",
            self.name()
        )
    }
}

/// The middle one of some figures; of an even number, the larger of the two in the middle.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What processes have used; 0 is this one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Used {
    /// Processor seconds, user and system.
    pub(super) cpu_s: f64,
    /// How often threads that still run gave up the processor to wait.
    pub(super) waits: u64,
}

impl Used {
    pub(super) fn by(pids: &[u32]) -> Result<Self> {
        Ok(Self { cpu_s: cpu_s(pids)?, waits: waits(pids)? })
    }

    pub(super) fn since(self, before: Self) -> Self {
        Self {
            cpu_s: self.cpu_s - before.cpu_s,
            // A thread that has ended took its share along.
            waits: self.waits.saturating_sub(before.waits),
        }
    }
}

fn waits(pids: &[u32]) -> Result<u64> {
    let mut waits = 0;
    for pid in pids {
        let name = if *pid == 0 { "self".to_string() } else { pid.to_string() };
        let threads = fs::read_dir(format!("/proc/{name}/task"));
        for thread in threads.with_context(|| format!("no process {name}"))? {
            // A thread may end while it is looked at.
            let Ok(text) = fs::read_to_string(thread?.path().join("status")) else { continue };
            let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            waits += line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Ok(waits)
}

/// Processor seconds of the whole machine, with what its host took away.
pub(super) fn machine_busy_s() -> Result<f64> {
    let text = fs::read_to_string("/proc/stat").context("/proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    let fields = line.split_whitespace().skip(1).take(8).enumerate();
    // Fields 4 and 5 of proc_stat(5) are idle: waiting for devices is idle, too.
    let ticks = fields.filter(|(at, _)| !matches!(at, 3 | 4));
    let ticks: u64 = ticks.filter_map(|(_, ticks)| ticks.parse::<u64>().ok()).sum();
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Processor seconds, user and system, that processes have used; 0 is this one.
pub(super) fn cpu_s(pids: &[u32]) -> Result<f64> {
    let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
    let mut ticks = 0;
    for pid in pids {
        let name = if *pid == 0 { "self".to_string() } else { pid.to_string() };
        let path = format!("/proc/{name}/stat");
        let text = fs::read_to_string(&path).with_context(|| format!("no process {name}"))?;
        // The name of the program, in parentheses, may contain anything.
        let fields = text.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
        // Fields 14 and 15 of proc_pid_stat(5); the first one here is field 3.
        let times = fields.split_whitespace().skip(11).take(2);
        ticks += times.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>();
    }
    Ok(ticks as f64 / ticks_per_s)
}

/// Processor seconds of all that ran on this machine, interrupts with it; what a hypervisor took away is not
/// in it.
pub(super) fn machine_cpu_s() -> Result<f64> {
    let text = fs::read_to_string("/proc/stat").context("/proc/stat")?;
    // user, nice, system, idle, iowait, irq and softirq of proc_stat(5).
    let times: Vec<u64> = text
        .lines()
        .next()
        .map(|line| line.split_whitespace().skip(1).filter_map(|time| time.parse().ok()).collect())
        .unwrap_or_default();
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = times[..] else {
        anyhow::bail!("/proc/stat: its first line does not name the processors' times");
    };
    let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
    Ok((user + nice + system + irq + softirq) as f64 / ticks_per_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_processor_time_has_this_process_in_it() {
        let (before, own) = (machine_cpu_s().unwrap(), cpu_s(&[0]).unwrap());
        let mut bytes = vec![0; 1 << 20];
        let started = Instant::now();
        while cpu_s(&[0]).unwrap() < own + 0.1 {
            assert!(started.elapsed() < Duration::from_secs(30), "no processor time is counted");
            pattern::fill(1, 0, &mut bytes);
        }
        // Two clocks of a tick each.
        let all = machine_cpu_s().unwrap() - before;
        assert!(all > 0.05, "{all}");
    }

    #[test]
    fn places_stay_within_the_span_and_are_aligned() {
        for workload in Kind::ALL.map(|kind| kind.workload(1 << 20)) {
            let span = 10 << 20;
            let mut places = Places::new(workload, span, Until::Requests(100));
            let all: Vec<u64> = std::iter::from_fn(|| places.next()).collect();
            let len = u64::from(workload.len);
            assert_eq!(all.len(), 100);
            assert!(all.iter().all(|place| place % len == 0 && place + len <= span));
            assert_eq!(all[1] == len, !workload.random);
        }
    }

    #[test]
    fn own_processor_time_grows_with_work() {
        let before = cpu_s(&[0]).unwrap();
        let mut bytes = vec![0; 1 << 20];
        let started = Instant::now();
        while cpu_s(&[0]).unwrap() < before + 0.02 {
            assert!(started.elapsed() < Duration::from_secs(30), "no processor time is counted");
            pattern::fill(1, 0, &mut bytes);
        }
    }
}
