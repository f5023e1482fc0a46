//! `netraid bench`: what a member or a volume gives, and what it costs both sides.
//!
//! Rounds of all workloads take turns, so that a disturbance of the machine meets all of them.

mod climb;
mod drive;
mod export;
mod fit;
mod limit;
mod measure;
mod mediator;
mod parity;
mod raw_tcp;
mod stream;
mod subject;
mod transport;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use crate::{
    create::Switch, output::Output, runtime, runtime_of, secret::SecretArgs, signal::Stop, size,
};
use limit::{LimitFigures, Limits};
pub(crate) use measure::median;
use measure::{Figures, Kind, TABLE_HEAD, Tally, Until, Workload};
use subject::{Bench, Own};

/// Largest request of any workload.
const REQUEST_LEN_MAX: u32 = 4 << 20;
/// Bytes of a large request, unless others are asked for.
const LARGE_LEN: u32 = 1 << 20;
/// How often what is used is written before it is measured.
const FILLS: u64 = 3;
/// Bytes of a request that ages an array: a stripe of four chunks, which goes elsewhere.
const AGING_LEN: u32 = 256 << 10;

#[derive(Debug, Clone, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Clone, Subcommand)]
enum What {
    /// One LUN through our initiator; without an address, a target of ours in memory
    Member {
        /// iscsi://[user@]host[:port]/iqn/lun
        #[arg(value_name = "URL")]
        url: Option<String>,
        #[command(flatten)]
        options: Options,
    },
    /// Part by part: memory and parity, the transport, one member by requests in flight, one to all members
    /// at once and as volumes, an export by the size of requests; which part limits, and what would be next
    Climb(Box<climb::ClimbArgs>),
    /// XOR, P with Q, and checksums, by the size of buffers and the number of sources, beside copying
    Parity(parity::ParityArgs),
    /// iSCSI to a target of ours in memory, beside bare requests over TCP, by the size of a request
    Transport(transport::TransportArgs),
    /// Serve memory over NBD until told to stop, for whoever measures NBD servers
    Export(export::ExportArgs),
    /// Data of a cluster, read or written at a promised rate with a second of buffer, or as fast as
    /// it goes
    Stream(Box<stream::StreamArgs>),
    /// Plans that a cluster's mediator gives and takes back
    Mediator(mediator::MediatorArgs),
    /// A volume: an NBD export, an array of these members, or an array of our own in memory
    Volume {
        /// nbd://host:port/name, nbd+unix:///name?socket=PATH, or the members' addresses
        #[arg(value_name = "URL")]
        urls: Vec<String>,
        /// Members of an array of our own
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=32))]
        members: u8,
        /// Level of an array of our own
        #[arg(long, default_value_t = 5)]
        level: u8,
        /// Whether an array of our own has a log; `both` measures two arrays in turns
        #[arg(long, value_enum)]
        log: Option<Logs>,
        /// Bytes of the log on each member of an array of our own
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        log_size: Option<u64>,
        /// Bytes of each member of an array of our own; twice the span unless said
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        member_size: Option<u64>,
        /// Memory for checksums of what is stored, of an array with a log
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        checksum_cache: Option<u64>,
        /// Memory for what is read ahead, as of `netraid attach`; with several, as many arrays of our
        /// own are measured in turns
        #[arg(long, value_name = "SIZE", value_parser = size::parse_or_zero, value_delimiter = ',')]
        read_ahead: Vec<u64>,
        /// Measure a second array of our own as well, in turns, after so many overwrites of what
        /// is used, 256 KiB at a time and at random
        #[arg(long, value_name = "TIMES", conflicts_with = "nbd")]
        aged: Option<u16>,
        /// Filters before each member of an array of our own, as of `netraid target --filter`
        #[arg(long, value_name = "FILTERS")]
        filter: Option<String>,
        /// Go through an NBD export of an array of our own, instead of driving it in this process
        #[arg(long)]
        nbd: bool,
        #[command(flatten)]
        options: Options,
    },
}

