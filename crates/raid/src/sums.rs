//! Checksums of what is on the members: for each row of each physical stripe a CRC32C of every
//! block, and whether the row was ever written. They say what the medium should hold, not what
//! the log does.
//!
//! Invariant: a block that does not have its checksum is never given to anybody. A row that was
//! never written reads as zeros, whatever is on the members.
//!
//! Does not know which pages are in memory, or when one may be written.

use alloc::{vec, vec::Vec};

use netraid_block::narrow;

use crate::{
    label::Uuid,
    member::MEMBERS_MAX,
    page::{About, ImageKey, Kind, PageError},
    regions::{PAGE_LEN, PAGE_PAYLOAD_LEN},
};

const KIND: Kind =
    Kind { magic: *b"NRSUMS\n\0", version: 1, what: "page of checksums", len: PAGE_LEN };
const SUM_LEN: u32 = 4;

/// Where in the pages a row's checksums are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SumLayout {
    columns: u8,
    rows_per_stripe: u32,
}

/// A row's place in the pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SumPlace {
    /// Which page.
    pub page: u64,
    /// Which of its rows.
    pub row: u32,
}

impl SumLayout {
    /// For stripes of so many columns and rows of 4 KiB.
    ///
    /// # Panics
    /// When there are none, or more columns than members.
    #[must_use]
    pub const fn new(columns: u8, rows_per_stripe: u32) -> Self {
        assert!(columns > 0 && columns as usize <= MEMBERS_MAX && rows_per_stripe > 0);
        Self { columns, rows_per_stripe }
    }

    /// Rows whose checksums fit into one page, with a bit for each.
    #[must_use]
    pub const fn rows_per_page(self) -> u32 {
        PAGE_PAYLOAD_LEN * 8 / (self.columns as u32 * SUM_LEN * 8 + 1)
    }

    /// Pages for so many physical stripes.
    #[must_use]
    pub const fn pages(self, stripes: u64) -> u64 {
        (stripes * self.rows_per_stripe as u64).div_ceil(self.rows_per_page() as u64)
    }

    /// Where a row is.
    ///
    /// # Panics
    /// When a stripe has no such row.
    #[must_use]
    pub fn place(self, stripe: u64, row: u32) -> SumPlace {
        assert!(row < self.rows_per_stripe, "row {row} of {}", self.rows_per_stripe);
        let row = stripe * u64::from(self.rows_per_stripe) + u64::from(row);
        let per_page = u64::from(self.rows_per_page());
        // Less than the rows of a page, which are a few hundred.
        SumPlace { page: row / per_page, row: narrow(row % per_page) }
    }
}

/// The checksums of some rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SumPage {
    columns: u8,
    /// Which page.
    pub index: u64,
    /// Raised with each image; of two the larger counts.
    pub counter: u64,
    /// The round that the image was taken at the end of: what changed in a later one is not in it.
    pub round: u32,
    written: Vec<bool>,
    sums: Vec<u32>,
}

impl SumPage {
    /// Which of the page's images this is.
    pub(crate) const fn key(&self) -> ImageKey {
        ImageKey { counter: self.counter, round: self.round }
    }

    /// A page of rows that were never written.
    #[must_use]
    pub fn new(layout: SumLayout, index: u64) -> Self {
        let rows = layout.rows_per_page() as usize;
        let sums = vec![0; rows * usize::from(layout.columns)];
        let written = vec![false; rows];
        Self { columns: layout.columns, index, counter: 0, round: 0, written, sums }
    }

    /// The checksums of a row by column; none when it was never written.
    #[must_use]
    pub fn row(&self, row: u32) -> Option<&[u32]> {
        let first = row as usize * usize::from(self.columns);
        self.written[row as usize].then(|| &self.sums[first..first + usize::from(self.columns)])
    }

    /// Sets one block's checksum in a row that was written.
    ///
    /// # Panics
    /// When it was not: then all of its columns have to be set.
    pub fn set(&mut self, row: u32, column: u8, sum: u32) {
        assert!(self.written[row as usize], "row {row} was never written");
        assert!(column < self.columns, "column {column} of {}", self.columns);
        self.sums[row as usize * usize::from(self.columns) + usize::from(column)] = sum;
    }

    /// Sets a row's checksums, or says that it was never written.
    ///
    /// # Panics
    /// When there is not one for each column.
    pub fn set_row(&mut self, row: u32, sums: Option<&[u32]>) {
        let first = row as usize * usize::from(self.columns);
        let slots = &mut self.sums[first..first + usize::from(self.columns)];
        match sums {
            Some(sums) => slots.copy_from_slice(sums),
            None => slots.fill(0),
        }
        self.written[row as usize] = sums.is_some();
    }

    /// Says that a row's checksums are lost: those that it has then are none that any row could
    /// have, so that nothing in it is taken for right.
    pub fn lose_row(&mut self, row: u32) {
        let sums: Vec<u32> = (0..self.columns).map(lost_sum).collect();
        self.set_row(row, Some(&sums));
    }

