//! Work beside users' requests: resync of parity after a crash, then rebuild of members, a few
//! stripes at a time, fewer while users wait.
//!
//! A member that catches up is read only below the first stripe that is not rebuilt yet. Rebuild
//! begins when every operation that began before the member took writes has ended; so each
//! stripe was either written with the member, or is rebuilt after that.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use super::{
    ArrayMachine, Background, Event, Progress, Unsynced,
    op::{Op, OpId, OpKind, Owner, Phase},
};
use crate::{
    geometry::Geometry,
    label::Label,
    member::{MemberIndex, MemberState},
};

/// Stripes in flight when no user waits, and when one does; fewer when stripes are large.
const WINDOW_IDLE: u64 = 16;
const WINDOW_BUSY: u64 = 4;
/// Bytes in flight at most, but always one stripe.
const WINDOW_BYTES: u64 = 64 << 20;
/// How often in a rebuild its progress is made stable.
const CHECKPOINTS: u64 = 16;

#[derive(Debug, Default)]
pub(super) struct BackgroundWork {
    /// Where resync looks next.
    resync_cursor: u64,
    resyncing: usize,
    /// Whether there was any to report the end of.
    resync_reported: bool,
    /// Members to rebuild, each with its progress; the lowest is worked on.
    rebuilds: BTreeMap<MemberIndex, Rebuild>,
    /// Member flushes that a closing array still waits for.
    pub(super) closing_flush: Option<u32>,
}

#[derive(Debug, Default)]
struct Rebuild {
    /// Operations to wait for before the first stripe.
    earlier: BTreeSet<OpId>,
    /// The next stripe to look at.
    cursor: u64,
    in_flight: BTreeSet<u64>,
    /// Stripes that hold data and are not rebuilt yet; none before the first was looked at.
    left: Option<u64>,
    /// Progress that is being made stable: stripes below it were rebuilt when the flush began.
    flushing: Option<u64>,
    checkpoint: u64,
    /// Stripes that could not be rebuilt: while there are any, the member does not count.
    failed: BTreeSet<u64>,
    /// They were tried once more at the end.
    retried: bool,
    /// Somebody was told of what remained.
    reported: bool,
    /// Whether the member holds every page of written bits.
    pages: Pages,
}

/// Whether a member holds every page of written bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Pages {
    /// As every member that was there when the array was opened.
    #[default]
    Complete,
    /// A commit of every page is to come.
    Wanted,
    /// It is under way.
    Running,
}

impl Rebuild {
    /// The first stripe that is not rebuilt.
    fn watermark(&self) -> u64 {
        let firsts = [self.in_flight.first(), self.failed.first()];
        firsts.into_iter().flatten().copied().fold(self.cursor, u64::min)
    }

    fn is_rebuilt(&self, stripe: u64) -> bool {
        stripe < self.cursor && !self.in_flight.contains(&stripe) && !self.failed.contains(&stripe)
    }
}

impl BackgroundWork {
    /// Members that were catching up when the array was left go on where the label says: what is before that is read
    /// from them at once.
    pub(super) fn of(label: &Label) -> Self {
        let members = label.geometry.member_indices();
        let catching_up = members.filter(|m| label.state(*m) == MemberState::CatchingUp);
        let rebuild = |member: MemberIndex| {
            let known = label.members[member.as_usize()].rebuilt_stripes;
            (member, Rebuild { cursor: known, checkpoint: known, ..Rebuild::default() })
        };
        Self { rebuilds: catching_up.map(rebuild).collect(), ..Self::default() }
    }

    pub(super) fn is_rebuilt(&self, member: MemberIndex, stripe: u64) -> bool {
        self.rebuilds.get(&member).is_some_and(|rebuild| rebuild.is_rebuilt(stripe))
    }

    pub(super) fn member_failed(&mut self, member: MemberIndex) {
        self.rebuilds.remove(&member);
    }

