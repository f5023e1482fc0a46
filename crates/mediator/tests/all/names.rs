//! Names: directories, pages, renaming, removal, and who may do what.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use crate::common::{CAPACITY, House, access, code, data, directory, opening, upload};
use netraid_cluster::{
    Code,
    access::{AccessFile, Bearer, Role},
    audit::LogPage,
    http::Client,
    mediator::{
        AccessEntry, CheckReport, Create, Entry, Kind, Layout, MediatorStatus, Mode, NewAccess,
        NewToken, Open, Page, Rename, SetState, TransferPlan,
    },
};
use netraid_control::units::{Rate, RequestId, VolumeId};
use serde::de::IgnoredAny;

async fn page(client: &Client, path: &str, after: Option<&str>, limit: u32) -> Page {
    let encode = netraid_cluster::http::encode;
    let after = after.map_or(String::new(), |after| format!("&after={}", encode(after)));
    let query = format!("/v1/names?path={}&limit={limit}{after}", encode(path));
    client.get(&query).await.unwrap()
}

fn names(page: &Page) -> Vec<&str> {
    page.entries.iter().map(|entry| entry.path.as_str()).collect()
}

#[tokio::test]
async fn a_tree_is_made_listed_renamed_and_removed() {
    let house = House::new(3).await;
    let client = &house.client;
    let make = |create: Create| async move { client.post::<_, Entry>("/v1/names", &create).await };
    make(directory("/a")).await.unwrap();
    assert_eq!(code(make(directory("/a")).await), Code::Exists);
    assert_eq!(code(make(data("/none/x", 0)).await), Code::Absent);
    make(Create { parents: true, ..data("/a/b/c/empty", 0) }).await.unwrap();
    // What is refused has made no directory.
    let refused = make(Create { parents: true, ..data("/a/b/x/y/huge", 1 << 50) }).await;
    assert_eq!(code(refused), Code::Short);
    let entry = make(data("/a/b/full", 1 << 30)).await.unwrap();
    let stored = entry.stored.expect("it has bytes");
    assert!(entry.capacity_bytes >= 1 << 30 && entry.length_bytes == 0);
    assert_eq!((stored.level, stored.members.len(), stored.formatted), (5, 3, false));
    assert!(stored.members.iter().all(|member| member.reachable));
    assert_eq!(names(&page(client, "/a/b", None, 10).await), ["/a/b/c", "/a/b/full"]);
    // Beneath anything that is no directory there is nothing.
    assert_eq!(code(make(data("/a/b/full/x", 0)).await), Code::Invalid);
    let rename = |from: &str, to: &str| {
        let rename = Rename {
            from: from.to_owned(),
            to: to.to_owned(),
            replace: false,
            force: false,
            id: None,
            upload: false,
        };
        async move { client.post::<_, Entry>("/v1/rename", &rename).await }
    };
    // A directory goes with all that is in it, and not into itself.
    assert_eq!(code(rename("/a/b", "/a/b/c/d").await), Code::Invalid);
    assert_eq!(code(rename("/a/b", "/a").await), Code::Exists);
    rename("/a/b", "/moved").await.unwrap();
    assert_eq!(names(&page(client, "/moved", None, 10).await), ["/moved/c", "/moved/full"]);
    let stat: Entry = client.get("/v1/name?path=/moved/full").await.unwrap();
    assert_eq!((stat.id, stat.path.as_str()), (entry.id, "/moved/full"));
    assert_eq!(code(client.get::<Entry>("/v1/name?path=/a/b/full").await), Code::Absent);
    // Who means one thing does not get another that has its name by now.
    let other = Some(VolumeId([7; 16]));
    let (from, to) = ("/moved/full".to_owned(), "/x".to_owned());
    let taken = Rename { from, to, replace: false, force: false, id: other, upload: false };
    let renamed = client.post::<_, Entry>("/v1/rename", &taken).await;
    assert_eq!(code(renamed), Code::Conflict);
    let remove = |path: &str| {
        let path = format!("/v1/name?path={path}");
        async move { client.delete::<IgnoredAny>(&path).await }
    };
    assert_eq!(code(remove("/moved").await), Code::Conflict);
    assert!(house.agents.iter().all(|agent| agent.booked().space_bytes > 0));
    for path in ["/moved/full", "/moved/c/empty", "/moved/c", "/moved", "/a"] {
        remove(path).await.unwrap();
    }
    assert!(page(client, "/", None, 10).await.entries.is_empty());
    // What it took of the agents is free again.
    assert!(house.agents.iter().all(|agent| agent.allotments() == 0));
    let status: MediatorStatus = house.admin.get("/v1/status").await.unwrap();
    assert_eq!((status.names, status.agents, status.reachable), (0, 3, 3));
}

