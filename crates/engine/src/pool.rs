//! The pool of production: its large buffers lie in huge pages.
//!
//! A disk that is read past the kernel's cache has each page of a buffer pinned, a piece at a time
//! unless they are one; copies from and to sockets need fewer entries of the processor's address
//! table. Where the kernel gives no huge pages, buffers are as any others.

use std::mem::MaybeUninit;

use netraid_block::Pool;
use rustix::mm::{Advice, madvise};

/// An empty pool, for a process or a part of it that moves data.
#[must_use]
pub fn pool() -> Pool {
    Pool::advised(ask_for_huge_page)
}

#[allow(unsafe_code)]
fn ask_for_huge_page(chunk: &mut [MaybeUninit<u8>]) {
    // SAFETY: the advice changes how these bytes are stored, never what they are.
    let advised = unsafe { madvise(chunk.as_mut_ptr().cast(), chunk.len(), Advice::LinuxHugepage) };
    if let Err(errno) = advised {
        tracing::debug!(%errno, "no huge pages for buffers");
    }
}
