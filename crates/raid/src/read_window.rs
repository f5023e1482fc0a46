//! How much of users' large reads is under way at once: where members are fast, as little as moves as fast as all of it.
//!
//! Members that answer at once fill buffers and caches with what nobody comes to use for a while, and each byte
//! then comes from memory several times on its way out. Where members or the way to them need time, all that is asked for has to be
//! under way. Which it is shows in the rate alone. So nothing is bounded at first; where much moves, the other way is
//! tried for a period now and then, and kept if it was as fast: what is bounded to 10%, since less waits in queues,
//! and what is not bounded by 10%.
//!
//! Longer pauses between reads do not count, so that bursts show a rate, too. What is bounded is so no more when
//! little moves, when hardly a read has to wait, and when none ends for a while.
//!
//! Invariant: two reads of any length are let in, and small ones beside one long one: each counts as half of
//! the bound at most.
//!
//! Not here: the reads that wait; what is read ahead, which has its own bound ([`crate::read_ahead`]); small
//! reads and writes, which are not bounded.

use core::time::Duration;

use crate::geometry::Geometry;

/// From so many bytes on, a read is bounded.
pub const BOUNDED_LEN: u64 = 64 << 10;
/// The bound, if two whole stripes are not more: enough for the way to members on fast links and back, and it
/// fits a processor's cache.
const BOUND_MIN: u64 = 4 << 20;
/// Bytes a second; where less moves, caches do not matter.
const RATE_MIN: f64 = 512e6;
/// A period has so many bounds and ends, and lasts so long, or it lasts as long as it may.
const BOUNDS: u64 = 8;
const ENDS: u64 = 16;
const PERIOD_MIN: Duration = Duration::from_millis(100);
const PERIOD_MAX: Duration = Duration::from_millis(500);
/// So many periods come before the first trial, and after one that has changed something; after each other one twice as many.
const REST_FIRST: u32 = 2;
const REST_MIN: u32 = 16;
const REST_MAX: u32 = 128;
/// A trial is held against the median of so many periods; the first one against the slower of two, which favours
/// the bound: the trial of what is not bounded mends that.
const LATELY: usize = 3;
/// How much slower what is bounded may be, and how much faster what is not has to be.
const TOLERANCE: f64 = 0.1;
/// Time with nothing under way counts up to here: what all end together, users and the engine work on together, too.
const PAUSE: Duration = Duration::from_millis(20);
/// When no read has ended for so long, those that wait do not wait for it.
const STALL: Duration = Duration::from_millis(100);

/// The machine; see the module. Times are counted from anywhere, and never go back.
#[derive(Debug)]
pub struct ReadWindow {
    bound: u64,
    is_bounded: bool,
    /// It stays as it is.
    is_fixed: bool,
    /// What reads under way count.
    under_way: u64,
    /// When the last read ended, or the first one after a pause began; time up to here has been counted.
    seen: Duration,
    /// So much ends yet that began before the last turn, or shows how the other way begins.
    skipped: u64,
    period: Period,
    phase: Phase,
    /// Rates of the last periods of the way that is used.
    lately: [f64; LATELY],
    /// Periods of the next rest.
    rest: u32,
}

/// What ended in a row.
#[derive(Debug, Default)]
struct Period {
    busy: Duration,
    moved: u64,
    longest: u64,
    ends: u64,
    /// Ends after which the bound mattered.
    full: u64,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// So many periods yet.
    Rest(u32),
    /// The other way has to reach this rate.
    Trial(f64),
}

impl ReadWindow {
    /// For a volume of this shape.
    #[must_use]
    pub fn new(geometry: &Geometry) -> Self {
        Self {
            bound: BOUND_MIN.max(geometry.stripe_data_len().saturating_mul(2)),
            is_bounded: false,
            is_fixed: false,
            under_way: 0,
            seen: Duration::ZERO,
            skipped: 0,
            period: Period::default(),
            phase: Phase::Rest(REST_FIRST),
            lately: [0.0; LATELY],
            rest: REST_MIN,
        }
    }

    /// With a bound of so many bytes, of two at least, whatever moves.
    #[must_use]
    pub fn fixed(geometry: &Geometry, bound: u64) -> Self {
        Self { bound: bound.max(2), is_bounded: true, is_fixed: true, ..Self::new(geometry) }
    }

