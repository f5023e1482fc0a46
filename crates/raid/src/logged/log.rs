//! The log's end that grows: room in it, records, their acknowledgement, flushes.
//!
//! Invariants: what a record says becomes visible when it is acknowledged, in the order of the
//! log. While a member is leaving no batch is formed: it would have fewer copies than the labels
//! promise. A flush covers what was acknowledged when it was sent.

use alloc::{collections::VecDeque, vec::Vec};
use core::{
    future::poll_fn,
    task::{Poll, Waker},
};

use futures_util::future::join_all;
use netraid_block::{Buf, IoError, SgList, narrow};

use super::{
    Rule,
    dirty::Dirty,
    state::{Limbo, State},
    tasks::{Array, Change},
    waits::{Ticket, WaitId},
};
use crate::{
    log::{Acked, Link, LogWriter, Position, Record},
    member::{MemberIndex, MemberSet},
    planted::{Planted, planted},
};

/// Blocks that a record of one block takes at most, with a head of its own.
pub(super) const BLOCKS_OF_DATA: u64 = 2;
/// Places that are remembered where the log may begin.
const CUTS_MAX: u64 = 64;

/// What the machine remembers of a record until it is acknowledged.
#[derive(Debug)]
pub(super) struct Note {
    /// Who waits for it.
    wait: Option<WaitId>,
    /// The contents of a DATA record.
    data: Option<Buf>,
    /// What a REMAP is for.
    remaps: Remaps,
    /// A DATA record that is written at once with others.
    is_joined: bool,
}

/// What a REMAP is for: what is lost with it, should a failure of all power undo it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Remaps {
    /// No REMAP, or one by which nothing new came: what was there has moved.
    #[default]
    Moved,
    /// A user has written the whole stripe.
    Written,
    /// The stripe is given back, and so is the space that it had.
    GivenBack,
}

impl Note {
    /// Of contents that somebody waits for.
    pub(super) const fn data(wait: WaitId, data: Option<Buf>) -> Self {
        Self { wait: Some(wait), data, remaps: Remaps::Moved, is_joined: false }
    }

    /// The same, written at once with others or not.
    pub(super) fn joined(self, is_joined: bool) -> Self {
        Self { is_joined, ..self }
    }
}

#[derive(Debug, Default)]
pub(super) struct LogState {
    /// None before recovery has found the log's end.
    pub(super) writer: Option<LogWriter<Note>>,
    /// Blocks promised to records that are not pushed yet.
    promised: u64,
    /// Blocks of the volume that will be dirty when their records are acknowledged.
    becoming_dirty: u64,
    /// REMAPs that are acknowledged and not stable, in their order.
    pub(super) unstable: VecDeque<UnstableRemap>,
    /// Blocks that these have voided: dirty again if a crash drops them, and then they are to be
    /// brought home.
    voided: u64,
    /// Whole stripes that these have written.
    unstable_stripes: u64,
    /// Who waits for room, in order.
    queue: VecDeque<Option<Waker>>,
    /// Number of the first in the queue.
    first_in_queue: u64,
    /// Ends of acknowledged batches from the tail on, some way apart: there the log may begin.
    cuts: VecDeque<Link>,
    /// It waits for the labels.
    is_held_back: bool,
    /// Members that are complete but for the log: they get every batch from now on.
    pub(super) joining: MemberSet,
    flushes_asked: u64,
    flushes_begun: u64,
    flushes_done: u64,
}

/// A REMAP that a failure of all power may undo.
#[derive(Debug)]
pub(super) struct UnstableRemap {
    pub(super) position: Position,
    /// The logical stripe.
    pub(super) logical: u32,
    pub(super) remaps: Remaps,
    /// Dirty blocks that it has voided.
    voided: u64,
    /// Those of them that were not stable: they are in the log, and in what the REMAP has moved, alone.
    pub(super) unstable: Vec<(u64, Position)>,
    /// Whole stripes that it has written.
    stripes: u64,
}

