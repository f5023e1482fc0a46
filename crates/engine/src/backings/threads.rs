//! Threads that do what may block, a fixed number for each backing, and the queue before them.

use std::{
    sync::Arc,
    thread::{self, JoinHandle},
};

use crossbeam_channel::{Receiver, Sender};
use netraid_block::{ErrorKind, IoError, Request};

use super::store::Store;

/// Most threads of one backing.
pub(super) const THREADS_MAX: usize = 64;
/// Most requests that wait for a thread, or a ring, of one backing.
pub(super) const QUEUE_MAX: usize = 1 << 16;

/// Dropping it waits for what is in flight, so that the file is free to be opened again.
pub(super) struct Threads {
    /// Taken only by `drop`.
    sender: Option<Sender<Request>>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    pub(super) fn start(store: &Arc<Store>, count: usize) -> std::io::Result<Self> {
        let (sender, receiver) = crossbeam_channel::unbounded();
        let handles = (0..count.clamp(1, THREADS_MAX))
            .map(|_| spawn(store.clone(), receiver.clone()))
            .collect::<Result<_, _>>()?;
        Ok(Self { sender: Some(sender), handles })
    }

    pub(super) fn give(&self, request: Request) {
        let Some(sender) = &self.sender else { return };
        if let Some(request) = admit(request, sender.len()) {
            // Nobody receives only when every thread has died; the request then ends as aborted.
            let _ = sender.send(request);
        }
    }
}

/// The request, unless too many wait already: then it ends.
pub(super) fn admit(request: Request, waiting: usize) -> Option<Request> {
    if waiting < QUEUE_MAX {
        return Some(request);
    }
    let text = format!("{QUEUE_MAX} requests wait for the file; keep fewer in flight");
    request.completion.finish(Err(IoError::with_detail(ErrorKind::Aborted, text)));
    None
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
