//! Member requests: merged on their way out, accounted for on their way back.

use alloc::{collections::VecDeque, vec, vec::Vec};

use netraid_block::{ErrorKind, IoError};
use smallvec::smallvec;

use super::{
    Action, ArrayMachine, BufferId, IoId, Source,
    op::{Io, IoKind, OpId, Owner},
};
use crate::member::MemberIndex;

/// Member requests not yet polled. Neighbours on one member are merged while they wait here.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    queue: VecDeque<Action>,
    /// How many were polled since the beginning.
    polled: u64,
    /// For each member: number of the last request queued for it.
    last: Vec<Option<u64>>,
}

impl Outbox {
    pub(super) fn pop(&mut self) -> Option<Action> {
        let action = self.queue.pop_front()?;
        self.polled += 1;
        Some(action)
    }

    fn push(&mut self, member: MemberIndex, action: Action) {
        let at = member.as_usize();
        if self.last.len() <= at {
            self.last.resize(at + 1, None);
        }
        self.last[at] = Some(self.polled + self.queue.len() as u64);
        self.queue.push_back(action);
    }

    /// Lets nothing be merged into the last request for `member`.
    fn seal(&mut self, member: MemberIndex) {
        if let Some(last) = self.last.get_mut(member.as_usize()) {
            *last = None;
        }
    }

    /// The last request queued for `member`, when it has not been polled yet.
    fn last_mut(&mut self, member: MemberIndex) -> Option<&mut Action> {
        let number = (*self.last.get(member.as_usize())?)?;
        let at = usize::try_from(number.checked_sub(self.polled)?).ok()?;
        self.queue.get_mut(at)
    }
}

/// Whether the medium failed, not the member.
fn is_medium(error: &IoError) -> bool {
    matches!(error.kind(), ErrorKind::Medium | ErrorKind::Corrupt)
}

/// Whether a request that ended so may still be executed later.
fn may_linger(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Timeout | ErrorKind::Unreachable | ErrorKind::Aborted | ErrorKind::Fenced
    )
}

impl ArrayMachine {
    /// Tells how a member request ended. Reads must have put their bytes into the executor first.
    ///
    /// # Panics
    /// When no such request is in flight.
    pub fn handle_io_done(&mut self, io: IoId, result: Result<(), IoError>) {
        let io = self.ios.remove(io.0);
        let current = self.members[io.member.as_usize()].incarnation == io.incarnation;
        if let Err(error) = &result
            && current
        {
            self.note_error(&io, error);
        }
        for owner in &io.owners {
            match owner {
                Owner::Op(op) => self.op_io_done(*op, &io, result.as_ref().err()),
                Owner::Commit => self.commit_io_done(),
                Owner::Labels => self.label_io_done(),
                Owner::Flush(request) => self.flush_io_done(*request),
                Owner::Rebuild => self.rebuild_flush_done(io.member, current && result.is_ok()),
                Owner::Close => self.close_io_done(),
            }
        }
        self.run();
    }

    /// Sets the member aside unless the error concerns only what was read, or given back.
    fn note_error(&mut self, io: &Io, error: &IoError) {
        if error.kind() == ErrorKind::Fenced {
            return self.fence(io.member, error);
        }
        let medium = is_medium(error);
        match io.kind {
            // Ended, without effect. One that may still be executed is another matter.
            IoKind::Discard if !may_linger(error.kind()) => {}
            IoKind::Read if medium => {}
            IoKind::Write if error.kind() == ErrorKind::NoSpace && !self.can_lose(io.member) => {}
            IoKind::Read | IoKind::Write | IoKind::Meta | IoKind::Flush | IoKind::Discard => {
                let text = alloc::format!("{error}");
                self.fail_member(io.member, &text);
            }
        }
    }

