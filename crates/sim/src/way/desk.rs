//! What one event may use: the agenda, chance, and where it is noted what happened.

use core::time::Duration;

use netraid_control::units::Generation;
use netraid_iscsi_proto::target::ConnectionId;

use super::{
    counts::{Count, Counts},
    interface::{Effect, EngineId, HostId, LineId, Manners, StreamId},
    stream::End,
    watch::Watch,
};
use crate::{
    agenda::{Agenda, Ticket},
    array::trace::Trace,
    dice::Dice,
    time::Time,
};

/// What is to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Event {
    /// The owner's event with this key.
    Own(u64),
    /// A dial comes to its host, for the so many-th time.
    Knock(StreamId, u32),
    /// A dial's engine hears how it ended.
    Dialled(StreamId, Answer),
    /// A host's program finds a connection that was made.
    Accept(StreamId),
    /// An end of a connection may read or write.
    Ready(StreamId, End),
    /// A line's driver runs.
    Drive(LineId),
    /// A target's connection runs, of the so many-th program.
    Serve(HostId, u32, ConnectionId),
    /// A session that was made again breaks off.
    Break(StreamId),
    /// A request at a disk ends.
    Done(HostId, u64),
    /// Something of the segment of an agent's host, of the so many-th program.
    Segment(HostId, u32, Turn),
}

/// What happens to a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Turn {
    /// What its table says is done.
    Look,
    /// Its device is opened, or cannot be; its generation was this when that began.
    Opened(Generation),
    /// Its device is closed.
    Closed,
}

/// How a dial ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Answer {
    Made,
    Refused,
    Unreachable,
}

pub(super) struct Desk {
    pub(super) agenda: Agenda<Event>,
    pub(super) dice: Dice,
    pub(super) manners: Manners,
    pub(super) counts: Counts,
    pub(super) trace: Trace,
    pub(super) effects: Option<Vec<Effect>>,
    pub(super) watch: Watch,
}

impl Desk {
    pub(super) const fn now(&self) -> Time {
        self.agenda.now()
    }

    /// The time as machines are told it.
    pub(super) const fn clock(&self) -> Duration {
        self.agenda.now().since(Time::START)
    }

    pub(super) fn count(&mut self, count: Count) {
        self.counts.add(count);
    }

    /// How long a piece of a stream is on its way.
    pub(super) fn latency(&mut self) -> Duration {
        let Manners { latency, late_one_in, late, .. } = &self.manners;
        let time = self.dice.time_in(latency);
        if self.dice.one_in(*late_one_in) { time + self.dice.time_in(late) } else { time }
    }

    /// How long a task waits for its processor.
    pub(super) fn scheduling(&mut self) -> Duration {
        self.dice.time_in(&self.manners.scheduling)
    }

    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        let now = self.now();
        self.trace.note(now, line);
    }
}

/// When a task runs next: once, at the earliest of what it was told.
#[derive(Debug, Default)]
pub(super) struct Alarm(Option<(Time, Ticket)>);

impl Alarm {
    /// The task runs at this moment at the latest.
    pub(super) fn set(&mut self, desk: &mut Desk, at: Time, event: Event) {
        if let Some((set, ticket)) = self.0 {
            if set <= at {
                return;
            }
            desk.agenda.cancel(ticket);
        }
        self.0 = Some((at, desk.agenda.put_at(at, event)));
    }

    /// The task runs as soon as it has a processor.
    pub(super) fn wake(&mut self, desk: &mut Desk, event: Event) {
        let now = desk.now();
        if self.0.is_some_and(|(set, _)| set <= now) {
            return;
        }
        let at = now.after(desk.scheduling());
        self.set(desk, at, event);
    }

    /// The task runs when its machine's timer says so, or a little later.
    pub(super) fn set_timer(&mut self, desk: &mut Desk, at: Duration, event: Event) {
        let late = desk.scheduling();
        let at = Time::START.after(at + late).max(desk.now());
        self.set(desk, at, event);
    }

    /// It runs now.
    pub(super) const fn fire(&mut self) {
        self.0 = None;
    }

    /// It does not run any more.
    pub(super) fn stop(&mut self, desk: &mut Desk) {
        if let Some((_, ticket)) = self.0.take() {
            desk.agenda.cancel(ticket);
        }
    }
}

/// Where something of an engine's is.
pub(super) type Path = (EngineId, HostId);
