//! When requests to one disk have waited too long. On a slow path much that was handed over waits behind other
//! requests, and a disk that moves all it can is not one that does not answer.
//!
//! A request has its time from when it was handed over, or from when the disk last made progress, if that is
//! later. It stops gaining by progress when as much work has ended as was before it and is its own: who is passed
//! by others is stuck. And no request takes longer than [`TIMES_MAX`] times its time.
//!
//! Invariant: requests expire in the order in which they were handed over, and the first one's expiry is known
//! without looking at the others.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::requests::Ticket;

/// How often a request's time may pass while the disk makes progress.
const TIMES_MAX: u32 = 12;

#[derive(Debug)]
struct Entry {
    ticket: Ticket,
    handed_over: Instant,
    time: Duration,
    /// Work that was handed over until then, its own included.
    mark: u64,
    /// Its expiry, when progress of others no longer moves it.
    fixed: Option<Instant>,
}

impl Entry {
    fn expiry(&self, progress: Option<Instant>) -> Instant {
        self.fixed.unwrap_or_else(|| {
            let from = progress.map_or(self.handed_over, |at| at.max(self.handed_over));
            (from + self.time).min(self.handed_over + self.time * TIMES_MAX)
        })
    }
}

/// The deadlines of all requests that have not ended.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    entries: VecDeque<Entry>,
    /// How many of them, from the first on, have theirs fixed.
    fixed: usize,
    /// Work handed over, and ended, ever.
    handed_over: u64,
    ended: u64,
    progress: Option<Instant>,
}

impl Deadlines {
    /// A request of so much work is handed over; all have the same `time`.
    pub(super) fn insert(&mut self, ticket: Ticket, work: u64, now: Instant, time: Duration) {
        self.handed_over += work;
        let mark = self.handed_over;
        self.entries.push_back(Entry { ticket, handed_over: now, time, mark, fixed: None });
    }

    /// The disk has carried out something, or sent a good part of what it was asked for.
    pub(super) const fn note_progress(&mut self, now: Instant) {
        self.progress = Some(now);
    }

    /// A request of so much work has ended, in whichever way.
    pub(super) fn end(&mut self, work: u64) {
        self.ended += work;
        while let Some(entry) = self.entries.get_mut(self.fixed)
            && entry.mark <= self.ended
        {
            entry.fixed = Some(entry.expiry(self.progress));
            self.fixed += 1;
        }
    }

    /// Forgets the first requests for as long as they have ended.
    pub(super) fn forget_ended(&mut self, is_open: impl Fn(Ticket) -> bool) {
        while self.entries.front().is_some_and(|first| !is_open(first.ticket)) {
            self.pop();
        }
    }

    /// The next request whose time is up, which may have ended.
    pub(super) fn pop_expired(&mut self, now: Instant) -> Option<Ticket> {
        let is_up = self.next().is_some_and(|expiry| expiry <= now);
        if is_up { self.pop() } else { None }
    }

    /// When the first request expires, unless the disk makes progress.
    pub(super) fn next(&self) -> Option<Instant> {
        self.entries.front().map(|first| first.expiry(self.progress))
    }

    fn pop(&mut self) -> Option<Ticket> {
        let first = self.entries.pop_front()?;
        self.fixed = self.fixed.saturating_sub(1);
        Some(first.ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(5);
    const MIB: u64 = 1 << 20;

    fn second(start: Instant, number: f64) -> Instant {
        start + Duration::from_secs_f64(number)
    }

    #[test]
    fn who_waits_behind_others_that_move_does_not_expire() {
        let (start, mut deadlines) = (Instant::now(), Deadlines::default());
        for number in 0..16 {
            deadlines.insert(Ticket::from_tag(number), MIB, start, TIME);
        }
        // 10 Mbit/s: one in 0.84 s, the last one after 13.4 s.
        for number in 0..16 {
            let now = second(start, 0.84 * (number + 1) as f64);
            assert_eq!(deadlines.pop_expired(now), None, "{number}");
            deadlines.note_progress(now);
            deadlines.end(MIB);
            deadlines.forget_ended(|ticket| ticket.tag() > number);
        }
        assert_eq!(deadlines.next(), None);
    }

    #[test]
    fn all_expire_at_once_when_nothing_moves() {
        let (start, mut deadlines) = (Instant::now(), Deadlines::default());
        for number in 0..16 {
            deadlines.insert(Ticket::from_tag(number), MIB, start, TIME);
        }
        deadlines.note_progress(second(start, 1.0));
        assert_eq!(deadlines.pop_expired(second(start, 5.9)), None);
        for number in 0..16 {
            let expired = deadlines.pop_expired(second(start, 6.0)).map(Ticket::tag);
            assert_eq!(expired, Some(number));
            deadlines.end(MIB);
        }
    }

    #[test]
    fn who_is_passed_by_others_expires_while_they_move() {
        let (start, mut deadlines) = (Instant::now(), Deadlines::default());
        deadlines.insert(Ticket::from_tag(0), MIB, start, TIME);
        for number in 1..100 {
            let now = second(start, 0.1 * number as f64);
            deadlines.insert(Ticket::from_tag(number), MIB, now, TIME);
            deadlines.note_progress(now);
            deadlines.end(MIB);
            // Its turn was over when the first one had passed it.
            let is_up = now >= second(start, 0.1) + TIME;
            assert_eq!(deadlines.pop_expired(now).map(Ticket::tag), is_up.then_some(0));
            if is_up {
                return;
            }
        }
        panic!("it never expired");
    }

    #[test]
    fn nobody_waits_longer_than_the_longest_time() {
        let (start, mut deadlines) = (Instant::now(), Deadlines::default());
        deadlines.insert(Ticket::from_tag(0), MIB, start, TIME);
        for number in 1..60 {
            let now = second(start, number as f64);
            assert_eq!(deadlines.pop_expired(now), None);
            deadlines.note_progress(now);
        }
        assert!(deadlines.pop_expired(second(start, 60.0)).is_some());
    }

    #[test]
    fn expiries_are_in_order_whatever_comes() {
        let start = Instant::now();
        let (mut deadlines, mut seed) = (Deadlines::default(), 1_u64);
        let mut open = Vec::new();
        for step in 0..20_000_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let dice = seed >> 33;
            let now = second(start, step as f64 * 0.05);
            match dice % 4 {
                0 | 1 => {
                    let work = 1 + dice % 100;
                    deadlines.insert(Ticket::from_tag(step), work, now, TIME);
                    open.push((step, work));
                }
                2 if !open.is_empty() => {
                    let (_, work) = open.swap_remove(dice as usize % open.len());
                    deadlines.note_progress(now);
                    deadlines.end(work);
                    deadlines
                        .forget_ended(|ticket| open.iter().any(|(one, _)| *one == ticket.tag()));
                }
                _ => {
                    while let Some(ticket) = deadlines.pop_expired(now) {
                        let at = open.iter().position(|(one, _)| *one == ticket.tag());
                        if let Some(at) = at {
                            deadlines.end(open.swap_remove(at).1);
                        }
                    }
                }
            }
            let all = deadlines.entries.iter().map(|entry| entry.expiry(deadlines.progress));
            assert!(all.is_sorted(), "step {step}");
        }
    }
}
