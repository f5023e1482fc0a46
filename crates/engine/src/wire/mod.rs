//! PDUs on a TCP connection, for both sides: framing, digests, and where bytes land.
//!
//! Data segments of commands are received straight into the command's buffer; only what came in
//! with a header is copied. What is sent leaves by vectored writes from the buffers that hold it.
//!
//! Invariant: a machine sees a header or the end of a data segment only after its digest was
//! found right.

mod receive;
mod send;

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    task::{Context, Poll},
    time::Duration,
};

use netraid_iscsi_proto::{
    machine::{Digests, Fatal, Placement, TaskId},
    pdu::Bhs,
};
use tokio::net::TcpStream;

use self::{receive::Stage, send::Item};

/// Receive buffer: holds many small PDUs, and always a header with all its extensions.
const INPUT_LEN: usize = 64 * 1024;
/// Asked of the kernel for each direction of a socket.
const SOCKET_BUFFER_LEN: usize = 4 << 20;

/// Why a connection ended without being asked to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// The peer broke the rules, or is silent.
    #[error(transparent)]
    Fatal(#[from] Fatal),
    /// The socket failed.
    #[error("connection failed: {0}")]
    Io(#[from] io::Error),
    /// The peer closed the connection.
    #[error("peer closed the connection")]
    Closed,
    /// A digest is wrong.
    #[error("{0} digest is wrong")]
    Digest(&'static str),
}

/// One side's machine and buffers, as the receiver needs them.
pub(crate) trait Side {
    /// Digests of the next PDU.
    fn receive_digests(&self) -> Digests;
    /// Whether the next PDU may be taken.
    fn wants_input(&self) -> bool;
    /// Takes a header; where its data belongs.
    fn handle_header(&mut self, bhs: &Bhs) -> Result<Placement, WireError>;
    /// The whole buffer of a task.
    fn buffer(&mut self, task: TaskId) -> &mut [u8];
    /// The data segment is in place; `control` has it when it was for the machine.
    fn handle_segment(&mut self, control: Option<&[u8]>) -> Result<(), WireError>;
    /// The data segment of `bhs` came with a wrong digest.
    fn handle_bad_digest(&mut self, bhs: &Bhs) -> Result<(), WireError>;
}

/// A connection with what was received and not yet taken, and what waits to be sent.
pub(crate) struct Wire {
    stream: TcpStream,
    input: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes worth reading beyond the data that is waited for.
    window: usize,
    stage: Stage,
    paused: bool,
    output: VecDeque<Item>,
    /// Bytes of the first item that are gone.
    sent: usize,
    /// Bytes that wait.
    queued: usize,
    /// Bytes that the socket gave, and that it took while more waited, modulo 2^64: what it
    /// takes at once says nothing of the peer.
    moved: u64,
}

impl Wire {
    /// Takes over a connected stream and tunes it for block traffic.
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let socket = socket2::SockRef::from(&stream);
        // The kernel may grant less; that only costs speed.
        let _ = socket.set_send_buffer_size(SOCKET_BUFFER_LEN);
        let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_LEN);
        Ok(Self {
            stream,
            input: vec![0; INPUT_LEN].into_boxed_slice(),
            start: 0,
            end: 0,
            window: INPUT_LEN,
            stage: Stage::Header,
            paused: false,
            output: VecDeque::new(),
            sent: 0,
            queued: 0,
            moved: 0,
        })
    }

    /// A number that changes when bytes come, or leave while others wait.
    pub(crate) const fn moved(&self) -> u64 {
        self.moved
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// Ready when the socket can do what is wanted of it; polled by one task at a time.
    pub(crate) fn poll_ready(&self, context: &mut Context<'_>, read: bool) -> Poll<io::Result<()>> {
        if read && let Poll::Ready(end) = self.stream.poll_read_ready(context) {
            return Poll::Ready(end);
        }
        if !self.is_flushed() {
            return self.stream.poll_write_ready(context);
        }
        Poll::Pending
    }

    /// Sends what waits, for at most `limit`.
    pub(crate) async fn finish(&mut self, limit: Duration) {
        let flush = async {
            while matches!(self.flush(), Ok(false)) && self.stream.writable().await.is_ok() {}
        };
        // A peer that takes no more loses it.
        let _ = tokio::time::timeout(limit, flush).await;
    }
}
