//! The commands of one connection on their way from the machine to the logical units, to devices, and back.

use alloc::vec::Vec;

use netraid_block::{IoError, SgList, narrow};
use netraid_iscsi_proto::{
    machine::TaskId,
    pdu::LunField,
    target::{ConnectionId, Outcome, Plan},
};
use netraid_planted::{Planted, planted};
use netraid_scsi::{
    Additional, MediumRequest, NexusId, Refusal, Response, Sense, Step,
    cdb::{self, CommandKind},
    unit::decode_lun,
};

use crate::{
    Service,
    outside::{Barred, Guest, Lun, Needs, Outside, Pacing, Place, Ticket},
    policy::{Access, Moment},
    slot::{At, Share, Slot, Stage, enter_other, leave_other},
};

impl<O: Outside> Service<O> {
    pub(crate) fn handle_command(
        &mut self,
        outside: &mut O,
        task: TaskId,
        lun: LunField,
        cdb: &[u8],
        data_out_max: u32,
    ) {
        let slot = &mut self.slots[task.index()];
        let is_free = matches!(slot.stage, Stage::Free) && !slot.has_entered;
        assert!(is_free, "{task:?} begins before it was released");
        if let Some(guest) = outside.guest() {
            slot.needs = Needs::of(cdb.first().copied().unwrap_or_default());
            if slot.needs != Needs::Nothing && guest.may(slot.needs).is_err() {
                let denied = Sense::illegal(Additional::ACCESS_DENIED);
                return self.respond(outside, task, Response::check(&denied));
            }
        }
        slot.kind = cdb.first().map_or(CommandKind::Other, |opcode| cdb::kind(*opcode));
        // The LUN is that of the unit, and is in use, as long as the units are held.
        let (mut units, served) = outside.units_and_lun(decode_lun(lun.0));
        let (scsi_task, step) = units.handle_command(self.nexus, lun.0, cdb, data_out_max);
        if slot.kind != CommandKind::Other
            && let Some(lun) = &served
            && self.used.get(usize::from(lun.number())) != Some(&lun.incarnation())
        {
            note_use(&mut self.used, lun, self.connection);
        }
        // Whatever becomes of what is asked now, the logical unit gets its task back.
        slot.stage = Stage::Begun(scsi_task, At::Unit);
        drop(units);
        slot.lun = served;
        self.plan(outside, task, step, data_out_max);
    }

    /// What a command takes before it goes on.
    #[inline]
    fn plan(&mut self, outside: &mut O, task: TaskId, step: Step, data_out_max: u32) {
        let (at, plan) = match step {
            Step::Respond(response) => return self.respond(outside, task, response),
            Step::DataOut { .. } | Step::Wait if self.is_intent_barred(outside, task) => return,
            Step::DataOut { len, memory } => {
                let data_out = len.min(data_out_max);
                self.slots[task.index()].data_out_len = narrow(data_out);
                (At::Data, Plan { data_out, data_out_total: u64::from(len), memory })
            }
            Step::Wait => (At::Background, Plan { data_out: 0, data_out_total: 0, memory: 0 }),
            Step::Submit(request) => {
                // Also of a read that comes after a flush.
                let memory = match &self.slots[task.index()].stage {
                    Stage::Begun(scsi_task, _) => scsi_task.read_len(),
                    Stage::Free | Stage::Answered(_) => 0,
                };
                let at = At::Request { request, is_kept_back: false };
                (at, Plan { data_out: 0, data_out_total: 0, memory })
            }
            Step::SubmitTo { .. } => unreachable!("{task:?} copies before its parameters came"),
            Step::Persist(_) | Step::Abort { .. } => {
                unreachable!("{task:?} changes reservations without its parameters")
            }
        };
        self.slots[task.index()].move_to(at);
        self.machine.handle_plan(task, plan);
        if let Stage::Begun(_, At::Request { is_kept_back, .. }) =
            &mut self.slots[task.index()].stage
        {
            *is_kept_back = self.machine.is_waiting(task);
        }
    }

    /// A task waits for its grant.
    #[cold]
    pub(crate) fn ask_grant(&mut self, outside: &O, task: TaskId, len: u32, executes: bool) {
        let Some(pacing) = outside.pacing() else {
            unreachable!("{task:?} asks for a grant of a target that is not paced")
        };
        self.asked = self.asked.wrapping_add(1);
        let (connection, number) = (self.connection, self.asked);
        let share = core::mem::replace(&mut self.slots[task.index()].share, Share::Asked(number));
        assert_eq!(share, Share::Nothing, "{task:?} asks for one grant at a time");
        pacing.ask(Ticket { connection, task, number, executes }, len);
    }