/// Room in the log, for records to come. What is not used comes back when this is dropped.
pub(super) struct Room {
    array: Array,
    promised: u64,
    becoming_dirty: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut state = self.array.state();
        state.log.promised -= self.promised;
        state.log.becoming_dirty -= self.becoming_dirty;
        state.waiters.wake(Change::Room);
    }
}

impl State {
    pub(super) fn writer(&mut self) -> &mut LogWriter<Note> {
        match &mut self.log.writer {
            Some(writer) => writer,
            None => unreachable!("the log is used before it was recovered"),
        }
    }

    /// Everything below this is acknowledged.
    pub(super) fn acked(&mut self) -> Position {
        self.writer().acked()
    }

    pub(super) fn room(&mut self) -> u64 {
        let kept = self.kept_in_log();
        self.writer().room().saturating_sub(kept)
    }

    /// Blocks of the log that are kept for records to come: what was promised, and what brings home
    /// all that is dirty.
    pub(super) fn kept_in_log(&self) -> u64 {
        let home = self.layout.blocks_to_bring_home();
        // What cannot be brought home is logged again by each round.
        let again = BLOCKS_OF_DATA * self.stuck.len() as u64;
        let dirty = self.dirty.len() + self.log.becoming_dirty + self.log.voided;
        self.log.promised + home * dirty + again
    }

    /// Blocks of the log that are free for what is dirty already, with those that are kept to bring it
    /// home.
    pub(super) fn room_to_log_again(&mut self) -> u64 {
        let promised = self.log.promised;
        self.writer().room().saturating_sub(promised)
    }

    /// Adds a record; answers through `wait`.
    fn push_record(&mut self, record: Record, payload: SgList, note: Note) {
        self.writer().push(record, payload, note);
    }

    /// Adds contents that are dirty already.
    pub(super) fn push_again(&mut self, record: Record, payload: SgList, note: Note) {
        self.log.becoming_dirty += 1;
        self.push_record(record, payload, note);
    }

    /// Forms batches of what was pushed. Whether there were any.
    pub(super) fn pump_log(&mut self) -> bool {
        if self.log.writer.is_none() || self.failed.is_some() {
            return false;
        }
        if self.is_anybody_leaving() && !planted(Planted::AckBeforeLabels) {
            if !core::mem::replace(&mut self.log.is_held_back, true) {
                self.rules.note(Rule::LogAfterLabels);
            }
            return false;
        }
        self.log.is_held_back = false;
        let members = self.in_sync();
        let base = self.layout.regions.log.offset;
        let mut any = false;
        let joining = self.log.joining;
        while let Some(batch) = self.writer().poll_batch(members, joining) {
            any = true;
            let (position, offset, holders) = (batch.position, base + batch.offset, batch.members);
            let data = batch.into_data();
            for member in holders.iter() {
                self.push_batch(position, member, offset, data.clone());
            }
        }
        any
    }

    pub(super) fn batch_written(&mut self, position: Position, member: MemberIndex) {
        if self.writer().handle_written(position, member) {
            self.rules.note(Rule::OrderOfLog);
        }
        self.take_acked();
    }

    pub(super) fn log_member_gone(&mut self, member: MemberIndex) {
        if self.log.writer.is_some() {
            self.writer().handle_member_gone(member);
            self.take_acked();
        }
    }

    fn take_acked(&mut self) {
        // Who waited has given up, and what it had allocated.
        if self.failed.is_some() {
            return;
        }
        while let Some(acked) = self.writer().poll_acked() {
            self.apply(acked);
        }
        let blocks = self.layout.ring.blocks();
        let acked = self.writer().acked_link();
        self.remember_cut(acked);
        // Before anybody has to wait for it.
        let many = self.layout.limits.dirty_blocks as u64 / 2;
        let little = self.writer().used() > blocks / 2 || self.room() < blocks / 4;
        if little || self.dirty.len() > many {
            self.want_round();
        }
    }

