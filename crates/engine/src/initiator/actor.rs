//! The task that owns a session: requests in, commands out, and the session made again when it
//! is lost.
//!
//! ```text
//! caller -> queue -> requests: ready -> link (session, socket)
//!                       ^         ^        |
//!                       |         +- again +- ends
//!                       +- deadline, at the latest
//! ```
//!
//! Invariant: while the target has not confirmed that a timed-out command is dead, no other
//! command is sent, so that what the caller writes next cannot be overtaken by what it gave up.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use netraid_block::{Buf, BufMut, ErrorKind, IoError, SgList};
use netraid_iscsi_proto::{initiator::Command, machine::TaskId, pdu::LunField};
use netraid_scsi::cdb::build;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{
    Dialer, Message, State,
    disk::{self, Kind, Out, Profile, Verdict},
    error::Reason,
    link::{Done, Link},
    probe::Probed,
    requests::{Requests, Ticket},
};

const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// How long a busy disk is left alone.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// How long a target may take to abort a command before the session is dropped.
const ABORT_LIMIT: Duration = Duration::from_secs(1);
/// How long a logout may take.
const LOGOUT_LIMIT: Duration = Duration::from_secs(1);
/// Messages taken in one turn.
const MESSAGES_MAX: usize = 128;
/// The timer when there is nothing to wait for.
const FAR: Duration = Duration::from_secs(3600);

pub(super) struct Actor {
    dialer: Arc<Dialer>,
    /// What was found when the disk was connected first, which its users were told.
    first: Probed,
    profile: Profile,
    receiver: mpsc::UnboundedReceiver<Message>,
    state: Arc<State>,
    place: Arc<str>,
    requests: Requests,
    /// Commands that timed out, and until when the target has to abort them.
    aborting: VecDeque<(Instant, TaskId)>,
    closing: Vec<oneshot::Sender<()>>,
    /// No more requests will come.
    closed: bool,
    /// Why there is no session.
    failure: Option<String>,
    zeros: Buf,
}

/// How a session ended.
enum Ended {
    /// All is done.
    Closed,
    /// It was lost.
    Lost(Reason),
}

impl Actor {
    pub(super) fn new(
        dialer: Arc<Dialer>,
        probed: Probed,
        receiver: mpsc::UnboundedReceiver<Message>,
        state: Arc<State>,
        place: Arc<str>,
    ) -> Self {
        Self {
            dialer,
            profile: probed.profile.clone(),
            first: probed,
            receiver,
            state,
            place,
            requests: Requests::default(),
            aborting: VecDeque::new(),
            closing: Vec::new(),
            closed: false,
            failure: None,
            zeros: Buf::empty(),
        }
    }

    /// Serves requests until the handle is dropped or closed.
    pub(super) async fn run(mut self, link: Link) {
        let mut link = Some(link);
        while let Some(mut current) = link.take() {
            match self.serve(&mut current).await {
                Ended::Closed => current.log_out(LOGOUT_LIMIT).await,
                Ended::Lost(reason) => {
                    tracing::warn!(place = %self.place, %reason, "session lost");
                    self.state.connected.store(false, Ordering::Release);
                    self.failure = Some(reason.to_string());
                    self.aborting.clear();
                    self.requests.restart_running();
                    // The old socket closes before another one is opened.
                    drop(current);
                    link = self.reconnect().await;
                }
            }
        }
        self.state.connected.store(false, Ordering::Release);
        for done in self.closing {
            // Who asked may have gone.
            let _ = done.send(());
        }
    }

