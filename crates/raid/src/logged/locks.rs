//! Locks on logical stripes: who may write which blocks of it, who may change what is at home, and
//! who relies on what is there.
//!
//! Locks of one stripe are granted in the order in which they were asked for, each as soon as
//! nothing before it is in its way. Who holds one waits for members and the log alone, never for
//! room in the log or a free stripe: those are had before, so nobody waits in a circle.

use alloc::{collections::BTreeMap, vec::Vec};
use core::{
    future::poll_fn,
    ops::Range,
    task::{Poll, Waker},
};

use super::{
    Rule,
    tasks::{Array, Change},
};

/// What a lock is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Purpose {
    /// New contents of some of its blocks, by way of the log.
    Write(Range<u32>),
    /// The same, and part of the new contents is what is there now: both at once, because who waits
    /// for a second lock behind others that wait for its first waits for ever.
    Merge(Range<u32>),
    /// New contents of all of it, elsewhere.
    Replace,
    /// To change what is at home, or where home is, without changing the contents.
    Home,
    /// To compute from what is at home.
    Rely,
}

impl Purpose {
    fn excludes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Write(one) | Self::Merge(one), Self::Write(two) | Self::Merge(two)) => {
                one.start < two.end && two.start < one.end
            }
            (Self::Write(_), Self::Home | Self::Rely)
            | (Self::Home | Self::Rely, Self::Write(_)) => false,
            (Self::Rely, Self::Rely | Self::Replace | Self::Merge(_))
            | (Self::Replace | Self::Merge(_), Self::Rely) => false,
            (Self::Replace | Self::Home, _) | (_, Self::Replace | Self::Home) => true,
        }
    }
}

#[derive(Debug)]
struct Entry {
    number: u64,
    purpose: Purpose,
    held: bool,
    waker: Option<Waker>,
}

/// All locks, held and waited for.
#[derive(Debug, Default)]
pub(super) struct Locks {
    stripes: BTreeMap<u32, Vec<Entry>>,
    next: u64,
}

impl Locks {
    fn ask(&mut self, stripe: u32, purpose: Purpose) -> u64 {
        let number = self.next;
        self.next += 1;
        let entry = Entry { number, purpose, held: false, waker: None };
        self.stripes.entry(stripe).or_default().push(entry);
        number
    }

    fn take(&mut self, stripe: u32, number: u64) -> bool {
        let Some(entries) = self.stripes.get_mut(&stripe) else { return false };
        let Some(at) = entries.iter().position(|entry| entry.number == number) else {
            return false;
        };
        let (earlier, rest) = entries.split_at_mut(at);
        rest[0].held = !earlier.iter().any(|other| other.purpose.excludes(&rest[0].purpose));
        rest[0].held
    }

    /// Has whoever waits for a lock woken when another one of that stripe is released.
    fn wait(&mut self, stripe: u32, number: u64, waker: &Waker) {
        let entries = self.stripes.get_mut(&stripe).into_iter().flatten();
        for entry in entries.filter(|entry| entry.number == number) {
            entry.waker = Some(waker.clone());
        }
    }

    fn release(&mut self, stripe: u32, number: u64) {
        let Some(entries) = self.stripes.get_mut(&stripe) else { return };
        entries.retain(|entry| entry.number != number);
        if entries.is_empty() {
            self.stripes.remove(&stripe);
            return;
        }
        entries.iter_mut().filter_map(|entry| entry.waker.take()).for_each(Waker::wake);
    }

    /// Whether somebody holds or wants one on a stripe.
    pub(super) fn is_locked(&self, stripe: u32) -> bool {
        self.stripes.contains_key(&stripe)
    }

    /// Whether nobody holds or wants any.
    pub(super) fn is_empty(&self) -> bool {
        self.stripes.is_empty()
    }
}

/// A lock; it ends when it is dropped.
pub(super) struct Lock {
    array: Array,
    stripe: u32,
    number: u64,
}

impl Drop for Lock {
    fn drop(&mut self) {
        let mut state = self.array.state();
        state.locks.release(self.stripe, self.number);
        if state.locks.is_empty() {
            // Who closes the array waits for the last one.
            state.waiters.wake(Change::Operations);
        }
    }
}

impl Array {
    /// Waits for a lock on a logical stripe.
    pub(super) async fn lock(&self, stripe: u32, purpose: Purpose) -> Lock {
        let number = self.state().locks.ask(stripe, purpose);
        // Made before the wait, so that who is ended while waiting leaves nothing behind.
        let lock = Lock { array: self.clone(), stripe, number };
        let mut is_held_back = false;
        poll_fn(|context| {
            let mut state = self.state();
            if state.locks.take(stripe, number) {
                return Poll::Ready(());
            }
            if !core::mem::replace(&mut is_held_back, true) {
                state.rules.note(Rule::Lock);
            }
            state.locks.wait(stripe, number, context.waker());
            Poll::Pending
        })
        .await;
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_exclude_each_other_alike_in_both_directions() {
        let all = [
            Purpose::Write(0..4),
            Purpose::Write(2..6),
            Purpose::Write(4..8),
            Purpose::Merge(3..4),
            Purpose::Replace,
            Purpose::Home,
            Purpose::Rely,
        ];
        let table: Vec<Vec<u8>> = all
            .iter()
            .map(|one| all.iter().map(|two| u8::from(one.excludes(two))).collect())
            .collect();
        let expected: [[u8; 7]; 7] = [
            [1, 1, 0, 1, 1, 0, 0],
            [1, 1, 1, 1, 1, 0, 0],
            [0, 1, 1, 0, 1, 0, 0],
            [1, 1, 0, 1, 1, 1, 0],
            [1, 1, 1, 1, 1, 1, 0],
            [0, 0, 0, 1, 1, 1, 1],
            [0, 0, 0, 0, 0, 1, 0],
        ];
        assert_eq!(table, expected);
    }

    #[test]
    fn later_ones_do_not_overtake_what_is_in_their_way() {
        let mut locks = Locks::default();
        let first = locks.ask(1, Purpose::Write(0..4));
        let whole = locks.ask(1, Purpose::Replace);
        let late = locks.ask(1, Purpose::Write(4..8));
        let other = locks.ask(2, Purpose::Replace);
        assert_eq!([first, whole, late].map(|one| locks.take(1, one)), [true, false, false]);
        assert!(locks.take(2, other));
        locks.release(1, first);
        assert_eq!([whole, late].map(|one| locks.take(1, one)), [true, false]);
        locks.release(1, whole);
        assert!(locks.take(1, late));
    }
}
