//! The task that owns an open array: inputs into the machine, its actions to members and users.

use std::collections::VecDeque;

use netraid_block::{Completion, ErrorKind, IoError, Op, Pool, Request, RequestFlags, SgList};
use netraid_raid::{
    array::{
        Action, ArrayMachine, Background, BufferId, Event as MachineEvent, IoId, RequestId,
        UserRequest,
    },
    executor::Executor,
    member::{MemberIndex, MemberState},
};
use slab::Slab;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};

use super::{
    ArrayError, Event,
    fence::Fence,
    lock::{ArrayLock, hex},
    member::{Connected, MemberConfig},
    open::Opened,
    replace::Joined,
};
use crate::{
    completions::{Completed, CompletionQueue, CompletionReceiver},
    control::{ArrayStatus, ControlRequest, MemberStatus, ProgressStatus},
};

/// Users' requests in flight; more wait in their queue.
const REQUESTS_MAX: usize = 4096;
/// Inputs taken at once before actions are executed.
const BATCH: usize = 256;

pub(super) enum Command {
    Status(oneshot::Sender<ArrayStatus>),
    Control(ControlRequest, Reply),
    Close(oneshot::Sender<Result<(), IoError>>),
}

pub(super) type Reply = oneshot::Sender<Result<(), ArrayError>>;

/// Where inputs come from and events go.
pub(super) struct Channels {
    pub(super) requests: mpsc::UnboundedReceiver<Request>,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) stop: watch::Sender<bool>,
}

/// A member as the driver sees it.
pub(super) struct Slot {
    pub(super) config: Option<MemberConfig>,
    pub(super) connected: Option<Connected>,
    /// Raised when another device takes the place.
    pub(super) number: u32,
    /// Times that the device had lost its cache when it was taken.
    pub(super) cache_losses: u64,
    /// A replacement is being prepared.
    pub(super) joining: bool,
    /// The session of a device that was set aside, while it ends: until then it may send again what
    /// it has under way.
    pub(super) leaving: Option<JoinHandle<()>>,
    stats: MemberStatus,
}

/// A member request in flight.
struct InFlight {
    member: MemberIndex,
    number: u32,
    len: u64,
    /// Buffers that a read fills.
    parts: Vec<(BufferId, u32)>,
    is_read: bool,
}

pub(super) struct Driver {
    pub(super) machine: ArrayMachine,
    executor: Executor,
    pub(super) slots: Vec<Slot>,
    pub(super) pool: Pool,
    channels: Channels,
    queue: CompletionQueue,
    completed: CompletionReceiver,
    /// By number of the member request.
    in_flight: Vec<Option<InFlight>>,
    /// Users' requests by number.
    users: Slab<Completion>,
    /// Ends of member requests that never left.
    failed_at_once: VecDeque<(IoId, IoError)>,
    pub(super) joined: (mpsc::Sender<Joined>, mpsc::Receiver<Joined>),
    /// A device that waits for the labels to exclude its predecessor.
    pub(super) waiting: Option<Joined>,
    /// Prepares a device that is to join; until it has ended, it may register it.
    pub(super) joining: Option<JoinHandle<()>>,
    ready: Option<oneshot::Sender<Result<(), IoError>>>,
    closing: Option<oneshot::Sender<Result<(), IoError>>>,
    close_begun: bool,
    closed: bool,
    /// How members are fenced.
    pub(super) fence: Option<Fence>,
    _lock: Option<ArrayLock>,
}

impl Driver {
    pub(super) fn new(
        opened: Opened,
        given: Vec<MemberConfig>,
        channels: Channels,
        pool: Pool,
    ) -> Self {
        let (queue, completed) = CompletionQueue::channel();
        let slots = make_slots(opened.members, &given, &opened.unused);
        for unused in opened.unused {
            tokio::spawn(async move { unused.remote.close().await });
        }
        Self {
            machine: opened.machine,
            executor: Executor::new(pool.clone()),
            slots,
            pool,
            channels,
            queue,
            completed,
            in_flight: Vec::new(),
            users: Slab::new(),
            failed_at_once: VecDeque::new(),
            joined: mpsc::channel(16),
            waiting: None,
            joining: None,
            ready: None,
            closing: None,
            close_begun: false,
            closed: false,
            fence: opened.fence,
            _lock: opened.lock,
        }
    }