    /// Remembers the end of an acknowledged batch, unless that is close to the one before.
    pub(super) fn remember_cut(&mut self, cut: Link) {
        let apart = self.layout.ring.blocks().div_ceil(CUTS_MAX);
        if self.log.cuts.back().is_none_or(|last| last.end.0 + apart <= cut.end.0) {
            self.log.cuts.push_back(cut);
        }
    }

    /// The last place that is remembered where the log may begin while this is to stay in it, if
    /// that is later than where it begins.
    pub(super) fn last_cut_before(&mut self, position: Position) -> Option<Link> {
        self.last_cut(|cut| cut <= position)
    }

    /// The last place that is remembered where the log may begin, of those that suit and are later
    /// than where it begins.
    pub(super) fn last_cut(&mut self, suits: impl Fn(Position) -> bool) -> Option<Link> {
        let tail = self.writer().tail();
        let later = self.log.cuts.iter().rev().take_while(|cut| cut.end > tail);
        later.copied().find(|cut| suits(cut.end))
    }

    /// The first place that is remembered where the log may begin, later than where it does.
    pub(super) fn first_cut(&mut self) -> Option<Link> {
        let tail = self.writer().tail();
        self.log.cuts.iter().find(|cut| cut.end > tail).copied()
    }

    /// The log begins there.
    pub(super) fn begin_log_at(&mut self, tail: Position) {
        self.writer().handle_tail(tail);
        while self.log.cuts.pop_front_if(|cut| cut.end < tail).is_some() {}
    }

    /// What a record says counts now.
    fn apply(&mut self, acked: Acked<Note>) {
        let Acked { position, record, tag: Note { wait, data, remaps, is_joined } } = acked;
        match record {
            Record::Data { block, crc } => {
                self.log.becoming_dirty -= 1;
                self.dirty.insert(block, Dirty { position, data, sum: crc, is_joined });
            }
            Record::Zeroes { block, count } => {
                self.log.becoming_dirty -= count;
                for block in block..block + count {
                    self.dirty.insert(block, Dirty::zeros(self.layout.checksum, block, position));
                }
            }
            Record::Remap { stripe, to, void_upto, written, sums } => {
                let (logical, to) = (narrow(stripe), to.map(narrow));
                let left = self.stripes.remap(logical, to, self.round);
                let discard = remaps == Remaps::GivenBack;
                if let Some(physical) = left {
                    self.limbo.push(Limbo { physical, position, discard });
                    if planted(Planted::FreeOnCompleted) {
                        self.end_limbo(Position(u64::MAX));
                    }
                }
                let first = self.layout.first_block(logical);
                let blocks = first..first + u64::from(self.layout.stripe_blocks());
                let voided = self.dirty.void(blocks, void_upto);
                let stable = self.writer().stable();
                let is_unstable = |(_, position): &&(u64, Position)| *position >= stable;
                let unstable = match remaps {
                    Remaps::Moved => voided.iter().filter(is_unstable).copied().collect(),
                    Remaps::Written | Remaps::GivenBack => Vec::new(),
                };
                if let Some(to) = to {
                    self.set_stripe_sums(to, &written, &sums);
                }
                self.note_unstable(UnstableRemap {
                    position,
                    logical,
                    remaps,
                    voided: voided.len() as u64,
                    unstable,
                    stripes: to.is_some().into(),
                });
                self.waiters.wake(Change::Room);
            }
            Record::Parity { .. } | Record::Open { .. } => {}
        }
        if let Some(wait) = wait {
            // The answer says where it is.
            self.settle(wait, Ok(SgList::new()));
        }
    }

    /// Asks for a flush, if none is to come anyway.
    pub(super) fn want_flush(&mut self) {
        if self.log.flushes_asked == self.log.flushes_begun {
            self.log.flushes_asked += 1;
            self.waiters.wake(Change::Flush);
        }
    }

