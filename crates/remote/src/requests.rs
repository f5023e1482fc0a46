//! The requests of one disk that have not ended, by place, by readiness and by deadline.
//!
//! Invariant: a request that was inserted is here until it was finished, exactly once.

use alloc::{collections::VecDeque, vec::Vec};
use core::time::Duration;

use netraid_block::{Op, SgList, narrow};
use netraid_iscsi_proto::machine::TaskId;
use netraid_planted::{Planted, planted};

use crate::{
    deadlines::{Deadlines, Expired},
    disk::{Kind, Planned, Progress},
    interface::Request,
    window::Class,
};

/// A request that has not ended.
pub(crate) struct Pending<U> {
    pub(crate) request: Request<U>,
    pub(crate) progress: Progress,
    /// The command under way.
    pub(crate) running: Option<Running>,
    /// The lane whose next session must be made before this goes on: a write was under way when
    /// the last one was lost.
    pub(crate) held: Option<usize>,
    /// What was read.
    pub(crate) data: SgList,
    /// Times that the disk had lost its cache before something was written that a flush is to
    /// make stable.
    pub(crate) losses: Option<u64>,
    pub(crate) moved: Moved,
    /// Times that a command was sent again, since the request does without something at least.
    pub(crate) tries: u8,
    /// RESERVATION CONFLICTs that it met on registered sessions.
    pub(crate) conflicts: u8,
    serial: u32,
}

/// What the disk had moved when a request was handed over, or when it was last seen to have moved a good part of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moved {
    /// Bytes of the request.
    pub(crate) own: u64,
    /// Bytes of all there ever were.
    pub(crate) all: u64,
    /// Bytes that others had still to be moved, or had from the beginning.
    pub(crate) others: u64,
}

/// A command under way, and where.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Running {
    pub(crate) planned: Planned,
    pub(crate) lane: usize,
    pub(crate) task: TaskId,
}

/// What was not known of a request when it was ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Left {
    /// Its command is under way.
    Running(Running),
    /// A write of it may still be under way in the lost session of this lane.
    Held(usize),
}

/// Names a request: its place, and which of the place's requests it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

impl Ticket {
    #[inline]
    fn new(index: usize, serial: u32) -> Self {
        Self(u64::from(narrow::<_, u32>(index)) << 32 | u64::from(serial))
    }

    #[inline]
    pub(crate) const fn from_tag(tag: u64) -> Self {
        Self(tag)
    }

    #[inline]
    pub(crate) const fn tag(self) -> u64 {
        self.0
    }

    /// The tag of a control command, which no request has.
    pub(crate) const CONTROL: u64 = u64::MAX;

    #[inline]
    pub(crate) const fn is_control(self) -> bool {
        self.0 == Self::CONTROL
    }

    #[inline]
    fn serial(self) -> u32 {
        narrow(self.0 & u64::from(u32::MAX))
    }

    #[inline]
    fn index(self) -> usize {
        narrow(self.0 >> 32)
    }
}

/// What commands can be sent for, by class.
#[derive(Default)]
struct Ready {
    express: VecDeque<Ticket>,
    bulk: VecDeque<Ticket>,
}

impl Ready {
    const fn of(&mut self, class: Class) -> &mut VecDeque<Ticket> {
        match class {
            Class::Express => &mut self.express,
            Class::Bulk => &mut self.bulk,
        }
    }
}

pub(crate) struct Requests<U> {
    places: Vec<Option<Pending<U>>>,
    free: Vec<usize>,
    count: usize,
    next_serial: u32,
    ready: Ready,
    /// Ready again later; all are delayed by the same time, so that these are in order.
    delayed: VecDeque<(Duration, Ticket)>,
    deadlines: Deadlines,
    /// Work of all requests that have not ended.
    open_work: u64,
}

impl<U> Default for Requests<U> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            count: 0,
            next_serial: 0,
            ready: Ready::default(),
            delayed: VecDeque::new(),
            deadlines: Deadlines::default(),
            open_work: 0,
        }
    }
}

impl<U> Requests<U> {
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Work of all requests that have not ended, in bytes.
    pub(crate) const fn open_work(&self) -> u64 {
        self.open_work
    }

