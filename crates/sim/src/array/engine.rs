//! One engine: the machine of the array, and its sessions with the members.
//!
//! It does what the real one does around the machine, and decides as little: it fences and resets
//! every member before the machine sees a label, refuses to open what others could carry alone,
//! tells the machine of members that go and come back, and dies at the action that the world says.

use core::ops::Range;
use std::collections::VecDeque;

use netraid_block::{ErrorKind, IoError, Pool, SgList, narrow};
use netraid_raid::{
    label::{Holder, Label, Uuid},
    logged::{
        Action, Event, FoundMember, IoId, Limits, MemberCaps, NewDevice, OpenConfig, RequestId,
        UserRequest,
    },
    member::{MemberIndex, MemberSet, MemberState},
    testimony::judge,
};

use super::{
    ahead::{Ahead, Ended},
    machine::Machine,
    oracle::EngineId,
    session::{Outcome, Session, Surroundings},
    trace::Trace,
};
use crate::{
    network::{ConnectionId, HostId},
    target::{Command, Nexus, Reply},
    time::Time,
};

/// Users' requests in flight, at least, when an engine dies that serves.
const CROWD_MIN: u64 = 4;

/// When something befalls an engine: instead of which of its member requests.
#[derive(Debug, Clone)]
pub struct Due {
    /// The first after so many.
    pub after: u64,
    /// And, then, near a write.
    pub near: Option<Near>,
}

/// Near which write of an engine something befalls it.
#[derive(Debug, Clone)]
pub struct Near {
    /// Bytes of a member.
    pub region: Range<u64>,
    /// Member requests from that write on; 0: instead of that write.
    pub more: u64,
    /// Member requests that are waited for that write at most.
    pub within: u64,
}

impl Due {
    /// Whether it is due instead of this request, the one of this number.
    fn comes(&mut self, number: u64, action: &Action) -> bool {
        if number <= self.after {
            return false;
        }
        let Some(near) = &self.near else { return true };
        let is_there =
            matches!(action, Action::Write { offset, .. } if near.region.contains(offset));
        if is_there {
            self.after = number + near.more;
            let comes_first = near.more == 0;
            self.near = None;
            return comes_first;
        }
        number > self.after.saturating_add(near.within)
    }
}

/// Member requests from one moment that is looked at to the next.
const WATCH_EACH: u64 = 3;

/// What the world hears of an engine.
#[derive(Debug)]
pub enum Notice {
    /// A user's request has ended.
    Completed(RequestId, Result<SgList, IoError>),
    /// The machine says so.
    Event(Event),
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
    /// The machine was told that a member is gone, or has said so.
    Gone(usize),
    /// The machine asked for what no driver would do.
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
    /// What the machine may use.
    pub limits: Limits,
    /// Where it puts computed bytes.
    pub pool: Pool,
    /// Bytes for what is read ahead; none: nothing is.
    pub read_ahead: Option<u64>,
}

/// A member as a session found it.
#[derive(Debug, Clone)]
pub enum Found {
    /// With the label of the array, and the counter of its newest checkpoint.
    Member(Box<Label>, Option<u64>),
    /// Without one that belongs here.
    Stranger,
}

