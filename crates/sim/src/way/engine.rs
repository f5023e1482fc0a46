//! One engine: the production volume over the production initiator, and what a shell does between them.
//!
//! It decides nothing: what is asked of members while the array is opened, a device joins or it closes is in scripts
//! ([`super::opening`], [`super::joining`]); all else is said by the volume.

use std::collections::{BTreeMap, VecDeque};

use netraid_block::{IoError, Op, RequestFlags, SgList};
use netraid_raid::{
    array::RequestId,
    fencing::Fence,
    label::{Holder, Label},
    logged::UserRequest,
    medium::Medium,
    member::{MemberIndex, MemberState},
    reach::{Sessions as _, device_of},
    regions::CHECKPOINT_OFFSETS,
    volume::{
        Action, Candidate, Config, Event, Expect, Found, JoinError, Look, Machine as _,
        PlainOrLogged, ScrubOrder, Tag, Volume, preparing,
    },
};

mod scripts;
mod wire;

use super::{
    cases::{Case, Cases},
    device::{Connected, Failure, address},
    interface::{EngineId as Seat, HostId, LineConfig, LineId},
    joining::{self, Beside},
    net::Net,
    opening::{self, Opened, Options},
    script::{Answer, Desk, LineNumber, Script, Ticket},
};
use crate::{array::oracle::EngineId, time::Time};

use super::world::Happening;
pub(super) use wire::User;

/// What the world hears of an engine.
#[derive(Debug)]
pub(super) enum Notice {
    /// A user's request has ended.
    Completed(RequestId, Result<SgList, IoError>),
    /// The volume says so.
    Event(Event),
    /// The array is open, or has failed before it was.
    Opened(Result<(), IoError>),
    /// It cannot open the array as it is.
    Refused(Failure),
    /// The array is closed, and all lines are over.
    Closed(Option<IoError>),
    /// A member was set aside.
    Parted(usize),
    /// A host's disk could not be had for a member's place.
    NotJoined(usize, Failure),
}

/// What an engine works with, and what it leaves behind.
pub(super) struct Context<'a> {
    pub(super) net: &'a mut Net<User, Happening>,
    /// Every host, by its number.
    pub(super) hosts: &'a [HostId],
    pub(super) cases: &'a mut Cases,
    pub(super) notices: &'a mut VecDeque<(EngineId, Notice)>,
}

impl Context<'_> {
    fn now(&self) -> Time {
        self.net.now()
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        let now = self.net.now();
        self.net.trace().note(now, line);
    }
}

#[derive(Debug)]
enum Stage {
    Opening(Script<Result<Opened, Failure>>),
    Open(Box<Serving>),
    /// The sessions of a closed array end.
    Ending(Script<()>, Option<IoError>),
    Over,
}

/// A device that may take a member's place, with the label of a member that is back; or why it may not.
type Joined = Result<(Connected, Option<Label>), Failure>;

/// An array that was opened.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) volume: Volume<PlainOrLogged, RequestId>,
    slots: Vec<Slot>,
    fence: Fence,
    /// Where the device is that is on its way into a member's place.
    asked: Option<usize>,
    joining: Option<(MemberIndex, Script<Joined>)>,
    /// Devices that are given back, and have no place.
    unused: Vec<Script<()>>,
    started: Time,
}

/// A member as the shell sees it.
#[derive(Debug)]
struct Slot {
    host: usize,
    connected: Option<Connected>,
    candidate: Option<Connected>,
    leaving: Option<Script<()>>,
    attempt: Option<Script<Joined>>,
}

/// An engine.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) id: EngineId,
    /// On which machine it runs.
    pub(super) machine: usize,
    /// It opened the array with parity as it was.
    pub(super) trusts_parity: bool,
    pub(super) is_forced: bool,
    this: Holder,
    /// Where members are looked for, in order.
    hosts: Vec<usize>,
    desk: Desk,
    lines: BTreeMap<LineNumber, LineId>,
    numbers: BTreeMap<LineId, LineNumber>,
    dialing: BTreeMap<LineNumber, Ticket>,
    closing: BTreeMap<LineNumber, Vec<Ticket>>,
    orders: BTreeMap<(LineId, netraid_remote::OrderId), Ticket>,
    /// Requests that no line took.
    ended: VecDeque<(User, Result<SgList, IoError>)>,
    /// How its lines are made.
    line_config: LineConfig,
    /// The machine that it runs on.
    seat: Seat,
    stage: Stage,
    /// Member requests that have not come back.
    outstanding: usize,
    /// The label as it was when the array was closed.
    closed_label: Option<Label>,
    /// Where the log was written last.
    log_at: u64,
}

