//! Persistent reservations of a remote disk (SPC-4, section 5.13): who may write to it.
//!
//! All sessions of a [`Remote`] are registered with one key. When that registration is gone, another host
//! has taken over: the disk is *fenced* for this side, every request fails with [`ErrorKind::Fenced`], and
//! nothing is sent any more. Who takes over preempts before the first request. When a request meets a
//! reservation conflict, all sessions ask whether they are registered still before anything else is sent; a
//! disk that says so, and answers with a conflict again, has failed.

use std::{num::NonZeroU64, sync::atomic::Ordering};

use netraid_block::{ErrorKind, IoError};
use netraid_scsi::cdb::reserve::{self, ReserveOrder};
pub use netraid_scsi::cdb::reserve::{Keys, Reservation, ReservationType};
use tokio::sync::oneshot;

use netraid_remote::Order;

use super::{Message, Remote};

/// Room for the answer of READ KEYS: 1023 keys.
const KEYS_LEN: u16 = 8192;

impl Remote {
    /// Registers all sessions with `key`, in place of the key that they were registered with
    /// here before. A session that is not there within half the time of a request is registered
    /// when it comes, and carries nothing before.
    ///
    /// # Errors
    /// As every control command: `Fenced` when a session is registered with another key than
    /// this side knows of, `Unsupported` where the disk has no reservations, `Timeout` and
    /// `Unreachable` as for requests; then some sessions may be registered.
    pub async fn register(&self, key: NonZeroU64) -> Result<(), IoError> {
        self.order(Order::Register { key: key.get(), ignore: false }).await.map(drop)
    }

    /// The same, whatever the sessions were registered with before: for whoever takes over from a
    /// predecessor with the same ISID.
    ///
    /// # Errors
    /// As [`Self::register`].
    pub async fn register_and_ignore(&self, key: NonZeroU64) -> Result<(), IoError> {
        self.order(Order::Register { key: key.get(), ignore: true }).await.map(drop)
    }

    /// Takes the registrations of all sessions back, also those that a target made and then failed
    /// to store.
    ///
    /// # Errors
    /// As [`Self::register`].
    pub async fn unregister(&self) -> Result<(), IoError> {
        self.order(Order::Register { key: 0, ignore: true }).await.map(drop)
    }

    /// The keys that are registered, up to 1023 of them.
    ///
    /// # Errors
    /// As [`Self::register`]; `Device` when the answer cannot be read.
    pub async fn reservation_keys(&self) -> Result<Keys, IoError> {
        let answer = self.inquire(reserve::read_keys(KEYS_LEN), KEYS_LEN).await?;
        Keys::decode(&answer).ok_or_else(|| self.unreadable("keys"))
    }

    /// The reservation that is held, if any.
    ///
    /// # Errors
    /// As [`Self::reservation_keys`].
    pub async fn reservation(&self) -> Result<Option<Reservation>, IoError> {
        let answer = self.inquire(reserve::read_reservation(24), 24).await?;
        Reservation::decode(&answer).ok_or_else(|| self.unreadable("reservation"))
    }

    /// Reserves the disk; `key` is that of [`Self::register`]. What one holds already may be
    /// reserved again.
    ///
    /// # Errors
    /// `Fenced` when another holds a reservation or `key` is not registered; else as
    /// [`Self::register`].
    pub async fn reserve(&self, key: NonZeroU64, kind: ReservationType) -> Result<(), IoError> {
        self.demand(reserve::reserve(key.get(), kind)).await
    }

    /// Gives the reservation back; nothing where this side holds none.
    ///
    /// # Errors
    /// `Fenced` when `key` is not registered; else as [`Self::register`].
    pub async fn release(&self, key: NonZeroU64, kind: ReservationType) -> Result<(), IoError> {
        self.demand(reserve::release(key.get(), kind)).await
    }

    /// Removes the reservation and all registrations, this side's too.
    ///
    /// # Errors
    /// `Fenced` when `key` is not registered; else as [`Self::register`].
    pub async fn clear_reservations(&self, key: NonZeroU64) -> Result<(), IoError> {
        self.order(Order::Clear { key: key.get() }).await.map(drop)
    }

    /// Removes the registrations with the key `victim`, and takes over its reservation as `kind`.
    /// With `abort`, the commands of those nexuses end before this does: what they had under way
    /// does not land later.
    ///
    /// # Errors
    /// `Fenced` when `key` is not registered, or nobody is with `victim`; else as
    /// [`Self::register`].
    pub async fn preempt(
        &self,
        key: NonZeroU64,
        victim: NonZeroU64,
        kind: ReservationType,
        abort: bool,
    ) -> Result<(), IoError> {
        self.demand(reserve::preempt(key.get(), victim.get(), kind, abort)).await
    }

    /// This side gives its registrations back, for good. What is under way still, and meets the reservation of
    /// somebody else after that, fails with [`ErrorKind::Device`].
    pub fn note_leaving(&self) {
        // When the task is gone nothing is under way.
        let _ = self.sender.send(Message::Leaving);
    }

    /// Whether another host has taken over from this one; final.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.state.fenced.load(Ordering::Acquire)
    }

    async fn inquire(
        &self,
        cdb: netraid_scsi::cdb::build::CdbBytes,
        len: u16,
    ) -> Result<Vec<u8>, IoError> {
        let read_len = u32::from(len);
        self.order(Order::Once { cdb, parameters: Vec::new(), read_len }).await
    }

    async fn demand(&self, order: ReserveOrder) -> Result<(), IoError> {
        let ReserveOrder { cdb, parameters } = order;
        self.order(Order::Once { cdb, parameters, read_len: 0 }).await.map(drop)
    }

    async fn order(&self, order: Order) -> Result<Vec<u8>, IoError> {
        let (reply, answer) = oneshot::channel();
        // What cannot be sent is dropped, and its reply with it: that ends the wait.
        drop(self.sender.send(Message::Order(order, reply)));
        answer.await.unwrap_or_else(|_| Err(ErrorKind::Aborted.into()))
    }

    fn unreadable(&self, what: &str) -> IoError {
        let text = format!(
            "{}: the disk's answer about its {what} cannot be read; a restart of its target may mend \
             that",
            self.place
        );
        IoError::with_detail(ErrorKind::Device, text)
    }
}
