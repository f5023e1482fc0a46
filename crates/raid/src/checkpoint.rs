//! The checkpoint: where the log begins, which rounds are over, and what each member that was
//! away has caught up. Two slots a member; the newest valid one of any member counts.
//! Byte map: docs/formats/tables.md.
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
    log::{Link, Position},
    member::MEMBERS_MAX,
    regions::PAGE_LEN,
    stripes::Entry,
};

const MAGIC: [u8; 8] = *b"NRCHECK\n";
const VERSION: u16 = 0;
/// No array lives to make so many; a checkpoint with a larger number is forged.
const COUNTER_MAX: u64 = 1 << 60;

/// What a member lacks, as far as it is known: every stripe that changed since it was complete,
/// less those that it has caught up.
///
/// A member that is in sync lacks nothing ([`Lack::NOTHING`]); one that is empty lacks all
/// ([`Lack::ALL`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lack {
    /// Stripes from `mark` on that changed in this round or later.
    pub left: u32,
    /// Stripes below `mark` that changed in this round or later: it left again while it was
    /// catching up.
    pub left_again: u32,
    /// Where the two bounds part.
    pub mark: u32,
    /// Stripes below this one are caught up, whatever the bounds say.
    pub caught_up: u32,
}

impl Lack {
    /// In sync.
    pub const NOTHING: Self =
        Self { left: u32::MAX, left_again: u32::MAX, mark: 0, caught_up: u32::MAX };
    /// An empty member.
    pub const ALL: Self = Self { left: 0, left_again: 0, mark: 0, caught_up: 0 };

    /// A member that was in sync at the end of `round` and takes part no more.
    #[must_use]
    pub const fn since(round: u32) -> Self {
        Self { left: round + 1, left_again: round + 1, mark: 0, caught_up: 0 }
    }

    /// Whether the member lacks what was written to a mapped stripe.
    #[must_use]
    pub const fn has(&self, physical: u32, entry: Entry) -> bool {
        let bound = if physical < self.mark { self.left_again } else { self.left };
        physical >= self.caught_up && entry.round >= bound
    }

    /// The member leaves again; it was complete, as far as it had caught up, at the end of
    /// `round`. What it lacks may be said to be more than it is, never less.
    #[must_use]
    pub const fn leave_again(&self, round: u32) -> Self {
        let older = if self.left < self.left_again { self.left } else { self.left_again };
        Self { left: older, left_again: round + 1, mark: self.caught_up, caught_up: 0 }
    }
}

/// A checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The generation that made it.
    pub generation: u64,
    /// Raised with each; of two the larger (generation, counter) counts.
    pub counter: u64,
    /// The last round that is over.
    pub round: u32,
    /// Where the log begins, and what its first batch follows.
    pub tail: Link,
    /// By member.
    pub lacks: Vec<Lack>,
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
struct RawLack {
    left: U32,
    left_again: U32,
    mark: U32,
    caught_up: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U16,
    members: U16,
    crc: U32,
    array_uuid: Uuid,
    generation: U64,
    counter: U64,
    tail: U64,
    tail_crc: U32,
    round: U32,
    lacks: [RawLack; MEMBERS_MAX],
    reserved: [u8; 3008],
}

const _: () = assert!(size_of::<Raw>() == PAGE_LEN as usize, "a checkpoint fills its slot");

impl Checkpoint {
    /// The image that goes to `place`, an offset on the members.
    ///
    /// # Panics
    /// When there are more members than an array can have.
    #[must_use]
    pub fn encode(&self, array_uuid: Uuid, place: u64) -> Vec<u8> {
        assert!(self.lacks.len() <= MEMBERS_MAX, "{} members", self.lacks.len());
        let mut raw = Raw::new_zeroed();
        raw.magic = MAGIC;
        raw.version = VERSION.into();
        raw.members = u16::try_from(self.lacks.len()).unwrap_or(u16::MAX).into();
        raw.array_uuid = array_uuid;
        raw.generation = self.generation.into();
        raw.counter = self.counter.into();
        raw.tail = self.tail.end.0.into();
        raw.tail_crc = self.tail.crc.into();
        raw.round = self.round.into();
        for (raw, lack) in raw.lacks.iter_mut().zip(&self.lacks) {
            *raw = RawLack {
                left: lack.left.into(),
                left_again: lack.left_again.into(),
                mark: lack.mark.into(),
                caught_up: lack.caught_up.into(),
            };
        }
        raw.crc = crc32c(place, &[raw.as_bytes()]).into();
        raw.as_bytes().to_vec()
    }

