//! The parent of the sessions to one disk: requests in, commands out, and each session made again when it is lost.
//!
//! ```text
//! user -> requests: ready -> a lane (session) -> connection
//!           ^         ^        |
//!           |         +- again +- ends
//!           +- deadline, at the latest
//! ```

use alloc::{boxed::Box, collections::VecDeque, string::String, sync::Arc, vec::Vec};
use core::time::Duration;

use netraid_block::{Buf, DeviceInfo, ErrorKind, IoError, Op, Pool, SgList};
use netraid_iscsi_proto::{
    framing::{Outgoing, Side as _},
    machine::TaskId,
};
use netraid_planted::{Planted, planted};

use crate::{
    Reason,
    clock::{Clock, Reading},
    dial::Dialer,
    disk::Profile,
    examination::{Probed, Untold},
    interface::{
        Action, Event, Fresh, Opened, Order, OrderId, Place, Request, Settings, Status, Transmit,
    },
    lane::{Lane, Stage},
    link::Link,
    orders::Orders,
    requests::{Left, Requests, Ticket},
    takeover::TakeOver,
    verdict::Unanswered,
    visitor::Progress,
    window::{BulkWindow, Class},
};

/// How long a busy disk is left alone.
pub(crate) const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// How long a target may take to abort a command before the session is dropped.
pub(crate) const ABORT_LIMIT: Duration = Duration::from_secs(1);
/// The part of a request's time after which a disk is asked that has ended no command.
pub(crate) const PATIENCE_SHARE: u32 = 4;
/// How long a logout may take.
const LOGOUT_LIMIT: Duration = Duration::from_secs(1);

/// A disk and the sessions to it; `U` is what the shell knows a request by.
///
/// The shell calls a `handle_*` for what happened, with a `now` that counts from any start and never runs backwards; then
/// [`Self::poll`] until it says nothing more, then [`Self::transmit`] (or [`Self::poll_transmit`]) for each connection while that takes PDUs. It
/// calls [`Self::handle_timeout`] once [`Self::next_timeout`] has passed.
pub struct Remote<U> {
    pub(crate) dialer: Dialer,
    pub(crate) place: Arc<str>,
    /// The moment, by the own clock.
    pub(crate) now: Duration,
    clock: Clock,
    pub(crate) phase: Phase,
    /// What was found when the disk was connected first, which its users were told.
    pub(crate) first: Option<Probed>,
    pub(crate) profile: Profile,
    pub(crate) unanswered: Unanswered,
    pub(crate) lanes: Vec<Lane>,
    /// The lane that is asked first for room: each in its turn.
    pub(crate) turn: usize,
    pub(crate) requests: Requests<U>,
    /// When commands that end now were heard of.
    pub(crate) heard_at: Duration,
    /// Bytes that the disk has sent or asked for, ever, and when it did so last.
    pub(crate) moved: u64,
    pub(crate) moved_at: Duration,
    /// Of large requests, while small ones come.
    pub(crate) window: BulkWindow,
    /// Small requests that went before one large one that waits.
    pub(crate) went_before: u32,
    pub(crate) orders: Orders,
    /// Commands that timed out, and until when the target has to abort them.
    pub(crate) aborting: VecDeque<Aborting>,
    /// No more requests are taken.
    pub(crate) is_closed: bool,
    /// This side gives its registrations back, for good.
    pub(crate) is_leaving: bool,
    /// How often the disk had lost its cache when that was written on which the requests rely, where they rely on any.
    pub(crate) relied_losses: Option<u64>,
    /// Since when there is no session at all, and what the latest attempt at each portal met.
    pub(crate) down: Option<Down>,
    /// Why there was no session the last time that there was none.
    pub(crate) failure: String,
    pub(crate) status: Status,
    pub(crate) zeros: Buf,
    /// Requests that have ended, and how.
    ended: VecDeque<(U, Result<SgList, IoError>)>,
    pub(crate) actions: VecDeque<Action<U>>,
    /// Something has happened since it was looked at what is due.
    is_due: bool,
}

/// How far it is.
pub(crate) enum Phase {
    /// The first session is made, at one portal after the other, and what a predecessor left is ended.
    Opening(Option<Box<TakeOver>>),
    Serving,
    /// The sessions log out, until then at the latest.
    Leaving(Duration),
    Over,
}

/// A command that was given up.
pub(crate) struct Aborting {
    pub(crate) limit: Duration,
    pub(crate) lane: usize,
    pub(crate) task: TaskId,
    pub(crate) writes: bool,
}

