//! The array's shell: members over iSCSI, the volume that decides, one task that owns both.
//!
//! ```text
//! export ── Request ──▶ driver task ── member Request ──▶ one task a session ──▶ socket
//!        ◀─ completion ─ (volume)      ◀─ completion ───
//! ```
//!
//! The driver executes what the volume ([`netraid_raid::volume`]) asks for and decides nothing.

mod caches;
mod create;
mod driver;
mod error;
mod examine;
mod fence;
mod join;
mod lock;
mod member;
mod open;
mod putback;
mod slots;
mod status;

use netraid_block::{BlockDevice, Device, DeviceInfo, Pool, Request};
use netraid_raid::{assemble::CleanClose, member::MemberIndex};
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};

pub use caches::Caches;
pub use create::{CreateOptions, CreateReport, Log, create, create_degraded};
pub use error::ArrayError;
pub use examine::{
    ExamineReport, LabelReport, RegionReport, SurveyMember, SurveyReport, examine, survey,
};
pub use lock::HostLock;
pub use member::{Keyring, MemberConfig};
pub use netraid_raid::medium::signature;
pub use open::OpenOptions;

use crate::control::{ArrayStatus, ControlRequest, ScrubStatus};
use driver::{Command, Driver};

/// What happened to an array, for logs and scripts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A member's state changed.
    Member {
        /// Index.
        member: u8,
        /// Address.
        url: String,
        /// Its state now; `suspect` while it takes part and has no session.
        state: &'static str,
        /// Why.
        reason: String,
    },
    /// The array's state changed.
    State {
        /// Its state now.
        state: &'static str,
        /// Why, when it failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<String>,
    },
    /// A range that a member could not read, or that was wrong, was written back from the others.
    Repaired {
        /// Index.
        member: u8,
        /// Where on the member.
        offset: u64,
    },
    /// A member holds everything again.
    Rebuilt {
        /// Index.
        member: u8,
    },
    /// Parity matches again after a crash.
    Resynced,
    /// A rebuild or resync has ended, but for stripes that other members could not give.
    Incomplete {
        /// The member that is rebuilt; none: a resync.
        #[serde(skip_serializing_if = "Option::is_none")]
        member: Option<u8>,
        /// How many stripes are left.
        stripes: u64,
    },
    /// Bytes on a member are wrong, unreadable or unknown, and cannot be had from the others: a
    /// scrub found them, or a member that caught up lacks them.
    Unrepaired {
        /// Index.
        member: u8,
        /// Where on the member.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// What is the matter.
        reason: &'static str,
    },
    /// A scrub has ended.
    Scrubbed {
        /// What it found.
        scrub: ScrubStatus,
    },
    /// Something that an administrator should know.
    Notice {
        /// What.
        text: String,
    },
}

/// An open array.
#[derive(Debug)]
pub struct Array {
    handle: ArrayHandle,
    device: Device,
    events: mpsc::Receiver<Event>,
    notes: Vec<String>,
}

/// A way to command an open array; clones lead to the same one.
#[derive(Debug, Clone)]
pub struct ArrayHandle {
    commands: mpsc::Sender<Command>,
    stop: watch::Receiver<bool>,
}

#[derive(Debug)]
struct ArrayDevice {
    info: DeviceInfo,
    requests: mpsc::UnboundedSender<Request>,
}

