//! A server and its clients over real sockets.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::DefaultBodyLimit,
    http::HeaderMap,
    routing::{get, post},
};
use netraid_cluster::{
    Code, Problem,
    access::{AccessError, AccessFile, Bearer},
    http::{Client, RequestError},
    serve::{Limits, ServeError, Server, bearer},
    tls::Identity,
};
use netraid_control::retry::Failure;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::oneshot,
};
use tokio_rustls::TlsConnector;

const TIMEOUT: Duration = Duration::from_secs(5);
/// How long `/v1/work` takes.
const WORK: Duration = Duration::from_millis(600);

/// A server that answers whoever says `known`, until what it returns is dropped.
fn serve(identity: Option<Identity>, known: &Bearer) -> (String, oneshot::Sender<()>) {
    serve_within(identity, known, Limits::DEFAULT)
}

fn serve_within(
    identity: Option<Identity>,
    known: &Bearer,
    limits: Limits,
) -> (String, oneshot::Sender<()>) {
    let digest = known.digest();
    let answer = move |headers: HeaderMap| async move {
        match bearer(&headers) == Some(digest) {
            true => Ok(Json(vec![1_u64, 2, 3])),
            false => Err(Problem::new(Code::Unauthorized, "nobody we know")),
        }
    };
    let router = Router::new()
        .route("/v1/numbers", get(answer))
        // Whoever it is: what a stranger sends is not there.
        .route("/v1/length", post(async |body: Bytes| body.len().to_string()))
        .route("/v1/work", get(async || tokio::time::sleep(WORK).await))
        .layer(DefaultBodyLimit::disable());
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), identity).unwrap();
    let server = server.with_limits(limits);
    let url = server.url();
    let (stop, stopped) = oneshot::channel();
    let knows = move |token: &_| *token == digest;
    tokio::spawn(server.serve(router, knows, async {
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

async fn connect(url: &str) -> TcpStream {
    TcpStream::connect(url.strip_prefix("http://").unwrap()).await.unwrap()
}

/// The beginning of a request, with the headers that are its own.
fn head(line: &str, token: Option<&Bearer>, more: &str) -> String {
    let token = token.map(|token| format!("Authorization: Bearer {}\r\n", token.expose()));
    format!("{line} HTTP/1.1\r\nHost: x\r\n{}{more}\r\n", token.unwrap_or_default())
}

/// All that comes until the server closes the connection, and how long that takes.
async fn rest(stream: &mut TcpStream) -> (String, Duration) {
    let (mut text, from) = (Vec::new(), Instant::now());
    // A server that closes while something is unread resets the connection.
    let _ = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut text)).await.unwrap();
    (String::from_utf8(text).unwrap(), from.elapsed())
}

#[tokio::test]
async fn the_body_of_a_stranger_is_not_waited_for_and_not_read() {
    let token = Bearer::draw();
    let (url, _stop) = serve(None, &token);
    let len = "Content-Length: 8388608\r\n";
    for known in [None, Some(&Bearer::draw())] {
        let mut stream = connect(&url).await;
        stream.write_all(head("POST /v1/length", known, len).as_bytes()).await.unwrap();
        let (answer, _) = rest(&mut stream).await;
        assert!(answer.contains("connection: close") && answer.ends_with("\r\n\r\n0"), "{answer}");
    }
    let mut stream = connect(&url).await;
    let body = format!("{}12345", head("POST /v1/length", Some(&token), "Content-Length: 5\r\n"));
    for _ in 0..2 {
        stream.write_all(body.as_bytes()).await.unwrap();
        let mut answer = [0; 512];
        let len = stream.read(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer[..len]);
        assert!(answer.ends_with("\r\n\r\n5") && !answer.contains("connection: close"), "{answer}");
    }
}

/// A server that closed at once would reset the connection, and the peer would never read why.
#[tokio::test]
async fn a_stranger_that_sends_all_of_a_long_body_reads_the_answer() {
    let token = Bearer::draw();
    let directory = tempfile::tempdir().unwrap();
    let identity = Identity::own(directory.path(), &["127.0.0.1".to_owned()]).unwrap();
    let head = head("POST /v1/length", None, "Content-Length: 8388608\r\n");
    let body = vec![b' '; 8 << 20];
    for identity in [None, Some(identity)] {
        let authority = identity.as_ref().map(|identity| identity.authority.clone());
        let (url, _stop) = serve(identity, &token);
        let mut stream = TcpStream::connect(url.rsplit('/').next().unwrap()).await.unwrap();
        let Some(authority) = authority else {
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(&body).await.unwrap();
            let (answer, _) = rest(&mut stream).await;
            assert!(answer.ends_with("\r\n\r\n0"), "{answer}");
            continue;
        };
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let connector = TlsConnector::from(Arc::new(config));
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let mut stream = connector.connect(name, stream).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&body).await.unwrap();
        let mut answer = Vec::new();
        tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
        assert!(answer.ends_with(b"\r\n\r\n0"), "{}", String::from_utf8_lossy(&answer));
    }
}

