//! Logging in, and data through one or several sessions.

use std::{sync::Arc, time::Duration};

use netraid_block::{Buf, Device, Op, Pool, TargetUri};
use netraid_engine::{
    completions,
    initiator::{self, Credentials, InitiatorConfig, LoginError, Reason, Remote, Secret},
    target::{ChapCredentials, DigestPolicy, TargetConfig},
};

use super::paces::load;
use crate::iscsi::common::{NAME, Running, SIZE, config, connect, exercise, ram, refused};

#[tokio::test]
async fn reads_and_writes_return_what_was_written() {
    let target = Running::start(config(), &[ram(), ram()]);
    let remote = connect(target.uri(1)).await;
    assert_eq!(remote.identity().vendor, "NETRAID");
    assert_eq!(remote.identity().designator.as_ref().map(Vec::len), Some(8));
    assert_ne!(remote.identity(), connect(target.uri(0)).await.identity());
    let device = remote.clone().into_device();
    assert_eq!(device.info().capacity, SIZE);
    exercise(&device, 60, 1).await;
    remote.close().await;
    target.stop().await;
}

#[tokio::test]
async fn digests_and_a_short_queue_change_nothing() {
    let mut config = config();
    config.header_digest = DigestPolicy::Required;
    config.data_digest = DigestPolicy::Required;
    config.queue_depth = 2;
    let target = Running::start(config, &[ram()]);
    let mut config = InitiatorConfig::new(target.uri(0));
    assert!(matches!(refused(config.clone()).await, Reason::Login(_)), "no digest was offered");
    (config.header_digest, config.data_digest) = (true, true);
    let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
    exercise(&remote.clone().into_device(), 20, 2).await;
    remote.close().await;
    target.stop().await;
}

#[tokio::test]
async fn chap_lets_in_who_knows_the_secret() {
    let mut config = config();
    let secret = Secret::new(*b"hidden-secret-16").unwrap();
    config.chap = vec![ChapCredentials { user: "joe".into(), secret: secret.clone() }];
    let target = Running::start(config, &[ram()]);
    let uri = |user: Option<&str>| TargetUri { user: user.map(Into::into), ..target.uri(0) };
    let with = |user, secret: Option<&[u8]>| {
        let secret = secret.map(|secret| Secret::new(secret).unwrap());
        InitiatorConfig { secret, ..InitiatorConfig::new(uri(user)) }
    };
    for wrong in [
        with(None, None),
        with(Some("joe"), Some(b"hidden-secret-17")),
        with(Some("jim"), Some(b"hidden-secret-16")),
    ] {
        let reason = refused(wrong).await;
        assert!(matches!(reason, Reason::Login(LoginError::Authentication)), "{reason}");
    }
    assert!(matches!(refused(with(Some("joe"), None)).await, Reason::Config(_)));
    let right = with(Some("joe"), Some(b"hidden-secret-16"));
    Remote::connect(right, Pool::new()).await.unwrap().close().await;
    let found = |chap| {
        initiator::discover("127.0.0.1", target.address.port(), chap, Duration::from_secs(2))
    };
    assert!(found(None).await.is_err());
    let targets = found(Some(Credentials { user: "joe".into(), secret })).await.unwrap();
    assert_eq!(targets[0].name, NAME);
    assert_eq!(targets[0].addresses, [format!("{},1", target.address)]);
    target.stop().await;
}

