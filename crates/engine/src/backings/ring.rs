//! Reads, writes and flushes by `io_uring`: a thread that keeps many of them in flight.
//!
//! Who gives a request writes it to a queue, and rings a bell if the thread sleeps. The thread gives
//! the kernel all that there is in one call ([`submitter`]), and waits in the same call for the ends.

mod submitter;

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering, fence},
        mpsc,
    },
    thread::{self, JoinHandle},
};

use crossbeam_channel::Sender;
use netraid_block::{Op, Request};
use rustix::event::{EventfdFlags, eventfd};

use self::submitter::Submitter;
use super::{
    store::Store,
    threads::{THREADS_MAX, Threads, admit},
};

/// A ring and its thread. Dropping it waits for what is in flight.
pub(super) struct Ring {
    /// Taken only by `drop`.
    sender: Option<Sender<Request>>,
    door: Arc<Door>,
    /// Taken only by `drop`.
    handle: Option<JoinHandle<()>>,
}

/// How the thread is woken.
struct Door {
    bell: OwnedFd,
    /// Whether the thread waits, or is about to, and has to be woken for what it is sent.
    sleeps: AtomicBool,
}

impl Ring {
    /// A ring for reads, writes and flushes of `store`, of which `stable_max` at once may have to be
    /// stable at their end.
    ///
    /// # Errors
    /// When the kernel has no `io_uring`, too old a one, or does not let this process use it.
    pub(super) fn start(
        store: &Arc<Store>,
        threads: &Arc<Threads>,
        stable_max: usize,
    ) -> io::Result<Self> {
        let count = stable_max.clamp(1, THREADS_MAX);
        let files = (0..count).map(|_| store.open_again()).collect::<Result<_, _>>()?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let door = Arc::new(Door { bell, sleeps: AtomicBool::new(false) });
        let (sender, receiver) = crossbeam_channel::unbounded();
        let (tell, told) = mpsc::channel();
        let (store, threads, own_door) = (store.clone(), threads.clone(), door.clone());
        // The kernel takes requests from the very thread that made the ring.
        let serve = move || match Submitter::new(store, threads, files, own_door, receiver) {
            Ok(submitter) => {
                // Who asked waits for it.
                let _ = tell.send(Ok(()));
                submitter.run();
            }
            Err(error) => {
                let _ = tell.send(Err(error));
            }
        };
        let handle = thread::Builder::new().name("netraid-ring".into()).spawn(serve)?;
        told.recv().unwrap_or_else(|_| Err(io::Error::other("the thread ended at once")))?;
        Ok(Self { sender: Some(sender), door, handle: Some(handle) })
    }

    /// Whether requests of this kind are for the ring.
    pub(super) const fn does(op: Op) -> bool {
        match op {
            Op::Read | Op::Write | Op::Flush => true,
            Op::Discard | Op::WriteZeroes | Op::Extents => false,
        }
    }

    pub(super) fn give(&self, request: Request) {
        let Some(sender) = &self.sender else { return };
        if let Some(request) = admit(request, sender.len()) {
            // Nobody receives only when the thread has died; the request then ends as aborted.
            let _ = sender.send(request);
            // Either this sees that the thread sleeps, or the thread sees the request before it does.
            fence(Ordering::SeqCst);
            if self.door.sleeps.load(Ordering::Relaxed)
                && self.door.sleeps.swap(false, Ordering::Relaxed)
            {
                self.door.ring();
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        drop(self.sender.take());
        self.door.ring();
        // A completion may hold the last handle, and end on our thread.
        if let Some(handle) = self.handle.take()
            && handle.thread().id() != thread::current().id()
        {
            let _ = handle.join();
        }
    }
}

impl Door {
    fn ring(&self) {
        // It fails only where the bell has been rung too often to count; then it was heard.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Makes the bell silent until it is rung again.
    fn hush(&self) {
        // It fails where the bell is silent already.
        let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
    }
}
