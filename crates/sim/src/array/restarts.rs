//! Members that lose their power for a moment while nothing of them is under way: no command fails, and all that tells of
//! it is what their sessions count.

use core::time::Duration;

use super::{
    engine::Engine,
    faults::Trouble,
    machine::Machine,
    plan::Fault,
    world::{Happening, World},
};

/// Longest that such a member is without power.
const DARK_MAX: u64 = 3_000;

impl<M: Machine> World<M> {
    /// A member is to restart: users wait until nothing of one is under way.
    pub(super) fn plan_restart(&mut self) {
        self.is_to_restart = self.serving.is_some() && self.impaired() < self.tolerance();
    }

    /// Restarts a member, if one is to, and nothing of it is under way.
    pub(super) fn restart_if_idle(&mut self) {
        if !self.is_to_restart {
            return;
        }
        let may_restart = !self.is_ending() && self.impaired() < self.tolerance();
        let engine = match self.engines.as_slice() {
            [engine] if may_restart && Some(engine.id) == self.serving => engine,
            [..] => return self.is_to_restart = false,
        };
        let would_lose = |at: &usize| self.would_lose(engine, *at);
        let idle: Vec<usize> = (0..self.hosts.len()).filter(would_lose).collect();
        let is_quiet = self.in_flight(engine.id) == 0 && engine.outstanding() == 0;
        let victim = self.fault_dice.pick(&idle).copied();
        self.is_to_restart = victim.is_none() && !is_quiet;
        let Some(member) = victim else { return };
        self.note(|| format!("member {member}: restarts"));
        self.impair(member, Trouble::Dark);
        let (now, host) = (self.now(), &mut self.hosts[member]);
        host.target.set_hung(false);
        host.target.lose_power(now);
        host.lost_power = true;
        self.network.crash_host(now, host.id, Duration::ZERO);
        let wait = Duration::from_micros(100 + self.fault_dice.below(DARK_MAX));
        self.agenda.put_in(wait, Happening::Mend(member, Trouble::Dark));
        *self.counts.faults.entry(Fault::PowerOfOne).or_default() += 1;
        self.counts.restarts += 1;
    }

    /// Whether a member is idle, in sync and sound, and would lose something.
    fn would_lose(&self, engine: &Engine<M>, at: usize) -> bool {
        let host = &self.hosts[at];
        let is_sound = !host.is_impaired && host.trouble.is_none();
        let is_there = engine.has(at) && engine.is_in_sync(at) && engine.sessions[at].is_idle();
        is_sound && is_there && host.target.disk().unstable_blocks() > 0
    }
}
