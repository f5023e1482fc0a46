//! Requests on their way through a volume: those of users, past what was read ahead, into the machine; the machine's,
//! to the devices in members' places; and both ways back.
//!
//! Requests ahead go through the machine as those of users do. They are nobody's: they do not count among the users',
//! but closing waits for their ends.
//!
//! Invariant: a member request ends once, by the last of its pieces; what a device answers that has lost its cache, or
//! has the member's place no more, is not believed, and a read that ends well has as many bytes as it was for.

use alloc::{boxed::Box, string::ToString as _, vec, vec::Vec};
use core::{mem, ops::Range, time::Duration};

use netraid_block::{ErrorKind, IoError, Op, RequestFlags, SgList, narrow};

use super::{
    Volume,
    interface::{Action, Tag},
    machine::Machine,
    succession::{Two, Ways},
    users::{Ask, Read},
};
use crate::{
    array::{IoId, RequestId},
    faults::Fault,
    logged::{AtomicWrite, AtomicWriteError, To},
    member::MemberIndex,
    planted::{Planted, planted},
    read_ahead::{Action as AheadAction, ReadAhead, Served},
    slowness::SentRequest,
};

/// Why a member is set aside that may have lost what was not flushed.
pub(super) const CACHE_LOST: &str =
    "restarted or was reset: writes that were not flushed may be lost";

/// A member request in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    /// To the device in whose place.
    pub(super) member: MemberIndex,
    /// The number of the member's place, of the device that has it.
    pub(super) number: u32,
    len: u64,
    pub(super) is_read: bool,
    /// As its lateness is watched.
    sent: Option<SentRequest>,
    /// What is longer than the device takes at once goes in several requests.
    pieces: Option<Box<Pieces>>,
    /// It goes to a device that the member is copied to.
    pub(super) two: Option<Box<Two>>,
}

/// A request in several pieces.
#[derive(Debug)]
pub(super) struct Pieces {
    left: usize,
    end: Result<Vec<SgList>, IoError>,
}

impl Pieces {
    pub(super) fn new(count: usize) -> Self {
        Self { left: count, end: Ok(vec![SgList::new(); count]) }
    }

    /// Takes a piece's end; that of the whole when it was the last one.
    pub(super) fn end(
        &mut self,
        piece: usize,
        result: Result<SgList, IoError>,
    ) -> Option<Result<SgList, IoError>> {
        match (&mut self.end, result) {
            (Ok(parts), Ok(data)) if planted(Planted::PiecesInOrderOfTheirEnds) => {
                let place = parts.len() - self.left;
                parts[place] = data;
            }
            (Ok(parts), Ok(data)) => parts[piece] = data,
            (Ok(_), Err(_)) if planted(Planted::PieceErrorForgotten) => {}
            (Ok(_), Err(error)) => self.end = Err(error),
            (Err(_), _) => {}
        }
        self.left -= 1;
        (self.left == 0).then(|| {
            let parts = mem::replace(&mut self.end, Ok(Vec::new()))?;
            let mut whole = SgList::new();
            parts.into_iter().for_each(|part| whole.append(part));
            Ok(whole)
        })
    }
}

