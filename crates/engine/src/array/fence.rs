//! Fencing: a reservation on each member keeps every engine but this one from writing
//! (persistent reservations, SPC-4, section 5.13).
//!
//! All sessions of an engine are registered with one key, which is new for each run; the
//! reservation lets only registered sessions write, and all of them hold it. Who takes over removes
//! the registrations of others, and waits for what they had under way. It ends with
//! [`Connected::leave`]; a target that restarts forgets it, and is set aside then anyway.
//!
//! Invariant: a member is `exclusive` only after it has said that no other key is registered and
//! that the reservation is in force. Says nothing about members without reservations.

use std::{collections::BTreeSet, num::NonZeroU64};

use netraid_block::{ErrorKind, IoError};
use netraid_raid::label::Uuid;

use super::{
    error::ArrayError,
    lock::{ArrayLock, fingerprint},
    member::Connected,
};
use crate::initiator::ReservationType;

/// Only registered sessions write, all of them hold it, everybody reads.
const KIND: ReservationType = ReservationType::WriteExclusiveAllRegistrants;
/// Times that others may come between.
const TRIES_MAX: usize = 4;
/// The first two bytes of an engine's key.
const TAG: u64 = 0x4e52 << 48;
const TAG_MASK: u64 = 0xffff << 48;
/// What follows: whose lock it holds, then what is random.
const LOCK_MASK: u64 = 0x00ff_ffff << 24;

/// Whose registrations may be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Removes {
    /// Those of engines that held this very lock: they are dead.
    Own,
    /// Those of all engines: they are known to be dead.
    Engines,
    /// Everybody's, by an administrator's word.
    All,
}

/// This engine's key, and what it may do to others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fence {
    key: NonZeroU64,
    removes: Removes,
}

impl Fence {
    /// A new key for who holds `lock`, of the array `array`.
    pub(super) fn new(array: &Uuid, lock: &ArrayLock, removes: Removes) -> Self {
        let random = u64::from(rand::random::<u32>()) & 0x00ff_ffff;
        let lock = (fingerprint(array, lock) << 24) & LOCK_MASK;
        let key = NonZeroU64::MIN | (TAG | lock | random);
        Self { key, removes }
    }

    /// The same key, with another say over others.
    pub(super) const fn with(self, removes: Removes) -> Self {
        Self { removes, ..self }
    }

    fn may_remove(self, other: u64) -> bool {
        let alike = |mask| (self.key.get() ^ other) & mask == 0;
        match self.removes {
            Removes::Own => alike(TAG_MASK | LOCK_MASK),
            Removes::Engines => alike(TAG_MASK),
            Removes::All => true,
        }
    }
}

impl Connected {
    /// Lets no other engine write to this member, where it has reservations; `exclusive` tells.
    ///
    /// # Errors
    /// When somebody is registered who may not be removed, or others come between again and again,
    /// or the member fails.
    pub(super) async fn fence(&mut self, fence: Fence) -> Result<(), ArrayError> {
        match self.try_fence(fence).await {
            Ok(()) => Ok(()),
            Err(ArrayError::Io { reason, .. }) if reason.kind() == ErrorKind::Unsupported => {
                tracing::warn!(place = %self.address(), %reason, "not fenced");
                self.renounce().await;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn try_fence(&mut self, fence: Fence) -> Result<(), ArrayError> {
        const WHAT: &str = "fencing it";
        let key = fence.key;
        let registered = self.remote.register_and_ignore(key).await;
        registered.map_err(|reason| self.fail("registering at it", reason))?;
        self.is_registered = true;
        for _ in 0..TRIES_MAX {
            let keys = self.remote.reservation_keys().await;
            let keys = keys.map_err(|reason| self.fail(WHAT, reason))?;
            let others: BTreeSet<u64> =
                keys.keys.into_iter().filter(|other| *other != key.get()).collect();
            let held = self.remote.reservation().await;
            let held = held.map_err(|reason| self.fail(WHAT, reason))?;
            let is_held = held.is_some_and(|held| held.kind == KIND);
            if is_held && others.is_empty() && !keys.is_cut {
                self.exclusive = true;
                return Ok(());
            }
            if let Some(other) = others.iter().find(|other| !fence.may_remove(**other)) {
                return Err(ArrayError::Reserved { address: self.address(), key: *other });
            }
            for other in others.into_iter().filter_map(NonZeroU64::new) {
                let removed = self.remove(key, other).await;
                tolerate_conflict(removed).map_err(|reason| self.fail(WHAT, reason))?;
            }
            if !is_held {
                let reserved = self.remote.reserve(key, KIND).await;
                tolerate_conflict(reserved).map_err(|reason| self.fail(WHAT, reason))?;
            }
        }
        Err(ArrayError::Contended { address: self.address() })
    }

    /// Removes another's registrations, and waits for what it has under way where the device can.
    async fn remove(&self, key: NonZeroU64, other: NonZeroU64) -> Result<(), IoError> {
        match self.remote.preempt(key, other, KIND, true).await {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                tracing::warn!(
                    place = %self.address(),
                    "no PREEMPT AND ABORT: what another engine has under way may still be written"
                );
                self.remote.preempt(key, other, KIND, false).await
            }
            end => end,
        }
    }

    /// Ends the session; others may write again.
    pub(super) async fn leave(&mut self) {
        self.renounce().await;
        self.remote.close().await;
    }

    async fn renounce(&mut self) {
        self.exclusive = false;
        let may = self.remote.is_connected() && !self.remote.is_fenced();
        if std::mem::take(&mut self.is_registered)
            && may
            && let Err(error) = self.remote.unregister().await
        {
            tracing::warn!(place = %self.address(), %error, "the registration stays");
        }
    }

    /// Removes all reservations and registrations of whomever.
    pub(super) async fn clear_reservations(&self) -> Result<(), ArrayError> {
        let key = NonZeroU64::MIN | TAG | u64::from(rand::random::<u32>());
        let cleared = async {
            if self.remote.reservation_keys().await?.keys.is_empty() {
                return Ok(());
            }
            self.remote.register_and_ignore(key).await?;
            self.remote.clear_reservations(key).await
        };
        match cleared.await {
            Err(error) if error.kind() != ErrorKind::Unsupported => {
                Err(self.fail("removing its reservations", error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Others may have come between: what is registered and held then is looked at again.
fn tolerate_conflict(end: Result<(), IoError>) -> Result<(), IoError> {
    match end {
        Err(error) if error.kind() == ErrorKind::Fenced => Ok(()),
        end => end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_known_to_be_dead_is_removed() {
        let key = NonZeroU64::new(0x4e52_aaaa_aa01_0203).unwrap();
        let (same_lock, engine, stranger) =
            (0x4e52_aaaa_aa99_9999, 0x4e52_bbbb_bb99_9999, 0x1111_aaaa_aa99_9999);
        for (removes, expected) in [
            (Removes::Own, [true, false, false]),
            (Removes::Engines, [true, true, false]),
            (Removes::All, [true; 3]),
        ] {
            let fence = Fence { key, removes };
            let found = [same_lock, engine, stranger].map(|other| fence.may_remove(other));
            assert_eq!(found, expected, "{removes:?}");
        }
    }
}
