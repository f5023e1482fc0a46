//! Either of the two kinds of arrays, and how an array is.

use alloc::{boxed::Box, vec::Vec};

use netraid_block::{IoError, Op, RequestFlags, SgList};

use super::{
    logged::Logged,
    machine::{Do, Machine, Told},
    plain::Plain,
};
use crate::{
    array::{CommandError, IoId, MemberCaps, RequestId},
    assemble::CleanClose,
    geometry::Geometry,
    label::{Label, Uuid},
    log::Position,
    logged::{AtomicWrite, LoggedArray, ScrubStatus, Shortage, Unstable, Usage},
    member::{ArrayState, MemberIndex, MemberSet, MemberState},
};

/// One of the two machines.
#[derive(Debug)]
pub enum PlainOrLogged {
    /// Of an array without a log.
    Plain(Box<Plain>),
    /// Of an array with a log.
    Logged(Box<Logged>),
}

/// How an array is.
#[derive(Debug, Clone)]
pub struct Status {
    /// Its label.
    pub label: Label,
    /// What it can do.
    pub state: ArrayState,
    /// Why it failed.
    pub failure: Option<IoError>,
    /// It is open for reading only.
    pub is_read_only: bool,
    /// Stripes that hold data.
    pub used: u64,
    /// What is in its log and on its members, when it has one.
    pub usage: Option<Usage>,
    /// What it lacks space for.
    pub shortage: Option<Shortage>,
    /// The scrub that runs, or the last one; and the bytes of all members in a stripe of it.
    pub scrub: Option<(ScrubStatus, u64)>,
}

/// How far a rebuild, catch-up, copy or resync is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Which.
    pub kind: &'static str,
    /// The member that is rebuilt, catches up, or is copied.
    pub member: Option<MemberIndex>,
    /// Bytes that need no more work: of the member, or of the volume for a resync.
    pub done: u64,
    /// All bytes that are to be done, as far as it is known what is mapped and what the member lacks.
    pub total: u64,
    /// Bytes of the member that the other members cannot give: while there are any, this does not end.
    pub lost: u64,
}

/// Calls a method of whichever machine it is.
macro_rules! either {
    ($either:expr, $machine:ident => $call:expr) => {
        match $either {
            PlainOrLogged::Plain($machine) => $call,
            PlainOrLogged::Logged($machine) => $call,
        }
    };
}

impl Machine for PlainOrLogged {
    fn has_log(&self) -> bool {
        either!(self, machine => machine.has_log())
    }

    fn is_read_only(&self) -> bool {
        either!(self, machine => machine.is_read_only())
    }

    fn geometry(&self) -> &Geometry {
        either!(self, machine => machine.geometry())
    }

    fn member_state(&self, member: MemberIndex) -> MemberState {
        either!(self, machine => machine.member_state(member))
    }

    fn failure(&self) -> Option<IoError> {
        either!(self, machine => machine.failure())
    }

    fn can_lose_all(&self, members: MemberSet) -> bool {
        either!(self, machine => machine.can_lose_all(members))
    }

    fn check_replace(&self, member: MemberIndex) -> Result<(), CommandError> {
        either!(self, machine => machine.check_replace(member))
    }

    fn labels_pending(&self) -> bool {
        either!(self, machine => machine.labels_pending())
    }

    fn handle_request(
        &mut self,
        id: RequestId,
        what: (Op, u64, u64),
        flags: RequestFlags,
        data: SgList,
    ) {
        either!(self, machine => machine.handle_request(id, what, flags, data));
    }

    fn atomic_blocks_max(&self) -> u32 {
        either!(self, machine => machine.atomic_blocks_max())
    }

    fn handle_atomic_write(&mut self, id: RequestId, write: AtomicWrite) {
        either!(self, machine => machine.handle_atomic_write(id, write));
    }

    fn handle_io_done(&mut self, io: IoId, result: Result<SgList, IoError>) {
        either!(self, machine => machine.handle_io_done(io, result));
    }

    fn handle_late(&mut self, io: IoId) -> u64 {
        either!(self, machine => machine.handle_late(io))
    }

    fn handle_slow(&mut self, members: MemberSet) {
        either!(self, machine => machine.handle_slow(members));
    }

    fn handle_probe(&mut self, member: MemberIndex) {
        either!(self, machine => machine.handle_probe(member));
    }

    fn state(&self) -> ArrayState {
        either!(self, machine => Machine::state(&**machine))
    }

