//! An array with all that decides around its machine: reading ahead, how much users read at once, the members'
//! places, members that are away, come back or are replaced, and how fast scrub and rebuild go.
//!
//! ```text
//! users' requests ──▶ Volume ──▶ requests to the devices in members' places
//!              ends ◀── (machine) ◀── ends
//! ```
//!
//! Whoever drives a volume gives it what happened (`handle_*`, with the time where that matters), then does what
//! [`Volume::poll`] says until there is nothing left, and waits; at [`Volume::next_timeout`] it looks at the members'
//! sessions and tells what it saw. Times are counted from anywhere, and never go back.
//!
//! Invariants: a request goes to a member only while its place has a device, and none after [`Action::Part`]; one
//! device at most is on its way into a place by command, and none is in two places; what a device answers that has
//! lost its cache is not believed.
//!
//! How a device is proven to be a member, and fenced, is in [`preparing`]. Not here: how a device is reached, and how
//! the array is opened ([`crate::opening`]); bytes of requests, which the machine has.

mod candidates;
mod either;
mod heartbeats;
mod interface;
mod joining;
mod logged;
mod looks;
mod machine;
mod meters;
mod pace;
mod pause;
mod places;
mod plain;
pub mod preparing;
mod reader;
mod requests;
mod returns;
mod slow;
mod spares;
mod succession;
mod tally;
#[cfg(test)]
mod tests;
mod users;

use alloc::{collections::VecDeque, string::String, vec::Vec};
use core::time::Duration;

use netraid_block::{IoError, SgList};

pub use candidates::{NotFormer, check_former, serves_as};
pub use either::{PlainOrLogged, Progress, Status};
pub use interface::{
    Action, Candidate, Config, Device, Event, Expect, Found, JoinError, Report, Stats, Tag,
};
pub use logged::{Logged, logged_caps};
pub use machine::{Do, Machine, Told};
pub use pace::{ScrubError, ScrubOrder};
pub use pause::{NotReopened, Reopened};
pub use places::Look;
pub use plain::Plain;

use crate::{
    array::IoId,
    member::{MemberIndex, MemberState},
    planted::{Planted, planted},
    presence::Presence,
    read_ahead::{ReadAhead, Stats as AheadStats},
    read_window::BOUNDED_LEN,
    slowness::Slowness,
};
use heartbeats::Heartbeats;
use joining::Joining;
use meters::Meters;
use pace::Pace;
use pause::Pauses;
use places::Place;
use reader::Reader;
use requests::InFlight;
use spares::Spares;
use succession::Successions;
use users::Users;

/// Users' requests that were taken and have not ended; more wait in their queue.
const REQUESTS_MAX: usize = 4096;

/// An open array; see the module. `U` is what a user's request is known by.
#[derive(Debug)]
pub struct Volume<M, U> {
    machine: M,
    places: Vec<Place>,
    /// By number of the member request.
    in_flight: Vec<Option<InFlight>>,
    users: Users<U>,
    /// None: nothing is read ahead.
    ahead: Option<ReadAhead>,
    /// Bytes of memory for that.
    ahead_memory: Option<u64>,
    /// What is to be done before the machine is asked for more.
    actions: VecDeque<Action<U>>,
    /// Member requests that never left.
    ended_at_once: VecDeque<(IoId, Result<SgList, IoError>)>,
    /// A device that somebody wants to take a member's place.
    joining: Joining,
    life: Life,
    /// It is to close as soon as it is open.
    closes_when_open: bool,
    /// What is known of the sessions to the members.
    presence: Presence,
    /// How fast the members answer.
    slowness: Slowness,
    /// When the members' sessions are looked at next.
    look_at: Duration,
    looks: u32,
    /// Somebody asked for something since the last look.
    is_busy: bool,
    /// How fast a scrub goes.
    scrub_pace: Pace,
    /// How fast members catch up, where that is limited.
    rebuild_pace: Pace,
    /// How fast scrubs and rebuilds are found to go.
    meters: Meters,
    pauses: Pauses,
    spares: Spares,
    /// A device that is to succeed a member's.
    successions: Successions,
    heartbeats: Heartbeats,
    reader: Reader,
}

/// How far a volume has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// The machine does not take requests yet.
    Opening,
    /// Users' requests are taken.
    Open,
    /// Users' requests are taken, and wait until enough members are back.
    Paused,
    /// It is to close; users' requests end.
    Ending,
    /// The machine closes.
    Closing,
    /// It asks for nothing more.
    Closed,
}

