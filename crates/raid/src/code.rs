//! How the columns of a row depend on each other: what the check columns hold, and what gives a
//! column back that cannot be read.
//!
//! Columns are numbered as [`Geometry`] has them: data, then checks. The checks of level 1 are
//! copies of the one data column, that of level 5 is the XOR of all data, those of level 6 are P
//! and Q ([`netraid_parity::dual`]), and check column d + i of level 10 is a copy of data column i
//! of d. Every column is a weighted sum of others; weight 1 adds a column as it is.
//!
//! Knows no members and no bytes: [`crate::bytes`] sums up.

use netraid_block::narrow;
use netraid_parity::{dual::repair_weights, field::coefficient};
use smallvec::SmallVec;

use crate::geometry::{Geometry, Level};

/// A set of columns of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ColumnSet(u64);

impl ColumnSet {
    /// No columns.
    pub const EMPTY: Self = Self(0);

    /// The first `count` columns, at most 64.
    #[must_use]
    pub const fn first(count: u8) -> Self {
        Self(if count == 0 { 0 } else { u64::MAX >> (64 - count) })
    }

    /// Adds a column.
    pub const fn insert(&mut self, column: u8) {
        self.0 |= 1 << column;
    }

    /// Takes a column out.
    pub const fn remove(&mut self, column: u8) {
        self.0 &= !(1 << column);
    }

    /// The set with a column more.
    #[must_use]
    pub const fn with(self, column: u8) -> Self {
        Self(self.0 | 1 << column)
    }

    /// The set without a column.
    #[must_use]
    pub const fn without(self, column: u8) -> Self {
        Self(self.0 & !(1 << column))
    }

    /// The columns that are not in `other`.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether a column is in the set.
    #[must_use]
    pub const fn contains(self, column: u8) -> bool {
        self.0 >> column & 1 == 1
    }

    /// How many columns are in the set.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether the set has no columns.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The lowest column of the set.
    #[must_use]
    pub fn lowest(self) -> Option<u8> {
        // At most 63 when there is a bit.
        (self.0 != 0).then(|| narrow(self.0.trailing_zeros()))
    }

    /// The columns of the set in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        let mut left = self;
        core::iter::from_fn(move || {
            let column = left.lowest()?;
            left.remove(column);
            Some(column)
        })
    }
}

impl FromIterator<u8> for ColumnSet {
    fn from_iter<I: IntoIterator<Item = u8>>(iter: I) -> Self {
        let mut set = Self::EMPTY;
        iter.into_iter().for_each(|column| set.insert(column));
        set
    }
}

/// What to sum up to have a column: columns in ascending order, each with its weight, never 0.
pub type Recipe = SmallVec<[(u8, u8); 16]>;

/// How the columns of a row depend on each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    level: Level,
    columns: u8,
    data_columns: u8,
}

impl From<&Geometry> for Code {
    fn from(geometry: &Geometry) -> Self {
        Self::new(geometry)
    }
}

impl Code {
    /// The code of an array of this shape.
    #[must_use]
    pub const fn new(geometry: &Geometry) -> Self {
        Self {
            level: geometry.level(),
            columns: geometry.members(),
            data_columns: geometry.data_columns(),
        }
    }

    /// The level.
    #[must_use]
    pub const fn level(self) -> Level {
        self.level
    }

    /// All columns of a row.
    #[must_use]
    pub const fn columns(self) -> u8 {
        self.columns
    }

    /// Those that hold data; they come first.
    #[must_use]
    pub const fn data_columns(self) -> u8 {
        self.data_columns
    }

    /// Whether check columns are copies of single data columns.
    #[must_use]
    pub const fn is_copies(self) -> bool {
        matches!(self.level, Level::Raid1 | Level::Raid10)
    }

    /// Those that are computed from them.
    #[must_use]
    pub const fn check_columns(self) -> u8 {
        self.columns - self.data_columns
    }

    /// All columns of a row, as a set.
    #[must_use]
    pub const fn all(self) -> ColumnSet {
        ColumnSet::first(self.columns)
    }

