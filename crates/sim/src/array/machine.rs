//! What the world drives: the production machine, or a stand-in that tests of the world know.

use netraid_block::{IoError, SgList};
use netraid_raid::{
    label::Label,
    logged::{
        Action, Event, FoundMember, IoId, LoggedArray, NewDevice, OpenConfig, RequestId,
        RuleCounts, UserRequest,
    },
    member::{ArrayState, MemberIndex},
};

use super::rest;
use crate::disk::Disk;

/// An array's machine; [`LoggedArray`] says what each does.
#[allow(missing_docs, reason = "LoggedArray's methods")]
pub trait Machine: Sized {
    /// It survives as many losses as the level promises.
    const SURVIVES_LOSSES: bool = true;

    fn open(config: OpenConfig) -> Result<Self, IoError>;
    fn handle_request(&mut self, id: RequestId, user: UserRequest);
    fn handle_io_done(&mut self, io: IoId, result: Result<SgList, IoError>);
    fn handle_gone(&mut self, member: MemberIndex, reason: &str);
    fn handle_return(&mut self, member: MemberIndex, found: FoundMember);
    fn handle_replace(&mut self, member: MemberIndex, device: NewDevice);
    fn handle_idle(&mut self);
    fn handle_age(&mut self) {}
    fn handle_close(&mut self);
    fn poll_action(&mut self) -> Option<Action>;
    fn poll_event(&mut self) -> Option<Event>;
    fn capacity(&self) -> u64;
    fn label(&self) -> Label;
    fn state(&self) -> ArrayState;
    fn failure(&self) -> Option<IoError>;
    /// Whether it says that members lack space.
    fn is_short_of_space(&self) -> bool {
        false
    }
    fn rules(&self) -> RuleCounts {
        RuleCounts::default()
    }

    /// What it is waiting for, for those who look for a fault.
    fn describe(&self) -> String {
        String::new()
    }

    /// What the media hold when the machine has nothing under way.
    ///
    /// # Errors
    /// What is not as it should be.
    fn look(disks: &[&Disk], label: &Label, is_closed: bool) -> Result<SgList, String> {
        rest::look(disks, label, is_closed)
    }
}

impl Machine for LoggedArray {
    fn open(config: OpenConfig) -> Result<Self, IoError> {
        Self::open(config)
    }
    fn describe(&self) -> String {
        format!("{self:?}")
    }
    fn handle_request(&mut self, id: RequestId, user: UserRequest) {
        self.handle_request(id, user);
    }
    fn handle_io_done(&mut self, io: IoId, result: Result<SgList, IoError>) {
        self.handle_io_done(io, result);
    }
    fn handle_gone(&mut self, member: MemberIndex, reason: &str) {
        self.handle_gone(member, reason);
    }
    fn handle_return(&mut self, member: MemberIndex, found: FoundMember) {
        self.handle_return(member, found);
    }
    fn handle_replace(&mut self, member: MemberIndex, device: NewDevice) {
        self.handle_replace(member, device);
    }
    fn handle_idle(&mut self) {
        self.handle_idle();
    }
    fn handle_age(&mut self) {
        self.handle_age();
    }
    fn handle_close(&mut self) {
        self.handle_close();
    }
    fn poll_action(&mut self) -> Option<Action> {
        self.poll_action()
    }
    fn poll_event(&mut self) -> Option<Event> {
        self.poll_event()
    }
    fn capacity(&self) -> u64 {
        self.capacity()
    }
    fn label(&self) -> Label {
        self.label()
    }
    fn state(&self) -> ArrayState {
        self.state()
    }
    fn failure(&self) -> Option<IoError> {
        self.failure()
    }
    fn is_short_of_space(&self) -> bool {
        self.shortage().is_some()
    }
    fn rules(&self) -> RuleCounts {
        self.rules()
    }
}
