//! Chance by seed. The generator is ChaCha with eight rounds, whose output is the same in every
//! version and on every machine.

use core::{fmt, ops::RangeInclusive, time::Duration};

use netraid_block::narrow;
use rand::{Rng, RngCore, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

/// What decides a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seed(pub u64);

impl Seed {
    /// The dice of one part of a simulation. Parts draw from streams of their own, so that a draw
    /// more in one changes nothing in another, and traces of two versions can be compared.
    #[must_use]
    pub fn dice(self, part: &str) -> Dice {
        let mut rng = ChaCha8Rng::seed_from_u64(self.0);
        rng.set_stream(fnv1a(part.as_bytes()));
        Dice(rng)
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A stream of chance. It is a [`rand::RngCore`] too.
#[derive(Debug, Clone)]
pub struct Dice(ChaCha8Rng);

impl Dice {
    /// True once in `n` draws, on average; never when `n` is 0.
    pub fn one_in(&mut self, n: u32) -> bool {
        n > 0 && self.0.random_range(0..n) == 0
    }

    /// True with a probability from 0 to 1.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.0.random::<f64>() < probability
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0.random_range(0..n)
    }

    /// An index of something that has `len` entries, which is not 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.0.random_range(0..len)
    }

    /// An entry of `from`, if there is one.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() { None } else { Some(&from[self.index(from.len())]) }
    }

    /// Puts `items` into any order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        items.shuffle(&mut self.0);
    }

    /// A time from the range, every nanosecond as likely as any other.
    pub fn time_in(&mut self, range: &RangeInclusive<Duration>) -> Duration {
        let nanos = |time: &Duration| narrow::<_, u64>(time.as_nanos());
        Duration::from_nanos(self.0.random_range(nanos(range.start())..=nanos(range.end())))
    }

    /// The time to the next of events that come independently, every `mean` on average.
    pub fn time_to_next(&mut self, mean: Duration) -> Duration {
        // One minus a number from [0, 1) is never zero, whose logarithm is not finite.
        mean.mul_f64(-(1.0 - self.0.random::<f64>()).ln())
    }
}

impl RngCore for Dice {
    fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }
}

/// The 64-bit FNV-1a hash: stable for ever, as replays need it.
fn fnv1a(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_in_every_version() {
        // A change here makes every seed that was ever noted worthless.
        let mut dice = Seed(7).dice("disk 0");
        let first: Vec<u64> = (0..4).map(|_| dice.below(1000)).collect();
        assert_eq!(first, FIRST);
    }

    const FIRST: [u64; 4] = [827, 145, 597, 505];

    #[test]
    fn parts_do_not_disturb_each_other() {
        let mut one = Seed(7).dice("one");
        let mut other = Seed(7).dice("other");
        let undisturbed: Vec<u64> = (0..8).map(|_| other.next_u64()).collect();
        let mut other = Seed(7).dice("other");
        let disturbed: Vec<u64> = (0..8)
            .map(|_| {
                one.next_u64();
                other.next_u64()
            })
            .collect();
        assert_eq!(undisturbed, disturbed);
        assert_ne!(Seed(7).dice("one").next_u64(), Seed(7).dice("other").next_u64());
        assert_ne!(Seed(7).dice("one").next_u64(), Seed(8).dice("one").next_u64());
    }

    #[test]
    fn times_to_the_next_event_have_their_mean() {
        let mut dice = Seed(1).dice("arrivals");
        let mean = Duration::from_millis(10);
        let total: Duration = (0..20_000).map(|_| dice.time_to_next(mean)).sum();
        let measured = total / 20_000;
        assert!((measured.as_secs_f64() / mean.as_secs_f64() - 1.0).abs() < 0.05, "{measured:?}");
    }
}
