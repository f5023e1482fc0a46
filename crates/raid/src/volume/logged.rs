//! The machine of an array with a log in a volume.
//!
//! One that is read only is told that everything it writes has been written: it was closed, so that it reads nothing
//! of what it writes.

use alloc::vec::Vec;

use netraid_block::{IoError, Op, RequestFlags, SgList};

use super::{
    either::Progress,
    interface::Event,
    machine::{Do, Machine, Told},
};
use crate::{
    array::{CommandError, IoId, MemberCaps, RequestId},
    geometry::Geometry,
    label::{Label, Uuid},
    log::Position,
    logged::{
        Action, AtomicWrite, CatchUp, Event as MachineEvent, FoundMember, LoggedArray,
        MemberCaps as LoggedCaps, NewDevice, ScrubEvent, Unstable, UserRequest,
    },
    member::{ArrayState, MemberIndex, MemberSet, MemberState},
    pages::PAIR_LEN,
    stripes::Walked,
};

/// An array with a log.
#[derive(Debug)]
pub struct Logged {
    pub(super) machine: LoggedArray,
    read_only: bool,
    geometry: Geometry,
    pub(super) max_io_len: u32,
}

impl Logged {
    /// The machine itself.
    #[must_use]
    pub const fn array(&self) -> &LoggedArray {
        &self.machine
    }

    /// A machine that was opened, with requests to members of so many bytes at most.
    #[must_use]
    pub fn new(machine: LoggedArray, read_only: bool, max_io_len: u32) -> Self {
        let geometry = machine.label().geometry;
        Self { machine, read_only, geometry, max_io_len }
    }
}

