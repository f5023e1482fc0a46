//! Two mediators that share an agent.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use netraid_cluster::{
    access::Bearer,
    agent::{AgentStatus, FaultCode, Operation},
    http::Client,
};
use netraid_control::{
    ledger::Commit,
    units::{AllotmentId, Generation, PlanId},
};

use crate::support::{MIB, Mediator, Running, audit, config, create, rates, space};

/// How often each client books and gives back.
const ROUNDS: &str = "NETRAID_AGENT_ROUNDS";

#[tokio::test]
async fn mediators_see_and_reach_nothing_of_one_another() {
    let directory = tempfile::tempdir().unwrap();
    let (one, other) = (Mediator::start().await, Mediator::start().await);
    let agent = Running::start(config(directory.path(), &[&one, &other]));
    let (mine, theirs) = (one.at(&agent.ready), other.at(&agent.ready));
    let segment = mine.segment(MIB).await;
    let plan = mine.plan(segment, MIB).await.unwrap();
    assert!(theirs.ledger().await.is_empty());
    assert!(theirs.segments().await.entries.is_empty());
    for operation in [
        Operation::Renew { id: AllotmentId(plan.0), for_ms: 1000 },
        Operation::RaiseGeneration {
            segment,
            generation: Generation(7),
            taken_by: PlanId([5; 16]),
        },
        create(segment, MIB),
    ] {
        assert_eq!(theirs.fault(operation).await, FaultCode::Absent);
    }
    for operation in [
        Operation::Release { id: AllotmentId(plan.0) },
        Operation::RemoveSegment { segment },
        Operation::EndPlan { plan, revoked_until: None },
    ] {
        theirs.one(operation).await.unwrap();
    }
    assert_eq!(mine.ledger().await.len(), 2);
    assert_eq!(mine.segments().await.entries[0].generation, Generation(0));
    // The same id is another one.
    let held = theirs.hold(space(segment, 2 * MIB)).await.unwrap();
    let commit = Commit { id: held.id, serial: held.serial, for_ms: None };
    for answer in theirs.ask(&[Operation::Commit(commit), create(segment, 2 * MIB)]).await {
        answer.unwrap();
    }
    assert_eq!(theirs.segments().await.entries[0].len_bytes, 2 * MIB);
    assert_eq!(mine.segments().await.entries[0].len_bytes, MIB);
    theirs.one(Operation::RemoveSegment { segment }).await.unwrap();
    assert_eq!(mine.segments().await.entries.len(), 1);
}

