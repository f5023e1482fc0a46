//! How long the last reads of a class took.
//!
//! Times are kept in steps of an eighth of their power of two, as microseconds: that is near enough for what is decided
//! by them, and the last 1,000 take 2 KiB.

use alloc::vec::Vec;
use core::time::Duration;

use netraid_block::narrow;

use super::COMPARED_MIN;

/// Reads that are remembered.
const REMEMBERED: usize = 1000;
/// Steps in which times are kept.
const STEPS: usize = 240;
/// Reads from which it is known what is usual.
const KNOWN_MIN: usize = 32;
/// Reads after which the deadline is found anew.
const ANEW_AFTER: u8 = 32;

/// The last reads.
#[derive(Debug)]
pub(super) struct Times {
    /// Their steps; the oldest is at `next` when there are as many as are remembered.
    recent: Vec<u8>,
    next: usize,
    /// How many there are of each step.
    counts: [u16; STEPS],
    /// The deadline's bounds.
    bounds: (Duration, Duration),
    deadline: Duration,
    since: u8,
}

impl Times {
    pub(super) const fn new(bounds: (Duration, Duration)) -> Self {
        let counts = [0; STEPS];
        Self { recent: Vec::new(), next: 0, counts, bounds, deadline: bounds.1, since: 0 }
    }

    /// Begins anew, with a deadline that counts until it is known what is usual.
    pub(super) fn forget(&mut self, deadline: Duration) {
        *self = Self { deadline, ..Self::new(self.bounds) };
    }

    /// A read took so long.
    pub(super) fn add(&mut self, took: Duration) {
        let step = step_of(took);
        self.counts[usize::from(step)] += 1;
        if self.recent.len() < REMEMBERED {
            self.recent.push(step);
        } else {
            let oldest = core::mem::replace(&mut self.recent[self.next], step);
            self.counts[usize::from(oldest)] -= 1;
            self.next = (self.next + 1) % REMEMBERED;
        }
        self.since += 1;
        if self.since >= ANEW_AFTER && self.recent.len() >= KNOWN_MIN {
            (self.since, self.deadline) = (0, self.find_deadline());
        }
    }

    /// After how long a read is late.
    pub(super) const fn deadline(&self) -> Duration {
        self.deadline
    }

    /// What half of the reads took at most; none when there are too few.
    pub(super) fn median(&self) -> Option<Duration> {
        (self.recent.len() >= COMPARED_MIN).then(|| self.quantile(self.recent.len().div_ceil(2)))
    }

    fn find_deadline(&self) -> Duration {
        let most = self.recent.len() * 99 / 100;
        (self.quantile(most.max(1)) * 3).clamp(self.bounds.0, self.bounds.1)
    }

    /// What so many of the reads took at most.
    fn quantile(&self, count: usize) -> Duration {
        let mut seen = 0;
        for (step, reads) in (0_u8..).zip(self.counts) {
            seen += usize::from(reads);
            if seen >= count {
                return end_of(step);
            }
        }
        unreachable!("{count} of {} reads", self.recent.len())
    }
}

/// The step of a time; whole microseconds below 8, then eight steps to each power of two.
fn step_of(took: Duration) -> u8 {
    let us = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
    if us < 8 {
        return narrow(us);
    }
    let power = us.ilog2();
    narrow((power - 2) * 8 + (us >> (power - 3) & 7))
}

/// The longest time of a step.
fn end_of(step: u8) -> Duration {
    let step = u64::from(step);
    if step < 8 {
        return Duration::from_micros(step);
    }
    let (power, part) = (step / 8 + 2, step % 8);
    Duration::from_micros(((8 + part + 1) << (power - 3)) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE_MIN: Duration = Duration::from_millis(5);
    const DEADLINE_MAX: Duration = Duration::from_millis(500);

    #[test]
    fn a_step_ends_where_the_next_one_begins_and_is_an_eighth_long_at_most() {
        assert_eq!(usize::from(step_of(Duration::MAX)), STEPS - 1);
        for step in 0..u8::try_from(STEPS - 1).unwrap() {
            let end = end_of(step);
            assert_eq!(step_of(end), step);
            assert_eq!(step_of(end + Duration::from_micros(1)), step + 1);
            let begin = if step == 0 { Duration::ZERO } else { end_of(step - 1) };
            assert!((end - begin) * 8 <= end.max(Duration::from_micros(8)), "step {step}");
        }
    }

    #[test]
    fn quantiles_are_those_of_the_last_thousand_to_an_eighth() {
        let mut times = Times::new((DEADLINE_MIN, DEADLINE_MAX));
        let mut all: Vec<u64> = Vec::new();
        let mut dice = 7_u64;
        for round in 0..5000_u64 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let us = (dice >> 40) % (50 + round * 10);
            times.add(Duration::from_micros(us));
            all.push(us);
            if round % 97 != 0 || round < 200 {
                continue;
            }
            let mut last = all[all.len().saturating_sub(REMEMBERED)..].to_vec();
            last.sort_unstable();
            for (found, count) in [
                (times.median().unwrap(), last.len().div_ceil(2)),
                (times.quantile(last.len() * 99 / 100), last.len() * 99 / 100),
            ] {
                let exact = last[count - 1];
                let found = u64::try_from(found.as_micros()).unwrap();
                assert!(found >= exact && found <= exact + exact / 8 + 1, "{found} for {exact}");
            }
        }
    }

    #[test]
    fn a_deadline_is_three_times_what_is_usual_within_its_bounds() {
        let mut times = Times::new((DEADLINE_MIN, DEADLINE_MAX));
        times.add(Duration::from_micros(100));
        assert_eq!(times.deadline(), DEADLINE_MAX, "nobody knows what is usual");
        (0..100).for_each(|_| times.add(Duration::from_micros(100)));
        assert_eq!(times.deadline(), DEADLINE_MIN);
        (0..1000).for_each(|_| times.add(Duration::from_millis(20)));
        let near = Duration::from_millis(60)..Duration::from_millis(68);
        assert!(near.contains(&times.deadline()), "{:?}", times.deadline());
        (0..1000).for_each(|_| times.add(Duration::from_secs(2)));
        assert_eq!(times.deadline(), DEADLINE_MAX);
    }
}
