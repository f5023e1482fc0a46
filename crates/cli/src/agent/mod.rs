//! `netraid agent`: serves segments for mediators.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use netraid_agent::{
    Agent, AgentConfig, Medium, Ready,
    agent::{Leave, LocalStatus, owner_file, state_of},
    calibrate::{self, Calibration},
};
use netraid_cluster::{access::AccessFile, http::Client};
use netraid_control::{
    text::shown,
    units::{MediatorId, Rate, Resources},
};

use serde::Serialize;

use crate::{
    cluster::ApiArgs,
    output::Output,
    runtime,
    signal::{Stop, stop_with_parent},
    size,
};

/// What the other end of a measurement says.
#[derive(Debug, Serialize)]
struct Serving {
    event: &'static str,
    address: SocketAddr,
}

/// How long a running agent has to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Args)]
pub(crate) struct AgentArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Clone, Subcommand)]
enum What {
    /// Serve segments of a directory, of a disk, or of memory, until told to stop
    Run(Box<RunArgs>),
    /// Measure what the devices and the network do, and keep that for `netraid agent run`
    Calibrate(CalibrateArgs),
    /// Show a running agent: what it has, what is left, for whom it works
    Status(WhereArgs),
    /// Work for a mediator no longer
    Leave(LeaveArgs),
}

#[derive(Debug, Clone, Args)]
struct RunArgs {
    /// Directory of the segments, and of the agent's state and audit log
    #[arg(long, value_name = "DIR", required_unless_present_any = ["ram", "disk"])]
    dir: Option<PathBuf>,
    /// Keep segments on this block device, all of which is the agent's; state and audit log are in --state
    #[arg(long, value_name = "PATH", conflicts_with_all = ["dir", "ram"], requires = "state")]
    disk: Option<PathBuf>,
    /// Format the disk whatever is on it, unless that is this agent's own: ALL ON IT IS LOST
    #[arg(long, requires = "disk")]
    force: bool,
    /// Keep segments in memory, so many bytes of it: they are LOST when the agent ends
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "dir")]
    ram: Option<u64>,
    /// Space that may be booked; without it 90% of what the file system or disk has for segments
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    space: Option<u64>,
    /// Where mediators reach it; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:3270")]
    listen: String,
    /// Where initiators reach it (iSCSI); port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:3260")]
    portal: String,
    /// Bytes a second of devices and of network; without it what `netraid agent calibrate` measured
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    rate: Option<Rate>,
    /// Bytes a second of the devices
    #[arg(long, value_name = "SIZE", value_parser = rate, conflicts_with = "rate")]
    device_rate: Option<Rate>,
    /// Bytes a second of the network, in each direction
    #[arg(long, value_name = "SIZE", value_parser = rate, conflicts_with = "rate")]
    network_rate: Option<Rate>,
    /// What of space and rates is for rebuilding only
    #[arg(long, value_name = "PERCENT", default_value_t = 20,
        value_parser = clap::value_parser!(u8).range(0..=90))]
    keep_for_rebuild: u8,
    /// What fails together with it; without it this host's name
    #[arg(long, value_name = "LABEL")]
    host: Option<String>,
    /// The rack that it is in
    #[arg(long, value_name = "LABEL", default_value = "")]
    rack: String,
    /// The name or address under which others reach it; without it as it listens
    #[arg(long, value_name = "HOST")]
    advertise: Option<String>,
    /// Join the mediator of this access file; may be given several times
    #[arg(long, value_name = "ACCESSFILE")]
    mediator: Vec<PathBuf>,
    /// Certificate in PEM; without it the agent makes one of its own
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_authority"])]
    tls_cert: Option<PathBuf>,
    /// Its key; nobody but the key's owner, who is this user or root, and its group may read it
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Whom mediators are to trust for it
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_authority: Option<PathBuf>,
    /// Without TLS; on loopback alone
    #[arg(long, conflicts_with = "tls_cert")]
    insecure: bool,
    /// Directory of its state; without it DIR/state, and for segments in memory a new one that is
    /// removed at the end
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    #[command(flatten)]
    api: ApiArgs,
    #[arg(long, hide = true)]
    exit_with_parent: bool,
}

