//! What records may say in one array: what they name must exist. A log has a right checksum when
//! a member forged it, too.

use super::{Basis, Batch, Record, batch::BatchError};
use crate::{
    code::ColumnSet,
    geometry::Geometry,
    lack::ROUND_MAX,
    log::{LOG_BLOCK_LEN, LOGGED_BLOCKS_MAX},
    regions::Regions,
};

/// How much there is of everything that a record can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    volume_blocks: u64,
    logical: u64,
    physical: u64,
    rows: u32,
    columns: u8,
    data_columns: u8,
}

impl Bounds {
    /// Those of an array with a log.
    #[must_use]
    pub const fn new(geometry: &Geometry, regions: &Regions) -> Self {
        Self {
            volume_blocks: geometry.capacity() / LOG_BLOCK_LEN as u64,
            logical: geometry.stripes(),
            physical: regions.physical_stripes(geometry),
            rows: geometry.chunk_len() / LOG_BLOCK_LEN,
            columns: geometry.members(),
            data_columns: geometry.data_columns(),
        }
    }

    /// Whether all that a batch's records name exists, and nothing refers to what comes after it.
    ///
    /// # Errors
    /// When a record could not have been written by this array's engines.
    pub fn check(&self, batch: &Batch) -> Result<(), BatchError> {
        batch.records.iter().try_for_each(|record| self.check_record(batch, record))
    }

    fn check_record(&self, batch: &Batch, record: &Record) -> Result<(), BatchError> {
        let is_within = |block: u64, count: u64| {
            block.checked_add(count).is_some_and(|end| end <= self.volume_blocks)
        };
        match record {
            Record::Data { block, .. } => ensure("block", is_within(*block, 1)),
            Record::Zeroes { block, count } => {
                ensure("blocks", is_within(*block, *count) && *count <= LOGGED_BLOCKS_MAX.into())
            }
            Record::Parity { stripe, row, round, checks, basis } => {
                ensure("physical stripe", *stripe < self.physical)?;
                ensure("row", *row < self.rows)?;
                ensure("round", *round <= ROUND_MAX)?;
                let check_columns = self.columns - self.data_columns;
                ensure("number of checks", checks.len() <= check_columns.into())?;
                ensure("column", basis.iter().all(|one| one.column < self.data_columns))?;
                let mut seen = ColumnSet::EMPTY;
                basis.iter().for_each(|one| seen.insert(one.column));
                ensure("columns", seen.len() as usize == basis.len())?;
                let has_source = |one: &Basis| one.zeroes || one.position.is_some();
                ensure("contents", basis.iter().all(has_source))?;
                let positions = basis.iter().filter_map(|one| one.position);
                ensure("basis", positions.into_iter().all(|at| at < batch.position))
            }
            Record::Remap { stripe, to, void_upto, written, sums } => {
                ensure("logical stripe", *stripe < self.logical)?;
                ensure("physical stripe", to.is_none_or(|to| to < self.physical))?;
                ensure("void position", *void_upto <= batch.end())?;
                let rows = if to.is_some() { self.rows as usize } else { 0 };
                ensure("number of rows", written.len() == rows)?;
                let count = written.iter().filter(|written| **written).count();
                ensure("number of checksums", sums.len() == count * usize::from(self.columns))
            }
            Record::Open { dropped } => {
                let mut known = dropped.iter();
                let is_known =
                    known.all(|(at, stripe)| *at < batch.position && *stripe < self.logical);
                ensure("dropped REMAP", is_known)
            }
        }
    }
}

