//! Being told to stop: SIGTERM, SIGINT and SIGHUP end every command that runs for long cleanly. Where SIGHUP is ignored, as
//! `nohup` has it, it stays ignored.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use netraid_files::Cluster;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use tokio::{
    signal::unix::{Signal as TokioSignal, SignalKind, signal},
    sync::watch,
};

/// Signals that come so soon after one that counted are the same word: `timeout` tells the process and its group, and a
/// terminal tells the group beside whoever tells the process.
const SAME_WORD: Duration = Duration::from_secs(1);

/// How often somebody said by SIGTERM, SIGINT or SIGHUP that this is to end.
#[derive(Debug, Clone)]
pub(crate) struct Stop(watch::Receiver<u32>);

/// Ended by a signal.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted by a signal")
    }
}

impl std::error::Error for Interrupted {}

/// A write beyond the process's limit of a file's length (`ulimit -f`) fails from now on, as if there was no space:
/// the signal that comes with it ends the process otherwise. Must be called on a runtime.
///
/// # Errors
/// When the system does not let it.
pub(crate) fn survive_file_limits() -> Result<()> {
    // The handler stays when nobody listens.
    let listened = signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).context("SIGXFSZ")?;
    drop(listened);
    Ok(())
}

impl Stop {
    /// Takes the signals over. Must be called on a runtime, and before anything is announced, so
    /// that no signal is lost.
    pub(crate) fn listen() -> Result<Self> {
        let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
        // A terminal that goes is no reason to leave anything open.
        let hangup = (!ignores_hangup()).then(|| signal(SignalKind::hangup())).transpose();
        let mut hangup = hangup.context("SIGHUP")?;
        let (sender, receiver) = watch::channel(0);
        // It ends with the runtime: nobody may take the end of this channel for a signal.
        tokio::spawn(async move {
            let mut counted: Option<Instant> = None;
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                    () = hung_up(&mut hangup) => {}
                }
                if counted.is_none_or(|counted| counted.elapsed() >= SAME_WORD) {
                    counted = Some(Instant::now());
                    sender.send_modify(|signals| *signals += 1);
                }
            }
        });
        Ok(Self(receiver))
    }

    /// Waits for the signal.
    pub(crate) async fn wait(&mut self) {
        // An error means that the listener is gone, and then nothing would ever tell us.
        let _ = self.0.wait_for(|signals| *signals > 0).await;
    }

    /// Waits for one signal more than came until now.
    pub(crate) async fn wait_for_another(&mut self) {
        let before = *self.0.borrow();
        let _ = self.0.wait_for(|signals| *signals > before).await;
    }

    /// Whether it came.
    pub(crate) fn is_set(&self) -> bool {
        *self.0.borrow() > 0
    }

    /// Fails when it came.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_set() {
            bail!(Interrupted);
        }
        Ok(())
    }
}

/// What a second signal cuts short.
pub(crate) const NOT_CLOSED: &str = "ended by a second signal, before the mediator knew that what was open is closed: it \
     counts as open for up to ten minutes; a volume is opened before that by --take-over";

/// Waits for SIGHUP, for ever where nobody listens to it.
async fn hung_up(hangup: &mut Option<TokioSignal>) {
    match hangup {
        Some(hangup) => drop(hangup.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether SIGHUP is ignored, as proc_pid_status(5) tells: it is the first of the mask.
fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 > 0)
}

/// Does this until a signal comes, then gives back what it has open at the cluster. A second signal ends
/// that as well: the rest ends by itself, in minutes.
pub(crate) async fn until_stopped<T>(
    cluster: &Cluster,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut stop = Stop::listen()?;
    let end = tokio::select! {
        end = work => end,
        () = stop.wait() => Err(Interrupted.into()),
    };
    settle(cluster, &mut stop).await;
    end
}

/// Waits until all that was opened at the cluster is given back, unless a second signal came or another one
/// comes.
pub(crate) async fn settle(cluster: &Cluster, stop: &mut Stop) {
    if *stop.0.borrow() > 1 {
        return;
    }
    tokio::select! {
        () = cluster.settled() => {}
        () = stop.wait_for_another() => tracing::warn!("{NOT_CLOSED}"),
    }
}

/// Gets SIGTERM when the parent dies, however it dies.
pub(crate) fn stop_with_parent() -> Result<()> {
    let parent = getppid();
    set_parent_process_death_signal(Some(Signal::TERM)).context("cannot watch the parent")?;
    if getppid() != parent {
        bail!("the parent process has died");
    }
    Ok(())
}
