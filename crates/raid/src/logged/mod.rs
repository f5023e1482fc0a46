//! The array with a log: users' requests in, member requests out. How it works and why stands in
//! docs/decisions/0008-log-rounds-and-map.md.
//!
//! Dialect: `handle_*` takes an input, [`LoggedArray::poll_action`] and
//! [`LoggedArray::poll_event`] give outputs until `None`. Every member request given out must come
//! back through [`LoggedArray::handle_io_done`] exactly once. Every user request ends in exactly
//! one [`Action::Complete`].

mod interface;

pub use interface::{
    Action, Event, FoundMember, IoId, Limits, MemberCaps, NewDevice, OpenConfig, RequestId,
    UserRequest,
};
use netraid_block::{IoError, SgList};

use crate::{
    label::Label,
    member::{ArrayState, MemberIndex},
};

/// An array with a log, open.
#[derive(Debug)]
pub struct LoggedArray {}

impl LoggedArray {
    /// Begins to open an array: recovers what the log says, and then sends [`Event::Opened`].
    /// When it cannot be opened it fails ([`Self::failure`]) and sends [`Event::Closed`].
    #[must_use]
    pub fn open(config: OpenConfig) -> Self {
        let _ = config;
        todo!()
    }
    /// Takes a user's request, checked at the seam: in range, aligned to the logical block.
    pub fn handle_request(&mut self, id: RequestId, user: UserRequest) {
        let _ = (id, user);
        todo!()
    }
    /// Tells how a member request ended; reads bring their bytes, all else brings none.
    pub fn handle_io_done(&mut self, io: IoId, result: Result<SgList, IoError>) {
        let _ = (io, result);
        todo!()
    }
    /// Sets a member aside, as an administrator wishes, or because its session ended or its power
    /// failed: what it completed and did not make stable may be lost. Requests to it that are in
    /// flight still have to come back. When the array cannot serve without it, the array fails.
    pub fn handle_gone(&mut self, member: MemberIndex, reason: &str) {
        let _ = (member, reason);
        todo!()
    }
    /// A member that is not live is there again, with nothing of before in flight. It catches up.
    pub fn handle_return(&mut self, member: MemberIndex, found: FoundMember) {
        let _ = (member, found);
        todo!()
    }
    /// Takes a new device in the place of a member that is not live, and writes it.
    pub fn handle_replace(&mut self, member: MemberIndex, device: NewDevice) {
        let _ = (member, device);
        todo!()
    }
    /// Has everything that is in the log brought home; nothing waits for it.
    pub fn handle_idle(&mut self) {
        todo!()
    }
    /// Brings everything home, closes the labels; [`Event::Closed`] follows. No request may be in
    /// flight or come after.
    pub fn handle_close(&mut self) {
        todo!()
    }
    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        todo!()
    }
    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        todo!()
    }
    /// Bytes of the volume.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        todo!()
    }
    /// The label as it is, or is about to be, on all live members.
    #[must_use]
    pub fn label(&self) -> Label {
        todo!()
    }
    /// What the array can do.
    #[must_use]
    pub fn state(&self) -> ArrayState {
        todo!()
    }
    /// Why the array failed, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<IoError> {
        todo!()
    }
}
