//! The logical unit machine: commands in, medium requests and responses out.
//!
//! Each command is one [`Task`], owned by the caller. [`LogicalUnit::handle_command`] begins it
//! and answers with its first [`Step`]; the caller does the step and reports back by
//! `handle_data_out` or `handle_medium_done`, until a step is `Respond`. A task that will not be
//! driven to its response is given back by `handle_abort`, after its medium request has ended.
//! Tasks of one logical unit may be under way in any number and order; each has at most one
//! medium request at a time.
//!
//! Invariant: no request leaves for a range that the CDB did not name, and none at all after a
//! check failed. The machine keeps no task itself and allocates nothing for reads and writes.

mod attention;
mod compare;
mod copy;
mod exclusion;
mod marker;
mod medium;
mod opcodes;
mod ready;
mod report;
mod reserve;
mod same;
mod sanitize;
mod task;
#[cfg(test)]
pub(crate) mod tests;
mod view;

use netraid_block::{DeviceInfo, ErrorKind, IoError, SgList};
use netraid_planted::{Planted, planted};

pub use self::attention::UnitAttention;
pub(crate) use self::exclusion::Slot as WriteSlot;
pub(crate) use self::report::report_luns;
pub use self::report::{decode_lun, encode_lun};
pub(crate) use self::task::{Rules, Stop};
use self::{
    attention::Attentions,
    exclusion::Exclusion,
    medium::{State, internal_failure},
    ready::Readiness,
    sanitize::Sanitizer,
    view::Views,
};
pub use self::{
    marker::{Marker, MarkerError, Method},
    sanitize::{Background, SanitizeState},
    task::{MediumRequest, Refusal, Response, Step, Task},
    view::View,
};
pub use crate::inquiry::Identity;
use crate::{
    cdb::{self, ByteCheck, Command, DataOut, Extent, table::Row},
    mode::{ModeMedium, ModeSettings},
    ports::Nexus,
    reservation::Reservations,
    sense::{Additional, Sense, SenseFormat, SenseKey, Status},
};

/// A [`Nexus`] while it is there, as the target node numbers it: one session of one initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NexusId(pub u64);

/// What a logical unit is made of.
#[derive(Debug, Clone)]
pub struct UnitConfig {
    /// The device behind it.
    pub info: DeviceInfo,
    /// Whether discarded bytes read as zeros.
    pub discard_zeroes: bool,
    /// Physical block in bytes: what smaller writes make the medium read first; no less than a
    /// logical block.
    pub physical_len: u32,
    /// Whether the medium can be ejected and loaded.
    pub removable: bool,
    /// Longest write, in bytes, that happens as a whole or not at all, whatever else reads and
    /// writes and whenever power fails; 0 when nothing is known of that.
    pub atomic_len: u32,
    /// Whether SANITIZE is supported: a [`Marker`] can be kept, or a restart leaves nothing of the
    /// medium.
    pub can_sanitize: bool,
    /// Who it says that it is.
    pub identity: Identity,
    /// Persistent reservations as they were kept, or none.
    pub reservations: Reservations,
}

/// One logical unit of a target.
#[derive(Debug)]
pub struct LogicalUnit {
    config: UnitConfig,
    views: Views,
    mode: ModeSettings,
    attentions: Attentions,
    exclusion: Exclusion,
    ready: Readiness,
    sanitize: Sanitizer,
    /// Whether some commands are refused because the medium cannot be used.
    blocked: bool,
    /// Holder of RESERVE (6) (SPC-2).
    reserved_by: Option<NexusId>,
    reservations: Reservations,
    /// A change of reservations is being stored.
    is_storing: bool,
    /// What is stored may not be what is in effect.
    store_is_uncertain: bool,
    /// PREEMPT AND ABORTs that wait for what they preempted.
    preempting: u32,
}

impl LogicalUnit {
    /// A logical unit as after power on.
    #[must_use]
    pub fn new(config: UnitConfig) -> Self {
        let mode = ModeSettings::new(config.info.volatile_cache);
        let reservations = config.reservations.clone();
        Self {
            config,
            views: Views::default(),
            mode,
            attentions: Attentions::default(),
            exclusion: Exclusion::default(),
            ready: Readiness::default(),
            sanitize: Sanitizer::default(),
            blocked: false,
            reserved_by: None,
            reservations,
            is_storing: false,
            store_is_uncertain: false,
            preempting: 0,
        }
    }

