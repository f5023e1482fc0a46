//! The way of an operation from phase to phase: the hub that routes to reading, writing,
//! clearing, resync and rebuild.

use alloc::vec::Vec;
use core::ops::Range;

use netraid_block::{ErrorKind, IoError};
use smallvec::SmallVec;

use super::{
    Action, ArrayMachine, RequestId, Source,
    op::{Op, OpId, OpKind, Phase, ReadBuffer},
};
use crate::{
    geometry::{Rows, Segment},
    member::{MemberIndex, MemberSet},
};

impl ArrayMachine {
    pub(super) fn new_op(
        &mut self,
        kind: OpKind,
        stripe: u64,
        range: Range<u64>,
        request: Option<RequestId>,
        piece: usize,
    ) -> OpId {
        let segments = self.geometry.segments(&range);
        let rows = match kind {
            OpKind::Read | OpKind::Write => hull(&segments),
            OpKind::Clear | OpKind::Resync | OpKind::Rebuild(_) => self.geometry.whole(),
        };
        OpId(self.ops.insert(Op {
            kind,
            stripe,
            request,
            piece,
            range,
            segments,
            rows,
            locked: false,
            phase: Phase::Queued,
            outstanding: 0,
            avoid: MemberSet::EMPTY,
            replan: false,
            unmerged: false,
            exclusive: false,
            resync_tried: false,
            first: false,
            error: None,
            plans: SmallVec::new(),
            reads: SmallVec::new(),
            computed: SmallVec::new(),
            reply: Vec::new(),
        }))
    }

    /// An operation over the whole stripe that no user asked for.
    pub(super) fn new_whole_op(&mut self, kind: OpKind, stripe: u64) -> OpId {
        self.new_op(kind, stripe, 0..self.geometry.stripe_data_len(), None, 0)
    }

    /// Continues an operation that waits for nothing any more.
    pub(super) fn step(&mut self, id: OpId) {
        assert_eq!(self.ops[id.0].outstanding, 0, "stepped with member requests in flight");
        if let Some(error) = self.failed.clone() {
            return self.end_op(id, Err(error));
        }
        let Op { kind, phase, replan, locked, .. } = self.ops[id.0];
        match (phase, kind) {
            (Phase::Queued, OpKind::Read) => self.plan_read(id),
            (Phase::Queued, _) if !locked => self.lock(id),
            (Phase::Queued, OpKind::Write) => self.begin_write(id),
            (Phase::Queued, OpKind::Clear) => self.begin_clear(id),
            (Phase::Queued, OpKind::Resync) => self.begin_resync(id),
            (Phase::Queued, OpKind::Rebuild(member)) => self.begin_rebuild_stripe(id, member),
            (Phase::Reading, _) if replan => self.plan_again(id),
            (Phase::Reading, OpKind::Read) => self.finish_read(id),
            (Phase::Reading, OpKind::Write) => self.write_out(id),
            (Phase::Reading, OpKind::Resync) => self.write_resync(id),
            (Phase::Reading, OpKind::Rebuild(member)) => self.write_rebuilt(id, member),
            (Phase::Writing, OpKind::Read) => self.finish_repair(id),
            (Phase::Writing, OpKind::Write) => self.finish_write(id),
            (Phase::Writing, OpKind::Resync) => self.finish_resync(id),
            (Phase::Writing | Phase::Discarding, _) | (Phase::Committing, OpKind::Write) => {
                self.end_op(id, Ok(Vec::new()));
            }
            (Phase::Committing, OpKind::Clear) => self.discard_stripe(id),
            (Phase::Committing | Phase::Reading, _) => {
                unreachable!("{kind:?} never waits in {phase:?}")
            }
        }
    }

    /// Asks for the operation's lock; it is stepped when it holds it.
    pub(super) fn lock(&mut self, id: OpId) {
        let op = &mut self.ops[id.0];
        assert!(!op.locked, "locked twice");
        op.locked = true;
        if self.locks.acquire(id, op.stripe, op.rows.clone()) {
            self.ready.push_back(id);
        }
    }

    /// Gives up the lock and asks again, for other rows or behind another operation.
    pub(super) fn lock_again(&mut self, id: OpId, rows: Rows) {
        let op = &mut self.ops[id.0];
        op.locked = false;
        op.rows = rows;
        let stripe = op.stripe;
        self.locks.release(id, stripe, &mut self.ready);
        self.lock(id);
    }

    /// Starts over after a member failed to give what was asked of it.
    pub(super) fn plan_again(&mut self, id: OpId) {
        let op = &mut self.ops[id.0];
        op.replan = false;
        op.phase = Phase::Queued;
        op.plans.clear();
        let reads = core::mem::take(&mut op.reads);
        let computed = core::mem::take(&mut op.computed);
        for buffer in reads.iter().map(|read| read.buffer).chain(computed) {
            self.free_buffer(buffer);
        }
        self.step(id);
    }

    fn begin_clear(&mut self, id: OpId) {
        let stripe = self.ops[id.0].stripe;
        if self.written.get(stripe) {
            self.ops[id.0].phase = Phase::Committing;
            self.commit.add(id);
        } else {
            self.end_op(id, Ok(Vec::new()));
        }
    }

