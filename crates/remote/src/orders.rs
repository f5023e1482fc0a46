//! Orders beside the requests: persistent reservations. They are carried out one after the other, since each depends on
//! what the last one left.
//!
//! Invariant: no order is sent while something that was given up may still change the disk; a registration is given back
//! only when nothing is under way that was sent under it, since whoever registers then would not know of that; and a session that was not
//! there when the others were registered carries nothing before one of them has shown, later, that its registration was
//! not removed.

use alloc::{collections::VecDeque, format, string::ToString, vec::Vec};
use core::time::Duration;

use netraid_block::{Buf, ErrorKind, IoError, SgList, narrow};
use netraid_iscsi_proto::{
    initiator::{Command, TaskEnd},
    machine::TaskId,
    pdu::LunField,
};
use netraid_planted::{Planted, planted};
use netraid_scsi::cdb::reserve::{clear, register, register_and_ignore};

use crate::{
    Remote,
    examination::without_residual,
    interface::{Action, Event, Order, OrderId},
    lane::Lane,
    link::Done,
    remote::BUSY_PAUSE,
    requests::Ticket,
    verdict::{self, Verdict},
};

/// Orders that may wait.
const WAITING_MAX: usize = 64;

/// What is carried out.
enum Job {
    /// An order.
    Asked(OrderId, Order),
    /// Registers a session that came late, then shows that another one is registered still.
    Join { lane: usize, key: u64 },
}

/// The orders that wait, and the one that is carried out.
#[derive(Default)]
pub(crate) struct Orders {
    waiting: VecDeque<(Duration, Job)>,
    active: Option<Active>,
    /// The key that all sessions are registered with.
    key: Option<u64>,
    /// One of these commands was carried out: the disk has reservations.
    are_proven: bool,
    /// A registration was to be given back, whatever came of it.
    were_given_back: bool,
    answers: VecDeque<(OrderId, Result<Vec<u8>, IoError>)>,
}

struct Active {
    job: Job,
    deadline: Duration,
    /// Lanes on which it is still to be done.
    lanes: VecDeque<usize>,
    /// A lane was chosen, or all of them.
    placed: bool,
    running: Option<(usize, TaskId)>,
    /// Not before: the disk was busy.
    not_before: Option<Duration>,
}

impl Orders {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.active.is_none()
    }

    /// Whether one is to be sent as soon as the sessions have room for it.
    #[inline]
    pub(crate) fn want_room(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.running.is_none())
    }

    /// Whether a registration that the sessions have is given back, or is to be as soon as it can.
    #[inline]
    pub(crate) fn give_back(&self) -> bool {
        self.active.as_ref().is_some_and(|active| match &active.job {
            Job::Asked(_, Order::Register { key, .. }) => self.key.is_some_and(|own| own != *key),
            Job::Asked(_, Order::Clear { .. }) => self.key.is_some(),
            Job::Asked(_, Order::Once { .. }) | Job::Join { .. } => false,
        })
    }

    /// Whether the disk was ever told that a registration is given back.
    #[inline]
    pub(crate) const fn were_given_back(&self) -> bool {
        self.were_given_back
    }

    /// The key that the sessions are registered with.
    #[inline]
    pub(crate) fn key(&self) -> Option<u64> {
        self.key
    }

    /// How an order has ended.
    #[inline]
    pub(crate) fn poll_answer(&mut self) -> Option<(OrderId, Result<Vec<u8>, IoError>)> {
        self.answers.pop_front()
    }

    pub(crate) fn insert(&mut self, id: OrderId, order: Order, deadline: Duration, place: &str) {
        let job = Job::Asked(id, order);
        if self.waiting.len() < WAITING_MAX {
            return self.waiting.push_back((deadline, job));
        }
        let text = format!("{place}: {WAITING_MAX} control commands wait; try again later");
        self.answer(job, Err(IoError::with_detail(ErrorKind::Device, text)));
    }

    /// Ends all, as aborted.
    pub(crate) fn abort_all(&mut self) {
        let active = self.active.take().map(|active| active.job);
        let waiting = core::mem::take(&mut self.waiting);
        for job in active.into_iter().chain(waiting.into_iter().map(|(_, job)| job)) {
            self.answer(job, Err(ErrorKind::Aborted.into()));
        }
    }

    fn answer(&mut self, job: Job, end: Result<Vec<u8>, IoError>) {
        match job {
            Job::Asked(id, _) => self.answers.push_back((id, end)),
            // Nobody waits for it.
            Job::Join { .. } => {}
        }
    }

    #[inline]
    pub(crate) fn next_timeout(&self) -> Option<Duration> {
        let waiting = self.waiting.front().map(|(deadline, _)| *deadline);
        let active = self.active.as_ref();
        let deadline = active.map(|active| active.deadline);
        let later = active.and_then(|active| active.not_before);
        [waiting, deadline, later].into_iter().flatten().min()
    }

    /// Ends what has no time left; the command that is under way for it.
    pub(crate) fn expire(&mut self, now: Duration, place: &str) -> Option<(usize, TaskId)> {
        let late = |what| {
            let text = format!("{place}: no answer to a control command in time{what}");
            Err(IoError::with_detail(ErrorKind::Timeout, text))
        };
        while let Some((_, job)) = self.waiting.pop_front_if(|(at, _)| *at <= now) {
            self.answer(job, late(""));
        }
        let active = self.active.take_if(|active| active.deadline <= now)?;
        let what = if active.running.is_some() { "; it may still be carried out" } else { "" };
        self.answer(active.job, late(what));
        active.running
    }

    /// The link of a lane is lost: whether its command was carried out is not known.
    pub(crate) fn lose(&mut self, lane: usize, place: &str) {
        let on_it = |active: &mut Active| active.running.is_some_and(|(at, _)| at == lane);
        if let Some(active) = self.active.take_if(on_it) {
            let text = format!(
                "{place}: connection lost during a control command; whether it was carried out is \
                 not known"
            );
            self.answer(active.job, Err(IoError::with_detail(ErrorKind::Unreachable, text)));
        }
    }
}

