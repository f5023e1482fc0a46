//! Many runs: by seed after seed, on a few threads, for a time or for a number.

use core::fmt;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use netraid_raid::logged::Rule;

use super::{
    machine::Machine,
    plan::{Choice, Plan},
    trace::Keep,
    world::{Counts, Violation, World},
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
pub struct Report {
    /// Runs that ended.
    pub runs: u64,
    /// What they saw, together.
    pub counts: Counts,
    /// Those in which something was wrong.
    pub failures: Vec<Failure>,
    /// How long it took.
    pub elapsed: Duration,
}

/// Runs seeds from `first` on, until the extent is reached or so many runs have failed.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "a campaign lasts as long as it was told")]
pub fn run<M: Machine>(
    first: Seed,
    choice: &Choice,
    extent: Extent,
    threads: usize,
    failures_max: usize,
) -> Report {
    let began = Instant::now();
    let next = AtomicU64::new(0);
    let enough = AtomicBool::new(false);
    let report = Mutex::new(Report::default());
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
            let (violation, counts) = one::<M>(seed, choice);
            let Ok(mut report) = report.lock() else { return };
            report.runs += 1;
            report.counts.add(&counts);
            if let Some(Violation(what)) = violation {
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

/// One run; a panic of the machine is a violation like others.
fn one<M: Machine>(seed: Seed, choice: &Choice) -> (Option<Violation>, Counts) {
    let plan = Plan::new(seed, choice);
    let outcome = catch_unwind(AssertUnwindSafe(|| World::<M>::new(plan, Keep::Hash).run()));
    match outcome {
        Ok(outcome) => (outcome.violation, outcome.counts),
        Err(panic) => (Some(Violation(panic_text(panic.as_ref()))), Counts::default()),
    }
}

/// What a panic says.
#[must_use]
pub fn panic_text(panic: &(dyn core::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_string()));
    format!("panic: {}", text.unwrap_or_default())
}

impl Report {
    /// Rules that never held anything back: nothing is known of them.
    #[must_use]
    pub fn untested(&self) -> Vec<Rule> {
        let never = |(rule, count): (Rule, u64)| (count == 0).then_some(rule);
        self.counts.rules.iter().filter_map(never).collect()
    }
}

impl Counts {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        self.crashes += other.crashes;
        self.crashes_in_recovery += other.crashes_in_recovery;
        for (sum, depth) in self.depths.iter_mut().zip(other.depths) {
            *sum += depth;
        }
        self.openings += other.openings;
        self.in_flight += other.in_flight;
        self.in_flight_min = [self.in_flight_min, other.in_flight_min].into_iter().flatten().min();
        self.serving_crashes += other.serving_crashes;
        self.requests += other.requests;
        self.errors += other.errors;
        self.actions += other.actions;
        self.late += other.late;
        self.rests += other.rests;
        self.subsets += other.subsets;
        self.events += other.events;
        self.given_up += other.given_up;
        self.with_lost_rows += other.with_lost_rows;
        self.settled += other.settled;
        for (fault, count) in &other.faults {
            *self.faults.entry(*fault).or_default() += count;
        }
        self.rules.add(&other.rules);
        for (name, count) in &other.told {
            *self.told.entry(name).or_default() += count;
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = &self.counts;
        let seconds = self.elapsed.as_secs_f64().max(1e-9);
        let cycles = counts.openings as f64;
        writeln!(f, "runs {}, in {seconds:.1} s", self.runs)?;
        writeln!(
            f,
            "crash-and-recover cycles {} ({:.0} a second), crashes {}, of these in recovery {} \
             (depth 1: {}, 2: {}, 3: {})",
            counts.openings,
            cycles / seconds,
            counts.crashes,
            counts.crashes_in_recovery,
            counts.depths[1],
            counts.depths[2],
            counts.depths[3]
        )?;
        let mean = counts.in_flight as f64 / counts.serving_crashes.max(1) as f64;
        let least = counts.in_flight_min.unwrap_or(0);
        writeln!(f, "requests in flight at crashes: least {least}, mean {mean:.1}")?;
        writeln!(
            f,
            "requests {}, errors {}, member requests {}, commands that landed late {}, reads that \
             settled {}, looks at the media {}, reads through some members {}, arrays given \
             up {}, closed with lost rows {}, events {} ({:.0} a second)",
            counts.requests,
            counts.errors,
            counts.actions,
            counts.late,
            counts.settled,
            counts.rests,
            counts.subsets,
            counts.given_up,
            counts.with_lost_rows,
            counts.events,
            counts.events as f64 / seconds
        )?;
        let list = |counts: Vec<String>| counts.join(", ");
        let faults = counts.faults.iter().map(|(fault, count)| format!("{fault:?} {count}"));
        writeln!(f, "faults: {}", list(faults.collect()))?;
        let told = counts.told.iter().map(|(name, count)| format!("{name} {count}"));
        writeln!(f, "the machine told: {}", list(told.collect()))?;
        let rules = counts.rules.iter().map(|(rule, count)| format!("{}: {count}", rule.text()));
        writeln!(f, "rules that held something back: {}", list(rules.collect()))?;
        for rule in self.untested() {
            writeln!(f, "NEVER: {}", rule.text())?;
        }
        for failure in &self.failures {
            writeln!(f, "FAILED seed {}: {}", failure.seed, failure.what)?;
        }
        Ok(())
    }
}
