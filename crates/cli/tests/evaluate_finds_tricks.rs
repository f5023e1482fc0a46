//! Tricks that are planted in a device are found by `netraid evaluate`, alone and two at a time, and
//! none is found in an honest one.
//!
//! The devices are memory behind NBD whose requests take the time that a slow disk would, one after the
//! other: 40 MB/s, and eight times that where a trick answers.

#![allow(clippy::unwrap_used, reason = "a failure here is a failure of the test")]

use std::{
    collections::VecDeque,
    process::Command,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use netraid_block::{BlockDevice, Buf, Device, DeviceInfo, Op, Pool, Request, SgList};
use netraid_export::nbd::{NbdAddress, NbdServer};
use serde_json::Value;

const CAPACITY: usize = 64 << 20;
/// Bytes a second of the disk.
const RATE: f64 = 40e6;
/// How much faster a trick is.
const FASTER: f64 = 8.0;
/// Bytes that a cache for reading holds: more than a file of 8 MiB, less than two.
const READ_CACHE: usize = 12 << 20;
/// Bytes that a cache for writing holds: more than a burst, less than a long write.
const WRITE_CACHE: f64 = 512.0 * 1024.0;
/// Bytes that are cached together.
const LINE: usize = 64 << 10;

#[derive(Debug, Clone, Copy, Default)]
struct Tricks {
    /// Zeros are left out.
    zeros: bool,
    /// What was touched lately is answered from a cache.
    cache: bool,
    /// Flushes do nothing, and writes are acknowledged from a cache.
    flush: bool,
}

struct Disk {
    requests: Mutex<mpsc::Sender<Request>>,
}

impl Disk {
    fn device(tricks: Tricks) -> Device {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || Worker::new(tricks).serve(&receiver));
        Device::new(Arc::new(Self { requests: Mutex::new(sender) }))
    }
}

impl BlockDevice for Disk {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            capacity: CAPACITY as u64,
            block_len: 512,
            optimal_len: 4096,
            max_transfer_len: 2 << 20,
            read_only: false,
            volatile_cache: true,
            can_discard: false,
            can_map: false,
        }
    }

    fn submit(&self, request: Request) {
        // A worker that is gone drops it, which ends it.
        let _ = self.requests.lock().unwrap().send(request);
    }
}

struct Worker {
    tricks: Tricks,
    bytes: Vec<u8>,
    /// Lines in the cache, those touched last at the end.
    lines: VecDeque<usize>,
    /// Bytes in the cache for writing, at that time.
    dirty: (f64, Instant),
    /// Until when the disk is busy.
    busy: Instant,
}

impl Worker {
    fn new(tricks: Tricks) -> Self {
        let now = Instant::now();
        let (lines, dirty) = (VecDeque::new(), (0.0, now));
        Self { tricks, bytes: vec![0; CAPACITY], lines, dirty, busy: now }
    }

    fn serve(mut self, requests: &mpsc::Receiver<Request>) {
        for request in requests {
            let from = usize::try_from(request.offset).unwrap();
            let range = from..from + usize::try_from(request.len).unwrap();
            let answer = match request.op {
                Op::Read => {
                    let zeros = self.bytes[range.clone()].iter().all(|byte| *byte == 0);
                    let cached = self.touch(range.clone());
                    self.take(range.len(), zeros && self.tricks.zeros || cached);
                    SgList::from(Buf::copy_from(&self.bytes[range]))
                }
                Op::Write => {
                    request.data.copy_to(&mut self.bytes[range.clone()]);
                    let zeros = self.bytes[range.clone()].iter().all(|byte| *byte == 0);
                    self.touch(range.clone());
                    if zeros && self.tricks.zeros {
                        self.take(range.len(), true);
                    } else if self.tricks.flush {
                        self.buffer(range.len());
                    } else {
                        self.take(range.len(), false);
                    }
                    SgList::new()
                }
                Op::Flush | Op::Discard | Op::WriteZeroes | Op::Extents => SgList::new(),
            };
            request.completion.finish(Ok(answer));
        }
    }

