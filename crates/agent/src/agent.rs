//! Puts an agent together, and runs it.

use std::{
    collections::HashSet,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use netraid_cluster::{
    access::{AccessError, AccessFile, Bearer, TokenDigest},
    agent::AgentStatus,
    now,
    serve::{Limits as ApiLimits, ServeError, Server},
    store::{OpenError, StoreError, make_directory},
    tls::{Identity, TlsError},
    vet::{self, RATE_MAX, SPACE_MAX, Unfit},
};
use netraid_control::{
    ledger::{Ledger, Limits},
    units::{AgentId, Rate, Resources},
};
use netraid_engine::target::{Pacing, Target, TargetConfig, TargetError};
use serde::Serialize;
use serde_json::json;

use crate::{
    api::{About, Api, NOTHING, StatusSource, router},
    audit::Audit,
    book::{Book, Rows},
    disk::{Disk, Wanted},
    gate::Gate,
    keeper::{Keeper, KeeperTask},
    membership::{Members, Of},
    operations::Operations,
    records::{self, Records},
    segments::Segments,
    view::{Caller, View},
};
pub use crate::{
    api::{Leave, LocalStatus, MemberStatus},
    disk::DiskError,
    membership::JoinError,
};

/// Of what a file system or disk has, segments may have so much, in percent.
const SPACE_PERCENT: u64 = 90;
/// Nobody keeps all others out: a token lets in twice as many sessions as an initiator opens to a member,
/// a plan has as many again for a segment that takes another's place.
const SESSIONS: netraid_engine::target::Limits = netraid_engine::target::Limits {
    sessions_max: 1024,
    sessions_per_source_max: 512,
    sessions_per_initiator_max: 64,
    sessions_per_plan_max: 32,
    sessions_per_token_max: 16,
    ..netraid_engine::target::Limits::DEFAULT
};
/// The owner's access file, in the state directory.
const OWNER_FILE: &str = "owner.access";

/// Where an agent's segments are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Medium {
    /// Sparse files of this directory.
    Directory(PathBuf),
    /// Memory, of so many bytes.
    Memory(u64),
    /// A block device, or a file that is used as one, all of it.
    Disk {
        /// Which.
        path: PathBuf,
        /// Format it whatever is on it, unless that is this agent's own: ALL ON IT IS LOST.
        force: bool,
    },
}

/// What an agent is to be.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Where its segments are.
    pub medium: Medium,
    /// Where its store is: in the directory of its segments when none; of memory a new one that goes
    /// with the agent, which is another agent each time. Of a disk it has to be given.
    pub state: Option<PathBuf>,
    /// Bytes that may be booked; of a directory or disk most of what it has when none.
    pub space_bytes: Option<u64>,
    /// Bytes a second of its devices; as measured when none.
    pub device: Option<Rate>,
    /// Bytes a second of its network in each direction; as measured when none.
    pub network: Option<Rate>,
    /// What of all is for rebuilding only, in percent.
    pub kept_percent: u8,
    /// Where its API listens.
    pub listen: SocketAddr,
    /// Where its target listens.
    pub portal: SocketAddr,
    /// The name or address under which others reach it; as it listens when none.
    pub advertise: Option<String>,
    /// What fails together with it.
    pub host: String,
    /// What that is in.
    pub rack: String,
    /// Without TLS: on loopback alone.
    pub insecure: bool,
    /// Certificate, key and authority of the user's, in PEM; one of the agent's own when none.
    pub identity: Option<[PathBuf; 3]>,
    /// Mediators to join.
    pub mediators: Vec<AccessFile>,
    /// What its API lets in.
    pub api: ApiLimits,
}

/// What an agent says when it serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ready {
    /// `ready`.
    pub event: &'static str,
    /// Who it is.
    pub agent: AgentId,
    /// URL of its API, as others reach it.
    pub api: String,
    /// Address and port of its target, as others reach it.
    pub portal: String,
    /// Its target's iSCSI name.
    pub target: String,
    /// All that it has.
    pub capacity: Resources,
    /// The access file of its owner.
    pub access: PathBuf,
}

