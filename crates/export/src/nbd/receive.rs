//! Requests from a socket: heads through a small buffer, payload straight into pool buffers.

use std::io::{self, IoSliceMut};

use netraid_block::{BufMut, Pool, SgList};

use super::{
    stream::Stream,
    wire::{REQUEST_LEN, RequestHead},
};

/// Bytes read ahead; what of them is payload is copied once more.
const AHEAD_LEN: usize = 32 << 10;
/// Length of one buffer of payload: the largest that pools keep.
const PART_LEN: usize = 2 << 20;
/// Length of the one buffer of payload that is dropped.
const DROPPED_LEN: usize = 64 << 10;

/// What was received.
#[derive(Debug)]
pub(super) enum Received {
    /// The head of a request whose payload, if any, comes next.
    Head(RequestHead),
    /// All payload that `expect` announced.
    Payload(SgList),
    /// Nothing more for now.
    Nothing,
}

/// Why a connection ends without a word.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    #[error("request does not begin with its magic number")]
    Magic,
    #[error("closed by the client")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The receiving half of a connection.
pub(super) struct Receiver {
    ahead: Box<[u8]>,
    start: usize,
    end: usize,
    payload: Option<Payload>,
    pool: Pool,
    /// Bytes that were read from the socket.
    received: u64,
}

struct Payload {
    list: SgList,
    /// The part that is being filled, and how far.
    part: BufMut,
    filled: usize,
    /// Bytes after this part.
    left: usize,
    keep: bool,
}

impl Receiver {
    pub(super) fn new(pool: Pool) -> Self {
        let ahead = vec![0; AHEAD_LEN].into();
        Self { ahead, start: 0, end: 0, payload: None, pool, received: 0 }
    }

    /// Bytes that were received.
    pub(super) const fn received(&self) -> u64 {
        self.received
    }

    /// Announces that `len` bytes of payload come next; they are kept, or read and dropped.
    /// Memory is taken as they arrive, a part at a time.
    pub(super) fn expect(&mut self, len: usize, keep: bool) {
        let part_len = len.min(if keep { PART_LEN } else { DROPPED_LEN });
        let part = self.pool.get(part_len);
        let left = len - part_len;
        self.payload = Some(Payload { list: SgList::new(), part, filled: 0, left, keep });
    }

    /// The next thing that has arrived; reads from the socket where the buffer has too little.
    pub(super) fn poll(&mut self, stream: &Stream) -> Result<Received, ReceiveError> {
        loop {
            if let Some(received) = self.take()? {
                return Ok(received);
            }
            if !self.fill(stream)? {
                return Ok(Received::Nothing);
            }
        }
    }

    /// What the buffered bytes hold.
    fn take(&mut self) -> Result<Option<Received>, ReceiveError> {
        while let Some(payload) = &mut self.payload {
            let count = (payload.part.len() - payload.filled).min(self.end - self.start);
            payload.part[payload.filled..payload.filled + count]
                .copy_from_slice(&self.ahead[self.start..self.start + count]);
            payload.filled += count;
            self.start += count;
            if payload.filled < payload.part.len() {
                return Ok(None);
            }
            if let Some(list) = self.next_part() {
                return Ok(Some(Received::Payload(list)));
            }
        }
        let Some(bytes) = self.ahead[self.start..self.end].first_chunk::<REQUEST_LEN>() else {
            return Ok(None);
        };
        let head = RequestHead::decode(bytes).ok_or(ReceiveError::Magic)?;
        self.start += REQUEST_LEN;
        Ok(Some(Received::Head(head)))
    }

    /// Goes on to the next part of the payload; answers all of it when there is none.
    fn next_part(&mut self) -> Option<SgList> {
        let Payload { mut list, part, left, keep, .. } = self.payload.take()?;
        if !keep && left > 0 {
            // The same memory takes what is dropped.
            let mut part = part;
            part.truncate(part.len().min(left));
            let left = left - part.len();
            self.payload = Some(Payload { list, part, filled: 0, left, keep });
            return None;
        }
        if keep {
            list.push(part.freeze());
        }
        if left == 0 {
            return Some(list);
        }
        let part_len = left.min(PART_LEN);
        let part = self.pool.get(part_len);
        self.payload = Some(Payload { list, part, filled: 0, left: left - part_len, keep });
        None
    }

    /// Reads once; false when nothing is there.
    fn fill(&mut self, stream: &Stream) -> Result<bool, ReceiveError> {
        self.ahead.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let ahead = &mut self.ahead[self.end..];
        let (direct, count) = match &mut self.payload {
            // Bytes after the last part are the next request; before it they are payload too.
            Some(Payload { part, filled, left: 0, .. }) => {
                let direct = part.len() - *filled;
                let part = IoSliceMut::new(&mut part[*filled..]);
                (direct, stream.try_read(&mut [part, IoSliceMut::new(ahead)])?)
            }
            Some(Payload { part, filled, .. }) => {
                let direct = part.len() - *filled;
                (direct, stream.try_read(&mut [IoSliceMut::new(&mut part[*filled..])])?)
            }
            None => (0, stream.try_read(&mut [IoSliceMut::new(ahead)])?),
        };
        let Some(count) = count else { return Ok(false) };
        if count == 0 {
            return Err(ReceiveError::Closed);
        }
        self.received += count as u64;
        if let Some(payload) = &mut self.payload {
            payload.filled += count.min(direct);
        }
        self.end += count.saturating_sub(direct);
        Ok(true)
    }
}
