//! The segments of a target that lets in by tokens: which are open, who uses them, and the orders of
//! their owner.
//!
//! ```text
//! (unknown) -> opening -> open <-> asleep      nobody has used it for a while: its device is
//!                                              closed, its reservations are remembered
//! opening, open, asleep -> closing -> (unknown)
//! ```
//!
//! A segment is a realm of its own, with one logical unit, LUN 0.
//!
//! Invariants: a session that a token let in is among its segment's guests until none of its
//! commands is at the device, whatever has become of its connection. A generation never goes back,
//! and one that was raised while the segment was being opened counts.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use netraid_block::DeviceInfo;
use netraid_control::units::{Generation, MediatorId, Moment, PlanId, SegmentId};
use netraid_iscsi_proto::target::{ConnectionId, Realm};
use netraid_node::{Gate, Written};
use netraid_scsi::Identity;
use tokio::{sync::Notify, task::JoinHandle, time::Instant};

use super::{
    Admission, Admitted, Lun, NotOpened, Opened, Shared,
    cells::Guarded,
    control::{CommandError, DRAIN_LIMIT},
    guests::Guest,
    pacing::Pace,
    realm::ServedRealm,
};

/// How often it is looked after whose time is over.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);
/// Segments that are asleep, and hold no reservations, are forgotten beyond so many.
const ASLEEP_MAX: usize = 1024;

/// Whose segment, and which.
pub(super) type Key = (MediatorId, SegmentId);

/// What a target knows of its segments.
pub(super) struct Segments {
    pub(super) admission: Arc<dyn Admission>,
    idle_limit: Duration,
    table: Guarded<BTreeMap<Key, Arc<Segment>>>,
    last_realm: Guarded<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Opening,
    Open,
    Asleep,
    Closing,
    Gone,
}

/// One segment.
pub(super) struct Segment {
    key: Key,
    realm: Arc<ServedRealm>,
    stage: Guarded<Stage>,
    generation: AtomicU64,
    written: Guarded<Written>,
    /// What `written` says of sessions that do not append: writes below it leave that alone.
    floor: AtomicU64,
    guests: Guarded<Vec<Arc<Guest>>>,
    /// Since when there are no guests.
    idle_since: Guarded<Instant>,
    /// Logins that wait for it to be open.
    knocks: Guarded<Vec<Arc<Knock>>>,
    /// Its device, as long as it is being closed.
    closing: Guarded<Option<JoinHandle<()>>>,
    /// Something has ended here.
    changed: Notify,
}

/// What becomes of a login that waits for its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Knocked {
    /// The segment is open.
    Open,
    /// The segment is not served.
    Shut,
    /// The host lacks what the segment takes.
    Exhausted,
}

/// A login that waits for its segment.
pub(super) struct Knock {
    pub(super) admitted: Admitted,
    segment: Arc<Segment>,
    /// What became of it, once that is known.
    answer: Guarded<Option<Knocked>>,
    waker: Arc<Notify>,
}

impl Knock {
    pub(super) fn answer(&self) -> Option<Knocked> {
        self.answer.get()
    }
}

impl Segment {
    pub(super) const fn realm(&self) -> &Arc<ServedRealm> {
        &self.realm
    }

    pub(super) fn generation(&self) -> Generation {
        Generation(self.generation.load(SeqCst))
    }

    pub(super) const fn written(&self) -> &Guarded<Written> {
        &self.written
    }

    /// A write of a session that does not append is on its way, up to here.
    pub(super) fn write_to(&self, end: u64) {
        if end > self.floor.load(SeqCst) {
            let mut written = self.written.lock();
            written.write_to(end);
            self.floor.store(written.floor(), SeqCst);
        }
    }

    /// What its device is; none while that is closed.
    pub(super) fn info(&self) -> Option<DeviceInfo> {
        let lun = self.realm.luns.get(0)?;
        let device = lun.device()?;
        Some(device.info().clone())
    }

