//! Rows that a later program wrote, after the way back to this one: what they stand for is not done, and all else is.

use std::{collections::BTreeSet, time::Duration};

use netraid_cluster::{
    Code,
    access::Role,
    http::RequestError,
    mediator::{CheckReport, DifferenceKind, Entry, Mode, Open, Page, PlanPage, TransferPlan},
};
use netraid_control::units::{PlanId, VolumeId};
use rusqlite::Connection;
use serde::de::IgnoredAny;

use crate::common::{House, LIMIT, opening, reachable, upload};

const LATER_VOLUME: &str =
    "UPDATE volumes SET record = json_set(record, '$.later', 1) WHERE id = ?1";
const LATER_PLAN: &str = "UPDATE plans SET record = json_set(record, '$.later', 1) WHERE id = ?1";

fn store(house: &House) -> Connection {
    Connection::open(house.directory.path().join("mediator.sqlite")).unwrap()
}

/// Starts the mediator again after this change of its store.
async fn restart(house: &mut House, change: impl FnOnce(&Connection)) {
    house.stop().await;
    change(&store(house));
    house.start().await;
    reachable(house, u32::try_from(house.agents.len()).unwrap()).await;
}

fn set(store: &Connection, sql: &str, id: [u8; 16]) {
    assert_eq!(store.execute(sql, [id]).unwrap(), 1, "{sql}");
}

fn count(store: &Connection, sql: &str, id: [u8; 16]) -> u32 {
    store.query_row(sql, [id], |row| row.get(0)).unwrap()
}

fn is_named<T>(answer: Result<T, RequestError>, table: &str, row: &str) {
    let refused = answer.err().unwrap();
    let problem = refused.problem().unwrap();
    assert_eq!(problem.code, Code::Conflict, "{problem}");
    for part in [row, table, "set aside", "a later one"] {
        assert!(problem.detail.contains(part), "{problem}");
    }
}

fn hour(path: &str, mode: Mode) -> Open {
    Open { for_ms: Some(3_590_000), ..opening(path, mode, 0) }
}

#[tokio::test]
async fn a_volume_that_is_set_aside_while_a_plan_of_it_is_opened_does_not_stop_the_mediator() {
    let mut house = House::new(3).await;
    let made = house.create("/a", 1 << 20).await.unwrap();
    house.create("/b", 1 << 20).await.unwrap();
    let plan = house.open(&hour("/a", Mode::Write)).await.unwrap();
    house.open(&hour("/b", Mode::Write)).await.unwrap();
    restart(&mut house, |store| {
        assert_eq!(store.execute("UPDATE plans SET state = 'opening'", []).unwrap(), 2);
        set(store, LATER_VOLUME, made.id.0);
    })
    .await;
    // What was opened of another one is taken back.
    house.open(&hour("/b", Mode::Write)).await.unwrap();
    is_named(house.open(&hour("/a", Mode::Read)).await, "volumes", &made.id.to_string());
    let sql = "SELECT count(*) FROM plans WHERE id = ?1 AND state = 'opening'";
    assert_eq!(count(&store(&house), sql, plan.plan.0), 1);
}

