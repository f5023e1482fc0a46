//! An array that cannot serve from the members that are left pauses: users' requests wait, for a bounded time, until
//! enough members are back; then the array is opened anew, and goes on.
//!
//! ```text
//! failed ─▶ draining ─▶ waiting ─▶ opening ─▶ recovering ─▶ writing again ─▶ open
//!              ▲            ▲          │           │              │
//!              │            └──────────┘           │              │
//!              └───────────────────────────────────┴──────────────┘
//! ```
//!
//! The machine that failed is given up as if its engine had died, and the next one recovers what is on the members. So
//! nothing of what a pause does is special to it, but for what the engine still has in memory: requests that have not
//! ended, which are made again; and what was acknowledged and not stable ([`Unstable`]). Where recovery lacks some of
//! that, what is in memory is written again, before any user's request. The rest is lost: it reads as an error until it
//! is written anew, and flushes that were asked for before users were told fail once.
//!
//! Invariants: nothing is opened while a request to a member, or an attempt to find one, is under way; what was
//! acknowledged is never read as older contents while the volume is open; every pause ends, at its limit at the latest but
//! for an opening that is under way then.
//!
//! Not here: whether another engine has the array meanwhile, which the opening finds out
//! ([`crate::opening::Options::continues`]).

use alloc::{boxed::Box, format, string::String, vec::Vec};
use core::{mem, ops::Range, time::Duration};

use netraid_block::{ErrorKind, IoError, Op, RequestFlags, SgList, narrow};
use rangemap::RangeSet;

use super::{
    Action, Event, Found, JoinError, Life, Volume,
    joining::Joining,
    machine::Machine,
    places::Place,
    users::{Ask, Read},
};
use crate::{
    array::RequestId,
    log::Position,
    logged::{Again, Lost, Unstable},
    member::{ArrayState, MemberIndex, MemberSet},
    planted::{Planted, planted},
    presence::Presence,
};

/// From one attempt to open the array to the next one, at first and at most.
const EVERY_MIN: Duration = Duration::from_millis(250);
const EVERY_MAX: Duration = Duration::from_secs(2);
/// Bytes of requests that are kept of those that come during a pause; more wait where they come from.
const HELD_MAX: u64 = 256 << 20;
/// Pauses after which a request that still has not ended does so, with the array's failure: it may be what the array fails
/// by.
const TRIES_MAX: u8 = 8;
/// A pause goes on with the one before it where that ended so recently, and no request has ended well since.
const RECENT: Duration = Duration::from_secs(10);
/// Writes that are made again at once.
const AGAIN_AT_ONCE: usize = 64;
/// From this number on requests are the volume's own, which writes again; below are users'.
const AGAIN_FROM: u64 = 1 << 62;
/// The first number beyond them: what is read ahead has that bit.
const AGAIN_UPTO: u64 = 1 << 63;

/// The pauses of a volume.
#[derive(Debug)]
pub(super) struct Pauses {
    /// Longest that one takes; zero: the array fails at once.
    limit: Duration,
    now: Option<Box<Paused>>,
    /// Bytes of the volume that were acknowledged and are lost: they read as an error until they are written anew.
    lost: RangeSet<u64>,
    /// The next flush fails, since users have not been told of what is lost.
    tells_by_flush: bool,
    /// Bytes of requests that came during a pause.
    held_bytes: u64,
    /// The array has failed for good: it pauses no more.
    is_over: bool,
    /// The volume is to close soon: it pauses no more, and a pause ends after one attempt.
    is_last: bool,
    /// The last pause, until a user's request has ended well since.
    last: Option<Last>,
}

/// A pause that has ended, after which the array went on.
#[derive(Debug)]
struct Last {
    since: Duration,
    ended: Duration,
    /// How long is waited between attempts.
    every: Duration,
}

/// A pause.
#[derive(Debug)]
struct Paused {
    since: Duration,
    /// Why the array failed.
    failure: IoError,
    stage: Stage,
    /// How long is waited before the next attempt.
    every: Duration,
    /// Also before the first one.
    waits: bool,
    /// Why the last attempt failed.
    last: Option<String>,
    unstable: Unstable,
    /// Everything of it below this position of the log is on the members, as all openings have found.
    upto: Position,
    /// What is written again.
    again: Vec<Again>,
    /// What is lost, beside what could not be written again.
    gone: Vec<Range<u64>>,
    /// The volume is to close.
    closes: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Requests to members, and attempts to find some, end.
    Draining,
    /// Until the next attempt.
    Waiting(Duration),
    /// The shell opens the array.
    Opening,
    /// The new machine recovers.
    Recovering,
    /// What was lost and is in memory is written again: how many writes have begun, and are under way.
    WritingAgain { begun: usize, under_way: usize },
}

