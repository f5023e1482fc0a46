//! The segments of a target that lets in by tokens: their devices, and what their table says is to be done
//! ([`netraid_node::segments`]).
//!
//! One task begins that, in order ([`run`]); devices are opened and closed on threads that may block.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use netraid_block::DeviceInfo;
use netraid_control::units::{Generation, Moment};
use netraid_iscsi_proto::target::ConnectionId;
use netraid_node::{
    Gate, NoPermit, Written,
    segments::{
        Action, Fence, Knocked, OrderId, PlanKey, SegmentKey, Stuck, Unopened, WATCH_INTERVAL, Why,
    },
};
use netraid_scsi::Identity;
use tokio::sync::{Notify, oneshot};

use super::{
    Admission, Admitted, Lun, NotOpened, Opened, Shared, cells::Guarded, control::CommandError,
    guests::Guest, pacing::Pace, realm::ServedRealm,
};

type Table = netraid_node::segments::Segments<Arc<Segment>, Arc<Guest>>;

/// What a target knows of its segments.
pub(super) struct Segments {
    pub(super) admission: Arc<dyn Admission>,
    table: Guarded<Table>,
    /// Where the end of each order is sent.
    waiting: Guarded<BTreeMap<OrderId, oneshot::Sender<Result<usize, Stuck>>>>,
    /// The table has something to be done.
    changed: Notify,
}

/// One segment.
pub(super) struct Segment {
    pub(super) key: SegmentKey,
    realm: Arc<ServedRealm>,
    fence: Arc<Fence>,
    written: Guarded<Written>,
    /// What `written` says of sessions that do not append: writes below it leave that alone.
    floor: AtomicU64,
}

/// Why nobody is let in to a segment that is open.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotLetIn {
    #[error("the segment is closed")]
    Closed,
    #[error("the segment was closed or fenced, or the plan ended, while the login waited")]
    Late,
    #[error(transparent)]
    NoPermit(#[from] NoPermit),
}

impl Segment {
    pub(super) const fn realm(&self) -> &Arc<ServedRealm> {
        &self.realm
    }

    pub(super) fn generation(&self) -> Generation {
        self.fence.generation()
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

    /// Closes the device, on a thread that may block, and says whether somebody is registered with the logical unit.
    async fn close_device(&self) -> bool {
        if let Some(lun) = self.realm.luns.get(0) {
            // At a gate that is shut, commands enter for a moment, and go no further.
            let is_unused = lun.gate() == Gate::Leaving || lun.running() == 0;
            assert!(is_unused, "segment {} loses its device under a command", self.key.1);
            let device = lun.replace_device(None);
            // A panic there has told of itself.
            let _ = tokio::task::spawn_blocking(move || drop(device)).await;
        }
        let units = self.realm.units.lock();
        units.unit(0).is_some_and(|unit| unit.reservations().registration_count() > 0)
    }
}

impl Segments {
    pub(super) fn new(admission: Arc<dyn Admission>, idle_limit: Duration) -> Self {
        let table = Guarded::new(Table::new(idle_limit));
        Self { admission, table, waiting: Guarded::default(), changed: Notify::new() }
    }

    /// A login was admitted to a segment: what becomes of it says [`Self::answer`]; where that is known later, the connection
    /// is woken.
    pub(super) fn knock(&self, connection: ConnectionId, admitted: &Admitted, now: Duration) {
        let token = admitted.grant.token();
        let key = (token.mediator, token.segment);
        self.table.lock().knock(connection, (key, token.terms.generation), now, |realm, fence| {
            Arc::new(Segment {
                key,
                realm: ServedRealm::new(realm, 1),
                fence: fence.clone(),
                written: Guarded::default(),
                floor: AtomicU64::default(),
            })
        });
        self.changed.notify_one();
    }

    pub(super) fn answer(&self, connection: ConnectionId) -> Knocked<Arc<Segment>> {
        self.table.lock().answer(connection)
    }

