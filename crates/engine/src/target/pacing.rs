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
//! Where tokens let in, all sessions of one plan are one flow, whatever their initiators' names.
//!
//! A segment whose device hangs must not take all places from others: see [`Lane`].
//!
//! A target without a pacing never asks, and has no scheduler.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use netraid_control::mclock::{Capacity, FlowId, Scheduler};
use netraid_control::units::{MediatorId, PlanId};
pub use netraid_control::{
    mclock::{FlowCounts, Pace, PaceError},
    units::Rate,
};
use netraid_iscsi_proto::target::{ConnectionId, Realm};
use netraid_node::Ticket;
use tokio::sync::Notify;

use super::{Shared, cells::Guarded, guests::Guest};

/// Shortest and longest piece of data that is asked for at a time.
const PIECE_LEN_MIN: u32 = 64 << 10;
const PIECE_LEN_MAX: u32 = 1 << 20;
/// A segment hangs, of whose requests at the device none has ended for so long.
const HANG_NS: u64 = 250_000_000;

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
    /// not, are no more than what there is. Neither this nor `others` count where tokens let in.
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
        // Clamped: no piece is longer.
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
            lanes: BTreeMap::new(),
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

/// Whose sessions share a pace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum FlowKey {
    /// In lower case.
    Initiator(String),
    Plan(MediatorId, PlanId),
}

struct Flow {
    id: FlowId,
    sessions: usize,
    /// What it is to have, where that did not fit.
    wanted: Option<Pace>,
}

/// The requests of one segment's sessions that are executed.
///
/// They have places of the scheduler, as all others. When none of them has ended for [`HANG_NS`]
/// and no place is left, they give theirs back, and are *apart* from then on: those that end make
/// room for as many of the same segment, until all are done; none takes a place meanwhile.
#[derive(Debug, Default)]
struct Lane {
    sessions: usize,
    /// Requests that have places. None while any are apart.
    placed: u32,
    /// Requests that have none.
    apart: u32,
    /// How many there were when they gave theirs back: not 0 then.
    room: u32,
    /// When one ended last, or the first began.
    moved_ns: u64,
    /// What was granted, and waits for those that are apart.
    parked: VecDeque<Ticket>,
}

struct Session {
    key: FlowKey,
    lane: Option<Realm>,
    flow: FlowId,
    grants: VecDeque<Ticket>,
    waker: Arc<Notify>,
}

/// The scheduler and who waits for it.
pub(super) struct Pacer {
    scheduler: Scheduler<Ticket>,
    /// By initiator, in lower case.
    paces: BTreeMap<String, Pace>,
    others: Pace,
    flows: BTreeMap<FlowKey, Flow>,
    sessions: BTreeMap<ConnectionId, Session>,
    /// Where tokens let in.
    lanes: BTreeMap<Realm, Lane>,
    /// When the timer wakes; none when it does not.
    armed: Option<u64>,
}

/// A pacer between the connections of a target and its timer.
pub(super) struct Paced {
    pacer: Guarded<Pacer>,
    timer: Notify,
}

impl Pacer {
    /// Whether an initiator may have a pace.
    fn check(&self, initiator: &str, pace: &Pace) -> Result<(), PaceError> {
        pace.check()?;
        let others = self.paces.iter().filter(|(name, _)| *name != initiator);
        let booked: u128 = others.map(|(_, pace)| u128::from(pace.floor.0)).sum();
        let rate = self.scheduler.capacity().rate.0;
        // Clamped: more than any rate leaves nothing, too.
        let left = rate.saturating_sub(u64::try_from(booked).unwrap_or(u64::MAX));
        if pace.floor.0 > left {
            return Err(PaceError::Overbooked { floor: pace.floor.0, left });
        }
        Ok(())
    }

    fn enter(
        &mut self,
        connection: ConnectionId,
        key: FlowKey,
        lane: Option<Realm>,
        pace: Pace,
        waker: Arc<Notify>,
    ) {
        let flow = match self.flows.get_mut(&key) {
            Some(flow) => {
                flow.sessions += 1;
                flow.id
            }
            None => {
                let (id, wanted) = self.add_flow(&key, pace);
                self.flows.insert(key.clone(), Flow { id, sessions: 1, wanted });
                id
            }
        };
        if let Some(lane) = lane {
            self.lanes.entry(lane).or_default().sessions += 1;
        }
        let session = Session { key, lane, flow, grants: VecDeque::new(), waker };
        let before = self.sessions.insert(connection, session);
        assert!(before.is_none(), "{connection:?} enters twice");
    }