/// There is no session.
pub(crate) struct Down {
    pub(crate) since: Duration,
    /// Of each portal how long it is waited for, where the latest attempt since then showed that the
    /// peer is surely not there, or lets nobody in.
    pub(crate) refused: Vec<Option<Duration>>,
}

impl<U> Remote<U> {
    /// Begins to make the first session; [`Action::Opened`] says what came of it. What is read lies in buffers of `pool`.
    ///
    /// # Panics
    /// When there is no portal, or no session is wanted.
    #[must_use]
    pub fn new(settings: Settings, pool: Pool, now: Duration) -> Self {
        let sessions = usize::from(settings.sessions);
        assert!((1..=usize::from(Settings::SESSIONS_MAX)).contains(&sessions), "1 to 8 sessions");
        let place = settings.place.clone();
        let dialer = Dialer::new(settings, pool);
        let mut remote = Self {
            place,
            now,
            clock: Clock::new(now),
            phase: Phase::Opening(None),
            first: None,
            profile: Profile::UNKNOWN,
            unanswered: Unanswered::default(),
            lanes: (0..sessions).map(|_| Lane::new(now, 0)).collect(),
            turn: 0,
            requests: Requests::default(),
            heard_at: now,
            moved: 0,
            moved_at: now,
            window: BulkWindow::default(),
            went_before: 0,
            orders: Orders::default(),
            aborting: VecDeque::new(),
            is_closed: false,
            is_leaving: false,
            relied_losses: None,
            down: None,
            failure: String::new(),
            status: Status::default(),
            zeros: Buf::empty(),
            ended: VecDeque::new(),
            actions: VecDeque::new(),
            is_due: true,
            dialer,
        };
        remote.begin_dial(0);
        remote
    }

    /// What can be seen of the sessions.
    #[must_use]
    pub const fn status(&self) -> &Status {
        &self.status
    }

    /// Why there was no session the last time that there was none; empty when there always was one.
    #[must_use]
    pub fn last_failure(&self) -> &str {
        &self.failure
    }

