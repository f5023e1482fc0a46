//! What went wrong with a member, counted: in memory, and on the member itself, where it outlives the engine.
//!
//! The counters are beside the label, in a place that programs which do not know it leave as it is. Byte map:
//! docs/formats/array.md. Invariant: counters of another member, of another array or of a later version are never taken for
//! this member's.

use alloc::vec::Vec;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian::U64};

use crate::{
    label::Uuid,
    page::{About, COUNTER_MAX, Kind, PageError},
    regions::{HISTORY_OFFSETS, PAGE_LEN},
};

const KIND: Kind =
    Kind { magic: *b"NRERROR\n", version: 1, what: "page of counters", len: PAGE_LEN };

/// What went wrong with a member since it became this array's, or since its counters were cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// Requests that failed.
    pub errors: u64,
    /// Blocks and pages of 4 KiB whose bytes were not what they should be.
    pub wrong_blocks: u64,
    /// Writes that it had answered and did not have: an older image of itself that came back, and blocks that were written
    /// again and read back as before.
    pub lost_writes: u64,
    /// Blocks of 4 KiB that could not be read.
    pub unreadable_blocks: u64,
    /// Reads that were late.
    pub late_reads: u64,
    /// Sessions that were made again.
    pub reconnects: u64,
}

/// A kind of wrong that is found by looking at what a member has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Blocks or pages that are not what they should be.
    WrongBlocks,
    /// Writes that were answered and are not there.
    LostWrites,
    /// Blocks that cannot be read.
    UnreadableBlocks,
}

impl Faults {
    /// Counts more of a kind.
    pub const fn add(&mut self, fault: Fault, count: u64) {
        let counter = match fault {
            Fault::WrongBlocks => &mut self.wrong_blocks,
            Fault::LostWrites => &mut self.lost_writes,
            Fault::UnreadableBlocks => &mut self.unreadable_blocks,
        };
        *counter = counter.saturating_add(count);
    }

    /// Both together.
    #[must_use]
    pub const fn plus(&self, other: &Self) -> Self {
        Self {
            errors: self.errors.saturating_add(other.errors),
            wrong_blocks: self.wrong_blocks.saturating_add(other.wrong_blocks),
            lost_writes: self.lost_writes.saturating_add(other.lost_writes),
            unreadable_blocks: self.unreadable_blocks.saturating_add(other.unreadable_blocks),
            late_reads: self.late_reads.saturating_add(other.late_reads),
            reconnects: self.reconnects.saturating_add(other.reconnects),
        }
    }
}

/// An image of a member's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultsImage {
    /// Raised with each image; of two the larger counts. 0: there is no image.
    pub counter: u64,
    /// Whose they are.
    pub member: Uuid,
    /// The counters.
    pub faults: Faults,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawFaults {
    member: Uuid,
    errors: U64,
    wrong_blocks: U64,
    lost_writes: U64,
    unreadable_blocks: U64,
    late_reads: U64,
    reconnects: U64,
}

