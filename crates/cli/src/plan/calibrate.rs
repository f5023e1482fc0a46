//! `netraid plan calibrate`: a site's file from what `netraid bench` measured.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use netraid_agent::calibrate::Calibration;
use netraid_control::units::Rate;
use netraid_model::{
    config::{Offsets, read_table},
    plan::calibrate::{ArrayFigures, Costs, MEMORY_MB_S, Measurements, Shape, SmallArray, Time},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::json;

use crate::{bench::median, output::Output, size};

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
/// Most processor seconds of a request.
const REQUEST_S_MAX: f64 = 60.0;
/// Bounds of figures of a small array: MB a second, and processor seconds a GB.
const FIGURE_MAX: f64 = 1e6;
const MB_PER_S_MIN: f64 = 1e-3;
/// Bytes of the scattered requests of `netraid agent calibrate`.
const SCATTERED_LEN: f64 = 65_536.0;

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
    /// in flight or more for the link's rate, with `--depth 1` for its latency. Without a rate by it or by --agent,
    /// links are not what limits
    #[arg(long, value_name = "FILE", num_args = 1..)]
    member: Vec<PathBuf>,
    /// What `netraid bench volume --level 1 --members 2 --json` printed: what the array itself spends; with
    /// --one-machine here and --whole-machine there, also what targets spend that are not alone on their machine
    #[arg(long, value_name = "FILE")]
    array: Option<PathBuf>,
    /// The same of `--level 5 --members 5`: what check data takes beside computing it
    #[arg(long, value_name = "FILE")]
    parity_array: Option<PathBuf>,
    /// What `netraid agent calibrate --json` printed, of each host with disks: the slowest of them says what disks do,
    /// and, without a rate by --member, what links do
    #[arg(long, value_name = "FILE", num_args = 1..)]
    agent: Vec<PathBuf>,
    /// Disks of the site, one for each agent
    #[arg(long, value_name = "DISKS", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    disks: u8,
    /// Bytes of each disk
    #[arg(long, value_name = "SIZE", default_value = "1TiB", value_parser = size::parse)]
    disk_size: u64,
    /// MB a second that each disk reads; without it and --agent, as memory does
    #[arg(long, value_name = "MB_PER_SECOND")]
    disk_read: Option<f64>,
    /// MB a second that each disk writes
    #[arg(long, value_name = "MB_PER_SECOND")]
    disk_write: Option<f64>,
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
    points: Vec<Point>,
}

/// Requests of one length.
#[derive(Deserialize)]
struct Point {
    write: bool,
    request_bytes: u32,
    /// By rounds.
    iscsi: Vec<Spent>,
}

#[derive(Deserialize)]
struct Spent {
    client_us: f64,
    server_us: f64,
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
    what: String,
    span_bytes: u64,
    results: Vec<Figures>,
}

#[derive(Deserialize)]
struct Figures {
    is_write: bool,
    request_bytes: u32,
    mb_per_s: f64,
    latency_us_p50: f64,
    client_cpu_s_per_gb: f64,
    #[serde(default)]
    server_cpu_s_per_gb: f64,
}

pub(crate) fn run(args: &CalibrateArgs, output: Output) -> Result<()> {
    let agents = args.agents()?;
    let measurements = args.measurements(&agents)?;
    let text = measurements.site(&args.shape(&agents))?;
    let table = read_table(&text)?;
    output.document(&json!({ "site": table }), || text)
}