    fn can_be_opened_anew(&self) -> bool {
        either!(self, machine => machine.can_be_opened_anew())
    }

    fn is_excluded(&self, member: MemberIndex) -> bool {
        either!(self, machine => machine.is_excluded(member))
    }

    fn unstable(&self) -> Result<Unstable, IoError> {
        either!(self, machine => machine.unstable())
    }

    fn recovered_upto(&self) -> Option<Position> {
        either!(self, machine => machine.recovered_upto())
    }

    fn handle_fail(&mut self, member: MemberIndex) -> Result<(), CommandError> {
        either!(self, machine => machine.handle_fail(member))
    }

    fn handle_gone(&mut self, member: MemberIndex, reason: &str) {
        either!(self, machine => machine.handle_gone(member, reason));
    }

    fn handle_device(
        &mut self,
        member: MemberIndex,
        uuid: Uuid,
        caps: MemberCaps,
        label: Option<Label>,
    ) -> Result<(), CommandError> {
        either!(self, machine => machine.handle_device(member, uuid, caps, label))
    }

    fn handle_successor(
        &mut self,
        member: MemberIndex,
        uuid: Uuid,
        caps: MemberCaps,
    ) -> Result<(), CommandError> {
        either!(self, machine => machine.handle_successor(member, uuid, caps))
    }

    fn handle_successor_gone(&mut self, member: MemberIndex) {
        either!(self, machine => machine.handle_successor_gone(member));
    }

    fn identity(&self, member: MemberIndex) -> Option<(Uuid, Uuid)> {
        either!(self, machine => machine.identity(member))
    }

    fn handle_overtaken(&mut self, error: IoError) {
        either!(self, machine => machine.handle_overtaken(error));
    }

    fn holder(&self) -> Option<(Uuid, u64)> {
        either!(self, machine => machine.holder())
    }

    fn progress(&self) -> Vec<Progress> {
        either!(self, machine => machine.progress())
    }

    fn handle_idle(&mut self) {
        either!(self, machine => machine.handle_idle());
    }

    fn handle_age(&mut self) {
        either!(self, machine => machine.handle_age());
    }

    fn handle_close(&mut self) {
        either!(self, machine => machine.handle_close());
    }

    fn scrubbed(&mut self) -> Option<&mut LoggedArray> {
        either!(self, machine => machine.scrubbed())
    }

    fn poll_action(&mut self) -> Option<Do> {
        either!(self, machine => machine.poll_action())
    }

    fn poll_event(&mut self) -> Option<Told> {
        either!(self, machine => machine.poll_event())
    }
}

impl PlainOrLogged {
    /// What its members' labels say.
    #[must_use]
    pub fn label(&self) -> Label {
        match self {
            Self::Plain(plain) => plain.machine.label().clone(),
            Self::Logged(logged) => logged.machine.label(),
        }
    }

    /// The last label that was stable on all members that took part; before there is one, the one that was found.
    #[must_use]
    pub fn stable_label(&self) -> Label {
        match self {
            Self::Plain(plain) => plain.machine.label().clone(),
            Self::Logged(logged) => logged.machine.stable_label(),
        }
    }

    /// How the array was closed, once it is; nothing when its labels do not say so.
    #[must_use]
    pub fn clean_close(&self) -> Option<CleanClose> {
        match self.is_read_only() {
            true => None,
            false => CleanClose::of(&self.label()),
        }
    }

    /// Most bytes of a request to a member.
    #[must_use]
    pub const fn max_io_len(&self) -> u32 {
        match self {
            Self::Plain(plain) => plain.machine.max_io_len(),
            Self::Logged(logged) => logged.max_io_len,
        }
    }

    /// How the array is.
    #[must_use]
    pub fn status(&self) -> Status {
        let label = self.label();
        let (failure, is_read_only) = (self.failure(), self.is_read_only());
        match self {
            Self::Plain(plain) => Status {
                state: plain.machine.state(),
                failure,
                is_read_only,
                used: plain.machine.written_stripes(),
                usage: None,
                shortage: None,
                scrub: None,
                label,
            },
            Self::Logged(logged) => {
                let usage = logged.machine.usage();
                let stripe_len = logged.machine.scrub_stripe_len();
                Status {
                    state: logged.machine.state(),
                    failure,
                    is_read_only,
                    used: usage.mapped.into(),
                    usage: Some(usage),
                    shortage: logged.machine.shortage(),
                    scrub: logged.machine.scrub_status().map(|status| (status, stripe_len)),
                    label,
                }
            }
        }
    }
}
