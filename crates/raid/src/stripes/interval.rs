//! Which snapshots a physical stripe belongs to, and in which layout its columns stand.
//!
//! Byte map: docs/formats/tables.md; why: docs/decisions/0014-formats-for-what-comes.md.

use alloc::{boxed::Box, vec, vec::Vec};

use netraid_block::narrow;

/// The largest number of a snapshot: a number has 28 bits in an entry of the stripe table.
pub const SNAPSHOT_NUMBER_MAX: u32 = (1 << 28) - 1;

/// Where an entry's parts stand in its 64 bits: the layout is above both numbers.
const LEFT_AT: u32 = 28;
const LAYOUT_AT: u32 = 56;

/// Which snapshots a physical stripe belongs to: snapshot n contains the stripe when born <= n, and
/// the stripe was not left, or n < left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interval {
    /// The number that the next snapshot was to have when the stripe was written; 0 where there is no stripe.
    pub born: u32,
    /// The number that the next snapshot was to have when the volume left the stripe; 0: the stripe is the
    /// volume's own.
    pub left: u32,
    /// The layout of the stripe's columns; 0: that of the label.
    pub layout: u8,
}

impl Interval {
    /// Of a stripe that the volume has, and that was written before any snapshot was taken.
    pub const FIRST: Self = Self::open(1);

    /// Of a stripe that the volume has, and that was written when the next snapshot was to have that number.
    #[must_use]
    pub const fn open(born: u32) -> Self {
        Self { born, left: 0, layout: 0 }
    }

    /// The 64 bits of an entry.
    ///
    /// # Panics
    /// When a number is larger than [`SNAPSHOT_NUMBER_MAX`].
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        assert!(self.born <= SNAPSHOT_NUMBER_MAX && self.left <= SNAPSHOT_NUMBER_MAX);
        self.born as u64 | (self.left as u64) << LEFT_AT | (self.layout as u64) << LAYOUT_AT
    }

    /// What the 64 bits of an entry say.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        let number = |at: u32| narrow(bits >> at & u64::from(SNAPSHOT_NUMBER_MAX));
        Self { born: number(0), left: number(LEFT_AT), layout: narrow(bits >> LAYOUT_AT) }
    }
}

/// The intervals of a page's entries. Where those of all stripes that are there are one and the same, as in every
/// array without snapshots, the page keeps that one alone.
#[derive(Debug, Clone)]
pub(super) enum PageIntervals {
    /// Of all stripes that are there.
    Same(Interval),
    /// Of each entry, in their order.
    Each(Box<[Interval]>),
}

impl PageIntervals {
    /// The interval of the stripe in entry `at`.
    pub(super) fn get(&self, at: usize) -> Interval {
        match self {
            Self::Same(interval) => *interval,
            Self::Each(all) => all[at],
        }
    }

    /// The stripe in entry `at` has that interval; `is_only`: no other entry of the page, which has `entries`, has
    /// a stripe.
    pub(super) fn set(
        &mut self,
        at: usize,
        interval: Interval,
        entries: usize,
        is_only: impl FnOnce() -> bool,
    ) {
        match self {
            Self::Same(same) if *same == interval => {}
            Self::Same(same) => {
                if is_only() {
                    *same = interval;
                    return;
                }
                let mut all: Vec<Interval> = vec![*same; entries];
                all[at] = interval;
                *self = Self::Each(all.into_boxed_slice());
            }
            Self::Each(all) => all[at] = interval,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_what_its_bits_say() {
        let last = SNAPSHOT_NUMBER_MAX;
        for (born, left, layout) in [
            (0, 0, 0),
            (1, 0, 0),
            (last, 0, 0),
            (0, last, 0),
            (0, 0, 255),
            (last, last, 255),
            (5, 9, 3),
        ] {
            let interval = Interval { born, left, layout };
            assert_eq!(Interval::from_bits(interval.to_bits()), interval);
        }
        assert_eq!(Interval { born: 1, left: 2, layout: 3 }.to_bits(), 0x0300_0000_2000_0001);
        assert_eq!(Interval::default().to_bits(), 0);
    }

    #[test]
    fn a_page_keeps_one_interval_until_two_stripes_differ() {
        let mut page = PageIntervals::Same(Interval::FIRST);
        page.set(3, Interval::open(7), 10, || true);
        assert!(matches!(page, PageIntervals::Same(same) if same == Interval::open(7)));
        page.set(4, Interval::open(7), 10, || unreachable!());
        page.set(5, Interval::open(8), 10, || false);
        let read: Vec<u32> = (3..6).map(|at| page.get(at).born).collect();
        assert_eq!(read, [7, 7, 8]);
        page.set(3, Interval::open(9), 10, || false);
        assert_eq!([page.get(3), page.get(4)], [Interval::open(9), Interval::open(7)]);
    }
}
