//! The client: requests begin, check data is computed, messages leave, requests end.

use netraid_sim::Time;

use super::{Event, Part, Phase, Request, To, What, World, host::Counts};
use crate::{
    config::{Offsets, Operation},
    layout::{Access, read_plan, write_plan},
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
        while self.requests.len() < self.model.config.workload.outstanding as usize {
            let Some(arrived) = self.waiting.pop_front() else { return };
            self.begin(arrived);
        }
    }

    pub(super) fn begin(&mut self, arrived: Time) {
        let now = self.agenda.now();
        let mut request = self.draw_request();
        request.arrived = arrived;
        let is_read = request.is_read;
        let request = self.requests.insert(request);
        let work = Counts { requests: 1.0, ..Counts::default() };
        let done = self.client.work(now, &self.model.client, is_read, work);
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
        let max = model.config.disk.access_bytes_max.unwrap_or(model.geometry.chunk_len());
        let (reads, plan) = if is_read {
            (read_plan(&model.geometry, &range, max), Default::default())
        } else {
            let plan = write_plan(&model.geometry, &range, max);
            (plan.reads.clone(), plan)
        };
        Request {
            is_read,
            arrived: Time::START,
            phase: Phase::Reading,
            accesses: reads,
            writes: plan.writes,
            parity_bytes: plan.parity_bytes,
            check_bytes: plan.check_bytes,
            parts: Vec::new(),
            replies_left: 0,
        }
    }

    pub(super) fn handle_begun(&mut self, request: usize) {
        if self.model.config.parity_engine.is_some() && !self.requests[request].is_read {
            return self.send_whole(request);
        }
        if self.requests[request].accesses.is_empty() {
            return self.compute(request);
        }
        self.set_parts(request, 0);
        self.send_commands(request);
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
        state.replies_left = self.model.replies(state.phase, &state.accesses, state.parts.len());
    }

    fn send_commands(&mut self, request: usize) {
        let network = &self.model.config.network;
        let len = u64::from(network.control_bytes);
        if network.multicast {
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
            Phase::Reading if !state.is_read => self.compute(request),
            Phase::Reading | Phase::Writing => self.end(request),
        }
    }

    fn compute(&mut self, request: usize) {
        let now = self.agenda.now();
        let parity_bytes = self.requests[request].parity_bytes as f64;
        let work = Counts { parity_bytes, ..Counts::default() };
        let done = self.client.work(now, &self.model.client, false, work);
        self.agenda.put_at(done, Event::Computed { request });
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

    fn end(&mut self, request: usize) {
        let now = self.agenda.now();
        let state = self.requests.remove(request);
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
