//! A target to run, and a load whose results are checked.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use netraid_block::{BlockDevice, Buf, Device, DeviceInfo, Op, Pool, Request, SgList, TargetUri};
use netraid_engine::{
    backings, completions,
    initiator::{InitiatorConfig, Reason, Remote},
    target::{Lun, Target, TargetConfig, TargetHandle},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::sync::oneshot;

pub(crate) const NAME: &str = "iqn.2026-01.org.example:test";
pub(crate) const SIZE: u64 = 8 << 20;

pub(crate) fn ram() -> Device {
    backings::ram(SIZE, 512, Pool::new()).unwrap()
}

pub(crate) fn config() -> TargetConfig {
    let mut config = TargetConfig::new(NAME);
    config.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    // Sessions of one test are served side by side.
    config.threads = 3;
    config
}

/// Where tokens let in.
pub(crate) fn one_thread() -> TargetConfig {
    TargetConfig { threads: 1, ..config() }
}

/// A device that keeps writes until it is told to go on.
pub(crate) struct Sticky {
    inner: Device,
    stuck: AtomicBool,
    kept: Mutex<Vec<Request>>,
}

impl Sticky {
    pub(crate) fn new(inner: Device) -> Self {
        Self { inner, stuck: AtomicBool::new(false), kept: Mutex::default() }
    }

    /// Writes are kept from now on.
    pub(crate) fn stick(&self) {
        self.stuck.store(true, Ordering::Release);
    }

    /// Further writes are carried out.
    pub(crate) fn take_on(&self) {
        self.stuck.store(false, Ordering::Release);
    }

    /// Number of writes that are kept.
    pub(crate) fn keeps(&self) -> usize {
        self.kept.lock().unwrap().len()
    }

    /// Carries out one that was kept.
    pub(crate) fn go_on_with(&self, at: usize) {
        let request = self.kept.lock().unwrap().remove(at);
        self.inner.submit(request);
    }

    /// Carries out what was kept, and all further writes.
    pub(crate) fn go_on(&self) {
        self.take_on();
        let kept = std::mem::take(&mut *self.kept.lock().unwrap());
        kept.into_iter().for_each(|request| self.inner.submit(request));
    }
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

/// A running target; dropping the sender stops it in order.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) handle: TargetHandle,
    pub(crate) addresses: Vec<SocketAddr>,
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    pub(crate) fn start(config: TargetConfig, devices: &[Device]) -> Self {
        Self::start_luns(config, devices.iter().cloned().map(Into::into).collect())
    }

    pub(crate) fn start_luns(config: TargetConfig, luns: Vec<Lun>) -> Self {
        let target = Target::bind(config, luns, Pool::new()).unwrap();
        let addresses = target.local_addrs();
        let address = addresses[0];
        let handle = target.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            target.run(stopped).await.unwrap();
        });
        Self { address, addresses, handle, stop, task }
    }

    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        self.task.await.unwrap();
    }

    /// As a crash: nobody is told.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
        self.handle.ended().await;
    }

    pub(crate) fn uri(&self, lun: u16) -> TargetUri {
        TargetUri::parse(&format!("iscsi://{}/{NAME}/{lun}", self.address)).unwrap()
    }
}

pub(crate) async fn connect(uri: TargetUri) -> Arc<Remote> {
    Arc::new(Remote::connect(InitiatorConfig::new(uri), Pool::new()).await.unwrap())
}

pub(crate) async fn refused(config: InitiatorConfig) -> Reason {
    let error = Remote::connect(config, Pool::new()).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("iscsi://") && text.contains("127.0.0.1"), "{text} names no address");
    assert!(!text.contains("hidden"), "{text} shows a secret");
    error.into_reason()
}

/// Random reads and writes, several at a time, compared with a flat copy.
pub(crate) async fn exercise(device: &Device, rounds: usize, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut model = vec![0_u8; usize::try_from(SIZE).unwrap()];
    let max = u64::from(device.info().max_transfer_len).min(SIZE / 8) / 512;
    for _ in 0..rounds {
        // Lanes do not overlap, so that their order does not matter.
        let mut running = Vec::new();
        for lane in 0..8_u64 {
            let lane_len = SIZE / 512 / 8;
            let blocks = rng.random_range(1..=max.min(lane_len));
            let lba = lane * lane_len + rng.random_range(0..=lane_len - blocks);
            let (offset, len) = (lba * 512, blocks * 512);
            let range = usize::try_from(offset).unwrap()..usize::try_from(offset + len).unwrap();
            let device = device.clone();
            match rng.random_range(0..8) {
                0..3 => {
                    rng.fill(&mut model[range.clone()]);
                    let part = range.len() / 3;
                    let data: SgList = [&model[range.clone()][..part], &model[range][part..]]
                        .map(Buf::copy_from)
                        .into_iter()
                        .collect();
                    let fua = rng.random();
                    running.push(tokio::spawn(async move {
                        completions::write(&device, offset, data, fua).await.unwrap();
                    }));
                }
                3 => {
                    model[range].fill(0);
                    running.push(tokio::spawn(async move {
                        completions::write_zeroes(&device, offset, len).await.unwrap();
                    }));
                }
                4 => running.push(tokio::spawn(async move {
                    completions::flush(&device).await.unwrap();
                })),
                _ => {
                    let expected = model[range].to_vec();
                    running.push(tokio::spawn(async move {
                        let data = completions::read(&device, offset, len).await.unwrap();
                        assert!(*data.to_contiguous() == expected[..], "{len} bytes at {offset}");
                    }));
                }
            }
        }
        for task in running {
            task.await.unwrap();
        }
    }
    for (at, expected) in model.chunks(1 << 20).enumerate() {
        let data = completions::read(device, (at as u64) << 20, 1 << 20).await.unwrap();
        assert!(*data.to_contiguous() == *expected, "MiB {at}");
    }
}

/// Starts a target on the address of one that has ended.
pub(crate) fn restart(address: SocketAddr, devices: &[Device]) -> Running {
    Running::start(TargetConfig { listen: vec![address], ..config() }, devices)
}
