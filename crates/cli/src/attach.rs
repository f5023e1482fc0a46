//! `netraid attach`: runs an array and exports it until told to stop.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, bail};
use clap::Args;
use netraid_block::Pool;
use netraid_control::text::escaped;
use netraid_engine::{
    array::{Array, ArrayHandle, Caches, Event, MemberConfig, OpenOptions, Spares},
    bytes::ByteDevice,
    control::{ArrayStatus, ControlRequest, ControlServer, Service},
};
use netraid_export::{
    Users,
    fuse::FuseMount,
    nbd::{NbdAddress, NbdListener, NbdServer},
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinSet, time::timeout};

use crate::{
    cluster::parse_duration,
    control::{bind_control, show, socket_path},
    ending::{Ending, LEAVING},
    member::MemberArgs,
    output::Output,
    runtime_of,
    signal::{Stop, stop_with_parent},
    size,
    standby::{self, StandbyArgs},
};

#[derive(Debug, Clone, Args)]
pub(crate) struct AttachArgs {
    #[command(flatten)]
    pub(crate) members: MemberArgs,
    #[command(flatten)]
    pub(crate) exports: ExportArgs,
    /// Allow everybody in, also from other hosts
    #[arg(long, requires = "nbd")]
    insecure: bool,
    /// Change nothing, on no member
    #[arg(long)]
    read_only: bool,
    /// Open the array although the labels say that another host has it open: that host is dead
    #[arg(long)]
    take_over: bool,
    /// Open the array against all doubts about other writers; without a log, take parity as it is where data is away,
    /// and the label of an opening that was cut short where too few members are left without it
    #[arg(long)]
    force: bool,
    /// Memory for writes that are in the log and not yet where they belong, at least 4MiB; the usual
    /// is a sixteenth of the memory, 16MiB to 256MiB
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    write_cache: Option<u64>,
    /// Memory for checksums that were read and may be needed again; the usual is the same
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    checksum_cache: Option<u64>,
    /// Memory for what is read ahead of users who read in a row; the usual is 16MiB, 0 turns it off
    #[arg(long, value_name = "SIZE", value_parser = size::parse_or_zero)]
    read_ahead: Option<u64>,
    /// How long requests wait when so many members are away that the others cannot serve; the array goes on by itself when
    /// enough are back, and fails when the time is over. 0: it fails at once. An array without a log always does
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_pause)]
    pause: Duration,
    /// Go on without members that took part last and are not there now. Without this the array is not attached: an
    /// address may only have been forgotten, or its host be late
    #[arg(long, conflicts_with = "read_only")]
    degraded: bool,
    /// A device that takes the place of a member that stays away, by itself; may be given more than once. It must be unused;
    /// once it has taken a place it is a member, whether it is given as that or as a spare
    #[arg(long, value_name = "URL", conflicts_with = "read_only")]
    spare: Vec<String>,
    /// How long a member is waited for before a spare takes its place; for one that does not come back by itself, not at all
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_pause)]
    spare_after: Duration,
    #[command(flatten)]
    pub(crate) standby: StandbyArgs,
    /// Socket for `netraid status`, `fail`, `replace`, ...: unix:PATH
    #[arg(long, value_name = "unix:PATH")]
    pub(crate) control: Option<String>,
    #[arg(long, hide = true)]
    exit_with_parent: bool,
}

#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(group(clap::ArgGroup::new("export").required(true).multiple(true).args(["nbd", "fuse"])))]
pub(crate) struct ExportArgs {
    /// Export as an NBD device on this address, or on unix:PATH; may be given more than once
    #[arg(long, value_name = "ADDR:PORT")]
    nbd: Vec<NbdAddress>,
    /// Export as a file in this directory
    #[arg(long, value_name = "DIR")]
    fuse: Option<PathBuf>,
    /// Threads that drive members and exports, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) threads: u8,
}

/// What is said once the volume can be used.
#[derive(Debug, Serialize)]
struct Ready<'a> {
    event: &'static str,
    exports: &'a [Export],
    control: Option<&'a str>,
    array: &'a ArrayStatus,
    /// What an administrator should know.
    notes: &'a [String],
}

#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Export {
    Nbd { uri: String },
    Fuse { path: PathBuf },
}

/// A time, or none.
pub(crate) fn parse_pause(text: &str) -> Result<Duration, String> {
    if text == "0" { Ok(Duration::ZERO) } else { parse_duration(text) }
}

