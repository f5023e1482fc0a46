//! Sanitize operations go on without the command, the session and the target that began them.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use netraid_block::{BlockDevice, Device, DeviceInfo, Op, Request};
use netraid_engine::target::{
    Access, Lun, Pacing, Policy, Rate, Sanitizing, TargetConfig, Verdict,
};
use netraid_iscsi_proto::pdu::{Bhs, TaskFunction};

use crate::iscsi::{
    common::{Running, config, ram},
    raw::Raw,
};

const GOOD: u8 = 0x00;
const CHECK_CONDITION: u8 = 0x02;
const TEST_UNIT_READY: [u8; 6] = [0; 6];
/// BLOCK ERASE, with and without IMMED.
const ERASE: [u8; 10] = [0x48, 0x02, 0, 0, 0, 0, 0, 0, 0, 0];
const ERASE_IMMEDIATELY: [u8; 10] = [0x48, 0x82, 0, 0, 0, 0, 0, 0, 0, 0];

/// A device that does one kind of requests only when the test lets it.
pub(crate) struct Slow {
    inner: Device,
    op: Op,
    held: Mutex<Option<Vec<Request>>>,
    pub(crate) arrived: tokio::sync::Notify,
}

impl Slow {
    fn new(inner: Device) -> Arc<Self> {
        Self::holding(inner, Op::WriteZeroes)
    }

    pub(crate) fn holding(inner: Device, op: Op) -> Arc<Self> {
        let held = Mutex::new(Some(Vec::new()));
        Arc::new(Self { inner, op, held, arrived: tokio::sync::Notify::new() })
    }

    /// Number of requests that are held.
    pub(crate) fn holds(&self) -> usize {
        self.held.lock().unwrap().as_ref().map_or(0, Vec::len)
    }

    pub(crate) fn release(&self) {
        let held = self.held.lock().unwrap().take().unwrap_or_default();
        held.into_iter().for_each(|request| self.inner.submit(request));
    }
}

impl BlockDevice for Slow {
    fn info(&self) -> DeviceInfo {
        self.inner.info().clone()
    }

    fn submit(&self, request: Request) {
        match &mut *self.held.lock().unwrap() {
            Some(held) if request.op == self.op => {
                held.push(request);
                self.arrived.notify_one();
            }
            Some(_) | None => self.inner.submit(request),
        }
    }
}

fn lun(device: &Arc<Slow>, sanitizing: Sanitizing) -> Lun {
    Lun { sanitizing: Some(sanitizing), ..Device::new(device.clone()).into() }
}

async fn status(raw: &mut Raw, cdb: &[u8]) -> u8 {
    raw.command(cdb, 0).await;
    let Bhs(bytes) = raw.receive().await.unwrap();
    bytes[3]
}

/// Waits until the logical unit is ready; it has to be, as nothing holds it up any more.
async fn ready(raw: &mut Raw) {
    let until = async {
        while status(raw, &TEST_UNIT_READY).await != GOOD {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), until).await.expect("it never gets ready");
}

#[tokio::test]
async fn it_outlives_the_session_that_asked_for_it() {
    let slow = Slow::new(ram());
    let target = Running::start_luns(config(), vec![lun(&slow, Sanitizing::volatile())]);
    let mut one = Raw::log_in(target.address, 1).await.unwrap().unwrap();
    one.take_attention().await;
    assert_eq!(status(&mut one, &ERASE_IMMEDIATELY).await, GOOD);
    slow.arrived.notified().await;
    drop(one);
    let mut two = Raw::log_in(target.address, 2).await.unwrap().unwrap();
    two.take_attention().await;
    assert_eq!(status(&mut two, &TEST_UNIT_READY).await, CHECK_CONDITION);
    slow.release();
    ready(&mut two).await;
    target.stop().await;
}

#[tokio::test]
async fn a_command_that_waits_for_it_can_be_aborted_and_it_goes_on() {
    for function in [TaskFunction::AbortTask, TaskFunction::LogicalUnitReset] {
        let slow = Slow::new(ram());
        let target = Running::start_luns(config(), vec![lun(&slow, Sanitizing::volatile())]);
        let mut raw = Raw::log_in(target.address, 1).await.unwrap().unwrap();
        raw.take_attention().await;
        let itt = raw.command(&ERASE, 0).await;
        slow.arrived.notified().await;
        raw.manage(function, itt).await;
        // Answered although the device still erases.
        raw.managed().await;
        raw.take_attention().await;
        assert_eq!(status(&mut raw, &TEST_UNIT_READY).await, CHECK_CONDITION);
        slow.release();
        ready(&mut raw).await;
        target.stop().await;
    }
}

/// A bug.
#[derive(Debug)]
struct Panics;

impl Policy for Panics {
    fn judge(&mut self, access: &Access<'_>) -> Verdict {
        panic!("as the test wants: {:?}", access.op)
    }
}

