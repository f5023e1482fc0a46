//! Rates of sessions: floors, limits and weights over loopback.

use std::{sync::Arc, time::Duration};

use netraid_block::{Buf, Device, Op, Pool};
use netraid_engine::{
    completions,
    initiator::{InitiatorConfig, Remote},
    target::{CommandError, Pace, PaceError, Pacing, Rate, Target, TargetConfig, TargetError},
};
use tokio::time::Instant;

use crate::iscsi::common::{Running, SIZE, config, exercise, ram};

const LEN: u64 = 64 << 10;
const HOLDER: &str = "iqn.2026-01.org.example:Holder";
const GREEDY: &str = "iqn.2026-01.org.example:greedy";

pub(crate) fn pace(floor: u64, limit: Option<u64>, weight: u32) -> Pace {
    Pace { floor: Rate(floor), limit: limit.map(Rate), weight }
}

fn paced(rate: u64, paces: &[(&str, Pace)]) -> TargetConfig {
    let mut pacing = Pacing::new(Rate(rate), Rate(rate));
    pacing.paces = paces.iter().map(|(name, pace)| ((*name).to_owned(), *pace)).collect();
    TargetConfig { pacing: Some(pacing), ..config() }
}

async fn connect_as(target: &Running, name: &str, sessions: u8) -> Device {
    let config = InitiatorConfig {
        initiator_name: name.to_owned(),
        sessions,
        request_timeout: Duration::from_secs(30),
        ..InitiatorConfig::new(target.uri(0))
    };
    Device::new(Arc::new(Remote::connect(config, Pool::new()).await.unwrap()))
}

/// Bytes a second that a client moves that always has some requests under way.
pub(crate) async fn load(device: Device, op: Op, time: Duration) -> f64 {
    let begun = Instant::now();
    let workers: Vec<_> = (0..12_u64)
        .map(|worker| {
            let device = device.clone();
            tokio::spawn(async move {
                let mut moved = 0.0;
                let data = Buf::copy_from(&vec![7; usize::try_from(LEN).unwrap()]);
                for turn in 0_u64.. {
                    let offset = (worker + turn * 12) * LEN % SIZE;
                    if op == Op::Write {
                        let data = data.clone().into();
                        completions::write(&device, offset, data, false).await.unwrap();
                    } else {
                        completions::read(&device, offset, LEN).await.unwrap();
                    }
                    if begun.elapsed() > time {
                        break;
                    }
                    moved += 65536.0;
                }
                moved
            })
        })
        .collect();
    let mut moved = 0.0;
    for worker in workers {
        moved += worker.await.unwrap();
    }
    moved / time.as_secs_f64()
}

/// Within a fifth.
#[track_caller]
pub(crate) fn assert_about(rate: f64, expected: f64) {
    let about = expected * 0.8..=expected * 1.2;
    assert!(about.contains(&rate), "{rate:.0} bytes/s, not about {expected:.0}");
}

#[tokio::test]
async fn a_floor_is_kept_against_a_greedy_neighbour_in_both_directions() {
    let paces = [(HOLDER, pace(24_000_000, None, 1)), (GREEDY, pace(0, None, 20))];
    let target = Running::start(paced(32_000_000, &paces), &[ram()]);
    let holder = connect_as(&target, HOLDER, 1).await;
    let greedy = connect_as(&target, GREEDY, 1).await;
    let time = Duration::from_millis(1500);
    for (op, others) in [(Op::Write, Op::Write), (Op::Read, Op::Write), (Op::Read, Op::Read)] {
        let (held, rest) =
            tokio::join!(load(holder.clone(), op, time), load(greedy.clone(), others, time));
        assert_about(held, 24_000_000.0);
        assert!(rest > 4_000_000.0 && held + rest < 32_000_000.0 * 1.2, "{held:.0} {rest:.0}");
    }
    let report = target.handle.report().await.unwrap();
    let of = |name: &str| {
        let session = report.sessions.iter().find(|session| session.initiator == name);
        session.unwrap().pace.unwrap()
    };
    let held = of(&HOLDER.to_lowercase());
    assert_eq!(held.pace, pace(24_000_000, None, 1));
    assert!(held.counts.floor_bytes > 24_000_000 && held.counts.granted > 1000, "{held:?}");
    assert!(held.counts.waited_ns > held.counts.waited_ns_max, "{held:?}");
    assert_eq!(of(GREEDY).counts.floor_bytes, 0);
    target.stop().await;
}

#[tokio::test]
async fn a_limit_holds_for_all_sessions_of_an_initiator_and_is_changed_while_it_moves() {
    let target =
        Running::start(paced(100_000_000, &[(HOLDER, pace(0, Some(8_000_000), 1))]), &[ram()]);
    let device = connect_as(&target, HOLDER, 2).await;
    let time = Duration::from_millis(1500);
    assert_about(load(device.clone(), Op::Write, time).await, 8_000_000.0);
    assert_about(load(device.clone(), Op::Read, time).await, 8_000_000.0);
    let handle = &target.handle;
    handle.set_pace(HOLDER.to_owned(), Some(pace(0, Some(24_000_000), 1))).await.unwrap();
    assert_about(load(device.clone(), Op::Write, time).await, 24_000_000.0);
    let refused = handle.set_pace(HOLDER.to_owned(), Some(pace(100_000_001, None, 1))).await;
    let floor = PaceError::Overbooked { floor: 100_000_001, left: 100_000_000 };
    assert_eq!(refused, Err(CommandError::Pace { initiator: HOLDER.to_owned(), source: floor }));
    target.stop().await;
}