    /// Rebuilds `member` from its first stripe, once the operations in `earlier` have ended.
    pub(super) fn restart_rebuild(&mut self, member: MemberIndex, earlier: BTreeSet<OpId>) {
        let rebuild = Rebuild { earlier, pages: Pages::Wanted, ..Rebuild::default() };
        self.rebuilds.insert(member, rebuild);
    }

    /// A stripe holds data now, or holds none any more.
    pub(super) fn note_written(&mut self, stripe: u64, was: bool, is: bool) {
        let is_ahead = |rebuild: &&mut Rebuild| !rebuild.retried && stripe >= rebuild.cursor;
        for rebuild in self.rebuilds.values_mut().filter(is_ahead) {
            if let Some(left) = &mut rebuild.left {
                *left = (*left + u64::from(is)).saturating_sub(u64::from(was));
            }
        }
    }

    /// A commit of every page has begun, to all members that are live now.
    pub(super) fn pages_started(&mut self) {
        let wanted = self.rebuilds.values_mut().filter(|r| r.pages == Pages::Wanted);
        wanted.for_each(|rebuild| rebuild.pages = Pages::Running);
    }

    /// That commit has ended.
    pub(super) fn pages_done(&mut self) {
        let running = self.rebuilds.values_mut().filter(|r| r.pages == Pages::Running);
        running.for_each(|rebuild| rebuild.pages = Pages::Complete);
    }

    /// Has `stripe` resynced soon, although resync may have passed it.
    pub(super) fn resync_from(&mut self, stripe: u64) {
        self.resync_cursor = self.resync_cursor.min(stripe);
    }

    /// Whether nothing is in flight.
    pub(super) fn is_quiet(&self) -> bool {
        self.resyncing == 0
            && self.rebuilds.values().all(|r| r.in_flight.is_empty() && r.flushing.is_none())
    }

    /// How far this is, where so many stripes hold data.
    pub(super) fn progress(
        &self,
        geometry: &Geometry,
        unsynced: &Unsynced,
        written: u64,
    ) -> Vec<Progress> {
        if unsynced.count > 0 {
            let (total, lost) = (geometry.stripes(), 0);
            let done = total - unsynced.count;
            return alloc::vec![Progress { background: Background::Resync, done, total, lost }];
        }
        let rebuild = |(member, rebuild): (&MemberIndex, &Rebuild)| Progress {
            background: Background::Rebuild(*member),
            done: written.saturating_sub(rebuild.left.unwrap_or(written)),
            total: written,
            lost: if rebuild.reported { rebuild.failed.len() as u64 } else { 0 },
        };
        self.rebuilds.iter().map(rebuild).collect()
    }
}

impl ArrayMachine {
    /// Starts as much background work as there is room for.
    pub(super) fn start_background(&mut self) {
        if self.life != super::Life::Open || self.failed.is_some() || self.read_only {
            return;
        }
        let window = if self.requests.is_empty() { WINDOW_IDLE } else { WINDOW_BUSY };
        let stripe_len = u64::from(self.geometry.chunk_len()) * u64::from(self.geometry.members());
        let window = window.min(WINDOW_BYTES / stripe_len).max(1);
        let window = usize::try_from(window).unwrap_or(1);
        self.start_resync(window);
        let resync_left = self.unsynced.next(self.background.resync_cursor).is_some();
        if !resync_left && self.background.resyncing == 0 {
            self.report_resync();
            self.start_rebuild(window);
        }
    }

    fn start_resync(&mut self, window: usize) {
        while self.background.resyncing < window {
            let Some(stripe) = self.unsynced.next(self.background.resync_cursor) else { return };
            self.background.resync_cursor = stripe + 1;
            self.background.resyncing += 1;
            self.background.resync_reported = true;
            let op = self.new_whole_op(OpKind::Resync, stripe);
            // Told apart from a resync that a write asked for.
            self.ops[op.0].resync_tried = true;
            self.ready.push_back(op);
        }
    }

    fn report_resync(&mut self) {
        if core::mem::take(&mut self.background.resync_reported) {
            let left = self.unsynced.count;
            self.events.push_back(match left {
                0 => Event::Finished(Background::Resync),
                _ => Event::Incomplete { background: Background::Resync, stripes: left },
            });
        }
    }