/// Which arrays of our own are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Logs {
    On,
    Off,
    Both,
}

#[derive(Debug, Clone, Args)]
struct Options {
    /// Requests in flight
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// Seconds of one workload in one round
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Requests of one workload in one round, instead of seconds
    #[arg(long, conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    requests: Option<u64>,
    /// Rounds; in each, all workloads run once
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Workloads to run; all of them, if none is named
    #[arg(long, value_enum, value_name = "WORKLOAD", num_args = 1.., value_delimiter = ',')]
    only: Vec<Kind>,
    /// Measure each workload alone and then beside this one, and this one alone and beside each of them
    #[arg(long, value_enum, value_name = "WORKLOAD", conflicts_with = "requests")]
    beside: Option<Kind>,
    /// Requests in flight of the workload of --beside
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    beside_depth: u16,
    /// Sessions to each member, as of `netraid attach`
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    sessions: u8,
    /// Bytes of a request of the large workloads, at most 4MiB
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = size::parse)]
    large: u64,
    /// Bytes from the start that are used
    #[arg(long, default_value = "256MiB", value_parser = size::parse)]
    span: u64,
    /// Run the workloads that write as well: OVERWRITES the data at the given addresses
    #[arg(long)]
    overwrite: bool,
    /// Processes whose processor time counts as the servers'
    #[arg(long, value_name = "PID", num_args = 1.., conflicts_with = "whole_machine")]
    server_pid: Vec<u32>,
    /// All processor time of this machine counts as the servers', but this process's: the network's devices are in it
    #[arg(long)]
    whole_machine: bool,
    /// Leave out bare TCP, with which a subject of our own is compared in each round
    #[arg(long)]
    no_limit: bool,
    /// Connections of bare TCP, 1 to 64: each request is cut into as many parts
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "no_limit",
          value_parser = clap::value_parser!(u8).range(1..=64))]
    limit_connections: u8,
    /// Threads that drive members, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    #[command(flatten)]
    secrets: SecretArgs,
}

#[derive(Debug, Serialize)]
struct Report {
    depth: u16,
    rounds: u16,
    seconds: f64,
    /// Instead of the seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<u64>,
    subjects: Vec<SubjectReport>,
    /// Bare TCP with the same requests, by workload.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    limits: Vec<LimitFigures>,
}

/// What was measured of one subject. With two of them, the second has ratios to the first.
#[derive(Debug, Serialize)]
struct SubjectReport {
    what: String,
    span_bytes: u64,
    results: Vec<Figures>,
}

pub(crate) fn run(args: &BenchArgs, output: Output) -> Result<()> {
    let options = match &args.what {
        What::Stream(args) => return runtime()?.block_on(stream::run(args, output)),
        What::Mediator(args) => return mediator::run(args, output),
        What::Climb(args) => return climb::run(args, output),
        What::Parity(args) => return parity::run(args, output),
        What::Transport(args) => return runtime()?.block_on(transport::run(args, output)),
        What::Export(args) => return runtime()?.block_on(export::run(args, output)),
        What::Member { options, .. } | What::Volume { options, .. } => options,
    };
    if !(0.01..=3600.0).contains(&options.seconds) {
        bail!("--seconds {}: give 0.01 to 3600", options.seconds);
    }
    let runtime = runtime_of(options.threads)?;
    // As a task, as whatever uses a device in earnest: what waits outside of all costs the runtime a call of the
    // kernel for each burst.
    let run = run_as_task(args.what.clone(), options.clone(), output);
    let report = runtime.block_on(async { tokio::spawn(run).await })??;
    output.document(&report, || {
        let Report { depth, rounds, seconds, requests, subjects, limits } = &report;
        let mut text = String::new();
        for SubjectReport { what, results, .. } in subjects {
            let lines: String = results.iter().map(|figures| figures.line() + "\n").collect();
            let each = requests
                .map_or_else(|| format!("{seconds} s"), |count| format!("{count} requests"));
            text += &format!("{what}, depth {depth}, {rounds} rounds of {each}\n\n");
            text += &format!("{TABLE_HEAD}\n{lines}\n");
            if !limits.is_empty() {
                text += &(limit::text(limits, results) + "\n");
            }
        }
        if let [first, second] = subjects.as_slice() {
            text +=
                "The second against the first, medians of rounds that were neighbours in time\n\n";
            for (one, other) in first.results.iter().zip(&second.results) {
                text += &(other.ratio_line(one) + "\n");
            }
        }
        text
    })
}

