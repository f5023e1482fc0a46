//! The task that owns an open array: inputs into the machine, its actions to members and users.

use std::{collections::VecDeque, time::Duration};

use netraid_block::{ErrorKind, IoError, Op, Pool, Request, RequestFlags, SgList, narrow};
use netraid_raid::{
    array::IoId,
    assemble::CleanClose,
    member::{MEMBERS_MAX, MemberIndex, MemberState},
    presence::Presence,
    read_ahead::ReadAhead,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
    time::{Instant, Interval, MissedTickBehavior, interval},
};

use super::{
    ArrayError, Event,
    fence::Fence,
    heard::{CACHE_LOST, shown_array_state},
    lock::ArrayLock,
    machine::{Do, Machine, Told},
    member::{Connected, MemberConfig},
    open::Opened,
    replace::{Asked, HandedOver, Joined},
    returns::Returned,
    scrub::Pace,
    slots::{Slot, make_slots},
    users::Users,
};
use crate::{
    completions::{Completed, CompletionQueue, CompletionReceiver},
    control::{ArrayStatus, ControlRequest, MemberStatus},
};

/// Users' requests that were taken and have not ended; more wait in their queue.
const REQUESTS_MAX: usize = 4096;
/// Inputs taken at once before actions are executed.
const BATCH: usize = 256;
/// How often is looked at what no request shows: members that are away, and a log that nobody needs.
const TICK: Duration = Duration::from_secs(1);
/// Ticks after which what was written is made stable, although nobody asked for it.
const TICKS_OF_AGE: u32 = 5;
/// Where the number of a piece is in a tag; below it is that of the member request.
const PIECE_SHIFT: u32 = 40;

pub(super) enum Command {
    Status(oneshot::Sender<ArrayStatus>),
    Control(ControlRequest, Reply),
    Replace(MemberIndex, Box<MemberConfig>, Reply),
    LimitRebuild(Option<u64>),
    Close(Closing),
    Abandon(oneshot::Sender<()>),
}

pub(super) type Reply = oneshot::Sender<Result<(), ArrayError>>;

/// Who is told how the array was closed.
type Closing = oneshot::Sender<Result<Option<CleanClose>, IoError>>;

/// Where inputs come from and events go.
pub(super) struct Channels {
    pub(super) requests: mpsc::UnboundedReceiver<Request>,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) stop: watch::Sender<bool>,
}

/// A member request in flight.
struct InFlight {
    member: MemberIndex,
    number: u32,
    len: u64,
    is_read: bool,
    /// What is longer than the device takes at once goes in several requests.
    pieces: Option<Box<Pieces>>,
}

struct Pieces {
    left: usize,
    end: Result<Vec<SgList>, IoError>,
}

impl Pieces {
    /// Takes a piece's end; that of the whole when it was the last one.
    fn end(
        &mut self,
        piece: usize,
        result: Result<SgList, IoError>,
    ) -> Option<Result<SgList, IoError>> {
        match (&mut self.end, result) {
            (Ok(parts), Ok(data)) => parts[piece] = data,
            (Ok(_), Err(error)) => self.end = Err(error),
            (Err(_), _) => {}
        }
        self.left -= 1;
        (self.left == 0).then(|| {
            let parts = std::mem::replace(&mut self.end, Ok(Vec::new()))?;
            let mut whole = SgList::new();
            parts.into_iter().for_each(|part| whole.append(part));
            Ok(whole)
        })
    }
}

