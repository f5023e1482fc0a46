//! The loop: messages, stores, crashes and time for agents, mediators and clients.

use core::time::Duration;

use netraid_block::narrow;
use netraid_control::{
    keys::{Held, KeyId, Keyring, Ring, RootKey},
    placement::AgentState,
    units::{AgentId, MediatorId, Moment, VolumeId},
};

use super::{
    agent::Agent,
    check::{Ledgers, Seat, Seen, check_end, check_told},
    client::{Client, Deed, State},
    mediator::Mediator,
    messages::{Message, Node, Request},
    plan::{Plan, SKEW_MS},
};
use crate::{
    agenda::Agenda,
    array::trace::{Keep, Lines, Trace},
    campaign::Sum,
    dice::Dice,
    time::Time,
};

/// The wall clock at the start of a run.
const BEGIN_MS: u64 = 1_800_000_000_000;
/// Until all terms, holds and late messages are over.
const REST: Duration = Duration::from_secs(200);
/// How long it takes at most to open a volume when nothing is wrong.
const PROOF: Duration = Duration::from_secs(30);

#[derive(Debug)]
enum Event {
    Deliver { from: Node, to: Node, message: Message },
    Tick(Node),
    Synced { node: Node, life: u64, count: usize },
    Crash,
    Up(Node),
    Watch,
}

/// How a run ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// What was wrong, if anything.
    pub violation: Option<String>,
    /// Of all that happened.
    pub hash: u64,
    /// What was seen.
    pub counts: Counts,
}

/// What was seen.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Events.
    pub events: u64,
    /// Crashes of agents and mediators.
    pub crashes: u64,
    /// Plans that clients had.
    pub granted: u64,
    /// Requests to take a volume over.
    pub taken_over: u64,
    /// Volumes that were made.
    pub volumes: u64,
    /// Renewals.
    pub renewed: u64,
    /// Messages that were lost, doubled or late.
    pub mangled: u64,
}

impl Sum for Counts {
    fn add(&mut self, other: &Self) {
        let Self { events, crashes, granted, taken_over, volumes, renewed, mangled } = other;
        self.events += events;
        self.crashes += crashes;
        self.granted += granted;
        self.taken_over += taken_over;
        self.volumes += volumes;
        self.renewed += renewed;
        self.mangled += mangled;
    }
}

/// What of a node is the world's.
#[derive(Debug, Clone, Copy, Default)]
struct Body {
    is_up: bool,
    life: u64,
    skew_ms: u64,
    is_syncing: bool,
}

/// A run.
#[derive(Debug)]
pub struct World {
    plan: Plan,
    agenda: Agenda<Event>,
    agents: Vec<Agent>,
    mediators: Vec<Mediator>,
    clients: Vec<Client>,
    bodies: Vec<Body>,
    /// Volumes that clients know, by mediator.
    volumes: Vec<Vec<VolumeId>>,
    ledgers: Ledgers,
    network: Dice,
    faults: Dice,
    stores: Dice,
    is_quiet: bool,
    counts: Counts,
    trace: Trace,
}