    /// Does what is due by now: after that [`Self::status`] is that of the batch that is polled.
    #[inline]
    pub fn advance(&mut self) {
        if core::mem::take(&mut self.is_due) {
            self.do_what_is_due();
        }
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<Action<U>> {
        self.advance();
        if let Some((user, result)) = self.ended.pop_front() {
            return Some(Action::Complete { user, result });
        }
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        let (order, result) = self.orders.poll_answer()?;
        Some(Action::Answer { order, result })
    }

    /// The next request that has ended, and how. It is polled before [`Self::poll`], which gives it as
    /// [`Action::Complete`] else.
    #[inline]
    pub fn poll_ended(&mut self) -> Option<(U, Result<SgList, IoError>)> {
        self.ended.pop_front()
    }

    /// Queues what there is to send on a connection while there is room for it; whether there was anything.
    #[inline]
    pub fn transmit(&mut self, place: Place, outgoing: &mut Outgoing) -> bool {
        self.connection(place).is_some_and(|link| link.transmit(outgoing))
    }

    /// The next PDU to send on a connection.
    pub fn poll_transmit(&mut self, place: Place) -> Option<Transmit> {
        self.connection(place)?.poll_transmit()
    }

    /// The session to which goes what is received `now` on a connection.
    pub fn receiver(&mut self, place: Place, now: Duration) -> Option<&mut Link> {
        let now = self.begin(now);
        self.connection(place).map(|link| link.hear(now))
    }

    /// Whether a connection's next PDU may be taken; else send first.
    pub fn wants_input(&mut self, place: Place) -> bool {
        self.connection(place).is_some_and(|link| link.wants_input())
    }

    /// A request comes. It ends by [`Action::Complete`].
    ///
    /// # Panics
    /// Before [`Action::Opened`].
    pub fn handle_request(&mut self, now: Duration, request: Request<U>) {
        assert!(!matches!(self.phase, Phase::Opening(_)), "a request to a disk that is not open");
        let now = self.begin(now);
        if self.is_closed {
            return self.ended.push_back((request.user, Err(ErrorKind::Aborted.into())));
        }
        let moves = matches!(request.op, Op::Read | Op::Write);
        if moves && Class::of(&request) == Class::Express {
            self.window.note_express(now);
        }
        let time = self.dialer.settings.request_timeout;
        self.requests.insert(request, self.moved, (now, time));
        self.note_demand();
    }

    /// An order comes. It ends by [`Action::Answer`].
    ///
    /// # Panics
    /// Before [`Action::Opened`].
    pub fn handle_order(&mut self, now: Duration, id: OrderId, order: Order) {
        assert!(!matches!(self.phase, Phase::Opening(_)), "an order to a disk that is not open");
        let now = self.begin(now);
        if self.is_closed {
            let result = Err(ErrorKind::Aborted.into());
            return self.actions.push_back(Action::Answer { order: id, result });
        }
        let deadline = now + self.dialer.settings.request_timeout;
        self.orders.insert(id, order, deadline, &self.place);
        self.note_demand();
    }

    /// Requests rely from now on on what the disk was given when it had lost its cache so often: once it has lost its cache
    /// again, all that wait, and all that come, end unsent with [`ErrorKind::Unreachable`]. A disk that was restarted may
    /// have come back as it was long ago, and what goes to it then could make it look like one that was there all the time.
    pub fn handle_reliance(&mut self, now: Duration, cache_losses: u64) {
        self.begin(now);
        self.relied_losses = Some(cache_losses);
    }

    /// This side gives its registrations back, for good: what is under way still, and meets the reservation of somebody
    /// else after that, fails with [`ErrorKind::Device`].
    pub fn handle_leaving(&mut self, now: Duration) {
        self.begin(now);
        self.is_leaving = true;
    }

    /// No more requests come: when all have ended the sessions log out, and [`Action::Closed`] says that all is over.
    pub fn handle_close(&mut self, now: Duration) {
        self.begin(now);
        self.is_closed = true;
    }

    /// Ends the sessions at once, as if this side had died: requests end as aborted, and what was under way may still be
    /// carried out.
    pub fn handle_cut(&mut self, now: Duration) {
        self.begin(now);
        self.is_closed = true;
        match self.phase {
            Phase::Opening(_) => self.give_up_opening(),
            Phase::Serving | Phase::Leaving(_) | Phase::Over => self.end_all(),
        }
    }

    /// A connection is made.
    pub fn handle_connected(&mut self, now: Duration, place: Place, fresh: Fresh) {
        let now = self.begin(now);
        if place.0 < self.lanes.len() {
            return self.take_connection(place.0, fresh);
        }
        if let Phase::Opening(Some(takeover)) = &mut self.phase
            && let Some(visitor) = takeover.visitor()
        {
            visitor.handle_connected(now, &self.dialer, fresh);
        }
    }

    /// No connection could be made.
    pub fn handle_not_connected(&mut self, now: Duration, place: Place, reason: Reason) {
        self.begin(now);
        if place.0 < self.lanes.len() {
            if matches!(self.lanes[place.0].stage, Stage::Dialing(_)) {
                self.take_session(place.0, Err(reason));
            }
        } else if let Phase::Opening(Some(takeover)) = &mut self.phase
            && let Some(visitor) = takeover.visitor()
        {
            let progress = visitor.handle_not_connected(reason);
            self.go_on_visiting(progress);
        }
    }

    /// Something was received on a connection, and given to its [`Self::receiver`]; `end` is how that went: with an error
    /// the connection is over.
    pub fn handle_received(&mut self, now: Duration, place: Place, end: Result<(), Reason>) {
        let now = self.begin(now);
        if place.0 < self.lanes.len() {
            self.turn = (place.0 + 1) % self.lanes.len();
            return self.take_input(place.0, end);
        }
        if let Phase::Opening(Some(takeover)) = &mut self.phase
            && let Some(visitor) = takeover.visitor()
        {
            let progress = visitor.handle_received(now, &mut self.dialer, end);
            self.go_on_visiting(progress);
        }
    }

    /// When [`Self::handle_timeout`] is to be called.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        self.due().map(|due| self.clock.outside(due))
    }

