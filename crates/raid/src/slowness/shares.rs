//! How many of the reads that members get are hedges'.

use core::time::Duration;

use netraid_block::narrow;

use super::HEDGED_MIN;

/// Seconds in which hedges are held against reads.
const SECONDS: usize = 10;

/// Reads, and those among them that hedges sent, in each of the last seconds.
#[derive(Debug, Default)]
pub(super) struct Shares {
    seconds: [(u64, u64); SECONDS],
    second: u64,
}

impl Shares {
    /// Reads, and those that hedges sent, in the second of this moment.
    pub(super) fn second(&mut self, own: Duration) -> &mut (u64, u64) {
        let second = own.as_secs();
        let passed = (second - self.second).min(SECONDS as u64);
        for later in second - passed..second {
            self.seconds[narrow::<_, usize>((later + 1) % SECONDS as u64)] = (0, 0);
        }
        self.second = second;
        &mut self.seconds[narrow::<_, usize>(second % SECONDS as u64)]
    }

    /// Whether hedges may send more reads.
    pub(super) fn allow(&mut self, own: Duration) -> bool {
        self.second(own);
        let reads: u64 = self.seconds.iter().map(|(reads, _)| reads).sum();
        let hedged: u64 = self.seconds.iter().map(|(_, hedged)| hedged).sum();
        hedged < (reads / 10).max(HEDGED_MIN)
    }
}
