//! Who was preempted writes nothing any more, in whatever way its writes come to the device.

use std::{
    num::NonZeroU64,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use netraid_block::{Buf, Device, ErrorKind, IoError, Op, Pool, SgList, TargetUri};
use netraid_engine::{
    completions,
    initiator::{InitiatorConfig, Remote, ReservationType},
};
use netraid_iscsi_proto::pdu::Bhs;
use netraid_scsi::Identity;

use crate::iscsi::{
    common::{NAME, Running, Sticky, config, ram},
    meddler::Meddler,
    raw::Raw,
    sanitize::Slow,
};

/// For what surely comes.
const LIMIT: Duration = Duration::from_secs(10);
const WRITE_10: u8 = 0x2a;
const GOOD: u8 = 0x00;
const RESERVATION_CONFLICT: u8 = 0x18;
pub(crate) const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
pub(crate) const PREEMPT_AND_ABORT: u8 = 5;
const WRITE_EXCLUSIVE: u8 = 1;

/// PERSISTENT RESERVE OUT; its tag.
pub(crate) async fn reserve_out(
    raw: &mut Raw,
    action: u8,
    kind: u8,
    key: u64,
    action_key: u64,
) -> u32 {
    let mut list = [0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&action_key.to_be_bytes());
    raw.command_with(&[0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], 0, &list).await
}

/// The tag and the status of the next response.
async fn response(raw: &mut Raw) -> (u32, u8) {
    let Bhs(bytes) = raw.receive().await.unwrap();
    (u32::from_be_bytes(bytes[16..20].try_into().unwrap()), bytes[3])
}

/// EXTENDED COPY of eight blocks from LUN 0 to LUN 1; its tag.
async fn copy(raw: &mut Raw) -> u32 {
    let mut list = vec![0; 16];
    list[3] = 64;
    list[11] = 28;
    for lun in [0, 1] {
        let naa = 0x3 << 60 | Identity::for_lun(NAME, lun).naa;
        let mut descriptor = [0; 32];
        descriptor[..8].copy_from_slice(&[0xe4, 0, 0, 0, 1, 3, 0, 8]);
        descriptor[8..16].copy_from_slice(&naa.to_be_bytes());
        list.extend(descriptor);
    }
    list.extend([0x02, 0, 0, 0x18, 0, 0, 0, 1, 0, 0, 0, 8]);
    list.extend([0; 16]);
    let len = u8::try_from(list.len()).unwrap();
    raw.lun = 0;
    raw.command_with(&[0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, len, 0, 0], 0, &list).await
}

#[tokio::test]
async fn a_copy_of_another_lun_ends_before_its_nexus_counts_as_preempted() {
    let slow = Slow::holding(ram(), Op::Write);
    let luns = vec![ram().into(), Device::new(slow.clone()).into()];
    let target = Running::start_luns(config(), luns);
    let mut old = Raw::log_in(target.address, 1).await.unwrap().unwrap();
    let mut new = Raw::log_in(target.address, 2).await.unwrap().unwrap();
    for (raw, key) in [(&mut old, 1), (&mut new, 2)] {
        raw.take_attention().await;
        raw.lun = 1;
        raw.take_attention().await;
        reserve_out(raw, REGISTER, 0, 0, key).await;
        assert_eq!(response(raw).await.1, GOOD);
    }
    reserve_out(&mut old, RESERVE, WRITE_EXCLUSIVE, 1, 0).await;
    assert_eq!(response(&mut old).await.1, GOOD);
    copy(&mut old).await;
    slow.arrived.notified().await;
    let preempts = reserve_out(&mut new, PREEMPT_AND_ABORT, WRITE_EXCLUSIVE, 2, 1).await;
    // Whatever it waits for by mistake is over when commands come and go.
    for _ in 0..20 {
        let looks = new.command(&[0; 6], 0).await;
        assert_eq!(response(&mut new).await, (looks, GOOD), "preempted, and a write is under way");
    }
    slow.release();
    assert_eq!(response(&mut new).await, (preempts, GOOD));
    target.stop().await;
}

/// A read that the target keeps back until there is memory is a read like others.
#[tokio::test]
async fn a_read_that_waited_for_memory_is_kept_out_by_a_reservation_that_came_meanwhile() {
    const EXCLUSIVE_ACCESS: u8 = 3;
    const READ_10: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    let slow = Slow::holding(ram(), Op::Read);
    let mut config = config();
    // One command of a session at a time.
    config.limits.data_budget = 1;
    let target = Running::start(config, &[Device::new(slow.clone())]);
    let mut old = Raw::log_in(target.address, 1).await.unwrap().unwrap();
    let mut new = Raw::log_in(target.address, 2).await.unwrap().unwrap();
    old.take_attention().await;
    new.take_attention().await;
    let first = old.command(&READ_10, 512).await;
    slow.arrived.notified().await;
    let second = old.command(&READ_10, 512).await;
    let looks = old.command(&[0; 6], 0).await;
    assert_eq!(response(&mut old).await, (looks, GOOD), "what came before it has come");
    reserve_out(&mut new, REGISTER, 0, 0, 2).await;
    assert_eq!(response(&mut new).await.1, GOOD);
    reserve_out(&mut new, RESERVE, EXCLUSIVE_ACCESS, 2, 0).await;
    assert_eq!(response(&mut new).await.1, GOOD);
    slow.release();
    assert_eq!(response(&mut old).await, (first, GOOD), "it was at the device");
    assert_eq!(response(&mut old).await, (second, RESERVATION_CONFLICT));
    target.stop().await;
}

async fn initiator(target: &Running, name: &str, sessions: u8) -> Arc<Remote> {
    let mut config = InitiatorConfig::new(target.uri(0));
    config.initiator_name = format!("iqn.2026-01.org.example:{name}");
    config.sessions = sessions;
    Arc::new(Remote::connect(config, Pool::new()).await.unwrap())
}

async fn write(remote: &Arc<Remote>, byte: u8) -> Result<(), IoError> {
    let data: SgList = Buf::copy_from(&[byte; 512]).into();
    completions::write(&remote.clone().into_device(), 0, data, false).await
}

/// What another session takes while small requests come.
async fn write_long(remote: &Arc<Remote>, byte: u8) -> Result<(), IoError> {
    let data: SgList = Buf::copy_from(&[byte; 65_536]).into();
    completions::write(&remote.clone().into_device(), 0, data, false).await
}

async fn aborted_tasks(target: &Running) -> u64 {
    let counters = target.handle.report().await.unwrap().counters;
    counters.iter().find(|(name, _)| *name == "aborted_tasks").expect("it is counted").1
}

/// The whole of a take-over, by our initiator at our target: nothing that the old holder had under
/// way lands after the new one was told that it holds the disk.
#[tokio::test]
async fn a_take_over_is_answered_when_the_old_holder_cannot_write_any_more() {
    let (key, victor_key) = (NonZeroU64::new(0x1111).unwrap(), NonZeroU64::new(0x2222).unwrap());
    let kind = ReservationType::WriteExclusiveAllRegistrants;
    for sessions in [1, 3] {
        let sticky = Arc::new(Sticky::new(ram()));
        let target = Running::start(config(), &[Device::new(sticky.clone())]);
        let victim = initiator(&target, "victim", sessions).await;
        let victor = initiator(&target, "victor", 1).await;
        let witness = initiator(&target, "witness", 1).await;
        victim.register_and_ignore(key).await.unwrap();
        assert_eq!(victor.reservation_keys().await.unwrap().keys.len(), usize::from(sessions));
        victim.reserve(key, kind).await.unwrap();
        write(&victim, 1).await.unwrap();
        let refused = write(&victor, 9).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
        victor.register(victor_key).await.unwrap();

        sticky.stick();
        let late = tokio::spawn({
            let victim = victim.clone();
            async move { write(&victim, 2).await }
        });
        while sticky.keeps() == 0 {
            tokio::task::yield_now().await;
        }
        sticky.take_on();
        let take_over = tokio::spawn({
            let victor = victor.clone();
            async move { victor.preempt(victor_key, key, kind, true).await }
        });
        // The change itself is done when the keys are gone; its answer waits for the write.
        while witness.reservation_keys().await.unwrap().keys != [victor_key.get()] {}
        // The session of the old holder learns of it in its turn, and may answer until then.
        while aborted_tasks(&target).await == 0 {}
        assert!(!take_over.is_finished(), "a write of the old holder is at the device");
        sticky.go_on_with(0);
        take_over.await.unwrap().unwrap();
        write(&victor, 3).await.unwrap();
        // It is not answered. The disk is asked before its time is over, and tells why.
        let aborted = late.await.unwrap().unwrap_err();
        assert_eq!(aborted.kind(), ErrorKind::Fenced, "{aborted}");
        let fenced = write(&victim, 4).await.unwrap_err();
        assert_eq!(fenced.kind(), ErrorKind::Fenced, "{fenced}");
        assert!(victim.is_fenced() && !victor.is_fenced());
        let device = victor.clone().into_device();
        let data = completions::read(&device, 0, 512).await.unwrap();
        assert_eq!(data.to_contiguous()[0], 3);
        for remote in [victim, victor, witness] {
            remote.close().await;
        }
        target.stop().await;
    }
}

/// A disk with one session registered out of two: the other one is kept away until it is let in.
async fn half_registered(target: &Running, key: NonZeroU64) -> (Meddler, Arc<Remote>) {
    let portal = Meddler::start(target.address).await;
    portal.let_in(Some(1));
    let uri = format!("iscsi://{}/{NAME}/0", portal.address);
    let mut config = InitiatorConfig::new(TargetUri::parse(&uri).unwrap());
    (config.sessions, config.request_timeout) = (2, Duration::from_secs(1));
    let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
    remote.register_and_ignore(key).await.unwrap();
    assert_eq!(remote.reservation_keys().await.unwrap().keys, [key.get()]);
    (portal, remote)
}

#[tokio::test]
async fn a_session_that_was_late_for_the_registration_joins_and_serves() {
    let key = NonZeroU64::new(0x1111).unwrap();
    let target = Running::start(config(), &[ram()]);
    let (portal, remote) = half_registered(&target, key).await;
    remote.reserve(key, ReservationType::WriteExclusiveAllRegistrants).await.unwrap();
    write(&remote, 1).await.unwrap();
    portal.let_in(None);
    let joined = async {
        while remote.reservation_keys().await.unwrap().keys.len() < 2 {}
        // Small requests go to the first session, large ones to the other.
        while target.handle.report().await.unwrap().luns[0].sessions < 2 {
            write(&remote, 2).await.unwrap();
            write_long(&remote, 2).await.unwrap();
        }
    };
    tokio::time::timeout(LIMIT, joined).await.expect("the second session never serves");
    portal.cut(WRITE_10);
    write_long(&remote, 3).await.unwrap();
    assert!(!remote.is_fenced());
    remote.close().await;
    target.stop().await;
}

/// Who registers anew after it was preempted would be as if it never had been.
#[tokio::test]
async fn a_session_that_comes_after_a_preemption_does_not_undo_it() {
    let (key, victor_key) = (NonZeroU64::new(0x1111).unwrap(), NonZeroU64::new(0x2222).unwrap());
    let kind = ReservationType::WriteExclusiveAllRegistrants;
    let target = Running::start(config(), &[ram()]);
    let (portal, victim) = half_registered(&target, key).await;
    victim.reserve(key, kind).await.unwrap();
    let victor = initiator(&target, "victor", 1).await;
    victor.register(victor_key).await.unwrap();
    victor.preempt(victor_key, key, kind, true).await.unwrap();
    write(&victor, 2).await.unwrap();
    portal.let_in(None);
    let fenced = async {
        while !victim.is_fenced() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LIMIT, fenced).await.expect("the preemption is never heard of");
    let fenced = write(&victim, 1).await.unwrap_err();
    assert_eq!(fenced.kind(), ErrorKind::Fenced, "{fenced}");
    let data = completions::read(&victor.clone().into_device(), 0, 512).await.unwrap();
    assert_eq!(data.to_contiguous()[0], 2);
    for remote in [victim, victor] {
        remote.close().await;
    }
    target.stop().await;
}

/// Sessions that have no room for a moment are not away, and get room for it.
#[tokio::test]
async fn a_busy_disk_is_registered_at_once() {
    let key = NonZeroU64::new(0x1111).unwrap();
    for sessions in [1, 2] {
        let target = Running::start(config(), &[ram()]);
        let remote = initiator(&target, "busy", sessions).await;
        let stop = Arc::new(AtomicBool::new(false));
        let load: Vec<_> = (0..1024)
            .map(|_| {
                let (remote, stop) = (remote.clone(), stop.clone());
                tokio::spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        write(&remote, 1).await.unwrap();
                    }
                })
            })
            .collect();
        let begun = Instant::now();
        remote.register_and_ignore(key).await.unwrap();
        for _ in 0..4 {
            remote.register(key).await.unwrap();
            let keys = remote.reservation_keys().await.unwrap().keys;
            assert_eq!(keys.len(), usize::from(sessions));
        }
        // Half the time of a request is what sessions that are away are waited for.
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        stop.store(true, Ordering::Relaxed);
        for task in load {
            task.await.unwrap();
        }
        remote.close().await;
        target.stop().await;
    }
}
