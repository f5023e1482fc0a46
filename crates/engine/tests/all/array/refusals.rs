//! What is refused, or fails, has changed nothing.

use netraid_block::Buf;

use super::*;

/// Fails requests of one kind once so many have been carried out.
struct Refusing {
    device: Device,
    refuses: fn(&Op) -> bool,
    left: AtomicU32,
}

impl BlockDevice for Refusing {
    fn info(&self) -> DeviceInfo {
        // What has no cache has nothing to flush, and may refuse that.
        DeviceInfo { volatile_cache: true, ..self.device.info().clone() }
    }

    fn submit(&self, request: Request) {
        let one_less = |left: u32| left.checked_sub(1);
        let counts = (self.refuses)(&request.op);
        if counts && self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err()
        {
            return request.completion.finish(Err(ErrorKind::Device.into()));
        }
        self.device.submit(request);
    }
}

fn writes(op: &Op) -> bool {
    matches!(op, Op::Write | Op::WriteZeroes)
}

fn flushes(op: &Op) -> bool {
    matches!(op, Op::Flush)
}

/// Fills a device with bytes that have no short period.
async fn fill(device: &Device, seed: u64) {
    let piece = contents(seed, PIECE);
    for at in (0..MEMBER_LEN).step_by(PIECE) {
        let len = PIECE.min(usize::try_from(MEMBER_LEN - at).unwrap());
        let bytes = Buf::copy_from(&piece[..len]);
        completions::write(device, at, bytes.into(), false).await.unwrap();
    }
}

/// Whether a device has what [`fill`] wrote, and nothing else.
async fn is_filled(device: &Device, seed: u64) -> bool {
    let piece = contents(seed, PIECE);
    all_of(device).await.chunks(PIECE).all(|part| part == &piece[..part.len()])
}

/// A member that is full of bytes, behind what refuses.
async fn refusing(refuses: fn(&Op) -> bool, after: u32) -> (Arc<Refusing>, Member) {
    let device = backings::ram(MEMBER_LEN, 512, Pool::new()).unwrap();
    fill(&device, 3).await;
    let left = AtomicU32::new(after);
    let refusing = Arc::new(Refusing { device, refuses, left });
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("{NAME}-refuses{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let target = Member::start(Device::new(refusing.clone()), &name, listen);
    (refusing, target)
}

/// Two members that are full of bytes.
async fn full() -> (Vec<Member>, Vec<MemberConfig>) {
    let (targets, configs) = members(2).await;
    for (seed, target) in (1..).zip(&targets) {
        fill(&target.device, seed).await;
    }
    (targets, configs)
}

fn forced(log: Log) -> CreateOptions {
    CreateOptions { force: true, log, ..options(Level::Raid5) }
}

#[tokio::test]
async fn a_member_that_takes_no_writes_leaves_the_others_as_they_were() {
    for (refuses, log) in [
        (writes as fn(&Op) -> bool, Log::Off),
        (writes, Log::On(None)),
        (flushes, Log::Off),
        (flushes, Log::On(None)),
    ] {
        let (targets, mut configs) = full().await;
        let (third, target) = refusing(refuses, 0).await;
        configs.push(target.config.clone());
        let error = create(forced(log), configs, Pool::new()).await.unwrap_err();
        assert!(error.to_string().contains(&target.config.address()), "{error}");
        for (seed, device) in (1..).zip([&targets[0].device, &targets[1].device, &third.device]) {
            assert!(is_filled(device, seed).await, "member {seed}");
        }
    }
}

#[tokio::test]
async fn what_a_create_has_overwritten_that_fails_later_is_put_back() {
    for (refuses, log) in
        [(writes as fn(&Op) -> bool, Log::Off), (flushes, Log::Off), (flushes, Log::On(None))]
    {
        let (targets, others) = full().await;
        let mut failed = 0;
        for after in 0.. {
            let (third, target) = refusing(refuses, after).await;
            let configs = [others.clone(), vec![target.config.clone()]].concat();
            let Err(error) = create(forced(log), configs, Pool::new()).await else { break };
            failed += 1;
            for (seed, target) in (1..).zip(&targets) {
                assert!(is_filled(&target.device, seed).await, "member {seed}, {after} before");
            }
            // What cannot be put back is said of the member that takes no more writes.
            let is_changed = !is_filled(&third.device, 3).await;
            let address = target.config.address();
            if let ArrayError::NotPutBack { lost, .. } = &error {
                assert!(lost.contains(&format!("{address}: bytes 0 to ")), "{error}");
            } else {
                assert!(!is_changed, "{error}");
            }
        }
        assert!(failed > 3, "{failed}");
    }
}

/// Tells that a flush has come, and never answers it.
struct Silent {
    device: Device,
    before: AtomicU32,
    reached: tokio::sync::Notify,
    kept: Mutex<Vec<Request>>,
}

impl BlockDevice for Silent {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { volatile_cache: true, ..self.device.info().clone() }
    }

    fn submit(&self, request: Request) {
        let one_less = |left: u32| left.checked_sub(1);
        let is_flush = flushes(&request.op);
        if is_flush
            && self.before.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err()
        {
            self.kept.lock().unwrap().push(request);
            return self.reached.notify_one();
        }
        self.device.submit(request);
    }
}

