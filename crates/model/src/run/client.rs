//! The client: requests begin, check data is computed, messages leave, requests end.

use core::ops::Range;

use netraid_block::narrow;
use netraid_sim::Time;

use super::{Event, Part, Phase, Request, To, What, World, host::Counts, log_requests::Kind};
use crate::{
    config::{Offsets, Operation},
    layout::{Access, Plan},
};

impl World<'_> {
    pub(super) fn put_arrival(&mut self) {
        if let Some(rate) = self.model.config.workload.arrivals_per_second {
            let mean = core::time::Duration::from_secs_f64(rate.recip());
            let wait = self.arrivals.time_to_next(mean);
            self.agenda.put_in(wait, Event::Arrival);
        }
    }

    pub(super) fn handle_arrival(&mut self) {
        self.waiting.push_back(self.agenda.now());
        self.begin_waiting();
        self.put_arrival();
    }

    /// Begins requests that wait, as many as may be at once.
    fn begin_waiting(&mut self) {
        while self.users < u64::from(self.model.config.workload.outstanding) {
            let Some(arrived) = self.waiting.pop_front() else { return };
            self.begin(arrived);
        }
    }

    pub(super) fn begin(&mut self, arrived: Time) {
        let mut request = self.draw_request();
        request.arrived = arrived;
        let is_read = request.is_read;
        self.users += 1;
        let request = self.requests.insert(request);
        let work = Counts { requests: 1.0, ..Counts::default() };
        let done = self.client_works(is_read, None, work);
        self.agenda.put_at(done, Event::Begun { request });
    }

    /// The next request: what it is, and where.
    fn draw_request(&mut self) -> Request {
        let Self { model, .. } = *self;
        let workload = &model.config.workload;
        let is_read = match model.operation {
            Operation::Read => true,
            Operation::Write => false,
            Operation::Mix => self.choices.chance(workload.reads_in_mix),
        };
        let len = model.request_bytes;
        let capacity = model.geometry.capacity().min(workload.data_set_bytes).max(len);
        let places = capacity / len;
        let place = match workload.offsets {
            Offsets::Random => self.choices.below(places),
            Offsets::Sequential => self.next_offset % places,
        };
        self.next_offset = place + 1;
        let range = place * len..(place + 1) * len;
        let layout = model.layout(self.presence);
        let plan = match (is_read, &self.log) {
            (true, _) => layout.read(&range),
            (false, None) => layout.write(&range),
            // What it does depends on others that are under way when it begins.
            (false, Some(_)) => Plan::default(),
        };
        Request { range, ..Request::new(is_read, plan) }
    }

    pub(super) fn handle_begun(&mut self, request: usize) {
        if self.model.config.parity_engine.is_some() && !self.requests[request].is_read {
            return self.send_whole(request);
        }
        let state = &self.requests[request];
        if self.log.is_some() && state.kind == Kind::User && !state.is_read {
            return self.begin_logged_write(request);
        }
        self.join_reads(request);
        self.begin_reads(request);
    }

    /// Reads what a request needs, or goes on if that is nothing.
    pub(super) fn begin_reads(&mut self, request: usize) {
        let state = &self.requests[request];
        if state.accesses.is_empty() && state.leaders == 0 {
            return self.compute(request);
        }
        self.set_parts(request, 0);
        self.send_commands(request);
    }

    /// Leaves out reads that lie within those of another request that are under way: with disks
    /// away, what is computed for one is read for its neighbour too.
    fn join_reads(&mut self, request: usize) {
        let state = &mut self.requests[request];
        if self.presence.is_whole() || !state.is_read {
            return;
        }
        let accesses = core::mem::take(&mut state.accesses);
        let stripe = self.model.geometry.stripe_data_len();
        let stripes = |range: &Range<u64>| range.start / stripe..range.end.div_ceil(stripe);
        let own = stripes(&state.range);
        let is_near = |other: &Request| {
            let near = stripes(&other.range);
            near.start < own.end && own.start < near.end
        };
        let under_way = self
            .requests
            .iter()
            .filter(|(_, other)| other.is_read && other.replies_left > 0 && is_near(other));
        let others: Vec<(usize, &[Access])> =
            under_way.map(|(key, other)| (key, other.accesses.as_slice())).collect();
        let mut leaders: Vec<usize> = Vec::new();
        // Stripe by stripe; what is left of neighbours is one access again.
        let chunk = self.model.geometry.chunk_len();
        let mut left: Vec<Access> = Vec::new();
        for access in &accesses {
            let begin = left.len();
            for piece in access.pieces(chunk) {
                let brings =
                    |(_, list): &&(usize, &[Access])| list.iter().any(|o| o.contains(&piece));
                match others.iter().find(brings) {
                    Some((leader, _)) if !leaders.contains(leader) => leaders.push(*leader),
                    Some(_) => (),
                    None => match left[begin..].last_mut() {
                        Some(last) if last.ends_at(&piece) => last.len += piece.len,
                        Some(_) | None => left.push(piece),
                    },
                }
            }
        }
        let state = &mut self.requests[request];
        state.accesses = left;
        state.leaders = narrow(leaders.len());
        leaders.into_iter().for_each(|leader| self.requests[leader].followers.push(request));
    }

    /// Sends a write's data to the agent that has the parity engine.
    fn send_whole(&mut self, request: usize) {
        let len = self.model.request_bytes;
        self.requests[request].replies_left = 1;
        self.send(request, To::Agent(0), What::WholeData, len);
    }

    /// Says which agents have part of the phase's accesses. `words` more than those have to come
    /// to an agent before it answers.
    pub(super) fn set_parts(&mut self, request: usize, words: u32) {
        let state = &mut self.requests[request];
        state.parts.clear();
        for access in &state.accesses {
            let agent = self.model.agent_of(access.disk);
            let bytes = u64::from(access.len);
            match state.parts.iter_mut().find(|part| part.agent == agent) {
                Some(part) => {
                    part.left += 1;
                    part.bytes += bytes;
                }
                None => state.parts.push(Part { agent, left: 1 + words, bytes }),
            }
        }
        let replies = self.model.replies(state.phase, &state.accesses, state.parts.len());
        state.replies_left = match state.phase {
            Phase::Reading => replies + state.leaders,
            Phase::Writing => replies,
        };
    }

    pub(super) fn send_commands(&mut self, request: usize) {
        let network = &self.model.config.network;
        let len = u64::from(network.control_bytes);
        if network.multicast && !self.requests[request].parts.is_empty() {
            return self.send(request, To::Agents, What::Command, len);
        }
        for at in 0..self.requests[request].parts.len() {
            let agent = self.requests[request].parts[at].agent;
            self.send(request, To::Agent(agent), What::Command, len);
        }
    }

    /// All that a request waited for has come to the client.
    pub(super) fn handle_reply(&mut self, request: usize) {
        let state = &mut self.requests[request];
        state.replies_left -= 1;
        if state.replies_left > 0 {
            return;
        }
        match state.phase {
            Phase::Reading if !state.is_read || state.parity_bytes > 0 => self.compute(request),
            Phase::Reading => self.end(request),
            Phase::Writing => self.written(request),
        }
    }

    /// All that a request writes is on disk.
    fn written(&mut self, request: usize) {
        match self.requests[request].kind {
            Kind::Whole { user } => self.stripe_written(request, user),
            Kind::Home { is_whole } => self.home_written(request, is_whole),
            Kind::User | Kind::Rebuild | Kind::Batch { .. } | Kind::Flush { .. } | Kind::Tables => {
                self.end(request)
            }
        }
    }

    pub(super) fn compute(&mut self, request: usize) {
        let Request { is_read, parity_bytes, .. } = self.requests[request];
        let check_pieces = self.check_pieces(request) as f64;
        let work = Counts { parity_bytes: parity_bytes as f64, check_pieces, ..Counts::default() };
        let done = self.client_works(is_read, None, work);
        self.agenda.put_at(done, Event::Computed { request });
    }

    /// Stripes and rows whose check data, or what is computed from it, a request needs.
    fn check_pieces(&self, request: usize) -> u64 {
        let Request { kind, parity_bytes, check_pieces, rows, .. } = &self.requests[request];
        match kind {
            _ if *parity_bytes == 0 || self.model.is_copies => 0,
            Kind::Home { is_whole: false } => rows.len() as u64,
            Kind::User => *check_pieces,
            Kind::Whole { .. }
            | Kind::Rebuild
            | Kind::Home { is_whole: true }
            | Kind::Batch { .. }
            | Kind::Flush { .. }
            | Kind::Tables => 1,
        }
    }

    /// Check data is there, or what was on disks that are away.
    pub(super) fn handle_computed(&mut self, request: usize) {
        let state = &self.requests[request];
        match (state.kind, state.is_read) {
            (_, true) => self.end(request),
            (Kind::Home { is_whole }, false) => self.home_computed(request, is_whole),
            (
                Kind::User
                | Kind::Whole { .. }
                | Kind::Rebuild
                | Kind::Batch { .. }
                | Kind::Flush { .. }
                | Kind::Tables,
                false,
            ) => self.send_writes(request),
        }
    }

    /// Sends what is to be written to each agent.
    pub(super) fn send_writes(&mut self, request: usize) {
        let state = &mut self.requests[request];
        state.phase = Phase::Writing;
        state.accesses = core::mem::take(&mut state.writes);
        self.set_parts(request, 1);
        self.send_commands(request);
        for access in 0..self.requests[request].accesses.len() {
            let Access { disk, len, .. } = self.requests[request].accesses[access];
            let to = To::Agent(self.model.agent_of(disk));
            self.send(request, to, What::Data { access }, u64::from(len));
        }
    }

    pub(super) fn end(&mut self, request: usize) {
        let now = self.agenda.now();
        let state = self.requests.remove(request);
        for request in state.followers {
            self.agenda.put_at(now, Event::Joined { request });
        }
        match state.kind {
            Kind::User => self.users -= 1,
            // Its end is told by the log.
            Kind::Whole { .. } => return,
            Kind::Rebuild => return self.end_stripe(),
            Kind::Batch { position } => return self.batch_written(position),
            Kind::Home { .. } => return self.home_ended(state.stripes.start, &state.dirty),
            Kind::Flush { upto } => return self.flushed(upto),
            Kind::Tables => return self.next_step(),
        }
        if self.log.is_some() && !state.is_read {
            self.logged_write_ended(&state.range, &state.gathered);
        }
        self.meter.end(now.since(state.arrived), self.model.request_bytes);
        self.mark_if_due();
        match self.model.config.workload.arrivals_per_second {
            Some(_) => self.begin_waiting(),
            None => {
                let pause = self.model.config.workload.pause.draw(&mut self.arrivals);
                self.agenda.put_in(pause, Event::Next);
            }
        }
    }
}
