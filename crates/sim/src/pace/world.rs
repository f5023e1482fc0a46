//! One run: users, members and the machine, from event to event.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use netraid_block::{Op, narrow};
use netraid_raid::{
    array::IoId,
    geometry::{Geometry, Level},
    member::{MemberIndex, MemberSet},
    slowness::{Deadlines, Due, HEDGED_MIN, SentRequest, Slowness},
};

use super::{
    Counts,
    members::{Member, Mood},
};
use crate::dice::{Dice, Seed};

const LEN: u64 = 4096;
/// How long a run lasts, of the world's time.
const RUN: Duration = Duration::from_secs(40);
/// The engine is known to have stood still when it did for so long.
const STILL_MIN: u64 = 30_000;
/// Longest that a read of a user takes: the latest deadline, a look at what is late, and what members take as usual.
const READ_MAX: Duration = Duration::from_millis(530);
/// For how long the machine remembers what the longest requests took.
const REMEMBERED: Duration = Duration::from_secs(3);
/// Nothing takes so long that is as usual.
const USUAL_MAX: Duration = Duration::from_millis(4);
/// A slow member stays so for a second at least.
const SLOW_MIN: Duration = Duration::from_millis(1100);

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What was wrong.
    pub violation: Option<String>,
    /// What it saw.
    pub counts: Counts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// A user asks for something.
    User,
    /// A member answers.
    Answer(u64),
    /// Something befalls somebody.
    Befall,
    /// A member gets a mood.
    Mood(usize, Mood),
    /// All members are as fast as before.
    Calm,
    /// A member that was given up takes part again.
    Return(usize),
}

/// A request of a member.
#[derive(Debug)]
struct Request {
    member: MemberIndex,
    at: Duration,
    sent: Option<SentRequest>,
    user: Option<u64>,
    /// Of a hedge, or in place of a slow member: all of these are needed.
    is_instead: bool,
}

/// A request of a user.
#[derive(Debug)]
struct User {
    sent: Duration,
    is_read: bool,
    /// What was asked for itself, and has not been answered.
    own: u32,
    /// The same of what is read instead; none was.
    instead: Option<u32>,
}

struct World<'a> {
    dice: Dice,
    log: Option<&'a mut Vec<String>>,
    now: Duration,
    /// How long the engine stood still, and until when.
    still: Duration,
    still_until: Duration,
    events: BTreeMap<(Duration, u64), Event>,
    next: u64,
    geometry: Geometry,
    slowness: Slowness,
    members: Vec<Member>,
    /// How many times as slow all are, and until when they were more than once.
    all: u32,
    all_until: Duration,
    requests: BTreeMap<u64, Request>,
    users: BTreeMap<u64, User>,
    probed: MemberSet,
    /// Reads of the last seconds, and those among them that hedges sent.
    recent: VecDeque<(Duration, bool)>,
    /// The last moment at which reads could not be told to take no longer than they should.
    excused_at: Duration,
    think: Duration,
    counts: Counts,
    violation: Option<String>,
}

/// Runs a seed; `log` gets what happens.
#[must_use]
pub fn run_one(seed: Seed, log: Option<&mut Vec<String>>) -> Outcome {
    let mut world = World::new(seed, log);
    world.begin();
    while world.now < RUN && world.violation.is_none() {
        world.step();
    }
    Outcome { violation: world.violation, counts: world.counts }
}