    /// Whether another read may begin.
    #[must_use]
    pub const fn has_room(&self) -> bool {
        !self.is_bounded || self.under_way < self.bound
    }

    /// Takes note of the time while reads wait.
    pub fn look(&mut self, now: Duration) {
        let is_stalled = self.under_way > 0 && now.saturating_sub(self.seen) > STALL;
        if is_stalled && self.is_bounded && !self.is_fixed {
            self.unbind();
        }
    }

    /// A read of at least [`BOUNDED_LEN`] bytes begins.
    pub fn begin(&mut self, len: u64, now: Duration) {
        if self.under_way == 0 && now.saturating_sub(self.seen) > PAUSE {
            self.seen = now;
        }
        self.under_way += self.counted(len);
    }

    /// It has ended; others that wait for room do so still.
    ///
    /// # Panics
    /// When more ends than has begun.
    pub fn end(&mut self, len: u64, others_wait: bool, now: Duration) {
        let counted = self.counted(len);
        assert!(self.under_way >= counted, "a read of {len} bytes ended that never began");
        self.under_way -= counted;
        let took = now.saturating_sub(self.seen);
        self.seen = now;
        if self.is_fixed {
            return;
        }
        if self.skipped > 0 {
            self.skipped = self.skipped.saturating_sub(counted);
            return;
        }
        let is_full = others_wait || !self.is_bounded && self.under_way >= self.bound;
        let period = &mut self.period;
        period.busy += took;
        period.moved += len;
        period.longest = period.longest.max(len);
        period.ends += 1;
        period.full += u64::from(is_full);
        let is_lost = matches!(self.phase, Phase::Trial(wanted) if period.rate() * 2.0 < wanted);
        if period.is_over(self.bound, is_lost) {
            let period = core::mem::take(period);
            self.decide(&period);
        }
    }

    fn counted(&self, len: u64) -> u64 {
        len.min(self.bound / 2)
    }

    fn decide(&mut self, period: &Period) {
        let rate = period.rate();
        // One of four: bursts end without anybody who waits.
        if period.full * 4 < period.ends {
            return self.unbind();
        }
        match self.phase {
            Phase::Rest(_) if rate < RATE_MIN => self.unbind(),
            Phase::Rest(left) => {
                self.lately.rotate_right(1);
                self.lately[0] = rate;
                self.phase = Phase::Rest(left.saturating_sub(1));
                if left <= 1 {
                    let mut rates = self.lately;
                    rates.sort_by(f64::total_cmp);
                    let other = if self.is_bounded { 1.0 + TOLERANCE } else { 1.0 - TOLERANCE };
                    self.turn();
                    self.phase = Phase::Trial(rates[LATELY / 2] * other);
                }
            }
            Phase::Trial(wanted) if rate >= wanted => {
                self.rest = REST_MIN;
                self.lately = [0.0; LATELY];
                self.phase = Phase::Rest(REST_MIN);
            }
            Phase::Trial(_) => {
                self.rest = (self.rest * 2).min(REST_MAX);
                self.turn();
                self.phase = Phase::Rest(self.rest);
            }
        }
    }

    /// What was learnt does not hold any more, or there was nothing to learn.
    fn unbind(&mut self) {
        if self.is_bounded {
            self.turn();
        }
        self.lately = [0.0; LATELY];
        self.rest = REST_MIN;
        self.phase = Phase::Rest(REST_FIRST);
    }

    fn turn(&mut self) {
        self.is_bounded = !self.is_bounded;
        // More comes only after members were asked for it.
        let ramp = if self.is_bounded { 0 } else { self.bound };
        self.skipped = self.under_way + ramp;
        self.period = Period::default();
    }
}

impl Period {
    /// Whether it shows enough; that a trial is lost shows early.
    fn is_over(&self, bound: u64, is_lost: bool) -> bool {
        let enough = BOUNDS * bound.max(self.longest.saturating_mul(2));
        let is_enough = is_lost || self.moved >= enough && self.ends >= ENDS;
        self.busy >= PERIOD_MAX || self.busy >= PERIOD_MIN && is_enough
    }

