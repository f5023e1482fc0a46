//! Mean time to data loss of an array, from how often its members fail and how fast they are
//! rebuilt.
//!
//! A Markov chain: a state is how many members are lost, and from some number on data is lost too.
//! Its assumptions:
//! - Members fail independently, at a constant rate, also while others are rebuilt. Real ones fail
//!   more often when they are new or old, and together when they are of one batch.
//! - A member is back after detection and rebuild, which together take an exponentially distributed
//!   time of the given mean. Members that are lost together come back one after another.
//! - With no redundancy left, a byte that cannot be read during the rebuild is data lost, however
//!   little. Before that it is not: scrubs have found what was bad.
//! - What takes all members at once (a fire, an error in a program, a word of an administrator) comes
//!   at a constant rate too, whatever the state.
//!
//! Invariant: the chain's linear system is solved without subtractions, so that the result is exact to
//! rounding also where repair is 10^12 times as fast as failure. It does not model power failures,
//! silent corruption, nor the time for which data is only not available.

use netraid_raid::geometry::{Geometry, GeometryError, Level};

/// Hours of a year.
pub const HOURS_PER_YEAR: f64 = 8766.0;
/// Longest times, in hours.
const MTTF_HOURS_MAX: f64 = 1e12;
const REPAIR_HOURS_MAX: f64 = 1e6;
/// Most bytes of a rebuild.
const READ_BYTES_MAX: f64 = (1_u64 << 60) as f64;

/// An array, and how its members fail and come back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reliability {
    /// How the array protects its data.
    pub level: Level,
    /// Its members, as many as the level takes.
    pub members: usize,
    /// Mean time to a member's failure, 1 to 10^12 hours: of its disk, its host and its network
    /// together. 10^6 hours are a yearly rate of 0.9%.
    pub member_mttf_hours: f64,
    /// From the failure to the beginning of the rebuild, 0 to 10^6 hours: until it is seen, and
    /// another member is there; with a spare, next to nothing.
    pub detection_hours: f64,
    /// The rebuild itself, above 0 to 10^6 hours; [`crate::config::Rebuild`] gives it.
    pub rebuild_hours: f64,
    /// Bytes that a rebuild reads of all other members together, 0 to 2^60.
    pub rebuild_read_bytes: f64,
    /// Chance that a byte cannot be read, 0 to 1. Makers of disks state it a bit, as one of 10^14 or
    /// 10^15: eight times that a byte.
    pub unreadable_per_byte: f64,
    /// Mean time to what takes all members at once, 1 to 10^12 hours; none when it is left out.
    pub site_mttf_hours: Option<f64>,
}

/// Why a reliability cannot be computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ReliabilityError {
    /// Members that do not make the level.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// A number out of its range.
    #[error("{name} is {value}; it must be from {min} to {max}")]
    Range {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: f64,
        /// Least.
        min: f64,
        /// Most.
        max: f64,
    },
}

/// Rates an hour out of a state.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rates {
    /// One member more is lost, and no data.
    fails: f64,
    /// One member is back.
    repaired: f64,
    /// Data is lost.
    lost: f64,
}

impl Reliability {
    /// Mean hours until data is lost, of an array that begins whole; [`f64::MAX`] when it is more
    /// than that.
    ///
    /// # Errors
    /// When the members do not make the level, or a number is out of its range: which, and the range.
    pub fn mean_hours_to_data_loss(&self) -> Result<f64, ReliabilityError> {
        Ok(mean_time_to_end(&self.states()?))
    }

    /// Chance that data is lost within so many hours, 0 to 1, when losses come at a constant rate:
    /// right where rebuilds are much shorter than the time between failures.
    ///
    /// # Errors
    /// As [`Reliability::mean_hours_to_data_loss`], and when `hours` is not from 0 to 10^12.
    pub fn chance_of_data_loss(&self, hours: f64) -> Result<f64, ReliabilityError> {
        within("hours", hours, 0.0, MTTF_HOURS_MAX)?;
        Ok(-(-hours / self.mean_hours_to_data_loss()?).exp_m1())
    }

