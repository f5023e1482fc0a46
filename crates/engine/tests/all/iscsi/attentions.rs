//! What a disk tells by unit attentions, and what follows from it.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use netraid_block::{Buf, Device, ErrorKind, Op, Pool, RequestFlags, SgList, TargetUri};
use netraid_engine::{
    backings, completions,
    initiator::{InitiatorConfig, Remote, ReservationType},
    target::{Target, TargetConfig, TargetHandle},
};
use netraid_iscsi_proto::pdu::TaskFunction;
use netraid_scsi::{Additional, SenseKey};
use tokio::sync::oneshot;

use crate::iscsi::{
    common::{NAME, Running, SIZE, Sticky, config, ram, restart},
    meddler::{Endless, Meddler},
    raw::Raw,
};

const WRITE_10: u8 = 0x2a;
const SYNCHRONIZE_CACHE_10: u8 = 0x35;
const WRITE_SAME_16: u8 = 0x93;
const UNMAP: u8 = 0x42;
const PERSISTENT_RESERVE_IN: u8 = 0x5e;

async fn start() -> (Running, Meddler, Arc<Remote>, Device) {
    let target = Running::start(config(), &[ram()]);
    let portal = Meddler::start(target.address).await;
    let uri = TargetUri::parse(&format!("iscsi://{}/{NAME}/0", portal.address)).unwrap();
    let mut config = InitiatorConfig::new(uri);
    config.request_timeout = Duration::from_secs(2);
    let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
    let device = remote.clone().into_device();
    (target, portal, remote, device)
}

async fn write(device: &Device, byte: u8) -> Result<(), netraid_block::IoError> {
    completions::write(device, 0, Buf::copy_from(&[byte; 512]).into(), false).await
}

#[tokio::test]
async fn a_disk_that_was_powered_on_may_have_lost_its_cache() {
    let (target, portal, remote, device) = start().await;
    let mut losses = 0;
    for (ascq, loses) in
        [(0x00, true), (0x01, true), (0x02, true), (0x03, false), (0x04, true), (0x07, false)]
    {
        portal.attention(WRITE_10, 0x29, ascq);
        write(&device, 1).await.unwrap();
        assert_eq!(portal.lies_left(), 0);
        losses += u64::from(loses);
        // Counted before the request ended.
        assert_eq!(remote.cache_losses(), losses, "29h/{ascq:02x}h");
    }
    assert_eq!(remote.reconnects(), 0, "the session was never lost");
    target.stop().await;
}

/// What a disk tells once may be told to an examination that fails before anybody has noted it.
#[tokio::test]
async fn a_lost_cache_is_heard_of_though_the_session_that_was_told_is_lost() {
    const TEST_UNIT_READY: u8 = 0x00;
    const INQUIRY: u8 = 0x12;
    // The answer that tells is lost itself, or what follows it is.
    for code in [TEST_UNIT_READY, INQUIRY] {
        let disk = ram();
        let target = Running::start(config(), std::slice::from_ref(&disk));
        let portal = Meddler::start(target.address).await;
        let uri = TargetUri::parse(&format!("iscsi://{}/{NAME}/0", portal.address)).unwrap();
        let config = InitiatorConfig {
            request_timeout: Duration::from_secs(3),
            ..InitiatorConfig::new(uri)
        };
        let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
        let device = remote.clone().into_device();
        write(&device, 1).await.unwrap();
        portal.cut(code);
        let address = target.address;
        target.kill().await;
        let target = restart(address, std::slice::from_ref(&disk));
        completions::flush(&device).await.unwrap();
        assert!(!portal.is_to_cut(), "no session was cut");
        assert_eq!(remote.cache_losses(), 1, "{code:#x}");
        // A session that is cut alone is no loss, nor are two.
        portal.cut(WRITE_10);
        write(&device, 2).await.unwrap();
        portal.cut(WRITE_10);
        write(&device, 3).await.unwrap();
        assert_eq!((remote.cache_losses(), remote.reconnects()), (1, 3));
        target.stop().await;
    }
}

