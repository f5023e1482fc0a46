//! The machine of an array without a log in a volume, with what computes for it.

use alloc::vec::Vec;
use core::mem;

use netraid_block::{Buf, IoError, Op, RequestFlags, SgList};

use super::{
    either::Progress,
    interface::Event,
    machine::{Do, Machine, Told},
};
use crate::{
    array::{
        Action, ArrayMachine, Background, BufferId, CommandError, Event as MachineEvent, IoId,
        MemberCaps, RequestId, UserRequest,
    },
    executor::Executor,
    geometry::Geometry,
    label::{Label, Uuid},
    logged::LoggedArray,
    member::{ArrayState, MemberIndex, MemberSet, MemberState},
};

/// An array without a log, and what computes for it.
#[derive(Debug)]
pub struct Plain {
    pub(super) machine: ArrayMachine,
    executor: Executor,
    /// By number of the member request: buffers that a read fills.
    reads: Vec<Vec<(BufferId, u32)>>,
}

impl Plain {
    /// The machine itself.
    #[must_use]
    pub const fn array(&self) -> &ArrayMachine {
        &self.machine
    }

    /// A machine that was opened, and the executor for its buffers.
    #[must_use]
    pub const fn new(machine: ArrayMachine, executor: Executor) -> Self {
        Self { machine, executor, reads: Vec::new() }
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

    fn state(&self) -> ArrayState {
        self.machine.state()
    }

    fn failure(&self) -> Option<IoError> {
        self.machine.failure().cloned()
    }

    fn can_lose_all(&self, members: MemberSet) -> bool {
        self.machine.can_lose_all(members)
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
        self.machine.handle_request(id, UserRequest { op, offset, len, fua, no_unmap });
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
    fn handle_gone(&mut self, member: MemberIndex, reason: &str) {
        self.machine.handle_gone(member, reason);
    }

    fn handle_device(
        &mut self,
        member: MemberIndex,
        uuid: Uuid,
        caps: MemberCaps,
        _label: Option<Label>,
    ) -> Result<(), CommandError> {
        self.machine.handle_replace(member, uuid, caps)
    }

    fn identity(&self, member: MemberIndex) -> Option<(Uuid, Uuid)> {
        let label = self.machine.label();
        Some((label.array_uuid, label.members[member.as_usize()].uuid))
    }

    fn handle_overtaken(&mut self, error: IoError) {
        self.machine.handle_overtaken(error);
    }

    fn holder(&self) -> Option<(Uuid, u64)> {
        let label = self.machine.label();
        Some((label.holder.engine_id, label.generation))
    }

    fn progress(&self) -> Vec<Progress> {
        let geometry = self.machine.geometry();
        let shown = |one: &crate::array::Progress| {
            let (kind, member, stripe_len) = match one.background {
                Background::Resync => ("resync", None, geometry.stripe_data_len()),
                Background::Rebuild(member) => {
                    ("rebuild", Some(member), geometry.chunk_len().into())
                }
            };
            let [done, total, lost] =
                [one.done, one.total, one.lost].map(|stripes| stripes * stripe_len);
            Progress { kind, member, done, total, lost }
        };
        self.machine.progress().iter().map(shown).collect()
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
                Action::Xor { into, len, sources } => {
                    self.executor.xor(into, len, &sources);
                    continue;
                }
                Action::Free { buffer } => {
                    self.executor.free(buffer);
                    continue;
                }
                Action::Read { io, member, offset, parts } => {
                    let len = parts.iter().map(|(_, len)| u64::from(*len)).sum();
                    if self.reads.len() <= io.0 {
                        self.reads.resize_with(io.0 + 1, Vec::new);
                    }
                    self.reads[io.0] = parts;
                    Do::submit(io, member, Op::Read, (offset, len))
                }
                Action::Write { io, member, offset, fua, sources } => {
                    Do::write(io, member, offset, fua, self.executor.gather(&sources))
                }
                Action::WriteMeta { io, member, offset, bytes } => {
                    Do::write(io, member, offset, true, Buf::copy_from(&bytes).into())
                }
                Action::Flush { io, member } => Do::submit(io, member, Op::Flush, (0, 0)),
                Action::Discard { io, member, offset, len } => {
                    Do::submit(io, member, Op::Discard, (offset, len))
                }
                Action::Complete { request, result } => {
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
            MachineEvent::Opened => Told::Opened,
            MachineEvent::Closed => Told::Closed,
            MachineEvent::Member { member, state, reason } => {
                Told::Member { member, state, reason }
            }
            MachineEvent::State(state) => Told::Other(Event::State(state)),
            MachineEvent::Repaired { member, offset } => {
                Told::Other(Event::Repaired { member, offset })
            }
            MachineEvent::Finished(Background::Resync) => Told::Other(Event::Resynced),
            MachineEvent::Finished(Background::Rebuild(member)) => {
                Told::Other(Event::Rebuilt(member))
            }
            MachineEvent::Incomplete { background, stripes } => {
                Told::Other(Event::Incomplete { background, stripes })
            }
        })
    }
}
