//! The threads that do what may block, a fixed number for each backing, and the queue before them.

use std::{
    sync::Arc,
    thread::{self, JoinHandle},
};

use crossbeam_channel::{Receiver, Sender};
use netraid_block::{BlockDevice, DeviceInfo, ErrorKind, IoError, Op, Request};

use super::store::Store;

/// Most threads of one backing.
pub(super) const THREADS_MAX: usize = 64;
/// Most requests that wait for a thread of one backing.
const QUEUE_MAX: usize = 1 << 16;

/// A store and its threads. Dropping the last handle waits for what is in flight, so that the
/// file is free to be opened again.
pub(super) struct Threads {
    pub(super) store: Arc<Store>,
    /// Taken only by `drop`.
    sender: Option<Sender<Request>>,
    handles: Vec<JoinHandle<()>>,
}

/// A store as a volume of one size.
pub(super) struct Stored {
    pub(super) info: DeviceInfo,
    pub(super) threads: Arc<Threads>,
}

impl Threads {
    pub(super) fn start(store: Store, count: usize) -> std::io::Result<Self> {
        let store = Arc::new(store);
        let (sender, receiver) = crossbeam_channel::unbounded();
        let handles = (0..count.clamp(1, THREADS_MAX))
            .map(|_| spawn(store.clone(), receiver.clone()))
            .collect::<Result<_, _>>()?;
        Ok(Self { store, sender: Some(sender), handles })
    }
}

fn spawn(store: Arc<Store>, receiver: Receiver<Request>) -> std::io::Result<JoinHandle<()>> {
    let own = store.open_again()?;
    thread::Builder::new().name("netraid-file".into()).spawn(move || {
        for request in receiver {
            let Request { op, offset, len, flags, data, completion } = request;
            let result = store.execute(&own, op, offset, len, flags, &data);
            // The buffers go back to their pool before the next request is begun.
            drop(data);
            completion.finish(result);
        }
    })
}

impl BlockDevice for Stored {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn submit(&self, request: Request) {
        let Threads { store, sender, .. } = &*self.threads;
        if request.op == Op::Read
            && let Some(data) = store.read_cached(request.offset, request.len)
        {
            request.completion.finish(Ok(data));
            return;
        }
        let Some(sender) = sender else { return };
        if sender.len() >= QUEUE_MAX {
            let text = format!("{QUEUE_MAX} requests wait for the file; keep fewer in flight");
            let error = IoError::with_detail(ErrorKind::Aborted, text);
            return request.completion.finish(Err(error));
        }
        // Nobody receives only when every thread has died; the request then ends as aborted.
        let _ = sender.send(request);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        drop(self.sender.take());
        for handle in self.handles.drain(..) {
            // A completion may hold the last handle, and end on one of our threads.
            if handle.thread().id() != thread::current().id() {
                let _ = handle.join();
            }
        }
    }
}
