//! Whether the medium can be used: started or stopped, loaded or ejected, and who prevents its
//! removal (SBC-3, sections 4.4, 5.25 and 4.20; SPC-4, section 6.15).

use alloc::vec::Vec;

use super::{
    LogicalUnit, NexusId, Step, Stop, Task, UnitAttention,
    medium::{State, submit},
    respond_good,
};
use crate::{
    cdb::StartStop,
    sense::{Additional, Sense, SenseKey},
};
use netraid_block::Op;

/// What stands between an initiator and the medium.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    stopped: bool,
    ejected: bool,
    /// Who prevents the medium's removal; at most the nexuses that the logical unit knows.
    preventing: Vec<NexusId>,
}

impl Readiness {
    pub(super) const fn is_ready(&self) -> bool {
        !self.stopped && !self.ejected
    }

    /// A prevention ends with its nexus.
    pub(super) fn forget(&mut self, nexus: NexusId) {
        self.preventing.retain(|one| *one != nexus);
    }

    /// As after a reset: started, removal allowed. What is ejected stays so.
    pub(super) fn reset(&mut self) {
        self.stopped = false;
        self.preventing.clear();
    }

    /// Why a command that needs the medium cannot have it.
    pub(super) fn refusal(&self) -> Option<Sense> {
        let additional = if self.ejected {
            Additional::MEDIUM_NOT_PRESENT
        } else if self.stopped {
            Additional::NOT_READY_START_REQUIRED
        } else {
            return None;
        };
        Some(Sense::new(SenseKey::NotReady, additional))
    }
}

impl LogicalUnit {
    /// START STOP UNIT (SBC-3, section 5.25).
    pub(super) fn start_stop(&mut self, task: &mut Task, request: StartStop) -> Result<Step, Stop> {
        let StartStop { no_flush, load_eject, start } = request;
        if load_eject && !self.config.removable {
            return Err(Sense::invalid_cdb(4, Some(1)).into());
        }
        // What cannot be taken out cannot be put in either.
        if load_eject && !self.ready.preventing.is_empty() {
            return Err(Sense::illegal(Additional::MEDIUM_REMOVAL_PREVENTED).into());
        }
        if start {
            return self.start_medium_up(task.nexus, load_eject);
        }
        if no_flush || self.ready.ejected {
            return Ok(self.stopped(load_eject));
        }
        task.state = State::Stop { eject: load_eject };
        Ok(submit(Op::Flush, 0, 0))
    }

    fn start_medium_up(&mut self, nexus: NexusId, load: bool) -> Result<Step, Stop> {
        if load && self.ready.ejected {
            self.ready.ejected = false;
            // Who loaded it knows.
            self.attentions.raise(UnitAttention::NotReadyToReady, Some(nexus));
        }
        if self.ready.ejected {
            return Err(Sense::new(SenseKey::NotReady, Additional::MEDIUM_NOT_PRESENT).into());
        }
        self.ready.stopped = false;
        self.settle_blocked();
        Ok(respond_good())
    }

    /// What was written is stable, so that the medium may stop, or go.
    pub(super) fn stopped(&mut self, eject: bool) -> Step {
        if eject {
            self.ready.ejected = true;
        } else {
            self.ready.stopped = true;
        }
        self.settle_blocked();
        respond_good()
    }

    /// PREVENT ALLOW MEDIUM REMOVAL, of each nexus for itself.
    pub(super) fn prevent_allow(&mut self, nexus: NexusId, prevent: bool) -> Step {
        self.ready.forget(nexus);
        if prevent {
            self.ready.preventing.push(nexus);
        }
        respond_good()
    }
}