    /// A flow of this pace, or as near to it as can be: what it wanted, then.
    fn add_flow(&mut self, key: &FlowKey, pace: Pace) -> (FlowId, Option<Pace>) {
        let free = Pace { floor: Rate::ZERO, ..pace };
        let (pace, wanted) = match self.scheduler.add(pace) {
            Ok(id) => return (id, None),
            Err(PaceError::Overbooked { left, .. }) => {
                tracing::warn!(?key, ?pace, left, "the floor does not fit; it gets what is left");
                (Pace { floor: Rate(left), ..pace }, Some(pace))
            }
            Err(error) => {
                tracing::error!(?key, ?pace, %error, "no pace; it gets what others leave");
                (Pace::FREE, None)
            }
        };
        let added = self.scheduler.add(pace).or_else(|_| self.scheduler.add(free));
        let id = added
            .or_else(|_| self.scheduler.add(Pace::FREE))
            .unwrap_or_else(|error| unreachable!("{key:?}: nothing is asked for: {error}"));
        (id, wanted)
    }

    fn leave(&mut self, now_ns: u64, connection: ConnectionId) {
        let Some(session) = self.sessions.get_mut(&connection) else { return };
        for grant in core::mem::take(&mut session.grants) {
            if grant.executes {
                self.done(now_ns, connection);
            }
        }
        let Some(session) = self.sessions.remove(&connection) else { return };
        // What it waited for was withdrawn before: nothing is granted to it meanwhile.
        assert!(session.grants.is_empty(), "{connection:?} leaves with a grant");
        if let Some(realm) = session.lane
            && let Some(lane) = self.lanes.get_mut(&realm)
        {
            lane.parked.retain(|ticket| ticket.connection != connection);
            assert!(lane.sessions > 0, "{realm:?} is left by more than entered");
            lane.sessions -= 1;
            if lane.sessions == 0 {
                // What its sessions had at the device has ended before they leave.
                assert!(lane.placed == 0 && lane.apart == 0, "{realm:?} leaves with requests");
                self.lanes.remove(&realm);
            }
        }
        let Some(flow) = self.flows.get_mut(&session.key) else { return };
        self.scheduler.withdraw(flow.id, |ticket| ticket.connection == connection);
        assert!(flow.sessions > 0, "{:?} is left by more than entered", session.key);
        flow.sessions -= 1;
        if flow.sessions == 0 {
            self.scheduler.remove(flow.id);
            self.flows.remove(&session.key);
            self.refit(now_ns);
        }
    }

    /// Floors that did not fit get what there is by now.
    fn refit(&mut self, now_ns: u64) {
        for flow in self.flows.values_mut() {
            let Some(wanted) = flow.wanted else { continue };
            match self.scheduler.set_pace(now_ns, flow.id, wanted) {
                Ok(()) => flow.wanted = None,
                Err(PaceError::Overbooked { left, .. }) => {
                    let nearest = Pace { floor: Rate(left), ..wanted };
                    // What does not fit either stays as it is.
                    let _ = self.scheduler.set_pace(now_ns, flow.id, nearest);
                }
                Err(_) => flow.wanted = None,
            }
        }
    }

    fn set_plan_pace(&mut self, now_ns: u64, key: &FlowKey, pace: Pace) -> Result<(), PaceError> {
        pace.check()?;
        if let Some(flow) = self.flows.get_mut(key) {
            flow.wanted = Some(pace);
            self.refit(now_ns);
        }
        Ok(())
    }

    fn lane_of(&mut self, connection: ConnectionId) -> Option<&mut Lane> {
        if self.lanes.is_empty() {
            return None;
        }
        self.lanes.get_mut(&self.sessions.get(&connection)?.lane?)
    }

    /// A request that was granted goes to its session, unless its segment hangs. It has a place.
    fn hand_out(&mut self, now_ns: u64, ticket: Ticket) {
        if let Some(lane) = self.lane_of(ticket.connection) {
            if lane.apart > 0 {
                lane.parked.push_back(ticket);
                return self.scheduler.handle_done();
            }
            lane.begin(now_ns);
        }
        self.give(ticket);
    }