    /// Serves until the array is closed.
    pub(super) async fn run(mut self, ready: oneshot::Sender<Result<(), IoError>>) {
        self.ready = Some(ready);
        let mut ends: Vec<Completed> = Vec::with_capacity(BATCH);
        let mut requests: Vec<Request> = Vec::with_capacity(BATCH);
        self.pump();
        while !self.closed {
            let accepts =
                self.ready.is_none() && self.closing.is_none() && self.users.len() < REQUESTS_MAX;
            tokio::select! {
                biased;
                Some(command) = self.channels.commands.recv() => self.take_command(command),
                Some(joined) = self.joined.1.recv() => self.take_joined(joined),
                _ = self.completed.recv_many(&mut ends, BATCH) => {}
                _ = self.channels.requests.recv_many(&mut requests, BATCH), if accepts => {
                    if requests.is_empty() && self.channels.requests.is_closed() {
                        // Every handle is gone: nobody can use or close the array any more.
                        self.begin_close(None);
                    }
                }
            }
            for (tag, result) in ends.drain(..) {
                self.end_io(tag, result);
            }
            for request in requests.drain(..) {
                self.take_request(request);
            }
            self.pump();
        }
        let clean = self.machine.failure().is_none();
        let sessions = self.slots.iter_mut().filter_map(|slot| slot.connected.as_mut());
        let ends = sessions.map(async |member| match clean {
            true => member.leave().await,
            // Until somebody opens it again, nobody else writes to what is left of it.
            false => member.remote.close().await,
        });
        futures_util::future::join_all(ends).await;
        // The lock ends with this: nothing may be sent after it.
        has_left(self.joining.take()).await;
        let late = std::iter::from_fn(|| self.joined.1.try_recv().ok());
        for joined in self.waiting.take().into_iter().chain(late) {
            joined.let_go().await;
        }
        for slot in &mut self.slots {
            has_left(slot.leaving.take()).await;
        }
        if let Some(reply) = self.closing.take() {
            let end = self.machine.failure().cloned().map_or(Ok(()), Err);
            // Nobody waits for the end.
            let _ = reply.send(end);
        }
    }

    /// Executes everything that the machine asks for.
    pub(super) fn pump(&mut self) {
        loop {
            while let Some(action) = self.machine.poll_action() {
                self.execute(action);
            }
            while let Some(event) = self.machine.poll_event() {
                self.tell(event);
            }
            if let Some((io, error)) = self.failed_at_once.pop_front() {
                self.in_flight[io.0] = None;
                self.machine.handle_io_done(io, Err(error));
            } else if self.waiting.is_some() && !self.machine.labels_pending() {
                self.hand_over();
            } else if self.closing.is_some() && self.users.is_empty() && !self.close_begun {
                self.close_begun = true;
                self.machine.handle_close();
            } else {
                return;
            }
        }
    }

    fn execute(&mut self, action: Action) {
        let flags = |fua| RequestFlags { fua, no_unmap: false };
        match action {
            Action::Xor { into, len, sources } => self.executor.xor(into, len, &sources),
            Action::Free { buffer } => self.executor.free(buffer),
            Action::Read { io, member, offset, parts } => {
                let len = parts.iter().map(|(_, len)| u64::from(*len)).sum();
                let request = (Op::Read, offset, len, flags(false), SgList::new());
                self.submit(io, member, request, parts);
            }
            Action::Write { io, member, offset, fua, sources } => {
                let data = self.executor.gather(&sources);
                let request = (Op::Write, offset, data.len() as u64, flags(fua), data);
                self.submit(io, member, request, Vec::new());
            }
            Action::WriteMeta { io, member, offset, bytes } => {
                let data: SgList = netraid_block::Buf::copy_from(&bytes).into();
                let request = (Op::Write, offset, data.len() as u64, flags(true), data);
                self.submit(io, member, request, Vec::new());
            }
            Action::Flush { io, member } => {
                let request = (Op::Flush, 0, 0, flags(false), SgList::new());
                self.submit(io, member, request, Vec::new());
            }
            Action::Discard { io, member, offset, len } => {
                let request = (Op::Discard, offset, len, flags(false), SgList::new());
                self.submit(io, member, request, Vec::new());
            }
            Action::Complete { request, result } => {
                let result = result.map(|sources| self.executor.gather(&sources));
                self.executor.end_request(request);
                self.users.remove(number_of(request)).finish(result);
            }
        }
    }

