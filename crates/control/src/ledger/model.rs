//! The ledger against a list that is summed up anew each time: any requests of several mediators,
//! while time goes on, stores fail and the agent is killed.

use std::{collections::BTreeMap, vec, vec::Vec};

use proptest::prelude::*;

use super::{tests::*, *};
use crate::units::Rate;

/// Small enough that all of them are met.
const LIMITS: Limits = Limits {
    entries: 9,
    entries_per_mediator: 5,
    entries_per_segment: 3,
    hold_ms: 40,
    lease_ms: 90,
};

/// All that stands, and nothing that is over.
#[derive(Debug, Clone, Default)]
struct Slow(Vec<Allotment>);

impl Slow {
    fn find(&self, mediator: MediatorId, id: AllotmentId) -> Option<Allotment> {
        self.0.iter().find(|entry| entry.key() == (mediator, id)).copied()
    }

    fn sum(&self, counts: impl Fn(&Allotment) -> bool) -> Resources {
        let all = self.0.iter().filter(|entry| counts(entry));
        all.fold(Resources::default(), |sum, entry| sum.checked_add(entry.resources).unwrap())
    }

    fn put(&mut self, allotment: Allotment) {
        self.0.retain(|entry| entry.key() != allotment.key());
        self.0.push(allotment);
        self.0.sort_by_key(Allotment::key);
    }
}

fn each(one: Resources, other: Resources, what: impl Fn(u64, u64) -> u64) -> Resources {
    some(
        what(one.space_bytes, other.space_bytes),
        what(one.device.0, other.device.0),
        what(one.network.0, other.network.0),
    )
}

/// An agent with its store, and what is to be true of it.
struct World {
    now: Moment,
    capacity: Resources,
    kept: Resources,
    ledger: Ledger,
    store: BTreeMap<Key, Allotment>,
    /// Handed out to be stored, and not stored yet.
    on_the_way: VecDeque<(Order, Change)>,
    slow: Slow,
    /// The last order that is stored.
    stored: Order,
    /// After each operation the last order, and what stands then.
    past: Vec<(Order, Slow)>,
}

impl World {
    fn new(capacity: Resources, kept: Resources) -> Self {
        Self {
            now: Moment(1_000),
            capacity,
            kept,
            ledger: Ledger::new(capacity, kept, LIMITS),
            store: BTreeMap::new(),
            on_the_way: VecDeque::new(),
            slow: Slow::default(),
            stored: Order::default(),
            past: Vec::from([(Order::default(), Slow::default())]),
        }
    }

    fn do_step(&mut self, step: &Step) {
        match *step {
            Step::Pass(ms) => {
                self.now = self.now.after_ms(ms);
                self.slow.0.retain(|entry| !entry.is_over(self.now));
            }
            Step::Hold(mediator, hold) => self.hold(mediator, &hold),
            Step::Book(mediator, hold, lease_ms) => self.book(mediator, &hold, lease_ms),
            Step::Commit(mediator, id, stale, for_ms) => self.commit(mediator, id, stale, for_ms),
            Step::Renew(mediator, id, for_ms) => self.renew(mediator, id, for_ms),
            Step::Release(mediator, id) => {
                let stood = self.slow.find(mediator, id);
                let released = self.ledger.release(mediator, id).unwrap();
                assert!(stood.is_none() || released.entries == 1);
                self.slow.0.retain(|entry| entry.key() != (mediator, id));
                assert_eq!(self.ledger.release(mediator, id).unwrap().entries, 0);
            }
            Step::ReleaseSegment(mediator, segment, fence) => {
                let released = self.ledger.release_segment(mediator, segment, fence).unwrap();
                let goes = |entry: &Allotment| {
                    (entry.mediator, entry.segment) == (mediator, segment)
                        && (fence.is_none() || entry.generation.is_some_and(|it| Some(it) < fence))
                };
                let stood = self.slow.0.iter().filter(|entry| goes(entry)).count();
                assert!(released.entries >= stood);
                self.slow.0.retain(|entry| !goes(entry));
            }
            Step::Expire => self.expire(),
            Step::Capacity(capacity, kept) => {
                (self.capacity, self.kept) = (capacity, kept);
                self.ledger.set_capacity(capacity, kept);
            }
            Step::Store(count) => {
                if let Some(order) = self.write(count) {
                    self.ledger.handle_stored(order);
                    assert!(self.ledger.is_stored(order));
                    self.stored = order;
                }
            }
            Step::Fail => {
                self.ledger.handle_store_failed();
                self.settle();
                self.stored = self.ledger.last;
            }
            Step::Crash(count) => {
                // Nobody hears of what is stored here.
                self.stored = self.write(count).unwrap_or(self.stored);
                let all = self.store.values().copied();
                self.ledger = Ledger::restore(self.capacity, self.kept, LIMITS, all).unwrap();
                self.settle();
                self.stored = Order::default();
            }
        }
        self.past.push((self.ledger.last, self.slow.clone()));
        self.check();
    }

