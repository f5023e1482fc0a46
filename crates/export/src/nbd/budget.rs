//! What the clients of one server may have in memory together.
//!
//! Invariant: requests under way never have more than [`ALL_BYTES_MAX`] together, and beside that
//! [`RESERVED_LEN`] for each client. A client that has nothing under way always gets a request of
//! [`RESERVED_LEN`], so that others who do not read their replies cannot starve it; a longer one it
//! gets before others get a further one, and where it has taken replies before, ahead of those that
//! have taken none. Who waits for others looks again after a pause: nothing is told from client to
//! client.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

/// Bytes of requests under way of one client after which it is given no more.
const CLIENT_BYTES_MAX: u64 = 64 << 20;
/// Bytes of requests under way of all clients after which only those are given more that have none,
/// and have taken what they asked for before.
const MANY_BYTES_MAX: u64 = 192 << 20;
/// Bytes of requests under way of all clients.
pub(super) const ALL_BYTES_MAX: u64 = 256 << 20;
/// Longest request, in bytes, that a client without any is given whatever others have.
const RESERVED_LEN: u64 = 256 << 10;
/// Bytes that a client has had and given back, after which it is one that takes its replies.
const PROVEN_BYTES: u64 = 64 << 10;

/// The bytes of all clients.
#[derive(Debug, Clone, Default)]
pub(super) struct Budget(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    bytes: AtomicU64,
    /// Clients with a request that waits for what others have.
    waiting: AtomicUsize,
}

/// One client's part of a budget, which goes back when this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Budget,
    bytes: u64,
    /// Bytes that were given back.
    returned: u64,
    waits: bool,
}

/// Whether one more request may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Enough,
    /// The client has too much itself.
    OwnTaken,
    /// All clients have too much.
    AllTaken,
}

impl Budget {
    /// A share for one more client, which has nothing yet.
    pub(super) fn share(&self) -> Share {
        Share { budget: self.clone(), bytes: 0, returned: 0, waits: false }
    }

    /// Whether a client waits for what others have.
    pub(super) fn is_short(&self) -> bool {
        self.0.waiting.load(Ordering::Relaxed) > 0
    }
}

impl Share {
    /// Counts the bytes of one more request, if there is room for them; asked again later if not.
    pub(super) fn take(&mut self, len: u64) -> bool {
        let mut all = self.budget.0.bytes.load(Ordering::Relaxed);
        loop {
            let room = room(self.bytes, all, len, self.returned >= PROVEN_BYTES);
            if room != Room::Enough {
                self.set_waits(room == Room::AllTaken);
                return false;
            }
            let (new, order) = (all + len, Ordering::Relaxed);
            match self.budget.0.bytes.compare_exchange_weak(all, new, order, order) {
                Ok(_) => break,
                // Threads of other clients were faster.
                Err(other) => all = other,
            }
        }
        self.bytes += len;
        self.set_waits(false);
        true
    }

    /// Bytes that the client has.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives bytes back that were taken.
    pub(super) fn give_back(&mut self, len: u64) {
        assert!(len <= self.bytes, "only what was taken is given back");
        self.bytes -= len;
        self.returned += len;
        self.budget.0.bytes.fetch_sub(len, Ordering::Relaxed);
    }

    fn set_waits(&mut self, waits: bool) {
        if waits == self.waits {
            return;
        }
        self.waits = waits;
        let count = &self.budget.0.waiting;
        match waits {
            true => count.fetch_add(1, Ordering::Relaxed),
            false => count.fetch_sub(1, Ordering::Relaxed),
        };
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set_waits(false);
        self.give_back(self.bytes);
    }
}

/// Whether a client that has `own` of `all` bytes gets `len` more; `is_proven`: it takes its replies.
const fn room(own: u64, all: u64, len: u64, is_proven: bool) -> Room {
    let limit = match own {
        0 if len <= RESERVED_LEN => return Room::Enough,
        0 if is_proven => ALL_BYTES_MAX,
        0 => MANY_BYTES_MAX,
        _ if own + len > CLIENT_BYTES_MAX => return Room::OwnTaken,
        _ => MANY_BYTES_MAX,
    };
    if all + len <= limit { Room::Enough } else { Room::AllTaken }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::{PAYLOAD_LEN_MAX, places::CLIENTS_MAX};

    const LONGEST: u64 = PAYLOAD_LEN_MAX as u64;

    /// Takes requests of `len` until there is room for no more; how many bytes.
    fn fill(share: &mut Share, len: u64) -> u64 {
        std::iter::repeat_with(|| share.take(len)).take_while(|taken| *taken).count() as u64 * len
    }

    #[test]
    fn clients_that_never_read_have_no_more_than_all_may_have() {
        let budget = Budget::default();
        let mut greedy: Vec<_> = (0..CLIENTS_MAX).map(|_| budget.share()).collect();
        let all: u64 = greedy.iter_mut().map(|share| fill(share, LONGEST)).sum();
        assert_eq!(all, MANY_BYTES_MAX);
        assert!(budget.is_short());
        // Those that have taken some before have no more than all may have.
        greedy.iter_mut().for_each(|share| share.returned = PROVEN_BYTES);
        let more: u64 = greedy.iter_mut().map(|share| fill(share, LONGEST)).sum();
        assert_eq!(all + more, ALL_BYTES_MAX);
        let reserved: u64 = greedy.iter_mut().map(|share| fill(share, RESERVED_LEN)).sum();
        assert!(reserved <= CLIENTS_MAX as u64 * RESERVED_LEN, "{reserved}");
        drop(greedy);
        assert!(!budget.is_short());
        assert_eq!(budget.0.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_client_alone_has_its_own_limit_and_waits_for_itself() {
        let budget = Budget::default();
        let mut one = budget.share();
        assert_eq!(fill(&mut one, 1 << 20), CLIENT_BYTES_MAX);
        assert!(!budget.is_short(), "it is its own bytes that it waits for");
        one.give_back(1 << 20);
        assert!(one.take(1 << 20));
    }

    #[test]
    fn a_client_that_has_nothing_is_served_before_others_get_more() {
        let budget = Budget::default();
        let mut greedy: Vec<_> = (0..8).map(|_| budget.share()).collect();
        greedy.iter_mut().for_each(|share| assert!(share.take(4096)));
        let all: u64 = greedy.iter_mut().map(|share| fill(share, 1 << 20)).sum();
        assert!(all <= MANY_BYTES_MAX);
        let mut modest = budget.share();
        assert!(!modest.take(MANY_BYTES_MAX - all + 1), "it may be one that takes nothing");
        assert!(modest.take(PROVEN_BYTES));
        modest.give_back(PROVEN_BYTES);
        assert!(modest.take(LONGEST), "a long first one");
        assert!(!modest.take(4096), "not a second one");
        assert!(budget.is_short());
        modest.give_back(LONGEST);
        assert!(modest.take(4096));
        assert!(!modest.waits);
    }

    #[test]
    fn a_short_first_request_needs_no_room() {
        let budget = Budget::default();
        let mut unread: Vec<_> = (0..8).map(|_| budget.share()).collect();
        unread.iter_mut().for_each(|share| {
            share.take(LONGEST);
        });
        let mut modest = budget.share();
        assert!(!modest.take(RESERVED_LEN + 1));
        assert!(modest.take(RESERVED_LEN));
        // A connection that ends with requests under way.
        unread.remove(0);
        modest.give_back(RESERVED_LEN);
        assert!(modest.take(LONGEST));
    }
}
