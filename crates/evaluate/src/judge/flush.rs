//! Whether writes are acknowledged as stable before a device has them.

use super::{
    Evidence,
    cache::rate_of,
    finding, line_of, pair_threshold,
    throttle::{self, Cause, READ, READ_SHORT},
};
use crate::{
    catalogue::TestId,
    record::{Finding, FindingKind, FindingState},
    statistics::{Answer, CLEAR, Comparison, median},
};

/// The note of a target that knows no flush.
pub const NO_FLUSH: &str = "the target takes no flush: nothing says when a write is stable";

/// A short burst with a flush at its end, after a pause, against a long write with one: a device cannot
/// have stable what it does not take at that rate.
pub(super) fn unstable_writes(evidence: &Evidence<'_>) -> Option<Finding> {
    let table = evidence.pairs(TestId::Flush, "write")?;
    let comparison = Comparison::of(&table.pairs, table.bytes)?;
    let mut lines = vec![line_of(table, &comparison)];
    lines.extend(evidence.result(TestId::Flush)?.notes.iter().cloned());
    let (state, text) = match comparison.answer() {
        Answer::Faster => {
            lines.extend(control_lines(evidence));
            faster(&comparison, throttle::cause(evidence)?)
        }
        Answer::Alike
            if evidence.result(TestId::Flush)?.notes.iter().any(|note| note == NO_FLUSH) =>
        {
            let text = "could not tell: a burst is no faster than a long write, but the target takes no flush";
            (FindingState::CouldNotTell, text.to_owned())
        }
        Answer::Alike if above_sustained(evidence).is_some() => {
            let (long, sustained) = above_sustained(evidence)?;
            let text = format!(
                "could not tell: bursts and long writes are alike, but both, at {long:.0} MB/s, are faster than the \
                 target goes on writing ({sustained:.0} MB/s): a cache may hold them"
            );
            (FindingState::CouldNotTell, text)
        }
        Answer::Alike => {
            let text = "a burst with its flush is no faster than a long write: what is acknowledged as stable \
                        went where long writes go";
            (FindingState::Clear, text.to_owned())
        }
        Answer::Unclear => {
            let text = "could not tell whether flushes make writes stable: the pairs disagree, or are too short";
            (FindingState::CouldNotTell, text.to_owned())
        }
    };
    Some(finding(FindingKind::UnstableWrites, state, text, lines, pair_threshold()))
}

/// What bursts say that are faster than long writes, by their cause.
fn faster(comparison: &Comparison, cause: Cause) -> (FindingState, String) {
    let ratio = comparison.ratio;
    match cause {
        Cause::WritesAlone => {
            let text = format!(
                "writes are acknowledged as stable before the device has them: a burst and its flush end {ratio:.1} \
                 times as fast as the device goes on writing, and reads of the same shape do not. Either its cache \
                 is protected against loss of power, which its vendor must show, or writes alone are throttled, or \
                 flushes do nothing"
            );
            (FindingState::Found, text)
        }
        Cause::Throttle => {
            let text = format!(
                "could not tell whether flushes make writes stable: a burst and its flush end {ratio:.1} times as \
                 fast as long writes go on, but so do reads. A throttle does that, and what is behind it does not \
                 show; lift it for the test"
            );
            (FindingState::CouldNotTell, text)
        }
        Cause::Unknown(why) => {
            let text = format!(
                "could not tell whether flushes make writes stable: a burst and its flush end {ratio:.1} times as \
                 fast as long writes go on, which a throttle would do too; {why}"
            );
            (FindingState::CouldNotTell, text)
        }
    }
}

/// The reads beside the writes.
pub(super) fn control_lines(evidence: &Evidence<'_>) -> Vec<String> {
    let tables = [READ, READ_SHORT].map(|what| evidence.pairs(TestId::Flush, what));
    let lines = tables.into_iter().flatten();
    lines
        .filter_map(|table| Some(line_of(table, &Comparison::of(&table.pairs, table.bytes)?)))
        .collect()
}

/// The rate of long writes, where whole files are written so much slower that a cache may hold the former.
fn above_sustained(evidence: &Evidence<'_>) -> Option<(f64, f64)> {
    let table = evidence.pairs(TestId::Flush, "write")?;
    let long = median(&table.pairs.iter().map(|pair| pair.0).collect::<Vec<_>>())?;
    let rates = [TestId::Host1, TestId::Net1].map(|test| rate_of(evidence, test));
    let sustained = rates.into_iter().flatten().min_by(f64::total_cmp)?;
    (long >= sustained * CLEAR).then_some((long, sustained))
}