    fn hold(&mut self, mediator: MediatorId, hold: &Hold) {
        let expected = self.expect_hold(mediator, hold);
        let answer = self.ledger.hold(self.now, mediator, hold);
        match (expected, &answer) {
            (Ok(mut expected), Ok(answer)) => {
                let new = self.slow.find(mediator, hold.id).is_none();
                if new {
                    let largest = self.slow.0.iter().map(|entry| entry.serial).max();
                    assert!(largest.is_none_or(|largest| answer.allotment.serial > largest));
                    expected.serial = answer.allotment.serial;
                    self.slow.put(expected);
                }
                assert_eq!(answer.allotment, expected);
            }
            (expected, _) => assert_eq!(expected.err(), answer.clone().err()),
        }
        if answer.is_ok() {
            assert_eq!(self.ledger.hold(self.now, mediator, hold), answer);
        }
    }

    fn book(&mut self, mediator: MediatorId, hold: &Hold, lease_ms: u64) {
        let (now, id) = (self.now, hold.id);
        let stood = self.slow.find(mediator, id);
        // As a hold of the shortest time that is committed in the same moment.
        let brief = Hold { for_ms: 1, ..*hold };
        let expected =
            match (hold.resources.space_bytes, hold.resources.device, hold.resources.network) {
                (1.., Rate(0), Rate(0)) => Err(HoldError::Space { id }),
                _ => self.lease_end(lease_ms).map_err(|_| {
                    TermError { asked_ms: lease_ms, longest_ms: LIMITS.lease_ms }.into()
                }),
            };
        let expected = expected.and_then(|until| {
            let held = self.expect_hold(mediator, &brief)?;
            let state = match held.state {
                State::Held { .. } => State::Committed { until: Some(until) },
                State::Committed { until: before } => {
                    State::Committed { until: before.max(Some(until)) }
                }
            };
            Ok(Allotment { state, ..held })
        });
        let answer = self.ledger.book(now, mediator, hold, lease_ms);
        match (expected, &answer) {
            (Ok(mut expected), Ok(answer)) => {
                if stood.is_none() {
                    expected.serial = answer.allotment.serial;
                }
                assert_eq!(answer.allotment, expected);
                self.slow.put(expected);
                assert_eq!(self.ledger.book(now, mediator, hold, lease_ms), Ok(*answer));
            }
            (expected, _) => assert_eq!(expected.err(), answer.err()),
        }
    }

