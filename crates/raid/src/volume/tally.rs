//! The members' counters of what went wrong, and their way to the members and back: [`crate::faults`] is what stands there.
//!
//! A member's counters are read once it is there, and written when they have changed, now and then and when the volume
//! closes. These requests are nobody's: they count nowhere, nothing waits for them, and what they end with has no other
//! consequence.
//!
//! Invariants: nothing is written before what is there was read; what a later version wrote is left as it is; a member has one
//! such read or write at a time; counters begin anew with another member in the place.

use alloc::vec::Vec;
use core::time::Duration;

use netraid_block::{Buf, ErrorKind, IoError, Op, SgList};

use super::{Action, Life, Look, Stats, Tag, Volume, machine::Machine};
use crate::{
    faults::{Fault, Faults, FaultsImage},
    label::Uuid,
    member::{MemberIndex, MemberSet},
    page::PageError,
    regions::{HISTORY_OFFSETS, PAGE_LEN},
};

/// The numbers of these requests: no machine has so many under way.
const READ: usize = (1 << 40) - 2;
const WRITE: usize = (1 << 40) - 3;
/// From one image to the next one, at least.
const WRITE_EVERY: Duration = Duration::from_secs(10);
/// When what failed is tried again.
const AGAIN: Duration = Duration::from_secs(60);

/// What is known of the image on a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Kept {
    /// Nothing yet.
    #[default]
    Unread,
    /// Which one is the newest.
    Read,
    /// It is not for this version.
    Later,
}

/// The counters of the member in a place.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    /// Whose they are, once that is known.
    member: Option<Uuid>,
    /// What was counted before: by an engine before this one, or under another address.
    before: Faults,
    /// What was found since, but for what the place's other counters have.
    found: Faults,
    kept: Kept,
    /// The newest image on the member, as far as it was read.
    newest: FaultsImage,
    /// What is being written.
    written: FaultsImage,
    /// Requests under way, and the number of the place when they were sent.
    under_way: u8,
    number: u32,
    has_failed: bool,
    /// What stands there was cleared before it was read.
    is_cleared: bool,
    /// When the next one may be sent.
    next_at: Duration,
    /// Sessions that had been made again, of the device that had the place with this number.
    reconnects: Option<(u32, u64)>,
}

impl Tally {
    /// All that is counted, where the place has counted this besides.
    pub(super) fn faults(&self, stats: &Stats) -> Faults {
        let own = Faults { errors: stats.errors, late_reads: stats.late, ..Faults::default() };
        self.before.plus(&self.found).plus(&own)
    }

    /// The place forgets what it has counted itself.
    pub(super) fn keep(&mut self, stats: &Stats) {
        (self.before, self.found) = (self.faults(stats), Faults::default());
    }

    /// The place is opened anew: nothing is under way any more.
    pub(super) fn reopened(mut self) -> Self {
        self.under_way = 0;
        self
    }

    /// The sessions to the device that has the place with this number were made again so often.
    fn note_reconnects(&mut self, number: u32, count: u64) {
        let more = match self.reconnects.replace((number, count)) {
            Some((same, before)) if same == number => count.saturating_sub(before),
            // It came back with a new one.
            Some(_) => count + 1,
            None => count,
        };
        self.found.reconnects = self.found.reconnects.saturating_add(more);
    }

    /// Whether the member has other counters than these.
    fn has_changed(&self, faults: Faults) -> bool {
        let is_own = self.member == Some(self.newest.member);
        faults != if is_own { self.newest.faults } else { Faults::default() }
    }

    /// Takes what a slot has.
    fn take(&mut self, slot: usize, array: Uuid, result: Result<SgList, IoError>) {
        let data = match result {
            Ok(data) => data.to_contiguous(),
            Err(_) => {
                self.has_failed = true;
                return;
            }
        };
        match FaultsImage::decode(&data, array, slot) {
            Ok(image) if image.counter > self.newest.counter => self.newest = image,
            Err(PageError::Version { .. } | PageError::Later { .. }) => self.kept = Kept::Later,
            Ok(_) | Err(PageError::Absent(_) | PageError::Field { .. }) => {}
        }
    }

    /// Both slots were read.
    fn end_reading(&mut self, now: Duration) {
        if core::mem::take(&mut self.has_failed) {
            (self.newest, self.kept) = (FaultsImage::default(), Kept::Unread);
            self.next_at = now + AGAIN;
            return;
        }
        if self.kept == Kept::Unread {
            self.kept = Kept::Read;
            if self.member == Some(self.newest.member) && !self.is_cleared {
                self.before = self.before.plus(&self.newest.faults);
            }
        }
    }
}

impl<M: Machine, U> Volume<M, U> {
    /// What went wrong with a member since it became this array's, as far as that could be kept on it.
    #[must_use]
    pub fn faults(&self, member: MemberIndex) -> Faults {
        let place = &self.places[member.as_usize()];
        place.tally.faults(&place.stats)
    }

