//! An array over our initiator and our target, on loopback.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod fencing;
mod halves;
mod heard;
mod logged;
mod many_reads;
mod read_ahead;
mod refusals;
mod unsteady;

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
    array::{
        Array, ArrayError, CreateOptions, Event, Keyring, Log, MemberConfig, OpenOptions, create,
        create_degraded,
    },
    backings, completions,
    control::{ControlRequest, HandedSecret},
    initiator::{InitiatorConfig, Remote, ReservationType, Secret},
    target::{ChapCredentials, Target, TargetConfig, TargetHandle},
};
use netraid_raid::{assemble::AssembleError, geometry::Level, member::MemberIndex};
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
        self.handle.ended().await;
    }

    /// Ends and begins again in good order, with what it had stored.
    async fn restart(&mut self) {
        if !self.task.is_finished() {
            drop(self.stop.take());
            (&mut self.task).await.unwrap();
        }
        let uri = &self.config.uri;
        let address: SocketAddr = format!("{}:{}", uri.host, uri.port).parse().unwrap();
        // A client of another test may have been given the port meanwhile.
        for _ in 0..1000 {
            if std::net::TcpListener::bind(address).is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        *self = Self::start(self.device.clone(), &uri.target, address);
    }
}

async fn members(count: usize) -> (Vec<Member>, Vec<MemberConfig>) {
    let members: Vec<Member> = (0..count).map(|_| Member::new()).collect();
    let configs = members.iter().map(|member| member.config.clone()).collect();
    (members, configs)
}

fn options(level: Level) -> CreateOptions {
    let (name, log) = ("test".into(), Log::Off);
    CreateOptions { name, level, chunk_len: Some(64 << 10), force: false, keep_opened: false, log }
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
    command(
        &array,
        ControlRequest::Replace { member: "1".into(), with, secret: None, force: false },
    )
    .await;
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
        (config.chap, config.mutual_chap) = (vec![own.clone()], mutual_chap);
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
        secret: None,
        force: false,
    };
    let refused = array.handle().command(replace(&stranger)).await;
    assert!(matches!(refused, Err(ArrayError::Member(_))), "{refused:?}");
    command(&array, replace(&true_one)).await;
    wait_for(&mut array, |event| *event == Event::Rebuilt { member: 1 }).await;
    array.close().await.unwrap();
}

/// A target is never shown the proof of another user, and an address's own secret counts.
#[tokio::test]
async fn a_replacement_has_the_secret_of_its_own_user() {
    let secret = |user: &str| Secret::new(format!("hidden-secret-of-{user}")).unwrap();
    let start = |number: u32, user: &str| {
        let device = backings::ram(MEMBER_LEN, 512, Pool::new()).unwrap();
        let name = format!("{NAME}-of-{user}-{number}");
        let mut config = TargetConfig::new(&name);
        config.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        config.chap = vec![ChapCredentials { user: user.into(), secret: secret(user) }];
        let mut member = Member::start_as(device, &name, config);
        member.config.uri.user = Some(user.into());
        member.config.secret = Some(secret(user));
        member
    };
    for has_keyring in [false, true] {
        let known = ["joe", "ann"];
        let members: Vec<Member> = (0..2).map(|at| start(at, known[at as usize])).collect();
        let mut configs: Vec<MemberConfig> = members.iter().map(|one| one.config.clone()).collect();
        create(options(Level::Raid1), configs.clone(), Pool::new()).await.unwrap();
        let keyring = Keyring::new(move |uri| match uri.user.as_deref() {
            Some("eve") => Err("no secret for user 'eve'".to_owned()),
            user => Ok(user.map(secret)),
        });
        for config in configs.iter_mut().filter(|_| has_keyring) {
            config.keyring = Some(keyring.clone());
        }
        let mut array = open(&configs).await;
        // In the place of a member that has another user.
        let (of_ann, of_eve) = (start(2, "ann"), start(3, "eve"));
        let replace = |with: &Member| ControlRequest::Replace {
            member: "0".into(),
            with: with.config.address(),
            secret: None,
            force: false,
        };
        let refused = array.handle().command(replace(&of_eve)).await.unwrap_err().to_string();
        assert!(refused.contains("no secret"), "{refused}");
        command(&array, replace(&of_ann)).await;
        wait_for(&mut array, |event| *event == Event::Rebuilt { member: 0 }).await;

        // One that is handed over with the address counts, whatever the array knows.
        let handed = |of: &str| ControlRequest::Replace {
            member: "0".into(),
            with: of_eve.config.address(),
            secret: Some(HandedSecret(secret(of))),
            force: false,
        };
        let refused = array.handle().command(handed("ann")).await.unwrap_err().to_string();
        assert!(refused.contains("authentication") && !refused.contains("hidden"), "{refused}");
        command(&array, handed("eve")).await;
        wait_for(&mut array, |event| *event == Event::Rebuilt { member: 0 }).await;
        array.close().await.unwrap();
    }
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
    // That a member is set aside is on one of those that would go on, so nobody has gone on.
    let mut array = open(&configs).await;
    wait_for(&mut array, |event| *event == Event::Resynced).await;
    verify(array.device(), 1).await;
    assert_eq!(array.handle().status().await.unwrap().state, "optimal");
    array.close().await.unwrap();
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
    for level in [Level::Raid6, Level::Raid10] {
        let refused = create(options(level), configs.clone(), Pool::new()).await.unwrap_err();
        assert!(matches!(refused, ArrayError::NeedsLog(_)), "{refused}");
    }
    let logged = CreateOptions { log: Log::On(None), ..options(Level::Raid0) };
    let refused = create(logged, configs.clone(), Pool::new()).await.unwrap_err();
    assert!(matches!(refused, ArrayError::NoUseForLog(_)), "{refused}");
    let force = CreateOptions { force: true, ..options(Level::Raid5) };
    create(force, configs.clone(), Pool::new()).await.unwrap();
    let array = open(&configs).await;
    array.close().await.unwrap();
}