impl Active {
    /// The lanes that the order is for; nothing while they cannot be known. Sessions that cannot
    /// be registered now are late: they carry nothing before they have joined.
    fn place(&mut self, lanes: &mut [Lane], own: Option<u64>, (now, half): (Duration, Duration)) {
        match self.job {
            Job::Asked(_, Order::Once { .. } | Order::Clear { .. }) => {
                self.lanes =
                    lanes.iter().position(|lane| lane.capacity() > 0).into_iter().collect();
                self.placed = !self.lanes.is_empty();
            }
            // In its own place registers who is registered there: another one would be registered anew, whoever has
            // removed this side meanwhile, and joins beside these later.
            Job::Asked(_, Order::Register { ignore: false, .. }) if own.is_some() => {
                let is_there = |lane: &Lane| lane.registered && lane.room() > 0;
                let here = lanes.iter().enumerate().filter(|(_, lane)| is_there(lane));
                self.lanes = here.map(|(at, _)| at).collect();
                self.placed = !self.lanes.is_empty();
            }
            Job::Asked(_, Order::Register { .. }) => {
                let pending = |lane: &Lane| !lane.is_given_up() && lane.room() == 0;
                let ready = lanes.iter().any(|lane| lane.room() > 0);
                if !ready || (lanes.iter().any(pending) && now < half) {
                    return;
                }
                // What it is registered with is not known any more.
                let away = lanes.iter_mut().filter(|lane| pending(lane));
                away.for_each(|lane| lane.registered = false);
                let here = lanes.iter().enumerate().filter(|(_, lane)| lane.room() > 0);
                self.lanes = here.map(|(at, _)| at).collect();
                self.placed = true;
            }
            Job::Join { lane, .. } => {
                let witness = lanes.iter().position(|lane| lane.registered && lane.room() > 0);
                self.lanes = witness.map(|witness| [lane, witness].into()).unwrap_or_default();
                if planted(Planted::LateSessionJoinsUnwitnessed) {
                    self.lanes.truncate(1);
                }
                self.placed = witness.is_some();
            }
        }
    }
}