    /// Who is registered, and what is reserved.
    #[must_use]
    pub const fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    /// The nexus that holds it by RESERVE (6) or (10) (SPC-2).
    #[must_use]
    pub const fn reserved_by(&self) -> Option<NexusId> {
        self.reserved_by
    }

    /// The sessions that count on the logical unit, whether they have read and written yet or not: of
    /// nexuses that are registered with its persistent reservation, and the holder of RESERVE (6) or (10).
    /// A session with both is there twice; one that only asked about the logical unit is not.
    pub fn claimants(&self) -> impl Iterator<Item = NexusId> {
        self.reservations.sessions().chain(self.reserved_by)
    }

    /// Makes a nexus known; commands of others are answered with BUSY. The first command of a new
    /// one reports a power on, that of one that was lost and is remembered, the loss. False when
    /// 1024 others use the logical unit.
    pub fn add_nexus(&mut self, id: NexusId, nexus: &Nexus) -> bool {
        let added = self.attentions.add(id, nexus);
        if added {
            self.reservations.bind(nexus, id);
        }
        added
    }

    /// A nexus is lost (SAM-5, section 6.3.4), and its RESERVE with it.
    pub fn remove_nexus(&mut self, nexus: NexusId) {
        self.attentions.remove(nexus);
        self.forget_view(nexus);
        self.ready.forget(nexus);
        self.reservations.unbind(nexus);
        if self.reserved_by == Some(nexus) {
            self.reserved_by = None;
        }
    }

    /// Establishes a unit attention condition for all nexuses but `except`.
    pub fn raise(&mut self, attention: UnitAttention, except: Option<NexusId>) {
        self.attentions.raise(attention, except);
    }

    /// Establishes a unit attention condition for one nexus, if it is known.
    pub fn raise_for(&mut self, attention: UnitAttention, nexus: NexusId) {
        self.attentions.raise_for(attention, nexus);
    }

    pub(crate) fn clear_reported_luns(&mut self, nexus: NexusId) {
        self.attentions.clear(nexus, UnitAttention::ReportedLunsChanged);
    }

    /// LOGICAL UNIT RESET (SAM-5, section 6.3.3): settings and reservation are as after power on,
    /// and every nexus is told. Tasks are aborted by their owners.
    pub fn handle_reset(&mut self) {
        self.mode = ModeSettings::new(self.config.info.volatile_cache);
        self.reserved_by = None;
        self.ready.reset();
        self.settle_blocked();
        self.attentions.raise(UnitAttention::DeviceReset, None);
    }

    /// The device behind the logical unit is described anew; every nexus is told when its capacity
    /// changed (SBC-3, section 4.8). Requests beyond a smaller capacity are refused by the device.
    ///
    /// # Panics
    /// When the length of its blocks changed: block addresses would mean other bytes.
    pub fn handle_changed(&mut self, info: DeviceInfo) {
        let old = &self.config.info;
        assert_eq!(old.block_len, info.block_len, "the logical block of a unit changed");
        if old.capacity != info.capacity {
            self.attentions.raise(UnitAttention::CapacityDataChanged, None);
        }
        self.config.info = info;
    }

    /// Begins a command. `announced` is the number of bytes of data-out that the initiator said it
    /// will send, whatever the CDB says.
    pub fn handle_command(&mut self, nexus: NexusId, cdb: &[u8], announced: u32) -> (Task, Step) {
        let opcode = cdb.first().copied().unwrap_or(0);
        let mut task = Task { opcode, announced, ..Task::ended(nexus) };
        let step = match self.admit(nexus, cdb) {
            Ok((command, rules)) => {
                task.rules = rules;
                self.start(&mut task, command)
            }
            Err(response) => Step::Respond(response),
        };
        (task, step)
    }