    /// Makes it possible to use left stripes again, whose REMAP is stable.
    pub(super) fn end_limbo(&mut self, stable: Position) {
        let mut discards = Vec::new();
        let limbo = core::mem::take(&mut self.limbo);
        for entry in limbo {
            if entry.position >= stable {
                self.limbo.push(entry);
            } else if entry.discard {
                discards.push(entry.physical);
            } else {
                if self.stripes.pins(entry.physical) > 1 {
                    self.rules.note(Rule::PinnedStripe);
                }
                self.stripes.unpin(entry.physical);
            }
        }
        self.discards.extend(discards);
        self.waiters.wake(Change::Stripes);
    }

    /// Everything acknowledged below `upto` is stable.
    pub(super) fn became_stable(&mut self, upto: Position) {
        self.writer().handle_stable(upto);
        while let Some(remap) = self.log.unstable.pop_front_if(|one| one.position < upto) {
            self.log.voided -= remap.voided;
            self.log.unstable_stripes -= remap.stripes;
        }
        self.waiters.wake(Change::Room);
        self.end_limbo(upto);
    }

    fn note_unstable(&mut self, remap: UnstableRemap) {
        self.log.voided += remap.voided;
        self.log.unstable_stripes += remap.stripes;
        self.log.unstable.push_back(remap);
        if self.has_much_unstable(1) {
            self.want_flush();
        }
    }

    /// Whether so many times as much as the limit is not stable: a recovery reads all of it.
    pub(super) fn has_much_unstable(&self, times: u64) -> bool {
        let len = u64::from(self.layout.stripe_blocks() * super::state::BLOCK);
        self.log.unstable_stripes * len >= times * self.layout.limits.unstable_len.max(1)
    }

    /// What users have written is made stable, although nobody asked for it: it is old.
    pub(super) fn flush_what_is_old(&mut self) {
        if self.is_any_unflushed() && self.failed.is_none() {
            self.want_flush();
        }
    }
}

impl Array {
    /// Waits for room for so many blocks of DATA (or ZEROES), or for a REMAP.
    ///
    /// # Errors
    /// Members have no space, and the log has no more room before they do.
    pub(super) async fn room(&self, data: u64, remaps: u64) -> Result<Room, IoError> {
        let (remap, kept) = {
            let state = self.state();
            (state.layout.blocks_to_bring_home() + 1, state.kept_for_discards())
        };
        self.wait_for_room(data, data * BLOCKS_OF_DATA + remaps * remap, kept).await
    }

    /// Waits for room for a REMAP that gives a stripe back.
    ///
    /// # Errors
    /// As [`Self::room`], and no stripe is being given back that may change it.
    pub(super) async fn room_to_discard(&self) -> Result<Room, IoError> {
        self.room_while_stripes_are_given_back(0, BLOCKS_OF_DATA, 0).await
    }

    /// As [`Self::room`], for so many blocks of ZEROES.
    ///
    /// # Errors
    /// As [`Self::room_to_discard`].
    pub(super) async fn room_for_zeroes(&self, count: u64) -> Result<Room, IoError> {
        let kept = self.state().kept_for_discards();
        self.room_while_stripes_are_given_back(count, count * BLOCKS_OF_DATA, kept).await
    }

    /// As [`Self::wait_for_room`], but what that refuses is tried again whenever a stripe was given back:
    /// so a large discard, which frees more than it needs, is not refused for what comes to be free by its first
    /// part.
    async fn room_while_stripes_are_given_back(
        &self,
        data: u64,
        promised: u64,
        kept: u64,
    ) -> Result<Room, IoError> {
        loop {
            let before = self.state().space.given_back();
            let refused = match self.wait_for_room(data, promised, kept).await {
                Ok(room) => return Ok(room),
                Err(refused) => refused,
            };
            self.state().want_flush();
            let is_freed = self.until(Change::Stripes, |state| {
                let is_freed = state.space.given_back() != before;
                (is_freed || !state.is_giving_back()).then_some(is_freed)
            });
            if !is_freed.await {
                return Err(refused);
            }
        }
    }

