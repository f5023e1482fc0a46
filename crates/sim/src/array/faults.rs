//! What befalls an array, by the seed, and for how long.
//!
//! Within the budget: members that count against what the level survives (away, stale, without
//! their cache, lying) are never more than that; bad blocks are never in more members of a group
//! (a row, the tables, the log) than are left of it. A member counts until the engine has noticed,
//! and it is in sync again.
//!
//! Beyond the budget any number may be away or lose its cache, and rows may rot in more members.
//! Members without space are no loss, however many they are: nothing but writes may fail then. While
//! there are any, no member is lost beside them: the array may set as many aside as it can do without.
//!
//! What nothing could notice is never done: members that lie about what they wrote, or bring back
//! old contents, stay within the budget in both modes.

use core::{ops::Range, time::Duration};

use netraid_block::{Buf, SgList};

use super::{
    engine::Engine,
    machine::Machine,
    oracle::EngineId,
    plan::{Fault, Mode, Plan},
    world::{Happening, Host, World},
};
use crate::{
    disk::Disk,
    network::Wire,
    station::Pace,
    target::{Manners, Mischief},
};

/// After all lost their power at once, a member that is back may still be left out for so long: it is dark for some time, and
/// an opening that did not find it ends.
const LEFT_OUT_MAX: Duration = Duration::from_millis(120);

/// What is wrong with a member for some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It has no power.
    Dark,
    /// It answers nothing.
    Hung,
    /// Its wire or its disk is slow.
    Slow,
    /// Its connection breaks, or a cut holds it back.
    Cut,
    /// It does not do what it says.
    Lying,
}

/// Bad blocks that the world has made, to be put right when they must not stay.
#[derive(Debug)]
pub(super) struct Harm {
    member: usize,
    block: u64,
    /// Among whose members the level must find enough good ones.
    group: Group,
    kind: HarmKind,
}

#[derive(Debug)]
enum HarmKind {
    /// What it held, and what it holds now.
    Rotten {
        good: Buf,
        bad: Buf,
    },
    Unreadable,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Labels,
    Tables,
    Log,
    Row(u64),
}

impl<M: Machine> World<M> {
    /// The next fault comes.
    pub(super) fn plan_fault(&mut self) {
        let wait = self.fault_dice.time_to_next(self.plan.fault_every);
        self.agenda.put_in(wait, Happening::Fault);
    }

    /// A fault is due.
    pub(super) fn befall(&mut self) {
        if self.is_ending() {
            return;
        }
        self.plan_fault();
        if self.has_rest() || self.healing.is_some() {
            return;
        }
        self.forgive();
        let faults = core::mem::take(&mut self.plan.faults);
        let fault = self.fault_dice.pick(&faults).copied();
        self.plan.faults = faults;
        let Some(fault) = fault else { return };
        let is_done = match fault {
            // Enough that an engine serves now and then.
            Fault::PowerOfAll if self.serving.is_none() && !self.fault_dice.one_in(6) => false,
            Fault::PowerOfAll => self.lose_all_power(),
            Fault::PowerOfOne if self.fault_dice.one_in(self.plan.moods.restarts) => {
                self.plan_restart();
                false
            }
            Fault::TwoEngines => self.start_another(),
            Fault::SpaceRunsOut => self.take_space(),
            Fault::Rot | Fault::Unreadable => self.spoil(fault),
            Fault::EngineCrash | Fault::CrashInRecovery => false,
            Fault::PowerOfOne
            | Fault::ConnectionLost
            | Fault::Partition
            | Fault::SlowLink
            | Fault::Hang
            | Fault::LostWrite
            | Fault::MisdirectedWrite
            | Fault::OlderImage
            | Fault::Replaced => self.harm_member(fault),
        };
        if is_done {
            *self.counts.faults.entry(fault).or_default() += 1;
        }
    }

    pub(super) fn tolerance(&self) -> usize {
        usize::try_from(self.plan.geometry.tolerance()).unwrap_or(0)
    }

    pub(super) fn impaired(&self) -> usize {
        let impaired = self.hosts.iter().filter(|host| host.is_impaired).count();
        if self.is_short_of_space() { impaired.max(self.tolerance()) } else { impaired }
    }

