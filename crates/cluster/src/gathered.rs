//! A body that takes as much memory as it has bytes, in however small pieces it comes.
//!
//! A piece of a body that comes over a connection is a part of the buffer that the connection was read into,
//! and keeps all of that buffer: a byte may keep several KiB. [`Gathered`] copies the pieces into buffers of its own.

use std::{
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// Bytes that are gathered before they are handed on, at least, but at the end of the body. One that comes piece by
/// piece takes a buffer of this length beyond its own at most.
const PART_LEN: usize = 16 << 10;

/// A body whose pieces are gathered. Trailers are left out.
pub(crate) struct Gathered<B> {
    inner: B,
    buffer: Vec<u8>,
    taken_len: usize,
    is_over: bool,
}

impl<B: Body<Data = Bytes> + Unpin> Gathered<B> {
    pub(crate) const fn new(inner: B) -> Self {
        Self { inner, buffer: Vec::new(), taken_len: 0, is_over: false }
    }

    /// Bytes of memory that were taken for the body until now, handed on or not.
    pub(crate) const fn taken_len(&self) -> usize {
        self.taken_len
    }

    fn gather(&mut self, piece: &[u8]) {
        let before = self.buffer.capacity();
        if before == 0 {
            let rest = self.inner.size_hint().upper().and_then(|len| usize::try_from(len).ok());
            let rest = rest.map_or(PART_LEN, |rest| rest.saturating_add(piece.len()));
            self.buffer.reserve_exact(rest.min(PART_LEN).max(piece.len()));
        } else if before - self.buffer.len() < piece.len() {
            // It is handed on now: no buffer is copied twice.
            self.buffer.reserve_exact(piece.len());
        }
        self.buffer.extend_from_slice(piece);
        self.taken_len = self.taken_len.saturating_add(self.buffer.capacity() - before);
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Gathered<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        while !self.is_over && self.buffer.len() < PART_LEN {
            match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                Some(Ok(frame)) => {
                    if let Ok(piece) = frame.into_data() {
                        self.gather(&piece);
                    }
                    self.is_over = self.inner.is_end_stream();
                }
                Some(Err(error)) => {
                    self.is_over = true;
                    self.buffer = Vec::new();
                    return Poll::Ready(Some(Err(error)));
                }
                None => self.is_over = true,
            }
        }
        let part = mem::take(&mut self.buffer);
        assert!(part.len() <= self.taken_len, "what is handed on was counted");
        Poll::Ready((!part.is_empty()).then(|| Ok(Frame::data(Bytes::from(part)))))
    }

    fn is_end_stream(&self) -> bool {
        self.buffer.is_empty() && (self.is_over || self.inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, gathered) = (self.inner.size_hint(), self.buffer.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(gathered));
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper.saturating_add(gathered));
        }
        hint
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{
        convert::Infallible,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use http_body_util::BodyExt as _;

    use super::*;

    /// Bytes of the buffer that each piece keeps.
    const BUFFER_LEN: usize = 4096;

    /// A body that comes in pieces, each of which keeps a buffer of its own.
    pub(crate) struct Pieces {
        left_len: usize,
        piece_len: usize,
        /// Whether its length is known from the beginning.
        is_sized: bool,
        kept: Arc<AtomicUsize>,
        /// Most buffers that were kept at a time.
        pub(crate) kept_most: Arc<AtomicUsize>,
    }

    impl Pieces {
        pub(crate) fn new(len: usize, piece_len: usize, is_sized: bool) -> Self {
            let (kept, kept_most) = Default::default();
            Self { left_len: len, piece_len, is_sized, kept, kept_most }
        }
    }

    struct Buffer {
        bytes: Vec<u8>,
        kept: Arc<AtomicUsize>,
    }

    impl AsRef<[u8]> for Buffer {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }

    impl Drop for Buffer {
        fn drop(&mut self) {
            self.kept.fetch_sub(1, Ordering::Relaxed);
        }
    }

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if self.left_len == 0 {
                return Poll::Ready(None);
            }
            let len = self.piece_len.min(self.left_len);
            self.left_len -= len;
            let kept = self.kept.fetch_add(1, Ordering::Relaxed) + 1;
            self.kept_most.fetch_max(kept, Ordering::Relaxed);
            let bytes = vec![b' '; BUFFER_LEN.max(len)];
            let buffer = Bytes::from_owner(Buffer { bytes, kept: Arc::clone(&self.kept) });
            Poll::Ready(Some(Ok(Frame::data(buffer.slice(..len)))))
        }

        fn is_end_stream(&self) -> bool {
            self.is_sized && self.left_len == 0
        }

        fn size_hint(&self) -> SizeHint {
            match self.is_sized {
                true => SizeHint::with_exact(self.left_len as u64),
                false => SizeHint::new(),
            }
        }
    }

    /// The parts that a body is handed on in, and the bytes that were taken for them.
    async fn parts(pieces: Pieces) -> (Vec<usize>, usize) {
        let (mut body, mut parts) = (Gathered::new(pieces), Vec::new());
        while let Some(part) = body.frame().await {
            parts.push(part.unwrap().into_data().unwrap().len());
        }
        assert!(body.is_end_stream());
        (parts, body.taken_len())
    }

    #[tokio::test]
    async fn no_piece_is_kept_once_the_next_one_comes() {
        for is_sized in [true, false] {
            let pieces = Pieces::new(50_000, 1, is_sized);
            let kept_most = Arc::clone(&pieces.kept_most);
            let body = Gathered::new(pieces).collect().await.unwrap().to_bytes();
            assert_eq!(body, vec![b' '; 50_000]);
            assert_eq!(kept_most.load(Ordering::Relaxed), 1);
        }
    }

    #[tokio::test]
    async fn as_much_is_taken_as_comes_and_no_more_than_a_part_beyond_it() {
        assert_eq!(parts(Pieces::new(0, 1, true)).await, (vec![], 0));
        assert_eq!(parts(Pieces::new(100, 1, true)).await, (vec![100], 100));
        assert_eq!(parts(Pieces::new(100, 1, false)).await, (vec![100], PART_LEN));
        let two = vec![PART_LEN, 1];
        assert_eq!(parts(Pieces::new(PART_LEN + 1, 1, true)).await, (two.clone(), PART_LEN + 1));
        assert_eq!(parts(Pieces::new(PART_LEN + 1, 1, false)).await, (two, 2 * PART_LEN));
        for (piece_len, parts_then) in [(10_000, vec![20_000, 10_000]), (40_000, vec![30_000])] {
            let (parts, taken_len) = parts(Pieces::new(30_000, piece_len, true)).await;
            assert_eq!((parts, taken_len), (parts_then, 30_000));
        }
    }
}
