//! The book's task. Whoever wants something of the book sends work here, and waits until all that it
//! changed, and all that it rests on, is durable. What many ask at one time is stored together: while
//! one batch is on its way, the next one gathers.

use std::{pin::Pin, time::Duration};

use netraid_cluster::{
    agent::{Fault, FaultCode},
    now,
    store::{Store, StoreError},
};
use netraid_control::units::{MediatorId, Moment, PlanId};
use netraid_engine::target::{CommandError, Pace, TargetHandle};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use crate::{
    book::{Book, fault},
    records,
};

/// Work that waits, at most.
const QUEUE_MAX: usize = 1024;
/// Work that is done before what it changed is stored, at most.
const GROUP_MAX: usize = 256;
/// After the store took nothing, what is over waits so long.
const STORE_PAUSE: Duration = Duration::from_secs(1);
/// The clock may be set: it is looked at so often.
const CLOCK_LOOK: Duration = Duration::from_secs(1);

type Stored = Result<(), StoreError>;
type Work = Box<dyn FnOnce(&mut Book, Moment) + Send>;

struct Ask {
    work: Work,
    /// Told whether what it changed, and all before it, is durable.
    durable: oneshot::Sender<Stored>,
}

/// A way to the book; clones lead to the same one.
#[derive(Clone)]
pub(crate) struct Keeper(mpsc::Sender<Ask>);

impl Keeper {
    /// Does something with the book, and answers when that is durable.
    pub(crate) async fn change<T, W>(&self, work: W) -> Result<T, Fault>
    where
        T: Send + 'static,
        W: FnOnce(&mut Book, Moment) -> T + Send + 'static,
    {
        let ended = || fault(FaultCode::Failed, "the agent is ending; ask again");
        let (answer, answered) = oneshot::channel();
        let (durable, stored) = oneshot::channel();
        let work: Work = Box::new(move |book, now| {
            let _ = answer.send(work(book, now));
        });
        self.0.send(Ask { work, durable }).await.map_err(|_| ended())?;
        let value = answered.await.map_err(|_| ended())?;
        match stored.await {
            Ok(Ok(())) => Ok(value),
            Ok(Err(StoreError::Full(_))) => Err(fault(
                FaultCode::Full,
                "its disk is full: what was asked for could not be stored",
            )),
            Ok(Err(StoreError::Failed(_) | StoreError::Unreadable(_) | StoreError::Broken(_))) => {
                Err(fault(FaultCode::Failed, "it could not be stored; ask again"))
            }
            Err(_) => Err(ended()),
        }
    }
}

/// The task.
pub(crate) struct KeeperTask {
    book: Book,
    store: Store,
    target: TargetHandle,
    asks: mpsc::Receiver<Ask>,
    /// Those whose work is done and not durable.
    waiting: Vec<oneshot::Sender<Stored>>,
    /// Nothing is ended before this: the store took nothing.
    paused: Option<Instant>,
}

type Writing = Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send>>;

impl KeeperTask {
    pub(crate) fn new(book: Book, store: Store, target: TargetHandle) -> (Keeper, Self) {
        let (sender, asks) = mpsc::channel(QUEUE_MAX);
        (Keeper(sender), Self { book, store, target, asks, waiting: Vec::new(), paused: None })
    }

    /// Runs until nobody has a way to the book, and all is stored.
    ///
    /// # Errors
    /// When it is not certain what the store holds: the process is to begin anew from that.
    pub(crate) async fn run(mut self) -> Result<(), StoreError> {
        let mut writing: Option<(Writing, Vec<oneshot::Sender<Stored>>)> = None;
        let mut is_open = true;
        loop {
            self.settle();
            if writing.is_none() {
                writing = self.begin_write();
            }
            if !is_open && writing.is_none() {
                return Ok(());
            }
            let wake = self.wake();
            let is_writing = writing.is_some();
            let written = async {
                match &mut writing {
                    Some((write, _)) => write.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                stored = written, if is_writing => {
                    let waited = writing.take().map(|(_, waited)| waited).unwrap_or_default();
                    self.handle_written(stored, waited)?;
                }
                ask = self.asks.recv(), if is_open => match ask {
                    Some(ask) => self.work(ask),
                    None => is_open = false,
                },
                () = tokio::time::sleep_until(wake) => self.book.expire(now()),
            }
        }
    }

    fn work(&mut self, first: Ask) {
        let now = now();
        self.book.expire(now);
        let mut next = Some(first);
        for _ in 0..GROUP_MAX {
            let Some(Ask { work, durable }) = next else { return };
            work(&mut self.book, now);
            self.waiting.push(durable);
            next = self.asks.try_recv().ok();
        }
        if let Some(Ask { work, durable }) = next {
            work(&mut self.book, now);
            self.waiting.push(durable);
        }
    }

    /// Begins to store what changed; who waits for nothing is told.
    fn begin_write(&mut self) -> Option<(Writing, Vec<oneshot::Sender<Stored>>)> {
        let waiting = std::mem::take(&mut self.waiting);
        let Some(batch) = self.book.take_batch() else {
            tell(waiting, &Ok(()));
            return None;
        };
        let write = self.store.write(move |connection| records::apply(connection, &batch));
        Some((Box::pin(write), waiting))
    }

    fn handle_written(
        &mut self,
        stored: Stored,
        waited: Vec<oneshot::Sender<Stored>>,
    ) -> Result<(), StoreError> {
        match stored {
            Ok(()) => {
                self.book.handle_stored();
                self.paused = None;
                tell(waited, &Ok(()));
                Ok(())
            }
            failed @ Err(
                StoreError::Failed(_) | StoreError::Full(_) | StoreError::Unreadable(_),
            ) => {
                if let Err(why) = &failed {
                    tracing::error!("what was asked for is taken back: {why}");
                }
                self.book.handle_store_failed();
                self.paused = Some(Instant::now() + STORE_PAUSE);
                tell(waited, &failed);
                tell(std::mem::take(&mut self.waiting), &failed);
                Ok(())
            }
            Err(broken @ StoreError::Broken(_)) => Err(broken),
        }
    }

    /// Plans whose rates have ended lose them in the target, and their sessions end.
    fn settle(&mut self) {
        let ended = self.book.settle();
        if !ended.is_empty() {
            tokio::spawn(end_all(self.target.clone(), ended));
        }
    }

    fn wake(&self) -> Instant {
        let now = now();
        let next = self.book.next_timeout(now);
        let next = next.map_or(CLOCK_LOOK, |next| Duration::from_millis(next.since_ms(now)));
        let next = Instant::now() + next.min(CLOCK_LOOK);
        self.paused.map_or(next, |paused| next.max(paused))
    }
}

fn tell(waiting: Vec<oneshot::Sender<Stored>>, stored: &Stored) {
    for waiting in waiting {
        // Who does not wait any more asked and left.
        let _ = waiting.send(stored.clone());
    }
}

async fn end_all(target: TargetHandle, ended: Vec<(MediatorId, PlanId)>) {
    for (mediator, plan) in ended {
        let paced = target.set_plan_pace(mediator, plan, Pace::FREE).await;
        for told in [paced, target.end_plan(mediator, plan).await] {
            match told {
                Ok(_) | Err(CommandError::Ended) => {}
                Err(error) => tracing::warn!(%mediator, %plan, %error, "a plan without rates"),
            }
        }
    }
}
