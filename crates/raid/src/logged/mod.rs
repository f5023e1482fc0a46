//! The array with a log: users' requests in, member requests out. How it works and why stands in
//! docs/decisions/0008-log-rounds-and-map.md.
//!
//! Dialect: `handle_*` takes an input, [`LoggedArray::poll_action`] and
//! [`LoggedArray::poll_event`] give outputs until `None`. Every member request given out must come
//! back through [`LoggedArray::handle_io_done`] exactly once. Every user request ends in exactly
//! one [`Action::Complete`]. Inputs that are there are all put in before outputs are asked for:
//! what they lead to is found out then, and together.
//!
//! Inside, straight-line code waits for what it needs ([`tasks`]); it is run by these calls and by
//! nothing else, so that the same inputs give the same outputs.
//!
//! Does not do: time. It waits as long as a device does; a driver that gives up on a device says
//! so by [`LoggedArray::handle_gone`].

mod atomic;
mod carry;
mod dirty;
mod found_log;
mod gather;
mod interface;
mod io;
mod joined;
mod judge;
mod labels;
mod locks;
mod log;
mod members;
mod read;
mod recover;
mod redo;
mod renew;
mod requests;
mod round;
mod rules;
mod scrub;
mod snapshots;
mod space;
mod state;
mod succession;
mod sums;
mod suspects;
mod tables;
mod tasks;
mod unstable;
mod waits;
mod write;

use alloc::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    vec::Vec,
};

pub use atomic::{ATOMIC_BLOCKS_MAX, AtomicWrite, AtomicWriteError};
pub use interface::{
    Action, Event, FoundMember, IoId, Limits, MemberCaps, NewDevice, OpenConfig, RequestId, To,
    Usage, UserRequest,
};
pub use members::CatchUp;
use netraid_block::{IoError, SgList, narrow};
pub use rules::{Rule, RuleCounts};
pub use scrub::{
    SCRUB_STRIPES_AT_ONCE_MAX, ScrubCommand, ScrubEvent, ScrubMember, ScrubOptions, ScrubRefusal,
    ScrubStatus,
};
use slab::Slab;
pub use space::Shortage;
use state::{Layout, Life, Member, State};
use suspects::{Believed, Suspects};
use sync_wrapper::SyncWrapper;
use tasks::{Array, Change, Tasks};
pub use unstable::{Again, Lost, Unstable};

use crate::{
    array::CommandError,
    checkpoint::{Checkpoint, ListName},
    code::Code,
    gathering::Gathering,
    label::{Closure, Label, Uuid},
    log::{Link, LogKey, Ring},
    member::{ArrayState, MemberIndex, MemberSet, MemberState},
    stripes::{StripeTable, Walked},
    sums::SumLayout,
};

/// An array with a log, open.
pub struct LoggedArray {
    array: Array,
    tasks: Tasks,
    /// There was an input since everything was done that could be.
    input: bool,
    ended: bool,
}

impl core::fmt::Debug for LoggedArray {
    /// What it is waiting for.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let state = self.array.state();
        f.debug_struct("LoggedArray")
            .field("life", &state.life)
            .field("members", &state.members)
            .field("operations", &state.operations)
            .field("requests", &state.requests)
            .field("rounds", &state.rounds)
            .field("labels", &state.labels)
            .field("log", &state.log)
            .field("locks", &state.locks)
            .field("dirty", &state.dirty.len())
            .field("limbo", &state.limbo)
            .field("allocated", &state.allocated)
            .field("free", &state.stripes.free())
            .field("tables_locked", &state.tables_locked)
            .field("sums", &state.sums)
            .field("waiters", &state.waiters)
            .finish_non_exhaustive()
    }
}

