//! What a session or a LUN did. Each counter has one writer, a thread of the target, and may be read by
//! all; a LUN has counters for each thread.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use netraid_scsi::{Status, cdb::CommandKind};
use serde::{Deserialize, Serialize};

/// Counters that only grow.
// Two threads do not write to one cache line, nor to its neighbour.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counters {
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    unmaps: AtomicU64,
    others: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    check_conditions: AtomicU64,
    conflicts: AtomicU64,
    busy: AtomicU64,
    aborted: AtomicU64,
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

impl CommandCounts {
    /// Both together.
    pub(super) const fn plus(self, more: Self) -> Self {
        Self {
            reads: self.reads.wrapping_add(more.reads),
            writes: self.writes.wrapping_add(more.writes),
            flushes: self.flushes.wrapping_add(more.flushes),
            unmaps: self.unmaps.wrapping_add(more.unmaps),
            others: self.others.wrapping_add(more.others),
            read_bytes: self.read_bytes.wrapping_add(more.read_bytes),
            written_bytes: self.written_bytes.wrapping_add(more.written_bytes),
            check_conditions: self.check_conditions.wrapping_add(more.check_conditions),
            reservation_conflicts: self
                .reservation_conflicts
                .wrapping_add(more.reservation_conflicts),
            busy: self.busy.wrapping_add(more.busy),
            aborted: self.aborted.wrapping_add(more.aborted),
        }
    }
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
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            unmaps: self.unmaps.load(Relaxed),
            others: self.others.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            check_conditions: self.check_conditions.load(Relaxed),
            reservation_conflicts: self.conflicts.load(Relaxed),
            busy: self.busy.load(Relaxed),
            aborted: self.aborted.load(Relaxed),
        }
    }
}

fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}