impl World {
    /// A world that has not begun.
    #[must_use]
    pub fn new(plan: Plan, keep: Keep) -> Self {
        let seed = plan.seed;
        let agent_id = |at: usize| AgentId([narrow::<_, u8>(at) + 1; 16]);
        let ids: Vec<AgentId> = (0..plan.capacities.len()).map(agent_id).collect();
        let mediator_id = |at: usize| MediatorId([narrow::<_, u8>(at) + 101; 16]);
        let rings: Vec<Ring<RootKey>> = (0..plan.mediators).map(ring).collect();
        let agents = ids.iter().zip(&plan.capacities).map(|(id, capacity)| {
            let mut keys = Keyring::default();
            for (at, ring) in rings.iter().enumerate() {
                let mediator = mediator_id(at);
                let set = keys.set(mediator, ring.of_agent(mediator, *id));
                assert!(set.is_ok(), "{set:?}");
            }
            Agent::new(*id, *capacity, plan.kept, keys, plan.planted)
        });
        let agents: Vec<Agent> = agents.collect();
        let mediators = rings.into_iter().enumerate().map(|(at, ring)| {
            Mediator::new(mediator_id(at), ring, ids.clone(), seed.dice("ids"), plan.planted)
        });
        let mediators: Vec<Mediator> = mediators.collect();
        let clients = (0..plan.clients).map(|at| {
            let dice = seed.dice(&format!("client {at}"));
            Client::new(at % plan.mediators, dice, plan.shapes.clone())
        });
        let mut world = Self {
            agenda: Agenda::default(),
            clients: clients.collect(),
            bodies: vec![Body::default(); agents.len() + mediators.len()],
            volumes: vec![Vec::new(); mediators.len()],
            agents,
            mediators,
            ledgers: Ledgers::default(),
            network: seed.dice("network"),
            faults: seed.dice("faults"),
            stores: seed.dice("stores"),
            is_quiet: false,
            counts: Counts::default(),
            trace: Trace::new(keep),
            plan,
        };
        for node in world.nodes() {
            world.set_up(node);
            world.agenda.put_in(Duration::from_millis(100), Event::Tick(node));
        }
        for at in 0..world.clients.len() {
            world.agenda.put_in(Duration::from_millis(250), Event::Tick(Node::Client(at)));
        }
        world.agenda.put_in(Duration::from_millis(1), Event::Watch);
        let first = world.faults.time_to_next(world.plan.crash_every);
        world.agenda.put_in(first, Event::Crash);
        world
    }

    /// The lines of its trace.
    #[must_use]
    pub fn lines(&self) -> Lines {
        self.trace.lines()
    }

    /// Runs it.
    #[must_use]
    pub fn run(mut self) -> Outcome {
        let violation = self.live().err();
        let (hash, mut counts) = (self.trace.hash(), self.counts);
        counts.granted = self.ledgers.granted;
        counts.taken_over = self.ledgers.taken_over;
        Outcome { violation, hash, counts }
    }

    fn live(&mut self) -> Result<(), String> {
        self.run_until(Time::START.after(self.plan.busy))?;
        self.is_quiet = true;
        for client in &mut self.clients {
            client.is_closing = true;
        }
        self.run_for(REST)?;
        self.prove()?;
        self.run_for(REST)?;
        check_end(&self.agents, &self.mediators)
    }

    /// Every volume can be opened by a client that asks for it.
    fn prove(&mut self) -> Result<(), String> {
        for mediator in 0..self.mediators.len() {
            let volumes = self.mediators[mediator].store.tables.volumes.keys();
            let volumes: Vec<VolumeId> = volumes.copied().collect();
            for volume in volumes {
                self.clients[mediator].state = State::Idle;
                let now_ms = self.now_ms();
                let deeds = self.clients[mediator].prove(now_ms, volume);
                self.carry_out(mediator, deeds)?;
                self.wait_for(mediator, true, volume)?;
                let now_ms = self.now_ms();
                let deeds = self.clients[mediator].release(now_ms);
                self.carry_out(mediator, deeds)?;
                self.wait_for(mediator, false, volume)?;
            }
        }
        Ok(())
    }

    fn wait_for(&mut self, client: usize, holds: bool, volume: VolumeId) -> Result<(), String> {
        let end = self.agenda.now().after(PROOF);
        while self.agenda.now() < end {
            self.run_for(Duration::from_millis(50))?;
            match (&self.clients[client].state, holds) {
                (State::Holding { .. }, true) | (State::Idle, false) => return Ok(()),
                (State::Idle, true) => break,
                _ => {}
            }
        }
        Err(format!("volume {volume} cannot be opened and released when nothing is wrong"))
    }

    fn run_for(&mut self, time: Duration) -> Result<(), String> {
        self.run_until(self.agenda.now().after(time))
    }

