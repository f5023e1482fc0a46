//! The list of snapshots, as it is on the members: two slots in the region of labels. Byte map:
//! docs/formats/tables.md.
//!
//! Invariant: of the two the one counts that the checkpoint names by counter and checksum. An image
//! that the newest checkpoint does not name says nothing: it was never decided, or is over.
//!
//! This version takes no snapshots: it reads the list for the number that the next one will have, and keeps
//! the list where the checkpoint goes.

use alloc::{string::String, vec::Vec};

use netraid_block::narrow;
use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use crate::{
    checkpoint::ListName,
    label::{NAME_LEN_MAX, Uuid},
    page::{About, COUNTER_MAX, HEADER_LEN, Kind, PageError},
    regions::{LIST_LEN, LIST_OFFSETS},
    stripes::SNAPSHOT_NUMBER_MAX,
};

/// Snapshots that an array has at most: what fills a list.
pub const SNAPSHOTS_MAX: usize = 95;

const KIND: Kind =
    Kind { magic: *b"NRSNAPS\n", version: 1, what: "list of snapshots", len: LIST_LEN };

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its number; a later one has a larger number.
    pub number: u32,
    /// What else is to be known of it; none is defined yet.
    pub flags: u32,
    /// When it was taken, in milliseconds since 1970.
    pub time_ms: u64,
    /// Bytes of the volume then.
    pub capacity: u64,
    /// Its identity.
    pub uuid: Uuid,
    /// Its name, at most 63 bytes.
    pub name: String,
}

