//! What an agent has booked, and for whom: space and rates, for several mediators that do not
//! know each other.
//!
//! A mediator holds what it needs on each agent, then commits all of it or lets all of it go; or it books
//! rates at once, and lets all of them go where some are refused. What
//! is held ends by itself, and so do committed rates unless they are renewed; committed space
//! stays until it is released, because data is in it. So an allotment is of space or of rates,
//! never both, and a crash of either side leaks nothing: what nobody committed or renews ends, and
//! what a mediator forgot is found by comparing [`Ledger::page`] with its own store.
//!
//! Invariants: nothing is booked that would make the sum of all allotments exceed what the agent
//! has, of anything; clients' stay below what is kept for rebuilding, too. A mediator reaches
//! nothing but its own: allotments are named by mediator and id, and two mediators may use the
//! same id. When the agent turns out to have less than is booked, all that is booked stays, and
//! nothing more is booked of what there is too little of.
//!
//! ```text
//! request -> hold, commit, book, renew, release, release_segment -> answer, with an Order
//!                      |                                        |
//!                      v                                        | waits
//!                 poll_change -> the store, in this order       |
//!                                  |                            v
//!                                  `-> handle_stored ---> is_stored? the answer leaves
//! ```
//!
//! # Order
//! An operation counts at once for all that follow it, and is to be stored before its answer
//! leaves: also the answer to a repeated request, which changes nothing but may rest on a change
//! that is still on its way. Changes are stored in the order in which they come, many at once if
//! that is quicker; any first part of them is a ledger that never promised too much. What is over
//! is removed before its place is given away, in that same order.
//! When a store certainly did not take them, [`Ledger::handle_store_failed`] takes back all that
//! is not stored, and each waiting answer becomes an error. When it may have taken them, the only
//! way on is [`Ledger::restore`] from what it holds.
//!
//! # Repeating
//! Each operation may be asked again when its answer was lost, and then does nothing more. Delayed
//! copies of requests do no harm either: a hold that comes after its release ends by itself,
//! because the commit beside it names the serial of another hold; what is booked at once ends with its
//! lease; a renewal never shortens.
//!
//! # Clocks
//! All moments are of the agent's own clock: who asks says for how long, not until when, so that
//! skew between hosts does not matter. An answer says until when by the agent's clock, which others
//! may show, and should not reckon with: they count from when they asked, not from the answer.
//! Moments are of the wall clock because they outlast a restart, and so that clock may be set. Set
//! forward, leases end early: whoever renews them is told that they are absent, and holds anew.
//! Set back, what is booked would last too long: [`Ledger::expire`] shortens what ends later than
//! anything booked now could. Nothing here relies on time to keep two from writing: that is what
//! generations are for.
//!
//! Does not know segments, generations in force, nor what moves at which rate; and takes the word
//! of its caller for which mediator asks. Whoever releases space has removed the data first.
//! Nothing grows or shrinks: who needs more holds more by another id.

mod allotment;
mod book;
mod error;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use alloc::{boxed::Box, collections::VecDeque, vec::Vec};

pub use allotment::{Allotment, Change, Commit, Hold, Purpose, State};
use allotment::{Key, Kind};
pub use book::Booked;
use book::{Book, Sums};
pub use error::{Busy, HoldError, LeaseError, RestoreError, Short, TermError, Whose};

use crate::units::{AllotmentId, Generation, MediatorId, Moment, Resources, SegmentId};

/// As many changes may wait to be stored before requests are refused.
const UNSTORED_MAX: usize = 4096;

/// One call of [`Ledger::expire`] ends or shortens about as many allotments.
const EXPIRE_MAX: usize = 256;

/// Allotments of one mediator that an agent has at most, if it is not told to have fewer.
pub const ENTRIES_PER_MEDIATOR_MAX: usize = 1 << 17;

/// How many allotments there may be, and how long they may last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Of all mediators together.
    pub entries: usize,
    /// Of one mediator.
    pub entries_per_mediator: usize,
    /// Of one mediator for one segment; so many does [`Ledger::release_segment`] release at once.
    pub entries_per_segment: usize,
    /// The longest that something may be held, in milliseconds: not longer than a lease.
    pub hold_ms: u64,
    /// The longest from one renewal to the next, in milliseconds.
    pub lease_ms: u64,
}