#[tokio::test]
async fn what_has_a_name_is_replaced_in_one_step() {
    let house = House::new(3).await;
    let old = house.create("/x", 1 << 30).await.unwrap();
    let new = house.create("/x.partial", 1 << 28).await.unwrap();
    let replace = |from: &str, to: &str, force| {
        let (from, to) = (from.to_owned(), to.to_owned());
        let rename = Rename { from, to, replace: true, force, id: None, upload: false };
        let client = house.client.clone();
        async move { client.post::<_, Entry>("/v1/rename", &rename).await }
    };
    let stat = || async { house.client.get::<Entry>("/v1/name?path=/x").await.unwrap().id };
    // Of one kind only, and never a directory.
    house.client.post::<_, Entry>("/v1/names", &directory("/d")).await.unwrap();
    assert_eq!(code(replace("/x.partial", "/d", true).await), Code::Invalid);
    assert_eq!(code(replace("/d", "/x", true).await), Code::Invalid);
    let volume = Create { kind: Kind::Volume, ..data("/v", 1 << 20) };
    house.client.post::<_, Entry>("/v1/names", &volume).await.unwrap();
    assert_eq!(code(replace("/v", "/x", true).await), Code::Invalid);
    // Refused as its removal would be, and nothing has changed.
    let reads = house.open(&opening("/x", Mode::Read, 1_000_000)).await.unwrap();
    assert_eq!(code(replace("/x.partial", "/x", false).await), Code::Conflict);
    assert_eq!((stat().await, names(&page(&house.client, "/", None, 10).await).len()), (old.id, 4));
    let renew = format!("/v1/plans/{}/renew", reads.plan);
    house.client.post::<_, TransferPlan>(&renew, &()).await.unwrap();
    // By force whoever has it is fenced, and all of it is free.
    let named = replace("/x.partial", "/x", true).await.unwrap();
    assert_eq!((named.id, named.path.as_str(), stat().await), (new.id, "/x", new.id));
    assert_eq!(names(&page(&house.client, "/", None, 10).await), ["/d", "/v", "/x"]);
    assert_eq!(code(house.client.post::<_, TransferPlan>(&renew, &()).await), Code::Absent);
    for agent in &house.agents {
        let segments = agent.inner.segments.lock().unwrap();
        assert!(segments.values().all(|segment| segment.label.volume != old.id));
        assert!(agent.inner.ended.lock().unwrap().contains(&reads.plan));
        let labels = segments.values().filter(|segment| segment.label.volume == new.id);
        assert!(labels.count() > 0);
    }
    let report: CheckReport = house.admin.get("/v1/check").await.unwrap();
    assert_eq!(report.differences, []);
    let status: MediatorStatus = house.admin.get("/v1/status").await.unwrap();
    assert_eq!(status.names, 3);
    // Where nothing is, nothing is replaced; and nothing by itself.
    assert_eq!(replace("/x", "/y", false).await.unwrap().path, "/y");
    assert_eq!(replace("/y", "/y", false).await.unwrap().id, new.id);
    assert_eq!(code(replace("/x.partial", "/y", false).await), Code::Absent);
}

