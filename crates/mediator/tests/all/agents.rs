//! What agents say of themselves: what of it is taken, what is stored, and a store that holds what is not.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::{path::Path, time::Duration};

use crate::common::{self, House, access, code, opening, reachable};
use netraid_cluster::{
    Code,
    access::{AccessFile, Bearer, Role},
    agent::{AgentStatus, FaultCode, Operation},
    audit::LogPage,
    http::{Client, RequestError},
    mediator::{
        AgentEntry, AgentState, Beat, Beaten, CheckReport, DifferenceKind, Entry, Join, Joined,
        Mode, NewAccess, NewToken, Open,
    },
    now,
};
use netraid_control::units::{AgentId, Rate, Resources};
use netraid_mediator::Mediator;
use rusqlite::params;

const LIES: AgentId = AgentId([66; 16]);

pub(crate) fn status() -> AgentStatus {
    let some = Resources { space_bytes: 1 << 30, device: Rate(1000), network: Rate(1000) };
    AgentStatus {
        agent: LIES,
        host: "host".to_owned(),
        rack: String::new(),
        api: "http://127.0.0.1:9".to_owned(),
        portal: "127.0.0.1:1".to_owned(),
        target: "iqn.x:y".to_owned(),
        capacity: some,
        kept: Resources::default(),
        left: some,
        left_for_rebuild: some,
        draining: false,
        segments: 0,
        sessions: 0,
    }
}

/// What no agent can be.
fn lies() -> Vec<AgentStatus> {
    let with = |change: &dyn Fn(&mut AgentStatus)| {
        let mut status = status();
        change(&mut status);
        status
    };
    let api = |api: &str| with(&|status| api.clone_into(&mut status.api));
    vec![
        api("ftp://x"),
        api("http://10.0.0.1:80"),
        api("http://127.0.0.1:9/path"),
        api("http://127.0.0.1:99999"),
        api("http://127.0.0.1:0"),
        api("http://127.0.0.1:"),
        // Of another host than the one that asks.
        api("https://10.255.255.1:443"),
        with(&|status| status.host = "\u{1b}[2J".to_owned()),
        with(&|status| status.host = "h".repeat(1 << 19)),
        with(&|status| status.rack = "a\nb".to_owned()),
        with(&|status| status.portal = "nowhere".to_owned()),
        with(&|status| status.target = "iqn.x y".to_owned()),
        with(&|status| status.left.space_bytes = u64::MAX),
        with(&|status| status.capacity.device = Rate(u64::MAX)),
    ]
}

pub(crate) async fn join(
    house: &House,
    role: &str,
    status: &AgentStatus,
) -> Result<Joined, RequestError> {
    let client = Client::with_access(&access(house.directory.path(), role), common::LIMIT).unwrap();
    let join = Join { status: status.clone(), token: "t".repeat(32), authority: None };
    client.post("/v1/agents", &join).await
}

/// The way of an agent that has joined.
fn spoken(house: &House, joined: &Joined) -> Client {
    let token = Bearer::from_text(joined.token.clone());
    let access = AccessFile { token, ..access(house.directory.path(), "agent") };
    Client::with_access(&access, common::LIMIT).unwrap()
}

async fn beat(client: &Client, status: &AgentStatus) -> Result<Beaten, RequestError> {
    let beat = Beat { status: status.clone(), keys_mark: String::new(), clock: None };
    client.put(&format!("/v1/agents/{}", status.agent), &beat).await
}

async fn agents(house: &House) -> Vec<AgentEntry> {
    house.admin.get("/v1/agents").await.unwrap()
}

#[tokio::test]
async fn what_no_agent_can_be_is_refused_at_each_door_and_not_kept() {
    let mut house = House::new(0).await;
    for lie in lies() {
        assert_eq!(code(join(&house, "agent", &lie).await), Code::Invalid, "{lie:?}");
    }
    for authority in ["", "x", "\u{1b}[2J"] {
        let access = access(house.directory.path(), "agent");
        let client = Client::with_access(&access, common::LIMIT).unwrap();
        let authority = Some(authority.to_owned());
        let join = Join { status: status(), token: "t".repeat(32), authority };
        assert_eq!(code(client.post::<_, Joined>("/v1/agents", &join).await), Code::Invalid);
    }
    assert_eq!(agents(&house).await, []);
    let joined = join(&house, "agent", &status()).await.unwrap();
    let agent = spoken(&house, &joined);
    for lie in lies() {
        assert_eq!(code(beat(&agent, &lie).await), Code::Invalid, "{lie:?}");
        assert_eq!(agents(&house).await[0].status, status());
    }
    house.stop().await;
    house.start().await;
    assert_eq!(agents(&house).await[0].status, status());
    // An agent that moves says so, and is kept.
    let moved = AgentStatus { api: "http://[::1]:7".to_owned(), ..status() };
    beat(&agent, &moved).await.unwrap();
    house.stop().await;
    house.start().await;
    assert_eq!(agents(&house).await[0].status, moved);
}

