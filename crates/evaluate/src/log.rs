//! The log: lines of JSON, appended and never rewritten, from which a run is put together again.
//!
//! Each line is an [`Entry`]. A run begins with [`Event::Run`] and ends with [`Event::Ended`]; one without
//! an end can go on. A line that is cut off (the machine lost its power while it was written) is left
//! out.

use serde::{Deserialize, Serialize};

use crate::{
    estimate::Probe,
    record::{
        Baseline, Evaluation, Finding, Outcome, RedundancyState, Run, SheetLine, TargetInfo,
        TargetReport, TestResult, VERSION, Verdict,
    },
};

/// A line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// [`VERSION`].
    pub version: u32,
    /// The run that it belongs to.
    pub run: String,
    /// When it was written: RFC 3339, UTC.
    pub at: String,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A run begins.
    Run {
        /// Its header.
        header: Box<Run>,
    },
    /// A target was opened.
    Target {
        /// What it is.
        target: TargetInfo,
    },
    /// A baseline was measured.
    Baseline {
        /// It.
        baseline: Baseline,
    },
    /// Rates were probed.
    Probe {
        /// Number of the target.
        target: u16,
        /// Its rates.
        probe: Probe,
    },
    /// It was said how long the rest takes.
    Estimate {
        /// Seconds.
        seconds: f64,
        /// Seconds on top where bursts of writes ask for controls.
        #[serde(default)]
        controls_s: f64,
    },
    /// A test ended.
    Result {
        /// Its result.
        result: Box<TestResult>,
    },
    /// A member of the array behind a target is about to be failed.
    MemberFailed {
        /// Number of the target.
        target: u16,
        /// Index of the member.
        member: u16,
    },
    /// It is whole again.
    MemberBack {
        /// Number of the target.
        target: u16,
        /// Index of the member.
        member: u16,
    },
    /// All tests of a target have ended.
    Judged {
        /// Number of the target.
        target: u16,
        /// What was found.
        findings: Vec<Finding>,
        /// Its sheet.
        sheet: Vec<SheetLine>,
    },
    /// The requirements were judged.
    Verdicts {
        /// The verdicts.
        verdicts: Vec<Verdict>,
    },
    /// A sitting ended before its time.
    Interrupted {
        /// Why.
        reason: String,
        /// Seconds that it had taken.
        took_s: f64,
    },
    /// The run goes on.
    Resumed {},
    /// The run has ended.
    Ended {
        /// Seconds that the last sitting took.
        took_s: f64,
    },
}

/// Why a log gives no run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// No run is in it.
    #[error("no run is in it; begin one without --resume")]
    Empty,
    /// The last run has ended.
    #[error("its last run, {0}, has ended; begin a new one without --resume")]
    Ended(String),
    /// The last run is of another version.
    #[error(
        "its last run is of version {0}, this program knows {VERSION}; end it with the program that began it"
    )]
    Version(u32),
}

/// A run as its lines tell it.
#[derive(Debug, Clone, PartialEq)]
pub struct Past {
    /// All that is known of it.
    pub evaluation: Evaluation,
    /// Rates by target.
    pub probes: Vec<(u16, Probe)>,
    /// Targets whose array misses a member because of this run.
    pub without_member: Vec<u16>,
}

/// The line of an entry, with its end.
///
/// # Errors
/// None that a record of ours can cause.
pub fn line(entry: &Entry) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string(entry)? + "\n")
}

/// The last run of a log.
///
/// # Errors
/// When there is none, or it is of another version.
pub fn last(text: &str) -> Result<Past, LogError> {
    let mut past: Result<Past, LogError> = Err(LogError::Empty);
    for line in text.lines() {
        // What is cut off, or not ours, says nothing.
        let Ok(value) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let version = value.get("version").and_then(serde_json::Value::as_u64);
        let begins = value.get("event").and_then(serde_json::Value::as_str) == Some("run");
        if version != Some(u64::from(VERSION)) {
            if begins {
                let version = version.and_then(|version| u32::try_from(version).ok());
                past = Err(LogError::Version(version.unwrap_or_default()));
            }
            continue;
        }
        let Ok(entry) = serde_json::from_value::<Entry>(value) else { continue };
        if let Event::Run { header } = entry.event {
            past = Ok(Past::begun(*header));
        } else if let Ok(past) = &mut past
            && past.evaluation.run.id == entry.run
        {
            past.add(entry.event);
        }
    }
    past
}