    /// Serves requests on a session until it ends.
    async fn serve(&mut self, link: &mut Link) -> Ended {
        let timer = tokio::time::sleep(FAR);
        tokio::pin!(timer);
        let mut messages = Vec::with_capacity(MESSAGES_MAX);
        loop {
            self.issue(link);
            if let Err(reason) = link.transmit() {
                return Ended::Lost(reason);
            }
            if link.is_logged_out() {
                return Ended::Lost(Reason::Lost("the target ended the session".to_owned()));
            }
            if self.closed && self.requests.is_empty() {
                return Ended::Closed;
            }
            let aborting = self.aborting.front().map(|(at, _)| *at);
            let wake = [link.next_timeout(), self.requests.next_wake(), aborting];
            if let Some(wake) = wake.into_iter().flatten().min()
                && (wake < timer.deadline() || timer.is_elapsed())
            {
                // A timer that fires early only asks again.
                timer.as_mut().reset(wake);
            }
            let result = tokio::select! {
                ready = link.ready() => match ready {
                    Ok(()) => link.receive(),
                    Err(reason) => Err(reason),
                },
                count = self.receiver.recv_many(&mut messages, MESSAGES_MAX), if !self.closed => {
                    self.take(count, &mut messages);
                    Ok(())
                }
                () = &mut timer => {
                    timer.as_mut().reset(Instant::now() + FAR);
                    let result = link.handle_timeout();
                    result.and_then(|()| self.expire(Some(link)))
                }
            };
            // What ended before the session was lost has ended.
            while let Some(done) = link.poll_done() {
                self.handle_done(done);
            }
            if let Err(reason) = result {
                return Ended::Lost(reason);
            }
        }
    }

