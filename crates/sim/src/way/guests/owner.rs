//! The owner of the segment: it extends and ends plans, fences and closes the segment, while network, agent and guests break.

use core::time::Duration;

use netraid_control::units::Generation;

use super::{GUESTS, Guests, Happening};
use crate::way::{
    cases::Case,
    interface::{Cut, Fate, Ordered, SegmentOrder},
};

impl Guests {
    pub(super) fn plan_fault(&mut self) {
        let wait = self.dice.time_to_next(Duration::from_millis(150));
        self.net.put_in(wait, Happening::Fault);
    }

    pub(super) fn befall(&mut self) {
        if self.is_ending {
            return;
        }
        self.plan_fault();
        let guest = self.dice.index(GUESTS);
        let (engine, host) = (self.engines[guest], self.host);
        match self.dice.below(15) {
            0..=3 => self.end_plan(guest),
            4 | 5 => self.fence(),
            6 => {
                let (now, lost) = (Some(Duration::ZERO), Fate::Lost);
                let later = Fate::Delivered(Duration::from_millis(self.dice.below(300)));
                let to_host = if self.dice.one_in(2) { lost } else { later };
                let cut = Cut { engine_hears: now, host_hears: now, to_host, to_engine: lost };
                for stream in self.net.streams(engine, host) {
                    self.net.cut(stream, cut);
                }
            }
            7 => self.net.hang(host, Duration::from_millis(self.dice.below(400))),
            8 => {
                self.note(|| "the agent's program is killed".into());
                self.net.kill(host);
                let wait = Duration::from_millis(self.dice.below(200));
                self.net.put_in(wait, Happening::Start);
            }
            9 => self.die(guest),
            10 | 11 => self.extend_plan(guest),
            12 | 13 => self.close(),
            _ => {
                // Said once more, it changes nothing.
                self.order(SegmentOrder::Raise(self.generation));
            }
        }
    }

    /// The plan of a guest is ended.
    pub(super) fn end_plan(&mut self, guest: usize) {
        let Some((line, visit)) = self.visits.iter_mut().find(|(_, visit)| visit.guest == guest)
        else {
            return;
        };
        let (line, plan) = (*line, visit.plan);
        visit.has_ended = true;
        self.cases.add(Case::PlanEnded);
        self.note(|| format!("the plan of {line:?} is ended"));
        let number = self.order(SegmentOrder::EndPlan(plan));
        if let Some(visit) = self.visits.get_mut(&line) {
            visit.ended_by.push(number);
        }
        if self.dice.one_in(2) {
            // That was under way: it changes nothing.
            let until = self.now().after_ms(200 + self.dice.below(600));
            self.order(SegmentOrder::Extend(plan, until));
        }
        let wait = Duration::from_millis(self.dice.below(300));
        self.net.put_in(wait, Happening::Leave(line));
    }

    /// The plan of a guest lasts longer; perhaps it was ended, which that does not change.
    pub(super) fn extend_plan(&mut self, guest: usize) {
        let now = self.now();
        let until = now.after_ms(200 + self.dice.below(600));
        let visits = self.visits.values_mut();
        for visit in visits.filter(|visit| visit.guest == guest && now < visit.until) {
            visit.until = visit.until.max(until);
            if visit.is_open {
                visit.surely_until = visit.surely_until.max(until);
            }
            self.cases.add(Case::PlanExtended);
            self.net.extend_plan(self.host, visit.plan, until);
        }
    }

    /// The segment is fenced: what was granted before is not any more.
    pub(super) fn fence(&mut self) {
        self.generation = Generation(self.generation.0 + 1);
        let generation = self.generation;
        self.cases.add(Case::SegmentFenced);
        self.note(|| format!("the segment has {generation:?}"));
        self.net.store_generation(self.host, generation);
        (self.is_draining, self.fence) = (true, None);
        // Meanwhile a guest may log in with it.
        let wait = Duration::from_millis([0, 5, 20, 100][self.dice.index(4)]);
        self.net.put_in(wait, Happening::EndFenced(generation));
        for (line, visit) in &mut self.visits {
            visit.has_ended = true;
            let wait = Duration::from_millis(self.dice.below(300));
            self.net.put_in(wait, Happening::Leave(*line));
        }
    }

    /// The segment is closed: its sessions end, and those whose tokens hold may come again.
    pub(super) fn close(&mut self) {
        if self.closing.is_some() {
            return;
        }
        self.cases.add(Case::SegmentClosed);
        self.note(|| "the segment is closed".into());
        self.closing = Some(self.order(SegmentOrder::Close));
        self.visits.values_mut().for_each(|visit| visit.was_closed = true);
    }

    pub(super) fn order(&mut self, order: SegmentOrder) -> u64 {
        let number = self.net.order_segment(self.host, order);
        self.orders.insert(number);
        self.note(|| format!("order {number}: {order:?}"));
        number
    }

    pub(super) fn hear_order(&mut self, number: u64, how: Ordered) {
        self.note(|| format!("order {number} ends: {how:?}"));
        let is_known = self.orders.remove(&number);
        if let Ordered::Stuck(stuck) = how {
            return self.fail(format!("order {number} does not get done: {stuck:?}"));
        }
        if !is_known {
            return self.fail(format!("order {number} has ended twice"));
        }
        let visits = self.visits.values_mut();
        visits
            .filter(|visit| visit.ended_by.contains(&number))
            .for_each(|visit| visit.is_over = true);
        if self.closing == Some(number) {
            self.closing = None;
        }
        if self.fence == Some(number) {
            (self.fence, self.is_draining) = (None, false);
            self.end_doubts();
            self.cases.add(Case::SegmentDrained);
        }
    }
}
