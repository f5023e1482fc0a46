//! Segments, let in to by tokens.

mod agent;
mod fences;
mod paces;
mod rights;

use std::time::Duration;

use netraid_block::{Buf, Device};
use netraid_control::{
    derived::Terms,
    token::{Credentials, Initiator, Token},
    units::{AgentId, Generation, MediatorId},
};
use netraid_engine::{
    completions,
    initiator::{InitiatorConfig, Reason, discover},
    target::TargetConfig,
};

use netraid_iscsi_proto::chap;

use self::agent::{Agent, Login, MEDIATOR, NOW, PLAN, ranges, segment};
use crate::iscsi::common::{NAME, SIZE, exercise, one_thread, ram, refused};

const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;

async fn write(device: &Device, offset: u64, byte: u8) -> Result<(), netraid_block::IoError> {
    let data = Buf::copy_from(&[byte; 512]).into();
    completions::write(device, offset, data, false).await
}

async fn byte(device: &Device, offset: u64) -> u8 {
    completions::read(device, offset, 512).await.unwrap().to_contiguous()[0]
}

#[tokio::test]
async fn a_token_opens_its_segment_and_no_other() {
    let agent = Agent::new(&[ram(), ram()]);
    let target = agent.start();
    let one = agent.connect(&target, agent.token(1)).await;
    let two = agent.connect(&target, agent.token(2)).await;
    exercise(&one, 30, 1).await;
    write(&one, 4096, 1).await.unwrap();
    write(&two, 4096, 2).await.unwrap();
    assert_eq!((byte(&one, 4096).await, byte(&two, 4096).await), (1, 2));
    // Opened once for all its sessions, which see the same bytes.
    let again = agent.connect(&target, agent.token(1)).await;
    assert_eq!((byte(&again, 4096).await, agent.opened(1), agent.opened(2)), (1, 1, 1));
    let report = target.handle.report().await.unwrap();
    let of = |number| {
        let grants = report.sessions.iter().filter_map(|session| session.grant);
        let grants: Vec<_> = grants.filter(|grant| grant.segment == segment(number)).collect();
        assert!(grants.iter().all(|grant| (grant.mediator, grant.plan) == (MEDIATOR, PLAN)));
        grants.len()
    };
    assert_eq!((of(1), of(2)), (2, 1));
    target.stop().await;
}

#[tokio::test]
async fn every_refusal_is_the_same_for_who_has_proven_nothing() {
    let agent = Agent::new(&[ram(), ram(), ram()]);
    agent.change(2, |segment| segment.fails = true);
    agent.change(3, |segment| segment.mediator = MediatorId([9; 16]));
    let target = agent.start();
    let good = agent.issue(agent.token(1));
    let token = agent.token(1);
    let with = |terms: Terms| agent.issue(Token { terms, ..token });
    let terms = token.terms;
    let mut changed = good.name.clone();
    changed.replace_range(20..21, if &good.name[20..21] == "A" { "B" } else { "A" });
    let of = |name: &str| Credentials { name: name.to_owned(), secret: good.secret.clone() };
    agent.sleep(1000);
    let expired = with(Terms { expires: NOW.after_ms(500), ..terms });
    let early = agent.issue(Token { not_before: NOW.after_ms(30_000), ..token });
    let long = "A".repeat(4000);
    let all = [
        ("changed", of(&changed), None),
        ("rubbish", of("?"), None),
        ("long", of(&long), None),
        ("empty", of(""), None),
        ("expired", expired, Some("its token ended 0.5 s ago")),
        ("early", early, Some("its token begins in 29.0 s")),
        ("fenced", with(Terms { generation: Generation(0), ..terms }), Some("its plan is fenced")),
        ("ahead", with(Terms { generation: Generation(2), ..terms }), Some("its plan is fenced")),
        (
            "too large",
            with(Terms { ranges: ranges(&[(0, SIZE + 512)]), ..terms }),
            Some("does not fit the segment"),
        ),
        ("absent", agent.issue(Token { segment: segment(8), ..token }), Some("no such segment")),
        ("not to be opened", agent.issue(agent.token(2)), None),
        ("of another mediator", agent.issue(agent.token(3)), Some("no such segment")),
        ("for another agent", agent.issue(Token { agent: AgentId([8; 16]), ..token }), None),
    ];
    let wrong = Login { secret: "wrong", ..Login::with(&good) };
    let expected = wrong.attempt(target.address).await.unwrap();
    assert_eq!((expected.status, expected.raw.is_none()), (0x0201, true));
    for (what, credentials, told) in &all {
        // Whoever knows the secret of the token is told why, where the token is for this agent.
        let said = Login::with(credentials).attempt(target.address).await.unwrap().said;
        match (told, said.split_last()) {
            (Some(told), Some(((head, text), before))) => {
                assert!(text.contains(told), "{what}: {text}");
                let last = &expected.said[before.len()];
                // Class and detail of the status are the same.
                assert_eq!(
                    (before, head[36..38].to_vec()),
                    (&expected.said[..before.len()], last.0[36..38].to_vec())
                );
            }
            _ => assert!(said == expected.said, "{what}: {said:?}"),
        }
        let wrong = Login { secret: "wrong", ..Login::with(credentials) };
        let said = wrong.attempt(target.address).await.unwrap().said;
        assert!(said == expected.said, "{what}, without the secret: {said:?}");
    }
    for (what, login) in [
        (
            "other initiator",
            Login { initiator: "iqn.2026-11.org.example:thief", ..Login::with(&good) },
        ),
        ("no proof", Login { proof: Some("0x"), ..Login::with(&good) }),
        ("other proof", Login { proof: Some("0x0123"), ..Login::with(&good) }),
    ] {
        let said = login.attempt(target.address).await.unwrap().said;
        assert!(said == expected.said, "{what}: {said:?}");
    }
    // Each in the audit log, but for what could not be opened.
    assert_eq!(agent.refused.lock().unwrap().len(), 2 * all.len() + 3);
    assert_eq!((agent.opened(1), agent.opened(2)), (0, 1));
    let none = refused(InitiatorConfig { secret: None, ..InitiatorConfig::new(target.uri(0)) });
    assert!(matches!(none.await, Reason::Login(_)));
    assert_eq!(Login::with(&good).attempt(target.address).await.unwrap().status, 0);
    target.stop().await;
}