/// As a process does that is killed: nothing is put back.
#[tokio::test]
async fn a_create_that_was_cut_short_leaves_members_that_are_unused() {
    let mut cut_short = 0;
    for before in 0..8 {
        let (targets, mut configs) = members(2).await;
        let device = backings::ram(MEMBER_LEN, 512, Pool::new()).unwrap();
        let (before, kept) = (AtomicU32::new(before), Mutex::default());
        let silent = Arc::new(Silent { device, before, reached: tokio::sync::Notify::new(), kept });
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let target = Member::start(Device::new(silent.clone()), &format!("{NAME}-silent"), listen);
        configs.push(target.config.clone());

        let mut made = tokio::spawn(create(options(Level::Raid5), configs.clone(), Pool::new()));
        tokio::select! {
            () = silent.reached.notified() => made.abort(),
            end = &mut made => {
                end.unwrap().unwrap();
                break;
            }
        }
        silent.before.store(u32::MAX, Ordering::Relaxed);
        assert!(made.await.unwrap_err().is_cancelled());
        let kept: Vec<Request> = silent.kept.lock().unwrap().drain(..).collect();
        kept.into_iter()
            .for_each(|request| request.completion.finish(Err(ErrorKind::Device.into())));
        let head = completions::read(&silent.device, 0, 512).await.unwrap();
        if head.to_contiguous().starts_with(b"NETRAID\n") {
            // All else was written before. What has a label says itself that it is a member.
            break;
        }
        cut_short += 1;
        // Somebody else may have used a device since: md leaves the first 4 KiB alone.
        let mut md = vec![0; 512];
        md[..4].copy_from_slice(&0xa92b_4efc_u32.to_le_bytes());
        write_at(&targets[0].device, 4096, &md).await;
        let error = create(options(Level::Raid5), configs.clone(), Pool::new()).await.unwrap_err();
        assert!(matches!(error, ArrayError::InUse { .. }), "{error}");
        write_at(&targets[0].device, 4096, &[0; 512]).await;
        create(options(Level::Raid5), configs.clone(), Pool::new()).await.unwrap();
    }
    assert!(cut_short >= 3, "{cut_short}");
}

#[tokio::test]
async fn a_device_that_takes_no_writes_replaces_no_member_that_serves() {
    let (_targets, configs) = members(3).await;
    create(options(Level::Raid5), configs.clone(), Pool::new()).await.unwrap();
    let array = open(&configs).await;
    let (spare, target) = refusing(writes, 0).await;
    let with = target.config.address();
    let replace = ControlRequest::Replace { member: "1".into(), with, secret: None, force: true };
    array.handle().command(replace).await.unwrap_err();
    let status = array.handle().status().await.unwrap();
    assert_eq!((status.state.as_str(), status.members[1].state.as_str()), ("optimal", "in_sync"));
    assert!(is_filled(&spare.device, 3).await);
    array.close().await.unwrap();
}
