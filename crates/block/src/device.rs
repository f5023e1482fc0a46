//! [`BlockDevice`], the requests that it takes, and [`Device`], the checked way to it.

use alloc::{format, sync::Arc};
use core::fmt;

use crate::{ErrorKind, IoError, SgList};

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Returns the bytes of the range.
    Read,
    /// Replaces the bytes of the range by the request's data.
    Write,
    /// Makes every write that completed before this request was submitted stable.
    Flush,
    /// Gives the range back: contents become zeros where the device says so, else arbitrary.
    Discard,
    /// Makes the range read as zeros; may give the space back.
    WriteZeroes,
    /// Tells which bytes of the range are mapped; the answer is read by
    /// [`Extents::decode`](crate::extents::Extents::decode).
    Extents,
}

impl Op {
    /// Whether it changes what the device holds.
    #[must_use]
    pub const fn changes(self) -> bool {
        match self {
            Self::Write | Self::Discard | Self::WriteZeroes => true,
            Self::Read | Self::Flush | Self::Extents => false,
        }
    }
}

/// Modifiers of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestFlags {
    /// Force unit access: stable when completed (writes and zeroes only).
    pub fua: bool,
    /// `WriteZeroes` only: keep the space allocated.
    pub no_unmap: bool,
}

/// What a device is and can do; constant while it is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Capacity in bytes, a multiple of `block_len`.
    pub capacity: u64,
    /// Logical block in bytes: 512 or 4096; offsets and lengths are multiples of it.
    pub block_len: u32,
    /// Length in bytes that large requests should be multiples of, aligned to it.
    pub optimal_len: u32,
    /// Largest read or write in bytes.
    pub max_transfer_len: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether a completed write may be lost with the device's power before a flush.
    pub volatile_cache: bool,
    /// Whether `Discard` gives space back; else it completes without effect.
    pub can_discard: bool,
    /// Whether `Extents` is answered; else it is refused, and every byte counts as mapped.
    pub can_map: bool,
}

/// Receives the ends of requests. Called from any thread, must not block.
pub trait Complete: Send + Sync {
    /// The request known here as `tag` has ended; reads carry their data.
    fn complete(&self, tag: u64, result: Result<SgList, IoError>);
}

/// One request's only way to end. Dropping it ends the request as aborted.
pub struct Completion {
    queue: Option<Arc<dyn Complete>>,
    tag: u64,
}

impl Completion {
    /// A completion that reports to `queue` under `tag`.
    #[must_use]
    pub fn new(queue: Arc<dyn Complete>, tag: u64) -> Self {
        Self { queue: Some(queue), tag }
    }

    /// Ends the request.
    pub fn finish(mut self, result: Result<SgList, IoError>) {
        if let Some(queue) = self.queue.take() {
            queue.complete(self.tag, result);
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            queue.complete(self.tag, Err(ErrorKind::Aborted.into()));
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Completion({})", self.tag)
    }
}

/// One request to a block device.
#[derive(Debug)]
pub struct Request {
    /// What to do.
    pub op: Op,
    /// First byte; 0 for a flush.
    pub offset: u64,
    /// Number of bytes; 0 for a flush. Discards, zeroes and questions about extents may exceed
    /// the transfer limit.
    pub len: u64,
    /// Modifiers.
    pub flags: RequestFlags,
    /// The bytes of a write, exactly `len`; empty for all else.
    pub data: SgList,
    /// How the request ends.
    pub completion: Completion,
}

/// A store of bytes in logical blocks.
///
/// Implementations may assume that requests are within range, aligned and allowed, because
/// callers go through [`Device`]. Requests in flight at the same time are not ordered. A read
/// completes with exactly `len` bytes, a question about extents with an answer that is encoded as
/// [`extents`](crate::extents) says, every other request with an empty list.
pub trait BlockDevice: Send + Sync {
    /// What the device is and can do.
    fn info(&self) -> DeviceInfo;

    /// Takes a request; never blocks. It ends through its completion, from any thread, perhaps
    /// before this returns.
    fn submit(&self, request: Request);
}

/// A shared handle to a device that checks each request before the device sees it.
#[derive(Clone)]
pub struct Device {
    inner: Arc<dyn BlockDevice>,
    info: DeviceInfo,
}

impl Device {
    /// Puts the check in front of `inner`.
    ///
    /// # Panics
    /// When the device's own description is inconsistent.
    #[must_use]
    pub fn new(inner: Arc<dyn BlockDevice>) -> Self {
        let info = inner.info();
        assert!(info.block_len.is_power_of_two() && info.block_len >= 512, "block length");
        assert_eq!(info.capacity % u64::from(info.block_len), 0, "capacity in whole blocks");
        assert!(info.max_transfer_len >= info.block_len, "transfer limit");
        Self { inner, info }
    }

    /// What the device is and can do.
    #[must_use]
    pub const fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Checks the request and hands it to the device, or ends it with the error.
    pub fn submit(&self, request: Request) {
        match self.check(&request) {
            Ok(()) => self.inner.submit(request),
            Err(error) => request.completion.finish(Err(error)),
        }
    }

