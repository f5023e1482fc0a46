//! One guest after another: it gets a token, logs in, asks for what it may and for what it may not, and leaves.

use core::time::Duration;

use netraid_block::narrow;
use netraid_control::{
    derived::{ByteRange, Ranges, Rights, Terms},
    keys::KeyId,
    token::{Initiator, Rates, Token},
    units::{Generation, Moment, PlanId, Rate},
};
use netraid_iscsi_proto::chap::{Credentials, Secret};
use netraid_remote::{Order, OrderId, Reason};
use netraid_scsi::cdb::{Extent, build, reserve::register_and_ignore};

use super::{AGENT, BLOCK_LEN, GUESTS, Guests, Happening, MEDIATOR, SEGMENT, SHARE, TIMEOUT, at};
use crate::way::{
    cases::Case,
    interface::{Death, LineConfig, LineId, News},
};

/// What a guest asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Read,
    Write,
    Flush,
    Register,
}

/// Each as often as it stands here.
pub(super) const COMMANDS: [Command; 6] = [
    Command::Write,
    Command::Write,
    Command::Read,
    Command::Register,
    Command::Register,
    Command::Flush,
];

/// What a guest has asked for.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) command: Command,
    pub(super) order: OrderId,
    /// It may be done: nobody knows that the guest has no right to it.
    pub(super) may_be: bool,
    /// It came when the grant was over.
    pub(super) is_late: bool,
    /// Blocks of the segment, in order, and what was known of them; and what a write puts there.
    pub(super) blocks: Vec<u64>,
    pub(super) before: Vec<Option<u64>>,
    pub(super) number: u64,
}

/// A guest's session.
#[derive(Debug)]
pub(super) struct Visit {
    pub(super) guest: usize,
    pub(super) plan: PlanId,
    pub(super) terms: Terms,
    /// Until when the plan lasts at most, and at least: sessions that were not there when it was extended know nothing of
    /// that.
    pub(super) until: Moment,
    pub(super) surely_until: Moment,
    /// The plan was ended, or its segment fenced: nothing is promised any more.
    pub(super) has_ended: bool,
    /// An order to end it is done: nothing is done for it any more.
    pub(super) is_over: bool,
    /// Orders to end it.
    pub(super) ended_by: Vec<u64>,
    /// The segment was closed since: sessions end, and are perhaps let in again.
    pub(super) was_closed: bool,
    pub(super) asked: Option<Asked>,
    pub(super) is_open: bool,
    pub(super) is_leaving: bool,
    /// One session carries everything since the guest was let in: what its plan was extended by counts.
    pub(super) is_steady: bool,
}

impl Guests {
    /// A guest gets a token, and logs in.
    pub(super) fn begin(&mut self, guest: usize) {
        let is_there = self.visits.values().any(|visit| visit.guest == guest);
        if self.is_ending || is_there {
            return;
        }
        // An agent may know a generation before it ends sessions by it.
        let is_early = self.is_draining && self.fence.is_none() && self.dice.one_in(3);
        if self.closing.is_some() || (self.is_draining && !is_early) {
            // What it would be given may be in use by one that was fenced.
            self.net.put_in(Duration::from_millis(5), Happening::Begin(guest));
            return;
        }
        self.plans += 1;
        let mut plan = [0; 16];
        plan[..8].copy_from_slice(&self.plans.to_be_bytes());
        let plan = PlanId(plan);
        let initiator = format!("iqn.2025-01.example:guest{guest}");
        let mut terms = self.draw_terms(guest);
        if is_early {
            // No bytes are given to it.
            terms.rights = Rights::FLUSH.and(Rights::RESERVE);
        }
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
    pub(super) fn draw_terms(&mut self, guest: usize) -> Terms {
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

    pub(super) fn issue(&self, plan: PlanId, initiator: &str, terms: Terms) -> Credentials {
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
    pub(super) fn ask(&mut self, line: LineId, command: Command) {
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

    pub(super) fn hear(&mut self, line: LineId, news: News<u64>) {
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

    /// A guest sees as many bytes as it was granted.
    pub(super) fn check_size(&mut self, line: LineId, seen: u64) {
        let Some(visit) = self.visits.get(&line) else { return };
        let granted = shown_blocks(&visit.terms).len() as u64 * u64::from(BLOCK_LEN);
        if seen != granted {
            self.fail(format!("{line:?} sees {seen} bytes of {granted}"));
        }
    }

    /// A guest's session is gone.
    pub(super) fn forget(&mut self, line: LineId) {
        let asked = self.visits.get_mut(&line).and_then(|visit| visit.asked.take());
        if let Some(asked) = asked {
            self.doubt(line, &asked);
        }
        self.visits.remove(&line);
    }

    /// A guest notices that its time is over, or ends.
    pub(super) fn leave(&mut self, line: LineId) {
        if let Some(visit) = self.visits.get_mut(&line)
            && !core::mem::replace(&mut visit.is_leaving, true)
        {
            self.net.cut_off(line);
        }
    }

    /// A guest's program dies, and another takes its place.
    pub(super) fn die(&mut self, guest: usize) {
        self.net.kill_engine(self.engines[guest], Death::Process);
        let lines = self.visits.iter().filter(|(_, visit)| visit.guest == guest);
        let lines: Vec<LineId> = lines.map(|(line, _)| *line).collect();
        lines.into_iter().for_each(|line| self.forget(line));
        self.net.put_in(Duration::from_millis(50), Happening::Begin(guest));
    }
}

impl Visit {
    pub(super) fn is_of(&self, generation: Generation) -> bool {
        self.terms.generation == generation
    }

    /// Whether its grant is over for good.
    pub(super) fn is_past(&self, now: Moment) -> bool {
        self.is_over || now >= self.until
    }

    /// Whether its token lets in, and gives the right to this.
    pub(super) fn is_granted(&self, needed: Rights, now: Moment) -> bool {
        let until = if self.is_steady { self.surely_until } else { self.terms.expires };
        !self.has_ended && !self.was_closed && now < until && self.terms.rights.contain(needed)
    }
}

impl Command {
    pub(super) const fn needs(self) -> Rights {
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
    pub(super) fn order(self, extent: Extent, number: u64) -> Order {
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
pub(super) fn filled(number: u64, len: u32) -> Vec<u8> {
    number.to_be_bytes().repeat(len as usize / 8)
}

/// The blocks of the segment that terms show, in order.
pub(super) fn shown_blocks(terms: &Terms) -> Vec<u64> {
    let block = u64::from(BLOCK_LEN);
    let ranges = terms.ranges.as_slice().iter();
    ranges.flat_map(|range| range.offset / block..range.end() / block).collect()
}
