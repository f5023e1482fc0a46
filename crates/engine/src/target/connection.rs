//! One connection of a target: socket and [`Service`], in one task.

mod outside;

use std::{future::poll_fn, net::SocketAddr, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use netraid_block::narrow;
use netraid_iscsi_proto::{
    chap::Challenge,
    framing::Broken,
    machine::Fatal,
    target::{Link, RefusedLogin},
};
use netraid_node::Service;
use tokio::{
    net::TcpStream,
    sync::{Notify, watch},
    time::Instant,
};

use self::outside::Reach;
use super::{Shared, sessions::SessionEntry};
use crate::{
    completions::{CompletionQueue, CompletionReceiver},
    wire::{Wire, WireError},
};

/// Completions taken before the socket has its turn.
const COMPLETIONS_MAX: usize = 64;
/// How long what is queued may take to leave a connection that ends.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// The service and what it reaches.
struct Driver {
    service: Service<Reach>,
    reach: Reach,
}

/// Serves one connection to its end, on the thread of this number.
pub(super) async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    shared: Arc<Shared>,
    thread: usize,
    stopped: watch::Receiver<bool>,
) {
    let wire = match Wire::new(stream) {
        Ok(wire) => wire,
        Err(error) => {
            tracing::debug!(%peer, %error, "connection failed at once");
            return;
        }
    };
    let Ok(portal) = wire.local_addr() else { return };
    let waker = Arc::new(Notify::new());
    let seat = {
        let mut node = shared.node.lock();
        let seat = node.open(Link::new(peer, portal));
        // Before anybody has an order for it.
        if let Some(seat) = &seat {
            shared.wakers.lock().insert(seat.id(), waker.clone());
        }
        seat
    };
    shared.wake();
    let Some(seat) = seat else {
        if shared.may_tell() {
            tracing::warn!(%peer, "connection refused: too many are logging in");
        }
        return;
    };
    let id = seat.id();
    let challenge = Challenge { identifier: rand::random(), bytes: rand::random() };
    let (now, setup) = (shared.started.elapsed(), shared.setup.clone());
    let service = Service::new(now, seat, setup, challenge, shared.pool.clone());
    let (queue, mut completions) = CompletionQueue::channel();
    let session = SessionEntry::new(id, peer, thread);
    let reach = Reach::new(shared.clone(), session, queue, waker.clone());
    let mut driver = Driver { service, reach };
    let run = AssertUnwindSafe(driver.run(wire, &mut completions, &waker, stopped));
    if run.catch_unwind().await.is_err() {
        tracing::error!(%peer, "serving a connection failed by a bug; the session has ended");
    }
    let Driver { mut service, mut reach } = driver;
    service.abandon_waits(&mut reach);
    // What devices are doing cannot be called back: the session has ended when they are done.
    reach.stop();
    while completions.recv().await.is_some() {}
    service.end(&mut reach);
}

impl Driver {
    async fn run(
        &mut self,
        mut wire: Wire,
        completions: &mut CompletionReceiver,
        waker: &Notify,
        stopped: watch::Receiver<bool>,
    ) {
        let ended = self.converse(&mut wire, completions, waker, stopped).await;
        if let Err(error) = &ended {
            self.count(error);
        }
        self.log_end(ended.err());
        self.service.handle_disconnect(&mut self.reach);
        wire.finish(FLUSH_LIMIT).await;
        drop(wire);
        while !self.service.is_idle() {
            let Some((task, result)) = completions.recv().await else { return };
            self.service.handle_completed(&mut self.reach, narrow(task), result);
            self.service.handle_ends_taken(&mut self.reach);
        }
    }

    async fn converse(
        &mut self,
        wire: &mut Wire,
        completions: &mut CompletionReceiver,
        waker: &Notify,
        mut stopped: watch::Receiver<bool>,
    ) -> Result<(), WireError> {
        let timer = tokio::time::sleep(Duration::from_secs(1));
        // Made once: to make them for each wait costs more than what a wait is for.
        let (woken, stop) = (waker.notified(), stopped.wait_for(|stop| *stop));
        tokio::pin!(timer, woken, stop);
        let (mut stopping, mut moved) = (false, 0);
        loop {
            self.take_completed(completions);
            self.transmit(wire)?;
            if self.service.is_finished() {
                return Ok(());
            }
            if wire.is_paused() && self.service.wants_input() {
                self.receive(wire)?;
                continue;
            }
            if let Some(at) = self.service.next_timeout() {
                let at = self.reach.shared().started + at;
                // A timer that fires early only asks again.
                if at < timer.deadline() || timer.is_elapsed() {
                    timer.as_mut().reset(at);
                }
            }
            let wants_input = self.service.wants_input();
            tokio::select! {
                ready = poll_fn(|context| wire.poll_ready(context, wants_input)) => {
                    ready?;
                    if wants_input {
                        // From here on ends wake nobody: they are taken when all that came has been.
                        self.take_completed(completions);
                        self.receive(wire)?;
                    }
                }
                Some((task, result)) = completions.recv() => {
                    self.service.handle_completed(&mut self.reach, narrow(task), result);
                    self.service.handle_ends_taken(&mut self.reach);
                }
                () = &mut woken => {
                    woken.set(waker.notified());
                    self.service.handle_wake(&mut self.reach);
                }
                _ = &mut stop, if !stopping => {
                    stopping = true;
                    let now = self.reach.now();
                    self.service.handle_shutdown(&mut self.reach, now);
                }
                () = &mut timer => {
                    let changed = std::mem::replace(&mut moved, wire.moved()) != moved;
                    let now = self.reach.now();
                    let moves = (changed, !wire.is_flushed());
                    self.service.handle_timeout(&mut self.reach, now, moves).map_err(Broken::from)?;
                    timer.as_mut().reset(Instant::now() + Duration::from_secs(3600));
                }
            }
        }
    }