#[tokio::test]
async fn an_administrator_says_which_hosts_are_called() {
    let house = House::new(0).await;
    let elsewhere = AgentStatus { api: "https://10.255.255.1:443".to_owned(), ..status() };
    let joined = join(&house, "admin", &elsewhere).await.unwrap();
    let agent = spoken(&house, &joined);
    // There it may have another port, and elsewhere only where it asks from.
    let port = AgentStatus { api: "https://10.255.255.1:444".to_owned(), ..status() };
    beat(&agent, &port).await.unwrap();
    let third = AgentStatus { api: "https://10.255.255.2:444".to_owned(), ..status() };
    assert_eq!(code(beat(&agent, &third).await), Code::Invalid);
    beat(&agent, &status()).await.unwrap();
}

/// Puts something else in the place of what is stored of an agent.
fn spoil(house: &House, agent: AgentId, column: &str, value: &str) {
    let store = house.directory.path().join("mediator.sqlite");
    let store = rusqlite::Connection::open(store).unwrap();
    let sql = format!("UPDATE agents SET {column} = ?2 WHERE id = ?1");
    assert_eq!(store.execute(&sql, params![agent.0, value]).unwrap(), 1);
}

#[tokio::test]
async fn a_store_with_an_agent_that_cannot_be_is_opened_and_mended() {
    let mut house = House::new(3).await;
    house.create("/x", 1 << 30).await.unwrap();
    let spoilt = house.agents[0].inner.id;
    let mut poisoned = house.agents[0].inner.status();
    poisoned.api = "ftp://x".to_owned();
    let poisoned = serde_json::to_string(&poisoned).unwrap();
    for (column, value) in [
        ("status", poisoned.as_str()),
        ("status", "{"),
        ("state", "absurd"),
        ("authority", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        ("token", "\u{7f}"),
    ] {
        house.agents[0].set_deaf(true);
        house.stop().await;
        spoil(&house, spoilt, column, value);
        house.start().await;
        reachable(&house, 2).await;
        let entries = agents(&house).await;
        let entry = entries.iter().find(|entry| entry.status.agent == spoilt).unwrap();
        assert_eq!(entry.state, AgentState::Away, "{column}");
        // Two of three serve.
        let plan = house.open(&opening("/x", Mode::Write, 0)).await.unwrap();
        let away = plan.members.iter().filter(|member| !member.reachable);
        assert_eq!(away.map(|member| member.agent).collect::<Vec<_>>(), [spoilt]);
        house.close(plan.plan).await.unwrap();
        house.agents[0].set_deaf(false);
        if ["status", "state"].contains(&column) {
            // What it says the next time takes the place of what was stored.
            reachable(&house, 3).await;
        } else {
            // What the mediator says to it, and whom it trusts there, comes with joining alone.
            let admin = access(house.directory.path(), "admin");
            house.agents[0].join(&admin).await.unwrap();
            reachable(&house, 3).await;
        }
        house.stop().await;
        house.start().await;
        let entries = tokio::time::timeout(Duration::from_secs(60), reachable(&house, 3)).await;
        entries.unwrap();
    }
}

#[tokio::test]
async fn a_mediator_without_tls_is_reached_on_its_host_alone() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = common::config(directory.path());
    config.advertise = Some("mediator.example".to_owned());
    let refused = Mediator::open(config).await.unwrap_err().to_string();
    assert!(refused.contains("http://mediator.example:") && refused.contains("https"), "{refused}");
    // Nor does a client follow such an access file.
    let path = directory.path().join("told.access");
    let mediator = "http://mediator.example:7400".to_owned();
    let access = AccessFile { version: 1, mediator, authority: None, token: Bearer::draw() };
    access.write(&path).unwrap();
    let refused = AccessFile::read(&path).unwrap_err().to_string();
    assert!(refused.contains("told.access") && refused.contains("use https"), "{refused}");
    assert!(Client::with_access(&access, common::LIMIT).is_err());
}

