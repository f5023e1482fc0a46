//! One engine: the volume of the array, its sessions with the members, and its administrator.
//!
//! It is the shell of a [`Volume`], and decides nothing about it: it fences and resets every member before the machine
//! sees a label, opens the array by the steps of the product, asks its administrator where these have a doubt, gives the volume the ends of requests and looks at
//! sessions, makes and ends sessions as the volume says, and dies at the action that the world says. The administrator
//! replaces members that are other disks, and asks for those that do not come back by themselves.
//!
//! The volume's time is [`PACE`] times as fast as the world's: what takes a second there takes as long as a member's
//! deadline of five seconds needs here.

use core::{ops::Range, time::Duration};
use std::collections::VecDeque;

use netraid_block::{ErrorKind, IoError, Pool, RequestFlags, SgList, narrow};
use netraid_raid::{
    label::Uuid,
    logged::{AtomicWriteError, Limits, MemberCaps, RequestId, UserRequest},
    member::{MemberIndex, MemberState},
    volume::{Action, Event, Expect, Tag, Volume},
};

mod administrator;
mod due;
mod looks;
mod open;
mod pause;
mod requests;

pub use due::{Due, Near};
use pause::Reopening;

use super::{
    machine::Machine,
    opened::FoundDevice,
    oracle::EngineId,
    session::{Outcome, Session, Surroundings},
    trace::Trace,
};
use crate::{
    network::{ConnectionId, HostId},
    target::{Nexus, Reply},
    time::Time,
};

/// How much faster the volume's time is: a member's deadline of 40 ms is one of five seconds.
pub const PACE: u32 = 125;
/// What the world hears of an engine.
#[derive(Debug)]
pub enum Notice {
    /// A user's request has ended.
    Completed(RequestId, Result<SgList, IoError>),
    /// The volume says so.
    Event(Event),
    /// It has the array open, or could not open it.
    Opened(Result<(), IoError>),
    /// It asks for nothing more.
    Closed,
    /// Members that it has not reached could carry the array alone: asks whether these here are
    /// known to be as new, with this generation and epoch, and nobody else has the array.
    Asks(u64, u64),
    /// It cannot open the array as it is.
    Refused(String),
    /// Its last action has come.
    Dies,
    /// A moment of its recovery has come that is to be looked at.
    Watched,
    /// Another engine has a member.
    Fenced(usize),
    /// A member was set aside.
    Gone(usize),
    /// Users' requests wait for members.
    Paused,
    /// They go on; these bytes of the volume are lost.
    Resumed(Vec<Range<u64>>),
    /// The volume asked for what no device would do.
    Nonsense(String),
}

