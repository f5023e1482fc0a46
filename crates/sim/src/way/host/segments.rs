//! The segment of an agent's host: what the table says is done, one thing at a time, as the engine's target does, and the
//! device takes its time.

use core::time::Duration;
use std::{
    collections::{BTreeMap, VecDeque},
    rc::Rc,
};

use netraid_control::units::{Generation, Moment, PlanId};
use netraid_iscsi_proto::target::ConnectionId;
use netraid_node::{
    Gate,
    segments::{Action, OrderId, Session as _, Unopened},
};

use super::{AtDisk, Host};
use crate::way::{
    agent::{Agent, Place, Visitor},
    counts::Count,
    desk::{Desk, Event, Turn},
    interface::{Ordered, SegmentOrder},
    reach::{LUN, Work},
};

/// One opening or closing in so many takes long.
const LONG_ONE_IN: u32 = 3;

/// Orders, and the device that is opened or closed.
#[derive(Default)]
pub(super) struct SegmentDesk {
    /// Orders that the program was not given yet.
    asked: VecDeque<(u64, SegmentOrder)>,
    given: BTreeMap<OrderId, (u64, SegmentOrder)>,
    ended: VecDeque<(u64, Ordered)>,
    orders: u64,
    /// Whose device is being opened or closed.
    place: Option<Rc<Place>>,
    /// The program is about to look.
    looks: bool,
}

impl Host {
    /// The agent stores that the segment has this generation.
    pub(in crate::way) fn store_generation(&self, generation: Generation) {
        if let Some(agent) = &self.agent {
            agent.store_generation(generation);
        }
    }

    /// A plan lasts until this moment.
    pub(in crate::way) fn extend_plan(&self, desk: &Desk, plan: PlanId, until: Moment) {
        if let Some(agent) = &self.agent {
            agent.set_clock(desk.clock());
            agent.extend(plan, until);
        }
    }

    /// The owner of the segment gives an order, and learns by this number how it ended.
    pub(in crate::way) fn order_segment(&mut self, desk: &mut Desk, order: SegmentOrder) -> u64 {
        self.segments.orders += 1;
        let number = self.segments.orders;
        if let (Some(agent), SegmentOrder::EndPlan(plan)) = (&self.agent, order) {
            agent.revoke(plan);
        }
        if self.program.is_none() {
            self.segments.ended.push_back((number, Ordered::Died));
            return number;
        }
        self.segments.asked.push_back((number, order));
        self.look_soon(desk);
        number
    }

    /// An order that has ended.
    pub(in crate::way) fn poll_order(&mut self) -> Option<(u64, Ordered)> {
        self.segments.ended.pop_front()
    }

    /// The program looks whose grants are over.
    pub(in crate::way) fn watch_segment(&mut self, desk: &mut Desk) {
        let Some(agent) = self.agent.clone().filter(|_| self.program.is_some()) else { return };
        if self.hung_until > desk.now() {
            return;
        }
        agent.set_clock(desk.clock());
        agent.poll();
        self.collect(desk);
    }

    /// The program has died, and its table with it.
    pub(super) fn end_segments(&mut self) {
        let Some(agent) = &self.agent else { return };
        agent.forget_all();
        let SegmentDesk { asked, given, ended, .. } = &mut self.segments;
        let numbers = asked.drain(..).chain(core::mem::take(given).into_values());
        ended.extend(numbers.map(|(number, _)| (number, Ordered::Died)));
        (self.segments.place, self.segments.looks) = (None, false);
    }

    /// Where the table may have something to be done, the program looks soon.
    pub(super) fn look_at_segments(&mut self, desk: &mut Desk) {
        let Some(agent) = &self.agent else { return };
        desk.counts.add_many(Count::LoginWaited, agent.waited.take());
        if agent.has_changed.take() {
            self.look_soon(desk);
        }
        let rests = !self.segments.looks && self.segments.place.is_none();
        if let Some(connection) = self.agent.as_ref().and_then(|agent| agent.waiting_login())
            && rests
        {
            unreachable!(
                "{:?}: {connection:?} waits for its segment, and nobody opens it",
                self.id
            );
        }
    }

    fn look_soon(&mut self, desk: &mut Desk) {
        if !core::mem::replace(&mut self.segments.looks, true) {
            let wait = desk.scheduling();
            desk.agenda.put_in(wait, Event::Segment(self.id, self.programs, Turn::Look));
        }
    }

    pub(in crate::way) fn handle_turn(&mut self, desk: &mut Desk, program: u32, turn: Turn) {
        let Some(agent) = self.agent.clone() else { return };
        if self.program.is_none() || self.programs != program {
            return;
        }
        if self.hung_until > desk.now() {
            desk.agenda.put_at(self.hung_until, Event::Segment(self.id, program, turn));
            return;
        }
        agent.set_clock(desk.clock());
        match turn {
            Turn::Look => {
                self.segments.looks = false;
                while let Some((number, order)) = self.segments.asked.pop_front() {
                    match agent.order(order) {
                        Some(id) => drop(self.segments.given.insert(id, (number, order))),
                        None => self.segments.ended.push_back((number, Ordered::Done)),
                    }
                }
                while let Some(action) = agent.next_action() {
                    self.carry_out_action(desk, &agent, action);
                }
            }
            Turn::Opened(generation) => self.handle_opened(desk, &agent, generation),
            Turn::Closed => {
                let place = self.segments.place.take();
                let holds_reservations = place.is_some_and(|place| {
                    let units = place.realm.units.borrow();
                    units.unit(LUN).is_some_and(|unit| unit.reservations().registration_count() > 0)
                });
                agent.closed(holds_reservations);
            }
        }
        self.collect(desk);
    }