pub(crate) fn run(args: &AttachArgs, output: Output) -> Result<()> {
    if args.exit_with_parent {
        stop_with_parent()?;
    }
    args.exports.check(args.insecure)?;
    netraid_private::raise_descriptor_limit();
    runtime_of(args.exports.threads)?.block_on(serve(args, output))
}

impl ExportArgs {
    /// Refuses what other hosts could use, unless the user allows everybody in.
    pub(crate) fn check(&self, insecure: bool) -> Result<()> {
        for address in &self.nbd {
            if let NbdAddress::Tcp(at) = address
                && !at.ip().is_loopback()
                && !insecure
            {
                bail!(
                    "address {at}: NBD has no login, so other hosts could read and write; give a \
                     loopback address or unix:PATH, or --insecure where everybody is trusted"
                );
            }
        }
        Ok(())
    }

    /// Has all that the exports need, before anything is opened: whoever is shut out by the opening is shut
    /// out for good.
    pub(crate) async fn hold(&self, control: Option<&str>) -> Result<Held> {
        self.check_mount(control)?;
        let nbd = self.listen().await?;
        let control = control.map(bind_control).transpose()?;
        Ok(Held { nbd, control })
    }

    /// Refuses a directory that cannot be mounted over.
    pub(crate) fn check_mount(&self, control: Option<&str>) -> Result<()> {
        let Some(dir) = &self.fuse else { return Ok(()) };
        FuseMount::check(dir)?;
        self.check_not_hidden(dir, control)
    }

    /// Listens for clients.
    pub(crate) async fn listen(&self) -> Result<Vec<NbdListener>> {
        let mut nbd = Vec::new();
        for address in &self.nbd {
            nbd.push(NbdListener::bind(address).await?);
        }
        Ok(nbd)
    }

    /// Refuses sockets in the directory that is mounted over.
    fn check_not_hidden(&self, dir: &Path, control: Option<&str>) -> Result<()> {
        let nbd = self.nbd.iter().filter_map(|address| match address {
            NbdAddress::Unix(path) => Some(path.clone()),
            NbdAddress::Tcp(_) => None,
        });
        let control = control.map(socket_path).transpose()?;
        // What cannot be looked at is told by who makes the socket, or mounts.
        let Ok(dir) = dir.canonicalize() else { return Ok(()) };
        for path in nbd.chain(control) {
            let above = path.parent().filter(|above| !above.as_os_str().is_empty());
            let above = above.unwrap_or(Path::new(".")).canonicalize();
            if above.is_ok_and(|above| above.starts_with(&dir)) {
                bail!(
                    "socket {}: the file is mounted over {}, and nobody could connect to it; choose another path",
                    path.display(),
                    dir.display()
                );
            }
        }
        Ok(())
    }
}

/// What exports need, and have.
pub(crate) struct Held {
    pub(crate) nbd: Vec<NbdListener>,
    pub(crate) control: Option<ControlServer>,
}

fn caches(args: &AttachArgs) -> Result<Caches> {
    let (write_len, checksum_len) = (args.write_cache, args.checksum_cache);
    if let Some(len) = write_len.filter(|len| *len < Caches::WRITE_LEN_MIN) {
        let (len, min) = (size::show(len), size::show(Caches::WRITE_LEN_MIN));
        bail!("--write-cache {len}: writes of some length need {min}; give that or more");
    }
    Ok(Caches { write_len, checksum_len, read_ahead_len: args.read_ahead })
}

pub(crate) fn spares(args: &AttachArgs) -> Result<Spares> {
    let devices = args.members.configs_of(&args.spare)?;
    let members: Vec<String> = args.members.configs()?.iter().map(MemberConfig::address).collect();
    let mut known = members;
    for spare in &devices {
        let address = spare.address();
        if known.contains(&address) {
            bail!("{address} is given twice; give a spare once, and not as a member");
        }
        known.push(address);
    }
    Ok(Spares { devices, after: args.spare_after })
}

pub(crate) fn options(args: &AttachArgs) -> Result<OpenOptions> {
    let (read_only, take_over, force) = (args.read_only, args.take_over, args.force);
    let caches = caches(args)?;
    let (pause, wants_all) = (args.pause, !args.degraded);
    Ok(OpenOptions {
        read_only,
        take_over,
        force,
        caches,
        pause,
        wants_all,
        ..OpenOptions::default()
    })
}

