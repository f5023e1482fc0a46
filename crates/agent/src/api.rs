//! The agent's HTTP API: the documents of `netraid_cluster::agent`, and two for whoever may read the
//! agent's directory.
//!
//! ```text
//! GET  /v1/local          -> LocalStatus
//! POST /v1/local/leave    Leave -> LocalStatus
//! ```

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{
        ConnectInfo, DefaultBodyLimit, Query, State,
        rejection::{BytesRejection, QueryRejection},
    },
    http::HeaderMap,
    routing::{get, post},
};
use netraid_cluster::{
    Code, Problem,
    agent::{
        AgentStatus, Answer, Fault, FaultCode, LedgerPage, OPERATIONS_MAX, Operation, PAGE_MAX,
        SegmentPage, SegmentReport,
    },
    documents::{self, WITH_SHARES},
    now, serve,
};
use netraid_control::units::{AllotmentId, MediatorId, Resources, SegmentId};
use netraid_engine::target::TargetHandle;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::{
    audit::Audit,
    book::fault,
    keeper::Keeper,
    membership::Members,
    operations::Operations,
    records::SegmentRow,
    segments::Segments,
    view::{Caller, View},
};

/// Bytes of a request, at most: a document of operations with the longest paths.
const BODY_LEN_MAX: usize = 8 << 20;
/// What this is called where a request is refused.
const PROGRAM: &str = "agent";

/// What does not change of an agent's status while it runs.
#[derive(Debug, Clone)]
pub(crate) struct About {
    /// With what changes left at nothing.
    pub(crate) status: AgentStatus,
}

/// Says how the agent is.
#[derive(Clone)]
pub(crate) struct StatusSource {
    pub(crate) about: Arc<About>,
    pub(crate) keeper: Keeper,
    pub(crate) target: TargetHandle,
}

impl StatusSource {
    pub(crate) async fn status(&self, draining: bool) -> Result<AgentStatus, Fault> {
        let left = self.keeper.change(|book, _| book.left()).await?;
        let report = self.target.report().await;
        Ok(AgentStatus {
            left: left.clients,
            left_for_rebuild: left.rebuilds,
            segments: left.segments,
            sessions: report.map_or(0, |report| report.sessions.len() as u64),
            draining,
            ..self.about.status.clone()
        })
    }
}

/// How an agent is, for whoever may read its directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalStatus {
    /// How it is.
    pub status: AgentStatus,
    /// For whom it works.
    pub memberships: Vec<MemberStatus>,
}

/// A mediator for which an agent works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Who.
    pub mediator: MediatorId,
    /// Its URL.
    pub url: String,
    /// Nothing new is made for it.
    pub draining: bool,
    /// Segments of it.
    pub segments: u64,
    /// Whether it took the last beat.
    pub is_heard: bool,
    /// The version of documents that is spoken with it; none while it has not answered, and for whoever does not
    /// know this field (version 1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<u32>,
}

/// Asks that the agent end a membership.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leave {
    /// Which mediator.
    pub mediator: MediatorId,
    /// Also when it has segments here, whose data stays and serves nobody.
    #[serde(default)]
    pub force: bool,
}

