//! Simulated time.

use core::{fmt, time::Duration};

/// A moment: nanoseconds since the start of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The start.
    pub const START: Self = Self(0);

    /// The moment `wait` after this one.
    ///
    /// # Panics
    /// When it is more than 584 years after the start.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        match u64::try_from(wait.as_nanos()).ok().and_then(|wait| self.0.checked_add(wait)) {
            Some(sum) => Self(sum),
            None => unreachable!("a moment beyond the end of simulated time"),
        }
    }

    /// How long ago `earlier` was; zero when it is still to come.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}
