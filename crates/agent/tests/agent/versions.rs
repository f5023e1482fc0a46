//! What an agent keeps of labels, hands out to a mediator of another version, and refuses of documents that say more
//! than it knows.

use std::collections::BTreeMap;

use netraid_agent::{AgentConfig, Medium};
use netraid_cluster::{
    access::AccessFile,
    agent::{
        Answer, Done, FaultCode, Label, LedgerPage, MORE_LEN_MAX, NewSegment, Opaque, Operation,
        SEALED_PATH_LEN_MAX, SegmentPage, WRAPPED_KEY_LEN_MAX, space_of,
    },
    http::Client,
};
use netraid_control::{
    ledger::Commit,
    units::{Generation, PlanId, SegmentId},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::support::{AgentClient, MIB, Mediator, Running, config, create, file_of, label, space};

const SEGMENT: SegmentId = SegmentId([5; 16]);

/// All that a label can say, and as long as it can be.
fn longest() -> Label {
    Label {
        path: String::new(),
        member: u16::MAX,
        members: u16::MAX,
        chunk_len: u32::MAX,
        capacity_bytes: u64::MAX,
        length_bytes: u64::MAX,
        generation: Generation(u64::MAX),
        share: Some(u32::MAX),
        wrapped_key: Some(Opaque(vec![0x5a; WRAPPED_KEY_LEN_MAX])),
        sealed_path: Some(Opaque(vec![0xa5; SEALED_PATH_LEN_MAX])),
        more: BTreeMap::from([("a".to_owned(), json!("x".repeat(MORE_LEN_MAX - 8)))]),
        ..label("")
    }
}

async fn make(client: &AgentClient, label: Label) {
    let held = client.hold(space(SEGMENT, MIB)).await.unwrap();
    let commit = Commit { id: held.id, serial: held.serial, for_ms: None };
    client.one(Operation::Commit(commit)).await.unwrap();
    let new = NewSegment { segment: SEGMENT, len_bytes: MIB, label };
    client.one(Operation::CreateSegment(new)).await.unwrap();
}

async fn kept(client: &AgentClient) -> Label {
    let page = client.segments().await;
    assert!(!page.entries[0].is_lost);
    page.entries[0].label.clone()
}

/// Asks as a program that says these headers: status and body of the answer.
async fn raw(url: &str, line: &str, headers: &str, body: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).await.unwrap();
    let len = body.len();
    let request = format!(
        "{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {len}\r\n{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap())
}

/// The owner's way to a running agent.
fn owner(config: &AgentConfig, directory: &std::path::Path) -> AccessFile {
    let state = config.state.clone().unwrap_or(directory.join("state"));
    AccessFile::read(&state.join("owner.access")).unwrap()
}

/// An agent of a disk, which is made if there is none.
fn on_disk(directory: &std::path::Path, mediator: &Mediator) -> AgentConfig {
    let path = directory.join("disk");
    if !path.exists() {
        std::fs::File::create(&path).unwrap().set_len(256 * MIB).unwrap();
    }
    AgentConfig {
        medium: Medium::Disk { path, force: false },
        state: Some(directory.join("state")),
        space_bytes: None,
        ..config(directory, &[mediator])
    }
}

/// Changes the row of the only segment, as a later program would while the agent is stopped.
fn change_row(directory: &std::path::Path, change: &str, value: &str) {
    let store = rusqlite::Connection::open(directory.join("state/agent.sqlite")).unwrap();
    let changed = store.execute(&format!("UPDATE segments SET row = {change}"), [value]);
    assert_eq!(changed.unwrap(), 1);
}

fn begins(path: &std::path::Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap()[..8 << 20]).into_owned()
}

async fn keeps_the_longest_label(config: impl Fn(&Mediator) -> AgentConfig) {
    let mediator = Mediator::start().await;
    let agent = Running::start(config(&mediator));
    make(&mediator.at(&agent.ready), longest()).await;
    assert_eq!(kept(&mediator.at(&agent.ready)).await, longest());
    drop(agent);
    let agent = Running::start(config(&mediator));
    let client = mediator.at(&agent.ready);
    assert_eq!(kept(&client).await, longest());
    // Asked again, and relabelled, by who does not know what else is in it.
    let plain = Label { generation: Generation(8), ..label("") };
    client.one(Operation::SetLabel { segment: SEGMENT, label: plain.clone() }).await.unwrap();
    let new = NewSegment { segment: SEGMENT, len_bytes: MIB, label: plain.clone() };
    client.one(Operation::CreateSegment(new)).await.unwrap();
    drop(agent);
    let agent = Running::start(config(&mediator));
    let found = kept(&mediator.at(&agent.ready)).await;
    assert_eq!(found, plain.keeping(&longest()));
    assert_eq!((found.share, &found.more), (Some(u32::MAX), &longest().more));
}

