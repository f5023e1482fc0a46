//! The layout of an array with a log: labels and checkpoints, stripe table, checksums, log, data.

use super::{ALIGN, DATA_ALIGN, Region, Regions, RegionsError, Wish, reserve, stripes_max};
use crate::{
    format::Format,
    geometry::{Geometry, Level},
    log::{BATCHES_PER_RING_MIN, LOG_BLOCK_LEN, REMAP_SUMS_MAX, remap_blocks},
    pages::TablePages,
    sums::SumLayout,
};

/// The longest log, unless another is asked for.
const LOG_LEN_MAX: u64 = 256 << 20;
/// What a small member gives for it, up to a 16th of itself: each time that the log is full, writers
/// wait for a round, whose flushes cost the same however little it brings home.
const LOG_LEN_USUAL: u64 = 32 << 20;
/// Blocks of the shortest log: room for a few batches beside what recoveries keep for themselves.
const LOG_BLOCKS_MIN: u64 = 32;
/// Blocks of a log at most: what is in it is kept account of in memory.
const LOG_BLOCKS_MAX: u64 = 1 << 32;
/// Numbers of stripes are 32 bits wide, and one more than the largest is still a number.
const PHYSICAL_STRIPES_MAX: u64 = u32::MAX as u64 - 1;
/// Fewest physical stripes that are worth an array.
const PHYSICAL_STRIPES_MIN: u64 = 16;

/// Everything that decides the layout of an array with a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedShape {
    /// Level.
    pub level: Level,
    /// Number of members.
    pub members: usize,
    /// Bytes of a chunk.
    pub chunk_len: u32,
    /// Logical block of the volume.
    pub block_len: u32,
    /// Stripes of the volume.
    pub logical_stripes: u64,
    /// Stripes on the members: those of the volume and the reserve.
    pub physical_stripes: u64,
    /// Length of the log in blocks of 4 KiB.
    pub log_blocks: u64,
    /// What its tables can say.
    pub format: Format,
}

impl LoggedShape {
    /// Where everything is.
    ///
    /// # Errors
    /// When the shape is refused.
    pub fn layout(&self) -> Result<(Regions, Geometry), RegionsError> {
        let Self { level, members, chunk_len, block_len, .. } = *self;
        let (logical, physical) = (self.logical_stripes, self.physical_stripes);
        let check = Geometry::new(level, members, chunk_len, block_len, 0, 0)?;
        check_stripe(&check)?;
        if logical == 0 || logical >= physical || physical > PHYSICAL_STRIPES_MAX {
            return Err(RegionsError::Stripes { logical, physical });
        }
        let (blocks, min) = (self.log_blocks, log_blocks_min(&check));
        if !(min..=LOG_BLOCKS_MAX).contains(&blocks) {
            return Err(RegionsError::Log { blocks, min });
        }
        let regions = lay_out(&check, self.format, physical, blocks);
        let offset = regions.data.offset;
        // Also the stripes in reserve must be where something can be.
        Geometry::new(level, members, chunk_len, block_len, physical, offset)?;
        let geometry = Geometry::new(level, members, chunk_len, block_len, logical, offset)?;
        Ok((regions, geometry))
    }
}

