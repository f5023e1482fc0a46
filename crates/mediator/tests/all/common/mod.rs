//! A mediator, and agents that speak the documents over a real ledger and keep nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, unreachable_pub, missing_docs)]

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{Query, State},
    http::HeaderMap,
    routing::{get, post},
};
use netraid_cluster::{
    Problem,
    access::{AccessFile, Bearer, Role, TokenDigest},
    agent::{
        AgentStatus, Answer, Done, Fault, FaultCode, LedgerPage, Operation, SegmentPage,
        SegmentReport, rates_of, space_of,
    },
    http::{Client, RequestError},
    mediator::{
        Beat, Beaten, Close, Create, Entry, Join, Joined, Kind, Layout, MediatorStatus, Mode,
        NewAccess, NewToken, Open, PlanPage, TransferPlan,
    },
    now,
    serve::bearer,
};
use netraid_control::{
    keys::{Key, Keyring, Ring, StoredRing},
    lease::nobody,
    ledger::{HoldError, Ledger, Limits, Purpose},
    units::{
        AgentId, AllotmentId, Generation, MediatorId, Moment, PlanId, Rate, Resources, SegmentId,
    },
};
use netraid_mediator::{Config, Mediator, Tls};
use serde::de::IgnoredAny;
use tokio::sync::oneshot;

pub const LIMIT: Duration = Duration::from_secs(30);

/// Which operations are meant.
pub type Which = fn(&Operation) -> bool;

/// What an agent knows, as long as it runs.
pub struct Inner {
    pub id: AgentId,
    pub mediator: Mutex<Option<MediatorId>>,
    pub ledger: Mutex<Ledger>,
    pub segments: Mutex<BTreeMap<SegmentId, SegmentReport>>,
    pub taken: Mutex<BTreeMap<SegmentId, PlanId>>,
    pub ended: Mutex<Vec<PlanId>>,
    pub revoked: Mutex<BTreeMap<PlanId, Moment>>,
    pub keys: Mutex<Keyring>,
    pub token: TokenDigest,
    pub is_deaf: AtomicBool,
    /// It cannot end plans.
    pub keeps_plans: AtomicBool,
    /// Whatever generation it is asked to take, it says that it has one that is so much larger.
    pub boasts: AtomicU64,
    /// Operations that it refuses, and how.
    pub refuses: Mutex<Option<(Which, FaultCode)>>,
    /// It says that it has more segments, for ever.
    pub is_endless: AtomicBool,
    pub host: String,
    capacity: Resources,
    address: SocketAddr,
}