impl<'a> World<'a> {
    fn new(seed: Seed, log: Option<&'a mut Vec<String>>) -> Self {
        let mut dice = seed.dice("pace");
        let shapes = [
            (Level::Raid5, 3),
            (Level::Raid5, 5),
            (Level::Raid6, 6),
            (Level::Raid1, 3),
            (Level::Raid10, 4),
        ];
        let (level, count) = shapes[dice.index(shapes.len())];
        let geometry = Geometry::new(level, count, 64 << 10, 512, 1 << 10, 1 << 20);
        let geometry = geometry.unwrap_or_else(|error| unreachable!("a shape: {error}"));
        let members = (0..count).map(|_| Member::new(&mut dice)).collect();
        Self {
            log,
            now: Duration::ZERO,
            still: Duration::ZERO,
            still_until: Duration::ZERO,
            events: BTreeMap::new(),
            next: 0,
            geometry,
            slowness: Slowness::new(&geometry, Deadlines::default()),
            members,
            all: 1,
            all_until: Duration::ZERO,
            requests: BTreeMap::new(),
            users: BTreeMap::new(),
            probed: MemberSet::EMPTY,
            recent: VecDeque::new(),
            excused_at: Duration::ZERO,
            think: Duration::from_micros(2_000 + dice.below(20_000)),
            counts: Counts::default(),
            violation: None,
            dice,
        }
    }

    fn begin(&mut self) {
        for _ in 0..4 + self.dice.below(12) {
            self.put(Duration::ZERO, Event::User);
        }
        self.put(Duration::from_secs(3), Event::Befall);
    }

    /// The engine's own time.
    fn own(&self) -> Duration {
        self.now.saturating_sub(self.still)
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(log) = &mut self.log {
            log.push(format!("{:.6} {}", now.as_secs_f64(), text()));
        }
    }

    fn fail(&mut self, text: String) {
        self.note(|| format!("WRONG: {text}"));
        self.violation.get_or_insert(text);
    }

    fn put(&mut self, wait: Duration, event: Event) {
        self.next += 1;
        self.events.insert((self.now + wait, self.next), event);
    }

    /// The next event, or the machine's next look. What comes while the engine stands still is seen when it no longer does.
    fn step(&mut self) {
        let next = self.events.first_key_value().map(|((at, _), _)| *at);
        let look = self.slowness.next_timeout();
        let at = [next, look].into_iter().flatten().min().unwrap_or(RUN);
        self.now = self.now.max(at).max(self.still_until);
        if look.is_some_and(|look| look <= self.now && next.is_none_or(|next| look <= next)) {
            return self.look();
        }
        if let Some((_, event)) = self.events.pop_first() {
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::User => self.begin_user(),
            Event::Answer(number) => self.answer(number),
            Event::Befall => self.befall(),
            Event::Mood(member, mood) => self.set_mood(member, mood),
            Event::Calm => {
                self.all = 1;
                (self.excused_at, self.all_until) = (self.own(), self.own());
            }
            Event::Return(member) => self.come_back(member),
        }
    }

    fn whole(&self) -> MemberSet {
        let members = (0..).map(MemberIndex).zip(&self.members);
        members.filter(|(_, member)| member.is_whole).map(|(index, _)| index).collect()
    }

    /// So many that the others are enough to have a block of theirs.
    fn needed(&self) -> usize {
        match self.geometry.level() {
            Level::Raid1 | Level::Raid10 => 1,
            Level::Raid0 | Level::Raid5 | Level::Raid6 => {
                usize::from(self.geometry.members()) - narrow::<_, usize>(self.geometry.tolerance())
            }
        }
    }

    fn begin_user(&mut self) {
        let whole: Vec<MemberIndex> = self.whole().iter().collect();
        let Some(member) = self.dice.pick(&whole).copied() else {
            unreachable!("the members that are left could serve alone")
        };
        self.next += 1;
        let (id, sent, is_read) = (self.next, self.own(), !self.dice.one_in(5));
        self.users.insert(id, User { sent, is_read, own: 0, instead: None });
        if !is_read {
            let others = whole.iter().copied().filter(|other| *other != member);
            let other = others.min_by_key(|_| self.dice.below(1 << 20));
            for member in [Some(member), other].into_iter().flatten() {
                self.send(member, Op::Write, Some(id), false);
            }
        } else if !self.slowness.slow().contains(member)
            || self.probed.contains(member)
            || self.read_instead(member, id) == 0
        {
            self.probed.remove(member);
            self.send(member, Op::Read, Some(id), false);
        }
    }

