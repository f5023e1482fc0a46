//! The places of an array's members: which device is there, and how another one comes.

use alloc::{string::String, vec::Vec};
use core::time::Duration;

use netraid_block::{ErrorKind, IoError, Op};

use super::{
    interface::{Device, Found, Report, Stats},
    tally::Tally,
};
use crate::{
    planted::{Planted, planted},
    presence::Sighting,
};

/// Looks that a member waits for at most which leaves again and again.
const PAUSE_MAX: u32 = 64;

/// A member's place.
#[derive(Debug)]
pub(super) struct Place {
    /// Where its device is, or was.
    pub(super) address: Option<String>,
    /// The device that requests go to.
    pub(super) device: Option<Device>,
    /// The machine has the device, and has not said yet whether it takes part.
    pub(super) is_awaited: bool,
    /// Raised when another device takes the place.
    pub(super) number: u32,
    /// How it comes back by itself.
    pub(super) returning: Returning,
    pub(super) stats: Stats,
    /// What went wrong with its member.
    pub(super) tally: Tally,
    /// The device with this number was asked for a sign of life, and has not answered.
    pub(super) asked: Option<u32>,
}

/// How a member comes back.
#[derive(Debug)]
pub(super) struct Returning {
    /// It does so by itself: nobody set it aside, and its device did not fail.
    pub(super) by_itself: bool,
    /// The last failure of a request was an answer of its device, which would answer so again.
    pub(super) answers_so: bool,
    /// It is looked for, since the place had this number.
    pub(super) attempt: Option<u32>,
    /// Looks until the next attempt.
    pub(super) wait: u32,
    /// Looks to wait for when it leaves the next time: more each time, until it has caught up.
    pause: u32,
    /// Why the last attempt failed.
    pub(super) told: Option<String>,
}

/// What there is to see in a member's place at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Look {
    /// Of the sessions to the device there; nothing when there is no device.
    pub report: Option<Report>,
    /// The session of a device that was set aside has not ended: it may send again what it has under way.
    pub is_leaving: bool,
}

impl Place {
    fn new(found: Found) -> Self {
        let (device, address, by_itself) = match found {
            Found::Device(device) => (Some(device.clone()), Some(device.address), true),
            Found::Nobody(address) => (None, address, true),
            Found::Liar(address) => (None, Some(address), false),
        };
        let (answers_so, attempt, wait, pause, told) = (false, None, 0, 0, None);
        let returning = Returning { by_itself, answers_so, attempt, wait, pause, told };
        let (is_awaited, number) = (false, 0);
        let (stats, tally, asked) = (Stats::default(), Tally::default(), None);
        Self { address, device, is_awaited, number, returning, stats, tally, asked }
    }

    /// Whether its device is, or was, at this address.
    pub(super) fn is_at(&self, address: &str) -> bool {
        self.address.as_deref() == Some(address)
    }

    pub(super) fn all(found: Vec<Found>) -> Vec<Self> {
        found.into_iter().map(Self::new).collect()
    }

    /// Puts a device in the place.
    pub(super) fn take(&mut self, device: Device) {
        if self.address.as_ref() != Some(&device.address) {
            // The same member may be found at another address.
            self.tally.keep(&self.stats);
            self.stats = Stats::default();
        }
        self.address = Some(device.address.clone());
        self.number += 1;
        self.device = Some(device);
        self.is_awaited = true;
        (self.returning.by_itself, self.returning.told) = (true, None);
    }

    /// Takes over what is known of the place as it was before the array was opened anew.
    pub(super) fn follow(&mut self, mut before: Self) {
        self.number = before.number + 1;
        if self.address.is_none() || self.address == before.address {
            self.address = before.address;
            self.stats = before.stats;
            self.tally = before.tally.reopened();
            // Who was set aside by command stays so.
            self.returning.by_itself &= before.returning.by_itself;
            self.returning.pause = before.returning.pause;
        } else {
            before.tally.keep(&before.stats);
            self.tally = before.tally.reopened();
        }
    }

    /// Whether the device has lost what was not flushed since it took the place, as its sessions count that.
    pub(super) fn has_lost_its_cache(&self, losses: u64) -> bool {
        self.device.as_ref().is_some_and(|device| device.cache_losses != losses)
            && !planted(Planted::CacheLossBelieved)
    }

    /// Takes note of a request that is sent to the device.
    pub(super) const fn count(&mut self, op: Op, len: u64) {
        match op {
            Op::Read => {
                self.stats.reads += 1;
                self.stats.read_bytes += len;
            }
            Op::Write | Op::WriteZeroes | Op::Discard => {
                self.stats.writes += 1;
                self.stats.written_bytes += len;
            }
            Op::Flush | Op::Extents => {}
        }
    }
}

impl Returning {
    /// A request failed. A device that answers with a failure would do so again; blocks that cannot be read are
    /// repaired, and set no member aside.
    pub(super) const fn note(&mut self, error: &IoError, is_read: bool) {
        let kind = error.kind();
        self.answers_so = matches!(kind, ErrorKind::NoSpace | ErrorKind::Device)
            || (!is_read && matches!(kind, ErrorKind::Medium));
        self.by_itself &= !self.answers_so;
    }

    pub(super) fn has_left(&mut self) {
        self.wait = self.pause;
        self.pause = (self.pause * 2).clamp(1, PAUSE_MAX);
    }

    /// When it leaves now, it is not looked for before so long.
    pub(super) fn stay_away(&mut self, time: Duration) {
        self.pause = self.pause.max(u32::try_from(time.as_secs()).unwrap_or(u32::MAX));
    }

    pub(super) const fn has_caught_up(&mut self) {
        self.pause = 0;
    }
}

impl Report {
    pub(super) fn sighting(&self) -> Sighting {
        let signs = self.signs;
        if self.is_fenced {
            Sighting::Fenced
        } else if self.is_connected {
            Sighting::Connected { signs }
        } else {
            // Silence took its time before the session was lost: with both a request would have failed.
            let patience = self.request_timeout * 2 / 5;
            let patience = if self.is_gone { Duration::ZERO } else { patience };
            Sighting::Lost { signs, patience }
        }
    }
}