    /// Waits for `promised` blocks, which become so many dirty ones, beside those that are kept for
    /// others.
    async fn wait_for_room(&self, data: u64, promised: u64, kept: u64) -> Result<Room, IoError> {
        let number = {
            let mut state = self.state();
            let number = state.log.first_in_queue + state.log.queue.len() as u64;
            state.log.queue.push_back(None);
            number
        };
        let mut is_held_back = false;
        poll_fn(|context| {
            let mut state = self.state();
            let mut note = |state: &mut State| {
                if !core::mem::replace(&mut is_held_back, true) {
                    state.rules.note(Rule::RoomInLog);
                }
            };
            let before: usize = narrow(number - state.log.first_in_queue);
            if before > 0 {
                // Who leaves the queue wakes the next.
                note(&mut state);
                state.log.queue[before] = Some(context.waker().clone());
                return Poll::Pending;
            }
            let needed = promised + data * state.layout.blocks_to_bring_home() + kept;
            let dirty = state.dirty.len() + state.log.becoming_dirty + data;
            let is_there =
                needed <= state.room() && dirty <= state.layout.limits.dirty_blocks as u64;
            if !is_there && !state.space.is_blocked() {
                note(&mut state);
                state.want_round();
                state.waiters.add(Change::Room, context.waker());
                return Poll::Pending;
            }
            state.log.queue.pop_front();
            state.log.first_in_queue += 1;
            let end = if is_there {
                state.log.promised += promised;
                state.log.becoming_dirty += data;
                Ok(())
            } else {
                Err(state.no_space())
            };
            let next = state.log.queue.front_mut().and_then(Option::take);
            drop(state);
            next.into_iter().for_each(Waker::wake);
            Poll::Ready(end)
        })
        .await?;
        Ok(Room { array: self.clone(), promised, becoming_dirty: data })
    }

    /// Waits until not too much is unstable that a recovery would have to look at.
    pub(super) async fn may_write_whole(&self) {
        self.until_rule(Change::Flush, Rule::UnstableStripes, |state| {
            (!state.has_much_unstable(2)).then_some(())
        })
        .await;
    }

    /// Logs new contents of a block.
    pub(super) fn log_data(&self, room: &mut Room, block: u64, crc: u32, data: Buf) -> Ticket {
        let ticket = self.ticket();
        room.promised -= BLOCKS_OF_DATA;
        room.becoming_dirty -= 1;
        let mut state = self.state();
        state.log.promised -= BLOCKS_OF_DATA;
        let note = Note::data(ticket.id(), Some(data.clone()));
        state.push_record(Record::Data { block, crc }, data.into(), note);
        drop(state);
        ticket
    }

    /// Logs new contents of blocks, with their checksums, all of them in one batch.
    pub(super) fn log_data_at_once(
        &self,
        room: &mut Room,
        blocks: Vec<(u64, u32, Buf)>,
    ) -> Vec<Ticket> {
        let count = blocks.len() as u64;
        room.promised -= count * BLOCKS_OF_DATA;
        room.becoming_dirty -= count;
        let tickets: Vec<Ticket> = blocks.iter().map(|_| self.ticket()).collect();
        let records = blocks.into_iter().zip(&tickets).map(|((block, crc, data), ticket)| {
            let note = Note::data(ticket.id(), Some(data.clone())).joined(true);
            (Record::Data { block, crc }, data.into(), note)
        });
        let records: Vec<(Record, SgList, Note)> = records.collect();
        let mut state = self.state();
        state.log.promised -= count * BLOCKS_OF_DATA;
        state.writer().push_at_once(records);
        drop(state);
        tickets
    }

