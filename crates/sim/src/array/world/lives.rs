//! Engines that start, open the array, serve it and die, and what the world makes of their words.

use core::time::Duration;

use netraid_raid::{
    checkpoint::Checkpoint,
    label::{LABEL_LEN, Label},
    logged::RequestId,
    member::{ArrayState, MemberState},
    regions::{CHECKPOINT_OFFSETS, LABEL_OFFSETS, PAGE_LEN},
    volume::{self, Event},
};

use super::{FAILED_OPENINGS_MAX, Happening, Host, Phase, REST_MAX, SHORT_LIFE, WATCHES, World};
use crate::{
    array::{
        engine::{Due, Engine, Near, Notice},
        faults::Trouble,
        machine::Machine,
        oracle::EngineId,
        plan::{Fault, Mode, Plan},
        session::Session,
    },
    dice::Dice,
    disk::Disk,
    target::Nexus,
};

impl<M: Machine> World<M> {
    pub(super) fn start(&mut self, host: usize) {
        if self.engines.iter().any(|engine| engine.host == self.engine_hosts[host]) {
            return;
        }
        self.last_engine += 1;
        let id = EngineId(self.last_engine);
        let nexus = match self.last_nexus[host] {
            // A session of the same name ends the older one by itself.
            Some(nexus) if self.dice.one_in(2) => nexus,
            Some(_) | None => Nexus(u64::from(id.0)),
        };
        self.last_nexus[host] = Some(nexus);
        let now = self.now();
        let own = self.engine_hosts[host];
        let session = |member: &Host| {
            let block_len = self.fittings.block_len;
            Session::new((own, member.id), nexus, block_len, Plan::patience(), now)
        };
        let sessions = self.hosts.iter().map(session).collect();
        let until = now.after(Duration::from_millis(60));
        let fittings = self.fittings.clone();
        let mut engine = Engine::new(id, (own, nexus), sessions, (now, until), fittings);
        if self.phase == Phase::Lives
            && self.recovery_depth < 3
            && self.dice.one_in(self.plan.crash_in_recovery)
        {
            let near = near(&self.plan, &mut self.dice, Some(self.recovery_actions));
            let anywhere = 1 + self.dice.below(self.recovery_actions + 4);
            engine.dies = Some(Due { after: if near.is_some() { 0 } else { anywhere }, near });
        }
        let (data, more) = (self.plan.regions.data, self.dice.below(6));
        let near = Near { region: data.offset..data.end(), more, within: u64::MAX };
        engine.watched = Some((Due { after: 0, near: Some(near) }, WATCHES));
        self.note(|| format!("engine {}: starts on host {host}", id.0));
        self.engines.push(engine);
        self.plan_stop_of_opening(id);
    }

    /// An engine is no more.
    pub(in crate::array) fn kill(&mut self, id: EngineId, why: &str) {
        let Some(at) = self.engines.iter().position(|engine| engine.id == id) else { return };
        let engine = self.engines.swap_remove(at);
        self.counts.actions += engine.actions;
        self.counts.ahead += engine.answered_ahead();
        self.counts.rules.add(&engine.machine().map(Machine::rules).unwrap_or_default());
        self.note(|| format!("engine {}: is no more: {why}", id.0));
        self.trace.mix(&[5, u64::from(id.0), engine.actions]);
        // Its labels may say already that the array is open.
        self.is_closed = false;
        let now = self.now();
        self.network.crash_host(now, engine.host, Duration::from_millis(2));
        for host in self.hosts.iter().filter(|host| host.trouble != Some(Trouble::Cut)) {
            self.network.heal(now, engine.host, host.id);
        }
        self.requests.retain(|(owner, _), _| *owner != id);
        self.stopping = self.stopping.filter(|stop| stop.id != id);
        self.healing = self.healing.filter(|healing| *healing != id);
        if self.serving == Some(id) {
            self.serving = None;
            self.sweep = None;
            self.is_resting = false;
            if self.phase == Phase::Closing {
                self.phase = Phase::Ending;
            }
            self.make_room();
        }
        if self.engines.is_empty() && self.phase != Phase::Over {
            let host = if self.plan.faults.contains(&Fault::TwoEngines) && self.dice.one_in(3) {
                usize::from(self.engine_hosts[0] == engine.host)
            } else {
                usize::from(self.engine_hosts[1] == engine.host)
            };
            let wait = Duration::from_micros(self.dice.below(5_000));
            self.agenda.put_in(wait, Happening::Start(host));
        }
    }

