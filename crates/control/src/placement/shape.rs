//! Shapes that a volume could have: level, number of members, striping unit, and what they cost
//! each member.

use alloc::vec::Vec;
use core::cell::OnceCell;

use netraid_block::narrow;
use netraid_raid::{
    geometry::{Geometry, Level},
    log::{LOG_BLOCK_LEN, REMAP_SUMS_MAX},
    member::MEMBERS_MAX,
    regions::{RegionsError, STRIPES_USUAL_MAX, Wish, member_capacity_for, plan, plan_logged},
};

use super::{Load, Traffic, Wanted, Why};
use crate::units::{Rate, Resources};

/// Logical block of volumes on agents: what every client can use.
const BLOCK_LEN: u32 = 512;
/// Shortest and longest striping unit.
const UNIT_MIN: u64 = 4 << 10;
/// See [`UNIT_MIN`].
const UNIT_MAX: u64 = 16 << 20;
/// Fewest stripes of a volume: what an array keeps free beside it, and the 16 stripes that it has
/// at least, would cost more space than the volume otherwise.
const STRIPES_WANTED_MIN: u64 = 64;
/// Most stripes of a volume, with the 1% that is kept free beside them: a client has where each is in memory, and reads it
/// when it opens the volume.
const STRIPES_WANTED_MAX: u64 = STRIPES_USUAL_MAX / 102 * 100;

/// What decided a striping unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitWhy {
    /// The caller.
    Asked,
    /// The largest of which a request has one for each data column.
    Request,
    /// The least there is; even so a request does not have one for each data column.
    Least,
    /// The largest there is.
    Most,
    /// The volume is small: with a larger one it would have less than 64 stripes.
    SmallVolume,
    /// The volume is large: with a smaller one it would have more stripes than a client should keep account of.
    LargeVolume,
    /// The checksums of a whole stripe have no room in one record of the log with a larger one.
    Record,
}

/// A shape that a volume could have.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) level: Level,
    pub(super) members: usize,
    pub(super) data_columns: u64,
    pub(super) chunk_len: u32,
    pub(super) unit_why: UnitWhy,
    pub(super) load: Load,
    size_bytes: u64,
    space_bytes: OnceCell<Option<u64>>,
}

impl Shape {
    fn new(wanted: &Wanted, level: Level, members: usize) -> Result<Self, RegionsError> {
        let geometry = |chunk_len| Geometry::new(level, members, chunk_len, BLOCK_LEN, 0, 0);
        let data_columns = u64::from(geometry(4096)?.data_columns());
        let (chunk_len, unit_why) = unit(wanted, level, members, data_columns);
        let geometry = geometry(chunk_len)?;
        let traffic = Traffic {
            request_bytes: wanted.request_bytes,
            gathered: wanted.gathered,
            lost: if wanted.degraded { wanted.survives } else { 0 },
        };
        let shape = Self {
            level,
            members,
            data_columns,
            chunk_len,
            unit_why,
            load: Load::new(&geometry, &traffic),
            size_bytes: wanted.size_bytes,
            space_bytes: OnceCell::new(),
        };
        // What is impossible however large the members are.
        match shape.plan(0) {
            Ok(_) | Err(RegionsError::TooSmall { .. }) => Ok(shape),
            Err(error) => Err(error),
        }
    }

    /// Whether it is written through a log: whatever has redundancy.
    pub(super) const fn is_logged(&self) -> bool {
        is_logged(self.level)
    }

    const fn wish(&self) -> Wish {
        let Self { level, members, chunk_len, .. } = *self;
        Wish { level, members, chunk_len, block_len: BLOCK_LEN }
    }

    /// Bytes of the volume on members of so many.
    fn plan(&self, member_bytes: u64) -> Result<u64, RegionsError> {
        let plan = if self.is_logged() {
            plan_logged(&self.wish(), member_bytes, None)
        } else {
            plan(&self.wish(), member_bytes)
        };
        plan.map(|(_, geometry)| geometry.capacity())
    }

    /// Bytes of the volume that it gets.
    pub(super) fn capacity_bytes(&self) -> Option<u64> {
        self.plan(self.space_bytes()?).ok()
    }

    /// No less than this is taken of each member.
    pub(super) const fn space_bytes_min(&self) -> u64 {
        self.size_bytes.div_ceil(self.data_columns)
    }

    /// Bytes of each member: the fewest in whole MiB with which the volume has its size, beside
    /// labels, log, stripe table, checksums and free stripes. None when no number is enough.
    pub(super) fn space_bytes(&self) -> Option<u64> {
        *self.space_bytes.get_or_init(|| {
            member_capacity_for(&self.wish(), self.is_logged(), self.size_bytes).ok()
        })
    }

