//! Users' requests: cut into operations, a bounded number at a time, and ended.

use alloc::vec::Vec;
use core::ops::Range;

use netraid_block::{ErrorKind, IoError, Op as UserOp};

use super::{
    Action, ArrayMachine, BufferId, Life, RequestId, Source, UserRequest,
    op::{OpId, OpKind, Owner},
};

/// Operations of one request in flight at a time; large discards have millions.
const OPS_PER_REQUEST: u32 = 128;

#[derive(Debug)]
pub(super) struct Request {
    pub(super) user: UserRequest,
    /// First byte for which no operation was started.
    next: u64,
    /// Operations and member flushes in flight.
    outstanding: u32,
    error: Option<IoError>,
    /// Sources of each piece of a read, in order.
    reply: Vec<Vec<Source>>,
    /// Buffers that the reply refers to.
    buffers: Vec<BufferId>,
}

impl ArrayMachine {
    /// Takes a user's request, checked at the seam: in range, aligned, allowed.
    ///
    /// # Panics
    /// When the number is in use, the range is wrong, or the array is not open.
    pub fn handle_request(&mut self, id: RequestId, user: UserRequest) {
        let end = user.offset.checked_add(user.len);
        assert!(end.is_some_and(|end| end <= self.geometry.capacity()), "request out of range");
        let block = u64::from(self.geometry.block_len());
        assert!((user.offset | user.len).is_multiple_of(block), "unaligned");
        assert!(matches!(self.life, Life::Open), "request to an array that is not open");
        if let Some(error) = self.refusal(&user) {
            self.immediate.push_back(Action::Complete { request: id, result: Err(error) });
            return;
        }
        let request = Request {
            user,
            next: user.offset,
            outstanding: 0,
            error: None,
            reply: Vec::new(),
            buffers: Vec::new(),
        };
        assert!(self.requests.insert(id, request).is_none(), "request number in use");
        if user.op == UserOp::Flush {
            self.start_flush(id);
        } else {
            self.dispatch(id);
        }
        self.run();
    }

    fn refusal(&self, user: &UserRequest) -> Option<IoError> {
        if let Some(error) = &self.failed {
            return Some(error.clone());
        }
        if user.op == UserOp::Extents {
            return Some(ErrorKind::Unsupported.into());
        }
        (self.read_only && user.op.changes()).then(|| ErrorKind::ReadOnly.into())
    }

    /// Starts operations for the request while it may have more in flight.
    fn dispatch(&mut self, id: RequestId) {
        loop {
            let Some(request) = self.requests.get_mut(&id) else { return };
            let user = request.user;
            let end = user.offset + user.len;
            if request.next >= end || request.error.is_some() {
                break;
            }
            if request.outstanding >= OPS_PER_REQUEST {
                return;
            }
            let stripe_len = self.geometry.stripe_data_len();
            let stripe = request.next / stripe_len;
            let base = stripe * stripe_len;
            let range = request.next - base..(end - base).min(stripe_len);
            request.next = base + range.end;
            if matches!(user.op, UserOp::Discard | UserOp::WriteZeroes) && !user.no_unmap {
                self.skip_unwritten(id, stripe);
            }
            self.start_piece(id, &user, stripe, range);
        }
        self.finish_if_done(id);
    }

