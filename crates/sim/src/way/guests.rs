//! Sessions that tokens let in to an agent's segment, while grants lapse, plans end, the segment is fenced, and the network
//! and the agent's program break.
//!
//! A mediator's part is played here: it issues tokens, fences the segment, waits until nothing of the fenced sessions is
//! at the device, and then gives each guest bytes that were another's. So what a fenced session still did would be found in
//! another's data.
//!
//! Invariant: a guest that is answered well had the right to what it asked for when it asked; and it reads what it wrote.
//!
//! Not here: grants that only append or discard, copies, commands that change the unit for all, paces, and what a mediator
//! and an agent say to each other (see the cluster).

mod answers;
mod guest;
mod owner;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use netraid_block::narrow;
use netraid_control::{
    keys::{KEY_LEN, Keyring, Ring, RootKey, Rotation},
    units::{AgentId, Generation, MediatorId, Moment, SegmentId},
};
use netraid_node::segments::WATCH_INTERVAL;

use self::guest::{COMMANDS, Command, Visit};
use super::{
    Net,
    cases::Cases,
    counts::Counts,
    interface::{
        AgentConfig, DiskConfig, EngineId, HostConfig, HostId, LineId, Manners, SegmentOrder, Step,
    },
};
use crate::{
    array::trace::{Keep, Lines},
    dice::{Dice, Seed},
    disk::{DiskShape, Fill},
    time::Time,
};

const MEDIATOR: MediatorId = MediatorId([1; 16]);
const AGENT: AgentId = AgentId([2; 16]);
const SEGMENT: SegmentId = SegmentId([3; 16]);
/// The wall clock when a run begins.
const BEGINS: Moment = Moment(1_800_000_000_000);

const GUESTS: usize = 3;
const BLOCK_LEN: u32 = 512;
/// Blocks that one guest may be given at a time, from the first one on.
const SHARE: u64 = 16;
const BLOCKS: u64 = SHARE * GUESTS as u64;

/// The longest that requests of guests take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How long a run lasts, and then the longest until all is over.
const LENGTH: Duration = Duration::from_secs(5);
const REST_MAX: Duration = Duration::from_secs(60);
/// Bound of a run.
const EVENTS_MAX: u64 = 2_000_000;

/// What is to happen.
#[derive(Debug)]
enum Happening {
    /// A guest asks for a token.
    Begin(usize),
    /// A guest goes on.
    Next(LineId),
    /// A guest's time is nearly over: what it asks for may come before, and its data after.
    AskLast(LineId),
    /// A guest's time is over, and it has noticed.
    Leave(LineId),
    /// The agent looks whose time is over.
    Watch,
    /// Something befalls plans, segment, network or agent.
    Fault,
    /// The agent ends the sessions that were fenced with this generation.
    EndFenced(Generation),
    /// The program of the agent starts.
    Start,
    End,
    Late,
}

/// A run.
pub(super) struct Guests {
    net: Net<u64, Happening>,
    host: HostId,
    engines: [EngineId; GUESTS],
    roots: Ring<RootKey>,
    visits: BTreeMap<LineId, Visit>,
    generation: Generation,
    /// The segment is fenced, and perhaps something of fenced sessions is at the device.
    is_draining: bool,
    /// The order to end what the newest fence ends.
    fence: Option<u64>,
    /// The order to close the segment.
    closing: Option<u64>,
    /// Orders that have not ended.
    orders: BTreeSet<u64>,
    plans: u64,
    /// What is in the blocks, where that is known.
    contents: Vec<Option<u64>>,
    /// A write that was not answered may still land in these, until the segment was fenced and has drained.
    is_doubtful: Vec<bool>,
    numbers: u64,
    cases: Cases,
    dice: Dice,
    is_ending: bool,
    violation: Option<String>,
}

/// How a run ended.
pub(super) struct Ended {
    /// What was wrong, if anything was.
    pub(super) violation: Option<String>,
    /// What happened to guests.
    pub(super) cases: Cases,
    /// What happened beneath them.
    pub(super) counts: Counts,
    /// Everything that happened, as a number.
    pub(super) hash: u64,
}

impl Guests {
    pub(super) fn new(seed: Seed, keep: Keep) -> Self {
        let mut dice = seed.dice("guests");
        let micro = Duration::from_micros(1);
        let manners = Manners {
            latency: 20 * micro..=narrow::<u64, u32>(50 + dice.below(1500)) * micro,
            break_one_in: [3, 8, 40][dice.index(3)],
            ..Manners::default()
        };
        let mut net = Net::new(Seed(dice.below(u64::MAX)), manners, keep);
        let (roots, keys) = keys(&mut dice);
        let host = net.add_host(host(keys, &mut dice));
        let engines = [(); GUESTS].map(|()| net.add_engine());
        for guest in 0..GUESTS {
            net.put_in(Duration::ZERO, Happening::Begin(guest));
        }
        net.put_in(WATCH_INTERVAL, Happening::Watch);
        net.put_in(LENGTH, Happening::End);
        let mut guests = Self {
            net,
            host,
            engines,
            roots,
            visits: BTreeMap::new(),
            generation: Generation(1),
            is_draining: false,
            fence: None,
            closing: None,
            orders: BTreeSet::new(),
            plans: 0,
            contents: vec![None; narrow(BLOCKS)],
            is_doubtful: vec![false; narrow(BLOCKS)],
            numbers: 0,
            cases: Cases::default(),
            dice,
            is_ending: false,
            violation: None,
        };
        guests.plan_fault();
        guests
    }