pub struct FakeAgent {
    pub inner: Arc<Inner>,
    bearer: Bearer,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Drop for FakeAgent {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

pub const CAPACITY: Resources =
    Resources { space_bytes: 1 << 40, device: Rate(100_000_000), network: Rate(100_000_000) };

impl FakeAgent {
    pub async fn start(number: u8, capacity: Resources) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let bearer = Bearer::draw();
        let inner = Arc::new(Inner {
            id: AgentId([number; 16]),
            mediator: Mutex::default(),
            ledger: Mutex::new(Ledger::new(capacity, Resources::default(), Limits::default())),
            segments: Mutex::default(),
            taken: Mutex::default(),
            ended: Mutex::default(),
            revoked: Mutex::default(),
            keys: Mutex::default(),
            token: bearer.digest(),
            is_deaf: AtomicBool::new(false),
            keeps_plans: AtomicBool::new(false),
            boasts: AtomicU64::new(0),
            refuses: Mutex::default(),
            is_endless: AtomicBool::new(false),
            host: format!("host-{number}"),
            capacity,
            address: listener.local_addr().unwrap(),
        });
        let router = Router::new()
            .route("/v1/operations", post(operations))
            .route("/v1/ledger", get(ledger))
            .route("/v1/segments", get(segments))
            .route("/v1/status", get(status))
            .with_state(Arc::clone(&inner));
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { inner, bearer, tasks: vec![serving] }
    }

    pub async fn join(&mut self, access: &AccessFile) -> Result<Joined, RequestError> {
        let joining = Client::with_access(access, LIMIT).unwrap();
        let token = self.bearer.expose().to_owned();
        let join = Join { status: self.inner.status(), token, authority: None };
        let joined: Joined = joining.post("/v1/agents", &join).await?;
        *self.inner.mediator.lock().unwrap() = Some(joined.mediator);
        let ring = Ring::<Key>::restore(&joined.keys).unwrap();
        self.inner.keys.lock().unwrap().set(joined.mediator, ring).unwrap();
        let access =
            AccessFile { token: Bearer::from_text(joined.token.clone()), ..access.clone() };
        let client = Client::with_access(&access, LIMIT).unwrap();
        let inner = Arc::clone(&self.inner);
        let beat = Duration::from_millis(joined.beat_ms);
        self.tasks.push(tokio::spawn(async move {
            loop {
                if !inner.is_deaf.load(Ordering::Relaxed) {
                    let beat =
                        Beat { status: inner.status(), keys_mark: inner.keys_mark(), clock: None };
                    let path = format!("/v1/agents/{}", inner.id);
                    let beaten: Result<Beaten, _> = client.put(&path, &beat).await;
                    inner.learn(beaten.ok().and_then(|beaten| beaten.keys));
                }
                tokio::time::sleep(beat).await;
            }
        }));
        Ok(joined)
    }

    /// It answers nothing, as if it were cut off, or does again.
    pub fn set_deaf(&self, is_deaf: bool) {
        self.inner.is_deaf.store(is_deaf, Ordering::Relaxed);
    }

    /// It refuses these operations like that from now on, whatever it has.
    pub fn refuse(&self, which: Which, code: FaultCode) {
        *self.inner.refuses.lock().unwrap() = Some((which, code));
    }

    pub fn allotments(&self) -> usize {
        self.inner.ledger.lock().unwrap().entries().count()
    }

    pub fn booked(&self) -> Resources {
        self.inner.ledger.lock().unwrap().booked().resources
    }
}

impl Inner {
    pub fn status(&self) -> AgentStatus {
        let mut ledger = self.ledger.lock().unwrap();
        ledger.expire(now());
        store(&mut ledger);
        AgentStatus {
            agent: self.id,
            host: self.host.clone(),
            rack: String::new(),
            api: format!("http://{}", self.address),
            portal: "127.0.0.1:3260".to_owned(),
            target: format!("iqn.2026-01.netraid:{}", self.id),
            capacity: self.capacity,
            kept: Resources::default(),
            left: ledger.left(Purpose::Client),
            left_for_rebuild: ledger.left(Purpose::Rebuild),
            draining: false,
            segments: self.segments.lock().unwrap().len() as u64,
            sessions: 0,
        }
    }

    /// What it has of its mediator's keys.
    pub fn keys_mark(&self) -> String {
        let (mediator, keys) = (*self.mediator.lock().unwrap(), self.keys.lock().unwrap());
        let of = |(id, ring): (MediatorId, &Ring<Key>)| (Some(id) == mediator).then(|| ring.mark());
        keys.rings().find_map(of).unwrap_or_default()
    }

    fn learn(&self, keys: Option<StoredRing>) {
        let (Some(keys), Some(mediator)) = (keys, *self.mediator.lock().unwrap()) else { return };
        let ring = Ring::<Key>::restore(&keys).unwrap();
        self.keys.lock().unwrap().set(mediator, ring).unwrap();
    }

    async fn enter(&self, headers: &HeaderMap) -> Result<(), Problem> {
        if self.is_deaf.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        let wrong = || Problem::new(netraid_cluster::Code::Unauthorized, "not known");
        (bearer(headers) == Some(self.token)).then_some(()).ok_or_else(wrong)
    }

