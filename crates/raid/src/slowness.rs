//! How fast the members of an array answer reads: which read is late, so that what it was for is computed from the other
//! members (a *hedge*), and which member is slow, so that reads go past it.
//!
//! A read is late after three times what 99 of 100 of the member's last 1,000 reads of its class took, bounded by
//! [`DEADLINE_MIN`] and [`DEADLINE_MAX`]. A member is slow when three of its reads in a row were late, it has kept one waiting for
//! three times as long as any read of others took lately, and so many others answer in time that the array could serve from them; or when half of its reads take ten times as long as those
//! of its peers, which it may have done all along. It stays slow for twice as long as it was late, and is asked for one read at a time
//! meanwhile, a *probe*, to know.
//!
//! A write or a flush is late after three times what is usual, too, within its own bounds. Nothing can stand for it: a member that has
//! answered nothing for as long, while the others answer, is to be given up; it comes back by itself and catches up. A member that
//! answers some requests is only behind, and is waited for; unless all of its writes have taken as long for seconds, few as they
//! are, while the others are fast (it *crawls*).
//!
//! Invariants: hedges send no more than a tenth of the reads of the last ten seconds, or [`HEDGED_MIN`]; the members that
//! are not slow could serve alone; where all are late, nobody is slow. Time in which the engine itself stood still
//! is no member's.
//!
//! Not here: how something is computed without a member ([`crate::logged`]); members without a session
//! ([`crate::presence`]). A slow member takes part: it is written to, and its writes are waited for until they are late.

mod give_up;
mod shares;
mod successor;
mod times;
mod window;

use alloc::{collections::VecDeque, vec::Vec};
use core::time::Duration;

use netraid_block::{Op, narrow};

use self::{give_up::Crawl, shares::Shares, times::Times, window::Longest};
use crate::{
    array::IoId,
    geometry::Geometry,
    member::{MemberIndex, MemberSet},
    planted::{Planted, planted},
};

/// When requests are late: three times what 99 of 100 took, within these bounds. Where too few were answered to know
/// what is usual, the latest counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Of reads, at the earliest and the latest.
    pub read: (Duration, Duration),
    /// Of writes.
    pub write: (Duration, Duration),
    /// Of flushes: disks collect their garbage now and then.
    pub flush: (Duration, Duration),
}

impl Deadlines {
    /// For members to which a request may take so long before they count as lost: whoever lets them take long expects that
    /// others go first there.
    #[must_use]
    pub fn within(request_timeout: Duration) -> Self {
        let (write_min, flush_min) = (request_timeout / 10, request_timeout * 2 / 5);
        let read = (Duration::from_millis(5), Duration::from_millis(500));
        Self { read, write: (write_min, request_timeout), flush: (flush_min, request_timeout) }
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Self::within(Duration::from_secs(5))
    }
}

/// Reads that hedges may send in ten seconds, however few users read.
pub const HEDGED_MIN: u64 = 64;

/// Reads of up to so many bytes are of one class, longer ones of the other.
const SMALL_MAX: u64 = 64 << 10;
/// Classes of requests: small reads, large reads, small writes, large writes, flushes.
const CLASSES: usize = 5;
/// Those of reads come first.
const READ_CLASSES: usize = 2;
const WRITES: usize = 2;
const FLUSHES: usize = 4;
/// From one look at the reads that are under way to the next one.
const TICK: Duration = Duration::from_millis(5);
/// A look that comes later than that was kept by the engine.
const TICK_LATE: Duration = Duration::from_millis(20);
/// Late reads in a row that make a member slow.
const LATE_MAX: u32 = 3;
/// How many times as long as those of its peers half of the reads of a slow member take.
const SLOWER: u32 = 10;
/// How many times as long as every read of its peers lately those take that make a member slow.
const LONGER: u32 = 3;
/// Reads of a member from which it is compared with others.
const COMPARED_MIN: usize = 100;
/// How long a slow member stays so at least, and at most, after it was late.
const QUIET_MIN: Duration = Duration::from_secs(1);
const QUIET_MAX: Duration = Duration::from_secs(60);
/// A member that becomes slow so soon after it was has a relapse: each time it stays so twice as long at least.
const RELAPSE_MAX: Duration = Duration::from_secs(300);
const RELAPSES_MAX: u32 = 6;
/// From one probe of a slow member to the next one.
const PROBE_EVERY: Duration = Duration::from_millis(100);