    /// Members whose trouble is over and that hold everything again no longer count: they left since and are in sync, or
    /// are in sync although the engine has seen all that may have befallen them.
    pub(super) fn forgive(&mut self) {
        // Whom another engine has pushed aside does not know who is in sync, also when that one has
        // died before it served: its labels may say that a member is out.
        let [engine] = self.engines.as_slice() else { return };
        if Some(engine.id) != self.serving || !self.is_newest(engine.id) {
            return;
        }
        let settled = Plan::patience().deadline * 2;
        let now = self.agenda.now();
        for (member, host) in self.hosts.iter_mut().enumerate() {
            let is_whole = engine.is_in_sync(member)
                && engine.has(member)
                && engine.sessions[member].is_ready();
            let was_noticed = host.was_noticed_by(engine.id);
            let has_seen = engine.has_seen_losses(member, host.target.power_failures());
            let was_nothing = now.since(host.mended_at) > settled && (!host.lost_power || has_seen);
            if host.is_impaired
                && host.trouble.is_none()
                && is_whole
                && (was_noticed || was_nothing)
            {
                host.is_impaired = false;
                host.lost_power = false;
                host.is_older = false;
            }
        }
    }

    /// Whether an engine takes a member for in sync whose contents were just exchanged: nobody has
    /// asked it for anything since.
    pub(super) fn is_exchanged_unnoticed(&self, engine: &Engine<M>) -> bool {
        let mut hosts = self.hosts.iter().enumerate();
        hosts.any(|(member, host)| {
            host.is_older && engine.is_in_sync(member) && !host.was_noticed_by(engine.id)
        })
    }

    /// A member that one more thing may befall.
    fn victim(&mut self, is_lie: bool) -> Option<usize> {
        let may_exceed = self.plan.mode == Mode::Beyond
            && !is_lie
            && !self.hosts.iter().any(|host| host.trouble == Some(Trouble::Lying) || host.is_older);
        // Who is back, and not whole yet, may leave again: that takes no more room. With more than
        // the level survives, some of them are needed.
        let is_back = |host: &Host| host.is_impaired && host.trouble.is_none();
        let again = !is_lie
            && self.impaired() <= self.tolerance()
            && self.hosts.iter().any(is_back)
            && self.fault_dice.one_in(8);
        let has_room = again || self.impaired() < self.tolerance();
        // Without redundancy a member that is away ends the array, and nothing else.
        let ends_it = self.tolerance() == 0 && !is_lie;
        if !has_room && !may_exceed && !ends_it {
            return None;
        }
        let is_sound = |at: &usize| {
            let host = &self.hosts[*at];
            host.trouble.is_none() && (host.is_impaired == again)
        };
        let sound: Vec<usize> = (0..self.hosts.len()).filter(is_sound).collect();
        let victim = self.fault_dice.pick(&sound).copied()?;
        if self.tolerance() == 0 {
            self.excuse();
        }
        Some(victim)
    }

    pub(super) fn impair(&mut self, member: usize, trouble: Trouble) {
        let newest = self.engines.iter().map(|engine| engine.id.0).max();
        let host = &mut self.hosts[member];
        host.is_impaired = true;
        host.trouble = Some(trouble);
        host.noticed_by.clear();
        host.engine_then = newest.unwrap_or(host.engine_then);
        self.make_room();
    }