impl Engine {
    /// An engine that begins to open the array.
    pub(super) fn new(
        id: EngineId,
        (machine, seat): (usize, Seat),
        options: Options,
        desk: Desk,
        line_config: LineConfig,
    ) -> Self {
        let (this, is_forced) = (options.this.clone(), options.force);
        let hosts = options.hosts.clone();
        let stage = Stage::Opening(Script::new(opening::open(desk.clone(), options)));
        Self {
            id,
            machine,
            trusts_parity: false,
            is_forced,
            this,
            hosts,
            desk,
            lines: BTreeMap::new(),
            numbers: BTreeMap::new(),
            dialing: BTreeMap::new(),
            closing: BTreeMap::new(),
            orders: BTreeMap::new(),
            ended: VecDeque::new(),
            line_config,
            seat,
            stage,
            outstanding: 0,
            closed_label: None,
            log_at: 0,
        }
    }

    /// The array, once it is open.
    pub(super) fn serving(&self) -> Option<&Serving> {
        match &self.stage {
            Stage::Open(serving) => Some(serving),
            Stage::Opening(_) | Stage::Ending(..) | Stage::Over => None,
        }
    }

    /// What it waits for, for people.
    pub(super) fn describe(&self) -> String {
        let stage = match &self.stage {
            Stage::Opening(_) => "opening",
            Stage::Open(_) => "open",
            Stage::Ending(..) => "ending",
            Stage::Over => "over",
        };
        format!(
            "{stage}, dialing {:?}, closing {:?}, orders {:?}, {} under way, lines {:?}",
            self.dialing, self.closing, self.orders, self.outstanding, self.lines
        )
    }

    /// What the labels said when the array was closed.
    pub(super) const fn closed_label(&self) -> Option<&Label> {
        self.closed_label.as_ref()
    }

    /// Whether requests go to a member's device.
    pub(super) fn has(&self, member: usize) -> bool {
        self.serving().is_some_and(|serving| serving.slots[member].connected.is_some())
    }

    /// Whether a device is on its way into a member's place by command.
    pub(super) fn is_joining(&self) -> bool {
        self.serving().is_some_and(|serving| serving.asked.is_some() || serving.copies())
    }

    /// Whether a member is being copied, and nothing else is asked for.
    pub(super) fn only_copies(&self) -> bool {
        self.serving().is_some_and(|serving| serving.asked.is_none() && serving.copies())
    }

    pub(super) fn owns(&self, line: LineId) -> bool {
        self.numbers.contains_key(&line)
    }

