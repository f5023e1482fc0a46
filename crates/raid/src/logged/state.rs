//! What the machine knows: the parts that its tasks share.

use alloc::{
    collections::{BTreeSet, VecDeque},
    string::{String, ToString},
    sync::Arc,
    vec::Vec,
};

use netraid_block::{ErrorKind, IoError, Pool};
use slab::Slab;
use sync_wrapper::SyncWrapper;

use super::{
    Action, Event, Limits, MemberCaps, RequestId, RuleCounts,
    dirty::DirtyBlocks,
    io::{Io, Outbox},
    labels::LabelUpdates,
    locks::Locks,
    log::LogState,
    sums::SumCache,
    tasks::{Change, Task, Waiters},
    waits::{WaitId, Waits},
};
use crate::{
    checkpoint::Checkpoint,
    checksum::ChecksumKind,
    code::{Code, ColumnSet},
    format::Format,
    gathering::Gathering,
    geometry::Geometry,
    label::Label,
    log::{LogKey, Position, Ring},
    member::{ArrayState, MemberIndex, MemberSet, MemberState},
    pages::TablePages,
    regions::Regions,
    stripes::StripeTable,
    sums::SumLayout,
};

/// Bytes of a block of the volume.
pub(super) const BLOCK: u32 = 4096;

/// What never changes while an array is open.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) geometry: Geometry,
    pub(super) code: Code,
    pub(super) regions: Regions,
    /// Physical stripes.
    pub(super) physical: u32,
    /// Logical stripes.
    pub(super) logical: u32,
    /// Rows of 4 KiB in a stripe.
    pub(super) rows: u32,
    pub(super) ring: Ring,
    pub(super) key: LogKey,
    pub(super) stripe_pages: TablePages,
    pub(super) sum_pages: TablePages,
    pub(super) sum_layout: SumLayout,
    pub(super) max_io_len: u32,
    pub(super) format: Format,
    pub(super) checksum: ChecksumKind,
    pub(super) limits: Limits,
    pub(super) pool: Pool,
}

impl Layout {
    /// Blocks of data in a stripe.
    pub(super) fn stripe_blocks(&self) -> u32 {
        self.rows * u32::from(self.geometry.data_columns())
    }

    /// The first block of the volume in a logical stripe.
    pub(super) fn first_block(&self, logical: u32) -> u64 {
        u64::from(logical) * u64::from(self.stripe_blocks())
    }

    /// Blocks of the log that what brings a dirty block home takes at most: a head, and the check
    /// blocks of its row; or a REMAP of its stripe.
    pub(super) fn blocks_to_bring_home(&self) -> u64 {
        let sums = u64::from(self.rows) * u64::from(self.geometry.members()) * 4;
        let remap = (256 + sums + u64::from(self.rows)).div_ceil(u64::from(BLOCK));
        let checks = if self.code.is_copies() { 0 } else { self.code.check_columns() };
        remap.max(1 + u64::from(checks))
    }
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) caps: MemberCaps,
    /// It has failed, and the labels do not say so yet: until they do, nothing may be
    /// acknowledged that it did not take part in.
    pub(super) leaving: bool,
    /// Raised whenever it comes or goes.
    pub(super) incarnation: u32,
    /// It completed writes after its last flush was sent.
    pub(super) unflushed: bool,
    /// Who is in sync, says the newest label that it has for certain.
    pub(super) told: MemberSet,
    /// Who waits for the labels to say that it takes no part.
    pub(super) deferred: Vec<WaitId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Opening,
    Open,
    Closing,
    Closed,
}

/// An old place of a logical stripe, which may not be used again yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limbo {
    pub(super) physical: u32,
    /// Where the REMAP that left it is.
    pub(super) position: Position,
    /// Its space is to be given back.
    pub(super) discard: bool,
}

/// The state.
pub(super) struct State {
    pub(super) layout: Arc<Layout>,
    pub(super) label: Label,
    /// The label that was believed when the array was opened.
    pub(super) found_label: Label,
    /// Members that were not believed.
    pub(super) suspects: super::suspects::Suspects,
    pub(super) members: Vec<Member>,
    pub(super) labels: LabelUpdates,
    pub(super) life: Life,
    pub(super) failed: Option<IoError>,
    pub(super) shown_state: ArrayState,