impl<M: Machine, U> Volume<M, U> {
    /// A volume around a machine that has just been opened with the devices in these places.
    ///
    /// # Panics
    /// When there are more or fewer places than members.
    #[must_use]
    pub fn new(machine: M, config: Config) -> Self {
        let geometry = machine.geometry();
        let Config { places, read_ahead, reads_under_way, large_from, pause, deadlines } = config;
        assert_eq!(places.len(), usize::from(geometry.members()), "a place of every member");
        let ahead = read_ahead.map(|memory| ReadAhead::new(geometry, memory));
        let users = Users::new(geometry, reads_under_way, large_from.unwrap_or(BOUNDED_LEN));
        let presence = Presence::new(places.len());
        let slowness = Slowness::new(geometry, deadlines);
        let pause = if machine.can_be_opened_anew() { pause } else { Duration::ZERO };
        Self {
            machine,
            places: Place::all(places),
            in_flight: Vec::new(),
            users,
            ahead,
            ahead_memory: read_ahead,
            actions: VecDeque::new(),
            ended_at_once: VecDeque::new(),
            joining: Joining::Nobody,
            life: Life::Opening,
            closes_when_open: false,
            presence,
            slowness,
            look_at: Duration::ZERO,
            looks: 0,
            is_busy: false,
            scrub_pace: Pace::default(),
            rebuild_pace: Pace::default(),
            meters: Meters::default(),
            pauses: Pauses::new(pause),
            spares: Spares::default(),
            successions: Successions::default(),
            heartbeats: Heartbeats::default(),
            reader: Reader::default(),
        }
    }

    /// Whether users' requests are taken at the moment; else they wait in their queue, or for the end.
    #[must_use]
    pub fn accepts(&self) -> bool {
        let is_taking = matches!(self.life, Life::Open | Life::Paused);
        is_taking && self.users.len() < REQUESTS_MAX && self.pauses.has_room()
    }