impl Default for Limits {
    /// Room for a hundred thousand small volumes of one mediator, some 100 MiB if all of it is
    /// used, and for a mediator that takes a while to come back.
    fn default() -> Self {
        Self {
            entries: 1 << 18,
            entries_per_mediator: ENTRIES_PER_MEDIATOR_MAX,
            entries_per_segment: 256,
            hold_ms: 60_000,
            lease_ms: crate::lease::TERM_MS_MAX,
        }
    }
}

/// The place of a change among all changes of a ledger since it was made or restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Order {
    /// How often the store had failed.
    failures: u64,
    number: u64,
}

/// What an operation came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The allotment as it stands.
    pub allotment: Allotment,
    /// It may be said once all changes up to this one are stored.
    pub order: Order,
}

/// What was released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    /// How many allotments; none when they were gone already.
    pub entries: usize,
    /// It may be said once all changes up to this one are stored.
    pub order: Order,
}

/// A change that is not known to be stored.
#[derive(Debug, Clone)]
struct Unstored {
    order: Order,
    change: Change,
    /// What stood there before.
    before: Option<Allotment>,
}

/// The ledger of one agent.
#[derive(Debug, Clone)]
pub struct Ledger {
    capacity: Resources,
    kept: Resources,
    limits: Limits,
    book: Book,
    /// The largest serial that was given.
    serial: u64,
    /// The last order that was given.
    last: Order,
    unstored: VecDeque<Unstored>,
    /// How many of those were handed out to be stored.
    handed: usize,
}

impl Ledger {
    /// A ledger without allotments, of an agent that has `capacity`, of which `kept` is for
    /// rebuilding only.
    ///
    /// # Panics
    /// When a hold may last longer than a lease.
    #[must_use]
    pub fn new(capacity: Resources, kept: Resources, limits: Limits) -> Self {
        assert!(limits.hold_ms <= limits.lease_ms, "{limits:?}: a hold longer than a lease");
        Self {
            capacity,
            kept,
            limits,
            book: Book::default(),
            serial: 0,
            last: Order::default(),
            unstored: VecDeque::new(),
            handed: 0,
        }
    }

    /// The ledger of which a store holds these allotments, in any order. They stand even when they
    /// are more than the agent has or than there may be: see [`Ledger::overbooked`].
    ///
    /// # Errors
    /// When they do not fit together.
    ///
    /// # Panics
    /// As [`Ledger::new`].
    pub fn restore(
        capacity: Resources,
        kept: Resources,
        limits: Limits,
        stored: impl IntoIterator<Item = Allotment>,
    ) -> Result<Self, RestoreError> {
        let (ledger, wrong) = Self::restore_usable(capacity, kept, limits, stored);
        wrong.into_iter().next().map_or(Ok(ledger), Err)
    }

    /// The same of all allotments that can be; and what is wrong of the others, which count for nothing.
    #[must_use]
    pub fn restore_usable(
        capacity: Resources,
        kept: Resources,
        limits: Limits,
        stored: impl IntoIterator<Item = Allotment>,
    ) -> (Self, Vec<RestoreError>) {
        let mut ledger = Self::new(capacity, kept, limits);
        let mut wrong = Vec::new();
        for entry in stored {
            let Allotment { mediator, id, .. } = entry;
            let is_there = ledger.book.get(&entry.key()).is_some();
            let sum = ledger.book.sums().all.resources.checked_add(entry.resources);
            if entry.kind().is_none() {
                wrong.push(RestoreError::Impossible { mediator, id });
            } else if is_there {
                wrong.push(RestoreError::Twice { mediator, id });
            } else if sum.is_none() {
                wrong.push(RestoreError::TooLarge { mediator, id });
            } else {
                ledger.serial = ledger.serial.max(entry.serial);
                ledger.book.set(entry.key(), Some(entry));
            }
        }
        (ledger, wrong)
    }

