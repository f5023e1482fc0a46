//! What the services reach: logical units, LUNs, the node, a pace, and whoever judges logins.
//! Nothing here decides for the product; each part says what must not happen to it.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    ops::DerefMut,
    rc::Rc,
};

use netraid_block::{ErrorKind, Op, SgList};
use netraid_iscsi_proto::{
    machine::TaskId,
    negotiation::SessionType,
    pdu::{Bhs, ScsiCommand},
    target::{Claim, ConnectionId, Node, Realm, Standing},
};
use netraid_node::{Access, Counted, Entry, Gate, Guest, LoggedIn, Moment, Needs, Outside, Place};
use netraid_scsi::{
    MediumRequest, TargetDevice,
    cdb::{CommandKind, kind},
};

use super::{
    BLOCK_LEN, BLOCKS,
    grant::Visitor,
    lun::{SeenLun, ServedLun},
    medium::{check_copy, check_request},
    pace::{Pace, Share},
    unit,
};
use crate::wire::credentials;

const EXTENDED_COPY: u8 = 0x83;

/// What the target of an input is like.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Setting {
    /// What has ended is told of when an operation says so, also a store.
    pub(super) is_late: bool,
    pub(super) is_paced: bool,
    pub(super) judges_late: bool,
    pub(super) can_sanitize: bool,
    /// Sessions come by grants: the first one of this kind; and the next ones of others.
    pub(super) grants: Option<(u8, bool)>,
}

/// What all connections share.
pub(super) struct Shared {
    pub(super) setting: Cell<Setting>,
    pub(super) units: RefCell<TargetDevice>,
    pub(super) node: RefCell<Node>,
    pub(super) luns: RefCell<Vec<Rc<ServedLun>>>,
    pub(super) flying: RefCell<Vec<Flying>>,
    pub(super) wakes: RefCell<Vec<ConnectionId>>,
    pub(super) pace: RefCell<Pace>,
    /// Behind the last byte that sessions with grants ever wrote.
    pub(super) end: Cell<u64>,
    generations: Cell<u64>,
    incarnations: Cell<u64>,
}

/// Something that is done for a command, and ends later.
pub(super) struct Flying {
    pub(super) connection: ConnectionId,
    pub(super) task: TaskId,
    pub(super) generation: u64,
    /// Of this alone.
    pub(super) number: u64,
    pub(super) what: What,
}

impl Flying {
    /// It is a request of a copy at the device of this LUN.
    pub(super) fn visits(&self, lun: Option<u16>) -> bool {
        match &self.what {
            What::Request { lun: at, visits, .. } => *visits && Some(at.number) == lun,
            What::Store { .. } | What::Wait { .. } => false,
        }
    }

    /// It takes a place among what is granted: a copy and a wait do not.
    fn needs_place(&self) -> bool {
        match &self.what {
            What::Request { visits, .. } => !visits,
            What::Store { .. } => true,
            What::Wait { .. } => false,
        }
    }
}

pub(super) enum What {
    Request {
        lun: Rc<ServedLun>,
        request: MediumRequest,
        place: Place,
        /// It is of a copy.
        visits: bool,
        appended: Option<(u64, u64)>,
    },
    Store {
        lun: Option<Rc<ServedLun>>,
        bytes: Vec<u8>,
    },
    /// Ends when there is a result.
    Wait {
        lun: u16,
        result: Option<Result<(), ErrorKind>>,
    },
}

impl Shared {
    pub(super) fn new(setting: Setting, node: Node) -> Rc<Self> {
        Rc::new(Self {
            setting: Cell::new(setting),
            units: RefCell::default(),
            node: RefCell::new(node),
            luns: RefCell::default(),
            flying: RefCell::default(),
            wakes: RefCell::default(),
            pace: RefCell::default(),
            end: Cell::new(0),
            generations: Cell::new(0),
            incarnations: Cell::new(0),
        })
    }

    pub(super) fn find(&self, number: u16) -> Option<Rc<ServedLun>> {
        self.luns.borrow().iter().find(|lun| lun.number == number).cloned()
    }

    /// A LUN comes whose number is free.
    pub(super) fn add_lun(&self, number: u16, read_only: bool) {
        let config = unit(number, read_only, self.setting.get().can_sanitize);
        self.units.borrow_mut().add(number, config).expect("the number is free");
        self.node.borrow_mut().add_lun(Realm::HOME, number);
        let lun = ServedLun::new(number, next(&self.incarnations));
        self.luns.borrow_mut().push(Rc::new(lun));
    }

