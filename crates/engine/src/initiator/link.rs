//! One session on its socket: the machine, and the buffers of its tasks.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use netraid_block::{Buf, BufMut, Pool, SgList, narrow};
use netraid_iscsi_proto::{
    chap::Algorithm,
    initiator::{Command, Event, FoundTarget, LoginError, Moves, Session, Setup, TaskEnd},
    machine::{Digests, Payload, Placement, TaskId},
    pdu::Bhs,
};
use tokio::{net::TcpStream, time::Instant};

use super::error::Reason;
use crate::wire::{Side, Wire, WireError};

/// How long what is queued may take to leave a session that ends.
const FLUSH_LIMIT: Duration = Duration::from_millis(200);

/// A command that has ended: the tag and the share of bulk that its owner gave it, how it ended, and what it read.
pub(super) struct Done {
    pub(super) task: TaskId,
    pub(super) tag: u64,
    pub(super) bulk: u64,
    pub(super) end: TaskEnd,
    pub(super) data: Option<BufMut>,
}

/// A session on its socket.
pub(super) struct Link {
    wire: Wire,
    /// Longest that a step of setting up may take.
    limit: Duration,
    core: Core,
}

/// All but the socket, as the receiver sees it.
struct Core {
    session: Session,
    slots: Vec<Slot>,
    pool: Pool,
    started: Instant,
    /// When what is taken from the socket was there: one reading of the clock for all of it.
    heard_at: Duration,
    done: VecDeque<Done>,
    /// Something came from the target that nobody has noted yet.
    has_news: bool,
    logged_in: bool,
    logged_out: bool,
    failure: Option<Reason>,
    found: Option<Vec<FoundTarget>>,
}

#[derive(Default)]
struct Slot {
    tag: u64,
    data_out: SgList,
    read_len: usize,
    data_in: Option<BufMut>,
    /// Bytes that count as bulk.
    bulk: u64,
}

impl Link {
    /// Connects and logs in. A target that breaks the login off after it took SHA-256 is tried
    /// again with MD5: tgt gives SHA-256's number to SHA-1.
    pub(super) async fn dial(
        host: &str,
        port: u16,
        setup: Arc<Setup>,
        pool: Pool,
    ) -> Result<Self, Reason> {
        let has_choice = setup.chap.is_some() && setup.algorithms.len() > 1;
        match Self::dial_once(host, port, setup.clone(), pool.clone()).await {
            Err(Reason::Login(LoginError::Refused { .. })) if has_choice => {
                let setup = Setup { algorithms: &[Algorithm::Md5], ..Setup::clone(&setup) };
                Self::dial_once(host, port, Arc::new(setup), pool).await
            }
            result => result,
        }
    }

    async fn dial_once(
        host: &str,
        port: u16,
        setup: Arc<Setup>,
        pool: Pool,
    ) -> Result<Self, Reason> {
        let limit = setup.login_timeout;
        let connect = tokio::time::timeout(limit, TcpStream::connect((host, port)));
        let stream = match connect.await {
            Err(_) => return Err(Reason::ConnectTimeout(limit)),
            Ok(Err(error)) => return Err(Reason::Connect(error)),
            Ok(Ok(stream)) => stream,
        };
        let wire = refuse_self(stream).and_then(Wire::new).map_err(Reason::Connect)?;
        let session = Session::new(Duration::ZERO, setup);
        let slots = (0..session.task_count()).map(|_| Slot::default()).collect();
        let mut link = Self {
            wire,
            limit,
            core: Core {
                session,
                slots,
                pool,
                started: Instant::now(),
                heard_at: Duration::ZERO,
                done: VecDeque::new(),
                has_news: false,
                logged_in: false,
                logged_out: false,
                failure: None,
                found: None,
            },
        };
        while !link.core.logged_in {
            if let Err(reason) = link.step().await {
                let silent = matches!(reason, Reason::Lost(_)) && link.core.silent_for(limit);
                return Err(if silent { Reason::Silent(limit) } else { reason });
            }
        }
        Ok(link)
    }

    /// Commands that may be submitted now.
    pub(super) fn capacity(&self) -> usize {
        self.core.session.capacity()
    }

