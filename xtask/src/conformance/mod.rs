//! iscsi-test-cu, the conformance suite of libiscsi, against a target in several configurations.
//!
//! `tests/conformance/serve.sh` starts the targets; this runs the tests, judges each by itself,
//! and writes the table of `docs/conformance.md`. No test may fail, and only those on
//! `tests/conformance/skips.txt` may be skipped.

mod judge;
mod output;

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, bail};
use judge::Counts;
use output::{Outcome, Results};

use crate::run::{Build, netraid, output, root};

/// Seconds for the tests of one suite together, or for one test that has its own process.
/// Sanitize.Reset alone sleeps for more than a minute.
const LIMIT: u32 = 240;

/// The families of which all tests must run. A test of one that this names by suite runs together
/// with the others of its suite; one of iSCSI, which may hang or spoil its session, by itself.
const FAMILIES: [(&str, bool); 2] = [("SCSI", true), ("iSCSI", false)];

/// What tests make sense of a target that refuses to be written.
const READ_ONLY: [&str; 16] = [
    "Inquiry",
    "Mandatory",
    "ModeSense6",
    "Prefetch10",
    "Prefetch16",
    "PrinReadKeys",
    "PrinReportCapabilities",
    "Read6",
    "Read10",
    "Read12",
    "Read16",
    "ReadCapacity10",
    "ReadCapacity16",
    "ReadOnly",
    "ReportSupportedOpcodes",
    "TestUnitReady",
];

/// What tests make sense of a medium that can be removed. The others of StartStopUnit want a unit
/// there that is stopped and ready.
const REMOVABLE: [&str; 10] = [
    "SCSI.NoMedia.NoMediaSBC",
    "SCSI.PreventAllow.2ITNexuses",
    "SCSI.PreventAllow.ColdReset",
    "SCSI.PreventAllow.Eject",
    "SCSI.PreventAllow.ITNexusLoss",
    "SCSI.PreventAllow.LUNReset",
    "SCSI.PreventAllow.Logout",
    "SCSI.PreventAllow.Simple",
    "SCSI.PreventAllow.WarmReset",
    "SCSI.StartStopUnit.Simple",
];

/// What tests skip themselves where a physical block is one logical block, as in memory.
const PHYSICAL: [&str; 4] = ["CompareAndWrite", "Unmap", "WriteSame10", "WriteSame16"];

/// Runs all against netraid and judges; with `write`, runs tgt too and writes the table.
pub(crate) fn run(write: bool) -> Result<()> {
    let binary = netraid(Build::Tests)?;
    let list = fs::read_to_string(root().join("tests/conformance/skips.txt"))?;
    let list = judge::exceptions(&list).context("tests/conformance/skips.txt")?;
    let wanted = listed()?;
    let ours = measure("netraid", &binary)?;
    if write {
        let theirs = measure("tgt", &binary)?;
        write_table(&judge::table(&[("netraid", &ours), ("tgt", &theirs)]))?;
    }
    let faults = judge::faults(&wanted, &ours, &list);
    for (name, exception) in &list {
        println!("excused: {name}: {}", exception.reason);
    }
    if !faults.is_empty() {
        let logs = logs("netraid");
        bail!(
            "{}\n{} faults; the output is in {}",
            faults.join("\n"),
            faults.len(),
            logs.display()
        );
    }
    println!("conformance: {}", Counts::of(ours.values()).show());
    Ok(())
}

/// All tests of the suite.
fn listed() -> Result<BTreeSet<String>> {
    let text = output("iscsi-test-cu", &["--list"])?;
    let ours = |name: &&str| {
        let family = name.split('.').next().unwrap_or_default();
        name.matches('.').count() == 2 && FAMILIES.iter().any(|(wanted, _)| *wanted == family)
    };
    Ok(text.lines().filter(ours).map(str::to_string).collect())
}

fn logs(target: &str) -> PathBuf {
    root().join("target/conformance").join(target)
}

/// Runs a target's configurations.
fn measure(target: &str, binary: &Path) -> Result<Results> {
    let logs = logs(target);
    fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
    let wanted = listed()?;
    let (server, configurations) = Server::start(target, binary)?;
    // Side by side: most of the time the suite sleeps.
    let all: Result<Vec<Results>> = thread::scope(|scope| {
        let (wanted, logs) = (&wanted, &logs);
        let run =
            |configuration| scope.spawn(move || measure_one(target, configuration, wanted, logs));
        let running: Vec<_> = configurations.iter().map(run).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<Results>>| {
            thread.join().unwrap_or_else(|_| bail!("a configuration's thread panicked"))
        };
        running.into_iter().map(join).collect()
    });
    let all = all?;
    server.stop()?;
    Ok(judge::combine(&all))
}

