//! Plants one error after another, and shows in how many of so many campaigns from fresh seeds the simulator sees it, in
//! the smallest world that can or in the one that is asked for: `cargo xtask mutate`. Errors that some
//! campaigns miss are planted only by name.
//!
//! A campaign sees an error when it finds a run that fails with it and passes without.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

use std::{
    io::Write as _,
    process::ExitCode,
    time::{Duration, Instant},
};

use netraid_planted::{Planted, World, chosen};
use netraid_sim::{
    Seed, array,
    array::plan::Choice,
    campaign::{Extent, Failure},
    pace, way,
};

const USAGE: &str = "usage: netraid-mutate [--seeds N] [--only NAME] [--world array|way|pace] [--seed S] \
                     [--seconds N | --runs N] [--threads N]";

struct Args {
    /// Campaigns for each error.
    seeds: u64,
    only: Option<String>,
    /// The world in which all are looked for; each in its own when none.
    world: Option<World>,
    /// What the campaigns' first seeds are drawn from.
    seed: Seed,
    /// Longest that a campaign may take.
    limit: Duration,
    /// Most runs of a campaign, instead of that: on a machine that has other things to do.
    runs: Option<u64>,
    threads: usize,
}

/// How a campaign ended.
struct Hunt {
    runs: u64,
    elapsed: Duration,
    /// The run that failed by the error that is planted.
    caught: Option<Failure>,
    /// Runs that fail without it, too.
    others: Vec<Seed>,
}

fn main() -> ExitCode {
    let args = match parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let is_wanted = |error: &Planted| match &args.only {
        Some(only) => error.name().contains(only),
        None => error.is_shown(),
    };
    let wanted: Vec<Planted> = Planted::ALL.iter().copied().filter(is_wanted).collect();
    if wanted.is_empty() {
        eprintln!("no error of that name; there are {:?}", Planted::ALL);
        return ExitCode::from(2);
    }
    let most = args.runs.map_or(format!("{:?}", args.limit), |runs| format!("{runs} runs"));
    println!("{} campaigns each, drawn from {}, {most} at most", args.seeds, args.seed);
    println!(
        "error | caught in | median s | most s | median runs | most runs | what was seen, most often"
    );
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for error in wanted {
        let hunts: Vec<Hunt> = (0..args.seeds).map(|at| hunt(error, at, &args)).collect();
        print_row(error, &hunts);
        if hunts.iter().any(|hunt| hunt.caught.is_none()) {
            missed.push(error.name());
        }
    }
    if missed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("MISSED: {}", missed.join(", "));
    ExitCode::FAILURE
}

/// One campaign with an error, from a fresh seed.
#[allow(clippy::disallowed_methods, reason = "a campaign lasts as long as it was told")]
fn hunt(error: Planted, number: u64, args: &Args) -> Hunt {
    let began = Instant::now();
    let world = args.world.unwrap_or_else(|| error.world());
    let mut next = args.seed.dice(&format!("{} {number}", error.name())).below(u64::MAX);
    let mut hunt = Hunt { runs: 0, elapsed: Duration::ZERO, caught: None, others: Vec::new() };
    let is_over = |hunt: &Hunt| match args.runs {
        Some(runs) => hunt.runs >= runs,
        None => began.elapsed() >= args.limit,
    };
    while hunt.caught.is_none() && !is_over(&hunt) {
        chosen::set(Some(error));
        let extent = match args.runs {
            Some(runs) => Extent::Runs(runs - hunt.runs),
            None => Extent::Time(args.limit.saturating_sub(began.elapsed())),
        };
        let (runs, failures) = run(world, Seed(next), extent, args.threads);
        chosen::set(None);
        hunt.runs += runs;
        for failure in failures {
            let (_, without) = run(world, failure.seed, Extent::Runs(1), 1);
            if without.is_empty() {
                hunt.caught.get_or_insert(failure);
            } else {
                hunt.others.push(failure.seed);
            }
        }
        // Some that were begun may not have ended.
        next = next.wrapping_add(runs + args.threads as u64);
    }
    hunt.elapsed = began.elapsed();
    hunt
}

