//! Times that differ from one access to the next.

use core::time::Duration;

use netraid_sim::Dice;
use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, within};

/// Longest mean or bound of a distribution, in milliseconds.
const MS_MAX: f64 = 10_000.0;
/// Most classes of a histogram.
const CLASSES_MAX: usize = 10_000;

/// How long something takes, by chance; in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "distribution", rename_all = "snake_case", deny_unknown_fields)]
pub enum Distribution {
    /// Always the same.
    Constant {
        /// What it takes; 0 for nothing.
        mean_ms: f64,
    },
    /// Anything from 0 to twice the mean, each as likely.
    Uniform {
        /// Mean.
        mean_ms: f64,
    },
    /// Exponential: mostly short, without a longest.
    Exponential {
        /// Mean.
        mean_ms: f64,
    },
    /// As it was measured: class i is from bound i to bound i + 1, and has `counts[i]` of the
    /// samples, uniform within.
    Histogram {
        /// Bounds of the classes, rising; one more than there are counts.
        bounds_ms: Vec<f64>,
        /// How many samples were in each class; not all 0.
        counts: Vec<u64>,
    },
}

impl Distribution {
    /// Its mean in milliseconds.
    #[must_use]
    pub fn mean_ms(&self) -> f64 {
        match self {
            Self::Constant { mean_ms }
            | Self::Uniform { mean_ms }
            | Self::Exponential { mean_ms } => *mean_ms,
            Self::Histogram { bounds_ms, counts } => {
                let total: u64 = counts.iter().sum();
                let class =
                    |(bounds, count): (&[f64], &u64)| (bounds[0] + bounds[1]) / 2.0 * *count as f64;
                bounds_ms.windows(2).zip(counts).map(class).sum::<f64>() / total.max(1) as f64
            }
        }
    }

    /// A time from it.
    pub(crate) fn draw(&self, dice: &mut Dice) -> Duration {
        let ms = |ms: f64| Duration::from_secs_f64(ms / 1000.0);
        match self {
            Self::Constant { mean_ms } => ms(*mean_ms),
            Self::Uniform { mean_ms } => dice.time_in(&(Duration::ZERO..=ms(2.0 * mean_ms))),
            Self::Exponential { mean_ms } => dice.time_to_next(ms(*mean_ms)),
            Self::Histogram { bounds_ms, counts } => {
                let mut left = dice.below(counts.iter().sum());
                for (bounds, count) in bounds_ms.windows(2).zip(counts) {
                    if left < *count {
                        return dice.time_in(&(ms(bounds[0])..=ms(bounds[1])));
                    }
                    left -= count;
                }
                unreachable!("a draw below the sum of the counts")
            }
        }
    }

    /// Says what is wrong with the numbers of the distribution called `name`.
    pub(crate) fn check(&self, name: &str) -> Result<(), ConfigError> {
        match self {
            Self::Constant { mean_ms }
            | Self::Uniform { mean_ms }
            | Self::Exponential { mean_ms } => {
                within(&format!("{name}.mean_ms"), *mean_ms, 0.0, MS_MAX)
            }
            Self::Histogram { bounds_ms, counts } => check_histogram(name, bounds_ms, counts),
        }
    }
}

fn check_histogram(name: &str, bounds_ms: &[f64], counts: &[u64]) -> Result<(), ConfigError> {
    for (index, bound) in bounds_ms.iter().enumerate() {
        within(&format!("{name}.bounds_ms.{index}"), *bound, 0.0, MS_MAX)?;
    }
    within(&format!("{name}.counts, in number,"), counts.len() as f64, 1.0, CLASSES_MAX as f64)?;
    let problem = |problem| Err(ConfigError::Histogram { name: name.to_owned(), problem });
    if bounds_ms.len() != counts.len() + 1 {
        return problem("needs one bound more than it has counts");
    }
    if bounds_ms.windows(2).any(|pair| pair[0] >= pair[1]) {
        return problem("needs bounds that rise");
    }
    let total = counts.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count));
    match total {
        Some(1..) => Ok(()),
        Some(0) => problem("needs a count above 0"),
        None => problem("has more samples than can be counted"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netraid_sim::Seed;

    #[test]
    fn draws_have_the_mean_that_they_should() {
        let all = [
            Distribution::Constant { mean_ms: 5.0 },
            Distribution::Uniform { mean_ms: 12.0 },
            Distribution::Exponential { mean_ms: 3.0 },
            Distribution::Histogram { bounds_ms: vec![0.0, 2.0, 10.0], counts: vec![3, 1] },
        ];
        for distribution in all {
            let mut dice = Seed(1).dice("distribution");
            let total: Duration = (0..20_000).map(|_| distribution.draw(&mut dice)).sum();
            let measured = total.as_secs_f64() / 20.0;
            let mean = distribution.mean_ms();
            assert!((measured / mean - 1.0).abs() < 0.03, "{distribution:?}: {measured} ms");
        }
    }

    #[test]
    fn a_histogram_that_means_nothing_is_refused() {
        let check = |bounds_ms: &[f64], counts: &[u64]| {
            let histogram =
                Distribution::Histogram { bounds_ms: bounds_ms.into(), counts: counts.into() };
            histogram.check("disk.seek").map_err(|error| error.to_string())
        };
        assert!(check(&[0.0, 1.0], &[1]).is_ok());
        assert!(check(&[0.0, 1.0], &[1, 2]).unwrap_err().contains("one bound more"));
        assert!(check(&[1.0, 1.0], &[1]).unwrap_err().contains("rise"));
        assert!(check(&[0.0, 1.0], &[0]).unwrap_err().contains("above 0"));
        assert!(check(&[0.0, 1.0, 2.0], &[u64::MAX, 1]).unwrap_err().contains("more samples"));
        assert!(check(&[0.0, f64::NAN], &[1]).unwrap_err().contains("NaN"));
        assert!(check(&[], &[]).is_err());
    }
}
