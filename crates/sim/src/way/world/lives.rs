//! Engines that start, open the array, serve it and end, and what the world makes of their words.

use core::time::Duration;

use netraid_block::IoError;
use netraid_raid::{
    assemble::AssembleError,
    geometry::Level,
    label::Holder,
    member::MemberState,
    volume::{Machine as _, PlainOrLogged},
};

use super::{Case, Happening, MACHINES, Phase, World};
use crate::{
    array::{machine::Machine as _, oracle::EngineId, subset::newest_label},
    way::{
        device::Failure,
        engine::{Engine, Notice},
        interface::Death,
        opening::Options,
        plan::Fall,
        script::Desk,
    },
};

/// Most openings in a row that are refused.
const REFUSALS_MAX: u32 = 150;
/// The same once nothing befalls the array any more.
const LATE_REFUSALS_MAX: u32 = 25;

impl World {
    /// An engine starts on a machine; `beside` another one, or when nobody has the array.
    pub(super) fn start(&mut self, machine: usize, beside: bool) {
        let is_taken = self.engines.iter().any(|engine| beside && engine.machine == machine);
        if self.phase == Phase::Over || is_taken || (!beside && !self.engines.is_empty()) {
            return;
        }
        self.look_for_places();
        self.last_engine += 1;
        let id = EngineId(self.last_engine);
        let (this, is_other) = self.holder(machine);
        let case =
            if machine == self.last_machine { Case::SameMachine } else { Case::OtherMachine };
        if self.openings > 0 {
            self.count(case);
        }
        self.last_machine = machine;
        let options = Options {
            this,
            hosts: self.places.clone(),
            take_over: is_other,
            force: core::mem::take(&mut self.forces_next),
            limits: self.plan.limits,
            pool: self.pool.clone(),
        };
        self.note(|| {
            format!(
                "engine {}: starts on machine {machine}, hosts {:?}, take over {}, force {}",
                id.0, options.hosts, options.take_over, options.force
            )
        });
        let desk = Desk::new(self.plan.seed.dice(&format!("engine {}", id.0)));
        let mut line = self.plan.line.clone();
        line.initiator_name = format!("{}-{machine}", line.initiator_name);
        if self.plan.varies_sessions {
            line.sessions =
                1 + netraid_block::narrow::<_, u8>(self.dice.below(line.sessions.into()));
        }
        if line.sessions < core::mem::replace(&mut self.last_sessions, line.sessions) {
            self.count(Case::FewerSessions);
        }
        let seat = self.seats[machine];
        self.engines.push(Engine::new(id, (machine, seat), options, desk, line));
        let at = self.engines.len() - 1;
        self.with(at, Engine::begin);
        if self.phase == Phase::Lives && self.dice.one_in(self.plan.crash_in_opening) {
            // Where requests straggle, one who opens may wait for their ends.
            let longest = if self.any_straggles() { 4_000_000 } else { 60_000 };
            let wait = Duration::from_micros(self.dice.below(longest));
            self.net.put_in(wait, Happening::CrashOpening(id));
        }
        if self.phase == Phase::Lives && self.fault_dice.one_in(4) {
            let wait = Duration::from_micros(self.fault_dice.below(80_000));
            self.net.put_in(wait, Happening::FaultInOpening(id));
        }
    }

    /// Who an engine on a machine is, and whether another machine had the array last.
    fn holder(&self, machine: usize) -> (Holder, bool) {
        let number: u8 = netraid_block::narrow(machine);
        let this = Holder {
            engine_id: [netraid_block::narrow(self.last_engine % 250 + 1); 16],
            machine_id: [number + 1; 16],
            boot_id: [100 * (number + 1) + self.boots[machine]; 16],
            name: format!("machine {machine}"),
            lock: (1, 7),
        };
        let labels = self.host_ids.iter().filter_map(|host| newest_label(self.net.disk(*host)));
        let newest = labels.max_by_key(|label| (label.generation, label.epoch));
        let last = newest.map(|label| label.holder.machine_id);
        let is_other = last.is_some_and(|last| last != [0; 16] && last != this.machine_id);
        (this, is_other)
    }

