//! Agents as the mediator knows them: what they said last, and the way to each.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use netraid_cluster::{
    access::Bearer,
    agent::{AgentStatus, Done, Operation},
    http::{Client, ClientError},
    mediator::{AgentEntry, AgentState},
    vet::{self, Unfit, url_host},
};
use netraid_control::{
    clocks::{Clock, Difference, News},
    placement,
    text::shown,
    units::{AgentId, Rate, Resources},
};
use rusqlite::{Connection, OptionalExtension as _, params};
use serde::{Deserialize, Serialize};

use crate::{
    link::{AskError, Link},
    lock,
    store::{Sql, decode, encode, from_word, usable, word},
};

/// How often agents are heard of.
pub(crate) const BEAT: Duration = Duration::from_secs(2);
/// An agent that was not heard of for so many beats is away.
const BEATS_MISSED_MAX: u32 = 3;
/// How long an agent has to answer a document.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long somebody who wants to know how it is waits for it.
const STATUS_LIMIT: Duration = Duration::from_secs(2);
/// Agents of a mediator, at most.
pub(crate) const AGENTS_MAX: usize = 4096;

/// What the store says of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Service {
    /// It takes new segments.
    Serving,
    /// It takes none.
    Draining,
    /// It is not used any more, and may be told so.
    Retired,
}

/// A row.
pub(crate) struct Stored {
    pub(crate) status: AgentStatus,
    /// What the mediator says to it.
    pub(crate) token: Bearer,
    pub(crate) authority: Option<String>,
    pub(crate) service: Service,
    /// Whether it was heard of since it joined.
    pub(crate) has_beaten: bool,
}

/// Why an agent cannot be asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentError {
    /// What it says of itself.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// Its URL, token or authority.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// What is stored of it.
    #[error("{0}")]
    Stored(#[from] rusqlite::Error),
}

const COLUMNS: &str = "SELECT id, status, token, authority, state, has_beaten FROM agents";

impl Stored {
    /// A row that may be wrong: what is wrong of its status or state is left out, and said.
    fn read(row: &rusqlite::Row<'_>) -> Sql<(Self, Option<rusqlite::Error>)> {
        let id = AgentId(row.get(0)?);
        let status = decode::<AgentStatus>(row.get_ref(1)?.as_str()?);
        let service = from_word(row.get_ref(4)?.as_str()?);
        let (status, service, wrong) = match (status, service) {
            (Ok(status), Ok(service)) => (AgentStatus { agent: id, ..status }, service, None),
            (Err(wrong), service) => {
                (nothing_of(id), service.unwrap_or(Service::Draining), Some(wrong))
            }
            (Ok(status), Err(wrong)) => {
                (AgentStatus { agent: id, ..status }, Service::Draining, Some(wrong))
            }
        };
        let this = Self {
            status,
            token: Bearer::from_text(row.get(2)?),
            authority: row.get(3)?,
            service,
            has_beaten: row.get(5)?,
        };
        Ok((this, wrong))
    }

    pub(crate) fn load(connection: &Connection, id: AgentId) -> Sql<Option<Self>> {
        let sql = format!("{COLUMNS} WHERE id = ?1");
        let found = connection.prepare_cached(&sql)?.query_row([id.0], Self::read).optional()?;
        Ok(found.map(|(stored, _)| stored))
    }

    /// All rows, each with what is wrong of it.
    pub(crate) fn all(connection: &Connection) -> Sql<Vec<(Self, Option<rusqlite::Error>)>> {
        usable(&mut connection.prepare(COLUMNS)?, [], "agents", Self::read).map(|(all, _)| all)
    }

    pub(crate) fn save(&self, connection: &Connection) -> Sql<()> {
        let sql = "INSERT OR REPLACE INTO agents VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let values = params![
            self.status.agent.0,
            encode(&self.status)?,
            self.token.expose(),
            self.authority,
            word(&self.service)?,
            self.has_beaten,
        ];
        connection.prepare_cached(sql)?.execute(values).map(drop)
    }

    /// A client of it, if what it says of itself can be so.
    pub(crate) fn client(&self) -> Result<Client, AgentError> {
        vet::status(&self.status)?;
        let authority = self.authority.as_deref();
        Ok(Client::new(&self.status.api, &self.token, authority, ANSWER_LIMIT)?)
    }
}

