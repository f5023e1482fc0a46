//! The API: routes, who may use which, and the document that describes them.
//!
//! A request without a known token gets the same answer whatever it asks. What a role does not allow is
//! refused before anything is looked at, and noted.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{ConnectInfo, DefaultBodyLimit, FromRequestParts, Path, State},
    http::{HeaderMap, request::Parts},
    routing::{delete, get, post, put},
};
use netraid_cluster::{
    Code, Problem,
    access::Role,
    audit::{LogPage, ReadLog},
    documents::{self, WITH_BEATS},
    http::REQUEST,
    mediator::{
        AccessEntry, AgentEntry, Beat, Beaten, CheckReport, Close, Create, Entry, Join, Joined,
        List, MediatorStatus, Mode, Named, NewAccess, NewToken, Open, PAGE_MAX, Page, PlanBeat,
        PlanBeaten, PlanEntry, PlanPage, Rename, Replace, SetState, TransferPlan,
    },
    serve::bearer,
};
use netraid_control::{
    text::shown,
    units::{AgentId, IdError, PlanId},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use utoipa::{
    Modify, OpenApi,
    openapi::security::{Http, HttpAuthScheme, SecurityScheme},
};

use crate::{
    access::Caller,
    agents::Service,
    audit, check, clients,
    core::Core,
    create::{self, Repeatable},
    end, join, lock,
    names::{self, Path as NamePath},
    open,
    plan::Plan,
    rename, renew, replace,
    store::{look, or_aside},
    volume::Volume,
};

/// Bytes of a request, at most.
const BODY_LEN_MAX: usize = 1 << 20;
/// What this is called where a request is refused.
const PROGRAM: &str = "mediator";

type Answer<T> = Result<Json<T>, Problem>;

/// There is nothing to say.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct Nothing {}

const fn nothing((): ()) -> Nothing {
    Nothing {}
}

/// The document that describes the API, in JSON.
#[must_use]
pub fn openapi() -> String {
    let mut text = Description::openapi().to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

#[derive(OpenApi)]
#[openapi(
    info(title = "netraid mediator", version = "1", description = "Names, volumes, data, transfer plans, agents."),
    paths(
        create_name, list_names, stat_name, remove_name, rename_name, open_plan, renew_plan, beat_plan,
        set_state, replace_member, close_plan, end_plan, list_plans, list_agents, join_agent, beat_agent,
        drain_agent, undrain_agent, retire_agent, make_access, list_access, remove_access,
        read_log, check_all, status
    ),
    components(schemas(Problem)),
    modifiers(&Bearers),
    security(("bearer" = []))
)]
struct Description;

struct Bearers;

impl Modify for Bearers {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let components = openapi.components.get_or_insert_with(Default::default);
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("bearer", scheme);
    }
}

/// All routes.
pub(crate) fn router(core: Arc<Core>) -> Router {
    Router::new()
        .route("/v1/names", post(create_name).get(list_names))
        .route("/v1/name", get(stat_name).delete(remove_name))
        .route("/v1/rename", post(rename_name))
        .route("/v1/plans", post(open_plan).get(list_plans))
        .route("/v1/plans/{id}", delete(end_plan))
        .route("/v1/plans/{id}/close", post(close_plan))
        .route("/v1/plans/{id}/renew", post(renew_plan))
        .route("/v1/plans/{id}/beat", post(beat_plan))
        .route("/v1/plans/{id}/state", post(set_state))
        .route("/v1/plans/{id}/replace", post(replace_member))
        .route("/v1/agents", get(list_agents).post(join_agent))
        .route("/v1/agents/{id}", put(beat_agent))
        .route("/v1/agents/{id}/drain", post(drain_agent))
        .route("/v1/agents/{id}/undrain", post(undrain_agent))
        .route("/v1/agents/{id}/retire", post(retire_agent))
        .route("/v1/access", post(make_access).get(list_access))
        .route("/v1/access/{id}", delete(remove_access))
        .route("/v1/log", get(read_log))
        .route("/v1/check", get(check_all))
        .route("/v1/status", get(status))
        .route("/openapi.json", get(async || openapi()))
        .fallback(no_route)
        .method_not_allowed_fallback(no_route)
        .layer(DefaultBodyLimit::max(BODY_LEN_MAX))
        .with_state(core)
}

async fn no_route(_: Who) -> Problem {
    Problem::absent("there is no such route; see /openapi.json")
}

