//! What iscsi-test-cu prints, made into one result a test.
//!
//! The suite calls a test that skipped itself passed; its line `[SKIPPED]` says otherwise. It
//! prints some of these only with `--Verbose-scsi`. Lines outside a test come from the suite's
//! own preparation and count for nothing.

use std::collections::BTreeMap;

/// How one test ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    /// With what the test wanted and did not find.
    Skipped(String),
    /// With the first thing that was wrong.
    Failed(String),
}

/// Results by name, `FAMILY.SUITE.TEST`.
pub(super) type Results = BTreeMap<String, Outcome>;

/// Reads the output of one run of tests of `family`. A test that began and never ended has failed.
pub(super) fn parse(family: &str, output: &str) -> Results {
    let mut parser = Parser { family, ..Parser::default() };
    for line in output.lines() {
        parser.line(line);
    }
    parser.end(|_| Outcome::Failed("did not end".to_string()));
    parser.results
}

#[derive(Default)]
struct Parser<'a> {
    family: &'a str,
    suite: &'a str,
    running: Option<Test>,
    /// A failed test, whose first assertion follows on the next line.
    failed: Option<String>,
    results: Results,
}

struct Test {
    name: String,
    skipped: Option<String>,
}

impl<'a> Parser<'a> {
    fn line(&mut self, line: &'a str) {
        if let Some(name) = self.failed.take()
            && let Some((_, assertion)) = line.trim_start().split_once("1. ")
        {
            // Output of the suite's clean-up may follow on the same line.
            let assertion = assertion.replacen("  - ", ": ", 1);
            let assertion = assertion.split("    ").next().unwrap_or_default().to_string();
            self.results.insert(name, Outcome::Failed(assertion));
            return;
        }
        if let Some(suite) = line.strip_prefix("Suite: ") {
            self.end(|_| Outcome::Failed("did not end".to_string()));
            self.suite = suite.trim();
        } else if let Some((test, rest)) =
            line.strip_prefix("  Test: ").and_then(|line| line.split_once(" ..."))
        {
            self.end(|_| Outcome::Failed("did not end".to_string()));
            let name = format!("{}.{}.{test}", self.family, self.suite);
            self.running = Some(Test { name, skipped: None });
            self.inside(rest);
        } else {
            self.inside(line);
        }
    }

    /// A line, or the rest of one, while a test may run.
    fn inside(&mut self, text: &str) {
        let Some(test) = &mut self.running else { return };
        if text.starts_with("passed") {
            self.end(|test| test.skipped.map_or(Outcome::Passed, Outcome::Skipped));
        } else if text.starts_with("FAILED") {
            self.failed = Some(test.name.clone());
            self.end(|_| Outcome::Failed("no reason was given".to_string()));
        } else if let Some((_, reason)) = text.split_once("[SKIPPED]") {
            test.skipped.get_or_insert_with(|| reason.trim().to_string());
        }
    }

    fn end(&mut self, outcome: impl FnOnce(Test) -> Outcome) {
        if let Some(test) = self.running.take() {
            let name = test.name.clone();
            self.results.insert(name, outcome(test));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(lines: &str) -> Outcome {
        let mut results = parse("SCSI", &format!("Suite: S\n  Test: T ...{lines}"));
        assert_eq!(results.len(), 1);
        results.remove("SCSI.S.T").unwrap()
    }

    #[test]
    fn a_test_passes_on_its_own_line_and_behind_its_log() {
        assert_eq!(one("passed\n"), Outcome::Passed);
        assert_eq!(one("\n    Send READ10\n    [OK] READ10\npassed\n"), Outcome::Passed);
    }

    #[test]
    fn a_test_that_skipped_itself_has_not_passed() {
        let skipped = Outcome::Skipped("Not removable.".to_string());
        assert_eq!(one("    [SKIPPED] Not removable.\n    [SKIPPED] Again\npassed\n"), skipped);
    }

    #[test]
    fn what_stands_behind_the_verdict_is_not_the_test_s() {
        assert_eq!(one("passed    [SKIPPED] PERSISTENT RESERVE IN\n"), Outcome::Passed);
        assert_eq!(one("passed\n    [SKIPPED] PERSISTENT RESERVE IN\n"), Outcome::Passed);
    }

    #[test]
    fn a_failure_carries_its_first_assertion() {
        let output = "FAILED\n    1. test_x.c:70  - CU_ASSERT_EQUAL(r,0)    Send PRIN\n    2. test_x.c:71  - b\n";
        assert_eq!(one(output), Outcome::Failed("test_x.c:70: CU_ASSERT_EQUAL(r,0)".to_string()));
    }

    #[test]
    fn a_test_that_skipped_a_part_and_then_failed_has_failed() {
        assert!(matches!(one("    [SKIPPED] part\nFAILED\n"), Outcome::Failed(_)));
    }

    #[test]
    fn a_log_line_that_says_failed_is_no_verdict() {
        assert_eq!(one("    [FAILED] expected\n    FAILED\npassed\n"), Outcome::Passed);
    }

    #[test]
    fn a_test_whose_process_died_has_failed() {
        assert_eq!(one("    Send SANITIZE\n"), Outcome::Failed("did not end".to_string()));
    }

    #[test]
    fn tests_are_named_by_family_and_suite() {
        let output = "Suite: A\n  Test: One ...passed\n  Test: Two ...passed\nSuite: B\n  Test: One ...passed\n";
        let names: Vec<String> = parse("iSCSI", output).into_keys().collect();
        assert_eq!(names, ["iSCSI.A.One", "iSCSI.A.Two", "iSCSI.B.One"]);
    }
}
