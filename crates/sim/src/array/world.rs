//! The world: one event after another, and what it makes of what engines say.
//!
//! Invariant: a run is a function of its plan. Whatever is wrong ends it at once, with the moment
//! in its trace.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use netraid_block::{Op, Pool, SgList};
use netraid_raid::{
    checkpoint::Checkpoint,
    format,
    label::{LABEL_LEN, Label},
    logged::{Event, MemberCaps, RequestId, RuleCounts, UserRequest},
    member::ArrayState,
    regions::{CHECKPOINT_OFFSETS, LABEL_OFFSETS, PAGE_LEN},
};

use super::{
    content::{self, SECTOR_LEN, WriteId},
    engine::{Context, Due, Engine, Fittings, Near, Notice},
    faults::{Harm, Trouble},
    machine::Machine,
    oracle::{Change, EngineId, Moment, Oracle, Wrong},
    plan::{Fault, Mode, Plan},
    session::{Message, Session, Surroundings},
    trace::{Keep, Lines, Trace},
    workload::{Wanted, Workload},
};
use crate::{
    agenda::Agenda,
    dice::Dice,
    disk::{Disk, DiskShape, Image},
    network::{self, End, HostId, Network},
    target::{Nexus, SimTarget},
    time::Time,
};

/// Most events of a run: one that needs more goes in circles.
const EVENTS_MAX: u64 = 1_000_000;
/// Most requests of an engine: one whose users only ask for what is done at once dies too.
const LIFE_REQUESTS_MAX: u64 = 3000;
/// Moments of a recovery that are looked at.
const WATCHES: u32 = 5;
/// Member requests of an engine that dies soon after it has opened the array, on average.
const SHORT_LIFE: u64 = 20;
/// Most openings in a row that fail.
const FAILED_OPENINGS_MAX: u32 = 200;
/// After so many nothing befalls the array until it is open: it may be that it had no time.
const FAILED_OPENINGS_WILD: u32 = 100;

/// What a run saw.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// Engines that died while they served or opened.
    pub crashes: u64,
    /// Those that died while they opened.
    pub crashes_in_recovery: u64,
    /// Those that died while they opened after the one before had died so, and so on: by depth.
    pub depths: [u64; 4],
    /// Openings that ended well.
    pub openings: u64,
    /// Requests in flight at crashes of serving engines: sum and least.
    pub in_flight: u64,
    /// The least of them.
    pub in_flight_min: Option<u64>,
    /// Crashes that this was counted at.
    pub serving_crashes: u64,
    /// Requests that ended well.
    pub requests: u64,
    /// Requests that ended with an error.
    pub errors: u64,
    /// Member requests.
    pub actions: u64,
    /// Commands that changed a medium when their session was gone.
    pub late: u64,
    /// Whole looks at the media.
    pub rests: u64,
    /// Whole reads through some of the members.
    pub subsets: u64,
    /// Runs beyond the budget whose array could not be opened any more.
    pub given_up: u64,
    /// Runs beyond the budget whose array lost some rows for ever, and closed.
    pub with_lost_rows: u64,
    /// Events of the simulation.
    pub events: u64,
    /// Faults by kind.
    pub faults: BTreeMap<Fault, u64>,
    /// What the machine told, by its kind.
    pub told: BTreeMap<&'static str, u64>,
    /// Sectors that a first read settled.
    pub settled: u64,
    /// How often each rule of the machine held something back.
    pub rules: RuleCounts,
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// What was wrong, if anything was.
    pub violation: Option<Violation>,
    /// What it saw.
    pub counts: Counts,
    /// Everything that happened, as a number.
    pub hash: u64,
}

/// What is to happen.
#[derive(Debug)]
pub(super) enum Happening {
    /// An engine starts on a host.
    Start(usize),
    /// A fault is due.
    Fault,
    /// A trouble ends.
    Mend(usize, Trouble),
    /// A bad block of a member is as it was.
    Recover(usize, u64),
    /// An engine is killed.
    Kill(EngineId),
    /// A cut between an engine's host and a member's heals.
    Heal(HostId, usize),
    /// Users go on.
    Think,
    /// Whoever does not come to rest by now never will.
    Late,
}

/// A request that a user made.
#[derive(Debug)]
enum Pending {
    Read { first: u64, submitted: Moment, is_sweep: bool },
    Write(WriteId),
    Flush(Moment),
}

/// What the run is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Engines come and go.
    Lives,
    /// Nothing befalls the array any more; everything is read, and it closes.
    Ending,
    /// The machine was asked to close.
    Closing,
    Over,
}

