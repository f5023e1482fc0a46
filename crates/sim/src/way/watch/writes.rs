//! What the owner of a line had it write, block by block.
//!
//! Invariant: a write is done with once it has ended well, or another one of the same block, which was submitted after the
//! first had ended, was applied; from then on it is never applied.

use core::ops::Range;
use std::collections::BTreeMap;

/// Writes of one block that are remembered.
const VERSIONS_MAX: usize = 32;

/// The writes of one line.
#[derive(Default)]
pub(super) struct Writes {
    blocks: BTreeMap<u64, Block>,
}

#[derive(Default)]
struct Block {
    /// Oldest first.
    versions: Vec<Version>,
    /// Some are forgotten that may still be applied.
    is_cut: bool,
}

struct Version {
    /// The moment of its submission.
    number: u64,
    content: u64,
    end: Option<End>,
    is_done: bool,
}

/// How a write ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) moment: u64,
    pub(super) is_well: bool,
    /// How many losses of the cache the owner had been told of.
    pub(super) losses: u64,
}

/// Why a write may not be applied.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// It is done with.
    Late,
    /// Nobody submitted it.
    Unknown,
}

impl Writes {
    pub(super) fn submit(&mut self, block: u64, number: u64, content: u64) {
        let block = self.blocks.entry(block).or_default();
        if block.versions.len() >= VERSIONS_MAX {
            // One that is done with is as wrong as one that nobody submitted.
            let done = block.versions.iter().position(|version| version.is_done);
            block.is_cut |= done.is_none();
            block.versions.remove(done.unwrap_or(0));
        }
        block.versions.push(Version { number, content, end: None, is_done: false });
    }

    /// A write has ended; a hint that ended well may have been given up.
    pub(super) fn end(&mut self, blocks: Range<u64>, number: u64, end: End, is_hint: bool) {
        for block in blocks {
            let block = self.blocks.get_mut(&block);
            let version = block.and_then(|block| block.find(number));
            if let Some(version) = version {
                version.end = Some(end);
                version.is_done |= end.is_well && !is_hint;
            }
        }
    }

    /// How a write of this block ended, if it has and is remembered.
    pub(super) fn end_of(&self, block: u64, number: u64) -> Option<End> {
        let versions = &self.blocks.get(&block)?.versions;
        versions.iter().rfind(|version| version.number == number)?.end
    }

    /// A block is written, or, of a torn write, perhaps; the newest submission that this may be.
    pub(super) fn apply(
        &mut self,
        block: u64,
        content: u64,
        is_torn: bool,
    ) -> Result<Option<u64>, Wrong> {
        let block = self.blocks.get_mut(&block).ok_or(Wrong::Unknown)?;
        let same = || block.versions.iter().filter(|version| version.content == content);
        let mut live = same().filter(|version| !version.is_done).map(|it| it.number);
        let Some(oldest) = live.next() else {
            return match (block.is_cut, same().next()) {
                (true, _) => Ok(None),
                (false, Some(_)) => Err(Wrong::Late),
                (false, None) => Err(Wrong::Unknown),
            };
        };
        let newest = live.next_back().unwrap_or(oldest);
        if !is_torn {
            for version in &mut block.versions {
                version.is_done |= version.end.is_some_and(|end| end.moment < oldest);
            }
        }
        Ok(Some(newest))
    }
}

impl Block {
    fn find(&mut self, number: u64) -> Option<&mut Version> {
        self.versions.iter_mut().rfind(|version| version.number == number)
    }
}
