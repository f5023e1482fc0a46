//! Where a byte of the volume is: stripes, columns, members, and how a request is cut.
//!
//! Every level here is a case of one shape: `data_columns` columns of data, and `check_columns`
//! columns that are computed from them. What they hold is [`crate::code`]'s.
//!
//! Columns rotate over the members as in md's left-symmetric layout: the first check column of
//! stripe s is on member N - 1 - s mod N, the data columns follow it.

use core::ops::Range;

use netraid_block::narrow;
use smallvec::SmallVec;

use crate::{
    code::Code,
    member::{MEMBERS_MAX, MemberIndex, MemberSet},
};

/// How the array protects what it stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Stripes without redundancy.
    Raid0,
    /// Every member holds everything.
    Raid1,
    /// One rotated parity: survives one member.
    Raid5,
    /// Two rotated parities, P and Q: survives any two members.
    Raid6,
    /// Stripes of which every chunk is on two members: survives any one.
    Raid10,
}

impl Level {
    /// The level's customary number.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Raid0 => 0,
            Self::Raid1 => 1,
            Self::Raid5 => 5,
            Self::Raid6 => 6,
            Self::Raid10 => 10,
        }
    }

    /// The level with this number.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Raid0),
            1 => Some(Self::Raid1),
            5 => Some(Self::Raid5),
            6 => Some(Self::Raid6),
            10 => Some(Self::Raid10),
            _ => None,
        }
    }

    /// The smallest number of members that makes sense at this level.
    #[must_use]
    pub const fn members_min(self) -> usize {
        match self {
            Self::Raid0 => 1,
            Self::Raid1 => 2,
            Self::Raid5 => 3,
            Self::Raid6 | Self::Raid10 => 4,
        }
    }

    /// Whether arrays of this level are written through a log only.
    #[must_use]
    pub const fn needs_log(self) -> bool {
        match self {
            Self::Raid0 | Self::Raid1 | Self::Raid5 => false,
            Self::Raid6 | Self::Raid10 => true,
        }
    }
}

/// Longest chunk, in bytes.
pub const CHUNK_LEN_MAX: u32 = 16 << 20;
/// Most stripes of an array: what an engine keeps of each stripe, two bits, has to fit into memory
/// whatever a label says.
pub const STRIPES_MAX: u64 = 1 << 32;
/// Most bytes of all members together.
pub(crate) const SIZE_MAX: u64 = 1 << 60;

/// Shape of an array; constant for its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    level: Level,
    members: u8,
    chunk_len: u32,
    block_len: u32,
    stripes: u64,
    data_offset: u64,
}

/// Why a shape was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// Too few or too many members for the level.
    #[error("level {level} takes {min} to {max} members, not {members}; give another number")]
    Members {
        /// The level asked for.
        level: u8,
        /// How many members were given.
        members: usize,
        /// Fewest.
        min: usize,
        /// Most.
        max: usize,
    },
    /// Members that cannot be paired.
    #[error("level 10 takes an even number of members, not {0}; add or leave out one")]
    Unpaired(usize),
    /// A chunk that is no power of two in range.
    #[error("chunk of {0} bytes; it must be a power of two from 4 KiB to 16 MiB")]
    Chunk(u64),
    /// A logical block other than 512 or 4096 bytes.
    #[error("logical block of {0} bytes; only 512 and 4096 are supported")]
    Block(u32),
    /// More stripes than an engine can keep account of.
    #[error("{0} stripes are more than {STRIPES_MAX}; give a larger chunk")]
    Stripes(u64),
    /// Sizes whose sum does not fit.
    #[error("{stripes} stripes from byte {data_offset} are more than can be addressed")]
    Size {
        /// Stripes asked for.
        stripes: u64,
        /// Where they would begin on each member.
        data_offset: u64,
    },
}

/// Consecutive rows of a stripe: the same bytes of every chunk.
pub type Rows = Range<u32>;