    /// Something has ended here that somebody may wait for.
    pub(super) fn notify(&self) {
        self.changed.notify_waiters();
    }

    fn raise(&self, generation: Generation) {
        self.generation.fetch_max(generation.0, SeqCst);
    }

    /// Commands at the device of guests that `chosen` names.
    fn running(&self, chosen: impl Fn(&Guest) -> bool) -> u32 {
        let guests = self.guests.lock();
        guests.iter().filter(|guest| chosen(guest)).map(|guest| guest.running()).sum()
    }

    /// Waits until no command of theirs is at the device, for a bounded time.
    async fn drain(&self, chosen: impl Fn(&Guest) -> bool) -> Result<(), CommandError> {
        let deadline = Instant::now() + DRAIN_LIMIT;
        loop {
            // Made before the count: a command that ends after the count wakes it.
            let changed = self.changed.notified();
            let running = self.running(&chosen);
            if running == 0 {
                return Ok(());
            }
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                return Err(CommandError::SegmentStuck { segment: self.key.1, running });
            }
        }
    }

    fn answer_knocks(&self, answer: Knocked) {
        let knocks = core::mem::take(&mut *self.knocks.lock());
        for knock in knocks {
            knock.answer.set(Some(answer));
            knock.waker.notify_one();
        }
    }

    /// Lets the device go, on a thread that may block.
    fn close_device(&self) {
        let Some(lun) = self.realm.luns.get(0) else { return };
        // At a gate that is shut, commands enter for a moment, and go no further.
        let is_unused = lun.gate() == Gate::Leaving || lun.running() == 0;
        assert!(is_unused, "segment {} loses its device under a command", self.key.1);
        let device = lun.replace_device(None);
        if let Some(device) = device {
            *self.closing.lock() = Some(tokio::task::spawn_blocking(move || drop(device)));
        }
    }

    /// Waits until the device that was let go is closed.
    async fn closed(&self) {
        let closing = self.closing.lock().take();
        if let Some(closing) = closing {
            // A panic there has told of itself.
            let _ = closing.await;
        }
    }
}

impl Segments {
    pub(super) fn new(admission: Arc<dyn Admission>, idle_limit: Duration) -> Self {
        Self { admission, idle_limit, table: Guarded::default(), last_realm: Guarded::new(0) }
    }

    fn get(&self, key: Key) -> Option<Arc<Segment>> {
        self.table.lock().get(&key).cloned()
    }

    fn all(&self) -> Vec<Arc<Segment>> {
        self.table.lock().values().cloned().collect()
    }

    fn guests_of(&self, plan: (MediatorId, PlanId)) -> Vec<Arc<Guest>> {
        let mut found = Vec::new();
        for segment in self.table.lock().values() {
            let guests = segment.guests.lock();
            found.extend(guests.iter().filter(|guest| guest.is_of(plan)).cloned());
        }
        found
    }

    /// A session is gone, and none of its commands runs any more.
    pub(super) fn leave(&self, guest: &Guest) {
        let segment = &guest.segment;
        let mut guests = segment.guests.lock();
        assert_eq!(guest.running(), 0, "a session leaves its segment under a command");
        let before = guests.len();
        guests.retain(|known| known.connection != guest.connection);
        assert_eq!(before - guests.len(), 1, "a session leaves its segment once");
        if guests.is_empty() {
            segment.idle_since.set(Instant::now());
        }
        drop(guests);
        segment.notify();
    }
}

