//! Plans that end: with their bearer token, because others end them, because they were closed.

use std::time::Duration;

use netraid_cluster::{
    Code,
    access::{Bearer, Role},
    agent::rates_of,
    http::Client,
    mediator::{Close, Entry, Mode, Open, TransferPlan},
    now,
};
use netraid_control::{
    token::{Denied, SKEW_MS, Token},
    units::{Generation, Moment, PlanId},
};
use serde::de::IgnoredAny;

use crate::{
    common::{House, code, opening, reachable},
    plans::{admitted, token},
};

fn is_out(house: &House, plan: &TransferPlan) -> bool {
    (0..plan.members.len()).all(|at| {
        let denied = admitted(house, plan, at, now());
        matches!(denied, Err(Denied::Revoked(_) | Denied::Lapsed(_)))
    })
}

#[tokio::test]
async fn a_bearer_that_is_taken_back_takes_its_plans_with_it() {
    let mut house = House::new(3).await;
    for path in ["/r", "/w"] {
        house.create(path, 1 << 30).await.unwrap();
    }
    let (client, number) = house.client_of(Role::Client, None).await;
    let open = |client: &Client, open: Open| {
        let client = client.clone();
        async move { client.post::<_, TransferPlan>("/v1/plans", &open).await }
    };
    let hour = |path, mode| Open { for_ms: Some(3_590_000), ..opening(path, mode, 0) };
    let writes = open(&client, hour("/w", Mode::Write)).await.unwrap();
    let reads = open(&client, hour("/r", Mode::Read)).await.unwrap();
    let booked = open(&client, opening("/r", Mode::Read, 10_000_000)).await.unwrap();
    let other = house.open(&opening("/r", Mode::Read, 10_000_000)).await.unwrap();
    // What was closed before has tokens that have not ended.
    let closed = open(&client, hour("/r", Mode::Read)).await.unwrap();
    let close = Close { key: crate::common::close_key(), clean_close: None };
    let path = format!("/v1/plans/{}/close", closed.plan);
    client.post::<_, IgnoredAny>(&path, &close).await.unwrap();
    token(&house, &closed, 0);
    // Of one that was refused nobody has tokens.
    let too_fast = open(&client, opening("/r", Mode::Read, 1 << 46)).await;
    assert_eq!(code(too_fast), Code::Short);
    // One that is away is told when it is back, whatever happens to the mediator meanwhile.
    house.agents[2].set_deaf(true);
    let began = std::time::Instant::now();
    house.admin.delete::<IgnoredAny>(&format!("/v1/access/{number}")).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(20));
    let all = [&writes, &reads, &booked, &closed];
    for plan in all {
        for agent in &house.agents[..2] {
            assert!(agent.inner.ended.lock().unwrap().contains(&plan.plan));
            assert!(agent.inner.revoked.lock().unwrap().contains_key(&plan.plan));
        }
    }
    assert_eq!(house.plans().await, [other.plan]);
    assert_eq!(code(open(&client, hour("/w", Mode::Write)).await), Code::Unauthorized);
    house.stop().await;
    house.start().await;
    house.agents[2].set_deaf(false);
    let began = std::time::Instant::now();
    while !all.iter().all(|plan| is_out(&house, plan)) {
        assert!(began.elapsed() < crate::common::LIMIT, "an agent was never told");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for agent in &house.agents {
        assert_eq!(agent.inner.revoked.lock().unwrap().len(), all.len());
    }
    // Others that read go on, and what was written is free.
    token(&house, &other, 0);
    let renew = format!("/v1/plans/{}/renew", other.plan);
    house.client.post::<_, TransferPlan>(&renew, &()).await.unwrap();
    house.open(&opening("/w", Mode::Write, 0)).await.unwrap();
    assert!(house.agents.iter().all(|agent| {
        let ledger = agent.inner.ledger.lock().unwrap();
        !ledger.entries().any(|entry| entry.id == rates_of(booked.plan))
    }));
}

