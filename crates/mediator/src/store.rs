//! What a mediator keeps: its tables, and how ids and documents stand in them.
//!
//! A change that rests on what is stored is one function from the store to itself: changes run one after
//! the other, so nothing comes between what it reads and what it writes.

use netraid_cluster::{
    Code, Problem,
    store::{Store, StoreError},
};
use netraid_control::units::Moment;
use rusqlite::{
    Connection, Params, Row, Statement,
    types::{Type, ValueRef},
};
use serde::{Serialize, de::DeserializeOwned};

/// Of SQLite.
pub(crate) type Sql<T> = rusqlite::Result<T>;

/// Name of the store in its directory.
pub(crate) const NAME: &str = "mediator";

/// From each version of the store to the next.
pub(crate) const STEPS: &[&str] = &[
    "
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
-- One row a name; all that a page of a directory says. A pending one is being made.
CREATE TABLE names (
    parent BLOB NOT NULL, name TEXT NOT NULL, id BLOB NOT NULL UNIQUE, kind TEXT NOT NULL,
    capacity INTEGER NOT NULL, length INTEGER NOT NULL, made INTEGER NOT NULL,
    changed INTEGER NOT NULL, is_pending INTEGER NOT NULL,
    PRIMARY KEY (parent, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE volumes (
    id BLOB PRIMARY KEY, state TEXT NOT NULL, lease TEXT NOT NULL, is_raised INTEGER NOT NULL,
    quiet_at INTEGER NOT NULL, record TEXT NOT NULL
) STRICT;
CREATE INDEX volumes_unfinished ON volumes (state, id) WHERE state <> 'ready';
CREATE INDEX volumes_unraised ON volumes (id) WHERE is_raised = 0;
-- Whatever may be on an agent. A spare one is to take a lost member's place; one that is gone is
-- to be removed.
CREATE TABLE segments (
    segment BLOB PRIMARY KEY, agent BLOB NOT NULL, volume BLOB NOT NULL,
    state TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX segments_of_agent ON segments (agent, segment);
CREATE INDEX segments_of_volume ON segments (volume);
CREATE INDEX segments_unsettled ON segments (state, agent) WHERE state <> 'live';
CREATE TABLE bookings (
    id BLOB PRIMARY KEY, record TEXT NOT NULL, work TEXT NOT NULL
) STRICT;
CREATE TABLE plans (
    id BLOB PRIMARY KEY, volume BLOB NOT NULL, owner INTEGER NOT NULL, until INTEGER NOT NULL,
    state TEXT NOT NULL, record TEXT NOT NULL
) STRICT;
CREATE INDEX plans_of_volume ON plans (volume);
CREATE INDEX plans_by_end ON plans (state, until);
CREATE TABLE agents (
    id BLOB PRIMARY KEY, status TEXT NOT NULL, token TEXT NOT NULL, authority TEXT,
    state TEXT NOT NULL, has_beaten INTEGER NOT NULL
) STRICT;
CREATE TABLE access (
    id INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB NOT NULL UNIQUE, role TEXT NOT NULL,
    name TEXT NOT NULL, made INTEGER NOT NULL, until INTEGER, agent BLOB
) STRICT;
CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, who TEXT NOT NULL,
    role TEXT NOT NULL, what TEXT NOT NULL, outcome TEXT NOT NULL
) STRICT;
",
    "
-- Until when whoever was shut out may go on stands in the lease, with what clocks may be apart.
UPDATE volumes SET lease = json_set(lease, '$.quiet_at', quiet_at + 10000);
ALTER TABLE volumes DROP COLUMN quiet_at;
",
    "
-- How the last writer left it; none while somebody may write, and when nobody said so.
ALTER TABLE volumes ADD COLUMN closed TEXT;
",
    "
-- Plans that are over are kept until their tokens are, for when the bearer token is taken back.
CREATE INDEX plans_of_owner ON plans (owner, state);
",
];

/// A number as it stands in a table.
pub(crate) fn int(number: u64) -> i64 {
    // Clamped: no clock, length or count reaches the end of what SQLite holds, and no row that a user may name stands
    // there.
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number from a table, in which none is negative.
pub(crate) fn uint(row: &Row<'_>, column: usize) -> Sql<u64> {
    unsigned(column, row.get(column)?)
}

/// What a table has in this column, where it is not negative.
pub(crate) fn unsigned(column: usize, number: i64) -> Sql<u64> {
    u64::try_from(number).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, number))
}

/// A change that is made to what was found, in the same transaction, changes that one row: else what an answer says
/// would be lost. A damaged store may find by one index what another one does not know.
pub(crate) fn one(changed: usize) -> Sql<()> {
    match changed {
        1 => Ok(()),
        _ => Err(rusqlite::Error::StatementChangedRows(changed)),
    }
}

/// A moment from a table.
pub(crate) fn moment(row: &Row<'_>, column: usize) -> Sql<Moment> {
    uint(row, column).map(Moment)
}

/// A document as it stands in a table.
pub(crate) fn encode<T: Serialize>(value: &T) -> Sql<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

/// A document from a table. Says where it is wrong, and not what stands there: that may be secret.
pub(crate) fn decode<T: DeserializeOwned>(text: &str) -> Sql<T> {
    serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let why = format!("a stored document is wrong at line {line}, column {column}");
        rusqlite::Error::FromSqlConversionFailure(0, Type::Text, why.into())
    })
}

