//! A TCP connection that carries PDUs, for both sides.
//!
//! Reads go straight to where `netraid_iscsi_proto::framing` says, and what waits leaves by vectored writes from the
//! buffers that hold it.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
    task::{Context, Poll},
    time::Duration,
};

use netraid_block::SgList;
use netraid_iscsi_proto::{
    framing::{Broken, Incoming, Outgoing, Side},
    machine::Digests,
    pdu::Bhs,
};
use smallvec::SmallVec;
use tokio::net::TcpStream;

use crate::sockets;

/// Asked of the kernel for each direction of a socket.
const SOCKET_BUFFER_LEN: usize = 4 << 20;
/// Reads before others have their turn.
const READS_MAX: usize = 32;
/// Slices of one write; the kernel takes up to 1024.
const SLICES_MAX: usize = 128;

/// Why a connection ended without being asked to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// The peer broke the rules, or is silent, or a digest is wrong.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The socket failed.
    #[error("connection failed: {0}")]
    Io(#[from] io::Error),
    /// The peer closed the connection.
    #[error("peer closed the connection")]
    Closed,
}

/// A connection with what was received and not yet taken, and what waits to be sent.
pub(crate) struct Wire {
    stream: TcpStream,
    incoming: Incoming,
    outgoing: Outgoing,
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
        let (incoming, outgoing) = (Incoming::default(), Outgoing::default());
        Ok(Self { stream, incoming, outgoing, moved: 0 })
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

    /// Whether the side wanted no more while there was more; readiness will not tell of that.
    pub(crate) const fn is_paused(&self) -> bool {
        self.incoming.is_paused()
    }

    /// Takes what the socket has, and gives it to `side`, until there is no more, the side wants
    /// no more, or others should have their turn.
    pub(crate) fn receive(&mut self, side: &mut impl Side) -> Result<(), WireError> {
        for _ in 0..READS_MAX {
            if !self.incoming.consume(side)? || !self.read(side)? {
                return Ok(());
            }
        }
        self.incoming.consume(side)?;
        Ok(())
    }

    /// What waits to be sent.
    pub(crate) const fn outgoing(&mut self) -> &mut Outgoing {
        &mut self.outgoing
    }

    /// Whether more may be queued before what waits is sent.
    pub(crate) fn has_room(&self) -> bool {
        self.outgoing.has_room()
    }

    /// Whether nothing waits.
    pub(crate) fn is_flushed(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Queues one PDU.
    #[inline]
    pub(crate) fn push(&mut self, header: &Bhs, body: SgList, digests: Digests) {
        self.outgoing.push(header, body, digests);
    }

    /// Sends what the socket takes; whether all is gone.
    pub(crate) fn flush(&mut self) -> Result<bool, WireError> {
        while !self.outgoing.is_empty() {
            let mut slices: SmallVec<[IoSlice<'_>; SLICES_MAX]> = SmallVec::new();
            self.outgoing.slices(|slice| {
                slices.push(IoSlice::new(slice));
                slices.len() < SLICES_MAX
            });
            let result = self.stream.try_write_vectored(&slices);
            drop(slices);
            match result {
                Ok(0) => return Err(WireError::Closed),
                Ok(count) => {
                    self.outgoing.advance(count);
                    if !self.outgoing.is_empty() {
                        self.moved = self.moved.wrapping_add(count as u64);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Sends what waits, for at most `limit`.
    pub(crate) async fn finish(&mut self, limit: Duration) {
        let flush = async {
            while matches!(self.flush(), Ok(false)) && self.stream.writable().await.is_ok() {}
        };
        // A peer that takes no more loses it.
        let _ = tokio::time::timeout(limit, flush).await;
    }

    /// Reads once; false when the socket has nothing.
    fn read(&mut self, side: &mut impl Side) -> Result<bool, WireError> {
        let (result, placed_max) = match self.incoming.room(side) {
            (Some(place), window) => {
                let len = place.len();
                let mut slices = [IoSliceMut::new(place), IoSliceMut::new(window)];
                (sockets::read(&self.stream, &mut slices), len)
            }
            (None, window) => (sockets::read(&self.stream, &mut [IoSliceMut::new(window)]), 0),
        };
        let count = match result {
            Ok(Some(0)) => return Err(WireError::Closed),
            Ok(Some(count)) => count,
            Ok(None) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        self.moved = self.moved.wrapping_add(count as u64);
        self.incoming.received(count, placed_max, side);
        Ok(true)
    }
}