    pub(super) fn hear_all(&mut self) {
        while let Some((id, notice)) = self.notices.pop_front() {
            let is_known = self.engines.iter().any(|engine| engine.id == id);
            if is_known && self.violation.is_none() && self.phase != Phase::Over {
                self.hear(id, notice);
            }
        }
    }

    fn hear(&mut self, id: EngineId, notice: Notice) {
        match notice {
            Notice::Completed(request, result) => self.complete(id, request, result),
            Notice::Event(event) => self.hear_event(id, event),
            Notice::Opened(Ok(())) => {
                *self.counts.told.entry("opened").or_default() += 1;
                self.open(id);
            }
            // That it has closed is told, too.
            Notice::Opened(Err(_)) => {}
            Notice::Closed => {
                *self.counts.told.entry("closed").or_default() += 1;
                self.close(id);
            }
            Notice::Asks(generation, epoch) => {
                let alone = self.engines.len() == 1;
                // What an older engine has sent to a member that is off will never land; and one
                // with another label would not know later who had the array.
                let is_harmless = |(member, host): (usize, &Host)| {
                    let is_found = self.engines.iter().any(|engine| engine.has_found(member));
                    let is_same = self.label_on(host.target.disk()) == Some((generation, epoch));
                    is_found || (!host.target.is_on() && is_same)
                };
                let may_open = alone && self.hosts.iter().enumerate().all(is_harmless);
                if let Some(at) = self.engines.iter().position(|engine| engine.id == id) {
                    self.with(at, |engine, context| engine.handle_word(context, may_open));
                }
            }
            Notice::Refused(why) => {
                self.kill(id, &why);
                self.count_failed_opening(id, false);
            }
            Notice::Dies => self.die(id),
            Notice::Watched => self.look_at_a_recovery(id),
            Notice::Fenced(_) => {
                if self.engines.len() > 1 || self.dice.one_in(2) {
                    let wait = Duration::from_micros(self.dice.below(3_000));
                    self.agenda.put_in(wait, Happening::Kill(id));
                } else {
                    self.agenda.put_in(Duration::ZERO, Happening::Kill(id));
                }
                self.excused_upto = self.excused_upto.max(id.0);
            }
            Notice::Gone(member) => {
                self.hosts[member].losses += 1;
                self.hosts[member].noticed_by.push(id);
                self.has_lost_one = Some(id);
                self.be_nervous(id);
            }
            Notice::Paused => self.begin_pause(id),
            Notice::Resumed(lost) => self.resume(id, &lost),
            Notice::Nonsense(text) => self.fail(text),
        }
    }

    fn die(&mut self, id: EngineId) {
        self.counts.crashes += 1;
        if self.serving == Some(id) {
            *self.counts.faults.entry(Fault::EngineCrash).or_default() += 1;
            let in_flight = self.in_flight(id);
            self.counts.serving_crashes += 1;
            self.counts.in_flight += in_flight;
            let least = self.counts.in_flight_min.unwrap_or(in_flight).min(in_flight);
            self.counts.in_flight_min = Some(least);
            self.recovery_depth = 0;
            self.look_at_a_subset(id);
            if let Some((member, block)) = self.spoilt_log.take() {
                self.recover_block(member, block);
            }
        } else {
            *self.counts.faults.entry(Fault::CrashInRecovery).or_default() += 1;
            self.counts.crashes_in_recovery += 1;
            self.recovery_depth += 1;
            self.counts.depths[self.recovery_depth.min(3)] += 1;
            self.look_at_a_recovery(id);
        }
        self.kill(id, "it crashes");
        self.spoil_the_end_of_the_log();
        self.lose_power_with_engine();
    }

    /// A member has gone: in some runs the engine that lost it dies just then.
    fn be_nervous(&mut self, id: EngineId) {
        if self.serving != Some(id) || !self.dice.one_in(self.plan.moods.dies_of_losses) {
            return;
        }
        let soon = self.dice.below(12);
        if let Some(engine) = self.engines.iter_mut().find(|engine| engine.id == id) {
            let soon = engine.actions + soon;
            if let Some(dies) = &mut engine.dies {
                *dies = Due { after: dies.after.min(soon), near: None };
            }
        }
    }

