//! Writes: full stripes without reads, parts by reconstruct write or read-modify-write, whichever
//! moves less, and the first write of a stripe, which writes all of it.

use alloc::vec::Vec;

use smallvec::SmallVec;

use netraid_block::{IoError, Op as UserOp};

use super::{
    ArrayMachine, Source,
    op::{OpId, OpKind, Phase},
};
use crate::{
    geometry::Segment,
    write_plan::{ParityPlan, SegmentChoice},
};

impl ArrayMachine {
    /// Plans a write that holds its lock.
    pub(super) fn begin_write(&mut self, id: OpId) {
        let op = &self.ops[id.0];
        let (stripe, whole) = (op.stripe, op.rows == self.geometry.whole());
        if !self.written.get(stripe) {
            return match whole {
                true => self.write_first(id),
                false => self.lock_again(id, self.geometry.whole()),
            };
        }
        let full = op.range == (0..self.geometry.stripe_data_len());
        if self.unsynced.contains(stripe) && !full {
            return match op.resync_tried {
                true => self.end_op(id, Err(self.not_resynced(stripe))),
                false => self.resync_before(id),
            };
        }
        match self.plan_parity(id) {
            Err(error) => self.end_op(id, Err(error)),
            Ok(plans) => self.read_for_parity(id, plans),
        }
    }

    /// Puts a resync of the stripe in front of an operation that needs check columns to be true.
    pub(super) fn resync_before(&mut self, id: OpId) {
        let resync = self.new_whole_op(OpKind::Resync, self.ops[id.0].stripe);
        self.ops[id.0].resync_tried = true;
        self.lock(resync);
        let rows = self.ops[id.0].rows.clone();
        self.lock_again(id, rows);
    }

    fn plan_parity(&self, id: OpId) -> Result<SmallVec<[ParityPlan; 3]>, IoError> {
        let op = &self.ops[id.0];
        let data = self.geometry.data_columns();
        let mut checks = data..self.geometry.members();
        let check_live = checks
            .clone()
            .any(|column| self.label.state(self.geometry.member_of(op.stripe, column)).is_live());
        let check_readable = checks.any(|column| self.column_readable(id, column));
        let plan_one = |segment: &Segment| {
            let readable = |column| self.column_readable(id, column);
            let choice = SegmentChoice {
                data_columns: data,
                written: segment.columns.clone(),
                check_live,
                check_readable,
            };
            choice.plan(readable).ok_or_else(|| self.unreadable(id))
        };
        op.segments.iter().map(plan_one).collect()
    }

    fn read_for_parity(&mut self, id: OpId, plans: SmallVec<[ParityPlan; 3]>) {
        for (at, plan) in plans.iter().enumerate() {
            let written = self.ops[id.0].segments[at].columns.clone();
            match plan {
                ParityPlan::None | ParityPlan::Full => {}
                ParityPlan::Rcw => {
                    let others = (0..self.geometry.data_columns()).filter(|c| !written.contains(c));
                    others.for_each(|column| self.read_column(id, at, column));
                }
                ParityPlan::Rmw => {
                    let check = self.readable_check(id);
                    written.chain(check).for_each(|column| self.read_column(id, at, column));
                }
            }
        }
        let op = &mut self.ops[id.0];
        op.plans = plans;
        op.phase = Phase::Reading;
        if op.outstanding == 0 {
            self.write_out(id);
        }
    }

    fn readable_check(&self, id: OpId) -> Option<u8> {
        let mut checks = self.geometry.data_columns()..self.geometry.members();
        checks.find(|column| self.column_readable(id, *column))
    }

