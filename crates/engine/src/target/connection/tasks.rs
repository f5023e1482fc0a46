//! The commands of one connection on their way from the machine to the logical units, to devices,
//! and back.

use std::{rc::Rc, sync::Arc};

use netraid_block::{BufMut, SgList, narrow};
use netraid_iscsi_proto::{
    machine::TaskId,
    pdu::LunField,
    target::{ConnectionId, Outcome, Plan},
};
use netraid_scsi::{
    Additional, MediumRequest, NexusId, Refusal, Response, Sense, Status, Step,
    cdb::{self, CommandKind},
    unit::decode_lun,
};

use super::Driver;
use crate::{
    completions::Completed,
    target::{
        Shared,
        guests::{Barred, Guest, Needs},
        luns::{Gate, Place, SeenLun, ServedLun},
        pacing::Ticket,
        policy::{Access, Moment},
        realm::ServedRealm,
        sessions::SessionEntry,
    },
};

/// What the shell keeps of one task.
#[derive(Default)]
pub(super) struct Slot {
    task: Option<netraid_scsi::Task>,
    lun: Option<Rc<SeenLun>>,
    kind: CommandKind,
    /// The command counts among those at the device.
    entered: bool,
    /// Reservations are being stored for it.
    stores: bool,
    /// Number of the grant that it waits for.
    asked: Option<u32>,
    /// It has a place among the requests in flight of a target that is paced.
    placed: bool,
    /// A first step that waits for the machine's word.
    request: Option<MediumRequest>,
    /// What it takes that its session may lose.
    needs: Needs,
    /// A request is under way that moved the end of its segment: from where, to where.
    appended: Option<(u64, u64)>,
    /// That step waits for memory first.
    kept_back: bool,
    /// The first step was to wait for the logical unit.
    waits: bool,
    pub(super) data_out_len: usize,
    pub(super) data_out: Option<BufMut>,
    pub(super) data_in: SgList,
    /// The LUN at whose device a request of a copy is.
    copies_at: Option<Arc<ServedLun>>,
}

impl Driver {
    /// Nobody waits for the answers of tasks that were aborted.
    #[cold]
    pub(super) fn abandon_waits(&mut self) {
        for (lun, task) in &self.waiting {
            if self.machine.is_aborted(*task) {
                self.realm.background.abandon(*lun, self.session.connection, *task);
            }
        }
    }

    /// Background work may take hours: the session does not last that long.
    pub(super) fn abandon_all_waits(&mut self) {
        for (lun, task) in self.waiting.drain(..) {
            self.realm.background.abandon(lun, self.session.connection, task);
        }
    }

    pub(super) fn handle_command(
        &mut self,
        task: TaskId,
        lun: LunField,
        cdb: &[u8],
        data_out_max: u32,
    ) {
        let slot = &self.slots[task.index()];
        assert!(slot.task.is_none() && !slot.entered, "{task:?} begins before it was released");
        if let Some(guest) = self.session.guest() {
            let needs = Needs::of(cdb.first().copied().unwrap_or_default());
            self.slots[task.index()].needs = needs;
            if needs != Needs::Nothing && may(&self.shared, guest, needs).is_err() {
                let denied = Sense::illegal(Additional::ACCESS_DENIED);
                return self.respond(task, Response::check(&denied));
            }
        }
        // The LUN is that of the unit, and is in use, as long as the units are locked.
        let mut units = self.realm.units.lock();
        let (scsi_task, step) = units.handle_command(self.nexus, lun.0, cdb, data_out_max);
        let slot = &mut self.slots[task.index()];
        slot.task = Some(scsi_task);
        slot.kind = cdb.first().map_or(CommandKind::Other, |opcode| cdb::kind(*opcode));
        let luns = &mut self.luns;
        slot.lun = decode_lun(lun.0).and_then(|number| luns.get(&self.realm.luns, number));
        if slot.kind != CommandKind::Other
            && let Some(lun) = &slot.lun
            && self.used.get(usize::from(lun.number())) != Some(&lun.incarnation())
        {
            note_use(&mut self.used, lun, &self.session);
        }
        drop(units);
        let plan = match step {
            Step::Respond(response) => return self.respond(task, response),
            Step::DataOut { .. } | Step::Wait
                if self.slots[task.index()].is_guarded() && self.refuse(task, None, false) =>
            {
                return;
            }
            Step::DataOut { .. } | Step::Wait
                if self.session.guest().is_some() && self.bars_intent(task) =>
            {
                return;
            }
            Step::DataOut { len, memory } => {
                let slot = &mut self.slots[task.index()];
                let data_out = len.min(data_out_max);
                slot.data_out_len = narrow(data_out);
                Plan { data_out, data_out_total: u64::from(len), memory }
            }
            Step::Wait => {
                self.slots[task.index()].waits = true;
                Plan { data_out: 0, data_out_total: 0, memory: 0 }
            }
            Step::SubmitTo { .. } => unreachable!("{task:?} copies before its parameters came"),
            Step::Submit(request) => {
                let slot = &mut self.slots[task.index()];
                // Also of a read that comes after a flush.
                let memory = slot.task.as_ref().map_or(0, netraid_scsi::Task::read_len);
                slot.request = Some(request);
                Plan { data_out: 0, data_out_total: 0, memory }
            }
            Step::Persist(_) | Step::Abort { .. } => {
                unreachable!("{task:?} changes reservations without its parameters")
            }
        };
        self.machine.handle_plan(task, plan);
        self.slots[task.index()].kept_back = self.machine.is_waiting(task);
    }