    pub(super) fn gather_wakes(&self) {
        let (mut node, mut wakes) = (self.node.borrow_mut(), self.wakes.borrow_mut());
        while let Some(id) = node.poll_wake() {
            push_wake(&mut wakes, id);
        }
    }

    pub(super) fn wake(&self, id: ConnectionId) {
        push_wake(&mut self.wakes.borrow_mut(), id);
    }

    pub(super) fn has_flying(&self, connection: ConnectionId) -> bool {
        self.flying.borrow().iter().any(|one| one.connection == connection)
    }

    fn is_flying(&self, generation: u64) -> bool {
        self.flying.borrow().iter().any(|one| one.generation == generation)
    }
}

/// As a notification: one that was not taken yet stands for all.
fn push_wake(wakes: &mut Vec<ConnectionId>, id: ConnectionId) {
    if !wakes.contains(&id) {
        wakes.push(id);
    }
}

fn next(counter: &Cell<u64>) -> u64 {
    counter.set(counter.get() + 1);
    counter.get()
}

/// A command as its initiator knows it.
pub(super) struct Command {
    /// Of this command, and no other.
    pub(super) generation: u64,
    pub(super) tag: u32,
    /// Its data is the pattern of this tag.
    pub(super) pattern: u32,
    pub(super) cdb: [u8; 16],
    pub(super) lun: Option<u16>,
    /// Bytes of Data-In that its initiator takes, and has got.
    pub(super) expected_in: u32,
    pub(super) in_sent: u32,
    /// Bytes of data that came.
    pub(super) received: usize,
    pub(super) copy: Option<CopyOrder>,
    /// It has been at the device of its LUN.
    pub(super) began: bool,
    /// What its latest request read.
    pub(super) latest: Option<SgList>,
}

/// What a copy is told.
#[derive(Debug, Clone, Copy)]
pub(super) struct CopyOrder {
    pub(super) from: u16,
    pub(super) to: u16,
    pub(super) lba: u8,
    pub(super) onto: u8,
    pub(super) blocks: u8,
}

impl Command {
    pub(super) fn is_copy(&self) -> bool {
        self.cdb[0] == EXTENDED_COPY
    }
}

/// How far the judgement of a login is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judgement {
    Nobody,
    Waits,
    Known { how: u8 },
}

/// What one connection reaches.
pub(super) struct Reach {
    shared: Rc<Shared>,
    connection: ConnectionId,
    initiator: String,
    /// By the index of their places.
    pub(super) commands: BTreeMap<usize, Command>,
    /// The command whose header is being taken.
    coming: Option<Command>,
    /// Commands that came, and those that were counted as ended.
    begun: u64,
    counted: Cell<u64>,
    pub(super) judgement: Judgement,
    is_discovery: bool,
    pub(super) guest: Option<Visitor>,
    share: Option<Share>,
}

impl Reach {
    pub(super) fn new(shared: Rc<Shared>, connection: ConnectionId) -> Self {
        let is_paced = shared.setting.get().is_paced;
        let share = is_paced.then(|| Share::new(shared.clone(), connection));
        Self {
            shared,
            connection,
            initiator: String::new(),
            commands: BTreeMap::new(),
            coming: None,
            begun: 0,
            counted: Cell::new(0),
            judgement: Judgement::Nobody,
            is_discovery: false,
            guest: None,
            share,
        }
    }

    /// The header of a command comes.
    pub(super) fn expect(&mut self, bhs: &Bhs, copy: Option<CopyOrder>) {
        let ScsiCommand { read, write, lun, itt, expected_len, cdb, .. } = ScsiCommand::parse(bhs);
        self.coming = Some(Command {
            generation: next(&self.shared.generations),
            tag: itt,
            pattern: itt,
            cdb,
            lun: lun.number(),
            expected_in: if read && !write { expected_len } else { 0 },
            in_sent: 0,
            received: 0,
            copy,
            began: false,
            latest: None,
        });
    }

    /// The service has these commands now.
    pub(super) fn follow(&mut self, live: &[(TaskId, u32)]) {
        for (task, tag) in live {
            let command = self.command(*task);
            assert_eq!(command.tag, *tag, "{task:?} is taken by another command");
        }
        self.coming = None;
        let is_live = |at: usize| live.iter().any(|(task, _)| task.index() == at);
        let shared = &self.shared;
        self.commands.retain(|at, command| {
            let goes_on = is_live(*at);
            let runs = !goes_on && shared.is_flying(command.generation);
            assert!(!runs, "place {at} is released while something works for it");
            goes_on
        });
    }

