//! All connections of a target: who is logged in, session handles, reinstatement, and what one
//! session wants of the others.
//!
//! Invariants: of one initiator port (name and ISID) at most one session is admitted to a realm; a
//! second
//! login waits until the first session has ended *and* none of its commands runs any more, so no
//! write of the old session lands after one of the new. Visitors (logins in progress and
//! discovery sessions) have bounds of their own, in all and for each source, and the oldest leaves
//! for a new one, so that those who never finish a login keep nobody out.

mod orders;
#[cfg(test)]
mod tests;

use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    string::{String, ToString},
    sync::Arc,
    vec::Vec,
};
use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use netraid_planted::{Planted, planted};

use self::orders::Pending;
pub(super) use self::orders::{Cause, Order, Ticket};
use super::statistics::{Budget, Counters, Traffic};
use crate::negotiation::SessionType;

/// A connection, by a number that is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// Logical units that some sessions share, and others know nothing of. Nothing that a session does
/// reaches one of another realm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Realm(pub u64);

impl Realm {
    /// The realm of all sessions of a target that has one only.
    pub const HOME: Self = Self(0);
}

/// Sessions that were let in by the same plan, on however many realms; nobody else has the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Party(pub [u8; 32]);

/// What a session was let in to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Where its logical units are.
    pub realm: Realm,
    /// Whether it may end tasks and sessions of others in its realm, by task management.
    pub ends_others: bool,
    /// With whom it shares what a plan may have; none where nobody is let in by plans.
    pub party: Option<Party>,
}

impl Default for Standing {
    fn default() -> Self {
        Self { realm: Realm::HOME, ends_others: true, party: None }
    }
}

/// Answer to a request for admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// Admitted under this session handle.
    Admitted(u16),
    /// Ask again when woken.
    Wait,
    /// Refused with this login status.
    Refused(u16),
    /// Refused: there are as many sessions as may be.
    Full(Full),
}

/// Of what there are as many sessions as may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// Of the target: [`Limits::sessions_max`].
    Target,
    /// Of one source: [`Limits::sessions_per_source_max`].
    Source,
    /// Of one initiator: [`Limits::sessions_per_initiator_max`].
    Initiator,
    /// Of one plan: [`Limits::sessions_per_plan_max`].
    Plan,
    /// Of one initiator, by one plan, in one realm, which is what a token is for:
    /// [`Limits::sessions_per_token_max`].
    Token,
}

impl core::fmt::Display for Full {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Target => "the target",
            Self::Source => "its host",
            Self::Initiator => "the initiator",
            Self::Plan => "its plan",
            Self::Token => "its token",
        })?;
        f.write_str(" has as many sessions as it may")
    }
}

/// Who asks for admission.
#[derive(Debug, Clone, Copy)]
pub(super) struct Applicant<'a> {
    pub(super) connection: ConnectionId,
    pub(super) kind: SessionType,
    pub(super) initiator: &'a str,
    pub(super) realm: Realm,
    pub(super) party: Option<Party>,
    pub(super) isid: [u8; 6],
    pub(super) tsih: u16,
    pub(super) cid: u16,
}

/// How much a target lets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Sessions for SCSI commands: 1 to 65,535.
    pub sessions_max: usize,
    /// Those of one source: an IPv4 address, or the /64 network of an IPv6 address.
    pub sessions_per_source_max: usize,
    /// Those of one initiator's name.
    pub sessions_per_initiator_max: usize,
    /// Those of one [`Party`].
    pub sessions_per_plan_max: usize,
    /// Those of one initiator's name and one [`Party`] in one realm.
    pub sessions_per_token_max: usize,
    /// Visitors: logins in progress and discovery sessions.
    pub visitors_max: usize,
    /// Visitors of one source: an IPv4 address, or the /64 network of an IPv6 address.
    pub visitors_per_source_max: usize,
    /// Data of all sessions held in memory, in bytes; one command of each session may exceed it.
    pub data_budget: u64,
}