    /// The stripe counts as unwritten now: its space may go back, best effort.
    fn discard_stripe(&mut self, id: OpId) {
        let op = &mut self.ops[id.0];
        op.phase = Phase::Discarding;
        let (stripe, len) = (op.stripe, u64::from(self.geometry.chunk_len()));
        self.unsynced.set(stripe, false);
        // Reads take no lock: one that is under way could see what a discard leaves behind.
        for (_, other) in &mut self.ops {
            other.replan |= other.kind == OpKind::Read && other.stripe == stripe;
        }
        let offset = self.geometry.member_offset(stripe, 0);
        for member in self.live_members().iter() {
            if self.members[member.as_usize()].caps.can_discard {
                self.push_discard(id, member, offset, len);
            }
        }
        if self.ops[id.0].outstanding == 0 {
            self.end_op(id, Ok(Vec::new()));
        }
    }

    /// Whether the operation can read `column` of its stripe.
    pub(super) fn column_readable(&self, id: OpId, column: u8) -> bool {
        let op = &self.ops[id.0];
        let member = self.geometry.member_of(op.stripe, column);
        !op.avoid.contains(member) && self.is_readable(member, op.stripe)
    }

    /// The columns from whose XOR a column follows, when they can all be read.
    pub(super) fn columns_to_reconstruct(
        &self,
        id: OpId,
        column: u8,
    ) -> Option<SmallVec<[u8; 16]>> {
        let data = self.geometry.data_columns();
        let check = (data..self.geometry.members())
            .find(|check| *check != column && self.column_readable(id, *check));
        let mut columns: SmallVec<[u8; 16]> = SmallVec::new();
        match (column < data, check) {
            (true, None) => return None,
            // Another check column holds the same bytes.
            (false, Some(check)) => columns.push(check),
            (false, None) => columns.extend(0..data),
            (true, Some(check)) => {
                columns.extend((0..data).filter(|other| *other != column));
                columns.push(check);
            }
        }
        columns.iter().all(|other| self.column_readable(id, *other)).then_some(columns)
    }

    /// Reads `column`'s rows of a segment, once.
    pub(super) fn read_column(&mut self, id: OpId, segment: usize, column: u8) {
        let op = &self.ops[id.0];
        if op.reads.iter().any(|read| read.segment == segment && read.column == column) {
            return;
        }
        let Segment { rows, .. } = op.segments[segment].clone();
        let member = self.geometry.member_of(op.stripe, column);
        let offset = self.geometry.member_offset(op.stripe, rows.start);
        let buffer = self.push_read(id, member, offset, rows.end - rows.start);
        self.ops[id.0].reads.push(ReadBuffer { segment, column, buffer });
    }

    /// What was read of `column` in a segment.
    pub(super) fn read_source(&self, id: OpId, segment: usize, column: u8) -> Source {
        let op = &self.ops[id.0];
        let len = op.segments[segment].len();
        let read = op.reads.iter().find(|read| read.segment == segment && read.column == column);
        match read {
            Some(read) => Source::Buffer { buffer: read.buffer, offset: 0, len },
            None => unreachable!("column {column} of segment {segment} was not read"),
        }
    }

    /// The XOR of sources: computed into a new buffer when there is anything to compute.
    pub(super) fn xor(&mut self, id: OpId, len: u32, sources: Vec<Source>) -> Source {
        let mut sources = sources;
        sources.retain(|source| !matches!(source, Source::Zeroes { .. }));
        assert!(sources.iter().all(|source| source.len() == len), "sources of one length");
        match sources.as_slice() {
            [] => Source::Zeroes { len },
            [one] => *one,
            _ => {
                let into = self.new_buffer();
                self.ops[id.0].computed.push(into);
                self.immediate.push_back(Action::Xor { into, len, sources });
                Source::Buffer { buffer: into, offset: 0, len }
            }
        }
    }

    /// Writes rows of a segment to the member that holds `column`, when it is live.
    pub(super) fn write_column(
        &mut self,
        id: OpId,
        segment: usize,
        column: u8,
        source: Source,
        fua: bool,
    ) {
        let op = &self.ops[id.0];
        let (stripe, row) = (op.stripe, op.segments[segment].rows.start);
        let member = self.geometry.member_of(stripe, column);
        if self.label.state(member).is_live() {
            let offset = self.geometry.member_offset(stripe, row);
            self.push_write(id, member, offset, source, fua);
        }
    }

    pub(super) fn unreadable(&self, id: OpId) -> IoError {
        let op = &self.ops[id.0];
        let away: Vec<MemberIndex> = self
            .geometry
            .member_indices()
            .filter(|m| op.avoid.contains(*m) || !self.is_readable(*m, op.stripe))
            .collect();
        let base = op.stripe * self.geometry.stripe_data_len();
        let (from, to) = (base + op.range.start, base + op.range.end);
        let kind = if op.avoid.is_empty() { ErrorKind::Redundancy } else { ErrorKind::Medium };
        let mut text = alloc::format!("bytes {from} to {to} cannot be read: members");
        for member in away {
            text.push_str(&alloc::format!(" {member}"));
        }
        text.push_str(" failed or are not up to date there");
        IoError::with_detail(kind, text)
    }
}

/// The smallest run of rows that holds all segments.
fn hull(segments: &[Segment]) -> Rows {
    let start = segments.iter().map(|segment| segment.rows.start).min().unwrap_or(0);
    let end = segments.iter().map(|segment| segment.rows.end).max().unwrap_or(0);
    start..end
}
