//! A store as the program of version 1 of the documents left it, with everything under way: recorded from it, with
//! SQLite's `.dump`.

use netraid_cluster::agent::AgentStatus;
use netraid_control::{booking, lease::LeaseState};

use super::*;
use crate::{book::Work, plan, volume};

const BEFORE: &str = include_str!("../../tests/golden/mediator.sql");

/// Reads all documents of a column, and writes them again.
fn come_back<T: Serialize + DeserializeOwned>(connection: &Connection, table: &str, column: &str) {
    let sql = format!("SELECT {column} FROM {table} WHERE {column} IS NOT NULL");
    let mut query = connection.prepare(&sql).unwrap();
    let texts = query.query_map([], |row| row.get(0)).unwrap();
    let texts: Vec<String> = texts.collect::<Sql<_>>().unwrap();
    assert!(!texts.is_empty(), "no {column} of {table}");
    for text in texts {
        let again = encode(&decode::<T>(&text).unwrap()).unwrap();
        assert_eq!(again, text, "{table}");
    }
}

#[test]
fn what_the_program_before_stored_is_read_and_written_as_it_was() {
    let connection = Connection::open_in_memory().unwrap();
    connection.execute_batch(BEFORE).unwrap();
    come_back::<LeaseState>(&connection, "volumes", "lease");
    come_back::<volume::Record>(&connection, "volumes", "record");
    come_back::<volume::Closed>(&connection, "volumes", "closed");
    come_back::<plan::Record>(&connection, "plans", "record");
    come_back::<AgentStatus>(&connection, "agents", "status");
    // As a mediator that was killed leaves it.
    let (record, work) = (
        r#"{"id":"01010101010101010101010101010101","decision":"commit","parts":[{"agent":"02020202020202020202020202020202","allotment":"03030303030303030303030303030303","serial":7,"lease_ms":null}]}"#,
        r#"{"again":{"plan":"04040404040404040404040404040404","parts":[{"agent":"02020202020202020202020202020202","segment":"03030303030303030303030303030303","resources":{"space_bytes":0,"device":1,"network":2}}]}}"#,
    );
    let insert = "INSERT INTO bookings VALUES (x'01', ?1, ?2)";
    connection.execute(insert, [record, work]).unwrap();
    come_back::<booking::Record>(&connection, "bookings", "record");
    come_back::<Work>(&connection, "bookings", "work");
}

#[test]
fn the_store_is_of_the_version_that_the_program_before_opens() {
    let before = Connection::open_in_memory().unwrap();
    before.execute_batch(BEFORE).unwrap();
    let now = Connection::open_in_memory().unwrap();
    STEPS.iter().for_each(|step| now.execute_batch(step).unwrap());
    let schema = |connection: &Connection| -> Vec<String> {
        let sql = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY name";
        let mut query = connection.prepare(sql).unwrap();
        let rows = query.query_map([], |row| row.get(0)).unwrap();
        rows.collect::<Sql<_>>().unwrap()
    };
    assert_eq!(schema(&before), schema(&now));
    let version: u32 = before.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(version as usize, STEPS.len());
}

#[test]
fn a_record_that_could_mean_more_than_is_known_is_not_used_and_an_agents_report_is() {
    fn with_more<T: DeserializeOwned>(connection: &Connection, table: &str, column: &str) -> bool {
        let sql = format!(
            "SELECT json_set({column}, '$.later', 1) FROM {table} WHERE {column} IS NOT NULL"
        );
        let text: String = connection.query_row(&sql, [], |row| row.get(0)).unwrap();
        decode::<T>(&text).is_ok()
    }
    let connection = Connection::open_in_memory().unwrap();
    connection.execute_batch(BEFORE).unwrap();
    assert!(!with_more::<LeaseState>(&connection, "volumes", "lease"));
    assert!(!with_more::<volume::Record>(&connection, "volumes", "record"));
    assert!(!with_more::<volume::Closed>(&connection, "volumes", "closed"));
    assert!(!with_more::<plan::Record>(&connection, "plans", "record"));
    assert!(with_more::<AgentStatus>(&connection, "agents", "status"));
}