    /// Lets discards pass over stripes that hold nothing.
    fn skip_unwritten(&mut self, id: RequestId, stripe: u64) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let end = request.user.offset + request.user.len;
        let next = self.written.next_written(stripe + 1);
        let next = next.map_or(end, |next| (next * self.geometry.stripe_data_len()).min(end));
        request.next = request.next.max(next);
    }

    fn start_piece(&mut self, id: RequestId, user: &UserRequest, stripe: u64, range: Range<u64>) {
        let whole = range == (0..self.geometry.stripe_data_len());
        let written = self.written.get(stripe);
        let kind = match user.op {
            UserOp::Read => OpKind::Read,
            UserOp::Write => OpKind::Write,
            UserOp::WriteZeroes if user.no_unmap => OpKind::Write,
            UserOp::WriteZeroes | UserOp::Discard if whole && written => OpKind::Clear,
            UserOp::WriteZeroes if written => OpKind::Write,
            // Zeros already, or too small a part to give back.
            UserOp::WriteZeroes | UserOp::Discard => return,
            UserOp::Flush => unreachable!("a flush has no pieces"),
            UserOp::Extents => unreachable!("what the array does not do was refused"),
        };
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.outstanding += 1;
        let piece = request.reply.len();
        if kind == OpKind::Read {
            request.reply.push(Vec::new());
        }
        let op = self.new_op(kind, stripe, range, Some(id), piece);
        self.ready.push_back(op);
    }

    /// An operation of a request has ended.
    pub(super) fn piece_done(
        &mut self,
        id: RequestId,
        piece: usize,
        result: Result<(Vec<Source>, Vec<BufferId>), IoError>,
    ) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.outstanding -= 1;
        match result {
            Ok((sources, buffers)) => {
                if let Some(slot) = request.reply.get_mut(piece) {
                    *slot = sources;
                }
                request.buffers.extend(buffers);
            }
            Err(error) => {
                request.error.get_or_insert(error);
            }
        }
        self.dispatch(id);
    }

    fn finish_if_done(&mut self, id: RequestId) {
        let Some(request) = self.requests.get(&id) else { return };
        if request.outstanding > 0 {
            return;
        }
        // Reads too: what they saw may rest on a member being set aside, which must not be undone.
        if self.labels.is_pending() && self.failed.is_none() {
            self.held.push(id);
        } else {
            self.complete(id);
        }
    }

    fn complete(&mut self, id: RequestId) {
        let Some(request) = self.requests.remove(&id) else { return };
        // Reads too: they may have seen a write that failed, or rest on a member being set aside that
        // no label will tell of. What one shows must not change again.
        let error = request.error.or_else(|| self.failed.clone());
        let result = match error {
            Some(error) => Err(error),
            None => Ok(request.reply.into_iter().flatten().collect()),
        };
        self.immediate.push_back(Action::Complete { request: id, result });
        for buffer in request.buffers {
            self.free_buffer(buffer);
        }
    }

    /// Ends requests that waited for the labels, once these are stable.
    pub(super) fn release_held(&mut self) {
        if !self.labels.is_pending() || self.failed.is_some() {
            for id in core::mem::take(&mut self.held) {
                self.complete(id);
            }
        }
    }

    fn start_flush(&mut self, id: RequestId) {
        if !self.read_only {
            for member in self.live_members().iter() {
                if self.members[member.as_usize()].caps.volatile_cache {
                    if let Some(request) = self.requests.get_mut(&id) {
                        request.outstanding += 1;
                    }
                    self.push_flush(Owner::Flush(id), member);
                }
            }
        }
        self.finish_if_done(id);
    }

    /// A member's flush has ended; one that failed has set its member aside.
    pub(super) fn flush_io_done(&mut self, id: RequestId) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.outstanding -= 1;
        }
        self.finish_if_done(id);
    }

    /// Ends an operation: buffers and lock are given back, its request is told.
    pub(super) fn end_op(&mut self, id: OpId, result: Result<Vec<Source>, IoError>) {
        let op = self.ops.remove(id.0);
        assert_eq!(op.outstanding, 0, "an operation ended with member requests in flight");
        if op.locked {
            self.locks.release(id, op.stripe, &mut self.ready);
        }
        let mut buffers: Vec<BufferId> = op.reads.iter().map(|read| read.buffer).collect();
        buffers.extend(op.computed.iter().copied());
        let keep = op.kind == OpKind::Read && result.is_ok();
        if !keep {
            for buffer in core::mem::take(&mut buffers) {
                self.free_buffer(buffer);
            }
        }
        self.background_op_done(id, &op, result.is_ok());
        if let Some(request) = op.request {
            self.piece_done(request, op.piece, result.map(|sources| (sources, buffers)));
        }
    }
}
