//! Openings after which nothing befalls the array, nobody asks it for anything and its engine does not die, until all
//! members are in sync: a member that is there comes back, whenever it was lost.

use core::time::Duration;

use super::{
    machine::Machine,
    oracle::EngineId,
    world::{Happening, World},
};

/// One opening without some member in so many.
const HEALS: u32 = 12;
/// Longest that it may take.
const TIME_MAX: Duration = Duration::from_secs(10);

impl<M: Machine> World<M> {
    /// The engine has opened the array: begins to wait for its members, or does not.
    pub(super) fn begin_healing(&mut self, id: EngineId) {
        let Some(engine) = self.engines.iter().find(|engine| engine.id == id) else { return };
        let lacks_some = (0..self.hosts.len()).any(|member| !engine.is_in_sync(member));
        let is_alone = self.engines.len() == 1 && !self.is_excused(id);
        let may_heal = lacks_some && is_alone && M::SURVIVES_LOSSES && !self.is_short_of_space();
        if !may_heal || !self.order_dice.one_in(HEALS) {
            return;
        }
        self.note(|| "nothing befalls the array until all members are back".into());
        self.healing = Some(id);
        self.mend_everything();
        self.agenda.put_in(TIME_MAX, Happening::HealingIsLate(id));
    }

    /// Whether the array waits for members; no longer when all are in sync.
    pub(super) fn heals(&mut self, id: EngineId) -> bool {
        if self.healing != Some(id) {
            return false;
        }
        let Some(engine) = self.engines.iter().find(|engine| engine.id == id) else { return false };
        if (0..self.hosts.len()).all(|member| engine.is_in_sync(member)) {
            self.note(|| "all members are back".into());
            self.counts.healed += 1;
            self.healing = None;
            self.give_life(id);
        }
        self.healing == Some(id)
    }

    /// Whoever is not back by now never will be.
    pub(super) fn end_healing(&mut self, id: EngineId) {
        if self.healing == Some(id) && self.serving == Some(id) {
            self.fail_with_states("members are there, and do not come back");
        }
    }
}
