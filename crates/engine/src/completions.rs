//! Awaiting the ends of requests: a queue for whoever keeps many in flight, and plain async
//! calls for set-up code.

use std::sync::Arc;

use netraid_block::{
    Complete, Completion, Device, ErrorKind, IoError, Op, Request, RequestFlags, SgList,
    extents::Extents,
};
use tokio::sync::{mpsc, oneshot};

/// How one request ended: its tag and its result.
pub type Completed = (u64, Result<SgList, IoError>);

/// Where completions go; clones feed the same receiver. The queue has no limit of its own: its
/// consumer bounds what it keeps in flight.
#[derive(Clone)]
pub struct CompletionQueue {
    sender: Arc<Sender>,
}

/// Where completions come out.
pub struct CompletionReceiver {
    receiver: mpsc::UnboundedReceiver<Completed>,
}

struct Sender(mpsc::UnboundedSender<Completed>);

impl Complete for Sender {
    fn complete(&self, tag: u64, result: Result<SgList, IoError>) {
        // The consumer is gone: nobody waits for this end.
        let _ = self.0.send((tag, result));
    }
}

impl CompletionQueue {
    /// A queue and its only receiver.
    #[must_use]
    pub fn channel() -> (Self, CompletionReceiver) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self { sender: Arc::new(Sender(sender)) }, CompletionReceiver { receiver })
    }

    /// Where ends are told, for devices that make completions of their own.
    #[must_use]
    pub fn consumer(&self) -> Arc<dyn Complete> {
        self.sender.clone()
    }

    /// A completion that arrives at the receiver as `tag`.
    #[must_use]
    pub fn completion(&self, tag: u64) -> Completion {
        Completion::new(self.sender.clone(), tag)
    }
}

impl CompletionReceiver {
    /// The next end; cancel safe. `None` when every queue handle and completion is gone.
    pub async fn recv(&mut self) -> Option<Completed> {
        self.receiver.recv().await
    }

    /// Waits for at least one end and appends up to `limit` to `ends`; cancel safe.
    pub async fn recv_many(&mut self, ends: &mut Vec<Completed>, limit: usize) -> usize {
        self.receiver.recv_many(ends, limit).await
    }

    /// An end that is there already.
    pub fn try_recv(&mut self) -> Option<Completed> {
        self.receiver.try_recv().ok()
    }
}

struct Once(std::sync::Mutex<Option<oneshot::Sender<Result<SgList, IoError>>>>);

impl Complete for Once {
    fn complete(&self, _tag: u64, result: Result<SgList, IoError>) {
        let sender = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(sender) = sender {
            // Nobody waits any more.
            let _ = sender.send(result);
        }
    }
}

/// Submits one request and awaits its end.
///
/// # Errors
/// As the device reports.
pub async fn request(
    device: &Device,
    op: Op,
    offset: u64,
    len: u64,
    flags: RequestFlags,
    data: SgList,
) -> Result<SgList, IoError> {
    let (sender, receiver) = oneshot::channel();
    let completion = Completion::new(Arc::new(Once(std::sync::Mutex::new(Some(sender)))), 0);
    device.submit(Request { op, offset, len, flags, data, completion });
    receiver.await.unwrap_or_else(|_| Err(ErrorKind::Aborted.into()))
}

/// Reads `len` bytes at `offset`.
///
/// # Errors
/// As the device reports.
pub async fn read(device: &Device, offset: u64, len: u64) -> Result<SgList, IoError> {
    request(device, Op::Read, offset, len, RequestFlags::default(), SgList::new()).await
}

/// Writes `data` at `offset`.
///
/// # Errors
/// As the device reports.
pub async fn write(device: &Device, offset: u64, data: SgList, fua: bool) -> Result<(), IoError> {
    let flags = RequestFlags { fua, ..RequestFlags::default() };
    let len = data.len() as u64;
    request(device, Op::Write, offset, len, flags, data).await.map(drop)
}

/// Makes completed writes stable.
///
/// # Errors
/// As the device reports.
pub async fn flush(device: &Device) -> Result<(), IoError> {
    request(device, Op::Flush, 0, 0, RequestFlags::default(), SgList::new()).await.map(drop)
}

/// Makes a range read as zeros.
///
/// # Errors
/// As the device reports.
pub async fn write_zeroes(device: &Device, offset: u64, len: u64) -> Result<(), IoError> {
    let flags = RequestFlags::default();
    request(device, Op::WriteZeroes, offset, len, flags, SgList::new()).await.map(drop)
}

/// Asks which bytes of a range are mapped; the answer may end before the range does.
///
/// # Errors
/// As the device reports, and when its answer is malformed.
pub async fn extents(device: &Device, offset: u64, len: u64) -> Result<Extents, IoError> {
    let flags = RequestFlags::default();
    let answer = request(device, Op::Extents, offset, len, flags, SgList::new()).await?;
    Extents::decode(&answer, len)
}

/// Gives a range back.
///
/// # Errors
/// As the device reports.
pub async fn discard(device: &Device, offset: u64, len: u64) -> Result<(), IoError> {
    request(device, Op::Discard, offset, len, RequestFlags::default(), SgList::new())
        .await
        .map(drop)
}
