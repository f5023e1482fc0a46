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
//! other command is sent, so that what the caller writes next cannot be overtaken by what it gave
//! up. The target confirms by the answer to an abort, or by a new session with the lost one's
//! ISID.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use netraid_block::{Buf, BufMut, ErrorKind, IoError, SgList};
use netraid_iscsi_proto::{
    initiator::{Command, TaskEnd},
    machine::TaskId,
    pdu::LunField,
};
use netraid_scsi::cdb::build;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{
    Message, State,
    control::Controls,
    dial::Dialer,
    disk::{self, Attention, Kind, Out, Planned, Profile, Verdict},
    error::Reason,
    lane::{Lane, Made, News, Stage},
    link::{Done, Link},
    probe::Probed,
    requests::{Left, Requests, Running, Ticket},
};

/// How long a busy disk is left alone.
pub(super) const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// How long a target may take to abort a command before the session is dropped.
const ABORT_LIMIT: Duration = Duration::from_secs(1);
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
    receiver: mpsc::UnboundedReceiver<Message>,
    state: Arc<State>,
    pub(super) place: Arc<str>,
    pub(super) lanes: Vec<Lane>,
    /// The lane that is asked first for news and for room: each in its turn.
    turn: usize,
    requests: Requests,
    pub(super) controls: Controls,
    /// Commands that timed out, and until when the target has to abort them.
    aborting: VecDeque<Aborting>,
    closing: Vec<oneshot::Sender<()>>,
    /// No more requests will come.
    closed: bool,
    /// Since when there is no session at all, and what the latest attempt at each portal met.
    down: Option<Down>,
    /// The registration of this side's key is gone; final.
    fenced: bool,
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
    /// Portals whose latest attempt since then showed that the peer is surely not there.
    refused: Vec<bool>,
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
            first: probed,
            receiver,
            state,
            place,
            lanes,
            turn: 0,
            requests: Requests::default(),
            controls: Controls::default(),
            aborting: VecDeque::new(),
            closing: Vec::new(),
            closed: false,
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
            if self.closed && self.requests.is_empty() && self.controls.is_empty() {
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
                count = self.receiver.recv_many(&mut messages, MESSAGES_MAX), if !self.closed => {
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
                Stage::Up(link) => Some(link.log_out(LOGOUT_LIMIT)),
                Stage::Dialing(task) | Stage::Examining(task) => {
                    task.abort();
                    None
                }
                Stage::Waiting(_) | Stage::GivenUp => None,
            }
        });
        futures_util::future::join_all(links).await;
        for done in self.closing {
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

    /// Begins what is due on lanes that carry nothing.
    fn tend(&mut self) {
        for at in 0..self.lanes.len() {
            let lane = &mut self.lanes[at];
            let due = match &lane.stage {
                Stage::Waiting(when) => *when <= Instant::now(),
                Stage::Up(_) => lane.examine && lane.running == 0,
                Stage::Dialing(_) | Stage::Examining(_) | Stage::GivenUp => false,
            };
            if !due {
                continue;
            }
            let key = self.controls.key().filter(|_| lane.registered);
            let (dialer, portal, untold) = (self.dialer.clone(), lane.portal, lane.untold.clone());
            lane.stage = match std::mem::replace(&mut lane.stage, Stage::GivenUp) {
                Stage::Up(link) => {
                    lane.examine = false;
                    Stage::Examining(tokio::spawn(async move {
                        dialer.examine(*link, key, &untold).await
                    }))
                }
                Stage::Dialing(_) | Stage::Examining(_) | Stage::Waiting(_) | Stage::GivenUp => {
                    Stage::Dialing(tokio::spawn(async move {
                        dialer.dial(at, portal, key, &untold).await
                    }))
                }
            };
        }
    }

    fn take_news(&mut self, at: usize, news: News) {
        match news {
            News::Ready(ready) => {
                let Some(link) = self.lanes[at].link() else { return };
                let mut result = ready.and_then(|()| link.receive());
                if link.is_logged_out() {
                    result = Err(Reason::Lost("the target ended the session".to_owned()));
                }
                // What ended before the session was lost has ended.
                while let Some(done) = self.lanes[at].link().and_then(Link::poll_done) {
                    self.handle_done(at, done);
                }
                if let Err(reason) = result {
                    self.lose(at, reason);
                }
            }
            News::Dialed(made) => self.take_session(at, made),
            News::Examined(Ok((link, probed))) => match probed.check_successor(&self.first) {
                Ok(()) => {
                    if probed.heard.cache_lost {
                        self.state.cache_losses.fetch_add(1, Ordering::AcqRel);
                    }
                    self.lanes[at].untold.store(false, Ordering::Release);
                    self.know(probed);
                    self.lanes[at].stage = Stage::Up(Box::new(link));
                }
                Err(reason) => {
                    drop(link);
                    self.lose(at, reason);
                }
            },
            News::Examined(Err(reason)) => self.lose(at, reason),
        }
    }

    /// A session was made, or not.
    fn take_session(&mut self, at: usize, made: Made) {
        let made = made.and_then(|(link, probed)| {
            probed.check_successor(&self.first)?;
            let (new, lane) = (link.portal_group(), &mut self.lanes[at]);
            match lane.group {
                Some(old) if old != new => Err(Reason::OtherPortalGroup { new, old }),
                Some(_) | None => Ok((link, probed)),
            }
        });
        let (link, probed) = match made {
            Ok(made) => made,
            Err(reason) => return self.fail(at, &reason),
        };
        let alone = !self.lanes.iter().any(Lane::is_connected);
        let lane = &mut self.lanes[at];
        // Any target tells a session that is new to it that it was powered on.
        let again = lane.group.replace(link.portal_group()).is_some();
        lane.stage = Stage::Up(Box::new(link));
        lane.suspect = false;
        let held = std::mem::take(&mut lane.held);
        lane.untold.store(false, Ordering::Release);
        // When the sessions before are gone, it is all that is known.
        if if again { probed.heard.may_have_lost_its_cache() } else { alone } {
            self.state.cache_losses.fetch_add(1, Ordering::AcqRel);
        }
        if again {
            self.state.reconnects.fetch_add(1, Ordering::AcqRel);
            tracing::info!(place = %self.place, session = at, "connected again");
        }
        self.know(probed);
        self.requests.release(held);
        self.down = None;
        self.state.connected.store(true, Ordering::Release);
    }

    /// Goes by what was found now.
    fn know(&mut self, probed: Probed) {
        let blocks = probed.profile.blocks;
        if blocks != self.first.profile.blocks {
            tracing::info!(place = %self.place, blocks, "disk has grown");
        }
        self.state.capacity.store(probed.profile.capacity(), Ordering::Release);
        self.profile = Profile {
            blocks: self.first.profile.blocks,
            flush_proven: self.profile.flush_proven,
            synchronize_cache: probed.profile.synchronize_cache && self.profile.synchronize_cache,
            ..probed.profile
        };
    }

    /// The link of a lane is gone; its socket closes before another one is opened.
    fn lose(&mut self, at: usize, reason: Reason) {
        tracing::warn!(place = %self.place, session = at, %reason, "session lost");
        let portals = self.dialer.portals();
        let lane = &mut self.lanes[at];
        let portal = lane.portal;
        lane.lose(portals);
        lane.held.extend(self.requests.hold_running(at));
        lane.suspect |= self.aborting.iter().any(|aborting| aborting.lane == at && aborting.writes);
        self.aborting.retain(|aborting| aborting.lane != at);
        self.controls.lose(at, &self.place);
        if matches!(reason, Reason::Fenced) {
            self.lanes[at].stage = Stage::GivenUp;
            return self.fence();
        }
        self.note_failure(portal, &reason);
    }

    /// No session could be made.
    fn fail(&mut self, at: usize, reason: &Reason) {
        tracing::debug!(place = %self.place, session = at, %reason, "no session yet");
        let portals = self.dialer.portals();
        let portal = self.lanes[at].portal;
        self.lanes[at].fail(portals);
        if matches!(reason, Reason::Fenced) {
            self.lanes[at].stage = Stage::GivenUp;
            return self.fence();
        }
        self.note_failure(portal, reason);
    }

    fn note_failure(&mut self, portal: usize, reason: &Reason) {
        if self.lanes.iter().any(Lane::is_connected) {
            return;
        }
        self.state.connected.store(false, Ordering::Release);
        let portals = self.dialer.portals();
        let down = self.down.get_or_insert_with(|| Down {
            since: Instant::now(),
            failure: String::new(),
            refused: vec![false; portals],
        });
        down.failure = reason.to_string();
        if let Some(refused) = down.refused.get_mut(portal) {
            *refused = reason.is_refusal();
        }
        if self.is_gone() {
            // Whoever waits has waited for the attempt that just failed.
            self.fail_idle();
        }
    }

    /// Whether the peer is surely not there, for longer than a restart takes.
    fn is_gone(&self) -> bool {
        let limit = self.dialer.config.refusal_limit;
        self.down.as_ref().is_some_and(|down| {
            down.refused.iter().all(|refused| *refused) && down.since.elapsed() >= limit
        })
    }

    /// Ends all requests that have nothing under way.
    fn fail_idle(&mut self) {
        for ticket in self.requests.idle() {
            let error = self.failure();
            let left = self.requests.finish(ticket, Err(error));
            self.leave(left);
        }
    }

    /// This side may not write any more: nothing is sent again, and nothing waits.
    fn fence(&mut self) {
        if !self.fenced {
            tracing::error!(place = %self.place, "fenced: another host has taken over");
            self.fenced = true;
            self.state.fenced.store(true, Ordering::Release);
        }
        self.fail_idle();
    }

    /// Why a request that is not carried out ends.
    fn failure(&self) -> IoError {
        let (place, limit) = (&self.place, self.dialer.config.request_timeout);
        if self.fenced {
            let text = format!("{place}: another host has taken over, and excludes this one");
            return IoError::with_detail(ErrorKind::Fenced, text);
        }
        match &self.down {
            Some(Down { failure, since, .. }) => {
                let text = format!("{place}: not reachable for {:?}: {failure}", since.elapsed());
                IoError::with_detail(ErrorKind::Unreachable, text)
            }
            None => {
                let text = format!("{place}: no answer within {limit:?}");
                IoError::with_detail(ErrorKind::Timeout, text)
            }
        }
    }

    fn take(&mut self, count: usize, messages: &mut Vec<Message>) {
        // Nothing means that all handles are gone.
        self.closed |= count == 0;
        let deadline = Instant::now() + self.dialer.config.request_timeout;
        for message in messages.drain(..) {
            match message {
                Message::Request(request) => self.requests.insert(request, deadline),
                Message::Control(control) => self.controls.insert(control, deadline, &self.place),
                Message::Close(done) => {
                    self.closed = true;
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

    /// Whether something that was given up may still change the disk.
    pub(super) fn is_barred(&self) -> bool {
        self.aborting.iter().any(|aborting| aborting.writes)
            || self.lanes.iter().any(|lane| lane.suspect)
    }

    /// The lane that takes the next command.
    fn roomy(&mut self) -> Option<usize> {
        let count = self.lanes.len();
        let lane = (0..count)
            .map(|step| (self.turn + step) % count)
            .find(|lane| self.lanes[*lane].capacity() > 0)?;
        self.turn = (lane + 1) % count;
        Some(lane)
    }

    /// Sends commands for the requests that are ready.
    fn issue(&mut self) {
        if self.fenced && self.requests.is_ready() {
            self.fail_idle();
            // None is left: what is popped has ended.
            while self.requests.pop_ready().is_some() {}
            return;
        }
        if self.is_barred() {
            return;
        }
        while self.requests.is_ready()
            && let Some(lane) = self.roomy()
            && let Some(ticket) = self.requests.pop_ready()
        {
            self.issue_one(ticket, lane);
        }
    }

    fn issue_one(&mut self, ticket: Ticket, at: usize) {
        let Some(pending) = self.requests.get(ticket) else { return };
        let request = &pending.request;
        let (op, offset, len, flags) = (request.op, request.offset, request.len, request.flags);
        let planned = disk::plan(&self.profile, op, offset, len, flags, pending.progress);
        let Some(planned) = planned else {
            let data = std::mem::take(&mut pending.data);
            self.requests.finish(ticket, Ok(data));
            return;
        };
        let data_out = match planned.out {
            Out::Nothing => SgList::new(),
            Out::Request { at: 0, len } if u64::from(len) == request.len => request.data.clone(),
            Out::Request { at, len } => {
                let at = usize::try_from(at).unwrap_or(usize::MAX);
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                request.data.slice(at..at.saturating_add(len))
            }
            Out::Zeros(len) => zeros(&mut self.zeros, len),
            Out::UnmapList(extent) => Buf::copy_from(&build::unmap_list(&[extent])).into(),
        };
        let command = Command {
            lun: LunField::from_number(self.dialer.config.uri.lun),
            cdb: planned.cdb,
            read_len: planned.read_len,
            write_len: planned.write_len,
        };
        let lane = &mut self.lanes[at];
        let Some(link) = lane.link() else { return self.requests.push_first(ticket) };
        let task = link.submit(command, data_out, ticket.tag());
        pending.running = Some(Running { planned, lane: at, task });
        lane.running += 1;
    }

    fn transmit(&mut self) {
        for at in 0..self.lanes.len() {
            if let Some(link) = self.lanes[at].link()
                && let Err(reason) = link.transmit()
            {
                self.lose(at, reason);
            }
        }
    }

    fn handle_done(&mut self, at: usize, done: Done) {
        self.lanes[at].running -= 1;
        self.aborting.retain(|aborting| aborting.lane != at || aborting.task != done.task);
        let ticket = Ticket::from_tag(done.tag);
        if ticket.is_control() {
            return self.handle_control_done(at, done);
        }
        // A request that expired meanwhile has ended.
        let Some(pending) = self.requests.get(ticket) else { return self.heed_late(at, &done.end) };
        let Some(Running { planned, .. }) = pending.running.take() else { return };
        match disk::judge(&done.end, planned.read_len, planned.write_len, &self.place) {
            Verdict::Success => {
                pending.progress = planned.then;
                self.profile.flush_proven |= planned.kind == Kind::Flush;
                if planned.kind == Kind::Read {
                    let data = done.data.map(BufMut::freeze).into_iter().collect();
                    if pending.data.is_empty() {
                        pending.data = data;
                    } else {
                        pending.data.append(data);
                    }
                }
                let request = &pending.request;
                let (op, offset, len) = (request.op, request.offset, request.len);
                let progress = pending.progress;
                let next = disk::plan(&self.profile, op, offset, len, request.flags, progress);
                if next.is_some() {
                    self.requests.push_first(ticket);
                } else {
                    let data = std::mem::take(&mut pending.data);
                    self.requests.finish(ticket, Ok(data));
                }
            }
            Verdict::Attention(attention) => {
                self.requests.push_first(ticket);
                self.heed(at, attention);
            }
            Verdict::Later => self.requests.push_later(ticket, Instant::now() + BUSY_PAUSE),
            Verdict::NotSupported { whole } => self.do_without(ticket, planned, whole, None),
            // A disk that takes WRITE SAME for something else than it is.
            Verdict::Mismatch(error) if planned.kind == Kind::WriteSame => {
                self.do_without(ticket, planned, false, Some(error));
            }
            Verdict::Mismatch(error) | Verdict::Fail(error) => {
                let fenced = error.kind() == ErrorKind::Fenced && self.controls.key().is_some();
                self.requests.finish(ticket, Err(error));
                if fenced {
                    self.fence();
                }
            }
        }
    }

    /// The disk does not do a command: another one, or the request fails.
    fn do_without(
        &mut self,
        ticket: Ticket,
        planned: Planned,
        whole: bool,
        error: Option<IoError>,
    ) {
        if !self.profile.do_without(planned.kind, whole) {
            let text = format!("{}: disk does not support {:?}", self.place, planned.kind);
            let error = error.unwrap_or_else(|| IoError::with_detail(ErrorKind::Unsupported, text));
            self.requests.finish(ticket, Err(error));
            return;
        }
        if planned.kind == Kind::Flush {
            tracing::warn!(
                place = %self.place,
                "disk has no command to flush; it is taken to have no volatile cache"
            );
        }
        self.requests.push_first(ticket);
    }

    /// A command that was given up has ended: what the disk tells by it, it tells nobody else.
    pub(super) fn heed_late(&mut self, at: usize, end: &TaskEnd) {
        if let Verdict::Attention(attention) = disk::judge(end, 0, 0, &self.place) {
            self.heed(at, attention);
        }
    }

    /// The disk told something.
    pub(super) fn heed(&mut self, at: usize, attention: Attention) {
        match attention {
            Attention::CacheLost => {
                self.state.cache_losses.fetch_add(1, Ordering::AcqRel);
                // A disk that was powered on may have come back as another one.
                self.lanes[at].examine = true;
            }
            Attention::Changed => self.lanes[at].examine = true,
            // The examination begins with the registration, where there is one.
            Attention::Reservations => self.lanes[at].examine |= self.lanes[at].registered,
            Attention::NexusLost | Attention::Other => {}
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
        self.requests.wake_delayed(now);
        while let Some(ticket) = self.requests.pop_expired(now) {
            let error = self.failure();
            let left = self.requests.finish(ticket, Err(error));
            self.leave(left);
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

    /// A request was ended of which something may still be under way.
    fn leave(&mut self, left: Option<Left>) {
        match left {
            None => {}
            Some(Left::Held(lane)) => self.lanes[lane].suspect = true,
            Some(Left::Running(Running { planned, lane, task })) => {
                self.abort(lane, task, planned.kind != Kind::Read);
            }
        }
    }

    fn abort(&mut self, lane: usize, task: TaskId, writes: bool) {
        if let Some(link) = self.lanes[lane].link() {
            let limit = Instant::now() + ABORT_LIMIT;
            self.aborting.push_back(Aborting { limit, lane, task, writes });
            link.abort(task);
        }
        // A command that never left ends by this alone.
        while let Some(done) = self.lanes[lane].link().and_then(Link::poll_done) {
            self.handle_done(lane, done);
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

/// A list of `len` zeros, which share memory.
fn zeros(kept: &mut Buf, len: u32) -> SgList {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    if kept.len() < len {
        *kept = BufMut::zeroed(len).freeze();
    }
    kept.slice(0..len).into()
}
