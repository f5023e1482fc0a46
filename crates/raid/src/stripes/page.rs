//! A page of the stripe table, as it is on the members. Byte map: docs/formats/tables.md.

use alloc::vec::Vec;

use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use super::Entry;
use crate::{
    label::{Uuid, crc32c},
    regions::{PAGE_LEN, PAGE_PAYLOAD_LEN},
};

const MAGIC: [u8; 8] = *b"NRSTRIP\n";
const VERSION: u16 = 0;
const ENTRY_LEN: u32 = 8;
/// No array lives to write so many images; a page with a larger counter is forged.
const COUNTER_MAX: u64 = 1 << 60;

/// Entries of a page.
pub const STRIPES_PER_PAGE: u32 = PAGE_PAYLOAD_LEN / ENTRY_LEN;

/// A page of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StripePage {
    /// Which page.
    pub index: u64,
    /// Raised with each image; of two the larger counts.
    pub counter: u64,
    /// Its entries; the last page's rest is empty ones.
    pub entries: Vec<Entry>,
}

/// Why bytes are no page of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StripePageError {
    /// Nothing of this array stands here, or it is torn.
    #[error("no page of the stripe table")]
    Absent,
    /// Written by another version.
    #[error("a page has version {0}, this program knows {VERSION}; use a version that knows it")]
    Version(u16),
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    /// One more than the logical stripe; 0 for none.
    logical: U32,
    round: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U16,
    reserved: U16,
    crc: U32,
    array_uuid: Uuid,
    index: U64,
    counter: U64,
    tail: [u8; 16],
    entries: [RawEntry; STRIPES_PER_PAGE as usize],
}

const _: () = assert!(size_of::<Raw>() == PAGE_LEN as usize, "a page fills its slot");

impl StripePage {
    /// The image that goes to `place`, an offset on the members.
    ///
    /// # Panics
    /// When there are more entries than fit.
    #[must_use]
    pub fn encode(&self, array_uuid: Uuid, place: u64) -> Vec<u8> {
        assert!(self.entries.len() <= STRIPES_PER_PAGE as usize, "entries of one page");
        let mut raw = Raw::new_zeroed();
        raw.magic = MAGIC;
        raw.version = VERSION.into();
        raw.array_uuid = array_uuid;
        raw.index = self.index.into();
        raw.counter = self.counter.into();
        for (raw, entry) in raw.entries.iter_mut().zip(&self.entries) {
            // Stripes are fewer than 2^32 - 1, so that one more is a number.
            let logical = entry.logical.map_or(0, |logical| logical + 1);
            *raw = RawEntry { logical: logical.into(), round: entry.round.into() };
        }
        raw.crc = crc32c(place, &[raw.as_bytes()]).into();
        raw.as_bytes().to_vec()
    }

    /// Reads an image that stands at `place`.
    ///
    /// # Errors
    /// When it is no page of that array at that place.
    pub fn decode(bytes: &[u8], array_uuid: Uuid, place: u64) -> Result<Self, StripePageError> {
        let mut raw = Raw::read_from_bytes(bytes).map_err(|_| StripePageError::Absent)?;
        let found = core::mem::take(&mut raw.crc).get();
        let is_ours = raw.magic == MAGIC && raw.array_uuid == array_uuid;
        if !is_ours || found != crc32c(place, &[raw.as_bytes()]) {
            return Err(StripePageError::Absent);
        }
        if raw.version.get() != VERSION {
            return Err(StripePageError::Version(raw.version.get()));
        }
        if raw.counter.get() > COUNTER_MAX {
            return Err(StripePageError::Absent);
        }
        let entry = |raw: &RawEntry| Entry {
            logical: raw.logical.get().checked_sub(1),
            round: raw.round.get(),
        };
        Ok(Self {
            index: raw.index.get(),
            counter: raw.counter.get(),
            entries: raw.entries.iter().map(entry).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_at_its_place_in_its_array_and_nowhere_else() {
        let some = |logical| Entry { logical, round: 7 };
        let entries = [some(Some(0)), some(None), some(Some(u32::MAX - 1))].to_vec();
        let page = StripePage { index: 3, counter: 9, entries };
        let image = page.encode([1; 16], 4096);
        let read = StripePage::decode(&image, [1; 16], 4096).unwrap();
        assert_eq!((read.index, read.counter), (3, 9));
        assert_eq!(read.entries[..3], page.entries);
        assert!(read.entries[3..].iter().all(|entry| *entry == Entry::default()));
        let absent = Err(StripePageError::Absent);
        assert_eq!(StripePage::decode(&image, [1; 16], 8192), absent);
        assert_eq!(StripePage::decode(&image, [2; 16], 4096), absent);
        assert_eq!(StripePage::decode(&image[1..], [1; 16], 4096), absent);
        for at in 0..image.len() {
            let mut bad = image.clone();
            bad[at] ^= 1;
            assert_eq!(StripePage::decode(&bad, [1; 16], 4096), absent, "byte {at}");
        }
    }
}