/// The last run of a log, which must not have ended.
///
/// # Errors
/// As [`last`]; when it has ended.
pub fn unfinished(text: &str) -> Result<Past, LogError> {
    let past = last(text)?;
    if past.evaluation.complete {
        return Err(LogError::Ended(past.evaluation.run.id));
    }
    Ok(past)
}

impl Past {
    /// A run of which nothing is known but its header.
    #[must_use]
    pub fn begun(run: Run) -> Self {
        let evaluation = Evaluation {
            run,
            baselines: Vec::new(),
            targets: Vec::new(),
            requirements: Vec::new(),
            complete: false,
            resumed: 0,
            estimate_s: None,
            estimate_controls_s: 0.0,
            took_s: 0.0,
        };
        Self { evaluation, probes: Vec::new(), without_member: Vec::new() }
    }

    /// Takes over what happened.
    pub fn add(&mut self, event: Event) {
        let evaluation = &mut self.evaluation;
        match event {
            Event::Run { .. } => {}
            Event::Target { target } => evaluation.put_target(target),
            Event::Baseline { baseline } => evaluation.baselines.push(baseline),
            Event::Probe { target, probe } => {
                self.probes.retain(|(of, _)| *of != target);
                self.probes.push((target, probe));
            }
            // What was said first is what the run is held against.
            Event::Estimate { seconds, controls_s } => {
                if evaluation.estimate_s.is_none() {
                    evaluation.estimate_s = Some(seconds);
                    evaluation.estimate_controls_s = controls_s;
                }
            }
            Event::Result { result } => evaluation.put_result(*result),
            Event::MemberFailed { target, .. } => self.without_member.push(target),
            Event::MemberBack { target, .. } => self.without_member.retain(|of| *of != target),
            Event::Judged { target, findings, sheet } => {
                if let Some(report) = evaluation.report_mut(target) {
                    (report.findings, report.sheet) = (findings, sheet);
                }
            }
            Event::Verdicts { verdicts } => evaluation.requirements = verdicts,
            Event::Interrupted { took_s, .. } => evaluation.took_s += took_s,
            Event::Resumed {} => evaluation.resumed += 1,
            Event::Ended { took_s } => {
                evaluation.took_s += took_s;
                evaluation.complete = true;
            }
        }
    }
}

const fn rank(state: RedundancyState) -> u8 {
    match state {
        RedundancyState::Unknown => 0,
        RedundancyState::Full => 1,
        RedundancyState::Degraded => 2,
        RedundancyState::Off => 3,
    }
}

impl Evaluation {
    /// Takes what a target is; a later word replaces an earlier one, but its redundancy stays the worst that was
    /// seen.
    pub fn put_target(&mut self, target: TargetInfo) {
        match self.report_mut(target.index) {
            Some(report) => {
                let before = report.target.redundancy.clone();
                report.target = target;
                if rank(before.state) > rank(report.target.redundancy.state) {
                    report.target.redundancy = before;
                }
            }
            None => self.targets.push(TargetReport {
                target,
                results: Vec::new(),
                findings: Vec::new(),
                sheet: Vec::new(),
            }),
        }
    }

    /// Takes a result; a later one of the same test replaces an earlier one.
    pub fn put_result(&mut self, result: TestResult) {
        if let Some(report) = self.report_mut(result.target) {
            report.results.retain(|other| other.test != result.test);
            report.results.push(result);
        }
    }

    /// Whether a test of a target is done; one that failed is not.
    #[must_use]
    pub fn has(&self, test: crate::catalogue::TestId, target: u16) -> bool {
        let report = self.targets.iter().find(|report| report.target.index == target);
        report.is_some_and(|report| {
            let of_test = report.results.iter().find(|result| result.test == test);
            of_test.is_some_and(|result| match result.outcome {
                Outcome::Done | Outcome::Skipped { .. } => true,
                Outcome::Failed { .. } => false,
            })
        })
    }

