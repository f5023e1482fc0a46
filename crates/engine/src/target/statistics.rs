//! What a session or a LUN did: plain counters on the target's thread.

use std::cell::Cell;

use netraid_scsi::{Status, cdb::CommandKind};
use serde::{Deserialize, Serialize};

/// Counters that only grow.
#[derive(Debug, Default)]
pub(super) struct Counters {
    reads: Cell<u64>,
    writes: Cell<u64>,
    flushes: Cell<u64>,
    unmaps: Cell<u64>,
    others: Cell<u64>,
    read_bytes: Cell<u64>,
    written_bytes: Cell<u64>,
    check_conditions: Cell<u64>,
    conflicts: Cell<u64>,
    busy: Cell<u64>,
    aborted: Cell<u64>,
}

/// Commands that have ended, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandCounts {
    /// Commands that read.
    pub reads: u64,
    /// Commands that changed bytes.
    pub writes: u64,
    /// Commands that made bytes stable.
    pub flushes: u64,
    /// Commands that gave bytes back.
    pub unmaps: u64,
    /// All other commands.
    pub others: u64,
    /// Bytes that reads returned.
    pub read_bytes: u64,
    /// Bytes that came with writes.
    pub written_bytes: u64,
    /// Commands that ended with CHECK CONDITION, unit attentions among them.
    pub check_conditions: u64,
    /// Commands that ended with RESERVATION CONFLICT.
    pub reservation_conflicts: u64,
    /// Commands that ended with BUSY or TASK SET FULL.
    pub busy: u64,
    /// Commands that were begun and ended without a response: aborted, or their session was lost.
    pub aborted: u64,
}

impl Counters {
    /// Counts a command that ended with this status; `read_bytes` and `written_bytes` are what it
    /// moved if it was a read or a write.
    pub(super) fn count(&self, kind: CommandKind, status: Status, read: u64, written: u64) {
        match kind {
            CommandKind::Read => {
                bump(&self.reads, 1);
                bump(&self.read_bytes, read);
            }
            CommandKind::Write => {
                bump(&self.writes, 1);
                bump(&self.written_bytes, written);
            }
            CommandKind::Flush => bump(&self.flushes, 1),
            CommandKind::Unmap => bump(&self.unmaps, 1),
            CommandKind::Other => bump(&self.others, 1),
        }
        if status != Status::Good {
            self.count_failure(status);
        }
    }

    #[cold]
    fn count_failure(&self, status: Status) {
        match status {
            Status::CheckCondition => bump(&self.check_conditions, 1),
            Status::ReservationConflict => bump(&self.conflicts, 1),
            Status::Busy | Status::TaskSetFull | Status::AcaActive => bump(&self.busy, 1),
            Status::TaskAborted => bump(&self.aborted, 1),
            Status::Good | Status::ConditionMet => {}
        }
    }

    /// Counts a command that got no response.
    pub(super) fn count_aborted(&self) {
        bump(&self.aborted, 1);
    }

    /// What was counted so far.
    pub(super) fn snapshot(&self) -> CommandCounts {
        CommandCounts {
            reads: self.reads.get(),
            writes: self.writes.get(),
            flushes: self.flushes.get(),
            unmaps: self.unmaps.get(),
            others: self.others.get(),
            read_bytes: self.read_bytes.get(),
            written_bytes: self.written_bytes.get(),
            check_conditions: self.check_conditions.get(),
            reservation_conflicts: self.conflicts.get(),
            busy: self.busy.get(),
            aborted: self.aborted.get(),
        }
    }
}

fn bump(counter: &Cell<u64>, by: u64) {
    counter.set(counter.get().wrapping_add(by));
}