/// A row that this program cannot read: it stays where it is, and what it stands for is not done.
#[derive(Debug, thiserror::Error)]
#[error(
    "the row {row} of the mediator's store (table {table}) is set aside, as this mediator (netraid {}) cannot read \
     it ({why}): start the program that wrote the row or a later one, or mend the row",
    env!("CARGO_PKG_VERSION")
)]
struct Aside {
    table: &'static str,
    row: String,
    why: String,
}

/// The error of who needs a row that cannot be read: names the row, and says what to do.
pub(crate) fn aside(
    table: &'static str,
    row: impl std::fmt::Display,
    error: rusqlite::Error,
) -> rusqlite::Error {
    let why = if let rusqlite::Error::FromSqlConversionFailure(_, _, why) = &error {
        why.to_string()
    } else {
        error.to_string()
    };
    let aside = Aside { table, row: row.to_string(), why };
    rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(aside))
}

/// What was found, or why it is set aside; for who goes on without it.
pub(crate) fn or_aside<T>(found: Sql<T>) -> Sql<Result<T, String>> {
    match found {
        Ok(found) => Ok(Ok(found)),
        Err(rusqlite::Error::FromSqlConversionFailure(_, _, why)) if why.is::<Aside>() => {
            Ok(Err(why.to_string()))
        }
        Err(error) => Err(error),
    }
}

/// The document that means one of a table's words, as serde writes it.
pub(crate) fn word<T: Serialize>(value: &T) -> Sql<String> {
    Ok(encode(value)?.trim_matches('"').to_owned())
}

/// What a table's word means.
pub(crate) fn from_word<T: DeserializeOwned>(text: &str) -> Sql<T> {
    decode(&format!("\"{text}\""))
}

/// All rows that can be read, and how many cannot. One that cannot is set aside, and named by its first column: it
/// stays where it is, and what it stands for is not done.
pub(crate) fn usable<T>(
    query: &mut Statement<'_>,
    values: impl Params,
    table: &str,
    read: impl Fn(&Row<'_>) -> Sql<T>,
) -> Sql<(Vec<T>, usize)> {
    let mut rows = query.query(values)?;
    let (mut all, mut aside) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        match read(row) {
            Ok(one) => all.push(one),
            Err(error) => {
                let name = match row.get_ref(0)? {
                    ValueRef::Blob(id) => id.iter().map(|byte| format!("{byte:02x}")).collect(),
                    ValueRef::Integer(id) => id.to_string(),
                    ValueRef::Null | ValueRef::Real(_) | ValueRef::Text(_) => "?".to_owned(),
                };
                tracing::error!("the store's table {table}: row {name} is set aside: {error}");
                aside += 1;
            }
        }
    }
    Ok((all, aside))
}

