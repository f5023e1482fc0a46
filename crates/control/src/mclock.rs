//! Who is served next: the mClock scheduler (Gulati, Merchant, Varman: mClock, OSDI 2010), which
//! the paper describes with the words reservation, limit and shares; here they are floor, limit and
//! weight.
//!
//! A *flow* is whoever has an allotment: a session, or all sessions of one initiator together. Its
//! requests wait in a queue, first come first served. The machine says whose oldest request goes
//! next, so that
//!
//! - a flow with requests waiting gets its *floor*, whatever others want;
//! - no flow gets more than its *limit*;
//! - what is left goes, by *weight*, to flows that wait;
//! - the capacity is idle only while nobody may be served.
//!
//! # What a request costs
//!
//! Its bytes, and [`Capacity::request_cost_bytes`] more, so that small requests are not free: a
//! device of 200 MB/s that does 50,000 requests a second has 4,000. Floors, limits and the capacity
//! are all counted in this cost: 256 KiB requests at 4 KiB each have 98.5% of a rate as data.
//! Whoever books rates adds that, as [`placement`](crate::placement) does.
//!
//! # Tags
//!
//! Each flow has three tags for its oldest request, which the paper calls R, L and P:
//!
//! - *floor*: when the floor entitles the flow to it. While it waits, its deadline is one cost at
//!   the floor later. Only what is served for the floor moves the tag, so what a flow gets beyond
//!   its floor is never held against it. Among flows that are due, the earliest deadline goes first
//!   (the paper: the earliest tag), which bounds how late any of them is by one request of the
//!   others instead of one of each.
//! - *limit*: before it the flow is not served, for its floor neither.
//! - *share*: bytes that it got, by weight. When nobody is due, the flow with the least goes first.
//!   All that it gets counts, also for its floor: a flow gets the larger of its floor and what its
//!   weight gives it, as in the paper; not the floor and then a share of the rest. A flow whose
//!   floor is above its share owes others at most [`DEBT_MAX_NS`] at its floor, so that it has
//!   its share soon when floors change.
//!
//! A flow that wakes up begins now: its floor's tag is no earlier than now, its share's no less than
//! that of who was served last. Being idle, or held back by a limit, earns no credit, but for what
//! follows.
//!
//! # Bounds
//!
//! With C the capacity, c the largest cost of a request of the flow and m of any:
//!
//! - within any time T, a flow with a limit gets at most limit × (T + [`BURST_NS`]) + c;
//! - all flows together get at most C × (T + [`CATCH_UP_NS`]) + m;
//! - within any T in which it always has a request waiting, places are free, and `poll` is called in
//!   time, a flow gets at least floor × (T - m / C) - 2c, as long as it is not at its limit. If floor
//!   and limit are the same, that holds while it is not served later than [`BURST_NS`].
//!
//! If capacity was promised that is not there (a device that became slow), floors are late all
//! together, and are caught up with by [`CATCH_UP_FLOOR_NS`] at most.
//!
//! # What it does not do
//!
//! It holds no requests but tickets, knows no clock, and bounds no queue: who lets requests in does,
//! as it bounds its tasks. Each call takes a time that grows with the logarithm of the number of
//! flows ([`Scheduler::withdraw`]: of the requests of one), and allocates nothing once queues have
//! been as long as they get.
//!
//! Time is in nanoseconds since any start, never runs backwards, and rates are exact: what a
//! division leaves is carried along.

mod heap;
mod tag;
#[cfg(test)]
mod tests;

use alloc::{collections::VecDeque, vec::Vec};

use netraid_block::narrow;
use serde::{Deserialize, Serialize};

use self::{
    heap::Heap,
    tag::{RATE_MAX, Tag, scaled},
};
use crate::units::Rate;

/// How much of its limit a flow may have at once, beyond a request: what it had at its limit in
/// this time. It makes up for being served late.
pub const BURST_NS: u64 = 20_000_000;
/// How much of the capacity may be caught up with when `poll` was called late.
pub const CATCH_UP_NS: u64 = 10_000_000;
/// How much of a floor may be caught up with when the capacity was not there.
pub const CATCH_UP_FLOOR_NS: u64 = 100_000_000;
/// What a flow owes at most, when its floor gave it more than its weight: its floor in this time.
pub const DEBT_MAX_NS: u64 = NS_PER_S;
/// Largest weight. What flows with such weights get is in order to some 64 KiB.
pub const WEIGHT_MAX: u32 = 65_535;

