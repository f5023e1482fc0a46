//! Serving HTTP: over TLS, or in the clear on loopback alone.
//!
//! Who is let in, who leaves for others, and whose time is over is `netraid_control::limiter`'s to say:
//! [`doors`] asks it, and [`connection`] does what it says.

mod connection;
mod doors;

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
use tokio::{sync::watch, task::JoinSet};
use tokio_rustls::TlsAcceptor;

pub use netraid_control::limiter::Limits;

use self::{connection::Serving, doors::Doors};
use crate::{access::TokenDigest, documents, tls::Identity};

/// How long requests have to end after a shutdown was asked for.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(3);
/// Waiting for the next connection when the last could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

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
    limits: Limits,
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
        Ok(Self { listener, identity, address, limits: Limits::DEFAULT })
    }

    /// The same with other limits. It has no more connections than a quarter of the files and sockets that
    /// this process may have open.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
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

    /// Serves until `stop` is done, then ends what is under way. Each answer says the version of documents
    /// that is known here. `knows` says whose token is known: nothing
    /// but its header is read of a request without one.
    ///
    /// # Errors
    /// Of the listener.
    ///
    /// # Panics
    /// When it is neither encrypted nor of this host alone, which [`Server::bind`] refuses.
    pub async fn serve(
        self,
        router: Router,
        knows: impl Fn(&TokenDigest) -> bool + Send + Sync + 'static,
        stop: impl Future<Output = ()> + Send,
    ) -> io::Result<()> {
        let is_private = self.identity.is_some() || self.address.ip().is_loopback();
        assert!(is_private, "others on the way would read what passes");
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let limits = self.limits.within_descriptors(netraid_private::descriptor_limit());
        let (stop_now, stopped) = watch::channel(false);
        let doors = Arc::new(Doors::new(limits));
        let serving = Serving {
            router: router.layer(axum::middleware::map_response(documents::say)),
            knows: Arc::new(knows),
            tls: self.identity.map(|identity| TlsAcceptor::from(identity.server)),
            stopped,
        };
        let mut connections = JoinSet::new();
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        if let Some(place) = doors.arrive(peer) {
                            connections.spawn(serving.clone().serve(stream, peer, place));
                        }
                    }
                    Err(error) => {
                        doors.handle_failed_accept(&error);
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
            }
        }
        drop(listener);
        stop_now.send_replace(true);
        let all = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(SHUTDOWN_LIMIT, all).await;
        Ok(())
    }
}

/// The digest of the bearer token that a request says.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<TokenDigest> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = text.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| TokenDigest::of(token.trim()))
}