    fn submit(
        &mut self,
        io: IoId,
        member: MemberIndex,
        (op, offset, len, flags, data): (Op, u64, u64, RequestFlags, SgList),
        parts: Vec<(BufferId, u32)>,
    ) {
        let slot = &mut self.slots[member.as_usize()];
        match op {
            Op::Read => {
                slot.stats.reads += 1;
                slot.stats.read_bytes += len;
            }
            Op::Write | Op::WriteZeroes | Op::Discard => {
                slot.stats.writes += 1;
                slot.stats.written_bytes += len;
            }
            Op::Flush | Op::Extents => {}
        }
        if self.in_flight.len() <= io.0 {
            self.in_flight.resize_with(io.0 + 1, || None);
        }
        let is_read = op == Op::Read;
        self.in_flight[io.0] = Some(InFlight { member, number: slot.number, len, parts, is_read });
        match &slot.connected {
            Some(connected) => {
                let completion = self.queue.completion(io.0 as u64);
                connected.device.submit(Request { op, offset, len, flags, data, completion });
            }
            None => self.failed_at_once.push_back((io, ErrorKind::Unreachable.into())),
        }
    }

    fn end_io(&mut self, tag: u64, result: Result<SgList, IoError>) {
        let Ok(io) = usize::try_from(tag) else { return };
        let Some(entry) = self.in_flight.get_mut(io).and_then(Option::take) else {
            unreachable!("a member request ended twice")
        };
        let slot = &mut self.slots[entry.member.as_usize()];
        let current = slot.number == entry.number;
        let result = result.and_then(|data| {
            if current && slot.has_lost_its_cache() {
                return Err(IoError::with_detail(
                    ErrorKind::Unreachable,
                    "restarted or was reset: writes that were not flushed may be lost",
                ));
            }
            if entry.is_read && data.len() as u64 != entry.len {
                return Err(IoError::with_detail(
                    ErrorKind::Device,
                    "answered a read with another length",
                ));
            }
            Ok(data)
        });
        if let Err(error) = &result
            && current
        {
            slot.stats.errors += 1;
            slot.stats.last_error = Some(error.to_string());
        }
        let result = result.map(|data| {
            if entry.is_read {
                self.executor.fill(&entry.parts, &data);
            }
        });
        self.machine.handle_io_done(IoId(io), result);
    }

    fn take_request(&mut self, request: Request) {
        if self.closing.is_some() || self.closed {
            return request.completion.finish(Err(ErrorKind::Aborted.into()));
        }
        let Request { op, offset, len, flags, data, completion } = request;
        let RequestFlags { fua, no_unmap } = flags;
        let id = RequestId(self.users.insert(completion) as u64);
        if op == Op::Write {
            self.executor.begin_request(id, data);
        }
        self.machine.handle_request(id, UserRequest { op, offset, len, fua, no_unmap });
    }

    fn take_command(&mut self, command: Command) {
        match command {
            Command::Status(reply) => {
                // Nobody waits for the answer any more.
                let _ = reply.send(self.status());
            }
            Command::Close(reply) => self.begin_close(Some(reply)),
            Command::Control(request, reply) => self.take_control(request, reply),
        }
    }

