//! A run: requests played through the parts by events.
//!
//! A read: the client spends what a request costs, its request goes to each agent that has part of
//! the data (by one packet to all, or one to each), disks are accessed, data comes back packet by
//! packet, and the request ends when the client has dealt with the last one.
//!
//! A write: where old data is needed for check data, it is read first in the same way. Check data
//! of the whole request is computed, then the request and the data leave; an agent accesses its
//! disk when it has all that goes there, and acknowledges when all of its part is on disk. The
//! request ends with the last acknowledgement. With a parity engine, data leaves at once, the
//! request with its first packet, and old data and check data never cross the network.
//!
//! With disks away, what they had is computed by the client from what it reads of the others. Reads
//! that lie within one that is under way for another request are not made again: the request waits
//! until the other one has ended, as production's take each other's bytes.
//!
//! While a disk is rebuilt, each of its stripes is a request beside those of the workload; see
//! `rebuild.rs`.
//!
//! With a log, a write is less simple: whole stripes are written, what is left of it goes to the log and is brought
//! home by rounds; see `log.rs`.
//!
//! Processors, networks, disks and stations are queues, first come first served; a packet waits
//! for one after the other.

mod client;
mod disk;
mod host;
mod log;
mod log_requests;
mod measure;
mod rebuild;
mod server;
mod wires;

use core::ops::Range;
use std::collections::VecDeque;

use netraid_raid::{code::Code, geometry::Geometry, log::Position};
use netraid_sim::{Dice, Seed, Time, agenda::Agenda, station::Station};
use slab::Slab;

use crate::{
    config::{Config, ConfigError, Operation, SharedStation, Topology},
    layout::{Access, Layout, Plan},
    presence::Presence,
};
use disk::DiskArm;
use host::{HostState, Setting, Spend};
use log::LogState;
use log_requests::Kind;
pub use measure::Measures;
use measure::Meter;
use rebuild::RebuildState;
use wires::Wires;

/// Why a run gave no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RunError {
    /// Requests come faster than they are served.
    #[error(
        "{WAITING_MAX} requests wait to be begun: more arrive than the model serves; lower workload.arrivals_per_second"
    )]
    Overload,
    /// The workload leaves the rebuild too little.
    #[error(
        "{requests} requests of the workload ended, and {part:.0}% of the rebuild's stripes; raise rebuild.rate_limit_mb_s or rebuild.stripes_at_once, or lower rebuild.sample_stripes or workload.outstanding"
    )]
    RebuildStarved {
        /// Requests that ended since it began.
        requests: u32,
        /// How far it was, in percent.
        part: f64,
    },
}

/// Requests that may wait to be begun.
const WAITING_MAX: usize = 10_000;

/// A configuration that was checked, ready to run.
#[derive(Debug, Clone)]
pub struct Model {
    config: Config,
    operation: Operation,
    geometry: Geometry,
    /// Check data is copies, which nobody computes.
    is_copies: bool,
    request_bytes: u64,
    requests_beside_rebuild_max: f64,
    /// Of the client and of agents, for reads and for writes.
    client: [Spend; 2],
    agent: [Spend; 2],
}

impl Model {
    /// A model of `config`, for the operation that it names, or for reads.
    ///
    /// # Errors
    /// When the configuration makes no sense.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        let geometry = config.geometry()?;
        let request_bytes = config.request_bytes(&geometry);
        let setting = Setting {
            has_log: config.log.is_some() && geometry.tolerance() > 0,
            has_others: config.machine.is_some() && config.agents() > 1,
        };
        let spend =
            |costs, mips| [true, false].map(|is_read| Spend::of(costs, mips, is_read, setting));
        Ok(Self {
            operation: config.operation.unwrap_or(Operation::Read),
            is_copies: Code::new(&geometry).is_copies(),
            geometry,
            request_bytes,
            requests_beside_rebuild_max: config.requests_beside_rebuild_max(request_bytes),
            client: spend(&config.client.costs, config.client.mips),
            agent: spend(&config.agent.costs, config.agent.mips),
            config,
        })
    }

    /// What it is a model of.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Runs it once.
    ///
    /// # Errors
    /// When requests pile up without end.
    pub fn run(&self, seed: Seed) -> Result<Measures, RunError> {
        let mut world = World::new(self, seed);
        world.run()?;
        Ok(world.measures())
    }

    /// Where things are, with the disks that are there.
    const fn layout(&self, presence: Presence) -> Layout<'_> {
        let max = match self.config.disk.access_bytes_max {
            Some(max) => max,
            None => self.geometry.chunk_len(),
        };
        Layout { geometry: &self.geometry, presence, access_bytes_max: max }
    }

    fn agent_of(&self, disk: usize) -> usize {
        disk / self.config.agent.disks
    }
}

