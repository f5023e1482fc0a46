//! `netraid attach --standby`: opens the array if nobody has it, else stands by for the engine that has it, and takes its place
//! when that one is dead, hung or cut off.
//!
//! Invariants: while this process stands by nothing is exported; the array is exported only after the command of `--on-active`
//! has ended well; a process whose array has failed ends.

use std::{os::fd::AsFd as _, process::Stdio, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use netraid_control::text::{escaped, shown};
use netraid_engine::{
    array::{AFTER_MIN, Array, ArrayHandle, Attempt, Event, OpenOptions, Outlook, Watch},
    bytes::ByteDevice,
    control::{ControlRequest, ControlServer, Service, StandbyStatus},
};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;
use serde_json::Value;
use tokio::{
    process::Command,
    sync::{Notify, watch},
    time::timeout,
};

use crate::{
    attach::{AttachArgs, Held, Running, export, options, spares},
    cluster::parse_duration,
    control::bind_control,
    describe,
    output::Output,
    signal::Stop,
};

/// Longest that the command of `--on-active` may take.
const HOOK_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Args)]
pub(crate) struct StandbyArgs {
    /// Open the array if nobody has it open; else stand by for the engine that has it, and take its place when it is dead, hung
    /// or cut off from the members. The same command is run on each host. Implies --degraded
    #[arg(long, conflicts_with_all = ["read_only", "take_over", "force"])]
    standby: bool,
    /// How long nothing may come from the engine that has the array before its place is taken; at least 3s
    #[arg(long, value_name = "TIME", default_value = "5s", requires = "standby", value_parser = parse_after)]
    standby_after: Duration,
    /// A command that moves the address of the exports to this host: run by `sh -c`, with the array's name in NETRAID_ARRAY, when
    /// the array is open and before the exports listen. It may take 30 s, and what it leaves running is killed; when it fails, the array is closed again
    #[arg(long, value_name = "COMMAND", requires = "standby")]
    on_active: Option<String>,
}

impl StandbyArgs {
    pub(crate) const fn is_wanted(&self) -> bool {
        self.standby
    }
}

/// What is said when the array is found to be another way than before.
#[derive(Debug, Serialize)]
struct StandsBy<'a> {
    event: &'static str,
    #[serde(flatten)]
    status: &'a StandbyStatus,
}

fn parse_after(text: &str) -> Result<Duration, String> {
    let after = parse_duration(text)?;
    match after < AFTER_MIN {
        true => Err(format!("{text} is too short; give {}s or more", AFTER_MIN.as_secs())),
        false => Ok(after),
    }
}

/// Serves the array, as soon as it may, until told to stop.
pub(crate) async fn serve(args: &AttachArgs, output: Output) -> Result<()> {
    let mut stop = Stop::listen()?;
    let address = args.control.as_deref();
    args.exports.check_mount(address)?;
    let control = address.map(bind_control).transpose()?;
    let by = StandingBy::new();
    let (stopper, stopped) = watch::channel(false);
    let mut standing = std::pin::pin!(stand_by(args, &by, stopped, output));
    let opened = tokio::select! {
        opened = &mut standing => opened?,
        () = by.answer(control.as_ref()) => None,
        () = stop.wait() => None,
    };
    let Some(opened) = opened else {
        stopper.send_replace(true);
        // What an attempt under way has registered keeps others away until that is given back.
        if let Some(array) = standing.await? {
            array.close().await?;
        }
        return Ok(());
    };
    for note in opened.notes() {
        tracing::warn!("{}", escaped(note));
    }
    let active = Active { array: opened, has_failed: false };
    let prepared = tokio::select! {
        prepared = prepare(args, &active.array) => prepared,
        () = stop.wait() => Err(anyhow::anyhow!("interrupted before the array was exported")),
    };
    let nbd = match prepared {
        Ok(nbd) => nbd,
        Err(error) => {
            // Why nothing is exported goes before what becomes of the array.
            if let Err(closed) = active.close(&mut stop).await {
                tracing::warn!("the array is not closed: {}", escaped(&describe(&closed)));
            }
            return Err(error);
        }
    };
    let bytes = ByteDevice::new(active.array.device().clone());
    let exports = (&args.exports, address, Held { nbd, control });
    export(exports, active, bytes, &netraid_engine::pool(), (&mut stop, output)).await
}

