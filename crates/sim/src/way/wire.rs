//! A connection that carries PDUs, for both ends: what the engine's `Wire` does with a socket.

use netraid_iscsi_proto::framing::{Broken, Incoming, Outgoing, Side};

use super::{
    counts::Count,
    desk::Desk,
    framed::Phase,
    interface::StreamId,
    stream::{End, Streams, Taken},
};
use crate::time::Time;

/// Reads before others have their turn.
const READS_MAX: usize = 32;

/// Why a connection ended without being asked to.
#[derive(Debug)]
pub(super) enum WireError {
    Broken(Broken),
    Failed,
    Closed,
}

impl From<Broken> for WireError {
    fn from(error: Broken) -> Self {
        Self::Broken(error)
    }
}

/// One end of a connection, with what was received and not yet taken, and what waits to be sent.
pub(super) struct Wire {
    stream: StreamId,
    end: End,
    incoming: Incoming,
    outgoing: Outgoing,
    moved: u64,
}

impl Wire {
    pub(super) fn new(stream: StreamId, end: End) -> Self {
        let (incoming, outgoing) = (Incoming::default(), Outgoing::default());
        Self { stream, end, incoming, outgoing, moved: 0 }
    }

    pub(super) const fn stream(&self) -> StreamId {
        self.stream
    }

    /// A number that changes when bytes come, or leave while others wait.
    pub(super) const fn moved(&self) -> u64 {
        self.moved
    }

    pub(super) const fn is_paused(&self) -> bool {
        self.incoming.is_paused()
    }

    pub(super) const fn outgoing(&mut self) -> &mut Outgoing {
        &mut self.outgoing
    }

    pub(super) fn has_room(&self) -> bool {
        self.outgoing.has_room()
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Whether the connection can do what is wanted of it.
    pub(super) fn is_ready(&self, streams: &Streams, now: Time, reads: bool) -> bool {
        let is_readable = reads && streams.is_readable(self.stream, self.end, now);
        is_readable || (!self.is_flushed() && streams.is_writable(self.stream, self.end))
    }

    /// Takes what is there, and gives it to `side`, until there is no more, the side wants no more, or others should have
    /// their turn.
    pub(super) fn receive(
        &mut self,
        streams: &mut Streams,
        desk: &mut Desk,
        side: &mut impl Side,
    ) -> Result<(), WireError> {
        for _ in 0..READS_MAX {
            if !self.incoming.consume(side)? || !self.read(streams, desk, side)? {
                return Ok(());
            }
        }
        self.incoming.consume(side)?;
        Ok(())
    }

    fn read(
        &mut self,
        streams: &mut Streams,
        desk: &mut Desk,
        side: &mut impl Side,
    ) -> Result<bool, WireError> {
        let (place, window) = self.incoming.room(side);
        let place = place.unwrap_or_default();
        let placed_max = place.len();
        let count = match streams.take(desk, (self.stream, self.end), [place, window]) {
            Taken::Bytes(count) => count,
            Taken::Nothing => return Ok(false),
            Taken::Closed => return Err(WireError::Closed),
            Taken::Failed => {
                desk.count(match streams.phase(self.stream, self.end) {
                    Phase::Header => Count::CutInHeader,
                    Phase::Data => Count::CutInData,
                    Phase::Between => Count::CutBetween,
                });
                return Err(WireError::Failed);
            }
        };
        self.moved = self.moved.wrapping_add(count as u64);
        self.incoming.received(count, placed_max, side);
        Ok(true)
    }

    /// Sends what the connection takes; whether all is gone.
    pub(super) fn flush(
        &mut self,
        streams: &mut Streams,
        desk: &mut Desk,
    ) -> Result<bool, WireError> {
        while !self.outgoing.is_empty() {
            let room = streams.room(desk, self.stream, self.end).ok_or(WireError::Failed)?;
            if room == 0 {
                return Ok(false);
            }
            let mut len = 0;
            self.outgoing.slices(|slice| {
                len += slice.len();
                len < room
            });
            let mut bytes = Vec::with_capacity(len.min(room));
            self.outgoing.slices(|slice| {
                let len = slice.len().min(room - bytes.len());
                bytes.extend_from_slice(&slice[..len]);
                bytes.len() < room
            });
            self.outgoing.advance(bytes.len());
            if !self.outgoing.is_empty() {
                self.moved = self.moved.wrapping_add(bytes.len() as u64);
            }
            streams.send(desk, self.stream, self.end, bytes);
        }
        Ok(true)
    }
}
