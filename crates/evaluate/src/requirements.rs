//! Wishes in a file, and whether a target meets them.

use serde::{Deserialize, Serialize};

use crate::{
    catalogue::TestId,
    record::{
        FindingState, RedundancyState, TargetInfo, TargetKind, TargetReport, TestResult, Verdict,
    },
};

/// A file of requirements (TOML). All hold for every target.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirements {
    /// Redundancy must be complete, and known to be.
    #[serde(default)]
    pub redundancy: bool,
    /// No finding may speak against the target.
    #[serde(default)]
    pub no_findings: bool,
    /// A file system must have been measured, not a device.
    #[serde(default)]
    pub file_system: bool,
    /// Figures.
    #[serde(default, rename = "require")]
    pub figures: Vec<Wish>,
}

/// What a test must give. All that is said must hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wish {
    /// The test.
    pub test: TestId,
    /// Its figure must be at least this: MB/s, for random tests IOPS.
    pub at_least: Option<f64>,
    /// Random tests: at this depth; without it at the deepest.
    pub depth: Option<u16>,
    /// Random tests: 99 in 100 requests must not take longer, in microseconds.
    pub p99_us_at_most: Option<u64>,
    /// Tests with a tape: how often it may wait.
    pub tape_waits_at_most: Option<u64>,
}

/// A file that cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequirementsError {
    /// It is no TOML, or has fields that nobody knows.
    #[error("{0}")]
    Toml(String),
    /// A requirement that says nothing, or what its test does not have.
    #[error("requirement {number}, {test}: {reason}")]
    Wish {
        /// Number in the file, from 1.
        number: usize,
        /// Its test.
        test: TestId,
        /// What is wrong.
        reason: &'static str,
    },
}

impl Requirements {
    /// Reads a file.
    ///
    /// # Errors
    /// When it is no TOML of this form, or a requirement says nothing or what its test does not have.
    pub fn parse(text: &str) -> Result<Self, RequirementsError> {
        let parsed: Self = toml::from_str(text)
            .map_err(|error| RequirementsError::Toml(error.to_string().trim_end().to_owned()))?;
        for (index, wish) in parsed.figures.iter().enumerate() {
            wish.check().map_err(|reason| {
                let (number, test) = (index + 1, wish.test);
                RequirementsError::Wish { number, test, reason }
            })?;
        }
        Ok(parsed)
    }

    /// The tests that are wished for: those that must run.
    pub fn tests(&self) -> impl Iterator<Item = TestId> + '_ {
        self.figures.iter().map(|wish| wish.test)
    }

    /// The verdicts on one target, in the order of the file.
    #[must_use]
    pub fn judge(&self, report: &TargetReport) -> Vec<Verdict> {
        let target = report.target.index;
        let verdict = |requirement: &str, found: String, met| {
            let requirement = requirement.to_owned();
            Verdict { target, requirement, found, met, could_not_tell: false }
        };
        let mut verdicts = Vec::new();
        if self.redundancy {
            let state = report.target.redundancy.state;
            let found = match state {
                RedundancyState::Full => "complete",
                RedundancyState::Degraded => "degraded",
                RedundancyState::Off => "none",
                RedundancyState::Unknown => "unknown",
            };
            let met = state == RedundancyState::Full;
            verdicts.push(verdict("redundancy is complete", found.to_owned(), met));
        }
        if self.no_findings {
            let against = report.findings.iter().filter(|f| f.state == FindingState::Found);
            let against: Vec<&str> = against.map(|finding| finding.text.as_str()).collect();
            let met = against.is_empty();
            let found = if met { "none".to_owned() } else { against.join("; ") };
            verdicts.push(verdict("no finding speaks against it", found, met));
        }
        if self.file_system {
            let met = report.target.kind == TargetKind::Directory;
            let found = report.target.file_system.clone().filter(|_| met);
            let found = found.unwrap_or_else(|| "a device without a file system".to_owned());
            verdicts.push(verdict("a file system was measured", found, met));
        }
        for wish in &self.figures {
            let result = report.results.iter().find(|result| result.test == wish.test);
            verdicts.extend(wish.judge(result, &report.target));
        }
        verdicts
    }
}