/// What all engines of a world have alike.
#[derive(Debug, Clone)]
pub struct Fittings {
    /// The array.
    pub array_uuid: Uuid,
    /// By member.
    pub caps: Vec<MemberCaps>,
    /// Bytes of a logical block of each member.
    pub block_len: u32,
    /// Bytes of each member.
    pub capacity: u64,
    /// Largest member request.
    pub max_io_len: u32,
    /// Most bytes that a member takes at once: it may be less.
    pub transfer_len: u32,
    /// What the machine may use.
    pub limits: Limits,
    /// Where it puts computed bytes.
    pub pool: Pool,
    /// Bytes for what is read ahead; none: nothing is.
    pub read_ahead: Option<u64>,
    /// Bytes of large reads under way at once, and from which length on a read is large; as usual when none.
    pub read_window: Option<(u64, u64)>,
    /// How long users' requests wait for members, in the volume's time.
    pub pause: Duration,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there are as many as engines")]
enum Stage<M> {
    /// Logging in everywhere, at most until then.
    Opening { until: Time, found: Vec<Option<FoundDevice>> },
    /// Waits for an administrator's word.
    Asking { found: Vec<Option<FoundDevice>> },
    /// The volume has it.
    Open(Volume<M, RequestId>),
    /// It gave up.
    Over,
}

/// Why a member is looked for.
#[derive(Debug, Clone, Copy)]
enum Attempt {
    Return,
    Join(Expect),
}

/// A member's place, as the engine has it.
#[derive(Debug, Default)]
struct Place {
    /// Requests go to its device.
    has: bool,
    attempt: Option<Attempt>,
    /// The attempt begins when no session is left that ends.
    waits: bool,
    /// Looks since it is away.
    looks_away: u32,
    /// It was there, with its label, when the machine began.
    was_found: bool,
    /// The volume has said that it is in sync.
    in_sync: bool,
    /// It is in sync by the volume's word, and labels that say so are on their way: without a log.
    is_promoted: bool,
    /// How often its device had lost its cache when it was found for the place.
    losses_then: u64,
    /// The same when the volume last saw that, and could have done without all that had lost theirs.
    losses_shown: u64,
}

/// An engine.
#[derive(Debug)]
pub struct Engine<M> {
    /// Who it is.
    pub id: EngineId,
    /// Where it runs.
    pub host: HostId,
    /// Under which name.
    pub nexus: Nexus,
    /// With whom, by member.
    pub sessions: Vec<Session>,
    /// Member requests that it has made.
    pub actions: u64,
    /// When it dies.
    pub dies: Option<Due>,
    /// Moments of its recovery that are to be looked at: the next one, and how many there are.
    pub watched: Option<(Due, u32)>,
    /// It has opened the array with parity as it was.
    pub trusts_parity: bool,
    fittings: Fittings,
    started: Time,
    stage: Stage<M>,
    places: Vec<Place>,
    /// It has said that it is open.
    is_recovered: bool,
    has_closed: bool,
    /// Ends that the volume is to hear when there is nothing else to do.
    ended: VecDeque<(Tag, IoError)>,
    /// Commands whose session is lost, and when they end.
    lingering: Vec<(Time, Tag)>,
    outstanding: usize,
    new_uuids: u64,
    has_lost_one: bool,
    is_dying: bool,
    /// Users' requests in flight.
    crowd: u64,
    /// How often the members were looked at, and when they are next, in the volume's time.
    looks: u64,
    look_at: Duration,
    /// Users' requests wait for members.
    is_paused: bool,
    /// Members are looked for, to open the array anew.
    reopening: Option<Reopening>,
}

/// What an engine works with, and what it leaves behind.
#[derive(Debug)]
pub struct Context<'a> {
    /// Network, time, chance.
    pub around: Surroundings<'a>,
    /// What happened.
    pub trace: &'a mut Trace,
    /// For the world.
    pub notices: &'a mut VecDeque<(EngineId, Notice)>,
}

impl<M: Machine> Engine<M> {
    /// An engine that begins to open the array, and waits for members until then at most.
    #[must_use]
    pub fn new(
        id: EngineId,
        (host, nexus): (HostId, Nexus),
        sessions: Vec<Session>,
        (now, until): (Time, Time),
        fittings: Fittings,
    ) -> Self {
        let members = sessions.len();
        Self {
            id,
            host,
            nexus,
            sessions,
            actions: 0,
            dies: None,
            watched: None,
            trusts_parity: false,
            fittings,
            started: now,
            stage: Stage::Opening { until, found: vec![None; members] },
            places: (0..members).map(|_| Place::default()).collect(),
            is_recovered: false,
            has_closed: false,
            ended: VecDeque::new(),
            lingering: Vec::new(),
            outstanding: 0,
            new_uuids: 0,
            has_lost_one: false,
            is_dying: false,
            crowd: 0,
            looks: 0,
            look_at: Duration::ZERO,
            is_paused: false,
            reopening: None,
        }
    }

    /// The machine, once there is one.
    #[must_use]
    pub const fn machine(&self) -> Option<&M> {
        match &self.stage {
            Stage::Open(volume) => Some(volume.machine()),
            Stage::Opening { .. } | Stage::Asking { .. } | Stage::Over => None,
        }
    }

    /// Whether a member is there while the engine waits to open the array.
    #[must_use]
    pub fn has_found(&self, member: usize) -> bool {
        match &self.stage {
            Stage::Opening { found, .. } | Stage::Asking { found } => found[member].is_some(),
            Stage::Open(_) | Stage::Over => false,
        }
    }

    /// Whether a member was there, with its label, when the machine began.
    #[must_use]
    pub fn found(&self, member: usize) -> bool {
        self.places[member].was_found
    }

    /// Whether the volume has said that a member is in sync; the label may be ahead of that.
    #[must_use]
    pub fn is_in_sync(&self, member: usize) -> bool {
        self.places[member].in_sync
    }