    /// What a hold should come to, but for its serial.
    fn expect_hold(&self, mediator: MediatorId, hold: &Hold) -> Result<Allotment, HoldError> {
        let Hold { id, segment, generation, purpose, resources, for_ms } = *hold;
        let new = Allotment {
            mediator,
            id,
            segment,
            generation,
            purpose,
            resources,
            serial: 0,
            state: State::Held { until: self.now.after_ms(for_ms) },
        };
        if let Some(stands) = self.slow.find(mediator, id) {
            let like = Allotment { serial: stands.serial, state: stands.state, ..new };
            let different = HoldError::Different(Box::new(stands));
            return if like == stands { Ok(stands) } else { Err(different) };
        }
        if !(1..=LIMITS.hold_ms).contains(&for_ms) {
            return Err(TermError { asked_ms: for_ms, longest_ms: LIMITS.hold_ms }.into());
        }
        let space = resources.space_bytes > 0;
        if space == (resources.device.0 + resources.network.0 > 0) {
            return Err(HoldError::Mixed { id });
        }
        let theirs = self.slow.0.iter().filter(|entry| entry.mediator == mediator);
        let too_many = |whose, limit| Err(HoldError::TooMany { whose, limit });
        if theirs.clone().filter(|entry| entry.segment == segment).count()
            >= LIMITS.entries_per_segment
        {
            return too_many(Whose::Segment, LIMITS.entries_per_segment);
        }
        let all = self.slow.sum(|_| true);
        let clients = self.slow.sum(|entry| entry.purpose == Purpose::Client);
        let mut left = each(self.capacity, all, u64::saturating_sub);
        if purpose == Purpose::Client {
            let apart = each(self.capacity, self.kept, u64::saturating_sub);
            left = each(left, each(apart, clients, u64::saturating_sub), u64::min);
        }
        if !left.holds(&resources) {
            let overbooked = each(all, self.capacity, u64::saturating_sub);
            let like = self.slow.0.iter().filter(|it| (it.resources.space_bytes > 0) == space);
            let frees_at = like.filter_map(Allotment::until).min();
            return Err(Short { asked: resources, left, overbooked, frees_at }.into());
        }
        if self.slow.0.len() >= LIMITS.entries {
            return too_many(Whose::Agent, LIMITS.entries);
        }
        if theirs.count() >= LIMITS.entries_per_mediator {
            return too_many(Whose::Mediator, LIMITS.entries_per_mediator);
        }
        Ok(new)
    }

    fn commit(&mut self, mediator: MediatorId, id: AllotmentId, stale: bool, for_ms: Option<u64>) {
        let stands = self.slow.find(mediator, id);
        // Without one, any serial is wrong.
        let serial = stands.map_or(7, |stands| stands.serial - u64::from(stale));
        let expected = match stands.filter(|_| !stale) {
            None => Err(LeaseError::Absent { id }),
            Some(stands) if matches!(stands.state, State::Committed { .. }) => Ok(stands),
            Some(stands) => {
                let until = match (stands.resources.space_bytes > 0, for_ms) {
                    (true, None) => Ok(None),
                    (true, Some(_)) => Err(LeaseError::SpaceWithEnd { id }),
                    (false, None) => Err(LeaseError::RatesWithoutEnd { id }),
                    (false, Some(ms)) => self.lease_end(ms).map(Some),
                };
                until.map(|until| Allotment { state: State::Committed { until }, ..stands })
            }
        };
        let commit = Commit { id, serial, for_ms };
        let answer = self.ledger.commit(self.now, mediator, &commit);
        self.expect(expected, &answer);
        if answer.is_ok() {
            assert_eq!(self.ledger.commit(self.now, mediator, &commit), answer);
        }
    }

    fn renew(&mut self, mediator: MediatorId, id: AllotmentId, for_ms: u64) {
        let expected = match self.slow.find(mediator, id) {
            None => Err(LeaseError::Absent { id }),
            Some(stands) => match stands.state {
                State::Held { .. } => Err(LeaseError::Held { id }),
                State::Committed { until: None } => Err(LeaseError::SpaceWithEnd { id }),
                State::Committed { until: Some(before) } => self.lease_end(for_ms).map(|until| {
                    let until = Some(until.max(before));
                    Allotment { state: State::Committed { until }, ..stands }
                }),
            },
        };
        let answer = self.ledger.renew(self.now, mediator, id, for_ms);
        self.expect(expected, &answer);
        if answer.is_ok() {
            assert_eq!(self.ledger.renew(self.now, mediator, id, for_ms), answer);
        }
    }

    fn lease_end(&self, ms: u64) -> Result<Moment, LeaseError> {
        let wrong = TermError { asked_ms: ms, longest_ms: LIMITS.lease_ms };
        if (1..=LIMITS.lease_ms).contains(&ms) {
            Ok(self.now.after_ms(ms))
        } else {
            Err(wrong.into())
        }
    }

    fn expect(
        &mut self,
        expected: Result<Allotment, LeaseError>,
        answer: &Result<Answer, LeaseError>,
    ) {
        assert_eq!(expected, answer.clone().map(|answer| answer.allotment));
        if let Ok(expected) = expected {
            self.slow.put(expected);
        }
    }

