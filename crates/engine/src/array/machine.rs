//! The machines of both kinds of arrays, with a log and without, as the driver sees them: what they
//! ask for in the same words.
//!
//! An array with a log that is read only is told that everything it writes has been written: it was
//! closed, so that it reads nothing of what it writes.

use netraid_block::{Buf, IoError, Op, RequestFlags, SgList};
use netraid_raid::{
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
        MemberCaps as LoggedCaps, NewDevice, ScrubEvent, Shortage, UserRequest as LoggedRequest,
    },
    member::{ArrayState, MemberIndex, MemberSet, MemberState},
};

use super::Event;
use crate::control::{ArrayStatus, LogStatus, NoSpaceStatus, ProgressStatus, ScrubStatus};

/// Bytes of a block of the log.
const LOG_BLOCK: u64 = 4096;

/// What the driver is to do.
pub(super) enum Do {
    /// Send a request to a member.
    Submit { io: IoId, member: MemberIndex, op: Op, offset: u64, len: u64, fua: bool, data: SgList },
    /// End a user's request.
    Complete { request: RequestId, result: Result<SgList, IoError> },
}

impl Do {
    fn submit(io: IoId, member: MemberIndex, op: Op, (offset, len): (u64, u64)) -> Self {
        Self::Submit { io, member, op, offset, len, fua: false, data: SgList::new() }
    }

    fn write(io: IoId, member: MemberIndex, offset: u64, fua: bool, data: SgList) -> Self {
        Self::Submit { io, member, op: Op::Write, offset, len: data.len() as u64, fua, data }
    }
}

/// What happened in the machine.
pub(super) enum Told {
    Opened,
    Closed,
    Member { member: MemberIndex, state: MemberState, reason: String },
    State(ArrayState),
    Other(Event),
}

/// One of the two machines.
pub(super) enum Machine {
    Plain(Box<Plain>),
    Logged(Box<Logged>),
}

/// An array without a log, and what computes for it.
pub(super) struct Plain {
    machine: ArrayMachine,
    executor: Executor,
    /// By number of the member request: buffers that a read fills.
    reads: Vec<Vec<(BufferId, u32)>>,
}

/// An array with a log.
pub(super) struct Logged {
    machine: LoggedArray,
    read_only: bool,
    geometry: Geometry,
    max_io_len: u32,
}

impl Plain {
    pub(super) const fn new(machine: ArrayMachine, executor: Executor) -> Self {
        Self { machine, executor, reads: Vec::new() }
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
            PlainEvent::State(state) => Told::State(state),
            PlainEvent::Repaired { member, offset } => {
                Told::Other(Event::Repaired { member: member.0, offset })
            }
            PlainEvent::Finished(Background::Resync) => Told::Other(Event::Resynced),
            PlainEvent::Finished(Background::Rebuild(member)) => {
                Told::Other(Event::Rebuilt { member: member.0 })
            }
            PlainEvent::Incomplete { background, stripes } => {
                let member = match background {
                    Background::Resync => None,
                    Background::Rebuild(member) => Some(member.0),
                };
                Told::Other(Event::Incomplete { member, stripes })
            }
        })
    }

    fn progress(&self) -> Option<ProgressStatus> {
        let progress = self.machine.progress()?;
        let (kind, member) = match progress.background {
            Background::Resync => ("resync", None),
            Background::Rebuild(member) => ("rebuild", Some(member.0)),
        };
        let stripe_len = self.machine.geometry().stripe_data_len();
        Some(ProgressStatus {
            kind: kind.into(),
            member,
            done_bytes: progress.done * stripe_len,
            total_bytes: progress.total * stripe_len,
        })
    }
}

impl Logged {
    pub(super) fn new(machine: LoggedArray, read_only: bool, max_io_len: u32) -> Self {
        let geometry = machine.label().geometry;
        Self { machine, read_only, geometry, max_io_len }
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
            LoggedEvent::State(state) => Told::State(state),
            LoggedEvent::Repaired { member, offset, .. } => {
                Told::Other(Event::Repaired { member: member.0, offset })
            }
            LoggedEvent::CaughtUp(member) => Told::Other(Event::Rebuilt { member: member.0 }),
            LoggedEvent::Notice(text) => Told::Other(Event::Notice { text }),
            LoggedEvent::Lost { member, offset, len } => {
                let reason = "more of its row is lost than the other members can give";
                let len = len.into();
                Told::Other(Event::Unrepaired { member: member.0, offset, len, reason })
            }
            LoggedEvent::Scrub(ScrubEvent::Unrepaired { member, offset, len, reason }) => {
                Told::Other(Event::Unrepaired { member: member.0, offset, len, reason })
            }
            LoggedEvent::Scrub(ScrubEvent::Ended(status)) => {
                let scrub = super::scrub::shown(&status, self.machine.scrub_stripe_len());
                Told::Other(Event::Scrubbed { scrub })
            }
        })
    }

    fn progress(&self, label: &Label) -> Option<ProgressStatus> {
        let stripes = u64::from(self.machine.usage().physical);
        let catches_up = |entry: &&(MemberIndex, u32)| {
            self.machine.member_state(entry.0) == MemberState::CatchingUp
        };
        let members = label.geometry.member_indices();
        let entries: Vec<(MemberIndex, u32)> =
            members.map(|one| (one, label.members[one.as_usize()].lack.caught_up)).collect();
        let (member, done) = entries.iter().find(catches_up)?;
        let stripe_len = self.geometry.stripe_data_len();
        Some(ProgressStatus {
            kind: "catch_up".into(),
            member: Some(member.0),
            done_bytes: u64::from(*done).min(stripes) * stripe_len,
            total_bytes: stripes * stripe_len,
        })
    }
}

