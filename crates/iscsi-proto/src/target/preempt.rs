//! Commands that abort the tasks of other sessions, as PERSISTENT RESERVE OUT with the service
//! action PREEMPT AND ABORT does (SPC-4, section 5.13.11.5).
//!
//! Invariant: a command that waits is told when none of the tasks runs any more. One that is
//! aborted itself does not wait: two that abort each other would never end.

use alloc::vec::Vec;

use netraid_planted::{Planted, planted};

use super::{
    Connection, ConnectionId, Event, Node,
    node::{Cause, Ticket},
};
use crate::{machine::TaskId, pdu::LunField};

/// A command that waits for tasks to end.
#[derive(Debug)]
pub(super) struct Preemption {
    task: TaskId,
    waits_for: Vec<TaskId>,
    /// Names the tasks of other sessions.
    waits_for_others: Option<Ticket>,
}

impl Connection {
    /// A command that executes wants the tasks of these sessions on its logical unit aborted, but
    /// itself; `Preempted` says that none of them runs any more. Should the command be aborted
    /// before, it need not wait. Poll the node's wakes after.
    pub fn handle_preempt(
        &mut self,
        node: &mut Node,
        task: TaskId,
        lun: u16,
        sessions: &[ConnectionId],
    ) {
        let others = node.abort_in(self.id, sessions, lun, Cause::Cleared);
        let waits_for_others = others.filter(|_| !planted(Planted::PreemptAnsweredBeforeEnd));
        let mut waits_for = Vec::new();
        if sessions.contains(&self.id) {
            let own = self.tasks.itt(task);
            let meant = |itt, field: LunField| itt != own && field.number() == Some(lun);
            (waits_for, _) = self.abort_tasks(meant);
            // What only receives is never begun.
            waits_for.retain(|task| self.tasks.is_executing(*task));
            waits_for.extend(self.tasks.visitors(Some(lun)));
        }
        // At most one for each task that executes.
        self.preemptions.push(Preemption { task, waits_for, waits_for_others });
        self.settle_preemptions();
    }

    /// What others had to end has ended.
    pub(super) fn preempted_elsewhere(&mut self, ticket: Ticket) {
        for pending in &mut self.preemptions {
            pending.waits_for_others.take_if(|waiting| *waiting == ticket);
        }
        self.settle_preemptions();
    }

    /// An aborted task has ended.
    pub(super) fn preempted_here(&mut self, task: TaskId) {
        for pending in &mut self.preemptions {
            pending.waits_for.retain(|waiting| *waiting != task);
        }
        self.settle_preemptions();
    }

    /// Tells those that need not wait any more.
    pub(super) fn settle_preemptions(&mut self) {
        let (tasks, events) = (&self.tasks, &mut self.events);
        self.preemptions.retain(|pending| {
            let done = pending.waits_for.is_empty() && pending.waits_for_others.is_none();
            let ends = done || tasks.is_aborted(pending.task);
            if ends {
                events.push_back(Event::Preempted { task: pending.task });
            }
            !ends
        });
    }
}
