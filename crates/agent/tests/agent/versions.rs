//! What an agent keeps of labels, hands out to a mediator of another version, and refuses of documents that say more
//! than it knows.

use std::collections::BTreeMap;

use netraid_agent::{AgentConfig, Medium};
use netraid_cluster::{
    access::AccessFile,
    agent::{
        Label, MORE_LEN_MAX, NewSegment, Opaque, Operation, SEALED_PATH_LEN_MAX, SegmentPage,
        WRAPPED_KEY_LEN_MAX,
    },
    http::Client,
};
use netraid_control::{
    ledger::Commit,
    units::{Generation, SegmentId},
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
    std::fs::File::create(&path).unwrap().set_len(256 * MIB).unwrap();
    keeps_the_longest_label(|mediator| AgentConfig {
        medium: Medium::Disk { path: path.clone(), force: false },
        state: Some(directory.path().join("state")),
        space_bytes: None,
        ..config(directory.path(), &[mediator])
    })
    .await;
    let raw = std::fs::read(&path).unwrap();
    let text = String::from_utf8_lossy(&raw[..8 << 20]).into_owned();
    let key = serde_json::to_string(&longest().wrapped_key).unwrap();
    assert!(text.contains(&format!("\"wrapped_key\":{key}")), "the key is on the disk, uncut");
}

#[tokio::test]
async fn a_long_path_in_clear_is_cut_beside_the_longest_rest() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    std::fs::File::create(&path).unwrap().set_len(256 * MIB).unwrap();
    let mediator = Mediator::start().await;
    let agent = Running::start(AgentConfig {
        medium: Medium::Disk { path: path.clone(), force: false },
        state: Some(directory.path().join("state")),
        space_bytes: None,
        ..config(directory.path(), &[&mediator])
    });
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
        let asked = client.client.post::<_, Value>("/v1/operations", &[&operation]).await;
        let told = asked.unwrap_err().to_string();
        for part in ["'only_if'", "this agent", "documents of version 2", "upgrade the agent"] {
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
    assert_eq!(local.memberships[0].documents, Some(2));
    // A program of the version before would not read it.
    let headers = format!("Authorization: Bearer {}\r\n", access.token.expose());
    let (_, local) = raw(&agent.ready.api, "GET /v1/local", &headers, "").await;
    assert!(local["memberships"][0].get("documents").is_none(), "{local}");
    assert_eq!(local["memberships"][0]["is_heard"], true);
}