/// Why an agent cannot be.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A directory or file.
    #[error("{path}: {source}")]
    Io {
        /// Which.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// Nobody knows what it has.
    #[error(
        "the rate of the devices is not known; give --device-rate, or measure it: netraid agent calibrate"
    )]
    DeviceRate,
    /// Nobody knows what it can send and receive.
    #[error(
        "the rate of the network is not known; give --network-rate, or measure it: netraid agent calibrate \
         --network ADDR:PORT, with --serve ADDR:PORT on another host"
    )]
    NetworkRate,
    /// A disk without a place for the store.
    #[error("a disk needs a state directory, which is kept as long as the disk; give --state DIR")]
    NoState,
    /// The disk cannot be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The state directory is of an agent with segments elsewhere.
    #[error(
        "{}: is the state of an agent whose segments are elsewhere (on a disk, or not on one); start it \
         with these, or give another state directory",
        .0.display()
    )]
    OtherMedium(PathBuf),
    /// There is no space.
    #[error("there is no space for segments; give --space, or another directory")]
    Space,
    /// Nobody could reach it.
    #[error("{0} is no address that others reach; give --advertise HOST")]
    Advertise(SocketAddr),
    /// Its store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its store fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No mediator would take it.
    #[error("{0}; see --host, --rack and --advertise")]
    Unfit(#[from] Unfit),
    /// Its target cannot be.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Its API cannot be.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// TLS cannot be.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Its owner's access file cannot be written.
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// An agent that listens, and serves once [`Agent::run`] is called.
pub struct Agent {
    ready: Ready,
    target: Target,
    server: Server,
    keeper: Keeper,
    task: KeeperTask,
    api: Arc<Api>,
    members: Members,
    mediators: Vec<AccessFile>,
    unfinished: Vec<records::Key>,
    /// Its state goes with it.
    _temporary: Option<tempfile::TempDir>,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Agent({})", self.ready.agent)
    }
}

/// Where the access file of an agent's owner is.
#[must_use]
pub fn owner_file(state: &Path) -> PathBuf {
    state.join(OWNER_FILE)
}

/// Where an agent of this directory has its state.
#[must_use]
pub fn state_of(directory: &Path) -> PathBuf {
    directory.join("state")
}

