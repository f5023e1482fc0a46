//! Blocks of the volume that are in the log and not home yet: the newest contents of each, from
//! its acknowledgement on. Readers look here first.
//!
//! Invariant: of two contents of one block the one with the higher position counts, in whatever
//! order they come.

use alloc::{
    collections::{BTreeMap, btree_map},
    vec::Vec,
};
use core::ops::Range;

use netraid_block::{Buf, ErrorKind, IoError, SgList};

use crate::{
    checksum::{ChecksumKind, Home},
    log::Position,
};

/// A dirty block.
#[derive(Debug, Clone)]
pub(super) struct Dirty {
    /// Where it is in the log.
    pub(super) position: Position,
    /// What it holds; none for zeros.
    pub(super) data: Option<Buf>,
    /// The checksum that it has in the log.
    pub(super) sum: u32,
    /// It was written at once with others: a crash leaves all of them or none.
    pub(super) is_joined: bool,
}

impl Dirty {
    /// Its contents as they are to stand at their home. They are the volume's block of that number.
    ///
    /// # Errors
    /// As [`Self::logged`].
    pub(super) fn contents(
        &self,
        checksum: ChecksumKind,
        block: u64,
        home: Home,
    ) -> Result<SgList, IoError> {
        let data = self.logged(checksum, block)?;
        Ok(data.map_or_else(|| checksum.zeroes(home, 1), SgList::from))
    }

    /// Its contents as they came, and as the log has them; none for zeros.
    ///
    /// # Errors
    /// They have changed in memory: whoever wrote them down would have what nobody wrote pass for whole. The log has them
    /// as they were.
    pub(super) fn logged(
        &self,
        checksum: ChecksumKind,
        block: u64,
    ) -> Result<Option<Buf>, IoError> {
        let Some(data) = &self.data else { return Ok(None) };
        let found = checksum.in_log(block, data);
        if found != self.sum {
            let (expected, position) = (self.sum, self.position);
            let text = alloc::format!(
                "a block in memory, written to the log at {position}, has the checksum {found:08x} instead of \
                 {expected:08x}: memory is faulty; open the array again, on another machine if this returns"
            );
            return Err(IoError::with_detail(ErrorKind::Corrupt, text));
        }
        Ok(Some(data.clone()))
    }

    /// A block of zeros.
    pub(super) const fn zeros(checksum: ChecksumKind, block: u64, position: Position) -> Self {
        let sum = checksum.zeroes_in_log(block);
        Self { position, data: None, sum, is_joined: false }
    }
}

/// All dirty blocks of a volume, numbered in 4 KiB.
#[derive(Debug, Default)]
pub(super) struct DirtyBlocks {
    blocks: BTreeMap<u64, Dirty>,
}