    fn harm_member(&mut self, fault: Fault) -> bool {
        // Whom the array has set aside when all were away is not known yet.
        if self.now() < self.away_until {
            return false;
        }
        let is_lie = matches!(
            fault,
            Fault::LostWrite | Fault::MisdirectedWrite | Fault::OlderImage | Fault::Replaced
        );
        // What a member loses that lies may be on one alone that is left out.
        if is_lie && self.now() < self.left_out_until {
            return false;
        }
        if self.tolerance() == 0 && matches!(fault, Fault::Replaced | Fault::OlderImage) {
            return false;
        }
        // Whom another engine pushes aside may still say that a member is out, and that cannot be told
        // from the truth by who has lost what it was told since.
        let is_for_good = matches!(fault, Fault::Replaced | Fault::OlderImage);
        if is_for_good && (self.engines.len() > 1 || self.engines.iter().any(Engine::is_paused)) {
            return false;
        }
        // Nor of whom an engine may still say so that has lost more than the level survives, and is about to die.
        let may_exceed = self.plan.mode == Mode::Beyond;
        let is_overwhelmed = |engine: &Engine<M>| self.is_overwhelmed(engine.id);
        if is_for_good && !may_exceed && self.engines.iter().any(is_overwhelmed) {
            return false;
        }
        if fault == Fault::OlderImage && self.hosts.iter().all(|host| host.photograph.is_none()) {
            return false;
        }
        let Some(member) = self.victim(is_lie) else { return false };
        if fault == Fault::OlderImage && !self.has_old_photograph(member) {
            return false;
        }
        let now = self.now();
        self.note(|| format!("member {member}: {fault:?}"));
        let mut ms = |most: u64| Duration::from_micros(100 + self.fault_dice.below(most * 1000));
        let (short, long) = (ms(30), ms(150));
        match fault {
            Fault::PowerOfOne => {
                self.impair(member, Trouble::Dark);
                self.darken(member);
                self.agenda.put_in(long, Happening::Mend(member, Trouble::Dark));
            }
            Fault::OlderImage | Fault::Replaced => {
                self.impair(member, Trouble::Dark);
                self.darken(member);
                let host = &mut self.hosts[member];
                let image = host.photograph.take();
                let is_another = fault == Fault::Replaced || image.is_some();
                if fault == Fault::Replaced {
                    let shape = *host.target.disk().shape();
                    *host.target.disk_mut() = self.plan.new_disk(shape);
                } else if let Some(image) = image {
                    host.target.disk_mut().restore(image);
                }
                host.is_older |= is_another;
                self.harms.retain(|harm| harm.member != member || !is_another);
                self.agenda.put_in(long, Happening::Mend(member, Trouble::Dark));
            }
            Fault::ConnectionLost => {
                self.impair(member, Trouble::Cut);
                self.break_connections(member);
                self.agenda.put_in(short, Happening::Mend(member, Trouble::Cut));
            }
            Fault::Partition => {
                self.impair(member, Trouble::Cut);
                for host in self.engine_hosts {
                    self.network.cut(host, self.hosts[member].id);
                    self.agenda.put_in(long, Happening::Heal(host, member));
                }
                self.agenda.put_in(long, Happening::Mend(member, Trouble::Cut));
            }
            Fault::SlowLink => {
                self.impair(member, Trouble::Slow);
                self.slow_down(member);
                self.agenda.put_in(long, Happening::Mend(member, Trouble::Slow));
            }
            Fault::Hang => {
                self.impair(member, Trouble::Hung);
                self.hosts[member].target.set_hung(true);
                self.agenda.put_in(long, Happening::Mend(member, Trouble::Hung));
            }
            Fault::LostWrite | Fault::MisdirectedWrite => {
                self.impair(member, Trouble::Lying);
                let blocks = self.hosts[member].target.disk().shape().blocks;
                let mischief = if fault == Fault::LostWrite {
                    Mischief::Lose
                } else {
                    Mischief::Misdirect { first: self.fault_dice.below(blocks) }
                };
                self.hosts[member].target.plan(mischief);
                self.agenda.put_in(long, Happening::Mend(member, Trouble::Lying));
            }
            Fault::EngineCrash
            | Fault::CrashInRecovery
            | Fault::PowerOfAll
            | Fault::Rot
            | Fault::Unreadable
            | Fault::TwoEngines
            | Fault::SpaceRunsOut => return false,
        }
        if self.hosts.iter().filter(|host| host.lost_power).count() > self.tolerance() {
            self.oracle.lose_power();
        }
        self.trace.mix(&[7, now.since(crate::Time::START).subsec_nanos().into(), member as u64]);
        true
    }

    fn darken(&mut self, member: usize) {
        let now = self.now();
        let host = &mut self.hosts[member];
        host.target.set_hung(false);
        host.target.lose_power(now);
        host.lost_power = true;
        if self.fault_dice.one_in(2) {
            let id = host.id;
            self.network.crash_host(now, id, Duration::from_millis(3));
        }
    }

    fn break_connections(&mut self, member: usize) {
        let now = self.now();
        for engine in &self.engines {
            if let Some(connection) = engine.sessions[member].connection() {
                self.network.break_connection(now, connection, Duration::from_millis(3));
            }
        }
    }

