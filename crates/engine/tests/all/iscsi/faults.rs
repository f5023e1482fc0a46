//! Peers that stop, hang, lie, or come back.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use netraid_block::{
    BlockDevice, Buf, Device, DeviceInfo, ErrorKind, Op, Pool, Request, TargetUri,
};
use netraid_engine::{
    completions,
    initiator::{InitiatorConfig, Reason, Remote},
    target::DigestPolicy,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::iscsi::common::{NAME, Running, config, connect, exercise, ram, refused, restart};

#[tokio::test]
async fn a_port_that_says_nothing_is_given_up() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let uri = TargetUri::parse(&format!("iscsi://{address}/{NAME}/0")).unwrap();
    let login_timeout = Duration::from_millis(300);
    let started = Instant::now();
    let reason = refused(InitiatorConfig { login_timeout, ..InitiatorConfig::new(uri) }).await;
    assert!(matches!(reason, Reason::Silent(_)), "{reason}");
    assert!(started.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn requests_survive_a_restart_of_the_target() {
    let disk = ram();
    for orderly in [true, false] {
        let mut target = Running::start(config(), std::slice::from_ref(&disk));
        let remote = connect(target.uri(0)).await;
        let device = remote.clone().into_device();
        let (stop, stopped) = (Arc::new(AtomicBool::new(false)), device.clone());
        let writer = tokio::spawn({
            let stop = stop.clone();
            async move {
                let mut written = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    let data = Buf::copy_from(&[written.to_le_bytes()[0]; 8192]);
                    let offset = written % 512 * 8192;
                    completions::write(&stopped, offset, data.into(), false).await.unwrap();
                    written += 1;
                    tokio::task::yield_now().await;
                }
                written
            }
        });
        for round in 1..=3 {
            let address = target.address;
            if orderly {
                target.stop().await;
            } else {
                target.kill().await;
            }
            target = restart(address, std::slice::from_ref(&disk));
            // Served by the new session, whatever happened to the old one.
            completions::read(&device, 0, 4096).await.unwrap();
            assert!(remote.cache_losses() >= round, "a new session was not told");
        }
        stop.store(true, Ordering::Relaxed);
        let written = writer.await.unwrap();
        assert!(written > 0 && remote.reconnects() >= 3 && remote.is_connected());
        let last = completions::read(&device, (written - 1) % 512 * 8192, 8192).await.unwrap();
        assert!(last.to_contiguous().iter().all(|byte| *byte == (written - 1).to_le_bytes()[0]));
        remote.close().await;
        target.stop().await;
    }
}

#[tokio::test]
async fn a_request_fails_at_its_deadline_when_nobody_answers() {
    let target = Running::start(config(), &[ram()]);
    let mut config = InitiatorConfig::new(target.uri(0));
    config.request_timeout = Duration::from_millis(500);
    config.refusal_limit = Duration::from_secs(60);
    let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
    let device = remote.clone().into_device();
    target.kill().await;
    for _ in 0..2 {
        let started = Instant::now();
        let error = completions::read(&device, 0, 4096).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        let took = started.elapsed();
        assert!((Duration::from_millis(400)..Duration::from_secs(2)).contains(&took), "{took:?}");
    }
    remote.close().await;
    assert_eq!(
        completions::flush(&device).await.unwrap_err().kind(),
        ErrorKind::Aborted,
        "the handle is closed"
    );
}

/// A device that keeps some requests until it is told to go on.
struct Sticky {
    inner: Device,
    stuck: AtomicBool,
    kept: Mutex<Vec<Request>>,
}

impl BlockDevice for Sticky {
    fn info(&self) -> DeviceInfo {
        self.inner.info().clone()
    }

    fn submit(&self, request: Request) {
        if self.stuck.load(Ordering::Acquire) && request.op == Op::Write {
            self.kept.lock().unwrap().push(request);
        } else {
            self.inner.submit(request);
        }
    }
}

#[tokio::test]
async fn a_write_given_up_never_overtakes_a_later_one() {
    let sticky =
        Arc::new(Sticky { inner: ram(), stuck: AtomicBool::new(true), kept: Mutex::default() });
    let target = Running::start(config(), &[Device::new(sticky.clone())]);
    let mut config = InitiatorConfig::new(target.uri(0));
    config.request_timeout = Duration::from_millis(600);
    let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
    let device = remote.clone().into_device();
    let write = |byte| completions::write(&device, 0, Buf::copy_from(&[byte; 4096]).into(), false);
    let error = write(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    sticky.stuck.store(false, Ordering::Release);
    // The target still has the first write: nothing may be written over it before it has ended.
    let error = write(2).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unreachable), "{error}");
    let kept = std::mem::take(&mut *sticky.kept.lock().unwrap());
    assert_eq!(kept.len(), 1);
    kept.into_iter().for_each(|request| sticky.inner.submit(request));
    write(3).await.unwrap();
    let data = completions::read(&device, 0, 4096).await.unwrap();
    assert!(data.to_contiguous().iter().all(|byte| *byte == 3));
    remote.close().await;
    target.stop().await;
}