#[derive(Debug)]
enum Stage<M> {
    /// Logging in everywhere, at most until then.
    Opening { until: Time, found: Vec<Option<Found>> },
    /// Waits for an administrator's word.
    Asking { found: Vec<Option<Found>> },
    /// The machine has it.
    Open(M),
    /// It gave up.
    Over,
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
    fittings: Fittings,
    stage: Stage<M>,
    /// While it has the array open, if it reads ahead.
    ahead: Option<Ahead>,
    /// It is to close, once nothing is read ahead any more.
    closes: bool,
    /// Whether the machine takes the member for live.
    told: Vec<bool>,
    found: Vec<bool>,
    /// What the machine has said of members.
    in_sync: Vec<bool>,
    /// It has said that it is open; who came before that is kept here.
    is_recovered: bool,
    early: Vec<Option<Found>>,
    ended: VecDeque<(IoId, IoError)>,
    outstanding: usize,
    new_uuids: u64,
    has_lost_one: bool,
    is_dying: bool,
    /// Users' requests in flight.
    crowd: u64,
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
        host: HostId,
        nexus: Nexus,
        sessions: Vec<Session>,
        until: Time,
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
            fittings,
            stage: Stage::Opening { until, found: vec![None; members] },
            ahead: None,
            closes: false,
            told: vec![false; members],
            found: vec![false; members],
            in_sync: vec![false; members],
            is_recovered: false,
            early: vec![None; members],
            ended: VecDeque::new(),
            outstanding: 0,
            new_uuids: 0,
            has_lost_one: false,
            is_dying: false,
            crowd: 0,
        }
    }

    /// The machine, once there is one.
    #[must_use]
    pub const fn machine(&self) -> Option<&M> {
        match &self.stage {
            Stage::Open(machine) => Some(machine),
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
        self.found[member]
    }

    /// Whether the machine has said that a member is in sync; the label may be ahead of that.
    #[must_use]
    pub fn is_in_sync(&self, member: usize) -> bool {
        self.in_sync[member]
    }

    /// Member requests that have not come back.
    #[must_use]
    pub const fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Whether the machine takes a member for live.
    #[must_use]
    pub fn has(&self, member: usize) -> bool {
        self.told[member]
    }

    /// Whether the machine opens the array and has nothing to wait for.
    #[must_use]
    pub const fn waits_for_nothing(&self) -> bool {
        matches!(self.stage, Stage::Open(_))
            && !self.is_recovered
            && !self.is_dying
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

    /// When it does something by itself.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        let opening = match &self.stage {
            Stage::Opening { until, .. } => Some(*until),
            Stage::Open(_) | Stage::Asking { .. } => None,
            Stage::Over => return None,
        };
        self.sessions.iter().map(Session::next_timeout).chain([opening]).flatten().min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, context: &mut Context<'_>) {
        for member in 0..self.sessions.len() {
            if self.sessions[member].next_timeout().is_some_and(|at| at <= context.around.now) {
                let outcome = self.sessions[member].handle_timeout(&mut context.around);
                self.take(context, member, outcome);
            }
        }
        self.try_to_open(context);
        self.drive(context);
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
        if let Stage::Open(machine) = &mut self.stage {
            self.crowd += 1;
            match &mut self.ahead {
                None => machine.handle_request(id, user),
                Some(ahead) => {
                    let end = ahead.handle_request(machine, id, user);
                    self.end_request(context, end);
                }
            }
        }
        self.drive(context);
    }

    /// How many users' reads were answered from what was read ahead.
    #[must_use]
    pub fn answered_ahead(&self) -> u64 {
        self.ahead.as_ref().map_or(0, Ahead::answered)
    }

    /// A user's request has ended, if one has.
    fn end_request(&mut self, context: &mut Context<'_>, end: Option<Ended>) {
        let Some((request, result)) = end else { return };
        self.crowd = self.crowd.saturating_sub(1);
        context.trace.mix(&[3, request.0, u64::from(result.is_ok())]);
        context.notices.push_back((self.id, Notice::Completed(request, result)));
    }

    /// Everything home; or everything home and the labels closed.
    pub fn handle_wish(&mut self, context: &mut Context<'_>, closes: bool) {
        if let Stage::Open(machine) = &mut self.stage {
            match (&mut self.ahead, closes) {
                (_, false) => machine.handle_idle(),
                (None, true) => machine.handle_close(),
                (Some(ahead), true) => {
                    ahead.stop();
                    self.closes = true;
                }
            }
        }
        self.drive(context);
    }

    /// Some time has passed.
    pub fn handle_age(&mut self, context: &mut Context<'_>) {
        if let Stage::Open(machine) = &mut self.stage {
            machine.handle_age();
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
            Outcome::Done(io, result) => {
                if let Stage::Open(machine) = &mut self.stage {
                    context.trace.mix(&[1, io.0 as u64, u64::from(result.is_ok())]);
                    if let Err(error) = &result {
                        context.trace.note(context.around.now, || {
                            format!("engine {}: member {member}: io {}: {error}", id.0, io.0)
                        });
                    }
                    self.outstanding -= 1;
                    machine.handle_io_done(io, result);
                }
            }
            Outcome::Lost(ios, reason) => {
                context.trace.mix(&[2, member as u64, ios.len() as u64]);
                context.trace.note(context.around.now, || {
                    format!("engine {}: session with member {member} lost: {reason}", id.0)
                });
                self.lose(context, member, ios, ErrorKind::Unreachable, reason);
            }
            Outcome::Fenced(ios) => {
                context.trace.note(context.around.now, || {
                    format!("engine {}: fenced out of member {member}", id.0)
                });
                context.notices.push_back((self.id, Notice::Fenced(member)));
                self.ended.extend(ios.into_iter().map(|io| (io, ErrorKind::Fenced.into())));
            }
            Outcome::Found { label, checkpoint, .. } => {
                self.find(context, member, label, checkpoint);
            }
        }
    }

    /// The machine hears of the commands and of the member, in either order.
    fn lose(
        &mut self,
        context: &mut Context<'_>,
        member: usize,
        ios: Vec<IoId>,
        kind: ErrorKind,
        reason: &str,
    ) {
        if let Stage::Opening { found, .. } | Stage::Asking { found } = &mut self.stage {
            found[member] = None;
        }
        let ends = ios.into_iter().map(|io| (io, kind.into()));
        self.early[member] = None;
        let Stage::Open(machine) = &mut self.stage else { return };
        let is_told_first = context.around.dice.one_in(2);
        if !is_told_first {
            for (io, error) in ends.clone() {
                self.outstanding -= 1;
                machine.handle_io_done(io, Err(error));
            }
        }
        if core::mem::take(&mut self.told[member]) {
            self.has_lost_one = true;
            context.notices.push_back((self.id, Notice::Gone(member)));
            machine.handle_gone(index(member), reason);
        }
        if is_told_first {
            self.ended.extend(ends);
        }
    }

    fn find(
        &mut self,
        context: &mut Context<'_>,
        member: usize,
        label: Option<Box<Label>>,
        checkpoint: Option<u64>,
    ) {
        let ours = |label: &Label| {
            label.array_uuid == self.fittings.array_uuid && label.index == index(member)
        };
        let label = label.filter(|label| ours(label));
        let found = label.map_or(Found::Stranger, |label| Found::Member(label, checkpoint));
        context.trace.note(context.around.now, || match &found {
            Found::Member(label, _) => {
                let (generation, epoch) = (label.generation, label.epoch);
                format!("engine {}: member {member} is there: {generation}.{epoch}", self.id.0)
            }
            Found::Stranger => format!("engine {}: member {member} has no label", self.id.0),
        });
        match &mut self.stage {
            Stage::Opening { found: all, .. } | Stage::Asking { found: all } => {
                all[member] = Some(found);
            }
            Stage::Open(_) if self.is_recovered => self.welcome(member, found),
            Stage::Open(_) => self.early[member] = Some(found),
            Stage::Over => {}
        }
    }

    /// The machine hears of a member that is there again.
    fn welcome(&mut self, member: usize, found: Found) {
        let Stage::Open(machine) = &mut self.stage else { return };
        self.told[member] = true;
        let caps = self.fittings.caps[member];
        let expected = machine.label().members[member].uuid;
        match found {
            Found::Member(label, checkpoint) if label.members[member].uuid == expected => {
                machine
                    .handle_return(index(member), FoundMember { caps, label: *label, checkpoint });
            }
            Found::Member(..) | Found::Stranger => {
                self.new_uuids += 1;
                let mut uuid = [0xee; 16];
                uuid[..4].copy_from_slice(&self.id.0.to_le_bytes());
                uuid[4..12].copy_from_slice(&self.new_uuids.to_le_bytes());
                uuid[12] = narrow(member);
                machine.handle_replace(index(member), NewDevice { uuid, caps });
            }
        }
    }

    /// Everybody has answered, or has had time to.
    fn try_to_open(&mut self, context: &mut Context<'_>) {
        let Stage::Opening { until, found } = &mut self.stage else { return };
        let members = found.len();
        if found.iter().flatten().count() < members && context.around.now < *until {
            return;
        }
        let found = core::mem::take(found);
        match doubt(&found) {
            None => {
                self.stage = Stage::Over;
                let why = "no member has a label".into();
                context.notices.push_back((self.id, Notice::Refused(why)));
            }
            Some(Doubt::None) => self.open(context, &found),
            Some(Doubt::OthersMayBeNewer(generation, epoch)) => {
                self.stage = Stage::Asking { found };
                context.notices.push_back((self.id, Notice::Asks(generation, epoch)));
            }
        }
    }

    /// The answer to [`Notice::Asks`].
    pub fn handle_word(&mut self, context: &mut Context<'_>, may_open: bool) {
        let Stage::Asking { found } = &mut self.stage else { return };
        let found = core::mem::take(found);
        if may_open {
            self.open(context, &found);
            self.drive(context);
        } else {
            self.stage = Stage::Over;
            let why = "members that are not there could carry the array alone".into();
            context.notices.push_back((self.id, Notice::Refused(why)));
        }
    }

    fn open(&mut self, context: &mut Context<'_>, found: &[Option<Found>]) {
        let newest = newest(found);
        // A member that was replaced since is a stranger too.
        let is_ours = |at: usize, label: &Label| {
            newest.is_some_and(|newest| newest.members[at].uuid == label.members[at].uuid)
        };
        let member = |(at, found): (usize, &Option<Found>)| match found {
            Some(Found::Member(label, checkpoint)) if is_ours(at, label) => Some(FoundMember {
                caps: self.fittings.caps[at],
                label: Label::clone(label),
                checkpoint: *checkpoint,
            }),
            Some(Found::Member(..) | Found::Stranger) | None => None,
        };
        let members: Vec<_> = found.iter().enumerate().map(member).collect();
        self.told = members.iter().map(Option::is_some).collect();
        self.found.clone_from(&self.told);
        let mut engine_id = [0; 16];
        engine_id[..4].copy_from_slice(&self.id.0.to_le_bytes());
        engine_id[15] = 1;
        let config = OpenConfig {
            members,
            holder: Holder { engine_id, name: "simulation".into(), ..Holder::default() },
            max_io_len: self.fittings.max_io_len,
            pool: self.fittings.pool.clone(),
            limits: self.fittings.limits,
        };
        context.trace.note(context.around.now, || {
            format!("engine {}: opens with members {:?}", self.id.0, self.told)
        });
        self.stage = match M::open(config) {
            Ok(machine) => {
                let geometry = machine.label().geometry;
                let memory = self.fittings.read_ahead;
                self.ahead = memory.map(|memory| Ahead::new(&geometry, memory));
                Stage::Open(machine)
            }
            Err(error) => {
                let why = format!("the array cannot be opened: {error}");
                context.notices.push_back((self.id, Notice::Refused(why)));
                Stage::Over
            }
        };
        // Strangers are found once more when the machine runs.
        for (member, found) in found.iter().enumerate() {
            if found.is_some() && !self.told[member] {
                let outcome = self.sessions[member].lose(&mut context.around, "it has no label");
                drop(outcome);
            }
        }
    }

    /// Reads ahead what is to be, and closes when nothing is any more.
    fn read_ahead(&mut self, context: &mut Context<'_>) {
        while let (Stage::Open(machine), Some(ahead)) = (&mut self.stage, &mut self.ahead)
            && let Some(end) = ahead.poll(machine)
        {
            self.end_request(context, Some(end));
        }
        if let (Stage::Open(machine), Some(ahead)) = (&mut self.stage, &self.ahead)
            && ahead.under_way() == 0
            && core::mem::take(&mut self.closes)
        {
            machine.handle_close();
        }
    }

    /// Gives the machine's actions to the sessions until there are none.
    fn drive(&mut self, context: &mut Context<'_>) {
        loop {
            self.read_ahead(context);
            let Stage::Open(machine) = &mut self.stage else { return };
            let Some(action) = machine.poll_action() else {
                let mut is_idle = true;
                while let Stage::Open(machine) = &mut self.stage
                    && let Some(event) = machine.poll_event()
                {
                    is_idle = false;
                    self.handle_event(context, event);
                }
                let Stage::Open(machine) = &mut self.stage else { return };
                if let Some((io, error)) = self.ended.pop_front() {
                    self.outstanding -= 1;
                    machine.handle_io_done(io, Err(error));
                } else if is_idle {
                    return;
                }
                continue;
            };
            self.execute(context, action);
            if self.is_dying {
                return self.note_faulty_members();
            }
        }
    }

    /// The engine dies before it hears what the machine says of members that are set aside; labels on
    /// their way may say so already.
    fn note_faulty_members(&mut self) {
        let Stage::Open(machine) = &mut self.stage else { return };
        while let Some(event) = machine.poll_event() {
            if let Event::Member { member, state: MemberState::Faulty, .. } = event {
                self.told[member.as_usize()] = false;
            }
        }
    }

    fn handle_event(&mut self, context: &mut Context<'_>, event: Event) {
        context.trace.note(context.around.now, || format!("engine {}: {event:?}", self.id.0));
        if let Event::Member { member, state, .. } = &event {
            let member = member.as_usize();
            self.in_sync[member] = *state == MemberState::InSync;
            // Who is there and not up to date is missing only until the machine is open.
            let is_out = *state == MemberState::Faulty;
            if is_out && core::mem::take(&mut self.told[member]) {
                self.has_lost_one = true;
                context.notices.push_back((self.id, Notice::Gone(member)));
                if let Outcome::Lost(ios, _) =
                    self.sessions[member].lose(&mut context.around, "the machine set it aside")
                {
                    let ends = ios.into_iter().map(|io| (io, ErrorKind::Unreachable.into()));
                    self.ended.extend(ends);
                }
            }
        }
        let is_opened = event == Event::Opened;
        context.notices.push_back((self.id, Notice::Event(event)));
        if is_opened {
            self.is_recovered = true;
            if let Stage::Open(machine) = &self.stage {
                let states = machine.label().members.into_iter().map(|entry| entry.state);
                // Of one that has left meanwhile the label may not tell yet.
                let in_sync =
                    |(state, told): (MemberState, &bool)| *told && state == MemberState::InSync;
                self.in_sync = states.zip(&self.told).map(in_sync).collect();
            }
            for member in 0..self.early.len() {
                if let Some(found) = self.early[member].take() {
                    self.welcome(member, found);
                }
            }
        }
    }

    fn execute(&mut self, context: &mut Context<'_>, action: Action) {
        let (id, now) = (self.id, context.around.now);
        if let Action::Complete { request, result } = action {
            let end = match &mut self.ahead {
                None => Some((request, result)),
                Some(ahead) => ahead.handle_done(request, result),
            };
            return self.end_request(context, end);
        }
        self.actions += 1;
        // Who serves dies in the middle of something.
        let is_busy = !self.is_recovered || self.crowd >= CROWD_MIN;
        let number = self.actions;
        if !self.is_recovered && self.is_watched(number, &action) {
            context.notices.push_back((id, Notice::Watched));
        }
        if is_busy && self.dies.as_mut().is_some_and(|dies| dies.comes(number, &action)) {
            self.is_dying = true;
            context.notices.push_back((id, Notice::Dies));
            return;
        }
        context.trace.note(now, || format!("engine {}: {}", id.0, describe(&action)));
        let block = u64::from(self.fittings.block_len);
        let (io, member, offset, len) = extent(&action);
        context.trace.mix(&[4, u64::from(member.0), offset, len]);
        let limit = u64::from(self.fittings.max_io_len);
        let is_sound = offset.is_multiple_of(block)
            && len.is_multiple_of(block)
            && offset.checked_add(len).is_some_and(|end| end <= self.fittings.capacity)
            && (len <= limit || matches!(action, Action::Discard { .. }))
            && (len > 0 || matches!(action, Action::Flush { .. }))
            && member.as_usize() < self.sessions.len();
        if !is_sound {
            let text = format!("a member request that no driver would do: {}", describe(&action));
            context.notices.push_back((id, Notice::Nonsense(text)));
            return;
        }
        let (first, count) = (offset / block, len / block);
        let command = match action {
            Action::Read { .. } => Command::Read { first, count },
            Action::Write { data, fua, .. } => Command::Write { first, data, fua },
            Action::Flush { .. } => Command::Flush,
            Action::Discard { .. } => Command::Discard { first, count },
            Action::Complete { .. } => return,
        };
        self.outstanding += 1;
        let session = &mut self.sessions[member.as_usize()];
        if session.is_fenced() {
            self.ended.push_back((io, ErrorKind::Fenced.into()));
        } else if !self.told[member.as_usize()] || !session.submit(&mut context.around, io, command)
        {
            // Also when there is a session: of a member that the machine does not know to be back.
            self.ended.push_back((io, ErrorKind::Unreachable.into()));
        }
    }
}

