//! Which granules of the disk were ever written by whoever has them now. No input or output.
//!
//! Of each granule there is what counts, and what the disk says. A block of entries is `DIRTY` where both differ, or
//! may, and `WRITING` while it is on its way to the disk.
//!
//! Invariant: a block that is neither says on the disk what counts.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use netraid_block::narrow;

use super::geometry::Geometry;

const DIRTY: u8 = 1;
const WRITING: u8 = 2;

pub(super) struct Granules {
    geometry: Geometry,
    /// Granules of one word, as a power of two.
    word_shift: u32,
    written: Box<[AtomicU64]>,
    stable: Box<[AtomicU64]>,
    blocks: Box<[AtomicU8]>,
    /// Blocks that are dirty or being written.
    unstable: AtomicUsize,
}

impl Granules {
    /// None is written.
    pub(super) fn new(geometry: Geometry) -> Self {
        let words = geometry.extents as usize * geometry.words();
        let zeros = || (0..words).map(|_| AtomicU64::new(0)).collect();
        Self {
            geometry,
            word_shift: geometry.granules().trailing_zeros().min(6),
            written: zeros(),
            stable: zeros(),
            blocks: (0..geometry.extent_blocks()).map(|_| AtomicU8::new(0)).collect(),
            unstable: AtomicUsize::new(0),
        }
    }

    /// Of extents that one row has, everything counts that the disk says.
    pub(super) fn load(&self, extent: usize, word: usize, bits: u64) {
        let at = extent * self.geometry.words() + word;
        self.written[at].store(bits, Ordering::Release);
        self.stable[at].store(bits, Ordering::Release);
    }

    /// Whether a granule of the disk is written.
    pub(super) fn is_written(&self, granule: u64) -> bool {
        let (word, bit) = self.place(granule);
        self.written[word].load(Ordering::Acquire) & bit != 0
    }

    /// Whether it is, and that is durable.
    pub(super) fn is_stable(&self, granule: u64) -> bool {
        let (word, bit) = self.place(granule);
        // In this order: once its block has settled, what is stable is what counted before.
        let has_settled = self.blocks[self.block_of(granule)].load(Ordering::SeqCst) == 0;
        has_settled && self.stable[word].load(Ordering::SeqCst) & bit != 0
    }

    /// What was written to a granule, and to all the rest of it, has ended.
    pub(super) fn set_written(&self, granule: u64) {
        let (word, bit) = self.place(granule);
        self.written[word].fetch_or(bit, Ordering::SeqCst);
        self.soil(granule);
    }

    /// A granule reads as zeros from now on.
    pub(super) fn clear_written(&self, granule: u64) {
        let (word, bit) = self.place(granule);
        self.written[word].fetch_and(!bit, Ordering::SeqCst);
        self.soil(granule);
    }

    /// Forgets an extent that nobody uses.
    pub(super) fn clear_extent(&self, extent: u32) {
        let words = self.geometry.words();
        for at in extent as usize * words..(extent as usize + 1) * words {
            self.written[at].store(0, Ordering::SeqCst);
            self.stable[at].store(0, Ordering::SeqCst);
        }
    }

    pub(super) fn count_written(&self, extent: u32) -> u64 {
        let words = self.geometry.words();
        let own = &self.written[extent as usize * words..(extent as usize + 1) * words];
        own.iter().map(|word| u64::from(word.load(Ordering::Acquire).count_ones())).sum()
    }

    /// Whether something counts that is not durable.
    pub(super) fn is_unstable(&self) -> bool {
        self.unstable.load(Ordering::SeqCst) > 0
    }

    /// Blocks that are to be written; what they are to say is read after this.
    pub(super) fn begin_writing(&self) -> Vec<u32> {
        let dirty = (0..).zip(&self.blocks).filter(|(_, state)| {
            let dirty = state.compare_exchange(DIRTY, WRITING, Ordering::SeqCst, Ordering::SeqCst);
            dirty.is_ok()
        });
        dirty.map(|(block, _)| block).collect()
    }

    /// A block was written, or not.
    pub(super) fn end_writing(&self, block: u32, is_written: bool) {
        let state = &self.blocks[block as usize];
        if !is_written {
            state.fetch_or(DIRTY, Ordering::SeqCst);
        }
        let before = state.fetch_and(!WRITING, Ordering::SeqCst);
        assert!(before & WRITING != 0, "what ends was begun");
        if before & DIRTY == 0 {
            let unstable = self.unstable.fetch_sub(1, Ordering::SeqCst);
            assert!(unstable > 0, "a block settles that was not counted");
        }
    }

    pub(super) fn written_word(&self, extent: usize, word: usize) -> u64 {
        self.written[extent * self.geometry.words() + word].load(Ordering::SeqCst)
    }

    pub(super) fn stable_word(&self, extent: usize, word: usize) -> u64 {
        self.stable[extent * self.geometry.words() + word].load(Ordering::SeqCst)
    }

    /// The disk says this durably.
    pub(super) fn set_stable(&self, extent: usize, word: usize, bits: u64) {
        self.stable[extent * self.geometry.words() + word].store(bits, Ordering::SeqCst);
    }

    fn soil(&self, granule: u64) {
        // Counted before it is marked: who writes what is marked takes it off the count.
        self.unstable.fetch_add(1, Ordering::SeqCst);
        let before = self.blocks[self.block_of(granule)].fetch_or(DIRTY, Ordering::SeqCst);
        if before != 0 {
            self.unstable.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn place(&self, granule: u64) -> (usize, u64) {
        let word = narrow(granule >> self.word_shift);
        (word, 1 << (granule & ((1 << self.word_shift) - 1)))
    }

    fn block_of(&self, granule: u64) -> usize {
        let extent = narrow(granule / self.geometry.granules());
        self.geometry.entry_of(extent).0 as usize
    }
}
