//! A line: a [`Remote`] and its driver, as the engine's initiator is one, over simulated connections.
//!
//! Invariant: the driver does what the machine says, in the order of the engine's driver, and decides nothing.

use std::collections::VecDeque;

use netraid_block::{Pool, Portal};
use netraid_iscsi_proto::{
    chap::{CHALLENGE_LEN, Credentials},
    initiator::{Setup, random_isid},
    negotiation::{DigestPolicy, Wishes},
};
use netraid_remote::{
    Action, ConnectError, Event as RemoteEvent, Fresh, Order, OrderId, Place, Reason, Remote,
    Request, Settings, Status,
};
use rand::RngCore as _;

use core::time::Duration;

use super::{
    counts::Count,
    desk::{Alarm, Answer, Desk, Event, Path},
    interface::{EngineId, HostId, LineConfig, LineId, News, StreamId},
    stream::{End, Streams},
    wire::{Wire, WireError},
};
use crate::dice::Dice;

/// The engine's times for pings, by the time of a request: see its `InitiatorConfig`.
const SILENCE_MAX: Duration = Duration::from_secs(5);
const IDLE_PING: Duration = Duration::from_millis(750);
const IDLE_SILENCE_MIN: Duration = Duration::from_secs(1);
/// What a driver may do at one moment before it has failed to come to rest.
const TURNS_MAX: usize = 100_000;
/// The first port of a host.
pub(super) const PORT: u16 = 3260;

/// What lines have to tell their owner.
pub(super) type AllNews<U> = VecDeque<(LineId, Item<U>)>;

/// What a line tells in its turn: what is so, and then what follows of it.
pub(super) enum Item<U> {
    Status(Status),
    News(News<U>),
}

/// One connection.
#[derive(Default)]
enum Socket {
    #[default]
    Closed,
    Connecting(StreamId),
    Open(Box<Wire>),
}

/// A request's owner, and the number by which the watch knows it.
type Numbered<U> = (u64, U);

/// One engine's way to one host's disk.
pub(super) struct Line<U> {
    id: LineId,
    pub(super) engine: EngineId,
    host: HostId,
    /// None once its engine has died.
    remote: Option<Remote<Numbered<U>>>,
    sockets: Vec<Socket>,
    /// Dials that have ended, and nobody was told of yet.
    answers: VecDeque<(StreamId, Answer)>,
    /// The connection that is asked first for news: each in its turn.
    turn: usize,
    has_opened: bool,
    is_over: bool,
    published: Status,
    /// What the owner was told of it.
    shown: Status,
    failure: String,
    next_order: u64,
    digests: (bool, bool),
    sessions: usize,
    credentials: Option<Credentials>,
    alarm: Alarm,
    dice: Dice,
    /// What is first of things that are there at once.
    order: Dice,
}

impl<U> Line<U> {
    pub(super) fn new(
        id: LineId,
        (engine, host): Path,
        (config, portals): (LineConfig, u16),
        (now, pool): (Duration, Pool),
        (mut dice, order): (Dice, Dice),
    ) -> Self {
        let (digests, sessions) = (config.digests, usize::from(config.sessions));
        let credentials = config.credentials.clone();
        let settings = settings(config, host, portals, &mut dice);
        Self {
            id,
            engine,
            host,
            remote: Some(Remote::new(settings, pool, now)),
            sockets: Vec::new(),
            answers: VecDeque::new(),
            turn: 0,
            has_opened: false,
            is_over: false,
            published: Status::default(),
            shown: Status::default(),
            failure: String::new(),
            next_order: 0,
            digests,
            sessions,
            credentials,
            alarm: Alarm::default(),
            dice,
            order,
        }
    }

    pub(super) const fn status(&self) -> &Status {
        &self.shown
    }

    pub(super) const fn show(&mut self, status: Status) {
        self.shown = status;
    }

    /// Whether its disk could be had.
    pub(super) const fn has_opened(&self) -> bool {
        self.has_opened
    }

    pub(super) fn last_failure(&self) -> &str {
        &self.failure
    }

    /// The machine, which is told something now; the driver runs soon.
    fn tell(&mut self, desk: &mut Desk) -> &mut Remote<Numbered<U>> {
        self.alarm.wake(desk, Event::Drive(self.id));
        let Some(remote) = &mut self.remote else {
            unreachable!("{:?} is of an engine that has died", self.id)
        };
        remote
    }

    pub(super) fn submit(&mut self, desk: &mut Desk, request: Request<U>) {
        let number = desk.watch.note_request(self.id, desk.now(), &request);
        let Request { op, offset, len, flags, data, user } = request;
        let request = Request { op, offset, len, flags, data, user: (number, user) };
        let now = desk.clock();
        self.tell(desk).handle_request(now, request);
    }

