//! Serial number arithmetic (RFC 1982) for CmdSN, StatSN and their kin, which wrap at 2^32.

/// A 32-bit serial number. It has no order that `Ord` could state: of two numbers exactly half
/// the circle apart neither comes before the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Serial(pub u32);

impl Serial {
    /// The number `count` steps later; `count` stays below 2^31 for the order to hold.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// The number one step later.
    #[must_use]
    pub const fn next(self) -> Self {
        self.plus(1)
    }

    /// Whether this number comes before `other`.
    #[must_use]
    pub const fn before(self, other: Self) -> bool {
        let distance = other.0.wrapping_sub(self.0);
        distance != 0 && distance < 1 << 31
    }

    /// Steps from `earlier` to this number, modulo 2^32.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_holds_over_the_wrap() {
        let last = Serial(u32::MAX);
        assert!(last.before(last.next()) && !last.next().before(last));
        assert_eq!(last.next(), Serial(0));
        assert_eq!(Serial(2).since(Serial(u32::MAX)), 3);
        assert!(!last.before(last));
        let opposite = last.plus(1 << 31);
        assert!(!last.before(opposite) && !opposite.before(last));
    }
}