    fn expire(&mut self) {
        if self.ledger.next_timeout(self.now).is_some_and(|next| next <= self.now) {
            self.ledger.expire(self.now);
        }
        // Nothing is leaked, and nothing is lost.
        assert!(self.ledger.entries().eq(&self.slow.0));
        let next = self.slow.0.iter().filter_map(Allotment::until).min();
        assert_eq!(self.ledger.next_timeout(self.now), next);
    }

    /// Puts so many changes into the store.
    fn write(&mut self, count: usize) -> Option<Order> {
        self.on_the_way.extend(std::iter::from_fn(|| self.ledger.poll_change()));
        let mut last = None;
        for (order, change) in self.on_the_way.drain(..count.min(self.on_the_way.len())) {
            match change {
                Change::Put(allotment) => self.store.insert(allotment.key(), allotment),
                Change::Remove { mediator, id } => self.store.remove(&(mediator, id)),
            };
            last = Some(order);
        }
        last
    }

    /// What is stored is left of the ledger, and that is what each operation did that is stored.
    fn settle(&mut self) {
        assert!(self.ledger.entries().eq(self.store.values()));
        let last = self.past.iter().rposition(|(order, _)| *order <= self.stored).unwrap();
        let live = |entries: &[Allotment]| -> BTreeMap<Key, Allotment> {
            let live = entries.iter().filter(|entry| !entry.is_over(self.now));
            live.map(|entry| (entry.key(), *entry)).collect()
        };
        let left = live(&self.ledger.entries().copied().collect::<Vec<_>>());
        let before = live(&self.past[last].1.0);
        if self.past[last].0 == self.stored {
            assert_eq!(left, before);
        } else {
            // An operation of several changes, of which some are there.
            let after = live(&self.past[last + 1].1.0);
            for (key, entry) in &left {
                assert!([before.get(key), after.get(key)].contains(&Some(entry)));
            }
            for (key, entry) in before.iter().filter(|(key, entry)| after.get(key) == Some(entry)) {
                assert_eq!(left.get(key), Some(entry));
            }
        }
        self.slow = Slow(left.into_values().collect());
        self.on_the_way.clear();
        self.past.clear();
    }

    fn check(&self) {
        // Its sums and orders are those of its allotments.
        let all = self.ledger.entries().copied();
        let anew = Ledger::restore(self.capacity, self.kept, LIMITS, all).unwrap();
        assert_eq!(anew.book, self.ledger.book);
        // What is not over is what stands.
        let standing = self.ledger.entries().filter(|entry| !entry.is_over(self.now));
        assert!(standing.eq(&self.slow.0));
    }
}

#[derive(Debug, Clone)]
enum Step {
    Pass(u64),
    Hold(MediatorId, Hold),
    Book(MediatorId, Hold, u64),
    /// The flag: of the hold before.
    Commit(MediatorId, AllotmentId, bool, Option<u64>),
    Renew(MediatorId, AllotmentId, u64),
    Release(MediatorId, AllotmentId),
    ReleaseSegment(MediatorId, SegmentId, Option<Generation>),
    Expire,
    Capacity(Resources, Resources),
    /// So many changes are stored, and that is known.
    Store(usize),
    Fail,
    /// So many changes are stored, and that is never known.
    Crash(usize),
}

fn any_mediator() -> impl Strategy<Value = MediatorId> {
    (0..3_u8).prop_map(mediator)
}

fn any_id() -> impl Strategy<Value = AllotmentId> {
    (0..8_u8).prop_map(id)
}

fn any_resources() -> impl Strategy<Value = Resources> {
    prop_oneof![
        4 => (1..50_u64).prop_map(|space| some(space, 0, 0)),
        6 => (0..50_u64, 0..50_u64).prop_map(|(device, network)| some(0, device, network)),
        1 => (0..3_u64, 0..3_u64, 0..3_u64).prop_map(|it| some(it.0, it.1, it.2)),
    ]
}

fn any_hold() -> impl Strategy<Value = Hold> {
    let generation = prop::option::of((0..4_u64).prop_map(Generation));
    let purpose = prop_oneof![3 => Just(Purpose::Client), 1 => Just(Purpose::Rebuild)];
    (any_id(), 0..3_u8, generation, purpose, any_resources(), 0..42_u64).prop_map(
        |(id, at, generation, purpose, resources, for_ms)| Hold {
            id,
            segment: segment(at),
            generation,
            purpose,
            resources,
            for_ms,
        },
    )
}

