//! What an array that failed had acknowledged and not made stable: a failure of its members' power may undo that, and
//! nothing else of what was acknowledged.
//!
//! What was acknowledged is a prefix of the log, and a whole stripe counts with its REMAP. So the next opening tells how
//! far that prefix is there still: up to where the log ends, or lacks a REMAP. Of what follows, contents that are in
//! memory are written again, and the others are lost. What was written at once with others is lost, too: written again,
//! a part of it might be there without the rest.
//!
//! Does not do: writing again, and telling users; [`crate::volume`] does.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use core::ops::Range;

use netraid_block::{Buf, IoError};
use rangemap::RangeSet;

use super::{
    LoggedArray,
    log::Remaps,
    state::{BLOCK, State},
};
use crate::log::{LogWriter, Position};

/// What was acknowledged and not stable when an array failed.
#[derive(Debug, Clone, Default)]
pub struct Unstable {
    /// Everything below this was acknowledged.
    acked: Position,
    /// In the order of the log.
    remaps: Vec<Remapped>,
    /// By block of the volume.
    dirty: Vec<Block>,
}

/// A logical stripe that has got another place, or none.
#[derive(Debug, Clone)]
struct Remapped {
    position: Position,
    /// Its blocks of the volume.
    blocks: Range<u64>,
    remaps: Remaps,
    /// Blocks whose contents were not stable before, and have moved: with where they were in the log.
    moved: Vec<(u64, Position)>,
}

/// A block of the volume that is in the log.
#[derive(Debug, Clone)]
struct Block {
    block: u64,
    position: Position,
    /// None for zeros.
    data: Option<Buf>,
    is_joined: bool,
}

/// What of it is not on the members.
#[derive(Debug, Clone, Default)]
pub struct Lost {
    /// What is to be written again, in this order.
    pub again: Vec<Again>,
    /// Bytes of the volume that are in memory no more: ascending, apart from each other.
    pub gone: Vec<Range<u64>>,
}

/// Contents that are to be written again.
#[derive(Debug, Clone)]
pub struct Again {
    /// First byte of the volume.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// The contents; none for zeros.
    pub data: Option<Buf>,
}

impl Unstable {
    /// What is lost where everything below `upto` is there, and nothing else is sure to be; none where that is all that
    /// was acknowledged.
    #[must_use]
    pub fn lost(&self, upto: Position) -> Option<Lost> {
        if self.acked <= upto {
            return None;
        }
        let len = |blocks: u64| blocks * u64::from(BLOCK);
        let mut lost = Lost::default();
        let mut gone = RangeSet::new();
        for fate in self.fates(upto).values() {
            let all = fate.blocks.clone();
            if fate.is_zeros {
                let (offset, len) = (len(all.start), len(all.end - all.start));
                lost.again.push(Again { offset, len, data: None });
            } else if fate.is_written {
                gone.insert(all);
            }
            fate.moved.iter().for_each(|block| gone.insert(*block..block + 1));
        }
        // What is in the log and not home is newer than all that.
        for one in self.dirty.iter().filter(|one| one.position >= upto) {
            let range = one.block..one.block + 1;
            if one.is_joined {
                gone.insert(range);
                continue;
            }
            gone.remove(range);
            let (offset, len, data) = (len(one.block), len(1), one.data.clone());
            lost.again.push(Again { offset, len, data });
        }
        lost.gone = gone.iter().map(|range| len(range.start)..len(range.end)).collect();
        Some(lost)
    }

    /// A log of which everything below `acked` was acknowledged, and nothing is stable: a whole stripe with these bytes,
    /// and a block from that byte on.
    #[cfg(test)]
    pub(crate) fn for_tests(acked: u64, stripe: Range<u64>, block: u64) -> Self {
        let len = u64::from(BLOCK);
        let (position, remaps, moved) = (Position(20), Remaps::Written, Vec::new());
        let blocks = stripe.start / len..stripe.end / len;
        let remap = Remapped { position, blocks, remaps, moved };
        let data = Some(Buf::copy_from(&alloc::vec![1; BLOCK as usize]));
        let (block, is_joined) = (block / len, false);
        let dirty = Block { block, position: Position(30), data, is_joined };
        Self { acked: Position(acked), remaps: Vec::from([remap]), dirty: Vec::from([dirty]) }
    }

    /// What became of logical stripes whose REMAPs are not below `upto`, by their first block.
    fn fates(&self, upto: Position) -> BTreeMap<u64, Fate> {
        let mut fates: BTreeMap<u64, Fate> = BTreeMap::new();
        for remap in self.remaps.iter().filter(|remap| remap.position >= upto) {
            let blocks = remap.blocks.clone();
            let fate = fates.entry(blocks.start).or_default();
            match remap.remaps {
                Remaps::Written => *fate = Fate { blocks, is_written: true, ..Fate::default() },
                Remaps::GivenBack => *fate = Fate { blocks, is_zeros: true, ..Fate::default() },
                Remaps::Moved => {
                    fate.blocks = blocks;
                    let lost = remap.moved.iter().filter(|(_, position)| *position >= upto);
                    fate.moved.extend(lost.map(|(block, _)| *block));
                }
            }
        }
        fates
    }
}

