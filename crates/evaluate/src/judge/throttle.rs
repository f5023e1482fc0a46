//! Why bursts of writes with their flushes are faster than long writes: because of a cache, or of a throttle.
//!
//! A throttle holds a rate in the long run, and lets a burst pass for the credit that grew in a pause. Two controls
//! tell it from a cache that says too early that it is done:
//!
//! - One place is written again and again, with a flush each time, directly behind a long write. A throttle counts
//!   every byte. In a cache what is overwritten never reaches the device, and the burst goes on for ever.
//! - Reads of the same shape. A throttle of both holds these back too. A cache for reading may answer what is short and not
//!   what is long; it does not care for a pause. So the short reads are made twice, after a pause and without one.

use super::{Evidence, cache, finding, flush};
use crate::{
    catalogue::TestId,
    record::{Finding, FindingKind, FindingState, PairTable},
    statistics::{Answer, CLEAR, Comparison},
};

/// The table of bursts of writes beside long ones.
pub const WRITE: &str = "write";
/// The same with small bursts.
pub const WRITE_SMALL: &str = "small write";
/// The table of long writes, and of as many bytes written in one place.
pub const REWRITE: &str = "rewrite";
/// The table of short reads after a pause beside long ones: the shape of the writes.
pub const READ: &str = "read";
/// The table of short reads directly after long ones, and after a pause.
pub const READ_SHORT: &str = "short read";

/// Why bursts of writes are faster than long writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// Reads are held to a rate as writes are, and a pause lets them go too.
    Throttle,
    /// One place may be written for ever as fast as a burst, and no pause helps reads.
    Cache,
    /// Every byte that is written counts, wherever, and no pause helps reads.
    WritesAlone,
    /// It could not be told, for this reason.
    Unknown(&'static str),
}

/// The bytes of the bursts in these tables that are faster than long writes; where some are, controls are
/// asked for.
#[must_use]
pub fn faster_bursts(tables: &[PairTable]) -> Option<u64> {
    let faster = |table: &&PairTable| {
        super::compare(table).is_some_and(|comparison| comparison.answer() == Answer::Faster)
    };
    tables.iter().find(faster).map(|table| table.bytes)
}

/// The bursts that are faster than long writes: the larger ones where all are.
pub(super) fn faster<'a>(evidence: &Evidence<'a>) -> Option<(&'a PairTable, Comparison)> {
    let tables = [WRITE, WRITE_SMALL].map(|what| evidence.pairs(TestId::Flush, what));
    tables.into_iter().flatten().find_map(|table| {
        let comparison = super::compare(table)?;
        (comparison.answer() == Answer::Faster).then_some((table, comparison))
    })
}

/// Why bursts of writes are faster; none where they are not.
pub(super) fn cause(evidence: &Evidence<'_>) -> Option<Cause> {
    let compare = |what| super::compare(evidence.pairs(TestId::Flush, what)?);
    let (_, writes) = faster(evidence)?;
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
        (_, Answer::Alike) => in_place(&writes, compare(REWRITE)),
        (Answer::Alike | Answer::Unclear, Answer::Faster) | (_, Answer::Unclear) => {
            Cause::Unknown("the pairs of reads of the same shape disagree")
        }
    })
}

/// What writing one place again and again says, where nothing holds reads back.
fn in_place(writes: &Comparison, rewrites: Option<Comparison>) -> Cause {
    let Some(rewrites) = rewrites else {
        return Cause::Unknown("one place was not written again and again");
    };
    match rewrites.answer() {
        Answer::Faster if rewrites.ratio * CLEAR < writes.ratio => Cause::Unknown(
            "one place is written again faster than new ones, but far less than a burst: a cache may be beside a \
             throttle",
        ),
        Answer::Faster => Cause::Cache,
        Answer::Alike => Cause::WritesAlone,
        Answer::Unclear => Cause::Unknown("the pairs in which one place is written again disagree"),
    }
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
                rate(WRITE)
            );
            (FindingState::Note, text)
        }
        Cause::Cache => {
            let text = "a pause does not help reads, and one place is written for ever as fast as a burst: no throttle \
                        counts what is read or written";
            (FindingState::Clear, text.to_owned())
        }
        Cause::WritesAlone => {
            let text = format!(
                "could not tell whether writes alone are throttled: in the long run they are held to {:.0} MB/s \
                 wherever they go, and a pause saves up for a burst that is faster, but not for reads. A cache that \
                 takes what is overwritten for new looks the same",
                rate(WRITE)
            );
            (FindingState::CouldNotTell, text)
        }
        Cause::Unknown(why) => (
            FindingState::CouldNotTell,
            format!("could not tell whether a throttle is there: {why}"),
        ),
    };
    let threshold = format!(
        "short reads after a pause are faster than long ones, and faster than short ones without a pause, by the \
         rule of pairs, and by not less than the writes' ratio over {CLEAR}; clear when a pause does not help reads \
         and one place is written again faster than new ones by as much"
    );
    Some(finding(FindingKind::Throttled, state, text, lines, threshold))
}
