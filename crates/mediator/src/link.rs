//! One task for each agent: whatever is asked of it goes into as few documents as it keeps up with.
//!
//! While two documents are under way, operations gather for the next one. Operations that wait too
//! long, or that are asked of an agent that has not answered for some time, fail at once: whoever
//! asks decides what that means.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use netraid_cluster::{
    agent::{AgentStatus, Answer, Done, Fault, Operation},
    http::{Client, RequestError},
};
use netraid_control::text::shown;
use tokio::sync::{mpsc, oneshot};

use crate::lock;

/// Operations of one document: so many with the longest labels are well below what an agent reads.
const DOCUMENT_MAX: usize = 256;
/// Operations that wait.
const QUEUE_MAX: usize = 8192;
/// Documents under way.
const FLYING_MAX: usize = 2;
/// An operation that has waited longer than this is not sent any more.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// An agent that leaves so many documents in a row unanswered is asked for nothing.
const MISSES_MAX: u32 = 2;

/// Why an operation has no good answer.
#[derive(Debug, Clone)]
pub(crate) enum AskError {
    /// The agent refuses.
    Fault(Fault),
    /// Nobody knows whether it was done.
    Lost(String),
}

impl std::fmt::Display for AskError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fault(fault) => fault.fmt(f),
            Self::Lost(why) => f.write_str(why),
        }
    }
}

struct Item {
    operation: Operation,
    answer: oneshot::Sender<Result<Done, AskError>>,
    asked: Instant,
}

/// What the task and others share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// None while nobody knows where it is.
    client: Mutex<Option<Client>>,
    misses: AtomicU32,
}

/// The way to one agent.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    queue: mpsc::Sender<Item>,
    shared: Arc<Shared>,
}

impl Link {
    /// A link over that client, or none yet; its task ends when the last of it is dropped.
    pub(crate) fn new(client: Option<Client>) -> Self {
        let (queue, items) = mpsc::channel(QUEUE_MAX);
        let shared = Arc::new(Shared { client: Mutex::new(client), misses: AtomicU32::new(0) });
        tokio::spawn(run(items, Arc::clone(&shared)));
        Self { queue, shared }
    }

    /// The agent is elsewhere now.
    pub(crate) fn set_client(&self, client: Client) {
        *lock(&self.shared.client) = Some(client);
    }

    pub(crate) fn client(&self) -> Option<Client> {
        lock(&self.shared.client).clone()
    }

    /// The agent was heard of.
    pub(crate) fn handle_heard(&self) {
        self.shared.misses.store(0, Ordering::Relaxed);
    }

    /// Whether it answered lately.
    pub(crate) fn is_up(&self) -> bool {
        self.shared.misses.load(Ordering::Relaxed) < MISSES_MAX
            && lock(&self.shared.client).is_some()
    }

    /// Asks for one operation.
    pub(crate) fn ask(
        &self,
        operation: Operation,
    ) -> impl Future<Output = Result<Done, AskError>> + Send + use<> {
        let (answer, answered) = oneshot::channel();
        let lost = |why: &str| Err(AskError::Lost(why.to_owned()));
        let queued = if self.is_up() {
            let item = Item { operation, answer, asked: Instant::now() };
            self.queue.try_send(item).map_err(|_| "too much waits for the agent already")
        } else {
            Err("the agent does not answer")
        };
        async move {
            match queued {
                Ok(()) => answered.await.unwrap_or_else(|_| lost("the agent was let go")),
                Err(why) => lost(why),
            }
        }
    }

    /// How the agent is, by itself.
    pub(crate) async fn status(&self) -> Result<AgentStatus, RequestError> {
        let client = self.client().ok_or_else(nowhere)?;
        let status = client.get("/v1/status").await;
        if status.is_ok() {
            self.handle_heard();
        }
        status
    }
}

async fn run(mut items: mpsc::Receiver<Item>, shared: Arc<Shared>) {
    let mut flying = FuturesUnordered::new();
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            biased;
            Some(()) = flying.next(), if !flying.is_empty() => {}
            taken = items.recv_many(&mut batch, DOCUMENT_MAX), if flying.len() < FLYING_MAX => {
                if taken == 0 {
                    break;
                }
                flying.push(send(std::mem::take(&mut batch), Arc::clone(&shared)));
            }
        }
    }
    while flying.next().await.is_some() {}
}

/// Sends one document, and hands out its answers.
async fn send(mut items: Vec<Item>, shared: Arc<Shared>) {
    // What nobody waits for any more, or has waited too long, is answered by being dropped.
    items.retain(|item| !item.answer.is_closed() && item.asked.elapsed() < WAIT_MAX);
    if items.is_empty() {
        return;
    }
    let (operations, answers): (Vec<_>, Vec<_>) =
        items.into_iter().map(|item| (item.operation, item.answer)).unzip();
    let client = lock(&shared.client).clone();
    let answered: Result<Vec<Answer>, _> = match client {
        Some(client) => client.post("/v1/operations", &operations).await,
        None => Err(nowhere()),
    };
    match answered {
        Ok(said) if said.len() == answers.len() => {
            shared.misses.store(0, Ordering::Relaxed);
            for (answer, said) in answers.into_iter().zip(said) {
                // Nobody waits any more.
                let _ = answer.send(said.map_err(|fault| AskError::Fault(readable(fault))));
            }
        }
        Ok(said) => {
            let why = format!("{} answers to {} operations", said.len(), answers.len());
            tell_all(answers, &why, &shared);
        }
        Err(error) => tell_all(answers, &error.to_string(), &shared),
    }
}

/// It is not known where an agent is.
pub(crate) fn nowhere() -> RequestError {
    RequestError::Lost { url: "agent".to_owned(), why: "it is not known where it is".to_owned() }
}

/// A fault that may be passed on: what an agent says is read by others.
fn readable(fault: Fault) -> Fault {
    Fault { detail: shown(&fault.detail).to_string(), ..fault }
}

fn tell_all(answers: Vec<oneshot::Sender<Result<Done, AskError>>>, why: &str, shared: &Shared) {
    shared.misses.fetch_add(1, Ordering::Relaxed);
    tracing::warn!("an agent's answer is lost: {why}");
    for answer in answers {
        let _ = answer.send(Err(AskError::Lost(why.to_owned())));
    }
}
