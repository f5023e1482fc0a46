//! What is where on a member: the regions and their sizes.
//!
//! Every region is sized when the array is created. Offsets are multiples of 64 KiB. Arrays with
//! a log have a layout of their own, in [`logged`].

mod logged;
mod needs;

pub use logged::{LoggedShape, plan_logged};
pub use needs::{CHUNK_USUAL, Needs, STRIPES_USUAL_MAX, usual_chunk};

use crate::geometry::{Geometry, GeometryError, Level, SIZE_MAX};

/// Bytes of a page of metadata; each is written whole.
pub const PAGE_LEN: u32 = 4096;
/// Bytes of a page that carry its contents; the rest is its header.
pub const PAGE_PAYLOAD_LEN: u32 = PAGE_LEN - 64;
/// Where the two copies of the label are.
pub const LABEL_OFFSETS: [u64; 2] = [0, 32 << 10];
/// Where the two slots of the checkpoint are.
pub const CHECKPOINT_OFFSETS: [u64; 2] = [16 << 10, 48 << 10];
/// Where the two slots of the list of snapshots are.
pub const LIST_OFFSETS: [u64; 2] = [4 << 10, 36 << 10];
/// Bytes of a slot of the list of snapshots.
pub const LIST_LEN: u32 = 12 << 10;
/// Where a member's counters of errors are, in two slots.
pub const HISTORY_OFFSETS: [u64; 2] = [20 << 10, 52 << 10];
/// Bytes of a slot of counters and history.
pub const HISTORY_LEN: u32 = PAGE_LEN;
/// Where the heartbeats of a member's engine are, in two slots.
pub const HEARTBEAT_OFFSETS: [u64; 2] = [24 << 10, 56 << 10];
/// Bytes at each end of a member that must be zero before it is taken without `--force`.
pub const SIGNATURE_LEN: u64 = 1 << 20;

const ALIGN: u64 = 64 << 10;
const DATA_ALIGN: u64 = 1 << 20;
/// A log half on members that have room for it.
const LOG_HALF_MAX: u64 = 128 << 20;
/// One CRC32C for each 4 KiB of a chunk.
const SUM_LEN: u64 = 4;
/// A stripe's entry in the map: physical stripe and incarnation.
const MAP_ENTRY_LEN: u64 = 16;

/// A range of bytes on a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Region {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl Region {
    /// The byte after the last.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// The regions of a member, in their order on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Regions {
    /// Both label copies.
    pub labels: Region,
    /// Written bits, one per stripe, in two slots a page.
    pub written: Region,
    /// Stale bits, one per member and stripe (reserved).
    pub stale: Region,
    /// Map from logical to physical stripes (reserved).
    pub map: Region,
    /// Checksum pages (reserved).
    pub sums: Region,
    /// Log, two halves (reserved).
    pub log: Region,
    /// Chunks of stripes, the reserve included.
    pub data: Region,
}

impl Regions {
    /// The regions in the order of the label's table.
    #[must_use]
    pub const fn in_order(&self) -> [Region; 7] {
        let Self { labels, written, stale, map, sums, log, data } = *self;
        [labels, written, stale, map, sums, log, data]
    }

    pub(crate) fn in_order_mut(&mut self) -> [&mut Region; 7] {
        let Self { labels, written, stale, map, sums, log, data } = self;
        [labels, written, stale, map, sums, log, data]
    }

    /// Whether there is room for all that an array without a log has.
    pub(crate) fn hold(&self, geometry: &Geometry) -> bool {
        let data_len = geometry.stripes() * u64::from(geometry.chunk_len());
        self.data.len >= data_len && slots(geometry.stripes().div_ceil(8)) <= self.written.len
    }
}

/// Why no array fits on the members.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegionsError {
    /// The smallest member has no room for even a few stripes.
    #[error("smallest member has {capacity} bytes; at least {min} are needed")]
    TooSmall {
        /// Capacity of the smallest member.
        capacity: u64,
        /// What would be enough.
        min: u64,
    },
    /// A log in which the array's largest records have no room to follow each other.
    #[error("a log of {blocks} blocks of 4 KiB; this array needs {min} to 2^32")]
    Log {
        /// Blocks asked for.
        blocks: u64,
        /// What would be enough.
        min: u64,
    },
    /// A stripe whose checksums have no room in one record.
    #[error(
        "a stripe of {len} bytes on all members; at most {max} with a log: give a smaller chunk"
    )]
    Stripe {
        /// Bytes of all chunks of a stripe.
        len: u64,
        /// Most.
        max: u64,
    },
    /// Numbers of stripes that do not go together.
    #[error("{logical} stripes in {physical}; at least one and less than 2^32 - 1 in more of them")]
    Stripes {
        /// Stripes of the volume.
        logical: u64,
        /// Stripes on the members.
        physical: u64,
    },
    /// No members are large enough for such a volume.
    #[error(
        "a volume of {volume} bytes; at most {max} with this level, chunk and number of members: \
         give a larger chunk, or more members"
    )]
    Volume {
        /// Bytes asked for.
        volume: u64,
        /// Most.
        max: u64,
    },
    /// The shape itself is impossible.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
}