    pub(super) fn push_aside(&mut self) {
        let [old] = self.engines.as_slice() else { return };
        if Some(old.id) != self.serving || self.told_to_close.is_some() {
            return;
        }
        let (old, machine) = (old.id, old.machine);
        self.count(Case::LivingPushedAside);
        self.superseded.insert(old);
        if self.dice.one_in(2) {
            let time = Duration::from_millis(100 + self.dice.below(4000));
            self.net.hang_engine(self.seats[machine], time);
        }
        self.start((machine + 1) % MACHINES, true);
    }

    /// An engine is no more: its process has ended, or its machine has.
    pub(super) fn kill(&mut self, id: EngineId, with_machine: bool, why: &str) {
        let Some(at) = self.position(id) else { return };
        let engine = self.engines.swap_remove(at);
        let death = if with_machine { Death::Machine } else { Death::Process };
        self.net.kill_engine(self.seats[engine.machine], death);
        if self.phase == Phase::Lives {
            self.hold_behind_dead();
        }
        if with_machine {
            self.boots[engine.machine] += 1;
        }
        if engine.serving().is_none() && self.any_under_way() {
            self.count(Case::OpeningLeftRequests);
        }
        self.bury(engine, why);
    }

    /// What is left of an engine that is no more.
    fn bury(&mut self, engine: Engine, why: &str) {
        let id = engine.id;
        self.set_timer(id, None);
        self.note(|| format!("engine {}: is no more: {why}", id.0));
        self.net.trace().mix(&[5, u64::from(id.0)]);
        if let Some(PlainOrLogged::Logged(logged)) =
            engine.serving().map(|serving| serving.volume.machine())
        {
            self.sights.rules.add(&logged.rules());
        }
        let before = self.requests.len();
        self.requests.retain(|(owner, _), _| *owner != id);
        for _ in self.requests.len()..before {
            self.count(Case::RequestLost);
        }
        self.told_to_close = self.told_to_close.filter(|(stopped, _)| *stopped != id);
        if self.serving == Some(id) {
            self.serving = None;
            (self.sweep, self.has_swept) = (None, false);
            (self.is_scrubbing, self.has_scrubbed) = (false, false);
            if self.phase == Phase::Closing {
                self.phase = Phase::Healing;
            }
        }
        if self.engines.is_empty() && self.phase != Phase::Over {
            let machine = match self.plan.reserves && self.dice.one_in(2) {
                true => self.dice.index(MACHINES),
                false => engine.machine,
            };
            let wait = Duration::from_millis(self.dice.below(3000));
            self.net.put_in(wait, Happening::Start(machine));
        }
    }

    pub(super) fn hear(&mut self, id: EngineId, notice: Notice) {
        match notice {
            Notice::Completed(request, result) => self.complete(id, request, result),
            Notice::Event(event) => self.hear_event(id, event),
            Notice::Opened(Ok(())) => self.hear_opened(id),
            // That it has closed is told, too.
            Notice::Opened(Err(_)) => {}
            Notice::Refused(failure) => self.hear_refused(id, &failure),
            Notice::Closed(failure) => self.hear_closed(id, failure),
            Notice::Parted(member) => self.hear_parted(id, member),
            Notice::NotJoined(host, failure) => self.hear_not_joined(host, &failure),
        }
    }

