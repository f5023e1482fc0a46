//! All connections of a target: who is logged in, session handles, reinstatement, and what one
//! session wants of the others.
//!
//! Invariants: of one initiator port (name and ISID) at most one session is admitted; a second
//! login waits until the first session has ended *and* none of its commands runs any more, so no
//! write of the old session lands after one of the new. Visitors (logins in progress and
//! discovery sessions) have bounds of their own, in all and for each source, and the oldest leaves
//! for a new one, so that those who never finish a login keep nobody out.

use alloc::{
    collections::{BTreeSet, VecDeque},
    rc::Rc,
    string::{String, ToString},
    vec::Vec,
};
use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::statistics::{Budget, Counters, Traffic};
use crate::negotiation::SessionType;

/// A connection, by a number that is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// What other sessions want of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// End: the session was reinstated or dropped, or the target was reset cold.
    Close,
    /// End the tasks of a logical unit, or of all, and say when they have ended.
    Abort { lun: Option<u16>, ticket: Ticket, cause: Cause },
}

/// Why tasks of another session are ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// CLEAR TASK SET, or PREEMPT AND ABORT: whoever loses a task by it is told.
    Cleared,
    /// A reset, of which the logical unit tells everybody.
    Reset,
}

/// Names what a task management function waits for in other sessions; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// An order to abort that some connections have not carried out.
#[derive(Debug)]
struct Pending {
    ticket: Ticket,
    sender: ConnectionId,
    waits_for: Vec<ConnectionId>,
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
}

/// Who asks for admission.
#[derive(Debug, Clone, Copy)]
pub(super) struct Applicant<'a> {
    pub(super) connection: ConnectionId,
    pub(super) kind: SessionType,
    pub(super) initiator: &'a str,
    pub(super) isid: [u8; 6],
    pub(super) tsih: u16,
    pub(super) cid: u16,
}

