//! Many runs of arrays, and what they saw.

use core::fmt;

use netraid_raid::{
    logged::Rule,
    volume::{Logged, Plain},
};

use super::{
    machine::Machine,
    plan::{Choice, Plan},
    trace::Keep,
    world::{Counts, Violation, World},
};
use crate::{
    campaign::{self, Extent, Sum},
    dice::Seed,
};

/// What a campaign found.
pub type Report = campaign::Report<Counts>;

/// Runs seeds from `first` on, until the extent is reached or so many runs have failed.
#[must_use]
pub fn run<M: Machine>(
    first: Seed,
    choice: &Choice,
    extent: Extent,
    threads: usize,
    failures_max: usize,
) -> Report {
    campaign::run(first, extent, threads, failures_max, |seed| {
        let outcome = World::<M>::new(Plan::new(seed, choice), Keep::Hash).run();
        (outcome.violation.map(|Violation(what)| what), outcome.counts)
    })
}

/// The same with arrays of both kinds.
#[must_use]
pub fn run_any(
    first: Seed,
    choice: &Choice,
    extent: Extent,
    threads: usize,
    failures_max: usize,
) -> Report {
    campaign::run(first, extent, threads, failures_max, |seed| {
        let plan = Plan::of_any(seed, choice);
        let outcome = match plan.has_log {
            true => World::<Logged>::new(plan, Keep::Hash).run(),
            false => World::<Plain>::new(plan, Keep::Hash).run(),
        };
        (outcome.violation.map(|Violation(what)| what), outcome.counts)
    })
}

impl Report {
    /// Rules that never held anything back: nothing is known of them.
    #[must_use]
    pub fn untested(&self) -> Vec<Rule> {
        let never = |(rule, count): (Rule, u64)| (count == 0).then_some(rule);
        self.counts.rules.iter().filter_map(never).collect()
    }
}

impl Sum for Counts {
    fn add(&mut self, other: &Self) {
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
        self.refused += other.refused;
        self.refused_discards += other.refused_discards;
        self.atomic_writes += other.atomic_writes;
        self.actions += other.actions;
        self.ahead += other.ahead;
        self.late += other.late;
        self.restarts += other.restarts;
        self.pauses += other.pauses;
        self.all_away += other.all_away;
        self.resumed += other.resumed;
        self.resumed_with_losses += other.resumed_with_losses;
        self.stops += other.stops;
        self.orders += other.orders;
        self.healed += other.healed;
        self.trusted += other.trusted;
        self.rests += other.rests;
        self.subsets += other.subsets;
        self.events += other.events;
        self.given_up += other.given_up;
        self.full += other.full;
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
            "requests {}, of these answered from what was read ahead {}, errors {} (for want of space {}, discards {}), of several ranges at once {}, member requests {}, commands that landed late {}, reads that \
             settled {}, looks at the media {}, reads through some members {}, arrays given \
             up {}, failed for want of space {}, closed with lost rows {}, events {} ({:.0} a second)",
            counts.requests,
            counts.ahead,
            counts.errors,
            counts.refused,
            counts.refused_discards,
            counts.atomic_writes,
            counts.actions,
            counts.late,
            counts.settled,
            counts.rests,
            counts.subsets,
            counts.given_up,
            counts.full,
            counts.with_lost_rows,
            counts.events,
            counts.events as f64 / seconds
        )?;
        writeln!(
            f,
            "members that restarted unnoticed {}, engines told to close {}, other orders {}, openings left alone until all \
             members were back {}, with parity as it was {}; moments at which all members were away {}, pauses {}, after which the \
             array went on {}, of these with losses {}",
            counts.restarts,
            counts.stops,
            counts.orders,
            counts.healed,
            counts.trusted,
            counts.all_away,
            counts.pauses,
            counts.resumed,
            counts.resumed_with_losses
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
