//! `netraid bench transport`: iSCSI from our initiator to a target, beside bare requests over TCP in the same
//! rounds, by the size of a request: what the protocol adds to what the network costs.
//!
//! The target is one of ours in memory over loopback, or any at an address: then what is measured has the costs
//! of the very path. Bare TCP goes over loopback in both cases.

use std::{
    fmt::Write as _,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use netraid_block::TargetUri;
use netraid_engine::initiator::{InitiatorConfig, Remote};
use serde::Serialize;

use super::{
    LARGE_LEN,
    drive::Subject,
    fit::Line,
    measure::{self, Until, Workload, cpu_s, machine_cpu_s},
    raw_tcp,
    subject::ram_target,
};
use crate::{
    member::configs, output::Output, pattern, process::Daemon, secret::SecretArgs, signal::Stop,
    size,
};

/// Bytes of a logical unit in memory: more than caches hold.
const MEMORY_LEN: u64 = 256 << 20;

#[derive(Debug, Clone, Args)]
pub(super) struct TransportArgs {
    /// Requests in flight
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(super) depth: u16,
    /// Bytes of a request, 512 to 1MiB
    #[arg(long, value_name = "SIZE", value_parser = size::parse, value_delimiter = ',',
          default_value = "4KiB,16KiB,64KiB,256KiB,1MiB")]
    pub(super) requests: Vec<u64>,
    /// Seconds of one point in one round
    #[arg(long, default_value_t = 0.5)]
    pub(super) seconds: f64,
    /// Rounds; in each, all points run once, the two kinds one after the other
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(super) rounds: u16,
    /// Requests anywhere, as those of an array's small requests are; otherwise in order
    #[arg(long)]
    pub(super) random: bool,
    #[command(flatten)]
    pub(super) far: Far,
}

/// A target that is not started for the measurement.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct Far {
    /// iscsi://[user@]host[:port]/iqn/lun; without an address, a target of ours in memory
    #[arg(value_name = "URL", requires = "overwrite")]
    url: Option<String>,
    /// OVERWRITE the first 256 MiB of the data at this address
    #[arg(long, requires = "url")]
    overwrite: bool,
    /// The target's processes, if they are on this machine: their time is the server's
    #[arg(long, value_name = "PID", num_args = 1.., requires = "url", conflicts_with = "whole_machine")]
    server_pid: Vec<u32>,
    /// Count what all of this machine spends beside the client as the server's: where both are on one
    /// machine, all that the path between them costs; nothing else may run on it
    #[arg(long)]
    whole_machine: bool,
    #[command(flatten)]
    secrets: SecretArgs,
}

/// What one kind of transport did with requests of one size in one round; processor time is in microseconds
/// a request.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Figures {
    pub(super) mb_per_s: f64,
    pub(super) client_us: f64,
    pub(super) server_us: f64,
}

/// Requests of one size, by rounds.
#[derive(Debug, Serialize)]
pub(super) struct Point {
    pub(super) write: bool,
    pub(super) request_bytes: u32,
    pub(super) raw: Vec<Figures>,
    pub(super) iscsi: Vec<Figures>,
    /// Processor microseconds of copying as much: what a target that has to look at bytes before it stores
    /// them adds to a write.
    pub(super) copy_us: f64,
}

/// How the time of requests grows with their size, by the median of each size.
#[derive(Debug, Serialize)]
pub(super) struct Fit {
    pub(super) write: bool,
    pub(super) transport: &'static str,
    pub(super) overhead_us: f64,
    pub(super) peak_mb_per_s: f64,
    /// Bytes of a request that has three quarters of the peak.
    pub(super) bytes_for_three_quarters: f64,
    client_us_a_request: f64,
    client_s_a_gb: f64,
    server_us_a_request: f64,
    server_s_a_gb: f64,
}

/// All that was measured.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) depth: u16,
    pub(super) rounds: u16,
    pub(super) seconds: f64,
    pub(super) points: Vec<Point>,
    pub(super) fits: Vec<Fit>,
}

pub(super) async fn run(args: &TransportArgs, output: Output) -> Result<()> {
    let report = measure(args, output, &Stop::listen()?).await?;
    output.document(&report, || text(&report))
}

