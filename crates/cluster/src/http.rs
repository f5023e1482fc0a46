//! A client of JSON over HTTP, with one address, one bearer token, one authority to trust, and
//! connections that are kept.

use std::{
    error::Error as StdError,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::http::{
    HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header, uri::PathAndQuery,
};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Body;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client as Pool, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use netraid_control::{
    retry::{Failure, Next, Repeat, Retry},
    text::shown,
    units::RequestId,
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use crate::{
    access::{AccessFile, Bearer},
    documents::{self, Spoken},
    gathered::Gathered,
    problem::Problem,
    tls::{TlsError, client_config},
    vet::{UrlError, url_host},
};

/// Bytes of an answer, at most.
const ANSWER_LEN_MAX: usize = 64 << 20;
/// Connections that are kept while nothing is asked.
const IDLE_MAX: usize = 16;

/// The header by which a daemon knows a request that was sent before: what has one of its own is not done twice.
pub const REQUEST: HeaderName = HeaderName::from_static("netraid-request");

/// Why a request has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RequestError {
    /// It was refused.
    #[error("{0}")]
    Refused(#[from] Problem),
    /// Nobody knows whether it was carried out.
    #[error("{url}: {why}")]
    Lost {
        /// Who was asked.
        url: String,
        /// What went wrong.
        why: String,
        /// Whether asking again may help.
        failure: Failure,
    },
}

impl RequestError {
    /// Whether asking again may help; after a refusal it does not.
    #[must_use]
    pub const fn failure(&self) -> Failure {
        match self {
            Self::Refused(_) => Failure::Final,
            Self::Lost { failure, .. } => *failure,
        }
    }

    /// The problem, if it was refused.
    #[must_use]
    pub const fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused(problem) => Some(problem),
            Self::Lost { .. } => None,
        }
    }
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody is asked at that address.
    #[error("'{}': {why}", shown(.url))]
    Url {
        /// The address.
        url: String,
        /// Why not.
        why: UrlError,
    },
    /// The token cannot be sent.
    #[error("the bearer token has characters that a header cannot have")]
    Token,
    /// The authority is none.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// What came of a request that may have been sent several times.
#[derive(Debug)]
pub struct Asked<A> {
    /// The answer to the last one.
    pub answer: Result<A, RequestError>,
    /// Whether one before it, of which no answer came, may have been carried out. Then a refusal may say no more than
    /// that.
    pub may_be_done: bool,
}

/// What is wrong with an exchange, and whether another one may go better.
type Wrong = (String, Failure);

/// A client; clones share its connections.
///
/// It asks once, and goes on asking only for as long as [`Client::with_patience`] says: what is read, and what is said
/// to be [`Repeat::Safe`], whenever no answer came; everything else only while the daemon is not reached at all.
#[derive(Clone)]
pub struct Client {
    pool: Pool<HttpsConnector<HttpConnector>, Full<Bytes>>,
    base: Uri,
    token: HeaderValue,
    timeout: Duration,
    spoken: Arc<Spoken>,
    patience: Duration,
    /// Whether it was said that the daemon is waited for, since it answered last.
    told: Arc<AtomicBool>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({})", self.base)
    }
}

impl Client {
    /// A client of the daemon at this URL, which says this token and trusts this authority alone.
    ///
    /// # Errors
    /// When these are none.
    pub fn new(
        url: &str,
        token: &Bearer,
        authority: Option<&str>,
        timeout: Duration,
    ) -> Result<Self, ClientError> {
        let wrong = |why| ClientError::Url { url: url.to_owned(), why };
        url_host(url).map_err(wrong)?;
        let base: Uri = url.parse().map_err(|_| wrong(UrlError::Form))?;
        let mut header = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
            .map_err(|_| ClientError::Token)?;
        header.set_sensitive(true);
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(timeout));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(client_config(authority)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let pool = Pool::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_max_idle_per_host(IDLE_MAX)
            .build(connector);
        let (spoken, patience, told) = (Arc::default(), Duration::ZERO, Arc::default());
        Ok(Self { pool, base, token: header, timeout, spoken, patience, told })
    }

    /// The same client, which goes on asking for so long where it does not reach the daemon, and says so in the log
    /// once.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The version of documents that is spoken with the daemon; none as long as it has not answered.
    #[must_use]
    pub fn documents(&self) -> Option<u32> {
        self.spoken.version()
    }

    /// The client that an access file describes.
    ///
    /// # Errors
    /// When what it says is none.
    pub fn with_access(access: &AccessFile, timeout: Duration) -> Result<Self, ClientError> {
        Self::new(&access.mediator, &access.token, access.authority.as_deref(), timeout)
    }

