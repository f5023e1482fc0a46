//! What a filter does to a request: pure, so that one seed and one order of requests always give
//! the same.

use std::{ops::Range, time::Duration};

use netraid_block::{ErrorKind, Op};

use super::spec::{Chance, Filter, FilterKind};

/// How far ahead of its rate a volume may be, after it was idle: a tenth of a second's bytes.
const BURST: Duration = Duration::from_millis(100);

/// A request as a filter sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// What it does.
    pub op: Op,
    /// Its first byte.
    pub offset: u64,
    /// Number of its bytes.
    pub len: u64,
}

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Pass,
    /// It goes on after this time.
    Wait(Duration),
    /// It fails here.
    Fail(ErrorKind),
    /// It goes on, and this bit, counted from its first byte, is flipped in what is read.
    Flip(u64),
    /// It ends when the filter is taken away.
    Hang,
    /// It goes on, and its end is told.
    Trace,
}

/// One filter with what it remembers.
#[derive(Debug)]
pub struct Decider {
    filter: Filter,
    range: Option<Range<u64>>,
    seed: u64,
    /// Requests that the filter applied to.
    count: u64,
    /// When the bytes that were let through until now have used up the rate.
    paid_until: Duration,
}

impl Decider {
    /// A filter at its place in a stack; the places of one seed have different chances.
    #[must_use]
    pub fn new(filter: Filter, range: Option<Range<u64>>, seed: u64, place: usize) -> Self {
        let seed = mix(seed.wrapping_add(mix(place as u64)));
        Self { filter, range, seed, count: 0, paid_until: Duration::ZERO }
    }

    /// What happens to the next request, at `now`, a time that never runs backwards.
    pub fn decide(&mut self, now: Duration, asked: Asked) -> Verdict {
        if !self.applies(asked) {
            return Verdict::Pass;
        }
        let number = self.count;
        self.count += 1;
        let random = mix(self.seed.wrapping_add(number.wrapping_mul(GOLDEN)));
        match &self.filter.kind {
            FilterKind::Delay { from, to } => Verdict::Wait(between(*from, *to, random)),
            FilterKind::Error { chance, kind } if happens(*chance, random) => Verdict::Fail(*kind),
            FilterKind::Corrupt { chance } if happens(*chance, random) && asked.len > 0 => {
                Verdict::Flip(mix(random) % asked.len.saturating_mul(8))
            }
            FilterKind::Error { .. } | FilterKind::Corrupt { .. } => Verdict::Pass,
            FilterKind::Hang { after } if number >= *after => Verdict::Hang,
            FilterKind::Hang { .. } => Verdict::Pass,
            FilterKind::Rate { bytes_per_s } => {
                let cost = u128::from(asked.len) * 1_000_000_000 / u128::from(*bytes_per_s);
                // Clamped: 584 years are as good as more.
                let cost = Duration::from_nanos(u64::try_from(cost).unwrap_or(u64::MAX));
                let wait = self.paid_until.saturating_sub(now + BURST);
                self.paid_until = self.paid_until.max(now).saturating_add(cost);
                if wait.is_zero() { Verdict::Pass } else { Verdict::Wait(wait) }
            }
            FilterKind::Trace { .. } => Verdict::Trace,
        }
    }

