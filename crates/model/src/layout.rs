//! Which disk accesses a request is, by the layout and the planning of production.

use core::ops::Range;
use std::collections::BTreeMap;

use netraid_block::narrow;
use netraid_raid::{
    code::{Code, ColumnSet, Recipe},
    geometry::{Geometry, GeometryError, Level, Rows, Segment},
    write_plan::{ParityPlan, SegmentChoice},
};

use crate::{config::Config, presence::Presence};

/// Bytes of a logical block.
const BLOCK_LEN: u32 = 512;
/// Bytes of a block of the log.
pub(crate) const BLOCK: u32 = 4096;

/// Bytes in a row on one disk, for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) disk: usize,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

impl Access {
    /// Whether all of `other` is in it.
    pub(crate) fn contains(&self, other: &Self) -> bool {
        let ends = |access: &Self| access.offset + u64::from(access.len);
        self.disk == other.disk && self.offset <= other.offset && ends(other) <= ends(self)
    }

    /// Whether `other` goes on where it ends.
    pub(crate) fn ends_at(&self, other: &Self) -> bool {
        self.disk == other.disk && self.offset + u64::from(self.len) == other.offset
    }

    /// Its parts by chunks of `len` bytes.
    pub(crate) fn pieces(&self, len: u32) -> impl Iterator<Item = Self> {
        let Self { disk, offset, len: whole } = *self;
        let mut done = 0;
        core::iter::from_fn(move || {
            let at = offset + u64::from(done);
            let within: u32 = narrow(at % u64::from(len));
            let piece = Self { disk, offset: at, len: (len - within).min(whole - done) };
            done += piece.len;
            (piece.len > 0).then_some(piece)
        })
    }
}

/// What a request does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Of a read, all; of a write, old data and old check data that the new check data depends on.
    pub(crate) reads: Vec<Access>,
    /// New data and check data.
    pub(crate) writes: Vec<Access>,
    /// Bytes that go into check data, for each check column, or into what disks that are away had.
    pub(crate) parity_bytes: u64,
    /// Of a read or a write of users' bytes: stripes of which something is computed.
    pub(crate) check_pieces: u64,
    /// Check data.
    pub(crate) check_bytes: u64,
}

/// Where things are, and which disks are there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout<'a> {
    pub(crate) geometry: &'a Geometry,
    pub(crate) presence: Presence,
    /// Longest access.
    pub(crate) access_bytes_max: u32,
}

