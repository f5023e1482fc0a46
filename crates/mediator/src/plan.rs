//! Transfer plans as they are stored.

use netraid_block::narrow;
use netraid_cluster::{
    access::{Bearer, TokenDigest},
    mediator::{CleanClose, Mode, Open},
    now,
};
use netraid_control::{
    token::SKEW_MS,
    units::{AgentId, Moment, PlanId, Rate, Resources, SegmentId, VolumeId},
};
use rusqlite::{Connection, OptionalExtension as _, Params, Row, params};
use serde::{Deserialize, Serialize};

use crate::store::{Sql, aside, decode, encode, from_word, int, moment, one, uint, usable, word};

/// How far a plan is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// Nobody has its tokens.
    Opening,
    /// In force.
    Open,
    /// Agents are being told that it is over.
    Ending,
    /// Agents know that it is over. Its tokens have not ended, and are taken back with its bearer token.
    Closed,
}

/// What is kept of a plan beside its columns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) version: u32,
    pub(crate) mode: Mode,
    pub(crate) initiator: String,
    pub(crate) rate: Rate,
    pub(crate) limit: Option<Rate>,
    pub(crate) request_bytes: u64,
    pub(crate) degraded: bool,
    /// What its client was told.
    pub(crate) for_ms: u64,
    /// What is booked on agents.
    pub(crate) parts: Vec<Part>,
    /// Who may have sessions of it.
    pub(crate) agents: Vec<AgentId>,
    /// Agents of this plan that know already that it is over: its tokens open segments there until they end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) told: Vec<AgentId>,
    /// Of what its client says when it has stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) close_key: Option<TokenDigest>,
    /// How the volume was left before this plan was granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) clean_close: Option<CleanClose>,
    /// It was taken back from its client: its tokens are to open nothing, although they have not ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_revoked: bool,
    /// Nobody has its tokens, and nobody will.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_unissued: bool,
}

impl Record {
    /// Of a request, on these agents.
    pub(crate) fn new(open: &Open, for_ms: u64, agents: Vec<AgentId>) -> Self {
        Self {
            version: 1,
            mode: open.mode,
            initiator: open.initiator.clone(),
            rate: open.rate,
            limit: open.limit,
            request_bytes: open.request_bytes.unwrap_or(1 << 20),
            degraded: open.degraded,
            for_ms,
            parts: Vec::new(),
            agents,
            told: Vec::new(),
            close_key: open.close_key.as_ref().map(Bearer::digest),
            clean_close: None,
            is_revoked: false,
            is_unissued: false,
        }
    }

    /// How long its lease, tokens and bookings last: longer than its client was told, so that none is
    /// over while the client counts on it, whatever of two clocks is ahead.
    pub(crate) const fn lease_ms(&self) -> u64 {
        self.for_ms.saturating_add(SKEW_MS)
    }

    /// Agents that are to be told when it is over.
    pub(crate) fn untold(&self) -> Vec<AgentId> {
        let mut agents = self.agents.clone();
        agents.extend(self.parts.iter().map(|part| part.agent));
        agents.sort_unstable();
        agents.dedup();
        agents
    }

    /// Takes it back: all agents are to be told, also those that know that it is over.
    pub(crate) fn revoke(&mut self) {
        self.is_revoked = true;
        let told = std::mem::take(&mut self.told);
        self.agents.extend(told);
        self.agents = self.untold();
    }

    /// Notes that all but these agents know that it is over.
    pub(crate) fn note_told(&mut self, left: Vec<AgentId>) {
        let untold = self.untold();
        assert!(left.iter().all(|agent| untold.contains(agent)), "nobody else is to be told");
        self.told.extend(untold.into_iter().filter(|agent| !left.contains(agent)));
        self.parts.retain(|part| left.contains(&part.agent));
        self.agents = left;
    }

    /// What it has booked for a segment.
    pub(crate) fn booked(&self, segment: SegmentId) -> Resources {
        let part = self.parts.iter().find(|part| part.segment == segment);
        part.map_or(Resources::default(), |part| part.resources)
    }
}

/// Rates that are booked on an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Part {
    pub(crate) agent: AgentId,
    pub(crate) segment: SegmentId,
    pub(crate) resources: Resources,
}

/// A row.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) id: PlanId,
    pub(crate) volume: VolumeId,
    /// The number of the bearer token by which it was opened.
    pub(crate) owner: u64,
    pub(crate) until: Moment,
    pub(crate) state: State,
    pub(crate) record: Record,
}

const COLUMNS: &str = "id, volume, owner, until, state, record";

/// What the columns say of a plan whose row is set aside.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Aside {
    pub(crate) id: PlanId,
    pub(crate) volume: VolumeId,
    pub(crate) until: Moment,
}

impl Aside {
    fn read(row: &Row<'_>) -> Sql<Self> {
        // Clamped: where no moment stands, what is taken back stays so.
        let until = Moment(u64::try_from(row.get::<_, i64>(3)?).unwrap_or(u64::MAX));
        Ok(Self { id: PlanId(row.get(0)?), volume: VolumeId(row.get(1)?), until })
    }

