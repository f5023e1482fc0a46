//! A point that moves on by exact fractions.

/// Largest rate and weight by which a tag moves on: all sums stay below 2^64.
pub(super) const RATE_MAX: u64 = 1 << 62;

/// What a cost below 2^33 is, to be divided by a rate in bytes a second: the quotient is in
/// nanoseconds.
pub(super) const fn scaled(cost: u64) -> u64 {
    cost * super::NS_PER_S
}

// The largest cost that two 32-bit numbers make, scaled, with the largest rest.
const _: () = assert!(scaled(2 * (u32::MAX as u64)).checked_add(RATE_MAX).is_some());

/// A point, and what the divisions by which it moved have left over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) at: u64,
    rest: u64,
}

impl Tag {
    /// Moves on by `amount / by`.
    pub(super) fn move_on(&mut self, amount: u64, by: u64) {
        let sum = amount + self.rest;
        self.at = self.at.saturating_add(sum / by);
        self.rest = sum % by;
    }

    /// Moves to `at`, unless it is there or beyond.
    pub(super) fn raise(&mut self, at: u64) {
        if self.at < at {
            *self = Self { at, rest: 0 };
        }
    }

    /// Moves back to `at`, unless it is there or before.
    pub(super) fn lower(&mut self, at: u64) {
        if self.at > at {
            *self = Self { at, rest: 0 };
        }
    }

    /// It moves by another rate from now on: what it is ahead of `now` becomes what it would be by
    /// that; nothing when either rate is none.
    pub(super) fn rescale(&mut self, now: u64, old: u64, new: u64) {
        let ahead = u128::from(self.at.saturating_sub(now)) * u128::from(old);
        let ahead = ahead.checked_div(new.into()).unwrap_or(0);
        // Clamped: no point is further ahead.
        let ahead = u64::try_from(ahead).unwrap_or(u64::MAX);
        if ahead > 0 {
            self.at = now.saturating_add(ahead);
        } else {
            self.at = self.at.min(now);
        }
        self.rest = 0;
    }
}
