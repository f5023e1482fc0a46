//! A tape: a thread that takes or gives blocks at a steady rate, and notes when it had to wait.
//!
//! By default it stands in memory; with a path it writes to, or reads from, a device or file at that
//! rate. Between it and the target lie some blocks. It waits when there is none left (or no room), goes on
//! at its rate after that, and counts the wait. That it woke up late itself is no wait: it takes what it
//! missed at once.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use netraid_evaluate::record::{Settings, TapeReport};

use super::{
    load::{Hook, Shared},
    target,
};

/// How often a tape that waits looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);

/// One block; empty where the tape stands in memory.
type Block = Vec<u8>;

/// The end of a tape that a stream holds.
pub(super) struct TapeEnd {
    way: Way,
    in_between: Arc<AtomicUsize>,
    /// What came and is not written yet.
    block: Option<Block>,
    keep: bool,
}

enum Way {
    To(SyncSender<Block>),
    From(Receiver<Block>),
}

/// A running tape.
pub(super) struct Tape {
    thread: JoinHandle<Result<TapeReport>>,
}

/// How a tape runs.
#[derive(Debug, Clone)]
struct Pace {
    path: Option<PathBuf>,
    block_len: usize,
    blocks: u64,
    bytes_per_s: f64,
    /// Blocks that may lie in between.
    room: usize,
}

impl Pace {
    fn of(settings: &Settings, bytes: u64) -> Self {
        let block_len = settings.buffer_bytes as usize;
        let room = settings.tape_buffer_bytes / u64::from(settings.buffer_bytes).max(1);
        Self {
            path: settings.tape.as_ref().map(PathBuf::from),
            block_len,
            blocks: bytes.div_ceil(block_len.max(1) as u64).max(1),
            bytes_per_s: settings.tape_bytes_per_s.max(1) as f64,
            // Clamped: memory ends before.
            room: usize::try_from(room).unwrap_or(usize::MAX).max(2),
        }
    }

    /// When block number `index` is due.
    fn due(&self, began: Instant, index: u64) -> Instant {
        began + Duration::from_secs_f64(index as f64 * self.block_len as f64 / self.bytes_per_s)
    }
}

/// A tape that takes `bytes` from the target.
pub(super) fn taking(settings: &Settings, bytes: u64, shared: &Shared) -> Result<(Tape, TapeEnd)> {
    let pace = Pace::of(settings, bytes);
    let (sender, receiver) = sync_channel(pace.room);
    let in_between = Arc::new(AtomicUsize::new(0));
    let file = pace.path.as_deref().map(to_write).transpose()?;
    let end = TapeEnd {
        way: Way::To(sender),
        in_between: in_between.clone(),
        block: None,
        keep: file.is_some(),
    };
    let shared = shared.clone();
    let thread = thread::spawn(move || take(&pace, file, &receiver, &in_between, &shared));
    Ok((Tape { thread }, end))
}

/// A tape that gives `bytes` to the target.
pub(super) fn giving(settings: &Settings, bytes: u64, shared: &Shared) -> Result<(Tape, TapeEnd)> {
    let pace = Pace::of(settings, bytes);
    let (sender, receiver) = sync_channel(pace.room);
    let file = pace.path.as_deref().map(to_read).transpose()?;
    let in_between = Arc::new(AtomicUsize::new(0));
    let end = TapeEnd { way: Way::From(receiver), in_between, block: None, keep: file.is_some() };
    let shared = shared.clone();
    let thread = thread::spawn(move || give(&pace, file, &sender, &shared));
    Ok((Tape { thread }, end))
}

impl Tape {
    /// How it fared, when the stream's end is dropped.
    pub(super) fn report(self) -> Result<TapeReport> {
        self.thread.join().map_err(|_| anyhow!("the tape's thread panicked"))?
    }
}

impl Hook for TapeEnd {
    fn before(&mut self) -> Result<bool> {
        let Way::From(receiver) = &self.way else { return Ok(true) };
        self.block = receiver.recv().ok();
        Ok(self.block.is_some())
    }

    fn fill(&mut self, bytes: &mut [u8]) -> bool {
        match self.block.take() {
            Some(block) if block.len() == bytes.len() => {
                bytes.copy_from_slice(&block);
                true
            }
            Some(_) | None => false,
        }
    }

    fn after(&mut self, bytes: &[u8]) -> Result<()> {
        if let Way::To(sender) = &self.way {
            let block = if self.keep { bytes.to_vec() } else { Block::new() };
            self.in_between.fetch_add(1, Ordering::Relaxed);
            // A tape that has enough has gone; the stream ends by its own time.
            let _ = sender.send(block);
        }
        Ok(())
    }
}

/// What a tape notes.
struct Notes {
    report: TapeReport,
    began: Instant,
}

impl Notes {
    fn new(pace: &Pace) -> Self {
        let report = TapeReport {
            wanted_mb_per_s: pace.bytes_per_s / 1e6,
            starved: 0,
            starved_s: 0.0,
            longest_s: 0.0,
            own_late_s: 0.0,
        };
        Self { report, began: Instant::now() }
    }

    /// It waited; all that follows is later by as much.
    fn waited(&mut self, wait: Duration) {
        let seconds = wait.as_secs_f64();
        self.report.starved += 1;
        self.report.starved_s += seconds;
        self.report.longest_s = self.report.longest_s.max(seconds);
        self.began += wait;
    }