    /// What was granted goes on.
    pub(crate) fn take_grants(&mut self, outside: &O) {
        let Some(pacing) = outside.pacing() else { return };
        while let Some(Ticket { task, number, executes, .. }) = pacing.take() {
            let share = &mut self.slots[task.index()].share;
            if *share == Share::Asked(number) {
                *share = if executes { Share::Placed } else { Share::Nothing };
                self.machine.handle_grant(task);
            } else if executes {
                // It was withdrawn meanwhile.
                pacing.done();
            }
        }
    }

    /// The machine has all that a command needs.
    pub(crate) fn handle_submit(&mut self, outside: &mut O, task: TaskId) {
        let slot = &mut self.slots[task.index()];
        if slot.share != Share::Placed
            && let Some(pacing) = outside.pacing()
        {
            slot.share = Share::Placed;
            pacing.begun();
        }
        let Stage::Begun(scsi_task, at) = &mut slot.stage else {
            unreachable!("{task:?} was submitted without a command")
        };
        let step = match core::mem::replace(at, At::Unit) {
            // What was decided when the command came may not hold any more.
            At::Request { request, is_kept_back: true } => {
                outside.units().handle_kept_back(scsi_task, request)
            }
            At::Request { request, is_kept_back: false } => Step::Submit(request),
            At::Background => Step::Wait,
            At::Data
                if slot.needs != Needs::Nothing
                    && is_barred(outside, slot.needs)
                    && !planted(Planted::RightUnaskedAfterData) =>
            {
                let refusal = Refusal::AccessDenied;
                Step::Respond(outside.units().handle_refusal(scsi_task, refusal))
            }
            At::Data => {
                let data = slot.data_out.take().map(|data| data.freeze().into());
                let mut units = outside.units();
                if scsi_task.may_change_reservations()
                    && let Some(lun) = &slot.lun
                    && outside.node().is_ending(self.connection, lun.number())
                {
                    scsi_task.note_preempted();
                }
                units.handle_data_out(scsi_task, data.unwrap_or_default())
            }
            At::Device { .. }
            | At::Other { .. }
            | At::Store
            | At::Waiting
            | At::Preempting
            | At::Unit => unreachable!("{task:?} is submitted twice"),
        };
        self.go_on(outside, task, step);
    }

    /// What was done for a command has ended.
    pub(crate) fn take_end(
        &mut self,
        outside: &mut O,
        index: usize,
        result: Result<SgList, IoError>,
    ) {
        let (Some(task), Some(slot)) = (self.machine.task_at(index), self.slots.get_mut(index))
        else {
            return;
        };
        let Stage::Begun(scsi_task, at) = &mut slot.stage else {
            unreachable!("{task:?}: something ends of a command that has none under way")
        };
        let at = core::mem::replace(at, At::Unit);
        if let At::Other { lun, .. } = &at {
            leave_other(outside, lun);
            self.machine.handle_visit(task, None);
        }
        if let At::Device { appended } | At::Other { appended, .. } = &at
            && let (Some((before, end)), Err(_), Some(guest)) = (appended, &result, outside.guest())
        {
            guest.take_back(*before, *end);
        }
        let step = match at {
            At::Device { .. } | At::Other { .. } => {
                outside.units().handle_medium_done(scsi_task, result)
            }
            At::Waiting => {
                self.waiting.retain(|(_, waiting)| *waiting != task);
                outside.units().handle_medium_done(scsi_task, result)
            }
            At::Store => outside.units().handle_persisted(scsi_task, result.is_ok()),
            At::Request { .. } | At::Background | At::Data | At::Preempting | At::Unit => {
                unreachable!("{task:?}: something ends that was not begun")
            }
        };
        let is_more = matches!(step, Step::Submit(_) | Step::SubmitTo { .. });
        if is_more && self.machine.is_aborted(task) {
            // Nobody waits for what is still to be done: it is not begun.
            return self.machine.handle_outcome(task, Outcome::default());
        }
        self.go_on(outside, task, step);
    }

    fn go_on(&mut self, outside: &mut O, task: TaskId, step: Step) {
        match step {
            Step::Submit(request) => self.submit(outside, task, request),
            Step::SubmitTo { lun, request } => self.submit_to(outside, task, lun, request),
            Step::Wait => self.wait(outside, task),
            Step::Respond(response) => self.respond(outside, task, response),
            Step::Persist(bytes) => self.persist(outside, task, bytes),
            Step::Abort { nexuses } => self.preempt(outside, task, &nexuses),
            Step::DataOut { .. } => unreachable!("{task:?} asks for its data twice"),
        }
    }