/// An array that was opened anew.
#[derive(Debug)]
pub struct Reopened<M> {
    /// Its machine.
    pub machine: M,
    /// By member.
    pub places: Vec<Found>,
}

/// Why an array was not opened anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReopened {
    /// In words.
    pub reason: String,
    /// It never will be: another engine has it.
    pub is_final: bool,
}

impl Pauses {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            now: None,
            lost: RangeSet::new(),
            tells_by_flush: false,
            held_bytes: 0,
            is_over: false,
            is_last: false,
            last: None,
        }
    }

    /// A user's request has ended well: the array goes on.
    #[inline]
    pub(super) const fn note_progress(&mut self) {
        self.last = None;
    }

    /// A request comes during a pause.
    pub(super) const fn hold(&mut self, data_len: u64) {
        self.held_bytes += data_len;
    }

    /// Whether more requests may come, during a pause or without one.
    pub(super) const fn has_room(&self) -> bool {
        self.held_bytes < HELD_MAX
    }

    /// Whether what users ask for is kept, to be asked for again.
    pub(super) const fn keep_requests(&self) -> bool {
        !self.limit.is_zero()
    }

    /// When something is due.
    pub(super) fn next_timeout(&self) -> Option<Duration> {
        match self.now.as_ref()?.stage {
            Stage::Waiting(until) => Some(until),
            Stage::Draining | Stage::Opening | Stage::Recovering | Stage::WritingAgain { .. } => {
                None
            }
        }
    }

    /// Why a user's request ends at once, if it does.
    #[inline]
    pub(super) fn refusal(&mut self, op: Op, offset: u64, len: u64) -> Option<IoError> {
        if self.lost.is_empty() && !self.tells_by_flush {
            return None;
        }
        self.refusal_of_lost(op, offset, len)
    }

    #[cold]
    fn refusal_of_lost(&mut self, op: Op, offset: u64, len: u64) -> Option<IoError> {
        match op {
            Op::Read => {
                let end = offset + len;
                let (from, to) = self.lost.overlapping(&(offset..end)).next().map(bounds)?;
                let text = format!(
                    "bytes {from} to {} were acknowledged, not flushed, and are lost with the caches of members \
                     that were away; write them anew",
                    to - 1,
                );
                Some(IoError::with_detail(ErrorKind::Medium, text))
            }
            // Where all of it was written anew since, there is nothing to be told.
            Op::Flush if mem::take(&mut self.tells_by_flush) && !self.lost.is_empty() => {
                Some(self.loss())
            }
            Op::Flush | Op::Write | Op::WriteZeroes | Op::Discard | Op::Extents => None,
        }
    }

    /// What is lost, in words.
    fn loss(&self) -> IoError {
        /// Ranges that an error names.
        const SHOWN: usize = 4;
        let all = self.lost.iter().map(bounds);
        let shown = all.take(SHOWN).map(|(from, to)| format!("{from} to {}", to - 1));
        let shown = shown.collect::<Vec<String>>().join(", ");
        let more = match self.lost.iter().count().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(", and {more} more ranges"),
        };
        let text = format!(
            "writes that were acknowledged and not flushed are lost with the caches of members that were away: bytes \
             {shown}{more}; write them anew"
        );
        IoError::with_detail(ErrorKind::Medium, text)
    }

    /// Whether it matters that a user's request has ended well.
    #[inline]
    pub(super) fn is_to_note(&self) -> bool {
        self.last.is_some() || !self.lost.is_empty()
    }

    /// A user, or the volume itself, has written a range.
    pub(super) fn note_written(&mut self, offset: u64, len: u64) {
        if len > 0 {
            self.lost.remove(offset..offset + len);
        }
    }
}

fn bounds(range: &Range<u64>) -> (u64, u64) {
    (range.start, range.end)
}

/// The failure, without what is to be done once the array has failed for good.
fn for_now(failure: &IoError) -> IoError {
    let text = format!("{failure}");
    let text = text.strip_suffix(" and attach again").unwrap_or(&text);
    IoError::with_detail(failure.kind(), String::from(text))
}

