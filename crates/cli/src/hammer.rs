//! `netraid hammer`: keeps an NBD export busy, connects again whenever it is lost, and holds what
//! is there against its own record. It is what the tests of crashes use, as a process of its own.
//!
//! Invariant: of each block of 4 KiB at most one version is under way at a time, so that a block
//! holds its last acknowledged version or that one, and nothing else. Once it was read after the
//! loss of a connection, what was found is what it has to hold.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use netraid_block::narrow;
use serde::Serialize;

use crate::{
    nbd_client::{Command, Job, NbdClient, NbdUri, Source},
    output::Output,
    pattern::{self, BLOCK_LEN},
    signal::Stop,
    size,
};

const DEPTH: usize = 16;
/// Bytes of a request that verifies.
const VERIFY_LEN: u32 = 512 << 10;
/// An export that is away for longer does not come back.
const AWAY_MAX: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);
/// Places that are tried for a request, before it is a flush.
const TRIES: u32 = 8;

#[derive(Debug, Clone, Args)]
pub(crate) struct HammerArgs {
    /// The export: nbd://host:port/name or nbd+unix:///name?socket=PATH; all zeros in the beginning
    uri: String,
    /// Bytes from the start of the export
    #[arg(long, value_parser = size::parse)]
    len: u64,
    /// What places and sizes are drawn from
    #[arg(long)]
    seed: u64,
}

/// What is said each time when everything was read and is right.
#[derive(Debug, Serialize)]
struct Verified {
    event: &'static str,
    /// Writes acknowledged so far.
    acked: u64,
    /// Blocks that were being written when the connection was lost.
    in_flight: u64,
    /// Of these, how many hold what was being written.
    landed: u64,
}

pub(crate) fn run(args: &HammerArgs, output: Output) -> Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let stop = runtime.block_on(async { Stop::listen() })?;
    let mut record = Record::new(args, stop.clone());
    output.announce(&serde_json::json!({ "event": "ready" }), String::new);
    let mut seen = Instant::now();
    while !stop.is_set() {
        match turn(args, &mut record, output) {
            Ok(()) => seen = Instant::now(),
            Err(error) => {
                if let Some(wrong) = record.wrong {
                    bail!("{}: {wrong}", args.uri);
                }
                if record.verified {
                    seen = Instant::now();
                }
                if seen.elapsed() > AWAY_MAX {
                    return Err(error.context("the export does not come back"));
                }
                std::thread::sleep(PAUSE);
            }
        }
    }
    Ok(())
}

/// Verifies all, and writes until the connection is lost or it is time to stop.
fn turn(args: &HammerArgs, record: &mut Record, output: Output) -> Result<()> {
    record.verified = false;
    let mut client = NbdClient::connect(NbdUri::parse(&args.uri)?)?;
    record.begin(Phase::Verify);
    client.run(DEPTH, record)?;
    if record.stop.is_set() {
        return Ok(());
    }
    let Record { acked, in_flight, landed, .. } = *record;
    let verified = Verified { event: "verified", acked, in_flight, landed };
    output.announce(&verified, String::new);
    record.verified = true;
    record.begin(Phase::Work);
    client.run(DEPTH, record)?;
    // It was told to stop, and everything has ended.
    record.begin(Phase::Verify);
    client.run(DEPTH, record)?;
    client.disconnect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Verify,
    Work,
}

/// What a block may hold: versions, 0 for zeros.
#[derive(Debug, Clone, Copy, Default)]
struct Block {
    acked: u64,
    /// Under way, or was when the connection was lost.
    unsure: Option<u64>,
    /// A request is under way.
    is_busy: bool,
}

struct Record {
    blocks: Vec<Block>,
    stop: Stop,
    phase: Phase,
    dice: u64,
    version: u64,
    next: u64,
    acked: u64,
    in_flight: u64,
    landed: u64,
    verified: bool,
    wrong: Option<String>,
}

impl Record {
    fn new(args: &HammerArgs, stop: Stop) -> Self {
        // Clamped: memory ends before.
        let count = usize::try_from(args.len).unwrap_or(usize::MAX) / BLOCK_LEN;
        Self {
            blocks: vec![Block::default(); count],
            stop,
            phase: Phase::Verify,
            dice: pattern::mix(args.seed),
            version: 0,
            next: 0,
            acked: 0,
            in_flight: 0,
            landed: 0,
            verified: false,
            wrong: None,
        }
    }

