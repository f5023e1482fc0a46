//! The LUNs of a running target: their devices, policies and statistics.
//!
//! Whether requests reach a device is said by its LUN's gate (`netraid_node::Gatehouse`).

use std::{
    rc::Rc,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use netraid_block::{Complete, Completion, Device, IoError, Op, SgList, narrow};
use netraid_control::derived::Pieces;
use netraid_iscsi_proto::target::ConnectionId;
use netraid_node::{Access, Gate, Gatehouse, Place, Policy};
use netraid_scsi::{LogicalUnit, MediumRequest, NexusId, Refusal};
use tokio::sync::Notify;

use super::{
    cells::Guarded,
    reservations::ReservationPlace,
    statistics::{CommandCounts, Counters},
};

/// One LUN.
pub(super) struct ServedLun {
    number: u16,
    /// Tells apart what had one number at different times; never 0.
    incarnation: u64,
    block_len: u32,
    /// Requests of all threads go to it at a time.
    device: RwLock<Option<Device>>,
    house: Gatehouse,
    policy: Guarded<Option<Box<dyn Policy>>>,
    idle: Notify,
    users: Guarded<Vec<ConnectionId>>,
    reservations: Option<ReservationPlace>,
    /// Of each thread.
    counters: Box<[Counters]>,
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
        self.house.running()
    }

    pub(super) fn gate(&self) -> Gate {
        self.house.gate()
    }

    /// The device; none once it was taken away.
    pub(super) fn device(&self) -> Option<Device> {
        self.device.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What a thread of the target counts.
    pub(super) fn counters(&self, thread: usize) -> &Counters {
        &self.counters[thread]
    }

    /// What all threads counted.
    pub(super) fn counts(&self) -> CommandCounts {
        let counts = self.counters.iter().map(Counters::snapshot);
        counts.fold(CommandCounts::default(), CommandCounts::plus)
    }

    /// Whether [`Self::refusal`] has to be asked.
    pub(super) fn is_guarded(&self) -> bool {
        self.house.is_guarded()
    }

    /// Why this access must not happen, if so. `began`: its command was at the device before this
    /// access, which whoever holds or removes the LUN waits for. What goes to the device has entered
    /// when this is asked.
    #[cold]
    pub(super) fn refusal(&self, access: &Access<'_>, began: bool) -> Option<Refusal> {
        if let Some(refusal) = self.house.bars(access.moment, began) {
            return Some(refusal);
        }
        self.policy.lock().as_mut()?.judge(access).refusal()
    }

    /// A command goes to the device; [`Self::leave`] when it has ended.
    pub(super) fn enter(&self) {
        self.house.enter();
    }

    pub(super) fn leave(&self) {
        if self.house.leave() {
            self.idle.notify_waiters();
        }
    }

    pub(super) fn submit(&self, request: MediumRequest, completion: Completion) {
        match &*self.device.read().unwrap_or_else(PoisonError::into_inner) {
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
        let all: u64 = pieces.as_slice().iter().map(|piece| piece.len).sum();
        assert_eq!(all, request.len, "the pieces of a request are all of it");
        if let [one] = pieces.as_slice() {
            request.offset = one.offset;
            return self.submit(request, completion);
        }
        let gathered = Gathered::new(pieces.as_slice().len(), completion);
        let mut from = 0;
        for (piece, tag) in pieces.as_slice().iter().zip(0_u64..) {
            let data = match request.op {
                Op::Write => request.data.slice(narrow(from)..narrow(from + piece.len)),
                Op::Read | Op::Flush | Op::Discard | Op::WriteZeroes | Op::Extents => SgList::new(),
            };
            from += piece.len;
            let (op, flags) = (request.op, request.flags);
            let piece = MediumRequest { op, offset: piece.offset, len: piece.len, flags, data };
            self.submit(piece, Completion::new(gathered.clone(), tag));
        }
    }

    pub(super) fn set_gate(&self, gate: Gate) {
        self.house.set(gate);
        self.idle.notify_waiters();
    }

    /// Tells apart what the gate was set to at different times.
    pub(super) fn moves(&self) -> u64 {
        self.house.moves()
    }

    pub(super) fn set_policy(&self, policy: Option<Box<dyn Policy>>) {
        let mut place = self.policy.lock();
        self.house.set_policy(policy.is_some());
        *place = policy;
    }

    /// Puts another device, or none, in the place of this one.
    pub(super) fn replace_device(&self, device: Option<Device>) -> Option<Device> {
        let mut place = self.device.write().unwrap_or_else(PoisonError::into_inner);
        core::mem::replace(&mut place, device)
    }

    /// Waits until no command is at the device; new ones must be kept off. False as soon as
    /// somebody moves the gate meanwhile. Cancel safe.
    pub(super) async fn wait_idle(&self) -> bool {
        let moves = self.moves();
        loop {
            // What ends between the look and the wait is told all the same.
            let mut told = std::pin::pin!(self.idle.notified());
            told.as_mut().enable();
            if self.moves() != moves {
                return false;
            }
            if self.running() == 0 {
                return true;
            }
            told.await;
        }
    }

    /// Notes that a session uses the medium of this LUN.
    pub(super) fn add_user(&self, session: ConnectionId) {
        let mut users = self.users.lock();
        if !users.contains(&session) {
            users.push(session);
        }
    }

    /// The sessions that use this LUN, whose logical unit `unit` is.
    pub(super) fn users(&self, unit: Option<&LogicalUnit>) -> Vec<ConnectionId> {
        let claimants = unit.into_iter().flat_map(LogicalUnit::claimants);
        users(&self.users.lock(), claimants)
    }
}

/// The sessions that use a LUN: those that have used the medium, and those that count on it without having
/// done so yet (see [`LogicalUnit::claimants`]), as after a break of the network. Each is there once.
fn users(used: &[ConnectionId], claimants: impl Iterator<Item = NexusId>) -> Vec<ConnectionId> {
    let mut users = used.to_vec();
    for session in claimants.map(|nexus| ConnectionId(nexus.0)) {
        if !users.contains(&session) {
            users.push(session);
        }
    }
    users
}

/// All LUNs, by number.
pub(super) struct LunTable {
    places: Guarded<Vec<Option<Arc<ServedLun>>>>,
    /// Counts changes.
    version: AtomicU64,
    /// Of the target.
    threads: usize,
}

impl LunTable {
    /// No LUNs, of a target with so many threads.
    pub(super) fn new(threads: usize) -> Self {
        Self { places: Guarded::default(), version: AtomicU64::new(0), threads }
    }

    pub(super) fn get(&self, number: u16) -> Option<Arc<ServedLun>> {
        self.places.lock().get(usize::from(number))?.clone()
    }

    /// Changes whenever a LUN comes or goes.
    pub(super) fn version(&self) -> u64 {
        self.version.load(SeqCst)
    }

    /// All of them, ascending.
    pub(super) fn all(&self) -> Vec<Arc<ServedLun>> {
        self.places.lock().iter().flatten().cloned().collect()
    }

    /// Takes a LUN whose number is free.
    pub(super) fn insert(
        &self,
        number: u16,
        device: Device,
        policy: Option<Box<dyn Policy>>,
        reservations: Option<ReservationPlace>,
    ) {
        // Before the table is looked at anew by whoever sees it.
        let mut places = self.places.lock();
        let incarnation = self.version.fetch_add(1, SeqCst) + 1;
        let lun = ServedLun {
            number,
            incarnation,
            block_len: device.info().block_len,
            device: RwLock::new(Some(device)),
            house: Gatehouse::default(),
            policy: Guarded::new(None),
            idle: Notify::new(),
            users: Guarded::default(),
            reservations,
            counters: (0..self.threads).map(|_| Counters::default()).collect(),
        };
        lun.set_policy(policy);
        let at = usize::from(number);
        if places.len() <= at {
            places.resize_with(at + 1, || None);
        }
        assert!(places[at].is_none(), "LUN {number} is taken");
        places[at] = Some(Arc::new(lun));
    }

    pub(super) fn remove(&self, number: u16) {
        let mut places = self.places.lock();
        if let Some(place) = places.get_mut(usize::from(number)) {
            *place = None;
        }
        self.version.fetch_add(1, SeqCst);
    }

    /// A session is gone.
    pub(super) fn forget_user(&self, session: ConnectionId) {
        for lun in self.all() {
            lun.users.lock().retain(|user| *user != session);
        }
    }
}

/// What one connection has looked up of a table: it looks again when the table has changed.
#[derive(Default)]
pub(super) struct SeenLuns {
    version: u64,
    luns: Vec<Option<SeenLun>>,
}

/// A LUN that one connection counts its uses of, without a word to other threads.
#[derive(Clone)]
pub(super) struct SeenLun(Rc<Seen>);

struct Seen(Arc<ServedLun>);

impl SeenLun {
    pub(super) fn new(lun: Arc<ServedLun>) -> Self {
        Self(Rc::new(Seen(lun)))
    }
}

impl core::ops::Deref for SeenLun {
    type Target = Arc<ServedLun>;

    fn deref(&self) -> &Self::Target {
        &self.0.0
    }
}

impl SeenLuns {
    /// The LUN of this number in the table, which must be the same one each time.
    #[inline]
    pub(super) fn get(&mut self, table: &LunTable, number: u16) -> Option<SeenLun> {
        let version = table.version();
        if self.version != version {
            self.luns.clear();
            self.version = version;
        }
        match self.luns.get(usize::from(number)) {
            Some(Some(lun)) => Some(lun.clone()),
            Some(None) | None => self.look_up(table, number),
        }
    }

    #[cold]
    fn look_up(&mut self, table: &LunTable, number: u16) -> Option<SeenLun> {
        let lun = SeenLun::new(table.get(number)?);
        let at = usize::from(number);
        if self.luns.len() <= at {
            self.luns.resize(at + 1, None);
        }
        self.luns[at] = Some(lun.clone());
        Some(lun)
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
        match result {
            Ok(part) => all.parts[narrow::<_, usize>(tag)] = part,
            Err(error) => {
                all.error.get_or_insert(error);
            }
        }
        assert!(all.left > 0, "a piece ends twice");
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