#[tokio::test]
async fn a_command_that_was_given_up_may_still_tell_of_a_lost_cache() {
    let sticky = Arc::new(Sticky::new(ram()));
    let target = Running::start(config(), &[Device::new(sticky.clone())]);
    let portal = Meddler::start(target.address).await;
    let uri = TargetUri::parse(&format!("iscsi://{}/{NAME}/0", portal.address)).unwrap();
    let config =
        InitiatorConfig { request_timeout: Duration::from_secs(1), ..InitiatorConfig::new(uri) };
    let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
    let device = remote.clone().into_device();
    sticky.stick();
    portal.swallow_aborts();
    portal.attention(WRITE_10, 0x29, 0x00);
    let error = write(&device, 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    sticky.go_on();
    completions::flush(&device).await.unwrap();
    assert_eq!((portal.lies_left(), remote.reconnects()), (0, 0));
    assert!(remote.cache_losses() > 0);
    target.stop().await;
}

/// A deferred error ends a command that it is not about (SPC-4, section 4.5.6).
#[tokio::test]
async fn a_deferred_error_says_that_the_cache_has_lost_something() {
    for (key, losses) in [
        (SenseKey::MediumError, 1),
        (SenseKey::AbortedCommand, 1),
        (SenseKey::HardwareError, 1),
        (SenseKey::RecoveredError, 0),
    ] {
        let (target, portal, remote, device) = start().await;
        portal.deferred(WRITE_10, key);
        // It was not carried out, and is sent again.
        write(&device, 1).await.unwrap();
        assert_eq!((portal.lies_left(), remote.cache_losses()), (0, losses), "{key:?}");
        target.stop().await;
    }
}

#[tokio::test]
async fn other_attentions_only_have_the_command_sent_again() {
    let (target, portal, remote, device) = start().await;
    for (asc, ascq) in
        [(0x2a, 0x01), (0x2a, 0x03), (0x2a, 0x04), (0x2a, 0x05), (0x2f, 0x00), (0x3f, 0x0e)]
    {
        portal.attention(SYNCHRONIZE_CACHE_10, asc, ascq);
        completions::flush(&device).await.unwrap();
        write(&device, 2).await.unwrap();
        assert_eq!(portal.lies_left(), 0);
    }
    assert_eq!((remote.cache_losses(), remote.reconnects()), (0, 0));
    target.stop().await;
}

#[tokio::test]
async fn a_conflict_ends_the_request_at_once_and_no_other() {
    let (target, portal, remote, device) = start().await;
    portal.conflict(WRITE_10);
    let error = write(&device, 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    // Nothing is registered here: it is for the owner to decide what follows.
    assert!(!remote.is_fenced());
    write(&device, 2).await.unwrap();
    target.stop().await;
}

/// Another engine that takes over removes the registration: a disk that has it still says nothing of one.
#[tokio::test]
async fn a_disk_that_says_conflict_and_knows_the_registration_has_failed_and_is_not_fenced() {
    let key = NonZeroU64::new(0x1111).unwrap();
    let kind = ReservationType::WriteExclusiveAllRegistrants;
    for sessions in [1, 3] {
        let target = Running::start(config(), &[ram()]);
        let portal = Meddler::start(target.address).await;
        let uri = TargetUri::parse(&format!("iscsi://{}/{NAME}/0", portal.address)).unwrap();
        let mut config = InitiatorConfig::new(uri);
        config.request_timeout = Duration::from_secs(2);
        config.sessions = sessions;
        let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
        let device = remote.clone().into_device();
        remote.register(key).await.unwrap();
        remote.reserve(key, kind).await.unwrap();
        // Once may be a mistake.
        portal.conflict(WRITE_10);
        write(&device, 1).await.unwrap();
        assert_eq!(portal.lies_left(), 0);

        portal.conflict_always(WRITE_10);
        let error = write(&device, 2).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device, "{error}");
        assert!(error.to_string().contains("RESERVATION CONFLICT"), "{error}");
        assert_eq!(portal.refused(), usize::from(sessions) + 1);
        // All else goes on.
        completions::read(&device, 0, 512).await.unwrap();
        assert!(!remote.is_fenced());
        assert_eq!(remote.reconnects(), 0);
        remote.close().await;
        target.stop().await;
    }
}

/// A disk that takes the data of WRITE SAME for that of a WRITE wants more of it.
#[tokio::test]
async fn a_disk_that_misunderstands_write_same_is_given_zeros() {
    let (target, portal, remote, device) = start().await;
    completions::write(&device, 0, Buf::copy_from(&[7; 8192]).into(), false).await.unwrap();
    portal.overflow(WRITE_SAME_16);
    completions::write_zeroes(&device, 0, 8192).await.unwrap();
    let data = completions::read(&device, 0, 8192).await.unwrap();
    assert!(data.to_contiguous().iter().all(|byte| *byte == 0));
    assert_eq!((portal.lies_left(), remote.reconnects()), (0, 0));
    // A write that moved other bytes than it was asked to is no success.
    portal.overflow(WRITE_10);
    let error = write(&device, 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    target.stop().await;
}

struct Resizable {
    handle: TargetHandle,
    uri: TargetUri,
    _stop: oneshot::Sender<()>,
}

fn resizable() -> Resizable {
    let target = Target::bind(
        TargetConfig { listen: config().listen, ..TargetConfig::new(NAME) },
        vec![ram().into()],
        Pool::new(),
    )
    .unwrap();
    let uri = TargetUri::parse(&format!("iscsi://{}/{NAME}/0", target.local_addrs()[0])).unwrap();
    let handle = target.handle().clone();
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(async move {
        let stopped = async {
            let _ = stopped.await;
        };
        target.run(stopped).await.unwrap();
    });
    Resizable { handle, uri, _stop: stop }
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..5000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("never: {what}");
}

/// SBC-3, section 4.7 (CAPACITY DATA HAS CHANGED).
#[tokio::test]
async fn a_disk_that_grows_is_noticed_and_goes_on() {
    let disk = resizable();
    let config = InitiatorConfig::new(disk.uri.clone());
    let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
    let device = remote.clone().into_device();
    write(&device, 1).await.unwrap();
    assert_eq!(remote.capacity_now(), SIZE);
    let larger = backings::ram(2 * SIZE, 512, Pool::new()).unwrap();
    disk.handle.change_lun(0, larger).await.unwrap();
    write(&device, 2).await.unwrap();
    until("the new capacity", || remote.capacity_now() == 2 * SIZE).await;
    write(&device, 3).await.unwrap();
    // What its users were told stays: they may not go beyond.
    assert_eq!(device.info().capacity, SIZE);
    assert_eq!((remote.cache_losses(), remote.reconnects()), (0, 0));
    remote.close().await;
}

#[tokio::test]
async fn a_disk_that_shrinks_below_what_is_used_fails() {
    let disk = resizable();
    let mut config = InitiatorConfig::new(disk.uri.clone());
    config.request_timeout = Duration::from_secs(2);
    let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
    let device = remote.clone().into_device();
    write(&device, 1).await.unwrap();
    let smaller = backings::ram(SIZE / 2, 512, Pool::new()).unwrap();
    disk.handle.change_lun(0, smaller).await.unwrap();
    let mut failure = None;
    for byte in 2..10 {
        if let Err(error) = write(&device, byte).await {
            failure = Some(error);
            break;
        }
    }
    let failure = failure.expect("a disk that lacks half of its blocks is still used");
    assert_eq!(failure.kind(), ErrorKind::Unreachable);
    assert!(failure.to_string().contains("shrunk"), "{failure}");
    // Given back its size, it serves again.
    disk.handle.change_lun(0, ram()).await.unwrap();
    until("a new session", || remote.reconnects() == 1).await;
    write(&device, 3).await.unwrap();
    remote.close().await;
}

/// With TAS=0 what another initiator aborts ends without an answer (SAM-5, section 5.6).
#[tokio::test]
async fn what_a_reset_of_another_initiator_aborts_is_sent_again() {
    let sticky = Arc::new(Sticky::new(ram()));
    let target = Running::start(config(), &[Device::new(sticky.clone())]);
    let config = InitiatorConfig::new(target.uri(0));
    let limit = config.request_timeout / 2;
    let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
    let device = remote.clone().into_device();
    write(&device, 1).await.unwrap();
    let mut other = Raw::log_in(target.address, 1).await.unwrap().unwrap();
    other.take_attention().await;
    sticky.stick();
    let second = tokio::spawn({
        let device = device.clone();
        async move { write(&device, 2).await }
    });
    until("the write", || sticky.keeps() == 1).await;
    other.manage(TaskFunction::LogicalUnitReset, u32::MAX).await;
    // The reset has taken hold before what it aborts ends at the device.
    other.command(&[0; 6], 0).await;
    other.receive().await.unwrap();
    sticky.go_on();
    other.managed().await;
    // Nothing else is sent that the disk could tell by: it is asked.
    let end = tokio::time::timeout(limit, second).await;
    end.expect("an aborted write is waited for").unwrap().unwrap();
    assert_eq!((remote.cache_losses(), remote.reconnects()), (0, 0));
    let data = completions::read(&device, 0, 512).await.unwrap();
    assert_eq!(data.to_contiguous()[0], 2);
    target.stop().await;
}

/// Each nexus is told for itself; one loss is enough to hear of it.
#[tokio::test]
async fn one_session_of_several_may_tell_of_a_lost_cache() {
    let target = Running::start(config(), &[ram()]);
    let portal = Meddler::start(target.address).await;
    let uri = TargetUri::parse(&format!("iscsi://{}/{NAME}/0", portal.address)).unwrap();
    let config = InitiatorConfig { sessions: 3, ..InitiatorConfig::new(uri) };
    let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
    let device = remote.clone().into_device();
    until("all sessions", || portal.connections() == 3).await;
    for _ in 0..6 {
        write(&device, 1).await.unwrap();
    }
    assert_eq!(remote.cache_losses(), 0);
    portal.attention(WRITE_10, 0x29, 0x00);
    let writes = (0..6).map(|_| write(&device, 2));
    let ends = futures_util::future::join_all(writes).await;
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    assert_eq!((portal.lies_left(), remote.cache_losses(), remote.reconnects()), (0, 1, 0));
    target.stop().await;
}

/// Discards 64 KiB, or writes zeros there.
async fn clear(device: &Device, op: Op) -> Result<SgList, netraid_block::IoError> {
    let flags = RequestFlags::default();
    completions::request(device, op, 0, 64 << 10, flags, SgList::new()).await
}

#[tokio::test]
async fn a_hint_that_a_disk_refuses_in_whatever_way_is_no_failure() {
    use SenseKey::{AbortedCommand, HardwareError, IllegalRequest, MediumError, NotReady};
    for (key, asc, ascq) in [
        (IllegalRequest, 0x26, 0x00),
        (IllegalRequest, 0x20, 0x00),
        (HardwareError, 0x44, 0x00),
        (MediumError, 0x0c, 0x00),
        (NotReady, 0x04, 0x03),
        // Sent again, but not for ever.
        (AbortedCommand, 0x00, 0x00),
    ] {
        let (target, portal, remote, device) = start().await;
        portal.refuse(UNMAP, key, Additional { asc, ascq }, 100);
        for _ in 0..3 {
            clear(&device, Op::Discard).await.unwrap();
        }
        assert!(portal.lies_left() < 100, "{key:?} {asc:02x}h");
        write(&device, 3).await.unwrap();
        assert_eq!(remote.reconnects(), 0);
        remote.close().await;
        target.stop().await;
    }
}

/// A target that ends the connection at a command that it does not know, or has no answer to it.
#[tokio::test]
async fn a_hint_that_a_disk_never_answers_is_no_failure() {
    for (how, ops) in [
        (Endless::Cut, &[(Op::Discard, UNMAP), (Op::WriteZeroes, WRITE_SAME_16)][..]),
        (Endless::Silent, &[(Op::Discard, UNMAP)]),
    ] {
        for (op, code) in ops {
            let (target, portal, remote, device) = start().await;
            portal.answer_never(*code, how);
            for byte in 0..5 {
                write(&device, byte).await.unwrap();
                clear(&device, *op).await.unwrap_or_else(|error| panic!("{how:?} {op:?}: {error}"));
            }
            // The disk gets no such command any more.
            let reconnects = remote.reconnects();
            clear(&device, *op).await.unwrap();
            assert!(reconnects <= 3, "{how:?} {op:?}: {reconnects}");
            assert_eq!(remote.reconnects(), reconnects);
            remote.close().await;
            target.stop().await;
        }
    }
}

#[tokio::test]
async fn a_conflict_that_only_hints_meet_is_no_fence() {
    let key = NonZeroU64::new(0x1111).unwrap();
    for is_registered in [false, true] {
        for (code, op) in [(UNMAP, Op::Discard), (WRITE_SAME_16, Op::WriteZeroes)] {
            let (target, portal, remote, device) = start().await;
            if is_registered {
                remote.register(key).await.unwrap();
            }
            portal.conflict_always(code);
            write(&device, 7).await.unwrap();
            for _ in 0..3 {
                clear(&device, op).await.unwrap();
                write(&device, 7).await.unwrap();
            }
            assert!(!remote.is_fenced());
            // Also not after the examination that a conflict of who is registered brings.
            assert_eq!((portal.refused(), remote.reconnects()), (1, 0), "{op:?}");
            remote.close().await;
            target.stop().await;
        }
    }
}

/// Where nothing is written that would meet the reservation.
#[tokio::test]
async fn a_conflict_of_a_hint_tells_who_was_preempted() {
    let (key, victor_key) = (NonZeroU64::new(0x1111).unwrap(), NonZeroU64::new(0x2222).unwrap());
    let kind = ReservationType::WriteExclusiveAllRegistrants;
    let (target, portal, victim, device) = start().await;
    victim.register(key).await.unwrap();
    victim.reserve(key, kind).await.unwrap();
    let mut config = InitiatorConfig::new(target.uri(0));
    config.initiator_name = "iqn.2026-01.org.example:victor".to_owned();
    let victor = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
    victor.register(victor_key).await.unwrap();
    victor.preempt(victor_key, key, kind, true).await.unwrap();
    // Instead of the unit attention, too.
    portal.conflict_always(UNMAP);
    let error = clear(&device, Op::Discard).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert!(victim.is_fenced());
    let error = write(&device, 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    victor.close().await;
    target.stop().await;
}

#[tokio::test]
async fn a_disk_that_never_had_reservations_may_refuse_questions_about_them() {
    use ErrorKind::{Device, Medium, Unreachable, Unsupported};
    use SenseKey::{HardwareError, IllegalRequest, MediumError, NotReady};
    let key = NonZeroU64::new(0x1111).unwrap();
    for (sense_key, asc, ascq, unknown, known) in [
        (IllegalRequest, 0x20, 0x00, Unsupported, Unsupported),
        (IllegalRequest, 0x24, 0x00, Unsupported, Unsupported),
        (IllegalRequest, 0x55, 0x03, Unsupported, Unsupported),
        (HardwareError, 0x44, 0x00, Unsupported, Device),
        // These say nothing of the command.
        (MediumError, 0x11, 0x00, Medium, Medium),
        (NotReady, 0x04, 0x03, Unreachable, Unreachable),
    ] {
        for (is_registered, expected) in [(false, unknown), (true, known)] {
            let (target, portal, remote, device) = start().await;
            if is_registered {
                remote.register(key).await.unwrap();
            }
            portal.refuse_always(PERSISTENT_RESERVE_IN, false, sense_key, Additional { asc, ascq });
            let keys = remote.reservation_keys().await.unwrap_err();
            let held = remote.reservation().await.unwrap_err();
            assert_eq!(keys.kind(), expected, "{keys}; registered: {is_registered}");
            assert_eq!(held.kind(), expected, "{held}; registered: {is_registered}");
            write(&device, 1).await.unwrap();
            remote.close().await;
            target.stop().await;
        }
    }
    // Somebody holds it.
    let (target, portal, remote, _device) = start().await;
    portal.conflict_always(PERSISTENT_RESERVE_IN);
    assert_eq!(remote.reservation_keys().await.unwrap_err().kind(), ErrorKind::Fenced);
    target.stop().await;
}

#[tokio::test]
async fn a_disk_without_a_cache_may_refuse_to_flush_in_any_way() {
    use SenseKey::{
        AbortedCommand, DataProtect, HardwareError, IllegalRequest, MediumError, NotReady,
    };
    for (key, asc, ascq) in [
        (IllegalRequest, 0x20, 0x00),
        (IllegalRequest, 0x21, 0x00),
        (HardwareError, 0x44, 0x00),
        (MediumError, 0x0c, 0x00),
        (DataProtect, 0x27, 0x00),
        (NotReady, 0x04, 0x00),
        (AbortedCommand, 0x00, 0x00),
    ] {
        let (target, portal, _remote, device) = start().await;
        portal.refuse_always(SYNCHRONIZE_CACHE_10, false, key, Additional { asc, ascq });
        completions::flush(&device).await.unwrap();
        let refused = portal.refused();
        completions::flush(&device).await.unwrap();
        assert_eq!(portal.refused(), refused, "{key:?}: it is asked again");
        target.stop().await;
    }
    let (target, portal, _remote, device) = start().await;
    portal.conflict(SYNCHRONIZE_CACHE_10);
    assert_eq!(completions::flush(&device).await.unwrap_err().kind(), ErrorKind::Fenced);
    target.stop().await;
}

#[tokio::test]
async fn zeros_are_written_in_another_way_however_write_same_is_refused() {
    use SenseKey::{AbortedCommand, HardwareError, IllegalRequest};
    for (key, asc) in [(IllegalRequest, 0x26), (HardwareError, 0x44), (AbortedCommand, 0x00)] {
        let (target, portal, remote, device) = start().await;
        let additional = Additional { asc, ascq: 0 };
        portal.refuse(WRITE_SAME_16, key, additional, 100);
        portal.refuse(UNMAP, key, additional, 100);
        write(&device, 7).await.unwrap();
        clear(&device, Op::WriteZeroes).await.unwrap();
        let read = completions::read(&device, 0, 64 << 10).await.unwrap().to_contiguous();
        assert!(read.iter().all(|byte| *byte == 0), "{key:?} {asc:02x}h");
        remote.close().await;
        target.stop().await;
    }
}

#[tokio::test]
async fn a_disk_without_a_cache_may_refuse_the_fua_bit_which_it_told_of() {
    for asc in [0x24, 0x20, 0x26] {
        let (target, portal, remote, device) = start().await;
        let data = || Buf::copy_from(&[5; 512]).into();
        let additional = Additional { asc, ascq: 0 };
        portal.refuse(WRITE_10, SenseKey::IllegalRequest, additional, 1);
        completions::write(&device, 0, data(), true).await.unwrap();
        assert_eq!(portal.lies_left(), 0, "{asc:02x}h");
        // Without the bit a refusal is one.
        portal.refuse(WRITE_10, SenseKey::IllegalRequest, additional, 1);
        assert!(completions::write(&device, 0, data(), false).await.is_err(), "{asc:02x}h");
        remote.close().await;
        target.stop().await;
    }
}
