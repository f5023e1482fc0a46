//! What a connection's service reaches: the target's shared parts, and devices.

use std::{net::SocketAddr, ops::DerefMut, sync::Arc, time::Duration};

use netraid_block::Op;
use netraid_control::{derived::Pieces, token};
use netraid_iscsi_proto::{
    chap::Secret,
    machine::TaskId,
    negotiation::SessionType,
    target::{Claim, ConnectionId, Node, Standing},
};
use netraid_node::{
    Access, Barred, Counted, Entry, Gate, LoggedIn, Lun, Needs, Outside, Place, Ticket,
    segments::Knocked,
};
use netraid_scsi::{MediumRequest, Refusal, TargetDevice, View};
use tokio::sync::Notify;

use crate::{
    completions::CompletionQueue,
    target::{
        Admitted, NotAdmitted, Shared,
        guests::Guest,
        luns::{SeenLun, SeenLuns, ServedLun},
        pacing::Paced,
        realm::ServedRealm,
        segments::{NotLetIn, Segment, Segments},
        sessions::SessionEntry,
    },
};

/// What one connection reaches.
pub(super) struct Reach {
    shared: Arc<Shared>,
    session: Arc<SessionEntry>,
    /// Its logical units.
    realm: Arc<ServedRealm>,
    /// Of its realm.
    luns: SeenLuns,
    /// Where devices tell of ends; none once nothing is begun any more.
    queue: Option<CompletionQueue>,
    /// Wakes this connection.
    waker: Arc<Notify>,
    /// What its token grants, while its login waits for its segment.
    admitted: Option<Admitted>,
    /// Why its login is refused, where it has proven itself.
    denial: Option<String>,
    guest: Option<LetIn>,
    share: Option<PacedSession>,
}

/// A session that a token let in.
pub(super) struct LetIn {
    guest: Arc<Guest>,
    shared: Arc<Shared>,
}

/// A session of a target that is paced.
pub(super) struct PacedSession {
    shared: Arc<Shared>,
    connection: ConnectionId,
}

impl Reach {
    pub(super) fn new(
        shared: Arc<Shared>,
        session: Arc<SessionEntry>,
        queue: CompletionQueue,
        waker: Arc<Notify>,
    ) -> Self {
        let connection = session.connection;
        let share =
            shared.paced.as_ref().map(|_| PacedSession { shared: shared.clone(), connection });
        Self {
            realm: shared.home.clone(),
            shared,
            session,
            luns: SeenLuns::default(),
            queue: Some(queue),
            waker,
            admitted: None,
            denial: None,
            guest: None,
            share,
        }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn session(&self) -> &SessionEntry {
        &self.session
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.session.peer
    }

    pub(super) fn now(&self) -> Duration {
        self.shared.started.elapsed()
    }

    /// Nothing is begun any more: only the session's end is left.
    pub(super) fn stop(&mut self) {
        self.queue = None;
    }

    fn let_in(&mut self, segments: &Segments, segment: Arc<Segment>) -> Option<Standing> {
        let (admitted, id) = (self.admitted.take()?, self.session.connection);
        let (key, plan) = (segment.key.1, admitted.grant.token().plan);
        match segments.enter(id, (segment, admitted)) {
            Ok(guest) => {
                let standing = guest.standing();
                self.realm = guest.segment.realm().clone();
                self.luns = SeenLuns::default();
                self.session.let_in(guest.clone());
                self.guest = Some(LetIn { guest, shared: self.shared.clone() });
                Some(standing)
            }
            Err(error @ NotLetIn::Late) => {
                tracing::info!(peer = %self.session.peer, segment = %key, %plan, "not let in: {error}");
                None
            }
            Err(error) => {
                if self.shared.may_tell() {
                    tracing::warn!(peer = %self.session.peer, segment = %key, %error, "nobody is let in");
                }
                None
            }
        }
    }
}

impl Outside for Reach {
    type Lun = SeenLun;
    type Guest = LetIn;
    type Pacing = PacedSession;

    fn units(&self) -> impl DerefMut<Target = TargetDevice> {
        self.realm.units.lock()
    }

    fn units_and_lun(
        &mut self,
        number: Option<u16>,
    ) -> (impl DerefMut<Target = TargetDevice>, Option<SeenLun>) {
        let units = self.realm.units.lock();
        let lun = number.and_then(|number| self.luns.get(&self.realm.luns, number));
        (units, lun)
    }