impl CalibrateArgs {
    fn shape(&self, agents: &[Calibration]) -> Shape {
        let disks = Disks::slowest(agents);
        Shape {
            disks: self.disks.into(),
            disk_bytes: self.disk_size,
            disk_mb_s: [
                self.disk_read.unwrap_or(disks.read_mb_s),
                self.disk_write.unwrap_or(disks.write_mb_s),
            ],
            disk_seek_ms: disks.seek_ms,
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

    fn agents(&self) -> Result<Vec<Calibration>> {
        let agents = self.agent.iter().map(|path| {
            let measured: Calibration = read_what(path, "netraid agent calibrate --json")?;
            let rates = [
                measured.sequential_read,
                measured.sequential_write,
                measured.scattered_read,
                measured.scattered_write,
                measured.network.unwrap_or(measured.sequential_read),
            ];
            if rates.contains(&Rate::ZERO) {
                bail!("{}: has a rate of nothing; measure again", path.display());
            }
            Ok(measured)
        });
        agents.collect()
    }

    fn measurements(&self, agents: &[Calibration]) -> Result<Measurements> {
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
            link_bytes_s: link(&members)?.or_else(|| {
                let slowest = agents.iter().filter_map(|agent| agent.network).min();
                slowest.map(|rate| [rate.0 as f64; 2])
            }),
            small_read_s: find(&members, |depth| depth == 1, false, true)
                .map(|figures| figures.latency_us_p50 / 1e6),
            array: small_array(self.array.as_ref(), MIRROR)?,
            parity_array: small_array(self.parity_array.as_ref(), LEVEL_5)?,
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
            let Transport { depth, points } = read(path)?;
            let shown = path.display();
            let cost = |write| {
                let of_ends = ends(&points, write).with_context(|| {
                    format!("{shown}: has no two lengths of requests, or times that make no sense; give what `netraid bench transport --json` prints")
                })?;
                if of_ends.iter().any(|end| end.spent[1] <= 0.0) {
                    bail!(
                        "{shown}: has no processor time of the target; measure with --server-pid or --whole-machine, or on a machine of its kind without an address"
                    );
                }
                Ok(costs(&of_ends))
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

/// What requests of one length cost, client and server, in seconds.
struct End {
    bytes: f64,
    spent: [f64; 2],
}

/// The shortest and the longest requests.
fn ends(points: &[Point], write: bool) -> Option<[End; 2]> {
    let end = |point: &Point| {
        let of = |host: fn(&Spent) -> f64| median(point.iscsi.iter().map(host).collect()) / 1e6;
        let spent = [of(|one| one.client_us), of(|one| one.server_us)];
        End { bytes: f64::from(point.request_bytes), spent }
    };
    let points = || points.iter().filter(|one| one.write == write && !one.iscsi.is_empty());
    let shortest = points().min_by_key(|one| one.request_bytes)?;
    let longest = points().max_by_key(|one| one.request_bytes)?;
    let ends =
        (shortest.request_bytes < longest.request_bytes).then(|| [end(shortest), end(longest)])?;
    let can_be = |end: &End| end.spent.iter().all(|s| (0.0..=REQUEST_S_MAX).contains(s));
    ends.iter().all(can_be).then_some(ends)
}

/// The line through both: between them requests cost up to a quarter less, because caches hold them.
fn costs([short, long]: &[End; 2]) -> Costs {
    let time = |host: usize| {
        let byte_s = (long.spent[host] - short.spent[host]) / (long.bytes - short.bytes);
        let byte_s = byte_s.max(0.0);
        let request_s = short.spent[host] - short.bytes * byte_s;
        Time { request_s: request_s.max(0.01e-6), byte_s }
    };
    Costs { client: time(0), agent: time(1) }
}

/// What disks do.
struct Disks {
    read_mb_s: f64,
    write_mb_s: f64,
    seek_ms: f64,
}

impl Disks {
    /// Those of the slowest of all hosts; memory, if there is none.
    fn slowest(agents: &[Calibration]) -> Self {
        let least = |of: fn(&Calibration) -> Rate| agents.iter().map(of).min();
        let mb_s = |of| least(of).map_or(MEMORY_MB_S, |rate| rate.0 as f64 / MB);
        // What scattered requests take longer than others of their length.
        let seek_s = |agent: &Calibration| {
            let longer = |scattered: Rate, in_order: Rate| {
                let each = |rate: Rate| SCATTERED_LEN / rate.0 as f64;
                (each(scattered) - each(in_order)).max(0.0)
            };
            let read = longer(agent.scattered_read, agent.sequential_read);
            f64::midpoint(read, longer(agent.scattered_write, agent.sequential_write))
        };
        Self {
            read_mb_s: mb_s(|agent| agent.sequential_read),
            write_mb_s: mb_s(|agent| agent.sequential_write),
            seek_ms: agents.iter().map(seek_s).fold(0.0, f64::max) * 1e3,
        }
    }
}

fn read<T: DeserializeOwned>(path: &PathBuf) -> Result<T> {
    read_what(path, "netraid bench --json")
}

fn read_what<T: DeserializeOwned>(path: &PathBuf, what: &str) -> Result<T> {
    let shown = || path.display().to_string();
    let len = fs::metadata(path).with_context(shown)?.len();
    if len > DOCUMENT_BYTES_MAX {
        bail!(
            "{} has {len} bytes, more than {DOCUMENT_BYTES_MAX}; give what `{what}` prints",
            shown()
        );
    }
    let text = fs::read_to_string(path).with_context(shown)?;
    serde_json::from_str(&text).with_context(|| {
        format!(
            "{}: not what `{what}` prints for this option; measure again with this program",
            shown()
        )
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

/// An array that calibrates.
struct Calibrating {
    /// As the model has it.
    level: u8,
    members: usize,
    /// What it may be called.
    levels: &'static [&'static str],
    /// How it is measured.
    how: &'static str,
}

const MIRROR: Calibrating =
    Calibrating { level: 10, members: 2, levels: &["1", "10"], how: "--level 1 --members 2" };
const LEVEL_5: Calibrating =
    Calibrating { level: 5, members: 5, levels: &["5"], how: "--level 5 --members 5" };

/// What a small array's requests cost.
fn small_array(path: Option<&PathBuf>, wanted: Calibrating) -> Result<Option<SmallArray>> {
    let Some(path) = path else { return Ok(None) };
    let Calibrating { level, members, levels, how } = wanted;
    let how = format!("measure with `netraid bench volume {how} --json`");
    let shown = path.display();
    let runs: [Bench; 1] = [read(path)?];
    let [subject] = runs[0].subjects.as_slice() else {
        bail!("{shown}: has {} arrays instead of one; {how}", runs[0].subjects.len());
    };
    // Of addresses it is not told which level they are.
    let names = levels.iter().map(|level| format!("level {level} of {members} members"));
    let mut names = names.chain([format!("array of {members} members")]);
    if !names.any(|name| subject.what.starts_with(&name)) || subject.what.contains("no log") {
        bail!("{shown}: is of '{}', not of {members} members with a log; {how}", subject.what);
    }
    let wrong = subject.results.iter().find(|one| !one.is_usable());
    if let Some(Figures { request_bytes, .. }) = wrong {
        bail!(
            "{shown}: requests of {request_bytes} bytes, or their rates or times, make no sense: there are those of {SMALL} and {LARGE}, and figures from 0 to {FIGURE_MAX}; {how}"
        );
    }
    let figures = |is_small| {
        let [read, write] = [false, true].map(|is_write| find(&runs, |_| true, is_write, is_small));
        let both = [read?, write?];
        let seconds =
            |of: fn(&Figures) -> f64| both.map(|one| of(one) / 1e9 * f64::from(one.request_bytes));
        Some(ArrayFigures {
            client_s: seconds(|one| one.client_cpu_s_per_gb),
            agents_s: seconds(|one| one.server_cpu_s_per_gb),
            rate_mb_s: both.map(|one| one.mb_per_s),
        })
    };
    let small =
        figures(true).with_context(|| format!("{shown}: lacks small reads or writes; {how}"))?;
    let (outstanding, span_bytes) = (runs[0].depth.into(), subject.span_bytes);
    let large = figures(false);
    Ok(Some(SmallArray { level, members, outstanding, span_bytes, small, large }))
}

impl Figures {
    /// Whether it is of requests that calibrate, and its figures can be.
    fn is_usable(&self) -> bool {
        let figures = [self.mb_per_s, self.client_cpu_s_per_gb, self.server_cpu_s_per_gb];
        [SMALL, LARGE].contains(&self.request_bytes)
            && figures.iter().all(|figure| (0.0..=FIGURE_MAX).contains(figure))
            && self.mb_per_s >= MB_PER_S_MIN
    }
}
