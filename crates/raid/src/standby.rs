//! Whether an engine that stands by for another one may try to open the array, by what it reads of the members.
//!
//! Whoever drives a [`Standby`] reads the labels and heartbeats of all devices about once a second, tells each reading with the
//! time, and asks [`Standby::poll`] as often. Times are counted from anywhere, and never go back.
//!
//! The engine that has the array is *silent* when no label, no heartbeat and none of its keys has changed for the time that is configured, on
//! members that were read, and from which the array can be served. Time in which this process stood still does not count:
//! what it has read before may be old, and the judgement begins anew. A member that cannot be read says nothing. An engine
//! that never wrote a heartbeat is not judged by time. Labels are weighed as an opening weighs them: what a device of another array,
//! or one that the others contradict, says counts for nothing.
//!
//! Invariants: an attempt to take over names the label that was judged ([`Silent`]), so that the opening takes over nobody else;
//! attempts are at least the configured time apart. Silence proves nothing: whether the engine can be shut out is decided by
//! fencing ([`crate::opening`]), and what is counted here only saves attempts that would be refused there.
//!
//! Not here: how devices are read, and what an opening decides.

mod outlook;
#[cfg(test)]
mod tests;

use alloc::{boxed::Box, vec::Vec};
use core::time::Duration;

pub use outlook::Outlook;

use crate::{
    assemble::choose_array,
    fencing::keys_of_silent,
    heartbeat::Heartbeat,
    label::{Closure, Label, Uuid},
    member::{MEMBERS_MAX, MemberIndex, MemberSet},
    opening::Silent,
    testimony::judge,
};

/// The usual time after which an engine is silent.
pub const AFTER_USUAL: Duration = Duration::from_secs(5);
/// The shortest: heartbeats come once a second, and one may be late.
pub const AFTER_MIN: Duration = Duration::from_secs(3);
/// From one reading of a device to the next one.
pub const READ_EVERY: Duration = Duration::from_secs(1);
/// A device whose readings take longer than this is not read often enough to be judged by.
const READ_MAX: Duration = Duration::from_secs(10);
/// A process that is not asked for longer has stood still.
const STANDSTILL: Duration = Duration::from_secs(2);

/// What was read of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// Its label.
    pub label: Box<Label>,
    /// The newest heartbeat on it.
    pub heartbeat: Option<Heartbeat>,
    /// The keys of reservations that are registered; none where it does not tell: nobody can be shut out there.
    pub keys: Option<Vec<u64>>,
}

/// How the array is to be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// Taken over from this engine; none: as any engine opens it that was told nothing.
    pub silent: Option<Silent>,
}

/// A device as it was read last.
#[derive(Debug, Clone)]
struct Seen {
    reading: Reading,
    /// When the reading began: what it shows is not older.
    begun: Duration,
    /// How long it took.
    took: Duration,
    /// When a change of label, heartbeat or keys was read last, or the first of these.
    changed_at: Duration,
}

/// An engine that stands by.
#[derive(Debug)]
pub struct Standby {
    after: Duration,
    /// Added between attempts, so that two that stand by do not meet again and again.
    jitter: Duration,
    /// By place; none of a device that was not read since the judgement began.
    devices: Vec<Option<Seen>>,
    /// The last so many are spares.
    spares: usize,
    /// When this was asked or told last.
    last: Duration,
    /// When the judgement began.
    begun: Duration,
    /// A change was read since the judgement began.
    has_changed: bool,
    /// No attempt before.
    next_attempt: Duration,
    /// What was told last.
    told: Option<Outlook>,
}

impl Standby {
    /// For so many devices, the last of which are `spares`. An engine is silent `after` that time, [`AFTER_MIN`] at least; `random` tells this engine from
    /// others that stand by.
    #[must_use]
    pub fn new(
        (devices, spares): (usize, usize),
        after: Duration,
        random: u64,
        now: Duration,
    ) -> Self {
        let after = after.max(AFTER_MIN);
        let share = u32::try_from(random % 1000).unwrap_or_default();
        Self {
            after,
            jitter: after * share / 1000,
            devices: alloc::vec![None; devices],
            spares,
            last: now,
            begun: now,
            has_changed: false,
            next_attempt: now,
            told: None,
        }
    }

