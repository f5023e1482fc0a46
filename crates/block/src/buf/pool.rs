//! Buffers ready for reuse, by length.
//!
//! Invariant: what is kept has no other handle, so whoever takes it may write to it at once.

use alloc::sync::Arc;
use core::{fmt, mem::MaybeUninit};

use crossbeam_queue::ArrayQueue;

use super::{
    BufMut, PAGE_LEN, Shared,
    memory::{Advise, CHUNK_LEN, Memory},
};

/// Buffers are kept in powers of two from one page to a chunk.
const CLASSES: usize = (CHUNK_LEN / PAGE_LEN).trailing_zeros() as usize + 1;
/// The first class that is cut from chunks; what is smaller seldom reaches a disk or a large copy.
const CHUNK_CLASS: usize = 4;
/// How many free buffers of one length are kept, in the order in which they are taken.
const TIERS: [usize; 3] = [2, 14, 240];

/// A bounded, lock-free store of buffers ready for reuse; clones share it.
#[derive(Clone)]
pub struct Pool {
    shelves: Arc<Shelves>,
}

impl Default for Pool {
    fn default() -> Self {
        Self::new()
    }
}

impl Pool {
    /// An empty pool; it fills as buffers are dropped.
    #[must_use]
    pub fn new() -> Self {
        Self::of(None)
    }

    /// The same; buffers of 64 KiB and more are cut from chunks of 2 MiB, each aligned to its length, of
    /// which `advise` is told before anything is written to them: who runs on an operating system asks
    /// for a huge page there. A chunk's memory is freed when none of its buffers is used or kept.
    #[must_use]
    pub fn advised(advise: fn(&mut [MaybeUninit<u8>])) -> Self {
        Self::of(Some(advise))
    }

    fn of(advise: Option<Advise>) -> Self {
        let classes = core::array::from_fn(|_| Class::new());
        Self { shelves: Arc::new(Shelves { classes, advise }) }
    }

    /// A buffer of `len` bytes whose contents are arbitrary: fill it before freezing it.
    #[must_use]
    pub fn get(&self, len: usize) -> BufMut {
        let class = class_of(len.div_ceil(PAGE_LEN).max(1));
        let Some(kept) = self.shelves.classes.get(class) else { return BufMut::zeroed(len) };
        let shared = kept.take().unwrap_or_else(|| self.make(class));
        BufMut { shared: Some(shared), len }
    }

    #[cold]
    fn make(&self, class: usize) -> Arc<Shared> {
        let home = || Arc::downgrade(&self.shelves);
        if let Some(advise) = self.shelves.advise
            && class >= CHUNK_CLASS
        {
            let parts = Memory::cut_chunk(1 << class, advise);
            let mut parts = parts.map(|memory| Arc::new(Shared { memory, home: home() }));
            let first = parts.next();
            parts.for_each(|part| self.shelves.classes[class].give(part));
            if let Some(first) = first {
                return first;
            }
        }
        let mut buf = BufMut::zeroed(PAGE_LEN << class);
        let Some(mut shared) = buf.shared.take() else { unreachable!("a new buffer has memory") };
        match Arc::get_mut(&mut shared) {
            Some(shared) => shared.home = home(),
            None => unreachable!("a new buffer has one handle"),
        }
        shared
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pool")
    }
}

/// The buffers that are kept, and how more of them are made.
pub(super) struct Shelves {
    classes: [Class; CLASSES],
    advise: Option<Advise>,
}

impl Shelves {
    /// Keeps a buffer without other handles, unless enough of its length are kept.
    pub(super) fn give(&self, shared: Arc<Shared>) {
        if let Some(class) = self.classes.get(class_of(shared.memory.len() / PAGE_LEN)) {
            class.give(shared);
        }
    }
}

/// Free buffers of one length. What was given back last is taken first, as far as queues without locks
/// can tell: it is in the processor's cache still, where the oldest one is not.
struct Class {
    tiers: [ArrayQueue<Arc<Shared>>; TIERS.len()],
}

impl Class {
    fn new() -> Self {
        Self { tiers: TIERS.map(ArrayQueue::new) }
    }

    fn take(&self) -> Option<Arc<Shared>> {
        self.tiers.iter().find_map(ArrayQueue::pop)
    }

    /// Keeps it, unless enough is kept: then its memory is freed.
    fn give(&self, mut shared: Arc<Shared>) {
        for tier in &self.tiers {
            match tier.push(shared) {
                Ok(()) => return,
                Err(back) => shared = back,
            }
        }
    }
}

/// The smallest power of two that holds `pages`.
const fn class_of(pages: usize) -> usize {
    pages.next_power_of_two().trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn pool_reuses_memory_of_the_last_handle_only() {
        let pool = Pool::new();
        let mut first = pool.get(8000);
        first.fill(7);
        let address = first.as_ptr();
        let frozen = first.freeze();
        let part = frozen.slice(10..20);
        drop(frozen);
        assert_ne!(pool.get(8000).as_ptr(), address, "a slice still holds the memory");
        assert_eq!(part[0], 7);
        drop(part);
        let again: vec::Vec<_> = (0..2).map(|_| pool.get(5000)).collect();
        assert!(again.iter().any(|buf| buf.as_ptr() == address));
        assert!(again.iter().all(|buf| buf.as_ptr().addr() % PAGE_LEN == 0));
    }

    #[test]
    fn few_buffers_in_use_stay_the_same_few_after_many_were() {
        let pool = Pool::new();
        let many: vec::Vec<_> = (0..100).map(|_| pool.get(PAGE_LEN)).collect();
        drop(many);
        let mut seen = vec![];
        for _ in 0..100 {
            let buf = pool.get(PAGE_LEN);
            seen.push(buf.as_ptr().addr());
        }
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() <= TIERS[0], "{} buffers leave the cache to each other", seen.len());
        let all: vec::Vec<_> = (0..100).map(|_| pool.get(PAGE_LEN)).collect();
        let mut addresses: vec::Vec<_> = all.iter().map(|buf| buf.as_ptr().addr()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), 100, "nobody else has a buffer that is in use");
    }

    #[test]
    fn buffers_of_a_chunk_come_before_another_chunk() {
        let pool = Pool::advised(|_| {});
        let many: vec::Vec<_> = (0..8).map(|_| pool.get(CHUNK_LEN / 8)).collect();
        let chunk = |buf: &BufMut| buf.as_ptr().addr() / CHUNK_LEN;
        assert!(many.iter().all(|buf| chunk(buf) == chunk(&many[0])));
        let other = pool.get(CHUNK_LEN / 8);
        assert_ne!(chunk(&other), chunk(&many[0]));
        let longest = pool.get(CHUNK_LEN);
        assert_eq!(longest.as_ptr().addr() % CHUNK_LEN, 0);
        assert_eq!(pool.get(CHUNK_LEN + 1).len(), CHUNK_LEN + 1);
    }
}
