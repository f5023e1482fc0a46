//! The task that owns the sessions to one disk: it gives a [`Remote`] what happened, and does what that says.

use std::{
    collections::HashMap,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use netraid_block::{Completion, IoError};
use netraid_iscsi_proto::{chap::Credentials, initiator::FoundTarget};
use netraid_remote::{
    Action, Event, Finder, Fresh, Opened, OrderId, Place, Reason, Remote, Settings, Status,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    Message, State,
    lines::{Line, News},
};

/// Messages taken in one turn.
const MESSAGES_MAX: usize = 128;
/// The timer when there is nothing to wait for.
const FAR: Duration = Duration::from_secs(3600);

type Reply = oneshot::Sender<Result<Vec<u8>, IoError>>;

pub(super) struct Driver {
    remote: Remote<Completion>,
    lines: Vec<Line>,
    /// The connection that is asked first for news: each in its turn.
    turn: usize,
    receiver: mpsc::UnboundedReceiver<Message>,
    /// All handles are gone: nothing more can come.
    is_deserted: bool,
    is_over: bool,
    state: Arc<State>,
    published: Status,
    place: Arc<str>,
    opened: Option<oneshot::Sender<Result<Opened, Reason>>>,
    replies: HashMap<OrderId, Reply>,
    next_order: u64,
    closing: Vec<oneshot::Sender<()>>,
    live_credentials: Option<watch::Receiver<Credentials>>,
    clock: Clock,
}

/// Time since the task began.
#[derive(Clone, Copy)]
struct Clock(Instant);

impl Clock {
    fn begin() -> Self {
        Self(Instant::now())
    }

    fn now(self) -> Duration {
        self.0.elapsed()
    }
}

impl Driver {
    pub(super) fn new(
        remote: Remote<Completion>,
        live_credentials: Option<watch::Receiver<Credentials>>,
        receiver: mpsc::UnboundedReceiver<Message>,
        (state, place): (Arc<State>, Arc<str>),
        opened: oneshot::Sender<Result<Opened, Reason>>,
    ) -> Self {
        Self {
            remote,
            lines: Vec::new(),
            turn: 0,
            receiver,
            is_deserted: false,
            is_over: false,
            state,
            published: Status::default(),
            place,
            opened: Some(opened),
            replies: HashMap::new(),
            next_order: 0,
            closing: Vec::new(),
            live_credentials,
            clock: Clock::begin(),
        }
    }

    /// Serves requests until all handles are dropped, or one closes the disk.
    pub(super) async fn run(mut self) {
        let timer = sleep_until(self.clock.0 + FAR);
        tokio::pin!(timer);
        let mut messages = Vec::with_capacity(MESSAGES_MAX);
        loop {
            if self.opened.as_ref().is_some_and(oneshot::Sender::is_closed) {
                // Nobody wants the disk any more: nothing more is begun for it.
                self.remote.handle_cut(self.clock.now());
            }
            self.execute();
            if self.is_over {
                break;
            }
            if !self.transmit() {
                continue;
            }
            if let Some(wake) = self.remote.next_timeout().map(|at| self.clock.0 + at)
                && (wake < timer.deadline() || timer.is_elapsed())
            {
                // A timer that fires early only asks again.
                timer.as_mut().reset(wake);
            }
            tokio::select! {
                (at, news) = poll_fn(|context| {
                    poll_lines(&mut self.lines, &mut self.turn, &mut self.remote, context)
                }) => self.take(at, news),
                count = self.receiver.recv_many(&mut messages, MESSAGES_MAX), if !self.is_deserted => {
                    self.take_messages(count, &mut messages);
                }
                () = &mut timer => {
                    let now = self.clock.now();
                    timer.as_mut().reset(self.clock.0 + now + FAR);
                    self.remote.handle_timeout(now);
                }
            }
        }
        // What came behind the end is aborted before anybody hears that all is over.
        let Self { receiver, closing, .. } = self;
        drop(receiver);
        for done in closing {
            // Who asked may have gone.
            let _ = done.send(());
        }
    }

    /// Does what the machine says.
    fn execute(&mut self) {
        self.remote.advance();
        // Whoever hears of an end sees what the disk told before.
        self.publish();
        while let Some((user, result)) = self.remote.poll_ended() {
            user.finish(result);
        }
        while let Some(action) = self.remote.poll() {
            match action {
                Action::Complete { user, result } => user.finish(result),
                Action::Connect { place: Place(at), portal } => {
                    if self.lines.len() <= at {
                        self.lines.resize_with(at + 1, Line::default);
                    }
                    self.lines[at] = Line::connect(portal);
                }
                Action::Disconnect(Place(at)) => {
                    if let Some(line) = self.lines.get_mut(at) {
                        *line = Line::Closed;
                    }
                }
                Action::Opened(result) => {
                    // Who asked may have gone.
                    let _ = self.opened.take().map(|opened| opened.send(result));
                }
                Action::Answer { order, result } => {
                    // Who asked may have gone.
                    let _ = self.replies.remove(&order).map(|reply| reply.send(result));
                }
                Action::Tell(event) => log(&self.place, &event),
                Action::Closed => self.is_over = true,
            }
        }
    }

    /// Shows to other tasks what is so.
    fn publish(&mut self) {
        let status = *self.remote.status();
        if status == self.published {
            return;
        }
        if status.failures != self.published.failures {
            self.state.failure.send_replace(self.remote.last_failure().to_owned());
        }
        self.state.publish(&status);
        self.published = status;
    }

    /// Sends what there is; false when a connection has failed by that.
    fn transmit(&mut self) -> bool {
        let mut is_well = true;
        for (at, line) in self.lines.iter_mut().enumerate() {
            let remote = &mut self.remote;
            if let Err(error) = line.transmit(|outgoing| remote.transmit(Place(at), outgoing)) {
                let now = self.clock.now();
                self.remote.handle_received(now, Place(at), Err(error.into()));
                is_well = false;
            }
        }
        is_well
    }

    fn take(&mut self, at: usize, news: News) {
        let (now, place) = (self.clock.now(), Place(at));
        match news {
            News::Connected(Ok(())) => {
                let live = self.live_credentials.as_ref();
                let credentials = live.map(|live| live.borrow().clone());
                self.remote.handle_connected(now, place, fresh(credentials));
            }
            News::Connected(Err(reason)) => self.remote.handle_not_connected(now, place, reason),
            News::Ready(ready) => {
                let end = match (ready, self.remote.receiver(place, now)) {
                    (Ok(()), Some(link)) => self.lines[at].receive(link).map_err(Reason::from),
                    (Ok(()), None) => Ok(()),
                    (Err(error), _) => Err(Reason::Lost(format!("connection failed: {error}"))),
                };
                self.remote.handle_received(now, place, end);
            }
        }
    }

    fn take_messages(&mut self, count: usize, messages: &mut Vec<Message>) {
        let now = self.clock.now();
        if count == 0 {
            self.is_deserted = true;
            self.remote.handle_close(now);
        }
        for message in messages.drain(..) {
            match message {
                Message::Request(request) => {
                    let netraid_block::Request { op, offset, len, flags, data, completion: user } =
                        request;
                    let request = netraid_remote::Request { op, offset, len, flags, data, user };
                    self.remote.handle_request(now, request);
                }
                Message::Order(order, reply) => {
                    let id = OrderId(self.next_order);
                    self.next_order += 1;
                    self.replies.insert(id, reply);
                    self.remote.handle_order(now, id, order);
                }
                Message::Leaving => self.remote.handle_leaving(now),
                Message::Reliance(losses) => self.remote.handle_reliance(now, losses),
                Message::Close(done) => {
                    self.closing.push(done);
                    self.remote.handle_close(now);
                }
                Message::Cut(done) => {
                    self.closing.push(done);
                    self.remote.handle_cut(now);
                }
            }
        }
    }
}

/// What a connection has to tell, beginning with the one whose turn it is.
fn poll_lines(
    lines: &mut [Line],
    turn: &mut usize,
    remote: &mut Remote<Completion>,
    context: &mut Context<'_>,
) -> Poll<(usize, News)> {
    let count = lines.len();
    for step in 0..count {
        let at = (*turn + step) % count;
        let wants_input = || remote.wants_input(Place(at));
        if let Poll::Ready(news) = lines[at].poll(wants_input, context) {
            *turn = (at + 1) % count;
            return Poll::Ready((at, news));
        }
    }
    Poll::Pending
}

/// Asks a portal which targets it has.
pub(super) async fn find(settings: Settings) -> Result<Vec<FoundTarget>, Reason> {
    let (clock, place) = (Clock::begin(), settings.place.clone());
    let (mut finder, mut line) = (Finder::new(settings, Duration::ZERO), Line::Closed);
    loop {
        while let Some(action) = finder.poll() {
            match action {
                Action::Connect { portal, .. } => line = Line::connect(portal),
                Action::Disconnect(_) => line = Line::Closed,
                Action::Tell(event) => log(&place, &event),
                Action::Closed => {
                    let lost = || Err(Reason::Lost("the search has ended".to_owned()));
                    return finder.take_end().unwrap_or_else(lost);
                }
                Action::Opened(_) | Action::Complete { .. } | Action::Answer { .. } => {}
            }
        }
        if let Err(error) = line.transmit(|outgoing| finder.transmit(outgoing)) {
            finder.handle_received(clock.now(), Err(error.into()));
            continue;
        }
        let until = clock.0 + finder.next_timeout().unwrap_or(FAR);
        let news = poll_fn(|context| line.poll(|| finder.wants_input(), context));
        let news = timeout_at(until, news).await;
        let now = clock.now();
        match news {
            Err(_) => finder.handle_timeout(now),
            Ok(News::Connected(Ok(()))) => finder.handle_connected(now, fresh(None)),
            Ok(News::Connected(Err(reason))) => finder.handle_not_connected(reason),
            Ok(News::Ready(ready)) => {
                let end = match (ready, finder.receiver(now)) {
                    (Ok(()), Some(link)) => line.receive(link).map_err(Reason::from),
                    (Ok(()), None) => Ok(()),
                    (Err(error), _) => Err(Reason::Lost(format!("connection failed: {error}"))),
                };
                finder.handle_received(now, end);
            }
        }
    }
}

/// What each login has of its own.
fn fresh(credentials: Option<Credentials>) -> Fresh {
    Fresh { credentials, identifier: rand::random(), challenge: rand::random() }
}

fn log(place: &str, event: &Event) {
    match event {
        Event::StoodStill { time } => {
            let seconds = time.as_secs();
            tracing::warn!(place, seconds, "this process stood still; that time does not count");
        }
        Event::Lost { session, reason } => {
            tracing::warn!(place, session, reason, "session lost");
        }
        Event::NotMade { session, reason } => {
            tracing::debug!(place, session, reason, "no session yet");
        }
        Event::Reconnected { session } => tracing::info!(place, session, "connected again"),
        Event::Ending { session } => {
            tracing::debug!(place, session, "target asks for the end of the session");
        }
        Event::Redirected { from, to, permanent } => {
            tracing::info!(place, %from, %to, permanent, "login redirected");
        }
        Event::PredecessorMayRemain { portal, reason } => {
            tracing::warn!(place, %portal, reason, "sessions of a dead engine may remain");
        }
        Event::Grown { blocks } => tracing::info!(place, blocks, "disk has grown"),
        Event::Fenced => tracing::error!(place, "fenced: another host has taken over"),
        Event::NotRegistered { session, reason } => {
            tracing::warn!(place, session, reason, "not registered yet");
        }
        Event::GivenUp { session } => {
            tracing::error!(place, session, "given up: cannot be registered");
        }
        Event::Unanswered { kind } => {
            tracing::warn!(
                place,
                kind,
                "disk has not answered such commands; it gets no more of them"
            );
        }
        Event::DoneWithout { kind, end } => tracing::debug!(place, kind, end, "done without"),
        Event::NoCache { end } => {
            tracing::warn!(
                place,
                end,
                "disk does not flush; it is taken to have no volatile cache"
            );
        }
        Event::NoForcedWrites => {
            tracing::info!(
                place,
                "disk refuses the FUA bit that it told of; it is flushed instead"
            );
        }
    }
}
