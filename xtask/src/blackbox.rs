//! The scripts in tests/ and tests/lab/: the built program, used by foreign clients and a guest.

use std::{
    fs,
    panic::resume_unwind,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    before::netraid_before,
    run::{Build, netraid, output, root},
};

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

/// How many scripts run side by side: most of the time most of them wait.
const SIDE_BY_SIDE: usize = 2;
/// How a script begins in a network of its own, where no other takes a port that it had and wants again.
const OWN_NETWORK: &str = "ip link set lo up && exec bash \"$0\"";
/// A line of a script that asks somebody outside.
const OUTSIDE: &str = "# Outside: ";
/// A line of a script that measures, and is run when nothing else is.
const ALONE: &str = "# Alone: ";
/// A line of a script that measures the packaged program: the longer tier runs it, or who names it.
const DIST: &str = "# Dist: ";
/// A line of a script that runs the program of before as well, which takes minutes to build: the longer tier runs
/// it, or who names it.
const BEFORE: &str = "# Before: ";
/// What the machine has once: of the scripts that use one of these, one runs at a time.
const SHARED: [&str; 2] = ["losetup", "tgtd"];

struct Script {
    path: PathBuf,
    name: String,
    alone: bool,
    outside: bool,
    dist: bool,
    before: bool,
    uses: Vec<&'static str>,
}

impl Script {
    fn read(path: PathBuf) -> Result<Self> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let says = |mark| text.lines().any(|line| line.starts_with(mark));
        let (alone, outside, dist) = (says(ALONE), says(OUTSIDE), says(DIST));
        let before = says(BEFORE);
        let uses = SHARED.into_iter().filter(|shared| text.contains(shared)).collect();
        Ok(Self { path, name, alone, outside, dist, before, uses })
    }
}

/// What scripts run.
struct Programs {
    /// What is tried.
    binary: PathBuf,
    /// What is run beside it, where a script does.
    before: Option<PathBuf>,
}

/// Which scripts have not begun, and what those that run use.
struct Queue {
    waiting: Vec<Script>,
    running: usize,
    used: Vec<&'static str>,
}

impl Queue {
    /// The next that may begin now; those that are alone are last.
    fn next(&mut self) -> Option<Script> {
        let free = |script: &Script| {
            !script.alone && script.uses.iter().all(|shared| !self.used.contains(shared))
        };
        let at = match self.waiting.iter().position(free) {
            None if self.running == 0 && !self.waiting.is_empty() => 0,
            at => at?,
        };
        let script = self.waiting.remove(at);
        self.running += 1;
        self.used.extend(&script.uses);
        Some(script)
    }

    fn ended(&mut self, script: &Script) {
        self.running -= 1;
        self.used.retain(|shared| !script.uses.contains(shared));
    }
}

/// Runs the scripts whose names contain `only`, against the build of the tests, or what NETRAID names. Those of
/// the longer tier, which fill the machine, and those with a guest run one after the other; the longer
/// tier tries the packaged program.
pub(crate) fn run(set: Set, only: Option<&str>, nightly: bool) -> Result<()> {
    let mut waiting = scripts(set, only)?;
    if only.is_none() && !nightly {
        waiting.retain(|script| !script.dist && !script.before);
    }
    let dist = nightly || (!waiting.is_empty() && waiting.iter().all(|script| script.dist));
    let binary = netraid(if dist { Build::Dist } else { Build::Tests })?;
    let before = waiting.iter().any(|script| script.before).then(netraid_before).transpose()?;
    let programs = Programs { binary, before };
    let logs = root().join("target/blackbox");
    fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
    let required = std::env::var_os("CI").is_some() || nightly;
    let started = Instant::now();
    let queue = Queue { waiting, running: 0, used: Vec::new() };
    let (queue, changed) = (Mutex::new(queue), Condvar::new());
    // Networks take the superuser.
    let apart = matches!(set, Set::Blackbox) && !nightly && output("id", &["-u"])?.trim() == "0";
    let workers = if apart { SIDE_BY_SIDE } else { 1 };
    let work = || {
        let mut verdicts = Vec::new();
        let mut queued = lock(&queue);
        while !queued.waiting.is_empty() {
            let Some(script) = queued.next() else {
                queued = changed.wait(queued).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(queued);
            let verdict = judge(&script, &programs, &logs, (apart, nightly, required));
            verdicts.push((script.name.clone(), verdict));
            queued = lock(&queue);
            queued.ended(&script);
            changed.notify_all();
        }
        verdicts
    };
    let verdicts: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let ended = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)));
        ended.flatten().collect()
    });
    let (mut passed, mut failed, mut skipped) = (0_u32, Vec::new(), 0_u32);
    for (name, verdict) in verdicts {
        match verdict? {
            Verdict::Passed => passed += 1,
            Verdict::Skipped => skipped += 1,
            Verdict::Failed => failed.push(name),
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

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

enum Verdict {
    Passed,
    Failed,
    Skipped,
}

/// Runs a script and says how it went.
fn judge(
    script: &Script,
    programs: &Programs,
    logs: &Path,
    (apart, nightly, required): (bool, bool, bool),
) -> Result<Verdict> {
    let name = &script.name;
    let log = logs.join(format!("{name}.log"));
    let began = Instant::now();
    let code = execute(script, programs, &log, apart, nightly)?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(match code {
        Some(0) => {
            println!("test {name} ... ok ({seconds:.1} s)");
            Verdict::Passed
        }
        Some(SKIPPED) if !required => {
            println!("test {name} ... ignored: {}", last_line(&log));
            Verdict::Skipped
        }
        _ => {
            println!("test {name} ... FAILED ({seconds:.1} s)\n{}", tail(&log));
            Verdict::Failed
        }
    })
}

fn scripts(set: Set, only: Option<&str>) -> Result<Vec<Script>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join(set.directory()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let wanted = only.is_none_or(|only| name.contains(only));
        if name.ends_with(".sh") && name != "lib.sh" && wanted {
            found.push(Script::read(path)?);
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn execute(
    script: &Script,
    programs: &Programs,
    log: &Path,
    apart: bool,
    nightly: bool,
) -> Result<Option<i32>> {
    let out = fs::File::create(log).with_context(|| log.display().to_string())?;
    let limit = if nightly { LIMIT_NIGHTLY } else { LIMIT };
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", limit]);
    if apart && !script.outside {
        command.args(["unshare", "--net", "bash", "-c", OWN_NETWORK]);
    } else {
        command.arg("bash");
    }
    command.arg(&script.path).current_dir(root());
    command.env("NETRAID", &programs.binary);
    if let Some(before) = programs.before.as_ref().filter(|_| script.before) {
        command.env("NETRAID_BEFORE", before);
    }
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
