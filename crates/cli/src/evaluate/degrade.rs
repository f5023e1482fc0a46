//! Failing a member of an array of ours, rebuilding it, and putting all back: for the tests `degraded` and
//! `rebuild`, where the user asked for it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use netraid_engine::control::{self, ArrayStatus, ControlRequest};
use netraid_evaluate::catalogue::TestId;

use super::{load::Shared, target::status};
use crate::{control::socket_path, runtime};

/// How long a state may take to be reached that takes no data to be moved.
const CHANGE: Duration = Duration::from_secs(30);
/// How long an array may hold on to the device of a member that was set aside.
const LET_GO: Duration = Duration::from_secs(5);
/// How often a rebuild is begun before it is given up.
const TRIES: u32 = 5;
/// How often the array is asked.
const ASK: Duration = Duration::from_millis(50);

/// The member that tests take away, and where it is.
pub(super) struct Degrade {
    control: Option<String>,
    member: Option<u16>,
    /// Whether it is failed, or being rebuilt, because of us.
    changed: bool,
}

impl Degrade {
    pub(super) const fn new(control: Option<String>, member: Option<u16>) -> Self {
        Self { control, member, changed: false }
    }

    /// An earlier sitting failed the member, and did not see it come back.
    pub(super) const fn was_failed(&mut self) {
        self.changed = true;
    }

    /// Whether the member is away, or may be, because of us.
    pub(super) const fn is_changed(&self) -> bool {
        self.changed
    }

    /// The member that tests take away.
    pub(super) const fn index(&self) -> Option<u16> {
        self.member
    }

    /// Why tests that need it do not apply.
    pub(super) fn missing(&self) -> Option<String> {
        match (&self.control, self.member) {
            (None, _) => Some("the array's control socket is not known; give --control".to_owned()),
            (Some(_), None) => Some("no member may be failed; give --fail-member".to_owned()),
            (Some(_), Some(_)) => None,
        }
    }

    /// Brings the array into the state that a test wants.
    pub(super) fn prepare(
        &mut self,
        test: TestId,
        shared: &Shared,
        notes: &mut Vec<String>,
    ) -> Result<()> {
        match test.group() {
            "degraded" => self.fail(shared),
            "rebuild" => {
                if !self.is_rebuilding()? {
                    self.fail(shared)?;
                    self.rebuild()?;
                }
                if let Some(progress) = self.status()?.progress {
                    let part = progress.done_bytes as f64 / progress.total_bytes.max(1) as f64;
                    notes.push(format!("begins with {:.0}% rebuilt", part * 100.0));
                } else {
                    notes.push("the rebuild had ended before the stream began".to_owned());
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Rebuilds what was failed, and waits until the array is whole again, or until told to stop.
    pub(super) fn restore(&mut self, shared: &Shared) -> Result<()> {
        if !self.changed {
            return Ok(());
        }
        let mut tries = 0;
        while !self.is_in_sync()? {
            if !self.is_rebuilding()? {
                tries += 1;
                if tries > TRIES {
                    bail!(
                        "member {} was failed for a test, and {TRIES} rebuilds of it have failed; look at the \
                         array, and rebuild it by `netraid rebuild`",
                        self.member()?
                    );
                }
                self.rebuild()?;
            }
            if shared.is_stopped() {
                tracing::warn!("the array goes on rebuilding member {:?}", self.member);
                return Ok(());
            }
            std::thread::sleep(ASK);
        }
        self.changed = false;
        Ok(())
    }

    fn fail(&mut self, shared: &Shared) -> Result<()> {
        let before = self.status()?;
        if self.state_in(&before)? != "in_sync" {
            if self.changed && !self.is_rebuilding()? {
                return Ok(());
            }
            // One of ours that is being rebuilt is failed again only when it is whole.
            self.restore(shared)?;
        }
        let before = self.status()?;
        if before.state != "optimal" || before.level == 0 {
            bail!(
                "array '{}' is {} of level {}: no member of it is failed",
                before.name,
                before.state,
                before.level
            );
        }
        self.changed = true;
        self.ask(&ControlRequest::Fail { member: self.member()? })?;
        self.wait(shared, |this| Ok(this.state_in(&this.status()?)? != "in_sync"))
    }

    /// Takes the member back. Its device is refused as long as the array lets go of it.
    fn rebuild(&self) -> Result<()> {
        let deadline = Instant::now() + LET_GO;
        loop {
            match self.ask(&ControlRequest::Rebuild { member: self.member()? }) {
                Err(_) if Instant::now() < deadline => std::thread::sleep(ASK),
                result => return result,
            }
        }
    }

    fn is_rebuilding(&self) -> Result<bool> {
        let status = self.status()?;
        let progress = status.progress.as_ref().and_then(|progress| progress.member);
        let ours = progress.is_some() && progress.map(u16::from) == self.member;
        Ok(self.state_in(&status)? == "catching_up" || ours)
    }

    fn is_in_sync(&self) -> Result<bool> {
        Ok(self.state_in(&self.status()?)? == "in_sync")
    }

    fn wait(&self, shared: &Shared, reached: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + CHANGE;
        while !reached(self)? {
            shared.check()?;
            if Instant::now() > deadline {
                bail!("the array does not set its member aside within {} s", CHANGE.as_secs());
            }
            std::thread::sleep(ASK);
        }
        Ok(())
    }

    fn state_in(&self, status: &ArrayStatus) -> Result<String> {
        let index = self.member.context("no member to fail")?;
        let found = status.members.iter().find(|member| u16::from(member.index) == index);
        let found =
            found.with_context(|| format!("array '{}' has no member {index}", status.name))?;
        Ok(found.state.clone())
    }

    fn status(&self) -> Result<ArrayStatus> {
        status(self.control.as_deref().context("no control socket")?)
    }

    fn member(&self) -> Result<String> {
        Ok(self.member.context("no member to fail")?.to_string())
    }

    fn ask(&self, request: &ControlRequest) -> Result<()> {
        let path = socket_path(self.control.as_deref().context("no control socket")?)?;
        runtime()?.block_on(control::call(&path, request))?;
        Ok(())
    }
}

impl Drop for Degrade {
    fn drop(&mut self) {
        // On ways out that could not wait: the array is told to take its member back.
        if !self.changed {
            return;
        }
        let cared_for = self.is_rebuilding().unwrap_or(true) || self.is_in_sync().unwrap_or(true);
        if !cared_for {
            let _ = self.rebuild();
        }
    }
}
