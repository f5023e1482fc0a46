//! All sessions of a target: who is logged in, session handles, reinstatement.
//!
//! Invariant: of one initiator port (name and ISID) at most one session is admitted; a second
//! login waits until the first session has ended *and* none of its commands runs any more, so no
//! write of the old session lands after one of the new.

use alloc::{
    collections::VecDeque,
    string::{String, ToString},
    vec::Vec,
};

use crate::negotiation::SessionType;

/// A connection, by a number that is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// What other sessions want of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// End: the session was reinstated, or the target was reset cold.
    Close,
    /// End the tasks of a logical unit, or of all, and say when they have ended.
    Abort { lun: Option<u16>, ticket: Ticket },
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

/// One admitted session.
#[derive(Debug)]
struct Session {
    connection: ConnectionId,
    initiator: String,
    isid: [u8; 6],
    tsih: u16,
    cid: u16,
}

/// One live connection.
#[derive(Debug)]
struct Live {
    connection: ConnectionId,
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
    connections_max: usize,
    next_connection: u64,
    last_tsih: u16,
}

impl Node {
    /// A node that takes up to `connections_max` connections.
    #[must_use]
    pub fn new(connections_max: usize) -> Self {
        Self {
            sessions: Vec::new(),
            live: Vec::new(),
            pending: Vec::new(),
            next_ticket: 0,
            wakes: VecDeque::new(),
            connections_max,
            next_connection: 1,
            last_tsih: 0,
        }
    }

    /// Takes a new connection; `None` when there are too many.
    pub fn open(&mut self) -> Option<ConnectionId> {
        if self.live.len() >= self.connections_max {
            return None;
        }
        let connection = ConnectionId(self.next_connection);
        self.next_connection += 1;
        self.live.push(Live { connection, orders: VecDeque::new(), finished: Vec::new() });
        Some(connection)
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

    /// Number of admitted sessions.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// Admits a session, or ends the one that it replaces first (RFC 7143, section 6.3.5). A
    /// connection that was told to wait sets `waited` when it asks again.
    pub(super) fn admit(&mut self, applicant: &Applicant<'_>, waited: bool) -> Admission {
        const SESSION_DOES_NOT_EXIST: u16 = 0x020a;
        const TOO_MANY_CONNECTIONS: u16 = 0x0206;
        let Applicant { connection, kind, initiator, isid, tsih, cid } = *applicant;
        if kind == SessionType::Discovery {
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
            self.order(old, Order::Close);
            return Admission::Wait;
        }
        let tsih = match tsih {
            0 => self.free_tsih(),
            _ if !waited => return Admission::Refused(SESSION_DOES_NOT_EXIST),
            taken if self.sessions.iter().any(|session| session.tsih == taken) => self.free_tsih(),
            kept => kept,
        };
        let initiator = initiator.to_string();
        self.sessions.push(Session { connection, initiator, isid, tsih, cid });
        Admission::Admitted(tsih)
    }

    /// Ends every other session.
    pub(super) fn close_others(&mut self, sender: ConnectionId) {
        for connection in self.others(sender) {
            self.order(connection, Order::Close);
        }
    }

    /// Ends the tasks of a logical unit, or of all, in every other session. The ticket comes from
    /// `take_finished` once none of them runs any more; there is none when there are no others.
    pub(super) fn abort_others(
        &mut self,
        sender: ConnectionId,
        lun: Option<u16>,
    ) -> Option<Ticket> {
        let waits_for = self.others(sender);
        if waits_for.is_empty() {
            return None;
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        for connection in &waits_for {
            self.order(*connection, Order::Abort { lun, ticket });
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

    fn others(&self, sender: ConnectionId) -> Vec<ConnectionId> {
        let all = self.live.iter().map(|live| live.connection);
        all.filter(|connection| *connection != sender).collect()
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
        node.admit(&applicant, waited)
    }

    #[test]
    fn a_port_has_one_session_and_the_new_one_waits() {
        let mut node = Node::new(4);
        let [a, b, c] = [(); 3].map(|()| node.open().unwrap());
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
        let mut node = Node::new(2);
        let a = node.open().unwrap();
        let Admission::Admitted(tsih) = admit(&mut node, a, 1, 0) else { panic!() };
        let b = node.open().unwrap();
        assert_eq!(ask(&mut node, b, 1, (tsih, 7), false), Admission::Refused(0x0206));
        assert_eq!(admit(&mut node, b, 1, tsih + 1), Admission::Refused(0x020a));
        assert_eq!(admit(&mut node, b, 2, tsih), Admission::Refused(0x020a));
        assert_eq!(admit(&mut node, b, 1, tsih), Admission::Wait, "the same connection again");
        node.closed(a);
        assert_eq!(ask(&mut node, b, 1, (tsih, 0), true), Admission::Admitted(tsih));
        assert!(node.open().is_some());
        assert_eq!(node.open(), None);
    }
}