    /// The same by the own clock.
    fn due(&self) -> Option<Duration> {
        let lanes = |is_meant: fn(&Lane) -> bool| {
            let meant = self.lanes.iter().filter(|lane| is_meant(lane));
            meant.filter_map(Lane::next_timeout).min()
        };
        match &self.phase {
            Phase::Opening(takeover) => {
                let visit = takeover.as_ref().and_then(|takeover| takeover.next_timeout());
                visit.into_iter().chain(lanes(Lane::holds_place)).min()
            }
            Phase::Serving => {
                let aborting = self.aborting.front().map(|aborting| aborting.limit);
                let rest = [self.requests.next_timeout(), aborting, self.orders.next_timeout()];
                rest.into_iter().chain([lanes(|_| true)]).flatten().min()
            }
            Phase::Leaving(until) => lanes(Lane::holds_place).into_iter().chain([*until]).min(),
            Phase::Over => None,
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Duration) {
        let now = self.begin(now);
        for at in 0..self.lanes.len() {
            self.take_time(at);
        }
        if let Phase::Opening(Some(takeover)) = &mut self.phase
            && let Some(visitor) = takeover.visitor()
        {
            let progress = visitor.handle_timeout(now, &self.dialer);
            self.go_on_visiting(progress);
        }
        if matches!(self.phase, Phase::Serving) {
            self.take_time_of_requests(now);
        }
    }

    /// Ends a request; what is left under way of it, if anything.
    pub(crate) fn end(&mut self, ticket: Ticket, result: Result<SgList, IoError>) -> Option<Left> {
        let (user, left) = self.requests.finish(ticket)?;
        self.ended.push_back((user, result));
        left
    }

    pub(crate) fn tell(&mut self, event: Event) {
        self.actions.push_back(Action::Tell(event));
    }

    /// The first session was made at a portal, or not: the next one is tried.
    pub(crate) fn take_first_session(&mut self, made: Result<(Box<Link>, Probed), Reason>) {
        let portals = self.dialer.portals();
        let lane = &mut self.lanes[0];
        let (link, probed) = match made {
            Ok(made) => made,
            Err(reason) => {
                self.disconnect(0);
                let next = self.lanes[0].portal + 1;
                if next == portals {
                    return self.fail_to_open(reason);
                }
                self.lanes[0].portal = next;
                return self.begin_dial(0);
            }
        };
        let (portal, group) = (lane.portal, link.portal_group());
        lane.untold = Untold::Nothing;
        lane.noted = link.all_moved();
        lane.group = Some(group);
        lane.stage = Stage::Up(link);
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            lane.portal = (portal + at) % portals;
        }
        self.status.is_connected = true;
        self.status.capacity = probed.profile.capacity();
        self.profile = probed.profile.clone();
        self.first = Some(probed);
        if self.dialer.settings.takes_over {
            self.phase = Phase::Opening(Some(Box::new(TakeOver::new(&self.dialer, portal, group))));
            self.visit_next();
        } else {
            self.serve();
        }
    }

    /// Whether what is asked for now waits for a session: attempts are made soon, or there is no use in it.
    fn note_demand(&mut self) {
        if self.status.is_fenced {
            self.fail_idle();
        } else if self.is_gone() {
            let now = self.now;
            self.lanes.iter_mut().for_each(|lane| lane.hurry(now));
        }
    }

    /// Something happens `now`, by the shell's clock; the moment by the own clock.
    #[inline]
    fn begin(&mut self, now: Duration) -> Duration {
        self.is_due = true;
        // Requests that are taken together come at one moment.
        if !self.clock.was_read_at(now) {
            self.look_at_clock(now);
        }
        self.now
    }

    fn look_at_clock(&mut self, now: Duration) {
        let due = if self.clock.may_have_stood(now) { self.due() } else { None };
        let Reading { now, stood } = self.clock.read(now, due);
        self.now = now;
        if let Some(time) = stood {
            self.tell(Event::StoodStill { time });
        }
    }

    fn connection(&mut self, place: Place) -> Option<&mut Link> {
        if place.0 < self.lanes.len() {
            return self.lanes[place.0].connection();
        }
        match &mut self.phase {
            Phase::Opening(Some(takeover)) => takeover.visitor()?.connection(),
            Phase::Opening(None) | Phase::Serving | Phase::Leaving(_) | Phase::Over => None,
        }
    }

    fn do_what_is_due(&mut self) {
        match self.phase {
            Phase::Serving => {
                self.tend();
                self.advance_orders();
                self.issue();
                if self.is_closed && self.requests.is_empty() && self.orders.is_empty() {
                    self.begin_leaving();
                }
            }
            Phase::Leaving(until) => self.advance_leaving(until),
            Phase::Opening(_) if self.is_closed => self.give_up_opening(),
            Phase::Opening(_) | Phase::Over => {}
        }
    }

    /// Time has passed for what is to be done and what was given up.
    fn take_time_of_requests(&mut self, now: Duration) {
        self.ask_silent(now);
        self.requests.wake_delayed(now);
        while let Some(expired) = self.requests.pop_expired(now) {
            if !self.has_more_time(expired, now) {
                self.give_up(expired, now);
            }
        }
        if let Some((lane, task)) = self.orders.expire(now, &self.place) {
            self.abort(lane, task, true);
        }
        while let Some(aborting) = self.aborting.front()
            && aborting.limit <= now
        {
            let lane = aborting.lane;
            if planted(Planted::UnansweredAbortBelieved) {
                self.aborting.pop_front();
                continue;
            }
            self.lose(lane, &Reason::Lost("the target does not abort a command".into()));
        }
    }

