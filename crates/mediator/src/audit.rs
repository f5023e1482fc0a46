//! Who did what, and what came of it: every change, and every refusal for lack of a right. Holds no
//! secrets.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use netraid_cluster::{
    audit::{LogEntry, LogPage, ReadLog},
    mediator::PAGE_MAX,
    now,
    store::Store,
};
use rusqlite::params;

use crate::{
    lock,
    store::{Sql, int, moment, uint},
};

/// Refusals of unknown tokens in a second; more are counted only, so that a flood fills no disk.
const STRANGERS_MAX: u32 = 20;
/// Rows that are kept.
const ROWS_KEPT: i64 = 1_000_000;
/// Bytes of each text.
const TEXT_LEN_MAX: usize = 1024;

#[derive(Debug)]
struct Strangers {
    since: Instant,
    noted: u32,
    counted: u64,
}

/// The log.
#[derive(Debug)]
pub(crate) struct Audit {
    strangers: Mutex<Strangers>,
}

impl Default for Audit {
    fn default() -> Self {
        let strangers = Strangers { since: Instant::now(), noted: 0, counted: 0 };
        Self { strangers: Mutex::new(strangers) }
    }
}

impl Audit {
    /// Writes a line; nobody waits for it, and it is stored in order with the change that it tells of.
    pub(crate) fn note(&self, store: &Store, who: &str, role: &str, what: &str, outcome: &str) {
        let [who, what, outcome] = [who, what, outcome].map(cut);
        let role = role.to_owned();
        let at = int(now().0);
        let written = store.write(move |connection| {
            let sql =
                "INSERT INTO audit (at, who, role, what, outcome) VALUES (?1, ?2, ?3, ?4, ?5)";
            connection.prepare_cached(sql)?.execute(params![at, who, role, what, outcome])
        });
        drop(written);
    }

    /// Somebody without a token that is known.
    pub(crate) fn note_stranger(&self, store: &Store, what: &str) {
        let mut strangers = lock(&self.strangers);
        if strangers.since.elapsed() >= Duration::from_secs(1) {
            let counted = strangers.counted;
            *strangers = Strangers { since: Instant::now(), noted: 0, counted: 0 };
            if counted > 0 {
                let more = format!("{counted} more requests without a known token");
                self.note(store, "", "", &more, "refused");
            }
        }
        if strangers.noted < STRANGERS_MAX {
            strangers.noted += 1;
            self.note(store, "", "", what, "refused: no token, or one that is not known");
        } else {
            strangers.counted += 1;
        }
    }
}

/// The query of a page.
const PAGE: &str = "SELECT id, at, who, role, what, outcome FROM audit \
    WHERE id > ?1 AND at >= ?2 ORDER BY id LIMIT ?3";

/// A part of the log.
pub(crate) fn page(connection: &rusqlite::Connection, read: &ReadLog) -> Sql<LogPage> {
    let limit = read.limit.unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX);
    let since = read.since.map(int).unwrap_or(0);
    let after = match read.after {
        Some(after) => int(after),
        None => before(connection, since)?,
    };
    let mut query = connection.prepare_cached(PAGE)?;
    let entry = |row: &rusqlite::Row<'_>| {
        Ok(LogEntry {
            id: uint(row, 0)?,
            at: moment(row, 1)?,
            who: row.get(2)?,
            role: row.get(3)?,
            what: row.get(4)?,
            outcome: row.get(5)?,
        })
    };
    let entries: Vec<_> =
        query.query_map(params![after, since, limit], entry)?.collect::<Sql<_>>()?;
    let is_full = entries.len() >= limit as usize;
    let next = entries.last().map(|last| last.id).filter(|_| is_full);
    Ok(LogPage { entries, next })
}

/// A line before all that were written since a moment, found by halves: lines are in the order of time,
/// but where the clock was set back; there the page leaves out what is older.
fn before(connection: &rusqlite::Connection, since: i64) -> Sql<i64> {
    let sql = "SELECT coalesce(min(id), 0), coalesce(max(id), 0) FROM audit";
    let (mut low, mut high): (i64, i64) =
        connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut at =
        connection.prepare_cached("SELECT at FROM audit WHERE id >= ?1 ORDER BY id LIMIT 1")?;
    while low < high {
        let middle = low + (high - low) / 2;
        match at.query_row([middle], |row| row.get::<_, i64>(0))? < since {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    Ok(low.saturating_sub(1))
}

fn cut(text: &str) -> String {
    text.chars().take(TEXT_LEN_MAX).collect()
}

/// Removes the oldest lines beyond what is kept.
pub(crate) fn prune(connection: &rusqlite::Connection) -> Sql<usize> {
    let sql = "DELETE FROM audit WHERE id <= (SELECT max(id) FROM audit) - ?1";
    connection.prepare_cached(sql)?.execute([ROWS_KEPT])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::STEPS;

    #[test]
    fn pages_are_all_that_was_written_since_newest_last() {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        STEPS.iter().for_each(|step| connection.execute_batch(step).unwrap());
        let read = |since, after, limit| {
            page(&connection, &ReadLog { since, after, limit: Some(limit) }).unwrap()
        };
        assert_eq!(read(Some(7), None, 10), LogPage { entries: vec![], next: None });
        for at in 0..100_i64 {
            let sql =
                "INSERT INTO audit (at, who, role, what, outcome) VALUES (?1, 'a', 'b', 'c', 'd')";
            connection.execute(sql, [at * 10]).unwrap();
        }
        // The oldest went.
        connection.execute("DELETE FROM audit WHERE id <= 20", []).unwrap();
        for since in (0..1010).chain([u64::MAX]) {
            let (mut times, mut after) = (Vec::new(), None);
            loop {
                let page = read(Some(since), after, 30);
                times.extend(page.entries.iter().map(|entry| entry.at.0));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            let expected: Vec<u64> =
                (20..100).map(|at| at * 10).filter(|at| *at >= since).collect();
            assert_eq!(times, expected, "{since}");
        }
    }
}
