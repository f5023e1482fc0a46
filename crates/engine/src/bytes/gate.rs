//! Keeps writes of whole blocks out while the aligner rewrites partial ones.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, Thread},
};

/// Set while the aligner has the gate, or waits for it.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// How many writes are under way, and whether the gate is closed to more.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: AtomicUsize,
    /// The aligner, which the last write to leave a closed gate wakes.
    waiter: OnceLock<Thread>,
}

impl Gate {
    /// Enters a write; false when the gate is closed.
    pub(super) fn enter(&self) -> bool {
        if self.state.fetch_add(1, Ordering::Acquire) & CLOSED == 0 {
            return true;
        }
        self.leave();
        false
    }

    /// Ends a write that had entered.
    pub(super) fn leave(&self) {
        let before = self.state.fetch_sub(1, Ordering::Release);
        assert_ne!(before & !CLOSED, 0, "a write leaves once");
        if before == CLOSED | 1
            && let Some(waiter) = self.waiter.get()
        {
            waiter.unpark();
        }
    }

    /// Enters a write from the aligner's own thread, which may while the gate is closed.
    pub(super) fn enter_closed(&self) {
        self.state.fetch_add(1, Ordering::Acquire);
    }

    /// Makes the calling thread the one that closes the gate.
    pub(super) fn bind(&self) {
        // Only the one aligner of this gate calls this.
        let _ = self.waiter.set(thread::current());
    }

    /// Closes the gate and waits until every write that had entered has left.
    pub(super) fn close(&self) {
        self.state.fetch_or(CLOSED, Ordering::AcqRel);
        while self.state.load(Ordering::Acquire) != CLOSED {
            thread::park();
        }
    }

    /// Opens the gate.
    pub(super) fn open(&self) {
        self.state.fetch_and(!CLOSED, Ordering::Release);
    }
}