impl<M: Machine, U> Volume<M, U> {
    /// Whether users' requests wait until enough members are back.
    #[must_use]
    pub const fn is_paused(&self) -> bool {
        matches!(self.life, Life::Paused)
    }

    /// Why users' requests wait, and since when; what the last attempt to go on met, if there was one.
    #[must_use]
    pub fn pause(&self) -> Option<(&IoError, Duration, Option<&str>)> {
        self.pauses.now.as_ref().map(|pause| (&pause.failure, pause.since, pause.last.as_deref()))
    }

    /// Bytes of the volume that were acknowledged and are lost, and not written anew since: ascending ranges.
    pub fn lost(&self) -> impl Iterator<Item = Range<u64>> {
        self.pauses.lost.iter().cloned()
    }

    /// Whether a request that ended with an error is kept, since the array pauses by that.
    pub(super) fn keeps_failed(&self) -> bool {
        self.is_paused() || (self.life == Life::Open && self.will_pause().is_some())
    }

    /// Why the array is to pause.
    fn will_pause(&self) -> Option<IoError> {
        let Pauses { is_over, is_last, .. } = self.pauses;
        let pauses = self.pauses.keep_requests() && !is_over && !is_last;
        if !pauses || !self.machine.can_be_opened_anew() {
            return None;
        }
        let failure = self.machine.failure();
        let failure = failure.filter(|failure| failure.kind() == ErrorKind::Redundancy)?;
        let mut others: MemberSet = self.machine.geometry().member_indices().collect();
        let stay_away = self.set_aside().iter().chain(self.that_answer_so().iter());
        stay_away.for_each(|member| others.remove(member));
        self.machine.geometry().can_serve_from(others).then_some(failure)
    }

    /// Members that do not come back by themselves, and are excluded by stable labels: who is not may have what the others lack.
    fn set_aside(&self) -> MemberSet {
        let is_aside = |member: MemberIndex, place: &Place| {
            !place.returning.by_itself && self.machine.is_excluded(member)
        };
        self.those(is_aside)
    }

    /// Members whose devices answered with a failure the last time that something failed.
    fn that_answer_so(&self) -> MemberSet {
        self.those(|_, place| place.returning.answers_so)
    }

    fn those(&self, are_meant: impl Fn(MemberIndex, &Place) -> bool) -> MemberSet {
        let all = (0..).map(MemberIndex).zip(&self.places);
        all.filter(|(at, place)| are_meant(*at, place)).map(|(member, _)| member).collect()
    }

    /// The machine has told that it failed: the array pauses, or goes on with that.
    pub(super) fn pause_if_failed(&mut self, now: Duration) -> bool {
        match self.life {
            Life::Paused => self.note_failed_attempt(),
            Life::Open => {
                let Some(failure) = self.will_pause() else { return false };
                self.begin_pause(now, failure);
            }
            Life::Opening | Life::Ending | Life::Closing | Life::Closed => return false,
        }
        true
    }

    fn begin_pause(&mut self, now: Duration, failure: IoError) {
        let unstable = match self.machine.unstable() {
            Ok(unstable) => unstable,
            Err(error) => {
                // What is in memory is wrong: nothing goes on with it.
                self.tell(Event::Notice(format!("the array cannot go on later: {error}")));
                self.part_all();
                return self.end_for_good(&failure);
            }
        };
        // One that follows on another without anything in between goes on with that: the array may fail by itself.
        let last = self.pauses.last.take().filter(|last| now < last.ended + RECENT);
        let waits = last.is_some();
        let (since, every) = last.map_or((now, EVERY_MIN), |last| (last.since, last.every));
        let failure = for_now(&failure);
        let text = format!("{failure}; requests wait up to {} s", self.pauses.limit.as_secs_f64());
        self.pauses.now = Some(Box::new(Paused {
            since,
            failure,
            stage: Stage::Draining,
            every,
            waits,
            last: None,
            unstable,
            upto: Position(u64::MAX),
            again: Vec::new(),
            gone: Vec::new(),
            closes: false,
        }));
        self.life = Life::Paused;
        self.tell(Event::State(ArrayState::Paused));
        self.tell(Event::Notice(text));
        // Reads that wait for their turn are made again with all others.
        self.users.begin_again();
        self.part_all();
        if let Joining::Ready { member, .. } = self.joining {
            self.actions.push_back(Action::LetGo(member));
            self.answer_join(member, Err(JoinError::NotOpen));
        }
    }

