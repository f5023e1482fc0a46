//! Whether writes are acknowledged as stable before a device has them.

use super::{Evidence, finding, line_of, pair_threshold};
use crate::{
    catalogue::TestId,
    record::{Finding, FindingKind, FindingState},
    statistics::{Answer, Comparison},
};

/// A short burst with a flush at its end, after a pause, against a long write with one: a device cannot
/// have stable what it does not take at that rate.
pub(super) fn unstable_writes(evidence: &Evidence<'_>) -> Option<Finding> {
    let table = evidence.pairs(TestId::Flush, "write")?;
    let comparison = Comparison::of(&table.pairs)?;
    let mut lines = vec![line_of(table, &comparison)];
    lines.extend(evidence.result(TestId::Flush)?.notes.iter().cloned());
    let (state, text) = match comparison.answer() {
        Answer::Faster => {
            let text = format!(
                "writes are acknowledged as stable before the device has them: a burst and its flush end {:.1} \
                 times as fast as the device goes on writing. Either its cache is protected against loss of \
                 power, which its vendor must show, or flushes do nothing",
                comparison.ratio
            );
            (FindingState::Found, text)
        }
        Answer::Alike => {
            let text = "a burst with its flush is no faster than a long write: what is acknowledged as stable \
                        went where long writes go";
            (FindingState::Clear, text.to_owned())
        }
        Answer::Unclear => {
            let text = "could not tell whether flushes make writes stable: the pairs disagree";
            (FindingState::CouldNotTell, text.to_owned())
        }
    };
    Some(finding(FindingKind::UnstableWrites, state, text, lines, pair_threshold()))
}