    fn op_io_done(&mut self, id: OpId, io: &Io, error: Option<&IoError>) {
        let can_lose = self.can_lose(io.member);
        let op = &mut self.ops[id.0];
        op.outstanding -= 1;
        match (io.kind, error) {
            // A bad block of one operation says nothing of its neighbours: each asks for its own.
            (IoKind::Read, Some(error)) if is_medium(error) && io.owners.len() > 1 => {
                op.unmerged = true;
                op.replan = true;
            }
            (IoKind::Read, Some(_)) => {
                op.avoid.insert(io.member);
                op.replan = true;
            }
            (IoKind::Write, Some(error)) if error.kind() == ErrorKind::NoSpace && !can_lose => {
                op.error.get_or_insert(error.clone());
            }
            // The member was set aside: the others carry the stripe.
            (IoKind::Read | IoKind::Write | IoKind::Meta | IoKind::Flush | IoKind::Discard, _) => {}
        }
        if op.outstanding == 0 {
            self.ready.push_back(id);
        }
    }

    pub(super) fn new_buffer(&mut self) -> BufferId {
        BufferId(self.buffers.insert(()))
    }

    pub(super) fn free_buffer(&mut self, buffer: BufferId) {
        self.buffers.remove(buffer.0);
        self.immediate.push_back(Action::Free { buffer });
    }

    /// Reads `len` bytes of a member into a new buffer for `op`.
    pub(super) fn push_read(
        &mut self,
        op: OpId,
        member: MemberIndex,
        offset: u64,
        len: u32,
    ) -> BufferId {
        let buffer = self.new_buffer();
        self.ops[op.0].outstanding += 1;
        let limit = if self.ops[op.0].unmerged { 0 } else { self.max_io_len };
        if let Some(Action::Read { io, offset: first, parts, .. }) = self.outbox.last_mut(member) {
            let merged: u32 = parts.iter().map(|(_, len)| *len).sum();
            if *first + u64::from(merged) == offset && merged.saturating_add(len) <= limit {
                parts.push((buffer, len));
                self.ios[io.0].owners.push(Owner::Op(op));
                return buffer;
            }
        }
        let io = self.new_io(member, IoKind::Read, Owner::Op(op));
        self.outbox.push(member, Action::Read { io, member, offset, parts: vec![(buffer, len)] });
        if self.ops[op.0].unmerged {
            self.outbox.seal(member);
        }
        buffer
    }

    /// Writes to a member for `op`.
    pub(super) fn push_write(
        &mut self,
        op: OpId,
        member: MemberIndex,
        offset: u64,
        source: Source,
        fua: bool,
    ) {
        self.ops[op.0].outstanding += 1;
        let limit = self.max_io_len;
        if let Some(Action::Write { io, offset: first, sources, fua: flag, .. }) =
            self.outbox.last_mut(member)
        {
            let merged: u32 = sources.iter().map(Source::len).sum();
            let adjacent = *first + u64::from(merged) == offset;
            if adjacent && *flag == fua && merged.saturating_add(source.len()) <= limit {
                sources.push(source);
                self.ios[io.0].owners.push(Owner::Op(op));
                return;
            }
        }
        let io = self.new_io(member, IoKind::Write, Owner::Op(op));
        let sources = vec![source];
        self.outbox.push(member, Action::Write { io, member, offset, fua, sources });
    }

    pub(super) fn push_meta(
        &mut self,
        owner: Owner,
        member: MemberIndex,
        offset: u64,
        bytes: alloc::sync::Arc<[u8]>,
    ) {
        let io = self.new_io(member, IoKind::Meta, owner);
        self.outbox.push(member, Action::WriteMeta { io, member, offset, bytes });
    }

    pub(super) fn push_flush(&mut self, owner: Owner, member: MemberIndex) {
        let io = self.new_io(member, IoKind::Flush, owner);
        self.outbox.push(member, Action::Flush { io, member });
    }

    pub(super) fn push_discard(&mut self, op: OpId, member: MemberIndex, offset: u64, len: u64) {
        self.ops[op.0].outstanding += 1;
        let io = self.new_io(member, IoKind::Discard, Owner::Op(op));
        self.outbox.push(member, Action::Discard { io, member, offset, len });
    }

    fn new_io(&mut self, member: MemberIndex, kind: IoKind, owner: Owner) -> IoId {
        let incarnation = self.members[member.as_usize()].incarnation;
        IoId(self.ios.insert(Io { member, incarnation, kind, owners: smallvec![owner] }))
    }
}
