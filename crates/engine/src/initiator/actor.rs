//! The task that owns the sessions to one disk: requests in, commands out, and each session made
//! again when it is lost.
//!
//! ```text
//! caller -> queue -> requests: ready -> a lane (session, socket)
//!                       ^         ^        |
//!                       |         +- again +- ends
//!                       +- deadline, at the latest
//! ```
//!
//! Invariant: while the target has not confirmed that a write which was given up is dead, no
//! request is carried out, so that what the caller writes next cannot be overtaken by what it gave
//! up. The target confirms by the answer to an abort, or by a new session with the lost one's
//! ISID.

mod commands;
mod lanes;

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use netraid_block::{Buf, Op};
use netraid_iscsi_proto::machine::TaskId;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{
    Message, State,
    control::Controls,
    dial::Dialer,
    disk::Profile,
    error::Reason,
    lane::{Lane, News, Stage},
    link::Link,
    probe::Probed,
    requests::Requests,
    verdict::Unanswered,
    window::{BulkWindow, Class},
};

/// How long a busy disk is left alone.
pub(super) const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// How long a target may take to abort a command before the session is dropped.
const ABORT_LIMIT: Duration = Duration::from_secs(1);
/// The part of a request's time after which a disk is asked that has ended no command.
const PATIENCE_SHARE: u32 = 4;
/// How long a logout may take.
const LOGOUT_LIMIT: Duration = Duration::from_secs(1);
/// Messages taken in one turn.
const MESSAGES_MAX: usize = 128;
/// The timer when there is nothing to wait for.
const FAR: Duration = Duration::from_secs(3600);

pub(super) struct Actor {
    pub(super) dialer: Arc<Dialer>,
    /// What was found when the disk was connected first, which its users were told.
    first: Probed,
    profile: Profile,
    unanswered: Unanswered,
    receiver: mpsc::UnboundedReceiver<Message>,
    state: Arc<State>,
    pub(super) place: Arc<str>,
    pub(super) lanes: Vec<Lane>,
    /// The lane that is asked first for news and for room: each in its turn.
    turn: usize,
    requests: Requests,
    /// When commands that end now were heard of.
    heard_at: Instant,
    /// Bytes that the disk has sent or asked for, ever, and when it did so last.
    moved: u64,
    moved_at: Instant,
    /// Of large requests, while small ones come.
    window: BulkWindow,
    /// Small requests that went before one large one that waits.
    went_before: u32,
    pub(super) controls: Controls,
    /// Commands that timed out, and until when the target has to abort them.
    aborting: VecDeque<Aborting>,
    closing: Vec<oneshot::Sender<()>>,
    /// No more requests are taken.
    pub(super) closed: bool,
    /// All handles are gone: nothing more can come.
    deserted: bool,
    /// Nothing is waited for any more.
    cut: bool,
    /// Since when there is no session at all, and what the latest attempt at each portal met.
    down: Option<Down>,
    /// The registration of this side's key is gone; final.
    pub(super) fenced: bool,
    zeros: Buf,
}

/// A command that was given up.
struct Aborting {
    limit: Instant,
    lane: usize,
    task: TaskId,
    writes: bool,
}

/// There is no session.
struct Down {
    since: Instant,
    failure: String,
    /// Of each portal how long it is waited for, where the latest attempt since then showed that the
    /// peer is surely not there, or lets nobody in.
    refused: Vec<Option<Duration>>,
}

impl Actor {
    pub(super) fn new(
        dialer: Arc<Dialer>,
        (link, probed): (Link, Probed),
        portal: usize,
        receiver: mpsc::UnboundedReceiver<Message>,
        (state, place): (Arc<State>, Arc<str>),
    ) -> Self {
        let sessions = usize::from(dialer.config.sessions);
        let portals = dialer.portals();
        let now = Instant::now();
        let lanes = (0..sessions).map(|at| Lane::new(Stage::Waiting(now), (portal + at) % portals));
        let mut lanes: Vec<Lane> = lanes.collect();
        lanes[0].group = Some(link.portal_group());
        lanes[0].stage = Stage::Up(Box::new(link));
        Self {
            dialer,
            profile: probed.profile.clone(),
            unanswered: Unanswered::default(),
            first: probed,
            receiver,
            state,
            place,
            lanes,
            turn: 0,
            requests: Requests::default(),
            heard_at: now,
            moved: 0,
            moved_at: now,
            window: BulkWindow::default(),
            went_before: 0,
            controls: Controls::default(),
            aborting: VecDeque::new(),
            closing: Vec::new(),
            closed: false,
            deserted: false,
            cut: false,
            down: None,
            fenced: false,
            zeros: Buf::empty(),
        }
    }