/// Lays out members of `capacity` bytes with a log of `log_blocks` blocks of 4 KiB, or of the
/// usual length (`usual_log`): as many stripes as fit and as there may be, less the reserve.
///
/// # Errors
/// When the shape is refused or fewer than 16 stripes fit.
pub fn plan_logged(
    wish: &Wish,
    capacity: u64,
    log_blocks: Option<u64>,
) -> Result<(Regions, Geometry), RegionsError> {
    let Wish { level, members, chunk_len, block_len } = *wish;
    let check = Geometry::new(level, members, chunk_len, block_len, 0, 0)?;
    check_stripe(&check)?;
    let min = log_blocks_min(&check);
    let usual = usual_log(capacity) / u64::from(LOG_BLOCK_LEN);
    let asked = log_blocks;
    let log_blocks = asked.unwrap_or(usual.max(min));
    let shape = |physical_stripes| LoggedShape {
        level,
        members,
        chunk_len,
        block_len,
        logical_stripes: physical_stripes - reserve(physical_stripes),
        physical_stripes,
        log_blocks,
        format: Format::Two,
    };
    // What is refused whatever the members' capacity.
    let (smallest, _) = shape(PHYSICAL_STRIPES_MIN).layout()?;
    if smallest.data.end() > capacity {
        let least = asked.unwrap_or(min);
        let least = LoggedShape { log_blocks: least, ..shape(PHYSICAL_STRIPES_MIN) };
        let min = least.layout()?.0.data.end();
        return Err(RegionsError::TooSmall { capacity, min: min.max(capacity + 1) });
    }
    let fits = |physical| {
        let data = lay_out(&check, Format::Two, physical, log_blocks).data;
        let shape = Geometry::new(level, members, chunk_len, block_len, physical, data.offset);
        data.end() <= capacity && shape.is_ok()
    };
    let most = stripes_max(&check, capacity).min(PHYSICAL_STRIPES_MAX);
    let (mut low, mut high) = (PHYSICAL_STRIPES_MIN, most + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    shape(low).layout()
}

/// Bytes of the log on members of `capacity` bytes, where nothing else is asked for: a 64th and at most
/// 256 MiB, but on members below 2 GiB 32 MiB, or a 16th where that is less.
fn usual_log(capacity: u64) -> u64 {
    (capacity / 64).min(LOG_LEN_MAX).max((capacity / 16).min(LOG_LEN_USUAL)) / ALIGN * ALIGN
}

impl Regions {
    /// Number of physical stripes.
    #[must_use]
    pub const fn physical_stripes(&self, geometry: &Geometry) -> u64 {
        self.data.len / geometry.chunk_len() as u64
    }

    /// Blocks of the log.
    #[must_use]
    pub const fn log_blocks(&self) -> u64 {
        self.log.len / LOG_BLOCK_LEN as u64
    }

    /// Where the pages of the stripe table are.
    #[must_use]
    pub fn stripe_pages(&self, geometry: &Geometry) -> TablePages {
        TablePages::new(geometry, self.map.offset)
    }

    /// Where the pages of checksums are.
    #[must_use]
    pub fn sum_pages(&self, geometry: &Geometry) -> TablePages {
        TablePages::new(geometry, self.sums.offset)
    }

    /// Whether there is room for all that an array with a log has, where it can be addressed.
    pub(crate) fn hold_logged(&self, geometry: &Geometry, format: Format) -> bool {
        let physical = self.physical_stripes(geometry);
        let stripes = 1..physical.min(PHYSICAL_STRIPES_MAX + 1);
        let needed = lay_out(geometry, format, physical.min(PHYSICAL_STRIPES_MAX), 0);
        let log = log_blocks_min(geometry)..=LOG_BLOCKS_MAX;
        let is_aligned = |region: &Region| region.offset.is_multiple_of(LOG_BLOCK_LEN.into());
        physical <= PHYSICAL_STRIPES_MAX
            && stripes.contains(&geometry.stripes())
            && check_stripe(geometry).is_ok()
            && self.labels.offset == 0
            && self.labels.len >= ALIGN
            && self.map.len >= needed.map.len
            && self.sums.len >= needed.sums.len
            && self.log.len.is_multiple_of(LOG_BLOCK_LEN.into())
            && log.contains(&self.log_blocks())
            && self.in_order().iter().all(is_aligned)
    }
}

/// Every change of a stripe's place is one record with all of its checksums.
fn check_stripe(geometry: &Geometry) -> Result<(), RegionsError> {
    let len = u64::from(geometry.members()) * u64::from(geometry.chunk_len());
    let max = u64::from(REMAP_SUMS_MAX) * u64::from(LOG_BLOCK_LEN);
    if len <= max { Ok(()) } else { Err(RegionsError::Stripe { len, max }) }
}

/// Blocks of a log in which the largest records of such an array have room.
fn log_blocks_min(geometry: &Geometry) -> u64 {
    let sums = u32::from(geometry.members()) * (geometry.chunk_len() / LOG_BLOCK_LEN);
    // A PARITY has a row's check blocks behind one block of head.
    let largest = remap_blocks(geometry.chunk_len() / LOG_BLOCK_LEN, sums)
        .max(u32::from(geometry.check_columns()) + 1);
    (u64::from(largest) * BATCHES_PER_RING_MIN).max(LOG_BLOCKS_MIN)
}

fn lay_out(geometry: &Geometry, format: Format, physical: u64, log_blocks: u64) -> Regions {
    let table = TablePages::new(geometry, 0);
    let sums = SumLayout::new(geometry.members(), geometry.chunk_len() / LOG_BLOCK_LEN);
    let mut end = 0;
    let mut place = |len: u64| {
        let region = Region { offset: end, len: len.next_multiple_of(ALIGN) };
        end = region.end();
        region
    };
    let labels = place(ALIGN);
    let map = place(table.region_len(physical.div_ceil(format.stripes_per_page().into())));
    let sums = place(table.region_len(sums.pages(physical)));
    let log = Region { len: log_blocks * u64::from(LOG_BLOCK_LEN), ..place(0) };
    let data = Region {
        offset: log.end().next_multiple_of(DATA_ALIGN),
        len: physical * u64::from(geometry.chunk_len()),
    };
    let none = |offset| Region { offset, len: 0 };
    let (written, stale) = (none(labels.end()), none(labels.end()));
    Regions { labels, written, stale, map, sums, log, data }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{log::Ring, member::MemberIndex, pages::PAIR_LEN};
    use rand::{Rng, SeedableRng, rngs::StdRng};

    const LEVELS: [(Level, usize); 8] = [
        (Level::Raid0, 1),
        (Level::Raid1, 2),
        (Level::Raid1, 5),
        (Level::Raid5, 5),
        (Level::Raid5, 64),
        (Level::Raid6, 6),
        (Level::Raid10, 4),
        (Level::Raid10, 8),
    ];

    fn tiny() -> LoggedShape {
        LoggedShape {
            level: Level::Raid5,
            members: 4,
            chunk_len: 8192,
            block_len: 512,
            logical_stripes: 40,
            physical_stripes: 48,
            log_blocks: 64,
            format: Format::Two,
        }
    }

    fn check(regions: &Regions, geometry: &Geometry, format: Format) {
        let order = regions.in_order();
        assert!(order.windows(2).all(|pair| pair[0].end() <= pair[1].offset), "{regions:?}");
        assert!(order.iter().all(|region| region.offset.is_multiple_of(ALIGN)));
        assert!(regions.data.offset.is_multiple_of(DATA_ALIGN));
        assert!(regions.hold_logged(geometry, format));
        let physical = regions.physical_stripes(geometry);
        assert!(geometry.stripes() < physical && physical < u64::from(u32::MAX));
        assert_eq!(regions.data.len, physical * u64::from(geometry.chunk_len()));
        // The last pages of both tables are in their regions, on all that hold them.
        let rows = geometry.chunk_len() / LOG_BLOCK_LEN;
        let sums = SumLayout::new(geometry.members(), rows);
        let last = sums.place(physical - 1, rows - 1).page;
        let table = (physical - 1) / u64::from(format.stripes_per_page());
        for (page, pages, region) in [
            (last, regions.sum_pages(geometry), regions.sums),
            (table, regions.stripe_pages(geometry), regions.map),
        ] {
            for page in page.saturating_sub(70)..=page {
                for holder in pages.holders(page).iter() {
                    let offset = pages.offset(page, holder);
                    assert!(region.offset <= offset && offset + PAIR_LEN <= region.end());
                }
            }
        }
    }

    #[test]
    fn regions_follow_each_other_and_have_room_for_what_they_are_for() {
        let mut rng = StdRng::seed_from_u64(1);
        for _ in 0..500 {
            let (level, members) = LEVELS[rng.random_range(0..LEVELS.len())];
            let chunk_len = 4096 << rng.random_range(0..8);
            let wish = Wish { level, members, chunk_len, block_len: 512 };
            let bits = rng.random_range(28..45);
            let capacity = rng.random_range(100 << 20..1_u64 << bits);
            let (regions, geometry) = plan_logged(&wish, capacity, None).unwrap();
            check(&regions, &geometry, Format::Two);
            assert!(regions.data.end() <= capacity);
            let log = regions.log.len;
            assert!(log <= LOG_LEN_MAX && log <= capacity / 16);
            assert!(log <= LOG_LEN_USUAL || log == LOG_LEN_MAX || log <= capacity / 64);
            assert!(log >= (capacity / 16).min(LOG_LEN_USUAL) / ALIGN * ALIGN);
            // Nothing more would have fit, or could be counted.
            let physical = regions.physical_stripes(&geometry);
            let more = LoggedShape {
                level,
                members,
                chunk_len,
                block_len: 512,
                logical_stripes: geometry.stripes(),
                physical_stripes: physical + 1,
                log_blocks: regions.log_blocks(),
                format: Format::Two,
            };
            let more = more.layout();
            assert!(more.is_err() || more.is_ok_and(|(more, _)| more.data.end() > capacity));
            let spare = physical - geometry.stripes();
            assert_eq!(spare, (physical / 100).max(256).min(physical / 8));
        }
    }

    #[test]
    fn large_members_are_used_nearly_whole() {
        for (level, members) in LEVELS {
            let wish = Wish { level, members, chunk_len: 64 << 10, block_len: 512 };
            for gib in [16_u64, 1 << 10, 16 << 10] {
                let (regions, geometry) = plan_logged(&wish, gib << 30, None).unwrap();
                let used = geometry.stripes() * u64::from(geometry.chunk_len());
                assert!(used > (gib << 30) / 100 * 96, "{level:?} of {members}: {regions:?}");
            }
        }
    }

    #[test]
    fn a_shape_is_laid_out_as_it_says_down_to_the_smallest() {
        for (level, members) in LEVELS {
            for chunk_len in [4096, 8192] {
                let shape = LoggedShape { level, members, chunk_len, ..tiny() };
                for format in [Format::One, Format::Two] {
                    let shape = LoggedShape { log_blocks: 1024, format, ..shape };
                    let (regions, geometry) = shape.layout().unwrap();
                    check(&regions, &geometry, format);
                    let stripes = (geometry.stripes(), regions.physical_stripes(&geometry));
                    assert_eq!((stripes, regions.log_blocks()), ((40, 48), 1024));
                }
            }
        }
        let least =
            LoggedShape { logical_stripes: 1, physical_stripes: 2, log_blocks: 32, ..tiny() };
        let (regions, geometry) = least.layout().unwrap();
        check(&regions, &geometry, Format::Two);
        assert!(regions.data.offset <= DATA_ALIGN, "{regions:?}");
    }

    #[test]
    fn impossible_shapes_are_refused_with_what_would_do() {
        let refused = |shape: LoggedShape| shape.layout().unwrap_err();
        for (logical_stripes, physical_stripes) in [(0, 48), (48, 48), (40, u64::from(u32::MAX))] {
            let error = refused(LoggedShape { logical_stripes, physical_stripes, ..tiny() });
            assert!(matches!(error, RegionsError::Stripes { .. }), "{error}");
        }
        let most = LoggedShape { physical_stripes: u64::from(u32::MAX) - 1, ..tiny() };
        assert!(most.layout().is_ok());
        let short = refused(LoggedShape { log_blocks: 31, ..tiny() });
        assert_eq!(short, RegionsError::Log { blocks: 31, min: 32 });
        // 64 MiB of chunks fit into one record, in a ring of four of them; more do not.
        let wide = LoggedShape { level: Level::Raid0, members: 64, chunk_len: 1 << 20, ..tiny() };
        assert_eq!(refused(wide), RegionsError::Log { blocks: 64, min: 68 });
        let (regions, _) = LoggedShape { log_blocks: 68, ..wide }.layout().unwrap();
        assert_eq!(Ring::new(regions.log_blocks()).batch_blocks_max(), 17);
        let wider = refused(LoggedShape { chunk_len: 2 << 20, ..wide });
        assert_eq!(wider, RegionsError::Stripe { len: 128 << 20, max: 64 << 20 });
    }

    #[test]
    fn too_small_members_are_refused_with_what_would_do() {
        for (level, members) in LEVELS {
            for log_blocks in [None, Some(2000)] {
                let wish = Wish { level, members, chunk_len: 64 << 10, block_len: 512 };
                let Err(RegionsError::TooSmall { min, .. }) = plan_logged(&wish, 0, log_blocks)
                else {
                    panic!("an array on nothing")
                };
                let (regions, geometry) = plan_logged(&wish, min, log_blocks).unwrap();
                check(&regions, &geometry, Format::Two);
                assert!(plan_logged(&wish, min - 1, log_blocks).is_err());
            }
        }
    }

    #[test]
    fn a_label_whose_regions_lack_room_is_noticed() {
        let (regions, geometry) = tiny().layout().unwrap();
        let (more_regions, _) =
            LoggedShape { physical_stripes: 60_000, ..tiny() }.layout().unwrap();
        type Change = fn(&mut Regions);
        let changes: [Change; 8] = [
            |regions| regions.labels.len -= 1,
            |regions| regions.labels.offset += 4096,
            |regions| regions.log.len -= 1,
            |regions| regions.log.len = 31 << 12,
            |regions| regions.log.offset += 512,
            |regions| regions.data.offset += 512,
            |regions| regions.data.len = 40 << 13,
            |regions| regions.data.len = u64::from(u32::MAX) << 13,
        ];
        assert!(regions.hold_logged(&geometry, Format::Two));
        for (at, change) in changes.into_iter().enumerate() {
            let mut bad = regions;
            change(&mut bad);
            assert!(!bad.hold_logged(&geometry, Format::Two), "change {at}");
        }
        let physical = regions.physical_stripes(&geometry);
        assert_eq!(regions.sum_pages(&geometry).holders(3).iter().next(), Some(MemberIndex(0)));
        for few in [
            Regions { map: regions.map, ..more_regions },
            Regions { sums: regions.sums, ..more_regions },
        ] {
            assert!(
                !few.hold_logged(&geometry, Format::Two),
                "tables of {physical} stripes for 60000"
            );
        }
    }
}
