//! A target with the files that this run has on it, and the parts that all tests share.

use std::{fs, time::Instant};

use anyhow::{Context as _, Result};
use netraid_evaluate::{
    catalogue::{Kind, TestId},
    estimate::Probe,
    limits,
    plan::{self, SLOTS},
    record::{Baseline, Figure, Outcome, RedundancyState, Role, Settings, TargetKind, TestResult},
};

use super::{
    data::{Content, DataFile},
    degrade::Degrade,
    flush,
    load::{Done, Load, Shared},
    random, streams,
    target::{Open, Target},
    tricks,
};
use crate::{pattern, signal::Interrupted};

/// Longest that one probe may take, in seconds.
const PROBE_S: f64 = 0.8;

/// What all targets of a run share.
pub(super) struct Common<'a> {
    pub(super) settings: &'a Settings,
    pub(super) shared: Shared,
    /// Where the user has data from.
    pub(super) data: Option<DataFile>,
    pub(super) seed: u64,
}

/// A target under test.
pub(super) struct Session<'a> {
    pub(super) target: Target,
    pub(super) common: &'a Common<'a>,
    pub(super) degrade: Degrade,
    files: [Option<Written>; SLOTS as usize],
    writes: u64,
}

/// What a file holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    /// Bytes that are there.
    pub(super) bytes: u64,
    /// Bytes that should have been; fewer are there when time was over.
    wanted: u64,
    pub(super) content: Content,
}

impl<'a> Session<'a> {
    pub(super) fn new(target: Target, common: &'a Common<'a>) -> Self {
        let degrade = Degrade::new(target.control.clone(), common.settings.fail_member);
        let files = [None; SLOTS as usize];
        Self { target, common, degrade, files, writes: u64::from(std::process::id()) << 20 }
    }

    /// Why a test does not apply here.
    pub(super) fn skip(&self, test: TestId) -> Option<String> {
        if test.kind() == Kind::Regions && self.target.reach.kind == TargetKind::Directory {
            return Some("a file system decides where files lie".to_owned());
        }
        if test.fails_a_member() {
            return self.degrade.missing();
        }
        None
    }

    /// Runs a test; its failure is a result too, the end of the run is none.
    pub(super) fn run(&mut self, test: TestId, baselines: &[Baseline]) -> Result<TestResult> {
        let index = self.target.info.index;
        if let Some(reason) = self.skip(test) {
            return Ok(TestResult::without(test, index, Outcome::Skipped { reason }));
        }
        self.common.shared.check()?;
        let began = Instant::now();
        let busy = Busy::now();
        let mut result = TestResult::without(test, index, Outcome::Done);
        let ran = self.degrade.prepare(test, &self.common.shared, &mut result.notes);
        let ran = ran.and_then(|()| match test.kind() {
            Kind::Streams => streams::run(self, test, &mut result),
            Kind::Random => random::run(self, test, &mut result),
            Kind::Regions => tricks::regions(self, &mut result),
            Kind::Compression => tricks::compression(self, &mut result),
            Kind::Cache => tricks::cache(self, &mut result),
            Kind::Flush => flush::flush(self, &mut result),
        });
        self.common.shared.check()?;
        if let Err(error) = ran {
            if error.is::<Interrupted>() {
                return Err(error);
            }
            let reason = crate::describe(&error);
            tracing::warn!("{test} at {}: {reason}", self.target.info.address);
            result.outcome = Outcome::Failed { reason };
            result.figure = None;
        }
        result.seconds = began.elapsed().as_secs_f64();
        result.processor_busy = busy.share();
        result.limit = limits::limit(&result, &self.target.info, baselines);
        Ok(result)
    }

    /// Rates of short streams.
    pub(super) fn probe(&mut self) -> Result<Probe> {
        let mut one = |role| -> Result<f64> {
            let round = streams::probe(self, &[(role, 0)], false, PROBE_S)?;
            Ok(round.mb_per_s)
        };
        let (write, read) = (one(Role::Write)?, one(Role::Read)?);
        let began = Instant::now();
        let three = |role| [(role, 0), (role, 1), (role, 2)];
        let writing = streams::probe(self, &three(Role::Write), true, PROBE_S)?;
        let longest = writing.streams.iter().map(|stream| stream.seconds).fold(0.0, f64::max);
        let start_s = (began.elapsed().as_secs_f64() - longest).max(0.0) / 3.0;
        let reading = streams::probe(self, &three(Role::Read), true, PROBE_S)?;
        let (write_three, read_three) = (writing.mb_per_s, reading.mb_per_s);
        // Time was over before these files were: no test may take them for its own.
        self.files = [None; SLOTS as usize];
        Ok(Probe { write, read, write_three, read_three, start_s })
    }