    /// Ends the sessions to all members, as if this engine had died.
    fn part_all(&mut self) {
        self.scrub_pace.end();
        self.cut_copy("the array pauses".into());
        for (member, place) in (0..).map(MemberIndex).zip(&mut self.places) {
            place.is_awaited = false;
            if place.device.take().is_some() {
                self.actions.push_back(Action::Cut(member));
            }
        }
    }

    /// The machine that was opened anew has failed.
    fn note_failed_attempt(&mut self) {
        let failure = self.machine.failure();
        self.note_recovered();
        let Some(pause) = &mut self.pauses.now else { unreachable!("paused, and not why") };
        pause.last = failure.as_ref().map(|failure| format!("{failure}"));
        pause.stage = Stage::Draining;
        if let Some(failure) = failure.filter(|failure| failure.kind() == ErrorKind::Fenced) {
            return self.fail_for_good(failure);
        }
        self.part_all();
    }

    /// Takes note of how far the machine has found what was acknowledged, when it was opened.
    fn note_recovered(&mut self) {
        if let Some(pause) = &mut self.pauses.now {
            pause.upto =
                self.machine.recovered_upto().map_or(pause.upto, |upto| upto.min(pause.upto));
        }
    }

    /// Whether the volume waits for the ends of what is under way before it goes on with the pause.
    fn is_drained(&self) -> bool {
        let is_over = matches!(self.joining, Joining::Nobody) && !self.some_return();
        is_over && self.successions.is_quiet() && self.in_flight.iter().all(Option::is_none)
    }

    /// Goes on with a pause where that waits for nothing but what is under way.
    pub(super) fn go_on_pausing(&mut self, now: Duration) -> bool {
        let Some(pause) = &self.pauses.now else { return false };
        match pause.stage {
            Stage::Draining if self.is_drained() => {
                self.wait_for_attempt(now);
                true
            }
            Stage::WritingAgain { begun, under_way } => self.write_again(now, begun, under_way),
            Stage::Draining | Stage::Waiting(_) | Stage::Opening | Stage::Recovering => false,
        }
    }

    /// When the next attempt is made: the first one at once, and the last one when the time is over.
    fn wait_for_attempt(&mut self, now: Duration) {
        let Pauses { limit, is_last, .. } = self.pauses;
        let Some(pause) = &mut self.pauses.now else { return };
        // At once, unless the pause goes on with another one.
        let is_first = pause.last.is_none() && !pause.waits;
        let end = pause.since + limit;
        let is_over = (now >= end || is_last) && !planted(Planted::PauseNeverEnds);
        if pause.closes || (is_over && !is_first) {
            return self.end_pause_in_vain();
        }
        let later = (now + pause.every).min(end.max(now));
        pause.every = (pause.every * 2).min(EVERY_MAX);
        pause.stage = Stage::Waiting(if is_first { now } else { later });
        self.attempt(now);
    }

    /// Has the array opened anew where that is due.
    pub(super) fn attempt(&mut self, now: Duration) {
        let Some(pause) = &mut self.pauses.now else { return };
        if matches!(pause.stage, Stage::Waiting(at) if at <= now) {
            pause.stage = Stage::Opening;
            let but = self.set_aside();
            self.actions.push_back(Action::Reopen { but });
        }
    }

    /// What came of [`Action::Reopen`].
    ///
    /// # Panics
    /// When nobody asked for it, or there are more or fewer places than members.
    pub fn handle_reopened(&mut self, now: Duration, end: Result<Reopened<M>, NotReopened>) {
        let Some(pause) = &mut self.pauses.now else { unreachable!("nobody pauses") };
        assert_eq!(pause.stage, Stage::Opening, "nobody asked for the array to be opened");
        match end {
            Ok(Reopened { machine, places }) => {
                pause.stage = Stage::Recovering;
                self.take_machine(machine, places);
            }
            Err(NotReopened { reason, is_final: true }) => {
                self.fail_for_good(IoError::with_detail(ErrorKind::Fenced, reason));
            }
            Err(NotReopened { reason, is_final: false }) => {
                pause.last = Some(reason);
                self.wait_for_attempt(now);
            }
        }
    }