    /// Says anew what the agent has, and what of it is for rebuilding. Nothing that is booked
    /// changes.
    pub const fn set_capacity(&mut self, capacity: Resources, kept: Resources) {
        self.capacity = capacity;
        self.kept = kept;
    }

    /// Keeps something free, all of it or nothing. Asked again, it answers what stands by that id,
    /// committed or not, as long as it is the same but for how long.
    ///
    /// # Errors
    /// When there is not enough, the id stands for something else, or it may not be asked for.
    pub fn hold(
        &mut self,
        now: Moment,
        mediator: MediatorId,
        hold: &Hold,
    ) -> Result<Answer, HoldError> {
        if let Some(stands) = self.standing(now, mediator, hold.id) {
            return match stands.answers(hold) {
                true => Ok(self.answer(stands)),
                false => Err(HoldError::Different(Box::new(stands))),
            };
        }
        let until = end(now, hold.for_ms, self.limits.hold_ms)?;
        self.enter(now, mediator, hold, State::Held { until })
    }

    /// Puts rates to use at once, without holding them first: for who has stored elsewhere that it
    /// asks, and releases them wherever they may be. Asked again, it prolongs what stands by that id,
    /// and never shortens it. A copy that comes after the release stands until the lease ends.
    ///
    /// # Errors
    /// As [`Ledger::hold`]; or it is of space.
    pub fn book(
        &mut self,
        now: Moment,
        mediator: MediatorId,
        hold: &Hold,
        lease_ms: u64,
    ) -> Result<Answer, HoldError> {
        let id = hold.id;
        if Kind::of(&hold.resources) == Some(Kind::Space) {
            return Err(HoldError::Space { id });
        }
        let until = end(now, lease_ms, self.limits.lease_ms)?;
        let state = State::Committed { until: Some(until) };
        match self.standing(now, mediator, id) {
            None => self.enter(now, mediator, hold, state),
            Some(stands) if !stands.answers(hold) => Err(HoldError::Different(Box::new(stands))),
            // Committed for longer, it stays so.
            Some(stands)
                if matches!(stands.state, State::Committed { .. })
                    && stands.until() >= Some(until) =>
            {
                Ok(self.answer(stands))
            }
            Some(stands) => {
                self.check_store()?;
                Ok(self.put(Allotment { state, ..stands }))
            }
        }
    }

    /// Puts what is held to use. Asked again, it answers what stands.
    ///
    /// # Errors
    /// When that hold is not there, or the time is not one for what it is of.
    pub fn commit(
        &mut self,
        now: Moment,
        mediator: MediatorId,
        commit: &Commit,
    ) -> Result<Answer, LeaseError> {
        let Commit { id, serial, for_ms } = *commit;
        let stands = self
            .standing(now, mediator, id)
            .filter(|stands| stands.serial == serial)
            .ok_or(LeaseError::Absent { id })?;
        if matches!(stands.state, State::Committed { .. }) {
            return Ok(self.answer(stands));
        }
        let until = match (Kind::of(&stands.resources), for_ms) {
            (Some(Kind::Space), None) => None,
            (Some(Kind::Space), Some(_)) => return Err(LeaseError::SpaceWithEnd { id }),
            (_, Some(for_ms)) => Some(end(now, for_ms, self.limits.lease_ms)?),
            (_, None) => return Err(LeaseError::RatesWithoutEnd { id }),
        };
        self.check_store()?;
        Ok(self.put(Allotment { state: State::Committed { until }, ..stands }))
    }

    /// Prolongs committed rates until `for_ms` milliseconds from now, or as they were if that is
    /// longer.
    ///
    /// # Errors
    /// When that lease is not there, has no end, or the time may not be asked for.
    pub fn renew(
        &mut self,
        now: Moment,
        mediator: MediatorId,
        id: AllotmentId,
        for_ms: u64,
    ) -> Result<Answer, LeaseError> {
        let stands = self.standing(now, mediator, id).ok_or(LeaseError::Absent { id })?;
        let before = match stands.state {
            State::Held { .. } => return Err(LeaseError::Held { id }),
            State::Committed { until: None } => return Err(LeaseError::SpaceWithEnd { id }),
            State::Committed { until: Some(before) } => before,
        };
        let until = end(now, for_ms, self.limits.lease_ms)?;
        if until <= before {
            return Ok(self.answer(stands));
        }
        self.check_store()?;
        Ok(self.put(Allotment { state: State::Committed { until: Some(until) }, ..stands }))
    }