impl Machine {
    pub(super) const fn has_log(&self) -> bool {
        matches!(self, Self::Logged(_))
    }

    /// What is to be sent or ended next; what is to be computed has been.
    pub(super) fn poll_action(&mut self) -> Option<Do> {
        match self {
            Self::Plain(plain) => plain.poll_action(),
            Self::Logged(logged) => logged.poll_action(),
        }
    }

    pub(super) fn poll_event(&mut self) -> Option<Told> {
        match self {
            Self::Plain(plain) => plain.poll_event(),
            Self::Logged(logged) => logged.poll_event(),
        }
    }

    pub(super) fn handle_request(
        &mut self,
        id: RequestId,
        (op, offset, len): (Op, u64, u64),
        flags: RequestFlags,
        data: SgList,
    ) {
        let fua = flags.fua;
        match self {
            Self::Plain(plain) => {
                if op == Op::Write {
                    plain.executor.begin_request(id, data);
                }
                let no_unmap = flags.no_unmap;
                let user = PlainRequest { op, offset, len, fua, no_unmap };
                plain.machine.handle_request(id, user);
            }
            Self::Logged(logged) => {
                let user = LoggedRequest { op, offset, len, fua, data };
                logged.machine.handle_request(id, user);
            }
        }
    }

    pub(super) fn handle_io_done(&mut self, io: IoId, result: Result<SgList, IoError>) {
        match self {
            Self::Plain(plain) => {
                let parts = plain.reads.get_mut(io.0).map(std::mem::take).unwrap_or_default();
                let result = result.map(|data| {
                    if !parts.is_empty() {
                        plain.executor.fill(&parts, &data);
                    }
                });
                plain.machine.handle_io_done(io, result);
            }
            Self::Logged(logged) => logged.machine.handle_io_done(io, result),
        }
    }

    /// Sets a member aside by command.
    pub(super) fn handle_fail(&mut self, member: MemberIndex) -> Result<(), CommandError> {
        match self {
            Self::Plain(plain) => plain.machine.handle_fail(member),
            Self::Logged(_) if self.is_read_only() => Err(CommandError::NotWritable(READ_ONLY)),
            Self::Logged(logged) => {
                logged.machine.check_lose(member)?;
                logged.machine.handle_gone(member, "set aside by command");
                Ok(())
            }
        }
    }

    /// A member has lost what was not stable on it.
    pub(super) fn handle_gone(&mut self, member: MemberIndex, reason: &str) {
        if let Self::Logged(logged) = self {
            logged.machine.handle_gone(member, reason);
        }
    }

