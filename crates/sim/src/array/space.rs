//! Members that have no space left for a while, and whoever serves, who looks for it.
//!
//! Does not judge what users' requests may end with: the [`oracle`](super::oracle) does.

use core::time::Duration;

use super::{
    engine::Engine,
    machine::Machine,
    oracle::EngineId,
    plan::{Fault, Plan},
    world::{Happening, World},
};
use crate::Time;

/// Looks of an array for space after there is some, one a deadline: by then it has found it.
const LOOKS_FOR_SPACE: u32 = 16;

/// Whether members have space.
#[derive(Debug, Default)]
pub(super) struct SpaceOfMembers {
    is_out: bool,
    back_at: Option<Time>,
    /// How often whoever serves still looks for space: it may find only later what was refused before.
    looks: u32,
}

impl SpaceOfMembers {
    const fn runs_out(&mut self) {
        self.is_out = true;
    }

    /// Whether nobody looks for it yet.
    fn is_back(&mut self, now: Time) -> bool {
        if !core::mem::take(&mut self.is_out) {
            return false;
        }
        self.back_at = Some(now);
        core::mem::replace(&mut self.looks, LOOKS_FOR_SPACE) == 0
    }

    /// Whether whoever serves may still say that there is none.
    const fn engine_still_looks(&self) -> bool {
        self.looks > 0
    }

    /// What was refused may still be on its way, and what the array tries again takes its time.
    fn is_short(&self, now: Time) -> bool {
        let settled = Plan::patience().deadline * 3;
        self.is_out || self.back_at.is_some_and(|back| now.since(back) < settled)
    }
}

impl<M: Machine> World<M> {
    /// More members than the level can do without have no space left, for a while.
    pub(super) fn take_space(&mut self) -> bool {
        let [engine] = self.engines.as_slice() else { return false };
        let is_settled = Some(engine.id) == self.serving && self.is_newest(engine.id);
        if !is_settled || self.impaired() > 0 || self.is_short_of_space() {
            return false;
        }
        let mut members: Vec<usize> = (0..self.hosts.len()).collect();
        self.fault_dice.shuffle(&mut members);
        let least = self.tolerance() + 1;
        members.truncate(least + self.fault_dice.index(members.len() - least + 1));
        let pages = [0, 4, 40][self.fault_dice.index(3)];
        self.note(|| format!("members {members:?}: no space but for some {pages} pages"));
        for member in members {
            let left = self.fault_dice.below(pages + 1);
            self.hosts[member].target.disk_mut().limit_space(Some(left));
        }
        self.space.runs_out();
        self.make_room();
        // Where nothing else befalls the array, for several lives.
        let only_space = self.plan.faults == [Fault::SpaceRunsOut];
        let most = if only_space { 1_500 } else { 300 };
        let wait = Duration::from_millis(5 + self.fault_dice.below(most));
        self.agenda.put_in(wait, Happening::SpaceIsBack);
        true
    }

    /// There is space again, and who serves looks for it as it does now and then.
    pub(super) fn give_space(&mut self) {
        for host in &mut self.hosts {
            host.target.disk_mut().limit_space(None);
        }
        let now = self.now();
        let is_news = self.space.is_back(now);
        self.note(|| "there is space again".into());
        if is_news {
            self.look_for_space();
        }
    }

    /// As the volume has the array do now and then.
    pub(super) fn look_for_space(&mut self) {
        if !self.space.engine_still_looks() {
            return;
        }
        self.space.looks -= 1;
        self.agenda.put_in(Plan::patience().deadline, Happening::LookForSpace);
    }

    /// A member without space is set aside by what can only go to its place; too many of these are more than the array
    /// survives (docs/faults.md).
    pub(super) fn excuse_want_of_space(&mut self, id: EngineId, failure: &str) {
        let is_meant = failure.contains("cannot serve without members")
            && failure.contains("no space left on the device");
        if is_meant && self.is_short_of_space() && !self.is_excused(id) {
            self.counts.full += 1;
            self.excuse();
        }
    }

    /// Whether members lack space, or lacked it a moment ago.
    pub(super) fn is_short_of_space(&self) -> bool {
        let mut engines = self.engines.iter();
        let serving = engines.find(|engine| Some(engine.id) == self.serving);
        let says_so = serving.and_then(Engine::machine).is_some_and(Machine::is_short_of_space);
        self.space.is_short(self.now()) || (self.space.engine_still_looks() && says_so)
    }
}