impl<M: Machine, U> Volume<M, U> {
    /// A user's request: an operation with its range in bytes, which lies within the volume, and what is written. It is
    /// known by `user` when it ends.
    pub fn handle_request(
        &mut self,
        now: Duration,
        user: U,
        (op, offset, len): (Op, u64, u64),
        flags: RequestFlags,
        data: SgList,
    ) {
        if self.is_closing() {
            let result = Err(ErrorKind::Aborted.into());
            return self.actions.push_back(Action::Complete { user, result });
        }
        let data_len = data.len() as u64;
        assert!(op != Op::Write || data_len == len, "a write of {len} bytes with {data_len}");
        self.is_busy = true;
        if let Some(error) = self.reader.refusal(now) {
            return self.actions.push_back(Action::Complete { user, result: Err(error) });
        }
        if !self.is_paused()
            && let Some(error) = self.pauses.refusal(op, offset, len)
        {
            return self.actions.push_back(Action::Complete { user, result: Err(error) });
        }
        let keeps = self.pauses.keep_requests();
        let ask = keeps.then(|| Ask::Range { what: (op, offset, len), flags, data: data.clone() });
        let id = self.users.insert(user, ask);
        if self.is_paused() {
            // It is made when the array goes on.
            return self.pauses.hold(data_len);
        }
        if let Some(ahead) = &mut self.ahead {
            if op.changes() {
                ahead.handle_change(id, offset..offset + len);
            } else if op == Op::Read {
                if !ahead.is_empty() && self.machine.failure().is_some() {
                    ahead.stop();
                }
                match ahead.handle_read(id, offset..offset + len) {
                    Served::ByArray => {}
                    Served::Now(data) => {
                        self.end_user(now, id, Ok(data));
                        return self.read_ahead(now);
                    }
                    Served::Later => return self.read_ahead(now),
                }
            }
        }
        // A large read may wait.
        if op != Op::Read || self.users.admit(now, Read { id, offset, len }) {
            self.machine.handle_request(id, (op, offset, len), flags, data);
        }
        self.read_ahead(now);
    }

    /// Blocks of 4 KiB that may be written at once, in several ranges; 0 where that cannot be.
    #[must_use]
    pub fn atomic_blocks_max(&self) -> u32 {
        self.machine.atomic_blocks_max()
    }

    /// A write of several ranges, to be given to [`Self::handle_atomic_write`]: of each the first byte and what is
    /// written from there on.
    ///
    /// # Errors
    /// When these ranges cannot be written at once; an array without a log writes none so.
    pub fn atomic_write(
        &self,
        ranges: Vec<(u64, SgList)>,
        fua: bool,
    ) -> Result<AtomicWrite, AtomicWriteError> {
        let capacity = self.machine.geometry().capacity();
        AtomicWrite::new(ranges, fua, capacity, self.machine.atomic_blocks_max())
    }

    /// A user's write of several ranges: a crash leaves all of it or nothing. It is known by `user` when it ends, which
    /// it does once.
    pub fn handle_atomic_write(&mut self, now: Duration, user: U, write: AtomicWrite) {
        if self.is_closing() {
            let result = Err(ErrorKind::Aborted.into());
            return self.actions.push_back(Action::Complete { user, result });
        }
        self.is_busy = true;
        let ask = self.pauses.keep_requests().then(|| Ask::Atomic(write.clone()));
        let id = self.users.insert(user, ask);
        if self.is_paused() {
            return self.pauses.hold(write.data_len());
        }
        if let Some(ahead) = &mut self.ahead {
            ahead.handle_change(id, write.span());
        }
        self.machine.handle_atomic_write(id, write);
        self.read_ahead(now);
    }

    /// A request to the device in a member's place has ended; a read with its bytes. `cache_losses` is how often that
    /// device has lost what was not flushed, counted after the end came; none where the place has no device.
    ///
    /// # Panics
    /// When nothing is in flight with this tag.
    pub fn handle_io_done(
        &mut self,
        now: Duration,
        tag: Tag,
        cache_losses: Option<u64>,
        result: Result<SgList, IoError>,
    ) {
        if tag.is_for_successor() {
            return self.hear_successor(now, tag, cache_losses, result);
        }
        let is_nobodys = self.hear_sign(now, tag, result.is_ok())
            || self.hear_heartbeat(tag)
            || self.hear_as_reader(now, tag, &result)
            || self.hear_counters(now, tag, &result);
        if is_nobodys {
            return;
        }
        let io: usize = narrow(tag.io());
        let Some(entry) = self.in_flight.get_mut(io).and_then(Option::as_mut) else {
            unreachable!("a request to member {} ended that was not in flight", tag.member());
        };
        let result = match &mut entry.pieces {
            None => result,
            Some(pieces) => match pieces.end(narrow(tag.piece()), result) {
                Some(whole) => whole,
                None => return,
            },
        };
        let (number, len, is_read) = (entry.number, entry.len, entry.is_read);
        let is_beside = entry.two.is_some();
        if let Some(sent) = entry.sent.take() {
            self.slowness.note_done(now, tag.member(), sent, result.is_ok());
        }
        let result = self.believe(tag.member(), number, cache_losses, result);
        let result = result.and_then(|data| check_len(is_read, len, data));
        if is_beside {
            return self.hear_own(io, result);
        }
        self.in_flight[io] = None;
        let place = &self.places[tag.member().as_usize()];
        if place.number == number && place.device.is_some() {
            self.note_end_of(tag.member(), &result, is_read);
        }
        self.machine.handle_io_done(IoId(io), result);
    }