    /// Reads what a member has from others; answers how many reads that sends.
    fn read_instead(&mut self, member: MemberIndex, id: u64) -> u64 {
        let slow = self.slowness.slow();
        let mut others: Vec<MemberIndex> =
            self.whole().iter().filter(|other| *other != member).collect();
        others.sort_by_key(|other| slow.contains(*other));
        if others.len() < self.needed() {
            return 0;
        }
        others.truncate(self.needed());
        if let Some(user) = self.users.get_mut(&id) {
            user.instead = Some(0);
        }
        for other in &others {
            self.send(*other, Op::Read, Some(id), true);
        }
        others.len() as u64
    }

    fn send(&mut self, member: MemberIndex, op: Op, user: Option<u64>, is_instead: bool) {
        self.next += 1;
        let number = self.next;
        let sent = self.slowness.note_sent(self.now, member, IoId(narrow(number)), (op, LEN));
        let at = self.own();
        self.requests.insert(number, Request { member, at, sent, user, is_instead });
        if op == Op::Read {
            self.counts.reads += 1;
            self.recent.push_back((self.own(), false));
        }
        if let Some(user) = user.and_then(|id| self.users.get_mut(&id)) {
            match (&mut user.instead, is_instead) {
                (Some(left), true) => *left += 1,
                (_, _) => user.own += 1,
            }
        }
        self.note(|| format!("{op:?} {number} to {member} for {user:?}, instead: {is_instead}"));
        self.reach(member, number);
    }

    /// A request reaches its member.
    fn reach(&mut self, member: MemberIndex, number: u64) {
        let member = &mut self.members[member.as_usize()];
        match member.takes(&mut self.dice, self.all) {
            Some(took) => self.put(took, Event::Answer(number)),
            None => member.held.push(number),
        }
    }

    fn answer(&mut self, number: u64) {
        let Some(Request { member, sent, user, is_instead, .. }) = self.requests.remove(&number)
        else {
            return;
        };
        match sent {
            Some(sent) => self.slowness.note_done(self.now, member, sent, true),
            None => {
                self.members[member.as_usize()].is_asked = false;
                self.slowness.note_answer(self.now, member);
            }
        }
        let Some(id) = user else { return };
        let Some(waiting) = self.users.get_mut(&id) else { return };
        match (&mut waiting.instead, is_instead) {
            (Some(left), true) => *left -= 1,
            (_, _) => waiting.own -= 1,
        }
        self.end_user(id);
    }

    /// Ends a user's request that has what it needs.
    fn end_user(&mut self, id: u64) {
        let Some(user) = self.users.get(&id) else { return };
        if user.own > 0 && user.instead != Some(0) {
            return;
        }
        let (took, is_judged) =
            (self.own() - user.sent, user.is_read && self.excused_at < user.sent);
        self.users.remove(&id);
        self.counts.judged += u64::from(is_judged);
        if is_judged && took > READ_MAX {
            self.fail(format!(
                "a read took {took:?}, and enough members were as usual all the time"
            ));
        }
        let wait = self.dice.time_to_next(self.think);
        self.put(wait, Event::User);
    }

