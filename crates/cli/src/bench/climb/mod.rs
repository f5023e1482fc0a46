//! `netraid bench climb`: part by part up to an export's client, in one run; which part limits a volume, by
//! how much, and what would be next.
//!
//! Memory and parity; the transport; one member by requests in flight; one to all members, at once and as
//! volumes; an export by the size of requests. What is compared is measured in turns.

mod gauge;
mod judge;
mod members;
mod record;
mod report;
mod rungs;
mod text;
mod verdicts;

use std::{
    env,
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    time::{Instant, SystemTime},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use netraid_block::redact_addresses;
use netraid_raid::{geometry::Level, member::MEMBERS_MAX};

use super::{Options, REQUEST_LEN_MAX, parity, transport};
use crate::{create::parse_level, machine, output::Output, secret::SecretArgs, signal::Stop, size};
use members::Members;
use record::Climb;
use rungs::Rungs;

/// Shortest and longest time of a point in a round: while bare TCP runs, nobody answers the members.
const SECONDS: std::ops::RangeInclusive<f64> = 0.01..=10.0;
/// Milliseconds of a point of parity: so many times shorter than others suffices for bytes in memory.
const PARITY_MS_OF_SECOND: f64 = 10.0;

#[derive(Debug, Clone, Args)]
pub(super) struct ClimbArgs {
    /// Members to climb on: iscsi://[user@]host[:port]/iqn/lun; without any, targets of our own in memory
    #[arg(value_name = "URL")]
    urls: Vec<String>,
    /// Members of our own
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=32))]
    members: u8,
    /// Level of volumes beside level 0
    #[arg(long, default_value = "5", value_parser = parse_level)]
    level: Level,
    /// Requests in flight, but where one member is measured by them
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    depth: u16,
    /// Requests in flight that one member is measured with
    #[arg(long, value_name = "DEPTHS", value_delimiter = ',', default_value = "1,2,4,8,16",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    depths: Vec<u16>,
    /// Bytes of a request to members and volumes
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = size::parse)]
    large: u64,
    /// Bytes of a request of the export's client
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = size::parse,
          default_value = "4KiB,8KiB,16KiB,32KiB,64KiB,128KiB,256KiB,512KiB,1MiB,2MiB,4MiB")]
    requests: Vec<u64>,
    /// Seconds of one point in one round, 0.01 to 10: with 0.5, all of it takes some three minutes
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Rounds; in each, all points of a rung run once
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Bytes from the start of members and volumes that are used; of slow ones less
    #[arg(long, default_value = "128MiB", value_parser = size::parse)]
    span: u64,
    /// Threads that drive members and volumes, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    /// Sessions to each member, as of `netraid attach`
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    sessions: u8,
    /// Filters before each member of our own, as of `netraid target --filter`
    #[arg(long, value_name = "FILTERS", conflicts_with = "urls")]
    filter: Option<String>,
    /// OVERWRITE the data of the given members: they are left empty
    #[arg(long)]
    overwrite: bool,
    /// Processes on this machine whose processor time counts as the members'
    #[arg(long, value_name = "PID", num_args = 1..)]
    server_pid: Vec<u32>,
    /// Write a page with figures of all rungs
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    #[command(flatten)]
    secrets: SecretArgs,
}

pub(super) fn run(args: &ClimbArgs, output: Output) -> Result<()> {
    args.check()?;
    // What cannot be written is known before anything is measured.
    let file = match &args.report {
        Some(path) => Some((path, open_report(path).with_context(|| path.display().to_string())?)),
        None => None,
    };
    let climb = crate::runtime_of(args.threads)?.block_on(climb(args, output))?;
    if let Some((path, mut file)) = file {
        let page = report::page(&climb)?;
        let written = file.set_len(0).and_then(|()| file.write_all(page.as_bytes()));
        written.with_context(|| path.display().to_string())?;
    }
    output.document(&climb, || text::text(&climb))
}

/// Opens the file of a report. An earlier report in it stays until there is another one.
fn open_report(path: &Path) -> Result<File> {
    let file = File::options().write(true).create(true).truncate(false).open(path)?;
    ensure!(file.metadata()?.is_file(), "it is no file; a report goes to a new one, or over one");
    Ok(file)
}

