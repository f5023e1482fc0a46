//! One task for each agent: whatever is asked of it goes into as few documents as it keeps up with.
//!
//! While two documents are under way, operations gather for the next one. Operations that wait too
//! long, or that are asked of an agent that has not answered for some time, fail at once: whoever
//! asks decides what that means.
//!
//! An agent that refuses a document has answered, and has done nothing of it. One that is older refuses all of a
//! document for one operation that it does not understand: each of them is sent by itself then, once.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use netraid_cluster::{
    Code, Problem,
    agent::{AgentStatus, Answer, Done, Fault, FaultCode, Operation},
    http::{Client, RequestError},
};
use netraid_control::{retry::Failure, text::shown};
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

impl Item {
    /// Whether somebody waits for it, and not for too long.
    fn is_awaited(&self) -> bool {
        !self.answer.is_closed() && self.asked.elapsed() < WAIT_MAX
    }
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
    items.retain(Item::is_awaited);
    if items.is_empty() {
        return;
    }
    let is_one = items.len() == 1;
    let (items, problem) = match exchange(items, &shared).await {
        Exchanged::Answered | Exchanged::Lost => return,
        Exchanged::Refused(items, problem) => (items, problem),
    };
    if is_one {
        refuse_all(items, &problem);
        return;
    }
    tracing::warn!("an agent refuses {} operations at once: {problem}", items.len());
    let mut items = items.into_iter();
    for item in items.by_ref() {
        // Also those before it take their time.
        if !item.is_awaited() {
            continue;
        }
        match exchange(vec![item], &shared).await {
            Exchanged::Answered => {}
            Exchanged::Refused(item, problem) => refuse_all(item, &problem),
            Exchanged::Lost => break,
        }
    }
    // What is left waits for no more answers that do not come.
    tell_lost(items.map(|item| item.answer).collect(), "the agent does not answer");
}

/// What became of a document.
enum Exchanged {
    /// All that wait for it are told.
    Answered,
    /// All that wait for it are told that nobody knows.
    Lost,
    /// The agent did not read it, and did nothing of it: its operations, and why.
    Refused(Vec<Item>, Problem),
}

/// Sends operations in one document, and hands out its answers.
async fn exchange(items: Vec<Item>, shared: &Shared) -> Exchanged {
    let operations: Vec<&Operation> = items.iter().map(|item| &item.operation).collect();
    let client = lock(&shared.client).clone();
    let answered: Result<Vec<Answer>, _> = match client {
        Some(client) => client.post("/v1/operations", &operations).await,
        None => Err(nowhere()),
    };
    let why = match answered {
        Ok(said) if said.len() == items.len() => {
            shared.misses.store(0, Ordering::Relaxed);
            for (item, said) in items.into_iter().zip(said) {
                // Nobody waits any more.
                let _ = item.answer.send(said.map_err(|fault| AskError::Fault(readable(fault))));
            }
            return Exchanged::Answered;
        }
        Ok(said) => format!("{} answers to {} operations", said.len(), items.len()),
        Err(RequestError::Refused(problem)) if problem.code == Code::Invalid => {
            shared.misses.store(0, Ordering::Relaxed);
            return Exchanged::Refused(items, problem);
        }
        Err(error) => error.to_string(),
    };
    shared.misses.fetch_add(1, Ordering::Relaxed);
    tracing::warn!("an agent's answer is lost: {why}");
    tell_lost(items.into_iter().map(|item| item.answer).collect(), &why);
    Exchanged::Lost
}

/// It is not known where an agent is.
pub(crate) fn nowhere() -> RequestError {
    RequestError::Lost {
        url: "agent".to_owned(),
        why: "it is not known where it is".to_owned(),
        failure: Failure::Final,
    }
}

/// A fault that may be passed on: what an agent says is read by others.
fn readable(fault: Fault) -> Fault {
    Fault { detail: shown(&fault.detail).to_string(), ..fault }
}

fn refuse_all(items: Vec<Item>, problem: &Problem) {
    for item in items {
        let detail = format!("the agent refuses the operation: {}", problem.detail);
        let fault = readable(Fault { code: FaultCode::Invalid, detail });
        let _ = item.answer.send(Err(AskError::Fault(fault)));
    }
}