    /// Takes ends that are there; those that come before this waits again wake nobody.
    fn take_completed(&mut self, completions: &mut CompletionReceiver) {
        let mut count = 0;
        while count < COMPLETIONS_MAX
            && let Some((task, result)) = completions.take()
        {
            self.service.handle_completed(&mut self.reach, narrow(task), result);
            count += 1;
        }
        if count > 0 {
            self.service.handle_ends_taken(&mut self.reach);
        }
    }

    fn count(&self, error: &WireError) {
        let counters = self.service.counters();
        match error {
            WireError::Broken(Broken::Fatal(Fatal::LoginTimeout)) => counters.login_timeouts.add(1),
            WireError::Broken(Broken::Fatal(Fatal::Silent)) => counters.silent_peers.add(1),
            WireError::Broken(Broken::Fatal(
                Fatal::Protocol(_)
                | Fatal::Oversize { .. }
                | Fatal::Rejected(_)
                | Fatal::Text(_)
                | Fatal::Negotiation(_),
            )) => counters.protocol_errors.add(1),
            WireError::Broken(Broken::Digest(_)) => counters.digest_errors.add(1),
            WireError::Io(_) | WireError::Closed => {}
        }
    }

    /// Says what an administrator wants to know of the end of a connection.
    fn log_end(&self, error: Option<WireError>) {
        let (peer, name) = (self.reach.peer(), self.reach.session().initiator());
        if let Some(RefusedLogin { status, initiator, full }) = self.service.refused_login() {
            let initiator = initiator.as_deref().unwrap_or_default();
            let full = full.map(|full| full.to_string());
            let reason = full.as_deref().unwrap_or_else(|| describe_refusal(*status));
            if *status < 0x0200 {
                tracing::info!(%peer, ?initiator, "login {reason} ({status:#06x})");
            } else if self.reach.shared().may_tell() {
                tracing::warn!(%peer, ?initiator, "login refused: {reason} ({status:#06x})");
            }
            return;
        }
        match error {
            // Whoever only looks whether somebody listens is no news.
            None | Some(WireError::Closed | WireError::Io(_)) if name.is_empty() => {
                tracing::debug!(%peer, "connection ended");
            }
            None => tracing::info!(%peer, initiator = ?name, "session ended"),
            Some(WireError::Closed) => {
                tracing::info!(%peer, initiator = ?name, "session ended by its peer");
            }
            Some(error) => {
                if self.reach.shared().may_tell() {
                    tracing::warn!(%peer, initiator = ?name, %error, "connection dropped");
                }
            }
        }
    }

    /// Takes what the socket has: one reading of the clock for all of it.
    fn receive(&mut self, wire: &mut Wire) -> Result<(), WireError> {
        let now = self.reach.now();
        wire.receive(&mut self.service.receiver(&mut self.reach, now))
    }

    /// Sends what the machine has, as far as the socket takes it.
    fn transmit(&mut self, wire: &mut Wire) -> Result<(), WireError> {
        loop {
            let mut more = false;
            while wire.has_room()
                && let Some((header, body, digests)) = self.service.poll_transmit()
            {
                more = true;
                wire.push(&header, body, digests);
            }
            self.service.handle_transmitted(&mut self.reach);
            // A queue that was full from the start says nothing about what the machine has.
            let exhausted = wire.has_room();
            if !wire.flush()? || (exhausted && !more) {
                return Ok(());
            }
        }
    }
}

/// What a login status means (RFC 7143, section 11.13.5).
const fn describe_refusal(status: u16) -> &'static str {
    match status {
        0x0101 | 0x0102 => "sent elsewhere",
        0x0201 => "wrong name or secret",
        0x0202 => "the initiator's name is not allowed",
        0x0203 => "no target of this name",
        0x0205 => "version",
        0x0206 => "a second connection of a session",
        0x0207 => "a name is missing",
        0x0209 => "kind of session",
        0x020a => "no such session",
        0x0302 => "no room for another session, or no descriptors for it",
        _ => "against the protocol, or no common values",
    }
}
