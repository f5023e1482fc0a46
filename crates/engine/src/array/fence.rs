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
use netraid_raid::label::{Label, Uuid};

use super::{
    error::ArrayError,
    lock::{ArrayLock, fingerprint, former_machine, is_dead, machine_id},
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
/// What follows: whose lock it holds, then what is random, and these two.
const LOCK_MASK: u64 = 0x00ff_ffff << 24;
const RANDOM_MASK: u64 = 0x00ff_fffc;
/// Somebody was removed from this member who may be alive.
const WARY: u64 = 0b10;
/// An engine's, which lives or has died. Without it: [`VACANT`].
const HELD: u64 = 0b01;
/// Nobody has the array open, and only who takes this key's place may write.
const VACANT: NonZeroU64 = NonZeroU64::new(TAG | WARY).unwrap();

/// Whose registrations may be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Removes {
    /// Those of engines that held this very lock: they are dead.
    Own,
    /// Those, and those of holders (see [`key_of`]) that are proven to be dead: of the label that decides, and
    /// of the member's own.
    Holders([Option<u64>; 2]),
    /// Those of all engines: somebody says that they are dead.
    Engines,
    /// Everybody's, by an administrator's word.
    All,
}

/// This engine's key, and what it may do to others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fence {
    key: NonZeroU64,
    removes: Removes,
    /// The lock that this engine has.
    lock: (u64, u64),
    /// This machine's former identity, by the label that decided.
    former: Option<Uuid>,
}

impl Fence {
    /// A new key for who holds `lock`, of the array that is opened by the label `truth`.
    pub(super) fn new(truth: &Label, lock: &ArrayLock, removes: Removes) -> Self {
        let random = rand::random::<u64>() & RANDOM_MASK;
        let own = key_of(fingerprint(&truth.array_uuid, machine_id(), lock.id()));
        let key = NonZeroU64::MIN | (own | HELD | random);
        let former = former_machine(&truth.holder, lock.id());
        Self { key, removes, lock: lock.id(), former }
    }

    /// The identities that this machine had when holders made sessions to a member, whose engines are dead as
    /// this engine's lock proves: the holder in the label that decided, and that in the member's own label. A
    /// member that was away knows an earlier engine than the others.
    pub(super) fn former_machines(self, own: Option<&Label>) -> BTreeSet<Uuid> {
        let own = own.and_then(|label| former_machine(&label.holder, self.lock));
        own.into_iter().chain(self.former).collect()
    }

    /// What the keys of a label's holder have in common, where this engine's lock proves that it is dead.
    pub(super) fn dead_holder(self, label: &Label) -> Option<u64> {
        let Label { array_uuid, holder, .. } = label;
        let key = || key_of(fingerprint(array_uuid, holder.machine_id, holder.lock));
        is_dead(holder, self.lock).then(key)
    }

    /// The same key, with another say over others.
    pub(super) const fn with(self, removes: Removes) -> Self {
        Self { removes, ..self }
    }

    fn may_remove(self, other: u64) -> bool {
        match self.removes {
            _ if other == VACANT.get() || self.is_dead(other) => true,
            Removes::Own | Removes::Holders(_) => false,
            Removes::Engines => is_engine(other),
            Removes::All => true,
        }
    }

    /// Whether it is proven that who has this key is dead.
    fn is_dead(self, other: u64) -> bool {
        let alike = |key: u64| (key ^ other) & (TAG_MASK | LOCK_MASK) == 0;
        let holders = match self.removes {
            Removes::Holders(holders) => holders,
            Removes::Own | Removes::Engines | Removes::All => [None; 2],
        };
        let is_holder = holders.into_iter().flatten().any(alike);
        other != VACANT.get() && (alike(self.key.get()) || is_holder)
    }

    /// Whether somebody may live who was removed from a member with these keys, or now will be.
    fn is_wary(self, others: &BTreeSet<u64>) -> bool {
        others.iter().any(|other| {
            let told = is_engine(*other) && other & WARY != 0;
            told || !self.is_dead(*other)
        })
    }
}

const fn is_engine(key: u64) -> bool {
    key & TAG_MASK == TAG
}

/// What the keys of engines with this fingerprint have in common.
pub(super) const fn key_of(fingerprint: u64) -> u64 {
    TAG | (fingerprint << 24) & LOCK_MASK
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
        let key = if self.is_wary { fence.key | WARY } else { fence.key };
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
        let key = NonZeroU64::MIN | (TAG | HELD | rand::random::<u64>() & RANDOM_MASK);
        let fenced =
            self.try_fence(Fence { key, removes: Removes::All, lock: (0, 0), former: None }).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_known_to_be_dead_is_removed() {
        let key = NonZeroU64::new(0x4e52_aaaa_aa01_0201).unwrap();
        let (same_lock, engine, stranger) =
            (0x4e52_aaaa_aa99_9999, 0x4e52_bbbb_bb99_9999, 0x1111_aaaa_aa99_9999);
        for (removes, expected) in [
            (Removes::Own, [true, false, false]),
            (Removes::Holders([Some(key_of(0xbb_bbbb)), None]), [true, true, false]),
            (Removes::Holders([None, Some(key_of(0xbb_bbbb))]), [true, true, false]),
            (Removes::Holders([Some(key_of(0xcc_cccc)), None]), [true, false, false]),
            (Removes::Engines, [true, true, false]),
            (Removes::All, [true; 3]),
        ] {
            let fence = Fence { key, removes, lock: (0, 0), former: None };
            let found = [same_lock, engine, stranger].map(|other| fence.may_remove(other));
            assert_eq!(found, expected, "{removes:?}");
            assert!(fence.may_remove(VACANT.get()));
        }
    }

    #[test]
    fn who_may_live_is_remembered_from_key_to_key() {
        let key = NonZeroU64::new(0x4e52_aaaa_aa01_0201).unwrap();
        let fence = Fence { key, removes: Removes::Engines, lock: (0, 0), former: None };
        let is_wary = |other| fence.is_wary(&[other].into());
        assert!(!fence.is_wary(&BTreeSet::new()));
        assert!(!is_wary(0x4e52_aaaa_aa99_9999), "it held this lock");
        assert!(is_wary(0x4e52_aaaa_aa99_9999 | WARY), "and had removed somebody");
        assert!(is_wary(0x4e52_bbbb_bb99_9999) && is_wary(VACANT.get()));
    }
}