#[tokio::test]
async fn what_is_refused_leaves_no_directories_behind() {
    let house = House::new(3).await;
    house.client.post::<_, Entry>("/v1/names", &directory("/a")).await.unwrap();
    let huge = Create { parents: true, ..data("/a/b/c/x", 1 << 50) };
    assert_eq!(code(house.client.post::<_, Entry>("/v1/names", &huge).await), Code::Short);
    assert!(page(&house.client, "/a", None, 10).await.entries.is_empty());
    let status: MediatorStatus = house.admin.get("/v1/status").await.unwrap();
    assert_eq!(status.names, 1);
}

#[tokio::test]
async fn an_upload_has_a_name_that_no_user_can_have() {
    let house = House::new(3).await;
    let client = &house.client;
    let make = |create: Create| async move { client.post::<_, Entry>("/v1/names", &create).await };
    // The longest names, and what others would take for a temporary name.
    let long = format!("/d/{}", "x".repeat(255));
    house.client.post::<_, Entry>("/v1/names", &directory("/d")).await.unwrap();
    let theirs = house.create("/d/x.partial", 0).await.unwrap();
    let mine = make(upload(&long, 1 << 20)).await.unwrap();
    assert_eq!((mine.path.as_str(), mine.upload_bytes), (&*long, Some(1 << 20)));
    make(upload("/d/x", 0)).await.unwrap();
    // Each name has one; and nobody finds it by the name.
    assert_eq!(code(make(upload(&long, 5)).await), Code::Exists);
    let stat = |path: &str, query: &str| {
        let path = format!("/v1/name?path={path}{query}");
        async move { client.get::<Entry>(&path).await }
    };
    assert_eq!(code(stat(&long, "").await), Code::Absent);
    assert_eq!(code(client.get::<Entry>("/v1/name?path=/d/%01x").await), Code::Invalid);
    assert_eq!(code(house.open(&opening(&long, Mode::Read, 0)).await), Code::Absent);
    assert_eq!(stat(&long, "&upload=true").await.unwrap().id, mine.id);
    assert_eq!(names(&page(client, "/d", None, 10).await), ["/d/x.partial"]);
    assert_eq!(names(&page(client, "/d", Some("a"), 10).await), ["/d/x.partial"]);
    let uploads: Page = client.get("/v1/names?path=/d&uploads=true").await.unwrap();
    assert_eq!(names(&uploads), ["/d/x", &*long]);
    assert_eq!(uploads.entries[1].upload_bytes, Some(1 << 20));
    let next: Page = client.get("/v1/names?path=/d&uploads=true&after=x").await.unwrap();
    assert_eq!(names(&next), [&*long]);
    // Data alone, and what stands beside it has its name still.
    let volume = Create { kind: Kind::Volume, ..upload("/d/v", 1 << 20) };
    assert_eq!(code(make(volume).await), Code::Invalid);
    assert_eq!(stat("/d/x.partial", "").await.unwrap().id, theirs.id);
}

