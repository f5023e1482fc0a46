//! The world: one event after another, and what it makes of what engines say.
//!
//! Invariant: a run is a function of its plan. Whatever is wrong ends it at once, with the moment
//! in its trace.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use netraid_block::Pool;
use netraid_raid::{
    label::Label,
    logged::{MemberCaps, RuleCounts},
};

mod lives;
mod users;

use super::{
    content::{SECTOR_LEN, WriteId},
    engine::{Context, Engine, Fittings, Notice},
    faults::{Harm, Trouble},
    machine::Machine,
    oracle::{EngineId, Moment, Oracle},
    orders::Stop,
    plan::{Fault, Mode, Plan},
    session::{Message, Surroundings},
    space::SpaceOfMembers,
    trace::{Keep, Lines, Trace},
    workload::Workload,
};
use crate::{
    agenda::Agenda,
    dice::Dice,
    disk::{DiskShape, Image},
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
/// Longest that users wait for the machine to bring everything home.
const REST_MAX: Duration = Duration::from_secs(10);

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
    /// Reads among them that were answered from what was read ahead.
    pub ahead: u64,
    /// Requests that ended with an error.
    pub errors: u64,
    /// Those of them that said that there is no space, when there was none.
    pub refused: u64,
    /// Discards among these.
    pub refused_discards: u64,
    /// Writes of several ranges that were acknowledged.
    pub atomic_writes: u64,
    /// Member requests.
    pub actions: u64,
    /// Commands that changed a medium when their session was gone.
    pub late: u64,
    /// Members that lost their power while nothing of them was under way.
    pub restarts: u64,
    /// Pauses that began.
    pub pauses: u64,
    /// Moments at which all members were away at once.
    pub all_away: u64,
    /// Pauses after which the array went on.
    pub resumed: u64,
    /// Those of them by which acknowledged bytes were lost.
    pub resumed_with_losses: u64,
    /// Engines that were told to close before the run's end.
    pub stops: u64,
    /// Other orders of an administrator.
    pub orders: u64,
    /// Openings that took parity as it was.
    pub trusted: u64,
    /// Openings after which the array was left alone until all members were back.
    pub healed: u64,
    /// Whole looks at the media.
    pub rests: u64,
    /// Whole reads through some of the members.
    pub subsets: u64,
    /// Runs beyond the budget whose array could not be opened any more.
    pub given_up: u64,
    /// Arrays that failed since more members than they can do without had no space for what is to be brought home.
    pub full: u64,
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
    /// All members go away at once.
    AllAway,
    /// A pause of an engine, of which so many had begun before, should have ended.
    PauseIsLate(EngineId, u64),
    /// A trouble ends.
    Mend(usize, Trouble),
    /// A bad block of a member is as it was.
    Recover(usize, u64),
    /// An engine is killed.
    Kill(EngineId),
    /// A cut between an engine's host and a member's heals.
    Heal(HostId, usize),
    /// Members have space again.
    SpaceIsBack,
    /// Whoever serves looks for space, as it does now and then.
    LookForSpace,
    /// Users go on.
    Think,
    /// The administrator orders something.
    Order,
    /// An engine is told to close.
    Stop(EngineId),
    /// An engine that was told to close should have done so.
    StopIsLate(EngineId),
    /// Members that were waited for should be back.
    HealingIsLate(EngineId),
    /// Whoever does not come to rest by now never will.
    Late,
}

/// A request that a user made.
#[derive(Debug)]
enum Pending {
    Read {
        first: u64,
        submitted: Moment,
        is_sweep: bool,
    },
    Write {
        id: WriteId,
        needs_space: bool,
        was_short: bool,
    },
    /// Ranges that are written at once.
    Atomic {
        ids: Vec<WriteId>,
        was_short: bool,
    },
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
    /// Who has lost it since it was last in trouble, and who was the newest engine then.
    pub(super) noticed_by: Vec<EngineId>,
    pub(super) engine_then: u32,
    pub(super) losses: u64,
    /// How often they had when the array was asked to close.
    losses_before_close: u64,
    pub(super) mended_at: Time,
    pub(super) lost_power: bool,
    /// It is an older image of itself, or empty, and not whole again as far as is known.
    pub(super) is_older: bool,
    pub(super) photograph: Option<Image>,
}

impl Host {
    /// Whether an engine knows that the member was in trouble: it was lost, or is younger.
    pub(super) fn was_noticed_by(&self, engine: EngineId) -> bool {
        engine.0 > self.engine_then || self.noticed_by.contains(&engine)
    }

