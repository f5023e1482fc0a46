//! A server of the NBD protocol (newstyle, fixed) for one device.
//!
//! One task for each connection, none for a request. Several connections see one device: what one
//! has written and got a reply for, the others read, and a flush on one covers all. When all places
//! are taken, or all memory, clients that keep them and do nothing give way ([`places`]).

mod address;
mod budget;
mod connection;
mod errno;
mod handshake;
mod meter;
mod places;
mod receive;
mod stream;
mod wire;

use std::{
    collections::HashMap,
    future::Future,
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use netraid_block::{IoError, Pool};
use rustix::net::sockopt;
use tokio::{
    net::{TcpListener, UnixListener},
    sync::watch,
    task::{AbortHandle, Id, JoinSet},
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout},
};

pub use self::address::{NbdAddress, NbdAddressError};
use self::{
    budget::{Budget, Share},
    connection::Connection,
    handshake::{Export, Outcome, negotiate},
    meter::Meter,
    places::{Doing, Need, Places, places_within},
    stream::Stream,
};
use netraid_engine::bytes::ByteDevice;

use crate::{
    flush,
    name::{NameError, check_export_name},
    users::{Use, Users},
};

/// Longest read or write in bytes, which every client may rely on (NBD, block size constraints).
const PAYLOAD_LEN_MAX: u32 = 32 << 20;
/// How often it is looked whether memory is short, and who gives way then.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How often it is looked who gives way, while a client waits for a place.
const PLACE_LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// How long a client may take to negotiate.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long requests under way may take after the server was told to stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Clients of a Unix socket that wait to be accepted.
const BACKLOG: i32 = 128;
/// Pause after accepting failed, unless a client ends before.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why an export cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// The name cannot be told to clients.
    #[error("export {0}")]
    Name(#[from] NameError),
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

enum Socket {
    Tcp(TcpListener),
    Unix {
        socket: UnixListener,
        path: PathBuf,
        /// Device and inode: what stands at the path later may be another's.
        id: Option<(u64, u64)>,
    },
}

/// An address that is listened on, for a server that does not run yet: clients that connect wait for it. A Unix
/// socket is removed when this is dropped.
pub struct NbdListener {
    socket: Socket,
    address: NbdAddress,
}

impl NbdListener {
    /// Listens on `address`; a socket that a dead process left there is replaced, nothing else is.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub async fn bind(address: &NbdAddress) -> Result<Self, NbdError> {
        let listen = |source| NbdError::Listen { address: address.clone(), source };
        let (socket, address) = match address {
            NbdAddress::Tcp(at) => {
                let socket = TcpListener::bind(at).await.map_err(listen)?;
                let bound = NbdAddress::Tcp(socket.local_addr().map_err(listen)?);
                (Socket::Tcp(socket), bound)
            }
            NbdAddress::Unix(path) => {
                let socket = netraid_private::listen(path, BACKLOG).map_err(listen)?;
                let id = inode(path);
                let socket = UnixListener::from_std(socket).map_err(listen)?;
                (Socket::Unix { socket, path: path.clone(), id }, address.clone())
            }
        };
        Ok(Self { socket, address })
    }

    async fn accept(&self) -> io::Result<Stream> {
        match &self.socket {
            Socket::Tcp(socket) => {
                let (stream, _) = socket.accept().await?;
                stream.set_nodelay(true)?;
                // A client whose host is gone must not keep its place for ever.
                sockopt::set_socket_keepalive(&stream, true)?;
                sockopt::set_tcp_keepidle(&stream, Duration::from_secs(60))?;
                Ok(Stream::Tcp(stream))
            }
            Socket::Unix { socket, .. } => Ok(Stream::Unix(socket.accept().await?.0)),
        }
    }
}

