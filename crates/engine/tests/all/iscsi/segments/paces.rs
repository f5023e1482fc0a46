//! Rates of plans, and a device that hangs.

use std::{sync::Arc, time::Duration};

use netraid_block::{Device, Op, Pool};
use netraid_control::{
    token::{Initiator, Token},
    units::{PlanId, Rate},
};
use netraid_engine::{
    initiator::{InitiatorConfig, Remote},
    target::{CommandError, Pace, Pacing, TargetConfig},
};
use tokio::time::timeout;

use super::{
    agent::{Agent, MEDIATOR, PLAN},
    byte, write,
};
use crate::iscsi::{
    common::{Running, one_thread, ram},
    paces::{assert_about, load, pace},
    sanitize::Slow,
};

const LIMIT: Duration = Duration::from_secs(10);
const OTHER_PLAN: PlanId = PlanId([5; 16]);

fn paced(agent: &Arc<Agent>, rate: u64, in_flight_max: u32) -> Running {
    let pacing = Pacing { in_flight_max, ..Pacing::new(Rate(rate), Rate(rate)) };
    agent.start_with(TargetConfig { pacing: Some(pacing), ..one_thread() })
}

/// What the sessions of a plan may do now.
async fn pace_of(target: &Running, plan: PlanId) -> Option<Pace> {
    let report = target.handle.report().await.unwrap();
    let mut sessions = report.sessions.iter();
    let session = sessions.find(|session| session.grant.is_some_and(|grant| grant.plan == plan))?;
    session.pace.map(|report| report.pace)
}

#[tokio::test]
async fn the_sessions_of_a_plan_share_its_pace() {
    let agent = Agent::new(&[ram(), ram()]);
    *agent.pace.lock().unwrap() = pace(0, Some(8_000_000), 1);
    let target = paced(&agent, 100_000_000, 64);
    const OTHER: &str = "iqn.2026-11.org.example:other";
    let one = agent.connect(&target, agent.token(1)).await;
    let token = Token { initiator: Initiator::named(OTHER), ..agent.token(2) };
    let other =
        InitiatorConfig { initiator_name: OTHER.to_owned(), ..agent.initiator(&target, token) };
    let two = Device::new(Arc::new(Remote::connect(other, Pool::new()).await.unwrap()));
    let time = Duration::from_millis(1500);
    let (first, second) =
        tokio::join!(load(one.clone(), Op::Write, time), load(two.clone(), Op::Read, time));
    assert_about(first + second, 8_000_000.0);
    let handle = &target.handle;
    assert_eq!(handle.set_plan_pace(MEDIATOR, PLAN, pace(0, Some(24_000_000), 1)).await, Ok(2));
    let (first, second) = tokio::join!(load(one, Op::Write, time), load(two, Op::Read, time));
    assert_about(first + second, 24_000_000.0);
    let wrong = handle.set_plan_pace(MEDIATOR, PLAN, pace(0, None, 0)).await;
    assert!(matches!(wrong, Err(CommandError::PlanPace { plan: PLAN, .. })), "{wrong:?}");
    target.stop().await;
}

#[tokio::test]
async fn a_floor_that_does_not_fit_is_as_large_as_fits() {
    let agent = Agent::new(&[ram(), ram()]);
    let wanted = pace(8_000_000, None, 1);
    *agent.pace.lock().unwrap() = wanted;
    let target = paced(&agent, 10_000_000, 64);
    let first = agent.raw(&target, agent.token(1), 1).await;
    let other = Token { plan: OTHER_PLAN, ..agent.token(2) };
    let second = agent.connect(&target, other).await;
    write(&second, 0, 1).await.unwrap();
    assert_eq!(pace_of(&target, PLAN).await, Some(wanted));
    assert_eq!(pace_of(&target, OTHER_PLAN).await, Some(pace(2_000_000, None, 1)));
    // What becomes free goes to who lacks it.
    let handle = &target.handle;
    assert_eq!(handle.set_plan_pace(MEDIATOR, PLAN, pace(5_000_000, None, 1)).await, Ok(1));
    assert_eq!(pace_of(&target, PLAN).await, Some(pace(5_000_000, None, 1)));
    assert_eq!(pace_of(&target, OTHER_PLAN).await, Some(pace(5_000_000, None, 1)));
    drop(first);
    let wait = async {
        while pace_of(&target, OTHER_PLAN).await != Some(wanted) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, wait).await.unwrap();
    target.stop().await;
}

#[tokio::test]
async fn a_segment_that_hangs_keeps_no_places_from_others() {
    let slow = Slow::holding(ram(), Op::Read);
    let agent = Agent::new(&[Device::new(slow.clone()), ram()]);
    let target = paced(&agent, 100_000_000, 4);
    let hung = InitiatorConfig {
        request_timeout: Duration::from_secs(60),
        ..agent.initiator(&target, agent.token(1))
    };
    let hung = Device::new(Arc::new(Remote::connect(hung, Pool::new()).await.unwrap()));
    let other = agent.connect(&target, Token { plan: OTHER_PLAN, ..agent.token(2) }).await;
    let reads: Vec<_> = (0..12_u64)
        .map(|at| {
            let hung = hung.clone();
            tokio::spawn(async move { byte(&hung, at * 512).await })
        })
        .collect();
    let wait = async {
        while slow.holds() < 4 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LIMIT, wait).await.unwrap();
    for at in 0..100 {
        let reading = byte(&other, at * 512);
        assert_eq!(timeout(LIMIT, reading).await.unwrap(), 0);
    }
    // Writes come to the device all the same: their data was granted before.
    write(&hung, 0, 1).await.unwrap();
    assert_eq!(slow.holds(), 4, "it was given places again");
    slow.release();
    for read in reads {
        timeout(LIMIT, read).await.unwrap().unwrap();
    }
    // As before.
    for at in 0..20 {
        assert_eq!(byte(&hung, at * 512).await, u8::from(at == 0));
        assert_eq!(byte(&other, at * 512).await, 0);
    }
    target.stop().await;
}