#[tokio::test]
async fn an_upload_gets_its_name_when_all_of_it_is_there_and_nobody_writes() {
    let house = House::new(3).await;
    let client = &house.client;
    let made: Entry = client.post("/v1/names", &upload("/x", 1 << 20)).await.unwrap();
    let publish = |id| {
        let (from, to) = ("/x".to_owned(), "/x".to_owned());
        let rename = Rename { from, to, replace: false, force: false, id, upload: true };
        async move { client.post::<_, Entry>("/v1/rename", &rename).await }
    };
    assert_eq!(code(publish(Some(made.id)).await), Code::Conflict);
    let write = Open { upload: true, id: Some(made.id), ..opening("/x", Mode::Write, 0) };
    let other = Open { id: Some(VolumeId([7; 16])), ..write.clone() };
    assert_eq!(code(house.open(&other).await), Code::Conflict);
    let plan = house.open(&write).await.unwrap();
    let set = |length_bytes| SetState { formatted: true, length_bytes, rebuilt: vec![] };
    let state = format!("/v1/plans/{}/state", plan.plan);
    client.post::<_, Entry>(&state, &set(Some((1 << 20) - 1))).await.unwrap();
    assert_eq!(code(publish(Some(made.id)).await), Code::Conflict);
    // All of it is there, and its writer has it: whoever found it by its name could not read it.
    client.post::<_, Entry>(&state, &set(Some(1 << 20))).await.unwrap();
    assert_eq!(code(publish(Some(made.id)).await), Code::Conflict);
    for agent in &house.agents {
        let segments = agent.inner.segments.lock().unwrap();
        assert!(segments.values().all(|segment| segment.label.path == "\u{1}x"));
    }
    house.close(plan.plan).await.unwrap();
    assert_eq!(code(publish(Some(VolumeId([7; 16]))).await), Code::Conflict);
    let named = publish(Some(made.id)).await.unwrap();
    assert_eq!((named.path.as_str(), named.id, named.upload_bytes), ("/x", made.id, None));
    house.open(&opening("/x", Mode::Read, 0)).await.unwrap();
    assert_eq!(code(client.get::<Entry>("/v1/name?path=/x&upload=true").await), Code::Absent);
}

#[tokio::test]
async fn an_upload_is_removed_by_its_own_name_alone() {
    let house = House::new(3).await;
    let client = &house.client;
    client.post::<_, Entry>("/v1/names", &directory("/d")).await.unwrap();
    let made: Entry = client.post("/v1/names", &upload("/d/x", 1 << 20)).await.unwrap();
    let remove = |query: String| {
        let path = format!("/v1/name?path=/d{query}");
        async move { client.delete::<IgnoredAny>(&path).await }
    };
    let refused = remove(String::new()).await.unwrap_err();
    assert!(refused.to_string().contains("an upload in it, of 'x'"), "{refused}");
    assert_eq!(code(remove("/x".to_owned()).await), Code::Absent);
    let other = VolumeId([7; 16]);
    assert_eq!(code(remove(format!("/x&upload=true&id={other}")).await), Code::Conflict);
    remove(format!("/x&upload=true&id={}", made.id)).await.unwrap();
    assert!(house.agents.iter().all(|agent| agent.allotments() == 0));
    remove(String::new()).await.unwrap();
}

/// Whoever means a volume does not get data, or the other way about: neither open nor removed, and
/// nobody is shut out for it.
#[tokio::test]
async fn what_is_of_another_kind_than_is_meant_is_left_alone() {
    let house = House::new(3).await;
    house.create("/data", 1 << 20).await.unwrap();
    house.client.post::<_, Entry>("/v1/names", &upload("/up", 1 << 20)).await.unwrap();
    house.client.post::<_, Entry>("/v1/names", &directory("/d")).await.unwrap();
    let volume = Create { kind: Kind::Volume, ..data("/v", 1 << 20) };
    house.client.post::<_, Entry>("/v1/names", &volume).await.unwrap();
    let reading = house.open(&opening("/data", Mode::Read, 0)).await.unwrap();
    let writing = house.open(&opening("/v", Mode::Write, 0)).await.unwrap();
    let others = [
        ("/data", false, Kind::Volume, "netraid get"),
        ("/up", true, Kind::Volume, "rm --upload"),
        ("/d", false, Kind::Volume, "netraid ls"),
        ("/v", false, Kind::Data, "netraid volume attach"),
        ("/v", false, Kind::Directory, "netraid volume rm"),
    ];
    for (path, is_upload, kind, remedy) in others {
        for (mode, take_over) in [(Mode::Read, false), (Mode::Read, true), (Mode::Write, true)] {
            let (upload, kind) = (is_upload, Some(kind));
            let open = Open { take_over, upload, kind, ..opening(path, mode, 0) };
            let refused = house.open(&open).await.unwrap_err();
            let problem = refused.problem().unwrap();
            assert_eq!(problem.code, Code::Invalid, "{path}");
            assert!(problem.detail.contains(remedy), "{}", problem.detail);
        }
        let kind = serde_json::to_string(&kind).unwrap();
        let kind = kind.trim_matches('"');
        let remove = format!("/v1/name?path={path}&upload={is_upload}&kind={kind}&force=true");
        let refused = house.client.delete::<IgnoredAny>(&remove).await;
        assert_eq!(code(refused), Code::Invalid, "{path}");
    }
    for plan in [&reading, &writing] {
        let renew = format!("/v1/plans/{}/renew", plan.plan);
        let renewed: TransferPlan = house.client.post(&renew, &()).await.unwrap();
        assert_eq!(renewed.generation, plan.generation);
    }
    // What is of that kind is opened, and removed.
    house.close(writing.plan).await.unwrap();
    let open = Open { kind: Some(Kind::Volume), ..opening("/v", Mode::Write, 0) };
    let opened = house.open(&open).await.unwrap();
    house.close(opened.plan).await.unwrap();
    house.client.delete::<IgnoredAny>("/v1/name?path=/v&kind=volume").await.unwrap();
    assert_eq!(names(&page(&house.client, "/", None, 10).await), ["/d", "/data"]);
}

