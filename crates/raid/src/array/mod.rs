//! The array machine: users' requests in, member requests out.
//!
//! Dialect: `handle_*` takes an input, [`ArrayMachine::poll_action`] and
//! [`ArrayMachine::poll_event`] give outputs until `None`. Actions are executed in the order in
//! which they are polled. Every member request given out must come back through
//! [`ArrayMachine::handle_io_done`] exactly once, within the device's own deadline: the machine
//! has no clock and waits as long as a device does. Every user request ends in exactly one
//! [`Action::Complete`].
//!
//! Invariants:
//! - a write or flush is acknowledged only when the labels of all live members say which members
//!   did not take part in it;
//! - rows of a stripe are changed, or reconstructed from, only under a lock on those rows;
//! - a stripe's written bit is stable on all live members before its first write is acknowledged.
//!
//! Does not do: close the write hole (a crash between the writes of a stripe leaves parity to be
//! resynced, and needs all data members for that), checksums, hedged reads.
//!
//! One operation works on one stripe. Its way: lock, read what parity or a missing member needs,
//! compute, write, commit the written bit when the stripe is new, unlock. What fails on the way
//! is planned again without the member that failed.

mod action;
mod background;
mod commit;
mod io;
mod locks;
mod membership;
mod op;
mod read;
mod requests;
mod step;
mod write;

use alloc::{
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};

use netraid_block::IoError;
use slab::Slab;

pub use action::{
    Action, Background, BufferId, Event, IoId, Progress, RequestId, Source, UserRequest,
};
use background::BackgroundWork;
use commit::Commit;
use locks::Locks;
use membership::LabelUpdate;
use op::{Io, Op, OpId};
use requests::Request;

use crate::{
    assemble::Assembly,
    geometry::Geometry,
    label::{Closure, Holder, Label, Uuid},
    member::{ArrayState, MemberIndex, MemberSet, MemberState},
    written::WrittenBits,
};

/// What the machine must know of a member's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemberCaps {
    /// Completed writes may be lost before a flush.
    pub volatile_cache: bool,
    /// Discards give space back.
    pub can_discard: bool,
}

/// How to open an array.
#[derive(Debug, Clone)]
pub struct OpenConfig {
    /// Write nothing, not even labels.
    pub read_only: bool,
    /// Take parity as it is, although the array was not closed, where it cannot be made to match the data because
    /// members lack some of it, or have none.
    pub trust_parity: bool,
    /// Who opens it.
    pub holder: Holder,
    /// What each member's device can do; of no meaning for absent ones.
    pub caps: Vec<MemberCaps>,
    /// Largest member request in bytes; adjacent ones are merged up to it.
    pub max_io_len: u32,
}

/// Why a command to a running array was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// No such member.
    #[error("member {member} does not exist; the array has members 0 to {last}")]
    NoSuchMember {
        /// What was asked for.
        member: MemberIndex,
        /// The last one.
        last: u8,
    },
    /// The array would not survive it.
    #[error("member {0} cannot be set aside: the array could not serve without it")]
    Needed(MemberIndex),
    /// The member serves.
    #[error("member {0} is {1}; set it aside with `netraid fail` first")]
    StillLive(MemberIndex, &'static str),
    /// The labels do not say yet that the member is set aside.
    #[error("labels are being written; try again when that is done")]
    LabelsPending,
    /// The array is not open for writing.
    #[error("the array is {0}; nothing can be changed")]
    NotWritable(&'static str),
}

#[derive(Debug)]
struct Member {
    caps: MemberCaps,
    /// Raised whenever the member gets another device.
    incarnation: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Opening,
    Open,
    Closing,
    Closed,
}

/// An array, open.
#[derive(Debug)]
pub struct ArrayMachine {
    label: Label,
    geometry: Geometry,
    written: WrittenBits,
    /// Stripes whose check columns may not match; a byte holds eight.
    unsynced: Unsynced,
    members: Vec<Member>,
    read_only: bool,
    max_io_len: u32,
    life: Life,
    failed: Option<IoError>,
    shown_state: ArrayState,
    requests: BTreeMap<RequestId, Request>,
    /// Requests that are done but for the labels' word on who took part.
    held: Vec<RequestId>,
    ops: Slab<Op>,
    ready: VecDeque<OpId>,
    locks: Locks,
    ios: Slab<Io>,
    buffers: Slab<()>,
    commit: Commit,
    labels: LabelUpdate,
    background: BackgroundWork,
    immediate: VecDeque<Action>,
    outbox: io::Outbox,
    events: VecDeque<Event>,
}

/// Which written stripes have parity that may not match.
#[derive(Debug, Default)]
struct Unsynced {
    bits: Vec<u8>,
    count: u64,
}

impl Unsynced {
    fn contains(&self, stripe: u64) -> bool {
        self.count > 0
            && usize::try_from(stripe / 8)
                .ok()
                .and_then(|at| self.bits.get(at))
                .is_some_and(|byte| byte >> (stripe % 8) & 1 == 1)
    }

    fn set(&mut self, stripe: u64, value: bool) {
        let Ok(at) = usize::try_from(stripe / 8) else { return };
        if self.bits.len() <= at {
            if !value {
                return;
            }
            self.bits.resize(at + 1, 0);
        }
        let mask = 1 << (stripe % 8);
        match (self.bits[at] & mask != 0, value) {
            (false, true) => self.count += 1,
            (true, false) => self.count -= 1,
            _ => {}
        }
        self.bits[at] = if value { self.bits[at] | mask } else { self.bits[at] & !mask };
    }

    /// The first at or after `from`.
    fn next(&self, from: u64) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let mut at = from;
        loop {
            let byte = self.bits.get(usize::try_from(at / 8).ok()?)?;
            match byte >> (at % 8) {
                0 => at = (at / 8 + 1) * 8,
                rest => return Some(at + u64::from(rest.trailing_zeros())),
            }
        }
    }
}

