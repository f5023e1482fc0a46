//! Users: what they ask for, what they are told, and when they leave the array alone.

use core::{ops::Range, time::Duration};

use netraid_block::{ErrorKind, Op, SgList};
use netraid_raid::logged::{RequestId, UserRequest};

use super::{Happening, LIFE_REQUESTS_MAX, Pending, Phase, World};
use crate::array::{
    content::{self, SECTOR_LEN},
    machine::Machine,
    oracle::{Change, EngineId, Wrong},
    plan::Mode,
    workload::Wanted,
};

impl<M: Machine> World<M> {
    pub(super) fn complete(
        &mut self,
        id: EngineId,
        request: RequestId,
        result: Result<SgList, netraid_block::IoError>,
    ) {
        let Some(pending) = self.requests.remove(&(id, request.0)) else {
            return self.fail(format!("request {} ended twice, or never was", request.0));
        };
        if let Pending::Read { is_sweep: true, .. } = pending
            && self.serving == Some(id)
        {
            self.sweeps_in_flight = self.sweeps_in_flight.saturating_sub(1);
        }
        self.note(|| match &result {
            Ok(data) => format!("engine {}: request {} done, {data:?}", id.0, request.0),
            Err(error) => format!("engine {}: request {} failed: {error}", id.0, request.0),
        });
        // What was refused while there was no space may be told later, with the rest of its write.
        let (needs_space, was_short) = match pending {
            Pending::Write { needs_space, was_short, .. } => (Some(needs_space), was_short),
            Pending::Atomic { was_short, .. } => (Some(true), was_short),
            Pending::Read { .. } | Pending::Flush(_) => (None, false),
        };
        let was_torn = self.oracle.has_torn();
        let checked = match (&pending, &result) {
            (Pending::Read { first, submitted, .. }, Ok(data)) => {
                self.oracle.end_read(id, *submitted, *first, data)
            }
            (Pending::Write { id, .. }, result) => self.oracle.end_write(*id, result.is_ok()),
            (Pending::Atomic { ids, .. }, result) => {
                self.counts.atomic_writes += u64::from(result.is_ok());
                ids.iter().try_for_each(|id| self.oracle.end_write(*id, result.is_ok()))
            }
            (Pending::Flush(submitted), Ok(_)) => {
                self.oracle.end_flush(*submitted);
                self.check_told(id)
            }
            (Pending::Flush(_), Err(error)) => {
                self.is_told_of_losses |= self.is_told_as_lost(id, error);
                Ok(())
            }
            (Pending::Read { .. }, Err(_)) => Ok(()),
        };
        if let Err(Wrong(text)) = checked {
            return self.fail(text);
        }
        if was_torn && !self.oracle.has_torn() {
            self.unsynced_upto = self.next_request;
        }
        match result {
            Ok(_) => self.counts.requests += 1,
            Err(error) => {
                self.counts.errors += 1;
                self.has_lost_rows |= self.plan.mode == Mode::Beyond && self.phase != Phase::Lives;
                let is_superseded = self.serving != Some(id);
                let is_full = needs_space.is_some()
                    && error.kind() == ErrorKind::NoSpace
                    && (was_short || self.is_short_of_space());
                self.counts.refused += u64::from(is_full);
                // The log of such a small array may hold no more of them.
                let is_discard = is_full && needs_space == Some(false);
                self.counts.refused_discards += u64::from(is_discard);
                let is_refused =
                    error.kind() == ErrorKind::Aborted && self.came_late(id, request.0);
                let is_torn =
                    error.kind() == ErrorKind::Redundancy && self.may_lack_parity(id, request);
                self.excuse_want_of_space(id, &error.to_string());
                let is_lost = self.is_told_as_lost(id, &error);
                let is_expected = is_superseded || is_full || is_refused || is_torn || is_lost;
                if !self.is_excused(id) && !is_expected {
                    self.fail(format!("request {} failed: {error}", request.0));
                }
            }
        }
    }

