//! Findings that need no statistics.

use super::{Evidence, finding};
use crate::{
    catalogue::TestId,
    record::{
        Finding, FindingKind, FindingState, Outcome, RedundancyState, RegionPoint, TargetInfo,
        TargetKind,
    },
};

/// How a failure begins whose cause is data.
pub const WRONG_BYTES: &str = "wrong bytes";

/// Data that came back other than it had been written.
pub(super) fn wrong_bytes(evidence: &Evidence<'_>) -> Option<Finding> {
    let failure = |result: &crate::record::TestResult| match &result.outcome {
        Outcome::Failed { reason } if reason.contains(WRONG_BYTES) => {
            Some(format!("{}: {reason}", result.test))
        }
        Outcome::Failed { .. } | Outcome::Done | Outcome::Skipped { .. } => None,
    };
    let lines: Vec<String> = evidence.results.iter().filter_map(failure).collect();
    let (state, text) = if lines.is_empty() {
        (FindingState::Clear, "every block that was read carried the mark that it was written with")
    } else {
        (FindingState::Found, "data came back other than it had been written")
    };
    let threshold = "one block of 4 KiB without its mark".to_owned();
    Some(finding(FindingKind::WrongBytes, state, text.to_owned(), lines, threshold))
}

pub(super) fn redundancy(target: &TargetInfo) -> Finding {
    let known = &target.redundancy;
    let level = known.level.as_deref().map(|level| format!("level {level}, "));
    let level = level.unwrap_or_default();
    let (state, text) = match known.state {
        RedundancyState::Full => {
            (FindingState::Clear, format!("{level}complete while it was measured"))
        }
        RedundancyState::Degraded => (
            FindingState::Found,
            format!("{level}degraded: the figures are of less than what was asked for"),
        ),
        RedundancyState::Off => {
            (FindingState::Found, format!("{level}no redundancy: the loss of one disk loses data"))
        }
        RedundancyState::Unknown => {
            let text = "could not tell: the target says nothing of its redundancy";
            (FindingState::CouldNotTell, text.to_owned())
        }
    };
    let evidence = match (known.source.as_str(), known.detail.as_str()) {
        (_, "") => Vec::new(),
        (source, detail) => vec![format!("{source}: {detail}")],
    };
    let threshold = "any state but complete, at the beginning or at the end".to_owned();
    finding(FindingKind::Redundancy, state, text, evidence, threshold)
}

/// From here on the difference between places is told.
const OUTER: f64 = 1.2;

/// Outer against inner places.
pub(super) fn outer_region(evidence: &Evidence<'_>) -> Option<Finding> {
    let points = &evidence.result(TestId::Regions)?.regions;
    let rate = |point: &RegionPoint| point.mb_per_s;
    let fastest = points.iter().max_by(|a, b| rate(a).total_cmp(&rate(b)))?;
    let slowest = points.iter().min_by(|a, b| rate(a).total_cmp(&rate(b)))?;
    let least =
        |point: &RegionPoint| point.samples_mb_per_s.iter().copied().fold(f64::MAX, f64::min);
    let most = |point: &RegionPoint| point.samples_mb_per_s.iter().copied().fold(0.0, f64::max);
    let ratio = rate(fastest) / rate(slowest).max(1e-9);
    let lines = points.iter().map(|point| {
        format!("at {:.0}% of the range {:.0} MB/s", point.position * 100.0, rate(point))
    });
    let lines: Vec<String> = lines.collect();
    let raw = match evidence.target.kind {
        TargetKind::Directory => "the file system chooses where files lie",
        TargetKind::File | TargetKind::Block | TargetKind::Iscsi | TargetKind::Nbd => {
            "files of this test lie over all of the range"
        }
    };
    let (state, text) = if ratio < OUTER {
        (FindingState::Clear, format!("all places are alike; {raw}"))
    } else if least(fastest) > most(slowest) {
        let text = format!(
            "the place at {:.0}% is {ratio:.1} times as fast as the one at {:.0}%; {raw}",
            fastest.position * 100.0,
            slowest.position * 100.0
        );
        (FindingState::Note, text)
    } else {
        let text = "could not tell whether places differ: rounds differ as much";
        (FindingState::CouldNotTell, text.to_owned())
    };
    let threshold = format!(
        "fastest over slowest at least {OUTER}, and every round of one above every round of the other"
    );
    Some(finding(FindingKind::OuterRegion, state, text, lines, threshold))
}

/// Tapes that had to wait for the target.
pub(super) fn tape_starved(evidence: &Evidence<'_>) -> Option<Finding> {
    let mut seen = false;
    let mut lines = Vec::new();
    for result in evidence.results {
        for (round, streams) in result.rounds.iter().enumerate() {
            for tape in streams.streams.iter().filter_map(|stream| stream.tape) {
                seen = true;
                if tape.starved > 0 {
                    lines.push(format!(
                        "{} round {}: waited {} times, {:.2} s in all, {:.2} s at once",
                        result.test,
                        round + 1,
                        tape.starved,
                        tape.starved_s,
                        tape.longest_s
                    ));
                }
            }
        }
    }
    if !seen {
        return None;
    }
    let buffer = evidence.settings.tape_buffer_bytes;
    let rate = evidence.settings.tape_bytes_per_s as f64 / 1e6;
    let (state, text) = if lines.is_empty() {
        (FindingState::Clear, format!("the tape kept its {rate:.1} MB/s and never waited"))
    } else {
        let text = format!(
            "the tape starved: the target did not keep {rate:.1} MB/s with {buffer} bytes in between"
        );
        (FindingState::Found, text)
    };
    let threshold = "one wait".to_owned();
    Some(finding(FindingKind::TapeStarved, state, text, lines, threshold))
}