    /// The lines of its trace as they are kept, also when something panics.
    pub(super) fn lines(&mut self) -> Lines {
        self.net.trace().lines()
    }

    /// Runs it to its end.
    pub(super) fn run(mut self) -> Ended {
        let mut events = 0;
        while self.violation.is_none() && !self.is_over() {
            events += 1;
            if events > EVENTS_MAX {
                self.fail(format!("more than {EVENTS_MAX} events: it goes in circles"));
            }
            match self.net.step() {
                Step::Nothing => self.fail("nothing will ever happen again".into()),
                Step::Beneath => {}
                Step::Own(happening) => self.happen(happening),
            }
            while let Some((line, news)) = self.net.poll() {
                self.hear(line, news);
            }
            while let Some((number, how)) = self.net.poll_order(self.host) {
                self.hear_order(number, how);
            }
        }
        Ended {
            violation: self.violation,
            cases: self.cases,
            counts: self.net.counts(),
            hash: self.net.trace().hash(),
        }
    }

    fn is_over(&self) -> bool {
        self.is_ending && self.visits.is_empty() && !self.is_draining && self.orders.is_empty()
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Begin(guest) => self.begin(guest),
            Happening::Next(line) => {
                let command = self.dice.pick(&COMMANDS).copied();
                self.ask(line, command.unwrap_or(Command::Write));
            }
            Happening::AskLast(line) => {
                let is_write = self.dice.one_in(3);
                self.ask(line, if is_write { Command::Write } else { Command::Register });
            }
            Happening::Leave(line) => self.leave(line),
            Happening::Watch => {
                self.net.watch_segment(self.host);
                self.net.put_in(WATCH_INTERVAL, Happening::Watch);
            }
            Happening::Fault => self.befall(),
            Happening::EndFenced(generation) => {
                let number = self.order(SegmentOrder::Raise(generation));
                let visits = self.visits.values_mut();
                let fenced = visits.filter(|visit| visit.terms.generation < generation);
                fenced.for_each(|visit| visit.ended_by.push(number));
                if generation == self.generation {
                    self.fence = Some(number);
                }
            }
            Happening::Start => self.net.start(self.host),
            Happening::End => {
                self.is_ending = true;
                self.net.start(self.host);
                let lines: Vec<_> = self.visits.keys().copied().collect();
                lines.into_iter().for_each(|line| self.leave(line));
                self.net.put_in(REST_MAX, Happening::Late);
            }
            Happening::Late => {
                let text = format!(
                    "sessions do not end, or commands of theirs: {:?}, draining {}, orders {:?}",
                    self.visits, self.is_draining, self.orders
                );
                self.fail(text);
            }
        }
    }

    /// The wall clock.
    fn now(&self) -> Moment {
        self.moment(self.net.now())
    }

    fn moment(&self, at: Time) -> Moment {
        let clock = at.since(Time::START).as_millis();
        BEGINS.after_ms(u64::try_from(clock).unwrap_or(u64::MAX))
    }

    fn fail(&mut self, what: String) {
        self.note(|| format!("WRONG: {what}"));
        self.violation.get_or_insert(what);
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        let now = self.net.now();
        self.net.trace().note(now, line);
    }
}

/// A mediator's key, and what its agent has of it.
fn keys(dice: &mut Dice) -> (Ring<RootKey>, Keyring) {
    let (mut roots, mut keys) = (Ring::default(), Keyring::default());
    let bytes = [(); KEY_LEN].map(|()| narrow(dice.below(256)));
    let made = roots.rotate(BEGINS, &Rotation::default(), &bytes);
    assert!(made.is_ok(), "the first key of a ring: {made:?}");
    let set = keys.set(MEDIATOR, roots.of_agent(MEDIATOR, AGENT));
    assert!(set.is_ok(), "the first ring of a keyring: {set:?}");
    (roots, keys)
}

fn host(keys: Keyring, dice: &mut Dice) -> HostConfig {
    let (volatile_cache, fill) = (false, Fill::Zeroes);
    let shape = DiskShape { block_len: BLOCK_LEN, blocks: BLOCKS, volatile_cache, fill };
    let mut disk = DiskConfig::new(shape);
    disk.slow_one_in = [3, 20, 200][dice.index(3)];
    let mut config = HostConfig::new(disk);
    config.agent = Some(AgentConfig {
        mediator: MEDIATOR,
        agent: AGENT,
        segment: SEGMENT,
        keys,
        generation: Generation(1),
        begins: BEGINS,
        idle_limit: Duration::from_millis([1, 5, 100][dice.index(3)]),
        unopened_one_in: [0, 10][dice.index(2)],
    });
    config
}

fn at(block: u64) -> usize {
    narrow(block)
}
