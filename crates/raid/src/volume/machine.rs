//! The machines of both kinds of arrays, with a log and without, as a volume sees them: what they
//! ask for in the same words.
//!
//! An array with a log that is read only is told that everything it writes has been written: it was
//! closed, so that it reads nothing of what it writes.

use alloc::{boxed::Box, string::String, vec::Vec};
use core::mem;

use netraid_block::{Buf, IoError, Op, RequestFlags, SgList};

use super::interface::Event;
use crate::{
    array::{
        Action as PlainAction, ArrayMachine, Background, BufferId, CommandError,
        Event as PlainEvent, IoId, MemberCaps, RequestId, UserRequest as PlainRequest,
    },
    assemble::CleanClose,
    executor::Executor,
    geometry::Geometry,
    label::{Label, Uuid},
    logged::{
        Action as LoggedAction, Event as LoggedEvent, FoundMember, LoggedArray,
        MemberCaps as LoggedCaps, NewDevice, ScrubEvent, ScrubStatus, Shortage, Usage,
        UserRequest as LoggedRequest,
    },
    member::{ArrayState, MemberIndex, MemberSet, MemberState},
};

/// The machine of an array, in a volume.
///
/// [`ArrayMachine`] and [`LoggedArray`] say what each method does.
#[allow(missing_docs, reason = "the methods of the machines of arrays")]
pub trait Machine {
    fn has_log(&self) -> bool;
    fn is_read_only(&self) -> bool;
    fn geometry(&self) -> &Geometry;
    fn member_state(&self, member: MemberIndex) -> MemberState;
    fn failure(&self) -> Option<IoError>;

    /// Whether members that are away can be set aside together, and come back by themselves. One of an array
    /// without a log would be rebuilt from the beginning, and not by itself: there only a request tells.
    fn can_lose_all(&self, members: MemberSet) -> bool;
    fn check_replace(&self, member: MemberIndex) -> Result<(), CommandError>;

    /// Whether a device must not be handed over yet.
    fn labels_pending(&self) -> bool;

    fn handle_request(
        &mut self,
        id: RequestId,
        what: (Op, u64, u64),
        flags: RequestFlags,
        data: SgList,
    );
    fn handle_io_done(&mut self, io: IoId, result: Result<SgList, IoError>);

    /// Sets a member aside by command.
    fn handle_fail(&mut self, member: MemberIndex) -> Result<(), CommandError>;

    /// A member has lost what was not stable on it, or does not answer.
    fn handle_gone(&mut self, member: MemberIndex, reason: &str);

    /// Takes a device in a member's place; with a `label` it is the member's own, which is back.
    fn handle_device(
        &mut self,
        member: MemberIndex,
        uuid: Uuid,
        caps: MemberCaps,
        label: Option<Label>,
    ) -> Result<(), CommandError>;

    /// Nobody asked for anything for a while: what is in the log is brought home.
    fn handle_idle(&mut self);

    /// What was written a while ago is made stable, also when nobody asks for it.
    fn handle_age(&mut self);
    fn handle_close(&mut self);

    /// The machine that can be scrubbed, if it may write.
    fn scrubbed(&mut self) -> Option<&mut LoggedArray>;

    /// What is to be sent or ended next; what is to be computed has been.
    fn poll_action(&mut self) -> Option<Do>;
    fn poll_event(&mut self) -> Option<Told>;
}

/// What a machine asks for.
#[derive(Debug)]
pub enum Do {
    /// Send a request to a member.
    Submit {
        /// To be given back.
        io: IoId,
        /// Which member.
        member: MemberIndex,
        /// What to do.
        op: Op,
        /// First byte on it.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Must be stable when it ends.
        fua: bool,
        /// What to write.
        data: SgList,
    },
    /// End a user's request.
    Complete {
        /// Which.
        request: RequestId,
        /// Its end.
        result: Result<SgList, IoError>,
    },
}

impl Do {
    fn submit(io: IoId, member: MemberIndex, op: Op, (offset, len): (u64, u64)) -> Self {
        Self::Submit { io, member, op, offset, len, fua: false, data: SgList::new() }
    }

    fn write(io: IoId, member: MemberIndex, offset: u64, fua: bool, data: SgList) -> Self {
        Self::Submit { io, member, op: Op::Write, offset, len: data.len() as u64, fua, data }
    }
}