    /// Whether its tokens have not ended, by any clock.
    pub(crate) fn has_tokens(&self) -> bool {
        has_tokens(self.until)
    }

    /// Takes it back: agents are told of it from now on, also by the program that can read all of the row.
    pub(crate) fn revoke(&self, connection: &Connection) -> Sql<()> {
        let sql = "UPDATE plans SET state = 'ending', record = CASE WHEN json_valid(record) \
                   THEN json_set(record, '$.is_revoked', json('true')) ELSE record END \
                   WHERE id = ?1";
        one(connection.prepare_cached(sql)?.execute([self.id.0])?)
    }
}

fn has_tokens(until: Moment) -> bool {
    until.after_ms(SKEW_MS) > now()
}

/// Plans as a query found them.
#[derive(Debug)]
pub(crate) struct Plans {
    pub(crate) usable: Vec<Plan>,
    pub(crate) aside: Vec<Aside>,
    /// The last row, whether it can be read or not.
    last: Option<PlanId>,
    count: usize,
}

impl Plans {
    fn find(connection: &Connection, sql: &str, values: impl Params) -> Sql<Self> {
        let read = |row: &Row<'_>| match Plan::read(row) {
            Ok(plan) => Ok((plan.id, Ok(plan))),
            Err(error) => {
                let plan = Aside::read(row)?;
                tracing::error!("{}", aside("plans", plan.id, error));
                Ok((plan.id, Err(plan)))
            }
        };
        let mut query = connection.prepare_cached(sql)?;
        let (found, unnamed) = usable(&mut query, values, "plans", read)?;
        let count = found.len() + unnamed;
        let last = found.last().map(|(id, _)| *id);
        let (mut usable, mut aside) = (Vec::new(), Vec::new());
        for (_, plan) in found {
            match plan {
                Ok(plan) => usable.push(plan),
                Err(plan) => aside.push(plan),
            }
        }
        Ok(Self { usable, aside, last, count })
    }

    /// After which one the next page by id begins, if there is one: this one has as many rows as were asked for.
    pub(crate) fn next(&self, limit: u32) -> Option<PlanId> {
        self.last.filter(|_| self.count >= limit as usize)
    }
}

impl Plan {
    fn read(row: &Row<'_>) -> Sql<Self> {
        Ok(Self {
            id: PlanId(row.get(0)?),
            volume: VolumeId(row.get(1)?),
            owner: uint(row, 2)?,
            until: moment(row, 3)?,
            state: from_word(row.get_ref(4)?.as_str()?)?,
            record: decode(row.get_ref(5)?.as_str()?)?,
        })
    }

    pub(crate) fn load(connection: &Connection, id: PlanId) -> Sql<Option<Self>> {
        let sql = format!("SELECT {COLUMNS} FROM plans WHERE id = ?1");
        let read = |row: &Row<'_>| Self::read(row).map_err(|error| aside("plans", id, error));
        connection.prepare_cached(&sql)?.query_row([id.0], read).optional()
    }

    pub(crate) fn insert(&self, connection: &Connection) -> Sql<()> {
        let sql = "INSERT INTO plans VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let (state, record) = (word(&self.state)?, encode(&self.record)?);
        let (owner, until) = (int(self.owner), int(self.until.0));
        let values = params![self.id.0, self.volume.0, owner, until, state, record];
        connection.prepare_cached(sql)?.execute(values).map(drop)
    }

    pub(crate) fn save(&self, connection: &Connection) -> Sql<()> {
        let sql = "UPDATE plans SET until = ?2, state = ?3, record = ?4 WHERE id = ?1";
        let (state, record) = (word(&self.state)?, encode(&self.record)?);
        let values = params![self.id.0, int(self.until.0), state, record];
        one(connection.prepare_cached(sql)?.execute(values)?)?;
        Ok(())
    }

    /// Until when it holds, and nothing else.
    pub(crate) fn save_until(&self, connection: &Connection) -> Sql<()> {
        let sql = "UPDATE plans SET until = ?2 WHERE id = ?1";
        one(connection.prepare_cached(sql)?.execute(params![self.id.0, int(self.until.0)])?)?;
        Ok(())
    }

    /// Those of a volume of which agents may still have something.
    pub(crate) fn of_volume(connection: &Connection, volume: VolumeId) -> Sql<Vec<Self>> {
        let sql = format!("SELECT {COLUMNS} FROM plans WHERE volume = ?1 AND state <> 'closed'");
        Plans::find(connection, &sql, [volume.0]).map(|plans| plans.usable)
    }

    /// How many of a volume are in force that one bearer token has.
    pub(crate) fn count_of(connection: &Connection, volume: VolumeId, owner: u64) -> Sql<usize> {
        let sql = "SELECT count(*) FROM plans WHERE volume = ?1 AND owner = ?2 AND state = 'open'";
        let values = params![volume.0, int(owner)];
        let count = connection.prepare_cached(sql)?.query_row(values, |row| uint(row, 0))?;
        Ok(narrow(count))
    }