#[tokio::test]
async fn a_stuck_write_fails_in_its_time_although_others_go_on() {
    let sticky =
        Arc::new(Sticky { inner: ram(), stuck: AtomicBool::new(true), kept: Mutex::default() });
    let target = Running::start(config(), &[Device::new(sticky.clone())]);
    let mut config = InitiatorConfig::new(target.uri(0));
    config.request_timeout = Duration::from_millis(600);
    let time = config.request_timeout;
    let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
    let device = remote.clone().into_device();
    let begun = Instant::now();
    // So much that the target asks for it, which shows nothing of the device.
    let data = Buf::copy_from(&vec![1; 1 << 20]);
    let write = completions::write(&device, 0, data.into(), false);
    tokio::pin!(write);
    let error = loop {
        let read = completions::read(&device, 0, 4096);
        let pause = tokio::time::sleep(time / 3);
        tokio::select! {
            end = &mut write => break end.unwrap_err(),
            () = async { pause.await; drop(read.await) } => {}
        }
    };
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(begun.elapsed() < time * 3, "{:?}", begun.elapsed());
    sticky.stuck.store(false, Ordering::Release);
    let kept = std::mem::take(&mut *sticky.kept.lock().unwrap());
    kept.into_iter().for_each(|request| sticky.inner.submit(request));
    remote.close().await;
    target.stop().await;
}

/// A device with a bug that a first write meets.
struct Buggy {
    inner: Device,
    met: AtomicBool,
}

impl BlockDevice for Buggy {
    fn info(&self) -> DeviceInfo {
        self.inner.info().clone()
    }

    fn submit(&self, request: Request) {
        assert!(request.op != Op::Write || self.met.swap(true, Ordering::AcqRel), "a bug");
        self.inner.submit(request);
    }
}

#[tokio::test]
async fn a_bug_in_one_connection_leaves_no_session_behind() {
    let buggy = Buggy { inner: ram(), met: AtomicBool::new(false) };
    let target = Running::start(config(), &[Device::new(Arc::new(buggy))]);
    let remote = connect(target.uri(0)).await;
    let device = remote.clone().into_device();
    // Sent again by a new session of the same port, which the old one must not keep out.
    completions::write(&device, 0, Buf::copy_from(&[1; 512]).into(), false).await.unwrap();
    assert_eq!(remote.reconnects(), 1);
    remote.close().await;
    target.stop().await;
}

/// A relay in front of a target that can damage or stop what passes.
struct Relay {
    address: SocketAddr,
    state: Arc<RelayState>,
}

#[derive(Default)]
struct RelayState {
    /// Bytes until one bit is flipped, over and over; 0 never.
    damage_every: AtomicU64,
    damaged: AtomicU64,
    /// Connections up to this number pass nothing any more.
    frozen: AtomicU64,
    connections: AtomicU64,
}

