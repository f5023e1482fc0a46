//! Awaiting the ends of requests: a queue for whoever keeps many in flight, and plain async
//! calls for set-up code.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use netraid_block::{
    Complete, Completion, Device, ErrorKind, IoError, Op, Request, RequestFlags, SgList,
    extents::Extents,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::unconstrained,
};

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

    /// An end that is there already. Until [`Self::recv`] is awaited again, ends that come wake nobody: whoever is
    /// at work finds them by this, and is not woken by what it did itself.
    #[must_use]
    pub fn take(&mut self) -> Option<Completed> {
        // A task that has had its turn would else be told that there is none.
        let recv = pin!(unconstrained(self.receiver.recv()));
        match recv.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(completed) => completed,
            Poll::Pending => None,
        }
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

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        task::Wake,
    };

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_ends_while_its_owner_is_at_work_wakes_nobody_and_is_found() {
        let (queue, mut receiver) = CompletionQueue::channel();
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        let wait = |receiver: &mut CompletionReceiver| {
            let end = pin!(receiver.recv()).poll(&mut Context::from_waker(&waker));
            end.map(|end| end.map(|(tag, _)| tag))
        };
        assert_eq!(wait(&mut receiver), Poll::Pending);
        // Awake and at work.
        assert!(receiver.take().is_none());
        queue.completion(7).finish(Ok(SgList::new()));
        queue.completion(8).finish(Ok(SgList::new()));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
        assert_eq!(receiver.take().map(|(tag, _)| tag), Some(7));
        // What it did not take, it is not left to wait for.
        assert_eq!(wait(&mut receiver), Poll::Ready(Some(8)));
        assert_eq!(wait(&mut receiver), Poll::Pending);
        queue.completion(9).finish(Ok(SgList::new()));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert_eq!(wait(&mut receiver), Poll::Ready(Some(9)));
    }

    #[tokio::test]
    async fn a_task_that_has_had_its_turn_finds_what_is_there() {
        let (queue, mut receiver) = CompletionQueue::channel();
        for tag in 0..1000 {
            queue.completion(tag).finish(Ok(SgList::new()));
        }
        let found = std::iter::from_fn(|| receiver.take()).map(|(tag, _)| tag);
        assert_eq!(found.collect::<Vec<_>>(), (0..1000).collect::<Vec<_>>());
    }
}
