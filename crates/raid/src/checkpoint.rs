//! The checkpoint: where the log begins, and which rounds are over. Two slots a member; the newest
//! valid one of any member counts. Byte map: docs/formats/tables.md.
//!
//! Invariant: when a checkpoint is stable, everything that the log says below its tail is home,
//! in data, parity and tables, stable on every member that takes part.

use alloc::vec::Vec;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use crate::{
    format::Format,
    label::Uuid,
    lack::ROUND_MAX,
    log::{Link, Position},
    page::{About, COUNTER_MAX, Kind, PageError},
    regions::{CHECKPOINT_OFFSETS, PAGE_LEN},
};

const KIND: Kind = Kind { magic: *b"NRCHECK\n", version: 1, what: "checkpoint", len: PAGE_LEN };

/// Which list of snapshots counts: of two, the one that the checkpoint names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListName {
    /// The list's counter; 0: there is no list, and no snapshot was ever taken.
    pub counter: u64,
    /// The checksum in the list's header.
    pub crc: u32,
}

impl ListName {
    /// No list.
    pub const NONE: Self = Self { counter: 0, crc: 0 };

    /// Which of the two slots the list is in.
    #[must_use]
    pub const fn slot(&self) -> usize {
        (self.counter % 2) as usize
    }
}

/// A checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    /// The generation that made it.
    pub generation: u64,
    /// Raised with each; of two the larger (generation, counter) counts.
    pub counter: u64,
    /// The last round that is over.
    pub round: u32,
    /// Where the log begins, and what its first batch follows.
    pub tail: Link,
    /// How many images the pages of the stripe table have had, all together: who finds fewer has
    /// not found the newest of each.
    pub stripe_images: u64,
    /// The list of snapshots that counts; none in an array of [`Format::One`](crate::format::Format::One).
    pub list: ListName,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    generation: U64,
    tail: U64,
    tail_crc: U32,
    round: U32,
    stripe_images: U64,
    list_counter: U64,
    list_crc: U32,
}

impl Checkpoint {
    /// Which of the two slots it goes to: the one that the checkpoint before it does not have.
    #[must_use]
    pub const fn slot(&self) -> usize {
        (self.counter % 2) as usize
    }

    /// Where on each member it goes.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        CHECKPOINT_OFFSETS[self.slot()]
    }

    /// The image that goes to [`Self::offset`].
    #[must_use]
    pub fn encode(&self, array_uuid: Uuid) -> Vec<u8> {
        let raw = Raw {
            generation: self.generation.into(),
            tail: self.tail.end.0.into(),
            tail_crc: self.tail.crc.into(),
            round: self.round.into(),
            stripe_images: self.stripe_images.into(),
            list_counter: self.list.counter.into(),
            list_crc: self.list.crc.into(),
        };
        let about = About { counter: self.counter, ..About::default() };
        KIND.encode(about, array_uuid, self.offset(), raw.as_bytes())
    }

    /// As an array of that format has it: in the first one there are no lists.
    #[must_use]
    pub const fn of(self, format: Format) -> Self {
        match format {
            Format::One => Self { list: ListName::NONE, ..self },
            Format::Two => self,
        }
    }

    /// Reads what stands in slot `slot` (0 or 1).
    ///
    /// # Errors
    /// When it is no checkpoint of that array in that slot.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn decode(bytes: &[u8], array_uuid: Uuid, slot: usize) -> Result<Self, PageError> {
        let (about, payload) = KIND.decode(bytes, array_uuid, CHECKPOINT_OFFSETS[slot])?;
        let (raw, _) = Raw::read_from_prefix(payload).map_err(|_| KIND.field("length"))?;
        let checkpoint = Self {
            generation: raw.generation.get(),
            counter: about.counter,
            round: raw.round.get(),
            tail: Link { end: Position(raw.tail.get()), crc: raw.tail_crc.get() },
            stripe_images: raw.stripe_images.get(),
            list: ListName { counter: raw.list_counter.get(), crc: raw.list_crc.get() },
        };
        let impossible = [
            ("slot", checkpoint.slot() != slot),
            ("generation", checkpoint.generation > COUNTER_MAX),
            ("tail", checkpoint.tail.end.0 > COUNTER_MAX),
            ("round", checkpoint.round > ROUND_MAX),
            ("list", checkpoint.list.counter > COUNTER_MAX),
            ("list", checkpoint.list.counter == 0 && checkpoint.list != ListName::NONE),
        ];
        match impossible.into_iter().find(|(_, impossible)| *impossible) {
            Some((field, _)) => Err(KIND.field(field)),
            None => Ok(checkpoint),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::tests::forge;

    #[test]
    fn a_checkpoint_is_read_in_its_slot_and_nowhere_else() {
        let tail = Link { end: Position(12_345), crc: 0xdead_beef };
        for counter in [18, 19] {
            let stripe_images = 1 << 63;
            let list = ListName { counter: 3, crc: 0x1234_5678 };
            let checkpoint =
                Checkpoint { generation: 4, counter, round: 7, tail, stripe_images, list };
            let image = checkpoint.encode([1; 16]);
            let slot = checkpoint.slot();
            assert_eq!(Checkpoint::decode(&image, [1; 16], slot), Ok(checkpoint));
            let absent = Err(PageError::Absent("checkpoint"));
            assert_eq!(Checkpoint::decode(&image, [1; 16], 1 - slot), absent);
            assert_eq!(Checkpoint::decode(&image, [2; 16], slot), absent);
            // Its counter says that it belongs into the other slot.
            let forged = forge(&image, checkpoint.offset(), |bytes| bytes[40] ^= 1);
            assert_eq!(Checkpoint::decode(&forged, [1; 16], slot), Err(KIND.field("slot")));
        }
    }

    #[test]
    fn numbers_that_no_array_reaches_are_refused_and_the_last_that_it_may_are_read() {
        let read = |checkpoint: Checkpoint| {
            Checkpoint::decode(&checkpoint.encode([1; 16]), [1; 16], checkpoint.slot())
        };
        let tail = Link { end: Position(COUNTER_MAX), crc: 1 };
        let last = Checkpoint {
            generation: COUNTER_MAX,
            counter: COUNTER_MAX,
            round: ROUND_MAX,
            tail,
            stripe_images: u64::MAX,
            list: ListName { counter: COUNTER_MAX, crc: u32::MAX },
        };
        assert_eq!(read(last), Ok(last));
        let beyond = Position(COUNTER_MAX + 1);
        for forged in [
            Checkpoint { generation: COUNTER_MAX + 1, ..last },
            Checkpoint { counter: COUNTER_MAX + 1, ..last },
            Checkpoint { tail: Link { end: beyond, ..tail }, ..last },
            Checkpoint { round: ROUND_MAX + 1, ..last },
            Checkpoint { list: ListName { counter: COUNTER_MAX + 1, crc: 0 }, ..last },
            Checkpoint { list: ListName { counter: 0, crc: 1 }, ..last },
        ] {
            assert!(matches!(read(forged), Err(PageError::Field { .. })), "{forged:?}");
        }
    }
}
