//! Requests that wait, and the thread that lets them go on when their time has come.

use std::{
    cmp::Ordering,
    collections::BinaryHeap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Instant,
};

use netraid_block::Request;

/// A request, and the filter that it meets next.
pub(super) struct Waiting {
    at: Instant,
    serial: u64,
    pub(super) next: usize,
    pub(super) request: Request,
}

/// Who submits bounds how many wait.
#[derive(Default)]
pub(super) struct Timer {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: BinaryHeap<Waiting>,
    next_serial: u64,
    ended: bool,
}

impl Timer {
    /// Starts the thread; `go_on` takes each request when it is due, and all at the end.
    pub(super) fn start(
        self: &Arc<Self>,
        go_on: impl Fn(Waiting) + Send + 'static,
    ) -> std::io::Result<JoinHandle<()>> {
        let timer = self.clone();
        std::thread::Builder::new().name("netraid-filter".into()).spawn(move || {
            while let Some(waiting) = timer.next_due() {
                go_on(waiting);
            }
        })
    }

    /// Keeps a request until `at`; gives it back when the timer has ended.
    pub(super) fn wait(&self, at: Instant, next: usize, request: Request) -> Option<Request> {
        let mut queue = self.lock();
        if queue.ended {
            return Some(request);
        }
        let serial = queue.next_serial;
        queue.next_serial += 1;
        queue.waiting.push(Waiting { at, serial, next, request });
        drop(queue);
        self.changed.notify_one();
        None
    }

    /// Everything is due from now on; the thread ends behind it.
    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_one();
    }

    /// Waits for the next request that is due; `None` at the end.
    fn next_due(&self) -> Option<Waiting> {
        let mut queue = self.lock();
        loop {
            if queue.ended {
                return queue.waiting.pop();
            }
            let Some(first) = queue.waiting.peek() else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = first.at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return queue.waiting.pop();
            }
            let waited = self.changed.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ord for Waiting {
    /// The greatest is the one that is due first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.serial).cmp(&(self.at, self.serial))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Waiting {}