    fn hear_opened(&mut self, id: EngineId) {
        self.openings += 1;
        self.refusals = 0;
        self.count(Case::Opened);
        self.is_unsynced = self.oracle_is_open && !self.plan.has_log;
        if self.oracle_is_open {
            self.count(Case::Recovered);
        }
        self.oracle_is_open = true;
        if let Some(old) = self.serving.replace(id) {
            self.superseded.insert(old);
            let wait = Duration::from_millis(self.dice.below(8000));
            self.net.put_in(wait, Happening::Kill(old));
        }
        self.take_stock(id);
        let engine = self.engine(id);
        let (trusts, is_forced) =
            engine.map_or((false, false), |engine| (engine.trusts_parity, engine.is_forced));
        self.oracle.open(id);
        if trusts {
            self.sights.trusted += 1;
            self.oracle.lose_torn_stripes();
        }
        if is_forced {
            self.count(Case::Forced);
        }
        if self.is_degraded() {
            self.count(Case::OpenedDegraded);
        }
        (self.sweep, self.has_swept) = (None, false);
        if self.phase == Phase::Lives {
            if self.openings > self.plan.lives {
                return self.begin_healing();
            }
            let wait = self.dice.time_to_next(self.plan.life);
            self.net.put_in(wait, Happening::Fall(id));
        }
        // What was there is read before anything is written, in some lives.
        if self.dice.one_in(3) {
            self.sweep = Some(0);
        }
    }

    /// The array is open: what may be gone with those that lost their caches?
    fn take_stock(&mut self, id: EngineId) {
        let Some(serving) = self.engine(id).and_then(Engine::serving) else { return };
        let machine = serving.volume.machine();
        let members = self.plan.geometry.member_indices();
        let in_sync: Vec<bool> =
            members.map(|member| machine.member_state(member) == MemberState::InSync).collect();
        let is_unsure = |at: &usize| !in_sync[*at] || self.hosts[self.places[*at]].lost_power;
        let unsure = (0..in_sync.len()).filter(is_unsure).count();
        // Without a log, what a member has lost of its cache while nobody asked for it is computed from no other.
        let limit = if self.plan.has_log { self.tolerance() } else { 0 };
        if unsure > limit {
            self.oracle.lose_power();
        }
        for (at, in_sync) in in_sync.into_iter().enumerate() {
            let host = &mut self.hosts[self.places[at]];
            host.lost_power &= host.trouble.is_some() || !in_sync;
            if !in_sync {
                (host.is_impaired, host.unnoticed_by) = (true, None);
            }
        }
        self.forgive();
    }

    fn hear_refused(&mut self, id: EngineId, failure: &Failure) {
        self.count(Case::Refused);
        self.refusals += 1;
        let why = format!("it cannot open the array: {failure}");
        let Some(at) = self.position(id) else { return };
        let engine = self.engines.swap_remove(at);
        self.bury(engine, &why);
        let all_are_there = self.hosts.iter().all(|host| host.trouble.is_none());
        let is_doubt = matches!(
            failure,
            Failure::Assemble(
                AssembleError::UncleanDegraded { .. } | AssembleError::Contested { .. }
            )
        );
        self.forces_next = is_doubt && all_are_there && self.refusals > 2;
        if matches!(failure, Failure::Assemble(AssembleError::Diverged { .. }))
            && all_are_there
            && self.has_lost_its_witness()
        {
            self.count(Case::Diverged);
            self.phase = Phase::Over;
            return;
        }
        let is_over = self.phase > Phase::Lives && self.refusals > LATE_REFUSALS_MAX;
        if is_over || self.refusals > REFUSALS_MAX {
            self.fail(format!("{} openings in a row were refused: {failure}", self.refusals));
        }
        // Whom it was to push aside may serve still, or be fenced out in part.
        if let Some(old) = self.serving {
            self.net.put_in(Duration::from_secs(1), Happening::Kill(old));
        }
    }

    /// Whether of three mirrors or more one is another disk now than some other one knows: what the disk before it knew of
    /// the others nobody knows.
    fn has_lost_its_witness(&self) -> bool {
        let is_mirror = self.plan.geometry.level() == Level::Raid1;
        is_mirror
            && self.places.iter().any(|host| {
                let host = &self.hosts[*host];
                host.is_stranger || host.is_newcomer
            })
    }

