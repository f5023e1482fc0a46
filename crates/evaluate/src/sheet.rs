//! The score sheet of a target, made to be laid beside another one's.

use crate::{
    record::{FindingKind, FindingState, Outcome, SheetLine, TargetReport, TestResult},
    statistics::median,
};

/// Fills the sheets of all targets from their results and findings.
pub fn fill(reports: &mut [TargetReport]) {
    let sheets: Vec<Vec<SheetLine>> = reports.iter().map(|report| sheet(report, reports)).collect();
    for (report, sheet) in reports.iter_mut().zip(sheets) {
        report.sheet = sheet;
    }
}

fn sheet(report: &TargetReport, all: &[TargetReport]) -> Vec<SheetLine> {
    report.results.iter().map(|result| line(report, result, all)).collect()
}

fn line(report: &TargetReport, result: &TestResult, all: &[TargetReport]) -> SheetLine {
    let figures = all.iter().flat_map(|report| &report.results).filter_map(|other| {
        other.figure.filter(|_| other.test == result.test).map(|figure| figure.value)
    });
    let figures: Vec<f64> = figures.collect();
    let best = figures.iter().copied().fold(0.0, f64::max);
    // A trick test's figure is no score.
    let compared = figures.len() > 1 && best > 0.0 && result.test.group() != "trick";
    let of_best = result.figure.filter(|_| compared).map(|figure| figure.value / best);
    SheetLine {
        test: result.test,
        title: result.test.test().title.to_owned(),
        figure: result.figure,
        of_best,
        limit: result.limit.as_ref().map(|limit| limit.part.clone()),
        remarks: remarks(report, result),
    }
}

fn remarks(report: &TargetReport, result: &TestResult) -> Vec<String> {
    let mut remarks = Vec::new();
    match &result.outcome {
        Outcome::Done => {}
        Outcome::Skipped { reason } => remarks.push(format!("not run: {reason}")),
        Outcome::Failed { reason } => remarks.push(format!("failed: {reason}")),
    }
    let tapes = result.rounds.iter().flat_map(|round| &round.streams);
    let tapes: Vec<_> = tapes.filter_map(|stream| stream.tape).collect();
    if !tapes.is_empty() {
        let starved: u64 = tapes.iter().map(|tape| tape.starved).sum();
        remarks.push(match starved {
            0 => "tape never waited".to_owned(),
            1 => "tape waited once".to_owned(),
            times => format!("tape waited {times} times"),
        });
    }
    if result.test.group() != "trick" && result.rounds.len() > 1 {
        let rates: Vec<f64> = result.rounds.iter().map(|round| round.mb_per_s).collect();
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let most = rates.iter().copied().fold(0.0, f64::max);
        if median(&rates).is_some() {
            remarks.push(format!("rounds from {least:.1} to {most:.1}"));
        }
    }
    let from_cache = report.findings.iter().any(|finding| {
        finding.kind == FindingKind::CacheOnly
            && finding.state == FindingState::Found
            && finding.text.contains(&format!("{} ", result.test))
    });
    if from_cache {
        remarks.push("from a cache".to_owned());
    }
    remarks.extend(result.notes.iter().cloned());
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        catalogue::TestId,
        record::tests::{result, target},
    };

    #[test]
    fn figures_are_compared_with_the_best_targets() {
        let report = |index, value| TargetReport {
            target: target(index),
            results: vec![result(TestId::Host1, index, value), result(TestId::Cache, index, value)],
            findings: Vec::new(),
            sheet: Vec::new(),
        };
        let mut reports = [report(0, 100.0), report(1, 50.0)];
        fill(&mut reports);
        assert_eq!(reports[0].sheet[0].of_best, Some(1.0));
        assert_eq!(reports[1].sheet[0].of_best, Some(0.5));
        assert_eq!(reports[1].sheet[1].of_best, None, "a trick test is no score");
        let mut one = [report(0, 100.0)];
        fill(&mut one);
        assert_eq!(one[0].sheet[0].of_best, None);
    }

    #[test]
    fn what_did_not_run_says_why() {
        let reason = "no control socket".to_owned();
        let skipped = TestResult::without(TestId::DegradedRead, 0, Outcome::Skipped { reason });
        let report = TargetReport {
            target: target(0),
            results: vec![skipped],
            findings: Vec::new(),
            sheet: Vec::new(),
        };
        let mut reports = [report];
        fill(&mut reports);
        assert_eq!(reports[0].sheet[0].remarks, ["not run: no control socket"]);
    }
}