/// Whoever says a token that is known, and the version of documents that is spoken with it. Extracted first: nothing
/// else is looked at without.
struct Who(Caller, u32);

impl FromRequestParts<Arc<Core>> for Who {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, core: &Arc<Core>) -> Result<Self, Problem> {
        let found = bearer(&parts.headers).and_then(|digest| core.access.find(&digest));
        let caller = found.ok_or_else(|| {
            core.audit
                .note_stranger(&core.store, &format!("{} {}", parts.method, parts.uri.path()));
            let detail = "no bearer token, or one that is not known; use an access file";
            Problem::new(Code::Unauthorized, detail)
        })?;
        Ok(Self(caller, documents::of_request(&parts.headers)?))
    }
}

impl Who {
    /// Refuses whoever has none of these roles.
    fn has(&self, core: &Core, what: &str, roles: &[Role]) -> Result<(), Problem> {
        if self.0.role == Role::Admin || roles.contains(&self.0.role) {
            return Ok(());
        }
        let detail = format!("role {} may not {what}", self.0.role.name());
        let refused = Err(Problem::new(Code::Forbidden, detail));
        core.note(&self.0, what, &refused);
        refused
    }

    /// Whose plans it may reach: its own, an administrator everybody's.
    fn owner(&self) -> Option<u64> {
        (self.0.role != Role::Admin).then_some(self.0.id)
    }
}

const CLIENTS: &[Role] = &[Role::Client];
const READERS: &[Role] = &[Role::Client, Role::Reader];

/// A document that came.
fn body<T: DeserializeOwned>(bytes: &Bytes) -> Result<T, Problem> {
    documents::request(bytes, PROGRAM)
}

/// What stands in the query.
struct Query<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        let query = query.map_err(|error| {
            let said = error.body_text();
            Problem::invalid(documents::not_known(&said, PROGRAM).unwrap_or(said))
        })?;
        Ok(Self(query.0))
    }
}

fn id<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, Problem> {
    text.parse().map_err(|error: T::Err| Problem::invalid(error.to_string()))
}

/// How the audit log says that an upload is meant.
const fn upload(is_upload: bool) -> &'static str {
    if is_upload { "the upload of " } else { "" }
}

/// Does something, and notes what came of it.
async fn noted<T: Serialize + Send>(
    core: &Arc<Core>,
    who: &Who,
    what: String,
    work: impl Future<Output = Result<T, Problem>> + Send,
) -> Answer<T> {
    let outcome = work.await;
    core.note(&who.0, &what, &outcome);
    outcome.map(Json)
}

/// What a request changes goes on when whoever asked does not wait for the answer.
async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    let ended = tokio::spawn(work).await;
    ended.unwrap_or_else(|error| Err(Problem::internal(format!("a request failed: {error}"))))
}

/// Make a volume, data, or a directory
#[utoipa::path(post, path = "/v1/names", request_body = Create,
    responses((status = 200, body = Entry), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn create_name(
    State(core): State<Arc<Core>>,
    who: Who,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer<Entry> {
    who.has(&core, "create names", CLIENTS)?;
    let request = repeatable(&who, &headers)?;
    let create: Create = body(&bytes)?;
    let (kind, path, size) = (create.kind, &create.path, create.size_bytes);
    let how = if create.replaces.is_some() { ", replacing it" } else { "" };
    let what = format!("create {kind:?} {}{path} of {size} bytes{how}", upload(create.upload));
    let shared = Arc::clone(&core);
    let work = to_the_end(async move { create::create(&shared, create, request).await });
    noted(&core, &who, what, work).await
}

/// By what a request is known when it is sent again, where it says that.
fn repeatable(who: &Who, headers: &HeaderMap) -> Result<Option<Repeatable>, Problem> {
    let Some(said) = headers.get(REQUEST) else { return Ok(None) };
    let said = said.to_str().unwrap_or_default();
    let wrong = |why: IdError| Problem::invalid(format!("the header {REQUEST}: {why}"));
    Ok(Some(Repeatable { id: said.parse().map_err(wrong)?, owner: who.0.id }))
}

/// What is in a directory, in the order of names
#[utoipa::path(get, path = "/v1/names", params(List),
    responses((status = 200, body = Page), (status = "4XX", body = Problem)))]