    pub(super) fn order(&mut self, desk: &mut Desk, order: Order) -> OrderId {
        let id = OrderId(self.next_order);
        self.next_order += 1;
        desk.watch.note_order(self.id, id, &order);
        let now = desk.clock();
        self.tell(desk).handle_order(now, id, order);
        id
    }

    pub(super) fn note_leaving(&mut self, desk: &mut Desk) {
        let now = desk.clock();
        self.tell(desk).handle_leaving(now);
    }

    pub(super) fn rely_on(&mut self, desk: &mut Desk, cache_losses: u64) {
        let now = desk.clock();
        self.tell(desk).handle_reliance(now, cache_losses);
    }

    pub(super) fn close(&mut self, desk: &mut Desk) {
        let now = desk.clock();
        self.tell(desk).handle_close(now);
    }

    pub(super) fn cut_off(&mut self, desk: &mut Desk) {
        let now = desk.clock();
        self.tell(desk).handle_cut(now);
    }

    /// The driver runs as soon as it has a processor.
    pub(super) fn wake(&mut self, desk: &mut Desk) {
        if self.remote.is_some() && !self.is_over {
            self.alarm.wake(desk, Event::Drive(self.id));
        }
    }

    /// The driver runs at this moment, and not before.
    pub(super) fn put_off(&mut self, desk: &mut Desk, until: crate::time::Time) {
        self.alarm.fire();
        self.alarm.set(desk, until, Event::Drive(self.id));
    }

    /// A dial has ended; the driver hears of it when it runs.
    pub(super) fn handle_answer(&mut self, desk: &mut Desk, stream: StreamId, answer: Answer) {
        self.answers.push_back((stream, answer));
        self.wake(desk);
    }

    /// The engine has died; the connections that it had.
    pub(super) fn die(&mut self, desk: &mut Desk) -> Vec<StreamId> {
        self.alarm.stop(desk);
        desk.watch.note_over(self.id);
        self.remote = None;
        self.answers.clear();
        self.sockets.drain(..).filter_map(|socket| socket.stream()).collect()
    }

    /// Does all that is to be done now.
    pub(super) fn drive(&mut self, desk: &mut Desk, streams: &mut Streams, news: &mut AllNews<U>) {
        self.alarm.fire();
        for _ in 0..TURNS_MAX {
            self.execute(desk, streams, news);
            if self.is_over || self.remote.is_none() {
                return;
            }
            if self.transmit(desk, streams) && !self.take_turn(desk, streams) {
                desk.watch.check_time(self.id, desk.now());
                return self.rest(desk);
            }
        }
        unreachable!("{:?} does not come to rest at {}", self.id, desk.now());
    }

    /// Does what the machine says.
    fn execute(&mut self, desk: &mut Desk, streams: &mut Streams, news: &mut AllNews<U>) {
        let Some(remote) = &mut self.remote else { return };
        remote.advance();
        // Whoever hears of an end sees what the disk told before.
        let status = *remote.status();
        if status != self.published {
            if status.failures != self.published.failures {
                remote.last_failure().clone_into(&mut self.failure);
            }
            if status.cache_losses != self.published.cache_losses {
                desk.count(Count::CacheLost);
            }
            desk.watch.note_losses(self.id, status.cache_losses);
            self.published = status;
            news.push_back((self.id, Item::Status(status)));
        }
        while let Some(remote) = &mut self.remote
            && let Some(((number, user), result)) = remote.poll_ended()
        {
            note_end(desk, self.id, number, result.is_ok());
            news.push_back((self.id, Item::News(News::Ended { user, result })));
        }
        while let Some(remote) = &mut self.remote
            && let Some(action) = remote.poll()
        {
            match action {
                Action::Complete { user: (number, user), result } => {
                    note_end(desk, self.id, number, result.is_ok());
                    news.push_back((self.id, Item::News(News::Ended { user, result })));
                }
                Action::Connect { place, portal } => self.connect(desk, streams, place, &portal),
                Action::Disconnect(Place(at)) => self.disconnect(desk, streams, at),
                Action::Opened(result) => {
                    desk.count(if result.is_ok() { Count::Opened } else { Count::NotOpened });
                    if result.is_ok() {
                        self.has_opened = true;
                        desk.watch.note_opened(self.id);
                    }
                    news.push_back((self.id, Item::News(News::Opened(result))));
                }
                Action::Answer { order, result } => {
                    desk.watch.note_answer(self.id, order, result.is_ok());
                    news.push_back((self.id, Item::News(News::Answered { order, result })));
                }
                Action::Tell(event) => {
                    count_event(desk, &event);
                    if event == RemoteEvent::Fenced {
                        desk.watch.note_told_fenced(self.id);
                    }
                    desk.note(|| format!("{:?} tells {event:?}", self.id));
                    news.push_back((self.id, Item::News(News::Told(event))));
                }
                Action::Closed => {
                    desk.watch.note_over(self.id);
                    self.is_over = true;
                    news.push_back((self.id, Item::News(News::Closed)));
                }
            }
        }
        if self.is_over {
            for at in 0..self.sockets.len() {
                self.disconnect(desk, streams, at);
            }
        }
    }

