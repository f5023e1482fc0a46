//! Rates of sessions: whose request goes to a device next, and whose data is asked for next.
//!
//! A target that has a [`Pacing`] puts the mClock scheduler (`netraid_control::mclock`) in front of
//! its devices and of the data of writes:
//!
//! - a command goes to its device when it is granted, with the bytes that it reads;
//! - a piece of a write's data is asked for (R2T) when it is granted; nothing is agreed to come
//!   unasked, and what does all the same is granted before the command goes on.
//!
//! So each byte is granted once, before it moves. All sessions of one initiator are one flow: who
//! opens more of them gets no more. What one command makes of a few bytes (WRITE SAME, UNMAP, a
//! copy between LUNs) costs what a request costs, and no more; commands that leave the medium alone
//! pass.
//!
//! A target without one never asks, and has no scheduler.

use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    rc::Rc,
    time::Duration,
};

use netraid_control::mclock::{Capacity, FlowId, Scheduler};
pub use netraid_control::{
    mclock::{FlowCounts, Pace, PaceError},
    units::Rate,
};
use netraid_iscsi_proto::{machine::TaskId, target::ConnectionId};
use tokio::sync::Notify;

use super::Shared;

/// Shortest and longest piece of data that is asked for at a time.
const PIECE_LEN_MIN: u32 = 64 << 10;
const PIECE_LEN_MAX: u32 = 1 << 20;

/// What a target has, and who may have how much of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pacing {
    /// What its devices do together.
    pub device: Rate,
    /// What its network does in each direction. The lesser of both is shared, reads and writes
    /// together.
    pub network: Rate,
    /// Requests that its devices have at a time, together: as few as keep them busy.
    pub in_flight_max: u32,
    /// What a request costs beyond its bytes.
    pub request_cost_bytes: u32,
    /// By initiator name: how fast all its sessions may go together. Floors of all, logged in or
    /// not, are no more than what there is.
    pub paces: BTreeMap<String, Pace>,
    /// How fast any other initiator may go; without a floor, since nobody knows how many come.
    pub others: Pace,
}

impl Pacing {
    /// What a device and a network of these rates have, shared alike by whoever comes.
    #[must_use]
    pub const fn new(device: Rate, network: Rate) -> Self {
        Self {
            device,
            network,
            in_flight_max: 64,
            request_cost_bytes: 4096,
            paces: BTreeMap::new(),
            others: Pace::FREE,
        }
    }

    fn capacity(&self) -> Capacity {
        Capacity {
            rate: self.device.min(self.network),
            in_flight_max: self.in_flight_max,
            request_cost_bytes: self.request_cost_bytes,
        }
    }

    /// Longest piece of data that is asked for at a time: some milliseconds of what there is.
    pub(super) fn piece_len(&self) -> u32 {
        let len = u32::try_from(self.capacity().rate.0 / 256).unwrap_or(PIECE_LEN_MAX);
        len.clamp(PIECE_LEN_MIN, PIECE_LEN_MAX) / PIECE_LEN_MIN * PIECE_LEN_MIN
    }

    /// The pacer of a target.
    ///
    /// # Errors
    /// When paces are none, or their floors more than there is.
    pub(super) fn build(self) -> Result<Pacer, PaceError> {
        let mut pacer = Pacer {
            scheduler: Scheduler::new(self.capacity())?,
            paces: BTreeMap::new(),
            others: Pace::FREE,
            flows: BTreeMap::new(),
            sessions: BTreeMap::new(),
            armed: None,
        };
        for (initiator, pace) in self.paces {
            pacer.check(&initiator.to_ascii_lowercase(), &pace)?;
            pacer.paces.insert(initiator.to_ascii_lowercase(), pace);
        }
        if self.others.floor > Rate::ZERO {
            return Err(PaceError::Overbooked { floor: self.others.floor.0, left: 0 });
        }
        self.others.check()?;
        pacer.others = self.others;
        Ok(pacer)
    }
}

/// How fast the sessions of an initiator may go, and what they got so far, all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PaceReport {
    /// Floor, limit and weight.
    pub pace: Pace,
    /// Requests that wait for a grant.
    pub waiting: usize,
    /// What was granted.
    pub counts: FlowCounts,
}