/// What happened in a machine.
#[derive(Debug)]
pub enum Told {
    /// It takes requests.
    Opened,
    /// It asks for nothing more: everything is stable and the labels say so, or it failed.
    Closed,
    /// A member's state changed; or its device that is back was not taken, and it is as before.
    Member {
        /// Which.
        member: MemberIndex,
        /// To what.
        state: MemberState,
        /// Why.
        reason: String,
    },
    /// What concerns people and logs alone.
    Other(Event),
}

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
    /// Rebuild, catch-up or resync, when there is one.
    pub progress: Option<Progress>,
    /// What is in its log and on its members, when it has one.
    pub usage: Option<Usage>,
    /// What it lacks space for.
    pub shortage: Option<Shortage>,
    /// The scrub that runs, or the last one; and the bytes of all members in a stripe of it.
    pub scrub: Option<(ScrubStatus, u64)>,
}

/// How far a rebuild, catch-up or resync is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Which.
    pub kind: &'static str,
    /// The member that is rebuilt, or catches up.
    pub member: Option<MemberIndex>,
    /// Stripes that need no more work.
    pub done: u64,
    /// All stripes.
    pub total: u64,
}

/// An array without a log, and what computes for it.
#[derive(Debug)]
pub struct Plain {
    machine: ArrayMachine,
    executor: Executor,
    /// By number of the member request: buffers that a read fills.
    reads: Vec<Vec<(BufferId, u32)>>,
}

/// An array with a log.
#[derive(Debug)]
pub struct Logged {
    machine: LoggedArray,
    read_only: bool,
    geometry: Geometry,
    max_io_len: u32,
}

impl Plain {
    /// A machine that was opened, and the executor for its buffers.
    #[must_use]
    pub const fn new(machine: ArrayMachine, executor: Executor) -> Self {
        Self { machine, executor, reads: Vec::new() }
    }

    fn progress(&self) -> Option<Progress> {
        let progress = self.machine.progress()?;
        let (kind, member) = match progress.background {
            Background::Resync => ("resync", None),
            Background::Rebuild(member) => ("rebuild", Some(member)),
        };
        Some(Progress { kind, member, done: progress.done, total: progress.total })
    }
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

    fn progress(&self, label: &Label) -> Option<Progress> {
        let total = u64::from(self.machine.usage().physical);
        let catches_up = |entry: &&(MemberIndex, u32)| {
            self.machine.member_state(entry.0) == MemberState::CatchingUp
        };
        let members = label.geometry.member_indices();
        let entries: Vec<(MemberIndex, u32)> =
            members.map(|one| (one, label.members[one.as_usize()].lack.caught_up)).collect();
        let (member, done) = entries.iter().find(catches_up)?;
        let done = u64::from(*done).min(total);
        Some(Progress { kind: "catch_up", member: Some(*member), done, total })
    }
}

impl Machine for Plain {
    fn has_log(&self) -> bool {
        false
    }

    fn is_read_only(&self) -> bool {
        self.machine.is_read_only()
    }

    fn geometry(&self) -> &Geometry {
        self.machine.geometry()
    }

    fn member_state(&self, member: MemberIndex) -> MemberState {
        self.machine.label().state(member)
    }

    fn failure(&self) -> Option<IoError> {
        self.machine.failure().cloned()
    }

    fn can_lose_all(&self, _members: MemberSet) -> bool {
        false
    }

    fn check_replace(&self, member: MemberIndex) -> Result<(), CommandError> {
        self.machine.check_replace(member)
    }

    fn labels_pending(&self) -> bool {
        self.machine.labels_pending()
    }

    fn handle_request(
        &mut self,
        id: RequestId,
        (op, offset, len): (Op, u64, u64),
        RequestFlags { fua, no_unmap }: RequestFlags,
        data: SgList,
    ) {
        if op == Op::Write {
            self.executor.begin_request(id, data);
        }
        self.machine.handle_request(id, PlainRequest { op, offset, len, fua, no_unmap });
    }

    fn handle_io_done(&mut self, io: IoId, result: Result<SgList, IoError>) {
        let parts = self.reads.get_mut(io.0).map(mem::take).unwrap_or_default();
        let result = result.map(|data| {
            if !parts.is_empty() {
                self.executor.fill(&parts, &data);
            }
        });
        self.machine.handle_io_done(io, result);
    }

    fn handle_fail(&mut self, member: MemberIndex) -> Result<(), CommandError> {
        self.machine.handle_fail(member)
    }

    // Its members are set aside when requests fail, or by command.
    fn handle_gone(&mut self, _member: MemberIndex, _reason: &str) {}

    fn handle_device(
        &mut self,
        member: MemberIndex,
        uuid: Uuid,
        caps: MemberCaps,
        _label: Option<Label>,
    ) -> Result<(), CommandError> {
        self.machine.handle_replace(member, uuid, caps)
    }

    fn handle_idle(&mut self) {}

    fn handle_age(&mut self) {}

    fn handle_close(&mut self) {
        self.machine.handle_close();
    }

    fn scrubbed(&mut self) -> Option<&mut LoggedArray> {
        None
    }