const NS_PER_S: u64 = 1_000_000_000;

/// How fast a flow may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pace {
    /// It gets at least this; zero for none.
    pub floor: Rate,
    /// It gets no more than this, which is no less than the floor and not zero; as much as there is
    /// when none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Rate>,
    /// How much it gets compared to others where floors and limits leave a choice: 1 to
    /// [`WEIGHT_MAX`].
    pub weight: u32,
}

impl Pace {
    /// Nothing is promised and nothing held back: a weight of 1.
    pub const FREE: Self = Self { floor: Rate::ZERO, limit: None, weight: 1 };

    /// Whether the numbers fit together.
    ///
    /// # Errors
    /// When they do not.
    pub const fn check(&self) -> Result<(), PaceError> {
        let Self { floor, limit, weight } = *self;
        if weight == 0 || weight > WEIGHT_MAX {
            return Err(PaceError::Weight { weight });
        }
        if floor.0 > RATE_MAX {
            return Err(PaceError::Rate { rate: floor.0 });
        }
        match limit {
            Some(limit) if limit.0 == 0 || limit.0 > RATE_MAX => {
                Err(PaceError::Rate { rate: limit.0 })
            }
            Some(limit) if limit.0 < floor.0 => {
                Err(PaceError::LimitBelowFloor { floor: floor.0, limit: limit.0 })
            }
            Some(_) | None => Ok(()),
        }
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self::FREE
    }
}

/// What serves the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capacity {
    /// How much it does; not zero.
    pub rate: Rate,
    /// How many requests it has at a time; not zero. As few as keep it busy: what it has is not
    /// put in order any more.
    pub in_flight_max: u32,
    /// What a request costs beyond its bytes.
    pub request_cost_bytes: u32,
}

impl Capacity {
    const fn check(&self) -> Result<(), PaceError> {
        if self.rate.0 == 0 || self.rate.0 > RATE_MAX {
            return Err(PaceError::Rate { rate: self.rate.0 });
        }
        if self.in_flight_max == 0 {
            return Err(PaceError::NoPlaces);
        }
        Ok(())
    }
}

/// Why a pace or a capacity cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PaceError {
    /// Floors are more than there is.
    #[error("a floor of {floor} bytes/s: {left} are left; ask for less, or lower another floor")]
    Overbooked {
        /// What was asked for, in bytes a second.
        floor: u64,
        /// What there is, without the floors of others.
        left: u64,
    },
    /// The limit is less than the floor.
    #[error("a limit of {limit} bytes/s is below the floor of {floor}; raise it to that at least")]
    LimitBelowFloor {
        /// In bytes a second.
        floor: u64,
        /// In bytes a second.
        limit: u64,
    },
    /// A rate is none, or beyond all reason.
    #[error("a rate of {rate} bytes/s: possible are 1 to {RATE_MAX}")]
    Rate {
        /// In bytes a second.
        rate: u64,
    },
    /// A weight is out of range.
    #[error("a weight of {weight}: possible are 1 to {WEIGHT_MAX}")]
    Weight {
        /// The weight.
        weight: u32,
    },
    /// Nothing could ever be served.
    #[error("at most 0 requests in flight; allow 1 at least")]
    NoPlaces,
}

/// A flow of one scheduler. Places are used again, under another generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId {
    place: u32,
    generation: u32,
}

/// A request whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant<T> {
    /// Whose.
    pub flow: FlowId,
    /// Which: as it arrived.
    pub ticket: T,
    /// For the flow's floor, else by its weight.
    pub by_floor: bool,
}

/// What a flow got; all only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowCounts {
    /// Requests that were granted.
    pub granted: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Of these, bytes that were granted for the floor.
    pub floor_bytes: u64,
    /// How long requests waited, summed up.
    pub waited_ns: u64,
    /// How long one waited at most.
    pub waited_ns_max: u64,
}

#[derive(Debug, Clone, Copy)]
struct Waiting<T> {
    ticket: T,
    len: u32,
    since_ns: u64,
}

#[derive(Debug)]
struct Flow<T> {
    generation: u32,
    present: bool,
    pace: Pace,
    queue: VecDeque<Waiting<T>>,
    /// Nanoseconds: when the floor entitles it to its oldest request.
    floor: Tag,
    /// Nanoseconds: when the limit allows the oldest request.
    limit: Tag,
    /// Bytes by weight.
    share: Tag,
    counts: FlowCounts,
}