async fn serve(args: &AttachArgs, output: Output) -> Result<()> {
    if args.standby.is_wanted() {
        return standby::serve(args, output).await;
    }
    let mut stop = Stop::listen()?;
    let pool = netraid_engine::pool();
    let options = options(args)?;
    let held = args.exports.hold(args.control.as_deref()).await?;
    let (members, spares) = (args.members.configs()?, spares(args)?);
    let array = tokio::select! {
        array = Array::open_with_spares(options, members, spares, pool.clone()) => array?,
        () = stop.wait() => bail!("interrupted while the array was opened"),
    };
    for note in array.notes() {
        tracing::warn!("{}", escaped(note));
    }
    let bytes = ByteDevice::new(array.device().clone());
    let exports = (&args.exports, args.control.as_deref(), held);
    export(exports, array, bytes, &pool, (&mut stop, output)).await
}

/// An array that runs, however its members are reached.
pub(crate) trait Running {
    /// A way to command it.
    fn handle(&self) -> &ArrayHandle;
    /// What was noticed while it was opened.
    fn notes(&self) -> &[String];
    /// The next event; cancel safe. None when it has ended.
    fn event(&mut self) -> impl Future<Output = Option<Event>>;
    /// Makes all stable and closes it; `stop` tells of signals that come meanwhile.
    fn close(self, stop: &mut Stop) -> impl Future<Output = Result<()>>;
}

impl Running for Array {
    fn handle(&self) -> &ArrayHandle {
        self.handle()
    }

    fn notes(&self) -> &[String] {
        self.notes()
    }

    async fn event(&mut self) -> Option<Event> {
        self.event().await
    }

    async fn close(self, _stop: &mut Stop) -> Result<()> {
        self.close().await?;
        Ok(())
    }
}

/// What a control socket commands: an array, and the end of its exports.
#[derive(Clone)]
struct Exported {
    handle: ArrayHandle,
    name: String,
    users: Users,
    ending: Ending,
}

impl Service for Exported {
    type Request = ControlRequest;

    async fn answer(&self, request: ControlRequest) -> Result<Value, String> {
        if let ControlRequest::Stop { force } = request {
            return self.stop(force).await;
        }
        self.handle.answer(request).await
    }
}

impl Exported {
    /// Has the exports end unless somebody uses them; answers when the array is closed.
    async fn stop(&self, force: bool) -> Result<Value, String> {
        if !force {
            // Those that stay are counted next.
            let _ = timeout(LEAVING, self.users.nobody()).await;
        }
        let cut_off = self.users.let_end(force).map_err(|users| {
            let name = &self.name;
            format!("array '{name}' is in use by {users}; end their use, or give --force: it cuts them off")
        })?;
        self.handle.answer(ControlRequest::Stop { force }).await?;
        self.ending.wait().await?;
        Ok(json!({ "cut_off": cut_off }))
    }
}

/// Exports an array until told to stop, and closes it.
pub(crate) async fn export(
    (args, control_address, held): (&ExportArgs, Option<&str>, Held),
    mut array: impl Running,
    bytes: ByteDevice,
    pool: &Pool,
    (stop, output): (&mut Stop, Output),
) -> Result<()> {
    let ending = Ending::new();
    let Held { nbd, control } = held;
    let mut tasks = Tasks::default();
    let announced = async {
        let status = array.handle().status().await?;
        let exports = start((args, nbd), &bytes, &status.name, pool, &mut tasks)?;
        let ready = Ready {
            event: "ready",
            exports: &exports,
            control: control_address,
            array: &status,
            notes: array.notes(),
        };
        output.announce(&ready, || announce(&ready));
        anyhow::Ok(status.name)
    };
    let announced = announced.await;
    let service = Exported {
        handle: array.handle().clone(),
        name: announced.as_ref().cloned().unwrap_or_default(),
        users: tasks.users.clone(),
        ending: ending.clone(),
    };
    let conversations = async {
        if let Some(control) = &control {
            control.run(&service, async { drop(ending.wait().await) }).await;
        }
    };
    let run = async {
        let served = match announced {
            Ok(_) => serve_until_stopped(&mut array, &mut tasks, (&mut *stop, output)).await,
            Err(error) => Err(error),
        };
        // Where the array has ended, there is nothing that waits for members.
        let _ = array.handle().pause_no_more().await;
        // Whatever happened to the exports, the array is closed in good order.
        let ended = tasks.end().await;
        drop(bytes);
        let closed = array.close(stop).await;
        // Where exports could not flush, what became of the array is the reason.
        let end = served.and(closed).and(ended);
        ending.tell(&end);
        end
    };
    // The socket ends with the array.
    tokio::join!(run, conversations).0
}

