//! All members are away at once, for a moment: a switch restarts, all hosts are restarted together, or all lose their
//! power. An engine whose volume pauses goes on when they are back, and no user hears of it, but for what was
//! acknowledged, was in caches alone, and is not in the engine's memory: that is told as lost, and reads as an error.

use core::{ops::Range, time::Duration};

use netraid_block::{ErrorKind, IoError};

use super::{
    content::SECTOR_LEN,
    engine::{Engine, PACE},
    faults::Trouble,
    machine::Machine,
    oracle::{EngineId, Wrong},
    plan::{Mode, Plan},
    world::{Happening, Host, World},
};

/// From one such moment to the next one, on average.
const EVERY: Duration = Duration::from_millis(120);
/// Longest that a pause may take beyond its limit, for an attempt that is under way then.
const PAUSE_SLACK: Duration = Duration::from_millis(400);
/// From the end of a pause to the next one, at least.
const CALM: Duration = Duration::from_millis(100);
/// How many such moments may be longer than a pause.
const LONG_AMONG: u64 = 6;
/// Longest that a member is away then.
const AWAY_MAX: u64 = 120_000;

impl<M: Machine> World<M> {
    pub(super) fn plan_all_away(&mut self) {
        let wait = self.pause_dice.time_to_next(EVERY);
        self.agenda.put_in(wait, Happening::AllAway);
    }

    /// All members go away, if that may befall them now.
    pub(super) fn befall_all(&mut self) {
        if self.is_ending() {
            return;
        }
        self.plan_all_away();
        // Who is an older image must not be found alone, and who lies is believed by nobody else's word.
        let is_spoilt = |host: &Host| host.is_older || host.trouble == Some(Trouble::Lying);
        let serves = |engine: &Engine<M>| Some(engine.id) == self.serving && !engine.is_paused();
        let serves_alone = matches!(self.engines.as_slice(), [engine] if serves(engine));
        let is_short = self.is_short_of_space()
            || self.has_rest()
            || self.healing.is_some()
            || self.stopping.is_some()
            // A pause that follows on another one goes on with its time.
            || self.now() < self.resumed_at.after(CALM);
        if !serves_alone || is_short || self.hosts.iter().any(is_spoilt) {
            return;
        }
        self.counts.all_away += 1;
        let long = self.time_away();
        // Requests of before may take their time to fail.
        let longest = Duration::from_micros(long.max(AWAY_MAX)) + Plan::patience().deadline * 4;
        self.away_until = self.now().after(longest);
        self.heal_all_harms();
        match self.pause_dice.index(4) {
            0 => self.cut_all(long),
            1 => self.hang_all(long),
            2 => self.restart_all(long, false),
            _ => self.restart_all(long, true),
        }
    }

    /// How many microseconds all members stay away: of the first times some are longer than a short pause may take. Each of
    /// these ends with an engine that has failed.
    fn time_away(&mut self) -> u64 {
        let usual = self.pause_dice.below(AWAY_MAX);
        let is_early = self.counts.all_away <= LONG_AMONG;
        let may_be_long = is_early && !self.fittings.pause.is_zero() && self.is_short_pause();
        if !may_be_long || !self.pause_dice.one_in(4) {
            return usual;
        }
        let limit = self.fittings.pause / PACE + PAUSE_SLACK * 2;
        u64::try_from(limit.as_micros()).unwrap_or(AWAY_MAX) + usual
    }

    /// An engine pauses: it goes on, or gives up, in time.
    pub(super) fn begin_pause(&mut self, id: EngineId) {
        self.note(|| format!("engine {}: pauses", id.0));
        self.make_room();
        // It may give up before enough members are back; and where a mirror is another disk by now, the others need an
        // administrator's word.
        if self.is_short_pause() || self.hosts.iter().any(|host| host.is_older) {
            self.excuse();
        }
        let limit = self.fittings.pause / PACE;
        self.agenda.put_in(limit + PAUSE_SLACK, Happening::PauseIsLate(id, self.counts.pauses));
        self.counts.pauses += 1;
    }

    /// Whether a pause takes less than members are away at most.
    fn is_short_pause(&self) -> bool {
        self.fittings.pause / PACE < Duration::from_micros(AWAY_MAX) * 2
    }

    /// A pause that began as the one with this number should have ended.
    pub(super) fn end_pause_late(&mut self, id: EngineId, number: u64) {
        let mut engines = self.engines.iter().filter(|engine| engine.id == id);
        let is_it = self.counts.pauses == number + 1;
        if is_it && engines.any(Engine::is_paused) {
            self.fail("a pause goes on beyond its limit".into());
        }
    }

    fn cut_all(&mut self, long: u64) {
        self.note(|| "all connections are cut".into());
        for member in self.members_without_trouble() {
            self.trouble(member, Trouble::Cut, long);
            for host in self.engine_hosts {
                let wait = self.shortly_after(long);
                self.network.cut(host, self.hosts[member].id);
                self.agenda.put_in(wait, Happening::Heal(host, member));
            }
        }
    }