    /// The command of a task, which may be the one that is coming.
    fn command(&mut self, task: TaskId) -> &mut Command {
        let begun = &mut self.begun;
        let coming = &mut self.coming;
        self.commands.entry(task.index()).or_insert_with(|| {
            *begun += 1;
            coming.take().expect("a place belongs to a command that came")
        })
    }

    pub(super) fn with_tag(&mut self, tag: u32) -> Option<&mut Command> {
        self.commands.values_mut().find(|command| command.tag == tag)
    }

    /// The command of a task begins something, which is the only thing that it does.
    fn begin(&mut self, task: TaskId, what: What) {
        let held = self.shared.units.try_borrow_mut().is_err();
        assert!(!held, "the units are held while something begins");
        let generation = self.command(task).generation;
        assert!(!self.shared.is_flying(generation), "{task:?} does two things at a time");
        let (connection, number) = (self.connection, next(&self.shared.generations));
        let one = Flying { connection, task, generation, number, what };
        self.shared.flying.borrow_mut().push(one);
        if let Some(share) = &self.share {
            let flying = self.shared.flying.borrow();
            let own = flying.iter().filter(|one| one.connection == connection);
            let placed = own.filter(|one| one.needs_place()).count();
            assert!(share.places() >= placed, "{placed} commands have {} places", share.places());
        }
    }

    fn let_in(&mut self) -> Entry {
        let Setting { grants, .. } = self.shared.setting.get();
        let Some((kind, mixes)) = grants.filter(|_| !self.is_discovery) else {
            return Entry::Granted(Standing::default());
        };
        // Clamped: any number will do.
        let kind = kind.wrapping_add(if mixes { self.connection.0 as u8 } else { 0 });
        let info = unit(0, false, false).info;
        let guest = Visitor::new(self.shared.clone(), kind, &info);
        let ends_others = guest.governs();
        self.guest = Some(guest);
        Entry::Granted(Standing { ends_others, ..Standing::default() })
    }

    /// A grant allows what is about to be done.
    fn check_right(&self, needs: Needs) {
        let may = self.guest.as_ref().is_none_or(|guest| guest.may(needs).is_ok());
        assert!(may, "a right to {needs:?} was lost before");
    }

    /// The policy of a LUN that is about to be erased does not deny that.
    fn check_erasure(&self, lun: &ServedLun) {
        let (op, offset, len) = (Op::Write, 0, (BLOCKS * BLOCK_LEN) as u64);
        let moment = Moment::BeforeData;
        let access = Access { initiator: &self.initiator, op, offset, len, moment };
        assert!(!lun.denies(&access), "LUN {} must not be erased", lun.number);
    }

    fn check_request(&mut self, task: TaskId, lun: &ServedLun, request: &MediumRequest) {
        let connection = self.connection;
        let command = self.command(task);
        let (visits, generation) = (command.is_copy(), command.generation);
        if visits {
            check_copy(command, lun.number, request);
        } else {
            assert_eq!(command.lun, Some(lun.number), "{request:?} reaches another LUN");
            check_request(command, request);
            command.began = true;
            if kind(command.cdb[0]) != CommandKind::Other {
                let known = lun.users.borrow().contains(&connection);
                assert!(known, "LUN {} does not know who uses it", lun.number);
            }
        }
        let (op, offset, len) = (request.op, request.offset, request.len);
        let moment = Moment::BeforeRequest;
        let access = Access { initiator: &self.initiator, op, offset, len, moment };
        lun.check_arrival(&access, generation, visits);
    }
}

impl Outside for Reach {
    type Lun = SeenLun;
    type Guest = Visitor;
    type Pacing = Share;

    fn units(&self) -> impl DerefMut<Target = TargetDevice> {
        self.shared.units.borrow_mut()
    }

    fn units_and_lun(
        &mut self,
        number: Option<u16>,
    ) -> (impl DerefMut<Target = TargetDevice>, Option<SeenLun>) {
        (self.shared.units.borrow_mut(), number.and_then(|number| self.lun(number)))
    }

    fn lun(&self, number: u16) -> Option<SeenLun> {
        self.shared.find(number).map(SeenLun)
    }

    fn is_current(&self, lun: &SeenLun) -> bool {
        let held = self.shared.units.try_borrow_mut().is_err();
        assert!(held, "a LUN is looked for while the units are free");
        self.shared.find(lun.0.number).is_some_and(|current| Rc::ptr_eq(&current, &lun.0))
    }

