//! An agent in a thread of its own, and a mediator that asks it for what a test says.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{Path as UrlPath, State},
    routing::{post, put},
};
use netraid_agent::{Agent, AgentConfig, Medium, Ready};
use netraid_cluster::{
    access::{AccessFile, Bearer},
    agent::{
        Answer, Done, Fault, FaultCode, Label, LedgerPage, NewSegment, Operation, SegmentPage,
        space_of,
    },
    http::Client,
    mediator::{Beat, Beaten, Join, Joined, Kind},
    now,
    serve::Server,
};
use netraid_control::{
    keys::{KeyId, Ring, RootKey, Rotation},
    ledger::{Allotment, Commit, Hold, Purpose},
    token::{Credentials, Token},
    units::{
        AgentId, AllotmentId, Generation, MediatorId, PlanId, Rate, Resources, SegmentId, VolumeId,
    },
};
use tokio::sync::{oneshot, watch};

pub(crate) const MIB: u64 = 1 << 20;
const LOOPBACK: &str = "127.0.0.1:0";

/// A running agent; it ends when dropped.
pub(crate) struct Running {
    pub(crate) ready: Ready,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) fn config(directory: &Path, mediators: &[&Mediator]) -> AgentConfig {
    AgentConfig {
        medium: Medium::Directory(directory.to_owned()),
        state: None,
        space_bytes: Some(100 * MIB),
        device: Some(Rate(100 * MIB)),
        network: Some(Rate(100 * MIB)),
        kept_percent: 20,
        listen: LOOPBACK.parse().unwrap(),
        portal: LOOPBACK.parse().unwrap(),
        advertise: None,
        host: "here".to_owned(),
        rack: String::new(),
        insecure: true,
        identity: None,
        mediators: mediators.iter().map(|mediator| mediator.access.clone()).collect(),
        api: netraid_cluster::serve::Limits::DEFAULT,
    }
}

