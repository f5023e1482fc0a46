//! `netraid plan calibrate`: a site's file from what `netraid bench` measured.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use netraid_model::{
    config::{Offsets, read_table},
    plan::calibrate::{Costs, Measurements, Shape, SmallArray, Time},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::json;

use crate::{output::Output, size};

/// Largest document of a measurement.
const DOCUMENT_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a small request, and of a large one.
const SMALL: u32 = 4096;
const LARGE: u32 = 1 << 20;
/// Requests in flight from which on a link is full.
const DEEP: u16 = 8;
/// A direction of a link that differs from the other by more is no link of one rate.
const APART_MAX: f64 = 0.15;
/// Bytes of a megabyte.
const MB: f64 = 1e6;

/// Which measurements, and what is to be planned.
#[derive(Debug, Clone, Args)]
pub(crate) struct CalibrateArgs {
    /// What `netraid bench transport --json` printed: processor time of both sides; if a second one is
    /// given with `--depth 1`, what is spent on each batch of requests is told from it
    #[arg(long, value_name = "FILE", num_args = 1..=2, required = true)]
    transport: Vec<PathBuf>,
    /// What `netraid bench parity --json` printed
    #[arg(long, value_name = "FILE")]
    parity: PathBuf,
    /// What `netraid bench member URL --json` printed of a member behind its link: with 8 requests
    /// in flight or more for the link's rate, with `--depth 1` for its latency; without any, what
    /// is planned is on this machine; with the latency alone, links are not what limits
    #[arg(long, value_name = "FILE", num_args = 1..)]
    member: Vec<PathBuf>,
    /// What `netraid bench volume --level 1 --members 2 --json` printed: what the array itself spends
    #[arg(long, value_name = "FILE")]
    array: Option<PathBuf>,
    /// Disks of the site, one for each agent
    #[arg(long, value_name = "DISKS", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    disks: u8,
    /// Bytes of each disk
    #[arg(long, value_name = "SIZE", default_value = "1TiB", value_parser = size::parse)]
    disk_size: u64,
    /// MB a second that each disk reads; without it, as memory does
    #[arg(long, value_name = "MB_PER_SECOND", default_value_t = 1e6)]
    disk_read: f64,
    /// MB a second that each disk writes
    #[arg(long, value_name = "MB_PER_SECOND", default_value_t = 1e6)]
    disk_write: f64,
    /// Bytes of the log on each disk; 0 for an array without one
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size::parse_or_zero)]
    log_size: u64,
    /// Requests at once
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// Where requests are
    #[arg(long, value_enum, default_value_t = Where::Random)]
    offsets: Where,
    /// All hosts are processes of one machine with so many processors
    #[arg(long, value_name = "PROCESSORS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    one_machine: Option<u16>,
    /// Processors of each agent
    #[arg(long, value_name = "PROCESSORS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    agent_processors: u16,
    /// Mbit a second of the client's link; without it, that is not what limits
    #[arg(long, value_name = "MBIT_PER_SECOND")]
    client_link: Option<f64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Where {
    Sequential,
    Random,
}

#[derive(Deserialize)]
struct Transport {
    depth: u32,
    fits: Vec<Fit>,
}

#[derive(Deserialize)]
struct Fit {
    write: bool,
    transport: String,
    client_us_a_request: f64,
    client_s_a_gb: f64,
    server_us_a_request: f64,
    server_s_a_gb: f64,
}

#[derive(Deserialize)]
struct Parity {
    series: Vec<Series>,
}

#[derive(Deserialize)]
struct Series {
    work: String,
    processors: usize,
    peak_gb_per_s: f64,
}

#[derive(Deserialize)]
struct Bench {
    depth: u16,
    subjects: Vec<Subject>,
}

#[derive(Deserialize)]
struct Subject {
    results: Vec<Figures>,
}

#[derive(Deserialize)]
struct Figures {
    is_write: bool,
    request_bytes: u32,
    mb_per_s: f64,
    latency_us_p50: f64,
    client_cpu_s_per_gb: f64,
}

pub(crate) fn run(args: &CalibrateArgs, output: Output) -> Result<()> {
    let measurements = args.measurements()?;
    let text = measurements.site(&args.shape())?;
    let table = read_table(&text)?;
    output.document(&json!({ "site": table }), || text)
}

impl CalibrateArgs {
    fn shape(&self) -> Shape {
        Shape {
            disks: self.disks.into(),
            disk_bytes: self.disk_size,
            disk_mb_s: [self.disk_read, self.disk_write],
            log_bytes: self.log_size,
            outstanding: self.depth.into(),
            offsets: match self.offsets {
                Where::Sequential => Offsets::Sequential,
                Where::Random => Offsets::Random,
            },
            one_machine: self.one_machine.map(usize::from),
            client_rate_mbit_s: self.client_link,
            agent_processors: self.agent_processors.into(),
        }
    }

    fn measurements(&self) -> Result<Measurements> {
        let parity: Parity = read(&self.parity)?;
        let members = self.member.iter().map(read).collect::<Result<Vec<Bench>>>()?;
        let (many, alone) = self.transports()?;
        let peak = |work| {
            let mut series = parity.series.iter();
            let series = series.find(|series| series.work == work && series.processors == 1);
            series.map(|series| series.peak_gb_per_s * 1e9).with_context(|| {
                format!(
                    "{}: has no {work}; give what `netraid bench parity --json` prints",
                    self.parity.display()
                )
            })
        };
        Ok(Measurements {
            costs: many.costs,
            costs_at: many.depth,
            alone: alone.map(|alone| alone.costs),
            xor_bytes_s: peak("xor")?,
            checksum_bytes_s: peak("checksum")?,
            link_bytes_s: link(&members)?,
            small_read_s: find(&members, |depth| depth == 1, false, true)
                .map(|figures| figures.latency_us_p50 / 1e6),
            array: self.array.as_ref().map(small_array).transpose()?,
        })
    }
}