impl Machine for Logged {
    fn has_log(&self) -> bool {
        true
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn member_state(&self, member: MemberIndex) -> MemberState {
        self.machine.member_state(member)
    }

    fn failure(&self) -> Option<IoError> {
        self.machine.failure()
    }

    fn can_lose_all(&self, members: MemberSet) -> bool {
        !self.read_only && self.machine.can_lose_all(members)
    }

    fn check_replace(&self, member: MemberIndex) -> Result<(), CommandError> {
        match self.read_only {
            true => Err(CommandError::NotWritable(READ_ONLY)),
            false => self.machine.check_lose(member),
        }
    }

    // It waits by itself.
    fn labels_pending(&self) -> bool {
        false
    }

    fn handle_request(
        &mut self,
        id: RequestId,
        (op, offset, len): (Op, u64, u64),
        RequestFlags { fua, .. }: RequestFlags,
        data: SgList,
    ) {
        self.machine.handle_request(id, UserRequest { op, offset, len, fua, data });
    }

    fn atomic_blocks_max(&self) -> u32 {
        self.machine.atomic_blocks_max()
    }

    fn handle_atomic_write(&mut self, id: RequestId, write: AtomicWrite) {
        self.machine.handle_atomic_write(id, write);
    }

    fn handle_io_done(&mut self, io: IoId, result: Result<SgList, IoError>) {
        self.machine.handle_io_done(io, result);
    }

    fn handle_late(&mut self, io: IoId) -> u64 {
        self.machine.handle_late(io)
    }

    fn handle_slow(&mut self, members: MemberSet) {
        self.machine.handle_slow(members);
    }

    fn handle_probe(&mut self, member: MemberIndex) {
        self.machine.handle_probe(member);
    }

    fn state(&self) -> ArrayState {
        self.machine.state()
    }

    fn can_be_opened_anew(&self) -> bool {
        !self.read_only
    }

    fn is_excluded(&self, member: MemberIndex) -> bool {
        !self.machine.stable_label().state(member).is_live()
    }

    fn unstable(&self) -> Result<Unstable, IoError> {
        self.machine.unstable()
    }

    fn recovered_upto(&self) -> Option<Position> {
        self.machine.recovered_upto()
    }

    fn handle_fail(&mut self, member: MemberIndex) -> Result<(), CommandError> {
        if self.read_only {
            return Err(CommandError::NotWritable(READ_ONLY));
        }
        self.machine.check_lose(member)?;
        self.machine.handle_gone(member, "set aside by command");
        Ok(())
    }

    fn handle_gone(&mut self, member: MemberIndex, reason: &str) {
        self.machine.handle_gone(member, reason);
    }

    fn handle_device(
        &mut self,
        member: MemberIndex,
        uuid: Uuid,
        caps: MemberCaps,
        label: Option<Label>,
    ) -> Result<(), CommandError> {
        let state = self.machine.member_state(member);
        if state.is_live() {
            return Err(CommandError::StillLive(member, state.name()));
        }
        let caps = logged_caps(caps);
        match label {
            Some(label) => {
                self.machine.handle_return(member, FoundMember { caps, label, checkpoint: None });
            }
            None => self.machine.handle_replace(member, NewDevice { uuid, caps }),
        }
        Ok(())
    }

    fn handle_successor(
        &mut self,
        member: MemberIndex,
        uuid: Uuid,
        caps: MemberCaps,
    ) -> Result<(), CommandError> {
        self.machine.handle_successor(member, NewDevice { uuid, caps: logged_caps(caps) })
    }

    fn handle_successor_gone(&mut self, member: MemberIndex) {
        self.machine.handle_successor_gone(member);
    }

    fn identity(&self, member: MemberIndex) -> Option<(Uuid, Uuid)> {
        Some(self.machine.identity(member))
    }

    fn handle_overtaken(&mut self, error: IoError) {
        self.machine.handle_overtaken(error);
    }

    fn holder(&self) -> Option<(Uuid, u64)> {
        let label = self.machine.label();
        Some((label.holder.engine_id, label.generation))
    }

    fn progress(&self) -> Vec<Progress> {
        let chunk_len = u64::from(self.geometry.chunk_len());
        let shown = |kind, member: MemberIndex, walked: Walked| {
            let bytes = |stripes, pages| stripes * chunk_len + pages * PAIR_LEN;
            Progress {
                kind,
                member: Some(member),
                done: bytes(walked.done, walked.extras_done),
                total: bytes(walked.total, walked.extras),
                lost: 0,
            }
        };
        let caught_up = |member: MemberIndex| {
            let CatchUp { lacks_all, walked } = self.machine.catch_up(member)?;
            Some(shown(if lacks_all { "rebuild" } else { "catch_up" }, member, walked))
        };
        let copied = self.machine.copied().map(|(member, walked)| shown("copy", member, walked));
        self.geometry.member_indices().filter_map(caught_up).chain(copied).collect()
    }

    fn handle_idle(&mut self) {
        let usage = self.machine.usage();
        if usage.dirty_blocks > 0 || usage.log_used > 0 {
            self.machine.handle_idle();
        }
    }

    fn handle_age(&mut self) {
        self.machine.handle_age();
    }

    fn handle_close(&mut self) {
        self.machine.handle_close();
    }

    fn scrubbed(&mut self) -> Option<&mut LoggedArray> {
        (!self.read_only).then_some(&mut self.machine)
    }

    fn poll_action(&mut self) -> Option<Do> {
        loop {
            let action = match self.machine.poll_action()? {
                Action::Read { io, member, offset, len } => {
                    Do::submit(io, member, Op::Read, (offset, len.into()))
                }
                Action::Write { io, member, offset, data, fua, to } => {
                    let (op, len) = (Op::Write, data.len() as u64);
                    Do::Submit { io, member, op, offset, len, fua, data, to }
                }
                Action::Flush { io, member } => Do::submit(io, member, Op::Flush, (0, 0)),
                Action::Discard { io, member, offset, len } => {
                    Do::submit(io, member, Op::Discard, (offset, len))
                }
                Action::Complete { request, result } => Do::Complete { request, result },
            };
            if let Do::Submit { io, op, .. } = action
                && self.read_only
                && op != Op::Read
            {
                self.machine.handle_io_done(io, Ok(SgList::new()));
                continue;
            }
            return Some(action);
        }
    }

    fn poll_event(&mut self) -> Option<Told> {
        Some(match self.machine.poll_event()? {
            MachineEvent::Opened => Told::Opened,
            MachineEvent::Closed => Told::Closed,
            MachineEvent::Member { member, state, reason } => {
                Told::Member { member, state, reason }
            }
            MachineEvent::State(state) => Told::Other(Event::State(state)),
            MachineEvent::Repaired { member, offset, .. } => {
                Told::Other(Event::Repaired { member, offset })
            }
            MachineEvent::Found { member, fault, count } => Told::Found { member, fault, count },
            MachineEvent::CaughtUp(member) => Told::Other(Event::Rebuilt(member)),
            MachineEvent::Notice(text) => Told::Other(Event::Notice(text)),
            MachineEvent::Lost { member, offset, len } => {
                let reason = "more of its row is lost than the other members can give";
                Told::Other(Event::Unrepaired { member, offset, len: len.into(), reason })
            }
            MachineEvent::Scrub(ScrubEvent::Unrepaired { member, offset, len, reason }) => {
                Told::Other(Event::Unrepaired { member, offset, len, reason })
            }
            MachineEvent::Scrub(ScrubEvent::Ended(status)) => {
                let stripe_len = self.machine.scrub_stripe_len();
                Told::Other(Event::Scrubbed { status, stripe_len })
            }
        })
    }
}

/// How a machine that may not write says so.
const READ_ONLY: &str = "open for reading only";

/// The same in the words of the machine with a log.
#[must_use]
pub const fn logged_caps(caps: MemberCaps) -> LoggedCaps {
    let MemberCaps { volatile_cache, can_discard } = caps;
    LoggedCaps { volatile_cache, can_discard }
}