    /// Logs that blocks are zeros.
    pub(super) fn log_zeroes(&self, room: &mut Room, block: u64, count: u64) -> Ticket {
        let ticket = self.ticket();
        room.promised -= count * BLOCKS_OF_DATA;
        room.becoming_dirty -= count;
        let mut state = self.state();
        state.log.promised -= count * BLOCKS_OF_DATA;
        let note = Note::data(ticket.id(), None);
        state.push_record(Record::Zeroes { block, count }, SgList::new(), note);
        drop(state);
        ticket
    }

    /// Logs any other record, and waits until it is acknowledged.
    pub(super) async fn log_record(&self, record: Record, payload: SgList, remaps: Remaps) {
        let ticket = self.ticket();
        let note = Note { wait: Some(ticket.id()), data: None, remaps, is_joined: false };
        self.state().push_record(record, payload, note);
        // There is nothing in the answer.
        let _ = ticket.answer().await;
    }

    /// Makes everything stable that is acknowledged now.
    pub(super) async fn flush(&self) {
        let number = {
            let mut state = self.state();
            state.log.flushes_asked += 1;
            state.waiters.wake(Change::Flush);
            state.log.flushes_asked
        };
        let done = |state: &mut State| (state.log.flushes_done >= number).then_some(());
        self.until(Change::Flush, done).await;
    }

    /// As [`Self::flush`], for what `rule` has wait for it.
    pub(super) async fn flush_for(&self, rule: Rule) {
        {
            let mut state = self.state();
            if state.is_any_unflushed() {
                state.rules.note(rule);
            }
        }
        self.flush().await;
    }

    /// Flushes whenever somebody asks, for as long as the array is open: all members at once, and
    /// one flush for all who asked before it was sent.
    pub(super) async fn serve_flushes(self) {
        loop {
            let asked = |state: &mut State| {
                (state.log.flushes_asked > state.log.flushes_done).then_some(())
            };
            self.until(Change::Flush, asked).await;
            let (number, upto, members) = {
                let mut state = self.state();
                let upto = state.log.writer.as_ref().map(LogWriter::acked);
                let members: Vec<MemberIndex> = state.layout.geometry.member_indices().collect();
                state.log.flushes_begun = state.log.flushes_asked;
                (state.log.flushes_asked, upto, members)
            };
            join_all(members.into_iter().map(|member| self.flush_member(member))).await;
            let mut state = self.state();
            let (number, upto) = if planted(Planted::FlushCoversLater) {
                (state.log.flushes_asked, state.log.writer.as_ref().map(LogWriter::acked))
            } else {
                (number, upto)
            };
            state.log.flushes_done = number;
            if let Some(upto) = upto {
                state.became_stable(upto);
            }
            state.waiters.wake(Change::Flush);
        }
    }

    /// Gives the space of stripes back that UNMAP has left; they are free afterwards.
    pub(super) async fn discard_left(self) {
        loop {
            // Whoever reads there still reads what it was.
            let next = |state: &mut State| {
                let unread = |one: &u32| state.stripes.pins(*one) == 1;
                let at = state.discards.iter().position(unread)?;
                state.discards.remove(at)
            };
            let physical = self.until(Change::Stripes, next).await;
            self.state().space.begin_to_give_back();
            self.discard_stripe(physical).await;
            let mut state = self.state();
            state.stripes.unpin(physical);
            state.end_giving_back();
        }
    }

    /// Gives the space of a stripe back that holds nothing.
    pub(super) async fn discard_stripe(&self, physical: u32) {
        let (members, offset, len) = {
            let state = self.state();
            let geometry = &state.layout.geometry;
            let can = |one: &MemberIndex| state.members[one.as_usize()].caps.can_discard;
            let members: Vec<MemberIndex> = geometry.member_indices().filter(can).collect();
            let len = u64::from(geometry.chunk_len());
            (members, geometry.member_offset(u64::from(physical), 0), len)
        };
        let discards = members.into_iter().map(|member| self.discard_member(member, offset, len));
        join_all(discards).await;
    }
}