/// Part of a stripe in which the same columns are addressed in every row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Which bytes of each chunk.
    pub rows: Rows,
    /// Which data columns the request addresses; may be none.
    pub columns: Range<u8>,
}

impl Segment {
    /// Number of rows, in bytes.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.rows.end - self.rows.start
    }

    /// Whether there are no rows.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows.end == self.rows.start
    }
}

/// The parts of a request in one stripe, by rows; at most three have columns.
pub type Segments = SmallVec<[Segment; 3]>;

impl Geometry {
    /// A shape, checked.
    ///
    /// # Errors
    /// When members, chunk or block are out of their range.
    pub fn new(
        level: Level,
        members: usize,
        chunk_len: u32,
        block_len: u32,
        stripes: u64,
        data_offset: u64,
    ) -> Result<Self, GeometryError> {
        let min = level.members_min();
        if !(min..=MEMBERS_MAX).contains(&members) {
            let level = level.number();
            return Err(GeometryError::Members { level, members, min, max: MEMBERS_MAX });
        }
        if level == Level::Raid10 && !members.is_multiple_of(2) {
            return Err(GeometryError::Unpaired(members));
        }
        if !chunk_len.is_power_of_two() || !(4 << 10..=CHUNK_LEN_MAX).contains(&chunk_len) {
            return Err(GeometryError::Chunk(u64::from(chunk_len)));
        }
        if block_len != 512 && block_len != 4096 {
            return Err(GeometryError::Block(block_len));
        }
        if stripes > STRIPES_MAX {
            return Err(GeometryError::Stripes(stripes));
        }
        let total = stripes.checked_mul(u64::from(chunk_len) * members as u64);
        if total.and_then(|total| total.checked_add(data_offset)).is_none_or(|end| end > SIZE_MAX) {
            return Err(GeometryError::Size { stripes, data_offset });
        }
        let members = narrow(members);
        Ok(Self { level, members, chunk_len, block_len, stripes, data_offset })
    }

    /// The level.
    #[must_use]
    pub const fn level(&self) -> Level {
        self.level
    }

    /// Number of members.
    #[must_use]
    pub const fn members(&self) -> u8 {
        self.members
    }

    /// All members in order.
    pub fn member_indices(&self) -> impl Iterator<Item = MemberIndex> + use<> {
        (0..self.members).map(MemberIndex)
    }

    /// Bytes of a chunk.
    #[must_use]
    pub const fn chunk_len(&self) -> u32 {
        self.chunk_len
    }

    /// Bytes of a logical block.
    #[must_use]
    pub const fn block_len(&self) -> u32 {
        self.block_len
    }

    /// Number of stripes.
    #[must_use]
    pub const fn stripes(&self) -> u64 {
        self.stripes
    }

    /// First byte of stripe 0 on each member.
    #[must_use]
    pub const fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// Columns that hold data.
    #[must_use]
    pub const fn data_columns(&self) -> u8 {
        match self.level {
            Level::Raid0 => self.members,
            Level::Raid1 => 1,
            Level::Raid5 => self.members - 1,
            Level::Raid6 => self.members - 2,
            Level::Raid10 => self.members / 2,
        }
    }

    /// Columns that are computed from the data columns.
    #[must_use]
    pub const fn check_columns(&self) -> u8 {
        self.members - self.data_columns()
    }

    /// How many members may be lost, whichever they are.
    #[must_use]
    pub const fn tolerance(&self) -> u32 {
        match self.level {
            Level::Raid0 | Level::Raid1 | Level::Raid5 | Level::Raid6 => {
                self.check_columns() as u32
            }
            Level::Raid10 => 1,
        }
    }

    /// Whether the array can serve from these members. Pairs of a level 10 are the same members in
    /// every stripe.
    #[must_use]
    pub fn can_serve_from(&self, members: MemberSet) -> bool {
        let there = |column: &u8| members.contains(self.member_of(0, *column));
        Code::new(self).can_decode((0..self.members()).filter(there).collect())
    }

