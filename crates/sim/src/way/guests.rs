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

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use netraid_block::{ErrorKind, IoError, narrow};
use netraid_control::{
    derived::{ByteRange, Ranges, Rights, Terms},
    keys::{KEY_LEN, KeyId, Keyring, Ring, RootKey, Rotation},
    token::{Initiator, Rates, Token},
    units::{AgentId, Generation, MediatorId, Moment, PlanId, Rate, SegmentId},
};
use netraid_iscsi_proto::chap::{Credentials, Secret};
use netraid_node::segments::WATCH_INTERVAL;
use netraid_remote::{Order, OrderId, Reason};
use netraid_scsi::cdb::{Extent, build, reserve::register_and_ignore};

use super::{
    Net,
    cases::{Case, Cases},
    counts::Counts,
    interface::{
        AgentConfig, Cut, Death, DiskConfig, EngineId, Fate, HostConfig, HostId, LineConfig,
        LineId, Manners, News, Ordered, SegmentOrder, Step,
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

/// How a target says that a grant does not allow something.
const NO_ACCESS: &str = "access denied";

/// The longest that requests of guests take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How long a run lasts, and then the longest until all is over.
const LENGTH: Duration = Duration::from_secs(5);
const REST_MAX: Duration = Duration::from_secs(60);
/// Bound of a run.
const EVENTS_MAX: u64 = 2_000_000;

/// What a guest asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Command {
    Read,
    Write,
    Flush,
    Register,
}

/// Each as often as it stands here.
const COMMANDS: [Command; 6] = [
    Command::Write,
    Command::Write,
    Command::Read,
    Command::Register,
    Command::Register,
    Command::Flush,
];

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

/// What a guest has asked for.
#[derive(Debug)]
struct Asked {
    command: Command,
    order: OrderId,
    /// It may be done: nobody knows that the guest has no right to it.
    may_be: bool,
    /// It came when the grant was over.
    is_late: bool,
    /// Blocks of the segment, in order, and what was known of them; and what a write puts there.
    blocks: Vec<u64>,
    before: Vec<Option<u64>>,
    number: u64,
}

/// A guest's session.
#[derive(Debug)]
struct Visit {
    guest: usize,
    plan: PlanId,
    terms: Terms,
    /// Until when the plan lasts at most, and at least: sessions that were not there when it was extended know nothing of
    /// that.
    until: Moment,
    surely_until: Moment,
    /// The plan was ended, or its segment fenced: nothing is promised any more.
    has_ended: bool,
    /// An order to end it is done: nothing is done for it any more.
    is_over: bool,
    /// Orders to end it.
    ended_by: Vec<u64>,
    /// The segment was closed since: sessions end, and are perhaps let in again.
    was_closed: bool,
    asked: Option<Asked>,
    is_open: bool,
    is_leaving: bool,
    /// One session carries everything since the guest was let in: what its plan was extended by counts.
    is_steady: bool,
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

    /// A guest gets a token, and logs in.
    fn begin(&mut self, guest: usize) {
        let is_there = self.visits.values().any(|visit| visit.guest == guest);
        if self.is_ending || is_there {
            return;
        }
        if self.is_draining || self.closing.is_some() {
            // What it would be given may be in use by one that was fenced.
            self.net.put_in(Duration::from_millis(5), Happening::Begin(guest));
            return;
        }
        self.plans += 1;
        let mut plan = [0; 16];
        plan[..8].copy_from_slice(&self.plans.to_be_bytes());
        let plan = PlanId(plan);
        let initiator = format!("iqn.2025-01.example:guest{guest}");
        let terms = self.draw_terms(guest);
        let credentials = self.issue(plan, &initiator, terms);
        let mut config = LineConfig::new(initiator);
        config.credentials = Some(credentials);
        config.sessions = [1, 1, 2][self.dice.index(3)];
        config.wishes.immediate_data = self.dice.one_in(2);
        (config.request_timeout, config.login_timeout) = (TIMEOUT, TIMEOUT);
        let is_steady = config.sessions == 1;
        let line = self.net.open(self.engines[guest], self.host, config);
        let visit = Visit {
            guest,
            plan,
            terms,
            until: terms.expires,
            surely_until: terms.expires,
            has_ended: false,
            is_over: false,
            ended_by: Vec::new(),
            was_closed: false,
            asked: None,
            is_open: false,
            is_leaving: false,
            is_steady,
        };
        self.note(|| format!("{line:?}: guest {guest} comes with {terms:?}"));
        self.visits.insert(line, visit);
        // It goes on for a while after its time, as one whose clock is behind.
        let lasts = terms.expires.0 - self.now().0;
        let after = Duration::from_millis(lasts + self.dice.below(600));
        self.net.put_in(after, Happening::Leave(line));
        let before = Duration::from_micros(self.dice.below(4000));
        let last = Duration::from_millis(lasts).saturating_sub(before);
        self.net.put_in(last, Happening::AskLast(line));
    }

    /// Bytes that no other guest has in this generation, and that another had in the one before.
    fn draw_terms(&mut self, guest: usize) -> Terms {
        let share = (guest as u64 + self.generation.0) % GUESTS as u64;
        let mut at = share * SHARE;
        let end = at + SHARE;
        let mut ranges = Vec::new();
        for _ in 0..=self.dice.below(3) {
            let first = at + self.dice.below(3);
            let len = 1 + self.dice.below(4);
            if first + len > end {
                break;
            }
            let block = u64::from(BLOCK_LEN);
            ranges.push(ByteRange { offset: first * block, len: len * block });
            // Those that touch would be one.
            at = first + len + 1;
        }
        let ranges = Ranges::new(&ranges);
        let Ok(ranges) = ranges else { unreachable!("ranges that this function made: {ranges:?}") };
        let mut rights = Rights::NONE;
        for right in [Rights::READ, Rights::WRITE, Rights::FLUSH, Rights::RESERVE] {
            if !self.dice.one_in(4) {
                rights = rights.and(right);
            }
        }
        // A token without any right is none.
        if rights == Rights::NONE {
            rights = Rights::READ;
        }
        Terms {
            ranges,
            rights,
            append_only: false,
            generation: self.generation,
            expires: self.now().after_ms(100 + self.dice.below(1500)),
        }
    }

    fn issue(&self, plan: PlanId, initiator: &str, terms: Terms) -> Credentials {
        let token = Token {
            mediator: MEDIATOR,
            key: KeyId(0),
            agent: AGENT,
            segment: SEGMENT,
            plan,
            initiator: Initiator::named(initiator),
            terms,
            rates: Rates { floor: Rate(0), limit: None, weight: 100 },
            not_before: self.now(),
        };
        let issued = token.issue(&self.roots, self.now());
        let Ok(issued) = issued else { unreachable!("a token of a key that signs: {issued:?}") };
        let secret = Secret::new(issued.secret.expose());
        let Ok(secret) = secret else { unreachable!("a secret of a token: {secret:?}") };
        Credentials { user: issued.name, secret }
    }

    /// A guest asks for something, whether it may or not.
    fn ask(&mut self, line: LineId, command: Command) {
        let Some(visit) = self.visits.get(&line) else { return };
        if !visit.is_open || visit.is_leaving || visit.asked.is_some() {
            return;
        }
        let is_late = visit.is_past(self.now());
        let may_be = !is_late && visit.terms.rights.contain(command.needs());
        let shown = shown_blocks(&visit.terms);
        let first = self.dice.index(shown.len());
        let count = 1 + self.dice.index((shown.len() - first).min(4));
        let blocks = match command {
            Command::Read | Command::Write => shown[first..first + count].to_vec(),
            Command::Flush | Command::Register => Vec::new(),
        };
        self.numbers += 1;
        let number = self.numbers;
        let before = blocks.iter().map(|block| self.contents[at(*block)]).collect();
        if command == Command::Write && may_be {
            // Until it is known how that ended, either may be there.
            blocks.iter().for_each(|block| self.contents[at(*block)] = None);
        }
        let extent = Extent { lba: first as u64, blocks: narrow(count) };
        let order = self.net.order(line, command.order(extent, number));
        self.note(|| format!("{line:?} asks for {command:?} {number} of {blocks:?}"));
        if let Some(visit) = self.visits.get_mut(&line) {
            visit.asked = Some(Asked { command, order, may_be, is_late, blocks, before, number });
        }
    }

    fn hear(&mut self, line: LineId, news: News<u64>) {
        match news {
            News::Opened(Ok(opened)) => {
                self.check_size(line, opened.info.capacity);
                self.cases.add(Case::GuestLetIn);
                self.note(|| format!("{line:?} is let in"));
                self.net.put_in(Duration::ZERO, Happening::Next(line));
                if let Some(visit) = self.visits.get_mut(&line) {
                    visit.is_open = true;
                }
            }
            News::Opened(Err(reason)) => {
                self.cases.add(Case::GuestRefused);
                let now = self.now();
                let holds = |visit: &Visit| visit.is_granted(Rights::NONE, now);
                if reason == Reason::Plan && self.visits.get(&line).is_some_and(holds) {
                    self.fail(format!("{line:?} is not let in, though its token holds"));
                }
                self.note(|| format!("{line:?} is not let in: {reason}"));
            }
            News::Answered { order, result } => self.hear_answer(line, order, result),
            News::Closed => {
                let Some(guest) = self.visits.get(&line).map(|visit| visit.guest) else { return };
                self.forget(line);
                let wait = Duration::from_millis(self.dice.below(200));
                self.net.put_in(wait, Happening::Begin(guest));
            }
            News::Ended { user, .. } => {
                unreachable!("{line:?}: no guest submits requests, and {user} has ended")
            }
            News::Told(_) => {
                if let Some(visit) = self.visits.get_mut(&line) {
                    visit.is_steady = false;
                }
            }
        }
    }

    fn hear_answer(&mut self, line: LineId, order: OrderId, result: Result<Vec<u8>, IoError>) {
        let now = self.now();
        let Some(visit) = self.visits.get_mut(&line) else { return };
        let Some(asked) = visit.asked.take_if(|asked| asked.order == order) else { return };
        let (needed, is_of_now) = (asked.command.needs(), visit.is_of(self.generation));
        let (may_be, is_granted) = (asked.may_be, visit.is_granted(needed, now));
        let is_extended = now > visit.terms.expires;
        self.note(|| format!("{line:?}: {asked:?} ends: {:?}", result.as_ref().map(Vec::len)));
        match (may_be, result) {
            (false, Ok(_)) => self.fail(format!("{line:?}: it was not granted: {asked:?}")),
            (false, Err(why)) => self.cases.add(match asked.is_late {
                _ if !is_denial(&why) => Case::GuestFailed,
                true => Case::DeniedLate,
                false => Case::DeniedRight,
            }),
            (true, Err(why)) if is_granted && !is_trouble(&why) => {
                self.fail(format!("{line:?}: it was granted: {asked:?}, and refused: {why}"));
            }
            (true, Err(why)) => {
                self.cases.add(Case::GuestFailed);
                match is_denial(&why) && is_of_now {
                    true => self.restore(&asked),
                    false => self.doubt(line, &asked),
                }
            }
            // Others may have written there since.
            (true, Ok(_)) if !is_of_now => self.cases.add(Case::GuestDoneBeforeFence),
            (true, Ok(bytes)) => {
                if is_extended {
                    self.cases.add(Case::GuestDoneExtended);
                }
                self.hear_done(line, &asked, &bytes);
            }
        }
        // An instant that all share would say nothing of those between.
        let wait = Duration::from_micros(self.dice.below(20_000));
        self.net.put_in(wait, Happening::Next(line));
    }

    /// A guest sees as many bytes as it was granted.
    fn check_size(&mut self, line: LineId, seen: u64) {
        let Some(visit) = self.visits.get(&line) else { return };
        let granted = shown_blocks(&visit.terms).len() as u64 * u64::from(BLOCK_LEN);
        if seen != granted {
            self.fail(format!("{line:?} sees {seen} bytes of {granted}"));
        }
    }

    /// What a guest had the right to was done.
    fn hear_done(&mut self, line: LineId, asked: &Asked, bytes: &[u8]) {
        self.cases.add(match asked.command {
            Command::Read => Case::GuestRead,
            Command::Write => Case::GuestWrote,
            Command::Flush => Case::GuestFlushed,
            Command::Register => Case::GuestRegistered,
        });
        if asked.command == Command::Write {
            asked.blocks.iter().for_each(|block| self.contents[at(*block)] = Some(asked.number));
        }
        if asked.command != Command::Read {
            return;
        }
        let parts = bytes.chunks_exact(BLOCK_LEN as usize);
        if parts.len() != asked.blocks.len() {
            return self.fail(format!("{line:?}: {} bytes for {asked:?}", bytes.len()));
        }
        for (block, part) in asked.blocks.iter().zip(parts) {
            let known = self.contents[at(*block)].filter(|_| !self.is_doubtful[at(*block)]);
            let Some(number) = known else { continue };
            if part != filled(number, BLOCK_LEN) {
                return self.fail(format!("{line:?} reads in block {block} not what it wrote"));
            }
            self.cases.add(Case::GuestCompared);
        }
    }

    /// A write that was not answered may still land.
    fn doubt(&mut self, line: LineId, asked: &Asked) {
        // Of what was fenced nothing lands once the segment has drained: that is what is tried here.
        let is_of_now = self.visits.get(&line).is_some_and(|visit| visit.is_of(self.generation));
        if asked.command != Command::Write || !asked.may_be || !(is_of_now || self.is_draining) {
            return;
        }
        asked.blocks.iter().for_each(|block| self.is_doubtful[at(*block)] = true);
    }

    /// What might still land has landed, or never will.
    fn end_doubts(&mut self) {
        for (is_doubtful, contents) in self.is_doubtful.iter_mut().zip(&mut self.contents) {
            if core::mem::take(is_doubtful) {
                *contents = None;
            }
        }
    }

    /// A write was denied: what was known is still there.
    fn restore(&mut self, asked: &Asked) {
        if asked.command == Command::Write {
            for (block, before) in asked.blocks.iter().zip(&asked.before) {
                self.contents[at(*block)] = *before;
            }
        }
    }

    /// A guest's session is gone.
    fn forget(&mut self, line: LineId) {
        let asked = self.visits.get_mut(&line).and_then(|visit| visit.asked.take());
        if let Some(asked) = asked {
            self.doubt(line, &asked);
        }
        self.visits.remove(&line);
    }

    /// A guest notices that its time is over, or ends.
    fn leave(&mut self, line: LineId) {
        if let Some(visit) = self.visits.get_mut(&line)
            && !core::mem::replace(&mut visit.is_leaving, true)
        {
            self.net.cut_off(line);
        }
    }

    fn plan_fault(&mut self) {
        let wait = self.dice.time_to_next(Duration::from_millis(150));
        self.net.put_in(wait, Happening::Fault);
    }

    fn befall(&mut self) {
        if self.is_ending {
            return;
        }
        self.plan_fault();
        let guest = self.dice.index(GUESTS);
        let (engine, host) = (self.engines[guest], self.host);
        match self.dice.below(13) {
            0..=3 => self.end_plan(guest),
            10 | 11 => self.extend_plan(guest),
            12 => self.close(),
            4 | 5 => self.fence(),
            6 => {
                let (now, lost) = (Some(Duration::ZERO), Fate::Lost);
                let later = Fate::Delivered(Duration::from_millis(self.dice.below(300)));
                let to_host = if self.dice.one_in(2) { lost } else { later };
                let cut = Cut { engine_hears: now, host_hears: now, to_host, to_engine: lost };
                for stream in self.net.streams(engine, host) {
                    self.net.cut(stream, cut);
                }
            }
            7 => self.net.hang(host, Duration::from_millis(self.dice.below(400))),
            8 => {
                self.note(|| "the agent's program is killed".into());
                self.net.kill(host);
                let wait = Duration::from_millis(self.dice.below(200));
                self.net.put_in(wait, Happening::Start);
            }
            _ => self.die(guest),
        }
    }

    /// The plan of a guest is ended.
    fn end_plan(&mut self, guest: usize) {
        let Some((line, visit)) = self.visits.iter_mut().find(|(_, visit)| visit.guest == guest)
        else {
            return;
        };
        let (line, plan) = (*line, visit.plan);
        visit.has_ended = true;
        self.cases.add(Case::PlanEnded);
        self.note(|| format!("the plan of {line:?} is ended"));
        let number = self.order(SegmentOrder::EndPlan(plan));
        if let Some(visit) = self.visits.get_mut(&line) {
            visit.ended_by.push(number);
        }
        if self.dice.one_in(2) {
            // That was under way.
            self.extend_plan(guest);
        }
        let wait = Duration::from_millis(self.dice.below(300));
        self.net.put_in(wait, Happening::Leave(line));
    }

    /// The plan of a guest lasts longer; perhaps it was ended, which that does not change.
    fn extend_plan(&mut self, guest: usize) {
        let now = self.now();
        let until = now.after_ms(200 + self.dice.below(600));
        let visits = self.visits.values_mut();
        for visit in visits.filter(|visit| visit.guest == guest && now < visit.until) {
            visit.until = visit.until.max(until);
            if visit.is_open {
                visit.surely_until = visit.surely_until.max(until);
            }
            self.cases.add(Case::PlanExtended);
            self.net.extend_plan(self.host, visit.plan, until);
        }
    }

    /// The segment is fenced: what was granted before is not any more.
    fn fence(&mut self) {
        self.generation = Generation(self.generation.0 + 1);
        let generation = self.generation;
        self.cases.add(Case::SegmentFenced);
        self.note(|| format!("the segment has {generation:?}"));
        self.net.raise(self.host, generation);
        (self.is_draining, self.fence) = (true, None);
        // An agent may know the generation before it ends sessions by it: somebody has logged in with it.
        let wait = Duration::from_millis([0, 0, 5, 50][self.dice.index(4)]);
        self.net.put_in(wait, Happening::EndFenced(generation));
        for (line, visit) in &mut self.visits {
            visit.has_ended = true;
            let wait = Duration::from_millis(self.dice.below(300));
            self.net.put_in(wait, Happening::Leave(*line));
        }
    }

    /// The segment is closed: its sessions end, and those whose tokens hold may come again.
    fn close(&mut self) {
        if self.closing.is_some() {
            return;
        }
        self.cases.add(Case::SegmentClosed);
        self.note(|| "the segment is closed".into());
        self.closing = Some(self.order(SegmentOrder::Close));
        self.visits.values_mut().for_each(|visit| visit.was_closed = true);
    }

    fn order(&mut self, order: SegmentOrder) -> u64 {
        let number = self.net.order_segment(self.host, order);
        self.orders.insert(number);
        self.note(|| format!("order {number}: {order:?}"));
        number
    }

    fn hear_order(&mut self, number: u64, how: Ordered) {
        self.note(|| format!("order {number} ends: {how:?}"));
        let is_known = self.orders.remove(&number);
        if let Ordered::Stuck(stuck) = how {
            return self.fail(format!("order {number} does not get done: {stuck:?}"));
        }
        if !is_known {
            return self.fail(format!("order {number} has ended twice"));
        }
        let visits = self.visits.values_mut();
        visits
            .filter(|visit| visit.ended_by.contains(&number))
            .for_each(|visit| visit.is_over = true);
        if self.closing == Some(number) {
            self.closing = None;
        }
        if self.fence == Some(number) {
            (self.fence, self.is_draining) = (None, false);
            self.end_doubts();
            self.cases.add(Case::SegmentDrained);
        }
    }

    /// A guest's program dies, and another takes its place.
    fn die(&mut self, guest: usize) {
        self.net.kill_engine(self.engines[guest], Death::Process);
        let lines = self.visits.iter().filter(|(_, visit)| visit.guest == guest);
        let lines: Vec<LineId> = lines.map(|(line, _)| *line).collect();
        lines.into_iter().for_each(|line| self.forget(line));
        self.net.put_in(Duration::from_millis(50), Happening::Begin(guest));
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

impl Visit {
    fn is_of(&self, generation: Generation) -> bool {
        self.terms.generation == generation
    }

    /// Whether its grant is over for good.
    fn is_past(&self, now: Moment) -> bool {
        self.is_over || now >= self.until
    }

    /// Whether its token lets in, and gives the right to this.
    fn is_granted(&self, needed: Rights, now: Moment) -> bool {
        let until = if self.is_steady { self.surely_until } else { self.terms.expires };
        !self.has_ended && !self.was_closed && now < until && self.terms.rights.contain(needed)
    }
}

impl Command {
    const fn needs(self) -> Rights {
        match self {
            Self::Read => Rights::READ,
            Self::Write => Rights::WRITE,
            Self::Flush => Rights::FLUSH,
            Self::Register => Rights::RESERVE,
        }
    }
}

impl Command {
    /// The command on these blocks of the derived device, with this number as its key, or in what it writes.
    fn order(self, extent: Extent, number: u64) -> Order {
        let len = extent.blocks * BLOCK_LEN;
        let (cdb, parameters, read_len) = match self {
            Self::Read => (build::read(extent, false), Vec::new(), len),
            Self::Write => (build::write(extent, false, false), filled(number, len), 0),
            Self::Flush => (build::synchronize_cache(false), Vec::new(), 0),
            Self::Register => {
                let mut order = register_and_ignore(number);
                // APTPL (SPC-4, section 6.16.3): what is registered is stored.
                order.parameters[20] |= 1;
                (order.cdb, order.parameters, 0)
            }
        };
        Order::Once { cdb, parameters, read_len }
    }
}

/// So many bytes of a number, again and again.
fn filled(number: u64, len: u32) -> Vec<u8> {
    number.to_be_bytes().repeat(len as usize / 8)
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
        idle_limit: Duration::from_millis([5, 30, 500][dice.index(3)]),
        unopened_one_in: [0, 10][dice.index(2)],
    });
    config
}

/// Whether a target says that a grant does not allow something.
fn is_denial(why: &IoError) -> bool {
    why.to_string().contains(NO_ACCESS)
}

/// Whether a request may end so that was granted: its session is gone, or somebody has ended it.
fn is_trouble(why: &IoError) -> bool {
    matches!(why.kind(), ErrorKind::Unreachable | ErrorKind::Timeout | ErrorKind::Aborted)
}

/// The blocks of the segment that terms show, in order.
fn shown_blocks(terms: &Terms) -> Vec<u64> {
    let block = u64::from(BLOCK_LEN);
    let ranges = terms.ranges.as_slice().iter();
    ranges.flat_map(|range| range.offset / block..range.end() / block).collect()
}

fn at(block: u64) -> usize {
    narrow(block)
}