    /// Everything that parity needs is here: compute it, and write.
    pub(super) fn write_out(&mut self, id: OpId) {
        let fua = self.op_fua(id);
        let plans = self.ops[id.0].plans.clone();
        let segments = self.ops[id.0].segments.clone();
        self.ops[id.0].phase = Phase::Writing;
        for (at, (segment, plan)) in segments.iter().zip(plans).enumerate() {
            let mut sources: Vec<Source> = Vec::new();
            for column in segment.columns.clone() {
                let source = self.user_source(id, segment, column);
                sources.push(source);
                self.write_column(id, at, column, source, fua);
            }
            match plan {
                ParityPlan::None => continue,
                ParityPlan::Full => {}
                ParityPlan::Rcw | ParityPlan::Rmw => {
                    let reads: Vec<u8> = self.columns_read(id, at);
                    sources.extend(reads.iter().map(|column| self.read_source(id, at, *column)));
                }
            }
            let parity = self.xor(id, segment.len(), sources);
            for check in self.geometry.data_columns()..self.geometry.members() {
                self.write_column(id, at, check, parity, fua);
            }
        }
        if self.ops[id.0].outstanding == 0 {
            self.finish_write(id);
        }
    }

    pub(super) fn columns_read(&self, id: OpId, segment: usize) -> Vec<u8> {
        let reads = self.ops[id.0].reads.iter().filter(|read| read.segment == segment);
        reads.map(|read| read.column).collect()
    }

    /// Writes a stripe that was never written: the user's bytes, zeros around them, parity.
    fn write_first(&mut self, id: OpId) {
        let op = &mut self.ops[id.0];
        op.first = true;
        op.phase = Phase::Writing;
        op.segments = self.geometry.segments_of_whole_stripe(&op.range);
        let segments = op.segments.clone();
        let data = self.geometry.data_columns();
        for (at, segment) in segments.iter().enumerate() {
            let mut sources = Vec::new();
            for column in 0..data {
                let source = match segment.columns.contains(&column) {
                    true => self.user_source(id, segment, column),
                    false => Source::Zeroes { len: segment.len() },
                };
                sources.push(source);
                self.write_column(id, at, column, source, false);
            }
            let parity = self.xor(id, segment.len(), sources);
            for check in data..self.geometry.members() {
                self.write_column(id, at, check, parity, false);
            }
        }
    }

    /// Members have taken the stripe; a new one is marked as written before it is acknowledged.
    pub(super) fn finish_write(&mut self, id: OpId) {
        let op = &mut self.ops[id.0];
        let stripe = op.stripe;
        if let Some(error) = op.error.take() {
            // Some columns changed and some did not.
            if !op.first && self.geometry.check_columns() > 0 {
                self.unsynced.set(stripe, true);
                self.background.resync_from(stripe);
            }
            return self.end_op(id, Err(error));
        }
        if op.first {
            op.phase = Phase::Committing;
            return self.commit.add(id);
        }
        if op.range == (0..self.geometry.stripe_data_len()) {
            self.unsynced.set(stripe, false);
        }
        self.end_op(id, Ok(Vec::new()));
    }

    fn op_fua(&self, id: OpId) -> bool {
        let request = self.ops[id.0].request.and_then(|request| self.requests.get(&request));
        request.is_some_and(|request| request.user.fua)
    }

    /// The user's bytes for `column` in the rows of `segment`.
    fn user_source(&self, id: OpId, segment: &Segment, column: u8) -> Source {
        let op = &self.ops[id.0];
        let Some((number, request)) =
            op.request.and_then(|number| Some((number, self.requests.get(&number)?)))
        else {
            unreachable!("a write without its request")
        };
        let len = segment.len();
        if request.user.op == UserOp::WriteZeroes {
            return Source::Zeroes { len };
        }
        let at = op.stripe * self.geometry.stripe_data_len()
            + u64::from(column) * u64::from(self.geometry.chunk_len())
            + u64::from(segment.rows.start);
        let offset = at.checked_sub(request.user.offset).and_then(|at| u32::try_from(at).ok());
        match offset {
            Some(offset) if u64::from(offset) + u64::from(len) <= request.user.len => {
                Source::Request { request: number, offset, len }
            }
            Some(_) | None => unreachable!("bytes outside the request"),
        }
    }
}
