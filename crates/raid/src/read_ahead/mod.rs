//! Reading ahead of users who read in a row, so that one who asks for little at a time has all
//! members at work.
//!
//! [`ReadAhead`] stands between users and the array's machine. It is told of every read and of every
//! change; it sees which reads follow one another (`streams`), asks for what comes next, keeps
//! it, and answers from it. What it keeps are slices of what members sent: nothing is copied.
//!
//! Invariant: nobody can tell that it is there, but by the time, as long as the array is changed by way of
//! this engine alone. What is kept was read while no change
//! of it was in flight, and none was submitted since: so that
//!
//! - nothing is read ahead where a user's change is in flight;
//! - a change takes what it overlaps out of what is kept, when it is submitted. What is under way
//!   there still goes to the reads that wait for it: they came before the change, and may have its
//!   bytes or those before it, as every read that is in flight beside a change. No later read waits for it.
//!
//! A block is in one request ahead as a whole, and stays or goes as a whole: a read that takes from two of them
//! would else have parts of a block from before a change and from after it.
//!
//! An error of what is read ahead is nobody's: whoever waits for it is read for again, as if nothing had
//! been read ahead.
//!
//! Another engine that takes the array over changes it without telling: what is kept goes after two calls of
//! [`ReadAhead::drop_old`], whoever reads there, so that an engine that has not noticed yet shows nothing
//! older than that.
//!
//! What is under way, for anybody, is not much more than what members have lately sent in a second: where they are
//! slow, users' reads come soon all the same, and none is given up for what waits before it.
//!
//! Memory: what is under way and what is kept are at most so many bytes together, not counting what else
//! is in the buffers that the array answered with. What was asked for is let go. What nobody asked for goes
//! when the reader has gone past it, when its stream is idle and another needs the memory, or when it is old.
//!
//! What it does not do: it does not know members or stripes beyond the lengths at which they begin, and
//! has no queue of its own but of users' reads in flight. Whoever owns it sees to it that the array is
//! still to be read when it answers ([`ReadAhead::stop`]).

mod streams;
#[cfg(test)]
mod tests;
mod waiters;

use alloc::{collections::VecDeque, vec::Vec};
use core::ops::Range;

use netraid_block::{IoError, SgList, narrow};
use slab::Slab;

use self::{
    streams::{StreamId, Streams, slack},
    waiters::{Part, Waiter, Waiters},
};
use crate::{
    array::RequestId,
    geometry::Geometry,
    log::LOG_BLOCK_LEN,
    planted::{Planted, planted},
};

/// Requests ahead begin and end at multiples of it: what is written at once is seen at once.
const BLOCK: u64 = LOG_BLOCK_LEN as u64;
/// Largest request, and the distance between places where requests end, where stripes allow it.
const UNIT_MAX: u64 = 512 << 10;
/// The same while it is not known whether the reader goes on for long.
const STEP_MAX: u64 = 64 << 10;
/// Bytes ahead of a stream at first.
const WINDOW_MIN: u64 = 128 << 10;
/// Bytes ahead of a stream that has been read for long, if two stripes are not more.
const WINDOW_MAX: u64 = 4 << 20;
/// Bytes that may be under way before anybody knows how fast they come.
const UNDER_WAY_MIN: u64 = 1 << 20;
/// Ranges that are under way or kept at once.
const PIECES_MAX: usize = 256;
/// This bit tells numbers of requests ahead from those of users.
const AHEAD: u64 = 1 << 63;

/// How a user's read is served.
#[derive(Debug)]
#[must_use]
pub enum Served {
    /// By the array, as if nothing were read ahead.
    ByArray,
    /// By these bytes: it has ended.
    Now(SgList),
    /// By what is under way: [`Action::Answer`] or [`Action::ReadAgain`] follows.
    Later,
}

/// What is to be done.
#[derive(Debug)]
pub enum Action {
    /// Read this range from the array; [`ReadAhead::handle_ahead_done`] takes its end.
    Read {
        /// Its number: no user's.
        id: RequestId,
        /// Bytes of the volume.
        range: Range<u64>,
    },
    /// A user's read has ended with these bytes.
    Answer {
        /// The user's.
        id: RequestId,
        /// Its bytes.
        data: SgList,
    },
    /// A user's read that waited is to be served by the array.
    ReadAgain {
        /// The user's.
        id: RequestId,
        /// Bytes of the volume.
        range: Range<u64>,
    },
}

