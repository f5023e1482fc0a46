//! The memory of buffers: whole pages, allocated alone or cut from a chunk that several share.
//!
//! Invariant: no byte belongs to two [`Memory`]s, and a chunk is freed after the last of its parts.
//! The only unsafe code of this crate is here.
#![allow(unsafe_code)]

use alloc::{
    alloc::{alloc, dealloc, handle_alloc_error},
    boxed::Box,
    sync::Arc,
};
use core::{alloc::Layout, mem::MaybeUninit, ptr::NonNull, slice};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::PAGE_LEN;

/// Length and alignment of a chunk: a huge page of the processors that Linux knows best.
pub(super) const CHUNK_LEN: usize = 2 << 20;

/// Told of a chunk before anything is written to it.
pub(super) type Advise = fn(&mut [MaybeUninit<u8>]);

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
pub(super) struct Page(pub(super) [u8; PAGE_LEN]);

/// Pages that belong to whoever holds this, initialized.
pub(super) struct Memory {
    start: NonNull<Page>,
    pages: usize,
    /// None: they were allocated alone.
    chunk: Option<Arc<Chunk>>,
}

// SAFETY: a `Memory` is the only way to its pages, as a `Box<[Page]>` is; pages are plain bytes.
unsafe impl Send for Memory {}
// SAFETY: through a shared reference pages are only read.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zeroed pages of their own; none when there is no memory for them.
    pub(super) fn zeroed(pages: usize) -> Option<Self> {
        let memory = <[Page]>::new_box_zeroed_with_elems(pages).ok()?;
        let start = NonNull::from(Box::leak(memory)).cast();
        Some(Self { start, pages, chunk: None })
    }

    /// Zeroed parts of `pages` each that make up a new chunk.
    pub(super) fn cut_chunk(pages: usize, advise: Advise) -> impl Iterator<Item = Self> {
        let parts = CHUNK_LEN / (pages * PAGE_LEN);
        assert!(
            parts > 0 && parts * pages * PAGE_LEN == CHUNK_LEN,
            "parts that do not fill a chunk"
        );
        let chunk = Arc::new(Chunk::zeroed(advise));
        (0..parts).map(move |part| {
            // SAFETY: `part * pages` is less than the pages of the chunk, so it stays within it.
            let start = unsafe { chunk.start.add(part * pages) };
            Self { start, pages, chunk: Some(chunk.clone()) }
        })
    }

    pub(super) const fn len(&self) -> usize {
        self.pages * PAGE_LEN
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `start` begins that many initialized pages, which live as long as this does (its own
        // allocation, or a chunk that it keeps), and which nobody changes while this is borrowed.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.pages) }.as_bytes()
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; and no other `Memory` has any of these pages.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.pages) }.as_mut_bytes()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.chunk.is_none() {
            let pages = NonNull::slice_from_raw_parts(self.start, self.pages);
            // SAFETY: `zeroed` leaked a box of exactly these pages, and nobody else takes it back.
            drop(unsafe { Box::from_raw(pages.as_ptr()) });
        }
    }
}

/// The allocation that parts share; it gives no access of its own.
struct Chunk {
    start: NonNull<Page>,
}

// SAFETY: a `Chunk` is an address, and is used for nothing but freeing it once.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

impl Chunk {
    const LAYOUT: Layout = match Layout::from_size_align(CHUNK_LEN, CHUNK_LEN) {
        Ok(layout) => layout,
        Err(_) => panic!("the length of a chunk is a power of two"),
    };

    /// Running out of memory ends the process, as every other allocation does.
    fn zeroed(advise: Advise) -> Self {
        // SAFETY: the layout has a size.
        let Some(start) = NonNull::new(unsafe { alloc(Self::LAYOUT) }) else {
            handle_alloc_error(Self::LAYOUT)
        };
        // SAFETY: the allocation has these bytes, nobody else knows of it yet, and they may be anything.
        advise(unsafe { slice::from_raw_parts_mut(start.as_ptr().cast(), CHUNK_LEN) });
        // SAFETY: the same bytes.
        unsafe { start.write_bytes(0, CHUNK_LEN) };
        Self { start: start.cast() }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: `zeroed` allocated it with this layout; its parts, which keep it, are gone.
        unsafe { dealloc(self.start.as_ptr().cast(), Self::LAYOUT) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicUsize, Ordering};
    use std::{vec, vec::Vec};

    #[test]
    fn parts_of_a_chunk_are_apart_and_outlive_each_other() {
        static ADVISED: AtomicUsize = AtomicUsize::new(0);
        let advise: Advise = |bytes| {
            assert_eq!(bytes.len(), CHUNK_LEN);
            assert_eq!(bytes.as_ptr().addr() % CHUNK_LEN, 0);
            ADVISED.fetch_add(1, Ordering::Relaxed);
        };
        let mut parts: Vec<Memory> = Memory::cut_chunk(128, advise).collect();
        assert_eq!((parts.len(), ADVISED.load(Ordering::Relaxed)), (4, 1));
        for (number, part) in (1..).zip(&mut parts) {
            assert_eq!(part.len(), 128 * PAGE_LEN);
            assert!(part.bytes().iter().all(|byte| *byte == 0));
            part.bytes_mut().fill(number);
        }
        let last = parts.pop();
        assert!((1..).zip(&parts).all(|(number, part)| part.bytes() == vec![number; part.len()]));
        drop(parts);
        assert!(last.is_some_and(|last| last.bytes().iter().all(|byte| *byte == 4)));
    }

    #[test]
    fn pages_of_their_own_are_zero_and_begin_at_a_page() {
        let memory = Memory::zeroed(3);
        assert!(memory.is_some_and(|memory| {
            memory.bytes() == [0; 3 * PAGE_LEN] && memory.bytes().as_ptr().addr() % PAGE_LEN == 0
        }));
        assert!(Memory::zeroed(usize::MAX / PAGE_LEN).is_none());
    }
}