/// Whether parity of a stripe can be made to match: its data and its parity are on members that are in sync, or have
/// got them back since they were away. Copies always can.
fn can_match(label: &Label, stripe: u64) -> bool {
    let geometry = &label.geometry;
    let data = geometry.data_columns();
    let entry = |column| &label.members[geometry.member_of(stripe, column).as_usize()];
    let is_there = |column| match entry(column).state {
        MemberState::InSync => true,
        MemberState::CatchingUp => stripe < entry(column).rebuilt_stripes,
        MemberState::Faulty | MemberState::Missing => false,
    };
    let all = data + geometry.check_columns();
    data == 1 || ((0..data).all(is_there) && (data..all).any(is_there))
}

impl ArrayMachine {
    /// Begins to open an array whose written bits were read from its members. Requests may come
    /// after [`Event::Opened`].
    ///
    /// # Panics
    /// When the configuration does not fit the array.
    #[must_use]
    pub fn open(assembly: &Assembly, written: WrittenBits, config: OpenConfig) -> Self {
        let mut label = assembly.label.clone();
        let geometry = label.geometry;
        assert!(!geometry.level().needs_log(), "parity of this level is not only an XOR");
        assert!(label.log.is_none(), "an array with a log is not written past it");
        assert_eq!(config.caps.len(), label.members.len(), "capabilities of every member");
        assert!(config.max_io_len >= geometry.chunk_len(), "largest request below a chunk");
        let background = BackgroundWork::of(&label);
        let mut unsynced = Unsynced::default();
        if assembly.unclean && geometry.check_columns() > 0 {
            let mut from = 0;
            while let Some(stripe) = written.next_written(from) {
                let is_trusted = config.trust_parity && !can_match(&label, stripe);
                unsynced.set(stripe, !is_trusted);
                from = stripe + 1;
            }
        }
        let unclean = assembly.unclean;
        if !config.read_only {
            label.generation += 1;
            label.holder = config.holder;
            label.closure = Closure::Open;
        }
        let members = config.caps.into_iter().map(|caps| Member { caps, incarnation: 0 }).collect();
        let mut machine = Self {
            label,
            geometry,
            written,
            unsynced,
            members,
            read_only: config.read_only,
            max_io_len: config.max_io_len,
            life: Life::Opening,
            failed: None,
            shown_state: ArrayState::Optimal,
            requests: BTreeMap::new(),
            held: Vec::new(),
            ops: Slab::new(),
            ready: VecDeque::new(),
            locks: Locks::default(),
            ios: Slab::new(),
            buffers: Slab::new(),
            commit: Commit::default(),
            labels: LabelUpdate::default(),
            background,
            immediate: VecDeque::new(),
            outbox: io::Outbox::default(),
            events: VecDeque::new(),
        };
        machine.begin_open(unclean);
        machine.run();
        machine
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.immediate.pop_front().or_else(|| self.outbox.pop())
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The array's shape.
    #[must_use]
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The label as it is, or is about to be, on all live members.
    #[must_use]
    pub const fn label(&self) -> &Label {
        &self.label
    }

    /// What the array can do.
    #[must_use]
    pub fn state(&self) -> ArrayState {
        let all = self.label.members.iter().all(|entry| entry.state == MemberState::InSync);
        match (&self.failed, all) {
            (Some(_), _) => ArrayState::Failed,
            (None, true) => ArrayState::Optimal,
            (None, false) => ArrayState::Degraded,
        }
    }

    /// Why the array failed, if it did.
    #[must_use]
    pub const fn failure(&self) -> Option<&IoError> {
        self.failed.as_ref()
    }

    /// Whether nothing may be written.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether labels are on their way to the members: the states shown are not stable yet.
    #[must_use]
    pub const fn labels_pending(&self) -> bool {
        self.labels.is_pending()
    }

    /// Largest member request in bytes.
    #[must_use]
    pub const fn max_io_len(&self) -> u32 {
        self.max_io_len
    }

    /// How many stripes hold data.
    #[must_use]
    pub const fn written_stripes(&self) -> u64 {
        self.written.count()
    }

    /// How far background work is: what is done now first, then what waits for it.
    #[must_use]
    pub fn progress(&self) -> Vec<Progress> {
        if self.read_only {
            return Vec::new();
        }
        self.background.progress(&self.geometry, &self.unsynced, self.written.count())
    }

    /// Users' requests that have not ended.
    #[must_use]
    pub fn requests_in_flight(&self) -> usize {
        self.requests.len()
    }

    /// Sets a member aside, as an administrator wishes.
    ///
    /// # Errors
    /// When there is no such member, or the array could not serve without it.
    pub fn handle_fail(&mut self, member: MemberIndex) -> Result<(), CommandError> {
        self.check_command(member)?;
        if !self.can_lose(member) {
            return Err(CommandError::Needed(member));
        }
        self.fail_member(member, "set aside by command");
        self.run();
        Ok(())
    }

    /// Whether all of `members` can be set aside together: the array is open, may write labels, has not failed, and the
    /// other members suffice.
    #[must_use]
    pub fn can_lose_all(&self, members: MemberSet) -> bool {
        let is_open = self.life == Life::Open && !self.read_only && self.failed.is_none();
        is_open && self.can_serve_without(members)
    }

    /// Sets a member aside that is away, or has lost what it had not made stable; the array fails where it cannot serve
    /// without that member.
    pub fn handle_gone(&mut self, member: MemberIndex, reason: &str) {
        self.fail_member(member, reason);
        self.run();
    }

    /// Whether [`Self::handle_replace`] would take a device in `member`'s place, after setting it
    /// aside if it is live.
    ///
    /// # Errors
    /// When there is no such member, it is needed, or nothing can be changed.
    pub fn check_replace(&self, member: MemberIndex) -> Result<(), CommandError> {
        self.check_command(member)?;
        if self.can_lose(member) { Ok(()) } else { Err(CommandError::Needed(member)) }
    }

    /// Takes a device in the place of a member that is not live, and rebuilds it. Its label and
    /// metadata are written from here; what is on it does not matter.
    ///
    /// What was on the old device may be needed until stable labels exclude it: so this waits for
    /// [`Self::labels_pending`] to end.
    ///
    /// # Errors
    /// When there is no such member, it is live, or labels are being written.
    pub fn handle_replace(
        &mut self,
        member: MemberIndex,
        uuid: Uuid,
        caps: MemberCaps,
    ) -> Result<(), CommandError> {
        self.check_command(member)?;
        let state = self.label.state(member);
        if state.is_live() {
            return Err(CommandError::StillLive(member, state.name()));
        }
        if self.labels.is_pending() {
            return Err(CommandError::LabelsPending);
        }
        self.begin_replace(member, uuid, caps);
        self.run();
        Ok(())
    }

    /// Ends background work and makes everything stable; [`Event::Closed`] follows, then nothing
    /// more is asked for. No request may be in flight or come after.
    ///
    /// # Panics
    /// When requests are in flight.
    pub fn handle_close(&mut self) {
        assert!(self.requests.is_empty(), "close with requests in flight");
        if matches!(self.life, Life::Opening | Life::Open) {
            self.life = Life::Closing;
            self.run();
        }
    }

    fn check_command(&self, member: MemberIndex) -> Result<(), CommandError> {
        if member.0 >= self.geometry.members() {
            return Err(CommandError::NoSuchMember { member, last: self.geometry.members() - 1 });
        }
        if self.failed.is_some() {
            return Err(CommandError::NotWritable("failed"));
        }
        if self.read_only {
            return Err(CommandError::NotWritable("open for reading only"));
        }
        match self.life {
            Life::Open => Ok(()),
            Life::Opening => Err(CommandError::NotWritable("opening")),
            Life::Closing | Life::Closed => Err(CommandError::NotWritable("closing")),
        }
    }

    /// Does everything that can be done without another input.
    fn run(&mut self) {
        loop {
            while let Some(id) = self.ready.pop_front() {
                self.step(id);
            }
            self.start_label_update();
            self.continue_commit();
            self.start_commit();
            self.release_held();
            self.continue_close();
            self.start_background();
            if self.ready.is_empty() {
                break;
            }
        }
        let state = self.state();
        if state != self.shown_state && self.life != Life::Opening {
            self.shown_state = state;
            self.events.push_back(Event::State(state));
        }
    }

    fn live_members(&self) -> MemberSet {
        self.geometry.member_indices().filter(|m| self.label.state(*m).is_live()).collect()
    }

    /// Whether `member`'s chunk of `stripe` can be read.
    fn is_readable(&self, member: MemberIndex, stripe: u64) -> bool {
        let entry = &self.label.members[member.as_usize()];
        match entry.state {
            MemberState::InSync => true,
            // A copy of a mirror counts when it is complete: until then others have all it has.
            MemberState::CatchingUp => {
                self.geometry.data_columns() > 1 && self.background.is_rebuilt(member, stripe)
            }
            MemberState::Faulty | MemberState::Missing => false,
        }
    }
}
