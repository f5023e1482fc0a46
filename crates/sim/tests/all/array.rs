//! The array with a log in its simulated world: a few fresh runs, those that once failed, and that
//! a seed decides everything. Campaigns: `cargo xtask simulate`.

#![allow(clippy::print_stdout, reason = "a trace is for who looks for a fault")]

use netraid_raid::volume::{Logged, Plain};
use netraid_sim::{
    Seed,
    array::{
        campaign,
        machine::Machine,
        plan::{Choice, Fault, Mode, Plan},
        trace::{Keep, Lines},
        world::{Outcome, World},
    },
    campaign::Extent,
    liars,
};

const KEPT: &str = include_str!("../../seeds/array.txt");

#[allow(clippy::print_stderr, reason = "the end of a run that failed")]
fn eprint_all(lines: &Lines) {
    lines.borrow().iter().for_each(|line| eprintln!("{line}"));
}

/// Runs a seed of an array with a log; without a level it draws that too.
fn run(seed: u64, level: Option<u8>) -> Outcome {
    let choice = Choice { level, ..Choice::default() };
    run_world(World::<Logged>::new(Plan::new(Seed(seed), &choice), Keep::Last(60)))
}

/// Runs a seed of an array without a log.
fn run_without_log(seed: u64) -> Outcome {
    let plan = Plan::without_log(Seed(seed), &Choice::default());
    run_world(World::<Plain>::new(plan, Keep::Last(60)))
}

fn run_world<M: Machine>(world: World<M>) -> Outcome {
    let lines = world.lines();
    let outcome = world.run();
    if outcome.violation.is_some() {
        eprint_all(&lines);
    }
    outcome
}

#[test]
fn seeds_that_once_failed() {
    for line in KEPT.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.splitn(3, ' ');
        let (Some(seed), Some(level)) = (words.next(), words.next()) else {
            panic!("a kept seed has a number and a level, `any` or `without`: {line}");
        };
        let seed = seed.parse().unwrap();
        let outcome = match level {
            "any" => run(seed, None),
            "without" => run_without_log(seed),
            level => run(seed, Some(level.parse().unwrap())),
        };
        assert_eq!(outcome.violation, None, "{line}");
    }
}

#[test]
fn a_seed_and_a_program_decide_a_run() {
    for (seed, level) in [(1, 5), (2, 1), (3, 6), (4, 10), (5, 0)] {
        let [one, other] = [(); 2].map(|()| run(seed, Some(level)));
        assert_eq!(one.hash, other.hash, "seed {seed}");
        assert_eq!(one.counts.events, other.counts.events);
        assert_eq!(one.violation, other.violation);
    }
    let [one, other] = [(); 2].map(|()| run_without_log(6));
    assert_eq!((one.hash, one.counts.events), (other.hash, other.counts.events));
}

#[test]
fn fresh_runs_of_every_level() {
    let runs = if std::env::var_os("NETRAID_NIGHTLY").is_some() { 400 } else { 12 };
    for level in [0, 1, 5, 6, 10] {
        let choice = Choice { level: Some(level), ..Choice::default() };
        let first = Seed(1_000_000 * u64::from(level));
        let report = campaign::run::<Logged>(first, &choice, Extent::Runs(runs), 2, 3);
        assert!(report.failures.is_empty(), "level {level}:\n{report}");
    }
}

#[test]
fn fresh_runs_without_a_log() {
    let runs = if std::env::var_os("NETRAID_NIGHTLY").is_some() { 400 } else { 12 };
    for level in [0, 1, 5] {
        let choice = Choice { level: Some(level), has_log: Some(false), ..Choice::default() };
        let first = Seed(2_000_000 * u64::from(level));
        let report = campaign::run_any(first, &choice, Extent::Runs(runs), 2, 3);
        assert!(report.failures.is_empty(), "level {level} without a log:\n{report}");
    }
}

/// More members than the level can do without have no space, again and again: it serves reads and
/// discards, crashes and opens, and writes that are refused are all that anybody sees.
#[test]
fn members_without_space() {
    let runs = if std::env::var_os("NETRAID_NIGHTLY").is_some() { 600 } else { 20 };
    let alone = vec![Fault::SpaceRunsOut];
    let beside = [Fault::PowerOfAll, Fault::TwoEngines, Fault::ConnectionLost];
    let among = [&alone[..], &beside].concat();
    let mut refused = 0;
    for (level, faults) in
        [0, 1, 5, 6, 10].into_iter().flat_map(|level| [(level, &alone), (level, &among)])
    {
        let choice = Choice {
            level: Some(level),
            mode: Some(Mode::Within),
            faults: Some(faults.clone()),
            has_log: None,
        };
        let first = Seed(7_000_000 * (1 + u64::from(level)));
        let report = campaign::run::<Logged>(first, &choice, Extent::Runs(runs), 2, 3);
        assert!(report.failures.is_empty(), "level {level}:\n{report}");
        let counts = &report.counts;
        // Discards find no room only where many come at once, in logs of some dozen blocks.
        let few = counts.refused_discards * 20 <= counts.refused;
        assert!(few && counts.requests > 100 * runs, "level {level}:\n{report}");
        refused += counts.refused;
    }
    assert!(refused > runs, "{refused} refusals for want of space in all");
}

#[test]
fn members_that_lie_are_left_out_where_the_others_can_tell() {
    let runs = if std::env::var_os("NETRAID_NIGHTLY").is_some() { 3000 } else { 150 };
    let report = liars::run(Seed(27), Extent::Runs(runs), 2, 3);
    assert!(report.failures.is_empty(), "{report}");
    // Each lie was told, and most of them were told from the truth.
    for lie in liars::Lie::ALL {
        assert!(report.counts.lies.get(&lie).is_some_and(|count| *count > 3), "{lie:?}: {report}");
    }
    assert!(report.counts.left_out > report.counts.refused, "{report}");
}
