//! A device as its clients see it: any range of bytes, of any length.
//!
//! A request that the device takes as it is goes straight to it: that costs two atomic additions
//! for a write and nothing for a read. A larger one is split, and ends when all parts have. A
//! write of partial blocks is done by the [`aligner`], which reads, modifies and writes.
//!
//! Invariant: while the aligner rewrites a block, no other write of this export is under way, so
//! that neighbours in one block cannot undo each other. All writers of a device have to share one
//! `ByteDevice`.

mod aligner;
mod gate;
mod join;
#[cfg(test)]
mod tests;

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
};

use crossbeam_channel::Sender;
use netraid_block::{
    Complete, Completion, Device, DeviceInfo, ErrorKind, IoError, Op, Request, RequestFlags,
    SgList, narrow,
};

use self::{aligner::Job, gate::Gate, join::Join};

/// Set in tags of requests that hold the gate; consumers' tags are below.
const HOLDS_GATE: u64 = 1 << 63;

/// A request for a range of bytes.
#[derive(Debug)]
pub struct ByteRequest {
    /// What is to be done.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// How.
    pub flags: RequestFlags,
    /// What is written.
    pub data: SgList,
}

/// A device that takes requests for bytes. Clones share it; all exports of one device have to.
#[derive(Clone)]
pub struct ByteDevice {
    shared: Arc<Shared>,
}

struct Shared {
    device: Device,
    gate: Arc<Gate>,
    /// Started by the first request that needs it.
    aligner: OnceLock<Option<Sender<Job>>>,
}

/// One consumer's way to the device.
pub struct Port {
    shared: Arc<Shared>,
    completer: Arc<Completer>,
}

impl ByteDevice {
    /// Makes a device byte-addressed. There is to be one for each device.
    #[must_use]
    pub fn new(device: Device) -> Self {
        let gate = Arc::new(Gate::default());
        Self { shared: Arc::new(Shared { device, gate, aligner: OnceLock::new() }) }
    }

    /// The device below.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// A way to the device whose ends go to `consumer`.
    #[must_use]
    pub fn port(&self, consumer: Arc<dyn Complete>) -> Port {
        let completer = Arc::new(Completer { gate: self.shared.gate.clone(), consumer });
        Port { shared: self.shared.clone(), completer }
    }
}

impl std::fmt::Debug for ByteDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ByteDevice({:?})", self.shared.device)
    }
}

impl From<Device> for ByteDevice {
    fn from(device: Device) -> Self {
        Self::new(device)
    }
}

impl Port {
    /// Submits a request that ends as `tag`, which is below 2^63.
    ///
    /// # Panics
    /// When it is not.
    pub fn submit(&self, request: ByteRequest, tag: u64) {
        assert_eq!(tag & HOLDS_GATE, 0, "tags are below 2^63");
        let info = self.shared.device.info();
        let Some(end) = request.offset.checked_add(request.len).filter(|end| *end <= info.capacity)
        else {
            self.completer.complete(tag, Err(ErrorKind::OutOfRange.into()));
            return;
        };
        match request.op {
            Op::Flush | Op::Extents => self.direct(request, tag),
            Op::Read => self.read(request, end, tag),
            Op::Discard => self.discard(request, end, tag),
            Op::Write | Op::WriteZeroes => self.write(request, end, tag),
        }
    }

    fn direct(&self, request: ByteRequest, tag: u64) {
        submit(&self.shared.device, request, Completion::new(self.completer.clone(), tag));
    }

    fn read(&self, request: ByteRequest, end: u64, tag: u64) {
        let info = self.shared.device.info();
        let whole = whole_blocks(info, request.offset, end);
        if whole == (request.offset..end) && request.len <= u64::from(info.max_transfer_len) {
            self.direct(request, tag);
            return;
        }
        let keep = (request.offset - whole.start)..(end - whole.start);
        let request = ByteRequest { offset: whole.start, len: whole.end - whole.start, ..request };
        split(&self.shared.device, request, keep, self.completer.clone(), tag);
    }

