//! One connection of a target, which is also one session.

use alloc::{boxed::Box, collections::VecDeque, sync::Arc, vec::Vec};
use core::time::Duration;

use netraid_block::narrow;

use super::{
    Challenge, Event, Outcome, Plan, RefusedLogin, Setup,
    exchange::Exchange,
    fault::Fault,
    login::Login,
    management::{Management, Owed},
    node::{ConnectionId, Link, Node, Order, Seat, Standing},
    preempt::Preemption,
    statistics::{Counters, Traffic},
    tasks::Tasks,
    window::Window,
};
use crate::{
    machine::{CONTROL_LEN_MAX, Digests, Fatal, Payload, Placement, TaskId, Transmit},
    negotiation::{Params, SessionType},
    pdu::{
        AsyncEvent, AsyncMessage, Bhs, DataOut, LoginResponse, LunField, NO_TAG, NopIn, Opcode,
        Reject, RejectReason, ScsiCommand,
    },
    serial::Serial,
};

/// Control PDUs that wait to be sent before the peer's further requests are left in its socket.
const CONTROL_QUEUE_MAX: usize = 64;

/// How many times the usual patience a peer has that is slow to take what is sent to it.
const SLOW_READER: u32 = 2;

/// How long a peer has to log out once it was asked to, and then to take what is left to say.
const GRACE: Duration = Duration::from_secs(1);

/// The PDU at hand, between its header and the end of its data segment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Current {
    #[default]
    Nothing,
    Command {
        task: TaskId,
        len: u32,
        last: bool,
    },
    DataOut {
        task: TaskId,
        len: u32,
        last: bool,
    },
    Control(Bhs),
    /// Its data goes to nobody.
    Ignored,
}

/// How far a connection is.
#[derive(Debug)]
pub(super) enum Phase {
    Login(Box<Login>),
    /// The login is complete but for the end of the session that it replaces.
    Admission {
        login: Box<Login>,
        response: LoginResponse,
        text: Vec<u8>,
        cid: u16,
    },
    Full,
    /// Sends what is queued, then ends; nothing more is queued.
    Closing,
}

/// A PDU that is no task's.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) header: Bhs,
    pub(super) data: Vec<u8>,
    /// Takes a status number of its own.
    pub(super) has_status: bool,
    pub(super) digests: Digests,
}

/// One connection: see the module `machine` for how it is driven.
#[derive(Debug)]
pub struct Connection {
    pub(super) id: ConnectionId,
    pub(super) setup: Arc<Setup>,
    pub(super) link: Link,
    pub(super) counters: Arc<Counters>,
    traffic: Arc<Traffic>,
    pub(super) phase: Phase,
    pub(super) session: SessionType,
    pub(super) standing: Standing,
    pub(super) cid: u16,
    pub(super) params: Params,
    pub(super) digests: Digests,
    pub(super) stat_sn: Serial,
    pub(super) window: Window,
    pub(super) tasks: Tasks,
    pub(super) current: Current,
    pub(super) control: VecDeque<Control>,
    pub(super) events: VecDeque<Event>,
    pub(super) management: Vec<Management>,
    pub(super) preemptions: Vec<Preemption>,
    pub(super) owed: Vec<Owed>,
    pub(super) exchange: Exchange,
    pub(super) next_tag: u32,
    /// The latest time that was told.
    pub(super) latest: Duration,
    last_received: Duration,
    last_moved: Duration,
    ping_sent: Option<Duration>,
    /// End of the login, or of the grace before closing.
    deadline: Option<Duration>,
    pub(super) refused: Option<RefusedLogin>,
}