    /// A device that has lost its cache is not believed, nor one that has the place no more: nobody knows any more whether
    /// that has.
    fn believe(
        &self,
        member: MemberIndex,
        number: u32,
        cache_losses: Option<u64>,
        result: Result<SgList, IoError>,
    ) -> Result<SgList, IoError> {
        let place = &self.places[member.as_usize()];
        let is_former = place.number != number && !planted(Planted::FormerDeviceBelieved);
        if is_former || place.device.is_none() {
            return result.and(Err(ErrorKind::Unreachable.into()));
        }
        let has_lost = cache_losses.is_some_and(|losses| place.has_lost_its_cache(losses));
        match has_lost && result.is_ok() {
            true => Err(IoError::with_detail(ErrorKind::Unreachable, CACHE_LOST)),
            false => result,
        }
    }

    /// A request to the device in a member's place has ended.
    pub(super) fn note_end_of(
        &mut self,
        member: MemberIndex,
        result: &Result<SgList, IoError>,
        is_read: bool,
    ) {
        let place = &mut self.places[member.as_usize()];
        place.returning.answers_so &= result.is_err();
        let Err(error) = result else { return };
        place.stats.errors += 1;
        place.stats.last_error = Some(error.to_string());
        place.returning.note(error, is_read);
        // One with a log looks at each block.
        if is_read && error.kind() == ErrorKind::Medium && !self.machine.has_log() {
            self.note_fault(member, Fault::UnreadableBlocks, 1);
        }
    }

    /// Hands a user's read that has waited to the machine.
    pub(super) fn begin_read(&mut self, Read { id, offset, len }: Read) {
        let flags = RequestFlags::default();
        self.machine.handle_request(id, (Op::Read, offset, len), flags, SgList::new());
    }

    /// The machine has ended a request.
    pub(super) fn end_request(
        &mut self,
        now: Duration,
        id: RequestId,
        result: Result<SgList, IoError>,
    ) {
        if Self::is_again(id) {
            return self.end_again(id, result);
        }
        if result.is_err() && !ReadAhead::is_ahead(id) && self.keeps_failed() {
            // It is made again when the array goes on.
            return;
        }
        if let Some(ahead) = &mut self.ahead {
            if ReadAhead::is_ahead(id) {
                ahead.handle_ahead_done(id, result);
                return self.read_ahead(now);
            }
            ahead.handle_done(id);
        }
        self.end_user(now, id, result);
    }

    fn end_user(&mut self, now: Duration, id: RequestId, result: Result<SgList, IoError>) {
        let result = self.reader.refusal(now).map_or(result, Err);
        if result.is_ok() && self.pauses.is_to_note() {
            self.note_end(id);
        }
        if let Some((user, result)) = self.users.end(now, id, result) {
            self.actions.push_back(Action::Complete { user, result });
        }
    }

    /// A user's request ends, and the machine does not have it.
    pub(super) fn end_user_now(&mut self, id: RequestId, result: Result<SgList, IoError>) {
        if let Some((user, result)) = self.users.end(Duration::ZERO, id, result) {
            self.actions.push_back(Action::Complete { user, result });
        }
    }

    /// A user's request has ended well, the first one since a pause, or while bytes are lost that may be written anew by
    /// it.
    #[cold]
    fn note_end(&mut self, id: RequestId) {
        self.pauses.note_progress();
        match self.users.ask(id) {
            // A discard may leave what was there.
            Some(Ask::Range { what: (Op::Write | Op::WriteZeroes, offset, len), .. }) => {
                self.pauses.note_written(offset, len);
            }
            Some(Ask::Atomic(write)) => {
                for Range { start, end } in write.ranges_of_bytes() {
                    self.pauses.note_written(start, end - start);
                }
            }
            Some(Ask::Range { .. }) | None => {}
        }
    }

