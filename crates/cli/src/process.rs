//! Other processes of this program: started, awaited, and ended by their ids on every path.

use std::{
    env,
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::signal::Stop;

/// How long a daemon may take to become ready.
const READY: Duration = Duration::from_secs(30);
/// How long it may take to end after SIGTERM: flushing takes its time.
const END: Duration = Duration::from_secs(30);
/// How long it gets when we are in the middle of failing anyway.
const END_ON_DROP: Duration = Duration::from_secs(5);
/// Lines of a daemon that wait to be read; later ones are dropped.
const LINES_MAX: usize = 64;

/// A running `netraid target` or `netraid attach`. Dropping it ends the process.
pub(crate) struct Daemon {
    name: String,
    child: Child,
    ready: Value,
    lines: mpsc::Receiver<Value>,
}

impl Daemon {
    /// Starts this program with `args` and waits until it says that it is ready.
    pub(crate) fn start(name: impl Into<String>, args: &[String]) -> Result<Self> {
        let name = name.into();
        let mut command = Command::new(env::current_exe().context("own executable")?);
        command.args(args).args(["--json", "--exit-with-parent"]);
        // Ctrl-C is for us alone: we end them in order, members last.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let (sender, lines) = mpsc::sync_channel(LINES_MAX);
        let out = child.stdout.take().context("standard output of the child")?;
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let Ok(value) = serde_json::from_str(&line) else { continue };
                // Reading goes on in any case: a full pipe would stop the daemon.
                let _ = sender.try_send(value);
            }
        });
        let mut daemon = Self { name, child, ready: Value::Null, lines };
        daemon.ready = daemon.next_line(READY)?;
        Ok(daemon)
    }

    /// The text at `pointer` in that document.
    pub(crate) fn ready_text(&self, pointer: &str) -> Result<String> {
        let text = self.ready.pointer(pointer).and_then(Value::as_str);
        let text =
            text.with_context(|| format!("{}: no {pointer} in {}", self.name, self.ready))?;
        Ok(text.to_string())
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that the process prints.
    pub(crate) fn next_line(&mut self, patience: Duration) -> Result<Value> {
        match self.lines.recv_timeout(patience) {
            Ok(value) => Ok(value),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                bail!("{} said nothing for {} s", self.name, patience.as_secs())
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let status = self.child.wait()?;
                bail!("{} ended: {status}", self.name)
            }
        }
    }

    /// Whether the process is still there.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill().with_context(|| format!("cannot kill {}", self.name))?;
        self.child.wait().with_context(|| format!("cannot await {}", self.name)).map(drop)
    }

    /// SIGTERM; the process must then end by itself, cleanly.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.terminate();
        let Some(status) = self.wait(END)? else {
            bail!("{} did not end within {} s of SIGTERM", self.name, END.as_secs());
        };
        if !status.success() {
            bail!("{} ended with {status} after SIGTERM", self.name);
        }
        Ok(())
    }

    fn terminate(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid.filter(|_| self.is_running()) {
            // It may have ended in this moment; then there is nothing to end.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    fn wait(&mut self, patience: Duration) -> Result<Option<std::process::ExitStatus>> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() > deadline {
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.terminate();
        if !matches!(self.wait(END_ON_DROP), Ok(Some(_))) {
            // Failing to end a process twice leaves nothing else to try.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Runs a command of this program to its end and returns its document; a signal ends it early.
pub(crate) fn call(args: &[String], stop: &Stop) -> Result<Value> {
    let mut command = Command::new(env::current_exe().context("own executable")?);
    command.args(args).arg("--json").process_group(0).stdin(Stdio::null());
    // Both outputs are short, so that they fit the pipes and need no reader meanwhile.
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    while child.try_wait()?.is_none() {
        if stop.is_set() {
            child.kill()?;
            child.wait()?;
            stop.check()?;
        }
        thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let text = text.trim_end().trim_start_matches("netraid: ");
        bail!("{}", if text.is_empty() { "the command failed" } else { text });
    }
    serde_json::from_slice(&output.stdout).context("the command printed no document")
}

/// An array of arguments as strings.
#[macro_export]
macro_rules! args {
    ($($arg:expr),* $(,)?) => { [$($arg.to_string()),*] };
}