    /// Submits a command; its end comes from [`Self::poll_done`] with `tag`.
    pub(super) fn submit(&mut self, command: Command, data_out: SgList, tag: u64) -> TaskId {
        assert_eq!(data_out.len() as u64, u64::from(command.write_len), "a command's data");
        // Only the first one of several begins a time.
        let is_first = self.core.session.is_idle();
        let now = if is_first { self.core.started.elapsed() } else { self.core.heard_at };
        let task = self.core.session.submit(now, command);
        let read_len = narrow(command.read_len);
        self.core.slots[task.index()] = Slot { tag, data_out, read_len, data_in: None, bulk: 0 };
        task
    }

    /// Notes how many bytes of a command that was submitted count as bulk.
    pub(super) fn set_bulk(&mut self, task: TaskId, bulk: u64) {
        self.core.slots[task.index()].bulk = bulk;
    }

    /// Asks the target to abort a task; its end comes as `Aborted`, or the link fails.
    pub(super) fn abort(&mut self, task: TaskId) {
        self.core.session.abort(task);
        self.core.handle_events();
    }

    /// Bytes that the target has sent or asked for of all commands there ever were.
    pub(super) const fn all_moved(&self) -> u64 {
        self.core.session.all_moves().bytes
    }

    /// Bytes that the target has sent or asked for of a command that has not ended, and when it did so last.
    pub(super) fn moves(&self, task: TaskId) -> (u64, Instant) {
        let Moves { bytes, last } = self.core.session.moves(task);
        (bytes, self.core.started + last)
    }

    /// Whether something came from the target since this was asked last.
    pub(super) const fn take_news(&mut self) -> bool {
        std::mem::replace(&mut self.core.has_news, false)
    }

    /// Whether a command has ended.
    pub(super) fn has_done(&self) -> bool {
        !self.core.done.is_empty()
    }

    /// The next command that has ended.
    pub(super) fn poll_done(&mut self) -> Option<Done> {
        self.core.done.pop_front()
    }

    /// Sends what the machine has, as far as the socket takes it.
    pub(super) fn transmit(&mut self) -> Result<(), Reason> {
        loop {
            let mut more = false;
            while self.wire.has_room()
                && let Some(transmit) = self.core.session.poll_transmit()
            {
                more = true;
                let body = match transmit.payload {
                    Payload::None => SgList::new(),
                    Payload::Control(bytes) => Buf::copy_from(&bytes).into(),
                    Payload::Task { task, offset, len } => self.core.data_out(task, offset, len),
                };
                self.wire.push(&transmit.header, body, transmit.digests);
            }
            // A queue that was full from the start says nothing about what the machine has.
            let exhausted = self.wire.has_room();
            if !self.wire.flush()? || (exhausted && !more) {
                return Ok(());
            }
        }
    }

    /// Waits until the socket can do what is wanted of it; nothing is lost when it is not polled
    /// to the end.
    pub(super) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Reason>> {
        let wants_input = self.core.session.wants_input();
        if self.wire.is_paused() && wants_input {
            return Poll::Ready(Ok(()));
        }
        self.wire.poll_ready(context, wants_input).map_err(|error| WireError::Io(error).into())
    }

    /// The target portal group that was logged in to, when the target named it.
    pub(super) const fn portal_group(&self) -> Option<u16> {
        self.core.session.portal_group()
    }

    /// Takes what the socket has.
    pub(super) fn receive(&mut self) -> Result<(), Reason> {
        self.core.heard_at = self.core.started.elapsed();
        let result = self.wire.receive(&mut self.core);
        // What the target said before it closed the connection tells more than the closing.
        match self.core.failure.take() {
            Some(reason) => Err(reason),
            None => result.map_err(Reason::from),
        }
    }

