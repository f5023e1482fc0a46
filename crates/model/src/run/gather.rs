//! Writes in a row gather to whole stripes, by the rules of production
//! (`crates/raid/src/logged/gather.rs`): what a write has of its last stripe is left to those that go on
//! there, and who reaches the stripe's end writes all of it.
//!
//! Invariant: who left something is told what became of it: that others took it, when they have
//! written it, or that it was given up. Knows nothing of how anything is written.

use core::ops::Range;
use std::collections::BTreeMap;

/// Writes under way, and beginnings of stripes.
#[derive(Debug)]
pub(super) struct Gathering {
    stripe_bytes: u64,
    /// How many writes under way end at each byte of the volume.
    ends: BTreeMap<u64, u32>,
    /// Bytes of all of them.
    bytes: u64,
    beginnings: BTreeMap<u64, Beginning>,
}

/// The first bytes of a stripe: where they end, and who left parts of them.
#[derive(Debug)]
struct Beginning {
    end: u64,
    owners: Vec<usize>,
}

/// What a write does, and what it has in common with others.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shared {
    /// What it writes itself.
    pub(super) own: Range<u64>,
    /// Who left the beginning of its first stripe.
    pub(super) taken: Vec<usize>,
    /// From where on it left its end to others.
    pub(super) left: Option<u64>,
}

impl Gathering {
    pub(super) const fn new(stripe_bytes: u64) -> Self {
        Self { stripe_bytes, ends: BTreeMap::new(), bytes: 0, beginnings: BTreeMap::new() }
    }

    /// A write begins.
    pub(super) fn begin(&mut self, request: usize, range: &Range<u64>) -> Shared {
        let len = range.end - range.start;
        *self.ends.entry(range.end).or_default() += 1;
        self.bytes += len;
        let alone = Shared { own: range.clone(), taken: Vec::new(), left: None };
        if !self.ends.contains_key(&range.start) {
            return alone;
        }
        if let Some(left) = self.leave_more(request, range) {
            return Shared { own: left..left, left: Some(left), ..alone };
        }
        let taken = self.take(range);
        let (start, taken) = match taken {
            Some((start, owners)) => (start, owners),
            None => (range.start, Vec::new()),
        };
        let left = self.leave_first(request, range);
        Shared { own: start..left.unwrap_or(range.end), taken, left }
    }

    /// A write has ended: whose beginnings are given up, because nobody goes on there.
    pub(super) fn end(&mut self, range: &Range<u64>) -> Vec<usize> {
        self.bytes -= range.end - range.start;
        if let Some(count) = self.ends.get_mut(&range.end) {
            *count -= 1;
            if *count == 0 {
                self.ends.remove(&range.end);
            }
        }
        if range.end.is_multiple_of(self.stripe_bytes) {
            return self.give_up(range.end / self.stripe_bytes);
        }
        Vec::new()
    }

    /// A write has done everything else that it had to do. If it left the first part of a beginning, that is given
    /// up: for whom.
    pub(super) fn done_otherwise(&mut self, request: usize, left: u64) -> Vec<usize> {
        let stripe = left / self.stripe_bytes;
        let own = self.beginnings.get(&stripe);
        if own.is_some_and(|beginning| beginning.owners.first() == Some(&request)) {
            return self.give_up(stripe);
        }
        Vec::new()
    }

    fn give_up(&mut self, stripe: u64) -> Vec<usize> {
        self.beginnings.remove(&stripe).map(|beginning| beginning.owners).unwrap_or_default()
    }

    /// The stripe within which a write goes on where a beginning ends.
    fn beginning_before(&self, range: &Range<u64>) -> Option<u64> {
        let stripe = range.start / self.stripe_bytes;
        let beginning = self.beginnings.get(&stripe)?;
        (beginning.end == range.start).then_some(stripe)
    }

    /// Adds all of a write to a beginning whose stripe it does not end.
    fn leave_more(&mut self, request: usize, range: &Range<u64>) -> Option<u64> {
        let stripe = self.beginning_before(range)?;
        if range.end >= (stripe + 1) * self.stripe_bytes {
            return None;
        }
        let beginning = self.beginnings.get_mut(&stripe)?;
        beginning.end = range.end;
        beginning.owners.push(request);
        Some(range.start)
    }

    /// The beginning of the stripe in which a write begins, if it reaches that stripe's end.
    fn take(&mut self, range: &Range<u64>) -> Option<(u64, Vec<usize>)> {
        let stripe = self.beginning_before(range)?;
        if range.end < (stripe + 1) * self.stripe_bytes {
            return None;
        }
        let beginning = self.beginnings.remove(&stripe)?;
        Some((stripe * self.stripe_bytes, beginning.owners))
    }

    /// Leaves what a write has of its last stripe, if it has the first byte of that.
    fn leave_first(&mut self, request: usize, range: &Range<u64>) -> Option<u64> {
        let stripe = range.end / self.stripe_bytes;
        let from = stripe * self.stripe_bytes;
        let is_deep = self.bytes >= self.stripe_bytes + (range.end - range.start);
        let may_leave = range.start < from || (range.start == from && is_deep);
        if !may_leave || from >= range.end || self.beginnings.contains_key(&stripe) {
            return None;
        }
        self.beginnings.insert(stripe, Beginning { end: range.end, owners: vec![request] });
        Some(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(own: Range<u64>) -> Shared {
        Shared { own, taken: Vec::new(), left: None }
    }

    #[test]
    fn who_reaches_the_end_of_a_stripe_takes_what_was_left_of_it() {
        let mut gathering = Gathering::new(30);
        assert_eq!(gathering.begin(1, &(0..20)), alone(0..20), "nobody is before it");
        assert_eq!(
            gathering.begin(2, &(20..40)),
            Shared { own: 20..30, taken: vec![], left: Some(30) }
        );
        assert_eq!(
            gathering.begin(3, &(40..60)),
            Shared { own: 30..60, taken: vec![2], left: None }
        );
    }

    #[test]
    fn small_writes_add_to_a_beginning_and_have_nothing_of_their_own() {
        let mut gathering = Gathering::new(30);
        gathering.begin(0, &(0..30));
        assert_eq!(
            gathering.begin(1, &(30..40)),
            Shared { own: 30..30, taken: vec![], left: Some(30) }
        );
        assert_eq!(
            gathering.begin(2, &(40..50)),
            Shared { own: 40..40, taken: vec![], left: Some(40) }
        );
        assert_eq!(
            gathering.begin(3, &(50..60)),
            Shared { own: 30..60, taken: vec![1, 2], left: None }
        );
    }

    #[test]
    fn what_nobody_goes_on_with_is_given_up() {
        let mut gathering = Gathering::new(30);
        gathering.begin(0, &(0..30));
        gathering.begin(1, &(30..40));
        assert_eq!(gathering.end(&(0..30)), [1], "the write before it has ended");
        gathering.begin(2, &(60..80));
        assert_eq!(gathering.begin(3, &(80..100)).left, Some(90));
        assert_eq!(gathering.done_otherwise(3, 90), [3]);
        assert_eq!(gathering.done_otherwise(3, 90), [] as [usize; 0]);
    }

    #[test]
    fn what_is_not_in_a_row_is_written_alone() {
        let mut gathering = Gathering::new(30);
        gathering.begin(1, &(0..20));
        assert_eq!(gathering.begin(2, &(30..50)), alone(30..50));
    }
}