    fn report_mut(&mut self, target: u16) -> Option<&mut TargetReport> {
        self.targets.iter_mut().find(|report| report.target.index == target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        catalogue::TestId,
        record::tests::{result, run, target},
    };

    fn text(run: &str, events: Vec<Event>) -> String {
        let entry = |event| Entry { version: VERSION, run: run.into(), at: "t".into(), event };
        events.into_iter().map(|event| line(&entry(event)).unwrap()).collect()
    }

    fn begun(id: &str) -> Vec<Event> {
        let header = Box::new(Run { id: id.to_owned(), ..run() });
        let result = |test| Event::Result { result: Box::new(result(test, 0, 5.0)) };
        vec![
            Event::Run { header },
            Event::Target { target: target(0) },
            result(TestId::Host1),
            result(TestId::Host2),
            Event::Estimate { seconds: 9.0, controls_s: 4.0 },
        ]
    }

    #[test]
    fn an_interrupted_run_goes_on_where_it_was() {
        let mut events = begun("a");
        events.push(Event::Interrupted { reason: "signal".into(), took_s: 3.0 });
        events.push(Event::Resumed {});
        events.push(Event::Estimate { seconds: 2.0, controls_s: 0.0 });
        let log = text("z", begun("z")) + &text("a", events);
        // The last line was cut off.
        let log = log + "{\"version\":1,\"run\":\"a\",\"at\":\"t\",\"event\":\"ended\",\"too";
        let past = unfinished(&log).unwrap().evaluation;
        assert_eq!((past.run.id.as_str(), past.resumed), ("a", 1));
        assert!(past.has(TestId::Host1, 0) && past.has(TestId::Host2, 0));
        assert!(!past.has(TestId::Host3, 0) && !past.has(TestId::Host1, 1));
        assert_eq!((past.estimate_s, past.estimate_controls_s), (Some(9.0), 4.0));
        assert_eq!(past.took_s, 3.0);
    }

    #[test]
    fn what_has_ended_does_not_go_on() {
        let mut events = begun("a");
        events.push(Event::Ended { took_s: 7.0 });
        let log = text("a", events);
        assert_eq!(unfinished(&log).unwrap_err(), LogError::Ended("a".into()));
        assert!(last(&log).unwrap().evaluation.complete);
        assert_eq!(unfinished("").unwrap_err(), LogError::Empty);
        let newer = log.replace("\"version\":1,\"run\"", "\"version\":2,\"run\"");
        assert_eq!(unfinished(&newer).unwrap_err(), LogError::Version(2));
    }

    #[test]
    fn an_older_run_of_another_version_is_in_nobodys_way() {
        let older = text("z", begun("z")).replace("\"version\":1", "\"version\":7");
        let log = older.clone() + &text("a", begun("a"));
        assert_eq!(unfinished(&log).unwrap().evaluation.run.id, "a");
        let log = text("a", begun("a")) + &older;
        assert_eq!(unfinished(&log).unwrap_err(), LogError::Version(7));
    }

    #[test]
    fn a_member_that_was_failed_is_known_until_it_is_back() {
        let failed = Event::MemberFailed { target: 0, member: 1 };
        let mut events = begun("a");
        events.push(failed);
        assert_eq!(unfinished(&text("a", events.clone())).unwrap().without_member, [0]);
        events.push(Event::MemberBack { target: 0, member: 1 });
        assert!(unfinished(&text("a", events)).unwrap().without_member.is_empty());
    }

    #[test]
    fn a_failed_test_is_tried_again_and_a_degraded_array_stays_one() {
        let mut past = Past::begun(run());
        let mut info = target(0);
        info.redundancy.state = RedundancyState::Degraded;
        past.add(Event::Target { target: info });
        past.add(Event::Target { target: target(0) });
        let state = past.evaluation.targets[0].target.redundancy.state;
        assert_eq!(state, RedundancyState::Degraded);
        let outcome = Outcome::Failed { reason: "lost".into() };
        past.evaluation.put_result(TestResult::without(TestId::Host1, 0, outcome));
        assert!(!past.evaluation.has(TestId::Host1, 0));
    }

    #[test]
    fn lines_of_other_runs_are_left_out() {
        let log =
            text("a", begun("a")) + &text("b", vec![Event::Ended { took_s: 7.0 }]) + "no JSON\n";
        assert!(!unfinished(&log).unwrap().evaluation.complete);
    }

    #[test]
    fn a_record_reads_as_it_was_written() {
        let mut events = begun("a");
        events.push(Event::Baseline {
            baseline: Baseline {
                kind: crate::record::BaselineKind::DiskWrite,
                place: "/tmp".into(),
                samples_mb_per_s: vec![1.5],
                mb_per_s: 1.5,
            },
        });
        for line in text("a", events.clone()).lines() {
            let entry: Entry = serde_json::from_str(line).unwrap();
            assert!(events.contains(&entry.event));
        }
    }
}