#[tokio::test]
async fn a_target_that_cannot_prove_itself_is_refused() {
    let secret = |bytes: &[u8]| Secret::new(bytes).unwrap();
    let own = ChapCredentials { user: "joe".into(), secret: secret(b"hidden-secret-16") };
    let theirs = ChapCredentials { user: "disk".into(), secret: secret(b"hidden-secret-of-disk") };
    let running = |mutual_chap| {
        let config = TargetConfig { chap: vec![own.clone()], mutual_chap, ..config() };
        Running::start(config, &[ram()])
    };
    let wanting = |target: &Running, user: Option<&str>, bytes: &[u8]| InitiatorConfig {
        secret: Some(own.secret.clone()),
        target_secret: Some(secret(bytes)),
        target_user: user.map(Into::into),
        ..InitiatorConfig::new(TargetUri { user: Some("joe".into()), ..target.uri(0) })
    };
    let target = running(Some(theirs));
    for user in [None, Some("disk")] {
        let right = wanting(&target, user, b"hidden-secret-of-disk");
        Remote::connect(right, Pool::new()).await.unwrap().close().await;
    }
    for (user, bytes) in
        [(None, &b"hidden-secret-of-none"[..]), (Some("other"), b"hidden-secret-of-disk")]
    {
        let reason = refused(wanting(&target, user, bytes)).await;
        assert!(matches!(reason, Reason::Login(LoginError::Unproven(_))), "{reason}");
    }
    // One secret for both ways could be had by reflection (RFC 7143, section 9.2.1).
    let reason = refused(wanting(&target, None, b"hidden-secret-16")).await;
    assert!(matches!(reason, Reason::Config(_)), "{reason}");
    target.stop().await;
    let target = running(None);
    let reason = refused(wanting(&target, None, b"hidden-secret-of-disk")).await;
    assert!(matches!(reason, Reason::Login(_)), "{reason}");
    target.stop().await;
}

#[tokio::test]
async fn what_cannot_be_used_is_named() {
    let target = Running::start(config(), &[ram()]);
    assert!(matches!(refused(InitiatorConfig::new(target.uri(5))).await, Reason::NoLun));
    let other = TargetUri { target: "iqn.2026-01.org.example:other".into(), ..target.uri(0) };
    let reason = refused(InitiatorConfig::new(other)).await;
    assert!(matches!(reason, Reason::Login(LoginError::NotFound)), "{reason}");
    let uri = target.uri(0);
    target.stop().await;
    let reason = refused(InitiatorConfig::new(uri)).await;
    assert!(matches!(reason, Reason::Connect(_)), "{reason}");
}

#[tokio::test]
async fn several_sessions_and_units_work_at_once() {
    let target = Running::start(config(), &[ram(), ram(), ram()]);
    let mut running = Vec::new();
    for lun in 0..3 {
        let device = connect(target.uri(lun)).await.into_device();
        running.push(tokio::spawn(async move { exercise(&device, 15, u64::from(lun)).await }));
    }
    for task in running {
        task.await.unwrap();
    }
    target.stop().await;
}

#[tokio::test]
async fn small_requests_have_a_session_of_their_own_beside_a_stream() {
    let target = Running::start(config(), &[ram()]);
    let config = InitiatorConfig { sessions: 2, ..InitiatorConfig::new(target.uri(0)) };
    let device = Device::new(Arc::new(Remote::connect(config, Pool::new()).await.unwrap()));
    let written = async || {
        let report = target.handle.report().await.unwrap();
        let mut sessions = report.sessions;
        sessions.sort_by_key(|session| session.id);
        sessions.iter().map(|session| session.commands.written_bytes).collect::<Vec<_>>()
    };
    // The second session is used as soon as it is there, while small requests come.
    let both = async {
        while written().await.get(1).is_none_or(|bytes| *bytes == 0) {
            completions::read(&device, 0, 4096).await.unwrap();
            let data = Buf::copy_from(&[0; 65_536]).into();
            completions::write(&device, 0, data, false).await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(10), both).await.expect("both sessions");
    let before = written().await;
    let stream = load(device.clone(), Op::Write, Duration::from_millis(300));
    let small = async {
        for _ in 0..100 {
            completions::read(&device, 0, 4096).await.unwrap();
        }
    };
    tokio::join!(stream, small);
    let [first, second] = written().await[..] else { panic!("two sessions") };
    assert_eq!(first, before[0], "the stream left the first session to small requests");
    assert!(second > before[1]);
    target.stop().await;
}