    /// Serves requests until the handle is dropped or closed.
    pub(super) async fn run(mut self) {
        let timer = tokio::time::sleep(FAR);
        tokio::pin!(timer);
        let mut messages = Vec::with_capacity(MESSAGES_MAX);
        loop {
            self.tend();
            self.advance_controls();
            self.issue();
            self.transmit();
            let idle = self.requests.is_empty() && self.controls.is_empty();
            if self.cut || (self.closed && idle) {
                break;
            }
            if let Some(wake) = self.next_wake()
                && (wake < timer.deadline() || timer.is_elapsed())
            {
                // A timer that fires early only asks again.
                timer.as_mut().reset(wake);
            }
            tokio::select! {
                (lane, news) = poll_fn(|context| poll_lanes(&mut self.lanes, &mut self.turn, context)) => {
                    self.take_news(lane, news);
                }
                count = self.receiver.recv_many(&mut messages, MESSAGES_MAX), if !self.deserted => {
                    self.take(count, &mut messages);
                }
                () = &mut timer => {
                    timer.as_mut().reset(Instant::now() + FAR);
                    self.handle_timeout();
                }
            }
        }
        self.finish().await;
    }

    async fn finish(mut self) {
        self.state.connected.store(false, Ordering::Release);
        let links = self.lanes.drain(..).filter_map(|mut lane| {
            match std::mem::replace(&mut lane.stage, Stage::GivenUp) {
                Stage::Up(link) if !self.cut => Some(link.log_out(LOGOUT_LIMIT)),
                Stage::Up(_) => None,
                Stage::Dialing(task) | Stage::Examining(task) => {
                    task.abort();
                    None
                }
                Stage::Waiting(_) | Stage::GivenUp => None,
            }
        });
        futures_util::future::join_all(links).await;
        // What is left of requests ends as it is dropped.
        let Self { closing, requests, controls, receiver, .. } = self;
        drop((requests, controls, receiver));
        for done in closing {
            // Who asked may have gone.
            let _ = done.send(());
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        let lanes = self.lanes.iter().filter_map(Lane::next_wake).min();
        let aborting = self.aborting.front().map(|aborting| aborting.limit);
        let rest = [self.requests.next_wake(), aborting, self.controls.next_wake()];
        rest.into_iter().chain([lanes]).flatten().min()
    }

    fn take(&mut self, count: usize, messages: &mut Vec<Message>) {
        self.deserted |= count == 0;
        self.closed |= self.deserted;
        let now = Instant::now();
        let deadline = now + self.dialer.config.request_timeout;
        for message in messages.drain(..) {
            match message {
                // Dropping it ends it as aborted.
                Message::Request(_) | Message::Control(_) if self.closed => {}
                Message::Request(request) => {
                    let moves = matches!(request.op, Op::Read | Op::Write);
                    if moves && Class::of(&request) == Class::Express {
                        self.window.note_express(now);
                    }
                    let time = self.dialer.config.request_timeout;
                    self.requests.insert(request, self.moved, (now, time));
                }
                Message::Control(control) => self.controls.insert(control, deadline, &self.place),
                Message::Close(done) => {
                    self.closed = true;
                    self.closing.push(done);
                }
                Message::Cut(done) => {
                    (self.closed, self.cut) = (true, true);
                    self.closing.push(done);
                }
            }
        }
        if self.fenced {
            self.fail_idle();
        } else if self.is_gone() {
            self.lanes.iter_mut().for_each(Lane::hurry);
        }
    }

    fn handle_timeout(&mut self) {
        let now = Instant::now();
        for at in 0..self.lanes.len() {
            if let Some(link) = self.lanes[at].link()
                && let Err(reason) = link.handle_timeout()
            {
                self.lose(at, reason);
            }
        }
        self.ask_silent(now);
        self.requests.wake_delayed(now);
        while let Some(expired) = self.requests.pop_expired(now) {
            if !self.has_more_time(expired, now) {
                self.give_up(expired, now);
            }
        }
        if let Some((lane, task)) = self.controls.expire(now, &self.place) {
            self.abort(lane, task, true);
        }
        while let Some(aborting) = self.aborting.front()
            && aborting.limit <= now
        {
            let lane = aborting.lane;
            self.lose(lane, Reason::Lost("the target does not abort a command".to_owned()));
        }
    }
}

/// What a lane has to tell, beginning with the one whose turn it is.
fn poll_lanes(
    lanes: &mut [Lane],
    turn: &mut usize,
    context: &mut Context<'_>,
) -> Poll<(usize, News)> {
    let count = lanes.len();
    for step in 0..count {
        let lane = (*turn + step) % count;
        if let Poll::Ready(news) = lanes[lane].poll(context) {
            *turn = (lane + 1) % count;
            return Poll::Ready((lane, news));
        }
    }
    Poll::Pending
}