#[tokio::test]
async fn a_session_that_ends_by_a_bug_does_not_wait_for_it() {
    let slow = Slow::new(ram());
    let buggy = Lun { policy: Some(Box::new(Panics)), ..ram().into() };
    let luns = vec![lun(&slow, Sanitizing::volatile()), buggy];
    let target = Running::start_luns(config(), luns);
    let mut raw = Raw::log_in(target.address, 1).await.unwrap().unwrap();
    raw.take_attention().await;
    raw.lun = 1;
    raw.take_attention().await;
    raw.lun = 0;
    raw.command(&ERASE, 0).await;
    slow.arrived.notified().await;
    raw.lun = 1;
    // READ (10) of a block.
    raw.command(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], 512).await;
    assert!(raw.receive().await.is_err(), "the connection is closed");
    let gone = async {
        while !target.handle.report().await.unwrap().sessions.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), gone).await.expect("the session stays");
    slow.release();
    let mut other = Raw::log_in(target.address, 2).await.unwrap().unwrap();
    other.take_attention().await;
    ready(&mut other).await;
    target.stop().await;
}

#[tokio::test]
async fn an_order_whose_policy_fails_by_a_bug_leaves_its_lun_as_it_was() {
    let sanitizing = Some(Sanitizing::volatile());
    let buggy = Lun { sanitizing, policy: Some(Box::new(Panics)), ..ram().into() };
    let target = Running::start_luns(config(), vec![buggy]);
    let mut raw = Raw::log_in(target.address, 1).await.unwrap().unwrap();
    raw.take_attention().await;
    raw.command(&ERASE, 0).await;
    assert!(raw.receive().await.is_err(), "the connection is closed");
    target.handle.set_policy(0, None).await.unwrap();
    let mut other = Raw::log_in(target.address, 2).await.unwrap().unwrap();
    other.take_attention().await;
    ready(&mut other).await;
    target.stop().await;
}

#[tokio::test]
async fn a_target_that_was_killed_goes_on_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let marker: PathBuf = dir.path().join("disk.sanitize");
    let sanitizing = || Sanitizing::kept_in(marker.clone()).unwrap();
    let memory = ram();
    let slow = Slow::new(memory.clone());
    let target = Running::start_luns(config(), vec![lun(&slow, sanitizing())]);
    let mut raw = Raw::log_in(target.address, 1).await.unwrap().unwrap();
    raw.take_attention().await;
    assert_eq!(status(&mut raw, &ERASE_IMMEDIATELY).await, GOOD);
    assert!(marker.exists(), "accepted, so it is found again");
    slow.arrived.notified().await;
    target.kill().await;
    let slow = Slow::new(memory);
    let target = Running::start_luns(config(), vec![lun(&slow, sanitizing())]);
    slow.arrived.notified().await;
    let mut raw = Raw::log_in(target.address, 1).await.unwrap().unwrap();
    raw.take_attention().await;
    assert_eq!(status(&mut raw, &TEST_UNIT_READY).await, CHECK_CONDITION);
    slow.release();
    ready(&mut raw).await;
    assert!(!marker.exists(), "it is done");
    target.stop().await;
}

/// A command may wait for its grant while its LUN goes, and another one gets its number.
#[tokio::test]
async fn an_order_for_a_lun_that_has_gone_does_nothing_to_the_next_of_its_number() {
    const READ_10: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    let busy = Slow::holding(ram(), Op::Read);
    let mut pacing = Pacing::new(Rate(1 << 30), Rate(1 << 30));
    pacing.in_flight_max = 1;
    let config = TargetConfig { pacing: Some(pacing), ..config() };
    let erasable = || Lun { sanitizing: Some(Sanitizing::volatile()), ..ram().into() };
    let target = Running::start_luns(config, vec![erasable(), Device::new(busy.clone()).into()]);
    let mut one = Raw::log_in(target.address, 1).await.unwrap().unwrap();
    let mut two = Raw::log_in(target.address, 2).await.unwrap().unwrap();
    one.take_attention().await;
    two.lun = 1;
    two.take_attention().await;
    two.command(&READ_10, 512).await;
    busy.arrived.notified().await;
    one.command(&ERASE, 0).await;
    assert_eq!(status(&mut one, &TEST_UNIT_READY).await, CHECK_CONDITION, "it is ordered");
    target.handle.remove_lun(0, true).await.unwrap();
    target.handle.add_lun(Some(0), erasable()).await.unwrap();
    busy.release();
    let Bhs(refused) = one.receive().await.unwrap();
    assert_eq!(refused[3], CHECK_CONDITION);
    // Unit attentions of the LUN that came.
    while status(&mut one, &TEST_UNIT_READY).await != GOOD {}
    assert_eq!(status(&mut one, &ERASE).await, GOOD);
    assert_eq!(status(&mut one, &TEST_UNIT_READY).await, GOOD);
    target.stop().await;
}