/// What became of a logical stripe.
#[derive(Debug, Default)]
struct Fate {
    /// Its blocks of the volume.
    blocks: Range<u64>,
    /// It was given back, and holds zeros.
    is_zeros: bool,
    /// A user has written the whole of it.
    is_written: bool,
    /// Blocks whose contents have moved.
    moved: BTreeSet<u64>,
}

impl LoggedArray {
    /// What was acknowledged and is not stable.
    ///
    /// # Errors
    /// Contents have changed in memory: none of it is to be believed.
    pub fn unstable(&self) -> Result<Unstable, IoError> {
        self.array.state().unstable()
    }

    /// Everything below this position of the log was found when this array was opened; what follows may be lost. Also of
    /// an opening that failed: what it decided counts. None before that is known.
    #[must_use]
    pub fn recovered_upto(&self) -> Option<Position> {
        self.array.state().recovered_upto
    }
}

impl State {
    fn unstable(&self) -> Result<Unstable, IoError> {
        let Some(writer) = &self.log.writer else { return Ok(Unstable::default()) };
        let (stable, acked) = (LogWriter::stable(writer), LogWriter::acked(writer));
        let count = u64::from(self.layout.stripe_blocks());
        let remapped = |remap: &super::log::UnstableRemap| {
            let first = self.layout.first_block(remap.logical);
            Remapped {
                position: remap.position,
                blocks: first..first + count,
                remaps: remap.remaps,
                moved: remap.unstable.clone(),
            }
        };
        let remaps = self.log.unstable.iter().map(remapped).collect();
        let mut dirty = Vec::new();
        for (block, one) in self.dirty.range(0..u64::MAX) {
            if one.position >= stable {
                let data = one.logged(self.layout.checksum, block)?;
                let (position, is_joined) = (one.position, one.is_joined);
                dirty.push(Block { block, position, data, is_joined });
            }
        }
        Ok(Unstable { acked, remaps, dirty })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = BLOCK as u64;

    fn remap(position: u64, blocks: Range<u64>, remaps: Remaps, moved: &[u64]) -> Remapped {
        let moved = moved.iter().map(|block| (*block, Position(position - 5))).collect();
        Remapped { position: Position(position), blocks, remaps, moved }
    }

    fn dirty(position: u64, block: u64, is_joined: bool) -> Block {
        let data = Some(Buf::copy_from(&alloc::vec![1; BLOCK as usize]));
        Block { block, position: Position(position), data, is_joined }
    }

    fn bytes(blocks: Range<u64>) -> Range<u64> {
        blocks.start * LEN..blocks.end * LEN
    }

    fn again(lost: &Lost) -> Vec<(u64, bool)> {
        lost.again.iter().map(|one| (one.offset / LEN, one.data.is_some())).collect()
    }

    #[test]
    fn what_the_log_has_is_not_lost_and_of_the_rest_only_what_is_not_in_memory() {
        let unstable = Unstable {
            acked: Position(100),
            remaps: alloc::vec![
                remap(10, 0..4, Remaps::Written, &[]),
                remap(20, 4..8, Remaps::Written, &[]),
                remap(30, 4..8, Remaps::GivenBack, &[]),
                remap(40, 8..12, Remaps::Moved, &[9, 10]),
                remap(50, 0..4, Remaps::GivenBack, &[]),
                remap(60, 0..4, Remaps::Written, &[]),
            ],
            dirty: alloc::vec![dirty(70, 2, false), dirty(15, 16, false), dirty(80, 20, true)],
        };
        assert!(unstable.lost(Position(100)).is_none() && unstable.lost(Position(120)).is_none());

        let lost = unstable.lost(Position(0)).unwrap();
        assert_eq!(again(&lost), [(4, false), (2, true), (16, true)]);
        assert_eq!(lost.gone, [bytes(0..2), bytes(3..4), bytes(9..11), bytes(20..21)]);

        let lost = unstable.lost(Position(55)).unwrap();
        assert_eq!(again(&lost), [(2, true)]);
        assert_eq!(lost.gone, [bytes(0..2), bytes(3..4), bytes(20..21)]);

        // The log has what was moved by a REMAP that it lacks.
        let lost = unstable.lost(Position(38)).unwrap();
        assert!(!lost.gone.contains(&bytes(9..11)));
    }

    #[test]
    fn what_was_written_to_zeros_and_is_in_memory_no_more_is_gone_and_no_zeros() {
        let unstable = Unstable {
            acked: Position(100),
            remaps: alloc::vec![
                remap(30, 0..4, Remaps::GivenBack, &[]),
                remap(60, 0..4, Remaps::Moved, &[1]),
            ],
            dirty: alloc::vec![dirty(70, 3, true)],
        };
        let lost = unstable.lost(Position(0)).unwrap();
        assert_eq!(again(&lost), [(0, false)]);
        assert_eq!(lost.gone, [bytes(1..2), bytes(3..4)]);
    }
}