    /// Reads an image that stands at `place`.
    ///
    /// # Errors
    /// When it is no checkpoint of that array at that place.
    pub fn decode(bytes: &[u8], array_uuid: Uuid, place: u64) -> Result<Self, CheckpointError> {
        let mut raw = Raw::read_from_bytes(bytes).map_err(|_| CheckpointError::Absent)?;
        let found = core::mem::take(&mut raw.crc).get();
        let is_ours = raw.magic == MAGIC && raw.array_uuid == array_uuid;
        if !is_ours || found != crc32c(place, &[raw.as_bytes()]) {
            return Err(CheckpointError::Absent);
        }
        if raw.version.get() != VERSION {
            return Err(CheckpointError::Version(raw.version.get()));
        }
        if raw.generation.get().max(raw.counter.get()).max(raw.tail.get()) > COUNTER_MAX {
            return Err(CheckpointError::Field("counter"));
        }
        if usize::from(raw.members.get()) > MEMBERS_MAX {
            return Err(CheckpointError::Field("number of members"));
        }
        let lack = |raw: &RawLack| Lack {
            left: raw.left.get(),
            left_again: raw.left_again.get(),
            mark: raw.mark.get(),
            caught_up: raw.caught_up.get(),
        };
        Ok(Self {
            generation: raw.generation.get(),
            counter: raw.counter.get(),
            round: raw.round.get(),
            tail: Link { end: Position(raw.tail.get()), crc: raw.tail_crc.get() },
            lacks: raw.lacks.iter().take(raw.members.get().into()).map(lack).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::vec;

    #[test]
    fn a_checkpoint_is_read_at_its_place_and_nowhere_else() {
        let checkpoint = Checkpoint {
            generation: 4,
            counter: 19,
            round: 7,
            tail: Link { end: Position(12_345), crc: 0xdead_beef },
            lacks: vec![Lack::NOTHING, Lack::ALL, Lack::since(6).leave_again(7)],
        };
        let image = checkpoint.encode([1; 16], 4096);
        assert_eq!(Checkpoint::decode(&image, [1; 16], 4096), Ok(checkpoint));
        let absent = Err(CheckpointError::Absent);
        assert_eq!(Checkpoint::decode(&image, [1; 16], 0), absent);
        assert_eq!(Checkpoint::decode(&image, [2; 16], 4096), absent);
        for at in 0..image.len() {
            let mut bad = image.clone();
            bad[at] ^= 128;
            assert_eq!(Checkpoint::decode(&bad, [1; 16], 4096), absent, "byte {at}");
        }
    }

    /// A member that comes and goes, against a set of what it lacks that is kept stripe by stripe.
    #[test]
    fn what_a_member_lacks_is_never_said_to_be_less_than_it_is() {
        const STRIPES: u32 = 30;
        let (mut said_too_much, mut asked) = (0_u64, 0_u64);
        for seed in 0..400 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut entries = vec![Entry::default(); STRIPES as usize];
            // What the member lacks now, and what it would lack if its cache were lost now.
            let mut lacking = vec![false; STRIPES as usize];
            let mut unstable = vec![false; STRIPES as usize];
            let (mut lack, mut stable_lack) = (Lack::NOTHING, Lack::NOTHING);
            let (mut is_live, mut round) = (true, 0);
            for _ in 0..300 {
                match rng.random_range(0..10) {
                    0..=4 => {
                        let at = rng.random_range(0..STRIPES as usize);
                        entries[at] = Entry { logical: Some(0), round: round + 1 };
                        if is_live { unstable[at] = true } else { lacking[at] = true }
                    }
                    5 => {
                        // A checkpoint: what the member did is stable.
                        round += 1;
                        unstable.fill(false);
                        stable_lack = lack;
                    }
                    6 if is_live => {
                        // It leaves, with its cache: back to the last checkpoint.
                        is_live = false;
                        let synced = stable_lack == Lack::NOTHING;
                        lack = if synced {
                            Lack::since(round)
                        } else {
                            stable_lack.leave_again(round)
                        };
                        for at in 0..STRIPES as usize {
                            lacking[at] |= core::mem::take(&mut unstable[at]);
                        }
                        stable_lack = lack;
                    }
                    7 => is_live = true,
                    _ if is_live && lack != Lack::NOTHING => {
                        // It catches up the next stripe.
                        let at = lack.caught_up;
                        if at < STRIPES {
                            if core::mem::take(&mut lacking[at as usize]) {
                                unstable[at as usize] = true;
                            }
                            lack.caught_up += 1;
                        } else if unstable.iter().all(|one| !one) {
                            (lack, stable_lack) = (Lack::NOTHING, Lack::NOTHING);
                        }
                    }
                    _ => {}
                }
                for at in 0..STRIPES {
                    let really = lacking[at as usize];
                    let said = lack.has(at, entries[at as usize]);
                    assert!(said || !really, "seed {seed}: stripe {at}");
                    said_too_much += u64::from(said && !really);
                    asked += 1;
                }
            }
        }
        assert!(said_too_much * 3 < asked, "{said_too_much} of {asked}");
    }
}
