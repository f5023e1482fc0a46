//! What a mediator knows of how a volume was closed, and when it does not any more.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use crate::common::{House, close_key, code, copy_store, opening, reachable};
use netraid_cluster::{
    Code,
    http::RequestError,
    mediator::{CleanClose, Close, Entry, Mode, Open, Replace, TransferPlan},
};
use netraid_control::units::{PlanId, SegmentId};
use serde::de::IgnoredAny;

/// A mirror of two.
async fn mirror(house: &House, path: &str) -> Vec<SegmentId> {
    let mut create = crate::common::data(path, 1 << 30);
    create.layout.level = Some(1);
    create.layout.members = Some(2);
    let made: Entry = house.client.post("/v1/names", &create).await.unwrap();
    made.stored.unwrap().members.iter().map(|member| member.segment).collect()
}

/// What a writer says that found all of these in sync.
fn whole(segments: &[SegmentId], generation: u64) -> CleanClose {
    CleanClose { generation, epoch: generation * 3, in_sync: segments.to_vec() }
}

async fn close(house: &House, plan: &TransferPlan, how: &CleanClose) -> Result<(), RequestError> {
    let close = Close { key: close_key(), clean_close: Some(how.clone()) };
    let path = format!("/v1/plans/{}/close", plan.plan);
    house.client.post::<_, IgnoredAny>(&path, &close).await.map(drop)
}

async fn end(house: &House, plan: PlanId) {
    house.admin.delete::<IgnoredAny>(&format!("/v1/plans/{plan}")).await.unwrap();
}

async fn open(house: &House, mode: Mode) -> TransferPlan {
    house.open(&opening("/x", mode, 0)).await.unwrap()
}

/// What whoever reads now is told.
async fn told(house: &House) -> Option<CleanClose> {
    let reading = open(house, Mode::Read).await;
    house.close(reading.plan).await.unwrap();
    reading.clean_close
}

#[tokio::test]
async fn how_a_writer_left_a_volume_is_told_to_readers_and_to_the_next_writer() {
    let mut house = House::new(2).await;
    let segments = mirror(&house, "/x").await;
    assert_eq!(open(&house, Mode::Read).await.clean_close, None, "nobody ever wrote");
    for plan in house.plans().await {
        house.close(plan).await.unwrap();
    }
    let first = open(&house, Mode::Write).await;
    assert_eq!(first.clean_close, None);
    // What is not of it does not count.
    let how = whole(&segments, 5);
    let more = whole(&[segments[0], SegmentId([9; 16]), segments[1]], 5);
    close(&house, &first, &more).await.unwrap();
    house.stop().await;
    house.start().await;
    reachable(&house, 2).await;
    for _ in 0..2 {
        assert_eq!(told(&house).await, Some(how.clone()));
    }
    let reading = open(&house, Mode::Read).await;
    let renew = format!("/v1/plans/{}/renew", reading.plan);
    let renewed: TransferPlan = house.client.post(&renew, &()).await.unwrap();
    assert_eq!(renewed.clean_close, Some(how.clone()));
    // Who reads knows nothing of its own, and can be shut out without harm.
    close(&house, &reading, &whole(&segments, 99)).await.unwrap();
    let reading = open(&house, Mode::Read).await;
    end(&house, reading.plan).await;
    // A writer is told again when the answer was lost, also by a mediator that starts anew.
    let again = Open { plan: Some(PlanId([7; 16])), ..opening("/x", Mode::Write, 0) };
    for _ in 0..2 {
        assert_eq!(house.open(&again).await.unwrap().clean_close, Some(how.clone()));
        house.stop().await;
        house.start().await;
        reachable(&house, 2).await;
    }
    let second = house.open(&again).await.unwrap();
    close(&house, &second, &whole(&segments[..1], 6)).await.unwrap();
    assert_eq!(told(&house).await, Some(whole(&segments[..1], 6)));
}

#[tokio::test]
async fn what_was_said_is_over_when_somebody_else_may_have_written() {
    let house = House::new(2).await;
    let segments = mirror(&house, "/x").await;
    let how = whole(&segments, 5);
    let said = async || {
        close(&house, &open(&house, Mode::Write).await, &how).await.unwrap();
        assert_eq!(told(&house).await, Some(how.clone()));
    };
    // Who does not say how it left it.
    said().await;
    house.close(open(&house, Mode::Write).await.plan).await.unwrap();
    assert_eq!(told(&house).await, None);
    // Who is shut out, and says it too late.
    said().await;
    let shut_out = open(&house, Mode::Write).await;
    end(&house, shut_out.plan).await;
    assert_eq!(code(close(&house, &shut_out, &how).await), Code::Absent);
    assert_eq!(told(&house).await, None);
    // Who is taken over from, and whoever did that.
    said().await;
    let old = open(&house, Mode::Write).await;
    let take_over = Open { take_over: true, ..opening("/x", Mode::Write, 0) };
    let new = house.open(&take_over).await.unwrap();
    assert_eq!(new.clean_close, None);
    assert_eq!(code(close(&house, &old, &how).await), Code::Absent);
    let read_over = Open { take_over: true, ..opening("/x", Mode::Read, 0) };
    let reading = house.open(&read_over).await.unwrap();
    assert_eq!(reading.clean_close, None);
    assert_eq!(code(close(&house, &new, &how).await), Code::Absent);
    house.close(reading.plan).await.unwrap();
    assert_eq!(told(&house).await, None);
    // By another key nothing is said.
    let writing = open(&house, Mode::Write).await;
    let key = netraid_cluster::access::Bearer::draw();
    let forged = Close { key, clean_close: Some(how.clone()) };
    let path = format!("/v1/plans/{}/close", writing.plan);
    assert_eq!(code(house.client.post::<_, IgnoredAny>(&path, &forged).await), Code::Forbidden);
    house.close(writing.plan).await.unwrap();
    assert_eq!(told(&house).await, None);
}

