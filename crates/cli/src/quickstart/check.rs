//! The check: data is written, a member is lost and replaced, the engine restarts, and at each
//! step all data is read back by another process and compared.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use serde_json::Value;

use super::{QuickstartArgs, house::House};
use crate::{args, load::Loaded, output::Output, size};

/// The member that is lost.
const VICTIM: usize = 1;
const SEED: u64 = 0x6e65_7472_6169_6400;
const SEED_REWRITTEN: u64 = SEED + 1;
/// A rebuild that makes no progress for so long has failed.
const REBUILD_STALL: Duration = Duration::from_secs(60);

/// What `quickstart --check` reports.
#[derive(Debug, Serialize)]
struct Report {
    ok: bool,
    level: u8,
    members: u8,
    size_bytes: u64,
    steps: Vec<Step>,
    /// The array's status at the end.
    array: Value,
    seconds: f64,
}

/// One step, and the array's state after it.
#[derive(Debug, Serialize)]
struct Step {
    name: &'static str,
    /// Bytes that were moved.
    bytes: u64,
    seconds: f64,
    mb_per_s: f64,
    /// Bytes that were read back and compared.
    verified_bytes: u64,
    state: String,
    members: Vec<String>,
}

pub(super) fn run(args: &QuickstartArgs, house: House, output: Output) -> Result<()> {
    if args.level == 0 || args.members < 2 {
        bail!(
            "--check loses a member, which level {} does not survive; give --level 5",
            args.level
        );
    }
    let started = Instant::now();
    let mut check = Check { size: args.size, house, output, steps: Vec::new() };
    check.work()?;
    let array = check.house.status()?;
    let seconds = started.elapsed().as_secs_f64();
    let report = Report {
        ok: true,
        level: args.level,
        members: args.members,
        size_bytes: args.size,
        steps: check.steps,
        array,
        seconds,
    };
    check.house.close()?;
    output.document(&report, || format!("all data verified; {seconds:.1} s in all"))
}

struct Check {
    size: u64,
    house: House,
    output: Output,
    steps: Vec<Step>,
}

impl Check {
    fn work(&mut self) -> Result<()> {
        self.house.start_targets()?;
        self.house.create()?;
        self.house.attach()?;
        self.write("write", false)?;
        self.verify("verify", false)?;
        self.house.kill_target(VICTIM)?;
        self.verify("verify with a member lost", false)?;
        self.expect_state("degraded")?;
        self.write("rewrite half", true)?;
        self.rebuild()?;
        self.verify("verify after the rebuild", true)?;
        self.house.detach()?;
        self.house.attach()?;
        self.verify("verify after a restart", true)?;
        self.expect_state("optimal")
    }

    fn write(&mut self, name: &'static str, rewrite: bool) -> Result<()> {
        let loaded = self.load("write", rewrite).context(name)?;
        self.done(name, &loaded, 0)
    }

    fn verify(&mut self, name: &'static str, rewritten: bool) -> Result<()> {
        let loaded = self.load("verify", rewritten).context(name)?;
        self.done(name, &loaded, loaded.bytes)
    }

    fn load(&self, action: &str, rewritten: bool) -> Result<Loaded> {
        let mut args = args![action, "--len", self.size, "--seed", SEED].to_vec();
        if rewritten {
            args.extend(args!["--rewritten", SEED_REWRITTEN]);
        }
        Ok(serde_json::from_value(self.house.load(&args)?)?)
    }

    /// Gives the lost member's place to a fresh target, and waits until it holds everything.
    fn rebuild(&mut self) -> Result<()> {
        let name = "rebuild";
        let spare = self.house.start_target()?;
        let started = Instant::now();
        self.house.replace(VICTIM, spare)?;
        let bar = self.output.progress(name, 0);
        let (mut done, mut moved) = (0, Instant::now());
        let total = loop {
            let status = self.house.status()?;
            let progress = Progress::of(&status)?;
            if progress.is_over {
                break progress.total.max(done);
            }
            if progress.done != done {
                (done, moved) = (progress.done, Instant::now());
            }
            if moved.elapsed() > REBUILD_STALL {
                bail!("rebuild: no progress for {} s: {status}", REBUILD_STALL.as_secs());
            }
            bar.set_length(progress.total);
            bar.set_position(progress.done);
            self.house.pause()?;
        };
        bar.finish_and_clear();
        let seconds = started.elapsed().as_secs_f64();
        let mb_per_s = size::mb_per_s(total, seconds);
        self.done(name, &Loaded { bytes: total, seconds, mb_per_s }, 0)
    }

    fn done(&mut self, name: &'static str, loaded: &Loaded, verified_bytes: u64) -> Result<()> {
        let status = self.house.status()?;
        let Loaded { bytes, seconds, mb_per_s } = *loaded;
        let state = text(&status, "/state")?;
        let members = status.pointer("/members").and_then(Value::as_array);
        let members = members.context("status without members")?;
        let members = members.iter().map(|member| text(member, "/state")).collect::<Result<_>>()?;
        let shown = size::show(bytes);
        self.output.say(&format!(
            "{name:<26} {shown:>9} {seconds:>6.2} s {mb_per_s:>6.0} MB/s  {state}"
        ))?;
        self.steps.push(Step { name, bytes, seconds, mb_per_s, verified_bytes, state, members });
        Ok(())
    }

    fn expect_state(&self, wanted: &str) -> Result<()> {
        let state = text(&self.house.status()?, "/state")?;
        if state != wanted {
            bail!("the array is {state} where it should be {wanted}");
        }
        Ok(())
    }
}

fn text(value: &Value, pointer: &str) -> Result<String> {
    let text = value.pointer(pointer).and_then(Value::as_str);
    text.map(str::to_string).with_context(|| format!("no {pointer} in {value}"))
}

/// How far the victim's rebuild is, from a status.
struct Progress {
    done: u64,
    total: u64,
    is_over: bool,
}

impl Progress {
    fn of(status: &Value) -> Result<Self> {
        let state = text(status, &format!("/members/{VICTIM}/state"))?;
        // A session that is made again is no end of it.
        if !["in_sync", "catching_up", "suspect"].contains(&state.as_str()) {
            bail!("the rebuild ended and left the member {state}: {status}");
        }
        let number = |name| status.pointer(name).and_then(Value::as_u64).unwrap_or_default();
        let (done, total) = (number("/progress/done_bytes"), number("/progress/total_bytes"));
        Ok(Self { done, total, is_over: state == "in_sync" })
    }
}