    fn run_until(&mut self, end: Time) -> Result<(), String> {
        while self.agenda.next_time().is_some_and(|next| next <= end) {
            let Some(event) = self.agenda.pop() else { break };
            self.counts.events += 1;
            self.take(event)?;
        }
        Ok(())
    }

    fn nodes(&self) -> Vec<Node> {
        let agents = (0..self.agents.len()).map(Node::Agent);
        agents.chain((0..self.mediators.len()).map(Node::Mediator)).collect()
    }

    fn body(&mut self, node: Node) -> Option<&mut Body> {
        match node {
            Node::Agent(at) => Some(&mut self.bodies[at]),
            Node::Mediator(at) => Some(&mut self.bodies[self.agents.len() + at]),
            Node::Client(_) => None,
        }
    }

    fn is_up(&mut self, node: Node) -> bool {
        self.body(node).is_none_or(|body| body.is_up)
    }

    fn now_ms(&self) -> u64 {
        narrow(self.agenda.now().since(Time::START).as_millis())
    }

    /// The clock of a node: up to half of the longest difference before or after the right time.
    fn clock(&mut self, node: Node) -> Moment {
        let now_ms = self.now_ms();
        let skew_ms = self.body(node).map_or(SKEW_MS / 2, |body| body.skew_ms);
        Moment(BEGIN_MS + now_ms + skew_ms)
    }

    fn set_up(&mut self, node: Node) {
        let skew_ms = self.faults.below(SKEW_MS + 1);
        if let Some(body) = self.body(node) {
            body.is_up = true;
            body.skew_ms = skew_ms;
        }
    }

