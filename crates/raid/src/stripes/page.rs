//! A page of the stripe table, as it is on the members. Byte map: docs/formats/tables.md.

use alloc::vec::Vec;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian::U32};

use super::Entry;
use crate::{
    label::Uuid,
    lack::ROUND_MAX,
    page::{About, ImageKey, Kind, PageError},
    regions::PAGE_PAYLOAD_LEN,
};

const KIND: Kind = Kind { magic: *b"NRSTRIP\n", version: 1, what: "page of the stripe table" };
const ENTRY_LEN: u32 = 8;

/// Entries of a page.
pub const STRIPES_PER_PAGE: u32 = PAGE_PAYLOAD_LEN / ENTRY_LEN;

/// A page of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StripePage {
    /// Which page.
    pub index: u64,
    /// Raised with each image; of two the larger counts.
    pub counter: u64,
    /// The round that the image was taken at the end of.
    pub round: u32,
    /// How many of its images, this one included, are newer than the checkpoint of then.
    pub uncounted: u32,
    /// Its entries; the last page's rest is empty ones.
    pub entries: Vec<Entry>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    /// One more than the logical stripe; 0 for none.
    logical: U32,
    round: U32,
}

const _: () = assert!(size_of::<RawEntry>() == ENTRY_LEN as usize, "a page has 504 entries");

impl StripePage {
    /// The image that goes to `place`, an offset on the members.
    ///
    /// # Panics
    /// When there are more entries than fit.
    #[must_use]
    pub fn encode(&self, array_uuid: Uuid, place: u64) -> Vec<u8> {
        let raw = |entry: &Entry| {
            // Stripes are fewer than 2^32 - 1, so that one more is a number.
            let logical = entry.logical.map_or(0, |logical| logical + 1);
            RawEntry { logical: logical.into(), round: entry.round.into() }
        };
        let entries: Vec<RawEntry> = self.entries.iter().map(raw).collect();
        let about = About {
            detail: 0,
            index: self.index,
            counter: self.counter,
            round: self.round,
            uncounted: self.uncounted,
        };
        KIND.encode(about, array_uuid, place, entries.as_bytes())
    }

    /// Reads an image that stands at `place`.
    ///
    /// # Errors
    /// When it is no page of that array at that place.
    pub fn decode(bytes: &[u8], array_uuid: Uuid, place: u64) -> Result<Self, PageError> {
        let (about, payload) = KIND.decode(bytes, array_uuid, place)?;
        let raw = <[RawEntry]>::ref_from_bytes(payload).map_err(|_| KIND.field("length"))?;
        let entry = |raw: &RawEntry| Entry {
            logical: raw.logical.get().checked_sub(1),
            round: raw.round.get(),
        };
        let entries: Vec<Entry> = raw.iter().map(entry).collect();
        if entries.iter().any(|entry| entry.round > ROUND_MAX) {
            return Err(KIND.field("round"));
        }
        let About { index, counter, round, uncounted, .. } = about;
        Ok(Self { index, counter, round, uncounted, entries })
    }

    /// Which of the page's images this is.
    pub(crate) const fn key(&self) -> ImageKey {
        ImageKey { counter: self.counter, round: self.round }
    }

    /// How many of its images a checkpoint has counted that is the last one, and closed `round`.
    #[must_use]
    pub fn counted(&self, round: u32) -> u64 {
        if self.round > round { self.counter - u64::from(self.uncounted) } else { self.counter }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_at_its_place_in_its_array_and_nowhere_else() {
        let some = |logical| Entry { logical, round: 7 };
        let entries = [some(Some(0)), some(None), some(Some(u32::MAX - 1))].to_vec();
        let page = StripePage { index: 3, counter: 9, round: 5, uncounted: 2, entries };
        let image = page.encode([1; 16], 4096);
        let read = StripePage::decode(&image, [1; 16], 4096).unwrap();
        assert_eq!((read.index, read.counter, read.round, read.uncounted), (3, 9, 5, 2));
        assert_eq!([4, 5].map(|round| read.counted(round)), [7, 9]);
        assert_eq!(read.entries[..3], page.entries);
        assert!(read.entries[3..].iter().all(|entry| *entry == Entry::default()));
        let absent = Err(PageError::Absent("page of the stripe table"));
        assert_eq!(StripePage::decode(&image, [1; 16], 8192), absent);
        assert_eq!(StripePage::decode(&image, [2; 16], 4096), absent);
    }

    #[test]
    fn the_last_round_that_can_be_is_read_and_a_later_one_refused() {
        let page = |round| {
            let entries = [Entry { logical: None, round }].to_vec();
            let page = StripePage { index: 0, counter: 1, round: 0, uncounted: 1, entries };
            StripePage::decode(&page.encode([1; 16], 4096), [1; 16], 4096)
        };
        assert_eq!(page(ROUND_MAX).unwrap().entries[0].round, ROUND_MAX);
        assert_eq!(page(ROUND_MAX + 1), Err(KIND.field("round")));
    }
}
