//! The LUNs of a running target: their devices, policies and statistics, on the target's thread.
//!
//! ```text
//! serving -> held -> serving              the device is changed under a command's feet: not
//! serving -> leaving -> (removed)         new requests are refused, those under way end first
//! ```
//!
//! Invariant: a LUN's device is taken away only while none of its commands is at the device.

use std::{
    cell::{Cell, Ref, RefCell},
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
};

use netraid_block::{Complete, Completion, Device, IoError, Op, SgList};
use netraid_control::derived::Pieces;
use netraid_iscsi_proto::target::ConnectionId;
use netraid_scsi::{MediumRequest, Refusal};
use tokio::sync::Notify;

use super::{
    policy::{Access, Moment, Policy, Verdict},
    reservations::ReservationPlace,
    statistics::Counters,
};

/// Whether requests reach the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    /// They do.
    Open,
    /// Not for a short time.
    Held,
    /// Not any more.
    Leaving,
}

/// Where on a device a request goes, whose sender may not see it as it is.
pub(super) enum Place {
    /// Where it says.
    Same,
    /// There, in order.
    Pieces(Pieces),
}

impl Place {
    /// A request whose bytes are at these places.
    pub(super) fn of(request: &MediumRequest, pieces: Pieces) -> Self {
        match pieces.as_slice() {
            [] => Self::Same,
            [one] if one.offset == request.offset => Self::Same,
            _ => Self::Pieces(pieces),
        }
    }
}

/// One LUN.
pub(super) struct ServedLun {
    number: u16,
    /// Tells apart what had one number at different times; never 0.
    incarnation: u64,
    block_len: u32,
    device: RefCell<Option<Device>>,
    gate: Cell<Gate>,
    /// Counts moves of the gate.
    moves: Cell<u64>,
    policy: RefCell<Option<Box<dyn Policy>>>,
    /// Whether gate or policy have a say: what a request looks at first.
    is_guarded: Cell<bool>,
    /// Commands at the device.
    running: Cell<u32>,
    idle: Notify,
    users: RefCell<Vec<ConnectionId>>,
    reservations: Option<ReservationPlace>,
    pub(super) counters: Counters,
}

impl ServedLun {
    pub(super) const fn number(&self) -> u16 {
        self.number
    }

    pub(super) const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Bytes of a logical block, whatever its device is.
    pub(super) const fn block_len(&self) -> u32 {
        self.block_len
    }

    /// Where its persistent reservations are kept, if they are.
    pub(super) const fn reservations(&self) -> Option<&ReservationPlace> {
        self.reservations.as_ref()
    }

    /// Commands at the device.
    pub(super) fn running(&self) -> u32 {
        self.running.get()
    }

    pub(super) fn gate(&self) -> Gate {
        self.gate.get()
    }

    /// The device; none once it was taken away.
    pub(super) fn device(&self) -> Option<Ref<'_, Device>> {
        Ref::filter_map(self.device.borrow(), Option::as_ref).ok()
    }

    /// Whether [`Self::refusal`] has to be asked.
    pub(super) fn is_guarded(&self) -> bool {
        self.is_guarded.get()
    }

    /// Why this access must not happen, if so. `began`: its command is at the device already,
    /// which whoever holds or removes the LUN waits for.
    #[cold]
    pub(super) fn refusal(&self, access: &Access<'_>, began: bool) -> Option<Refusal> {
        let waits = access.moment == Moment::BeforeRequest && !began;
        match self.gate.get() {
            Gate::Held if waits => return Some(Refusal::Busy),
            Gate::Leaving if waits => return Some(Refusal::Gone),
            Gate::Open | Gate::Held | Gate::Leaving => {}
        }
        match self.policy.borrow_mut().as_mut()?.judge(access) {
            Verdict::Allow => None,
            Verdict::Deny => Some(Refusal::AccessDenied),
        }
    }

    /// A command goes to the device; [`Self::leave`] when it has ended.
    pub(super) fn enter(&self) {
        self.running.set(self.running.get() + 1);
    }

    pub(super) fn leave(&self) {
        let left = self.running.get() - 1;
        self.running.set(left);
        if left == 0 && self.gate.get() != Gate::Open {
            self.idle.notify_waiters();
        }
    }

    pub(super) fn submit(&self, request: MediumRequest, completion: Completion) {
        match &*self.device.borrow() {
            Some(device) => device.submit(request.into_request(completion)),
            // Dropped, it completes as aborted.
            None => drop(completion),
        }
    }

    /// Submits a request to where its bytes are; where these are several places, as one request for
    /// each, and it ends when all of them have.
    #[inline]
    pub(super) fn submit_at(&self, request: MediumRequest, place: &Place, completion: Completion) {
        match place {
            Place::Same => self.submit(request, completion),
            Place::Pieces(pieces) => self.submit_pieces(request, pieces, completion),
        }
    }

    fn submit_pieces(&self, mut request: MediumRequest, pieces: &Pieces, completion: Completion) {
        if let [one] = pieces.as_slice() {
            request.offset = one.offset;
            return self.submit(request, completion);
        }
        let gathered = Gathered::new(pieces.as_slice().len(), completion);
        let mut from = 0;
        for (piece, tag) in pieces.as_slice().iter().zip(0_u64..) {
            let len = usize::try_from(piece.len).unwrap_or(usize::MAX);
            let data = match request.op {
                Op::Write => request.data.slice(from..from + len),
                Op::Read | Op::Flush | Op::Discard | Op::WriteZeroes | Op::Extents => SgList::new(),
            };
            from += len;
            let (op, flags) = (request.op, request.flags);
            let piece = MediumRequest { op, offset: piece.offset, len: piece.len, flags, data };
            self.submit(piece, Completion::new(gathered.clone(), tag));
        }
    }

    pub(super) fn set_gate(&self, gate: Gate) {
        self.gate.set(gate);
        self.moves.set(self.moves.get() + 1);
        self.idle.notify_waiters();
        self.look_at_guards();
    }

    /// Tells apart what the gate was set to at different times.
    pub(super) const fn moves(&self) -> u64 {
        self.moves.get()
    }

    pub(super) fn set_policy(&self, policy: Option<Box<dyn Policy>>) {
        *self.policy.borrow_mut() = policy;
        self.look_at_guards();
    }

    fn look_at_guards(&self) {
        self.is_guarded.set(self.gate.get() != Gate::Open || self.policy.borrow().is_some());
    }

    /// Puts another device in its place.
    pub(super) fn set_device(&self, device: Option<Device>) {
        *self.device.borrow_mut() = device;
    }

    /// Takes the device away; none of its commands may be there.
    pub(super) fn take_device(&self) -> Option<Device> {
        assert_eq!(self.running.get(), 0, "LUN {} loses its device under a command", self.number);
        self.device.borrow_mut().take()
    }

    /// Waits until no command is at the device; new ones must be kept off. False as soon as
    /// somebody moves the gate meanwhile. Cancel safe.
    pub(super) async fn wait_idle(&self) -> bool {
        let moves = self.moves();
        loop {
            if self.moves() != moves {
                return false;
            }
            if self.running.get() == 0 {
                return true;
            }
            self.idle.notified().await;
        }
    }

    /// Notes that a session uses the medium of this LUN.
    pub(super) fn add_user(&self, session: ConnectionId) {
        let mut users = self.users.borrow_mut();
        if !users.contains(&session) {
            users.push(session);
        }
    }

    /// The sessions that have used the medium.
    pub(super) fn users(&self) -> Ref<'_, Vec<ConnectionId>> {
        self.users.borrow()
    }
}