impl Relay {
    async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(RelayState::default());
        let shared = state.clone();
        tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let Ok(far) = TcpStream::connect(target).await else { continue };
                let number = shared.connections.fetch_add(1, Ordering::AcqRel) + 1;
                let (near_in, near_out) = near.into_split();
                let (far_in, far_out) = far.into_split();
                tokio::spawn(pass(near_in, far_out, number, shared.clone()));
                tokio::spawn(pass(far_in, near_out, number, shared.clone()));
            }
        });
        Self { address, state }
    }

    fn uri(&self) -> TargetUri {
        TargetUri::parse(&format!("iscsi://{}/{NAME}/0", self.address)).unwrap()
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    number: u64,
    state: Arc<RelayState>,
) {
    let mut bytes = vec![0; 64 * 1024];
    let mut passed = 0_u64;
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if state.frozen.load(Ordering::Acquire) >= number {
            // Open, and silent for good.
            std::future::pending::<()>().await;
        }
        let every = state.damage_every.load(Ordering::Acquire);
        if every > 0 {
            let until = every - passed % every;
            if let Some(byte) = bytes[..count].get_mut(usize::try_from(until).unwrap()) {
                *byte ^= 0x10;
                state.damaged.fetch_add(1, Ordering::AcqRel);
            }
            passed += count as u64;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn damage_on_the_wire_is_never_data() {
    let mut config = config();
    config.header_digest = DigestPolicy::Required;
    config.data_digest = DigestPolicy::Required;
    let target = Running::start(config, &[ram()]);
    let relay = Relay::start(target.address).await;
    let mut config = InitiatorConfig::new(relay.uri());
    (config.header_digest, config.data_digest) = (true, true);
    config.request_timeout = Duration::from_secs(30);
    let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
    // Each connection passes some MiB before it is damaged: enough to make progress.
    relay.state.damage_every.store(5_000_011, Ordering::Release);
    exercise(&remote.clone().into_device(), 20, 5).await;
    relay.state.damage_every.store(0, Ordering::Release);
    assert!(relay.state.damaged.load(Ordering::Acquire) > 2, "nothing was damaged");
    assert!(remote.reconnects() > 2, "damage went unnoticed");
    remote.close().await;
    target.stop().await;
}

#[tokio::test]
async fn a_hung_connection_is_left_in_time() {
    let target = Running::start(config(), &[ram()]);
    let relay = Relay::start(target.address).await;
    let mut config = InitiatorConfig::new(relay.uri());
    config.request_timeout = Duration::from_secs(2);
    let remote = Arc::new(Remote::connect(config, Pool::new()).await.unwrap());
    let device = remote.clone().into_device();
    for round in 1..=2 {
        let open = relay.state.connections.load(Ordering::Acquire);
        relay.state.frozen.store(open, Ordering::Release);
        let data = Buf::copy_from(&[round; 4096]);
        completions::write(&device, 0, data.into(), false).await.unwrap();
        let data = completions::read(&device, 0, 4096).await.unwrap();
        assert!(data.to_contiguous().iter().all(|byte| *byte == round));
        assert_eq!(remote.reconnects(), u64::from(round));
    }
    target.stop().await;
}

#[tokio::test]
async fn strangers_do_not_disturb_a_session() {
    let mut config = config();
    config.limits.visitors_max = 4;
    config.login_timeout = Duration::from_millis(300);
    let target = Running::start(config, &[ram()]);
    let remote = connect(target.uri(0)).await;
    let device = remote.clone().into_device();
    let mut strangers = Vec::new();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 47], &[0x43; 4096], &[0xff; 9000]] {
        let mut stream = TcpStream::connect(target.address).await.unwrap();
        let _ = stream.write_all(bytes).await;
        strangers.push(stream);
    }
    completions::read(&device, 0, 4096).await.unwrap();
    // Each is dropped: at once, or when its time for a login is over.
    for mut stranger in strangers {
        let mut rest = Vec::new();
        let end = tokio::time::timeout(Duration::from_secs(5), stranger.read_to_end(&mut rest));
        let _ = end.await.expect("a stranger is still connected");
    }
    let other = connect(target.uri(0)).await;
    completions::write(&device, 0, Buf::copy_from(&[1; 512]).into(), false).await.unwrap();
    let data = completions::read(&other.clone().into_device(), 0, 512).await.unwrap();
    assert_eq!(data.to_contiguous()[0], 1);
    assert_eq!(remote.reconnects(), 0);
    target.stop().await;
}
