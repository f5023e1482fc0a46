//! A page of the stripe table, as it is on the members. Byte map: docs/formats/tables.md.

use alloc::vec::Vec;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use super::{Entries, Entry, Interval};
use crate::{
    format::Format,
    label::Uuid,
    lack::ROUND_MAX,
    page::{About, ImageKey, Kind, PageError},
    regions::PAGE_LEN,
};

const fn kind(format: Format) -> Kind {
    let version = match format {
        Format::One => 1,
        Format::Two => 2,
    };
    Kind { magic: *b"NRSTRIP\n", version, what: "page of the stripe table", len: PAGE_LEN }
}

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
    pub entries: Entries,
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
struct RawEntry2 {
    entry: RawEntry,
    /// [`Interval::to_bits`].
    interval: U64,
}

const _: () =
    assert!(size_of::<RawEntry>() == Format::One.entry_len() as usize, "504 entries a page");
const _: () =
    assert!(size_of::<RawEntry2>() == Format::Two.entry_len() as usize, "252 entries a page");

impl RawEntry {
    fn from_entry(entry: Entry) -> Self {
        // Stripes are fewer than 2^32 - 1, so that one more is a number.
        let logical = entry.logical.map_or(0, |logical| logical + 1);
        Self { logical: logical.into(), round: entry.round.into() }
    }

    fn interpret(&self, of_stripe: Interval) -> Entry {
        let logical = self.logical.get().checked_sub(1);
        let interval = if logical.is_some() { of_stripe } else { Interval::default() };
        Entry { logical, round: self.round.get(), interval }
    }
}

impl StripePage {
    /// The image that goes to `place`, an offset on the members.
    ///
    /// # Panics
    /// When there are more entries than fit.
    #[must_use]
    pub fn encode(&self, format: Format, array_uuid: Uuid, place: u64) -> Vec<u8> {
        let about = About {
            detail: 0,
            index: self.index,
            counter: self.counter,
            round: self.round,
            uncounted: self.uncounted,
        };
        let kind = kind(format);
        match format {
            Format::One => {
                let raw: Vec<RawEntry> = self.entries.iter().map(RawEntry::from_entry).collect();
                kind.encode(about, array_uuid, place, raw.as_bytes())
            }
            Format::Two => {
                let raw = |entry: Entry| RawEntry2 {
                    entry: RawEntry::from_entry(entry),
                    interval: entry.interval.to_bits().into(),
                };
                let raw: Vec<RawEntry2> = self.entries.iter().map(raw).collect();
                kind.encode(about, array_uuid, place, raw.as_bytes())
            }
        }
    }

    /// Reads an image that stands at `place`.
    ///
    /// # Errors
    /// When it is no page of that array at that place, or a stripe of it is shared with a snapshot, or has another
    /// layout: a later version of the program has written that.
    pub fn decode(
        bytes: &[u8],
        format: Format,
        array_uuid: Uuid,
        place: u64,
    ) -> Result<Self, PageError> {
        let kind = kind(format);
        let (about, payload) = kind.decode(bytes, array_uuid, place)?;
        let entries: Entries = match format {
            Format::One => {
                let raw =
                    <[RawEntry]>::ref_from_bytes(payload).map_err(|_| kind.field("length"))?;
                raw.iter().map(|raw| raw.interpret(Interval::FIRST)).collect()
            }
            Format::Two => {
                let raw =
                    <[RawEntry2]>::ref_from_bytes(payload).map_err(|_| kind.field("length"))?;
                let of = |raw: &RawEntry2| Interval::from_bits(raw.interval.get());
                let is_possible = |raw: &RawEntry2| {
                    let is_there = raw.entry.logical.get() != 0;
                    if is_there { of(raw).born > 0 } else { raw.interval.get() == 0 }
                };
                if !raw.iter().all(is_possible) {
                    return Err(kind.field("interval of a stripe"));
                }
                if raw.iter().any(|raw| of(raw).left != 0 || of(raw).layout != 0) {
                    let (what, more) = (kind.what, "stripes of snapshots, or of another width");
                    return Err(PageError::Later { what, more });
                }
                let entry =
                    |raw: &RawEntry2| raw.entry.interpret(Interval::from_bits(raw.interval.get()));
                raw.iter().map(entry).collect()
            }
        };
        if entries.iter().any(|entry| entry.round > ROUND_MAX) {
            return Err(kind.field("round"));
        }
        let About { index, counter, round, uncounted, .. } = about;
        Ok(Self { index, counter, round, uncounted, entries })
    }

