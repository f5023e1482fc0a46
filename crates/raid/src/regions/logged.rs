//! The layout of an array with a log: labels and checkpoints, stripe table, checksums, log, data.

use super::{ALIGN, DATA_ALIGN, Region, Regions, RegionsError, Wish, reserve};
use crate::{
    geometry::{Geometry, Level},
    log::{BATCHES_PER_RING_MIN, LOG_BLOCK_LEN, REMAP_SUMS_MAX, remap_blocks},
    pages::TablePages,
    stripes::STRIPES_PER_PAGE,
    sums::SumLayout,
};

/// The longest log, unless another is asked for.
const LOG_LEN_MAX: u64 = 256 << 20;
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
        let regions = lay_out(&check, physical, blocks);
        let offset = regions.data.offset;
        // Also the stripes in reserve must be where something can be.
        Geometry::new(level, members, chunk_len, block_len, physical, offset)?;
        let geometry = Geometry::new(level, members, chunk_len, block_len, logical, offset)?;
        Ok((regions, geometry))
    }
}

/// Lays out members of `capacity` bytes with a log of `log_blocks` blocks of 4 KiB, or of a 64th
/// of the capacity: as many stripes as fit, less the reserve.
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
    let usual = (capacity / 64).min(LOG_LEN_MAX) / ALIGN * ALIGN / u64::from(LOG_BLOCK_LEN);
    let log_blocks = log_blocks.unwrap_or(usual.max(min));
    let shape = |physical_stripes| LoggedShape {
        level,
        members,
        chunk_len,
        block_len,
        logical_stripes: physical_stripes - reserve(physical_stripes),
        physical_stripes,
        log_blocks,
    };
    // What is refused whatever the members' capacity.
    let (smallest, _) = shape(PHYSICAL_STRIPES_MIN).layout()?;
    if smallest.data.end() > capacity {
        let least = LoggedShape { log_blocks: log_blocks.min(min), ..shape(PHYSICAL_STRIPES_MIN) };
        let min = least.layout()?.0.data.end();
        return Err(RegionsError::TooSmall { capacity, min: min.max(capacity + 1) });
    }
    let fits = |physical| lay_out(&check, physical, log_blocks).data.end() <= capacity;
    let most = (capacity / u64::from(chunk_len)).min(PHYSICAL_STRIPES_MAX);
    let (mut low, mut high) = (PHYSICAL_STRIPES_MIN, most + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    shape(low).layout()
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
    pub(crate) fn hold_logged(&self, geometry: &Geometry) -> bool {
        let physical = self.physical_stripes(geometry);
        let stripes = 1..physical.min(PHYSICAL_STRIPES_MAX + 1);
        let needed = lay_out(geometry, physical.min(PHYSICAL_STRIPES_MAX), 0);
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
    let largest = remap_blocks(sums).max(u32::from(geometry.check_columns()) + 1);
    (u64::from(largest) * BATCHES_PER_RING_MIN).max(LOG_BLOCKS_MIN)
}

fn lay_out(geometry: &Geometry, physical: u64, log_blocks: u64) -> Regions {
    let table = TablePages::new(geometry, 0);
    let sums = SumLayout::new(geometry.members(), geometry.chunk_len() / LOG_BLOCK_LEN);
    let mut end = 0;
    let mut place = |len: u64| {
        let region = Region { offset: end, len: len.next_multiple_of(ALIGN) };
        end = region.end();
        region
    };
    let labels = place(ALIGN);
    let map = place(table.region_len(physical.div_ceil(STRIPES_PER_PAGE.into())));
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