#[tokio::test]
async fn the_longest_label_is_kept_in_a_directory_and_stands_beside_the_segment() {
    let directory = tempfile::tempdir().unwrap();
    keeps_the_longest_label(|mediator| config(directory.path(), &[mediator])).await;
    let root = std::fs::read_dir(directory.path().join("segments")).unwrap().next().unwrap();
    let beside = root.unwrap().path().join(SEGMENT.to_string()).with_extension("label");
    let beside: Value = serde_json::from_slice(&std::fs::read(beside).unwrap()).unwrap();
    assert_eq!(beside["label"]["wrapped_key"].as_str().unwrap().len(), 683);
    assert_eq!(beside["label"]["share"], u32::MAX);
}

#[tokio::test]
async fn the_longest_label_fits_into_the_table_of_a_disk() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    keeps_the_longest_label(|mediator| on_disk(directory.path(), mediator)).await;
    let raw = std::fs::read(&path).unwrap();
    let text = String::from_utf8_lossy(&raw[..8 << 20]).into_owned();
    let key = serde_json::to_string(&longest().wrapped_key).unwrap();
    assert!(text.contains(&format!("\"wrapped_key\":{key}")), "the key is on the disk, uncut");
}

#[tokio::test]
async fn a_long_path_in_clear_is_cut_beside_the_longest_rest() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let mediator = Mediator::start().await;
    let agent = Running::start(on_disk(directory.path(), &mediator));
    // Each of these characters has six bytes in JSON.
    let long = Label { path: "\u{1}".repeat(4096), sealed_path: None, ..longest() };
    make(&mediator.at(&agent.ready), long.clone()).await;
    assert_eq!(kept(&mediator.at(&agent.ready)).await, long);
    let raw = std::fs::read(&path).unwrap();
    let text = String::from_utf8_lossy(&raw[..8 << 20]).into_owned();
    let cut = format!("\"path\":\"{}\"", "\\u0001".repeat(200));
    assert!(text.contains(&cut), "its path is cut");
    assert!(text.contains("\"wrapped_key\""), "and all else is there");
}

#[tokio::test]
async fn a_mediator_of_the_version_before_is_told_what_it_knows_of_labels() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let agent = Running::start(config(directory.path(), &[&mediator]));
    let client = mediator.at(&agent.ready);
    make(&client, longest()).await;
    let token = mediator.token_at(&agent.ready);
    let get = async |said: &str| {
        let headers = format!("Authorization: Bearer {}\r\n{said}", token.expose());
        raw(&agent.ready.api, "GET /v1/segments", &headers, "").await
    };
    for said in ["", "netraid-documents: 1\r\n"] {
        let (status, page) = get(said).await;
        assert_eq!(status, 200, "{page}");
        let label = page["entries"][0]["label"].as_object().unwrap();
        let names: Vec<&str> = label.keys().map(String::as_str).collect();
        let known = [
            "capacity_bytes",
            "chunk_len",
            "generation",
            "kind",
            "length_bytes",
            "level",
            "logged",
            "member",
            "members",
            "path",
            "version",
            "volume",
        ];
        assert_eq!(names, known, "{said}");
    }
    for said in ["netraid-documents: 2\r\n", "netraid-documents: 99\r\n"] {
        let (_, page) = get(said).await;
        let page: SegmentPage = serde_json::from_value(page).unwrap();
        assert_eq!(page.entries[0].label, longest(), "{said}");
    }
    let (status, refused) = get("netraid-documents: zwei\r\n").await;
    assert_eq!((status, &refused["code"]), (400, &json!("invalid")));
}

#[tokio::test]
async fn an_operation_with_a_field_that_is_not_known_is_refused_by_its_name_and_nothing_is_done() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let agent = Running::start(config(directory.path(), &[&mediator]));
    let client = mediator.at(&agent.ready);
    make(&client, label("/a")).await;
    let with = |operation: &Operation, name: &str| {
        let mut operation = serde_json::to_value(operation).unwrap();
        let inner = operation.as_object_mut().unwrap().values_mut().next().unwrap();
        inner[name] = json!("secret");
        operation
    };
    let held = Operation::Hold(space(SegmentId([6; 16]), MIB));
    let removal = Operation::RemoveSegment { segment: SEGMENT };
    for operation in
        [with(&held, "only_if"), with(&removal, "only_if"), with(&create(SEGMENT, MIB), "only_if")]
    {
        let mut answers: Vec<Answer> =
            client.client.post("/v1/operations", &[&operation]).await.unwrap();
        let fault = answers.remove(0).unwrap_err();
        assert_eq!(fault.code, FaultCode::Invalid);
        let told = fault.to_string();
        for part in ["'only_if'", "this agent", "documents of version 3", "upgrade the agent"] {
            assert!(told.contains(part), "{operation}: {told}");
        }
        assert!(!told.contains("secret"), "{told}");
    }
    assert_eq!(client.ledger().await.len(), 1);
    assert_eq!(client.segments().await.entries.len(), 1);
}