impl<M> Engine<M> {
    /// Whether this request is a moment to look at.
    fn is_watched(&mut self, number: u64, action: &Action) -> bool {
        let Some((due, left)) = &mut self.watched else { return false };
        if !due.comes(number, action) {
            return false;
        }
        *due = Due { after: number + WATCH_EACH, near: None };
        *left -= 1;
        if *left == 0 {
            self.watched = None;
        }
        true
    }
}

fn index(member: usize) -> MemberIndex {
    MemberIndex(narrow(member))
}

fn extent(action: &Action) -> (IoId, MemberIndex, u64, u64) {
    match action {
        Action::Read { io, member, offset, len } => (*io, *member, *offset, u64::from(*len)),
        Action::Write { io, member, offset, data, .. } => {
            (*io, *member, *offset, data.len() as u64)
        }
        Action::Flush { io, member } => (*io, *member, 0, 0),
        Action::Discard { io, member, offset, len } => (*io, *member, *offset, *len),
        Action::Complete { .. } => (IoId(0), MemberIndex(0), 0, 0),
    }
}

fn describe(action: &Action) -> String {
    let (io, member, offset, len) = extent(action);
    let what = match action {
        Action::Read { .. } => "read",
        Action::Write { fua: true, .. } => "write with FUA",
        Action::Write { .. } => "write",
        Action::Flush { .. } => return format!("io {}: flush of member {member}", io.0),
        Action::Discard { .. } => "discard",
        Action::Complete { .. } => "end",
    };
    format!("io {}: {what} of member {member}, {len} bytes at {offset:#x}", io.0)
}

