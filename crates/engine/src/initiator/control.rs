//! Control commands beside the block requests: persistent reservations. They are carried out one
//! after the other, since each depends on what the last one left.

use std::collections::VecDeque;

use netraid_block::{Buf, ErrorKind, IoError, SgList, narrow};
use netraid_iscsi_proto::{
    initiator::{Command, TaskEnd},
    machine::TaskId,
    pdu::LunField,
};
use netraid_scsi::cdb::{
    build::CdbBytes,
    reserve::{clear, register, register_and_ignore},
};
use tokio::{sync::oneshot, time::Instant};

use super::{
    actor::{Actor, BUSY_PAUSE},
    lane::{Lane, Stage},
    link::Done,
    probe::without_residual,
    requests::Ticket,
    verdict::{self, Verdict},
};

/// Control commands that may wait.
const WAITING_MAX: usize = 64;

/// What is to be done.
#[derive(Debug)]
pub(super) enum Order {
    /// Registers every session with a key (0: none); `ignore` whatever is registered there.
    Register { key: u64, ignore: bool },
    /// CLEAR, after which no session is registered any more.
    Clear { key: u64 },
    /// Registers a session that came late, then shows that another one is registered still.
    Join { lane: usize, key: u64 },
    /// One command on one session.
    Once { cdb: CdbBytes, parameters: Vec<u8>, read_len: u32 },
}

/// An order, and who waits for its end.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) order: Order,
    pub(super) reply: oneshot::Sender<Result<Vec<u8>, IoError>>,
}

/// The control commands that wait, and the one that is carried out.
#[derive(Default)]
pub(super) struct Controls {
    waiting: VecDeque<(Instant, Control)>,
    active: Option<Active>,
    /// The key that all sessions are registered with.
    key: Option<u64>,
    /// One of these commands was carried out: the disk has reservations.
    are_proven: bool,
}

struct Active {
    control: Control,
    deadline: Instant,
    /// Lanes on which it is still to be done.
    lanes: VecDeque<usize>,
    /// A lane was chosen, or all of them.
    placed: bool,
    running: Option<(usize, TaskId)>,
    /// Not before: the disk was busy.
    not_before: Option<Instant>,
}

impl Controls {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.active.is_none()
    }

    /// Whether one is to be sent as soon as the sessions have room for it.
    pub(super) fn want_room(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.running.is_none())
    }

    /// The key that the sessions are registered with.
    pub(super) fn key(&self) -> Option<u64> {
        self.key
    }

    pub(super) fn insert(&mut self, control: Control, deadline: Instant, place: &str) {
        if self.waiting.len() < WAITING_MAX {
            return self.waiting.push_back((deadline, control));
        }
        let text = format!("{place}: {WAITING_MAX} control commands wait; try again later");
        answer(control, Err(IoError::with_detail(ErrorKind::Device, text)));
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        let waiting = self.waiting.front().map(|(deadline, _)| *deadline);
        let active = self.active.as_ref();
        let deadline = active.map(|active| active.deadline);
        let later = active.and_then(|active| active.not_before);
        [waiting, deadline, later].into_iter().flatten().min()
    }

    /// Ends what has no time left; the command that is under way for it.
    pub(super) fn expire(&mut self, now: Instant, place: &str) -> Option<(usize, TaskId)> {
        let late = |what| {
            let text = format!("{place}: no answer to a control command in time{what}");
            Err(IoError::with_detail(ErrorKind::Timeout, text))
        };
        while let Some((_, control)) = self.waiting.pop_front_if(|(at, _)| *at <= now) {
            answer(control, late(""));
        }
        let active = self.active.take_if(|active| active.deadline <= now)?;
        let what = if active.running.is_some() { "; it may still be carried out" } else { "" };
        answer(active.control, late(what));
        active.running
    }

    /// The link of a lane is lost: whether its command was carried out is not known.
    pub(super) fn lose(&mut self, lane: usize, place: &str) {
        let on_it = |active: &mut Active| active.running.is_some_and(|(at, _)| at == lane);
        if let Some(active) = self.active.take_if(on_it) {
            let text = format!(
                "{place}: connection lost during a control command; whether it was carried out is \
                 not known"
            );
            answer(active.control, Err(IoError::with_detail(ErrorKind::Unreachable, text)));
        }
    }
}