pub(super) struct Driver {
    pub(super) machine: Machine,
    pub(super) slots: Vec<Slot>,
    pub(super) pool: Pool,
    channels: Channels,
    queue: CompletionQueue,
    completed: CompletionReceiver,
    /// By number of the member request.
    in_flight: Vec<Option<InFlight>>,
    pub(super) users: Users,
    /// None: nothing is read ahead.
    pub(super) ahead: Option<ReadAhead>,
    /// Ends of member requests that never left.
    failed_at_once: VecDeque<(IoId, IoError)>,
    pub(super) joined: (mpsc::Sender<Joined>, mpsc::Receiver<Joined>),
    /// Members that are back, or could not be reached again.
    pub(super) returned: (mpsc::Sender<Returned>, mpsc::Receiver<Returned>),
    /// A device that somebody wants to join, and that waits for others to end their attempts.
    pub(super) asked: Option<Asked>,
    /// A device that waits for the labels to exclude its predecessor.
    pub(super) waiting: Option<Joined>,
    /// A device of which the machine has not said yet that it takes part.
    pub(super) handed_over: Option<HandedOver>,
    /// Prepares a device that is to join; until it has ended, it may register it.
    pub(super) joining: Option<JoinHandle<()>>,
    ready: Option<oneshot::Sender<Result<(), IoError>>>,
    closing: Option<Closing>,
    close_begun: bool,
    closed: bool,
    /// Who is to be told when it has ended at once.
    abandoned: Option<oneshot::Sender<()>>,
    tick: Interval,
    ticks: u32,
    /// Somebody asked for something since the last tick.
    busy: bool,
    /// What is known of the sessions to the members.
    pub(super) presence: Presence,
    pub(super) started: Instant,
    /// How fast a scrub goes.
    pub(super) pace: Pace,
    /// How fast members catch up, where that is limited.
    pub(super) rebuild_pace: Pace,
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
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut slots = make_slots(opened.members, &given);
        for (member, config) in opened.liars {
            slots[member.as_usize()].leave_out(config);
        }
        for unused in opened.unused {
            tokio::spawn(async move { unused.remote.close().await });
        }
        let users = Users::new(opened.machine.geometry(), opened.reads_under_way);
        let presence = Presence::new(slots.len());
        Self {
            machine: opened.machine,
            slots,
            pool,
            channels,
            queue,
            completed,
            in_flight: Vec::new(),
            users,
            ahead: opened.ahead,
            failed_at_once: VecDeque::new(),
            joined: mpsc::channel(16),
            returned: mpsc::channel(MEMBERS_MAX),
            asked: None,
            waiting: None,
            handed_over: None,
            joining: None,
            ready: None,
            closing: None,
            close_begun: false,
            closed: false,
            abandoned: None,
            tick,
            ticks: 0,
            busy: false,
            presence,
            started: Instant::now(),
            pace: Pace::default(),
            rebuild_pace: Pace::default(),
            fence: opened.fence,
            _lock: opened.lock,
        }
    }

    /// Serves until the array is closed.
    pub(super) async fn run(mut self, ready: oneshot::Sender<Result<(), IoError>>) {
        self.ready = Some(ready);
        let ticks = self.machine.has_log() && !self.machine.is_read_only();
        let mut ends: Vec<Completed> = Vec::with_capacity(BATCH);
        let mut requests: Vec<Request> = Vec::with_capacity(BATCH);
        self.pump();
        while !self.closed && self.abandoned.is_none() {
            let accepts =
                self.ready.is_none() && self.closing.is_none() && self.users.len() < REQUESTS_MAX;
            tokio::select! {
                biased;
                Some(command) = self.channels.commands.recv() => self.take_command(command),
                Some(joined) = self.joined.1.recv() => self.take_joined(joined),
                Some(returned) = self.returned.1.recv() => self.take_returned(returned),
                _ = self.completed.recv_many(&mut ends, BATCH) => {}
                _ = self.channels.requests.recv_many(&mut requests, BATCH), if accepts => {
                    if requests.is_empty() && self.channels.requests.is_closed() {
                        // Every handle is gone: nobody can use or close the array any more.
                        self.begin_close(None);
                    }
                }
                _ = self.tick.tick() => self.handle_tick(ticks),
                _ = self.pace.tick(), if self.pace.is_running() => self.allow_scrub(),
                _ = self.rebuild_pace.tick(), if self.rebuild_pace.is_running() => {
                    self.allow_rebuild();
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
        if let Some(reply) = self.abandoned.take() {
            return self.end_at_once(reply).await;
        }
        tracing::debug!("the machine has closed");
        self.end_returns().await;
        let clean = self.machine.failure().is_none();
        let sessions = self.slots.iter_mut().filter_map(|slot| slot.connected.as_mut());
        let ends = sessions.map(async |member| match clean {
            true => member.leave().await,
            // Until somebody opens it again, nobody else writes to what is left of it.
            false => member.remote.close().await,
        });
        futures_util::future::join_all(ends).await;
        tracing::debug!("the members' sessions have ended");
        // The lock ends with this: nothing may be sent after it.
        has_left(self.joining.take()).await;
        if let Some(asked) = self.asked.take() {
            asked.refuse();
        }
        let late = std::iter::from_fn(|| self.joined.1.try_recv().ok());
        for joined in self.waiting.take().into_iter().chain(late) {
            joined.let_go().await;
        }
        for slot in &mut self.slots {
            has_left(slot.leaving.take()).await;
        }
        if let Some(reply) = self.closing.take() {
            let end = self.machine.failure().map_or(Ok(self.machine.clean_close()), Err);
            // Nobody waits for the end.
            let _ = reply.send(end);
        }
    }

    /// Leaves everything as it is.
    async fn end_at_once(mut self, reply: oneshot::Sender<()>) {
        for slot in &mut self.slots {
            let (attempt, leaving) = (slot.returning.attempt.take(), slot.leaving.take());
            attempt.into_iter().chain(leaving).for_each(|task| task.abort());
        }
        if let Some(joining) = self.joining.take() {
            joining.abort();
        }
        let sessions = self.slots.iter().filter_map(|slot| slot.connected.as_ref());
        futures_util::future::join_all(sessions.map(|member| member.remote.cut())).await;
        if let Some(asked) = self.asked.take() {
            asked.refuse();
        }
        if let Some(closing) = self.closing.take() {
            // Nobody waits for the end.
            let _ = closing.send(Err(ErrorKind::Aborted.into()));
        }
        // All requests end with this.
        drop(self);
        // Nobody waits for the end.
        let _ = reply.send(());
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
            } else if let Some(read) = self.users.next_read() {
                self.begin_read(read);
            } else if self.users.tell_next() {
            } else if self.waiting.is_some() && !self.machine.labels_pending() {
                self.hand_over();
            } else if self.handed_over.is_some()
                && (self.closed || self.machine.failure().is_some())
            {
                self.end_join_for_good();
            } else if self.closing.is_some() && self.is_idle() && !self.close_begun {
                self.close_begun = true;
                // With a log, an array that has failed has told its end before.
                self.closed |= self.machine.has_log() && self.machine.failure().is_some();
                self.machine.handle_close();
            } else {
                return;
            }
        }
    }

    fn execute(&mut self, action: Do) {
        match action {
            Do::Submit { io, member, op, offset, len, fua, data } => {
                self.submit(io, member, (op, offset, len), fua, data);
            }
            Do::Complete { request, result } => self.end_request(request, result),
        }
    }

    fn submit(
        &mut self,
        io: IoId,
        member: MemberIndex,
        (op, offset, len): (Op, u64, u64),
        fua: bool,
        data: SgList,
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
        let number = slot.number;
        let entry =
            self.in_flight[io.0].insert(InFlight { member, number, len, is_read, pieces: None });
        let Some(connected) = &slot.connected else {
            return self.failed_at_once.push_back((io, ErrorKind::Unreachable.into()));
        };
        let flags = RequestFlags { fua, no_unmap: false };
        let limit = u64::from(connected.device.info().max_transfer_len);
        if len <= limit || !matches!(op, Op::Read | Op::Write) {
            let completion = self.queue.completion(io.0 as u64);
            return connected.device.submit(Request { op, offset, len, flags, data, completion });
        }
        let count = len.div_ceil(limit);
        let parts = vec![SgList::new(); narrow(count)];
        entry.pieces = Some(Box::new(Pieces { left: parts.len(), end: Ok(parts) }));
        for piece in 0..count {
            let from = piece * limit;
            let part = limit.min(len - from);
            let data = match is_read {
                true => SgList::new(),
                false => data.slice(narrow(from)..narrow(from + part)),
            };
            let completion = self.queue.completion(io.0 as u64 | piece << PIECE_SHIFT);
            let offset = offset + from;
            connected.device.submit(Request { op, offset, len: part, flags, data, completion });
        }
    }

    fn end_io(&mut self, tag: u64, result: Result<SgList, IoError>) {
        let io: usize = narrow(tag & ((1 << PIECE_SHIFT) - 1));
        let Some(place) = self.in_flight.get_mut(io) else { unreachable!("no such request") };
        let Some(entry) = place else { unreachable!("a member request ended twice") };
        let result = match &mut entry.pieces {
            None => result,
            Some(pieces) => match pieces.end(narrow(tag >> PIECE_SHIFT), result) {
                Some(whole) => whole,
                None => return,
            },
        };
        let InFlight { member, number, len, is_read, .. } = *entry;
        *place = None;
        let slot = &mut self.slots[member.as_usize()];
        let current = slot.number == number;
        let result = result.and_then(|data| {
            if current && slot.has_lost_its_cache() {
                return Err(IoError::with_detail(ErrorKind::Unreachable, CACHE_LOST));
            }
            if is_read && data.len() as u64 != len {
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
            slot.returning.note(error, is_read);
        }
        self.machine.handle_io_done(IoId(io), result);
    }

    fn take_request(&mut self, request: Request) {
        if self.closing.is_some() || self.closed {
            return request.completion.finish(Err(ErrorKind::Aborted.into()));
        }
        self.busy = true;
        self.begin_request(request);
    }

    fn take_command(&mut self, command: Command) {
        match command {
            Command::Status(reply) => {
                // Nobody waits for the answer any more.
                let _ = reply.send(self.status());
            }
            Command::Close(reply) => self.begin_close(Some(reply)),
            Command::Abandon(reply) => self.abandoned = Some(reply),
            Command::Replace(member, with, reply) => self.begin_replace_by(member, *with, reply),
            Command::LimitRebuild(rate) => self.limit_rebuild(rate),
            Command::Control(request, reply) => self.take_control(request, reply),
        }
    }

    fn take_control(&mut self, request: ControlRequest, reply: Reply) {
        let end = match request {
            ControlRequest::Status => Ok(()),
            // Who runs the array asks for this when its exports may end.
            ControlRequest::Stop { .. } => {
                self.channels.stop.send_replace(true);
                Ok(())
            }
            ControlRequest::Fail { member } => {
                self.find(&member).and_then(|member| {
                    self.check_not_joining(member)?;
                    // By command: it does not come back by itself.
                    self.machine.handle_fail(member)?;
                    self.slots[member.as_usize()].returning.by_itself = false;
                    Ok(())
                })
            }
            ControlRequest::Replace { member, with, secret, force } => {
                let secret = secret.map(|handed| handed.0);
                return self.begin_replace(&member, (&with, secret), force, reply);
            }
            ControlRequest::Rebuild { member } => return self.begin_rebuild(&member, reply),
            ControlRequest::Scrub { action, rate, from, trust_parity } => {
                self.command_scrub(action, rate, from, trust_parity)
            }
        };
        // Nobody waits for the answer any more.
        let _ = reply.send(end);
    }

    pub(super) const fn is_closing(&self) -> bool {
        self.closing.is_some() || self.closed
    }

    fn begin_close(&mut self, reply: Option<Closing>) {
        if self.closing.is_none() {
            self.closing = Some(reply.unwrap_or_else(|| oneshot::channel().0));
            self.stop_read_ahead();
        }
    }

    fn handle_tick(&mut self, has_log: bool) {
        self.ahead.iter_mut().for_each(ReadAhead::drop_old);
        self.users.look();
        if self.ready.is_none() && self.closing.is_none() && self.machine.failure().is_none() {
            self.look_at_members();
        }
        if !has_log {
            return;
        }
        if self.is_closing() {
            let in_flight = self.in_flight.iter().flatten().count();
            let (users, state) = (self.users.len(), self.machine.status());
            tracing::debug!(users, in_flight, ?state.log, begun = self.close_begun, "closing");
        }
        if self.ready.is_some() || self.closing.is_some() || self.machine.failure().is_some() {
            return;
        }
        self.ticks = self.ticks.wrapping_add(1);
        if !std::mem::take(&mut self.busy) {
            self.machine.handle_idle();
        } else if self.ticks.is_multiple_of(TICKS_OF_AGE) {
            self.machine.handle_age();
        }
        self.begin_returns();
    }

    fn tell(&mut self, told: Told) {
        let event = match told {
            Told::Opened => return self.answer_ready(Ok(())),
            Told::Closed => {
                let failure = self.machine.failure();
                let goes_on = self.ready.is_none() && !self.close_begun && failure.is_some();
                self.answer_ready(failure.map_or(Ok(()), Err));
                // What has failed is closed by command, and answers with its failure until then.
                self.closed = !goes_on;
                return;
            }
            Told::Member { member, state, reason } => {
                self.end_join(member, state.is_live(), &reason);
                // What is not up to date when the array is opened catches up right away.
                if !state.is_live() && self.ready.is_none() {
                    self.slots[member.as_usize()].returning.has_left();
                    self.part_with(member);
                }
                let url = self.slots[member.as_usize()].address();
                tracing::warn!(%member, %url, state = state.name(), %reason, "member");
                Event::Member { member: member.0, url, state: state.name(), reason }
            }
            Told::State(state) => {
                let failure = self.machine.failure().map(|failure| failure.to_string());
                match &failure {
                    Some(failure) => tracing::error!(state = state.name(), failure, "array"),
                    None => tracing::info!(state = state.name(), "array"),
                }
                Event::State { state: state.name(), failure }
            }
            Told::Other(event) => {
                match &event {
                    Event::Repaired { member, offset } => {
                        tracing::warn!(member, offset, "range written back");
                    }
                    Event::Incomplete { member, stripes } => {
                        tracing::error!(
                            member,
                            stripes,
                            "stripes that other members could not give"
                        );
                    }
                    Event::Rebuilt { member } => {
                        self.slots[usize::from(*member)].returning.has_caught_up();
                    }
                    Event::Notice { text } => tracing::warn!("{text}"),
                    Event::Unrepaired { member, offset, len, reason } => {
                        tracing::error!(member, offset, len, reason, "cannot be repaired");
                    }
                    Event::Scrubbed { scrub } => {
                        self.pace.end();
                        let (wrong, repaired) = (scrub.wrong, scrub.repaired);
                        let (state, unrepaired) = (&scrub.state, scrub.unrepaired);
                        tracing::info!(state, wrong, repaired, unrepaired, "scrub");
                    }
                    Event::Member { .. } | Event::State { .. } | Event::Resynced => {}
                }
                event
            }
        };
        self.send_event(event);
    }

    pub(super) fn send_event(&self, event: Event) {
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
        let suspects = self.suspects();
        let member = |(slot, index): (&Slot, MemberIndex)| MemberStatus {
            index: index.0,
            url: slot.address(),
            state: self.shown_state(index, suspects).into(),
            exclusive: slot.connected.as_ref().is_some_and(|member| member.exclusive),
            ..slot.stats.clone()
        };
        let members = self.slots.iter().zip((0..).map(MemberIndex)).map(member).collect();
        let read_ahead = self.read_ahead_status();
        let status = self.machine.status();
        let state = shown_array_state(status.state, suspects);
        ArrayStatus { state, members, read_ahead, ..status }
    }

    /// Whether a member's state lets another device take its place.
    pub(super) fn state(&self, member: MemberIndex) -> MemberState {
        self.machine.member_state(member)
    }
}

/// Waits until a session has ended, which it does in bounded time.
pub(super) async fn has_left(leaving: Option<JoinHandle<()>>) {
    if let Some(leaving) = leaving {
        // A task that has panicked has ended, too.
        let _ = leaving.await;
    }
}
