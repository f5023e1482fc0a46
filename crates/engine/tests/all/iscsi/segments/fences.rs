//! How sessions end: by time, by a newer generation, by an order.

use std::{sync::Arc, time::Duration};

use netraid_block::{Device, Pool};
use netraid_control::{
    token::Token,
    units::{Generation, PlanId, SegmentId},
};
use netraid_engine::{
    initiator::{InitiatorConfig, Remote},
    target::{CommandError, TargetConfig},
};
use netraid_iscsi_proto::pdu::TaskFunction;
use netraid_scsi::{Additional, Sense};
use tokio::time::{Instant, timeout};

use super::{
    GOOD,
    agent::{Agent, Login, MEDIATOR, NOW, PLAN, TERM_MS, segment},
    byte, write,
};
use crate::iscsi::{
    common::{Running, Sticky, config, one_thread, ram},
    fencing::{REGISTER, reserve_out},
};

/// For what surely comes.
const LIMIT: Duration = Duration::from_secs(10);
/// For what must not come.
const WHILE: Duration = Duration::from_millis(300);
const OTHER_PLAN: PlanId = PlanId([5; 16]);

/// Until so many sessions are left.
async fn until_left(target: &Running, count: usize) {
    let wait = async {
        while target.handle.report().await.unwrap().sessions.len() != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, wait).await.unwrap();
}

/// A write that stays at the device.
fn write_later(device: &Device, sticky: &Sticky) -> tokio::task::JoinHandle<bool> {
    sticky.stick();
    let device = device.clone();
    tokio::spawn(async move { write(&device, 0, 1).await.is_ok() })
}

async fn until_kept(sticky: &Sticky, count: usize) {
    let wait = async {
        while sticky.keeps() < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LIMIT, wait).await.unwrap();
}

#[tokio::test]
async fn a_session_ends_with_its_grant_or_its_extension() {
    let agent = Agent::new(&[ram()]);
    let target = agent.start();
    let mut raw = agent.raw(&target, agent.token(1), 1).await;
    let handle = &target.handle;
    let extended = NOW.after_ms(TERM_MS + 30_000);
    agent.sleep(TERM_MS - 1);
    assert_eq!(handle.extend_plan(MEDIATOR, OTHER_PLAN, extended).await, Ok(0));
    assert_eq!(handle.extend_plan(MEDIATOR, PLAN, extended).await, Ok(1));
    // An earlier end is none.
    assert_eq!(handle.extend_plan(MEDIATOR, PLAN, NOW).await, Ok(1));
    let report = handle.report().await.unwrap();
    assert_eq!(report.sessions[0].grant.unwrap().until, extended);
    agent.sleep(20_000);
    tokio::time::sleep(2 * WHILE).await;
    raw.command_with(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], 0, &[1; 512]).await;
    assert_eq!(raw.receive().await.unwrap().0[3], GOOD);
    let begun = Instant::now();
    agent.sleep(10_001);
    // Before anything has ended the session nothing happens any more either.
    raw.command_with(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], 0, &[2; 512]).await;
    if let Ok(answer) = raw.receive().await {
        assert_ne!(answer.0[3], GOOD);
    }
    until_left(&target, 0).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    let fresh = agent.connect(&target, agent.token(1)).await;
    assert_eq!(byte(&fresh, 0).await, 1);
    target.stop().await;
}

#[tokio::test]
async fn an_old_writer_is_out_for_good_when_a_generation_was_raised() {
    let sticky = Arc::new(Sticky::new(ram()));
    let agent = Agent::new(&[Device::new(sticky.clone()), ram()]);
    let target = agent.start();
    let (old_token, beside) = (agent.token(1), agent.connect(&target, agent.token(2)).await);
    let old = agent.connect(&target, old_token).await;
    write(&old, 512, 1).await.unwrap();
    let late = write_later(&old, &sticky);
    until_kept(&sticky, 1).await;
    sticky.take_on();
    agent.change(1, |segment| segment.generation = Generation(2));
    // A login with the new generation may come before the target has heard of it.
    let new = agent.connect(&target, agent.token(1)).await;
    let raise = tokio::spawn({
        let handle = target.handle.clone();
        async move { handle.raise_generation(MEDIATOR, segment(1), Generation(2)).await }
    });
    tokio::time::sleep(WHILE).await;
    assert!(!raise.is_finished(), "a write of the old writer is at the device");
    assert_eq!(byte(&new, 512).await, 1);
    write(&new, 512, 2).await.unwrap();
    sticky.go_on_with(0);
    assert_eq!(timeout(LIMIT, raise).await.unwrap().unwrap(), Ok(()));
    write(&new, 0, 3).await.unwrap();
    assert!(!late.await.unwrap(), "a write of the old writer was answered");
    write(&old, 0, 1).await.unwrap_err();
    assert_eq!((byte(&new, 0).await, byte(&new, 512).await), (3, 2));
    let credentials = agent.issue(old_token);
    let again = Login::with(&credentials).attempt(target.address).await.unwrap();
    assert_eq!(again.status, 0x0201);
    // No older one comes back, and others have heard nothing.
    let handle = &target.handle;
    assert_eq!(handle.raise_generation(MEDIATOR, segment(1), Generation(1)).await, Ok(()));
    assert_eq!(handle.raise_generation(MEDIATOR, segment(7), Generation(1)).await, Ok(()));
    write(&new, 0, 4).await.unwrap();
    assert_eq!(byte(&beside, 0).await, 0);
    target.stop().await;
}

