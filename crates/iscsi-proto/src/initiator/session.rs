//! One session of an initiator.

use alloc::{boxed::Box, collections::VecDeque, sync::Arc, vec::Vec};
use core::time::Duration;

use netraid_block::narrow;

use super::{
    Command, Event, Setup, TaskEnd,
    discovery::{Discovery, Found},
    login::{Login, Step},
    tasks::{Abort, Moved, Moves, Tasks},
};
use crate::{
    machine::{CONTROL_LEN_MAX, Digests, Fatal, Payload, Placement, TaskId, Transmit},
    negotiation::{Params, SessionType},
    pdu::{
        AsyncEvent, AsyncMessage, Bhs, DataIn, LoginResponse, LogoutReason, LogoutRequest, NO_TAG,
        NopIn, NopOut, Opcode, R2t, Reject, ScsiResponse, TaskFunction, TaskRequest, TaskResponse,
        TaskResponseCode, TextResponse,
    },
    serial::Serial,
};

/// Tags of requests that are no tasks, with that of [`Discovery`]: their low half is above every
/// task's place.
const LOGIN_TAG: u32 = 0xff01;
const LOGOUT_TAG: u32 = 0xff02;
const PING_TAG: u32 = 0xff04;
const ABORT_TAG: u32 = 0xff10;

/// Control PDUs that wait to be sent before the target's further PDUs are left in its socket.
const CONTROL_QUEUE_MAX: usize = 64;

/// The PDU at hand, between its header and the end of its data segment.
#[derive(Debug, Clone, Copy, Default)]
enum Current {
    #[default]
    Nothing,
    DataIn {
        task: TaskId,
        len: u32,
        pdu: DataIn,
    },
    Control(Bhs),
    Ignored,
}

#[derive(Debug)]
enum Phase {
    Login(Box<Login>),
    Full,
    /// A logout request was sent.
    LoggingOut,
    Closed,
}

#[derive(Debug)]
struct Control {
    header: Bhs,
    data: Vec<u8>,
    /// Carries the CmdSN of the next command without taking it.
    immediate: bool,
}

/// One session: see the module `machine` for how it is driven.
#[derive(Debug)]
pub struct Session {
    setup: Arc<Setup>,
    phase: Phase,
    kind: SessionType,
    portal_group: Option<u16>,
    params: Params,
    digests: Digests,
    cmd_sn: Serial,
    max_cmd_sn: Serial,
    /// `None` until the target's first response.
    exp_stat_sn: Option<Serial>,
    tasks: Tasks,
    current: Current,
    control: VecDeque<Control>,
    events: VecDeque<Event>,
    /// The target asked for the end of the session, or the owner did.
    ending: bool,
    discovery: Discovery,
    next_abort: u32,
    /// The latest time that was told.
    latest: Duration,
    /// When the target was heard last, or a first command made its silence matter.
    last_activity: Duration,
    ping_sent: Option<Duration>,
    deadline: Option<Duration>,
}

impl Session {
    /// A session on a connection that was just made; its login begins at once.
    #[must_use]
    pub fn new(now: Duration, setup: Arc<Setup>) -> Self {
        let (login, request, text) = Login::start(&setup, LOGIN_TAG);
        let mut session = Self {
            phase: Phase::Login(Box::new(login)),
            kind: SessionType::Normal,
            portal_group: None,
            params: Params { max_recv_len: setup.wishes.max_recv_len, ..Params::DEFAULT },
            digests: Digests::default(),
            cmd_sn: Serial(setup.first_cmd_sn),
            max_cmd_sn: Serial(setup.first_cmd_sn),
            exp_stat_sn: None,
            tasks: Tasks::new(setup.queue_depth),
            current: Current::Nothing,
            control: VecDeque::new(),
            events: VecDeque::new(),
            ending: false,
            discovery: Discovery::default(),
            next_abort: 0,
            latest: now,
            last_activity: now,
            ping_sent: None,
            deadline: Some(now + setup.login_timeout),
            setup,
        };
        session.push_control(request.encode(), text);
        session
    }

    /// Number of places for tasks.
    #[must_use]
    pub fn task_count(&self) -> usize {
        self.tasks.count()
    }

    /// What was agreed on.
    #[must_use]
    pub const fn params(&self) -> &Params {
        &self.params
    }

