//! Several portals and sessions: one closes, and nobody notices.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use netraid_block::{Buf, Device, ErrorKind, IoError, Pool, TargetUri};
use netraid_engine::{
    completions,
    initiator::{InitiatorConfig, Reason, Remote},
};

use crate::iscsi::{
    common::{NAME, Running, Sticky, config, connect, exercise, ram, refused, restart},
    meddler::Meddler,
};

fn uri(portals: &[&Meddler]) -> TargetUri {
    let more: Vec<String> =
        portals[1..].iter().map(|portal| format!("portal={}", portal.address)).collect();
    let query = if more.is_empty() { String::new() } else { format!("?{}", more.join("&")) };
    TargetUri::parse(&format!("iscsi://{}/{NAME}/0{query}", portals[0].address)).unwrap()
}

async fn remote(portals: &[&Meddler], sessions: u8) -> Arc<Remote> {
    let config = InitiatorConfig { sessions, ..InitiatorConfig::new(uri(portals)) };
    Arc::new(Remote::connect(config, Pool::new()).await.unwrap())
}

/// Waits for something that surely comes.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..5000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("never: {what}");
}

#[tokio::test]
async fn a_portal_that_closes_under_load_is_not_noticed() {
    for sessions in [1, 2, 3] {
        let target = Running::start(config(), &[ram()]);
        let mut one = Meddler::start(target.address).await;
        let mut two = Meddler::start(target.address).await;
        let remote = remote(&[&one, &two], sessions).await;
        let device = remote.clone().into_device();
        let load = tokio::spawn(async move { exercise(&device, 60, u64::from(sessions)).await });
        for _ in 0..2 {
            let before = remote.reconnects();
            one.close().await;
            until("a new session", || remote.reconnects() > before).await;
            one.reopen().await;
            let before = remote.reconnects();
            two.close().await;
            until("a new session", || remote.reconnects() > before).await;
            two.reopen().await;
        }
        load.await.unwrap();
        assert!(remote.is_connected());
        remote.close().await;
        target.stop().await;
    }
}

#[tokio::test]
async fn sessions_share_the_portals_and_the_requests() {
    let target = Running::start(config(), &[ram()]);
    let one = Meddler::start(target.address).await;
    let two = Meddler::start(target.address).await;
    let remote = remote(&[&one, &two], 4).await;
    exercise(&remote.clone().into_device(), 20, 1).await;
    until("four sessions", || (one.connections(), two.connections()) == (2, 2)).await;
    assert_eq!((remote.reconnects(), remote.cache_losses()), (0, 0));
    remote.close().await;
    target.stop().await;
}

#[tokio::test]
async fn a_portal_that_falls_silent_is_left_for_another() {
    let target = Running::start(config(), &[ram()]);
    let one = Meddler::start(target.address).await;
    let two = Meddler::start(target.address).await;
    let mut config = InitiatorConfig::new(uri(&[&one, &two]));
    config.request_timeout = Duration::from_secs(2);
    let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
    let device = remote.clone().into_device();
    one.freeze();
    completions::write(&device, 0, Buf::copy_from(&[1; 4096]).into(), false).await.unwrap();
    assert_eq!((remote.reconnects(), two.connections()), (1, 1));
    remote.close().await;
    target.stop().await;
}

#[tokio::test]
async fn the_first_portal_may_be_closed_from_the_start() {
    let target = Running::start(config(), &[ram()]);
    let mut one = Meddler::start(target.address).await;
    let two = Meddler::start(target.address).await;
    one.close().await;
    let remote = remote(&[&one, &two], 1).await;
    completions::read(&remote.clone().into_device(), 0, 4096).await.unwrap();
    remote.close().await;
    target.stop().await;
}

/// What was sent over a portal that fell silent may be carried out as long as its session is
/// there: nothing may be written by another session before.
#[tokio::test]
async fn a_write_over_a_silent_portal_never_overtakes_a_later_one() {
    for sessions in [1, 2] {
        let sticky = Arc::new(Sticky::new(ram()));
        let target = Running::start(config(), &[Device::new(sticky.clone())]);
        let one = Meddler::start(target.address).await;
        let two = Meddler::start(target.address).await;
        let mut config = InitiatorConfig { sessions, ..InitiatorConfig::new(uri(&[&one, &two])) };
        config.request_timeout = Duration::from_secs(1);
        let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
        let device = remote.clone().into_device();
        until("all sessions", || one.connections() + two.connections() == usize::from(sessions))
            .await;
        let write =
            |byte| completions::write(&device, 0, Buf::copy_from(&[byte; 4096]).into(), false);
        write(0).await.unwrap();
        sticky.stick();
        let first = tokio::spawn({
            let device = device.clone();
            async move { completions::write(&device, 0, Buf::copy_from(&[1; 4096]).into(), false).await }
        });
        until("the first write", || sticky.keeps() == 1).await;
        one.freeze();
        let error = first.await.unwrap().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unreachable), "{error}");
        sticky.take_on();
        // The first write still lies in the target: the second must not be carried out before.
        let error = write(2).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unreachable), "{error}");
        sticky.go_on();
        write(3).await.unwrap();
        let data = completions::read(&device, 0, 4096).await.unwrap();
        assert!(data.to_contiguous().iter().all(|byte| *byte == 3));
        remote.close().await;
        target.stop().await;
    }
}

