//! The administrator: asks for members that do not come back by themselves, and knows which host has which place.

use core::time::Duration;

use netraid_raid::{
    member::MemberIndex,
    volume::{Expect, Machine as _},
};

use super::{Case, Happening, Phase, World};
use crate::{array::subset::newest_label, way::device::Failure};

/// From one look of the administrator to the next one.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Looks at a member that is away after which it is asked for.
const LOOKS_AWAY_MAX: u32 = 3;

impl World {
    pub(super) fn tick(&mut self) {
        self.net.put_in(LOOK_EVERY, Happening::Tick);
        if self.serving_stands_still() {
            return;
        }
        self.note_places();
        self.forgive();
        self.look_after_members();
        self.plan_stale_reads();
        if self.phase > Phase::Lives {
            self.go_on_ending();
        }
    }

    fn look_after_members(&mut self) {
        let Some(at) = self.serving.and_then(|id| self.position(id)) else { return };
        if self.engines[at].serving().is_some_and(|serving| serving.is_whole()) {
            self.hosts.iter_mut().for_each(|host| host.is_newcomer = false);
        }
        for member in 0..self.places.len() {
            let Some(serving) = self.engines[at].serving() else { return };
            let index = MemberIndex(netraid_block::narrow(member));
            let is_live = serving.volume.machine().member_state(index).is_live();
            let is_away = !is_live && !self.engines[at].has(member);
            self.ticks_away[member] = if is_away { self.ticks_away[member] + 1 } else { 0 };
            let host = self.places[member];
            let is_ready = self.ticks_away[member] > LOOKS_AWAY_MAX
                && self.hosts[host].trouble.is_none()
                // A copy waits for whoever is away.
                && (self.replacing.is_none() || self.engines[at].only_copies());
            if is_ready {
                if self.dice.one_in(2) && self.offer_replaced(at, index) {
                    continue;
                }
                let is_stranger = self.hosts[host].is_stranger;
                let expect = if is_stranger { Expect::Anything } else { Expect::Former };
                let asked = self
                    .with(at, |engine, context| engine.handle_join(context, member, host, expect));
                self.note(|| {
                    format!("host {host} is asked for as member {member}, {expect:?}: {asked:?}")
                });
            }
        }
    }

    /// Takes the device that was replaced for the member that is away, once in a while: it must be refused.
    pub(super) fn offer_replaced(&mut self, at: usize, member: MemberIndex) -> bool {
        let spare = self.spare;
        let label = newest_label(self.net.disk(self.hosts[spare].id));
        let was_member =
            label.is_some_and(|it| it.array_uuid == super::ARRAY && it.index == member);
        let is_well = self.hosts[spare].trouble.is_none();
        if !was_member || !is_well {
            return false;
        }
        let asked = self.with(at, |engine, context| {
            engine.handle_join(context, member.as_usize(), spare, Expect::Former)
        });
        self.note(|| {
            format!("host {spare}, which was replaced, is offered as member {member}: {asked:?}")
        });
        if asked.is_ok() {
            self.count(Case::ReplacedOffered);
        }
        asked.is_ok()
    }

    /// A host's disk could not be had for a member's place.
    pub(super) fn hear_not_joined(&mut self, host: usize, failure: &Failure) {
        if matches!(failure, Failure::NotThatMember | Failure::WentOn) {
            self.hosts[host].is_stranger = true;
        }
        if self.replacing.is_some_and(|(_, spare)| spare == host) {
            self.replacing = None;
        }
    }

    /// Takes note of places that other hosts have now.
    pub(super) fn note_places(&mut self) {
        let Some(places) = self.serving_engine().and_then(|engine| engine.places()) else {
            self.replacing = None;
            return;
        };
        for (member, host) in places.into_iter().enumerate() {
            if host == self.spare {
                self.spare = core::mem::replace(&mut self.places[member], host);
                let spare = self.spare;
                self.note(|| format!("host {host} has taken the place of host {spare}"));
                self.count(Case::ReplacedBySpare);
                if self.fault_dice.one_in(2) {
                    let wait = Duration::from_millis(500 + self.fault_dice.below(6000));
                    self.net.put_in(wait, Happening::Offer(member));
                }
                self.note_newcomer(host, spare);
                self.replacing = None;
            }
        }
        if self.replacing.is_some_and(|_| !self.is_joining()) {
            self.replacing = None;
        }
    }

    /// The spare has a member's place, and lacks what the member had; the host that it replaces is free.
    pub(super) fn note_newcomer(&mut self, new: usize, old: usize) {
        (self.hosts[new].is_impaired, self.hosts[new].unnoticed_by) = (true, None);
        (self.hosts[new].is_stranger, self.hosts[new].lost_power) = (false, false);
        (self.hosts[new].is_newcomer, self.hosts[old].is_newcomer) = (true, false);
        (self.hosts[old].is_impaired, self.hosts[old].is_stranger) = (false, true);
    }

    fn is_joining(&self) -> bool {
        self.serving_engine().is_some_and(|engine| engine.is_joining())
    }
}