    fn take(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Deliver { from, to, message } => self.deliver(from, to, message),
            Event::Tick(node) => self.tick(node),
            Event::Synced { node, life, count } => self.synced(node, life, count),
            Event::Crash => {
                let every = self.plan.crash_every;
                let next = self.faults.time_to_next(every);
                if !self.is_quiet {
                    let nodes = self.nodes();
                    let node = nodes[self.faults.index(nodes.len())];
                    self.crash(node);
                    self.agenda.put_in(next, Event::Crash);
                }
                Ok(())
            }
            Event::Up(node) => self.up(node),
            Event::Watch => {
                self.look();
                self.agenda.put_in(Duration::from_millis(900), Event::Watch);
                self.check()
            }
        }
    }

    fn crash(&mut self, node: Node) {
        if !self.is_up(node) {
            return;
        }
        self.counts.crashes += 1;
        self.note(|| format!("{node:?} crashes"));
        if let Some(body) = self.body(node) {
            body.is_up = false;
            body.life += 1;
            body.is_syncing = false;
        }
        let down = self.faults.time_to_next(self.plan.down);
        self.agenda.put_in(down, Event::Up(node));
    }

    /// Which agents are up.
    fn agents_up(&self) -> Vec<bool> {
        self.bodies[..self.agents.len()].iter().map(|body| body.is_up).collect()
    }

    fn up(&mut self, node: Node) -> Result<(), String> {
        self.set_up(node);
        if let Node::Agent(at) = node {
            self.ledgers.note_up(at);
        }
        self.note(|| format!("{node:?} is up again"));
        let now = self.clock(node);
        match node {
            Node::Agent(at) => self.agents[at].crash(&mut self.stores),
            Node::Mediator(at) => self.mediators[at].crash(now, &mut self.stores),
            Node::Client(_) => {}
        }
        self.flush(node)?;
        self.check()
    }

    fn tick(&mut self, node: Node) -> Result<(), String> {
        let (now, now_ms) = (self.clock(node), self.now_ms());
        match node {
            Node::Agent(at) => {
                self.agenda.put_in(Duration::from_millis(250), Event::Tick(node));
                if self.is_up(node) {
                    self.agents[at].handle_time(now);
                }
            }
            Node::Mediator(at) => {
                self.agenda.put_in(Duration::from_millis(100), Event::Tick(node));
                if self.is_up(node) {
                    self.mediators[at].handle_time(now);
                }
            }
            Node::Client(at) => {
                self.agenda.put_in(Duration::from_millis(250), Event::Tick(node));
                let mediator = self.clients[at].mediator;
                let deeds = self.clients[at].handle_time(now_ms, &self.volumes[mediator]);
                return self.carry_out(at, deeds);
            }
        }
        self.flush(node)
    }

    fn deliver(&mut self, from: Node, to: Node, message: Message) -> Result<(), String> {
        if !self.is_up(to) {
            return Ok(());
        }
        self.trace.mix(&[self.now_ms(), from_number(from), from_number(to)]);
        self.note(|| format!("{from:?} -> {to:?}: {}", shown(&message)));
        let (now, now_ms) = (self.clock(to), self.now_ms());
        let mut is_watched = false;
        match (from, to, message) {
            (Node::Mediator(by), Node::Agent(at), Message::Ask(ask)) => {
                is_watched = matches!(ask, super::messages::Ask::Raise(..));
                self.agents[at].handle(now, self.mediators[by].id, &ask);
            }
            (Node::Agent(by), Node::Mediator(at), Message::Reply(reply)) => {
                self.mediators[at].handle_reply(now, by, &reply);
            }
            (Node::Client(by), Node::Mediator(at), Message::Request(request)) => {
                if let Request::Open(open) = &request
                    && let Some(from) = open.take_over
                {
                    let up = self.agents_up();
                    self.ledgers.note_take_over((open.volume, from), open.plan, &up);
                }
                self.mediators[at].handle_request(now, by, &request);
            }
            (Node::Mediator(_), Node::Client(at), Message::Answer(answer)) => {
                let deeds = self.clients[at].handle_answer(now_ms, answer);
                return self.carry_out(at, deeds);
            }
            (from, to, message) => unreachable!("{from:?} to {to:?}: {message:?}"),
        }
        self.flush(to)?;
        if is_watched { self.check() } else { Ok(()) }
    }

    /// What a client does.
    fn carry_out(&mut self, client: usize, deeds: Vec<Deed>) -> Result<(), String> {
        let mediator = self.clients[client].mediator;
        for deed in deeds {
            match deed {
                Deed::Send(request) => {
                    let to = Node::Mediator(mediator);
                    self.send(Node::Client(client), to, Message::Request(request));
                }
                Deed::Got(granted, end_ms) => {
                    let (is_released, is_lost) = (false, false);
                    let granted = *granted;
                    let seen = Seen { mediator, client, granted, end_ms, is_released, is_lost };
                    self.counts.renewed += 1;
                    self.ledgers.note(seen)?;
                    self.check()?;
                }
                Deed::Left(plan) => self.ledgers.note_released(plan),
                Deed::Lost(plan) => {
                    let now_ms = self.now_ms();
                    self.ledgers.note_lost(now_ms, plan, &self.mediators)?;
                }
                Deed::Made(volume) => {
                    self.counts.volumes += 1;
                    self.volumes[mediator].push(volume);
                }
                Deed::Removed(volume) => self.volumes[mediator].retain(|known| *known != volume),
            }
        }
        Ok(())
    }

    fn synced(&mut self, node: Node, life: u64, count: usize) -> Result<(), String> {
        if self.body(node).is_none_or(|body| body.life != life) {
            return Ok(());
        }
        if let Some(body) = self.body(node) {
            body.is_syncing = false;
        }
        let fails = !self.is_quiet && self.stores.one_in(self.plan.sync_fails);
        let now = self.clock(node);
        match node {
            Node::Agent(at) if fails => self.agents[at].handle_sync_failed(),
            Node::Agent(at) => self.agents[at].handle_synced(count),
            Node::Mediator(_) if fails => self.crash(node),
            Node::Mediator(at) => self.mediators[at].handle_synced(now, count),
            Node::Client(_) => {}
        }
        self.flush(node)
    }

    /// Whatever a node has to say leaves, and what it wrote is synced soon.
    fn flush(&mut self, node: Node) -> Result<(), String> {
        if !self.is_up(node) {
            return Ok(());
        }
        let unsynced = match node {
            Node::Agent(at) => {
                if let Some(fault) = self.agents[at].fault() {
                    return Err(format!("agent {at} is overcommitted: {fault}"));
                }
                while let Some((mediator, reply)) = self.agents[at].poll_reply() {
                    let known = self.mediators.iter().position(|known| known.id == mediator);
                    let to = Node::Mediator(known.unwrap_or(0));
                    self.send(node, to, Message::Reply(reply));
                }
                self.agents[at].unsynced()
            }
            Node::Mediator(at) => {
                let up = self.agents_up();
                while let Some(taken) = self.mediators[at].poll_taken_over() {
                    self.ledgers.note_fenced(taken, &up, &self.mediators[at])?;
                }
                while let Some((to, message)) = self.mediators[at].poll_message() {
                    self.send(node, to, message);
                }
                self.mediators[at].store.unsynced()
            }
            Node::Client(_) => 0,
        };
        let wait = Duration::from_micros(200 + self.stores.below(20_000));
        if let Some(body) = self.body(node)
            && unsynced > 0
            && !body.is_syncing
        {
            body.is_syncing = true;
            let life = body.life;
            self.agenda.put_in(wait, Event::Synced { node, life, count: unsynced });
        }
        Ok(())
    }

    fn send(&mut self, from: Node, to: Node, message: Message) {
        let plan = &self.plan;
        let (loss, twice, late) = match self.is_quiet {
            true => (0, 0, 0),
            false => (plan.loss, plan.twice, plan.late),
        };
        let late_by = plan.late_by;
        if self.network.one_in(loss) {
            self.counts.mangled += 1;
            return;
        }
        let copies = if self.network.one_in(twice) { 2 } else { 1 };
        for _ in 0..copies {
            let mut wait = Duration::from_micros(50 + self.network.below(5_000));
            if self.network.one_in(late) {
                wait += self.network.time_in(&(Duration::ZERO..=late_by));
                self.counts.mangled += 1;
            }
            let message = message.clone();
            self.agenda.put_in(wait, Event::Deliver { from, to, message });
        }
    }

    /// Mediators hear what agents have left.
    fn look(&mut self) {
        let state = |agent: &Agent| AgentState {
            id: agent.id,
            host: String::new(),
            rack: String::new(),
            left: agent.left(),
            total: agent.capacity,
            usable: true,
        };
        for mediator in &mut self.mediators {
            mediator.view = self.agents.iter().map(state).collect();
        }
    }

    fn check(&mut self) -> Result<(), String> {
        let now_ms = self.now_ms();
        let seats: Vec<Seat<'_>> = self
            .agents
            .iter()
            .zip(&self.bodies)
            .map(|(agent, body)| Seat {
                agent,
                is_up: body.is_up,
                now: Moment(BEGIN_MS + now_ms + body.skew_ms),
            })
            .collect();
        self.ledgers.check(now_ms, &seats, &self.mediators)?;
        check_told(&self.agents, &self.mediators)
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        self.trace.note(self.agenda.now(), line);
    }
}

/// A mediator's one key.
fn ring(at: usize) -> Ring<RootKey> {
    let mut ring = Ring::default();
    let bytes = [narrow::<_, u8>(at) + 1; 32];
    let (from, until) = (Moment(0), Moment(u64::MAX));
    let added = ring.add(Held { id: KeyId(1), from, until, key: RootKey::new(&bytes) });
    assert!(added.is_ok(), "{added:?}");
    ring
}

const fn from_number(node: Node) -> u64 {
    match node {
        Node::Agent(at) => at as u64,
        Node::Mediator(at) => 100 + at as u64,
        Node::Client(at) => 200 + at as u64,
    }
}

/// A message without its secrets, which are many.
fn shown(message: &Message) -> String {
    let text = format!("{message:?}");
    text.split(" credentials:").next().unwrap_or_default().chars().take(260).collect()
}
