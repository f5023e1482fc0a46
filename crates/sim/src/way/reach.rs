//! What a target's connection reaches: what the connections of one program share, and the disk.

use core::ops::DerefMut;
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use netraid_block::{Op, SgList, narrow};
use netraid_control::{
    derived::{ByteRange, Pieces},
    token::Grant,
};
use netraid_iscsi_proto::{
    machine::TaskId,
    target::{Claim, ConnectionId, Node, Realm},
};
use netraid_node::{
    Access, Counted, Entry, Gate, Gatehouse, LoggedIn, Lun, Outside, Pacing, Place, Ticket,
    segments::Knocked,
};
use netraid_scsi::{MediumRequest, Refusal, TargetDevice};

use super::agent::{Agent, Visitor};

/// The number of the LUN that a host has.
pub(super) const LUN: u16 = 0;

/// The logical units that some sessions of a program share: all of them, or those of a segment.
pub(super) struct ServedRealm {
    pub(super) id: Realm,
    pub(super) units: RefCell<TargetDevice>,
    /// None while it is removed.
    pub(super) lun: RefCell<Option<ServedLun>>,
}

impl ServedRealm {
    pub(super) fn new(id: Realm) -> Rc<Self> {
        let (units, lun) = (RefCell::new(TargetDevice::new([])), RefCell::new(None));
        Rc::new(Self { id, units, lun })
    }
}

/// What all connections of a program share.
pub(super) struct Shared {
    /// The realm that has the disk.
    pub(super) realm: RefCell<Rc<ServedRealm>>,
    pub(super) node: RefCell<Node>,
    /// What was begun and is not at the disk yet.
    pub(super) begun: RefCell<Vec<Begun>>,
    /// Whose tokens let in, where they do.
    pub(super) agent: Option<Rc<Agent>>,
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
    /// A request, in pieces at other places of the disk.
    Pieces(Vec<MediumRequest>),
    /// Reservations are stored.
    Store(Vec<u8>),
    /// It ends as aborted.
    Nothing,
}

impl Work {
    /// What it does with the disk, if anything.
    pub(super) fn op(&self) -> Option<Op> {
        match self {
            Self::Request(request) => Some(request.op),
            Self::Pieces(pieces) => pieces.first().map(|piece| piece.op),
            Self::Store(_) | Self::Nothing => None,
        }
    }

    pub(super) fn is_request(&self) -> bool {
        self.op().is_some()
    }
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
    realm: Rc<ServedRealm>,
    connection: ConnectionId,
    initiator: String,
    /// What a token that was proven grants, while its segment is waited for.
    grant: Option<Grant>,
    /// What a token let the session in to.
    visitor: Option<Rc<Visitor>>,
    /// Nothing is begun any more.
    is_stopped: Cell<bool>,
}

impl Reach {
    pub(super) fn new(shared: Rc<Shared>, connection: ConnectionId) -> Self {
        Self {
            realm: shared.realm(),
            shared,
            connection,
            initiator: String::new(),
            grant: None,
            visitor: None,
            is_stopped: Cell::new(false),
        }
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
    type Guest = Visitor;
    type Pacing = Nobody;

    fn units(&self) -> impl DerefMut<Target = TargetDevice> {
        self.realm.units.borrow_mut()
    }

    fn units_and_lun(
        &mut self,
        number: Option<u16>,
    ) -> (impl DerefMut<Target = TargetDevice>, Option<ServedLun>) {
        (self.realm.units.borrow_mut(), number.and_then(|number| self.lun(number)))
    }

    fn lun(&self, number: u16) -> Option<ServedLun> {
        self.realm.lun.borrow().clone().filter(|_| number == LUN)
    }

    fn is_current(&self, lun: &ServedLun) -> bool {
        self.realm.lun.borrow().as_ref().is_some_and(|own| Rc::ptr_eq(&lun.0, &own.0))
    }

    fn node(&self) -> impl DerefMut<Target = Node> {
        self.shared.node.borrow_mut()
    }

    fn wake_others(&self) {
        self.shared.gather_wakes();
    }

    fn guest(&self) -> Option<&Visitor> {
        self.visitor.as_deref()
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
        let work = match (lun, place) {
            (None, _) => Work::Nothing,
            // The watch knows of engines' requests alone.
            (Some(_), Place::Same) if self.visitor.is_some() && request.op != Op::Flush => {
                Work::Pieces(vec![request])
            }
            (Some(_), Place::Same) => Work::Request(request),
            (Some(_), Place::Pieces(pieces)) => Work::Pieces(cut(&request, pieces)),
        };
        self.begin(task, work);
    }

    fn store(&mut self, task: TaskId, lun: Option<&ServedLun>, bytes: Vec<u8>) {
        if let Some(agent) = &self.shared.agent
            && let Some(wrong) = agent.why_not_to_reserve(self.connection)
        {
            unreachable!("{wrong}");
        }
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

    fn judge(&mut self, claim: &Claim<'_>) -> Entry {
        let Some(agent) = &self.shared.agent else { return Entry::Refused };
        self.grant = agent.admit(claim);
        match &self.grant {
            None => Entry::Refused,
            Some(grant) => {
                agent.knock(self.connection, grant);
                self.poll_entry()
            }
        }
    }

    fn poll_entry(&mut self) -> Entry {
        let Some(agent) = &self.shared.agent else { return Entry::Refused };
        let place = match agent.answer(self.connection) {
            Knocked::Later => return Entry::Later,
            Knocked::Refused => return Entry::Refused,
            Knocked::Exhausted => return Entry::Exhausted,
            Knocked::Open(place) => place,
        };
        let grant = self.grant.take();
        self.visitor = grant.and_then(|grant| agent.let_in(self.connection, place, grant));
        let Some(visitor) = &self.visitor else { return Entry::Refused };
        self.realm = visitor.place().realm.clone();
        visitor.entry()
    }

    fn log_in(&mut self, login: LoggedIn) {
        self.initiator = login.initiator;
    }

    fn leave(&mut self) {
        if let Some(agent) = &self.shared.agent {
            agent.leave(self.connection, self.visitor.as_ref());
        }
        if let Some(lun) = &*self.realm.lun.borrow() {
            lun.0.users.borrow_mut().retain(|user| *user != self.connection);
        }
    }
}

impl Shared {
    pub(super) fn realm(&self) -> Rc<ServedRealm> {
        self.realm.borrow().clone()
    }

    pub(super) fn gather_wakes(&self) {
        let (mut node, mut wakes) = (self.node.borrow_mut(), self.wakes.borrow_mut());
        while let Some(id) = node.poll_wake() {
            if !wakes.contains(&id) {
                wakes.push(id);
            }
        }
    }
}

/// A request in the pieces that its place has, in order.
fn cut(request: &MediumRequest, pieces: &Pieces) -> Vec<MediumRequest> {
    let mut at = 0;
    let piece = |piece: &ByteRange| {
        let len: usize = narrow(piece.len);
        let data = match request.data.is_empty() {
            true => SgList::new(),
            false => request.data.slice(at..at + len),
        };
        at += len;
        MediumRequest {
            op: request.op,
            offset: piece.offset,
            len: piece.len,
            flags: request.flags,
            data,
        }
    };
    pieces.as_slice().iter().map(piece).collect()
}

/// No target has a pace.
pub(super) enum Nobody {}

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