/// What happens next.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// A request comes by itself.
    Arrival,
    /// A request comes after the pause that follows another.
    Next,
    /// The rebuild's rate limit allows a stripe more.
    RebuildDue,
    /// The client has begun a request.
    Begun { request: usize },
    /// Another request has ended whose bytes are this one's too.
    Joined { request: usize },
    /// The client has computed check data, or what was on disks that are away.
    Computed { request: usize },
    /// An agent is done with a packet, which leaves with others that it still works on.
    Ready { agent: usize, message: usize, len: u32 },
    /// A packet goes onto the network.
    OnWire { message: usize, len: u32 },
    /// A packet is at the receiver's link of a switched network.
    AtPort { message: usize, len: u32 },
    /// A packet is at its receiver.
    Delivered { message: usize, len: u32 },
    /// The receiver is done with the last packet of a message.
    Received { message: usize },
    /// An agent is done with a request that was for all.
    Commanded { request: usize, agent: usize },
    /// An agent's parity engine is done.
    EngineDone { request: usize },
    /// The client has done what there was to do: what gathered for the log leaves.
    LogDue,
    /// An access comes to the next part of its way.
    OnPath { request: usize, access: usize, step: usize },
}

/// Who a message is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    /// The client, from this agent.
    Client(usize),
    /// This agent.
    Agent(usize),
    /// All agents of the request.
    Agents,
}

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// A request to the agents.
    Command,
    /// Data of one access.
    Data { access: usize },
    /// All data of a write, for the parity engine.
    WholeData,
    /// Data that was read, or the word that all is written.
    Reply,
}

#[derive(Debug, Clone, Copy)]
struct Message {
    request: usize,
    to: To,
    what: What,
    packets_left: u32,
    /// When the receiver is done with what has come.
    done: Time,
}

/// What a request is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Its accesses are reads.
    Reading,
    /// Its accesses are writes.
    Writing,
}

/// An agent's part of a request, in its phase.
#[derive(Debug, Clone, Copy)]
struct Part {
    agent: usize,
    /// Accesses that are not done, and the command of a write if it has not come.
    left: u32,
    bytes: u64,
}

#[derive(Debug)]
struct Request {
    is_read: bool,
    kind: Kind,
    arrived: Time,
    /// Bytes of the volume.
    range: Range<u64>,
    phase: Phase,
    /// Of the phase.
    accesses: Vec<Access>,
    /// To come after them.
    writes: Vec<Access>,
    parity_bytes: u64,
    /// Of a user's.
    check_pieces: u64,
    check_bytes: u64,
    parts: Vec<Part>,
    replies_left: u32,
    /// Requests that take bytes of this one's reads.
    followers: Vec<usize>,
    /// How many requests it takes bytes of.
    leaders: u32,
    /// With a log: the whole stripe that it writes or brings home.
    stripes: Range<u64>,
    /// Records to be acknowledged, and bytes left to others, before it goes on.
    waits: u32,
    /// From which byte on it left its end to others.
    left: Option<u64>,
    /// Requests whose bytes it writes.
    gathered: Vec<usize>,
    /// Of a stripe that is brought home: rows that change with how many blocks do, and all dirty blocks.
    rows: Vec<(u32, usize)>,
    dirty: Vec<(u32, Position)>,
}

impl Request {
    /// One that has not begun.
    fn new(is_read: bool, plan: Plan) -> Self {
        Self {
            is_read,
            kind: Kind::User,
            arrived: Time::START,
            range: 0..0,
            phase: Phase::Reading,
            accesses: plan.reads,
            writes: plan.writes,
            parity_bytes: plan.parity_bytes,
            check_pieces: plan.check_pieces,
            check_bytes: plan.check_bytes,
            parts: Vec::new(),
            replies_left: 0,
            followers: Vec::new(),
            leaders: 0,
            stripes: 0..0,
            waits: 0,
            left: None,
            gathered: Vec::new(),
            rows: Vec::new(),
            dirty: Vec::new(),
        }
    }
}