    /// Lets in a login whose segment is open.
    ///
    /// # Errors
    /// When its grant does not fit that, or does not hold any more.
    pub(super) fn enter(
        &self,
        connection: ConnectionId,
        (segment, admitted): (Arc<Segment>, Admitted),
    ) -> Result<Arc<Guest>, NotLetIn> {
        let now = self.admission.now();
        let guest = Guest::new(connection, segment, admitted, now);
        let guest = Arc::new(guest.inspect_err(|_| self.table.lock().gone(connection))?);
        let stands = |guest: &Arc<Guest>| self.admission.stands(guest.grant());
        let entered = self.table.lock().enter(guest.clone(), now, stands);
        entered.map_or(Err(NotLetIn::Late), |()| Ok(guest))
    }

    /// A connection is gone; none of its commands runs any more.
    pub(super) fn leave(
        &self,
        connection: ConnectionId,
        guest: Option<&Arc<Guest>>,
        now: Duration,
    ) {
        match guest {
            Some(guest) => self.table.lock().left(guest, now),
            None => self.table.lock().gone(connection),
        }
        self.changed.notify_one();
    }

    /// The last command has left of a session that was ended.
    pub(super) fn settle(&self) {
        self.table.lock().settle();
        self.changed.notify_one();
    }

    fn poll(&self, now: Duration) {
        let stands = |guest: &Arc<Guest>| self.admission.stands(guest.grant());
        self.table.lock().poll(now, self.admission.now(), stands);
    }

    fn next_action(&self) -> Option<Action<Arc<Segment>, Arc<Guest>>> {
        self.table.lock().next_action()
    }

    /// Gives an order, and waits until it is done; how many sessions it has ended.
    ///
    /// # Errors
    /// When the order is not done in time, or the target ends.
    async fn order(&self, give: impl FnOnce(&mut Table) -> OrderId) -> Result<usize, CommandError> {
        let (sender, answer) = oneshot::channel();
        {
            // The order's end is carried out after the table is unlocked: its sender must be there by then.
            let mut table = self.table.lock();
            let order = give(&mut table);
            self.waiting.lock().insert(order, sender);
        }
        self.changed.notify_one();
        let answer = answer.await.map_err(|_| CommandError::Ended)?;
        answer.map_err(|Stuck { segment, running }| CommandError::SegmentStuck { segment, running })
    }
}

impl Shared {
    fn segments(&self) -> Result<&Segments, CommandError> {
        self.segments.as_ref().ok_or(CommandError::NoSegments)
    }

    pub(super) async fn raise_generation(
        self: Arc<Self>,
        key: SegmentKey,
        generation: Generation,
    ) -> Result<(), CommandError> {
        let now = self.started.elapsed();
        self.segments()?.order(|table| table.raise(key, generation, now)).await.map(|_| ())
    }

    pub(super) async fn close_segment(
        self: Arc<Self>,
        key: SegmentKey,
    ) -> Result<(), CommandError> {
        let now = self.started.elapsed();
        self.segments()?.order(|table| table.close(key, now)).await.map(|_| ())
    }

    pub(super) async fn end_plan(self: Arc<Self>, plan: PlanKey) -> Result<usize, CommandError> {
        let now = self.started.elapsed();
        self.segments()?.order(|table| table.end_plan(plan, now)).await
    }

    pub(super) fn extend_plan(&self, plan: PlanKey, until: Moment) -> Result<usize, CommandError> {
        Ok(self.segments()?.table.lock().extend(plan, until))
    }

    pub(super) fn set_plan_pace(&self, plan: PlanKey, pace: Pace) -> Result<usize, CommandError> {
        let count = self.segments()?.table.lock().sessions_of(plan).count();
        let paced = self.paced.as_ref().ok_or(CommandError::NotPaced)?;
        let set = paced.set_plan_pace(self.started.elapsed(), plan, pace);
        set.map_err(|source| CommandError::PlanPace { plan: plan.1, source })?;
        Ok(count)
    }