async fn run_as_task(what: What, options: Options, output: Output) -> Result<Report> {
    let stop = Stop::listen()?;
    let mut benches = benches(&what, &options, &stop).await?;
    let report = measure_all(&mut benches, &options, output, &stop).await;
    for bench in benches {
        bench.close().await?;
    }
    report
}

/// The subjects that are measured in turns.
async fn benches(what: &What, options: &Options, stop: &Stop) -> Result<Vec<Bench>> {
    if let What::Member { url, .. } = what {
        return Ok(vec![Bench::member(url.as_deref(), options).await?]);
    }
    let What::Volume {
        urls,
        members,
        level,
        log,
        log_size,
        member_size,
        checksum_cache,
        read_ahead,
        aged,
        filter,
        nbd,
        options: _,
    } = what
    else {
        return Ok(Vec::new());
    };
    let logs = match log {
        None => vec![None],
        Some(Logs::On) => vec![Some(Switch::On)],
        Some(Logs::Off) => vec![Some(Switch::Off)],
        Some(Logs::Both) => vec![Some(Switch::Off), Some(Switch::On)],
    };
    let ahead = match read_ahead.is_empty() {
        true => vec![None],
        false => read_ahead.iter().copied().map(Some).collect(),
    };
    let mut benches = Vec::new();
    for log in logs {
        for age in std::iter::once(0).chain(*aged) {
            for read_ahead in &ahead {
                let own = Own {
                    level: *level,
                    members: *members,
                    log,
                    log_size: log_size.filter(|_| log != Some(Switch::Off)),
                    member_size: *member_size,
                    checksum_cache: *checksum_cache,
                    read_ahead: *read_ahead,
                    age,
                    filter: filter.clone(),
                    nbd: *nbd,
                };
                benches.push(Bench::volume(urls, &own, options, stop).await?);
            }
        }
    }
    Ok(benches)
}