    /// Gives the machine its look.
    fn look(&mut self) {
        let own = self.own();
        let slow = self.slowness.slow();
        let late: MemberSet = self
            .requests
            .values()
            .filter(|request| own.saturating_sub(request.at) > USUAL_MAX)
            .map(|request| request.member)
            .collect();
        let is_odd = |(index, member): (MemberIndex, &Member)| {
            member.is_odd() || !member.is_whole || slow.contains(index) || late.contains(index)
        };
        let odd = (0..).map(MemberIndex).zip(&self.members).map(is_odd).filter(|odd| *odd).count();
        // With two of them what is read instead may be late as well.
        if self.all > 1 || odd > 1 || !self.may_hedge(true) {
            self.excused_at = own;
        }
        while let Some(due) = self.slowness.poll_due(self.now, self.whole()) {
            self.note(|| format!("{due:?}"));
            match due {
                Due::Hedge(member, io) => self.hedge(member, io.0 as u64),
                Due::Probe(member) => self.probed.insert(member),
                Due::Slow(member, _) => {
                    self.counts.slow += 1;
                    // Where few are asked, the first one to be late may be seen before the others; and the others may have
                    // forgotten sooner that they were slow, too.
                    if self.all == 1 && own > self.all_until + REMEMBERED {
                        self.judge(member, "called slow");
                    }
                }
                Due::NotSlow(member) => {
                    self.counts.fast_again += 1;
                    self.probed.remove(member);
                    let mut others = self.whole().without(self.slowness.slow());
                    others.remove(member);
                    let is_needed = !self.geometry.can_serve_from(others);
                    if !is_needed && self.members[member.as_usize()].keeps_waiting(own, SLOW_MIN) {
                        self.fail(format!(
                            "member {member} is called fast, and keeps reads waiting"
                        ));
                    }
                }
                Due::GiveUp { member, unheard, is_silent, .. } => {
                    self.give_up(member, unheard, is_silent);
                }
                Due::SuccessorLate(_) => self.fail("a member is copied here to nobody".into()),
            }
        }
        let fast = self.whole().without(self.slowness.slow());
        if !self.geometry.can_serve_from(fast) && self.geometry.can_serve_from(self.whole()) {
            self.fail("too many members are called slow".into());
        }
    }

    /// Whether hedges may send more reads, counted without the machine; `surely`: also where it counts by other seconds.
    fn may_hedge(&mut self, surely: bool) -> bool {
        let own = self.own();
        let (long, short) = (Duration::from_secs(12), Duration::from_secs(8));
        while self.recent.front().is_some_and(|(at, _)| own.saturating_sub(*at) > long) {
            self.recent.pop_front();
        }
        let within = |time: Duration| {
            self.recent.iter().filter(move |(at, _)| own.saturating_sub(*at) <= time)
        };
        let (reads_in, hedged_in) = if surely { (short, long) } else { (long, short) };
        let reads = within(reads_in).count() as u64;
        let hedged = within(hedged_in).filter(|(_, is_hedged)| *is_hedged).count() as u64;
        // One hedge may begin while there is a little left.
        let at_once = self.members.len() as u64;
        let most = (reads / 10).max(HEDGED_MIN);
        if surely { hedged + at_once * 3 < most } else { hedged <= most + at_once }
    }

    fn hedge(&mut self, member: MemberIndex, number: u64) {
        let Some(request) = self.requests.get(&number) else { return };
        let Some(id) = request.user.filter(|_| !request.is_instead) else { return };
        let Some(user) = self.users.get(&id) else { return };
        if !user.is_read || user.instead.is_some() {
            return;
        }
        let reads = self.read_instead(member, id);
        if self.slowness.slow().contains(member) {
            return;
        }
        self.slowness.note_hedged(self.now, reads);
        self.counts.hedged += reads;
        let of_hedge: usize = narrow(reads);
        self.recent.iter_mut().rev().take(of_hedge).for_each(|(_, is_hedged)| *is_hedged = true);
        self.counts.capped += u64::from(!self.may_hedge(true));
        if !self.may_hedge(false) {
            self.fail("hedges send more than their share of the reads".into());
        }
    }

    fn judge(&mut self, member: MemberIndex, what: &str) {
        if !self.members[member.as_usize()].befell {
            self.fail(format!("member {member} is {what}, and nothing befell it alone"));
        }
    }

