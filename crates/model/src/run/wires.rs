//! The network as stations: one that all share, or two for each host.

use core::time::Duration;

use netraid_block::narrow;
use netraid_sim::{Time, station::Station};

use super::{Event, Message, Phase, To, What, World, host::Counts};

#[derive(Debug)]
pub(super) enum Wires {
    /// All hosts share it.
    Shared(Station),
    /// Each host has a link to a switch.
    Switched(Links),
}

#[derive(Debug)]
pub(super) struct Links {
    pub(super) client_sends: Station,
    pub(super) client_receives: Station,
    agent_sends: Vec<Station>,
    agent_receives: Vec<Station>,
}

impl Wires {
    pub(super) fn shared() -> Self {
        Self::Shared(Station::new(1))
    }

    pub(super) fn switched(agents: usize) -> Self {
        Self::Switched(Links {
            client_sends: Station::new(1),
            client_receives: Station::new(1),
            agent_sends: vec![Station::new(1); agents],
            agent_receives: vec![Station::new(1); agents],
        })
    }
}

impl World<'_> {
    /// How long a packet takes a wire; of a switched network, that of an agent.
    fn packet_time(&self, len: u32) -> Duration {
        self.time_at(len, self.model.config.network.rate_mbit_s)
    }

    /// How long it takes the client's link.
    fn client_time(&self, len: u32) -> Duration {
        let network = &self.model.config.network;
        self.time_at(len, network.client_rate_mbit_s.unwrap_or(network.rate_mbit_s))
    }

    fn time_at(&self, len: u32, rate_mbit_s: f64) -> Duration {
        let network = &self.model.config.network;
        let pieces = network.segment_bytes.map_or(1, |segment| len.div_ceil(segment).max(1));
        let bytes = f64::from(len) + f64::from(pieces) * f64::from(network.header_bytes_per_packet);
        let seconds = bytes * 8.0 / (rate_mbit_s * 1e6);
        Duration::from_secs_f64(seconds + network.overhead_us_per_packet / 1e6)
    }

    fn latency(&self) -> Duration {
        Duration::from_secs_f64(self.model.config.network.latency_us / 1e6)
    }

    /// Whether a message has no data.
    fn is_control(&self, message: usize) -> bool {
        let Message { request, what, .. } = self.messages[message];
        match what {
            What::Command => true,
            What::Reply => self.requests[request].phase == Phase::Writing,
            What::Data { .. } | What::WholeData => false,
        }
    }

    /// A packet leaves when the agent that sends it has done what it had to do until now.
    pub(super) fn handle_ready(&mut self, agent: usize, message: usize, len: u32) {
        let due = self.agents[agent].busy_until.max(self.agenda.now());
        self.agenda.put_at(due, Event::OnWire { message, len });
    }

    pub(super) fn handle_on_wire(&mut self, message: usize, len: u32) {
        let (now, work, latency) = (self.agenda.now(), self.packet_time(len), self.latency());
        let client_work = self.client_time(len);
        if let Some(wait) = self.model.config.network.control_latency_us
            && self.is_control(message)
        {
            let wait = Duration::from_secs_f64(wait / 1e6);
            self.agenda.put_in(wait, Event::Delivered { message, len });
            return;
        }
        match &mut self.wires {
            Wires::Shared(wire) => {
                let done = wire.serve(now, work).after(latency);
                self.agenda.put_at(done, Event::Delivered { message, len });
            }
            Wires::Switched(links) => {
                let (sender, work) = match self.messages[message].to {
                    To::Client(agent) => (&mut links.agent_sends[agent], work),
                    To::Agent(_) | To::Agents => (&mut links.client_sends, client_work),
                };
                let done = sender.serve(now, work).after(latency);
                self.agenda.put_at(done, Event::AtPort { message, len });
            }
        }
    }

    /// A switch sends a packet on; one for all agents goes to each link at the same time.
    pub(super) fn handle_at_port(&mut self, message: usize, len: u32) {
        let (now, work) = (self.agenda.now(), self.packet_time(len));
        let client_work = self.client_time(len);
        let Wires::Switched(links) = &mut self.wires else {
            unreachable!("a port of a network that has none")
        };
        let Message { request, to, .. } = self.messages[message];
        let done = match to {
            To::Client(_) => links.client_receives.serve(now, client_work),
            To::Agent(agent) => links.agent_receives[agent].serve(now, work),
            To::Agents => {
                let parts = &self.requests[request].parts;
                let serve = |part: &super::Part| links.agent_receives[part.agent].serve(now, work);
                // Only small packets are for all: that some links have them earlier does not count.
                parts.iter().map(serve).max().unwrap_or(now)
            }
        };
        self.agenda.put_at(done, Event::Delivered { message, len });
    }

    pub(super) fn handle_delivered(&mut self, message: usize, len: u32) {
        let Message { request, to, .. } = self.messages[message];
        let is_read = self.requests[request].is_read;
        let work = super::host::packet(len);
        let done = match to {
            To::Client(agent) => self.client_works(is_read, Some(agent), work),
            To::Agent(agent) => self.agent_works(agent, is_read, work),
            To::Agents => {
                self.messages.remove(message);
                for at in 0..self.requests[request].parts.len() {
                    let agent = self.requests[request].parts[at].agent;
                    let done = self.agent_works(agent, is_read, work);
                    self.agenda.put_at(done, Event::Commanded { request, agent });
                }
                return;
            }
        };
        let message_state = &mut self.messages[message];
        message_state.done = message_state.done.max(done);
        message_state.packets_left -= 1;
        if message_state.packets_left == 0 {
            self.agenda.put_at(message_state.done, Event::Received { message });
        }
    }

    /// The client spends what something costs, for an agent or by itself: when that is done.
    pub(super) fn client_works(
        &mut self,
        is_read: bool,
        agent: Option<usize>,
        what: Counts,
    ) -> Time {
        let now = self.agenda.now();
        let spend = &self.model.client;
        self.client.work(self.machine.as_mut(), now, spend, is_read, agent, what)
    }

    /// An agent spends what something of the client's costs.
    pub(super) fn agent_works(&mut self, agent: usize, is_read: bool, what: Counts) -> Time {
        let now = self.agenda.now();
        let spend = &self.model.agent;
        self.agents[agent].work(self.machine.as_mut(), now, spend, is_read, Some(0), what)
    }

    /// Has the sender work on a message, packet by packet.
    pub(super) fn send(&mut self, request: usize, to: To, what: What, len: u64) {
        let is_read = self.requests[request].is_read;
        let most = u64::from(self.model.config.network.packet_bytes);
        let packets_left: u32 = narrow(len.div_ceil(most).max(1));
        let message =
            self.messages.insert(Message { request, to, what, packets_left, done: Time::START });
        let mut left = len;
        for _ in 0..packets_left {
            let len: u32 = narrow(left.min(most));
            left -= u64::from(len);
            let work = super::host::packet(len);
            let done = match to {
                To::Client(agent) => self.agent_works(agent, is_read, work),
                To::Agent(agent) => self.client_works(is_read, Some(agent), work),
                To::Agents => self.client_works(is_read, None, work),
            };
            let is_together = len <= self.model.config.network.sent_together_bytes;
            let event = match to {
                To::Client(agent) if is_together => Event::Ready { agent, message, len },
                To::Client(_) | To::Agent(_) | To::Agents => Event::OnWire { message, len },
            };
            self.agenda.put_at(done, event);
        }
    }
}