#[tokio::test]
async fn what_is_planted_in_the_place_of_an_access_file_keeps_no_administrator_out() {
    use std::{fs, os::unix::fs::symlink};
    type Plant = fn(&Path);
    let plants: [(&str, Plant); 6] = [
        ("symbolic link", |path| symlink("/etc/hostname", path).unwrap()),
        ("symbolic link", |path| symlink("nowhere", path).unwrap()),
        ("no regular file", |path| fs::create_dir(path).unwrap()),
        ("2 names", |path| {
            fs::write(path.with_extension("victim"), "theirs").unwrap();
            fs::hard_link(path.with_extension("victim"), path).unwrap();
        }),
        ("remove the file", |path| fs::write(path, "{}").unwrap()),
        ("remove the file", |path| {
            let mediator = "http://127.0.0.1:1".to_owned();
            let token = Bearer::draw();
            let access = AccessFile { version: 1, mediator, authority: None, token };
            access.write(path).unwrap();
        }),
    ];
    for role in ["admin", "client", "agent"] {
        for (why, plant) in plants {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join(format!("{role}.access"));
            plant(&path);
            let opened = Mediator::open(common::config(directory.path())).await;
            let refused = opened.unwrap_err().to_string();
            let file = format!("{role}.access");
            assert!(refused.contains(&file) && refused.contains(why), "{why}: {refused}");
            let is_directory = fs::symlink_metadata(&path).unwrap().is_dir();
            if is_directory { fs::remove_dir(&path) } else { fs::remove_file(&path) }.unwrap();
            Mediator::open(common::config(directory.path())).await.unwrap();
            for role in ["admin", "client", "agent"] {
                common::access(directory.path(), role);
            }
        }
    }
}

#[tokio::test]
async fn access_files_that_an_earlier_program_left_open_are_closed_and_say_where_the_mediator_is() {
    use std::{fs, os::unix::fs::PermissionsExt as _};
    let directory = tempfile::tempdir().unwrap();
    let path = |role: &str| directory.path().join(format!("{role}.access"));
    let url = Mediator::open(common::config(directory.path())).await.unwrap().url().to_owned();
    let tokens = ["admin", "client"].map(|role| common::access(directory.path(), role).token);
    for role in ["admin", "client", "agent"] {
        fs::set_permissions(path(role), fs::Permissions::from_mode(0o666)).unwrap();
    }
    // One that is of no use any more is nobody's loss once there is an administrator.
    fs::write(path("agent"), "{}").unwrap();
    let taken = std::net::TcpListener::bind(url.trim_start_matches("http://")).unwrap();
    let mediator = Mediator::open(common::config(directory.path())).await.unwrap();
    assert_ne!(mediator.url(), url);
    drop(taken);
    for role in ["admin", "client", "agent"] {
        let mode = fs::metadata(path(role)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{role}");
    }
    let after = ["admin", "client"].map(|role| common::access(directory.path(), role));
    assert!(after.iter().all(|access| access.mediator == mediator.url()), "{after:?}");
    assert_eq!(after.map(|access| access.token), tokens);
    assert_eq!(fs::read_to_string(path("agent")).unwrap(), "{}");
}

#[tokio::test]
async fn a_store_with_rows_that_cannot_be_read_is_opened_without_them() {
    let mut house = House::new(1).await;
    let mut create = common::data("/x", 1 << 20);
    (create.layout.level, create.layout.survives) = (Some(0), 0);
    house.client.post::<_, Entry>("/v1/names", &create).await.unwrap();
    let lost = house.open(&opening("/x", Mode::Write, 0)).await.unwrap();
    let new = NewAccess { role: Role::Reader, name: "eve".to_owned(), for_ms: None };
    let made: NewToken = house.admin.post("/v1/access", &new).await.unwrap();
    house.stop().await;
    let store = rusqlite::Connection::open(house.directory.path().join("mediator.sqlite")).unwrap();
    let plan = "UPDATE plans SET record = '{' WHERE id = ?1";
    assert_eq!(store.execute(plan, [lost.plan.0]).unwrap(), 1);
    let token = "UPDATE access SET role = 'absurd' WHERE id = ?1";
    assert_eq!(store.execute(token, [i64::try_from(made.entry.id).unwrap()]).unwrap(), 1);
    store.execute("INSERT INTO bookings VALUES (x'01', '{', '{')", []).unwrap();
    drop(store);
    house.start().await;
    reachable(&house, 1).await;
    // What is written there opens nothing, and is in nobody's way.
    let eve = AccessFile {
        token: Bearer::from_text(made.token),
        ..access(house.directory.path(), "agent")
    };
    let eve = Client::with_access(&eve, common::LIMIT).unwrap();
    assert_eq!(code(eve.get::<Vec<AgentEntry>>("/v1/agents").await), Code::Unauthorized);
    assert_eq!(house.plans().await, []);
    let take = Open { take_over: true, ..opening("/x", Mode::Write, 0) };
    let plan = house.open(&take).await.unwrap();
    assert!(plan.generation > lost.generation);
}

#[tokio::test]
async fn an_agent_whose_list_of_segments_does_not_end_is_named_by_a_check() {
    let house = House::new(3).await;
    house.create("/x", 1 << 30).await.unwrap();
    let liar = &house.agents[1];
    liar.inner.is_endless.store(true, std::sync::atomic::Ordering::Relaxed);
    let began = std::time::Instant::now();
    let report: CheckReport = house.admin.get("/v1/check").await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let [difference] = &report.differences[..] else { panic!("{report:?}") };
    assert_eq!((difference.agent, difference.kind), (liar.inner.id, DifferenceKind::Implausible));
    assert!(difference.detail.contains("more than 131072 entries"), "{}", difference.detail);
    assert_eq!((report.agents, report.silent), (2, Vec::new()));
}

#[tokio::test]
async fn what_was_to_be_removed_from_an_agent_that_was_retired_is_removed_when_it_is_back() {
    let mut house = House::new(4).await;
    house.create("/x", 1 << 30).await.unwrap();
    let at = house.agents.iter().position(|agent| agent.allotments() > 0).unwrap();
    let path = format!("/v1/agents/{}/retire", house.agents[at].inner.id);
    house.agents[at].set_deaf(true);
    reachable(&house, 3).await;
    let _: serde::de::IgnoredAny = house.client.delete("/v1/name?path=/x").await.unwrap();
    let _: AgentEntry = house.admin.post(&path, &serde_json::json!({})).await.unwrap();
    assert_eq!(agents(&house).await.len(), 3);
    house.agents[at].set_deaf(false);
    assert!(house.agents[at].allotments() > 0);
    house.agents[at].join(&access(house.directory.path(), "agent")).await.unwrap();
    let is_gone = async {
        while house.agents[at].allotments() > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), is_gone).await.unwrap();
}

