//! The world: users, an administrator, and what befalls hosts, connections and engines, one event after another.
//!
//! Invariant: a run is a function of its plan. Whatever is wrong ends it at once, with the moment in its trace. Never more
//! members are lost at once than the level survives, unless the plan says so; then errors are excused, and wrong bytes
//! are not.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use netraid_block::{Buf, Pool};
use netraid_raid::{
    label::{Label, Uuid},
    logged::RuleCounts,
    volume::{Logged, Plain},
};

mod administrator;
mod beside;
mod ending;
mod faults;
mod initiators;
mod lives;
mod members;
mod users;

use super::{
    cases::{Case, Cases},
    counts::Counts,
    engine::{Context, Engine, Notice, User},
    guests::Guests,
    interface::{EngineId as Seat, HostId, LineId, Step},
    net::Net,
    plan::Plan,
};
use crate::{
    agenda::Ticket,
    array::{
        content::SECTOR_LEN,
        machine::Machine,
        oracle::{EngineId, Moment, Oracle},
        trace::{Keep, Lines},
        workload::Workload,
    },
    dice::Dice,
    time::Time,
};
use faults::Trouble;
use initiators::Outsider;
use users::Pending;

/// Most events of a run: one that needs more goes in circles.
const EVENTS_MAX: u64 = 3_000_000;
/// Machines on which engines run.
const MACHINES: usize = 2;
/// What an array says of a member whose cache may be lost.
const CACHE_DOUBT: &str = "not flushed may be lost";
/// The array.
const ARRAY: Uuid = [0xaa; 16];

/// What is to happen.
#[derive(Debug)]
pub(super) enum Happening {
    /// An engine looks at its members, or goes on with a scrub.
    Timer(EngineId),
    /// An engine starts on a machine, if it is free and the array is not open.
    Start(usize),
    /// Something befalls a member.
    Fault,
    /// The same while an engine opens the array.
    FaultInOpening(EngineId),
    /// A host's trouble ends.
    Mend(usize, u64),
    /// A host that is back goes away again.
    Bounce(usize),
    /// A device that was held behind an engine that died serves again.
    Release(usize),
    /// Connections are cut to a host at which requests take long.
    CutBeside(usize),
    /// A member's place is to be taken by the spare while requests take long at its disk.
    ReplaceBeside(usize),
    /// A member that has replaced another one leaves, and that one is offered in its place.
    Offer(usize),
    /// Another machine takes the array over while a member is away.
    PushAside,
    /// A user reads of an engine that was pushed aside.
    ReadStale(EngineId),
    /// Something becomes of an engine.
    Fall(EngineId),
    /// An opening is crashed.
    CrashOpening(EngineId),
    /// An engine that was fenced out, or is closing, is no more.
    Kill(EngineId),
    /// Users go on.
    Think,
    /// The administrator looks after the array.
    Tick,
    /// Nothing befalls it any more.
    End,
    /// Whoever does not come to rest by now never will.
    Late,
}

/// What a run saw.
#[derive(Debug, Clone, Default)]
pub struct Sights {
    /// Above the lines.
    pub cases: Cases,
    /// Beneath them.
    pub counts: Counts,
    /// How often each rule of the machine held something back.
    pub rules: RuleCounts,
    /// Events of the simulation.
    pub events: u64,
    /// Runs whose members of an array without a log were opened with parity as it was.
    pub trusted: u64,
    /// Runs in which more befell the array than it survives.
    pub excused: u64,
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// What was wrong, if anything was.
    pub violation: Option<String>,
    /// What it saw.
    pub sights: Sights,
    /// Everything that happened, as a number.
    pub hash: u64,
}

/// What the run is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Engines come and go.
    Lives,
    /// Nothing befalls the array any more; all members come back, and everything is read.
    Healing,
    /// The array closes.
    Closing,
    /// It is opened once more, read, scrubbed and closed.
    Again,
    Over,
}

/// A machine with one disk.
#[derive(Debug)]
struct Host {
    id: HostId,
    trouble: Option<(Trouble, u64)>,
    /// It counts against what the level survives, until the engine that serves has it in sync, and had to notice.
    is_impaired: bool,
    /// No engine before this one can tell whether it is whole.
    unnoticed_by: Option<EngineId>,
    lost_power: bool,
    /// Its cache may be lost, which the engine that serves does not know yet.
    must_be_noticed: bool,
    /// It does not come back as the member that it was.
    is_stranger: bool,
    /// It took a member's place as a spare, and not all others were there since.
    is_newcomer: bool,
    /// Nothing light befalls it before.
    calm_at: Time,
}

