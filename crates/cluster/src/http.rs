//! A client of JSON over HTTP, with one address, one bearer token, one authority to trust, and
//! connections that are kept.

use std::{sync::Arc, time::Duration};

use axum::http::{HeaderValue, Method, Request, Uri, header, uri::PathAndQuery};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Body;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client as Pool, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use netraid_control::text::shown;
use serde::{Serialize, de::DeserializeOwned};

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
    },
}

impl RequestError {
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

/// A client; clones share its connections.
#[derive(Clone)]
pub struct Client {
    pool: Pool<HttpsConnector<HttpConnector>, Full<Bytes>>,
    base: Uri,
    token: HeaderValue,
    timeout: Duration,
    spoken: Arc<Spoken>,
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
        Ok(Self { pool, base, token: header, timeout, spoken: Arc::default() })
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
        self.ask(Method::GET, path, None::<&()>).await
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
        self.ask(Method::POST, path, Some(body)).await
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
        self.ask(Method::PUT, path, Some(body)).await
    }

    /// `DELETE`.
    ///
    /// # Errors
    /// When there is no answer, or a refusal.
    pub async fn delete<A: DeserializeOwned>(&self, path: &str) -> Result<A, RequestError> {
        self.ask(Method::DELETE, path, None::<&()>).await
    }

    async fn ask<B: Serialize + Sync, A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<A, RequestError> {
        let lost = |why: String| RequestError::Lost { url: self.base.to_string(), why };
        let asked = tokio::time::timeout(self.timeout, self.exchange(method, path, body)).await;
        let late = || lost(format!("no answer within {} ms", self.timeout.as_millis()));
        let (status, bytes) = asked.map_err(|_| late())?.map_err(lost)?;
        if status.is_success() {
            let wrong = |error| lost(format!("an answer that is none: {error}"));
            return serde_json::from_slice(&bytes).map_err(wrong);
        }
        match serde_json::from_slice::<Problem>(&bytes) {
            Ok(problem) => Err(RequestError::Refused(problem.readable())),
            Err(_) => Err(lost(format!("status {status}"))),
        }
    }

    async fn exchange<B: Serialize + Sync>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<(axum::http::StatusCode, Bytes), String> {
        let mut uri = self.base.clone().into_parts();
        uri.path_and_query = Some(path.parse::<PathAndQuery>().map_err(|error| error.to_string())?);
        let uri = Uri::from_parts(uri).map_err(|error| error.to_string())?;
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .header(header::AUTHORIZATION, &self.token)
            .header(documents::HEADER, documents::own());
        let bytes = match body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                serde_json::to_vec(body).map_err(|error| error.to_string())?
            }
            None => Vec::new(),
        };
        let request = request.body(Full::from(bytes)).map_err(|error| error.to_string())?;
        let answer = self.pool.request(request).await.map_err(|error| told(&error))?;
        let status = answer.status();
        let spoken = self.spoken.handle_answer(answer.headers(), status.is_success());
        spoken.map_err(|error| error.to_string())?;
        Ok((status, gather(answer.into_body()).await?))
    }
}

/// All of an answer, unless it is too long.
async fn gather<B>(body: B) -> Result<Bytes, String>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    let body = Limited::new(Gathered::new(body), ANSWER_LEN_MAX);
    let body = body.collect().await.map_err(|error| error.to_string())?;
    Ok(body.to_bytes())
}

/// An error with what caused it: the outer ones say little.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
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
        assert!(gather(longer).await.unwrap_err().contains("limit"));
    }
}
