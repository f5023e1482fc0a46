//! `netraid target`: serves LUNs over iSCSI.

mod access;
mod commands;
mod made;
mod open;
mod rates;
mod service;

use std::path::PathBuf;

use access::{AccessArgs, Users};
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
pub(crate) use commands::{FilterArgs, LunArgs, SessionArgs, filter, lun, session, show};
use made::MadeFiles;
use netraid_engine::{
    control::ControlServer,
    target::{DigestPolicy, Target, TargetConfig},
};
use open::Opened;
use rates::RateArgs;
use serde::Serialize;
use service::{About, TargetService};

use crate::{
    control::bind_control,
    filter::FilterArg,
    listen,
    lun::LunSpec,
    output::Output,
    runtime,
    signal::{Stop, stop_with_parent},
    size,
};

#[derive(Debug, Clone, Args)]
pub(crate) struct TargetArgs {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:3260")]
    listen: Vec<String>,
    /// iSCSI name of the target
    #[arg(long, default_value = "iqn.2026-01.netraid:target", value_parser = access::target_name)]
    iqn: String,
    /// LUN 0, 1, ...: ram:SIZE, file:PATH[:SIZE] (made, sparse, when a size is given), or
    /// block:PATH; sizes as 64MiB or 64M (powers of 1024); options behind commas: ro, direct, sync,
    /// threads=N, io=uring|threads, block=512|4096, serial=NUMBER
    #[arg(long, value_name = "BACKING", required = true)]
    lun: Vec<LunSpec>,
    /// Logical block in bytes, of LUNs that do not say; without it 512, or what a block device has
    #[arg(long, value_parser = ["512", "4096"])]
    block_len: Option<String>,
    /// Media that initiators can eject and load
    #[arg(long)]
    removable: bool,
    /// Trouble for a LUN, or for all: comma list of delay=5ms, error=1%, corrupt=0.1%, hang,
    /// rate=10MiB/s, trace
    #[arg(long, value_name = "[LUN:]FILTERS")]
    filter: Vec<FilterArg>,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    rates: RateArgs,
    /// Digests that initiators may, or must, use
    #[arg(long, value_enum, default_value_t = Digests::Allowed)]
    digests: Digests,
    /// Threads that serve sessions, 1 to 64; each session is served by one of them
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    /// Socket for `netraid status`, `lun`, `session`, `stop`: unix:PATH
    #[arg(long, value_name = "unix:PATH")]
    control: Option<String>,
    /// Directory that keeps persistent reservations of LUNs in memory or on block devices, identities
    /// of block devices, and the marker without which one is not sanitized; those of files are beside
    /// them
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    #[arg(long, hide = true)]
    exit_with_parent: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Digests {
    Never,
    Allowed,
    Required,
}

/// What the target says once it serves.
#[derive(Debug, Serialize)]
struct Ready<'a> {
    event: &'static str,
    iqn: &'a str,
    addresses: &'a [String],
    luns: Vec<ReadyLun>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chap: Option<&'a Users>,
    #[serde(skip_serializing_if = "Option::is_none")]
    control: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct ReadyLun {
    lun: u16,
    uri: String,
    backing: String,
    serial: String,
    capacity_bytes: u64,
}

pub(crate) fn run(args: &TargetArgs, output: Output) -> Result<()> {
    if args.exit_with_parent {
        stop_with_parent()?;
    }
    // Each I/O thread of a backing has its file open, and each session a socket.
    netraid_private::raise_descriptor_limit();
    let mut config = TargetConfig::new(args.iqn.clone());
    config.listen = access::listen_addresses(&args.listen, &args.access)?;
    let chap = args.access.apply(&mut config)?;
    args.rates.apply(&mut config)?;
    config.threads = usize::from(args.threads);
    config.header_digest = args.digests.policy();
    config.data_digest = args.digests.policy();
    let pool = netraid_engine::pool();
    let block_len = args.block_len.as_deref().map(str::parse).transpose()?;
    let open = |(number, spec): (u16, &LunSpec)| {
        let mut opened = Opened::open(spec.clone(), block_len, &pool)?;
        let filters = args.filter.iter().filter(|filter| filter.is_for(number));
        opened.set_filters(filters.map(|filter| &filter.spec))?;
        opened.identify(&args.iqn, number, args.state.as_deref())?;
        Ok(opened)
    };
    check_filters(args)?;
    let mut made = MadeFiles::default();
    args.lun.iter().for_each(|spec| made.note(spec));
    let mut opened = (0..).zip(&args.lun).map(open).collect::<Result<Vec<_>>>()?;
    for (number, unit) in (0..).zip(&opened) {
        unit.check_alone(number, (0..number).zip(&opened))?;
    }
    let lun = |(number, opened): (u16, &Opened)| {
        opened.lun(&args.iqn, number, args.removable, args.state.as_deref())
    };
    let luns = (0..).zip(&opened).map(lun);
    let target = Target::bind(config, luns.collect::<Result<_>>()?, pool.clone())?;
    let runtime = runtime()?;
    let _entered = runtime.enter();
    let stop = Stop::listen()?;
    let control = args.control.as_deref().map(bind_control).transpose()?;
    // Nothing refuses from here on, so what was made may stay.
    opened.iter_mut().for_each(Opened::keep_identity);
    made.keep();
    let about = About {
        iqn: args.iqn.clone(),
        addresses: target.local_addrs().iter().map(listen::show).collect(),
        chap,
        block_len,
        removable: args.removable,
        state: args.state.clone(),
        pool,
    };
    announce(&about, &opened, args.control.as_deref(), output);
    let service = TargetService::new(target.handle().clone(), about, opened);
    runtime.block_on(serve(target, service, stop, control))
}

/// Serves until told to stop, by a signal or through the control socket.
async fn serve(
    target: Target,
    service: TargetService,
    mut stop: Stop,
    control: Option<ControlServer>,
) -> Result<()> {
    let conversations = async {
        if let Some(control) = &control {
            control.run(&service, async { drop(service.ending().wait().await) }).await;
        }
    };
    let stopped = async {
        tokio::select! {
            () = stop.wait() => {}
            () = service.stop_requested() => {}
        }
        // What hangs in a filter is not waited for.
        service.end_filters();
    };
    let run = async {
        let end = target.run(stopped).await.map_err(anyhow::Error::from);
        service.ending().tell(&end);
        end
    };
    // The socket ends with the target.
    tokio::join!(run, conversations).0
}

/// A filter for a LUN that is not there would be a test that tests nothing.
fn check_filters(args: &TargetArgs) -> Result<()> {
    let luns = args.lun.len();
    let mut numbers = args.filter.iter().filter_map(|filter| filter.lun);
    match numbers.find(|number| usize::from(*number) >= luns) {
        Some(number) => bail!("filter for LUN {number}: there are {luns}; number them from 0"),
        None => Ok(()),
    }
}

fn announce(about: &About, opened: &[Opened], control: Option<&str>, output: Output) {
    let luns = (0..).zip(opened).map(|(lun, opened)| ReadyLun {
        lun,
        uri: about.uri(lun),
        backing: opened.spec.to_string(),
        serial: opened.serial.clone(),
        capacity_bytes: opened.backing.device().info().capacity,
    });
    let ready = Ready {
        event: "ready",
        iqn: &about.iqn,
        addresses: &about.addresses,
        luns: luns.collect(),
        chap: about.chap.as_ref(),
        control,
    };
    output.announce(&ready, || {
        let line = |lun: &ReadyLun| {
            format!("{}  {}  {}\n", lun.uri, size::show(lun.capacity_bytes), lun.backing)
        };
        let users = ready.chap.map(|Users { read_as, users, .. }| {
            format!("users: {} (the CHAP file was read as {read_as})\n", users.join(", "))
        });
        ready.luns.iter().map(line).chain(users).collect()
    });
}

impl Digests {
    const fn policy(self) -> DigestPolicy {
        match self {
            Self::Never => DigestPolicy::Never,
            Self::Allowed => DigestPolicy::Allowed,
            Self::Required => DigestPolicy::Required,
        }
    }
}
