//! Users: what they ask for, and what they are told.

use core::time::Duration;

use netraid_block::{ErrorKind, IoError, Op, SgList};
use netraid_raid::{array::RequestId, logged::UserRequest, volume::Machine as _};

use super::{Began, Case, Happening, Phase, World};
use crate::array::{
    content::{self, SECTOR_LEN, WriteId},
    oracle::{Change, EngineId, Wrong},
    workload::Wanted,
};

/// Requests that users make of an array that was told to close.
const LATE_REQUESTS: u64 = 4;
/// Reads of everything at once.
const SWEEP_DEPTH: u64 = 8;
/// Reads of an engine that was pushed aside, from one look of the administrator to the next one.
const STALE_READS: u32 = 12;

/// A request that a user made.
#[derive(Debug)]
pub(super) enum Pending {
    Read {
        first: u64,
        submitted: Began,
    },
    Write(WriteId),
    Flush(Began),
    /// Nobody counts on what it says: the engine was pushed aside.
    Stale,
}

impl World {
    pub(super) fn complete(
        &mut self,
        id: EngineId,
        request: RequestId,
        result: Result<SgList, IoError>,
    ) {
        let Some(pending) = self.requests.remove(&(id, request.0)) else {
            return self.fail(format!("request {} ended twice, or never was", request.0));
        };
        self.note(|| match &result {
            Ok(data) => format!("engine {}: request {} done, {data:?}", id.0, request.0),
            Err(error) => format!("engine {}: request {} failed: {error}", id.0, request.0),
        });
        let checked = match (pending, &result) {
            (Pending::Read { first, submitted }, Ok(data)) => {
                self.oracle.end_read(id, submitted, first, data)
            }
            (Pending::Write(write), result) => self.oracle.end_write(write, result.is_ok()),
            (Pending::Flush(submitted), Ok(_)) => {
                self.oracle.end_flush(submitted);
                Ok(())
            }
            (Pending::Read { .. } | Pending::Flush(_), Err(_)) | (Pending::Stale, _) => Ok(()),
        };
        if let Err(Wrong(text)) = checked {
            return self.fail(text);
        }
        let Err(error) = result else { return self.count(Case::Request) };
        self.count(Case::RequestFailed);
        let came_late =
            self.told_to_close.is_some_and(|(stopped, first)| stopped == id && request.0 >= first);
        let is_refused = error.kind() == ErrorKind::Aborted && came_late;
        // What was being written at a crash is not to be had without a member before parity matches again.
        let was_unsynced = self.is_unsynced || request.0 < self.unsynced_upto;
        let may_be_torn = was_unsynced || self.oracle.has_torn();
        let is_torn = error.kind() == ErrorKind::Redundancy && may_be_torn;
        let is_superseded = self.serving != Some(id);
        if !is_refused && !is_torn && !is_superseded && !self.is_excused_for(id, &error.to_string())
        {
            self.fail(format!("request {} failed: {error}", request.0));
        }
    }

    pub(super) fn end_thinking(&mut self) {
        self.is_thinking = false;
        self.left_in_burst = 1 + self.dice.below(self.plan.burst);
    }

    pub(super) fn in_flight(&self, id: EngineId) -> u64 {
        self.requests.range((id, 0)..=(id, u64::MAX)).count() as u64
    }

    /// Keeps as many requests in flight as the plan wants.
    pub(super) fn look_after_users(&mut self) {
        let Some(id) = self.serving.filter(|id| self.stands_still(*id).is_none()) else { return };
        let Some(at) = self.position(id) else { return };
        while let Some(serving) = self.engines[at].serving() {
            let late = self.told_to_close.filter(|(stopped, _)| *stopped == id);
            let is_over = late.is_some_and(|(_, first)| self.next_request >= first + LATE_REQUESTS);
            if serving.volume.machine().failure().is_some() || is_over {
                return;
            }
            if let Some(next) = self.sweep {
                if self.in_flight(id) >= SWEEP_DEPTH {
                    return;
                }
                self.read_next(at, next);
            } else if self.phase != Phase::Lives || self.is_thinking {
                return;
            } else if self.left_in_burst == 0 {
                self.is_thinking = true;
                let wait = self.dice.time_to_next(self.plan.pause);
                self.net.put_in(wait.min(Duration::from_secs(20)), Happening::Think);
                return;
            } else if self.in_flight(id) >= self.plan.depth {
                return;
            } else {
                self.left_in_burst -= 1;
                let wanted = self.workload.draw();
                self.submit(at, wanted);
                self.hasten_fault();
            }
            if self.violation.is_some() || self.serving != Some(id) {
                return;
            }
        }
    }

