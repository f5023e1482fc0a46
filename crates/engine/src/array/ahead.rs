//! Users' requests on their way into the machine and out of it, past what was read ahead.
//!
//! [`ReadAhead`] decides; here its requests become the machine's, beside those of users. They are
//! nobody's: they do not count among the users', but closing waits for their ends.

use netraid_block::{IoError, Op, Request, RequestFlags, SgList};
use netraid_raid::{
    array::RequestId,
    read_ahead::{Action, ReadAhead, Served, Stats},
};

use super::{driver::Driver, users::Read};
use crate::control::ReadAheadStatus;

impl Driver {
    /// Hands a user's request to the machine, or serves it from what was read ahead. A large read may wait first.
    pub(super) fn begin_request(&mut self, request: Request) {
        let Request { op, offset, len, flags, data, completion } = request;
        let id = self.users.insert(completion);
        if let Some(ahead) = &mut self.ahead {
            if op.changes() {
                ahead.handle_change(id, offset..offset + len);
            } else if op == Op::Read {
                if !ahead.is_empty() && self.machine.failure().is_some() {
                    ahead.stop();
                }
                match ahead.handle_read(id, offset..offset + len) {
                    Served::ByArray => {}
                    Served::Now(data) => {
                        self.users.end(id, Ok(data));
                        return self.read_ahead();
                    }
                    Served::Later => return self.read_ahead(),
                }
            }
        }
        if op != Op::Read || self.users.admit(Read { id, offset, len }) {
            self.machine.handle_request(id, (op, offset, len), flags, data);
        }
        self.read_ahead();
    }

    /// Hands a user's read that has waited to the machine.
    pub(super) fn begin_read(&mut self, Read { id, offset, len }: Read) {
        let flags = RequestFlags::default();
        self.machine.handle_request(id, (Op::Read, offset, len), flags, SgList::new());
    }

    /// The machine has ended a request.
    pub(super) fn end_request(&mut self, id: RequestId, result: Result<SgList, IoError>) {
        if let Some(ahead) = &mut self.ahead {
            if ReadAhead::is_ahead(id) {
                ahead.handle_ahead_done(id, result);
                return self.read_ahead();
            }
            ahead.handle_done(id);
        }
        self.users.end(id, result);
    }

    /// Does what is to be done to read ahead.
    fn read_ahead(&mut self) {
        while let Some(action) = self.ahead.as_mut().and_then(ReadAhead::poll_action) {
            match action {
                Action::Read { id, range } | Action::ReadAgain { id, range } => {
                    let read = (Op::Read, range.start, range.end - range.start);
                    self.machine.handle_request(id, read, RequestFlags::default(), SgList::new());
                }
                Action::Answer { id, data } => self.users.end(id, Ok(data)),
            }
        }
    }

    /// Nothing is answered from what was read ahead any more, and nothing more is read.
    pub(super) fn stop_read_ahead(&mut self) {
        self.ahead.iter_mut().for_each(ReadAhead::stop);
    }

    pub(super) fn read_ahead_status(&self) -> Option<ReadAheadStatus> {
        let Stats { answered, read_bytes, unused_bytes } = self.ahead.as_ref()?.stats();
        Some(ReadAheadStatus { answered, read_bytes, unused_bytes })
    }

    /// Whether the machine has no request of anybody.
    pub(super) fn is_idle(&self) -> bool {
        self.users.len() == 0 && self.ahead.as_ref().is_none_or(|ahead| ahead.under_way() == 0)
    }
}