impl<U> Remote<U> {
    /// Sends the next order when it is time.
    pub(crate) fn advance_orders(&mut self) {
        self.begin_join();
        if self.orders.is_empty() {
            return;
        }
        let (now, barred) = (self.now, self.is_barred());
        if self.orders.active.is_none()
            && let Some((deadline, job)) = self.orders.waiting.pop_front()
        {
            let (lanes, placed, running) = (VecDeque::new(), false, None);
            let not_before = None;
            self.orders.active = Some(Active { job, deadline, lanes, placed, running, not_before });
        }
        let half = self.dialer.settings.request_timeout / 2;
        let is_early = self.orders.give_back()
            && self.requests.may_change_the_disk()
            && !planted(Planted::GivenBackBesideWrites);
        let Some(active) = &mut self.orders.active else { return };
        if active.running.is_some() || active.not_before.is_some_and(|at| now < at) {
            return;
        }
        active.not_before = None;
        if barred && !planted(Planted::OrderSentWhileBarred) {
            // A write that was given up must not land when a reservation was given back.
            active.not_before = Some((now + BUSY_PAUSE).min(active.deadline));
            return;
        }
        if is_early {
            // The end of the last one, or the order's deadline, goes on with it.
            return;
        }
        if !active.placed {
            let half = active.deadline.checked_sub(half).unwrap_or(now);
            active.place(&mut self.lanes, self.orders.key, (now, half));
            if !active.placed {
                // Asked again soon: lanes come up, or the time for waiting is over.
                active.not_before = Some((now + BUSY_PAUSE).min(active.deadline));
                return;
            }
        }
        let Some(at) = active.lanes.front().copied() else { return };
        self.send_order(at);
    }

    /// A session that was not there when the others were registered is to be registered now. Another
    /// host may have taken over since, and must not be undone by that: the session carries nothing
    /// before one of the others has shown, later, that its registration was not removed.
    fn begin_join(&mut self) {
        let key = self.orders.key;
        for lane in &mut self.lanes {
            lane.late = key.is_some() && !lane.registered;
        }
        let idle = self.orders.is_empty() && !self.is_closed && !self.status.is_fenced;
        let Some(key) = key.filter(|_| idle) else { return };
        // One that cannot be registered is given up when nothing is under way: nobody else could tell its end.
        let may_go = |lane: &Lane| lane.joins_left > 0 || lane.running == 0;
        let late = |lane: &Lane| lane.late && lane.room() > 0 && may_go(lane);
        let Some(lane) = self.lanes.iter().position(late) else { return };
        let Some(left) = self.lanes[lane].joins_left.checked_sub(1) else {
            self.tell(Event::GivenUp { session: lane });
            self.disconnect(lane);
            return self.lanes[lane].give_up();
        };
        self.lanes[lane].joins_left = left;
        let deadline = self.now + self.dialer.settings.request_timeout;
        self.orders.waiting.push_back((deadline, Job::Join { lane, key }));
    }

    fn send_order(&mut self, at: usize) {
        let gives_back = self.orders.give_back();
        let Some(active) = &mut self.orders.active else { return };
        assert!(active.running.is_none(), "one order at a time");
        let lane = &mut self.lanes[at];
        let in_place = matches!(active.job, Job::Asked(_, Order::Register { ignore: false, .. }));
        if in_place && self.orders.key.is_some() && !lane.registered {
            // It is another session by now, which would be registered anew.
            let text = format!(
                "{}: a session was lost before its registration was made anew in its place",
                self.dialer.settings.place
            );
            return self.end_order(Err(IoError::with_detail(ErrorKind::Unreachable, text)));
        }
        if lane.room() == 0 {
            // The session was lost, or has no room: the deadline bounds the wait.
            active.not_before = Some(self.now + BUSY_PAUSE);
            return;
        }
        let (cdb, parameters, read_len) = match &active.job {
            Job::Asked(_, Order::Register { key, ignore }) => {
                let old = self.orders.key.filter(|_| lane.registered).unwrap_or(0);
                let order = if *ignore { register_and_ignore(*key) } else { register(old, *key) };
                (order.cdb, order.parameters, 0)
            }
            Job::Join { lane, key } => {
                let joins = *lane == at;
                let order = if joins { register_and_ignore(*key) } else { register(*key, *key) };
                (order.cdb, order.parameters, 0)
            }
            Job::Asked(_, Order::Clear { key }) => {
                let order = clear(*key);
                (order.cdb, order.parameters, 0)
            }
            Job::Asked(_, Order::Once { cdb, parameters, read_len }) => {
                (*cdb, parameters.clone(), *read_len)
            }
        };
        let write_len = narrow(parameters.len());
        let lun = LunField::from_number(self.dialer.settings.lun);
        let command = Command { lun, cdb, read_len, write_len };
        let data_out: SgList =
            if parameters.is_empty() { SgList::new() } else { Buf::copy_from(&parameters).into() };
        let Some(link) = lane.link() else { return };
        let task = link.submit(self.now, command, data_out, Ticket::CONTROL);
        active.running = Some((at, task));
        lane.running += 1;
        self.orders.were_given_back |= gives_back;
    }

