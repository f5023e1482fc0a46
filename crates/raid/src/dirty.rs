//! Blocks of the volume that are in the log and not home yet: the newest contents of each, from
//! its acknowledgement on. Readers look here first.
//!
//! Invariant: of two contents of one block the one with the higher position counts, in whatever
//! order they come. Contents are slices of the executor's buffers; a buffer is given back when no
//! block needs it any more.

use alloc::{
    collections::{BTreeMap, btree_map},
    vec::Vec,
};
use core::ops::Range;

use crate::{
    array::{BufferId, Source},
    log::{LOG_BLOCK_LEN, Position},
};

/// What a block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Zeros.
    Zeroes,
    /// A block's length of a buffer.
    Slice {
        /// Which buffer.
        buffer: BufferId,
        /// The first byte in it.
        offset: u32,
    },
}

impl Content {
    /// The bytes from `skip` on, `len` of them.
    #[must_use]
    pub const fn source(self, skip: u32, len: u32) -> Source {
        match self {
            Self::Zeroes => Source::Zeroes { len },
            Self::Slice { buffer, offset } => Source::Buffer { buffer, offset: offset + skip, len },
        }
    }
}

/// A dirty block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dirty {
    /// Where it is in the log.
    pub position: Position,
    /// What it holds.
    pub content: Content,
}

/// All dirty blocks of a volume, numbered in 4 KiB.
#[derive(Debug, Default)]
pub struct DirtyBlocks {
    blocks: BTreeMap<u64, Dirty>,
    /// How many blocks, and others, need each buffer.
    uses: BTreeMap<BufferId, u32>,
    unused: Vec<BufferId>,
}

impl DirtyBlocks {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// A block, if it is dirty.
    #[must_use]
    pub fn get(&self, block: u64) -> Option<Dirty> {
        self.blocks.get(&block).copied()
    }

    /// Dirty blocks of a range, ascending.
    pub fn range(&self, blocks: Range<u64>) -> impl Iterator<Item = (u64, Dirty)> {
        self.blocks.range(blocks).map(|(block, dirty)| (*block, *dirty))
    }

    /// The first block at or after `from` that is dirty from below `cut`.
    #[must_use]
    pub fn next_below(&self, from: u64, cut: Position) -> Option<u64> {
        let mut later = self.blocks.range(from..);
        later.find(|(_, dirty)| dirty.position < cut).map(|(block, _)| *block)
    }

    /// A block has new contents. The cache needs their buffer from now on, once more; who inserts
    /// several blocks of one buffer needs it meanwhile, since newer ones may be there already.
    pub fn insert(&mut self, block: u64, dirty: Dirty) {
        self.need(dirty.content);
        let superseded = match self.blocks.entry(block) {
            btree_map::Entry::Occupied(mut old) if old.get().position < dirty.position => {
                old.insert(dirty)
            }
            btree_map::Entry::Occupied(_) => dirty,
            btree_map::Entry::Vacant(slot) => {
                slot.insert(dirty);
                return;
            }
        };
        self.forget(superseded.content);
    }

    /// A block is home, with the contents from `position`: newer ones stay.
    pub fn remove(&mut self, block: u64, position: Position) {
        let is_home = |dirty: &&Dirty| dirty.position <= position;
        if self.blocks.get(&block).filter(is_home).is_some()
            && let Some(dirty) = self.blocks.remove(&block)
        {
            self.forget(dirty.content);
        }
    }

    /// Blocks of a range are void, as far as they are from below `upto`.
    pub fn void(&mut self, blocks: Range<u64>, upto: Position) {
        let old: Vec<u64> = self
            .range(blocks)
            .filter(|(_, dirty)| dirty.position < upto)
            .map(|(block, _)| block)
            .collect();
        for block in old {
            if let Some(dirty) = self.blocks.remove(&block) {
                self.forget(dirty.content);
            }
        }
    }

    /// Somebody else needs a content, until [`Self::forget`].
    pub fn need(&mut self, content: Content) {
        if let Content::Slice { buffer, .. } = content {
            *self.uses.entry(buffer).or_default() += 1;
        }
    }

    /// Ends a need.
    ///
    /// # Panics
    /// When nobody needed it.
    pub fn forget(&mut self, content: Content) {
        let Content::Slice { buffer, .. } = content else { return };
        let btree_map::Entry::Occupied(mut uses) = self.uses.entry(buffer) else {
            unreachable!("{buffer:?} was not needed")
        };
        *uses.get_mut() -= 1;
        if *uses.get() == 0 {
            uses.remove();
            self.unused.push(buffer);
        }
    }

    /// The next buffer that nobody needs any more.
    pub fn poll_unused(&mut self) -> Option<BufferId> {
        self.unused.pop()
    }
}

const _: () = assert!(LOG_BLOCK_LEN == 4096, "blocks of the volume are those of the log");

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::collections::BTreeSet;

    #[test]
    fn the_highest_position_counts_and_every_buffer_comes_back_once() {
        for seed in 0..100 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut cache = DirtyBlocks::default();
            let mut model: BTreeMap<u64, Dirty> = BTreeMap::new();
            let mut live: BTreeSet<BufferId> = BTreeSet::new();
            let mut next = 0;
            for _ in 0..400 {
                let block = rng.random_range(0..20_u64);
                let position = Position(rng.random_range(0..1000));
                match rng.random_range(0..4) {
                    0 | 1 => {
                        // A request of several blocks in one buffer.
                        let buffer = BufferId(next);
                        next += 1;
                        live.insert(buffer);
                        let whole = Content::Slice { buffer, offset: 0 };
                        cache.need(whole);
                        for at in 0..rng.random_range(1..4_u32) {
                            let content = Content::Slice { buffer, offset: at * 4096 };
                            let position = position.after(at);
                            let dirty = Dirty { position, content };
                            cache.insert(block + u64::from(at), dirty);
                            let slot = model.entry(block + u64::from(at)).or_insert(dirty);
                            if slot.position < position {
                                *slot = dirty;
                            }
                        }
                        cache.forget(whole);
                    }
                    2 => {
                        cache.remove(block, position);
                        model.retain(|at, one| *at != block || one.position > position);
                    }
                    _ => {
                        let range = block..block + 5;
                        cache.void(range.clone(), position);
                        model.retain(|at, one| !range.contains(at) || one.position >= position);
                    }
                }
                assert!(cache.range(0..u64::MAX).eq(model.iter().map(|(at, one)| (*at, *one))));
                let below = model.iter().find(|(at, one)| **at >= block && one.position < position);
                assert_eq!(cache.next_below(block, position), below.map(|(at, _)| *at));
                while let Some(buffer) = cache.poll_unused() {
                    assert!(live.remove(&buffer), "{buffer:?} came back twice");
                }
                let needed: BTreeSet<BufferId> = model
                    .values()
                    .filter_map(|one| match one.content {
                        Content::Slice { buffer, .. } => Some(buffer),
                        Content::Zeroes => None,
                    })
                    .collect();
                assert_eq!(live, needed);
            }
        }
    }
}
