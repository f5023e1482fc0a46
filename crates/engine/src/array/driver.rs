//! The task that owns an open array: it gives a [`Volume`] what happened, and does what the volume says.

use std::time::Duration;

use netraid_block::{Completion, ErrorKind, IoError, Pool, Request, RequestFlags};
use netraid_raid::{
    assemble::CleanClose,
    fencing::Fence,
    member::{MEMBERS_MAX, MemberIndex},
    reach::{Sessions as _, device_of},
    slowness::Deadlines,
    volume::{
        Action, Candidate, Config, Event as VolumeEvent, Expect, JoinError, Look, Machine,
        PlainOrLogged, ScrubOrder, Tag, Volume,
    },
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
    time::{Instant, Sleep, sleep_until, timeout},
};

use super::{
    ArrayError, Event, Spares,
    join::{Asked, AskedBy, Beside, Joined, Returned, join},
    lock::ArrayLock,
    member::{Connected, MemberConfig},
    open::{OpenOptions, Opened},
    pause::Anew,
    slots::{Slot, make_slots, places_of},
    status::{event, log, shown},
};
use crate::{
    completions::{Completed, CompletionQueue, CompletionReceiver},
    control::{ArrayStatus, ControlRequest, MemberStatus, ScrubAction},
};

/// Inputs taken at once before actions are executed.
const BATCH: usize = 256;
/// Longest that an array that closes waits for an attempt to end.
const END_MAX: Duration = Duration::from_secs(5);

pub(super) enum Command {
    Status(oneshot::Sender<ArrayStatus>),
    Control(ControlRequest, Reply),
    Replace(MemberIndex, Box<MemberConfig>, Reply),
    Moved(MemberIndex, Box<MemberConfig>),
    LimitRebuild(Option<u64>),
    PauseNoMore,
    Close(Closing),
    Abandon(oneshot::Sender<()>),
}

pub(super) type Reply = oneshot::Sender<Result<(), ArrayError>>;

/// Who is told how the array was closed.
type Closing = oneshot::Sender<Result<Option<CleanClose>, IoError>>;

/// How a volume is asked for a device in a member's place.
type Way =
    fn(&mut Volume<PlainOrLogged, Completion>, MemberIndex, &str, Expect) -> Result<(), JoinError>;

/// Where inputs come from and events go.
pub(super) struct Channels {
    pub(super) requests: mpsc::UnboundedReceiver<Request>,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) stop: watch::Sender<bool>,
}

pub(super) struct Driver {
    pub(super) volume: Volume<PlainOrLogged, Completion>,
    pub(super) slots: Vec<Slot>,
    /// By number.
    spares: Vec<MemberConfig>,
    pub(super) options: OpenOptions,
    pub(super) pool: Pool,
    channels: Channels,
    queue: CompletionQueue,
    completed: CompletionReceiver,
    joined: (mpsc::Sender<Joined>, mpsc::Receiver<Joined>),
    /// Members that are back, or could not be reached again.
    returned: (mpsc::Sender<Returned>, mpsc::Receiver<Returned>),
    /// The array, opened anew, or not.
    pub(super) anew: (mpsc::Sender<Anew>, mpsc::Receiver<Anew>),
    /// Opens it.
    pub(super) opening: Option<JoinHandle<()>>,
    /// How the device is reached that is on its way into a member's place, and who asked for it.
    asked: Option<Asked>,
    /// Prepares a device that is to join; until it has ended, it may register it.
    joining: Option<JoinHandle<()>>,
    ready: Option<oneshot::Sender<Result<(), IoError>>>,
    closing: Option<Closing>,
    /// Who is to be told when it has ended at once.
    abandoned: Option<oneshot::Sender<()>>,
    started: Instant,
    /// How members are fenced.
    pub(super) fence: Option<Fence>,
    /// Held until this ends.
    pub(super) lock: Option<ArrayLock>,
}