/// What waits for a grant.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ticket {
    pub(super) connection: ConnectionId,
    pub(super) task: TaskId,
    /// Which of the connection's: never used again while any is known.
    pub(super) number: u32,
    /// A command is executed, and keeps its place until it has ended; else data is asked for, which
    /// keeps none, because its sender may be slow.
    pub(super) executes: bool,
}

struct Flow {
    id: FlowId,
    sessions: usize,
}

struct Session {
    initiator: String,
    flow: FlowId,
    grants: VecDeque<Ticket>,
    waker: Rc<Notify>,
}

/// The scheduler and who waits for it.
pub(super) struct Pacer {
    scheduler: Scheduler<Ticket>,
    /// By initiator, in lower case.
    paces: BTreeMap<String, Pace>,
    others: Pace,
    flows: BTreeMap<String, Flow>,
    sessions: BTreeMap<ConnectionId, Session>,
    /// When the timer wakes; none when it does not.
    armed: Option<u64>,
}

/// A pacer between the connections of a target and its timer.
pub(super) struct Paced {
    pacer: RefCell<Pacer>,
    timer: Notify,
}

impl Pacer {
    /// Whether an initiator may have a pace.
    fn check(&self, initiator: &str, pace: &Pace) -> Result<(), PaceError> {
        pace.check()?;
        let others = self.paces.iter().filter(|(name, _)| *name != initiator);
        let booked: u128 = others.map(|(_, pace)| u128::from(pace.floor.0)).sum();
        let rate = self.scheduler.capacity().rate.0;
        let left = rate.saturating_sub(u64::try_from(booked).unwrap_or(u64::MAX));
        if pace.floor.0 > left {
            return Err(PaceError::Overbooked { floor: pace.floor.0, left });
        }
        Ok(())
    }

    fn enter(&mut self, connection: ConnectionId, initiator: &str, waker: Rc<Notify>) {
        let flow = match self.flows.get_mut(initiator) {
            Some(flow) => {
                flow.sessions += 1;
                flow.id
            }
            None => {
                let pace = self.paces.get(initiator).copied().unwrap_or(self.others);
                let id = self.scheduler.add(pace).unwrap_or_else(|error| {
                    unreachable!("{initiator}: floors were checked when they were given: {error}")
                });
                self.flows.insert(initiator.to_owned(), Flow { id, sessions: 1 });
                id
            }
        };
        let (initiator, grants) = (initiator.to_owned(), VecDeque::new());
        self.sessions.insert(connection, Session { initiator, flow, grants, waker });
    }

    fn leave(&mut self, connection: ConnectionId) {
        let Some(session) = self.sessions.remove(&connection) else { return };
        for grant in session.grants {
            self.drop_grant(&grant);
        }
        let Some(flow) = self.flows.get_mut(&session.initiator) else { return };
        self.scheduler.withdraw(flow.id, |ticket| ticket.connection == connection);
        flow.sessions -= 1;
        if flow.sessions == 0 {
            self.scheduler.remove(flow.id);
            self.flows.remove(&session.initiator);
        }
    }

    /// Nobody uses what was granted.
    fn drop_grant(&mut self, grant: &Ticket) {
        if grant.executes {
            self.scheduler.handle_done();
        }
    }

    fn set_pace(
        &mut self,
        now_ns: u64,
        initiator: &str,
        pace: Option<Pace>,
    ) -> Result<(), PaceError> {
        if let Some(pace) = pace {
            self.check(initiator, &pace)?;
        }
        if let Some(flow) = self.flows.get(initiator) {
            self.scheduler.set_pace(now_ns, flow.id, pace.unwrap_or(self.others))?;
        }
        match pace {
            Some(pace) => self.paces.insert(initiator.to_owned(), pace),
            None => self.paces.remove(initiator),
        };
        Ok(())
    }

    /// Hands out what may go now. Whether the timer is to wake earlier than it would.
    fn advance(&mut self, now_ns: u64) -> bool {
        while let Some(grant) = self.scheduler.poll(now_ns) {
            let ticket = grant.ticket;
            if !ticket.executes {
                self.scheduler.handle_done();
            }
            // What a session waited for is withdrawn before the session is gone.
            if let Some(session) = self.sessions.get_mut(&ticket.connection) {
                session.grants.push_back(ticket);
                session.waker.notify_one();
            }
        }
        match (self.scheduler.next_timeout(), self.armed) {
            (Some(next), Some(armed)) => next < armed,
            (Some(_), None) => true,
            (None, _) => false,
        }
    }
}

