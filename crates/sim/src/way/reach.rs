//! What a target's connection reaches: what the connections of one program share, and the disk.

use core::ops::DerefMut;
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use netraid_block::Op;
use netraid_control::derived::Pieces;
use netraid_iscsi_proto::{
    machine::TaskId,
    target::{Claim, ConnectionId, Node},
};
use netraid_node::{
    Access, Barred, Counted, Entry, Gate, Gatehouse, Guest, LoggedIn, Lun, Needs, Outside, Pacing,
    Place, Ticket,
};
use netraid_scsi::{MediumRequest, Refusal, TargetDevice, View};

/// The number of the LUN that a host has.
pub(super) const LUN: u16 = 0;

/// What all connections of a program share.
pub(super) struct Shared {
    pub(super) units: RefCell<TargetDevice>,
    pub(super) node: RefCell<Node>,
    /// None while it is removed.
    pub(super) lun: RefCell<Option<ServedLun>>,
    /// What was begun and is not at the disk yet.
    pub(super) begun: RefCell<Vec<Begun>>,
    /// Connections that are to be woken.
    pub(super) wakes: RefCell<Vec<ConnectionId>>,
}

/// Something that ends by [`netraid_node::Service::handle_completed`].
pub(super) struct Begun {
    pub(super) connection: ConnectionId,
    pub(super) task: usize,
    pub(super) what: Work,
}

/// What is done for a command.
pub(super) enum Work {
    Request(MediumRequest),
    /// Reservations are stored.
    Store(Vec<u8>),
    /// It ends as aborted.
    Nothing,
}

/// The LUN of a program.
pub(super) struct SharedLun {
    pub(super) house: Gatehouse,
    users: RefCell<Vec<ConnectionId>>,
    /// Tells apart what had the number at different times.
    incarnation: u64,
    /// Its reservations are kept.
    pub(super) persists: bool,
}

/// The same, as connections hold it.
#[derive(Clone)]
pub(super) struct ServedLun(Rc<SharedLun>);

impl ServedLun {
    pub(super) fn new(incarnation: u64, persists: bool) -> Self {
        let (house, users) = (Gatehouse::default(), RefCell::default());
        Self(Rc::new(SharedLun { house, users, incarnation, persists }))
    }

    pub(super) fn house(&self) -> &Gatehouse {
        &self.0.house
    }
}

impl Lun for ServedLun {
    fn number(&self) -> u16 {
        LUN
    }

    fn incarnation(&self) -> u64 {
        self.0.incarnation
    }

    fn is_guarded(&self) -> bool {
        self.0.house.is_guarded()
    }

    fn refusal(&self, access: &Access<'_>, began: bool) -> Option<Refusal> {
        self.0.house.bars(access.moment, began)
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
        let mut users = self.0.users.borrow_mut();
        if !users.contains(&session) {
            users.push(session);
        }
    }
}

/// What one connection reaches.
pub(super) struct Reach {
    shared: Rc<Shared>,
    connection: ConnectionId,
    initiator: String,
    /// Nothing is begun any more.
    is_stopped: Cell<bool>,
}

impl Reach {
    pub(super) const fn new(shared: Rc<Shared>, connection: ConnectionId) -> Self {
        Self { shared, connection, initiator: String::new(), is_stopped: Cell::new(false) }
    }

    /// Nothing is begun any more: only the session's end is left.
    pub(super) fn stop(&self) {
        self.is_stopped.set(true);
    }

    fn begin(&self, task: TaskId, what: Work) {
        if !self.is_stopped.get() {
            let (connection, task) = (self.connection, task.index());
            self.shared.begun.borrow_mut().push(Begun { connection, task, what });
        }
    }
}

impl Outside for Reach {
    type Lun = ServedLun;
    type Guest = Nobody;
    type Pacing = Nobody;

    fn units(&self) -> impl DerefMut<Target = TargetDevice> {
        self.shared.units.borrow_mut()
    }