    /// Reads a command, unless something keeps it from being acted upon: an unknown nexus, a
    /// unit attention condition, a reservation, its own fields.
    #[inline]
    pub(crate) fn admit(
        &mut self,
        nexus: NexusId,
        cdb: &[u8],
    ) -> Result<(Command, Rules), Response> {
        self.look_as(nexus);
        let Some(is_pending) = self.attentions.is_pending(nexus) else {
            return Err(Response::status(Status::Busy));
        };
        if is_pending && let Some(response) = self.report_attention(nexus, cdb) {
            return Err(response);
        }
        match cdb::parse_with_row(cdb) {
            Ok((_, _, access)) if self.conflicts(nexus, access) => {
                Err(Response::status(Status::ReservationConflict))
            }
            Ok((command, row, access)) => {
                let rules = Rules::new(row, access);
                match self.not_ready(rules).or_else(|| self.not_supported(row)) {
                    None => Ok((command, rules)),
                    Some(sense) => Err(self.check(&sense)),
                }
            }
            Err(_) if !self.supports_opcode(cdb.first().copied().unwrap_or(0)) => {
                let unknown = Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE);
                Err(self.check(&unknown))
            }
            Err(sense) => Err(self.check(&sense)),
        }
    }

    /// Why a command that others of this kind support is refused here.
    #[inline]
    fn not_supported(&self, row: &Row) -> Option<Sense> {
        if self.supports(row) {
            return None;
        }
        Some(if self.supports_opcode(row.opcode()) {
            // Its service action.
            Sense::invalid_cdb(1, Some(4))
        } else {
            Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE)
        })
    }

    /// Goes on with the data-out of a task: what came of the bytes that were asked for. When the
    /// initiator sent less, a plain write takes the whole blocks of it.
    /// What a reservation that came meanwhile keeps out does not reach the medium any more.
    pub fn handle_data_out(&mut self, task: &mut Task, data: SgList) -> Step {
        self.look_as(task.nexus);
        let conflicts = self.conflicts(task.nexus, task.rules.access)
            && !planted(Planted::ReservationUncheckedAtData);
        let step = if conflicts {
            Step::Respond(Response::status(Status::ReservationConflict))
        } else {
            self.with_data(task, data)
        };
        self.settle(task, step)
    }

    /// Goes on with a task whose first request, `request`, was kept back for a while: it is not
    /// submitted any more when a reservation, or the medium, keeps the task out by now.
    pub fn handle_kept_back(&mut self, task: &mut Task, request: MediumRequest) -> Step {
        self.look_as(task.nexus);
        let step = if self.conflicts(task.nexus, task.rules.access) {
            Step::Respond(Response::status(Status::ReservationConflict))
        } else if let Some(sense) = self.not_ready(task.rules) {
            Step::Respond(self.check(&sense))
        } else {
            Step::Submit(request)
        };
        self.settle(task, step)
    }

    /// Goes on with the end of a task's medium request. A command of several requests ends with
    /// RESERVATION CONFLICT before the next one when a reservation came meanwhile.
    pub fn handle_medium_done(&mut self, task: &mut Task, result: Result<SgList, IoError>) -> Step {
        self.look_as(task.nexus);
        let step = match result {
            Ok(data) => {
                let step = self.medium_done(task, data);
                self.step_of(step)
            }
            Err(error) => self.medium_failed(task, &error),
        };
        let goes_on = matches!(step, Step::Submit(_));
        let step = if goes_on && self.conflicts(task.nexus, task.rules.access) {
            Step::Respond(Response::status(Status::ReservationConflict))
        } else {
            step
        };
        self.settle(task, step)
    }

    /// Ends a task whose medium request is not to be submitted.
    pub fn handle_refusal(&mut self, task: &mut Task, refusal: Refusal) -> Response {
        self.release(task);
        match refusal {
            Refusal::AccessDenied => self.check(&Sense::illegal(Additional::ACCESS_DENIED)),
            Refusal::Busy => Response::status(Status::Busy),
            Refusal::Gone => self.check(&Sense::illegal(Additional::LOGICAL_UNIT_NOT_SUPPORTED)),
        }
    }

    /// Gives a task back that gets no response. Its medium request has ended, or was never
    /// submitted.
    pub fn handle_abort(&mut self, mut task: Task) {
        if matches!(task.state, State::Store(_)) {
            self.forget_change();
        }
        self.release(&mut task);
    }

    /// A task that responds has ended, and holds nothing more.
    fn settle(&mut self, task: &mut Task, step: Step) -> Step {
        match &step {
            Step::Respond(_) => self.release(task),
            Step::DataOut { .. }
            | Step::Submit(_)
            | Step::SubmitTo { .. }
            | Step::Wait
            | Step::Persist(_)
            | Step::Abort { .. } => {}
        }
        step
    }

    fn release(&mut self, task: &mut Task) {
        if let State::Wait { order } = task.state {
            self.cancel_order(order);
        }
        if matches!(task.state, State::Preempt) {
            assert!(self.preempting > 0, "a preemption ends that did not begin");
            self.preempting -= 1;
        }
        task.state = State::Ended;
        if let Some(slot) = task.slot.take() {
            self.exclusion.leave(slot);
        }
    }

    /// The response that reports the gravest unit attention condition, unless the command is one
    /// that leaves it pending, known or not (SAM-5, section 5.14).
    #[cold]
    fn report_attention(&mut self, nexus: NexusId, cdb: &[u8]) -> Option<Response> {
        let first = cdb.first().and_then(|opcode| cdb::table::rows(*opcode).first());
        if first.is_some_and(|row| !row.tells_attention) {
            return None;
        }
        self.attentions.take(nexus).map(|attention| self.check(&attention.sense()))
    }

    /// Why a command is refused while the medium cannot be used.
    fn not_ready(&self, rules: Rules) -> Option<Sense> {
        if !self.blocked {
            return None;
        }
        if let Some(sense) = self.sanitize.refusal(rules.while_sanitizing) {
            return Some(sense);
        }
        if rules.needs_medium { self.ready.refusal() } else { None }
    }

    fn settle_blocked(&mut self) {
        self.blocked = !self.ready.is_ready() || self.sanitize.is_active();
    }

    fn start(&mut self, task: &mut Task, command: Command) -> Step {
        let step = match command {
            Command::Read { extent, fua } => self.start_read(task, extent, fua),
            Command::DataOut(out) => self.start_data_out(task, out),
            Command::Report(report) => {
                self.report(task.nexus, report).map(Step::Respond).map_err(Stop::from)
            }
            Command::GetLbaStatus { lba, allocation_len } => {
                self.start_lba_status(task, lba, allocation_len)
            }
            Command::SynchronizeCache { extent } => self.synchronize_cache(task, extent),
            Command::PreFetch { extent } => self.pre_fetch(extent),
            Command::StartStopUnit(request) => self.start_stop(task, request),
            Command::PreventAllowMediumRemoval { prevent } => {
                Ok(self.prevent_allow(task.nexus, prevent))
            }
            Command::Reserve => self.reserve(task.nexus),
            Command::Release => self.unreserve(task.nexus),
            Command::PersistentReserveIn(request) => self.reserve_in(request),
            // The target device drives these; a logical unit knows no other.
            Command::ExtendedCopy { .. } | Command::ReceiveCopyResults { .. } => {
                Err(internal_failure().into())
            }
        };
        let step = self.step_of(step);
        self.settle(task, step)
    }

    fn start_data_out(&mut self, task: &mut Task, out: DataOut) -> Result<Step, Stop> {
        match out {
            DataOut::Write { extent, .. } => self.start_write(task, out, extent, 0),
            DataOut::WriteAndVerify { extent, check } => {
                // What is read back; without a comparison the data-out is gone by then.
                let held = if check == ByteCheck::Compare { extent.blocks } else { 0 };
                self.start_write(task, out, extent, held)
            }
            DataOut::OrWrite { extent, .. } => {
                // What it reads, and what it makes of that.
                self.start_write(task, out, extent, extent.blocks.saturating_mul(2))
            }
            DataOut::WriteAtomic { extent, boundary, fua } => {
                self.start_write_atomic(task, extent, boundary, fua)
            }
            DataOut::Verify { extent, check } => self.start_verify(task, extent, check),
            DataOut::WriteSame { extent, unmap, no_data_out } => {
                self.start_write_same(task, extent, unmap, no_data_out)
            }
            DataOut::CompareAndWrite { extent, fua } => {
                self.start_compare_and_write(task, extent, fua)
            }
            DataOut::Unmap { parameter_len } => self.start_unmap(task, parameter_len),
            DataOut::Sanitize(request) => self.start_sanitize(task, request),
            DataOut::PersistentReserveOut(out) => self.start_reserve_out(task, out),
            DataOut::ModeSelect { parameter_len: 0, .. } => Ok(respond_good()),
            DataOut::ModeSelect { parameter_len, .. } => {
                task.state = State::Collect(out);
                Ok(Step::DataOut { len: u32::from(parameter_len), memory: 0 })
            }
        }
    }

    fn step_of(&self, result: Result<Step, Stop>) -> Step {
        result.unwrap_or_else(|stop| Step::Respond(self.stop(&stop)))
    }

    pub(crate) fn stop(&self, stop: &Stop) -> Response {
        match stop {
            Stop::Check(sense) => self.check(sense),
            Stop::Status(status) => Response::status(*status),
        }
    }

    pub(crate) fn check(&self, sense: &Sense) -> Response {
        Response::check_in(sense, self.sense_format())
    }

    const fn sense_format(&self) -> SenseFormat {
        if self.mode.descriptor_sense { SenseFormat::Descriptor } else { SenseFormat::Fixed }
    }

    fn mode_select(&mut self, task: &mut Task, long: bool, list: &[u8]) -> Result<Step, Stop> {
        let changed = self.mode.select(long, list, self.mode_medium())?;
        if changed != self.mode {
            self.mode = changed;
            self.attentions.raise(UnitAttention::ModeParametersChanged, Some(task.nexus));
        }
        if self.must_write_through() {
            // Who knows of no cache asks for no flush any more: what is in it would never be
            // made stable. Also when it is off already: the flush may have failed then.
            return self.flush(task);
        }
        Ok(respond_good())
    }

    fn mode_medium(&self) -> ModeMedium {
        ModeMedium {
            write_protected: self.info().read_only || self.mode.software_write_protect,
            blocks: self.blocks(),
            block_len: self.info().block_len,
            cache_switchable: self.info().volatile_cache,
        }
    }

    fn blocks(&self) -> u64 {
        self.info().capacity / u64::from(self.info().block_len)
    }

    /// Longest transfer in blocks.
    fn transfer_max(&self) -> u32 {
        self.info().max_transfer_len / self.info().block_len
    }

    fn check_range(&self, extent: Extent) -> Result<(), Sense> {
        let end = extent.lba.checked_add(u64::from(extent.blocks));
        if end.is_none_or(|end| end > self.blocks()) {
            return Err(Sense::illegal(Additional::LBA_OUT_OF_RANGE));
        }
        Ok(())
    }

    fn check_writable(&self) -> Result<(), Sense> {
        let additional = if self.info().read_only {
            Additional::WRITE_PROTECTED
        } else if self.mode.software_write_protect {
            Additional::SOFTWARE_WRITE_PROTECTED
        } else {
            return Ok(());
        };
        Err(Sense::new(SenseKey::DataProtect, additional))
    }
}