/// What came of it so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Users' reads that were answered from what was read ahead.
    pub answered: u64,
    /// Bytes that were read ahead.
    pub read_bytes: u64,
    /// Bytes of them that were let go before anybody asked for them.
    pub unused_bytes: u64,
}

/// A user's request in flight.
#[derive(Debug, Clone)]
enum InFlight {
    None,
    Read { stream: StreamId, len: u64 },
    Change(Range<u64>),
}

/// A range that was read ahead or is about to be; pieces never overlap.
#[derive(Debug)]
struct Piece {
    /// What is still to be had from it; it gets shorter from its beginning.
    range: Range<u64>,
    /// The range that was asked for.
    whole: Range<u64>,
    /// Bytes that were asked for.
    used: u64,
    /// How often it had been looked for old ones before.
    looks: u64,
    stream: StreamId,
    content: Content,
}

#[derive(Debug)]
enum Content {
    UnderWay(usize),
    Kept(SgList),
}

/// The machine; see the module.
#[derive(Debug)]
pub struct ReadAhead {
    capacity: u64,
    /// Requests end at multiples of it, ...
    unit: u64,
    /// ... or at first of this.
    step: u64,
    /// A reader that has so much in flight needs nobody to read ahead.
    enough: u64,
    memory: u64,
    streams: Streams,
    /// By user's number.
    in_flight: Vec<InFlight>,
    /// Changes among them.
    changes: usize,
    /// In order.
    pieces: Vec<Piece>,
    /// Ranges of requests ahead, by number.
    under_way: Slab<Range<u64>>,
    /// Bytes of these.
    under_way_len: u64,
    /// Bytes that came since it was looked for old pieces, and between that and the time before.
    arrived: [u64; 2],
    waiters: Waiters,
    /// Bytes of pieces that are kept, and of requests that are under way.
    held: u64,
    actions: VecDeque<Action>,
    stats: Stats,
    /// How often it was looked for old pieces.
    looks: u64,
    is_stopped: bool,
}

impl ReadAhead {
    /// For a volume of this shape, with `memory` bytes at most for what is under way or kept; with
    /// none, nothing is read ahead.
    #[must_use]
    pub fn new(geometry: &Geometry, memory: u64) -> Self {
        let (chunk, stripe) = (u64::from(geometry.chunk_len()), geometry.stripe_data_len());
        // Whole stripes, else whole chunks, else parts of one.
        let unit = [stripe, chunk].into_iter().find(|len| *len <= UNIT_MAX);
        let unit = unit.map_or(UNIT_MAX, |len| UNIT_MAX / len * len);
        let window_max = WINDOW_MAX.max(stripe.saturating_mul(2)).min(memory / 2).max(WINDOW_MIN);
        Self {
            capacity: geometry.capacity(),
            unit,
            step: unit.min(STEP_MAX),
            // Less than half: who keeps half is not seen to do so at every moment.
            enough: window_max / 8 * 3,
            memory,
            streams: Streams::new(WINDOW_MIN, window_max),
            in_flight: Vec::new(),
            changes: 0,
            pieces: Vec::new(),
            under_way: Slab::new(),
            under_way_len: 0,
            arrived: [0; 2],
            waiters: Waiters::default(),
            held: 0,
            actions: VecDeque::new(),
            stats: Stats::default(),
            looks: 0,
            is_stopped: false,
        }
    }

    /// Whether a number is that of a request ahead, and not a user's.
    #[must_use]
    pub const fn is_ahead(id: RequestId) -> bool {
        id.0 & AHEAD != 0
    }

    /// Takes a user's read before the array does. Users' numbers are small: they index a table. A
    /// read that is served by the array, now or later, ends by [`Self::handle_done`].
    pub fn handle_read(&mut self, id: RequestId, range: Range<u64>) -> Served {
        if self.is_stopped || range.is_empty() {
            return Served::ByArray;
        }
        let served = match self.find(&range) {
            Some(found) => self.take(id, &range, found),
            None => Served::ByArray,
        };
        let place = self.streams.follow(&range);
        if !matches!(served, Served::Now(_)) {
            let (stream, len) = (self.streams.at(place), range.end - range.start);
            stream.begin(len);
            let entry = InFlight::Read { stream: stream.id, len };
            self.note(id, entry);
        }
        self.advance(place, range.end - range.start);
        served
    }

