//! Waiting places: somebody waits for an answer, or for the last of several, and whoever has it
//! knows the place by its number alone.
//!
//! Invariant: an answer reaches the place that it was meant for, or nobody: places are used again,
//! numbers are not, so that who has given up leaves nothing to those after it.

use alloc::vec::Vec;
use core::{
    future::poll_fn,
    mem,
    ops::Range,
    task::{Poll, Waker},
};

use netraid_block::{ErrorKind, IoError, SgList};
use slab::Slab;

use super::tasks::Array;

/// The number of a waiting place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WaitId {
    at: u32,
    /// Of those that had this place, modulo 2^32.
    serial: u32,
}

/// All waiting places.
#[derive(Debug, Default)]
pub(super) struct Waits {
    places: Slab<Wait>,
    next_serial: u32,
}

#[derive(Debug)]
struct Wait {
    serial: u32,
    /// The last answer; an error stays.
    answer: Option<Result<SgList, IoError>>,
    /// Answers to come.
    left: u32,
    waker: Option<Waker>,
    /// Other places that get a part of the answer.
    followers: Vec<(WaitId, Range<usize>)>,
    /// Who waits goes elsewhere as well when the answer is late.
    has_choice: bool,
    /// The answer is late.
    is_late: bool,
}

impl Waits {
    /// A new place, for so many answers; more may be added.
    fn insert(&mut self, left: u32) -> WaitId {
        let serial = self.next_serial;
        self.next_serial = serial.wrapping_add(1);
        let at = self.places.insert(Wait {
            serial,
            answer: None,
            left,
            waker: None,
            followers: Vec::new(),
            has_choice: false,
            is_late: false,
        });
        let Ok(at) = u32::try_from(at) else { unreachable!("{at} waiting places") };
        WaitId { at, serial }
    }

    fn get_mut(&mut self, id: WaitId) -> Option<&mut Wait> {
        self.places.get_mut(id.at as usize).filter(|wait| wait.serial == id.serial)
    }

    fn remove(&mut self, id: WaitId) {
        if self.get_mut(id).is_some() {
            let gone = self.places.remove(id.at as usize);
            // Whoever follows asks for itself.
            for (follower, _) in gone.followers {
                self.settle(follower, Err(ErrorKind::Aborted.into()));
            }
        }
    }

    /// Has `follower` answered by a part of the bytes that are the one answer to `id`; false when that
    /// was given already.
    pub(super) fn follow(&mut self, id: WaitId, follower: WaitId, part: Range<usize>) -> bool {
        let Some(wait) = self.get_mut(id).filter(|wait| wait.left == 1) else { return false };
        wait.followers.push((follower, part));
        if wait.is_late
            && let Some(follower) = self.get_mut(follower)
        {
            follower.is_late = true;
        }
        true
    }

    /// One more answer is to come.
    pub(super) fn expect_another(&mut self, id: WaitId) {
        if let Some(wait) = self.get_mut(id) {
            wait.left += 1;
        }
    }

    /// Gives a place an answer. Whoever waits there may have given up.
    pub(super) fn settle(&mut self, id: WaitId, answer: Result<SgList, IoError>) {
        let Some(wait) = self.get_mut(id) else { return };
        assert!(wait.left > 0, "more answers than were waited for");
        wait.left -= 1;
        let followers = mem::take(&mut wait.followers);
        for (follower, part) in followers {
            self.settle(follower, answer.clone().map(|data| data.slice(part)));
        }
        let Some(wait) = self.get_mut(id) else { return };
        if !matches!(wait.answer, Some(Err(_))) {
            wait.answer = Some(answer);
        }
        if wait.left == 0
            && let Some(waker) = wait.waker.take()
        {
            waker.wake();
        }
    }

    /// The answer to this place is late; how many of those who wait for it have a choice, and were not told before.
    pub(super) fn note_late(&mut self, id: WaitId) -> u64 {
        let Some(wait) = self.get_mut(id) else { return 0 };
        let is_news = wait.has_choice && !wait.is_late;
        wait.is_late = true;
        if is_news && let Some(waker) = wait.waker.take() {
            waker.wake();
        }
        let followers: Vec<WaitId> = wait.followers.iter().map(|(follower, _)| *follower).collect();
        let more: u64 = followers.into_iter().map(|follower| self.note_late(follower)).sum();
        u64::from(is_news) + more
    }