    /// Users of an engine that was pushed aside go on reading there, or leave it alone.
    pub(super) fn plan_stale_reads(&mut self) {
        let old = self.engines.iter().find(|engine| self.superseded.contains(&engine.id));
        let Some(id) = old.map(|engine| engine.id) else { return };
        if self.dice.one_in(2) {
            for _ in 0..STALE_READS {
                let wait = Duration::from_millis(self.dice.below(2000));
                self.net.put_in(wait, Happening::ReadStale(id));
            }
        }
    }

    pub(super) fn read_stale(&mut self, engine: EngineId) {
        let Some(at) = self.position(engine) else { return };
        let is_open = self.engines[at]
            .serving()
            .is_some_and(|serving| serving.volume.machine().failure().is_none());
        let is_closing = self.told_to_close.is_some_and(|(stopped, _)| stopped == engine);
        if !is_open || is_closing {
            return;
        }
        self.count(Case::StaleRead);
        let block_len = u64::from(self.plan.geometry.block_len());
        let blocks = self.oracle.len() * SECTOR_LEN as u64 / block_len;
        let (id, first) = (self.next_request, self.dice.below(blocks));
        self.next_request += 1;
        self.net.trace().mix(&[7, id, first]);
        self.requests.insert((engine, id), Pending::Stale);
        let (offset, len) = (first * block_len, block_len);
        let user = UserRequest { op: Op::Read, offset, len, fua: false, data: SgList::new() };
        self.with(at, |engine, context| engine.handle_request(context, RequestId(id), user));
    }

    fn read_next(&mut self, at: usize, next: u64) {
        let stripe = self.plan.geometry.stripe_data_len() / SECTOR_LEN as u64;
        let end = (next + stripe).min(self.oracle.len());
        self.sweep = (end < self.oracle.len()).then_some(end);
        self.submit(at, Wanted { op: Op::Read, sectors: next..end, fua: false });
    }

    fn submit(&mut self, at: usize, wanted: Wanted) {
        let Wanted { op, sectors, fua } = wanted;
        let engine = self.engines[at].id;
        let id = self.next_request;
        self.next_request += 1;
        let count = sectors.end - sectors.start;
        let mut data = SgList::new();
        let pending = match op {
            Op::Read => {
                if self.is_degraded() {
                    self.count(Case::DegradedRead);
                }
                Pending::Read { first: sectors.start, submitted: self.oracle.begin_read() }
            }
            Op::Flush | Op::Extents => Pending::Flush(self.oracle.begin_flush()),
            Op::Write => {
                let write = self.oracle.begin_write(engine, Change::Data, sectors.clone(), fua);
                let bytes = content::make(write, sectors.start, count);
                data = content::scatter(&bytes, &self.workload.cuts(bytes.len()));
                Pending::Write(write)
            }
            Op::WriteZeroes | Op::Discard => {
                let change = if op == Op::Discard { Change::Discard } else { Change::Zeroes };
                Pending::Write(self.oracle.begin_write(engine, change, sectors.clone(), fua))
            }
        };
        self.note(|| {
            let what = match &pending {
                Pending::Write(id) => format!(" w{}", id.0),
                Pending::Read { .. } | Pending::Flush(_) | Pending::Stale => String::new(),
            };
            let fua = if fua { " with FUA" } else { "" };
            format!("request {id}: {op:?}{fua}{what} of sectors {sectors:?}")
        });
        self.net.trace().mix(&[6, id, sectors.start, count]);
        self.requests.insert((engine, id), pending);
        let offset = sectors.start * SECTOR_LEN as u64;
        let user = UserRequest { op, offset, len: count * SECTOR_LEN as u64, fua, data };
        self.with(at, |engine, context| engine.handle_request(context, RequestId(id), user));
    }
}
