//! Being told to stop: SIGTERM and SIGINT end every command that runs for long cleanly.

use anyhow::{Context as _, Result, bail};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// Whether SIGTERM or SIGINT arrived.
#[derive(Debug, Clone)]
pub(crate) struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Takes the signals over. Must be called on a runtime, and before anything is announced, so
    /// that no signal is lost.
    pub(crate) fn listen() -> Result<Self> {
        let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
        let (sender, receiver) = watch::channel(false);
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            // Whoever does not listen any more is stopping already.
            let _ = sender.send(true);
            // The runtime goes with the process; until then nobody may take the end of this
            // channel for a signal.
            std::future::pending::<()>().await;
        });
        Ok(Self(receiver))
    }

    /// Waits for the signal.
    pub(crate) async fn wait(&mut self) {
        // An error means that the listener is gone, and then nothing would ever tell us.
        let _ = self.0.wait_for(|stop| *stop).await;
    }

    /// Whether it came.
    pub(crate) fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Fails when it came.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_set() {
            bail!("interrupted by a signal");
        }
        Ok(())
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