    /// Bytes of data in a stripe.
    #[must_use]
    pub const fn stripe_data_len(&self) -> u64 {
        self.chunk_len as u64 * self.data_columns() as u64
    }

    /// Bytes of the volume.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.stripes * self.stripe_data_len()
    }

    /// All rows of a stripe.
    #[must_use]
    pub const fn whole(&self) -> Rows {
        0..self.chunk_len
    }

    /// The member that holds `column` of `stripe`; columns from `data_columns` on are checks.
    #[must_use]
    pub fn member_of(&self, stripe: u64, column: u8) -> MemberIndex {
        let members = u64::from(self.members);
        let first_data = match self.level {
            Level::Raid0 => 0,
            Level::Raid1 | Level::Raid5 | Level::Raid6 | Level::Raid10 => {
                members - stripe % members
            }
        };
        let member = (first_data + u64::from(column)) % members;
        // Less than the number of members, which is a byte.
        MemberIndex(narrow(member))
    }

    /// The column of `stripe` that `member` holds.
    #[must_use]
    pub fn column_of(&self, stripe: u64, member: MemberIndex) -> u8 {
        let first = self.member_of(stripe, 0).0;
        (member.0 + self.members - first) % self.members
    }

    /// Where row `row` of `stripe` is on any member.
    #[must_use]
    pub const fn member_offset(&self, stripe: u64, row: u32) -> u64 {
        self.data_offset + stripe * self.chunk_len as u64 + row as u64
    }

    /// Cuts bytes `range` of a stripe's data into segments, in ascending rows.
    ///
    /// # Panics
    /// When the range is empty or reaches past the stripe.
    #[must_use]
    pub fn segments(&self, range: &Range<u64>) -> Segments {
        assert!(range.start < range.end && range.end <= self.stripe_data_len(), "range in stripe");
        let chunk = u64::from(self.chunk_len);
        let (first, last) = (range.start / chunk, (range.end - 1) / chunk);
        let (from, to) = (range.start % chunk, (range.end - 1) % chunk + 1);
        let mut out = Segments::new();
        if first == last {
            push(&mut out, from..to, first..last + 1);
            return out;
        }
        let (low, high) = (from.min(to), from.max(to));
        let middle = if from <= to { first..last + 1 } else { first + 1..last };
        push(&mut out, 0..low, first + 1..last + 1);
        push(&mut out, low..high, middle);
        push(&mut out, high..chunk, first..last);
        out
    }

    /// The same segments, with column-less ones added so that they cover every row.
    #[must_use]
    pub fn segments_of_whole_stripe(&self, range: &Range<u64>) -> Segments {
        let mut out = Segments::new();
        let mut at = 0;
        for segment in self.segments(range) {
            push(&mut out, u64::from(at)..u64::from(segment.rows.start), 0..0);
            at = segment.rows.end;
            out.push(segment);
        }
        push(&mut out, u64::from(at)..u64::from(self.chunk_len), 0..0);
        out
    }
}