    fn rate(&self) -> f64 {
        self.moved as f64 / self.busy.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use alloc::{collections::VecDeque, vec::Vec};

    use super::*;
    use crate::geometry::Level;

    const MIB: u64 = 1 << 20;
    const SHORT: Duration = Duration::from_micros(100);
    const LONG: Duration = Duration::from_millis(20);

    fn window() -> ReadWindow {
        ReadWindow::new(&Geometry::new(Level::Raid5, 5, 64 << 10, 512, 256, 0).unwrap())
    }

    /// Members that take `trip` for a read beside what all of it takes at a rate, which follows from the bytes that
    /// are under way; and somebody who has so many reads under way, of these lengths in turns.
    struct Path {
        rate: fn(u64) -> f64,
        trip: Duration,
        depth: usize,
        lens: Vec<u64>,
        now: Duration,
        begun: usize,
        under_way: VecDeque<(u64, Duration)>,
        window: ReadWindow,
    }

    impl Path {
        fn new(rate: fn(u64) -> f64, trip: Duration, depth: usize, lens: &[u64]) -> Self {
            let (now, under_way) = (Duration::ZERO, VecDeque::new());
            Self {
                rate,
                trip,
                depth,
                lens: lens.into(),
                now,
                begun: 0,
                under_way,
                window: window(),
            }
        }

        fn fill(&mut self) {
            while self.under_way.len() < self.depth && self.window.has_room() {
                let len = self.lens[self.begun % self.lens.len()];
                self.begun += 1;
                self.window.begin(len, self.now);
                let bytes = self.under_way.iter().map(|(len, _)| len).sum::<u64>() + len;
                let takes = Duration::from_secs_f64(len as f64 / (self.rate)(bytes));
                let arrives = self.now + self.trip;
                let after = self.under_way.back().map_or(arrives, |(_, end)| arrives.max(*end));
                self.under_way.push_back((len, after + takes));
            }
        }

        fn end(&mut self, others_wait: bool) -> u64 {
            let (len, end) = self.under_way.pop_front().expect("a read always begins");
            self.now = self.now.max(end);
            self.window.end(len, others_wait, self.now);
            len
        }

        /// Bytes a second of so many seconds.
        fn run(&mut self, seconds: u64) -> f64 {
            let (began, mut moved) = (self.now, 0);
            while self.now < began + Duration::from_secs(seconds) {
                self.fill();
                let others_wait = self.under_way.len() < self.depth;
                moved += self.end(others_wait);
            }
            moved as f64 / (self.now - began).as_secs_f64()
        }

        /// Asks for as much as is under way at once, waits for all of it and pauses, so many times; bytes a second
        /// without the pauses.
        fn bursts(&mut self, count: u64) -> f64 {
            let (began, mut moved) = (self.now, 0);
            let pause = Duration::from_secs(1);
            for _ in 0..count {
                let mut left = self.depth;
                while left > 0 {
                    let depth = core::mem::replace(&mut self.depth, left);
                    self.fill();
                    self.depth = depth;
                    let others_wait = self.under_way.len() < left;
                    moved += self.end(others_wait);
                    left -= 1;
                }
                self.now += pause;
            }
            moved as f64 / (self.now - began - pause * u32::try_from(count).unwrap()).as_secs_f64()
        }
    }

    /// What is more than fits a cache moves at half of the rate.
    fn cached(under_way: u64) -> f64 {
        if under_way > 6 * MIB { 1e9 } else { 2e9 }
    }

    fn even(_under_way: u64) -> f64 {
        2e9
    }

    #[test]
    fn as_much_is_under_way_as_fits_a_cache() {
        let mut path = Path::new(cached, SHORT, 16, &[MIB]);
        assert!(path.run(1) > 1.5e9);
        let rate = path.run(60);
        assert!(rate > 0.97 * 2e9, "{rate}");
        assert!(path.window.is_bounded);
    }

    #[test]
    fn a_long_way_is_filled() {
        let mut path = Path::new(even, LONG, 64, &[MIB]);
        let rate = path.run(60);
        assert!(rate > 0.95 * 2e9, "{rate}");
        assert!(!path.window.is_bounded);
    }

    #[test]
    fn where_little_moves_nothing_is_bounded() {
        let mut path = Path::new(|_| 125e6, Duration::from_millis(1), 64, &[MIB]);
        for _ in 0..10_000 {
            path.fill();
            assert_eq!(path.under_way.len(), 64);
            path.end(false);
        }
    }

    #[test]
    fn a_way_that_becomes_longer_is_filled_again_and_one_that_becomes_shorter_is_not() {
        let mut path = Path::new(even, SHORT, 64, &[MIB]);
        path.run(10);
        assert!(path.window.is_bounded);
        path.trip = LONG;
        path.run(2);
        assert!(path.run(20) > 0.95 * 2e9);
        path.trip = SHORT;
        path.run(20);
        assert!(path.window.is_bounded);
    }

    #[test]
    fn who_asks_for_little_is_never_held_back() {
        let mut path = Path::new(cached, SHORT, 4, &[MIB]);
        for _ in 0..100_000 {
            path.fill();
            assert_eq!(path.under_way.len(), 4);
            path.end(false);
        }
    }

    #[test]
    fn bursts_teach_what_a_stream_does() {
        let mut path = Path::new(cached, SHORT, 16, &[MIB]);
        path.bursts(100);
        let rate = path.bursts(1000);
        assert!(rate > 0.9 * 2e9, "{rate}");
        // It is no longer right.
        (path.rate, path.trip) = (even, LONG);
        let at_once = 16.0 * MIB as f64 / (LONG.as_secs_f64() + 16.0 * MIB as f64 / 2e9);
        path.bursts(100);
        let rate = path.bursts(1000);
        assert!(rate > 0.95 * at_once, "{rate}");
    }

    #[test]
    fn a_load_that_ends_in_a_trial_leaves_nothing_behind() {
        for count in 1..300 {
            let mut path = Path::new(even, LONG, 64, &[MIB]);
            for _ in 0..count {
                path.fill();
                path.end(false);
            }
            while !path.under_way.is_empty() {
                path.end(false);
            }
            path.now += Duration::from_secs(1);
            path.depth = 8;
            path.bursts(100);
            let at_once = 8.0 * MIB as f64 / (LONG.as_secs_f64() + 8.0 * MIB as f64 / 2e9);
            let rate = path.bursts(100);
            assert!(rate > 0.95 * at_once, "after {count} reads: {rate}");
        }
    }

    #[test]
    fn long_and_short_reads_move_together() {
        for lens in [[8 * MIB, 64 << 10], [16 * MIB, 8 * MIB], [32 * MIB, 64 << 10]] {
            for trip in [SHORT, LONG] {
                let mut path = Path::new(even, trip, 16, &lens);
                let rate = path.run(60);
                assert!(rate > 0.89 * 2e9, "{lens:?} over {trip:?}: {rate}");
            }
        }
    }

    #[test]
    fn two_reads_of_any_length_are_under_way_and_short_ones_beside_a_long_one() {
        let mut window = ReadWindow { is_bounded: true, ..window() };
        window.begin(32 * MIB, SHORT);
        assert!(window.has_room());
        (0..31).for_each(|_| window.begin(64 << 10, SHORT));
        assert!(window.has_room());
        window.begin(32 * MIB, SHORT);
        assert!(!window.has_room());
    }

    #[test]
    fn nobody_waits_for_reads_that_do_not_end() {
        let mut path = Path::new(cached, SHORT, 16, &[MIB]);
        path.run(10);
        path.fill();
        assert!(path.window.is_bounded && !path.window.has_room());
        path.window.look(path.now + STALL);
        assert!(!path.window.has_room());
        path.window.look(path.now + STALL * 2);
        assert!(path.window.has_room());
    }

    #[test]
    fn a_fixed_bound_stays() {
        let geometry = Geometry::new(Level::Raid5, 5, 64 << 10, 512, 256, 0).unwrap();
        let window = ReadWindow::fixed(&geometry, 2 * MIB);
        let mut path = Path { window, ..Path::new(even, LONG, 16, &[MIB]) };
        for _ in 0..10_000 {
            path.fill();
            assert_eq!(path.under_way.len(), 2);
            path.end(true);
            path.window.look(path.now + STALL * 2);
        }
    }
}
