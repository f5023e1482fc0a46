//! Reads: straight from the members that hold the bytes; what a member cannot give follows from
//! the others, under a lock, and is written back when only its medium failed.

use alloc::{string::String, vec, vec::Vec};

use netraid_block::{ErrorKind, IoError, narrow};

use super::{
    ArrayMachine, Event, Source,
    op::{OpId, Phase},
};

impl ArrayMachine {
    pub(super) fn plan_read(&mut self, id: OpId) {
        let op = &self.ops[id.0];
        let (stripe, len) = (op.stripe, op.range.end - op.range.start);
        if !self.written.get(stripe) {
            // A piece of a request, whose length fits.
            return self.end_op(id, Ok(vec![Source::Zeroes { len: narrow(len) }]));
        }
        // Copies of a mirror may differ after a crash: they agree before one of them is shown, or a
        // later loss would bring back what the other held.
        let mirror = self.geometry.data_columns() == 1;
        if mirror && self.unsynced.contains(stripe) && !op.resync_tried && !self.read_only {
            return self.resync_before(id);
        }
        let (locked, exclusive) = (op.locked, op.exclusive);
        match self.plan_read_columns(id) {
            Err(error) => self.end_op(id, Err(error)),
            Ok(plan) if (plan.reconstructs || exclusive) && !locked => self.lock(id),
            Ok(plan) => {
                self.ops[id.0].phase = Phase::Reading;
                for (segment, column) in plan.columns {
                    self.read_column(id, segment, column);
                }
            }
        }
    }

    fn plan_read_columns(&self, id: OpId) -> Result<ReadPlan, IoError> {
        let op = &self.ops[id.0];
        let mut plan = ReadPlan { columns: Vec::new(), reconstructs: false };
        for (at, segment) in op.segments.iter().enumerate() {
            for column in segment.columns.clone() {
                if self.column_readable(id, column) {
                    plan.columns.push((at, column));
                    continue;
                }
                plan.reconstructs = true;
                if self.unsynced.contains(op.stripe) && self.geometry.data_columns() > 1 {
                    return Err(self.not_resynced(op.stripe));
                }
                let columns = self.columns_to_reconstruct(id, column);
                let columns = columns.ok_or_else(|| self.unreadable(id))?;
                plan.columns.extend(columns.into_iter().map(|column| (at, column)));
            }
        }
        Ok(plan)
    }

    /// Why nothing can be computed from a stripe's parity.
    pub(super) fn not_resynced(&self, stripe: u64) -> IoError {
        let base = stripe * self.geometry.stripe_data_len();
        let text = alloc::format!(
            "bytes {base} to {}: a member failed before parity was resynced after a crash; \
             attach with --force to accept parity as it is",
            base + self.geometry.stripe_data_len()
        );
        IoError::with_detail(ErrorKind::Redundancy, text)
    }

    pub(super) fn finish_read(&mut self, id: OpId) {
        // What one copy of a mirror has of a write under way may be undone by a crash, when another
        // copy decides: it is not shown before all copies have it.
        let op = &self.ops[id.0];
        let mirror = self.geometry.check_columns() > 0 && self.geometry.data_columns() == 1;
        if mirror && !op.locked && self.locks.is_held(op.stripe, &op.rows) {
            self.ops[id.0].exclusive = true;
            return self.plan_again(id);
        }
        let segments = self.ops[id.0].segments.clone();
        let mut columns: Vec<(u8, Source)> = Vec::new();
        for (at, segment) in segments.iter().enumerate() {
            for column in segment.columns.clone() {
                let source = if self.was_read(id, at, column) {
                    self.read_source(id, at, column)
                } else {
                    let source = self.reconstruct(id, at, segment.len());
                    self.repair(id, at, column, source);
                    source
                };
                columns.push((column, source));
            }
        }
        // Segments ascend by row; a stable sort gives each column its rows in order.
        columns.sort_by_key(|(column, _)| *column);
        let reply = columns.into_iter().map(|(_, source)| source).collect();
        if self.ops[id.0].outstanding == 0 {
            return self.end_op(id, Ok(reply));
        }
        self.ops[id.0].phase = Phase::Writing;
        self.ops[id.0].reply = reply;
    }

    fn was_read(&self, id: OpId, segment: usize, column: u8) -> bool {
        let reads = &self.ops[id.0].reads;
        reads.iter().any(|read| read.segment == segment && read.column == column)
    }

    /// The one column of a segment that could not be read: the XOR of those that were read for it,
    /// which are just the columns that [`Self::columns_to_reconstruct`] named when it was planned.
    pub(super) fn reconstruct(&mut self, id: OpId, at: usize, len: u32) -> Source {
        let columns = self.columns_read(id, at);
        let sources = columns.iter().map(|column| self.read_source(id, at, *column)).collect();
        self.xor(id, len, sources)
    }

    /// Writes back what a live member could not read.
    fn repair(&mut self, id: OpId, segment: usize, column: u8, source: Source) {
        let op = &self.ops[id.0];
        let member = self.geometry.member_of(op.stripe, column);
        if self.read_only || !op.avoid.contains(member) || !self.is_readable(member, op.stripe) {
            return;
        }
        let offset = self.geometry.member_offset(op.stripe, op.segments[segment].rows.start);
        self.events.push_back(Event::Repaired { member, offset });
        self.write_column(id, segment, column, source, false);
    }

    /// The write-back has ended, well or by setting the member aside.
    pub(super) fn finish_repair(&mut self, id: OpId) {
        let reply = core::mem::take(&mut self.ops[id.0].reply);
        self.end_op(id, Ok(reply));
    }

    /// Names of members, for messages.
    pub(super) fn member_list(members: impl Iterator<Item = crate::member::MemberIndex>) -> String {
        let mut text = String::new();
        for member in members {
            let separator = if text.is_empty() { "" } else { ", " };
            text.push_str(&alloc::format!("{separator}{member}"));
        }
        text
    }
}

struct ReadPlan {
    /// Segment and column of each read.
    columns: Vec<(usize, u8)>,
    reconstructs: bool,
}
