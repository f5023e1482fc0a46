//! The mediator killed in the middle of whatever it does, again and again: nothing is leaked, doubled
//! or forgotten. `NETRAID_MEDIATOR_CRASHES` says how often.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::common::{CAPACITY, FakeAgent, LIMIT, access, close_key, config, data, opening};
use netraid_cluster::{
    http::{Client, encode},
    mediator::{CheckReport, Close, Entry, MediatorStatus, Mode, Page, Rename, TransferPlan},
};
use netraid_control::ledger::State;
use serde::de::IgnoredAny;

const DIRECTORY: &str = "NETRAID_TEST_MEDIATOR_DIRECTORY";
const LISTEN: &str = "NETRAID_TEST_MEDIATOR_LISTEN";

/// No test by itself: the process that is killed.
#[tokio::test]
async fn mediator_process() {
    let (Some(directory), Ok(listen)) = (std::env::var_os(DIRECTORY), std::env::var(LISTEN)) else {
        return;
    };
    let mut config = config(Path::new(&directory));
    config.listen = listen.parse().unwrap();
    let mediator = netraid_mediator::Mediator::open(config).await.unwrap();
    mediator.run(std::future::pending()).await.unwrap();
}

/// That process, which ends with whoever has this.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // One that has ended already is what was wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(directory: &Path, listen: &str) -> Killed {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "crash::mediator_process", "--nocapture"]);
    command.env(DIRECTORY, directory).env(LISTEN, listen);
    Killed(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
}

/// Until it answers.
async fn ready(directory: &Path) -> Client {
    for _ in 0..600 {
        let path = directory.join("admin.access");
        if let Ok(access) = netraid_cluster::access::AccessFile::read(&path) {
            let client = Client::with_access(&access, LIMIT).unwrap();
            if client.get::<MediatorStatus>("/v1/status").await.is_ok() {
                return client;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the mediator does not start");
}

/// Asks for all kinds of things until told to stop; whatever is refused or lost is left as it is.
async fn keep_busy(client: Client, worker: usize, stop: Arc<AtomicBool>, done: Arc<AtomicU64>) {
    for turn in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let path = format!("/w{worker}-{turn}");
        let made = client.post::<_, Entry>("/v1/names", &data(&path, 64 << 20)).await;
        let open = opening(&path, Mode::Write, 1000);
        let opened = client.post::<_, TransferPlan>("/v1/plans", &open);
        if let (Ok(_), Ok(plan)) = (made, opened.await) {
            let renew = format!("/v1/plans/{}/renew", plan.plan);
            let _ = client.post::<_, TransferPlan>(&renew, &()).await;
            if turn % 3 == 1 {
                let path = format!("/v1/plans/{}/close", plan.plan);
                let _ = client
                    .post::<_, IgnoredAny>(&path, &Close { key: close_key(), clean_close: None })
                    .await;
            } else if turn % 3 == 2 {
                let _ = client.delete::<IgnoredAny>(&format!("/v1/plans/{}", plan.plan)).await;
            }
            done.fetch_add(1, Ordering::Relaxed);
        } else {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if turn % 4 == 0 {
            // One name for all its turns: it stands for one of them, whatever happens.
            let (from, to) = (path.clone(), format!("/kept{worker}"));
            let rename = Rename { from, to, replace: true, force: true, id: None, upload: false };
            let _ = client.post::<_, Entry>("/v1/rename", &rename).await;
        }
        if turn % 2 > 0 {
            let path = format!("/v1/name?path={}&force=true", encode(&path));
            let _ = client.delete::<IgnoredAny>(&path).await;
        }
    }
}

#[tokio::test]
async fn a_mediator_that_is_killed_under_load_leaks_nothing() {
    let crashes: u64 =
        std::env::var("NETRAID_MEDIATOR_CRASHES").map_or(6, |count| count.parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let listen = free.to_string();
    let mut child = start(directory.path(), &listen);
    let admin = ready(directory.path()).await;
    let mut agents = Vec::new();
    for number in 1..=4 {
        let mut agent = FakeAgent::start(number, CAPACITY).await;
        agent.join(&access(directory.path(), "agent")).await.unwrap();
        agents.push(agent);
    }
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let client = Client::with_access(&access(directory.path(), "client"), LIMIT).unwrap();
    let workers: Vec<_> = (0..6)
        .map(|worker| {
            let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
            tokio::spawn(keep_busy(client.clone(), worker, stop, done))
        })
        .collect();
    for crash in 0..crashes {
        // At another point of what it does each time.
        let before = done.load(Ordering::Relaxed);
        while done.load(Ordering::Relaxed) < before + 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(crash * 7 % 40)).await;
        // Its successor listens where it did.
        drop(child);
        child = start(directory.path(), &listen);
        ready(directory.path()).await;
    }
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    let report: CheckReport = admin.get("/v1/check").await.unwrap();
    assert_eq!((report.differences, report.silent), (vec![], vec![]));
    assert!(report.segments > 0);
    let page: Page = admin.get("/v1/names?path=/").await.unwrap();
    for entry in &page.entries {
        let path = format!("/v1/name?path={}&force=true", encode(&entry.path));
        admin.delete::<IgnoredAny>(&path).await.unwrap();
    }
    // What was only held ends by itself; of what was committed nothing is left.
    for agent in &agents {
        for _ in 0..200 {
            if committed(agent) == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(committed(agent), 0);
        assert!(agent.inner.segments.lock().unwrap().is_empty());
    }
    drop(child);
}

fn committed(agent: &FakeAgent) -> usize {
    let ledger = agent.inner.ledger.lock().unwrap();
    ledger.entries().filter(|entry| matches!(entry.state, State::Committed { .. })).count()
}