    /// A device was read, from the time on at which that had `begun`. Of one that cannot be read nothing is told.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn handle_reading(
        &mut self,
        now: Duration,
        (device, begun): (usize, Duration),
        reading: Reading,
    ) {
        self.pass(now);
        let place = &mut self.devices[device];
        // What is read for the first time may have been written just now.
        let same = place.as_ref().filter(|before| !differ(&before.reading, &reading));
        let changed_at = same.map_or(now, |before| before.changed_at);
        self.has_changed |= place.is_some() && same.is_none();
        let took = now.saturating_sub(begun);
        *place = Some(Seen { reading, begun, took, changed_at });
    }

    /// An attempt has failed, and the next one waits.
    pub fn handle_failed(&mut self, now: Duration) {
        self.pass(now);
        self.next_attempt = now + self.after + self.jitter;
    }

    /// Whether the array is to be opened now; ends by [`Self::handle_failed`], if it does not end this.
    pub fn poll(&mut self, now: Duration) -> Option<Attempt> {
        self.pass(now);
        if now < self.next_attempt {
            return None;
        }
        let silent = match self.outlook(now) {
            Outlook::Unreadable { .. } | Outlook::Alive { .. } => return None,
            Outlook::Closed { .. } | Outlook::NoHeartbeats { .. } | Outlook::NotShutOut { .. } => {
                None
            }
            Outlook::Silent { silent, .. } => Some(*silent),
        };
        Some(Attempt { silent })
    }

    /// How the array is, where that is another way than was told last.
    pub fn news(&mut self, now: Duration) -> Option<Outlook> {
        let outlook = self.outlook(now);
        let is_early = now < self.begun + READ_EVERY + STANDSTILL;
        let is_unread = matches!(outlook, Outlook::Unreadable { .. });
        // That nothing is known yet, after the judgement has begun anew, is no news of the engine.
        let is_judged = self.has_changed || self.told.is_none();
        let is_alive = matches!(outlook, Outlook::Alive { .. });
        if is_unread && is_early || is_alive && !is_judged || self.told.as_ref() == Some(&outlook) {
            return None;
        }
        self.told = Some(outlook.clone());
        Some(outlook)
    }

    /// How the array is, as far as can be read.
    #[must_use]
    pub fn outlook(&self, now: Duration) -> Outlook {
        let Some(judged) = self.judged(now) else { return Outlook::Unreadable { name: None } };
        let Judged { truth, members } = &judged;
        let name = truth.name.clone();
        if !truth.geometry.can_serve_from(judged.those(|_| true)) {
            return Outlook::Unreadable { name: Some(name) };
        }
        if truth.closure != Closure::Open {
            return Outlook::Closed { name };
        }
        let (holder, generation) = (truth.holder.name.clone(), truth.generation);
        let changes = members.iter().map(|(_, seen)| seen.changed_at);
        let alive_at = changes.max().unwrap_or_default().max(self.begun);
        let is_quiet = |seen: &Seen| seen.begun >= alive_at + self.after;
        if !truth.geometry.can_serve_from(judged.those(is_quiet)) {
            return Outlook::Alive { name, holder, generation };
        }
        let beats = |seen: &Seen| {
            seen.reading.heartbeat.is_some_and(|beat| beat.engine == truth.holder.engine_id)
        };
        if judged.those(beats).is_empty() {
            return Outlook::NoHeartbeats { name, holder };
        }
        let can_be_shut_out = judged.those(|seen| seen.reading.keys.is_some());
        let others = truth.in_sync().without(can_be_shut_out);
        if truth.geometry.can_serve_from(others) {
            let members: Vec<MemberIndex> = others.iter().collect();
            return Outlook::NotShutOut { name, holder, members };
        }
        Outlook::Silent { name, holder, silent: Box::new(judged.silent()) }
    }

    /// The label that decides, and the members by it that were read lately. None where no label was.
    fn judged(&self, now: Duration) -> Option<Judged<'_>> {
        let first_spare = self.devices.len().saturating_sub(self.spares);
        let seen = self.devices.iter().enumerate();
        let seen = seen.filter_map(|(at, seen)| seen.as_ref().map(|seen| (at, seen)));
        let fresh: Vec<(usize, &Seen)> = seen.filter(|(_, seen)| seen.is_fresh(now)).collect();
        let arrays = |spares: bool| {
            let those = fresh.iter().filter(move |(at, _)| spares || *at < first_spare);
            those.map(|(_, seen)| &*seen.reading.label)
        };
        // A spare decides nothing of which array it is.
        let array = choose_array(arrays(false)).or_else(|| most(arrays(false)))?;
        let labels = arrays(true).filter(|label| label.array_uuid == array);
        let labels: Vec<&Label> = labels.collect();
        let newest = labels.iter().max_by_key(|label| (label.generation, label.epoch))?;
        // Where it is not clear who lies the opening refuses.
        let verdict = judge(&labels, &alloc::vec![None; labels.len()]).ok();
        let truth = verdict.as_ref().map_or(*newest, |verdict| labels[verdict.truth]);
        let of_array = fresh.iter().filter(|(_, seen)| seen.reading.label.array_uuid == array);
        let is_believed =
            |at: usize| verdict.as_ref().is_none_or(|verdict| verdict.lie(at).is_none());
        let believed = of_array.enumerate().filter(|(at, _)| is_believed(*at));
        let members = believed.map(|(_, (_, seen))| (seen.reading.label.index, *seen));
        // A device whose place another one has taken is no member any more.
        let is_member = |(member, seen): &(MemberIndex, &Seen)| {
            let uuid = |label: &Label| label.members.get(member.as_usize()).map(|it| it.uuid);
            let label = &seen.reading.label;
            uuid(truth).is_some() && uuid(label) == uuid(truth)
        };
        Some(Judged { truth, members: members.filter(is_member).collect() })
    }

    /// Takes note of the time. What was read before a standstill counts no more.
    fn pass(&mut self, now: Duration) {
        if now.saturating_sub(self.last) > STANDSTILL {
            self.begin_anew(now);
        }
        self.last = now;
    }

    fn begin_anew(&mut self, now: Duration) {
        self.devices.fill(None);
        (self.begun, self.last, self.has_changed) = (now, now, false);
    }
}