    /// What each member must give for that rate; none when nobody has so much.
    pub(super) fn need(&self, rate: Rate) -> Option<Resources> {
        let space_bytes = self.space_bytes()?;
        Some(Resources { space_bytes, ..self.need_min(rate)? })
    }

    /// The same with [`Self::space_bytes_min`], which is quick.
    pub(super) fn need_min(&self, rate: Rate) -> Option<Resources> {
        let (device, network) = self.load.rates(rate)?;
        Some(Resources { space_bytes: self.space_bytes_min(), device, network })
    }
}

const fn is_logged(level: Level) -> bool {
    !matches!(level, Level::Raid0)
}

/// The striping unit for so many data columns.
fn unit(wanted: &Wanted, level: Level, members: usize, data_columns: u64) -> (u32, UnitWhy) {
    if let Some(asked) = wanted.chunk_len {
        return (asked, UnitWhy::Asked);
    }
    let share = floor_power(wanted.request_bytes / data_columns);
    let (mut unit, mut why) = (share.clamp(UNIT_MIN, UNIT_MAX), UnitWhy::Request);
    if share < UNIT_MIN {
        why = UnitWhy::Least;
    } else if share > UNIT_MAX {
        why = UnitWhy::Most;
    }
    let most = floor_power(wanted.size_bytes / (data_columns * STRIPES_WANTED_MIN)).max(UNIT_MIN);
    if unit > most {
        (unit, why) = (most, UnitWhy::SmallVolume);
    }
    let least = wanted.size_bytes.div_ceil(data_columns * STRIPES_WANTED_MAX);
    let least = least.min(UNIT_MAX).next_power_of_two();
    if unit < least {
        (unit, why) = (least, UnitWhy::LargeVolume);
    }
    let record = u64::from(REMAP_SUMS_MAX) * u64::from(LOG_BLOCK_LEN);
    let most = floor_power(record / members as u64);
    if is_logged(level) && unit > most {
        (unit, why) = (most, UnitWhy::Record);
    }
    // At most 16 MiB.
    (narrow(unit), why)
}

/// The largest power of two that is no more; 0 of 0.
const fn floor_power(number: u64) -> u64 {
    match number.checked_ilog2() {
        Some(bits) => 1 << bits,
        None => 0,
    }
}

/// All shapes that are worth trying with so many places for members, the best first: by level as
/// little space as possible, and the fewest members. There is one at least, if only to say what it
/// lacks.
pub(super) fn shapes(wanted: &Wanted, places: usize) -> Result<Vec<Shape>, Why> {
    if wanted.size_bytes == 0 {
        return Err(Why::Size);
    }
    let mut found = Vec::new();
    let mut why = None;
    for level in levels(wanted) {
        for members in counts(wanted, level, places) {
            if tolerance(level, members) < usize::from(wanted.survives) {
                let survives = wanted.survives;
                why.get_or_insert(Why::Resilience { level, members, survives });
                continue;
            }
            match Shape::new(wanted, level, members) {
                Ok(shape) => found.push(shape),
                Err(error) => {
                    why.get_or_insert(Why::Shape(error));
                }
            }
        }
    }
    match why {
        Some(why) if found.is_empty() => Err(why),
        _ => Ok(found),
    }
}

/// Levels in the order of the space that they take.
fn levels(wanted: &Wanted) -> Vec<Level> {
    use Level::{Raid0, Raid1, Raid5, Raid6, Raid10};
    let usual: &[Level] = match (wanted.level, wanted.survives) {
        (Some(_), _) => &[],
        (None, 0) => &[Raid0],
        (None, 1) => &[Raid5, Raid1, Raid10],
        (None, 2) => &[Raid6, Raid1],
        (None, _) => &[Raid1],
    };
    wanted.level.into_iter().chain(usual.iter().copied()).collect()
}

/// Numbers of members in their order: one of the level's least more than there are places for, so
/// that it can be said what is missing.
fn counts(wanted: &Wanted, level: Level, places: usize) -> Vec<usize> {
    if let Some(members) = wanted.members {
        return [members].into();
    }
    let min = level.members_min();
    if level == Level::Raid1 {
        return [min.max(usize::from(wanted.survives) + 1)].into();
    }
    let step = if level == Level::Raid10 { 2 } else { 1 };
    (min..=places.clamp(min, MEMBERS_MAX)).step_by(step).collect()
}