/// The members of data that is made on three agents.
async fn made(house: &House, path: &str) -> Result<Vec<AgentId>, RequestError> {
    let mut create = crate::common::data(path, 1 << 30);
    create.layout.members = Some(3);
    let made: Entry = house.client.post("/v1/names", &create).await?;
    Ok(made.stored.unwrap().members.iter().map(|member| member.agent).collect())
}

fn sorted(mut agents: Vec<AgentId>) -> Vec<AgentId> {
    agents.sort();
    agents
}

#[tokio::test]
async fn what_an_agent_with_a_full_disk_refuses_goes_to_others() {
    let refused: [(&str, common::Which); 2] = [
        ("/held", |operation| matches!(operation, Operation::Hold(_))),
        ("/made", |operation| matches!(operation, Operation::CreateSegment(_))),
    ];
    for (path, refused) in refused {
        let house = House::new(4).await;
        let before = made(&house, "/before").await.unwrap();
        // The agent with the most space left is chosen next.
        let full = house.agents.iter().find(|agent| !before.contains(&agent.inner.id)).unwrap();
        full.refuse(refused, FaultCode::Full);
        let members = made(&house, path).await.unwrap();
        assert_eq!(sorted(members), sorted(before), "{path}");

        // What the full agent was asked for is taken back.
        assert_eq!(full.allotments(), 0, "{path}");
        let report: CheckReport = house.admin.get("/v1/check").await.unwrap();
        assert_eq!(report.differences, [], "{path}");
    }
}

#[tokio::test]
async fn an_agent_that_refuses_is_named_with_its_reason_where_others_are_not_enough() {
    for (code, remedy) in [(FaultCode::Full, "netraid mediator drain"), (FaultCode::Failed, "")] {
        let house = House::new(3).await;
        let refusing = &house.agents[1];
        refusing.refuse(|operation| matches!(operation, Operation::Hold(_)), code);
        let refused = made(&house, "/x").await.unwrap_err();
        let detail = &refused.problem().unwrap().detail;
        let agent = format!("agent {} on host-2: cannot, as it is", refusing.inner.id);
        assert!(detail.contains(&agent) && detail.contains(remedy), "{detail}");
        assert!(!detail.contains("did not answer"), "{detail}");
    }
}