    /// Makes the session again, while requests come and expire; `None` when nobody needs it any
    /// more.
    async fn reconnect(&mut self) -> Option<Link> {
        let mut backoff = BACKOFF_MIN;
        loop {
            let dialer = self.dialer.clone();
            let attempt = async move {
                tokio::time::sleep(backoff).await;
                dialer.dial().await
            };
            let reason = match self.meanwhile(attempt).await? {
                Ok((link, probed)) => match probed.check_successor(&self.first) {
                    Ok(()) => {
                        self.connected(probed);
                        return Some(link);
                    }
                    Err(reason) => reason,
                },
                Err(reason) => reason,
            };
            tracing::debug!(place = %self.place, %reason, "cannot connect again yet");
            self.failure = Some(reason.to_string());
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// Awaits `attempt` while requests come and expire; `None` when there is nothing left to do.
    async fn meanwhile<T>(&mut self, attempt: impl Future<Output = T>) -> Option<T> {
        let mut messages = Vec::with_capacity(MESSAGES_MAX);
        tokio::pin!(attempt);
        loop {
            if self.closed && self.requests.is_empty() {
                return None;
            }
            let wake = self.requests.next_wake().unwrap_or_else(|| Instant::now() + FAR);
            tokio::select! {
                result = &mut attempt => return Some(result),
                count = self.receiver.recv_many(&mut messages, MESSAGES_MAX), if !self.closed => {
                    self.take(count, &mut messages);
                }
                () = tokio::time::sleep_until(wake) => {
                    // Without a link there is nothing that could be lost.
                    let _ = self.expire(None);
                }
            }
        }
    }

    fn connected(&mut self, probed: Probed) {
        self.failure = None;
        self.profile = Profile {
            blocks: self.first.profile.blocks,
            flush_proven: self.profile.flush_proven,
            ..probed.profile
        };
        if probed.attention {
            self.state.cache_losses.fetch_add(1, Ordering::AcqRel);
        }
        self.state.reconnects.fetch_add(1, Ordering::AcqRel);
        self.state.connected.store(true, Ordering::Release);
        tracing::info!(place = %self.place, "connected again");
    }

    fn take(&mut self, count: usize, messages: &mut Vec<Message>) {
        // Nothing means that all handles are gone.
        self.closed |= count == 0;
        let deadline = Instant::now() + self.dialer.config.request_timeout;
        for message in messages.drain(..) {
            match message {
                Message::Request(request) => self.requests.insert(request, deadline),
                Message::Close(done) => {
                    self.closed = true;
                    self.closing.push(done);
                }
            }
        }
    }

    /// Sends commands for the requests that are ready.
    fn issue(&mut self, link: &mut Link) {
        while self.aborting.is_empty()
            && link.capacity() > 0
            && let Some(ticket) = self.requests.pop_ready()
        {
            self.issue_one(ticket, link);
        }
    }

    fn issue_one(&mut self, ticket: Ticket, link: &mut Link) {
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
            Out::Request => request.data.clone(),
            Out::Zeros(len) => zeros(&mut self.zeros, len),
            Out::UnmapList(extent) => Buf::copy_from(&build::unmap_list(&[extent])).into(),
        };
        let command = Command {
            lun: LunField::from_number(self.dialer.config.uri.lun),
            cdb: planned.cdb,
            read_len: planned.read_len,
            write_len: planned.write_len,
        };
        let task = link.submit(command, data_out, ticket.tag());
        pending.running = Some((planned, task));
    }

    fn handle_done(&mut self, done: Done) {
        self.aborting.retain(|(_, task)| *task != done.task);
        let ticket = Ticket::from_tag(done.tag);
        // A request that expired meanwhile has ended.
        let Some(pending) = self.requests.get(ticket) else { return };
        let Some((planned, _)) = pending.running.take() else { return };
        match disk::judge(&done.end, planned.read_len, planned.write_len, &self.place) {
            Verdict::Success => {
                pending.progress = planned.then;
                self.profile.flush_proven |= planned.kind == Kind::Flush;
                if planned.kind == Kind::Read {
                    pending.data = done.data.map(BufMut::freeze).into_iter().collect();
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
            Verdict::Attention { cache_lost } => {
                if cache_lost {
                    self.state.cache_losses.fetch_add(1, Ordering::AcqRel);
                }
                self.requests.push_first(ticket);
            }
            Verdict::Later => self.requests.push_later(ticket, Instant::now() + BUSY_PAUSE),
            Verdict::NotSupported { whole } if self.profile.do_without(planned.kind, whole) => {
                if planned.kind == Kind::Flush {
                    tracing::warn!(
                        place = %self.place,
                        "disk has no command to flush; it is taken to have no volatile cache"
                    );
                }
                self.requests.push_first(ticket);
            }
            Verdict::NotSupported { .. } => {
                let text = format!("{}: disk does not support {:?}", self.place, planned.kind);
                let error = IoError::with_detail(ErrorKind::Unsupported, text);
                self.requests.finish(ticket, Err(error));
            }
            Verdict::Fail(error) => {
                self.requests.finish(ticket, Err(error));
            }
        }
    }

    /// Ends what has no time left.
    fn expire(&mut self, mut link: Option<&mut Link>) -> Result<(), Reason> {
        let now = Instant::now();
        self.requests.wake_delayed(now);
        while let Some(ticket) = self.requests.pop_expired(now) {
            let limit = self.dialer.config.request_timeout;
            let error = match &self.failure {
                Some(failure) => {
                    let text = format!("{}: not reachable for {limit:?}: {failure}", self.place);
                    IoError::with_detail(ErrorKind::Unreachable, text)
                }
                None => {
                    let text = format!("{}: no answer within {limit:?}", self.place);
                    IoError::with_detail(ErrorKind::Timeout, text)
                }
            };
            let running = self.requests.finish(ticket, Err(error));
            if let (Some(task), Some(link)) = (running, link.as_deref_mut()) {
                self.aborting.push_back((now + ABORT_LIMIT, task));
                link.abort(task);
            }
        }
        match self.aborting.front() {
            Some((at, _)) if *at <= now => {
                Err(Reason::Lost("the target does not abort a command".to_owned()))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// A list of `len` zeros, which share memory.
fn zeros(kept: &mut Buf, len: u32) -> SgList {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    if kept.len() < len {
        *kept = BufMut::zeroed(len).freeze();
    }
    kept.slice(0..len).into()
}