    fn give(&mut self, ticket: Ticket) {
        // What a session waited for is withdrawn before the session is gone.
        if let Some(session) = self.sessions.get_mut(&ticket.connection) {
            session.grants.push_back(ticket);
            session.waker.notify_one();
        }
    }

    /// A request begins whose bytes were granted before.
    fn begun(&mut self, now_ns: u64, connection: ConnectionId) {
        if let Some(lane) = self.lane_of(connection) {
            if lane.apart > 0 {
                lane.apart += 1;
                return;
            }
            lane.begin(now_ns);
        }
        self.scheduler.handle_begun();
    }

    /// A request has ended, or is not wanted any more.
    fn done(&mut self, now_ns: u64, connection: ConnectionId) {
        let next = match self.lane_of(connection) {
            Some(lane) => {
                lane.moved_ns = now_ns;
                if lane.apart == 0 {
                    assert!(lane.placed > 0, "a request ends that has no place");
                    lane.placed -= 1;
                    return self.scheduler.handle_done();
                }
                lane.apart -= 1;
                let has_room = lane.apart < lane.room;
                let next = if has_room { lane.parked.pop_front() } else { None };
                lane.apart += u32::from(next.is_some());
                // Nothing else would let it go on.
                assert!(lane.apart > 0 || lane.parked.is_empty(), "a request waits for none");
                next
            }
            None => return self.scheduler.handle_done(),
        };
        if let Some(ticket) = next {
            self.give(ticket);
        }
    }

    /// Whether all places are taken, and some by segments that may hang.
    fn is_full(&self) -> bool {
        let full = self.scheduler.in_flight() >= self.scheduler.capacity().in_flight_max;
        full && self.lanes.values().any(|lane| lane.placed > 0)
    }

    /// Segments that hang give their places back.
    fn set_apart(&mut self, now_ns: u64) {
        if !self.is_full() {
            return;
        }
        for (realm, lane) in &mut self.lanes {
            if lane.placed > 0 && now_ns.saturating_sub(lane.moved_ns) >= HANG_NS {
                tracing::debug!(realm = realm.0, requests = lane.placed, "a segment hangs");
                lane.apart = core::mem::take(&mut lane.placed);
                lane.room = lane.apart;
                (0..lane.apart).for_each(|_| self.scheduler.handle_done());
            }
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
        if let Some(flow) = self.flows.get(&FlowKey::Initiator(initiator.to_owned())) {
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
            if ticket.executes {
                self.hand_out(now_ns, ticket);
            } else {
                self.scheduler.handle_done();
                self.give(ticket);
            }
        }
        match (self.next_timeout(now_ns), self.armed) {
            (Some(next), Some(armed)) => next < armed,
            (Some(_), None) => true,
            (None, _) => false,
        }
    }
}

impl Pacer {
    /// When to look again, if nothing else happens.
    fn next_timeout(&self, now_ns: u64) -> Option<u64> {
        let next = self.scheduler.next_timeout();
        next.or_else(|| self.is_full().then(|| now_ns.saturating_add(HANG_NS / 2)))
    }
}

impl Lane {
    /// A request takes a place.
    const fn begin(&mut self, now_ns: u64) {
        assert!(self.apart == 0, "a request takes a place beside those that have none");
        if self.placed == 0 {
            self.moved_ns = now_ns;
        }
        self.placed += 1;
    }
}

impl Paced {
    pub(super) fn new(pacer: Pacer) -> Self {
        Self { pacer: Guarded::new(pacer), timer: Notify::new() }
    }

    /// A session was admitted.
    pub(super) fn enter(&self, connection: ConnectionId, initiator: &str, waker: Arc<Notify>) {
        let mut pacer = self.pacer.lock();
        let pace = pacer.paces.get(initiator).copied().unwrap_or(pacer.others);
        let key = FlowKey::Initiator(initiator.to_owned());
        pacer.enter(connection, key, None, pace, waker);
    }