/// A run.
pub struct World {
    plan: Plan,
    net: Net<User, Happening>,
    hosts: Vec<Host>,
    host_ids: Vec<HostId>,
    /// Which host has each member's place, and which one is free.
    places: Vec<usize>,
    spare: usize,
    seats: [Seat; MACHINES],
    /// A machine on which no engine runs.
    outside: Seat,
    outsiders: BTreeMap<LineId, Outsider>,
    boots: [u8; MACHINES],
    engines: Vec<Engine>,
    timers: BTreeMap<EngineId, (Time, Ticket)>,
    last_engine: u32,
    last_machine: usize,
    /// Sessions a member of the last engine.
    last_sessions: u8,
    serving: Option<EngineId>,
    /// Engines whose failures mean nothing: others have pushed them aside, or try to.
    superseded: BTreeSet<EngineId>,
    /// An engine that was told to close, and the first request that came later.
    told_to_close: Option<(EngineId, u64)>,
    openings: u32,
    refusals: u32,
    /// The next engine opens by an administrator's word.
    forces_next: bool,
    /// Nobody has closed the array since it was opened.
    oracle_is_open: bool,
    /// Parity of an array without a log does not match since a crash, for all that is known.
    is_unsynced: bool,
    /// Requests before this one were submitted before parity was resynced.
    unsynced_upto: u64,
    /// An engine whose process stands still, and until when.
    standing: Option<(EngineId, Time)>,
    /// No engine stands still again before this moment.
    awake_until: Time,
    /// Engines up to this one met more than the level survives.
    excused_upto: u32,
    oracle: Oracle,
    workload: Workload,
    requests: BTreeMap<(EngineId, u64), Pending>,
    next_request: u64,
    left_in_burst: u64,
    is_thinking: bool,
    /// A fault waits until users are busy.
    fault_waits: bool,
    /// Where reading everything goes on.
    sweep: Option<u64>,
    has_swept: bool,
    has_scrubbed: bool,
    is_scrubbing: bool,
    next_trouble: u64,
    /// A member was set aside at this moment that nothing befell, and why was not told yet.
    unexplained: Option<usize>,
    /// All dials are answered.
    is_calm: bool,
    /// Looks of the administrator since a member is away.
    ticks_away: Vec<u32>,
    replacing: Option<(usize, usize)>,
    phase: Phase,
    notices: VecDeque<(EngineId, Notice)>,
    pool: Pool,
    dice: Dice,
    fault_dice: Dice,
    standstill_dice: Dice,
    sights: Sights,
    violation: Option<String>,
    guests: Guests,
}

impl World {
    /// A new array, and nobody has it open.
    #[must_use]
    pub fn new(plan: Plan, keep: Keep) -> Self {
        let seed = plan.seed;
        let geometry = plan.geometry;
        let mut net = Net::new(seed, plan.manners.clone(), keep);
        let members = usize::from(geometry.members());
        let seats = [(); MACHINES].map(|()| net.add_engine());
        let outside = net.add_engine();
        let mut hosts = Vec::new();
        for at in 0..=members {
            let id = net.add_host(plan.host(at));
            hosts.push(Host {
                id,
                trouble: None,
                is_impaired: false,
                unnoticed_by: None,
                lost_power: false,
                must_be_noticed: false,
                is_stranger: false,
                is_newcomer: false,
                calm_at: Time::START,
            });
        }
        format(&plan, &mut net, &hosts);
        let sectors = geometry.capacity() / SECTOR_LEN as u64;
        let stripe = geometry.stripe_data_len() / SECTOR_LEN as u64;
        let unit = u64::from(geometry.block_len()) / SECTOR_LEN as u64;
        net.put_in(Duration::ZERO, Happening::Start(0));
        net.put_in(Duration::from_secs(2), Happening::Tick);
        net.put_in(plan.length, Happening::End);
        let mut world = Self {
            host_ids: hosts.iter().map(|host| host.id).collect(),
            hosts,
            places: (0..members).collect(),
            spare: members,
            seats,
            outside,
            outsiders: BTreeMap::new(),
            boots: [1; MACHINES],
            engines: Vec::new(),
            timers: BTreeMap::new(),
            last_engine: 0,
            last_machine: 0,
            last_sessions: 0,
            serving: None,
            superseded: BTreeSet::new(),
            told_to_close: None,
            openings: 0,
            refusals: 0,
            forces_next: false,
            oracle_is_open: false,
            is_unsynced: false,
            unsynced_upto: 0,
            standing: None,
            awake_until: Time::START,
            excused_upto: 0,
            oracle: match plan.has_log {
                true => Oracle::new(sectors),
                false => Oracle::of_stripes(sectors, stripe),
            },
            workload: Workload::new(seed, sectors, stripe, unit),
            requests: BTreeMap::new(),
            next_request: 0,
            left_in_burst: plan.burst,
            is_thinking: false,
            fault_waits: false,
            sweep: None,
            has_swept: false,
            has_scrubbed: false,
            is_scrubbing: false,
            next_trouble: 0,
            unexplained: None,
            is_calm: false,
            ticks_away: vec![0; members],
            replacing: None,
            phase: Phase::Lives,
            notices: VecDeque::new(),
            pool: Pool::new(),
            dice: seed.dice("way's world"),
            fault_dice: seed.dice("way's faults"),
            standstill_dice: seed.dice("way's standstills"),
            sights: Sights::default(),
            violation: None,
            guests: Guests::new(seed, keep),
            net,
            plan,
        };
        world.plan_fault();
        world
    }

