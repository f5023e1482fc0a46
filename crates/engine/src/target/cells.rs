//! What the threads of a target share.
//!
//! Nobody holds one of these while waiting, and whoever holds two takes them in this order: the node, or background work and
//! then the logical units; then the table of segments; then the table of LUNs, a LUN's policy, users, device; then sessions, the
//! pacer, wakers, those who wait for orders. A session's permit comes last, and after it how far its segment is written. A
//! command takes the logical units twice, for some tens of nanoseconds.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value that one thread at a time uses.
#[derive(Debug, Default)]
pub(super) struct Guarded<T>(Mutex<T>);

impl<T> Guarded<T> {
    pub(super) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// The value. What a connection left that failed by a bug is used as it is, as by one thread.
    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Copy> Guarded<T> {
    pub(super) fn get(&self) -> T {
        *self.lock()
    }

    pub(super) fn set(&self, value: T) {
        *self.lock() = value;
    }
}
