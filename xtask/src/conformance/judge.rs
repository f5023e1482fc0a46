//! Results of several configurations against the list of tests that may be skipped.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use anyhow::{Context as _, Result, bail};

use super::output::{Outcome, Results};

/// How many tests the list may hold.
const LIMIT: usize = 10;

/// What the list says of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It skips itself in all configurations.
    Skipped,
    /// No target passes it, for a fault of the suite's.
    Broken,
}

/// A test that need not pass.
#[derive(Debug)]
pub(super) struct Exception {
    pub(super) kind: Kind,
    pub(super) reason: String,
}

/// Exceptions by the test's name.
pub(super) type Exceptions = BTreeMap<String, Exception>;

/// Reads lines of `skipped NAME REASON` or `broken NAME REASON`; `#` begins a comment.
pub(super) fn exceptions(text: &str) -> Result<Exceptions> {
    let mut list = Exceptions::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut words = line.splitn(3, ' ');
        let kind = match words.next() {
            Some("skipped") => Kind::Skipped,
            Some("broken") => Kind::Broken,
            _ => bail!("'{line}': begins neither with 'skipped' nor with 'broken'"),
        };
        let name = words.next().with_context(|| format!("'{line}': names no test"))?;
        let reason = words.next().with_context(|| format!("'{line}': gives no reason"))?;
        list.insert(name.to_string(), Exception { kind, reason: reason.to_string() });
    }
    if list.len() > LIMIT {
        bail!("the list holds {} tests; at most {LIMIT} may be on it", list.len());
    }
    Ok(list)
}

/// One outcome a test of all configurations: it passed when it failed in none and passed in one.
pub(super) fn combine<'a>(all: impl IntoIterator<Item = &'a Results>) -> Results {
    let mut combined = Results::new();
    for (name, outcome) in all.into_iter().flatten() {
        let worse = match (combined.get(name), outcome) {
            (None, _) | (Some(Outcome::Skipped(_)), Outcome::Passed) => true,
            (Some(Outcome::Failed(_)), _) => false,
            (Some(_), new) => matches!(new, Outcome::Failed(_)),
        };
        if worse {
            combined.insert(name.clone(), outcome.clone());
        }
    }
    combined
}

/// All that is wrong: failures, tests that did not run, skips that nobody allowed, and
/// exceptions that are not true any more.
pub(super) fn faults(
    wanted: &BTreeSet<String>,
    results: &Results,
    list: &Exceptions,
) -> Vec<String> {
    let mut faults = Vec::new();
    for name in wanted {
        let kind = list.get(name).map(|exception| exception.kind);
        match (results.get(name), kind) {
            (Some(Outcome::Passed), None)
            | (Some(Outcome::Skipped(_)), Some(Kind::Skipped))
            | (Some(Outcome::Failed(_)), Some(Kind::Broken)) => {}
            (Some(Outcome::Passed), Some(_)) => {
                faults.push(format!("{name} passed: take it from the list"));
            }
            (Some(Outcome::Skipped(reason)), _) => {
                faults.push(format!("{name} was skipped: {reason}"));
            }
            (Some(Outcome::Failed(reason)), _) => faults.push(format!("{name} failed: {reason}")),
            (None, _) => faults.push(format!("{name} did not run")),
        }
    }
    let unknown = list.keys().filter(|name| !wanted.contains(*name));
    faults.extend(unknown.map(|name| format!("{name} is on the list and not in the suite")));
    faults
}

/// Counts of passed, skipped and failed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    passed: u32,
    skipped: u32,
    failed: u32,
}

impl Counts {
    fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::Skipped(_) => self.skipped += 1,
            Outcome::Failed(_) => self.failed += 1,
        }
    }

    pub(super) fn of<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Self {
        let mut counts = Self::default();
        outcomes.into_iter().for_each(|outcome| counts.add(outcome));
        counts
    }

    pub(super) fn show(self) -> String {
        let Self { passed, skipped, failed } = self;
        format!("{passed} passed, {skipped} skipped, {failed} failed")
    }

    fn cells(self) -> String {
        let Self { passed, skipped, failed } = self;
        format!("{passed} | {skipped} | {failed}")
    }
}

