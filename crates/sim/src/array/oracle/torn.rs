//! What an array without a log promises less than one with a log.
//!
//! It does not "close the write hole (a crash between the writes of a stripe leaves parity to be resynced, and needs all
//! data members for that)" (`raid::array`). So a stripe is *torn* from a crash in the middle of one of its writes until
//! a resync has ended; and when power failed, so is every stripe with a write that no flush has covered, parity that a
//! resync has written included. An engine does not know which stripes are torn: before its resync has ended, none is to
//! be had without a member (`World::may_lack_parity`). Whoever opens such an array by force without a member takes parity
//! as it is where data or parity is away: what torn stripes held there counts as lost then, until it is written anew. All
//! other stripes have what they had.
//!
//! Nothing is made stable by an opening, and a block of 4 KiB may be torn by a crash between its sectors' blocks.

use std::collections::{BTreeMap, BTreeSet};

use super::{Candidate, EngineId, Moment, NEVER, Oracle, WriteId, index, span};

/// Stripes whose parity may not match, and what was lost by that.
#[derive(Debug, Clone)]
pub(super) struct Torn {
    /// Sectors of a stripe.
    stripe_len: u64,
    stripes: BTreeSet<u64>,
    /// Those whose parity matches again by what may be lost with the power: since when.
    unstable: BTreeMap<u64, Moment>,
    /// Writes that were not acknowledged.
    unanswered: Vec<WriteId>,
    /// By sector: reads that were submitted before may return anything.
    lost_until: Vec<Moment>,
    /// By sector: it may return anything when the power fails.
    is_unstable: Vec<bool>,
}

impl Torn {
    /// No stripe is torn, and no sector lost.
    pub(super) fn new(sectors: u64, stripe_len: u64) -> Self {
        let (lost_until, is_unstable) =
            (vec![Moment(0); index(sectors)], vec![false; index(sectors)]);
        let (stripes, unstable, unanswered) = (BTreeSet::new(), BTreeMap::new(), Vec::new());
        Self { stripe_len, stripes, unstable, unanswered, lost_until, is_unstable }
    }

    /// A write begins.
    pub(super) fn begin_write(&mut self, id: WriteId) {
        self.unanswered.push(id);
    }

    /// New contents of sectors were acknowledged.
    pub(super) fn end_write(&mut self, now: Moment, sectors: &core::ops::Range<u64>) {
        let lost = self.lost_until[span(sectors)].iter_mut().filter(|until| **until == NEVER);
        lost.for_each(|until| *until = now);
    }

    /// They are stable.
    pub(super) fn make_stable(&mut self, sectors: &core::ops::Range<u64>) {
        let all = span(sectors);
        for (is_unstable, until) in
            self.is_unstable[all.clone()].iter_mut().zip(&self.lost_until[all])
        {
            *is_unstable &= *until == NEVER;
        }
    }

    /// A flush that was submitted then has ended.
    pub(super) fn end_flush(&mut self, submitted: Moment) {
        self.unstable.retain(|_, since| *since >= submitted);
    }

    /// Whether a read that was submitted then may return anything.
    pub(super) fn is_lost(&self, sector: u64, submitted: Moment) -> bool {
        self.lost_until[index(sector)] > submitted
    }
}

impl Oracle {
    /// A volume of an array without a log, in stripes of so many sectors.
    #[must_use]
    pub fn of_stripes(sectors: u64, stripe_len: u64) -> Self {
        Self { torn: Some(Torn::new(sectors, stripe_len)), ..Self::new(sectors) }
    }

    /// Whether a stripe may not be readable without one of its members.
    #[must_use]
    pub fn has_torn(&self) -> bool {
        self.torn.as_ref().is_some_and(|torn| !torn.stripes.is_empty())
    }

    /// Parity of all stripes matches again.
    pub fn end_resync(&mut self) {
        let now = self.tick();
        let Some(torn) = &mut self.torn else { return };
        let stripes = core::mem::take(&mut torn.stripes);
        torn.unstable.extend(stripes.into_iter().map(|stripe| (stripe, now)));
    }

