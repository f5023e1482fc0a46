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
};
use netraid_control::{
    placement,
    units::{AgentId, Resources},
};
use rusqlite::{Connection, OptionalExtension as _, params};
use serde::{Deserialize, Serialize};

use crate::{
    link::{AskError, Link},
    lock,
    store::{Sql, decode, encode, from_word, word},
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

impl Stored {
    fn read(row: &rusqlite::Row<'_>) -> Sql<Self> {
        Ok(Self {
            status: decode(row.get_ref(0)?.as_str()?)?,
            token: Bearer::from_text(row.get(1)?),
            authority: row.get(2)?,
            service: from_word(row.get_ref(3)?.as_str()?)?,
            has_beaten: row.get(4)?,
        })
    }

    pub(crate) fn load(connection: &Connection, id: AgentId) -> Sql<Option<Self>> {
        let sql = "SELECT status, token, authority, state, has_beaten FROM agents WHERE id = ?1";
        connection.prepare_cached(sql)?.query_row([id.0], Self::read).optional()
    }

    pub(crate) fn all(connection: &Connection) -> Sql<Vec<Self>> {
        let sql = "SELECT status, token, authority, state, has_beaten FROM agents";
        connection.prepare(sql)?.query_map([], Self::read)?.collect()
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

    /// A client of it.
    pub(crate) fn client(&self) -> Result<Client, ClientError> {
        Client::new(&self.status.api, &self.token, self.authority.as_deref(), ANSWER_LIMIT)
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
    /// Takes an agent, or what is new of it.
    pub(crate) fn insert(&self, stored: &Stored) -> Result<(), ClientError> {
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
        let agent = Agent {
            status: stored.status.clone(),
            heard: Instant::now(),
            service: stored.service,
            has_beaten: stored.has_beaten,
            link: Link::new(client),
            debits: BTreeMap::new(),
        };
        table.agents.insert(id, agent);
        Ok(())
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
            silent_ms: u64::try_from(agent.heard.elapsed().as_millis()).unwrap_or(u64::MAX),
            segments: 0,
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

    /// Asks these agents how they are, all at once; who does not answer stays as it was.
    pub(crate) async fn refresh(self: &Arc<Self>, ids: impl IntoIterator<Item = AgentId>) {
        let one = |id| {
            let this = Arc::clone(self);
            async move {
                let Some(link) = this.link(id) else { return };
                let asked = Instant::now();
                let answer = tokio::time::timeout(STATUS_LIMIT, link.status()).await;
                if let Ok(Ok(status)) = answer
                    && status.agent == id
                {
                    this.handle_status(status, asked);
                }
            }
        };
        futures_util::future::join_all(ids.into_iter().map(one)).await;
    }

    /// Those that do not answer.
    pub(crate) fn away(&self) -> Vec<AgentId> {
        let table = lock(&self.table);
        let away = table.agents.iter().filter(|(_, agent)| !agent.is_reachable());
        away.map(|(id, _)| *id).collect()
    }
}
