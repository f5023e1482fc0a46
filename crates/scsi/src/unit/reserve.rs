//! Commands about reservations: RESERVE and RELEASE (SPC-2), PERSISTENT RESERVE IN and OUT.
//!
//! A change of persistent reservations takes effect between two commands: what a check sees is
//! the state before it or after it. While one is being stored, or something that was preempted may still be written, others
//! are answered with BUSY.

use alloc::{boxed::Box, vec::Vec};

use netraid_planted::{Planted, planted};

use super::{LogicalUnit, NexusId, Response, Step, Stop, Task, medium::State, respond_good};
use crate::{
    cdb::{Access, DataOut, ReserveIn, ReserveInAction, ReserveOut, ReserveOutAction},
    reservation::{self, Change, Parameters},
    sense::{Additional, Sense, SenseKey},
};

impl LogicalUnit {
    /// Whether a reservation keeps a command of this nexus out.
    pub(crate) fn conflicts(&self, nexus: NexusId, access: Access) -> bool {
        if self.reserved_by.is_none() & !self.reservations.is_reserved() {
            return false;
        }
        let foreign = self.reserved_by.is_some_and(|holder| holder != nexus);
        (foreign && access != Access::Always) || !self.reservations.allows(nexus, access)
    }

    /// RESERVE (6) and (10) (SPC-2, section 7.21), which know persistent reservations only by the
    /// exceptions that CRH stands for (SPC-4, section 5.13.3).
    pub(super) fn reserve(&mut self, nexus: NexusId) -> Result<Step, Stop> {
        if self.reservations.registration_count() > 0 {
            return self.besides_registrations(nexus);
        }
        if self.reserved_by.is_some_and(|holder| holder != nexus) {
            return Err(Stop::CONFLICT);
        }
        // Beside the registration that is being stored nobody could release it.
        if self.is_storing {
            return Err(Stop::BUSY);
        }
        self.reserved_by = Some(nexus);
        Ok(respond_good())
    }

    /// RELEASE (6) and (10) (SPC-2, section 7.17); of whoever reserved nothing it has no effect.
    pub(super) fn unreserve(&mut self, nexus: NexusId) -> Result<Step, Stop> {
        if self.reservations.registration_count() > 0 {
            return self.besides_registrations(nexus);
        }
        self.reserved_by.take_if(|holder| *holder == nexus);
        Ok(respond_good())
    }

    fn besides_registrations(&self, nexus: NexusId) -> Result<Step, Stop> {
        let ignored = self.reservations.ignores_reserve(nexus);
        if ignored { Ok(respond_good()) } else { Err(Stop::CONFLICT) }
    }

    /// PERSISTENT RESERVE IN (SPC-4, section 6.15).
    pub(super) fn reserve_in(&self, request: ReserveIn) -> Result<Step, Stop> {
        // While RESERVE is in effect both commands conflict, whoever sends them (SPC-2, 5.5.1).
        if self.reserved_by.is_some() {
            return Err(Stop::CONFLICT);
        }
        let data = match request.action {
            ReserveInAction::ReadKeys => reservation::keys(&self.reservations),
            ReserveInAction::ReadReservation => reservation::reservation(&self.reservations),
            ReserveInAction::ReportCapabilities => reservation::capabilities(&self.reservations),
            ReserveInAction::ReadFullStatus => reservation::full_status(&self.reservations),
        };
        Ok(Step::Respond(Response::data(&data, u32::from(request.allocation_len))))
    }

    /// Begins PERSISTENT RESERVE OUT (SPC-4, section 6.16): asks for its parameters.
    pub(super) fn start_reserve_out(&self, task: &mut Task, out: ReserveOut) -> Result<Step, Stop> {
        if self.reserved_by.is_some() {
            return Err(Stop::CONFLICT);
        }
        reservation::check_len(out)?;
        task.state = State::Collect(DataOut::PersistentReserveOut(out));
        Ok(Step::DataOut { len: out.parameter_len, memory: 0 })
    }

    pub(super) fn reserve_out(
        &mut self,
        task: &mut Task,
        out: ReserveOut,
        list: &[u8],
    ) -> Result<Step, Stop> {
        if self.reserved_by.is_some() {
            return Err(Stop::CONFLICT);
        }
        if self.is_storing {
            return Err(Stop::BUSY);
        }
        let parameters = Parameters::decode(out, list)?;
        let issuer = self.attentions.nexus(task.nexus).ok_or(Stop::BUSY)?;
        let known = reservation::distinct(self.attentions.initiators());
        let change = self.reservations.compute(issuer, out, &parameters, &known)?;
        // Who is preempted already, and whose writes have not ended, is registered no more: nothing would tell of them, also
        // not who preempted them, gave up waiting, and registers the same key once more. REGISTER of the key that one
        // has, by which a session makes sure of it, begins nothing.
        let is_early = self.preempting > 0 || task.is_beside_preempted;
        let begins = out.action == ReserveOutAction::RegisterAndIgnore;
        if is_early
            && (begins || change.next.differs(&self.reservations))
            && !planted(Planted::ReservationsChangeBesideAborted)
        {
            return Err(Stop::BUSY);
        }
        let image = change.next.encode();
        if !self.store_is_uncertain && image == self.reservations.encode() {
            return Ok(self.commit(task, change));
        }
        self.is_storing = true;
        task.state = State::Store(Box::new(change));
        Ok(Step::Persist(image))
    }

    /// Goes on with a task whose change of reservations was stored durably, or could not be.
    pub fn handle_persisted(&mut self, task: &mut Task, is_stored: bool) -> Step {
        self.is_storing = false;
        self.store_is_uncertain = !is_stored;
        let state = core::mem::replace(&mut task.state, State::Ended);
        let step = if let State::Store(change) = state
            && is_stored
        {
            self.commit(task, *change)
        } else {
            // Nothing has changed, since nothing says that it would survive.
            let additional = Additional::INTERNAL_TARGET_FAILURE;
            Step::Respond(self.check(&Sense::new(SenseKey::HardwareError, additional)))
        };
        self.settle(task, step)
    }

    /// Goes on with a task for which the commands of preempted nexuses have ended.
    pub fn handle_aborted(&mut self, task: &mut Task) -> Step {
        self.settle(task, respond_good())
    }

    /// A change was given up while it was being stored; the store may hold either state.
    pub(super) fn forget_change(&mut self) {
        self.is_storing = false;
        self.store_is_uncertain = true;
    }

    fn commit(&mut self, task: &mut Task, change: Change) -> Step {
        let Change { next, told, aborted } = change;
        self.reservations = next;
        self.reservations.rebind(self.attentions.live());
        for (nexus, attention) in told {
            self.attentions.raise_at(attention, &nexus);
        }
        let sessions = self.attentions.live().filter(|(_, nexus)| aborted.contains(nexus));
        let aborted: Vec<_> = sessions.map(|(id, _)| id).collect();
        if aborted.is_empty() {
            return respond_good();
        }
        // Whoever is aborted does not keep the medium from being removed (SPC-4, section 6.18).
        aborted.iter().for_each(|nexus| self.ready.forget(*nexus));
        self.preempting += 1;
        task.state = State::Preempt;
        Step::Abort { nexuses: aborted }
    }
}
