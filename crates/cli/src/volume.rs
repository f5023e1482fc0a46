//! `netraid volume`: block volumes of a cluster.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use netraid_cluster::mediator::{Create, Kind, Mode};
use netraid_control::text::escaped;
use netraid_engine::array::{ArrayHandle, Event};
use netraid_files::{Cluster, Error, Volume, VolumeOptions};

use crate::{
    attach::{ExportArgs, Running, export, parse_pause},
    cluster::{AccessArgs, LayoutArgs, RateArgs, parse_duration, with_offer},
    names::{self, ListArgs, PathArgs},
    output::Output,
    runtime, runtime_of,
    signal::{Interrupted, NOT_CLOSED, Stop, settle, stop_with_parent, until_stopped},
    size,
    wait::{NotWaited, Shown, Work},
};

#[derive(Debug, Clone, Args)]
pub(crate) struct VolumeArgs {
    #[command(subcommand)]
    command: VolumeCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum VolumeCommand {
    /// Make a volume: agents, level, members and striping unit are chosen from what is asked for
    Create(CreateArgs),
    /// List a directory
    Ls(ListArgs),
    /// Show what a volume is, where, and why
    Stat(PathArgs),
    /// Remove a volume, and all that is in it
    Rm(VolumeRemoveArgs),
    /// Have lost members of a volume, or of data, replaced and rebuilt
    Heal(HealArgs),
    /// Run a volume and export it until told to stop
    Attach(Box<AttachArgs>),
}

#[derive(Debug, Clone, Args)]
struct CreateArgs {
    /// Absolute path: /directory/name
    path: String,
    /// Bytes
    #[arg(long, value_parser = size::parse)]
    size: u64,
    /// Make missing directories above it
    #[arg(short, long)]
    parents: bool,
    #[command(flatten)]
    layout: LayoutArgs,
    #[command(flatten)]
    rates: RateArgs,
    #[command(flatten)]
    access: AccessArgs,
}

#[derive(Debug, Clone, Args)]
struct VolumeRemoveArgs {
    /// Absolute paths
    #[arg(required = true)]
    paths: Vec<String>,
    /// Also when somebody uses it: they are fenced
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    access: AccessArgs,
}

#[derive(Debug, Clone, Args)]
struct HealArgs {
    /// Absolute path
    path: String,
    /// How long a member may be away before another segment takes its place
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    replace_after: Duration,
    /// How long the rebuild may take
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = parse_duration)]
    limit: Duration,
    /// Fence whoever has it open
    #[arg(long)]
    take_over: bool,
    #[command(flatten)]
    access: AccessArgs,
}

#[derive(Debug, Clone, Args)]
struct AttachArgs {
    /// Absolute path: /directory/name
    path: String,
    #[command(flatten)]
    exports: ExportArgs,
    /// Allow everybody in, also from other hosts
    #[arg(long, requires = "nbd")]
    insecure: bool,
    /// Change nothing
    #[arg(long)]
    read_only: bool,
    /// Fence whoever has it open
    #[arg(long)]
    take_over: bool,
    /// How long a member may be away before another segment takes its place: 30s, 10m, or `never`
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_patience)]
    replace_after: Patience,
    /// How long requests wait when so many members are away that the others cannot serve; the volume goes on by itself when
    /// enough are back, and fails when the time is over. 0: it fails at once. One without a log (level 0) or that is read
    /// only always does
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_pause)]
    pause: Duration,
    /// How long it goes on when the mediator is not heard of; the mediator's usual
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    term: Option<Duration>,
    /// Socket for `netraid status`, `fail`, `scrub`, ...: unix:PATH
    #[arg(long, value_name = "unix:PATH")]
    control: Option<String>,
    #[command(flatten)]
    rates: RateArgs,
    #[command(flatten)]
    access: AccessArgs,
    #[arg(long, hide = true)]
    exit_with_parent: bool,
}

#[derive(Debug, Clone, Copy)]
struct Patience(Option<Duration>);

fn parse_patience(text: &str) -> Result<Patience, String> {
    if text == "never" { Ok(Patience(None)) } else { parse_duration(text).map(Some).map(Patience) }
}

pub(crate) fn run(args: &VolumeArgs, output: Output) -> Result<()> {
    match &args.command {
        VolumeCommand::Create(args) => create(args, output),
        VolumeCommand::Ls(args) => names::list(args, output),
        VolumeCommand::Stat(args) => names::stat(args, output),
        VolumeCommand::Rm(args) => remove(args, output),
        VolumeCommand::Heal(args) => heal(args, output),
        VolumeCommand::Attach(args) => attach(args, output),
    }
}

