//! Many runs: by seed after seed, on a few threads, for a time or for a number.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::dice::Seed;

/// How long a campaign lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// So many runs.
    Runs(u64),
    /// Until so much time has passed.
    Time(Duration),
}

/// What runs saw, which can be added up.
pub trait Sum: Default + Send {
    /// Adds another run's.
    fn add(&mut self, other: &Self);
}

/// A run in which something was wrong.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Its seed.
    pub seed: Seed,
    /// What was wrong.
    pub what: String,
}

/// What a campaign found.
#[derive(Debug, Default)]
pub struct Report<C> {
    /// Runs that ended.
    pub runs: u64,
    /// What they saw, together.
    pub counts: C,
    /// Those in which something was wrong.
    pub failures: Vec<Failure>,
    /// How long it took.
    pub elapsed: Duration,
}

/// Runs `one` for seeds from `first` on, until the extent is reached or so many runs have failed. It
/// says what was wrong, and what it saw; a panic is a failure like others.
#[allow(clippy::disallowed_methods, reason = "a campaign lasts as long as it was told")]
pub fn run<C: Sum>(
    first: Seed,
    extent: Extent,
    threads: usize,
    failures_max: usize,
    one: impl Fn(Seed) -> (Option<String>, C) + Sync,
) -> Report<C> {
    let began = Instant::now();
    let next = AtomicU64::new(0);
    let enough = AtomicBool::new(false);
    let report = Mutex::new(Report::<C>::default());
    let work = || {
        while !enough.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let is_over = match extent {
                Extent::Runs(runs) => number >= runs,
                Extent::Time(time) => began.elapsed() >= time,
            };
            if is_over {
                return;
            }
            let seed = Seed(first.0.wrapping_add(number));
            let ended = catch_unwind(AssertUnwindSafe(|| one(seed)));
            let (violation, counts) =
                ended.unwrap_or_else(|panic| (Some(panic_text(panic.as_ref())), C::default()));
            let Ok(mut report) = report.lock() else { return };
            report.runs += 1;
            report.counts.add(&counts);
            if let Some(what) = violation {
                report.failures.push(Failure { seed, what });
                if report.failures.len() >= failures_max {
                    enough.store(true, Ordering::Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let mut report = report.into_inner().unwrap_or_default();
    report.failures.sort_by_key(|failure| failure.seed);
    report.elapsed = began.elapsed();
    report
}

/// What a panic says.
#[must_use]
pub fn panic_text(panic: &(dyn core::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_string()));
    format!("panic: {}", text.unwrap_or_default())
}
