//! The commands of one connection: gathering their data, executing, answering.
//!
//! Invariant: a task's place is free, or exactly one `Release` will be reported for it. Data held
//! by all tasks together stays within the session's budget, and within the target's, unless one
//! task alone exceeds it. A task that
//! is aborted while it executes keeps its place until its outcome is in, since what it does
//! cannot be called back.

use alloc::{collections::VecDeque, sync::Arc, vec::Vec};

use netraid_planted::{Planted, planted};

use super::{
    Event, Outcome, Plan,
    fault::Fault,
    replies::{answer, can_request, request, tag},
    statistics::Budget,
    tags::Tags,
};
use crate::{
    machine::{Payload, Placement, TaskId},
    negotiation::Params,
    pdu::{Bhs, DataOut, LunField, NO_TAG, RejectReason, ScsiCommand},
};

/// Places beyond the queue depth, for immediate commands.
const IMMEDIATE_MAX: u16 = 8;

/// SCSI status GOOD (SAM-5, section 5.3.1).
pub(super) const GOOD: u8 = 0x00;
/// SCSI status CHECK CONDITION.
const CHECK_CONDITION: u8 = 0x02;
/// SCSI status TASK SET FULL.
const TASK_SET_FULL: u8 = 0x28;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum State {
    #[default]
    Free,
    /// The shell was asked for a plan.
    New,
    /// Waits for memory.
    Waiting,
    /// Takes Data-Out.
    Gathering,
    /// Has all its data, and waits for a grant.
    Asking,
    /// With the shell.
    Executing,
    /// Sends Data-In and status.
    Answering,
}

/// Data-Out of one task.
#[derive(Debug, Default)]
pub(super) struct Out {
    /// Bytes that the initiator sends.
    pub(super) max: u32,
    /// Bytes that the unit takes.
    pub(super) wanted: u32,
    /// Bytes that are in, from the start.
    pub(super) received: u32,
    /// Bytes of them that came unasked.
    unasked: u32,
    /// End of what was asked for by R2T, or sent unsolicited.
    pub(super) requested: u32,
    /// Unsolicited data is still to come.
    pub(super) unsolicited: bool,
    /// R2Ts without an answer.
    pub(super) outstanding: u32,
    /// Number of the next R2T.
    pub(super) r2t_sn: u32,
    /// Number of the R2T whose data is coming in.
    pub(super) sequence: u32,
    /// End of that data.
    pub(super) sequence_end: u32,
    /// Number of the next Data-Out in its sequence.
    pub(super) data_sn: u32,
    /// What comes is dropped, and nothing more is asked for.
    pub(super) fault: Option<Fault>,
}

#[derive(Debug, Default)]
pub(super) struct Task {
    pub(super) state: State,
    pub(super) aborted: bool,
    pub(super) immediate: bool,
    /// It is among those that have something to send.
    is_ready: bool,
    /// A grant was asked for, and has not come.
    is_asked: bool,
    pub(super) itt: u32,
    pub(super) lun: LunField,
    /// Another logical unit, at whose device a request of the task is.
    pub(super) visited: Option<u16>,
    pub(super) out: Out,
    /// Bytes of Data-In that the initiator takes.
    pub(super) in_max: u32,
    /// Bytes that the command describes.
    pub(super) total: u64,
    /// Bytes of memory that the task needs, and that are counted against the budget.
    pub(super) cost: u64,
    pub(super) held: u64,
    pub(super) status: u8,
    pub(super) sense: Vec<u8>,
    /// Bytes of Data-In to send, and sent.
    pub(super) in_len: u32,
    pub(super) in_sent: u32,
    /// Number of the next Data-In or R2T of this task (they are counted together).
    pub(super) data_sn: u32,
}

/// A PDU of a task: its header, what follows it, and whether it carries a status number.
pub(super) struct TaskPdu {
    pub(super) header: Bhs,
    pub(super) payload: Payload,
    pub(super) has_status: bool,
}

#[derive(Debug)]
pub(super) struct Tasks {
    tasks: Vec<Task>,
    tags: Tags,
    free: Vec<u16>,
    waiting: VecDeque<TaskId>,
    ready: VecDeque<TaskId>,
    depth: u16,
    /// Tasks that count against the command window.
    windowed: u16,
    /// Nothing moves without a grant: longest piece of data that is asked for.
    paced: Option<u32>,
    budget: u64,
    held: u64,
    /// What all sessions share.
    shared: Arc<Budget>,
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.shared.give_back(self.held);
    }
}