    /// A task waits for its grant.
    #[cold]
    pub(super) fn ask_grant(&mut self, task: TaskId, len: u32, executes: bool) {
        let Some(paced) = &self.shared.paced else {
            unreachable!("{task:?} asks for a grant of a target that is not paced")
        };
        self.asked = self.asked.wrapping_add(1);
        let (connection, number) = (self.session.connection, self.asked);
        self.slots[task.index()].asked = Some(number);
        paced.ask(self.now(), Ticket { connection, task, number, executes }, len);
    }

    /// What was granted goes on.
    pub(super) fn take_grants(&mut self) {
        let Some(paced) = &self.shared.paced else { return };
        while let Some(Ticket { task, number, executes, .. }) = paced.take(self.session.connection)
        {
            let slot = &mut self.slots[task.index()];
            if slot.asked.take_if(|asked| *asked == number).is_some() {
                slot.placed |= executes;
                self.machine.handle_grant(task);
            } else if executes {
                // It was withdrawn meanwhile.
                paced.done(self.shared.started.elapsed(), self.session.connection);
            }
        }
    }

    pub(super) fn handle_submit(&mut self, task: TaskId) {
        if let Some(paced) = &self.shared.paced
            && !core::mem::replace(&mut self.slots[task.index()].placed, true)
        {
            paced.begun(self.shared.started.elapsed(), self.session.connection);
        }
        let slot = &mut self.slots[task.index()];
        let step = match (slot.request.take(), &mut slot.task) {
            // What was decided when the command came may not hold any more.
            (Some(request), Some(scsi_task)) if slot.kept_back => {
                self.realm.units.lock().handle_kept_back(scsi_task, request)
            }
            (Some(request), _) => Step::Submit(request),
            (None, _) if slot.waits => Step::Wait,
            (None, Some(scsi_task))
                if slot.needs != Needs::Nothing
                    && self
                        .session
                        .guest()
                        .is_some_and(|guest| may(&self.shared, guest, slot.needs).is_err()) =>
            {
                let refusal = Refusal::AccessDenied;
                Step::Respond(self.realm.units.lock().handle_refusal(scsi_task, refusal))
            }
            (None, Some(scsi_task)) => {
                let data = slot.data_out.take().map(|data| data.freeze().into());
                let data = data.unwrap_or_default();
                self.realm.units.lock().handle_data_out(scsi_task, data)
            }
            (None, None) => unreachable!("{task:?} was submitted without a command"),
        };
        self.go_on(task, step);
    }

