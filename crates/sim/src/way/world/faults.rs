//! What befalls hosts and connections: seldom more than the level survives.

use core::time::Duration;

use netraid_raid::volume::{Expect, ScrubOrder};

use super::{Case, Happening, Host, Phase, World};
use crate::array::oracle::EngineId;
use crate::way::{
    interface::{Cut, Fate, Way},
    plan::Fault,
};

/// The longest that a request straggles: less than a host is given to settle.
const STRAGGLER_MAX: Duration = Duration::from_secs(12);
/// After so long nothing is left at a disk of what was there while it was silent, and sessions are made again.
const SETTLING: Duration = Duration::from_secs(14);

/// What is wrong with a host for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Nobody serves.
    Off,
    Parted,
    Hung,
    Slow,
    /// Much slower: what is under way takes long when that is over, too.
    Stuck,
    /// Some requests take long, and others end as usual.
    Straggling,
    /// All is well again, which its sessions have to find out.
    Settling,
    Held,
    /// The LUN is removed.
    Removed,
    Failing,
    /// This block cannot be read.
    Spoilt(u64),
}

impl World {
    pub(super) fn plan_fault(&mut self) {
        let wait = self.fault_dice.time_to_next(self.plan.fault_every);
        self.net.put_in(wait, Happening::Fault);
    }

    /// Users are busy: what waited for that comes soon.
    pub(super) fn hasten_fault(&mut self) {
        if core::mem::take(&mut self.fault_waits) {
            let wait = Duration::from_micros(self.fault_dice.below(3_000));
            self.net.put_in(wait, Happening::Fault);
        }
    }

    pub(super) fn befall(&mut self) {
        if self.phase != Phase::Lives {
            return;
        }
        // Most is of interest in the middle of something.
        if self.is_thinking && !self.fault_waits && !self.fault_dice.one_in(4) {
            self.fault_waits = true;
            return;
        }
        self.fault_waits = false;
        self.plan_fault();
        self.note_places();
        self.forgive();
        let faults = self.plan.faults.clone();
        let Some(fault) = self.fault_dice.pick(&faults).copied() else { return };
        self.befall_by(fault);
    }

    /// Something befalls a member while an engine opens the array.
    pub(super) fn befall_opening(&mut self, id: EngineId) {
        let is_opening = self.engine(id).is_some_and(|engine| engine.serving().is_none());
        if !is_opening || self.phase != Phase::Lives || self.impaired() > 0 {
            return;
        }
        const FAULTS: [Fault; 9] = [
            Fault::Restart,
            Fault::Reset,
            Fault::PowerOfOne,
            Fault::Straggling,
            Fault::Removed,
            Fault::Outsider,
            Fault::Cut,
            Fault::Dropped,
            Fault::Held,
        ];
        // A dial that nobody answers is enough to leave one member out.
        let all_answer = self.all_dials_answered();
        let may_be =
            |fault: &Fault| self.plan.faults.contains(fault) && (fault.is_light() || all_answer);
        let faults: Vec<Fault> = FAULTS.into_iter().filter(may_be).collect();
        if let Some(fault) = self.fault_dice.pick(&faults).copied() {
            self.count(Case::BefellOpening);
            self.befall_by(fault);
        }
    }

    /// Lets it befall any member, if that is not too much.
    fn befall_by(&mut self, fault: Fault) {
        let member = self.fault_dice.index(self.places.len());
        let host = self.places[member];
        if self.hosts[host].trouble.is_some() {
            return;
        }
        let is_order = matches!(fault, Fault::Scrub | Fault::Spare | Fault::FailedByOrder);
        if is_order && self.serving_stands_still() {
            return;
        }
        if fault == Fault::Scrub {
            return self.scrub();
        }
        if fault == Fault::PowerOfAll {
            return self.lose_all_power();
        }
        // No line would hear of the lost cache if the answer that tells of it were lost with its connection
        // (docs/faults.md).
        if fault.loses_answers() && self.net.owes_news_of_a_loss(self.hosts[host].id) {
            return;
        }
        let is_calm = self.hosts[host].calm_at <= self.net.now();
        let is_light = fault.is_light() && is_calm;
        let others = self.impaired() - usize::from(self.hosts[host].is_impaired);
        // Who opens leaves a member out that it cannot reach at once; and where dials are not answered, so may be one that
        // something light befell lately.
        let is_least = others < self.tolerance();
        if is_light && self.opens() && !(is_least && self.all_dials_answered()) {
            return;
        }
        if !is_light {
            let is_calm = |at: &usize| *at == host || self.hosts[*at].calm_at <= self.net.now();
            let are_calm = self.all_dials_answered() || self.places.iter().all(is_calm);
            // Whether a replacement survives the next loss is another question.
            if !is_least || !are_calm || self.replacing.is_some() || self.may_leave_one_out() {
                return;
            }
            if !matches!(fault, Fault::Spare | Fault::FailedByOrder) {
                self.impair(host);
            }
        }
        self.note(|| format!("host {host}, member {member}: {fault:?}"));
        let time = self.strike(fault, host, member);
        self.hosts[host].calm_at = self.net.now().after(time + 3 * self.plan.line.request_timeout);
    }

