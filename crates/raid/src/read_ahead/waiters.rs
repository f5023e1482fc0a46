//! Users' reads that wait for what is under way.

use alloc::vec::Vec;
use core::ops::Range;

use netraid_block::SgList;
use smallvec::SmallVec;

use super::within;
use crate::array::RequestId;

/// A part of what a read waits for.
#[derive(Debug)]
pub(super) enum Part {
    /// It was kept when the read came.
    There(SgList),
    /// The request ahead of this number has it.
    Awaited { number: usize, range: Range<u64> },
}

/// All parts of a read, in order.
pub(super) type Parts = SmallVec<[Part; 2]>;

/// A user's read that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) id: RequestId,
    pub(super) range: Range<u64>,
    pub(super) parts: Parts,
}

impl Waiter {
    fn awaits(&self, number: usize) -> bool {
        let is_it = |part: &Part| matches!(part, Part::Awaited { number: n, .. } if *n == number);
        self.parts.iter().any(is_it)
    }

    /// Takes what has arrived; whether it waits for nothing else.
    fn fill(&mut self, number: usize, whole: &Range<u64>, data: &SgList) -> bool {
        let mut is_complete = true;
        for part in &mut self.parts {
            match part {
                Part::Awaited { number: of, range } if *of == number => {
                    *part = Part::There(data.slice(within(whole, range)));
                }
                Part::Awaited { .. } => is_complete = false,
                Part::There(_) => {}
            }
        }
        is_complete
    }

    fn into_data(self) -> SgList {
        let mut data = SgList::new();
        for part in self.parts {
            match part {
                Part::There(bytes) => data.append(bytes),
                Part::Awaited { .. } => unreachable!("every part has arrived"),
            }
        }
        data
    }
}

/// Those that wait, in the order in which they came; no more than users have reads in flight.
#[derive(Debug, Default)]
pub(super) struct Waiters(Vec<Waiter>);

impl Waiters {
    pub(super) fn push(&mut self, waiter: Waiter) {
        self.0.push(waiter);
    }

    /// Gives what has arrived, which is `whole`, to those who wait for it; tells who has all.
    pub(super) fn fill(
        &mut self,
        number: usize,
        whole: &Range<u64>,
        data: &SgList,
        mut answer: impl FnMut(RequestId, SgList),
    ) {
        let mut at = 0;
        while let Some(waiter) = self.0.get_mut(at) {
            if waiter.fill(number, whole, data) {
                let waiter = self.0.remove(at);
                answer(waiter.id, waiter.into_data());
            } else {
                at += 1;
            }
        }
    }

    /// One who waits for what will not arrive; it does so no more.
    pub(super) fn give_up(&mut self, number: usize) -> Option<(RequestId, Range<u64>)> {
        let at = self.0.iter().position(|waiter| waiter.awaits(number))?;
        let Waiter { id, range, .. } = self.0.remove(at);
        Some((id, range))
    }
}