    fn start_rebuild(&mut self, window: usize) {
        let Some((member, rebuild)) = self.background.rebuilds.first_key_value() else { return };
        let member = *member;
        if !rebuild.earlier.is_empty() {
            return;
        }
        self.continue_rebuild(member, window);
    }

    fn continue_rebuild(&mut self, member: MemberIndex, window: usize) {
        loop {
            let Some(rebuild) = self.background.rebuilds.get_mut(&member) else { return };
            if rebuild.left.is_none() {
                rebuild.left = Some(self.written.count_from(rebuild.cursor));
            }
            if rebuild.in_flight.len() >= window {
                return;
            }
            let Some(stripe) = self.written.next_written(rebuild.cursor) else { break };
            rebuild.cursor = stripe + 1;
            if rebuild.retried && !rebuild.failed.remove(&stripe) {
                continue;
            }
            rebuild.in_flight.insert(stripe);
            let op = self.new_whole_op(OpKind::Rebuild(member), stripe);
            self.ready.push_back(op);
        }
        let stripes = self.geometry.stripes();
        let Some(rebuild) = self.background.rebuilds.get_mut(&member) else { return };
        rebuild.cursor = stripes;
        if rebuild.in_flight.is_empty() && !rebuild.failed.is_empty() {
            return self.retry_rebuild(member);
        }
        self.checkpoint_rebuild(member);
    }

    /// What failed is tried once more, then reported.
    fn retry_rebuild(&mut self, member: MemberIndex) {
        let Some(rebuild) = self.background.rebuilds.get_mut(&member) else { return };
        match rebuild.retried {
            false => {
                rebuild.retried = true;
                rebuild.cursor = rebuild.failed.first().copied().unwrap_or_default();
            }
            true if rebuild.reported => {}
            true => {
                rebuild.reported = true;
                let stripes = rebuild.failed.len() as u64;
                let background = Background::Rebuild(member);
                self.events.push_back(Event::Incomplete { background, stripes });
            }
        }
    }

    /// Makes progress stable when there is enough of it, or when it is complete.
    fn checkpoint_rebuild(&mut self, member: MemberIndex) {
        let stripes = self.geometry.stripes();
        let Some(rebuild) = self.background.rebuilds.get_mut(&member) else { return };
        let watermark = rebuild.watermark();
        let complete = watermark >= stripes;
        let due = watermark >= rebuild.checkpoint + (stripes / CHECKPOINTS).max(1);
        let pages = rebuild.pages == Pages::Complete;
        if rebuild.flushing.is_some() || !(due || complete) || (complete && !pages) {
            return;
        }
        rebuild.flushing = Some(watermark);
        self.push_flush(Owner::Rebuild, member);
    }

    pub(super) fn rebuild_flush_done(&mut self, member: MemberIndex, ok: bool) {
        let stripes = self.geometry.stripes();
        let Some(rebuild) = self.background.rebuilds.get_mut(&member) else { return };
        let Some(watermark) = rebuild.flushing.take() else { return };
        if !ok || self.label.state(member) != MemberState::CatchingUp {
            return;
        }
        rebuild.checkpoint = watermark;
        if watermark >= stripes {
            self.background.rebuilds.remove(&member);
            self.member_caught_up(member);
            self.events.push_back(Event::Finished(Background::Rebuild(member)));
        } else {
            self.label.members[member.as_usize()].rebuilt_stripes = watermark;
            self.labels.request();
        }
    }

    /// Puts stable progress into the label of an array that closes, after its flush.
    pub(super) fn note_rebuild_progress(&mut self) {
        for (member, rebuild) in &self.background.rebuilds {
            if rebuild.earlier.is_empty() {
                let entry = &mut self.label.members[member.as_usize()];
                entry.rebuilt_stripes = rebuild.watermark();
            }
        }
    }

