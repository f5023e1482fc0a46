//! One connection of a target: socket, machine, logical units and devices, in one task.
//!
//! ```text
//! socket -> wire -> machine -> Command -> units -> Plan
//!                   machine -> Submit  -> units -> device
//! device -> completion -> units -> Outcome -> machine -> wire -> socket
//! ```

mod tasks;

use std::{future::poll_fn, net::SocketAddr, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use netraid_block::{Buf, SgList, narrow};
use netraid_iscsi_proto::{
    chap::Secret,
    machine::{Digests, Fatal, Payload, Placement, TaskId},
    negotiation::SessionType,
    pdu::{Bhs, LunField},
    target::{Challenge, Connection, Event, Link, RefusedLogin, Standing},
};
use netraid_scsi::{InitiatorPort, Nexus, NexusId, UnitAttention};
use tokio::{
    net::TcpStream,
    sync::{Notify, watch},
    time::Instant,
};

use self::tasks::Slot;
use super::{
    Shared,
    luns::SeenLuns,
    realm::ServedRealm,
    segments::{Knock, Knocked},
    sessions::SessionEntry,
};
use crate::{
    completions::{CompletionQueue, CompletionReceiver},
    wire::{Side, Wire, WireError},
};

/// Completions taken before the socket has its turn.
const COMPLETIONS_MAX: usize = 64;
/// How long what is queued may take to leave a connection that ends.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// The machine and everything that it decides about.
struct Driver {
    machine: Connection,
    slots: Vec<Slot>,
    queue: CompletionQueue,
    nexus: NexusId,
    /// Its logical units.
    realm: Arc<ServedRealm>,
    /// Its login waits for its segment.
    knock: Option<Arc<Knock>>,
    shared: Arc<Shared>,
    session: Arc<SessionEntry>,
    /// Wakes this connection.
    waker: Arc<Notify>,
    /// Number of the last grant that was asked for.
    asked: u32,
    /// Of its realm.
    luns: SeenLuns,
    /// By LUN: the incarnation of it that this session is known to use.
    used: Vec<u64>,
    /// Tasks that wait for the background work of a LUN.
    waiting: Vec<(u16, TaskId)>,
    peer: SocketAddr,
    /// When what is taken from the socket was there.
    heard_at: Duration,
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
    let machine = Connection::new(now, seat, setup, challenge);
    let (queue, mut completions) = CompletionQueue::channel();
    let slots = (0..machine.task_count()).map(|_| Slot::default()).collect();
    let nexus = NexusId(id.0);
    let session = SessionEntry::new(id, peer, thread);
    let mut driver = Driver {
        machine,
        slots,
        queue,
        nexus,
        realm: shared.home.clone(),
        knock: None,
        shared: shared.clone(),
        session: session.clone(),
        waker: waker.clone(),
        asked: 0,
        luns: SeenLuns::default(),
        used: Vec::new(),
        waiting: Vec::new(),
        peer,
        heard_at: now,
    };
    let run = AssertUnwindSafe(driver.run(wire, &mut completions, &waker, stopped));
    if run.catch_unwind().await.is_err() {
        tracing::error!(%peer, "serving a connection failed by a bug; the session has ended");
    }
    // What devices are doing cannot be called back: the session has ended when they are done.
    driver.abandon_all_waits();
    let Driver { mut slots, queue, realm, .. } = driver;
    drop(queue);
    while completions.recv().await.is_some() {}
    slots.iter_mut().for_each(|slot| slot.clear(&shared, &realm, &session));
    if let Some(paced) = &shared.paced {
        paced.leave(shared.started.elapsed(), id);
    }
    realm.luns.forget_user(id);
    shared.sessions.remove(id);
    realm.units.lock().remove_nexus(nexus);
    if let (Some(segments), Some(guest)) = (&shared.segments, session.guest()) {
        segments.leave(guest);
    }
    shared.wakers.lock().remove(&id);
    shared.node.lock().closed(id);
    shared.wake();
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
        self.machine.handle_disconnect();
        self.handle_events();
        wire.finish(FLUSH_LIMIT).await;
        drop(wire);
        while !self.machine.is_idle() {
            let Some(completed) = completions.recv().await else { return };
            self.handle_completed(completed);
            self.handle_events();
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
            if self.machine.is_finished() {
                return Ok(());
            }
            if wire.is_paused() && self.machine.wants_input() {
                self.receive(wire)?;
                continue;
            }
            if let Some(at) = self.machine.next_timeout() {
                let at = self.shared.started + at;
                // A timer that fires early only asks again.
                if at < timer.deadline() || timer.is_elapsed() {
                    timer.as_mut().reset(at);
                }
            }
            let wants_input = self.machine.wants_input();
            tokio::select! {
                ready = poll_fn(|context| wire.poll_ready(context, wants_input)) => {
                    ready?;
                    if wants_input {
                        // From here on ends wake nobody: they are taken when all that came has been.
                        self.take_completed(completions);
                        self.receive(wire)?;
                    }
                }
                Some(completed) = completions.recv() => {
                    self.handle_completed(completed);
                    self.handle_events();
                }
                () = &mut woken => {
                    woken.set(waker.notified());
                    self.machine.handle_wake(&mut self.shared.node.lock());
                    self.take_segment();
                    self.take_grants();
                    self.handle_events();
                    self.shared.wake();
                }
                _ = &mut stop, if !stopping => {
                    stopping = true;
                    self.machine.handle_shutdown(self.now());
                    self.handle_events();
                }
                () = &mut timer => {
                    let changed = std::mem::replace(&mut moved, wire.moved()) != moved;
                    self.machine.handle_progress(self.now(), changed, !wire.is_flushed());
                    self.machine.handle_timeout(self.now())?;
                    self.handle_events();
                    timer.as_mut().reset(Instant::now() + Duration::from_secs(3600));
                }
            }
        }
    }

    /// Takes ends that are there; those that come before this waits again wake nobody.
    fn take_completed(&mut self, completions: &mut CompletionReceiver) {
        let mut count = 0;
        while count < COMPLETIONS_MAX
            && let Some(completed) = completions.take()
        {
            self.handle_completed(completed);
            count += 1;
        }
        if count > 0 {
            self.handle_events();
        }
    }

    fn count(&self, error: &WireError) {
        let counters = self.machine.counters();
        match error {
            WireError::Fatal(Fatal::LoginTimeout) => counters.login_timeouts.add(1),
            WireError::Fatal(Fatal::Silent) => counters.silent_peers.add(1),
            WireError::Fatal(
                Fatal::Protocol(_)
                | Fatal::Oversize { .. }
                | Fatal::Rejected(_)
                | Fatal::Text(_)
                | Fatal::Negotiation(_),
            ) => counters.protocol_errors.add(1),
            WireError::Digest(_) => counters.digest_errors.add(1),
            WireError::Io(_) | WireError::Closed => {}
        }
    }

    /// Says what an administrator wants to know of the end of a connection.
    fn log_end(&self, error: Option<WireError>) {
        let (peer, name) = (self.peer, self.session.initiator());
        if let Some(RefusedLogin { status, initiator, full }) = self.machine.refused_login() {
            let initiator = initiator.as_deref().unwrap_or_default();
            let full = full.map(|full| full.to_string());
            let reason = full.as_deref().unwrap_or_else(|| describe_refusal(*status));
            if *status < 0x0200 {
                tracing::info!(%peer, ?initiator, "login {reason} ({status:#06x})");
            } else if self.shared.may_tell() {
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
                if self.shared.may_tell() {
                    tracing::warn!(%peer, initiator = ?name, %error, "connection dropped");
                }
            }
        }
    }

    fn now(&self) -> Duration {
        self.shared.started.elapsed()
    }

    /// Takes what the socket has: one reading of the clock for all of it.
    fn receive(&mut self, wire: &mut Wire) -> Result<(), WireError> {
        self.heard_at = self.now();
        wire.receive(self)
    }

    /// Sends what the machine has, as far as the socket takes it.
    fn transmit(&mut self, wire: &mut Wire) -> Result<(), WireError> {
        loop {
            let mut more = false;
            while wire.has_room()
                && let Some(transmit) = self.machine.poll_transmit()
            {
                more = true;
                let body = match transmit.payload {
                    Payload::None => SgList::new(),
                    Payload::Control(bytes) => Buf::copy_from(&bytes).into(),
                    Payload::Task { task, offset, len } => self.data_in(task, offset, len),
                };
                wire.push(&transmit.header, body, transmit.digests);
            }
            self.handle_events();
            // A queue that was full from the start says nothing about what the machine has.
            let exhausted = wire.has_room();
            if !wire.flush()? || (exhausted && !more) {
                return Ok(());
            }
        }
    }

    fn data_in(&self, task: TaskId, offset: u32, len: u32) -> SgList {
        let data = &self.slots[task.index()].data_in;
        let (offset, len): (usize, usize) = (narrow(offset), narrow(len));
        data.slice(offset..offset + len)
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Command { task, lun, cdb, data_out_max, .. } => {
                    self.handle_command(task, lun, &cdb, data_out_max);
                }
                Event::AskStanding => self.ask_standing(),
                Event::AskGrant { task, len, executes } => self.ask_grant(task, len, executes),
                Event::Submit { task } => self.handle_submit(task),
                Event::Release { task } => {
                    let slot = &mut self.slots[task.index()];
                    slot.clear(&self.shared, &self.realm, &self.session);
                }
                Event::Reset { lun: None } => self.realm.units.lock().handle_reset(),
                Event::Reset { lun: Some(lun) } => {
                    let field = LunField::from_number(lun).0;
                    if let Some(unit) = self.realm.units.lock().unit_mut(field) {
                        unit.handle_reset();
                    }
                }
                Event::Cleared { lun } => {
                    let field = LunField::from_number(lun).0;
                    if let Some(unit) = self.realm.units.lock().unit_mut(field) {
                        unit.raise_for(UnitAttention::CommandsClearedByAnother, self.nexus);
                    }
                }
                Event::Preempted { task } => self.handle_preempted(task),
                Event::Settled => {
                    self.machine.handle_wake(&mut self.shared.node.lock());
                    self.shared.wake();
                }
                Event::LoggedIn { initiator, isid, session, chap, .. } => {
                    tracing::info!(peer = %self.peer, ?initiator, ?session, ?chap, "logged in");
                    // Commands of a session that is not made known are answered with BUSY.
                    if let (SessionType::Normal, Some(paced)) = (session, &self.shared.paced) {
                        let (id, waker) = (self.session.connection, self.waker.clone());
                        match self.session.guest() {
                            Some(guest) => paced.enter_plan(self.now(), id, guest, waker),
                            None => paced.enter(id, &initiator, waker),
                        }
                    }
                    let port = InitiatorPort::new(&initiator, isid);
                    if let (SessionType::Normal, Some(port)) = (session, port) {
                        let mut units = self.realm.units.lock();
                        units.add_nexus(self.nexus, &Nexus::new(port));
                        if let Some(view) = self.session.guest().and_then(|guest| guest.view()) {
                            units.set_view(0, self.nexus, view.clone());
                        }
                    }
                    self.session.log_in(initiator, session, chap);
                    self.shared.sessions.insert(self.session.clone());
                }
            }
        }
        if !self.waiting.is_empty() {
            self.abandon_waits();
        }
    }
}