/// Runs of a world, until one has failed: how many there were, and those that failed.
fn run(world: World, first: Seed, extent: Extent, threads: usize) -> (u64, Vec<Failure>) {
    match world {
        World::Array => {
            let report = array::campaign::run_any(first, &Choice::default(), extent, threads, 1);
            (report.runs, report.failures)
        }
        World::Way => {
            let report = way::campaign::run(first, extent, threads, 1);
            (report.runs, report.failures)
        }
        World::Pace => {
            let report = pace::run(first, extent, threads, 1);
            (report.runs, report.failures)
        }
    }
}

fn print_row(error: Planted, hunts: &[Hunt]) {
    let caught: Vec<(&Hunt, &Failure)> = hunts
        .iter()
        .filter_map(|hunt| hunt.caught.as_ref().map(|failure| (hunt, failure)))
        .collect();
    let mut seconds: Vec<f64> = caught.iter().map(|(hunt, _)| hunt.elapsed.as_secs_f64()).collect();
    let mut runs: Vec<u64> = caught.iter().map(|(hunt, _)| hunt.runs).collect();
    seconds.sort_by(f64::total_cmp);
    runs.sort_unstable();
    let median = |of: usize| of / 2;
    let mut kinds: std::collections::BTreeMap<String, (usize, Seed)> =
        std::collections::BTreeMap::new();
    for (_, failure) in &caught {
        kinds.entry(kind(&failure.what)).or_insert((0, failure.seed)).0 += 1;
    }
    let mut kinds: Vec<(String, (usize, Seed))> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, (count, _))| core::cmp::Reverse(*count));
    let kinds: Vec<String> = kinds
        .into_iter()
        .take(3)
        .map(|(what, (count, seed))| format!("{count} x {what} (seed {seed})"))
        .collect();
    let others: Vec<Seed> = hunts.iter().flat_map(|hunt| hunt.others.iter().copied()).collect();
    let others = if others.is_empty() {
        String::new()
    } else {
        let seeds: Vec<String> = others.iter().map(Seed::to_string).collect();
        format!("; without it fail, too: {}", seeds.join(", "))
    };
    println!(
        "{} | {} of {} | {:.1} | {:.1} | {} | {} | {}{others}",
        error.name(),
        caught.len(),
        hunts.len(),
        seconds.get(median(seconds.len())).copied().unwrap_or(0.0),
        seconds.last().copied().unwrap_or(0.0),
        runs.get(median(runs.len())).copied().unwrap_or(0),
        runs.last().copied().unwrap_or(0),
        kinds.join(", "),
    );
    let _ = std::io::stdout().flush();
}

/// What was wrong, without its numbers.
fn kind(what: &str) -> String {
    let mut kind = String::new();
    for letter in what.chars().take(100) {
        match letter {
            '0'..='9' if kind.ends_with('N') => {}
            '0'..='9' => kind.push('N'),
            ';' => break,
            _ => kind.push(letter),
        }
    }
    kind
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut parsed = Args {
        seeds: 20,
        only: None,
        world: None,
        seed: Seed(rand::random()),
        limit: Duration::from_secs(60),
        runs: None,
        threads: 2,
    };
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} wants a value"))?;
        let number = || value.parse::<u64>().map_err(|error| format!("{name} {value}: {error}"));
        match name.as_str() {
            "--seeds" => parsed.seeds = number()?,
            "--only" => parsed.only = Some(value),
            "--world" => {
                parsed.world = Some(match value.as_str() {
                    "array" => World::Array,
                    "way" => World::Way,
                    "pace" => World::Pace,
                    _ => return Err(format!("no world {value}; there are array, way and pace")),
                });
            }
            "--seed" => parsed.seed = Seed(number()?),
            "--runs" => parsed.runs = Some(number()?),
            "--seconds" => parsed.limit = Duration::from_secs(number()?),
            "--threads" => {
                parsed.threads = usize::try_from(number()?).map_err(|error| error.to_string())?;
            }
            _ => return Err(format!("no option {name}")),
        }
    }
    Ok(parsed)
}