/// All snapshots of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotList {
    /// Raised with each image; 0: there is no list.
    pub counter: u64,
    /// The number that the next snapshot will have, from 1.
    pub next_number: u32,
    /// The snapshot that the volume is being set back to; 0: none.
    pub rolling_back: u32,
    /// The snapshots, ascending by number.
    pub snapshots: Vec<Snapshot>,
    /// The image has something where this version writes zeros.
    pub has_more: bool,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawList {
    next_number: U32,
    rolling_back: U32,
    count: U32,
    reserved: [u8; 52],
    snapshots: [RawSnapshot; SNAPSHOTS_MAX],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawSnapshot {
    number: U32,
    flags: U32,
    time_ms: U64,
    capacity: U64,
    uuid: Uuid,
    name: [u8; NAME_LEN_MAX + 1],
    reserved: [u8; 24],
}

const _: () =
    assert!(HEADER_LEN + size_of::<RawList>() == LIST_LEN as usize, "a list fills its slot");

impl SnapshotList {
    /// No snapshot was ever taken.
    pub const EMPTY: Self = Self {
        counter: 0,
        next_number: 1,
        rolling_back: 0,
        snapshots: Vec::new(),
        has_more: false,
    };

    /// Where on each member the image goes.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        LIST_OFFSETS[(self.counter % 2) as usize]
    }

    /// The image that goes to [`Self::offset`], and the name of it for a checkpoint.
    ///
    /// # Panics
    /// When there are more snapshots than [`SNAPSHOTS_MAX`], a name is too long, or the list is the empty one, or has more
    /// than is known here: that is kept as the bytes that were found.
    #[must_use]
    pub fn encode(&self, array_uuid: Uuid) -> (Vec<u8>, ListName) {
        assert!(self.counter > 0 && !self.has_more, "there is no image of this list");
        assert!(self.snapshots.len() <= SNAPSHOTS_MAX, "{} snapshots", self.snapshots.len());
        let mut raw = RawList::new_zeroed();
        raw.next_number = self.next_number.into();
        raw.rolling_back = self.rolling_back.into();
        raw.count = narrow::<_, u32>(self.snapshots.len()).into();
        for (raw, snapshot) in raw.snapshots.iter_mut().zip(&self.snapshots) {
            assert!(snapshot.name.len() <= NAME_LEN_MAX, "name too long");
            raw.number = snapshot.number.into();
            raw.flags = snapshot.flags.into();
            raw.time_ms = snapshot.time_ms.into();
            raw.capacity = snapshot.capacity.into();
            raw.uuid = snapshot.uuid;
            raw.name[..snapshot.name.len()].copy_from_slice(snapshot.name.as_bytes());
        }
        let about = About { counter: self.counter, ..About::default() };
        let image = KIND.encode(about, array_uuid, self.offset(), raw.as_bytes());
        let name = ListName { counter: self.counter, crc: KIND.crc_of(&image) };
        (image, name)
    }

    /// Reads what stands in slot `slot` (0 or 1), and its name.
    ///
    /// # Errors
    /// When it is no list of that array in that slot, or an impossible one.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn decode(
        bytes: &[u8],
        array_uuid: Uuid,
        slot: usize,
    ) -> Result<(Self, ListName), PageError> {
        let (about, payload) = KIND.decode(bytes, array_uuid, LIST_OFFSETS[slot])?;
        let raw = RawList::ref_from_bytes(payload).map_err(|_| KIND.field("length"))?;
        let used = raw.snapshots.get(..raw.count.get() as usize);
        let used = used.ok_or(KIND.field("number of snapshots"))?;
        let has_more = raw.has_more(used.len());
        let snapshots: Option<Vec<Snapshot>> = used.iter().map(RawSnapshot::interpret).collect();
        let snapshots = snapshots.ok_or(KIND.field("name of a snapshot"))?;
        let list = Self {
            counter: about.counter,
            next_number: raw.next_number.get(),
            rolling_back: raw.rolling_back.get(),
            snapshots,
            has_more,
        };
        let numbers = || list.snapshots.iter().map(|snapshot| snapshot.number);
        let ascend = numbers().zip(numbers().skip(1)).all(|(one, next)| one < next);
        let are_before = numbers().all(|number| (1..list.next_number).contains(&number));
        let impossible = [
            ("slot", list.counter == 0 || list.offset() != LIST_OFFSETS[slot]),
            ("counter", list.counter > COUNTER_MAX),
            ("next number", !(1..=SNAPSHOT_NUMBER_MAX).contains(&list.next_number)),
            ("order", !ascend || !are_before),
            ("snapshot to roll back to", list.rolling_back >= list.next_number),
        ];
        match impossible.into_iter().find(|(_, impossible)| *impossible) {
            Some((field, _)) => Err(KIND.field(field)),
            None => Ok((list, ListName { counter: about.counter, crc: KIND.crc_of(bytes) })),
        }
    }

    /// Whether there is anything that a version needs to know of that takes snapshots.
    #[must_use]
    pub const fn is_in_use(&self) -> bool {
        !self.snapshots.is_empty() || self.rolling_back != 0 || self.has_more
    }
}

impl RawList {
    /// Whether there is something in a place where zeros are written, of a list with so many snapshots.
    fn has_more(&self, used: usize) -> bool {
        let is_more = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0);
        let (used, free) = self.snapshots.split_at(used);
        is_more(&self.reserved)
            || is_more(free.as_bytes())
            || used.iter().any(|one| one.flags.get() != 0 || is_more(&one.reserved))
    }
}