/// What is known of an agent of which nothing usable is stored.
const fn nothing_of(agent: AgentId) -> AgentStatus {
    const NOTHING: Resources =
        Resources { space_bytes: 0, device: Rate::ZERO, network: Rate::ZERO };
    AgentStatus {
        agent,
        host: String::new(),
        rack: String::new(),
        api: String::new(),
        portal: String::new(),
        target: String::new(),
        capacity: NOTHING,
        kept: NOTHING,
        left: NOTHING,
        left_for_rebuild: NOTHING,
        draining: false,
        segments: 0,
        sessions: 0,
    }
}

/// Space that was asked for since the agent said what it has left.
#[derive(Debug)]
struct Debit {
    resources: Resources,
    /// Since when the agent has it in its books; none while that is under way.
    booked: Option<Instant>,
}

#[derive(Debug)]
struct Agent {
    status: AgentStatus,
    heard: Instant,
    service: Service,
    /// The store knows that it was heard of.
    has_beaten: bool,
    /// The version of documents that is spoken with it; none while it was not heard of.
    documents: Option<u32>,
    /// By what it said with its last heartbeats.
    clock: Clock,
    link: Link,
    debits: BTreeMap<u64, Debit>,
}

impl Agent {
    fn is_reachable(&self) -> bool {
        self.link.is_up() && self.heard.elapsed() < BEAT * BEATS_MISSED_MAX
    }

    const fn is_draining(&self) -> bool {
        self.status.draining || !matches!(self.service, Service::Serving)
    }

    fn state(&self) -> AgentState {
        match (self.is_reachable(), self.is_draining()) {
            (false, _) => AgentState::Away,
            (true, true) => AgentState::Draining,
            (true, false) => AgentState::InService,
        }
    }

    fn placement(&self) -> placement::AgentState {
        let debits = self.debits.values().map(|debit| debit.resources);
        let left = debits.fold(self.status.left, Resources::saturating_sub);
        placement::AgentState {
            id: self.status.agent,
            host: self.status.host.clone(),
            rack: self.status.rack.clone(),
            left,
            total: self.status.capacity.saturating_sub(self.status.kept),
            usable: self.state() == AgentState::InService,
        }
    }
}

#[derive(Debug, Default)]
struct Table {
    agents: BTreeMap<AgentId, Agent>,
    debits: u64,
}

/// All agents.
#[derive(Debug, Default)]
pub(crate) struct Agents {
    table: Mutex<Table>,
}

/// What a member's agent is to whoever opens a volume.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) host: String,
    pub(crate) portal: String,
    pub(crate) target: String,
    pub(crate) is_reachable: bool,
}

impl Agents {
    /// Takes a row of a store, as the mediator starts. One with which no agent can be asked is set aside,
    /// and named: its agent is away until it is heard of with what can be so, which takes the row's
    /// place.
    pub(crate) fn restore(&self, mut stored: Stored, wrong: Option<rusqlite::Error>) {
        let id = stored.status.agent;
        let client = wrong.map_or_else(|| stored.client(), |wrong| Err(wrong.into()));
        let client = client.map_err(|why| {
            tracing::error!(
                "agent {id} is set aside: what is stored of it is of no use: {why}; it is taken back when \
                 it is heard of, or joins again"
            );
            stored.status = nothing_of(id);
        });
        let link = Link::new(client.ok());
        self.add(&stored, link);
    }