    fn check(&self, request: &Request) -> Result<(), IoError> {
        let Request { op, offset, len, flags, data, .. } = request;
        let info = &self.info;
        let fail = |kind, what: &str, limit: u64| {
            let text = format!("{op:?} of {len} bytes at {offset}: {what} {limit}");
            Err(IoError::with_detail(kind, text))
        };
        let expected = if *op == Op::Write { *len } else { 0 };
        if data.len() as u64 != expected {
            return fail(ErrorKind::InvalidRequest, "carries bytes:", data.len() as u64);
        }
        if *op == Op::Flush {
            return match (*offset, *len) {
                (0, 0) => Ok(()),
                _ => fail(ErrorKind::InvalidRequest, "a flush has no range; its end is", 0),
            };
        }
        if offset.checked_add(*len).is_none_or(|end| end > info.capacity) {
            return fail(ErrorKind::OutOfRange, "capacity is", info.capacity);
        }
        let block_len = u64::from(info.block_len);
        if !offset.is_multiple_of(block_len) || !len.is_multiple_of(block_len) {
            return fail(ErrorKind::Unaligned, "logical block is", block_len);
        }
        if matches!(op, Op::Read | Op::Write) && *len > u64::from(info.max_transfer_len) {
            let limit = u64::from(info.max_transfer_len);
            return fail(ErrorKind::InvalidRequest, "largest transfer is", limit);
        }
        if *op == Op::Extents && !info.can_map {
            let text = "the device does not know which of its blocks are mapped";
            return Err(IoError::with_detail(ErrorKind::Unsupported, text));
        }
        if flags.fua && matches!(op, Op::Read | Op::Discard | Op::Extents) {
            return fail(ErrorKind::InvalidRequest, "FUA applies to writes; block is", block_len);
        }
        if info.read_only && op.changes() {
            return Err(ErrorKind::ReadOnly.into());
        }
        Ok(())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.info).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buf;
    use std::sync::Mutex;

    struct Seen(Mutex<Option<Result<SgList, IoError>>>);

    impl Complete for Seen {
        fn complete(&self, _tag: u64, result: Result<SgList, IoError>) {
            assert!(self.0.lock().unwrap().replace(result).is_none(), "a request ends once");
        }
    }

    struct Idle(DeviceInfo);

    impl BlockDevice for Idle {
        fn info(&self) -> DeviceInfo {
            self.0.clone()
        }

        fn submit(&self, request: Request) {
            request.completion.finish(Ok(SgList::new()));
        }
    }

    fn info() -> DeviceInfo {
        DeviceInfo {
            capacity: 1 << 20,
            block_len: 4096,
            optimal_len: 4096,
            max_transfer_len: 8192,
            read_only: false,
            volatile_cache: true,
            can_discard: true,
            can_map: true,
        }
    }

    /// How a request ends at the seam; `None` when the device sees it.
    fn refusal(info: DeviceInfo, op: Op, offset: u64, len: u64, fua: bool) -> Option<ErrorKind> {
        let device = Device::new(Arc::new(Idle(info)));
        let seen = Arc::new(Seen(Mutex::new(None)));
        let carried = if op == Op::Write { usize::try_from(len).unwrap() } else { 0 };
        let data = Buf::copy_from(&std::vec![0; carried]).into();
        let flags = RequestFlags { fua, no_unmap: false };
        let completion = Completion::new(seen.clone(), 0);
        device.submit(Request { op, offset, len, flags, data, completion });
        seen.0.lock().unwrap().take().unwrap().err().map(|error| error.kind())
    }

    const ALL: [Op; 6] =
        [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes, Op::Extents];

    #[test]
    fn ranges_end_at_the_capacity() {
        for op in ALL.into_iter().filter(|op| *op != Op::Flush) {
            assert_eq!(refusal(info(), op, (1 << 20) - 4096, 4096, false), None, "{op:?}");
            let past = refusal(info(), op, (1 << 20) - 4096, 8192, false);
            assert_eq!(past, Some(ErrorKind::OutOfRange), "{op:?}");
            let wraps = refusal(info(), op, u64::MAX - 4095, 4096, false);
            assert_eq!(wraps, Some(ErrorKind::OutOfRange), "{op:?}");
            assert_eq!(refusal(info(), op, 512, 4096, false), Some(ErrorKind::Unaligned));
            assert_eq!(refusal(info(), op, 0, 512, false), Some(ErrorKind::Unaligned));
        }
        assert_eq!(refusal(info(), Op::Flush, 0, 0, false), None);
        assert_eq!(refusal(info(), Op::Flush, 0, 4096, false), Some(ErrorKind::InvalidRequest));
    }

    #[test]
    fn only_transfers_have_a_largest_length() {
        for op in ALL.into_iter().filter(|op| *op != Op::Flush) {
            let transfers = matches!(op, Op::Read | Op::Write);
            let longer = transfers.then_some(ErrorKind::InvalidRequest);
            assert_eq!(refusal(info(), op, 0, 8192, false), None);
            assert_eq!(refusal(info(), op, 0, 12288, false), longer, "{op:?}");
        }
    }

    #[test]
    fn what_is_read_only_can_be_read_flushed_and_mapped() {
        for op in ALL {
            let len = if op == Op::Flush { 0 } else { 4096 };
            let refused = refusal(DeviceInfo { read_only: true, ..info() }, op, 0, len, false);
            assert_eq!(refused, op.changes().then_some(ErrorKind::ReadOnly), "{op:?}");
        }
    }

    #[test]
    fn fua_is_for_what_writes() {
        for (op, refused) in [
            (Op::Write, false),
            (Op::WriteZeroes, false),
            (Op::Read, true),
            (Op::Discard, true),
            (Op::Extents, true),
        ] {
            let found = refusal(info(), op, 0, 4096, true);
            assert_eq!(found, refused.then_some(ErrorKind::InvalidRequest), "{op:?}");
        }
    }

    #[test]
    fn a_device_that_cannot_map_is_not_asked() {
        let without = DeviceInfo { can_map: false, ..info() };
        let refused = refusal(without, Op::Extents, 0, 4096, false);
        assert_eq!(refused, Some(ErrorKind::Unsupported));
    }
}