impl LoggedArray {
    /// Begins to open an array: recovers what the log says, and then sends [`Event::Opened`].
    /// When it cannot be opened it fails ([`Self::failure`]) and sends [`Event::Closed`].
    ///
    /// # Errors
    /// When no member has a label of an array with a log, or labels contradict each other and none can
    /// tell which one lies.
    pub fn open(config: OpenConfig) -> Result<Self, IoError> {
        let OpenConfig { mut members, holder, max_io_len, pool, limits } = config;
        let Believed { label, log, suspects } = suspects::believe(&mut members)?;
        let geometry = label.geometry;
        assert_eq!(members.len(), usize::from(geometry.members()), "one entry a member");
        assert!(max_io_len >= geometry.chunk_len(), "largest request below a chunk");
        let regions = label.regions;
        // A label whose stripes have larger numbers is not decoded.
        let physical = narrow(regions.physical_stripes(&geometry));
        let rows = geometry.chunk_len() / state::BLOCK;
        let layout = Layout {
            geometry,
            code: Code::new(&geometry),
            physical,
            logical: narrow(geometry.stripes()),
            rows,
            ring: Ring::new(regions.log_blocks()),
            key: LogKey { array_uuid: label.array_uuid, salt: log.salt },
            stripe_pages: regions.stripe_pages(&geometry),
            sum_pages: regions.sum_pages(&geometry),
            sum_layout: SumLayout::new(geometry.members(), rows),
            regions,
            format: log.format,
            checksum: log.checksum,
            max_io_len,
            limits,
            pool,
        };
        let device = |found: &Option<FoundMember>| Member {
            caps: found.as_ref().map(|found| found.caps).unwrap_or_default(),
            leaving: false,
            incarnation: 0,
            unflushed: false,
            told: found.as_ref().map(|found| told_by(&found.label, &label)).unwrap_or_default(),
            deferred: Vec::new(),
        };
        let devices = members.iter().map(device).collect();
        let this = Self {
            array: Array::new(State { suspects, ..State::new(layout, label, devices) }),
            tasks: Tasks::new(),
            input: true,
            ended: false,
        };
        let array = this.array.clone();
        this.array.spawn(array.clone().write_labels());
        this.array.spawn(array.clone().serve_flushes());
        this.array.spawn(array.open(members, holder));
        Ok(this)
    }

    /// Takes a user's request, checked at the seam: in range, aligned to the logical block.
    ///
    /// # Panics
    /// When the number is in use, the range is wrong, or the array is not open.
    pub fn handle_request(&mut self, id: RequestId, user: UserRequest) {
        {
            let mut state = self.array.state();
            let end = user.offset.checked_add(user.len);
            assert!(end.is_some_and(|end| end <= state.capacity()), "request out of range");
            assert!(user.op != netraid_block::Op::Write || user.data.len() as u64 == user.len);
            if let Some(error) = state.failed.clone() {
                state.completed.push_back(Action::Complete { request: id, result: Err(error) });
                return;
            }
            assert_eq!(state.life, Life::Open, "request to an array that is not open");
            assert!(state.requests.insert(id), "request number in use");
        }
        let array = self.array.clone();
        self.tasks.push(alloc::boxed::Box::pin(array.serve(id, user)));
        self.input = true;
    }

    /// Tells how a member request ended; reads bring their bytes, all else brings none.
    ///
    /// # Panics
    /// When no such request is in flight.
    pub fn handle_io_done(&mut self, io: IoId, result: Result<SgList, IoError>) {
        self.array.state().end_io(io, result);
        self.input = true;
    }

    /// Sets a member aside, as an administrator wishes, or because its session ended or its power
    /// failed: what it completed and did not make stable may be lost. Requests to it that are in
    /// flight still have to come back. When the array cannot serve without it, the array fails.
    pub fn handle_gone(&mut self, member: MemberIndex, reason: &str) {
        self.array.state().member_gone(member, reason);
        self.input = true;
    }

    /// Another engine has opened the array for writing, and this one only reads: it fails with this error.
    pub fn handle_overtaken(&mut self, error: IoError) {
        self.array.state().fail(error);
        self.input = true;
    }

    /// A read is late: what waits for it, and can be had from other members, is read there as well, and the first to come
    /// counts. How many reads that sends at most.
    pub fn handle_late(&mut self, io: IoId) -> u64 {
        self.input = true;
        self.array.state().note_late(io)
    }

    /// These members are slow: what can be had from the others is not read from them.
    pub fn handle_slow(&mut self, members: MemberSet) {
        let mut state = self.array.state();
        (state.slow, state.probed) = (members, MemberSet::EMPTY);
    }