    /// Takes an agent, or what is new of it.
    pub(crate) fn insert(&self, stored: &Stored) -> Result<(), AgentError> {
        let client = stored.client()?;
        let mut table = lock(&self.table);
        let id = stored.status.agent;
        if let Some(agent) = table.agents.get_mut(&id) {
            agent.link.set_client(client);
            agent.link.handle_heard();
            agent.heard = Instant::now();
            agent.status = stored.status.clone();
            agent.service = stored.service;
            agent.has_beaten = stored.has_beaten;
            return Ok(());
        }
        drop(table);
        self.add(stored, Link::new(Some(client)));
        Ok(())
    }

    fn add(&self, stored: &Stored, link: Link) {
        let agent = Agent {
            status: stored.status.clone(),
            heard: Instant::now(),
            service: stored.service,
            has_beaten: stored.has_beaten,
            documents: None,
            clock: Clock::default(),
            link,
            debits: BTreeMap::new(),
        };
        lock(&self.table).agents.insert(stored.status.agent, agent);
    }

    /// Whether it was not heard of since it joined, as far as the store knows.
    pub(crate) fn is_silent(&self, id: AgentId) -> bool {
        lock(&self.table).agents.get(&id).is_some_and(|agent| !agent.has_beaten)
    }

    /// The store knows that it was heard of.
    pub(crate) fn handle_beat(&self, id: AgentId) {
        if let Some(agent) = lock(&self.table).agents.get_mut(&id) {
            agent.has_beaten = true;
        }
    }

    /// An agent asked, in documents of this version.
    pub(crate) fn handle_documents(&self, id: AgentId, version: u32) {
        let mut table = lock(&self.table);
        let Some(agent) = table.agents.get_mut(&id) else { return };
        if agent.documents.replace(version) != Some(version) {
            tracing::info!("agent {id}: documents of version {version} are spoken with it");
        }
    }

    /// An agent said what its clock shows, or nothing of it: what is new by that.
    pub(crate) fn handle_clock(&self, id: AgentId, said: Option<Difference>) -> Option<News> {
        lock(&self.table).agents.get_mut(&id)?.clock.handle_beat(said)
    }

    /// How far an agent's clock is from this one.
    pub(crate) fn clock(&self, id: AgentId) -> Option<Difference> {
        lock(&self.table).agents.get(&id)?.clock.difference()
    }

    pub(crate) fn set_service(&self, id: AgentId, service: Service) {
        if let Some(agent) = lock(&self.table).agents.get_mut(&id) {
            agent.service = service;
        }
    }