/// What stands against opening the array with the members that were found.
enum Doubt {
    None,
    /// Others are in sync and could have carried the array without these since this generation
    /// and epoch.
    OthersMayBeNewer(u64, u64),
}

fn newest(found: &[Option<Found>]) -> Option<&Label> {
    let members = found.iter().filter_map(|found| match found {
        Some(Found::Member(label, checkpoint)) => Some((&**label, *checkpoint)),
        Some(Found::Stranger) | None => None,
    });
    let (labels, checkpoints): (Vec<&Label>, Vec<Option<u64>>) = members.unzip();
    let newest = labels.iter().copied().max_by_key(|it| (it.generation, it.epoch))?;
    // The machine says so when it is not clear which one counts.
    Some(judge(&labels, &checkpoints).map_or(newest, |verdict| labels[verdict.truth]))
}

/// None when there is no label at all.
fn doubt(found: &[Option<Found>]) -> Option<Doubt> {
    let newest = newest(found)?;
    let is_elsewhere = |at: &usize| {
        newest.members[*at].state == MemberState::InSync
            && !matches!(found[*at], Some(Found::Member(..)))
    };
    let others: MemberSet = (0..found.len()).filter(is_elsewhere).map(index).collect();
    Some(if newest.geometry.can_serve_from(others) {
        Doubt::OthersMayBeNewer(newest.generation, newest.epoch)
    } else {
        Doubt::None
    })
}