/// Lengths of requests that go to one session and to the other, as long as there are both.
const LENS: [u64; 2] = [4096, 65_536];

/// A request for each session.
async fn write(device: Device, at: u64, byte: u8) -> Result<(), IoError> {
    let len = usize::try_from(LENS[usize::try_from(at).unwrap()]).unwrap();
    completions::write(&device, at * LENS[1], Buf::copy_from(&vec![byte; len]).into(), false).await
}

async fn holds_the_successors(device: &Device) {
    for (at, len) in (0..).zip(LENS) {
        let data = completions::read(device, at * LENS[1], len).await.unwrap().to_contiguous();
        assert!(data.iter().all(|byte| *byte == 2), "a late write of the dead engine");
    }
}

/// Who takes over from a dead engine need not have as many sessions as that one had.
#[tokio::test]
async fn what_any_session_of_a_predecessor_had_under_way_ends_before_its_successor_writes() {
    let sticky = Arc::new(Sticky::new(ram()));
    let target = Running::start(config(), &[Device::new(sticky.clone())]);
    let portal = Meddler::start(target.address).await;
    let isid = Some([0x80, 1, 2, 3, 4, 5]);
    let config = InitiatorConfig { sessions: 2, isid, ..InitiatorConfig::new(uri(&[&portal])) };
    let dead = Arc::new(Remote::connect(config.clone(), Pool::new()).await.unwrap());
    let device = dead.clone().into_device();
    // Sessions that have used the medium: small requests have one, large ones the other.
    while target.handle.report().await.unwrap().luns[0].sessions < 2 {
        for len in LENS {
            completions::read(&device, 0, len).await.unwrap();
        }
    }
    sticky.stick();
    for at in 0..2 {
        tokio::spawn(write(device.clone(), at, 1));
        until("a write", || sticky.keeps() as u64 == at + 1).await;
    }
    // As an engine whose machine died: its connections stay.
    portal.freeze();
    sticky.take_on();
    // What the first session had under way ends soon, the rest later.
    sticky.go_on_with(0);
    let config = InitiatorConfig { sessions: 1, ..config };
    let config = InitiatorConfig { uri: target.uri(0), ..config };
    let successor = tokio::spawn(async move {
        let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
        let device = remote.clone().into_device();
        for at in 0..2 {
            write(device.clone(), at, 2).await.unwrap();
        }
        (remote, device)
    });
    // Long enough for a successor that does not wait.
    tokio::time::sleep(Duration::from_millis(300)).await;
    sticky.go_on();
    let (remote, device) = successor.await.unwrap();
    holds_the_successors(&device).await;
    remote.close().await;
    target.stop().await;
}

/// A login ends sessions of its own portal group alone (RFC 7143, section 6.3.5).
#[tokio::test]
async fn what_a_predecessor_had_under_way_in_another_portal_group_ends_first_too() {
    // Two nodes of one target, with portals for the dead engine and for its successor.
    let medium = ram();
    let sticky = [(); 2].map(|()| Arc::new(Sticky::new(medium.clone())));
    let nodes = sticky.each_ref().map(|one| Running::start(config(), &[Device::new(one.clone())]));
    let mut old = Vec::new();
    let mut new = Vec::new();
    for (node, group) in nodes.iter().zip([1, 2]) {
        for portals in [&mut old, &mut new] {
            let portal = Meddler::start(node.address).await;
            portal.be_of_group(group);
            portals.push(portal);
        }
    }
    let isid = Some([0x80, 1, 2, 3, 4, 5]);
    let (old_uri, new_uri) = (uri(&[&old[0], &old[1]]), uri(&[&new[0], &new[1]]));
    let config = InitiatorConfig { sessions: 2, isid, ..InitiatorConfig::new(old_uri) };
    let dead = Arc::new(Remote::connect(config.clone(), Pool::new()).await.unwrap());
    let device = dead.clone().into_device();
    for node in &nodes {
        while node.handle.report().await.unwrap().luns[0].sessions < 1 {
            for len in LENS {
                completions::read(&device, 0, len).await.unwrap();
            }
        }
    }
    sticky.iter().for_each(|one| one.stick());
    for at in 0..2 {
        tokio::spawn(write(device.clone(), at, 1));
        let keeps = || sticky.iter().map(|one| one.keeps() as u64).sum::<u64>();
        until("a write", || keeps() == at + 1).await;
    }
    assert_eq!((sticky[0].keeps(), sticky[1].keeps()), (1, 1));
    old.iter().for_each(Meddler::freeze);
    sticky.iter().for_each(|one| one.take_on());
    let config = InitiatorConfig { sessions: 1, uri: new_uri, ..config };
    let successor = tokio::spawn(async move {
        let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
        let device = remote.clone().into_device();
        for at in 0..2 {
            write(device.clone(), at, 2).await.unwrap();
        }
        (remote, device)
    });
    // Each write ends later than a successor that does not wait for it has written.
    for one in sticky {
        tokio::time::sleep(Duration::from_millis(300)).await;
        one.go_on();
    }
    let (remote, device) = successor.await.unwrap();
    holds_the_successors(&device).await;
    remote.close().await;
    for node in nodes {
        node.stop().await;
    }
}