impl Agent {
    /// Opens what there is, and listens. To be called on the runtime on which the agent will run.
    ///
    /// # Errors
    /// When something of it cannot be.
    pub async fn start(config: AgentConfig) -> Result<Self, AgentError> {
        let (state, temporary) = state_directory(&config)?;
        let store = records::open(&state)?;
        let Records {
            agent,
            allotments,
            segments: rows,
            segments_aside,
            revoked,
            memberships,
            memberships_aside,
            calibration,
            disk,
        } = records::load(&store).await?;
        let io = |path: &Path| {
            let path = path.display().to_string();
            move |source| AgentError::Io { path, source }
        };
        let is_disk = matches!(config.medium, Medium::Disk { .. });
        let has_segments = !rows.is_empty() || !segments_aside.is_empty();
        if is_disk != disk.is_some() && has_segments {
            return Err(AgentError::OtherMedium(state));
        }
        // Before a disk is formatted.
        let measured = calibration.map(|calibration| calibration.capacity());
        let device = config.device.or(measured.map(|(device, _)| device));
        let network = config.network.or(measured.and_then(|(_, network)| network));
        let device = device.ok_or(AgentError::DeviceRate)?;
        let network = network.ok_or(AgentError::NetworkRate)?;
        let identity = identity(&config, &state)?;
        let server = Server::bind(config.listen, identity)?.with_limits(config.api);
        check_free(config.portal)?;

        let (root, segments) = match &config.medium {
            Medium::Directory(directory) => {
                (directory.clone(), Segments::in_files(directory, agent))
            }
            Medium::Memory(_) => (state.clone(), Segments::in_memory(&state, agent)),
            Medium::Disk { path, force } => {
                let pool = netraid_engine::pool();
                let wanted = Wanted { agent, disk, new: rand::random(), force: *force };
                let opened = Disk::open_path(path, wanted, pool.clone())?;
                if disk != Some(opened.id()) {
                    records::put_disk(&store, opened.id()).await?;
                }
                (state.clone(), Segments::on_disk(opened, &state, agent, pool))
            }
        };
        let segments = Arc::new(segments.map_err(io(&root))?);
        let lost = segments.tidy(&rows, &segments_aside).map_err(io(&root))?;
        let space_bytes = space(&config, &segments, &rows).map_err(io(&root))?;
        let space_bytes = space_bytes.ok_or(AgentError::Space)?.min(SPACE_MAX);
        let (device, network) = (device.min(RATE_MAX), network.min(RATE_MAX));
        // What passes the devices passes the network.
        let capacity = Resources { space_bytes, device: device.min(network), network };
        let kept = percent_of(capacity, u64::from(config.kept_percent.min(100)));
        let (mut ledger, aside) =
            Ledger::restore_usable(capacity, kept, Limits::default(), allotments);
        for error in aside {
            tracing::error!("set aside: {error}");
        }
        ledger.expire(now());
        let over = ledger.overbooked();
        if over != Resources::default() {
            tracing::warn!("more is booked than there is, by {over:?}: nothing more is booked");
        }
        let audit_path = root.join("audit.jsonl");
        let audit = Audit::open(&audit_path).map_err(io(&audit_path))?;
        let view = Arc::new(View::default());
        let draining = memberships.iter().filter(|(_, membership)| membership.draining);
        let draining: HashSet<_> = draining.map(|(mediator, _)| *mediator).collect();
        let rows = Rows { rows, lost, aside: segments_aside };
        let lost_segments = rows.lost.len();
        let book = Book::new(ledger, rows, revoked, draining, Arc::clone(&view));
        let unfinished = book.removing();

        let gate = Gate {
            agent,
            view: Arc::clone(&view),
            segments: Arc::clone(&segments),
            audit: audit.clone(),
        };
        let mut target_config = TargetConfig::new(format!("iqn.2026-01.netraid:agent-{agent}"));
        target_config.listen = vec![config.portal];
        target_config.admission = Some(Arc::new(gate));
        target_config.limits = SESSIONS;
        target_config.pacing = Some(Pacing::new(device, network));
        let iqn = target_config.iqn.clone();
        let target = Target::bind(target_config, Vec::new(), segments.pool())?;
        let portal = target.local_addrs().first().copied().unwrap_or(config.portal);
        let portal = reached(&config, portal)?;
        let scheme = if server.authority().is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", reached(&config, server.address())?);
        let access = write_owner_file(&state, &server, &view)?;
        let (keeper, task) = KeeperTask::new(book, store.clone(), target.handle().clone());
        let about = Arc::new(About {
            status: AgentStatus {
                agent,
                host: config.host.clone(),
                rack: config.rack.clone(),
                api: url.clone(),
                portal: portal.clone(),
                target: iqn.clone(),
                capacity,
                kept,
                left: NOTHING,
                left_for_rebuild: NOTHING,
                draining: false,
                segments: 0,
                sessions: 0,
            },
        });
        vet::status(&about.status)?;
        let handle = target.handle().clone();
        let status = StatusSource { about, keeper: keeper.clone(), target: handle.clone() };
        let of = Of {
            agent,
            authority: server.authority().map(str::to_owned),
            store,
            view: Arc::clone(&view),
            keeper: keeper.clone(),
            status: status.clone(),
            audit: audit.clone(),
            aside: memberships_aside,
        };
        let members = Members::start(of, memberships);
        let operations =
            Operations::new(keeper.clone(), handle, Arc::clone(&segments), audit.clone());
        audit.tell("started", json!({ "agent": agent, "lost_segments": lost_segments }));
        let (view, segments, keep) = (view, segments, keeper.clone());
        let api = Arc::new(Api {
            view,
            operations,
            keeper: keep,
            segments,
            status,
            members: members.clone(),
            audit,
        });
        let ready =
            Ready { event: "ready", agent, api: url, portal, target: iqn, capacity, access };
        let mediators = config.mediators;
        let _temporary = temporary;
        Ok(Self {
            ready,
            target,
            server,
            keeper,
            task,
            api,
            members,
            mediators,
            unfinished,
            _temporary,
        })
    }

    /// What it is, and where.
    #[must_use]
    pub const fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Serves until `stop` is done. `announce` is called when it serves, and each mediator was asked to
    /// take it, once at least.
    ///
    /// # Errors
    /// When it cannot go on: it is to be started again.
    pub async fn run(
        self,
        stop: impl Future<Output = ()>,
        announce: impl FnOnce(&Ready),
    ) -> Result<(), AgentError> {
        let (stop_now, stopped) = tokio::sync::watch::channel(false);
        let until_stopped = || {
            let mut stopped = stopped.clone();
            async move {
                let _ = stopped.wait_for(|stop| *stop).await;
            }
        };
        let io = |source| AgentError::Io { path: "the agent's API".to_owned(), source };
        let view = Arc::clone(&self.api.view);
        let knows = move |token: &TokenDigest| view.read().callers.contains_key(token);
        let serving = self.server.serve(router(Arc::clone(&self.api)), knows, until_stopped());
        let serving = async { serving.await.map_err(io) };
        let target = async { Ok(self.target.run(until_stopped()).await?) };
        let served = async { tokio::try_join!(serving, target).map(drop) };
        let kept = async {
            match self.task.run().await {
                Ok(()) => std::future::pending().await,
                Err(broken) => Err(AgentError::from(broken)),
            }
        };
        let operations = self.api.operations.clone();
        let begin = async {
            for key in self.unfinished {
                operations.finish_removal(key).await;
            }
            join_all(&self.members, self.mediators).await;
            announce(&self.ready);
            stop.await;
            let _ = stop_now.send(true);
            std::future::pending().await
        };
        // The keeper ends when nobody asks it any more, which is after this.
        let _keeper = self.keeper;
        tokio::select! {
            served = served => served,
            broken = kept => broken,
            never = begin => never,
        }
    }
}