    /// Whether a row's checksums are lost.
    #[must_use]
    pub fn is_row_lost(&self, row: u32) -> bool {
        let lost = |sums: &[u32]| (0..self.columns).map(lost_sum).eq(sums.iter().copied());
        self.row(row).is_some_and(lost)
    }

    /// The image that goes to `place`, an offset on the members.
    #[must_use]
    pub fn encode(&self, array_uuid: Uuid, place: u64) -> Vec<u8> {
        let sums = self.sums.len() * SUM_LEN as usize;
        let mut payload = vec![0; sums + self.written.len().div_ceil(8)];
        let (slots, bits) = payload.split_at_mut(sums);
        for (slot, sum) in slots.as_chunks_mut().0.iter_mut().zip(&self.sums) {
            *slot = sum.to_le_bytes();
        }
        for (byte, rows) in bits.iter_mut().zip(self.written.chunks(8)) {
            *byte = (0..).zip(rows).fold(0, |byte, (at, row)| byte | u8::from(*row) << at);
        }
        let detail = u16::from(self.columns);
        let (index, counter, round) = (self.index, self.counter, self.round);
        let about = About { detail, index, counter, round, uncounted: 0 };
        KIND.encode(about, array_uuid, place, &payload)
    }

    /// Reads an image that stands at `place`.
    ///
    /// # Errors
    /// When it is no such page of that array at that place.
    pub fn decode(
        bytes: &[u8],
        layout: SumLayout,
        array_uuid: Uuid,
        place: u64,
    ) -> Result<Self, PageError> {
        let (about, payload) = KIND.decode(bytes, array_uuid, place)?;
        if about.detail != u16::from(layout.columns) {
            return Err(KIND.field("number of columns"));
        }
        let mut page = Self::new(layout, about.index);
        page.counter = about.counter;
        page.round = about.round;
        let (sums, bits) = payload.split_at(page.sums.len() * SUM_LEN as usize);
        for (sum, bytes) in page.sums.iter_mut().zip(sums.as_chunks::<4>().0) {
            *sum = u32::from_le_bytes(*bytes);
        }
        for (at, written) in page.written.iter_mut().enumerate() {
            *written = bits[at / 8] >> (at % 8) & 1 == 1;
        }
        Ok(page)
    }
}

/// Differs by column, which those of copies do not, and is no affine function of the others.
const fn lost_sum(column: u8) -> u32 {
    0x4c4f_5354 ^ (column as u32 + 1).wrapping_mul(0x9e37_79b9).rotate_left(column as u32 % 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::collections::BTreeSet;

    #[test]
    fn every_row_has_a_place_of_its_own_in_pages_without_gaps() {
        for (columns, rows) in [(1, 1), (5, 16), (64, 256), (2, 3)] {
            let layout = SumLayout::new(columns, rows);
            let stripes = 40;
            let places: BTreeSet<SumPlace> = (0..stripes)
                .flat_map(|stripe| (0..rows).map(move |row| layout.place(stripe, row)))
                .collect();
            assert_eq!(places.len() as u64, stripes * u64::from(rows));
            assert!(places.iter().all(|place| place.row < layout.rows_per_page()));
            assert_eq!(places.last().unwrap().page + 1, layout.pages(stripes));
        }
    }

    #[test]
    fn what_was_encoded_is_decoded_at_its_place_and_nowhere_else() {
        let mut rng = StdRng::seed_from_u64(1);
        for columns in [1, 2, 5, 17, 64] {
            let layout = SumLayout::new(columns, 16);
            let mut page = SumPage::new(layout, 7);
            page.counter = 3;
            page.round = 4;
            for row in 0..layout.rows_per_page() {
                let sums: Vec<u32> = (0..columns).map(|_| rng.random()).collect();
                page.set_row(row, rng.random::<bool>().then_some(&sums));
            }
            if page.row(0).is_some() {
                page.set(0, columns - 1, 99);
                assert_eq!(page.row(0).unwrap()[usize::from(columns) - 1], 99);
            }
            let image = page.encode([1; 16], 4096);
            assert_eq!(SumPage::decode(&image, layout, [1; 16], 4096).as_ref(), Ok(&page));
            let absent = Err(PageError::Absent("page of checksums"));
            assert_eq!(SumPage::decode(&image, layout, [1; 16], 0), absent);
            assert_eq!(SumPage::decode(&image, layout, [2; 16], 4096), absent);
            let wider = SumLayout::new(if columns == 64 { 63 } else { columns + 1 }, 16);
            let field = Err(KIND.field("number of columns"));
            assert_eq!(SumPage::decode(&image, wider, [1; 16], 4096), field);
        }
    }

    #[test]
    fn a_row_that_was_never_written_has_no_checksums() {
        let layout = SumLayout::new(3, 16);
        let mut page = SumPage::new(layout, 0);
        assert_eq!(page.row(5), None);
        page.set_row(5, Some(&[1, 2, 3]));
        page.set(5, 1, 9);
        assert_eq!(page.row(5), Some(&[1, 9, 3][..]));
        page.set_row(5, None);
        assert_eq!(page.row(5), None);
        let unwritten = std::panic::catch_unwind(move || page.set(5, 0, 1));
        assert!(unwritten.is_err());
    }
}