    /// Its own device was not done in time.
    fn late(&mut self, due: Instant) {
        let late = Instant::now().saturating_duration_since(due).as_secs_f64();
        self.report.own_late_s = self.report.own_late_s.max(late);
    }
}

fn take(
    pace: &Pace,
    mut file: Option<File>,
    receiver: &Receiver<Block>,
    in_between: &AtomicUsize,
    shared: &Shared,
) -> Result<TapeReport> {
    // It starts when all that may lie in between does: so do drives with a buffer.
    // Clamped: the room is less.
    let full = pace.room.min(usize::try_from(pace.blocks).unwrap_or(usize::MAX));
    let patience = Instant::now() + Duration::from_secs(60);
    while in_between.load(Ordering::Relaxed) < full
        && !shared.is_stopped()
        && Instant::now() < patience
    {
        thread::sleep(Duration::from_millis(1));
    }
    let mut notes = Notes::new(pace);
    for index in 0..pace.blocks {
        sleep_until(pace.due(notes.began, index), shared);
        let block = match receiver.try_recv() {
            Ok(block) => block,
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                let began = Instant::now();
                let Some(block) = wait_for(receiver, shared) else { break };
                notes.waited(began.elapsed());
                block
            }
        };
        if let Some(file) = &mut file {
            file.write_all(&block).context("tape")?;
            notes.late(pace.due(notes.began, index + 1));
        }
    }
    if let Some(file) = file {
        // A tape's driver has nothing to flush, and says so.
        let _ = file.sync_data();
    }
    Ok(notes.report)
}

fn wait_for(receiver: &Receiver<Block>, shared: &Shared) -> Option<Block> {
    loop {
        match receiver.recv_timeout(LOOK) {
            Ok(block) => return Some(block),
            Err(RecvTimeoutError::Timeout) if !shared.is_stopped() => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
        }
    }
}

fn give(
    pace: &Pace,
    mut file: Option<File>,
    sender: &SyncSender<Block>,
    shared: &Shared,
) -> Result<TapeReport> {
    let mut notes = Notes::new(pace);
    for index in 0..pace.blocks {
        let mut block = Block::new();
        if let Some(file) = &mut file {
            block.resize(pace.block_len, 0);
            file.read_exact(&mut block).context("tape: it ends before the test")?;
            notes.late(pace.due(notes.began, index + 1));
        }
        sleep_until(pace.due(notes.began, index), shared);
        if shared.is_stopped() {
            break;
        }
        match sender.try_send(block) {
            Ok(()) => {}
            Err(TrySendError::Disconnected(_)) => break,
            Err(TrySendError::Full(block)) => {
                let began = Instant::now();
                if sender.send(block).is_err() {
                    break;
                }
                notes.waited(began.elapsed());
            }
        }
    }
    Ok(notes.report)
}

fn sleep_until(due: Instant, shared: &Shared) {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() || shared.is_stopped() {
            return;
        }
        thread::sleep(left.min(LOOK));
    }
}

fn to_write(path: &Path) -> Result<File> {
    target::tape(path, true)?;
    let opened = std::fs::OpenOptions::new().write(true).open(path);
    opened.with_context(|| format!("tape {}", path.display()))
}

fn to_read(path: &Path) -> Result<File> {
    target::tape(path, true)?;
    File::open(path).with_context(|| format!("tape {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::data::Data;
    use std::sync::atomic::AtomicBool;

    fn shared() -> Shared {
        let data = Arc::new(Data::new(None, 1).unwrap());
        Shared { data, stop: Arc::new(AtomicBool::new(false)) }
    }

    fn settings() -> Settings {
        let mut settings: Settings = crate::evaluate::options::tests::settings();
        settings.tape_bytes_per_s = 10_000_000;
        settings.buffer_bytes = 100_000;
        settings.tape_buffer_bytes = 400_000;
        settings
    }

    #[test]
    fn a_tape_keeps_its_rate_and_waits_for_a_slow_target_only() {
        let shared = shared();
        // Before the tape's own thread begins.
        let began = Instant::now();
        // Room for all blocks: however late the machine lets this thread run, it is no slow target.
        let mut roomy = settings();
        roomy.tape_buffer_bytes = 3_000_000;
        let (tape, mut end) = giving(&roomy, 3_000_000, &shared).unwrap();
        while end.before().unwrap() {}
        // 30 blocks at 100 a second.
        assert!(began.elapsed() >= Duration::from_millis(285));
        drop(end);
        assert_eq!(tape.report().unwrap().starved, 0);

        let (tape, mut end) = giving(&settings(), 1_000_000, &shared).unwrap();
        // Room for four blocks is gone after 40 ms.
        thread::sleep(Duration::from_millis(500));
        while end.before().unwrap() {}
        drop(end);
        let report = tape.report().unwrap();
        assert!(report.starved >= 1 && report.longest_s > 0.05, "{report:?}");
    }

    #[test]
    fn a_tape_that_takes_waits_when_nothing_comes() {
        let shared = shared();
        let (tape, mut end) = taking(&settings(), 1_000_000, &shared).unwrap();
        for _ in 0..5 {
            end.after(&[]).unwrap();
        }
        // The five are gone after 50 ms.
        thread::sleep(Duration::from_millis(500));
        for _ in 5..10 {
            end.after(&[]).unwrap();
        }
        drop(end);
        let report = tape.report().unwrap();
        assert!(report.starved >= 1 && report.longest_s > 0.05, "{report:?}");
    }
}