    /// Gives something back, held or committed; nothing when it is not there.
    ///
    /// # Errors
    /// When the store is behind.
    pub fn release(&mut self, mediator: MediatorId, id: AllotmentId) -> Result<Released, Busy> {
        let found = self.book.get(&(mediator, id)).map(Allotment::key);
        self.remove_all(found.as_slice())
    }

    /// Gives back what a mediator has for a segment: all of it, or what is for a generation before
    /// `fence`, when the segment's generation was raised to that.
    ///
    /// # Errors
    /// When the store is behind.
    pub fn release_segment(
        &mut self,
        mediator: MediatorId,
        segment: SegmentId,
        fence: Option<Generation>,
    ) -> Result<Released, Busy> {
        let fenced = |entry: &&Allotment| match (fence, entry.generation) {
            (None, _) => true,
            (Some(fence), Some(generation)) => generation < fence,
            (Some(_), None) => false,
        };
        let found = self.book.for_segment(mediator, segment).filter(fenced);
        let found: Vec<Key> = found.map(Allotment::key).collect();
        self.remove_all(&found)
    }

    /// Removes what is over, and shortens what ends later than anything booked now could, because
    /// the clock was set back: some of it, until [`Ledger::next_timeout`] is later than now.
    /// What is over has no effect before it is removed, but is in the sums and in what is stored;
    /// and a hold for which too little is left looks at all of it. So a shell calls this when it
    /// is time, before it takes a request, and until all is done after it restored a ledger.
    pub fn expire(&mut self, now: Moment) {
        if self.check_store().is_err() {
            return;
        }
        for kind in [Kind::Space, Kind::Rates] {
            let over = self.book.due(kind, now).take(EXPIRE_MAX).map(Allotment::key);
            for (mediator, id) in over.collect::<Vec<_>>() {
                self.change(Change::Remove { mediator, id });
            }
            let latest = now.after_ms(self.limits.lease_ms);
            let late = self.book.ending_after(kind, latest).take(EXPIRE_MAX).copied();
            for mut entry in late.collect::<Vec<_>>() {
                entry.state = match entry.state {
                    State::Held { .. } => State::Held { until: now.after_ms(self.limits.hold_ms) },
                    State::Committed { .. } => State::Committed { until: Some(latest) },
                };
                self.change(Change::Put(entry));
            }
        }
    }

    /// When [`Ledger::expire`] has something to do, perhaps now or before, if ever. To be asked
    /// again after each call and after the clock was set; none while the store is behind.
    #[must_use]
    pub fn next_timeout(&self, now: Moment) -> Option<Moment> {
        self.check_store().ok()?;
        let latest = now.after_ms(self.limits.lease_ms);
        let late = |kind| self.book.ending_after(kind, latest).next().is_some();
        if late(Kind::Space) || late(Kind::Rates) {
            return Some(now);
        }
        self.book.first_end()
    }

    /// The next change to be stored, after all those before it.
    pub fn poll_change(&mut self) -> Option<(Order, Change)> {
        let next = self.unstored.get(self.handed)?;
        self.handed += 1;
        Some((next.order, next.change))
    }

    /// All changes up to this one are stored, for good.
    ///
    /// # Panics
    /// When it was not handed out yet.
    pub fn handle_stored(&mut self, order: Order) {
        assert!(order <= self.last, "{order:?} stored, but {:?} was the last", self.last);
        while let Some(first) = self.unstored.front().filter(|first| first.order <= order) {
            assert!(self.handed > 0, "stored before it was to be: {first:?}");
            self.handed -= 1;
            self.unstored.pop_front();
        }
    }

    /// Takes back all that is not stored: none of it is in the store, nor will be. All answers
    /// that wait are to become errors: their orders never count as stored.
    pub fn handle_store_failed(&mut self) {
        while let Some(Unstored { change, before, .. }) = self.unstored.pop_back() {
            self.book.set(change.key(), before);
        }
        self.handed = 0;
        self.last.failures += 1;
    }

