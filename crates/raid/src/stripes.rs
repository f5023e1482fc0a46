//! Where each stripe of the volume is: the map from logical to physical stripes, the last round
//! that changed each physical one, and which of them are free.
//!
//! On the media this is a table by physical stripe ([`StripePage`]), so that one entry says both;
//! in memory it is kept whole, [`MEMORY_OF_A_STRIPE`]. Invariant: no two logical stripes have one
//! physical stripe; a physical stripe is free exactly when it is neither mapped nor pinned.
//!
//! Does not know positions or stability: whoever maps says, by its pins, when what was replaced
//! may be used again.

mod entries;
mod free;
mod interval;
mod page;
mod walk;

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec,
    vec::Vec,
};

pub use entries::Entries;
use free::FreeStripes;
use interval::PageIntervals;
pub use interval::{Interval, SNAPSHOT_NUMBER_MAX};
use netraid_block::narrow;
pub use page::StripePage;
use walk::Walk;
pub use walk::{Walked, Walker};

use crate::{
    format::Format,
    planted::{Planted, planted},
};

/// Bytes of memory that an open array takes for each physical stripe: its logical stripe and round, its place by
/// logical stripe, and the bits and page records beside them.
pub const MEMORY_OF_A_STRIPE: u64 = 13;

/// What the table says of a physical stripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry {
    /// The logical stripe that is there.
    pub logical: Option<u32>,
    /// The last round in which it was changed; 0 before the first.
    pub round: u32,
    /// Which snapshots it belongs to, and its layout; zeros where no stripe is there.
    pub interval: Interval,
}

/// A number of a stripe, or none, in four bytes: one more than the number, 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Stripe(u32);

impl Stripe {
    const NONE: Self = Self(0);

    /// Stripes are fewer than 2^32 - 1.
    const fn new(number: Option<u32>) -> Self {
        match number {
            Some(number) => Self(number + 1),
            None => Self::NONE,
        }
    }

    const fn get(self) -> Option<u32> {
        self.0.checked_sub(1)
    }

    const fn take(&mut self) -> Option<u32> {
        core::mem::replace(self, Self::NONE).get()
    }
}

/// A physical stripe, but for its interval.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    logical: Stripe,
    round: u32,
}

impl Slot {
    /// The entry, where `interval` is that of the stripe that is there, if one is.
    fn with(self, interval: impl FnOnce() -> Interval) -> Entry {
        let logical = self.logical.get();
        let interval = if logical.is_some() { interval() } else { Interval::default() };
        Entry { logical, round: self.round, interval }
    }
}

/// The whole table.
#[derive(Debug, Clone)]
pub struct StripeTable {
    /// By physical stripe.
    physical: Vec<Slot>,
    /// By page of physical stripes.
    intervals: Vec<PageIntervals>,
    /// By logical stripe: the physical one.
    logical: Vec<Stripe>,
    per_page: u32,
    /// The number that the next snapshot will have.
    next_number: u32,
    mapped: u32,
    free: FreeStripes,
    /// How often each stripe is pinned, for those that are.
    pins: BTreeMap<u32, u32>,
    changed_pages: BTreeSet<u64>,
    /// Who goes through the table.
    walks: BTreeMap<Walker, Walk>,
}

impl StripeTable {
    /// A table of stripes that hold nothing, before any snapshot.
    ///
    /// # Panics
    /// When there are more logical stripes than physical ones.
    #[must_use]
    pub fn new(format: Format, logical: u32, physical: u32) -> Self {
        assert!(logical <= physical, "{logical} logical stripes in {physical} physical ones");
        let per_page = format.stripes_per_page();
        let pages = physical.div_ceil(per_page) as usize;
        Self {
            physical: vec![Slot::default(); physical as usize],
            intervals: vec![PageIntervals::Same(Interval::FIRST); pages],
            logical: vec![Stripe::NONE; logical as usize],
            per_page,
            next_number: 1,
            mapped: 0,
            free: FreeStripes::all(physical),
            pins: BTreeMap::new(),
            changed_pages: BTreeSet::new(),
            walks: BTreeMap::new(),
        }
    }

