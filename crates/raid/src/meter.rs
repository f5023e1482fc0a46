//! How fast work goes that takes long, and how long it will take yet.
//!
//! The rate is that of the last [`WINDOW`] of work: time in which the work was held up by a pause does not count. What is
//! left takes as long as it does at that rate.

use alloc::collections::VecDeque;
use core::time::Duration;

/// The time of work whose rate is told.
pub const WINDOW: Duration = Duration::from_secs(30);
/// How much work is between two marks, at least.
const MARK_EVERY: Duration = Duration::from_secs(1);
/// The least time of work that a rate is told of.
const RATE_AFTER: Duration = Duration::from_secs(1);
/// Nanoseconds of a second.
const SECOND: u128 = 1_000_000_000;

/// How far the work was after so much time of it.
#[derive(Debug, Clone, Copy)]
struct Mark {
    worked: Duration,
    done: u64,
}

/// The speed of one piece of work.
#[derive(Debug, Clone, Default)]
pub struct Meter {
    /// How long it has been worked, up to when it was looked at last.
    worked: Duration,
    /// When that was, if the work goes on since.
    going_since: Option<Duration>,
    /// What was done when it was looked at last.
    done: u64,
    marks: VecDeque<Mark>,
}

/// How fast work goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Speed {
    /// Bytes a second; none where nobody has seen it for long enough.
    pub rate: Option<u64>,
    /// How long what is left takes at that rate; none where nothing moves.
    pub left: Option<Duration>,
}

impl Meter {
    /// The work is as far as `done` bytes, and goes on from here, or is held up. To be called about once a second;
    /// `now` never goes back. Less than was done before is other work.
    pub fn note(&mut self, now: Duration, done: u64, goes_on: bool) {
        if done < self.done {
            *self = Self::default();
        }
        self.worked = self.worked_at(now);
        self.going_since = goes_on.then_some(now);
        self.done = done;
        let is_due = |last: &Mark| self.worked.saturating_sub(last.worked) >= MARK_EVERY;
        if self.marks.back().is_none_or(is_due) {
            self.marks.push_back(Mark { worked: self.worked, done });
        }
        let horizon = self.worked.saturating_sub(WINDOW);
        while self.marks.get(1).is_some_and(|second| second.worked <= horizon) {
            self.marks.pop_front();
        }
    }

    /// How fast it goes, where `done` of `total` bytes are done now.
    #[must_use]
    pub fn speed(&self, now: Duration, done: u64, total: u64) -> Speed {
        let Some(first) = self.marks.front() else { return Speed::default() };
        let took = self.worked_at(now).saturating_sub(first.worked);
        if took < RATE_AFTER || done < self.done {
            return Speed::default();
        }
        let moved = u128::from(done - first.done);
        let rate = u64::try_from(moved * SECOND / took.as_nanos()).unwrap_or(u64::MAX);
        let is_going = moved > 0 && self.going_since.is_some();
        let left = is_going.then(|| {
            let nanos = u128::from(total.saturating_sub(done)) * took.as_nanos() / moved;
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
        });
        Speed { rate: Some(rate), left }
    }

    fn worked_at(&self, now: Duration) -> Duration {
        let since = self.going_since.map(|since| now.saturating_sub(since));
        self.worked + since.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    const MIB: u64 = 1 << 20;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Looks once a second while `done_at` says how far the work is, and whether it goes on.
    fn looked(until_ms: u64, done_at: impl Fn(u64) -> (u64, bool)) -> Meter {
        let mut meter = Meter::default();
        for ms in (0..=until_ms).step_by(1000) {
            let (done, goes_on) = done_at(ms);
            meter.note(at(ms), done, goes_on);
        }
        meter
    }

    #[test]
    fn from_a_tenth_on_the_time_left_is_true_within_a_fifth() {
        for seed in 0..300 {
            let mut rng = StdRng::seed_from_u64(seed);
            let total = rng.random_range(100 * MIB..10_000_000 * MIB);
            // From ten seconds to twelve days, in steps as small as stripes or as large as a second's work.
            let takes_ms = rng.random_range(10_000_u64..1_000_000_000);
            let step = rng.random_range(1..=total * 50 / takes_ms + 1);
            let begun = rng.random_range(0..1000);
            let done_at = |ms: u64| {
                let worked = u128::from(ms.saturating_sub(begun).min(takes_ms));
                let done = u128::from(total) * worked / u128::from(takes_ms);
                u64::try_from(done).unwrap() / step * step
            };
            let asked: u64 = begun + takes_ms * rng.random_range(11..95) / 100;
            let from = asked.saturating_sub(60_000) / 1000 * 1000;
            let mut meter = Meter::default();
            for ms in (from..asked).step_by(1000) {
                meter.note(at(ms), done_at(ms), true);
            }
            let speed = meter.speed(at(asked), done_at(asked), total);
            let left = u64::try_from(speed.left.unwrap().as_millis()).unwrap();
            let really = begun + takes_ms - asked;
            let off = left.abs_diff(really);
            assert!(off * 5 <= really, "seed {seed}: {left} ms where it is {really} ms");
            let rate = total * 1000 / takes_ms;
            assert!(speed.rate.unwrap().abs_diff(rate) * 5 <= rate, "seed {seed}: {speed:?}");
        }
    }

    #[test]
    fn nothing_is_said_before_it_is_known_nor_of_what_stands_still() {
        let mut meter = Meter::default();
        assert_eq!(meter.speed(at(5000), 0, MIB), Speed::default());
        meter.note(at(5000), 10, true);
        assert_eq!(meter.speed(at(5900), 20, MIB), Speed::default());
        let speed = meter.speed(at(6000), 20, 110);
        assert_eq!(speed, Speed { rate: Some(10), left: Some(at(9000)) });
        // Nothing for longer than the window.
        let meter = looked(100_000, |ms| (ms.min(50_000), true));
        assert_eq!(meter.speed(at(100_000), 50_000, MIB), Speed { rate: Some(0), left: None });
    }

    #[test]
    fn a_pause_does_not_count_and_a_change_of_speed_counts_within_the_window() {
        // A thousand bytes a second, but for a minute.
        let meter = looked(100_000, |ms| {
            let worked = if ms < 20_000 { ms } else { 20_000 + ms.saturating_sub(80_000) };
            (worked, !(20_000..80_000).contains(&ms))
        });
        let speed = meter.speed(at(100_500), 40_500, 50_500);
        assert_eq!(speed, Speed { rate: Some(1000), left: Some(at(10_000)) });
        let paused = looked(60_000, |ms| (ms.min(20_000), ms < 20_000));
        let speed = paused.speed(at(60_500), 20_000, MIB);
        assert_eq!(speed, Speed { rate: Some(1000), left: None });
        let faster = looked(100_000, |ms| (ms.min(50_000) + ms.saturating_sub(50_000) * 10, true));
        assert_eq!(faster.speed(at(100_000), 550_000, 600_000).left, Some(at(5000)));
    }

    #[test]
    fn other_work_begins_anew() {
        let mut meter = looked(10_000, |ms| (ms, true));
        // It has ended since, and other work is not seen yet.
        assert_eq!(meter.speed(at(11_000), 5, 100), Speed::default());
        meter.note(at(11_000), 5, true);
        assert_eq!(meter.speed(at(13_000), 25, 35), Speed { rate: Some(10), left: Some(at(1000)) });
    }
}
