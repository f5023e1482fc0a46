//! Who does what a store is asked for: a ring where there is one, and threads.
//!
//! With a ring, threads do what the ring does not, and whatever came back from it half done.

use std::{fmt, io, str::FromStr, sync::Arc};

use netraid_block::{BlockDevice, DeviceInfo, Op, Request};

use super::{check_promised, ring::Ring, store::Store, threads::Threads};

/// Threads beside a ring: they make holes, answer questions, and do again what came back half done.
const THREADS_BESIDE_RING: usize = 2;

/// How the operating system is given reads, writes and flushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoMethod {
    /// One thread, which keeps many requests in flight by `io_uring`.
    Uring,
    /// A thread for each request in flight.
    Threads,
}

/// A store and those who work for it. Dropping the last handle waits for what is in flight, so that
/// the file is free to be opened again.
pub(super) struct Workers {
    pub(super) store: Arc<Store>,
    /// Ends before the threads, to which it may give something at its end.
    ring: Option<Ring>,
    threads: Arc<Threads>,
}

/// A store as a volume of one size.
pub(super) struct Stored {
    pub(super) info: DeviceInfo,
    pub(super) workers: Arc<Workers>,
}

impl Workers {
    /// `count` requests at once by threads; with a ring as many that are to be stable at their end.
    /// By `method`, or the better one that there is.
    pub(super) fn start(store: Store, count: usize, method: Option<IoMethod>) -> io::Result<Self> {
        let store = Arc::new(store);
        // Through the page cache a ring gains nothing: the kernel gives such writes to threads of its
        // own, one for each file.
        let wanted = method.unwrap_or(match store.is_direct() {
            true => IoMethod::Uring,
            false => IoMethod::Threads,
        });
        if wanted == IoMethod::Uring {
            let threads = Arc::new(Threads::start(&store, THREADS_BESIDE_RING)?);
            match Ring::start(&store, &threads, count) {
                Ok(ring) => return Ok(Self { store, ring: Some(ring), threads }),
                Err(error) if method.is_some() => return Err(error),
                Err(error) => {
                    let path = store.path().display();
                    tracing::info!(%path, %error, "io_uring cannot be used; threads do its work");
                }
            }
        }
        let threads = Arc::new(Threads::start(&store, count)?);
        Ok(Self { store, ring: None, threads })
    }

    pub(super) const fn method(&self) -> IoMethod {
        match self.ring {
            Some(_) => IoMethod::Uring,
            None => IoMethod::Threads,
        }
    }
}

impl BlockDevice for Stored {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn submit(&self, request: Request) {
        check_promised(&self.info, &request);
        let Workers { store, ring, threads } = &*self.workers;
        if request.op == Op::Read
            && let Some(data) = store.read_cached(request.offset, request.len)
        {
            return request.completion.finish(Ok(data));
        }
        match ring {
            Some(ring) if Ring::does(request.op) => ring.give(request),
            Some(_) | None => threads.give(request),
        }
    }
}

impl FromStr for IoMethod {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "uring" => Ok(Self::Uring),
            "threads" => Ok(Self::Threads),
            _ => Err(()),
        }
    }
}

impl fmt::Display for IoMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uring => "uring",
            Self::Threads => "threads",
        })
    }
}