    /// Whether the engine has lost it since it was asked to close.
    pub(super) const fn was_lost_in_close(&self) -> bool {
        self.losses > self.losses_before_close
    }
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
    /// The last engine has closed the array, and nobody has opened it since.
    pub(super) is_closed: bool,
    /// The array was not closed before it was opened, and no resync has ended since.
    is_unsynced: bool,
    /// Requests below this number were submitted before parity matched again: an error that a part of one met by then is
    /// reported when all of it has ended.
    unsynced_upto: u64,
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
    /// Users wait no longer for that: what befalls members may keep the machine busy for ever.
    rests_until: Time,
    /// The engine's looks at the members when it was left alone.
    pub(super) left_alone_at: Option<u64>,
    pub(super) harms: Vec<Harm>,
    /// A member is to restart when nothing of it is under way.
    pub(super) is_to_restart: bool,
    /// Whose members are waited for, with nothing else.
    pub(super) healing: Option<EngineId>,
    /// Who was told to close.
    pub(super) stopping: Option<Stop>,
    pub(super) space: SpaceOfMembers,
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
    pub(super) order_dice: Dice,
    pub(super) pause_dice: Dice,
    /// All members were away, and may be so until then at the latest.
    pub(super) away_until: Time,
    /// Until then a member may be left out that was dark with all others, although it is back.
    pub(super) left_out_until: Time,
    /// A pause has ended.
    pub(super) resumed_at: Time,
    /// Bytes of the volume that whoever serves has said are lost.
    pub(super) lost: Vec<core::ops::Range<u64>>,
    /// A flush has told users so.
    pub(super) is_told_of_losses: bool,
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
        let mut images = M::format(plan.tables.format, layout, array_uuid, &uuids, seed.0);
        if plan.has_log {
            plan.tables.put_into(seed, array_uuid, &mut images);
        }
        let mut hosts = Vec::with_capacity(members);
        for (at, images) in images.into_iter().enumerate() {
            let mut disk = plan.new_disk(DiskShape {
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
                noticed_by: Vec::new(),
                engine_then: 0,
                losses: 0,
                losses_before_close: 0,
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
            transfer_len: plan.transfer_len(),
            limits: plan.limits,
            pool: Pool::new(),
            read_ahead: plan.read_ahead,
            read_window: plan.read_window(),
            pause: if M::PAUSES { plan.pause } else { Duration::ZERO },
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
            oracle: match M::HAS_LOG {
                true => Oracle::new(sectors),
                false => Oracle::of_stripes(sectors, stripe),
            },
            is_closed: true,
            is_unsynced: false,
            unsynced_upto: 0,
            workload: Workload::new(seed, sectors, stripe, unit)
                .with_atomic_writes(!seed.dice("binder").one_in(3))
                .with_reader(plan.read_ahead.is_some()),
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
            rests_until: Time::START,
            left_alone_at: None,
            harms: Vec::new(),
            is_to_restart: false,
            healing: None,
            stopping: None,
            space: SpaceOfMembers::default(),
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
            order_dice: seed.dice("orders"),
            pause_dice: seed.dice("pauses of the array"),
            away_until: Time::START,
            left_out_until: Time::START,
            resumed_at: Time::START,
            lost: Vec::new(),
            is_told_of_losses: true,
            counts: Counts::default(),
            violation: None,
            plan,
        };
        if !world.plan.faults.is_empty() {
            world.plan_fault();
        }
        if world.plan.moods.has_orders {
            world.plan_order();
        }
        if !world.fittings.pause.is_zero() {
            world.plan_all_away();
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
    pub(super) fn with(&mut self, at: usize, act: impl FnOnce(&mut Engine<M>, &mut Context<'_>)) {
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
            Happening::AllAway => self.befall_all(),
            Happening::PauseIsLate(id, number) => self.end_pause_late(id, number),
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
            Happening::SpaceIsBack => self.give_space(),
            Happening::LookForSpace => self.look_for_space(),
            Happening::Think => self.is_thinking = false,
            Happening::Order => self.order(),
            Happening::Stop(id) => self.stop(id),
            Happening::StopIsLate(id) => self.end_stop_late(id),
            Happening::HealingIsLate(id) => self.end_healing(id),
            Happening::Late => self.fail_with_states("it does not come to rest"),
        }
    }

    /// Something is wrong, whose reason the members' states may tell.
    pub(super) fn fail_with_states(&mut self, what: &str) {
        let states = self
            .serving_label()
            .map(|label| label.members.iter().map(|entry| entry.state.name()).collect::<Vec<_>>());
        self.fail(format!("{what}; members are {states:?}"));
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
                let is_idle = |engine: &Engine<M>| engine.outstanding() == 0 && !engine.is_paused();
                if self.phase == Phase::Closing && self.engines.iter().all(is_idle) {
                    self.fail("the machine waits for nothing while it closes".into());
                }
                return self.restart_if_idle();
            }
        }
    }

    /// More befalls the array in the time of the engines that there are than it survives.
    pub(super) const fn excuse(&mut self) {
        self.excused_upto = self.last_engine;
    }

    pub(super) fn is_excused(&self, id: EngineId) -> bool {
        self.plan.mode == Mode::Beyond || self.is_overwhelmed(id)
    }

    /// Whether more befell the array in this engine's time than it survives.
    pub(super) const fn is_overwhelmed(&self, id: EngineId) -> bool {
        id.0 <= self.excused_upto
    }

    /// Whether no engine has started after this one.
    pub(super) const fn is_newest(&self, id: EngineId) -> bool {
        id.0 == self.last_engine
    }

    /// Whether nothing befalls the array until it is open.
    pub(super) const fn has_rest(&self) -> bool {
        self.failed_openings > FAILED_OPENINGS_WILD
    }

    pub(super) fn is_ending(&self) -> bool {
        self.phase != Phase::Lives
    }

    pub(super) const fn next_request(&self) -> u64 {
        self.next_request
    }

    /// Takes note of how often members were lost before the array closes.
    pub(super) fn note_losses(&mut self) {
        self.hosts.iter_mut().for_each(|host| host.losses_before_close = host.losses);
    }

    pub(super) fn in_flight(&self, id: EngineId) -> u64 {
        self.requests.range((id, 0)..=(id, u64::MAX)).count() as u64
    }

    fn begin_ending(&mut self) {
        self.note(|| "nothing befalls the array any more".into());
        self.phase = Phase::Ending;
        self.sweeps_alone = true;
        self.is_resting = false;
        self.is_to_restart = false;
        self.limit_rebuilds(None);
        self.mend_everything();
        self.agenda.put_in(Duration::ZERO, Happening::SpaceIsBack);
        self.agenda.put_in(Duration::from_secs(60), Happening::Late);
    }

    /// What the serving engine says of the members.
    pub(super) fn serving_label(&self) -> Option<Label> {
        let engine = self.engines.iter().find(|engine| Some(engine.id) == self.serving)?;
        engine.machine().map(Machine::label)
    }
}