/// Waits until somebody or something ends the exports.
async fn serve_until_stopped(
    array: &mut impl Running,
    tasks: &mut Tasks,
    (stop, output): (&mut Stop, Output),
) -> Result<()> {
    let mut handle = array.handle().clone();
    loop {
        tokio::select! {
            () = stop.wait() => return Ok(()),
            () = handle.stop_requested() => return Ok(()),
            ended = tasks.running.join_next() => {
                ended.unwrap_or(Ok(Ok(())))??;
                // Somebody ended this export from outside; others go on.
                if tasks.running.is_empty() {
                    return Ok(());
                }
            }
            event = array.event() => match event {
                Some(event) if output.is_json() => output.announce(&event, String::new),
                Some(_) => {}
                None => return Ok(()),
            },
        }
    }
}

/// The exports that run, and what tells them to end.
struct Tasks {
    running: JoinSet<Result<()>>,
    stop: watch::Sender<bool>,
    users: Users,
}

impl Default for Tasks {
    fn default() -> Self {
        let (running, stop) = (JoinSet::new(), watch::Sender::new(false));
        Self { running, stop, users: Users::default() }
    }
}

impl Tasks {
    /// Resolves when the exports are to end.
    fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stop = self.stop.subscribe();
        async move {
            // The sender is gone: so is whoever wanted exports.
            let _ = stop.wait_for(|stop| *stop).await;
        }
    }

    /// Lets all exports finish what is under way and flush.
    async fn end(mut self) -> Result<()> {
        self.stop.send_replace(true);
        let mut result = Ok(());
        while let Some(ended) = self.running.join_next().await {
            let ended = ended.map_err(anyhow::Error::from).and_then(|ended| ended);
            result = result.and(ended);
        }
        result
    }
}

fn start(
    (args, nbd): (&ExportArgs, Vec<NbdListener>),
    // One for all exports: partial blocks of their writes must not overtake each other.
    device: &ByteDevice,
    name: &str,
    pool: &Pool,
    tasks: &mut Tasks,
) -> Result<Vec<Export>> {
    let mut exports = Vec::new();
    // Whoever connects to a Unix socket is its owner, who need not be kept from descriptors of the others.
    let open_to_all =
        args.nbd.iter().filter(|address| matches!(address, NbdAddress::Tcp(_))).count();
    let descriptors = netraid_private::descriptor_limit() / open_to_all.max(1) as u64;
    for listener in nbd {
        let server = NbdServer::new(listener, device.clone(), name, pool.clone())?;
        let server = server.counted_by(tasks.users.clone()).within_descriptors(descriptors);
        exports.push(Export::Nbd { uri: server.uri() });
        let stopped = tasks.stopped();
        tasks.running.spawn(async move { Ok(server.run(stopped).await?) });
    }
    if let Some(dir) = &args.fuse {
        let users = tasks.users.clone();
        let mount = FuseMount::mount(dir, device.clone(), name, pool.clone(), users)?;
        exports.push(Export::Fuse { path: mount.file().to_path_buf() });
        let stopped = tasks.stopped();
        tasks.running.spawn(async move { Ok(mount.run(stopped).await?) });
    }
    Ok(exports)
}

fn announce(ready: &Ready<'_>) -> String {
    let line = |export: &Export| match export {
        Export::Nbd { uri } => format!("  {uri}\n"),
        Export::Fuse { path } => format!("  {}\n", path.display()),
    };
    let exports: String = ready.exports.iter().map(line).collect();
    format!("{}exported as\n{exports}", show(ready.array))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use clap::Parser as _;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        exports: super::ExportArgs,
    }

    #[test]
    fn what_is_attached_is_exported_somewhere() {
        let parse = |line: &str| Line::try_parse_from(std::iter::once("x").chain(line.split(' ')));
        assert!(parse("--threads 2").is_err());
        let both = parse("--nbd 127.0.0.1:0 --fuse /mnt --threads 2").unwrap().exports;
        assert_eq!((both.nbd.len(), both.fuse.is_some(), both.threads), (1, true, 2));
        assert!(parse("--fuse /mnt").is_ok());
    }
}