    /// Takes a user's change before the array does; it ends by [`Self::handle_done`].
    pub fn handle_change(&mut self, id: RequestId, range: Range<u64>) {
        if !self.pieces.is_empty() && !planted(Planted::AheadKeptThroughChange) {
            self.drop_changed(&range);
        }
        self.changes += 1;
        self.note(id, InFlight::Change(range));
    }

    /// The array has ended a user's request; also of one that this machine was not told of.
    pub fn handle_done(&mut self, id: RequestId) {
        let Some(entry) = self.in_flight.get_mut(index(id)) else { return };
        match core::mem::replace(entry, InFlight::None) {
            InFlight::None => {}
            InFlight::Change(_) => self.changes -= 1,
            InFlight::Read { stream, len } => {
                if let Some(stream) = self.streams.find(stream) {
                    stream.in_flight -= len;
                }
            }
        }
    }

    /// The array has ended a request ahead.
    ///
    /// # Panics
    /// When there is no such request, or it ended with another length.
    pub fn handle_ahead_done(&mut self, id: RequestId, result: Result<SgList, IoError>) {
        let number = index(RequestId(id.0 & !AHEAD));
        let whole = self.under_way.remove(number);
        self.under_way_len -= whole.end - whole.start;
        let is_its = |piece: &Piece| matches!(piece.content, Content::UnderWay(n) if n == number);
        let at = self.pieces.iter().position(is_its);
        let Ok(data) = result else {
            if let Some(at) = at {
                let piece = self.pieces.remove(at);
                self.streams.distrust(piece.stream);
            }
            self.held -= whole.end - whole.start;
            // Who waits for it does without.
            while let Some((id, range)) = self.waiters.give_up(number) {
                self.actions.push_back(Action::ReadAgain { id, range });
            }
            return;
        };
        assert_eq!(data.len() as u64, whole.end - whole.start, "read ahead with another length");
        self.arrived[0] += whole.end - whole.start;
        let mut waiters = core::mem::take(&mut self.waiters);
        waiters.fill(number, &whole, &data, |id, data| {
            self.stats.answered += 1;
            self.handle_done(id);
            self.actions.push_back(Action::Answer { id, data });
        });
        self.waiters = waiters;
        match at {
            Some(at) => self.pieces[at].content = Content::Kept(data),
            None => self.held -= whole.end - whole.start,
        }
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Drops what was begun before the last call, whether it has arrived or not. Its readers do with less
    /// ahead of them. To be called once a second while anything is kept.
    pub fn drop_old(&mut self) {
        let mut last = None;
        let mut at = 0;
        while let Some(piece) = self.pieces.get(at) {
            if piece.looks >= self.looks {
                at += 1;
                continue;
            }
            let piece = self.remove(at);
            self.streams.lower(piece.stream, piece.range.start);
            if last.replace(piece.stream) != Some(piece.stream) {
                self.streams.slow_down(piece.stream);
            }
        }
        self.looks += 1;
        self.arrived = [0, self.arrived[0]];
    }

    /// Nothing is answered from what was read ahead any more, and nothing more is read; for good.
    /// What is under way ends all the same.
    pub fn stop(&mut self) {
        while !self.pieces.is_empty() {
            self.remove(self.pieces.len() - 1);
        }
        self.is_stopped = true;
    }

    /// Whether anything is kept, or under way and to be kept.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Requests ahead that have not ended.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// What came of it so far.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    fn note(&mut self, id: RequestId, entry: InFlight) {
        let at = index(id);
        if self.in_flight.len() <= at {
            self.in_flight.resize(at + 1, InFlight::None);
        }
        assert!(matches!(self.in_flight[at], InFlight::None), "two users' requests of one number");
        self.in_flight[at] = entry;
    }

    /// The first piece that ends behind `at`.
    fn first_behind(&self, at: u64) -> usize {
        self.pieces.partition_point(|piece| piece.range.end <= at)
    }

