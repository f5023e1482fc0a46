//! A world whose members lie: between two engines, some of them say what is not so, under right
//! checksums: in labels, checkpoints, the stripe table, the log.
//!
//! What has to hold: an array opens without those who lie where the others can tell, it says who does, and all
//! reads are right; where they cannot, it does not open, and says between whom. Either way it can be opened
//! again, and nobody has a number of a liar.
//!
//! Engines do one thing after another here, and members never fail: what befalls them beside lies is for
//! [`crate::array`].

mod array;
mod forge;
mod lies;
mod lists;
mod log;
mod world;

use core::fmt;
use std::collections::BTreeMap;

use crate::{
    campaign::{self, Extent, Sum},
    dice::Seed,
};

pub use lies::Lie;
pub use world::{Outcome, run_one};

/// What runs saw.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Times that members lied.
    pub lies: BTreeMap<Lie, u64>,
    /// Openings in spite of lies.
    pub opened: u64,
    /// Of these, with a liar left out.
    pub left_out: u64,
    /// Openings that ended in an error, where none could tell who lies.
    pub refused: u64,
    /// Blocks that were read and compared.
    pub reads: u64,
}

impl Sum for Counts {
    fn add(&mut self, other: &Self) {
        for (lie, count) in &other.lies {
            *self.lies.entry(*lie).or_default() += count;
        }
        self.opened += other.opened;
        self.left_out += other.left_out;
        self.refused += other.refused;
        self.reads += other.reads;
    }
}

/// What a campaign found.
pub type Report = campaign::Report<Counts>;

/// Runs seeds from `first` on, until the extent is reached or so many runs have failed.
#[must_use]
pub fn run(first: Seed, extent: Extent, threads: usize, failures_max: usize) -> Report {
    campaign::run(first, extent, threads, failures_max, |seed| {
        let Outcome { violation, counts, .. } = run_one(seed);
        (violation, counts)
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { lies, opened, left_out, refused, reads } = &self.counts;
        writeln!(f, "runs {}, in {:.1} s", self.runs, self.elapsed.as_secs_f64())?;
        writeln!(
            f,
            "opened in spite of lies {opened}, with a liar left out {left_out}, refused where none can tell \
             {refused}, blocks compared {reads}"
        )?;
        let lies: Vec<String> =
            lies.iter().map(|(lie, count)| format!("{lie:?} {count}")).collect();
        writeln!(f, "lies: {}", lies.join(", "))?;
        for failure in &self.failures {
            writeln!(f, "FAILED seed {}: {}", failure.seed, failure.what)?;
        }
        Ok(())
    }
}