    /// Parity is taken as it is, and a member is not there.
    pub fn lose_torn_stripes(&mut self) {
        let (now, len) = (self.tick(), self.len());
        let Some(torn) = &mut self.torn else { return };
        for stripe in core::mem::take(&mut torn.stripes) {
            let first = stripe * torn.stripe_len;
            let sectors = span(&(first..(first + torn.stripe_len).min(len)));
            torn.lost_until[sectors.clone()].fill(NEVER);
            torn.is_unstable[sectors].fill(true);
            torn.unstable.insert(stripe, now);
        }
    }

    /// Another engine has opened an array without a log. Nothing that was written before is more stable for that.
    pub(super) fn open_without_log(&mut self, engine: EngineId, torn: &mut Torn) {
        let now = self.tick();
        self.serving = engine;
        let is_cold = core::mem::take(&mut self.is_cold);
        let mut written = core::mem::take(&mut torn.unanswered);
        written.retain(|id| !self.writes[id.0 as usize].is_acked);
        if is_cold {
            written.append(&mut self.unstable);
            torn.stripes.extend(core::mem::take(&mut torn.unstable).into_keys());
            for (until, is_unstable) in torn.lost_until.iter_mut().zip(&torn.is_unstable) {
                *until = if *is_unstable { NEVER } else { *until };
            }
        }
        for id in written {
            let sectors = &self.writes[id.0 as usize].sectors;
            let last = sectors.end.div_ceil(torn.stripe_len);
            torn.stripes.extend(sectors.start / torn.stripe_len..last);
        }
        for write in &mut self.writes {
            if write.engine != engine {
                write.ended = write.ended.min(now);
            }
        }
        for candidates in &mut self.sectors {
            candidates.retain(|one| !one.is_buried);
            for one in candidates.iter_mut().filter(|_| is_cold) {
                *one = Candidate { replaced: NEVER, ..*one };
            }
        }
        self.reads.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::*, *};

    const STRIPE: u64 = 16;

    fn oracle() -> Oracle {
        let mut oracle = Oracle::of_stripes(64, STRIPE);
        oracle.open(A);
        oracle
    }

    #[test]
    fn what_was_being_written_at_a_crash_is_lost_when_parity_is_taken_as_it_is_and_nothing_else() {
        let mut oracle = oracle();
        let neighbour = acked(&mut oracle, 8..16);
        let other = acked(&mut oracle, 16..24);
        write(&mut oracle, 0..8);
        oracle.open(B);
        assert!(oracle.has_torn());
        assert!(!reads(&mut oracle, 8..16, ZEROES), "with all members it is there");
        oracle.lose_torn_stripes();
        assert!(reads(&mut oracle, 8..16, ZEROES) && reads(&mut oracle, 8..16, neighbour));
        assert!(!reads(&mut oracle, 16..24, ZEROES) && reads(&mut oracle, 16..24, other));
        let new = acked(&mut oracle, 8..16);
        assert!(!reads(&mut oracle, 8..16, ZEROES) && reads(&mut oracle, 8..16, new));
    }

    #[test]
    fn a_resync_ends_what_is_torn_and_the_power_brings_it_back_until_a_flush() {
        for flushes in [false, true] {
            let mut oracle = oracle();
            write(&mut oracle, 0..8);
            oracle.open(B);
            oracle.end_resync();
            assert!(!oracle.has_torn());
            if flushes {
                flush(&mut oracle);
            }
            oracle.lose_power();
            oracle.open(C);
            assert_eq!(oracle.has_torn(), !flushes);
        }
    }

    #[test]
    fn an_opening_makes_nothing_stable() {
        let mut oracle = oracle();
        let old = acked(&mut oracle, 0..8);
        flush(&mut oracle);
        let new = acked(&mut oracle, 0..8);
        oracle.open(B);
        assert!(!reads(&mut oracle, 0..8, old) && reads(&mut oracle, 0..8, new));
        oracle.lose_power();
        oracle.open(C);
        assert!(reads(&mut oracle, 0..8, old), "nobody has flushed it");
    }
}