    /// When it does something by itself.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let serving = self.serving()?;
        Some(serving.started.after(serving.volume.next_timeout()))
    }

    pub(super) fn handle_timeout(&mut self, context: &mut Context<'_>) {
        self.refresh(context);
        let looks = self.looks();
        if let Stage::Open(serving) = &mut self.stage {
            let time = context.now().since(serving.started);
            if serving.volume.next_timeout() <= time {
                serving.volume.handle_timeout(time, &looks);
            }
        }
        self.drive(context);
    }

    /// Begins what it was made for.
    pub(super) fn begin(&mut self, context: &mut Context<'_>) {
        self.drive(context);
    }

    pub(super) fn handle_request(
        &mut self,
        context: &mut Context<'_>,
        id: RequestId,
        user: UserRequest,
    ) {
        if let Stage::Open(serving) = &mut self.stage {
            let time = context.now().since(serving.started);
            let UserRequest { op, offset, len, fua, data } = user;
            let flags = RequestFlags { fua, no_unmap: false };
            serving.volume.handle_request(time, id, (op, offset, len), flags, data);
        }
        self.drive(context);
    }

    pub(super) fn handle_close(&mut self, context: &mut Context<'_>) {
        if let Stage::Open(serving) = &mut self.stage {
            serving.volume.handle_close();
        }
        self.drive(context);
    }

    /// Sets a member aside by an administrator's order; false when that is refused.
    pub(super) fn handle_fail(&mut self, context: &mut Context<'_>, member: usize) -> bool {
        let Stage::Open(serving) = &mut self.stage else { return false };
        let is_taken = serving.volume.handle_fail(index(member)).is_ok();
        self.drive(context);
        is_taken
    }

    /// A host's disk is to take a member's place.
    pub(super) fn handle_join(
        &mut self,
        context: &mut Context<'_>,
        member: usize,
        host: usize,
        expect: Expect,
    ) -> Result<(), JoinError> {
        let Stage::Open(serving) = &mut self.stage else { return Err(JoinError::NotOpen) };
        let (member, address) = (index(member), address(host));
        let taken = match expect {
            Expect::Former => serving.volume.handle_join(member, &address, expect),
            Expect::Unused | Expect::Anything => {
                serving.volume.handle_replace(member, &address, expect)
            }
        };
        if taken.is_ok() {
            serving.asked = Some(host);
        }
        self.drive(context);
        taken
    }

    pub(super) fn handle_scrub(&mut self, context: &mut Context<'_>, order: ScrubOrder) -> bool {
        let Stage::Open(serving) = &mut self.stage else { return false };
        let time = context.now().since(serving.started);
        let is_taken = serving.volume.handle_scrub(time, order, None).is_ok();
        self.drive(context);
        is_taken
    }

    /// Which host has each member's place, as far as this engine knows.
    pub(super) fn places(&self) -> Option<Vec<usize>> {
        Some(self.serving()?.slots.iter().map(|slot| slot.host).collect())
    }

    /// Whether nothing looks for members, joins or leaves.
    pub(super) fn is_settled(&self) -> bool {
        self.serving().is_some_and(|serving| {
            serving.joining.is_none()
                && !serving.copies()
                && serving.unused.is_empty()
                && serving.slots.iter().all(|slot| slot.attempt.is_none() && slot.leaving.is_none())
        })
    }

    fn looks(&self) -> Vec<Look> {
        let Some(serving) = self.serving() else { return Vec::new() };
        let look = |slot: &Slot| Look {
            report: slot.connected.as_ref().map(|it| it.report(self.line_config.request_timeout)),
            is_leaving: slot.leaving.is_some(),
        };
        serving.slots.iter().map(look).collect()
    }

    /// Does what is to be done until there is nothing left.
    pub(super) fn drive(&mut self, context: &mut Context<'_>) {
        loop {
            let mut went_on = self.advance_scripts(context) | self.advance_volume(context);
            went_on |= self.fulfil(context);
            while let Some((user, result)) = self.ended.pop_front() {
                went_on = true;
                match user {
                    User::Volume(tag) => self.end_io(context.now(), tag, result),
                    User::Script(ticket) => self.desk.answer(ticket, Answer::Data(result)),
                }
            }
            for line in self.desk.take_notes() {
                context.note(|| format!("engine {}: {line}", self.id.0));
            }
            if !went_on {
                return;
            }
        }
    }

    /// Does what the volume says; whether that was anything.
    fn advance_volume(&mut self, context: &mut Context<'_>) -> bool {
        let mut did = false;
        loop {
            let Stage::Open(serving) = &mut self.stage else { return did };
            let time = context.now().since(serving.started);
            let Some(action) = serving.volume.poll(time) else { break };
            did = true;
            self.execute(context, action);
        }
        let Stage::Open(serving) = &mut self.stage else { return did };
        if serving.volume.is_closed() {
            self.begin_end();
            return true;
        }
        did
    }

    fn execute(&mut self, context: &mut Context<'_>, action: Action<RequestId>) {
        let id = self.id;
        let Stage::Open(serving) = &mut self.stage else { return };
        match action {
            Action::Submit { tag, member, op, offset, len, fua, data } => {
                self.submit(context, tag, member, (op, offset, len), fua, data);
            }
            Action::Complete { user, result } => {
                context.net.trace().mix(&[3, user.0, u64::from(result.is_ok())]);
                context.notices.push_back((id, Notice::Completed(user, result)));
            }
            Action::Part(member) => {
                let at = member.as_usize();
                if let Some(connected) = serving.slots[at].connected.take() {
                    serving.slots[at].let_go(connected);
                }
                context.cases.add(Case::MemberSetAside);
                context.notices.push_back((id, Notice::Parted(at)));
            }
            Action::Cut(_) | Action::Reopen { .. } => {
                unreachable!("the arrays of this world never pause")
            }
            Action::LookFor(member) => {
                context.note(|| format!("engine {}: looks for member {member}", id.0));
                context.cases.add(Case::LookedFor);
                let beside = serving.beside(&self.this, member, Expect::Former);
                let host = serving.slots[member.as_usize()].host;
                let desk = self.desk.clone();
                let join = joining::join(desk, host, member, Expect::Former, beside);
                serving.slots[member.as_usize()].attempt = Some(Script::new(join));
            }
            Action::AskForSpare { .. } => unreachable!("no spares were given"),
            Action::Join { member, expect, ends_former } => {
                context
                    .note(|| format!("engine {}: a device for member {member}: {expect:?}", id.0));
                self.begin_join(member, expect, ends_former);
            }
            Action::Take(member) => {
                context.note(|| format!("engine {}: takes member {member}", id.0));
                let slot = &mut serving.slots[member.as_usize()];
                let Some(candidate) = slot.candidate.take() else {
                    unreachable!("no device was found for the place of member {member}")
                };
                slot.host = candidate.host;
                slot.connected = Some(candidate);
            }
            Action::LetGo(member) => {
                let slot = &mut serving.slots[member.as_usize()];
                if let Some(candidate) = slot.candidate.take() {
                    slot.let_go(candidate);
                }
                context.cases.add(Case::CandidateLetGo);
            }
            Action::Opened(result) => {
                context.notices.push_back((id, Notice::Opened(result)));
            }
            Action::Joined { member, result } => {
                context.note(|| {
                    format!("engine {}: the device for member {member}: {result:?}", id.0)
                });
                serving.asked = None;
                if serving.volume.successor(member).is_some() {
                    context.cases.add(Case::MemberCopied);
                }
            }
            Action::Tell(event) => {
                if matches!(&event, Event::Member { reason, .. } if reason == "replaced by its copy")
                {
                    context.cases.add(Case::Succeeded);
                }
                context.note(|| format!("engine {}: {event:?}", id.0));
                context.notices.push_back((id, Notice::Event(event)));
            }
        }
    }

    fn submit(
        &mut self,
        context: &mut Context<'_>,
        tag: Tag,
        member: MemberIndex,
        (op, offset, len): (Op, u64, u64),
        fua: bool,
        data: SgList,
    ) {
        let device = self.serving().and_then(|it| it.slots[member.as_usize()].device_for(tag));
        let Some(line) = device.map(|connected| connected.line) else {
            unreachable!("a request for member {member}, whose place has no device")
        };
        let id = self.id;
        context.note(|| {
            let fua = if fua { " with FUA" } else { "" };
            format!(
                "engine {}: {:#x}: {op:?}{fua} of member {member}, {len} bytes at {offset:#x}",
                id.0, tag.0
            )
        });
        context.net.trace().mix(&[4, u64::from(member.0), offset, len]);
        self.outstanding += 1;
        if op == Op::Write {
            self.count_write(context, offset);
        }
        let flags = RequestFlags { fua, no_unmap: false };
        self.send(context, line, wire::User::Volume(tag), (op, offset, len), flags, data);
    }

    /// Takes note of where the machine writes.
    fn count_write(&mut self, context: &mut Context<'_>, offset: u64) {
        let Some(serving) = self.serving() else { return };
        let label = serving.volume.machine().label();
        let is_in = |region: &netraid_raid::regions::Region| {
            (region.offset..region.end()).contains(&offset)
        };
        if CHECKPOINT_OFFSETS.contains(&offset) {
            context.cases.add(Case::Checkpoint);
        } else if is_in(&label.regions.log) {
            if offset < self.log_at {
                context.cases.add(Case::LogWrapped);
            }
            self.log_at = offset;
        } else if is_in(&label.regions.written) {
            context.cases.add(Case::WrittenBits);
        }
    }

    /// A member request has ended.
    fn end_io(&mut self, now: Time, tag: Tag, result: Result<SgList, IoError>) {
        self.outstanding -= 1;
        if let Stage::Open(serving) = &mut self.stage {
            let connected = serving.slots[tag.member().as_usize()].device_for(tag);
            let cache_losses = connected.map(Medium::cache_losses);
            serving.volume.handle_io_done(now.since(serving.started), tag, cache_losses, result);
        }
    }
}

