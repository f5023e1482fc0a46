//! Which disks take part in a request.
//!
//! Invariant: no more disks are missing from a stripe than its level survives; the configuration
//! was checked for it. Knows nothing of where data is: that is [`crate::layout`]'s.

/// The disks that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Presence {
    /// The first so many disks are not.
    away: usize,
}

impl Presence {
    /// All disks but the first `away`.
    pub(crate) const fn without(away: usize) -> Self {
        Self { away }
    }

    /// Whether every disk has all that it should have.
    pub(crate) const fn is_whole(self) -> bool {
        self.away == 0
    }

    /// Whether `disk` has what it should have of a stripe.
    pub(crate) const fn is_readable(self, disk: usize) -> bool {
        disk >= self.away
    }

    /// Whether `disk` takes writes.
    pub(crate) const fn is_written(self, disk: usize) -> bool {
        disk >= self.away
    }
}