    pub(super) requests: BTreeSet<RequestId>,
    pub(super) operations: BTreeSet<u64>,
    pub(super) next_operation: u64,
    /// What writes in a row do together.
    pub(super) gathering: Gathering<super::gather::LeftPart>,

    pub(super) waits: Waits,
    pub(super) ios: Slab<Io>,
    pub(super) joinable_reads: super::joined::JoinableReads,
    pub(super) outbox: Outbox,
    pub(super) completed: VecDeque<Action>,
    pub(super) events: VecDeque<Event>,
    pub(super) waiters: Waiters,
    pub(super) spawned: SyncWrapper<Vec<Task>>,
    pub(super) locks: Locks,

    pub(super) log: LogState,
    pub(super) dirty: DirtyBlocks,
    pub(super) stripes: StripeTable,
    /// Of each stripe page; all its holders have the newest one.
    pub(super) stripe_images: Vec<super::tables::Images>,
    pub(super) sums: SumCache,
    pub(super) limbo: Vec<Limbo>,
    /// Stripes that UNMAP left, whose space is to be given back.
    pub(super) discards: VecDeque<u32>,
    /// Physical stripes allocated, or about to be left, by writes under way.
    pub(super) allocated: u32,
    /// Logical and physical stripes of the last allocations, the newest first.
    pub(super) streams: VecDeque<(u32, u32)>,

    /// The list of snapshots that the last checkpoint names, as it was found.
    pub(super) list: super::snapshots::FoundList,
    /// The last checkpoint that is stable on all.
    pub(super) checkpoint: Checkpoint,
    /// The round that changes belong to now.
    pub(super) round: u32,
    pub(super) rounds: super::round::Rounds,
    /// Who lacks space, and what waits for it.
    pub(super) space: super::space::Space,
    /// Somebody writes table pages.
    pub(super) tables_locked: bool,
    /// What is to be repaired: logical and physical stripe, column, row.
    pub(super) repairs: BTreeSet<(u32, u32, u8, u32)>,
    /// A device that a member is copied to.
    pub(super) succession: Option<super::succession::Succession>,
    /// How many there were.
    pub(super) successions: u64,
    /// Blocks of the volume that cannot be brought home.
    pub(super) stuck: super::carry::StuckBlocks,
    /// Members that have images which nobody wrote.
    pub(super) forgers: MemberSet,
    /// Recovery has found everything below this; what follows may lack something, or is not there. None before
    /// that is known.
    pub(super) recovered_upto: Option<Position>,
    pub(super) scrub: super::scrub::Scrub,
    /// Members that are not read from where the others have it.
    pub(super) slow: MemberSet,
    /// Slow members that are to be read from once.
    pub(super) probed: MemberSet,
    /// Stripes that members may still catch up; as many as they lack when none.
    pub(super) catch_up_allowance: Option<u32>,
    /// How often each rule held something back.
    pub(super) rules: RuleCounts,
}

impl State {
    /// Whether any member has completed what a flush would make stable.
    pub(super) fn is_any_unflushed(&self) -> bool {
        self.members.iter().any(|member| member.unflushed)
    }

    pub(super) fn member_state(&self, member: MemberIndex) -> MemberState {
        self.label.members[member.as_usize()].state
    }

    /// Whether a member gets writes.
    pub(super) fn takes_part(&self, member: MemberIndex) -> bool {
        self.member_state(member).is_live() && !self.members[member.as_usize()].leaving
    }

    /// Members that get writes.
    pub(super) fn live(&self) -> MemberSet {
        self.layout.geometry.member_indices().filter(|one| self.takes_part(*one)).collect()
    }

    /// Members that hold everything.
    pub(super) fn in_sync(&self) -> MemberSet {
        let in_sync = |one: &MemberIndex| {
            self.takes_part(*one) && self.member_state(*one) == MemberState::InSync
        };
        self.layout.geometry.member_indices().filter(in_sync).collect()
    }

    /// Whether a member is to be asked for its chunk of a mapped stripe.
    pub(super) fn readable(&self, member: MemberIndex, physical: u32) -> bool {
        let entry = &self.label.members[member.as_usize()];
        self.takes_part(member)
            && (entry.state == MemberState::InSync
                || !entry.lack.has(physical, self.stripes.entry(physical)))
    }