    /// Does what is to be done to read ahead.
    fn read_ahead(&mut self, now: Duration) {
        while let Some(action) = self.ahead.as_mut().and_then(ReadAhead::poll_action) {
            match action {
                AheadAction::Read { id, range } | AheadAction::ReadAgain { id, range } => {
                    let read = (Op::Read, range.start, range.end - range.start);
                    self.machine.handle_request(id, read, RequestFlags::default(), SgList::new());
                }
                AheadAction::Answer { id, data } => self.end_user(now, id, Ok(data)),
            }
        }
    }

    /// Sends a member request to the device in the member's place; in pieces, where it is longer than the device
    /// takes at once. Without a device it fails.
    pub(super) fn submit(
        &mut self,
        now: Duration,
        io: IoId,
        (member, to): (MemberIndex, To),
        (op, offset, len): (Op, u64, u64),
        fua: bool,
        data: SgList,
    ) {
        let data_len = data.len() as u64;
        assert!(op != Op::Write || data_len == len, "a write of {len} bytes with {data_len}");
        let place = &mut self.places[member.as_usize()];
        place.count(op, len);
        if self.in_flight.len() <= io.0 {
            self.in_flight.resize_with(io.0 + 1, || None);
        }
        assert!(self.in_flight[io.0].is_none(), "member request {} is in flight twice", io.0);
        let is_read = op == Op::Read;
        let (number, is_there) = (place.number, place.device.is_some());
        let ways @ Ways { own, successor } = self.successions.ways(member, to, op);
        // Without a log nothing can be had elsewhere, and nobody catches up by itself.
        let sent = match is_there && own && self.machine.has_log() {
            true => self.slowness.note_sent(now, member, io, (op, len)),
            false => None,
        };
        let (pieces, two) = (None, None);
        let entry = InFlight { member, number, len, is_read, sent, pieces, two };
        self.in_flight[io.0] = Some(entry);
        if successor.is_some() {
            let what = (op, offset, len);
            self.send_to_successor(now, (io.0, member), ways, what, fua, data.clone());
        } else if !own {
            // What a device was to get that has gone since.
            return self.ended_at_once.push_back((io, Ok(SgList::new())));
        }
        if !own {
            return;
        }
        let Some(device) = &self.places[member.as_usize()].device else {
            return self.ended_at_once.push_back((io, Err(ErrorKind::Unreachable.into())));
        };
        let (tag, limit) = (|piece| Tag::new(member, io.0, piece), device.max_transfer_len);
        let count = self.send(tag, member, limit, (op, offset, len), fua, data);
        if let Some(entry) = self.in_flight[io.0].as_mut().filter(|_| count > 1) {
            entry.pieces = Some(Box::new(Pieces::new(count)));
        }
    }

    /// Sends a request to a device, in pieces where it is longer than that takes at once; answers in how many.
    pub(super) fn send(
        &mut self,
        tag: impl Fn(u64) -> Tag,
        member: MemberIndex,
        limit: u32,
        (op, offset, len): (Op, u64, u64),
        fua: bool,
        data: SgList,
    ) -> usize {
        let limit = u64::from(limit);
        if len <= limit || !matches!(op, Op::Read | Op::Write) {
            let tag = tag(0);
            let whole = Action::Submit { tag, member, op, offset, len, fua, data };
            self.actions.push_back(whole);
            return 1;
        }
        let count = len.div_ceil(limit);
        for piece in 0..count {
            let from = piece * limit;
            let len = limit.min(len - from);
            let data = match op == Op::Read {
                true => SgList::new(),
                false => data.slice(narrow(from)..narrow(from + len)),
            };
            let (tag, offset) = (tag(piece), offset + from);
            self.actions.push_back(Action::Submit { tag, member, op, offset, len, fua, data });
        }
        narrow(count)
    }
}

/// A read that ends well has as many bytes as it was for.
pub(super) fn check_len(is_read: bool, len: u64, data: SgList) -> Result<SgList, IoError> {
    if is_read && data.len() as u64 != len {
        let text = "answered a read with another length";
        return Err(IoError::with_detail(ErrorKind::Device, text));
    }
    Ok(data)
}
