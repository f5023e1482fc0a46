//! `netraid quickstart`: targets, an array over them and its export, all on this machine, each a
//! process of its own; with `--check` taken through a loss, a rebuild and a restart.

mod check;
mod cluster;
mod house;

use std::{
    fs::Permissions,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;

use crate::{output::Output, signal::Stop, size};
use cluster::Cluster;
use house::House;

/// What the volume's size is when the user does not say.
const SIZE: &str = "1GiB";

#[derive(Debug, Clone, Args)]
pub(crate) struct QuickstartArgs {
    /// Keep the members' files in this directory; without it they go away at the end
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Number of members
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=32))]
    members: u8,
    /// Level: 0, 1, 5, 6 or 10
    #[arg(long, default_value_t = 5)]
    level: u8,
    /// Size of the volume
    #[arg(long, default_value = SIZE, value_parser = size::parse)]
    size: u64,
    /// A mediator and agents instead of plain targets, with a volume, and a file by name; --members
    /// is the number of agents
    #[arg(long, conflicts_with = "level")]
    cluster: bool,
    /// Go through a loss, a rebuild and a restart, verify all data at each step, and exit
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &QuickstartArgs, output: Output) -> Result<()> {
    if !args.cluster {
        // Before a directory is made for it.
        House::check(args)?;
    }
    let temporary;
    let dir: &Path = match &args.dir {
        Some(dir) => {
            std::fs::create_dir_all(dir)
                .with_context(|| format!("cannot make {}", dir.display()))?;
            dir
        }
        None => {
            let mut builder = tempfile::Builder::new();
            builder.prefix("netraid-quickstart.").permissions(Permissions::from_mode(0o700));
            temporary = builder.tempdir();
            temporary.as_ref().map_err(|error| anyhow::anyhow!("no directory: {error}"))?.path()
        }
    };
    // A signal must not end this process before its children and its directory are gone. The
    // runtime only listens for it: the rest is straight-line work.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut stop = runtime.block_on(async { Stop::listen() })?;
    if args.cluster {
        let mut cluster = Cluster::start(args, dir, stop.clone())?;
        if args.check {
            return cluster::check(cluster, output);
        }
        cluster::show(&mut cluster, output)?;
        runtime.block_on(stop.wait());
        return cluster.close();
    }
    let mut house = House::new(args, dir, stop.clone())?;
    if args.check {
        return check::run(args, house, output);
    }
    if !house.start_targets()? {
        house.create()?;
    }
    house.attach()?;
    announce(args, &house, output)?;
    runtime.block_on(stop.wait());
    house.close()
}

fn announce(args: &QuickstartArgs, house: &House, output: Output) -> Result<()> {
    let (nbd, control) = (house.nbd()?, house.control());
    let document = json!({
        "event": "ready",
        "members": house.urls(),
        "exports": [{"kind": "nbd", "uri": nbd}],
        "control": control,
        "array": house.status()?,
    });
    output.announce(&document, || {
        let members: String = house.urls().iter().map(|url| format!("  {url}\n")).collect();
        let size = size::show(args.size);
        format!(
            "{} members:\n{members}level {} volume of {size}: {nbd}\n\n\
             try:  qemu-img info {nbd}\n      netraid status {control}\nCtrl-C ends it",
            args.members, args.level
        )
    });
    Ok(())
}