    fn connect(
        &mut self,
        desk: &mut Desk,
        streams: &mut Streams,
        Place(at): Place,
        portal: &Portal,
    ) {
        if self.sockets.len() <= at {
            self.sockets.resize_with(at + 1, Socket::default);
        }
        self.disconnect(desk, streams, at);
        let path = (self.engine, self.host);
        let is_beside = at > 0 && at < self.sessions;
        let place = (portal.port - PORT, is_beside);
        let stream = streams.dial(desk, path, self.id, place, self.digests);
        self.sockets[at] = Socket::Connecting(stream);
    }

    fn disconnect(&mut self, desk: &mut Desk, streams: &mut Streams, at: usize) {
        let socket = self.sockets.get_mut(at).map(core::mem::take).unwrap_or_default();
        if let Some(stream) = socket.stream() {
            streams.close(desk, stream, End::Engine);
        }
    }

    /// Sends what there is; false when a connection has failed by that.
    fn transmit(&mut self, desk: &mut Desk, streams: &mut Streams) -> bool {
        let (Some(remote), mut is_well) = (&mut self.remote, true) else { return true };
        for (at, socket) in self.sockets.iter_mut().enumerate() {
            let Socket::Open(wire) = socket else { continue };
            if let Err(error) = send(remote, Place(at), wire, desk, streams) {
                remote.handle_received(desk.clock(), Place(at), Err(error.into()));
                is_well = false;
            }
        }
        is_well
    }

    /// Takes one thing that happened; false when there is none.
    fn take_turn(&mut self, desk: &mut Desk, streams: &mut Streams) -> bool {
        let Some(remote) = &mut self.remote else { return false };
        let now = desk.clock();
        // As the engine's driver does: where time is up and something has come, either is first.
        let is_up = remote.next_timeout().is_some_and(|at| at <= now);
        if is_up && self.order.one_in(2) {
            remote.handle_timeout(now);
            return true;
        }
        if let Some((stream, answer)) = self.answers.pop_front() {
            let at = self.sockets.iter().position(|socket| socket.connects_by(stream));
            let Some(at) = at else { return true };
            match answer {
                Answer::Made => {
                    self.sockets[at] = Socket::Open(Box::new(Wire::new(stream, End::Engine)));
                    remote.handle_connected(
                        now,
                        Place(at),
                        fresh(&mut self.dice, self.credentials.clone()),
                    );
                }
                Answer::Refused | Answer::Unreachable => {
                    self.sockets[at] = Socket::Closed;
                    streams.close(desk, stream, End::Engine);
                    remote.handle_not_connected(now, Place(at), refused(answer));
                }
            }
            return true;
        }
        let count = self.sockets.len();
        for step in 0..count {
            let at = (self.turn + step) % count;
            let Socket::Open(wire) = &mut self.sockets[at] else { continue };
            let wants_input = remote.wants_input(Place(at));
            if (wire.is_paused() && wants_input) || wire.is_ready(streams, desk.now(), wants_input)
            {
                self.turn = (at + 1) % count;
                let end = match remote.receiver(Place(at), now) {
                    Some(link) => wire.receive(streams, desk, link).map_err(Reason::from),
                    None => Ok(()),
                };
                remote.handle_received(now, Place(at), end);
                return true;
            }
        }
        if remote.next_timeout().is_some_and(|at| at <= now) {
            remote.handle_timeout(now);
            return true;
        }
        false
    }

    /// Waits for the next thing that happens.
    fn rest(&mut self, desk: &mut Desk) {
        let Some(remote) = &self.remote else { return };
        if let Some(at) = remote.next_timeout() {
            self.alarm.set_timer(desk, at, Event::Drive(self.id));
        }
    }
}

impl Socket {
    fn stream(&self) -> Option<StreamId> {
        match self {
            Self::Closed => None,
            Self::Connecting(stream) => Some(*stream),
            Self::Open(wire) => Some(wire.stream()),
        }
    }