/// What the handlers share.
pub(crate) struct Api {
    pub(crate) view: Arc<View>,
    pub(crate) operations: Operations,
    pub(crate) keeper: Keeper,
    pub(crate) segments: Arc<Segments>,
    pub(crate) status: StatusSource,
    pub(crate) members: Members,
    pub(crate) audit: Audit,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PageOf<I> {
    #[serde(default = "none")]
    after: Option<I>,
    #[serde(default)]
    limit: Option<usize>,
}

const fn none<I>() -> Option<I> {
    None
}

type Page<I> = Result<Query<PageOf<I>>, QueryRejection>;
type Body = Result<Bytes, BytesRejection>;
type Shared = State<Arc<Api>>;
type Peer = ConnectInfo<SocketAddr>;

pub(crate) fn router(api: Arc<Api>) -> Router {
    Router::new()
        .route("/v1/operations", post(operations))
        .route("/v1/ledger", get(ledger))
        .route("/v1/segments", get(segments))
        .route("/v1/status", get(status))
        .route("/v1/local", get(local))
        .route("/v1/local/leave", post(leave))
        .layer(DefaultBodyLimit::max(BODY_LEN_MAX))
        .with_state(api)
}

async fn operations(
    State(api): Shared,
    ConnectInfo(peer): Peer,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Vec<Answer>>, Problem> {
    let (mediator, _) = api.mediator(&headers, peer)?;
    let bytes = body.map_err(|error| Problem::invalid(error.body_text()))?;
    let read = documents::each::<Operation>(&bytes, OPERATIONS_MAX, PROGRAM)?;
    let (mut known, mut places) = (Vec::with_capacity(read.len()), Vec::with_capacity(read.len()));
    for operation in read {
        places.push(operation.map(|operation| known.push(operation)));
    }
    let mut answers = api.operations.carry_out(mediator, known).await.into_iter();
    let ended = || Err(fault(FaultCode::Failed, "the agent is ending; ask again"));
    let answer = |place: Result<(), Problem>| match place {
        Ok(()) => answers.next().unwrap_or_else(ended),
        Err(problem) => Err(fault(FaultCode::Invalid, problem.detail)),
    };
    Ok(Json(places.into_iter().map(answer).collect()))
}

async fn ledger(
    State(api): Shared,
    ConnectInfo(peer): Peer,
    headers: HeaderMap,
    page: Page<AllotmentId>,
) -> Result<Json<LedgerPage>, Problem> {
    let (mediator, _) = api.mediator(&headers, peer)?;
    let (after, limit) = bounds(page)?;
    let page = api.keeper.change(move |book, _| book.ledger_page(mediator, after, limit));
    let (entries, more) = page.await.map_err(problem)?;
    Ok(Json(LedgerPage { now: now(), entries, more }))
}

async fn segments(
    State(api): Shared,
    ConnectInfo(peer): Peer,
    headers: HeaderMap,
    page: Page<SegmentId>,
) -> Result<Json<SegmentPage>, Problem> {
    let (mediator, version) = api.mediator(&headers, peer)?;
    let (after, limit) = bounds(page)?;
    let page = api.keeper.change(move |book, _| book.segment_page(mediator, after, limit));
    let (rows, more) = page.await.map_err(problem)?;
    let segments = Arc::clone(&api.segments);
    let entries = tokio::task::spawn_blocking(move || {
        let report = |(segment, row, is_served): (SegmentId, SegmentRow, bool)| {
            let found = segments.found((mediator, segment));
            let is_whole =
                is_served && found.is_some_and(|(len_bytes, _)| len_bytes == row.len_bytes);
            SegmentReport {
                segment,
                len_bytes: row.len_bytes,
                used_bytes: found.map_or(0, |(_, used)| used),
                generation: row.generation,
                is_lost: !is_whole && !row.removing,
                label: row.label.as_of(version),
            }
        };
        rows.into_iter().map(report).collect()
    });
    let entries = entries.await.map_err(|error| Problem::internal(error.to_string()))?;
    Ok(Json(SegmentPage { entries, more }))
}

async fn status(
    State(api): Shared,
    ConnectInfo(peer): Peer,
    headers: HeaderMap,
) -> Result<Json<AgentStatus>, Problem> {
    let (caller, _) = api.caller(&headers, peer)?;
    let draining = match caller {
        Caller::Mediator(mediator) => api.members.is_draining(mediator),
        Caller::Owner => false,
    };
    Ok(Json(api.status.status(draining).await.map_err(problem)?))
}

async fn local(
    State(api): Shared,
    ConnectInfo(peer): Peer,
    headers: HeaderMap,
) -> Result<Json<LocalStatus>, Problem> {
    let version = api.owner(&headers, peer)?;
    api.local_status(version).await
}

async fn leave(
    State(api): Shared,
    ConnectInfo(peer): Peer,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<LocalStatus>, Problem> {
    let version = api.owner(&headers, peer)?;
    let Leave { mediator, force } = request(body)?;
    api.members.leave(mediator, force).await?;
    api.local_status(version).await
}

impl Api {
    /// Who asks, and the version of documents that is spoken with it.
    fn caller(&self, headers: &HeaderMap, peer: SocketAddr) -> Result<(Caller, u32), Problem> {
        let said = serve::bearer(headers);
        let known = said.and_then(|digest| self.view.read().callers.get(&digest).copied());
        let caller = known.ok_or_else(|| {
            let why = if said.is_some() { "unknown token" } else { "no token" };
            self.audit.refuse("request_refused", json!({ "peer": peer.to_string(), "why": why }));
            Problem::new(Code::Unauthorized, "no token that is known here")
        })?;
        Ok((caller, documents::of_request(headers)?))
    }

    fn mediator(
        &self,
        headers: &HeaderMap,
        peer: SocketAddr,
    ) -> Result<(MediatorId, u32), Problem> {
        match self.caller(headers, peer)? {
            (Caller::Mediator(mediator), version) => Ok((mediator, version)),
            (Caller::Owner, _) => Err(self.forbidden(peer, "this is for mediators")),
        }
    }

    fn owner(&self, headers: &HeaderMap, peer: SocketAddr) -> Result<u32, Problem> {
        match self.caller(headers, peer)? {
            (Caller::Owner, version) => Ok(version),
            (Caller::Mediator(_), _) => Err(self.forbidden(peer, "this is for the agent's owner")),
        }
    }

    fn forbidden(&self, peer: SocketAddr, why: &str) -> Problem {
        self.audit.refuse("request_refused", json!({ "peer": peer.to_string(), "why": why }));
        Problem::new(Code::Forbidden, why)
    }

    async fn local_status(&self, version: u32) -> Result<Json<LocalStatus>, Problem> {
        let status = self.status.status(false).await.map_err(problem)?;
        let mut memberships = self.members.report().await.map_err(problem)?;
        if version < WITH_SHARES {
            memberships.iter_mut().for_each(|member| member.documents = None);
        }
        Ok(Json(LocalStatus { status, memberships }))
    }
}

fn request<T: DeserializeOwned>(body: Body) -> Result<T, Problem> {
    let bytes = body.map_err(|error| Problem::invalid(error.body_text()))?;
    documents::request(&bytes, PROGRAM)
}

fn bounds<I>(page: Page<I>) -> Result<(Option<I>, usize), Problem> {
    let Query(PageOf { after, limit }) = page.map_err(|error| {
        let said = error.body_text();
        Problem::invalid(documents::not_known(&said, PROGRAM).unwrap_or(said))
    })?;
    let limit = limit.unwrap_or(PAGE_MAX);
    if limit == 0 || limit > PAGE_MAX {
        return Err(Problem::invalid(format!("a page of {limit}; from 1 to {PAGE_MAX}")));
    }
    Ok((after, limit))
}

fn problem(fault: Fault) -> Problem {
    let code = match fault.code {
        FaultCode::Full | FaultCode::Busy | FaultCode::Failed => Code::Unavailable,
        FaultCode::Short
        | FaultCode::Absent
        | FaultCode::Conflict
        | FaultCode::Invalid
        | FaultCode::Draining => Code::Internal,
    };
    Problem::new(code, fault.detail)
}

/// What an agent without anything says of itself.
pub(crate) const NOTHING: Resources = Resources {
    space_bytes: 0,
    device: netraid_control::units::Rate::ZERO,
    network: netraid_control::units::Rate::ZERO,
};