    fn lun(&self, number: u16) -> Option<SeenLun> {
        self.realm.luns.get(number).map(SeenLun::new)
    }

    fn is_current(&self, lun: &SeenLun) -> bool {
        self.realm.is_current(lun)
    }

    fn node(&self) -> impl DerefMut<Target = Node> {
        self.shared.node.lock()
    }

    fn wake_others(&self) {
        self.shared.wake();
    }

    #[inline]
    fn guest(&self) -> Option<&LetIn> {
        self.guest.as_ref()
    }

    #[inline]
    fn pacing(&self) -> Option<&PacedSession> {
        self.share.as_ref()
    }

    fn initiator(&self) -> &str {
        self.session.initiator()
    }

    #[inline]
    fn submit(
        &mut self,
        task: TaskId,
        lun: Option<&SeenLun>,
        request: MediumRequest,
        place: &Place,
    ) {
        let Some(queue) = &self.queue else { return };
        // Without a LUN the completion is dropped, and ends as aborted.
        let completion = queue.completion(task.index() as u64);
        if let Some(lun) = lun {
            lun.submit_at(request, place, completion);
        }
    }

    fn store(&mut self, task: TaskId, lun: Option<&SeenLun>, bytes: Vec<u8>) {
        let Some(queue) = &self.queue else { return };
        // Without a store the completion is dropped, and ends as aborted.
        let completion = queue.completion(task.index() as u64);
        if let Some(place) = lun.and_then(|lun| lun.reservations()) {
            place.save(bytes, completion);
        }
    }

    fn wait(&mut self, task: TaskId, lun: Option<&SeenLun>) {
        let Some(queue) = &self.queue else { return };
        // As for a request.
        let completion = queue.completion(task.index() as u64);
        if let Some(lun) = lun {
            self.realm.wait_for_background(lun, self.session.connection, task, completion);
        }
    }

    fn abandon(&mut self, task: TaskId, lun: u16) {
        self.realm.background.abandon(lun, self.session.connection, task);
    }

    fn count(&self, lun: Option<&SeenLun>, counted: Counted) {
        let Counted { kind, status, read, written } = counted;
        self.session.counters.count(kind, status, read, written);
        if let Some(lun) = lun {
            lun.counters(self.session.thread).count(kind, status, read, written);
        }
    }

    fn count_aborted(&self, lun: Option<&SeenLun>) {
        self.session.counters.count_aborted();
        if let Some(lun) = lun {
            lun.counters(self.session.thread).count_aborted();
        }
    }

    fn judge(&mut self, claim: &Claim<'_>) -> Entry {
        let shared = self.shared.clone();
        let Some(segments) = &shared.segments else { return Entry::Refused };
        let mut proven = false;
        let mut proves = |secret: &token::Secret| {
            // Secrets of tokens have a length that CHAP's may have.
            let secret = Secret::new(secret.expose());
            proven = secret.is_ok_and(|secret| claim.proves(&secret));
            proven
        };
        let (name, initiator) = (claim.name(), claim.initiator());
        let admitted = segments.admission.admit(name, initiator, self.session.peer, &mut proves);
        match admitted {
            Err(NotAdmitted { told }) => {
                self.denial = told.filter(|_| proven);
                Entry::Refused
            }
            Ok(_) if !proven => Entry::Refused,
            Ok(_) if claim.session() == SessionType::Discovery => {
                Entry::Granted(Standing { ends_others: false, ..Standing::default() })
            }
            Ok(admitted) => {
                segments.knock(self.session.connection, &admitted, self.now());
                self.admitted = Some(admitted);
                self.poll_entry()
            }
        }
    }

    fn take_denial(&mut self) -> Option<String> {
        self.denial.take()
    }

    fn poll_entry(&mut self) -> Entry {
        let shared = self.shared.clone();
        let Some(segments) = &shared.segments else { return Entry::Refused };
        match segments.answer(self.session.connection) {
            Knocked::Later => Entry::Later,
            Knocked::Refused => Entry::Refused,
            Knocked::Exhausted => Entry::Exhausted,
            Knocked::Open(segment) => {
                self.let_in(segments, segment).map_or(Entry::Refused, Entry::Granted)
            }
        }
    }

