//! Writes in a row gather to whole stripes: who does what, as the array and its model both decide it.
//!
//! A write that goes on where another one under way ends is in a row. What such a write has of its last
//! stripe, from the stripe's first byte, is left as a beginning while something else of the row is under way.
//! Writes that go on there add to it, and who reaches the stripe's end takes it and writes it whole.
//!
//! Invariant: who left bytes waits only for what is under way and waits for nobody itself: its own other parts, or
//! one write that ends where it begins. When that has ended, the beginning is given up, and everybody writes what is
//! their own. So a beginning takes no longer than two writes do, and a request that comes alone waits for nothing.
//!
//! Not here: how a stripe is written, and how who left something is told.

use alloc::{collections::BTreeMap, vec::Vec};
use core::ops::Range;

/// Writes under way, and beginnings of stripes; who leaves one is known as an `Owner`.
#[derive(Debug)]
pub struct Gathering<Owner> {
    stripe_len: u64,
    /// How many writes end at each byte of the volume.
    ends: BTreeMap<u64, u32>,
    /// Bytes of all of them.
    bytes: u64,
    beginnings: BTreeMap<u64, Beginning<Owner>>,
}

/// The first bytes of a stripe: where they end, and who left parts of them, in order.
#[derive(Debug)]
struct Beginning<Owner> {
    end: u64,
    owners: Vec<Owner>,
}

/// What a write does itself, and what it has in common with others.
#[derive(Debug, PartialEq, Eq)]
pub struct Share<Owner> {
    /// What it writes itself. With `taken`, it begins behind the stripe that others left the beginning of.
    pub own: Range<u64>,
    /// Who left the beginning of its first stripe, which it writes whole.
    pub taken: Vec<Owner>,
    /// From where on it may leave its end to others, by [`Gathering::leave`], before anything else is asked.
    pub left: Option<u64>,
}

impl<Owner> Gathering<Owner> {
    /// Nothing under way, on a volume with stripes of so many bytes of data.
    #[must_use]
    pub const fn new(stripe_len: u64) -> Self {
        Self { stripe_len, ends: BTreeMap::new(), bytes: 0, beginnings: BTreeMap::new() }
    }

    /// A write of these bytes of the volume begins.
    pub fn begin(&mut self, range: &Range<u64>) -> Share<Owner> {
        *self.ends.entry(range.end).or_default() += 1;
        self.bytes += range.end - range.start;
        let alone = Share { own: range.clone(), taken: Vec::new(), left: None };
        if range.is_empty() || !self.ends.contains_key(&range.start) {
            return alone;
        }
        let before = self.beginning_before(range.start);
        if let Some(stripe) = before
            && range.end < self.stripe_end(stripe)
        {
            return Share { own: range.start..range.start, left: Some(range.start), ..alone };
        }
        let found = before.and_then(|stripe| Some((stripe, self.beginnings.remove(&stripe)?)));
        let (start, taken) = match found {
            Some((stripe, beginning)) => (self.stripe_end(stripe), beginning.owners),
            None => (range.start, Vec::new()),
        };
        let left = self.may_leave(range);
        Share { own: start..left.unwrap_or(range.end), taken, left }
    }

    /// Leaves the bytes from `left` on of a write that ends at `end`, where [`Self::begin`] said so.
    pub fn leave(&mut self, left: u64, end: u64, owner: Owner) {
        let beginning = self
            .beginnings
            .entry(left / self.stripe_len)
            .or_insert_with(|| Beginning { end: left, owners: Vec::new() });
        assert_eq!(beginning.end, left, "a beginning goes on where it ends");
        beginning.end = end;
        beginning.owners.push(owner);
    }

    /// A write has ended: those whose beginning is given up, because who waits for what comes behind a write waits
    /// for one.
    ///
    /// # Panics
    /// When it was not under way.
    pub fn end(&mut self, range: &Range<u64>) -> Vec<Owner> {
        self.bytes -= range.end - range.start;
        let Some(count) = self.ends.get_mut(&range.end) else {
            panic!("a write that ended at {} was under way", range.end)
        };
        *count -= 1;
        if *count == 0 {
            self.ends.remove(&range.end);
        }
        // Also where another one that ends there has come since.
        if range.end.is_multiple_of(self.stripe_len) {
            return self.give_up(range.end / self.stripe_len);
        }
        Vec::new()
    }

    /// A write that left its end from `left` on has done everything else: those whose beginning is given up, if its
    /// own part is the first of one.
    pub fn end_own(&mut self, left: u64, is_own: impl Fn(&Owner) -> bool) -> Vec<Owner> {
        let stripe = left / self.stripe_len;
        let first = self.beginnings.get(&stripe).and_then(|beginning| beginning.owners.first());
        if first.is_some_and(is_own) { self.give_up(stripe) } else { Vec::new() }
    }