#[tokio::test]
async fn peers_that_only_hold_connections_keep_nobody_out() {
    let token = Bearer::draw();
    let directory = tempfile::tempdir().unwrap();
    let identity = Identity::own(directory.path(), &["127.0.0.1".to_owned()]).unwrap();
    let limits = Limits { connections_per_source: 8, ..Limits::DEFAULT };
    for identity in [None, Some(identity)] {
        let authority = identity.as_ref().map(|identity| identity.authority.clone());
        let (url, _stop) = serve_within(identity, &token, limits);
        let address = url.rsplit('/').next().unwrap();
        let client = Client::new(&url, &token, authority.as_deref(), TIMEOUT).unwrap();
        let mut held = Vec::new();
        for _ in 0..100 {
            held.push(TcpStream::connect(address).await.unwrap());
            let answer: Vec<u64> = client.get("/v1/numbers").await.unwrap();
            assert_eq!(answer, [1, 2, 3]);
        }
        let mut open = 0;
        for stream in &mut held {
            let mut byte = [0];
            let read = tokio::time::timeout(Duration::from_millis(1), stream.read(&mut byte));
            open += usize::from(read.await.is_err());
        }
        assert!((1..=8).contains(&open), "{open} of 100 are open");
    }
}

#[tokio::test]
async fn what_takes_too_long_is_ended_and_work_is_not() {
    let token = Bearer::draw();
    let short = Duration::from_millis(300);
    let limits = Limits { header: short, body: short, idle: short, ..Limits::DEFAULT };
    let (url, _stop) = serve_within(None, &token, limits);
    let mut silent = connect(&url).await;
    let mut slow = connect(&url).await;
    slow.write_all(b"GET /v1/numbers HTTP/1.1\r\nHos").await.unwrap();
    let mut half = connect(&url).await;
    let begun = head("POST /v1/length", Some(&token), "Content-Length: 5\r\n");
    half.write_all(format!("{begun}12").as_bytes()).await.unwrap();
    let mut idle = connect(&url).await;
    idle.write_all(head("GET /v1/numbers", Some(&token), "").as_bytes()).await.unwrap();
    let mut busy = connect(&url).await;
    let work = head("GET /v1/work", Some(&token), "Connection: close\r\n");
    busy.write_all(work.as_bytes()).await.unwrap();

    for peer in [&mut silent, &mut slow] {
        assert_eq!(rest(peer).await.0, "");
    }
    let (answer, _) = rest(&mut half).await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("--body-timeout"), "{answer}");
    let (answer, _) = rest(&mut idle).await;
    assert!(answer.ends_with("[1,2,3]"), "answered, then closed: {answer}");
    let (answer, taken) = rest(&mut busy).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(taken < TIMEOUT);
}