fn answer(control: Control, end: Result<Vec<u8>, IoError>) {
    // Who asked may have gone.
    let _ = control.reply.send(end);
}

impl Active {
    /// The lanes that the order is for; nothing while they cannot be known. Sessions that cannot
    /// be registered now are late: they carry nothing before they have joined.
    fn place(&mut self, lanes: &mut [Lane], now: Instant, half: Instant) {
        match self.control.order {
            Order::Once { .. } | Order::Clear { .. } => {
                self.lanes =
                    lanes.iter().position(|lane| lane.capacity() > 0).into_iter().collect();
                self.placed = !self.lanes.is_empty();
            }
            Order::Register { .. } => {
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
            Order::Join { lane, .. } => {
                let witness = lanes.iter().position(|lane| lane.registered && lane.room() > 0);
                self.lanes = witness.map(|witness| [lane, witness].into()).unwrap_or_default();
                self.placed = witness.is_some();
            }
        }
    }
}

impl Actor {
    /// Sends the next control command when it is time.
    pub(super) fn advance_controls(&mut self) {
        self.begin_join();
        if self.controls.is_empty() {
            return;
        }
        let (now, barred) = (Instant::now(), self.is_barred());
        if self.controls.active.is_none()
            && let Some((deadline, control)) = self.controls.waiting.pop_front()
        {
            let (lanes, placed, running) = (VecDeque::new(), false, None);
            let not_before = None;
            self.controls.active =
                Some(Active { control, deadline, lanes, placed, running, not_before });
        }
        let half = self.dialer.config.request_timeout / 2;
        let Some(active) = &mut self.controls.active else { return };
        if active.running.is_some() || active.not_before.is_some_and(|at| now < at) {
            return;
        }
        active.not_before = None;
        if barred {
            // A write that was given up must not land when a reservation was given back.
            active.not_before = Some((now + BUSY_PAUSE).min(active.deadline));
            return;
        }
        if !active.placed {
            let half = active.deadline.checked_sub(half).unwrap_or(now);
            active.place(&mut self.lanes, now, half);
            if !active.placed {
                // Asked again soon: lanes come up, or the time for waiting is over.
                active.not_before = Some((now + BUSY_PAUSE).min(active.deadline));
                return;
            }
        }
        let Some(at) = active.lanes.front().copied() else { return };
        self.send_control(at);
    }

    /// A session that was not there when the others were registered is to be registered now. Another
    /// host may have taken over since, and must not be undone by that: the session carries nothing
    /// before one of the others has shown, later, that its registration was not removed.
    fn begin_join(&mut self) {
        let key = self.controls.key;
        for lane in &mut self.lanes {
            lane.late = key.is_some() && !lane.registered;
        }
        let idle = self.controls.is_empty() && !self.closed && !self.fenced;
        let Some(key) = key.filter(|_| idle) else { return };
        let late = |lane: &Lane| lane.late && lane.room() > 0;
        let Some(lane) = self.lanes.iter().position(late) else { return };
        let Some(left) = self.lanes[lane].joins_left.checked_sub(1) else {
            tracing::error!(place = %self.place, session = lane, "given up: cannot be registered");
            return self.lanes[lane].give_up();
        };
        self.lanes[lane].joins_left = left;
        let (order, reply) = (Order::Join { lane, key }, oneshot::channel().0);
        let deadline = Instant::now() + self.dialer.config.request_timeout;
        self.controls.insert(Control { order, reply }, deadline, &self.place);
    }

