//! What is known of the members: who counts against what the level survives.

use netraid_block::narrow;
use netraid_raid::{
    label::Label,
    member::{MemberIndex, MemberState},
    volume::{Event, Machine as _},
};

use super::{CACHE_DOUBT, Case, Phase, World};
use crate::array::{oracle::EngineId, subset::newest_label};

impl World {
    /// Members of the array that count against what the level survives.
    pub(super) fn impaired(&self) -> usize {
        let is_impaired = |host: &&usize| self.hosts[**host].is_impaired;
        self.places.iter().filter(is_impaired).count()
    }

    /// Takes hosts that are whole again off that count.
    pub(super) fn forgive(&mut self) {
        let Some(id) = self.serving else { return };
        let Some(label) = self.serving_label() else { return };
        let Some(serving) = self.engine(id).and_then(|engine| engine.serving()) else { return };
        let machine = serving.volume.machine();
        if machine.labels_pending() {
            return;
        }
        let members = machine.geometry().member_indices();
        let are_in_sync: Vec<bool> = members
            .map(|member| {
                let is_so = |state| state == MemberState::InSync;
                is_so(label.state(member)) && is_so(machine.member_state(member))
            })
            .collect();
        for (member, host) in self.places.clone().into_iter().enumerate() {
            let is_in_sync = are_in_sync[member];
            let host = &mut self.hosts[host];
            let is_noticed = host.unnoticed_by.is_none_or(|engine| engine < id);
            if is_in_sync && host.trouble.is_none() && is_noticed {
                (host.is_impaired, host.unnoticed_by) = (false, None);
                host.must_be_noticed = false;
            }
        }
        self.set_manners();
    }

    /// While a member is impaired, no dial is unanswered: an opening tries once, and goes on without who does not answer.
    fn set_manners(&mut self) {
        let is_calm = self.impaired() > 0 || self.phase > Phase::Lives;
        if is_calm != self.is_calm {
            self.is_calm = is_calm;
            let mut manners = self.plan.manners.clone();
            if is_calm {
                (manners.unanswered_one_in, manners.slow_one_in) = (0, 0);
                // What a lost session had under way waits for that one.
                manners.beside_unanswered_one_in = 0;
            }
            self.net.set_manners(manners);
        }
    }

    /// A host was in trouble by which it may have to leave the array.
    pub(super) fn impair(&mut self, host: usize) {
        let newest = EngineId(self.last_engine);
        let host = &mut self.hosts[host];
        (host.is_impaired, host.unnoticed_by) = (true, Some(newest));
        self.set_manners();
    }

    pub(super) fn is_degraded(&self) -> bool {
        let Some(serving) = self.serving_engine().and_then(|engine| engine.serving()) else {
            return false;
        };
        let machine = serving.volume.machine();
        let is_away = |member: MemberIndex| machine.member_state(member) != MemberState::InSync;
        machine.geometry().member_indices().any(is_away)
    }

    /// Whether all members are in sync, and nothing is on its way.
    pub(super) fn is_whole(&self) -> bool {
        let Some(engine) = self.serving_engine() else { return false };
        let Some(serving) = engine.serving() else { return false };
        let is_idle = !serving.volume.machine().labels_pending() && engine.is_settled();
        is_idle && !self.is_degraded()
    }

    /// A member of an engine was set aside.
    pub(super) fn hear_parted(&mut self, id: EngineId, member: usize) {
        let place = self.engine(id).and_then(|engine| Some(engine.places()?[member]));
        let Some(host) = place else { return };
        let host = &mut self.hosts[host];
        let was_well = !core::mem::replace(&mut host.is_impaired, true);
        // A host that was set aside is known to be away, also when nothing befell it. What a superseded
        // engine knows does not count.
        if self.serving == Some(id) {
            (host.unnoticed_by, host.must_be_noticed) = (None, false);
        }
        let is_replaced = self.replacing.is_some_and(|(replaced, _)| replaced == member);
        // Once nothing befalls the array any more, what befell it before has not settled.
        let is_judged = self.phase == Phase::Lives
            && self.serving == Some(id)
            && !self.is_excused(id)
            && self.all_dials_answered();
        if was_well && !is_replaced && is_judged {
            self.unexplained = Some(member);
        }
        if self.impaired() > self.tolerance() && self.serving == Some(id) {
            // Nothing that was done to it explains it: what befalls others now could be too much.
            self.note(|| format!("member {member} left by itself"));
        }
    }

    /// Whether a session that is lost is made again in time, when nothing befell its host.
    pub(super) fn all_dials_answered(&self) -> bool {
        let (manners, line) = (&self.plan.manners, &self.plan.line);
        let are_beside = line.sessions > 1 && manners.beside_unanswered_one_in > 0;
        // With several portals a dial has a quarter of a request's time.
        let limit = line.login_timeout.min(line.request_timeout / 4);
        let are_late = manners.slow_one_in > 0 && *manners.slow.end() >= limit;
        manners.unanswered_one_in == 0 && !are_beside && !are_late
    }

