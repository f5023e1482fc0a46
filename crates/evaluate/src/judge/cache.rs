//! Whether results come from a cache, and whether a device was seen at all.

use super::{Evidence, finding, line_of, pair_threshold};
use crate::{
    catalogue::TestId,
    plan::FILLERS,
    record::{BaselineKind, Finding, FindingKind, FindingState, PairTable, TargetKind},
    statistics::{Answer, Comparison, median},
};

/// Tests whose figures are rates of reading files that were written shortly before.
const READING: [TestId; 4] = [TestId::Host2, TestId::Host4, TestId::Net4, TestId::Net2];

/// Reading again against the first time, and which of the two the matrix shows.
pub(super) fn cache_only(evidence: &Evidence<'_>) -> Option<Finding> {
    let table = evidence.pairs(TestId::Cache, "read")?;
    let comparison = Comparison::of(&table.pairs, table.bytes)?;
    let mut lines = vec![line_of(table, &comparison)];
    let far = evidence.settings.file_bytes.saturating_mul(FILLERS.len() as u64);
    let kind = FindingKind::CacheOnly;
    let threshold = format!(
        "reading again is faster ({}), and a reading test is nearer to that rate than to the first time's",
        pair_threshold()
    );
    let state_and_text = match comparison.answer() {
        Answer::Faster if is_memory(evidence) => {
            let text =
                "the first reads are as fast as memory: there is no device for a cache to hide";
            (FindingState::Clear, text.to_owned())
        }
        Answer::Faster => {
            let (cold, middle) = (of_base(table)?, middle(evidence)?);
            let from_cache: Vec<String> = READING
                .iter()
                .filter_map(|test| Some((*test, rate_of(evidence, *test)?)))
                .filter(|(_, rate)| *rate > middle)
                .map(|(test, rate)| format!("{test} {rate:.0} MB/s"))
                .collect();
            lines.extend(from_cache.iter().map(|line| format!("{line}, above {middle:.0} MB/s")));
            if from_cache.is_empty() {
                let text = format!(
                    "a cache answers what is read again {:.1} times as fast; the results of the matrix are \
                     from behind it",
                    comparison.ratio
                );
                (FindingState::Note, text)
            } else {
                let text = format!(
                    "results come from a cache ({}): data that was not touched for {far} bytes is read at \
                     {cold:.0} MB/s; give files larger than the cache",
                    from_cache.join(", ")
                );
                (FindingState::Found, text)
            }
        }
        Answer::Alike => alike(evidence, far),
        Answer::Unclear => (
            FindingState::CouldNotTell,
            "could not tell whether results come from a cache: the pairs disagree, or are too short".to_owned(),
        ),
    };
    let (state, text) = state_and_text;
    Some(finding(kind, state, text, lines, threshold))
}

fn alike(evidence: &Evidence<'_>, far: u64) -> (FindingState, String) {
    let files = evidence.settings.file_bytes.saturating_mul(FILLERS.len() as u64 + 1);
    let target = evidence.target;
    if target.in_memory {
        let text = "the store is this machine's memory: there is nothing behind a cache";
        return (FindingState::Clear, text.to_owned());
    }
    let local = match target.kind {
        TargetKind::Directory | TargetKind::File | TargetKind::Block => true,
        TargetKind::Iscsi | TargetKind::Nbd => false,
    };
    let page_cache = (local && !target.direct).then_some(evidence.memory_bytes);
    let memory = evidence.settings.target_memory_bytes.or(page_cache);
    match memory {
        Some(memory) if files < memory => {
            let text = format!(
                "could not tell: reading again is no faster, but all files together ({files} bytes) fit into \
                 the {memory} bytes of memory, so that all of it may come from a cache; give a larger --file-size"
            );
            (FindingState::CouldNotTell, text)
        }
        _ => {
            let text = format!(
                "what was not touched for {far} bytes is read as fast as what was read just before; a cache larger \
                 than that would not be seen"
            );
            (FindingState::Clear, text)
        }
    }
}

