//! The scripts in tests/ and tests/lab/: the built program, used by foreign clients and a guest.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};

use crate::run::{cargo, root};

/// How a script says that a tool it needs is not installed (as in automake).
const SKIPPED: i32 = 77;

/// Seconds that one script may take.
const LIMIT: &str = "300";
const LIMIT_NIGHTLY: &str = "1800";

/// Where scripts are that belong together.
#[derive(Clone, Copy)]
pub(crate) enum Set {
    /// Foreign tools on this machine.
    Blackbox,
    /// A guest with a Linux kernel of its own, in a network of its own.
    Lab,
}

impl Set {
    const fn directory(self) -> &'static str {
        match self {
            Self::Blackbox => "tests",
            Self::Lab => "tests/lab",
        }
    }
}

/// Runs the scripts whose names contain `only`, one after the other, against a release build.
pub(crate) fn run(set: Set, only: Option<&str>, nightly: bool) -> Result<()> {
    cargo(&["build", "--release", "--package", "netraid"], &[])?;
    let logs = root().join("target/blackbox");
    fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
    let required = std::env::var_os("CI").is_some() || nightly;
    let started = Instant::now();
    let (mut passed, mut failed, mut skipped) = (0_u32, Vec::new(), 0_u32);
    for script in scripts(set, only)? {
        let name = script.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let log = logs.join(format!("{name}.log"));
        let began = Instant::now();
        let code = execute(&script, &log, nightly)?;
        let seconds = began.elapsed().as_secs_f64();
        match code {
            Some(0) => {
                passed += 1;
                println!("test {name} ... ok ({seconds:.1} s)");
            }
            Some(SKIPPED) if !required => {
                skipped += 1;
                println!("test {name} ... ignored: {}", last_line(&log));
            }
            _ => {
                println!("test {name} ... FAILED ({seconds:.1} s)\n{}", tail(&log));
                failed.push(name);
            }
        }
    }
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {passed} passed; {} failed; {skipped} ignored; 0 measured; \
         0 filtered out; finished in {:.2}s",
        failed.len(),
        started.elapsed().as_secs_f64()
    );
    if !failed.is_empty() {
        bail!("failed: {}; their output is in {}", failed.join(", "), logs.display());
    }
    if passed + skipped == 0 {
        bail!("no script's name contains '{}'", only.unwrap_or_default());
    }
    Ok(())
}

fn scripts(set: Set, only: Option<&str>) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join(set.directory()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let wanted = only.is_none_or(|only| name.contains(only));
        if name.ends_with(".sh") && name != "lib.sh" && wanted {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn execute(script: &Path, log: &Path, nightly: bool) -> Result<Option<i32>> {
    let out = fs::File::create(log).with_context(|| log.display().to_string())?;
    let limit = if nightly { LIMIT_NIGHTLY } else { LIMIT };
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", limit, "bash"]).arg(script).current_dir(root());
    command.env("NETRAID", root().join("target/release/netraid"));
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
    if nightly {
        command.env("NETRAID_NIGHTLY", "1");
    }
    Ok(command.status().context("cannot run timeout")?.code())
}

fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let first = lines.len().saturating_sub(40);
    lines.iter().skip(first).map(|line| format!("    {line}\n")).collect()
}

fn last_line(log: &Path) -> String {
    tail(log).lines().last().unwrap_or_default().trim().to_string()
}