    /// What `data_column` counts in `check_column`; 0 when it has no part in it.
    ///
    /// # Panics
    /// When a row has no such check or data column.
    #[must_use]
    pub fn check_weight(self, check_column: u8, data_column: u8) -> u8 {
        assert!(data_column < self.data_columns, "data column {data_column}: {self:?}");
        let is_check = (self.data_columns..self.columns).contains(&check_column);
        assert!(is_check, "check column {check_column}: {self:?}");
        match (self.level, check_column - self.data_columns) {
            (Level::Raid10, check) => u8::from(check == data_column),
            (Level::Raid6, 1) => coefficient(data_column),
            (Level::Raid0 | Level::Raid1 | Level::Raid5 | Level::Raid6, _) => 1,
        }
    }

    /// What to sum up to have column `wanted` from `readable` ones alone, without using itself:
    /// as few as possible, P rather than Q. None when they do not suffice.
    ///
    /// # Panics
    /// When a row has no such column.
    #[must_use]
    pub fn recipe(self, wanted: u8, readable: ColumnSet) -> Option<Recipe> {
        assert!(wanted < self.columns, "column {wanted}: {self:?}");
        let others = self.all().without(wanted);
        let lost = others.minus(readable);
        let sum = |columns: ColumnSet| columns.iter().map(|column| (column, 1)).collect();
        match self.level {
            Level::Raid0 => None,
            Level::Raid1 => {
                others.minus(lost).lowest().map(|copy| sum(ColumnSet::EMPTY.with(copy)))
            }
            Level::Raid10 => {
                let copy = (wanted + self.data_columns) % self.columns;
                (!lost.contains(copy)).then(|| sum(ColumnSet::EMPTY.with(copy)))
            }
            Level::Raid5 => lost.is_empty().then(|| sum(others)),
            // Any `data_columns` columns give all others, and no fewer do.
            Level::Raid6 if lost.len() > 1 => None,
            Level::Raid6 => {
                let lost = lost.lowest().map(usize::from);
                let weights =
                    repair_weights(usize::from(self.data_columns), usize::from(wanted), lost);
                let term = |column: u8| (column, weights.of(usize::from(column)));
                Some(others.iter().map(term).filter(|(_, weight)| *weight != 0).collect())
            }
        }
    }