/// A member's host.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) id: HostId,
    pub(super) target: SimTarget,
    /// What is wrong with it now.
    pub(super) trouble: Option<Trouble>,
    /// It counts against what the level survives.
    pub(super) is_impaired: bool,
    /// How often engines had lost it when it was last in trouble, and who was the newest.
    pub(super) losses_then: u64,
    pub(super) engine_then: u32,
    pub(super) losses: u64,
    pub(super) mended_at: Time,
    pub(super) lost_power: bool,
    /// It is an older image of itself, and nobody has noticed yet.
    pub(super) is_older: bool,
    pub(super) photograph: Option<Image>,
}

/// A run.
#[derive(Debug)]
pub struct World<M> {
    pub(super) plan: Plan,
    pub(super) agenda: Agenda<Happening>,
    pub(super) network: Network<Message>,
    pub(super) hosts: Vec<Host>,
    pub(super) engines: Vec<Engine<M>>,
    pub(super) engine_hosts: [HostId; 2],
    last_nexus: [Option<Nexus>; 2],
    last_engine: u32,
    pub(super) serving: Option<EngineId>,
    pub(super) oracle: Oracle,
    workload: Workload,
    requests: BTreeMap<(EngineId, u64), Pending>,
    next_request: u64,
    /// Where the reading of everything goes on.
    sweep: Option<u64>,
    sweeps_in_flight: u32,
    /// Users wait until everything was read.
    sweeps_alone: bool,
    /// They made many requests that ended at once, and wait a little.
    is_thinking: bool,
    /// Requests since the array was opened.
    life_requests: u64,
    depth: u64,
    lives: u32,
    phase: Phase,
    /// Waiting for the machine to bring everything home, for a look at the media.
    is_resting: bool,
    was_asked_to_idle: bool,
    pub(super) harms: Vec<Harm>,
    /// Errors of engines up to this one are no violations: more befell the array in their time
    /// than it survives.
    excused_upto: u32,
    /// Beyond the budget: blocks of members, or of the volume at the end, could not be had.
    has_lost_rows: bool,
    failed_openings: u32,
    /// Which engine has lost a member just now.
    has_lost_one: Option<EngineId>,
    /// A member and its block at the log's end that was spoilt, until the next engine that serves dies.
    pub(super) spoilt_log: Option<(usize, u64)>,
    recovery_actions: u64,
    recovery_depth: usize,
    pub(super) fittings: Fittings,
    notices: VecDeque<(EngineId, Notice)>,
    pub(super) trace: Trace,
    pub(super) dice: Dice,
    driver_dice: Dice,
    pub(super) fault_dice: Dice,
    pub(super) subset_dice: Dice,
    pub(super) counts: Counts,
    violation: Option<Violation>,
}

impl<M: Machine> World<M> {
    /// A new array, and nobody has it open.
    #[must_use]
    pub fn new(plan: Plan, keep: Keep) -> Self {
        let seed = plan.seed;
        let geometry = plan.geometry;
        let mut network = Network::new(seed.dice("network"));
        let engine_hosts = [(); 2].map(|()| network.add_host(Plan::wire()));
        let members = usize::from(geometry.members());
        let uuids: Vec<_> = (0..geometry.members()).map(|at| [at + 1; 16]).collect();
        let layout = (plan.regions, geometry);
        let array_uuid = [0xaa; 16];
        let images = format::format(layout, "simulated", array_uuid, &uuids, seed.0);
        let mut hosts = Vec::with_capacity(members);
        for (at, images) in images.into_iter().enumerate() {
            let mut disk = Disk::new(DiskShape {
                block_len: geometry.block_len(),
                blocks: plan.capacity() / u64::from(geometry.block_len()),
                volatile_cache: plan.volatile[at],
                fill: plan.fill,
            });
            for (offset, bytes) in images {
                let first = offset / u64::from(geometry.block_len());
                disk.write(first, &netraid_block::Buf::copy_from(&bytes).into(), true);
            }
            let dice = seed.dice(&format!("target {at}"));
            hosts.push(Host {
                id: network.add_host(Plan::wire()),
                target: SimTarget::new(disk, plan.manners(at), dice),
                trouble: None,
                is_impaired: false,
                losses_then: 0,
                engine_then: 0,
                losses: 0,
                mended_at: Time::START,
                lost_power: false,
                is_older: false,
                photograph: None,
            });
        }
        let caps = |volatile: &bool| MemberCaps { volatile_cache: *volatile, can_discard: true };
        let fittings = Fittings {
            array_uuid,
            caps: plan.volatile.iter().map(caps).collect(),
            block_len: geometry.block_len(),
            capacity: plan.capacity(),
            max_io_len: plan.max_io_len,
            limits: plan.limits,
            pool: Pool::new(),
        };
        let sectors = geometry.capacity() / SECTOR_LEN as u64;
        let stripe = geometry.stripe_data_len() / SECTOR_LEN as u64;
        let unit = u64::from(geometry.block_len()) / SECTOR_LEN as u64;
        let mut agenda = Agenda::default();
        agenda.put_at(Time::START, Happening::Start(0));
        let mut world = Self {
            agenda,
            network,
            hosts,
            engines: Vec::new(),
            engine_hosts,
            last_nexus: [None; 2],
            last_engine: 0,
            serving: None,
            oracle: Oracle::new(sectors),
            workload: Workload::new(seed, sectors, stripe, unit),
            requests: BTreeMap::new(),
            next_request: 0,
            sweep: None,
            sweeps_in_flight: 0,
            sweeps_alone: false,
            is_thinking: false,
            life_requests: 0,
            depth: 4,
            lives: plan.lives,
            phase: Phase::Lives,
            is_resting: false,
            was_asked_to_idle: false,
            harms: Vec::new(),
            excused_upto: 0,
            has_lost_rows: false,
            failed_openings: 0,
            has_lost_one: None,
            spoilt_log: None,
            recovery_actions: 40,
            recovery_depth: 0,
            fittings,
            notices: VecDeque::new(),
            trace: Trace::new(keep),
            dice: seed.dice("world"),
            driver_dice: seed.dice("drivers"),
            fault_dice: seed.dice("faults"),
            subset_dice: seed.dice("subsets"),
            counts: Counts::default(),
            violation: None,
            plan,
        };
        if !world.plan.faults.is_empty() {
            world.plan_fault();
        }
        world
    }

