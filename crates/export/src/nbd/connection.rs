//! One client after its negotiation: requests in, replies out, in any order.
//!
//! One task owns the socket, the requests under way and the replies to be sent; ends of requests
//! come through a queue. Requests are taken only while their number and their bytes, up to the
//! reply's last byte, are within limits: a client that does not read its replies is not read from.

use std::{collections::VecDeque, io::IoSlice, sync::Arc, time::Duration};

use netraid_block::{Buf, Complete, DeviceInfo, IoError, Op, Pool, RequestFlags, SgList, narrow};
use tokio::{
    io::Interest,
    sync::{mpsc, watch},
    time::sleep,
};

use super::{
    PAYLOAD_LEN_MAX,
    budget::Share,
    errno::{EINVAL, EPERM, errno_of},
    meter::Meter,
    places::{Doing, Look},
    receive::{ReceiveError, Received, Receiver},
    stream::Stream,
    wire::{CMD_FLAG_DF, CMD_FLAG_FUA, CMD_FLAG_NO_HOLE, CommandType, ReplyHead, RequestHead},
};
use netraid_engine::bytes::{ByteDevice, ByteRequest, Port};

/// Most requests of one client under way.
const REQUESTS_MAX: usize = 256;
/// Most parts of one vectored write.
const SLICES_MAX: usize = 64;
/// Most requests taken before replies are sent.
const BATCH_MAX: usize = 64;
/// Longest text of an error, in bytes (NBD, string limits).
const TEXT_LEN_MAX: usize = 1024;
/// Pause before it is looked again whether others have given back what a request waits for.
const ROOM_PAUSE: Duration = Duration::from_millis(10);

/// A request under way.
#[derive(Debug, Clone, Copy)]
struct Pending {
    cookie: u64,
    op: Op,
    offset: u64,
    cost: u64,
    /// Answered only after a flush: a discard with FUA, which devices do not have.
    then_flush: bool,
}

struct Reply {
    head: ReplyHead,
    data: SgList,
    cost: u64,
}

/// A request whose payload is being received.
enum Incoming {
    Write(RequestHead),
    /// It is refused with this error number when its payload has been dropped.
    Refused(RequestHead, u32),
}

struct Ends(mpsc::UnboundedSender<(u64, Result<SgList, IoError>)>);

impl Complete for Ends {
    fn complete(&self, tag: u64, result: Result<SgList, IoError>) {
        // The connection is gone, and its client with it.
        let _ = self.0.send((tag, result));
    }
}

pub(super) struct Connection {
    stream: Stream,
    structured: bool,
    info: DeviceInfo,
    port: Port,
    ends: mpsc::UnboundedReceiver<(u64, Result<SgList, IoError>)>,
    receiver: Receiver,
    incoming: Option<Incoming>,
    /// A request for which there was no room yet; none is taken before it.
    held: Option<RequestHead>,
    /// Indexed by tag.
    pending: Vec<Option<Pending>>,
    free: Vec<u64>,
    /// Requests and bytes from their head to their reply's last byte.
    count: usize,
    share: Share,
    replies: VecDeque<Reply>,
    /// Bytes of the first reply that are sent.
    sent: usize,
    /// Bytes of all replies that are sent.
    sent_in_all: u64,
    asked: bool,
    wrote: bool,
    meter: Meter,
    /// No more requests are taken; what is under way is finished.
    closing: bool,
}

impl Connection {
    pub(super) fn new(
        stream: Stream,
        structured: bool,
        device: &ByteDevice,
        pool: Pool,
        (share, meter): (Share, Meter),
    ) -> Self {
        let (sender, ends) = mpsc::unbounded_channel();
        Self {
            stream,
            structured,
            info: device.device().info().clone(),
            port: device.port(Arc::new(Ends(sender))),
            ends,
            receiver: Receiver::new(pool),
            incoming: None,
            held: None,
            pending: vec![None; REQUESTS_MAX],
            free: (0..REQUESTS_MAX as u64).rev().collect(),
            count: 0,
            share,
            replies: VecDeque::with_capacity(REQUESTS_MAX),
            sent: 0,
            sent_in_all: 0,
            asked: false,
            wrote: false,
            meter,
            closing: false,
        }
    }

    /// Serves the client until it leaves or `stop` says so; then finishes what is under way.
    pub(super) async fn run(mut self, mut stop: watch::Receiver<bool>) -> Result<(), ReceiveError> {
        loop {
            let more = self.receive()?;
            while let Ok((tag, result)) = self.ends.try_recv() {
                self.finish(tag, result);
            }
            self.send()?;
            if self.closing && self.count == 0 {
                return Ok(());
            }
            if more {
                // Let other connections have their turn.
                tokio::task::yield_now().await;
                continue;
            }
            let interest = self.interest();
            let (doing, moved, keeps) = (self.doing(), self.moved(), self.share.bytes());
            self.meter.tell(Look { doing, moved, keeps });
            tokio::select! {
                end = self.ends.recv() => {
                    if let Some((tag, result)) = end {
                        self.finish(tag, result);
                    }
                }
                ready = self.stream.ready(interest.unwrap_or(Interest::WRITABLE)),
                    if interest.is_some() => drop(ready?),
                // Made only where it is polled.
                () = async { sleep(ROOM_PAUSE).await }, if self.held.is_some() => {}
                _ = stop.wait_for(|stop| *stop), if !self.closing => self.stop(),
            }
        }
    }