    pub(super) fn background_op_done(&mut self, id: OpId, op: &Op, ok: bool) {
        for rebuild in self.background.rebuilds.values_mut() {
            rebuild.earlier.remove(&id);
        }
        match op.kind {
            OpKind::Resync if op.resync_tried => self.background.resyncing -= 1,
            OpKind::Rebuild(member) => self.rebuild_op_done(member, op.stripe, ok),
            OpKind::Resync | OpKind::Read | OpKind::Write | OpKind::Clear => {}
        }
    }

    fn rebuild_op_done(&mut self, member: MemberIndex, stripe: u64, ok: bool) {
        let Some(rebuild) = self.background.rebuilds.get_mut(&member) else { return };
        if !rebuild.in_flight.contains(&stripe) {
            return;
        }
        rebuild.in_flight.remove(&stripe);
        if ok {
            rebuild.left = rebuild.left.map(|left| left.saturating_sub(1));
            self.checkpoint_rebuild(member);
        } else {
            rebuild.failed.insert(stripe);
        }
    }

    /// Reads what the check columns of a stripe follow from.
    pub(super) fn begin_resync(&mut self, id: OpId) {
        let stripe = self.ops[id.0].stripe;
        if !self.written.get(stripe) || !self.unsynced.contains(stripe) {
            self.unsynced.set(stripe, false);
            return self.end_op(id, Ok(Vec::new()));
        }
        let data = self.geometry.data_columns();
        let readable = (0..data).all(|column| self.column_readable(id, column));
        // In a mirror, one copy decides: the first that can be read, as for users' reads.
        let copy = (data..self.geometry.members()).find(|column| self.column_readable(id, *column));
        self.ops[id.0].phase = Phase::Reading;
        match (readable, copy) {
            (true, _) => (0..data).for_each(|column| self.read_column(id, 0, column)),
            (false, Some(copy)) if data == 1 => self.read_column(id, 0, copy),
            (false, _) => self.end_op(id, Err(self.not_resynced(stripe))),
        }
    }

    pub(super) fn write_resync(&mut self, id: OpId) {
        let reads = self.columns_read(id, 0);
        let len = self.geometry.chunk_len();
        let parity = self.reconstruct(id, 0, len);
        let data = self.geometry.data_columns();
        let from = if data == 1 { 0 } else { data };
        self.ops[id.0].phase = Phase::Writing;
        for column in (from..self.geometry.members()).filter(|column| !reads.contains(column)) {
            self.write_column(id, 0, column, parity, false);
        }
        if self.ops[id.0].outstanding == 0 {
            self.finish_resync(id);
        }
    }

    pub(super) fn finish_resync(&mut self, id: OpId) {
        let op = &mut self.ops[id.0];
        let result = op.error.take().map_or(Ok(Vec::new()), Err);
        if result.is_ok() {
            let stripe = op.stripe;
            self.unsynced.set(stripe, false);
        }
        self.end_op(id, result);
    }

    pub(super) fn begin_rebuild_stripe(&mut self, id: OpId, member: MemberIndex) {
        let stripe = self.ops[id.0].stripe;
        let gone = self.label.state(member) != MemberState::CatchingUp;
        if gone || !self.written.get(stripe) {
            return self.end_op(id, Ok(Vec::new()));
        }
        let column = self.geometry.column_of(stripe, member);
        let data = self.geometry.data_columns();
        if self.unsynced.contains(stripe) && data > 1 && column < data {
            return self.end_op(id, Err(self.not_resynced(stripe)));
        }
        match self.columns_to_reconstruct(id, column) {
            None => self.end_op(id, Err(self.unreadable(id))),
            Some(columns) => {
                self.ops[id.0].phase = Phase::Reading;
                columns.iter().for_each(|column| self.read_column(id, 0, *column));
            }
        }
    }

    pub(super) fn write_rebuilt(&mut self, id: OpId, member: MemberIndex) {
        let column = self.geometry.column_of(self.ops[id.0].stripe, member);
        let source = self.reconstruct(id, 0, self.geometry.chunk_len());
        self.ops[id.0].phase = Phase::Writing;
        self.write_column(id, 0, column, source, false);
        if self.ops[id.0].outstanding == 0 {
            self.end_op(id, Ok(Vec::new()));
        }
    }
}
