//! Simulates arrays, with `cluster` a cluster, or with `liars` members that lie, with `pace` members that are slow: `cargo xtask simulate`, or one seed
//! again with its trace.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    time::Duration,
};

use netraid_raid::volume::{Logged, Plain};
use netraid_sim::{
    Seed,
    array::{
        self,
        machine::Machine,
        plan::{Choice, Fault, Mode, Plan},
        trace::Keep,
        world::World,
    },
    campaign::{Extent, panic_text},
    cluster, liars, pace, way,
};

const USAGE: &str = "\
usage: netraid-simulate [--minutes N | --runs N] [--seed S] [--level L] [--log with|without]
                        [--mode within|beyond] [--fault NAME ...] [--threads N] [--failures N]
       netraid-simulate --replay S [--level L] [--log with|without] [--mode within|beyond] [--fault NAME ...] [--last N]
       netraid-simulate cluster [--minutes N | --runs N] [--seed S] [--threads N] [--failures N]
       netraid-simulate cluster --replay S [--last N]
       netraid-simulate liars [--minutes N | --runs N] [--seed S] [--threads N] [--failures N]
       netraid-simulate liars --replay S
       netraid-simulate pace [--minutes N | --runs N] [--seed S] [--threads N] [--failures N]
       netraid-simulate pace --replay S [--last N]
       netraid-simulate way [--minutes N | --runs N] [--seed S] [--threads N] [--failures N]
       netraid-simulate way --replay S [--last N]";

/// Runs after which each rule of the machine has held something back.
const WHOLE_RUNS: u64 = 500;
/// Runs of the whole way after which everything has happened that may.
const WHOLE_WAYS: u64 = 1000;