    /// An agent said how it is; `asked` is before it looked.
    pub(crate) fn handle_status(&self, status: AgentStatus, asked: Instant) {
        if let Some(agent) = lock(&self.table).agents.get_mut(&status.agent) {
            agent.link.handle_heard();
            agent.heard = Instant::now();
            agent.status = status;
            agent.debits.retain(|_, debit| debit.booked.is_none_or(|booked| booked >= asked));
        }
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.table).agents.len()
    }

    pub(crate) fn ids(&self) -> Vec<AgentId> {
        lock(&self.table).agents.keys().copied().collect()
    }

    pub(crate) fn link(&self, id: AgentId) -> Option<Link> {
        lock(&self.table).agents.get(&id).map(|agent| agent.link.clone())
    }

    pub(crate) fn is_reachable(&self, id: AgentId) -> bool {
        lock(&self.table).agents.get(&id).is_some_and(Agent::is_reachable)
    }

    pub(crate) fn service(&self, id: AgentId) -> Option<Service> {
        lock(&self.table).agents.get(&id).map(|agent| agent.service)
    }

    pub(crate) fn status(&self, id: AgentId) -> Option<AgentStatus> {
        lock(&self.table).agents.get(&id).map(|agent| agent.status.clone())
    }

    /// The agent for people: its id, and its host where that is known.
    pub(crate) fn named(&self, id: AgentId) -> String {
        let host = self.status(id).map(|status| status.host).unwrap_or_default();
        match host.is_empty() {
            true => format!("agent {id}"),
            false => format!("agent {id} on {}", shown(&host)),
        }
    }

    pub(crate) fn place(&self, id: AgentId) -> Place {
        let table = lock(&self.table);
        let none = || Place {
            host: String::new(),
            portal: String::new(),
            target: String::new(),
            is_reachable: false,
        };
        table.agents.get(&id).map_or_else(none, |agent| Place {
            host: agent.status.host.clone(),
            portal: agent.status.portal.clone(),
            target: agent.status.target.clone(),
            is_reachable: agent.is_reachable(),
        })
    }

    /// All of them, for the choice of members.
    pub(crate) fn placement(&self) -> Vec<placement::AgentState> {
        lock(&self.table).agents.values().map(Agent::placement).collect()
    }

    /// As clients see them, without their segments.
    pub(crate) fn entries(&self) -> Vec<AgentEntry> {
        let entry = |agent: &Agent| AgentEntry {
            status: agent.status.clone(),
            state: agent.state(),
            // Clamped: nothing was silent for longer.
            silent_ms: u64::try_from(agent.heard.elapsed().as_millis()).unwrap_or(u64::MAX),
            segments: 0,
            documents: agent.documents,
            clock_ahead_ms: agent.clock.difference().map(|difference| difference.ahead_ms),
        };
        lock(&self.table).agents.values().map(entry).collect()
    }

    /// Space that is being booked on some agents: nobody else should be sent there for it.
    pub(crate) fn debit(&self, agents: &[AgentId], resources: Resources) -> u64 {
        let mut table = lock(&self.table);
        table.debits += 1;
        let key = table.debits;
        for id in agents {
            if let Some(agent) = table.agents.get_mut(id) {
                agent.debits.insert(key, Debit { resources, booked: None });
            }
        }
        key
    }

    /// It was booked there, or was not.
    pub(crate) fn settle(&self, key: u64, is_booked: bool) {
        let now = Instant::now();
        for agent in lock(&self.table).agents.values_mut() {
            if is_booked {
                if let Some(debit) = agent.debits.get_mut(&key) {
                    debit.booked = Some(now);
                }
            } else {
                agent.debits.remove(&key);
            }
        }
    }

    /// Asks an agent for one operation.
    pub(crate) fn ask(
        &self,
        id: AgentId,
        operation: Operation,
    ) -> impl Future<Output = Result<Done, AskError>> + Send + use<> {
        let asked = self.link(id).map(|link| link.ask(operation));
        async move {
            match asked {
                Some(asked) => asked.await,
                None => Err(AskError::Lost("the agent is not known".to_owned())),
            }
        }
    }

    /// Asks these agents how they are, all at once: those that answered. Who does not answer stays as it
    /// was.
    pub(crate) async fn refresh(
        self: &Arc<Self>,
        ids: impl IntoIterator<Item = AgentId>,
    ) -> Vec<AgentId> {
        let one = |id| {
            let this = Arc::clone(self);
            async move {
                let link = this.link(id)?;
                let asked = Instant::now();
                let answer = tokio::time::timeout(STATUS_LIMIT, link.status()).await;
                let status = answer.ok()?.ok()?;
                let known = lock(&this.table).agents.get(&id)?.status.api.clone();
                match vet::status(&status) {
                    // Where it is reached changes by what it sends itself, which is looked at for where it
                    // comes from.
                    Ok(()) if url_host(&status.api) != url_host(&known) => {
                        tracing::warn!("agent {id}: says that it is reached at another host");
                    }
                    Ok(()) if status.agent == id => {
                        this.handle_status(status, asked);
                        return Some(id);
                    }
                    Ok(()) => tracing::warn!("agent {id}: answers as agent {}", status.agent),
                    Err(unfit) => tracing::warn!("agent {id}: {unfit}"),
                }
                None
            }
        };
        let answered = futures_util::future::join_all(ids.into_iter().map(one)).await;
        answered.into_iter().flatten().collect()
    }

    /// Those that do not answer.
    pub(crate) fn away(&self) -> Vec<AgentId> {
        let table = lock(&self.table);
        let away = table.agents.iter().filter(|(_, agent)| !agent.is_reachable());
        away.map(|(id, _)| *id).collect()
    }
}