    fn slow_down(&mut self, member: usize) {
        let most = 1 + self.fault_dice.below(30);
        let latency = Duration::from_micros(100)..=Duration::from_millis(most);
        let usual = self.plan.manners(member);
        let host = &mut self.hosts[member];
        if self.fault_dice.one_in(2) {
            self.network.set_wire(host.id, Wire { pace: Pace::INSTANT, latency });
        } else {
            host.target.set_manners(Manners { work: latency, ..usual });
        }
    }

    /// An engine has died; sometimes that was because everything lost its power.
    pub(super) fn lose_power_with_engine(&mut self) {
        let is_due = self.plan.faults.contains(&Fault::PowerOfAll) && self.fault_dice.one_in(8);
        if is_due && self.lose_all_power() {
            *self.counts.faults.entry(Fault::PowerOfAll).or_default() += 1;
        }
    }

    /// Everything loses its power at one moment; only what was flushed counts.
    fn lose_all_power(&mut self) -> bool {
        // Who is an older image must not be found alone, while the others are dark.
        if self.hosts.iter().any(|host| host.trouble == Some(Trouble::Lying) || host.is_older) {
            return false;
        }
        self.note(|| "all members lose their power".into());
        self.heal_harms(|_| true);
        self.oracle.lose_power();
        self.excuse();
        self.left_out_until = self.now().after(LEFT_OUT_MAX);
        for member in 0..self.hosts.len() {
            let was_impaired = self.hosts[member].is_impaired;
            if self.hosts[member].trouble.is_none() {
                self.impair(member, Trouble::Dark);
                let wait = Duration::from_micros(100 + self.fault_dice.below(40_000));
                self.agenda.put_in(wait, Happening::Mend(member, Trouble::Dark));
            }
            self.darken(member);
            // The next opening brings back whoever was sound.
            self.hosts[member].is_impaired = was_impaired;
            if self.hosts[member].trouble != Some(Trouble::Dark) {
                self.hosts[member].target.restore_power();
            }
        }
        let ids: Vec<EngineId> = self.engines.iter().map(|engine| engine.id).collect();
        for id in ids {
            let wait = Duration::from_micros(self.fault_dice.below(60_000));
            self.agenda.put_in(wait, Happening::Kill(id));
        }
        true
    }

    /// A second engine opens the array while the first still has it.
    fn start_another(&mut self) -> bool {
        let [engine] = self.engines.as_slice() else { return false };
        if self.serving != Some(engine.id) {
            return false;
        }
        // Whom it pushes aside may still say of another member that it is out, and would not do
        // so if it knew of the one that is lost for good: with both too few are left.
        if self.is_exchanged_unnoticed(engine) {
            return false;
        }
        let (first, id) = (engine.host, engine.id);
        self.note(|| "a second engine opens the array".into());
        self.excuse();
        let other = usize::from(self.engine_hosts[0] == first);
        if self.fault_dice.one_in(2) {
            for member in 0..self.hosts.len() {
                if self.fault_dice.one_in(2) {
                    self.network.cut(first, self.hosts[member].id);
                    let wait = Duration::from_micros(self.fault_dice.below(200_000));
                    self.agenda.put_in(wait, Happening::Heal(first, member));
                }
            }
        }
        self.heal_harms(|harm| matches!(harm.group, Group::Row(_)));
        self.agenda.put_in(Duration::ZERO, Happening::Start(other));
        let wait = Duration::from_millis(100 + self.fault_dice.below(300));
        self.agenda.put_in(wait, Happening::Kill(id));
        true
    }

    /// A block rots, or cannot be read any more.
    fn spoil(&mut self, fault: Fault) -> bool {
        let members = self.hosts.len();
        let member = self.fault_dice.index(members);
        if self.hosts[member].is_impaired {
            return false;
        }
        let block_len = u64::from(self.plan.geometry.block_len());
        let regions = self.plan.regions;
        let places = [
            regions.data,
            regions.data,
            regions.data,
            regions.map,
            regions.sums,
            regions.log,
            regions.labels,
        ];
        let region = places[self.fault_dice.index(places.len())];
        let block = (region.offset + self.fault_dice.below(region.len)) / block_len;
        self.spoil_block(fault, member, block)
    }