/// Appends a segment that has rows; ones without columns only matter to whole stripes.
fn push(out: &mut Segments, rows: Range<u64>, columns: Range<u64>) {
    if rows.start >= rows.end {
        return;
    }
    let columns = narrow(columns.start)..narrow(columns.end);
    out.push(Segment { rows: narrow(rows.start)..narrow(rows.end), columns });
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::collections::BTreeSet;

    #[test]
    fn a_label_cannot_make_an_engine_keep_account_of_any_number_of_stripes() {
        let shape = |stripes| Geometry::new(Level::Raid5, 3, 4096, 512, stripes, 0);
        assert!(shape(STRIPES_MAX).is_ok());
        assert_eq!(shape(STRIPES_MAX + 1), Err(GeometryError::Stripes(STRIPES_MAX + 1)));
    }

    #[test]
    fn columns_and_members_are_inverse_and_parity_visits_every_member() {
        let levels = [Level::Raid0, Level::Raid1, Level::Raid5, Level::Raid6, Level::Raid10];
        for (level, members) in levels.into_iter().zip([3, 3, 5, 7, 6]) {
            let geometry = Geometry::new(level, members, 4096, 512, 100, 0).unwrap();
            let mut checks = BTreeSet::new();
            for stripe in 0..20 {
                for column in 0..geometry.members() {
                    let member = geometry.member_of(stripe, column);
                    assert_eq!(geometry.column_of(stripe, member), column);
                }
                checks.insert(geometry.member_of(stripe, geometry.members() - 1));
            }
            assert_eq!(checks.len(), if level == Level::Raid0 { 1 } else { members });
        }
    }

    #[test]
    fn levels_take_the_members_that_make_them() {
        let shape = |level, members| Geometry::new(level, members, 4096, 512, 16, 0);
        let refused =
            |level, members| matches!(shape(level, members), Err(GeometryError::Members { .. }));
        // Level, fewest and most members, then data columns and tolerance of the fewest.
        for (number, min, data, tolerance) in
            [(0, 1, 1, 0), (1, 2, 1, 1), (5, 3, 2, 1), (6, 4, 2, 2), (10, 4, 2, 1)]
        {
            let level = Level::from_number(number).unwrap();
            assert_eq!((level.number(), level.members_min()), (number, min));
            let fewest = shape(level, min).unwrap();
            assert_eq!((fewest.data_columns(), fewest.tolerance()), (data, tolerance));
            assert_eq!(fewest.data_columns() + fewest.check_columns(), fewest.members());
            assert!(shape(level, MEMBERS_MAX).is_ok());
            assert!(refused(level, min - 1) && refused(level, MEMBERS_MAX + 2));
        }
        assert_eq!(shape(Level::Raid1, 4).unwrap().tolerance(), 3);
        assert_eq!(shape(Level::Raid10, 64).unwrap().tolerance(), 1);
        assert_eq!(shape(Level::Raid6, 64).unwrap().data_columns(), 62);
        assert_eq!(shape(Level::Raid10, 5), Err(GeometryError::Unpaired(5)));
        assert_eq!([2, 3, 4, 7, 11].map(Level::from_number), [None; 5]);
    }

    #[test]
    fn level_5_is_laid_out_left_symmetric_as_md_does() {
        let geometry = Geometry::new(Level::Raid5, 4, 4096, 512, 8, 0).unwrap();
        let row = |stripe| [0, 1, 2, 3].map(|column| geometry.member_of(stripe, column).0);
        assert_eq!([row(0), row(1), row(2)], [[0, 1, 2, 3], [3, 0, 1, 2], [2, 3, 0, 1]]);
    }

    #[test]
    fn segments_cover_a_range_exactly_once() {
        let mut rng = StdRng::seed_from_u64(1);
        for _ in 0..2000 {
            let geometry =
                Geometry::new(Level::Raid5, rng.random_range(3..7), 4096, 512, 1, 0).unwrap();
            let len = geometry.stripe_data_len();
            let start = rng.random_range(0..len / 512) * 512;
            let range = start..rng.random_range(start / 512 + 1..=len / 512) * 512;
            let mut seen = std::vec![0_u8; usize::try_from(len).unwrap()];
            let whole = geometry.segments_of_whole_stripe(&range);
            assert_eq!(whole.iter().map(Segment::len).sum::<u32>(), geometry.chunk_len());
            for segment in geometry.segments(&range) {
                assert!(whole.contains(&segment));
                for column in segment.columns.clone() {
                    for row in segment.rows.clone() {
                        seen[usize::from(column) * 4096 + row as usize] += 1;
                    }
                }
            }
            for (at, count) in seen.iter().enumerate() {
                assert_eq!(*count, u8::from(range.contains(&(at as u64))), "{range:?} at {at}");
            }
        }
    }
}
