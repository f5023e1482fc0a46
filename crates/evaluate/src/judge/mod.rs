//! What measurements say about a target: tricks found, not found, or not to be told.
//!
//! Rates of two kinds of work are compared in pairs that ran one after the other
//! ([`crate::statistics`]): a difference needs a ratio and nearly all pairs, and in between nothing is
//! claimed. Each finding has its evidence and its threshold in words.

mod cache;
mod flush;
mod plain;
mod throttle;

pub use flush::{NO_FLUSH, is_above};
pub use plain::WRONG_BYTES;
pub use throttle::{READ, READ_SHORT, REWRITE, WRITE, WRITE_SMALL, faster_bursts};

use crate::{
    catalogue::TestId,
    record::{
        Baseline, BaselineKind, Finding, FindingKind, FindingState, PairTable, Settings,
        TargetInfo, TestResult,
    },
    statistics::{Answer, CLEAR, CONSISTENT, Comparison},
};

/// What is judged.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// The target.
    pub target: &'a TargetInfo,
    /// Its results.
    pub results: &'a [TestResult],
    /// Sizes of the run.
    pub settings: &'a Settings,
    /// What the machine gives alone.
    pub baselines: &'a [Baseline],
    /// Bytes of memory of the machine that measured.
    pub memory_bytes: u64,
}

/// All that was looked for, in a fixed order. What was not tested is left out.
#[must_use]
pub fn findings(evidence: &Evidence<'_>) -> Vec<Finding> {
    let all = [
        plain::wrong_bytes(evidence),
        Some(plain::redundancy(evidence.target)),
        compression(evidence),
        cache::cache_only(evidence),
        flush::unstable_writes(evidence),
        throttle::throttled(evidence),
        cache::no_device(evidence),
        plain::outer_region(evidence),
        plain::tape_starved(evidence),
    ];
    all.into_iter().flatten().collect()
}

impl<'a> Evidence<'a> {
    fn result(&self, test: TestId) -> Option<&'a TestResult> {
        self.results.iter().find(|result| result.test == test)
    }

    fn pairs(&self, test: TestId, what: &str) -> Option<&'a PairTable> {
        self.result(test)?.pairs.iter().find(|table| table.what == what)
    }

    fn baseline(&self, kind: BaselineKind) -> Option<f64> {
        let of_kind = |baseline: &&Baseline| baseline.kind == kind;
        self.baselines.iter().find(of_kind).map(|baseline| baseline.mb_per_s)
    }
}

/// Zeros against data that does not compress, writing and reading.
fn compression(evidence: &Evidence<'_>) -> Option<Finding> {
    let result = evidence.result(TestId::Compression)?;
    let mut answers = Vec::new();
    let mut lines = Vec::new();
    let mut faster = Vec::new();
    for table in &result.pairs {
        let Some(comparison) = Comparison::of(&table.pairs, table.bytes) else { continue };
        let answer = comparison.answer();
        lines.push(line_of(table, &comparison));
        if answer == Answer::Faster {
            faster.push(format!("{} {:.1} times as fast", verb(&table.what), comparison.ratio));
        }
        answers.push(answer);
    }
    let (state, text) = if !faster.is_empty() {
        let text = format!(
            "zeros are {}: the target compresses or leaves out data, and figures of data that compresses say \
             nothing about data that does not",
            faster.join(" and ")
        );
        (FindingState::Found, text)
    } else if answers.is_empty() || answers.contains(&Answer::Unclear) {
        let text = "could not tell whether data that compresses is faster: the pairs disagree, or are too short";
        (FindingState::CouldNotTell, text.to_owned())
    } else if may_be_hidden(evidence) {
        let text = "could not tell: zeros are no faster, but a cache or a throttle may have set both rates";
        (FindingState::CouldNotTell, text.to_owned())
    } else {
        (FindingState::Clear, "zeros are no faster than data that does not compress".to_owned())
    };
    Some(finding(FindingKind::Compression, state, text, lines, pair_threshold()))
}

/// Whether a cache may answer, or a throttle set the rate, so that what is behind it does not show.
fn may_be_hidden(evidence: &Evidence<'_>) -> bool {
    let tables = [(TestId::Cache, "read"), (TestId::Flush, "write")];
    let comparisons =
        tables.into_iter().filter_map(|(test, what)| compare(evidence.pairs(test, what)?));
    let mut answers = comparisons.map(|comparison| comparison.answer());
    answers.any(|answer| match answer {
        Answer::Faster | Answer::Unclear => true,
        Answer::Alike => false,
    })
}

fn compare(table: &PairTable) -> Option<Comparison> {
    Comparison::of(&table.pairs, table.bytes)
}

fn verb(what: &str) -> String {
    match what {
        "write" => "written".to_owned(),
        "read" => "read".to_owned(),
        other => other.to_owned(),
    }
}

fn finding(
    kind: FindingKind,
    state: FindingState,
    text: String,
    evidence: Vec<String>,
    threshold: String,
) -> Finding {
    Finding { kind, state, text, evidence, threshold }
}

/// Pairs in one line.
fn line_of(table: &PairTable, comparison: &Comparison) -> String {
    let side = |pick: fn(&(f64, f64)) -> f64| {
        let values: Vec<f64> = table.pairs.iter().map(pick).collect();
        crate::statistics::median(&values).unwrap_or_default()
    };
    let Comparison { ratio, least, most, pairs, .. } = comparison;
    format!(
        "{}: {} {:.0} MB/s, {} {:.0} MB/s (medians of {pairs} pairs of {} bytes); ratio of a pair {ratio:.2}, \
         from {least:.2} to {most:.2}",
        table.what,
        table.base,
        side(|pair| pair.0),
        table.other,
        side(|pair| pair.1),
        table.bytes
    )
}

fn pair_threshold() -> String {
    format!(
        "median ratio of the pairs at least {CLEAR}, at least {CONSISTENT} in all pairs but one, and all rates but one \
         of the faster kind above all but one of the other, pieces of {:.0} ms at least; clear below {CONSISTENT}; no answer in between",
        crate::statistics::PIECE_S_MIN * 1e3
    )
}

#[cfg(test)]
mod tests;
