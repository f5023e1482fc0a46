//! The iSCSI initiator: a LUN of any vendor's target as a [`BlockDevice`].
//!
//! [`Remote::connect`] starts one task that owns the sessions to it: one, or several that share the requests. Requests come
//! to it through a queue from any thread. Every request ends within its deadline, in success or with an error. A lost
//! session is made again meanwhile, at the portal that answers first, and what was under way in it is sent again, which is
//! safe because all of it is idempotent and the new session has ended the old one's commands. A peer that is surely not
//! there is not waited for as long.
//!
//! What is done when is decided by [`netraid_remote`]; here are the sockets, the clock, and the way in from other tasks.

mod driver;
mod error;
mod lines;
mod reservation;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use netraid_block::{
    BlockDevice, Device, DeviceInfo, IoError, Pool, Portal, Request, TargetUri, UriOptions,
};
pub use netraid_iscsi_proto::{
    chap::{Credentials, Secret},
    initiator::{FoundTarget, LoginError},
};
use netraid_iscsi_proto::{
    initiator::{Setup, random_isid},
    negotiation::{DigestPolicy, Wishes},
};
use netraid_remote::{Opened, Order, Settings, Status};
pub use netraid_remote::{Reason, RemoteIdentity};
use tokio::sync::{mpsc, oneshot, watch};

use self::driver::Driver;
pub use self::{
    error::InitiatorError,
    reservation::{Keys, Reservation, ReservationType},
};

/// Name of this initiator where the owner gives none.
const INITIATOR_NAME: &str = "iqn.2026-01.io.netraid:initiator";

/// Longest that a busy peer may be silent before it is asked whether it is there, and then before it is
/// given up.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Silence after which a peer is pinged that has nothing to do.
const IDLE_PING: Duration = Duration::from_millis(750);

/// Shortest time that such a peer has for its answer.
const IDLE_SILENCE_MIN: Duration = Duration::from_secs(1);

/// How to reach a LUN, and what is expected of it.
#[derive(Debug, Clone)]
pub struct InitiatorConfig {
    /// Where the LUN is; may carry user and secret.
    pub uri: TargetUri,
    /// The CHAP secret; before the one that the address carries.
    pub secret: Option<Secret>,
    /// User and secret that their owner may replace while sessions go on; each login takes those of
    /// the moment, in the place of the address's user and of `secret`.
    pub live_credentials: Option<watch::Receiver<Credentials>>,
    /// Whether the target may let this side in without a proof although there is a secret; else it is
    /// refused, since it may be another than the one that was meant.
    pub allow_none: bool,
    /// What the target has to prove that it knows (mutual CHAP); another secret than `secret`. Before
    /// what the address says.
    pub target_secret: Option<Secret>,
    /// The name that the target must give with its proof; none: any.
    pub target_user: Option<String>,
    /// iSCSI name of this side.
    pub initiator_name: String,
    /// Identifies the session among those of this name (RFC 7143, section 4.4.3); random when
    /// none. A login with the ISID of another session ends that one, and begins when its commands
    /// have ended: whoever takes over from a dead predecessor gives the same. Further sessions
    /// have theirs from it, by their number in the last byte.
    pub isid: Option<[u8; 6]>,
    /// Sessions that share the requests: 1 to 8. Each begins at another portal.
    pub sessions: u8,
    /// Longest that a request may take, reconnecting included, while the disk makes no progress, or goes on
    /// with what came later; on a slow path that moves all it can, up to twelve times as long.
    pub request_timeout: Duration,
    /// How long requests wait for a peer of which every portal refuses connections, or answers as
    /// another disk: as long as a restart may take. What has waited longer fails, and so does
    /// what comes later, as soon as an attempt has failed that was made for it.
    pub refusal_limit: Duration,
    /// Longest that connecting may take, and again logging in; with several portals, a quarter of
    /// `request_timeout` for each when that is less.
    pub login_timeout: Duration,
    /// Keys of reservations of those who only read: a mask, and what such a key shows under it. A session whose registration is gone
    /// is not taken to be fenced out by these.
    pub reader_keys: Option<(u64, u64)>,
    /// Insist on header digests, also where the address does not.
    pub header_digest: bool,
    /// Insist on data digests, also where the address does not.
    pub data_digest: bool,
    /// Commands in progress: 1 to 1024.
    pub queue_depth: u16,
}

/// The usual time that a peer may refuse connections: several times what ours takes to start again.
pub(crate) const REFUSAL_LIMIT: Duration = Duration::from_millis(500);

impl InitiatorConfig {
    /// The usual settings for a LUN.
    #[must_use]
    pub fn new(uri: TargetUri) -> Self {
        Self {
            uri,
            secret: None,
            live_credentials: None,
            allow_none: false,
            target_secret: None,
            target_user: None,
            initiator_name: INITIATOR_NAME.to_owned(),
            isid: None,
            sessions: 1,
            request_timeout: Duration::from_secs(5),
            refusal_limit: REFUSAL_LIMIT,
            login_timeout: Duration::from_secs(5),
            reader_keys: None,
            header_digest: false,
            data_digest: false,
            queue_depth: 128,
        }
    }