    /// The command of an order has ended.
    pub(crate) fn handle_order_done(&mut self, at: usize, done: Done) {
        let current = |active: &&mut Active| active.running == Some((at, done.task));
        // One that was given up meanwhile has ended.
        let Some(active) = self.orders.active.as_mut().filter(current) else {
            return self.heed_late(at, &done.end);
        };
        active.running = None;
        let (received, sent) = match &done.end {
            TaskEnd::Status { received, sent, .. } => (*received, *sent),
            TaskEnd::TargetFailure(_) | TaskEnd::Aborted => (0, 0),
        };
        let place = &self.dialer.settings.place;
        // An answer may be shorter or longer than what it was given room for.
        match verdict::judge(&without_residual(done.end), received, sent, place) {
            Verdict::Success => {
                self.orders.are_proven = true;
                if let Job::Asked(_, Order::Register { key, .. }) = active.job {
                    self.lanes[at].registered = key != 0;
                }
                active.lanes.pop_front();
                if active.lanes.is_empty() {
                    let data = done.data.map(|data| data.to_vec()).unwrap_or_default();
                    self.end_order(Ok(data));
                }
            }
            Verdict::Attention(attention) => self.heed(at, attention),
            Verdict::Later => active.not_before = Some(self.now + BUSY_PAUSE),
            Verdict::NotSupported { .. } => {
                let text = format!("{place}: disk does not support this control command");
                self.end_order(Err(IoError::with_detail(ErrorKind::Unsupported, text)));
            }
            Verdict::Mismatch(error) | Verdict::Fail(error) => {
                // A conflict may mean that the registration is gone.
                if error.kind() == ErrorKind::Fenced && self.lanes[at].registered {
                    self.lanes[at].examine = true;
                }
                let is_inquiry =
                    matches!(active.job, Job::Asked(_, Order::Once { read_len: 1.., .. }));
                let is_none = verdict::has_no_reservations(error.kind(), self.orders.are_proven);
                // A disk that says that it cannot reach what keeps its registrations (LIO without its state directory)
                // has answered.
                let registers = matches!(active.job, Job::Asked(_, Order::Register { .. }));
                let has_answered = registers && error.kind() == ErrorKind::Unreachable;
                let error = match (is_inquiry && is_none, has_answered) {
                    (true, _) => IoError::with_detail(ErrorKind::Unsupported, error.to_string()),
                    (_, true) => IoError::with_detail(ErrorKind::Device, error.to_string()),
                    (false, false) => error,
                };
                self.end_order(Err(error));
            }
        }
    }

    fn end_order(&mut self, end: Result<Vec<u8>, IoError>) {
        let Some(active) = self.orders.active.take() else { return };
        match (&active.job, &end) {
            (Job::Asked(_, Order::Register { key, .. }), Ok(_)) => {
                self.orders.key = Some(*key).filter(|key| *key != 0);
            }
            (Job::Join { lane, .. }, Ok(_)) => self.lanes[*lane].registered = true,
            (Job::Asked(_, Order::Clear { .. }), Ok(_)) => {
                self.orders.key = None;
                self.lanes.iter_mut().for_each(|lane| lane.registered = false);
            }
            (Job::Join { lane, .. }, Err(error)) => {
                let (session, reason) = (*lane, error.to_string());
                self.actions.push_back(Action::Tell(Event::NotRegistered { session, reason }));
            }
            (Job::Asked(_, Order::Register { .. } | Order::Clear { .. }), Err(_))
            | (Job::Asked(_, Order::Once { .. }), _) => {}
        }
        self.orders.answer(active.job, end);
    }
}