/// The machine; `T` is what the caller knows a request by.
#[derive(Debug)]
pub struct Scheduler<T> {
    capacity: Capacity,
    flows: Vec<Flow<T>>,
    free: Vec<u32>,
    /// Sum of all floors.
    floors: u64,
    /// Requests that wait.
    queued: usize,
    in_flight: u32,
    latest_ns: u64,
    /// Nanoseconds: when the capacity is free again.
    gate: Tag,
    /// Share of who was served last by weight.
    served_share: u64,
    /// Flows that wait, each in one of the first two (if it has a floor) and one of the last two:
    /// by the time at which they are due,
    floor_later: Heap,
    /// those that are due, by their deadline;
    floor_due: Heap,
    /// by the time at which their limit allows them,
    share_later: Heap,
    /// those that are allowed, by what they got.
    share_now: Heap,
}

impl<T: Copy> Scheduler<T> {
    /// A scheduler without flows.
    ///
    /// # Errors
    /// When nothing could ever be served.
    pub fn new(capacity: Capacity) -> Result<Self, PaceError> {
        capacity.check()?;
        Ok(Self {
            capacity,
            flows: Vec::new(),
            free: Vec::new(),
            floors: 0,
            queued: 0,
            in_flight: 0,
            latest_ns: 0,
            gate: Tag::default(),
            served_share: 0,
            floor_later: Heap::default(),
            floor_due: Heap::default(),
            share_later: Heap::default(),
            share_now: Heap::default(),
        })
    }

    /// A flow more.
    ///
    /// # Errors
    /// When the pace is none, or its floor is more than what other floors leave of the capacity.
    pub fn add(&mut self, pace: Pace) -> Result<FlowId, PaceError> {
        self.check_pace(&pace, Rate::ZERO)?;
        self.floors += pace.floor.0;
        let place = self.free.pop().unwrap_or_else(|| self.new_place());
        let flow = &mut self.flows[place as usize];
        flow.present = true;
        flow.pace = pace;
        let (floor, limit, share) = (Tag::default(), Tag::default(), Tag::default());
        (flow.floor, flow.limit, flow.share) = (floor, limit, share);
        flow.counts = FlowCounts::default();
        Ok(FlowId { place, generation: flow.generation })
    }

    /// A flow is gone, and nothing of what waited in it is granted. What it has in flight still
    /// ends with [`Self::handle_done`].
    ///
    /// # Panics
    /// When there is no such flow: here and below.
    pub fn remove(&mut self, id: FlowId) {
        let place = self.place(id);
        self.delist(place);
        let flow = &mut self.flows[place as usize];
        let is_counted = flow.queue.len() <= self.queued && flow.pace.floor.0 <= self.floors;
        assert!(is_counted, "a flow goes that was not counted");
        self.queued -= flow.queue.len();
        self.floors -= flow.pace.floor.0;
        flow.queue.clear();
        flow.present = false;
        flow.generation = flow.generation.wrapping_add(1);
        self.free.push(place);
    }

    /// A flow has another pace from now on: what it still has to wait for is as long as if it had
    /// always had it.
    ///
    /// # Errors
    /// As [`Self::add`]; the pace is as before then.
    pub fn set_pace(&mut self, now_ns: u64, id: FlowId, pace: Pace) -> Result<(), PaceError> {
        let (place, now) = (self.place(id), self.advance(now_ns));
        let old = self.flows[place as usize].pace;
        self.check_pace(&pace, old.floor)?;
        assert!(old.floor.0 <= self.floors, "a floor changes that was not counted");
        self.floors = self.floors - old.floor.0 + pace.floor.0;
        self.delist(place);
        let served_share = self.served_share;
        let flow = &mut self.flows[place as usize];
        flow.pace = pace;
        flow.floor.rescale(now, old.floor.0, pace.floor.0);
        if old.floor == Rate::ZERO {
            flow.floor.raise(now);
        }
        let rate = |limit: Option<Rate>| limit.map_or(0, |limit| limit.0);
        flow.limit.rescale(now, rate(old.limit), rate(pace.limit));
        flow.share.rescale(served_share, old.weight.into(), pace.weight.into());
        self.enlist(place);
        Ok(())
    }