    /// Does it; how long it takes.
    fn strike(&mut self, fault: Fault, host: usize, member: usize) -> Duration {
        let id = self.hosts[host].id;
        // A session does not take a light silence for the end.
        let silence: u64 = netraid_block::narrow(self.plan.line.request_timeout.as_millis() / 8);
        let short = Duration::from_millis(20 + self.fault_dice.below(silence));
        let long = Duration::from_millis(3000 + self.fault_dice.below(15_000));
        let any = if self.fault_dice.one_in(2) { short } else { long };
        match fault {
            Fault::Cut => self.cut(host),
            Fault::Stall => {
                self.count(Case::Stall);
                let way = if self.fault_dice.one_in(2) { Way::ToHost } else { Way::ToEngine };
                for seat in self.seats {
                    for stream in self.net.streams(seat, id) {
                        self.net.stall(stream, way, short);
                    }
                }
                return short;
            }
            Fault::Part | Fault::LongPart => {
                let is_long = fault == Fault::LongPart;
                self.count(if is_long { Case::LongPart } else { Case::Part });
                for seat in self.seats {
                    self.net.part(seat, id);
                }
                return self.trouble(host, Trouble::Parted, if is_long { long } else { short });
            }
            Fault::Hang | Fault::LongHang => {
                let is_long = fault == Fault::LongHang;
                self.count(if is_long { Case::LongHang } else { Case::Hang });
                let time = if is_long { long } else { short };
                self.net.hang(id, time);
                return self.trouble(host, Trouble::Hung, time);
            }
            Fault::Slow => {
                self.count(Case::Slow);
                self.net.set_slowness(
                    id,
                    2 + netraid_block::narrow::<_, u32>(self.fault_dice.below(8)),
                );
                return self.trouble(host, Trouble::Slow, 2 * short);
            }
            Fault::Stuck => {
                self.count(Case::Stuck);
                // The slowest request takes twelve seconds.
                self.net.set_slowness(id, 1_200);
                return self.trouble(host, Trouble::Stuck, long);
            }
            Fault::Straggling => {
                self.count(Case::Straggling);
                let least = Duration::from_millis(500);
                self.net.set_straggling(id, Some(least..=STRAGGLER_MAX));
                // Who takes over then finds writes at the disk.
                if let Some(serving) = self.serving
                    && self.fault_dice.one_in(2)
                {
                    let wait = Duration::from_millis(self.fault_dice.below(3000));
                    self.net.put_in(wait, Happening::Fall(serving));
                }
                match self.fault_dice.below(3) {
                    0 => self.plan_later(long, Happening::CutBeside(host)),
                    1 => self.plan_later(long, Happening::ReplaceBeside(host)),
                    _ => {}
                }
                return self.trouble(host, Trouble::Straggling, long);
            }
            Fault::Held => {
                self.count(Case::Held);
                self.net.set_held(id, true);
                return self.trouble(host, Trouble::Held, short);
            }
            Fault::Removed => {
                self.count(Case::Removed);
                self.net.remove_lun(id);
                self.hosts[host].must_be_noticed = true;
                return self.trouble(host, Trouble::Removed, any);
            }
            Fault::Outsider => self.begin_outsider(host),
            Fault::Dropped => {
                self.count(Case::Dropped);
                self.net.drop_sessions(id);
            }
            Fault::Spoilt => self.spoil(host),
            Fault::Failing => {
                self.count(Case::Failing);
                self.net.set_failing(id, true);
                return self.trouble(host, Trouble::Failing, any);
            }
            Fault::Restart => {
                let is_quiet = self.net.under_way(id) == 0;
                self.count(if is_quiet { Case::QuietRestart } else { Case::Restart });
                self.net.kill(id);
                self.hosts[host].must_be_noticed = true;
                if self.fault_dice.one_in(4) {
                    self.plan_later(long, Happening::PushAside);
                }
                return self.trouble(host, Trouble::Off, any);
            }
            Fault::PowerOfOne => {
                self.count(Case::PowerOfOne);
                self.net.lose_power(id);
                (self.hosts[host].lost_power, self.hosts[host].must_be_noticed) = (true, true);
                return self.trouble(host, Trouble::Off, any);
            }
            Fault::Reset => return self.reset(host),
            Fault::FailedByOrder => self.fail_by_order(host, member),
            Fault::NewDisk => {
                self.count(Case::NewDisk);
                self.net.replace_disk(id);
                (self.hosts[host].lost_power, self.hosts[host].is_stranger) = (true, true);
                self.hosts[host].must_be_noticed = true;
                return self.trouble(host, Trouble::Off, short);
            }
            Fault::Spare => self.replace_by_spare(host, member),
            Fault::PowerOfAll | Fault::Scrub => {}
        }
        Duration::ZERO
    }

