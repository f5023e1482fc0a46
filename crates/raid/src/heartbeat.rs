//! Heartbeats: an engine that another one stands by for writes once a second to its members that it is alive. Who stands by
//! reads that, and judges by it ([`crate::standby`]).
//!
//! A heartbeat is beside the label, in a place that programs which do not know it leave as it is. Byte map:
//! docs/formats/array.md. Invariant: a heartbeat of another array, or of a later version, is never taken for one of this array.
//! A heartbeat proves nothing to who opens an array: labels, locks and reservations alone do.

use alloc::vec::Vec;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian::U64};

use crate::{
    fencing::hash,
    label::Uuid,
    page::{About, COUNTER_MAX, Kind, PageError},
    regions::{HEARTBEAT_OFFSETS, PAGE_LEN},
};

const KIND: Kind = Kind { magic: *b"NRALIVE\n", version: 1, what: "heartbeat", len: PAGE_LEN };

/// What an engine says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Heartbeat {
    /// The engine, as labels name their holder.
    pub engine: Uuid,
    /// The generation of the engine's labels.
    pub generation: u64,
    /// Raised with each heartbeat of the engine.
    pub counter: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeartbeat {
    engine: Uuid,
    generation: U64,
}

impl Heartbeat {
    /// Where on the member it goes.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        HEARTBEAT_OFFSETS[(self.counter % 2) as usize]
    }

    /// The one after this, of an engine whose labels have this generation.
    #[must_use]
    pub const fn next(&self, engine: Uuid, generation: u64) -> Self {
        let counter = if self.counter < COUNTER_MAX { self.counter + 1 } else { COUNTER_MAX };
        Self { engine, generation, counter }
    }

    /// The bytes for [`Self::offset`].
    #[must_use]
    pub fn encode(&self, array_uuid: Uuid) -> Vec<u8> {
        let raw = RawHeartbeat { engine: self.engine, generation: self.generation.into() };
        let about = About { counter: self.counter, ..About::default() };
        KIND.encode(about, array_uuid, self.offset(), raw.as_bytes())
    }

    /// Reads what stands in a slot.
    ///
    /// # Errors
    /// When no heartbeat of this array stands there, or one of a later version.
    pub fn decode(bytes: &[u8], array_uuid: Uuid, slot: usize) -> Result<Self, PageError> {
        let place = *HEARTBEAT_OFFSETS.get(slot).ok_or(KIND.field("slot"))?;
        let (about, payload) = KIND.decode(bytes, array_uuid, place)?;
        let (raw, _) = RawHeartbeat::ref_from_prefix(payload).map_err(|_| KIND.field("length"))?;
        let (engine, generation) = (raw.engine, raw.generation.get());
        Ok(Self { engine, generation, counter: about.counter })
    }

    /// Tells it from any other: a number that is not zero.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let numbers = [self.generation, self.counter].map(u64::to_le_bytes);
        hash(self.engine.into_iter().chain(numbers.into_iter().flatten())) | 1
    }

    /// The newest heartbeat in the slots of a member, where there is one: an engine of a later generation goes before.
    pub fn newest<'a>(array_uuid: Uuid, slots: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        let slots = slots.into_iter().enumerate();
        let all = slots.filter_map(|(slot, bytes)| Self::decode(bytes, array_uuid, slot).ok());
        all.max_by_key(|beat| (beat.generation, beat.counter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::tests::forge;

    const ARRAY: Uuid = [1; 16];

    fn beat(generation: u64, counter: u64) -> Heartbeat {
        Heartbeat { engine: [9; 16], generation, counter }
    }

    #[test]
    fn a_heartbeat_reads_back_from_its_slot_and_from_no_other() {
        let beat = beat(41, 7);
        let bytes = beat.encode(ARRAY);
        assert_eq!((bytes.len(), beat.offset()), (4096, 56 << 10));
        assert_eq!(Heartbeat::decode(&bytes, ARRAY, 1), Ok(beat));
        for (array, slot) in [(ARRAY, 0), ([2; 16], 1), (ARRAY, 2)] {
            assert!(Heartbeat::decode(&bytes, array, slot).is_err());
        }
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(Heartbeat::decode(&bad, ARRAY, 1).is_err(), "byte {at}");
        }
        let later = forge(&bytes, beat.offset(), |bytes| bytes[8] = 2);
        let found = Heartbeat::decode(&later, ARRAY, 1);
        assert!(matches!(found, Err(PageError::Version { found: 2, known: 1, .. })), "{found:?}");
    }

    #[test]
    fn the_byte_map_is_as_it_is_written_down() {
        let bytes = beat(0x0203, 6).encode(ARRAY);
        assert_eq!((&bytes[..8], bytes[64..80].to_vec()), (&b"NRALIVE\n"[..], [9; 16].to_vec()));
        assert_eq!(bytes[80..88], [3, 2, 0, 0, 0, 0, 0, 0]);
        assert!(bytes[88..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn the_newest_heartbeat_is_of_the_last_engine() {
        // The engine before had counted further.
        let (before, now) = (beat(3, 901), beat(4, 2));
        let newest = |even: Heartbeat, odd: Heartbeat| {
            let slots = [even.encode(ARRAY), odd.encode(ARRAY)];
            Heartbeat::newest(ARRAY, slots.iter().map(Vec::as_slice))
        };
        assert_eq!(newest(now, before), Some(now));
        assert_eq!(newest(now, beat(4, 3)), Some(beat(4, 3)));
        assert_eq!(Heartbeat::newest(ARRAY, [&[0; 4096][..], &[0; 4096]]), None);
    }
}
