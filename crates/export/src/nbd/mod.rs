//! A server of the NBD protocol (newstyle, fixed) for one device.
//!
//! One task for each connection, none for a request. Several connections see one device: what one
//! has written and got a reply for, the others read, and a flush on one covers all.

mod address;
mod budget;
mod connection;
mod errno;
mod handshake;
mod receive;
mod stream;
mod wire;

use std::{future::Future, io, path::PathBuf, sync::Arc, time::Duration};

use netraid_block::{IoError, Pool};
use rustix::net::sockopt;
use tokio::{
    net::{TcpListener, UnixListener, UnixStream},
    sync::watch,
    task::JoinSet,
    time::timeout,
};

pub use self::address::{NbdAddress, NbdAddressError};
use self::{
    budget::{Budget, Share},
    connection::Connection,
    handshake::{Export, Outcome, negotiate},
    stream::Stream,
};
use netraid_engine::bytes::ByteDevice;

use crate::flush;

/// Longest read or write in bytes, which every client may rely on (NBD, block size constraints).
const PAYLOAD_LEN_MAX: u32 = 32 << 20;
/// Most clients at once; more wait to be accepted.
const CONNECTIONS_MAX: usize = 64;
/// How long a client may take to negotiate.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long requests under way may take after the server was told to stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after accepting failed for want of resources.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Names are at most this many bytes (NBD, string limits).
const NAME_LEN_MAX: usize = 4096;

/// Why an export cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// The name cannot be told to clients.
    #[error("export name is {len} bytes long, more than {NAME_LEN_MAX}; choose a shorter one")]
    Name {
        /// Its length in bytes.
        len: usize,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; choose another address or stop its owner")]
    Listen {
        /// The address.
        address: NbdAddress,
        /// What the operating system said.
        source: io::Error,
    },
    /// What was written could not be made stable.
    #[error("flush at the end failed: {0}")]
    Flush(IoError),
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// A server that listens.
pub struct NbdServer {
    listener: Listener,
    address: NbdAddress,
    export: Arc<Export>,
    device: ByteDevice,
    pool: Pool,
}

impl NbdServer {
    /// Listens on `address`; clients can connect from now on, and are served by [`Self::run`].
    /// The device is exported as `name`, and as the default export.
    ///
    /// # Errors
    /// When the name is too long, or the address cannot be listened on.
    pub async fn bind(
        address: &NbdAddress,
        device: impl Into<ByteDevice>,
        name: &str,
        pool: Pool,
    ) -> Result<Self, NbdError> {
        if name.len() > NAME_LEN_MAX {
            return Err(NbdError::Name { len: name.len() });
        }
        let listen = |source| NbdError::Listen { address: address.clone(), source };
        let (listener, bound) = match address {
            NbdAddress::Tcp(at) => {
                let listener = TcpListener::bind(at).await.map_err(listen)?;
                let bound = NbdAddress::Tcp(listener.local_addr().map_err(listen)?);
                (Listener::Tcp(listener), bound)
            }
            NbdAddress::Unix(path) => {
                remove_stale(path).await;
                let listener = UnixListener::bind(path).map_err(listen)?;
                (Listener::Unix(listener, path.clone()), address.clone())
            }
        };
        let device = device.into();
        let info = device.device().info().clone();
        let export = Arc::new(Export { name: name.into(), info });
        Ok(Self { listener, address: bound, export, device, pool })
    }

    /// Where the server listens; the port is the real one.
    #[must_use]
    pub const fn address(&self) -> &NbdAddress {
        &self.address
    }

    /// The URI that NBD clients take.
    #[must_use]
    pub fn uri(&self) -> String {
        self.address.uri(&self.export.name)
    }

    /// Serves clients until `shutdown` is ready; then takes no more requests, finishes what is
    /// under way, for at most ten seconds, and flushes the device.
    ///
    /// # Errors
    /// When the last flush fails.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), NbdError> {
        let (stop, stopped) = watch::channel(false);
        let mut connections = JoinSet::new();
        let budget = Budget::default();
        tokio::pin!(shutdown);
        loop {
            let room = connections.len() < CONNECTIONS_MAX;
            tokio::select! {
                () = &mut shutdown => break,
                stream = self.accept(), if room => match stream {
                    Ok(stream) => {
                        let (export, device) = (self.export.clone(), self.device.clone());
                        let (pool, stopped) = (self.pool.clone(), stopped.clone());
                        let share = budget.share();
                        connections.spawn(serve(stream, export, device, pool, share, stopped));
                    }
                    Err(error) => {
                        tracing::warn!(address = %self.address, %error, "cannot accept a client");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
            }
        }
        self.finish(stop, connections).await
    }

    async fn accept(&self) -> io::Result<Stream> {
        match &self.listener {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                // A client whose host is gone must not keep its place for ever.
                sockopt::set_socket_keepalive(&stream, true)?;
                sockopt::set_tcp_keepidle(&stream, Duration::from_secs(60))?;
                Ok(Stream::Tcp(stream))
            }
            Listener::Unix(listener, _) => Ok(Stream::Unix(listener.accept().await?.0)),
        }
    }

    async fn finish(
        self,
        stop: watch::Sender<bool>,
        mut connections: JoinSet<()>,
    ) -> Result<(), NbdError> {
        if let Listener::Unix(_, path) = &self.listener {
            // Somebody else may have removed it already.
            let _ = std::fs::remove_file(path);
        }
        drop(self.listener);
        stop.send_replace(true);
        let drained =
            timeout(DRAIN_TIMEOUT, async { while connections.join_next().await.is_some() {} });
        if drained.await.is_err() {
            let count = connections.len();
            tracing::warn!(count, "clients did not take their replies in time and are cut off");
            connections.shutdown().await;
        }
        flush(self.device.device()).await.map_err(NbdError::Flush)
    }
}

/// Serves one client to its end.
async fn serve(
    mut stream: Stream,
    export: Arc<Export>,
    device: ByteDevice,
    pool: Pool,
    share: Share,
    mut stop: watch::Receiver<bool>,
) {
    let negotiated = tokio::select! {
        negotiated = timeout(HANDSHAKE_TIMEOUT, negotiate(&mut stream, &export)) => negotiated,
        _ = stop.wait_for(|stop| *stop) => return,
    };
    let structured = match negotiated {
        Ok(Ok(Outcome::Transmission { structured })) => structured,
        Ok(Ok(Outcome::Closed)) => return,
        Ok(Err(error)) => {
            tracing::debug!(%error, "client is sent away");
            return;
        }
        Err(_) => {
            tracing::debug!("client did not negotiate in time");
            return;
        }
    };
    let connection = Connection::new(stream, structured, &device, pool, share);
    if let Err(error) = connection.run(stop).await {
        tracing::debug!(%error, "connection ended");
    }
}

/// Removes the socket of a server that is gone; one that answers stays.
async fn remove_stale(path: &PathBuf) {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = path.metadata().is_ok_and(|metadata| metadata.file_type().is_socket());
    if is_socket
        && let Err(error) = UnixStream::connect(path).await
        && error.kind() == io::ErrorKind::ConnectionRefused
    {
        // If this fails, listening fails and says why.
        let _ = std::fs::remove_file(path);
    }
}