    /// How many of one bearer token were closed, by whomever, and are kept as their tokens may open something.
    pub(crate) fn count_closed(connection: &Connection, owner: u64) -> Sql<usize> {
        let sql = "SELECT count(*) FROM plans WHERE owner = ?1 AND state IN ('ending', 'closed')";
        let count = connection.prepare_cached(sql)?.query_row([int(owner)], |row| uint(row, 0))?;
        Ok(narrow(count))
    }

    /// Those that were opened by a bearer token and are not taken back, the ones in force first; closed ones, and
    /// those that are set aside, too while their tokens may open something.
    pub(crate) fn of_owner(connection: &Connection, owner: u64) -> Sql<Plans> {
        let sql = format!("SELECT {COLUMNS} FROM plans WHERE owner = ?1");
        let mut plans = Plans::find(connection, &sql, [int(owner)])?;
        plans.aside.retain(Aside::has_tokens);
        plans.usable.retain(|plan| match plan.state {
            State::Opening | State::Open => true,
            State::Ending | State::Closed => {
                let is_over = plan.record.is_revoked || plan.record.is_unissued;
                !is_over && plan.has_tokens()
            }
        });
        plans.usable.sort_by_key(|plan| matches!(plan.state, State::Ending | State::Closed));
        Ok(plans)
    }

    /// Whether its tokens have not ended, by any clock.
    pub(crate) fn has_tokens(&self) -> bool {
        has_tokens(self.until)
    }

    /// Notes that all but these agents know that it is over. It is forgotten when all know, and its tokens
    /// open nothing any more. What somebody made of it meanwhile stands.
    pub(crate) fn note_told(mut self, connection: &Connection, left: Vec<AgentId>) -> Sql<()> {
        let now = Self::load(connection, self.id)?;
        if now.is_none_or(|now| now.record.is_revoked != self.record.is_revoked) {
            return Ok(());
        }
        let opens_nothing = self.record.is_revoked || self.record.is_unissued || !self.has_tokens();
        if left.is_empty() && opens_nothing {
            return delete(connection, self.id);
        }
        self.state = if left.is_empty() { State::Closed } else { State::Ending };
        self.record.note_told(left);
        self.save(connection)
    }

    /// Those in a state that end before a moment; as many at most.
    pub(crate) fn ended_before(
        connection: &Connection,
        state: State,
        before: Moment,
        limit: u32,
    ) -> Sql<Vec<Self>> {
        let sql = format!("SELECT {COLUMNS} FROM plans WHERE state = ?1 AND until < ?2 LIMIT ?3");
        let values = params![word(&state)?, int(before.0), limit];
        Plans::find(connection, &sql, values).map(|plans| plans.usable)
    }

    /// A page by id of those of which agents are being told.
    pub(crate) fn ending(connection: &Connection, after: PlanId, limit: u32) -> Sql<Plans> {
        let sql = format!(
            "SELECT {COLUMNS} FROM plans WHERE id > ?1 AND state = 'ending' ORDER BY id LIMIT ?2"
        );
        let values = params![after.0, limit];
        Plans::find(connection, &sql, values)
    }

    /// A page of them by id; of one owner only if that is given.
    pub(crate) fn page(
        connection: &Connection,
        after: Option<PlanId>,
        owner: Option<u64>,
        limit: u32,
    ) -> Sql<Plans> {
        let sql = format!(
            "SELECT {COLUMNS} FROM plans WHERE id > ?1 AND (?2 IS NULL OR owner = ?2) \
             AND state = 'open' ORDER BY id LIMIT ?3"
        );
        let after = after.map_or(Vec::new(), |after| after.0.to_vec());
        let values = params![after, owner.map(int), limit];
        Plans::find(connection, &sql, values)
    }

    /// How many are in force.
    pub(crate) fn count(connection: &Connection) -> Sql<u64> {
        let sql = "SELECT count(*) FROM plans WHERE state = 'open'";
        connection.prepare_cached(sql)?.query_row([], |row| uint(row, 0))
    }

    /// A page of all by id, whatever their state.
    pub(crate) fn all(connection: &Connection, after: Option<PlanId>, limit: u32) -> Sql<Plans> {
        let sql = format!("SELECT {COLUMNS} FROM plans WHERE id > ?1 ORDER BY id LIMIT ?2");
        let after = after.map_or(Vec::new(), |after| after.0.to_vec());
        let values = params![after, limit];
        Plans::find(connection, &sql, values)
    }
}

pub(crate) fn set_state(connection: &Connection, id: PlanId, state: State) -> Sql<()> {
    let sql = "UPDATE plans SET state = ?2 WHERE id = ?1";
    connection.prepare_cached(sql)?.execute(params![id.0, word(&state)?]).map(drop)
}

pub(crate) fn delete(connection: &Connection, id: PlanId) -> Sql<()> {
    connection.prepare_cached("DELETE FROM plans WHERE id = ?1")?.execute([id.0]).map(drop)
}

/// Forgets plans of which nothing can be left on an agent, whether it was told or not.
pub(crate) fn forget_ended(connection: &Connection, before: Moment) -> Sql<usize> {
    let sql = "DELETE FROM plans WHERE state IN ('ending', 'closed') AND until < ?1";
    connection.prepare_cached(sql)?.execute([int(before.0)])
}