    /// Takes the time of so many bytes: of the disk, or of a trick. What one request slept too long, the next
    /// ones have less to sleep.
    fn take(&mut self, len: usize, trick: bool) {
        let rate = if trick { RATE * FASTER } else { RATE };
        let least = Instant::now() - Duration::from_millis(2);
        self.busy = self.busy.max(least) + Duration::from_secs_f64(len as f64 / rate);
        thread::sleep(self.busy.saturating_duration_since(Instant::now()));
    }

    /// Puts bytes into the cache for writing, from which they go at the disk's rate.
    fn buffer(&mut self, len: usize) {
        let drained = |(bytes, at): (f64, Instant)| {
            ((bytes - at.elapsed().as_secs_f64() * RATE).max(0.0), Instant::now())
        };
        self.dirty = drained(self.dirty);
        let over = self.dirty.0 + len as f64 - WRITE_CACHE;
        if over > 0.0 {
            thread::sleep(Duration::from_secs_f64(over / RATE));
            self.dirty = drained(self.dirty);
        }
        self.dirty.0 += len as f64;
        self.take(len, true);
    }

    /// Whether all of it is in the cache; it is then.
    fn touch(&mut self, range: std::ops::Range<usize>) -> bool {
        if !self.tricks.cache {
            return false;
        }
        let mut all = true;
        for line in range.start / LINE..range.end.div_ceil(LINE) {
            match self.lines.iter().position(|other| *other == line) {
                Some(index) => drop(self.lines.remove(index)),
                None => all = false,
            }
            self.lines.push_back(line);
        }
        while self.lines.len() * LINE > READ_CACHE {
            self.lines.pop_front();
        }
        all
    }
}

/// The tricks that a target's findings name, in the order zeros, cache, flush.
fn found(target: &Value) -> [&str; 3] {
    let state = |kind: &str| {
        let findings = target["findings"].as_array().unwrap();
        let finding = findings.iter().find(|finding| finding["kind"] == kind).unwrap();
        finding["state"].as_str().unwrap()
    };
    ["compression", "cache_only", "unstable_writes"].map(state)
}

#[test]
fn planted_tricks_are_found_alone_and_in_pairs() {
    let all: Vec<Tricks> = (0..7)
        .map(|bits| Tricks { zeros: bits & 1 > 0, cache: bits & 2 > 0, flush: bits & 4 > 0 })
        .collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut uris = Vec::new();
    for (index, tricks) in all.iter().enumerate() {
        let socket = dir.path().join(format!("{index}.sock"));
        let address: NbdAddress = format!("unix:{}", socket.display()).parse().unwrap();
        let device = Disk::device(*tricks);
        let server = NbdServer::bind(&address, device, "disk", Pool::new());
        let server = runtime.block_on(server).unwrap();
        uris.push(server.uri());
        runtime.spawn(async move { server.run(std::future::pending::<()>()).await.unwrap() });
    }
    let log = dir.path().join("log");
    let output = Command::new(env!("CARGO_BIN_EXE_netraid"))
        .args(["evaluate", "--json", "--destroy-data", "--tests", "host.1,host.2,trick"])
        .args(["--file-size", "8MiB", "--net-file-size", "8MiB", "--buffer", "64KiB", "--log"])
        .arg(&log)
        .args(&uris)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let targets = document["targets"].as_array().unwrap();
    assert_eq!(targets.len(), all.len());
    for (tricks, target) in all.iter().zip(targets) {
        let planted = [tricks.zeros, tricks.cache, tricks.flush];
        let found = found(target);
        for (planted, found) in planted.iter().zip(found) {
            assert_eq!(*planted, found == "found", "{tricks:?}: {found:?}: {}", target["findings"]);
        }
    }
}