fn any_capacity() -> impl Strategy<Value = (Resources, Resources)> {
    // The number of allotments is what stops them in one case in three.
    let each = || prop_oneof![2 => 0..150_u64, 1 => Just(1_000)];
    let capacity = (each(), each(), each()).prop_map(|it| some(it.0, it.1, it.2));
    let kept = (0..40_u64, 0..40_u64, 0..40_u64).prop_map(|it| some(it.0, it.1, it.2));
    (capacity, kept)
}

fn any_step() -> impl Strategy<Value = Step> {
    let for_ms = || prop_oneof![8 => 1..91_u64, 1 => Just(0), 1 => Just(91)];
    let fence = prop::option::of((0..4_u64).prop_map(Generation));
    prop_oneof![
        5 => (0..20_u64).prop_map(Step::Pass),
        12 => (any_mediator(), any_hold()).prop_map(|(mediator, hold)| Step::Hold(mediator, hold)),
        6 => (any_mediator(), any_hold(), for_ms())
            .prop_map(|(mediator, hold, lease_ms)| Step::Book(mediator, hold, lease_ms)),
        12 => (any_mediator(), any_id(), prop::bool::weighted(0.1), prop::option::of(for_ms()))
            .prop_map(|it| Step::Commit(it.0, it.1, it.2, it.3)),
        4 => (any_mediator(), any_id(), for_ms()).prop_map(|it| Step::Renew(it.0, it.1, it.2)),
        3 => (any_mediator(), any_id()).prop_map(|it| Step::Release(it.0, it.1)),
        1 => (any_mediator(), (0..3_u8).prop_map(segment), fence)
            .prop_map(|it| Step::ReleaseSegment(it.0, it.1, it.2)),
        3 => Just(Step::Expire),
        1 => any_capacity().prop_map(|(capacity, kept)| Step::Capacity(capacity, kept)),
        4 => (0..6_usize).prop_map(Step::Store),
        1 => Just(Step::Fail),
        1 => (0..6_usize).prop_map(Step::Crash),
    ]
}

/// A step at any moment, also one before that of the last step.
fn do_any_time(ledger: &mut Ledger, step: &Step, now: Moment) {
    match *step {
        Step::Hold(mediator, hold) => {
            let _ = ledger.hold(now, mediator, &hold);
        }
        Step::Book(mediator, hold, lease_ms) => {
            let _ = ledger.book(now, mediator, &hold, lease_ms);
        }
        Step::Commit(mediator, id, _, for_ms) => {
            let held = ledger.page(mediator, None).find(|entry| entry.id == id);
            let serial = held.map_or(0, |held| held.serial);
            let _ = ledger.commit(now, mediator, &Commit { id, serial, for_ms });
        }
        Step::Renew(mediator, id, for_ms) => {
            let _ = ledger.renew(now, mediator, id, for_ms);
        }
        Step::Release(mediator, id) => {
            let _ = ledger.release(mediator, id);
        }
        Step::Pass(_)
        | Step::ReleaseSegment(..)
        | Step::Expire
        | Step::Capacity(..)
        | Step::Store(_)
        | Step::Fail
        | Step::Crash(_) => {
            ledger.expire(now);
            let latest = now.after_ms(LIMITS.lease_ms);
            let mut until = ledger.entries().filter_map(Allotment::until);
            assert!(until.all(|until| now < until && until <= latest));
            assert!(ledger.next_timeout(now).is_none_or(|next| next > now));
        }
    }
}

proptest! {
    #[test]
    fn a_ledger_is_the_list_that_it_stands_for(
        (capacity, kept) in any_capacity(),
        steps in prop::collection::vec(any_step(), 1..300),
    ) {
        let mut world = World::new(capacity, kept);
        for step in &steps {
            world.do_step(step);
        }
    }

    #[test]
    fn whatever_the_clock_says_nothing_is_overbooked_or_stays_too_long(
        (capacity, kept) in any_capacity(),
        steps in prop::collection::vec((any_step(), 0..2_000_u64), 1..100),
    ) {
        let mut ledger = Ledger::new(capacity, kept, LIMITS);
        for (step, now) in &steps {
            do_any_time(&mut ledger, step, Moment(*now));
            prop_assert_eq!(ledger.overbooked(), Resources::default());
        }
    }
}
