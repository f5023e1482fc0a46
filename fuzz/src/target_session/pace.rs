//! A pace whose grants come late, in any order.

use std::{collections::BTreeMap, rc::Rc};

use netraid_iscsi_proto::target::ConnectionId;
use netraid_node::{Pacing, Ticket};

use super::outside::Shared;

/// Grants of a pace.
#[derive(Default)]
pub(super) struct Pace {
    pub(super) asked: Vec<Ticket>,
    pub(super) granted: Vec<Ticket>,
    /// Commands that were granted, or have begun.
    places: BTreeMap<ConnectionId, usize>,
}
/// The share of one connection.
pub(super) struct Share {
    shared: Rc<Shared>,
    connection: ConnectionId,
}

impl Share {
    pub(super) fn new(shared: Rc<Shared>, connection: ConnectionId) -> Self {
        Self { shared, connection }
    }

    pub(super) fn places(&self) -> usize {
        self.shared.pace.borrow().places.get(&self.connection).copied().unwrap_or_default()
    }

    pub(super) fn leave(&self) {
        let mut pace = self.shared.pace.borrow_mut();
        let waits = pace.asked.iter().any(|ticket| ticket.connection == self.connection);
        assert!(!waits, "something of a session that left waits for its grant");
        // What was granted last, and never taken.
        let mut untaken = 0;
        pace.granted.retain(|ticket| {
            let own = ticket.connection == self.connection;
            untaken += usize::from(own && ticket.executes);
            !own
        });
        let places = pace.places.remove(&self.connection).unwrap_or_default();
        assert_eq!(places, untaken, "places of a session that left");
    }
}

impl Pacing for Share {
    fn ask(&self, ticket: Ticket, _len: u32) {
        let mut pace = self.shared.pace.borrow_mut();
        let is_same =
            |known: &Ticket| (known.connection, known.number) == (ticket.connection, ticket.number);
        assert!(!pace.asked.iter().chain(&pace.granted).any(is_same), "{ticket:?} is known");
        pace.asked.push(ticket);
    }

    fn take(&self) -> Option<Ticket> {
        let granted = &mut self.shared.pace.borrow_mut().granted;
        let at = granted.iter().position(|ticket| ticket.connection == self.connection)?;
        Some(granted.remove(at))
    }

    fn begun(&self) {
        *self.shared.pace.borrow_mut().places.entry(self.connection).or_default() += 1;
    }

    fn done(&self) {
        let mut pace = self.shared.pace.borrow_mut();
        let places = pace.places.entry(self.connection).or_default();
        *places = places.checked_sub(1).expect("a place is given back that nobody has");
    }

    fn withdraw(&self, number: u32) {
        let asked = &mut self.shared.pace.borrow_mut().asked;
        asked.retain(|ticket| (ticket.connection, ticket.number) != (self.connection, number));
    }
}

impl Pace {
    /// Grants what waits at this place; to whom.
    pub(super) fn grant(&mut self, which: usize) -> Option<ConnectionId> {
        let ticket = self.asked.remove(which.checked_rem(self.asked.len())?);
        if ticket.executes {
            *self.places.entry(ticket.connection).or_default() += 1;
        }
        self.granted.push(ticket);
        Some(ticket.connection)
    }
}