    /// Columns of a stripe that can be asked for.
    pub(super) fn readable_columns(&self, physical: u32) -> ColumnSet {
        let member = |column: u8| self.layout.geometry.member_of(u64::from(physical), column);
        (0..self.layout.geometry.members())
            .filter(|column| self.readable(member(*column), physical))
            .collect()
    }

    /// Columns of a stripe that are asked for where there is a choice: those of slow members are not.
    pub(super) fn preferred_columns(&self, physical: u32) -> ColumnSet {
        let readable = self.readable_columns(physical);
        if self.slow.is_empty() {
            return readable;
        }
        let is_slow = |column: &u8| {
            self.slow.contains(self.layout.geometry.member_of(u64::from(physical), *column))
        };
        readable.minus(readable.iter().filter(is_slow).collect())
    }

    /// Columns from which another one is computed: without slow members where that can be.
    pub(super) fn usable_columns(&self, physical: u32, column: u8) -> ColumnSet {
        let preferred = self.preferred_columns(physical);
        match self.layout.code.recipe(column, preferred) {
            Some(_) => preferred,
            None => self.readable_columns(physical),
        }
    }

    /// Whether a column can be read, and is computed from the others all the same, because its member is slow.
    pub(super) fn goes_past(&self, physical: u32, column: u8) -> bool {
        let member = self.layout.geometry.member_of(u64::from(physical), column);
        self.slow.contains(member)
            && self.layout.code.recipe(column, self.preferred_columns(physical)).is_some()
    }

    /// Whether the array can serve from these members.
    pub(super) fn can_serve_from(&self, members: MemberSet) -> bool {
        self.layout.geometry.can_serve_from(members)
    }

    /// Whether any member has failed and the labels do not say so yet.
    pub(super) fn is_anybody_leaving(&self) -> bool {
        self.members.iter().any(|member| member.leaving)
    }

    pub(super) fn array_state(&self) -> ArrayState {
        let all = self.label.members.iter().all(|entry| entry.state == MemberState::InSync);
        match (&self.failed, all) {
            (Some(_), _) => ArrayState::Failed,
            (None, true) => ArrayState::Optimal,
            (None, false) => ArrayState::Degraded,
        }
    }

    /// Stops serving.
    pub(super) fn fail(&mut self, error: IoError) {
        self.failed.get_or_insert(error);
    }

    /// Stops serving because members are missing. Labels stay as they are: they may come back.
    pub(super) fn fail_without(&mut self, member: MemberIndex, reason: &str) {
        let mut rest = self.in_sync();
        rest.remove(member);
        if self.can_serve_from(rest) {
            let text = alloc::format!(
                "array '{}' failed: member {member} left ({reason}) before it had heard who has just \
                 caught up, and could carry the array alone; bring it back and attach again",
                self.label.name,
            );
            return self.fail(IoError::with_detail(ErrorKind::Redundancy, text));
        }
        let mut names = String::new();
        for other in self.layout.geometry.member_indices() {
            if other == member || !self.in_sync().contains(other) {
                let separator = if names.is_empty() { "" } else { ", " };
                names.push_str(&alloc::format!("{separator}{other}"));
            }
        }
        let text = alloc::format!(
            "array '{}' failed: level {} cannot serve without members {names} (last: member \
             {member}: {reason}); bring them back and attach again",
            self.label.name,
            self.layout.geometry.level().number(),
        );
        self.fail(IoError::with_detail(ErrorKind::Redundancy, text));
    }

    pub(super) fn tell_member(&mut self, member: MemberIndex, reason: &str) {
        let state = self.member_state(member);
        self.events.push_back(Event::Member { member, state, reason: reason.to_string() });
    }

    pub(super) fn complete(
        &mut self,
        request: RequestId,
        result: Result<netraid_block::SgList, IoError>,
    ) {
        if self.requests.remove(&request) {
            // What was found while it failed may rest on nothing.
            let result = match &self.failed {
                Some(error) => Err(error.clone()),
                None => result,
            };
            self.completed.push_back(Action::Complete { request, result });
            self.waiters.wake(Change::Operations);
        }
    }

    /// The next action.
    pub(super) fn poll_action(&mut self) -> Option<Action> {
        self.completed.pop_front().or_else(|| self.outbox.pop())
    }
}
