//! The iSCSI target: serves devices as logical units.
//!
//! A target runs on a thread of its own, or on several, with one task for each connection. A command
//! goes from socket to buffer, to the device, and its answer from the device's buffer to the
//! socket, on the thread of its connection; what it shares with others is the lock of the logical
//! units, which it takes twice for some tens of nanoseconds.

mod admission;
mod background;
mod cells;
mod connection;
mod control;
mod guests;
mod journal;
mod luns;
mod pacing;
mod realm;
mod reports;
mod reservations;
mod segments;
mod sessions;
mod statistics;
mod threads;

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

pub use self::admission::{Admission, Admitted, NotAdmitted, NotOpened, Opened};
pub use self::background::{MarkerFileError, Sanitizing};
use self::{cells::Guarded, threads::Threads};
pub use control::{CommandError, TargetHandle};
use journal::Journal;
use netraid_block::{Device, Pool};
pub use netraid_iscsi_proto::{
    chap::{Algorithm as ChapAlgorithm, Credentials as ChapCredentials, Secret, check_distinct},
    negotiation::DigestPolicy,
    target::{Limits, Redirect},
};
use netraid_iscsi_proto::{
    negotiation::Wishes,
    target::{ConnectionId, Node, Realm, Setup},
};
pub use netraid_node::{Access, Moment, Policy, Verdict};
pub use netraid_scsi::{Identity, LUN_MAX, SanitizeState};
use pacing::Paced;
pub use pacing::{FlowCounts, Pace, PaceError, PaceReport, Pacing, Rate};
use realm::ServedRealm;
pub use reports::{GrantReport, LunReport, RegistrantReport, SessionReport, TargetReport};
pub use reservations::{ReservationStore, ReservationsError};
use segments::Segments;
use sessions::SessionTable;
pub use statistics::CommandCounts;
use tokio::sync::{Notify, oneshot, watch};

/// How long connections have to end after a shutdown was asked for.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(3);
/// Waiting for the next connection when the last could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The same when one that was there leaves for it.
const EVICTION_PAUSE: Duration = Duration::from_millis(2);

/// What a target is and where it listens.
#[derive(Debug, Clone)]
pub struct TargetConfig {
    /// Addresses; port 0 takes a free one.
    pub listen: Vec<SocketAddr>,
    /// iSCSI name.
    pub iqn: String,
    /// Who may log in; everybody when there is none.
    pub chap: Vec<ChapCredentials>,
    /// How the target proves itself to initiators that ask for it; needs `chap`.
    pub mutual_chap: Option<ChapCredentials>,
    /// CHAP digests that may be chosen; the initiator's order counts.
    pub chap_allow: Vec<ChapAlgorithm>,
    /// Lets in by tokens, to segments: then there are no `luns`, and `chap`, `mutual_chap` and
    /// `allow` are not used.
    pub admission: Option<Arc<dyn Admission>>,
    /// Names of the initiators that may log in; all when empty.
    pub allow: Vec<String>,
    /// Where logins are sent instead of being served.
    pub redirects: Vec<Redirect>,
    /// Header digests.
    pub header_digest: DigestPolicy,
    /// Data digests.
    pub data_digest: DigestPolicy,
    /// Commands of one session in progress: 1 to 1024.
    pub queue_depth: u16,
    /// Sessions, visitors, and what they hold in memory.
    pub limits: Limits,
    /// Longest login.
    pub login_timeout: Duration,
    /// Silence after which a session is pinged.
    pub ping_interval: Duration,
    /// Silence after a ping that ends a session.
    pub ping_timeout: Duration,
    /// How fast sessions may go; as fast as they can when none.
    pub pacing: Option<Pacing>,
    /// How long a segment stays open that no session uses.
    pub segment_idle_limit: Duration,
    /// Threads that serve connections: 1 to 64; 1 where tokens let in.
    pub threads: usize,
}

