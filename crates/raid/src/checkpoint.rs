//! The checkpoint: where the log begins, and which rounds are over. Two slots a member; the newest
//! valid one of any member counts. Byte map: docs/formats/tables.md.
//!
//! Invariant: when a checkpoint is stable, everything that the log says below its tail is home,
//! in data, parity and tables, stable on every member that takes part.

use alloc::vec::Vec;

use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use crate::{
    label::{Uuid, crc32c},
    lack::ROUND_MAX,
    log::{Link, Position},
    regions::{CHECKPOINT_OFFSETS, PAGE_LEN},
};

const MAGIC: [u8; 8] = *b"NRCHECK\n";
const VERSION: u16 = 0;
/// No array lives to make so many; a checkpoint with a larger number is forged.
const COUNTER_MAX: u64 = 1 << 60;

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
}

/// Why bytes are no checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// Nothing of this array stands here, or it is torn.
    #[error("no checkpoint")]
    Absent,
    /// Written by another version.
    #[error(
        "a checkpoint has version {0}, this program knows {VERSION}; use a version that knows it"
    )]
    Version(u16),
    /// A field with an impossible value, although the checksum matches.
    #[error("a checkpoint's {0} is invalid")]
    Field(&'static str),
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U16,
    reserved: U16,
    crc: U32,
    array_uuid: Uuid,
    generation: U64,
    counter: U64,
    tail: U64,
    tail_crc: U32,
    round: U32,
    tail_of_page: [u8; 4032],
}

const _: () = assert!(size_of::<Raw>() == PAGE_LEN as usize, "a checkpoint fills its slot");

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
        let mut raw = Raw::new_zeroed();
        raw.magic = MAGIC;
        raw.version = VERSION.into();
        raw.array_uuid = array_uuid;
        raw.generation = self.generation.into();
        raw.counter = self.counter.into();
        raw.tail = self.tail.end.0.into();
        raw.tail_crc = self.tail.crc.into();
        raw.round = self.round.into();
        raw.crc = crc32c(self.offset(), &[raw.as_bytes()]).into();
        raw.as_bytes().to_vec()
    }

    /// Reads what stands in slot `slot` (0 or 1).
    ///
    /// # Errors
    /// When it is no checkpoint of that array in that slot.
    pub fn decode(bytes: &[u8], array_uuid: Uuid, slot: usize) -> Result<Self, CheckpointError> {
        let mut raw = Raw::read_from_bytes(bytes).map_err(|_| CheckpointError::Absent)?;
        let found = core::mem::take(&mut raw.crc).get();
        let is_ours = raw.magic == MAGIC && raw.array_uuid == array_uuid;
        if !is_ours || found != crc32c(CHECKPOINT_OFFSETS[slot], &[raw.as_bytes()]) {
            return Err(CheckpointError::Absent);
        }
        if raw.version.get() != VERSION {
            return Err(CheckpointError::Version(raw.version.get()));
        }
        if raw.generation.get().max(raw.counter.get()).max(raw.tail.get()) > COUNTER_MAX {
            return Err(CheckpointError::Field("counter"));
        }
        if raw.round.get() > ROUND_MAX {
            return Err(CheckpointError::Field("round"));
        }
        let checkpoint = Self {
            generation: raw.generation.get(),
            counter: raw.counter.get(),
            round: raw.round.get(),
            tail: Link { end: Position(raw.tail.get()), crc: raw.tail_crc.get() },
        };
        if checkpoint.slot() == slot {
            Ok(checkpoint)
        } else {
            Err(CheckpointError::Field("counter"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_read_in_its_slot_and_nowhere_else() {
        let tail = Link { end: Position(12_345), crc: 0xdead_beef };
        for counter in [18, 19] {
            let checkpoint = Checkpoint { generation: 4, counter, round: 7, tail };
            let image = checkpoint.encode([1; 16]);
            let slot = checkpoint.slot();
            assert_eq!(Checkpoint::decode(&image, [1; 16], slot), Ok(checkpoint));
            let absent = Err(CheckpointError::Absent);
            assert_eq!(Checkpoint::decode(&image, [1; 16], 1 - slot), absent);
            assert_eq!(Checkpoint::decode(&image, [2; 16], slot), absent);
            for at in 0..image.len() {
                let mut bad = image.clone();
                bad[at] ^= 128;
                assert_eq!(Checkpoint::decode(&bad, [1; 16], slot), absent, "byte {at}");
            }
        }
    }

    #[test]
    fn numbers_that_no_array_reaches_are_refused_and_the_last_that_it_may_are_read() {
        let read = |checkpoint: Checkpoint| {
            Checkpoint::decode(&checkpoint.encode([1; 16]), [1; 16], checkpoint.slot())
        };
        let tail = Link { end: Position(COUNTER_MAX), crc: 1 };
        let last =
            Checkpoint { generation: COUNTER_MAX, counter: COUNTER_MAX, round: ROUND_MAX, tail };
        assert_eq!(read(last), Ok(last));
        let beyond = Position(COUNTER_MAX + 1);
        for forged in [
            Checkpoint { generation: COUNTER_MAX + 1, ..last },
            Checkpoint { counter: COUNTER_MAX + 1, ..last },
            Checkpoint { tail: Link { end: beyond, ..tail }, ..last },
            Checkpoint { round: ROUND_MAX + 1, ..last },
        ] {
            assert!(matches!(read(forged), Err(CheckpointError::Field(_))), "{forged:?}");
        }
    }
}