    fn log_in(&mut self, login: LoggedIn) {
        let LoggedIn { initiator, session, chap } = login;
        tracing::info!(peer = %self.session.peer, ?initiator, ?session, ?chap, "logged in");
        if let (SessionType::Normal, Some(paced)) = (session, &self.shared.paced) {
            let (id, waker) = (self.session.connection, self.waker.clone());
            match &self.guest {
                Some(LetIn { guest, .. }) => paced.enter_plan(self.now(), id, guest, waker),
                None => paced.enter(id, &initiator, waker),
            }
        }
        self.session.log_in(initiator, session, chap);
        self.shared.sessions.insert(self.session.clone());
    }

    fn leave(&mut self) {
        let id = self.session.connection;
        if let Some(paced) = &self.shared.paced {
            paced.leave(self.now(), id);
        }
        self.realm.luns.forget_user(id);
        self.shared.sessions.remove(id);
        if let Some(segments) = &self.shared.segments {
            segments.leave(id, self.guest.as_ref().map(|let_in| &let_in.guest), self.now());
        }
        self.shared.wakers.lock().remove(&id);
    }
}

impl Lun for SeenLun {
    fn number(&self) -> u16 {
        ServedLun::number(self)
    }

    fn incarnation(&self) -> u64 {
        ServedLun::incarnation(self)
    }

    #[inline]
    fn is_guarded(&self) -> bool {
        ServedLun::is_guarded(self)
    }

    fn refusal(&self, access: &Access<'_>, began: bool) -> Option<Refusal> {
        ServedLun::refusal(self, access, began)
    }

    fn is_leaving(&self) -> bool {
        self.gate() == Gate::Leaving
    }

    #[inline]
    fn enter(&self) {
        ServedLun::enter(self);
    }

    #[inline]
    fn leave(&self) {
        ServedLun::leave(self);
    }

    fn add_user(&self, session: ConnectionId) {
        ServedLun::add_user(self, session);
    }
}

impl LetIn {
    /// Whoever knows of tokens, and the time.
    fn judges(&self) -> Result<(&Segments, Duration), Barred> {
        let segments = self.shared.segments.as_ref().ok_or(Barred)?;
        Ok((segments, self.shared.started.elapsed()))
    }
}

impl netraid_node::Guest for LetIn {
    fn may(&self, needs: Needs) -> Result<(), Barred> {
        let (segments, at) = self.judges()?;
        self.guest.may(&*segments.admission, needs, at)
    }

    fn foresee(&self, request: (Op, u64, u64)) -> Result<(), Barred> {
        let (segments, at) = self.judges()?;
        self.guest.foresee(&*segments.admission, request, at)
    }

    fn judge(&self, request: (Op, u64, u64)) -> Result<(Pieces, Option<(u64, u64)>), Barred> {
        let (segments, at) = self.judges()?;
        self.guest.judge(&*segments.admission, request, at)
    }

    fn take_back(&self, before: u64, end: u64) {
        self.guest.segment.written().lock().take_back(before, end);
    }

    fn enter(&self) {
        self.guest.running.enter();
    }

    fn leave(&self) {
        if self.guest.running.leave()
            && let Some(segments) = &self.shared.segments
        {
            segments.settle();
        }
    }

    fn view(&self) -> Option<&View> {
        self.guest.view()
    }
}

impl PacedSession {
    fn paced(&self) -> Option<(&Paced, Duration)> {
        self.shared.paced.as_ref().map(|paced| (paced, self.shared.started.elapsed()))
    }
}

impl netraid_node::Pacing for PacedSession {
    fn ask(&self, ticket: Ticket, len: u32) {
        if let Some((paced, now)) = self.paced() {
            paced.ask(now, ticket, len);
        }
    }

    fn take(&self) -> Option<Ticket> {
        self.shared.paced.as_ref()?.take(self.connection)
    }

    fn begun(&self) {
        if let Some((paced, now)) = self.paced() {
            paced.begun(now, self.connection);
        }
    }

    fn done(&self) {
        if let Some((paced, now)) = self.paced() {
            paced.done(now, self.connection);
        }
    }

    fn withdraw(&self, number: u32) {
        if let Some(paced) = &self.shared.paced {
            paced.withdraw(self.connection, number);
        }
    }
}