struct World<'a> {
    model: &'a Model,
    agenda: Agenda<Event>,
    /// Between requests.
    arrivals: Dice,
    /// What and where they are.
    choices: Dice,
    /// Whether an agent's memory has what is read.
    caches: Dice,
    client: HostState,
    agents: Vec<HostState>,
    /// The processors of all of them, if they are on one machine.
    machine: Option<Station>,
    wires: Wires,
    disks: Vec<DiskArm>,
    /// By layer of shared stations, from the disks on.
    layers: Vec<Vec<Station>>,
    engine: Station,
    requests: Slab<Request>,
    /// How many of them are users'.
    users: u64,
    log: Option<LogState>,
    messages: Slab<Message>,
    /// When each of those arrived that are not begun.
    waiting: VecDeque<Time>,
    next_offset: u64,
    presence: Presence,
    rebuild: Option<RebuildState>,
    meter: Meter,
}

impl<'a> World<'a> {
    fn new(model: &'a Model, seed: Seed) -> Self {
        let config = &model.config;
        let agents = config.agents();
        let layer = |shared: &SharedStation| {
            let each = config.agent.disks.div_ceil(shared.disks);
            vec![Station::new(1); each * agents]
        };
        Self {
            model,
            agenda: Agenda::default(),
            arrivals: seed.dice("arrivals"),
            choices: seed.dice("choices"),
            caches: seed.dice("caches"),
            client: HostState::new(config.client.processors, agents, config.machine),
            agents: vec![HostState::new(config.agent.processors, 1, config.machine); agents],
            machine: config.machine.as_ref().map(|machine| Station::new(machine.processors)),
            wires: match config.network.topology {
                Topology::TokenRing | Topology::Ethernet | Topology::Line => Wires::shared(),
                Topology::Switched => Wires::switched(agents),
            },
            disks: (0..config.disks).map(|disk| DiskArm::new(seed, disk)).collect(),
            layers: config.stations.iter().map(layer).collect(),
            engine: Station::new(1),
            requests: Slab::new(),
            users: 0,
            log: LogState::of(config, &model.geometry),
            messages: Slab::new(),
            waiting: VecDeque::new(),
            next_offset: 0,
            presence: match config.rebuild {
                Some(_) => Presence::without(config.away).rebuilt_below(0),
                None => Presence::without(config.away),
            },
            rebuild: config
                .rebuild
                .as_ref()
                .map(|rebuild| RebuildState::new(rebuild, config.transfer_unit_bytes)),
            meter: Meter::default(),
        }
    }

    fn run(&mut self) -> Result<(), RunError> {
        self.mark_if_due();
        let config = &self.model.config;
        let is_idle = config.rebuild.as_ref().is_some_and(|rebuild| rebuild.idle);
        match config.workload.arrivals_per_second {
            Some(_) | None if is_idle => (),
            Some(_) => self.put_arrival(),
            None => (0..config.workload.outstanding).for_each(|_| self.begin(Time::START)),
        }
        while !self.meter.is_over() {
            let Some(event) = self.agenda.pop() else {
                unreachable!("a run without anything to come before its last request")
            };
            self.handle(event);
            if self.waiting.len() >= WAITING_MAX {
                return Err(RunError::Overload);
            }
            self.check_rebuild()?;
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrival => self.handle_arrival(),
            Event::Next => self.begin(self.agenda.now()),
            Event::RebuildDue => self.handle_rebuild_due(),
            Event::Begun { request } => self.handle_begun(request),
            Event::Joined { request } => self.handle_reply(request),
            Event::Computed { request } => self.handle_computed(request),
            Event::Ready { agent, message, len } => self.handle_ready(agent, message, len),
            Event::OnWire { message, len } => self.handle_on_wire(message, len),
            Event::AtPort { message, len } => self.handle_at_port(message, len),
            Event::Delivered { message, len } => self.handle_delivered(message, len),
            Event::Received { message } => self.handle_received(message),
            Event::Commanded { request, agent } => self.handle_command(request, agent),
            Event::EngineDone { request } => self.handle_engine_done(request),
            Event::LogDue => self.handle_log_due(),
            Event::OnPath { request, access, step } => self.handle_on_path(request, access, step),
        }
    }
}
