//! The connections of an initiator: each is made, carries PDUs, and is closed when its machine says so.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use netraid_block::Portal;
use netraid_iscsi_proto::framing::Outgoing;
use netraid_remote::{ConnectError, Link, Reason};
use tokio::net::TcpStream;

use crate::wire::{Wire, WireError};

/// One connection.
#[derive(Default)]
pub(super) enum Line {
    #[default]
    Closed,
    Connecting(Connecting),
    Open(Box<Wire>),
}

type Connecting = Pin<Box<dyn Future<Output = io::Result<Wire>> + Send>>;

/// What a connection has to tell.
pub(super) enum News {
    /// It is made, or not.
    Connected(Result<(), Reason>),
    /// The socket has something, or takes something.
    Ready(io::Result<()>),
}

impl Line {
    /// Begins to connect.
    pub(super) fn connect(portal: Portal) -> Self {
        Self::Connecting(Box::pin(async move {
            let stream = TcpStream::connect((portal.host.as_str(), portal.port)).await?;
            refuse_self(stream).and_then(Wire::new)
        }))
    }

    /// Waits for news; nothing is lost when it is not polled to the end.
    pub(super) fn poll(
        &mut self,
        wants_input: impl FnOnce() -> bool,
        context: &mut Context<'_>,
    ) -> Poll<News> {
        match self {
            Self::Closed => Poll::Pending,
            Self::Connecting(connecting) => {
                let Poll::Ready(end) = connecting.as_mut().poll(context) else {
                    return Poll::Pending;
                };
                let (line, end) = match end {
                    Ok(wire) => (Self::Open(Box::new(wire)), Ok(())),
                    Err(error) => (Self::Closed, Err(Reason::Connect(failure(&error)))),
                };
                *self = line;
                Poll::Ready(News::Connected(end))
            }
            Self::Open(wire) => {
                let wants_input = wants_input();
                if wire.is_paused() && wants_input {
                    return Poll::Ready(News::Ready(Ok(())));
                }
                wire.poll_ready(context, wants_input).map(News::Ready)
            }
        }
    }

    /// Takes what the socket has.
    pub(super) fn receive(&mut self, link: &mut Link) -> Result<(), WireError> {
        match self {
            Self::Open(wire) => wire.receive(link),
            Self::Closed | Self::Connecting(_) => Ok(()),
        }
    }

    /// Sends what `queue` has, as far as the socket takes it.
    pub(super) fn transmit(
        &mut self,
        mut queue: impl FnMut(&mut Outgoing) -> bool,
    ) -> Result<(), WireError> {
        let Self::Open(wire) = self else { return Ok(()) };
        loop {
            let more = queue(wire.outgoing());
            // A queue that was full from the start says nothing about what the machine has.
            let exhausted = wire.has_room();
            if !wire.flush()? || (exhausted && !more) {
                return Ok(());
            }
        }
    }
}

/// A connection to a free port of this host can meet itself when the system chooses just that
/// port for its own end: then nobody listens there.
fn refuse_self(stream: TcpStream) -> io::Result<TcpStream> {
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

fn failure(error: &io::Error) -> ConnectError {
    let is_refusal = matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::AddrNotAvailable
    );
    ConnectError { text: error.to_string(), is_refusal }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_that_met_itself_is_refused() {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let itself = socket.local_addr().unwrap();
        let stream = socket.connect(itself).await.unwrap();
        assert_eq!(refuse_self(stream).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