    fn operate(&self, operation: Operation) -> Answer {
        let mediator = self.mediator.lock().unwrap().unwrap();
        let mut ledger = self.ledger.lock().unwrap();
        let mut segments = self.segments.lock().unwrap();
        ledger.expire(now());
        let fault = |code, detail: String| Err(Fault { code, detail });
        if let Some((which, code)) = *self.refuses.lock().unwrap()
            && which(&operation)
        {
            return fault(code, "cannot, as it is".to_owned());
        }
        let booked = |answer: Result<netraid_control::ledger::Answer, HoldError>| match answer {
            Ok(answer) => Ok(Done::Booked(answer.allotment)),
            Err(HoldError::Short(short)) => fault(FaultCode::Short, short.to_string()),
            Err(error) => fault(FaultCode::Conflict, error.to_string()),
        };
        let answer = match operation {
            Operation::Hold(hold) => booked(ledger.hold(now(), mediator, &hold)),
            Operation::Book { hold, lease_ms } => {
                booked(ledger.book(now(), mediator, &hold, lease_ms))
            }
            Operation::Commit(commit) => match ledger.commit(now(), mediator, &commit) {
                Ok(answer) => Ok(Done::Booked(answer.allotment)),
                Err(error) => fault(FaultCode::Absent, error.to_string()),
            },
            Operation::Renew { id, for_ms } => match ledger.renew(now(), mediator, id, for_ms) {
                Ok(answer) => Ok(Done::Booked(answer.allotment)),
                Err(error) => fault(FaultCode::Absent, error.to_string()),
            },
            Operation::Release { .. } if self.keeps_plans.load(Ordering::Relaxed) => {
                fault(FaultCode::Failed, "not now".to_owned())
            }
            Operation::Release { id } => {
                let released = ledger.release(mediator, id).unwrap();
                Ok(Done::Released(released.entries as u64))
            }
            Operation::CreateSegment(new) => {
                let space = space_of(new.segment);
                match ledger.entries().find(|entry| entry.id == space) {
                    Some(entry) if entry.resources.space_bytes >= new.len_bytes => {
                        let report = segments.entry(new.segment).or_insert(SegmentReport {
                            segment: new.segment,
                            len_bytes: new.len_bytes,
                            used_bytes: 0,
                            generation: Generation(0),
                            is_lost: false,
                            label: new.label,
                        });
                        Ok(Done::Generation(report.generation))
                    }
                    _ => fault(FaultCode::Conflict, "no space is booked".to_owned()),
                }
            }
            Operation::SetLabel { segment, label } => match segments.get_mut(&segment) {
                Some(report) => {
                    report.label = label;
                    Ok(Done::Done)
                }
                None => fault(FaultCode::Absent, "no such segment".to_owned()),
            },
            Operation::RaiseGeneration { segment, generation, taken_by } => {
                match segments.get_mut(&segment) {
                    Some(report) => {
                        let mut taken = self.taken.lock().unwrap();
                        if generation > report.generation {
                            report.generation = generation;
                            taken.insert(segment, taken_by);
                        }
                        ledger.release_segment(mediator, segment, Some(generation)).unwrap();
                        let taken_by = taken.get(&segment).copied().unwrap_or(nobody());
                        let boast = self.boasts.load(Ordering::Relaxed);
                        let generation = Generation(report.generation.0 + boast);
                        Ok(Done::Raised { generation, taken_by })
                    }
                    None => fault(FaultCode::Absent, "no such segment".to_owned()),
                }
            }
            Operation::RemoveSegment { segment } => {
                segments.remove(&segment);
                let released = ledger.release_segment(mediator, segment, None).unwrap();
                Ok(Done::Released(released.entries as u64))
            }
            Operation::ExtendPlan { .. } => Ok(Done::Done),
            Operation::EndPlan { .. } if self.keeps_plans.load(Ordering::Relaxed) => {
                fault(FaultCode::Failed, "not now".to_owned())
            }
            Operation::EndPlan { plan, revoked_until } => {
                self.ended.lock().unwrap().push(plan);
                self.revoked.lock().unwrap().extend(revoked_until.map(|until| (plan, until)));
                ledger.release(mediator, rates_of(plan)).unwrap();
                Ok(Done::Done)
            }
        };
        store(&mut ledger);
        answer
    }
}

fn store(ledger: &mut Ledger) {
    let mut last = None;
    while let Some((order, _)) = ledger.poll_change() {
        last = Some(order);
    }
    if let Some(order) = last {
        ledger.handle_stored(order);
    }
}

async fn operations(
    State(inner): State<Arc<Inner>>,
    headers: HeaderMap,
    Json(operations): Json<Vec<Operation>>,
) -> Result<Json<Vec<Answer>>, Problem> {
    inner.enter(&headers).await?;
    Ok(Json(operations.into_iter().map(|operation| inner.operate(operation)).collect()))
}

#[derive(serde::Deserialize)]
struct PageOf {
    after: Option<String>,
    limit: usize,
}

async fn ledger(
    State(inner): State<Arc<Inner>>,
    headers: HeaderMap,
    Query(page): Query<PageOf>,
) -> Result<Json<LedgerPage>, Problem> {
    inner.enter(&headers).await?;
    let mediator = inner.mediator.lock().unwrap().unwrap();
    let after: Option<AllotmentId> = page.after.map(|after| after.parse().unwrap());
    let mut ledger = inner.ledger.lock().unwrap();
    ledger.expire(now());
    store(&mut ledger);
    let mut entries: Vec<_> = ledger.page(mediator, after).take(page.limit + 1).copied().collect();
    let more = entries.len() > page.limit;
    entries.truncate(page.limit);
    Ok(Json(LedgerPage { now: now(), entries, more }))
}

async fn status(
    State(inner): State<Arc<Inner>>,
    headers: HeaderMap,
) -> Result<Json<AgentStatus>, Problem> {
    inner.enter(&headers).await?;
    Ok(Json(inner.status()))
}

async fn segments(
    State(inner): State<Arc<Inner>>,
    headers: HeaderMap,
    Query(page): Query<PageOf>,
) -> Result<Json<SegmentPage>, Problem> {
    inner.enter(&headers).await?;
    let after: Option<SegmentId> = page.after.map(|after| after.parse().unwrap());
    let segments = inner.segments.lock().unwrap();
    let after = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
    if inner.is_endless.load(Ordering::Relaxed) {
        let last = match after {
            std::ops::Bound::Excluded(last) => u128::from_be_bytes(last.0),
            std::ops::Bound::Included(_) | std::ops::Bound::Unbounded => 0,
        };
        let report = segments.values().next().unwrap();
        let next = (1..=page.limit).map(|at| SegmentId((last + at as u128).to_be_bytes()));
        let entries = next.map(|segment| SegmentReport { segment, ..report.clone() }).collect();
        return Ok(Json(SegmentPage { entries, more: true }));
    }
    let range = segments.range((after, std::ops::Bound::Unbounded)).map(|(_, report)| report);
    let mut entries: Vec<_> = range.take(page.limit + 1).cloned().collect();
    let more = entries.len() > page.limit;
    entries.truncate(page.limit);
    Ok(Json(SegmentPage { entries, more }))
}

/// A mediator with agents.
pub struct House {
    pub directory: tempfile::TempDir,
    pub agents: Vec<FakeAgent>,
    pub admin: Client,
    pub client: Client,
    pub url: String,
    stop: Option<oneshot::Sender<()>>,
    running: Option<tokio::task::JoinHandle<()>>,
}

pub fn config(directory: &Path) -> Config {
    Config {
        directory: directory.to_owned(),
        listen: "127.0.0.1:0".parse().unwrap(),
        advertise: None,
        tls: Tls::None,
        term_ms: 600_000,
        api: netraid_cluster::serve::Limits::DEFAULT,
    }
}

impl House {
    pub async fn new(agents: u8) -> Self {
        Self::with(agents, CAPACITY).await
    }