#[tokio::test]
async fn bodies_that_hold_too_much_are_refused_with_the_reason() {
    let token = Bearer::draw();
    let limits = Limits { bodies_bytes: 1 << 20, ..Limits::DEFAULT };
    let (url, _stop) = serve_within(None, &token, limits);
    let begin = |len| {
        let len = format!("Content-Length: {len}\r\n");
        head("POST /v1/length", Some(&token), &len)
    };
    let mut large = connect(&url).await;
    large.write_all(begin(2 << 20).as_bytes()).await.unwrap();
    large.write_all(&vec![b'x'; (1 << 20) + 1]).await.unwrap();
    let (answer, _) = rest(&mut large).await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("--body-memory"), "{answer}");
    // What it held is free again; one token has half of that.
    let mut small = connect(&url).await;
    small.write_all(begin(1 << 19).as_bytes()).await.unwrap();
    small.write_all(&vec![b'x'; 1 << 19]).await.unwrap();
    let mut answer = [0; 512];
    let len = small.read(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer[..len]);
    assert!(answer.ends_with("\r\n\r\n524288"), "{answer}");
}

#[tokio::test]
async fn each_answer_and_each_request_says_its_version_of_documents() {
    let token = Bearer::draw();
    let (url, _stop) = serve(None, &token);
    for known in [None, Some(&token)] {
        let mut stream = connect(&url).await;
        let asked = head("GET /v1/numbers", known, "Connection: close\r\n");
        stream.write_all(asked.as_bytes()).await.unwrap();
        let (answer, _) = rest(&mut stream).await;
        assert!(answer.to_ascii_lowercase().contains("\r\nnetraid-documents: 3\r\n"), "{answer}");
    }
    let client = Client::new(&url, &token, None, TIMEOUT).unwrap();
    assert_eq!(client.documents(), None);
    let _: Vec<u64> = client.get("/v1/numbers").await.unwrap();
    assert_eq!((client.documents(), client.clone().documents()), (Some(3), Some(3)));
}

/// A server that answers each request with this, and gives the requests out.
async fn answering(answer: &'static str) -> (String, tokio::sync::mpsc::Receiver<String>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, requests) = tokio::sync::mpsc::channel(16);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut text = Vec::new();
            while !text.ends_with(b"\r\n\r\n") {
                text.push(stream.read_u8().await.unwrap());
            }
            sender.send(String::from_utf8(text).unwrap()).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (url, requests)
}

#[tokio::test]
async fn a_client_speaks_what_the_daemon_says_and_takes_one_that_says_nothing_for_the_first() {
    let answers = [
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]", Some(1)),
        (
            "HTTP/1.1 200 OK\r\nNetraid-Documents: 1\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]",
            Some(1),
        ),
        (
            "HTTP/1.1 200 OK\r\nnetraid-documents: 2\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]",
            Some(2),
        ),
        (
            "HTTP/1.1 200 OK\r\nnetraid-documents: 99\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]",
            Some(3),
        ),
        (
            "HTTP/1.1 403 Forbidden\r\nnetraid-documents: 2\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            Some(2),
        ),
        ("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", None),
        (
            "HTTP/1.1 200 OK\r\nnetraid-documents: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]",
            None,
        ),
    ];
    for (answer, version) in answers {
        let (url, mut requests) = answering(answer).await;
        let client = Client::new(&url, &Bearer::draw(), None, TIMEOUT).unwrap();
        let got = client.get::<Vec<u64>>("/v1/numbers").await;
        assert_eq!(client.documents(), version, "{answer} {got:?}");
        let request = requests.recv().await.unwrap();
        assert!(request.to_ascii_lowercase().contains("\r\nnetraid-documents: 3\r\n"), "{request}");
        if let (Err(error), true) = (got, answer.contains(": x")) {
            assert!(error.to_string().contains("says 'x' in the header"), "{error}");
        }
    }
}

/// How a daemon ends a connection.
#[derive(Clone, Copy)]
enum Cut {
    /// Before it has read anything.
    AtOnce,
    /// When it has read a request: that may have been carried out.
    AfterReading,
}

