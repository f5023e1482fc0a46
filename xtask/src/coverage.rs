//! Which regions of a crate's code its tests and a simulation run through, by file.
//!
//! A region is what the compiler's instrumentation counts: a stretch of code that is run as a
//! whole or not at all. One that several programs share counts as run when any of them ran it.
//! Test code is left out. Needs the LLVM tools of the compiler's own LLVM: Debian's `llvm-22`, or
//! the component `llvm-tools` of rustup.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use cargo_metadata::Message;
use serde_json::Value;

use crate::run::{execute, output, root};

/// Whose regions are told.
const CRATE: &str = "netraid-raid";
const SOURCES: &str = "crates/raid/src";
/// What the simulation runs, unless told otherwise.
const RUNS: &str = "300";
const SEED: &str = "8000000";
/// Below this share of regions that are run, in percent, the task fails.
const PERCENT_MIN: f64 = 90.0;

/// Regions of one file by where they begin and end, with whether they were run.
type Regions = BTreeMap<[u64; 4], bool>;

/// Runs tests and a simulation, and prints what they ran; `missing` also names what they did not.
pub(crate) fn run(runs: Option<&str>, missing: bool) -> Result<()> {
    let tools = Tools::find()?;
    let target = root().join("target/coverage");
    let raw = target.join("raw");
    if raw.exists() {
        fs::remove_dir_all(&raw).with_context(|| raw.display().to_string())?;
    }
    let (target_dir, profile) = (target.display().to_string(), raw.join("%m.profraw"));
    let profile = profile.display().to_string();
    let environment = [
        ("CARGO_TARGET_DIR", target_dir.as_str()),
        ("LLVM_PROFILE_FILE", profile.as_str()),
        ("RUSTFLAGS", "-C instrument-coverage"),
    ];
    let tests = ["test", "-p", CRATE, "--tests"];
    let simulate = ["-p", "netraid-sim", "--bin", "netraid-simulate"];
    // Before they run: what they are made of may be edited meanwhile.
    let mut programs = built(&[&tests[..], &["--no-run"]].concat(), &environment)?;
    programs.extend(built(&[&["build"], &simulate[..]].concat(), &environment)?);
    let options = ["--runs", runs.unwrap_or(RUNS), "--seed", SEED];
    for program in &programs {
        let simulates = program.ends_with("netraid-simulate");
        let args = if simulates { &options[..] } else { &["--quiet"] };
        execute(Command::new(program), args, &environment)?;
    }
    tell(&tools.regions(&raw, &target, &programs)?, missing)
}

/// The programs that a cargo command builds.
fn built(args: &[&str], environment: &[(&str, &str)]) -> Result<Vec<PathBuf>> {
    let mut command = Command::new("cargo");
    command.args(args).args(["--quiet", "--message-format=json"]);
    command.envs(environment.iter().copied()).current_dir(root());
    let output = command.output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo {}: {}", args.join(" "), output.status);
    }
    let mut programs = Vec::new();
    for message in Message::parse_stream(output.stdout.as_slice()) {
        if let Message::CompilerArtifact(artifact) = message? {
            programs.extend(artifact.executable.map(PathBuf::from));
        }
    }
    Ok(programs)
}

/// `llvm-profdata` and `llvm-cov` that read what this compiler writes.
struct Tools {
    profdata: String,
    cov: String,
}

impl Tools {
    fn find() -> Result<Self> {
        let about = output("rustc", &["-vV"])?;
        let says = |name: &str| about.lines().find_map(|line| line.strip_prefix(name));
        let (Some(host), Some(version)) = (says("host: "), says("LLVM version: ")) else {
            bail!("rustc -vV names no host and no LLVM version");
        };
        let major = version.split('.').next().unwrap_or(version);
        let sysroot = output("rustc", &["--print", "sysroot"])?;
        let component = format!("{}/lib/rustlib/{host}/bin/", sysroot.trim());
        let names = [(component.as_str(), String::new()), ("", format!("-{major}"))];
        for (before, after) in names {
            let profdata = format!("{before}llvm-profdata{after}");
            let cov = format!("{before}llvm-cov{after}");
            if output(&profdata, &["--version"]).is_ok() && output(&cov, &["--version"]).is_ok() {
                return Ok(Self { profdata, cov });
            }
        }
        bail!(
            "no llvm-profdata and llvm-cov of LLVM {major}, which rustc uses; install Debian's \
             llvm-{major}, or rustup's component llvm-tools"
        );
    }