#[tokio::test]
async fn what_was_fenced_while_its_segment_was_opened_is_refused() {
    let agent = Agent::new(&[ram()]);
    let target = agent.start();
    agent.change(1, |segment| segment.is_raised_late = true);
    let credentials = agent.issue(agent.token(1));
    let attempt = Login::with(&credentials).attempt(target.address).await.unwrap();
    assert_eq!((attempt.status, agent.opened(1)), (0x0201, 1));
    let fresh = agent.connect(&target, agent.token(1)).await;
    write(&fresh, 0, 1).await.unwrap();
    assert_eq!(agent.opened(1), 1);
    target.stop().await;
}

#[tokio::test]
async fn whose_plan_was_taken_back_while_its_segment_was_opened_is_refused() {
    let agent = Agent::new(&[ram()]);
    let target = agent.start();
    agent.change(1, |segment| segment.is_revoked_late = true);
    let credentials = agent.issue(agent.token(1));
    let attempt = Login::with(&credentials).attempt(target.address).await.unwrap();
    assert_eq!((attempt.status, agent.opened(1)), (0x0201, 1));
    target.stop().await;
}

#[tokio::test]
async fn a_segment_is_closed_when_nothing_is_at_its_device() {
    let sticky = Arc::new(Sticky::new(ram()));
    let agent = Agent::new(&[Device::new(sticky.clone()), ram()]);
    let target = agent.start();
    let beside = agent.connect(&target, agent.token(2)).await;
    let device = agent.connect(&target, agent.token(1)).await;
    let late = write_later(&device, &sticky);
    until_kept(&sticky, 1).await;
    let close = tokio::spawn({
        let handle = target.handle.clone();
        async move { handle.close_segment(MEDIATOR, segment(1)).await }
    });
    tokio::time::sleep(WHILE).await;
    assert!(!close.is_finished(), "a write is at the device");
    let credentials = agent.issue(agent.token(1));
    let attempt = Login::with(&credentials).attempt(target.address).await.unwrap();
    assert_eq!(attempt.status, 0x0201, "it is being closed");
    sticky.go_on();
    assert_eq!(timeout(LIMIT, close).await.unwrap().unwrap(), Ok(()));
    // Its initiator may have come again, and have written it anew.
    late.await.unwrap();
    assert_eq!(byte(&beside, 0).await, 0);
    let handle = &target.handle;
    assert_eq!(handle.close_segment(MEDIATOR, segment(1)).await, Ok(()), "it is not open");
    let again = agent.connect(&target, agent.token(1)).await;
    assert_eq!(byte(&again, 0).await, 1);
    assert!(agent.opened(1) > 1);
    target.stop().await;
}

#[tokio::test]
async fn a_segment_that_nobody_uses_is_closed_and_remembers_who_had_reserved_it() {
    let agent = Agent::new(&[ram()]);
    let limit = Duration::from_millis(20);
    let target = agent.start_with(TargetConfig { segment_idle_limit: limit, ..one_thread() });
    let mut raw = agent.raw(&target, agent.token(1), 1).await;
    reserve_out(&mut raw, REGISTER, 0, 0, 5).await;
    assert_eq!(raw.receive().await.unwrap().0[3], GOOD);
    tokio::time::sleep(3 * WHILE).await;
    assert_eq!(agent.opened(1), 1, "a session uses it");
    drop(raw);
    until_left(&target, 0).await;
    tokio::time::sleep(3 * WHILE).await;
    let credentials = agent.issue(agent.token(1));
    let login = Login { isid: 1, ..Login::with(&credentials) };
    let mut raw = login.attempt(target.address).await.unwrap().raw.unwrap();
    assert_eq!(agent.opened(1), 2);
    // It hears of no power on: nothing that was written is lost.
    raw.command(&[0; 6], 0).await;
    let (_, data) = raw.receive_with().await.unwrap();
    let sense = Sense::decode(&data[2..]).unwrap();
    assert_eq!(sense.additional, Additional::NEXUS_LOSS);
    // PERSISTENT RESERVE IN, READ KEYS.
    raw.command(&[0x5e, 0, 0, 0, 0, 0, 0, 0, 64, 0], 64).await;
    let (_, data) = raw.receive_with().await.unwrap();
    assert_eq!(data[4..16], [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 5]);
    target.stop().await;
}