    fn begin(&mut self, phase: Phase) {
        (self.phase, self.next) = (phase, 0);
        if phase == Phase::Verify {
            (self.in_flight, self.landed) = (0, 0);
            self.blocks.iter_mut().for_each(|block| block.is_busy = false);
        }
    }

    fn roll(&mut self, below: usize) -> usize {
        self.dice = self.dice.wrapping_add(1);
        narrow((pattern::mix(self.dice) >> 16) % below.max(1) as u64)
    }

    fn range(job: &Job) -> std::ops::Range<usize> {
        let first = narrow::<_, usize>(job.offset) / BLOCK_LEN;
        first..first + job.len as usize / BLOCK_LEN
    }

    fn draw(&mut self) -> Job {
        for _ in 0..TRIES {
            let kind = self.roll(100);
            let (command, count, align) = match kind {
                0..50 => (Command::Write, 1, 1),
                50..65 => (Command::Write, 2 + self.roll(15), 1),
                65..72 => (Command::Write, 16 * (1 + self.roll(16)), 16),
                72..74 => break,
                _ => (Command::Read, 1 + self.roll(16), 1),
            };
            let first = self.roll(self.blocks.len() / align) * align;
            let last = (first + count).min(self.blocks.len());
            if self.blocks[first..last].iter().any(|block| block.is_busy) {
                continue;
            }
            self.version += 1;
            for block in &mut self.blocks[first..last] {
                block.is_busy = true;
                if command == Command::Write {
                    block.unsure = Some(self.version);
                }
            }
            let len = narrow((last - first) * BLOCK_LEN);
            return Job { command, offset: (first * BLOCK_LEN) as u64, len };
        }
        Job { command: Command::Flush, offset: 0, len: 0 }
    }

    /// Whether `data` is what this version of a block holds.
    fn is_version(version: u64, at: usize, data: &[u8]) -> bool {
        match version {
            0 => data.iter().all(|byte| *byte == 0),
            version => pattern::first_difference(version, (at * BLOCK_LEN) as u64, data).is_none(),
        }
    }

    fn check(&mut self, at: usize, data: &[u8]) -> Result<()> {
        let Block { acked, unsure, .. } = self.blocks[at];
        let versions = [Some(acked), unsure].into_iter().flatten();
        let Some(found) = versions.into_iter().find(|one| Self::is_version(*one, at, data)) else {
            let older = (0..self.version).rev().find(|one| Self::is_version(*one, at, data));
            let what = older.map_or("bytes of no version".into(), |one| format!("version {one}"));
            let text = format!(
                "block {at} holds {what}; version {acked} was acknowledged, {unsure:?} under way"
            );
            self.wrong = Some(text.clone());
            bail!(text);
        };
        if self.phase == Phase::Verify {
            self.in_flight += u64::from(unsure.is_some());
            self.landed += u64::from(unsure == Some(found));
            self.blocks[at] = Block { acked: found, ..Block::default() };
        }
        Ok(())
    }
}

impl Source for Record {
    fn next(&mut self) -> Option<Job> {
        match self.phase {
            Phase::Work if self.stop.is_set() => None,
            Phase::Work => Some(self.draw()),
            Phase::Verify => {
                let all = (self.blocks.len() * BLOCK_LEN) as u64;
                let offset = self.next;
                let len = u64::from(VERIFY_LEN).min(all - offset);
                self.next += len;
                let len = u32::try_from(len).ok().filter(|len| *len > 0)?;
                Some(Job { command: Command::Read, offset, len })
            }
        }
    }

    fn fill(&mut self, job: &Job, data: &mut [u8]) {
        if let Some(version) = self.blocks[Self::range(job).start].unsure {
            pattern::fill(version, job.offset, data);
        }
    }

    fn done(&mut self, job: &Job, _latency: Duration, data: &[u8]) -> Result<()> {
        match job.command {
            Command::Flush => {}
            Command::Write => {
                self.acked += 1;
                for block in &mut self.blocks[Self::range(job)] {
                    block.acked = block.unsure.take().unwrap_or(block.acked);
                    block.is_busy = false;
                }
            }
            Command::Read => {
                for (at, data) in Self::range(job).zip(data.chunks(BLOCK_LEN)) {
                    self.check(at, data)?;
                    self.blocks[at].is_busy = false;
                }
            }
        }
        Ok(())
    }
}
