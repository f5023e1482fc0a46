//! The rules of the protocol that hold something back, and how often each did: one that never
//! does in a simulation is untested.

/// A rule that makes something wait, or that recovery judges by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "each has a sentence")]
pub enum Rule {
    RoomInLog,
    UnstableStripes,
    FreeStripe,
    StripeToLeave,
    PinnedStripe,
    Lock,
    LockedRead,
    HomeAfterParity,
    ImagesAfterFlush,
    CheckpointAfterImages,
    OrderOfLog,
    LogAfterLabels,
    WriteAfterLabels,
    LabelsAgain,
    Tables,
    PageLoads,
    ReturnAfterOperations,
    RemapDropped,
    RemapMended,
    LogBegunAnew,
    ParityOfAnotherOwner,
    ParityOfClosedRound,
    BatchOfAnotherGeneration,
    LeftBeginning,
    Gathered,
    JoinedRead,
    HedgedRead,
    PastSlowMember,
}

impl Rule {
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// All of them.
    pub const ALL: [Self; 28] = [
        Self::RoomInLog,
        Self::UnstableStripes,
        Self::FreeStripe,
        Self::StripeToLeave,
        Self::PinnedStripe,
        Self::Lock,
        Self::LockedRead,
        Self::HomeAfterParity,
        Self::ImagesAfterFlush,
        Self::CheckpointAfterImages,
        Self::OrderOfLog,
        Self::LogAfterLabels,
        Self::WriteAfterLabels,
        Self::LabelsAgain,
        Self::Tables,
        Self::PageLoads,
        Self::ReturnAfterOperations,
        Self::RemapDropped,
        Self::RemapMended,
        Self::LogBegunAnew,
        Self::ParityOfAnotherOwner,
        Self::ParityOfClosedRound,
        Self::BatchOfAnotherGeneration,
        Self::LeftBeginning,
        Self::Gathered,
        Self::JoinedRead,
        Self::HedgedRead,
        Self::PastSlowMember,
    ];

    /// What it says.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::RoomInLog => "a write waits for room in the log",
            Self::UnstableStripes => "a full stripe waits until less is unstable",
            Self::FreeStripe => "a full stripe waits for a free one",
            Self::StripeToLeave => "UNMAP waits for stripes that may be used again",
            Self::PinnedStripe => "a stripe that was left waits for its readers",
            Self::Lock => "who wants a stripe waits for who has it",
            Self::LockedRead => "a read waits until nobody changes what it relies on",
            Self::HomeAfterParity => "home writes wait for their PARITY to be stable",
            Self::ImagesAfterFlush => "images of tables wait until what they say is stable",
            Self::CheckpointAfterImages => "a checkpoint waits for its images to be stable",
            Self::OrderOfLog => "a batch waits for the acknowledgement of the one before it",
            Self::LogAfterLabels => "the log waits for the labels to exclude a member",
            Self::WriteAfterLabels => "a write waits for the labels to exclude its member",
            Self::LabelsAgain => "labels are written again because a member failed meanwhile",
            Self::Tables => "who writes tables waits for who does already",
            Self::PageLoads => "who needs checksums waits for who loads them already",
            Self::ReturnAfterOperations => "a member that is back waits for what began before",
            Self::RemapDropped => "a REMAP that was not stable is dropped",
            Self::RemapMended => "a REMAP's stripe is mended",
            Self::LogBegunAnew => {
                "what waits for space is logged again behind all older generations"
            }
            Self::ParityOfAnotherOwner => "a PARITY of another owner is not redone",
            Self::ParityOfClosedRound => "a PARITY of a round that is over is not redone",
            Self::BatchOfAnotherGeneration => "a batch of a generation before is not adopted",
            Self::LeftBeginning => "a write leaves the beginning of a stripe to who goes on there",
            Self::Gathered => "a stripe is written whole by several writes",
            Self::JoinedRead => "a read takes the bytes of another one that is under way",
            Self::HedgedRead => {
                "a read that is late is computed from other members before it comes"
            }
            Self::PastSlowMember => "a read goes past a member that is slow",
        }
    }
}

/// How often each rule held something back: once for each that waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuleCounts([u64; Rule::COUNT]);

impl RuleCounts {
    /// Counts one more.
    pub const fn note(&mut self, rule: Rule) {
        self.0[rule as usize] += 1;
    }

    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, count)| *sum += count);
    }

    /// All rules with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (Rule, u64)> {
        Rule::ALL.into_iter().zip(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_counts_for_itself() {
        for (at, rule) in Rule::ALL.into_iter().enumerate() {
            assert_eq!(rule as usize, at, "{rule:?}");
            let mut counts = RuleCounts::default();
            counts.note(rule);
            assert!(counts.iter().all(|(one, count)| count == u64::from(one == rule)));
        }
    }
}