    fn give_up(&mut self, member: MemberIndex, unheard: MemberSet, is_silent: bool) {
        let mut others = self.whole();
        others.remove(member);
        if !self.geometry.can_serve_from(others) {
            return;
        }
        if !unheard.is_empty() {
            for other in unheard.iter() {
                self.ask_for_a_sign(other);
            }
            return;
        }
        self.judge(member, "given up");
        self.counts.given_up += 1;
        let away = self.slowness.note_given_up(self.now, member, is_silent);
        self.slowness.forget(member);
        self.probed.remove(member);
        self.members[member.as_usize()].is_whole = false;
        self.excused_at = self.own();
        let of_it = self.requests.iter().filter(|(_, request)| request.member == member);
        let numbers: Vec<u64> = of_it.map(|(number, _)| *number).collect();
        for number in numbers {
            let Some(Request { user: Some(id), is_instead, .. }) = self.requests.remove(&number)
            else {
                continue;
            };
            let Some(user) = self.users.get_mut(&id) else { continue };
            // What a read wanted of it is had from others, as if it had never been asked.
            match (user.is_read, is_instead) {
                (true, true) => user.instead = user.instead.map(|left| left - 1),
                (true, false) if user.instead.is_none() => drop(self.read_instead(member, id)),
                (true, false) => {}
                (false, _) => user.own -= 1,
            }
            self.end_user(id);
        }
        self.put(away + Duration::from_millis(500), Event::Return(member.as_usize()));
    }

    fn ask_for_a_sign(&mut self, member: MemberIndex) {
        if core::mem::replace(&mut self.members[member.as_usize()].is_asked, true) {
            return;
        }
        self.next += 1;
        let number = self.next;
        self.requests.insert(
            number,
            Request { member, at: self.own(), sent: None, user: None, is_instead: false },
        );
        self.reach(member, number);
    }

    /// A member that was given up takes part again when it answers.
    fn come_back(&mut self, member: usize) {
        if self.members[member].mood == Mood::Hung {
            return self.put(Duration::from_millis(500), Event::Return(member));
        }
        self.members[member].is_whole = true;
        self.members[member].is_asked = false;
        self.excused_at = self.own();
        self.note(|| format!("member {member} is back"));
    }

    fn set_mood(&mut self, member: usize, mood: Mood) {
        let own = self.own();
        let it = &mut self.members[member];
        (it.mood, it.since) = (mood, own);
        it.befell |= mood != Mood::Usual;
        let held = core::mem::take(&mut it.held);
        self.note(|| format!("member {member}: {mood:?}"));
        for number in held {
            self.reach(MemberIndex(narrow(member as u64)), number);
        }
    }

    /// Something befalls one member, all of them, or the engine.
    fn befall(&mut self) {
        let wait = Duration::from_millis(200 + self.dice.below(6_000));
        self.put(wait, Event::Befall);
        let long = Duration::from_millis(100 + self.dice.below(8_000));
        let member = self.dice.index(self.members.len());
        let times = [12, 40, 150, 1000][self.dice.index(4)];
        match self.dice.index(8) {
            0 | 1 => self.trouble(member, Mood::Hung, long),
            2 | 3 => self.trouble(member, Mood::Slow(times), long),
            4 => (0..self.members.len())
                .for_each(|each| self.trouble(each, Mood::Uneven(times), long)),
            5 => {
                // Stopped for one second of every three.
                for round in 0..4 {
                    let begin = Duration::from_secs(3) * round;
                    self.put(begin, Event::Mood(member, Mood::Hung));
                    self.put(begin + Duration::from_secs(1), Event::Mood(member, Mood::Usual));
                }
            }
            6 if self.all == 1 => {
                self.counts.all_slow += 1;
                self.all = times;
                self.note(|| format!("all are {times} times as slow"));
                self.put(long, Event::Calm);
            }
            _ => {
                self.counts.stood_still += 1;
                let long = Duration::from_micros(STILL_MIN + self.dice.below(12_000_000));
                self.note(|| format!("the engine stands still for {long:?}"));
                self.still += long;
                self.still_until = self.now + long;
            }
        }
    }

    fn trouble(&mut self, member: usize, mood: Mood, long: Duration) {
        self.set_mood(member, mood);
        self.put(long, Event::Mood(member, Mood::Usual));
    }
}