async fn list_names(
    State(core): State<Arc<Core>>,
    who: Who,
    Query(list): Query<List>,
) -> Answer<Page> {
    who.has(&core, "list names", READERS)?;
    let path = NamePath::parse(&list.path)?;
    let List { after, limit, uploads, .. } = list;
    let page = look(&core.store, move |connection| {
        let mut page = match names::page(connection, &path, (after.as_deref(), limit), uploads)? {
            Ok(page) => page,
            Err(problem) => return Ok(Err(problem)),
        };
        for entry in page.entries.iter_mut().filter(|_| uploads) {
            // One that is set aside is named by who looks at it alone.
            let volume = or_aside(Volume::load(connection, entry.id))?.ok().flatten();
            entry.upload_bytes = volume.and_then(|volume| volume.record.upload_bytes);
        }
        Ok(Ok(page))
    });
    page.await.map(Json)
}

/// What a name stands for, and how it is stored
#[utoipa::path(get, path = "/v1/name", params(Named),
    responses((status = 200, body = Entry), (status = "4XX", body = Problem)))]
async fn stat_name(
    State(core): State<Arc<Core>>,
    who: Who,
    Query(named): Query<Named>,
) -> Answer<Entry> {
    who.has(&core, "look at names", READERS)?;
    let path = NamePath::new(&named.path, named.upload)?;
    let shown = path.text();
    let found = look(&core.store, move |connection| {
        let name = match names::find(connection, &path)? {
            Ok(name) => name,
            Err(problem) => return Ok(Err(problem)),
        };
        let volume = Volume::load(connection, name.id)?;
        Ok(Ok((name, volume)))
    });
    let (name, volume) = found.await?;
    Ok(Json(create::entry(&core, &name, shown, volume.as_ref())))
}

/// Remove something with its name
#[utoipa::path(delete, path = "/v1/name", params(Named),
    responses((status = 200, body = Nothing), (status = "4XX", body = Problem)))]
async fn remove_name(
    State(core): State<Arc<Core>>,
    who: Who,
    Query(named): Query<Named>,
) -> Answer<Nothing> {
    who.has(&core, "remove names", CLIENTS)?;
    let how = if named.force { " by force" } else { "" };
    let what = format!("remove {}{}{how}", upload(named.upload), named.path);
    let shared = Arc::clone(&core);
    noted(
        &core,
        &who,
        what,
        to_the_end(async move { create::remove(&shared, named).await.map(nothing) }),
    )
    .await
}

/// Give something another name
#[utoipa::path(post, path = "/v1/rename", request_body = Rename,
    responses((status = 200, body = Entry), (status = "4XX", body = Problem)))]
async fn rename_name(State(core): State<Arc<Core>>, who: Who, bytes: Bytes) -> Answer<Entry> {
    who.has(&core, "rename", CLIENTS)?;
    let rename: Rename = body(&bytes)?;
    let how = match (rename.replace, rename.force) {
        (false, _) => "",
        (true, false) => ", replacing it",
        (true, true) => ", replacing it by force",
    };
    let what = format!("rename {}{} to {}{how}", upload(rename.upload), rename.from, rename.to);
    let shared = Arc::clone(&core);
    let work = to_the_end(async move { rename::rename(&shared, rename).await });
    noted(&core, &who, what, work).await
}

/// Ask for a transfer plan
#[utoipa::path(post, path = "/v1/plans", request_body = Open,
    responses((status = 200, body = TransferPlan), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn open_plan(State(core): State<Arc<Core>>, who: Who, bytes: Bytes) -> Answer<TransferPlan> {
    let request: Open = body(&bytes)?;
    let (what, roles) = match request.mode {
        Mode::Read => ("open to read", READERS),
        Mode::Write => ("open to write", CLIENTS),
    };
    who.has(&core, what, roles)?;
    if request.take_over {
        who.has(&core, "shut out whoever has it open", CLIENTS)?;
    }
    let (rate, path) = (request.rate.0, &request.path);
    let of = upload(request.upload);
    let what = format!("{what} {of}{path} at {rate} bytes/s by {}", request.initiator);
    let (shared, caller) = (Arc::clone(&core), who.0.clone());
    let work = to_the_end(async move { open::open(&shared, &caller, request).await });
    noted(&core, &who, what, work).await
}

/// Prolong a plan
#[utoipa::path(post, path = "/v1/plans/{id}/renew", params(("id" = String, Path)),
    responses((status = 200, body = TransferPlan), (status = "4XX", body = Problem)))]