/// A portal that is closed must not keep an array from being opened over the others.
#[tokio::test]
async fn a_take_over_succeeds_though_one_portal_is_closed() {
    let target = Running::start(config(), &[ram()]);
    let (mut one, two) =
        (Meddler::start(target.address).await, Meddler::start(target.address).await);
    one.close().await;
    let isid = Some([0x80, 1, 2, 3, 4, 5]);
    for portals in [[&one, &two], [&two, &one]] {
        let config = InitiatorConfig { isid, ..InitiatorConfig::new(uri(&portals)) };
        let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
        completions::read(&remote.clone().into_device(), 0, 4096).await.unwrap();
        remote.close().await;
    }
    target.stop().await;
}

#[tokio::test]
async fn a_portal_that_moved_to_where_nobody_is_is_asked_again() {
    let target = Running::start(config(), &[ram()]);
    let mut gate = Meddler::start(target.address).await;
    let remote = remote(&[&gate], 1).await;
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    gate.redirect(0x0102, nobody.to_string());
    let before = gate.connections();
    gate.close().await;
    gate.reopen().await;
    until("it was sent away", || gate.connections() > before).await;
    gate.stay();
    completions::read(&remote.clone().into_device(), 0, 4096).await.unwrap();
    remote.close().await;
    target.stop().await;
}

#[tokio::test]
async fn a_peer_that_is_surely_gone_is_not_waited_for() {
    let disk = ram();
    let target = Running::start(config(), std::slice::from_ref(&disk));
    let address = target.address;
    let remote = connect(target.uri(0)).await;
    let device = remote.clone().into_device();
    target.kill().await;
    let started = Instant::now();
    let error = completions::read(&device, 0, 4096).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    let took = started.elapsed();
    assert!((Duration::from_millis(400)..Duration::from_secs(2)).contains(&took), "{took:?}");
    let started = Instant::now();
    completions::read(&device, 0, 4096).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_millis(400), "it waits again");
    let target = restart(address, std::slice::from_ref(&disk));
    // A request is ended only by an attempt that failed after it came.
    completions::read(&device, 0, 4096).await.unwrap();
    remote.close().await;
    target.stop().await;
}

#[tokio::test]
async fn a_redirection_is_followed() {
    for (status, permanent) in [(0x0101, false), (0x0102, true)] {
        let target = Running::start(config(), &[ram()]);
        let gate = Meddler::start(target.address).await;
        gate.redirect(status, format!("{},1", target.address));
        let remote = remote(&[&gate], 1).await;
        completions::read(&remote.clone().into_device(), 0, 4096).await.unwrap();
        let address = target.address;
        assert_eq!(gate.connections(), 1);
        target.kill().await;
        let target = restart(address, &[ram()]);
        until("a new session", || remote.reconnects() == 1).await;
        // Who moved for good is not asked where any more (RFC 7143, section 11.13.5).
        assert_eq!(gate.connections(), if permanent { 1 } else { 2 }, "{status:#x}");
        remote.close().await;
        target.stop().await;
    }
}

#[tokio::test]
async fn redirections_in_a_circle_are_refused() {
    let target = Running::start(config(), &[ram()]);
    let gates = [Meddler::start(target.address).await, Meddler::start(target.address).await];
    gates[0].redirect(0x0101, gates[1].address.to_string());
    gates[1].redirect(0x0101, gates[0].address.to_string());
    let reason = refused(InitiatorConfig::new(uri(&[&gates[0]]))).await;
    assert!(matches!(reason, Reason::Redirection { .. }), "{reason}");
    assert_eq!((gates[0].connections(), gates[1].connections()), (1, 1));
    gates[0].redirect(0x0101, "not an address:x");
    let reason = refused(InitiatorConfig::new(uri(&[&gates[0]]))).await;
    assert!(matches!(reason, Reason::Redirection { .. }), "{reason}");
    target.stop().await;
}

#[tokio::test]
async fn redirections_without_end_are_refused() {
    let target = Running::start(config(), &[ram()]);
    let mut gates = Vec::new();
    for _ in 0..7 {
        gates.push(Meddler::start(target.address).await);
    }
    for at in 0..6 {
        gates[at].redirect(0x0101, gates[at + 1].address.to_string());
    }
    let reason = refused(InitiatorConfig::new(uri(&[&gates[0]]))).await;
    assert!(matches!(reason, Reason::Redirection { .. }), "{reason}");
    let asked: usize = gates.iter().map(Meddler::connections).sum();
    assert_eq!(asked, 5, "the first, and four further ones");
    // One hop less is followed to its end.
    gates[4].redirect(0x0101, target.address.to_string());
    gates[0].redirect(0x0101, gates[2].address.to_string());
    let remote = remote(&[&gates[0]], 1).await;
    remote.close().await;
    target.stop().await;
}