impl Driver {
    pub(super) fn new(
        opened: Opened,
        (options, given, spares): (OpenOptions, Vec<MemberConfig>, Spares),
        channels: Channels,
        pool: Pool,
    ) -> Self {
        let (queue, completed) = CompletionQueue::channel();
        let mut slots = make_slots(opened.members, &given);
        let places = places_of(&mut slots, opened.liars);
        for unused in opened.unused {
            tokio::spawn(async move { unused.remote.close().await });
        }
        let Opened { read_ahead, reads_under_way, .. } = opened;
        let pause = options.pause;
        let timeouts = given.iter().map(|config| config.request_timeout);
        let deadlines = timeouts.max().map_or_else(Deadlines::default, Deadlines::within);
        // Those that are members already are no spares.
        let is_free = |spare: &MemberConfig| !slots.iter().any(|slot| slot.has(spare));
        let free: Vec<MemberConfig> = spares.devices.into_iter().filter(is_free).collect();
        let addresses = free.iter().map(MemberConfig::address).collect();
        let config =
            Config { places, read_ahead, reads_under_way, large_from: None, pause, deadlines };
        let array = opened.machine.label().array_uuid;
        let mut volume = Volume::new(opened.machine, config);
        if options.read_only && !options.is_placed {
            volume.watch_labels(Duration::ZERO, array, opened.generation);
        }
        volume.set_spares(spares.after, addresses);
        volume.set_heartbeats(options.heartbeats.then_some(opened.engine));
        Self {
            volume,
            slots,
            spares: free,
            options,
            pool,
            channels,
            queue,
            completed,
            joined: mpsc::channel(16),
            returned: mpsc::channel(MEMBERS_MAX),
            anew: mpsc::channel(1),
            opening: None,
            asked: None,
            joining: None,
            ready: None,
            closing: None,
            abandoned: None,
            started: Instant::now(),
            fence: opened.fence,
            lock: opened.lock,
        }
    }

    /// Serves until the array is closed.
    pub(super) async fn run(mut self, ready: oneshot::Sender<Result<(), IoError>>) {
        self.ready = Some(ready);
        let mut ends: Vec<Completed> = Vec::with_capacity(BATCH);
        let mut requests: Vec<Request> = Vec::with_capacity(BATCH);
        let mut timer = std::pin::pin!(sleep_until(self.started));
        self.pump(Duration::ZERO);
        while !self.volume.is_closed() && self.abandoned.is_none() {
            set(timer.as_mut(), self.started + self.volume.next_timeout());
            let (accepts, mut command) = (self.volume.accepts(), None);
            tokio::select! {
                biased;
                Some(taken) = self.channels.commands.recv() => command = Some(taken),
                Some(joined) = self.joined.1.recv() => self.take_joined(joined),
                Some(returned) = self.returned.1.recv() => self.take_returned(returned),
                Some(anew) = self.anew.1.recv() => self.take_anew(anew),
                _ = self.completed.recv_many(&mut ends, BATCH) => {}
                _ = self.channels.requests.recv_many(&mut requests, BATCH), if accepts => {
                    if requests.is_empty() && self.channels.requests.is_closed() {
                        // Every handle is gone: nobody can use or close the array any more.
                        self.volume.handle_close();
                    }
                }
                () = &mut timer => {}
            }
            let now = self.now();
            if let Some(command) = command {
                self.take_command(now, command);
            }
            for (tag, result) in ends.drain(..) {
                let tag = Tag(tag);
                let device = self.slots[tag.member().as_usize()].device_for(tag);
                let cache_losses = device.map(|member| member.remote.cache_losses());
                self.volume.handle_io_done(now, tag, cache_losses, result);
            }
            for Request { op, offset, len, flags, data, completion } in requests.drain(..) {
                self.volume.handle_request(now, completion, (op, offset, len), flags, data);
            }
            // Also where there is always something else to be done.
            if self.volume.is_due(now) {
                self.handle_timeout();
            }
            // Who is abandoned sends nothing more.
            if self.abandoned.is_none() {
                self.pump(now);
            }
        }
        match self.abandoned.take() {
            Some(reply) => self.end_at_once(reply).await,
            None => self.end().await,
        }
    }

