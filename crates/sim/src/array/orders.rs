//! What an administrator orders while an array serves: to set a member aside, to scrub, to hold rebuilds back, and to
//! close while users ask for things, or while it opens.
//!
//! What was asked for before the order to close ends as if there had been none; what comes after it may be refused, and
//! nothing is acknowledged that is not stable when the array has closed.

use core::time::Duration;

use netraid_raid::volume::{self, ScrubOrder};

use super::{
    engine::Engine,
    machine::Machine,
    oracle::EngineId,
    world::{Happening, World},
};

/// Longest that an array may take to close.
const CLOSE_MAX: Duration = Duration::from_secs(10);
/// Requests that users make of an array that closes.
const LATE_REQUESTS: u64 = 3;

/// An array that was told to close.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stop {
    pub(super) id: EngineId,
    /// The first request that was made later.
    first_late: u64,
    /// All members were whole, and nothing else was wrong.
    all_were_whole: bool,
}

impl<M: Machine> World<M> {
    /// An engine starts: it may be told to close before it is open.
    pub(super) fn plan_stop_of_opening(&mut self, id: EngineId) {
        if self.plan.moods.stops > 0 && !self.is_ending() && self.order_dice.one_in(12) {
            let wait = Duration::from_micros(self.order_dice.below(60_000));
            self.agenda.put_in(wait, Happening::Stop(id));
        }
    }

    /// An engine serves: in some runs many are told to close.
    pub(super) fn plan_stop(&mut self, id: EngineId) {
        if !self.is_ending() && self.order_dice.one_in(self.plan.moods.stops) {
            let wait = Duration::from_micros(self.order_dice.below(40_000));
            self.agenda.put_in(wait, Happening::Stop(id));
        }
    }

    /// Tells an engine to close.
    pub(super) fn stop(&mut self, id: EngineId) {
        let is_healing = self.healing.is_some();
        if self.is_ending() || self.stopping.is_some() || is_healing || self.engines.len() != 1 {
            return;
        }
        let Some(at) = self.engines.iter().position(|engine| engine.id == id) else { return };
        if self.engines[at].machine().is_none() || self.too_many_are_away() {
            return;
        }
        self.note(|| format!("engine {}: is told to close", id.0));
        let all_were_whole = self.all_are_whole(at);
        self.stopping = Some(Stop { id, first_late: self.next_request(), all_were_whole });
        self.note_losses();
        self.counts.stops += 1;
        self.agenda.put_in(CLOSE_MAX, Happening::StopIsLate(id));
        self.with(at, |engine, context| engine.handle_close(context));
    }

    /// Whether an engine was told to close.
    pub(super) fn is_stopping(&self, id: EngineId) -> bool {
        self.stopping.is_some_and(|stop| stop.id == id)
    }

    /// Whether users ask no more of an engine, because it closes; without a log it is closed when it has failed, too,
    /// and waits for what is under way.
    pub(super) fn users_have_left(&self, id: EngineId) -> bool {
        let mut engines = self.engines.iter();
        let engine = engines.find(|engine| engine.id == id && !M::HAS_LOG);
        let failure = engine.and_then(Engine::machine).and_then(volume::Machine::failure);
        let stop = self.stopping.filter(|stop| stop.id == id);
        failure.is_some()
            || stop.is_some_and(|stop| self.next_request() >= stop.first_late + LATE_REQUESTS)
    }

    /// Whether a request came after the order to close.
    pub(super) fn came_late(&self, id: EngineId, request: u64) -> bool {
        let stop = self.stopping.filter(|stop| stop.id == id);
        stop.is_some_and(|stop| request >= stop.first_late)
    }