    /// Takes a request, which was handed over `now` and has so much `time`; the disk has moved so much ever.
    pub(crate) fn insert(
        &mut self,
        request: Request<U>,
        moved: u64,
        (now, time): (Duration, Duration),
    ) {
        let index = self.free.pop().unwrap_or(self.places.len());
        if index == self.places.len() {
            self.places.push(None);
        }
        self.next_serial = self.next_serial.wrapping_add(1);
        let serial = self.next_serial;
        let (class, work) = (Class::of(&request), work(&request));
        let progress = Progress::default();
        let moved = Moved { own: 0, all: moved, others: self.open_work };
        self.open_work += work;
        let (running, held, data, losses) = (None, None, SgList::new(), None);
        let (tries, conflicts) = (0, 0);
        let pending = Pending {
            request,
            progress,
            running,
            held,
            data,
            losses,
            moved,
            tries,
            conflicts,
            serial,
        };
        let before = self.places[index].replace(pending);
        assert!(before.is_none(), "a place is given to one request at a time");
        self.count += 1;
        let ticket = Ticket::new(index, serial);
        self.ready.of(class).push_back(ticket);
        self.deadlines.insert(class, ticket, work, (now, time));
    }

    /// The request, unless it has ended.
    pub(crate) fn get(&mut self, ticket: Ticket) -> Option<&mut Pending<U>> {
        let pending = self.places.get_mut(ticket.index())?.as_mut()?;
        (Ticket::new(ticket.index(), pending.serial) == ticket).then_some(pending)
    }

    /// Ends a request: whose it was, and what is left under way of it, if anything.
    pub(crate) fn finish(&mut self, ticket: Ticket) -> Option<(U, Option<Left>)> {
        self.get(ticket)?;
        let pending = self.places[ticket.index()].take()?;
        self.free.push(ticket.index());
        let done = work(&pending.request);
        assert!(self.count > 0 && done <= self.open_work, "a request ends that did not begin");
        self.count -= 1;
        self.open_work -= done;
        self.deadlines.end(Class::of(&pending.request), done);
        let places = &self.places;
        self.deadlines.forget_ended(|ticket| is_open(places, ticket));
        let left = pending.running.map(Left::Running).or(pending.held.map(Left::Held));
        Some((pending.request.user, left))
    }

    /// Whether a request of a class may wait for a command to be sent.
    pub(crate) fn is_ready(&self, class: Class) -> bool {
        match class {
            Class::Express => !self.ready.express.is_empty(),
            Class::Bulk => !self.ready.bulk.is_empty(),
        }
    }

    /// The next request of a class to send a command for.
    pub(crate) fn pop_ready(&mut self, class: Class) -> Option<Ticket> {
        loop {
            let ticket = self.ready.of(class).pop_front()?;
            if self.get(ticket).is_some() {
                return Some(ticket);
            }
        }
    }

    /// The request goes on before others.
    pub(crate) fn push_first(&mut self, ticket: Ticket) {
        if let Some(class) = self.class(ticket) {
            self.ready.of(class).push_front(ticket);
        }
    }

    /// What a request waits for, unless it has ended.
    fn class(&mut self, ticket: Ticket) -> Option<Class> {
        self.get(ticket).map(|pending| Class::of(&pending.request))
    }

    pub(crate) fn push_later(&mut self, ticket: Ticket, at: Duration) {
        self.delayed.push_back((at, ticket));
    }

    /// Makes ready what was delayed until now.
    pub(crate) fn wake_delayed(&mut self, now: Duration) {
        while let Some((_, ticket)) = self.delayed.pop_front_if(|(at, _)| *at <= now) {
            if let Some(class) = self.class(ticket) {
                self.ready.of(class).push_back(ticket);
            }
        }
    }

    /// The next request whose time is up.
    pub(crate) fn pop_expired(&mut self, now: Duration) -> Option<Expired> {
        while let Some(expired) = self.deadlines.pop_expired(now) {
            if self.get(expired.ticket).is_some() {
                return Some(expired);
            }
        }
        None
    }

    /// A request whose time was up has time until then, because the disk goes on with it.
    pub(crate) fn extend(&mut self, expired: Expired, until: Duration) {
        self.deadlines.extend(expired, until);
    }

    /// The disk has carried out a command.
    pub(crate) fn note_progress(&mut self, now: Duration) {
        self.deadlines.note_progress(now);
    }

