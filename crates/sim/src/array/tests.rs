//! The world, with a mirror that has no log and writes in place: what it can do passes, and what
//! it cannot is seen.

#![allow(clippy::print_stdout, reason = "a trace is for who looks for a fault")]

use core::marker::PhantomData;
use std::collections::{BTreeMap, VecDeque};

use netraid_block::{BufMut, ErrorKind, IoError, Op, RequestFlags, SgList};
use netraid_raid::{
    array::{CommandError, MemberCaps},
    geometry::Geometry,
    label::{Label, Uuid},
    logged::{IoId, LoggedArray, RequestId, To},
    member::{ArrayState, MemberIndex, MemberSet, MemberState},
    regions::LABEL_OFFSETS,
    volume::{self, Do, Event, PlainOrLogged, Told},
};

use super::{
    machine::Machine,
    plan::{Choice, Fault, Mode, Plan},
    tables::Tables,
    trace::Keep,
    world::{Outcome, World},
};
use crate::{
    dice::Seed,
    disk::{Disk, Fill},
};

/// What a mirror gets wrong.
trait Flaw: core::fmt::Debug {
    const ACKS_EARLY: bool = false;
    const FORGETS_FLUSHES: bool = false;
    const TEARS: bool = false;
}

#[derive(Debug)]
struct None_;
impl Flaw for None_ {}

#[derive(Debug)]
struct AcksEarly;
impl Flaw for AcksEarly {
    const ACKS_EARLY: bool = true;
}

#[derive(Debug)]
struct ForgetsFlushes;
impl Flaw for ForgetsFlushes {
    const FORGETS_FLUSHES: bool = true;
}

#[derive(Debug)]
struct Tears;
impl Flaw for Tears {
    const TEARS: bool = true;
}

/// A mirror whose first member is always read. It survives crashes, and losses of no member.
#[derive(Debug)]
struct Mirror<F> {
    label: Label,
    members: u8,
    actions: VecDeque<Do>,
    events: VecDeque<Told>,
    ios: BTreeMap<usize, Option<RequestId>>,
    requests: BTreeMap<RequestId, (usize, Result<SgList, IoError>)>,
    next_io: usize,
    failure: Option<IoError>,
    flaw: PhantomData<F>,
}

impl<F: Flaw> Mirror<F> {
    fn io(&mut self, request: Option<RequestId>) -> IoId {
        self.next_io += 1;
        self.ios.insert(self.next_io, request);
        IoId(self.next_io)
    }

    fn write(&mut self, request: Option<RequestId>, offset: u64, data: &SgList, fua: bool) {
        let half = if F::TEARS && data.len() == 4096 { 2048 } else { data.len().max(1) };
        for member in (0..self.members).map(MemberIndex) {
            let mut at = 0;
            while at < data.len() {
                let end = (at + half).min(data.len());
                let io = self.io(request);
                let (offset, data) = (offset + at as u64, data.slice(at..end));
                self.put(io, member, Op::Write, offset, data.len() as u64, fua, data);
                at = end;
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "what a request to a member is")]
    fn put(
        &mut self,
        io: IoId,
        member: MemberIndex,
        op: Op,
        offset: u64,
        len: u64,
        fua: bool,
        data: SgList,
    ) {
        let to = To::Both;
        self.actions.push_back(Do::Submit { io, member, op, offset, len, fua, data, to });
    }

    fn count(&self, request: RequestId) -> usize {
        self.ios.values().filter(|owner| **owner == Some(request)).count()
    }
}

impl<F: Flaw> Machine for Mirror<F> {
    const PAUSES: bool = false;

    const SURVIVES_LOSSES: bool = false;

    fn take(machine: PlainOrLogged, places: &[Option<usize>]) -> Result<Self, IoError> {
        let mut label = match machine {
            PlainOrLogged::Logged(logged) => logged.array().label(),
            PlainOrLogged::Plain(_) => unreachable!("it has a log"),
        };
        label.generation += 1;
        let mut mirror = Self {
            members: label.geometry.members(),
            label,
            actions: VecDeque::new(),
            events: VecDeque::new(),
            ios: BTreeMap::new(),
            requests: BTreeMap::new(),
            next_io: 0,
            failure: None,
            flaw: PhantomData,
        };
        if places.iter().any(Option::is_none) {
            return Err(ErrorKind::Redundancy.into());
        }
        for member in (0..mirror.members).map(MemberIndex) {
            let io = mirror.io(None);
            let data = Label { index: member, ..mirror.label.clone() }.encode(0);
            let data: SgList = netraid_block::Buf::copy_from(&data).into();
            let len = data.len() as u64;
            mirror.put(io, member, Op::Write, LABEL_OFFSETS[0], len, true, data);
            // What is not flushed may be undone when others have read it.
            let io = mirror.io(None);
            mirror.put(io, member, Op::Flush, 0, 0, false, SgList::new());
        }
        Ok(mirror)
    }