/// A request that was sent to a member; to be given back when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentRequest {
    class: usize,
    number: u64,
    /// Of the member, when it was sent.
    epoch: u32,
}

/// How fast the members of an array answer.
#[derive(Debug)]
pub struct Slowness {
    geometry: Geometry,
    deadlines: Deadlines,
    members: Vec<MemberRequests>,
    /// Of the device that a member is copied to.
    successor: MemberRequests,
    slow: MemberSet,
    shares: Shares,
    /// When the reads that are under way are looked at next; none while there is nothing to see.
    tick_at: Option<Duration>,
    /// When members are compared next.
    compare_at: Duration,
    /// How long the engine itself stood still.
    stood_still: Duration,
    /// The last moment, without that.
    own: Duration,
}

/// What is known of a member's requests.
#[derive(Debug)]
struct MemberRequests {
    classes: [ClassRequests; CLASSES],
    /// Raised whenever nothing is known of it any more.
    epoch: u32,
    /// Late reads since the last one that came in time.
    late_in_a_row: u32,
    /// What the longest of its last reads took.
    longest: Longest,
    /// When it answered last.
    answered_at: Duration,
    slow: Option<Slow>,
    /// When it was slow last, and how often it became so shortly after that.
    fast_again_at: Option<Duration>,
    relapses: u32,
    /// The moment at which a read was late last that counts: those that were under way then are of the same delay.
    counted_at: Duration,
    /// What the longest of its last writes took.
    longest_write: Longest,
    /// All writes that it has answered lately took long.
    crawl: Option<Crawl>,
    /// A write was in time since it is here.
    is_quick: bool,
    /// When it was told to stay away last, and how often shortly after another time.
    crawled_at: Option<Duration>,
    crawls: u32,
    /// When it is to be given up, the next time.
    give_up_at: Duration,
    /// When it was given up last, and how often that was shortly after another time.
    gave_up_at: Option<Duration>,
    give_ups: u32,
}

#[derive(Debug)]
struct ClassRequests {
    times: Times,
    /// In the order in which they were sent; the first has the number `first`.
    under_way: VecDeque<UnderWay>,
    first: u64,
    /// Those that were late and have not ended.
    late: Vec<Late>,
}

#[derive(Debug, Clone, Copy)]
struct Late {
    number: u64,
    io: IoId,
    at: Duration,
    is_hedged: bool,
}

#[derive(Debug, Clone, Copy)]
struct UnderWay {
    io: IoId,
    at: Duration,
    has_ended: bool,
}

/// A member that is slow.
#[derive(Debug, Clone, Copy)]
struct Slow {
    since: Duration,
    /// When it was late last.
    late_at: Duration,
    probe_at: Duration,
    /// What its reads may take, by class, for it to be fast again.
    limits: [Duration; READ_CLASSES],
}

/// What is to be done about reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// What this read is for is to be had from the other members as well.
    Hedge(MemberIndex, IoId),
    /// The next read of this slow member is to be sent to it.
    Probe(MemberIndex),
    /// A member has become slow: its reads took so long.
    Slow(MemberIndex, Duration),
    /// A member is slow no longer.
    NotSlow(MemberIndex),
    /// A write or a flush of a member has taken so long: the array is to go on without it, if the others are there.
    GiveUp {
        /// Which.
        member: MemberIndex,
        /// How long.
        took: Duration,
        /// Of the others those that owe nothing, and have not answered anything since either.
        unheard: MemberSet,
        /// It has answered nothing meanwhile; otherwise it answers each of its writes so late.
        is_silent: bool,
    },
    /// The device that a member is copied to has answered nothing for so long: the copy is to end.
    SuccessorLate(Duration),
}

impl Slowness {
    /// Of an array of this shape, whose members nobody has read from.
    #[must_use]
    pub fn new(geometry: &Geometry, deadlines: Deadlines) -> Self {
        let members = (0..geometry.members()).map(|_| MemberRequests::new(0, &deadlines)).collect();
        Self {
            geometry: *geometry,
            deadlines,
            members,
            successor: MemberRequests::new(0, &deadlines),
            slow: MemberSet::EMPTY,
            shares: Shares::default(),
            tick_at: None,
            compare_at: Duration::ZERO,
            stood_still: Duration::ZERO,
            own: Duration::ZERO,
        }
    }

