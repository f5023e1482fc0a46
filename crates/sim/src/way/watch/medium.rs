//! What is not stable at a medium, and whose alone it is.

use std::collections::{BTreeMap, BTreeSet};

use netraid_remote::OrderId;

use super::super::interface::LineId;
use crate::disk::DiskShape;

/// One medium.
pub(super) struct Medium {
    block_len: u64,
    has_cache: bool,
    /// The last write of each block, where a power loss may undo it, or has undone it.
    unstable: BTreeMap<u64, Unstable>,
    /// Only this line may write.
    holder: Option<LineId>,
    /// Orders that remove registrations, and may still be carried out.
    removals: BTreeSet<(LineId, OrderId)>,
}

/// A write that is not stable.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unstable {
    pub(super) line: LineId,
    /// The moment of its submission.
    pub(super) number: u64,
    pub(super) content: u64,
    /// A power loss has undone it.
    pub(super) is_lost: bool,
}

impl Medium {
    pub(super) fn new(shape: &DiskShape) -> Self {
        let (block_len, has_cache) = (shape.block_len.into(), shape.volatile_cache);
        let (unstable, removals) = (BTreeMap::new(), BTreeSet::new());
        Self { block_len, has_cache, unstable, holder: None, removals }
    }

    pub(super) const fn block_len(&self) -> u64 {
        self.block_len
    }

    pub(super) fn unstable(&self) -> impl Iterator<Item = (u64, Unstable)> {
        self.unstable.iter().map(|(block, unstable)| (*block, *unstable))
    }

    /// A block is written; none: it is stable, or not known.
    pub(super) fn write(&mut self, block: u64, unstable: Option<Unstable>) {
        match unstable.filter(|_| self.has_cache) {
            Some(unstable) => self.unstable.insert(block, unstable),
            None => self.unstable.remove(&block),
        };
    }

    pub(super) fn flush(&mut self) {
        self.unstable.retain(|_, it| it.is_lost);
    }

    /// Forgets what is not what the disk holds: it rotted, or cannot be read.
    pub(super) fn note_power_fails(&mut self, content: impl Fn(u64) -> Option<u64>) {
        self.unstable.retain(|block, it| it.is_lost || content(*block) == Some(it.content));
    }

    /// What is there is stable now; all else is lost.
    pub(super) fn note_power_failed(&mut self, content: impl Fn(u64) -> Option<u64>) {
        self.unstable.retain(|block, it| {
            it.is_lost = content(*block) != Some(it.content);
            it.is_lost
        });
    }

    pub(super) const fn holder(&self) -> Option<LineId> {
        self.holder
    }

    pub(super) const fn hold(&mut self, holder: Option<LineId>) {
        self.holder = holder;
    }

    pub(super) fn begin_removal(&mut self, line: LineId, order: OrderId) {
        self.removals.insert((line, order));
    }

    /// It was carried out.
    pub(super) fn end_removal(&mut self, line: LineId, order: OrderId) {
        self.removals.remove(&(line, order));
    }

    pub(super) fn has_removals(&self) -> bool {
        !self.removals.is_empty()
    }

    pub(super) fn release(&mut self, is_holder: impl FnOnce(LineId) -> bool) {
        if self.holder.is_some_and(is_holder) {
            self.holder = None;
        }
    }
}