    pub(super) fn trouble(&mut self, host: usize, trouble: Trouble, time: Duration) -> Duration {
        self.next_trouble += 1;
        let number = self.next_trouble;
        self.hosts[host].trouble = Some((trouble, number));
        self.net.put_in(time, Happening::Mend(host, number));
        time
    }

    /// A trouble ends.
    pub(super) fn mend(&mut self, host: usize, number: u64) {
        let Some((trouble, current)) = self.hosts[host].trouble else { return };
        if current != number {
            return;
        }
        self.note(|| format!("host {host}: no more {trouble:?}"));
        self.hosts[host].trouble = None;
        let id = self.hosts[host].id;
        let was_severe = self.hosts[host].is_impaired;
        match trouble {
            Trouble::Settling => self.net.set_brief(id, 0),
            Trouble::Stuck => self.net.set_slowness(id, 1),
            Trouble::Removed => {
                if !self.net.add_lun(id) {
                    // Commands are there still.
                    self.trouble(host, Trouble::Removed, Duration::from_millis(500));
                    return;
                }
            }
            Trouble::Straggling => self.net.set_straggling(id, None),
            Trouble::Off => self.start_host(host),
            Trouble::Parted => {
                for seat in self.seats {
                    self.net.heal(seat, id);
                }
            }
            Trouble::Hung => {}
            Trouble::Slow => self.net.set_slowness(id, 1),
            Trouble::Held => self.net.set_held(id, false),
            Trouble::Failing => self.net.set_failing(id, false),
            Trouble::Spoilt(block) => self.net.disk_mut(id).mend(block),
        }
        // A session that was looked at when the silence came may have been told of a lost cache, for all that is known.
        let is_doubtful = matches!(
            trouble,
            Trouble::Parted | Trouble::Hung | Trouble::Stuck | Trouble::Straggling
        );
        if is_doubtful && was_severe {
            self.hosts[host].must_be_noticed |= !self.plan.has_log;
            if self.phase == Phase::Lives {
                self.trouble(host, Trouble::Settling, SETTLING);
            }
        }
        // An engine has to notice that a cache may be lost, and not that it had to wait.
        let newest = crate::array::oracle::EngineId(self.last_engine);
        let host = &mut self.hosts[host];
        host.unnoticed_by = host.unnoticed_by.filter(|_| host.must_be_noticed).map(|_| newest);
        self.forgive();
    }

    /// An engine opens the array, and may leave a member out that does not answer its dial, or has left it out.
    pub(super) fn may_leave_one_out(&self) -> bool {
        self.opens() && !self.all_dials_answered()
    }

    /// An engine opens the array.
    fn opens(&self) -> bool {
        let newest = EngineId(self.last_engine);
        self.engines.iter().any(|engine| {
            engine.serving().is_none() || (engine.id == newest && self.serving != Some(newest))
        })
    }