/// A daemon that cuts so many connections, and answers all later requests. Counts the requests that it has read.
async fn cutting(cut: Cut, times: u32) -> (String, Arc<AtomicU32>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let read = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&read);
    tokio::spawn(async move {
        for number in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            if number < times && matches!(cut, Cut::AtOnce) {
                continue;
            }
            let mut text = Vec::new();
            while !text.ends_with(b"\r\n\r\n") {
                text.push(stream.read_u8().await.unwrap());
            }
            count.fetch_add(1, Ordering::Relaxed);
            if number >= times {
                let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]";
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    });
    (url, read)
}

#[tokio::test]
async fn who_has_patience_asks_again_and_does_nothing_twice() {
    type Numbers = Vec<u64>;
    let patience = Duration::from_secs(20);
    for cut in [Cut::AtOnce, Cut::AfterReading] {
        let (url, _) = cutting(cut, 2).await;
        let hasty = Client::new(&url, &Bearer::draw(), None, TIMEOUT).unwrap();
        let patient = hasty.clone().with_patience(patience);
        assert!(hasty.get::<Numbers>("/v1/numbers").await.is_err(), "asked once");
        assert!(patient.get::<Numbers>("/v1/numbers").await.unwrap().is_empty());
    }
    // What may have been done is not done again; what says that it can be is.
    let (url, read) = cutting(Cut::AfterReading, 2).await;
    let client = Client::new(&url, &Bearer::draw(), None, TIMEOUT).unwrap().with_patience(patience);
    let lost = client.delete::<Numbers>("/v1/numbers").await.unwrap_err();
    assert_eq!((lost.failure(), read.load(Ordering::Relaxed)), (Failure::Broken, 1));
    let asked = client.delete_again::<Numbers>("/v1/numbers").await;
    assert!(asked.may_be_done && asked.answer.is_ok(), "{asked:?}");
    assert_eq!(read.load(Ordering::Relaxed), 3);

    // Nobody is there yet: everything is sent, once somebody is.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, token) = (free.local_addr().unwrap(), Bearer::draw());
    drop(free);
    let url = format!("http://{address}");
    let client = Client::new(&url, &token, None, TIMEOUT).unwrap().with_patience(patience);
    let asking = tokio::spawn(async move { client.post::<_, u64>("/v1/length", &[1, 2]).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let router =
        Router::new().route("/v1/length", post(async |body: Bytes| body.len().to_string()));
    let server = Server::bind(address, None).unwrap();
    let digest = token.digest();
    let knows = move |token: &_| *token == digest;
    tokio::spawn(server.serve(router, knows, std::future::pending()));
    assert_eq!(asking.await.unwrap().unwrap(), 5);
}

#[tokio::test]
async fn what_no_other_attempt_mends_is_not_asked_again() {
    let patience = Duration::from_secs(20);
    let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let names = ["127.0.0.1".to_owned()];
    let identity = Identity::own(own.path(), &names).unwrap();
    let other = Identity::own(other.path(), &names).unwrap();
    let (url, _stop) = serve(Some(identity), &Bearer::draw());
    let client = Client::new(&url, &Bearer::draw(), Some(&other.authority), TIMEOUT).unwrap();
    let client = client.with_patience(patience);
    let began = Instant::now();
    let wrong = client.get::<Vec<u64>>("/v1/numbers").await.unwrap_err();
    assert_eq!(wrong.failure(), Failure::Final, "an authority of somebody else: {wrong}");

    let (url, _stop) = serve(None, &Bearer::draw());
    let client = Client::new(&url, &Bearer::draw(), None, TIMEOUT).unwrap().with_patience(patience);
    let refused = client.get::<Vec<u64>>("/v1/numbers").await.unwrap_err();
    assert!(refused.problem().is_some(), "{refused}");
    assert!(began.elapsed() < Duration::from_secs(10));
}