    fn carry_out(self: &Arc<Self>, segments: &Segments, action: Action<Arc<Segment>, Arc<Guest>>) {
        match action {
            Action::Open(_, segment) => {
                let open = open(self.clone(), segments.admission.clone(), segment);
                tokio::task::spawn_local(open);
            }
            Action::Close(key, segment) => {
                let shared = self.clone();
                tokio::task::spawn_local(async move {
                    let holds_reservations = segment.close_device().await;
                    shared.closed(key, holds_reservations);
                });
            }
            Action::Remove(key, segment) => {
                let shared = self.clone();
                tokio::task::spawn_local(async move {
                    if let Some(lun) = segment.realm.luns.get(0) {
                        lun.set_gate(Gate::Leaving);
                        while !lun.wait_idle().await {}
                    }
                    let holds_reservations = segment.close_device().await;
                    shared.closed(key, holds_reservations);
                });
            }
            Action::Forget(segment) => self.node.lock().remove_lun(segment.realm.id, 0),
            Action::Drop(guest, why) => {
                let (session, token) = (guest.connection.0, guest.grant().token());
                let why = describe(why);
                tracing::info!(session, plan = %token.plan, segment = %token.segment, "{why}: the session ends");
                self.node.lock().drop_connection(guest.connection);
                self.wake();
            }
            Action::Wake(connection) => {
                if let Some(waker) = self.wakers.lock().get(&connection) {
                    waker.notify_one();
                }
            }
            Action::Done(order, result) => {
                let waits = segments.waiting.lock().remove(&order);
                // Perhaps nobody waits for it any more.
                let _ = waits.map(|waits| waits.send(result));
            }
        }
    }

    fn closed(&self, key: SegmentKey, holds_reservations: bool) {
        if let Some(segments) = &self.segments {
            segments.table.lock().closed(key, holds_reservations);
            segments.changed.notify_one();
        }
    }

    /// Serves the device of a segment that was opened; the segment's generation.
    fn serve_segment(&self, segment: &Segment, opened: Opened) -> Result<Generation, String> {
        let Opened { mut lun, generation, end_bytes } = opened;
        let info = lun.device.info().clone();
        segment.write_to(end_bytes);
        if let Some(known) = segment.realm.luns.get(0) {
            let was = known.block_len();
            if was != info.block_len {
                return Err(format!("its blocks had {was} bytes, and now have {}", info.block_len));
            }
            segment.realm.units.lock().handle_changed(0, info);
            known.set_policy(lun.policy.take());
            drop(known.replace_device(Some(lun.device)));
            return Ok(generation);
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
        let added = self.add_lun(&segment.realm, Some(0), lun);
        added.map(|_| generation).map_err(|error| error.to_string())
    }
}

/// Does what the table says, as long as there is the target: also while it stops.
pub(super) async fn run(shared: Arc<Shared>) {
    let Some(segments) = &shared.segments else { return std::future::pending().await };
    let mut ticks = tokio::time::interval(WATCH_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => segments.poll(shared.started.elapsed()),
            () = segments.changed.notified() => {}
        }
        while let Some(action) = segments.next_action() {
            shared.carry_out(segments, action);
        }
    }
}

/// Opens a segment.
async fn open(shared: Arc<Shared>, admission: Arc<dyn Admission>, segment: Arc<Segment>) {
    let (mediator, id) = segment.key;
    let opened = tokio::task::spawn_blocking(move || admission.open(mediator, id)).await;
    let opened = opened.unwrap_or_else(|error| Err(error.to_string().into()));
    let served = opened.and_then(|opened| Ok(shared.serve_segment(&segment, opened)?));
    let Some(segments) = &shared.segments else { return };
    let told = match &served {
        Ok(generation) => Ok(*generation),
        Err(NotOpened::Unusable(_)) => Err(Unopened::Unusable),
        Err(NotOpened::Exhausted(_)) => Err(Unopened::Exhausted),
    };
    let is_wanted = segments.table.lock().opened(segment.key, told, shared.started.elapsed());
    segments.changed.notify_one();
    if let Err(error) = served
        && is_wanted
        && shared.may_tell()
    {
        tracing::warn!(%mediator, segment = %id, %error, "a segment cannot be opened");
    }
}

const fn describe(why: Why) -> &'static str {
    match why {
        Why::Fenced => "fenced",
        Why::Closed => "its segment is closed",
        Why::PlanEnded => "its plan is ended",
        Why::Over => "its grant is over",
    }
}
