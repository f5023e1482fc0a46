//! One connection of a target: socket, machine, logical units and devices, in one task.
//!
//! ```text
//! socket -> wire -> machine -> Command -> units -> Plan
//!                   machine -> Submit  -> units -> device
//! device -> completion -> units -> Outcome -> machine -> wire -> socket
//! ```

use std::{net::SocketAddr, panic::AssertUnwindSafe, rc::Rc, time::Duration};

use futures_util::FutureExt as _;
use netraid_block::{Buf, BufMut, SgList};
use netraid_iscsi_proto::{
    machine::{Digests, Fatal, Payload, Placement, TaskId},
    negotiation::SessionType,
    pdu::{Bhs, LunField},
    target::{Challenge, Connection, ConnectionId, Event, Link, Outcome, Plan},
};
use netraid_scsi::{
    InitiatorPort, MediumRequest, Nexus, NexusId, Refusal, Response, Status, Step, UnitAttention,
    cdb::{self, CommandKind},
    unit::decode_lun,
};
use tokio::{
    net::TcpStream,
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    Shared,
    luns::ServedLun,
    policy::{Access, Moment},
    sessions::SessionEntry,
};
use crate::{
    completions::{Completed, CompletionQueue, CompletionReceiver},
    wire::{Side, Wire, WireError},
};

/// Completions taken before the socket has its turn.
const COMPLETIONS_MAX: usize = 64;
/// How long what is queued may take to leave a connection that ends.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// What the shell keeps of one task.
#[derive(Default)]
struct Slot {
    task: Option<netraid_scsi::Task>,
    lun: Option<Rc<ServedLun>>,
    kind: CommandKind,
    /// The command counts among those at the device.
    entered: bool,
    /// Reservations are being stored for it.
    stores: bool,
    /// A first step that waits for the machine's word.
    request: Option<MediumRequest>,
    /// The first step was to wait for the logical unit.
    waits: bool,
    data_out_len: usize,
    data_out: Option<BufMut>,
    data_in: SgList,
    /// The LUN at whose device a request of a copy is.
    copies_at: Option<Rc<ServedLun>>,
}

/// The machine and everything that it decides about.
struct Driver {
    machine: Connection,
    slots: Vec<Slot>,
    queue: CompletionQueue,
    nexus: NexusId,
    shared: Rc<Shared>,
    session: Rc<SessionEntry>,
    /// By LUN: the incarnation of it that this session is known to use.
    used: Vec<u64>,
    /// Tasks that wait for the background work of a LUN.
    waiting: Vec<(u16, TaskId)>,
    peer: SocketAddr,
}

