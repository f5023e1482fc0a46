//! The tasks of one session: their places, what came of their data, what is still to be sent.

use alloc::{collections::VecDeque, vec::Vec};
use core::time::Duration;

use super::{Command, TaskEnd};
use crate::{
    machine::{Fatal, Payload, Placement, TaskId},
    negotiation::Params,
    pdu::{Bhs, DataIn, DataOut, LunField, NO_TAG, R2t, ScsiCommand},
    serial::Serial,
};

/// Task attribute SIMPLE (SAM-5).
const SIMPLE: u8 = 1;

#[derive(Debug)]
struct Task {
    itt: u32,
    command: Command,
    /// `None` until the command is sent.
    cmd_sn: Option<Serial>,
    /// Bytes of Data-In that are in.
    received: u32,
    /// Bytes of Data-Out that are sent, from the start without gaps.
    data_sent: u32,
    /// Number of the next Data-In.
    data_sn: u32,
    /// R2Ts that are still to be answered.
    outstanding: u32,
    /// Number of the next R2T.
    r2t_sn: u32,
    /// Where the next R2T begins: behind what was sent unasked and what was asked for.
    asked_to: u32,
    abort_itt: Option<u32>,
    moves: Moves,
}

/// What a target has done for one task, or for all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moves {
    /// Bytes of Data-In that it announced, and that it asked for by R2T.
    pub bytes: u64,
    /// When it did so last, in the session's time.
    pub last: Duration,
}

impl Moves {
    fn note(&mut self, len: u32, now: Duration) {
        self.bytes += u64::from(len);
        self.last = now;
    }
}

/// A run of data to send: unsolicited, or the answer to an R2T.
#[derive(Debug)]
struct Burst {
    task: TaskId,
    lun: LunField,
    ttt: u32,
    at: u32,
    end: u32,
    data_sn: u32,
}

/// A PDU of a task, and whether it takes a CmdSN.
pub(super) struct TaskPdu {
    pub(super) header: Bhs,
    pub(super) payload: Payload,
    pub(super) is_command: bool,
}

#[derive(Debug)]
pub(super) struct Tasks {
    tasks: Vec<Option<Task>>,
    free: Vec<u16>,
    /// Makes tags of later tasks in one place differ.
    generation: u16,
    commands: VecDeque<TaskId>,
    /// Goes out before any further command (RFC 7143, section 4.2.5.2: in command order).
    unsolicited: Option<Burst>,
    solicited: VecDeque<Burst>,
    command_was_last: bool,
    moves: Moves,
}