    fn give_up(&mut self, stripe: u64) -> Vec<Owner> {
        self.beginnings.remove(&stripe).map(|beginning| beginning.owners).unwrap_or_default()
    }

    fn stripe_end(&self, stripe: u64) -> u64 {
        (stripe + 1) * self.stripe_len
    }

    /// The stripe of which a beginning ends just before this byte.
    fn beginning_before(&self, start: u64) -> Option<u64> {
        let stripe = start / self.stripe_len;
        let beginning = self.beginnings.get(&stripe)?;
        (beginning.end == start).then_some(stripe)
    }

    /// Where the end of a write begins that it may leave: what it has of its last stripe, if it has the first byte of
    /// that. Who has nothing else to do meanwhile leaves it only where the rest can come while the write before is
    /// under way.
    fn may_leave(&self, range: &Range<u64>) -> Option<u64> {
        let stripe = range.end / self.stripe_len;
        let from = stripe * self.stripe_len;
        let is_deep = self.bytes >= self.stripe_len + (range.end - range.start);
        let may_leave = range.start < from || (range.start == from && is_deep);
        (may_leave && from < range.end && !self.beginnings.contains_key(&stripe)).then_some(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(own: Range<u64>) -> Share<u32> {
        Share { own, taken: Vec::new(), left: None }
    }

    /// A write begins, and leaves what it may.
    fn begin(gathering: &mut Gathering<u32>, owner: u32, range: Range<u64>) -> Share<u32> {
        let share = gathering.begin(&range);
        if let Some(left) = share.left {
            gathering.leave(left, range.end, owner);
        }
        share
    }

    #[test]
    fn who_reaches_the_end_of_a_stripe_takes_what_was_left_of_it() {
        let mut gathering = Gathering::new(30);
        assert_eq!(begin(&mut gathering, 1, 0..20), alone(0..20), "nobody is before it");
        let second = Share { own: 20..30, taken: Vec::new(), left: Some(30) };
        assert_eq!(begin(&mut gathering, 2, 20..40), second);
        let third = Share { own: 60..60, taken: [2].into(), left: None };
        assert_eq!(begin(&mut gathering, 3, 40..60), third);
    }

    #[test]
    fn who_takes_a_beginning_leaves_one_where_it_goes_on_into_the_next_stripe() {
        let mut gathering = Gathering::new(30);
        begin(&mut gathering, 0, 0..30);
        begin(&mut gathering, 1, 30..50);
        let share = begin(&mut gathering, 2, 50..130);
        assert_eq!(share, Share { own: 60..120, taken: [1].into(), left: Some(120) });
        assert_eq!(gathering.end_own(120, |owner| *owner == 2), [2]);
    }

    #[test]
    fn small_writes_add_to_a_beginning_and_have_nothing_of_their_own() {
        let mut gathering = Gathering::new(30);
        begin(&mut gathering, 0, 0..30);
        let first = Share { own: 30..30, taken: Vec::new(), left: Some(30) };
        assert_eq!(begin(&mut gathering, 1, 30..40), first);
        let second = Share { own: 40..40, taken: Vec::new(), left: Some(40) };
        assert_eq!(begin(&mut gathering, 2, 40..50), second);
        let third = Share { own: 60..60, taken: [1, 2].into(), left: None };
        assert_eq!(begin(&mut gathering, 3, 50..60), third);
    }

    #[test]
    fn what_nobody_goes_on_with_is_given_up() {
        let mut gathering = Gathering::new(30);
        begin(&mut gathering, 0, 0..30);
        begin(&mut gathering, 1, 30..40);
        assert_eq!(gathering.end(&(0..30)), [1], "the write before it has ended");
        begin(&mut gathering, 2, 60..80);
        assert_eq!(begin(&mut gathering, 3, 80..100).left, Some(90));
        assert_eq!(gathering.end_own(90, |owner| *owner == 4), [], "it is another one's");
        assert_eq!(gathering.end_own(90, |owner| *owner == 3), [3]);
        assert_eq!(gathering.end_own(90, |owner| *owner == 3), []);
    }

    #[test]
    fn what_is_not_in_a_row_or_empty_is_written_alone() {
        let mut gathering = Gathering::new(30);
        begin(&mut gathering, 1, 0..20);
        assert_eq!(begin(&mut gathering, 2, 30..50), alone(30..50));
        assert_eq!(begin(&mut gathering, 3, 20..20), alone(20..20));
    }
}
