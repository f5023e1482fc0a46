//! `netraid create`: labels members as a new array.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use netraid_engine::array::{self, CreateOptions, CreateReport, Log};
use netraid_raid::geometry::{CHUNK_LEN_MAX, Level};

use crate::{member::MemberArgs, output::Output, runtime, size};

/// What an array needs is shown in whole mebibytes.
const SHOWN_LEN: u64 = 1 << 20;

#[derive(Debug, Clone, Args)]
pub(crate) struct CreateArgs {
    /// Name of the array
    name: String,
    /// 0 (stripes), 1 (mirror), 5 (rotated parity), 6 (two parities) or 10 (striped mirrors: of N
    /// members, the first and the one N/2 behind it have the same data, and so on)
    #[arg(long, value_parser = parse_level)]
    level: Level,
    /// Bytes that lie together on one member: 4KiB to 16MiB, a power of two. The usual is 64KiB; in an array with a log
    /// 128KiB on members of more than 1TiB, and as much more on larger ones that it has no more than 2^25 stripes
    #[arg(long, value_parser = parse_chunk)]
    chunk: Option<u32>,
    /// Write through a log: no write hole, checksums, and members that were away catch up by
    /// themselves. The usual, but for level 0, which cannot have one; levels 6 and 10 must
    #[arg(long, value_enum)]
    log: Option<Switch>,
    /// Bytes of the log on each member; the usual is a 64th of it, at least 32MiB
    /// (or a 16th) and at most 256MiB
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    log_size: Option<u64>,
    /// Checksums of all that is stored; an array with a log has them
    #[arg(long, value_enum)]
    checksums: Option<Checksums>,
    /// Take members that are in use, and members of very different sizes: what is on them is lost
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    members: MemberArgs,
}

/// Whether something is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Checksums {
    Crc32c,
    None,
}

impl CreateArgs {
    fn log(&self) -> Result<Log> {
        let usual = if self.level == Level::Raid0 { Switch::Off } else { Switch::On };
        match (self.log.unwrap_or(usual), self.checksums) {
            (Switch::On, Some(Checksums::None)) => bail!(
                "--checksums none: an array with a log has crc32c; leave it out, or give --log off"
            ),
            (Switch::Off, Some(Checksums::Crc32c)) => bail!(
                "--checksums crc32c: an array without a log has none; leave it out, or give --log on"
            ),
            (Switch::Off, _) if self.log_size.is_some() => {
                bail!("--log-size: the array has no log; leave it out, or give --log on")
            }
            (Switch::On, _) => Ok(Log::On(self.log_size)),
            (Switch::Off, _) => Ok(Log::Off),
        }
    }
}

pub(crate) fn run(args: &CreateArgs, output: Output) -> Result<()> {
    let options = CreateOptions {
        name: args.name.clone(),
        level: args.level,
        chunk_len: args.chunk,
        force: args.force,
        keep_opened: false,
        log: args.log()?,
    };
    let members = args.members.configs()?;
    let report = runtime()?.block_on(array::create(options, members, netraid_engine::pool()))?;
    output.document(&report, || {
        let members: String = report.members.iter().map(|url| format!("  {url}\n")).collect();
        format!(
            "array '{}', level {}, {} in {} members, chunks of {}, {}, format {}:\n{members}{}",
            report.name,
            report.level,
            size::show(report.capacity_bytes),
            report.members.len(),
            size::show(report.chunk_bytes.into()),
            show_log(report.log_bytes),
            report.format,
            show_needs(&report),
        )
    })
}

/// Whether an array has a log, in words.
pub(crate) fn show_log(bytes: u64) -> String {
    if bytes == 0 { "no log".into() } else { format!("a log of {}", size::show(bytes)) }
}

/// What an array with a log needs of the host that attaches it, in words.
fn show_needs(report: &CreateReport) -> String {
    let CreateReport { memory_bytes, opening_bytes, reserved_bytes, .. } = report;
    if *memory_bytes == 0 {
        return String::new();
    }
    format!(
        "labels, tables and log take {} of each member\n\
         attaching it takes {} of memory for its table of stripes, beside caches, and reads {} of it from each member\n",
        size::show(reserved_bytes.next_multiple_of(SHOWN_LEN)),
        size::show(memory_bytes.next_multiple_of(SHOWN_LEN)),
        size::show(opening_bytes.next_multiple_of(SHOWN_LEN)),
    )
}

pub(crate) fn parse_level(text: &str) -> Result<Level> {
    let level = text.parse().ok().and_then(Level::from_number);
    level.ok_or_else(|| anyhow::anyhow!("level '{text}': give 0, 1, 5, 6 or 10"))
}

fn parse_chunk(text: &str) -> Result<u32> {
    let chunk = u32::try_from(size::parse(text)?).ok().filter(|len| *len <= CHUNK_LEN_MAX);
    let most = size::show(CHUNK_LEN_MAX.into());
    chunk.ok_or_else(|| anyhow::anyhow!("a chunk of {text}: give 4KiB to {most}"))
}