#[tokio::test]
async fn an_agent_that_refuses_a_rate_is_named_with_its_reason() {
    let house = House::new(3).await;
    made(&house, "/x").await.unwrap();
    let refusing = &house.agents[1];
    refusing.refuse(|operation| matches!(operation, Operation::Book { .. }), FaultCode::Full);
    let refused = house.open(&opening("/x", Mode::Write, 1_000_000)).await.unwrap_err();
    let detail = &refused.problem().unwrap().detail;
    let agent = format!("agent {} on host-2: cannot, as it is", refusing.inner.id);
    assert!(detail.contains(&agent) && detail.contains("netraid mediator drain"), "{detail}");
}

#[tokio::test]
async fn an_agent_that_refuses_a_generation_is_named_with_its_reason() {
    let house = House::new(3).await;
    made(&house, "/x").await.unwrap();
    let raises = |operation: &Operation| matches!(operation, Operation::RaiseGeneration { .. });
    house.agents.iter().for_each(|agent| agent.refuse(raises, FaultCode::Full));
    let refused = house.open(&opening("/x", Mode::Write, 0)).await.unwrap_err();
    let detail = &refused.problem().unwrap().detail;
    assert!(detail.contains(" on host-2: cannot, as it is; free space"), "{detail}");
}

#[tokio::test]
async fn an_agent_whose_clock_is_off_is_named_until_it_is_right() {
    let house = House::new(0).await;
    let joined = join(&house, "agent", &status()).await.unwrap();
    let agent = spoken(&house, &joined);
    let path = format!("/v1/agents/{LIES}");
    let says = async |off_ms: i64| {
        let clock = Some(netraid_control::units::Moment(now().0.saturating_add_signed(off_ms)));
        let beat = Beat { status: status(), keys_mark: String::new(), clock };
        let beaten: Beaten = agent.put(&path, &beat).await.unwrap();
        beaten.clock_ahead_ms.unwrap()
    };
    let listed = async || agents(&house).await[0].clock_ahead_ms;
    beat(&agent, &status()).await.unwrap();
    assert_eq!(listed().await, None, "it says nothing of its clock");
    assert!(says(0).await.abs() < 1000);
    let ahead = says(3_600_000).await;
    assert!((3_599_000..=3_600_000).contains(&ahead), "{ahead}");
    assert_eq!(listed().await, Some(ahead));
    // Who does not know the field does not get it.
    let entry = agents(&house).await.remove(0);
    assert_eq!(
        (entry.clone().as_of(2).clock_ahead_ms, entry.as_of(3).clock_ahead_ms),
        (None, Some(ahead))
    );
    for _ in 0..3 {
        says(0).await;
    }
    assert!(listed().await.unwrap().abs() < 1000);
    // Nobody waits for a line to be stored.
    let told = loop {
        let log: LogPage = house.admin.get("/v1/log").await.unwrap();
        let told: Vec<_> =
            log.entries.into_iter().filter(|entry| entry.what == "its clock").collect();
        if told.len() >= 2 {
            break told;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[0].who.contains("on host") && told[0].outcome.contains("s ahead of the mediator's"),
        "{told:?}"
    );
    assert_eq!(told[1].outcome, "it is right again");
}

#[tokio::test]
async fn an_agent_that_has_something_is_not_retired_and_what_it_has_is_named() {
    let house = House::new(3).await;
    for path in ["/full", "/also"] {
        house.create(path, 1 << 30).await.unwrap();
    }
    let retire = format!("/v1/agents/{}/retire", house.agents[0].inner.id);
    let refused = house.admin.post::<_, AgentEntry>(&retire, &()).await.unwrap_err();
    let problem = refused.problem().unwrap();
    assert_eq!(problem.code, Code::Conflict);
    for part in ["2 segments", "/full", "/also", "netraid volume heal PATH"] {
        assert!(problem.detail.contains(part), "{part}: {problem}");
    }
    for path in ["/full", "/also"] {
        house
            .client
            .delete::<serde::de::IgnoredAny>(&format!("/v1/name?path={path}"))
            .await
            .unwrap();
    }
    house.admin.post::<_, AgentEntry>(&retire, &()).await.unwrap();
}
