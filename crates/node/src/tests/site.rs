//! What services reach, and what they did there in its order.

use alloc::{rc::Rc, string::String, vec::Vec};
use core::{
    cell::{Cell, RefCell},
    ops::DerefMut,
};

use netraid_block::{DeviceInfo, Op};
use netraid_control::{
    derived::{ByteRange, Pieces, Ranges, Rights, Rule, SegmentNow, Terms, Verdict},
    units::{Generation, Moment as Instant},
};
use netraid_iscsi_proto::{
    machine::TaskId,
    target::{Claim, ConnectionId, Limits, Node, Realm, Standing},
};
use netraid_scsi::{
    Identity, MediumRequest, Refusal, Reservations, Status, TargetDevice, UnitConfig, View,
};

use super::{BLOCK_LEN, TARGET};
use crate::{
    Access, Barred, Counted, Entry, Gatehouse, Guest, LoggedIn, Lun, Moment, Needs, Outside,
    Pacing, Place, Ticket,
};

pub(super) const CAPACITY: u64 = 64 * BLOCK_LEN as u64;

/// Something that a service did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// Of a LUN, by its number.
    Enter(u16),
    Leave(u16),
    Look(u16, Moment, bool),
    Use(u16),
    /// Of a grant.
    May(Needs),
    Foresee(Op),
    Judge(Op),
    TakeBack(u64, u64),
    GuestEnters,
    GuestLeaves,
    /// Of a pace: of these numbers.
    Ask(u32),
    Withdraw(u32),
    Begin,
    Done,
    Submit(u16, Op, Place),
    Store(Option<u16>),
    Wait(u16),
    Abandon(u16),
    Count(Status),
    CountAborted,
    Gone,
}

/// A target with LUNs 0 and 1.
pub(super) struct Site {
    pub(super) units: RefCell<TargetDevice>,
    pub(super) node: RefCell<Node>,
    pub(super) luns: RefCell<Vec<FakeLun>>,
    pub(super) seen: RefCell<Vec<Seen>>,
    /// Whether LUNs were given to others meanwhile.
    pub(super) are_replaced: Cell<bool>,
}

impl Site {
    pub(super) fn new() -> Rc<Self> {
        let mut node = Node::new(Limits::DEFAULT);
        [0, 1].iter().for_each(|number| node.add_lun(Realm::HOME, *number));
        Rc::new_cyclic(|site| Self {
            units: RefCell::new(TargetDevice::new([config(0), config(1)])),
            node: RefCell::new(node),
            luns: RefCell::new([0, 1].map(|number| FakeLun::new(site.clone(), number)).into()),
            seen: RefCell::default(),
            are_replaced: Cell::new(false),
        })
    }

    pub(super) fn lun(&self, number: u16) -> FakeLun {
        self.luns.borrow()[usize::from(number)].clone()
    }

    /// How many commands are at LUNs 0 and 1.
    pub(super) fn running(&self) -> [u32; 2] {
        [0, 1].map(|number| self.lun(number).state.house.running())
    }

    fn note(&self, seen: Seen) {
        self.seen.borrow_mut().push(seen);
    }
}

fn config(number: u16) -> UnitConfig {
    UnitConfig {
        info: DeviceInfo {
            capacity: CAPACITY,
            block_len: 512,
            optimal_len: 4096,
            max_transfer_len: 1 << 18,
            read_only: false,
            volatile_cache: true,
            can_discard: true,
            can_map: false,
        },
        discard_zeroes: true,
        physical_len: 4096,
        removable: false,
        atomic_len: 4096,
        can_sanitize: true,
        reservations: Reservations::new(true),
        identity: Identity::for_lun(TARGET, number),
    }
}

#[derive(Clone)]
pub(super) struct FakeLun {
    pub(super) state: Rc<LunState>,
}

pub(super) struct LunState {
    site: alloc::rc::Weak<Site>,
    number: u16,
    pub(super) incarnation: Cell<u64>,
    pub(super) house: Gatehouse,
    /// When its policy denies.
    denied: Cell<Option<Moment>>,
}

impl FakeLun {
    fn new(site: alloc::rc::Weak<Site>, number: u16) -> Self {
        let house = Gatehouse::default();
        let (incarnation, denied) = (Cell::new(1), Cell::new(None));
        Self { state: Rc::new(LunState { site, number, incarnation, house, denied }) }
    }

    /// A policy that denies at this moment, or never.
    pub(super) fn set_policy(&self, denied: Option<Moment>) {
        self.state.house.set_policy(true);
        self.state.denied.set(denied);
    }

    fn note(&self, seen: Seen) {
        self.state.site.upgrade().unwrap().note(seen);
    }
}

impl Lun for FakeLun {
    fn number(&self) -> u16 {
        self.state.number
    }

    fn incarnation(&self) -> u64 {
        self.state.incarnation.get()
    }

