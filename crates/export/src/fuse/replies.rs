//! Replies that are owed to the kernel, and the requests to the device that decide them.
//!
//! A reply is sent from where its request ended, or the last of its parts. The number of places is
//! fixed: a FUSE thread that finds none free waits, which holds the kernel back. Invariant: after
//! [`Replies::close`] has answered true, no request is under way, none is begun, and all replies have been sent.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender};
use fuser::{Errno, ReplyEmpty, ReplyWrite};
use netraid_block::{Complete, IoError, Pool, SgList, narrow};

use super::{
    errno::errno_of,
    pieces::{FuseDevice, ReadReply},
};

/// Most requests under way; each is at most as long as the longest write.
const PLACES: usize = 256;

/// A reply that waits for its request.
#[derive(Debug)]
pub(super) enum Owed {
    Read(ReadReply),
    /// With the number of bytes that are written.
    Write(ReplyWrite, u32),
    Empty(ReplyEmpty),
}

impl Owed {
    fn send(self, result: Result<SgList, IoError>, device: &FuseDevice, pool: &Pool) {
        match (self, result) {
            (Self::Read(reply), Ok(data)) => reply.data(device, &data, pool),
            (Self::Write(reply, len), Ok(_)) => reply.written(len),
            (Self::Empty(reply), Ok(_)) => reply.ok(),
            (owed, Err(error)) => {
                tracing::debug!(%error, "request failed");
                owed.fail(errno_of(error.kind()));
            }
        }
    }

    fn fail(self, errno: Errno) {
        match self {
            Self::Read(reply) => reply.error(errno),
            Self::Write(reply, _) => reply.error(errno),
            Self::Empty(reply) => reply.error(errno),
        }
    }
}

/// A reply, and what it waits for.
#[derive(Debug, Default)]
struct Place {
    owed: Option<Owed>,
    /// Parts of the request that have not ended.
    parts: u32,
    /// Of the first part that failed.
    error: Option<IoError>,
}

/// All replies that are owed.
pub(super) struct Replies {
    places: Vec<Mutex<Place>>,
    free: (Sender<usize>, Receiver<usize>),
    /// Requests that have not ended; the reply to one that has may still be on its way.
    under_way: AtomicUsize,
    closed: AtomicBool,
    device: FuseDevice,
    pool: Pool,
}

impl Replies {
    pub(super) fn new(pool: Pool) -> Self {
        let free = crossbeam_channel::bounded(PLACES);
        // The channel has room for every place.
        for place in 0..PLACES {
            let _ = free.0.send(place);
        }
        let places = (0..PLACES).map(|_| Mutex::default()).collect();
        let (closed, device) = (AtomicBool::new(false), FuseDevice::default());
        let under_way = AtomicUsize::new(0);
        Self { places, free, under_way, closed, device, pool }
    }

    /// The way to the kernel, which is known when the file system is mounted.
    pub(super) const fn device(&self) -> &FuseDevice {
        &self.device
    }

    /// Whether no request is under way now.
    pub(super) fn is_idle(&self) -> bool {
        self.under_way.load(Ordering::Acquire) == 0
    }

    /// Puts a reply into a place, waiting for one; answers the tag of its request, or of each of
    /// its parts. `None` when no more requests are begun: the reply was an error.
    pub(super) fn owe(&self, owed: Owed, parts: u32) -> Option<u64> {
        match self.free.1.recv() {
            // Read only with a place in hand, so that `close` waits for who has not seen it.
            Ok(place) if self.closed.load(Ordering::Acquire) => {
                self.release(place);
                owed.fail(Errno::EIO);
                None
            }
            Ok(place) => {
                self.under_way.fetch_add(1, Ordering::Relaxed);
                *self.lock(place) = Place { owed: Some(owed), parts, error: None };
                Some(place as u64)
            }
            // The other end is in this structure, so that it never closes.
            Err(_) => {
                owed.fail(Errno::EIO);
                None
            }
        }
    }

    /// Begins no more requests, and waits until those under way have ended; blocks. False when
    /// they have not within `timeout`.
    pub(super) fn close(&self, timeout: Duration) -> bool {
        self.closed.store(true, Ordering::Release);
        let deadline = Instant::now() + timeout;
        // Whoever has every place knows that no request has one.
        let next = |_| self.free.1.recv_deadline(deadline).ok();
        let places: Vec<_> = (0..PLACES).map_while(next).collect();
        let all = places.len() == PLACES;
        places.into_iter().for_each(|place| self.release(place));
        all
    }

    fn release(&self, place: usize) {
        // The channel has room for every place.
        let _ = self.free.0.send(place);
    }

    fn lock(&self, place: usize) -> std::sync::MutexGuard<'_, Place> {
        self.places[place].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Complete for Replies {
    fn complete(&self, tag: u64, result: Result<SgList, IoError>) {
        let place = narrow(tag);
        let mut waiting = self.lock(place);
        let data = result.unwrap_or_else(|error| {
            waiting.error.get_or_insert(error);
            SgList::new()
        });
        waiting.parts = waiting.parts.saturating_sub(1);
        if waiting.parts > 0 {
            return;
        }
        let Place { owed, error, .. } = std::mem::take(&mut *waiting);
        drop(waiting);
        if let Some(owed) = owed {
            // First, so that a client that goes on at the reply is found alone.
            self.under_way.fetch_sub(1, Ordering::Release);
            owed.send(error.map_or(Ok(data), Err), &self.device, &self.pool);
            self.release(place);
        }
    }
}