impl Connection {
    /// A connection that was just accepted, and has its seat from [`Node::open`].
    #[must_use]
    pub fn new(now: Duration, seat: Seat, setup: Arc<Setup>, challenge: Challenge) -> Self {
        let login = Login::new(&setup, challenge);
        let Seat { id, link, counters, traffic, budget } = seat;
        Self {
            id,
            link,
            counters,
            traffic,
            phase: Phase::Login(Box::new(login)),
            session: SessionType::Normal,
            standing: Standing::default(),
            cid: 0,
            params: Params::DEFAULT,
            digests: Digests::default(),
            stat_sn: Serial(1),
            window: Window::default(),
            tasks: Tasks::new(setup.queue_depth, setup.data_budget, budget),
            current: Current::Nothing,
            control: VecDeque::new(),
            events: VecDeque::new(),
            management: Vec::new(),
            preemptions: Vec::new(),
            owed: Vec::new(),
            exchange: Exchange::default(),
            next_tag: 1,
            latest: now,
            last_received: now,
            last_moved: now,
            ping_sent: None,
            deadline: Some(now + setup.login_timeout),
            refused: None,
            setup,
        }
    }

    /// Whose connection this is among its node's.
    #[must_use]
    pub const fn id(&self) -> ConnectionId {
        self.id
    }

    /// The login, once it was refused.
    #[must_use]
    pub const fn refused_login(&self) -> Option<&RefusedLogin> {
        self.refused.as_ref()
    }

    /// Number of places for tasks.
    #[must_use]
    pub fn task_count(&self) -> usize {
        self.tasks.count()
    }

    /// The task whose [`TaskId::index`] this is.
    #[must_use]
    pub fn task_at(&self, index: usize) -> Option<TaskId> {
        if index >= self.task_count() {
            return None;
        }
        u16::try_from(index).ok().map(TaskId)
    }

    /// The tag by which the initiator knows a task; none when nobody has its place.
    #[must_use]
    pub fn tag_of(&self, task: TaskId) -> Option<u32> {
        self.tasks.tag(task)
    }

    /// The digests of the next PDU from the peer.
    #[must_use]
    pub const fn receive_digests(&self) -> Digests {
        self.digests
    }

