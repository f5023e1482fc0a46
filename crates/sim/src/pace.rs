//! A world of members that answer at their own pace, and of the machine that judges it ([`Slowness`]): members that get
//! slow, hang, flap, or answer unevenly, alone or all of them, and an engine that stands still.
//!
//! What has to hold: hedges send no more than their share; nobody is given up whom nothing befell, neither
//! when all are slow together nor when the engine stood still, nor called slow but in the first of these; a slow member is not called fast while it keeps reads waiting; the
//! members that are not slow could serve alone; and no read waits for a member for longer than the deadline, as long as hedges may be sent and
//! no more members are slow than the level bears.
//!
//! Users and members are a model here: what is read instead of a late read, and that it is whole, is for
//! [`crate::array`].

mod members;
mod world;

use core::fmt;

use crate::{
    campaign::{self, Extent, Sum},
    dice::Seed,
};

pub use world::{Outcome, run_one};

/// What runs saw.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads that members got, with those of hedges.
    pub reads: u64,
    /// Those that hedges sent.
    pub hedged: u64,
    /// Moments at which hedges had used up their share.
    pub capped: u64,
    /// Times that a member became slow.
    pub slow: u64,
    /// Times that a member became fast again.
    pub fast_again: u64,
    /// Members that were given up.
    pub given_up: u64,
    /// Times that the engine stood still.
    pub stood_still: u64,
    /// Times that all members were slow together.
    pub all_slow: u64,
    /// Reads of users whose time was judged.
    pub judged: u64,
}

impl Sum for Counts {
    fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.hedged += other.hedged;
        self.capped += other.capped;
        self.slow += other.slow;
        self.fast_again += other.fast_again;
        self.given_up += other.given_up;
        self.stood_still += other.stood_still;
        self.all_slow += other.all_slow;
        self.judged += other.judged;
    }
}

/// What a campaign found.
pub type Report = campaign::Report<Counts>;

/// Runs seeds from `first` on, until the extent is reached or so many runs have failed.
#[must_use]
pub fn run(first: Seed, extent: Extent, threads: usize, failures_max: usize) -> Report {
    campaign::run(first, extent, threads, failures_max, |seed| {
        let Outcome { violation, counts } = run_one(seed, None);
        (violation, counts)
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts {
            reads,
            hedged,
            capped,
            slow,
            fast_again,
            given_up,
            stood_still,
            all_slow,
            judged,
        } = self.counts;
        writeln!(f, "runs {}, in {:.1} s", self.runs, self.elapsed.as_secs_f64())?;
        writeln!(
            f,
            "reads {reads}, hedges' {hedged}, moments without a share left {capped}, times judged {judged}"
        )?;
        writeln!(
            f,
            "members that became slow {slow}, fast again {fast_again}, given up {given_up}; the engine stood still \
             {stood_still}, all were slow {all_slow}"
        )?;
        for failure in &self.failures {
            writeln!(f, "FAILED seed {}: {}", failure.seed, failure.what)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_happens_and_nothing_is_wrong() {
        let report = run(Seed(8_000_000), Extent::Runs(60), 2, 1);
        assert!(report.failures.is_empty(), "{report}");
        let Counts {
            hedged,
            capped,
            slow,
            fast_again,
            given_up,
            stood_still,
            all_slow,
            judged,
            ..
        } = report.counts;
        let seen = [hedged, capped, slow, fast_again, given_up, stood_still, all_slow, judged];
        assert!(seen.iter().all(|count| *count > 0), "{report}");
    }

    #[test]
    fn a_run_is_a_function_of_its_seed() {
        let [one, other] = [(); 2].map(|()| run_one(Seed(8_000_007), None).counts);
        assert_eq!(one, other);
    }
}