    /// The capacity is another from now on. Flows keep their floors, also when these are more than
    /// it: then no further ones are taken, and those there are get what there is.
    ///
    /// # Errors
    /// When nothing could ever be served; it is as before then.
    pub fn set_capacity(&mut self, now_ns: u64, capacity: Capacity) -> Result<(), PaceError> {
        capacity.check()?;
        let now = self.advance(now_ns);
        self.gate.rescale(now, self.capacity.rate.0, capacity.rate.0);
        self.capacity = capacity;
        // Deadlines hold what a request costs.
        for place in (0_u32..).take(self.flows.len()) {
            self.delist(place);
            self.enlist(place);
        }
        Ok(())
    }

    /// A request of `len` bytes waits behind those of its flow that do.
    pub fn handle_arrival(&mut self, now_ns: u64, id: FlowId, ticket: T, len: u32) {
        let (place, now) = (self.place(id), self.advance(now_ns));
        if self.queued == 0 {
            self.gate.raise(now);
        }
        self.queued += 1;
        let flow = &mut self.flows[place as usize];
        flow.queue.push_back(Waiting { ticket, len, since_ns: now });
        if flow.queue.len() == 1 {
            flow.floor.raise(now);
            self.enlist(place);
        }
    }

    /// Requests for which `chosen` says so do not wait any more; how many.
    pub fn withdraw(&mut self, id: FlowId, mut chosen: impl FnMut(&T) -> bool) -> usize {
        let place = self.place(id);
        let queue = &mut self.flows[place as usize].queue;
        let before = queue.len();
        queue.retain(|waiting| !chosen(&waiting.ticket));
        let withdrawn = before - queue.len();
        if withdrawn > 0 {
            self.queued -= withdrawn;
            self.delist(place);
            self.enlist(place);
        }
        withdrawn
    }

    /// A request that was granted has ended: its place is free.
    ///
    /// # Panics
    /// When none is in flight.
    pub fn handle_done(&mut self) {
        assert!(self.in_flight > 0, "a request ended that was not granted");
        self.in_flight -= 1;
    }

    /// Work takes a place whose bytes were granted before; it may be one too many, and nothing is
    /// granted until enough have ended then.
    pub const fn handle_begun(&mut self) {
        self.in_flight += 1;
    }

    /// The request that goes next, if one may go now. It takes a place until
    /// [`Self::handle_done`].
    pub fn poll(&mut self, now_ns: u64) -> Option<Grant<T>> {
        let now = self.advance(now_ns);
        if self.queued == 0 || self.in_flight >= self.capacity.in_flight_max || self.gate.at > now {
            return None;
        }
        self.promote(now);
        if let Some((_, place)) = self.floor_due.first() {
            return Some(self.grant(now, place, true));
        }
        if let Some((_, place)) = self.share_now.first() {
            return Some(self.grant(now, place, false));
        }
        // What nobody may use is lost.
        self.gate.raise(now);
        None
    }

