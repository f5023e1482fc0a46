//! The agents: commands and data come in, accesses go along their paths, replies leave.

use core::time::Duration;

use netraid_block::narrow;

use super::{Event, Message, Model, Phase, To, What, World, host::Counts};
use crate::{config::Reply, layout::Access};

impl Model {
    /// How many messages answer a phase.
    pub(super) fn replies(&self, phase: Phase, accesses: &[Access], agents: usize) -> u32 {
        let count = match (phase, self.config.agent.reply) {
            (Phase::Reading, Reply::EachAccess) => accesses.len(),
            (Phase::Reading, Reply::Whole) | (Phase::Writing, _) => agents,
        };
        narrow(count)
    }
}

impl World<'_> {
    pub(super) fn handle_received(&mut self, message: usize) {
        let Message { request, to, what, .. } = self.messages.remove(message);
        match (what, to) {
            (What::Reply, _) => self.handle_reply(request),
            (What::Data { access }, _) => self.put_access(request, access),
            (What::WholeData, _) => self.handle_whole_data(request),
            (What::Command, To::Agent(agent)) => self.handle_command(request, agent),
            (What::Command, To::Agents | To::Client(_)) => {
                unreachable!("a command to all is dealt with by each")
            }
        }
    }

    /// An agent knows of a request. Reads begin; writes wait for their data.
    pub(super) fn handle_command(&mut self, request: usize, agent: usize) {
        let is_read = self.requests[request].is_read;
        self.agent_works(agent, is_read, Counts { requests: 1.0, ..Counts::default() });
        let state = &self.requests[request];
        if state.phase == Phase::Writing {
            return self.count_down(request, agent);
        }
        for access in 0..self.requests[request].accesses.len() {
            if self.model.agent_of(self.requests[request].accesses[access].disk) == agent {
                self.put_access(request, access);
            }
        }
    }

    /// All of a write is in the memory of the agent with the parity engine.
    fn handle_whole_data(&mut self, request: usize) {
        self.agent_works(0, false, Counts { requests: 1.0, ..Counts::default() });
        if self.requests[request].accesses.is_empty() {
            return self.run_engine(request);
        }
        self.set_parts(request, 0);
        self.requests[request].replies_left = 1;
        (0..self.requests[request].accesses.len()).for_each(|a| self.put_access(request, a));
    }

    fn run_engine(&mut self, request: usize) {
        let state = &self.requests[request];
        let bytes = state.parity_bytes + state.check_bytes;
        let work = match &self.model.config.parity_engine {
            Some(engine) if bytes > 0 => {
                let seconds = engine.overhead_us / 1e6 + bytes as f64 / (engine.mb_s * 1e6);
                Duration::from_secs_f64(seconds)
            }
            Some(_) | None => Duration::ZERO,
        };
        let done = self.engine.serve(self.agenda.now(), work);
        self.agenda.put_at(done, Event::EngineDone { request });
    }

    pub(super) fn handle_engine_done(&mut self, request: usize) {
        let state = &mut self.requests[request];
        state.phase = Phase::Writing;
        state.accesses = core::mem::take(&mut state.writes);
        self.set_parts(request, 0);
        (0..self.requests[request].accesses.len()).for_each(|a| self.put_access(request, a));
    }

    fn put_access(&mut self, request: usize, access: usize) {
        let now = self.agenda.now();
        self.agenda.put_at(now, Event::OnPath { request, access, step: 0 });
    }

    /// The way of a read is the disk and what stands between it and memory, that of a write the
    /// other way round.
    pub(super) fn handle_on_path(&mut self, request: usize, access: usize, step: usize) {
        let now = self.agenda.now();
        let last = self.layers.len();
        if step > last {
            return self.handle_access_done(request, access);
        }
        let state = &self.requests[request];
        let (is_read, at) = (state.phase == Phase::Reading, state.accesses[access]);
        let from_disk = if is_read { step } else { last - step };
        let done = match from_disk.checked_sub(1) {
            None if is_read && self.is_cached() => {
                return self.handle_access_done(request, access);
            }
            None => self.disks[at.disk].access(now, &self.model.config.disk, &at, is_read),
            Some(layer) => self.pass_station(layer, &at, is_read),
        };
        self.agenda.put_at(done, Event::OnPath { request, access, step: step + 1 });
    }

    fn pass_station(&mut self, layer: usize, access: &Access, is_read: bool) -> netraid_sim::Time {
        let config = &self.model.config;
        let shared = &config.stations[layer];
        let (agent, disk) = (access.disk / config.agent.disks, access.disk % config.agent.disks);
        let each = config.agent.disks.div_ceil(shared.disks);
        let mb_s = if is_read { shared.read_mb_s } else { shared.write_mb_s };
        let seconds = shared.overhead_us / 1e6 + f64::from(access.len) / (mb_s * 1e6);
        let station = &mut self.layers[layer][agent * each + disk / shared.disks];
        station.serve(self.agenda.now(), Duration::from_secs_f64(seconds))
    }

    /// Whether an agent's memory has what is read.
    fn is_cached(&mut self) -> bool {
        let config = &self.model.config;
        if config.agent.cache_bytes == 0 {
            return false;
        }
        // With check data, as far as there is any.
        let columns = f64::from(self.model.geometry.data_columns());
        let data = config.workload.data_set_bytes as f64 * config.disks as f64 / columns;
        let share = data / config.agents() as f64;
        self.caches.chance((config.agent.cache_bytes as f64 / share).min(1.0))
    }

    fn handle_access_done(&mut self, request: usize, access: usize) {
        let state = &self.requests[request];
        let Access { disk, len, .. } = state.accesses[access];
        let agent = self.model.agent_of(disk);
        let config = &self.model.config;
        let stays = config.parity_engine.is_some() && !state.is_read;
        let goes_alone = config.agent.reply == Reply::EachAccess && !stays;
        if state.phase == Phase::Reading && goes_alone {
            return self.send(request, To::Client(agent), What::Reply, u64::from(len));
        }
        self.count_down(request, agent);
    }

    /// One thing less to wait for at an agent; it answers after the last.
    fn count_down(&mut self, request: usize, agent: usize) {
        let state = &mut self.requests[request];
        let Some(part) = state.parts.iter_mut().find(|part| part.agent == agent) else {
            unreachable!("an access at an agent that has no part in its request")
        };
        part.left -= 1;
        if part.left > 0 {
            return;
        }
        let (bytes, config) = (part.bytes, &self.model.config);
        let stays = config.parity_engine.is_some() && !state.is_read;
        match state.phase {
            Phase::Reading if stays => self.run_engine(request),
            Phase::Reading => self.send(request, To::Client(agent), What::Reply, bytes),
            Phase::Writing => {
                let len = u64::from(config.network.control_bytes);
                self.send(request, To::Client(agent), What::Reply, len);
            }
        }
    }
}