#[derive(Debug, Clone, Args)]
struct CalibrateArgs {
    /// Directory of the agent, which must not run
    #[arg(long, value_name = "DIR", required_unless_present_any = ["serve", "disk"])]
    dir: Option<PathBuf>,
    /// Disk of the agent, which must not run: only what no segment has is written, and one that is new is
    /// formatted
    #[arg(long, value_name = "PATH", conflicts_with = "dir", requires = "state")]
    disk: Option<PathBuf>,
    /// Directory of its state; without it DIR/state
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Measure the network as well, to and from `netraid agent calibrate --serve` on another host
    #[arg(long, value_name = "ADDR:PORT")]
    network: Option<String>,
    /// Only be the other end of that, for whoever reaches this address, until told to stop
    #[arg(long, value_name = "ADDR:PORT", conflicts_with_all = ["dir", "disk", "network"])]
    serve: Option<String>,
}

#[derive(Debug, Clone, Args)]
struct WhereArgs {
    /// Directory of the agent
    #[arg(long, value_name = "DIR", required_unless_present = "state")]
    dir: Option<PathBuf>,
    /// Directory of its state, where that is another one
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
struct LeaveArgs {
    #[command(flatten)]
    at: WhereArgs,
    /// The mediator's id, as `netraid agent status` shows it
    #[arg(long, value_name = "ID")]
    mediator: MediatorId,
    /// Although it has segments here: their data stays, and serves nobody
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &AgentArgs, output: Output) -> Result<()> {
    match &args.what {
        What::Run(args) => serve(args, output),
        What::Calibrate(args) => calibrate(args, output),
        What::Status(at) => {
            let status: LocalStatus =
                runtime()?.block_on(async { anyhow::Ok(at.client()?.get("/v1/local").await?) })?;
            output.document(&status, || show(&status))
        }
        What::Leave(args) => {
            let leave = Leave { mediator: args.mediator, force: args.force };
            let status: LocalStatus = runtime()?.block_on(async {
                anyhow::Ok(args.at.client()?.post("/v1/local/leave", &leave).await?)
            })?;
            output.document(&status, || show(&status))
        }
    }
}

fn serve(args: &RunArgs, output: Output) -> Result<()> {
    if args.exit_with_parent {
        stop_with_parent()?;
    }
    netraid_private::raise_descriptor_limit();
    let config = args.config()?;
    runtime()?.block_on(async {
        let mut stop = Stop::listen()?;
        let agent = Agent::start(config).await?;
        let announce = |ready: &Ready| output.announce(ready, || show_ready(ready));
        anyhow::Ok(agent.run(stop.wait(), announce).await?)
    })
}

fn calibrate(args: &CalibrateArgs, output: Output) -> Result<()> {
    if let Some(serve) = &args.serve {
        return Ok(calibrate::serve(address(serve)?, |address| {
            output.announce(&Serving { event: "ready", address }, || {
                format!("netraid agent calibrate --dir DIR --network {address}")
            });
        })?);
    }
    let peer = args.network.as_deref().map(address).transpose()?;
    let measured = match (&args.disk, &args.dir, &args.state) {
        (Some(disk), _, Some(state)) => {
            runtime()?.block_on(calibrate::measure_disk(disk, state, peer))?
        }
        (None, Some(dir), state) => {
            let state = state.clone().unwrap_or_else(|| state_of(dir));
            runtime()?.block_on(calibrate::measure(dir, &state, peer))?
        }
        _ => bail!("neither --dir nor --disk and --state are given"),
    };
    output.document(&measured, || show_measured(&measured))
}

fn show_measured(measured: &Calibration) -> String {
    let line = |what, rate: Rate| format!("{what:<28} {:>12}/s\n", size::show(rate.0));
    let (device, network) = measured.capacity();
    let mut text = line("writes of 1 MiB in order", measured.sequential_write);
    text += &line("reads of 1 MiB in order", measured.sequential_read);
    text += &line("writes of 64 KiB anywhere", measured.scattered_write);
    text += &line("reads of 64 KiB anywhere", measured.scattered_read);
    text += &measured.network.map(|rate| line("network", rate)).unwrap_or_default();
    text += &line("counted on: devices", device);
    text += &match network {
        Some(network) => line("counted on: network", network),
        None => "network not measured: give --network, or --network-rate to `run`\n".to_owned(),
    };
    if !measured.direct {
        text += "the file system has no way around memory: this is more than its devices do\n";
    }
    text
}

impl RunArgs {
    fn config(&self) -> Result<AgentConfig> {
        let medium = match (&self.dir, &self.disk, self.ram) {
            (Some(dir), ..) => Medium::Directory(dir.clone()),
            (None, Some(disk), _) => Medium::Disk { path: disk.clone(), force: self.force },
            (None, None, Some(size)) => Medium::Memory(size),
            (None, None, None) => bail!("neither --dir nor --disk nor --ram is given"),
        };
        let identity = match (&self.tls_cert, &self.tls_key, &self.tls_authority) {
            (Some(cert), Some(key), Some(authority)) => {
                Some([cert, key, authority].map(Clone::clone))
            }
            _ => None,
        };
        let mediators = self.mediator.iter().map(|path| AccessFile::read(path));
        Ok(AgentConfig {
            medium,
            state: self.state.clone(),
            space_bytes: self.space,
            device: self.device_rate.or(self.rate),
            network: self.network_rate.or(self.rate),
            kept_percent: self.keep_for_rebuild,
            listen: address(&self.listen)?,
            portal: address(&self.portal)?,
            advertise: self.advertise.clone(),
            host: self.host.clone().unwrap_or_else(host_name),
            rack: self.rack.clone(),
            insecure: self.insecure,
            identity,
            mediators: mediators.collect::<Result<_, _>>()?,
            api: self.api.limits(),
        })
    }
}

impl WhereArgs {
    fn state(&self) -> Result<PathBuf> {
        match (&self.state, &self.dir) {
            (Some(state), _) => Ok(state.clone()),
            (None, Some(dir)) => Ok(state_of(dir)),
            (None, None) => bail!("neither --dir nor --state is given"),
        }
    }