    fn send_control(&mut self, at: usize) {
        let Some(active) = &mut self.controls.active else { return };
        assert!(active.running.is_none(), "one control command at a time");
        let lane = &mut self.lanes[at];
        if lane.room() == 0 {
            // The session was lost, or has no room: the deadline bounds the wait.
            active.not_before = Some(Instant::now() + BUSY_PAUSE);
            return;
        }
        let (cdb, parameters, read_len) = match &active.control.order {
            Order::Register { key, ignore } => {
                let old = self.controls.key.filter(|_| lane.registered).unwrap_or(0);
                let order = if *ignore { register_and_ignore(*key) } else { register(old, *key) };
                (order.cdb, order.parameters, 0)
            }
            Order::Join { lane, key } => {
                let joins = *lane == at;
                let order = if joins { register_and_ignore(*key) } else { register(*key, *key) };
                (order.cdb, order.parameters, 0)
            }
            Order::Clear { key } => {
                let order = clear(*key);
                (order.cdb, order.parameters, 0)
            }
            Order::Once { cdb, parameters, read_len } => (*cdb, parameters.clone(), *read_len),
        };
        let write_len = narrow(parameters.len());
        let lun = LunField::from_number(self.dialer.config.uri.lun);
        let command = Command { lun, cdb, read_len, write_len };
        let data_out: SgList =
            if parameters.is_empty() { SgList::new() } else { Buf::copy_from(&parameters).into() };
        let Some(link) = lane.link() else { return };
        let task = link.submit(command, data_out, Ticket::CONTROL);
        active.running = Some((at, task));
        lane.running += 1;
    }

    /// A control command has ended.
    pub(super) fn handle_control_done(&mut self, at: usize, done: Done) {
        let current = |active: &&mut Active| active.running == Some((at, done.task));
        // One that was given up meanwhile has ended.
        let Some(active) = self.controls.active.as_mut().filter(current) else {
            return self.heed_late(at, &done.end);
        };
        active.running = None;
        let (received, sent) = match &done.end {
            TaskEnd::Status { received, sent, .. } => (*received, *sent),
            TaskEnd::TargetFailure(_) | TaskEnd::Aborted => (0, 0),
        };
        // An answer may be shorter or longer than what it was given room for.
        match verdict::judge(&without_residual(done.end), received, sent, &self.place) {
            Verdict::Success => {
                self.controls.are_proven = true;
                if let Order::Register { key, .. } = active.control.order {
                    self.lanes[at].registered = key != 0;
                }
                active.lanes.pop_front();
                if active.lanes.is_empty() {
                    let data = done.data.map(|data| data.to_vec()).unwrap_or_default();
                    self.end_control(Ok(data));
                }
            }
            Verdict::Attention(attention) => self.heed(at, attention),
            Verdict::Later => active.not_before = Some(Instant::now() + BUSY_PAUSE),
            Verdict::NotSupported { .. } => {
                let text = format!("{}: disk does not support this control command", self.place);
                self.end_control(Err(IoError::with_detail(ErrorKind::Unsupported, text)));
            }
            Verdict::Mismatch(error) | Verdict::Fail(error) => {
                // A conflict may mean that the registration is gone.
                if error.kind() == ErrorKind::Fenced && self.lanes[at].registered {
                    self.lanes[at].examine = true;
                }
                let is_inquiry = matches!(active.control.order, Order::Once { read_len: 1.., .. });
                let is_none = verdict::has_no_reservations(error.kind(), self.controls.are_proven);
                let error = match is_inquiry && is_none {
                    true => IoError::with_detail(ErrorKind::Unsupported, error.to_string()),
                    false => error,
                };
                self.end_control(Err(error));
            }
        }
    }

    fn end_control(&mut self, end: Result<Vec<u8>, IoError>) {
        let Some(active) = self.controls.active.take() else { return };
        match (&active.control.order, &end) {
            (Order::Register { key, .. }, Ok(_)) => {
                self.controls.key = Some(*key).filter(|key| *key != 0);
            }
            (Order::Join { lane, .. }, Ok(_)) => self.lanes[*lane].registered = true,
            (Order::Clear { .. }, Ok(_)) => {
                self.controls.key = None;
                self.lanes.iter_mut().for_each(|lane| lane.registered = false);
            }
            (Order::Join { lane, .. }, Err(error)) => {
                tracing::warn!(place = %self.place, session = lane, %error, "not registered yet");
            }
            (Order::Register { .. } | Order::Clear { .. } | Order::Once { .. }, _) => {}
        }
        answer(active.control, end);
    }
}

impl Lane {
    /// This lane is not used any more.
    fn give_up(&mut self) {
        self.stage = Stage::GivenUp;
        self.bulk = 0;
    }
}
