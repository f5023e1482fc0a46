//! An array over our initiator and our target, on loopback.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    net::SocketAddr,
    num::NonZeroU64,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use netraid_block::{
    BlockDevice, BufMut, Device, DeviceInfo, ErrorKind, Op, Pool, Request, TargetUri,
};
use netraid_engine::{
    array::{Array, ArrayError, CreateOptions, Event, MemberConfig, OpenOptions, create},
    backings, completions,
    control::ControlRequest,
    initiator::{InitiatorConfig, Remote, ReservationType, Secret},
    target::{ChapCredentials, Target, TargetConfig, TargetHandle},
};
use netraid_raid::geometry::Level;
use rand::{RngCore, SeedableRng, rngs::StdRng};
use tokio::{sync::oneshot, task::JoinHandle};

const NAME: &str = "iqn.2026-01.org.example:member";
const MEMBER_LEN: u64 = 16 << 20;
const PIECE: usize = 192 << 10;

/// A member's medium, and the target that serves it.
struct Member {
    device: Device,
    config: MemberConfig,
    handle: TargetHandle,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Member {
    fn start(device: Device, name: &str, address: SocketAddr) -> Self {
        let mut config = TargetConfig::new(name);
        config.listen = vec![address];
        Self::start_as(device, name, config)
    }

    fn start_as(device: Device, name: &str, config: TargetConfig) -> Self {
        let target = Target::bind(config, vec![device.clone().into()], Pool::new()).unwrap();
        let address = target.local_addrs()[0];
        let handle = target.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let told = async {
                let _ = stopped.await;
            };
            target.run(told).await.unwrap();
        });
        let uri = TargetUri::parse(&format!("iscsi://{address}/{name}/0")).unwrap();
        let mut config = MemberConfig::new(uri, None);
        config.request_timeout = Duration::from_secs(1);
        Self { device, config, handle, stop: Some(stop), task }
    }

    fn new() -> Self {
        let device = backings::ram(MEMBER_LEN, 512, Pool::new()).unwrap();
        // Targets of one name would seem to be one.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("{NAME}{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        Self::start(device, &name, SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// As a crash of its process, the medium survives.
    async fn kill(&mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    /// Ends and begins again in good order, with what it had stored.
    async fn restart(&mut self) {
        if !self.task.is_finished() {
            drop(self.stop.take());
            (&mut self.task).await.unwrap();
        }
        let uri = &self.config.uri;
        let address = format!("{}:{}", uri.host, uri.port).parse().unwrap();
        *self = Self::start(self.device.clone(), &uri.target, address);
    }
}

async fn members(count: usize) -> (Vec<Member>, Vec<MemberConfig>) {
    let members: Vec<Member> = (0..count).map(|_| Member::new()).collect();
    let configs = members.iter().map(|member| member.config.clone()).collect();
    (members, configs)
}

fn options(level: Level) -> CreateOptions {
    CreateOptions { name: "test".into(), level, chunk_len: 64 << 10, force: false }
}

async fn open(configs: &[MemberConfig]) -> Array {
    Array::open(OpenOptions::default(), configs.to_vec(), Pool::new()).await.unwrap()
}

fn contents(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

async fn write(device: &Device, seed: u64) {
    let all = contents(seed, usize::try_from(device.info().capacity).unwrap());
    for (at, piece) in all.chunks(PIECE).enumerate() {
        let mut buf = BufMut::zeroed(piece.len());
        buf.copy_from_slice(piece);
        completions::write(device, (at * PIECE) as u64, buf.freeze().into(), false).await.unwrap();
    }
}

async fn verify(device: &Device, seed: u64) {
    let all = contents(seed, usize::try_from(device.info().capacity).unwrap());
    for (at, piece) in all.chunks(PIECE).enumerate() {
        let read =
            completions::read(device, (at * PIECE) as u64, piece.len() as u64).await.unwrap();
        assert!(&*read.to_contiguous() == piece, "piece {at} differs");
    }
}

async fn command(array: &Array, request: ControlRequest) {
    array.handle().command(request).await.unwrap();
}

async fn wait_for(array: &mut Array, wanted: impl Fn(&Event) -> bool) {
    while !wanted(&array.event().await.expect("the array's task ended")) {}
}

#[tokio::test]
async fn a_lost_member_is_replaced_while_data_changes() {
    let (mut targets, mut configs) = members(4).await;
    create(options(Level::Raid5), configs.clone(), Pool::new()).await.unwrap();
    let mut array = open(&configs).await;
    write(array.device(), 1).await;
    targets[1].kill().await;
    verify(array.device(), 1).await;
    write(array.device(), 2).await;
    let status = array.handle().status().await.unwrap();
    assert_eq!((status.state.as_str(), status.members[1].state.as_str()), ("degraded", "faulty"));
    let spare = Member::new();
    let with = spare.config.address();
    command(&array, ControlRequest::Replace { member: "1".into(), with, force: false }).await;
    write(array.device(), 3).await;
    wait_for(&mut array, |event| *event == Event::Rebuilt { member: 1 }).await;
    verify(array.device(), 3).await;
    array.close().await.unwrap();
    configs[1] = spare.config.clone();
    let array = open(&configs).await;
    assert_eq!(array.handle().status().await.unwrap().state, "optimal");
    targets[3].kill().await;
    verify(array.device(), 3).await;
}

#[tokio::test]
async fn a_target_that_restarts_is_set_aside_and_taken_back_by_rebuild() {
    let (mut targets, configs) = members(3).await;
    create(options(Level::Raid1), configs.clone(), Pool::new()).await.unwrap();
    let mut array = open(&configs).await;
    write(array.device(), 1).await;
    targets[2].restart().await;
    write(array.device(), 2).await;
    assert_eq!(array.handle().status().await.unwrap().members[2].state, "faulty");
    command(&array, ControlRequest::Rebuild { member: "2".into() }).await;
    wait_for(&mut array, |event| *event == Event::Rebuilt { member: 2 }).await;
    targets[0].kill().await;
    targets[1].kill().await;
    verify(array.device(), 2).await;
    array.close().await.unwrap();
}

/// Keeps writes while there is a list for them.
struct Sticky {
    device: Device,
    kept: Mutex<Option<Vec<Request>>>,
}

impl BlockDevice for Sticky {
    fn info(&self) -> DeviceInfo {
        self.device.info().clone()
    }

    fn submit(&self, request: Request) {
        match &mut *self.kept.lock().unwrap() {
            Some(kept) if request.op == Op::Write => kept.push(request),
            _ => self.device.submit(request),
        }
    }
}

/// Its old session has a write under way: the new one begins when that one has ended. Both have
/// one ISID, and would end each other in turns, while the old one sends its write again.
#[tokio::test]
async fn a_member_that_is_taken_back_at_once_never_has_two_sessions() {
    let ram = backings::ram(MEMBER_LEN, 512, Pool::new()).unwrap();
    let sticky = Arc::new(Sticky { device: ram, kept: Mutex::default() });
    let (_targets, mut configs) = members(2).await;
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let target = Member::start(Device::new(sticky.clone()), &format!("{NAME}-sticky"), listen);
    configs.push(MemberConfig { request_timeout: Duration::from_secs(5), ..target.config.clone() });
    create(options(Level::Raid1), configs.clone(), Pool::new()).await.unwrap();
    let mut array = open(&configs).await;
    write(array.device(), 1).await;
    *sticky.kept.lock().unwrap() = Some(Vec::new());
    let device = array.device().clone();
    let late = tokio::spawn(async move {
        completions::write(&device, 0, BufMut::zeroed(4096).freeze().into(), false).await
    });
    while sticky.kept.lock().unwrap().as_ref().is_some_and(Vec::is_empty) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    command(&array, ControlRequest::Fail { member: "2".into() }).await;
    let handle = array.handle().clone();
    let mut again = tokio::spawn(async move {
        handle.command(ControlRequest::Rebuild { member: "2".into() }).await
    });
    // Long enough for a session that does not wait.
    let early = tokio::time::timeout(Duration::from_millis(300), &mut again).await;
    assert!(early.is_err(), "{early:?}");
    let kept = sticky.kept.lock().unwrap().take().unwrap();
    kept.into_iter().for_each(|request| sticky.device.submit(request));
    late.await.unwrap().unwrap();
    again.await.unwrap().unwrap();
    wait_for(&mut array, |event| *event == Event::Rebuilt { member: 2 }).await;
    let counters = target.handle.report().await.unwrap().counters;
    assert!(counters.contains(&("reinstatements", 0)), "{counters:?}");
    array.close().await.unwrap();
}

/// Members that have to prove themselves are not replaced by one that does not.
#[tokio::test]
async fn a_replacement_has_to_prove_what_the_members_prove() {
    let secret = |bytes: &[u8]| Secret::new(bytes).unwrap();
    let own = ChapCredentials { user: "joe".into(), secret: secret(b"hidden-secret-16") };
    let theirs = ChapCredentials { user: "disk".into(), secret: secret(b"hidden-secret-of-disk") };
    let start = |number: u32, mutual_chap: Option<ChapCredentials>| {
        let device = backings::ram(MEMBER_LEN, 512, Pool::new()).unwrap();
        let name = format!("{NAME}-proves-{number}");
        let mut config = TargetConfig::new(&name);
        config.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        (config.chap, config.mutual_chap) = (Some(own.clone()), mutual_chap);
        let mut member = Member::start_as(device, &name, config);
        member.config.uri.user = Some("joe".into());
        member
    };
    let members: Vec<Member> = (0..2).map(|at| start(at, Some(theirs.clone()))).collect();
    let configs = members.iter().map(|member| MemberConfig {
        secret: Some(own.secret.clone()),
        mutual: Some((Some("disk".into()), theirs.secret.clone())),
        ..member.config.clone()
    });
    let configs: Vec<MemberConfig> = configs.collect();
    create(options(Level::Raid1), configs.clone(), Pool::new()).await.unwrap();
    let mut array = open(&configs).await;
    let (stranger, true_one) = (start(2, None), start(3, Some(theirs)));
    let replace = |with: &Member| ControlRequest::Replace {
        member: "1".into(),
        with: with.config.address(),
        force: false,
    };
    let refused = array.handle().command(replace(&stranger)).await;
    assert!(matches!(refused, Err(ArrayError::Member(_))), "{refused:?}");
    command(&array, replace(&true_one)).await;
    wait_for(&mut array, |event| *event == Event::Rebuilt { member: 1 }).await;
    array.close().await.unwrap();
}

#[tokio::test]
async fn beyond_redundancy_requests_end_with_an_error_that_names_the_members() {
    let (mut targets, configs) = members(3).await;
    create(options(Level::Raid5), configs.clone(), Pool::new()).await.unwrap();
    let array = open(&configs).await;
    write(array.device(), 1).await;
    targets.iter_mut().take(2).for_each(|target| drop(target.stop.take()));
    for target in targets.iter_mut().take(2) {
        (&mut target.task).await.unwrap();
    }
    let error = completions::read(array.device(), 0, 1 << 20).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Redundancy);
    assert!(error.to_string().contains("members 0, 1"), "{error}");
    assert!(array.close().await.is_err(), "what was not flushed may be lost");
    targets[0].restart().await;
    targets[1].restart().await;
    let again = Array::open(OpenOptions::default(), configs.clone(), Pool::new()).await;
    let error = again.unwrap_err().to_string();
    assert!(error.contains("was not closed") && error.contains("lacks members"), "{error}");
    let force = OpenOptions { force: true, ..OpenOptions::default() };
    let array = Array::open(force, configs, Pool::new()).await.unwrap();
    verify(array.device(), 1).await;
}

#[tokio::test]
async fn two_engines_of_a_machine_cannot_have_one_array() {
    let (_targets, configs) = members(3).await;
    create(options(Level::Raid5), configs.clone(), Pool::new()).await.unwrap();
    let array = open(&configs).await;
    let second = Array::open(OpenOptions::default(), configs.clone(), Pool::new()).await;
    assert!(matches!(second, Err(ArrayError::Locked { .. })), "{second:?}");
    array.close().await.unwrap();
    drop(open(&configs).await);
}

#[tokio::test]
async fn an_engine_that_dies_leaves_an_array_that_opens_and_resyncs() {
    let (_targets, configs) = members(4).await;
    create(options(Level::Raid5), configs.clone(), Pool::new()).await.unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, first_configs) = (std::thread::spawn(move || runtime), configs.clone());
    let runtime = first.join().unwrap();
    // The engine's runtime is dropped in the middle of everything, as if its process had died.
    std::thread::spawn(move || {
        runtime.block_on(async {
            let array = open(&first_configs).await;
            write(array.device(), 5).await;
            std::mem::forget(array);
        });
        runtime.shutdown_background();
    })
    .join()
    .unwrap();
    let mut array = open(&configs).await;
    wait_for(&mut array, |event| *event == Event::Resynced).await;
    verify(array.device(), 5).await;
    array.close().await.unwrap();
}

#[tokio::test]
async fn create_refuses_what_is_in_use_and_force_overrides() {
    let (targets, configs) = members(3).await;
    completions::write(
        &targets[1].device,
        1024,
        netraid_block::Buf::copy_from(&[1; 512]).into(),
        false,
    )
    .await
    .unwrap();
    let refused = create(options(Level::Raid5), configs.clone(), Pool::new()).await.unwrap_err();
    assert!(
        matches!(&refused, ArrayError::InUse { address, .. } if *address == configs[1].address())
    );
    let few = create(options(Level::Raid5), configs[..2].to_vec(), Pool::new()).await.unwrap_err();
    assert!(few.to_string().contains("level 5 takes 3 to"), "{few}");
    let force = CreateOptions { force: true, ..options(Level::Raid5) };
    create(force, configs.clone(), Pool::new()).await.unwrap();
    let array = open(&configs).await;
    array.close().await.unwrap();
}

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
    command(&array, ControlRequest::Replace { member: "1".into(), with, force: false }).await;
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
