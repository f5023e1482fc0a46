//! A cluster in this process: a mediator and agents, each on threads of its own, so that one can be
//! lost at any instant.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use netraid_agent::{Agent, AgentConfig, Medium, Ready};
use netraid_block::Pool;
use netraid_cluster::{
    Code,
    access::AccessFile,
    mediator::{Create, Kind, Layout, Mode},
};
use netraid_control::units::{AgentId, PlanId, Rate};
use netraid_files::{Cluster, Data, Error, VolumeOptions};
use netraid_mediator::{Config, Mediator, Tls};
use tempfile::TempDir;
use tokio::{runtime::Builder, sync::oneshot};

/// Longest that anything is waited for.
pub(crate) const LIMIT: Duration = Duration::from_secs(180);

/// A part of a cluster with a runtime of its own.
struct Daemon {
    kill: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Daemon {
    /// Starts it, and waits for what it says when it serves.
    fn start<T, W>(work: impl FnOnce(mpsc::Sender<T>) -> W + Send + 'static) -> (Self, T)
    where
        T: Send + 'static,
        W: Future<Output = ()>,
    {
        let (kill, killed) = oneshot::channel::<()>();
        let (ready, said) = mpsc::channel();
        let thread = thread::spawn(move || {
            let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
            let runtime = runtime.unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = work(ready) => {}
                    _ = killed => {}
                }
            });
            // Nothing of it may go on: neither what it was doing, nor its connections.
            runtime.shutdown_timeout(LIMIT);
        });
        let said = said.recv_timeout(LIMIT).expect("it does not serve");
        (Self { kill, thread }, said)
    }

    /// Ends it without a word to anybody.
    fn kill(self) {
        drop(self.kill);
        self.thread.join().unwrap();
    }
}

/// A mediator and its agents.
pub(crate) struct House {
    pub(crate) cluster: Cluster,
    agents: Vec<(Option<Daemon>, Ready)>,
    mediator: Option<Daemon>,
    url: String,
    directory: TempDir,
}

impl Drop for House {
    fn drop(&mut self) {
        self.agents.drain(..).filter_map(|(agent, _)| agent).for_each(Daemon::kill);
        self.stop_mediator();
    }
}

impl House {
    /// Starts a mediator and so many agents, and waits until it knows them.
    pub(crate) async fn new(agents: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let (mediator, url) = mediator(directory.path().join("mediator"), loopback);
        let access = directory.path().join("mediator/admin.access");
        let cluster = Cluster::with_access_file(&access).unwrap();
        let mut this =
            Self { cluster, agents: Vec::new(), mediator: Some(mediator), url, directory };
        for at in 0..agents {
            let (agent, ready) = agent(this.agent_config(at, [loopback; 2]));
            this.agents.push((Some(agent), ready));
        }
        until("the mediator knows all agents", || async {
            this.cluster.status().await.is_ok_and(|status| status.reachable as usize >= agents)
        })
        .await;
        this
    }

    fn agent_config(&self, at: usize, [listen, portal]: [SocketAddr; 2]) -> AgentConfig {
        let access = self.directory.path().join("mediator/agent.access");
        AgentConfig {
            medium: Medium::Directory(self.directory.path().join(format!("agent{at}"))),
            state: None,
            space_bytes: Some(8 << 30),
            device: Some(Rate(1 << 30)),
            network: Some(Rate(1 << 30)),
            kept_percent: 20,
            listen,
            portal,
            advertise: None,
            host: format!("host{at}"),
            rack: String::new(),
            insecure: true,
            identity: None,
            mediators: vec![AccessFile::read(&access).unwrap()],
            api: netraid_cluster::serve::Limits::DEFAULT,
        }
    }

    /// The access file of an ordinary client.
    pub(crate) fn access(&self) -> PathBuf {
        self.directory.path().join("mediator/client.access")
    }

    pub(crate) fn stop_mediator(&mut self) {
        self.mediator.take().into_iter().for_each(Daemon::kill);
    }

    /// Starts it again where it was.
    pub(crate) fn start_mediator(&mut self) {
        let listen = self.url.rsplit('/').next().unwrap().parse().unwrap();
        let (mediator, url) = mediator(self.directory.path().join("mediator"), listen);
        assert_eq!(url, self.url);
        self.mediator = Some(mediator);
    }

    /// Which of the agents this is.
    pub(crate) fn place_of(&self, agent: AgentId) -> usize {
        self.agents.iter().position(|(_, ready)| ready.agent == agent).unwrap()
    }

    pub(crate) fn stop_agent(&mut self, at: usize) {
        self.agents[at].0.take().into_iter().for_each(Daemon::kill);
    }

    /// Starts it again where it was.
    pub(crate) fn start_agent(&mut self, at: usize) {
        let portal = self.agents[at].1.portal.parse().unwrap();
        self.start_agent_at(at, portal);
    }

