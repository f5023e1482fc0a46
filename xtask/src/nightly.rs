//! The longer tier: the steps of `.ci/run` with more of everything, and the lab. All are run, also
//! after one that failed, and each has its end.

use std::time::Instant;

use anyhow::{Result, bail};

use crate::{
    blackbox::{self, Set},
    conformance, coverage, fuzz, mutate,
    run::{cargo, cargo_within},
    simulate,
};

/// What the tests are told to do more of; what the environment says already stays.
const MORE: [(&str, &str); 6] = [
    ("NETRAID_NIGHTLY", "1"),
    ("NETRAID_MODEL_RUNS", "10000"),
    ("PROPTEST_CASES", "2048"),
    ("NETRAID_AGENT_CRASHES", "100"),
    ("NETRAID_AGENT_ROUNDS", "400"),
    ("NETRAID_MEDIATOR_CRASHES", "100"),
];

/// Longest that the tests may take, in seconds.
const TEST_S_MAX: u32 = 2400;
/// How long each fuzz target runs, in seconds.
const FUZZ_S: u32 = 300;

type Step = (&'static str, fn() -> Result<()>);

/// How long the array is simulated, in minutes.
const SIMULATE_MIN: u32 = 60;

const STEPS: [Step; 13] = [
    ("build", || cargo(&["build", "--release", "--workspace", "--all-targets"], &[])),
    ("test", test),
    ("simulate", || {
        let minutes = number("NETRAID_SIMULATE_MINUTES", SIMULATE_MIN).to_string();
        simulate(&["--minutes", &minutes, "--failures", "20"])
    }),
    ("simulate liars", || simulate(&["liars", "--runs", "20000"])),
    ("simulate pace", || simulate(&["pace", "--runs", "5000", "--failures", "20"])),
    ("simulate cluster", || simulate(&["cluster", "--runs", "4000"])),
    ("simulate way", || simulate(&["way", "--runs", "10000", "--failures", "20"])),
    ("coverage", || coverage::run(None, true)),
    ("mutate", || mutate(&[])),
    ("blackbox", || blackbox::run(Set::Blackbox, None, true)),
    ("lab", || blackbox::run(Set::Lab, None, true)),
    ("conformance", || conformance::run(false)),
    ("fuzz", || fuzz::run(number("NETRAID_FUZZ_SECONDS", FUZZ_S), "")),
];

/// Runs all steps, or those whose names contain `name`, and tells how long each took.
pub(crate) fn run(name: &str) -> Result<()> {
    let (mut told, mut failed) = (Vec::new(), Vec::new());
    for (step, perform) in STEPS.iter().filter(|(step, _)| step.contains(name)) {
        println!("\nnightly: {step}");
        let began = Instant::now();
        let result = perform();
        let seconds = began.elapsed().as_secs();
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        told.push(format!("nightly: {step} {verdict} ({} min {} s)", seconds / 60, seconds % 60));
        if let Err(error) = result {
            failed.push(format!("{step}: {error:#}"));
        }
    }
    println!("\n{}", told.join("\n"));
    match (told.is_empty(), failed.is_empty()) {
        (true, _) => bail!("no step of the longer tier is called '{name}'"),
        (false, true) => Ok(()),
        (false, false) => bail!("{}", failed.join("; ")),
    }
}

fn test() -> Result<()> {
    let set = |name: &str| std::env::var_os(name).is_some();
    let more: Vec<_> = MORE.into_iter().filter(|(name, _)| !set(name)).collect();
    cargo_within(TEST_S_MAX, &["test", "--workspace", "--release", "--quiet"], &more)
}

fn number(name: &str, usual: u32) -> u32 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(usual)
}