    fn write(&self, request: ByteRequest, end: u64, tag: u64) {
        let info = self.shared.device.info();
        if whole_blocks(info, request.offset, end) != (request.offset..end) || !self.enter() {
            self.align(request, tag);
            return;
        }
        submit_write(&self.shared.device, request, self.completer.clone(), tag | HOLDS_GATE);
    }

    /// Gives back the whole blocks of the range; a part of a block is kept.
    fn discard(&self, request: ByteRequest, end: u64, tag: u64) {
        let block_len = u64::from(self.shared.device.info().block_len);
        let offset = request.offset.next_multiple_of(block_len);
        let end = end - end % block_len;
        if offset >= end {
            self.completer.complete(tag, Ok(SgList::new()));
            return;
        }
        let request = ByteRequest { offset, len: end - offset, ..request };
        if self.enter() {
            self.direct(request, tag | HOLDS_GATE);
        } else {
            self.align(request, tag);
        }
    }

    fn enter(&self) -> bool {
        self.shared.gate.enter()
    }

    fn align(&self, request: ByteRequest, tag: u64) {
        let job = Job { request, consumer: self.completer.clone(), tag };
        let start = || aligner::start(self.shared.device.clone(), self.shared.gate.clone());
        let job = match self.shared.aligner.get_or_init(start) {
            Some(sender) => match sender.send(job) {
                Ok(()) => return,
                Err(error) => error.0,
            },
            None => job,
        };
        let error = IoError::with_detail(
            ErrorKind::Device,
            "no thread for writes of partial blocks; align writes to whole blocks",
        );
        job.consumer.complete(job.tag, Err(error));
    }
}

/// Passes ends on to the consumer, and opens the gate for those that held it.
struct Completer {
    gate: Arc<Gate>,
    consumer: Arc<dyn Complete>,
}

impl Complete for Completer {
    fn complete(&self, tag: u64, result: Result<SgList, IoError>) {
        if tag & HOLDS_GATE != 0 {
            self.gate.leave();
        }
        self.consumer.complete(tag & !HOLDS_GATE, result);
    }
}

/// The smallest range of whole blocks around a range that is within the capacity.
fn whole_blocks(info: &DeviceInfo, offset: u64, end: u64) -> Range<u64> {
    let block_len = u64::from(info.block_len);
    // The capacity is a whole number of blocks, so that rounding up stays within it.
    (offset - offset % block_len)..end.next_multiple_of(block_len)
}

fn submit(device: &Device, request: ByteRequest, completion: Completion) {
    let ByteRequest { op, offset, len, flags, data } = request;
    device.submit(Request { op, offset, len, flags, data, completion });
}

/// Submits a write of whole blocks, in parts where it is too long for the device.
fn submit_write(device: &Device, request: ByteRequest, consumer: Arc<Completer>, tag: u64) {
    let long = request.len > u64::from(device.info().max_transfer_len);
    if request.op == Op::Write && long {
        split(device, request, 0..0, consumer, tag);
    } else {
        submit(device, request, Completion::new(consumer, tag));
    }
}

/// Submits a read or a write of whole blocks in parts; of a read the bytes `keep` are answered.
fn split(
    device: &Device,
    request: ByteRequest,
    keep: Range<u64>,
    consumer: Arc<Completer>,
    tag: u64,
) {
    let info = device.info();
    let step = info.max_transfer_len - info.max_transfer_len % info.block_len;
    let count = request.len.div_ceil(u64::from(step));
    let join = Arc::new(Join::new(consumer, tag, count, keep));
    for part in 0..count {
        let start = part * u64::from(step);
        let len = u64::from(step).min(request.len - start);
        let data = match request.op {
            // The list holds all of the request's bytes, so that its length fits.
            Op::Write => request.data.slice(narrow(start)..narrow(start + len)),
            Op::Read | Op::Flush | Op::Discard | Op::WriteZeroes | Op::Extents => SgList::new(),
        };
        let offset = request.offset + start;
        let request = ByteRequest { op: request.op, offset, len, flags: request.flags, data };
        submit(device, request, Completion::new(join.clone(), part));
    }
}