/// Changes the store, or refuses and changes nothing: `change` refuses before its first change.
pub(crate) async fn change<T: Send + 'static>(
    store: &Store,
    change: impl FnOnce(&Connection) -> Sql<Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    store.write(change).await.map_err(not_stored)?
}

/// Reads the store, or refuses.
pub(crate) async fn look<T: Send + 'static>(
    store: &Store,
    query: impl FnOnce(&Connection) -> Sql<Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    store.read(query).await.map_err(not_stored)?
}

/// What a client is told when the store fails.
pub(crate) fn not_stored(error: StoreError) -> Problem {
    tracing::error!("store: {error}");
    match error {
        StoreError::Failed(_) => refusal(false),
        StoreError::Full(_) => refusal(true),
        // Asking again is in vain.
        StoreError::Unreadable(why) => Problem::new(Code::Conflict, why),
        StoreError::Broken(_) => Problem::internal("the mediator's store is broken"),
    }
}

/// What a client is told when something was not stored, and whether that was for want of space.
pub(crate) fn refusal(is_full: bool) -> Problem {
    let detail = match is_full {
        true => {
            "not stored: the mediator's store has no space left on its disk; make room there, and ask again"
        }
        false => "not stored; ask again",
    };
    Problem::new(Code::Unavailable, detail)
}

/// What stands under a key of the table of odds and ends.
pub(crate) fn meta(connection: &Connection, key: &str) -> Sql<Option<String>> {
    use rusqlite::OptionalExtension as _;
    let mut query = connection.prepare_cached("SELECT value FROM meta WHERE key = ?1")?;
    query.query_row([key], |row| row.get(0)).optional()
}

/// Puts something there.
pub(crate) fn set_meta(connection: &Connection, key: &str, value: &str) -> Sql<()> {
    let sql = "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2";
    connection.prepare_cached(sql)?.execute([key, value]).map(drop)
}

#[cfg(test)]
mod before;
#[cfg(test)]
mod tests {
    use netraid_control::lease::LeaseState;

    use super::*;

    #[test]
    fn an_older_stores_volumes_and_plans_are_read() {
        let volume = r#"{"version":1,"kind":"data","layout":{},"placed":null,"is_formatted":true}"#;
        let volume: crate::volume::Record = decode(volume).unwrap();
        assert_eq!((volume.is_formatted, volume.upload_bytes), (true, None));
        assert!(!encode(&volume).unwrap().contains("upload"));
        let plan = r#"{"version":1,"mode":"write","initiator":"i","rate":0,"limit":null,
            "request_bytes":4096,"degraded":true,"for_ms":600000,"parts":[],"agents":[]}"#;
        let plan: crate::plan::Record = decode(plan).unwrap();
        assert!(!plan.is_revoked && !encode(&plan).unwrap().contains("revoked"));
    }

    #[test]
    fn an_older_store_goes_on_with_the_leases_that_it_had() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(STEPS[0]).unwrap();
        let lease = r#"{"generation":7,"is_raised":false,"held":"nobody"}"#;
        let insert = "INSERT INTO volumes VALUES (x'01', 'ready', ?1, 0, 5000, '{}')";
        connection.execute(insert, [lease]).unwrap();
        STEPS[1..].iter().for_each(|step| connection.execute_batch(step).unwrap());
        let read = |row: &rusqlite::Row<'_>| row.get::<_, String>(0);
        let lease = connection.query_row("SELECT lease FROM volumes", [], read).unwrap();
        let lease: LeaseState = decode(&lease).unwrap();
        assert_eq!((lease.generation().0, lease.quiet_at()), (7, Moment(15_000)));
    }
}