#[tokio::test]
async fn the_sessions_of_a_plan_end_together() {
    let agent = Agent::new(&[ram(), ram()]);
    let target = agent.start();
    let one = agent.raw(&target, agent.token(1), 1).await;
    let two = agent.raw(&target, agent.token(2), 2).await;
    let other = Token { plan: OTHER_PLAN, ..agent.token(1) };
    let mut rest = agent.raw(&target, other, 3).await;
    assert_eq!(target.handle.end_plan(MEDIATOR, PLAN).await, Ok(2));
    until_left(&target, 1).await;
    assert_eq!(target.handle.end_plan(MEDIATOR, PLAN).await, Ok(0));
    rest.command(&[0; 6], 0).await;
    assert_eq!(rest.receive().await.unwrap().0[3], GOOD);
    drop((one, two));
    target.stop().await;
}

#[tokio::test]
async fn a_reset_ends_at_its_segment() {
    let sticky = Arc::new(Sticky::new(ram()));
    let agent = Agent::new(&[ram(), Device::new(sticky.clone())]);
    let target = agent.start();
    let other = agent.connect(&target, agent.token(2)).await;
    let write = write_later(&other, &sticky);
    until_kept(&sticky, 1).await;
    let mut raw = agent.raw(&target, agent.token(1), 1).await;
    // It would wait for the other segment's write, and end it.
    for function in [TaskFunction::LogicalUnitReset, TaskFunction::TargetWarmReset] {
        raw.manage(function, 0).await;
        timeout(LIMIT, raw.managed()).await.unwrap();
    }
    sticky.go_on();
    assert!(write.await.unwrap());
    // The same name and ISID on another segment is another session.
    let again = agent.raw(&target, agent.token(2), 1).await;
    raw.take_attention().await;
    raw.command(&[0; 6], 0).await;
    assert_eq!(raw.receive().await.unwrap().0[3], GOOD);
    drop(again);
    target.stop().await;
}

#[tokio::test]
async fn a_target_of_luns_has_no_segments() {
    let target = Running::start(config(), &[ram()]);
    let handle = &target.handle;
    let (id, none) = (SegmentId([1; 16]), Err(CommandError::NoSegments));
    assert_eq!(handle.raise_generation(MEDIATOR, id, Generation(1)).await, none);
    assert_eq!(handle.close_segment(MEDIATOR, id).await, none);
    target.stop().await;
}

#[tokio::test]
async fn who_is_let_in_no_more_does_not_wait_as_long_as_requests_may() {
    let agent = Agent::new(&[ram()]);
    let target = agent.start();
    let config = InitiatorConfig {
        request_timeout: Duration::from_secs(3600),
        ..agent.initiator(&target, agent.token(1))
    };
    let device = Device::new(Arc::new(Remote::connect(config, Pool::new()).await.unwrap()));
    write(&device, 0, 1).await.unwrap();
    // Its token is over.
    agent.sleep(TERM_MS + 60_000);
    let refused =
        timeout(Duration::from_secs(600), async { while write(&device, 0, 1).await.is_ok() {} });
    refused.await.unwrap();
}

#[tokio::test]
async fn a_cut_ends_requests_and_sessions_at_once() {
    let sticky = Arc::new(Sticky::new(ram()));
    let agent = Agent::new(&[Device::new(sticky.clone())]);
    let target = agent.start();
    let config = InitiatorConfig {
        request_timeout: Duration::from_secs(3600),
        ..agent.initiator(&target, agent.token(1))
    };
    let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
    let writing = write_later(&Device::new(remote.clone()), &sticky);
    until_kept(&sticky, 1).await;
    // Whoever waits for a good end does not keep it from being cut.
    let closing = tokio::spawn({
        let remote = remote.clone();
        async move { remote.close().await }
    });
    timeout(LIMIT, remote.cut()).await.unwrap();
    assert!(!timeout(LIMIT, writing).await.unwrap().unwrap());
    timeout(LIMIT, closing).await.unwrap().unwrap();
    assert!(timeout(LIMIT, remote.reservation()).await.unwrap().is_err());
    assert!(write(&Device::new(remote), 0, 1).await.is_err());
    sticky.go_on();
    until_left(&target, 0).await;
}