impl TargetConfig {
    /// A target of this name with the usual limits, listening nowhere yet.
    #[must_use]
    pub fn new(iqn: impl Into<String>) -> Self {
        Self {
            listen: Vec::new(),
            iqn: iqn.into(),
            chap: Vec::new(),
            mutual_chap: None,
            chap_allow: ChapAlgorithm::PREFERENCE.to_vec(),
            admission: None,
            allow: Vec::new(),
            redirects: Vec::new(),
            header_digest: DigestPolicy::Allowed,
            data_digest: DigestPolicy::Allowed,
            queue_depth: 128,
            limits: Limits::default(),
            login_timeout: Duration::from_secs(15),
            ping_interval: Duration::from_secs(15),
            ping_timeout: Duration::from_secs(120),
            pacing: None,
            segment_idle_limit: Duration::from_secs(10),
            threads: 1,
        }
    }
}

/// One logical unit.
#[derive(Debug)]
pub struct Lun {
    /// What it stores on.
    pub device: Device,
    /// Whether discarded bytes read as zeros.
    pub discard_zeroes: bool,
    /// Physical block in bytes: what smaller writes make the medium read first; no less than a
    /// logical block.
    pub physical_len: u32,
    /// Whether the medium can be ejected and loaded.
    pub removable: bool,
    /// Longest write, in bytes, that the device does as a whole or not at all, whatever else
    /// reads and writes and whenever power fails; 0 when that is not known.
    pub atomic_len: u32,
    /// How it can be sanitized, if it can.
    pub sanitizing: Option<Sanitizing>,
    /// Who it says that it is; derived from the target's name and the LUN when none.
    pub identity: Option<Identity>,
    /// Who may do what; everybody everything when none.
    pub policy: Option<Box<dyn Policy>>,
    /// Where its persistent reservations survive a restart; APTPL is refused when none.
    pub reservations: Option<ReservationStore>,
}

impl From<Device> for Lun {
    fn from(device: Device) -> Self {
        Self {
            physical_len: device.info().block_len,
            device,
            discard_zeroes: false,
            removable: false,
            atomic_len: 0,
            sanitizing: None,
            identity: None,
            policy: None,
            reservations: None,
        }
    }
}

