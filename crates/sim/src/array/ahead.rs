//! Reading ahead in front of an engine's machine: the production machine, and what the driver does
//! around it.

use netraid_block::{IoError, Op, SgList, narrow};
use netraid_raid::{
    geometry::Geometry,
    logged::{RequestId, UserRequest},
    read_ahead::{Action, ReadAhead, Served},
};

use super::machine::Machine;

/// What an engine reads ahead, and users' requests by the small numbers that this needs.
#[derive(Debug)]
pub struct Ahead {
    machine: ReadAhead,
    users: Vec<Option<RequestId>>,
}

/// A user's request that has ended.
pub type Ended = (RequestId, Result<SgList, IoError>);

impl Ahead {
    /// For a volume of this shape, with so many bytes of memory.
    #[must_use]
    pub fn new(geometry: &Geometry, memory: u64) -> Self {
        Self { machine: ReadAhead::new(geometry, memory), users: Vec::new() }
    }

    /// Hands a user's request to the array, or serves it; its end, when that is now.
    pub fn handle_request(
        &mut self,
        array: &mut impl Machine,
        user: RequestId,
        request: UserRequest,
    ) -> Option<Ended> {
        let free = self.users.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.users.push(None);
            self.users.len() - 1
        });
        let id = RequestId(place as u64);
        let range = request.offset..request.offset + request.len;
        if request.op.changes() {
            self.machine.handle_change(id, range);
        } else if request.op == Op::Read {
            if array.failure().is_some() {
                self.machine.stop();
            }
            match self.machine.handle_read(id, range) {
                Served::ByArray => {}
                Served::Now(data) => return Some((user, Ok(data))),
                Served::Later => {
                    self.users[place] = Some(user);
                    return None;
                }
            }
        }
        self.users[place] = Some(user);
        array.handle_request(id, request);
        None
    }

    /// The array has ended a request; a user's end, if it was one.
    pub fn handle_done(&mut self, id: RequestId, result: Result<SgList, IoError>) -> Option<Ended> {
        if ReadAhead::is_ahead(id) {
            self.machine.handle_ahead_done(id, result);
            return None;
        }
        self.machine.handle_done(id);
        Some((self.take(id), result))
    }

    /// Asks the array for what is to be read; a user's end, if there is one.
    pub fn poll(&mut self, array: &mut impl Machine) -> Option<Ended> {
        loop {
            match self.machine.poll_action()? {
                Action::Read { id, range } | Action::ReadAgain { id, range } => {
                    let (offset, len) = (range.start, range.end - range.start);
                    let data = SgList::new();
                    let read = UserRequest { op: Op::Read, offset, len, fua: false, data };
                    array.handle_request(id, read);
                }
                Action::Answer { id, data } => return Some((self.take(id), Ok(data))),
            }
        }
    }

    /// Nothing more is read, and nothing answered from what was.
    pub fn stop(&mut self) {
        self.machine.stop();
    }

    /// Requests ahead that the array has.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.machine.under_way()
    }

    /// Users' reads that were answered from what was read ahead.
    #[must_use]
    pub const fn answered(&self) -> u64 {
        self.machine.stats().answered
    }

    fn take(&mut self, id: RequestId) -> RequestId {
        let place: usize = narrow(id.0);
        match self.users.get_mut(place).and_then(Option::take) {
            Some(user) => user,
            None => unreachable!("a user's request ended twice"),
        }
    }
}