    #[inline]
    fn submit(&mut self, outside: &mut O, task: TaskId, request: MediumRequest) {
        // It enters first: whoever keeps it off now waits for it, or is seen here.
        let slot = &mut self.slots[task.index()];
        let began = slot.enter(outside) || planted(Planted::ClosedGatePassed);
        if slot.is_guarded() && self.is_refused(outside, task, &request, began) {
            return;
        }
        let Some((place, appended)) = self.place(outside, task, &request) else { return };
        let slot = &mut self.slots[task.index()];
        slot.move_to(At::Device { appended });
        outside.submit(task, slot.lun.as_ref(), request, &place);
    }

    /// Waits for the background work of the command's LUN.
    #[cold]
    fn wait(&mut self, outside: &mut O, task: TaskId) {
        // It may have waited for its data, or for a grant, since it came; and nobody asks again when the logical unit begins.
        if is_barred(outside, self.slots[task.index()].needs) {
            return self.refuse(outside, task, Refusal::AccessDenied);
        }
        if self.is_intent_barred(outside, task) {
            return;
        }
        // That may take hours, and the devices do other things meanwhile.
        let slot = &mut self.slots[task.index()];
        slot.give_place_back(outside);
        slot.move_to(At::Waiting);
        if let Some(lun) = &slot.lun {
            self.waiting.push((lun.number(), task));
        }
        outside.wait(task, slot.lun.as_ref());
    }

    /// Submits a request of a copy to the LUN that it concerns.
    #[cold]
    fn submit_to(&mut self, outside: &mut O, task: TaskId, lun: u16, request: MediumRequest) {
        let slot = &mut self.slots[task.index()];
        slot.give_place_back(outside);
        let (op, offset, len) = (request.op, request.offset, request.len);
        let moment = Moment::BeforeRequest;
        let refusal = match outside.lun(lun) {
            None => Refusal::Gone,
            Some(lun) => {
                // As in `submit`.
                enter_other(outside, &lun);
                slot.move_to(At::Other { lun: lun.clone(), appended: None });
                let access = Access { initiator: outside.initiator(), op, offset, len, moment };
                match lun.refusal(&access, false) {
                    Some(refusal) => refusal,
                    None if !self.may_visit(outside, task, &lun) => Refusal::Gone,
                    None => {
                        let Some((place, moved)) = self.place(outside, task, &request) else {
                            return;
                        };
                        if let Stage::Begun(_, At::Other { appended, .. }) =
                            &mut self.slots[task.index()].stage
                        {
                            *appended = moved;
                        }
                        self.machine.handle_visit(task, Some(lun.number()));
                        return outside.submit(task, Some(&lun), request, &place);
                    }
                }
            }
        };
        self.refuse(outside, task, refusal);
    }

    /// Whether a LUN is still the one that a copy checked; it stays so for who has entered it.
    fn may_visit(&self, outside: &O, task: TaskId, lun: &O::Lun) -> bool {
        let Stage::Begun(scsi_task, _) = &self.slots[task.index()].stage else { return false };
        let mut units = outside.units();
        outside.is_current(lun) && units.may_visit(scsi_task, lun.number())
    }

    /// Stores reservations; the end comes when they are stable, or could not be stored.
    #[cold]
    fn persist(&mut self, outside: &mut O, task: TaskId, bytes: Vec<u8>) {
        let slot = &mut self.slots[task.index()];
        if !planted(Planted::StoreUncounted) {
            slot.enter(outside);
        }
        slot.move_to(At::Store);
        // The file of a LUN that leaves may be somebody else's next.
        let lun = slot.lun.as_ref().filter(|lun| !lun.is_leaving());
        outside.store(task, lun, bytes);
    }

    /// Aborts what the nexuses that a task preempted have under way.
    #[cold]
    fn preempt(&mut self, outside: &mut O, task: TaskId, nexuses: &[NexusId]) {
        let sessions: Vec<_> = nexuses.iter().map(|nexus| ConnectionId(nexus.0)).collect();
        let slot = &mut self.slots[task.index()];
        slot.move_to(At::Preempting);
        let Some(lun) = &slot.lun else { return };
        self.machine.handle_preempt(&mut outside.node(), task, lun.number(), &sessions);
        outside.wake_others();
    }

    pub(crate) fn handle_preempted(&mut self, outside: &mut O, task: TaskId) {
        let Stage::Begun(scsi_task, at) = &mut self.slots[task.index()].stage else { return };
        *at = At::Unit;
        let step = outside.units().handle_aborted(scsi_task);
        self.go_on(outside, task, step);
    }

