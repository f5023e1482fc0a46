//! Task management (RFC 7143, sections 4.2.3.2, 11.5 and 11.6; SAM-5, section 7).
//!
//! Invariant: a function is answered as complete only when the tasks that it names have ended, in
//! this session and in all others: none of them touches a device any more, and no data of theirs is
//! taken. What a device does cannot be called back, so a function waits for it; one that waits too
//! long is answered as rejected, which is the truth: a write of an aborted task may still land.
//! Its entry stays until the tasks have ended, so that there are never more than a few.
//!
//! A copy may have a request at the device of another logical unit than its own. Whoever ends the
//! tasks of that unit waits for the request, and the copy goes on if it still may.
//!
//! Data that an initiator still sends for R2Ts of an aborted task is not waited for: there is one
//! connection, so it comes before anything that uses its tags again, and goes to nobody.

use alloc::vec::Vec;
use core::time::Duration;

use netraid_planted::{Planted, planted};

use super::{
    Connection, Event,
    node::{Cause, Node, Ticket},
};
use crate::{
    machine::{Fatal, TaskId},
    pdu::{Bhs, NO_TAG, RejectReason, TaskFunction, TaskRequest, TaskResponse, TaskResponseCode},
    serial::Serial,
};

/// Task management functions in progress.
const MANAGEMENT_MAX: usize = 16;

/// A function that waits for tasks to end.
#[derive(Debug)]
pub(super) struct Management {
    itt: u32,
    waits_for: Vec<TaskId>,
    /// Names the tasks of other sessions.
    waits_for_others: Option<Ticket>,
    /// When it is answered as rejected; none once it is.
    deadline: Option<Duration>,
    /// The session ends with it.
    closes: bool,
}

/// Tasks that another session waits for to end.
#[derive(Debug)]
pub(super) struct Owed {
    ticket: Ticket,
    waits_for: Vec<TaskId>,
}

impl Connection {
    pub(super) fn handle_task_request(&mut self, node: &mut Node, bhs: &Bhs) -> Result<(), Fatal> {
        let request = TaskRequest::parse(bhs);
        if !self.window.admits(bhs)? {
            return Ok(());
        }
        let in_use = self.tasks.find(request.itt).is_some()
            || self.management.iter().any(|pending| pending.itt == request.itt);
        if request.itt == NO_TAG || in_use {
            self.reject_request(bhs, RejectReason::TaskInProgress);
            return Ok(());
        }
        if self.management.len() >= MANAGEMENT_MAX {
            self.reject_request(bhs, RejectReason::OutOfResources);
            return Ok(());
        }
        self.window.take(bhs);
        self.counters.task_functions.add(1);
        match self.start_function(node, &request, bhs.cmd_sn()) {
            Ok(pending) => {
                self.management.push(pending);
                self.answer_management();
            }
            Err(code) => self.answer_function(code, request.itt),
        }
        Ok(())
    }

    /// Aborts what a function names; what it waits for, or its answer when it names nothing.
    fn start_function(
        &mut self,
        node: &mut Node,
        request: &TaskRequest,
        cmd_sn: Serial,
    ) -> Result<Management, TaskResponseCode> {
        // Fields of different forms may name one unit.
        let number = request.lun.number();
        let (realm, ends_others) = (self.standing.realm, self.standing.ends_others);
        let unit = || number.filter(|lun| node.has_lun(realm, *lun)).ok_or(TaskResponseCode::NoLun);
        let mut others = None;
        let waits_for = match request.function {
            TaskFunction::ClearTaskSet
            | TaskFunction::LogicalUnitReset
            | TaskFunction::TargetWarmReset
            | TaskFunction::TargetColdReset
                if !ends_others =>
            {
                return Err(TaskResponseCode::Unauthorized);
            }
            TaskFunction::AbortTask => match self.tasks.find(request.referenced_itt) {
                Some(task) if self.tasks.lun(task).number() == number => {
                    let (left, _) = self.abort_tasks(|itt, _| itt == request.referenced_itt);
                    if planted(Planted::AbortAnsweredBeforeEnd) { Vec::new() } else { left }
                }
                Some(_) => return Err(TaskResponseCode::NoTask),
                // Section 11.6.1: a command that was never sent counts as received.
                None if self.window.skip(Serial(request.ref_cmd_sn), cmd_sn) => {
                    return Err(TaskResponseCode::Complete);
                }
                None => return Err(TaskResponseCode::NoTask),
            },
            TaskFunction::AbortTaskSet => {
                unit()?;
                self.end_unit(number).0
            }
            TaskFunction::ClearTaskSet => {
                unit()?;
                others = node.abort_others(self.id, number, Cause::Cleared);
                self.end_unit(number).0
            }
            TaskFunction::LogicalUnitReset => {
                unit()?;
                others = node.abort_others(self.id, number, Cause::Reset);
                self.events.push_back(Event::Reset { lun: number });
                self.end_unit(number).0
            }
            TaskFunction::TargetWarmReset => {
                others = node.abort_others(self.id, None, Cause::Reset);
                self.events.push_back(Event::Reset { lun: None });
                self.abort_tasks(|_, _| true).0
            }
            TaskFunction::TargetColdReset => {
                others = node.close_others(self.id);
                self.events.push_back(Event::Reset { lun: None });
                self.abort_tasks(|_, _| true).0
            }
            TaskFunction::TaskReassign => return Err(TaskResponseCode::NoReassignment),
            TaskFunction::ClearAca | TaskFunction::Unknown(_) => {
                return Err(TaskResponseCode::Unsupported);
            }
        };
        Ok(Management {
            itt: request.itt,
            waits_for,
            waits_for_others: others,
            deadline: Some(self.latest + self.setup.task_function_timeout),
            closes: request.function == TaskFunction::TargetColdReset,
        })
    }