    /// Chance that a rebuild meets a byte that cannot be read.
    fn chance_unreadable(&self) -> f64 {
        if self.unreadable_per_byte >= 1.0 {
            return if self.rebuild_read_bytes > 0.0 { 1.0 } else { 0.0 };
        }
        // 1 - (1 - p)^bytes, for p of which 1 - p has no digits.
        -(self.rebuild_read_bytes * (-self.unreadable_per_byte).ln_1p()).exp_m1()
    }

    /// The states in which nothing is lost, by members that are.
    fn states(&self) -> Result<Vec<Rates>, ReliabilityError> {
        self.check()?;
        // Only level and members count here.
        let geometry = Geometry::new(self.level, self.members, 4096, 512, 1, 0)?;
        let failure = self.member_mttf_hours.recip();
        let repair = (self.detection_hours + self.rebuild_hours).recip();
        let site = self.site_mttf_hours.map_or(0.0, f64::recip);
        let unreadable = self.chance_unreadable();
        let members = self.members as f64;
        // With so many members lost, the loss of `fatal` of the others loses data, as does a byte that
        // cannot be read when `needs_all`.
        let state = |lost: f64, fatal: f64, needs_all: bool| {
            let chance = if needs_all { unreadable } else { 0.0 };
            let repair = if lost > 0.0 { repair } else { 0.0 };
            Rates {
                fails: (members - lost - fatal) * failure,
                repaired: repair * (1.0 - chance),
                lost: fatal * failure + repair * chance + site,
            }
        };
        Ok(match self.level {
            Level::Raid0 | Level::Raid1 | Level::Raid5 | Level::Raid6 => {
                let most = geometry.tolerance();
                let rates = |lost: u32| {
                    let is_last = lost == most;
                    let left = members - f64::from(lost);
                    state(f64::from(lost), if is_last { left } else { 0.0 }, is_last)
                };
                (0..=most).map(rates).collect()
            }
            // Of each pair at most one is lost; the other of such a pair is fatal, and is what its
            // rebuild reads.
            Level::Raid10 => (0..=geometry.data_columns())
                .map(f64::from)
                .map(|lost| state(lost, lost, true))
                .collect(),
        })
    }

    fn check(&self) -> Result<(), ReliabilityError> {
        within("member_mttf_hours", self.member_mttf_hours, 1.0, MTTF_HOURS_MAX)?;
        within("detection_hours", self.detection_hours, 0.0, REPAIR_HOURS_MAX)?;
        within("rebuild_hours", self.rebuild_hours, f64::MIN_POSITIVE, REPAIR_HOURS_MAX)?;
        within("rebuild_read_bytes", self.rebuild_read_bytes, 0.0, READ_BYTES_MAX)?;
        within("unreadable_per_byte", self.unreadable_per_byte, 0.0, 1.0)?;
        match self.site_mttf_hours {
            Some(hours) => within("site_mttf_hours", hours, 1.0, MTTF_HOURS_MAX),
            None => Ok(()),
        }
    }
}

fn within(name: &'static str, value: f64, min: f64, max: f64) -> Result<(), ReliabilityError> {
    if value >= min && value <= max {
        return Ok(());
    }
    Err(ReliabilityError::Range { name, value, min, max })
}