fn create(args: &CreateArgs, output: Output) -> Result<()> {
    let cluster = args.access.cluster()?;
    let create = Create {
        path: args.path.clone(),
        kind: Kind::Volume,
        size_bytes: args.size,
        layout: args.layout.layout(&args.rates)?,
        parents: args.parents,
        upload: false,
        replaces: None,
    };
    let made = runtime()?.block_on(cluster.create(&create));
    let entry = made.map_err(|error| with_offer(error.into()))?;
    output.document(&entry, || names::describe(&entry))
}

fn remove(args: &VolumeRemoveArgs, output: Output) -> Result<()> {
    let cluster = args.access.cluster()?;
    let remove = async |path: &str| cluster.remove_volume(path, args.force).await;
    names::remove_each(&args.paths, remove, output)
}

/// What a signal leaves of a `heal`.
const HEALS_NO_MORE: &str = "the rebuild has ended with the command, and what it wrote stays: the next `netraid volume heal`, or \
     whoever opens the volume to write, goes on there";

/// Opens it to write, and closes it when all members hold everything.
fn heal(args: &HealArgs, output: Output) -> Result<()> {
    let cluster = args.access.cluster()?;
    let healed = async {
        let replace_after = Some(args.replace_after);
        let options = VolumeOptions {
            replace_after,
            take_over: args.take_over,
            ..VolumeOptions::new(Mode::Write)
        };
        let volume = Volume::open(&cluster, &args.path, options, &netraid_engine::pool()).await?;
        let mut shown = Shown::new(Work::Whole, output);
        let is_whole = volume
            .whole_shown(args.limit, |status| {
                shown.show(status);
            })
            .await;
        drop(shown);
        volume.close(None).await?;
        if !is_whole? {
            bail!("{}: not all members hold everything yet; see `netraid stat`", args.path);
        }
        Ok(cluster.stat(&args.path).await?)
    };
    let healed = runtime()?.block_on(until_stopped(&cluster, healed));
    let entry = healed.map_err(|error| match error.is::<Interrupted>() {
        true => NotWaited::Interrupted(HEALS_NO_MORE.to_owned()).into(),
        false => error,
    })?;
    output.document(&entry, || names::describe(&entry))
}

fn attach(args: &AttachArgs, output: Output) -> Result<()> {
    if args.exit_with_parent {
        stop_with_parent()?;
    }
    args.exports.check(args.insecure)?;
    netraid_private::raise_descriptor_limit();
    runtime_of(args.exports.threads)?.block_on(serve(args, output))
}

async fn serve(args: &AttachArgs, output: Output) -> Result<()> {
    let cluster = args.access.cluster()?;
    let mut stop = Stop::listen()?;
    let served = serve_until_stopped(args, &cluster, &mut stop, output).await;
    // What was opened while the signal came is given back, too.
    settle(&cluster, &mut stop).await;
    served
}

async fn serve_until_stopped(
    args: &AttachArgs,
    cluster: &Cluster,
    stop: &mut Stop,
    output: Output,
) -> Result<()> {
    let held = args.exports.hold(args.control.as_deref()).await?;
    let pool = netraid_engine::pool();
    let mode = if args.read_only { Mode::Read } else { Mode::Write };
    let options = VolumeOptions {
        term: args.term,
        take_over: args.take_over,
        // Data has a length, which whoever writes blocks does not keep.
        kind: Some(Kind::Volume),
        replace_after: args.replace_after.0,
        pause: args.pause,
        ..args.rates.options(mode)
    };
    let volume = tokio::select! {
        volume = Volume::open(cluster, &args.path, options, &pool) => {
            volume.map_err(|error| with_offer(error.into()))?
        }
        () = stop.wait() => bail!("interrupted while the volume was opened"),
    };
    for note in volume.notes() {
        tracing::warn!("{}", escaped(note));
    }
    let bytes = volume.bytes().clone();
    let exports = (&args.exports, args.control.as_deref(), held);
    export(exports, volume, bytes, &pool, (stop, output)).await
}

impl Running for Volume {
    fn handle(&self) -> &ArrayHandle {
        self.handle()
    }

    fn notes(&self) -> &[String] {
        self.notes()
    }

    async fn event(&mut self) -> Option<Event> {
        self.event().await
    }

    async fn close(self, stop: &mut Stop) -> Result<()> {
        tokio::select! {
            closed = self.close(None) => match closed {
                // All is stable, and whoever wants the volume next waits for the plan's end.
                Err(kept @ Error::Kept { .. }) => {
                    tracing::warn!("{kept}");
                    Ok(())
                }
                closed => Ok(closed?),
            },
            // What is lost by that is what a crash loses: its keeper goes on for as long as this process does.
            () = stop.wait_for_another() => bail!(NOT_CLOSED),
        }
    }
}
