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
use netraid_raid::{
    fencing::{Fence, VACANT, is_engine},
    label::Label,
};

use super::{error::ArrayError, lock::ArrayLock, member::Connected};
use crate::initiator::ReservationType;

/// Only registered sessions write, all of them hold it, everybody reads.
const KIND: ReservationType = ReservationType::WriteExclusiveAllRegistrants;
/// Times that others may come between.
const TRIES_MAX: usize = 4;
impl Connected {
    /// Lets no other engine write to this member, where it has reservations; `exclusive` tells.
    ///
    /// # Errors
    /// When somebody is registered who may not be removed, or others come between again and again,
    /// or the member fails.
    pub(super) async fn fence(&mut self, fence: Fence) -> Result<(), ArrayError> {
        match self.try_fence(fence).await {
            Ok(()) => Ok(()),
            Err(ArrayError::Io { reason, .. }) if self.may_go_on_after(&reason).await => {
                tracing::warn!(place = %self.address(), %reason, "not fenced");
                self.is_wary = false;
                self.renounce().await;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// A device without reservations, or one that cannot keep them (LIO without its state
    /// directory), is used without; but not while somebody else is registered at it.
    async fn may_go_on_after(&self, reason: &IoError) -> bool {
        if matches!(reason.kind(), ErrorKind::Unsupported | ErrorKind::Fenced) {
            return reason.kind() == ErrorKind::Unsupported;
        }
        let own = self.registered.map(NonZeroU64::get);
        let keys = self.remote.reservation_keys().await;
        keys.is_ok_and(|keys| !keys.is_cut && keys.keys.iter().all(|key| Some(*key) == own))
    }

    async fn try_fence(&mut self, fence: Fence) -> Result<(), ArrayError> {
        const WHAT: &str = "fencing it";
        // Nothing is disturbed before it is known that nobody is there who may not be.
        let (others, _, _) = self.others(fence, None).await?;
        self.is_wary = fence.is_wary(&others);
        let key = fence.key(self.is_wary);
        // Whatever becomes of it, some sessions may be registered.
        self.registered = Some(key);
        let registered = self.remote.register_and_ignore(key).await;
        registered.map_err(|reason| self.fail("registering at it", reason))?;
        for _ in 0..TRIES_MAX {
            let (others, is_cut, is_registered) = self.others(fence, Some(key)).await?;
            if !is_registered && others.is_empty() && !is_cut {
                return Err(ArrayError::Forgetful { address: self.address() });
            }
            let held = self.remote.reservation().await;
            let held = held.map_err(|reason| self.fail(WHAT, reason))?;
            let is_held = held.is_some_and(|held| held.kind == KIND);
            if is_held && others.is_empty() && !is_cut {
                self.exclusive = true;
                return Ok(());
            }
            self.is_wary |= fence.is_wary(&others);
            for other in others.into_iter().filter_map(NonZeroU64::new) {
                let removed = self.remove(key, other, is_held).await;
                tolerate_conflict(removed).map_err(|reason| self.fail(WHAT, reason))?;
            }
            if !is_held {
                let reserved = self.remote.reserve(key, KIND).await;
                tolerate_conflict(reserved).map_err(|reason| self.fail(WHAT, reason))?;
            }
        }
        Err(ArrayError::Contended { address: self.address() })
    }

    /// The keys beside `own` that are registered, all of which may be removed; whether there are
    /// more than could be read, and whether `own` was read.
    async fn others(
        &self,
        fence: Fence,
        own: Option<NonZeroU64>,
    ) -> Result<(BTreeSet<u64>, bool, bool), ArrayError> {
        let keys = self.remote.reservation_keys().await;
        let keys = keys.map_err(|reason| self.fail("reading its reservation keys", reason))?;
        let own = own.map(NonZeroU64::get);
        let has_own = keys.keys.iter().any(|key| Some(*key) == own);
        let others: BTreeSet<u64> =
            keys.keys.into_iter().filter(|other| Some(*other) != own).collect();
        match others.iter().find(|other| !fence.may_remove(**other)) {
            Some(other) => Err(ArrayError::Reserved { address: self.address(), key: *other }),
            None => Ok((others, keys.is_cut, has_own)),
        }
    }

    /// Makes sure that nobody has taken this member over since it was fenced: its sessions'
    /// registrations are made anew, which only succeeds in their own places.
    pub(super) async fn check_fenced(&self) -> Result<(), ArrayError> {
        let Some(key) = self.registered.filter(|_| self.exclusive) else { return Ok(()) };
        let kept = self.remote.register(key).await;
        kept.map_err(|reason| self.fail("making sure that it is still this engine's", reason))
    }

    /// Removes another's registrations, and waits for what it has under way where the device can.
    async fn remove(
        &self,
        key: NonZeroU64,
        other: NonZeroU64,
        is_held: bool,
    ) -> Result<(), IoError> {
        match self.remote.preempt(key, other, KIND, true).await {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                tracing::warn!(
                    place = %self.address(),
                    "no PREEMPT AND ABORT: what another engine has under way may still be written"
                );
                // What all hold belongs to one of them in tgt; when that one is removed, it is a
                // dangling pointer. So it is released before, and made again at once.
                if is_held {
                    self.remote.release(key, KIND).await?;
                }
                self.remote.preempt(key, other, KIND, false).await?;
                self.remote.reserve(key, KIND).await
            }
            end => end,
        }
    }

    /// Ends the session; others may write again.
    pub(super) async fn leave(&mut self) {
        self.remote.note_leaving();
        self.renounce().await;
        self.remote.close().await;
    }

    async fn renounce(&mut self) {
        self.exclusive = false;
        let may = self.remote.is_connected() && !self.remote.is_fenced();
        let Some(key) = self.registered.take().filter(|_| may) else { return };
        if let Err(error) = self.give_back(key).await {
            tracing::warn!(place = %self.address(), %error, "the registration stays");
        }
    }

    /// Takes this run's registrations back. Some targets (tgt) keep those of sessions that are no
    /// more, which no session could give back: where all are this run's, they go with one command.
    async fn give_back(&self, key: NonZeroU64) -> Result<(), IoError> {
        let all_own = match self.remote.reservation_keys().await {
            Ok(keys) => !keys.is_cut && keys.keys.iter().all(|other| *other == key.get()),
            Err(error) if error.kind() == ErrorKind::Unsupported => false,
            Err(error) => return Err(error),
        };
        match all_own && !self.is_wary {
            true => self.remote.clear_reservations(key).await,
            false if self.is_wary => self.remote.register(VACANT).await,
            false => self.remote.unregister().await,
        }
    }

    /// Whether somebody has reserved the device.
    pub(super) async fn is_reserved(&self) -> Result<bool, ArrayError> {
        match self.remote.reservation().await {
            Ok(held) => Ok(held.is_some()),
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(false),
            Err(error) => Err(self.fail("looking for reservations", error)),
        }
    }

    /// Refuses a member of an array that another process of this machine has open, by the member's `label`.
    /// Where the array is not open, its lock is given: while the lock is held, no process of this machine
    /// opens the array.
    ///
    /// A device that the open array has no more is no member of it, where it was given back: no engine is registered
    /// at the device. One that could not be reached then, or has no reservations, is refused until the array stops.
    pub(super) async fn check_not_open_here(
        &self,
        label: &Label,
    ) -> Result<Option<ArrayLock>, ArrayError> {
        match ArrayLock::take(label) {
            Ok(lock) => return Ok(Some(lock)),
            Err(ArrayError::Locked { .. }) => {}
            // Where no lock can be taken, no array can be open.
            Err(_) => return Ok(None),
        }
        let has_no_engine = match self.remote.reservation_keys().await {
            Ok(keys) => {
                let mut engines = keys.keys.iter().filter(|key| is_engine(**key));
                !keys.is_cut && engines.all(|key| *key == VACANT.get())
            }
            Err(_) => false,
        };
        match has_no_engine {
            true => Ok(None),
            false => {
                Err(ArrayError::OpenHere { address: self.address(), name: label.name.clone() })
            }
        }
    }

    /// Removes the registrations of whomever, waits for what they have under way where the device
    /// can, and keeps them out until [`Self::set_free`]: nothing of theirs is written over what
    /// is written meanwhile. Nothing where nobody is registered.
    pub(super) async fn seize(&mut self) -> Result<(), ArrayError> {
        let nobody = match self.remote.reservation_keys().await {
            Ok(keys) => keys.keys.is_empty(),
            Err(error) if error.kind() == ErrorKind::Unsupported => true,
            Err(error) => return Err(self.fail("reading its reservation keys", error)),
        };
        // A reservation that cannot be read is removed, too.
        if nobody && !matches!(self.is_reserved().await, Ok(true) | Err(_)) {
            return Ok(());
        }
        let fenced = self.try_fence(Fence::against_all(rand::random())).await;
        match (fenced, self.registered) {
            (Ok(()), _) => Ok(()),
            // What cannot be taken over in good order can be cleared.
            (Err(_), Some(key)) => {
                self.registered = None;
                let cleared = self.remote.clear_reservations(key).await;
                cleared.map_err(|error| self.fail("removing its reservations", error))
            }
            (Err(error), None) => Err(error),
        }
    }

    /// Ends [`Self::seize`]: nobody is registered and nothing reserved any more.
    pub(super) async fn set_free(&mut self) {
        self.exclusive = false;
        let Some(key) = self.registered.take() else { return };
        if let Err(error) = self.remote.clear_reservations(key).await {
            tracing::warn!(place = %self.address(), %error, "the reservation stays");
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
