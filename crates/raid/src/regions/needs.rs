//! What an array with a log needs of the host that has it open, and the chunk that keeps that within bounds.
//!
//! Where each stripe is stands in memory while an array is open, and is read when it is opened: so the number of stripes
//! says how much memory an array takes, and how long it takes to be opened.

use super::Regions;
use crate::{
    format::Format,
    geometry::{CHUNK_LEN_MAX, Geometry, Level},
    log::{LOG_BLOCK_LEN, REMAP_SUMS_MAX},
    stripes::MEMORY_OF_A_STRIPE,
};

/// Physical stripes of an array at most, where its chunk is chosen for it: some 440 MB of memory.
pub const STRIPES_USUAL_MAX: u64 = 1 << 25;
/// The chunk of an array, where nothing else is asked for, and the members are not large.
pub const CHUNK_USUAL: u32 = 64 << 10;

/// What opening an array takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Bytes of memory for the stripe table, as long as the array is open; caches, which have bounds of their own, come
    /// beside that.
    pub memory: u64,
    /// Bytes of tables that are read from each member when the array is opened.
    pub read: u64,
}

/// The chunk for members of `capacity` bytes: 64 KiB. In an array with a log it is 128 KiB where members have more than 1 TiB,
/// and as much more as it takes for the array to have no more than [`STRIPES_USUAL_MAX`] stripes. It is no longer than one
/// record of the log has room for the checksums of, nor than `transfer_len` bytes, which members take in one transfer.
#[must_use]
pub fn usual_chunk(
    level: Level,
    members: usize,
    capacity: u64,
    transfer_len: u32,
    has_log: bool,
) -> u32 {
    let record = u64::from(REMAP_SUMS_MAX) * u64::from(LOG_BLOCK_LEN);
    let mut chunk = CHUNK_USUAL;
    let has_many = |chunk: u32| {
        let stripes = capacity / u64::from(chunk);
        // The shortest chunk is for fewer stripes: those of format 2 take twice as much to be read as those of format 1.
        let most = if chunk == CHUNK_USUAL { STRIPES_USUAL_MAX / 2 } else { STRIPES_USUAL_MAX };
        has_log && level != Level::Raid0 && stripes > most
    };
    while has_many(chunk) {
        let next = chunk * 2;
        if next > CHUNK_LEN_MAX.min(transfer_len) || u64::from(next) * members as u64 > record {
            break;
        }
        chunk = next;
    }
    chunk
}

impl Regions {
    /// What opening an array with a log takes that is laid out so.
    #[must_use]
    pub fn needs(&self, geometry: &Geometry, format: Format) -> Needs {
        let physical = self.physical_stripes(geometry);
        let pages = physical.div_ceil(format.stripes_per_page().into());
        Needs {
            memory: physical * MEMORY_OF_A_STRIPE,
            read: self.stripe_pages(geometry).region_len(pages),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regions::{Wish, plan_logged};

    const GIB: u64 = 1 << 30;
    const TIB: u64 = 1 << 40;

    #[test]
    fn the_usual_chunk_keeps_the_stripes_of_large_arrays_few() {
        let of = |members, capacity, transfer_len| {
            usual_chunk(Level::Raid5, members, capacity, transfer_len, true) >> 10
        };
        let chunk = |members, capacity| of(members, capacity, u32::MAX);
        assert_eq!([GIB, TIB].map(|capacity| chunk(5, capacity)), [64; 2]);
        assert_eq!([TIB + GIB, 2 * TIB].map(|capacity| chunk(5, capacity)), [128; 2]);
        assert_eq!(
            [3 * TIB, 4 * TIB, 25 * TIB].map(|capacity| chunk(5, capacity)),
            [128, 128, 1024]
        );
        // A record has room for the checksums of 64 MiB.
        assert_eq!([chunk(64, 25 * TIB), chunk(64, 500 * TIB)], [1024, 1024]);
        // Members take a chunk in one transfer.
        assert_eq!([chunk(3, 70 * TIB), of(3, 70 * TIB, 2 << 20)], [4096, 2048]);
        assert_eq!(of(3, 70 * TIB, (4 << 20) - 512), 2048);
        for level in [Level::Raid0, Level::Raid5] {
            assert_eq!(usual_chunk(level, 4, 100 * TIB, u32::MAX, false), CHUNK_USUAL);
        }
    }

    #[test]
    fn an_array_of_100_tib_needs_less_than_a_gibibyte_of_memory_and_of_reading() {
        for (level, members, capacity) in [
            (Level::Raid5, 5, 25 * TIB),
            (Level::Raid6, 12, 10 * TIB),
            (Level::Raid10, 8, 25 * TIB),
        ] {
            let chunk_len = usual_chunk(level, members, capacity, 2 << 20, true);
            let wish = Wish { level, members, chunk_len, block_len: 512 };
            let (regions, geometry) = plan_logged(&wish, capacity, None).unwrap();
            assert!(geometry.capacity() > 95 * TIB, "{level:?}: {}", geometry.capacity());
            let needs = regions.needs(&geometry, Format::Two);
            assert!(needs.memory < GIB / 2, "{level:?}: {needs:?}");
            assert!(needs.read < GIB / 2, "{level:?}: {needs:?}");
            assert!(needs.read <= regions.map.len);
        }
    }
}