    /// Keeps as many requests in flight as the plan wants, and moves on when there is nothing more to do.
    pub(super) fn look_after_users(&mut self) {
        let Some(id) = self.serving else { return };
        let Some(at) = self.engines.iter().position(|engine| engine.id == id) else { return };
        let outstanding = self.engines[at].outstanding();
        let in_flight = self.in_flight(id);
        let is_paused = self.engines[at].is_paused();
        if in_flight > 0 && outstanding == 0 && !is_paused {
            let machine = self.engines[at].machine().map(Machine::describe).unwrap_or_default();
            self.note(|| format!("it is {machine}"));
            return self.fail(format!("the machine waits for nothing; {in_flight} requests do"));
        }
        if self.users_have_left(id) || self.is_to_restart {
            return;
        }
        self.is_resting &= self.now() < self.rests_until;
        let mut submitted = 0;
        while self.in_flight(id) < self.depth && !self.users_have_left(id) {
            if self.is_thinking || submitted == 64 {
                // Requests that end at once take some time too.
                if !core::mem::replace(&mut self.is_thinking, true) {
                    self.agenda.put_in(Duration::from_micros(100), Happening::Think);
                }
                return;
            }
            submitted += 1;
            if self.life_requests > LIFE_REQUESTS_MAX {
                return self.kill(id, "its users only ask for what is done at once");
            }
            if let Some(next) = self.sweep {
                self.read_next(at, next);
            } else if (self.sweeps_alone && self.sweeps_in_flight > 0)
                || self.is_resting
                || self.phase != Phase::Lives
            {
                break;
            } else {
                match self.workload.draw_atomic(self.engines[at].atomic_blocks_max()) {
                    Some((ranges, fua)) => self.submit_atomic(at, ranges, fua),
                    None => {
                        let wanted = self.workload.draw();
                        self.submit(at, wanted, false);
                    }
                }
            }
            if self.violation.is_some() || self.serving != Some(id) {
                return;
            }
        }
        if self.in_flight(id) > 0 || self.sweep.is_some() || self.heals(id) {
            return;
        }
        if self.phase == Phase::Ending {
            self.try_to_close(at);
        } else if self.is_resting && self.try_to_rest(at) {
            self.is_resting = false;
            self.look_after_users();
        }
    }

    /// Everything was read: is all home, and as it should be? False while something is under way.
    fn try_to_rest(&mut self, at: usize) -> bool {
        if self.engines[at].is_paused() {
            return false;
        }
        let looks = self.engines[at].looks();
        let left_alone_at = *self.left_alone_at.get_or_insert(looks);
        // The first look knows of requests before, the second one brings home, and a third finds it so.
        let is_settled = looks >= left_alone_at + 3;
        if !is_settled || self.engines[at].outstanding() > 0 || !self.notices.is_empty() {
            return false;
        }
        let id = self.engines[at].id;
        let is_calm = self.harms.is_empty() && self.hosts.iter().all(|host| host.trouble.is_none());
        // Of a member that is another disk since it was last asked the engine cannot know yet.
        let knows_all = !self.is_exchanged_unnoticed(&self.engines[at]);
        let failures = |member: usize| self.hosts[member].target.power_failures();
        let has_seen_all = (0..self.hosts.len()).all(|member| {
            let engine = &self.engines[at];
            !engine.has(member) || engine.has_seen_losses(member, failures(member))
        });
        let has_all = is_calm && knows_all && has_seen_all && !self.is_short_of_space();
        if !self.is_excused(id) && has_all && self.sessions_are_ready(at) {
            self.look_at_media(false);
        }
        true
    }

    fn try_to_close(&mut self, at: usize) {
        if self.engines[at].is_paused() {
            return;
        }
        // What belongs to rows that are lost is tried again and again.
        if self.engines[at].outstanding() > 0 && !self.has_lost_rows {
            return;
        }
        if (0..self.hosts.len()).all(|member| self.engines[at].is_in_sync(member)) {
            self.phase = Phase::Closing;
            self.note_losses();
            self.note(|| "the array is to close".into());
            self.with(at, |engine, context| engine.handle_close(context));
        }
    }