    /// Goes on with another machine of the same array.
    fn take_machine(&mut self, machine: M, places: Vec<Found>) {
        let before = self.machine.geometry();
        assert_eq!(*before, *machine.geometry(), "the array was opened anew with another shape");
        assert_eq!(places.len(), self.places.len(), "a place of every member");
        self.machine = machine;
        for (place, found) in self.places.iter_mut().zip(Place::all(places)) {
            let before = mem::replace(place, found);
            place.follow(before);
        }
        self.presence = Presence::new(self.places.len());
        for member in self.slow().iter() {
            self.tell(Event::Slow { member, failure: None });
        }
        self.slowness.begin_anew();
        self.ended_at_once.clear();
        if self.rebuild_pace.next().is_some()
            && let Some(machine) = self.machine.scrubbed()
        {
            machine.handle_catch_up_allowance(Some(0));
        }
    }

    /// The machine that was opened anew takes requests.
    pub(super) fn end_recovery(&mut self, now: Duration) {
        self.note_recovered();
        let Some(pause) = &mut self.pauses.now else { return };
        match pause.unstable.lost(pause.upto).filter(|_| !planted(Planted::LossForgottenByPause)) {
            Some(Lost { again, gone }) => {
                (pause.again, pause.gone) = (again, gone);
                pause.stage = Stage::WritingAgain { begun: 0, under_way: 0 };
            }
            None => self.resume(now),
        }
    }

    /// Writes what is in memory and was lost; false when there is nothing to be done now.
    fn write_again(&mut self, now: Duration, begun: usize, under_way: usize) -> bool {
        if self.machine.failure().is_some() {
            return false;
        }
        let Some(pause) = &mut self.pauses.now else { return false };
        let all = &pause.again;
        if under_way >= AGAIN_AT_ONCE {
            return false;
        }
        let Some(again) = all.get(begun).cloned() else {
            if under_way > 0 {
                return false;
            }
            let gone = mem::take(&mut pause.gone);
            if !gone.is_empty() {
                self.pauses.tells_by_flush = !planted(Planted::FlushAfterLossSucceeds);
                self.pauses.lost.extend(gone);
            }
            self.resume(now);
            return true;
        };
        // Zeros come first, and what was written over them follows them.
        let waits = begun > 0 && all[begun - 1].data.is_none() && again.data.is_some();
        if waits && under_way > 0 {
            return false;
        }
        pause.stage = Stage::WritingAgain { begun: begun + 1, under_way: under_way + 1 };
        self.begin_again(begun, &again);
        true
    }

    fn begin_again(&mut self, number: usize, again: &Again) {
        let id = RequestId(AGAIN_FROM + number as u64);
        let Again { offset, len, data } = again;
        let (op, data) = match data {
            Some(data) => (Op::Write, SgList::from(data.clone())),
            None => (Op::WriteZeroes, SgList::new()),
        };
        self.machine.handle_request(id, (op, *offset, *len), RequestFlags::default(), data);
    }

    /// Whether a request is one of the volume's own, which writes again.
    pub(super) const fn is_again(id: RequestId) -> bool {
        AGAIN_FROM <= id.0 && id.0 < AGAIN_UPTO
    }

    /// What was written again is there, or could not be.
    pub(super) fn end_again(&mut self, id: RequestId, result: Result<SgList, IoError>) {
        let Some(pause) = &mut self.pauses.now else { return };
        let Stage::WritingAgain { under_way, .. } = &mut pause.stage else { return };
        *under_way -= 1;
        let number: usize = narrow(id.0 - AGAIN_FROM);
        let Again { offset, len, .. } = pause.again[number];
        match result {
            // What was lost before of these bytes, and not written anew, stays lost: older bytes were beside new ones.
            Ok(_) => {}
            // When the machine failed, the next one has it written again.
            Err(_) if self.machine.failure().is_some() => {}
            Err(error) => {
                pause.gone.push(offset..offset + len);
                self.tell(Event::Notice(format!(
                    "{len} bytes at {offset}, which were acknowledged and lost, could not be written again: {error}"
                )));
            }
        }
    }