    /// Nothing is known of any member, and nothing is under way.
    pub fn begin_anew(&mut self) {
        (0..self.geometry.members()).map(MemberIndex).for_each(|member| self.forget(member));
    }

    /// Members that reads go past.
    #[must_use]
    pub const fn slow(&self) -> MemberSet {
        self.slow
    }

    /// When [`Self::poll_due`] has something to do.
    #[must_use]
    pub const fn next_timeout(&self) -> Option<Duration> {
        self.tick_at
    }

    /// A request is sent to a member; none where nobody waits for its end, or it may take any time.
    pub fn note_sent(
        &mut self,
        now: Duration,
        member: MemberIndex,
        io: IoId,
        (op, len): (Op, u64),
    ) -> Option<SentRequest> {
        let class = match op {
            Op::Read => usize::from(len > SMALL_MAX),
            Op::Write => WRITES + usize::from(len > SMALL_MAX),
            Op::Flush => FLUSHES,
            Op::WriteZeroes | Op::Discard | Op::Extents => return None,
        };
        let at = self.own_time_to_tick(now);
        self.shares.second(at).0 += u64::from(op == Op::Read);
        Some(self.members[member.as_usize()].send(class, io, at))
    }

    /// A request has ended; `is_answer` when its member answered it. One of a member that was forgotten since says nothing.
    ///
    /// # Panics
    /// When it was not under way.
    pub fn note_done(
        &mut self,
        now: Duration,
        member: MemberIndex,
        SentRequest { class, number, epoch }: SentRequest,
        is_answer: bool,
    ) {
        let own = self.own_time(now);
        let reads = &mut self.members[member.as_usize()];
        if reads.epoch != epoch {
            return;
        }
        let took = own.saturating_sub(reads.classes[class].end(number));
        if !is_answer {
            return;
        }
        reads.classes[class].times.add(took);
        reads.answered_at = own;
        if class >= READ_CLASSES {
            let (late, bounds) =
                (self.deadlines.write.0, [self.deadlines.write.0, self.deadlines.flush.0]);
            if class != FLUSHES {
                reads.note_written(own, took, (late, bounds[class - WRITES]));
            }
            return;
        }
        reads.longest.note(own, took);
        match &mut reads.slow {
            Some(slow) if took > slow.limits[class] => slow.late_at = own,
            None if took <= reads.classes[class].times.deadline() => reads.late_in_a_row = 0,
            Some(_) | None => {}
        }
    }

    /// Something else that a member was asked was answered.
    pub fn note_answer(&mut self, now: Duration, member: MemberIndex) {
        let own = self.own_time(now);
        self.members[member.as_usize()].answered_at = own;
    }

    /// Reads were sent for a hedge.
    pub fn note_hedged(&mut self, now: Duration, reads: u64) {
        let own = self.own_time(now);
        self.shares.second(own).1 += reads;
    }

    /// A member has left, or another device has its place: nothing is known of it any more. What is under way there ends, and
    /// says nothing.
    pub fn forget(&mut self, member: MemberIndex) {
        let reads = &mut self.members[member.as_usize()];
        let new = MemberRequests::new(reads.epoch.wrapping_add(1), &self.deadlines);
        *reads = MemberRequests {
            gave_up_at: reads.gave_up_at,
            give_ups: reads.give_ups,
            fast_again_at: reads.fast_again_at,
            relapses: reads.relapses,
            crawled_at: reads.crawled_at,
            crawls: reads.crawls,
            ..new
        };
        self.slow.remove(member);
    }

    /// What is to be done now; to be asked until it is nothing. `whole` are the members that hold everything and have
    /// devices.
    pub fn poll_due(&mut self, now: Duration, whole: MemberSet) -> Option<Due> {
        if self.tick_at.is_none_or(|at| at > now) {
            return None;
        }
        let own = self.own_time(now);
        let due = self.poll_slow(own, whole).or_else(|| self.poll_late(own));
        let due = due.or_else(|| self.poll_give_up(own, whole));
        let due = due.or_else(|| self.poll_crawl(own, whole));
        let due = due.or_else(|| self.poll_successor(own));
        if due.is_some() {
            return due;
        }
        let is_idle = self.members.iter().all(MemberRequests::is_idle);
        let is_idle = is_idle && self.successor.is_idle();
        self.tick_at = match (is_idle, self.slow.is_empty()) {
            (false, _) => Some(now + TICK),
            (true, false) => Some(now + PROBE_EVERY),
            (true, true) => None,
        };
        None
    }

