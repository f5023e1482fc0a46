//! Bookings on real ledgers, over a network that loses, doubles and delays, with mediators and
//! agents that crash.

use super::*;
use crate::{
    ledger::{Allotment, Change, Ledger, Limits, Purpose, State},
    units::{MediatorId, Rate, Resources, SegmentId},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{collections::BTreeMap, string::String, vec, vec::Vec};

const MEDIATOR: MediatorId = MediatorId([7; 16]);
const CAPACITY: Resources = Resources { space_bytes: 1000, device: Rate(100), network: Rate(100) };
const HOLD_MS: u64 = 5_000;
const PATIENCE_MS: u64 = 3_000;
const LEASE_MS: u64 = 60_000;

fn agent(at: usize) -> AgentId {
    AgentId([u8::try_from(at).unwrap() + 1; 16])
}

#[derive(Debug, Clone)]
enum Message {
    Ask(Action),
    Held(AgentId, AllotmentId, u64),
    Refused(AgentId, AllotmentId),
    Committed(AgentId, AllotmentId),
    Absent(AgentId, AllotmentId),
    Released(AgentId, AllotmentId),
}

struct Agent {
    ledger: Ledger,
    stored: BTreeMap<AllotmentId, Allotment>,
}

impl Agent {
    fn new() -> Self {
        let ledger = Ledger::new(CAPACITY, Resources::default(), Limits::default());
        Self { ledger, stored: BTreeMap::new() }
    }

    fn store(&mut self) {
        while let Some((order, change)) = self.ledger.poll_change() {
            match change {
                Change::Put(allotment) => self.stored.insert(allotment.id, allotment),
                Change::Remove { id, .. } => self.stored.remove(&id),
            };
            self.ledger.handle_stored(order);
        }
    }

    fn crash(&mut self) {
        let stored = self.stored.values().copied();
        let none = Resources::default();
        self.ledger = Ledger::restore(CAPACITY, none, Limits::default(), stored).unwrap();
    }
}

struct World {
    rng: StdRng,
    now: Moment,
    agents: Vec<Agent>,
    /// One that answers nothing for ever.
    dead: Option<usize>,
    network: Vec<(Moment, Message)>,
    stored: BTreeMap<PlanId, Record>,
    /// What is booked at once, if that is stored; and whom it has to be ended with.
    plan: Option<Vec<Part>>,
    booking: Option<Booking<String>>,
    told: Option<Outcome<String>>,
    trouble: bool,
}

impl World {
    fn new(seed: u64, agents: usize) -> Self {
        Self {
            rng: StdRng::seed_from_u64(seed),
            now: Moment(1_000_000),
            agents: (0..agents).map(|_| Agent::new()).collect(),
            dead: None,
            network: Vec::new(),
            stored: BTreeMap::new(),
            plan: None,
            booking: None,
            told: None,
            trouble: true,
        }
    }

    /// Some agents, perhaps a dead one among them, and what to ask of them: now and then too much.
    fn at_random(seed: u64) -> (Self, Vec<Part>) {
        let agents = 1 + usize::try_from(seed % 5).unwrap();
        let mut world = Self::new(seed, agents);
        if world.rng.random_ratio(1, 6) {
            world.dead = Some(world.rng.random_range(0..agents));
        }
        let rate = if world.rng.random_ratio(1, 8) { 101 } else { 40 };
        let parts = world.parts(rate);
        (world, parts)
    }

    fn parts(&mut self, rate: u64) -> Vec<Part> {
        (0..self.agents.len())
            .flat_map(|at| {
                let rates = Resources { space_bytes: 0, device: Rate(rate), network: Rate(rate) };
                let space = Resources { space_bytes: 300, ..Resources::default() };
                [(space, None), (rates, Some(LEASE_MS))].map(|(resources, lease_ms)| Part {
                    agent: agent(at),
                    hold: Hold {
                        id: AllotmentId(self.rng.random()),
                        segment: SegmentId([9; 16]),
                        generation: None,
                        purpose: Purpose::Client,
                        resources,
                        for_ms: HOLD_MS,
                    },
                    lease_ms,
                })
            })
            .collect()
    }

    fn send(&mut self, message: Message) {
        let copies = if self.trouble { [0, 1, 1, 1, 2][self.rng.random_range(0..5)] } else { 1 };
        for _ in 0..copies {
            let most = if self.trouble && self.rng.random_ratio(1, 8) { 20_000 } else { 300 };
            let at = self.now.after_ms(self.rng.random_range(0..most));
            self.network.push((at, message.clone()));
        }
    }

    /// Does what the mediator wants done, unless it crashes on the way.
    fn work(&mut self) {
        while let Some(action) = self.booking.as_mut().and_then(Booking::poll_action) {
            if self.trouble && self.rng.random_ratio(1, 60) {
                return self.crash_mediator();
            }
            match action {
                Action::Store(record) => {
                    if record.decision == Decision::Booked {
                        self.check_all_have(&record);
                    }
                    self.stored.insert(record.id, record);
                    if self.trouble && self.rng.random_ratio(1, 20) {
                        return self.crash_mediator();
                    }
                    if let Some(booking) = &mut self.booking {
                        booking.handle_stored(self.now);
                    }
                }
                Action::Forget(id) => {
                    self.stored.remove(&id);
                }
                ask @ (Action::Hold(..)
                | Action::Commit(..)
                | Action::Book(..)
                | Action::Release(..)) => {
                    self.send(Message::Ask(ask));
                }
            }
        }
        let Some(booking) = &self.booking else { return };
        if let Some(outcome) = booking.outcome() {
            if let Some(told) = &self.told {
                assert_eq!(told, outcome, "an outcome stays");
            }
            self.told = Some(outcome.clone());
            if *outcome != Outcome::Booked {
                self.end_plan();
            }
        }
    }

    /// What is booked at once is released wherever it may be.
    fn end_plan(&mut self) {
        let Some(parts) = self.plan.take() else { return };
        let part = |part: &Part| RecordPart {
            agent: part.agent,
            allotment: part.hold.id,
            serial: 0,
            lease_ms: None,
        };
        let (id, decision) = (PlanId([2; 16]), Decision::Release);
        let record = Record { id, decision, parts: parts.iter().map(part).collect() };
        self.stored.insert(id, record.clone());
        self.booking = Booking::resume(self.now, &record, PATIENCE_MS);
    }

    fn crash_mediator(&mut self) {
        self.booking = None;
        self.told = None;
        if self.stored.is_empty() {
            self.end_plan();
        }
        let record = self.stored.values().next().cloned();
        self.booking = record.and_then(|record| Booking::resume(self.now, &record, PATIENCE_MS));
    }

    /// Everything that a booking names stands committed, now.
    fn check_all_have(&self, record: &Record) {
        for part in &record.parts {
            let at = usize::from(part.agent.0[0] - 1);
            let stands = self.agents[at].stored.get(&part.allotment);
            let stands =
                stands.map(|one| (one.serial, matches!(one.state, State::Committed { .. })));
            // A lease may end while others are waited for: it is renewed or held anew.
            let is_lease = part.lease_ms.is_some() && stands.is_none();
            // What is booked at once has no serial of a hold.
            let is_its = match self.plan {
                Some(_) => matches!(stands, Some((_, true))),
                None => stands == Some((part.serial, true)),
            };
            assert!(is_its || is_lease, "{part:?}: {stands:?}");
        }
    }

    fn deliver(&mut self, message: Message) {
        let Message::Ask(action) = message else {
            let now = self.now;
            let Some(booking) = &mut self.booking else { return };
            match message {
                Message::Held(agent, id, serial) => booking.handle_held(now, agent, id, serial),
                Message::Refused(agent, id) => booking.handle_refused(now, agent, id, "no".into()),
                Message::Committed(agent, id) => booking.handle_committed(now, agent, id),
                Message::Absent(agent, id) => booking.handle_absent(agent, id),
                Message::Released(agent, id) => booking.handle_released(now, agent, id),
                Message::Ask(_) => {}
            }
            return self.work();
        };
        let (Action::Hold(agent, _)
        | Action::Commit(agent, _)
        | Action::Book(agent, ..)
        | Action::Release(agent, _)) = action
        else {
            return;
        };
        let at = usize::from(agent.0[0] - 1);
        if self.dead == Some(at) {
            return;
        }
        let (now, one) = (self.now, &mut self.agents[at]);
        one.ledger.expire(now);
        let answer = match action {
            Action::Hold(_, hold) => match one.ledger.hold(now, MEDIATOR, &hold) {
                Ok(held) => Message::Held(agent, hold.id, held.allotment.serial),
                Err(_) => Message::Refused(agent, hold.id),
            },
            Action::Book(_, hold, lease_ms) => {
                match one.ledger.book(now, MEDIATOR, &hold, lease_ms) {
                    Ok(_) => Message::Committed(agent, hold.id),
                    Err(_) => Message::Refused(agent, hold.id),
                }
            }
            Action::Commit(_, commit) => match one.ledger.commit(now, MEDIATOR, &commit) {
                Ok(_) => Message::Committed(agent, commit.id),
                Err(_) => Message::Absent(agent, commit.id),
            },
            Action::Release(_, id) => {
                one.ledger.release(MEDIATOR, id).unwrap();
                Message::Released(agent, id)
            }
            Action::Store(_) | Action::Forget(_) => return,
        };
        if self.trouble && self.rng.random_ratio(1, 40) {
            // Before it is stored: nobody hears of it.
            return self.agents[at].crash();
        }
        self.agents[at].store();
        if self.trouble && self.rng.random_ratio(1, 40) {
            self.agents[at].crash();
        }
        self.send(answer);
    }

    /// Until nothing more happens, or so much time has passed.
    fn run(&mut self, for_ms: u64) {
        let end = self.now.after_ms(for_ms);
        self.work();
        loop {
            let timeout = self.booking.as_ref().and_then(Booking::next_timeout);
            let message = self.network.iter().map(|(at, _)| *at).min();
            let Some(next) = [timeout, message].into_iter().flatten().min() else { break };
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            if message == Some(next) {
                let at = self.network.iter().position(|(at, _)| *at == next).unwrap();
                let (_, message) = self.network.swap_remove(at);
                self.deliver(message);
            } else if let Some(booking) = &mut self.booking {
                booking.handle_timeout(self.now);
                self.work();
            }
        }
        self.now = end;
    }

    /// What stands committed, after everything that is held has ended.
    fn rest(&mut self) -> usize {
        let later = self.now.after_ms(HOLD_MS + 1);
        self.now = later;
        let count = |one: &mut Agent| {
            one.ledger.expire(later);
            one.store();
            one.ledger.entries().count()
        };
        self.agents.iter_mut().map(count).sum()
    }

    fn space(&self) -> Vec<u64> {
        self.agents.iter().map(|one| one.ledger.booked().resources.space_bytes).collect()
    }
}

#[test]
fn all_agents_have_it_or_none_whatever_crashes_and_whatever_is_lost() {
    let (mut booked, mut failed, mut forgotten) = (0, 0, 0);
    for seed in 0..4000 {
        let (mut world, parts) = World::at_random(seed);
        let agents = world.agents.len();
        world.booking = Some(Booking::new(world.now, PlanId([1; 16]), &parts, PATIENCE_MS));
        world.run(30_000);
        // Nothing is wrong any more: what was decided is brought to its end.
        world.trouble = false;
        world.dead = None;
        world.run(60_000);
        let is_stored = world.stored.values().next().map(|record| record.decision);
        let left = world.rest();
        match is_stored {
            Some(Decision::Booked) => {
                assert_eq!(world.space(), vec![300; agents], "seed {seed}");
                assert!(matches!(world.told, None | Some(Outcome::Booked)), "seed {seed}");
                booked += 1;
            }
            None => {
                assert_eq!(left, 0, "seed {seed}: leaked");
                assert_ne!(world.told, Some(Outcome::Booked), "seed {seed}");
                if world.told.is_some() { failed += 1 } else { forgotten += 1 }
            }
            Some(other) => panic!("seed {seed}: {other:?} never ended"),
        }
    }
    assert!(booked > 800 && failed > 800 && forgotten > 100, "{booked} {failed} {forgotten}");
}

#[test]
fn rates_of_a_stored_plan_are_booked_on_all_agents_or_end_with_it() {
    let (mut booked, mut failed, mut forgotten) = (0, 0, 0);
    for seed in 0..4000 {
        let (mut world, mut parts) = World::at_random(seed);
        let agents = world.agents.len();
        parts.retain(|part| part.lease_ms.is_some());
        world.plan = Some(parts.clone());
        world.booking = Some(Booking::leased(world.now, PlanId([1; 16]), &parts, PATIENCE_MS));
        world.run(30_000);
        world.trouble = false;
        world.dead = None;
        world.run(25_000);
        let is_booked = world.stored.values().any(|one| one.decision == Decision::Booked);
        let has = |one: &Agent| one.ledger.entries().count();
        let having = world.agents.iter().filter(|one| has(one) == 1).count();
        if is_booked {
            assert!(matches!(world.told, None | Some(Outcome::Booked)), "seed {seed}");
            assert_eq!(having, agents, "seed {seed}: leases are not over yet");
            booked += 1;
        } else {
            assert_ne!(world.told, Some(Outcome::Booked), "seed {seed}");
            assert!(world.stored.is_empty(), "seed {seed}: it was never ended");
            if world.told.is_some() { failed += 1 } else { forgotten += 1 }
        }
        // Copies that came after the end as well.
        world.run(LEASE_MS);
        assert_eq!(world.rest(), 0, "seed {seed}: leaked past its lease");
    }
    assert!(booked > 800 && failed > 400 && forgotten > 100, "{booked} {failed} {forgotten}");
}

#[test]
fn a_refusal_of_rates_is_told_when_all_have_answered() {
    let mut world = World::new(4, 3);
    let mut parts = world.parts(40);
    parts.retain(|part| part.lease_ms.is_some());
    let mut booking = Booking::leased(world.now, PlanId([1; 16]), &parts, PATIENCE_MS);
    let asked: Vec<Action> = core::iter::from_fn(|| booking.poll_action()).collect();
    assert!(asked.iter().all(|one| matches!(one, Action::Book(..))) && asked.len() == 3);
    booking.handle_refused(world.now, parts[0].agent, parts[0].hold.id, "no");
    booking.handle_committed(world.now, parts[1].agent, parts[1].hold.id);
    assert_eq!(booking.outcome(), None, "what ends it must not overtake the third");
    let mut late = booking.clone();
    booking.handle_committed(world.now, parts[2].agent, parts[2].hold.id);
    late.handle_timeout(world.now.after_ms(PATIENCE_MS));
    for booking in [&mut booking, &mut late] {
        assert_eq!(booking.outcome(), Some(&Outcome::Refused(parts[0].agent, "no")));
        assert!(booking.is_over() && booking.poll_action().is_none());
    }
}

#[test]
fn rates_whose_end_is_not_stored_are_not_booked() {
    let mut world = World::new(5, 1);
    let parts = [world.parts(40)[1]];
    let mut booking: Booking<()> = Booking::leased(world.now, PlanId([1; 16]), &parts, PATIENCE_MS);
    booking.poll_action();
    booking.handle_committed(world.now, parts[0].agent, parts[0].hold.id);
    let Some(Action::Store(record)) = booking.poll_action() else { panic!("not stored") };
    assert_eq!((record.decision, booking.outcome()), (Decision::Booked, None));
    booking.handle_store_failed(world.now);
    assert_eq!(booking.outcome(), Some(&Outcome::NotStored));
    assert!(booking.is_over() && booking.poll_action().is_none());
}

#[test]
fn a_refusal_is_told_at_once_and_lets_everything_go() {
    let mut world = World::new(1, 3);
    world.trouble = false;
    let mut parts = world.parts(40);
    parts[3].hold.resources.device = Rate(101);
    world.booking = Some(Booking::new(world.now, PlanId([1; 16]), &parts, PATIENCE_MS));
    world.run(HOLD_MS / 2);
    assert_eq!(world.told, Some(Outcome::Refused(agent(1), "no".into())));
    assert!(world.booking.as_ref().unwrap().is_over());
    assert_eq!(world.space(), [0, 0, 0], "long before the holds end");
    assert!(world.stored.is_empty());
}

#[test]
fn an_agent_that_never_answers_is_given_up_and_the_others_have_nothing() {
    let mut world = World::new(2, 3);
    world.trouble = false;
    world.dead = Some(2);
    let parts = world.parts(40);
    world.booking = Some(Booking::new(world.now, PlanId([1; 16]), &parts, PATIENCE_MS));
    world.run(PATIENCE_MS + 1000);
    assert_eq!(world.told, Some(Outcome::TooLate(agent(2))));
    assert_eq!(world.space(), [0, 0, 0]);
}

#[test]
fn an_agent_that_says_why_it_fails_is_given_up_with_that() {
    let mut world = World::new(6, 2);
    let parts = [world.parts(40)[0], world.parts(40)[2]];
    let (silent, failing) = (parts[0], parts[1]);
    let end = world.now.after_ms(PATIENCE_MS);
    let id = PlanId([1; 16]);
    let mut holding = Booking::new(world.now, id, &parts, PATIENCE_MS);
    let mut committing = holding.clone();
    let mut leased = parts;
    leased.iter_mut().for_each(|part| part.lease_ms = Some(LEASE_MS));
    let mut leasing = Booking::leased(world.now, id, &leased, PATIENCE_MS);

    for part in &parts {
        committing.handle_held(world.now, part.agent, part.hold.id, 1);
    }
    committing.handle_stored(world.now);
    for booking in [&mut holding, &mut committing, &mut leasing] {
        booking.handle_failed(failing.agent, failing.hold.id, "its disk is full");
        assert_eq!(booking.outcome(), None, "it is asked again");
        booking.handle_timeout(end);
        assert_eq!(booking.outcome(), Some(&Outcome::Refused(failing.agent, "its disk is full")));
    }

    // What it failed in before it did what was asked is not why another agent is given up.
    let mut held: Booking<&str> = Booking::new(world.now, id, &parts, PATIENCE_MS);
    held.handle_failed(failing.agent, failing.hold.id, "its disk is full");
    held.handle_held(world.now, failing.agent, failing.hold.id, 1);
    held.handle_timeout(end);
    assert_eq!(held.outcome(), Some(&Outcome::TooLate(silent.agent)));
}

#[test]
fn nothing_is_committed_before_the_decision_is_stored() {
    let mut world = World::new(3, 2);
    let parts = world.parts(40);
    let mut booking: Booking<()> = Booking::new(world.now, PlanId([1; 16]), &parts, PATIENCE_MS);
    while booking.poll_action().is_some() {}
    for (at, part) in parts.iter().enumerate() {
        booking.handle_held(world.now, part.agent, part.hold.id, at as u64);
    }
    let Some(Action::Store(record)) = booking.poll_action() else { panic!("no decision") };
    assert_eq!((record.decision, record.parts.len()), (Decision::Commit, 4));
    booking.handle_timeout(world.now.after_ms(PATIENCE_MS * 2));
    assert_eq!(booking.poll_action(), None, "before it is stored");
    booking.handle_store_failed(world.now);
    let rest: Vec<Action> = core::iter::from_fn(|| booking.poll_action()).collect();
    assert!(rest.iter().all(|one| matches!(one, Action::Release(..))) && rest.len() == 4);
    assert_eq!(booking.outcome(), Some(&Outcome::NotStored));
}
