//! How much is ahead of somebody who goes through the table in the order of the physical stripes, while it changes.
//!
//! Invariant: what is said to be ahead is never less than it is. It is exact once all that is ahead was counted, or
//! where every mapped stripe is wanted from the first one on.

use super::{Entry, Interval, Slot, Stripe, StripeTable};
use crate::{lack::Lack, member::MemberIndex};

/// Who goes through the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Walker {
    /// A scrub, by its number.
    Scrub(u64),
    /// A member that catches up, in this incarnation.
    Member(MemberIndex, u32),
    /// A copy of a member, by its number.
    Copy(u64),
}

/// How far somebody is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Walked {
    /// Stripes that are done.
    pub done: u64,
    /// Stripes that are done, under way or ahead.
    pub total: u64,
    /// Pieces of work beside the stripes that are done.
    pub extras_done: u64,
    /// All of these.
    pub extras: u64,
}

/// Somebody's way through the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Walk {
    /// What is wanted.
    lack: Lack,
    /// Stripes below this one were passed.
    next: u32,
    /// Stripes below this one were looked at one by one.
    counted: u32,
    /// Wanted stripes from `next` on and below `counted`.
    ahead: u32,
    /// Mapped stripes from `counted` on.
    uncounted: u32,
    /// Wanted stripes that were passed.
    taken: u32,
    /// Those of them that are done.
    done: u32,
    extras_done: u64,
    extras: u64,
}

impl Walk {
    const fn wants(&self, physical: u32, slot: Slot) -> bool {
        let entry =
            Entry { logical: slot.logical.get(), round: slot.round, interval: Interval::FIRST };
        entry.logical.is_some() && self.lack.has(physical, entry)
    }

    /// A stripe has changed.
    fn note(&mut self, physical: u32, was: Slot, is: Slot) {
        if physical >= self.counted {
            self.uncounted += u32::from(is_mapped(is));
            self.uncounted -= u32::from(is_mapped(was));
        } else if physical >= self.next {
            self.ahead += u32::from(self.wants(physical, is));
            self.ahead -= u32::from(self.wants(physical, was));
        }
    }

    /// Looks at stripes one by one, up to this one.
    fn count_to(&mut self, slots: &[Slot], end: u32) {
        let range = self.counted as usize..(end as usize).min(slots.len());
        for (physical, slot) in (self.counted..).zip(slots.get(range).unwrap_or_default()) {
            self.uncounted -= u32::from(is_mapped(*slot));
            let is_ahead = physical >= self.next && self.wants(physical, *slot);
            self.ahead += u32::from(is_ahead);
            self.counted = physical + 1;
        }
    }

    /// Passes the stripes below this one; answers how many of them are wanted.
    fn go_to(&mut self, slots: &[Slot], next: u32) -> u32 {
        self.count_to(slots, next);
        let range = self.next as usize..(next as usize).min(slots.len());
        let mut taken = 0;
        for (physical, slot) in (self.next..).zip(slots.get(range).unwrap_or_default()) {
            taken += u32::from(self.wants(physical, *slot));
        }
        self.next = self.next.max(next);
        self.ahead -= taken;
        self.taken += taken;
        taken
    }
}

fn is_mapped(slot: Slot) -> bool {
    slot.logical != Stripe::NONE
}

impl StripeTable {
    /// Somebody begins at stripe `from` to go through all that are mapped and that `lack` has, and has so many other
    /// pieces of work beside.
    pub fn begin_walk(&mut self, walker: Walker, lack: Lack, from: u32, extras: u64) {
        let (uncounted, extras_done) = (self.mapped, 0);
        let (counted, ahead, taken, done) = (0, 0, 0, 0);
        let walk =
            Walk { lack, next: from, counted, ahead, uncounted, taken, done, extras_done, extras };
        self.walks.insert(walker, walk);
    }

    /// Somebody has passed all stripes below `next`; answers how many of them are to be done.
    pub fn walk_to(&mut self, walker: Walker, next: u32) -> u32 {
        self.walks.get_mut(&walker).map_or(0, |walk| walk.go_to(&self.physical, next))
    }

    /// So many more of what was passed are done.
    pub fn note_walked(&mut self, walker: Walker, count: u32) {
        if let Some(walk) = self.walks.get_mut(&walker) {
            walk.done = (walk.done + count).min(walk.taken);
        }
    }

    /// So many more of the other pieces are done.
    pub fn note_extras(&mut self, walker: Walker, count: u64) {
        if let Some(walk) = self.walks.get_mut(&walker) {
            walk.extras_done = (walk.extras_done + count).min(walk.extras);
        }
    }