    /// Says which number the next snapshot will have: stripes that are written from now on are born with it.
    ///
    /// # Panics
    /// When the number is 0, or larger than [`SNAPSHOT_NUMBER_MAX`].
    pub fn set_next_number(&mut self, number: u32) {
        assert!((1..=SNAPSHOT_NUMBER_MAX).contains(&number), "snapshot {number}");
        self.next_number = number;
    }

    /// The number that the next snapshot will have.
    #[must_use]
    pub const fn next_number(&self) -> u32 {
        self.next_number
    }

    /// Puts in what a page on a member says. Pages of different moments may claim two places
    /// for a logical stripe: then either counts, until the log, which has a REMAP of it, is
    /// applied.
    ///
    /// # Panics
    /// When something is pinned already.
    pub fn load(&mut self, page: &StripePage) {
        assert!(self.pins.is_empty(), "a page is loaded before anything is used");
        let Some(first) = page.index.checked_mul(self.per_page.into()) else { return };
        for (physical, entry) in (first..).zip(page.entries.iter()) {
            let Ok(physical) = u32::try_from(physical) else { continue };
            let Some(slot) = self.physical.get_mut(physical as usize) else { continue };
            slot.round = entry.round;
            let known = entry.logical.filter(|logical| (*logical as usize) < self.logical.len());
            if let Some(logical) = known {
                // Of two claims one is wrong, on a page that nothing else might ever write again.
                if let Some(other) = self.find(logical) {
                    self.note_change(other);
                    self.note_change(physical);
                }
                self.assign(logical, Some(physical));
                self.set_interval(physical, entry.interval);
            }
        }
    }

    /// Where a logical stripe is.
    #[must_use]
    pub fn find(&self, logical: u32) -> Option<u32> {
        self.logical[logical as usize].get()
    }

    /// What is said of a physical stripe.
    #[must_use]
    pub fn entry(&self, physical: u32) -> Entry {
        let of_page = &self.intervals[self.page_of(physical)];
        self.physical[physical as usize].with(|| of_page.get(self.place_in_page(physical)))
    }

    /// Number of logical stripes that are somewhere.
    #[must_use]
    pub const fn mapped(&self) -> u32 {
        self.mapped
    }

    /// Number of free physical stripes.
    #[must_use]
    pub const fn free(&self) -> u32 {
        self.free.count()
    }

    /// Takes a free stripe, the first at or after `near` if there is one, and pins it once.
    pub fn allocate(&mut self, near: u32) -> Option<u32> {
        let physical = self.free.take(near)?;
        self.pins.insert(physical, 1);
        Some(physical)
    }

    /// Keeps a stripe from being freed.
    ///
    /// # Panics
    /// When it is free.
    pub fn pin(&mut self, physical: u32) {
        assert!(!self.free.contains(physical), "a pin on stripe {physical}, which is free");
        *self.pins.entry(physical).or_default() += 1;
    }

    /// How often a stripe is pinned.
    #[must_use]
    pub fn pins(&self, physical: u32) -> u32 {
        self.pins.get(&physical).copied().unwrap_or(0)
    }

    /// Ends one pin.
    ///
    /// # Panics
    /// When there is none.
    pub fn unpin(&mut self, physical: u32) {
        let Some(count) = self.pins.get_mut(&physical) else {
            unreachable!("stripe {physical} was never pinned")
        };
        *count -= 1;
        if *count == 0 {
            self.pins.remove(&physical);
            self.free_if_unused(physical);
        }
    }

