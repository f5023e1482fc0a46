//! What an agent's store holds (docs/agent.md).

use netraid_cluster::{
    access::{Bearer, TokenDigest},
    agent::Label,
    store::{OpenError, Store, StoreError},
    tls::{authorities_of, authority_keys},
    vet::url_host,
};
use netraid_control::{
    keys::{Ring, StoredRing},
    lease::nobody,
    ledger::{Allotment, Change},
    membership::Bond,
    units::{AgentId, Generation, MediatorId, Moment, PlanId, SegmentId},
};
use rusqlite::{Connection, OptionalExtension as _, params, types::Type};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{collections::HashSet, path::Path};
use zeroize::Zeroizing;

use crate::{calibrate::Calibration, disk::DiskId};

/// Whose a segment is, and which: two mediators may use the same id.
pub(crate) type Key = (MediatorId, SegmentId);

/// Whose a plan is, and which.
pub(crate) type PlanKey = (MediatorId, PlanId);

/// Name of the store's files.
const NAME: &str = "agent";

const STEPS: &[&str] = &[
    "
    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE allotments (
        mediator BLOB NOT NULL, id BLOB NOT NULL, allotment TEXT NOT NULL,
        PRIMARY KEY (mediator, id)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE segments (
        mediator BLOB NOT NULL, segment BLOB NOT NULL, row TEXT NOT NULL,
        PRIMARY KEY (mediator, segment)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE memberships (
        mediator BLOB PRIMARY KEY, membership TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
",
    "
    -- Plans that were taken back, until their tokens have ended.
    CREATE TABLE revoked (
        mediator BLOB NOT NULL, plan BLOB NOT NULL, until INTEGER NOT NULL,
        PRIMARY KEY (mediator, plan)
    ) STRICT, WITHOUT ROWID;
",
];

/// A segment, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SegmentRow {
    pub(crate) len_bytes: u64,
    pub(crate) generation: Generation,
    /// For which plan that was taken.
    #[serde(default = "nobody")]
    pub(crate) taken_by: PlanId,
    /// Its data is being removed, or is gone already.
    pub(crate) removing: bool,
    pub(crate) label: Label,
}

/// A mediator for which the agent works.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Membership {
    /// Its URL.
    pub(crate) url: String,
    /// Whom to trust when calling it, in PEM.
    pub(crate) authority: Option<String>,
    /// What the agent says.
    pub(crate) says: Bearer,
    /// The digest of what the mediator says, in hexadecimal digits.
    hears: String,
    /// What verifies its tokens.
    pub(crate) keys: StoredRing,
    /// How often it is to hear of the agent.
    pub(crate) beat_ms: u64,
    /// Nothing new is made for it.
    pub(crate) draining: bool,
    /// The agent works for it no longer, and has segments of it still: nobody but itself gets them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) ended: bool,
}

impl Membership {
    pub(crate) fn new(
        url: String,
        authority: Option<String>,
        says: Bearer,
        hears: TokenDigest,
        keys: StoredRing,
        beat_ms: u64,
    ) -> Self {
        let hears = hears.0.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { url, authority, says, hears, keys, beat_ms, draining: false, ended: false }
    }

    /// What the mediator is known by.
    pub(crate) fn bond(&self) -> Bond {
        let (authority, is_own) = authority_keys(self.authority.as_deref()).unwrap_or_default();
        let host = url_host(&self.url).unwrap_or_default();
        Bond { authority, is_own, host, keys: Ring::restore(&self.keys).unwrap_or_default() }
    }

    /// Those of the authorities that are trusted here by which a mediator is known; none unless others are
    /// trusted beside them.
    pub(crate) fn vouched_by(&self, known: &Self) -> Option<String> {
        let (keys, _) = authority_keys(known.authority.as_deref()).unwrap_or_default();
        let trusted = self.authority.as_deref()?;
        authorities_of(trusted, &keys).filter(|known| known.trim() != trusted.trim())
    }

    /// The digest of what the mediator says; none when it was not written by an agent.
    pub(crate) fn hears(&self) -> Option<TokenDigest> {
        let mut digest = [0; 32];
        let all = self.hears.get(..64).filter(|_| self.hears.len() == 64)?;
        for (at, byte) in digest.iter_mut().enumerate() {
            *byte = u8::from_str_radix(all.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(TokenDigest(digest))
    }
}

/// A membership whose row a later program wrote, and which is set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MembershipAside {
    pub(crate) mediator: MediatorId,
    /// Where the mediator is, if the row says so as this program would.
    pub(crate) url: Option<String>,
}

/// Of a membership, what tells whose it is.
#[derive(Deserialize)]
struct Whose {
    url: Option<String>,
}

impl MembershipAside {
    /// None of a row that no program has written so: nothing of it is lost when it is written anew.
    fn of(mediator: MediatorId, text: &str) -> Option<Self> {
        serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text).ok()?;
        let whose: Option<Whose> = serde_json::from_str(text).ok();
        Some(Self { mediator, url: whose.and_then(|whose| whose.url) })
    }
}

/// All that a store holds.
pub(crate) struct Records {
    pub(crate) agent: AgentId,
    pub(crate) allotments: Vec<Allotment>,
    pub(crate) segments: Vec<(Key, SegmentRow)>,
    /// Segments whose rows are set aside: what belongs to them is not touched.
    pub(crate) segments_aside: HashSet<Key>,
    pub(crate) revoked: Vec<(PlanKey, Moment)>,
    pub(crate) memberships: Vec<(MediatorId, Membership)>,
    /// Mediators whose rows are set aside: nobody else joins as one of them, and nothing is written over these rows.
    pub(crate) memberships_aside: Vec<MembershipAside>,
    pub(crate) calibration: Option<Calibration>,
    /// The disk of its segments.
    pub(crate) disk: Option<DiskId>,
}

/// What changes together.
#[derive(Default)]
pub(crate) struct Batch {
    /// In this order.
    pub(crate) changes: Vec<Change>,
    /// Segments as they are now; none where there is none any more.
    pub(crate) segments: Vec<(Key, Option<SegmentRow>)>,
    /// Plans that are taken back until then; none of one whose tokens have ended.
    pub(crate) revoked: Vec<(PlanKey, Option<Moment>)>,
}

pub(crate) fn open(state: &Path) -> Result<Store, OpenError> {
    Store::open(state, NAME, STEPS)
}

/// Reads everything; draws the agent's id when it has none. A row that cannot be read is set aside: it
/// stays where it is, is named, and what it stands for is not served.
pub(crate) async fn load(store: &Store) -> Result<Records, StoreError> {
    store.write(draw_id).await?;
    store
        .read(|connection| {
            let agent: AgentId =
                meta(connection, "agent")?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
            let calibration = meta(connection, "calibration").unwrap_or_else(|error| {
                tracing::error!("the store's calibration is set aside; measure again: {error}");
                None
            });
            let disk = meta(connection, "disk")?;
            let allotments =
                rows(connection, "SELECT mediator, id, allotment FROM allotments", |row| {
                    json(&row.get::<_, String>(2)?)
                })?;
            let found = rows(connection, "SELECT mediator, segment, row FROM segments", |row| {
                let key = (MediatorId(row.get(0)?), SegmentId(row.get(1)?));
                let read = row.get::<_, String>(2).and_then(|text| json(&text));
                if let Err(error) = &read {
                    tell_aside("segments", (&key.0.to_string(), &key.1.to_string()), error);
                }
                Ok((key, read.ok()))
            })?;
            let (mut segments, mut segments_aside) = (Vec::new(), HashSet::new());
            for (key, row) in found {
                match row {
                    Some(row) => segments.push((key, row)),
                    None => drop(segments_aside.insert(key)),
                }
            }
            let (memberships, memberships_aside) = memberships(connection)?;
            let revoked = rows(connection, "SELECT mediator, plan, until FROM revoked", |row| {
                // Clamped: where no moment stands, what was taken back stays so.
                let until = u64::try_from(row.get::<_, i64>(2)?).unwrap_or(u64::MAX);
                Ok(((MediatorId(row.get(0)?), PlanId(row.get(1)?)), Moment(until)))
            })?;
            Ok(Records {
                agent,
                allotments,
                segments,
                segments_aside,
                revoked,
                memberships,
                memberships_aside,
                calibration,
                disk,
            })
        })
        .await
}

type Memberships = (Vec<(MediatorId, Membership)>, Vec<MembershipAside>);

fn memberships(connection: &Connection) -> rusqlite::Result<Memberships> {
    let sql = "SELECT mediator, mediator, membership FROM memberships";
    let found = rows(connection, sql, |row| {
        let text = Zeroizing::new(row.get::<_, String>(2)?);
        let mediator = MediatorId(row.get(0)?);
        match json(&text) {
            Ok(membership) => Ok(Ok((mediator, membership))),
            Err(error) => match MembershipAside::of(mediator, &text) {
                Some(aside) => {
                    let name = mediator.to_string();
                    tell_aside("memberships", (&name, &name), &error);
                    Ok(Err(aside))
                }
                None => Err(error),
            },
        }
    })?;
    let (mut usable, mut aside) = (Vec::new(), Vec::new());
    for membership in found {
        match membership {
            Ok(membership) => usable.push(membership),
            Err(membership) => aside.push(membership),
        }
    }
    Ok((usable, aside))
}

/// All rows of a table that can be read; `sql` selects a mediator and an id first, to name the others.
fn rows<T>(
    connection: &Connection,
    sql: &str,
    read: impl Fn(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    let mut query = connection.prepare(sql)?;
    let mut found = query.query([])?;
    let mut all = Vec::new();
    while let Some(row) = found.next()? {
        match read(row) {
            Ok(one) => all.push(one),
            Err(error) => {
                let name =
                    |at| row.get(at).map_or_else(|_| "?".to_owned(), |id| AgentId(id).to_string());
                let table = sql.rsplit(' ').next().unwrap_or_default();
                tell_aside(table, (&name(0), &name(1)), &error);
            }
        }
    }
    Ok(all)
}

fn tell_aside(table: &str, (mediator, id): (&str, &str), error: &rusqlite::Error) {
    tracing::error!(
        "the store's table {table}: the row {id} of mediator {mediator} is set aside: {error}"
    );
}

/// Stores a batch.
pub(crate) fn apply(connection: &Connection, batch: &Batch) -> rusqlite::Result<()> {
    let mut put =
        connection.prepare_cached("INSERT OR REPLACE INTO allotments VALUES (?, ?, ?)")?;
    let mut remove =
        connection.prepare_cached("DELETE FROM allotments WHERE mediator = ? AND id = ?")?;
    for change in &batch.changes {
        match change {
            Change::Put(entry) => {
                put.execute(params![entry.mediator.0, entry.id.0, text(entry)?])?;
            }
            Change::Remove { mediator, id } => {
                remove.execute(params![mediator.0, id.0])?;
            }
        }
    }
    let mut put = connection.prepare_cached("INSERT OR REPLACE INTO segments VALUES (?, ?, ?)")?;
    let mut remove =
        connection.prepare_cached("DELETE FROM segments WHERE mediator = ? AND segment = ?")?;
    for ((mediator, segment), row) in &batch.segments {
        match row {
            Some(row) => put.execute(params![mediator.0, segment.0, text(row)?])?,
            None => remove.execute(params![mediator.0, segment.0])?,
        };
    }
    let mut put = connection.prepare_cached("INSERT OR REPLACE INTO revoked VALUES (?, ?, ?)")?;
    let mut remove =
        connection.prepare_cached("DELETE FROM revoked WHERE mediator = ? AND plan = ?")?;
    for ((mediator, plan), until) in &batch.revoked {
        // Clamped: no clock reaches the end of what SQLite holds.
        match until.map(|until| i64::try_from(until.0).unwrap_or(i64::MAX)) {
            Some(until) => put.execute(params![mediator.0, plan.0, until])?,
            None => remove.execute(params![mediator.0, plan.0])?,
        };
    }
    Ok(())
}

/// Stores a membership, or that there is none any more.
pub(crate) async fn put_membership(
    store: &Store,
    mediator: MediatorId,
    membership: Option<Membership>,
) -> Result<(), StoreError> {
    store
        .write(move |connection| match &membership {
            Some(membership) => {
                let text = Zeroizing::new(text(membership)?);
                connection
                    .execute(
                        "INSERT OR REPLACE INTO memberships VALUES (?, ?)",
                        params![mediator.0, *text],
                    )
                    .map(drop)
            }
            None => connection
                .execute("DELETE FROM memberships WHERE mediator = ?", [mediator.0])
                .map(drop),
        })
        .await
}

/// Stores what was measured.
pub(crate) async fn put_calibration(
    store: &Store,
    calibration: Calibration,
) -> Result<(), StoreError> {
    store.write(move |connection| put_meta(connection, "calibration", &calibration)).await
}

/// Stores which disk has the segments.
pub(crate) async fn put_disk(store: &Store, disk: DiskId) -> Result<(), StoreError> {
    store.write(move |connection| put_meta(connection, "disk", &disk)).await
}

fn draw_id(connection: &Connection) -> rusqlite::Result<()> {
    match meta::<AgentId>(connection, "agent")? {
        Some(_) => Ok(()),
        None => put_meta(connection, "agent", &AgentId(rand::random())),
    }
}

fn meta<T: DeserializeOwned>(connection: &Connection, key: &str) -> rusqlite::Result<Option<T>> {
    let found = connection
        .query_row("SELECT value FROM meta WHERE key = ?", [key], |row| row.get::<_, String>(0))
        .optional()?;
    found.map(|text| json(&text)).transpose()
}

fn put_meta<T: Serialize>(connection: &Connection, key: &str, value: &T) -> rusqlite::Result<()> {
    let value = text(value)?;
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", params![key, value]).map(drop)
}

fn text<T: Serialize>(value: &T) -> rusqlite::Result<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

/// What serde says of wrong text could show a secret: only where it is wrong.
fn json<T: DeserializeOwned>(text: &str) -> rusqlite::Result<T> {
    serde_json::from_str(text).map_err(|error| {
        let place = format!("not as expected at column {}", error.column());
        rusqlite::Error::FromSqlConversionFailure(0, Type::Text, place.into())
    })
}

#[cfg(test)]
mod before;
