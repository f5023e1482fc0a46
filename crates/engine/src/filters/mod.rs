//! Filters between a volume and its backing: they delay, fail, corrupt, hang, slow down or trace
//! requests, to see how those above cope.
//!
//! [`Filters`] puts a stack of them over a [`Device`] and is itself used through one. A volume
//! without filters has none of this on its way. What happens to a request is decided by
//! [`decide`], without clock and threads; here requests are held, ended and passed on.
//!
//! Invariant: no request is kept for longer than its stack is there: when the [`Filters`] end,
//! those that wait go on at once, those that hang are aborted, and every later one passes.

pub mod decide;
mod spec;
mod tap;
#[cfg(test)]
mod tests;
mod timer;
mod trace;

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Instant,
};

use netraid_block::{
    BlockDevice, BufMut, Completion, Device, DeviceInfo, IoError, Request, SgList,
};

pub use self::spec::{Chance, Filter, FilterError, FilterKind, FilterSpec, OpClass};
use self::{
    decide::{Asked, Decider, Verdict},
    tap::{Tap, tap},
    timer::Timer,
    trace::{Sink, traced},
};

/// A stack of filters over a device. Dropping it ends the filters; whoever still has its device
/// then reaches the one below as if there were none.
#[derive(Debug)]
pub struct Filters {
    spec: FilterSpec,
    device: Device,
    stack: Arc<Stack>,
    thread: Option<JoinHandle<()>>,
}

/// Why filters cannot be put over a device.
#[derive(Debug, thiserror::Error)]
pub enum FiltersError {
    /// The trace's file cannot be made.
    #[error("trace {}: cannot create the file: {source}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The thread for waiting requests cannot be started.
    #[error("filters: cannot start a thread: {0}")]
    Thread(std::io::Error),
}

impl Filters {
    /// Puts the filters over `device`.
    ///
    /// # Errors
    /// When a trace's file cannot be made, or no thread be started.
    pub fn new(device: &Device, spec: FilterSpec) -> Result<Self, FiltersError> {
        let steps = spec.filters.iter().enumerate().map(|(place, filter)| {
            let mut sink = None;
            if let FilterKind::Trace { file } = &filter.kind {
                let opened = Sink::open(file.as_deref()).map_err(|source| {
                    let path = file.clone().unwrap_or_default();
                    FiltersError::Trace { path, source }
                })?;
                sink = Some(Arc::new(opened));
            }
            let decider = Decider::new(filter.clone(), spec.range.clone(), spec.seed, place);
            Ok(Step { decider: Mutex::new(decider), sink })
        });
        let stack = Arc::new(Stack {
            below: device.clone(),
            steps: steps.collect::<Result<_, FiltersError>>()?,
            started: Instant::now(),
            timer: Arc::new(Timer::default()),
            hung: Mutex::new(Vec::new()),
            ended: AtomicBool::new(false),
        });
        let waits = |filter: &Filter| {
            matches!(filter.kind, FilterKind::Delay { .. } | FilterKind::Rate { .. })
        };
        let thread = spec.filters.iter().any(waits).then(|| {
            let stack = stack.clone();
            let timer = stack.timer.clone();
            timer.start(move |waiting| stack.pass(waiting.next, waiting.request))
        });
        let thread = thread.transpose().map_err(FiltersError::Thread)?;
        let device = Device::new(Arc::new(Filtered(stack.clone())));
        Ok(Self { spec, device, stack, thread })
    }

    /// The device with the filters before it.
    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// What was asked for.
    #[must_use]
    pub const fn spec(&self) -> &FilterSpec {
        &self.spec
    }

    /// Ends the filters: requests that wait go on at once, those that hang are aborted, later ones
    /// pass. Done once; a second call does nothing.
    pub fn end(&mut self) {
        self.stack.ended.store(true, Ordering::Release);
        self.stack.timer.end();
        // Each ends as aborted when it is dropped, which may submit others: not under the lock.
        let hung = std::mem::take(&mut *self.stack.hung());
        drop(hung);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Drop for Filters {
    fn drop(&mut self) {
        self.end();
    }
}

struct Filtered(Arc<Stack>);

impl BlockDevice for Filtered {
    fn info(&self) -> DeviceInfo {
        self.0.below.info().clone()
    }

    fn submit(&self, request: Request) {
        self.0.pass(0, request);
    }
}

struct Stack {
    below: Device,
    steps: Box<[Step]>,
    started: Instant,
    timer: Arc<Timer>,
    hung: Mutex<Vec<Request>>,
    ended: AtomicBool,
}

struct Step {
    decider: Mutex<Decider>,
    /// Of a trace.
    sink: Option<Arc<Sink>>,
}

impl Stack {
    /// Takes a request through the filters from number `first`.
    fn pass(&self, first: usize, mut request: Request) {
        for (index, step) in self.steps.iter().enumerate().skip(first) {
            if self.ended.load(Ordering::Acquire) {
                break;
            }
            match step.decide(self.started, &request) {
                Verdict::Pass => {}
                Verdict::Wait(time) => {
                    match self.timer.wait(Instant::now() + time, index + 1, request) {
                        Some(back) => request = back,
                        None => return,
                    }
                }
                Verdict::Fail(kind) => {
                    let text = format!("a filter: {}", IoError::new(kind));
                    return request.completion.finish(Err(IoError::with_detail(kind, text)));
                }
                Verdict::Flip(bit) => request = tap(request, Flip { bit }),
                Verdict::Hang => match self.hang(request) {
                    Some(back) => request = back,
                    None => return,
                },
                Verdict::Trace => {
                    if let Some(sink) = &step.sink {
                        request = traced(sink.clone(), request);
                    }
                }
            }
        }
        self.below.submit(request);
    }

    /// Keeps a request until the end; gives it back when that has come.
    fn hang(&self, request: Request) -> Option<Request> {
        let mut hung = self.hung();
        // Under the lock: who ends the filters takes what hangs afterwards.
        if self.ended.load(Ordering::Acquire) {
            return Some(request);
        }
        hung.push(request);
        None
    }

    fn hung(&self) -> MutexGuard<'_, Vec<Request>> {
        self.hung.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stack({} filters)", self.steps.len())
    }
}

impl Step {
    fn decide(&self, started: Instant, request: &Request) -> Verdict {
        let Request { op, offset, len, .. } = *request;
        let mut decider = self.decider.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, so that time does not run backwards.
        decider.decide(started.elapsed(), Asked { op, offset, len })
    }
}

/// Flips a bit of what was read.
struct Flip {
    bit: u64,
}

impl Tap for Flip {
    fn end(self, result: Result<SgList, IoError>, completion: Completion) {
        completion.finish(result.map(|data| {
            let mut bytes = BufMut::zeroed(data.len());
            data.copy_to(&mut bytes);
            let at = usize::try_from(self.bit / 8).ok();
            if let Some(byte) = at.and_then(|at| bytes.get_mut(at)) {
                *byte ^= 1 << (self.bit % 8);
            }
            bytes.freeze().into()
        }));
    }
}
