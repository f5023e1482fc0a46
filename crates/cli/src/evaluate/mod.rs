//! `netraid evaluate`: the buyer's test of directories, devices, LUNs and exports, of any maker.
//!
//! What is tested, how long it takes and what it says is decided in `netraid_evaluate`; here targets are
//! opened, streams run, the log is written, and all is put back.

mod baseline;
mod client;
mod data;
mod degrade;
mod flush;
mod journal;
mod load;
mod options;
mod random;
mod replace;
mod report;
mod session;
mod show;
mod streams;
mod tape;
mod target;
mod tricks;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool, atomic::Ordering},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};
use indicatif::ProgressBar;
use netraid_block::redact_addresses;
use netraid_evaluate::{
    catalogue::TestId,
    csv, data as proof,
    estimate::{Estimate, Probe, estimate},
    judge::{self, Evidence},
    log::{self, Event, Past},
    plan::{SLOTS, largest_file},
    record::{DataProof, Evaluation, Run, TargetSpec, VERSION},
    requirements::{Requirements, Tally},
    sheet,
};
use serde_json::json;

pub(crate) use self::{
    client::{ClientArgs, run as run_client},
    options::EvaluateArgs,
};
use self::{
    data::{Data, DataFile},
    journal::Journal,
    load::Shared,
    session::{Common, Session},
    target::{Allowed, Sizes, Target},
};
use crate::{
    lines, machine,
    output::Output,
    runtime_of,
    signal::{Interrupted, Stop},
};

/// Largest file of requirements.
const REQUIREMENTS_BYTES_MAX: u64 = 1 << 20;

pub(crate) fn run(args: &EvaluateArgs, output: Output) -> Result<()> {
    // The signals' own thread: the tests block.
    let runtime = runtime_of(2)?;
    let flag = Arc::new(AtomicBool::new(false));
    runtime.block_on(async {
        let mut stop = Stop::listen()?;
        let flag = flag.clone();
        tokio::spawn(async move {
            stop.wait().await;
            flag.store(true, Ordering::Relaxed);
        });
        anyhow::Ok(())
    })?;
    let requirements = args.requirements.as_deref().map(read_requirements).transpose()?;
    args.refuse_overwriting_the_log()?;
    let evaluation = evaluate(args, requirements.as_ref(), &flag, output)?;
    let Some(evaluation) = evaluation else { return Ok(()) };
    if let Some(path) = &args.report {
        replace::replace(path, report::page(&evaluation)?.as_bytes())?;
    }
    if let Some(path) = &args.csv {
        replace::replace(path, csv::table(&evaluation).as_bytes())?;
    }
    output.document(&evaluation, || show::evaluation(&evaluation))?;
    let tally = Tally::of(&evaluation.requirements);
    if !tally.passes() {
        bail!("requirements: {}; the report says which", tally.text());
    }
    Ok(())
}

fn read_requirements(path: &Path) -> Result<Requirements> {
    let shown = || format!("requirements {}", path.display());
    let len = fs::metadata(path).with_context(shown)?.len();
    if len > REQUIREMENTS_BYTES_MAX {
        bail!(
            "{}: has {len} bytes, more than {REQUIREMENTS_BYTES_MAX}; give a file of requirements",
            shown()
        );
    }
    let text = fs::read_to_string(path).with_context(shown)?;
    Requirements::parse(&text).with_context(shown)
}