impl Serving {
    /// Whether every member is in sync.
    pub(super) fn is_whole(&self) -> bool {
        let machine = self.volume.machine();
        machine
            .geometry()
            .member_indices()
            .all(|member| machine.member_state(member) == MemberState::InSync)
    }

    fn new(opened: Opened, hosts: &[usize], now: Time) -> Self {
        let Opened { machine, members, fence, unused, liars, trusts_parity: _ } = opened;
        let slots: Vec<Slot> = members
            .into_iter()
            .zip(hosts)
            .map(|(connected, host)| Slot {
                host: connected.as_ref().map_or(*host, |connected| connected.host),
                connected,
                candidate: None,
                leaving: None,
                attempt: None,
            })
            .collect();
        let mut places: Vec<Found> = slots
            .iter()
            .map(|slot| match &slot.connected {
                Some(connected) => Found::Device(device_of(connected)),
                None => Found::Nobody(Some(address(slot.host))),
            })
            .collect();
        for (member, host) in liars {
            if let Some(place) = places.get_mut(member.as_usize()) {
                *place = Found::Liar(address(host));
            }
        }
        let unused = unused
            .into_iter()
            .map(|unused| Script::new(async move { unused.close().await }))
            .collect();
        let config = Config { places, ..Config::default() };
        Self {
            volume: Volume::new(machine, config),
            slots,
            fence,
            asked: None,
            joining: None,
            unused,
            started: now,
        }
    }

