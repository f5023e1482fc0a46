//! The threads of a target. Each connection is served by one of them from its first byte to its
//! last, so that its machine, its buffers and its socket never meet another processor; what all
//! connections share is in [`Shared`].
//!
//! Thread 0, the target's own, accepts connections, carries out commands, and serves too. A connection
//! goes to the thread that has the fewest.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
};

use super::{
    ACCEPT_PAUSE, EVICTION_PAUSE, SHUTDOWN_LIMIT, Shared, TargetError, connection, control::Life,
};

/// Connections on their way to a thread.
const ARRIVALS_MAX: usize = 64;

type Arrival = (std::net::TcpStream, SocketAddr, Turn);

/// All threads of a target, as the one sees them that accepts.
pub(super) struct Threads {
    /// Connections of each; the first is that of the target's own thread.
    loads: Vec<Arc<AtomicUsize>>,
    /// To those beside it.
    others: Vec<mpsc::Sender<Arrival>>,
    ends: Vec<oneshot::Receiver<()>>,
}

/// A connection's part of its thread's load.
struct Turn {
    thread: usize,
    load: Arc<AtomicUsize>,
}

impl Turn {
    fn new(thread: usize, load: &Arc<AtomicUsize>) -> Self {
        load.fetch_add(1, Relaxed);
        Self { thread, load: load.clone() }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.load.fetch_sub(1, Relaxed);
    }
}

impl Threads {
    /// Starts `count` threads, of which the caller's is one. They end when the target stops, or
    /// is dropped.
    ///
    /// # Errors
    /// When one cannot be started.
    pub(super) fn start(
        count: usize,
        shared: &Arc<Shared>,
        stopped: &watch::Receiver<bool>,
        life: &Life,
    ) -> Result<Self, TargetError> {
        let loads: Vec<_> = (0..count).map(|_| Arc::new(AtomicUsize::new(0))).collect();
        let (mut others, mut ends) = (Vec::new(), Vec::new());
        for thread in 1..count {
            let (sender, arrivals) = mpsc::channel(ARRIVALS_MAX);
            let (done, end) = oneshot::channel();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(TargetError::Start)?;
            let (shared, stopped, life) = (shared.clone(), stopped.clone(), life.clone());
            let serve = move || {
                // Both are told when everything else here is gone.
                let _ends = (life, done);
                // It waits for what blocks.
                let runtime = runtime;
                let local = tokio::task::LocalSet::new();
                local.block_on(&runtime, take(arrivals, shared, stopped));
            };
            let builder = std::thread::Builder::new().name(format!("netraid-target{thread}"));
            builder.spawn(serve).map_err(TargetError::Start)?;
            others.push(sender);
            ends.push(end);
        }
        Ok(Self { loads, others, ends })
    }

    /// Where the next connection goes.
    fn turn(&self) -> Turn {
        let load = |thread: &usize| self.loads[*thread].load(Relaxed);
        let thread = (0..self.loads.len()).min_by_key(load).unwrap_or_default();
        Turn::new(thread, &self.loads[thread])
    }

    /// A thread that cannot take the connection leaves it to the caller's.
    fn give(&self, stream: TcpStream, peer: SocketAddr) -> Option<(TcpStream, Turn)> {
        let turn = self.turn();
        let other = turn.thread.checked_sub(1).and_then(|at| self.others.get(at));
        let Some(other) = other else { return Some((stream, turn)) };
        let stream = match stream.into_std() {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%peer, %error, "connection failed at once");
                return None;
            }
        };
        let (stream, peer, _) = match other.try_send((stream, peer, turn)) {
            Ok(()) => return None,
            Err(
                mpsc::error::TrySendError::Full(back) | mpsc::error::TrySendError::Closed(back),
            ) => back,
        };
        let stream = TcpStream::from_std(stream).inspect_err(|error| {
            tracing::debug!(%peer, %error, "connection failed at once");
        });
        Some((stream.ok()?, Turn::new(0, &self.loads[0])))
    }

    /// Waits until all threads but the caller's have ended.
    pub(super) async fn ended(self) {
        drop(self.others);
        for end in self.ends {
            // It is dropped, never sent.
            let _ = end.await;
        }
    }
}

/// Accepts connections until the target stops, then waits for those of this thread to end.
pub(super) async fn accept(
    listener: TcpListener,
    threads: std::rc::Rc<Threads>,
    shared: Arc<Shared>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    let told = stopped.clone();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    if let Some((stream, turn)) = threads.give(stream, peer) {
                        connections.spawn_local(serve(stream, peer, turn, shared.clone(), told.clone()));
                    }
                }
                Err(error) => {
                    let is_exhausted = netraid_private::is_shortage(&error);
                    let makes_way = is_exhausted && shared.node.lock().handle_exhausted();
                    shared.wake();
                    if shared.may_tell() {
                        let (error, limit) = (&error, netraid_private::descriptor_limit());
                        tracing::warn!(%error, limit, makes_way, "cannot accept a connection");
                    }
                    let pause = if makes_way { EVICTION_PAUSE } else { ACCEPT_PAUSE };
                    tokio::time::sleep(pause).await;
                }
            },
            _ = stopped.wait_for(|stop| *stop) => break,
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Serves the connections that come, on a thread beside the target's own, until the target stops.
async fn take(
    mut arrivals: mpsc::Receiver<Arrival>,
    shared: Arc<Shared>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    let told = stopped.clone();
    let orderly = loop {
        tokio::select! {
            // Nobody sends any more when the target stops, or is dropped.
            Some((stream, peer, turn)) = arrivals.recv() => {
                match TcpStream::from_std(stream) {
                    Ok(stream) => {
                        connections.spawn_local(serve(stream, peer, turn, shared.clone(), told.clone()));
                    }
                    Err(error) => tracing::debug!(%peer, %error, "connection failed at once"),
                }
            }
            // An error means that the target was dropped: then everything ends at once.
            stop = stopped.wait_for(|stop| *stop) => break stop.is_ok(),
            Some(_) = connections.join_next() => {}
        }
    };
    if orderly {
        let all = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(SHUTDOWN_LIMIT, all).await;
    }
}

async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    turn: Turn,
    shared: Arc<Shared>,
    stopped: watch::Receiver<bool>,
) {
    connection::serve(stream, peer, shared, turn.thread, stopped).await;
}