async fn renew_plan(
    State(core): State<Arc<Core>>,
    who: Who,
    Path(plan): Path<String>,
) -> Answer<TransferPlan> {
    who.has(&core, "renew plans", READERS)?;
    let (plan, owner, shared) = (id(&plan)?, who.owner(), Arc::clone(&core));
    let work = to_the_end(async move { renew::renew(&shared, owner, plan).await });
    noted(&core, &who, format!("renew plan {plan}"), work).await
}

/// Say that the client of a plan is there
#[utoipa::path(post, path = "/v1/plans/{id}/beat", params(("id" = String, Path)), request_body = PlanBeat,
    responses((status = 200, body = PlanBeaten), (status = "4XX", body = Problem)))]
async fn beat_plan(
    State(core): State<Arc<Core>>,
    who: Who,
    Path(plan): Path<String>,
    bytes: Bytes,
) -> Answer<PlanBeaten> {
    who.has(&core, "speak for plans", READERS)?;
    clients::beat(&core, who.owner(), id(&plan)?, body(&bytes)?).await.map(Json)
}

/// Say what became of a volume that is open to write
#[utoipa::path(post, path = "/v1/plans/{id}/state", params(("id" = String, Path)), request_body = SetState,
    responses((status = 200, body = Entry), (status = "4XX", body = Problem)))]
async fn set_state(
    State(core): State<Arc<Core>>,
    who: Who,
    Path(plan): Path<String>,
    bytes: Bytes,
) -> Answer<Entry> {
    who.has(&core, "change volumes", CLIENTS)?;
    let (plan, owner): (PlanId, _) = (id(&plan)?, who.owner());
    let state: SetState = body(&bytes)?;
    let what = format!("plan {plan}: {state:?}");
    noted(&core, &who, what, replace::set_state(&core, owner, plan, state)).await
}

/// Ask for a segment elsewhere in the place of a lost one
#[utoipa::path(post, path = "/v1/plans/{id}/replace", params(("id" = String, Path)), request_body = Replace,
    responses((status = 200, body = TransferPlan), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
async fn replace_member(
    State(core): State<Arc<Core>>,
    who: Who,
    Path(plan): Path<String>,
    bytes: Bytes,
) -> Answer<TransferPlan> {
    who.has(&core, "replace members", CLIENTS)?;
    let (plan, owner, shared): (PlanId, _, _) = (id(&plan)?, who.owner(), Arc::clone(&core));
    let request: Replace = body(&bytes)?;
    let what = format!("plan {plan}: replace member {}", request.member);
    let work = to_the_end(async move { replace::replace(&shared, owner, plan, request).await });
    noted(&core, &who, what, work).await
}

/// Give a plan back: its client has stopped, and says so with its key
#[utoipa::path(post, path = "/v1/plans/{id}/close", params(("id" = String, Path)), request_body = Close,
    responses((status = 200, body = Nothing), (status = "4XX", body = Problem)))]
async fn close_plan(
    State(core): State<Arc<Core>>,
    who: Who,
    Path(plan): Path<String>,
    bytes: Bytes,
) -> Answer<Nothing> {
    who.has(&core, "close plans", READERS)?;
    let (plan, owner, shared): (PlanId, _, _) = (id(&plan)?, who.owner(), Arc::clone(&core));
    let Close { key, clean_close } = body(&bytes)?;
    let work = to_the_end(async move {
        end::close(&shared, owner, plan, key.digest(), clean_close).await.map(nothing)
    });
    noted(&core, &who, format!("close plan {plan}"), work).await
}

/// End a plan, and shut out whoever has it
#[utoipa::path(delete, path = "/v1/plans/{id}", params(("id" = String, Path)),
    responses((status = 200, body = Nothing), (status = "4XX", body = Problem)))]
async fn end_plan(
    State(core): State<Arc<Core>>,
    who: Who,
    Path(plan): Path<String>,
) -> Answer<Nothing> {
    who.has(&core, "end plans", READERS)?;
    let (plan, owner, shared) = (id(&plan)?, who.owner(), Arc::clone(&core));
    let work = to_the_end(async move { end::revoke(&shared, owner, plan).await.map(nothing) });
    noted(&core, &who, format!("end plan {plan}"), work).await
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
struct ListPlans {
    /// Plans after this one; from the first when none.
    #[param(value_type = Option<String>)]
    after: Option<PlanId>,
    /// As many at most; 1000 when none, and at most.
    limit: Option<u32>,
}

/// Plans in force: the caller's own, or all
#[utoipa::path(get, path = "/v1/plans", params(ListPlans),
    responses((status = 200, body = PlanPage), (status = "4XX", body = Problem)))]
