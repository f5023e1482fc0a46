//! A volume around a machine that does anything, with a shell to which anything happens in any order.

use alloc::collections::BTreeSet;

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;

const KINDS: [ErrorKind; 7] = [
    ErrorKind::Device,
    ErrorKind::Medium,
    ErrorKind::NoSpace,
    ErrorKind::Timeout,
    ErrorKind::Unreachable,
    ErrorKind::Aborted,
    ErrorKind::Fenced,
];
const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];
const STEPS: u32 = 1500;

/// A member's place as the shell has it.
#[derive(Debug, Default)]
struct Slot {
    report: Option<Report>,
    /// How often the device that was found has lost its cache.
    candidate: Option<u64>,
    is_leaving: bool,
    is_looked_for: bool,
}

/// How far the device is that somebody asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Asked {
    Waits,
    Prepared,
    Ready,
    Taken,
}

/// How often something came about: a test that never gets there shows nothing.
#[derive(Debug, Default)]
struct Counts {
    sent: u32,
    ended: u32,
    aborted: u32,
    ahead: u32,
    parted: u32,
    returned: u32,
    joined: u32,
    not_joined: u32,
    suspects: u32,
    failed: u32,
    late: u32,
}

struct World {
    rng: StdRng,
    volume: Volume<Script, u32>,
    now: Duration,
    slots: Vec<Slot>,
    asked: Option<(u8, Asked)>,
    /// Requests to devices, and how many bytes each is to bring.
    in_flight: Vec<(Tag, u64)>,
    /// Users' requests that have not ended.
    users: BTreeSet<u32>,
    next_user: u32,
    /// The machine's requests to members.
    ios: BTreeSet<usize>,
    /// What the machine has been asked for, and how many bytes each is to bring.
    requests: Vec<(RequestId, u64)>,
    /// Devices of which the machine has not said yet whether they take part.
    handed: BTreeSet<u8>,
    is_opened: bool,
    is_closing: bool,
    has_closed: bool,
    /// Where somebody reads on.
    place: u64,
    counts: Counts,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut script = Script::new();
        script.has_log = rng.random_ratio(3, 4);
        script.is_read_only = rng.random_ratio(1, 8);
        let mut found = |member: u8| match rng.random_range(0..8) {
            0 => Found::Nobody(rng.random::<bool>().then(|| address(member))),
            1 => Found::Liar(address(member)),
            _ => Found::Device(device(&address(member))),
        };
        let places: Vec<Found> = (0..MEMBERS).map(&mut found).collect();
        let slot = |(state, found): (&mut MemberState, &Found)| {
            let is_there = matches!(found, Found::Device(_));
            *state = if is_there { MemberState::InSync } else { MemberState::Missing };
            Slot { report: is_there.then(|| report(0)), ..Slot::default() }
        };
        let slots = script.states.iter_mut().zip(&places).map(slot).collect();
        let config = Config {
            places,
            read_ahead: rng.random::<bool>().then_some(16 * MIB),
            reads_under_way: rng.random::<bool>().then_some(4 * MIB),
            large_from: None,
            deadlines: crate::slowness::Deadlines::default(),
            pause: Duration::ZERO,
        };
        Self {
            volume: Volume::new(script, config),
            rng,
            now: Duration::ZERO,
            slots,
            asked: None,
            in_flight: Vec::new(),
            users: BTreeSet::new(),
            next_user: 0,
            ios: BTreeSet::new(),
            requests: Vec::new(),
            handed: BTreeSet::new(),
            is_opened: false,
            is_closing: false,
            has_closed: false,
            place: 0,
            counts: Counts::default(),
        }
    }

    fn member(&mut self) -> u8 {
        self.rng.random_range(0..MEMBERS)
    }

    fn error(&mut self) -> IoError {
        KINDS[self.rng.random_range(0..KINDS.len())].into()
    }

    fn looks(&self) -> Vec<Look> {
        let look = |slot: &Slot| Look { report: slot.report.clone(), is_leaving: slot.is_leaving };
        self.slots.iter().map(look).collect()
    }

    /// Does everything that the volume says, and holds it against what may be.
    fn pump(&mut self) {
        while let Some(action) = self.volume.poll(self.now) {
            self.execute(action);
            self.hear();
        }
        self.hear();
    }

    fn execute(&mut self, action: Action<u32>) {
        match action {
            Action::Submit { tag, member, op, len, data, .. } => {
                let slot = &self.slots[member.as_usize()];
                assert!(slot.report.is_some(), "a request, and nobody in place {member}");
                assert_eq!(tag.member(), member);
                assert!(self.in_flight.iter().all(|(other, _)| *other != tag), "{tag:?} twice");
                let is_bounded = matches!(op, Op::Read | Op::Write);
                assert!(!is_bounded || len <= u64::from(TRANSFER), "{op:?} of {len} bytes");
                let written = if op == Op::Write { len } else { 0 };
                assert_eq!(data.len() as u64, written, "{op:?}");
                self.in_flight.push((tag, if op == Op::Read { len } else { 0 }));
                self.counts.sent += 1;
            }
            Action::Complete { user, result } => {
                assert!(self.users.remove(&user), "user {user} has ended before");
                self.counts.ended += 1;
                let is_aborted = result.is_err_and(|error| error.kind() == ErrorKind::Aborted);
                self.counts.aborted += u32::from(is_aborted);
            }
            Action::Part(member) => {
                let slot = &mut self.slots[member.as_usize()];
                assert!(slot.report.take().is_some(), "nobody is in place {member}");
                slot.is_leaving = true;
                self.counts.parted += 1;
            }
            Action::Cut(_) | Action::Reopen { .. } => panic!("this volume never pauses"),
            Action::LookFor(member) => {
                assert!(!matches!(self.asked, Some((_, Asked::Waits))), "somebody waits");
                assert!(self.asked.is_none_or(|(other, _)| other != member.0), "it joins");
                let slot = &mut self.slots[member.as_usize()];
                assert!(slot.report.is_none() && !slot.is_leaving, "{slot:?}");
                assert!(!slot.is_looked_for, "member {member} is looked for twice");
                slot.is_looked_for = true;
                assert!(!self.volume.machine.states[member.as_usize()].is_live());
            }
            Action::AskForSpare { .. } => panic!("there are no spares"),
            Action::Join { member, ends_former, .. } => {
                assert_eq!(self.asked, Some((member.0, Asked::Waits)));
                assert!(self.slots.iter().all(|slot| !slot.is_looked_for));
                self.asked = Some((member.0, Asked::Prepared));
                // The shell waits for all sessions that end.
                self.slots.iter_mut().for_each(|slot| slot.is_leaving = false);
                if ends_former {
                    let former = self.slots[member.as_usize()].report.take();
                    assert!(former.is_some(), "nobody is in place {member}");
                }
            }
            Action::Take(member) => {
                let slot = &mut self.slots[member.as_usize()];
                let Some(losses) = slot.candidate.take() else { panic!("no device for {member}") };
                let former = slot.report.replace(report(losses));
                assert!(former.is_none(), "two devices in place {member}");
                match &mut self.asked {
                    Some((asked, stage)) if *asked == member.0 => {
                        assert_eq!(*stage, Asked::Ready);
                        *stage = Asked::Taken;
                    }
                    _ => self.counts.returned += 1,
                }
            }
            Action::LetGo(member) => {
                let slot = &mut self.slots[member.as_usize()];
                assert!(slot.candidate.take().is_some(), "no device for {member} to let go");
                slot.is_leaving = true;
            }
            Action::Opened(_) => {
                assert!(!self.is_opened, "it opens once");
                self.is_opened = true;
            }
            Action::Joined { member, result } => {
                let Some((asked, stage)) = self.asked.take() else { panic!("nobody asked") };
                assert_eq!(asked, member.0);
                let is_refused = stage == Asked::Ready && result.is_err();
                let is_over = stage == Asked::Waits && result == Err(JoinError::NotOpen);
                assert!(stage == Asked::Taken || is_refused || is_over, "{stage:?}, {result:?}");
                assert!(self.slots[member.as_usize()].candidate.is_none());
                match result {
                    Ok(()) => self.counts.joined += 1,
                    Err(_) => self.counts.not_joined += 1,
                }
            }
            Action::Tell(event) => {
                self.counts.suspects += u32::from(matches!(event, Event::Suspect { .. }));
            }
        }
    }

    /// What the machine was told by the volume.
    fn hear(&mut self) {
        for call in mem::take(&mut self.volume.machine.calls) {
            match call {
                Call::Request { id, what: (op, _, len), .. } => {
                    let is_new = self.requests.iter().all(|(other, _)| *other != id);
                    assert!(is_new, "{id:?} twice");
                    assert!(!self.is_closing, "a request after the machine was told to close");
                    self.requests.push((id, if op == Op::Read { len } else { 0 }));
                    self.counts.ahead += u32::from(ReadAhead::is_ahead(id));
                }
                Call::IoDone(io, _) => {
                    assert!(self.ios.remove(&io.0), "member request {} has ended before", io.0);
                }
                Call::Device { member, .. } => {
                    let script = &self.volume.machine;
                    let is_live = script.states[usize::from(member)].is_live();
                    if script.refuses_device.is_none() && !is_live {
                        self.handed.insert(member);
                    }
                }
                Call::Fail(member) | Call::Gone(member, _) => {
                    if !self.volume.machine.states[usize::from(member)].is_live() {
                        self.handed.remove(&member);
                    }
                }
                Call::Late(io) => {
                    assert!(self.ios.contains(&io.0), "{io:?} is late, and has ended");
                    self.counts.late += 1;
                }
                Call::Slow(slow) => {
                    let script = &self.volume.machine;
                    let is_live = |one: &MemberIndex| script.states[one.as_usize()].is_live();
                    let others: MemberSet =
                        (0..MEMBERS).map(MemberIndex).filter(|one| !slow.contains(*one)).collect();
                    assert!(
                        slow.iter().all(|one| is_live(&one)),
                        "{slow:?} of {:?}",
                        script.states
                    );
                    assert!(script.geometry.can_serve_from(others), "{slow:?}");
                }
                Call::Probe(member) => assert!(self.volume.slow().contains(MemberIndex(member))),
                Call::Successor(..) | Call::SuccessorGone(_) => {}
                Call::Idle | Call::Age => assert!(self.is_opened && !self.is_closing),
                Call::Close => {
                    assert!(!self.is_closing, "the machine is told twice to close");
                    assert!(self.requests.is_empty() && self.users.is_empty());
                    self.is_closing = true;
                }
            }
        }
    }

    fn step(&mut self) {
        match self.rng.random_range(0..26) {
            0..4 => self.ask(),
            4..8 => self.submit(),
            8..12 => self.end_io(),
            12..15 => self.complete(),
            15 => self.say(),
            16 => self.say_handed(),
            17..19 => self.time(),
            19 => self.sessions(),
            20 => self.come_back(),
            21 => self.join(),
            22 => self.prepared(),
            23 => {
                let member = self.member();
                if self.is_opened && !self.has_closed && self.rng.random_ratio(1, 4) {
                    // It may be refused.
                    let _ = self.volume.handle_fail(MemberIndex(member));
                }
            }
            24 => {
                for slot in &mut self.slots {
                    slot.is_leaving &= self.rng.random::<bool>();
                }
            }
            _ => self.moods(),
        }
        self.pump();
    }

    fn ask(&mut self) {
        // Some come late.
        let is_late = self.volume.is_closing() && self.rng.random_ratio(1, 8);
        if !is_late && !self.volume.accepts() {
            return;
        }
        let capacity = self.volume.machine.geometry.capacity();
        let len = [512, 4 * KIB, 64 * KIB, MIB][self.rng.random_range(0..4)];
        let (op, offset) = if self.rng.random_ratio(2, 3) {
            self.place = (self.place + len) % (capacity - len);
            (Op::Read, self.place)
        } else {
            let at = self.rng.random_range(0..(capacity - len) / 512) * 512;
            (OPS[self.rng.random_range(0..OPS.len())], at)
        };
        let data = if op == Op::Write { SgList::zeroes(narrow(len)) } else { SgList::new() };
        let (user, flags) = (self.next_user, RequestFlags::default());
        self.next_user += 1;
        self.users.insert(user);
        self.volume.handle_request(self.now, user, (op, offset, len), flags, data);
    }

    fn submit(&mut self) {
        if self.has_closed {
            return;
        }
        let op = OPS[self.rng.random_range(0..OPS.len())];
        let len = [512, 64 * KIB, MIB, 2 * MIB + 512][self.rng.random_range(0..4)];
        let Some(io) = (0..40).find(|io| !self.ios.contains(io)) else { return };
        let data = if op == Op::Write { SgList::zeroes(narrow(len)) } else { SgList::new() };
        self.ios.insert(io);
        let (io, member) = (IoId(io), MemberIndex(self.member()));
        let submit = Do::Submit { io, member, op, offset: 0, len, fua: false, data, to: To::Both };
        self.volume.machine.actions.push_back(submit);
    }

    fn end_io(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        let (tag, len) = self.in_flight.swap_remove(self.rng.random_range(0..self.in_flight.len()));
        let result = match self.rng.random_range(0..16) {
            0 => Err(self.error()),
            1 => Ok(SgList::new()),
            _ => Ok(SgList::zeroes(narrow(len))),
        };
        let report = self.slots[tag.member().as_usize()].report.as_ref();
        let losses = report.map(|report| report.cache_losses);
        self.volume.handle_io_done(self.now, tag, losses, result);
    }

    fn complete(&mut self) {
        if self.requests.is_empty() {
            return;
        }
        let (id, len) = self.requests.swap_remove(self.rng.random_range(0..self.requests.len()));
        let fails = self.volume.machine.failure.is_some() || self.rng.random_ratio(1, 16);
        let result = if fails { Err(self.error()) } else { Ok(SgList::zeroes(narrow(len))) };
        self.volume.machine.actions.push_back(Do::Complete { request: id, result });
    }

    /// A member is set aside, or has caught up.
    fn say(&mut self) {
        let member = self.member();
        if self.has_closed || !self.volume.machine.states[usize::from(member)].is_live() {
            return;
        }
        if self.rng.random() {
            self.volume.machine.say(member, MemberState::Faulty, "a request failed");
        } else {
            self.volume.machine.say(member, MemberState::InSync, "it has caught up");
            let rebuilt = Event::Rebuilt(MemberIndex(member));
            self.volume.machine.events.push_back(Told::Other(rebuilt));
        }
    }

    /// What was handed over takes part, or does not.
    fn say_handed(&mut self) {
        if self.has_closed || self.volume.machine.failure.is_some() {
            return;
        }
        if let Some(member) = self.handed.pop_first() {
            let takes_part = self.rng.random_ratio(3, 4);
            let state = if takes_part { MemberState::CatchingUp } else { MemberState::Faulty };
            self.volume.machine.say(member, state, "it was looked at");
        }
    }

    /// Time passes in which members answer nothing; it may be that all but one have answered before.
    fn silence(&mut self) {
        let late = MemberIndex(self.member());
        if self.rng.random() {
            let is_its = |(tag, _): &(Tag, u64)| tag.member() == late;
            let (its, others) = mem::take(&mut self.in_flight).into_iter().partition(is_its);
            self.in_flight = others;
            while !self.in_flight.is_empty() {
                self.end_io();
            }
            self.in_flight = its;
            self.pump();
        }
        let end = self.now + Duration::from_millis(700);
        while self.volume.next_timeout() <= end {
            self.now = self.volume.next_timeout().max(self.now);
            let looks = self.looks();
            self.volume.handle_timeout(self.now, &looks);
            self.pump();
        }
    }

    fn time(&mut self) {
        if self.rng.random_ratio(1, 10) {
            self.silence();
        }
        let next = self.volume.next_timeout().max(self.now);
        self.now = match self.rng.random_range(0..8) {
            0 => self.now + Duration::from_millis(self.rng.random_range(0..900)),
            1 => next + Duration::from_secs(self.rng.random_range(0..6)),
            _ => next,
        };
        for report in self.slots.iter_mut().filter_map(|slot| slot.report.as_mut()) {
            report.signs += u64::from(report.is_connected);
        }
        let looks = self.looks();
        self.volume.handle_timeout(self.now, &looks);
    }

    /// Sessions are lost and made.
    fn sessions(&mut self) {
        let at = usize::from(self.member());
        let Some(report) = &mut self.slots[at].report else { return };
        match self.rng.random_range(0..8) {
            0 => report.cache_losses += 1,
            1 => report.is_connected = false,
            2 => (report.is_connected, report.is_gone) = (false, true),
            _ => (report.is_connected, report.is_gone) = (true, false),
        }
    }

    fn come_back(&mut self) {
        let Some(at) = self.slots.iter().position(|slot| slot.is_looked_for) else { return };
        self.slots[at].is_looked_for = false;
        let member = MemberIndex(u8::try_from(at).unwrap());
        let looks = self.looks();
        let end = match self.rng.random_range(0..4) {
            0 => Err(self.error().to_string()),
            _ => Ok(self.found(member.0)),
        };
        self.volume.handle_returned(member, &looks, end);
    }

    /// A device for a member's place.
    fn found(&mut self, member: u8) -> Candidate {
        let losses = self.rng.random_range(0..3);
        let before = self.slots[usize::from(member)].candidate.replace(losses);
        assert!(before.is_none(), "two devices on their way into place {member}");
        let mut found = candidate(&address(member));
        found.device.cache_losses = losses;
        found
    }

    fn join(&mut self) {
        if !self.is_opened || self.has_closed {
            return;
        }
        let (member, other) = (self.member(), self.member());
        let expects = [Expect::Unused, Expect::Anything, Expect::Former];
        let expect = expects[self.rng.random_range(0..3)];
        let address = address(if self.rng.random() { other } else { member });
        let asked = self.volume.handle_join(MemberIndex(member), &address, expect);
        if self.asked.is_some() {
            let is_refused = matches!(asked, Err(JoinError::Joining(_) | JoinError::NotOpen));
            assert!(is_refused, "{asked:?}");
        } else if asked.is_ok() {
            self.asked = Some((member, Asked::Waits));
        }
    }

    fn prepared(&mut self) {
        let Some((member, Asked::Prepared)) = self.asked else { return };
        if self.rng.random_ratio(1, 4) {
            self.asked = None;
            return self.volume.handle_not_joined(MemberIndex(member));
        }
        let found = self.found(member);
        self.asked = Some((member, Asked::Ready));
        self.volume.handle_joined(MemberIndex(member), found);
    }

    /// What the machine bears and refuses changes; it opens; and it fails, or is to close, now and then.
    fn moods(&mut self) {
        let refuses = |rng: &mut StdRng| rng.random_ratio(1, 5).then(refusal);
        let script = &mut self.volume.machine;
        script.bears = self.rng.random_range(0..3);
        script.labels_pending = self.rng.random();
        script.refuses_fail = refuses(&mut self.rng);
        script.refuses_join = refuses(&mut self.rng);
        script.refuses_device = refuses(&mut self.rng);
        if self.is_opened && self.rng.random_ratio(1, 20) {
            self.volume.handle_close();
        } else if self.rng.random_ratio(1, 20) && !self.has_closed {
            self.fail();
        } else if !self.is_opened && self.volume.machine.failure.is_none() {
            self.volume.machine.events.push_back(Told::Opened);
        }
        if self.volume.machine.failure.is_some() {
            self.volume.machine.refuses_device = Some(refusal());
        }
        self.close();
    }

    fn fail(&mut self) {
        let script = &mut self.volume.machine;
        if script.failure.is_none() {
            script.failure = Some(ErrorKind::Redundancy.into());
            script.events.push_back(Told::Closed);
            self.counts.failed += 1;
        }
    }

    /// A machine that is to close does so when none of its requests is under way.
    fn close(&mut self) {
        self.has_closed |= self.volume.is_closed();
        if self.is_closing && !self.has_closed && self.ios.is_empty() {
            self.has_closed = true;
            self.volume.machine.events.push_back(Told::Closed);
        }
    }

    /// Everything ends, and the volume is closed then.
    fn finish(&mut self) {
        if !self.is_opened {
            self.volume.machine.events.push_back(Told::Opened);
            self.pump();
        }
        self.volume.handle_close();
        self.pump();
        for _ in 0..10_000 {
            let is_ready = matches!(self.asked, Some((_, Asked::Ready)));
            self.volume.machine.labels_pending &= !is_ready;
            self.end_io();
            self.complete();
            self.come_back();
            self.prepared();
            self.pump();
            let is_asked = matches!(self.asked, Some((_, Asked::Waits | Asked::Prepared)));
            if !is_asked {
                self.close();
                self.pump();
            }
            let is_over = self.in_flight.is_empty() && self.requests.is_empty();
            if self.volume.is_closed() && is_over && !is_asked {
                break;
            }
        }
        assert!(self.volume.is_closed());
        assert!(self.users.is_empty(), "{:?} have not ended", self.users);
        assert_eq!(self.asked, None, "who asked is not answered");
        assert_eq!((self.volume.under_way(), self.ios.len()), ((0, 0), 0));
        assert!(self.slots.iter().all(|slot| slot.candidate.is_none()));
    }
}

#[test]
fn whatever_happens_in_whichever_order_requests_and_devices_are_where_they_may_be() {
    let mut all = Counts::default();
    for seed in 0..400 {
        let mut world = World::new(seed);
        world.pump();
        for _ in 0..STEPS {
            world.step();
        }
        world.finish();
        let one = world.counts;
        all.sent += one.sent;
        all.ended += one.ended;
        all.aborted += one.aborted;
        all.ahead += one.ahead;
        all.parted += one.parted;
        all.returned += one.returned;
        all.joined += one.joined;
        all.not_joined += one.not_joined;
        all.suspects += one.suspects;
        all.failed += one.failed;
        all.late += one.late;
    }
    let Counts { sent, ended, aborted, ahead, parted, returned, joined, not_joined, .. } = all;
    let often = [sent, ended, aborted, ahead, parted, returned, joined, not_joined];
    assert!(often.iter().all(|count| *count > 100), "{all:?}");
    assert!(all.suspects > 100 && all.failed > 100 && all.late > 100, "{all:?}");
}