fn measure_one(
    target: &str,
    configuration: &Configuration,
    wanted: &BTreeSet<String>,
    logs: &Path,
) -> Result<Results> {
    let began = Instant::now();
    let results = configuration.run(wanted, logs)?;
    let counts = Counts::of(results.values()).show();
    let seconds = began.elapsed().as_secs_f64();
    println!("conformance of {target}, {}: {counts} ({seconds:.0} s)", configuration.name);
    Ok(results)
}

/// The script that runs the targets for as long as its standard input is open.
struct Server {
    script: Child,
    _output: BufReader<ChildStdout>,
}

impl Server {
    fn start(target: &str, binary: &Path) -> Result<(Self, Vec<Configuration>)> {
        let mut command = Command::new("bash");
        command.arg(root().join("tests/conformance/serve.sh")).arg(target);
        command.env("NETRAID", binary).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = command.spawn().context("cannot run tests/conformance/serve.sh")?;
        let mut output = BufReader::new(script.stdout.take().context("serve.sh has no output")?);
        let mut configurations = Vec::new();
        loop {
            let mut line = String::new();
            if output.read_line(&mut line)? == 0 {
                bail!("tests/conformance/serve.sh {target}: {}", script.wait()?);
            }
            let mut words = line.split_whitespace().map(str::to_string);
            match words.next() {
                Some(ready) if ready == "ready" => break,
                Some(name) => configurations.push(Configuration { name, urls: words.collect() }),
                None => {}
            }
        }
        Ok((Self { script, _output: output }, configurations))
    }

    fn stop(mut self) -> Result<()> {
        drop(self.script.stdin.take());
        let status = self.script.wait()?;
        if !status.success() {
            bail!("the targets did not end well: serve.sh ended with {status}");
        }
        Ok(())
    }
}

/// A target and the tests that it is given.
struct Configuration {
    name: String,
    /// Addresses of one LUN.
    urls: Vec<String>,
}

impl Configuration {
    fn run(&self, wanted: &BTreeSet<String>, logs: &Path) -> Result<Results> {
        let log = logs.join(format!("{}.log", self.name));
        let mut log = fs::File::create(&log).with_context(|| log.display().to_string())?;
        let mut results = Results::new();
        for (family, by_suite) in FAMILIES {
            let mine = wanted.iter().filter(|name| self.wants(family, name));
            let by_suite = by_suite && self.name != "removable";
            let runs: BTreeSet<&str> = mine.map(|name| run_of(name, by_suite)).collect();
            for run in runs {
                let text = self.execute(run)?;
                write!(log, "### {run}\n{text}\n")?;
                results.extend(output::parse(family, &text));
            }
        }
        // One that a process which died never came to.
        for name in wanted.iter().filter(|name| FAMILIES.iter().any(|it| self.wants(it.0, name))) {
            let lost = || Outcome::Failed("did not run".to_string());
            results.entry(name.clone()).or_insert_with(lost);
        }
        Ok(results)
    }

    fn wants(&self, family: &str, name: &str) -> bool {
        let mut words = name.split('.');
        let (mine, suite) = (words.next(), words.next().unwrap_or_default());
        mine == Some(family)
            && match self.name.as_str() {
                "read-only" => family == "SCSI" && READ_ONLY.contains(&suite),
                "two-portals" => suite == "MultipathIO",
                "slow" => suite == "Sanitize",
                "removable" => REMOVABLE.contains(&name),
                "file" => PHYSICAL.contains(&suite),
                _ => !["MultipathIO", "Sanitize"].contains(&suite),
            }
    }

    fn execute(&self, run: &str) -> Result<String> {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", &LIMIT.to_string(), "iscsi-test-cu", "--dataloss"]);
        command.args(["--allow-sanitize", "--verbose", "--Verbose-scsi", "--test", run]);
        command.args(&self.urls).stdin(Stdio::null());
        let output = command.output().context("cannot run iscsi-test-cu")?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        Ok(text)
    }
}

/// What one process runs to have this test run.
fn run_of(name: &str, by_suite: bool) -> &str {
    if by_suite { name.rsplit_once('.').map_or(name, |(suite, _)| suite) } else { name }
}

const BEGIN: &str = "<!-- written by `cargo xtask conformance --write` -->\n";

fn write_table(table: &str) -> Result<()> {
    let path = root().join("docs/conformance.md");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let (head, _) = text.split_once(BEGIN).context("docs/conformance.md has no place for it")?;
    fs::write(&path, format!("{head}{BEGIN}\n{table}"))?;
    Ok(())
}