    fn settings(&self) -> Result<Settings, Reason> {
        Ok(Settings {
            place: self.uri.to_string().into(),
            lun: self.uri.lun,
            portals: self.uri.portals().collect(),
            setup: self.setup()?,
            target_proof: self.target_proof()?,
            goes_by_plan: self.live_credentials.is_some(),
            takes_over: self.isid.is_some(),
            sessions: self.sessions,
            request_timeout: self.request_timeout,
            refusal_limit: self.refusal_limit,
            login_timeout: self.login_timeout,
            reader_keys: self.reader_keys,
        })
    }

    fn setup(&self) -> Result<Setup, Reason> {
        if !(1..=1024).contains(&self.queue_depth) {
            return Err(Reason::Config("queue depth is out of range; use 1 to 1024"));
        }
        if !(1..=Settings::SESSIONS_MAX).contains(&self.sessions) {
            return Err(Reason::Config("number of sessions is out of range; use 1 to 8"));
        }
        let name = Some(self.uri.target.clone());
        let isid = self.isid.unwrap_or_else(|| random_isid(rand::random(), rand::random()));
        let mut setup = Setup::new(self.initiator_name.clone(), name, isid);
        setup.chap = self.credentials()?;
        setup.allow_none = self.allow_none;
        match (&setup.chap, &self.target_proof()?) {
            (None, Some(_)) => {
                return Err(Reason::Config(
                    "a proof of the target is wanted but there is no user and secret for this side, and CHAP has \
                     none without; give the address a user (iscsi://USER@HOST/...) and that user's secret, or \
                     take the target's away (the line 'mutual:...' of the secret file, NETRAID_MUTUAL_SECRET)",
                ));
            }
            (Some(own), Some((_, theirs))) if own.secret == *theirs => {
                return Err(Reason::Config(
                    "the target's secret is this side's own; a peer could have it answer itself",
                ));
            }
            _ => {}
        }
        setup.wishes = Wishes {
            header_digest: policy(self.header_digest || self.uri.options.header_digest),
            data_digest: policy(self.data_digest || self.uri.options.data_digest),
            ..Wishes::default()
        };
        setup.queue_depth = self.queue_depth;
        setup.login_timeout = self.login_timeout;
        // A hung peer is found and left in time for requests to be sent to its successor.
        let silence = (self.request_timeout / 4).min(SILENCE_MAX);
        setup.ping_interval_busy = silence;
        setup.ping_timeout_busy = silence;
        // Who asks for nothing hears all the same that a peer is gone.
        setup.ping_interval_idle = IDLE_PING;
        setup.ping_timeout_idle = silence.max(IDLE_SILENCE_MIN);
        Ok(setup)
    }

    /// What the target has to prove: the name that it must give, if any, and its secret.
    fn target_proof(&self) -> Result<Option<(Option<String>, Secret)>, Reason> {
        let UriOptions { target_user, target_secret, .. } = &self.uri.options;
        if let Some(secret) = &self.target_secret {
            let user = self.target_user.as_ref().or(target_user.as_ref());
            return Ok(Some((user.cloned(), secret.clone())));
        }
        match (target_user, target_secret) {
            (user, Some(secret)) => {
                let secret = Secret::new(secret.as_bytes()).map_err(|_| {
                    Reason::Config("the target's secret is too long; use 12 to 32 bytes")
                })?;
                Ok(Some((user.clone(), secret)))
            }
            (Some(_), None) => Err(Reason::Config(
                "the target is to give a name but no secret of it is known; give one by \
                 NETRAID_MUTUAL_SECRET, or a line mutual:user:secret of the secret file",
            )),
            (None, None) => Ok(None),
        }
    }

