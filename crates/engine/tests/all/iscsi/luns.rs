//! LUNs that come, change and go while the target serves, and policies in front of them.

use std::{
    num::NonZeroU64,
    sync::{Arc, Mutex},
    time::Duration,
};

use netraid_block::{BlockDevice, Buf, Device, DeviceInfo, ErrorKind, Op, Pool, Request};
use netraid_engine::{
    backings, completions,
    initiator::{InitiatorConfig, Reason, Remote},
    target::{Access, CommandError, Lun, Moment, Policy, Verdict},
};

use crate::iscsi::common::{Running, SIZE, config, connect, ram, refused};

/// Keeps what it is asked until it is let go.
#[derive(Clone)]
struct Held {
    info: DeviceInfo,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl BlockDevice for Held {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn submit(&self, request: Request) {
        self.requests.lock().unwrap().push(request);
    }
}

impl Held {
    fn new() -> Self {
        Self { info: ram().info().clone(), requests: Arc::default() }
    }

    fn device(&self) -> Device {
        Device::new(Arc::new(self.clone()))
    }

    /// Waits until a request is here.
    async fn has_one(&self) {
        while self.requests.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Ends all requests well.
    fn let_go(&self) {
        for request in self.requests.lock().unwrap().drain(..) {
            let len = usize::try_from(request.len).unwrap();
            let data = if request.op == Op::Read { vec![7; len] } else { Vec::new() };
            request.completion.finish(Ok(Buf::copy_from(&data).into()));
        }
    }
}

async fn kind(device: &Device, offset: u64) -> Result<(), ErrorKind> {
    let read = completions::read(device, offset, 4096).await;
    read.map(drop).map_err(|error| error.kind())
}

async fn write(device: &Device, offset: u64, len: usize) -> Result<(), ErrorKind> {
    let data = Buf::copy_from(&vec![1; len]).into();
    completions::write(device, offset, data, false).await.map_err(|error| error.kind())
}

#[tokio::test]
async fn a_lun_that_is_added_serves_and_one_that_is_removed_does_not() {
    let target = Running::start(config(), &[ram()]);
    assert!(matches!(refused(InitiatorConfig::new(target.uri(3))).await, Reason::NoLun));
    assert_eq!(target.handle.add_lun(Some(3), ram().into()).await, Ok(3));
    assert_eq!(target.handle.add_lun(None, ram().into()).await, Ok(1), "the lowest free one");
    let again = target.handle.add_lun(Some(3), ram().into()).await;
    assert_eq!(again, Err(CommandError::Taken { number: 3 }));
    let remote = connect(target.uri(3)).await;
    let device = remote.clone().into_device();
    kind(&device, 0).await.unwrap();
    let in_use = target.handle.remove_lun(3, false).await;
    assert!(matches!(&in_use, Err(CommandError::InUse { count: 1, .. })), "{in_use:?}");
    target.handle.remove_lun(3, true).await.unwrap();
    assert_eq!(kind(&device, 0).await, Err(ErrorKind::Unreachable));
    let gone = target.handle.remove_lun(3, true).await;
    assert!(matches!(gone, Err(CommandError::NoLun { number: 3, .. })), "{gone:?}");
    assert!(matches!(refused(InitiatorConfig::new(target.uri(3))).await, Reason::NoLun));
    remote.close().await;
    target.stop().await;
}

#[tokio::test]
async fn a_lun_is_not_removed_under_a_registered_session_that_has_come_back() {
    let target = Running::start(config(), &[ram(), ram()]);
    let only_asks = connect(target.uri(0)).await;
    let remote = connect(target.uri(1)).await;
    remote.register(NonZeroU64::MIN).await.unwrap();
    let dropped = target.handle.drop_sessions(None).await.unwrap();
    assert_eq!(dropped, 2);
    let sessions = async || target.handle.report().await.unwrap().sessions.len();
    while sessions().await < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    let in_use = target.handle.remove_lun(1, false).await;
    assert!(matches!(&in_use, Err(CommandError::InUse { count: 1, .. })), "{in_use:?}");
    target.handle.remove_lun(0, false).await.unwrap();
    only_asks.close().await;
    remote.close().await;
    target.stop().await;
}

#[tokio::test]
async fn a_removal_waits_for_the_commands_at_the_device() {
    let held = Held::new();
    let target = Running::start(config(), &[ram(), held.device()]);
    let remote = connect(target.uri(1)).await;
    let device = remote.clone().into_device();
    let read = tokio::spawn(async move { kind(&device, 0).await });
    held.has_one().await;
    let handle = target.handle.clone();
    let removal = tokio::spawn(async move { handle.remove_lun(1, true).await });
    while target.handle.report().await.unwrap().luns[1].state != "leaving" {
        tokio::task::yield_now().await;
    }
    assert!(!removal.is_finished(), "removed under a command");
    let taken = target.handle.add_lun(Some(1), ram().into()).await;
    assert_eq!(taken, Err(CommandError::Taken { number: 1 }));
    let twice = target.handle.remove_lun(1, true).await;
    assert_eq!(twice, Err(CommandError::Changing { number: 1 }));
    held.let_go();
    removal.await.unwrap().unwrap();
    assert_eq!(read.await.unwrap(), Ok(()), "what was under way ends as it would have");
    assert_eq!(target.handle.add_lun(Some(1), ram().into()).await, Ok(1));
    remote.close().await;
    target.stop().await;
}

#[tokio::test]
async fn a_held_lun_is_busy_until_its_device_is_changed() {
    let held = Held::new();
    let target = Running::start(config(), &[held.device()]);
    let remote = connect(target.uri(0)).await;
    let device = remote.clone().into_device();
    let (first, second) = (device.clone(), device.clone());
    let first = tokio::spawn(async move { kind(&first, 0).await });
    held.has_one().await;
    let handle = target.handle.clone();
    let holding = tokio::spawn(async move { handle.hold_lun(0).await });
    while target.handle.report().await.unwrap().luns[0].state != "held" {
        tokio::task::yield_now().await;
    }
    held.let_go();
    holding.await.unwrap().unwrap();
    assert_eq!(first.await.unwrap(), Ok(()));
    assert_eq!(target.handle.hold_lun(0).await, Err(CommandError::Changing { number: 0 }));
    // Our initiator tries again what is busy: this ends once the LUN serves.
    let second = tokio::spawn(async move { kind(&second, 0).await });
    while target.handle.report().await.unwrap().luns[0].commands.busy == 0 {
        tokio::task::yield_now().await;
    }
    assert!(held.requests.lock().unwrap().is_empty(), "a request reached a held device");
    let other = backings::ram(SIZE, 4096, Pool::new()).unwrap();
    let blocks = target.handle.change_lun(0, other).await;
    assert_eq!(blocks, Err(CommandError::BlockLen { number: 0, old: 512, new: 4096 }));
    target.handle.change_lun(0, ram()).await.unwrap();
    assert_eq!(second.await.unwrap(), Ok(()));
    assert_eq!(target.handle.report().await.unwrap().luns[0].state, "serving");
    remote.close().await;
    target.stop().await;
}

#[tokio::test]
async fn a_release_ends_a_hold_that_still_waits() {
    let held = Held::new();
    let target = Running::start(config(), &[held.device()]);
    let remote = connect(target.uri(0)).await;
    let device = remote.clone().into_device();
    let read = tokio::spawn(async move { kind(&device, 0).await });
    held.has_one().await;
    let handle = target.handle.clone();
    let holding = tokio::spawn(async move { handle.hold_lun(0).await });
    while target.handle.report().await.unwrap().luns[0].state != "held" {
        tokio::task::yield_now().await;
    }
    target.handle.release_lun(0).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(5), holding).await;
    let ended = ended.expect("it waits on").unwrap();
    assert_eq!(ended, Err(CommandError::Released { number: 0 }));
    assert_eq!(target.handle.report().await.unwrap().luns[0].state, "serving");
    held.let_go();
    assert_eq!(read.await.unwrap(), Ok(()));
    remote.close().await;
    target.stop().await;
}

#[tokio::test]
async fn a_larger_device_is_larger_for_the_next_session() {
    let target = Running::start(config(), &[ram()]);
    let larger = backings::ram(2 * SIZE, 512, Pool::new()).unwrap();
    target.handle.change_lun(0, larger).await.unwrap();
    let remote = connect(target.uri(0)).await;
    let device = remote.clone().into_device();
    assert_eq!(device.info().capacity, 2 * SIZE);
    kind(&device, 2 * SIZE - 4096).await.unwrap();
    remote.close().await;
    target.stop().await;
}

#[tokio::test]
async fn sessions_and_luns_count_what_they_did() {
    let target = Running::start(config(), &[ram(), ram()]);
    let remote = connect(target.uri(1)).await;
    let device = remote.clone().into_device();
    let before = target.handle.report().await.unwrap();
    kind(&device, 0).await.unwrap();
    write(&device, 4096, 8192).await.unwrap();
    completions::flush(&device).await.unwrap();
    completions::discard(&device, 0, 4096).await.unwrap();
    let after = target.handle.report().await.unwrap();
    let (lun, session) = (after.luns[1].commands, after.sessions[0].commands);
    assert_eq!((lun.reads, lun.read_bytes), (1, 4096));
    assert_eq!((lun.writes, lun.written_bytes), (1, 8192));
    assert_eq!((lun.flushes, lun.unmaps), (1, 1));
    assert_eq!(session.reads - before.sessions[0].commands.reads, 1);
    assert_eq!((session.writes, session.written_bytes), (1, 8192));
    assert_eq!((after.luns[1].sessions, after.luns[1].running), (1, 0));
    assert_eq!((after.luns[0].sessions, after.luns[0].commands.reads), (0, 0));
    remote.close().await;
    target.stop().await;
}

/// Moment, operation, first byte, number of bytes.
type Asked = Arc<Mutex<Vec<(Moment, Op, u64, u64)>>>;

/// Keeps one initiator from some bytes, and notes what it was asked.
#[derive(Debug)]
struct Fence {
    initiator: &'static str,
    range: std::ops::Range<u64>,
    asked: Asked,
}

impl Policy for Fence {
    fn judge(&mut self, access: &Access<'_>) -> Verdict {
        let Access { op, offset, len, moment, .. } = *access;
        self.asked.lock().unwrap().push((moment, op, offset, len));
        let meets = offset < self.range.end && self.range.start < offset + len;
        if access.initiator == self.initiator && meets { Verdict::Deny } else { Verdict::Allow }
    }
}

async fn connect_as(target: &Running, name: &str) -> Device {
    let config =
        InitiatorConfig { initiator_name: name.to_owned(), ..InitiatorConfig::new(target.uri(0)) };
    Arc::new(Remote::connect(config, Pool::new()).await.unwrap()).into_device()
}

#[tokio::test]
async fn a_policy_keeps_one_initiator_from_a_range() {
    let asked = Arc::default();
    let range = 65536..131_072;
    let fence = Fence { initiator: "iqn.2026-01.org.example:out", range, asked };
    let disk = ram();
    completions::write(&disk, 65536, Buf::copy_from(&[9; 4096]).into(), false).await.unwrap();
    let lun = Lun { policy: Some(Box::new(fence)), ..disk.clone().into() };
    let target = Running::start_luns(config(), vec![lun]);
    let out = connect_as(&target, "iqn.2026-01.org.example:out").await;
    let other = connect_as(&target, "iqn.2026-01.org.example:in").await;
    for offset in [65536 - 4096, 131_072] {
        assert_eq!(kind(&out, offset).await, Ok(()));
        assert_eq!(write(&out, offset, 4096).await, Ok(()));
    }
    for offset in [65536 - 2048, 65536, 131_072 - 512] {
        assert_eq!(kind(&out, offset).await, Err(ErrorKind::InvalidRequest), "read at {offset}");
        assert_eq!(write(&out, offset, 4096).await, Err(ErrorKind::InvalidRequest));
        // Also where the range comes with the data. A discard that is refused is no failure, and does nothing.
        completions::discard(&out, offset, 4096).await.unwrap();
        assert!(completions::write_zeroes(&out, offset, 4096).await.is_err());
    }
    let kept = completions::read(&disk, 65536, 4096).await.unwrap();
    assert!(kept.to_contiguous().iter().all(|byte| *byte == 9), "denied and done");
    assert_eq!(write(&other, 65536, 4096).await, Ok(()), "another initiator");
    target.handle.set_policy(0, None).await.unwrap();
    assert_eq!(write(&out, 65536, 4096).await, Ok(()), "without a policy");
    target.stop().await;
}

#[tokio::test]
async fn a_policy_is_asked_before_the_data_and_before_the_request() {
    let asked = Asked::default();
    let fence = Fence { initiator: "", range: 0..0, asked: asked.clone() };
    let target =
        Running::start_luns(config(), vec![Lun { policy: Some(Box::new(fence)), ..ram().into() }]);
    let device = connect_as(&target, "iqn.2026-01.org.example:in").await;
    asked.lock().unwrap().clear();
    // Longer than unsolicited data: the target asks for it.
    write(&device, 4096, 1 << 20).await.unwrap();
    kind(&device, 0).await.unwrap();
    let asked = asked.lock().unwrap().clone();
    let len = 1 << 20;
    assert_eq!(
        asked,
        [
            (Moment::BeforeData, Op::Write, 4096, len),
            (Moment::BeforeRequest, Op::Write, 4096, len),
            (Moment::BeforeRequest, Op::Read, 0, 4096),
        ]
    );
    target.stop().await;
}
