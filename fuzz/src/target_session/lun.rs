//! LUNs over plain bytes, their gates and policies.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use netraid_iscsi_proto::target::ConnectionId;
use netraid_node::{Access, Gate, Gatehouse, Lun, Moment};
use netraid_scsi::Refusal;

use super::{BLOCK_LEN, BLOCKS};

/// A LUN over plain bytes.
pub(super) struct ServedLun {
    pub(super) number: u16,
    incarnation: u64,
    pub(super) house: Gatehouse,
    /// What its policy denies.
    denied: Cell<Option<Denied>>,
    pub(super) medium: RefCell<Vec<u8>>,
    pub(super) users: RefCell<Vec<ConnectionId>>,
    /// The commands that have gone to the device, while the gate is closed: they may go on.
    pub(super) there: RefCell<Vec<u64>>,
}

/// What a policy denies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Denied {
    pub(super) reads: bool,
    pub(super) changes: bool,
    /// What ends behind it.
    pub(super) from: u64,
    /// What comes later passes the first time that it is asked.
    pub(super) only_requests: bool,
}

impl ServedLun {
    pub(super) fn new(number: u16, incarnation: u64) -> Self {
        Self {
            number,
            incarnation,
            house: Gatehouse::default(),
            denied: Cell::new(None),
            medium: RefCell::new(vec![0; BLOCKS * BLOCK_LEN]),
            users: RefCell::default(),
            there: RefCell::default(),
        }
    }

    pub(super) fn set_denied(&self, denied: Option<Denied>) {
        self.house.set_policy(denied.is_some());
        self.denied.set(denied);
    }

    pub(super) fn denies(&self, access: &Access<'_>) -> bool {
        let Some(Denied { reads, changes, from, only_requests }) = self.denied.get() else {
            return false;
        };
        let is_meant = if access.op.changes() { changes } else { reads };
        let early = access.moment == Moment::BeforeData;
        is_meant && access.offset + access.len > from && !(early && only_requests)
    }

    /// A request is here, of a command of another LUN or not.
    pub(super) fn check_arrival(&self, access: &Access<'_>, generation: u64, visits: bool) {
        match self.house.gate() {
            Gate::Open => {}
            gate @ (Gate::Held | Gate::Leaving) => {
                let began = !visits && self.there.borrow().contains(&generation);
                assert!(began, "{access:?} reaches LUN {} whose gate is {gate:?}", self.number);
            }
        }
        assert!(!self.denies(access), "{access:?} is denied");
        assert!(self.house.running() > 0, "{access:?} has not entered");
    }
}

#[derive(Clone)]
pub(super) struct SeenLun(pub(super) Rc<ServedLun>);

impl Lun for SeenLun {
    fn number(&self) -> u16 {
        self.0.number
    }

    fn incarnation(&self) -> u64 {
        self.0.incarnation
    }

    fn is_guarded(&self) -> bool {
        self.0.house.is_guarded()
    }

    fn refusal(&self, access: &Access<'_>, began: bool) -> Option<Refusal> {
        if access.moment == Moment::BeforeRequest {
            assert!(self.0.house.running() > 0, "the gate is looked at before {access:?} entered");
        }
        let denied = self.0.denies(access).then_some(Refusal::AccessDenied);
        self.0.house.bars(access.moment, began).or(denied)
    }

    fn is_leaving(&self) -> bool {
        self.0.house.gate() == Gate::Leaving
    }

    fn enter(&self) {
        self.0.house.enter();
    }

    fn leave(&self) {
        self.0.house.leave();
    }

    fn add_user(&self, session: ConnectionId) {
        self.0.users.borrow_mut().push(session);
    }
}