impl Shared {
    /// A login was admitted to a segment: waits until that is open, as `Knock::answer` and `waker`
    /// will say; perhaps it is.
    pub(super) fn knock(
        self: &Arc<Self>,
        segments: &Segments,
        admitted: Admitted,
        waker: Arc<Notify>,
    ) -> Arc<Knock> {
        let token = admitted.grant.token();
        let key = (token.mediator, token.segment);
        let segment = segments.get(key).unwrap_or_else(|| {
            let realm = segments.last_realm.get() + 1;
            segments.last_realm.set(realm);
            let segment = Arc::new(Segment {
                key,
                realm: ServedRealm::new(Realm(realm), 1),
                stage: Guarded::new(Stage::Asleep),
                generation: AtomicU64::default(),
                written: Guarded::default(),
                floor: AtomicU64::default(),
                guests: Guarded::default(),
                idle_since: Guarded::new(Instant::now()),
                knocks: Guarded::default(),
                closing: Guarded::default(),
                changed: Notify::new(),
            });
            segments.table.lock().insert(key, segment.clone());
            segment
        });
        let answer = Guarded::new(None);
        let knock = Arc::new(Knock { admitted, segment: segment.clone(), answer, waker });
        match segment.stage.get() {
            Stage::Open => knock.answer.set(Some(Knocked::Open)),
            Stage::Closing | Stage::Gone => knock.answer.set(Some(Knocked::Shut)),
            Stage::Opening => segment.knocks.lock().push(knock.clone()),
            Stage::Asleep => {
                segment.knocks.lock().push(knock.clone());
                segment.stage.set(Stage::Opening);
                let open = open(self.clone(), segments.admission.clone(), segment);
                tokio::task::spawn_local(open);
            }
        }
        knock
    }

    /// Makes a guest of a login whose segment is open; none when its grant does not fit that, or
    /// does not hold any more.
    pub(super) fn enter(
        &self,
        segments: &Segments,
        connection: ConnectionId,
        knock: &Knock,
    ) -> Option<Arc<Guest>> {
        let segment = knock.segment.clone();
        let token = knock.admitted.grant.token();
        assert_eq!((token.mediator, token.segment), segment.key, "a grant of this segment");
        // Its agent has raised it already, and is about to say so.
        segment.raise(token.terms.generation);
        let now = segments.admission.now();
        match Guest::new(connection, segment.clone(), knock.admitted, now) {
            Ok(guest) => {
                let guest = Arc::new(guest);
                let mut guests = segment.guests.lock();
                // Whoever closes or fences the segment looks at the guests after that: this one is among them, or finds it here.
                // Its plan may have been ended, or its key taken back, while it waited.
                let is_late = segment.stage.get() != Stage::Open
                    || guest.holds(now).is_err()
                    || !segments.admission.stands(guest.grant());
                if is_late {
                    let plan = guest.grant().token().plan;
                    tracing::info!(segment = %segment.key.1, %plan, "who waited is let in no more");
                    return None;
                }
                guests.push(guest.clone());
                Some(guest)
            }
            Err(error) => {
                if self.may_tell() {
                    tracing::warn!(segment = %segment.key.1, %error, "nobody is let in");
                }
                None
            }
        }
    }

    fn opened(&self, segment: &Segment, opened: Opened) -> Result<(), String> {
        let Opened { mut lun, generation, end_bytes } = opened;
        let info = lun.device.info().clone();
        segment.raise(generation);
        segment.write_to(end_bytes);
        if let Some(known) = segment.realm.luns.get(0) {
            let was = known.block_len();
            if was != info.block_len {
                return Err(format!("its blocks had {was} bytes, and now have {}", info.block_len));
            }
            segment.realm.units.lock().handle_changed(0, info);
            known.set_policy(lun.policy.take());
            drop(known.replace_device(Some(lun.device)));
            return Ok(());
        }
        let (mediator, id) = segment.key;
        let lun = Lun {
            sanitizing: None,
            removable: false,
            identity: Some(lun.identity.unwrap_or_else(|| Identity {
                target_name: self.setup.name.clone(),
                ..Identity::for_lun(&format!("{mediator}/{id}"), 0)
            })),
            ..lun
        };
        self.add_lun(&segment.realm, Some(0), lun).map(|_| ()).map_err(|error| error.to_string())
    }

