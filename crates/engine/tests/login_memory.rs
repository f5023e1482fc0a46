//! Sessions that come and go leave nothing behind: after 10,000 logins the process holds as much
//! memory as after 1,000. A test binary of its own, so that no other test's memory is in the sum.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "what was measured is shown on request")]

#[path = "all/common.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with other tests, which use more of it")]
mod common;
#[path = "all/hostile/peer.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with other tests, which use more of it")]
mod peer;

use std::fs;

use common::{Running, config, ram};
use netraid_block::Pool;
use netraid_engine::{
    initiator::{InitiatorConfig, Remote, Secret},
    target::{ChapCredentials, TargetConfig},
};
use tokio::io::AsyncWriteExt as _;

/// Most growth between the two counts, in bytes.
const GROWTH_MAX: u64 = 1 << 20;

fn secret() -> Secret {
    Secret::new(*b"0123456789abcdef").unwrap()
}

/// Memory of this process that is in use, in bytes.
fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// One login of the kind that `number` says, by an initiator port that nobody had before.
async fn visit(plain: &Running, guarded: &Running, number: u32) {
    let isid = u16::try_from(number % 65_536).unwrap();
    match number % 10 {
        // With a secret, and a probe of the unit.
        0 => {
            let uri = guarded.uri(0);
            let user = Some("joe".to_owned());
            let uri = netraid_block::TargetUri { user, ..uri };
            let config = InitiatorConfig { secret: Some(secret()), ..InitiatorConfig::new(uri) };
            Remote::connect(config, Pool::new()).await.unwrap().close().await;
        }
        // With a wrong secret.
        1 => {
            let uri = netraid_block::TargetUri { user: Some("joe".into()), ..guarded.uri(0) };
            let secret = Some(Secret::new(*b"fedcba9876543210").unwrap());
            let config = InitiatorConfig { secret, ..InitiatorConfig::new(uri) };
            Remote::connect(config, Pool::new()).await.unwrap_err();
        }
        // Amid the login.
        2 => {
            let mut stream = peer::connect_from(1, plain.address).await.unwrap();
            let login = peer::login(isid);
            stream.write_all(&login[..60]).await.unwrap();
        }
        // Abruptly.
        3..=5 => drop(peer::session(1, plain.address, isid).await.unwrap()),
        // In order.
        _ => {
            let mut stream = peer::session(1, plain.address, isid).await.unwrap();
            stream.write_all(&peer::logout(2)).await.unwrap();
            peer::drain(&mut stream).await;
        }
    }
}

#[tokio::test]
async fn ten_thousand_logins_take_no_more_memory_than_a_thousand() {
    let plain = Running::start(config(), &[ram()]);
    let chap = vec![ChapCredentials { user: "joe".into(), secret: secret() }];
    let guarded = Running::start(TargetConfig { chap, ..config() }, &[ram()]);
    for number in 0..1000 {
        visit(&plain, &guarded, number).await;
    }
    let early = resident();
    for number in 1000..10_000 {
        visit(&plain, &guarded, number).await;
    }
    let late = resident();
    println!("resident: {early} bytes after 1,000 logins, {late} after 10,000");
    assert!(late < early + GROWTH_MAX, "{early} bytes after 1,000 logins, {late} after 10,000");
    plain.stop().await;
    guarded.stop().await;
}