#[tokio::test]
async fn a_login_that_may_come_in_hears_that_descriptors_have_run_out() {
    let agent = Agent::new(&[ram()]);
    agent.change(1, |segment| segment.lacks_descriptors = true);
    let target = agent.start();
    let good = agent.issue(agent.token(1));
    let attempt = Login::with(&good).attempt(target.address).await.unwrap();
    assert_eq!((attempt.status, attempt.raw.is_none()), (0x0302, true));
    // Only who has proven that it may come in.
    let wrong = Login { secret: "wrong", ..Login::with(&good) };
    assert_eq!(wrong.attempt(target.address).await.unwrap().status, 0x0201);
    agent.change(1, |segment| segment.lacks_descriptors = false);
    assert_eq!(Login::with(&good).attempt(target.address).await.unwrap().status, 0);
    target.stop().await;
}

#[tokio::test]
async fn a_session_has_lun_0_and_no_other() {
    let agent = Agent::new(&[ram(), ram()]);
    let target = agent.start();
    let _other = agent.connect(&target, agent.token(2)).await;
    let mut raw = agent.raw(&target, agent.token(1), 1).await;
    raw.command(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 256).await;
    let (_, data) = raw.receive_with().await.unwrap();
    assert_eq!(data, [[0, 0, 0, 8, 0, 0, 0, 0], [0; 8]].concat());
    for (lun, status) in [(0, GOOD), (1, CHECK_CONDITION), (2, CHECK_CONDITION)] {
        raw.lun = lun;
        raw.command(&[0; 6], 0).await;
        assert_eq!(raw.receive().await.unwrap().0[3], status, "LUN {lun}");
    }
    target.stop().await;
}

#[tokio::test]
async fn discovery_takes_a_token_and_names_the_portal_that_was_used() {
    let agent = Agent::new(&[ram()]);
    let listen = [1, 2].map(|host| ([127, 0, 0, host], 0).into()).to_vec();
    let target = agent.start_with(TargetConfig { listen, ..one_thread() });
    let address = target.addresses[1];
    let found = async |credentials| {
        let (host, limit) = (address.ip().to_string(), Duration::from_secs(5));
        discover(&host, address.port(), credentials, limit).await
    };
    // The name that discovery goes by.
    let initiator = Initiator::named("iqn.2026-01.io.netraid:initiator");
    let credentials = |token| {
        let Credentials { name, secret } = agent.issue(token);
        Some(chap::Credentials { user: name, secret: chap::Secret::new(secret.expose()).unwrap() })
    };
    let token = Token { initiator, ..agent.token(1) };
    let targets = found(credentials(token)).await.unwrap();
    assert_eq!(targets.len(), 1);
    assert_eq!(targets[0].name, NAME);
    assert_eq!(targets[0].addresses, [format!("{address},1")]);
    for wrong in [None, credentials(agent.token(1))] {
        let reason = found(wrong).await.unwrap_err().into_reason();
        assert!(matches!(reason, Reason::Login(_)), "{reason}");
    }
    assert_eq!(agent.opened(1), 0, "nothing is opened for who only asks");
    target.stop().await;
}