    pub(super) fn hear_event(&mut self, id: EngineId, event: Event) {
        match event {
            Event::Member { member, state, ref reason, .. } => {
                if state == MemberState::CatchingUp {
                    self.count(Case::CatchingUp);
                }
                let is_doubt = reason.contains(CACHE_DOUBT);
                if is_doubt {
                    self.count(Case::CacheLossCounted);
                }
                // What an examination was told that broke off counts as a lost cache, for all that is known; and a LUN that
                // was removed has no registrations when it is there again.
                // One that is cut off, hangs, or waits for what was lost on its way for half a second is one that writes do not wait for.
                let is_explained = is_doubt
                    || reason.contains("nothing came from it")
                    || reason.contains("has forgotten this host's registration")
                    || reason.contains("set aside by command");
                let unexplained = self.unexplained.take().filter(|_| !is_explained);
                if unexplained == Some(member.as_usize()) {
                    self.fail(format!(
                        "member {member} is set aside, and nothing befell it: {reason}"
                    ));
                }
            }
            Event::Suspect { failure: Some(_), .. } => self.count(Case::Suspected),
            Event::Slow { failure: Some(_), .. } => self.count(Case::ReadsGoPast),
            Event::Suspect { failure: None, .. }
            | Event::Slow { failure: None, .. }
            | Event::Notice(_) => {}
            Event::State(state) => self.hear_state(id, state),
            Event::Repaired { .. } => self.count(Case::Repaired),
            Event::Rebuilt(_) => self.count(Case::CaughtUp),
            Event::Resynced => {
                self.count(Case::Resynced);
                let pending = self
                    .engine(id)
                    .and_then(|engine| engine.serving())
                    .is_none_or(|serving| serving.volume.machine().labels_pending());
                if self.serving == Some(id) && !pending {
                    self.is_unsynced = false;
                    self.unsynced_upto = self.next_request;
                    self.oracle.end_resync();
                }
            }
            // Whoever opens it anew has parity taken as it is.
            Event::Incomplete { .. } => {
                self.net.put_in(core::time::Duration::ZERO, super::Happening::Kill(id));
            }
            Event::Unrepaired { member, offset, reason, .. } => {
                if !self.is_excused(id) {
                    self.fail(format!("a block is lost: member {member}, {offset:#x}: {reason}"));
                }
            }
            Event::Scrubbed { status, .. } => {
                self.count(Case::Scrubbed);
                self.is_scrubbing = false;
                if self.phase == Phase::Again {
                    self.note(|| format!("the last scrub: {status:?}"));
                    self.has_scrubbed = true;
                }
            }
            Event::NotBack { .. } => self.count(Case::NotBack),
        }
        self.forgive();
    }

    fn hear_state(&mut self, id: EngineId, state: netraid_raid::member::ArrayState) {
        if state != netraid_raid::member::ArrayState::Failed {
            return;
        }
        let Some(at) = self.position(id) else { return };
        let failure =
            self.engines[at].serving().and_then(|serving| serving.volume.machine().failure());
        let text = failure.as_ref().map(ToString::to_string).unwrap_or_default();
        if self.serving == Some(id) && !self.is_excused_for(id, &text) {
            let states = self.states();
            self.fail(format!("the array failed: {failure:?}; members are {states}"));
        }
        self.with(at, |engine, context| engine.handle_close(context));
    }

    pub(super) fn states(&self) -> String {
        let states = self
            .serving_label()
            .map(|label| label.members.iter().map(|entry| entry.state.name()).collect::<Vec<_>>());
        format!("{states:?}")
    }

    /// Which host has each place, as an administrator knows who has seen the labels.
    pub(super) fn look_for_places(&mut self) {
        let labels: Vec<Option<Label>> = self
            .hosts
            .iter()
            .map(|host| newest_label(self.net.disk(host.id)))
            .map(|label| label.filter(|label| label.array_uuid == super::ARRAY))
            .collect();
        let newest = labels.iter().flatten().max_by_key(|it| (it.generation, it.epoch));
        let Some(newest) = newest.cloned() else { return };
        for (member, entry) in newest.members.iter().enumerate() {
            let index = MemberIndex(narrow(member));
            let is_its = |label: &Option<Label>| {
                label.as_ref().is_some_and(|label| {
                    label.index == index && label.members[member].uuid == entry.uuid
                })
            };
            let at = labels.iter().position(is_its);
            if let Some(at) = at.filter(|at| *at == self.spare) {
                self.spare = core::mem::replace(&mut self.places[member], at);
                self.note(|| format!("host {at} has the place of member {member}"));
                self.note_newcomer(at, self.spare);
            }
        }
    }
}
