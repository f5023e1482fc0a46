//! The entries of a page, as small in memory as the table itself: an opening has all pages of an array there at once.

use alloc::vec::Vec;

use super::{Entry, Slot, Stripe, interval::PageIntervals};
use crate::stripes::Interval;

/// Entries of a page of the stripe table, in the order of the physical stripes.
#[derive(Debug, Clone)]
pub struct Entries {
    slots: Vec<Slot>,
    intervals: PageIntervals,
}

impl Entries {
    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// An entry.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<Entry> {
        self.slots.get(at).map(|slot| slot.with(|| self.intervals.get(at)))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Entry> {
        let with_place = self.slots.iter().enumerate();
        with_place.map(|(at, slot)| slot.with(|| self.intervals.get(at)))
    }

    /// The largest number with which a stripe was born; 0 where there is none.
    #[must_use]
    pub fn last_born(&self) -> u32 {
        match &self.intervals {
            PageIntervals::Same(_)
                if self.slots.iter().all(|slot| slot.logical == Stripe::NONE) =>
            {
                0
            }
            PageIntervals::Same(interval) => interval.born,
            PageIntervals::Each(_) => {
                self.iter().map(|entry| entry.interval.born).max().unwrap_or(0)
            }
        }
    }
}

impl FromIterator<Entry> for Entries {
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> Self {
        let entries = entries.into_iter();
        let mut slots: Vec<Slot> = Vec::with_capacity(entries.size_hint().0);
        let mut intervals = PageIntervals::Same(Interval::FIRST);
        let mut is_first = true;
        // Where two differ, each is kept.
        let mut each: Vec<Interval> = Vec::new();
        for Entry { logical, round, interval } in entries {
            if logical.is_some() && is_first {
                (intervals, is_first) = (PageIntervals::Same(interval), false);
            }
            if let PageIntervals::Same(same) = intervals
                && logical.is_some()
                && interval != same
                && each.is_empty()
            {
                each = alloc::vec![same; slots.len()];
            }
            if !each.is_empty() {
                each.push(interval);
            }
            slots.push(Slot { logical: Stripe::new(logical), round });
        }
        if !each.is_empty() {
            intervals = PageIntervals::Each(each.into_boxed_slice());
        }
        Self { slots, intervals }
    }
}

/// What they say counts, not how it is kept.
impl PartialEq for Entries {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Entries {}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    #[test]
    fn entries_are_what_was_put_in_and_are_equal_however_they_are_kept() {
        for seed in 0..300 {
            let mut rng = StdRng::seed_from_u64(seed);
            let kinds = rng.random_range(1..4);
            let entry = |rng: &mut StdRng| {
                let logical = rng.random_bool(0.7).then(|| rng.random_range(0..9));
                let born = if logical.is_some() { rng.random_range(1..=kinds) } else { 0 };
                let interval = Interval { born, ..Interval::default() };
                Entry { logical, round: rng.random_range(0..4), interval }
            };
            let list: Vec<Entry> = (0..rng.random_range(0..20)).map(|_| entry(&mut rng)).collect();
            let entries: Entries = list.iter().copied().collect();
            assert_eq!((entries.len(), entries.is_empty()), (list.len(), list.is_empty()));
            assert!(entries.iter().eq(list.iter().copied()), "{list:?}");
            assert!((0..list.len()).all(|at| entries.get(at) == Some(list[at])));
            assert_eq!(entries.get(list.len()), None);
            let last = list.iter().map(|entry| entry.interval.born).max().unwrap_or(0);
            assert_eq!(entries.last_born(), last);
            assert_eq!(entries, list.iter().copied().collect());
            if let Some(at) = list.iter().position(|entry| entry.logical.is_some()) {
                let mut other = list;
                other[at].interval.born += 1;
                assert_ne!(entries, other.into_iter().collect());
            }
        }
    }
}