    /// Everything is stable and the labels say so, or the array failed: nothing more is asked for.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.life == Life::Closed
    }

    /// The machine.
    #[must_use]
    pub const fn machine(&self) -> &M {
        &self.machine
    }

    /// What came of reading ahead, where that is done.
    #[must_use]
    pub fn read_ahead_stats(&self) -> Option<AheadStats> {
        self.ahead.as_ref().map(ReadAhead::stats)
    }

    /// What was asked of the device in a member's place.
    #[must_use]
    pub fn stats(&self, member: MemberIndex) -> &Stats {
        &self.places[member.as_usize()].stats
    }

    /// Where a member's device is or was, if that is known.
    #[must_use]
    pub fn address(&self, member: MemberIndex) -> Option<&str> {
        self.places[member.as_usize()].address.as_deref()
    }

    /// A member's device is at another address from now on, for when it is looked for.
    pub fn handle_moved(&mut self, member: MemberIndex, address: String) {
        self.places[member.as_usize()].address = Some(address);
    }

    /// Requests of users, and requests to members, that have not ended.
    #[must_use]
    pub fn under_way(&self) -> (usize, usize) {
        (self.users.len(), self.in_flight.iter().flatten().count())
    }

    /// Users' requests that are in flight end, then everything is made stable.
    pub fn handle_close(&mut self) {
        match self.life {
            Life::Opening => self.closes_when_open = true,
            Life::Open => {
                self.life = Life::Ending;
                self.end_copy("the array closes".into());
                self.ahead.iter_mut().for_each(ReadAhead::stop);
            }
            Life::Paused => self.close_in_pause(),
            Life::Ending | Life::Closing | Life::Closed => {}
        }
    }

    /// What is to be done next; nothing until something happens.
    pub fn poll(&mut self, now: Duration) -> Option<Action<U>> {
        loop {
            if let Some(action) = self.actions.pop_front() {
                return Some(action);
            }
            if let Some(asked) = self.machine.poll_action() {
                self.execute(now, asked);
            } else if let Some(told) = self.machine.poll_event() {
                self.hear(now, told);
            } else if !self.go_on(now) {
                return None;
            }
        }
    }

    fn execute(&mut self, now: Duration, asked: Do) {
        match asked {
            Do::Submit { io, member, op, offset, len, fua, data, to } => {
                self.submit(now, io, (member, to), (op, offset, len), fua, data);
            }
            Do::Complete { request, result } => self.end_request(now, request, result),
        }
    }

    /// Does one of the things that wait until the machine asks for nothing; false when there is none.
    fn go_on(&mut self, now: Duration) -> bool {
        if let Some((io, result)) = self.ended_at_once.pop_front() {
            self.in_flight[io.0] = None;
            if !planted(Planted::NeverSentNeverEnds) {
                self.machine.handle_io_done(io, result);
            }
        } else if !planted(Planted::WaitingReadsStay)
            && let Some(read) = self.users.next_read(now)
        {
            self.begin_read(read);
        } else if let Some((user, result)) = self.users.next_end() {
            self.actions.push_back(Action::Complete { user, result });
        } else if self.is_to_hand_over() {
            self.hand_over();
        } else if self.will_not_take_part() {
            self.end_join_for_good();
        } else if self.go_on_succession() || self.go_on_pausing(now) {
            // Something is to be done.
        } else if self.life == Life::Ending
            && (self.is_idle() || planted(Planted::ClosesBesideRequests))
        {
            // With a log, an array that has failed has told its end before.
            let has_told = self.machine.has_log() && self.machine.failure().is_some();
            self.life = if has_told { Life::Closed } else { Life::Closing };
            if !has_told {
                self.keep_counters(now);
            }
            self.machine.handle_close();
        } else {
            return false;
        }
        true
    }

    fn hear(&mut self, now: Duration, told: Told) {
        match told {
            Told::Opened if self.is_paused() => self.end_recovery(now),
            Told::Opened => self.end_opening(Ok(())),
            Told::Closed if self.pause_if_failed(now) => {}
            Told::Closed => self.hear_closed(),
            Told::Member { member, state, reason } => {
                self.end_join(member, state.is_live(), &reason);
                self.places[member.as_usize()].is_awaited = false;
                // What is there and not up to date when the array is opened catches up right away.
                let catches_up = matches!(self.life, Life::Opening | Life::Paused)
                    && (state != MemberState::Faulty || planted(Planted::FaultyWhileOpeningStays));
                if !state.is_live() {
                    self.forget_slowness(member);
                }
                let place = &mut self.places[member.as_usize()];
                if !state.is_live() && !catches_up && !planted(Planted::PartedStays) {
                    place.returning.has_left();
                    if place.device.take().is_some() {
                        self.actions.push_back(Action::Part(member));
                    }
                    self.succeed_who_left(member);
                }
                self.tell(Event::Member { member, state, reason });
            }
            Told::Found { member, fault, count } => self.note_fault(member, fault, count),
            // What the array is now is told when the pause ends.
            Told::Other(Event::State(_)) if self.keeps_failed() => {}
            Told::Other(event) => {
                if let Event::Rebuilt(member) = &event {
                    self.places[member.as_usize()].returning.has_caught_up();
                }
                if let Event::Scrubbed { .. } = &event {
                    self.scrub_pace.end();
                }
                self.tell(event);
            }
        }
    }

    fn hear_closed(&mut self) {
        let failure = self.machine.failure();
        // What has failed is closed by command, and answers with its failure until then.
        let goes_on = matches!(self.life, Life::Open | Life::Ending) && failure.is_some();
        self.end_opening(failure.map_or(Ok(()), Err));
        if !goes_on {
            self.life = Life::Closed;
        }
    }

    fn end_opening(&mut self, result: Result<(), IoError>) {
        if self.life == Life::Opening {
            self.life = Life::Open;
            self.actions.push_back(Action::Opened(result));
            if self.closes_when_open {
                self.handle_close();
            }
        }
    }

    fn tell(&mut self, event: Event) {
        self.actions.push_back(Action::Tell(event));
    }

    /// Whether it is to close, or has.
    fn is_closing(&self) -> bool {
        !matches!(self.life, Life::Opening | Life::Open | Life::Paused)
    }

    /// Reads ahead from the beginning.
    fn begin_reading_ahead(&mut self) {
        let memory = self.ahead_memory;
        self.ahead = memory.map(|memory| ReadAhead::new(self.machine.geometry(), memory));
    }

    /// Whether the machine has no request of anybody.
    fn is_idle(&self) -> bool {
        self.users.len() == 0 && self.ahead.as_ref().is_none_or(|ahead| ahead.under_way() == 0)
    }
}