    /// An engine that was told to close has done so.
    pub(super) fn end_stop(&mut self, id: EngineId) {
        let Some(stop) = self.stopping.take() else { return };
        let Some(at) = self.engines.iter().position(|engine| engine.id == id) else { return };
        let in_flight = self.in_flight(id);
        let failure = self.engines[at].machine().and_then(|machine| machine.failure());
        if in_flight > 0 {
            return self.fail(format!("it has closed, and {in_flight} requests have not ended"));
        }
        if failure.is_some() {
            if !self.is_excused(id) && self.serving == Some(id) {
                self.fail(format!("the array failed while it closed: {failure:?}"));
            }
        } else if self.serving == Some(id) {
            let all = self.oracle.begin_flush();
            self.oracle.end_flush(all);
            if stop.all_were_whole && self.all_are_whole(at) {
                self.look_at_media(true);
                self.look_at_all_subsets();
            }
            self.look_at_a_subset(id);
        }
        let has_closed = failure.is_none() && self.serving == Some(id) && self.engines.len() == 1;
        self.kill(id, "it has closed the array by command");
        self.is_closed = has_closed;
    }

    /// Whoever has not closed by now never will.
    pub(super) fn end_stop_late(&mut self, id: EngineId) {
        if self.is_stopping(id) {
            self.fail_with_states("it was told to close, and does not");
        }
    }

    fn all_are_whole(&self, at: usize) -> bool {
        let engine = &self.engines[at];
        let is_whole = |(member, host): (usize, &super::world::Host)| {
            host.trouble.is_none() && !host.is_impaired && engine.is_in_sync(member)
        };
        let is_calm = self.has_no_harms() && !self.is_short_of_space();
        is_calm && !self.is_excused(engine.id) && self.hosts.iter().enumerate().all(is_whole)
    }

    /// In some runs the administrator orders something now and then.
    pub(super) fn plan_order(&mut self) {
        let wait = self.order_dice.time_to_next(Duration::from_millis(60));
        self.agenda.put_in(wait, Happening::Order);
    }

    /// Orders something of whoever serves.
    pub(super) fn order(&mut self) {
        if self.is_ending() {
            return;
        }
        self.plan_order();
        let [engine] = self.engines.as_slice() else { return };
        if Some(engine.id) != self.serving || self.healing.is_some() || self.has_rest() {
            return;
        }
        let stripe = self.plan.geometry.stripe_data_len();
        let rate = self.order_dice.pick(&[0, 8 * stripe, 200 * stripe]).copied();
        let trust_parity = self.order_dice.one_in(4);
        let start = ScrubOrder::Start { from: 0, trust_parity };
        match self.order_dice.index(8) {
            0 => self.set_aside(),
            1 | 2 => self.scrub(start, rate),
            3 => self.scrub(ScrubOrder::Pause, None),
            4 => self.scrub(ScrubOrder::Resume, rate),
            5 => self.scrub(ScrubOrder::Stop, None),
            6 => self.limit_rebuilds(rate.filter(|rate| *rate > 0)),
            _ => self.limit_rebuilds(None),
        }
    }

    /// Sets a member aside that the array can do without.
    fn set_aside(&mut self) {
        let members: Vec<usize> = (0..self.hosts.len()).collect();
        let Some(member) = self.order_dice.pick(&members).copied() else { return };
        let is_sound = self.hosts[member].trouble.is_none() && !self.hosts[member].is_impaired;
        if !is_sound || self.impaired() >= self.tolerance() || self.is_short_of_space() {
            return;
        }
        self.note(|| format!("member {member} is set aside by command"));
        self.order_engine(|engine, context| engine.handle_fail(context, member));
    }

    fn scrub(&mut self, order: ScrubOrder, rate: Option<u64>) {
        self.note(|| format!("a scrub: {order:?}, {rate:?} bytes a second"));
        self.order_engine(|engine, context| engine.handle_scrub(context, order, rate));
    }

    /// Members catch up at so many bytes a second of the volume's time at most.
    pub(super) fn limit_rebuilds(&mut self, rate: Option<u64>) {
        self.note(|| format!("members catch up by {rate:?} bytes a second"));
        self.order_engine(|engine, context| engine.handle_rebuild_limit(context, rate));
    }

    fn order_engine(
        &mut self,
        order: impl FnOnce(&mut Engine<M>, &mut super::engine::Context<'_>),
    ) {
        self.counts.orders += 1;
        let Some(id) = self.serving else { return };
        if let Some(at) = self.engines.iter().position(|engine| engine.id == id) {
            self.with(at, order);
        }
    }
}