    /// A member that is slow from now on, or no longer, or is to be probed.
    fn poll_slow(&mut self, own: Duration, whole: MemberSet) -> Option<Due> {
        self.members.iter_mut().for_each(|reads| reads.note_late(own));
        // One that the array cannot do without, since another has left, is read from.
        let is_needed = !self.geometry.can_serve_from(whole.without(self.slow));
        if let Some(member) = self.slow.iter().next().filter(|_| is_needed) {
            return Some(self.end_slow(own, member));
        }
        for member in (0..self.geometry.members()).map(MemberIndex) {
            let reads = &mut self.members[member.as_usize()];
            let Some(slow) = &mut reads.slow else {
                let is_late = reads.late_in_a_row >= LATE_MAX && whole.contains(member);
                let due = ClassRequests::due_first(&reads.classes[..READ_CLASSES]);
                if let Some((sent, due)) = due
                    && is_late
                {
                    let took = own.saturating_sub(sent);
                    if self.can_do_without(member, whole, due, (own, took / LONGER)) {
                        return Some(self.begin_slow(own, member, took));
                    }
                }
                continue;
            };
            let is_late =
                reads.classes[..READ_CLASSES].iter().zip(slow.limits).any(|(class, limit)| {
                    class.late.iter().any(|late| own.saturating_sub(late.at) > limit)
                });
            if is_late && !planted(Planted::SlowMemberForgiven) {
                slow.late_at = own;
            }
            let quiet = (slow.late_at - slow.since) * 2;
            let least = QUIET_MIN * (1 << reads.relapses.min(RELAPSES_MAX));
            if own >= slow.late_at + quiet.max(least).min(QUIET_MAX) {
                return Some(self.end_slow(own, member));
            }
            let is_idle = reads.classes[..READ_CLASSES].iter().all(ClassRequests::is_idle);
            if slow.probe_at <= own && is_idle {
                slow.probe_at = own + PROBE_EVERY;
                return Some(Due::Probe(member));
            }
        }
        if self.compare_at <= own {
            self.compare_at = own + Duration::from_secs(1);
            return self.compare(own, whole);
        }
        None
    }

    fn end_slow(&mut self, own: Duration, member: MemberIndex) -> Due {
        self.members[member.as_usize()].forgive(own);
        self.slow.remove(member);
        Due::NotSlow(member)
    }

    /// A read that is late and was not hedged. Where what would be read for the hedge is late, too, a hedge is of no use; and
    /// all members are late together where they have more to do than they can.
    fn poll_late(&mut self, own: Duration) -> Option<Due> {
        let in_time = (0..).map(MemberIndex).zip(&self.members);
        let in_time = in_time.filter(|(_, requests)| !requests.owes_reads());
        let is_useful = self.geometry.can_serve_from(in_time.map(|(member, _)| member).collect());
        let is_capped = !self.shares.allow(own) && !planted(Planted::HedgesUncapped);
        let members = (0..).map(MemberIndex).zip(&mut self.members);
        for (member, reads) in members {
            // Reads that go past a slow member count as no hedges.
            if (is_capped || !is_useful) && reads.slow.is_none() {
                continue;
            }
            let late = reads.classes[..READ_CLASSES].iter_mut().flat_map(|class| &mut class.late);
            if let Some(late) = late.into_iter().find(|late| !late.is_hedged) {
                late.is_hedged = true;
                return Some(Due::Hedge(member, late.io));
            }
        }
        None
    }