impl Wish {
    fn check(&self) -> Result<(), &'static str> {
        let random = self.test.group() == "random";
        let tape = matches!(
            self.test,
            TestId::Host5 | TestId::Host6 | TestId::Host7 | TestId::Host8 | TestId::Host9
        );
        let silent = self.at_least.is_none()
            && self.p99_us_at_most.is_none()
            && self.tape_waits_at_most.is_none();
        if silent {
            Err("it asks for nothing; give at_least, p99_us_at_most or tape_waits_at_most")
        } else if !random && (self.depth.is_some() || self.p99_us_at_most.is_some()) {
            Err("depth and p99_us_at_most are for random.read and random.write")
        } else if !tape && self.tape_waits_at_most.is_some() {
            Err("tape_waits_at_most is for host.5 to host.9")
        } else if self.at_least.is_some_and(|least| !(least.is_finite() && least > 0.0)) {
            Err("at_least must be a positive number")
        } else if self.test.group() == "trick" {
            Err("a trick test has no figure to ask for; use no_findings = true")
        } else {
            Ok(())
        }
    }

    fn judge(&self, result: Option<&TestResult>, info: &TargetInfo) -> Vec<Verdict> {
        let target = info.index;
        let at = self.depth.map(|depth| format!(" at depth {depth}")).unwrap_or_default();
        let unit = self.test.test().unit.name();
        let verdict = |wish: String, found: Option<(String, bool)>| {
            let (found, met) = found.unwrap_or_else(|| ("not measured".to_owned(), false));
            let requirement = format!("{}{at}: {wish}", self.test);
            Verdict { target, requirement, found, met, could_not_tell: false }
        };
        let point = || {
            let points = &result?.random;
            match self.depth {
                Some(depth) => points.iter().find(|point| point.depth == depth),
                None => points.last(),
            }
        };
        let mut verdicts = Vec::new();
        if let Some(least) = self.at_least {
            let value = match self.test.group() {
                "random" => point().map(|point| point.iops),
                _ => result.and_then(|result| result.figure).map(|figure| figure.value),
            };
            let found = value.map(|value| (format!("{value:.1} {unit}"), value >= least));
            verdicts.push(verdict(format!("at least {least} {unit}"), found));
        }
        if let Some(most) = self.p99_us_at_most {
            let found = point().map(|point| point.latency.p99_us);
            let text = format!("99 in 100 within {most} us");
            verdicts.push(match found {
                Some(us) if self.test == TestId::RandomWrite && !info.direct => {
                    let found = format!(
                        "could not tell: {us} us, but writes ended in the page cache of the machine that measured, \
                         because the target takes no O_DIRECT"
                    );
                    Verdict { could_not_tell: true, ..verdict(text, Some((found, false))) }
                }
                found => verdict(text, found.map(|us| (format!("{us} us"), us <= most))),
            });
        }
        if let Some(most) = self.tape_waits_at_most {
            let streams = result.into_iter().flat_map(|result| &result.rounds);
            let tapes = streams.flat_map(|round| &round.streams).filter_map(|stream| stream.tape);
            let found = tapes.map(|tape| tape.starved).max();
            let found = found.map(|waits| (format!("{waits} waits"), waits <= most));
            verdicts.push(verdict(format!("the tape waits at most {most} times"), found));
        }
        verdicts
    }
}

/// How many requirements are met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// All.
    pub all: usize,
    /// Those that are not met although what was measured says enough, or because nothing was measured.
    pub missed: usize,
    /// Those of which what was measured says nothing.
    pub untold: usize,
}

impl Tally {
    /// Counts.
    #[must_use]
    pub fn of(verdicts: &[Verdict]) -> Self {
        let untold = verdicts.iter().filter(|verdict| verdict.could_not_tell).count();
        let met = verdicts.iter().filter(|verdict| verdict.met).count();
        Self { all: verdicts.len(), missed: verdicts.len() - met - untold, untold }
    }

    /// Whether all are met.
    #[must_use]
    pub const fn passes(&self) -> bool {
        self.missed == 0 && self.untold == 0
    }

    /// In words.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { all, missed, untold } = self;
        match (missed, untold) {
            (0, 0) => format!("all {all} are met"),
            (_, 0) => format!("{missed} of {all} are not met"),
            (0, _) => format!("{untold} of {all} could not be told"),
            (_, _) => format!("{missed} of {all} are not met, {untold} could not be told"),
        }
    }
}