/// What refuses the new one comes before anything is taken from the old one.
#[tokio::test]
async fn an_upload_is_thrown_away_for_another_one_that_can_be_had_alone() {
    let house = House::new(3).await;
    let make = |create: Create| {
        let client = house.client.clone();
        async move { client.post::<_, Entry>("/v1/names", &create).await }
    };
    // So much of the agents' space that there is no room for another one beside it.
    let size = CAPACITY.space_bytes / 2 * 3;
    let old = make(upload("/x", size)).await.unwrap();
    let open = Open { upload: true, ..opening("/x", Mode::Write, 100_000_000) };
    let writing = house.open(&open).await.unwrap();
    let new = Create { replaces: Some(old.id), ..upload("/x", size) };
    let layout = || new.layout.clone();
    let refused = [
        (Create { layout: Layout { members: Some(9), ..layout() }, ..new.clone() }, Code::Short),
        (Create { layout: Layout { level: Some(2), ..layout() }, ..new.clone() }, Code::Invalid),
        (Create { layout: Layout { survives: 3, ..layout() }, ..new.clone() }, Code::Short),
        (
            Create { layout: Layout { chunk_len: Some(3000), ..layout() }, ..new.clone() },
            Code::Invalid,
        ),
        (Create { layout: Layout { rate: Rate(1 << 40), ..layout() }, ..new.clone() }, Code::Short),
        (Create { size_bytes: 100 << 40, ..new.clone() }, Code::Short),
        (Create { size_bytes: u64::MAX, ..new.clone() }, Code::Invalid),
        (Create { upload: false, ..new.clone() }, Code::Invalid),
        (Create { replaces: Some(VolumeId([7; 16])), ..new.clone() }, Code::Conflict),
        (Create { replaces: Some(old.id), ..upload("/y", size) }, Code::Absent),
        (Create { replaces: None, ..new.clone() }, Code::Exists),
    ];
    let stat =
        || async { house.client.get::<Entry>("/v1/name?path=/x&upload=true").await.unwrap() };
    for (create, expected) in refused {
        assert_eq!(code(make(create.clone()).await), expected, "{create:?}");
        assert_eq!(stat().await.id, old.id, "{create:?}");
    }
    let renew = format!("/v1/plans/{}/renew", writing.plan);
    let renewed: TransferPlan = house.client.post(&renew, &()).await.unwrap();
    assert_eq!((renewed.generation, renewed.rate), (writing.generation, writing.rate));
    // It has the space and the rate that the old one had.
    let rate = Rate(100_000_000);
    let made = make(Create { layout: Layout { rate, ..layout() }, ..new.clone() }).await.unwrap();
    assert_eq!((stat().await.id, made.length_bytes), (made.id, 0));
    assert_ne!(made.id, old.id);
    assert_eq!(code(house.client.post::<_, TransferPlan>(&renew, &()).await), Code::Absent);
    house.open(&open).await.unwrap();
    let report: CheckReport = house.admin.get("/v1/check").await.unwrap();
    assert_eq!(report.differences, []);
    let status: MediatorStatus = house.admin.get("/v1/status").await.unwrap();
    assert_eq!(status.names, 1);
}

