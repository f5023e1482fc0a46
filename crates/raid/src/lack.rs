//! What a member lacks that was away, is new, or lost its cache. It stands in the labels.

use crate::stripes::Entry;

/// The last round that is believed: no array lives so long, and whoever counts on from it has as
/// many to go.
pub const ROUND_MAX: u32 = 1 << 31;

/// What a member lacks, as far as it is known: every stripe that changed since it was complete,
/// less those that it has caught up.
///
/// A member that is in sync lacks nothing ([`Lack::NOTHING`]); one that is empty lacks all
/// ([`Lack::ALL`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lack {
    /// Stripes from `mark` on that changed in this round or later.
    pub left: u32,
    /// Stripes below `mark` that changed in this round or later: it left again while it was
    /// catching up.
    pub left_again: u32,
    /// Where the two bounds part.
    pub mark: u32,
    /// Stripes below this one are caught up, whatever the bounds say.
    pub caught_up: u32,
}

impl Lack {
    /// In sync.
    pub const NOTHING: Self =
        Self { left: u32::MAX, left_again: u32::MAX, mark: 0, caught_up: u32::MAX };
    /// An empty member.
    pub const ALL: Self = Self { left: 0, left_again: 0, mark: 0, caught_up: 0 };

    /// A member that was in sync at the end of `round` and takes part no more.
    #[must_use]
    pub const fn since(round: u32) -> Self {
        Self { left: round + 1, left_again: round + 1, mark: 0, caught_up: 0 }
    }

    /// Whether the member lacked everything, when it began to catch up.
    #[must_use]
    pub const fn lacks_all(&self) -> bool {
        self.left == 0 && self.left_again == 0
    }

    /// Whether the member lacks what was written to a mapped stripe.
    #[must_use]
    pub const fn has(&self, physical: u32, entry: Entry) -> bool {
        let bound = if physical < self.mark { self.left_again } else { self.left };
        physical >= self.caught_up && entry.round >= bound
    }

    /// The member leaves again; it was complete, as far as it had caught up, at the end of
    /// `round`. What it lacks may be said to be more than it is, never less.
    #[must_use]
    pub const fn leave_again(&self, round: u32) -> Self {
        let older = if self.left < self.left_again { self.left } else { self.left_again };
        Self { left: older, left_again: round + 1, mark: self.caught_up, caught_up: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stripes::Interval;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::vec;

    /// A member that comes and goes, against a set of what it lacks that is kept stripe by stripe.
    #[test]
    fn what_a_member_lacks_is_never_said_to_be_less_than_it_is() {
        const STRIPES: u32 = 30;
        let (mut said_too_much, mut asked) = (0_u64, 0_u64);
        for seed in 0..400 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut entries = vec![Entry::default(); STRIPES as usize];
            // What the member lacks now, and what it would lack if its cache were lost now.
            let mut lacking = vec![false; STRIPES as usize];
            let mut unstable = vec![false; STRIPES as usize];
            let (mut lack, mut stable_lack) = (Lack::NOTHING, Lack::NOTHING);
            let (mut is_live, mut round) = (true, 0);
            for _ in 0..300 {
                match rng.random_range(0..10) {
                    0..=4 => {
                        let at = rng.random_range(0..STRIPES as usize);
                        entries[at] =
                            Entry { logical: Some(0), round: round + 1, interval: Interval::FIRST };
                        if is_live { unstable[at] = true } else { lacking[at] = true }
                    }
                    5 => {
                        // A checkpoint: what the member did is stable.
                        round += 1;
                        unstable.fill(false);
                        stable_lack = lack;
                    }
                    6 if is_live => {
                        // It leaves, with its cache: back to the last checkpoint.
                        is_live = false;
                        let synced = stable_lack == Lack::NOTHING;
                        lack = if synced {
                            Lack::since(round)
                        } else {
                            stable_lack.leave_again(round)
                        };
                        for at in 0..STRIPES as usize {
                            lacking[at] |= core::mem::take(&mut unstable[at]);
                        }
                        stable_lack = lack;
                    }
                    7 => is_live = true,
                    _ if is_live && lack != Lack::NOTHING => {
                        // It catches up the next stripe.
                        let at = lack.caught_up;
                        if at < STRIPES {
                            if core::mem::take(&mut lacking[at as usize]) {
                                unstable[at as usize] = true;
                            }
                            lack.caught_up += 1;
                        } else if unstable.iter().all(|one| !one) {
                            (lack, stable_lack) = (Lack::NOTHING, Lack::NOTHING);
                        }
                    }
                    _ => {}
                }
                for at in 0..STRIPES {
                    let really = lacking[at as usize];
                    let said = lack.has(at, entries[at as usize]);
                    assert!(said || !really, "seed {seed}: stripe {at}");
                    said_too_much += u64::from(said && !really);
                    asked += 1;
                }
            }
        }
        assert!(said_too_much * 3 < asked, "{said_too_much} of {asked}");
    }
}