    /// Whether an answer of this order may leave. Never, when the store failed since.
    #[must_use]
    pub fn is_stored(&self, order: Order) -> bool {
        order.failures == self.last.failures
            && self.unstored.front().is_none_or(|first| first.order > order)
    }

    /// What can be booked yet for this, if nothing ends or is released.
    #[must_use]
    pub fn left(&self, purpose: Purpose) -> Resources {
        self.left_beside(self.book.sums(), purpose)
    }

    /// By how much more is booked than the agent has.
    #[must_use]
    pub const fn overbooked(&self) -> Resources {
        self.book.sums().all.resources.saturating_sub(self.capacity)
    }

    /// All that is booked.
    #[must_use]
    pub const fn booked(&self) -> Booked {
        self.book.sums().all
    }

    /// What is booked for each mediator that has something, by id.
    pub fn mediators(&self) -> impl Iterator<Item = (MediatorId, Booked)> {
        self.book.mediators()
    }

    /// All allotments, by mediator and id.
    pub fn entries(&self) -> impl Iterator<Item = &Allotment> {
        self.book.entries()
    }

    /// What stands by that name, over or not.
    #[must_use]
    pub fn get(&self, mediator: MediatorId, id: AllotmentId) -> Option<&Allotment> {
        self.book.get(&(mediator, id))
    }

    /// A mediator's allotments by id, from the one after `after` or from the first: a page of a
    /// list, which its caller bounds.
    pub fn page(
        &self,
        mediator: MediatorId,
        after: Option<AllotmentId>,
    ) -> impl Iterator<Item = &Allotment> {
        self.book.after(mediator, after)
    }

    /// What stands by that name, and is not over.
    fn standing(&self, now: Moment, mediator: MediatorId, id: AllotmentId) -> Option<Allotment> {
        self.book.get(&(mediator, id)).filter(|entry| !entry.is_over(now)).copied()
    }

    /// Takes something new into the book.
    fn enter(
        &mut self,
        now: Moment,
        mediator: MediatorId,
        hold: &Hold,
        state: State,
    ) -> Result<Answer, HoldError> {
        let kind = Kind::of(&hold.resources).ok_or(HoldError::Mixed { id: hold.id })?;
        self.check_store()?;
        for (mediator, id) in self.make_room(now, mediator, hold, kind)? {
            self.change(Change::Remove { mediator, id });
        }
        // Larger than before a restart too, when all that had serials then is gone: no agent holds
        // a million times a second for long.
        self.serial = self.serial.saturating_add(1).max(now.0.saturating_mul(1000));
        let Hold { id, segment, generation, purpose, resources, for_ms: _ } = *hold;
        let serial = self.serial;
        let allotment =
            Allotment { mediator, id, segment, generation, purpose, resources, serial, state };
        let answer = self.put(allotment);
        let over = self.overbooked();
        assert!(!overlap(&over, &resources), "{resources:?} booked, now too much by {over:?}");
        Ok(answer)
    }

    /// Finds what is over and stands in the way of this. Removing that leaves room for it.
    fn make_room(
        &self,
        now: Moment,
        mediator: MediatorId,
        hold: &Hold,
        kind: Kind,
    ) -> Result<Vec<Key>, HoldError> {
        let per_segment = self.limits.entries_per_segment;
        let for_segment = self.book.for_segment(mediator, hold.segment);
        let for_segment = for_segment.filter(|entry| !entry.is_over(now)).take(per_segment);
        if for_segment.count() >= per_segment {
            return Err(HoldError::TooMany { whose: Whose::Segment, limit: per_segment });
        }
        let key = (mediator, hold.id);
        let mut room = Room {
            mediator,
            sums: *self.book.sums(),
            own: self.book.of(mediator),
            without: Vec::new(),
        };
        // What has the same name goes in any case.
        self.book.get(&key).into_iter().for_each(|entry| room.clear(entry));
        let over = [kind, kind.other()].into_iter().flat_map(|kind| self.book.due(kind, now));
        for entry in over.filter(|entry| entry.key() != key) {
            if self.refusal(&room, hold).is_none() {
                break;
            }
            room.clear(entry);
        }
        match self.refusal(&room, hold) {
            None => Ok(room.without),
            Some(HoldError::Short(short)) => {
                let next = self.book.ending_after(kind, now).next();
                Err(Short { frees_at: next.and_then(Allotment::until), ..short }.into())
            }
            Some(refusal) => Err(refusal),
        }
    }