async fn list_plans(
    State(core): State<Arc<Core>>,
    who: Who,
    Query(list): Query<ListPlans>,
) -> Answer<PlanPage> {
    who.has(&core, "list plans", READERS)?;
    let limit = list.limit.unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX);
    let owner = who.owner();
    let page = look(&core.store, move |connection| {
        let plans = Plan::page(connection, list.after, owner, limit)?;
        let next = plans.next(limit);
        let entry = |plan: Plan| {
            let path = names::path_of(connection, plan.volume)?;
            Ok(PlanEntry {
                plan: plan.id,
                path: path.map(|path| path.text()).unwrap_or_default(),
                mode: plan.record.mode,
                initiator: plan.record.initiator,
                rate: plan.record.rate,
                until: plan.until,
                process: None,
                silent_ms: None,
            })
        };
        let entries = plans.usable.into_iter().map(entry).collect::<rusqlite::Result<_>>()?;
        Ok(Ok(PlanPage { entries, next }))
    });
    let mut page = page.await?;
    let (clients, now_ms) = (lock(&core.clients), core.running_ms());
    for entry in page.entries.iter_mut().filter(|_| who.1 >= WITH_BEATS) {
        let found = clients.find(now_ms, entry.plan);
        entry.process = found.map(|(process, _)| process.clone());
        entry.silent_ms = found.map(|(_, silent_ms)| silent_ms);
    }
    drop(clients);
    Ok(Json(page))
}

/// All agents
#[utoipa::path(get, path = "/v1/agents",
    responses((status = 200, body = [AgentEntry]), (status = "4XX", body = Problem)))]
async fn list_agents(State(core): State<Arc<Core>>, who: Who) -> Answer<Vec<AgentEntry>> {
    who.has(&core, "list agents", READERS)?;
    let entries = join::list(&core).await?;
    Ok(Json(entries.into_iter().map(|entry| entry.as_of(who.1)).collect()))
}

/// Take an agent into service; it asks for that itself
#[utoipa::path(post, path = "/v1/agents", request_body = Join,
    responses((status = 200, body = Joined), (status = "4XX", body = Problem)))]
async fn join_agent(
    State(core): State<Arc<Core>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    who: Who,
    bytes: Bytes,
) -> Answer<Joined> {
    who.has(&core, "join", &[Role::Agent])?;
    let request: Join = body(&bytes)?;
    if who.0.agent.is_some_and(|agent| agent != request.status.agent) {
        return Err(Problem::new(Code::Forbidden, "an agent joins as itself"));
    }
    let what = format!("join as agent {} at {}", request.status.agent, shown(&request.status.api));
    noted(&core, &who, what, join::join(&core, (&who.0, peer, who.1), request)).await
}

/// An agent says that it is there
#[utoipa::path(put, path = "/v1/agents/{id}", params(("id" = String, Path)), request_body = Beat,
    responses((status = 200, body = Beaten), (status = "4XX", body = Problem)))]
async fn beat_agent(
    State(core): State<Arc<Core>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    who: Who,
    Path(agent): Path<String>,
    bytes: Bytes,
) -> Answer<Beaten> {
    who.has(&core, "speak for agents", &[Role::Agent])?;
    let agent: AgentId = id(&agent)?;
    if who.0.agent != Some(agent) {
        let refused: Result<(), _> =
            Err(Problem::new(Code::Forbidden, "an agent speaks for itself, after it joined"));
        core.note(&who.0, &format!("speak for agent {agent}"), &refused);
        refused?;
    }
    join::beat(&core, (agent, peer, who.1), body(&bytes)?).await.map(Json)
}

async fn serve_as(
    core: Arc<Core>,
    who: Who,
    agent: &str,
    (what, service): (&str, Service),
) -> Answer<AgentEntry> {
    who.has(&core, &format!("{what} agents"), &[])?;
    let agent: AgentId = id(agent)?;
    let work = async { Ok(join::set_service(&core, agent, service).await?.as_of(who.1)) };
    noted(&core, &who, format!("{what} agent {agent}"), work).await
}

/// Nothing new is made on it from now on
#[utoipa::path(post, path = "/v1/agents/{id}/drain", params(("id" = String, Path)),
    responses((status = 200, body = AgentEntry), (status = "4XX", body = Problem)))]
async fn drain_agent(
    State(core): State<Arc<Core>>,
    who: Who,
    Path(agent): Path<String>,
) -> Answer<AgentEntry> {
    serve_as(core, who, &agent, ("drain", Service::Draining)).await
}