    /// The next read that would go past this slow member goes to it.
    pub fn handle_probe(&mut self, member: MemberIndex) {
        self.array.state().probed.insert(member);
    }

    /// A member that is not live is there again, with nothing of before in flight. It catches up.
    pub fn handle_return(&mut self, member: MemberIndex, found: FoundMember) {
        let array = self.array.clone();
        self.array.spawn(array.member_returned(member, found));
        self.input = true;
    }

    /// Takes a new device in the place of a member that is not live, and writes it.
    pub fn handle_replace(&mut self, member: MemberIndex, device: NewDevice) {
        let array = self.array.clone();
        self.array.spawn(array.member_replaced(member, device));
        self.input = true;
    }

    /// Copies a member that is in sync to another device, its successor. All that the machine writes to the member goes to
    /// both from now on, as [`To`] says. When the copy is whole and all other members are in sync, the member leaves
    /// ([`Event::Member`]); it may have left before. Then the device takes the place by [`Self::handle_replace`], with the same
    /// identity: with a whole copy it lacks no more than a member that left then.
    ///
    /// # Errors
    /// When nothing can be changed.
    ///
    /// # Panics
    /// When the member is not in sync, or another one is being copied.
    pub fn handle_successor(
        &mut self,
        member: MemberIndex,
        device: NewDevice,
    ) -> Result<(), CommandError> {
        let number = self.array.state().begin_succession(member, device)?;
        let array = self.array.clone();
        self.array.spawn(array.member_succeeded(member, number));
        self.input = true;
        Ok(())
    }

    /// The device that a member is copied to has left, or did not take the place: nothing more is copied to it, and what it
    /// has counts for nothing.
    pub fn handle_successor_gone(&mut self, member: MemberIndex) {
        self.array.state().give_up_successor(member);
        self.input = true;
    }

    /// How far the copy of a member is, if it is copied: stripes, and pages of tables.
    #[must_use]
    pub fn copied(&self) -> Option<(MemberIndex, Walked)> {
        self.array.state().copied()
    }

    /// Members catch up so many stripes more, beside those that were allowed and are not begun yet,
    /// and then wait; as many as they lack when none.
    pub fn handle_catch_up_allowance(&mut self, stripes: Option<u32>) {
        {
            let mut state = self.array.state();
            let left = state.catch_up_allowance.unwrap_or(0);
            state.catch_up_allowance = stripes.map(|stripes| left.saturating_add(stripes));
            state.waiters.wake(Change::CatchUp);
        }
        self.input = true;
    }

    /// How many stripes members may catch up yet; none when nothing holds them back.
    #[must_use]
    pub fn catch_up_allowance(&self) -> Option<u32> {
        self.array.state().catch_up_allowance
    }

    /// The identities of the array and of a member.
    #[must_use]
    pub fn identity(&self, member: MemberIndex) -> (Uuid, Uuid) {
        let label = &self.array.state().label;
        (label.array_uuid, label.members[member.as_usize()].uuid)
    }

    /// How far a member is, if it catches up.
    #[must_use]
    pub fn catch_up(&self, member: MemberIndex) -> Option<CatchUp> {
        self.array.state().catch_up_of(member)
    }

    /// Has everything that is in the log brought home; nothing waits for it.
    pub fn handle_idle(&mut self) {
        if self.array.state().life == Life::Open {
            let mut state = self.array.state();
            state.retry_space();
            if !state.space.is_short() {
                state.want_round();
            }
            drop(state);
            self.input = true;
        }
    }

    /// Has everything made stable that is not; nothing waits for it. Called now and then, so that
    /// what a failure of all power may undo is never old.
    pub fn handle_age(&mut self) {
        if self.array.state().life == Life::Open {
            self.array.state().flush_what_is_old();
            self.array.state().retry_space();
            self.input = true;
        }
    }

    /// Brings everything home, closes the labels; [`Event::Closed`] follows. No request may be in
    /// flight or come after.
    ///
    /// # Panics
    /// When requests are in flight.
    pub fn handle_close(&mut self) {
        assert!(self.array.state().requests.is_empty(), "close with requests in flight");
        if self.array.state().life == Life::Open {
            self.array.state().life = Life::Closing;
            self.array.state().stop_scrub();
            let array = self.array.clone();
            self.array.spawn(array.close());
            self.input = true;
        }
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.run();
        self.array.state().poll_action()
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.run();
        self.array.state().events.pop_front()
    }