/// Why a target cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}; choose an address of this host and a free port")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// A setting is out of range.
    #[error("{what} is {value}, possible are {limit}")]
    Config {
        /// Setting.
        what: &'static str,
        /// Its value.
        value: usize,
        /// Its limits.
        limit: &'static str,
    },
    /// A secret would be used in both directions, or the target would prove itself to everybody.
    #[error("the target cannot prove itself: {0}")]
    Mutual(&'static str),
    /// Rates do not fit together.
    #[error("rates of sessions: {0}")]
    Pacing(#[from] PaceError),
    /// The thread or its runtime cannot be started.
    #[error("cannot start the target's thread: {0}")]
    Start(io::Error),
    /// The thread ended early.
    #[error("the target's thread ended unexpectedly")]
    Died,
}

/// A target that listens, and serves once [`Target::run`] is called.
#[derive(Debug)]
pub struct Target {
    listeners: Vec<TcpListener>,
    setup: Setup,
    luns: Vec<Lun>,
    limits: Limits,
    pool: Pool,
    pacing: Option<Pacing>,
    threads: usize,
    segments: Option<(Arc<dyn Admission>, Duration)>,
    handle: TargetHandle,
    jobs: control::Jobs,
    life: control::Life,
}

impl Target {
    /// Listens on all addresses; `luns` become LUN 0, 1, and so on.
    ///
    /// # Errors
    /// When an address cannot be listened on, or a setting is out of range.
    pub fn bind(config: TargetConfig, luns: Vec<Lun>, pool: Pool) -> Result<Self, TargetError> {
        let depth = usize::from(config.queue_depth);
        check("queue depth", depth, (1..=1024).contains(&depth), "1 to 1024")?;
        let (count, by_token) = (luns.len(), config.admission.is_some());
        if by_token {
            check("number of LUNs", count, count == 0, "0, where tokens let in")?;
        } else {
            check("number of LUNs", count, (1..=16384).contains(&count), "1 to 16384")?;
        }
        let addresses = config.listen.len();
        check("number of addresses", addresses, (1..=64).contains(&addresses), "1 to 64")?;
        let name = config.iqn.len();
        check("length of the target's name", name, (1..=223).contains(&name), "1 to 223")?;
        let sessions = config.limits.sessions_max;
        check("number of sessions", sessions, (1..=1024).contains(&sessions), "1 to 1024")?;
        let threads = config.threads;
        if by_token {
            check("number of threads", threads, threads == 1, "1, where tokens let in")?;
        } else {
            check("number of threads", threads, (1..=64).contains(&threads), "1 to 64")?;
        }
        check_mutual(&config)?;
        config.pacing.clone().map(Pacing::build).transpose()?;
        let mut listeners = Vec::new();
        for address in config.listen {
            let fail = |source| TargetError::Listen { address, source };
            listeners.push(listen(address).map_err(fail)?);
        }
        let mut setup = Setup::new(config.iqn);
        // Without scopes: a zone of this host's means nothing to another.
        setup.portals = listeners
            .iter()
            .filter_map(|listener| listener.local_addr().ok())
            .filter(|address| !address.ip().is_unspecified())
            .map(|address| SocketAddr::new(address.ip(), address.port()).to_string())
            .collect();
        setup.chap = config.chap;
        setup.mutual_chap = config.mutual_chap;
        setup.chap_allow = config.chap_allow;
        setup.allow = config.allow;
        setup.redirects = config.redirects;
        setup.wishes = Wishes {
            header_digest: config.header_digest,
            data_digest: config.data_digest,
            ..Wishes::default()
        };
        if let Some(pacing) = &config.pacing {
            setup.paced = true;
            setup.wishes.max_burst_len = pacing.piece_len();
        }
        setup.queue_depth = config.queue_depth;
        setup.login_timeout = config.login_timeout;
        setup.ping_interval = config.ping_interval;
        setup.ping_timeout = config.ping_timeout;
        let (handle, jobs, life) = TargetHandle::channel();
        if config.admission.is_some() {
            // Whoever came is told of the portal that it used, and of nothing else.
            setup.portals = Vec::new();
            (setup.chap, setup.mutual_chap, setup.allow) = (Vec::new(), None, Vec::new());
            setup.asks_standing = true;
        }
        let segments = config.admission.map(|admission| (admission, config.segment_idle_limit));
        let limits = config.limits.within_descriptors(netraid_private::free_descriptors());
        let pacing = config.pacing;
        Ok(Self {
            listeners,
            setup,
            luns,
            limits,
            pool,
            pacing,
            threads,
            segments,
            handle,
            jobs,
            life,
        })
    }

    /// A way to command the target while it runs.
    #[must_use]
    pub const fn handle(&self) -> &TargetHandle {
        &self.handle
    }

    /// Where the target listens.
    #[must_use]
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Serves until `shutdown` resolves; then asks initiators to log out, for a bounded time.
    /// Dropping the future ends the target as a crash would, and does not wait for it:
    /// [`TargetHandle::ended`] does. The work is done on the target's own thread, whatever
    /// runtime awaits this.
    ///
    /// # Errors
    /// When the thread cannot be started, or dies.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), TargetError> {
        let (stop, stopped) = watch::channel(false);
        let (done, ended) = oneshot::channel();
        let serve = move || {
            // Its end is told when everything else here is gone.
            let _life = self.life.clone();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let result = runtime.map_err(TargetError::Start).and_then(|runtime| {
                tokio::task::LocalSet::new().block_on(&runtime, self.serve(stopped))
            });
            // Nobody waits for the result of a target that was dropped.
            let _ = done.send(result);
        };
        std::thread::Builder::new()
            .name("netraid-target".to_owned())
            .spawn(serve)
            .map_err(TargetError::Start)?;
        let mut ended = std::pin::pin!(ended);
        tokio::select! {
            result = &mut ended => return result.unwrap_or(Err(TargetError::Died)),
            () = shutdown => {}
        }
        // The thread ends by itself; if it is gone already, so is the receiver.
        let _ = stop.send(true);
        ended.await.unwrap_or(Err(TargetError::Died))
    }

    async fn serve(mut self, mut stopped: watch::Receiver<bool>) -> Result<(), TargetError> {
        let paced = self.pacing.take().map(Pacing::build).transpose()?.map(Paced::new);
        let segments = self.segments.take().map(|(admission, idle)| Segments::new(admission, idle));
        let shared = Arc::new(Shared {
            home: ServedRealm::new(Realm::HOME, self.threads),
            segments,
            sessions: SessionTable::default(),
            node: Guarded::new(Node::new(self.limits)),
            wakers: Guarded::default(),
            journal: Journal::default(),
            paced,
            setup: Arc::new(self.setup),
            pool: self.pool,
            started: tokio::time::Instant::now(),
        });
        for (lun, number) in self.luns.into_iter().zip(0_u16..) {
            // Their number was checked, and each has a number of its own.
            let added = shared.add_lun(&shared.home, Some(number), lun);
            assert!(added.is_ok(), "LUN {number}: {added:?}");
        }
        // They end with the thread.
        tokio::task::spawn_local(pacing::run(shared.clone()));
        let mut segments = tokio::task::spawn_local(segments::run(shared.clone()));
        let threads = Threads::start(self.threads, &shared, &stopped, &self.life)?;
        let threads = std::rc::Rc::new(threads);
        let mut tasks = tokio::task::JoinSet::new();
        for listener in self.listeners {
            let listener = tokio::net::TcpListener::from_std(listener);
            let listener = listener.map_err(TargetError::Start)?;
            let accept =
                threads::accept(listener, threads.clone(), shared.clone(), stopped.clone());
            tasks.spawn_local(accept);
        }
        // An error means that the target was dropped: then everything ends at once.
        let orderly = loop {
            tokio::select! {
                stop = stopped.wait_for(|stop| *stop) => break stop.is_ok(),
                Some(job) = self.jobs.recv() => job(shared.clone()),
                // Each serves until the target stops: one that has panicked leaves a target that looks alive.
                Some(Err(_)) = tasks.join_next() => return Err(TargetError::Died),
                _ = &mut segments => return Err(TargetError::Died),
            }
        };
        if orderly {
            let all = async { while tasks.join_next().await.is_some() {} };
            let _ = tokio::time::timeout(SHUTDOWN_LIMIT, all).await;
            // Who accepted for them is gone, or is with this.
            tasks.shutdown().await;
            if let Some(threads) = std::rc::Rc::into_inner(threads) {
                threads.ended().await;
            }
        }
        Ok(())
    }
}

