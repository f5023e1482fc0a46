//! Many runs of the whole way, and what they saw.

use core::fmt;

use super::{
    cases::Case,
    counts::Count,
    plan::Plan,
    world::{Sights, World},
};
use crate::{
    array::trace::Keep,
    campaign::{self, Extent, Sum},
    dice::Seed,
};

/// What a campaign found.
pub type Report = campaign::Report<Sights>;

/// Runs seeds from `first` on, until the extent is reached or so many runs have failed.
#[must_use]
pub fn run(first: Seed, extent: Extent, threads: usize, failures_max: usize) -> Report {
    campaign::run(first, extent, threads, failures_max, |seed| {
        let outcome = World::new(Plan::new(seed), Keep::Hash).run();
        (outcome.violation, outcome.sights)
    })
}

/// What the world does not bring about, or so seldom that many runs do without.
const SELDOM: [Case; 6] = [
    Case::DoubtedTooMany,
    Case::SessionGivenUp,
    Case::NotRegistered,
    Case::CandidateLetGo,
    Case::DeviceNotJoined,
    Case::Diverged,
];

/// The same beneath the lines: what would be a fault of an initiator or of a target, and what no engine asks for.
const SELDOM_BENEATH: [Count; 11] = [
    Count::LateAfterSilence,
    Count::TaskFunctionFailed,
    Count::SilentPeer,
    Count::ProtocolError,
    Count::DigestError,
    Count::Rejected,
    Count::Release,
    Count::Stored,
    Count::TornWrite,
    Count::CutInData,
    Count::PredecessorMayRemain,
];

impl Report {
    /// Things that never happened: nothing is known of them.
    #[must_use]
    pub fn never(&self) -> Vec<&'static str> {
        let cases = self.counts.cases.iter().filter(|(case, _)| !SELDOM.contains(case));
        let cases = cases.map(|(case, count)| (case.name(), count));
        let counts = self.counts.counts.iter();
        let counts = counts.filter(|(count, _)| !SELDOM_BENEATH.contains(count));
        let counts = counts.map(|(count, number)| (count.name(), number));
        cases.chain(counts).filter(|(_, number)| *number == 0).map(|(name, _)| name).collect()
    }
}

impl Sum for Sights {
    fn add(&mut self, other: &Self) {
        self.cases.add_all(&other.cases);
        self.counts += other.counts;
        self.rules.add(&other.rules);
        self.events += other.events;
        self.trusted += other.trusted;
        self.excused += other.excused;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { runs, counts, failures, elapsed } = self;
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let a_minute = *runs as f64 / seconds * 60.0;
        writeln!(
            f,
            "the whole way: runs {runs} in {seconds:.1} s ({a_minute:.0} a minute), events {}, opened with parity as it \
             was {}, runs with more than the level survives {}",
            counts.events, counts.trusted, counts.excused
        )?;
        let cases: [(Case, u64); Case::ALL.len()] = Case::ALL.map(|it| (it, counts.cases.get(it)));
        let list = |texts: Vec<String>| texts.join(", ");
        let text = cases.iter().map(|(case, count)| format!("{} {count}", case.name()));
        writeln!(f, "above the lines: {}", list(text.collect()))?;
        let beneath = Count::ALL.map(|it| format!("{} {}", it.name(), counts.counts.get(it)));
        writeln!(f, "beneath: {}", list(beneath.to_vec()))?;
        let rules = counts.rules.iter().map(|(rule, count)| format!("{}: {count}", rule.text()));
        writeln!(f, "rules that held something back: {}", list(rules.collect()))?;
        for name in self.never() {
            writeln!(f, "NEVER: {name}")?;
        }
        for failure in failures {
            writeln!(f, "FAILED seed {}: {}", failure.seed, failure.what)?;
        }
        Ok(())
    }
}
