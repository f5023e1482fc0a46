//! `netraid create`: labels members as a new array.

use anyhow::Result;
use clap::Args;
use netraid_block::Pool;
use netraid_engine::array::{self, CreateOptions};
use netraid_raid::geometry::Level;

use crate::{member::MemberArgs, output::Output, runtime, size};

#[derive(Debug, Clone, Args)]
pub(crate) struct CreateArgs {
    /// Name of the array
    name: String,
    /// 0 (stripes), 1 (mirror) or 5 (rotated parity)
    #[arg(long, value_parser = parse_level)]
    level: Level,
    /// Bytes that lie together on one member
    #[arg(long, default_value = "64KiB", value_parser = parse_chunk)]
    chunk: u32,
    /// Take members that are in use, and members of very different sizes: what is on them is lost
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    members: MemberArgs,
}

pub(crate) fn run(args: &CreateArgs, output: Output) -> Result<()> {
    let options = CreateOptions {
        name: args.name.clone(),
        level: args.level,
        chunk_len: args.chunk,
        force: args.force,
    };
    let members = args.members.configs()?;
    let report = runtime()?.block_on(array::create(options, members, Pool::new()))?;
    output.document(&report, || {
        let members: String = report.members.iter().map(|url| format!("  {url}\n")).collect();
        format!(
            "array '{}', level {}, {} in {} members:\n{members}",
            report.name,
            report.level,
            size::show(report.capacity_bytes),
            report.members.len()
        )
    })
}

pub(crate) fn parse_level(text: &str) -> Result<Level> {
    let level = text.parse().ok().and_then(Level::from_number);
    level.ok_or_else(|| anyhow::anyhow!("level '{text}': give 0, 1 or 5"))
}

fn parse_chunk(text: &str) -> Result<u32> {
    Ok(u32::try_from(size::parse(text)?)?)
}