    /// Maps a logical stripe to a physical one, which is pinned and not mapped, or to nothing.
    /// Answers where it was: that is pinned once more, for the caller to end when the change is
    /// stable.
    ///
    /// # Panics
    /// When `to` is free or mapped.
    pub fn remap(&mut self, logical: u32, to: Option<u32>, round: u32) -> Option<u32> {
        if let Some(to) = to {
            let slot = self.physical[to as usize];
            assert!(self.pins.contains_key(&to), "stripe {to} was not allocated");
            assert_eq!(slot.logical, Stripe::NONE, "stripe {to} is taken for {logical}");
        }
        let from = self.find(logical);
        if let Some(from) = from {
            *self.pins.entry(from).or_default() += 1;
        }
        self.assign(logical, to);
        if let Some(to) = to {
            self.be_born(to, round);
        }
        if let Some(from) = from {
            self.note_change(from);
        }
        from
    }

    /// Applies a REMAP of the log after a crash: whatever the table says, this counts now.
    ///
    /// # Errors
    /// When there are no such stripes.
    pub fn replay(
        &mut self,
        logical: u64,
        to: Option<u64>,
        round: u32,
    ) -> Result<(), NoSuchStripe> {
        let known = |stripe: u64, count: usize| match u32::try_from(stripe) {
            Ok(small) if (small as usize) < count => Ok(small),
            _ => Err(NoSuchStripe(stripe)),
        };
        let logical = known(logical, self.logical.len())?;
        let to = to.map(|to| known(to, self.physical.len())).transpose()?;
        if let Some(from) = self.find(logical) {
            self.note_change(from);
        }
        self.assign(logical, to);
        if let Some(to) = to {
            self.be_born(to, round);
        }
        Ok(())
    }

    /// Notes that a stripe was changed in a round.
    pub fn touch(&mut self, physical: u32, round: u32) {
        let entry = &mut self.physical[physical as usize];
        if entry.round < round {
            let was = *entry;
            entry.round = round;
            self.note_walks(physical, was);
            self.note_change(physical);
        }
    }

    /// Has a page written as if it had changed.
    ///
    /// # Panics
    /// When there is no such page.
    pub fn note_page(&mut self, index: u64) {
        assert!(index < self.pages(), "page {index} of {}", self.pages());
        self.changed_pages.insert(index);
    }

    /// Pages that changed since this was asked last.
    pub fn take_changed_pages(&mut self) -> BTreeSet<u64> {
        core::mem::take(&mut self.changed_pages)
    }

    /// Number of pages.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        (self.physical.len() as u64).div_ceil(self.per_page as u64)
    }

    /// The entries of a page.
    ///
    /// # Panics
    /// When there is no such page.
    #[must_use]
    pub fn page(&self, index: u64) -> Entries {
        assert!(index < self.pages(), "page {index} of {}", self.pages());
        let first: u32 = narrow(index * u64::from(self.per_page));
        let all: u32 = narrow(self.physical.len());
        (first..all.min(first.saturating_add(self.per_page))).map(|at| self.entry(at)).collect()
    }

    /// A logical stripe was written to a physical one, in that round.
    fn be_born(&mut self, physical: u32, round: u32) {
        let born = if planted(Planted::BirthFromRound) { round } else { self.next_number };
        let slot = &mut self.physical[physical as usize];
        let was = *slot;
        slot.round = round;
        self.note_walks(physical, was);
        self.set_interval(physical, Interval::open(born));
        self.note_change(physical);
    }

    fn set_interval(&mut self, physical: u32, interval: Interval) {
        let (page, at) = (self.page_of(physical), self.place_in_page(physical));
        let first = page * self.per_page as usize;
        let slots = self.physical[first..].iter().take(self.per_page as usize);
        let others = || {
            let is_other =
                |(other, slot): (usize, &Slot)| other != at && slot.logical != Stripe::NONE;
            !slots.enumerate().any(is_other)
        };
        self.intervals[page].set(at, interval, self.per_page as usize, others);
    }

    const fn page_of(&self, physical: u32) -> usize {
        (physical / self.per_page) as usize
    }

    const fn place_in_page(&self, physical: u32) -> usize {
        (physical % self.per_page) as usize
    }

    /// Changes the map in both directions; whoever was at `to` is nowhere then.
    fn assign(&mut self, logical: u32, to: Option<u32>) {
        let from = self.logical[logical as usize].take();
        if let Some(from) = from {
            let slot = &mut self.physical[from as usize];
            let was = *slot;
            slot.logical = Stripe::NONE;
            self.mapped -= 1;
            self.note_walks(from, was);
            self.free_if_unused(from);
        }
        let Some(to) = to else { return };
        let new = Stripe::new(Some(logical));
        let slot = &mut self.physical[to as usize];
        let was = *slot;
        slot.logical = new;
        self.note_walks(to, was);
        if let Some(other) = was.logical.get() {
            self.logical[other as usize] = Stripe::NONE;
            self.mapped -= 1;
        }
        self.logical[logical as usize] = Stripe::new(Some(to));
        self.mapped += 1;
        self.free.remove(to);
    }

    fn free_if_unused(&mut self, physical: u32) {
        let is_mapped = self.physical[physical as usize].logical != Stripe::NONE;
        if !is_mapped && !self.pins.contains_key(&physical) {
            self.free.give(physical);
        }
    }

    fn note_change(&mut self, physical: u32) {
        self.changed_pages.insert(u64::from(physical / self.per_page));
    }
}