    /// Users' requests are made again, and the array serves.
    fn resume(&mut self, now: Duration) {
        let Some(pause) = self.pauses.now.take() else { return };
        (self.life, self.pauses.held_bytes) = (Life::Open, 0);
        self.pauses.last = Some(Last { since: pause.since, ended: now, every: pause.every });
        let long = now.saturating_sub(pause.since).as_secs_f64();
        if self.pauses.tells_by_flush {
            let loss = self.pauses.loss();
            self.tell(Event::Notice(format!("{loss}")));
        }
        self.tell(Event::Notice(format!(
            "enough members are back after {long:.1} s: requests go on"
        )));
        self.tell(Event::State(self.machine.state()));
        self.make_again(now, &pause);
        if pause.closes {
            self.handle_close();
        }
    }

    /// Makes users' requests again that had not ended when the array paused, and those that came since. All flushes
    /// among them tell of what is lost.
    fn make_again(&mut self, now: Duration, pause: &Paused) {
        self.begin_reading_ahead();
        let is_told = self.pauses.tells_by_flush && !self.pauses.lost.is_empty();
        let loss = is_told.then(|| self.pauses.loss());
        for id in self.users.begin_again() {
            if self.users.try_again(id) > TRIES_MAX {
                let error = pause.failure.clone();
                self.end_user_now(id, Err(error));
                continue;
            }
            let Some(ask) = self.users.ask(id) else {
                unreachable!("what request {} was for was not kept", id.0)
            };
            match ask {
                Ask::Atomic(write) => {
                    self.ahead.iter_mut().for_each(|ahead| ahead.handle_change(id, write.span()));
                    self.machine.handle_atomic_write(id, write);
                }
                Ask::Range { what: (op, offset, len), flags, data } => {
                    let refusal = match (&loss, op) {
                        (Some(loss), Op::Flush) => {
                            self.pauses.tells_by_flush = false;
                            Some(loss.clone())
                        }
                        _ => self.pauses.refusal(op, offset, len),
                    };
                    if let Some(error) = refusal {
                        self.end_user_now(id, Err(error));
                        continue;
                    }
                    if op.changes() && !planted(Planted::MadeAgainBehindReadAhead) {
                        let range = offset..offset + len;
                        self.ahead
                            .iter_mut()
                            .for_each(|ahead| ahead.handle_change(id, range.clone()));
                    }
                    if op != Op::Read || self.users.admit(now, Read { id, offset, len }) {
                        self.machine.handle_request(id, (op, offset, len), flags, data);
                    }
                }
            }
        }
    }

    /// The pause ends, and not enough members are back.
    fn end_pause_in_vain(&mut self) {
        let Some(pause) = &self.pauses.now else { return };
        let last = pause.last.as_ref().map(|last| format!("; the last attempt to go on: {last}"));
        let (limit, last) = (self.pauses.limit.as_secs_f64(), last.unwrap_or_default());
        let text =
            format!("{} and attach again (after a pause of up to {limit} s{last})", pause.failure);
        self.fail_for_good(IoError::with_detail(ErrorKind::Redundancy, text));
    }

    /// The array has failed for good.
    fn fail_for_good(&mut self, failure: IoError) {
        let Some(pause) = self.pauses.now.take() else { return };
        self.life = Life::Open;
        self.part_all();
        self.end_for_good(&failure);
        if pause.closes {
            self.handle_close();
        }
    }

    /// What users asked for ends, since the array has failed for good.
    fn end_for_good(&mut self, failure: &IoError) {
        (self.pauses.is_over, self.pauses.held_bytes) = (true, 0);
        self.ahead = None;
        self.tell(Event::State(ArrayState::Failed));
        for id in self.users.begin_again() {
            self.end_user_now(id, Err(failure.clone()));
        }
    }

    /// The volume is to close as soon as users' requests have ended, and they wait for members no longer: a pause ends with
    /// the attempt that is under way, or with one that is made at once, and the array does not pause any more.
    pub fn handle_pause_no_more(&mut self, now: Duration) {
        self.pauses.is_last = true;
        let Some(pause) = &mut self.pauses.now else { return };
        if matches!(pause.stage, Stage::Waiting(_)) {
            pause.stage = Stage::Waiting(now);
            self.attempt(now);
        }
    }

    /// The volume is to close while it pauses.
    pub(super) fn close_in_pause(&mut self) {
        let Some(pause) = &mut self.pauses.now else { return };
        pause.closes = true;
        if matches!(pause.stage, Stage::Waiting(_)) {
            self.end_pause_in_vain();
        }
    }
}
