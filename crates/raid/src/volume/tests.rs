//! Rules of a volume, with a machine that does as it is told.

mod ahead;
mod closing;
mod heartbeats;
mod joining;
mod looks;
mod paces;
mod pauses;
mod random;
mod reader;
mod requests;
mod returns;
mod slow;
mod spares;
mod succession;
mod tally;

use alloc::{
    boxed::Box,
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};

use core::mem;

use netraid_block::{Buf, ErrorKind, Op, RequestFlags, SgList, narrow};

use super::*;
use crate::{
    array::{CommandError, MemberCaps, RequestId},
    geometry::{Geometry, Level},
    label::{Label, Uuid},
    log::Position,
    logged::{LoggedArray, To, Unstable},
    member::{ArrayState, MemberSet, MemberState},
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const MEMBERS: u8 = 5;
/// Most bytes that a device takes at once.
const TRANSFER: u32 = 1 << 20;
const SECOND: Duration = Duration::from_secs(1);

/// A machine that asks for what a test tells it to, and notes what it hears.
#[derive(Debug)]
struct Script {
    geometry: Geometry,
    has_log: bool,
    is_read_only: bool,
    states: Vec<MemberState>,
    failure: Option<IoError>,
    /// So many members at once can be lost.
    bears: u32,
    labels_pending: bool,
    /// Why no member is set aside by command.
    refuses_fail: Option<CommandError>,
    /// Why no member may be replaced.
    refuses_join: Option<CommandError>,
    /// Why no device is taken.
    refuses_device: Option<CommandError>,
    /// This member leaves when a request fails.
    leaves_by_error: Option<u8>,
    /// What sets a member aside is its end.
    fails_when_gone: bool,
    /// What was acknowledged and is not stable, when it fails.
    unstable: Unstable,
    /// How far its opening found what was acknowledged.
    recovered_upto: Option<Position>,
    scrubbed: Option<Box<LoggedArray>>,
    /// Those of the array and of each member.
    identities: Vec<(Uuid, Uuid)>,
    calls: Vec<Call>,
    actions: VecDeque<Do>,
    events: VecDeque<Told>,
}

/// What a machine heard.
#[derive(Debug, Clone, PartialEq)]
enum Call {
    Request { id: RequestId, what: (Op, u64, u64), flags: RequestFlags, data: Vec<u8> },
    IoDone(IoId, Result<Vec<u8>, IoError>),
    Late(IoId),
    Slow(MemberSet),
    Probe(u8),
    Fail(u8),
    Gone(u8, String),
    Device { member: u8, uuid: Uuid, caps: MemberCaps, label: Option<Box<Label>> },
    Successor(u8, Uuid),
    SuccessorGone(u8),
    Idle,
    Age,
    Close,
}

impl Script {
    fn new() -> Self {
        // Four data columns of 64 KiB, 64 MiB in all.
        let geometry = Geometry::new(Level::Raid5, MEMBERS.into(), 64 << 10, 512, 256, 0).unwrap();
        Self {
            geometry,
            has_log: true,
            is_read_only: false,
            states: vec![MemberState::InSync; usize::from(MEMBERS)],
            failure: None,
            bears: 1,
            labels_pending: false,
            refuses_fail: None,
            refuses_join: None,
            refuses_device: None,
            leaves_by_error: None,
            fails_when_gone: false,
            unstable: Unstable::default(),
            recovered_upto: None,
            scrubbed: None,
            identities: Vec::new(),
            calls: Vec::new(),
            actions: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    fn say(&mut self, member: u8, state: MemberState, reason: &str) {
        self.states[usize::from(member)] = state;
        let (member, reason) = (MemberIndex(member), reason.into());
        self.events.push_back(Told::Member { member, state, reason });
    }
}

impl Machine for Script {
    fn has_log(&self) -> bool {
        self.has_log
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn member_state(&self, member: MemberIndex) -> MemberState {
        self.states[member.as_usize()]
    }

    fn failure(&self) -> Option<IoError> {
        self.failure.clone()
    }

    fn state(&self) -> ArrayState {
        if self.failure.is_some() { ArrayState::Failed } else { ArrayState::Optimal }
    }

    fn can_be_opened_anew(&self) -> bool {
        self.has_log && !self.is_read_only
    }

    fn unstable(&self) -> Result<Unstable, IoError> {
        Ok(self.unstable.clone())
    }

    fn recovered_upto(&self) -> Option<Position> {
        self.recovered_upto
    }

    fn can_lose_all(&self, members: MemberSet) -> bool {
        members.len() <= self.bears
    }

    fn identity(&self, member: MemberIndex) -> Option<(Uuid, Uuid)> {
        self.identities.get(member.as_usize()).copied()
    }

    fn holder(&self) -> Option<(Uuid, u64)> {
        Some(([3; 16], 8))
    }

    fn check_replace(&self, _: MemberIndex) -> Result<(), CommandError> {
        self.refuses_join.clone().map_or(Ok(()), Err)
    }

    fn labels_pending(&self) -> bool {
        self.labels_pending
    }

    fn handle_request(
        &mut self,
        id: RequestId,
        what: (Op, u64, u64),
        flags: RequestFlags,
        data: SgList,
    ) {
        self.calls.push(Call::Request { id, what, flags, data: flat(&data) });
    }

    fn handle_io_done(&mut self, io: IoId, result: Result<SgList, IoError>) {
        if let (Some(member), Err(error)) = (self.leaves_by_error, &result)
            && self.states[usize::from(member)].is_live()
            && self.failure.is_none()
        {
            self.say(member, MemberState::Faulty, &error.to_string());
        }
        self.calls.push(Call::IoDone(io, result.map(|data| flat(&data))));
    }

    fn handle_fail(&mut self, member: MemberIndex) -> Result<(), CommandError> {
        self.calls.push(Call::Fail(member.0));
        if let Some(refusal) = self.refuses_fail.clone() {
            return Err(refusal);
        }
        self.say(member.0, MemberState::Faulty, "set aside by command");
        Ok(())
    }

    fn handle_gone(&mut self, member: MemberIndex, reason: &str) {
        self.calls.push(Call::Gone(member.0, reason.into()));
        self.say(member.0, MemberState::Faulty, reason);
        if self.fails_when_gone {
            self.failure = Some(ErrorKind::Redundancy.into());
        }
    }

    fn handle_device(
        &mut self,
        member: MemberIndex,
        uuid: Uuid,
        caps: MemberCaps,
        label: Option<Label>,
    ) -> Result<(), CommandError> {
        let state = self.member_state(member);
        let is_live = state.is_live().then(|| CommandError::StillLive(member, state.name()));
        let (member, label) = (member.0, label.map(Box::new));
        self.calls.push(Call::Device { member, uuid, caps, label });
        is_live.map_or(Ok(()), Err)?;
        self.refuses_device.clone().map_or(Ok(()), Err)
    }

    fn handle_successor(
        &mut self,
        member: MemberIndex,
        uuid: Uuid,
        _: MemberCaps,
    ) -> Result<(), CommandError> {
        self.calls.push(Call::Successor(member.0, uuid));
        self.refuses_device.clone().map_or(Ok(()), Err)
    }

    fn handle_successor_gone(&mut self, member: MemberIndex) {
        self.calls.push(Call::SuccessorGone(member.0));
    }

    fn handle_overtaken(&mut self, error: IoError) {
        self.failure.get_or_insert(error);
    }

    fn handle_idle(&mut self) {
        self.calls.push(Call::Idle);
    }

    fn handle_late(&mut self, io: IoId) -> u64 {
        self.calls.push(Call::Late(io));
        4
    }

    fn handle_slow(&mut self, members: MemberSet) {
        self.calls.push(Call::Slow(members));
    }

    fn handle_probe(&mut self, member: MemberIndex) {
        self.calls.push(Call::Probe(member.0));
    }

    fn handle_age(&mut self) {
        self.calls.push(Call::Age);
    }

    fn handle_close(&mut self) {
        self.calls.push(Call::Close);
    }

    fn scrubbed(&mut self) -> Option<&mut LoggedArray> {
        self.scrubbed.as_deref_mut()
    }

    fn poll_action(&mut self) -> Option<Do> {
        self.actions.pop_front()
    }

    fn poll_event(&mut self) -> Option<Told> {
        self.events.pop_front()
    }
}

/// What a volume wants to have done, but for what it tells.
#[derive(Debug, Clone, PartialEq)]
enum Seen {
    Sent(Sent),
    Ended(u32, Result<Vec<u8>, IoError>),
    Part(u8),
    Cut(u8),
    Reopen(MemberSet),
    LookFor(u8),
    AskForSpare(usize),
    Join { member: u8, expect: Expect, ends_former: bool },
    Take(u8),
    LetGo(u8),
    Opened(Result<(), IoError>),
    Joined(u8, Result<(), JoinError>),
}

/// A request to the device in a member's place.
#[derive(Debug, Clone, PartialEq)]
struct Sent {
    tag: Tag,
    member: u8,
    what: (Op, u64, u64),
    fua: bool,
    data: Vec<u8>,
}

/// A volume and its shell, which does at once what it is told.
struct Rig {
    volume: Volume<Script, u32>,
    now: Duration,
    /// By member.
    looks: Vec<Look>,
    told: Vec<Event>,
}

impl Rig {
    /// Open, with a device in each place.
    fn opened() -> Self {
        Self::opened_with(|_, _| {})
    }

    fn opened_with(prepare: impl FnOnce(&mut Script, &mut Config)) -> Self {
        let mut rig = Self::opening_with(prepare);
        rig.volume.machine.events.push_back(Told::Opened);
        assert_eq!(rig.seen(), [Seen::Opened(Ok(()))]);
        rig
    }

    fn opening_with(prepare: impl FnOnce(&mut Script, &mut Config)) -> Self {
        let mut script = Script::new();
        let places = (0..MEMBERS).map(|member| Found::Device(device(&address(member))));
        let mut config = Config { places: places.collect(), ..Config::default() };
        prepare(&mut script, &mut config);
        let look = |found: &Found| Look {
            report: matches!(found, Found::Device(_)).then(|| report(0)),
            is_leaving: false,
        };
        let looks = config.places.iter().map(look).collect();
        Self { volume: Volume::new(script, config), now: Duration::ZERO, looks, told: Vec::new() }
    }

    fn machine(&mut self) -> &mut Script {
        &mut self.volume.machine
    }

    /// Everything that is to be done now.
    fn seen(&mut self) -> Vec<Seen> {
        let mut seen = Vec::new();
        while let Some(action) = self.volume.poll(self.now) {
            seen.extend(self.see(action));
        }
        seen
    }

    fn see(&mut self, action: Action<u32>) -> Option<Seen> {
        Some(match action {
            Action::Submit { tag, member, op, offset, len, fua, data } => {
                let is_there = self.looks[member.as_usize()].report.is_some();
                assert!(is_there, "a request for member {member}, whose place has no device");
                let (member, what, data) = (member.0, (op, offset, len), flat(&data));
                Seen::Sent(Sent { tag, member, what, fua, data })
            }
            Action::Complete { user, result } => Seen::Ended(user, result.map(|data| flat(&data))),
            Action::Part(member) => {
                let former = self.looks[member.as_usize()].report.take();
                assert!(former.is_some(), "nobody is in the place of member {member}");
                Seen::Part(member.0)
            }
            Action::Cut(member) => {
                let former = self.looks[member.as_usize()].report.take();
                assert!(former.is_some(), "nobody is in the place of member {member}");
                Seen::Cut(member.0)
            }
            Action::Reopen { but } => Seen::Reopen(but),
            Action::LookFor(member) => Seen::LookFor(member.0),
            Action::AskForSpare { number } => Seen::AskForSpare(number),
            Action::Join { member, expect, ends_former } => {
                if ends_former {
                    let former = self.looks[member.as_usize()].report.take();
                    assert!(former.is_some(), "nobody is in the place of member {member}");
                }
                Seen::Join { member: member.0, expect, ends_former }
            }
            Action::Take(member) => {
                let place = &self.volume.places[member.as_usize()];
                let losses = place.device.as_ref().unwrap().cache_losses;
                let former = self.looks[member.as_usize()].report.replace(report(losses));
                assert!(former.is_none(), "two devices in the place of member {member}");
                Seen::Take(member.0)
            }
            Action::LetGo(member) => Seen::LetGo(member.0),
            Action::Opened(result) => Seen::Opened(result),
            Action::Joined { member, result } => Seen::Joined(member.0, result),
            Action::Tell(event) => {
                self.told.push(event);
                return None;
            }
        })
    }

    /// What the machine has heard since the last time.
    fn calls(&mut self) -> Vec<Call> {
        mem::take(&mut self.volume.machine.calls)
    }

    /// What was told since the last time.
    fn told(&mut self) -> Vec<Event> {
        mem::take(&mut self.told)
    }

    /// A user asks for something other than a write.
    fn ask(&mut self, user: u32, op: Op, offset: u64, len: u64) {
        let flags = RequestFlags::default();
        self.volume.handle_request(self.now, user, (op, offset, len), flags, SgList::new());
    }

    /// A user reads; the request of the machine, if it has one for it.
    fn read(&mut self, user: u32, offset: u64, len: u64) -> Vec<RequestId> {
        self.ask(user, Op::Read, offset, len);
        self.requests()
    }

    /// The requests that the machine has got since the last time.
    fn requests(&mut self) -> Vec<RequestId> {
        let id = |call| if let Call::Request { id, .. } = call { Some(id) } else { None };
        self.calls().into_iter().filter_map(id).collect()
    }

    /// The machine ends a user's request.
    fn complete(&mut self, request: RequestId, result: Result<SgList, IoError>) {
        self.machine().actions.push_back(Do::Complete { request, result });
    }

    /// The machine asks a member for something; what is sent for it.
    fn submit(&mut self, io: usize, member: u8, (op, offset, len): (Op, u64, u64)) -> Vec<Sent> {
        let data = if op == Op::Write { pattern(offset, len) } else { SgList::new() };
        let (io, member) = (IoId(io), MemberIndex(member));
        let submit = Do::Submit { io, member, op, offset, len, fua: false, data, to: To::Both };
        self.machine().actions.push_back(submit);
        let sent = |seen| {
            let Seen::Sent(sent) = seen else { panic!("{seen:?}") };
            sent
        };
        self.seen().into_iter().map(sent).collect()
    }

    /// The device in the place ends a request.
    fn end(&mut self, tag: Tag, result: Result<SgList, IoError>) {
        let report = self.looks[tag.member().as_usize()].report.as_ref();
        let losses = report.map(|report| report.cache_losses);
        self.volume.handle_io_done(self.now, tag, losses, result);
    }

    /// A member asks its device for something, and that fails or not.
    fn try_io(&mut self, member: u8, op: Op, result: Result<SgList, IoError>) {
        let sent = self.submit(0, member, (op, 0, 4 * KIB));
        self.end(sent[0].tag, result);
        assert!(matches!(self.calls()[..], [Call::IoDone(IoId(0), _)]));
    }

    /// The machine says that a member's state has changed.
    fn say(&mut self, member: u8, state: MemberState) {
        self.machine().say(member, state, "so it is");
    }

    /// The machine sets a member aside.
    fn leave(&mut self, member: u8) {
        self.say(member, MemberState::Faulty);
        assert_eq!(self.seen(), [Seen::Part(member)]);
    }

    /// The machine fails.
    fn fail(&mut self) {
        self.machine().failure = Some(ErrorKind::Redundancy.into());
        self.machine().events.push_back(Told::Closed);
    }

    fn report(&mut self, member: u8) -> &mut Report {
        self.looks[usize::from(member)].report.as_mut().unwrap()
    }

    /// The session to a member is lost.
    fn lose(&mut self, member: u8) {
        let report = self.report(member);
        (report.is_connected, report.failure) = (false, "a cable is cut".into());
    }

    /// A second passes, after which the sessions are looked at. What has a session was heard of meanwhile.
    fn look(&mut self) -> Vec<Seen> {
        self.now += SECOND;
        for report in self.looks.iter_mut().filter_map(|look| look.report.as_mut()) {
            report.signs += u64::from(report.is_connected);
        }
        self.volume.handle_timeout(self.now, &self.looks);
        self.seen()
    }

    /// What came of looking for a member.
    fn come_back(&mut self, member: u8, end: Result<Candidate, String>) -> Vec<Seen> {
        self.volume.handle_returned(MemberIndex(member), &self.looks, end);
        self.seen()
    }

    fn join(&mut self, member: u8, address: &str, expect: Expect) -> Result<(), JoinError> {
        self.volume.handle_join(MemberIndex(member), address, expect)
    }

    fn command_fail(&mut self, member: u8) -> Result<(), JoinError> {
        self.volume.handle_fail(MemberIndex(member))
    }
}

fn address(member: u8) -> String {
    format!("address {member}")
}

fn device(address: &str) -> Device {
    let caps = MemberCaps { volatile_cache: true, can_discard: false };
    Device { address: address.into(), caps, max_transfer_len: TRANSFER, cache_losses: 0 }
}

fn candidate(address: &str) -> Candidate {
    Candidate { device: device(address), label: None, uuid: [9; 16] }
}

/// Of a device that is there.
fn report(cache_losses: u64) -> Report {
    let request_timeout = Duration::from_secs(10);
    Report { is_connected: true, cache_losses, request_timeout, ..Report::default() }
}

fn flat(data: &SgList) -> Vec<u8> {
    data.to_contiguous().to_vec()
}

/// Bytes that tell where they are.
fn pattern(offset: u64, len: u64) -> SgList {
    let block = |at: u64| (at / 512).wrapping_mul(0x9e37_79b9).to_le_bytes()[1];
    let bytes: Vec<u8> = (offset..offset + len).map(block).collect();
    Buf::copy_from(&bytes).into()
}

fn no_data() -> Result<SgList, IoError> {
    Ok(SgList::new())
}

fn refusal() -> CommandError {
    CommandError::Needed(MemberIndex(1))
}