    /// Whether members that are away can be set aside together, and come back by themselves. One of an array
    /// without a log would be rebuilt from the beginning, and not by itself: there only a request tells.
    pub(super) fn can_lose_all(&self, members: MemberSet) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Logged(logged) => !logged.read_only && logged.machine.can_lose_all(members),
        }
    }

    pub(super) fn check_replace(&self, member: MemberIndex) -> Result<(), CommandError> {
        match self {
            Self::Plain(plain) => plain.machine.check_replace(member),
            Self::Logged(_) if self.is_read_only() => Err(CommandError::NotWritable(READ_ONLY)),
            Self::Logged(logged) => logged.machine.check_lose(member),
        }
    }

    /// Takes a device in a member's place; with a `label` it is the member's own, which is back.
    pub(super) fn handle_device(
        &mut self,
        member: MemberIndex,
        uuid: Uuid,
        caps: MemberCaps,
        label: Option<Label>,
    ) -> Result<(), CommandError> {
        let logged = match self {
            Self::Plain(plain) => return plain.machine.handle_replace(member, uuid, caps),
            Self::Logged(logged) => logged,
        };
        let state = logged.machine.member_state(member);
        if state.is_live() {
            return Err(CommandError::StillLive(member, state.name()));
        }
        let caps = logged_caps(caps);
        match label {
            Some(label) => {
                logged.machine.handle_return(member, FoundMember { caps, label, checkpoint: None })
            }
            None => logged.machine.handle_replace(member, NewDevice { uuid, caps }),
        }
        Ok(())
    }

    /// Whether a device must not be handed over yet.
    pub(super) const fn labels_pending(&self) -> bool {
        match self {
            Self::Plain(plain) => plain.machine.labels_pending(),
            // The machine waits by itself.
            Self::Logged(_) => false,
        }
    }

    pub(super) fn handle_close(&mut self) {
        match self {
            Self::Plain(plain) => plain.machine.handle_close(),
            Self::Logged(logged) => logged.machine.handle_close(),
        }
    }

    /// Nobody asked for anything for a while: what is in the log is brought home.
    pub(super) fn handle_idle(&mut self) {
        if let Self::Logged(logged) = self {
            let usage = logged.machine.usage();
            if usage.dirty_blocks > 0 || usage.log_used > 0 {
                logged.machine.handle_idle();
            }
        }
    }

    /// What was written a while ago is made stable, also when nobody asks for it.
    pub(super) fn handle_age(&mut self) {
        if let Self::Logged(logged) = self {
            logged.machine.handle_age();
        }
    }

    /// The machine that can be scrubbed, if it may write.
    pub(super) fn scrubbed(&mut self) -> Option<&mut LoggedArray> {
        match self {
            Self::Logged(logged) if !logged.read_only => Some(&mut logged.machine),
            Self::Logged(_) | Self::Plain(_) => None,
        }
    }

    /// How the scrub is that runs, or how the last one ended.
    fn scrub_status(&self) -> Option<ScrubStatus> {
        let Self::Logged(logged) = self else { return None };
        let status = logged.machine.scrub_status()?;
        Some(super::scrub::shown(&status, logged.machine.scrub_stripe_len()))
    }

    pub(super) fn label(&self) -> Label {
        match self {
            Self::Plain(plain) => plain.machine.label().clone(),
            Self::Logged(logged) => logged.machine.label(),
        }
    }

    /// How the array was closed, once it is; nothing when its labels do not say so.
    pub(super) fn clean_close(&self) -> Option<CleanClose> {
        match self.is_read_only() {
            true => None,
            false => CleanClose::of(&self.label()),
        }
    }

    pub(super) const fn geometry(&self) -> &Geometry {
        match self {
            Self::Plain(plain) => plain.machine.geometry(),
            Self::Logged(logged) => &logged.geometry,
        }
    }

    pub(super) fn member_state(&self, member: MemberIndex) -> MemberState {
        match self {
            Self::Plain(plain) => plain.machine.label().state(member),
            Self::Logged(logged) => logged.machine.member_state(member),
        }
    }

    pub(super) fn failure(&self) -> Option<IoError> {
        match self {
            Self::Plain(plain) => plain.machine.failure().cloned(),
            Self::Logged(logged) => logged.machine.failure(),
        }
    }

    pub(super) const fn is_read_only(&self) -> bool {
        match self {
            Self::Plain(plain) => plain.machine.is_read_only(),
            Self::Logged(logged) => logged.read_only,
        }
    }

    pub(super) const fn max_io_len(&self) -> u32 {
        match self {
            Self::Plain(plain) => plain.machine.max_io_len(),
            Self::Logged(logged) => logged.max_io_len,
        }
    }

    /// What it lacks space for.
    fn no_space(&self) -> Option<NoSpaceStatus> {
        let Self::Logged(logged) = self else { return None };
        let Shortage { members, blocks } = logged.machine.shortage()?;
        let members = members.iter().map(|member| member.0).collect();
        Some(NoSpaceStatus { members, waiting_bytes: blocks * LOG_BLOCK })
    }

    /// How the array is, but for its members and what is read ahead.
    pub(super) fn status(&self) -> ArrayStatus {
        let label = self.label();
        let geometry = label.geometry;
        let (state, used, progress, log) = match self {
            Self::Plain(plain) => {
                let used = plain.machine.written_stripes();
                (plain.machine.state(), used, plain.progress(), None)
            }
            Self::Logged(logged) => {
                let usage = logged.machine.usage();
                let log = LogStatus {
                    size_bytes: usage.log_blocks * LOG_BLOCK,
                    used_bytes: usage.log_used * LOG_BLOCK,
                    dirty_bytes: usage.dirty_blocks * LOG_BLOCK,
                    round: usage.round,
                    mapped_bytes: u64::from(usage.mapped) * logged.geometry.stripe_data_len(),
                };
                let progress = logged.progress(&label);
                (logged.machine.state(), usage.mapped.into(), progress, Some(log))
            }
        };
        ArrayStatus {
            kind: "array".to_owned(),
            name: label.name.clone(),
            uuid: super::lock::hex(&label.array_uuid),
            level: geometry.level().number(),
            state: state.name().into(),
            failure: self.failure().map(|failure| failure.to_string()),
            read_only: self.is_read_only(),
            capacity_bytes: geometry.capacity(),
            used_bytes: used * geometry.stripe_data_len(),
            chunk_bytes: geometry.chunk_len(),
            block_bytes: geometry.block_len(),
            generation: label.generation,
            epoch: label.epoch,
            log,
            no_space: self.no_space(),
            read_ahead: None,
            scrub: self.scrub_status(),
            progress,
            members: Vec::new(),
        }
    }
}

/// How a machine that may not write says so.
const READ_ONLY: &str = "open for reading only";

/// The same in the words of the machine with a log.
pub(super) const fn logged_caps(caps: MemberCaps) -> LoggedCaps {
    let MemberCaps { volatile_cache, can_discard } = caps;
    LoggedCaps { volatile_cache, can_discard }
}
