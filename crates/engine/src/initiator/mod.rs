//! The iSCSI initiator: a LUN of any vendor's target as a [`BlockDevice`].
//!
//! [`Remote::connect`] logs in, examines the disk, and starts one task that owns the session.
//! Requests come to it through a queue from any thread. Every request ends within its deadline,
//! in success or with an error; a lost connection is made again meanwhile, and what was under way
//! is sent again, which is safe because all of it is idempotent.

mod actor;
mod disk;
mod error;
mod link;
mod probe;
mod requests;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use netraid_block::{BlockDevice, Device, DeviceInfo, Pool, Request, TargetUri};
pub use netraid_iscsi_proto::{
    chap::{Credentials, Secret},
    initiator::{FoundTarget, LoginError},
};
use netraid_iscsi_proto::{
    initiator::{Setup, random_isid},
    negotiation::{DigestPolicy, Wishes},
};
use tokio::sync::{mpsc, oneshot};

pub use self::{
    error::{InitiatorError, Reason},
    probe::RemoteIdentity,
};
use self::{link::Link, probe::Probed};

/// Name of this initiator where the owner gives none.
const INITIATOR_NAME: &str = "iqn.2026-01.io.netraid:initiator";

/// How to reach a LUN, and what is expected of it.
#[derive(Debug, Clone)]
pub struct InitiatorConfig {
    /// Where the LUN is; may carry user and secret.
    pub uri: TargetUri,
    /// The CHAP secret; before the one that the address carries.
    pub secret: Option<Secret>,
    /// iSCSI name of this side.
    pub initiator_name: String,
    /// Identifies the session among those of this name (RFC 7143, section 4.4.3); random when
    /// none. A login with the ISID of another session ends that one, and begins when its commands
    /// have ended: whoever takes over from a dead predecessor gives the same.
    pub isid: Option<[u8; 6]>,
    /// Longest that a request may take, reconnecting included.
    pub request_timeout: Duration,
    /// Longest that connecting may take, and again logging in.
    pub login_timeout: Duration,
    /// Insist on header digests.
    pub header_digest: bool,
    /// Insist on data digests.
    pub data_digest: bool,
    /// Commands in progress: 1 to 1024.
    pub queue_depth: u16,
}

impl InitiatorConfig {
    /// The usual settings for a LUN.
    #[must_use]
    pub fn new(uri: TargetUri) -> Self {
        Self {
            uri,
            secret: None,
            initiator_name: INITIATOR_NAME.to_owned(),
            isid: None,
            request_timeout: Duration::from_secs(5),
            login_timeout: Duration::from_secs(5),
            header_digest: false,
            data_digest: false,
            queue_depth: 128,
        }
    }

    fn setup(&self) -> Result<Setup, Reason> {
        if !(1..=1024).contains(&self.queue_depth) {
            return Err(Reason::Config("queue depth is out of range; use 1 to 1024"));
        }
        let name = Some(self.uri.target.clone());
        let isid = self.isid.unwrap_or_else(|| random_isid(rand::random(), rand::random()));
        let mut setup = Setup::new(self.initiator_name.clone(), name, isid);
        setup.chap = self.credentials()?;
        setup.wishes = Wishes {
            header_digest: policy(self.header_digest),
            data_digest: policy(self.data_digest),
            ..Wishes::default()
        };
        setup.queue_depth = self.queue_depth;
        setup.login_timeout = self.login_timeout;
        // A hung peer is found and left in time for requests to be sent to its successor.
        setup.ping_interval_busy = self.request_timeout / 4;
        setup.ping_timeout = self.request_timeout / 4;
        Ok(setup)
    }

    fn credentials(&self) -> Result<Option<Credentials>, Reason> {
        let carried = match &self.uri.secret {
            Some(secret) => Some(
                Secret::new(secret.as_bytes())
                    .map_err(|_| Reason::Config("the secret is too long; use 12 to 32 bytes"))?,
            ),
            None => None,
        };
        match (&self.uri.user, self.secret.clone().or(carried)) {
            (Some(user), Some(secret)) => Ok(Some(Credentials { user: user.clone(), secret })),
            (Some(_), None) => Err(Reason::Config(
                "a user is given but no secret; give one by file or environment",
            )),
            (None, Some(_)) => {
                Err(Reason::Config("a secret is given but no user; write iscsi://user@host/..."))
            }
            (None, None) => Ok(None),
        }
    }
}

/// A LUN of a target, reached over iSCSI. Dropping it ends the session once all requests have
/// ended.
#[derive(Debug)]
pub struct Remote {
    sender: mpsc::UnboundedSender<Message>,
    info: DeviceInfo,
    identity: RemoteIdentity,
    place: Arc<str>,
    state: Arc<State>,
}