    /// `GET`. `path` is with its query, each part of it percent-encoded ([`encode`]).
    ///
    /// # Errors
    /// When there is no answer, or a refusal.
    pub async fn get<A: DeserializeOwned>(&self, path: &str) -> Result<A, RequestError> {
        self.ask(Method::GET, path, None::<&()>, (Repeat::Safe, None)).await.answer
    }

    /// `POST`.
    ///
    /// # Errors
    /// When there is no answer, or a refusal.
    pub async fn post<B: Serialize + Sync, A: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<A, RequestError> {
        self.ask(Method::POST, path, Some(body), (Repeat::Unsent, None)).await.answer
    }

    /// `PUT`.
    ///
    /// # Errors
    /// When there is no answer, or a refusal.
    pub async fn put<B: Serialize + Sync, A: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<A, RequestError> {
        self.ask(Method::PUT, path, Some(body), (Repeat::Unsent, None)).await.answer
    }

    /// `DELETE`.
    ///
    /// # Errors
    /// When there is no answer, or a refusal.
    pub async fn delete<A: DeserializeOwned>(&self, path: &str) -> Result<A, RequestError> {
        self.ask(Method::DELETE, path, None::<&()>, (Repeat::Unsent, None)).await.answer
    }

    /// `POST` of what changes nothing more when it is carried out twice, or of what the daemon knows again by an id.
    pub async fn post_again<B: Serialize + Sync, A: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        id: Option<RequestId>,
    ) -> Asked<A> {
        self.ask(Method::POST, path, Some(body), (Repeat::Safe, id)).await
    }

    /// `DELETE` of what is not there a second time.
    pub async fn delete_again<A: DeserializeOwned>(&self, path: &str) -> Asked<A> {
        self.ask(Method::DELETE, path, None::<&()>, (Repeat::Safe, None)).await
    }

    /// Asks, and again as [`Retry`] says.
    async fn ask<B: Serialize + Sync, A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
        (repeat, id): (Repeat, Option<RequestId>),
    ) -> Asked<A> {
        let mut retry = Retry::new(ms(self.patience), repeat);
        let began = Instant::now();
        loop {
            let answer = self.ask_once(method.clone(), path, body, id).await;
            let Err(error) = answer else {
                self.told.store(false, Ordering::Relaxed);
                return Asked { answer, may_be_done: retry.may_be_done() };
            };
            match retry.handle_failed(ms(began.elapsed()), error.failure(), rand::random()) {
                Next::Over => {
                    return Asked { answer: Err(error), may_be_done: retry.may_be_done() };
                }
                Next::Again { after_ms } => {
                    self.tell_that_it_waits(&error);
                    tokio::time::sleep(Duration::from_millis(after_ms)).await;
                }
            }
        }
    }

    /// In one line, until there is an answer.
    fn tell_that_it_waits(&self, error: &RequestError) {
        if !self.told.swap(true, Ordering::Relaxed) {
            let bound = self.patience.as_secs_f64();
            tracing::warn!("{error}; waiting for it, {bound} s at most");
        }
    }

    async fn ask_once<B: Serialize + Sync, A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
        id: Option<RequestId>,
    ) -> Result<A, RequestError> {
        let lost =
            |(why, failure): Wrong| RequestError::Lost { url: self.base.to_string(), why, failure };
        let exchange = self.exchange(method, path, body, id);
        let asked = tokio::time::timeout(self.timeout, exchange).await;
        let late = || {
            let why = format!("no answer within {} ms", self.timeout.as_millis());
            lost((why, Failure::Final))
        };
        let (status, bytes) = asked.map_err(|_| late())?.map_err(lost)?;
        if status.is_success() {
            let wrong = |error| lost((format!("an answer that is none: {error}"), Failure::Final));
            return serde_json::from_slice(&bytes).map_err(wrong);
        }
        match serde_json::from_slice::<Problem>(&bytes) {
            Ok(problem) => Err(RequestError::Refused(problem.readable())),
            Err(_) => Err(lost((format!("status {status}"), failure_of_status(status)))),
        }
    }

    async fn exchange<B: Serialize + Sync>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
        id: Option<RequestId>,
    ) -> Result<(StatusCode, Bytes), Wrong> {
        let mut uri = self.base.clone().into_parts();
        uri.path_and_query = Some(path.parse::<PathAndQuery>().map_err(unsendable)?);
        let uri = Uri::from_parts(uri).map_err(unsendable)?;
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .header(header::AUTHORIZATION, &self.token)
            .header(documents::HEADER, documents::own());
        if let Some(id) = id {
            request = request.header(REQUEST, id.to_string());
        }
        let bytes = match body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                serde_json::to_vec(body).map_err(unsendable)?
            }
            None => Vec::new(),
        };
        let request = request.body(Full::from(bytes)).map_err(unsendable)?;
        let answer = self.pool.request(request).await;
        let answer = answer.map_err(|error| (told(&error), failure_of(&error)))?;
        let status = answer.status();
        let spoken = self.spoken.handle_answer(answer.headers(), status.is_success());
        spoken.map_err(unsendable)?;
        let bytes = gather(answer.into_body()).await;
        Ok((status, bytes.map_err(|error| (error.to_string(), failure_of_body(&*error)))?))
    }
}