    fn take_control(&mut self, request: ControlRequest, reply: Reply) {
        let end = match request {
            ControlRequest::Status => Ok(()),
            ControlRequest::Stop => {
                self.channels.stop.send_replace(true);
                Ok(())
            }
            ControlRequest::Fail { member } => {
                self.find(&member).and_then(|member| Ok(self.machine.handle_fail(member)?))
            }
            ControlRequest::Replace { member, with, force } => {
                return self.begin_replace(&member, &with, force, reply);
            }
            ControlRequest::Rebuild { member } => return self.begin_rebuild(&member, reply),
        };
        // Nobody waits for the answer any more.
        let _ = reply.send(end);
    }

    fn begin_close(&mut self, reply: Option<oneshot::Sender<Result<(), IoError>>>) {
        if self.closing.is_none() {
            self.closing = Some(reply.unwrap_or_else(|| oneshot::channel().0));
        }
    }

    fn tell(&mut self, event: MachineEvent) {
        let event = match event {
            MachineEvent::Opened => return self.answer_ready(Ok(())),
            MachineEvent::Closed => {
                let failure = self.machine.failure().cloned();
                self.answer_ready(failure.map_or(Ok(()), Err));
                self.closed = true;
                return;
            }
            MachineEvent::Member { member, state, reason } => {
                if !state.is_live() {
                    self.part_with(member);
                }
                let url = self.slots[member.as_usize()].address();
                tracing::warn!(%member, %url, state = state.name(), %reason, "member");
                Event::Member { member: member.0, url, state: state.name(), reason }
            }
            MachineEvent::Repaired { member, offset } => {
                tracing::warn!(%member, offset, "unreadable range written back");
                Event::Repaired { member: member.0, offset }
            }
            MachineEvent::State(state) => {
                let failure = self.machine.failure().map(ToString::to_string);
                tracing::info!(state = state.name(), failure, "array");
                Event::State { state: state.name(), failure }
            }
            MachineEvent::Finished(Background::Resync) => Event::Resynced,
            MachineEvent::Incomplete { background, stripes } => {
                tracing::error!(?background, stripes, "stripes that other members could not give");
                let member = match background {
                    Background::Resync => None,
                    Background::Rebuild(member) => Some(member.0),
                };
                Event::Incomplete { member, stripes }
            }
            MachineEvent::Finished(Background::Rebuild(member)) => {
                Event::Rebuilt { member: member.0 }
            }
        };
        if self.channels.events.try_send(event).is_err() {
            tracing::debug!("an event was dropped: nobody fetches events");
        }
    }

    fn answer_ready(&mut self, end: Result<(), IoError>) {
        if let Some(ready) = self.ready.take() {
            // Whoever opened the array has gone; it closes when its handles are gone.
            let _ = ready.send(end);
        }
    }

    /// Ends the session to a member that was set aside, so that nothing more reaches it.
    fn part_with(&mut self, member: MemberIndex) {
        if let Some(connected) = self.slots[member.as_usize()].connected.take() {
            self.let_go(member, connected);
        }
    }

    /// Gives a device back that has not, or no longer, a member's place.
    pub(super) fn let_go(&mut self, member: MemberIndex, mut connected: Connected) {
        let slot = &mut self.slots[member.as_usize()];
        let before = slot.leaving.take();
        slot.leaving = Some(tokio::spawn(async move {
            connected.leave().await;
            has_left(before).await;
        }));
    }

    /// The member by index or address.
    pub(super) fn find(&self, given: &str) -> Result<MemberIndex, ArrayError> {
        let by_address = self.slots.iter().position(|slot| slot.address_is(given));
        let by_index = given.parse().ok().filter(|at| *at < self.slots.len());
        let last = MemberIndex(self.machine.geometry().members() - 1);
        let at = by_index.or(by_address).and_then(|at| u8::try_from(at).ok());
        at.map(MemberIndex).ok_or(ArrayError::NoSuchMember { given: given.into(), last })
    }