    fn carry_out_action(
        &mut self,
        desk: &mut Desk,
        agent: &Agent,
        action: Action<Rc<Place>, Rc<Visitor>>,
    ) {
        match action {
            Action::Open(_, place) => {
                assert!(!agent.is_open(), "{:?}: a device is opened twice", self.id);
                self.take_place(place);
                let time = self.device_time();
                let turn = Turn::Opened(agent.generation());
                desk.agenda.put_in(time, Event::Segment(self.id, self.programs, turn));
            }
            Action::Close(_, place) => {
                assert!(agent.is_open(), "{:?}: a device is closed twice", self.id);
                if !agent.is_closed() {
                    desk.count(Count::SegmentSlept);
                }
                self.take_place(place);
                self.close_device(desk);
            }
            Action::Remove(_, place) => {
                assert!(agent.is_open(), "{:?}: a device is closed twice", self.id);
                desk.count(Count::SegmentRemoved);
                self.take_place(place);
                self.is_taken_away = false;
                if let Some(lun) = self.lun() {
                    lun.house().set(Gate::Leaving);
                }
                self.look_at_gate(desk);
            }
            Action::Forget(place) => {
                if let Some(program) = &self.program {
                    program.shared.node.borrow_mut().remove_lun(place.realm.id, LUN);
                }
            }
            Action::Drop(visitor, why) => {
                if let Some(wrong) = agent.why_not_to_end(&visitor, why) {
                    unreachable!("{:?}: {wrong}", self.id);
                }
                visitor.note_ended();
                if let Some(program) = &self.program {
                    program.shared.node.borrow_mut().drop_connection(visitor.connection());
                    program.shared.gather_wakes();
                }
            }
            Action::Wake(connection) => {
                agent.forget_knock(connection);
                self.wake_login(connection);
            }
            Action::Done(id, result) => {
                let Some((number, order)) = self.segments.given.remove(&id) else {
                    unreachable!("{:?}: {id:?} is done, which was not given", self.id)
                };
                if result.is_ok() {
                    self.check_order(agent, order);
                }
                let ended = result.map_or_else(Ordered::Stuck, |_| Ordered::Done);
                self.segments.ended.push_back((number, ended));
            }
        }
    }

    fn take_place(&mut self, place: Rc<Place>) {
        let other = self.segments.place.replace(place);
        assert!(other.is_none(), "{:?}: a device is opened or closed beside another one", self.id);
    }

    fn wake_login(&self, connection: ConnectionId) {
        if let Some(program) = &self.program {
            program.shared.wakes.borrow_mut().push(connection);
        }
    }

    /// What an order ends must be at the disk no more.
    fn check_order(&self, agent: &Agent, order: SegmentOrder) {
        let is_ended = |at: &&AtDisk| {
            let is_known = !matches!(at.work, Work::Nothing);
            is_known && at.visitor.as_ref().is_some_and(|visitor| visitor.ends_by(order))
        };
        let left = self.works.values().find(is_ended);
        if let Some(at) = left {
            unreachable!("{:?}: {order:?} is done under a request of {:?}", self.id, at.connection);
        }
        let is_open = order == SegmentOrder::Close && agent.is_open();
        assert!(!is_open, "{:?}: {order:?} is done, and the device is open", self.id);
    }

    fn handle_opened(&mut self, desk: &mut Desk, agent: &Agent, generation: Generation) {
        let place = self.segments.place.take();
        let (Some(place), Some(program)) = (place, &self.program) else {
            unreachable!("{:?}: a device is open that was not opened", self.id)
        };
        if self.dice.one_in(agent.config.unopened_one_in) {
            desk.count(Count::SegmentUnopened);
            return agent.opened(Err(Unopened::Exhausted));
        }
        desk.count(Count::SegmentOpened);
        if place.realm.lun.borrow().is_none() {
            self.incarnations += 1;
            self.serve_disk(&program.shared.clone(), place.realm.clone(), None);
        }
        self.is_taken_away = false;
        agent.set_open(true);
        agent.opened(Ok(generation));
    }

    /// The device is closed, and takes its time.
    pub(super) fn close_device(&mut self, desk: &mut Desk) {
        let is_used = self.works.values().any(|at| at.work.is_request());
        assert!(!is_used, "{:?}: a device is closed under a request", self.id);
        if let Some(agent) = &self.agent {
            agent.set_open(false);
        }
        let time = self.device_time();
        desk.agenda.put_in(time, Event::Segment(self.id, self.programs, Turn::Closed));
    }

    fn device_time(&mut self) -> Duration {
        let most = if self.dice.one_in(LONG_ONE_IN) { 300_000 } else { 3000 };
        Duration::from_micros(self.dice.below(most))
    }
}
