//! Users' requests of an array, by number; and which of their large reads wait until there is room for them
//! ([`ReadWindow`]).
//!
//! Invariants: a read waits only while others are under way, and those that wait begin in the order in which they came.
//! Large reads that have ended are told of ([`Users::next_end`]) after others have taken their place, so that members
//! have something to do meanwhile.

use alloc::{collections::VecDeque, vec::Vec};
use core::time::Duration;

use netraid_block::{IoError, Op, RequestFlags, SgList, narrow};
use slab::Slab;

use crate::{array::RequestId, geometry::Geometry, logged::AtomicWrite, read_window::ReadWindow};

/// The end of the request that a shell knows by `U`.
pub(super) type Ended<U> = (U, Result<SgList, IoError>);

#[derive(Debug)]
pub(super) struct Users<U> {
    /// By number.
    requests: Slab<User<U>>,
    waiting: VecDeque<Read>,
    /// Large reads that have ended.
    ended: VecDeque<Ended<U>>,
    geometry: Geometry,
    bound: Option<u64>,
    window: ReadWindow,
    /// From so many bytes on a read is large.
    large_from: u64,
}

#[derive(Debug)]
struct User<U> {
    user: U,
    /// Bytes that it has in the window.
    bounded: u64,
    /// What it asks for, where that may have to be asked for again.
    ask: Option<Ask>,
    /// How often it was.
    tries: u8,
}

/// What a user asks for.
#[derive(Debug, Clone)]
pub(super) enum Ask {
    /// An operation on a range of bytes.
    Range {
        /// With its range: first byte, and number of bytes.
        what: (Op, u64, u64),
        flags: RequestFlags,
        /// What is written.
        data: SgList,
    },
    /// A write of several ranges.
    Atomic(AtomicWrite),
}

/// A read for the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) id: RequestId,
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl<U> Users<U> {
    /// With a bound of so many bytes for reads of `large_from` bytes or more; it is found by trying when there is none.
    pub(super) fn new(geometry: &Geometry, bound: Option<u64>, large_from: u64) -> Self {
        let window = new_window(geometry, bound);
        let (waiting, ended, geometry) = (VecDeque::new(), VecDeque::new(), *geometry);
        Self { requests: Slab::new(), waiting, ended, geometry, bound, window, large_from }
    }

    /// How many have not ended, and been told so.
    pub(super) fn len(&self) -> usize {
        self.requests.len() + self.ended.len()
    }

    /// Whether reads wait.
    pub(super) fn some_wait(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Gives a request its number; what it asks for is kept if it is given.
    #[inline]
    pub(super) fn insert(&mut self, user: U, ask: Option<Ask>) -> RequestId {
        RequestId(self.requests.insert(User { user, bounded: 0, ask, tries: 0 }) as u64)
    }

    /// A request is made again: how often it was, with this time.
    pub(super) fn try_again(&mut self, id: RequestId) -> u8 {
        let user = &mut self.requests[place_of(id)];
        user.tries = user.tries.saturating_add(1);
        user.tries
    }

    /// What a request asks for, if that was kept.
    pub(super) fn ask(&self, id: RequestId) -> Option<Ask> {
        self.requests.get(place_of(id))?.ask.clone()
    }

    /// All requests that have not ended are to be made again: their numbers. No read waits any more.
    pub(super) fn begin_again(&mut self) -> Vec<RequestId> {
        self.waiting.clear();
        self.window = new_window(&self.geometry, self.bound);
        self.requests.iter_mut().for_each(|(_, user)| user.bounded = 0);
        self.requests.iter().map(|(at, _)| RequestId(at as u64)).collect()
    }

    /// Whether the machine is to have a read now; else it waits for [`Self::next_read`].
    pub(super) fn admit(&mut self, now: Duration, read: Read) -> bool {
        if read.len < self.large_from {
            return true;
        }
        self.waiting.push_back(read);
        self.waiting.len() == 1 && self.next_read(now).is_some()
    }

    /// A read that waited, which the machine is to have now.
    pub(super) fn next_read(&mut self, now: Duration) -> Option<Read> {
        let read = *self.waiting.front()?;
        if !self.window.has_room() {
            return None;
        }
        self.waiting.pop_front();
        self.window.begin(read.len, now);
        self.requests[place_of(read.id)].bounded = read.len;
        Some(read)
    }

    /// Looks whether those that wait do so for reads that do not end.
    pub(super) fn look(&mut self, now: Duration) {
        self.window.look(now);
    }

    /// The request has ended; of a large read, [`Self::next_end`] tells later.
    pub(super) fn end(
        &mut self,
        now: Duration,
        id: RequestId,
        result: Result<SgList, IoError>,
    ) -> Option<Ended<U>> {
        let User { user, bounded, .. } = self.requests.remove(place_of(id));
        if bounded == 0 {
            return Some((user, result));
        }
        self.window.end(bounded, self.some_wait(), now);
        self.ended.push_back((user, result));
        None
    }

    /// A large read that has ended; none when all were told.
    pub(super) fn next_end(&mut self) -> Option<Ended<U>> {
        self.ended.pop_front()
    }
}

fn place_of(id: RequestId) -> usize {
    narrow(id.0)
}

/// With a bound of so many bytes; it is found by trying when there is none.
fn new_window(geometry: &Geometry, bound: Option<u64>) -> ReadWindow {
    match bound {
        Some(bound) => ReadWindow::fixed(geometry, bound),
        None => ReadWindow::new(geometry),
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::{geometry::Level, read_window::BOUNDED_LEN};

    const MIB: u64 = 1 << 20;
    const BOUND: u64 = 4 * MIB;
    const NOW: Duration = Duration::ZERO;

    fn users() -> Users<u64> {
        let geometry = Geometry::new(Level::Raid5, 5, 64 << 10, 512, 256, 0).unwrap();
        Users::new(&geometry, Some(BOUND), BOUNDED_LEN)
    }

    fn ask(users: &mut Users<u64>, user: u64, len: u64) -> (RequestId, bool) {
        let id = users.insert(user, None);
        (id, users.admit(NOW, Read { id, offset: 0, len }))
    }

    #[test]
    fn reads_that_wait_begin_in_order_and_count_until_their_end_was_told() {
        let mut users = users();
        let ids: Vec<RequestId> = (0..12)
            .map(|number| {
                let (id, is_admitted) = ask(&mut users, number, MIB);
                assert_eq!(is_admitted, number < 4);
                id
            })
            .collect();
        // Small ones wait for none of them.
        let (small, is_admitted) = ask(&mut users, 100, BOUNDED_LEN - 1);
        assert!(is_admitted && users.some_wait());
        assert_eq!(users.end(NOW, small, Ok(SgList::new())).map(|(user, _)| user), Some(100));
        for (number, id) in ids.iter().enumerate() {
            assert_eq!(users.next_read(NOW), None);
            assert!(users.end(NOW, *id, Ok(SgList::new())).is_none());
            let next = users.next_read(NOW).map(|read| read.id);
            assert_eq!(next, ids.get(number + 4).copied());
        }
        assert_eq!(users.len(), ids.len());
        let told = core::iter::from_fn(|| users.next_end()).map(|(user, _)| user);
        assert!(told.eq(0..12));
        assert_eq!(users.len(), 0);
    }
}