    pub(super) fn handle_completed(&mut self, (tag, result): Completed) {
        let index = narrow(tag);
        let (Some(task), Some(slot)) = (self.machine.task_at(index), self.slots.get_mut(index))
        else {
            return;
        };
        if let Some(lun) = slot.copies_at.take() {
            lun.leave();
            if let Some(guest) = self.session.guest() {
                guest.leave();
            }
            self.machine.handle_visit(task, None);
        }
        if let (Some((before, end)), Err(_)) = (slot.appended.take(), &result)
            && let Some(guest) = self.session.guest()
        {
            guest.segment.take_back(before, end);
        }
        let Some(scsi_task) = &mut slot.task else { return };
        if !self.waiting.is_empty() {
            self.waiting.retain(|(_, waiting)| *waiting != task);
        }
        let mut units = self.realm.units.lock();
        let step = if core::mem::take(&mut slot.stores) {
            units.handle_persisted(scsi_task, result.is_ok())
        } else {
            units.handle_medium_done(scsi_task, result)
        };
        drop(units);
        match step {
            // Nobody waits for what is still to be done: it is not begun.
            Step::Submit(_) | Step::SubmitTo { .. } if self.machine.is_aborted(task) => {
                self.machine.handle_outcome(task, Outcome::default());
            }
            step @ (Step::Submit(_)
            | Step::SubmitTo { .. }
            | Step::Wait
            | Step::Respond(_)
            | Step::DataOut { .. }
            | Step::Persist(_)
            | Step::Abort { .. }) => self.go_on(task, step),
        }
    }

    fn go_on(&mut self, task: TaskId, step: Step) {
        match step {
            Step::Submit(request) => {
                // It enters first: whoever keeps it off now waits for it, or is seen here.
                let slot = &mut self.slots[task.index()];
                let began = slot.enter(&self.session);
                if slot.is_guarded() && self.refuse(task, Some(&request), began) {
                    return;
                }
                let Some(place) = self.place(task, &request) else { return };
                let completion = self.queue.completion(task.index() as u64);
                // Without a LUN the completion is dropped, and ends as aborted.
                let Some(lun) = &self.slots[task.index()].lun else { return };
                lun.submit_at(request, &place, completion);
            }
            Step::Wait => {
                // That may take hours, and the devices do other things meanwhile.
                self.slots[task.index()].give_place_back(&self.shared, &self.session);
                let completion = self.queue.completion(task.index() as u64);
                let Some(lun) = &self.slots[task.index()].lun else { return };
                self.waiting.push((lun.number(), task));
                let connection = self.session.connection;
                self.realm.wait_for_background(lun, connection, task, completion);
            }
            Step::SubmitTo { lun, request } => self.submit_to(task, lun, request),
            Step::Respond(response) => self.respond(task, response),
            Step::Persist(bytes) => self.persist(task, bytes),
            Step::Abort { nexuses } => self.abort(task, &nexuses),
            Step::DataOut { .. } => unreachable!("{task:?} asks for its data twice"),
        }
    }

    /// Submits a request of a copy to the LUN that it concerns.
    #[cold]
    fn submit_to(&mut self, task: TaskId, lun: u16, request: MediumRequest) {
        let slot = &mut self.slots[task.index()];
        slot.give_place_back(&self.shared, &self.session);
        let (op, offset, len) = (request.op, request.offset, request.len);
        let moment = Moment::BeforeRequest;
        let access = Access { initiator: self.session.initiator(), op, offset, len, moment };
        let refusal = match self.realm.luns.get(lun) {
            None => Refusal::Gone,
            Some(lun) => {
                // As in `go_on`.
                self.slots[task.index()].visit(lun.clone(), &self.session);
                match lun.refusal(&access, false) {
                    Some(refusal) => refusal,
                    None if !self.may_visit(task, &lun) => Refusal::Gone,
                    None => {
                        let Some(place) = self.place(task, &request) else { return };
                        self.machine.handle_visit(task, Some(lun.number()));
                        let completion = self.queue.completion(task.index() as u64);
                        lun.submit_at(request, &place, completion);
                        return;
                    }
                }
            }
        };
        let Some(scsi_task) = &mut self.slots[task.index()].task else { return };
        let response = self.realm.units.lock().handle_refusal(scsi_task, refusal);
        self.respond(task, response);
    }