impl Driver {
    /// Asks who the initiator is, that gave a name and a proof.
    fn ask_standing(&mut self) {
        let (Some(segments), Some(claim)) = (&self.shared.segments, self.machine.claim()) else {
            return self.answer_standing(None);
        };
        let (mut proven, session) = (false, claim.session());
        let mut proves = |secret: &netraid_control::token::Secret| {
            // Secrets of tokens have a length that CHAP's may have.
            let secret = Secret::new(secret.expose());
            proven = secret.is_ok_and(|secret| claim.proves(&secret));
            proven
        };
        let admission = &*segments.admission;
        let admitted = admission.admit(claim.name(), claim.initiator(), self.peer, &mut proves);
        match admitted.filter(|_| proven) {
            None => self.answer_standing(None),
            Some(_) if session == SessionType::Discovery => {
                self.answer_standing(Some(Standing { ends_others: false, ..Standing::default() }));
            }
            Some(admitted) => {
                self.knock = Some(self.shared.knock(segments, admitted, self.waker.clone()));
                self.take_segment();
            }
        }
    }

    /// The login goes on when it is known whether its segment is open.
    fn take_segment(&mut self) {
        let Some(answer) = self.knock.as_ref().and_then(|knock| knock.answer()) else { return };
        let (Some(knock), Some(segments)) = (self.knock.take(), &self.shared.segments) else {
            return;
        };
        if answer == Knocked::Exhausted {
            return self.machine.handle_shortage();
        }
        if answer == Knocked::Shut || self.machine.claim().is_none() {
            return self.answer_standing(None);
        }
        let guest = self.shared.enter(segments, self.session.connection, &knock);
        let standing = guest.map(|guest| {
            let standing = guest.standing();
            self.realm = guest.segment.realm().clone();
            self.luns = SeenLuns::default();
            self.session.let_in(guest);
            standing
        });
        self.answer_standing(standing);
    }