    /// A host is back, perhaps for a moment only.
    fn start_host(&mut self, host: usize) {
        self.net.start(self.hosts[host].id);
        if self.phase == Phase::Lives && self.fault_dice.one_in(3) {
            let wait = Duration::from_micros(self.fault_dice.below(40_000));
            self.net.put_in(wait, Happening::Bounce(host));
        }
    }

    /// An engine has died: a device at which it has requests is held for a moment, perhaps.
    pub(super) fn hold_behind_dead(&mut self) {
        for host in 0..self.hosts.len() {
            let Host { id, trouble, .. } = self.hosts[host];
            let is_well = matches!(trouble, None | Some((Trouble::Straggling, _)));
            if is_well && self.net.under_way(id) > 0 && self.fault_dice.one_in(3) {
                self.count(Case::HeldBehindDead);
                self.net.set_held(id, true);
                let wait = Duration::from_millis(5 + self.fault_dice.below(200));
                self.net.put_in(wait, Happening::Release(host));
            }
        }
    }

    pub(super) fn release(&mut self, host: usize) {
        let Host { id, trouble, .. } = self.hosts[host];
        if !matches!(trouble, Some((Trouble::Held | Trouble::Removed, _))) {
            self.net.set_held(id, false);
        }
    }

    /// A host that is back goes away while sessions are made to it.
    pub(super) fn bounce(&mut self, host: usize) {
        let Host { id, trouble, is_impaired, .. } = self.hosts[host];
        if self.phase != Phase::Lives || trouble.is_some() || !is_impaired {
            return;
        }
        self.note(|| format!("host {host} goes away again"));
        self.count(Case::Bounced);
        self.impair(host);
        self.hosts[host].must_be_noticed = true;
        match self.fault_dice.below(3) {
            0 => self.net.kill(id),
            1 => {
                self.net.lose_power(id);
                self.hosts[host].lost_power = true;
            }
            // The host stays, and what it tells may be told in vain.
            _ => {
                self.net
                    .set_brief(id, 1 + netraid_block::narrow::<_, u32>(self.fault_dice.below(3)));
                self.trouble(host, Trouble::Settling, Duration::from_secs(4));
                return;
            }
        }
        let time = Duration::from_millis(20 + self.fault_dice.below(1000));
        self.trouble(host, Trouble::Off, time);
    }

    /// Whether requests are at a disk.
    pub(super) fn any_under_way(&self) -> bool {
        self.host_ids.iter().any(|host| self.net.under_way(*host) > 0)
    }

    /// Whether some requests take long at a disk.
    pub(super) fn any_straggles(&self) -> bool {
        let straggles = |host: &Host| matches!(host.trouble, Some((Trouble::Straggling, _)));
        self.hosts.iter().any(straggles)
    }

    pub(super) fn mend_everything(&mut self) {
        for host in 0..self.hosts.len() {
            self.net.set_brief(self.hosts[host].id, 0);
            match self.hosts[host].trouble {
                // It goes on by itself.
                Some((Trouble::Hung, _)) | None => {}
                Some((_, number)) => self.mend(host, number),
            }
        }
    }

    /// Cuts connections of engines to a host.
    pub(super) fn cut(&mut self, host: usize) {
        let id = self.hosts[host].id;
        let dice = &mut self.fault_dice;
        let within = |dice: &mut crate::dice::Dice| Duration::from_micros(dice.below(3_000));
        let hears = |dice: &mut crate::dice::Dice| {
            let wait = within(dice);
            (!dice.one_in(4)).then_some(wait)
        };
        let engine_hears = hears(dice);
        let host_hears = if engine_hears.is_none() { Some(within(dice)) } else { hears(dice) };
        let mut fate = || match self.fault_dice.one_in(2) {
            true => Fate::Lost,
            false => Fate::Delivered(Duration::from_micros(self.fault_dice.below(400_000))),
        };
        let cut = Cut { engine_hears, host_hears, to_host: fate(), to_engine: fate() };
        let is_unheard = cut.engine_hears.is_none() || cut.host_hears.is_none();
        self.count(if is_unheard { Case::CutUnheard } else { Case::Cut });
        let streams: Vec<_> =
            self.seats.iter().flat_map(|seat| self.net.streams(*seat, id)).collect();
        let all = self.fault_dice.one_in(2);
        let one = self.fault_dice.below(streams.len().max(1) as u64);
        for (at, stream) in (0..).zip(streams) {
            if all || at == one {
                self.net.cut(stream, cut);
            }
        }
    }