    fn hear_closed(&mut self, id: EngineId, failure: Option<IoError>) {
        let Some(at) = self.position(id) else { return };
        let in_flight = self.in_flight(id);
        let was_told = self.told_to_close.is_some_and(|(stopped, _)| stopped == id);
        let is_serving = self.serving == Some(id);
        let label = self.engines[at].closed_label().cloned();
        let phase = self.phase;
        let engine = self.engines.swap_remove(at);
        self.bury(engine, &format!("it has closed the array: {failure:?}"));
        match failure {
            Some(failure) if is_serving && !self.is_excused(id) => {
                return self.fail(format!("the array failed and closed: {failure}"));
            }
            Some(_) => {
                self.count(Case::EngineFenced);
                return;
            }
            None => {}
        }
        if !was_told && !self.is_excused(id) {
            return self.fail("the array has closed by itself".into());
        }
        if in_flight > 0 {
            return self.fail(format!("it has closed, and {in_flight} requests have not ended"));
        }
        self.count(Case::Closed);
        if is_serving && !self.superseded.contains(&id) {
            self.oracle_is_open = false;
            let all = self.oracle.begin_flush();
            self.oracle.end_flush(all);
            if phase > Phase::Lives {
                self.end_closing(id, phase, label);
            }
        }
    }

    /// Something becomes of an engine that serves.
    pub(super) fn fall(&mut self, id: EngineId) {
        if self.serving != Some(id) || self.phase != Phase::Lives || self.told_to_close.is_some() {
            return;
        }
        let falls = self.plan.falls.clone();
        let Some(fall) = self.dice.pick(&falls).copied() else { return };
        self.note(|| format!("engine {}: {fall:?}", id.0));
        match fall {
            Fall::Process => {
                self.count(Case::CrashServing);
                self.kill(id, false, "it crashes");
            }
            Fall::Machine => {
                self.count(Case::MachineLost);
                self.kill(id, true, "its machine crashes");
            }
            Fall::PushedAside => self.push_aside(),
            Fall::Close => {
                // A process that stands still is told nothing.
                if let Some(until) = self.stands_still(id) {
                    self.net.put_in(until.since(self.net.now()), Happening::Fall(id));
                    return;
                }
                self.count(Case::ToldToClose);
                self.close(id);
            }
            Fall::Hang => {
                let Some(machine) = self.engine(id).map(|engine| engine.machine) else { return };
                let now = self.net.now();
                if now < self.awake_until {
                    // Something else may become of it then.
                    self.net.put_in(self.awake_until.since(now), Happening::Fall(id));
                    return;
                }
                self.count(Case::EngineHung);
                let seat = self.seats[machine];
                // For less than requests wait, and for longer than they may wait: that time does not count.
                let limit = self.plan.line.request_timeout;
                let short = Duration::from_millis(100 + self.dice.below(1500)).min(limit / 2);
                let time = match self.standstill_dice.one_in(3) {
                    true => limit.mul_f64(1.0 + self.standstill_dice.below(2000) as f64 / 1000.0),
                    false => short,
                };
                self.net.hang_engine(seat, time);
                self.standing = Some((id, now.after(time)));
                // Members are asked again before an engine stands still again.
                let busy = time + 2 * self.plan.line.request_timeout;
                self.awake_until = self.net.now().after(busy);
                let wait = self.dice.time_to_next(self.plan.life);
                self.net.put_in(wait + busy, Happening::Fall(id));
            }
        }
    }

    /// Tells an engine to close.
    pub(super) fn close(&mut self, id: EngineId) {
        let Some(at) = self.position(id) else { return };
        self.told_to_close = Some((id, self.next_request));
        self.with(at, |engine, context| engine.handle_close(context));
        if self.phase == Phase::Lives && self.dice.one_in(4) {
            let wait = Duration::from_micros(self.dice.below(40_000));
            self.net.put_in(wait, Happening::Kill(id));
        }
    }

    pub(super) fn crash_opening(&mut self, id: EngineId) {
        let Some(engine) = self.engine(id) else { return };
        if self.serving != Some(id) && self.phase == Phase::Lives {
            let with_machine = engine.machine != 0;
            self.count(Case::CrashOpening);
            self.kill(id, with_machine, "it crashes while it opens");
            if let Some(old) = self.serving {
                self.net.put_in(Duration::from_secs(1), Happening::Kill(old));
            }
        }
    }
}