fn ensure(field: &'static str, holds: bool) -> Result<(), BatchError> {
    if holds { Ok(()) } else { Err(BatchError::Field(field)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        format::Format,
        geometry::Level,
        log::{Link, Position},
        regions::LoggedShape,
    };
    use std::vec::{Vec, from_elem};

    const AT: Position = Position(100);

    /// Five members, chunks of two blocks, 40 stripes in 48.
    fn allows(record: Record) -> bool {
        let shape = LoggedShape {
            level: Level::Raid5,
            members: 5,
            chunk_len: 8192,
            block_len: 512,
            logical_stripes: 40,
            physical_stripes: 48,
            log_blocks: 64,
            format: Format::Two,
        };
        let (regions, geometry) = shape.layout().unwrap();
        let batch = Batch {
            generation: 1,
            position: AT,
            previous: Link::default(),
            stable_upto: Position(0),
            acked_upto: Position(0),
            records: Vec::from([Record::Data { block: 0, crc: 0 }, record]),
        };
        Bounds::new(&geometry, &regions).check(&batch).is_ok()
    }

    #[test]
    fn blocks_of_the_volume_exist() {
        let data = |block| allows(Record::Data { block, crc: 0 });
        assert!(data(319) && !data(320) && !data(u64::MAX));
        let zeroes = |block, count| allows(Record::Zeroes { block, count });
        assert!(zeroes(0, 256) && zeroes(64, 256) && zeroes(319, 1));
        assert!(!zeroes(65, 256) && !zeroes(320, 1) && !zeroes(1, u64::MAX));
        assert!(!zeroes(0, 257), "more than one request puts into the log");
    }

    #[test]
    fn a_row_exists_and_its_basis_was_logged_before() {
        let basis = |column, position: Option<u64>| Basis {
            column,
            crc: 0,
            position: position.map(Position),
            zeroes: position.is_none(),
        };
        let parity = |stripe, row, round, checks: usize, basis: &[Basis]| {
            let (checks, basis) = (from_elem(0, checks), basis.to_vec());
            allows(Record::Parity { stripe, row, round, checks, basis })
        };
        assert!(parity(47, 1, ROUND_MAX, 1, &[basis(0, Some(99)), basis(3, None)]));
        assert!(parity(0, 0, 0, 0, &[]) && parity(0, 0, 0, 1, &[basis(3, None), basis(0, None)]));
        assert!(!parity(48, 1, 1, 1, &[]));
        assert!(!parity(0, 2, 1, 1, &[]));
        assert!(!parity(0, 0, ROUND_MAX + 1, 1, &[]));
        assert!(!parity(0, 0, 0, 2, &[]));
        assert!(!parity(0, 0, 0, 1, &[basis(4, None)]), "a check column");
        assert!(!parity(0, 0, 0, 1, &[basis(0, Some(100))]), "not before");
        assert!(!parity(0, 0, 0, 1, &[basis(1, None), basis(1, None)]), "twice");
        let nothing = Basis { zeroes: false, ..basis(1, None) };
        assert!(!parity(0, 0, 0, 1, &[nothing]), "contents from nowhere");
        assert!(parity(0, 0, 0, 1, &[Basis { zeroes: true, ..basis(1, Some(9)) }]));
    }

    #[test]
    fn a_stripe_goes_to_one_that_exists_with_all_its_checksums() {
        let remap = |stripe, to, void_upto, written: &[bool], sums: usize| {
            let (written, sums) = (written.to_vec(), from_elem(0, sums));
            allows(Record::Remap { stripe, to, void_upto: Position(void_upto), written, sums })
        };
        // The batch has a head and one block of payload.
        assert!(remap(39, Some(47), 102, &[true, true], 10));
        assert!(remap(0, Some(0), 0, &[false, true], 5) && remap(0, Some(0), 0, &[false; 2], 0));
        assert!(remap(0, None, 0, &[], 0));
        assert!(!remap(40, None, 0, &[], 0));
        assert!(!remap(0, Some(48), 0, &[true, true], 10));
        assert!(!remap(0, Some(0), 103, &[true, true], 10));
        for rows in [0, 1, 3] {
            assert!(!remap(0, Some(0), 0, &from_elem(true, rows), rows * 5), "{rows} rows");
        }
        assert!(!remap(0, Some(0), 0, &[true, true], 9) && !remap(0, Some(0), 0, &[true; 2], 11));
        assert!(!remap(0, None, 0, &[true, true], 10));
    }

    #[test]
    fn what_a_recovery_dropped_was_logged_before() {
        let open = |dropped: &[(u64, u64)]| {
            let dropped = dropped.iter().map(|(at, stripe)| (Position(*at), *stripe)).collect();
            allows(Record::Open { dropped })
        };
        assert!(open(&[]) && open(&[(99, 39), (0, 0)]));
        assert!(!open(&[(100, 0)]) && !open(&[(0, 0), (0, 40)]));
    }
}