/// Waits until this process has the array open; none when it was `stopped` before.
async fn stand_by(
    args: &AttachArgs,
    by: &StandingBy,
    mut stopped: watch::Receiver<bool>,
    output: Output,
) -> Result<Option<Array>> {
    let pool = netraid_engine::pool();
    let options = OpenOptions { heartbeats: true, wants_all: false, ..options(args)? };
    let members = args.members.configs()?;
    let after = args.standby.standby_after;
    let mut watch = Watch::begin(members.clone(), spares(args)?.devices, after, &pool);
    let open = async |attempt: Attempt, stopped: &watch::Receiver<bool>| {
        let options = OpenOptions { silent: attempt.silent, ..options };
        let devices = (members.clone(), spares(args)?);
        let opened = Array::open_unless_stopped(options, devices, pool.clone(), stopped).await;
        anyhow::Ok(opened)
    };
    // Somebody may have it: that this one is refused says nothing against the next attempt.
    let mut opened = open(Attempt { silent: None }, &stopped).await?;
    loop {
        let error = match opened {
            Ok(array) => return Ok(Some(array)),
            Err(error) => error.to_string(),
        };
        tracing::info!("the array is not opened: {}", escaped(&error));
        by.note_failed(error);
        let attempt = tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => return Ok(None),
            attempt = watch.attempt(|outlook| by.note(&outlook, output)) => attempt,
        };
        opened = open(attempt, &stopped).await?;
        if opened.is_err() {
            watch.failed();
        }
    }
}

/// Has the address of the exports moved to this host, then listens.
async fn prepare(
    args: &AttachArgs,
    array: &Array,
) -> Result<Vec<netraid_export::nbd::NbdListener>> {
    if let Some(command) = &args.standby.on_active {
        let name = array.handle().status().await?.name;
        move_here(command, &name).await?;
    }
    args.exports.listen().await
}

/// Runs the command of `--on-active`. What it prints goes to standard error: documents are on standard output.
async fn move_here(command: &str, array: &str) -> Result<()> {
    let named = || format!("--on-active '{}'", escaped(command));
    let output = std::io::stderr().as_fd().try_clone_to_owned().context("standard error")?;
    let mut child = Command::new("sh")
        .args(["-c", command])
        .env("NETRAID_ARRAY", array)
        .stdin(Stdio::null())
        .stdout(Stdio::from(output))
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("{}: cannot be run", named()))?;
    let _group = Group(child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)));
    let Ok(ended) = timeout(HOOK_MAX, child.wait()).await else {
        bail!("{} has not ended within {} s; nothing is exported", named(), HOOK_MAX.as_secs());
    };
    let status = ended.with_context(named)?;
    match status.success() {
        true => Ok(()),
        false => bail!("{} failed ({status}); nothing is exported", named()),
    }
}

/// The processes that a command has started, which end with it.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // None is left where that fails.
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

/// An array that another engine stands by for.
struct Active {
    array: Array,
    has_failed: bool,
}

impl Running for Active {
    fn handle(&self) -> &ArrayHandle {
        self.array.handle()
    }

    fn notes(&self) -> &[String] {
        self.array.notes()
    }

    /// None also when it has failed: another engine may serve in its place.
    async fn event(&mut self) -> Option<Event> {
        if self.has_failed {
            return None;
        }
        let event = self.array.event().await;
        self.has_failed = matches!(&event, Some(Event::State { state: "failed", .. }));
        event
    }

    async fn close(self, _stop: &mut Stop) -> Result<()> {
        self.array.close().await?;
        Ok(())
    }
}