    /// Whether a LUN is still the one that a copy checked; it stays so for who has entered it.
    fn may_visit(&self, task: TaskId, lun: &Arc<ServedLun>) -> bool {
        let Some(scsi_task) = &self.slots[task.index()].task else { return false };
        let mut units = self.realm.units.lock();
        self.realm.is_current(lun) && units.may_visit(scsi_task, lun.number())
    }

    /// Stores reservations; the completion comes when they are stable, or could not be stored.
    fn persist(&mut self, task: TaskId, bytes: Vec<u8>) {
        let completion = self.queue.completion(task.index() as u64);
        let slot = &mut self.slots[task.index()];
        slot.stores = true;
        // Without a store the completion is dropped, and ends as aborted.
        slot.enter(&self.session);
        let Some(lun) = &slot.lun else { return };
        // Its file may be somebody else's next.
        if lun.gate() == Gate::Leaving {
            return;
        }
        if let Some(place) = lun.reservations() {
            place.save(bytes, completion);
        }
    }

    /// Aborts what the nexuses that a task preempted have under way.
    fn abort(&mut self, task: TaskId, nexuses: &[NexusId]) {
        let sessions: Vec<_> = nexuses.iter().map(|nexus| ConnectionId(nexus.0)).collect();
        let Some(lun) = &self.slots[task.index()].lun else { return };
        let (number, mut node) = (lun.number(), self.shared.node.lock());
        self.machine.handle_preempt(&mut node, task, number, &sessions);
        drop(node);
        self.shared.wake();
    }

    pub(super) fn handle_preempted(&mut self, task: TaskId) {
        let Some(scsi_task) = &mut self.slots[task.index()].task else { return };
        let step = self.realm.units.lock().handle_aborted(scsi_task);
        self.go_on(task, step);
    }

    /// Ends a task whose next request, or whose data, is not wanted. False when it may go on. `began`:
    /// an earlier request of it was at the device.
    #[cold]
    fn refuse(&mut self, task: TaskId, request: Option<&MediumRequest>, began: bool) -> bool {
        let slot = &mut self.slots[task.index()];
        let (Some(scsi_task), Some(lun)) = (&mut slot.task, &slot.lun) else { return false };
        let mut units = self.realm.units.lock();
        let (moment, wanted) = match request {
            Some(request) => {
                (Moment::BeforeRequest, Some((request.op, request.offset, request.len)))
            }
            None => (Moment::BeforeData, units.intent(scsi_task)),
        };
        let Some((op, offset, len)) = wanted else { return false };
        let access = Access { initiator: self.session.initiator(), op, offset, len, moment };
        let Some(refusal) = lun.refusal(&access, began) else { return false };
        let response = units.handle_refusal(scsi_task, refusal);
        drop(units);
        self.respond(task, response);
        true
    }

    /// Ends a task whose data its session's grant does not want. False when it may go on.
    #[cold]
    fn bars_intent(&mut self, task: TaskId) -> bool {
        let (Some(guest), Some(segments)) = (self.session.guest(), &self.shared.segments) else {
            return false;
        };
        let Some(scsi_task) = &mut self.slots[task.index()].task else { return false };
        let mut units = self.realm.units.lock();
        let Some(intent) = units.intent(scsi_task) else { return false };
        let at = self.shared.started.elapsed();
        if guest.foresee(&*segments.admission, intent, at).is_ok() {
            return false;
        }
        let response = units.handle_refusal(scsi_task, Refusal::AccessDenied);
        drop(units);
        self.respond(task, response);
        true
    }

    /// Where on the device a task's next request goes; none when it must not, and the task has
    /// ended.
    #[inline]
    fn place(&mut self, task: TaskId, request: &MediumRequest) -> Option<Place> {
        match self.session.guest().cloned() {
            None => Some(Place::Same),
            Some(guest) => self.place_of(&guest, task, request),
        }
    }

