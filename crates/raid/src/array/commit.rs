//! Commits of written bits: what waits is committed together, one commit at a time.
//!
//! A commit flushes every live member that has a volatile cache, so that the new stripes are
//! stable; waits until the labels say which members did not take part, or one that lacks a chunk
//! would count as holding it after a crash; then writes the pages that changed, with FUA, to every
//! live member. Only then readers see the bits, and the operations that wait go on.

use alloc::{collections::BTreeSet, sync::Arc, vec::Vec};

use netraid_block::narrow;

use super::{
    ArrayMachine,
    op::{OpId, OpKind, Owner},
};
use crate::member::MemberSet;

#[derive(Debug, Default)]
pub(super) struct Commit {
    waiting: Vec<OpId>,
    /// Write every page, for a member that holds none yet.
    every_page: bool,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    ops: Vec<OpId>,
    every_page: bool,
    step: Step,
    outstanding: u32,
    members: MemberSet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Flush,
    Labels,
    Pages,
}

impl Commit {
    /// Adds an operation whose stripe's bit is to change.
    pub(super) fn add(&mut self, op: OpId) {
        self.waiting.push(op);
    }

    /// Has every page written, to whoever is live when that begins.
    pub(super) fn write_every_page(&mut self) {
        self.every_page = true;
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none() && self.waiting.is_empty() && !self.every_page
    }
}

impl ArrayMachine {
    pub(super) fn start_commit(&mut self) {
        if self.commit.running.is_some() || self.commit.is_idle() {
            return;
        }
        let ops = core::mem::take(&mut self.commit.waiting);
        let every_page = core::mem::take(&mut self.commit.every_page);
        if self.failed.is_some() {
            return self.ready.extend(ops);
        }
        if every_page {
            self.background.pages_started();
        }
        let sets = ops.iter().any(|op| self.ops[op.0].kind == OpKind::Write);
        let members = self.live_members();
        let volatile =
            |m: &_| self.members[crate::member::MemberIndex::as_usize(*m)].caps.volatile_cache;
        let flush: MemberSet =
            if sets { members.iter().filter(volatile).collect() } else { MemberSet::EMPTY };
        let outstanding = flush.len();
        let step = Step::Flush;
        self.commit.running = Some(Running { ops, every_page, step, outstanding, members });
        flush.iter().for_each(|member| self.push_flush(Owner::Commit, member));
        if outstanding == 0 {
            self.commit_step_done();
        }
    }

    /// Goes on with a commit that waited for the labels.
    pub(super) fn continue_commit(&mut self) {
        let waits = self.commit.running.as_ref().is_some_and(|r| r.step == Step::Labels);
        if waits && (self.failed.is_some() || !self.labels.is_pending()) {
            self.commit_step_done();
        }
    }

    fn write_pages(&mut self) {
        let Some(running) = &self.commit.running else { return };
        let mut pages = BTreeSet::new();
        if running.every_page {
            pages.extend(0..self.written.pages());
        }
        for op in &running.ops {
            let op = &self.ops[op.0];
            pages.insert(self.written.stage(op.stripe, op.kind == OpKind::Write));
        }
        let region = self.label.regions.written;
        let images = self.written.images(&region, &pages);
        // Members that were set aside since are skipped; ones that came since get every page.
        let members = running.members;
        let members: MemberSet =
            self.live_members().iter().filter(|member| members.contains(*member)).collect();
        let outstanding = members.len() * narrow::<_, u32>(images.len());
        if let Some(running) = &mut self.commit.running {
            running.step = Step::Pages;
            running.outstanding = outstanding;
        }
        for image in images {
            let bytes: Arc<[u8]> = image.bytes.into();
            for member in members.iter() {
                self.push_meta(Owner::Commit, member, region.offset + image.offset, bytes.clone());
            }
        }
        if outstanding == 0 {
            self.commit_step_done();
        }
    }

    pub(super) fn commit_io_done(&mut self) {
        let Some(running) = &mut self.commit.running else { return };
        running.outstanding -= 1;
        if running.outstanding == 0 {
            self.commit_step_done();
        }
    }

    fn commit_step_done(&mut self) {
        let Some(running) = &mut self.commit.running else { return };
        if self.failed.is_none() && running.step != Step::Pages {
            if self.labels.is_pending() && !running.ops.is_empty() {
                running.step = Step::Labels;
                return;
            }
            return self.write_pages();
        }
        let Some(running) = self.commit.running.take() else { return };
        if self.failed.is_none() {
            for op in &running.ops {
                let stripe = self.ops[op.0].stripe;
                let was_written = self.written.get(stripe);
                self.written.publish(stripe);
                self.background.note_written(stripe, was_written, self.written.get(stripe));
            }
            if running.every_page {
                self.background.pages_done();
            }
        }
        self.ready.extend(running.ops);
    }
}
