//! Which disk accesses a request is, by the layout and the planning of production.

use core::ops::Range;

use netraid_raid::{
    geometry::{Geometry, GeometryError, Level, Rows, Segment},
    write_plan::{ParityPlan, SegmentChoice},
};

use crate::config::Config;

/// Bytes of a logical block.
const BLOCK_LEN: u32 = 512;

/// Bytes in a row on one disk, for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) disk: usize,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

/// What a write does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WritePlan {
    /// Old data and old check data that the new check data depends on.
    pub(crate) reads: Vec<Access>,
    /// New data and check data.
    pub(crate) writes: Vec<Access>,
    /// Bytes that go into check data, for each check column.
    pub(crate) parity_bytes: u64,
    /// Check data.
    pub(crate) check_bytes: u64,
}

impl Config {
    /// The array's shape. Disks that are too few for data and check data are copies.
    pub(crate) fn geometry(&self) -> Result<Geometry, GeometryError> {
        let level = match (self.level, self.disks) {
            (5, 2) | (6, 2 | 3) => Level::Raid1,
            (0, _) | (_, 1) => Level::Raid0,
            (5, _) => Level::Raid5,
            _ => Level::Raid6,
        };
        let shape = |stripes| {
            let unit = self.transfer_unit_bytes;
            Geometry::new(level, self.disks, unit, BLOCK_LEN, stripes, 0)
        };
        let stripe = shape(1)?.stripe_data_len();
        shape((self.workload.data_set_bytes / stripe).clamp(1, netraid_raid::geometry::STRIPES_MAX))
    }

    /// Bytes of a request.
    pub(crate) fn request_bytes(&self, geometry: &Geometry) -> u64 {
        let stripes = self.workload.request_stripes.unwrap_or(1);
        let whole = stripes.saturating_mul(geometry.stripe_data_len());
        self.workload.request_bytes.unwrap_or(whole)
    }
}

/// The accesses of a read.
pub(crate) fn read_plan(geometry: &Geometry, range: &Range<u64>, max: u32) -> Vec<Access> {
    let mut accesses = Accesses::new(max);
    for (stripe, part) in stripes(geometry, range) {
        for segment in geometry.segments(&part) {
            for column in segment.columns.clone() {
                accesses.add(geometry, stripe, column, &segment.rows);
            }
        }
    }
    accesses.list
}

/// The accesses of a write to stripes that were written before.
pub(crate) fn write_plan(geometry: &Geometry, range: &Range<u64>, max: u32) -> WritePlan {
    let (mut reads, mut writes) = (Accesses::new(max), Accesses::new(max));
    let mut plan = WritePlan::default();
    let (data, members) = (geometry.data_columns(), geometry.members());
    for (stripe, part) in stripes(geometry, range) {
        for segment in geometry.segments(&part) {
            let sources = plan_reads(geometry, stripe, &segment, &mut reads);
            let rows = u64::from(segment.len());
            plan.parity_bytes += rows * sources * u64::from(geometry.check_columns());
            plan.check_bytes += rows * u64::from(geometry.check_columns());
            for column in segment.columns.clone().chain(data..members) {
                writes.add(geometry, stripe, column, &segment.rows);
            }
        }
    }
    WritePlan { reads: reads.list, writes: writes.list, ..plan }
}

/// Adds what is read before a segment is written; gives how many columns its check data is
/// computed from.
fn plan_reads(geometry: &Geometry, stripe: u64, segment: &Segment, reads: &mut Accesses) -> u64 {
    let (data, members) = (geometry.data_columns(), geometry.members());
    let choice = SegmentChoice {
        data_columns: data,
        written: segment.columns.clone(),
        check_live: members > data,
        check_readable: members > data,
    };
    let written = segment.columns.len() as u64;
    match choice.plan(|_| true) {
        None | Some(ParityPlan::None) => 0,
        Some(ParityPlan::Full) => written,
        Some(ParityPlan::Rcw) => {
            for column in (0..data).filter(|column| !segment.columns.contains(column)) {
                reads.add(geometry, stripe, column, &segment.rows);
            }
            u64::from(data)
        }
        Some(ParityPlan::Rmw) => {
            for column in segment.columns.clone().chain(data..members) {
                reads.add(geometry, stripe, column, &segment.rows);
            }
            2 * written + 1
        }
    }
}