/// The rate between that of first reads and that of reads again, on a scale of ratios, where the latter are
/// faster: what is above it came from a cache.
pub(super) fn middle(evidence: &Evidence<'_>) -> Option<f64> {
    let table = evidence.pairs(TestId::Cache, "read")?;
    if Comparison::of(&table.pairs, table.bytes)?.answer() != Answer::Faster {
        return None;
    }
    let hot = median(&table.pairs.iter().map(|pair| pair.1).collect::<Vec<_>>())?;
    Some((of_base(table)? * hot).sqrt())
}

/// A stream's rate; where several ran, of all together.
pub(super) fn rate_of(evidence: &Evidence<'_>, test: TestId) -> Option<f64> {
    let rounds = &evidence.result(test)?.rounds;
    let sum = |round: &crate::record::Round| {
        let bytes: u64 = round.streams.iter().map(|stream| stream.bytes).sum();
        let longest = round.streams.iter().map(|stream| stream.seconds).fold(0.0, f64::max);
        if longest > 0.0 { bytes as f64 / 1e6 / longest } else { 0.0 }
    };
    median(&rounds.iter().map(sum).collect::<Vec<_>>())
}

/// A target counts as memory when it reads at this share of what is between it and us.
const READ_SHARE: f64 = 0.4;
/// And writes, with a flush, at this one.
const WRITE_SHARE: f64 = 0.25;

/// Whether even first reads are as fast as memory, or what leads to it.
fn is_memory(evidence: &Evidence<'_>) -> bool {
    let (kind, _) = between(evidence.target.kind);
    let cold = evidence.pairs(TestId::Cache, "read").and_then(of_base);
    let base = evidence.baseline(kind).filter(|base| *base > 0.0);
    let fast = cold.zip(base).is_some_and(|(cold, base)| cold / base >= READ_SHARE);
    evidence.target.in_memory || fast
}

/// What lies between us and a target of this kind.
const fn between(kind: TargetKind) -> (BaselineKind, &'static str) {
    match kind {
        TargetKind::Directory | TargetKind::File | TargetKind::Block => {
            (BaselineKind::Memory, "memory")
        }
        TargetKind::Iscsi | TargetKind::Nbd => (BaselineKind::Loopback, "TCP over loopback"),
    }
}

/// Median rate of the first kind of a table's pairs.
pub(super) fn of_base(table: &PairTable) -> Option<f64> {
    median(&table.pairs.iter().map(|pair| pair.0).collect::<Vec<_>>())
}

/// Whether the store is memory, or so fast that no device was seen.
pub(super) fn no_device(evidence: &Evidence<'_>) -> Option<Finding> {
    let target = evidence.target;
    let (kind, what) = between(target.kind);
    let threshold = format!(
        "the file system says so, or first reads reach {READ_SHARE} and long flushed writes {WRITE_SHARE} of what \
         {what} gives, and no trick explains it"
    );
    if target.in_memory {
        let name = target.file_system.as_deref().unwrap_or("memory");
        let text = format!("the store is this machine's memory ({name}): no device was measured");
        return Some(finding(FindingKind::NoDevice, FindingState::Note, text, vec![], threshold));
    }
    let cold = evidence.pairs(TestId::Cache, "read").and_then(of_base)?;
    let long = evidence.pairs(TestId::Flush, "write").and_then(of_base)?;
    let base = evidence.baseline(kind).filter(|base| *base > 0.0)?;
    let (read, write) = (cold / base, long / base);
    let line = format!(
        "first reads {cold:.0} MB/s, long flushed writes {long:.0} MB/s, {what} {base:.0} MB/s: {read:.2} and \
         {write:.2}"
    );
    let (state, text) = if read >= READ_SHARE && write >= WRITE_SHARE {
        let text = "as fast as memory: no device was seen behind the target";
        (FindingState::Note, text)
    } else {
        (FindingState::Clear, "slower than memory: a device, or what leads to it, was measured")
    };
    Some(finding(FindingKind::NoDevice, state, text.to_owned(), vec![line], threshold))
}
