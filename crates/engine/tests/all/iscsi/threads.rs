//! What one thread of a target promises is kept by all of them: who was told that a device is theirs
//! sees nothing of others there.

use std::{
    num::NonZeroU64,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use netraid_block::{BlockDevice, Buf, Device, DeviceInfo, Op, Pool, Request};
use netraid_engine::{
    completions,
    initiator::{InitiatorConfig, Remote, ReservationType},
    target::TargetConfig,
};
use tokio::task::JoinSet;

use crate::iscsi::common::{Running, config, ram};

/// What an old holder writes.
const OLD: u8 = 7;

/// A device that notes what must not come.
struct Watched {
    inner: Device,
    /// Nothing must.
    closed: AtomicBool,
    /// Writes of [`OLD`] must not.
    fenced: AtomicBool,
    writes: AtomicU64,
    wrong: AtomicBool,
}

impl Watched {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: ram(),
            closed: AtomicBool::new(false),
            fenced: AtomicBool::new(false),
            writes: AtomicU64::new(0),
            wrong: AtomicBool::new(false),
        })
    }
}

impl BlockDevice for Watched {
    fn info(&self) -> DeviceInfo {
        self.inner.info().clone()
    }

    fn submit(&self, request: Request) {
        let is_out = request.op == Op::Write
            && self.fenced.load(SeqCst)
            && request.data.parts()[0][0] == OLD;
        if self.closed.load(SeqCst) || is_out {
            self.wrong.store(true, SeqCst);
        }
        self.writes.fetch_add(u64::from(request.op == Op::Write), SeqCst);
        self.inner.submit(request);
    }
}

fn threads() -> TargetConfig {
    TargetConfig { threads: 4, ..config() }
}

async fn initiator(target: &Running, name: &str, sessions: u8) -> Arc<Remote> {
    let mut config = InitiatorConfig::new(target.uri(0));
    config.initiator_name = format!("iqn.2026-01.org.example:{name}");
    config.sessions = sessions;
    Arc::new(Remote::connect(config, Pool::new()).await.unwrap())
}

/// Writes this byte again and again, a small and a large write at a time, until one fails.
async fn hammer(remote: Arc<Remote>, byte: u8) {
    let device = remote.into_device();
    loop {
        let small = Buf::copy_from(&[byte; 512]).into();
        let large = Buf::copy_from(&[byte; 65_536]).into();
        let both = tokio::join!(
            completions::write(&device, 0, small, false),
            completions::write(&device, 1 << 20, large, false)
        );
        if both.0.is_err() || both.1.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn nothing_reaches_a_device_that_is_held_from_any_thread() {
    let device = Watched::new();
    let target = Running::start(threads(), &[Device::new(device.clone())]);
    let mut load = JoinSet::new();
    let mut remotes = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let remote = initiator(&target, name, 2).await;
        load.spawn(hammer(remote.clone(), 1));
        remotes.push(remote);
    }
    for _ in 0..200 {
        let before = device.writes.load(SeqCst);
        target.handle.hold_lun(0).await.unwrap();
        device.closed.store(true, SeqCst);
        for _ in 0..3 {
            target.handle.report().await.unwrap();
        }
        device.closed.store(false, SeqCst);
        target.handle.release_lun(0).await.unwrap();
        while device.writes.load(SeqCst) == before {
            tokio::task::yield_now().await;
        }
    }
    assert!(!device.wrong.load(SeqCst), "a request came while the device was held");
    load.shutdown().await;
    for remote in remotes {
        remote.close().await;
    }
    let counts = target.handle.report().await.unwrap().luns[0].commands;
    assert!(counts.writes >= device.writes.load(SeqCst), "{counts:?}");
    target.stop().await;
}

#[tokio::test]
async fn nothing_of_who_was_preempted_comes_from_any_thread_once_that_is_answered() {
    let kind = ReservationType::WriteExclusiveAllRegistrants;
    let (key, victor_key) = (NonZeroU64::new(1).unwrap(), NonZeroU64::new(2).unwrap());
    for _ in 0..15 {
        let device = Watched::new();
        let target = Running::start(threads(), &[Device::new(device.clone())]);
        let victim = initiator(&target, "victim", 4).await;
        let victor = initiator(&target, "victor", 1).await;
        victim.register_and_ignore(key).await.unwrap();
        victim.reserve(key, kind).await.unwrap();
        victor.register(victor_key).await.unwrap();
        let mut load = JoinSet::new();
        (0..8).for_each(|_| drop(load.spawn(hammer(victim.clone(), OLD))));
        while device.writes.load(SeqCst) < 50 {
            tokio::task::yield_now().await;
        }
        victor.preempt(victor_key, key, kind, true).await.unwrap();
        device.fenced.store(true, SeqCst);
        // All of it ends, fenced.
        while load.join_next().await.is_some() {}
        assert!(victim.is_fenced());
        assert!(!device.wrong.load(SeqCst), "a write of the old holder came late");
        for remote in [victim, victor] {
            remote.close().await;
        }
        target.stop().await;
    }
}

#[tokio::test]
async fn sessions_are_spread_over_all_threads_and_their_counts_add_up() {
    let target = Running::start(threads(), &[ram()]);
    let mut remotes = Vec::new();
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        let remote = initiator(&target, name, 1).await;
        let data = Buf::copy_from(&[9; 4096]).into();
        completions::write(&remote.clone().into_device(), 0, data, false).await.unwrap();
        remotes.push(remote);
    }
    let report = target.handle.report().await.unwrap();
    assert_eq!(report.luns[0].commands.writes, 8);
    assert_eq!(report.luns[0].commands.written_bytes, 8 * 4096);
    let threads: std::collections::BTreeSet<_> =
        report.sessions.iter().map(|session| session.thread).collect();
    assert_eq!(threads.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
    for remote in remotes {
        remote.close().await;
    }
    target.kill().await;
}