    /// Starts it again with its target somewhere else.
    pub(crate) fn move_agent(&mut self, at: usize) {
        let before = self.agents[at].1.portal.clone();
        // Held, so that it is not drawn again.
        let _held = std::net::TcpListener::bind(&before).unwrap();
        self.start_agent_at(at, SocketAddr::from(([127, 0, 0, 1], 0)));
        assert_ne!(self.agents[at].1.portal, before);
    }

    fn start_agent_at(&mut self, at: usize, portal: SocketAddr) {
        let ready = &self.agents[at].1;
        let listen = ready.api.rsplit('/').next().unwrap().parse().unwrap();
        let (agent, again) = agent(self.agent_config(at, [listen, portal]));
        assert_eq!(again.agent, ready.agent);
        self.agents[at] = (Some(agent), again);
    }

    /// Waits until nobody has anything open.
    pub(crate) async fn nothing_is_open(&self) {
        until("all plans were given back", || async {
            self.cluster.plans(None).await.is_ok_and(|page| page.entries.is_empty())
        })
        .await;
    }
}

fn mediator(directory: PathBuf, listen: SocketAddr) -> (Daemon, String) {
    Daemon::start(move |ready| async move {
        let (advertise, tls, term_ms) = (None, Tls::None, 600_000);
        let api = netraid_cluster::serve::Limits::DEFAULT;
        let config = Config { directory, listen, advertise, tls, term_ms, api };
        // What was killed just now may still be letting go of its port and its store.
        let mediator = persist(|| Mediator::open(config.clone())).await;
        ready.send(mediator.url().to_owned()).unwrap();
        mediator.run(std::future::pending()).await.unwrap();
    })
}

fn agent(config: AgentConfig) -> (Daemon, Ready) {
    Daemon::start(move |ready| async move {
        let agent = persist(|| Agent::start(config.clone())).await;
        let announce = move |said: &Ready| ready.send(said.clone()).unwrap();
        agent.run(std::future::pending(), announce).await.unwrap();
    })
}

async fn persist<T, E, W>(mut start: impl FnMut() -> W) -> T
where
    E: std::fmt::Display,
    W: Future<Output = Result<T, E>>,
{
    let began = Instant::now();
    loop {
        match start().await {
            Ok(started) => return started,
            Err(error) => assert!(began.elapsed() < LIMIT, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until something is so.
pub(crate) async fn until<W: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> W) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Data of a level, on so many members.
pub(crate) fn data(path: &str, size_bytes: u64, level: u8, members: u16) -> Create {
    let survives = if level == 6 { 2 } else { u8::from(level > 0) };
    let (level, members) = (Some(level), Some(members));
    let layout = Layout { level, members, survives, ..Layout::default() };
    let (path, kind) = (path.to_owned(), Kind::Data);
    Create { path, kind, size_bytes, layout, parents: true, upload: false, replaces: None }
}

pub(crate) fn to_read() -> VolumeOptions {
    VolumeOptions::new(Mode::Read)
}

pub(crate) fn to_write() -> VolumeOptions {
    VolumeOptions::new(Mode::Write)
}

/// To write, where lost members are replaced at once.
pub(crate) fn soon() -> VolumeOptions {
    VolumeOptions { replace_after: Some(Duration::from_millis(500)), ..to_write() }
}

pub(crate) async fn open(cluster: &Cluster, path: &str, options: VolumeOptions) -> Data {
    Data::open(cluster, path, options, &Pool::new()).await.unwrap()
}

/// Reads all of it, and compares.
pub(crate) async fn assert_holds(data: &Data, expected: &[u8]) {
    let mut at = 0;
    while at < expected.len() {
        let mut into = vec![0; 1 << 20];
        let len = data.read_at(at as u64, &mut into).await.unwrap();
        assert!(len > 0 && into[..len] == expected[at..at + len], "within {len} bytes from {at}");
        at += len;
    }
    assert_eq!(data.length(), expected.len() as u64);
}

/// Opens something and writes to it, stable, and dies: its plan, which nobody gives back.
pub(crate) fn writer_that_dies(house: &House, path: &str, from: &[u8]) -> PlanId {
    // With connections of its own: they die with it.
    let cluster = Cluster::with_access_file(&house.access()).unwrap();
    let (path, from) = (path.to_owned(), from.to_vec());
    let (writer, plan) = Daemon::start(move |ready| async move {
        let mut writing = open(&cluster, &path, to_write()).await;
        assert_eq!(writing.write_at(0, &from).await.unwrap(), from.len());
        writing.flush().await.unwrap();
        let plan = writing.volume().unwrap().plan();
        // Dropped, it would be closed.
        std::mem::forget(writing);
        ready.send(plan).unwrap();
        std::future::pending().await
    });
    writer.kill();
    plan
}

/// Bytes that differ from place to place and from one version to the next.
pub(crate) fn bytes(version: u64, at: u64, len: usize) -> Vec<u8> {
    let byte = |place: u64| (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (at..).take(len).map(|place| byte(place ^ version.rotate_left(32))).collect()
}

/// Why something was refused by the mediator.
pub(crate) fn code(error: &Error) -> Code {
    let Error::Mediator(request) = error else { panic!("{error}") };
    request.problem().unwrap_or_else(|| panic!("{error}")).code
}