    fn answer_standing(&mut self, standing: Option<Standing>) {
        self.machine.handle_standing(&mut self.shared.node.lock(), standing);
        self.shared.wake();
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

impl Side for Driver {
    fn receive_digests(&self) -> Digests {
        self.machine.receive_digests()
    }

    fn wants_input(&self) -> bool {
        self.machine.wants_input()
    }

    fn handle_header(&mut self, bhs: &Bhs) -> Result<Placement, WireError> {
        self.machine.handle_header(self.heard_at, bhs)?;
        self.handle_events();
        Ok(self.machine.placement())
    }

    fn buffer(&mut self, task: TaskId) -> &mut [u8] {
        let slot = &mut self.slots[task.index()];
        let len = slot.data_out_len;
        slot.data_out.get_or_insert_with(|| self.shared.pool.get(len))
    }

    fn handle_segment(&mut self, control: Option<&[u8]>) -> Result<(), WireError> {
        match control {
            Some(data) => {
                let now = self.now();
                let mut node = self.shared.node.lock();
                self.machine.handle_control(now, &mut node, data)?;
                drop(node);
                // What is reset should be so before others hear of it.
                self.handle_events();
                self.shared.wake();
                return Ok(());
            }
            None => self.machine.handle_data(),
        }
        self.handle_events();
        Ok(())
    }

    fn handle_bad_digest(&mut self, bhs: &Bhs) -> Result<(), WireError> {
        self.machine.handle_bad_digest(bhs);
        self.handle_events();
        Ok(())
    }
}