    /// The member whose reads take ten times as long as those of its peers.
    fn compare(&mut self, own: Duration, whole: MemberSet) -> Option<Due> {
        for class in 0..READ_CLASSES {
            let median = |member: MemberIndex| {
                let reads = &self.members[member.as_usize()];
                reads.slow.is_none().then(|| reads.classes[class].times.median())?
            };
            let mut all: Vec<(Duration, MemberIndex)> =
                whole.iter().filter_map(|member| Some((median(member)?, member))).collect();
            all.sort_unstable();
            let Some((slowest, member)) = all.pop() else { continue };
            let Some((usual, _)) = all.get(all.len() / 2) else { continue };
            // Its last reads may be of a time when all were slow, which others have forgotten since.
            let is_still = self.members[member.as_usize()].longest.lately(own) >= slowest / 2;
            let is_slow = slowest >= self.deadlines.read.0 && slowest >= *usual * SLOWER;
            let any = (own, Duration::MAX);
            if is_slow && is_still && self.can_do_without(member, whole, Duration::ZERO, any) {
                return Some(self.begin_slow(own, member, slowest));
            }
        }
        None
    }

    fn begin_slow(&mut self, own: Duration, member: MemberIndex, took: Duration) -> Due {
        let limits = [0, 1].map(|class| self.usual_deadline(member, class));
        self.slow.insert(member);
        let (since, late_at, probe_at) = (own.saturating_sub(took), own, own + PROBE_EVERY);
        let requests = &mut self.members[member.as_usize()];
        let is_relapse = requests.fast_again_at.is_some_and(|at| own < at + RELAPSE_MAX);
        requests.relapses = if is_relapse { requests.relapses + 1 } else { 0 };
        requests.slow = Some(Slow { since, late_at, probe_at, limits });
        Due::Slow(member, took)
    }

    /// After how long a read is late at half of the other members, or at this one where that is later and within ten times
    /// of theirs: it may always have been slower.
    fn usual_deadline(&self, member: MemberIndex, class: usize) -> Duration {
        let deadline = |requests: &MemberRequests| requests.classes[class].times.deadline();
        let others = (0..).map(MemberIndex).zip(&self.members);
        let others = others.filter(|(other, reads)| *other != member && reads.slow.is_none());
        let mut others: Vec<Duration> = others.map(|(_, requests)| deadline(requests)).collect();
        others.sort_unstable();
        let usual = others.get(others.len() / 2).copied().unwrap_or(self.deadlines.read.1);
        let own = deadline(&self.members[member.as_usize()]);
        own.min(usual * SLOWER).max(usual)
    }

    /// Whether the array could serve from the members that answer in time, without this one. Those have answered since this
    /// moment, or owe nothing: who was cut off together is late together, and one is found out before the next. No read of
    /// theirs took longer than so long lately: where all have more to do than before, all of them take longer.
    fn can_do_without(
        &self,
        member: MemberIndex,
        whole: MemberSet,
        since: Duration,
        (own, longest): (Duration, Duration),
    ) -> bool {
        let in_time = |other: &MemberIndex| {
            let reads = &self.members[other.as_usize()];
            let has_answered = reads.answered_at >= since || reads.is_idle();
            let is_late =
                reads.late_in_a_row > 0 || self.owes(*other) || self.slow.contains(*other);
            let is_alike = reads.longest.lately(own) > longest;
            *other != member && has_answered && !is_late && !is_alike
        };
        self.geometry.can_serve_from(whole.iter().filter(in_time).collect())
    }

    /// The moment at which a request is sent, which is looked at from then on.
    fn own_time_to_tick(&mut self, now: Duration) -> Duration {
        let at = self.own_time(now);
        let next = now + TICK;
        self.tick_at = Some(self.tick_at.map_or(next, |at| at.min(next)));
        at
    }

    /// The moment, without the time in which the engine stood still.
    fn own_time(&mut self, now: Duration) -> Duration {
        if let Some(at) = &mut self.tick_at
            && *at + TICK_LATE < now
            && !planted(Planted::StandstillCounted)
        {
            self.stood_still += now - *at;
            *at = now;
        }
        self.own = self.own.max(now.saturating_sub(self.stood_still));
        self.own
    }
}

impl MemberRequests {
    fn new(epoch: u32, deadlines: &Deadlines) -> Self {
        let Deadlines { read, write, flush } = *deadlines;
        Self {
            // What is long takes its time.
            classes: [read, read, write, flush, flush].map(ClassRequests::new),
            epoch,
            late_in_a_row: 0,
            longest: Longest::default(),
            answered_at: Duration::ZERO,
            slow: None,
            fast_again_at: None,
            relapses: 0,
            counted_at: Duration::ZERO,
            longest_write: Longest::default(),
            crawl: None,
            is_quick: false,
            crawled_at: None,
            crawls: 0,
            give_up_at: Duration::ZERO,
            gave_up_at: None,
            give_ups: 0,
        }
    }