    /// Whether the peer's next PDU may be taken; else send first.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        self.control.len() < CONTROL_QUEUE_MAX && !matches!(self.phase, Phase::Closing)
    }

    /// Whether all is said: the socket is to be flushed and closed.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Closing) && self.control.is_empty()
    }

    /// Whether no task is with the shell.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.tasks.nothing_executes()
    }

    /// Whether a task that is with the shell was aborted: it is to end without a further step,
    /// with any outcome.
    #[must_use]
    pub fn is_aborted(&self, task: TaskId) -> bool {
        self.tasks.is_aborted(task)
    }

    /// Whether a task that was planned waits for memory, or for a grant to execute.
    #[must_use]
    pub fn is_waiting(&self, task: TaskId) -> bool {
        self.tasks.is_waiting(task)
    }

    /// The socket is gone: all tasks are aborted, and nothing more is said.
    pub fn handle_disconnect(&mut self) {
        self.current = Current::Nothing;
        self.close();
        self.control.clear();
    }

    /// What is counted over all connections of the target.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Takes a header, whose digest is right.
    ///
    /// # Errors
    /// When the connection must be dropped.
    pub fn handle_header(&mut self, now: Duration, bhs: &Bhs) -> Result<(), Fatal> {
        self.latest = self.latest.max(now);
        self.last_received = self.latest;
        self.ping_sent = None;
        let limit = self.params.max_recv_len;
        let len = bhs.data_len();
        self.traffic.pdus_in.add(1);
        self.traffic.bytes_in.add(u64::from(len));
        if len > limit {
            return Err(Fatal::Oversize { len, limit });
        }
        self.current = match (&self.phase, bhs.opcode()) {
            (Phase::Full, Some(Opcode::ScsiCommand)) if self.session == SessionType::Normal => {
                self.handle_command(bhs)?
            }
            (Phase::Full, Some(Opcode::DataOut)) => self.handle_data_out(bhs),
            (Phase::Full, _) | (Phase::Login(_), Some(Opcode::LoginRequest)) => {
                if len > CONTROL_LEN_MAX {
                    return Err(Fatal::Oversize { len, limit: CONTROL_LEN_MAX });
                }
                Current::Control(*bhs)
            }
            (Phase::Login(_), _) => return Err(Fatal::Protocol("no login came first")),
            (Phase::Admission { .. }, _) => {
                return Err(Fatal::Protocol("a request came before the login response"));
            }
            (Phase::Closing, _) => Current::Ignored,
        };
        Ok(())
    }

    /// What the socket did since this was called last, to be told before `handle_timeout`:
    /// whether bytes moved, and whether any wait that it does not take. A peer that takes its time
    /// over a long PDU, or over what is sent to it, is not silent; but what a socket takes says
    /// little of a slow reader, so that one has [`SLOW_READER`] times as long.
    pub fn handle_progress(&mut self, now: Duration, moved: bool, blocked: bool) {
        self.latest = self.latest.max(now);
        if moved {
            self.last_moved = self.latest;
        }
        let patience = self.setup.ping_timeout * SLOW_READER;
        let slow = blocked && self.latest < self.last_moved.max(self.last_received) + patience;
        if let Some(sent) = &mut self.ping_sent
            && (moved || slow)
        {
            *sent = self.latest;
        }
    }

    /// Where the data segment of the PDU at hand belongs.
    #[must_use]
    pub fn placement(&self) -> Placement {
        match self.current {
            Current::Control(_) => Placement::Control,
            Current::Command { task, len, .. } => self.tasks.place_immediate(task, len),
            Current::DataOut { task, len, .. } => self.tasks.place_data_out(task, len),
            Current::Nothing | Current::Ignored => Placement::Discard,
        }
    }

    /// The data segment is where it belongs, and its digest is right.
    pub fn handle_data(&mut self) {
        let ended = match core::mem::take(&mut self.current) {
            Current::Command { task, len, last } => {
                let (params, events) = (&self.params, &mut self.events);
                self.tasks.immediate_in_place(task, len, last, params, events).then_some(task)
            }
            Current::DataOut { task, len, last } => {
                let (params, events) = (&self.params, &mut self.events);
                self.tasks.data_in_place(task, len, last, params, events).then_some(task)
            }
            Current::Nothing | Current::Ignored | Current::Control(_) => None,
        };
        if let Some(task) = ended {
            self.task_ended(task);
        }
    }

    /// The data segment's digest is wrong: the PDU is refused, and a command whose data it was
    /// ends with CHECK CONDITION (RFC 7143, section 7.8). Then as `handle_data`.
    pub fn handle_bad_digest(&mut self, bhs: &Bhs) {
        self.counters.digest_errors.add(1);
        match self.current {
            Current::Command { task, .. } | Current::DataOut { task, .. } => {
                self.reject(bhs, RejectReason::DataDigest);
                self.tasks.fault(task, Fault::Digest);
                self.handle_data();
            }
            Current::Control(_) => {
                self.reject_request(bhs, RejectReason::DataDigest);
                self.current = Current::Nothing;
            }
            Current::Nothing | Current::Ignored => {
                self.reject(bhs, RejectReason::DataDigest);
                self.current = Current::Nothing;
            }
        }
    }

    /// What the logical unit says of a command that it took.
    pub fn handle_plan(&mut self, task: TaskId, plan: Plan) {
        let unsolicited = match self.current {
            Current::Command { task: current, len, last } if current == task => len > 0 || !last,
            Current::Command { .. }
            | Current::Nothing
            | Current::DataOut { .. }
            | Current::Control(_)
            | Current::Ignored => false,
        };
        self.tasks.plan(task, plan, unsolicited, &mut self.events);
    }

    /// What a task asked for by [`Event::AskGrant`] is granted.
    pub fn handle_grant(&mut self, task: TaskId) {
        self.tasks.grant(task, &mut self.events);
    }

    /// How a command ended.
    pub fn handle_outcome(&mut self, task: TaskId, outcome: Outcome) {
        if self.tasks.outcome(task, outcome, &mut self.events) {
            self.task_ended(task);
        }
    }

    /// A request of a task that executes went to the device of another logical unit than the
    /// task's own (a copy makes such), or has ended there, when none. Who ends the tasks of that
    /// unit waits for it.
    pub fn handle_visit(&mut self, task: TaskId, lun: Option<u16>) {
        self.tasks.visit(task, lun);
        if lun.is_none() {
            self.task_ended(task);
        }
    }

    /// The node has something for this connection.
    pub fn handle_wake(&mut self, node: &mut Node) {
        while let Some(order) = node.take_order(self.id) {
            match order {
                Order::Close => {
                    self.announce(AsyncEvent::SessionDropped, 0);
                    self.close();
                }
                Order::Abort { lun, ticket, cause } => self.abort_for(node, lun, ticket, cause),
            }
        }
        self.settle_management(node);
        self.seek_admission(node, true);
    }

    /// The target is shutting down: asks the peer to log out, gives it a second, and then drops the
    /// session (RFC 7143, section 11.9.1, events 1 and 3).
    pub fn handle_shutdown(&mut self, now: Duration) {
        self.latest = self.latest.max(now);
        if matches!(self.phase, Phase::Full) {
            self.announce(AsyncEvent::LogoutRequested, 1);
            self.deadline = Some(now + GRACE);
        } else {
            self.close();
        }
    }

    /// Time has passed.
    ///
    /// # Errors
    /// When the connection must be dropped.
    pub fn handle_timeout(&mut self, now: Duration) -> Result<(), Fatal> {
        self.latest = self.latest.max(now);
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return match self.phase {
                Phase::Full => {
                    self.announce(AsyncEvent::SessionDropped, 0);
                    self.close();
                    Ok(())
                }
                Phase::Login(_) | Phase::Admission { .. } => Err(Fatal::LoginTimeout),
                Phase::Closing => Err(Fatal::Silent),
            };
        }
        if !matches!(self.phase, Phase::Full) {
            return Ok(());
        }
        self.expire_management(now);
        match self.ping_sent {
            // Its commands run: it has something to wait for, and is told when they end.
            Some(sent) if now >= sent + self.setup.ping_timeout && !self.is_idle() => {
                self.ping_sent = Some(now);
                Ok(())
            }
            Some(sent) if now >= sent + self.setup.ping_timeout => Err(Fatal::Silent),
            None if now >= self.last_received + self.setup.ping_interval => {
                self.ping_sent = Some(now);
                let ttt = self.take_tag();
                let header = NopIn { lun: LunField::default(), itt: NO_TAG, ttt }.encode();
                self.push_control(header, Vec::new(), false);
                Ok(())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// When `handle_timeout` is to be called next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        let ping = match (&self.phase, self.ping_sent) {
            (Phase::Full, Some(sent)) => Some(sent + self.setup.ping_timeout),
            (Phase::Full, None) => Some(self.last_received + self.setup.ping_interval),
            (Phase::Login(_) | Phase::Admission { .. } | Phase::Closing, _) => None,
        };
        [ping, self.deadline, self.management_deadline()].into_iter().flatten().min()
    }

    /// What the shell is to do next.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next PDU to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        let (mut header, payload, has_status, digests) = match self.control.pop_front() {
            Some(Control { header, data, has_status, digests }) => {
                let payload = if data.is_empty() { Payload::None } else { Payload::Control(data) };
                (header, payload, has_status, digests)
            }
            None if matches!(self.phase, Phase::Full) => {
                let pdu = self.tasks.transmit(&self.params, &mut self.events)?;
                (pdu.header, pdu.payload, pdu.has_status, self.digests)
            }
            None => return None,
        };
        if let Payload::Control(data) = &payload {
            // Control data is bounded far below 2^24.
            header = header.with_data_len(narrow(data.len()));
        }
        header.stamp_stat_sn(self.stat_sn);
        if has_status {
            self.stat_sn = self.stat_sn.next();
        }
        self.window.stamp(&mut header, self.tasks.window());
        self.traffic.pdus_out.add(1);
        self.traffic.bytes_out.add(u64::from(header.data_len()));
        Some(Transmit { header, payload, digests })
    }

    fn handle_command(&mut self, bhs: &Bhs) -> Result<Current, Fatal> {
        let command = ScsiCommand::parse(bhs);
        let len = bhs.data_len();
        if !self.window.admits(bhs)? {
            return Ok(Current::Ignored);
        }
        let limit =
            if command.write { self.params.first_burst_len.min(command.expected_len) } else { 0 };
        let unexpected = len > limit
            || (len > 0 && !self.params.immediate_data)
            || (!command.last && (!command.write || self.params.initial_r2t));
        let task = match self.tasks.insert(&command) {
            Ok(task) => task,
            Err(reason) => {
                self.reject_request(bhs, reason);
                return Ok(Current::Ignored);
            }
        };
        self.window.take(bhs);
        self.traffic.commands.add(1);
        if unexpected {
            self.tasks.fault(task, Fault::Unexpected);
        }
        let (data_out_max, data_in_max) = self.tasks.limits(task);
        let (lun, cdb) = (command.lun, command.cdb);
        self.events.push_back(Event::Command { task, lun, cdb, data_out_max, data_in_max });
        Ok(Current::Command { task, len, last: command.last })
    }

    fn handle_data_out(&mut self, bhs: &Bhs) -> Current {
        let pdu = DataOut::parse(bhs);
        let len = bhs.data_len();
        match self.tasks.accept_data_out(&pdu, len, &self.params) {
            Some(task) => Current::DataOut { task, len, last: pdu.last },
            // Of a task that has ended: aborted, or refused before its data came.
            None => Current::Ignored,
        }
    }

    /// Rejects a request of which nothing was done.
    pub(super) fn reject_request(&mut self, bhs: &Bhs, reason: RejectReason) {
        self.window.reject(bhs);
        self.reject(bhs, reason);
    }

    /// Enters full feature phase or leaves it: sets what later PDUs depend on.
    pub(super) fn enter_full_feature(&mut self, params: Params, session: SessionType) {
        self.digests = Digests { header: params.header_digest, data: params.data_digest };
        if self.setup.paced {
            self.tasks.pace(params.max_burst_len);
        }
        self.params = params;
        self.session = session;
        self.phase = Phase::Full;
        self.deadline = None;
    }

    pub(super) fn close(&mut self) {
        self.phase = Phase::Closing;
        self.deadline = Some(self.latest + GRACE);
        let receiving = self.receiving();
        // What executes ends later; nobody is told.
        let _ = self.tasks.abort(|_, _| true, receiving, &mut self.events);
        self.settle_preemptions();
    }

    /// Aborts the tasks that `chosen` names: those that are still to end, and how many there were.
    pub(super) fn abort_tasks(
        &mut self,
        chosen: impl Fn(u32, LunField) -> bool,
    ) -> (Vec<TaskId>, usize) {
        let receiving = self.receiving();
        let (left, count) = self.tasks.abort(chosen, receiving, &mut self.events);
        self.traffic.aborted_tasks.add(count as u64);
        self.counters.aborted_tasks.add(count as u64);
        self.settle_preemptions();
        (left, count)
    }

    fn receiving(&self) -> Option<TaskId> {
        match self.current {
            Current::Command { task, .. } | Current::DataOut { task, .. } => Some(task),
            Current::Nothing | Current::Control(_) | Current::Ignored => None,
        }
    }

    pub(super) fn reject(&mut self, bhs: &Bhs, reason: RejectReason) {
        self.counters.rejected_pdus.add(1);
        let header = Reject { reason }.encode();
        self.push_control(header, bhs.0.to_vec(), true);
    }

    fn announce(&mut self, event: AsyncEvent, seconds: u16) {
        if !matches!(self.phase, Phase::Full) {
            return;
        }
        let message = AsyncMessage {
            event,
            lun: LunField::default(),
            parameter1: 0,
            parameter2: 0,
            parameter3: seconds,
        };
        self.push_control(message.encode(), Vec::new(), true);
    }

    /// Queues a PDU, unless the last one was queued already: a task that ends later has nobody to
    /// tell.
    pub(super) fn push_control(&mut self, header: Bhs, data: Vec<u8>, has_status: bool) {
        if matches!(self.phase, Phase::Closing) {
            return;
        }
        let digests = self.digests;
        self.control.push_back(Control { header, data, has_status, digests });
    }

    pub(super) fn take_tag(&mut self) -> u32 {
        let tag = self.next_tag;
        self.next_tag = if tag + 1 == NO_TAG { 1 } else { tag + 1 };
        tag
    }
}