/// Serves one connection to its end.
pub(super) async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    shared: Rc<Shared>,
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
    let seat = shared.node.borrow_mut().open(Link::new(peer, portal));
    shared.wake();
    let Some(seat) = seat else {
        tracing::warn!(%peer, "connection refused: too many are logging in");
        return;
    };
    let id = seat.id();
    let challenge = Challenge { identifier: rand::random(), bytes: rand::random() };
    let (now, setup) = (shared.started.elapsed(), shared.setup.clone());
    let machine = Connection::new(now, seat, setup, challenge);
    let waker = Rc::new(Notify::new());
    shared.wakers.borrow_mut().insert(id, waker.clone());
    let (queue, mut completions) = CompletionQueue::channel();
    let slots = (0..machine.task_count()).map(|_| Slot::default()).collect();
    let nexus = NexusId(id.0);
    let session = SessionEntry::new(id, peer);
    let mut driver = Driver {
        machine,
        slots,
        queue,
        nexus,
        shared: shared.clone(),
        session: session.clone(),
        used: Vec::new(),
        waiting: Vec::new(),
        peer,
    };
    let run = AssertUnwindSafe(driver.run(wire, &mut completions, &waker, stopped));
    if run.catch_unwind().await.is_err() {
        tracing::error!(%peer, "serving a connection failed by a bug; the session has ended");
    }
    // What devices are doing cannot be called back: the session has ended when they are done.
    driver.abandon_all_waits();
    let Driver { mut slots, queue, .. } = driver;
    drop(queue);
    while completions.recv().await.is_some() {}
    slots.iter_mut().for_each(|slot| slot.clear(&shared, &session));
    shared.luns.forget_user(id);
    shared.sessions.remove(id);
    shared.units.borrow_mut().remove_nexus(nexus);
    shared.wakers.borrow_mut().remove(&id);
    shared.node.borrow_mut().closed(id);
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
        let peer = self.peer;
        match self.converse(&mut wire, completions, waker, stopped).await {
            Ok(()) => tracing::debug!(%peer, "connection ended"),
            Err(error) => {
                self.count(&error);
                tracing::info!(%peer, %error, "connection dropped");
            }
        }
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
        tokio::pin!(timer);
        let (mut stopping, mut moved) = (false, 0);
        loop {
            self.transmit(wire)?;
            if self.machine.is_finished() {
                return Ok(());
            }
            if wire.is_paused() && self.machine.wants_input() {
                wire.receive(self)?;
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
                ready = wire.ready(wants_input) => {
                    ready?;
                    if wants_input {
                        wire.receive(self)?;
                    }
                }
                Some(completed) = completions.recv() => {
                    self.handle_completed(completed);
                    for _ in 0..COMPLETIONS_MAX {
                        let Some(completed) = completions.try_recv() else { break };
                        self.handle_completed(completed);
                    }
                    self.handle_events();
                }
                () = waker.notified() => {
                    self.machine.handle_wake(&mut self.shared.node.borrow_mut());
                    self.handle_events();
                    self.shared.wake();
                }
                _ = stopped.wait_for(|stop| *stop), if !stopping => {
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

    fn now(&self) -> Duration {
        self.shared.started.elapsed()
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
        let to_usize = |value| usize::try_from(value).unwrap_or(usize::MAX);
        let offset = to_usize(offset);
        data.slice(offset..offset.saturating_add(to_usize(len)))
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Command { task, lun, cdb, data_out_max, .. } => {
                    self.handle_command(task, lun, &cdb, data_out_max);
                }
                Event::Submit { task } => self.handle_submit(task),
                Event::Release { task } => {
                    self.slots[task.index()].clear(&self.shared, &self.session);
                }
                Event::Reset { lun: None } => self.shared.units.borrow_mut().handle_reset(),
                Event::Reset { lun: Some(lun) } => {
                    let field = LunField::from_number(lun).0;
                    if let Some(unit) = self.shared.units.borrow_mut().unit_mut(field) {
                        unit.handle_reset();
                    }
                }
                Event::Cleared { lun } => {
                    let field = LunField::from_number(lun).0;
                    if let Some(unit) = self.shared.units.borrow_mut().unit_mut(field) {
                        unit.raise_for(UnitAttention::CommandsClearedByAnother, self.nexus);
                    }
                }
                Event::Preempted { task } => self.handle_preempted(task),
                Event::Settled => {
                    self.machine.handle_wake(&mut self.shared.node.borrow_mut());
                    self.shared.wake();
                }
                Event::LoggedIn { initiator, isid, session, .. } => {
                    tracing::info!(peer = %self.peer, %initiator, ?session, "logged in");
                    // Commands of a session that is not made known are answered with BUSY.
                    let port = InitiatorPort::new(&initiator, isid);
                    if let (SessionType::Normal, Some(port)) = (session, port) {
                        let mut units = self.shared.units.borrow_mut();
                        units.add_nexus(self.nexus, &Nexus::new(port));
                    }
                    self.session.log_in(initiator, session);
                    self.shared.sessions.insert(self.session.clone());
                }
            }
        }
        if !self.waiting.is_empty() {
            self.abandon_waits();
        }
    }

    /// Nobody waits for the answers of tasks that were aborted.
    #[cold]
    fn abandon_waits(&mut self) {
        for (lun, task) in &self.waiting {
            if self.machine.is_aborted(*task) {
                self.shared.background.abandon(*lun, self.session.connection, *task);
            }
        }
    }

    /// Background work may take hours: the session does not last that long.
    fn abandon_all_waits(&mut self) {
        for (lun, task) in self.waiting.drain(..) {
            self.shared.background.abandon(lun, self.session.connection, task);
        }
    }

    fn handle_command(&mut self, task: TaskId, lun: LunField, cdb: &[u8], data_out_max: u32) {
        let mut units = self.shared.units.borrow_mut();
        let (scsi_task, step) = units.handle_command(self.nexus, lun.0, cdb, data_out_max);
        drop(units);
        let slot = &mut self.slots[task.index()];
        slot.task = Some(scsi_task);
        slot.kind = cdb.first().map_or(CommandKind::Other, |opcode| cdb::kind(*opcode));
        slot.lun = decode_lun(lun.0).and_then(|number| self.shared.luns.get(number));
        if slot.kind != CommandKind::Other
            && let Some(lun) = &slot.lun
            && self.used.get(usize::from(lun.number())) != Some(&lun.incarnation())
        {
            note_use(&mut self.used, lun, &self.session);
        }
        let plan = match step {
            Step::Respond(response) => return self.respond(task, response),
            Step::DataOut { .. } | Step::Wait
                if self.slots[task.index()].is_guarded() && self.refuse(task, None) =>
            {
                return;
            }
            Step::DataOut { len, memory } => {
                let slot = &mut self.slots[task.index()];
                let data_out = len.min(data_out_max);
                slot.data_out_len = usize::try_from(data_out).unwrap_or(usize::MAX);
                Plan { data_out, data_out_total: u64::from(len), memory }
            }
            Step::Wait => {
                self.slots[task.index()].waits = true;
                Plan { data_out: 0, data_out_total: 0, memory: 0 }
            }
            Step::SubmitTo { .. } => unreachable!("{task:?} copies before its parameters came"),
            Step::Submit(request) => {
                let slot = &mut self.slots[task.index()];
                let reads = matches!(request.op, netraid_block::Op::Read);
                let memory = if reads { request.len } else { 0 };
                slot.request = Some(request);
                Plan { data_out: 0, data_out_total: 0, memory }
            }
            Step::Persist(_) | Step::Abort { .. } => {
                unreachable!("{task:?} changes reservations without its parameters")
            }
        };
        self.machine.handle_plan(task, plan);
    }

    fn handle_submit(&mut self, task: TaskId) {
        let slot = &mut self.slots[task.index()];
        let step = match (slot.request.take(), &mut slot.task) {
            (Some(request), _) => Step::Submit(request),
            (None, _) if slot.waits => Step::Wait,
            (None, Some(scsi_task)) => {
                let data = slot.data_out.take().map(|data| data.freeze().into());
                let data = data.unwrap_or_default();
                self.shared.units.borrow_mut().handle_data_out(scsi_task, data)
            }
            (None, None) => unreachable!("{task:?} was submitted without a command"),
        };
        self.go_on(task, step);
    }

    fn handle_completed(&mut self, (tag, result): Completed) {
        let index = usize::try_from(tag).unwrap_or(usize::MAX);
        let (Some(task), Some(slot)) = (self.machine.task_at(index), self.slots.get_mut(index))
        else {
            return;
        };
        if let Some(lun) = slot.copies_at.take() {
            lun.leave();
            self.machine.handle_visit(task, None);
        }
        let Some(scsi_task) = &mut slot.task else { return };
        if !self.waiting.is_empty() {
            self.waiting.retain(|(_, waiting)| *waiting != task);
        }
        let mut units = self.shared.units.borrow_mut();
        let step = if core::mem::take(&mut slot.stores) {
            units.handle_persisted(scsi_task, result.is_ok())
        } else {
            units.handle_medium_done(scsi_task, result)
        };
        drop(units);
        match step {
            // Nobody waits for what is still to be done: it is not begun.
            Step::Submit(_) | Step::SubmitTo { .. } if self.machine.is_aborted(task) => {
                self.machine.handle_outcome(task, Outcome::default());
            }
            step @ (Step::Submit(_)
            | Step::SubmitTo { .. }
            | Step::Wait
            | Step::Respond(_)
            | Step::DataOut { .. }
            | Step::Persist(_)
            | Step::Abort { .. }) => self.go_on(task, step),
        }
    }

    fn go_on(&mut self, task: TaskId, step: Step) {
        match step {
            Step::Submit(request) => {
                if self.slots[task.index()].is_guarded() && self.refuse(task, Some(&request)) {
                    return;
                }
                let completion = self.queue.completion(task.index() as u64);
                let slot = &mut self.slots[task.index()];
                // Without a LUN the completion is dropped, and ends as aborted.
                let Some(lun) = &slot.lun else { return };
                if !slot.entered {
                    slot.entered = true;
                    lun.enter();
                }
                lun.submit(request, completion);
            }
            Step::Wait => {
                let completion = self.queue.completion(task.index() as u64);
                let Some(lun) = &self.slots[task.index()].lun else { return };
                self.waiting.push((lun.number(), task));
                let connection = self.session.connection;
                self.shared.wait_for_background(lun, connection, task, completion);
            }
            Step::SubmitTo { lun, request } => self.submit_to(task, lun, request),
            Step::Respond(response) => self.respond(task, response),
            Step::Persist(bytes) => self.persist(task, bytes),
            Step::Abort { nexuses } => self.abort(task, &nexuses),
            Step::DataOut { .. } => unreachable!("{task:?} asks for its data twice"),
        }
    }

    /// Submits a request of a copy to the LUN that it concerns.
    #[cold]
    fn submit_to(&mut self, task: TaskId, lun: u16, request: MediumRequest) {
        let slot = &mut self.slots[task.index()];
        let Some(scsi_task) = &mut slot.task else { return };
        let (op, offset, len) = (request.op, request.offset, request.len);
        let moment = Moment::BeforeRequest;
        let access = Access { initiator: self.session.initiator(), op, offset, len, moment };
        let refusal = match self.shared.luns.get(lun) {
            None => Refusal::Gone,
            Some(lun) => match lun.refusal(&access, false) {
                Some(refusal) => refusal,
                None => {
                    lun.enter();
                    self.machine.handle_visit(task, Some(lun.number()));
                    lun.submit(request, self.queue.completion(task.index() as u64));
                    slot.copies_at = Some(lun);
                    return;
                }
            },
        };
        let response = self.shared.units.borrow_mut().handle_refusal(scsi_task, refusal);
        self.respond(task, response);
    }

    /// Stores reservations; the completion comes when they are stable, or could not be stored.
    fn persist(&mut self, task: TaskId, bytes: Vec<u8>) {
        let completion = self.queue.completion(task.index() as u64);
        let slot = &mut self.slots[task.index()];
        slot.stores = true;
        // Without a store the completion is dropped, and ends as aborted.
        let Some(lun) = &slot.lun else { return };
        if !slot.entered {
            slot.entered = true;
            lun.enter();
        }
        if let Some(place) = lun.reservations() {
            place.save(bytes, completion);
        }
    }

    /// Aborts what the nexuses that a task preempted have under way.
    fn abort(&mut self, task: TaskId, nexuses: &[NexusId]) {
        let sessions: Vec<_> = nexuses.iter().map(|nexus| ConnectionId(nexus.0)).collect();
        let Some(lun) = &self.slots[task.index()].lun else { return };
        let (number, mut node) = (lun.number(), self.shared.node.borrow_mut());
        self.machine.handle_preempt(&mut node, task, number, &sessions);
        drop(node);
        self.shared.wake();
    }

    fn handle_preempted(&mut self, task: TaskId) {
        let Some(scsi_task) = &mut self.slots[task.index()].task else { return };
        let step = self.shared.units.borrow_mut().handle_aborted(scsi_task);
        self.go_on(task, step);
    }

    /// Ends a task whose next request, or whose data, is not wanted. False when it may go on.
    #[cold]
    fn refuse(&mut self, task: TaskId, request: Option<&MediumRequest>) -> bool {
        let slot = &mut self.slots[task.index()];
        let (Some(scsi_task), Some(lun)) = (&mut slot.task, &slot.lun) else { return false };
        let mut units = self.shared.units.borrow_mut();
        let (moment, wanted) = match request {
            Some(request) => {
                (Moment::BeforeRequest, Some((request.op, request.offset, request.len)))
            }
            None => (Moment::BeforeData, units.intent(scsi_task)),
        };
        let Some((op, offset, len)) = wanted else { return false };
        let access = Access { initiator: self.session.initiator(), op, offset, len, moment };
        let Some(refusal) = lun.refusal(&access, slot.entered) else { return false };
        let response = units.handle_refusal(scsi_task, refusal);
        drop(units);
        self.respond(task, response);
        true
    }

    fn respond(&mut self, task: TaskId, response: Response) {
        let slot = &mut self.slots[task.index()];
        slot.task = None;
        slot.leave();
        slot.count(&self.session, response.status, response.data_in.len() as u64);
        let Response { status, sense, data_in } = response;
        let outcome = Outcome { status: status as u8, sense, data_in: data_in.len() as u64 };
        slot.data_in = data_in;
        self.machine.handle_outcome(task, outcome);
    }
}