    /// Ends the sessions of an array that has closed.
    async fn end(mut self) {
        tracing::debug!("the machine has closed");
        self.end_returns().await;
        let failure = self.volume.machine().failure();
        let sessions = self.slots.iter_mut().flat_map(Slot::devices_mut);
        let ends = sessions.map(async |member| match failure {
            None => member.leave().await,
            // Until somebody opens it again, nobody else writes to what is left of it.
            Some(_) => member.remote.close().await,
        });
        futures_util::future::join_all(ends).await;
        tracing::debug!("the members' sessions have ended");
        // The lock ends with this: nothing may be sent after it.
        has_left(self.joining.take()).await;
        while let Ok(joined) = self.joined.1.try_recv() {
            joined.let_go().await;
        }
        for slot in &mut self.slots {
            has_left(slot.leaving.take()).await;
        }
        if let Some(asked) = self.asked.take() {
            asked.answer(Err(ArrayError::Closing));
        }
        if let Some(reply) = self.closing.take() {
            let end = failure.map_or(Ok(self.volume.machine().clean_close()), Err);
            // Nobody waits for the end.
            let _ = reply.send(end);
        }
    }

    /// Leaves everything as it is.
    async fn end_at_once(mut self, reply: oneshot::Sender<()>) {
        for slot in &mut self.slots {
            let tasks = [slot.attempt.take(), slot.leaving.take()];
            tasks.into_iter().flatten().for_each(|task| task.abort());
        }
        for task in [self.joining.take(), self.opening.take()].into_iter().flatten() {
            task.abort();
            // It has the array's lock, and sessions.
            let _ = task.await;
        }
        let sessions = self.slots.iter().flat_map(Slot::devices);
        futures_util::future::join_all(sessions.map(|member| member.remote.cut())).await;
        if let Some(asked) = self.asked.take() {
            asked.answer(Err(ArrayError::Closing));
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

    /// Ends what is looked for, before the sessions end by which it is proven whose the array is.
    async fn end_returns(&mut self) {
        for slot in &mut self.slots {
            if let Some(mut attempt) = slot.attempt.take()
                && timeout(END_MAX, &mut attempt).await.is_err()
            {
                attempt.abort();
                // A task that was ended has ended.
                let _ = attempt.await;
            }
        }
        while let Ok(returned) = self.returned.1.try_recv() {
            returned.let_go().await;
        }
    }

    /// The moment, as the volume counts it.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Does everything that the volume says.
    fn pump(&mut self, now: Duration) {
        while let Some(action) = self.volume.poll(now) {
            self.execute(action);
        }
    }

    fn execute(&mut self, action: Action<Completion>) {
        match action {
            Action::Submit { tag, member, op, offset, len, fua, data } => {
                let Some(connected) = self.slots[member.as_usize()].device_for(tag) else {
                    unreachable!("a request for member {member}, whose place has no device")
                };
                let flags = RequestFlags { fua, no_unmap: false };
                let completion = self.queue.completion(tag.0);
                connected.device.submit(Request { op, offset, len, flags, data, completion });
            }
            Action::Complete { user, result } => user.finish(result),
            Action::Part(member) => {
                if let Some(connected) = self.slots[member.as_usize()].connected.take() {
                    self.let_go(member, connected);
                }
            }
            Action::Cut(member) => self.cut(member),
            Action::Reopen { but } => self.open_anew(but),
            Action::LookFor(member) => self.look_for(member),
            Action::AskForSpare { number } => {
                let config = self.spares[number].clone();
                self.asked = Some(Asked { config, by: AskedBy::Volume });
            }
            Action::Join { member, expect, ends_former } => self.join(member, expect, ends_former),
            Action::Take(member) => self.slots[member.as_usize()].take(),
            Action::LetGo(member) => {
                if let Some(candidate) = self.slots[member.as_usize()].candidate.take() {
                    self.let_go(member, candidate);
                }
            }
            Action::Opened(end) => {
                if let Some(ready) = self.ready.take() {
                    // Whoever opened the array has gone; it closes when its handles are gone.
                    let _ = ready.send(end);
                }
            }
            Action::Joined { member, result } => {
                let address = self.asked.as_ref().map(|asked| asked.config.address());
                let address = address.unwrap_or_default();
                let end = result.map_err(|error| self.refusal(&address, member, error));
                self.answer_join(member, end);
            }
            Action::Tell(event) => self.tell(event),
        }
    }

    fn handle_timeout(&mut self) {
        let now = self.now();
        if self.closing.is_some() && self.volume.is_look_due(now) {
            let (users, in_flight) = self.volume.under_way();
            tracing::debug!(users, in_flight, "closing");
        }
        let looks = if self.volume.is_look_due(now) { self.looks() } else { Vec::new() };
        self.volume.handle_timeout(now, &looks);
    }

    fn looks(&self) -> Vec<Look> {
        self.slots.iter().map(Slot::look).collect()
    }

    fn take_command(&mut self, now: Duration, command: Command) {
        match command {
            Command::Status(reply) => {
                // Nobody waits for the answer any more.
                let _ = reply.send(self.status());
            }
            Command::Close(reply) => {
                self.closing.get_or_insert(reply);
                self.volume.handle_close();
            }
            Command::Abandon(reply) => self.abandoned = Some(reply),
            Command::Replace(member, with, reply) => {
                let last = self.last();
                let prepared = match member <= last {
                    true => Ok((member, *with)),
                    false => Err(ArrayError::NoSuchMember { given: member.to_string(), last }),
                };
                self.begin_join(prepared, Expect::Anything, reply, Volume::handle_join);
            }
            Command::Moved(member, to) => {
                if let Some(slot) = self.slots.get_mut(member.as_usize()) {
                    self.volume.handle_moved(member, to.address());
                    slot.config = Some(*to);
                }
            }
            Command::LimitRebuild(rate) => self.volume.handle_rebuild_limit(now, rate),
            Command::PauseNoMore => self.volume.handle_pause_no_more(now),
            Command::Control(request, reply) => self.take_control(now, request, reply),
        }
    }

    fn take_control(&mut self, now: Duration, request: ControlRequest, reply: Reply) {
        let end = match request {
            ControlRequest::Status => Ok(()),
            // Who runs the array asks for this when its exports may end.
            ControlRequest::Stop { .. } => {
                self.channels.stop.send_replace(true);
                Ok(())
            }
            ControlRequest::Fail { member } => match self.copied_to(&member) {
                Some(copied) => match self.volume.handle_end_copy(copied, "set aside by command") {
                    true => Ok(()),
                    false => Err(ArrayError::Joining { address: member }),
                },
                None => self.find(&member).and_then(|member| {
                    self.volume.handle_fail(member).map_err(|error| self.refusal("", member, error))
                }),
            },
            ControlRequest::Replace { member, with, secret, force } => {
                let expect = if force { Expect::Anything } else { Expect::Unused };
                let secret = secret.map(|handed| handed.0);
                let prepared = self.prepare_replacement(&member, &with, secret);
                return self.begin_join(prepared, expect, reply, Volume::handle_replace);
            }
            ControlRequest::Rebuild { member } => {
                let prepared = self.find(&member).and_then(|member| {
                    let config = self.slots[member.as_usize()].config.clone();
                    Ok((member, config.ok_or(ArrayError::NotGiven(member))?))
                });
                return self.begin_join(prepared, Expect::Former, reply, Volume::handle_join);
            }
            ControlRequest::ClearErrors { member } => {
                member.map(|member| self.find(&member)).transpose().map(|only| {
                    let all = (0..=self.last().0).map(MemberIndex);
                    let chosen = all.filter(|one| only.is_none_or(|only| only == *one));
                    chosen.for_each(|member| self.volume.handle_clear_faults(member));
                })
            }
            ControlRequest::Scrub { action, rate, from, trust_parity } => {
                let order = match action {
                    ScrubAction::Start => ScrubOrder::Start { from, trust_parity },
                    ScrubAction::Pause => ScrubOrder::Pause,
                    ScrubAction::Resume => ScrubOrder::Resume,
                    ScrubAction::Stop => ScrubOrder::Stop,
                };
                self.volume.handle_scrub(now, order, rate).map_err(ArrayError::Scrub)
            }
        };
        // Nobody waits for the answer any more.
        let _ = reply.send(end);
    }

    /// Somebody asks for a device to take a member's place, in one of the ways of a volume.
    fn begin_join(
        &mut self,
        prepared: Result<(MemberIndex, MemberConfig), ArrayError>,
        expect: Expect,
        reply: Reply,
        way: Way,
    ) {
        let taken = prepared.and_then(|(member, config)| {
            let address = config.address();
            let taken = way(&mut self.volume, member, &address, expect);
            taken.map_err(|error| self.refusal(&address, member, error))?;
            Ok(config)
        });
        match taken {
            Ok(config) => self.asked = Some(Asked { config, by: AskedBy::Command(reply) }),
            Err(error) => {
                // Nobody waits for the answer any more.
                let _ = reply.send(Err(error));
            }
        }
    }

    /// Why a device does not take a member's place, with addresses. `address` is the device's.
    fn refusal(&self, address: &str, member: MemberIndex, error: JoinError) -> ArrayError {
        match error {
            JoinError::NotOpen if self.volume.is_paused() => ArrayError::Paused,
            JoinError::NotOpen => ArrayError::Closing,
            JoinError::Refused(error) => error.into(),
            JoinError::Joining(other) => {
                ArrayError::Joining { address: self.slots[other.as_usize()].address() }
            }
            JoinError::Serves(other) => {
                ArrayError::Serves { address: address.to_owned(), member: other }
            }
            JoinError::NotTaken(reason) => ArrayError::NotJoined { member, reason },
        }
    }

    /// Makes a session to the device that was asked for, and prepares it.
    fn join(&mut self, member: MemberIndex, expect: Expect, ends_former: bool) {
        let Some(asked) = &self.asked else {
            unreachable!("nobody asked for a device in the place of member {member}")
        };
        let config = asked.config.clone();
        let former = &mut self.slots[member.as_usize()].connected;
        let former = former.take_if(|_| ends_former);
        // A device that was set aside may be the one that comes: two sessions with one ISID would
        // end each other in turns, and the older one would send its writes again.
        let leaving: Vec<_> = self.slots.iter_mut().map(|slot| slot.leaving.take()).collect();
        let beside = self.beside(member, expect);
        let (pool, sender) = (self.pool.clone(), self.joined.0.clone());
        self.joining = Some(tokio::spawn(async move {
            if let Some(mut former) = former {
                former.leave().await;
            }
            for session in leaving {
                has_left(session).await;
            }
            let device = join(config, member, expect, &beside, pool).await;
            // The array's task waits for this one, so that it is there.
            let _ = sender.send(Joined { member, device }).await;
        }));
    }

    fn take_joined(&mut self, joined: Joined) {
        let Joined { member, device } = joined;
        match device {
            Ok((connected, label)) => {
                let device = device_of(&connected);
                self.slots[member.as_usize()].candidate = Some(connected);
                let candidate = Candidate { device, label, uuid: rand::random() };
                self.volume.handle_joined(member, candidate);
            }
            Err(error) => {
                self.volume.handle_not_joined(member);
                self.answer_join(member, Err(error));
            }
        }
    }

    /// Makes a session to a member's own device again, and looks whether it is that member's still.
    fn look_for(&mut self, member: MemberIndex) {
        let Some(config) = self.slots[member.as_usize()].config.clone() else {
            unreachable!("member {member} is looked for, and its address is not known")
        };
        let beside = self.beside(member, Expect::Former);
        let (pool, sender) = (self.pool.clone(), self.returned.0.clone());
        self.slots[member.as_usize()].attempt = Some(tokio::spawn(async move {
            let end = join(config, member, Expect::Former, &beside, pool).await;
            // The array's task waits for it, or ends it.
            let _ = sender.send(Returned { member, end }).await;
        }));
    }

    fn take_returned(&mut self, returned: Returned) {
        let Returned { member, end } = returned;
        let looks = self.looks();
        let slot = &mut self.slots[member.as_usize()];
        slot.attempt = None;
        let end = match end {
            Ok((connected, label)) => {
                let device = device_of(&connected);
                slot.candidate = Some(connected);
                Ok(Candidate { device, label, uuid: [0; 16] })
            }
            Err(error) => Err(error.to_string()),
        };
        self.volume.handle_returned(member, &looks, end);
    }

    /// What a device for the place of `member` is held against: all that serve, or are to. So is the member's own, while it
    /// serves beside its successor.
    fn beside(&self, member: MemberIndex, expect: Expect) -> Beside {
        let others = self.slots.iter().zip((0..).map(MemberIndex));
        let others = others.filter(|(_, other)| *other != member || expect != Expect::Former);
        let others = others.flat_map(|(slot, _)| slot.devices()).cloned().collect();
        Beside::new(self.volume.machine(), self.lock.as_ref(), self.fence, others)
    }

    fn answer_join(&mut self, member: MemberIndex, result: Result<(), ArrayError>) {
        match self.asked.take() {
            Some(Asked { by: AskedBy::Volume, .. }) => {
                self.volume.handle_spare(member, result.err().map(|error| error.to_string()));
            }
            Some(asked) => asked.answer(result),
            None => {}
        }
    }

    fn tell(&self, told: VolumeEvent) {
        let address = |member: MemberIndex| self.slots[member.as_usize()].address();
        let Some(event) = event(told, self.volume.machine(), address) else { return };
        log(&event);
        if self.channels.events.try_send(event).is_err() {
            tracing::debug!("an event was dropped: nobody fetches events");
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
        let at = by_index.or(by_address).and_then(|at| u8::try_from(at).ok());
        let last = self.last();
        at.map(MemberIndex).ok_or(ArrayError::NoSuchMember { given: given.into(), last })
    }

    /// The member that is being copied to the device at an address.
    fn copied_to(&self, given: &str) -> Option<MemberIndex> {
        let uri = netraid_block::TargetUri::parse(given).ok()?.to_string();
        let members = (0..=self.last().0).map(MemberIndex);
        members.into_iter().find(|member| self.volume.successor(*member) == Some(&uri))
    }

    fn last(&self) -> MemberIndex {
        MemberIndex(self.volume.machine().geometry().members() - 1)
    }

    fn status(&self) -> ArrayStatus {
        let suspects = self.volume.suspects(&self.looks());
        let member = |(slot, index): (&Slot, MemberIndex)| MemberStatus {
            url: slot.address(),
            exclusive: slot.connected.as_ref().is_some_and(|member| member.hold.standing.exclusive),
            ..super::status::member(&self.volume, index, suspects)
        };
        let members = self.slots.iter().zip((0..).map(MemberIndex)).map(member).collect();
        shown(&self.volume, self.now(), suspects, members)
    }
}

/// Has a timer end at another moment.
fn set(timer: std::pin::Pin<&mut Sleep>, at: Instant) {
    if timer.deadline() != at {
        timer.reset(at);
    }
}

/// Waits until a session has ended, which it does in bounded time.
pub(super) async fn has_left(leaving: Option<JoinHandle<()>>) {
    if let Some(leaving) = leaving {
        // A task that has panicked has ended, too.
        let _ = leaving.await;
    }
}
