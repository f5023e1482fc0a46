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
mod pause;
mod putback;
mod slots;
mod standby;
mod status;

use netraid_block::{BlockDevice, Device, DeviceInfo, Pool, Request};
use netraid_raid::{assemble::CleanClose, member::MemberIndex};
use serde::Serialize;
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tokio::sync::{mpsc, oneshot, watch};

pub use caches::Caches;
pub use create::{CreateOptions, CreateReport, Log, create, create_degraded};
pub use error::{ArrayError, Who};
pub use examine::{
    ExamineReport, LabelReport, RegionReport, SurveyMember, SurveyReport, examine, survey,
};
pub use lock::HostLock;
pub use member::{Keyring, MemberConfig};
pub use netraid_raid::medium::signature;
pub use open::OpenOptions;
pub use standby::{AFTER_MIN, AFTER_USUAL, Attempt, Outlook, Silent, Watch};

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
    /// A member has become slow, or is no longer.
    Slow {
        /// Index.
        member: u8,
        /// Address.
        url: String,
        /// It answers reads so late that what the others have is not read from it.
        slow: bool,
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

/// Devices that take the places of members that stay away, by themselves.
#[derive(Debug, Default)]
pub struct Spares {
    /// In the order in which they are taken; each must be unused, or have taken a place before.
    pub devices: Vec<MemberConfig>,
    /// How long a member is waited for that may come back by itself.
    pub after: Duration,
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
    /// Of what has one.
    path: Option<Arc<str>>,
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
        Self::open_with_spares(options, members, Spares::default(), pool).await
    }

    /// The same, with devices that take the places of members that stay away. A spare that has taken a place before is a
    /// member.
    ///
    /// # Errors
    /// When the labels do not add up to an array that may be opened, or it fails meanwhile.
    pub async fn open_with_spares(
        options: OpenOptions,
        members: Vec<MemberConfig>,
        spares: Spares,
        pool: Pool,
    ) -> Result<Self, ArrayError> {
        let (_sender, stop) = watch::channel(false);
        Self::open_unless_stopped(options, (members, spares), pool, &stop).await
    }

    /// The same until `stop` says that the array is not to be opened any more: what was taken of the members is given back then.
    ///
    /// # Errors
    /// As [`Self::open_with_spares`], and [`ArrayError::Closing`] when it was stopped.
    pub async fn open_unless_stopped(
        options: OpenOptions,
        (members, spares): (Vec<MemberConfig>, Spares),
        pool: Pool,
        stop: &watch::Receiver<bool>,
    ) -> Result<Self, ArrayError> {
        let opened = open::open(options, (members.clone(), &spares.devices), &pool, stop).await?;
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
        let driver = Driver::new(opened, (options, members, spares), channels, pool);
        tokio::spawn(driver.run(ready_sender));
        match ready.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(ArrayError::Failed(error)),
            Err(_) => return Err(ArrayError::Closing),
        }
        let device = Device::new(Arc::new(ArrayDevice { info, requests: request_sender }));
        Ok(Self { handle: ArrayHandle { commands, stop, path: None }, device, events, notes })
    }

    /// The same array, which is said to be what has this path: its name is an id. To be called before others have its
    /// handle.
    #[must_use]
    pub fn with_path(mut self, path: &str) -> Self {
        self.handle.path = Some(path.into());
        self
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
        let status = answer.await.map_err(|_| ArrayError::Closing)?;
        Ok(ArrayStatus { path: self.path.as_deref().map(str::to_owned), ..status })
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

    /// A member's own device is found elsewhere from now on: by whoever looks for it next. A session that there is to it
    /// goes on.
    ///
    /// # Errors
    /// When it is closing.
    pub async fn moved(&self, member: MemberIndex, to: MemberConfig) -> Result<(), ArrayError> {
        let sent = self.commands.send(Command::Moved(member, Box::new(to))).await;
        sent.map_err(|_| ArrayError::Closing)
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

    /// Users' requests wait for members no longer, since the array is to be closed: a pause ends after one attempt more
    /// to go on, and the array does not pause again.
    ///
    /// # Errors
    /// When it is closing.
    pub async fn pause_no_more(&self) -> Result<(), ArrayError> {
        let sent = self.commands.send(Command::PauseNoMore).await;
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