    /// As [`Self::poll`]; none when the answer is late.
    fn poll_in_time(&mut self, id: WaitId, waker: &Waker) -> Poll<Option<Result<SgList, IoError>>> {
        if let Poll::Ready(answer) = self.poll(id, waker) {
            return Poll::Ready(Some(answer));
        }
        let Some(wait) = self.get_mut(id) else { unreachable!("a ticket has its place") };
        wait.has_choice = true;
        if wait.is_late { Poll::Ready(None) } else { Poll::Pending }
    }

    /// The answer, if it is there; else `waker` is told when it is.
    fn poll(&mut self, id: WaitId, waker: &Waker) -> Poll<Result<SgList, IoError>> {
        let Some(wait) = self.get_mut(id) else { unreachable!("a ticket has its place") };
        if wait.left == 0 {
            return Poll::Ready(wait.answer.take().unwrap_or(Ok(SgList::new())));
        }
        wait.waker = Some(waker.clone());
        Poll::Pending
    }
}

/// A waiting place that somebody has; it is given up when this is dropped.
pub(super) struct Ticket {
    pub(super) array: Array,
    id: WaitId,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.array.state().waits.remove(self.id);
    }
}

impl Ticket {
    pub(super) const fn id(&self) -> WaitId {
        self.id
    }

    /// Waits for the answer, or for the last of several: the first error, if there was one.
    pub(super) async fn answer(self) -> Result<SgList, IoError> {
        poll_fn(|context| self.array.state().waits.poll(self.id, context.waker())).await
    }
}

impl Ticket {
    /// Waits for the answer, and not for one that is late: none then, and it may be waited for further.
    pub(super) async fn answer_in_time(&self) -> Option<Result<SgList, IoError>> {
        poll_fn(|context| self.array.state().waits.poll_in_time(self.id, context.waker())).await
    }
}

impl Array {
    /// A place to wait for one answer.
    pub(super) fn ticket(&self) -> Ticket {
        self.ticket_for(1)
    }

    /// A place to wait for so many answers, and those that are added.
    pub(super) fn ticket_for(&self, answers: u32) -> Ticket {
        let id = self.state().waits.insert(answers);
        Ticket { array: self.clone(), id }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_for_who_gave_up_reaches_nobody_else() {
        let mut waits = Waits::default();
        let gone = waits.insert(1);
        waits.remove(gone);
        let other = waits.insert(1);
        assert_eq!(other.at, gone.at, "the place is used again");
        waits.settle(gone, Err(ErrorKind::Device.into()));
        assert!(waits.poll(other, Waker::noop()).is_pending());
        waits.settle(other, Ok(SgList::new()));
        assert!(matches!(waits.poll(other, Waker::noop()), Poll::Ready(Ok(_))));
    }

    #[test]
    fn who_follows_gets_a_part_of_the_answer_or_an_error() {
        let mut waits = Waits::default();
        let bytes = netraid_block::Buf::copy_from(&[1, 2, 3, 4]);
        let [first, follower, gone, late] = [(); 4].map(|()| waits.insert(1));
        assert!(waits.follow(first, follower, 1..3));
        assert!(waits.follow(gone, late, 0..1));
        waits.settle(first, Ok(bytes.into()));
        let Poll::Ready(Ok(part)) = waits.poll(follower, Waker::noop()) else { panic!("no part") };
        assert_eq!(*part.to_contiguous(), [2, 3]);
        let other = waits.insert(1);
        assert!(!waits.follow(first, other, 0..1), "what has been answered brings nothing more");
        assert!(waits.poll(late, Waker::noop()).is_pending());
        waits.remove(gone);
        assert!(matches!(waits.poll(late, Waker::noop()), Poll::Ready(Err(_))));
    }

    #[test]
    fn the_last_of_several_answers_ends_a_wait_and_an_error_among_them_stays() {
        let mut waits = Waits::default();
        let id = waits.insert(0);
        (0..3).for_each(|_| waits.expect_another(id));
        waits.settle(id, Ok(SgList::new()));
        waits.settle(id, Err(ErrorKind::NoSpace.into()));
        assert!(waits.poll(id, Waker::noop()).is_pending());
        waits.settle(id, Ok(SgList::new()));
        let Poll::Ready(Err(error)) = waits.poll(id, Waker::noop()) else { panic!("no error") };
        assert_eq!(error.kind(), ErrorKind::NoSpace);
    }
}