impl Limits {
    /// The usual: whoever is let in may have all sessions.
    pub const DEFAULT: Self = Self {
        sessions_max: 256,
        sessions_per_source_max: usize::MAX,
        sessions_per_initiator_max: usize::MAX,
        sessions_per_plan_max: usize::MAX,
        sessions_per_token_max: usize::MAX,
        visitors_max: 128,
        visitors_per_source_max: 32,
        data_budget: 1 << 30,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Limits {
    /// These limits where so many more files and sockets can be opened: sessions have half of them, and
    /// visitors, of whom as many again may be leaving, a quarter. The rest is for what is served.
    #[must_use]
    pub fn within_descriptors(self, free: u64) -> Self {
        // Clamped: it only lowers limits.
        let part = |of: u64| usize::try_from(free / of).unwrap_or(usize::MAX).max(1);
        let visitors_max = self.visitors_max.min(part(8));
        Self {
            sessions_max: self.sessions_max.min(part(2)),
            visitors_max,
            visitors_per_source_max: self.visitors_per_source_max.min(visitors_max),
            ..self
        }
    }
}

/// The two ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// The initiator's.
    pub peer: SocketAddr,
    /// The target's, as the initiator sees it.
    pub portal: SocketAddr,
}

impl Link {
    /// The ends as they are named to others: IPv4 addresses as such, and without scopes, which
    /// mean something to one host only.
    #[must_use]
    pub fn new(peer: SocketAddr, portal: SocketAddr) -> Self {
        let plain = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
        Self { peer: plain(peer), portal: plain(portal) }
    }

    /// Whom visitors are counted by.
    fn source(&self) -> IpAddr {
        match self.peer.ip() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        }
    }
}

/// A connection's place in its node.
#[derive(Debug)]
pub struct Seat {
    pub(super) id: ConnectionId,
    pub(super) link: Link,
    pub(super) counters: Arc<Counters>,
    pub(super) traffic: Arc<Traffic>,
    pub(super) budget: Arc<Budget>,
}

impl Seat {
    /// Whose it is.
    #[must_use]
    pub const fn id(&self) -> ConnectionId {
        self.id
    }
}

/// An admitted session, to be shown.
#[derive(Debug, Clone, Copy)]
pub struct SessionView<'a> {
    /// Its connection.
    pub connection: ConnectionId,
    /// The target's session handle, by which it is dropped.
    pub tsih: u16,
    /// The initiator's name, in lower case.
    pub initiator: &'a str,
    /// The initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// Where it comes from and where to.
    pub link: Link,
    /// When it was admitted, on the clock that the machines are told.
    pub since: Duration,
    /// What passed.
    pub traffic: &'a Traffic,
}

/// One admitted session.
#[derive(Debug)]
struct Session {
    connection: ConnectionId,
    source: IpAddr,
    realm: Realm,
    party: Option<Party>,
    initiator: String,
    isid: [u8; 6],
    tsih: u16,
    cid: u16,
    since: Duration,
}

/// One live connection.
#[derive(Debug)]
struct Live {
    connection: ConnectionId,
    /// Home, until it is a session of another.
    realm: Realm,
    link: Link,
    traffic: Arc<Traffic>,
    /// It is no session for SCSI commands yet.
    visits: bool,
    /// Few: functions in progress are bounded for each session, and `Close` is here once.
    orders: VecDeque<Order>,
    /// What it waited for and all others have done.
    finished: Vec<Ticket>,
    /// Logical units at which its tasks were preempted, and have not all ended: the newest order for each, which is carried
    /// out when all before it are.
    ending: BTreeMap<u16, Ticket>,
}

impl Live {
    /// Whether it was told to leave.
    fn is_leaving(&self) -> bool {
        self.orders.contains(&Order::Close)
    }
}

/// The parent of all connections of a target.
#[derive(Debug)]
pub struct Node {
    sessions: Vec<Session>,
    live: Vec<Live>,
    pending: Vec<Pending>,
    next_ticket: u64,
    wakes: VecDeque<ConnectionId>,
    limits: Limits,
    next_connection: u64,
    last_tsih: u16,
    counters: Arc<Counters>,
    budget: Arc<Budget>,
    luns: BTreeSet<(Realm, u16)>,
}