impl Tasks {
    pub(super) fn new(depth: u16) -> Self {
        assert!((1..=1024).contains(&depth), "queue depth of {depth}");
        Self {
            tasks: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            generation: 0,
            commands: VecDeque::new(),
            unsolicited: None,
            solicited: VecDeque::new(),
            command_was_last: false,
            moves: Moves::default(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.tasks.len()
    }

    pub(super) fn free_count(&self) -> usize {
        self.free.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.tasks.len()
    }

    /// What the target has done for all tasks there ever were.
    pub(super) const fn all_moves(&self) -> Moves {
        self.moves
    }

    /// What the target has done for a task; nothing when it is gone.
    pub(super) fn moves(&self, id: TaskId) -> Moves {
        let task = self.tasks.get(id.index()).and_then(Option::as_ref);
        task.map_or_else(Moves::default, |task| task.moves)
    }

    /// Commands that wait to be sent.
    pub(super) fn unsent(&self) -> usize {
        self.commands.len()
    }

    pub(super) fn insert(&mut self, command: Command) -> Option<TaskId> {
        let id = TaskId(self.free.pop()?);
        // 15 bits, so that no tag is the reserved one; places are below the control tags.
        self.generation = (self.generation + 1) & 0x7fff;
        let itt = u32::from(self.generation) << 16 | u32::from(id.0);
        let task = Task {
            itt,
            command,
            cmd_sn: None,
            received: 0,
            data_sent: 0,
            data_sn: 0,
            outstanding: 0,
            r2t_sn: 0,
            asked_to: 0,
            abort_itt: None,
            moves: Moves::default(),
        };
        let place = &mut self.tasks[id.index()];
        assert!(place.is_none(), "place {id:?} is taken");
        *place = Some(task);
        self.commands.push_back(id);
        Some(id)
    }

    fn get(&mut self, itt: u32) -> Option<(TaskId, &mut Task)> {
        let id = TaskId(u16::try_from(itt & 0xffff).ok()?);
        let task = self.tasks.get_mut(id.index())?.as_mut()?;
        (task.itt == itt && task.cmd_sn.is_some()).then_some((id, task))
    }

    /// Checks a Data-In header; `None` when its task is gone.
    pub(super) fn accept_data_in(
        &mut self,
        pdu: &DataIn,
        len: u32,
        now: Duration,
    ) -> Result<Option<TaskId>, Fatal> {
        let Some((id, task)) = self.get(pdu.itt) else { return Ok(None) };
        if pdu.data_sn != task.data_sn || pdu.offset != task.received {
            return Err(Fatal::Protocol("data-in is out of order"));
        }
        let end = pdu.offset.checked_add(len);
        if end.is_none_or(|end| end > task.command.read_len) {
            return Err(Fatal::Protocol("data-in exceeds what was expected"));
        }
        task.data_sn += 1;
        task.moves.note(len, now);
        self.moves.note(len, now);
        Ok(Some(id))
    }

    pub(super) fn place_data_in(&self, id: TaskId, len: u32) -> Placement {
        match &self.tasks[id.index()] {
            Some(task) => Placement::Task { task: id, offset: task.received, len },
            None => Placement::Discard,
        }
    }

    pub(super) fn data_in_place(&mut self, id: TaskId, len: u32) {
        if let Some(task) = &mut self.tasks[id.index()] {
            task.received += len;
        }
    }

    /// Takes an R2T; one for a task that is gone is ignored.
    pub(super) fn request(
        &mut self,
        r2t: &R2t,
        params: &Params,
        now: Duration,
    ) -> Result<(), Fatal> {
        let Some((id, task)) = self.get(r2t.itt) else { return Ok(()) };
        let end = r2t.offset.checked_add(r2t.len);
        let end = end.filter(|end| *end <= task.command.write_len && r2t.len > 0);
        let end = end.ok_or(Fatal::Protocol("r2t asks for data that the command does not have"))?;
        if r2t.len > params.max_burst_len || task.outstanding >= params.max_outstanding_r2t {
            return Err(Fatal::Protocol("r2t exceeds what was agreed on"));
        }
        // Sequences come in order (RFC 7143, sections 11.8.2 and 13.19); one that is asked for again
        // would be recovery, which level 0 does not have.
        if r2t.r2t_sn != task.r2t_sn || r2t.offset != task.asked_to {
            return Err(Fatal::Protocol("r2t is out of order"));
        }
        if r2t.ttt == NO_TAG {
            return Err(Fatal::Protocol("r2t has no tag"));
        }
        task.r2t_sn += 1;
        task.asked_to = r2t.offset + r2t.len;
        task.outstanding += 1;
        task.moves.note(r2t.len, now);
        self.moves.note(r2t.len, now);
        let (ttt, at) = (r2t.ttt, r2t.offset);
        self.solicited.push_back(Burst { task: id, lun: r2t.lun, ttt, at, end, data_sn: 0 });
        Ok(())
    }

    /// Ends the task with this tag; `None` when it is gone. Missing data is the caller's to see.
    pub(super) fn end(&mut self, itt: u32) -> Option<(TaskId, Moved)> {
        let (id, task) = self.get(itt)?;
        let moved = Moved { received: task.received, sent: task.data_sent };
        self.remove(id);
        Some((id, moved))
    }

    fn remove(&mut self, id: TaskId) {
        self.tasks[id.index()] = None;
        self.free.push(id.0);
        self.solicited.retain(|burst| burst.task != id);
        if self.unsolicited.as_ref().is_some_and(|burst| burst.task == id) {
            self.unsolicited = None;
        }
    }

    /// Begins to abort a task. `Ok` has its tag and LUN for the request, or nothing when the
    /// target has not seen the command, which is then gone at once.
    pub(super) fn begin_abort(&mut self, id: TaskId, abort_itt: u32) -> Option<Abort> {
        let task = self.tasks.get_mut(id.index())?.as_mut()?;
        let Some(cmd_sn) = task.cmd_sn else {
            self.commands.retain(|command| *command != id);
            self.remove(id);
            return Some(Abort::Unsent);
        };
        if task.abort_itt.is_some() {
            return None;
        }
        task.abort_itt = Some(abort_itt);
        Some(Abort::Ask { itt: task.itt, cmd_sn, lun: task.command.lun })
    }

    /// The target says that it has aborted what request `abort_itt` named.
    pub(super) fn end_abort(&mut self, abort_itt: u32) -> Option<(TaskId, TaskEnd)> {
        let index = self
            .tasks
            .iter()
            .position(|task| matches!(task, Some(task) if task.abort_itt == Some(abort_itt)))?;
        let id = TaskId(u16::try_from(index).ok()?);
        self.remove(id);
        Some((id, TaskEnd::Aborted))
    }

    /// The next PDU; a new command, which gets `cmd_sn`, only when `window_open`.
    pub(super) fn transmit(
        &mut self,
        params: &Params,
        cmd_sn: Serial,
        window_open: bool,
    ) -> Option<TaskPdu> {
        if let Some(mut burst) = self.unsolicited.take() {
            let (pdu, left) = self.data_out(&mut burst, params);
            self.unsolicited = left.then_some(burst);
            return Some(pdu);
        }
        // Commands and solicited data take turns: neither can starve the other.
        let turn = self.solicited.is_empty() || !self.command_was_last;
        if window_open
            && turn
            && let Some(id) = self.commands.pop_front()
        {
            self.command_was_last = true;
            return self.command(id, params, cmd_sn);
        }
        self.command_was_last = false;
        let mut burst = self.solicited.pop_front()?;
        let (pdu, left) = self.data_out(&mut burst, params);
        if left {
            // A burst is sent to its end, so that those of one task stay in order.
            self.solicited.push_front(burst);
        } else if let Some(task) = &mut self.tasks[burst.task.index()] {
            task.outstanding -= 1;
        }
        Some(pdu)
    }

    fn command(&mut self, id: TaskId, params: &Params, cmd_sn: Serial) -> Option<TaskPdu> {
        let task = self.tasks[id.index()].as_mut()?;
        task.cmd_sn = Some(cmd_sn);
        let Command { lun, cdb, read_len, write_len } = task.command;
        let first = write_len.min(params.first_burst_len);
        let immediate = if params.immediate_data { first.min(params.max_send_len) } else { 0 };
        task.data_sent = immediate;
        let unsolicited = !params.initial_r2t && immediate < first;
        task.asked_to = if unsolicited { first } else { immediate };
        let command = ScsiCommand {
            immediate: false,
            last: !unsolicited,
            read: read_len > 0,
            write: write_len > 0,
            attribute: SIMPLE,
            lun,
            itt: task.itt,
            expected_len: read_len.max(write_len),
            cdb,
        };
        if unsolicited {
            let (at, end) = (immediate, first);
            self.unsolicited = Some(Burst { task: id, lun, ttt: NO_TAG, at, end, data_sn: 0 });
        }
        let payload = match immediate {
            0 => Payload::None,
            len => Payload::Task { task: id, offset: 0, len },
        };
        let header = command.encode().with_data_len(immediate);
        Some(TaskPdu { header, payload, is_command: true })
    }

    /// The next PDU of a burst, and whether more follow.
    fn data_out(&mut self, burst: &mut Burst, params: &Params) -> (TaskPdu, bool) {
        let len = (burst.end - burst.at).min(params.max_send_len & !3);
        let left = burst.at + len < burst.end;
        let mut itt = NO_TAG;
        if let Some(task) = &mut self.tasks[burst.task.index()] {
            itt = task.itt;
            if burst.at <= task.data_sent {
                task.data_sent = task.data_sent.max(burst.at + len);
            }
        }
        let pdu = DataOut {
            last: !left,
            lun: burst.lun,
            itt,
            ttt: burst.ttt,
            data_sn: burst.data_sn,
            offset: burst.at,
        };
        let payload = Payload::Task { task: burst.task, offset: burst.at, len };
        let header = pdu.encode().with_data_len(len);
        burst.at += len;
        burst.data_sn += 1;
        (TaskPdu { header, payload, is_command: false }, left)
    }
}

/// Bytes that a task moved.
pub(super) struct Moved {
    pub(super) received: u32,
    pub(super) sent: u32,
}

/// How a task is aborted.
pub(super) enum Abort {
    /// The target has not seen it.
    Unsent,
    /// By asking the target.
    Ask {
        /// Tag of the task.
        itt: u32,
        /// Number of its command.
        cmd_sn: Serial,
        /// Its logical unit.
        lun: LunField,
    },
}