    /// The pieces that hold all of a range.
    fn find(&self, range: &Range<u64>) -> Option<Range<usize>> {
        if self.pieces.is_empty() {
            return None;
        }
        let first = self.first_behind(range.start);
        let (mut place, mut at) = (first, range.start);
        while at < range.end {
            let piece = self.pieces.get(place).filter(|piece| piece.range.start <= at)?;
            at = piece.range.end;
            place += 1;
        }
        Some(first..place)
    }

    /// Serves a read from the pieces that hold it.
    fn take(&mut self, id: RequestId, range: &Range<u64>, found: Range<usize>) -> Served {
        let is_kept = |piece: &Piece| matches!(piece.content, Content::Kept(_));
        let pieces = &self.pieces[found.clone()];
        let served = if pieces.iter().all(is_kept) {
            let mut data = SgList::new();
            for piece in pieces {
                data.append(piece.slice(range));
            }
            self.stats.answered += 1;
            Served::Now(data)
        } else {
            let parts = pieces.iter().map(|piece| piece.part(range)).collect();
            self.waiters.push(Waiter { id, range: range.clone(), parts });
            Served::Later
        };
        for place in found.rev() {
            self.consume(place, range);
        }
        served
    }

    /// A part of a piece was asked for: its blocks are let go where no whole one before them is left.
    fn consume(&mut self, place: usize, range: &Range<u64>) {
        let piece = &mut self.pieces[place];
        let common = overlap(&piece.range, range);
        piece.used += common.end - common.start;
        if common.start - piece.range.start < BLOCK {
            piece.range.start = piece.range.start.max(block_before(common.end));
        }
        if piece.range.is_empty() {
            let piece = self.remove(place);
            self.judge(&piece);
        }
    }

    /// More is read ahead of a stream that asks for it.
    fn judge(&mut self, piece: &Piece) {
        if piece.used * 2 >= piece.whole.end - piece.whole.start {
            self.streams.grow(piece.stream);
        } else {
            self.streams.shrink(piece.stream);
        }
    }

    fn remove(&mut self, place: usize) -> Piece {
        let piece = self.pieces.remove(place);
        let len = piece.whole.end - piece.whole.start;
        self.stats.unused_bytes += len.saturating_sub(piece.used);
        if matches!(piece.content, Content::Kept(_)) {
            self.held -= len;
        }
        piece
    }

    /// Takes a range that is about to change, and what is before it in its piece, out of the pieces.
    fn drop_changed(&mut self, range: &Range<u64>) {
        let mut place = self.first_behind(range.start);
        while let Some(piece) = self.pieces.get_mut(place)
            && piece.range.start < range.end
            && !range.is_empty()
        {
            let lost = piece.range.start;
            piece.range.start = range.end.next_multiple_of(BLOCK).min(piece.range.end);
            let is_gone = piece.range.is_empty();
            self.streams.set_back(piece.stream, lost);
            if is_gone {
                self.remove(place);
            } else {
                place += 1;
            }
        }
    }

    /// Whether so many bytes more would wait behind what is under way already.
    fn is_slow(&self, len: u64) -> bool {
        let arrived = self.arrived[0] + self.arrived[1];
        self.under_way_len > 0 && self.under_way_len + len > UNDER_WAY_MIN.max(arrived)
    }

    fn is_changing(&self, range: &Range<u64>) -> bool {
        let changes = |entry: &InFlight| match entry {
            InFlight::Change(change) => !overlap(change, range).is_empty(),
            InFlight::None | InFlight::Read { .. } => false,
        };
        self.changes > 0
            && !planted(Planted::AheadBesideChange)
            && self.in_flight.iter().any(changes)
    }

    /// Reads ahead of the stream at this place in the table, if it is worth it.
    fn advance(&mut self, place: usize, len: u64) {
        let stream = self.streams.at(place);
        if !stream.is_proven() || stream.depth >= self.enough {
            return;
        }
        let (next, ahead, id) = (stream.next, stream.next.max(stream.ahead), stream.id);
        // A read that is there in part only is no faster for it: the next one has to be there whole.
        let window = stream.window.max(len.saturating_mul(2));
        let window = window.min(self.memory / self.streams.active().max(1));
        let target = next.saturating_add(window);
        let target = if target >= self.capacity {
            self.capacity
        } else if window < 2 * self.unit {
            target / self.step * self.step
        } else {
            target / self.unit * self.unit
        };
        if ahead < target {
            self.drop_left_behind(id, next.saturating_sub(slack(len)));
            let ahead = self.read_up_to(ahead..target, id);
            self.streams.at(place).ahead = ahead;
        }
    }