impl FaultsImage {
    /// Where on the member the image goes.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        HISTORY_OFFSETS[(self.counter % 2) as usize]
    }

    /// The image that follows this one.
    #[must_use]
    pub const fn next(&self, member: Uuid, faults: Faults) -> Self {
        let counter = if self.counter < COUNTER_MAX { self.counter + 1 } else { COUNTER_MAX };
        Self { counter, member, faults }
    }

    /// The bytes for [`Self::offset`].
    #[must_use]
    pub fn encode(&self, array_uuid: Uuid) -> Vec<u8> {
        let Faults { errors, wrong_blocks, lost_writes, unreadable_blocks, late_reads, reconnects } =
            self.faults;
        let raw = RawFaults {
            member: self.member,
            errors: errors.into(),
            wrong_blocks: wrong_blocks.into(),
            lost_writes: lost_writes.into(),
            unreadable_blocks: unreadable_blocks.into(),
            late_reads: late_reads.into(),
            reconnects: reconnects.into(),
        };
        let about = About { counter: self.counter, ..About::default() };
        KIND.encode(about, array_uuid, self.offset(), raw.as_bytes())
    }

    /// Reads what stands in a slot.
    ///
    /// # Errors
    /// When no counters of this array stand there, or those of a later version.
    pub fn decode(bytes: &[u8], array_uuid: Uuid, slot: usize) -> Result<Self, PageError> {
        let place = *HISTORY_OFFSETS.get(slot).ok_or(KIND.field("slot"))?;
        let (about, payload) = KIND.decode(bytes, array_uuid, place)?;
        let (raw, _) = RawFaults::ref_from_prefix(payload).map_err(|_| KIND.field("length"))?;
        Ok(Self {
            counter: about.counter,
            member: raw.member,
            faults: Faults {
                errors: raw.errors.get(),
                wrong_blocks: raw.wrong_blocks.get(),
                lost_writes: raw.lost_writes.get(),
                unreadable_blocks: raw.unreadable_blocks.get(),
                late_reads: raw.late_reads.get(),
                reconnects: raw.reconnects.get(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::tests::forge;

    const ARRAY: Uuid = [1; 16];

    fn image() -> FaultsImage {
        let faults = Faults {
            errors: 1,
            wrong_blocks: 416,
            lost_writes: 3,
            unreadable_blocks: 1 << 40,
            late_reads: 5,
            reconnects: u64::MAX,
        };
        FaultsImage { counter: 7, member: [9; 16], faults }
    }

    #[test]
    fn counters_read_back_from_their_slot_and_from_no_other() {
        let image = image();
        let bytes = image.encode(ARRAY);
        assert_eq!((bytes.len(), image.offset()), (4096, 52 << 10));
        assert_eq!(FaultsImage::decode(&bytes, ARRAY, 1), Ok(image));
        assert!(FaultsImage::decode(&bytes, ARRAY, 0).is_err());
        assert!(FaultsImage::decode(&bytes, [2; 16], 1).is_err());
        assert!(FaultsImage::decode(&bytes, ARRAY, 2).is_err());
        assert!(FaultsImage::decode(&[0; 4096], ARRAY, 1).is_err());
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(FaultsImage::decode(&bad, ARRAY, 1).is_err(), "byte {at}");
        }
        // The next one goes where this one is not.
        let next = image.next([8; 16], Faults::default());
        assert_eq!((next.counter, next.offset(), next.member), (8, 20 << 10, [8; 16]));
    }

    #[test]
    fn the_byte_map_is_as_it_is_written_down() {
        let bytes = image().encode(ARRAY);
        assert_eq!(&bytes[..8], b"NRERROR\n");
        assert_eq!(bytes[64..80], [9; 16]);
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!([80, 88, 96, 104, 112, 120].map(number), [1, 416, 3, 1 << 40, 5, u64::MAX]);
        assert!(bytes[128..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_later_version_is_told_apart_from_nothing() {
        let place = HISTORY_OFFSETS[1];
        let later = forge(&image().encode(ARRAY), place, |bytes| bytes[8] = 2);
        let found = FaultsImage::decode(&later, ARRAY, 1);
        assert!(matches!(found, Err(PageError::Version { found: 2, known: 1, .. })), "{found:?}");
        // What is behind the counters may be used by a later one.
        let more = forge(&image().encode(ARRAY), place, |bytes| bytes[4000] = 2);
        assert_eq!(FaultsImage::decode(&more, ARRAY, 1), Ok(image()));
    }

    #[test]
    fn counters_add_up_and_do_not_wrap() {
        let mut faults = Faults::default();
        faults.add(Fault::WrongBlocks, 2);
        faults.add(Fault::LostWrites, 3);
        faults.add(Fault::UnreadableBlocks, u64::MAX);
        faults.add(Fault::UnreadableBlocks, 1);
        let both = faults.plus(&image().faults);
        assert_eq!((both.wrong_blocks, both.lost_writes), (418, 6));
        assert_eq!((both.unreadable_blocks, both.reconnects), (u64::MAX, u64::MAX));
    }
}