/// What all connections of a target share.
struct Shared {
    /// The LUNs of the target itself.
    home: Arc<ServedRealm>,
    /// What tokens open, if they let in.
    segments: Option<Segments>,
    sessions: SessionTable,
    node: Guarded<Node>,
    wakers: Guarded<BTreeMap<ConnectionId, Arc<Notify>>>,
    journal: Journal,
    paced: Option<Paced>,
    setup: Arc<Setup>,
    pool: Pool,
    started: tokio::time::Instant,
}

impl Shared {
    /// Whether the log takes one more line about a peer.
    fn may_tell(&self) -> bool {
        self.journal.may_tell(self.started.elapsed())
    }

    /// Wakes the connections for which the node has something.
    fn wake(&self) {
        while let Some(id) = self.node.lock().poll_wake() {
            if let Some(waker) = self.wakers.lock().get(&id) {
                waker.notify_one();
            }
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(256)?;
    Ok(socket.into())
}

fn check_mutual(config: &TargetConfig) -> Result<(), TargetError> {
    let Some(own) = &config.mutual_chap else { return Ok(()) };
    if config.chap.is_empty() {
        return Err(TargetError::Mutual(
            "initiators have no secret; give them one, which they prove first",
        ));
    }
    if config.chap.iter().any(|theirs| check_distinct(theirs, own).is_err()) {
        return Err(TargetError::Mutual("its secret is also an initiator's; give it another one"));
    }
    Ok(())
}

fn check(
    what: &'static str,
    value: usize,
    possible: bool,
    limit: &'static str,
) -> Result<(), TargetError> {
    if possible { Ok(()) } else { Err(TargetError::Config { what, value, limit }) }
}