    fn is_guarded(&self) -> bool {
        self.state.house.is_guarded()
    }

    fn refusal(&self, access: &Access<'_>, began: bool) -> Option<Refusal> {
        self.note(Seen::Look(self.state.number, access.moment, began));
        let is_denied = self.state.denied.get() == Some(access.moment);
        self.state.house.bars(access.moment, began).or(is_denied.then_some(Refusal::AccessDenied))
    }

    fn is_leaving(&self) -> bool {
        self.state.house.gate() == crate::Gate::Leaving
    }

    fn enter(&self) {
        self.state.house.enter();
        self.note(Seen::Enter(self.state.number));
    }

    fn leave(&self) {
        self.state.house.leave();
        self.note(Seen::Leave(self.state.number));
    }

    fn add_user(&self, _session: ConnectionId) {
        let site = self.state.site.upgrade().unwrap();
        assert!(site.units.try_borrow_mut().is_err(), "a use is noted while the units are held");
        self.note(Seen::Use(self.state.number));
    }
}

/// A grant, and what it bars.
pub(super) struct FakeGuest {
    site: Rc<Site>,
    pub(super) bars: Cell<Bars>,
    pub(super) appended: Cell<Option<(u64, u64)>>,
    pieces: Pieces,
    view: Option<View>,
    pub(super) running: Cell<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bars {
    Nothing,
    Needs,
    What(Moment),
}

impl FakeGuest {
    pub(super) fn new(site: &Rc<Site>) -> Self {
        Self {
            site: site.clone(),
            bars: Cell::new(Bars::Nothing),
            appended: Cell::new(None),
            pieces: Pieces::default(),
            view: None,
            running: Cell::new(0),
        }
    }

    /// One whose requests go there.
    pub(super) fn at(site: &Rc<Site>, pieces: Pieces) -> Self {
        Self { pieces, ..Self::new(site) }
    }

    /// One that sees the second half of the device.
    pub(super) fn of_half(site: &Rc<Site>) -> Self {
        let info = DeviceInfo { capacity: CAPACITY / 2, ..config(0).info };
        let range = CAPACITY / 2..CAPACITY;
        let view = Some(View { info, ranges: [range].into() });
        Self { pieces: second_half(), view, ..Self::new(site) }
    }
}

/// The first block of the second half of a device.
pub(super) fn second_half() -> Pieces {
    let half = ByteRange { offset: CAPACITY / 2, len: CAPACITY / 2 };
    let terms = Terms {
        ranges: Ranges::new(&[half]).unwrap(),
        rights: Rights::ALL,
        append_only: false,
        generation: Generation(0),
        expires: Instant(1),
    };
    let rule = Rule::new(terms, CAPACITY, 512).unwrap();
    let now = SegmentNow { generation: Generation(0), end: 0 };
    let block = ByteRange { offset: 0, len: 512 };
    match rule.judge(Op::Read, block, now, Instant(0)) {
        Verdict::Allow(pieces) => pieces,
        Verdict::Deny(denial) => panic!("{denial}"),
    }
}

impl FakeGuest {
    fn is_barred(&self, bars: Bars) -> Result<(), Barred> {
        if self.bars.get() == bars { Err(Barred) } else { Ok(()) }
    }
}

impl Guest for FakeGuest {
    fn may(&self, needs: Needs) -> Result<(), Barred> {
        self.site.note(Seen::May(needs));
        self.is_barred(Bars::Needs)
    }

    fn foresee(&self, request: (Op, u64, u64)) -> Result<(), Barred> {
        self.site.note(Seen::Foresee(request.0));
        self.is_barred(Bars::What(Moment::BeforeData))
    }

    fn judge(&self, request: (Op, u64, u64)) -> Result<(Pieces, Option<(u64, u64)>), Barred> {
        self.site.note(Seen::Judge(request.0));
        self.is_barred(Bars::What(Moment::BeforeRequest))?;
        Ok((self.pieces, self.appended.get()))
    }

    fn take_back(&self, before: u64, end: u64) {
        self.site.note(Seen::TakeBack(before, end));
    }

    fn enter(&self) {
        self.running.set(self.running.get() + 1);
        self.site.note(Seen::GuestEnters);
    }

    fn leave(&self) {
        self.running.set(self.running.get() - 1);
        self.site.note(Seen::GuestLeaves);
    }

    fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }
}

pub(super) struct FakePacing {
    site: Rc<Site>,
    pub(super) asked: RefCell<Vec<Ticket>>,
    pub(super) granted: RefCell<Vec<Ticket>>,
    pub(super) places: Cell<i32>,
}

impl FakePacing {
    /// What was asked for first is granted.
    pub(super) fn grant(&self) -> Ticket {
        let ticket = self.asked.borrow_mut().remove(0);
        self.places.set(self.places.get() + i32::from(ticket.executes));
        self.granted.borrow_mut().push(ticket);
        ticket
    }
}