    fn units_and_lun(
        &mut self,
        number: Option<u16>,
    ) -> (impl DerefMut<Target = TargetDevice>, Option<ServedLun>) {
        (self.shared.units.borrow_mut(), number.and_then(|number| self.lun(number)))
    }

    fn lun(&self, number: u16) -> Option<ServedLun> {
        self.shared.lun.borrow().clone().filter(|_| number == LUN)
    }

    fn is_current(&self, lun: &ServedLun) -> bool {
        self.shared.lun.borrow().as_ref().is_some_and(|own| Rc::ptr_eq(&lun.0, &own.0))
    }

    fn node(&self) -> impl DerefMut<Target = Node> {
        self.shared.node.borrow_mut()
    }

    fn wake_others(&self) {
        self.shared.gather_wakes();
    }

    fn guest(&self) -> Option<&Nobody> {
        None
    }

    fn pacing(&self) -> Option<&Nobody> {
        None
    }

    fn initiator(&self) -> &str {
        &self.initiator
    }

    fn submit(
        &mut self,
        task: TaskId,
        lun: Option<&ServedLun>,
        request: MediumRequest,
        place: &Place,
    ) {
        assert_eq!(*place, Place::Same, "nobody sees the disk but as it is");
        self.begin(task, lun.map_or(Work::Nothing, |_| Work::Request(request)));
    }

    fn store(&mut self, task: TaskId, lun: Option<&ServedLun>, bytes: Vec<u8>) {
        let keeps = lun.is_some_and(|lun| lun.0.persists);
        self.begin(task, if keeps { Work::Store(bytes) } else { Work::Nothing });
    }

    fn wait(&mut self, task: TaskId, _lun: Option<&ServedLun>) {
        // Logical units that cannot be sanitized have no background work.
        self.begin(task, Work::Nothing);
    }

    fn abandon(&mut self, _task: TaskId, _lun: u16) {}

    fn count(&self, _lun: Option<&ServedLun>, _counted: Counted) {}

    fn count_aborted(&self, _lun: Option<&ServedLun>) {}

    fn judge(&mut self, _claim: &Claim<'_>) -> Entry {
        Entry::Refused
    }

    fn poll_entry(&mut self) -> Entry {
        Entry::Refused
    }

    fn log_in(&mut self, login: LoggedIn) {
        self.initiator = login.initiator;
    }

    fn leave(&mut self) {
        if let Some(lun) = &*self.shared.lun.borrow() {
            lun.0.users.borrow_mut().retain(|user| *user != self.connection);
        }
    }
}

impl Shared {
    pub(super) fn gather_wakes(&self) {
        let (mut node, mut wakes) = (self.node.borrow_mut(), self.wakes.borrow_mut());
        while let Some(id) = node.poll_wake() {
            if !wakes.contains(&id) {
                wakes.push(id);
            }
        }
    }
}

/// Nobody comes by token, and no target has a pace.
pub(super) enum Nobody {}

impl Guest for Nobody {
    fn may(&self, _needs: Needs) -> Result<(), Barred> {
        match *self {}
    }

    fn foresee(&self, _request: (Op, u64, u64)) -> Result<(), Barred> {
        match *self {}
    }

    fn judge(&self, _request: (Op, u64, u64)) -> Result<(Pieces, Option<(u64, u64)>), Barred> {
        match *self {}
    }

    fn take_back(&self, _before: u64, _end: u64) {
        match *self {}
    }

    fn enter(&self) {
        match *self {}
    }

    fn leave(&self) {
        match *self {}
    }

    fn view(&self) -> Option<&View> {
        match *self {}
    }
}

impl Pacing for Nobody {
    fn ask(&self, _ticket: Ticket, _len: u32) {
        match *self {}
    }

    fn take(&self) -> Option<Ticket> {
        match *self {}
    }

    fn begun(&self) {
        match *self {}
    }

    fn done(&self) {
        match *self {}
    }

    fn withdraw(&self, _number: u32) {
        match *self {}
    }
}