impl Node {
    /// A node with these limits.
    ///
    /// # Panics
    /// When more sessions are allowed than there are session handles.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        assert!(limits.sessions_max <= 65_535, "{} sessions", limits.sessions_max);
        Self {
            sessions: Vec::new(),
            live: Vec::new(),
            pending: Vec::new(),
            next_ticket: 0,
            wakes: VecDeque::new(),
            limits,
            next_connection: 1,
            last_tsih: 0,
            counters: Arc::new(Counters::default()),
            budget: Budget::new(limits.data_budget),
            luns: BTreeSet::new(),
        }
    }

    /// Takes a new connection; another visitor may have to leave for it: poll wakes after. `None`
    /// when too many are leaving already.
    pub fn open(&mut self, link: Link) -> Option<Seat> {
        if !self.make_room(link.source()) {
            self.counters.refused_busy.add(1);
            return None;
        }
        let connection = ConnectionId(self.next_connection);
        self.next_connection += 1;
        let traffic = Arc::new(Traffic::default());
        self.live.push(Live {
            connection,
            realm: Realm::HOME,
            link,
            traffic: traffic.clone(),
            visits: true,
            orders: VecDeque::new(),
            finished: Vec::new(),
            ending: BTreeMap::new(),
        });
        let (counters, budget) = (self.counters.clone(), self.budget.clone());
        Some(Seat { id: connection, link, counters, traffic, budget })
    }

    /// Whether one more visitor of this source may come. A source that has as many as it may loses
    /// its oldest one by that; when the house is full, the source that has most does: a login that
    /// is meant takes milliseconds, so the oldest is the one that leads nowhere.
    fn make_room(&mut self, source: IpAddr) -> bool {
        let all = self.live.iter().filter(|live| live.visits);
        // Those who were told to leave are still here for a moment: at most as many again.
        if all.clone().count() >= 2 * self.limits.visitors_max {
            return false;
        }
        let staying: Vec<_> = all
            .filter(|live| !live.is_leaving())
            .map(|live| (live.link.source(), live.connection))
            .collect();
        let count = |of: IpAddr| staying.iter().filter(|(source, _)| *source == of).count();
        let loser = if count(source) >= self.limits.visitors_per_source_max {
            Some(source)
        } else if staying.len() >= self.limits.visitors_max {
            staying.iter().map(|(source, _)| *source).max_by_key(|source| count(*source))
        } else {
            None
        };
        let oldest = staying.iter().find(|(source, _)| Some(*source) == loser);
        if let Some((_, oldest)) = oldest.copied() {
            self.counters.refused_busy.add(1);
            self.order(oldest, Order::Close);
        }
        true
    }

    /// A connection could not be accepted as the process can open no more sockets: the oldest visitor of
    /// the source that has most leaves for it. False when there is none. Poll wakes after.
    pub fn handle_exhausted(&mut self) -> bool {
        let staying = self.live.iter().filter(|live| live.visits && !live.is_leaving());
        let source = |live: &Live| live.link.source();
        let count = |of: IpAddr| staying.clone().filter(|live| source(live) == of).count();
        let loser = staying.clone().map(source).max_by_key(|source| count(*source));
        let oldest = staying.clone().find(|live| Some(source(live)) == loser);
        let Some(oldest) = oldest.map(|live| live.connection) else { return false };
        self.counters.refused_busy.add(1);
        self.order(oldest, Order::Close);
        true
    }

    /// A connection is gone and none of its commands runs any more.
    pub fn closed(&mut self, connection: ConnectionId) {
        self.live.retain(|live| live.connection != connection);
        self.forget_sender(connection);
        let owed: Vec<_> = self.pending.iter().map(|pending| pending.ticket).collect();
        owed.into_iter().for_each(|ticket| self.acknowledge(connection, ticket));
        let before = self.sessions.len();
        self.sessions.retain(|session| session.connection != connection);
        if self.sessions.len() != before {
            // Somebody may be waiting for just this; whoever is not asks in vain.
            self.wakes.extend(self.live.iter().map(|live| live.connection));
        }
    }

    /// The next connection whose `handle_wake` is to be called.
    pub fn poll_wake(&mut self) -> Option<ConnectionId> {
        self.wakes.pop_front()
    }

    /// A logical unit is there: task management functions may name it.
    pub fn add_lun(&mut self, realm: Realm, lun: u16) {
        self.luns.insert((realm, lun));
    }

    /// A logical unit is gone.
    pub fn remove_lun(&mut self, realm: Realm, lun: u16) {
        self.luns.remove(&(realm, lun));
    }

    pub(super) fn has_lun(&self, realm: Realm, lun: u16) -> bool {
        self.luns.contains(&(realm, lun))
    }

    /// Number of admitted sessions.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// All admitted sessions, in the order in which they came.
    pub fn sessions(&self) -> impl Iterator<Item = SessionView<'_>> {
        self.sessions.iter().filter_map(|session| {
            let live = self.live.iter().find(|live| live.connection == session.connection)?;
            Some(SessionView {
                connection: session.connection,
                tsih: session.tsih,
                initiator: &session.initiator,
                isid: session.isid,
                link: live.link,
                since: session.since,
                traffic: &live.traffic,
            })
        })
    }

    /// Ends a session: its initiator is told, its commands are aborted, and it is gone when none
    /// of them runs any more. False when there is no such session. Poll wakes after.
    pub fn drop_session(&mut self, tsih: u16) -> bool {
        let Some(session) = self.sessions.iter().find(|session| session.tsih == tsih) else {
            return false;
        };
        self.counters.dropped_sessions.add(1);
        self.order(session.connection, Order::Close);
        true
    }

    /// Ends a connection, whether it has logged in or not, as [`Self::drop_session`] does. Nothing
    /// happens when it is gone. Poll wakes after.
    pub fn drop_connection(&mut self, connection: ConnectionId) {
        if self.live.iter().any(|live| live.connection == connection) {
            self.counters.dropped_sessions.add(1);
            self.order(connection, Order::Close);
        }
    }

    /// What was counted over all connections.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Bytes of data that all sessions hold in memory now.
    #[must_use]
    pub fn data_held(&self) -> u64 {
        self.budget.held()
    }

    /// Admits a session, or ends the one that it replaces first (RFC 7143, section 6.3.5). A
    /// connection that was told to wait sets `waited` when it asks again.
    pub(super) fn admit(
        &mut self,
        now: Duration,
        applicant: &Applicant<'_>,
        waited: bool,
    ) -> Admission {
        const SESSION_DOES_NOT_EXIST: u16 = 0x020a;
        const TOO_MANY_CONNECTIONS: u16 = 0x0206;
        let Applicant { connection, kind, initiator, realm, party, isid, tsih, cid } = *applicant;
        if kind == SessionType::Discovery {
            self.counters.discoveries.add(1);
            return Admission::Admitted(self.free_tsih());
        }
        let port = |session: &&Session| {
            session.initiator == initiator && session.isid == isid && session.realm == realm
        };
        if let Some(old) = self.sessions.iter().find(port) {
            // Another connection for a session is refused: sessions have one.
            if tsih != 0 && (old.tsih != tsih || old.cid != cid) {
                let known = old.tsih == tsih;
                let status = if known { TOO_MANY_CONNECTIONS } else { SESSION_DOES_NOT_EXIST };
                return Admission::Refused(status);
            }
            let old = old.connection;
            if !waited {
                self.counters.reinstatements.add(1);
            }
            self.order(old, Order::Close);
            if !planted(Planted::ReinstatedBesideCommands) {
                return Admission::Wait;
            }
            self.sessions.retain(|session| session.connection != old);
        }
        if tsih != 0 && !waited {
            return Admission::Refused(SESSION_DOES_NOT_EXIST);
        }
        let live = self.live.iter().find(|live| live.connection == connection);
        let source = live.map_or(IpAddr::from([0; 4]), |live| live.link.source());
        if let Some(full) = self.full(applicant, source) {
            return Admission::Full(full);
        }
        let taken = tsih == 0 || self.sessions.iter().any(|session| session.tsih == tsih);
        let tsih = if taken { self.free_tsih() } else { tsih };
        let initiator = initiator.to_string();
        let since = now;
        let new = Session { connection, source, realm, party, initiator, isid, tsih, cid, since };
        self.sessions.push(new);
        if let Some(live) = self.live.iter_mut().find(|live| live.connection == connection) {
            live.visits = false;
            live.realm = realm;
        }
        self.counters.logins.add(1);
        Admission::Admitted(tsih)
    }

    /// Of what there are too many for another session of this one. The narrowest is told.
    fn full(&self, applicant: &Applicant<'_>, source: IpAddr) -> Option<Full> {
        let Applicant { initiator, realm, party, .. } = *applicant;
        let is_its = |session: &&Session| session.initiator == initiator;
        let is_of_plan = |session: &&Session| party.is_some() && session.party == party;
        let count = |of: &dyn Fn(&&Session) -> bool| self.sessions.iter().filter(of).count();
        let limits = &self.limits;
        type Counted<'a> = (&'a dyn Fn(&&Session) -> bool, usize, Full);
        let bounds: [Counted<'_>; 5] = [
            (
                &|session| is_its(session) && is_of_plan(session) && session.realm == realm,
                limits.sessions_per_token_max,
                Full::Token,
            ),
            (&is_of_plan, limits.sessions_per_plan_max, Full::Plan),
            (&is_its, limits.sessions_per_initiator_max, Full::Initiator),
            (&|session| session.source == source, limits.sessions_per_source_max, Full::Source),
            (&|_| true, limits.sessions_max, Full::Target),
        ];
        bounds.into_iter().find(|(of, max, _)| count(of) >= *max).map(|(.., full)| full)
    }

    /// A session handle that no session has; there are fewer sessions than handles.
    fn free_tsih(&mut self) -> u16 {
        loop {
            self.last_tsih = self.last_tsih.checked_add(1).unwrap_or(1);
            if self.sessions.iter().all(|session| session.tsih != self.last_tsih) {
                return self.last_tsih;
            }
        }
    }
}