    /// Aborts the tasks of a logical unit: those that are still to end, with those of others that
    /// have a request at its device, and how many were aborted.
    fn end_unit(&mut self, lun: Option<u16>) -> (Vec<TaskId>, usize) {
        let (mut left, count) = self.abort_tasks(|_, field| field.number() == lun);
        left.extend(self.tasks.visitors(lun));
        (left, count)
    }

    /// Ends tasks for another session; it is told by `settle_management` when they have ended.
    pub(super) fn abort_for(
        &mut self,
        node: &Node,
        lun: Option<u16>,
        ticket: Ticket,
        cause: Cause,
    ) {
        let (mut waits_for, count) = match lun {
            Some(_) => self.end_unit(lun),
            None => self.abort_tasks(|_, _| true),
        };
        if cause == Cause::Cleared && count > 0 {
            self.events.extend(lun.map(|lun| Event::Cleared { lun }));
        }
        // What only receives is never begun.
        waits_for.retain(|task| self.tasks.is_executing(*task));
        // Sessions that come, order and go while a task hangs leave nothing here.
        self.owed.retain(|owed| node.is_awaited(self.id, owed.ticket));
        self.owed.push(Owed { ticket, waits_for });
    }

    /// Tells other sessions what has ended here, and hears what has ended there.
    pub(super) fn settle_management(&mut self, node: &mut Node) {
        for done in self.owed.extract_if(.., |owed| owed.waits_for.is_empty()) {
            node.acknowledge(self.id, done.ticket);
        }
        while let Some(ticket) = node.take_finished(self.id) {
            for pending in &mut self.management {
                pending.waits_for_others.take_if(|waiting| *waiting == ticket);
            }
            self.preempted_elsewhere(ticket);
            self.answer_management();
        }
    }

    /// An aborted task has ended.
    pub(super) fn task_ended(&mut self, task: TaskId) {
        for pending in &mut self.management {
            pending.waits_for.retain(|waiting| *waiting != task);
        }
        self.answer_management();
        self.preempted_here(task);
        let mut settled = false;
        for owed in &mut self.owed {
            let waited = !owed.waits_for.is_empty();
            owed.waits_for.retain(|waiting| *waiting != task);
            settled |= waited && owed.waits_for.is_empty();
        }
        if settled {
            self.events.push_back(Event::Settled);
        }
    }

    /// Functions that have waited long enough fail.
    pub(super) fn expire_management(&mut self, now: Duration) {
        for index in 0..self.management.len() {
            let pending = &mut self.management[index];
            if pending.deadline.take_if(|deadline| *deadline <= now).is_some() {
                let itt = pending.itt;
                self.counters.task_functions_failed.add(1);
                self.answer_function(TaskResponseCode::Rejected, itt);
            }
        }
    }

    pub(super) fn management_deadline(&self) -> Option<Duration> {
        self.management.iter().filter_map(|pending| pending.deadline).min()
    }

    fn answer_management(&mut self) {
        let done = |pending: &mut Management| {
            pending.waits_for.is_empty() && pending.waits_for_others.is_none()
        };
        let ended: Vec<_> = self.management.extract_if(.., done).collect();
        for pending in ended.iter().filter(|pending| pending.deadline.is_some()) {
            self.answer_function(TaskResponseCode::Complete, pending.itt);
        }
        if ended.iter().any(|pending| pending.closes) {
            self.close();
        }
    }

    fn answer_function(&mut self, code: TaskResponseCode, itt: u32) {
        self.push_control(TaskResponse { code, itt }.encode(), Vec::new(), true);
    }
}