/// What the control socket is told while this process stands by; clones are the same.
#[derive(Clone)]
struct StandingBy {
    status: watch::Sender<StandbyStatus>,
    stop: Arc<Notify>,
}

impl StandingBy {
    fn new() -> Self {
        let status = StandbyStatus {
            kind: "standby".into(),
            name: None,
            state: "unreadable".into(),
            holder: None,
            reason: "the members are being looked at".into(),
            last_attempt: None,
        };
        Self { status: watch::Sender::new(status), stop: Arc::new(Notify::new()) }
    }

    fn note(&self, outlook: &Outlook, output: Output) {
        self.status.send_modify(|status| {
            status.name = outlook.name().map(str::to_owned);
            status.state = outlook.word().into();
            status.holder = outlook.holder().map(str::to_owned);
            status.reason = outlook.to_string();
        });
        let status = self.status.borrow();
        tracing::info!("stands by: {}", escaped(&status.reason));
        output.announce(&StandsBy { event: "standby", status: &status }, || show(&status));
    }

    fn note_failed(&self, error: String) {
        self.status.send_modify(|status| status.last_attempt = Some(error));
    }

    /// Answers commands until one says that this is to end.
    async fn answer(&self, control: Option<&ControlServer>) {
        let stopped = async {
            self.stop.notified().await;
        };
        match control {
            Some(control) => control.run(self, stopped).await,
            None => stopped.await,
        }
    }
}

impl Service for StandingBy {
    type Request = ControlRequest;

    async fn answer(&self, request: ControlRequest) -> Result<Value, String> {
        match request {
            ControlRequest::Status => {
                let status = self.status.borrow().clone();
                serde_json::to_value(status).map_err(|error| error.to_string())
            }
            ControlRequest::Stop { .. } => {
                self.stop.notify_one();
                Ok(Value::Null)
            }
            ControlRequest::Fail { .. }
            | ControlRequest::Replace { .. }
            | ControlRequest::Rebuild { .. }
            | ControlRequest::ClearErrors { .. }
            | ControlRequest::Scrub { .. } => {
                let reason = &self.status.borrow().reason;
                Err(format!("this engine stands by, ask the one that has the array open: {reason}"))
            }
        }
    }
}

/// A status for people.
pub(crate) fn show(status: &StandbyStatus) -> String {
    let mut text = format!("standing by: {}\n", shown(&status.reason));
    if let Some(error) = &status.last_attempt {
        text += &format!("  last attempt to open it: {}\n", escaped(error));
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[tokio::test]
    async fn what_moves_an_address_is_told_of_the_array_and_must_end_well() {
        move_here("[ \"$NETRAID_ARRAY\" = 'a \"b\"' ]", "a \"b\"").await.unwrap();
        let failed = move_here("exit 7", "vol").await.unwrap_err().to_string();
        assert_eq!(failed, "--on-active 'exit 7' failed (exit status: 7); nothing is exported");
        let killed = move_here("kill -9 $$", "vol").await.unwrap_err().to_string();
        assert!(killed.contains("signal: 9"), "{killed}");
    }

    #[tokio::test]
    async fn what_a_command_leaves_running_ends_with_it() {
        let file = std::env::temp_dir().join(format!("netraid-hook-{}", std::process::id()));
        let command = format!("sleep 300 & echo $! > '{}'", file.display());
        move_here(&command, "vol").await.unwrap();
        let left = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let stat = format!("/proc/{}/stat", left.trim());
        // Who has ended may not have been waited for.
        let runs = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z"));
        timeout(Duration::from_secs(10), async {
            while runs() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
    }

    #[test]
    fn a_time_in_which_a_heartbeat_may_be_late_is_refused() {
        assert_eq!(parse_after("3s"), Ok(Duration::from_secs(3)));
        assert!(parse_after("2999ms").unwrap_err().contains("give 3s or more"));
    }
}