    /// When `poll` gives something, if nothing else happens; none when it never does. A time that
    /// is over means now.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        if self.queued == 0 || self.in_flight >= self.capacity.in_flight_max {
            return None;
        }
        let ready = self.floor_due.first().or(self.share_now.first()).map(|_| 0);
        let later = || self.share_later.first().map(|(at, _)| at);
        ready.or_else(later).map(|at| at.max(self.gate.at))
    }

    /// What serves the requests.
    #[must_use]
    pub const fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// Sum of all floors.
    #[must_use]
    pub const fn floors(&self) -> Rate {
        Rate(self.floors)
    }

    /// Requests that were granted and have not ended.
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// A flow's pace.
    #[must_use]
    pub fn pace(&self, id: FlowId) -> Pace {
        self.flows[self.place(id) as usize].pace
    }

    /// How many requests of a flow wait.
    #[must_use]
    pub fn waiting(&self, id: FlowId) -> usize {
        self.flows[self.place(id) as usize].queue.len()
    }

    /// What a flow got.
    #[must_use]
    pub fn counts(&self, id: FlowId) -> FlowCounts {
        self.flows[self.place(id) as usize].counts
    }

    fn check_pace(&self, pace: &Pace, own: Rate) -> Result<(), PaceError> {
        pace.check()?;
        let left = self.capacity.rate.0.saturating_sub(self.floors - own.0);
        // Whoever asks for no more than before is not refused because the capacity shrank.
        if pace.floor.0 > left && pace.floor.0 > own.0 {
            return Err(PaceError::Overbooked { floor: pace.floor.0, left });
        }
        Ok(())
    }

    fn new_place(&mut self) -> u32 {
        let place: u32 = narrow(self.flows.len());
        assert!(place < u32::MAX, "more flows than numbers");
        self.flows.push(Flow {
            generation: 0,
            present: false,
            pace: Pace::FREE,
            queue: VecDeque::new(),
            floor: Tag::default(),
            limit: Tag::default(),
            share: Tag::default(),
            counts: FlowCounts::default(),
        });
        let heaps = [&mut self.floor_later, &mut self.floor_due];
        heaps.into_iter().for_each(|heap| heap.make_room(place));
        let heaps = [&mut self.share_later, &mut self.share_now];
        heaps.into_iter().for_each(|heap| heap.make_room(place));
        place
    }

    fn place(&self, id: FlowId) -> u32 {
        let known = self.flows.get(id.place as usize);
        let known = known.is_some_and(|flow| flow.present && flow.generation == id.generation);
        assert!(known, "{id:?} is no flow");
        id.place
    }

    const fn advance(&mut self, now_ns: u64) -> u64 {
        if now_ns > self.latest_ns {
            self.latest_ns = now_ns;
        }
        self.latest_ns
    }

    const fn cost(&self, len: u32) -> u64 {
        len as u64 + self.capacity.request_cost_bytes as u64
    }

    /// Puts a flow that waits among those whose time comes.
    fn enlist(&mut self, place: u32) {
        let flow = &self.flows[place as usize];
        if !flow.present || flow.queue.is_empty() {
            return;
        }
        let limit = if flow.pace.limit.is_some() { flow.limit.at } else { 0 };
        if flow.pace.floor > Rate::ZERO {
            self.floor_later.insert(place, flow.floor.at.max(limit));
        }
        self.share_later.insert(place, limit);
    }

    fn delist(&mut self, place: u32) {
        let _ = self.floor_later.remove(place) || self.floor_due.remove(place);
        let _ = self.share_later.remove(place) || self.share_now.remove(place);
    }

    /// Flows whose time has come are among those that may be served.
    fn promote(&mut self, now: u64) {
        while let Some(place) = self.floor_later.pop_until(now) {
            let flow = &self.flows[place as usize];
            let cost = flow.queue.front().map_or(0, |oldest| self.cost(oldest.len));
            let mut deadline = flow.floor;
            deadline.move_on(scaled(cost), flow.pace.floor.0);
            self.floor_due.insert(place, deadline.at);
        }
        while let Some(place) = self.share_later.pop_until(now) {
            let flow = &mut self.flows[place as usize];
            flow.share.raise(self.served_share);
            self.share_now.insert(place, flow.share.at);
        }
    }

    /// The oldest request of a flow goes.
    fn grant(&mut self, now: u64, place: u32, by_floor: bool) -> Grant<T> {
        self.delist(place);
        let flow = &mut self.flows[place as usize];
        let Some(Waiting { ticket, len, since_ns }) = flow.queue.pop_front() else {
            unreachable!("a flow without requests is among those that wait")
        };
        let cost = u64::from(len) + u64::from(self.capacity.request_cost_bytes);
        let Pace { floor, limit, weight } = flow.pace;
        if let Some(limit) = limit {
            flow.limit.raise(now.saturating_sub(BURST_NS));
            flow.limit.move_on(scaled(cost), limit.0);
        }
        if by_floor {
            flow.floor.raise(now.saturating_sub(CATCH_UP_FLOOR_NS));
            flow.floor.move_on(scaled(cost), floor.0);
        } else {
            self.served_share = self.served_share.max(flow.share.at);
        }
        flow.share.move_on(cost, weight.into());
        if by_floor {
            let debt_max = floor.0.saturating_mul(DEBT_MAX_NS / NS_PER_S) / u64::from(weight);
            flow.share.lower(self.served_share.saturating_add(debt_max));
        }
        self.gate.raise(now.saturating_sub(CATCH_UP_NS));
        self.gate.move_on(scaled(cost), self.capacity.rate.0);
        assert!(self.queued > 0, "a request is granted that did not wait");
        self.queued -= 1;
        self.in_flight += 1;
        let counts = &mut flow.counts;
        let waited_ns = now - since_ns;
        counts.granted += 1;
        counts.bytes += u64::from(len);
        counts.floor_bytes += if by_floor { u64::from(len) } else { 0 };
        counts.waited_ns = counts.waited_ns.saturating_add(waited_ns);
        counts.waited_ns_max = counts.waited_ns_max.max(waited_ns);
        let generation = flow.generation;
        self.enlist(place);
        Grant { flow: FlowId { place, generation }, ticket, by_floor }
    }
}
