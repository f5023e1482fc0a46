//! How far a segment is written, as its sessions on all threads share it.
//!
//! Invariant: of two appends that begin at one end, one goes.

use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Behind the last byte of a segment that was ever written, in bytes from its beginning.
#[derive(Debug, Default)]
pub struct WrittenEnd(AtomicU64);

impl WrittenEnd {
    /// Where that is now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(SeqCst)
    }

    /// A write up to here is on its way.
    pub fn write_to(&self, end: u64) {
        self.0.fetch_max(end, SeqCst);
    }

    /// An append from here to there is on its way; false, and nothing has changed, where what is written ends elsewhere.
    pub fn append(&self, from: u64, to: u64) -> bool {
        self.0.compare_exchange(from, to, SeqCst, SeqCst).is_ok()
    }

    /// An append has failed: if it was the last one, it may be tried again.
    pub fn take_back(&self, from: u64, to: u64) {
        // Where it was not the last one, another one went on behind it.
        let _ = self.append(to, from);
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, vec::Vec};

    use super::*;

    #[test]
    fn of_two_appends_that_begin_at_one_end_one_goes() {
        const ROUNDS: u64 = 10_000;
        let end = WrittenEnd::default();
        let append = || (0..ROUNDS).filter(|round| end.append(*round, round + 1)).count();
        let done: Vec<usize> = thread::scope(|scope| {
            let threads: Vec<_> = (0..2).map(|_| scope.spawn(append)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        // Each end was reached by one append, however far the threads came.
        assert_eq!(done.iter().sum::<usize>() as u64, end.get());
        assert!(end.get() > 0);
    }

    #[test]
    fn only_the_last_append_is_taken_back() {
        let end = WrittenEnd::default();
        assert!(end.append(0, 4) && end.append(4, 8));
        end.take_back(0, 4);
        assert_eq!(end.get(), 8);
        end.take_back(4, 8);
        assert_eq!(end.get(), 4);
    }
}
