//! Many runs of the cluster, and what they saw.

use core::fmt;

use super::{
    plan::{Plan, Planted},
    world::{Counts, World},
};
use crate::{
    array::trace::Keep,
    campaign::{self, Extent},
    dice::Seed,
};

/// What a campaign found.
pub type Report = campaign::Report<Counts>;

/// Runs seeds from `first` on, until the extent is reached or so many runs have failed.
#[must_use]
pub fn run(
    first: Seed,
    extent: Extent,
    planted: Option<Planted>,
    threads: usize,
    failures_max: usize,
) -> Report {
    campaign::run(first, extent, threads, failures_max, |seed| {
        let outcome = World::new(Plan::new(seed, planted), Keep::Hash).run();
        (outcome.violation, outcome.counts)
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { runs, counts, failures, .. } = self;
        let Counts { events, crashes, granted, taken_over, volumes, renewed, mangled } = counts;
        writeln!(f, "clusters: runs {runs}, events {events}, crashes {crashes}")?;
        writeln!(
            f,
            "volumes {volumes}, plans {granted}, given or renewed {renewed}, taken over \
             {taken_over}, messages lost, doubled or late {mangled}"
        )?;
        for failure in failures {
            writeln!(f, "FAILED seed {}: {}", failure.seed, failure.what)?;
        }
        Ok(())
    }
}