#[tokio::test]
async fn a_bearer_is_taken_back_although_its_plan_or_the_volume_is_set_aside() {
    let mut house = House::new(3).await;
    let mut volumes = Vec::new();
    for path in ["/a", "/b", "/c"] {
        volumes.push(house.create(path, 1 << 20).await.unwrap());
    }
    let (client, number) = house.client_of(Role::Client, None).await;
    let mut plans: Vec<PlanId> = Vec::new();
    for path in ["/a", "/b", "/c"] {
        let plan: TransferPlan = client.post("/v1/plans", &hour(path, Mode::Write)).await.unwrap();
        plans.push(plan.plan);
    }
    restart(&mut house, |store| {
        set(store, LATER_VOLUME, volumes[0].id.0);
        set(store, LATER_PLAN, plans[1].0);
    })
    .await;
    let end = house.admin.delete::<IgnoredAny>(&format!("/v1/plans/{}", plans[1])).await;
    is_named(end, "plans", &plans[1].to_string());
    house.agents[2].set_deaf(true);
    house.admin.delete::<IgnoredAny>(&format!("/v1/access/{number}")).await.unwrap();
    for agent in &house.agents[..2] {
        let revoked = agent.inner.revoked.lock().unwrap();
        assert!(plans.iter().all(|plan| revoked.contains_key(plan)), "{revoked:?}");
    }
    assert_eq!(house.plans().await, []);
    // The row says so for the program that can read it.
    let sql = "SELECT count(*) FROM plans WHERE id = ?1 AND state = 'ending' \
               AND json_extract(record, '$.is_revoked') AND json_extract(record, '$.later') = 1";
    assert_eq!(count(&store(&house), sql, plans[1].0), 1);
    // Who was away is told when it is back, whatever happens to the mediator meanwhile.
    house.stop().await;
    house.start().await;
    house.agents[2].set_deaf(false);
    let told = async {
        let agent = &house.agents[2].inner;
        while !plans.iter().all(|plan| agent.revoked.lock().unwrap().contains_key(plan)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, told).await.unwrap();
}

#[tokio::test]
async fn what_a_booking_that_is_set_aside_may_be_for_is_not_taken_back() {
    let mut house = House::new(3).await;
    let mut volumes = Vec::new();
    for path in ["/made", "/opened", "/removed"] {
        volumes.push(house.create(path, 1 << 20).await.unwrap().id);
    }
    let plan = house.open(&hour("/opened", Mode::Write)).await.unwrap().plan;
    let [made, _, removed] = volumes[..] else { panic!("three volumes") };
    restart(&mut house, |store| {
        set(store, "UPDATE volumes SET state = 'creating' WHERE id = ?1", made.0);
        set(store, "UPDATE names SET is_pending = 1 WHERE id = ?1", made.0);
        set(store, "UPDATE plans SET state = 'opening' WHERE id = ?1", plan.0);
        set(store, "INSERT INTO bookings VALUES (?1, '{\"later\":1}', '{}')", [1; 16]);
        // By this it is seen that all was looked at.
        set(store, "UPDATE volumes SET state = 'removing' WHERE id = ?1", removed.0);
        set(store, "DELETE FROM names WHERE id = ?1", removed.0);
        store.execute("UPDATE segments SET state = 'gone' WHERE volume = ?1", [removed.0]).unwrap();
    })
    .await;
    let store = store(&house);
    let is_there =
        |id: VolumeId| count(&store, "SELECT count(*) FROM volumes WHERE id = ?1", id.0) == 1;
    let is_opening = || count(&store, "SELECT count(*) FROM plans WHERE id = ?1", plan.0) == 1;
    let until = async |is_so: &dyn Fn() -> bool| {
        let waited = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LIMIT, waited).await.unwrap();
    };
    until(&|| !is_there(removed)).await;
    assert!(is_there(made) && is_opening());
    store.execute("DELETE FROM bookings", []).unwrap();
    until(&|| !is_there(made) && !is_opening()).await;
}

#[tokio::test]
async fn rows_that_are_set_aside_are_named_and_cut_no_list() {
    let mut house = House::new(3).await;
    let set_aside = house.create("/a", 1 << 20).await.unwrap();
    house.create("/b", 1 << 20).await.unwrap();
    let mut uploads: Vec<Entry> = Vec::new();
    for path in ["/one", "/two"] {
        uploads.push(house.client.post("/v1/names", &upload(path, 1 << 20)).await.unwrap());
    }
    let mut plans = BTreeSet::new();
    for _ in 0..3 {
        let read = opening("/b", Mode::Read, 100_000);
        plans.insert(house.open(&Open { for_ms: Some(3_590_000), ..read }).await.unwrap().plan);
    }
    let first = plans.pop_first().unwrap();
    restart(&mut house, |store| {
        set(store, LATER_VOLUME, set_aside.id.0);
        set(store, LATER_VOLUME, uploads[0].id.0);
        set(store, LATER_PLAN, first.0);
    })
    .await;
    is_named(
        house.client.get::<Entry>("/v1/name?path=%2Fa").await,
        "volumes",
        &set_aside.id.to_string(),
    );
    let page: Page = house.client.get("/v1/names?path=%2F&uploads=true").await.unwrap();
    let lengths: Vec<_> = page.entries.iter().map(|entry| entry.upload_bytes).collect();
    assert_eq!(lengths, [None, Some(1 << 20)]);
    // Page by page, of which the first one has nothing that can be read.
    let (mut listed, mut after) = (BTreeSet::new(), String::new());
    loop {
        let page: PlanPage = house.admin.get(&format!("/v1/plans?limit=1{after}")).await.unwrap();
        listed.extend(page.entries.iter().map(|entry| entry.plan));
        let Some(next) = page.next else { break };
        after = format!("&after={next}");
    }
    assert_eq!(listed, plans);
    let report: CheckReport = house.admin.get("/v1/check").await.unwrap();
    assert!(report.segments > 0 && report.allotments > 0 && report.silent.is_empty());
    for (table, row) in [
        ("table volumes", set_aside.id.to_string()),
        ("table volumes", uploads[0].id.to_string()),
        ("table plans", first.to_string()),
    ] {
        let names = |detail: &str| detail.contains(table) && detail.contains(&row);
        let named = report.differences.iter().filter(|difference| names(&difference.detail));
        assert_eq!(named.count(), 3, "{row}, on each agent: {report:?}");
    }
    assert_eq!(report.differences.len(), 9, "{report:?}");
    assert!(report.differences.iter().all(|one| one.kind == DifferenceKind::Different));
}