    fn spoil(&mut self, host: usize) {
        self.count(Case::Spoilt);
        let regions = self.plan.regions;
        let places = [regions.map, regions.sums, regions.log, regions.data, regions.data];
        let region = places[self.fault_dice.index(places.len())];
        let block_len = u64::from(self.plan.geometry.block_len());
        let block = (region.offset + self.fault_dice.below(region.len)) / block_len;
        let id = self.hosts[host].id;
        self.net.disk_mut(id).spoil(block);
        let time = Duration::from_millis(500 + self.fault_dice.below(20_000));
        self.trouble(host, Trouble::Spoilt(block), time);
    }

    fn lose_all_power(&mut self) {
        if self.replacing.is_some() || self.hosts.iter().any(|host| host.trouble.is_some()) {
            return;
        }
        self.note(|| "all hosts lose power".into());
        self.count(Case::PowerOfAll);
        self.oracle.lose_power();
        self.excuse();
        for host in 0..self.hosts.len() {
            self.impair(host);
            let id = self.hosts[host].id;
            self.net.lose_power(id);
            (self.hosts[host].lost_power, self.hosts[host].must_be_noticed) = (true, true);
            let time = Duration::from_millis(50 + self.fault_dice.below(4000));
            self.trouble(host, Trouble::Off, time);
        }
        if let Some(id) = self.serving
            && self.fault_dice.one_in(2)
        {
            self.kill(id, true, "the power of all fails");
        }
    }

    pub(super) fn fail_by_order(&mut self, host: usize, member: usize) {
        let Some(at) = self.serving.and_then(|id| self.position(id)) else { return };
        if self.with(at, |engine, context| engine.handle_fail(context, member)) {
            self.count(Case::FailedByOrder);
            let host = &mut self.hosts[host];
            (host.is_impaired, host.unnoticed_by) = (true, None);
        }
    }

    pub(super) fn replace_by_spare(&mut self, host: usize, member: usize) {
        let Some(at) = self.serving.and_then(|id| self.position(id)) else { return };
        let spare = self.spare;
        if self.hosts[spare].trouble.is_some() {
            return;
        }
        let id = self.hosts[spare].id;
        self.net.replace_disk(id);
        self.net.start(id);
        let expect = if self.fault_dice.one_in(2) { Expect::Unused } else { Expect::Anything };
        let expect =
            if self.plan.fill == crate::disk::Fill::Zeroes { expect } else { Expect::Anything };
        let asked =
            self.with(at, |engine, context| engine.handle_join(context, member, spare, expect));
        self.note(|| format!("member {member} is to be replaced by host {spare}: {asked:?}"));
        if asked.is_ok() {
            self.replacing = Some((member, spare));
            let host = &mut self.hosts[host];
            (host.is_impaired, host.unnoticed_by) = (true, None);
        }
    }

    fn scrub(&mut self) {
        let Some(at) = self.serving.and_then(|id| self.position(id)) else { return };
        let order = ScrubOrder::Start { from: 0, trust_parity: self.fault_dice.one_in(4) };
        self.is_scrubbing |= self.with(at, |engine, context| engine.handle_scrub(context, order));
    }
}

impl Fault {
    /// Whether an answer of a disk that goes on serving may be lost with its connection.
    const fn loses_answers(self) -> bool {
        matches!(
            self,
            Self::Cut | Self::Part | Self::LongPart | Self::Hang | Self::LongHang | Self::Stuck
        )
    }

    /// Whether a member that nothing else befalls stays in the array.
    const fn is_light(self) -> bool {
        match self {
            Self::Cut
            | Self::Stall
            | Self::Part
            | Self::Hang
            | Self::Slow
            | Self::Held
            | Self::Outsider
            | Self::Dropped => true,
            Self::LongPart
            | Self::LongHang
            | Self::Stuck
            | Self::Straggling
            | Self::Removed
            | Self::Spoilt
            | Self::Failing
            | Self::Restart
            | Self::PowerOfOne
            | Self::PowerOfAll
            | Self::Reset
            | Self::FailedByOrder
            | Self::NewDisk
            | Self::Spare
            | Self::Scrub => false,
        }
    }
}