fn tell_lost(answers: Vec<oneshot::Sender<Result<Done, AskError>>>, why: &str) {
    for answer in answers {
        let _ = answer.send(Err(AskError::Lost(why.to_owned())));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use axum::{Json, Router, extract::State, routing::post};
    use netraid_cluster::{access::Bearer, serve::Server};
    use netraid_control::units::{AllotmentId, PlanId};
    use serde_json::{Value, json};

    use super::*;

    /// An agent that reads no document with an operation of this kind, as one of version 1 does not, and how many
    /// documents it was sent.
    fn agent(refused: &'static str) -> (Client, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let handle = move |State(count): State<Arc<AtomicUsize>>, Json(asked): Json<Vec<Value>>| {
            count.fetch_add(1, Ordering::Relaxed);
            let is_refused = asked.iter().any(|operation| operation.get(refused).is_some());
            let answer = match is_refused {
                true => Err(Problem::invalid("the field 'only_if' is not known to this agent")),
                false => Ok(Json(vec![json!({ "Ok": "done" }); asked.len()])),
            };
            std::future::ready(answer)
        };
        let router = Router::new().route("/v1/operations", post(handle));
        let server = Server::bind("127.0.0.1:0".parse().unwrap(), None).unwrap();
        let client = Client::new(&server.url(), &Bearer::draw(), None, WAIT_MAX).unwrap();
        let router = router.with_state(Arc::clone(&count));
        tokio::spawn(server.serve(router, |_: &_| true, std::future::pending()));
        (client, count)
    }

    fn release(at: u8) -> Operation {
        Operation::Release { id: AllotmentId([at; 16]) }
    }

    fn end() -> Operation {
        Operation::EndPlan { plan: PlanId([9; 16]), revoked_until: None }
    }

    fn is_invalid(answer: &Result<Done, AskError>) -> bool {
        matches!(answer, Err(AskError::Fault(fault))
            if fault.code == FaultCode::Invalid && fault.detail.contains("'only_if'"))
    }

    #[tokio::test]
    async fn an_operation_that_an_older_agent_refuses_takes_no_others_with_it() {
        let (client, count) = agent("end_plan");
        let link = Link::new(Some(client));
        let asked = [release(1), end(), release(2)].map(|operation| link.ask(operation));
        let answers = futures_util::future::join_all(asked).await;
        assert!(matches!(answers[0], Ok(Done::Done)), "{answers:?}");
        assert!(is_invalid(&answers[1]), "{answers:?}");
        assert!(matches!(answers[2], Ok(Done::Done)), "{answers:?}");
        assert_eq!(count.load(Ordering::Relaxed), 4, "all of them, then each once");
    }

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_is_not_sent_by_itself() {
        let (client, count) = agent("end_plan");
        let gate = Arc::new(Gate::default());
        let (router, arrived) = (Router::new(), Arc::clone(&gate));
        // All of it is refused, when the test says so.
        let refuse = move || {
            let gate = Arc::clone(&arrived);
            async move {
                gate.arrived.notify_one();
                gate.goes.notified().await;
                Err::<(), _>(Problem::invalid("the field 'only_if' is not known to this agent"))
            }
        };
        let server = Server::bind("127.0.0.1:0".parse().unwrap(), None).unwrap();
        let slow = Client::new(&server.url(), &Bearer::draw(), None, WAIT_MAX).unwrap();
        let router = router.route("/v1/operations", post(refuse));
        tokio::spawn(server.serve(router, |_: &_| true, std::future::pending()));
        let link = Link::new(Some(slow));
        let [first, second, last] =
            [release(1), release(2), release(3)].map(|operation| link.ask(operation));
        gate.arrived.notified().await;
        drop((first, second));
        link.set_client(client);
        gate.goes.notify_one();
        assert!(matches!(last.await, Ok(Done::Done)));
        assert_eq!(count.load(Ordering::Relaxed), 1, "the last one alone");
    }

    #[derive(Default)]
    struct Gate {
        arrived: tokio::sync::Notify,
        goes: tokio::sync::Notify,
    }

    #[tokio::test]
    async fn an_agent_that_refuses_documents_has_answered_them() {
        let (client, count) = agent("end_plan");
        let link = Link::new(Some(client));
        for _ in 0..2 * MISSES_MAX {
            assert!(is_invalid(&link.ask(end()).await));
        }
        assert!(link.is_up());
        assert_eq!(count.load(Ordering::Relaxed), 2 * MISSES_MAX as usize, "none is sent again");
        assert!(link.ask(release(1)).await.is_ok());
    }

    #[tokio::test]
    async fn documents_that_are_lost_are_missed_as_before() {
        let (client, _) = agent("none");
        let link = Link::new(Some(client));
        assert!(link.ask(release(1)).await.is_ok());
        let nobody = Client::new("http://127.0.0.1:1", &Bearer::draw(), None, WAIT_MAX).unwrap();
        link.set_client(nobody);
        for _ in 0..MISSES_MAX {
            assert!(matches!(link.ask(release(1)).await, Err(AskError::Lost(_))));
        }
        assert!(!link.is_up());
    }
}
