//! What is to happen, in order of time: the clock of a simulation.

use core::time::Duration;
use std::collections::BTreeMap;

use crate::time::Time;

/// An entry of an [`Agenda`], to take it off again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    time: Time,
    serial: u64,
}

/// Events of a kind `E` that are to come, and the moment that it is now.
///
/// Events of one moment happen in the order in which they were put down.
#[derive(Debug)]
pub struct Agenda<E> {
    now: Time,
    next_serial: u64,
    entries: BTreeMap<Ticket, E>,
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Self { now: Time::START, next_serial: 0, entries: BTreeMap::new() }
    }
}

impl<E> Agenda<E> {
    /// The moment of the last event that was taken.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// How many events are to come.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is to come.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// When the next event comes.
    #[must_use]
    pub fn next_time(&self) -> Option<Time> {
        self.entries.keys().next().map(|ticket| ticket.time)
    }

    /// Puts an event down for a moment.
    ///
    /// # Panics
    /// When the moment has passed.
    pub fn put_at(&mut self, time: Time, event: E) -> Ticket {
        assert!(time >= self.now, "an event for {time} when it is {}", self.now);
        let ticket = Ticket { time, serial: self.next_serial };
        self.next_serial += 1;
        self.entries.insert(ticket, event);
        ticket
    }

    /// Puts an event down for `wait` from now.
    pub fn put_in(&mut self, wait: Duration, event: E) -> Ticket {
        self.put_at(self.now.after(wait), event)
    }

    /// Takes an event off, if it has not happened.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<E> {
        self.entries.remove(&ticket)
    }

    /// Takes off all events that `keep` does not want.
    pub fn retain(&mut self, mut keep: impl FnMut(&E) -> bool) {
        self.entries.retain(|_, event| keep(event));
    }

    /// Time passes without an event of this agenda.
    ///
    /// # Panics
    /// When there is one before that moment, or the moment has passed.
    pub fn advance(&mut self, time: Time) {
        let is_free = self.next_time().is_none_or(|next| next >= time);
        assert!(time >= self.now && is_free, "from {} to {time}", self.now);
        self.now = time;
    }

    /// The next event; it is its moment now.
    pub fn pop(&mut self) -> Option<E> {
        let (ticket, event) = self.entries.pop_first()?;
        self.now = ticket.time;
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_they_were_put() {
        let mut agenda = Agenda::default();
        let second = Duration::from_secs(1);
        agenda.put_in(2 * second, "d");
        agenda.put_in(second, "b");
        let gone = agenda.put_in(second, "never");
        agenda.put_in(second, "c");
        agenda.put_in(Duration::ZERO, "a");
        assert_eq!(agenda.cancel(gone), Some("never"));
        assert_eq!(agenda.cancel(gone), None);
        let order: Vec<_> = std::iter::from_fn(|| agenda.pop()).collect();
        assert_eq!(order, ["a", "b", "c", "d"]);
        assert_eq!(agenda.now(), Time::START.after(2 * second));
    }

    #[test]
    fn an_event_may_put_down_another_for_the_same_moment_but_not_for_an_earlier_one() {
        let mut agenda = Agenda::default();
        agenda.put_in(Duration::from_secs(1), 1);
        assert_eq!(agenda.pop(), Some(1));
        agenda.put_in(Duration::ZERO, 2);
        assert_eq!(agenda.next_time(), Some(agenda.now()));
        let past = std::panic::catch_unwind(move || agenda.put_at(Time::START, 3));
        assert!(past.is_err());
    }

    #[test]
    fn what_is_not_kept_never_happens() {
        let mut agenda = Agenda::default();
        for number in 0..6 {
            agenda.put_in(Duration::from_secs(number), number);
        }
        agenda.retain(|number| number % 2 == 0);
        assert_eq!(std::iter::from_fn(|| agenda.pop()).collect::<Vec<_>>(), [0, 2, 4]);
    }
}