    /// Why an opening may fail: too few members are there, or one left meanwhile.
    fn count_failed_opening(&mut self, id: EngineId, is_grave: bool) {
        self.failed_openings += 1;
        if self.failed_openings > FAILED_OPENINGS_MAX && self.plan.mode == Mode::Beyond {
            // Too much was lost for ever.
            self.counts.given_up += 1;
            self.phase = Phase::Over;
        } else if self.failed_openings > FAILED_OPENINGS_MAX {
            self.fail(format!("{FAILED_OPENINGS_MAX} openings in a row have failed"));
        } else if is_grave && !self.is_excused(id) {
            self.fail("the array does not open although no more befell it than it survives".into());
        }
    }

    fn hear_event(&mut self, id: EngineId, event: Event) {
        let name = match &event {
            Event::Member { .. } => "member",
            Event::Suspect { .. } => "suspect",
            Event::Slow { .. } => "slow",
            Event::State(_) => "state",
            Event::Repaired { .. } => "repaired",
            Event::Unrepaired { .. } => "lost",
            Event::Rebuilt(_) => "caught up",
            Event::Notice(_) => "notice",
            Event::NotBack { .. } => "not back",
            Event::Resynced => "resynced",
            Event::Incomplete { .. } => "incomplete",
            Event::Scrubbed { .. } => "scrubbed",
        };
        *self.counts.told.entry(name).or_default() += 1;
        match event {
            Event::State(ArrayState::Failed) => self.note_failure(id),
            // It cannot be had while the others are away.
            Event::Unrepaired { .. } if self.too_many_are_away() => {}
            Event::Unrepaired { .. } => {
                self.has_lost_rows = true;
                if !self.is_excused(id) {
                    self.fail("a block is lost although no more befell it than it survives".into());
                }
            }
            // Nothing that befell it, and yet it is away: as one engine left the array to the next.
            Event::Member { member, state, .. } if !state.is_live() => {
                let host = &mut self.hosts[member.as_usize()];
                if !host.is_impaired {
                    host.is_impaired = true;
                    // Whom this engine pushes aside does not know better.
                    host.engine_then = id.0.saturating_sub(1);
                    self.make_room();
                }
            }
            // A member that left meanwhile has not, until labels say so, what a resync has written without it.
            Event::Resynced if self.serving == Some(id) => {
                self.unsynced_upto = self.next_request;
                if !self.labels_are_pending(id) {
                    self.is_unsynced = false;
                    self.oracle.end_resync();
                }
            }
            // Whoever opens it anew has parity taken as it is.
            Event::Incomplete { .. } => {
                self.agenda.put_in(Duration::ZERO, Happening::Kill(id));
            }
            Event::Member { .. }
            | Event::Suspect { .. }
            | Event::Slow { .. }
            | Event::State(_)
            | Event::Repaired { .. }
            | Event::Rebuilt(_)
            | Event::Resynced
            | Event::Scrubbed { .. }
            | Event::NotBack { .. }
            | Event::Notice(_) => {}
        }
    }

    fn labels_are_pending(&self, id: EngineId) -> bool {
        let mut engines = self.engines.iter().filter(|engine| engine.id == id);
        engines.any(|engine| engine.machine().is_some_and(volume::Machine::labels_pending))
    }

    /// Whether a request may have been refused because members lack what their parity does not tell: that of a stripe which
    /// a crash left torn, and before a resync has ended of any stripe, as no engine knows which ones were being written.
    pub(super) fn may_lack_parity(&self, id: EngineId, request: RequestId) -> bool {
        let mut engines = self.engines.iter().filter(|engine| engine.id == id);
        let Some(machine) = engines.find_map(Engine::machine) else { return false };
        let is_away = machine.label().members.iter().any(|it| it.state != MemberState::InSync);
        let was_unsynced = request.0 < self.unsynced_upto;
        is_away
            && (was_unsynced
                || self.oracle.has_torn()
                || (self.is_unsynced && machine.is_resyncing()))
    }

    fn note_failure(&mut self, id: EngineId) {
        let Some(at) = self.engines.iter().position(|engine| engine.id == id) else { return };
        let error = self.engines[at].machine().and_then(volume::Machine::failure);
        let text = error.as_ref().map(ToString::to_string).unwrap_or_default();
        self.excuse_want_of_space(id, &text);
        if self.serving == Some(id) && !self.is_excused(id) {
            self.fail(format!("the array failed: {error:?}"));
        }
        // Whoever has it open gives it up.
        self.with(at, |engine, context| engine.handle_close(context));
    }