impl Tasks {
    pub(super) fn new(depth: u16, budget: u64, shared: Arc<Budget>) -> Self {
        assert!((1..=1024).contains(&depth), "queue depth of {depth}");
        let count = depth + IMMEDIATE_MAX;
        Self {
            tasks: (0..count).map(|_| Task::default()).collect(),
            tags: Tags::new(count),
            free: (0..count).rev().collect(),
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            depth,
            windowed: 0,
            paced: None,
            budget,
            held: 0,
            shared,
        }
    }

    /// From now on, data in pieces of this length at most, and what is executed, is granted first.
    pub(super) fn pace(&mut self, piece_len: u32) {
        self.paced = Some(piece_len);
    }

    /// Number of places.
    pub(super) fn count(&self) -> usize {
        self.tasks.len()
    }

    /// Commands that may still come under the window.
    pub(super) fn window(&self) -> u32 {
        u32::from(self.depth - self.windowed)
    }

    /// Whether nothing is with the shell.
    pub(super) fn nothing_executes(&self) -> bool {
        self.tasks.iter().all(|task| task.state != State::Executing)
    }

    pub(super) fn is_aborted(&self, id: TaskId) -> bool {
        self.tasks[id.index()].aborted
    }

    pub(super) fn is_waiting(&self, id: TaskId) -> bool {
        matches!(self.tasks[id.index()].state, State::Waiting | State::Asking)
    }

    pub(super) fn is_executing(&self, id: TaskId) -> bool {
        self.tasks[id.index()].state == State::Executing
    }

    /// A request of a task that executes is at the device of another logical unit, or is not any
    /// more.
    pub(super) fn visit(&mut self, id: TaskId, lun: Option<u16>) {
        self.tasks[id.index()].visited = lun;
    }

