//! A replaced disk is rebuilt: stripe after stripe, so many at once, and not faster than allowed.
//!
//! A stripe goes the way of a write that reads before. It has no right of way over the workload's
//! requests, nor they over it: everything is first come, first served.

use core::time::Duration;

use netraid_block::narrow;
use netraid_sim::Time;

use super::{Event, Request, World, host::Counts, log_requests::Kind};
use crate::config::Rebuild;

/// How far a rebuild is.
#[derive(Debug)]
pub(super) struct RebuildState {
    began: Time,
    /// Stripes to be rebuilt in this run, and how many of them were begun and have ended.
    stripes: u64,
    begun: u64,
    ended: u64,
    /// Whether the rate limit's next moment is in the agenda.
    is_waiting: bool,
}

impl RebuildState {
    pub(super) fn new(rebuild: &Rebuild, chunk_bytes: u32) -> Self {
        let stripes = rebuild.stripes(chunk_bytes);
        Self { began: Time::START, stripes, begun: 0, ended: 0, is_waiting: false }
    }

    /// Stripes that are being rebuilt.
    const fn under_way(&self) -> u64 {
        self.begun - self.ended
    }

    /// How much of the run's stripes is rebuilt, 0 to 1.
    pub(super) fn part(&self) -> f64 {
        self.ended as f64 / self.stripes as f64
    }

    /// Bytes of the disk that were rebuilt.
    pub(super) fn bytes(&self, chunk_bytes: u32) -> f64 {
        self.ended as f64 * f64::from(chunk_bytes)
    }
}

impl World<'_> {
    pub(super) fn begin_rebuild(&mut self) {
        let now = self.agenda.now();
        if let Some(state) = &mut self.rebuild {
            state.began = now;
            self.begin_stripes();
        }
    }

    /// The rate limit allows a stripe more.
    pub(super) fn handle_rebuild_due(&mut self) {
        if let Some(state) = &mut self.rebuild {
            state.is_waiting = false;
        }
        self.begin_stripes();
    }

    /// Begins as many stripes as may be at once, and as the rate limit allows.
    fn begin_stripes(&mut self) {
        let (Some(rebuild), now) = (&self.model.config.rebuild, self.agenda.now()) else { return };
        let chunk = f64::from(self.model.config.transfer_unit_bytes);
        while let Some(state) = &mut self.rebuild {
            let is_full = state.under_way() >= u64::from(rebuild.stripes_at_once);
            if is_full || state.begun >= state.stripes || state.is_waiting {
                return;
            }
            // A stripe's time comes first, so that no part of the run is above the limit.
            let slot = rebuild.rate_limit_mb_s.map_or(0.0, |limit| chunk / (limit * 1e6));
            let due = Duration::from_secs_f64((state.begun + 1) as f64 * slot);
            let due = state.began.after(due);
            if due > now {
                state.is_waiting = true;
                self.agenda.put_at(due, Event::RebuildDue);
                return;
            }
            let stripe = state.begun;
            state.begun += 1;
            self.begin_stripe(stripe);
        }
    }

    fn begin_stripe(&mut self, stripe: u64) {
        let now = self.agenda.now();
        let disk = self.model.config.away;
        let plan = self.model.layout(self.presence).rebuild(disk, stripe);
        let request = Request { kind: Kind::Rebuild, arrived: now, ..Request::new(false, plan) };
        let request = self.requests.insert(request);
        let work = Counts { requests: 1.0, ..Counts::default() };
        let done = self.client_works(false, None, work);
        self.agenda.put_at(done, Event::Begun { request });
    }

    /// A stripe's chunk is on the disk.
    pub(super) fn end_stripe(&mut self) {
        let Some(state) = &mut self.rebuild else {
            unreachable!("a stripe of no rebuild has ended")
        };
        state.ended += 1;
        // Of the whole volume, as much is done as of what the run rebuilds.
        let below = u128::from(self.model.geometry.stripes()) * u128::from(state.ended);
        let below = below / u128::from(state.stripes);
        self.presence = self.presence.rebuilt_below(narrow(below));
        if state.ended == state.stripes {
            return self.mark_end();
        }
        self.begin_stripes();
    }
}