#[tokio::test]
async fn who_says_no_token_or_another_one_gets_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let agent = Running::start(config(directory.path(), &[&mediator]));
    let limit = std::time::Duration::from_secs(10);
    let stranger = Client::new(&agent.ready.api, &Bearer::draw(), None, limit).unwrap();
    for path in ["/v1/status", "/v1/ledger", "/v1/segments", "/v1/local"] {
        let refused = stranger.get::<serde_json::Value>(path).await.unwrap_err();
        assert_eq!(refused.problem().unwrap().code, netraid_cluster::Code::Unauthorized);
    }
    let refused = mediator.at(&agent.ready).client.get::<serde_json::Value>("/v1/local").await;
    assert_eq!(refused.unwrap_err().problem().unwrap().code, netraid_cluster::Code::Forbidden);
    audit(directory.path(), "request_refused", 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_of_two_mediators_cannot_overcommit_an_agent() {
    let rounds = std::env::var(ROUNDS).map_or(40_u64, |rounds| rounds.parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let mediators = [Mediator::start().await, Mediator::start().await];
    let agent = Running::start(config(directory.path(), &[&mediators[0], &mediators[1]]));
    let clients = mediators.each_ref().map(|mediator| mediator.at(&agent.ready));
    let segments = [clients[0].segment(MIB).await, clients[1].segment(MIB).await];
    let (granted, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let tasks = (0..16_usize).map(|number| {
        let (client, segment) = (clients[number % 2].clone(), segments[number % 2]);
        let (granted, refused) = (Arc::clone(&granted), Arc::clone(&refused));
        tokio::spawn(async move {
            for round in 0..rounds {
                // Odd numbers: what is left is never the same.
                let rate = (3 + (round + number as u64) % 11) * MIB + 1;
                let plan = PlanId(rand::random());
                let Ok(held) = client.hold(rates(plan, segment, rate)).await else {
                    refused.fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                granted.fetch_add(1, Ordering::Relaxed);
                let commit = Commit { id: held.id, serial: held.serial, for_ms: Some(60_000) };
                client.one(Operation::Commit(commit)).await.unwrap();
                if round % 3 != 0 || number == 0 {
                    client.one(Operation::EndPlan { plan, revoked_until: None }).await.unwrap();
                } else {
                    client.one(Operation::Release { id: held.id }).await.unwrap();
                }
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let mut looks = 0;
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        let status: AgentStatus = clients[0].client.get("/v1/status").await.unwrap();
        // What is left for rebuilding never goes below what is kept for it.
        assert!(status.left_for_rebuild.device.0 >= 20 * MIB, "{status:?}");
        looks += 1;
    }
    for task in tasks {
        task.await.unwrap();
    }
    let (granted, refused) = (granted.load(Ordering::Relaxed), refused.load(Ordering::Relaxed));
    assert!(granted > 50 && refused > 5, "{granted} granted, {refused} refused, {looks} looks");
    let status: AgentStatus = clients[0].client.get("/v1/status").await.unwrap();
    assert_eq!(status.left.device.0, 80 * MIB);
}

#[tokio::test]
async fn an_agent_is_open_to_other_hosts_over_tls_alone() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let open = netraid_agent::AgentConfig {
        listen: "0.0.0.0:0".parse().unwrap(),
        advertise: Some("localhost".to_owned()),
        ..config(directory.path(), &[])
    };
    let refused = netraid_agent::Agent::start(open).await.unwrap_err().to_string();
    assert!(refused.contains("not a loopback address"), "{refused}");
    let secure = netraid_agent::AgentConfig {
        insecure: false,
        advertise: Some("localhost".to_owned()),
        ..config(directory.path(), &[&mediator])
    };
    let agent = Running::start(secure);
    assert!(agent.ready.api.starts_with("https://localhost:"), "{:?}", agent.ready);
    let status: AgentStatus = mediator.at(&agent.ready).client.get("/v1/status").await.unwrap();
    assert_eq!(status.agent, agent.ready.agent);
    let limit = std::time::Duration::from_secs(10);
    let trusting_nobody = Client::new(&agent.ready.api, &Bearer::draw(), None, limit).unwrap();
    assert!(trusting_nobody.get::<AgentStatus>("/v1/status").await.is_err());
    // Its owner's access file is enough for its owner.
    let access = netraid_cluster::access::AccessFile::read(&agent.ready.access).unwrap();
    let owner = Client::with_access(&access, limit).unwrap();
    let local: netraid_agent::agent::LocalStatus = owner.get("/v1/local").await.unwrap();
    assert_eq!(local.memberships.len(), 1);
    let leave = netraid_agent::agent::Leave { mediator: mediator.id, force: false };
    let local: netraid_agent::agent::LocalStatus =
        owner.post("/v1/local/leave", &leave).await.unwrap();
    assert!(local.memberships.is_empty());
    assert!(mediator.at(&agent.ready).client.get::<AgentStatus>("/v1/status").await.is_err());
}

#[tokio::test]
async fn a_mediator_with_the_id_of_another_gets_nothing_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let agent = Running::start(config(directory.path(), &[&mediator]));
    let segment = mediator.at(&agent.ready).segment(MIB).await;
    drop(agent);
    let impostor = Mediator::start_as(mediator.id).await;
    let agent = Running::start(config(directory.path(), &[&mediator, &impostor]));
    // The impostor was told a token, by which it is to be known, and is not. A slow agent has asked
    // a second time by now.
    assert!(impostor.joins() >= 1);
    let refused = impostor.at(&agent.ready).client.get::<AgentStatus>("/v1/status").await;
    assert_eq!(code(refused), netraid_cluster::Code::Unauthorized);
    mediator.two_beats().await;
    let own = mediator.at_url(agent.ready.agent, &agent.ready.api);
    assert_eq!(own.segments().await.entries[0].segment, segment);
    // It may have asked again meanwhile.
    let told = directory.path().join("audit.jsonl");
    let is_told = async {
        while !std::fs::read_to_string(&told).unwrap_or_default().contains("join_refused") {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), is_told).await.unwrap();
    // Nor after its owner has it work for that mediator no longer, as long as there are segments.
    leave(&agent, &mediator, true).await;
    assert!(own.client.get::<AgentStatus>("/v1/status").await.is_err());
    drop(agent);
    let agent = Running::start(config(directory.path(), &[&impostor]));
    let refused = impostor.at(&agent.ready).client.get::<AgentStatus>("/v1/status").await;
    assert_eq!(code(refused), netraid_cluster::Code::Unauthorized);
    drop(agent);
    // The mediator itself joins again, and has what it had.
    let agent = Running::start(config(directory.path(), &[&mediator]));
    assert_eq!(mediator.joins(), 2);
    assert_eq!(mediator.at(&agent.ready).segments().await.entries[0].segment, segment);
}

fn code<T>(answer: Result<T, netraid_cluster::http::RequestError>) -> netraid_cluster::Code {
    answer.err().unwrap().problem().unwrap().code
}

async fn leave(agent: &Running, mediator: &Mediator, force: bool) {
    let access = netraid_cluster::access::AccessFile::read(&agent.ready.access).unwrap();
    let owner = Client::with_access(&access, std::time::Duration::from_secs(10)).unwrap();
    let leave = netraid_agent::agent::Leave { mediator: mediator.id, force };
    let left: netraid_agent::agent::LocalStatus =
        owner.post("/v1/local/leave", &leave).await.unwrap();
    assert!(left.memberships.is_empty());
}

#[tokio::test]
async fn a_store_with_rows_that_cannot_be_read_serves_all_others() {
    let directory = tempfile::tempdir().unwrap();
    let [kept, spoilt] = [Mediator::start().await, Mediator::start().await];
    let both = || config(directory.path(), &[&kept, &spoilt]);
    let agent = Running::start(both());
    let segment = kept.at(&agent.ready).segment(MIB).await;
    let bad =
        [kept.at(&agent.ready).segment(MIB).await, spoilt.at(&agent.ready).segment(MIB).await];
    drop(agent);
    let store = directory.path().join("state/agent.sqlite");
    let store = rusqlite::Connection::open(store).unwrap();
    let change = |sql: &str, id: [u8; 16]| assert_eq!(store.execute(sql, [id]).unwrap(), 1);
    change("UPDATE segments SET row = '{' WHERE segment = ?1", bad[0].0);
    change("UPDATE allotments SET allotment = '[]' WHERE id = ?1", bad[1].0);
    // Its keys are none: it sends others when it is heard.
    let keys = "UPDATE memberships SET membership = \
                json_set(membership, '$.keys.kind', 'root') WHERE mediator = ?1";
    change(keys, kept.id.0);
    change("UPDATE memberships SET membership = '{' WHERE mediator = ?1", spoilt.id.0);
    drop(store);
    let agent = Running::start(both());
    kept.two_beats().await;
    let own = kept.at(&agent.ready);
    let segments: Vec<_> = own.segments().await.entries.iter().map(|entry| entry.segment).collect();
    assert_eq!(segments, [segment]);
    let token = crate::tokens::token(&kept, agent.ready.agent, segment, 0);
    assert!(crate::tokens::open(&agent.ready, &kept, token).await.is_ok());
    // What could not be read of a mediator is there again when it is joined.
    assert_eq!(spoilt.joins(), 2);
    assert_eq!(spoilt.at(&agent.ready).segments().await.entries[0].segment, bad[1]);
}

#[tokio::test]
async fn nobody_joins_as_a_mediator_whose_membership_is_set_aside() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let agent = Running::start(config(directory.path(), &[&mediator]));
    let segment = mediator.at(&agent.ready).segment(MIB).await;
    let token = crate::tokens::token(&mediator, agent.ready.agent, segment, 0);
    drop(agent);
    let path = directory.path().join("state/agent.sqlite");
    let store = || rusqlite::Connection::open(&path).unwrap();
    let set = |value: &str| {
        let sql = format!("UPDATE memberships SET membership = {value} WHERE mediator = ?1");
        assert_eq!(store().execute(&sql, [mediator.id.0]).unwrap(), 1);
    };
    let stored = || {
        let sql = "SELECT membership FROM memberships";
        store().query_row(sql, [], |row| row.get::<_, String>(0)).unwrap()
    };
    set("json_set(membership, '$.later', 1)");
    let before = stored();
    let impostor = Mediator::start_as(mediator.id).await;
    let agent = Running::start(config(directory.path(), &[&mediator, &impostor]));
    assert!(impostor.joins() >= 1);
    for who in [&mediator, &impostor] {
        let refused = who.at(&agent.ready).client.get::<AgentStatus>("/v1/status").await;
        assert_eq!(code(refused), netraid_cluster::Code::Unauthorized);
    }
    assert!(crate::tokens::open(&agent.ready, &mediator, token).await.is_err());
    let access = netraid_cluster::access::AccessFile::read(&agent.ready.access).unwrap();
    let owner = Client::with_access(&access, std::time::Duration::from_secs(10)).unwrap();
    let leave = netraid_agent::agent::Leave { mediator: mediator.id, force: true };
    let left = owner.post::<_, serde_json::Value>("/v1/local/leave", &leave).await.unwrap_err();
    let told = left.problem().unwrap().detail.clone();
    for part in [mediator.id.to_string().as_str(), "table memberships", "a later one"] {
        assert!(told.contains(part), "{told}");
    }
    drop(agent);
    assert_eq!(stored(), before);
    // The mediator was not asked again: the token that the row has is good.
    assert_eq!(mediator.joins(), 1);
    set("json_remove(membership, '$.later')");
    let agent = Running::start(config(directory.path(), &[&mediator]));
    mediator.two_beats().await;
    assert_eq!(mediator.joins(), 1);
    assert_eq!(mediator.at(&agent.ready).segments().await.entries[0].segment, segment);
}