    pub async fn with(agents: u8, capacity: Resources) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mediator = Mediator::open(config(directory.path())).await.unwrap();
        let url = mediator.url().to_owned();
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(async move {
            mediator.run(async { drop(stopped.await) }).await.unwrap();
        });
        let admin = access(directory.path(), "admin");
        let client = access(directory.path(), "client");
        let mut house = Self {
            agents: Vec::new(),
            admin: Client::with_access(&admin, LIMIT).unwrap(),
            client: Client::with_access(&client, LIMIT).unwrap(),
            url,
            directory,
            stop: Some(stop),
            running: Some(running),
        };
        for number in 1..=agents {
            house.add(number, capacity).await;
        }
        house
    }

    pub async fn add(&mut self, number: u8, capacity: Resources) {
        let mut agent = FakeAgent::start(number, capacity).await;
        agent.join(&access(self.directory.path(), "agent")).await.unwrap();
        self.agents.push(agent);
    }

    pub fn agent(&self, id: AgentId) -> &FakeAgent {
        self.agents.iter().find(|agent| agent.inner.id == id).unwrap()
    }

    pub async fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(running) = self.running.take() {
            running.await.unwrap();
        }
    }

    /// Starts the mediator again, of what its directory holds, where it was.
    pub async fn start(&mut self) {
        let mut config = config(self.directory.path());
        config.listen = self.url.trim_start_matches("http://").parse().unwrap();
        let mediator = Mediator::open(config).await.unwrap();
        let (stop, stopped) = oneshot::channel();
        self.stop = Some(stop);
        self.running = Some(tokio::spawn(async move {
            mediator.run(async { drop(stopped.await) }).await.unwrap();
        }));
    }

    pub async fn create(&self, path: &str, size: u64) -> Result<Entry, RequestError> {
        self.client.post("/v1/names", &data(path, size)).await
    }

    /// Gives a plan back, as its client.
    pub async fn close(&self, plan: PlanId) -> Result<IgnoredAny, RequestError> {
        let close = Close { key: close_key(), clean_close: None };
        self.client.post(&format!("/v1/plans/{plan}/close"), &close).await
    }

    /// A client by a bearer token of its own, and the token's number.
    pub async fn client_of(&self, role: Role, for_ms: Option<u64>) -> (Client, u64) {
        let new = NewAccess { role, name: "test".to_owned(), for_ms };
        let made: NewToken = self.admin.post("/v1/access", &new).await.unwrap();
        let (mediator, token) = (self.url.clone(), Bearer::from_text(made.token));
        let access = AccessFile { version: 1, mediator, authority: None, token };
        (Client::with_access(&access, LIMIT).unwrap(), made.entry.id)
    }

    /// What is open.
    pub async fn plans(&self) -> Vec<PlanId> {
        let page: PlanPage = self.admin.get("/v1/plans").await.unwrap();
        page.entries.iter().map(|entry| entry.plan).collect()
    }

    pub async fn open(&self, open: &Open) -> Result<TransferPlan, RequestError> {
        self.client.post("/v1/plans", open).await
    }
}