    fn connects_by(&self, stream: StreamId) -> bool {
        matches!(self, Self::Connecting(own) if *own == stream)
    }
}

/// Sends what the machine has for a connection, as far as that takes it.
fn send<U>(
    remote: &mut Remote<U>,
    place: Place,
    wire: &mut Wire,
    desk: &mut Desk,
    streams: &mut Streams,
) -> Result<(), WireError> {
    loop {
        let more = remote.transmit(place, wire.outgoing());
        // A queue that was full from the start says nothing about what the machine has.
        let exhausted = wire.has_room();
        if !wire.flush(streams, desk)? || (exhausted && !more) {
            return Ok(());
        }
    }
}

impl From<WireError> for Reason {
    fn from(error: WireError) -> Self {
        Self::Lost(match error {
            WireError::Broken(broken) => broken.to_string(),
            WireError::Failed => "connection failed: reset".to_owned(),
            WireError::Closed => "peer closed the connection".to_owned(),
        })
    }
}

/// What the engine's configuration makes of its values.
fn settings(config: LineConfig, host: HostId, portals: u16, dice: &mut Dice) -> Settings {
    let isid = config.isid.unwrap_or_else(|| {
        let mut random = [0; 5];
        dice.fill_bytes(&mut random);
        random_isid([random[0], random[1], random[2]], u16::from_be_bytes([random[3], random[4]]))
    });
    let mut setup = Setup::new(config.initiator_name, Some(target_name(host)), isid);
    let policy = |insist| if insist { DigestPolicy::Required } else { DigestPolicy::Never };
    setup.wishes = Wishes {
        header_digest: policy(config.digests.0),
        data_digest: policy(config.digests.1),
        ..config.wishes
    };
    setup.queue_depth = config.queue_depth;
    setup.login_timeout = config.login_timeout;
    let silence = (config.request_timeout / 4).min(SILENCE_MAX);
    setup.ping_interval_busy = silence;
    setup.ping_timeout_busy = silence;
    setup.ping_interval_idle = IDLE_PING;
    setup.ping_timeout_idle = silence.max(IDLE_SILENCE_MIN);
    let portal = |number| Portal { host: format!("host{}", host.0), port: PORT + number };
    Settings {
        place: format!("disk of host {}", host.0).into(),
        lun: 0,
        portals: (0..portals).map(portal).collect(),
        setup,
        target_proof: None,
        goes_by_plan: config.credentials.is_some(),
        takes_over: config.isid.is_some(),
        sessions: config.sessions,
        request_timeout: config.request_timeout,
        refusal_limit: config.refusal_limit,
        login_timeout: config.login_timeout,
        reader_keys: Some(netraid_raid::fencing::READER_KEYS),
    }
}

/// What a host's target is called.
pub(super) fn target_name(host: HostId) -> String {
    format!("iqn.2026-01.org.example:host{}", host.0)
}

fn fresh(dice: &mut Dice, credentials: Option<Credentials>) -> Fresh {
    let mut random = [0; CHALLENGE_LEN + 1];
    dice.fill_bytes(&mut random);
    let [identifier, challenge @ ..] = random;
    Fresh { credentials, identifier, challenge }
}

fn refused(answer: Answer) -> Reason {
    let text = if answer == Answer::Refused { "connection refused" } else { "no route to host" };
    Reason::Connect(ConnectError { text: text.to_owned(), is_refusal: true })
}

fn note_end(desk: &mut Desk, line: LineId, number: u64, is_well: bool) {
    desk.watch.note_end(line, desk.now(), number, is_well);
    desk.count(if is_well { Count::EndedWell } else { Count::EndedBadly });
}

fn count_event(desk: &mut Desk, event: &RemoteEvent) {
    match event {
        RemoteEvent::StoodStill { .. } => desk.count(Count::StoodStill),
        RemoteEvent::Lost { .. } => desk.count(Count::SessionLost),
        RemoteEvent::Reconnected { .. } => desk.count(Count::Reconnected),
        RemoteEvent::PredecessorMayRemain { .. } => desk.count(Count::PredecessorMayRemain),
        RemoteEvent::Fenced => desk.count(Count::Fenced),
        RemoteEvent::NotMade { .. }
        | RemoteEvent::Ending { .. }
        | RemoteEvent::Redirected { .. }
        | RemoteEvent::Grown { .. }
        | RemoteEvent::NotRegistered { .. }
        | RemoteEvent::GivenUp { .. }
        | RemoteEvent::Unanswered { .. }
        | RemoteEvent::DoneWithout { .. }
        | RemoteEvent::NoCache { .. }
        | RemoteEvent::NoForcedWrites => {}
    }
}