    /// Whether all data columns are readable, or can be computed from columns that are.
    #[must_use]
    pub fn can_decode(self, readable: ColumnSet) -> bool {
        let lost = self.all().minus(readable);
        match self.level {
            Level::Raid0 | Level::Raid1 | Level::Raid5 | Level::Raid6 => {
                lost.len() <= u32::from(self.check_columns())
            }
            Level::Raid10 => (0..self.data_columns)
                .all(|column| !lost.contains(column) || !lost.contains(column + self.data_columns)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn code(level: Level, members: usize) -> Code {
        Code::new(&Geometry::new(level, members, 4096, 512, 16, 0).unwrap())
    }

    fn sets(columns: u8) -> impl Iterator<Item = ColumnSet> {
        (0..1_u64 << columns).map(ColumnSet)
    }

    #[test]
    fn data_that_can_be_decoded_has_a_recipe_for_each_lost_column() {
        for (level, members) in [
            (Level::Raid0, 3),
            (Level::Raid1, 4),
            (Level::Raid5, 5),
            (Level::Raid6, 4),
            (Level::Raid6, 7),
            (Level::Raid10, 8),
        ] {
            let code = code(level, members);
            for readable in sets(code.columns()) {
                let has = |column: u8| {
                    readable.contains(column) || code.recipe(column, readable).is_some()
                };
                assert_eq!(code.can_decode(readable), (0..code.data_columns()).all(has));
                // Then the checks can be had too.
                assert!(!code.can_decode(readable) || (0..code.columns()).all(has));
            }
        }
    }

    #[test]
    fn any_loss_within_the_tolerance_is_survived_and_one_more_is_not_always() {
        for (level, members) in [
            (Level::Raid0, 4),
            (Level::Raid1, 3),
            (Level::Raid5, 5),
            (Level::Raid6, 4),
            (Level::Raid6, 8),
            (Level::Raid10, 6),
        ] {
            let geometry = Geometry::new(level, members, 4096, 512, 16, 0).unwrap();
            let code = Code::from(&geometry);
            let survives = |lost: u32| {
                sets(code.columns())
                    .filter(|readable| code.all().minus(*readable).len() == lost)
                    .all(|readable| code.can_decode(readable))
            };
            assert!((0..=geometry.tolerance()).all(survives), "{level:?}");
            assert!(!survives(geometry.tolerance() + 1), "{level:?}");
        }
    }

    #[test]
    fn level_10_survives_one_of_every_pair() {
        let code = code(Level::Raid10, 8);
        assert!(code.can_decode(ColumnSet::first(4)));
        assert!(code.can_decode([4, 1, 6, 3].into_iter().collect()));
        assert!(!code.can_decode(code.all().without(2).without(6)));
    }

    #[test]
    fn a_copy_is_one_column_and_p_comes_before_q() {
        let recipe = |level, members, wanted, readable: ColumnSet| {
            code(level, members).recipe(wanted, readable).unwrap().into_vec()
        };
        let all = ColumnSet::first;
        assert_eq!(recipe(Level::Raid1, 4, 0, all(4)), [(1, 1)]);
        assert_eq!(recipe(Level::Raid1, 4, 2, all(4).without(0)), [(1, 1)]);
        assert_eq!(recipe(Level::Raid10, 6, 2, all(6)), [(5, 1)]);
        assert_eq!(recipe(Level::Raid10, 6, 4, all(6)), [(1, 1)]);
        assert_eq!(recipe(Level::Raid5, 4, 1, all(4)), [(0, 1), (2, 1), (3, 1)]);
        assert_eq!(recipe(Level::Raid6, 5, 1, all(5)), [(0, 1), (2, 1), (3, 1)]);
        assert_eq!(recipe(Level::Raid6, 5, 1, all(5).without(4)), [(0, 1), (2, 1), (3, 1)]);
        let by_q = recipe(Level::Raid6, 5, 1, all(5).without(3));
        assert_eq!(by_q.iter().map(|(column, _)| *column).collect::<Vec<_>>(), [0, 2, 4]);
        let by_both = recipe(Level::Raid6, 5, 1, all(5).without(0));
        assert_eq!(by_both.iter().map(|(column, _)| *column).collect::<Vec<_>>(), [2, 3, 4]);
    }

    #[test]
    fn weights_in_checks_are_those_of_their_recipes() {
        for (level, members) in
            [(Level::Raid1, 3), (Level::Raid5, 5), (Level::Raid6, 64), (Level::Raid10, 6)]
        {
            let code = code(level, members);
            let data = ColumnSet::first(code.data_columns());
            for check in code.data_columns()..code.columns() {
                let weights: Vec<(u8, u8)> = data
                    .iter()
                    .map(|column| (column, code.check_weight(check, column)))
                    .filter(|(_, weight)| *weight != 0)
                    .collect();
                assert_eq!(code.recipe(check, data).unwrap().into_vec(), weights);
            }
        }
        let code = code(Level::Raid5, 3);
        assert!(std::panic::catch_unwind(|| code.check_weight(1, 0)).is_err());
        assert!(std::panic::catch_unwind(|| code.check_weight(3, 0)).is_err());
        assert!(std::panic::catch_unwind(|| code.check_weight(2, 2)).is_err());
        assert!(std::panic::catch_unwind(|| code.recipe(3, ColumnSet::first(3))).is_err());
    }

    #[test]
    fn sets_hold_64_columns() {
        let mut set = ColumnSet::first(64);
        assert_eq!((set.len(), set.iter().count()), (64, 64));
        set.remove(63);
        assert_eq!(set, ColumnSet::first(63));
        assert_eq!(set.with(63).minus(set).lowest(), Some(63));
        assert!(ColumnSet::first(0).is_empty() && ColumnSet::EMPTY.lowest().is_none());
        assert_eq!([5, 1].into_iter().collect::<ColumnSet>().iter().collect::<Vec<_>>(), [1, 5]);
    }
}