/// All but the reports. Nothing comes back from a dry run.
fn evaluate(
    args: &EvaluateArgs,
    requirements: Option<&Requirements>,
    flag: &Arc<AtomicBool>,
    output: Output,
) -> Result<Option<Evaluation>> {
    // Typed addresses may carry secrets, which the log must not.
    let typed = args.targets()?;
    let mut journal = (!args.dry_run).then(|| Journal::open(&args.log)).transpose()?;
    let past = match &mut journal {
        Some(journal) if args.resume => Some(past(journal, &typed)?),
        Some(_) | None => None,
    };
    let begun = past.as_ref().map(|past| &past.evaluation.run.data);
    let Written { data, file, seed, proof } = Written::of(args, begun)?;
    let (mut past, specs) = match past {
        Some(past) if typed.is_empty() => {
            let specs = past.evaluation.run.targets.clone();
            (past, specs)
        }
        Some(past) => (past, typed),
        None => {
            let default = Requirements::default();
            let settings = args.settings(requirements.unwrap_or(&default))?;
            let run = Run {
                version: VERSION,
                id: format!("{:012x}", rand::random::<u64>() >> 16),
                started_at: journal::now()?,
                netraid: env!("CARGO_PKG_VERSION").to_owned(),
                machine: machine::this(),
                targets: typed.iter().map(shown).collect(),
                settings,
                data: proof,
            };
            (Past::begun(run), typed)
        }
    };
    let settings = past.evaluation.run.settings.clone();
    let shared = Shared { data, stop: flag.clone() };
    let common = Common { settings: &settings, shared, data: file, seed };
    let run = past.evaluation.run.id.clone();
    let mut sessions = open(args, &specs, &common, &past)?;
    if let Some(journal) = &mut journal {
        journal.of(&run);
        let event = if args.resume {
            Event::Resumed {}
        } else {
            Event::Run { header: Box::new(past.evaluation.run.clone()) }
        };
        add(journal, &mut past, event)?;
    }
    let mut conduct = Conduct { past, journal, began: Instant::now(), output };
    let outcome = conduct.run(&mut sessions, &common, args, requirements);
    // Whatever came, targets are left as they were found.
    let closed = conduct.close(&mut sessions);
    conduct.end(outcome, closed, args)?;
    Ok(conduct.journal.is_some().then_some(conduct.past.evaluation))
}

/// What this sitting writes.
struct Written {
    data: Arc<Data>,
    /// The file that it is from; none: it is made from the seed.
    file: Option<DataFile>,
    seed: u64,
    proof: DataProof,
}

impl Written {
    /// Of a new run, or of one that began with data of this proof: a file is found again in the log.
    fn of(args: &EvaluateArgs, begun: Option<&DataProof>) -> Result<Self> {
        let given = args.data.as_deref().map(std::path::absolute).transpose()?;
        let file = match begun {
            Some(begun) => {
                let name = given.as_deref().map(|path| path.display().to_string());
                let name = proof::resumed(begun, name.as_deref())?.map(PathBuf::from);
                given.or(name)
            }
            None => given,
        };
        let seed = rand::random();
        let data = Arc::new(Data::new(file.as_deref(), seed)?);
        let proof = data.prove()?;
        if let Some(begun) = begun {
            proof::same(begun, &proof)?;
        }
        let file = file.zip(proof.digest.clone()).map(|(path, digest)| DataFile { path, digest });
        Ok(Self { data, file, seed, proof })
    }
}

fn shown(spec: &TargetSpec) -> TargetSpec {
    TargetSpec { address: redact_addresses(&spec.address), control: spec.control.clone() }
}

/// The run to go on with; targets that were typed must be its own.
fn past(journal: &mut Journal, typed: &[TargetSpec]) -> Result<Past> {
    let name = format!("log {}", journal.path().display());
    let past = log::unfinished(&journal.text()?).with_context(|| name.clone())?;
    let targets = &past.evaluation.run.targets;
    if !typed.is_empty() && !typed.iter().map(shown).eq(targets.iter().cloned()) {
        let id = &past.evaluation.run.id;
        bail!("{name}: run {id} has other targets; give the same, or none with --resume");
    }
    Ok(past)
}

fn open<'a>(
    args: &EvaluateArgs,
    specs: &[TargetSpec],
    common: &'a Common<'a>,
    past: &Past,
) -> Result<Vec<Session<'a>>> {
    let settings = common.settings;
    let allowed = Allowed {
        destroy: args.destroy_data,
        force: args.force,
        remote: !settings.clients.is_empty(),
    };
    if let Some(path) = &settings.tape {
        if !args.destroy_data {
            bail!("tape {path}: is overwritten; give --destroy-data if nobody needs what is on it");
        }
        target::tape(Path::new(path), args.force)?;
    }
    let sizes = Sizes { file_bytes: largest_file(settings), request: settings.buffer_bytes };
    let mut sessions = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        common.shared.check()?;
        let place = (u16::try_from(index)?, spec.address.as_str());
        let control = spec.control.as_deref();
        let run = past.evaluation.run.id.as_str();
        let target = Target::open(place, control, run, sizes, allowed, &args.secrets)?;
        if args.resume {
            let reports = &past.evaluation.targets;
            let known = reports.iter().find(|report| report.target.index == place.0);
            target::same(known.map(|report| &report.target), &target.info)?;
        }
        sessions.push(Session::new(target, common));
    }
    Ok(sessions)
}

