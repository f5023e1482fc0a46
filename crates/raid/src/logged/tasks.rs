//! The machine's tasks: straight-line code that waits for members, for the log, for each other.
//! They run inside the machine, when it has got an input, and nowhere else: no thread, no clock,
//! no runtime. So what happens is a function of the inputs and their order.
//!
//! Invariant: the state is borrowed only between two waits, never across one.

use alloc::{boxed::Box, sync::Arc, task::Wake, vec::Vec};
use core::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll, Waker},
};

use atomic_refcell::{AtomicRefCell, AtomicRefMut};
use futures_util::stream::{FuturesUnordered, Stream};

use super::{Rule, state::State};

/// A task.
pub(super) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The array's state, as its tasks share it.
#[derive(Clone)]
pub(super) struct Array(Arc<AtomicRefCell<State>>);

/// What tasks wait for together; whoever brings it about wakes all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Labels became stable, or are wanted.
    Labels,
    /// The log has more room, or fewer blocks are dirty.
    Room,
    /// A stripe may be free now.
    Stripes,
    /// A flush has ended, or is wanted.
    Flush,
    /// A round is wanted, or has ended.
    Round,
    /// An operation has ended.
    Operations,
    /// A page of checksums was loaded, or nobody writes table pages.
    Pages,
    /// A block is to be repaired.
    Repairs,
    /// A scrub may go on, or is to end.
    Scrub,
    /// Members may catch up further.
    CatchUp,
}

const CHANGES: usize = 10;

/// Who waits for what.
#[derive(Debug, Default)]
pub(super) struct Waiters([Vec<Waker>; CHANGES]);

impl Waiters {
    /// Wakes everybody who waits for `change`.
    pub(super) fn wake(&mut self, change: Change) {
        self.0[change as usize].drain(..).for_each(Waker::wake);
    }

    pub(super) fn add(&mut self, change: Change, waker: &Waker) {
        self.0[change as usize].push(waker.clone());
    }
}

impl Array {
    pub(super) fn new(state: State) -> Self {
        Self(Arc::new(AtomicRefCell::new(state)))
    }

    /// The state; to be given back before the next wait.
    pub(super) fn state(&self) -> AtomicRefMut<'_, State> {
        self.0.borrow_mut()
    }

    /// Waits until `ask` has an answer; it is asked now and after each `change`.
    pub(super) async fn until<T>(
        &self,
        change: Change,
        mut ask: impl FnMut(&mut State) -> Option<T> + Send,
    ) -> T {
        poll_fn(|context: &mut Context<'_>| {
            let mut state = self.state();
            match ask(&mut state) {
                Some(answer) => Poll::Ready(answer),
                None => {
                    state.waiters.add(change, context.waker());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// As [`Self::until`], for what `rule` may hold back; counted once when it does.
    pub(super) async fn until_rule<T>(
        &self,
        change: Change,
        rule: Rule,
        mut ask: impl FnMut(&mut State) -> Option<T> + Send,
    ) -> T {
        let mut is_held_back = false;
        self.until(change, |state| {
            let answer = ask(state);
            if answer.is_none() && !core::mem::replace(&mut is_held_back, true) {
                state.rules.note(rule);
            }
            answer
        })
        .await
    }

    /// Begins a task.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.state().spawned.get_mut().push(Box::pin(task));
    }
}

/// All tasks of a machine.
pub(super) struct Tasks {
    running: FuturesUnordered<Task>,
    again: Arc<Again>,
}

/// Notes that there is more to do at once.
#[derive(Default)]
struct Again(AtomicBool);

impl Wake for Again {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Tasks {
    pub(super) fn new() -> Self {
        Self { running: FuturesUnordered::new(), again: Arc::default() }
    }

    /// Adds a task.
    pub(super) fn push(&mut self, task: Task) {
        self.running.push(task);
    }

    /// Runs all tasks as far as they get.
    pub(super) fn run(&mut self) {
        let waker = Waker::from(Arc::clone(&self.again));
        let mut context = Context::from_waker(&waker);
        loop {
            self.again.0.store(false, Ordering::Relaxed);
            match Pin::new(&mut self.running).poll_next(&mut context) {
                Poll::Ready(Some(())) => {}
                Poll::Ready(None) => return,
                Poll::Pending if self.again.0.load(Ordering::Relaxed) => {}
                Poll::Pending => return,
            }
        }
    }

    /// Ends all tasks where they are.
    pub(super) fn clear(&mut self) {
        self.running = FuturesUnordered::new();
    }
}