/// Notes that a session uses the medium of a LUN: once for each.
#[cold]
fn note_use(used: &mut Vec<u64>, lun: &ServedLun, session: &SessionEntry) {
    let at = usize::from(lun.number());
    if used.len() <= at {
        used.resize(at + 1, 0);
    }
    used[at] = lun.incarnation();
    lun.add_user(session.connection);
}

impl Slot {
    fn is_guarded(&self) -> bool {
        self.lun.as_ref().is_some_and(|lun| lun.is_guarded())
    }

    fn count(&self, session: &SessionEntry, status: Status, read: u64) {
        let written = self.data_out_len as u64;
        session.counters.count(self.kind, status, read, written);
        if let Some(lun) = &self.lun {
            lun.counters.count(self.kind, status, read, written);
        }
    }

    /// The command is not at the device any more.
    fn leave(&mut self) {
        if core::mem::take(&mut self.entered)
            && let Some(lun) = &self.lun
        {
            lun.leave();
        }
        if let Some(lun) = self.copies_at.take() {
            lun.leave();
        }
    }

    fn clear(&mut self, shared: &Shared, session: &SessionEntry) {
        if let Some(task) = self.task.take() {
            shared.units.borrow_mut().handle_abort(task);
            session.counters.count_aborted();
            if let Some(lun) = &self.lun {
                lun.counters.count_aborted();
            }
        }
        self.leave();
        *self = Self::default();
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
        self.machine.handle_header(self.now(), bhs)?;
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
                let mut node = self.shared.node.borrow_mut();
                self.machine.handle_control(now, &mut node, data)?;
                drop(node);
                self.shared.wake();
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
