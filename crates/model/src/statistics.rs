//! What several runs say together.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::run::Measures;

/// A mean, and where the true one is with 95% confidence (Student's t over the runs).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// Mean of the runs.
    pub mean: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Each result by its name: `rate_mb_s`, `client_cpu`, `disk`, `network`, ...
pub type Results = BTreeMap<String, Interval>;

/// Fewest runs that have a confidence interval.
pub const RUNS_MIN: usize = 2;

/// Quantiles of Student's t for 97.5%, by degrees of freedom from 1.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

impl Interval {
    /// The interval of independent values.
    ///
    /// # Panics
    /// When there are fewer than [`RUNS_MIN`].
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        assert!(values.len() >= RUNS_MIN, "an interval of {} values", values.len());
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let freedom = count - 1.0;
        // Beyond the table: the first terms of the expansion of t around the normal quantile.
        let beyond = 1.960 + 2.372 / freedom + 2.82 / (freedom * freedom);
        let t = T.get(values.len() - 2).copied().unwrap_or(beyond);
        let half = t * (squares / freedom / count).sqrt();
        Self { mean, low: mean - half, high: mean + half }
    }
}

/// Puts the runs of one point together.
///
/// # Panics
/// When there are fewer than [`RUNS_MIN`], or they are of different configurations.
#[must_use]
pub fn summarise(runs: &[Measures]) -> Results {
    let Some(first) = runs.first() else { return Results::new() };
    let interval = |name: &String| {
        let values: Vec<f64> = runs.iter().map(|run| run[name]).collect();
        (name.clone(), Interval::of(&values))
    };
    first.keys().map(interval).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_that_of_students_t() {
        // 1..5: mean 3, standard deviation sqrt(2.5), t for 4 degrees 2.776.
        let interval = Interval::of(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert!((interval.mean - 3.0).abs() < 1e-12);
        let half = 2.776 * (2.5_f64 / 5.0).sqrt();
        assert!((interval.high - 3.0 - half).abs() < 1e-9);
        assert!((3.0 - interval.low - half).abs() < 1e-9);
        // 60 degrees of freedom: 2.000.
        let many: Vec<f64> = (0..61).map(f64::from).collect();
        let wide = Interval::of(&many);
        let squares: f64 = many.iter().map(|value| (value - 30.0).powi(2)).sum();
        let t = (wide.high - 30.0) / (squares / 60.0 / 61.0).sqrt();
        assert!((t - 2.000).abs() < 0.001, "{t}");
    }
}
