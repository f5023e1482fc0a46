//! What is booked for a promised rate: the rate itself, and, where it holds while members are lost,
//! what their rebuild takes beside it: a floor of its own, that takes nothing from its user.
//!
//! The mediator books it, and the client's array holds its rebuild to it.

use netraid_block::narrow;

use crate::units::Rate;

/// A rebuild has this part of the rate that its user has.
const REBUILD_PART: u64 = 16;

/// The rate that is booked for a promise of `rate`; `is_degraded` when it holds while members are
/// lost.
#[must_use]
pub const fn booked(rate: Rate, is_degraded: bool) -> Rate {
    match is_degraded {
        true => Rate(rate.0.saturating_add(rate.0.div_ceil(REBUILD_PART))),
        false => rate,
    }
}

/// The highest rate that can be promised where `booked` is the most that can be booked.
#[must_use]
pub fn promised(booked: Rate, is_degraded: bool) -> Rate {
    let part = u128::from(booked.0) * u128::from(REBUILD_PART) / u128::from(REBUILD_PART + 1);
    match is_degraded {
        true => Rate(narrow(part)),
        false => booked,
    }
}

/// What a rebuild may take beside a promise of `rate`: no more than is booked beside it.
#[must_use]
pub const fn rebuild(rate: Rate) -> Rate {
    Rate(rate.0 / REBUILD_PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offered_can_be_booked_and_a_little_more_cannot() {
        for most in (0..2000).chain([1 << 40, (1 << 48) - 1]) {
            let offer = promised(Rate(most), true);
            assert!(booked(offer, true) <= Rate(most), "{most}");
            assert!(booked(Rate(offer.0 + 1), true) > Rate(most), "{most}");
            assert!(offer.0 + rebuild(offer).0 <= booked(offer, true).0, "{most}");
            assert_eq!(promised(booked(Rate(most), false), false), Rate(most));
        }
    }
}