/// Measures both transports, with a target of our own that is started for it.
///
/// # Errors
/// When an argument is out of range, the target fails, or a signal came.
pub(super) async fn measure(args: &TransportArgs, output: Output, stop: &Stop) -> Result<Report> {
    // While bare TCP runs, nobody answers the target.
    if !(0.01..=10.0).contains(&args.seconds) {
        bail!("--seconds {}: give 0.01 to 10", args.seconds);
    }
    let lens: Vec<u32> = args.requests.iter().filter_map(|len| u32::try_from(*len).ok()).collect();
    let is_right = |len: &u32| (512..=LARGE_LEN).contains(len) && len.is_multiple_of(512);
    if lens.len() != args.requests.len() || !lens.iter().all(is_right) {
        bail!("--requests: give multiples of 512, up to 1MiB");
    }
    let far = &args.far;
    let daemon = match far.url {
        Some(_) => None,
        None => Some(ram_target(0, MEMORY_LEN, None)?),
    };
    let url = match (&far.url, &daemon) {
        (Some(url), _) => url.clone(),
        (None, daemon) => daemon.as_ref().context("no target")?.ready_text("/luns/0/uri")?,
    };
    let mut config = InitiatorConfig::new(TargetUri::parse(&url)?);
    config.secret = configs(&[url], &far.secrets)?.remove(0).secret;
    config.queue_depth = args.depth.max(128);
    let pool = netraid_engine::pool();
    let remote = Arc::new(Remote::connect(config, pool.clone()).await?);
    let mut subject = Subject::device(remote.clone().into_device(), &pool, LARGE_LEN);
    let span = subject.capacity().min(MEMORY_LEN);
    if span < u64::from(LARGE_LEN) {
        bail!("{}: has {span} bytes; at least {LARGE_LEN} are needed", remote.address());
    }
    let clock =
        Clock { server_pids: far.server_pids(daemon.as_ref()), whole_machine: far.whole_machine };
    let mut memory = vec![0; usize::try_from(MEMORY_LEN)?];
    pattern::fill(1, 0, &mut memory);
    let fill = Workload { write: true, random: false, len: LARGE_LEN };
    let whole = Until::Requests(span / u64::from(LARGE_LEN));
    subject.run(fill, span, usize::from(args.depth), whole).await?;

    let mut points = Vec::new();
    for write in [false, true] {
        let empty = |request_bytes| Point {
            write,
            request_bytes,
            raw: Vec::new(),
            iscsi: Vec::new(),
            copy_us: f64::INFINITY,
        };
        points.extend(lens.iter().copied().map(empty));
    }
    let bar = output.progress("transport", u64::from(args.rounds) * points.len() as u64);
    for _ in 0..args.rounds {
        let copy_cpu_s = raw_tcp::copy_cpu_s(&mut memory);
        for point in &mut points {
            stop.check()?;
            point.copy_us = point.copy_us.min(copy_cpu_s * f64::from(point.request_bytes) / 1e3);
            point.raw.push(raw_figures(point, args, &mut memory)?);
            point.iscsi.push(iscsi_figures(point, args, &mut subject, span, &clock).await?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    remote.close().await;
    daemon.map_or(Ok(()), Daemon::stop)?;
    let fits = fits(&points);
    let (depth, rounds, seconds) = (args.depth, args.rounds, args.seconds);
    Ok(Report { depth, rounds, seconds, points, fits })
}

impl Far {
    fn server_pids(&self, daemon: Option<&Daemon>) -> Vec<u32> {
        daemon.map(Daemon::pid).into_iter().chain(self.server_pid.iter().copied()).collect()
    }
}

/// Whose processor time counts as the server's.
struct Clock {
    server_pids: Vec<u32>,
    /// All of the machine's but the client's, instead.
    whole_machine: bool,
}

impl Clock {
    /// Processor seconds of the client and the server so far.
    fn read(&self) -> Result<(f64, f64)> {
        let client = cpu_s(&[0])?;
        let server = match self.whole_machine {
            true => machine_cpu_s()? - client,
            false => cpu_s(&self.server_pids)?,
        };
        Ok((client, server))
    }
}

impl Point {
    const fn workload(&self, random: bool) -> Workload {
        Workload { write: self.write, random, len: self.request_bytes }
    }
}

fn raw_figures(point: &Point, args: &TransportArgs, memory: &mut [u8]) -> Result<Figures> {
    let (workload, depth) = (point.workload(args.random), usize::from(args.depth));
    let time = Duration::from_secs_f64(args.seconds);
    let run = raw_tcp::run(workload, depth, time, memory)?;
    let requests = run.requests as f64;
    Ok(Figures {
        mb_per_s: requests * f64::from(point.request_bytes) / 1e6 / run.seconds,
        client_us: run.client_cpu_s / requests * 1e6,
        server_us: run.server_cpu_s / requests * 1e6,
    })
}

async fn iscsi_figures(
    point: &Point,
    args: &TransportArgs,
    subject: &mut Subject,
    span: u64,
    clock: &Clock,
) -> Result<Figures> {
    let until = Until::Time(Instant::now() + Duration::from_secs_f64(args.seconds));
    let before = clock.read()?;
    let depth = usize::from(args.depth);
    let (tally, seconds) = subject.run(point.workload(args.random), span, depth, until).await?;
    let after = clock.read()?;
    let requests = tally.requests() as f64;
    Ok(Figures {
        mb_per_s: requests * f64::from(point.request_bytes) / 1e6 / seconds,
        client_us: (after.0 - before.0) / requests * 1e6,
        server_us: (after.1 - before.1) / requests * 1e6,
    })
}

/// The median of something in all rounds.
pub(super) fn median(figures: &[Figures], of: impl Fn(&Figures) -> f64) -> f64 {
    measure::median(figures.iter().map(of).collect())
}

fn fits(points: &[Point]) -> Vec<Fit> {
    let mut fits = Vec::new();
    for write in [false, true] {
        for transport in ["raw TCP", "iSCSI"] {
            let line = |of: &dyn Fn(&Figures) -> f64| {
                Line::fit(points.iter().filter(|point| point.write == write).map(|point| {
                    let figures = if transport == "iSCSI" { &point.iscsi } else { &point.raw };
                    (f64::from(point.request_bytes), median(figures, of))
                }))
            };
            let elapsed = |of: &Figures, len: f64| len / of.mb_per_s;
            let time = Line::fit(points.iter().filter(|point| point.write == write).map(|point| {
                let figures = if transport == "iSCSI" { &point.iscsi } else { &point.raw };
                let len = f64::from(point.request_bytes);
                (len, median(figures, |one| elapsed(one, len)))
            }));
            let (client, server) = (line(&|one| one.client_us), line(&|one| one.server_us));
            fits.push(Fit {
                write,
                transport,
                overhead_us: time.overhead,
                peak_mb_per_s: 1.0 / time.each,
                bytes_for_three_quarters: time.units_for(0.75),
                client_us_a_request: client.overhead,
                client_s_a_gb: client.each * 1e3,
                server_us_a_request: server.overhead,
                server_s_a_gb: server.each * 1e3,
            });
        }
    }
    fits
}

/// The report as a table and its fits, in Markdown.
pub(super) fn text(report: &Report) -> String {
    let Report { depth, rounds, seconds, points, fits } = report;
    let mut text = format!(
        "depth {depth}, {rounds} rounds of {seconds} s a point, medians; processor time in microseconds a \
         request\n\n\
         |       | request | raw MB/s | client | server | iSCSI MB/s | client | server | of the rate | client over raw | server over raw |\n\
         | ----- | ------: | -------: | -----: | -----: | ---------: | -----: | -----: | ----------: | --------------: | --------------: |\n"
    );
    for point in points {
        let both = |of: fn(&Figures) -> f64| (median(&point.raw, of), median(&point.iscsi, of));
        let ratio = |of: &dyn Fn(&Figures, &Figures) -> f64| {
            let pairs = point.raw.iter().zip(&point.iscsi);
            let mut all: Vec<f64> = pairs.map(|(raw, iscsi)| of(raw, iscsi)).collect();
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
        };
        let copy_us = if point.write { point.copy_us } else { 0.0 };
        let (rates, clients, servers) =
            (both(|one| one.mb_per_s), both(|one| one.client_us), both(|one| one.server_us));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {:<5} | {:>7} | {:>8.0} | {:>6.2} | {:>6.2} | {:>10.0} | {:>6.2} | {:>6.2} | {:>11.2} | {:>15.2} | {:>15.2} |",
            if point.write { "write" } else { "read" },
            size::show(u64::from(point.request_bytes)),
            rates.0,
            clients.0,
            servers.0,
            rates.1,
            clients.1,
            servers.1,
            ratio(&|raw, iscsi| iscsi.mb_per_s / raw.mb_per_s),
            ratio(&|raw, iscsi| iscsi.client_us / raw.client_us),
            ratio(&|raw, iscsi| iscsi.server_us / (raw.server_us + copy_us)),
        );
    }
    text += "\nThe server's time of a write is over raw TCP's and one copy.\n\n";
    for fit in fits {
        let _ = writeln!(
            text,
            "{:<7} {:<5}: {:.1} us a request and {:.0} MB/s at most, three quarters of it with {:.0} KiB a request; \
             client {:.2} us and {:.3} s/GB, server {:.2} us and {:.3} s/GB",
            fit.transport,
            if fit.write { "write" } else { "read" },
            fit.overhead_us,
            fit.peak_mb_per_s,
            fit.bytes_for_three_quarters / 1024.0,
            fit.client_us_a_request,
            fit.client_s_a_gb,
            fit.server_us_a_request,
            fit.server_s_a_gb,
        );
    }
    text
}