    /// Takes no more requests; one whose payload is still coming was never begun.
    fn stop(&mut self) {
        self.closing = true;
        self.held = None;
        if self.incoming.take().is_some() {
            self.count -= 1;
        }
    }

    /// What the connection does while it waits.
    fn doing(&self) -> Doing {
        if !self.replies.is_empty() || self.incoming.is_some() {
            Doing::WaitsForClient
        } else if self.count > 0 || self.held.is_some() {
            Doing::Works
        } else if self.wrote {
            Doing::IdleWriter
        } else if self.asked {
            Doing::Idle
        } else {
            Doing::Silent
        }
    }

    /// Bytes that were exchanged with the client.
    const fn moved(&self) -> u64 {
        self.receiver.received() + self.sent_in_all
    }

    /// What the socket is waited for.
    fn interest(&self) -> Option<Interest> {
        let read = self.may_receive().then_some(Interest::READABLE);
        let write = (!self.replies.is_empty()).then_some(Interest::WRITABLE);
        match (read, write) {
            (Some(read), Some(write)) => Some(read | write),
            (one, other) => one.or(other),
        }
    }

    fn may_receive(&self) -> bool {
        let may_begin = self.held.is_none() && self.count < REQUESTS_MAX;
        !self.closing && (self.incoming.is_some() || may_begin)
    }

    /// Takes requests that have arrived; true when there may be more.
    fn receive(&mut self) -> Result<bool, ReceiveError> {
        if let Some(held) = self.held.take() {
            self.handle_head(held)?;
        }
        for _ in 0..BATCH_MAX {
            if !self.may_receive() {
                return Ok(false);
            }
            match self.receiver.poll(&self.stream)? {
                Received::Head(head) => self.handle_head(head)?,
                Received::Payload(data) => self.handle_payload(data),
                Received::Nothing => return Ok(false),
            }
        }
        Ok(true)
    }

    fn handle_head(&mut self, head: RequestHead) -> Result<(), ReceiveError> {
        let allowed = match head.command {
            CommandType::Disconnect => {
                self.closing = true;
                return Ok(());
            }
            CommandType::Read => CMD_FLAG_DF | CMD_FLAG_FUA,
            CommandType::WriteZeroes => CMD_FLAG_FUA | CMD_FLAG_NO_HOLE,
            CommandType::Write | CommandType::Flush | CommandType::Trim => CMD_FLAG_FUA,
            CommandType::Other(_) => 0,
        };
        let has_payload = head.command == CommandType::Write;
        let too_long = matches!(head.command, CommandType::Read | CommandType::Write)
            && head.len > PAYLOAD_LEN_MAX;
        if too_long && has_payload {
            // Nobody sends that much in earnest: it is not worth reading.
            return Err(ReceiveError::Closed);
        }
        let known = !matches!(head.command, CommandType::Other(_));
        let errno = if !known || too_long || head.flags & !allowed != 0 {
            Some(EINVAL)
        } else if self.info.read_only && is_write(head.command) {
            Some(EPERM)
        } else {
            None
        };
        let keeps_bytes =
            errno.is_none() && matches!(head.command, CommandType::Read | CommandType::Write);
        if keeps_bytes && !self.share.take(u64::from(head.len)) {
            self.held = Some(head);
            return Ok(());
        }
        self.count += 1;
        self.asked = true;
        self.wrote |= errno.is_none() && is_write(head.command) && head.len > 0;
        match (has_payload && head.len > 0, errno) {
            (true, _) => {
                self.receiver.expect(head.len as usize, errno.is_none());
                self.incoming = Some(match errno {
                    Some(errno) => Incoming::Refused(head, errno),
                    None => Incoming::Write(head),
                });
            }
            (false, Some(errno)) => self.refuse(head, errno),
            (false, None) => self.submit(head, SgList::new()),
        }
        Ok(())
    }

    fn handle_payload(&mut self, data: SgList) {
        match self.incoming.take() {
            Some(Incoming::Write(head)) => self.submit(head, data),
            Some(Incoming::Refused(head, errno)) => self.refuse(head, errno),
            None => unreachable!("payload was expected for a request"),
        }
    }