/// The key of plans that [`opening`] asks for.
pub fn close_key() -> Bearer {
    Bearer::from_text("said by the client alone".to_owned())
}

pub fn access(directory: &Path, role: &str) -> AccessFile {
    AccessFile::read(&directory.join(format!("{role}.access"))).unwrap()
}

pub fn data(path: &str, size_bytes: u64) -> Create {
    let layout = Layout::default();
    let (path, kind) = (path.to_owned(), Kind::Data);
    Create { path, kind, size_bytes, layout, parents: false, upload: false, replaces: None }
}

/// An upload of data of that name.
pub fn upload(path: &str, size_bytes: u64) -> Create {
    Create { upload: true, ..data(path, size_bytes) }
}

pub fn directory(path: &str) -> Create {
    Create { kind: Kind::Directory, ..data(path, 0) }
}

pub fn opening(path: &str, mode: Mode, rate: u64) -> Open {
    Open {
        path: path.to_owned(),
        mode,
        initiator: "iqn.2026-01.netraid:client".to_owned(),
        rate: Rate(rate),
        limit: None,
        request_bytes: None,
        degraded: true,
        for_ms: Some(60_000),
        take_over: false,
        plan: None,
        close_key: Some(close_key()),
        upload: false,
        id: None,
        kind: None,
    }
}

pub fn code<T>(result: Result<T, RequestError>) -> netraid_cluster::Code {
    result.err().expect("an error").problem().expect("a refusal").code
}

/// Waits until so many agents are.
pub async fn reachable(house: &House, count: u32) {
    for _ in 0..2400 {
        let status: MediatorStatus = house.admin.get("/v1/status").await.unwrap();
        if status.reachable == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("agents do not come back");
}

/// Copies a store when the mediator that was stopped has let go of it: its thread closes it a little
/// later, and what it does then is meant for the files that it had.
pub async fn copy_store(from: &Path, to: &Path) {
    let is_used = || {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let names = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        names.into_iter().any(|name| name.starts_with(from) || name.starts_with(to))
    };
    let closed = async {
        while is_used() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), closed).await.unwrap();
    for ending in ["", "-wal", "-shm"] {
        let name = format!("mediator.sqlite{ending}");
        let _ = std::fs::remove_file(to.join(&name));
        if from.join(&name).exists() {
            std::fs::copy(from.join(&name), to.join(&name)).unwrap();
        }
    }
}