fn add(journal: &mut Journal, past: &mut Past, event: Event) -> Result<()> {
    journal.add(event.clone())?;
    past.add(event);
    Ok(())
}

/// A run on its way.
struct Conduct {
    past: Past,
    journal: Option<Journal>,
    began: Instant,
    output: Output,
}

impl Conduct {
    fn run(
        &mut self,
        sessions: &mut [Session<'_>],
        common: &Common<'_>,
        args: &EvaluateArgs,
        requirements: Option<&Requirements>,
    ) -> Result<()> {
        self.repair(sessions, common)?;
        // Before anything is written, so that a later sitting knows them again.
        for session in sessions.iter() {
            self.note(Event::Target { target: session.target.info.clone() })?;
        }
        if self.past.evaluation.baselines.is_empty() {
            for baseline in baseline::measure(common.settings, &common.shared)? {
                self.note(Event::Baseline { baseline })?;
            }
        }
        let mut probes = Vec::new();
        for session in sessions.iter_mut() {
            let index = session.target.info.index;
            let probe = session.probe().with_context(|| session.target.info.address.clone())?;
            self.note(Event::Probe { target: index, probe })?;
            probes.push(probe);
        }
        let estimate = self.estimate(sessions, &probes, common);
        let Estimate { seconds, controls_s } = estimate;
        self.note(Event::Estimate { seconds, controls_s })?;
        self.say_estimate(estimate, args)?;
        if args.dry_run {
            return Ok(());
        }
        self.began = Instant::now();
        let bar = self.bar(seconds);
        for test in &common.settings.tests {
            for session in sessions.iter_mut() {
                self.step(session, *test, &bar)?;
            }
        }
        bar.finish_and_clear();
        self.judge(requirements)
    }

    /// One test at one target, unless it is done.
    fn step(&mut self, session: &mut Session<'_>, test: TestId, bar: &ProgressBar) -> Result<()> {
        let index = session.target.info.index;
        if self.past.evaluation.has(test, index) {
            return Ok(());
        }
        bar.set_message(format!("{test} at {}", session.target.info.address));
        if let (None, true, Some(member)) =
            (session.skip(test), test.fails_a_member(), session.degrade.index())
            && !self.past.without_member.contains(&index)
        {
            // Written before it happens: whatever ends this sitting, the next one takes it back.
            self.note(Event::MemberFailed { target: index, member })?;
        }
        let result = session.run(test, &self.past.evaluation.baselines)?;
        self.note(Event::Result { result: Box::new(result) })?;
        if !test.fails_a_member() {
            session.look_at_redundancy()?;
            let target = session.target.info.clone();
            let known = &self.past.evaluation.targets;
            if known.iter().all(|report| report.target != target) {
                self.note(Event::Target { target })?;
            }
        }
        // Clamped: the bar ends before.
        let elapsed = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        bar.set_position(elapsed.min(bar.length().unwrap_or(u64::MAX)));
        Ok(())
    }

    /// How long it takes from here on.
    fn estimate(
        &self,
        sessions: &[Session<'_>],
        probes: &[Probe],
        common: &Common<'_>,
    ) -> Estimate {
        let of = |(session, probe): (&Session<'_>, &Probe)| {
            let index = session.target.info.index;
            let left = |test: &&TestId| {
                session.skip(**test).is_none() && !self.past.evaluation.has(**test, index)
            };
            let tests: Vec<TestId> = common.settings.tests.iter().filter(left).copied().collect();
            estimate(&tests, common.settings, probe, [0; SLOTS as usize])
        };
        sessions.iter().zip(probes).map(of).sum()
    }

    fn say_estimate(&self, estimate: Estimate, args: &EvaluateArgs) -> Result<()> {
        let text = format!("this takes {}", show::estimate(estimate));
        if args.dry_run {
            let Estimate { seconds, controls_s } = estimate;
            let document = json!({ "estimate_s": seconds, "estimate_controls_s": controls_s });
            return self.output.document(&document, || text);
        }
        // Not on standard output, which has the document alone.
        say(&text);
        Ok(())
    }

    fn bar(&self, seconds: f64) -> ProgressBar {
        let ms = std::time::Duration::from_secs_f64(seconds.max(0.0)).as_millis();
        // Clamped: no evaluation takes that long.
        self.output.progress_of_steps("evaluating", u64::try_from(ms).unwrap_or(u64::MAX))
    }

    fn judge(&mut self, requirements: Option<&Requirements>) -> Result<()> {
        let mut reports = self.past.evaluation.targets.clone();
        let run = self.past.evaluation.run.clone();
        for report in &mut reports {
            report.findings = judge::findings(&Evidence {
                target: &report.target,
                results: &report.results,
                settings: &run.settings,
                baselines: &self.past.evaluation.baselines,
                memory_bytes: run.machine.memory_bytes,
            });
        }
        sheet::fill(&mut reports);
        let verdicts = requirements.map(|wishes| {
            reports.iter().flat_map(|report| wishes.judge(report)).collect::<Vec<_>>()
        });
        for report in reports {
            let target = report.target.index;
            let (findings, sheet) = (report.findings, report.sheet);
            self.note(Event::Judged { target, findings, sheet })?;
        }
        match verdicts {
            Some(verdicts) => self.note(Event::Verdicts { verdicts }),
            None => Ok(()),
        }
    }

    /// Waits for members that an earlier sitting failed.
    fn repair(&mut self, sessions: &mut [Session<'_>], common: &Common<'_>) -> Result<()> {
        for session in sessions {
            let index = session.target.info.index;
            if self.past.without_member.contains(&index) {
                session.degrade.was_failed();
                session.degrade.restore(&common.shared)?;
                common.shared.check()?;
                self.back(session)?;
                session.target.look_at_redundancy()?;
            }
        }
        Ok(())
    }

    fn back(&mut self, session: &Session<'_>) -> Result<()> {
        let target = session.target.info.index;
        match session.degrade.index() {
            Some(member) if self.past.without_member.contains(&target) => {
                self.note(Event::MemberBack { target, member })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Closes all targets, also after one that fails; the first failure is told.
    fn close(&mut self, sessions: &mut [Session<'_>]) -> Result<()> {
        let mut first = Ok(());
        for session in sessions {
            let mut closed = session.close();
            if closed.is_ok() && !session.degrade.is_changed() {
                closed = self.back(session);
            }
            if let Err(error) = closed {
                tracing::warn!("{}: {}", session.target.info.address, crate::describe(&error));
                first = first.and(Err(error));
            }
        }
        first
    }

    /// Writes the end of this sitting, and says how to go on after an interruption.
    fn end(&mut self, outcome: Result<()>, closed: Result<()>, args: &EvaluateArgs) -> Result<()> {
        let took_s = self.began.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => {
                self.note(Event::Ended { took_s })?;
                closed
            }
            Err(error) => {
                let reason = crate::describe(&error);
                self.note(Event::Interrupted { reason, took_s })?;
                if error.is::<Interrupted>() && self.journal.is_some() {
                    let log = args.log.display();
                    let left = match (&closed, self.past.without_member.is_empty()) {
                        (Ok(()), true) => "everything is cleaned up".to_owned(),
                        (Ok(()), false) => "the array goes on rebuilding its member".to_owned(),
                        (Err(error), _) => format!("not all is cleaned up ({error:#})"),
                    };
                    return Err(error.context(format!(
                        "{left}; go on with: netraid evaluate --resume --log {log}"
                    )));
                }
                Err(error)
            }
        }
    }

    fn note(&mut self, event: Event) -> Result<()> {
        match &mut self.journal {
            Some(journal) => add(journal, &mut self.past, event),
            None => {
                self.past.add(event);
                Ok(())
            }
        }
    }
}

/// Says something to people before a long wait.
fn say(text: &str) {
    lines::errors().push(format!("{text}\n").as_bytes());
}
