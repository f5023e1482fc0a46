//! Whether writes are acknowledged as stable before a device has them.

use super::{
    Evidence, finding, line_of, pair_threshold,
    throttle::{self, Cause, READ, READ_SHORT, REWRITE, WRITE, WRITE_SMALL},
};
use crate::{
    catalogue::TestId,
    record::{Finding, FindingKind, FindingState},
    statistics::{Answer, CLEAR, Comparison},
};

/// The note of a target that knows no flush.
pub const NO_FLUSH: &str = "the target takes no flush: nothing says when a write is stable";

/// A short burst with a flush at its end, after a pause, against a long write with one: a device cannot
/// have stable what it does not take at that rate.
pub(super) fn unstable_writes(evidence: &Evidence<'_>) -> Option<Finding> {
    let result = evidence.result(TestId::Flush)?;
    let bursts = super::compare(evidence.pairs(TestId::Flush, WRITE)?)?;
    let mut lines = lines_of(evidence, &[WRITE, WRITE_SMALL]);
    lines.extend(result.notes.iter().cloned());
    let (state, text) = if let Some((_, comparison)) = throttle::faster(evidence) {
        lines.extend(control_lines(evidence));
        faster(&comparison, throttle::cause(evidence)?)
    } else {
        not_faster(evidence, bursts.answer())?
    };
    Some(finding(FindingKind::UnstableWrites, state, text, lines, threshold()))
}

/// What bursts say that are faster than long writes, by their cause.
fn faster(comparison: &Comparison, cause: Cause) -> (FindingState, String) {
    let ratio = comparison.ratio;
    match cause {
        Cause::Cache => {
            let text = format!(
                "writes are acknowledged as stable before the device has them: a burst and its flush end {ratio:.1} \
                 times as fast as the device goes on writing, reads of the same shape do not, and one place is \
                 written for ever as fast as a burst. Either its cache is protected against loss of power, which its \
                 vendor must show, or flushes do nothing"
            );
            (FindingState::Found, text)
        }
        Cause::WritesAlone => {
            let text = format!(
                "could not tell whether flushes make writes stable: a burst and its flush end {ratio:.1} times as \
                 fast as long writes go on, but in one place no more than elsewhere, where a cache would take it for \
                 ever. A throttle of writes does that, and what is behind it does not show; lift it for the test"
            );
            (FindingState::CouldNotTell, text)
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

/// What bursts say of which none are faster.
fn not_faster(evidence: &Evidence<'_>, bursts: Answer) -> Option<(FindingState, String)> {
    let could_not = |why: &str| {
        let text = format!("could not tell whether flushes make writes stable: {why}");
        Some((FindingState::CouldNotTell, text))
    };
    let small = evidence.pairs(TestId::Flush, WRITE_SMALL);
    let small = small.and_then(|table| Some((table.bytes, super::compare(table)?)));
    let unclear = small.filter(|(_, small)| small.answer() == Answer::Unclear);
    if bursts != Answer::Alike {
        return could_not("the pairs disagree, or are too short");
    }
    if evidence.result(TestId::Flush)?.notes.iter().any(|note| note == NO_FLUSH) {
        return could_not("a burst is no faster than a long write, but the target takes no flush");
    }
    if let Some((long, whole)) = above_whole(evidence) {
        return could_not(&format!(
            "bursts and long writes are alike, but both, at {long:.0} MB/s, are faster than a whole file is written \
             ({whole:.0} MB/s): a cache may hold them"
        ));
    }
    if let Some((bytes, small)) = unclear.filter(|(_, small)| small.ratio >= CLEAR) {
        return could_not(&format!(
            "bursts of {bytes} bytes are {:.1} times as fast as long writes, but the pairs disagree, or are too \
             short; give a larger --file-size",
            small.ratio
        ));
    }
    let mut text = "a burst with its flush is no faster than a long write: what is acknowledged as stable went where \
                    long writes go"
        .to_owned();
    if let Some((bytes, _)) = unclear {
        text += &format!(". Of bursts of {bytes} bytes the pairs disagree");
    }
    Some((FindingState::Clear, text))
}

/// The writes in one place and the reads beside the bursts.
pub(super) fn control_lines(evidence: &Evidence<'_>) -> Vec<String> {
    lines_of(evidence, &[REWRITE, READ, READ_SHORT])
}

fn lines_of(evidence: &Evidence<'_>, tables: &[&str]) -> Vec<String> {
    let tables = tables.iter().filter_map(|what| evidence.pairs(TestId::Flush, what));
    tables.filter_map(|table| Some(line_of(table, &super::compare(table)?))).collect()
}

/// Whether writes of one rate are so much faster than those of another that a cache may hold them.
#[must_use]
pub fn is_above(long_mb_per_s: f64, whole_mb_per_s: f64) -> bool {
    long_mb_per_s >= whole_mb_per_s * CLEAR
}

/// The rates of long writes and of a whole file, where the former are so much faster that a cache may hold
/// them. What was written over a file in the same test is compared, as making a file costs more.
fn above_whole(evidence: &Evidence<'_>) -> Option<(f64, f64)> {
    let long = evidence.pairs(TestId::Flush, WRITE).and_then(super::cache::of_base)?;
    let rounds = &evidence.result(TestId::Flush)?.rounds;
    let whole = rounds.iter().map(|round| round.mb_per_s).max_by(f64::total_cmp)?;
    is_above(long, whole).then_some((long, whole))
}

fn threshold() -> String {
    format!(
        "bursts, or small ones, are faster than long writes, and so are as many bytes in one place, by not less than the \
         bursts' ratio over {CLEAR}, and a pause does not help reads; each by: {}",
        pair_threshold()
    )
}