/// What the task that owns the session is sent.
enum Message {
    Request(Request),
    Close(oneshot::Sender<()>),
}

/// What can be seen of the session from outside its task.
#[derive(Debug, Default)]
struct State {
    connected: AtomicBool,
    cache_losses: AtomicU64,
    reconnects: AtomicU64,
}

impl Remote {
    /// Logs in, examines the disk, and starts the task that owns the session on the current
    /// tokio runtime.
    ///
    /// # Errors
    /// When the configuration contradicts itself, the target cannot be reached or refuses, or
    /// the LUN is not there or no disk that can be used.
    pub async fn connect(config: InitiatorConfig, pool: Pool) -> Result<Self, InitiatorError> {
        let place: Arc<str> = config.uri.to_string().into();
        let fail = |reason| InitiatorError::new(place.to_string(), reason);
        let setup = Arc::new(config.setup().map_err(fail)?);
        let dialer = Arc::new(Dialer { config, setup, pool });
        let (link, probed) = dialer.dial().await.map_err(fail)?;
        let state = Arc::new(State::default());
        state.connected.store(true, Ordering::Release);
        let (sender, receiver) = mpsc::unbounded_channel();
        let (info, identity) = (describe(&probed.profile), probed.identity.clone());
        let actor = actor::Actor::new(dialer, probed, receiver, state.clone(), place.clone());
        tokio::spawn(actor.run(link));
        Ok(Self { sender, info, identity, place, state })
    }

    /// The device behind this handle, checked at the seam.
    #[must_use]
    pub fn into_device(self: Arc<Self>) -> Device {
        Device::new(self)
    }

    /// Who the disk says that it is.
    #[must_use]
    pub fn identity(&self) -> &RemoteIdentity {
        &self.identity
    }

    /// Its address, without secrets.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.place
    }

    /// Whether there is a session now.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.state.connected.load(Ordering::Acquire)
    }

    /// How often the disk said that it was reset or restarted, or that it does not know this
    /// session any more: each time, writes that were not flushed may be gone. A request that
    /// completes after such an event completes after this was counted.
    #[must_use]
    pub fn cache_losses(&self) -> u64 {
        self.state.cache_losses.load(Ordering::Acquire)
    }

    /// How often the session was made again.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.state.reconnects.load(Ordering::Acquire)
    }

    /// Waits for all requests to end, and logs out, for a bounded time.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.sender.send(Message::Close(done)).is_ok() {
            // The task is gone: so is the session.
            let _ = closed.await;
        }
    }
}

impl BlockDevice for Remote {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn submit(&self, request: Request) {
        // When the task is gone, dropping the request ends it as aborted.
        let _ = self.sender.send(Message::Request(request));
    }
}

/// The targets that a portal offers.
///
/// # Errors
/// When it cannot be reached, or refuses.
pub async fn discover(
    host: &str,
    port: u16,
    credentials: Option<Credentials>,
    timeout: Duration,
) -> Result<Vec<FoundTarget>, InitiatorError> {
    let fail = |reason| InitiatorError::new(format!("{host}:{port}"), reason);
    let isid = random_isid(rand::random(), rand::random());
    let mut setup = Setup::new(INITIATOR_NAME.to_owned(), None, isid);
    setup.chap = credentials;
    setup.login_timeout = timeout;
    setup.ping_interval_idle = timeout;
    let mut link = Link::dial(host, port, Arc::new(setup), Pool::new()).await.map_err(fail)?;
    let found = link.found().await.map_err(fail)?;
    link.log_out(timeout).await;
    Ok(found)
}

/// Makes sessions to one LUN.
struct Dialer {
    config: InitiatorConfig,
    setup: Arc<Setup>,
    pool: Pool,
}

impl Dialer {
    async fn dial(&self) -> Result<(Link, Probed), Reason> {
        let TargetUri { host, port, lun, .. } = &self.config.uri;
        let mut link = Link::dial(host, *port, self.setup.clone(), self.pool.clone()).await?;
        let limit = self.config.login_timeout;
        match tokio::time::timeout(limit, probe::probe(&mut link, *lun)).await {
            Ok(probed) => Ok((link, probed?)),
            Err(_) => Err(Reason::Silent(limit)),
        }
    }
}

const fn policy(insist: bool) -> DigestPolicy {
    if insist { DigestPolicy::Required } else { DigestPolicy::Never }
}

fn describe(profile: &disk::Profile) -> DeviceInfo {
    DeviceInfo {
        capacity: profile.capacity(),
        block_len: profile.block_len,
        optimal_len: profile.block_len.max(4096),
        max_transfer_len: profile.max_transfer_len,
        read_only: profile.read_only,
        // A disk that does not say may have one.
        volatile_cache: profile.write_cache != Some(false),
        can_discard: profile.unmap_max > 0,
        can_map: false,
    }
}
