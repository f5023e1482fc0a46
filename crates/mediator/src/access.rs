//! Who may do what: bearer tokens, of which digests are stored.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Mutex,
};

use netraid_cluster::{
    Code, Problem,
    access::{Bearer, Role, TokenDigest},
    mediator::{AccessEntry, NewAccess, NewToken},
    now,
    store::Store,
};
use netraid_control::{
    text,
    units::{AgentId, Moment},
};
use rusqlite::{Connection, params};

use crate::{
    lock,
    store::{Sql, change, from_word, int, moment, uint, unsigned, usable, word},
};

/// Bearer tokens, at most.
const TOKENS_MAX: usize = 65_536;
/// Bytes of whom one is for.
const NAME_LEN_MAX: usize = 128;

/// Who asks.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// The number of the bearer token.
    pub(crate) id: u64,
    pub(crate) role: Role,
    pub(crate) name: String,
    pub(crate) until: Option<Moment>,
    pub(crate) made: Moment,
    /// The one agent that it is, after it joined.
    pub(crate) agent: Option<AgentId>,
}

impl Caller {
    fn read(row: &rusqlite::Row<'_>) -> Sql<(TokenDigest, Self)> {
        let until: Option<i64> = row.get(5)?;
        let until = until.map(|until| unsigned(5, until)).transpose()?;
        let agent: Option<[u8; 16]> = row.get(6)?;
        let this = Self {
            id: uint(row, 0)?,
            role: from_word(row.get_ref(2)?.as_str()?)?,
            name: row.get(3)?,
            made: moment(row, 4)?,
            until: until.map(Moment),
            agent: agent.map(AgentId),
        };
        Ok((TokenDigest(row.get(1)?), this))
    }

    fn entry(&self) -> AccessEntry {
        let Self { id, role, made, until, .. } = *self;
        AccessEntry { id, role, name: self.name.clone(), made, until }
    }
}

/// All tokens, by their digests.
#[derive(Debug, Default)]
pub(crate) struct AccessBook {
    callers: Mutex<HashMap<TokenDigest, Caller>>,
    /// Those that have ended, and of which somebody was told.
    lapsed: Mutex<BTreeSet<u64>>,
}

impl AccessBook {
    pub(crate) fn load(connection: &Connection) -> Sql<Self> {
        let mut query =
            connection.prepare("SELECT id, digest, role, name, made, until, agent FROM access")?;
        let (callers, _) = usable(&mut query, [], "access", Caller::read)?;
        let callers = Mutex::new(callers.into_iter().collect());
        Ok(Self { callers, lapsed: Mutex::default() })
    }

    /// Whose token that is, if it is good.
    pub(crate) fn find(&self, digest: &TokenDigest) -> Option<Caller> {
        let caller = lock(&self.callers).get(digest).cloned()?;
        caller.until.is_none_or(|until| now() < until).then_some(caller)
    }

    /// Whether there never was a token of that role but those of agents that joined.
    pub(crate) fn is_new(&self, role: Role) -> bool {
        let callers = lock(&self.callers);
        !callers.values().any(|caller| caller.role == role && caller.agent.is_none())
    }

    pub(crate) fn entries(&self) -> Vec<AccessEntry> {
        let mut entries: Vec<_> = lock(&self.callers).values().map(Caller::entry).collect();
        entries.sort_unstable_by_key(|entry| entry.id);
        entries
    }

    /// Makes a token. One of an agent takes the place of those that the agent had.
    pub(crate) async fn make(
        &self,
        store: &Store,
        new: &NewAccess,
        agent: Option<AgentId>,
    ) -> Result<NewToken, Problem> {
        let NewAccess { role, name, for_ms } = new.clone();
        if name.is_empty() {
            return Err(Problem::invalid(format!("a name has 1 to {NAME_LEN_MAX} bytes")));
        }
        text::check(&name, NAME_LEN_MAX)
            .map_err(|why| Problem::invalid(format!("the name for a bearer token {why}")))?;
        if lock(&self.callers).len() >= TOKENS_MAX {
            let detail = format!("there are {TOKENS_MAX} bearer tokens; remove some");
            return Err(Problem::new(Code::Conflict, detail));
        }
        let made = now();
        let until = for_ms.map(|for_ms| made.after_ms(for_ms));
        let bearer = Bearer::draw();
        let digest = bearer.digest();
        let caller = Caller { id: 0, role, name, until, made, agent };
        let row = caller.clone();
        let id = change(store, move |connection| {
            if let Some(agent) = row.agent {
                connection.execute("DELETE FROM access WHERE agent = ?1", [agent.0])?;
            }
            let sql = "INSERT INTO access (digest, role, name, made, until, agent) \
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
            let until = row.until.map(|until| int(until.0));
            let agent = row.agent.map(|agent| agent.0);
            let values =
                params![digest.0, word(&row.role)?, row.name, int(row.made.0), until, agent];
            connection.prepare_cached(sql)?.execute(values)?;
            unsigned(0, connection.last_insert_rowid()).map(Ok)
        })
        .await?;
        let caller = Caller { id, ..caller };
        let entry = caller.entry();
        let mut callers = lock(&self.callers);
        callers.retain(|_, other| agent.is_none() || other.agent != agent);
        callers.insert(digest, caller);
        Ok(NewToken { entry, token: bearer.expose().to_owned() })
    }

    /// A token was taken back: nobody gets in by it any more.
    pub(crate) fn handle_removed(&self, id: u64) {
        lock(&self.callers).retain(|_, caller| caller.id != id);
        lock(&self.lapsed).remove(&id);
    }

    /// Tokens that have ended and were not told of yet.
    pub(crate) fn take_lapsed(&self) -> Vec<u64> {
        let now = now();
        let mut lapsed = lock(&self.lapsed);
        let callers = lock(&self.callers);
        let is_over = |caller: &&Caller| caller.until.is_some_and(|until| until <= now);
        let over = callers.values().filter(is_over).map(|caller| caller.id);
        over.filter(|id| lapsed.insert(*id)).collect()
    }

    /// A token that has ended is to be told of again.
    pub(crate) fn put_back_lapsed(&self, id: u64) {
        lock(&self.lapsed).remove(&id);
    }
}

/// Forgets a token. Whether it was there.
pub(crate) fn remove(connection: &Connection, id: u64) -> Sql<bool> {
    Ok(connection.execute("DELETE FROM access WHERE id = ?1", [int(id)])? > 0)
}

/// Whether a token is good, as the store knows: it may have been taken back since it was shown.
pub(crate) fn is_good(connection: &Connection, id: u64) -> Sql<bool> {
    let sql = "SELECT 1 FROM access WHERE id = ?1 AND (until IS NULL OR until > ?2)";
    connection.prepare_cached(sql)?.exists(params![int(id), int(now().0)])
}