/// All LUNs, by number.
#[derive(Default)]
pub(super) struct LunTable {
    places: RefCell<Vec<Option<Rc<ServedLun>>>>,
    incarnations: Cell<u64>,
}

impl LunTable {
    pub(super) fn get(&self, number: u16) -> Option<Rc<ServedLun>> {
        self.places.borrow().get(usize::from(number))?.clone()
    }

    /// All of them, ascending.
    pub(super) fn all(&self) -> Vec<Rc<ServedLun>> {
        self.places.borrow().iter().flatten().cloned().collect()
    }

    /// Takes a LUN whose number is free.
    pub(super) fn insert(
        &self,
        number: u16,
        device: Device,
        policy: Option<Box<dyn Policy>>,
        reservations: Option<ReservationPlace>,
    ) {
        let incarnation = self.incarnations.get() + 1;
        self.incarnations.set(incarnation);
        let lun = ServedLun {
            number,
            incarnation,
            block_len: device.info().block_len,
            device: RefCell::new(Some(device)),
            gate: Cell::new(Gate::Open),
            moves: Cell::new(0),
            policy: RefCell::new(None),
            is_guarded: Cell::new(false),
            running: Cell::new(0),
            idle: Notify::new(),
            users: RefCell::default(),
            reservations,
            counters: Counters::default(),
        };
        lun.set_policy(policy);
        let mut places = self.places.borrow_mut();
        let at = usize::from(number);
        if places.len() <= at {
            places.resize_with(at + 1, || None);
        }
        assert!(places[at].is_none(), "LUN {number} is taken");
        places[at] = Some(Rc::new(lun));
    }

    pub(super) fn remove(&self, number: u16) {
        if let Some(place) = self.places.borrow_mut().get_mut(usize::from(number)) {
            *place = None;
        }
    }

    /// A session is gone.
    pub(super) fn forget_user(&self, session: ConnectionId) {
        for lun in self.places.borrow().iter().flatten() {
            lun.users.borrow_mut().retain(|user| *user != session);
        }
    }
}

/// One request that is several at the device: its answer is theirs in order, or the first error.
struct Gathered(Mutex<Gathering>);

struct Gathering {
    parts: Vec<SgList>,
    left: usize,
    error: Option<IoError>,
    completion: Option<Completion>,
}

impl Gathered {
    fn new(count: usize, completion: Completion) -> Arc<Self> {
        let parts = vec![SgList::new(); count];
        let completion = Some(completion);
        Arc::new(Self(Mutex::new(Gathering { parts, left: count, error: None, completion })))
    }
}

impl Complete for Gathered {
    fn complete(&self, tag: u64, result: Result<SgList, IoError>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = usize::try_from(tag).unwrap_or(usize::MAX);
        match (result, all.parts.get_mut(at)) {
            (Ok(part), Some(place)) => *place = part,
            (Ok(_), None) => {}
            (Err(error), _) => {
                all.error.get_or_insert(error);
            }
        }
        all.left -= 1;
        if all.left > 0 {
            return;
        }
        let (completion, error) = (all.completion.take(), all.error.take());
        let parts = core::mem::take(&mut all.parts);
        drop(all);
        let mut answer = SgList::new();
        parts.into_iter().for_each(|part| answer.append(part));
        if let Some(completion) = completion {
            completion.finish(error.map_or(Ok(answer), Err));
        }
    }
}