impl Verdict {
    /// In a word or two.
    #[must_use]
    pub const fn mark(&self) -> &'static str {
        match (self.met, self.could_not_tell) {
            (true, _) => "met",
            (false, true) => "COULD NOT TELL",
            (false, false) => "NOT MET",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{
        Latency, RandomPoint,
        tests::{result, target},
    };

    fn report(results: Vec<TestResult>) -> TargetReport {
        TargetReport { target: target(0), results, findings: Vec::new(), sheet: Vec::new() }
    }

    #[test]
    fn what_is_not_measured_is_not_met() {
        let wishes =
            Requirements::parse("[[require]]\ntest = \"host.1\"\nat_least = 100.0").unwrap();
        let met = |results| wishes.judge(&report(results))[0].met;
        assert!(met(vec![result(TestId::Host1, 0, 100.0)]));
        assert!(!met(vec![result(TestId::Host1, 0, 99.9)]));
        assert!(!met(vec![result(TestId::Host2, 0, 500.0)]));
    }

    #[test]
    fn general_wishes_are_judged_too() {
        let wishes = "redundancy = true\nno_findings = true\nfile_system = true";
        let wishes = Requirements::parse(wishes).unwrap();
        let verdicts = wishes.judge(&report(Vec::new()));
        let met: Vec<bool> = verdicts.iter().map(|verdict| verdict.met).collect();
        assert_eq!(met, [false, true, true]);
    }

    #[test]
    fn a_page_cache_says_nothing_of_a_targets_latency() {
        let latency = Latency { p50_us: 1, p90_us: 2, p99_us: 3, p99_9_us: 4, max_us: 5 };
        let point = RandomPoint {
            depth: 4,
            requests: 1000,
            seconds: 1.0,
            iops: 1000.0,
            mb_per_s: 4.1,
            latency,
        };
        let verdicts = |test: &str, direct| {
            let wish =
                format!("[[require]]\ntest = \"{test}\"\np99_us_at_most = 100\nat_least = 10.0");
            let random = vec![point.clone()];
            let id = test.parse().unwrap();
            let mut report = report(vec![TestResult { random, ..result(id, 0, 1000.0) }]);
            report.target.direct = direct;
            Requirements::parse(&wish).unwrap().judge(&report)
        };
        let marks =
            |test, direct| verdicts(test, direct).iter().map(Verdict::mark).collect::<Vec<_>>();
        assert_eq!(marks("random.write", true), ["met", "met"]);
        assert_eq!(marks("random.write", false), ["met", "COULD NOT TELL"]);
        assert_eq!(marks("random.read", false), ["met", "met"]);
        let untold = verdicts("random.write", false);
        assert!(!untold[1].met && untold[1].found.contains("O_DIRECT"), "{}", untold[1].found);
        let tally = Tally::of(&untold);
        assert!(!tally.passes());
        assert_eq!(tally.text(), "1 of 2 could not be told");
        assert_eq!(Tally::of(&verdicts("random.write", true)).text(), "all 2 are met");
    }

    #[test]
    fn what_is_missed_and_what_could_not_be_told_are_counted_apart() {
        let verdict = |met, could_not_tell| Verdict {
            target: 0,
            requirement: String::new(),
            found: String::new(),
            met,
            could_not_tell,
        };
        let tally = Tally::of(&[verdict(true, false), verdict(false, true), verdict(false, false)]);
        assert_eq!(tally, Tally { all: 3, missed: 1, untold: 1 });
        assert_eq!(tally.text(), "1 of 3 are not met, 1 could not be told");
        assert!(Tally::of(&[]).passes());
    }

    #[test]
    fn nonsense_is_refused() {
        for (text, says) in [
            ("[[require]]\ntest = \"host.1\"", "asks for nothing"),
            ("[[require]]\ntest = \"host.11\"\nat_least = 1.0", "host.11"),
            ("[[require]]\ntest = \"host.1\"\nat_least = -1.0", "positive"),
            ("[[require]]\ntest = \"host.1\"\np99_us_at_most = 1", "random"),
            ("[[require]]\ntest = \"net.1\"\ntape_waits_at_most = 0", "host.5"),
            ("[[require]]\ntest = \"trick.cache\"\nat_least = 1.0", "no_findings"),
            ("redundancy = 5", "redundancy"),
            ("raid = true", "raid"),
        ] {
            let error = Requirements::parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