    /// Member requests that have not come back.
    #[must_use]
    pub const fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Whether requests go to a member's device.
    #[must_use]
    pub fn has(&self, member: usize) -> bool {
        self.places[member].has
    }

    /// Whether the machine opens the array and has nothing to wait for.
    #[must_use]
    pub const fn waits_for_nothing(&self) -> bool {
        matches!(self.stage, Stage::Open(_))
            && !self.is_recovered
            && !self.is_dying
            && !self.has_closed
            && self.outstanding == 0
    }

    /// Whether a connection is one of its sessions'.
    #[must_use]
    pub fn owns(&self, connection: ConnectionId) -> bool {
        self.member_of(connection).is_some()
    }

    /// Whether a member has left since it opened the array.
    #[must_use]
    pub const fn has_lost_one(&self) -> bool {
        self.has_lost_one
    }

    /// How often the members were looked at: the second look without a request between has everything brought home.
    #[must_use]
    pub const fn looks(&self) -> u64 {
        self.looks
    }

    /// How many users' reads were answered from what was read ahead.
    #[must_use]
    pub fn answered_ahead(&self) -> u64 {
        match &self.stage {
            Stage::Open(volume) => volume.read_ahead_stats().map_or(0, |stats| stats.answered),
            Stage::Opening { .. } | Stage::Asking { .. } | Stage::Over => 0,
        }
    }