/// How much a target lets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Sessions for SCSI commands: 1 to 65,535.
    pub sessions_max: usize,
    /// Visitors: logins in progress and discovery sessions.
    pub visitors_max: usize,
    /// Visitors of one source: an IPv4 address, or the /64 network of an IPv6 address.
    pub visitors_per_source_max: usize,
    /// Data of all sessions held in memory, in bytes; one command of each session may exceed it.
    pub data_budget: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions_max: 256,
            visitors_max: 128,
            visitors_per_source_max: 32,
            data_budget: 1 << 30,
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
    pub(super) counters: Rc<Counters>,
    pub(super) traffic: Rc<Traffic>,
    pub(super) budget: Rc<Budget>,
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
    link: Link,
    traffic: Rc<Traffic>,
    /// It is no session for SCSI commands yet.
    visits: bool,
    /// Few: functions in progress are bounded for each session, and `Close` is here once.
    orders: VecDeque<Order>,
    /// What it waited for and all others have done.
    finished: Vec<Ticket>,
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
    counters: Rc<Counters>,
    budget: Rc<Budget>,
    luns: BTreeSet<u16>,
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
            counters: Rc::new(Counters::default()),
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
        let traffic = Rc::new(Traffic::default());
        self.live.push(Live {
            connection,
            link,
            traffic: traffic.clone(),
            visits: true,
            orders: VecDeque::new(),
            finished: Vec::new(),
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
            .filter(|live| !live.orders.contains(&Order::Close))
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

    /// A connection is gone and none of its commands runs any more.
    pub fn closed(&mut self, connection: ConnectionId) {
        self.live.retain(|live| live.connection != connection);
        let (pending, live) = (&mut self.pending, &mut self.live);
        for gone in pending.extract_if(.., |pending| pending.sender == connection) {
            let ticket = gone.ticket;
            live.iter_mut().for_each(|live| {
                live.orders.retain(|order| {
                    !matches!(order, Order::Abort { ticket: known, .. } if *known == ticket)
                });
            });
        }
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
    pub fn add_lun(&mut self, lun: u16) {
        self.luns.insert(lun);
    }

    /// A logical unit is gone.
    pub fn remove_lun(&mut self, lun: u16) {
        self.luns.remove(&lun);
    }

    pub(super) fn has_lun(&self, lun: u16) -> bool {
        self.luns.contains(&lun)
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
        const OUT_OF_RESOURCES: u16 = 0x0302;
        let Applicant { connection, kind, initiator, isid, tsih, cid } = *applicant;
        if kind == SessionType::Discovery {
            self.counters.discoveries.add(1);
            return Admission::Admitted(self.free_tsih());
        }
        let port = |session: &&Session| session.initiator == initiator && session.isid == isid;
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
            return Admission::Wait;
        }
        if tsih != 0 && !waited {
            return Admission::Refused(SESSION_DOES_NOT_EXIST);
        }
        if self.sessions.len() >= self.limits.sessions_max {
            return Admission::Refused(OUT_OF_RESOURCES);
        }
        let taken = tsih == 0 || self.sessions.iter().any(|session| session.tsih == tsih);
        let tsih = if taken { self.free_tsih() } else { tsih };
        let initiator = initiator.to_string();
        self.sessions.push(Session { connection, initiator, isid, tsih, cid, since: now });
        if let Some(live) = self.live.iter_mut().find(|live| live.connection == connection) {
            live.visits = false;
        }
        self.counters.logins.add(1);
        Admission::Admitted(tsih)
    }

    /// Ends every other session. The ticket is finished once they have all gone.
    pub(super) fn close_others(&mut self, sender: ConnectionId) -> Option<Ticket> {
        self.order_others(sender, |_| Order::Close)
    }

    /// Ends the tasks of a logical unit, or of all, in every other session. The ticket comes from
    /// `take_finished` once none of them runs any more; there is none when there are no others.
    pub(super) fn abort_others(
        &mut self,
        sender: ConnectionId,
        lun: Option<u16>,
        cause: Cause,
    ) -> Option<Ticket> {
        self.order_others(sender, |ticket| Order::Abort { lun, ticket, cause })
    }

    fn order_others(
        &mut self,
        sender: ConnectionId,
        order: impl Fn(Ticket) -> Order,
    ) -> Option<Ticket> {
        self.order_those(sender, |_| true, order)
    }

    /// Ends the tasks of a logical unit in these sessions but that of `sender`; as `abort_others`.
    pub(super) fn abort_in(
        &mut self,
        sender: ConnectionId,
        sessions: &[ConnectionId],
        lun: u16,
        cause: Cause,
    ) -> Option<Ticket> {
        let lun = Some(lun);
        let meant = |connection| sessions.contains(&connection);
        self.order_those(sender, meant, |ticket| Order::Abort { lun, ticket, cause })
    }

    fn order_those(
        &mut self,
        sender: ConnectionId,
        meant: impl Fn(ConnectionId) -> bool,
        order: impl Fn(Ticket) -> Order,
    ) -> Option<Ticket> {
        let live = self.live.iter().map(|live| live.connection);
        let meant = |connection: &ConnectionId| *connection != sender && meant(*connection);
        let waits_for: Vec<_> = live.filter(meant).collect();
        if waits_for.is_empty() {
            return None;
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        for connection in &waits_for {
            self.order(*connection, order(ticket));
        }
        self.pending.push(Pending { ticket, sender, waits_for });
        Some(ticket)
    }

    /// The tasks that an order names have ended in this connection.
    pub(super) fn acknowledge(&mut self, connection: ConnectionId, ticket: Ticket) {
        let Some(index) = self.pending.iter().position(|pending| pending.ticket == ticket) else {
            return;
        };
        let pending = &mut self.pending[index];
        pending.waits_for.retain(|waiting| *waiting != connection);
        if !pending.waits_for.is_empty() {
            return;
        }
        let sender = self.pending.swap_remove(index).sender;
        if let Some(live) = self.live.iter_mut().find(|live| live.connection == sender) {
            live.finished.push(ticket);
            self.wakes.push_back(sender);
        }
    }

    /// The next ticket of this connection that all others have acknowledged.
    pub(super) fn take_finished(&mut self, connection: ConnectionId) -> Option<Ticket> {
        let live = self.live.iter_mut().find(|live| live.connection == connection)?;
        live.finished.pop()
    }

    pub(super) fn take_order(&mut self, connection: ConnectionId) -> Option<Order> {
        let live = self.live.iter_mut().find(|live| live.connection == connection)?;
        live.orders.pop_front()
    }

    fn order(&mut self, connection: ConnectionId, order: Order) {
        let Some(live) = self.live.iter_mut().find(|live| live.connection == connection) else {
            return;
        };
        if live.orders.contains(&order) {
            return;
        }
        live.orders.push_back(order);
        self.wakes.push_back(connection);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(node: &mut Node, connection: ConnectionId, isid: u8, tsih: u16) -> Admission {
        ask(node, connection, isid, (tsih, 0), false)
    }

    fn ask(
        node: &mut Node,
        connection: ConnectionId,
        isid: u8,
        (tsih, cid): (u16, u16),
        waited: bool,
    ) -> Admission {
        let (kind, isid) = (SessionType::Normal, [isid; 6]);
        let applicant = Applicant { connection, kind, initiator: "iqn.i", isid, tsih, cid };
        node.admit(Duration::ZERO, &applicant, waited)
    }

    fn link(host: u8) -> Link {
        Link::new(([192, 0, 2, host], 1).into(), ([192, 0, 2, 100], 3260).into())
    }

    fn open(node: &mut Node) -> Option<ConnectionId> {
        node.open(link(1)).map(|seat| seat.id())
    }

    fn node(sessions_max: usize, visitors_max: usize, visitors_per_source_max: usize) -> Node {
        let data_budget = 1 << 20;
        Node::new(Limits { sessions_max, visitors_max, visitors_per_source_max, data_budget })
    }

    #[test]
    fn a_port_has_one_session_and_the_new_one_waits() {
        let mut node = node(4, 4, 4);
        let [a, b, c] = [(); 3].map(|()| open(&mut node).unwrap());
        let Admission::Admitted(first) = admit(&mut node, a, 1, 0) else { panic!() };
        assert!(matches!(admit(&mut node, c, 2, 0), Admission::Admitted(tsih) if tsih != first));
        assert_eq!(admit(&mut node, b, 1, 0), Admission::Wait);
        assert_eq!((node.poll_wake(), node.take_order(a)), (Some(a), Some(Order::Close)));
        assert_eq!(admit(&mut node, b, 1, 0), Admission::Wait, "until the old one has ended");
        node.closed(a);
        assert!(core::iter::from_fn(|| node.poll_wake()).any(|woken| woken == b));
        assert!(matches!(admit(&mut node, b, 1, 0), Admission::Admitted(_)));
    }

    #[test]
    fn further_connections_are_refused() {
        let mut node = node(2, 2, 2);
        let a = open(&mut node).unwrap();
        let Admission::Admitted(tsih) = admit(&mut node, a, 1, 0) else { panic!() };
        let b = open(&mut node).unwrap();
        assert_eq!(ask(&mut node, b, 1, (tsih, 7), false), Admission::Refused(0x0206));
        assert_eq!(admit(&mut node, b, 1, tsih + 1), Admission::Refused(0x020a));
        assert_eq!(admit(&mut node, b, 2, tsih), Admission::Refused(0x020a));
        assert_eq!(admit(&mut node, b, 1, tsih), Admission::Wait, "the same connection again");
        node.closed(a);
        assert_eq!(ask(&mut node, b, 1, (tsih, 0), true), Admission::Admitted(tsih));
    }

    #[test]
    fn visitors_and_sessions_have_their_own_bounds() {
        let mut node = node(2, 4, 3);
        for isid in 0..2 {
            let session = open(&mut node).unwrap();
            assert!(matches!(admit(&mut node, session, isid, 0), Admission::Admitted(_)));
        }
        // Sessions take no visitor's place.
        let guest = open(&mut node).unwrap();
        assert_eq!(admit(&mut node, guest, 9, 0), Admission::Refused(0x0302));
        let [second, third] = [(); 2].map(|()| open(&mut node).unwrap());
        assert_eq!(node.poll_wake(), None);
        // The fourth of one source costs that its oldest.
        let fourth = open(&mut node).unwrap();
        assert_eq!((node.poll_wake(), node.take_order(guest)), (Some(guest), Some(Order::Close)));
        node.closed(guest);
        while node.poll_wake().is_some() {}
        // When the house is full, the source that has most loses its oldest.
        let polite = node.open(link(2)).unwrap().id();
        assert_eq!(node.poll_wake(), None);
        node.open(link(3)).unwrap();
        assert_eq!((node.poll_wake(), node.take_order(second)), (Some(second), Some(Order::Close)));
        assert_eq!(node.counters().refused_busy.get(), 2);
        for connection in [third, fourth, polite] {
            assert_eq!(node.take_order(connection), None);
        }
    }

    #[test]
    fn there_are_never_more_than_twice_as_many_visitors() {
        let mut node = node(2, 4, 4);
        for _ in 0..8 {
            assert!(node.open(link(1)).is_some());
        }
        assert!(node.open(link(1)).is_none() && node.open(link(2)).is_none());
    }

    #[test]
    fn sources_are_hosts_or_networks() {
        let of = |text: &str| Link::new(text.parse().unwrap(), link(1).portal).source();
        assert_eq!(of("[2001:db8::1]:5"), of("[2001:db8::ffff:1]:6"));
        assert_ne!(of("[2001:db8:0:1::1]:5"), of("[2001:db8::1]:5"));
        assert_eq!(of("[::ffff:192.0.2.7]:5"), of("192.0.2.7:6"));
        assert_ne!(of("192.0.2.8:5"), of("192.0.2.7:5"));
    }

    #[test]
    fn sessions_are_listed_and_dropped() {
        let mut node = node(2, 2, 2);
        let a = open(&mut node).unwrap();
        let Admission::Admitted(tsih) = admit(&mut node, a, 3, 0) else { panic!() };
        let seen: Vec<_> =
            node.sessions().map(|one| (one.tsih, one.initiator, one.isid, one.link)).collect();
        assert_eq!(seen, [(tsih, "iqn.i", [3; 6], link(1))]);
        assert!(!node.drop_session(tsih + 1));
        assert_eq!(node.poll_wake(), None);
        assert!(node.drop_session(tsih));
        assert_eq!((node.poll_wake(), node.take_order(a)), (Some(a), Some(Order::Close)));
        node.closed(a);
        assert_eq!(node.sessions().count(), 0);
    }
}
