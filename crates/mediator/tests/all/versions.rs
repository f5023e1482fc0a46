//! Programs of other versions: what is spoken with them, and what of their documents is passed over or refused.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use netraid_cluster::{
    access::{AccessFile, Bearer},
    mediator::{AgentEntry, Beat, Entry, Joined, Mode, Page},
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    agents::{join, status},
    common::{House, access, data, opening},
};

/// Asks as a program that says these headers: status and body of the answer.
async fn raw(access: &AccessFile, line: &str, headers: &str, body: &str) -> (u16, Value) {
    let address = access.mediator.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.unwrap();
    let (len, token) = (body.len(), access.token.expose());
    let request = format!(
        "{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
         Content-Length: {len}\r\n{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap())
}

/// A document with a field that this program does not know.
fn with_more(document: &impl Serialize, name: &str) -> String {
    let mut value = serde_json::to_value(document).unwrap();
    value[name] = json!("secret");
    value.to_string()
}

#[tokio::test]
async fn an_agent_is_listed_with_the_version_that_it_said_last() {
    let house = House::new(0).await;
    let joined: Joined = join(&house, "agent", &status()).await.unwrap();
    let token = Bearer::from_text(joined.token);
    let agent = AccessFile { token, ..access(house.directory.path(), "agent") };
    let listed = async || {
        let listed: Vec<AgentEntry> = house.admin.get("/v1/agents").await.unwrap();
        listed[0].documents
    };
    assert_eq!(listed().await, Some(3), "it said so as it joined");
    let beat =
        serde_json::to_string(&Beat { status: status(), keys_mark: String::new(), clock: None })
            .unwrap();
    let line = format!("PUT /v1/agents/{}", status().agent);
    for (said, version) in [
        ("", 1),
        ("netraid-documents: 2\r\n", 2),
        ("netraid-documents: 1\r\n", 1),
        ("netraid-documents: 99\r\n", 3),
    ] {
        let (code, beaten) = raw(&agent, &line, said, &beat).await;
        assert_eq!(code, 200, "{beaten}");
        assert_eq!(listed().await, Some(version), "{said}");
    }
    for said in ["netraid-documents: 0\r\n", "netraid-documents: 2\r\nnetraid-documents: 1\r\n"] {
        let (code, refused) = raw(&agent, &line, said, &beat).await;
        assert_eq!((code, &refused["code"]), (400, &json!("invalid")), "{refused}");
        assert_eq!(listed().await, Some(3), "{said}");
    }
}

#[tokio::test]
async fn a_client_of_the_version_before_gets_agents_as_it_knows_them() {
    let house = House::new(1).await;
    let admin = access(house.directory.path(), "admin");
    let id = house.agents[0].inner.id;
    for line in ["GET /v1/agents".to_owned(), format!("POST /v1/agents/{id}/drain")] {
        for (said, knows) in [("", false), ("netraid-documents: 2\r\n", true)] {
            let (code, answer) = raw(&admin, &line, said, "").await;
            assert_eq!(code, 200, "{answer}");
            let entry = answer.as_array().map_or(&answer, |entries| &entries[0]);
            assert_eq!(entry.get("documents").is_some(), knows, "{line}: {entry}");
        }
    }
    // Who is not known learns nothing of what it says wrong.
    let stranger = AccessFile { token: Bearer::draw(), ..admin };
    let (code, _) = raw(&stranger, "GET /v1/agents", "netraid-documents: x\r\n", "").await;
    assert_eq!(code, 401);
}

#[tokio::test]
async fn a_filter_that_is_not_known_is_refused_instead_of_answered_with_more_than_was_asked_for() {
    let house = House::new(3).await;
    house.create("/a", 1 << 20).await.unwrap();
    for path in ["/v1/names?path=%2F&colour=x", "/v1/plans?colour=x", "/v1/log?colour=x"] {
        let told = house.admin.get::<Value>(path).await.unwrap_err().to_string();
        for part in ["'colour'", "this mediator", "documents of version 3"] {
            assert!(told.contains(part), "{path}: {told}");
        }
    }
    let page: Page = house.client.get("/v1/names?path=%2F").await.unwrap();
    assert_eq!(page.entries.len(), 1);
}

#[tokio::test]
async fn what_reports_may_say_more_than_the_mediator_knows() {
    let house = House::new(3).await;
    let joined: Joined = join(&house, "agent", &status()).await.unwrap();
    let token = Bearer::from_text(joined.token);
    let agent = AccessFile { token, ..access(house.directory.path(), "agent") };
    let mut beat = json!({ "status": status(), "keys_mark": "", "colour": "x" });
    beat["status"]["temperature"] = json!(3);
    let line = format!("PUT /v1/agents/{}", status().agent);
    let (code, beaten) = raw(&agent, &line, "", &beat.to_string()).await;
    assert_eq!(code, 200, "{beaten}");
}

#[tokio::test]
async fn what_could_be_more_than_was_meant_is_refused_by_the_name_of_its_field() {
    let house = House::new(3).await;
    let made: Entry = house.create("/a", 1 << 20).await.unwrap();
    let client = access(house.directory.path(), "client");
    let admin = access(house.directory.path(), "admin");
    let rename = json!({ "from": "/a", "to": "/b" });
    let new = json!({ "role": "client", "name": "x" });
    let layout = json!({ "path": "/c", "kind": "data", "layout": { "only_if": "secret" } });
    let joining = json!({ "status": status(), "token": "t".repeat(32), "authority": null });
    let requests = [
        (&client, "POST /v1/names", with_more(&data("/b", 1), "only_if")),
        (&client, "POST /v1/names", layout.to_string()),
        (&client, "POST /v1/rename", with_more(&rename, "only_if")),
        (&client, "POST /v1/plans", with_more(&opening("/a", Mode::Write, 0), "only_if")),
        (&admin, "POST /v1/access", with_more(&new, "only_if")),
        (&admin, "POST /v1/agents", with_more(&joining, "only_if")),
        (&client, "DELETE /v1/name?path=%2Fa&only_if=secret", String::new()),
    ];
    for (access, line, body) in requests {
        let (code, refused) = raw(access, line, "", &body).await;
        let told = refused["detail"].as_str().unwrap();
        assert_eq!(code, 400, "{line}: {told}");
        for part in ["'only_if'", "this mediator", "documents of version 3", "upgrade the mediator"]
        {
            assert!(told.contains(part), "{line}: {told}");
        }
        assert!(!told.contains("secret"), "{line}: {told}");
    }
    let (_, page) = raw(&client, "GET /v1/names?path=%2F", "", "").await;
    assert_eq!(page["entries"].as_array().unwrap().len(), 1, "{page}");
    assert_eq!(page["entries"][0]["id"], json!(made.id));
    assert!(house.plans().await.is_empty());
}