#[tokio::test]
async fn pages_are_parts_of_the_whole_in_the_order_of_names() {
    let house = House::new(0).await;
    let mut all: Vec<String> = (0..25).map(|number| format!("/{:02}", number * 7 % 25)).collect();
    for path in &all {
        house.create(path, 0).await.unwrap();
    }
    all.sort();
    let (mut got, mut after) = (Vec::new(), None);
    loop {
        let page = page(&house.client, "/", after.as_deref(), 7).await;
        assert!(page.entries.len() <= 7);
        got.extend(names(&page).into_iter().map(str::to_owned));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(got, all);
}

#[tokio::test]
async fn paths_that_are_none_are_refused() {
    let house = House::new(0).await;
    let long = format!("/{}", "x".repeat(256));
    for path in ["", "a", "//a", "/a//b", "/a/../b", "/.", "/a\nb", &long] {
        assert_eq!(code(house.create(path, 0).await), Code::Invalid, "{path}");
    }
}

#[tokio::test]
async fn each_role_may_do_what_it_is_for() {
    let house = House::new(0).await;
    let with = |token: &str| {
        let (mediator, token) = (house.url.clone(), Bearer::from_text(token.to_owned()));
        let access = AccessFile { version: 1, mediator, authority: None, token };
        Client::with_access(&access, crate::common::LIMIT).unwrap()
    };
    let new = |role| NewAccess { role, name: "test".to_owned(), for_ms: None };
    let reader: NewToken = house.admin.post("/v1/access", &new(Role::Reader)).await.unwrap();
    let read = with(&reader.token);
    let agent = Client::with_access(&access(house.directory.path(), "agent"), crate::common::LIMIT)
        .unwrap();
    assert!(page(&read, "/", None, 1).await.entries.is_empty());
    let make = data("/x", 0);
    for client in [&read, &agent] {
        assert_eq!(code(client.post::<_, Entry>("/v1/names", &make).await), Code::Forbidden);
        assert_eq!(
            code(client.post::<_, NewToken>("/v1/access", &new(Role::Admin)).await),
            Code::Forbidden
        );
    }
    assert_eq!(code(agent.get::<Page>("/v1/names?path=/").await), Code::Forbidden);
    let make_access = house.client.post::<_, NewToken>("/v1/access", &new(Role::Admin)).await;
    assert_eq!(code(make_access), Code::Forbidden);
    // The same answer, whatever is asked and whatever is said.
    let stranger = with("never-was-a-token");
    let mut said = Vec::new();
    for path in ["/v1/names?path=/", "/v1/check", "/v1/nothing", "/v1/plans"] {
        said.push(stranger.get::<Page>(path).await.unwrap_err().problem().unwrap().clone());
    }
    assert!(said.iter().all(|problem| *problem == said[0] && problem.code == Code::Unauthorized));
    // What was taken back opens nothing.
    house.admin.delete::<IgnoredAny>(&format!("/v1/access/{}", reader.entry.id)).await.unwrap();
    assert_eq!(code(read.get::<Page>("/v1/names?path=/").await), Code::Unauthorized);
    let gone = NewAccess { for_ms: Some(0), ..new(Role::Reader) };
    let gone: NewToken = house.admin.post("/v1/access", &gone).await.unwrap();
    assert_eq!(code(with(&gone.token).get::<Page>("/v1/names?path=/").await), Code::Unauthorized);
    let entries: Vec<AccessEntry> = house.admin.get("/v1/access").await.unwrap();
    assert!(entries.iter().all(|entry| entry.id != reader.entry.id));
}

#[tokio::test]
async fn the_audit_log_is_for_administrators() {
    let house = House::new(0).await;
    house.create("/x", 0).await.unwrap();
    assert_eq!(code(house.create("/x", 0).await), Code::Exists);
    assert_eq!(code(house.client.get::<LogPage>("/v1/log").await), Code::Forbidden);
    // Nobody waits for a line to be stored.
    let page = loop {
        let page: LogPage = house.admin.get("/v1/log?limit=1000&since=0").await.unwrap();
        if page.entries.len() >= 3 {
            break page;
        }
        tokio::task::yield_now().await;
    };
    let lines: Vec<_> = page.entries.iter().map(|entry| (&*entry.role, &*entry.what)).collect();
    let made = ("client", "create Data /x of 0 bytes");
    assert_eq!(lines, [made, made, ("client", "read the audit log")]);
    assert_eq!(page.entries[0].outcome, "done");
    assert!(page.entries[1].outcome.starts_with("Exists"), "{page:?}");
    let since = page.entries[2].at.0 + 1;
    let later: LogPage = house.admin.get(&format!("/v1/log?since={since}")).await.unwrap();
    assert_eq!(later.entries, []);
}

#[test]
fn the_description_of_the_api_is_the_one_in_docs() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api/mediator.json");
    let now = netraid_mediator::openapi();
    if std::env::var_os("NETRAID_WRITE_DOCS").is_some() {
        std::fs::write(path, &now).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap();
    assert!(kept == now, "docs/api/mediator.json is old; NETRAID_WRITE_DOCS=1 writes it");
}

#[tokio::test]
async fn a_request_that_is_sent_again_makes_nothing_twice() {
    let mut house = House::new(3).await;
    let other = house.client_of(Role::Client, None).await.0;
    let again = async |client: &Client, create: &Create, id: RequestId| {
        client.post_again::<_, Entry>("/v1/names", create, Some(id)).await.answer
    };
    let all = [
        directory("/d"),
        Create { parents: true, ..data("/new/full", 1 << 20) },
        data("/empty", 0),
        upload("/upload", 1 << 20),
    ];
    for (number, create) in (0..).zip(&all) {
        let id = RequestId([number; 16]);
        let (first, second) =
            tokio::join!(again(&house.client, create, id), again(&house.client, create, id));
        let (first, second) = (first.unwrap(), second.unwrap());
        assert_eq!((first.id, &first.path), (second.id, &second.path), "at once");
        house.stop().await;
        house.start().await;
        let third = again(&house.client, create, id).await.unwrap();
        assert_eq!((first.id, first.made), (third.id, third.made), "after a restart");
        // Another request, and the same one of somebody else, is refused as always.
        let different = RequestId([number + 100; 16]);
        assert_eq!(code(again(&house.client, create, different).await), Code::Exists);
        assert_eq!(code(again(&other, create, id).await), Code::Exists);
    }
    // An upload is thrown away for another one once, and that one never.
    let there = again(&house.client, &all[3], RequestId([3; 16])).await.unwrap();
    let create = Create { replaces: Some(there.id), ..all[3].clone() };
    let new = again(&house.client, &create, RequestId([9; 16])).await.unwrap();
    assert_ne!(new.id, there.id);
    assert_eq!(again(&house.client, &create, RequestId([9; 16])).await.unwrap().id, new.id);
    assert_eq!(code(again(&house.client, &create, RequestId([10; 16])).await), Code::Conflict);
    let report: CheckReport = house.admin.get("/v1/check").await.unwrap();
    assert_eq!(report.differences, []);
}
