//! Connections: bytes both ways, in order, that come in pieces which break at any byte, stall, are cut, and come late.
//!
//! Each direction has bounded room, and what its end has not taken fills it. A connection has two ends; each hears of the
//! other's end behind what was delivered, or never.
//!
//! Invariant: what an end takes is a prefix of what the other end sent.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::Rc,
};

use super::{
    counts::Count,
    desk::{Desk, Event, Path},
    framed::{Framed, Phase},
    interface::{Cut, EngineId, Fate, HostId, LineId, StreamId, Way},
};
use crate::time::Time;

/// Who has an end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum End {
    Engine,
    Host,
}

impl End {
    const fn other(self) -> Self {
        match self {
            Self::Engine => Self::Host,
            Self::Host => Self::Engine,
        }
    }

    /// The direction from this end.
    const fn sends(self) -> usize {
        match self {
            Self::Engine => 0,
            Self::Host => 1,
        }
    }

    /// The direction to this end.
    const fn takes(self) -> usize {
        self.other().sends()
    }
}

/// What an end got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    Bytes(usize),
    /// Nothing is there now.
    Nothing,
    /// The other end has closed the connection.
    Closed,
    /// The connection is lost.
    Failed,
}

/// All connections.
#[derive(Default)]
pub(super) struct Streams {
    all: BTreeMap<StreamId, Stream>,
    next: u64,
    parted: BTreeSet<Path>,
}

/// One connection, or a dial.
pub(super) struct Stream {
    pub(super) engine: EngineId,
    pub(super) host: HostId,
    pub(super) line: LineId,
    pub(super) portal: u16,
    /// What the host's program calls it.
    pub(super) served: Option<(u32, netraid_iscsi_proto::target::ConnectionId)>,
    /// By [`End::sends`].
    pipes: [Pipe; 2],
    /// Nobody has this end any more, by [`End::sends`].
    is_left: [bool; 2],
    /// The machine of an end that was left answers that it knows of no such connection.
    resets: bool,
}

/// One direction.
struct Pipe {
    pieces: VecDeque<Piece>,
    /// Bytes that fill the room.
    queued: usize,
    room: usize,
    last_at: Time,
    held_until: Time,
    /// What is sent goes nowhere.
    is_severed: bool,
    wants_room: bool,
    sent: Framed,
    taken: Framed,
}

struct Piece {
    at: Time,
    what: What,
}

enum What {
    Bytes { bytes: Rc<Vec<u8>>, start: usize, end: usize },
    Closed,
    Failed,
}

impl Pipe {
    fn new(desk: &mut Desk, digests: (bool, bool)) -> Self {
        let (low, high) = (*desk.manners.room.start(), *desk.manners.room.end());
        Self {
            pieces: VecDeque::new(),
            queued: 0,
            room: low + desk.dice.index(high - low + 1),
            last_at: Time::START,
            held_until: Time::START,
            is_severed: false,
            wants_room: false,
            sent: Framed::new(digests),
            taken: Framed::new(digests),
        }
    }

    /// When something is there next.
    fn next_at(&self) -> Option<Time> {
        self.pieces.front().map(|piece| piece.at.max(self.held_until))
    }

    fn push(&mut self, at: Time, what: What) -> Time {
        let at = at.max(self.last_at);
        self.last_at = at;
        self.pieces.push_back(Piece { at, what });
        at
    }

    fn has_failed(&self, now: Time) -> bool {
        self.pieces.iter().any(|piece| matches!(piece.what, What::Failed) && piece.at <= now)
    }

    /// Nobody takes what is on its way.
    fn drop_all(&mut self) {
        self.pieces.clear();
        self.is_severed = true;
    }

    /// What is on its way comes up to a byte, and no further.
    fn lose(&mut self, desk: &mut Desk) {
        let now = desk.now();
        let there = self.pieces.iter().take_while(|piece| piece.at <= now).count();
        let on_the_way = self.pieces.len() - there;
        if on_the_way > 0 {
            let kept = there + desk.dice.index(on_the_way);
            self.pieces.truncate(kept + 1);
            if let Some(Piece { what: What::Bytes { start, end, .. }, .. }) = self.pieces.back_mut()
                && start < end
            {
                *end = *start + desk.dice.index(*end - *start);
            }
        }
        // What comes after bytes that were lost does not come.
        self.pieces.retain(|piece| matches!(piece.what, What::Bytes { .. }));
    }
}