    fn open(&mut self, id: EngineId) {
        self.counts.openings += 1;
        self.failed_openings = 0;
        self.recovery_depth = 0;
        if let Some(old) = self.serving.replace(id) {
            let wait = Duration::from_micros(self.dice.below(30_000));
            self.agenda.put_in(wait, Happening::Kill(old));
        }
        self.take_stock(id);
        let engine = self.engines.iter().find(|engine| engine.id == id);
        let trusts_parity = engine.is_some_and(|engine| engine.trusts_parity);
        self.oracle.open(id);
        self.lost.clear();
        self.is_told_of_losses = true;
        self.is_unsynced = !core::mem::take(&mut self.is_closed);
        if trusts_parity {
            self.note(|| "parity counts as it is".into());
            self.counts.trusted += 1;
            self.oracle.lose_torn_stripes();
        }
        let is_last = self.lives == 0;
        self.lives = self.lives.saturating_sub(1);
        self.sweep = Some(0);
        self.sweeps_in_flight = 0;
        self.life_requests = 0;
        self.sweeps_alone = is_last || self.dice.one_in(2);
        let (low, high) = (*self.plan.depth.start(), *self.plan.depth.end());
        self.depth = low + self.dice.below(high - low + 1);
        self.is_resting = self.dice.one_in(6);
        self.left_alone_at = None;
        if let Some(engine) = self.engines.iter().find(|engine| engine.id == id) {
            self.recovery_actions = (self.recovery_actions + engine.actions) / 2;
        }
        if is_last {
            self.photograph_some();
            return self.begin_ending();
        }
        self.begin_healing(id);
        self.is_resting |= self.healing.is_some();
        self.rests_until = self.now().after(REST_MAX);
        self.give_life(id);
        self.photograph_some();
    }

    /// Says when an engine that serves dies, or is told to close.
    pub(in crate::array) fn give_life(&mut self, id: EngineId) {
        // Many die before recovery's last traces are gone.
        // What it reads before it logs anything is what it will have been.
        let is_to_read = self.spoilt_log.is_some();
        self.sweeps_alone |= is_to_read;
        let mean = match self.dice.below(8) {
            0 => SHORT_LIFE / 4,
            1 | 2 => SHORT_LIFE,
            _ => self.plan.life,
        };
        let life = 1 + u64::try_from(self.dice.time_to_next(Duration::from_nanos(mean)).as_nanos())
            .unwrap_or(0);
        self.plan_stop(id);
        let is_left_alone = self.healing == Some(id);
        if let Some(engine) = self.engines.iter_mut().find(|engine| engine.id == id) {
            let mut dies =
                Due { after: engine.actions + life, near: near(&self.plan, &mut self.dice, None) };
            if is_to_read {
                let log = self.plan.regions.log;
                let near = Near { region: log.offset..log.end(), more: 0, within: 400 };
                dies = Due { after: engine.actions, near: Some(near) };
            }
            engine.dies = (!is_left_alone).then_some(dies);
        }
    }

    /// The array is open: who counts against what it survives, and what may be gone with them?
    fn take_stock(&mut self, id: EngineId) {
        let Some(engine) = self.engines.iter().find(|engine| engine.id == id) else { return };
        let in_sync: Vec<bool> = (0..self.hosts.len()).map(|at| engine.is_in_sync(at)).collect();
        // What only members had that are not in sync, or lost their caches.
        let unsure = (0..self.hosts.len()).filter(|at| !in_sync[*at] || self.hosts[*at].lost_power);
        // Without a log, what a member has lost of its cache while nobody asked for it is computed from no other.
        let limit = if M::HAS_LOG { self.tolerance() } else { 0 };
        if unsure.count() > limit {
            self.oracle.lose_power();
        }
        for (host, in_sync) in self.hosts.iter_mut().zip(in_sync) {
            host.lost_power &= host.trouble.is_some() || !in_sync;
            if !in_sync && !host.is_impaired {
                host.is_impaired = true;
                host.engine_then = 0;
            }
        }
        self.make_room();
    }