    /// Whether a member is being copied to another device.
    fn copies(&self) -> bool {
        let mut members = self.volume.machine().geometry().member_indices();
        members.any(|member| self.volume.successor(member).is_some())
    }

    fn beside(&self, this: &Holder, member: MemberIndex, expect: Expect) -> Beside {
        let is_other = |at: usize| at != member.as_usize() || expect != Expect::Former;
        let others = self.slots.iter().enumerate().filter(|(at, _)| is_other(*at));
        let machine = self.volume.machine();
        let array = preparing::Beside {
            label: machine.label(),
            max_io_len: machine.max_io_len(),
            this: this.clone(),
            fence: Some(self.fence),
        };
        let devices = others.flat_map(|(_, slot)| slot.connected.iter().chain(&slot.candidate));
        let others = devices.cloned().collect();
        Beside { array, others }
    }
}

impl Slot {
    /// The device that a request is for.
    fn device_for(&self, tag: Tag) -> Option<&Connected> {
        let successor = self.candidate.as_ref().filter(|_| tag.is_for_successor());
        successor.or(self.connected.as_ref())
    }

    /// Gives a device back that has not, or no longer, the place.
    fn let_go(&mut self, mut connected: Connected) {
        let before = self.leaving.take();
        self.leaving = Some(Script::new(async move {
            connected.leave().await;
            if let Some(before) = before {
                before.await;
            }
        }));
    }
}

fn index(member: usize) -> MemberIndex {
    MemberIndex(netraid_block::narrow(member))
}

/// A device that is found for a member's place.
fn candidate(
    slot: &mut Slot,
    connected: Connected,
    label: Option<Label>,
    uuid: netraid_raid::label::Uuid,
) -> Candidate {
    let device = device_of(&connected);
    slot.candidate = Some(connected);
    Candidate { device, label, uuid }
}