#[tokio::test]
async fn a_label_beside_a_segment_that_says_more_does_not_keep_the_segment_from_being_served() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let start = || Running::start(config(directory.path(), &[&mediator]));
    let agent = start();
    make(&mediator.at(&agent.ready), label("/a")).await;
    drop(agent);
    let path = file_of(directory.path(), &mediator, SEGMENT).with_extension("label");
    let text = std::fs::read_to_string(&path).unwrap();
    let later = text.replacen("\"version\": 1", "\"version\": 1, \"later\": {\"x\": 1}", 2);
    assert_eq!(later.matches("later").count(), 2);
    std::fs::write(&path, later).unwrap();
    let agent = start();
    assert_eq!(kept(&mediator.at(&agent.ready)).await, label("/a"));
}

#[tokio::test]
async fn an_agent_shows_which_version_it_speaks_with_its_mediator() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let config = config(directory.path(), &[&mediator]);
    let agent = Running::start(config.clone());
    mediator.two_beats().await;
    let access = owner(&config, directory.path());
    let client = Client::with_access(&access, std::time::Duration::from_secs(10)).unwrap();
    let local: netraid_agent::agent::LocalStatus = client.get("/v1/local").await.unwrap();
    assert_eq!(local.memberships[0].documents, Some(3));
    // A program of the version before would not read it.
    let headers = format!("Authorization: Bearer {}\r\n", access.token.expose());
    let (_, local) = raw(&agent.ready.api, "GET /v1/local", &headers, "").await;
    assert!(local["memberships"][0].get("documents").is_none(), "{local}");
    assert_eq!(local["memberships"][0]["is_heard"], true);
}

#[tokio::test]
async fn an_operation_that_is_not_understood_keeps_no_others_from_being_done() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let agent = Running::start(config(directory.path(), &[&mediator]));
    let client = mediator.at(&agent.ready);
    let hold = |at| serde_json::to_value(Operation::Hold(space(SegmentId([at; 16]), MIB))).unwrap();
    let mut fenced = hold(2);
    fenced["hold"]["only_if"] = json!("secret");
    let asked = json!([hold(1), fenced, { "later": {} }, hold(3)]);
    let answers: Vec<Answer> = client.client.post("/v1/operations", &asked).await.unwrap();
    for at in [0, 3] {
        assert!(matches!(answers[at], Ok(Done::Booked(_))), "{answers:?}");
    }
    for (at, part) in [(1, "'only_if'"), (2, "part 3 of 4")] {
        let fault = answers[at].as_ref().unwrap_err();
        assert_eq!(fault.code, FaultCode::Invalid);
        assert!(fault.detail.contains(part) && !fault.detail.contains("secret"), "{fault}");
    }
    let booked: Vec<_> = client.ledger().await.iter().map(|entry| entry.segment).collect();
    assert_eq!(booked, [SegmentId([1; 16]), SegmentId([3; 16])]);
}

#[tokio::test]
async fn a_page_with_a_filter_that_is_not_known_is_refused_instead_of_answered_with_more() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let agent = Running::start(config(directory.path(), &[&mediator]));
    let client = mediator.at(&agent.ready).client;
    for path in ["/v1/ledger?only=x", "/v1/segments?only=x&limit=3"] {
        let told = client.get::<Value>(path).await.unwrap_err().to_string();
        assert!(told.contains("'only'") && told.contains("this agent"), "{path}: {told}");
    }
    let _: LedgerPage = client.get("/v1/ledger?limit=3").await.unwrap();
}

