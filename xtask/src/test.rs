//! Every test of the workspace, and which of them took long.

use std::{
    collections::VecDeque,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::{Context as _, Result, bail};
use cargo_metadata::Message;

use crate::run::{cargo, root};

/// Programs of tests that run at the same time: most of their time they wait.
const SIDE_BY_SIDE: usize = 2;
/// Seconds that one of them may take, and what it may still take to end.
const LIMIT: &str = "900";
/// Tests that took longer, in seconds, are told.
const SLOW_S: f64 = 10.0;

struct Program {
    name: String,
    path: PathBuf,
    /// Of the package: where cargo, too, runs its tests.
    directory: PathBuf,
}

/// Builds all, runs all, and tells what failed and what was slow.
pub(crate) fn run() -> Result<()> {
    cargo(&["test", "--workspace", "--no-run", "--quiet"], &[])?;
    let logs = root().join("target/tests");
    fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
    let programs = Mutex::new(programs()?);
    let failed = Mutex::new(Vec::new());
    let work = || -> Result<()> {
        let next = || programs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        while let Some(program) = next() {
            if !execute(&program, &logs)? {
                failed.lock().unwrap_or_else(PoisonError::into_inner).push(program.name);
            }
        }
        Ok(())
    };
    let ended: Vec<Result<()>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..SIDE_BY_SIDE).map(|_| scope.spawn(work)).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().map(join).collect()
    });
    ended.into_iter().collect::<Result<()>>()?;
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !failed.is_empty() {
        bail!("tests failed: {}", failed.join(", "));
    }
    cargo(&["test", "--workspace", "--doc", "--quiet"], &[])
}

/// What the build before made.
fn programs() -> Result<VecDeque<Program>> {
    let mut command = Command::new("cargo");
    command.args(["test", "--workspace", "--no-run", "--quiet", "--message-format=json"]);
    let output = command.current_dir(root()).output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo test --no-run: {}", output.status);
    }
    let mut programs = VecDeque::new();
    for message in Message::parse_stream(output.stdout.as_slice()) {
        let Message::CompilerArtifact(artifact) = message? else { continue };
        let Some(path) = artifact.executable.filter(|_| artifact.profile.test) else { continue };
        let directory = artifact.manifest_path.parent().unwrap_or(&artifact.manifest_path);
        let package = directory.file_name().unwrap_or_default();
        programs.push_back(Program {
            name: format!("{package} {}", artifact.target.name),
            path: path.into(),
            directory: directory.into(),
        });
    }
    if programs.is_empty() {
        bail!("cargo test --no-run: names no program of tests");
    }
    Ok(programs)
}

/// Runs a program's tests; false when one failed. What it says goes into a file: a process that a test leaves
/// behind would hold a pipe open.
fn execute(program: &Program, logs: &Path) -> Result<bool> {
    let log = logs.join(format!("{}.log", program.name.replace(' ', "-")));
    let out = fs::File::create(&log).with_context(|| log.display().to_string())?;
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", LIMIT]).arg(&program.path);
    // How long each test took, the harness of a stable compiler says on this condition alone.
    command.args(["-Zunstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
    command.env("CARGO_MANIFEST_DIR", &program.directory);
    command.current_dir(&program.directory).stdin(Stdio::null());
    command.stdout(out.try_clone()?).stderr(out);
    let status = command.status().with_context(|| program.path.display().to_string())?;
    let said = fs::read(&log).with_context(|| log.display().to_string())?;
    let said = String::from_utf8_lossy(&said);
    let result = said.lines().rfind(|line| line.starts_with("test result:")).unwrap_or_default();
    println!("{}: {result}", program.name);
    for line in said.lines().filter(|line| seconds(line).is_some_and(|took| took > SLOW_S)) {
        println!("slow: {}: {line}", program.name);
    }
    if !status.success() {
        println!("{}: {status} (124: it took longer than {LIMIT} s)\n{said}", program.name);
    }
    Ok(status.success())
}

/// What a line `test NAME ... ok <1.234s>` ends with.
fn seconds(line: &str) -> Option<f64> {
    line.strip_prefix("test ")?.rsplit_once('<')?.1.strip_suffix("s>")?.parse().ok()
}