    /// Tasks of other logical units that have a request at the device of this one.
    pub(super) fn visitors(&self, lun: Option<u16>) -> impl Iterator<Item = TaskId> + '_ {
        let visits = move |task: &Task| lun.is_some() && task.visited == lun;
        (0..).zip(&self.tasks).filter(move |(_, task)| visits(task)).map(|(at, _)| TaskId(at))
    }

    pub(super) fn find(&self, itt: u32) -> Option<TaskId> {
        self.tags.find(itt)
    }

    /// Of a place that is somebody's.
    pub(super) fn tag(&self, id: TaskId) -> Option<u32> {
        let task = self.tasks.get(id.index())?;
        (task.state != State::Free).then_some(task.itt)
    }

    pub(super) fn itt(&self, id: TaskId) -> u32 {
        self.tasks[id.index()].itt
    }

    pub(super) fn lun(&self, id: TaskId) -> LunField {
        self.tasks[id.index()].lun
    }

    /// Takes a command, unless another has its tag, or there is no place.
    pub(super) fn insert(&mut self, command: &ScsiCommand) -> Result<TaskId, RejectReason> {
        let immediate = self.tasks.len() - self.free.len() - usize::from(self.windowed);
        let fits = !command.immediate || immediate < usize::from(IMMEDIATE_MAX);
        let place = self.free.last().filter(|_| fits);
        let id = TaskId(*place.ok_or(RejectReason::TooManyImmediate)?);
        if !self.tags.insert(command.itt, id) {
            return Err(RejectReason::TaskInProgress);
        }
        self.free.pop();
        let task = &mut self.tasks[id.index()];
        assert!(task.state == State::Free, "place {id:?} is taken");
        // A command that moves data both ways is treated as a write.
        let out_max = if command.write { command.expected_len } else { 0 };
        let in_max = if command.read && !command.write { command.expected_len } else { 0 };
        *task = Task {
            state: State::New,
            immediate: command.immediate,
            itt: command.itt,
            lun: command.lun,
            out: Out { max: out_max, unsolicited: command.write, ..Out::default() },
            in_max,
            ..Task::default()
        };
        self.windowed += u16::from(!command.immediate);
        Ok(id)
    }

    pub(super) fn limits(&self, id: TaskId) -> (u32, u32) {
        let task = &self.tasks[id.index()];
        (task.out.max, task.in_max)
    }

    /// What the unit said of a new command. `unsolicited`: data comes unasked.
    pub(super) fn plan(
        &mut self,
        id: TaskId,
        plan: Plan,
        unsolicited: bool,
        events: &mut VecDeque<Event>,
    ) {
        let task = &mut self.tasks[id.index()];
        assert!(task.state == State::New, "plan for {id:?} in {:?}", task.state);
        assert!(plan.data_out <= task.out.max, "plan exceeds what the initiator sends");
        task.total = plan.data_out_total;
        task.out.wanted = plan.data_out;
        task.cost = plan.memory.saturating_add(u64::from(plan.data_out));
        task.out.unsolicited = unsolicited && plan.data_out > 0;
        if task.out.fault.is_some() {
            // What comes unasked is waited for, and nothing is done with it.
            task.out.wanted = 0;
            task.out.unsolicited = unsolicited;
            task.state = State::Gathering;
            return;
        }
        let cost = task.cost;
        if cost == 0 {
            self.begin(id, events);
        } else if task.out.unsolicited {
            if self.hold(id, cost) {
                self.tasks[id.index()].state = State::Gathering;
            } else {
                let outcome = Outcome { status: TASK_SET_FULL, ..Outcome::default() };
                self.outcome(id, outcome, events);
            }
        } else {
            task.state = State::Waiting;
            self.waiting.push_back(id);
            self.start_waiting(events);
        }
    }

    /// How a command ended. Returns whether an aborted task ended by this.
    pub(super) fn outcome(
        &mut self,
        id: TaskId,
        outcome: Outcome,
        events: &mut VecDeque<Event>,
    ) -> bool {
        let task = &mut self.tasks[id.index()];
        assert!(
            matches!(task.state, State::New | State::Executing),
            "outcome for {id:?} in {:?}",
            task.state
        );
        if task.aborted {
            self.release(id, events);
            return true;
        }
        if task.state == State::New || task.total == 0 {
            // No Data-Out was wanted: what comes in is all that the command moves.
            task.total = outcome.data_in;
        }
        // Clamped: the rest is residual.
        task.in_len = u32::try_from(outcome.data_in).unwrap_or(u32::MAX).min(task.in_max);
        task.status = outcome.status;
        task.sense = outcome.sense;
        task.state = State::Answering;
        self.make_ready(id);
        false
    }

    /// Where the data of a command PDU belongs.
    pub(super) fn place_immediate(&self, id: TaskId, len: u32) -> Placement {
        self.place(id, 0, len)
    }

    /// The data of a task is not as agreed: the first such finding counts, and none does once the
    /// task takes no data.
    pub(super) fn fault(&mut self, id: TaskId, fault: Fault) {
        let task = &mut self.tasks[id.index()];
        match task.state {
            State::New => {
                task.out.fault.get_or_insert(fault);
            }
            State::Gathering => {
                task.out.fault.get_or_insert(fault);
                self.make_unready(id);
            }
            State::Free | State::Waiting | State::Asking | State::Executing | State::Answering => {}
        }
    }

    /// Checks a Data-Out header; `None` when its task is gone and the data goes to nobody.
    pub(super) fn accept_data_out(
        &mut self,
        pdu: &DataOut,
        len: u32,
        params: &Params,
    ) -> Option<TaskId> {
        let id = if pdu.ttt == NO_TAG {
            self.find(pdu.itt)?
        } else {
            TaskId(u16::try_from(pdu.ttt & 0xffff).ok()?)
        };
        let task = self.tasks.get(id.index())?;
        let out = &task.out;
        let known = task.state == State::Gathering
            && task.itt == pdu.itt
            && if pdu.ttt == NO_TAG {
                out.unsolicited
            } else {
                !out.unsolicited && out.outstanding > 0 && pdu.ttt == tag(id, out.sequence)
            };
        if !known {
            return None;
        }
        let limit =
            if out.unsolicited { params.first_burst_len.min(out.max) } else { out.sequence_end };
        let end = pdu.offset.checked_add(len).filter(|end| *end <= limit);
        let fault = if pdu.data_sn != out.data_sn {
            Some(Fault::Order)
        } else if pdu.offset != out.received {
            Some(Fault::Offset)
        } else if end.is_none() {
            Some(Fault::TooMuch)
        } else if !out.unsolicited && pdu.last != (end == Some(limit)) {
            Some(Fault::WrongAmount)
        } else {
            None
        };
        if let Some(fault) = fault {
            self.fault(id, fault);
        }
        Some(id)
    }

    /// Where the data of an accepted Data-Out belongs.
    pub(super) fn place_data_out(&self, id: TaskId, len: u32) -> Placement {
        let out = &self.tasks[id.index()].out;
        let unasked = if planted(Planted::AskedDataFromStart) { out.unasked } else { 0 };
        self.place(id, out.received - unasked, len)
    }

    fn place(&self, id: TaskId, offset: u32, len: u32) -> Placement {
        let task = &self.tasks[id.index()];
        let room = task.out.wanted.saturating_sub(offset);
        if task.state != State::Gathering || task.aborted || task.out.fault.is_some() || room == 0 {
            return Placement::Discard;
        }
        Placement::Task { task: id, offset, len: len.min(room) }
    }

    /// The data of a PDU is in: `len` bytes, the `last` of its sequence or not. Returns whether
    /// an aborted task ended by this.
    pub(super) fn data_in_place(
        &mut self,
        id: TaskId,
        len: u32,
        last: bool,
        params: &Params,
        events: &mut VecDeque<Event>,
    ) -> bool {
        let task = &mut self.tasks[id.index()];
        if task.state != State::Gathering {
            return false;
        }
        if task.aborted {
            self.release(id, events);
            return true;
        }
        let out = &mut task.out;
        if let Some(fault) = out.fault {
            if last && core::mem::take(&mut out.unsolicited) {
                // The rest of what was asked for, if there is any, comes next.
            } else if last && out.outstanding > 0 {
                out.outstanding -= 1;
                out.sequence += 1;
            }
            if !out.unsolicited && out.outstanding == 0 {
                self.fail(id, fault);
            }
            return false;
        }
        out.received += len;
        out.data_sn += 1;
        if out.unsolicited {
            if last || out.received >= params.first_burst_len.min(out.max) {
                out.unsolicited = false;
                out.unasked = out.received;
                out.requested = out.received;
                out.sequence_end = out.received;
                out.data_sn = 0;
            }
        } else if last {
            out.outstanding -= 1;
            out.sequence += 1;
            out.data_sn = 0;
            let end = out.sequence_end.saturating_add(params.max_burst_len);
            out.sequence_end = end.min(out.requested);
        }
        self.request_or_submit(id, params, events);
        false
    }

    /// The data that came with a command is in; none comes unasked after it when `last`.
    pub(super) fn immediate_in_place(
        &mut self,
        id: TaskId,
        len: u32,
        last: bool,
        params: &Params,
        events: &mut VecDeque<Event>,
    ) -> bool {
        let task = &self.tasks[id.index()];
        if !task.out.unsolicited && !task.aborted {
            return false;
        }
        let ended = self.data_in_place(id, len, last, params, events);
        // Data-Out PDUs are numbered from 0, after immediate data too.
        self.tasks[id.index()].out.data_sn = 0;
        ended
    }

    /// Ends a task whose data was not as agreed.
    fn fail(&mut self, id: TaskId, fault: Fault) {
        let task = &mut self.tasks[id.index()];
        task.status = CHECK_CONDITION;
        task.sense = fault.sense();
        task.state = State::Answering;
        self.make_ready(id);
    }

    fn request_or_submit(&mut self, id: TaskId, params: &Params, events: &mut VecDeque<Event>) {
        let task = &mut self.tasks[id.index()];
        let out = &task.out;
        if out.unsolicited {
            return;
        }
        let is_complete = match planted(Planted::WrittenBeforeAllData) {
            true => out.requested >= out.wanted && out.outstanding <= 1,
            false => out.received >= out.wanted && out.outstanding == 0,
        };
        if is_complete {
            self.begin(id, events);
        } else if can_request(out, params) {
            self.seek_data(id, events);
        }
    }

    /// A task asks for its next data: at once, or when that is granted.
    fn seek_data(&mut self, id: TaskId, events: &mut VecDeque<Event>) {
        let Some(piece_len) = self.paced else { return self.make_ready(id) };
        let task = &mut self.tasks[id.index()];
        if !task.is_ready && !core::mem::replace(&mut task.is_asked, true) {
            let len = (task.out.wanted - task.out.requested).min(piece_len);
            events.push_back(Event::AskGrant { task: id, len, executes: false });
        }
    }

    /// A task executes: at once, or when what it moves besides the data that was asked for is
    /// granted.
    fn begin(&mut self, id: TaskId, events: &mut VecDeque<Event>) {
        let task = &mut self.tasks[id.index()];
        let memory = task.cost - u64::from(task.out.wanted);
        let len = memory.saturating_add(task.out.unasked.into());
        if self.paced.is_some() && (task.out.wanted == 0 || len > 0) {
            task.state = State::Asking;
            task.is_asked = true;
            // Clamped: a grant counts no more.
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            events.push_back(Event::AskGrant { task: id, len, executes: true });
        } else {
            task.state = State::Executing;
            events.push_back(Event::Submit { task: id });
        }
    }

    /// What a task asked for last is granted.
    pub(super) fn grant(&mut self, id: TaskId, events: &mut VecDeque<Event>) {
        let task = &mut self.tasks[id.index()];
        if !core::mem::take(&mut task.is_asked) || task.aborted {
            return;
        }
        match task.state {
            // Its data was not as agreed: no more of it is asked for.
            State::Gathering if task.out.fault.is_some() => {}
            State::Gathering => self.make_ready(id),
            State::Asking => {
                task.state = State::Executing;
                events.push_back(Event::Submit { task: id });
            }
            State::Free | State::New | State::Waiting | State::Executing | State::Answering => {}
        }
    }

    /// The next PDU of any task: tasks take turns.
    pub(super) fn transmit(
        &mut self,
        params: &Params,
        events: &mut VecDeque<Event>,
    ) -> Option<TaskPdu> {
        let id = self.ready.pop_front()?;
        let task = &mut self.tasks[id.index()];
        task.is_ready = false;
        match task.state {
            State::Gathering => {
                let header = request(id, task, params);
                if can_request(&task.out, params) {
                    self.seek_data(id, events);
                }
                Some(TaskPdu { header, payload: Payload::None, has_status: false })
            }
            State::Answering => {
                let pdu = answer(id, task, params);
                if pdu.has_status {
                    self.release(id, events);
                } else {
                    self.make_ready(id);
                }
                Some(pdu)
            }
            State::Free | State::New | State::Waiting | State::Asking | State::Executing => {
                unreachable!("{id:?} has nothing to send in {:?}", task.state)
            }
        }
    }

    /// Ends the tasks that `chosen` names, but for what is executing, whose outcome is still to
    /// come, and for `receiving`, whose data is coming in just now. Returns those, and how many
    /// tasks were named that no earlier call had aborted.
    pub(super) fn abort(
        &mut self,
        chosen: impl Fn(u32, LunField) -> bool,
        receiving: Option<TaskId>,
        events: &mut VecDeque<Event>,
    ) -> (Vec<TaskId>, usize) {
        let (mut left, mut count) = (Vec::new(), 0);
        for index in 0..self.depth + IMMEDIATE_MAX {
            let id = TaskId(index);
            let task = &mut self.tasks[id.index()];
            if task.state == State::Free || !chosen(task.itt, task.lun) {
                continue;
            }
            count += usize::from(!task.aborted);
            let gathering = task.state == State::Gathering && receiving == Some(id);
            if task.state == State::Executing || gathering {
                task.aborted = true;
                self.make_unready(id);
                left.push(id);
            } else {
                self.release(id, events);
            }
        }
        (left, count)
    }

    /// A task has something to send: it takes its turn after those that have, if it is not there.
    fn make_ready(&mut self, id: TaskId) {
        let task = &mut self.tasks[id.index()];
        if !core::mem::replace(&mut task.is_ready, true) {
            self.ready.push_back(id);
        }
    }

    fn make_unready(&mut self, id: TaskId) {
        if core::mem::take(&mut self.tasks[id.index()].is_ready) {
            self.ready.retain(|ready| *ready != id);
        }
    }

    fn release(&mut self, id: TaskId, events: &mut VecDeque<Event>) {
        let task = &mut self.tasks[id.index()];
        assert!(task.state != State::Free, "{id:?} is released twice");
        if task.state == State::Waiting {
            self.waiting.retain(|waiting| *waiting != id);
        }
        self.held -= task.held;
        self.shared.give_back(task.held);
        self.windowed -= u16::from(!task.immediate);
        self.tags.remove(task.itt);
        self.make_unready(id);
        self.tasks[id.index()] = Task::default();
        self.free.push(id.0);
        events.push_back(Event::Release { task: id });
        self.start_waiting(events);
    }

    fn start_waiting(&mut self, events: &mut VecDeque<Event>) {
        while let Some(&id) = self.waiting.front() {
            let cost = self.tasks[id.index()].cost;
            if !self.hold(id, cost) {
                return;
            }
            self.waiting.pop_front();
            let task = &mut self.tasks[id.index()];
            if task.out.wanted > 0 {
                task.state = State::Gathering;
                self.seek_data(id, events);
            } else {
                self.begin(id, events);
            }
        }
    }

    /// Takes memory if there is some. One command always may, so that no session waits for others;
    /// and who has one is woken by its end.
    fn hold(&mut self, id: TaskId, cost: u64) -> bool {
        if self.held == 0 {
            self.shared.hold(cost);
        } else if self.held + cost > self.budget || !self.shared.try_hold(cost) {
            return false;
        }
        self.tasks[id.index()].held = cost;
        self.held += cost;
        true
    }
}
