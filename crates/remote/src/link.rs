//! One session on its connection: the machine of the protocol, and the buffers of its commands.

use alloc::{collections::VecDeque, format, string::ToString, sync::Arc, vec::Vec};
use core::time::Duration;

use netraid_block::{Buf, BufMut, Pool, SgList, narrow};
use netraid_iscsi_proto::{
    framing::{Broken, Outgoing, Side},
    initiator::{Command, Event, FoundTarget, Moves, Session, Setup, TaskEnd},
    machine::{Digests, Fatal, Payload, Placement, TaskId},
    pdu::Bhs,
};

use crate::{Reason, interface::Transmit};

/// A session, to which its connection's [`netraid_iscsi_proto::framing::Incoming`] gives what is received.
pub struct Link {
    session: Session,
    slots: Vec<Slot>,
    pool: Pool,
    /// When what is received now was there.
    heard_at: Duration,
    done: VecDeque<Done>,
    /// Something came from the target that nobody has noted yet.
    has_news: bool,
    is_logged_in: bool,
    is_logged_out: bool,
    /// The target asked for the end of the session, and nobody has noted it yet.
    is_asked_to_end: bool,
    failure: Option<Reason>,
    found: Option<Vec<FoundTarget>>,
}

/// A command that has ended: the tag and the share of bulk that its owner gave it, how it ended, and what it read.
pub(crate) struct Done {
    pub(crate) task: TaskId,
    pub(crate) tag: u64,
    pub(crate) bulk: u64,
    pub(crate) end: TaskEnd,
    pub(crate) data: Option<BufMut>,
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
    /// A session on a connection that was made `now`; its login begins.
    pub(crate) fn new(now: Duration, setup: Arc<Setup>, pool: Pool) -> Self {
        let session = Session::new(now, setup);
        let slots = (0..session.task_count()).map(|_| Slot::default()).collect();
        Self {
            session,
            slots,
            pool,
            heard_at: now,
            done: VecDeque::new(),
            has_news: false,
            is_logged_in: false,
            is_logged_out: false,
            is_asked_to_end: false,
            failure: None,
            found: None,
        }
    }

    /// What is received from here on was there `now`.
    #[inline]
    pub(crate) const fn hear(&mut self, now: Duration) -> &mut Self {
        self.heard_at = now;
        self
    }

    /// What the target said before it closed the connection tells more than the closing.
    #[inline]
    pub(crate) fn end_of_input(&mut self, end: Result<(), Reason>) -> Result<(), Reason> {
        match self.failure.take() {
            Some(reason) => Err(reason),
            None => end,
        }
    }