async fn measure_all(
    benches: &mut [Bench],
    options: &Options,
    output: Output,
    stop: &Stop,
) -> Result<Report> {
    let depth = usize::from(options.depth);
    let mut parts = Vec::new();
    for bench in benches.iter_mut() {
        let span = options.span.min(bench.subject.capacity());
        if span < options.large {
            bail!("{}: has {span} bytes; at least {} are needed", bench.what, options.large);
        }
        let mut kinds: Vec<Kind> = Kind::ALL.to_vec();
        kinds.retain(|kind| options.only.is_empty() || options.only.contains(kind));
        let mut runs = runs_of(&kinds, options)?;
        runs.retain(|run| bench.may_write || !run.iter().any(|(workload, _)| workload.write));
        if bench.may_write {
            // What was never written is not read from the members at all; and what is written
            // again may go elsewhere, where the members have to make room at first.
            let fill = Kind::WriteLarge.workload(options.large()?);
            let requests = FILLS * span / options.large;
            bench.subject.run(fill, span, depth, Until::Requests(requests)).await?;
            let aging = Workload { write: true, random: true, len: AGING_LEN };
            let requests = u64::from(bench.age) * span / u64::from(AGING_LEN);
            bench.subject.run(aging, span, depth, Until::Requests(requests)).await?;
        }
        let tallies = runs.iter().map(|run| run.iter().map(|_| Tally::new()).collect());
        let tallies = tallies.collect::<Result<Vec<Vec<Tally>>>>()?;
        parts.push((span, runs, tallies));
    }
    // What is measured beside something else, or counted by requests, has no time of its own.
    let has_limit = benches.iter().all(Bench::is_own)
        && !options.no_limit
        && options.beside.is_none()
        && options.requests.is_none();
    let workloads = parts[0].1.iter().map(|run| run[0].0);
    let mut limits = has_limit.then(|| Limits::new(workloads));
    let steps = parts.iter().map(|(_, runs, _)| runs.len() as u64).sum::<u64>();
    let bar = output.progress(&benches[0].what, u64::from(options.rounds) * steps);
    for _ in 0..options.rounds {
        // Arrays take turns within a workload: what disturbs the machine meets all of them.
        for at in 0..parts[0].1.len() {
            if let Some(limits) = &mut limits {
                stop.check()?;
                limits.measure(at, options)?;
            }
            for (bench, (span, runs, tallies)) in benches.iter_mut().zip(&mut parts) {
                stop.check()?;
                let before = bench.used(options.whole_machine)?;
                let end = || Instant::now() + Duration::from_secs_f64(options.seconds);
                let until = options.requests.map_or_else(|| Until::Time(end()), Until::Requests);
                let (rounds, seconds) = match runs[at][..] {
                    [one, other] => {
                        let both = bench.subject.run_beside([one, other], *span, until).await?;
                        (Vec::from(both.0), both.1)
                    }
                    _ => {
                        let (workload, depth) = runs[at][0];
                        let (round, seconds) =
                            bench.subject.run(workload, *span, depth, until).await?;
                        (vec![round], seconds)
                    }
                };
                let after = bench.used(options.whole_machine)?;
                let used = (after.0.since(before.0), after.1.since(before.1));
                for (tally, round) in tallies[at].iter_mut().zip(&rounds) {
                    tally.round(round, seconds, used)?;
                }
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    let subjects = benches.iter().zip(&parts).map(|(bench, (span, runs, tallies))| {
        let results = runs.iter().zip(tallies).flat_map(|(run, tallies)| {
            tallies.iter().enumerate().map(|(at, tally)| {
                tally.figures(run[at].0, run.get(1 - at).map(|(workload, _)| *workload))
            })
        });
        SubjectReport { what: bench.what.clone(), span_bytes: *span, results: results.collect() }
    });
    Ok(Report {
        depth: options.depth,
        rounds: options.rounds,
        seconds: options.seconds,
        requests: options.requests,
        subjects: subjects.collect(),
        limits: limits.map(|limits| limits.figures()).unwrap_or_default(),
    })
}

/// What is run: workloads with their depths, one or two at a time.
fn runs_of(kinds: &[Kind], options: &Options) -> Result<Vec<Vec<(Workload, usize)>>> {
    let (depth, large) = (usize::from(options.depth), options.large()?);
    let all = kinds.iter().map(|kind| (kind.workload(large), depth));
    let Some(beside) = options.beside else { return Ok(all.map(|run| vec![run]).collect()) };
    let beside = (beside.workload(large), usize::from(options.beside_depth));
    let each = all.flat_map(|run| [vec![run], vec![run, beside]]);
    Ok(std::iter::once(vec![beside]).chain(each).collect())
}

impl Options {
    /// Bytes of a large request.
    fn large(&self) -> Result<u32> {
        let fits = u32::try_from(self.large).ok();
        let fits = fits.filter(|len| (4096..=REQUEST_LEN_MAX).contains(len) && len % 4096 == 0);
        let Some(len) = fits else {
            bail!("--large {}: give 4KiB to 4MiB, a multiple of 4KiB", self.large);
        };
        Ok(len)
    }
}
