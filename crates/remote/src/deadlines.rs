//! When requests to one disk have waited too long. On a slow path much that was handed over waits behind other
//! requests, and a disk that moves all it can is not one that does not answer.
//!
//! A request has its time from when it was handed over; and while others of its class were before it, from when the
//! disk last made progress. When as much of its class has ended as was before it, it is its turn, and nothing
//! that others end gives it more time. What the disk moves may ([`Deadlines::extend`]): of the request itself; or of others
//! that are served with it in turns, as much as they have. But none takes longer than [`TIMES_MAX`] times its time.
//!
//! Invariant: requests of one class expire in the order in which they were handed over, but for those that
//! were extended, and the first expiry is known without looking at the others.

use alloc::collections::{BTreeMap, VecDeque};
use core::time::Duration;

use netraid_planted::{Planted, planted};

use crate::{requests::Ticket, window::Class};

/// How often a request's time may pass while the disk makes progress.
pub(crate) const TIMES_MAX: u32 = 12;

/// A request whose time is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expired {
    pub(crate) ticket: Ticket,
    /// When it was handed over.
    pub(crate) handed_over: Duration,
}

/// The deadlines of all requests that have not ended.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    express: Queue,
    bulk: Queue,
    /// When the disk last made progress.
    progress: Option<Duration>,
    /// The time of each request.
    time: Duration,
    /// Those that got more time, which may have ended since: when they were handed over.
    extended: BTreeMap<(Duration, Ticket), Duration>,
}

/// Requests of one class, in the order in which they were handed over.
#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<Entry>,
    /// How many of them, from the first on, have their turn.
    turned: usize,
    /// Work handed over, and ended, ever.
    handed_over: u64,
    ended: u64,
}

#[derive(Debug)]
struct Entry {
    ticket: Ticket,
    handed_over: Duration,
    /// Work that was handed over before it.
    before: u64,
    /// From when on it has its time, once it has its turn.
    from: Option<Duration>,
}

impl Deadlines {
    /// A request of so much work is handed over `now`; all have the same `time`.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        class: Class,
        ticket: Ticket,
        work: u64,
        (now, time): (Duration, Duration),
    ) {
        self.time = time;
        let progress = self.progress;
        let queue = self.queue(class);
        let before = queue.handed_over;
        queue.handed_over += work;
        queue.entries.push_back(Entry { ticket, handed_over: now, before, from: None });
        queue.turn(progress);
    }

    /// The disk has carried out something, or goes on with it.
    #[inline]
    pub(crate) fn note_progress(&mut self, at: Duration) {
        self.progress = self.progress.max(Some(at));
    }

    /// A request of so much work has ended, in whichever way.
    #[inline]
    pub(crate) fn end(&mut self, class: Class, work: u64) {
        let progress = self.progress;
        let queue = self.queue(class);
        queue.ended += work;
        assert!(queue.ended <= queue.handed_over, "more work ends than was handed over");
        queue.turn(progress);
    }

    /// Forgets the first requests for as long as they have ended.
    pub(crate) fn forget_ended(&mut self, is_open: impl Fn(Ticket) -> bool) {
        for queue in [&mut self.express, &mut self.bulk] {
            while queue.entries.front().is_some_and(|first| !is_open(first.ticket)) {
                queue.pop();
            }
        }
    }

    /// The next request whose time is up, which may have ended.
    pub(crate) fn pop_expired(&mut self, now: Duration) -> Option<Expired> {
        if let Some(first) = self.extended.first_entry()
            && first.key().0 <= now
        {
            let ((_, ticket), handed_over) = first.remove_entry();
            return Some(Expired { ticket, handed_over });
        }
        let (progress, time) = (self.progress, self.time);
        [&mut self.express, &mut self.bulk].into_iter().find_map(|queue| {
            let is_up = queue.next(progress, time).is_some_and(|expiry| expiry <= now);
            if is_up { queue.pop() } else { None }
        })
    }

    /// A request whose time was up has more, until then.
    pub(crate) fn extend(&mut self, expired: Expired, until: Duration) {
        self.extended.insert((until, expired.ticket), expired.handed_over);
    }

    /// When the first request expires, unless the disk makes progress.
    #[inline]
    pub(crate) fn next(&self) -> Option<Duration> {
        let extended = self.extended.first_key_value().map(|((until, _), _)| *until);
        let queued = [&self.express, &self.bulk].into_iter();
        queued.filter_map(|queue| queue.next(self.progress, self.time)).chain(extended).min()
    }

    #[inline]
    const fn queue(&mut self, class: Class) -> &mut Queue {
        match class {
            Class::Express => &mut self.express,
            Class::Bulk => &mut self.bulk,
        }
    }
}