    fn place_of(&mut self, guest: &Guest, task: TaskId, request: &MediumRequest) -> Option<Place> {
        let segments = self.shared.segments.as_ref()?;
        let wanted = (request.op, request.offset, request.len);
        let before = guest.segment.end_bytes();
        let at = self.shared.started.elapsed();
        let slot = &mut self.slots[task.index()];
        match guest.judge(&*segments.admission, wanted, at) {
            Ok(pieces) => {
                let end = guest.segment.end_bytes();
                slot.appended = Some((before, end)).filter(|_| guest.appends() && before != end);
                Some(Place::of(request, pieces))
            }
            Err(Barred) => {
                let scsi_task = slot.task.as_mut()?;
                let refusal = Refusal::AccessDenied;
                let response = self.realm.units.lock().handle_refusal(scsi_task, refusal);
                self.respond(task, response);
                None
            }
        }
    }

    fn respond(&mut self, task: TaskId, response: Response) {
        let slot = &mut self.slots[task.index()];
        slot.task = None;
        slot.leave(&self.session);
        slot.give_place_back(&self.shared, &self.session);
        slot.count(&self.session, response.status, response.data_in.len() as u64);
        let Response { status, sense, data_in } = response;
        let outcome = Outcome { status: status as u8, sense, data_in: data_in.len() as u64 };
        slot.data_in = data_in;
        self.machine.handle_outcome(task, outcome);
    }
}

/// Whether a session may still do what a command takes.
fn may(shared: &Shared, guest: &Guest, needs: Needs) -> Result<(), Barred> {
    let segments = shared.segments.as_ref().ok_or(Barred)?;
    guest.may(&*segments.admission, needs, shared.started.elapsed())
}

/// Notes that a session uses the medium of a LUN: once for each.
#[cold]
fn note_use(used: &mut Vec<u64>, lun: &ServedLun, session: &SessionEntry) {
    let at = usize::from(lun.number());
    if used.len() <= at {
        used.resize(at + 1, 0);
    }
    used[at] = lun.incarnation();
    lun.add_user(session.connection);
}

impl Slot {
    fn is_guarded(&self) -> bool {
        self.lun.as_ref().is_some_and(|lun| lun.is_guarded())
    }

    fn count(&self, session: &SessionEntry, status: Status, read: u64) {
        let written = self.data_out_len as u64;
        session.counters.count(self.kind, status, read, written);
        if let Some(lun) = &self.lun {
            lun.counters(session.thread).count(self.kind, status, read, written);
        }
    }

    /// The command goes to the device of its LUN; whether it was there before.
    #[inline]
    fn enter(&mut self, session: &SessionEntry) -> bool {
        let began = self.entered;
        if let Some(lun) = self.lun.as_ref().filter(|_| !began) {
            self.entered = true;
            lun.enter();
            if let Some(guest) = session.guest() {
                guest.enter();
            }
        }
        began
    }

    /// A copy goes to the device of this LUN.
    fn visit(&mut self, lun: Arc<ServedLun>, session: &SessionEntry) {
        assert!(self.copies_at.is_none(), "a copy is at one LUN at a time");
        lun.enter();
        if let Some(guest) = session.guest() {
            guest.enter();
        }
        self.copies_at = Some(lun);
    }

    /// The command is not at the device any more.
    fn leave(&mut self, session: &SessionEntry) {
        if core::mem::take(&mut self.entered) {
            if let Some(lun) = &self.lun {
                lun.leave();
            }
            if let Some(guest) = session.guest() {
                guest.leave();
            }
        }
        if let Some(lun) = self.copies_at.take() {
            lun.leave();
            if let Some(guest) = session.guest() {
                guest.leave();
            }
        }
    }

    /// The command is not among the requests in flight any more.
    fn give_place_back(&mut self, shared: &Shared, session: &SessionEntry) {
        if core::mem::take(&mut self.placed)
            && let Some(paced) = &shared.paced
        {
            paced.done(shared.started.elapsed(), session.connection);
        }
    }

    pub(super) fn clear(&mut self, shared: &Shared, realm: &ServedRealm, session: &SessionEntry) {
        if let Some(task) = self.task.take() {
            realm.units.lock().handle_abort(task);
            session.counters.count_aborted();
            if let Some(lun) = &self.lun {
                lun.counters(session.thread).count_aborted();
            }
        }
        self.leave(session);
        self.give_place_back(shared, session);
        if let (Some(number), Some(paced)) = (self.asked, &shared.paced) {
            paced.withdraw(session.connection, number);
        }
        *self = Self::default();
    }
}
