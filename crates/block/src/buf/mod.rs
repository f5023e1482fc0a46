//! Aligned, reference-counted buffers, and the pool that they return to.
//!
//! Invariant: a [`BufMut`] is the only handle to its memory; freezing it into a [`Buf`] gives up
//! writing for good, so what a device was handed cannot change under it. Memory from a [`Pool`]
//! holds whatever it held last: who asks for it must fill it before showing it to anyone.

mod memory;
mod pool;

use alloc::{
    alloc::handle_alloc_error,
    sync::{Arc, Weak},
};
use core::{
    alloc::Layout,
    fmt,
    ops::{Deref, DerefMut, Range},
};

use smallvec::SmallVec;
use zerocopy::IntoBytes as _;

use memory::{Memory, Page};
pub use pool::Pool;
use pool::Shelves;

/// Alignment of every buffer, and the unit in which buffers are sized.
pub const PAGE_LEN: usize = 4096;

/// Bytes of the longest [`Buf::zeroes`].
pub const ZEROES_LEN: usize = 64 << 10;

/// What [`Buf::zeroes`] shows.
static ZEROES: [Page; ZEROES_LEN / PAGE_LEN] =
    [const { Page([0; PAGE_LEN]) }; ZEROES_LEN / PAGE_LEN];

/// Memory, and the pool that it returns to.
struct Shared {
    memory: Memory,
    home: Weak<Shelves>,
}

/// A buffer with exactly one owner, writable.
pub struct BufMut {
    /// Taken only by `freeze` and `drop`.
    shared: Option<Arc<Shared>>,
    len: usize,
}

/// A read-only range of a buffer; cloning and slicing share the memory.
#[derive(Clone)]
pub struct Buf {
    /// None: zeros that all share.
    shared: Option<Arc<Shared>>,
    range: (usize, usize),
}

/// Bytes scattered over buffers, in order.
#[derive(Clone, Default)]
pub struct SgList {
    parts: SmallVec<[Buf; 2]>,
    len: usize,
}

impl BufMut {
    /// A zeroed buffer of `len` bytes outside any pool.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        // Running out of memory ends the process, as every other allocation does.
        Self::try_zeroed(len).unwrap_or_else(|| {
            let len = len.max(1).next_multiple_of(PAGE_LEN);
            handle_alloc_error(
                Layout::from_size_align(len, PAGE_LEN).unwrap_or(Layout::new::<Page>()),
            )
        })
    }

    /// The same, where there is memory for it.
    #[must_use]
    pub fn try_zeroed(len: usize) -> Option<Self> {
        let memory = Memory::zeroed(len.div_ceil(PAGE_LEN).max(1))?;
        Some(Self { shared: Some(Arc::new(Shared { memory, home: Weak::new() })), len })
    }

    /// Gives up writing; the result can be cloned and sliced.
    #[must_use]
    pub fn freeze(mut self) -> Buf {
        Buf { shared: self.shared.take(), range: (0, self.len) }
    }

    /// Shortens the buffer to `len` bytes.
    ///
    /// # Panics
    /// When `len` is larger than the buffer.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len, "truncate to {len} of {}", self.len);
        self.len = len;
    }
}

impl Drop for BufMut {
    fn drop(&mut self) {
        recycle(self.shared.take());
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        recycle(self.shared.take());
    }
}

/// Moves memory back into its pool when this is its last handle. Two handles dropped at once may
/// both decline; the memory is then freed instead.
fn recycle(shared: Option<Arc<Shared>>) {
    let Some(mut shared) = shared else { return };
    if Arc::get_mut(&mut shared).is_none() {
        return;
    }
    if let Some(home) = shared.home.upgrade() {
        home.give(shared);
    }
}

impl Deref for BufMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.shared {
            Some(shared) => &shared.memory.bytes()[..self.len],
            None => unreachable!("memory is taken only when the handle ends"),
        }
    }
}

impl DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        match self.shared.as_mut().and_then(Arc::get_mut) {
            Some(shared) => &mut shared.memory.bytes_mut()[..len],
            None => unreachable!("a BufMut is the only handle to its memory"),
        }
    }
}

impl Buf {
    /// No bytes.
    #[must_use]
    pub const fn empty() -> Self {
        Self { shared: None, range: (0, 0) }
    }

    /// Zeros, without memory of their own.
    ///
    /// # Panics
    /// When `len` is more than [`ZEROES_LEN`].
    #[must_use]
    pub const fn zeroes(len: usize) -> Self {
        assert!(len <= ZEROES_LEN, "zeros that are too long for one buffer");
        Self { shared: None, range: (0, len) }
    }