impl Paced {
    pub(super) fn new(pacer: Pacer) -> Self {
        Self { pacer: RefCell::new(pacer), timer: Notify::new() }
    }

    /// A session was admitted.
    pub(super) fn enter(&self, connection: ConnectionId, initiator: &str, waker: Rc<Notify>) {
        self.pacer.borrow_mut().enter(connection, initiator, waker);
    }

    /// A connection has ended, and none of its commands runs any more.
    pub(super) fn leave(&self, now: Duration, connection: ConnectionId) {
        self.pacer.borrow_mut().leave(connection);
        self.advance(now);
    }

    /// Something of a session waits for its grant.
    pub(super) fn ask(&self, now: Duration, ticket: Ticket, len: u32) {
        let mut pacer = self.pacer.borrow_mut();
        let Some(session) = pacer.sessions.get(&ticket.connection) else { return };
        let flow = session.flow;
        pacer.scheduler.handle_arrival(to_ns(now), flow, ticket, len);
        drop(pacer);
        self.advance(now);
    }

    /// What waited does not any more; it may have been granted already.
    pub(super) fn withdraw(&self, connection: ConnectionId, number: u32) {
        let mut pacer = self.pacer.borrow_mut();
        let Some(session) = pacer.sessions.get(&connection) else { return };
        let flow = session.flow;
        let is_it = |ticket: &Ticket| ticket.connection == connection && ticket.number == number;
        pacer.scheduler.withdraw(flow, is_it);
    }

    /// The next grant of a session.
    pub(super) fn take(&self, connection: ConnectionId) -> Option<Ticket> {
        self.pacer.borrow_mut().sessions.get_mut(&connection)?.grants.pop_front()
    }

    /// A command that was granted has ended, or is not wanted any more.
    pub(super) fn done(&self, now: Duration) {
        self.pacer.borrow_mut().scheduler.handle_done();
        self.advance(now);
    }

    /// A command begins whose bytes were granted before.
    pub(super) fn begun(&self) {
        self.pacer.borrow_mut().scheduler.handle_begun();
    }

    /// Gives an initiator a pace, or takes it away.
    pub(super) fn set_pace(
        &self,
        now: Duration,
        initiator: &str,
        pace: Option<Pace>,
    ) -> Result<(), PaceError> {
        let initiator = initiator.to_ascii_lowercase();
        self.pacer.borrow_mut().set_pace(to_ns(now), &initiator, pace)?;
        self.advance(now);
        Ok(())
    }

    pub(super) fn report(&self, connection: ConnectionId) -> Option<PaceReport> {
        let pacer = self.pacer.borrow();
        let flow = pacer.sessions.get(&connection)?.flow;
        let scheduler = &pacer.scheduler;
        let (pace, waiting) = (scheduler.pace(flow), scheduler.waiting(flow));
        Some(PaceReport { pace, waiting, counts: scheduler.counts(flow) })
    }

    fn advance(&self, now: Duration) {
        if self.pacer.borrow_mut().advance(to_ns(now)) {
            self.timer.notify_one();
        }
    }

    /// Hands out what may go now; when to do so next.
    fn arm(&self, now: Duration) -> Option<Duration> {
        let mut pacer = self.pacer.borrow_mut();
        pacer.advance(to_ns(now));
        pacer.armed = pacer.scheduler.next_timeout();
        pacer.armed.map(Duration::from_nanos)
    }
}

/// Hands out grants whose time has come, for as long as the target serves.
pub(super) async fn run(shared: Rc<Shared>) {
    let Some(paced) = &shared.paced else { return };
    loop {
        match paced.arm(shared.started.elapsed()) {
            None => paced.timer.notified().await,
            Some(next) => tokio::select! {
                () = tokio::time::sleep_until(shared.started + next) => {}
                () = paced.timer.notified() => {}
            },
        }
    }
}

fn to_ns(now: Duration) -> u64 {
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