    /// An engine has died: in some runs a block of the log that one member alone has written cannot be
    /// read for a while, and then can.
    pub(super) fn spoil_the_end_of_the_log(&mut self) {
        if self.is_ending() || !self.fault_dice.one_in(self.plan.moods.spoils_log_end) {
            return;
        }
        let is_elsewhere = |at: usize, block: u64| {
            let others = self.hosts.iter().enumerate().filter(|(other, _)| *other != at);
            others.flat_map(|(_, host)| self.recent_log_writes(host)).any(|other| other == block)
        };
        let sound = self.hosts.iter().enumerate().filter(|(_, host)| !host.is_impaired);
        let only = sound
            .filter_map(|(at, host)| Some((at, self.recent_log_writes(host).next()?)))
            .find(|(at, block)| !is_elsewhere(*at, *block));
        if let Some((member, block)) = only
            && self.spoil_block(Fault::Unreadable, member, block)
        {
            self.spoilt_log = Some((member, block));
            *self.counts.faults.entry(Fault::Unreadable).or_default() += 1;
            let wait = Duration::from_micros(50_000 + self.fault_dice.below(200_000));
            self.agenda.put_in(wait, Happening::Recover(member, block));
        }
    }

    /// First blocks of what a member has written of the log not long ago, the newest first.
    pub(super) fn recent_log_writes(&self, host: &Host) -> impl Iterator<Item = u64> {
        let (log, block_len) = (self.plan.regions.log, self.plan.geometry.block_len());
        host.target.recent_writes().filter(move |block| {
            let offset = block * u64::from(block_len);
            offset >= log.offset && offset < log.end()
        })
    }

    /// A block can be read again.
    pub(super) fn recover_block(&mut self, member: usize, block: u64) {
        self.heal_harms(|harm| (harm.member, harm.block) == (member, block));
    }

    fn spoil_block(&mut self, fault: Fault, member: usize, block: u64) -> bool {
        let block_len = u64::from(self.plan.geometry.block_len());
        let group = self.group_of(block * block_len);
        let mut others: Vec<usize> = self.harms_of(group).collect();
        others.retain(|other| *other != member);
        others.dedup();
        let away = self.impaired();
        let exceeds = self.rows_may_be_lost() && matches!(group, Group::Row(_));
        let limit = if group == Group::Labels { self.tolerance().min(1) } else { self.tolerance() };
        if others.len() + away + 1 > limit && !exceeds {
            return false;
        }
        if self.harms.iter().any(|harm| (harm.member, harm.block) == (member, block)) {
            return false;
        }
        let dice = &mut self.fault_dice;
        let disk = self.hosts[member].target.disk_mut();
        let kind = if fault == Fault::Unreadable {
            disk.spoil(block);
            HarmKind::Unreadable
        } else {
            let Some(good) = read_block(disk, block) else { return false };
            disk.rot(block, dice);
            let Some(bad) = read_block(disk, block) else { return false };
            HarmKind::Rotten { good, bad }
        };
        self.harms.push(Harm { member, block, group, kind });
        self.note(|| format!("member {member}: {fault:?} at {:#x} ({group:?})", block * block_len));
        true
    }

    /// More bad blocks of a row than redundancy are noticed while an engine serves. A recovery
    /// takes a stripe that it cannot verify for one that was never written as a whole; of the log
    /// and the tables they are never noticed.
    fn rows_may_be_lost(&self) -> bool {
        let only_serves = matches!(self.engines.as_slice(), [engine] if !engine.is_paused())
            && self.serving.is_some();
        self.plan.mode == Mode::Beyond && only_serves
    }

    fn group_of(&self, offset: u64) -> Group {
        let regions = &self.plan.regions;
        if offset >= regions.data.offset {
            let within = offset - regions.data.offset;
            return Group::Row(within / 4096);
        }
        if offset >= regions.log.offset && offset < regions.log.end() {
            Group::Log
        } else if offset >= regions.map.offset {
            Group::Tables
        } else {
            Group::Labels
        }
    }

    pub(super) const fn has_no_harms(&self) -> bool {
        self.harms.is_empty()
    }

    fn harms_of(&self, group: Group) -> impl Iterator<Item = usize> {
        self.harms.iter().filter(move |harm| harm.group == group).map(|harm| harm.member)
    }

