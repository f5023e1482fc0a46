//! Tricks that are planted in a device are found by `netraid evaluate`, alone and two at a time, and
//! none is found in an honest one, nor in one that is throttled, be it in writing alone.
//!
//! The devices are memory behind NBD whose requests take the time that a slow disk would, one after the
//! other: 3 MB/s, and eight times that where a trick answers or a throttle lets pass. That slow, so that what
//! else the machine does for some milliseconds makes no difference; all of them are evaluated at the same
//! time, which is spent asleep.

#![allow(clippy::unwrap_used, reason = "a failure here is a failure of the test")]

use std::{
    collections::VecDeque,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, LazyLock, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use netraid_block::{BlockDevice, Buf, Device, DeviceInfo, Op, Pool, Request, SgList};
use netraid_export::nbd::{NbdAddress, NbdServer};
use serde_json::Value;

const CAPACITY: usize = 64 << 20;
/// Bytes a second of the disk.
const RATE: f64 = 3e6;
/// How much faster a trick is.
const FASTER: f64 = 8.0;
/// Bytes that a cache for reading holds: more than a file of 8 MiB, less than two.
const READ_CACHE: usize = 12 << 20;
/// Bytes that are cached together, and of a request.
const LINE: usize = 64 << 10;
/// Bytes that a cache for writing holds: more than a burst (4 requests), less than a long write (32).
const WRITE_CACHE: usize = 8 * LINE;
/// As much as a disk's own: 16 requests.
const WRITE_CACHE_OF_16: usize = 16 * LINE;
/// Less than a third of a burst: what only small bursts show.
const WRITE_CACHE_OF_1: usize = LINE;
/// Bytes that a throttle lets pass after a pause.
const CREDIT: usize = 8 * LINE;

#[derive(Debug, Clone, Copy, Default)]
struct Tricks {
    /// Zeros are left out.
    zeros: bool,
    /// What was touched lately is answered from a cache.
    cache: bool,
    /// Flushes do nothing, and writes are acknowledged from a cache of so many bytes, in which what is written
    /// again takes the place of what was there.
    flush: Option<usize>,
    /// No trick: these are held to a rate, for which a pause gives credit.
    throttle: Throttle,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Throttle {
    #[default]
    None,
    Writes,
    ReadsAndWrites,
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
    /// Lines that are only in the cache for writing, those that go to the disk first at the front.
    dirty: VecDeque<usize>,
    /// Since when the disk writes the first of them.
    drains: Instant,
    /// Bytes that a throttle let pass ahead of its rate, at that time.
    ahead: (f64, Instant),
    /// Until when the disk is busy.
    busy: Instant,
}

impl Worker {
    fn new(tricks: Tricks) -> Self {
        let now = Instant::now();
        let bytes = vec![0; CAPACITY];
        let (lines, dirty) = (VecDeque::new(), VecDeque::new());
        Self { tricks, bytes, lines, dirty, drains: now, ahead: (0.0, now), busy: now }
    }

    fn serve(mut self, requests: &mpsc::Receiver<Request>) {
        for request in requests {
            let from = usize::try_from(request.offset).unwrap();
            let range = from..from + usize::try_from(request.len).unwrap();
            let answer = match request.op {
                Op::Read => {
                    let zeros = self.bytes[range.clone()].iter().all(|byte| *byte == 0);
                    let cached = self.touch(range.clone());
                    if zeros && self.tricks.zeros || cached {
                        self.take(range.len(), true);
                    } else if self.tricks.throttle == Throttle::ReadsAndWrites {
                        self.throttle(range.len());
                    } else {
                        self.take(range.len(), false);
                    }
                    SgList::from(Buf::copy_from(&self.bytes[range]))
                }
                Op::Write => {
                    request.data.copy_to(&mut self.bytes[range.clone()]);
                    let zeros = self.bytes[range.clone()].iter().all(|byte| *byte == 0);
                    self.touch(range.clone());
                    if zeros && self.tricks.zeros {
                        self.take(range.len(), true);
                    } else if let Some(bytes) = self.tricks.flush {
                        self.write_back(range, bytes / LINE);
                    } else if self.tricks.throttle != Throttle::None {
                        self.throttle(range.len());
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
    /// ones have less to sleep; what nobody asked for is not saved up, as a throttle would.
    fn take(&mut self, len: usize, trick: bool) {
        let rate = if trick { RATE * FASTER } else { RATE };
        let now = Instant::now();
        let was_idle = now.saturating_duration_since(self.busy) > Duration::from_millis(2);
        let begin = if was_idle { now } else { self.busy };
        self.busy = begin + Duration::from_secs_f64(len as f64 / rate);
        thread::sleep(self.busy.saturating_duration_since(Instant::now()));
    }

    /// Takes bytes at once for which there is credit; it grows at the disk's rate.
    fn throttle(&mut self, len: usize) {
        let after = |(bytes, at): (f64, Instant)| {
            ((bytes - at.elapsed().as_secs_f64() * RATE).max(0.0), Instant::now())
        };
        self.ahead = after(self.ahead);
        let over = self.ahead.0 + len as f64 - CREDIT as f64;
        if over > 0.0 {
            thread::sleep(Duration::from_secs_f64(over / RATE));
            self.ahead = after(self.ahead);
        }
        self.ahead.0 += len as f64;
        self.take(len, true);
    }

    /// Takes lines at once while so many have room in the cache, from which they go at the disk's rate.
    fn write_back(&mut self, range: std::ops::Range<usize>, most: usize) {
        for line in range.start / LINE..range.end.div_ceil(LINE) {
            self.drain();
            if self.dirty.contains(&line) {
                continue;
            }
            while self.dirty.len() >= most {
                thread::sleep(
                    (self.drains + line_time()).saturating_duration_since(Instant::now()),
                );
                self.drain();
            }
            if self.dirty.is_empty() {
                self.drains = Instant::now();
            }
            self.dirty.push_back(line);
        }
        self.take(range.len(), true);
    }

    /// Takes out of the cache what the disk has by now.
    fn drain(&mut self) {
        while !self.dirty.is_empty() && self.drains + line_time() <= Instant::now() {
            self.dirty.pop_front();
            self.drains += line_time();
        }
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

/// What the disk takes for a line.
fn line_time() -> Duration {
    Duration::from_secs_f64(LINE as f64 / RATE)
}

/// Tests of most disks.
const MOST: &str = "host.1,host.2,trick";
/// Tests of one that has nothing to go by but the test of its cache.
const CACHE_ALONE: &str = "host.1,host.2,trick.cache";

/// What is said of every disk. All are evaluated at once, so that the baselines of one, which take all
/// processors, do not come beside the rates of another.
static SAID: LazyLock<Vec<Case>> = LazyLock::new(|| {
    let mut all: Vec<(Tricks, &str)> = all_tricks().into_iter().map(|of| (of, MOST)).collect();
    for throttle in [Throttle::Writes, Throttle::ReadsAndWrites] {
        let throttle = Tricks { throttle, ..Tricks::default() };
        all.push((throttle, MOST));
        all.push((Tricks { zeros: true, ..throttle }, MOST));
        all.push((Tricks { cache: true, ..throttle }, MOST));
    }
    all.push((Tricks { cache: true, ..Tricks::default() }, CACHE_ALONE));
    evaluated(&all)
});

struct Case {
    tricks: Tricks,
    tests: &'static str,
    target: Value,
}

/// What `netraid evaluate` says of disks with these tricks by these tests.
fn evaluated(all: &[(Tricks, &'static str)]) -> Vec<Case> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let started = all.iter().enumerate().map(|(index, (tricks, tests))| {
        let socket = dir.path().join(format!("{index}.sock"));
        let address: NbdAddress = format!("unix:{}", socket.display()).parse().unwrap();
        let device = Disk::device(*tricks);
        let server = NbdServer::bind(&address, device, "disk", Pool::new());
        let server = runtime.block_on(server).unwrap();
        let uri = server.uri();
        runtime.spawn(async move { server.run(std::future::pending::<()>()).await.unwrap() });
        evaluate(&uri, tests, &dir.path().join(format!("{index}.log")))
    });
    // Collected, so that all are started before the first is waited for.
    let started: Vec<Child> = started.collect();
    let ended = started.into_iter().map(target_of);
    let case = |(&(tricks, tests), target)| Case { tricks, tests, target };
    all.iter().zip(ended).map(case).collect()
}

fn evaluate(uri: &str, tests: &str, log: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_netraid"))
        .args(["evaluate", "--json", "--destroy-data", "--tests", tests])
        .args(["--file-size", "8MiB", "--net-file-size", "8MiB", "--buffer", "64KiB"])
        .args(["--rounds", "3", "--log"])
        .args([log, Path::new(uri)])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn target_of(child: Child) -> Value {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    document["targets"][0].clone()
}

/// What is said of one kind of finding; nothing where it was not looked for.
fn state<'a>(target: &'a Value, kind: &str) -> Option<&'a str> {
    let mut findings = target["findings"].as_array().unwrap().iter();
    findings.find(|finding| finding["kind"] == kind)?["state"].as_str()
}

/// Every trick alone and two at a time.
fn all_tricks() -> Vec<Tricks> {
    let mut all = Vec::new();
    for flush in [None, Some(WRITE_CACHE_OF_1), Some(WRITE_CACHE), Some(WRITE_CACHE_OF_16)] {
        for (zeros, cache) in [(false, false), (true, false), (false, true), (true, true)] {
            if !(zeros && cache && flush.is_some()) {
                all.push(Tricks { zeros, cache, flush, throttle: Throttle::None });
            }
        }
    }
    all
}

#[test]
fn planted_tricks_are_found_alone_and_in_pairs() {
    let most =
        SAID.iter().filter(|case| case.tests == MOST && case.tricks.throttle == Throttle::None);
    for Case { tricks, target, .. } in most {
        let planted = [tricks.zeros, tricks.cache, tricks.flush.is_some()];
        let kinds = ["compression", "cache_only", "unstable_writes"];
        for (planted, kind) in planted.iter().zip(kinds) {
            let found = state(target, kind) == Some("found");
            assert_eq!(*planted, found, "{tricks:?}: {kind}: {}", target["findings"]);
        }
        // Reads are looked at where writes ask for it, and nothing holds them back.
        let reads = tricks.flush.map(|_| "clear");
        assert_eq!(state(target, "throttled"), reads, "{tricks:?}: {}", target["findings"]);
    }
}

#[test]
fn a_throttle_is_told_and_is_not_taken_for_a_trick() {
    for Case { tricks, target, .. } in
        SAID.iter().filter(|case| case.tricks.throttle != Throttle::None)
    {
        let findings = &target["findings"];
        // A cache that takes what is overwritten for new would look like a throttle of writes alone.
        let told = match tricks.throttle {
            Throttle::ReadsAndWrites => "note",
            Throttle::Writes | Throttle::None => "could_not_tell",
        };
        assert_eq!(state(target, "throttled"), Some(told), "{tricks:?}: {findings}");
        let unstable = state(target, "unstable_writes");
        assert_eq!(unstable, Some("could_not_tell"), "{tricks:?}: {findings}");
        for (planted, kind) in [(tricks.zeros, "compression"), (tricks.cache, "cache_only")] {
            let found = state(target, kind) == Some("found");
            assert_eq!(planted, found, "{tricks:?}: {kind}: {findings}");
        }
    }
}

#[test]
fn a_cache_of_more_than_a_file_is_found_by_its_own_test() {
    let target = &SAID.iter().find(|case| case.tests == CACHE_ALONE).unwrap().target;
    assert_eq!(state(target, "cache_only"), Some("found"), "{}", target["findings"]);
}