/// What decides a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// Level.
    pub level: Level,
    /// Number of members.
    pub members: usize,
    /// Bytes of a chunk.
    pub chunk_len: u32,
    /// Logical block of the volume: the largest of the members'.
    pub block_len: u32,
}

/// Lays out members of `capacity` bytes: as many stripes as fit and as there may be, less the
/// reserve.
///
/// # Errors
/// When the shape is refused or fewer than 16 stripes fit.
pub fn plan(wish: &Wish, capacity: u64) -> Result<(Regions, Geometry), RegionsError> {
    let Wish { level, members, chunk_len, block_len } = *wish;
    let check = Geometry::new(level, members, chunk_len, block_len, 0, 0)?;
    let log_half = (capacity / 128).clamp(ALIGN, LOG_HALF_MAX) / ALIGN * ALIGN;
    let fits = |stripes| {
        let data = lay_out(&check, stripes, log_half).data;
        let shape = Geometry::new(level, members, chunk_len, block_len, stripes, data.offset);
        data.end() <= capacity && shape.is_ok()
    };
    let (mut low, mut high) = (0, stripes_max(&check, capacity) + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    const STRIPES_MIN: u64 = 16;
    if low < STRIPES_MIN {
        let min = lay_out(&check, STRIPES_MIN, ALIGN).data.end();
        return Err(RegionsError::TooSmall { capacity, min: min.max(capacity + 1) });
    }
    let regions = lay_out(&check, low, log_half);
    let stripes = low - reserve(low);
    let geometry =
        Geometry::new(level, members, chunk_len, block_len, stripes, regions.data.offset)?;
    Ok((regions, geometry))
}

/// The smallest member capacity, in whole MiB, whose array has at least `volume` bytes, with a log
/// or without.
///
/// # Errors
/// As [`plan`] and [`plan_logged`], and when no capacity is enough.
pub fn member_capacity_for(wish: &Wish, log: bool, volume: u64) -> Result<u64, RegionsError> {
    let size = |capacity| {
        let planned = match log {
            true => plan_logged(wish, capacity, None),
            false => plan(wish, capacity),
        };
        planned.map(|(_, shape)| shape.capacity())
    };
    let max = size(SIZE_MAX)?;
    if volume > max {
        return Err(RegionsError::Volume { volume, max });
    }
    let enough = |mib: u64| size(mib << 20).is_ok_and(|size| size >= volume);
    let Wish { level, members, chunk_len, block_len } = *wish;
    let shape = Geometry::new(level, members, chunk_len, block_len, 0, 0)?;
    // Not enough: there are labels beside the data.
    let mut low = volume.div_ceil(shape.data_columns().into()) >> 20;
    let (mut step, most) = (low / 64 + 4, SIZE_MAX >> 20);
    let mut high = (low + step).min(most);
    while high < most && !enough(high) {
        low = high;
        step *= 2;
        high = (high + step).min(most);
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if enough(middle) { high = middle } else { low = middle }
    }
    Ok(high << 20)
}

/// No more stripes than this are on members of that capacity, nor in an array.
fn stripes_max(shape: &Geometry, capacity: u64) -> u64 {
    capacity.min(SIZE_MAX / u64::from(shape.members())) / u64::from(shape.chunk_len())
}

/// Stripes kept free so that full stripes always find room elsewhere: 1%, at least 256, but never
/// more than an eighth.
fn reserve(stripes: u64) -> u64 {
    (stripes / 100).max(256).min(stripes / 8)
}

fn lay_out(geometry: &Geometry, stripes: u64, log_half: u64) -> Regions {
    let members = u64::from(geometry.members());
    let copies = u64::from(geometry.check_columns()) + 1;
    let sums = members * (u64::from(geometry.chunk_len()) / 4096) * SUM_LEN * stripes;
    let mut end = 0;
    let mut place = |len: u64, align: u64| {
        let region = Region { offset: end, len: len.next_multiple_of(align) };
        end = region.end();
        region
    };
    let labels = place(ALIGN, ALIGN);
    let written = place(slots(stripes.div_ceil(8)), ALIGN);
    let stale = place(slots((members * stripes).div_ceil(8)), ALIGN);
    let map = place(slots(stripes * MAP_ENTRY_LEN), ALIGN);
    // Each sum page is on `copies` members; they are spread evenly.
    let sums = place(slots((sums * copies).div_ceil(members)), ALIGN);
    let log = place(log_half * 2, ALIGN);
    let offset = log.end().next_multiple_of(DATA_ALIGN);
    let data = Region { offset, len: stripes * u64::from(geometry.chunk_len()) };
    Regions { labels, written, stale, map, sums, log, data }
}

/// Bytes of two slots for each page that `payload` bytes fill.
const fn slots(payload: u64) -> u64 {
    2 * payload.div_ceil(PAGE_PAYLOAD_LEN as u64) * PAGE_LEN as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_follow_each_other_and_end_within_the_member() {
        for mib in [8_u64, 64, 300, 4096, 1 << 20, 16 << 20] {
            for (level, members) in [(Level::Raid0, 1), (Level::Raid1, 2), (Level::Raid5, 64)] {
                let wish = Wish { level, members, chunk_len: 64 << 10, block_len: 512 };
                let (regions, geometry) = plan(&wish, mib << 20).unwrap();
                let (order, data) = (regions.in_order(), regions.data);
                assert!(order.windows(2).all(|pair| pair[0].end() <= pair[1].offset));
                assert!(data.end() <= mib << 20);
                assert!(geometry.member_offset(geometry.stripes(), 0) <= data.end());
                if mib >= 1024 {
                    assert!(data.len > (mib << 20) / 100 * 90, "{mib} MiB: {data:?}");
                }
            }
        }
    }

    #[test]
    fn too_small_members_are_refused_with_what_would_do() {
        let wish = Wish { level: Level::Raid5, members: 5, chunk_len: 64 << 10, block_len: 512 };
        let Err(RegionsError::TooSmall { min, .. }) = plan(&wish, 1 << 20) else { panic!() };
        assert!(plan(&wish, min).is_ok());
    }

    #[test]
    fn the_capacity_asked_for_is_reached_also_near_what_there_may_be() {
        let size = |wish: &Wish, log, capacity| {
            let planned =
                if log { plan_logged(wish, capacity, None) } else { plan(wish, capacity) };
            planned.map(|(_, geometry)| geometry.capacity())
        };
        for (level, members) in [
            (Level::Raid0, 1),
            (Level::Raid0, 5),
            (Level::Raid1, 64),
            (Level::Raid5, 3),
            (Level::Raid6, 64),
            (Level::Raid10, 4),
        ] {
            for chunk_len in [4 << 10, 64 << 10, 1 << 20, 16 << 20] {
                let wish = Wish { level, members, chunk_len, block_len: 512 };
                let log = level != Level::Raid0;
                let Ok(max) = size(&wish, log, u64::MAX) else { continue };
                for volume in
                    [1, 1 << 30, 1 << 40, 1 << 50, 1 << 54, max - 1, max, max + 1, u64::MAX]
                {
                    let found = member_capacity_for(&wish, log, volume);
                    if volume > max {
                        assert_eq!(found, Err(RegionsError::Volume { volume, max }));
                        continue;
                    }
                    let found = found.unwrap();
                    assert!(size(&wish, log, found).unwrap() >= volume, "{wish:?} {volume}");
                    let less = size(&wish, log, found - (1 << 20));
                    assert!(less.is_err() || less.unwrap() < volume, "{wish:?} {volume}");
                }
            }
        }
    }

    #[test]
    fn the_capacity_asked_for_is_reached_and_not_by_much() {
        let wish = Wish { level: Level::Raid5, members: 5, chunk_len: 64 << 10, block_len: 512 };
        let capacity = member_capacity_for(&wish, false, 1 << 30).unwrap();
        assert!(plan(&wish, capacity).unwrap().1.capacity() >= 1 << 30);
        assert!(plan(&wish, capacity - (1 << 20)).unwrap().1.capacity() < 1 << 30);
        let logged = |capacity| plan_logged(&wish, capacity, None).unwrap().1.capacity();
        let capacity = member_capacity_for(&wish, true, 1 << 30).unwrap();
        assert!(logged(capacity) >= 1 << 30 && logged(capacity - (1 << 20)) < 1 << 30);
    }
}
