//! What a target counts: numbers that can be read at any time on any thread, and only grow. What is
//! counted for each PDU has one writer, and costs an addition.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that only grows, which any thread may count.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// The number so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Counts `more`.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }
}

/// A number that only grows, which one connection counts and all threads may read.
#[derive(Debug, Default)]
pub struct OwnCount(AtomicU64);

impl OwnCount {
    /// The number so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Counts `more`; by the one who counts.
    pub(super) fn add(&self, more: u64) {
        self.0.store(self.get().wrapping_add(more), Relaxed);
    }
}

/// What all connections of a target add up to.
#[derive(Debug, Default)]
pub struct Counters {
    /// Sessions for SCSI commands that were admitted.
    pub logins: Count,
    /// Discovery sessions that were admitted.
    pub discoveries: Count,
    /// Sessions that a new one of the same initiator port replaced.
    pub reinstatements: Count,
    /// Logins that were sent to another portal.
    pub redirected: Count,
    /// Logins refused for a wrong name or secret (status 0x0201).
    pub refused_authentication: Count,
    /// Logins of initiators that are not allowed here (status 0x0202).
    pub refused_authorization: Count,
    /// Logins to a target that is not here (status 0x0203).
    pub refused_not_found: Count,
    /// Connections and logins for which there was no room (closed, or status 0x0302).
    pub refused_busy: Count,
    /// Logins refused for any other reason.
    pub refused_other: Count,
    /// Logins that were not finished in time.
    pub login_timeouts: Count,
    /// Connections dropped because the peer broke the protocol.
    pub protocol_errors: Count,
    /// Headers and data segments with a wrong digest.
    pub digest_errors: Count,
    /// Connections whose peer did not answer pings.
    pub silent_peers: Count,
    /// PDUs that were answered by a Reject.
    pub rejected_pdus: Count,
    /// Task management functions that were asked for.
    pub task_functions: Count,
    /// Task management functions whose tasks did not end in time.
    pub task_functions_failed: Count,
    /// Tasks that were aborted by task management.
    pub aborted_tasks: Count,
    /// Sessions that an administrator dropped.
    pub dropped_sessions: Count,
}

impl Counters {
    /// Counts a login that ends with this status.
    pub(super) fn count_refusal(&self, status: u16) {
        let counter = match status {
            0x0101 | 0x0102 => &self.redirected,
            0x0201 => &self.refused_authentication,
            0x0202 => &self.refused_authorization,
            0x0203 => &self.refused_not_found,
            0x0302 => &self.refused_busy,
            _ => &self.refused_other,
        };
        counter.add(1);
    }
}

/// What passed through one session.
#[derive(Debug, Default)]
pub struct Traffic {
    /// PDUs from the initiator.
    pub pdus_in: OwnCount,
    /// PDUs to the initiator.
    pub pdus_out: OwnCount,
    /// Bytes of data segments from the initiator.
    pub bytes_in: OwnCount,
    /// Bytes of data segments to the initiator.
    pub bytes_out: OwnCount,
    /// SCSI commands.
    pub commands: OwnCount,
    /// Tasks that were aborted by task management.
    pub aborted_tasks: OwnCount,
}

/// Data that all sessions of a target hold in memory together.
#[derive(Debug)]
pub(super) struct Budget {
    limit: u64,
    held: AtomicU64,
}

impl Budget {
    pub(super) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, held: AtomicU64::new(0) })
    }

    /// Holds so much if there is room.
    pub(super) fn try_hold(&self, cost: u64) -> bool {
        let more = |held: u64| held.checked_add(cost).filter(|held| *held <= self.limit);
        self.held.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Holds so much whether there is room or not.
    pub(super) fn hold(&self, cost: u64) {
        self.held.fetch_add(cost, Relaxed);
    }

    pub(super) fn give_back(&self, cost: u64) {
        let held = self.held.fetch_sub(cost, Relaxed);
        assert!(cost <= held, "{cost} bytes given back of {held}");
    }

    pub(super) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }
}
