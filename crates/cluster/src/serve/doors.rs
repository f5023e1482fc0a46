//! What all connections of a server share: the limiter, and how they are woken.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use netraid_control::limiter::{Arrival, ConnectionId, Ending, Limiter, Limits, Shortage};
use tokio::{sync::Notify, time::Instant};

use crate::access::TokenDigest;

/// All connections of a server.
pub(super) struct Doors {
    shared: Mutex<Shared>,
    started: Instant,
}

struct Shared {
    limiter: Limiter,
    wakers: HashMap<ConnectionId, Arc<Notify>>,
}

impl Shared {
    /// A connection is to be looked after.
    fn wake(&self, id: ConnectionId) {
        if let Some(waker) = self.wakers.get(&id) {
            waker.notify_one();
        }
    }
}

impl Doors {
    pub(super) fn new(limits: Limits) -> Self {
        let shared = Shared { limiter: Limiter::new(limits), wakers: HashMap::new() };
        Self { shared: Mutex::new(shared), started: Instant::now() }
    }

    /// A peer that is not let in gets no place.
    pub(super) fn arrive(self: &Arc<Self>, peer: SocketAddr) -> Option<Arc<Place>> {
        let now = self.now();
        let mut shared = self.shared();
        let arrival = shared.limiter.arrive(now, peer.ip());
        report(&mut shared.limiter, now);
        let Arrival::Admitted(id, loser) = arrival else { return None };
        if let Some(loser) = loser {
            shared.wake(loser);
        }
        let called = Arc::new(Notify::new());
        shared.wakers.insert(id, Arc::clone(&called));
        drop(shared);
        Some(Arc::new(Place { id, doors: Arc::clone(self), called }))
    }

    /// A connection was not accepted.
    pub(super) fn handle_failed_accept(&self, error: &io::Error) {
        if !netraid_private::is_shortage(error) {
            tracing::debug!("a connection ended before it was accepted: {error}");
            return;
        }
        let mut shared = self.shared();
        if let Some(loser) = shared.limiter.handle_exhausted() {
            shared.wake(loser);
        }
        report(&mut shared.limiter, self.now());
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn report(limiter: &mut Limiter, now: Duration) {
    if let Some(report) = limiter.poll_report(now) {
        tracing::warn!("HTTP API: {report}");
    }
}

/// A connection's place; it is free again when the last that has it lets go.
pub(super) struct Place {
    id: ConnectionId,
    doors: Arc<Doors>,
    /// Another connection's arrival may have changed what is to become of this one.
    pub(super) called: Arc<Notify>,
}

impl Place {
    pub(super) fn handle_bytes(&self) {
        self.doors.shared().limiter.handle_bytes(self.doors.now(), self.id);
    }

    pub(super) fn handle_header(&self, token: Option<TokenDigest>) -> Option<Shortage> {
        let token = token.map(|token| token.0);
        self.doors.shared().limiter.handle_header(self.doors.now(), self.id, token)
    }

    pub(super) fn handle_body(&self, len: usize) -> bool {
        self.doors.shared().limiter.handle_body(self.id, len as u64)
    }

    pub(super) fn handle_body_end(&self) {
        self.doors.shared().limiter.handle_body_end(self.id);
    }

    pub(super) fn handle_answer(&self) {
        self.doors.shared().limiter.handle_answer(self.doors.now(), self.id);
    }

    pub(super) fn handle_sent(&self) {
        self.doors.shared().limiter.handle_sent(self.doors.now(), self.id);
    }

    pub(super) fn handle_answered(&self) {
        self.doors.shared().limiter.handle_answered(self.doors.now(), self.id);
    }

    pub(super) fn handle_last_answered(&self) {
        self.doors.shared().limiter.handle_last_answered(self.doors.now(), self.id);
    }

    pub(super) fn handle_thrown_away(&self, len: usize) -> bool {
        self.doors.shared().limiter.handle_thrown_away(self.id, len as u64)
    }

    pub(super) fn must_close(&self) -> Option<Ending> {
        let now = self.doors.now();
        let mut shared = self.doors.shared();
        let ending = shared.limiter.must_close(now, self.id);
        if ending.is_some() {
            report(&mut shared.limiter, now);
        }
        ending
    }

    pub(super) fn must_answer(&self) -> Option<Shortage> {
        let now = self.doors.now();
        let mut shared = self.doors.shared();
        let shortage = shared.limiter.must_answer(now, self.id);
        if shortage.is_some() {
            report(&mut shared.limiter, now);
        }
        shortage
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let at = self.doors.shared().limiter.next_timeout(self.id)?;
        self.doors.started.checked_add(at)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut shared = self.doors.shared();
        shared.limiter.handle_end(self.id);
        shared.wakers.remove(&self.id);
    }
}