/// The parts of a range of the volume by stripes.
fn stripes(geometry: &Geometry, range: &Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
    let len = geometry.stripe_data_len();
    let (start, end) = (range.start, range.end);
    (start / len..end.div_ceil(len)).map(move |stripe| {
        let first = stripe * len;
        (stripe, start.max(first) - first..end.min(first + len) - first)
    })
}

/// Accesses, those of one disk put together where they are in a row.
struct Accesses {
    list: Vec<Access>,
    max: u32,
}

impl Accesses {
    const fn new(max: u32) -> Self {
        Self { list: Vec::new(), max }
    }

    fn add(&mut self, geometry: &Geometry, stripe: u64, column: u8, rows: &Rows) {
        let disk = usize::from(geometry.member_of(stripe, column).0);
        let offset = geometry.member_offset(stripe, rows.start);
        let len = rows.end - rows.start;
        let last = self.list.iter_mut().rev().find(|access| access.disk == disk);
        match last {
            Some(last)
                if last.offset + u64::from(last.len) == offset
                    && last.len.saturating_add(len) <= self.max =>
            {
                last.len += len;
            }
            Some(_) | None => self.list.push(Access { disk, offset, len }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = 4096;

    fn shape(level: Level, members: usize) -> Geometry {
        Geometry::new(level, members, 4096, 512, 100, 0).unwrap()
    }

    #[test]
    fn a_stripe_is_an_access_of_each_disk() {
        let geometry = shape(Level::Raid5, 5);
        let plan = write_plan(&geometry, &(0..4 * CHUNK), 4096);
        assert!(plan.reads.is_empty());
        assert_eq!(plan.writes.len(), 5);
        assert_eq!((plan.parity_bytes, plan.check_bytes), (4 * CHUNK, CHUNK));
        let read = read_plan(&geometry, &(0..4 * CHUNK), 4096);
        assert!(read.iter().all(|access| access.disk != 4), "the parity of stripe 0 is on disk 4");
        assert_eq!(read.len(), 4);
    }

    #[test]
    fn part_of_a_stripe_reads_what_production_reads() {
        let geometry = shape(Level::Raid5, 6);
        let small = write_plan(&geometry, &(0..CHUNK), 4096);
        assert_eq!((small.reads.len(), small.writes.len()), (2, 2), "read-modify-write");
        assert_eq!(small.parity_bytes, 3 * CHUNK);
        let large = write_plan(&geometry, &(0..4 * CHUNK), 4096);
        assert_eq!((large.reads.len(), large.writes.len()), (1, 5), "reconstruct write");
        assert_eq!(large.parity_bytes, 5 * CHUNK);
        let both = write_plan(&shape(Level::Raid6, 6), &(0..4 * CHUNK), 4096);
        assert_eq!((both.parity_bytes, both.check_bytes), (8 * CHUNK, 2 * CHUNK));
    }

    #[test]
    fn what_is_in_a_row_on_a_disk_is_one_access_up_to_the_longest() {
        let geometry = shape(Level::Raid0, 2);
        let lens = |max| -> Vec<u32> {
            read_plan(&geometry, &(0..8 * CHUNK), max).iter().map(|access| access.len).collect()
        };
        assert_eq!(lens(4096), [4096; 8]);
        assert_eq!(lens(16384), [16384; 2]);
        // Rows of one chunk that two segments have.
        let odd = read_plan(&geometry, &(512..CHUNK + 1024), 4096);
        assert_eq!(odd.iter().map(|access| access.len).sum::<u32>(), 4096 - 512 + 1024);
        assert_eq!(odd.len(), 2);
    }
}