/// A target at two addresses, by each of which its LUN is given.
fn at_two_addresses(name: &str) -> (Member, [MemberConfig; 2]) {
    let device = backings::ram(MEMBER_LEN, 512, Pool::new()).unwrap();
    let name = format!("{NAME}-{name}");
    let mut config = TargetConfig::new(&name);
    config.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0)); 2];
    let target = Target::bind(config, vec![device.clone().into()], Pool::new()).unwrap();
    let configs = [0, 1].map(|at| {
        let uri = format!("iscsi://{}/{name}/0", target.local_addrs()[at]);
        MemberConfig::new(TargetUri::parse(&uri).unwrap(), None)
    });
    let handle = target.handle().clone();
    let (stop, stopped) = oneshot::channel::<()>();
    let task =
        tokio::spawn(async move { target.run(async { drop(stopped.await) }).await.unwrap() });
    (Member { device, config: configs[0].clone(), handle, stop: Some(stop), task }, configs)
}

async fn all_of(device: &Device) -> Vec<u8> {
    let mut all = Vec::new();
    for at in (0..MEMBER_LEN).step_by(PIECE) {
        let len = (MEMBER_LEN - at).min(PIECE as u64);
        all.extend_from_slice(&completions::read(device, at, len).await.unwrap().to_contiguous());
    }
    all
}

async fn write_at(device: &Device, offset: u64, bytes: &[u8]) {
    let bytes = netraid_block::Buf::copy_from(bytes);
    completions::write(device, offset, bytes.into(), false).await.unwrap();
}

#[tokio::test]
async fn a_create_that_is_refused_has_changed_no_byte() {
    let (target, twice) = at_two_addresses("twice");
    let other = Member::new();
    let given = vec![twice[0].clone(), other.config.clone(), twice[1].clone()];
    let refused = create(options(Level::Raid5), given.clone(), Pool::new()).await.unwrap_err();
    assert!(matches!(refused, ArrayError::Twice { .. }), "{refused}");
    assert!(all_of(&target.device).await.iter().all(|byte| *byte == 0));
    assert!(all_of(&other.device).await.iter().all(|byte| *byte == 0));
    // Nor by force, where there is something.
    write_at(&target.device, 0, &contents(1, 1 << 20)).await;
    let before = all_of(&target.device).await;
    let force = CreateOptions { force: true, ..options(Level::Raid5) };
    let refused = create(force, given, Pool::new()).await.unwrap_err();
    assert!(matches!(refused, ArrayError::Twice { .. }), "{refused}");
    assert!(all_of(&target.device).await == before);
}

#[tokio::test]
async fn a_mark_that_an_interrupted_create_has_left_is_no_use() {
    let (targets, configs) = members(2).await;
    let part = [b"netraid's mark.\n".as_slice(), &contents(2, 16)].concat();
    write_at(&targets[0].device, 0, &part.repeat(128)).await;
    create(options(Level::Raid1), configs.clone(), Pool::new()).await.unwrap();
    open(&configs).await.close().await.unwrap();
}

/// Fails all writes beyond this offset.
struct Broken(Device, AtomicU32);

impl BlockDevice for Broken {
    fn info(&self) -> DeviceInfo {
        self.0.info().clone()
    }

    fn submit(&self, request: Request) {
        let is_late = request.offset >= u64::from(self.1.load(Ordering::Relaxed));
        if is_late && matches!(request.op, Op::Write | Op::WriteZeroes) {
            return request.completion.finish(Err(ErrorKind::Medium.into()));
        }
        self.0.submit(request);
    }
}

#[tokio::test]
async fn a_create_that_fails_leaves_members_that_another_one_takes() {
    let (targets, mut configs) = members(2).await;
    let ram = backings::ram(MEMBER_LEN, 512, Pool::new()).unwrap();
    // Its labels can be written, and what is behind them cannot: the others have theirs by then.
    let broken = Arc::new(Broken(ram.clone(), AtomicU32::new(64 << 10)));
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let target = Member::start(Device::new(broken.clone()), &format!("{NAME}-broken"), listen);
    configs.push(target.config.clone());
    let failed = create(options(Level::Raid5), configs.clone(), Pool::new()).await.unwrap_err();
    assert!(matches!(failed, ArrayError::Io { .. }), "{failed}");
    for device in [&targets[0].device, &targets[1].device, &ram] {
        assert!(all_of(device).await[..1 << 20].iter().all(|byte| *byte == 0));
    }
    broken.1.store(u32::MAX, Ordering::Relaxed);
    create(options(Level::Raid5), configs.clone(), Pool::new()).await.unwrap();
    open(&configs).await.close().await.unwrap();
}

#[tokio::test]
async fn an_array_has_no_name_that_stands_for_a_directory() {
    let (targets, configs) = members(2).await;
    for name in [".", ".."] {
        let wrong = CreateOptions { name: name.into(), force: true, ..options(Level::Raid1) };
        let refused = create(wrong, configs.clone(), Pool::new()).await.unwrap_err();
        assert!(matches!(refused, ArrayError::Name(_)), "{refused}");
    }
    assert!(all_of(&targets[0].device).await.iter().all(|byte| *byte == 0));
}
