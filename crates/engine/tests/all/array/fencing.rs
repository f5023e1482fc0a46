//! Who may write to the members: fencing at open, and those that are fenced out.

use netraid_scsi::{Additional, SenseKey};

use super::*;
use crate::iscsi::meddler::Meddler;

pub(super) const PERSISTENT_RESERVE_IN: u8 = 0x5e;

/// Somebody else who reaches a member.
async fn stranger(config: &MemberConfig) -> Arc<Remote> {
    let mut initiator = InitiatorConfig::new(config.uri.clone());
    initiator.initiator_name = "iqn.2026-01.org.example:stranger".into();
    Arc::new(Remote::connect(initiator, Pool::new()).await.unwrap())
}

async fn may_write(remote: &Arc<Remote>) -> bool {
    let block = BufMut::zeroed(512).freeze();
    // Between the copies of the label and what follows: no array uses it.
    match completions::write(&remote.clone().into_device(), 40 << 10, block.into(), false).await {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::Fenced => false,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn nobody_else_writes_to_members_of_an_open_array() {
    let (_targets, configs) = members(2).await;
    create(options(Level::Raid1), configs.clone(), Pool::new()).await.unwrap();
    let other = stranger(&configs[1]).await;
    let mut array = open(&configs).await;
    assert!(array.handle().status().await.unwrap().members.iter().all(|member| member.exclusive));
    assert!(!may_write(&other).await);
    write(array.device(), 1).await;
    // Who is set aside is free; who takes the place is not.
    command(&array, ControlRequest::Fail { member: "1".into() }).await;
    tokio::time::timeout(Duration::from_secs(10), async { while !may_write(&other).await {} })
        .await
        .expect("the reservation stays");
    let spare = Member::new();
    let with = spare.config.address();
    command(
        &array,
        ControlRequest::Replace { member: "1".into(), with, secret: None, force: false },
    )
    .await;
    let next = stranger(&spare.config).await;
    assert!(!may_write(&next).await);
    wait_for(&mut array, |event| *event == Event::Rebuilt { member: 1 }).await;
    array.close().await.unwrap();
    assert!(may_write(&next).await, "a clean end gives the members back");
    assert!(next.reservation_keys().await.unwrap().keys.is_empty());
}

#[tokio::test]
async fn a_member_that_a_stranger_has_reserved_is_opened_by_force_only() {
    let (_targets, configs) = members(2).await;
    create(options(Level::Raid1), configs.clone(), Pool::new()).await.unwrap();
    let key = NonZeroU64::new(0x1111).unwrap();
    let other = stranger(&configs[1]).await;
    other.register(key).await.unwrap();
    other.reserve(key, ReservationType::WriteExclusive).await.unwrap();
    for take_over in [false, true] {
        let options = OpenOptions { take_over, ..OpenOptions::default() };
        let error = Array::open(options, configs.clone(), Pool::new()).await.unwrap_err();
        assert!(matches!(error, ArrayError::Reserved { key: 0x1111, .. }), "{error}");
    }
    // What was registered meanwhile is taken back.
    assert_eq!(other.reservation_keys().await.unwrap().keys, [0x1111]);
    assert!(may_write(&other).await);
    let force = OpenOptions { force: true, ..OpenOptions::default() };
    let array = Array::open(force, configs.clone(), Pool::new()).await.unwrap();
    assert!(!may_write(&other).await && other.is_fenced());
    write(array.device(), 1).await;
    array.close().await.unwrap();
}

/// Three members at level 5, or two at level 1, one of which cannot say who is registered.
async fn one_that_cannot_say(level: Level) -> (Vec<Member>, Vec<MemberConfig>, Meddler) {
    let (targets, mut configs) = members(if level == Level::Raid5 { 3 } else { 2 }).await;
    create(options(level), configs.clone(), Pool::new()).await.unwrap();
    let address = format!("{}:{}", configs[1].uri.host, configs[1].uri.port).parse().unwrap();
    let portal = Meddler::start(address).await;
    let not_ready = Additional { asc: 0x04, ascq: 0x03 };
    portal.refuse_always(PERSISTENT_RESERVE_IN, false, SenseKey::NotReady, not_ready);
    (configs[1].uri.host, configs[1].uri.port) =
        (portal.address.ip().to_string(), portal.address.port());
    (targets, configs, portal)
}

#[tokio::test]
async fn a_member_that_cannot_say_who_is_registered_is_left_out() {
    let (_targets, configs, _portal) = one_that_cannot_say(Level::Raid5).await;
    // Where it is needed, that is why the array does not open.
    let two = [configs[0].clone(), configs[1].clone()];
    let error = Array::open(OpenOptions::default(), two.into(), Pool::new()).await.unwrap_err();
    assert!(error.to_string().contains("reading its reservation keys"), "{error}");

    let array = open(&configs).await;
    assert_eq!(array.handle().status().await.unwrap().state, "degraded");
    let told = array.notes().iter().any(|note| note.ends_with("it is left out as member 1"));
    assert!(told, "{:?}", array.notes());
    write(array.device(), 1).await;
    array.close().await.unwrap();
}

/// Another engine could serve from it alone, and would not be shut out.
#[tokio::test]
async fn half_of_a_mirror_that_cannot_be_fenced_is_not_left_out() {
    let (_targets, configs, _portal) = one_that_cannot_say(Level::Raid1).await;
    for (take_over, force) in [(false, false), (true, false), (false, true)] {
        let options = OpenOptions { take_over, force, ..OpenOptions::default() };
        let error = Array::open(options, configs.clone(), Pool::new()).await.unwrap_err();
        assert!(error.to_string().contains("reading its reservation keys"), "{error}");
    }
}

/// Another engine that takes over removes this engine's registration, on one member after the other.
#[tokio::test]
async fn a_member_that_refuses_writes_by_conflicts_and_knows_the_registration_is_set_aside() {
    const WRITE_10: u8 = 0x2a;
    let (_targets, mut configs) = members(3).await;
    create(options(Level::Raid5), configs.clone(), Pool::new()).await.unwrap();
    let address = format!("{}:{}", configs[1].uri.host, configs[1].uri.port).parse().unwrap();
    let portal = Meddler::start(address).await;
    (configs[1].uri.host, configs[1].uri.port) =
        (portal.address.ip().to_string(), portal.address.port());
    let array = open(&configs).await;
    write(array.device(), 1).await;
    portal.conflict_always(WRITE_10);
    write(array.device(), 2).await;
    let status = array.handle().status().await.unwrap();
    assert_eq!((status.state.as_str(), status.members[1].state.as_str()), ("degraded", "faulty"));
    array.close().await.unwrap();
    let others = [configs[0].clone(), configs[2].clone()];
    let array = open(&others).await;
    verify(array.device(), 2).await;
    array.close().await.unwrap();
}

#[tokio::test]
async fn a_device_that_a_stranger_has_reserved_becomes_a_member_by_force_only() {
    for kind in [ReservationType::WriteExclusive, ReservationType::ExclusiveAccess] {
        let (_targets, configs) = members(3).await;
        let key = NonZeroU64::new(0x3333).unwrap();
        let other = stranger(&configs[1]).await;
        other.register(key).await.unwrap();
        other.reserve(key, kind).await.unwrap();
        let new = options(Level::Raid1);
        let error = create(new, configs[..2].to_vec(), Pool::new()).await.unwrap_err().to_string();
        assert!(error.contains("in use") && error.contains("reservation"), "{error}");
        assert!(error.contains("--force"), "{error}");
        // Nothing was written, on the others neither.
        create(options(Level::Raid1), vec![configs[0].clone(), configs[2].clone()], Pool::new())
            .await
            .unwrap();
        let force = CreateOptions { force: true, ..options(Level::Raid1) };
        create(force, configs[..2].to_vec(), Pool::new()).await.unwrap();
        let array = open(&configs[..2]).await;
        write(array.device(), 1).await;
        assert!(!may_write(&other).await);
        array.close().await.unwrap();
    }
}

/// A write of the old owner is at the device when the array is made over it: it must not land on
/// the new label.
#[tokio::test]
async fn what_an_old_owner_has_under_way_is_not_written_over_an_array_made_by_force() {
    let ram = backings::ram(MEMBER_LEN, 512, Pool::new()).unwrap();
    let sticky = Arc::new(Sticky { device: ram, kept: Mutex::default() });
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let target = Member::start(Device::new(sticky.clone()), &format!("{NAME}-owned"), listen);
    let (_targets, mut configs) = members(1).await;
    configs.push(target.config.clone());
    let key = NonZeroU64::new(0x3333).unwrap();
    let other = stranger(&target.config).await;
    other.register(key).await.unwrap();
    other.reserve(key, ReservationType::WriteExclusive).await.unwrap();
    *sticky.kept.lock().unwrap() = Some(Vec::new());
    let late = tokio::spawn({
        let device = other.clone().into_device();
        async move { completions::write(&device, 0, BufMut::zeroed(4096).freeze().into(), false).await }
    });
    while sticky.kept.lock().unwrap().as_ref().is_some_and(Vec::is_empty) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let kept = sticky.kept.lock().unwrap().take().unwrap();
    let force = CreateOptions { force: true, ..options(Level::Raid1) };
    let mut made = tokio::spawn(create(force, configs.clone(), Pool::new()));
    // Long enough for one that does not wait.
    let early = tokio::time::timeout(Duration::from_millis(500), &mut made).await;
    kept.into_iter().for_each(|request| sticky.device.submit(request));
    let _ = late.await.unwrap();
    match early {
        Ok(end) => end.unwrap().unwrap(),
        Err(_) => made.await.unwrap().unwrap(),
    };
    let read = completions::read(&sticky.device, 0, 512).await.unwrap();
    assert_eq!(read.to_contiguous()[..8], *b"NETRAID\n");
    let array = open(&configs).await;
    write(array.device(), 1).await;
    array.close().await.unwrap();
}

#[tokio::test]
async fn an_engine_whose_registration_is_removed_stops_for_good() {
    let (_targets, configs) = members(3).await;
    create(options(Level::Raid5), configs.clone(), Pool::new()).await.unwrap();
    let array = open(&configs).await;
    write(array.device(), 1).await;
    let victor = stranger(&configs[2]).await;
    let key = NonZeroU64::new(0x2222).unwrap();
    victor.register(key).await.unwrap();
    let old = victor.reservation_keys().await.unwrap().keys;
    let old = NonZeroU64::new(*old.iter().find(|old| **old != key.get()).unwrap()).unwrap();
    let kind = ReservationType::WriteExclusiveAllRegistrants;
    victor.preempt(key, old, kind, true).await.unwrap();
    // A write that reaches that member at the latest tells.
    let len = usize::try_from(array.device().info().capacity).unwrap();
    let mut end = Ok(());
    for at in (0..len).step_by(64 << 10) {
        let data = BufMut::zeroed(64 << 10).freeze();
        end = end.and(completions::write(array.device(), at as u64, data.into(), true).await);
    }
    assert_eq!(end.unwrap_err().kind(), ErrorKind::Fenced);
    let status = array.handle().status().await.unwrap();
    assert_eq!(status.state, "failed");
    assert!(status.failure.unwrap().contains("another engine has taken it over"));
    let error = array.close().await.unwrap_err().to_string();
    assert!(error.contains("taken it over"), "{error}");
}

/// The kind of reservation, and a key, that an engine of another machine has.
const ENGINE_KIND: ReservationType = ReservationType::WriteExclusiveAllRegistrants;
const ENGINE_KEY: NonZeroU64 = NonZeroU64::new(0x4e52_bbbb_bb00_0001).unwrap();

/// An engine of another machine that holds a member.
async fn other_engine(config: &MemberConfig) -> Arc<Remote> {
    let other = stranger(config).await;
    other.register(ENGINE_KEY).await.unwrap();
    other.reserve(ENGINE_KEY, ENGINE_KIND).await.unwrap();
    other
}

/// Labels that this machine has closed say nothing of who opens the array just now.
#[tokio::test]
async fn an_engine_that_has_fenced_but_not_labelled_yet_is_not_pushed_aside() {
    let (_targets, configs) = members(2).await;
    create(options(Level::Raid1), configs.clone(), Pool::new()).await.unwrap();
    open(&configs).await.close().await.unwrap();
    let other = other_engine(&configs[1]).await;
    let end = Array::open(OpenOptions::default(), configs.clone(), Pool::new()).await;
    assert!(matches!(end, Err(ArrayError::Reserved { .. })), "{end:?}");
    assert!(may_write(&other).await);
    assert_eq!(other.reservation_keys().await.unwrap().keys, [ENGINE_KEY.get()]);
}

/// How many of many writes at once succeed.
async fn burst(remote: &Arc<Remote>) -> usize {
    let device = remote.clone().into_device();
    let writes = (0..16_u64).map(|at| {
        let (device, block) = (device.clone(), BufMut::zeroed(512).freeze());
        async move { completions::write(&device, (8 << 20) + at * 512, block.into(), false).await }
    });
    let ends = futures_util::future::join_all(writes).await;
    ends.iter().filter(|end| end.is_ok()).count()
}

/// Who sends nothing while another engine has the array may send many writes at once when that one
/// has closed it. A unit attention ends the first one only.
#[tokio::test]
async fn who_was_taken_for_dead_writes_nothing_even_after_its_successor_has_closed() {
    let (_targets, configs) = members(2).await;
    create(options(Level::Raid1), configs.clone(), Pool::new()).await.unwrap();
    let take_over = OpenOptions { take_over: true, ..OpenOptions::default() };
    for successors in 1..3 {
        let other = other_engine(&configs[1]).await;
        assert_eq!(burst(&other).await, 16);
        let array = Array::open(take_over, configs.clone(), Pool::new()).await.unwrap();
        array.close().await.unwrap();
        for _ in 1..successors {
            // Nothing is in the way of who comes next.
            open(&configs).await.close().await.unwrap();
        }
        assert_eq!(burst(&other).await, 0);
        assert!(other.is_fenced());
        let force = CreateOptions { force: true, ..options(Level::Raid1) };
        create(force, configs.clone(), Pool::new()).await.unwrap();
    }
}

/// It has not heard yet that it is fenced.
#[tokio::test]
async fn an_engine_that_is_fenced_does_not_push_its_successor_aside_by_a_rebuild() {
    let (_targets, configs) = members(3).await;
    create(options(Level::Raid5), configs.clone(), Pool::new()).await.unwrap();
    let mut array = open(&configs).await;
    command(&array, ControlRequest::Fail { member: "2".into() }).await;
    let failed = |event: &Event| matches!(event, Event::Member { state: "faulty", .. });
    wait_for(&mut array, failed).await;
    let mut others = Vec::new();
    for config in &configs {
        let other = stranger(config).await;
        other.register(ENGINE_KEY).await.unwrap();
        for old in other.reservation_keys().await.unwrap().keys {
            if let Some(old) = NonZeroU64::new(old).filter(|old| *old != ENGINE_KEY) {
                // On the member that was set aside it may be given back meanwhile.
                let _ = other.preempt(ENGINE_KEY, old, ENGINE_KIND, true).await;
            }
        }
        other.reserve(ENGINE_KEY, ENGINE_KIND).await.unwrap();
        others.push(other);
    }
    let end = array.handle().command(ControlRequest::Rebuild { member: "2".into() }).await;
    assert!(end.is_err());
    for other in &others {
        assert!(may_write(other).await);
        assert_eq!(other.reservation_keys().await.unwrap().keys, [ENGINE_KEY.get()]);
    }
}

/// What is prepared for a replacement beside the array ends before the array has closed.
#[tokio::test]
async fn a_device_that_joins_while_the_array_closes_is_given_back() {
    for pause in [0, 2, 5, 10, 20] {
        let (_targets, configs) = members(2).await;
        create(options(Level::Raid1), configs.clone(), Pool::new()).await.unwrap();
        let array = open(&configs).await;
        let (spare, handle) = (Member::new(), array.handle().clone());
        let replace = ControlRequest::Replace {
            member: "1".into(),
            with: spare.config.address(),
            secret: None,
            force: false,
        };
        let joins = tokio::spawn(async move { handle.command(replace).await });
        tokio::time::sleep(Duration::from_millis(pause)).await;
        array.close().await.unwrap();
        let keys = stranger(&spare.config).await.reservation_keys().await.unwrap().keys;
        assert!(keys.is_empty(), "after {pause} ms: {keys:x?}");
        // Refused or begun, but answered.
        drop(joins.await.unwrap());
    }
}