    /// Ends the sessions of these guests: nothing of theirs begins any more.
    fn end_guests<'a>(&self, guests: impl Iterator<Item = &'a Arc<Guest>>, why: &str) -> usize {
        let mut count = 0;
        for guest in guests {
            if guest.end() {
                count += 1;
                let (session, token) = (guest.connection.0, guest.grant().token());
                tracing::info!(session, plan = %token.plan, segment = %token.segment, "{why}");
                self.node.lock().drop_connection(guest.connection);
            }
        }
        self.wake();
        count
    }

    fn segments(&self) -> Result<&Segments, CommandError> {
        self.segments.as_ref().ok_or(CommandError::NoSegments)
    }

    pub(super) async fn raise_generation(
        self: Arc<Self>,
        key: Key,
        generation: Generation,
    ) -> Result<(), CommandError> {
        // Whoever opens one later learns its generation then.
        let Some(segment) = self.segments()?.get(key) else { return Ok(()) };
        segment.raise(generation);
        let current = segment.generation();
        let fenced = |guest: &Guest| guest.grant().token().terms.generation < current;
        let guests = segment.guests.lock().clone();
        self.end_guests(guests.iter().filter(|guest| fenced(guest)), "fenced: the session ends");
        segment.drain(fenced).await
    }

    pub(super) async fn close_segment(self: Arc<Self>, key: Key) -> Result<(), CommandError> {
        let Some(segment) = self.segments()?.get(key) else { return Ok(()) };
        let is_first = segment.stage.get() != Stage::Closing;
        let opens = segment.stage.replace(Stage::Closing) == Stage::Opening;
        let guests = segment.guests.lock().clone();
        self.end_guests(guests.iter(), "its segment is closed: the session ends");
        if is_first && !opens {
            // It goes on when nobody waits for it any more.
            tokio::task::spawn_local(close(self.clone(), segment.clone()));
        }
        let deadline = Instant::now() + DRAIN_LIMIT;
        loop {
            // Made before the look: a stage that is set after the look wakes it.
            let changed = segment.changed.notified();
            if segment.stage.get() == Stage::Gone {
                return Ok(());
            }
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                let running = segment.running(|_| true);
                return Err(CommandError::SegmentStuck { segment: key.1, running });
            }
        }
    }

    pub(super) fn extend_plan(
        &self,
        plan: (MediatorId, PlanId),
        until: Moment,
    ) -> Result<usize, CommandError> {
        let mut guests = self.segments()?.guests_of(plan);
        guests.retain(|guest| !guest.has_ended());
        guests.iter().for_each(|guest| guest.extend(until));
        Ok(guests.len())
    }

    pub(super) fn set_plan_pace(
        &self,
        plan: (MediatorId, PlanId),
        pace: Pace,
    ) -> Result<usize, CommandError> {
        let guests = self.segments()?.guests_of(plan);
        let paced = self.paced.as_ref().ok_or(CommandError::NotPaced)?;
        let set = paced.set_plan_pace(self.started.elapsed(), plan, pace);
        set.map_err(|source| CommandError::PlanPace { plan: plan.1, source })?;
        Ok(guests.len())
    }

    pub(super) async fn end_plan(
        self: Arc<Self>,
        plan: (MediatorId, PlanId),
    ) -> Result<usize, CommandError> {
        let guests = self.segments()?.guests_of(plan);
        let count = self.end_guests(guests.iter(), "its plan is ended: the session ends");
        for guest in &guests {
            guest.segment.drain(|other| other.is_of(plan) && other.has_ended()).await?;
        }
        Ok(count)
    }
}