    fn hang_all(&mut self, long: u64) {
        self.note(|| "all members hang".into());
        for member in self.members_without_trouble() {
            self.hosts[member].target.set_hung(true);
            self.trouble(member, Trouble::Hung, long);
        }
    }

    /// All hosts restart, by and by or at once; their disks' caches are lost if they lose their power, too.
    fn restart_all(&mut self, long: u64, loses_power: bool) {
        self.note(|| format!("all members restart, without power: {loses_power}"));
        if loses_power {
            self.oracle.lose_power();
        }
        for member in self.members_without_trouble() {
            self.trouble(member, Trouble::Dark, long);
            let (now, host) = (self.now(), &mut self.hosts[member]);
            match loses_power {
                true => {
                    host.target.lose_power(now);
                    host.lost_power = true;
                }
                false => host.target.restart(now),
            }
            let id = host.id;
            self.network.crash_host(now, id, Duration::from_millis(3));
        }
    }

    /// Whether more members are away, or were just now, than the array can do without: who is told to close then does not
    /// wait for them.
    pub(super) fn too_many_are_away(&self) -> bool {
        let away = self.hosts.iter().filter(|host| host.trouble.is_some()).count();
        let is_paused = self.engines.iter().any(Engine::is_paused);
        is_paused || self.now() < self.away_until || away > self.tolerance()
    }

    /// Others are away already, or as good as that.
    fn members_without_trouble(&self) -> Vec<usize> {
        let members = 0..self.hosts.len();
        members.filter(|member| self.hosts[*member].trouble.is_none()).collect()
    }

    fn trouble(&mut self, member: usize, trouble: Trouble, long: u64) {
        self.hosts[member].trouble = Some(trouble);
        let wait = self.shortly_after(long);
        self.agenda.put_in(wait, Happening::Mend(member, trouble));
    }

    fn shortly_after(&mut self, long: u64) -> Duration {
        Duration::from_micros(long + self.pause_dice.below(5_000))
    }

    /// Users' requests go on after a pause, but for these bytes of the volume.
    pub(super) fn resume(&mut self, id: EngineId, lost: &[Range<u64>]) {
        self.counts.resumed += 1;
        self.resumed_at = self.now();
        self.counts.resumed_with_losses += u64::from(!lost.is_empty());
        self.note(|| format!("engine {}: goes on, without {lost:?}", id.0));
        let Some(engine) = self.engines.iter().find(|engine| engine.id == id) else { return };
        let in_sync: Vec<bool> = (0..self.hosts.len()).map(|at| engine.is_in_sync(at)).collect();
        let unsure = (0..self.hosts.len()).filter(|at| !in_sync[*at] || self.hosts[*at].lost_power);
        let may_lose = unsure.count() > self.tolerance();
        let was_known = |range: &Range<u64>| {
            let is_around =
                |known: &Range<u64>| known.start <= range.start && range.end <= known.end;
            self.lost.iter().any(is_around)
        };
        let is_new = !lost.iter().all(was_known);
        if is_new && !may_lose && self.plan.mode == Mode::Within && !self.is_excused(id) {
            self.fail(format!("{lost:?} are lost although no more befell them than they survive"));
        }
        for (host, in_sync) in self.hosts.iter_mut().zip(in_sync) {
            host.noticed_by.push(id);
            host.lost_power &= host.trouble.is_some() || !in_sync;
            if !in_sync && !host.is_impaired {
                host.is_impaired = true;
                host.engine_then = 0;
            }
        }
        self.make_room();
        // What is to be brought home begins anew.
        self.left_alone_at = None;
        if self.serving == Some(id) {
            let sector = SECTOR_LEN as u64;
            let sectors = lost.iter().map(|range| range.start / sector..range.end / sector);
            self.oracle.resume(&sectors.collect::<Vec<_>>());
            self.is_told_of_losses &= !is_new;
            self.lost = lost.to_vec();
        }
    }

    /// A flush that ends well while bytes are lost needs one before it that told of them.
    pub(super) fn check_told(&self, id: EngineId) -> Result<(), Wrong> {
        let engine = self.engines.iter().find(|engine| engine.id == id);
        let is_lost = engine.is_some_and(Engine::lacks_bytes) && self.serving == Some(id);
        match is_lost && !self.is_told_of_losses {
            true => {
                Err(Wrong("a flush ends well, and nobody was told of bytes that are lost".into()))
            }
            false => Ok(()),
        }
    }

    /// Whether an error says that acknowledged bytes are lost, as the engine has told before.
    pub(super) fn is_told_as_lost(&self, id: EngineId, error: &IoError) -> bool {
        self.serving == Some(id)
            && !self.lost.is_empty()
            && error.kind() == ErrorKind::Medium
            && error.to_string().contains("are lost with the caches of members")
    }
}