    /// A copy of `bytes` in a buffer of its own.
    #[must_use]
    pub fn copy_from(bytes: &[u8]) -> Self {
        let mut buf = BufMut::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf.freeze()
    }

    /// Number of bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.range.1 - self.range.0
    }

    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A part of this buffer, sharing its memory.
    ///
    /// # Panics
    /// When `range` reaches past the end.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "slice out of range");
        Self {
            shared: self.shared.clone(),
            range: (self.range.0 + range.start, self.range.0 + range.end),
        }
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.shared {
            Some(shared) => &shared.memory.bytes()[self.range.0..self.range.1],
            None => &ZEROES.as_bytes()[self.range.0..self.range.1],
        }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len())
    }
}

impl fmt::Debug for BufMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufMut({} bytes)", self.len)
    }
}

impl SgList {
    /// No bytes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Zeros, without memory of their own.
    #[must_use]
    pub fn zeroes(len: usize) -> Self {
        let pieces = (0..len).step_by(ZEROES_LEN).map(|at| Buf::zeroes((len - at).min(ZEROES_LEN)));
        pieces.collect()
    }

    /// Appends `buf`; empty buffers are left out.
    pub fn push(&mut self, buf: Buf) {
        self.len += buf.len();
        if !buf.is_empty() {
            self.parts.push(buf);
        }
    }

    /// Appends all parts of `other`.
    pub fn append(&mut self, other: SgList) {
        self.len += other.len;
        self.parts.extend(other.parts);
    }

    /// Number of bytes in all parts.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The parts in order.
    #[must_use]
    pub fn parts(&self) -> &[Buf] {
        &self.parts
    }

    /// The bytes `range`, sharing memory.
    ///
    /// # Panics
    /// When `range` reaches past the end.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "slice out of range");
        let mut out = Self::new();
        let mut start = 0;
        for part in &self.parts {
            let end = start + part.len();
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to {
                out.push(part.slice(from - start..to - start));
            }
            start = end;
        }
        out
    }

    /// Copies all bytes into `dst`, which must have the same length.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn copy_to(&self, dst: &mut [u8]) {
        assert_eq!(dst.len(), self.len, "copy between different lengths");
        let mut at = 0;
        for part in &self.parts {
            dst[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
    }

    /// All bytes in one buffer; shares memory when there is one part.
    #[must_use]
    pub fn to_contiguous(&self) -> Buf {
        match self.parts.as_slice() {
            [] => Buf::empty(),
            [one] => one.clone(),
            _ => {
                let mut buf = BufMut::zeroed(self.len);
                self.copy_to(&mut buf);
                buf.freeze()
            }
        }
    }
}

impl From<Buf> for SgList {
    fn from(buf: Buf) -> Self {
        let mut list = Self::new();
        list.push(buf);
        list
    }
}

impl FromIterator<Buf> for SgList {
    fn from_iter<I: IntoIterator<Item = Buf>>(iter: I) -> Self {
        let mut list = Self::new();
        iter.into_iter().for_each(|buf| list.push(buf));
        list
    }
}

impl fmt::Debug for SgList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SgList({} bytes in {})", self.len, self.parts.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn zeros_of_any_length_share_aligned_memory() {
        for len in [0, 1, PAGE_LEN, ZEROES_LEN, ZEROES_LEN + 1, 3 * ZEROES_LEN] {
            let list = SgList::zeroes(len);
            assert_eq!(&*list.to_contiguous(), vec![0; len]);
            assert!(list.parts().iter().all(|part| part.as_ptr() == list.parts()[0].as_ptr()));
            assert!(list.parts().iter().all(|part| part.as_ptr().addr() % PAGE_LEN == 0));
        }
        assert_eq!(&*Buf::zeroes(100).slice(10..90), [0; 80]);
        assert!(std::panic::catch_unwind(|| Buf::zeroes(ZEROES_LEN + 1)).is_err());
    }

    #[test]
    fn slices_of_a_list_cross_parts() {
        let list: SgList =
            [&b"abc"[..], b"", b"defg", b"h"].map(Buf::copy_from).into_iter().collect();
        assert_eq!(list.len(), 8);
        assert_eq!(&*list.slice(2..5).to_contiguous(), b"cde");
        assert_eq!(&*list.slice(0..8).to_contiguous(), b"abcdefgh");
        assert!(list.slice(3..3).is_empty());
    }
}