    /// What the next login says.
    fn credentials(&self) -> Result<Option<Credentials>, Reason> {
        if let Some(live) = &self.live_credentials {
            return Ok(Some(live.borrow().clone()));
        }
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

/// What the task that owns the sessions is sent.
enum Message {
    Request(Request),
    Order(Order, oneshot::Sender<Result<Vec<u8>, IoError>>),
    /// This side gives the disk back: who has it then has taken over from nobody.
    Leaving,
    /// Requests rely on what the disk was given when it had lost its cache so often.
    Reliance(u64),
    Close(oneshot::Sender<()>),
    Cut(oneshot::Sender<()>),
}

/// What can be seen of the sessions from outside their task.
#[derive(Debug, Default)]
struct State {
    connected: AtomicBool,
    fenced: AtomicBool,
    /// In bytes, as last read.
    capacity: AtomicU64,
    cache_losses: AtomicU64,
    reconnects: AtomicU64,
    /// Grows whenever something comes from the peer in a session.
    signs: AtomicU64,
    /// The peer surely is not there, for longer than a restart takes.
    gone: AtomicBool,
    /// Why there was no session the last time that there was none.
    failure: watch::Sender<String>,
}

impl State {
    /// Shows what is so now. Only the task that owns the sessions calls this.
    fn publish(&self, status: &Status) {
        let Status {
            is_connected,
            is_fenced,
            is_gone,
            capacity,
            cache_losses,
            reconnects,
            signs,
            failures: _,
        } = *status;
        self.connected.store(is_connected, Ordering::Release);
        self.fenced.store(is_fenced, Ordering::Release);
        self.gone.store(is_gone, Ordering::Release);
        self.capacity.store(capacity, Ordering::Release);
        self.cache_losses.store(cache_losses, Ordering::Release);
        self.reconnects.store(reconnects, Ordering::Release);
        self.signs.store(signs, Ordering::Release);
    }
}

impl Remote {
    /// Logs in, examines the disk, and starts the task that owns the session on the current
    /// tokio runtime.
    ///
    /// # Errors
    /// When the configuration contradicts itself, the target cannot be reached or refuses, or
    /// the LUN is not there or no disk that can be used.
    pub async fn connect(config: InitiatorConfig, pool: Pool) -> Result<Self, InitiatorError> {
        let fail = |reason| InitiatorError::new(config.uri.to_string(), reason);
        let settings = config.settings().map_err(fail)?;
        let place = settings.place.clone();
        let state = Arc::new(State::default());
        let (sender, receiver) = mpsc::unbounded_channel();
        let (told, opened) = oneshot::channel();
        let remote = netraid_remote::Remote::new(settings, pool, Duration::ZERO);
        let live = config.live_credentials.clone();
        let driver = Driver::new(remote, live, receiver, (state.clone(), place.clone()), told);
        tokio::spawn(driver.run());
        let lost = |_| Err(Reason::Lost("the task that connects has ended".to_owned()));
        let Opened { info, identity } = opened.await.unwrap_or_else(lost).map_err(fail)?;
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

    /// A count that grows whenever something comes from the disk in a session. While nobody asks for anything a
    /// session is pinged within a second; it is lost when no answer comes within a quarter of the request
    /// timeout, one second at least.
    #[must_use]
    pub fn signs(&self) -> u64 {
        self.state.signs.load(Ordering::Acquire)
    }

    /// Whether there is no session and the peer surely is not there: every portal refuses connections, for
    /// longer than a restart takes.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.state.gone.load(Ordering::Acquire)
    }

    /// Why there is no session, or there was none the last time; empty when there always was one.
    #[must_use]
    pub fn last_failure(&self) -> String {
        self.state.failure.borrow().clone()
    }

    /// How often the disk said that it was restarted or has reset itself, or came back without
    /// saying that it remembers the session: each time, writes that were not flushed may be gone.
    /// A session that was only interrupted does not count where the target says so (I_T NEXUS
    /// LOSS). A request that completes after such an event completes after this was counted.
    #[must_use]
    pub fn cache_losses(&self) -> u64 {
        self.state.cache_losses.load(Ordering::Acquire)
    }

    /// Requests rely from now on on what the disk was given when it had lost its cache so often, as
    /// [`Self::cache_losses`] says it: once it has lost its cache again, all that wait, and all that come, end unsent
    /// with [`netraid_block::ErrorKind::Unreachable`].
    pub fn rely_on(&self, cache_losses: u64) {
        // When the task is gone nothing is sent any more.
        let _ = self.sender.send(Message::Reliance(cache_losses));
    }

    /// Bytes that the disk had when it was last examined: more than [`DeviceInfo::capacity`] when
    /// it has grown.
    #[must_use]
    pub fn capacity_now(&self) -> u64 {
        self.state.capacity.load(Ordering::Acquire)
    }

    /// How often a session was made again.
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

    /// Ends the sessions at once, as if this process had died: requests end as aborted, and what was
    /// under way may still be carried out.
    pub async fn cut(&self) {
        let (done, cut) = oneshot::channel();
        if self.sender.send(Message::Cut(done)).is_ok() {
            // The task is gone: so is the session.
            let _ = cut.await;
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
    let place = format!("{host}:{port}");
    let isid = random_isid(rand::random(), rand::random());
    let mut setup = Setup::new(INITIATOR_NAME.to_owned(), None, isid);
    setup.chap = credentials;
    setup.login_timeout = timeout;
    setup.ping_interval_idle = timeout;
    let settings = Settings {
        place: place.as_str().into(),
        lun: 0,
        portals: vec![Portal { host: host.to_owned(), port }],
        setup,
        target_proof: None,
        goes_by_plan: false,
        takes_over: false,
        sessions: 1,
        request_timeout: timeout,
        refusal_limit: REFUSAL_LIMIT,
        login_timeout: timeout,
        reader_keys: None,
    };
    driver::find(settings).await.map_err(|reason| InitiatorError::new(place, reason))
}

const fn policy(insist: bool) -> DigestPolicy {
    if insist { DigestPolicy::Required } else { DigestPolicy::Never }
}