impl Streams {
    /// An engine dials a host's portal; an answer follows, or none.
    pub(super) fn dial(
        &mut self,
        desk: &mut Desk,
        (engine, host): Path,
        line: LineId,
        (portal, is_beside): (u16, bool),
        digests: (bool, bool),
    ) -> StreamId {
        let id = StreamId(self.next);
        self.next += 1;
        let pipes = [Pipe::new(desk, digests), Pipe::new(desk, digests)];
        let stream = Stream {
            engine,
            host,
            line,
            portal,
            served: None,
            pipes,
            // The host has its end once the dial has come there.
            is_left: [false, true],
            resets: false,
        };
        self.all.insert(id, stream);
        let latency = desk.latency();
        if desk.dice.one_in(desk.manners.refuse_one_in) {
            desk.count(Count::DialRefused);
            desk.agenda.put_in(2 * latency, Event::Dialled(id, super::desk::Answer::Refused));
        } else if desk.dice.one_in(desk.manners.unanswered_one_in) {
            desk.count(Count::DialUnanswered);
        } else if is_beside && desk.dice.one_in(desk.manners.beside_unanswered_one_in) {
            desk.count(Count::DialBesideUnanswered);
        } else if desk.dice.one_in(desk.manners.slow_one_in) {
            desk.count(Count::DialSlow);
            let slow = desk.dice.time_in(&desk.manners.slow);
            desk.agenda.put_in(slow, Event::Knock(id, 0));
        } else {
            desk.agenda.put_in(latency, Event::Knock(id, 0));
        }
        id
    }

