//! Hostile targets: every request to one ends within its deadline, well or badly, and the engine
//! is as alive as before.

use std::time::{Duration, Instant};

use netraid_block::{Buf, Pool, TargetUri};
use netraid_engine::{
    completions,
    initiator::{InitiatorConfig, Remote},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinSet,
};

use crate::hostile::{
    common::{NAME, Running, config, ram},
    proxy::{Fault, Proxy},
};

const REQUEST_TIMEOUT: Duration = Duration::from_millis(600);
const LOGIN_TIMEOUT: Duration = Duration::from_millis(600);
/// What a busy machine may add to a deadline.
const SLACK: Duration = Duration::from_secs(4);

fn hasty(address: std::net::SocketAddr) -> InitiatorConfig {
    let uri = TargetUri::parse(&format!("iscsi://{address}/{NAME}/0")).unwrap();
    InitiatorConfig {
        request_timeout: REQUEST_TIMEOUT,
        login_timeout: LOGIN_TIMEOUT,
        ..InitiatorConfig::new(uri)
    }
}

/// Connects, writes, reads and flushes; every step ends in time. Whether all went well.
async fn exchange(address: std::net::SocketAddr) -> bool {
    let connecting = Remote::connect(hasty(address), Pool::new());
    // Connecting is a login and a handful of commands.
    let limit = LOGIN_TIMEOUT + REQUEST_TIMEOUT * 8 + SLACK;
    let connected = tokio::time::timeout(limit, connecting).await;
    let Ok(remote) = connected.expect("connecting does not end") else { return false };
    let remote = std::sync::Arc::new(remote);
    let device = remote.clone().into_device();
    let mut well = true;
    for step in 0..3 {
        let started = Instant::now();
        let limit = REQUEST_TIMEOUT + SLACK;
        let ended = match step {
            0 => {
                let data = Buf::copy_from(&[0x5a; 4096]).into();
                let write = completions::write(&device, 8192, data, true);
                tokio::time::timeout(limit, write).await.map(|end| end.is_ok())
            }
            1 => {
                let read = completions::read(&device, 8192, 4096);
                tokio::time::timeout(limit, read).await.map(|end| end.is_ok())
            }
            _ => {
                let flush = completions::flush(&device);
                tokio::time::timeout(limit, flush).await.map(|end| end.is_ok())
            }
        };
        let good = ended.unwrap_or_else(|_| panic!("step {step} takes {:?}", started.elapsed()));
        well &= good;
    }
    drop(device);
    let closing = tokio::time::timeout(limit, remote.close());
    closing.await.expect("closing does not end");
    well
}

/// How many bytes a whole exchange sends towards the initiator.
async fn exchange_len(target: &Running) -> usize {
    let proxy = Proxy::start(target.address, usize::MAX, Fault::Close).await;
    assert!(exchange(proxy.address).await, "an exchange without a fault fails");
    *proxy.passed.borrow()
}

/// Runs an exchange for each place where a fault can be, many at a time; how many went well.
async fn everywhere(fault: Fault, step: usize) -> (usize, usize) {
    let target = Running::start(config(), &[ram()]);
    let len = exchange_len(&target).await;
    let nightly = std::env::var_os("NETRAID_NIGHTLY").is_some_and(|value| value == "1");
    let step = if nightly { 1 } else { step };
    let (mut running, mut well, mut count) = (JoinSet::new(), 0, 0);
    for at in (0..len).step_by(step) {
        if running.len() >= 24 {
            let good: Option<Result<bool, _>> = running.join_next().await;
            well += usize::from(good.unwrap().unwrap());
        }
        count += 1;
        let address = target.address;
        running.spawn(async move {
            let proxy = Proxy::start(address, at, fault).await;
            exchange(proxy.address).await
        });
    }
    while let Some(good) = running.join_next().await {
        well += usize::from(good.unwrap());
    }
    assert!(exchange(target.address).await, "the target itself is as before");
    target.stop().await;
    (well, count)
}

#[tokio::test]
async fn a_connection_may_close_at_every_byte() {
    let (well, count) = everywhere(Fault::Close, 11).await;
    // Requests are sent again on a new session; connecting for the first time is not.
    assert!(well > 0 && count > 50, "{well} of {count}");
}

#[tokio::test]
async fn a_target_may_fall_silent_at_every_byte() {
    let (_, count) = everywhere(Fault::Stall, 29).await;
    assert!(count > 20);
}

#[tokio::test]
async fn a_target_may_lie_at_every_byte() {
    for bits in [0xff, 0x01, 0x80] {
        let (well, count) = everywhere(Fault::Flip(bits), 17).await;
        assert!(well > 0, "{well} of {count}");
    }
}

#[tokio::test]
async fn a_target_of_noise_is_left() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let noise = tokio::spawn(async move {
        let mut seed = 1_u32;
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut sink = [0; 512];
            let _ = stream.read(&mut sink).await;
            let mut bytes = vec![0; 20_000];
            for byte in &mut bytes {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = seed.to_be_bytes()[0];
            }
            let _ = stream.write_all(&bytes).await;
        }
    });
    for _ in 0..20 {
        assert!(!exchange(address).await);
    }
    noise.abort();
}
