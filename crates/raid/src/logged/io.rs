//! Member requests: merged on their way out, given to whoever waits for them on their way back.
//!
//! Who writes to a member waits until it has completed, or until stable labels say that this
//! member takes no part any more. So there is no failure to handle for writers: what they wrote
//! is where it has to be. Who reads gets an error at once, and reads elsewhere.

use alloc::{collections::VecDeque, vec::Vec};
use netraid_block::{ErrorKind, IoError, SgList, narrow};
use smallvec::{SmallVec, smallvec};

use super::{
    Action, IoId, Rule, To,
    state::State,
    tasks::Array,
    waits::{Ticket, WaitId},
};
use crate::{
    log::Position,
    member::{MemberIndex, MemberState},
    planted::{Planted, planted},
};

/// Writes to members that are waited for together: one wait, however many there are.
pub(super) struct Writes {
    ticket: Ticket,
    kind: IoKind,
}

impl Writes {
    /// Adds a write.
    pub(super) fn add(&self, member: MemberIndex, offset: u64, data: SgList) {
        let id = self.ticket.id();
        let mut state = self.ticket.array.state();
        if state.push_write(id, member, offset, data, self.kind) {
            state.waits.expect_another(id);
        }
    }

    /// Ends when all have completed, or their members take no part.
    ///
    /// # Errors
    /// A chunk, or what must go home, has no space on its member.
    pub(super) async fn end(self) -> Result<(), IoError> {
        let end = self.ticket.answer().await.map(drop);
        // Else the answer says only that it is over.
        if matches!(self.kind, IoKind::Chunk | IoKind::Home) { end } else { Ok(()) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IoKind {
    Read,
    /// Waits for the labels when the member fails.
    Write,
    /// The same; but that there is no space on the member concerns only its writer.
    Chunk,
    /// The same, of what was acknowledged and must go home: its writer sees who has no space.
    Home,
    /// A label: its writer judges what became of it.
    Label,
    Flush,
    Discard,
}

/// Whom a member request's end concerns.
#[derive(Debug, Clone)]
enum For {
    /// Waits, each with its share of the bytes.
    Waits(SmallVec<[(WaitId, u32); 2]>),
    /// A batch of the log.
    Batch(Position),
    /// Nobody any more.
    Nobody,
}

/// A member request in flight.
#[derive(Debug)]
pub(super) struct Io {
    member: MemberIndex,
    incarnation: u32,
    kind: IoKind,
    whom: For,
}

/// Member requests not yet polled. Neighbours on one member are merged while they wait here.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    queue: VecDeque<Action>,
    polled: u64,
    /// For each member: number of the last request queued for it, if it may grow.
    last: Vec<Option<u64>>,
}

impl Outbox {
    pub(super) fn pop(&mut self) -> Option<Action> {
        let action = self.queue.pop_front()?;
        self.polled += 1;
        Some(action)
    }

    fn push(&mut self, member: MemberIndex, action: Action, may_grow: bool) {
        let at = member.as_usize();
        if self.last.len() <= at {
            self.last.resize(at + 1, None);
        }
        self.last[at] = may_grow.then(|| self.polled + self.queue.len() as u64);
        self.queue.push_back(action);
    }

    fn last_mut(&mut self, member: MemberIndex) -> Option<&mut Action> {
        let number = (*self.last.get(member.as_usize())?)?;
        let at = usize::try_from(number.checked_sub(self.polled)?).ok()?;
        self.queue.get_mut(at)
    }
}

/// Whether the medium failed, not the member.
pub(super) fn is_medium(error: &IoError) -> bool {
    matches!(error.kind(), ErrorKind::Medium | ErrorKind::Corrupt)
}

impl Array {
    /// Writes that are waited for together. Where they may need new space on their members, the
    /// kind says what becomes of a member that has none left.
    pub(super) fn writes(&self, kind: IoKind) -> Writes {
        Writes { ticket: self.ticket_for(0), kind }
    }

    /// Reads any number of bytes from a member.
    pub(super) async fn read_long(
        &self,
        member: MemberIndex,
        offset: u64,
        len: u64,
    ) -> Result<SgList, IoError> {
        let most = u64::from(self.state().layout.max_io_len);
        let parts = (0..len.div_ceil(most)).map(|part| {
            let from = part * most;
            let len = narrow(most.min(len - from));
            self.read_member(member, offset + from, len, false)
        });
        let mut whole = SgList::new();
        for part in futures_util::future::join_all(parts).await {
            whole.append(part?);
        }
        Ok(whole)
    }

    /// Reads from a member; `merge` with a neighbour if there is one.
    pub(super) async fn read_member(
        &self,
        member: MemberIndex,
        offset: u64,
        len: u32,
        merge: bool,
    ) -> Result<SgList, IoError> {
        let ticket = self.ticket();
        self.state().push_read(ticket.id(), member, offset, len, merge)?;
        ticket.answer().await
    }

    /// Writes to a member. Ends when it has completed, or takes no part.
    pub(super) async fn write_member(&self, member: MemberIndex, offset: u64, data: SgList) {
        let ticket = self.ticket();
        if self.state().push_write(ticket.id(), member, offset, data, IoKind::Write) {
            // The answer says only that it is over.
            let _ = ticket.answer().await;
        }
    }

    /// Writes a label, or what else its writer judges by its end. It is stable then.
    pub(super) async fn write_label(
        &self,
        member: MemberIndex,
        offset: u64,
        data: SgList,
    ) -> Result<(), IoError> {
        let ticket = self.ticket();
        {
            let mut state = self.state();
            let io = state.new_io(member, IoKind::Label, waits(ticket.id(), data.len()));
            let write = Action::Write { io, member, offset, data, fua: true, to: To::Member };
            state.outbox.push(member, write, false);
        }
        ticket.answer().await.map(drop)
    }

    /// Writes to a member what is stable then. Ends when it is, or the member takes no part.
    pub(super) async fn write_member_stable(&self, member: MemberIndex, offset: u64, data: SgList) {
        self.write_to((member, To::Both), offset, data, true).await;
    }

    /// Writes by itself, to these devices in a member's place; with `fua` it is stable then. Ends when it has completed, the
    /// member takes no part, or the copy that it is for has ended.
    pub(super) async fn write_to(
        &self,
        (member, to): (MemberIndex, To),
        offset: u64,
        data: SgList,
        fua: bool,
    ) {
        let ticket = self.ticket();
        {
            let mut state = self.state();
            if let To::Successor(number) = to
                && !state.is_copying(number)
            {
                return;
            }
            match state.defer_or_skip(ticket.id(), member) {
                Some(true) => {
                    let len = data.len();
                    let io = state.new_io(member, IoKind::Write, waits(ticket.id(), len));
                    let write = Action::Write { io, member, offset, data, fua, to };
                    state.outbox.push(member, write, false);
                }
                Some(false) => {}
                None => return,
            }
        }
        let _ = ticket.answer().await;
    }

    /// Flushes a member. Ends when it has completed, or takes no part.
    pub(super) async fn flush_member(&self, member: MemberIndex) {
        let ticket = self.ticket();
        {
            let mut state = self.state();
            match state.defer_or_skip(ticket.id(), member) {
                Some(true) => {
                    if !state.members[member.as_usize()].unflushed {
                        return;
                    }
                    state.members[member.as_usize()].unflushed = false;
                    let io = state.new_io(member, IoKind::Flush, waits(ticket.id(), 0));
                    state.outbox.push(member, Action::Flush { io, member }, false);
                }
                Some(false) => {}
                None => return,
            }
        }
        let _ = ticket.answer().await;
    }

    /// Gives back space of a member. Ends when it has completed, or takes no part.
    pub(super) async fn discard_member(&self, member: MemberIndex, offset: u64, len: u64) {
        let ticket = self.ticket();
        {
            let mut state = self.state();
            match state.defer_or_skip(ticket.id(), member) {
                Some(true) => {
                    let io = state.new_io(member, IoKind::Discard, waits(ticket.id(), 0));
                    state.outbox.push(member, Action::Discard { io, member, offset, len }, false);
                }
                Some(false) => {}
                None => return,
            }
        }
        let _ = ticket.answer().await;
    }
}

fn waits(number: WaitId, len: usize) -> For {
    // Member requests are bounded by a u32.
    For::Waits(smallvec![(number, narrow(len))])
}

impl State {
    /// Whether a request to `member` is to be sent: none, it takes no part; false, it is leaving,
    /// and the wait ends when the labels say so.
    fn defer_or_skip(&mut self, wait: WaitId, member: MemberIndex) -> Option<bool> {
        if self.takes_part(member) {
            return Some(true);
        }
        let leaving = self.members[member.as_usize()].leaving;
        if leaving {
            self.rules.note(Rule::WriteAfterLabels);
            self.members[member.as_usize()].deferred.push(wait);
        }
        leaving.then_some(false)
    }

    fn new_io(&mut self, member: MemberIndex, kind: IoKind, whom: For) -> IoId {
        let incarnation = self.members[member.as_usize()].incarnation;
        IoId(self.ios.insert(Io { member, incarnation, kind, whom }))
    }

    /// Has a wait answered by a read from a member; `merge` with a neighbour if there is one.
    pub(super) fn push_read(
        &mut self,
        wait: WaitId,
        member: MemberIndex,
        offset: u64,
        len: u32,
        merge: bool,
    ) -> Result<(), IoError> {
        if !self.takes_part(member) {
            return Err(ErrorKind::Unreachable.into());
        }
        let limit = self.layout.max_io_len;
        if merge
            && let Some(Action::Read { io, offset: first, len: merged, .. }) =
                self.outbox.last_mut(member)
            && *first + u64::from(*merged) == offset
            && merged.saturating_add(len) <= limit
        {
            *merged += len;
            if let For::Waits(waits) = &mut self.ios[io.0].whom {
                waits.push((wait, len));
            }
            return Ok(());
        }
        let io = self.new_io(member, IoKind::Read, For::Waits(smallvec![(wait, len)]));
        self.outbox.push(member, Action::Read { io, member, offset, len }, merge);
        Ok(())
    }

    /// Reads from a device whether it takes part or not.
    pub(super) fn push_foreign_read(
        &mut self,
        wait: WaitId,
        member: MemberIndex,
        offset: u64,
        len: u32,
    ) {
        let io = self.new_io(member, IoKind::Read, For::Waits(smallvec![(wait, len)]));
        self.outbox.push(member, Action::Read { io, member, offset, len }, false);
    }

    /// Whether there is something to wait for.
    fn push_write(
        &mut self,
        wait: WaitId,
        member: MemberIndex,
        offset: u64,
        more: SgList,
        kind: IoKind,
    ) -> bool {
        match self.defer_or_skip(wait, member) {
            None => return false,
            Some(false) => return true,
            Some(true) => {}
        }
        let limit = self.layout.max_io_len as usize;
        let len = narrow(more.len());
        if let Some(Action::Write { io, offset: first, data, fua: false, to: To::Both, .. }) =
            self.outbox.last_mut(member)
            && *first + data.len() as u64 == offset
            && data.len() + more.len() <= limit
            && self.ios[io.0].kind == kind
            && let For::Waits(waits) = &mut self.ios[io.0].whom
        {
            waits.push((wait, len));
            data.append(more);
            return true;
        }
        let io = self.new_io(member, kind, For::Waits(smallvec![(wait, len)]));
        let write = Action::Write { io, member, offset, data: more, fua: false, to: To::Both };
        self.outbox.push(member, write, true);
        true
    }

    /// Writes a batch of the log to a member.
    pub(super) fn push_batch(
        &mut self,
        position: Position,
        member: MemberIndex,
        offset: u64,
        data: SgList,
    ) {
        let io = self.new_io(member, IoKind::Write, For::Batch(position));
        let write = Action::Write { io, member, offset, data, fua: false, to: To::Both };
        self.outbox.push(member, write, false);
    }

    /// Takes the end of a member request.
    pub(super) fn end_io(&mut self, io: IoId, result: Result<SgList, IoError>) {
        let Io { member, incarnation, kind, whom } = self.ios.remove(io.0);
        let current = self.members[member.as_usize()].incarnation == incarnation;
        if !current || matches!(whom, For::Nobody) {
            return;
        }
        let leaves = match (&result, kind) {
            (
                Ok(_),
                IoKind::Write | IoKind::Chunk | IoKind::Home | IoKind::Label | IoKind::Discard,
            ) => {
                self.note_unflushed(member, &whom);
                None
            }
            (Ok(_), IoKind::Read | IoKind::Flush) => None,
            (Err(error), IoKind::Read) if is_medium(error) => None,
            // One that is not in sync is not needed: its want of space must not stop users.
            (Err(error), IoKind::Chunk | IoKind::Home)
                if error.kind() == ErrorKind::NoSpace
                    && self.member_state(member) == MemberState::InSync =>
            {
                self.space.note_refusal(member);
                None
            }
            (Err(error), _) => Some(error.clone()),
        };
        if let Some(error) = leaves {
            // Its waits, and those of all its other requests, are settled by that.
            self.settle_reads(&whom, kind, &error);
            return self.leave(member, &error, Some((whom, kind)));
        }
        match (whom, kind) {
            (For::Batch(position), _) => self.batch_written(position, member),
            (For::Waits(waits), IoKind::Read) => self.share_out(&waits, result),
            (For::Waits(waits), _) => {
                let answer = result.map(|_| SgList::new());
                waits.iter().for_each(|(wait, _)| self.settle(*wait, answer.clone()));
            }
            (For::Nobody, _) => {}
        }
    }

    /// A member has completed what a flush would make stable.
    fn note_unflushed(&mut self, member: MemberIndex, whom: &For) {
        let batch = if let For::Batch(position) = whom { Some(*position) } else { None };
        if planted(Planted::FlushSkipsChunkMembers) && batch.is_none() {
            return;
        }
        if planted(Planted::FlushSkipsEarlierBatches)
            && let Some(position) = batch
        {
            let copies = crate::copies::Copies::new(&self.layout.geometry);
            let holders = copies.among(crate::log::segment(position), self.in_sync());
            let others = self.layout.geometry.member_indices();
            for other in others.filter(|other| !holders.contains(*other)) {
                self.members[other.as_usize()].unflushed = false;
            }
        }
        self.members[member.as_usize()].unflushed |=
            self.members[member.as_usize()].caps.volatile_cache;
    }

    fn share_out(&mut self, waits: &[(WaitId, u32)], result: Result<SgList, IoError>) {
        let mut at = 0;
        for (wait, len) in waits {
            let end = at + *len as usize;
            let answer = match &result {
                Ok(data) if data.len() >= end => Ok(data.slice(at..end)),
                Ok(data) => Err(short(data.len(), end)),
                Err(error) => Err(error.clone()),
            };
            self.settle(*wait, answer);
            at = end;
        }
    }

    fn settle_reads(&mut self, whom: &For, kind: IoKind, error: &IoError) {
        if let (For::Waits(waits), IoKind::Read | IoKind::Label) = (whom, kind) {
            waits.iter().for_each(|(wait, _)| self.settle(*wait, Err(error.clone())));
        }
    }

    /// A member takes no part from now on. Whoever writes to it waits for the labels.
    fn leave(&mut self, member: MemberIndex, error: &IoError, last: Option<(For, IoKind)>) {
        if error.kind() == ErrorKind::Fenced {
            let text = alloc::format!(
                "array '{}' is fenced: another engine has taken it over (member {member}: \
                 {error}); stop this one",
                self.label.name,
            );
            return self.fail(IoError::with_detail(ErrorKind::Fenced, text));
        }
        if let Some((whom, kind)) = last {
            self.defer(member, whom, kind);
        }
        if !self.takes_part(member) {
            return;
        }
        let reason = alloc::format!("{error}");
        if !self.exclude(member, &reason) {
            return;
        }
        let gone: Vec<usize> =
            self.ios.iter().filter(|(_, io)| io.member == member).map(|(id, _)| id).collect();
        for id in gone {
            let whom = core::mem::replace(&mut self.ios[id].whom, For::Nobody);
            let kind = self.ios[id].kind;
            self.settle_reads(&whom, kind, error);
            self.defer(member, whom, kind);
        }
    }

    /// Whoever waits for a change on a member that leaves waits for the labels that say so.
    fn defer(&mut self, member: MemberIndex, whom: For, kind: IoKind) {
        let changes = !matches!(kind, IoKind::Read | IoKind::Label);
        if let (For::Waits(waits), true) = (whom, changes) {
            let deferred = &mut self.members[member.as_usize()].deferred;
            deferred.extend(waits.iter().map(|(wait, _)| *wait));
        }
    }

    /// A member's session has ended, or its power failed, or it is set aside by command.
    pub(super) fn member_gone(&mut self, member: MemberIndex, reason: &str) {
        let error =
            IoError::with_detail(ErrorKind::Unreachable, alloc::string::String::from(reason));
        self.leave(member, &error, None);
    }

    /// A read is late: those who wait for it and have a choice are told. How many reads they send at most.
    pub(super) fn note_late(&mut self, io: IoId) -> u64 {
        let Some(Io { kind: IoKind::Read, whom: For::Waits(waits), .. }) = self.ios.get(io.0)
        else {
            return 0;
        };
        let waits = waits.clone();
        let told: u64 = waits.iter().map(|(wait, _)| self.waits.note_late(*wait)).sum();
        let code = self.layout.code;
        if code.check_columns() == 0 {
            return 0;
        }
        let reads_each = if code.is_copies() { 1 } else { u64::from(code.data_columns()) };
        told * reads_each
    }

    /// Gives a wait its answer.
    pub(super) fn settle(&mut self, wait: WaitId, answer: Result<SgList, IoError>) {
        self.waits.settle(wait, answer);
    }
}

fn short(found: usize, wanted: usize) -> IoError {
    let text = alloc::format!("answered a read of {wanted} bytes with {found}");
    IoError::with_detail(ErrorKind::Device, text)
}
