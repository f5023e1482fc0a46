//! A store as the program of version 1 of the documents left it: recorded from it, with SQLite's `.dump`.

use netraid_cluster::store::Store;

use super::*;

const BEFORE: &str = include_str!("../../tests/golden/agent.sql");

/// All that a store says: its version, its tables, their rows.
fn content(path: &Path) -> Vec<String> {
    let connection = Connection::open(path).unwrap();
    let texts = |sql: &str| -> Vec<String> {
        let mut query = connection.prepare(sql).unwrap();
        let rows = query.query_map([], |row| row.get(0)).unwrap();
        rows.collect::<rusqlite::Result<_>>().unwrap()
    };
    let mut all = texts("SELECT user_version || '' FROM pragma_user_version");
    all.extend(texts("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name"));
    for (table, key, value) in [
        ("meta", "key", "value"),
        ("allotments", "hex(mediator) || hex(id)", "allotment"),
        ("segments", "hex(mediator) || hex(segment)", "row"),
        ("memberships", "hex(mediator)", "membership"),
        ("revoked", "hex(mediator) || hex(plan)", "until"),
    ] {
        let line = format!("SELECT '{table} ' || {key} || ' ' || {value} FROM {table} ORDER BY 1");
        all.extend(texts(&line));
    }
    all
}

fn opened(directory: &Path) -> (Store, std::path::PathBuf, Vec<String>) {
    let path = directory.join("agent.sqlite");
    Connection::open(&path).unwrap().execute_batch(BEFORE).unwrap();
    let before = content(&path);
    (open(directory).unwrap(), path, before)
}

#[tokio::test]
async fn a_store_of_the_program_before_is_read_whole_and_written_as_that_program_reads_it() {
    let directory = tempfile::tempdir().unwrap();
    let (store, path, before) = opened(directory.path());
    let records = load(&store).await.unwrap();
    let of = |table: &str| before.iter().filter(|line| line.starts_with(table)).count();
    assert_eq!(records.allotments.len(), of("allotments "));
    assert_eq!(records.segments.len(), of("segments "));
    assert_eq!(records.memberships.len(), of("memberships "));
    assert_eq!(records.revoked.len(), of("revoked "));
    assert!(records.segments.len() > 1 && records.allotments.len() > 2, "{before:?}");

    // All of it is written again: nothing is another than it was, so the program before goes on with it.
    let changes = records.allotments.into_iter().map(Change::Put).collect();
    let segments = records.segments.into_iter().map(|(key, row)| (key, Some(row))).collect();
    let revoked = records.revoked.into_iter().map(|(key, until)| (key, Some(until))).collect();
    let batch = Batch { changes, segments, revoked };
    store.write(move |connection| apply(connection, &batch)).await.unwrap();
    for (mediator, membership) in records.memberships {
        put_membership(&store, mediator, Some(membership)).await.unwrap();
    }
    assert_eq!(content(&path), before);
}

#[tokio::test]
async fn a_segment_with_a_field_that_is_not_known_is_set_aside_and_one_whose_label_has_it_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let (store, path, _) = opened(directory.path());
    let all = load(&store).await.unwrap().segments.len();
    let later = Connection::open(&path).unwrap();
    let in_label = "UPDATE segments SET row = json_set(row, '$.label.later', 1)";
    assert_eq!(later.execute(in_label, []).unwrap(), all);
    let segments = load(&store).await.unwrap().segments;
    assert_eq!(segments.len(), all);
    assert!(segments.iter().all(|(_, row)| row.label.more["later"] == 1));
    let beside = "UPDATE segments SET row = json_set(row, '$.later', 1) \
                  WHERE segment = (SELECT min(segment) FROM segments)";
    assert_eq!(later.execute(beside, []).unwrap(), 1);
    let records = load(&store).await.unwrap();
    assert_eq!((records.segments.len(), records.segments_aside.len()), (all - 1, 1));
    assert!(records.segments.iter().all(|(key, _)| !records.segments_aside.contains(key)));
}

#[tokio::test]
async fn a_membership_of_a_later_program_is_set_aside_and_known_by_its_id_and_url() {
    let directory = tempfile::tempdir().unwrap();
    let (store, path, _) = opened(directory.path());
    let [(mediator, known), ..] = &load(&store).await.unwrap().memberships[..] else {
        panic!("no membership")
    };
    let later = Connection::open(&path).unwrap();
    let set = |value: &str| {
        let sql = format!("UPDATE memberships SET membership = {value} WHERE mediator = ?1");
        assert_eq!(later.execute(&sql, [mediator.0]).unwrap(), 1);
    };
    let aside = async || load(&store).await.unwrap().memberships_aside;
    set("json_set(membership, '$.later', 1)");
    let url = Some(known.url.clone());
    assert_eq!(aside().await, [MembershipAside { mediator: *mediator, url }]);
    set("json_set(membership, '$.url', json('[]'))");
    assert_eq!(aside().await, [MembershipAside { mediator: *mediator, url: None }]);
    // Of what no program wrote nothing can be lost.
    set("'{'");
    assert_eq!(aside().await, []);
}