    /// Counts at most so many stripes ahead of somebody: what is ahead is known the better for it.
    pub fn count_ahead(&mut self, walker: Walker, stripes_max: u32) {
        if let Some(walk) = self.walks.get_mut(&walker)
            && walk.uncounted > 0
        {
            walk.count_to(&self.physical, walk.counted.saturating_add(stripes_max));
        }
    }

    /// How far somebody is, who has not ended.
    #[must_use]
    pub fn walked(&self, walker: Walker) -> Option<Walked> {
        self.walks.get(&walker).map(|walk| Walked {
            done: walk.done.into(),
            total: u64::from(walk.taken) + u64::from(walk.ahead) + u64::from(walk.uncounted),
            extras_done: walk.extras_done,
            extras: walk.extras,
        })
    }

    /// Somebody goes no further.
    pub fn end_walk(&mut self, walker: Walker) {
        self.walks.remove(&walker);
    }

    /// Tells those who go through the table that a stripe is not what it was.
    pub(super) fn note_walks(&mut self, physical: u32, was: Slot) {
        if self.walks.is_empty() {
            return;
        }
        let is = self.physical[physical as usize];
        self.walks.values_mut().for_each(|walk| walk.note(physical, was, is));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Format;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    const STRIPES: u32 = 300;

    fn wanted(table: &StripeTable, lack: &Lack, from: u32) -> u32 {
        let is_wanted = |physical: &u32| {
            let entry = table.entry(*physical);
            entry.logical.is_some() && lack.has(*physical, entry)
        };
        u32::try_from((from..STRIPES).filter(is_wanted).count()).unwrap()
    }

    /// Changes the map in one of the ways in which a running array does.
    fn change(table: &mut StripeTable, rng: &mut StdRng, round: u32) {
        let logical = rng.random_range(0..200);
        match rng.random_range(0..4) {
            0 | 1 => {
                if let Some(to) = table.allocate(rng.random_range(0..STRIPES)) {
                    let from = table.remap(logical, Some(to), round);
                    [Some(to), from].into_iter().flatten().for_each(|one| table.unpin(one));
                }
            }
            2 => {
                let from = table.remap(logical, None, round);
                from.into_iter().for_each(|one| table.unpin(one));
            }
            _ => {
                if let Some(physical) = table.find(logical) {
                    table.touch(physical, round);
                }
            }
        }
    }

    #[test]
    fn what_is_ahead_is_what_a_count_finds_however_the_table_changes() {
        for seed in 0..200 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut table = StripeTable::new(Format::Two, 200, STRIPES);
            (1..80).for_each(|round| change(&mut table, &mut rng, round));
            let whole = seed % 3 == 0;
            let from = if whole || seed % 3 == 1 { 0 } else { rng.random_range(0..STRIPES) };
            let lack = if whole {
                Lack::ALL
            } else {
                Lack { caught_up: from, ..Lack::since(rng.random_range(0..80)) }
            };
            let walker = Walker::Member(MemberIndex(1), 3);
            table.begin_walk(walker, lack, from, 0);
            let (mut next, mut taken) = (from, 0);
            for round in 80..400 {
                match rng.random_range(0..4) {
                    0 => {
                        let to = (next + rng.random_range(0..20)).min(STRIPES);
                        let here = wanted(&table, &lack, next) - wanted(&table, &lack, to);
                        assert_eq!(table.walk_to(walker, to), here, "seed {seed}");
                        (next, taken) = (to, taken + here);
                    }
                    1 => table.count_ahead(walker, rng.random_range(0..40)),
                    _ => change(&mut table, &mut rng, round),
                }
                let told = table.walked(walker).unwrap();
                let really = u64::from(taken + wanted(&table, &lack, next));
                assert!(told.total >= really, "seed {seed}: {told:?}, {really}");
                if whole || round > 390 {
                    table.count_ahead(walker, STRIPES);
                    assert_eq!(table.walked(walker).unwrap().total, really, "seed {seed}");
                }
            }
            table.walk_to(walker, STRIPES);
            let told = table.walked(walker).unwrap();
            table.note_walked(walker, u32::MAX / 2);
            assert_eq!(table.walked(walker), Some(Walked { done: told.total, ..told }));
            table.end_walk(walker);
            assert_eq!(table.walked(walker), None);
            table.touch(0, 1000);
        }
    }

    #[test]
    fn other_pieces_count_up_to_what_there_are() {
        let mut table = StripeTable::new(Format::Two, 20, 30);
        let walker = Walker::Scrub(1);
        table.begin_walk(walker, Lack::ALL, 0, 5);
        table.note_extras(walker, 3);
        assert_eq!(
            table.walked(walker),
            Some(Walked { done: 0, total: 0, extras_done: 3, extras: 5 })
        );
        table.note_extras(walker, 9);
        assert_eq!(table.walked(walker).unwrap().extras_done, 5);
        assert_eq!(table.walked(Walker::Scrub(2)), None);
    }
}