    /// A session was admitted that a token let in: the pace that it brings is its plan's.
    pub(super) fn enter_plan(
        &self,
        now: Duration,
        connection: ConnectionId,
        guest: &Guest,
        waker: Arc<Notify>,
    ) {
        let (token, pace) = (guest.grant().token(), guest.admitted.pace);
        let key = FlowKey::Plan(token.mediator, token.plan);
        let lane = Some(guest.segment.realm().id);
        let mut pacer = self.pacer.lock();
        pacer.enter(connection, key.clone(), lane, pace, waker);
        let flow = pacer.flows.get(&key).map(|flow| (flow.id, flow.wanted));
        if flow.is_some_and(|(id, wanted)| wanted.unwrap_or(pacer.scheduler.pace(id)) != pace)
            && let Err(error) = pacer.set_plan_pace(to_ns(now), &key, pace)
        {
            tracing::error!(?key, ?pace, %error, "no pace; its plan keeps what it has");
        }
    }

    /// The sessions of a plan have another pace from now on.
    pub(super) fn set_plan_pace(
        &self,
        now: Duration,
        (mediator, plan): (MediatorId, PlanId),
        pace: Pace,
    ) -> Result<(), PaceError> {
        let key = FlowKey::Plan(mediator, plan);
        self.pacer.lock().set_plan_pace(to_ns(now), &key, pace)?;
        self.advance(now);
        Ok(())
    }

    /// A connection has ended, and none of its commands runs any more.
    pub(super) fn leave(&self, now: Duration, connection: ConnectionId) {
        self.pacer.lock().leave(to_ns(now), connection);
        self.advance(now);
    }

    /// Something of a session waits for its grant.
    pub(super) fn ask(&self, now: Duration, ticket: Ticket, len: u32) {
        let mut pacer = self.pacer.lock();
        let Some(session) = pacer.sessions.get(&ticket.connection) else { return };
        let flow = session.flow;
        pacer.scheduler.handle_arrival(to_ns(now), flow, ticket, len);
        drop(pacer);
        self.advance(now);
    }

    /// What waited does not any more; it may have been granted already.
    pub(super) fn withdraw(&self, connection: ConnectionId, number: u32) {
        let mut pacer = self.pacer.lock();
        let Some(session) = pacer.sessions.get(&connection) else { return };
        let flow = session.flow;
        let is_it = |ticket: &Ticket| ticket.connection == connection && ticket.number == number;
        if pacer.scheduler.withdraw(flow, is_it) == 0
            && let Some(lane) = pacer.lane_of(connection)
        {
            lane.parked.retain(|ticket| !is_it(ticket));
        }
    }

    /// The next grant of a session.
    pub(super) fn take(&self, connection: ConnectionId) -> Option<Ticket> {
        self.pacer.lock().sessions.get_mut(&connection)?.grants.pop_front()
    }

    /// A command that was granted has ended, or is not wanted any more.
    pub(super) fn done(&self, now: Duration, connection: ConnectionId) {
        self.pacer.lock().done(to_ns(now), connection);
        self.advance(now);
    }

    /// A command begins whose bytes were granted before.
    pub(super) fn begun(&self, now: Duration, connection: ConnectionId) {
        self.pacer.lock().begun(to_ns(now), connection);
    }

    /// Gives an initiator a pace, or takes it away.
    pub(super) fn set_pace(
        &self,
        now: Duration,
        initiator: &str,
        pace: Option<Pace>,
    ) -> Result<(), PaceError> {
        let initiator = initiator.to_ascii_lowercase();
        self.pacer.lock().set_pace(to_ns(now), &initiator, pace)?;
        self.advance(now);
        Ok(())
    }

    pub(super) fn report(&self, connection: ConnectionId) -> Option<PaceReport> {
        let pacer = self.pacer.lock();
        let flow = pacer.sessions.get(&connection)?.flow;
        let scheduler = &pacer.scheduler;
        let (pace, waiting) = (scheduler.pace(flow), scheduler.waiting(flow));
        Some(PaceReport { pace, waiting, counts: scheduler.counts(flow) })
    }

    fn advance(&self, now: Duration) {
        if self.pacer.lock().advance(to_ns(now)) {
            self.timer.notify_one();
        }
    }

    /// Hands out what may go now; when to do so next.
    fn arm(&self, now: Duration) -> Option<Duration> {
        let mut pacer = self.pacer.lock();
        pacer.set_apart(to_ns(now));
        pacer.advance(to_ns(now));
        pacer.armed = pacer.next_timeout(to_ns(now));
        pacer.armed.map(Duration::from_nanos)
    }
}

/// Hands out grants whose time has come, for as long as the target serves.
pub(super) async fn run(shared: Arc<Shared>) {
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
    // Clamped: that is after 584 years.
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