async fn climb(args: &ClimbArgs, output: Output) -> Result<Climb> {
    let stop = Stop::listen()?;
    let (began, started) = (SystemTime::now(), Instant::now());
    let machine = machine::this();
    // Members that cannot be used are known before anything else is measured.
    let members = Members::gather(args).await?;
    let rungs = Rungs { args, members: &members, stop: &stop, output };
    let measured = rungs.climb().await;
    let left = members.leave().await;
    let (parity, transport, member, steps, end_to_end) = measured?;
    left?;
    let mut climb = Climb {
        version: env!("CARGO_PKG_VERSION"),
        began: httpdate::fmt_http_date(began),
        command: redact_addresses(&env::args().collect::<Vec<_>>().join(" ")),
        took_s: started.elapsed().as_secs_f64(),
        machine,
        members: members.shown(),
        level: args.level.number(),
        depth: args.depth,
        threads: args.threads,
        seconds: args.seconds,
        rounds: args.rounds,
        request_bytes: args.large()?,
        parity,
        transport,
        member,
        steps,
        end_to_end,
        bends: Vec::new(),
        verdicts: Vec::new(),
    };
    verdicts::judge(&mut climb);
    Ok(climb)
}

impl ClimbArgs {
    fn check(&self) -> Result<()> {
        if !SECONDS.contains(&self.seconds) {
            bail!("--seconds {}: give {} to {}", self.seconds, SECONDS.start(), SECONDS.end());
        }
        if !self.urls.is_empty() && !self.overwrite {
            bail!(
                "the members at {} addresses would be written to; give --overwrite to lose what is on them",
                self.urls.len()
            );
        }
        if self.urls.len() > MEMBERS_MAX {
            bail!("members at {} addresses: give at most {MEMBERS_MAX}", self.urls.len());
        }
        let large = self.large()?;
        let sizes = self.sizes()?;
        let most = u64::from(sizes.into_iter().fold(large, u32::max));
        if self.span < 2 * most || self.span > 1 << 35 {
            bail!("--span {}: give two of the largest requests, {}, to 32GiB", self.span, 2 * most);
        }
        Ok(())
    }

    fn large(&self) -> Result<u32> {
        self.options(Vec::new(), self.depth).large()
    }

    /// Bytes of requests of the export's client.
    fn sizes(&self) -> Result<Vec<u32>> {
        let size = |len: &u64| match u32::try_from(*len) {
            Ok(size) if (512..=REQUEST_LEN_MAX).contains(&size) && size.is_multiple_of(512) => {
                Ok(size)
            }
            Ok(_) | Err(_) => bail!("--requests {len}: give multiples of 512, up to 4MiB"),
        };
        self.requests.iter().map(size).collect()
    }

    /// Sizes of requests for the transport: those of an export's client that it takes.
    fn transport(&self) -> transport::TransportArgs {
        let requests = vec![4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
        let (depth, seconds, rounds) = (self.depth, self.seconds, self.rounds);
        let far = transport::Far::default();
        transport::TransportArgs { depth, requests, seconds, rounds, random: false, far }
    }

    fn parity(&self) -> parity::ParityArgs {
        let milliseconds = (self.seconds * PARITY_MS_OF_SECOND).ceil().clamp(1.0, 5.0);
        // Between 1 and 5.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let milliseconds = milliseconds as u64;
        parity::ParityArgs { milliseconds, walk: None }
    }

    /// As the other benchmarks take them.
    fn options(&self, server_pid: Vec<u32>, depth: u16) -> Options {
        Options {
            depth,
            seconds: self.seconds,
            requests: None,
            rounds: self.rounds,
            only: Vec::new(),
            beside: None,
            beside_depth: depth,
            sessions: self.sessions,
            large: self.large,
            span: self.span,
            overwrite: true,
            server_pid,
            whole_machine: false,
            no_limit: true,
            limit_connections: 1,
            threads: self.threads,
            secrets: self.secrets.clone(),
        }
    }
}