    /// Why this cannot be booked, if so.
    fn refusal(&self, room: &Room, hold: &Hold) -> Option<HoldError> {
        let Limits { entries, entries_per_mediator, .. } = self.limits;
        let (all, asked) = (room.sums.all, hold.resources);
        let left = self.left_beside(&room.sums, hold.purpose);
        if !left.holds(&asked) {
            let overbooked = all.resources.saturating_sub(self.capacity);
            return Some(Short { asked, left, overbooked, frees_at: None }.into());
        }
        let too_many = |whose, limit| Some(HoldError::TooMany { whose, limit });
        if all.entries >= entries {
            return too_many(Whose::Agent, entries);
        }
        if room.own.entries >= entries_per_mediator {
            return too_many(Whose::Mediator, entries_per_mediator);
        }
        None
    }

    /// What can be booked for this beside what sums to that.
    fn left_beside(&self, sums: &Sums, purpose: Purpose) -> Resources {
        let left = self.capacity.saturating_sub(sums.all.resources);
        match purpose {
            Purpose::Rebuild => left,
            Purpose::Client => {
                let theirs = self.capacity.saturating_sub(self.kept);
                let theirs = theirs.saturating_sub(sums.clients);
                // The lesser of each.
                left.saturating_sub(left.saturating_sub(theirs))
            }
        }
    }

    fn check_store(&self) -> Result<(), Busy> {
        match self.unstored.len() < UNSTORED_MAX {
            true => Ok(()),
            false => Err(Busy { limit: UNSTORED_MAX }),
        }
    }

    fn remove_all(&mut self, keys: &[Key]) -> Result<Released, Busy> {
        if !keys.is_empty() {
            self.check_store()?;
        }
        for &(mediator, id) in keys {
            self.change(Change::Remove { mediator, id });
        }
        Ok(Released { entries: keys.len(), order: self.last })
    }

    fn put(&mut self, allotment: Allotment) -> Answer {
        let before = self.book.get(&allotment.key());
        // A copy of an old request must not pass for a new one.
        let is_new = before.is_none_or(|before| before.serial <= allotment.serial);
        assert!(is_new, "{before:?} gives way to {allotment:?}");
        self.change(Change::Put(allotment));
        self.answer(allotment)
    }

    fn change(&mut self, change: Change) {
        let before = self.book.set(change.key(), change.allotment());
        self.last.number += 1;
        self.unstored.push_back(Unstored { order: self.last, change, before });
    }

    const fn answer(&self, allotment: Allotment) -> Answer {
        Answer { allotment, order: self.last }
    }
}

/// What is booked, without some of what is over.
struct Room {
    mediator: MediatorId,
    sums: Sums,
    /// The mediator's that asks.
    own: Booked,
    without: Vec<Key>,
}

impl Room {
    fn clear(&mut self, entry: &Allotment) {
        self.sums.take(entry);
        if entry.mediator == self.mediator {
            self.own.take(&entry.resources);
        }
        self.without.push(entry.key());
    }
}

fn end(now: Moment, for_ms: u64, longest_ms: u64) -> Result<Moment, TermError> {
    if for_ms == 0 || for_ms > longest_ms {
        return Err(TermError { asked_ms: for_ms, longest_ms });
    }
    Ok(now.after_ms(for_ms))
}

/// Whether there is something of one kind in both.
const fn overlap(one: &Resources, other: &Resources) -> bool {
    (one.space_bytes > 0 && other.space_bytes > 0)
        || (one.device.0 > 0 && other.device.0 > 0)
        || (one.network.0 > 0 && other.network.0 > 0)
}