    /// Asks the target for its redundancy; the worse of what it was and is stays.
    pub(super) fn look_at_redundancy(&mut self) -> Result<()> {
        let before = self.target.info.redundancy.clone();
        self.target.look_at_redundancy()?;
        let rank = |state| match state {
            RedundancyState::Unknown => 0,
            RedundancyState::Full => 1,
            RedundancyState::Degraded => 2,
            RedundancyState::Off => 3,
        };
        if rank(before.state) > rank(self.target.info.redundancy.state) {
            self.target.info.redundancy = before;
        }
        Ok(())
    }

    /// A file that holds at least so many bytes; written first, where it does not.
    pub(super) fn ensure(&mut self, slot: u16, bytes: u64) -> Result<Written> {
        if let Some(written) = self.files[usize::from(slot)].filter(|file| file.wanted >= bytes) {
            return Ok(written);
        }
        let load = self.load(true, bytes);
        self.write(slot, Open::New, &load)?;
        self.written(slot).context("a file that was written")
    }

    pub(super) fn written(&self, slot: u16) -> Option<Written> {
        self.files[usize::from(slot)]
    }

    /// Notes what a file holds now.
    pub(super) fn note(&mut self, slot: u16, load: &Load, done: &Done) {
        let file = &mut self.files[usize::from(slot)];
        let bytes = load.begin + done.reached;
        *file = match load.content {
            Content::Marked(_) => {
                Some(Written { bytes, wanted: load.begin + load.bytes, content: load.content })
            }
            Content::Zeros | Content::Any => None,
        };
    }

    /// A file holds nothing that is known.
    pub(super) fn forget(&mut self, slot: u16) {
        self.files[usize::from(slot)] = None;
    }

    /// Writes a file in one stream of this process.
    pub(super) fn write(&mut self, slot: u16, open: Open, load: &Load) -> Result<Done> {
        self.files[usize::from(slot)] = None;
        let mut store = self.target.reach.open(slot, open)?;
        let done = store.run(load, &self.common.shared, None)?;
        self.common.shared.check()?;
        self.note(slot, load, &done);
        Ok(done)
    }

    /// A stream over the first `bytes` of a file.
    pub(super) fn load(&mut self, write: bool, bytes: u64) -> Load {
        let settings = self.common.settings;
        let request = u64::from(settings.buffer_bytes);
        Load {
            write,
            begin: 0,
            bytes: (bytes / request).max(1) * request,
            request: settings.buffer_bytes,
            depth: settings.stream_depth,
            random: None,
            repeat: false,
            seconds: settings.stream_s,
            content: if write { Content::Marked(self.fresh()) } else { Content::Any },
            flush: write,
        }
    }

    /// A stream that reads what is known of a file.
    pub(super) fn load_of(&mut self, file: Written) -> Load {
        Load { content: file.content, ..self.load(false, file.bytes) }
    }

    /// A number that no other write of this run has.
    pub(super) fn fresh(&mut self) -> u64 {
        self.writes += 1;
        pattern::mix(self.common.seed ^ pattern::mix(self.writes))
    }

    /// Takes a file out of this machine's page cache.
    pub(super) fn forget_cached(&self, slot: u16) -> Result<()> {
        self.target.reach.open(slot, Open::Old)?.forget()
    }

    /// Puts back what tests changed, and takes the files away.
    pub(super) fn close(&mut self) -> Result<()> {
        let restored = self.degrade.restore(&self.common.shared);
        self.target.clean()?;
        restored
    }
}

/// A figure of a test in its own unit.
pub(super) fn figure(test: TestId, value: f64) -> Option<Figure> {
    Some(Figure { value, unit: test.test().unit })
}

/// Files that must be there before a test, written.
pub(super) fn prepare(session: &mut Session<'_>, test: TestId) -> Result<()> {
    for (slot, bytes) in plan::reads(test, session.common.settings) {
        session.ensure(slot, bytes)?;
    }
    Ok(())
}

/// Time of all processors, in ticks.
struct Busy {
    before: Option<(u64, u64)>,
}

impl Busy {
    fn now() -> Self {
        Self { before: ticks() }
    }

    fn share(&self) -> Option<f64> {
        let ((busy, all), (busy_now, all_now)) = (self.before?, ticks()?);
        let all = all_now.checked_sub(all).filter(|all| *all > 0)?;
        Some(busy_now.saturating_sub(busy) as f64 / all as f64)
    }
}

/// Ticks in which processors were busy, and all.
fn ticks() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().next()?;
    // proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal.
    let ticks: Vec<u64> =
        line.split_whitespace().skip(1).take(8).filter_map(|ticks| ticks.parse().ok()).collect();
    let all: u64 = ticks.iter().sum();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some((all - idle, all))
}