impl Drop for NbdListener {
    fn drop(&mut self) {
        if let Socket::Unix { path, id: Some(id), .. } = &self.socket
            && inode(path) == Some(*id)
        {
            // Somebody else may have removed it.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|at| (at.dev(), at.ino()))
}

/// A server that listens.
pub struct NbdServer {
    listener: NbdListener,
    export: Arc<Export>,
    device: ByteDevice,
    pool: Pool,
    users: Users,
    descriptors: u64,
}

impl NbdServer {
    /// Listens on `address`; clients can connect from now on, and are served by [`Self::run`].
    /// The device is exported as `name`, and as the default export.
    ///
    /// # Errors
    /// When the name is too long or has control characters, or the address cannot be listened on.
    pub async fn bind(
        address: &NbdAddress,
        device: impl Into<ByteDevice>,
        name: &str,
        pool: Pool,
    ) -> Result<Self, NbdError> {
        check_export_name(name)?;
        Self::new(NbdListener::bind(address).await?, device, name, pool)
    }

    /// Exports the device where `listener` listens, as [`Self::bind`] does.
    ///
    /// # Errors
    /// When the name is too long or has control characters.
    pub fn new(
        listener: NbdListener,
        device: impl Into<ByteDevice>,
        name: &str,
        pool: Pool,
    ) -> Result<Self, NbdError> {
        check_export_name(name)?;
        let device = device.into();
        let info = device.device().info().clone();
        let export = Arc::new(Export { name: name.into(), info });
        let descriptors = netraid_private::descriptor_limit();
        Ok(Self { listener, export, device, pool, users: Users::default(), descriptors })
    }

    /// The server counts its clients there; nobody is served any more once that lets exports end.
    #[must_use]
    pub fn counted_by(self, users: Users) -> Self {
        Self { users, ..self }
    }

    /// The server has no more clients than half of `descriptors`, and 256; that is the number of files and
    /// sockets which the process may have open, or this server's part of it where there are several.
    #[must_use]
    pub fn within_descriptors(self, descriptors: u64) -> Self {
        Self { descriptors, ..self }
    }

    /// Where the server listens; the port is the real one.
    #[must_use]
    pub const fn address(&self) -> &NbdAddress {
        &self.listener.address
    }

    /// The URI that NBD clients take.
    #[must_use]
    pub fn uri(&self) -> String {
        self.listener.address.uri(&self.export.name)
    }

    /// Serves clients until `shutdown` is ready; then takes no more requests, finishes what is
    /// under way, for at most ten seconds, and flushes the device.
    ///
    /// # Errors
    /// When the last flush fails.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), NbdError> {
        let (stop, stopped) = watch::channel(false);
        let mut clients = Clients::new(places_within(self.descriptors));
        let mut looks = interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Accepted, and without a place yet.
        let mut waiting: Option<Stream> = None;
        // Nobody is accepted until then.
        let mut pause: Option<Instant> = None;
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                stream = self.listener.accept(), if waiting.is_none() && pause.is_none() => match stream {
                    Ok(stream) => {
                        clients.places.handle_accepted();
                        waiting = Some(stream);
                    }
                    Err(error) => {
                        self.handle_not_accepted(&error, &mut clients);
                        pause = Some(Instant::now() + ACCEPT_PAUSE);
                    }
                },
                () = sleep_until(pause.unwrap_or_else(Instant::now)), if pause.is_some() => {
                    clients.places.handle_new_try();
                    pause = None;
                }
                () = clients.ended(), if !clients.tasks.is_empty() => pause = None,
                _ = looks.tick(), if !clients.tasks.is_empty() => {}
                () = sleep(PLACE_LOOK_INTERVAL), if clients.places.needs_place(waiting.is_some()) => {}
            }
            if let Some(stream) = waiting.take_if(|_| clients.tasks.len() < clients.limit) {
                self.begin(stream, &mut clients, &stopped);
            }
            clients.make_room(waiting.is_some());
        }
        self.finish(stop, clients.tasks).await
    }

    fn handle_not_accepted(&self, error: &io::Error, clients: &mut Clients) {
        clients.places.handle_not_accepted(netraid_private::is_shortage(error));
        if let Some(count) = clients.places.poll_report(clients.started.elapsed()) {
            let (address, limit) = (&self.listener.address, netraid_private::descriptor_limit());
            tracing::warn!(
                %address, %error, count,
                "cannot accept NBD clients; this process may have {limit} files and sockets open (ulimit -n)"
            );
        }
    }

    /// Serves one more client.
    fn begin(&self, stream: Stream, clients: &mut Clients, stopped: &watch::Receiver<bool>) {
        let meter = Meter::default();
        let client = Client {
            stream,
            export: self.export.clone(),
            device: self.device.clone(),
            pool: self.pool.clone(),
            users: self.users.clone(),
            share: clients.budget.share(),
            meter: meter.clone(),
        };
        let task = clients.tasks.spawn(client.serve(stopped.clone()));
        clients.places.handle_begin(task.id(), clients.started.elapsed());
        clients.known.insert(task.id(), (meter, task));
    }

    async fn finish(
        self,
        stop: watch::Sender<bool>,
        mut connections: JoinSet<()>,
    ) -> Result<(), NbdError> {
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

/// All clients of a server that have a place.
struct Clients {
    tasks: JoinSet<()>,
    /// Those that were not told to give way.
    known: HashMap<Id, (Meter, AbortHandle)>,
    places: Places<Id>,
    /// Most at once, with those that give way and have not ended yet.
    limit: usize,
    budget: Budget,
    started: Instant,
}

impl Clients {
    fn new(limit: usize) -> Self {
        Self {
            tasks: JoinSet::new(),
            known: HashMap::new(),
            places: Places::new(limit),
            limit,
            budget: Budget::default(),
            started: Instant::now(),
        }
    }

    /// Waits for the end of a client; cancel safe.
    async fn ended(&mut self) {
        if let Some(end) = self.tasks.join_next_with_id().await {
            self.forget(end.map_or_else(|error| error.id(), |(id, ())| id));
        }
    }

    fn forget(&mut self, client: Id) {
        self.places.handle_end(client);
        self.known.remove(&client);
    }

    /// Sends a client away that does nothing, where another one needs its place, and all that keep
    /// memory which others need.
    fn make_room(&mut self, one_waits: bool) {
        // Whoever gives way already has not ended yet, and is not among the places.
        let need_place = self.places.needs_place(one_waits);
        let need_memory = self.budget.is_short();
        let now = self.started.elapsed();
        for (client, (meter, _)) in &self.known {
            self.places.handle_look(*client, meter.look(), now);
        }
        if need_place && let Some((client, doing)) = self.places.gives_way(Need::Place, now) {
            self.send_away(client, Need::Place, doing);
        }
        while need_memory && let Some((client, doing)) = self.places.gives_way(Need::Memory, now) {
            self.send_away(client, Need::Memory, doing);
        }
    }

    fn send_away(&mut self, client: Id, need: Need, doing: Doing) {
        if let Some((_, task)) = self.known.get(&client) {
            tell(need, doing);
            task.abort();
        }
        self.forget(client);
    }
}

/// Who has asked for something is missed by somebody.
fn tell(need: Need, doing: Doing) {
    match doing {
        Doing::Negotiates | Doing::Silent => tracing::debug!(?need, ?doing, "a client gives way"),
        Doing::Idle | Doing::IdleWriter | Doing::Works | Doing::WaitsForClient => {
            tracing::warn!(?need, ?doing, "an NBD client that does nothing gives way to another");
        }
    }
}

/// A client, and what it needs to be served.
struct Client {
    stream: Stream,
    export: Arc<Export>,
    device: ByteDevice,
    pool: Pool,
    users: Users,
    share: Share,
    meter: Meter,
}

impl Client {
    /// Serves it to its end.
    async fn serve(self, mut stop: watch::Receiver<bool>) {
        let Self { mut stream, export, device, pool, users, share, meter } = self;
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
        let Some(_using) = users.using(Use::NbdClient) else { return };
        let told = (share, meter);
        let connection = Connection::new(stream, structured, &device, pool, told);
        if let Err(error) = connection.run(stop).await {
            tracing::debug!(%error, "connection ended");
        }
    }
}

#[cfg(test)]
mod tests;