    /// Bytes of the volume.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.array.state().capacity()
    }

    /// The label as it is, stable, on all live members; before there is one, what was found.
    #[must_use]
    pub fn label(&self) -> Label {
        let state = self.array.state();
        state.labels.stable.as_ref().unwrap_or(&state.label).clone()
    }

    /// The last label that was stable on all live members; before there is one, the one that was found.
    #[must_use]
    pub fn stable_label(&self) -> Label {
        let state = self.array.state();
        state.labels.stable.as_ref().unwrap_or(&state.found_label).clone()
    }

    /// What the array can do.
    #[must_use]
    pub fn state(&self) -> ArrayState {
        self.array.state().array_state()
    }

    /// Why the array failed, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<IoError> {
        self.array.state().failed.clone()
    }

    /// A member's state.
    ///
    /// # Panics
    /// When the array has no such member.
    #[must_use]
    pub fn member_state(&self, member: MemberIndex) -> MemberState {
        self.array.state().member_state(member)
    }

    /// Whether a member may be set aside by command, or replaced.
    ///
    /// # Errors
    /// When there is no such member, it is needed, or nothing can be changed.
    pub fn check_lose(&self, member: MemberIndex) -> Result<(), CommandError> {
        let state = self.array.state();
        let last = state.layout.geometry.members() - 1;
        if member.0 > last {
            return Err(CommandError::NoSuchMember { member, last });
        }
        if state.failed.is_some() {
            return Err(CommandError::NotWritable("failed"));
        }
        if state.life != Life::Open {
            return Err(CommandError::NotWritable("not open"));
        }
        if state.can_go_on_without(member) { Ok(()) } else { Err(CommandError::Needed(member)) }
    }

    /// Whether all of `members` can be set aside together: the array is open, has not failed, and goes on
    /// without them.
    #[must_use]
    pub fn can_lose_all(&self, members: MemberSet) -> bool {
        let state = self.array.state();
        state.failed.is_none() && state.life == Life::Open && state.can_go_on_without_all(members)
    }

    /// What is in the log and on the members now.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let state = self.array.state();
        Usage {
            log_blocks: state.layout.ring.blocks(),
            log_used: state.log.writer.as_ref().map_or(0, crate::log::LogWriter::used),
            dirty_blocks: state.dirty.len(),
            round: state.checkpoint.round,
            mapped: state.stripes.mapped(),
            physical: state.layout.physical,
        }
    }

    /// What it lacks space for, if acknowledged data waits for space on members that it cannot do
    /// without. Then it serves reads, discards, and writes to what has its place already; other
    /// writes end with [`ErrorKind::NoSpace`].
    #[must_use]
    pub fn shortage(&self) -> Option<Shortage> {
        self.array.state().space.shortage()
    }

    /// How often each rule of the protocol held something back.
    #[must_use]
    pub fn rules(&self) -> RuleCounts {
        self.array.state().rules
    }

    /// Does everything that can be done without another input. What came in since the last time is
    /// looked at together: so writes that came together share a batch of the log.
    fn run(&mut self) {
        if !core::mem::take(&mut self.input) {
            return;
        }
        loop {
            for task in core::mem::take(self.array.state().spawned.get_mut()) {
                self.tasks.push(task);
            }
            self.tasks.run();
            let mut state = self.array.state();
            if state.failed.is_some() {
                break;
            }
            let pumped = state.pump_log();
            if state.spawned.get_mut().is_empty() && !pumped {
                break;
            }
        }
        self.show_state();
        self.end_if_failed();
    }

    fn show_state(&self) {
        let mut state = self.array.state();
        let now = state.array_state();
        if now != state.shown_state && state.life != Life::Opening {
            state.shown_state = now;
            state.events.push_back(Event::State(now));
        }
    }

    /// Ends everything with the error that the array failed with.
    fn end_if_failed(&mut self) {
        let Some(error) = self.array.state().failed.clone() else { return };
        if self.ended {
            return;
        }
        self.ended = true;
        self.tasks.clear();
        self.array.state().spawned.get_mut().clear();
        let mut state = self.array.state();
        state.gathering = Gathering::new(state.stripe_len());
        let requests: Vec<RequestId> = state.requests.iter().copied().collect();
        for request in requests {
            state.complete(request, Err(error.clone()));
        }
        state.life = Life::Closed;
        state.events.push_back(Event::Closed);
    }
}