    fn node(&self) -> impl DerefMut<Target = Node> {
        self.shared.node.borrow_mut()
    }

    fn wake_others(&self) {
        self.shared.gather_wakes();
    }

    fn guest(&self) -> Option<&Visitor> {
        self.guest.as_ref()
    }

    fn pacing(&self) -> Option<&Share> {
        self.share.as_ref()
    }

    fn initiator(&self) -> &str {
        &self.initiator
    }

    fn submit(
        &mut self,
        task: TaskId,
        lun: Option<&SeenLun>,
        request: MediumRequest,
        place: &Place,
    ) {
        let lun = lun.expect("a unit has a LUN").0.clone();
        self.check_request(task, &lun, &request);
        let guest = self.guest.as_ref();
        let appended = guest.and_then(|guest| guest.check_arrival(&request, place));
        let (place, visits) = (*place, self.command(task).is_copy());
        self.begin(task, What::Request { lun, request, place, visits, appended });
    }

    fn store(&mut self, task: TaskId, lun: Option<&SeenLun>, bytes: Vec<u8>) {
        if let Some(SeenLun(lun)) = lun {
            assert_ne!(lun.house.gate(), Gate::Leaving, "reservations of a LUN that leaves");
            assert!(lun.house.running() > 0, "a store has not entered");
        }
        self.check_right(Needs::Reserve);
        self.command(task).began = true;
        self.begin(task, What::Store { lun: lun.map(|lun| lun.0.clone()), bytes });
    }

    fn wait(&mut self, task: TaskId, lun: Option<&SeenLun>) {
        let lun = lun.expect("a unit has a LUN").0.clone();
        self.check_right(Needs::Govern);
        self.check_erasure(&lun);
        let mut units = self.shared.units.borrow_mut();
        let is_current = self.shared.find(lun.number).is_some_and(|one| Rc::ptr_eq(&one, &lun));
        let is_served = is_current && lun.house.gate() != Gate::Leaving;
        if is_served {
            units.begin_background(lun.number);
        }
        drop(units);
        let result = (!is_served).then_some(Err(ErrorKind::Aborted));
        self.begin(task, What::Wait { lun: lun.number, result });
    }

    fn abandon(&mut self, task: TaskId, lun: u16) {
        for one in self.shared.flying.borrow_mut().iter_mut() {
            if (one.connection, one.task) == (self.connection, task)
                && let What::Wait { lun: at, result } = &mut one.what
            {
                assert_eq!(*at, lun);
                result.get_or_insert(Err(ErrorKind::Aborted));
            }
        }
    }

    fn count(&self, _lun: Option<&SeenLun>, _counted: Counted) {
        self.counted.set(self.counted.get() + 1);
    }

    fn count_aborted(&self, _lun: Option<&SeenLun>) {
        self.counted.set(self.counted.get() + 1);
    }

    fn judge(&mut self, claim: &Claim<'_>) -> Entry {
        let known = credentials();
        if !claim.proves(&known.secret) || claim.name() != known.user {
            return Entry::Refused;
        }
        self.is_discovery = claim.session() == SessionType::Discovery;
        if self.shared.setting.get().judges_late {
            self.judgement = Judgement::Waits;
            return Entry::Later;
        }
        self.let_in()
    }

    fn poll_entry(&mut self) -> Entry {
        match std::mem::replace(&mut self.judgement, Judgement::Nobody) {
            Judgement::Nobody => Entry::Refused,
            Judgement::Waits => {
                self.judgement = Judgement::Waits;
                Entry::Later
            }
            Judgement::Known { how: 0..=5 } => self.let_in(),
            Judgement::Known { how: 6 } => Entry::Exhausted,
            Judgement::Known { .. } => Entry::Refused,
        }
    }

    fn log_in(&mut self, login: LoggedIn) {
        assert!(self.initiator.is_empty(), "a session logs in twice");
        self.initiator = login.initiator;
    }

    fn leave(&mut self) {
        assert!(!self.shared.has_flying(self.connection), "a session leaves its requests");
        assert_eq!(self.begun, self.counted.get(), "each command is counted once");
        if let Some(guest) = &self.guest {
            assert_eq!(guest.running.get(), 0, "a guest leaves its commands");
        }
        if let Some(share) = &self.share {
            share.leave();
        }
        for lun in self.shared.luns.borrow().iter() {
            lun.users.borrow_mut().retain(|user| *user != self.connection);
        }
    }
}