/// Mean time from the first state to the end of a chain whose states lead to their neighbours or to
/// the end. Takes one state after another out, from the last on: what led there leads on to the end,
/// or back, in the same proportion, and takes as much longer. Only sums, products and quotients of
/// positive numbers occur.
fn mean_time_to_end(states: &[Rates]) -> f64 {
    // Of the state that was taken out last: the part that ends there instead of coming back, and the
    // mean time that is spent in it and beyond before either.
    let (mut ending, mut beyond) = (0.0, 0.0);
    for state in states.iter().rev() {
        let lost = state.lost + state.fails * ending;
        let time = 1.0 + state.fails * beyond;
        let leaves = lost + state.repaired;
        (ending, beyond) = (lost / leaves, time / leaves);
    }
    // The first state is not repaired: it ends.
    beyond.min(f64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTTF: f64 = 1e6;
    const REPAIR: f64 = 10.0;

    fn array(level: Level, members: usize) -> Reliability {
        Reliability {
            level,
            members,
            member_mttf_hours: MTTF,
            detection_hours: 2.0,
            rebuild_hours: REPAIR - 2.0,
            rebuild_read_bytes: 0.0,
            unreadable_per_byte: 0.0,
            site_mttf_hours: None,
        }
    }

    fn hours(array: Reliability) -> f64 {
        array.mean_hours_to_data_loss().unwrap()
    }

    fn near(what: &str, got: f64, expected: f64, part: f64) {
        assert!((got / expected - 1.0).abs() <= part, "{what}: {got}, expected {expected}");
    }

    #[test]
    fn closed_forms_come_out() {
        let rounding = 1e-12;
        near("level 0", hours(array(Level::Raid0, 8)), MTTF / 8.0, rounding);
        let (failure, repair) = (1.0 / MTTF, 1.0 / REPAIR);
        for n in [3_u32, 5, 12] {
            let (members, n) = (n as usize, f64::from(n));
            let exact = ((2.0 * n - 1.0) * failure + repair) / (n * (n - 1.0) * failure.powi(2));
            near("level 5", hours(array(Level::Raid5, members)), exact, rounding);
            near("level 5, about", exact, MTTF.powi(2) / (n * (n - 1.0) * REPAIR), 1e-3);
        }
        for n in [4_u32, 6, 12] {
            let (members, n) = (n as usize, f64::from(n));
            let about = MTTF.powi(3) / (n * (n - 1.0) * (n - 2.0) * REPAIR.powi(2));
            near("level 6", hours(array(Level::Raid6, members)), about, 1e-3);
            let pairs = MTTF.powi(2) / (n * REPAIR);
            near("level 10", hours(array(Level::Raid10, members)), pairs, 1e-3);
        }
        let copies = (3.0 * failure + repair) / (2.0 * failure.powi(2));
        near("level 1", hours(array(Level::Raid1, 2)), copies, rounding);
        let three = MTTF.powi(3) / (6.0 * REPAIR.powi(2));
        near("level 1 of three", hours(array(Level::Raid1, 3)), three, 1e-3);
    }

    /// The same by elimination in a full matrix, which is exact enough for slow repairs.
    fn by_matrix(states: &[Rates]) -> f64 {
        let n = states.len();
        let mut rows: Vec<Vec<f64>> = (0..n)
            .map(|at| {
                let mut row = vec![0.0; n + 1];
                row[at] = states[at].fails + states[at].repaired + states[at].lost;
                if at + 1 < n {
                    row[at + 1] = -states[at].fails;
                }
                if at > 0 {
                    row[at - 1] = -states[at].repaired;
                }
                row[n] = 1.0;
                row
            })
            .collect();
        for pivot in 0..n {
            let from = rows[pivot].clone();
            for (at, row) in rows.iter_mut().enumerate() {
                let factor = if at == pivot { 0.0 } else { row[pivot] / from[pivot] };
                row.iter_mut().zip(&from).for_each(|(cell, other)| *cell -= factor * other);
            }
        }
        rows[0][n] / rows[0][0]
    }

    #[test]
    fn every_level_solves_its_linear_system() {
        let levels = [Level::Raid0, Level::Raid1, Level::Raid5, Level::Raid6, Level::Raid10];
        for (level, members) in levels.into_iter().zip([5, 4, 7, 9, 10]) {
            let array = Reliability {
                member_mttf_hours: 300.0,
                rebuild_read_bytes: 1e12,
                unreadable_per_byte: 2e-13,
                site_mttf_hours: Some(5e4),
                ..array(level, members)
            };
            let states = array.states().unwrap();
            near(&format!("{level:?}"), mean_time_to_end(&states), by_matrix(&states), 1e-9);
            // Whoever is there and fails is in one of the two.
            for (lost, state) in states.iter().enumerate() {
                let all = (state.fails + state.lost - 1.0 / 5e4) * 300.0;
                let there = (members - lost) as f64;
                assert!(all >= there * (1.0 - 1e-9), "{level:?} with {lost} lost: {state:?}");
            }
        }
    }

    #[test]
    fn what_cannot_be_read_counts_where_no_redundancy_is_left() {
        let certain = |level, members| Reliability {
            rebuild_read_bytes: 1e15,
            unreadable_per_byte: 1.0,
            ..array(level, members)
        };
        let second = (4.0 / MTTF + 1.0 / REPAIR).recip();
        near("level 5", hours(certain(Level::Raid5, 5)), MTTF / 5.0 + second, 1e-12);
        // Level 6 then bears one loss, and dies of the rebuild after the second.
        let level_6 = hours(certain(Level::Raid6, 6));
        near("level 6", level_6, MTTF.powi(2) / (6.0 * 5.0 * REPAIR), 1e-3);
        // 10^13 bytes at one of 10^14 bits: 1 - exp(-0.8).
        let some = Reliability {
            rebuild_read_bytes: 1e13,
            unreadable_per_byte: 8e-14,
            ..array(Level::Raid5, 5)
        };
        near("chance", some.chance_unreadable(), 1.0 - (-0.8_f64).exp(), 1e-9);
        near("level 5, some", hours(some), MTTF / (5.0 * some.chance_unreadable()), 1e-3);
    }

    #[test]
    fn a_site_bounds_all() {
        let with = |level, members| {
            hours(Reliability { site_mttf_hours: Some(1e7), ..array(level, members) })
        };
        near("level 0", with(Level::Raid0, 10), 1.0 / (10.0 / MTTF + 1e-7), 1e-12);
        near("level 6", with(Level::Raid6, 6), 1e7, 1e-3);
        assert!(with(Level::Raid5, 5) < 1e7);
    }

    #[test]
    fn more_members_slower_rebuilds_and_worse_members_lose_earlier() {
        for (level, members) in [(Level::Raid5, 5), (Level::Raid6, 6), (Level::Raid10, 6)] {
            let base = Reliability {
                rebuild_read_bytes: 1e12,
                unreadable_per_byte: 1e-15,
                site_mttf_hours: Some(1e11),
                ..array(level, members)
            };
            let worse = [
                Reliability { members: members + 2, ..base },
                Reliability { rebuild_hours: 20.0, ..base },
                Reliability { detection_hours: 24.0, ..base },
                Reliability { member_mttf_hours: MTTF / 2.0, ..base },
                Reliability { unreadable_per_byte: 1e-14, ..base },
                Reliability { rebuild_read_bytes: 1e13, ..base },
                Reliability { site_mttf_hours: Some(1e10), ..base },
            ];
            for other in worse {
                assert!(hours(other) < hours(base), "{other:?}");
                let chance = |array: Reliability| array.chance_of_data_loss(HOURS_PER_YEAR);
                assert!(chance(other).unwrap() > chance(base).unwrap(), "{other:?}");
            }
        }
        let order = [(Level::Raid0, 6), (Level::Raid5, 6), (Level::Raid10, 6), (Level::Raid6, 6)];
        let times = order.map(|(level, members)| hours(array(level, members)));
        assert!(times.is_sorted(), "{times:?}");
    }

    #[test]
    fn what_is_beyond_numbers_is_large_and_not_none() {
        let safe = Reliability { member_mttf_hours: 1e12, ..array(Level::Raid1, 64) };
        assert_eq!(hours(safe), f64::MAX);
        assert!(safe.chance_of_data_loss(1e6).unwrap() < 1e-300);
    }

    #[test]
    fn numbers_without_sense_are_refused() {
        let base = array(Level::Raid5, 5);
        let wrong = [
            ("member_mttf_hours", Reliability { member_mttf_hours: 0.0, ..base }),
            ("detection_hours", Reliability { detection_hours: -1.0, ..base }),
            ("rebuild_hours", Reliability { rebuild_hours: 0.0, ..base }),
            ("rebuild_hours", Reliability { rebuild_hours: f64::INFINITY, ..base }),
            ("rebuild_read_bytes", Reliability { rebuild_read_bytes: f64::NAN, ..base }),
            ("unreadable_per_byte", Reliability { unreadable_per_byte: 1.1, ..base }),
            ("site_mttf_hours", Reliability { site_mttf_hours: Some(0.0), ..base }),
        ];
        for (name, array) in wrong {
            let error = array.mean_hours_to_data_loss().unwrap_err().to_string();
            assert!(error.starts_with(name) && error.contains("must be from"), "{error}");
        }
        let few = array(Level::Raid6, 3).mean_hours_to_data_loss().unwrap_err();
        assert!(few.to_string().contains("level 6 takes 4"), "{few}");
        assert!(array(Level::Raid10, 5).mean_hours_to_data_loss().is_err());
        assert!(base.chance_of_data_loss(-1.0).is_err());
    }
}