    /// When it does something by itself.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        let own = match &self.stage {
            Stage::Opening { until, .. } => Some(*until),
            Stage::Open(_) if self.has_closed => None,
            Stage::Open(volume) => {
                // No moment before it is due.
                let wait = volume.next_timeout() / PACE + Duration::from_nanos(1);
                Some(self.started.after(wait))
            }
            Stage::Asking { .. } => None,
            Stage::Over => return None,
        };
        let lingering = self.lingering.iter().map(|(until, _)| *until).min();
        let reopening = self.reopening.as_ref().map(Reopening::until);
        let sessions = self.sessions.iter().map(Session::next_timeout);
        sessions.chain([own, lingering, reopening]).flatten().min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, context: &mut Context<'_>) {
        let now = context.around.now;
        for member in 0..self.sessions.len() {
            if self.sessions[member].next_timeout().is_some_and(|at| at <= now) {
                let outcome = self.sessions[member].handle_timeout(&mut context.around);
                self.take(context, member, outcome);
            }
        }
        let (due, left) = self.lingering.iter().partition(|(until, _)| *until <= now);
        self.lingering = left;
        let due: Vec<(Time, Tag)> = due;
        self.ended.extend(due.into_iter().map(|(_, tag)| (tag, ErrorKind::Unreachable.into())));
        self.try_to_open(context);
        self.try_to_open_anew(context);
        self.look(context);
        self.drive(context);
    }

    /// The moment, in the volume's time.
    fn time(&self, context: &Context<'_>) -> Duration {
        context.around.now.since(self.started) * PACE
    }

    /// An answer came for one of its sessions; others' answers are of sessions that are gone.
    pub fn handle_reply(
        &mut self,
        context: &mut Context<'_>,
        connection: ConnectionId,
        reply: Reply,
    ) {
        let Some(member) = self.member_of(connection) else { return };
        let outcome = self.sessions[member].handle_reply(&mut context.around, reply);
        self.take(context, member, outcome);
        self.try_to_open(context);
        self.try_to_open_anew(context);
        self.drive(context);
    }

    /// A connection broke.
    pub fn handle_broken(&mut self, context: &mut Context<'_>, connection: ConnectionId) {
        let Some(member) = self.member_of(connection) else { return };
        let outcome = self.sessions[member].handle_broken(&mut context.around);
        self.take(context, member, Some(outcome));
        self.drive(context);
    }

    /// A user's request.
    pub fn handle_request(&mut self, context: &mut Context<'_>, id: RequestId, user: UserRequest) {
        let time = self.time(context);
        if let Stage::Open(volume) = &mut self.stage {
            self.crowd += 1;
            let UserRequest { op, offset, len, fua, data } = user;
            let flags = RequestFlags { fua, no_unmap: false };
            volume.handle_request(time, id, (op, offset, len), flags, data);
        }
        self.drive(context);
    }

    /// A user's write of several ranges, which the array takes all of or none.
    ///
    /// # Errors
    /// When the array does not write these ranges at once.
    pub fn handle_atomic_write(
        &mut self,
        context: &mut Context<'_>,
        id: RequestId,
        ranges: Vec<(u64, SgList)>,
        fua: bool,
    ) -> Result<(), AtomicWriteError> {
        let time = self.time(context);
        if let Stage::Open(volume) = &mut self.stage {
            let write = volume.atomic_write(ranges, fua)?;
            self.crowd += 1;
            volume.handle_atomic_write(time, id, write);
        }
        self.drive(context);
        Ok(())
    }

    /// Blocks that the array writes at once, in several ranges; 0 where it does not.
    #[must_use]
    pub fn atomic_blocks_max(&self) -> u32 {
        match &self.stage {
            Stage::Open(volume) => volume.atomic_blocks_max(),
            Stage::Opening { .. } | Stage::Asking { .. } | Stage::Over => 0,
        }
    }

    /// The array is to close.
    pub fn handle_close(&mut self, context: &mut Context<'_>) {
        if let Stage::Open(volume) = &mut self.stage {
            volume.handle_close();
        }
        self.drive(context);
    }

    fn member_of(&self, connection: ConnectionId) -> Option<usize> {
        self.sessions.iter().position(|session| session.connection() == Some(connection))
    }

    fn take(&mut self, context: &mut Context<'_>, member: usize, outcome: Option<Outcome>) {
        let Some(outcome) = outcome else { return };
        let id = self.id;
        match outcome {
            Outcome::Done(tag, result) => {
                context.trace.mix(&[1, tag.0, u64::from(result.is_ok())]);
                if let Err(error) = &result {
                    context.trace.note(context.around.now, || {
                        format!("engine {}: member {member}: {:#x}: {error}", id.0, tag.0)
                    });
                }
                self.end_io(self.time(context), tag, result);
            }
            Outcome::Lost(ios, reason) => {
                context.trace.mix(&[2, member as u64, ios.len() as u64]);
                context.trace.note(context.around.now, || {
                    format!("engine {}: session with member {member} lost: {reason}", id.0)
                });
                self.lose(context, member, ios, reason);
            }
            Outcome::Fenced(ios) => {
                context.trace.note(context.around.now, || {
                    format!("engine {}: fenced out of member {member}", id.0)
                });
                context.notices.push_back((self.id, Notice::Fenced(member)));
                self.ended.extend(ios.into_iter().map(|io| (io, ErrorKind::Fenced.into())));
                self.end_attempt(member, "another engine has it");
            }
            Outcome::Found { label, checkpoint, written } => {
                self.find(context, member, FoundDevice { label, checkpoint, written });
            }
        }
    }

    fn find(&mut self, context: &mut Context<'_>, member: usize, found: FoundDevice) {
        context.trace.note(context.around.now, || match &found.label {
            Some(label) => {
                let (generation, epoch) = (label.generation, label.epoch);
                format!("engine {}: member {member} is there: {generation}.{epoch}", self.id.0)
            }
            None => format!("engine {}: member {member} has no label", self.id.0),
        });
        if let Some(reopening) = &mut self.reopening {
            return reopening.find(member, found);
        }
        match &mut self.stage {
            Stage::Opening { found: all, .. } | Stage::Asking { found: all } => {
                all[member] = Some(found);
            }
            Stage::Open(_) => self.welcome(context, member, found.label),
            Stage::Over => {}
        }
    }

    /// Does what the volume says until there is nothing left.
    fn drive(&mut self, context: &mut Context<'_>) {
        loop {
            let time = self.time(context);
            let Stage::Open(volume) = &mut self.stage else { return };
            if let Some(action) = volume.poll(time) {
                self.note_pause(context);
                self.execute(context, action);
                if self.is_dying {
                    return self.note_parted_members(time);
                }
            } else if let Some((tag, error)) = self.ended.pop_front() {
                self.end_io(time, tag, Err(error));
            } else {
                self.begin_join(context);
                let Stage::Open(volume) = &mut self.stage else { return };
                if !volume.machine().labels_pending() {
                    for place in &mut self.places {
                        place.in_sync |= core::mem::take(&mut place.is_promoted);
                    }
                }
                if volume.is_closed() && !core::mem::replace(&mut self.has_closed, true) {
                    context.notices.push_back((self.id, Notice::Closed));
                }
                return;
            }
        }
    }

    /// Requests go to the device in a member's place from now on.
    fn take_place(&mut self, member: usize) {
        let place = &mut self.places[member];
        (place.has, place.losses_shown) = (true, place.losses_then);
    }

    /// The engine dies before it hears of members that are set aside; labels on their way may say so already.
    fn note_parted_members(&mut self, time: Duration) {
        let Stage::Open(volume) = &mut self.stage else { return };
        while let Some(action) = volume.poll(time) {
            if let Action::Part(member) = action {
                self.places[member.as_usize()].has = false;
            }
        }
    }

    fn execute(&mut self, context: &mut Context<'_>, action: Action<RequestId>) {
        let (id, now) = (self.id, context.around.now);
        match action {
            Action::Submit { tag, op, offset, len, fua, data, .. } => {
                self.submit(context, tag, (op, offset, len), fua, data);
            }
            Action::Complete { user, result } => {
                self.crowd = self.crowd.saturating_sub(1);
                context.trace.mix(&[3, user.0, u64::from(result.is_ok())]);
                context.notices.push_back((id, Notice::Completed(user, result)));
            }
            Action::Part(member) => self.part(context, member),
            Action::Cut(member) => self.cut(context, member),
            Action::Reopen { but } => self.open_anew(context, but),
            Action::LookFor(member) => {
                context.trace.note(now, || format!("engine {}: looks for member {member}", id.0));
                self.places[member.as_usize()].attempt = Some(Attempt::Return);
                self.sessions[member.as_usize()].look(&mut context.around);
            }
            Action::AskForSpare { .. } => unreachable!("no spares were given"),
            Action::Join { member, expect, ends_former } => {
                context.trace.note(now, || {
                    format!("engine {}: a device for member {member}: {expect:?}", id.0)
                });
                let at = member.as_usize();
                if ends_former {
                    self.places[at].has = false;
                    let ios = self.sessions[at].stop(&mut context.around);
                    self.end_all(ios);
                }
                self.places[at].attempt = Some(Attempt::Join(expect));
                self.places[at].waits = true;
            }
            Action::Take(member) => {
                context.trace.note(now, || format!("engine {}: takes member {member}", id.0));
                self.take_place(member.as_usize());
            }
            Action::LetGo(member) => {
                context.trace.note(now, || format!("engine {}: lets member {member} go", id.0));
                let ios = self.sessions[member.as_usize()].stop(&mut context.around);
                assert!(ios.is_empty(), "commands are under way to a device that has no place");
            }
            Action::Opened(result) => self.hear_opened(context, result),
            Action::Joined { member, result } => {
                context.trace.note(now, || {
                    format!("engine {}: the device for member {member}: {result:?}", id.0)
                });
            }
            Action::Tell(event) => {
                context.trace.note(now, || format!("engine {}: {event:?}", id.0));
                if let Event::Member { member, state, .. } = &event {
                    let (is_in_sync, place) =
                        (*state == MemberState::InSync, &mut self.places[member.as_usize()]);
                    place.in_sync = is_in_sync && M::HAS_LOG;
                    place.is_promoted = is_in_sync && !M::HAS_LOG;
                }
                context.notices.push_back((id, Notice::Event(event)));
            }
        }
    }

    fn hear_opened(&mut self, context: &mut Context<'_>, result: Result<(), IoError>) {
        self.is_recovered = true;
        if let Stage::Open(volume) = &self.stage {
            for (at, entry) in volume.machine().label().members.into_iter().enumerate() {
                // Of one that has left meanwhile the label may not tell yet.
                let is_here = self.places[at].has;
                self.places[at].in_sync = is_here && entry.state == MemberState::InSync;
            }
        }
        context.notices.push_back((self.id, Notice::Opened(result)));
    }
}

fn index(member: usize) -> MemberIndex {
    MemberIndex(narrow(member))
}

/// Where a member's device is.
fn address(member: MemberIndex) -> String {
    format!("member {member}")
}