fn tolerance(level: Level, members: usize) -> usize {
    match level {
        Level::Raid0 => 0,
        Level::Raid1 => members.saturating_sub(1),
        Level::Raid5 | Level::Raid10 => 1,
        Level::Raid6 => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(wanted: &Wanted, level: Level, members: usize) -> Shape {
        Shape::new(wanted, level, members).unwrap()
    }

    #[test]
    fn members_are_as_large_as_the_volume_needs_and_not_a_mebibyte_more() {
        for size_bytes in [1, 1 << 20, 100 << 20, 1 << 30, 10_000_000_000, 1 << 40, 1 << 50] {
            for (level, members) in [
                (Level::Raid0, 1),
                (Level::Raid0, 5),
                (Level::Raid1, 2),
                (Level::Raid5, 3),
                (Level::Raid5, 64),
                (Level::Raid6, 8),
                (Level::Raid10, 6),
            ] {
                let shape = shape(&Wanted::new(size_bytes, Rate(1)), level, members);
                let space = shape.space_bytes().unwrap();
                assert!(space >= shape.space_bytes_min());
                assert!(shape.capacity_bytes().unwrap() >= size_bytes);
                let less = shape.plan(space - (1 << 20));
                assert!(less.is_err() || less.is_ok_and(|size| size < size_bytes));
            }
        }
    }

    #[test]
    fn a_volume_beyond_all_members_has_no_size() {
        let wanted = Wanted { chunk_len: Some(4096), ..Wanted::new(1 << 50, Rate(1)) };
        assert_eq!(shape(&wanted, Level::Raid5, 3).space_bytes(), None);
        let wanted = Wanted::new(u64::MAX, Rate(1));
        assert_eq!(shape(&wanted, Level::Raid0, 1).space_bytes(), None);
    }

    #[test]
    fn units_follow_requests_within_what_volume_and_log_allow() {
        let unit = |wanted: &Wanted, members| {
            let shape = shape(wanted, Level::Raid5, members);
            (shape.chunk_len >> 10, shape.unit_why)
        };
        let usual = Wanted::new(1 << 40, Rate(1));
        assert_eq!(unit(&usual, 3), (512, UnitWhy::Request));
        assert_eq!(unit(&usual, 4), (256, UnitWhy::Request));
        assert_eq!(unit(&usual, 17), (64, UnitWhy::Request));
        let of = |request_bytes| Wanted { request_bytes, ..usual.clone() };
        assert_eq!(unit(&of(256 << 20), 3), (16 << 10, UnitWhy::Most));
        assert_eq!(unit(&of(1 << 30), 64), (1 << 10, UnitWhy::Record));
        // Of 1 TiB in less than 2^25 stripes each has more than 32 KiB.
        assert_eq!(unit(&of(4096), 5), (16, UnitWhy::LargeVolume));
        assert_eq!(unit(&Wanted::new(20 << 40, Rate(1)), 14), (64, UnitWhy::Request));
        assert_eq!(unit(&Wanted::new(200 << 40, Rate(1)), 14), (512, UnitWhy::LargeVolume));
        let small = Wanted { size_bytes: 16 << 20, ..usual.clone() };
        assert_eq!(unit(&small, 5), (64, UnitWhy::SmallVolume));
        let tiny = Wanted { size_bytes: 1, ..usual.clone() };
        assert_eq!(unit(&tiny, 5), (4, UnitWhy::SmallVolume));
        assert_eq!(unit(&Wanted { request_bytes: 4096, ..small }, 5), (4, UnitWhy::Least));
        assert_eq!(unit(&Wanted { chunk_len: Some(8192), ..usual }, 5), (8, UnitWhy::Asked));
    }

    #[test]
    fn shapes_come_in_the_order_of_their_space_and_survive_what_they_should() {
        let of = |survives, level, members, places| {
            let wanted = Wanted { survives, level, members, ..Wanted::new(1 << 30, Rate(1)) };
            shapes(&wanted, places).map(|shapes| {
                shapes.iter().map(|one| (one.level.number(), one.members)).collect::<Vec<_>>()
            })
        };
        assert_eq!(of(0, None, None, 3).unwrap(), [(0, 1), (0, 2), (0, 3)]);
        assert_eq!(of(1, None, None, 4).unwrap(), [(5, 3), (5, 4), (1, 2), (10, 4)]);
        assert_eq!(of(2, None, None, 5).unwrap(), [(6, 4), (6, 5), (1, 3)]);
        assert_eq!(of(3, None, None, 5).unwrap(), [(1, 4)]);
        assert_eq!(of(1, None, Some(2), 5).unwrap(), [(1, 2)]);
        assert_eq!(of(1, Some(Level::Raid6), Some(5), 5).unwrap(), [(6, 5)]);
        let refused = of(2, Some(Level::Raid5), None, 5).unwrap_err();
        assert_eq!(refused, Why::Resilience { level: Level::Raid5, members: 3, survives: 2 });
        let refused = of(1, Some(Level::Raid10), Some(5), 5).unwrap_err();
        assert!(matches!(refused, Why::Shape(RegionsError::Geometry(_))), "{refused}");
        assert!(matches!(of(200, None, None, 5), Err(Why::Shape(_))));
        assert_eq!(of(1, None, None, 100).unwrap().len(), 62 + 1 + 31);
    }
}