    /// By file, below the sources.
    fn regions(
        &self,
        raw: &Path,
        target: &Path,
        programs: &[PathBuf],
    ) -> Result<BTreeMap<String, Regions>> {
        let merged = target.join("merged.profdata").display().to_string();
        let mut args = vec!["merge".into(), "-sparse".into(), "-o".into(), merged.clone()];
        for entry in fs::read_dir(raw).with_context(|| raw.display().to_string())? {
            args.push(entry?.path().display().to_string());
        }
        output(&self.profdata, &args.iter().map(String::as_str).collect::<Vec<_>>())?;
        let sources = root().join(SOURCES);
        let mut args = vec![
            "export".to_string(),
            "--skip-expansions".into(),
            "--skip-branches".into(),
            format!("--instr-profile={merged}"),
            format!("--sources={}", sources.display()),
        ];
        for program in programs {
            args.push(format!("--object={}", program.display()));
        }
        let text = output(&self.cov, &args.iter().map(String::as_str).collect::<Vec<_>>())?;
        let export: Value = serde_json::from_str(&text).context("what llvm-cov exports")?;
        let mut files: BTreeMap<String, Regions> = BTreeMap::new();
        for function in list(&export["data"][0]["functions"]) {
            for region in list(&function["regions"]) {
                let at = |index: usize| region[index].as_u64().unwrap_or(0);
                let file = usize::try_from(at(5)).unwrap_or(usize::MAX);
                let Some(name) = function["filenames"][file].as_str() else { continue };
                let Ok(name) = Path::new(name).strip_prefix(&sources) else { continue };
                // Code, not what only joins or skips it.
                if at(7) == 0 {
                    let regions = files.entry(name.display().to_string()).or_default();
                    *regions.entry([at(0), at(1), at(2), at(3)]).or_default() |= at(4) > 0;
                }
            }
        }
        files.retain(|name, _| !name.ends_with("tests.rs"));
        for (name, regions) in &mut files {
            let end = first_line_of_tests(&sources.join(name))?;
            regions.retain(|[line, ..], _| *line < end);
        }
        Ok(files)
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Where a file's own tests begin: they stand at its end.
fn first_line_of_tests(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let lines: Vec<&str> = text.lines().collect();
    let begins = |pair: &[&str]| {
        pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{')
    };
    Ok(lines.windows(2).position(begins).map_or(u64::MAX, |at| at as u64 + 1))
}

fn tell(files: &BTreeMap<String, Regions>, missing: bool) -> Result<()> {
    let (mut all, mut covered) = (0, 0);
    println!("{:32} {:>8} {:>8} {:>8}", "file", "regions", "run", "%");
    for (name, regions) in files {
        let run = regions.values().filter(|run| **run).count();
        println!("{name:32} {:8} {run:8} {:8.2}", regions.len(), percent(run, regions.len()));
        all += regions.len();
        covered += run;
    }
    println!("{:32} {all:8} {covered:8} {:8.2}", "all", percent(covered, all));
    if missing {
        for (name, regions) in files {
            let lines: BTreeSet<u64> =
                regions.iter().filter(|(_, run)| !**run).map(|(at, _)| at[0]).collect();
            lines.iter().for_each(|line| println!("not run: {SOURCES}/{name}:{line}"));
        }
    }
    if percent(covered, all) < PERCENT_MIN {
        bail!("fewer than {PERCENT_MIN} % of the regions of {CRATE} are run");
    }
    Ok(())
}

#[allow(clippy::cast_precision_loss, reason = "counts of regions")]
fn percent(part: usize, whole: usize) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}
