//! Statistics that a noisy machine does not upset: medians, and how many pairs agree.

/// Median; none of nothing.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let high = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 { Some(high) } else { Some(f64::midpoint(sorted[middle - 1], high)) }
}

/// What pairs of rates say together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// Median of the second over the first of each pair.
    pub ratio: f64,
    /// Smallest of these ratios.
    pub least: f64,
    /// Largest of them.
    pub most: f64,
    /// Pairs.
    pub pairs: usize,
    /// Pairs whose ratio is at least [`CONSISTENT`].
    pub agreeing: usize,
    /// Pairs whose ratio is at least [`CLEAR`].
    pub far: usize,
    /// Whether the second kind is faster across pairs too: all its rates but one are above all of the
    /// first kind's but one.
    pub apart: bool,
    /// Seconds that the first kind's piece took, the median.
    pub base_s: f64,
}

/// From this median on a difference is one.
pub const CLEAR: f64 = 1.5;
/// In a pair that agrees the ratio is at least this.
pub const CONSISTENT: f64 = 1.2;
/// Shorter pieces of the first kind say nothing: what a machine does beside it takes a few milliseconds at once.
pub const PIECE_S_MIN: f64 = 0.01;
/// Fewest pairs of which anything is said.
pub const PAIRS_MIN: usize = 5;

/// What a comparison comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The second is faster: the median is at least [`CLEAR`], all pairs but one at least agree, the two
    /// kinds are apart, and the pieces took [`PIECE_S_MIN`] at least.
    Faster,
    /// It is not: the median is below [`CONSISTENT`], or fewer than half of the pairs agree.
    Alike,
    /// Noise, or too few pairs, or too short ones.
    Unclear,
}

impl Comparison {
    /// Compares the rates of pairs, in MB/s of pieces of so many bytes; those in which one is no positive number are
    /// left out.
    #[must_use]
    pub fn of(pairs: &[(f64, f64)], bytes: u64) -> Option<Self> {
        let usable = |(base, other): &&(f64, f64)| *base > 0.0 && *other > 0.0;
        let ratios: Vec<f64> =
            pairs.iter().filter(usable).map(|(base, other)| other / base).collect();
        let sorted = |pick: fn(&(f64, f64)) -> f64| {
            let mut rates: Vec<f64> = pairs.iter().filter(usable).map(pick).collect();
            rates.sort_by(f64::total_cmp);
            rates
        };
        let (bases, others) = (sorted(|pair| pair.0), sorted(|pair| pair.1));
        let apart = match (bases.iter().nth_back(1), others.get(1)) {
            (Some(base), Some(other)) => other > base,
            (Some(_) | None, _) => false,
        };
        Some(Self {
            apart,
            base_s: bytes as f64 / 1e6 / median(&bases)?,
            ratio: median(&ratios)?,
            least: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            most: ratios.iter().copied().fold(0.0, f64::max),
            pairs: ratios.len(),
            agreeing: ratios.iter().filter(|ratio| **ratio >= CONSISTENT).count(),
            far: ratios.iter().filter(|ratio| **ratio >= CLEAR).count(),
        })
    }

    /// What it comes to.
    #[must_use]
    pub fn answer(&self) -> Answer {
        if self.pairs < PAIRS_MIN {
            Answer::Unclear
        } else if self.ratio >= CLEAR && self.agreeing + 1 >= self.pairs && self.apart {
            if self.base_s < PIECE_S_MIN { Answer::Unclear } else { Answer::Faster }
        } else if self.ratio < CONSISTENT && self.far * 3 <= self.pairs {
            Answer::Alike
        } else {
            Answer::Unclear
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(ratios: &[f64]) -> Answer {
        let pairs: Vec<(f64, f64)> = ratios.iter().map(|ratio| (100.0, 100.0 * ratio)).collect();
        Comparison::of(&pairs, 1 << 20).unwrap().answer()
    }

    #[test]
    fn medians_of_odd_and_even_numbers() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[f64::NAN]), None);
    }

    #[test]
    fn a_difference_needs_a_ratio_and_consistency() {
        assert_eq!(answer(&[1.6, 1.5, 1.7, 1.5, 1.6]), Answer::Faster);
        // One pair in which something else was running does not hide it, two do.
        assert_eq!(answer(&[1.6, 1.5, 0.7, 1.6, 1.6]), Answer::Faster);
        assert_eq!(answer(&[1.6, 1.1, 0.7, 1.6, 1.6]), Answer::Unclear);
        // Nor does one make it.
        assert_eq!(answer(&[1.0, 1.1, 3.0, 0.9, 1.0]), Answer::Alike);
        assert_eq!(answer(&[1.0, 3.0, 3.0, 0.5, 1.0]), Answer::Unclear);
        assert_eq!(answer(&[1.3, 1.3, 1.3, 1.3, 1.3]), Answer::Unclear);
        assert_eq!(answer(&[9.0, 9.0, 9.0, 9.0]), Answer::Unclear);
        // Pieces of 1.7 ms.
        let pairs = [(300.0, 480.0); 7];
        assert_eq!(Comparison::of(&pairs, 512 << 10).unwrap().answer(), Answer::Unclear);
        assert_eq!(Comparison::of(&pairs, 512 << 13).unwrap().answer(), Answer::Faster);
        // Rates that come and go by more than the difference.
        let pairs = [(100.0, 160.0), (300.0, 480.0), (100.0, 160.0), (300.0, 480.0), (90.0, 160.0)];
        assert_eq!(Comparison::of(&pairs, 1 << 20).unwrap().answer(), Answer::Unclear);
    }
}