/// Milliseconds of a time; clamped: so long is as good as for ever.
fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What is wrong on this side, or with what both speak: it is the same the next time.
fn unsendable(error: impl std::fmt::Display) -> Wrong {
    (error.to_string(), Failure::Final)
}

/// Whether it may help to ask again after this, by the outermost cause that says so.
fn failure_of(error: &hyper_util::client::legacy::Error) -> Failure {
    let is_cut = causes(error).any(is_cut);
    match (error.is_connect(), is_cut) {
        (true, true) => Failure::Unreached,
        (false, true) => Failure::Broken,
        // No such host, or a certificate of somebody else.
        (_, false) => Failure::Final,
    }
}

/// Whether this says that nobody is there, or not any more.
fn is_cut(cause: &(dyn StdError + 'static)) -> bool {
    if let Some(error) = cause.downcast_ref::<hyper::Error>() {
        return error.is_incomplete_message() || error.is_canceled() || error.is_closed();
    }
    let Some(error) = cause.downcast_ref::<io::Error>() else { return false };
    // What an error of the system's is wrapped in is none of its causes.
    let is_inner_cut = error.get_ref().is_some_and(|inner| causes(inner).any(is_cut));
    let is_own_cut = matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::NotConnected
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::TimedOut
    );
    is_own_cut || is_inner_cut
}

/// An answer that ended too early; one that is too long is so each time.
fn failure_of_body(error: &(dyn StdError + Send + Sync + 'static)) -> Failure {
    match error.is::<LengthLimitError>() {
        true => Failure::Final,
        false => Failure::Broken,
    }
}

/// What stands before a daemon says so where it does not reach that.
const fn failure_of_status(status: StatusCode) -> Failure {
    match status {
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            Failure::Broken
        }
        _ => Failure::Final,
    }
}

/// An error, and what caused it.
fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error: &&'a (dyn StdError + 'static)| error.source())
}

/// All of an answer, unless it is too long.
async fn gather<B>(body: B) -> Result<Bytes, Box<dyn StdError + Send + Sync>>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    let body = Limited::new(Gathered::new(body), ANSWER_LEN_MAX);
    Ok(body.collect().await?.to_bytes())
}

/// An error with what caused it: the outer ones say little.
fn told(error: &(dyn StdError + 'static)) -> String {
    let texts: Vec<String> = causes(error).map(ToString::to_string).collect();
    texts.join(": ")
}

/// A part of a path or query, percent-encoded.
#[must_use]
pub fn encode(part: &str) -> String {
    percent_encoding::utf8_percent_encode(part, percent_encoding::NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::Ordering};

    use super::*;
    use crate::gathered::tests::Pieces;

    #[tokio::test]
    async fn what_is_kept_of_an_answer_is_in_proportion_to_its_length_however_small_its_pieces() {
        for is_sized in [true, false] {
            let pieces = Pieces::new(100_000, 1, is_sized);
            let kept_most = Arc::clone(&pieces.kept_most);
            assert_eq!(gather(pieces).await.unwrap().len(), 100_000);
            assert_eq!(kept_most.load(Ordering::Relaxed), 1, "buffers that its pieces came in");
        }
    }

    #[tokio::test]
    async fn an_answer_that_is_too_long_is_none() {
        let longest = Pieces::new(ANSWER_LEN_MAX, 1 << 20, true);
        assert_eq!(gather(longest).await.unwrap().len(), ANSWER_LEN_MAX);
        let longer = Pieces::new(ANSWER_LEN_MAX + 1, 1 << 20, false);
        assert!(gather(longer).await.unwrap_err().to_string().contains("limit"));
    }
}
