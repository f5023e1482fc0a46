//! An agent whose segments are on a disk: a file here, a block device in tests/agent_disk.sh.

use std::{fs::File, path::Path};

use netraid_agent::{Agent, AgentConfig, AgentError, Medium, calibrate};
use netraid_cluster::agent::Operation;
use netraid_control::{
    derived::Terms,
    token::Token,
    units::{Generation, Rate},
};
use netraid_engine::completions;

use crate::{
    support::{MIB, Mediator, Running, config, label},
    tokens::{got, open, put, raise, token},
};

const LEN: u64 = 256 * MIB;

fn on_disk(directory: &Path, mediators: &[&Mediator]) -> AgentConfig {
    let path = directory.join("disk");
    if !path.exists() {
        File::create(&path).unwrap().set_len(LEN).unwrap();
    }
    AgentConfig {
        medium: Medium::Disk { path, force: false },
        state: Some(directory.join("state")),
        space_bytes: None,
        ..config(directory, mediators)
    }
}

#[tokio::test]
async fn segments_on_a_disk_are_there_after_a_restart_and_gone_when_removed() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let start = || Running::start(on_disk(directory.path(), &[&mediator]));
    let agent = start();
    let space = agent.ready.capacity.space_bytes;
    assert!((LEN / 100 * 80..LEN / 100 * 91).contains(&space), "{space}");
    let client = mediator.at(&agent.ready);
    let segment = client.segment(10 * MIB).await;
    raise(&client, segment, 1).await;
    let old = token(&mediator, agent.ready.agent, segment, 1);
    let device = open(&agent.ready, &mediator, old).await.unwrap();
    assert_eq!((device.info().capacity, got(&device).await), (10 * MIB, Some(0)));
    assert!(put(&device, 0xa1).await);
    drop((device, agent));

    let agent = start();
    let client = mediator.at(&agent.ready);
    let device = open(&agent.ready, &mediator, old).await.unwrap();
    assert_eq!(got(&device).await, Some(0xa1));
    let moved = Operation::SetLabel { segment, label: label("/elsewhere") };
    client.one(moved).await.unwrap();
    let page = client.segments().await;
    assert_eq!(page.entries.len(), 1);
    drop(device);
    client.one(Operation::RemoveSegment { segment }).await.unwrap();
    assert!(client.segments().await.entries.is_empty());

    // The next one has the same place on the disk, and nothing of what was there.
    let next = client.segment(10 * MIB).await;
    raise(&client, next, 1).await;
    let new =
        Token { segment: next, terms: Terms { generation: Generation(1), ..old.terms }, ..old };
    let device = open(&agent.ready, &mediator, new).await.unwrap();
    for at in 0..10 {
        let bytes = completions::read(&device, at * MIB, MIB).await.unwrap().to_contiguous();
        assert!(bytes.iter().all(|byte| *byte == 0), "MiB {at}");
    }
    let raw = std::fs::read(directory.path().join("disk")).unwrap();
    let text = String::from_utf8_lossy(&raw[..8 << 20]).into_owned();
    assert!(text.contains(&next.to_string()), "its label is on the disk");
}

#[tokio::test]
async fn a_disk_and_a_state_that_do_not_go_together_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let agent = Running::start(on_disk(directory.path(), &[&mediator]));
    mediator.at(&agent.ready).segment(10 * MIB).await;
    let said = |config| async { Agent::start(config).await.unwrap_err().to_string() };
    let elsewhere = |state: &str| AgentConfig {
        state: Some(directory.path().join(state)),
        ..on_disk(directory.path(), &[])
    };
    assert!(said(elsewhere("other")).await.contains("in use"));
    drop(agent);
    assert!(
        said(elsewhere("other")).await.contains("is not the one that the state directory is of")
    );
    let none = AgentConfig { state: None, ..on_disk(directory.path(), &[]) };
    assert!(matches!(Agent::start(none).await, Err(AgentError::NoState)));
    let moved = AgentConfig {
        medium: Medium::Directory(directory.path().to_owned()),
        ..on_disk(directory.path(), &[])
    };
    assert!(matches!(Agent::start(moved).await, Err(AgentError::OtherMedium(_))));
    std::fs::rename(directory.path().join("disk"), directory.path().join("kept")).unwrap();
    assert!(said(on_disk(directory.path(), &[])).await.contains("never formatted"));
    std::fs::rename(directory.path().join("kept"), directory.path().join("disk")).unwrap();
    let agent = Running::start(on_disk(directory.path(), &[&mediator]));
    assert_eq!(mediator.at(&agent.ready).segments().await.entries.len(), 1);
}

#[tokio::test]
async fn an_agent_that_cannot_listen_formats_no_disk() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let usual = on_disk(directory.path(), &[]);
    let disk = directory.path().join("disk");
    for config in [
        AgentConfig { portal: address, ..usual.clone() },
        AgentConfig { listen: address, ..usual.clone() },
    ] {
        let error = Agent::start(config).await.unwrap_err().to_string();
        assert!(error.contains(&address.to_string()), "{error}");
        assert!(std::fs::read(&disk).unwrap().iter().all(|byte| *byte == 0));
    }
}

#[tokio::test]
async fn measuring_a_disk_leaves_segments_as_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let start = || Running::start(on_disk(directory.path(), &[&mediator]));
    let agent = start();
    let client = mediator.at(&agent.ready);
    let segment = client.segment(10 * MIB).await;
    raise(&client, segment, 1).await;
    let token = token(&mediator, agent.ready.agent, segment, 1);
    let device = open(&agent.ready, &mediator, token).await.unwrap();
    assert!(put(&device, 0xa1).await);
    drop((device, agent));
    let (disk, state) = (directory.path().join("disk"), directory.path().join("state"));
    let measured = calibrate::measure_disk(&disk, &state, None).await.unwrap();
    assert!(measured.capacity().0 > Rate::ZERO);
    let agent = start();
    let client = mediator.at(&agent.ready);
    let device = open(&agent.ready, &mediator, token).await.unwrap();
    assert_eq!(got(&device).await, Some(0xa1));
    // What was measured on is nobody's data.
    drop(device);
    let next = client.segment(100 * MIB).await;
    raise(&client, next, 1).await;
    let token = Token { segment: next, ..token };
    let device = open(&agent.ready, &mediator, token).await.unwrap();
    for at in 0..100 {
        let bytes = completions::read(&device, at * MIB, MIB).await.unwrap().to_contiguous();
        assert!(bytes.iter().all(|byte| *byte == 0), "MiB {at}");
    }
}