    /// Ends a task whose next request gate or policy do not want. False when it may go on. `began`: an earlier request of
    /// it was at the device.
    #[cold]
    fn is_refused(
        &mut self,
        outside: &mut O,
        task: TaskId,
        request: &MediumRequest,
        began: bool,
    ) -> bool {
        let Some(lun) = &self.slots[task.index()].lun else { return false };
        let (op, offset, len) = (request.op, request.offset, request.len);
        let moment = Moment::BeforeRequest;
        let access = Access { initiator: outside.initiator(), op, offset, len, moment };
        let Some(refusal) = lun.refusal(&access, began) else { return false };
        self.refuse(outside, task, refusal);
        true
    }

    /// Ends a task whose data, or whose wait, its LUN's policy or its session's grant does not want. False when it may go
    /// on.
    #[inline]
    fn is_intent_barred(&mut self, outside: &mut O, task: TaskId) -> bool {
        let asks = self.slots[task.index()].is_guarded() || outside.guest().is_some();
        asks && self.bars_intent(outside, task)
    }

    #[cold]
    fn bars_intent(&mut self, outside: &mut O, task: TaskId) -> bool {
        let slot = &self.slots[task.index()];
        let Stage::Begun(scsi_task, _) = &slot.stage else { return false };
        let Some((op, offset, len)) = outside.units().intent(scsi_task) else { return false };
        let moment = Moment::BeforeData;
        let access = Access { initiator: outside.initiator(), op, offset, len, moment };
        let lun = slot.lun.as_ref().filter(|lun| lun.is_guarded());
        let refusal = lun.and_then(|lun| lun.refusal(&access, false)).or_else(|| {
            let guest = outside.guest()?;
            guest.foresee((op, offset, len)).is_err().then_some(Refusal::AccessDenied)
        });
        let Some(refusal) = refusal else { return false };
        self.refuse(outside, task, refusal);
        true
    }

    /// Where on the device a task's next request goes, and the end of what is written before and after, where the request
    /// moves that; none when it must not go, and the task has ended.
    #[inline]
    fn place(
        &mut self,
        outside: &mut O,
        task: TaskId,
        request: &MediumRequest,
    ) -> Option<(Place, Option<(u64, u64)>)> {
        let Some(guest) = outside.guest() else { return Some((Place::Same, None)) };
        match guest.judge((request.op, request.offset, request.len)) {
            Ok((_, appended)) if planted(Planted::PiecesForgotten) => Some((Place::Same, appended)),
            Ok((pieces, appended)) => Some((Place::of(request, pieces), appended)),
            Err(Barred) if planted(Planted::DeniedRequestSent) => Some((Place::Same, None)),
            Err(Barred) => {
                self.refuse(outside, task, Refusal::AccessDenied);
                None
            }
        }
    }

    /// Ends a task whose next request must not happen.
    #[cold]
    fn refuse(&mut self, outside: &mut O, task: TaskId, refusal: Refusal) {
        let Stage::Begun(scsi_task, _) = &mut self.slots[task.index()].stage else { return };
        let response = outside.units().handle_refusal(scsi_task, refusal);
        self.respond(outside, task, response);
    }

    fn respond(&mut self, outside: &mut O, task: TaskId, response: Response) {
        let slot = &mut self.slots[task.index()];
        let Response { status, sense, data_in } = response;
        let read = data_in.len() as u64;
        if let Stage::Begun(_, At::Other { lun, .. }) = &slot.stage {
            leave_other(outside, lun);
        }
        slot.stage = Stage::Answered(data_in);
        slot.leave(outside);
        slot.give_place_back(outside);
        slot.count(outside, status, read);
        let outcome = Outcome { status: status as u8, sense, data_in: read };
        self.machine.handle_outcome(task, outcome);
    }
}

impl<L> Slot<L> {
    fn move_to(&mut self, to: At<L>) {
        if let Stage::Begun(_, at) = &mut self.stage {
            *at = to;
        }
    }
}

/// Whether a session may not do any more what a command takes.
fn is_barred<O: Outside>(outside: &O, needs: Needs) -> bool {
    outside.guest().is_some_and(|guest| guest.may(needs).is_err())
}

/// Notes that a session uses the medium of a LUN: once for each.
#[cold]
fn note_use(used: &mut Vec<u64>, lun: &impl Lun, connection: ConnectionId) {
    let at = usize::from(lun.number());
    if used.len() <= at {
        used.resize(at + 1, 0);
    }
    used[at] = lun.incarnation();
    lun.add_user(connection);
}