impl DirtyBlocks {
    /// How many there are.
    pub(super) fn len(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Where the contents of a block are in the log, if it is dirty.
    pub(super) fn position_of(&self, block: u64) -> Option<Position> {
        self.blocks.get(&block).map(|dirty| dirty.position)
    }

    /// Dirty blocks of a range, ascending.
    pub(super) fn range(&self, blocks: Range<u64>) -> impl Iterator<Item = (u64, &Dirty)> {
        self.blocks.range(blocks).map(|(block, dirty)| (*block, dirty))
    }

    /// The first block at or after `from` that is dirty from below `cut`.
    pub(super) fn next_below(&self, from: u64, cut: Position) -> Option<u64> {
        let mut later = self.blocks.range(from..);
        later.find(|(_, dirty)| dirty.position < cut).map(|(block, _)| *block)
    }

    /// Blocks that are dirty from below `cut`, with where they are in the log.
    pub(super) fn below(&self, cut: Position) -> impl Iterator<Item = (u64, Position)> {
        let below = self.blocks.iter().filter(move |(_, dirty)| dirty.position < cut);
        below.map(|(block, dirty)| (*block, dirty.position))
    }

    /// Blocks that are dirty from below `cut`: where they are in the log, and whether they are not zeros.
    pub(super) fn contents_below(&self, cut: Position) -> impl Iterator<Item = (Position, bool)> {
        let below = self.blocks.values().filter(move |dirty| dirty.position < cut);
        below.map(|dirty| (dirty.position, dirty.data.is_some()))
    }

    /// A block has new contents.
    pub(super) fn insert(&mut self, block: u64, dirty: Dirty) {
        match self.blocks.entry(block) {
            btree_map::Entry::Occupied(mut old) if old.get().position < dirty.position => {
                old.insert(dirty);
            }
            btree_map::Entry::Occupied(_) => {}
            btree_map::Entry::Vacant(slot) => {
                slot.insert(dirty);
            }
        }
    }

    /// A block is home, with the contents from `position`: newer ones stay.
    pub(super) fn remove(&mut self, block: u64, position: Position) {
        if self.blocks.get(&block).is_some_and(|dirty| dirty.position <= position) {
            self.blocks.remove(&block);
        }
    }

    /// Blocks of a range are void, as far as they are from below `upto`. Which these were, with where they are in the
    /// log.
    pub(super) fn void(&mut self, blocks: Range<u64>, upto: Position) -> Vec<(u64, Position)> {
        let place = |(block, dirty): (u64, &Dirty)| (block, dirty.position);
        let is_old = |(_, position): &(u64, Position)| *position < upto;
        let old: Vec<(u64, Position)> = self.range(blocks).map(place).filter(is_old).collect();
        for (block, _) in &old {
            self.blocks.remove(block);
        }
        old
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bytes, logged::state::BLOCK};
    use rand::{Rng, SeedableRng, rngs::StdRng};

    const KIND: ChecksumKind = ChecksumKind::Crc32c;
    const HOME: Home = Home { physical: 1, row: 2, column: 0 };

    #[test]
    fn contents_that_changed_in_memory_are_an_error() {
        let mut bytes = alloc::vec![7; BLOCK as usize];
        let sum = bytes::sum(&bytes);
        let dirty = |bytes: &[u8]| {
            let data = Some(Buf::copy_from(bytes));
            let (position, is_joined) = (Position(3), false);
            Dirty { position, data, sum, is_joined }.contents(KIND, 5, HOME)
        };
        assert_eq!(dirty(&bytes).unwrap().len(), BLOCK as usize);
        bytes[100] ^= 1;
        assert_eq!(dirty(&bytes).unwrap_err().kind(), ErrorKind::Corrupt);
        assert!(
            Dirty::zeros(KIND, 5, Position(3))
                .contents(KIND, 5, HOME)
                .unwrap()
                .to_contiguous()
                .iter()
                .all(|byte| *byte == 0)
        );
    }

    #[test]
    fn the_highest_position_counts_in_whatever_order_they_come() {
        for seed in 0..100 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut cache = DirtyBlocks::default();
            let mut model: BTreeMap<u64, u64> = BTreeMap::new();
            for _ in 0..400 {
                let block = rng.random_range(0..20_u64);
                let position = rng.random_range(0..1000);
                match rng.random_range(0..4) {
                    0 | 1 => {
                        cache.insert(block, Dirty::zeros(KIND, block, Position(position)));
                        let slot = model.entry(block).or_insert(position);
                        *slot = position.max(*slot);
                    }
                    2 => {
                        cache.remove(block, Position(position));
                        model.retain(|at, one| *at != block || *one > position);
                    }
                    _ => {
                        let range = block..block + 5;
                        let before = model.len();
                        model.retain(|at, one| !range.contains(at) || *one >= position);
                        let gone = (before - model.len()) as u64;
                        assert_eq!(
                            cache.void(range.clone(), Position(position)).len() as u64,
                            gone
                        );
                    }
                }
                let all = cache.range(0..u64::MAX).map(|(at, one)| (at, one.position.0));
                assert!(all.eq(model.iter().map(|(at, one)| (*at, *one))));
                let below = model.iter().find(|(at, one)| **at >= block && **one < position);
                assert_eq!(cache.next_below(block, Position(position)), below.map(|(at, _)| *at));
            }
        }
    }
}