    /// The target portal group that was logged in to (RFC 7143, section 13.9), when the target
    /// named it. A session ends another one of the same name and ISID only within its group.
    #[must_use]
    pub const fn portal_group(&self) -> Option<u16> {
        self.portal_group
    }

    /// The digests of the next PDU from the target.
    #[must_use]
    pub const fn receive_digests(&self) -> Digests {
        self.digests
    }

    /// Whether the target's next PDU may be taken; else send first.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        self.control.len() < CONTROL_QUEUE_MAX
    }

    /// Commands that may be submitted now.
    #[must_use]
    pub fn capacity(&self) -> usize {
        if !matches!(self.phase, Phase::Full) || self.ending {
            return 0;
        }
        // Clamped: there are fewer places.
        let window = usize::try_from(self.window()).unwrap_or(usize::MAX);
        self.tasks.free_count().min(window.saturating_sub(self.tasks.unsent()))
    }

    /// Whether no command is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.tasks.is_empty()
    }

    /// What the target has done for all commands there ever were.
    #[must_use]
    pub const fn all_moves(&self) -> Moves {
        self.tasks.all_moves()
    }

    /// What the target has done for a command that was submitted and has not ended.
    #[must_use]
    pub fn moves(&self, task: TaskId) -> Moves {
        self.tasks.moves(task)
    }

    /// Submits a command; the shell keeps its data by the returned place.
    ///
    /// # Panics
    /// When [`Self::capacity`] is 0, or the command moves data both ways.
    pub fn submit(&mut self, now: Duration, command: Command) -> TaskId {
        assert!(self.capacity() > 0, "no room for a command");
        assert!(command.read_len == 0 || command.write_len == 0, "data goes one way");
        if self.tasks.is_empty() {
            self.last_activity = self.last_activity.max(now);
        }
        match self.tasks.insert(command) {
            Some(task) => task,
            None => unreachable!("capacity counts free places"),
        }
    }

    /// Asks the target to abort a task; it ends by an event, or `AbortFailed` comes.
    pub fn abort(&mut self, task: TaskId) {
        let itt = ABORT_TAG | self.next_abort << 16;
        self.next_abort = (self.next_abort + 1) & 0x7fff;
        match self.tasks.begin_abort(task, itt) {
            Some(Abort::Unsent) => {
                self.events.push_back(Event::Completed { task, end: TaskEnd::Aborted });
            }
            Some(Abort::Ask { itt: referenced_itt, cmd_sn, lun }) => {
                let function = TaskFunction::AbortTask;
                let ref_cmd_sn = cmd_sn.0;
                let immediate = true;
                let request =
                    TaskRequest { immediate, function, lun, itt, referenced_itt, ref_cmd_sn };
                self.push_control(request.encode(), Vec::new());
            }
            None => {}
        }
    }

    /// Ends the session once all tasks have ended.
    pub fn logout(&mut self, now: Duration) {
        self.ending = true;
        self.latest = self.latest.max(now);
        self.log_out_when_idle();
    }

    /// Takes a header, whose digest is right.
    ///
    /// # Errors
    /// When the connection must be dropped.
    pub fn handle_header(&mut self, now: Duration, bhs: &Bhs) -> Result<(), Fatal> {
        self.latest = self.latest.max(now);
        self.last_activity = self.latest;
        self.ping_sent = None;
        let (len, limit) = (bhs.data_len(), self.params.max_recv_len);
        if len > limit {
            return Err(Fatal::Oversize { len, limit });
        }
        let opcode = bhs.opcode().ok_or(Fatal::Protocol("unknown opcode"))?;
        if matches!(self.phase, Phase::Login(_)) != (opcode == Opcode::LoginResponse) {
            return Err(Fatal::Protocol("login response out of place"));
        }
        self.take_window(bhs);
        self.current = match opcode {
            Opcode::DataIn => {
                let pdu = DataIn::parse(bhs);
                if pdu.has_status {
                    self.take_status_number(bhs)?;
                }
                match self.tasks.accept_data_in(&pdu, len, self.latest)? {
                    Some(task) => Current::DataIn { task, len, pdu },
                    None => Current::Ignored,
                }
            }
            Opcode::R2t => {
                self.tasks.request(&R2t::parse(bhs), &self.params, self.latest)?;
                Current::Ignored
            }
            Opcode::NopOut
            | Opcode::ScsiCommand
            | Opcode::TaskRequest
            | Opcode::LoginRequest
            | Opcode::TextRequest
            | Opcode::DataOut
            | Opcode::LogoutRequest
            | Opcode::Snack => return Err(Fatal::Protocol("a target does not send this")),
            Opcode::NopIn
            | Opcode::ScsiResponse
            | Opcode::TaskResponse
            | Opcode::LoginResponse
            | Opcode::TextResponse
            | Opcode::LogoutResponse
            | Opcode::AsyncMessage
            | Opcode::Reject => {
                if len > CONTROL_LEN_MAX {
                    return Err(Fatal::Oversize { len, limit: CONTROL_LEN_MAX });
                }
                // A ping of the target's own takes no number (RFC 7143, section 11.19.2).
                if opcode != Opcode::NopIn || bhs.itt() != NO_TAG {
                    self.take_status_number(bhs)?;
                }
                Current::Control(*bhs)
            }
        };
        Ok(())
    }

    /// Where the data segment of the PDU at hand belongs.
    #[must_use]
    pub fn placement(&self) -> Placement {
        match self.current {
            Current::DataIn { task, len, .. } => self.tasks.place_data_in(task, len),
            Current::Control(_) => Placement::Control,
            Current::Nothing | Current::Ignored => Placement::Discard,
        }
    }

    /// The data segment is where it belongs, and its digest is right.
    pub fn handle_data(&mut self) {
        let Current::DataIn { task, len, pdu } = core::mem::take(&mut self.current) else {
            return;
        };
        self.tasks.data_in_place(task, len);
        if pdu.has_status {
            let residual = residual(pdu.underflow, pdu.overflow, pdu.residual);
            self.complete(pdu.itt, pdu.status, Vec::new(), residual);
        }
    }

    /// Takes the data segment of a PDU whose placement was `Control`.
    ///
    /// # Errors
    /// When the connection must be dropped.
    pub fn handle_control(&mut self, data: &[u8]) -> Result<(), Fatal> {
        let Current::Control(bhs) = core::mem::take(&mut self.current) else {
            return Ok(());
        };
        let opcode = bhs.opcode().ok_or(Fatal::Protocol("unknown opcode"))?;
        match opcode {
            Opcode::ScsiResponse => self.handle_response(&ScsiResponse::parse(&bhs), data),
            Opcode::NopIn => self.handle_nop(&NopIn::parse(&bhs), data),
            Opcode::LoginResponse => return self.handle_login(&bhs, data),
            Opcode::TextResponse => return self.handle_text(&TextResponse::parse(&bhs), data),
            Opcode::TaskResponse => self.handle_task_response(&TaskResponse::parse(&bhs)),
            Opcode::LogoutResponse => {
                if !matches!(self.phase, Phase::LoggingOut) || bhs.itt() != LOGOUT_TAG {
                    return Err(Fatal::Protocol("logout response out of place"));
                }
                self.phase = Phase::Closed;
                self.deadline = None;
                self.events.push_back(Event::LoggedOut);
            }
            Opcode::AsyncMessage => self.handle_async(&AsyncMessage::parse(&bhs)),
            Opcode::Reject => return Err(Fatal::Rejected(Reject::parse(&bhs).reason)),
            Opcode::DataIn
            | Opcode::R2t
            | Opcode::NopOut
            | Opcode::ScsiCommand
            | Opcode::TaskRequest
            | Opcode::LoginRequest
            | Opcode::TextRequest
            | Opcode::DataOut
            | Opcode::LogoutRequest
            | Opcode::Snack => return Err(Fatal::Protocol("a target does not send this")),
        }
        Ok(())
    }

    /// Time has passed.
    ///
    /// # Errors
    /// When the connection must be dropped.
    pub fn handle_timeout(&mut self, now: Duration) -> Result<(), Fatal> {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(match self.phase {
                Phase::Login(_) => Fatal::LoginTimeout,
                Phase::Full | Phase::LoggingOut | Phase::Closed => Fatal::Silent,
            });
        }
        if !matches!(self.phase, Phase::Full) {
            return Ok(());
        }
        match self.ping_sent {
            Some(sent) if now >= sent + self.ping_timeout() => Err(Fatal::Silent),
            None if now >= self.last_activity + self.ping_interval() => {
                self.ping_sent = Some(now);
                self.push_control(NopOut::ping(PING_TAG).encode(), Vec::new());
                Ok(())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// When `handle_timeout` is to be called next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        let ping = match (&self.phase, self.ping_sent) {
            (Phase::Full, Some(sent)) => Some(sent + self.ping_timeout()),
            (Phase::Full, None) => Some(self.last_activity + self.ping_interval()),
            (Phase::Login(_) | Phase::LoggingOut | Phase::Closed, _) => None,
        };
        match (ping, self.deadline) {
            (Some(ping), Some(deadline)) => Some(ping.min(deadline)),
            (ping, deadline) => ping.or(deadline),
        }
    }

    /// What the shell is to know next.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next PDU to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        let digests = self.digests;
        let exp_stat_sn = self.exp_stat_sn.unwrap_or(Serial(0));
        if let Some(Control { mut header, data, immediate }) = self.control.pop_front() {
            header.stamp_command(self.cmd_sn, exp_stat_sn);
            if !immediate {
                self.cmd_sn = self.cmd_sn.next();
            }
            // Control data is bounded far below 2^24.
            let len = narrow(data.len());
            let payload = if len == 0 { Payload::None } else { Payload::Control(data) };
            return Some(Transmit { header: header.with_data_len(len), payload, digests });
        }
        if !matches!(self.phase, Phase::Full) {
            return None;
        }
        let window_open = self.window() > 0;
        let mut pdu = self.tasks.transmit(&self.params, self.cmd_sn, window_open)?;
        if pdu.is_command {
            pdu.header.stamp_command(self.cmd_sn, exp_stat_sn);
            self.cmd_sn = self.cmd_sn.next();
        } else {
            pdu.header.stamp_exp_stat_sn(exp_stat_sn);
        }
        Some(Transmit { header: pdu.header, payload: pdu.payload, digests })
    }

    /// Commands that the target takes beyond those sent.
    fn window(&self) -> u32 {
        let end = self.max_cmd_sn.next();
        if self.cmd_sn.before(end) { end.since(self.cmd_sn) } else { 0 }
    }

    /// Takes the number of a response. A gap means that a response is lost, which error recovery
    /// level 0 answers with the end of the session (RFC 7143, sections 4.2.2.2 and 7.1.4). A login
    /// goes by question and answer, in which nothing can be lost; tgt skips numbers there.
    fn take_status_number(&mut self, bhs: &Bhs) -> Result<(), Fatal> {
        let number = bhs.stat_sn();
        let counts = !matches!(self.phase, Phase::Login(_));
        if counts && self.exp_stat_sn.is_some_and(|expected| expected != number) {
            return Err(Fatal::Protocol("status numbers have a gap"));
        }
        self.exp_stat_sn = Some(number.next());
        Ok(())
    }

    /// RFC 7143, section 4.2.2.1: a window that contradicts itself is ignored, an older one too.
    fn take_window(&mut self, bhs: &Bhs) {
        let (exp, max) = (bhs.expected_sn(), bhs.max_cmd_sn());
        if max.next().before(exp) {
            return;
        }
        let first = matches!(self.phase, Phase::Login(_));
        if first || self.max_cmd_sn.before(max) {
            self.max_cmd_sn = max;
        }
    }

    fn ping_interval(&self) -> Duration {
        if self.tasks.is_empty() {
            self.setup.ping_interval_idle
        } else {
            self.setup.ping_interval_busy
        }
    }

    fn ping_timeout(&self) -> Duration {
        if self.tasks.is_empty() {
            self.setup.ping_timeout_idle
        } else {
            self.setup.ping_timeout_busy
        }
    }

    fn handle_login(&mut self, bhs: &Bhs, data: &[u8]) -> Result<(), Fatal> {
        let Phase::Login(login) = &mut self.phase else {
            return Err(Fatal::Protocol("login response out of place"));
        };
        let response = LoginResponse::parse(bhs);
        let setup = self.setup.clone();
        match login.handle(&response, data, &setup)? {
            Step::Request(request, text) => self.push_control(request.encode(), text),
            Step::Failed(error) => {
                self.phase = Phase::Closed;
                self.deadline = None;
                self.events.push_back(Event::LoginFailed(error));
            }
            Step::Done => {
                self.params = login.negotiation().params();
                self.kind = login.session();
                self.portal_group = login.portal_group();
                self.digests =
                    Digests { header: self.params.header_digest, data: self.params.data_digest };
                self.phase = Phase::Full;
                self.deadline = None;
                self.events.push_back(Event::LoggedIn);
                if self.kind == SessionType::Discovery {
                    let (request, text) = self.discovery.begin();
                    self.push_control(request.encode(), text);
                }
            }
        }
        Ok(())
    }

    fn handle_response(&mut self, response: &ScsiResponse, data: &[u8]) {
        if response.response != 0 {
            if let Some((task, _)) = self.tasks.end(response.itt) {
                let end = TaskEnd::TargetFailure(response.response);
                self.events.push_back(Event::Completed { task, end });
            }
            self.log_out_when_idle();
            return;
        }
        let sense = match data.split_first_chunk::<2>() {
            Some((len, sense)) => {
                let len = usize::from(u16::from_be_bytes(*len));
                sense.get(..len.min(sense.len())).unwrap_or_default().to_vec()
            }
            None => Vec::new(),
        };
        let residual = residual(response.underflow, response.overflow, response.residual);
        self.complete(response.itt, response.status, sense, residual);
    }

    fn complete(
        &mut self,
        itt: u32,
        status: u8,
        sense: Vec<u8>,
        (underflow, overflow): (u32, u32),
    ) {
        if let Some((task, Moved { received, sent })) = self.tasks.end(itt) {
            let end = TaskEnd::Status { status, sense, received, sent, underflow, overflow };
            self.events.push_back(Event::Completed { task, end });
        }
        self.log_out_when_idle();
    }

    fn handle_nop(&mut self, nop: &NopIn, data: &[u8]) {
        if nop.ttt == NO_TAG {
            return;
        }
        // Clamped: whatever is there is shorter.
        let limit = usize::try_from(self.params.max_send_len).unwrap_or(usize::MAX);
        let echo = data[..data.len().min(limit)].to_vec();
        let answer = NopOut { immediate: true, lun: nop.lun, itt: NO_TAG, ttt: nop.ttt };
        self.push_control(answer.encode(), echo);
    }

    fn handle_task_response(&mut self, response: &TaskResponse) {
        match response.code {
            TaskResponseCode::Complete | TaskResponseCode::NoTask => {
                if let Some((task, end)) = self.tasks.end_abort(response.itt) {
                    self.events.push_back(Event::Completed { task, end });
                }
                self.log_out_when_idle();
            }
            code @ (TaskResponseCode::NoLun
            | TaskResponseCode::StillAllegiant
            | TaskResponseCode::NoReassignment
            | TaskResponseCode::Unsupported
            | TaskResponseCode::Unauthorized
            | TaskResponseCode::Rejected) => self.events.push_back(Event::AbortFailed(code)),
        }
    }

    fn handle_async(&mut self, message: &AsyncMessage) {
        match message.event {
            AsyncEvent::LogoutRequested
            | AsyncEvent::ConnectionDropped
            | AsyncEvent::SessionDropped
            | AsyncEvent::Renegotiate => {
                if !self.ending {
                    self.ending = true;
                    self.events.push_back(Event::Ending);
                }
                self.log_out_when_idle();
            }
            // Commands see the same condition as a unit attention.
            AsyncEvent::Sense | AsyncEvent::Other(_) => {}
        }
    }

    fn handle_text(&mut self, response: &TextResponse, data: &[u8]) -> Result<(), Fatal> {
        match self.discovery.handle(response, data)? {
            Found::More(request) => self.push_control(request.encode(), Vec::new()),
            Found::All(targets) => self.events.push_back(Event::Found(targets)),
        }
        Ok(())
    }

    fn log_out_when_idle(&mut self) {
        if self.ending && self.tasks.is_empty() && matches!(self.phase, Phase::Full) {
            self.phase = Phase::LoggingOut;
            self.deadline = Some(self.latest + self.setup.ping_timeout_busy);
            let (reason, itt) = (LogoutReason::CloseSession, LOGOUT_TAG);
            let request = LogoutRequest { immediate: true, reason, itt, cid: 1 };
            self.push_control(request.encode(), Vec::new());
        }
    }

    fn push_control(&mut self, header: Bhs, data: Vec<u8>) {
        let immediate = header.immediate();
        self.control.push_back(Control { header, data, immediate });
    }
}

/// Underflow and overflow of a response's residual count.
const fn residual(underflow: bool, overflow: bool, count: u32) -> (u32, u32) {
    (if underflow { count } else { 0 }, if overflow { count } else { 0 })
}