/// It takes new segments again
#[utoipa::path(post, path = "/v1/agents/{id}/undrain", params(("id" = String, Path)),
    responses((status = 200, body = AgentEntry), (status = "4XX", body = Problem)))]
async fn undrain_agent(
    State(core): State<Arc<Core>>,
    who: Who,
    Path(agent): Path<String>,
) -> Answer<AgentEntry> {
    serve_as(core, who, &agent, ("undrain", Service::Serving)).await
}

/// Let it go; it has no segments any more
#[utoipa::path(post, path = "/v1/agents/{id}/retire", params(("id" = String, Path)),
    responses((status = 200, body = AgentEntry), (status = "4XX", body = Problem)))]
async fn retire_agent(
    State(core): State<Arc<Core>>,
    who: Who,
    Path(agent): Path<String>,
) -> Answer<AgentEntry> {
    serve_as(core, who, &agent, ("retire", Service::Retired)).await
}

/// A new bearer token, shown this once
#[utoipa::path(post, path = "/v1/access", request_body = NewAccess,
    responses((status = 200, body = NewToken), (status = "4XX", body = Problem)))]
async fn make_access(State(core): State<Arc<Core>>, who: Who, bytes: Bytes) -> Answer<NewToken> {
    who.has(&core, "make bearer tokens", &[])?;
    let new: NewAccess = body(&bytes)?;
    let what = format!("make a bearer token: {} for {}", new.role.name(), new.name);
    noted(&core, &who, what, core.access.make(&core.store, &new, None)).await
}

/// All bearer tokens, without themselves
#[utoipa::path(get, path = "/v1/access",
    responses((status = 200, body = [AccessEntry]), (status = "4XX", body = Problem)))]
async fn list_access(State(core): State<Arc<Core>>, who: Who) -> Answer<Vec<AccessEntry>> {
    who.has(&core, "list bearer tokens", &[])?;
    Ok(Json(core.access.entries()))
}

/// Take a bearer token back, and all that was opened by it
#[utoipa::path(delete, path = "/v1/access/{id}", params(("id" = u64, Path)),
    responses((status = 200, body = Nothing), (status = "4XX", body = Problem)))]
async fn remove_access(
    State(core): State<Arc<Core>>,
    who: Who,
    Path(number): Path<String>,
) -> Answer<Nothing> {
    who.has(&core, "take bearer tokens back", &[])?;
    let number: u64 = id(&number)?;
    let shared = Arc::clone(&core);
    let work = to_the_end(async move { end::revoke_access(&shared, number).await.map(nothing) });
    noted(&core, &who, format!("take bearer token {number} back"), work).await
}

/// Who did what, and what came of it; newest last
#[utoipa::path(get, path = "/v1/log", params(ReadLog),
    responses((status = 200, body = LogPage), (status = "4XX", body = Problem)))]
async fn read_log(
    State(core): State<Arc<Core>>,
    who: Who,
    Query(read): Query<ReadLog>,
) -> Answer<LogPage> {
    who.has(&core, "read the audit log", &[])?;
    let page = look(&core.store, move |connection| audit::page(connection, &read).map(Ok));
    page.await.map(Json)
}

/// Compare what agents have booked with what the mediator stores
#[utoipa::path(get, path = "/v1/check",
    responses((status = 200, body = CheckReport), (status = "4XX", body = Problem)))]
async fn check_all(State(core): State<Arc<Core>>, who: Who) -> Answer<CheckReport> {
    who.has(&core, "check", &[])?;
    check::check(&core).await.map(Json)
}

/// How the mediator is
#[utoipa::path(get, path = "/v1/status",
    responses((status = 200, body = MediatorStatus), (status = "4XX", body = Problem)))]
async fn status(State(core): State<Arc<Core>>, who: Who) -> Answer<MediatorStatus> {
    who.has(&core, "look at the mediator", READERS)?;
    let plans = look(&core.store, |connection| Plan::count(connection).map(Ok)).await?;
    let (agents, away) = (core.agents.len(), core.agents.away().len());
    // Clamped: what is shown is no larger.
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Ok(Json(MediatorStatus {
        mediator: core.id,
        names: core.names.load(Ordering::Relaxed),
        plans,
        agents: count(agents),
        reachable: count(agents.saturating_sub(away)),
        bookings: core.bookings.get(),
    }))
}
