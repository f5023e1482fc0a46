//! The places of an array's members: which device is there, and how another one comes.

use alloc::{string::String, vec::Vec};
use core::time::Duration;

use netraid_block::{ErrorKind, IoError, Op};

use super::interface::{Device, Found, Report, Stats};
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
}

/// How a member comes back.
#[derive(Debug)]
pub(super) struct Returning {
    /// It does so by itself: nobody set it aside, and its device did not fail.
    pub(super) by_itself: bool,
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
        let returning = Returning { by_itself, attempt: None, wait: 0, pause: 0, told: None };
        let (is_awaited, number) = (false, 0);
        Self { address, device, is_awaited, number, returning, stats: Stats::default() }
    }

    pub(super) fn all(found: Vec<Found>) -> Vec<Self> {
        found.into_iter().map(Self::new).collect()
    }

    /// Puts a device in the place.
    pub(super) fn take(&mut self, device: Device) {
        if self.address.as_ref() != Some(&device.address) {
            self.stats = Stats::default();
        }
        self.address = Some(device.address.clone());
        self.number += 1;
        self.device = Some(device);
        self.is_awaited = true;
        (self.returning.by_itself, self.returning.told) = (true, None);
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
        self.by_itself &= !matches!(kind, ErrorKind::NoSpace | ErrorKind::Device)
            && (is_read || !matches!(kind, ErrorKind::Medium));
    }

    pub(super) fn has_left(&mut self) {
        self.wait = self.pause;
        self.pause = (self.pause * 2).clamp(1, PAUSE_MAX);
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