/// Few places: whoever kept one would soon keep all.
#[tokio::test]
async fn what_a_paced_target_stores_is_what_was_written() {
    let mut config = paced(4_000_000_000, &[(HOLDER, pace(1_000_000_000, None, 1))]);
    config.pacing.as_mut().unwrap().in_flight_max = 2;
    let target = Running::start(config, &[ram()]);
    exercise(&connect_as(&target, HOLDER, 2).await, 60, 77).await;
    target.stop().await;
}

#[tokio::test]
async fn who_waits_for_a_grant_is_gone_at_once_and_keeps_nobody() {
    let mut config = paced(100_000_000, &[(HOLDER, pace(0, Some(1000), 1))]);
    config.pacing.as_mut().unwrap().in_flight_max = 1;
    let target = Running::start(config, &[ram()]);
    let device = connect_as(&target, HOLDER, 1).await;
    let waiting: Vec<_> = (0..6)
        .map(|at| {
            let device = device.clone();
            tokio::spawn(async move {
                if at % 2 == 0 {
                    let _ = completions::read(&device, at * LEN, LEN).await;
                } else {
                    let data = Buf::copy_from(&[7; 4096]).into();
                    let _ = completions::write(&device, at * LEN, data, false).await;
                }
            })
        })
        .collect();
    let waits = || async {
        let report = target.handle.report().await.unwrap();
        report.sessions.first().and_then(|session| session.pace).map(|pace| pace.waiting)
    };
    while waits().await != Some(5) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    drop(device);
    target.handle.drop_sessions(None).await.unwrap();
    let other = connect_as(&target, GREEDY, 1).await;
    for at in 0..32 {
        completions::read(&other, at * LEN, LEN).await.unwrap();
    }
    let begun = Instant::now();
    drop(other);
    target.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(3), "nobody waits for what was not granted");
}

#[tokio::test]
async fn a_queue_longer_than_a_requests_time_ends_on_a_slow_path_and_fails_at_once_on_a_dead_one() {
    let target = Running::start(paced(4_000_000, &[]), &[ram()]);
    let config = InitiatorConfig {
        // Shorter than all others take for a piece each.
        request_timeout: Duration::from_millis(400),
        refusal_limit: Duration::from_secs(60),
        ..InitiatorConfig::new(target.uri(0))
    };
    let device = Device::new(Arc::new(Remote::connect(config, Pool::new()).await.unwrap()));
    // 8 MB each way: two seconds of what the target moves.
    let all = (0..128_u64).map(|at| {
        let data = Buf::copy_from(&vec![7; usize::try_from(LEN).unwrap()]).into();
        completions::write(&device, at * LEN, data, false)
    });
    let begun = Instant::now();
    let ends = futures_util::future::join_all(all).await;
    assert!(begun.elapsed() > Duration::from_millis(1200), "the path was not slow");
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    let reads = || (0..128_u64).map(|at| completions::read(&device, at * LEN, LEN));
    let ends = futures_util::future::join_all(reads()).await;
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    // Large ones, which the target takes in pieces of all of them: none ends before the last but one.
    let large = Buf::copy_from(&vec![9; 1 << 20]);
    let all =
        (0..8_u64).map(|at| completions::write(&device, at << 20, large.clone().into(), false));
    let ends = futures_util::future::join_all(all).await;
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    let reads_of_a_mib = (0..8_u64).map(|at| completions::read(&device, at << 20, 1 << 20));
    let ends = futures_util::future::join_all(reads_of_a_mib).await;
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    let killed = async {
        // The first of all.
        completions::read(&device, 0, LEN).await.unwrap();
        target.kill().await;
        Instant::now()
    };
    let ends = futures_util::future::join_all(reads());
    let (killed, ends) = futures_util::future::join(killed, ends).await;
    let took = killed.elapsed();
    assert!(ends.iter().any(Result::is_err) && took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test]
async fn rates_that_do_not_fit_are_refused_before_anybody_comes() {
    let bind = |config| Target::bind(config, vec![ram().into()], Pool::new()).map(drop);
    let over = [(HOLDER, pace(60, None, 1)), (GREEDY, pace(41, None, 1))];
    let error = bind(paced(100, &over)).unwrap_err();
    assert!(matches!(error, TargetError::Pacing(PaceError::Overbooked { .. })), "{error}");
    let mut config = paced(100, &[]);
    config.pacing.as_mut().unwrap().others = pace(1, None, 1);
    assert!(bind(config).is_err(), "a floor for whoever comes");
    assert!(bind(paced(0, &[])).is_err());
    let target = Running::start(crate::iscsi::common::config(), &[ram()]);
    let set = target.handle.set_pace(HOLDER.to_owned(), None).await;
    assert_eq!(set, Err(CommandError::NotPaced));
    target.stop().await;
}