impl RawSnapshot {
    fn interpret(&self) -> Option<Snapshot> {
        let end = self.name.iter().position(|byte| *byte == 0)?;
        Some(Snapshot {
            number: self.number.get(),
            flags: self.flags.get(),
            time_ms: self.time_ms.get(),
            capacity: self.capacity.get(),
            uuid: self.uuid,
            name: String::from(core::str::from_utf8(&self.name[..end]).ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::tests::forge;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    const UUID: Uuid = [5; 16];

    fn snapshot(number: u32) -> Snapshot {
        Snapshot {
            number,
            flags: 0,
            time_ms: 1 << 40,
            capacity: 1 << 45,
            uuid: [7; 16],
            name: "n".repeat(NAME_LEN_MAX),
        }
    }

    fn full() -> SnapshotList {
        let snapshots = (1..).map(|at| snapshot(at * 3)).take(SNAPSHOTS_MAX).collect();
        let next_number = 1000;
        SnapshotList { counter: 7, next_number, rolling_back: 3, snapshots, has_more: false }
    }

    #[test]
    fn a_list_is_read_in_its_slot_with_its_name_and_nowhere_else() {
        let none = SnapshotList { counter: 8, ..SnapshotList::EMPTY };
        for list in [full(), none] {
            let (image, name) = list.encode(UUID);
            assert_eq!((image.len(), name.counter), (LIST_LEN as usize, list.counter));
            let slot = name.slot();
            assert_eq!(SnapshotList::decode(&image, UUID, slot), Ok((list, name)));
            let absent = Err(PageError::Absent("list of snapshots"));
            assert_eq!(SnapshotList::decode(&image, UUID, 1 - slot), absent);
            assert_eq!(SnapshotList::decode(&image, [6; 16], slot), absent);
        }
    }

    #[test]
    fn two_lists_that_differ_have_different_names() {
        let (_, name) = full().encode(UUID);
        let mut other = full();
        other.snapshots.pop();
        assert_ne!(other.encode(UUID).1, name);
        assert_ne!(SnapshotList { counter: 9, ..full() }.encode(UUID).1, name);
    }

    #[test]
    fn lists_that_cannot_be_are_refused() {
        let read = |list: &SnapshotList| SnapshotList::decode(&list.encode(UUID).0, UUID, 1);
        let with = |next_number, numbers: &[u32]| {
            let snapshots = numbers.iter().map(|number| snapshot(*number)).collect();
            read(&SnapshotList { counter: 1, next_number, snapshots, ..SnapshotList::EMPTY })
        };
        assert!(with(5, &[1, 4]).is_ok() && with(SNAPSHOT_NUMBER_MAX, &[]).is_ok());
        for (next_number, numbers) in [
            (0, &[][..]),
            (SNAPSHOT_NUMBER_MAX + 1, &[]),
            (5, &[4, 1]),
            (5, &[2, 2]),
            (5, &[5]),
            (5, &[0]),
        ] {
            let error = with(next_number, numbers).unwrap_err();
            assert!(matches!(error, PageError::Field { .. }), "{next_number} {numbers:?}: {error}");
        }
        let ahead = SnapshotList { rolling_back: 1000, ..full() };
        assert_eq!(read(&ahead), Err(KIND.field("snapshot to roll back to")));
    }

    #[test]
    fn what_stands_where_zeros_are_written_is_in_use_by_a_later_version() {
        let none = SnapshotList { counter: 1, ..SnapshotList::EMPTY };
        let (image, _) = none.encode(UUID);
        assert!(!none.is_in_use());
        for at in [76, 127, 128, LIST_LEN as usize - 1] {
            let forged = forge(&image, LIST_OFFSETS[1], |bytes| bytes[at] = 1);
            let (list, _) = SnapshotList::decode(&forged, UUID, 1).unwrap();
            assert!(list.is_in_use(), "byte {at}");
        }
        let one = SnapshotList { next_number: 5, snapshots: [snapshot(3)].into(), ..none };
        let (image, _) = one.encode(UUID);
        for (at, has_more) in [(132, true), (128 + 104, true), (128 + 103, false)] {
            let forged = forge(&image, LIST_OFFSETS[1], |bytes| bytes[at] = u8::from(has_more));
            let (list, _) = SnapshotList::decode(&forged, UUID, 1).unwrap();
            assert_eq!(list.has_more, has_more, "byte {at}");
        }
    }

    #[test]
    fn nonsense_with_a_right_checksum_is_an_error_and_no_panic() {
        let (image, _) = full().encode(UUID);
        let mut rng = StdRng::seed_from_u64(3);
        let mut read = 0;
        for _ in 0..20_000 {
            let forged = forge(&image, LIST_OFFSETS[1], |bytes| {
                for _ in 0..rng.random_range(1..4) {
                    let at = rng.random_range(32..400);
                    bytes[at] = rng.random();
                }
            });
            if let Ok((list, name)) = SnapshotList::decode(&forged, UUID, 1) {
                assert_eq!(list.counter, name.counter);
                assert!(list.snapshots.len() <= SNAPSHOTS_MAX);
                read += 1;
            }
        }
        assert!(read > 500, "{read}");
    }
}