/// Asks each mediator that is not known once; goes on with those that do not take it beside all else.
async fn join_all(members: &Members, mediators: Vec<AccessFile>) {
    for access in mediators {
        if members.knows(&access.mediator) {
            continue;
        }
        if let Err(error) = members.join(&access).await {
            tracing::warn!("{}: {error}; it is tried again", access.mediator);
            let members = members.clone();
            tokio::spawn(async move { members.join_in_time(access).await });
        }
    }
}

/// Whether a target can listen there.
///
/// # Errors
/// When it cannot, as [`Target::bind`] would say.
fn check_free(address: SocketAddr) -> Result<(), TargetError> {
    let listener = std::net::TcpListener::bind(address);
    listener.map(drop).map_err(|source| TargetError::Listen { address, source })
}

fn state_directory(
    config: &AgentConfig,
) -> Result<(PathBuf, Option<tempfile::TempDir>), AgentError> {
    if let Medium::Directory(directory) = &config.medium {
        make_directory(directory)?;
    }
    match (&config.state, &config.medium) {
        (Some(state), _) => Ok((state.clone(), None)),
        (None, Medium::Directory(directory)) => Ok((state_of(directory), None)),
        (None, Medium::Disk { .. }) => Err(AgentError::NoState),
        (None, Medium::Memory(_)) => {
            let io = |source| AgentError::Io { path: "a temporary directory".to_owned(), source };
            let directory = tempfile::Builder::new().prefix("netraid-agent-").tempdir();
            let directory = directory.map_err(io)?;
            Ok((directory.path().to_owned(), Some(directory)))
        }
    }
}

fn space(
    config: &AgentConfig,
    segments: &Segments,
    rows: &[(records::Key, records::SegmentRow)],
) -> io::Result<Option<u64>> {
    let found = match (config.space_bytes, &config.medium) {
        (Some(space), _) => Some(space),
        (None, Medium::Memory(size)) => Some(*size),
        (None, Medium::Directory(_) | Medium::Disk { .. }) => {
            let found = segments.space_bytes(rows)?;
            found.map(|found| found / 100 * SPACE_PERCENT)
        }
    };
    Ok(found.filter(|found| *found > 0))
}

const fn percent_of(all: Resources, percent: u64) -> Resources {
    // Parts of a hundred first: all of 64 bits stays within 64 bits.
    const fn part(all: u64, percent: u64) -> u64 {
        all / 100 * percent + all % 100 * percent / 100
    }
    Resources {
        space_bytes: part(all.space_bytes, percent),
        device: Rate(part(all.device.0, percent)),
        network: Rate(part(all.network.0, percent)),
    }
}

fn identity(config: &AgentConfig, state: &Path) -> Result<Option<Identity>, AgentError> {
    if config.insecure {
        return Ok(None);
    }
    if let Some([cert, key, authority]) = &config.identity {
        return Ok(Some(Identity::given(cert, key, authority)?));
    }
    let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    names.push(config.listen.ip().to_string());
    names.extend(config.advertise.clone());
    Ok(Some(Identity::own(state, &names)?))
}

/// How others reach an address that is listened on.
fn reached(config: &AgentConfig, address: SocketAddr) -> Result<String, AgentError> {
    match &config.advertise {
        Some(host) if host.contains(':') && !host.starts_with('[') => {
            Ok(format!("[{host}]:{}", address.port()))
        }
        Some(host) => Ok(format!("{host}:{}", address.port())),
        None if address.ip().is_unspecified() => Err(AgentError::Advertise(address)),
        None => Ok(address.to_string()),
    }
}

/// A new token for whoever may read the state directory.
fn write_owner_file(state: &Path, server: &Server, view: &View) -> Result<PathBuf, AgentError> {
    let token = Bearer::draw();
    view.write().callers.insert(token.digest(), Caller::Owner);
    let path = owner_file(state);
    let mut address = server.address();
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    let scheme = if server.authority().is_some() { "https" } else { "http" };
    let access = AccessFile {
        version: 1,
        mediator: format!("{scheme}://{address}"),
        authority: server.authority().map(str::to_owned),
        token,
    };
    access.write(&path)?;
    Ok(path)
}