    fn read_next(&mut self, at: usize, next: u64) {
        let stripe = self.plan.geometry.stripe_data_len() / SECTOR_LEN as u64;
        let end = (next + stripe).min(self.oracle.len());
        self.sweep = (end < self.oracle.len()).then_some(end);
        self.sweeps_in_flight += 1;
        self.submit(at, Wanted { op: Op::Read, sectors: next..end, fua: false }, true);
    }

    fn submit(&mut self, at: usize, wanted: Wanted, is_sweep: bool) {
        let Wanted { op, sectors, fua } = wanted;
        let engine = self.engines[at].id;
        let id = self.next_request;
        self.next_request += 1;
        self.life_requests += 1;
        let count = sectors.end - sectors.start;
        let mut data = SgList::new();
        let was_short = self.is_short_of_space();
        let pending = match op {
            Op::Read => Pending::Read {
                first: sectors.start,
                submitted: self.oracle.begin_read(),
                is_sweep,
            },
            Op::Flush | Op::Extents => Pending::Flush(self.oracle.begin_flush()),
            Op::Write => {
                let write = self.oracle.begin_write(engine, Change::Data, sectors.clone(), fua);
                let bytes = content::make(write, sectors.start, count);
                data = content::scatter(&bytes, &self.workload.cuts(bytes.len()));
                Pending::Write { id: write, needs_space: true, was_short }
            }
            Op::WriteZeroes | Op::Discard => {
                let change = if op == Op::Discard { Change::Discard } else { Change::Zeroes };
                let write = self.oracle.begin_write(engine, change, sectors.clone(), fua);
                let needs_space = op == Op::WriteZeroes;
                Pending::Write { id: write, needs_space, was_short }
            }
        };
        self.note(|| {
            let what = match &pending {
                Pending::Write { id, .. } => format!(" w{}", id.0),
                Pending::Read { .. } | Pending::Flush(_) | Pending::Atomic { .. } => String::new(),
            };
            let fua = if fua { " with FUA" } else { "" };
            format!("request {id}: {op:?}{fua}{what} of sectors {sectors:?}")
        });
        self.trace.mix(&[6, id, sectors.start, count]);
        self.requests.insert((engine, id), pending);
        let offset = sectors.start * SECTOR_LEN as u64;
        let user = UserRequest { op, offset, len: count * SECTOR_LEN as u64, fua, data };
        self.with(at, |engine, context| engine.handle_request(context, RequestId(id), user));
        self.hear_all();
    }

    fn submit_atomic(&mut self, at: usize, ranges: Vec<Range<u64>>, fua: bool) {
        let engine = self.engines[at].id;
        let id = self.next_request;
        self.next_request += 1;
        self.life_requests += 1;
        let was_short = self.is_short_of_space();
        let ids = self.oracle.begin_atomic_write(engine, &ranges, fua);
        let data = ids.iter().zip(&ranges).map(|(write, sectors)| {
            let bytes = content::make(*write, sectors.start, sectors.end - sectors.start);
            (sectors.start * SECTOR_LEN as u64, content::scatter(&bytes, &[]))
        });
        let data = data.collect();
        self.note(|| format!("request {id}: {ids:?} at once, of sectors {ranges:?}"));
        ranges.iter().for_each(|range| self.trace.mix(&[8, id, range.start, range.end]));
        self.requests.insert((engine, id), Pending::Atomic { ids, was_short });
        let mut refused = None;
        self.with(at, |engine, context| {
            refused = engine.handle_atomic_write(context, RequestId(id), data, fua).err();
        });
        if let Some(error) = refused {
            return self.fail(format!("request {id} is refused: {error}"));
        }
        self.hear_all();
    }
}