struct Args {
    extent: Extent,
    seed: Seed,
    choice: Choice,
    threads: usize,
    failures: usize,
    replay: bool,
    last: Option<usize>,
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).peekable();
    let is_cluster = args.next_if(|first| first == "cluster").is_some();
    let is_liars = args.next_if(|first| first == "liars").is_some();
    let is_pace = args.next_if(|first| first == "pace").is_some();
    let is_way = args.next_if(|first| first == "way").is_some();
    let args = match parse(args) {
        Ok(args) => args,
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if is_cluster {
        return clusters(&args);
    }
    if is_liars {
        return liars(&args);
    }
    if is_pace {
        return paces(&args);
    }
    if is_way {
        return ways(&args);
    }
    if args.replay {
        let keep = args.last.map_or(Keep::All, Keep::Last);
        return if replay(args.seed, &args.choice, keep) {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
    }
    println!("seeds from {}", args.seed);
    std::panic::set_hook(Box::new(|_| {}));
    let report =
        array::campaign::run_any(args.seed, &args.choice, args.extent, args.threads, args.failures);
    let _ = std::panic::take_hook();
    print!("{report}");
    let Some(first) = report.failures.first() else {
        // Of all levels and faults, and many enough, that each rule should have been needed.
        let is_whole = args.choice == Choice::default() && report.runs >= WHOLE_RUNS;
        return if is_whole && !report.untested().is_empty() {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        };
    };
    println!("commit {}", commit());
    println!("the end of seed {}; all of it by --replay {}:", first.seed, first.seed);
    replay(first.seed, &args.choice, Keep::Last(60));
    ExitCode::FAILURE
}

/// Many clusters, or one with its trace.
fn clusters(args: &Args) -> ExitCode {
    let replay = |seed, keep| {
        let plan = cluster::plan::Plan::new(seed, None);
        println!("seed {seed}: {plan:?}");
        let world = cluster::world::World::new(plan, keep);
        let lines = world.lines();
        let ended = catch_unwind(AssertUnwindSafe(|| world.run()));
        lines.borrow().iter().for_each(|line| println!("{line}"));
        let wrong = match &ended {
            Ok(outcome) => outcome.violation.clone(),
            Err(panic) => Some(panic_text(panic.as_ref())),
        };
        match wrong {
            Some(wrong) => {
                println!("WRONG: {wrong}");
                ExitCode::FAILURE
            }
            None => ExitCode::SUCCESS,
        }
    };
    if args.replay {
        return replay(args.seed, args.last.map_or(Keep::All, Keep::Last));
    }
    println!("seeds from {}", args.seed);
    std::panic::set_hook(Box::new(|_| {}));
    let report = cluster::campaign::run(args.seed, args.extent, None, args.threads, args.failures);
    let _ = std::panic::take_hook();
    print!("{report}");
    let Some(first) = report.failures.first() else { return ExitCode::SUCCESS };
    println!("commit {}", commit());
    println!("the end of seed {}; all of it by cluster --replay {}:", first.seed, first.seed);
    replay(first.seed, Keep::Last(60))
}

/// Many arrays whose members lie, or one with what happened.
fn liars(args: &Args) -> ExitCode {
    let replay = |seed| {
        let ended = catch_unwind(|| liars::run_one(seed));
        let wrong = match ended {
            Ok(outcome) => {
                outcome.lines.iter().for_each(|line| println!("{line}"));
                outcome.violation
            }
            Err(panic) => Some(panic_text(panic.as_ref())),
        };
        wrong.map_or(ExitCode::SUCCESS, |wrong| {
            println!("WRONG: {wrong}");
            ExitCode::FAILURE
        })
    };
    if args.replay {
        return replay(args.seed);
    }
    println!("seeds from {}", args.seed);
    std::panic::set_hook(Box::new(|_| {}));
    let report = liars::run(args.seed, args.extent, args.threads, args.failures);
    let _ = std::panic::take_hook();
    print!("{report}");
    let Some(first) = report.failures.first() else { return ExitCode::SUCCESS };
    println!("commit {}", commit());
    println!("seed {}; again by liars --replay {}:", first.seed, first.seed);
    replay(first.seed)
}

/// Many arrays whose members answer at their own pace, or one with what happened.
fn paces(args: &Args) -> ExitCode {
    let replay = |seed, last: Option<usize>| {
        let mut lines = Vec::new();
        let ended = catch_unwind(AssertUnwindSafe(|| pace::run_one(seed, Some(&mut lines))));
        let from = last.map_or(0, |last| lines.len().saturating_sub(last));
        lines[from..].iter().for_each(|line| println!("{line}"));
        let wrong = match ended {
            Ok(outcome) => outcome.violation,
            Err(panic) => Some(panic_text(panic.as_ref())),
        };
        wrong.map_or(ExitCode::SUCCESS, |wrong| {
            println!("WRONG: {wrong}");
            ExitCode::FAILURE
        })
    };
    if args.replay {
        return replay(args.seed, args.last);
    }
    println!("seeds from {}", args.seed);
    std::panic::set_hook(Box::new(|_| {}));
    let report = pace::run(args.seed, args.extent, args.threads, args.failures);
    let _ = std::panic::take_hook();
    print!("{report}");
    let Some(first) = report.failures.first() else { return ExitCode::SUCCESS };
    println!("commit {}", commit());
    println!("seed {}; again by pace --replay {}:", first.seed, first.seed);
    replay(first.seed, Some(60))
}

/// Many arrays all the way from users to disks, or one with its trace.
fn ways(args: &Args) -> ExitCode {
    let replay = |seed, keep| {
        let plan = way::plan::Plan::new(seed);
        println!("seed {seed}: {plan:?}");
        let mut world = way::world::World::new(plan, keep);
        let parts = [world.lines(), world.guests_lines()];
        let ended = catch_unwind(AssertUnwindSafe(|| world.run()));
        for (lines, of) in parts.into_iter().zip(["the array:", "its guests, from 0 s on again:"]) {
            if !lines.borrow().is_empty() {
                println!("{of}");
            }
            lines.borrow().iter().for_each(|line| println!("{line}"));
        }
        let wrong = match ended {
            Ok(outcome) => {
                println!("hash {:016x}, events {}", outcome.hash, outcome.sights.events);
                if outcome.violation.is_none() {
                    println!("nothing is wrong");
                }
                outcome.violation
            }
            Err(panic) => Some(panic_text(panic.as_ref())),
        };
        wrong.map_or(ExitCode::SUCCESS, |wrong| {
            println!("WRONG: {wrong}");
            ExitCode::FAILURE
        })
    };
    if args.replay {
        return replay(args.seed, args.last.map_or(Keep::All, Keep::Last));
    }
    println!("seeds from {}", args.seed);
    std::panic::set_hook(Box::new(|_| {}));
    let report = way::campaign::run(args.seed, args.extent, args.threads, args.failures);
    let _ = std::panic::take_hook();
    print!("{report}");
    let Some(first) = report.failures.first() else {
        let is_whole = report.runs >= WHOLE_WAYS;
        return if is_whole && !report.never().is_empty() {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        };
    };
    println!("commit {}", commit());
    println!("the end of seed {}; all of it by way --replay {}:", first.seed, first.seed);
    replay(first.seed, Keep::Last(60))
}

/// What, with a seed, replays a run.
fn commit() -> String {
    let git = std::process::Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let text = git.ok().filter(|git| git.status.success()).map(|git| git.stdout);
    text.map_or_else(|| "unknown".into(), |text| String::from_utf8_lossy(&text).trim().into())
}

/// Runs a seed again; false when something is wrong.
fn replay(seed: Seed, choice: &Choice, keep: Keep) -> bool {
    let plan = Plan::of_any(seed, choice);
    let geometry = &plan.geometry;
    println!(
        "seed {seed}: level {}{}, {} members, {} stripes in {}, chunk {}, block {}, log {} blocks, \
         {:?}, {:?}, faults {:?}",
        geometry.level().number(),
        if plan.has_log { "" } else { " without a log" },
        geometry.members(),
        geometry.stripes(),
        plan.regions.physical_stripes(geometry),
        geometry.chunk_len(),
        geometry.block_len(),
        plan.regions.log_blocks(),
        plan.mode,
        plan.limits,
        plan.faults,
    );
    match plan.has_log {
        true => run(World::<Logged>::new(plan, keep)),
        false => run(World::<Plain>::new(plan, keep)),
    }
}

/// Runs a world and shows what happened; false when something is wrong.
fn run<M: Machine>(world: World<M>) -> bool {
    let lines = world.lines();
    let ended = catch_unwind(AssertUnwindSafe(|| world.run()));
    lines.borrow().iter().for_each(|line| println!("{line}"));
    match ended {
        Ok(outcome) => {
            println!("hash {:016x}", outcome.hash);
            if let Some(violation) = &outcome.violation {
                println!("WRONG: {}", violation.0);
            }
            outcome.violation.is_none()
        }
        Err(panic) => {
            println!("WRONG: {}", panic_text(panic.as_ref()));
            false
        }
    }
}

fn parse(args: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut parsed = Args {
        extent: Extent::Runs(1000),
        seed: Seed(rand::random()),
        choice: Choice::default(),
        threads: 2,
        failures: 1,
        replay: false,
        last: None,
    };
    let mut args = args;
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} wants a value"))?;
        let number = || value.parse::<u64>().map_err(|error| format!("{name} {value}: {error}"));
        let small = || value.parse::<usize>().map_err(|error| format!("{name} {value}: {error}"));
        match name.as_str() {
            "--minutes" => parsed.extent = Extent::Time(Duration::from_secs(number()? * 60)),
            "--seconds" => parsed.extent = Extent::Time(Duration::from_secs(number()?)),
            "--runs" => parsed.extent = Extent::Runs(number()?),
            "--seed" => parsed.seed = Seed(number()?),
            "--level" => {
                let level = u8::try_from(number()?).map_err(|error| error.to_string())?;
                parsed.choice.level = Some(level);
            }
            "--mode" => {
                parsed.choice.mode = Some(match value.as_str() {
                    "within" => Mode::Within,
                    "beyond" => Mode::Beyond,
                    _ => return Err(format!("no mode {value}")),
                });
            }
            "--fault" => {
                let mut all = Fault::DRAWN.into_iter().chain([Fault::SpaceRunsOut]);
                let fault = all.find(|fault| format!("{fault:?}") == value);
                let fault = fault.ok_or_else(|| format!("no fault {value}"))?;
                parsed.choice.faults.get_or_insert_default().push(fault);
            }
            "--log" => parsed.choice.has_log = Some(value == "with"),
            "--threads" => parsed.threads = small()?,
            "--failures" => parsed.failures = small()?,
            "--last" => parsed.last = Some(small()?),
            "--replay" => {
                parsed.seed = Seed(number()?);
                parsed.replay = true;
            }
            #[cfg(feature = "planted-errors")]
            "--planted" => {
                use netraid_planted::{Planted, chosen};
                let error = Planted::ALL.iter().find(|error| error.name() == value);
                chosen::set(Some(*error.ok_or_else(|| format!("no error {value}"))?));
            }
            _ => return Err(format!("no option {name}")),
        }
    }
    Ok(parsed)
}