impl Pacing for FakePacing {
    fn ask(&self, ticket: Ticket, _len: u32) {
        self.site.note(Seen::Ask(ticket.number));
        self.asked.borrow_mut().push(ticket);
    }

    fn take(&self) -> Option<Ticket> {
        self.granted.borrow_mut().pop()
    }

    fn begun(&self) {
        self.site.note(Seen::Begin);
        self.places.set(self.places.get() + 1);
    }

    fn done(&self) {
        self.site.note(Seen::Done);
        self.places.set(self.places.get() - 1);
    }

    fn withdraw(&self, number: u32) {
        self.site.note(Seen::Withdraw(number));
        self.asked.borrow_mut().retain(|ticket| ticket.number != number);
    }
}

/// What one connection reaches.
pub(super) struct Fake {
    pub(super) site: Rc<Site>,
    pub(super) connection: ConnectionId,
    initiator: String,
    pub(super) guest: Option<FakeGuest>,
    pub(super) pacing: Option<FakePacing>,
    /// What is said of a login.
    pub(super) entry: Entry,
    /// What is under way: requests, and stores and waits without one.
    pub(super) under_way: Vec<(TaskId, Option<MediumRequest>)>,
}

impl Fake {
    pub(super) fn new(site: Rc<Site>, connection: ConnectionId, is_paced: bool) -> Self {
        let pacing = is_paced.then(|| FakePacing {
            site: site.clone(),
            asked: RefCell::default(),
            granted: RefCell::default(),
            places: Cell::new(0),
        });
        Self {
            site,
            connection,
            initiator: String::new(),
            guest: None,
            pacing,
            entry: Entry::Granted(Standing::default()),
            under_way: Vec::new(),
        }
    }

    pub(super) fn pace(&self) -> &FakePacing {
        self.pacing.as_ref().unwrap()
    }

    pub(super) fn grant(&self) -> &FakeGuest {
        self.guest.as_ref().unwrap()
    }
}

impl Outside for Fake {
    type Lun = FakeLun;
    type Guest = FakeGuest;
    type Pacing = FakePacing;

    fn units(&self) -> impl DerefMut<Target = TargetDevice> {
        self.site.units.borrow_mut()
    }

    fn units_and_lun(
        &mut self,
        number: Option<u16>,
    ) -> (impl DerefMut<Target = TargetDevice>, Option<FakeLun>) {
        (self.site.units.borrow_mut(), number.and_then(|number| self.lun(number)))
    }

    fn lun(&self, number: u16) -> Option<FakeLun> {
        self.site.luns.borrow().get(usize::from(number)).cloned()
    }

    fn is_current(&self, _lun: &FakeLun) -> bool {
        assert!(self.site.units.try_borrow_mut().is_err(), "the units are held");
        !self.site.are_replaced.get()
    }

    fn node(&self) -> impl DerefMut<Target = Node> {
        self.site.node.borrow_mut()
    }

    fn wake_others(&self) {}

    fn guest(&self) -> Option<&FakeGuest> {
        self.guest.as_ref()
    }

    fn pacing(&self) -> Option<&FakePacing> {
        self.pacing.as_ref()
    }

    fn initiator(&self) -> &str {
        &self.initiator
    }

    fn submit(
        &mut self,
        task: TaskId,
        lun: Option<&FakeLun>,
        request: MediumRequest,
        place: &Place,
    ) {
        self.site.note(Seen::Submit(lun.unwrap().state.number, request.op, *place));
        self.under_way.push((task, Some(request)));
    }

    fn store(&mut self, task: TaskId, lun: Option<&FakeLun>, _bytes: Vec<u8>) {
        self.site.note(Seen::Store(lun.map(|lun| lun.state.number)));
        self.under_way.push((task, None));
    }

    fn wait(&mut self, task: TaskId, lun: Option<&FakeLun>) {
        self.site.note(Seen::Wait(lun.unwrap().state.number));
        self.under_way.push((task, None));
    }

    fn abandon(&mut self, _task: TaskId, lun: u16) {
        self.site.note(Seen::Abandon(lun));
    }

    fn count(&self, _lun: Option<&FakeLun>, counted: Counted) {
        self.site.note(Seen::Count(counted.status));
    }

    fn count_aborted(&self, _lun: Option<&FakeLun>) {
        self.site.note(Seen::CountAborted);
    }

    fn judge(&mut self, _claim: &Claim<'_>) -> Entry {
        self.entry
    }

    fn poll_entry(&mut self) -> Entry {
        self.entry
    }

    fn log_in(&mut self, login: LoggedIn) {
        self.initiator = login.initiator;
    }

    fn leave(&mut self) {
        self.site.note(Seen::Gone);
    }
}