    fn label(&self) -> Label {
        self.label.clone()
    }

    fn look(
        disks: &[&Disk],
        label: &Label,
        _tables: &Tables,
        _is_closed: bool,
    ) -> Result<SgList, String> {
        let Geometry { .. } = label.geometry;
        let block = u64::from(disks[0].shape().block_len);
        let first = label.regions.data.offset / block;
        let blocks = first..first + label.geometry.capacity() / block;
        disks[0].read(blocks).map_err(|bad| format!("{bad:?}"))
    }
}

impl<F: Flaw> volume::Machine for Mirror<F> {
    fn has_log(&self) -> bool {
        true
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn geometry(&self) -> &Geometry {
        &self.label.geometry
    }

    fn member_state(&self, _member: MemberIndex) -> MemberState {
        MemberState::InSync
    }

    fn failure(&self) -> Option<IoError> {
        self.failure.clone()
    }

    fn state(&self) -> ArrayState {
        if self.failure.is_some() { ArrayState::Failed } else { ArrayState::Optimal }
    }

    fn can_lose_all(&self, _members: MemberSet) -> bool {
        false
    }

    fn check_replace(&self, member: MemberIndex) -> Result<(), CommandError> {
        Err(CommandError::Needed(member))
    }

    fn labels_pending(&self) -> bool {
        false
    }

    fn handle_request(
        &mut self,
        id: RequestId,
        (op, offset, len): (Op, u64, u64),
        flags: RequestFlags,
        data: SgList,
    ) {
        if let Some(error) = &self.failure {
            self.actions.push_back(Do::Complete { request: id, result: Err(error.clone()) });
            return;
        }
        let offset = self.label.regions.data.offset + offset;
        self.requests.insert(id, (0, Ok(SgList::new())));
        match op {
            Op::Read => {
                let io = self.io(Some(id));
                self.put(io, MemberIndex(0), Op::Read, offset, len, false, SgList::new());
            }
            Op::Write => self.write(Some(id), offset, &data, flags.fua),
            Op::WriteZeroes => {
                let zeros = BufMut::zeroed(usize::try_from(len).unwrap()).freeze();
                self.write(Some(id), offset, &zeros.into(), flags.fua);
            }
            Op::Flush if !F::FORGETS_FLUSHES => {
                for member in (0..self.members).map(MemberIndex) {
                    let io = self.io(Some(id));
                    self.put(io, member, Op::Flush, 0, 0, false, SgList::new());
                }
            }
            Op::Flush | Op::Discard | Op::Extents => {
                self.requests.remove(&id);
                let result = Ok(SgList::new());
                self.actions.push_back(Do::Complete { request: id, result });
            }
        }
    }

    fn handle_io_done(&mut self, io: IoId, result: Result<SgList, IoError>) {
        // Of a request that was acknowledged early: its number may be another one's by now.
        let Some(owner) = self.ios.remove(&io.0) else { return };
        if let Err(error) = &result
            && self.failure.is_none()
        {
            self.failure = Some(error.clone());
            self.events.push_back(Told::Other(Event::State(ArrayState::Failed)));
            self.events.push_back(Told::Closed);
        }
        let Some(id) = owner else {
            if self.ios.is_empty() && self.failure.is_none() {
                self.events.push_back(Told::Opened);
            }
            return;
        };
        let left = self.count(id);
        let Some((_, so_far)) = self.requests.get_mut(&id) else { return };
        match result {
            Err(error) => *so_far = Err(error),
            Ok(data) if !data.is_empty() => *so_far = Ok(data),
            Ok(_) => {}
        }
        if left == 0 || F::ACKS_EARLY {
            let (_, result) = self.requests.remove(&id).unwrap();
            self.ios.retain(|_, owner| *owner != Some(id));
            self.actions.push_back(Do::Complete { request: id, result });
        }
    }

    fn handle_fail(&mut self, member: MemberIndex) -> Result<(), CommandError> {
        Err(CommandError::Needed(member))
    }

    fn handle_gone(&mut self, _member: MemberIndex, _reason: &str) {}

    fn handle_overtaken(&mut self, error: IoError) {
        unreachable!("nobody only reads in this world: {error}")
    }

    fn handle_device(
        &mut self,
        member: MemberIndex,
        _uuid: Uuid,
        _caps: MemberCaps,
        _label: Option<Label>,
    ) -> Result<(), CommandError> {
        Err(CommandError::Needed(member))
    }

    fn handle_idle(&mut self) {}

    fn handle_age(&mut self) {}

    fn handle_close(&mut self) {
        self.events.push_back(Told::Closed);
    }

    fn scrubbed(&mut self) -> Option<&mut LoggedArray> {
        None
    }

    fn poll_action(&mut self) -> Option<Do> {
        self.actions.pop_front()
    }

    fn poll_event(&mut self) -> Option<Told> {
        self.events.pop_front()
    }
}

/// A mirror of disks whose logical block is as large as what the volume promises to be whole.
fn run<F: Flaw>(seed: u64, faults: &[Fault]) -> Outcome {
    let choice = Choice {
        level: Some(1),
        mode: Some(Mode::Within),
        faults: Some(faults.to_vec()),
        has_log: None,
    };
    let plans = (0..).map(|at| Plan::new(Seed(seed << 32 | at), &choice));
    let mut plans = plans.filter(|plan| plan.geometry.block_len() == 4096 || F::TEARS);
    let plan = plans.next().unwrap();
    let plan = Plan { max_io_len: 1 << 20, fill: Fill::Zeroes, ..plan };
    let world = World::<Mirror<F>>::new(plan, Keep::Last(60));
    let lines = world.lines();
    let outcome = world.run();
    if outcome.violation.is_some() && !F::ACKS_EARLY && !F::FORGETS_FLUSHES && !F::TEARS {
        let lines: Vec<String> = lines.borrow().iter().cloned().collect();
        panic!("{:?}\n{}", outcome.violation, lines.join("\n"));
    }
    outcome
}

fn check(seed: u64, outcome: Outcome) {
    if let Some(violation) = outcome.violation {
        panic!("seed {seed}: {}", violation.0);
    }
}

#[test]
fn a_plain_mirror_survives_crashes() {
    let (mut crashes, mut in_recovery, mut late) = (0, 0, 0);
    for seed in 0..30 {
        let outcome = run::<None_>(seed, &[]);
        crashes += outcome.counts.crashes;
        in_recovery += outcome.counts.crashes_in_recovery;
        late += outcome.counts.late;
        check(seed, outcome);
    }
    assert!(crashes > 300 && in_recovery > 20, "{crashes} {in_recovery}");
    assert!(late > 100, "commands that landed late: {late}");
}

#[test]
fn a_plain_mirror_survives_the_power_of_all() {
    let mut failures = 0;
    for seed in 0..30 {
        let outcome = run::<None_>(seed, &[Fault::PowerOfAll]);
        failures += outcome.counts.faults.get(&Fault::PowerOfAll).copied().unwrap_or(0);
        check(seed, outcome);
    }
    assert!(failures > 30, "{failures}");
}

#[test]
fn an_early_acknowledgement_is_seen() {
    // One life in four is over before much was written.
    let seen = (0..60).filter(|seed| run::<AcksEarly>(*seed, &[]).violation.is_some()).count();
    assert!(seen > 30, "{seen} of 60");
}

#[test]
fn a_forgotten_flush_is_seen() {
    let faults = [Fault::PowerOfAll];
    let seen = (0..40).filter(|seed| run::<ForgetsFlushes>(*seed, &faults).violation.is_some());
    let seen = seen.count();
    assert!(seen > 15, "{seen} of 40");
}

#[test]
fn a_torn_block_is_seen() {
    let seen = (0..40).filter(|seed| run::<Tears>(*seed, &[]).violation.is_some()).count();
    assert!(seen > 15, "{seen} of 40");
}

#[test]
fn a_seed_gives_the_same_run() {
    for seed in 0..5 {
        let faults = [Fault::PowerOfAll];
        let [one, other] = [(); 2].map(|()| run::<None_>(seed, &faults));
        assert_eq!(one.hash, other.hash);
        assert_eq!(one.counts.events, other.counts.events);
    }
}