    /// The lines of its trace as they are kept, also when the machine panics.
    #[must_use]
    pub fn lines(&self) -> Lines {
        self.trace.lines()
    }

    /// Runs it to its end.
    #[must_use]
    pub fn run(mut self) -> Outcome {
        while self.phase != Phase::Over && self.violation.is_none() {
            self.step();
        }
        for host in &self.hosts {
            self.counts.late += host.target.late_effects();
        }
        self.counts.settled = self.oracle.settled();
        Outcome { violation: self.violation, counts: self.counts, hash: self.trace.hash() }
    }

    /// The moment.
    pub(super) fn now(&self) -> Time {
        self.agenda.now()
    }

    /// Something is wrong.
    pub(super) fn fail(&mut self, what: String) {
        let now = self.now();
        self.trace.note(now, || format!("WRONG: {what}"));
        self.violation.get_or_insert(Violation(what));
    }

    /// A line of the trace.
    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        let now = self.now();
        self.trace.note(now, line);
    }

    fn step(&mut self) {
        self.counts.events += 1;
        if self.counts.events > EVENTS_MAX {
            return self.fail(format!("more than {EVENTS_MAX} events: it goes in circles"));
        }
        let network = self.network.next_timeout();
        let targets = self.hosts.iter().filter_map(|host| host.target.next_timeout()).min();
        let engines = self.engines.iter().filter_map(Engine::next_timeout).min();
        let agenda = self.agenda.next_time();
        let next = [network, targets, engines, agenda].into_iter().flatten().min();
        // What a target that hung had to do is due at once.
        let Some(next) = next.map(|next| next.max(self.agenda.now())) else {
            return self.fail("nothing will ever happen again".into());
        };
        if agenda == Some(next) {
            if let Some(happening) = self.agenda.pop() {
                self.happen(happening);
            }
            return self.settle();
        }
        self.agenda.advance(next);
        let is_due = |time: Option<Time>| time.is_some_and(|time| time <= next);
        if is_due(network) {
            if let Some(event) = self.network.poll(next) {
                self.deliver(event);
            }
        } else if is_due(targets) {
            self.poll_targets(next);
        } else {
            for at in 0..self.engines.len() {
                if self.engines[at].next_timeout().is_some_and(|time| time <= next) {
                    self.with(at, |engine, context| engine.handle_timeout(context));
                }
            }
        }
        self.settle();
    }

    fn poll_targets(&mut self, now: Time) {
        for host in &mut self.hosts {
            if host.target.next_timeout().is_none_or(|time| time > now) {
                continue;
            }
            while let Some((connection, reply)) = host.target.poll(now) {
                let len = match &reply {
                    crate::target::Reply::Done(_, Ok(data)) => 48 + data.len() as u64,
                    crate::target::Reply::Done(_, Err(_))
                    | crate::target::Reply::LoggedIn { .. } => 48,
                };
                let message = Message::Reply(reply);
                self.network.send(now, connection, End::Acceptor, message, len);
            }
        }
    }

    fn deliver(&mut self, event: network::Event<Message>) {
        let now = self.now();
        match event {
            network::Event::Arrived { connection, at: End::Acceptor, message } => {
                let (Message::Request(request), Some(member)) =
                    (message, self.member_at(connection))
                else {
                    return;
                };
                self.hosts[member].target.handle_request(now, connection, request);
            }
            network::Event::Broken { connection, at: End::Acceptor } => {
                for host in &mut self.hosts {
                    host.target.handle_broken(now, connection);
                }
            }
            network::Event::Arrived { connection, at: End::Opener, message } => {
                let Message::Reply(reply) = message else { return };
                let mut reply = Some(reply);
                for at in 0..self.engines.len() {
                    if self.engines[at].owns(connection)
                        && let Some(reply) = reply.take()
                    {
                        self.with(at, |engine, context| {
                            engine.handle_reply(context, connection, reply);
                        });
                    }
                }
            }
            network::Event::Broken { connection, at: End::Opener } => {
                for at in 0..self.engines.len() {
                    self.with(at, |engine, context| engine.handle_broken(context, connection));
                }
            }
        }
    }

    fn member_at(&self, connection: network::ConnectionId) -> Option<usize> {
        let host = self.network.acceptor(connection)?;
        self.hosts.iter().position(|one| one.id == host)
    }

    /// Lets an engine do something.
    fn with(&mut self, at: usize, act: impl FnOnce(&mut Engine<M>, &mut Context<'_>)) {
        let around = Surroundings {
            now: self.agenda.now(),
            network: &mut self.network,
            dice: &mut self.driver_dice,
        };
        let trace = &mut self.trace;
        let mut context = Context { around, trace, notices: &mut self.notices };
        act(&mut self.engines[at], &mut context);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Start(host) => self.start(host),
            Happening::Fault => self.befall(),
            Happening::Mend(member, trouble) => self.mend(member, trouble),
            Happening::Recover(member, block) => self.recover_block(member, block),
            Happening::Kill(id) => {
                if self.engines.iter().any(|engine| engine.id == id) {
                    self.kill(id, "it is killed");
                }
            }
            Happening::Heal(engine_host, member) => {
                let (now, host) = (self.now(), self.hosts[member].id);
                self.network.heal(now, engine_host, host);
            }
            Happening::Think => self.is_thinking = false,
            Happening::Late => {
                let states = self.serving_label().map(|label| {
                    label.members.iter().map(|entry| entry.state.name()).collect::<Vec<_>>()
                });
                self.fail(format!("it does not come to rest; members are {states:?}"));
            }
        }
    }

    fn start(&mut self, host: usize) {
        if self.engines.iter().any(|engine| engine.host == self.engine_hosts[host]) {
            return;
        }
        self.last_engine += 1;
        let id = EngineId(self.last_engine);
        let nexus = match self.last_nexus[host] {
            // A session of the same name ends the older one by itself.
            Some(nexus) if self.dice.one_in(2) => nexus,
            Some(_) | None => Nexus(u64::from(id.0)),
        };
        self.last_nexus[host] = Some(nexus);
        let now = self.now();
        let own = self.engine_hosts[host];
        let session = |member: &Host| {
            let block_len = self.fittings.block_len;
            Session::new((own, member.id), nexus, block_len, Plan::patience(), now)
        };
        let sessions = self.hosts.iter().map(session).collect();
        let until = now.after(Duration::from_millis(60));
        let mut engine = Engine::new(id, own, nexus, sessions, until, self.fittings.clone());
        if self.phase == Phase::Lives
            && self.recovery_depth < 3
            && self.dice.one_in(self.plan.crash_in_recovery)
        {
            let near = near(&self.plan, &mut self.dice, Some(self.recovery_actions));
            let anywhere = 1 + self.dice.below(self.recovery_actions + 4);
            engine.dies = Some(Due { after: if near.is_some() { 0 } else { anywhere }, near });
        }
        let (data, more) = (self.plan.regions.data, self.dice.below(6));
        let near = Near { region: data.offset..data.end(), more, within: u64::MAX };
        engine.watched = Some((Due { after: 0, near: Some(near) }, WATCHES));
        self.note(|| format!("engine {}: starts on host {host}", id.0));
        self.engines.push(engine);
    }

    /// An engine is no more.
    pub(super) fn kill(&mut self, id: EngineId, why: &str) {
        let Some(at) = self.engines.iter().position(|engine| engine.id == id) else { return };
        let engine = self.engines.swap_remove(at);
        self.counts.actions += engine.actions;
        self.counts.rules.add(&engine.machine().map(Machine::rules).unwrap_or_default());
        self.note(|| format!("engine {}: is no more: {why}", id.0));
        self.trace.mix(&[5, u64::from(id.0), engine.actions]);
        let now = self.now();
        self.network.crash_host(now, engine.host, Duration::from_millis(2));
        for host in self.hosts.iter().filter(|host| host.trouble != Some(Trouble::Cut)) {
            self.network.heal(now, engine.host, host.id);
        }
        self.requests.retain(|(owner, _), _| *owner != id);
        if self.serving == Some(id) {
            self.serving = None;
            self.sweep = None;
            self.is_resting = false;
            if self.phase == Phase::Closing {
                self.phase = Phase::Ending;
            }
            self.make_room();
        }
        if self.engines.is_empty() && self.phase != Phase::Over {
            let host = if self.plan.faults.contains(&Fault::TwoEngines) && self.dice.one_in(3) {
                usize::from(self.engine_hosts[0] == engine.host)
            } else {
                usize::from(self.engine_hosts[1] == engine.host)
            };
            let wait = Duration::from_micros(self.dice.below(5_000));
            self.agenda.put_in(wait, Happening::Start(host));
        }
    }

    /// Reads what engines left, and looks after the users, until nothing is left.
    fn settle(&mut self) {
        loop {
            self.hear_all();
            if let Some(id) = self.has_lost_one.take() {
                self.look_at_a_loss(id);
            }
            if self.violation.is_some() || self.phase == Phase::Over {
                return;
            }
            if let Some(engine) = self.engines.iter().find(|engine| engine.waits_for_nothing()) {
                let id = engine.id.0;
                return self.fail(format!("engine {id} waits for nothing while it recovers"));
            }
            self.look_after_users();
            if self.notices.is_empty() {
                let is_idle = |engine: &Engine<M>| engine.outstanding() == 0;
                if self.phase == Phase::Closing && self.engines.iter().all(is_idle) {
                    self.fail("the machine waits for nothing while it closes".into());
                }
                return;
            }
        }
    }

    fn hear_all(&mut self) {
        while let Some((id, notice)) = self.notices.pop_front() {
            let is_known = self.engines.iter().any(|engine| engine.id == id);
            if is_known && self.violation.is_none() && self.phase != Phase::Over {
                self.hear(id, notice);
            }
        }
    }

    fn hear(&mut self, id: EngineId, notice: Notice) {
        match notice {
            Notice::Completed(request, result) => self.complete(id, request, result),
            Notice::Event(event) => self.hear_event(id, event),
            Notice::Asks(generation, epoch) => {
                let alone = self.engines.len() == 1;
                // What an older engine has sent to a member that is off will never land; and one
                // with another label would not know later who had the array.
                let is_harmless = |(member, host): (usize, &Host)| {
                    let is_found = self.engines.iter().any(|engine| engine.has_found(member));
                    let is_same = self.label_on(host.target.disk()) == Some((generation, epoch));
                    is_found || (!host.target.is_on() && is_same)
                };
                let may_open = alone && self.hosts.iter().enumerate().all(is_harmless);
                if let Some(at) = self.engines.iter().position(|engine| engine.id == id) {
                    self.with(at, |engine, context| engine.handle_word(context, may_open));
                }
            }
            Notice::Refused(why) => {
                self.kill(id, &why);
                self.count_failed_opening(id, false);
            }
            Notice::Dies => self.die(id),
            Notice::Watched => self.look_at_a_recovery(id),
            Notice::Fenced(_) => {
                if self.engines.len() > 1 || self.dice.one_in(2) {
                    let wait = Duration::from_micros(self.dice.below(3_000));
                    self.agenda.put_in(wait, Happening::Kill(id));
                } else {
                    self.agenda.put_in(Duration::ZERO, Happening::Kill(id));
                }
                self.excused_upto = self.excused_upto.max(id.0);
            }
            Notice::Gone(member) => {
                self.hosts[member].losses += 1;
                self.has_lost_one = Some(id);
                self.be_nervous(id);
            }
            Notice::Nonsense(text) => self.fail(text),
        }
    }

    fn die(&mut self, id: EngineId) {
        self.counts.crashes += 1;
        if self.serving == Some(id) {
            *self.counts.faults.entry(Fault::EngineCrash).or_default() += 1;
            let in_flight = self.in_flight(id);
            self.counts.serving_crashes += 1;
            self.counts.in_flight += in_flight;
            let least = self.counts.in_flight_min.unwrap_or(in_flight).min(in_flight);
            self.counts.in_flight_min = Some(least);
            self.recovery_depth = 0;
            self.look_at_a_subset(id);
            if let Some((member, block)) = self.spoilt_log.take() {
                self.recover_block(member, block);
            }
        } else {
            *self.counts.faults.entry(Fault::CrashInRecovery).or_default() += 1;
            self.counts.crashes_in_recovery += 1;
            self.recovery_depth += 1;
            self.counts.depths[self.recovery_depth.min(3)] += 1;
            self.look_at_a_recovery(id);
        }
        self.kill(id, "it crashes");
        self.spoil_the_end_of_the_log();
        self.lose_power_with_engine();
    }

    /// A member has gone: in some runs the engine that lost it dies just then.
    fn be_nervous(&mut self, id: EngineId) {
        if self.serving != Some(id) || !self.dice.one_in(self.plan.moods.dies_of_losses) {
            return;
        }
        let soon = self.dice.below(12);
        if let Some(engine) = self.engines.iter_mut().find(|engine| engine.id == id) {
            let soon = engine.actions + soon;
            if let Some(dies) = &mut engine.dies {
                *dies = Due { after: dies.after.min(soon), near: None };
            }
        }
    }

    /// More befalls the array in the time of the engines that there are than it survives.
    pub(super) const fn excuse(&mut self) {
        self.excused_upto = self.last_engine;
    }

    pub(super) fn is_excused(&self, id: EngineId) -> bool {
        self.plan.mode == Mode::Beyond || id.0 <= self.excused_upto
    }

    /// Whether nothing befalls the array until it is open.
    pub(super) const fn has_rest(&self) -> bool {
        self.failed_openings > FAILED_OPENINGS_WILD
    }

    pub(super) fn is_ending(&self) -> bool {
        self.phase != Phase::Lives
    }

    fn in_flight(&self, id: EngineId) -> u64 {
        self.requests.range((id, 0)..=(id, u64::MAX)).count() as u64
    }

    /// Why an opening may fail: too few members are there, or one left meanwhile.
    fn count_failed_opening(&mut self, id: EngineId, is_grave: bool) {
        self.failed_openings += 1;
        if self.failed_openings > FAILED_OPENINGS_MAX && self.plan.mode == Mode::Beyond {
            // Too much was lost for ever.
            self.counts.given_up += 1;
            self.phase = Phase::Over;
        } else if self.failed_openings > FAILED_OPENINGS_MAX {
            self.fail(format!("{FAILED_OPENINGS_MAX} openings in a row have failed"));
        } else if is_grave && !self.is_excused(id) {
            self.fail("the array does not open although no more befell it than it survives".into());
        }
    }

    fn hear_event(&mut self, id: EngineId, event: Event) {
        let name = match &event {
            Event::Opened => "opened",
            Event::Member { .. } => "member",
            Event::State(_) => "state",
            Event::Repaired { .. } => "repaired",
            Event::Lost { .. } => "lost",
            Event::CaughtUp(_) => "caught up",
            Event::Notice(_) => "notice",
            Event::Scrub(_) => "scrub",
            Event::Closed => "closed",
        };
        *self.counts.told.entry(name).or_default() += 1;
        match event {
            Event::Opened => self.open(id),
            Event::State(ArrayState::Failed) => self.note_failure(id),
            Event::Closed => self.close(id),
            Event::Lost { .. } => {
                self.has_lost_rows = true;
                if !self.is_excused(id) {
                    self.fail("a block is lost although no more befell it than it survives".into());
                }
            }
            // Nothing that befell it, and yet it is away: as one engine left the array to the next.
            Event::Member { member, state, .. } if !state.is_live() => {
                let host = &mut self.hosts[member.as_usize()];
                if !host.is_impaired {
                    host.is_impaired = true;
                    // Whom this engine pushes aside does not know better.
                    host.engine_then = id.0.saturating_sub(1);
                    self.make_room();
                }
            }
            Event::Member { .. }
            | Event::State(_)
            | Event::Repaired { .. }
            | Event::CaughtUp(_)
            | Event::Notice(_)
            | Event::Scrub(_) => {}
        }
    }

    fn note_failure(&mut self, id: EngineId) {
        let Some(engine) = self.engines.iter().find(|engine| engine.id == id) else { return };
        let error = engine.machine().and_then(Machine::failure);
        if self.serving == Some(id) && !self.is_excused(id) {
            self.fail(format!("the array failed: {error:?}"));
        }
    }

    fn open(&mut self, id: EngineId) {
        self.counts.openings += 1;
        self.failed_openings = 0;
        self.recovery_depth = 0;
        if let Some(old) = self.serving.replace(id) {
            let wait = Duration::from_micros(self.dice.below(30_000));
            self.agenda.put_in(wait, Happening::Kill(old));
        }
        self.take_stock(id);
        self.oracle.open(id);
        let is_last = self.lives == 0;
        self.lives = self.lives.saturating_sub(1);
        self.sweep = Some(0);
        self.sweeps_in_flight = 0;
        self.life_requests = 0;
        self.sweeps_alone = is_last || self.dice.one_in(2);
        let (low, high) = (*self.plan.depth.start(), *self.plan.depth.end());
        self.depth = low + self.dice.below(high - low + 1);
        self.is_resting = self.dice.one_in(6);
        self.was_asked_to_idle = false;
        // Many die before recovery's last traces are gone.
        // What it reads before it logs anything is what it will have been.
        let is_to_read = self.spoilt_log.is_some();
        self.sweeps_alone |= is_to_read;
        let mean = match self.dice.below(8) {
            0 => SHORT_LIFE / 4,
            1 | 2 => SHORT_LIFE,
            _ => self.plan.life,
        };
        let life = 1 + u64::try_from(self.dice.time_to_next(Duration::from_nanos(mean)).as_nanos())
            .unwrap_or(0);
        if let Some(engine) = self.engines.iter_mut().find(|engine| engine.id == id) {
            self.recovery_actions = (self.recovery_actions + engine.actions) / 2;
            let mut dies =
                Due { after: engine.actions + life, near: near(&self.plan, &mut self.dice, None) };
            if is_to_read {
                let log = self.plan.regions.log;
                let near = Near { region: log.offset..log.end(), more: 0, within: 400 };
                dies = Due { after: engine.actions, near: Some(near) };
            }
            engine.dies = (!is_last).then_some(dies);
        }
        self.photograph_some();
        if is_last {
            self.begin_ending();
        }
    }

    /// The array is open: who counts against what it survives, and what may be gone with them?
    fn take_stock(&mut self, id: EngineId) {
        let Some(engine) = self.engines.iter().find(|engine| engine.id == id) else { return };
        let in_sync: Vec<bool> = (0..self.hosts.len()).map(|at| engine.is_in_sync(at)).collect();
        // What only members had that are not in sync, or lost their caches.
        let unsure = (0..self.hosts.len()).filter(|at| !in_sync[*at] || self.hosts[*at].lost_power);
        if unsure.count() > self.tolerance() {
            self.oracle.lose_power();
        }
        for (host, in_sync) in self.hosts.iter_mut().zip(in_sync) {
            host.lost_power &= host.trouble.is_some() || !in_sync;
            if !in_sync && !host.is_impaired {
                host.is_impaired = true;
                host.engine_then = 0;
            }
        }
        self.make_room();
    }

    fn begin_ending(&mut self) {
        self.note(|| "nothing befalls the array any more".into());
        self.phase = Phase::Ending;
        self.sweeps_alone = true;
        self.is_resting = false;
        self.mend_everything();
        self.agenda.put_in(Duration::from_secs(60), Happening::Late);
    }

    fn close(&mut self, id: EngineId) {
        let Some(engine) = self.engines.iter().find(|engine| engine.id == id) else { return };
        let failure = engine.machine().and_then(Machine::failure);
        if self.phase == Phase::Closing && failure.is_none() {
            if self.has_lost_rows {
                self.counts.with_lost_rows += 1;
            } else {
                self.look_at_media(true);
                self.look_at_all_subsets();
            }
            self.kill(id, "it has closed the array");
            self.phase = Phase::Over;
            return;
        }
        if self.serving == Some(id) {
            if !self.is_excused(id) {
                self.fail(format!("the array has closed by itself: {failure:?}"));
            }
            self.kill(id, "the array failed");
            return;
        }
        let left = engine.has_lost_one();
        let is_here = |(member, host): (usize, &Host)| host.is_impaired || engine.found(member);
        let all_are_here = self.hosts.iter().enumerate().all(is_here);
        self.kill(id, &format!("the array cannot be opened: {failure:?}"));
        let too_few = self.hosts.iter().filter(|host| host.is_impaired).count()
            > usize::try_from(self.plan.geometry.tolerance()).unwrap_or(0);
        self.count_failed_opening(id, !left && all_are_here && !too_few);
    }

    fn complete(
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
        let checked = match (pending, &result) {
            (Pending::Read { first, submitted, .. }, Ok(data)) => {
                self.oracle.end_read(id, submitted, first, data)
            }
            (Pending::Write(write), result) => self.oracle.end_write(write, result.is_ok()),
            (Pending::Flush(submitted), Ok(_)) => {
                self.oracle.end_flush(submitted);
                Ok(())
            }
            (Pending::Read { .. } | Pending::Flush(_), Err(_)) => Ok(()),
        };
        if let Err(Wrong(text)) = checked {
            return self.fail(text);
        }
        match result {
            Ok(_) => self.counts.requests += 1,
            Err(error) => {
                self.counts.errors += 1;
                self.has_lost_rows |= self.plan.mode == Mode::Beyond && self.phase != Phase::Lives;
                let is_superseded = self.serving != Some(id);
                if !self.is_excused(id) && !is_superseded {
                    self.fail(format!("request {} failed: {error}", request.0));
                }
            }
        }
    }

    /// Keeps as many requests in flight as the plan wants, and moves on when there is nothing more to do.
    fn look_after_users(&mut self) {
        let Some(id) = self.serving else { return };
        let Some(at) = self.engines.iter().position(|engine| engine.id == id) else { return };
        let outstanding = self.engines[at].outstanding();
        let in_flight = self.in_flight(id);
        if in_flight > 0 && outstanding == 0 {
            let machine = self.engines[at].machine().map(Machine::describe).unwrap_or_default();
            self.note(|| format!("it is {machine}"));
            return self.fail(format!("the machine waits for nothing; {in_flight} requests do"));
        }
        let mut submitted = 0;
        while self.in_flight(id) < self.depth {
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
                let wanted = self.workload.draw();
                self.submit(at, wanted, false);
            }
            if self.violation.is_some() || self.serving != Some(id) {
                return;
            }
        }
        if self.in_flight(id) > 0 || self.sweep.is_some() {
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
        if !core::mem::replace(&mut self.was_asked_to_idle, true) {
            self.with(at, |engine, context| engine.handle_wish(context, false));
        }
        if self.engines[at].outstanding() > 0 || !self.notices.is_empty() {
            return false;
        }
        let id = self.engines[at].id;
        let is_calm = self.harms.is_empty() && self.hosts.iter().all(|host| host.trouble.is_none());
        if !self.is_excused(id) && is_calm && self.sessions_are_ready(at) {
            self.look_at_media(false);
        }
        true
    }

    fn try_to_close(&mut self, at: usize) {
        if self.engines[at].outstanding() > 0 {
            return;
        }
        if (0..self.hosts.len()).all(|member| self.engines[at].is_in_sync(member)) {
            self.phase = Phase::Closing;
            self.note(|| "the array is to close".into());
            self.with(at, |engine, context| engine.handle_wish(context, true));
        }
    }

    fn sessions_are_ready(&self, at: usize) -> bool {
        let engine = &self.engines[at];
        (0..self.hosts.len()).all(|member| engine.has(member) == engine.sessions[member].is_ready())
    }

    /// What the serving engine says of the members.
    pub(super) fn serving_label(&self) -> Option<Label> {
        let engine = self.engines.iter().find(|engine| Some(engine.id) == self.serving)?;
        engine.machine().map(Machine::label)
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
                Pending::Write(write)
            }
            Op::WriteZeroes | Op::Discard => {
                let change = if op == Op::Discard { Change::Discard } else { Change::Zeroes };
                Pending::Write(self.oracle.begin_write(engine, change, sectors.clone(), fua))
            }
        };
        self.note(|| {
            let what = match &pending {
                Pending::Write(write) => format!(" w{}", write.0),
                Pending::Read { .. } | Pending::Flush(_) => String::new(),
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

    /// The newest checkpoint on a member's medium.
    fn checkpoint_on(&self, disk: &Disk) -> Option<u64> {
        let block = u64::from(self.fittings.block_len);
        let read = |slot: usize| {
            let first = CHECKPOINT_OFFSETS[slot] / block;
            let data = disk.read(first..first + u64::from(PAGE_LEN) / block).ok()?.to_contiguous();
            let found = Checkpoint::decode(&data, self.fittings.array_uuid, slot).ok()?;
            Some(found.counter)
        };
        read(0).max(read(1))
    }

    /// Whether a member with these contents would be taken for an older image of itself, whatever
    /// happens to the engine: it is behind by more than a label or a checkpoint that may have been
    /// under way.
    pub(super) fn is_told_by_its_age(&self, disk: &Disk) -> bool {
        let others = || self.hosts.iter().map(|host| host.target.disk());
        let epoch = |disk: &Disk| self.label_on(disk).map(|(_, epoch)| epoch);
        let (newest, own) = (others().filter_map(epoch).max(), epoch(disk));
        let is_behind = |newest: Option<u64>, own: Option<u64>| {
            own.is_none_or(|own| newest.is_some_and(|newest| own + 1 < newest))
        };
        let checkpoints = others().filter_map(|disk| self.checkpoint_on(disk)).max();
        is_behind(newest, own) || is_behind(checkpoints, self.checkpoint_on(disk))
    }

    /// The newest label on a member's medium.
    fn label_on(&self, disk: &Disk) -> Option<(u64, u64)> {
        let block = u64::from(self.fittings.block_len);
        let read = |copy: usize| {
            let first = LABEL_OFFSETS[copy] / block;
            let data = disk.read(first..first + LABEL_LEN as u64 / block).ok()?;
            let label = Label::decode(&data.to_contiguous(), copy).ok()?;
            let is_ours = label.array_uuid == self.fittings.array_uuid;
            is_ours.then_some((label.generation, label.epoch))
        };
        read(0).max(read(1))
    }
}

/// Where an engine writes just before it dies, in so many member requests of a recovery or soon
/// after it is due to; half of all die anywhere.
fn near(plan: &Plan, dice: &mut Dice, recovery: Option<u64>) -> Option<Near> {
    let regions = &plan.regions;
    let places = [
        regions.labels.offset..CHECKPOINT_OFFSETS[0],
        CHECKPOINT_OFFSETS[0]..regions.labels.end(),
        regions.log.offset..regions.log.end(),
        regions.data.offset..regions.data.end(),
        regions.data.offset..regions.data.end(),
        // A recovery does not write these.
        regions.map.offset..regions.map.end(),
        regions.sums.offset..regions.sums.end(),
    ];
    let count = if recovery.is_some() { 5 } else { places.len() };
    let region = places[dice.index(count)].clone();
    let (more, within) = (dice.below(6), recovery.unwrap_or(100));
    dice.one_in(2).then_some(Near { region, more, within })
}
