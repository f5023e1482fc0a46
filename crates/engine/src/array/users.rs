//! Users' requests of an array, by number; and which of their large reads wait until there is room for them
//! ([`ReadWindow`]).
//!
//! Invariants: a read waits only while others are under way, and those that wait begin in the order in which they came.
//! Large reads that have ended are told of ([`Users::tell_next`]) after others have taken their place, so that members
//! have something to do meanwhile.

use std::collections::VecDeque;

use netraid_block::{Completion, IoError, SgList, narrow};
use netraid_raid::{
    array::RequestId,
    geometry::Geometry,
    read_window::{BOUNDED_LEN, ReadWindow},
};
use slab::Slab;
use tokio::time::Instant;

pub(super) struct Users {
    /// By number.
    requests: Slab<User>,
    waiting: VecDeque<Read>,
    /// Of large reads, with how they ended.
    ended: VecDeque<(Completion, Result<SgList, IoError>)>,
    window: ReadWindow,
    /// Since when the window's time counts.
    since: Instant,
}

struct User {
    completion: Completion,
    /// Bytes that it has in the window.
    bounded: u64,
}

/// A read for the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) id: RequestId,
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl Users {
    /// With a bound of so many bytes for large reads; it is found by trying when there is none.
    pub(super) fn new(geometry: &Geometry, bound: Option<u64>) -> Self {
        let window = match bound {
            Some(bound) => ReadWindow::fixed(geometry, bound),
            None => ReadWindow::new(geometry),
        };
        let (waiting, ended) = (VecDeque::new(), VecDeque::new());
        Self { requests: Slab::new(), waiting, ended, window, since: Instant::now() }
    }

    /// How many have not ended, and been told so.
    pub(super) fn len(&self) -> usize {
        self.requests.len() + self.ended.len()
    }

    /// Whether reads wait.
    pub(super) fn some_wait(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Gives a request its number.
    pub(super) fn insert(&mut self, completion: Completion) -> RequestId {
        RequestId(self.requests.insert(User { completion, bounded: 0 }) as u64)
    }

    /// Whether the machine is to have a read now; else it waits for [`Self::next_read`].
    pub(super) fn admit(&mut self, read: Read) -> bool {
        if read.len < BOUNDED_LEN {
            return true;
        }
        self.waiting.push_back(read);
        self.waiting.len() == 1 && self.next_read().is_some()
    }

    /// A read that waited, which the machine is to have now.
    pub(super) fn next_read(&mut self) -> Option<Read> {
        let read = *self.waiting.front()?;
        if !self.window.has_room() {
            return None;
        }
        self.waiting.pop_front();
        self.window.begin(read.len, self.since.elapsed());
        self.requests[place_of(read.id)].bounded = read.len;
        Some(read)
    }

    /// Looks whether those that wait do so for reads that do not end.
    pub(super) fn look(&mut self) {
        self.window.look(self.since.elapsed());
    }

    /// The request has ended.
    pub(super) fn end(&mut self, id: RequestId, result: Result<SgList, IoError>) {
        let User { completion, bounded } = self.requests.remove(place_of(id));
        if bounded == 0 {
            return completion.finish(result);
        }
        self.window.end(bounded, self.some_wait(), self.since.elapsed());
        self.ended.push_back((completion, result));
    }

    /// Tells of one that has ended; false when all know.
    pub(super) fn tell_next(&mut self) -> bool {
        let Some((completion, result)) = self.ended.pop_front() else { return false };
        completion.finish(result);
        true
    }
}

fn place_of(id: RequestId) -> usize {
    narrow(id.0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use netraid_block::Complete;
    use netraid_raid::geometry::Level;

    use super::*;

    const MIB: u64 = 1 << 20;

    struct Nobody;

    impl Complete for Nobody {
        fn complete(&self, _tag: u64, _result: Result<SgList, IoError>) {}
    }

    const BOUND: u64 = 4 * MIB;

    fn users() -> Users {
        let geometry = Geometry::new(Level::Raid5, 5, 64 << 10, 512, 256, 0).unwrap();
        Users::new(&geometry, Some(BOUND))
    }

    fn ask(users: &mut Users, len: u64) -> (RequestId, bool) {
        let id = users.insert(Completion::new(Arc::new(Nobody), 0));
        (id, users.admit(Read { id, offset: 0, len }))
    }

    #[tokio::test]
    async fn reads_that_wait_begin_in_order_and_count_until_their_end_was_told() {
        let mut users = users();
        let ids: Vec<RequestId> = (0..12)
            .map(|number| {
                let (id, is_admitted) = ask(&mut users, MIB);
                assert_eq!(is_admitted, number < 4);
                id
            })
            .collect();
        // Small ones wait for none of them.
        let (small, is_admitted) = ask(&mut users, BOUNDED_LEN - 1);
        assert!(is_admitted && users.some_wait());
        users.end(small, Ok(SgList::new()));
        for (number, id) in ids.iter().enumerate() {
            assert_eq!(users.next_read(), None);
            users.end(*id, Ok(SgList::new()));
            let next = users.next_read().map(|read| read.id);
            assert_eq!(next, ids.get(number + 4).copied());
        }
        assert_eq!(users.len(), ids.len());
        while users.tell_next() {}
        assert_eq!(users.len(), 0);
    }
}