    /// When something of this is due.
    pub(crate) fn next_timeout(&self) -> Option<Duration> {
        let delayed = self.delayed.front().map(|(at, _)| *at);
        [delayed, self.deadlines.next()].into_iter().flatten().min()
    }

    /// The link of `lane` is lost: what it had under way, the youngest first. Reads are ready
    /// again; writes are held until the lane has a session again.
    pub(crate) fn hold_running(&mut self, lane: usize) -> Vec<Ticket> {
        let mut again = Vec::new();
        for (index, place) in self.places.iter_mut().enumerate() {
            if let Some(pending) = place
                && let Some(running) = pending.running.take_if(|running| running.lane == lane)
            {
                let writes = running.planned.kind != Kind::Read;
                if writes && planted(Planted::LostWriteCountsAsDone) {
                    pending.progress = running.planned.then;
                }
                let held = writes && !planted(Planted::HeldWriteSentAtOnce);
                pending.held = held.then_some(lane);
                again.push((Ticket::new(index, pending.serial), held));
            }
        }
        let newest = self.next_serial;
        // Serials wrap: age counts.
        again.sort_by_key(|(ticket, _)| newest.wrapping_sub(ticket.serial()));
        let mut writes = Vec::new();
        for (ticket, held) in again {
            if held {
                writes.push(ticket);
            } else {
                self.push_first(ticket);
            }
        }
        writes
    }

    /// What `lane` has under way, and whether it may change the disk.
    pub(crate) fn running_on(&self, lane: usize) -> Vec<(TaskId, bool)> {
        let all = self.places.iter().flatten().filter_map(|pending| pending.running);
        let here = all.filter(|running| running.lane == lane);
        here.map(|running| (running.task, running.planned.kind != Kind::Read)).collect()
    }

    /// Whether a command that changes the disk is under way, or may be.
    pub(crate) fn may_change_the_disk(&self) -> bool {
        self.places.iter().flatten().any(|pending| {
            let writes = |running: &Running| running.planned.kind != Kind::Read;
            pending.held.is_some() || pending.running.as_ref().is_some_and(writes)
        })
    }

    /// Whether `lane` has a command of this kind under way.
    pub(crate) fn has_on(&self, lane: usize, kind: Kind) -> bool {
        let mut all = self.places.iter().flatten().filter_map(|pending| pending.running);
        all.any(|running| running.lane == lane && running.planned.kind == kind)
    }

    /// The lane has a session again: what it held is ready, the oldest first.
    pub(crate) fn release(&mut self, held: Vec<Ticket>) {
        // The youngest is pushed to the front first.
        for ticket in held {
            if let Some(pending) = self.get(ticket) {
                pending.held = None;
                self.push_first(ticket);
            }
        }
    }

    /// All requests, the oldest first.
    pub(crate) fn all(&self) -> Vec<Ticket> {
        self.those(|_| true)
    }

    /// All requests of which nothing is under way, the oldest first.
    pub(crate) fn idle(&self) -> Vec<Ticket> {
        self.those(|pending| pending.running.is_none())
    }

    fn those(&self, is_meant: impl Fn(&Pending<U>) -> bool) -> Vec<Ticket> {
        let meant = |(at, place): (usize, &Option<Pending<U>>)| {
            let pending = place.as_ref().filter(|pending| is_meant(pending))?;
            Some(Ticket::new(at, pending.serial))
        };
        let mut all: Vec<Ticket> = self.places.iter().enumerate().filter_map(meant).collect();
        let newest = self.next_serial;
        all.sort_by_key(|ticket| core::cmp::Reverse(newest.wrapping_sub(ticket.serial())));
        all
    }
}

/// What a request is for the disk to do, in bytes.
pub(crate) fn work<U>(request: &Request<U>) -> u64 {
    let moved = if matches!(request.op, Op::Read | Op::Write) { request.len } else { 0 };
    moved.max(1)
}

fn is_open<U>(places: &[Option<Pending<U>>], ticket: Ticket) -> bool {
    let pending = places.get(ticket.index()).and_then(Option::as_ref);
    pending.is_some_and(|pending| Ticket::new(ticket.index(), pending.serial) == ticket)
}
