//! Serving HTTP: over TLS, or in the clear on loopback alone.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    http::{HeaderMap, header},
};
use axum_server::{Handle, tls_rustls::RustlsConfig};

use crate::{access::TokenDigest, tls::Identity};

/// How long requests have to end after a shutdown was asked for.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(3);

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Others would read secrets on the way.
    #[error(
        "{0} is not a loopback address, and without TLS everybody on the way reads what passes; \
         leave --insecure away, or listen on 127.0.0.1"
    )]
    Insecure(SocketAddr),
    /// It cannot be listened.
    #[error("cannot listen on {address}: {source}; choose an address of this host and a free port")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
}

/// A server that listens and does not serve yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    identity: Option<Identity>,
    address: SocketAddr,
}

impl Server {
    /// Listens; port 0 takes a free one. Without an identity nothing is encrypted.
    ///
    /// # Errors
    /// When that is not possible, or others could read it.
    pub fn bind(address: SocketAddr, identity: Option<Identity>) -> Result<Self, ServeError> {
        if identity.is_none() && !address.ip().is_loopback() {
            return Err(ServeError::Insecure(address));
        }
        let listen = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) =
            listen().map_err(|source| ServeError::Listen { address, source })?;
        Ok(Self { listener, identity, address })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL, if it is reached by the address that it listens on.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.identity.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Whom its clients are to trust.
    #[must_use]
    pub fn authority(&self) -> Option<&str> {
        self.identity.as_ref().map(|identity| identity.authority.as_str())
    }

    /// Serves until `stop` is done, then ends what is under way.
    ///
    /// # Errors
    /// Of the listener.
    pub async fn serve(
        self,
        router: Router,
        stop: impl Future<Output = ()> + Send,
    ) -> io::Result<()> {
        let handle = Handle::new();
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        let serving = async {
            match self.identity {
                Some(Identity { server, .. }) => {
                    let config = RustlsConfig::from_config(Arc::clone(&server));
                    let server = axum_server::from_tcp_rustls(self.listener, config)?;
                    server.handle(handle.clone()).serve(service).await
                }
                None => {
                    let server = axum_server::from_tcp(self.listener)?;
                    server.handle(handle.clone()).serve(service).await
                }
            }
        };
        let stopping = async {
            stop.await;
            handle.graceful_shutdown(Some(SHUTDOWN_LIMIT));
            std::future::pending::<()>().await;
        };
        tokio::select! {
            served = serving => served,
            () = stopping => Ok(()),
        }
    }
}

/// The digest of the bearer token that a request says.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<TokenDigest> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = text.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| TokenDigest::of(token.trim()))
}