#[tokio::test]
async fn a_bearer_that_ends_takes_its_plans_with_it() {
    let house = House::new(3).await;
    for path in ["/x", "/y"] {
        house.create(path, 1 << 30).await.unwrap();
    }
    let (client, _) = house.client_of(Role::Client, Some(4_000)).await;
    let hour = Open { for_ms: Some(3_590_000), ..opening("/x", Mode::Write, 0) };
    let plan: TransferPlan = client.post("/v1/plans", &hour).await.unwrap();
    token(&house, &plan, 0);
    let read = Open { for_ms: Some(3_590_000), ..opening("/y", Mode::Read, 0) };
    let closed: TransferPlan = client.post("/v1/plans", &read).await.unwrap();
    let close = Close { key: crate::common::close_key(), clean_close: None };
    let path = format!("/v1/plans/{}/close", closed.plan);
    client.post::<_, IgnoredAny>(&path, &close).await.unwrap();
    token(&house, &closed, 0);
    let began = std::time::Instant::now();
    while !is_out(&house, &plan) || !is_out(&house, &closed) {
        assert!(began.elapsed() < crate::common::LIMIT, "its tokens hold");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(house.plans().await, []);
    house.open(&hour).await.unwrap();
}

/// Readers have a generation in common: one of them alone is shut out by the name of its plan.
#[tokio::test]
async fn a_reader_that_is_ended_does_not_come_back() {
    let house = House::new(3).await;
    house.create("/x", 1 << 30).await.unwrap();
    let read = Open { for_ms: Some(3_590_000), ..opening("/x", Mode::Read, 0) };
    let (ended, other) = (house.open(&read).await.unwrap(), house.open(&read).await.unwrap());
    house.client.delete::<IgnoredAny>(&format!("/v1/plans/{}", ended.plan)).await.unwrap();
    assert!(is_out(&house, &ended));
    token(&house, &other, 0);
}

#[tokio::test]
async fn a_plan_that_others_end_shuts_its_client_out_and_one_that_is_closed_is_over() {
    let house = House::new(2).await;
    let mut create = crate::common::data("/x", 1 << 30);
    create.layout.level = Some(1);
    create.layout.members = Some(2);
    house.client.post::<_, Entry>("/v1/names", &create).await.unwrap();
    let write = opening("/x", Mode::Write, 0);
    let generations = || {
        let all = house.agents.iter().map(|agent| {
            let segments = agent.inner.segments.lock().unwrap();
            segments.values().next().unwrap().generation
        });
        all.collect::<Vec<_>>()
    };
    let first = house.open(&write).await.unwrap();
    // By another key nothing happens, whoever says it.
    for client in [&house.client, &house.admin] {
        let close = Close { key: Bearer::draw(), clean_close: None };
        let path = format!("/v1/plans/{}/close", first.plan);
        assert_eq!(code(client.post::<_, IgnoredAny>(&path, &close).await), Code::Forbidden);
    }
    // Who has stopped is in nobody's way, also where it cannot be shut out.
    house.agents[0].set_deaf(true);
    house.close(first.plan).await.unwrap();
    let second = house.open(&write).await.unwrap();
    assert_eq!(second.generation, Generation(2));
    house.agents[0].set_deaf(false);
    let end = |plan: PlanId| {
        let admin = house.admin.clone();
        async move { admin.delete::<IgnoredAny>(&format!("/v1/plans/{plan}")).await.unwrap() }
    };
    reachable(&house, 2).await;
    // The agents let the old one in no more, before anybody else wants it.
    assert!(admitted(&house, &second, 1, now()).is_ok());
    end(second.plan).await;
    assert_eq!(generations(), [Generation(3); 2]);
    assert!(admitted(&house, &second, 1, now()).is_err());
    let third = house.open(&write).await.unwrap();
    assert_eq!(third.generation, Generation(4));
    // Nobody writes beside who may go on with one half of a mirror.
    house.agents[0].set_deaf(true);
    end(third.plan).await;
    let refused = house.open(&write).await.unwrap_err();
    let problem = refused.problem().unwrap();
    assert_eq!(problem.code, Code::Unavailable);
    let last = token_end(&third) + SKEW_MS;
    assert!(problem.detail.contains(&format!("until {last} ms")), "{}", problem.detail);
    house.agents[0].set_deaf(false);
    reachable(&house, 2).await;
    let fourth = house.open(&write).await.unwrap();
    assert_eq!(generations(), [fourth.generation; 2]);
    assert!(fourth.generation > Generation(5));
}

/// When a plan's tokens end, as they say.
fn token_end(plan: &TransferPlan) -> u64 {
    Token::from_name(&plan.members[0].chap_name).unwrap().terms.expires.0
}

#[tokio::test]
async fn nothing_of_a_plan_ends_before_its_client_thinks_so_whosever_clock_is_ahead() {
    let house = House::new(3).await;
    house.create("/x", 1 << 30).await.unwrap();
    let asked = now();
    let plan = house.open(&opening("/x", Mode::Write, 1_000_000)).await.unwrap();
    assert_eq!(plan.for_ms, 60_000);
    let end = asked.after_ms(plan.for_ms + SKEW_MS);
    for at in 0..3 {
        assert!(admitted(&house, &plan, at, Moment(end.0 - 1)).is_ok());
        let agent = house.agent(plan.members[at].agent);
        let ledger = agent.inner.ledger.lock().unwrap();
        let rates = ledger.entries().find(|entry| entry.id == rates_of(plan.plan)).unwrap();
        assert!(rates.until().unwrap() >= end);
    }
    // Nobody has it before an agent whose clock is behind takes no token of it any more.
    let refused = house.open(&opening("/x", Mode::Write, 0)).await.unwrap_err();
    let free = token_end(&plan) + SKEW_MS;
    assert!(refused.to_string().contains(&format!("until {free} ms")), "{refused}");
}

#[tokio::test]
async fn a_bearer_with_as_many_closed_plans_as_agents_can_keep_out_opens_no_more() {
    let mut house = House::new(1).await;
    let mut create = crate::common::data("/x", 1 << 20);
    (create.layout.level, create.layout.survives) = (Some(0), 0);
    house.client.post::<_, Entry>("/v1/names", &create).await.unwrap();
    let (client, _) = house.client_of(Role::Client, None).await;
    let hour = Open { for_ms: Some(3_590_000), ..opening("/x", Mode::Read, 0) };
    let plan: TransferPlan = client.post("/v1/plans", &hour).await.unwrap();
    let close = Close { key: crate::common::close_key(), clean_close: None };
    let path = format!("/v1/plans/{}/close", plan.plan);
    client.post::<_, IgnoredAny>(&path, &close).await.unwrap();
    // As if it had been opened and closed so often.
    house.stop().await;
    let often = |times: u32| {
        let store = rusqlite::Connection::open(house.directory.path().join("mediator.sqlite"));
        let sql = "WITH RECURSIVE other(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM other LIMIT ?1)
            INSERT INTO plans SELECT randomblob(16), volume, owner, until, state, record
            FROM plans, other WHERE plans.id = ?2";
        let made = store.unwrap().execute(sql, rusqlite::params![times, plan.plan.0]);
        assert_eq!(made.unwrap(), times as usize);
    };
    often((1 << 15) - 2);
    house.start().await;
    let last: TransferPlan = client.post("/v1/plans", &hour).await.unwrap();
    let path = format!("/v1/plans/{}/close", last.plan);
    client.post::<_, IgnoredAny>(&path, &close).await.unwrap();
    let refused = client.post::<_, TransferPlan>("/v1/plans", &hour).await.unwrap_err();
    let problem = refused.problem().unwrap();
    assert_eq!(problem.code, Code::Conflict);
    let text = "32768 plans of the same bearer token were closed";
    assert!(problem.detail.starts_with(text), "{problem}");
    // Others open as before.
    house.open(&hour).await.unwrap();
}
