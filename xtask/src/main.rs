//! One entry for people and CI: `cargo xtask TASK`. Each task is what `.ci/run` calls too.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a task talks to its terminal")]

mod before;
mod blackbox;
mod clocks;
mod conformance;
mod coverage;
mod fuzz;
mod licences;
mod nightly;
mod purity;
mod run;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::{Result, bail};
use blackbox::Set;
use run::{cargo, metadata};

const USAGE: &str = "\
usage: cargo xtask TASK

  check            format, lints, licences, purity, tidy
  test             every test that needs nothing but the Rust toolchain
  blackbox [NAME]  the scripts in tests/, which need foreign tools (see .ci/run), or those whose
                   names contain NAME; without it, not those that measure the packaged program, or run an
                   older program as well, which is built of the history
  lab [NAME]       the scripts in tests/lab/: a Linux guest with open-iscsi, multipath and LIO
  conformance [--write]
                   the conformance suite of libiscsi; --write puts the results, beside tgt's,
                   into docs/conformance.md
  fuzz [SECONDS [NAME]]
                   fuzz targets with a nightly compiler, for 12 s each or as long as said
  fuzz seeds [NAME]
                   makes fuzz/seeds anew of what they and earlier runs have found
  nightly [STEP]   the longer tier, or one step of it (build, test, simulate, mutate, coverage,
                   blackbox, lab, conformance, fuzz):
                   tests with many more seeds and steps, scripts with more data, fuzz targets for
                   five minutes each, the array simulated for an hour; two to three hours on two free
                   cores
  simulate [cluster | liars | pace | way] [--minutes N | --runs N] [--seed S] [--level L] ...
                   arrays in a simulated world, seed after seed; --replay S shows
                   all of one seed
  coverage [--missing] [--runs N]
                   which regions of crates/raid its tests and N simulated runs (300) go through, by
                   file, and where they do not; needs LLVM's tools of the compiler's version
  mutate [--seeds N] [--only NAME] [--world array|way|pace] [--seconds N] [--seed S]
                   plants one error after another in the array's machine, and shows in how many of
                   N (20) campaigns of a minute at most the simulator sees each
  licences         licences and sources of all dependencies
  purity           the pure crates compile where std does not exist
  tidy             rules of the house that no lint knows";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match perform(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(args: &[&str]) -> Result<()> {
    match args {
        ["check"] => check(),
        ["test"] => test::run(),
        ["test", rest @ ..] => cargo(&[&["test", "--workspace", "--quiet"], rest].concat(), &[]),
        ["blackbox"] => blackbox::run(Set::Blackbox, None, false),
        ["blackbox", name] => blackbox::run(Set::Blackbox, Some(name), false),
        ["lab"] => blackbox::run(Set::Lab, None, false),
        ["lab", name] => blackbox::run(Set::Lab, Some(name), false),
        ["conformance"] => conformance::run(false),
        ["conformance", "--write"] => conformance::run(true),
        ["fuzz"] => fuzz::run(12, ""),
        ["fuzz", "seeds"] => fuzz::seeds(""),
        ["fuzz", "seeds", name] => fuzz::seeds(name),
        ["fuzz", seconds] => fuzz::run(seconds.parse()?, ""),
        ["fuzz", seconds, name] => fuzz::run(seconds.parse()?, name),
        ["nightly"] => nightly::run(""),
        ["nightly", step] => nightly::run(step),
        ["simulate", rest @ ..] => simulate(rest),
        ["coverage"] => coverage::run(None, false),
        ["coverage", "--missing"] => coverage::run(None, true),
        ["coverage", "--runs", runs] => coverage::run(Some(runs), false),
        ["coverage", "--missing", "--runs", runs] => coverage::run(Some(runs), true),
        ["mutate", rest @ ..] => mutate(rest),
        ["licences"] => licences::check(&metadata()?),
        ["purity"] => purity::check(),
        ["tidy"] => tidy::check(&metadata()?),
        _ => bail!("unknown task '{}'\n{USAGE}", args.join(" ")),
    }
}

pub(crate) fn simulate(args: &[&str]) -> Result<()> {
    let program = ["run", "--release", "--quiet", "-p", "netraid-sim", "--bin", "netraid-simulate"];
    cargo(&[&program[..], &["--"], args].concat(), &[])
}

pub(crate) fn mutate(args: &[&str]) -> Result<()> {
    let program = ["run", "--release", "--quiet", "-p", "netraid-sim"];
    let which = ["--features", "planted-errors", "--bin", "netraid-mutate", "--"];
    cargo(&[&program[..], &which, args].concat(), &[])
}

fn check() -> Result<()> {
    cargo(&["fmt", "--all", "--check"], &[])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])?;
    let planted = ["clippy", "-p", "netraid-sim", "--all-targets", "--features", "planted-errors"];
    cargo(&[&planted[..], &["--", "-D", "warnings"]].concat(), &[])?;
    let metadata = metadata()?;
    licences::check(&metadata)?;
    tidy::check(&metadata)?;
    purity::check()?;
    fuzz::check()
}