impl Config {
    /// The array's shape. Disks that are too few for data and check data are copies.
    pub(crate) fn geometry(&self) -> Result<Geometry, GeometryError> {
        let level = match (self.level, self.disks) {
            (5 | 10, 2) | (6, 2 | 3) => Level::Raid1,
            (0, _) | (_, 1) => Level::Raid0,
            (5, _) => Level::Raid5,
            (10, _) => Level::Raid10,
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

impl Layout<'_> {
    /// The accesses of a read. What is on a disk that is away is computed from others, each of which
    /// is read once, whoever needs it.
    pub(crate) fn read(&self, range: &Range<u64>) -> Plan {
        let mut reads = Accesses::new(self.access_bytes_max);
        let mut plan = Plan::default();
        for (stripe, part) in stripes(self.geometry, range) {
            let before = plan.parity_bytes;
            for segment in self.geometry.segments(&part) {
                let mut columns = ColumnSet::EMPTY;
                let sources = self.sources(stripe, segment.columns.clone(), &mut columns);
                plan.parity_bytes += u64::from(segment.len()) * sources;
                for column in columns.iter() {
                    reads.add(self.geometry, stripe, column, &segment.rows);
                }
            }
            plan.check_pieces += u64::from(plan.parity_bytes > before);
        }
        Plan { reads: reads.list, ..plan }
    }

    /// The accesses of a write to stripes that were written before.
    pub(crate) fn write(&self, range: &Range<u64>) -> Plan {
        let geometry = self.geometry;
        let max = self.access_bytes_max;
        let (mut reads, mut writes) = (Accesses::new(max), Accesses::new(max));
        let mut plan = Plan::default();
        let (data, members) = (geometry.data_columns(), geometry.members());
        for (stripe, part) in stripes(geometry, range) {
            let before = plan.parity_bytes;
            for segment in geometry.segments(&part) {
                let checks: ColumnSet =
                    (data..members).filter(|check| self.is_check_of(*check, &segment)).collect();
                let is_live = |column: &u8| self.is_written(stripe, *column);
                let live = checks.iter().filter(is_live).count() as u64;
                let (sources, computed) = self.reads_before(stripe, &segment, &mut reads);
                let rows = u64::from(segment.len());
                plan.parity_bytes += rows * (sources * live + computed);
                plan.check_bytes += rows * live;
                for column in segment.columns.clone().chain(checks.iter()) {
                    if self.is_written(stripe, column) {
                        writes.add(geometry, stripe, column, &segment.rows);
                    }
                }
            }
            plan.check_pieces += u64::from(plan.parity_bytes > before);
        }
        Plan { reads: reads.list, writes: writes.list, ..plan }
    }

    /// The accesses that rebuild a disk's chunk of a stripe, which nothing is read of.
    pub(crate) fn rebuild(&self, disk: usize, stripe: u64) -> Plan {
        let (geometry, max) = (self.geometry, self.access_bytes_max);
        let (mut reads, mut writes) = (Accesses::new(max), Accesses::new(max));
        let mut columns = 0..geometry.members();
        let Some(lost) = columns.find(|column| self.disk(stripe, *column) == disk) else {
            unreachable!("a disk that is none of the array")
        };
        let recipe = self.recipe(stripe, lost);
        for (column, _) in &recipe {
            reads.add(geometry, stripe, *column, &geometry.whole());
        }
        writes.add(geometry, stripe, lost, &geometry.whole());
        let parity_bytes = u64::from(geometry.chunk_len()) * terms(&recipe);
        Plan { reads: reads.list, writes: writes.list, parity_bytes, ..Plan::default() }
    }

    /// The accesses that bring dirty blocks of a stripe home to where it is, and for each row that has any, how many:
    /// what is read for check data, new data and check data. Blocks are counted from the stripe's first byte.
    pub(crate) fn bring_home(&self, stripe: u64, dirty: &[u32]) -> (Plan, Vec<usize>) {
        let (geometry, max) = (self.geometry, self.access_bytes_max);
        let code = Code::new(geometry);
        let (mut reads, mut writes) = (Accesses::new(max), Accesses::new(max));
        let mut plan = Plan::default();
        let per_chunk = geometry.chunk_len() / BLOCK;
        let mut rows: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for block in dirty {
            let column = narrow(block / per_chunk);
            rows.entry(block % per_chunk).or_default().push(column);
        }
        let (data, members) = (geometry.data_columns(), geometry.members());
        for (row, columns) in &rows {
            let range = row * BLOCK..(row + 1) * BLOCK;
            let others: Vec<u8> = (0..data).filter(|column| !columns.contains(column)).collect();
            let mut needed = ColumnSet::EMPTY;
            let cost = |column: u8| {
                if self.is_readable(stripe, column) { 1 } else { u32::from(members) }
            };
            let update: u32 = columns.iter().copied().chain(data..members).map(cost).sum();
            let whole: u32 = others.iter().copied().map(cost).sum();
            let sources = if code.is_copies() {
                0
            } else if update < whole {
                needed = columns.iter().copied().chain(data..members).collect();
                2 * columns.len() as u64 + 1
            } else {
                plan.parity_bytes +=
                    u64::from(BLOCK) * self.sources(stripe, others.into_iter(), &mut needed);
                u64::from(data)
            };
            needed.iter().for_each(|column| reads.add(geometry, stripe, column, &range));
            let checks = (data..members).filter(|check| {
                self.is_written(stripe, *check)
                    && columns.iter().any(|column| code.check_weight(*check, *column) != 0)
            });
            let checks: Vec<u8> = checks.collect();
            plan.parity_bytes += u64::from(BLOCK) * sources * checks.len() as u64;
            for column in columns.iter().copied().chain(checks) {
                if self.is_written(stripe, column) {
                    writes.add(geometry, stripe, column, &range);
                }
            }
        }
        let plan = Plan { reads: reads.list, writes: writes.list, ..plan };
        (plan, rows.values().map(Vec::len).collect())
    }

    /// The accesses that write a stripe as a whole of which only these blocks are known: the others are read.
    pub(crate) fn rewrite(&self, stripe: u64, dirty: &[u32]) -> Plan {
        let len = self.geometry.stripe_data_len();
        let plan = self.write(&(stripe * len..(stripe + 1) * len));
        let mut reads = Accesses::new(self.access_bytes_max);
        let mut parity_bytes = plan.parity_bytes;
        let per_chunk = self.geometry.chunk_len() / BLOCK;
        for row in 0..per_chunk {
            let others = (0..self.geometry.data_columns())
                .filter(|column| !dirty.contains(&(u32::from(*column) * per_chunk + row)));
            let mut columns = ColumnSet::EMPTY;
            parity_bytes += u64::from(BLOCK) * self.sources(stripe, others, &mut columns);
            let rows = row * BLOCK..(row + 1) * BLOCK;
            columns.iter().for_each(|column| reads.add(self.geometry, stripe, column, &rows));
        }
        Plan { reads: reads.list, parity_bytes, ..plan }
    }

    /// Whether a check column depends on what a segment changes.
    fn is_check_of(&self, check: u8, segment: &Segment) -> bool {
        let code = Code::new(self.geometry);
        segment.columns.clone().any(|column| code.check_weight(check, column) != 0)
    }

    /// Adds what is read before a segment is written; gives how many columns each check column is
    /// computed from, and how many those are that give back what is away.
    fn reads_before(&self, stripe: u64, segment: &Segment, reads: &mut Accesses) -> (u64, u64) {
        let (data, members) = (self.geometry.data_columns(), self.geometry.members());
        let mut checks = data..members;
        let choice = SegmentChoice {
            data_columns: data,
            written: segment.columns.clone(),
            check_live: checks.clone().any(|column| self.is_written(stripe, column)),
            check_readable: checks.any(|column| self.is_readable(stripe, column)),
        };
        if Code::new(self.geometry).is_copies() {
            return (1, 0);
        }
        let written = segment.columns.len() as u64;
        let others = (0..data).filter(|column| !segment.columns.contains(column));
        let (columns, sources, computed) = match choice.plan(|at| self.is_readable(stripe, at)) {
            Some(ParityPlan::None) => (ColumnSet::EMPTY, 0, 0),
            Some(ParityPlan::Full) => (ColumnSet::EMPTY, written, 0),
            Some(ParityPlan::Rmw) => {
                let checks = (data..members).filter(|column| self.is_readable(stripe, *column));
                (segment.columns.clone().chain(checks).collect(), 2 * written + 1, 0)
            }
            // Where neither way can read all that it needs, what is away is computed for the second.
            Some(ParityPlan::Rcw) | None => {
                let mut columns = ColumnSet::EMPTY;
                let computed = self.sources(stripe, others, &mut columns);
                (columns, u64::from(data), computed)
            }
        };
        for column in columns.iter() {
            reads.add(self.geometry, stripe, column, &segment.rows);
        }
        (sources, computed)
    }

    /// Adds to `columns` those that have to be read to have `wanted`; gives how many go into what is
    /// away.
    fn sources(
        &self,
        stripe: u64,
        wanted: impl Iterator<Item = u8>,
        columns: &mut ColumnSet,
    ) -> u64 {
        let mut computed = 0;
        for column in wanted {
            if self.is_readable(stripe, column) {
                columns.insert(column);
                continue;
            }
            let recipe = self.recipe(stripe, column);
            computed += terms(&recipe);
            recipe.iter().for_each(|(source, _)| columns.insert(*source));
        }
        computed
    }

    /// What gives `column` back, which cannot be read.
    fn recipe(&self, stripe: u64, column: u8) -> Recipe {
        let others = (0..self.geometry.members()).filter(|other| *other != column);
        let there = others.filter(|other| self.is_readable(stripe, *other)).collect();
        let Some(recipe) = Code::new(self.geometry).recipe(column, there) else {
            unreachable!("more disks away than the level survives")
        };
        recipe
    }

    fn disk(&self, stripe: u64, column: u8) -> usize {
        usize::from(self.geometry.member_of(stripe, column).0)
    }

    fn is_readable(&self, stripe: u64, column: u8) -> bool {
        self.presence.is_readable(self.disk(stripe, column), stripe)
    }

    fn is_written(&self, stripe: u64, column: u8) -> bool {
        self.presence.is_written(self.disk(stripe, column))
    }
}

/// Columns that are put together by a recipe; a copy is not.
fn terms(recipe: &Recipe) -> u64 {
    if recipe.len() > 1 { recipe.len() as u64 } else { 0 }
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

    fn layout(geometry: &Geometry, away: usize, access_bytes_max: u32) -> Layout<'_> {
        Layout { geometry, presence: Presence::without(away), access_bytes_max }
    }

    #[test]
    fn a_stripe_is_an_access_of_each_disk() {
        let geometry = shape(Level::Raid5, 5);
        let plan = layout(&geometry, 0, 4096).write(&(0..4 * CHUNK));
        assert!(plan.reads.is_empty());
        assert_eq!(plan.writes.len(), 5);
        assert_eq!((plan.parity_bytes, plan.check_bytes), (4 * CHUNK, CHUNK));
        let read = layout(&geometry, 0, 4096).read(&(0..4 * CHUNK)).reads;
        assert!(read.iter().all(|access| access.disk != 4), "the parity of stripe 0 is on disk 4");
        assert_eq!(read.len(), 4);
    }

    #[test]
    fn part_of_a_stripe_reads_what_production_reads() {
        let geometry = shape(Level::Raid5, 6);
        let small = layout(&geometry, 0, 4096).write(&(0..CHUNK));
        assert_eq!((small.reads.len(), small.writes.len()), (2, 2), "read-modify-write");
        assert_eq!(small.parity_bytes, 3 * CHUNK);
        let large = layout(&geometry, 0, 4096).write(&(0..4 * CHUNK));
        assert_eq!((large.reads.len(), large.writes.len()), (1, 5), "reconstruct write");
        assert_eq!(large.parity_bytes, 5 * CHUNK);
        let both = layout(&shape(Level::Raid6, 6), 0, 4096).write(&(0..4 * CHUNK));
        assert_eq!((both.parity_bytes, both.check_bytes), (8 * CHUNK, 2 * CHUNK));
    }

    #[test]
    fn what_is_in_a_row_on_a_disk_is_one_access_up_to_the_longest() {
        let geometry = shape(Level::Raid0, 2);
        let lens = |max| -> Vec<u32> {
            layout(&geometry, 0, max)
                .read(&(0..8 * CHUNK))
                .reads
                .iter()
                .map(|access| access.len)
                .collect()
        };
        assert_eq!(lens(4096), [4096; 8]);
        assert_eq!(lens(16384), [16384; 2]);
        // Rows of one chunk that two segments have.
        let odd = layout(&geometry, 0, 4096).read(&(512..CHUNK + 1024)).reads;
        assert_eq!(odd.iter().map(|access| access.len).sum::<u32>(), 4096 - 512 + 1024);
        assert_eq!(odd.len(), 2);
    }

    #[test]
    fn an_access_is_cut_where_chunks_begin() {
        let access = Access { disk: 1, offset: 6000, len: 8000 };
        let pieces: Vec<_> = access.pieces(4096).map(|piece| (piece.offset, piece.len)).collect();
        assert_eq!(pieces, [(6000, 2192), (8192, 4096), (12288, 1712)]);
        assert_eq!(Access { len: 0, ..access }.pieces(4096).count(), 0);
    }

    #[test]
    fn what_is_away_is_computed_from_others_that_are_read_once() {
        // Disks 0 to 3 have columns 0 to 2 and the parity of stripe 0.
        let geometry = shape(Level::Raid5, 4);
        let degraded = layout(&geometry, 1, 4096);
        let whole = degraded.read(&(0..3 * CHUNK));
        assert_eq!(whole.reads.iter().map(|access| access.disk).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(whole.parity_bytes, 3 * CHUNK);
        let there = degraded.read(&(CHUNK..2 * CHUNK));
        assert_eq!((there.reads.len(), there.parity_bytes), (1, 0));
        let gone = degraded.read(&(512..1024));
        assert_eq!(gone.reads.iter().map(|access| access.len).collect::<Vec<_>>(), [512; 3]);
        let mirror = shape(Level::Raid1, 2);
        assert_eq!(layout(&mirror, 1, 4096).read(&(0..CHUNK)).reads.len(), 1);
    }

    #[test]
    fn writes_leave_out_what_is_away() {
        let geometry = shape(Level::Raid5, 6);
        let counts = |plan: Plan| (plan.reads.len(), plan.writes.len());
        let degraded = layout(&geometry, 1, 4096);
        assert_eq!(counts(degraded.write(&(0..5 * CHUNK))), (0, 5));
        assert_eq!(counts(degraded.write(&(0..CHUNK))), (4, 1), "the other data, for the parity");
        assert_eq!(counts(degraded.write(&(CHUNK..2 * CHUNK))), (2, 2), "read-modify-write");
        // Stripe 5 has its parity on disk 0.
        let parity_away = degraded.write(&(25 * CHUNK..26 * CHUNK));
        assert_eq!((parity_away.check_bytes, counts(parity_away)), (0, (0, 1)));
        // A column that is written and one that is not are away: the stripe's other columns give the
        // second, P and Q among them.
        let both = shape(Level::Raid6, 6);
        let plan = layout(&both, 2, 4096).write(&(0..CHUNK));
        assert_eq!(counts(plan), (4, 2));
    }

    #[test]
    fn a_rebuild_reads_the_others_and_writes_what_was_lost() {
        let plan = |level, members, away| {
            let geometry = shape(level, members);
            layout(&geometry, away, 4096).rebuild(away, 7)
        };
        let plan_5 = plan(Level::Raid5, 5, 0);
        assert_eq!(plan_5.reads.iter().map(|access| access.disk).collect::<Vec<_>>().len(), 4);
        assert!(plan_5.reads.iter().all(|access| access.disk != 0));
        let written = Access { disk: 0, offset: 7 * CHUNK, len: 4096 };
        assert_eq!((plan_5.writes, plan_5.parity_bytes), (vec![written], 4 * CHUNK));
        assert_eq!(plan(Level::Raid6, 6, 1).reads.len(), 4);
        let copy = plan(Level::Raid1, 3, 0);
        assert_eq!((copy.reads.len(), copy.parity_bytes), (1, 0));
    }
}