    fn close(&mut self, id: EngineId) {
        let Some(engine) = self.engines.iter().find(|engine| engine.id == id) else { return };
        let failure = engine.machine().and_then(volume::Machine::failure);
        if self.is_stopping(id) {
            return self.end_stop(id);
        }
        if self.phase == Phase::Closing && failure.is_none() {
            if self.has_lost_rows {
                self.counts.with_lost_rows += 1;
            } else {
                self.look_at_media(true);
                self.look_at_all_subsets();
            }
            self.kill(id, "it has closed the array");
            self.phase = Phase::Over;
            return;
        }
        if self.serving == Some(id) {
            if !self.is_excused(id) {
                self.fail(format!("the array has closed by itself: {failure:?}"));
            }
            self.kill(id, "the array failed");
            return;
        }
        let left = engine.has_lost_one();
        let is_here = |(member, host): (usize, &Host)| host.is_impaired || engine.found(member);
        let all_are_here = self.hosts.iter().enumerate().all(is_here);
        self.kill(id, &format!("the array cannot be opened: {failure:?}"));
        let too_few = self.hosts.iter().filter(|host| host.is_impaired).count()
            > usize::try_from(self.plan.geometry.tolerance()).unwrap_or(0);
        // One without space is lost to what recovery writes, beside one that was not reached when the one before opened.
        let is_grave = !left && all_are_here && !too_few && !self.is_short_of_space();
        self.count_failed_opening(id, is_grave);
    }

    pub(super) fn sessions_are_ready(&self, at: usize) -> bool {
        let engine = &self.engines[at];
        (0..self.hosts.len()).all(|member| engine.has(member) == engine.sessions[member].is_ready())
    }

    /// The newest checkpoint on a member's medium.
    fn checkpoint_on(&self, disk: &Disk) -> Option<u64> {
        let block = u64::from(self.fittings.block_len);
        let read = |slot: usize| {
            let first = CHECKPOINT_OFFSETS[slot] / block;
            let data = disk.read(first..first + u64::from(PAGE_LEN) / block).ok()?.to_contiguous();
            let found = Checkpoint::decode(&data, self.fittings.array_uuid, slot).ok()?;
            Some(found.counter)
        };
        read(0).max(read(1))
    }

    /// Whether a member with these contents would be taken for an older image of itself, whatever
    /// happens to the engine: it is behind by more than a label or a checkpoint that may have been
    /// under way.
    pub(in crate::array) fn is_told_by_its_age(&self, disk: &Disk) -> bool {
        let others = || self.hosts.iter().map(|host| host.target.disk());
        let epoch = |disk: &Disk| self.label_on(disk).map(|(_, epoch)| epoch);
        let (newest, own) = (others().filter_map(epoch).max(), epoch(disk));
        let is_behind = |newest: Option<u64>, own: Option<u64>| {
            own.is_none_or(|own| newest.is_some_and(|newest| own + 1 < newest))
        };
        let checkpoints = others().filter_map(|disk| self.checkpoint_on(disk)).max();
        is_behind(newest, own) || is_behind(checkpoints, self.checkpoint_on(disk))
    }

    /// The newest label on a member's medium.
    fn label_on(&self, disk: &Disk) -> Option<(u64, u64)> {
        let block = u64::from(self.fittings.block_len);
        let read = |copy: usize| {
            let first = LABEL_OFFSETS[copy] / block;
            let data = disk.read(first..first + LABEL_LEN as u64 / block).ok()?;
            let label = Label::decode(&data.to_contiguous(), copy).ok()?;
            let is_ours = label.array_uuid == self.fittings.array_uuid;
            is_ours.then_some((label.generation, label.epoch))
        };
        read(0).max(read(1))
    }
}

/// Where an engine writes just before it dies, in so many member requests of a recovery or soon
/// after it is due to; half of all die anywhere.
fn near(plan: &Plan, dice: &mut Dice, recovery: Option<u64>) -> Option<Near> {
    let regions = &plan.regions;
    if !plan.has_log {
        let places = [regions.labels, regions.written, regions.data, regions.data];
        let region = places[dice.index(places.len())];
        let (more, within) = (dice.below(6), recovery.unwrap_or(100));
        let near = Near { region: region.offset..region.end(), more, within };
        return dice.one_in(2).then_some(near);
    }
    let places = [
        regions.labels.offset..CHECKPOINT_OFFSETS[0],
        CHECKPOINT_OFFSETS[0]..regions.labels.end(),
        regions.log.offset..regions.log.end(),
        regions.data.offset..regions.data.end(),
        regions.data.offset..regions.data.end(),
        // A recovery does not write these.
        regions.map.offset..regions.map.end(),
        regions.sums.offset..regions.sums.end(),
    ];
    let count = if recovery.is_some() { 5 } else { places.len() };
    let region = places[dice.index(count)].clone();
    let (more, within) = (dice.below(6), recovery.unwrap_or(100));
    dice.one_in(2).then_some(Near { region, more, within })
}
