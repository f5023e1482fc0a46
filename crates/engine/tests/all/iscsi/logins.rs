//! Logins that are not finished, or not served.

use std::time::Duration;

use netraid_engine::{initiator, target::Redirect};
use tokio::{io::AsyncReadExt as _, net::TcpStream};

use crate::iscsi::{
    common::{NAME, Running, config, ram},
    raw::Raw,
};

#[tokio::test]
async fn half_open_connections_keep_nobody_out() {
    let mut config = config();
    config.limits.visitors_per_source_max = 8;
    config.login_timeout = Duration::from_millis(500);
    let target = Running::start(config, &[ram()]);
    let mut session = Raw::log_in(target.address, 1).await.unwrap().unwrap();
    let mut idle = Vec::new();
    for _ in 0..30 {
        idle.push(TcpStream::connect(target.address).await.unwrap());
    }
    // The session does not notice, the oldest have left for the others, and there is room.
    session.take_attention().await;
    for stream in &mut idle[..22] {
        assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0);
    }
    Raw::log_in(target.address, 2).await.unwrap().unwrap().take_attention().await;
    // All others leave when their time is over.
    for stream in &mut idle[22..] {
        assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0);
    }
    session.command(&[0; 6], 0).await;
    session.receive().await.unwrap();
    target.stop().await;
}

#[tokio::test]
async fn initiators_that_are_not_allowed_are_told() {
    let mut config = config();
    config.allow = vec!["iqn.2026-01.org.example:other".into()];
    let target = Running::start(config, &[ram()]);
    assert_eq!(Raw::log_in(target.address, 1).await.unwrap().err(), Some(0x0202));
    target.stop().await;
}

#[tokio::test]
async fn logins_are_sent_elsewhere() {
    let mut config = config();
    let redirect = Redirect { portal: None, address: "192.0.2.9:3260".into(), permanent: true };
    config.redirects = vec![redirect];
    let target = Running::start(config, &[ram()]);
    assert_eq!(Raw::log_in(target.address, 1).await.unwrap().err(), Some(0x0102));
    target.stop().await;
}

#[tokio::test]
async fn discovery_names_all_portals_and_first_the_one_that_was_asked() {
    let mut config = config();
    config.listen = vec![([127, 0, 0, 1], 0).into(), ([0, 0, 0, 0], 0).into()];
    let target = Running::start(config, &[ram()]);
    let wild = target.addresses[1].port();
    for (host, port, first) in [
        ("127.0.0.1", target.address.port(), target.address.to_string()),
        ("127.0.0.1", wild, format!("127.0.0.1:{wild}")),
        ("127.0.0.2", wild, format!("127.0.0.2:{wild}")),
    ] {
        let found = initiator::discover(host, port, None, Duration::from_secs(2)).await.unwrap();
        assert_eq!(found[0].name, NAME);
        assert_eq!(found[0].addresses[0], format!("{first},1"));
        assert!(found[0].addresses.contains(&format!("{},1", target.address)));
        assert!(!found[0].addresses.iter().any(|address| address.starts_with("0.0.0.0")));
    }
    target.stop().await;
}
