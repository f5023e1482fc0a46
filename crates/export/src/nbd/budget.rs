//! What the clients of one server may have in memory together.
//!
//! Invariant: a client that has nothing under way is always given room, so that others who do
//! not read their replies cannot starve it. All clients together exceed the limit by at most one
//! request each. Nobody waits for another's bytes: who is refused has bytes of its own under way,
//! and asks again when those are given back.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Bytes of requests under way of one client after which it is given no more.
const CLIENT_BYTES_MAX: u64 = 64 << 20;
/// Bytes of requests under way of all clients after which only idle ones are given more.
const SERVER_BYTES_MAX: u64 = 256 << 20;

/// The bytes of all clients.
#[derive(Debug, Clone, Default)]
pub(super) struct Budget {
    bytes: Arc<AtomicU64>,
}

/// One client's part of a budget, which goes back when this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Budget,
    bytes: u64,
}

impl Budget {
    /// A share for one more client, which has nothing yet.
    pub(super) fn share(&self) -> Share {
        Share { budget: self.clone(), bytes: 0 }
    }
}

impl Share {
    /// Whether one more request may be taken, whatever its length.
    pub(super) fn has_room(&self) -> bool {
        let all = self.budget.bytes.load(Ordering::Relaxed);
        self.bytes == 0 || (self.bytes < CLIENT_BYTES_MAX && all < SERVER_BYTES_MAX)
    }

    /// Counts bytes of a request that is taken.
    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.budget.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives bytes back that were counted.
    pub(super) fn remove(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "only what was added is removed");
        self.bytes -= bytes;
        self.budget.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.remove(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_share_the_limit_and_none_starves() {
        let budget = Budget::default();
        let mut greedy: Vec<_> = (0..4).map(|_| budget.share()).collect();
        for share in &mut greedy {
            assert!(share.has_room());
            share.add(CLIENT_BYTES_MAX - 1);
            assert!(share.has_room(), "neither limit is reached");
        }
        let mut modest = budget.share();
        modest.add(4096);
        assert!(!modest.has_room(), "together they have all");
        assert!(!greedy[0].has_room());
        modest.remove(4096);
        assert!(modest.has_room(), "an idle client is served");
        modest.add(4096);
        // A connection that ends with requests under way.
        drop(greedy.pop());
        assert!(modest.has_room() && greedy[0].has_room());
        greedy[0].add(1);
        assert!(!greedy[0].has_room(), "its own limit");
    }
}