    fn status(&self) -> ArrayStatus {
        let label = self.machine.label();
        let geometry = &label.geometry;
        let members = self.slots.iter().zip(&label.members).enumerate();
        let member = |(at, (slot, entry)): (usize, (&Slot, &netraid_raid::label::MemberEntry))| {
            MemberStatus {
                index: u8::try_from(at).unwrap_or(u8::MAX),
                url: slot.address(),
                state: entry.state.name().into(),
                exclusive: slot.connected.as_ref().is_some_and(|member| member.exclusive),
                ..slot.stats.clone()
            }
        };
        ArrayStatus {
            kind: "array".to_owned(),
            name: label.name.clone(),
            uuid: hex(&label.array_uuid),
            level: geometry.level().number(),
            state: self.machine.state().name().into(),
            failure: self.machine.failure().map(ToString::to_string),
            read_only: self.machine.is_read_only(),
            capacity_bytes: geometry.capacity(),
            used_bytes: self.machine.written_stripes() * geometry.stripe_data_len(),
            chunk_bytes: geometry.chunk_len(),
            block_bytes: geometry.block_len(),
            generation: label.generation,
            epoch: label.epoch,
            progress: self.progress(),
            members: members.map(member).collect(),
        }
    }

    fn progress(&self) -> Option<ProgressStatus> {
        let progress = self.machine.progress()?;
        let (kind, member) = match progress.background {
            Background::Resync => ("resync", None),
            Background::Rebuild(member) => ("rebuild", Some(member.0)),
        };
        let stripe_len = self.machine.geometry().stripe_data_len();
        Some(ProgressStatus {
            kind: kind.into(),
            member,
            done_bytes: progress.done * stripe_len,
            total_bytes: progress.total * stripe_len,
        })
    }

    /// Whether a member's state lets another device take its place.
    pub(super) fn state(&self, member: MemberIndex) -> MemberState {
        self.machine.label().state(member)
    }
}

/// Waits until a session has ended, which it does in bounded time.
pub(super) async fn has_left(leaving: Option<JoinHandle<()>>) {
    if let Some(leaving) = leaving {
        // A task that has panicked has ended, too.
        let _ = leaving.await;
    }
}

fn number_of(request: RequestId) -> usize {
    usize::try_from(request.0).unwrap_or(usize::MAX)
}

impl Slot {
    pub(super) fn address(&self) -> String {
        self.config.as_ref().map(MemberConfig::address).unwrap_or_default()
    }

    fn address_is(&self, given: &str) -> bool {
        let uri = netraid_block::TargetUri::parse(given).map(|uri| uri.to_string());
        self.config.is_some() && uri.is_ok_and(|uri| uri == self.address())
    }

    fn has_lost_its_cache(&self) -> bool {
        let losses = self.connected.as_ref().map(|member| member.remote.cache_losses());
        losses.is_some_and(|losses| losses != self.cache_losses)
    }

    /// Puts a device in the place.
    pub(super) fn take(&mut self, connected: Connected) {
        self.config = Some(connected.config.clone());
        self.cache_losses = connected.remote.cache_losses();
        self.number += 1;
        self.connected = Some(connected);
        self.stats = MemberStatus::default();
    }
}

/// One slot a member. The address of a member that is not there is known when it was given at
/// its place in the list.
fn make_slots(
    members: Vec<Option<Connected>>,
    given: &[MemberConfig],
    unused: &[Connected],
) -> Vec<Slot> {
    let taken: Vec<String> = members.iter().flatten().map(Connected::address).collect();
    let left = |config: &&MemberConfig| !taken.contains(&config.address());
    let unplaced: Vec<&MemberConfig> = given.iter().filter(left).collect();
    let absent = members.iter().filter(|member| member.is_none()).count();
    debug_assert!(unused.len() <= unplaced.len());
    let slot = |(at, connected): (usize, Option<Connected>)| {
        let at_its_place = given.get(at).filter(left);
        let only_one = unplaced.first().filter(|_| absent == 1 && unplaced.len() == 1).copied();
        let config = match &connected {
            Some(connected) => Some(connected.config.clone()),
            None => at_its_place.or(only_one).cloned(),
        };
        let cache_losses = connected.as_ref().map_or(0, |member| member.remote.cache_losses());
        let stats = MemberStatus::default();
        Slot { config, connected, number: 0, cache_losses, joining: false, leaving: None, stats }
    };
    members.into_iter().enumerate().map(slot).collect()
}