    fn client(&self) -> Result<Client> {
        let path = owner_file(&self.state()?);
        let access = AccessFile::read(&path).context("is there an agent in this directory?")?;
        Ok(Client::with_access(&access, ANSWER_LIMIT)?)
    }
}

fn rate(text: &str) -> Result<Rate, String> {
    size::parse(text.strip_suffix("/s").unwrap_or(text))
        .map(Rate)
        .map_err(|error| error.to_string())
}

fn address(text: &str) -> Result<SocketAddr> {
    let found = crate::listen::resolve(text).with_context(|| {
        format!("address '{text}': is not HOST:PORT; write 127.0.0.1:3270 or [::1]:3270")
    })?;
    found.into_iter().next().with_context(|| format!("address '{text}': stands for none"))
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn show_ready(ready: &Ready) -> String {
    let Ready { agent, api, portal, target, capacity, .. } = ready;
    format!(
        "agent {agent}\n  {}\n  mediators: {api}\n  initiators: {portal}  {target}\n",
        has(capacity)
    )
}

fn has(resources: &Resources) -> String {
    format!(
        "{}, devices {}/s, network {}/s",
        size::show(resources.space_bytes),
        size::show(resources.device.0),
        size::show(resources.network.0)
    )
}

fn show(local: &LocalStatus) -> String {
    let LocalStatus { status, memberships } = local;
    let mut text = format!(
        "agent {} on host {}\n  has {}\n  left {}\n  left for rebuilding {}\n  \
         {} segments, {} sessions\n  mediators: {}\n  initiators: {}  {}\n",
        status.agent,
        shown(&status.host),
        has(&status.capacity),
        has(&status.left),
        has(&status.left_for_rebuild),
        status.segments,
        status.sessions,
        shown(&status.api),
        shown(&status.portal),
        shown(&status.target),
    );
    for member in memberships {
        let drains = if member.draining { ", drains" } else { "" };
        let heard = if member.is_heard { "" } else { ", NOT HEARD" };
        text += &format!(
            "  for {} at {}: {} segments{drains}{heard}\n",
            member.mediator,
            shown(&member.url),
            member.segments
        );
    }
    text
}
