//! The clock by which a disk's time is judged: it stands still while its process does.
//!
//! A process that is stopped, or whose machine is paused or moved, finds that the time of all that it asked for is over, and
//! what has come meanwhile not read yet. So the time of a standstill counts for nobody.
//!
//! Invariant: the clock never runs backwards; and a standstill counts that follows on another one before the process has run
//! for a while: who is always late gets no more time by that.

use core::time::Duration;

use netraid_planted::{Planted, planted};

/// Who looks later than this after the last look, and after something was due, has stood still.
const STANDSTILL_MIN: Duration = Duration::from_secs(1);
/// What was due during a standstill is due so much after it, or sooner if it was due that soon before.
const GRACE: Duration = Duration::from_secs(1);
/// A process has run for a while after a standstill when its last look was so much later.
const RUN_MIN: Duration = Duration::from_millis(50);

/// A clock that stands still with its process.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The last look, by the shell's clock.
    last_outside: Duration,
    /// The last look, by this clock.
    last: Duration,
    /// How much this clock is behind the shell's.
    behind: Duration,
    /// The process has not run for a while since a standstill, until it looks at this moment or later: the next one counts.
    counts_before: Duration,
}

/// A look at the clock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The moment.
    pub(crate) now: Duration,
    /// How long the process had stood still, if it had: that does not count.
    pub(crate) stood: Option<Duration>,
}

impl Clock {
    pub(crate) const fn new(now: Duration) -> Self {
        Self { last_outside: now, last: now, behind: Duration::ZERO, counts_before: now }
    }

    /// A moment of this clock by the shell's.
    pub(crate) fn outside(&self, at: Duration) -> Duration {
        at + self.behind
    }

    /// Whether the last look was at this moment, by the shell's clock: then nothing is to be read.
    #[inline]
    pub(crate) fn was_read_at(&self, outside: Duration) -> bool {
        outside == self.last_outside
    }

    /// Whether [`Self::read`] is to be told what was due.
    #[inline]
    pub(crate) fn may_have_stood(&self, outside: Duration) -> bool {
        outside.saturating_sub(self.behind) > self.last + STANDSTILL_MIN
    }

    /// The moment, when the shell's clock says `outside`; `due` is what was to be last_outside at first.
    #[inline]
    pub(crate) fn read(&mut self, outside: Duration, due: Option<Duration>) -> Reading {
        let own = outside.checked_sub(self.behind).filter(|own| *own >= self.last);
        let Some(own) = own else {
            unreachable!("time runs backwards: {outside:?} after {:?}", self.outside(self.last))
        };
        let late = due.filter(|due| own > *due + STANDSTILL_MIN && self.may_have_stood(outside));
        let counts = self.last < self.counts_before || planted(Planted::StandstillCounts);
        let late = late.filter(|_| !counts);
        let now = late.map_or(own, |due| self.last.max(due.saturating_sub(GRACE)));
        let stood = late.map(|_| own - now);
        self.behind += stood.unwrap_or_default();
        if stood.is_some() {
            self.counts_before = now + RUN_MIN;
        }
        (self.last_outside, self.last) = (outside, now);
        Reading { now, stood }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn who_looks_in_time_has_the_time_of_the_shell() {
        let mut clock = Clock::new(SECOND);
        for at in [SECOND, 2 * SECOND, 60 * SECOND] {
            let reading = clock.read(at, Some(at));
            assert_eq!(reading, Reading { now: at, stood: None });
            assert_eq!(clock.outside(at), at);
        }
    }

    #[test]
    fn one_moment_is_looked_at_once() {
        let mut clock = Clock::new(SECOND);
        assert!(clock.was_read_at(SECOND) && !clock.was_read_at(2 * SECOND));
        clock.read(20 * SECOND, Some(6 * SECOND));
        // By the shell's clock, whatever stood still.
        assert!(clock.was_read_at(20 * SECOND) && !clock.was_read_at(5 * SECOND));
    }

    #[test]
    fn what_was_due_during_a_standstill_is_due_a_second_after_it() {
        let mut clock = Clock::new(SECOND);
        let reading = clock.read(20 * SECOND, Some(6 * SECOND));
        assert_eq!(reading, Reading { now: 5 * SECOND, stood: Some(15 * SECOND) });
        assert_eq!(clock.outside(6 * SECOND), 21 * SECOND);
        assert_eq!(clock.read(21 * SECOND, Some(6 * SECOND)).now, 6 * SECOND);
    }

    #[test]
    fn what_was_due_sooner_is_due_as_soon_after_it() {
        let mut clock = Clock::new(6 * SECOND - SECOND / 10);
        assert_eq!(clock.read(20 * SECOND, Some(6 * SECOND)).now, 6 * SECOND - SECOND / 10);
    }

    #[test]
    fn who_is_always_late_gets_no_more_time() {
        let mut clock = Clock::new(SECOND);
        let due = Some(6 * SECOND);
        let mut at = SECOND;
        let expired = (0..10).position(|_| {
            at = at.max(clock.outside(6 * SECOND)) + 2 * SECOND;
            let mut looks = [0, 0, 20].map(|micros| {
                at += Duration::from_micros(micros);
                clock.read(at, due).now
            });
            looks.sort();
            looks[0] >= 6 * SECOND
        });
        assert_eq!(expired, Some(1));
    }

    #[test]
    fn who_has_run_for_a_while_may_stand_still_again() {
        let mut clock = Clock::new(SECOND);
        assert!(clock.read(20 * SECOND, Some(6 * SECOND)).stood.is_some());
        assert!(clock.read(20 * SECOND + 2 * RUN_MIN, Some(6 * SECOND)).stood.is_none());
        assert!(clock.read(40 * SECOND, Some(6 * SECOND)).stood.is_some());
    }

    #[test]
    fn nothing_stands_still_for_who_waits_for_nothing() {
        let mut clock = Clock::new(SECOND);
        assert_eq!(clock.read(90 * SECOND, None).now, 90 * SECOND);
        assert_eq!(clock.read(180 * SECOND, Some(200 * SECOND)).now, 180 * SECOND);
    }
}