    pub(super) fn get(&self, id: StreamId) -> Option<&Stream> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.all.get_mut(&id)
    }

    /// The connection is made: the host has its end.
    pub(super) fn make(&mut self, id: StreamId) {
        if let Some(stream) = self.all.get_mut(&id) {
            (stream.is_left[End::Host.sends()], stream.resets) = (false, false);
        }
    }

    /// The connections that one end still has, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (StreamId, &Stream)> {
        self.all.iter().map(|(id, stream)| (*id, stream))
    }

    /// Whether the engine has left this connection.
    pub(super) fn engine_has_left(&self, id: StreamId) -> bool {
        self.all.get(&id).is_none_or(|stream| stream.is_left[End::Engine.sends()])
    }

    pub(super) fn is_parted(&self, path: Path) -> bool {
        self.parted.contains(&path)
    }

    /// Whether an end would get something.
    pub(super) fn is_readable(&self, id: StreamId, end: End, now: Time) -> bool {
        let Some(stream) = self.all.get(&id) else { return true };
        let is_parted = self.is_parted((stream.engine, stream.host));
        !is_parted && stream.pipes[end.takes()].next_at().is_some_and(|at| at <= now)
    }

    /// Whether an end may send.
    pub(super) fn is_writable(&self, id: StreamId, end: End) -> bool {
        let pipe = self.all.get(&id).map(|stream| &stream.pipes[end.sends()]);
        pipe.is_none_or(|pipe| pipe.queued < pipe.room)
    }

    /// Bytes that an end may send now; none when the connection is lost.
    pub(super) fn room(&mut self, desk: &mut Desk, id: StreamId, end: End) -> Option<usize> {
        let stream = self.all.get_mut(&id)?;
        if stream.pipes[end.takes()].has_failed(desk.now()) {
            return None;
        }
        let pipe = &mut stream.pipes[end.sends()];
        let room = pipe.room - pipe.queued;
        if room == 0 && !pipe.wants_room {
            pipe.wants_room = true;
            desk.count(Count::NoRoom);
        }
        Some(room)
    }

    /// An end sends bytes, for which there is room.
    pub(super) fn send(&mut self, desk: &mut Desk, id: StreamId, end: End, bytes: Vec<u8>) {
        let Some(stream) = self.all.get_mut(&id) else { return };
        let other = end.other();
        if stream.is_left[other.sends()] && stream.resets {
            let at = desk.now().after(desk.latency());
            let at = stream.pipes[end.takes()].push(at, What::Failed);
            desk.agenda.put_at(at, Event::Ready(id, end));
        }
        let pipe = &mut stream.pipes[end.sends()];
        assert!(bytes.len() <= pipe.room - pipe.queued, "more is sent than there is room for");
        pipe.queued += bytes.len();
        if pipe.is_severed {
            return;
        }
        let len = bytes.len();
        let bytes = Rc::new(bytes);
        let mut start = 0;
        while start < len {
            let left = len - start;
            let end_of_piece = start + piece_len(desk, left);
            let phase = pipe.sent.take(&bytes[start..end_of_piece]);
            if end_of_piece < len {
                match phase {
                    Phase::Header => desk.count(Count::PieceInHeader),
                    Phase::Data => desk.count(Count::PieceInData),
                    Phase::Between => {}
                }
            }
            let at = desk.now().after(desk.latency());
            let what = What::Bytes { bytes: bytes.clone(), start, end: end_of_piece };
            let at = pipe.push(at, what).max(pipe.held_until);
            desk.agenda.put_at(at, Event::Ready(id, other));
            start = end_of_piece;
        }
    }

    /// An end takes bytes that are there, into the first place and then into the second.
    pub(super) fn take(
        &mut self,
        desk: &mut Desk,
        (id, end): (StreamId, End),
        mut places: [&mut [u8]; 2],
    ) -> Taken {
        let Some(stream) = self.all.get_mut(&id) else { return Taken::Failed };
        if self.parted.contains(&(stream.engine, stream.host)) {
            return Taken::Nothing;
        }
        let is_late = end == End::Host && stream.is_left[End::Engine.sends()];
        let (now, pipe) = (desk.now(), &mut stream.pipes[end.takes()]);
        let mut count = 0;
        while let Some(piece) = pipe.pieces.front_mut()
            && piece.at.max(pipe.held_until) <= now
        {
            let What::Bytes { bytes, start, end } = &mut piece.what else {
                if count > 0 {
                    break;
                }
                let is_closed = matches!(piece.what, What::Closed);
                return if is_closed { Taken::Closed } else { Taken::Failed };
            };
            if start == end {
                pipe.pieces.pop_front();
                continue;
            }
            let place = if places[0].is_empty() { 1 } else { 0 };
            let len = places[place].len().min(*end - *start);
            if len == 0 {
                break;
            }
            let rest = core::mem::take(&mut places[place]);
            rest[..len].copy_from_slice(&bytes[*start..*start + len]);
            pipe.taken.take(&bytes[*start..*start + len]);
            places[place] = &mut rest[len..];
            *start += len;
            count += len;
        }
        if count == 0 {
            return Taken::Nothing;
        }
        if is_late {
            desk.count(Count::LateDelivery);
        }
        pipe.queued -= count;
        if pipe.wants_room && pipe.queued <= pipe.room / 2 {
            pipe.wants_room = false;
            let latency = desk.latency();
            desk.agenda.put_in(latency, Event::Ready(id, end.other()));
        }
        Taken::Bytes(count)
    }

    /// How far into a PDU an end has taken what came to it.
    pub(super) fn phase(&self, id: StreamId, end: End) -> Phase {
        self.all.get(&id).map_or(Phase::Between, |stream| stream.pipes[end.takes()].taken.phase())
    }

    /// When what may be there for an end is there, if that is later.
    pub(super) fn look_again(&self, id: StreamId, end: End, now: Time) -> Option<Time> {
        let stream = self.all.get(&id)?;
        let is_parted = self.is_parted((stream.engine, stream.host));
        let at = stream.pipes[end.takes()].next_at()?;
        (!is_parted && at > now).then_some(at)
    }

    /// An end closes the connection behind what it sent; the other end hears of it.
    pub(super) fn close(&mut self, desk: &mut Desk, id: StreamId, end: End) {
        self.leave(desk, id, end, Some(What::Closed));
    }

    /// An end is gone as its process died; the other end hears of it.
    pub(super) fn break_off(&mut self, desk: &mut Desk, id: StreamId, end: End) {
        let is_reset = desk.dice.one_in(2);
        self.leave(desk, id, end, Some(if is_reset { What::Failed } else { What::Closed }));
    }

    /// An end is gone, and says nothing; some of what it sent may come.
    pub(super) fn abandon(&mut self, desk: &mut Desk, id: StreamId, end: End) {
        if let Some(stream) = self.all.get_mut(&id)
            && desk.dice.one_in(2)
        {
            stream.pipes[end.sends()].lose(desk);
        }
        self.leave(desk, id, end, None);
    }

    fn leave(&mut self, desk: &mut Desk, id: StreamId, end: End, last: Option<What>) {
        let Some(stream) = self.all.get_mut(&id) else { return };
        if core::mem::replace(&mut stream.is_left[end.sends()], true) {
            return;
        }
        stream.pipes[end.takes()].drop_all();
        if stream.is_left[end.other().sends()] {
            self.all.remove(&id);
            return;
        }
        let pipe = &mut stream.pipes[end.sends()];
        if let Some(what) = last
            && !pipe.is_severed
        {
            let at = desk.now().after(desk.latency());
            let at = pipe.push(at, what).max(pipe.held_until);
            desk.agenda.put_at(at, Event::Ready(id, end.other()));
        }
        pipe.is_severed = true;
    }

    /// A machine that was away says of connections that it knows nothing of them.
    pub(super) fn reset_left(&mut self, desk: &mut Desk, host: HostId) {
        for (id, stream) in &mut self.all {
            if stream.host != host || !stream.is_left[End::Host.sends()] || stream.resets {
                continue;
            }
            stream.resets = true;
            if stream.pipes[End::Engine.sends()].queued > 0 {
                let at = desk.now().after(desk.latency());
                let at = stream.pipes[End::Engine.takes()].push(at, What::Failed);
                desk.agenda.put_at(at, Event::Ready(*id, End::Engine));
            }
        }
    }

    /// A connection is cut.
    pub(super) fn cut(&mut self, desk: &mut Desk, id: StreamId, cut: Cut) {
        let Some(stream) = self.all.get_mut(&id) else { return };
        let Cut { engine_hears, host_hears, to_host, to_engine } = cut;
        for (end, fate, hears) in
            [(End::Host, to_host, host_hears), (End::Engine, to_engine, engine_hears)]
        {
            let pipe = &mut stream.pipes[end.takes()];
            match fate {
                Fate::Lost => pipe.lose(desk),
                Fate::Delivered(late) => {
                    let now = desk.now();
                    for piece in pipe.pieces.iter_mut().filter(|piece| piece.at > now) {
                        piece.at = piece.at.after(late);
                        pipe.last_at = pipe.last_at.max(piece.at);
                        desk.agenda.put_at(piece.at.max(pipe.held_until), Event::Ready(id, end));
                    }
                }
            }
            pipe.is_severed = true;
            match hears {
                Some(wait) => {
                    let at = desk.now().after(wait);
                    let at = pipe.push(at, What::Failed).max(pipe.held_until);
                    desk.agenda.put_at(at, Event::Ready(id, end));
                }
                None => desk.count(Count::CutUnheard),
            }
        }
    }

    /// A direction delivers nothing until then.
    pub(super) fn stall(&mut self, desk: &mut Desk, id: StreamId, way: Way, until: Time) {
        let Some(stream) = self.all.get_mut(&id) else { return };
        let end = match way {
            Way::ToHost => End::Host,
            Way::ToEngine => End::Engine,
        };
        let pipe = &mut stream.pipes[end.takes()];
        pipe.held_until = pipe.held_until.max(until);
        desk.count(Count::Stalled);
        desk.agenda.put_at(pipe.held_until, Event::Ready(id, end));
    }

    pub(super) fn part(&mut self, path: Path) -> bool {
        self.parted.insert(path)
    }

    pub(super) fn heal(&mut self, desk: &mut Desk, path: Path) {
        if !self.parted.remove(&path) {
            return;
        }
        for (id, stream) in &self.all {
            if (stream.engine, stream.host) == path {
                for end in [End::Engine, End::Host] {
                    let latency = desk.latency();
                    desk.agenda.put_in(latency, Event::Ready(*id, end));
                }
            }
        }
    }
}

/// How much of what is sent comes in one piece.
fn piece_len(desk: &mut Desk, left: usize) -> usize {
    if left == 1 || !desk.dice.one_in(desk.manners.break_one_in) {
        return left;
    }
    // Headers are short: half of the breaks are near the beginning of what is sent.
    let most = if desk.dice.one_in(2) { left.min(64) } else { left };
    1 + desk.dice.index(most - 1)
}
