//! Straight-line code that asks questions: it waits for answers and for nothing else, without thread, clock or runtime.
//!
//! Whoever drives it polls, does what is asked, and gives the answer; nothing here knows what is asked.
//!
//! Invariant: there is one question at a time, and one answer to each.

use alloc::{boxed::Box, sync::Arc};
use core::{
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll, Waker},
};

use atomic_refcell::AtomicRefCell;
use sync_wrapper::SyncWrapper;

/// Where the code asks.
pub(crate) struct Talk<Q, A>(Arc<AtomicRefCell<Said<Q, A>>>);

struct Said<Q, A> {
    question: Option<Q>,
    answer: Option<A>,
}

/// What comes next.
pub(crate) enum Next<Q, End> {
    /// The same question as long as it is not answered.
    Ask(Q),
    /// Nothing more: it is over.
    Done(End),
}

/// Code that asks, until it ends.
pub(crate) struct Work<Q, A, End> {
    talk: Talk<Q, A>,
    code: SyncWrapper<Code<End>>,
}

type Code<End> = Pin<Box<dyn Future<Output = End> + Send>>;

impl<Q: Clone, A, End> Work<Q, A, End> {
    pub(crate) fn new<F>(code: impl FnOnce(Talk<Q, A>) -> F) -> Self
    where
        F: Future<Output = End> + Send + 'static,
    {
        let talk = Talk(Arc::new(AtomicRefCell::new(Said { question: None, answer: None })));
        let code: Code<End> = Box::pin(code(Talk(talk.0.clone())));
        Self { talk, code: SyncWrapper::new(code) }
    }

    /// # Panics
    /// When it is over.
    pub(crate) fn poll(&mut self) -> Next<Q, End> {
        let code = self.code.get_mut().as_mut();
        if let Poll::Ready(end) = code.poll(&mut Context::from_waker(Waker::noop())) {
            return Next::Done(end);
        }
        let Some(question) = self.talk.0.borrow().question.clone() else {
            unreachable!("the code waits for answers only")
        };
        Next::Ask(question)
    }

    /// # Panics
    /// When nothing was asked.
    pub(crate) fn answer(&mut self, answer: A) {
        let mut said = self.talk.0.borrow_mut();
        assert!(said.question.take().is_some(), "an answer to nothing");
        said.answer = Some(answer);
    }
}

impl<Q, A> Talk<Q, A> {
    pub(crate) async fn ask(&self, question: Q) -> A {
        self.0.borrow_mut().question = Some(question);
        poll_fn(|_| match self.0.borrow_mut().answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        })
        .await
    }
}