    /// One more member is away: bad blocks that would be too many with it are put right.
    pub(super) fn make_room(&mut self) {
        let left = self.tolerance().saturating_sub(self.impaired());
        let mut groups: Vec<Group> = self.harms.iter().map(|harm| harm.group).collect();
        if self.rows_may_be_lost() {
            groups.retain(|group| !matches!(group, Group::Row(_)));
        }
        groups.sort_unstable();
        groups.dedup();
        // Where more are away than the level survives, some of them are needed as they are.
        let all_are_needed = self.impaired() > self.tolerance();
        for group in groups {
            let counts = |member: &usize| all_are_needed || !self.hosts[*member].is_impaired;
            let mut members: Vec<usize> = self.harms_of(group).filter(counts).collect();
            members.sort_unstable();
            members.dedup();
            if members.len() > left {
                self.heal_harms(|harm| harm.group == group);
            }
        }
    }

    /// A member's disk as it is, without the bad blocks that the world has made.
    pub(super) fn sound_copy(&self, member: usize) -> Disk {
        let mut disk = self.hosts[member].target.disk().clone();
        for harm in self.harms.iter().filter(|harm| harm.member == member) {
            match &harm.kind {
                HarmKind::Unreadable => disk.mend(harm.block),
                HarmKind::Rotten { good, bad } => disk.put_right(harm.block, bad, good),
            }
        }
        disk
    }

    /// Puts all bad blocks right.
    pub(super) fn heal_all_harms(&mut self) {
        self.heal_harms(|_| true);
    }

    /// Puts bad blocks right that nothing has written since.
    fn heal_harms(&mut self, mut which: impl FnMut(&Harm) -> bool) {
        for harm in core::mem::take(&mut self.harms) {
            if !which(&harm) {
                self.harms.push(harm);
                continue;
            }
            let disk = self.hosts[harm.member].target.disk_mut();
            match harm.kind {
                HarmKind::Unreadable => disk.mend(harm.block),
                HarmKind::Rotten { good, bad } => disk.put_right(harm.block, &bad, &good),
            }
        }
    }

    /// A trouble ends.
    pub(super) fn mend(&mut self, member: usize, trouble: Trouble) {
        let now = self.now();
        if self.hosts[member].trouble != Some(trouble) {
            return;
        }
        match trouble {
            Trouble::Dark => self.hosts[member].target.restore_power(),
            Trouble::Hung => self.hosts[member].target.set_hung(false),
            Trouble::Slow => {
                let usual = self.plan.manners(member);
                let host = &mut self.hosts[member];
                self.network.set_wire(host.id, Plan::wire());
                host.target.set_manners(usual);
            }
            Trouble::Cut => {}
            Trouble::Lying => {
                // What it never did is done, unless something else was written there since.
                let host = &mut self.hosts[member];
                host.target.undo_mischief();
            }
        }
        self.note(|| format!("member {member}: no longer {trouble:?}"));
        let host = &mut self.hosts[member];
        host.trouble = None;
        host.mended_at = now;
    }

    /// Nothing more befalls the array.
    pub(super) fn mend_everything(&mut self) {
        self.heal_harms(|_| true);
        let now = self.now();
        for member in 0..self.hosts.len() {
            for host in self.engine_hosts {
                self.network.heal(now, host, self.hosts[member].id);
            }
            if let Some(trouble) = self.hosts[member].trouble {
                self.mend(member, trouble);
            }
        }
    }

    /// Whether what a member held at some moment can come back, and be told by its age: nothing
    /// but checksums would tell what is newer.
    fn has_old_photograph(&self, member: usize) -> bool {
        let host = &self.hosts[member];
        host.photograph.as_ref().is_some_and(|image| {
            let mut disk = Disk::new(*host.target.disk().shape());
            disk.restore(image.clone());
            self.is_told_by_its_age(&disk)
        })
    }

    /// Members' contents of some moment are kept, to come back later.
    pub(super) fn photograph_some(&mut self) {
        if self.plan.faults.contains(&Fault::OlderImage) && self.fault_dice.one_in(3) {
            let member = self.fault_dice.index(self.hosts.len());
            let is_sound = self.harms.iter().all(|harm| harm.member != member);
            let host = &mut self.hosts[member];
            let has_none = host.photograph.is_none();
            if is_sound && has_none && !host.is_impaired && host.trouble.is_none() {
                host.photograph = Some(host.target.disk().image());
            }
        }
    }
}

fn read_block(disk: &Disk, block: u64) -> Option<Buf> {
    disk.read(range(block)).ok().as_ref().map(SgList::to_contiguous)
}

const fn range(block: u64) -> Range<u64> {
    block..block + 1
}