    /// Which image stands at `place`, and of which page, where [`Self::decode`] says that a later version has written it.
    pub(crate) fn later(
        bytes: &[u8],
        format: Format,
        array_uuid: Uuid,
        place: u64,
    ) -> Option<(u64, ImageKey)> {
        let (about, _) = kind(format).decode(bytes, array_uuid, place).ok()?;
        Some((about.index, ImageKey { counter: about.counter, round: about.round }))
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
    use crate::page::tests::forge;

    const UUID: Uuid = [1; 16];

    fn some(logical: Option<u32>) -> Entry {
        let interval = if logical.is_some() { Interval::FIRST } else { Interval::default() };
        Entry { logical, round: 7, interval }
    }

    #[test]
    fn a_page_is_read_at_its_place_in_its_array_and_format_and_nowhere_else() {
        for (format, other) in [(Format::One, Format::Two), (Format::Two, Format::One)] {
            let entries =
                [some(Some(0)), some(None), some(Some(u32::MAX - 1))].into_iter().collect();
            let page = StripePage { index: 3, counter: 9, round: 5, uncounted: 2, entries };
            let image = page.encode(format, UUID, 4096);
            let read = StripePage::decode(&image, format, UUID, 4096).unwrap();
            assert_eq!((read.index, read.counter, read.round, read.uncounted), (3, 9, 5, 2));
            assert_eq!([4, 5].map(|round| read.counted(round)), [7, 9]);
            assert_eq!(read.entries.len(), format.stripes_per_page() as usize);
            assert_eq!(
                read.entries.iter().take(3).collect::<Vec<_>>(),
                page.entries.iter().collect::<Vec<_>>()
            );
            assert!(read.entries.iter().skip(3).all(|entry| entry == Entry::default()));
            let absent = Err(PageError::Absent("page of the stripe table"));
            assert_eq!(StripePage::decode(&image, format, UUID, 8192), absent);
            assert_eq!(StripePage::decode(&image, format, [2; 16], 4096), absent);
            let version = StripePage::decode(&image, other, UUID, 4096);
            assert!(matches!(version, Err(PageError::Version { .. })), "{version:?}");
        }
    }

    #[test]
    fn an_entry_says_when_its_stripe_was_born_in_the_later_format_alone() {
        let born = Entry { interval: Interval::open(5), ..some(Some(2)) };
        let page = StripePage {
            index: 0,
            counter: 1,
            round: 1,
            uncounted: 1,
            entries: [born].into_iter().collect(),
        };
        let read = |format| {
            let image = page.encode(format, UUID, 4096);
            StripePage::decode(&image, format, UUID, 4096)
                .unwrap()
                .entries
                .get(0)
                .unwrap()
                .interval
                .born
        };
        assert_eq!([read(Format::One), read(Format::Two)], [1, 5]);
    }

    #[test]
    fn a_stripe_that_was_left_or_has_another_layout_is_not_believed() {
        let read = |logical: Option<u32>, interval: Interval| {
            let entries = [some(logical)].into_iter().collect();
            let page = StripePage { index: 0, counter: 1, round: 1, uncounted: 1, entries };
            let image = forge(&page.encode(Format::Two, UUID, 4096), 4096, |bytes| {
                bytes[72..80].copy_from_slice(&interval.to_bits().to_le_bytes());
            });
            StripePage::decode(&image, Format::Two, UUID, 4096).map(|_| ())
        };
        let error = Err(kind(Format::Two).field("interval of a stripe"));
        let is_later =
            |result: &Result<(), PageError>| matches!(result, Err(PageError::Later { .. }));
        let later = Interval { born: 1, left: 2, layout: 0 };
        let wider = Interval { born: 1, left: 0, layout: 1 };
        assert_eq!(read(Some(3), Interval::open(4)), Ok(()));
        assert_eq!(read(None, Interval::default()), Ok(()));
        assert!([later, wider].into_iter().all(|interval| is_later(&read(Some(3), interval))));
        for (logical, interval) in
            [(Some(3), Interval::default()), (None, Interval::FIRST), (None, later)]
        {
            assert_eq!(read(logical, interval), error, "{logical:?} {interval:?}");
        }
    }

    #[test]
    fn the_last_round_that_can_be_is_read_and_a_later_one_refused() {
        for format in [Format::One, Format::Two] {
            let page = |round| {
                let entries = [Entry { round, ..Entry::default() }].into_iter().collect();
                let page = StripePage { index: 0, counter: 1, round: 0, uncounted: 1, entries };
                StripePage::decode(&page.encode(format, UUID, 4096), format, UUID, 4096)
            };
            assert_eq!(page(ROUND_MAX).unwrap().entries.get(0).unwrap().round, ROUND_MAX);
            assert_eq!(page(ROUND_MAX + 1), Err(kind(format).field("round")));
        }
    }
}