    /// The lines of its trace as they are kept, also when something panics.
    #[must_use]
    pub fn lines(&mut self) -> Lines {
        self.net.trace().lines()
    }

    /// The same of the guests, who come after it.
    #[must_use]
    pub fn guests_lines(&mut self) -> Lines {
        self.guests.lines()
    }

    /// Runs it to its end.
    #[must_use]
    pub fn run(mut self) -> Outcome {
        while self.phase != Phase::Over && self.violation.is_none() {
            self.step();
        }
        self.sights.counts = self.net.counts();
        self.sights.excused = u64::from(self.excused_upto > 0);
        let mut hash = self.net.trace().hash();
        let Self { mut violation, mut sights, guests, .. } = self;
        if violation.is_none() {
            let ended = guests.run();
            violation = ended.violation.map(|wrong| format!("guests: {wrong}"));
            sights.cases.add_all(&ended.cases);
            sights.counts += ended.counts;
            hash = hash.rotate_left(1) ^ ended.hash;
        }
        Outcome { violation, sights, hash }
    }

    fn step(&mut self) {
        self.sights.events += 1;
        if self.sights.events > EVENTS_MAX {
            return self.fail(format!("more than {EVENTS_MAX} events: it goes in circles"));
        }
        match self.net.step() {
            Step::Nothing => return self.fail("nothing will ever happen again".into()),
            Step::Beneath => {}
            Step::Own(happening) => self.happen(happening),
        }
        if let Some(broken) = self.net.take_violation() {
            return self.fail(broken);
        }
        while let Some((line, news)) = self.net.poll() {
            if let Some(at) = self.engines.iter().position(|engine| engine.owns(line)) {
                self.with(at, |engine, context| engine.handle_news(context, line, news));
            } else {
                self.hear_outsider(line, &news);
            }
        }
        self.settle();
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Timer(id) => {
                self.timers.remove(&id);
                if let Some(until) = self.stands_still(id) {
                    return self.set_timer(id, Some(until));
                }
                if let Some(at) = self.position(id) {
                    self.with(at, |engine, context| engine.handle_timeout(context));
                }
            }
            Happening::Start(machine) => self.start(machine, false),
            Happening::Fault => self.befall(),
            Happening::FaultInOpening(id) => self.befall_opening(id),
            Happening::Mend(host, number) => self.mend(host, number),
            Happening::Bounce(host) => self.bounce(host),
            Happening::Release(host) => self.release(host),
            Happening::CutBeside(host) => self.cut_beside(host),
            Happening::ReplaceBeside(host) => self.replace_beside(host),
            Happening::Offer(member) => self.offer(member),
            Happening::PushAside => self.push_aside_degraded(),
            Happening::ReadStale(id) => self.read_stale(id),
            Happening::Fall(id) => self.fall(id),
            Happening::CrashOpening(id) => self.crash_opening(id),
            Happening::Kill(id) => {
                if self.position(id).is_some() {
                    if self.told_to_close.is_some_and(|(stopped, _)| stopped == id) {
                        self.count(Case::CrashClosing);
                    }
                    self.kill(id, false, "it is killed");
                }
            }
            Happening::Think => self.end_thinking(),
            Happening::Tick => self.tick(),
            Happening::End => self.begin_healing(),
            Happening::Late => self.fail_late(),
        }
    }

    /// Hears what engines left, and looks after the users, until nothing is left.
    fn settle(&mut self) {
        loop {
            while let Some((id, notice)) = self.notices.pop_front() {
                if self.violation.is_none() && self.position(id).is_some() {
                    self.hear(id, notice);
                }
            }
            if self.violation.is_some() || self.phase == Phase::Over {
                return;
            }
            self.look_after_users();
            if self.notices.is_empty() {
                return;
            }
        }
    }

    /// Lets an engine do something.
    fn with<T>(&mut self, at: usize, act: impl FnOnce(&mut Engine, &mut Context<'_>) -> T) -> T {
        let mut context = Context {
            net: &mut self.net,
            hosts: &self.host_ids,
            cases: &mut self.sights.cases,
            notices: &mut self.notices,
        };
        let engine = &mut self.engines[at];
        let end = act(engine, &mut context);
        let (id, next) = (engine.id, engine.next_timeout());
        self.set_timer(id, next);
        end
    }

    fn set_timer(&mut self, id: EngineId, next: Option<Time>) {
        if self.timers.get(&id).map(|(time, _)| *time) == next {
            return;
        }
        if let Some((_, ticket)) = self.timers.remove(&id) {
            self.net.cancel(ticket);
        }
        if let Some(next) = next {
            let wait = next.since(self.net.now());
            let ticket = self.net.put_in(wait, Happening::Timer(id));
            self.timers.insert(id, (next, ticket));
        }
    }

    /// Until when an engine's process stands still, if it does.
    fn stands_still(&self, id: EngineId) -> Option<Time> {
        let now = self.net.now();
        let standing = self.standing.filter(|(engine, until)| *engine == id && *until > now);
        standing.map(|(_, until)| until)
    }

    /// The engine that serves does nothing now.
    fn serving_stands_still(&self) -> bool {
        self.serving.is_some_and(|id| self.stands_still(id).is_some())
    }

    fn position(&self, id: EngineId) -> Option<usize> {
        self.engines.iter().position(|engine| engine.id == id)
    }

    fn engine(&self, id: EngineId) -> Option<&Engine> {
        self.engines.iter().find(|engine| engine.id == id)
    }

    fn serving_engine(&self) -> Option<&Engine> {
        self.serving.and_then(|id| self.engine(id))
    }

    /// What the engine that serves says of the members.
    fn serving_label(&self) -> Option<Label> {
        let serving = self.serving_engine()?.serving()?;
        Some(serving.volume.machine().label())
    }

    fn count(&mut self, case: Case) {
        self.sights.cases.add(case);
    }

    /// Something is wrong.
    fn fail(&mut self, what: String) {
        self.note(|| format!("WRONG: {what}"));
        self.violation.get_or_insert(what);
    }

    /// A line of the trace.
    fn note(&mut self, line: impl FnOnce() -> String) {
        let now = self.net.now();
        self.net.trace().note(now, line);
    }

    fn is_excused(&self, id: EngineId) -> bool {
        id.0 <= self.excused_upto || self.superseded.contains(&id)
    }

    /// The same for an array that fails with these words. An examination that breaks off may have been told of a lost
    /// cache; it counts as lost, for all that is known, and may be one too many.
    fn is_excused_for(&mut self, id: EngineId, failure: &str) -> bool {
        if failure.contains(CACHE_DOUBT) && !self.is_excused(id) {
            self.count(Case::DoubtedTooMany);
            self.excuse();
        }
        self.is_excused(id)
    }

    /// More befalls the array in the time of the engines that there are than it survives.
    const fn excuse(&mut self) {
        self.excused_upto = self.last_engine;
    }

    /// How many members the level can do without.
    fn tolerance(&self) -> usize {
        netraid_block::narrow(self.plan.geometry.tolerance())
    }
}

/// Writes a new array on its members.
fn format(plan: &Plan, net: &mut Net<User, Happening>, hosts: &[Host]) {
    let geometry = plan.geometry;
    let uuids: Vec<Uuid> = (0..geometry.members()).map(|at| [at + 1; 16]).collect();
    let layout = (plan.regions, geometry);
    let (tables, seed) = (&plan.tables, plan.seed);
    let mut images = match plan.has_log {
        true => <Logged as Machine>::format(tables.format, layout, ARRAY, &uuids, seed.0),
        false => <Plain as Machine>::format(tables.format, layout, ARRAY, &uuids, seed.0),
    };
    if plan.has_log {
        tables.put_into(seed, ARRAY, &mut images);
    }
    for (host, images) in hosts.iter().zip(images) {
        for (offset, bytes) in images {
            let first = offset / u64::from(geometry.block_len());
            net.disk_mut(host.id).write(first, &Buf::copy_from(&bytes).into(), true);
        }
    }
}

/// A moment that a read or a flush began.
type Began = Moment;
