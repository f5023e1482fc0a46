//! Fencing: a reservation on each member keeps every engine but this one from writing
//! (persistent reservations, SPC-4, section 5.13).
//!
//! What is asked of a member, and in which order, is in `netraid_raid::fencing::steps`; here the sessions ask it.

use netraid_raid::{
    fencing::{
        Fence, has_engine,
        steps::{Answer, Ask, Notice, Steps},
    },
    label::Label,
    reach::{self, Hold, Sessions},
};

use super::{error::ArrayError, lock::ArrayLock, member::Connected};
use crate::initiator::ReservationType;

/// Only registered sessions write, all of them hold it, everybody reads.
const KIND: ReservationType = ReservationType::WriteExclusiveAllRegistrants;

impl Connected {
    /// Removes the registrations of whomever, waits for what they have under way where the device
    /// can, and keeps them out until [`Self::set_free`]: nothing of theirs is written over what
    /// is written meanwhile. Nothing where nobody is registered.
    pub(super) async fn seize(&mut self) -> Result<(), ArrayError> {
        let against_all = Fence::against_all(rand::random());
        let seized = reach::carry_out(self, |standing| Steps::seize(standing, against_all)).await;
        seized.map_err(|error| ArrayError::not_fenced(self.address(), error))
    }

    /// Ends [`Self::seize`]: nobody is registered and nothing reserved any more.
    pub(super) async fn set_free(&mut self) {
        // The steps tell what stays.
        let _ = reach::carry_out(self, Steps::set_free).await;
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
            Ok(found) => !found.is_cut && !has_engine(&found.keys),
            Err(_) => false,
        };
        match has_no_engine {
            true => Ok(None),
            false => {
                Err(ArrayError::OpenHere { address: self.address(), name: label.name.clone() })
            }
        }
    }
}

impl Sessions for Connected {
    fn hold(&self) -> &Hold {
        &self.hold
    }

    fn hold_mut(&mut self) -> &mut Hold {
        &mut self.hold
    }

    fn address(&self) -> String {
        self.config.address()
    }

    fn rely_on(&self, cache_losses: u64) {
        self.remote.rely_on(cache_losses);
    }

    fn note_leaving(&self) {
        self.remote.note_leaving();
    }

    async fn close(&self) {
        self.remote.close().await;
    }

    async fn ask(&self, ask: Ask) -> Answer {
        let remote = &self.remote;
        let done = match ask {
            Ask::Keys => {
                return match remote.reservation_keys().await {
                    Ok(found) => Answer::Keys { keys: found.keys, is_cut: found.is_cut },
                    Err(error) => Answer::Failed(error),
                };
            }
            Ask::Reservation => {
                return match remote.reservation().await {
                    Ok(held) => Answer::Reservation(held.map(|held| held.kind == KIND)),
                    Err(error) => Answer::Failed(error),
                };
            }
            Ask::Presence => {
                return Answer::Presence(remote.is_connected() && !remote.is_fenced());
            }
            Ask::Register { key, ignore: true } => remote.register_and_ignore(key).await,
            Ask::Register { key, ignore: false } => remote.register(key).await,
            Ask::Unregister => remote.unregister().await,
            Ask::Reserve(key) => remote.reserve(key, KIND).await,
            Ask::Release(key) => remote.release(key, KIND).await,
            Ask::Preempt { key, other, aborts } => remote.preempt(key, other, KIND, aborts).await,
            Ask::Clear(key) => remote.clear_reservations(key).await,
        };
        match done {
            Ok(()) => Answer::Done,
            Err(error) => Answer::Failed(error),
        }
    }

    fn tell(&self, notice: Notice) {
        let place = self.config.address();
        match notice {
            Notice::NotFenced(reason) => tracing::warn!(place, %reason, "not fenced"),
            Notice::NothingAborted => tracing::warn!(
                place,
                "no PREEMPT AND ABORT: what another engine has under way may still be written"
            ),
            Notice::ReaderNotRegistered(reason) => tracing::warn!(
                place,
                %reason,
                "no reservations tell of writers: for two seconds after one has come, what is read may be old"
            ),
            Notice::RegistrationStays(error) => {
                tracing::warn!(place, %error, "the registration stays");
            }
            Notice::ReservationStays(error) => {
                tracing::warn!(place, %error, "the reservation stays");
            }
        }
    }
}