    /// Asks for what is not there of a range; says how far it came.
    fn read_up_to(&mut self, range: Range<u64>, stream: StreamId) -> u64 {
        let mut at = block_before(range.start);
        while at < range.end {
            let place = self.first_behind(at);
            let behind = self.pieces.get(place).map(|piece| piece.range.clone());
            if let Some(there) = behind.as_ref().filter(|there| there.start <= at) {
                at = there.end;
                continue;
            }
            let boundary = at / self.unit * self.unit + self.unit;
            let start = behind.map_or(u64::MAX, |behind| behind.start);
            let whole = at..boundary.min(range.end).min(start);
            let len = whole.end - whole.start;
            if self.is_slow(len) || self.is_changing(&whole) || !self.make_room(len) {
                break;
            }
            at = whole.end;
            self.begin(whole, stream);
        }
        at
    }

    fn begin(&mut self, whole: Range<u64>, stream: StreamId) {
        assert!(whole.start < whole.end && whole.end <= self.capacity, "within the volume");
        assert!((whole.start | whole.end).is_multiple_of(BLOCK), "whole blocks are read ahead");
        let number = self.under_way.insert(whole.clone());
        self.under_way_len += whole.end - whole.start;
        let (range, content) = (whole.clone(), Content::UnderWay(number));
        let (place, looks) = (self.first_behind(whole.start), self.looks);
        self.pieces
            .insert(place, Piece { range, whole: whole.clone(), used: 0, looks, stream, content });
        self.held += whole.end - whole.start;
        self.stats.read_bytes += whole.end - whole.start;
        self.actions.push_back(Action::Read { id: RequestId(AHEAD | number as u64), range: whole });
    }

    /// Whether there is memory for so many bytes more; idle streams give theirs.
    fn make_room(&mut self, len: u64) -> bool {
        while self.held + len > self.memory || self.pieces.len() >= PIECES_MAX {
            let mut places = 0..self.pieces.len();
            let idle = places.find(|at| {
                let Piece { stream, content, .. } = &self.pieces[*at];
                matches!(content, Content::Kept(_)) && self.streams.is_idle(*stream)
            });
            match idle {
                Some(at) => {
                    let piece = self.remove(at);
                    self.streams.lower(piece.stream, piece.range.start);
                }
                None => return false,
            }
        }
        self.under_way.len() < PIECES_MAX
    }

    /// Drops pieces of a stream that end before where it may still ask for something.
    fn drop_left_behind(&mut self, stream: StreamId, before: u64) {
        let mut at = 0;
        while let Some(piece) = self.pieces.get(at)
            && piece.range.end <= before
        {
            if piece.stream == stream && matches!(piece.content, Content::Kept(_)) {
                let piece = self.remove(at);
                self.judge(&piece);
            } else {
                at += 1;
            }
        }
    }
}

impl Piece {
    /// The bytes of a range that are in this piece, which is kept.
    fn slice(&self, range: &Range<u64>) -> SgList {
        let common = overlap(&self.range, range);
        match &self.content {
            Content::Kept(data) => data.slice(within(&self.whole, &common)),
            Content::UnderWay(_) => unreachable!("it has not arrived"),
        }
    }

    fn part(&self, range: &Range<u64>) -> Part {
        match self.content {
            Content::Kept(_) => Part::There(self.slice(range)),
            Content::UnderWay(number) => {
                Part::Awaited { number, range: overlap(&self.range, range) }
            }
        }
    }
}

/// What two ranges have in common.
fn overlap(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}

/// Where the block begins that a place is in.
const fn block_before(at: u64) -> u64 {
    at / BLOCK * BLOCK
}

/// Where a part of a range is in its bytes.
fn within(whole: &Range<u64>, part: &Range<u64>) -> Range<usize> {
    narrow(part.start - whole.start)..narrow(part.end - whole.start)
}

#[track_caller]
fn index(id: RequestId) -> usize {
    narrow(id.0)
}