    fn applies(&self, Asked { op, offset, len }: Asked) -> bool {
        let in_range = self.range.as_ref().is_none_or(|range| {
            offset < range.end && offset.saturating_add(len) > range.start && len > 0
        });
        let of_class = self.filter.class.is_none_or(|class| class.contains(op));
        let of_kind = match self.filter.kind {
            FilterKind::Corrupt { .. } => op == Op::Read,
            FilterKind::Rate { .. } => matches!(op, Op::Read | Op::Write),
            FilterKind::Delay { .. }
            | FilterKind::Error { .. }
            | FilterKind::Hang { .. }
            | FilterKind::Trace { .. } => true,
        };
        in_range && of_class && of_kind
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's finalizer (Steele, Lea, Flood, "Fast splittable pseudorandom number generators").
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(GOLDEN);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

fn happens(chance: Chance, random: u64) -> bool {
    // A million does not divide 2^64; the difference is far below a chance's resolution.
    random % 1_000_000 < u64::from(chance.millionths())
}

fn between(from: Duration, to: Duration, random: u64) -> Duration {
    // Clamped: that is 584 years.
    let span = u64::try_from((to - from).as_nanos()).unwrap_or(u64::MAX - 1);
    from + Duration::from_nanos(random % (span + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filters::spec::FilterSpec;

    fn decider(text: &str) -> Decider {
        let spec: FilterSpec = text.parse().unwrap();
        Decider::new(spec.filters[0].clone(), spec.range, spec.seed, 0)
    }

    fn read(offset: u64, len: u64) -> Asked {
        Asked { op: Op::Read, offset, len }
    }

    fn verdicts(text: &str, count: usize) -> Vec<Verdict> {
        let mut decider = decider(text);
        (0..count).map(|_| decider.decide(Duration::ZERO, read(0, 4096))).collect()
    }

    #[test]
    fn a_seed_gives_the_same_each_time_and_another_one_not() {
        let first = verdicts("error=50%,seed=1", 64);
        assert_eq!(first, verdicts("error=50%,seed=1", 64));
        assert_ne!(first, verdicts("error=50%,seed=2", 64));
        let spec: FilterSpec = "error=50%,error=50%,seed=1".parse().unwrap();
        let mut second = Decider::new(spec.filters[1].clone(), None, spec.seed, 1);
        let second: Vec<_> =
            (0..64).map(|_| second.decide(Duration::ZERO, read(0, 4096))).collect();
        assert_ne!(first, second, "each place has chances of its own");
    }

    #[test]
    fn chances_are_met() {
        let failed = |text: &str| {
            let fails = |verdict: &Verdict| *verdict == Verdict::Fail(ErrorKind::Medium);
            verdicts(text, 100_000).iter().filter(|verdict| fails(verdict)).count()
        };
        assert_eq!(failed("error=100%"), 100_000);
        assert_eq!(failed("error=0%"), 0);
        // Four standard deviations around 1,000.
        assert!((874..=1126).contains(&failed("error=1%")), "{}", failed("error=1%"));
    }

    #[test]
    fn delays_are_within_their_bounds_and_differ() {
        let waits: Vec<Duration> = verdicts("delay=5ms..20ms", 1000)
            .into_iter()
            .map(|verdict| {
                let Verdict::Wait(wait) = verdict else { panic!("{verdict:?}") };
                wait
            })
            .collect();
        let (low, high) = (Duration::from_millis(5), Duration::from_millis(20));
        assert!(waits.iter().all(|wait| (low..=high).contains(wait)));
        assert!(waits.iter().any(|wait| *wait < low + (high - low) / 10));
        assert!(waits.iter().any(|wait| *wait > high - (high - low) / 10));
        assert_eq!(verdicts("delay=5ms", 1), [Verdict::Wait(low)]);
    }

    #[test]
    fn a_hang_begins_after_so_many() {
        use Verdict::{Hang, Pass};
        assert_eq!(verdicts("hang=after 2", 4), [Pass, Pass, Hang, Hang]);
        assert_eq!(verdicts("hang", 1), [Hang]);
    }

    #[test]
    fn a_flipped_bit_is_within_the_read() {
        for verdict in verdicts("corrupt=100%", 1000) {
            let Verdict::Flip(bit) = verdict else { panic!("{verdict:?}") };
            assert!(bit < 4096 * 8);
        }
        let write = Asked { op: Op::Write, offset: 0, len: 4096 };
        assert_eq!(decider("corrupt=100%").decide(Duration::ZERO, write), Verdict::Pass);
    }

    #[test]
    fn only_the_range_and_the_class_are_touched() {
        let now = Duration::ZERO;
        let mut hang = decider("hang,range=4096+4096");
        assert_eq!(hang.decide(now, read(0, 4096)), Verdict::Pass);
        assert_eq!(hang.decide(now, read(0, 4608)), Verdict::Hang);
        assert_eq!(hang.decide(now, read(7680, 512)), Verdict::Hang);
        assert_eq!(hang.decide(now, read(8192, 512)), Verdict::Pass);
        let flush = Asked { op: Op::Flush, offset: 0, len: 0 };
        assert_eq!(hang.decide(now, flush), Verdict::Pass, "a flush has no range");
        let mut writes = decider("hang:write");
        assert_eq!(writes.decide(now, read(0, 512)), Verdict::Pass);
        assert_eq!(writes.decide(now, flush), Verdict::Pass);
        for op in [Op::Write, Op::WriteZeroes, Op::Discard] {
            assert_eq!(writes.decide(now, Asked { op, offset: 0, len: 512 }), Verdict::Hang);
        }
        assert_eq!(decider("hang:flush").decide(now, flush), Verdict::Hang);
    }

    #[test]
    fn bytes_flow_at_the_rate_behind_a_burst() {
        let mut rate = decider("rate=1MiB/s");
        let piece = read(0, 1 << 17);
        let at = |ms| Duration::from_millis(ms);
        // An eighth of a second's bytes each; the first two fit into what may be ahead.
        assert_eq!(rate.decide(at(0), piece), Verdict::Pass);
        assert_eq!(rate.decide(at(0), piece), Verdict::Wait(at(25)));
        assert_eq!(rate.decide(at(0), piece), Verdict::Wait(at(150)));
        assert_eq!(rate.decide(at(375), piece), Verdict::Pass, "it has caught up");
        assert_eq!(rate.decide(at(10_000), piece), Verdict::Pass);
        assert_eq!(rate.decide(at(10_000), piece), Verdict::Wait(at(25)), "idle time is not saved");
        let flush = Asked { op: Op::Flush, offset: 0, len: 0 };
        assert_eq!(rate.decide(at(10_000), flush), Verdict::Pass, "no bytes");
    }
}