#[tokio::test]
async fn who_was_never_let_in_leaves_what_was_said() {
    let house = House::new(2).await;
    let segments = mirror(&house, "/x").await;
    let how = whole(&segments, 5);
    close(&house, &open(&house, Mode::Write).await, &how).await.unwrap();
    // Too few agents, and too little rate.
    house.agents.iter().for_each(|agent| agent.set_deaf(true));
    let write = opening("/x", Mode::Write, 0);
    assert_eq!(code(house.open(&write).await), Code::Unavailable);
    house.agents.iter().for_each(|agent| agent.set_deaf(false));
    reachable(&house, 2).await;
    let much = opening("/x", Mode::Write, 1 << 40);
    assert_eq!(code(house.open(&much).await), Code::Short);
    assert_eq!(told(&house).await, Some(how));
}

#[tokio::test]
async fn a_segment_that_took_anothers_place_is_not_one_that_held_everything() {
    let house = House::new(3).await;
    let segments = mirror(&house, "/x").await;
    let writing = open(&house, Mode::Write).await;
    let lost = writing.members[1].clone();
    house.agent(lost.agent).set_deaf(true);
    let replace = Replace { member: 1, segment: lost.segment };
    let path = format!("/v1/plans/{}/replace", writing.plan);
    let replaced: TransferPlan = house.client.post(&path, &replace).await.unwrap();
    assert!(!segments.contains(&replaced.members[1].segment));
    // The array had the old one to the end.
    close(&house, &writing, &whole(&segments, 5)).await.unwrap();
    assert_eq!(told(&house).await, Some(whole(&segments[..1], 5)));
}

#[tokio::test]
async fn a_mediator_of_an_older_store_does_not_tell_what_was_so_then() {
    let mut house = House::new(2).await;
    let segments = mirror(&house, "/x").await;
    let how = whole(&segments, 5);
    close(&house, &open(&house, Mode::Write).await, &how).await.unwrap();
    let older = tempfile::tempdir().unwrap();
    house.stop().await;
    copy_store(house.directory.path(), older.path()).await;
    house.start().await;
    reachable(&house, 2).await;
    // Written again, with one half alone.
    house.agents[0].set_deaf(true);
    let forgotten = open(&house, Mode::Write).await;
    assert_eq!(forgotten.clean_close, Some(how));
    house.close(forgotten.plan).await.unwrap();
    house.stop().await;
    copy_store(older.path(), house.directory.path()).await;
    house.agents[0].set_deaf(false);
    house.start().await;
    reachable(&house, 2).await;
    for mode in [Mode::Read, Mode::Write] {
        let plan = open(&house, mode).await;
        assert_eq!(plan.clean_close, None);
        house.close(plan.plan).await.unwrap();
    }
}

/// The agent that knows better was away when the plan was granted, and is back when its answer, which
/// was lost, is asked for again.
#[tokio::test]
async fn a_mediator_of_an_older_store_tells_nothing_again_that_an_agent_refutes() {
    for mode in [Mode::Read, Mode::Write] {
        let mut house = House::new(2).await;
        let segments = mirror(&house, "/x").await;
        let how = whole(&segments, 5);
        close(&house, &open(&house, Mode::Write).await, &how).await.unwrap();
        let older = tempfile::tempdir().unwrap();
        house.stop().await;
        copy_store(house.directory.path(), older.path()).await;
        house.start().await;
        reachable(&house, 2).await;
        house.agents[0].set_deaf(true);
        house.close(open(&house, Mode::Write).await.plan).await.unwrap();
        house.stop().await;
        copy_store(older.path(), house.directory.path()).await;
        house.agents[0].set_deaf(false);
        house.agents[1].set_deaf(true);
        house.start().await;
        let again = Open { plan: Some(PlanId([7; 16])), ..opening("/x", mode, 0) };
        reachable(&house, 1).await;
        house.open(&again).await.unwrap();
        house.agents[1].set_deaf(false);
        reachable(&house, 2).await;
        let plan = house.open(&again).await.unwrap();
        assert_eq!(plan.clean_close, None, "{mode:?}");
        assert!(!plan.members[1].reachable || !plan.members[0].reachable);
    }
}
