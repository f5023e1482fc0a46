//! A fixed overhead and a time for each unit, fitted to measured times.

/// `time = overhead + each * units`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Line {
    pub(super) overhead: f64,
    pub(super) each: f64,
}

impl Line {
    /// The line with the least sum of squared errors relative to the measured times, so that short
    /// times count as much as long ones. An overhead is not negative. What took less time than the clock tells is
    /// left out; where that is everything, nothing takes any time.
    pub(super) fn fit(points: impl Iterator<Item = (f64, f64)>) -> Self {
        let (mut ww, mut wx, mut xx, mut wy, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (units, time) in points.filter(|(_, time)| *time > 0.0) {
            let weight = time.recip().powi(2);
            ww += weight;
            wx += weight * units;
            xx += weight * units * units;
            wy += weight * time;
            xy += weight * units * time;
        }
        if ww == 0.0 {
            return Self { overhead: 0.0, each: 0.0 };
        }
        let scale = ww * xx - wx * wx;
        let overhead = (wy * xx - xy * wx) / scale;
        if overhead.is_finite() && overhead >= 0.0 {
            return Self { overhead, each: (xy * ww - wy * wx) / scale };
        }
        Self { overhead: 0.0, each: xy / xx }
    }

    /// Units of which a request needs so many to reach a part of the rate that no overhead would give.
    pub(super) fn units_for(self, part: f64) -> f64 {
        self.overhead / self.each * part / (1.0 - part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overhead_and_rate_are_found_again() {
        let line =
            Line::fit([1.0, 2.0, 4.0, 64.0].map(|units| (units, 3.0 + 0.5 * units)).into_iter());
        assert!((line.overhead - 3.0).abs() < 1e-9 && (line.each - 0.5).abs() < 1e-9, "{line:?}");
        // At three quarters of the peak the overhead is a third of what the units take.
        assert!((line.units_for(0.75) - 18.0).abs() < 1e-6);
        // Caches make what is small relatively fast: no overhead is negative.
        let line = Line::fit([(1.0, 0.5), (2.0, 2.0), (4.0, 6.0)].into_iter());
        assert!(line.overhead == 0.0 && line.each > 0.0);
        // A clock that ticks too seldom.
        let line = Line::fit([(1.0, 0.0), (2.0, 4.0), (4.0, 8.0)].into_iter());
        assert!(line.overhead < 1e-9 && (line.each - 2.0).abs() < 1e-9, "{line:?}");
        assert_eq!(Line::fit([(1.0, 0.0)].into_iter()), Line { overhead: 0.0, each: 0.0 });
    }
}