    /// A member's counters of what went wrong begin anew.
    pub fn handle_clear_faults(&mut self, member: MemberIndex) {
        let place = &mut self.places[member.as_usize()];
        (place.stats.errors, place.stats.late, place.stats.last_error) = (0, 0, None);
        (place.tally.before, place.tally.found) = (Faults::default(), Faults::default());
        place.tally.is_cleared = place.tally.kept == Kept::Unread;
        place.tally.next_at = Duration::ZERO;
    }

    /// Something was found wrong with a member.
    pub(super) fn note_fault(&mut self, member: MemberIndex, fault: Fault, count: u64) {
        self.places[member.as_usize()].tally.found.add(fault, count);
    }

    /// Reads counters that are not known, and writes those that have changed, of members that have sessions.
    pub(super) fn look_at_counters(&mut self, now: Duration, looks: &[Look]) {
        let away = self.suspects(looks);
        let members: Vec<MemberIndex> = self.machine.geometry().member_indices().collect();
        for (member, look) in members.into_iter().zip(looks) {
            self.follow_member(member);
            let place = &mut self.places[member.as_usize()];
            if let Some(report) = &look.report {
                place.tally.note_reconnects(place.number, report.reconnects);
            }
            if !away.contains(member) && now >= place.tally.next_at {
                self.move_counters(now, member);
            }
        }
    }

    /// The volume closes: members get what has changed.
    pub(super) fn keep_counters(&mut self, now: Duration) {
        let away: MemberSet = self.presence.suspects();
        let members: Vec<MemberIndex> = self.machine.geometry().member_indices().collect();
        if self.machine.failure().is_none() {
            for member in members.into_iter().filter(|member| !away.contains(*member)) {
                self.move_counters(now, member);
            }
        }
    }

    /// Begins anew where another member has the place.
    fn follow_member(&mut self, member: MemberIndex) {
        let Some((_, uuid)) = self.machine.identity(member) else { return };
        let place = &mut self.places[member.as_usize()];
        if place.tally.member == Some(uuid) {
            return;
        }
        let is_other = place.tally.member.is_some();
        if is_other {
            let (under_way, number) = (place.tally.under_way, place.tally.number);
            place.tally = Tally { under_way, number, ..Tally::default() };
            (place.stats.errors, place.stats.late, place.stats.last_error) = (0, 0, None);
        }
        place.tally.member = Some(uuid);
    }

    /// Sends what is to be sent to a member now.
    fn move_counters(&mut self, now: Duration, member: MemberIndex) {
        let is_live = self.state(member).is_live();
        let Some((array, uuid)) = self.machine.identity(member) else { return };
        let may_write = !self.machine.is_read_only();
        let place = &mut self.places[member.as_usize()];
        let is_there = place.device.is_some() && !place.is_awaited && is_live;
        let faults = place.tally.faults(&place.stats);
        let tally = &mut place.tally;
        if !is_there || tally.under_way > 0 || tally.member != Some(uuid) {
            return;
        }
        tally.number = place.number;
        let (len, none) = (u64::from(PAGE_LEN), SgList::new);
        match tally.kept {
            Kept::Unread if self.life == Life::Open => {
                tally.under_way = 2;
                for (piece, offset) in (0..).zip(HISTORY_OFFSETS) {
                    let (tag, fua, data) = (Tag::new(member, READ, piece), false, none());
                    let op = Op::Read;
                    self.actions.push_back(Action::Submit {
                        tag,
                        member,
                        op,
                        offset,
                        len,
                        fua,
                        data,
                    });
                }
            }
            Kept::Read if may_write && tally.has_changed(faults) => {
                let image = tally.newest.next(uuid, faults);
                (tally.under_way, tally.written) = (1, image);
                tally.next_at = now + WRITE_EVERY;
                let (tag, fua) = (Tag::new(member, WRITE, 0), true);
                let (op, offset) = (Op::Write, image.offset());
                let data = Buf::copy_from(&image.encode(array)).into();
                self.actions.push_back(Action::Submit { tag, member, op, offset, len, fua, data });
            }
            Kept::Unread | Kept::Read | Kept::Later => {}
        }
    }

    /// Takes the end of a request of these; answers whether it was one.
    pub(super) fn hear_counters(
        &mut self,
        now: Duration,
        tag: Tag,
        result: &Result<SgList, IoError>,
    ) -> bool {
        let is_read = tag.io() == READ as u64;
        if !is_read && tag.io() != WRITE as u64 {
            return false;
        }
        let member = tag.member();
        let identity = self.machine.identity(member);
        let place = &mut self.places[member.as_usize()];
        let is_current = place.number == place.tally.number && place.device.is_some();
        let tally = &mut place.tally;
        // Another member may have the place since.
        tally.under_way = tally.under_way.saturating_sub(1);
        let of_member = identity.filter(|(_, uuid)| is_current && tally.member == Some(*uuid));
        let result = match of_member {
            Some(_) => result.clone(),
            None => Err(ErrorKind::Unreachable.into()),
        };
        if is_read {
            let array = identity.map(|(array, _)| array).unwrap_or_default();
            tally.take(usize::from(tag.piece() != 0), array, result);
            if tally.under_way == 0 {
                tally.end_reading(now);
            }
        } else if result.is_ok() {
            tally.newest = tally.written;
        } else {
            tally.next_at = now + AGAIN;
        }
        true
    }
}