    fn visitor_place(&self) -> Place {
        Place(self.lanes.len())
    }

    fn visit_next(&mut self) {
        let place = self.visitor_place();
        let Phase::Opening(Some(takeover)) = &mut self.phase else { return };
        match takeover.begin_next(self.now, &self.dialer) {
            Some(portal) => self.actions.push_back(Action::Connect { place, portal }),
            None => self.serve(),
        }
    }

    fn go_on_visiting(&mut self, progress: Progress) {
        let place = self.visitor_place();
        let Phase::Opening(Some(takeover)) = &mut self.phase else { return };
        match progress {
            Progress::Wait => {}
            Progress::Connect(portal) => self.connect_again(place, portal),
            Progress::Redirect(redirected) => self.redirect(place, redirected),
            Progress::Over(end) => {
                let end = takeover.end_visit(&self.dialer, end);
                self.actions.push_back(Action::Disconnect(place));
                match end {
                    Ok(event) => {
                        self.actions.extend(event.map(Action::Tell));
                        self.visit_next();
                    }
                    Err(reason) => self.fail_to_open(reason),
                }
            }
        }
    }

    /// Nobody wants the disk any more.
    fn give_up_opening(&mut self) {
        self.fail_to_open(Reason::Lost("the disk was closed before it was open".into()));
    }

    fn fail_to_open(&mut self, reason: Reason) {
        self.status.is_connected = false;
        self.actions.push_back(Action::Opened(Err(reason)));
        self.end_all();
    }

    /// The disk is open.
    fn serve(&mut self) {
        let Some(first) = &self.first else { return };
        let (info, identity) = (describe(&first.profile), first.identity.clone());
        let now = self.now;
        self.lanes.iter_mut().for_each(|lane| lane.begin(now));
        self.phase = Phase::Serving;
        self.actions.push_back(Action::Opened(Ok(Opened { info, identity })));
    }

    /// All requests have ended: the sessions log out.
    fn begin_leaving(&mut self) {
        self.status.is_connected = false;
        for at in 0..self.lanes.len() {
            // Nothing is under way that could be asked for.
            self.lanes[at].watch = None;
            match self.lanes[at].link() {
                Some(link) => link.begin_logout(self.now),
                None => self.part(at),
            }
        }
        let until = self.now + LOGOUT_LIMIT;
        self.phase = Phase::Leaving(until);
        self.advance_leaving(until);
    }

    fn advance_leaving(&mut self, until: Duration) {
        let is_late = until <= self.now;
        for at in 0..self.lanes.len() {
            let is_over = |link: &mut Link| is_late || link.is_logged_out();
            // A target that does not answer is left alone.
            if self.lanes[at].link().is_none_or(is_over) {
                self.part(at);
            }
        }
        if !self.lanes.iter().any(Lane::holds_place) {
            self.end_all();
        }
    }

    /// A lane is not used any more.
    pub(crate) fn part(&mut self, at: usize) {
        if self.lanes[at].holds_place() {
            self.disconnect(at);
        }
        self.lanes[at].give_up();
    }

    /// Nothing is waited for any more.
    fn end_all(&mut self) {
        if matches!(self.phase, Phase::Over) {
            return;
        }
        for at in 0..self.lanes.len() {
            self.part(at);
        }
        if let Phase::Opening(Some(takeover)) = &mut self.phase
            && takeover.visitor().is_some()
        {
            self.actions.push_back(Action::Disconnect(self.visitor_place()));
        }
        self.phase = Phase::Over;
        self.is_closed = true;
        self.status.is_connected = false;
        for ticket in self.requests.all() {
            self.end(ticket, Err(ErrorKind::Aborted.into()));
        }
        self.orders.abort_all();
        while let Some((order, result)) = self.orders.poll_answer() {
            self.actions.push_back(Action::Answer { order, result });
        }
        self.actions.push_back(Action::Closed);
    }
}

fn describe(profile: &Profile) -> DeviceInfo {
    DeviceInfo {
        capacity: profile.capacity(),
        block_len: profile.block_len,
        optimal_len: profile.block_len.max(4096),
        max_transfer_len: profile.max_transfer_len,
        read_only: profile.read_only,
        // A disk that does not say may have one.
        volatile_cache: profile.write_cache != Some(false),
        can_discard: profile.unmap_max > 0,
        can_map: false,
    }
}