fn respond_good() -> Step {
    Step::Respond(Response::status(Status::Good))
}

/// How the failure of a medium request is reported; the one place that maps [`ErrorKind`].
fn sense_of(error: ErrorKind, writing: bool) -> Option<Sense> {
    let medium = if writing { Additional::WRITE_ERROR } else { Additional::UNRECOVERED_READ_ERROR };
    let (key, additional) = match error {
        ErrorKind::OutOfRange => (SenseKey::IllegalRequest, Additional::LBA_OUT_OF_RANGE),
        ErrorKind::Unsupported => (SenseKey::IllegalRequest, Additional::INVALID_FIELD_IN_CDB),
        ErrorKind::ReadOnly => (SenseKey::DataProtect, Additional::WRITE_PROTECTED),
        ErrorKind::NoSpace => (SenseKey::DataProtect, Additional::SPACE_ALLOCATION_FAILED),
        ErrorKind::Medium | ErrorKind::Corrupt => (SenseKey::MediumError, medium),
        ErrorKind::Timeout => (SenseKey::AbortedCommand, Additional::COMMAND_TIMEOUT),
        ErrorKind::Aborted => (SenseKey::AbortedCommand, Additional::NONE),
        ErrorKind::Unreachable => {
            (SenseKey::HardwareError, Additional::LOGICAL_UNIT_COMMUNICATION_FAILURE)
        }
        // What this machine asks for is aligned and allowed: our own bug, not the initiator's.
        ErrorKind::Unaligned
        | ErrorKind::InvalidRequest
        | ErrorKind::Redundancy
        | ErrorKind::Device => (SenseKey::HardwareError, Additional::INTERNAL_TARGET_FAILURE),
        ErrorKind::Fenced => return None,
    };
    Some(Sense::new(key, additional))
}