#[tokio::test]
async fn a_label_beyond_the_limits_of_this_program_does_not_keep_an_agent_of_a_disk_from_starting()
{
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let start = || Running::start(on_disk(directory.path(), &mediator));
    let agent = start();
    let label = Label { more: BTreeMap::new(), ..longest() };
    make(&mediator.at(&agent.ready), label.clone()).await;
    drop(agent);
    let later = "x".repeat(3 << 10);
    change_row(directory.path(), "json_set(row, '$.label.later', ?1)", &later);
    let agent = start();
    let client = mediator.at(&agent.ready);
    let found = kept(&client).await;
    assert_eq!(found.more["later"], json!(later));
    let text = begins(&directory.path().join("disk"));
    assert!(text.contains("\"wrapped_key\"") && !text.contains("xxxx"), "what fits is on the disk");
    // It can be relabelled, and stays as it is but for that.
    let next = Label { generation: Generation(8), ..label };
    client.one(Operation::SetLabel { segment: SEGMENT, label: next.clone() }).await.unwrap();
    assert_eq!(kept(&client).await, next.keeping(&found));
    drop(agent);

    // Nor does one that cannot be cut: the disk keeps the one that it had.
    change_row(directory.path(), "json_set(row, '$.label.wrapped_key', ?1)", &"A".repeat(4 << 10));
    let agent = start();
    let client = mediator.at(&agent.ready);
    assert_eq!(kept(&client).await.wrapped_key, Some(Opaque(vec![0; 3 << 10])));
    let relabelled = Operation::SetLabel { segment: SEGMENT, label: crate::support::label("/b") };
    let told = client.one(relabelled).await.unwrap_err().detail;
    assert!(told.contains("3968 at most"), "{told}");
}

#[tokio::test]
async fn a_label_that_is_too_long_for_a_disks_table_loses_its_path_before_what_is_not_known() {
    let directory = tempfile::tempdir().unwrap();
    let mediator = Mediator::start().await;
    let start = || Running::start(on_disk(directory.path(), &mediator));
    let agent = start();
    // Of a cut path 200 characters are left, of four bytes each.
    let path = "\u{10348}".repeat(300);
    let label = Label { path, sealed_path: None, more: BTreeMap::new(), ..longest() };
    make(&mediator.at(&agent.ready), label).await;
    drop(agent);
    change_row(directory.path(), "json_set(row, '$.label.later', ?1)", &"x".repeat(2400));
    let agent = start();
    assert_eq!(kept(&mediator.at(&agent.ready)).await.more["later"], json!("x".repeat(2400)));
    assert!(begins(&directory.path().join("disk")).contains("xxxx"));
}

async fn spares_a_segment_whose_row_is_set_aside(
    directory: &std::path::Path,
    config: impl Fn(&Mediator) -> AgentConfig,
    look: impl Fn(&Mediator),
) {
    let mediator = Mediator::start().await;
    let start = || Running::start(config(&mediator));
    let agent = start();
    let client = mediator.at(&agent.ready);
    make(&client, label("/a")).await;
    // From now on it is not made again where it is missing.
    let raise = Operation::RaiseGeneration {
        segment: SEGMENT,
        generation: Generation(1),
        taken_by: PlanId([1; 16]),
    };
    client.one(raise.clone()).await.unwrap();
    drop(agent);
    change_row(directory, "json_set(row, '$.later', ?1)", "x");
    let agent = start();
    look(&mediator);
    let client = mediator.at(&agent.ready);
    assert!(client.segments().await.entries.is_empty());
    for operation in [
        create(SEGMENT, MIB),
        Operation::SetLabel { segment: SEGMENT, label: label("/b") },
        raise,
        Operation::Release { id: space_of(SEGMENT) },
        Operation::RemoveSegment { segment: SEGMENT },
    ] {
        let fault = client.one(operation.clone()).await.unwrap_err();
        assert_eq!(fault.code, FaultCode::Conflict, "{operation:?}: {fault}");
        for part in [SEGMENT.to_string(), "table segments".to_owned(), mediator.id.to_string()] {
            assert!(fault.detail.contains(&part), "{operation:?}: {fault}");
        }
    }
    assert_eq!(client.ledger().await.len(), 1);
    drop(agent);
    look(&mediator);
    change_row(directory, "json_remove(row, ?1)", "$.later");
    let agent = start();
    assert_eq!(kept(&mediator.at(&agent.ready)).await, label("/a"));
}

#[tokio::test]
async fn a_segment_whose_row_is_set_aside_is_spared_in_a_directory_and_serves_once_it_is_mended() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let look = |mediator: &Mediator| {
        let file = file_of(root, mediator, SEGMENT);
        assert!(file.exists() && file.with_extension("label").exists());
    };
    let config = |mediator: &Mediator| config(root, &[mediator]);
    spares_a_segment_whose_row_is_set_aside(root, config, look).await;
}

#[tokio::test]
async fn a_segment_whose_row_is_set_aside_is_spared_on_a_disk_and_serves_once_it_is_mended() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let look = |_: &Mediator| assert!(begins(&root.join("disk")).contains("\"path\":\"/a\""));
    spares_a_segment_whose_row_is_set_aside(root, |mediator| on_disk(root, mediator), look).await;
}
