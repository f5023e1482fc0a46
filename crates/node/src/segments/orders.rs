//! What the owner of segments orders: a newer generation, the end of a plan, the end of a segment. Each ends sessions, and is
//! done when nothing of these is at a device.

use alloc::vec::Vec;
use core::{ops::Deref, time::Duration};

use netraid_control::units::{Generation, SegmentId};
use netraid_iscsi_proto::target::Realm;
use netraid_planted::{Planted, planted};

use super::{
    Action, Answer, ORDER_LIMIT, PlanKey, Segment, SegmentKey, Segments, Session, Stage, Then, Why,
    end,
};

/// An order of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderId(u64);

/// Commands of sessions that were ended are still at a device, and may change it; where there are none, the device takes its
/// time to be opened or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stuck {
    /// At whose device.
    pub segment: SegmentId,
    /// How many.
    pub running: u32,
}

/// An order that is not done yet.
#[derive(Debug)]
pub(super) struct Order {
    awaits: Awaits,
    /// Sessions that it has ended.
    ended: usize,
    /// How long it waits.
    until: Duration,
}

/// What an order waits for.
#[derive(Debug, Clone, Copy)]
enum Awaits {
    /// Nothing of sessions of older generations is at the device.
    Fenced(SegmentKey, Generation),
    /// Nothing of the plan's sessions that were ended is at a device.
    PlanEnded(PlanKey),
    /// The segment is known no more.
    Forgotten(SegmentKey, Realm),
}

impl<U: Clone, S: Deref<Target: Session> + Clone> Segments<U, S> {
    /// A segment has this generation from now on, if that is newer: sessions with tokens of an older one end. The order is
    /// done when nothing of theirs is at the device; no write of theirs lands after that.
    pub fn raise(&mut self, key: SegmentKey, generation: Generation, now: Duration) -> OrderId {
        // Whoever opens a segment that is not known learns its generation then.
        let Some(segment) = self.segments.get_mut(&key) else {
            return self.order(Awaits::Fenced(key, generation), 0, now);
        };
        segment.fence.raise(generation);
        let current = segment.fence.generation();
        let is_fenced =
            |session: &&S| session.generation() < current || planted(Planted::FenceEndsPresent);
        let fenced = segment.sessions.iter().filter(is_fenced);
        let actions = &mut self.actions;
        let ended = fenced.filter(|session| end(*session, Why::Fenced, actions)).count();
        self.order(Awaits::Fenced(key, current), ended, now)
    }

    /// The sessions of a plan end. The order is done when nothing of theirs is at a device.
    pub fn end_plan(&mut self, plan: PlanKey, now: Duration) -> OrderId {
        let Self { segments, actions, .. } = self;
        let sessions = segments.values().flat_map(|segment| &segment.sessions);
        let most = if planted(Planted::PlanEndsOnce) { 1 } else { usize::MAX };
        let chosen = sessions.filter(|session| session.plan() == plan).take(most);
        let ended = chosen.filter(|session| end(*session, Why::PlanEnded, actions)).count();
        self.order(Awaits::PlanEnded(plan), ended, now)
    }

    /// The sessions of a segment end, and its device is closed. The order is done when the segment is known no more.
    pub fn close(&mut self, key: SegmentKey, now: Duration) -> OrderId {
        let Some(segment) = self.segments.get_mut(&key) else {
            return self.order(Awaits::Forgotten(key, Realm(0)), 0, now);
        };
        let (realm, actions) = (segment.realm, &mut self.actions);
        let sessions = segment.sessions.iter();
        let ended = sessions.filter(|session| end(*session, Why::Closed, actions)).count();
        match &mut segment.stage {
            Stage::Opening { is_wanted } => *is_wanted = planted(Planted::CloseMissesOpening),
            Stage::Open => segment.stage = Stage::Draining,
            Stage::Closing(then) if !planted(Planted::CloseMissesClosing) => *then = Then::Forget,
            Stage::Closing(_) | Stage::Draining => {}
            Stage::Asleep => self.forget(key),
        }
        self.answer_all(realm, Answer::Refused);
        self.order(Awaits::Forgotten(key, realm), ended, now)
    }

    /// Sees what is done: to be called when the last command has left of a session that was ended ([`super::Running::leave`]).
    pub fn settle(&mut self) {
        for (key, segment) in &mut self.segments {
            if segment.stage == Stage::Draining && running(&segment.sessions, |_| true) == 0 {
                segment.stage = Stage::Closing(Then::Forget);
                self.actions.push_back(Action::Remove(*key, segment.unit.clone()));
            }
        }
        let is_done = |id: &OrderId| self.stuck(self.orders[id].awaits).is_none();
        let done: Vec<OrderId> = self.orders.keys().copied().filter(is_done).collect();
        for id in done {
            if let Some(order) = self.orders.remove(&id) {
                self.actions.push_back(Action::Done(id, Ok(order.ended)));
            }
        }
    }

    pub(super) fn give_up_orders(&mut self, now: Duration) {
        let is_late = |id: &OrderId| self.orders[id].until <= now;
        let late: Vec<OrderId> = self.orders.keys().copied().filter(is_late).collect();
        for id in late {
            let Some(order) = self.orders.remove(&id) else { continue };
            // The last command may have left since it was looked at: commands do not wait for the table.
            let stuck = self.stuck(order.awaits);
            self.actions.push_back(Action::Done(id, stuck.map_or(Ok(order.ended), Err)));
        }
    }

    fn order(&mut self, awaits: Awaits, ended: usize, now: Duration) -> OrderId {
        self.last_order += 1;
        let id = OrderId(self.last_order);
        let until = now.saturating_add(ORDER_LIMIT);
        if ended == 0 && planted(Planted::NothingEndedNothingAwaited) {
            self.actions.push_back(Action::Done(id, Ok(0)));
            return id;
        }
        self.orders.insert(id, Order { awaits, ended, until });
        self.settle();
        id
    }

    /// What an order waits for, if for anything.
    fn stuck(&self, awaits: Awaits) -> Option<Stuck> {
        let running_in = |segment: &Segment<U, S>| match awaits {
            Awaits::Fenced(_, generation) => {
                running(&segment.sessions, |session| session.generation() < generation)
            }
            Awaits::PlanEnded(plan) => running(&segment.sessions, |session| {
                session.plan() == plan && session.running().has_ended()
            }),
            Awaits::Forgotten(..) => running(&segment.sessions, |_| true),
        };
        match awaits {
            Awaits::Fenced(..) | Awaits::PlanEnded(_) if planted(Planted::OrderDoneAtOnce) => None,
            Awaits::Forgotten(key, realm) => {
                let segment = self.segments.get(&key).filter(|segment| segment.realm == realm)?;
                Some(Stuck { segment: key.1, running: running_in(segment) })
            }
            Awaits::Fenced(key, _) => {
                let running = running_in(self.segments.get(&key)?);
                (running > 0).then_some(Stuck { segment: key.1, running })
            }
            Awaits::PlanEnded(_) => self.segments.iter().find_map(|(key, segment)| {
                let running = running_in(segment);
                (running > 0).then_some(Stuck { segment: key.1, running })
            }),
        }
    }
}

fn running<S: Deref<Target: Session>>(sessions: &[S], chosen: impl Fn(&S) -> bool) -> u32 {
    sessions.iter().filter(|session| chosen(session)).map(|session| session.running().count()).sum()
}