/// A stripe that the array does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the array has no stripe {0}")]
pub struct NoSuchStripe(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    fn image(index: u64, counter: u64, entries: impl IntoIterator<Item = Entry>) -> StripePage {
        let entries = entries.into_iter().collect();
        StripePage { index, counter, round: 1, uncounted: 1, entries }
    }

    /// A round that was cut short wrote the page where a stripe is now, not the one where it was.
    #[test]
    fn of_two_pages_that_claim_a_stripe_both_are_written_again() {
        let per = Format::Two.stripes_per_page();
        let page = |index| {
            let mut entries = vec![Entry::default(); per as usize];
            entries[0] = Entry { logical: Some(7), round: 3, interval: Interval::FIRST };
            image(index, 1, entries)
        };
        for order in [[0, 1], [1, 0]] {
            let mut table = StripeTable::new(Format::Two, 400, 2 * per);
            order.iter().for_each(|index| table.load(&page(*index)));
            table.replay(7, Some(per.into()), 9).unwrap();
            assert_eq!(table.take_changed_pages().into_iter().collect::<Vec<_>>(), [0, 1]);
            let mut again = StripeTable::new(Format::Two, 400, 2 * per);
            for index in [0, 1] {
                again.load(&image(index, 2, table.page(index).iter()));
            }
            assert_eq!(again.find(7), Some(per));
            assert!(again.take_changed_pages().into_iter().next().is_none());
        }
    }
    use rand::{Rng, SeedableRng, rngs::StdRng};

    /// Recomputes from the map alone what the table keeps beside it.
    fn check(table: &StripeTable) {
        let mut owners = BTreeMap::new();
        for (logical, physical) in (0..).zip(&table.logical) {
            let Some(physical) = physical.get() else { continue };
            assert_eq!(owners.insert(physical, logical), None, "two owners of {physical}");
        }
        assert_eq!(table.mapped() as usize, owners.len());
        let mut free = 0;
        for physical in 0..table.physical.len() as u64 {
            let physical = u32::try_from(physical).unwrap();
            assert_eq!(table.entry(physical).logical, owners.get(&physical).copied());
            let used = owners.contains_key(&physical) || table.pins.contains_key(&physical);
            assert_eq!(table.free.contains(physical), !used, "stripe {physical}");
            free += u32::from(!used);
        }
        assert_eq!(table.free(), free);
    }

    #[test]
    fn a_stripe_is_used_again_when_nothing_needs_it_any_more() {
        for seed in 0..50 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut table = StripeTable::new(Format::Two, 40, 48);
            let (mut unstable, mut readers) = (Vec::new(), Vec::new());
            for round in 1..400 {
                match rng.random_range(0..6) {
                    0..=2 => {
                        let logical = rng.random_range(0..40);
                        let near = rng.random_range(0..48);
                        if let Some(to) = table.allocate(near) {
                            unstable.extend(table.remap(logical, Some(to), round));
                            table.unpin(to);
                        } else {
                            assert_eq!(table.free(), 0);
                            unstable.drain(..).for_each(|from| table.unpin(from));
                        }
                    }
                    3 => unstable.extend(table.remap(rng.random_range(0..40), None, round)),
                    4 => {
                        if let Some(physical) = table.find(rng.random_range(0..40)) {
                            table.pin(physical);
                            readers.push(physical);
                        }
                    }
                    _ => {
                        if !readers.is_empty() {
                            table.unpin(readers.swap_remove(rng.random_range(0..readers.len())));
                        }
                    }
                }
                check(&table);
            }
        }
    }

    #[test]
    fn pages_and_the_remaps_since_then_give_the_table_back() {
        for seed in 0..50 {
            let mut rng = StdRng::seed_from_u64(seed);
            let (logical, physical) = (1300, 1400);
            let format = if seed % 2 == 0 { Format::One } else { Format::Two };
            let mut table = StripeTable::new(format, logical, physical);
            let mut pages = BTreeMap::new();
            let mut log = Vec::new();
            for round in 1..3000 {
                if format == Format::Two && rng.random_range(0..50) == 0 {
                    // Snapshots were taken, and deleted again.
                    table.set_next_number(table.next_number() + 1);
                }
                let stripe = rng.random_range(0..logical);
                let to = table.allocate(rng.random_range(0..physical));
                let from = table.remap(stripe, to, round);
                from.into_iter().chain(to).for_each(|pinned| table.unpin(pinned));
                log.push((stripe, to, round, table.next_number()));
                if rng.random_range(0..100) == 0 {
                    // A checkpoint: all that changed is written, then the log begins here. Pages
                    // may also be written at any other time.
                    for index in table.take_changed_pages() {
                        pages.insert(index, table.page(index));
                    }
                    log.clear();
                } else if rng.random_range(0..20) == 0 {
                    let index = rng.random_range(0..table.pages());
                    pages.insert(index, table.page(index));
                }
            }
            let mut loaded = StripeTable::new(format, logical, physical);
            for (index, entries) in pages {
                loaded.load(&image(index, 1, entries.iter()));
            }
            for (stripe, to, round, next_number) in log {
                loaded.set_next_number(next_number);
                loaded.replay(stripe.into(), to.map(u64::from), round).unwrap();
            }
            check(&loaded);
            assert_eq!(loaded.logical, table.logical);
            for stripe in (0..logical).filter_map(|stripe| table.find(stripe)) {
                assert_eq!(loaded.entry(stripe), table.entry(stripe));
            }
        }
    }

    #[test]
    fn streams_go_on_where_they_are() {
        let mut table = StripeTable::new(Format::One, 100, 200);
        let starts = [table.allocate(50), table.allocate(150)];
        assert_eq!(starts, [Some(50), Some(150)]);
        assert_eq!([51, 151].map(|near| table.allocate(near)), [Some(51), Some(151)]);
        assert_eq!(table.allocate(51), Some(52));
        assert_eq!(
            (199..202).map(|_| table.allocate(199)).collect::<Vec<_>>(),
            [199, 0, 1].map(Some)
        );
    }

    #[test]
    fn stripes_that_the_array_does_not_have_are_refused() {
        let mut table = StripeTable::new(Format::One, 4, 6);
        assert_eq!(table.replay(4, None, 1), Err(NoSuchStripe(4)));
        assert_eq!(table.replay(0, Some(6), 1), Err(NoSuchStripe(6)));
        assert_eq!(table.replay(1 << 40, Some(0), 1), Err(NoSuchStripe(1 << 40)));
        let entry = |logical| Entry { logical: Some(logical), round: 1, interval: Interval::FIRST };
        table.load(&image(0, 1, vec![entry(9); 900]));
        table.load(&image(u64::MAX / 1000, 1, vec![entry(0)]));
        assert_eq!(table.mapped(), 0);
        check(&table);
    }
}
