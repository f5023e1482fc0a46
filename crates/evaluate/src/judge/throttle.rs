//! Whether bursts of writes are fast because of a throttle: a rate that is held in the long run, and a
//! credit that grows in a pause and lets what is short pass.
//!
//! A volatile cache makes bursts of writes fast too, and is no throttle. So reads of the same shape are the
//! control. A cache for reading may answer what is short and not what is long; it does not care for a pause.
//! So the short reads are made twice, after a pause and without one: only a throttle tells these apart.

use super::{Evidence, cache, finding, flush};
use crate::{
    catalogue::TestId,
    record::{Finding, FindingKind, FindingState, PairTable},
    statistics::{Answer, CLEAR, Comparison},
};

/// The table of short reads after a pause beside long ones: the shape of the writes.
pub const READ: &str = "read";
/// The table of short reads directly after long ones, and after a pause.
pub const READ_SHORT: &str = "short read";

/// Why bursts of writes are faster than long writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// Reads are held to a rate as writes are, and a pause lets them go too.
    Throttle,
    /// No pause helps reads.
    WritesAlone,
    /// It could not be told, for this reason.
    Unknown(&'static str),
}

/// Whether these pairs of long writes and bursts ask for reads as a control.
#[must_use]
pub fn asks_for_reads(writes: &PairTable) -> bool {
    Comparison::of(&writes.pairs, writes.bytes)
        .is_some_and(|comparison| comparison.answer() == Answer::Faster)
}

/// Why bursts of writes are faster; none where they are not.
pub(super) fn cause(evidence: &Evidence<'_>) -> Option<Cause> {
    let compare = |what| super::compare(evidence.pairs(TestId::Flush, what)?);
    let writes = compare("write").filter(|writes| writes.answer() == Answer::Faster)?;
    let (Some(shape), Some(pause)) = (compare(READ), compare(READ_SHORT)) else {
        return Some(Cause::Unknown("no reads of the same shape were measured"));
    };
    Some(match (shape.answer(), pause.answer()) {
        (Answer::Faster, Answer::Faster) if shape.ratio.min(pause.ratio) * CLEAR < writes.ratio => {
            Cause::Unknown(
                "a pause helps reads too, but far less than writes: a cache may be beside a throttle",
            )
        }
        (Answer::Faster, Answer::Faster) => Cause::Throttle,
        (_, Answer::Alike) if from_cache(evidence) => Cause::Unknown(
            "reads of the same shape came from a cache, which may be in front of a throttle",
        ),
        (_, Answer::Alike) => Cause::WritesAlone,
        (Answer::Alike | Answer::Unclear, Answer::Faster) | (_, Answer::Unclear) => {
            Cause::Unknown("the pairs of reads of the same shape disagree")
        }
    })
}

/// Whether the control's long reads came from a cache that the target is known to have.
fn from_cache(evidence: &Evidence<'_>) -> bool {
    let long = evidence.pairs(TestId::Flush, READ).and_then(cache::of_base);
    long.zip(cache::middle(evidence)).is_some_and(|(long, middle)| long > middle)
}

/// What reads beside the bursts of writes say of a throttle; nothing where they were not asked for.
pub(super) fn throttled(evidence: &Evidence<'_>) -> Option<Finding> {
    let cause = cause(evidence)?;
    let lines = flush::control_lines(evidence);
    let rate =
        |what| evidence.pairs(TestId::Flush, what).and_then(cache::of_base).unwrap_or_default();
    let (state, text) = match cause {
        Cause::Throttle => {
            let text = format!(
                "the target is throttled: what is long is read at {:.0} MB/s and written at {:.0} MB/s, and a pause \
                 saves up for a burst that is faster. What is shorter than a long run says nothing of it",
                rate(READ),
                rate("write")
            );
            (FindingState::Note, text)
        }
        Cause::WritesAlone => {
            let text = "a pause does not help reads: no throttle holds reads and writes to a rate";
            (FindingState::Clear, text.to_owned())
        }
        Cause::Unknown(why) => (
            FindingState::CouldNotTell,
            format!("could not tell whether a throttle is there: {why}"),
        ),
    };
    let threshold = format!(
        "short reads after a pause are faster than long ones, and faster than short ones without a pause, by the \
         rule of pairs, and by not less than the writes' ratio over {CLEAR}"
    );
    Some(finding(FindingKind::Throttled, state, text, lines, threshold))
}