    fn poll_action(&mut self) -> Option<Do> {
        while let Some(action) = self.machine.poll_action() {
            return Some(match action {
                PlainAction::Xor { into, len, sources } => {
                    self.executor.xor(into, len, &sources);
                    continue;
                }
                PlainAction::Free { buffer } => {
                    self.executor.free(buffer);
                    continue;
                }
                PlainAction::Read { io, member, offset, parts } => {
                    let len = parts.iter().map(|(_, len)| u64::from(*len)).sum();
                    if self.reads.len() <= io.0 {
                        self.reads.resize_with(io.0 + 1, Vec::new);
                    }
                    self.reads[io.0] = parts;
                    Do::submit(io, member, Op::Read, (offset, len))
                }
                PlainAction::Write { io, member, offset, fua, sources } => {
                    Do::write(io, member, offset, fua, self.executor.gather(&sources))
                }
                PlainAction::WriteMeta { io, member, offset, bytes } => {
                    Do::write(io, member, offset, true, Buf::copy_from(&bytes).into())
                }
                PlainAction::Flush { io, member } => Do::submit(io, member, Op::Flush, (0, 0)),
                PlainAction::Discard { io, member, offset, len } => {
                    Do::submit(io, member, Op::Discard, (offset, len))
                }
                PlainAction::Complete { request, result } => {
                    let result = result.map(|sources| self.executor.gather(&sources));
                    self.executor.end_request(request);
                    Do::Complete { request, result }
                }
            });
        }
        None
    }

    fn poll_event(&mut self) -> Option<Told> {
        Some(match self.machine.poll_event()? {
            PlainEvent::Opened => Told::Opened,
            PlainEvent::Closed => Told::Closed,
            PlainEvent::Member { member, state, reason } => Told::Member { member, state, reason },
            PlainEvent::State(state) => Told::Other(Event::State(state)),
            PlainEvent::Repaired { member, offset } => {
                Told::Other(Event::Repaired { member, offset })
            }
            PlainEvent::Finished(Background::Resync) => Told::Other(Event::Resynced),
            PlainEvent::Finished(Background::Rebuild(member)) => {
                Told::Other(Event::Rebuilt(member))
            }
            PlainEvent::Incomplete { background, stripes } => {
                Told::Other(Event::Incomplete { background, stripes })
            }
        })
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
        self.machine.handle_request(id, LoggedRequest { op, offset, len, fua, data });
    }

    fn handle_io_done(&mut self, io: IoId, result: Result<SgList, IoError>) {
        self.machine.handle_io_done(io, result);
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
                LoggedAction::Read { io, member, offset, len } => {
                    Do::submit(io, member, Op::Read, (offset, len.into()))
                }
                LoggedAction::Write { io, member, offset, data, fua } => {
                    Do::write(io, member, offset, fua, data)
                }
                LoggedAction::Flush { io, member } => Do::submit(io, member, Op::Flush, (0, 0)),
                LoggedAction::Discard { io, member, offset, len } => {
                    Do::submit(io, member, Op::Discard, (offset, len))
                }
                LoggedAction::Complete { request, result } => Do::Complete { request, result },
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
            LoggedEvent::Opened => Told::Opened,
            LoggedEvent::Closed => Told::Closed,
            LoggedEvent::Member { member, state, reason } => Told::Member { member, state, reason },
            LoggedEvent::State(state) => Told::Other(Event::State(state)),
            LoggedEvent::Repaired { member, offset, .. } => {
                Told::Other(Event::Repaired { member, offset })
            }
            LoggedEvent::CaughtUp(member) => Told::Other(Event::Rebuilt(member)),
            LoggedEvent::Notice(text) => Told::Other(Event::Notice(text)),
            LoggedEvent::Lost { member, offset, len } => {
                let reason = "more of its row is lost than the other members can give";
                Told::Other(Event::Unrepaired { member, offset, len: len.into(), reason })
            }
            LoggedEvent::Scrub(ScrubEvent::Unrepaired { member, offset, len, reason }) => {
                Told::Other(Event::Unrepaired { member, offset, len, reason })
            }
            LoggedEvent::Scrub(ScrubEvent::Ended(status)) => {
                let stripe_len = self.machine.scrub_stripe_len();
                Told::Other(Event::Scrubbed { status, stripe_len })
            }
        })
    }
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

    fn handle_io_done(&mut self, io: IoId, result: Result<SgList, IoError>) {
        either!(self, machine => machine.handle_io_done(io, result));
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
                progress: plain.progress(),
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
                    progress: logged.progress(&label),
                    usage: Some(usage),
                    shortage: logged.machine.shortage(),
                    scrub: logged.machine.scrub_status().map(|status| (status, stripe_len)),
                    label,
                }
            }
        }
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