    /// When [`Self::handle_timeout`] is to be called.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.core.session.next_timeout().map(|at| self.core.started + at)
    }

    /// Time has passed.
    pub(super) fn handle_timeout(&mut self) -> Result<(), Reason> {
        let now = self.core.started.elapsed();
        if self.core.session.next_timeout().is_some_and(|at| at <= now) {
            self.core.session.handle_timeout(now)?;
        }
        Ok(())
    }

    /// Whether the session has ended in order.
    pub(super) fn is_logged_out(&self) -> bool {
        self.core.logged_out
    }

    /// Sends, waits, receives: for straight-line set-up code.
    pub(super) async fn step(&mut self) -> Result<(), Reason> {
        self.transmit()?;
        let until = self.next_timeout().unwrap_or_else(|| Instant::now() + FLUSH_LIMIT);
        let ready = poll_fn(|context| self.poll_ready(context));
        match tokio::time::timeout_at(until, ready).await {
            Ok(ready) => {
                ready?;
                self.receive()
            }
            Err(_) => self.handle_timeout(),
        }
    }

    /// Executes one command while nothing else is going on.
    pub(super) async fn execute(
        &mut self,
        command: Command,
        data_out: SgList,
    ) -> Result<(TaskEnd, Vec<u8>), Reason> {
        while self.capacity() == 0 {
            if self.is_logged_out() {
                return Err(Reason::Lost("the target ended the session".to_owned()));
            }
            self.step().await?;
        }
        self.submit(command, data_out, 0);
        loop {
            if let Some(done) = self.poll_done() {
                let data = done.data.map(|data| data.to_vec()).unwrap_or_default();
                return Ok((done.end, data));
            }
            self.step().await?;
        }
    }

    /// The targets that a discovery session finds.
    pub(super) async fn found(&mut self) -> Result<Vec<FoundTarget>, Reason> {
        let limit = self.limit;
        let all = async {
            loop {
                if let Some(found) = self.core.found.take() {
                    return Ok(found);
                }
                self.step().await?;
            }
        };
        tokio::time::timeout(limit, all).await.unwrap_or(Err(Reason::Silent(limit)))
    }

    /// Begins to end the session; it goes on until its commands have ended.
    pub(super) fn begin_logout(&mut self) {
        self.core.session.logout(self.core.started.elapsed());
    }

    /// Logs out, for a bounded time.
    pub(super) async fn log_out(mut self, limit: Duration) {
        self.begin_logout();
        let all = async { while !self.core.logged_out && self.step().await.is_ok() {} };
        // A target that does not answer is left alone.
        let _ = tokio::time::timeout(limit, all).await;
        self.wire.finish(FLUSH_LIMIT).await;
    }
}

/// A connection to a free port of this host can meet itself when the system chooses just that
/// port for its own end: then nobody listens there.
fn refuse_self(stream: TcpStream) -> io::Result<TcpStream> {
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

impl Core {
    /// Whether the time for the login is over.
    fn silent_for(&self, limit: Duration) -> bool {
        self.started.elapsed() >= limit
    }

    fn data_out(&self, task: TaskId, offset: u32, len: u32) -> SgList {
        let (offset, len): (usize, usize) = (narrow(offset), narrow(len));
        self.slots[task.index()].data_out.slice(offset..offset + len)
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::LoggedIn => self.logged_in = true,
                Event::LoginFailed(error) => self.failure = Some(Reason::Login(error)),
                Event::Found(found) => self.found = Some(found),
                Event::Completed { task, end } => {
                    let slot = std::mem::take(&mut self.slots[task.index()]);
                    let data = slot.data_in.map(|mut data| {
                        if let TaskEnd::Status { received, .. } = &end {
                            data.truncate(data.len().min(narrow(*received)));
                        }
                        data
                    });
                    let Slot { tag, bulk, .. } = slot;
                    self.done.push_back(Done { task, tag, bulk, end, data });
                }
                Event::AbortFailed(code) => {
                    self.failure = Some(Reason::Lost(format!("target does not abort: {code:?}")));
                }
                Event::Ending => tracing::debug!("target asks for the end of the session"),
                Event::LoggedOut => self.logged_out = true,
            }
        }
    }
}

impl Side for Core {
    fn receive_digests(&self) -> Digests {
        self.session.receive_digests()
    }

    fn wants_input(&self) -> bool {
        self.session.wants_input()
    }

    fn handle_header(&mut self, bhs: &Bhs) -> Result<Placement, WireError> {
        self.session.handle_header(self.heard_at, bhs)?;
        self.has_news = true;
        Ok(self.session.placement())
    }

    fn buffer(&mut self, task: TaskId) -> &mut [u8] {
        let slot = &mut self.slots[task.index()];
        let len = slot.read_len;
        slot.data_in.get_or_insert_with(|| self.pool.get(len))
    }

    fn handle_segment(&mut self, control: Option<&[u8]>) -> Result<(), WireError> {
        match control {
            Some(data) => self.session.handle_control(data)?,
            None => self.session.handle_data(),
        }
        self.handle_events();
        Ok(())
    }

    fn handle_bad_digest(&mut self, _bhs: &Bhs) -> Result<(), WireError> {
        Err(WireError::Digest("data"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_that_met_itself_is_refused() {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let itself = socket.local_addr().unwrap();
        let stream = socket.connect(itself).await.unwrap();
        assert_eq!(refuse_self(stream).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