impl Array {
    async fn close(self) {
        loop {
            self.state().retry_space();
            self.next_round().await;
            let mut state = self.state();
            if state.space.is_short() || (state.is_rest_stuck() && !state.stuck.is_empty()) {
                break;
            }
            if state.dirty.len() == 0 && state.writer().used() == 0 && state.limbo.is_empty() {
                break;
            }
        }
        self.until(Change::Operations, |state| {
            let quiet = state.repairs.is_empty() && state.locks.is_empty();
            (quiet && state.scrub.is_idle()).then_some(())
        })
        .await;
        self.flush().await;
        // What is in the log yet is for the next opening.
        if self.state().dirty.len() == 0 {
            self.update_labels(|label| label.closure = Closure::Clean).await;
        }
        let mut state = self.state();
        state.life = Life::Closed;
        state.events.push_back(Event::Closed);
    }
}

/// Who is in sync by a member's own label, where that may be the newest one that the member was given: at most one
/// update was under way. An older one is of an image from before, or of who has come back and was not told yet: all
/// others had newer ones long before they opened the array now.
fn told_by(own: &Label, newest: &Label) -> MemberSet {
    if is_older_image(own, newest) { MemberSet::EMPTY } else { own.in_sync() }
}

/// Whether a member's own label lacks more than the one update that may have been under way.
const fn is_older_image(own: &Label, newest: &Label) -> bool {
    own.epoch + 1 < newest.epoch
}

impl State {
    fn new(layout: Layout, label: Label, members: Vec<Member>) -> Self {
        let stripes = StripeTable::new(layout.format, layout.logical, layout.physical);
        let pages = narrow(stripes.pages());
        Self {
            suspects: Suspects::default(),
            found_label: label.clone(),
            label,
            members,
            labels: labels::LabelUpdates::default(),
            life: Life::Opening,
            failed: None,
            shown_state: ArrayState::Optimal,
            requests: BTreeSet::new(),
            operations: BTreeSet::new(),
            next_operation: 0,
            gathering: Gathering::new(u64::from(layout.stripe_blocks() * state::BLOCK)),
            waits: waits::Waits::default(),
            ios: Slab::new(),
            joinable_reads: joined::JoinableReads::default(),
            outbox: io::Outbox::default(),
            completed: VecDeque::new(),
            events: VecDeque::new(),
            waiters: tasks::Waiters::default(),
            spawned: SyncWrapper::new(Vec::new()),
            locks: locks::Locks::default(),
            log: log::LogState::default(),
            dirty: dirty::DirtyBlocks::default(),
            stripe_images: alloc::vec![tables::Images::default(); pages],
            stripes,
            sums: sums::SumCache::default(),
            limbo: Vec::new(),
            discards: VecDeque::new(),
            allocated: 0,
            streams: VecDeque::new(),
            list: snapshots::FoundList::default(),
            checkpoint: Checkpoint {
                generation: 0,
                counter: 0,
                round: 0,
                tail: Link::default(),
                stripe_images: 0,
                list: ListName::NONE,
            },
            round: 1,
            rounds: round::Rounds::default(),
            space: space::Space::default(),
            tables_locked: false,
            repairs: BTreeSet::new(),
            succession: None,
            successions: 0,
            stuck: carry::StuckBlocks::new(),
            forgers: MemberSet::EMPTY,
            recovered_upto: None,
            scrub: scrub::Scrub::default(),
            slow: MemberSet::EMPTY,
            probed: MemberSet::EMPTY,
            catch_up_allowance: None,
            rules: RuleCounts::default(),
            layout: Arc::new(layout),
        }
    }

    fn capacity(&self) -> u64 {
        self.layout.geometry.capacity()
    }
}