impl Queue {
    fn next(&self, progress: Option<Duration>, time: Duration) -> Option<Duration> {
        self.entries.front().map(|first| first.expiry(progress, time))
    }

    /// Those before which nothing is any more have their turn.
    #[inline]
    fn turn(&mut self, progress: Option<Duration>) {
        while let Some(entry) = self.entries.get_mut(self.turned)
            && entry.before <= self.ended
        {
            entry.from = Some(entry.from(progress));
            self.turned += 1;
        }
    }

    fn pop(&mut self) -> Option<Expired> {
        let Entry { ticket, handed_over, .. } = self.entries.pop_front()?;
        self.turned = self.turned.saturating_sub(1);
        Some(Expired { ticket, handed_over })
    }
}

impl Entry {
    #[inline]
    fn from(&self, progress: Option<Duration>) -> Duration {
        let latest = || progress.map_or(self.handed_over, |at| at.max(self.handed_over));
        match planted(Planted::OthersProgressGivesTimeForEver) {
            true => latest(),
            false => self.from.unwrap_or_else(latest),
        }
    }

    #[inline]
    fn expiry(&self, progress: Option<Duration>, time: Duration) -> Duration {
        let turn = self.from(progress) + time;
        match planted(Planted::OthersProgressGivesTimeForEver) {
            true => turn,
            false => turn.min(self.handed_over + time * TIMES_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const TIME: Duration = Duration::from_secs(5);
    const MIB: u64 = 1 << 20;

    fn second(start: Duration, number: f64) -> Duration {
        start + Duration::from_secs_f64(number)
    }

    fn ticket(expired: Option<Expired>) -> Option<u64> {
        expired.map(|expired| expired.ticket.tag())
    }

    /// As many of 1 MiB as are in flight, handed over at once.
    fn many(start: Duration) -> Deadlines {
        let mut deadlines = Deadlines::default();
        for number in 0..16 {
            deadlines.insert(Class::Bulk, Ticket::from_tag(number), MIB, (start, TIME));
        }
        deadlines
    }

    #[test]
    fn who_waits_behind_others_that_move_does_not_expire() {
        let start = Duration::ZERO;
        let mut deadlines = many(start);
        // 10 Mbit/s: one in 0.84 s, the last one after 13.4 s.
        for number in 0..16 {
            let now = second(start, 0.84 * (number + 1) as f64);
            assert_eq!(deadlines.pop_expired(now), None, "{number}");
            deadlines.note_progress(now);
            deadlines.end(Class::Bulk, MIB);
            deadlines.forget_ended(|ticket| ticket.tag() > number);
        }
        assert_eq!(deadlines.next(), None);
    }

    #[test]
    fn all_expire_at_once_when_nothing_moves() {
        let start = Duration::ZERO;
        let mut deadlines = many(start);
        assert_eq!(deadlines.pop_expired(second(start, 4.9)), None);
        for number in 0..16 {
            assert_eq!(ticket(deadlines.pop_expired(second(start, 5.0))), Some(number));
            deadlines.end(Class::Bulk, MIB);
        }
    }

    #[test]
    fn who_has_the_turn_and_is_stuck_expires_although_others_come_and_go() {
        for gap in [0.1, 4.0] {
            let (start, mut deadlines) = (Duration::ZERO, Deadlines::default());
            deadlines.insert(Class::Bulk, Ticket::from_tag(0), MIB, (start, TIME));
            for number in 1..100 {
                let now = second(start, gap * number as f64);
                if now >= start + TIME {
                    assert_eq!(ticket(deadlines.pop_expired(now)), Some(0));
                    break;
                }
                assert_eq!(deadlines.pop_expired(now), None);
                let class = if number % 2 == 0 { Class::Bulk } else { Class::Express };
                deadlines.insert(class, Ticket::from_tag(number), 4096, (now, TIME));
                deadlines.note_progress(now);
                deadlines.end(class, 4096);
                deadlines.forget_ended(|ticket| ticket.tag() == 0);
            }
        }
    }

    #[test]
    fn small_requests_that_go_first_do_not_make_large_ones_expire() {
        let start = Duration::ZERO;
        let mut deadlines = many(start);
        for number in 100..148 {
            let now = second(start, 0.2 * (number - 100) as f64);
            deadlines.insert(Class::Express, Ticket::from_tag(number), MIB, (now, TIME));
            deadlines.note_progress(now);
            deadlines.end(Class::Express, MIB);
            deadlines.forget_ended(|ticket| ticket.tag() < 100);
            // The first one is stuck.
            let expired = ticket(deadlines.pop_expired(now));
            assert_eq!(expired, (now == second(start, 5.0)).then_some(0), "{number}");
        }
    }

    #[test]
    fn nobody_waits_longer_than_the_longest_time() {
        let start = Duration::ZERO;
        let mut deadlines = many(start);
        let mut first = deadlines.pop_expired(second(start, 5.0)).unwrap();
        for number in 1..60 {
            let now = second(start, number as f64);
            deadlines.note_progress(now);
            deadlines.extend(first, now + TIME);
            assert_eq!(deadlines.pop_expired(now), None);
            let next = deadlines.pop_expired(now + TIME).unwrap();
            assert_eq!(next.ticket, first.ticket, "the extended one is before the others");
            first = next;
        }
        assert_eq!(ticket(deadlines.pop_expired(second(start, 60.0))), Some(1));
    }

    #[test]
    fn expiries_are_in_order_whatever_comes() {
        let start = Duration::ZERO;
        let (mut deadlines, mut seed) = (Deadlines::default(), 1_u64);
        let mut open = Vec::new();
        for step in 0..20_000_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let dice = seed >> 33;
            let now = second(start, step as f64 * 0.05);
            let class = |one: u64| if one.is_multiple_of(3) { Class::Bulk } else { Class::Express };
            match dice % 4 {
                0 | 1 => {
                    let work = 1 + dice % 100;
                    deadlines.insert(class(step), Ticket::from_tag(step), work, (now, TIME));
                    open.push((step, work));
                }
                2 if !open.is_empty() => {
                    let (one, work) = open.swap_remove(dice as usize % open.len());
                    deadlines.note_progress(now);
                    deadlines.end(class(one), work);
                    deadlines
                        .forget_ended(|ticket| open.iter().any(|(one, _)| *one == ticket.tag()));
                }
                _ => {
                    while let Some(number) = ticket(deadlines.pop_expired(now)) {
                        let at = open.iter().position(|(one, _)| *one == number);
                        if let Some(at) = at {
                            let (one, work) = open.swap_remove(at);
                            deadlines.end(class(one), work);
                        }
                    }
                    assert!(deadlines.next().is_none_or(|next| next > now));
                }
            }
            for queue in [&deadlines.express, &deadlines.bulk] {
                let all = queue.entries.iter().map(|entry| entry.expiry(deadlines.progress, TIME));
                assert!(all.is_sorted(), "step {step}");
            }
        }
    }
}