/// What requests over one path cost, reads and writes, with so many in flight.
struct Path {
    depth: u32,
    costs: [Costs; 2],
}

impl CalibrateArgs {
    /// With many requests in flight, and with one.
    fn transports(&self) -> Result<(Path, Option<Path>)> {
        let (mut many, mut alone) = (None, None);
        for path in &self.transport {
            let Transport { depth, fits } = read(path)?;
            let shown = path.display();
            let cost = |write| {
                let mut fits = fits.iter();
                let fit = fits.find(|fit| fit.write == write && fit.transport == "iSCSI");
                let fit = fit.with_context(|| {
                    format!("{shown}: has no fit of iSCSI; give what `netraid bench transport --json` prints")
                })?;
                if fit.server_us_a_request <= 0.0 && fit.server_s_a_gb <= 0.0 {
                    bail!(
                        "{shown}: has no processor time of the target; measure with --server-pid or --whole-machine, or on a machine of its kind without an address"
                    );
                }
                Ok(fit.costs())
            };
            let place = if depth == 1 { &mut alone } else { &mut many };
            let costs = [cost(false)?, cost(true)?];
            if place.replace(Path { depth, costs }).is_some() {
                bail!(
                    "{shown}: is the second one of its kind; give one with --depth 1 and one with more"
                );
            }
        }
        let many = many.context("--transport: all files are of --depth 1; give one with more")?;
        Ok((many, alone))
    }
}

impl Fit {
    fn costs(&self) -> Costs {
        let time =
            |us: f64, s_a_gb: f64| Time { request_s: us.max(0.01) / 1e6, byte_s: s_a_gb / 1e9 };
        Costs {
            client: time(self.client_us_a_request, self.client_s_a_gb),
            agent: time(self.server_us_a_request, self.server_s_a_gb),
        }
    }
}

fn read<T: DeserializeOwned>(path: &PathBuf) -> Result<T> {
    let shown = || path.display().to_string();
    let len = fs::metadata(path).with_context(shown)?.len();
    if len > DOCUMENT_BYTES_MAX {
        bail!(
            "{} has {len} bytes, more than {DOCUMENT_BYTES_MAX}; give what `netraid bench --json` prints",
            shown()
        );
    }
    let text = fs::read_to_string(path).with_context(shown)?;
    serde_json::from_str(&text).with_context(|| {
        format!("{}: not what `netraid bench --json` prints for this option; measure again with this program", shown())
    })
}

/// Figures of small or large requests in runs of some depth.
fn find(
    members: &[Bench],
    depth: impl Fn(u16) -> bool,
    is_write: bool,
    is_small: bool,
) -> Option<&Figures> {
    let runs = members.iter().filter(|run| depth(run.depth));
    let mut figures = runs.flat_map(|run| &run.subjects).flat_map(|subject| &subject.results);
    figures.find(|one| one.is_write == is_write && (one.request_bytes == SMALL) == is_small)
}

/// Bytes a second from and to a member; none, where the latency alone was measured.
fn link(members: &[Bench]) -> Result<Option<[f64; 2]>> {
    let has_latency_alone = |run: &Bench| {
        let mut results = run.subjects.iter().flat_map(|one| &one.results);
        run.depth == 1 && results.all(|figures| figures.request_bytes == SMALL)
    };
    if members.iter().all(has_latency_alone) {
        return Ok(None);
    }
    let rate = |is_write| {
        find(members, |depth| depth >= DEEP, is_write, false).map(|one| one.mb_per_s * MB)
    };
    let (Some(read), Some(write)) = (rate(false), rate(true)) else {
        bail!(
            "--member: no file has large reads and writes at depth {DEEP} or more; measure with `netraid bench member URL --overwrite --depth 16 --json`"
        );
    };
    if (read - write).abs() > APART_MAX * read.max(write) {
        bail!(
            "--member: reads have {:.1} MB/s and writes {:.1}; a link has one rate for both, so something else limits one of them: measure again, or give --disk-read and --disk-write and a link without that disk",
            read / MB,
            write / MB
        );
    }
    Ok(Some([read, write]))
}

/// What a small array's requests cost its client.
fn small_array(path: &PathBuf) -> Result<SmallArray> {
    let runs: [Bench; 1] = [read(path)?];
    let cost = |is_write, is_small| {
        let figures = find(&runs, |_| true, is_write, is_small);
        figures.map(|one| one.client_cpu_s_per_gb / 1e9 * f64::from(one.request_bytes))
    };
    let (Some(read), Some(write)) = (cost(false, true), cost(true, true)) else {
        bail!(
            "{}: lacks small reads or writes; measure with `netraid bench volume --level 1 --members 2 --json`",
            path.display()
        );
    };
    let is_usual = |one: &&Figures| one.request_bytes == SMALL || one.request_bytes == LARGE;
    if let Some(other) =
        runs[0].subjects.iter().flat_map(|one| &one.results).find(|one| !is_usual(one))
    {
        bail!(
            "{}: has requests of {} bytes; measure those of {SMALL} and {LARGE}",
            path.display(),
            other.request_bytes
        );
    }
    let large_client_s = cost(false, false).zip(cost(true, false)).map(<[f64; 2]>::from);
    Ok(SmallArray { level: 10, members: 2, client_s: [read, write], large_client_s })
}