/// Opens a segment, and tells those who wait for it.
async fn open(shared: Arc<Shared>, admission: Arc<dyn Admission>, segment: Arc<Segment>) {
    let (mediator, id) = segment.key;
    segment.closed().await;
    let opened = tokio::task::spawn_blocking(move || admission.open(mediator, id)).await;
    let opened = opened.unwrap_or_else(|error| Err(error.to_string().into()));
    if segment.stage.get() == Stage::Closing {
        drop(opened);
        segment.answer_knocks(Knocked::Shut);
        return close(shared, segment).await;
    }
    let opened = opened.and_then(|opened| Ok(shared.opened(&segment, opened)?));
    match opened {
        Ok(()) => {
            segment.idle_since.set(Instant::now());
            segment.stage.set(Stage::Open);
            segment.answer_knocks(Knocked::Open);
        }
        Err(error) => {
            if shared.may_tell() {
                tracing::warn!(%mediator, segment = %id, %error, "a segment cannot be opened");
            }
            segment.stage.set(Stage::Asleep);
            segment.answer_knocks(match error {
                NotOpened::Unusable(_) => Knocked::Shut,
                NotOpened::Exhausted(_) => Knocked::Exhausted,
            });
            if segment.realm.luns.get(0).is_none() {
                forget(&shared, &segment);
            }
        }
    }
}

/// Closes a segment for good, once nothing is at its device.
async fn close(shared: Arc<Shared>, segment: Arc<Segment>) {
    loop {
        // Made before the count: a command that ends after the count wakes it.
        let changed = segment.changed.notified();
        if segment.running(|_| true) == 0 {
            break;
        }
        changed.await;
    }
    // Commands of sessions that were ended still enter the LUN for a moment, before their permits refuse them.
    if let Some(lun) = segment.realm.luns.get(0) {
        lun.set_gate(Gate::Leaving);
        while !lun.wait_idle().await {}
    }
    segment.close_device();
    segment.closed().await;
    forget(&shared, &segment);
}

fn forget(shared: &Shared, segment: &Segment) {
    segment.stage.set(Stage::Gone);
    if let Some(segments) = &shared.segments {
        segments.table.lock().remove(&segment.key);
    }
    shared.node.lock().remove_lun(segment.realm.id, 0);
    segment.notify();
}

/// Ends sessions whose time is over, and closes the devices that nobody uses, as long as the target
/// serves.
pub(super) async fn watch(shared: Arc<Shared>) {
    let Some(segments) = &shared.segments else { return };
    loop {
        tokio::time::sleep(WATCH_INTERVAL).await;
        let now = segments.admission.now();
        let mut asleep = Vec::new();
        for segment in segments.all() {
            let guests = segment.guests.lock().clone();
            let is_over = |guest: &Guest| {
                guest.holds(now).is_err() || !segments.admission.stands(guest.grant())
            };
            let lapsed = guests.iter().filter(|guest| is_over(guest));
            shared.end_guests(lapsed, "its grant is over: the session ends");
            if segment.falls_asleep(segments.idle_limit) {
                segment.close_device();
            }
            if segment.stage.get() == Stage::Asleep {
                asleep.push(segment);
            }
        }
        if asleep.len() > ASLEEP_MAX {
            asleep.retain(|segment| !segment.holds_reservations());
            asleep.sort_by_key(|segment| segment.idle_since.get());
            let excess = asleep.len().saturating_sub(ASLEEP_MAX);
            asleep.iter().take(excess).for_each(|segment| forget(&shared, segment));
        }
    }
}

impl Segment {
    /// An open segment that nobody has used for so long is asleep from now on; whether it is one.
    fn falls_asleep(&self, idle_limit: Duration) -> bool {
        // Nobody is let in meanwhile.
        let guests = self.guests.lock();
        let is_used = !guests.is_empty() || !self.knocks.lock().is_empty();
        let sleeps = self.stage.get() == Stage::Open
            && !is_used
            && self.idle_since.get().elapsed() >= idle_limit;
        if sleeps {
            self.stage.set(Stage::Asleep);
        }
        sleeps
    }

    fn holds_reservations(&self) -> bool {
        let units = self.realm.units.lock();
        units.unit(0).is_some_and(|unit| unit.reservations().registration_count() > 0)
    }
}
