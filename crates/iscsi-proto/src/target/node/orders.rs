//! What one session wants of the others: that they end, or end tasks, and say when they have.

use alloc::vec::Vec;

use netraid_planted::{Planted, planted};

use super::{ConnectionId, Node};

/// What other sessions want of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::target) enum Order {
    /// End: the session was reinstated or dropped, or the target was reset cold.
    Close,
    /// End the tasks of a logical unit, or of all, and say when they have ended.
    Abort { lun: Option<u16>, ticket: Ticket, cause: Cause },
}

/// Why tasks of another session are ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::target) enum Cause {
    /// CLEAR TASK SET, or PREEMPT AND ABORT: whoever loses a task by it is told.
    Cleared,
    /// A reset, of which the logical unit tells everybody.
    Reset,
}

/// Names what a task management function waits for in other sessions; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::target) struct Ticket(u64);

/// An order to abort that some connections have not carried out.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) ticket: Ticket,
    pub(super) sender: ConnectionId,
    waits_for: Vec<ConnectionId>,
}

impl Node {
    /// Ends every other session of the sender's realm. The ticket is finished once they have all gone.
    pub(in crate::target) fn close_others(&mut self, sender: ConnectionId) -> Option<Ticket> {
        self.order_others(sender, |_| Order::Close)
    }

    /// Ends the tasks of a logical unit, or of all, in every other session of
    /// the sender's realm. The ticket comes from
    /// `take_finished` once none of them runs any more; there is none when there are no others.
    pub(in crate::target) fn abort_others(
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
    pub(in crate::target) fn abort_in(
        &mut self,
        sender: ConnectionId,
        sessions: &[ConnectionId],
        lun: u16,
        cause: Cause,
    ) -> Option<Ticket> {
        let meant = |connection| sessions.contains(&connection);
        let order = |ticket| Order::Abort { lun: Some(lun), ticket, cause };
        let ticket = self.order_those(sender, meant, order)?;
        let waits_for = self.pending.iter().find(|pending| pending.ticket == ticket);
        let waits_for = waits_for.map(|pending| &pending.waits_for).into_iter().flatten();
        for connection in waits_for {
            let live = self.live.iter_mut().find(|live| live.connection == *connection);
            if let Some(live) = live {
                live.ending.insert(lun, ticket);
            }
        }
        Some(ticket)
    }

    fn order_those(
        &mut self,
        sender: ConnectionId,
        meant: impl Fn(ConnectionId) -> bool,
        order: impl Fn(Ticket) -> Order,
    ) -> Option<Ticket> {
        let realm = self.live.iter().find(|live| live.connection == sender).map(|live| live.realm);
        let live = self.live.iter().filter(|live| Some(live.realm) == realm);
        let live = live.map(|live| live.connection);
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
    pub(in crate::target) fn acknowledge(&mut self, connection: ConnectionId, ticket: Ticket) {
        if let Some(live) = self.live.iter_mut().find(|live| live.connection == connection) {
            live.ending.retain(|_, newest| *newest != ticket);
        }
        let Some(index) = self.pending.iter().position(|pending| pending.ticket == ticket) else {
            return;
        };
        let pending = &mut self.pending[index];
        let before = pending.waits_for.len();
        pending.waits_for.retain(|waiting| *waiting != connection);
        let is_answered =
            pending.waits_for.len() < before && planted(Planted::FirstOfSessionsAnswersForAll);
        if !pending.waits_for.is_empty() && !is_answered {
            return;
        }
        let sender = self.pending.swap_remove(index).sender;
        if let Some(live) = self.live.iter_mut().find(|live| live.connection == sender) {
            live.finished.push(ticket);
            self.wakes.push_back(sender);
        }
    }

    /// Forgets who waits for what it ordered others to abort. That is carried out all the same; but of the orders that
    /// nobody waits for, one of a kind is enough.
    pub(super) fn forget_sender(&mut self, sender: ConnectionId) {
        self.pending.retain(|pending| pending.sender != sender);
        let pending = &self.pending;
        let is_waited_for = |ticket| pending.iter().any(|pending| pending.ticket == ticket);
        for live in &mut self.live {
            let mut later = Vec::new();
            for at in (0..live.orders.len()).rev() {
                let Order::Abort { lun, ticket, cause } = live.orders[at] else { continue };
                if later.contains(&(lun, cause)) && !is_waited_for(ticket) {
                    live.orders.remove(at);
                } else {
                    later.push((lun, cause));
                }
            }
        }
    }

    /// Whether tasks of a logical unit that [`super::super::Connection::handle_preempt`] aborted have not ended yet, by the
    /// realm of `connection`: what they write may still reach the medium, whether the session that preempted them waits for
    /// that or is gone.
    #[must_use]
    pub fn is_ending(&self, connection: ConnectionId, lun: u16) -> bool {
        let Some(own) = self.live.iter().find(|live| live.connection == connection) else {
            return false;
        };
        let mut others = self.live.iter().filter(|live| live.realm == own.realm);
        others.any(|live| live.ending.contains_key(&lun))
    }

    /// Whether it matters when a connection has carried out what was ordered by this ticket.
    pub(in crate::target) fn is_awaited(&self, connection: ConnectionId, ticket: Ticket) -> bool {
        let live = self.live.iter().find(|live| live.connection == connection);
        self.pending.iter().any(|pending| pending.ticket == ticket)
            || live.is_some_and(|live| live.ending.values().any(|newest| *newest == ticket))
    }

    /// The next ticket of this connection that all others have acknowledged.
    pub(in crate::target) fn take_finished(&mut self, connection: ConnectionId) -> Option<Ticket> {
        let live = self.live.iter_mut().find(|live| live.connection == connection)?;
        live.finished.pop()
    }

    pub(in crate::target) fn take_order(&mut self, connection: ConnectionId) -> Option<Order> {
        let live = self.live.iter_mut().find(|live| live.connection == connection)?;
        live.orders.pop_front()
    }

    pub(super) fn order(&mut self, connection: ConnectionId, order: Order) {
        let Some(live) = self.live.iter_mut().find(|live| live.connection == connection) else {
            return;
        };
        if live.orders.contains(&order) {
            return;
        }
        live.orders.push_back(order);
        self.wakes.push_back(connection);
    }
}
