//! A server and its clients over real sockets.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{net::SocketAddr, time::Duration};

use axum::{Json, Router, http::HeaderMap, routing::get};
use netraid_cluster::{
    Code, Problem,
    access::{AccessError, AccessFile, Bearer},
    http::{Client, RequestError},
    serve::{ServeError, Server, bearer},
    tls::Identity,
};
use tokio::sync::oneshot;

const TIMEOUT: Duration = Duration::from_secs(5);

/// A server that answers whoever says `known`, until what it returns is dropped.
fn serve(identity: Option<Identity>, known: &Bearer) -> (String, oneshot::Sender<()>) {
    let digest = known.digest();
    let answer = move |headers: HeaderMap| async move {
        match bearer(&headers) == Some(digest) {
            true => Ok(Json(vec![1_u64, 2, 3])),
            false => Err(Problem::new(Code::Unauthorized, "nobody we know")),
        }
    };
    let router = Router::new().route("/v1/numbers", get(answer));
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), identity).unwrap();
    let url = server.url();
    let (stop, stopped) = oneshot::channel();
    tokio::spawn(server.serve(router, async {
        let _ = stopped.await;
    }));
    (url, stop)
}

#[tokio::test]
async fn a_client_trusts_the_authority_of_its_access_file_and_no_other() {
    let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let names = ["127.0.0.1".to_owned()];
    let identity = Identity::own(own.path(), &names).unwrap();
    // A restart makes another certificate by the same authority.
    let again = Identity::own(own.path(), &names).unwrap();
    assert_eq!(identity.authority, again.authority);
    let token = Bearer::draw();
    let (url, _stop) = serve(Some(again), &token);
    assert!(url.starts_with("https://"));
    let client = Client::new(&url, &token, Some(&identity.authority), TIMEOUT).unwrap();
    let answer: Vec<u64> = client.get("/v1/numbers").await.unwrap();
    assert_eq!(answer, [1, 2, 3]);

    let other = Identity::own(other.path(), &names).unwrap();
    for authority in [Some(other.authority.as_str()), None] {
        let client = Client::new(&url, &token, authority, TIMEOUT).unwrap();
        let answer: Result<Vec<u64>, _> = client.get("/v1/numbers").await;
        assert!(matches!(answer, Err(RequestError::Lost { .. })), "{answer:?}");
    }
    // A certificate for another name does not count either.
    let elsewhere = Identity::own(own.path(), &["192.0.2.1".to_owned()]).unwrap();
    let (url, _stop) = serve(Some(elsewhere), &token);
    let client = Client::new(&url, &token, Some(&identity.authority), TIMEOUT).unwrap();
    let answer: Result<Vec<u64>, _> = client.get("/v1/numbers").await;
    assert!(matches!(answer, Err(RequestError::Lost { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_refusal_comes_through_as_it_was_made() {
    let (url, _stop) = serve(None, &Bearer::draw());
    let client = Client::new(&url, &Bearer::draw(), None, TIMEOUT).unwrap();
    let answer: Result<Vec<u64>, _> = client.get("/v1/numbers").await;
    let error = answer.unwrap_err();
    assert_eq!(error.problem().map(|problem| problem.code), Some(Code::Unauthorized));
    let nothing: Result<Vec<u64>, _> = client.get("/v1/letters").await;
    assert!(matches!(nothing, Err(RequestError::Lost { .. })), "{nothing:?}");
}

#[test]
fn nobody_listens_in_the_clear_but_on_loopback() {
    let everywhere: SocketAddr = "0.0.0.0:0".parse().unwrap();
    assert!(matches!(Server::bind(everywhere, None), Err(ServeError::Insecure(_))));
    let directory = tempfile::tempdir().unwrap();
    let identity = Identity::own(directory.path(), &["localhost".to_owned()]).unwrap();
    assert!(Server::bind(everywhere, Some(identity)).is_ok());
}

#[test]
fn an_access_file_is_for_its_owner_alone_and_shows_nothing() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admin.access");
    let token = Bearer::draw();
    let access = AccessFile {
        version: 1,
        mediator: "https://x".into(),
        authority: None,
        token: token.clone(),
    };
    access.write(&path).unwrap();
    assert_eq!(AccessFile::read(&path).unwrap(), access);
    assert!(!format!("{access:?}").contains(token.expose()));
    let text = std::fs::read_to_string(&path).unwrap();
    for wrong in [
        text.replace("\"version\": 1", "\"version\": 2"),
        text.replace('{', "["),
        text.replace("https://x", "http://x"),
    ] {
        std::fs::write(&path, wrong).unwrap();
        let error = AccessFile::read(&path).unwrap_err();
        assert!(matches!(error, AccessError::Format { .. }), "{error}");
        assert!(!error.to_string().contains(token.expose()), "{error}");
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(AccessFile::read(&path), Err(AccessError::Open { mode: 0o640, .. })));
}