    /// Commands that may be submitted now.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.session.capacity()
    }

    /// Submits a command; its end comes from [`Self::poll_done`] with `tag`.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        now: Duration,
        command: Command,
        data_out: SgList,
        tag: u64,
    ) -> TaskId {
        assert_eq!(data_out.len() as u64, u64::from(command.write_len), "a command's data");
        let task = self.session.submit(now, command);
        let read_len = narrow(command.read_len);
        self.slots[task.index()] = Slot { tag, data_out, read_len, data_in: None, bulk: 0 };
        task
    }

    /// Notes how many bytes of a command that was submitted count as bulk.
    #[inline]
    pub(crate) fn set_bulk(&mut self, task: TaskId, bulk: u64) {
        self.slots[task.index()].bulk = bulk;
    }

    /// Asks the target to abort a task; its end comes as `Aborted`, or the link fails.
    pub(crate) fn abort(&mut self, task: TaskId) {
        self.session.abort(task);
        self.handle_events();
    }

    /// Bytes that the target has sent or asked for of all commands there ever were.
    #[inline]
    pub(crate) const fn all_moved(&self) -> u64 {
        self.session.all_moves().bytes
    }

    /// What the target has sent or asked for of a command that has not ended.
    pub(crate) fn moves(&self, task: TaskId) -> Moves {
        self.session.moves(task)
    }

    /// Whether something came from the target since this was asked last.
    #[inline]
    pub(crate) const fn take_news(&mut self) -> bool {
        core::mem::replace(&mut self.has_news, false)
    }

    /// Whether the target has asked for the end of the session since this was asked last.
    #[inline]
    pub(crate) const fn take_asked_to_end(&mut self) -> bool {
        core::mem::replace(&mut self.is_asked_to_end, false)
    }

    /// Whether a command has ended.
    #[inline]
    pub(crate) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// The next command that has ended.
    #[inline]
    pub(crate) fn poll_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// Queues what there is to send while there is room for it; whether there was anything.
    #[inline]
    pub(crate) fn transmit(&mut self, outgoing: &mut Outgoing) -> bool {
        let mut is_any = false;
        while outgoing.has_room()
            && let Some(transmit) = self.session.poll_transmit()
        {
            is_any = true;
            let body = self.body(transmit.payload);
            outgoing.push(&transmit.header, body, transmit.digests);
        }
        is_any
    }

    /// The next PDU to send.
    #[inline]
    pub(crate) fn poll_transmit(&mut self) -> Option<Transmit> {
        let transmit = self.session.poll_transmit()?;
        let body = self.body(transmit.payload);
        Some(Transmit { header: transmit.header, body, digests: transmit.digests })
    }

    /// The target portal group that was logged in to, when the target named it.
    pub(crate) const fn portal_group(&self) -> Option<u16> {
        self.session.portal_group()
    }

    /// When [`Self::handle_timeout`] is to be called.
    #[inline]
    pub(crate) fn next_timeout(&self) -> Option<Duration> {
        self.session.next_timeout()
    }

    /// Time has passed.
    pub(crate) fn handle_timeout(&mut self, now: Duration) -> Result<(), Reason> {
        if self.session.next_timeout().is_some_and(|at| at <= now) {
            self.session.handle_timeout(now)?;
        }
        Ok(())
    }

    /// Whether the target has let this side in.
    pub(crate) const fn is_logged_in(&self) -> bool {
        self.is_logged_in
    }

    /// Whether the session has ended in order.
    #[inline]
    pub(crate) const fn is_logged_out(&self) -> bool {
        self.is_logged_out
    }

    /// The targets that a discovery session has found.
    pub(crate) const fn take_found(&mut self) -> Option<Vec<FoundTarget>> {
        self.found.take()
    }

    /// Begins to end the session; it goes on until its commands have ended.
    pub(crate) fn begin_logout(&mut self, now: Duration) {
        self.session.logout(now);
    }

    /// The data segment of a PDU that is sent.
    #[inline]
    fn body(&self, payload: Payload) -> SgList {
        match payload {
            Payload::None => SgList::new(),
            Payload::Control(bytes) => Buf::copy_from(&bytes).into(),
            Payload::Task { task, offset, len } => self.data_out(task, offset, len),
        }
    }

    #[inline]
    fn data_out(&self, task: TaskId, offset: u32, len: u32) -> SgList {
        let (offset, len): (usize, usize) = (narrow(offset), narrow(len));
        self.slots[task.index()].data_out.slice(offset..offset + len)
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::LoggedIn => self.is_logged_in = true,
                Event::LoginFailed(error) => self.failure = Some(Reason::Login(error)),
                Event::Found(found) => self.found = Some(found),
                Event::Completed { task, end } => self.end_task(task, end),
                Event::AbortFailed(code) => {
                    self.failure = Some(Reason::Lost(format!("target does not abort: {code:?}")));
                }
                Event::Ending => self.is_asked_to_end = true,
                Event::LoggedOut => self.is_logged_out = true,
            }
        }
    }

    #[inline]
    fn end_task(&mut self, task: TaskId, end: TaskEnd) {
        let Slot { tag, data_in, bulk, .. } = core::mem::take(&mut self.slots[task.index()]);
        let data = data_in.map(|mut data| {
            if let TaskEnd::Status { received, .. } = &end {
                data.truncate(data.len().min(narrow(*received)));
            }
            data
        });
        self.done.push_back(Done { task, tag, bulk, end, data });
    }
}

impl Side for Link {
    #[inline]
    fn receive_digests(&self) -> Digests {
        self.session.receive_digests()
    }

    #[inline]
    fn wants_input(&self) -> bool {
        self.session.wants_input()
    }

    #[inline]
    fn handle_header(&mut self, bhs: &Bhs) -> Result<Placement, Broken> {
        self.session.handle_header(self.heard_at, bhs)?;
        self.has_news = true;
        Ok(self.session.placement())
    }

    #[inline]
    fn buffer(&mut self, task: TaskId) -> &mut [u8] {
        let slot = &mut self.slots[task.index()];
        let len = slot.read_len;
        slot.data_in.get_or_insert_with(|| self.pool.get(len))
    }

    #[inline]
    fn handle_segment(&mut self, control: Option<&[u8]>) -> Result<(), Broken> {
        match control {
            Some(data) => self.session.handle_control(data)?,
            None => self.session.handle_data(),
        }
        self.handle_events();
        Ok(())
    }

    fn handle_bad_digest(&mut self, _bhs: &Bhs) -> Result<(), Broken> {
        Err(Broken::Digest("data"))
    }
}

impl From<Fatal> for Reason {
    fn from(error: Fatal) -> Self {
        Self::Lost(error.to_string())
    }
}