    fn submit(&mut self, head: RequestHead, data: SgList) {
        let (op, len) = match head.command {
            CommandType::Read => (Op::Read, u64::from(head.len)),
            CommandType::Write => (Op::Write, u64::from(head.len)),
            CommandType::Trim => (Op::Discard, u64::from(head.len)),
            CommandType::WriteZeroes => (Op::WriteZeroes, u64::from(head.len)),
            CommandType::Flush | CommandType::Disconnect | CommandType::Other(_) => (Op::Flush, 0),
        };
        let cost = match op {
            // Counted when the head came.
            Op::Read | Op::Write => len,
            Op::Flush | Op::Discard | Op::WriteZeroes | Op::Extents => 0,
        };
        let Some(tag) = self.free.pop() else {
            unreachable!("requests are counted against the number of tags")
        };
        let offset = if op == Op::Flush { 0 } else { head.offset };
        let slot: usize = narrow(tag);
        let fua = head.flags & CMD_FLAG_FUA != 0;
        let then_flush = fua && op == Op::Discard;
        self.pending[slot] = Some(Pending { cookie: head.cookie, op, offset, cost, then_flush });
        let flags = RequestFlags {
            fua: fua && matches!(op, Op::Write | Op::WriteZeroes),
            no_unmap: op == Op::WriteZeroes && head.flags & CMD_FLAG_NO_HOLE != 0,
        };
        self.port.submit(ByteRequest { op, offset, len, flags, data }, tag);
    }

    /// Queues the reply to a request that was never submitted.
    fn refuse(&mut self, head: RequestHead, errno: u32) {
        let reply = if self.structured && head.command == CommandType::Read {
            ReplyHead::error_chunk(head.cookie, errno, 0)
        } else {
            ReplyHead::simple(head.cookie, errno)
        };
        self.replies.push_back(Reply { head: reply, data: SgList::new(), cost: 0 });
    }

    /// Queues the reply to a request that has ended, or begins the flush that it waits for.
    fn finish(&mut self, tag: u64, result: Result<SgList, IoError>) {
        let slot: usize = narrow(tag);
        let Some(pending) = self.pending[slot].take() else { unreachable!("a request ends once") };
        if pending.then_flush && result.is_ok() {
            self.pending[slot] = Some(Pending { then_flush: false, ..pending });
            let flags = RequestFlags::default();
            let data = SgList::new();
            self.port.submit(ByteRequest { op: Op::Flush, offset: 0, len: 0, flags, data }, tag);
            return;
        }
        let Pending { cookie, op, offset, cost, .. } = pending;
        self.free.push(tag);
        let structured = self.structured && op == Op::Read;
        let (head, data) = match result {
            Ok(data) if structured => {
                // The length is the request's, which has 32 bits.
                (ReplyHead::data_chunk(cookie, offset, narrow(data.len())), data)
            }
            Ok(data) => (ReplyHead::simple(cookie, 0), data),
            Err(error) => {
                tracing::debug!(?op, offset, %error, "request failed");
                let errno = errno_of(error.kind(), op);
                if structured {
                    let text = text_of(&error);
                    (ReplyHead::error_chunk(cookie, errno, narrow(text.len())), text.into())
                } else {
                    (ReplyHead::simple(cookie, errno), SgList::new())
                }
            }
        };
        self.replies.push_back(Reply { head, data, cost });
    }

    /// Sends replies until the socket takes no more.
    fn send(&mut self) -> Result<(), ReceiveError> {
        while !self.replies.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = gather(&self.replies, self.sent, &mut slices);
            match self.stream.try_write(&slices[..count])? {
                Some(written) => self.advance(written),
                None => break,
            }
        }
        Ok(())
    }

    fn advance(&mut self, written: usize) {
        self.sent += written;
        self.sent_in_all += written as u64;
        while let Some(first) = self.replies.front() {
            let len = first.head.bytes().len() + first.data.len();
            if self.sent < len {
                break;
            }
            self.sent -= len;
            self.share.give_back(first.cost);
            self.count -= 1;
            self.replies.pop_front();
        }
    }
}

const fn is_write(command: CommandType) -> bool {
    match command {
        CommandType::Write | CommandType::Trim | CommandType::WriteZeroes => true,
        CommandType::Read
        | CommandType::Disconnect
        | CommandType::Flush
        | CommandType::Other(_) => false,
    }
}

/// Fills `slices` with what is to be sent after the first `sent` bytes; answers how many.
fn gather<'a>(replies: &'a VecDeque<Reply>, sent: usize, slices: &mut [IoSlice<'a>]) -> usize {
    let parts = replies.iter().flat_map(|reply| {
        std::iter::once(reply.head.bytes()).chain(reply.data.parts().iter().map(|part| &**part))
    });
    let (mut count, mut skip) = (0, sent);
    for part in parts {
        if count == slices.len() {
            break;
        }
        if skip >= part.len() {
            skip -= part.len();
            continue;
        }
        slices[count] = IoSlice::new(&part[skip..]);
        (count, skip) = (count + 1, 0);
    }
    count
}

/// An error's text, as far as it may be sent.
fn text_of(error: &IoError) -> Buf {
    let text = error.to_string();
    let end = text.floor_char_boundary(TEXT_LEN_MAX);
    Buf::copy_from(&text.as_bytes()[..end])
}