    /// A request of this class is sent to it.
    fn send(&mut self, class: usize, io: IoId, at: Duration) -> SentRequest {
        let requests = &mut self.classes[class];
        let number = requests.first + requests.under_way.len() as u64;
        requests.under_way.push_back(UnderWay { io, at, has_ended: false });
        SentRequest { class, number, epoch: self.epoch }
    }

    /// It is slow no longer. How long its reads took before says nothing.
    fn forgive(&mut self, own: Duration) {
        let Some(slow) = self.slow.take() else { return };
        (self.late_in_a_row, self.fast_again_at) = (0, Some(own));
        let reads = self.classes[..READ_CLASSES].iter_mut().zip(slow.limits);
        reads.for_each(|(class, limit)| class.times.forget(limit));
    }

    fn is_idle(&self) -> bool {
        self.classes.iter().all(ClassRequests::is_idle)
    }

    /// When the first of its writes that are under way was sent.
    fn oldest_write(&self) -> Option<Duration> {
        self.classes[WRITES..FLUSHES].iter().filter_map(ClassRequests::oldest).min()
    }

    /// Whether it owes an answer to a read that is late.
    fn owes_reads(&self) -> bool {
        self.classes[..READ_CLASSES].iter().any(|class| !class.late.is_empty())
    }

    /// Takes note of requests that are late by now. Reads that are late together are so by one delay.
    fn note_late(&mut self, own: Duration) {
        for (at, class) in self.classes.iter_mut().enumerate() {
            let is_read = at < READ_CLASSES;
            let deadline = match self.slow {
                Some(_) if is_read => Duration::ZERO,
                Some(_) | None => class.times.deadline(),
            };
            let before = class.late.len();
            class.note_late(own, deadline);
            let counts = |late: &Late| late.at >= self.counted_at;
            if is_read && class.late[before..].iter().any(counts) {
                self.late_in_a_row = self.late_in_a_row.saturating_add(1);
                self.counted_at = own;
            }
        }
    }
}

impl ClassRequests {
    fn new(bounds: (Duration, Duration)) -> Self {
        let (under_way, late) = (VecDeque::new(), Vec::new());
        Self { times: Times::new(bounds), under_way, first: 0, late }
    }

    /// When the first request of these classes was sent that is late, and when it was due.
    fn due_first(classes: &[Self]) -> Option<(Duration, Duration)> {
        let all = classes.iter().flat_map(|class| {
            class.late.iter().map(|late| (late.at, late.at + class.times.deadline()))
        });
        all.min()
    }

    fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.late.is_empty()
    }

    /// When the first request that has not ended was sent.
    fn oldest(&self) -> Option<Duration> {
        let late = self.late.iter().map(|late| late.at);
        let under_way = self.under_way.iter().find(|request| !request.has_ended);
        late.chain(under_way.map(|request| request.at)).min()
    }

    /// A read has ended; when it was sent.
    fn end(&mut self, number: u64) -> Duration {
        let Some(place) = number.checked_sub(self.first) else {
            let late = self.late.iter().position(|late| late.number == number);
            let Some(at) = late else { unreachable!("read {number} ended twice") };
            return self.late.swap_remove(at).at;
        };
        let place: usize = narrow(place);
        let Some(read) = self.under_way.get_mut(place).filter(|read| !read.has_ended) else {
            unreachable!("read {number} is not under way")
        };
        read.has_ended = true;
        let at = read.at;
        self.drop_ended();
        at
    }

    fn drop_ended(&mut self) {
        while self.under_way.pop_front_if(|read| read.has_ended).is_some() {
            self.first += 1;
        }
    }

    /// Takes note of requests that have been under way for so long.
    fn note_late(&mut self, own: Duration, deadline: Duration) {
        loop {
            self.drop_ended();
            let is_late = |read: &mut UnderWay| own.saturating_sub(read.at) >= deadline;
            let Some(UnderWay { io, at, .. }) = self.under_way.pop_front_if(is_late) else {
                return;
            };
            self.late.push(Late { number: self.first, io, at, is_hedged: false });
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests;
