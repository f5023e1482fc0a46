//! The allotments that stand, with their sums and in their orders.
//!
//! Invariant: sums and orders are those of the allotments, after every change. Knows no limits.

use alloc::collections::{BTreeMap, BTreeSet};
use core::ops::Bound;

use super::{
    Allotment, Purpose,
    allotment::{Key, Kind},
};
use crate::units::{AllotmentId, MediatorId, Moment, Resources, SegmentId};

/// How many allotments, and what they are together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Booked {
    /// How many.
    pub entries: usize,
    /// All that is held or committed.
    pub resources: Resources,
}

/// What is booked of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sums {
    pub(super) all: Booked,
    /// The part that is not for rebuilding.
    pub(super) clients: Resources,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Book {
    entries: BTreeMap<Key, Allotment>,
    segments: BTreeSet<(MediatorId, SegmentId, AllotmentId)>,
    /// Those that end by themselves.
    ends: BTreeSet<(Kind, Moment, Key)>,
    mediators: BTreeMap<MediatorId, Booked>,
    sums: Sums,
}

const FIRST: Key = (MediatorId([0; 16]), AllotmentId([0; 16]));
const LAST: Key = (MediatorId([0xff; 16]), AllotmentId([0xff; 16]));

impl Book {
    /// Puts what is to stand under a key, or nothing; gives back what stood there.
    ///
    /// # Panics
    /// When it could not have been booked, or is more than can be counted.
    pub(super) fn set(&mut self, key: Key, new: Option<Allotment>) -> Option<Allotment> {
        let old = match new {
            Some(new) => self.entries.insert(key, new),
            None => self.entries.remove(&key),
        };
        if let Some(old) = &old {
            self.strike(old);
        }
        if let Some(new) = &new {
            self.list(new);
        }
        old
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Allotment> {
        self.entries.get(key)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Allotment> {
        self.entries.values()
    }

    pub(super) const fn sums(&self) -> &Sums {
        &self.sums
    }

    pub(super) fn of(&self, mediator: MediatorId) -> Booked {
        self.mediators.get(&mediator).copied().unwrap_or_default()
    }

    pub(super) fn mediators(&self) -> impl Iterator<Item = (MediatorId, Booked)> {
        self.mediators.iter().map(|(mediator, booked)| (*mediator, *booked))
    }

    /// A mediator's, by id, from the one after this.
    pub(super) fn after(
        &self,
        mediator: MediatorId,
        after: Option<AllotmentId>,
    ) -> impl Iterator<Item = &Allotment> {
        let first = match after {
            Some(after) => Bound::Excluded((mediator, after)),
            None => Bound::Included((mediator, FIRST.1)),
        };
        self.entries.range((first, Bound::Included((mediator, LAST.1)))).map(|(_, entry)| entry)
    }

    /// A mediator's for one segment, by id.
    pub(super) fn for_segment(
        &self,
        mediator: MediatorId,
        segment: SegmentId,
    ) -> impl Iterator<Item = &Allotment> {
        let all = (mediator, segment, FIRST.1)..=(mediator, segment, LAST.1);
        self.segments.range(all).filter_map(move |(_, _, id)| self.entries.get(&(mediator, *id)))
    }

    /// Those of a kind that are over, the earliest first.
    pub(super) fn due(&self, kind: Kind, now: Moment) -> impl Iterator<Item = &Allotment> {
        self.ending((kind, Moment(0), FIRST), (kind, now, LAST))
    }

    /// Those of a kind that end by themselves, but only after `then`, the earliest first.
    pub(super) fn ending_after(
        &self,
        kind: Kind,
        then: Moment,
    ) -> impl Iterator<Item = &Allotment> {
        // There is nothing after the last moment, and the range would begin with it.
        let later = then.0.checked_add(1).map(Moment);
        later.into_iter().flat_map(move |first| {
            self.ending((kind, first, FIRST), (kind, Moment(u64::MAX), LAST))
        })
    }

    fn ending(
        &self,
        first: (Kind, Moment, Key),
        last: (Kind, Moment, Key),
    ) -> impl Iterator<Item = &Allotment> {
        self.ends.range(first..=last).filter_map(|(_, _, key)| self.entries.get(key))
    }

    /// When the first of all ends by itself.
    pub(super) fn first_end(&self) -> Option<Moment> {
        [Kind::Space, Kind::Rates]
            .into_iter()
            .filter_map(|kind| self.due(kind, Moment(u64::MAX)).next()?.until())
            .min()
    }

    fn list(&mut self, new: &Allotment) {
        let Some(kind) = new.kind() else { panic!("{new:?} cannot be booked") };
        self.segments.insert((new.mediator, new.segment, new.id));
        if let Some(until) = new.until() {
            self.ends.insert((kind, until, new.key()));
        }
        self.mediators.entry(new.mediator).or_default().add(&new.resources);
        self.sums.add(new);
    }

    fn strike(&mut self, old: &Allotment) {
        let Some(kind) = old.kind() else { panic!("{old:?} cannot have been booked") };
        self.segments.remove(&(old.mediator, old.segment, old.id));
        if let Some(until) = old.until() {
            self.ends.remove(&(kind, until, old.key()));
        }
        let booked = self.mediators.entry(old.mediator).or_default();
        booked.take(&old.resources);
        if booked.entries == 0 {
            self.mediators.remove(&old.mediator);
        }
        self.sums.take(old);
    }
}

impl Sums {
    fn add(&mut self, new: &Allotment) {
        self.all.add(&new.resources);
        if new.purpose == Purpose::Client {
            self.clients = sum(self.clients, new.resources);
        }
    }

    pub(super) fn take(&mut self, old: &Allotment) {
        self.all.take(&old.resources);
        if old.purpose == Purpose::Client {
            self.clients = difference(self.clients, old.resources);
        }
    }
}

impl Booked {
    fn add(&mut self, new: &Resources) {
        self.entries += 1;
        self.resources = sum(self.resources, *new);
    }

    pub(super) fn take(&mut self, old: &Resources) {
        assert!(self.entries > 0, "an allotment taken from none");
        self.entries -= 1;
        self.resources = difference(self.resources, *old);
    }
}

fn sum(all: Resources, more: Resources) -> Resources {
    let Some(sum) = all.checked_add(more) else { panic!("{all:?} and {more:?}: too much") };
    sum
}

fn difference(all: Resources, less: Resources) -> Resources {
    assert!(all.holds(&less), "{less:?} taken from {all:?}");
    all.saturating_sub(less)
}