impl Running {
    pub(crate) fn start(config: AgentConfig) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = runtime();
            runtime.block_on(async {
                let agent = Agent::start(config).await.unwrap();
                let stop = async {
                    let _ = stopped.await;
                };
                let announce = |ready: &Ready| sender.send(ready.clone()).unwrap();
                agent.run(stop, announce).await.unwrap();
            });
            runtime.shutdown_timeout(Duration::from_secs(5));
        });
        let ready = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        Self { ready, stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A mediator that takes every agent.
#[derive(Clone)]
pub(crate) struct Mediator {
    pub(crate) id: MediatorId,
    pub(crate) access: AccessFile,
    state: Arc<MediatorState>,
}

struct MediatorState {
    id: MediatorId,
    roots: Mutex<Ring<RootKey>>,
    /// What each agent wants to hear, and who it trusts.
    joined: Mutex<Vec<(AgentId, Bearer, Option<String>)>>,
    draining: watch::Sender<bool>,
    retired: watch::Sender<bool>,
    beats: watch::Sender<u64>,
}

impl Mediator {
    pub(crate) async fn start() -> Self {
        Self::start_as(MediatorId(rand::random())).await
    }

    /// One that says that it is this one, and has keys of its own.
    pub(crate) async fn start_as(id: MediatorId) -> Self {
        let mut roots = Ring::<RootKey>::default();
        roots.rotate(now(), &Rotation::default(), &rand::random()).unwrap();
        let state = Arc::new(MediatorState {
            id,
            roots: Mutex::new(roots),
            joined: Mutex::default(),
            draining: watch::Sender::new(false),
            retired: watch::Sender::new(false),
            beats: watch::Sender::new(0),
        });
        let server = Server::bind(LOOPBACK.parse().unwrap(), None).unwrap();
        let access = AccessFile {
            version: 1,
            mediator: server.url(),
            authority: None,
            token: Bearer::draw(),
        };
        let router = Router::new()
            .route("/v1/agents", post(join))
            .route("/v1/agents/{id}", put(beat))
            .with_state(Arc::clone(&state));
        // On a thread of its own: a test may wait for its agent.
        std::thread::spawn(move || {
            let knows = |_: &_| true;
            runtime().block_on(server.serve(router, knows, std::future::pending())).unwrap();
        });
        Self { id, access, state }
    }

    /// Signs with the key of the moment.
    pub(crate) fn issue(&self, token: Token) -> Credentials {
        token.issue(&self.state.roots.lock().unwrap(), now()).unwrap()
    }

    /// Signs with a new key from now on, and takes `withdrawn` back; agents have been told.
    pub(crate) async fn rotate(&self, withdrawn: Option<KeyId>) {
        {
            let mut roots = self.state.roots.lock().unwrap();
            let rotation = Rotation { lead_ms: 0, ..Rotation::default() };
            roots.rotate(now(), &rotation, &rand::random()).unwrap();
            assert!(withdrawn.is_none_or(|id| roots.remove(id)));
        }
        self.two_beats().await;
    }

    /// A way to an agent that has joined.
    pub(crate) fn at(&self, ready: &Ready) -> AgentClient {
        self.at_url(ready.agent, &ready.api)
    }

    pub(crate) fn at_url(&self, id: AgentId, api: &str) -> AgentClient {
        let joined = self.state.joined.lock().unwrap();
        let (_, bearer, authority) = joined.iter().rev().find(|(agent, ..)| *agent == id).unwrap();
        let limit = Duration::from_secs(60);
        let client = Client::new(api, bearer, authority.as_deref(), limit).unwrap();
        AgentClient { client }
    }

    /// What an agent that has joined wants to hear.
    pub(crate) fn token_at(&self, ready: &Ready) -> Bearer {
        let joined = self.state.joined.lock().unwrap();
        joined.iter().rev().find(|(agent, ..)| *agent == ready.agent).unwrap().1.clone()
    }

    pub(crate) fn joins(&self) -> usize {
        self.state.joined.lock().unwrap().len()
    }

    /// Says it with the next beat, and waits until a beat after that has come.
    pub(crate) async fn drain(&self, draining: bool) {
        self.state.draining.send_replace(draining);
        self.two_beats().await;
    }

    pub(crate) async fn retire(&self) {
        self.state.retired.send_replace(true);
        let mut beats = self.state.beats.subscribe();
        let seen = *beats.borrow_and_update();
        beats.wait_for(|count| *count > seen).await.unwrap();
    }

    pub(crate) async fn two_beats(&self) {
        let mut beats = self.state.beats.subscribe();
        let seen = *beats.borrow_and_update();
        beats.wait_for(|count| *count > seen + 1).await.unwrap();
    }
}

async fn join(State(state): State<Arc<MediatorState>>, Json(join): Json<Join>) -> Json<Joined> {
    let agent = join.status.agent;
    let entry = (agent, Bearer::from_text(join.token), join.authority);
    state.joined.lock().unwrap().push(entry);
    Json(Joined {
        mediator: state.id,
        token: Bearer::draw().expose().to_owned(),
        beat_ms: 50,
        keys: state.roots.lock().unwrap().of_agent(state.id, agent).expose(),
    })
}

async fn beat(
    State(state): State<Arc<MediatorState>>,
    UrlPath(agent): UrlPath<AgentId>,
    Json(beat): Json<Beat>,
) -> Json<Beaten> {
    assert_eq!(beat.status.agent, agent);
    let keys = state.roots.lock().unwrap().of_agent(state.id, agent);
    let keys = (beat.keys_mark != keys.mark()).then(|| keys.expose());
    state.beats.send_modify(|count| *count += 1);
    let (draining, retired) = (*state.draining.borrow(), *state.retired.borrow());
    Json(Beaten { beat_ms: 50, keys, draining, retired, clock_ahead_ms: None })
}

/// A mediator's way to one agent.
#[derive(Clone)]
pub(crate) struct AgentClient {
    pub(crate) client: Client,
}

impl AgentClient {
    pub(crate) async fn ask(&self, operations: &[Operation]) -> Vec<Answer> {
        let answers: Vec<Answer> = self.client.post("/v1/operations", &operations).await.unwrap();
        assert_eq!(answers.len(), operations.len());
        answers
    }

    /// One operation.
    pub(crate) async fn one(&self, operation: Operation) -> Answer {
        self.ask(&[operation]).await.remove(0)
    }

    pub(crate) async fn fault(&self, operation: Operation) -> FaultCode {
        let Err(Fault { code, .. }) = self.one(operation.clone()).await else {
            panic!("was done: {operation:?}")
        };
        code
    }

    pub(crate) async fn hold(&self, hold: Hold) -> Result<Allotment, Fault> {
        let done = self.one(Operation::Hold(hold)).await?;
        let Done::Booked(allotment) = done else { panic!("{done:?}") };
        Ok(allotment)
    }

    /// Holds and commits space, and makes a segment in it.
    pub(crate) async fn segment(&self, len_bytes: u64) -> SegmentId {
        let segment = SegmentId(rand::random());
        self.segment_of(segment, len_bytes).await;
        segment
    }

    /// The same with this id.
    pub(crate) async fn segment_of(&self, segment: SegmentId, len_bytes: u64) {
        let held = self.hold(space(segment, len_bytes)).await.unwrap();
        let commit = Commit { id: held.id, serial: held.serial, for_ms: None };
        let all = [Operation::Commit(commit), create(segment, len_bytes)];
        for answer in self.ask(&all).await {
            answer.unwrap();
        }
    }

    /// Books rates for a plan.
    pub(crate) async fn plan(&self, segment: SegmentId, rate: u64) -> Result<PlanId, Fault> {
        let plan = PlanId(rand::random());
        let held = self.hold(rates(plan, segment, rate)).await?;
        let commit = Commit { id: held.id, serial: held.serial, for_ms: Some(600_000) };
        self.one(Operation::Commit(commit)).await?;
        Ok(plan)
    }

    pub(crate) async fn ledger(&self) -> Vec<Allotment> {
        let mut all = Vec::new();
        loop {
            let after = all.last().map(|last: &Allotment| format!("&after={}", last.id));
            let path = format!("/v1/ledger?limit=100{}", after.unwrap_or_default());
            let page: LedgerPage = self.client.get(&path).await.unwrap();
            all.extend(page.entries);
            if !page.more {
                return all;
            }
        }
    }

    pub(crate) async fn segments(&self) -> SegmentPage {
        self.client.get("/v1/segments").await.unwrap()
    }
}

pub(crate) fn space(segment: SegmentId, len_bytes: u64) -> Hold {
    Hold {
        id: space_of(segment),
        segment,
        generation: None,
        purpose: Purpose::Client,
        resources: Resources { space_bytes: len_bytes, ..Resources::default() },
        for_ms: 30_000,
    }
}

pub(crate) fn rates(plan: PlanId, segment: SegmentId, rate: u64) -> Hold {
    Hold {
        id: AllotmentId(plan.0),
        segment,
        generation: Some(Generation(1)),
        purpose: Purpose::Client,
        resources: Resources { space_bytes: 0, device: Rate(rate), network: Rate(rate) },
        for_ms: 30_000,
    }
}

pub(crate) fn create(segment: SegmentId, len_bytes: u64) -> Operation {
    let label = label("/a");
    Operation::CreateSegment(NewSegment { segment, len_bytes, label })
}

pub(crate) fn label(path: &str) -> Label {
    Label {
        version: 1,
        volume: VolumeId([7; 16]),
        path: path.to_owned(),
        kind: Kind::Volume,
        member: 0,
        members: 3,
        level: 5,
        chunk_len: 65536,
        logged: true,
        capacity_bytes: MIB,
        length_bytes: MIB,
        generation: Generation(0),
        share: None,
        wrapped_key: None,
        sealed_path: None,
        more: BTreeMap::new(),
    }
}

/// The file of a segment.
pub(crate) fn file_of(directory: &Path, mediator: &Mediator, segment: SegmentId) -> PathBuf {
    directory.join("segments").join(mediator.id.to_string()).join(segment.to_string())
}

/// Lines of the audit log of this event, once there are so many; a thread writes them.
pub(crate) async fn audit(directory: &Path, event: &str, count: usize) -> Vec<serde_json::Value> {
    let end = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        let text = std::fs::read_to_string(directory.join("audit.jsonl")).unwrap_or_default();
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let lines = whole.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let lines: Vec<_> = lines.filter(|line| line["event"] == event).collect();
        if lines.len() >= count {
            assert_eq!(lines.len(), count, "{lines:?}");
            return lines;
        }
        assert!(std::time::Instant::now() < end, "{count} of {event}: {text}");
        tokio::task::yield_now().await;
    }
}