/// A table of the suites with the counts of two targets, and the names of all that did not pass.
pub(super) fn table(columns: &[(&str, &Results)]) -> String {
    let mut rows: BTreeMap<&str, Vec<Counts>> = BTreeMap::new();
    let mut totals: BTreeMap<&str, Vec<Counts>> = BTreeMap::new();
    for (column, (_, results)) in columns.iter().enumerate() {
        for (name, outcome) in *results {
            let suite = name.rsplit_once('.').map_or(name.as_str(), |(suite, _)| suite);
            let family = name.split_once('.').map_or(name.as_str(), |(family, _)| family);
            for (map, key) in [(&mut rows, suite), (&mut totals, family)] {
                let counts =
                    map.entry(key).or_insert_with(|| vec![Counts::default(); columns.len()]);
                counts[column].add(outcome);
            }
        }
    }
    let mut text = String::from("| suite |");
    let mut rule = String::from("|---|");
    for (target, _) in columns {
        let _ = write!(text, " {target}: passed | skipped | failed |");
        rule.push_str("--:|--:|--:|");
    }
    let _ = writeln!(text, "\n{rule}");
    for (suite, counts) in &rows {
        let cells: Vec<String> = counts.iter().map(|counts| counts.cells()).collect();
        let _ = writeln!(text, "| {suite} | {} |", cells.join(" | "));
    }
    for (family, counts) in &totals {
        let cells: Vec<String> = counts.iter().map(|counts| counts.cells()).collect();
        let _ = writeln!(text, "| **all of {family}** | {} |", cells.join(" | "));
    }
    for (target, results) in columns {
        let _ = writeln!(text, "\nNot passed by {target}:\n");
        for (name, outcome) in *results {
            let (word, reason) = match outcome {
                Outcome::Passed => continue,
                Outcome::Skipped(reason) => ("skipped", reason),
                Outcome::Failed(reason) => ("failed", reason),
            };
            let _ = writeln!(text, "- {name} {word}: `{}`", reason.replace('`', "'"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(outcomes: &[(&str, Outcome)]) -> Results {
        outcomes.iter().map(|(name, outcome)| (name.to_string(), outcome.clone())).collect()
    }

    fn skipped() -> Outcome {
        Outcome::Skipped("why".to_string())
    }

    fn failed() -> Outcome {
        Outcome::Failed("why".to_string())
    }

    fn faults_of(outcome: Option<Outcome>, list: &str) -> Vec<String> {
        let results =
            results(&outcome.map(|outcome| ("S.A", outcome)).into_iter().collect::<Vec<_>>());
        let wanted = BTreeSet::from(["S.A".to_string()]);
        faults(&wanted, &results, &exceptions(list).unwrap())
    }

    #[test]
    fn a_pass_elsewhere_outweighs_a_skip_and_a_failure_outweighs_all() {
        let both = [
            (Outcome::Passed, skipped(), Outcome::Passed),
            (skipped(), Outcome::Passed, Outcome::Passed),
            (skipped(), skipped(), skipped()),
            (Outcome::Passed, failed(), failed()),
            (failed(), Outcome::Passed, failed()),
            (skipped(), failed(), failed()),
            (failed(), skipped(), failed()),
        ];
        for (first, second, wanted) in both {
            let (first, second) = (results(&[("a", first)]), results(&[("a", second)]));
            assert_eq!(combine([&first, &second]), results(&[("a", wanted)]));
        }
    }

    #[test]
    fn all_but_passes_are_faults() {
        assert!(faults_of(Some(Outcome::Passed), "").is_empty());
        assert_eq!(faults_of(Some(skipped()), ""), ["S.A was skipped: why"]);
        assert_eq!(faults_of(Some(failed()), ""), ["S.A failed: why"]);
        assert_eq!(faults_of(None, ""), ["S.A did not run"]);
    }

    #[test]
    fn the_list_excuses_what_it_says_and_nothing_else() {
        assert!(faults_of(Some(skipped()), "skipped S.A why").is_empty());
        assert!(faults_of(Some(failed()), "broken S.A why").is_empty());
        assert_eq!(faults_of(Some(failed()), "skipped S.A why"), ["S.A failed: why"]);
        assert_eq!(faults_of(Some(skipped()), "broken S.A why"), ["S.A was skipped: why"]);
        assert_eq!(faults_of(None, "skipped S.A why"), ["S.A did not run"]);
    }

    #[test]
    fn the_list_must_be_true() {
        for kind in ["skipped", "broken"] {
            let found = faults_of(Some(Outcome::Passed), &format!("{kind} S.A why"));
            assert_eq!(found, ["S.A passed: take it from the list"]);
        }
        let found = faults_of(Some(Outcome::Passed), "skipped S.B why");
        assert_eq!(found, ["S.B is on the list and not in the suite"]);
    }

    #[test]
    fn the_list_holds_ten_tests_each_with_a_reason() {
        let list =
            |count| (0..count).map(|test| format!("skipped T{test} why\n")).collect::<String>();
        assert_eq!(exceptions(&list(10)).unwrap().len(), 10);
        assert!(exceptions(&list(11)).is_err());
        assert!(exceptions("skipped T").is_err());
        assert!(exceptions("excused T why").is_err());
        assert!(exceptions("# a comment\n\n").unwrap().is_empty());
    }
}