/// What was read lately, weighed.
struct Judged<'a> {
    truth: &'a Label,
    members: Vec<(MemberIndex, &'a Seen)>,
}

impl Judged<'_> {
    /// The members in sync that are such.
    fn those(&self, is_one: impl Fn(&Seen) -> bool) -> MemberSet {
        let those = self.members.iter().filter(|(_, seen)| is_one(seen)).map(|(member, _)| *member);
        those.filter(|member| self.truth.in_sync().contains(*member)).collect()
    }

    /// The engine by what it is judged, for an opening that looks at that once more.
    fn silent(&self) -> Silent {
        let Label { array_uuid, holder, generation, epoch, .. } = self.truth;
        let keys = self.members.iter().filter_map(|(_, seen)| seen.reading.keys.as_ref()).flatten();
        let keys = keys_of_silent(array_uuid, holder, keys);
        let mut heartbeats = [0; MEMBERS_MAX];
        for (member, seen) in &self.members {
            if let (Some(place), Some(beat)) =
                (heartbeats.get_mut(member.as_usize()), seen.reading.heartbeat)
            {
                *place = beat.digest();
            }
        }
        let (engine, generation, epoch) = (holder.engine_id, *generation, *epoch);
        Silent { engine, generation, epoch, keys, heartbeats }
    }
}

impl Seen {
    /// Whether it is what the device shows: the next reading may take as long as this one did, or a little longer.
    fn is_fresh(&self, now: Duration) -> bool {
        let next = READ_EVERY + STANDSTILL + 2 * self.took.min(READ_MAX);
        now.saturating_sub(self.begun) <= next
    }
}

/// The array of which most labels are.
fn most<'a>(labels: impl Iterator<Item = &'a Label> + Clone) -> Option<Uuid> {
    let count = |uuid: Uuid| labels.clone().filter(|label| label.array_uuid == uuid).count();
    labels.clone().map(|label| label.array_uuid).max_by_key(|uuid| (count(*uuid), *uuid))
}

/// Whether somebody has written a label or a heartbeat, or an engine of the holder has come or gone, between two readings of a device.
fn differ(before: &Reading, after: &Reading) -> bool {
    let of = |Reading { label, heartbeat, keys }: &Reading| {
        let Label { array_uuid, generation, epoch, closure, holder, .. } = &**label;
        let keys = keys.iter().flatten();
        let keys = keys_of_silent(array_uuid, holder, keys);
        (*array_uuid, *generation, *epoch, *closure, *heartbeat, keys)
    };
    of(before) != of(after)
}