impl Array {
    /// Opens the array that `members` make up, and starts its task on the current tokio runtime.
    ///
    /// # Errors
    /// When the labels do not add up to an array that may be opened, or it fails meanwhile.
    pub async fn open(
        options: OpenOptions,
        members: Vec<MemberConfig>,
        pool: Pool,
    ) -> Result<Self, ArrayError> {
        let opened = open::open(options, members.clone(), &pool).await?;
        let (info, notes) = (opened.info.clone(), opened.notes.clone());
        let (request_sender, requests) = mpsc::unbounded_channel();
        let (commands, command_receiver) = mpsc::channel(16);
        // Events that nobody fetches are dropped: they are in the log too.
        let (event_sender, events) = mpsc::channel(1024);
        let (stop_sender, stop) = watch::channel(false);
        let (ready_sender, ready) = oneshot::channel();
        let channels = driver::Channels {
            requests,
            commands: command_receiver,
            events: event_sender,
            stop: stop_sender,
        };
        let driver = Driver::new(opened, members, channels, pool);
        tokio::spawn(driver.run(ready_sender));
        match ready.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(ArrayError::Failed(error)),
            Err(_) => return Err(ArrayError::Closing),
        }
        let device = Device::new(Arc::new(ArrayDevice { info, requests: request_sender }));
        Ok(Self { handle: ArrayHandle { commands, stop }, device, events, notes })
    }

    /// The volume.
    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// A way to command the array.
    #[must_use]
    pub const fn handle(&self) -> &ArrayHandle {
        &self.handle
    }

    /// What was noticed while it was opened, one line each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The next event; cancel safe. `None` when the array's task has ended.
    pub async fn event(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Ends all requests, makes everything stable, and closes the sessions. Says who held everything
    /// then; nothing when it was open for reading, or something is left to do for the next opening.
    ///
    /// # Errors
    /// When the array has failed: what was not stable before may not be stable now.
    pub async fn close(self) -> Result<Option<CleanClose>, ArrayError> {
        let (reply, closed) = oneshot::channel();
        // What cannot be sent is dropped, and its reply with it: that ends the wait.
        drop(self.handle.commands.send(Command::Close(reply)).await);
        closed.await.map_or(Err(ArrayError::Closing), |end| end.map_err(ArrayError::Failed))
    }
}

impl ArrayHandle {
    /// How the array is.
    ///
    /// # Errors
    /// When it is closing.
    pub async fn status(&self) -> Result<ArrayStatus, ArrayError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.send(Command::Status(reply)).await;
        sent.map_err(|_| ArrayError::Closing)?;
        answer.await.map_err(|_| ArrayError::Closing)
    }

    /// Carries out a command; a replacement is answered when its rebuild begins.
    ///
    /// # Errors
    /// When the array refuses, or is closing.
    pub async fn command(&self, request: ControlRequest) -> Result<Value, ArrayError> {
        if request == ControlRequest::Status {
            let status = self.status().await?;
            return Ok(serde_json::to_value(status).unwrap_or_default());
        }
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.send(Command::Control(request, reply)).await;
        sent.map_err(|_| ArrayError::Closing)?;
        answer.await.unwrap_or(Err(ArrayError::Closing)).map(|()| Value::Null)
    }

    /// Puts a device in the place of a member, whatever is on it; answered when its rebuild begins.
    ///
    /// # Errors
    /// When the array refuses, or is closing.
    pub async fn replace(&self, member: MemberIndex, with: MemberConfig) -> Result<(), ArrayError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.send(Command::Replace(member, Box::new(with), reply)).await;
        sent.map_err(|_| ArrayError::Closing)?;
        answer.await.unwrap_or(Err(ArrayError::Closing))
    }

    /// Limits how fast members catch up and are rebuilt, in bytes a second of stripes with their
    /// checks; as fast as they can when none, which is the usual. An array without a log knows no limit.
    ///
    /// # Errors
    /// When it is closing.
    pub async fn limit_rebuild(&self, rate: Option<u64>) -> Result<(), ArrayError> {
        let sent = self.commands.send(Command::LimitRebuild(rate)).await;
        sent.map_err(|_| ArrayError::Closing)
    }

    /// Ends it at once, as if this process had died: requests end as aborted, what was not made stable
    /// may be lost, and whoever opens it next recovers. For an array whose members let nobody in any
    /// more.
    pub async fn abandon(&self) {
        let (reply, ended) = oneshot::channel();
        if self.commands.send(Command::Abandon(reply)).await.is_ok() {
            // The array's task is gone: so are the sessions.
            let _ = ended.await;
        }
    }

    /// Waits until somebody asks for the array to be stopped.
    pub async fn stop_requested(&mut self) {
        // The array's task has ended: it has stopped.
        let _ = self.stop.wait_for(|stop| *stop).await;
    }
}

impl BlockDevice for ArrayDevice {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn submit(&self, request: Request) {
        // When the task is gone, dropping the request ends it as aborted.
        let _ = self.requests.send(request);
    }
}
