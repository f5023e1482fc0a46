//! Devices that are to take the place of a member of four, one rule after another; and devices that answer anything.

use alloc::{vec, vec::Vec};

use netraid_block::{DeviceInfo, IoError};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;
use crate::{
    fencing::{
        VACANT, key_of_holder,
        steps::{
            Standing, Steps as FencingSteps,
            tests::{Device, run},
        },
    },
    geometry::Level,
    label::{
        LabelError,
        tests::{logged_sample, sample},
    },
    lack::Lack,
    member::MemberState,
};

/// Its place is free.
const SECOND: MemberIndex = MemberIndex(1);
/// More questions than any device is asked.
const ASKS_MAX: usize = 32;

/// What devices and machine say, and what they were asked.
struct World {
    info: DeviceInfo,
    label: Result<Label, LabelError>,
    keys: Result<Vec<u64>, ErrorKind>,
    /// What the other devices say each time that they are asked, the last one again and again.
    others: Vec<Vec<Other>>,
    locked: Locked,
    /// What fails, by its number among the questions.
    fails_at: Option<usize>,
    kind: ErrorKind,
    asked: Vec<Ask>,
}

fn array(with_log: bool) -> Label {
    let mut label = match with_log {
        true => logged_sample(Level::Raid5, 4),
        false => sample(Level::Raid5, 4),
    };
    for entry in &mut label.members {
        (entry.state, entry.lack) = (MemberState::InSync, Lack::NOTHING);
    }
    label.members[SECOND.as_usize()].state = MemberState::Faulty;
    label
}

fn holder(lock: u64) -> Holder {
    Holder { name: "host".into(), machine_id: [5; 16], lock: (1, lock), ..Holder::default() }
}

fn beside(with_log: bool) -> Beside {
    let (label, this) = (array(with_log), holder(1));
    let fence = Fence::new(&label, &this, Removes::Own, 0x1234_5678);
    Beside { label, max_io_len: 1 << 20, this, fence: Some(fence) }
}

fn ours() -> Other {
    Other { exclusive: true, end: Ok(()), is_fenced: false }
}

fn fails(kind: ErrorKind) -> Other {
    let end = Err(FenceError::Failed { what: "asking", reason: kind.into() });
    Other { end, ..ours() }
}

impl World {
    /// An unused device, beside an array whose other members say that they are this engine's.
    fn new() -> Self {
        let info = DeviceInfo {
            capacity: 1 << 30,
            block_len: 512,
            optimal_len: 4096,
            max_transfer_len: 1 << 20,
            read_only: false,
            volatile_cache: true,
            can_discard: true,
            can_map: false,
        };
        Self {
            info,
            label: Err(LabelError::Absent),
            keys: Ok(vec![]),
            others: vec![vec![ours(), ours()]],
            locked: Locked::Taken,
            fails_at: None,
            kind: ErrorKind::Device,
            asked: vec![],
        }
    }

    /// The member that had the place.
    fn former(with_log: bool) -> Self {
        let label = Ok(Label { index: SECOND, ..array(with_log) });
        Self { label, ..Self::new() }
    }

    fn answer(&mut self, ask: Ask) -> Answer<IoError> {
        self.asked.push(ask.clone());
        let fails = self.fails_at == Some(self.asked.len() - 1);
        match ask {
            Ask::Others => {
                let next = if self.others.len() > 1 {
                    self.others.remove(0)
                } else {
                    self.others[0].clone()
                };
                Answer::Others(next)
            }
            Ask::Lock(_) => Answer::Lock(self.locked),
            Ask::Device(ask) if fails => Answer::Device(match ask {
                access::Ask::Close | access::Ask::Leave => access::Answer::Done,
                access::Ask::Attend(_)
                | access::Ask::TryOut(_)
                | access::Ask::FenceAgain { .. }
                | access::Ask::Announce { .. }
                | access::Ask::FenceKnown { .. } => {
                    let reason = self.kind.into();
                    access::Answer::NotFenced(FenceError::Failed { what: "fencing", reason })
                }
                access::Ask::Visit
                | access::Ask::Label
                | access::Ask::Checkpoint(_)
                | access::Ask::Read { .. }
                | access::Ask::Unused
                | access::Ask::Keys
                | access::Ask::Fence(_)
                | access::Ask::TakeOver { .. }
                | access::Ask::ProveWritable { .. }
                | access::Ask::ReserveTables(_) => access::Answer::Failed(self.kind.into()),
            }),
            Ask::Device(ask) => Answer::Device(match ask {
                access::Ask::Visit | access::Ask::TakeOver { .. } => {
                    access::Answer::Device(self.info.clone())
                }
                access::Ask::Label => access::Answer::Label(self.label.clone().map(Box::new)),
                access::Ask::Keys => match &self.keys {
                    Ok(keys) => access::Answer::Keys { keys: keys.clone(), is_cut: false },
                    Err(kind) => access::Answer::Failed((*kind).into()),
                },
                access::Ask::Announce { .. } => access::Answer::Fenced { exclusive: false },
                access::Ask::FenceKnown { .. } => access::Answer::Fenced { exclusive: true },
                access::Ask::Checkpoint(_)
                | access::Ask::Read { .. }
                | access::Ask::Fence(_)
                | access::Ask::Attend(_)
                | access::Ask::TryOut(_)
                | access::Ask::FenceAgain { .. } => {
                    unreachable!("{ask:?} is not asked here")
                }
                access::Ask::Unused
                | access::Ask::Close
                | access::Ask::ProveWritable { .. }
                | access::Ask::ReserveTables(_)
                | access::Ask::Leave => access::Answer::Done,
            }),
        }
    }

    fn run(&mut self, expect: Expect, beside: Beside) -> End<IoError> {
        let mut steps = Steps::new(SECOND, expect, beside);
        loop {
            match steps.poll() {
                Step::Ask(ask) => steps.answer(self.answer(ask)),
                Step::Done(end) => return end,
            }
            assert!(self.asked.len() < ASKS_MAX, "it goes in circles: {:?}", self.asked);
        }
    }

    /// The place of the first question of this kind.
    fn place(&self, is_it: impl Fn(&access::Ask) -> bool) -> Option<usize> {
        self.asked.iter().position(|ask| matches!(ask, Ask::Device(ask) if is_it(ask)))
    }

    fn fence(&self) -> Option<Fence> {
        self.asked.iter().find_map(|ask| match ask {
            Ask::Device(access::Ask::FenceKnown { fence, .. }) => Some(*fence),
            Ask::Device(_) | Ask::Others | Ask::Lock(_) => None,
        })
    }

    fn was_taken_over(&self) -> Option<usize> {
        self.place(|ask| matches!(ask, access::Ask::TakeOver { .. }))
    }

    fn was_left(&self) -> bool {
        self.asked.last() == Some(&Ask::Device(access::Ask::Leave))
    }
}

/// The device was looked at and nothing more.
fn assert_only_visited(world: &World) {
    assert_eq!(world.was_taken_over(), None, "{:?}", world.asked);
    assert_eq!(world.fence(), None);
    assert_eq!(world.asked.last(), Some(&Ask::Device(access::Ask::Close)));
}

#[test]
fn an_unused_device_is_proven_and_its_tables_are_reserved_when_it_is_this_engines() {
    for (with_log, expect) in [
        (true, Expect::Unused),
        (true, Expect::Anything),
        (false, Expect::Unused),
        (false, Expect::Anything),
    ] {
        let mut world = World::new();
        assert_eq!(world.run(expect, beside(with_log)), Ok(None));
        let fenced = world.place(|ask| matches!(ask, access::Ask::FenceKnown { .. })).unwrap();
        let proven = world.place(|ask| matches!(ask, access::Ask::ProveWritable { .. })).unwrap();
        let reserved = world.place(|ask| matches!(ask, access::Ask::ReserveTables(_)));
        let taken = world.was_taken_over().unwrap();
        assert!(taken < fenced && fenced < proven, "{:?}", world.asked);
        assert_eq!(reserved.is_some(), with_log);
        assert!(reserved.is_none_or(|reserved| reserved > proven));
        assert!(!world.was_left());
    }
}

#[test]
fn a_member_that_is_back_is_checked_again_when_nobody_else_can_write_to_it() {
    let mut world = World::former(true);
    let label = world.run(Expect::Former, beside(true)).unwrap().unwrap();
    assert_eq!(Ok(*label), world.label);
    assert_eq!(world.asked.last(), Some(&Ask::Device(access::Ask::Label)));
    // Without a log it is written from the beginning.
    let mut world = World::former(false);
    assert_eq!(world.run(Expect::Former, beside(false)), Ok(None));

    // Somebody else wrote to it before it was fenced.
    let mut world = World::former(true);
    let mut steps = Steps::new(SECOND, Expect::Former, beside(true));
    let end = loop {
        match steps.poll() {
            Step::Ask(ask) => {
                let is_fence = matches!(ask, Ask::Device(access::Ask::FenceKnown { .. }));
                steps.answer(world.answer(ask));
                if is_fence {
                    world.label.as_mut().unwrap().generation += 1;
                }
            }
            Step::Done(end) => break end,
        }
    };
    assert_eq!(end, Err(Refusal::NotFormer(NotFormer::WentOn)));
    assert!(world.was_left());
}

#[test]
fn what_is_not_what_was_expected_is_looked_at_and_nothing_more() {
    let mut small = World::new();
    small.info.capacity = 4096;
    let end = small.run(Expect::Anything, beside(true));
    assert!(matches!(end, Err(Refusal::Unfit(Unfit { value: 4096, .. }))), "{end:?}");
    assert_only_visited(&small);

    let mut serves = World::new();
    serves.label = Ok(Label { index: MemberIndex(2), ..array(true) });
    for expect in [Expect::Anything, Expect::Unused, Expect::Former] {
        let end = serves.run(expect, beside(true));
        assert_eq!(end, Err(Refusal::Serves(MemberIndex(2))));
        assert_only_visited(&serves);
    }

    let mut used = World::new();
    used.fails_at = Some(3);
    let end = used.run(Expect::Unused, beside(true));
    assert_eq!(used.asked[3], Ask::Device(access::Ask::Unused));
    assert_eq!(end, Err(Refusal::Failed(ErrorKind::Device.into())));
    assert_only_visited(&used);

    let mut another = World::new();
    let end = another.run(Expect::Former, beside(true));
    assert_eq!(end, Err(Refusal::NotFormer(NotFormer::NotThatMember)));
    assert_only_visited(&another);

    let mut newer = World::former(true);
    newer.label.as_mut().unwrap().generation += 1;
    let end = newer.run(Expect::Former, beside(true));
    assert_eq!(end, Err(Refusal::NotFormer(NotFormer::WentOn)));
    assert_only_visited(&newer);
}

#[test]
fn a_member_of_another_array_that_is_open_on_this_machine_is_refused() {
    let engine = key_of_holder(&[8; 16], &holder(2)) | 1;
    for (locked, keys, is_refused) in [
        (Locked::Taken, Ok(vec![engine]), false),
        (Locked::Impossible, Ok(vec![engine]), false),
        (Locked::Held, Ok(vec![engine]), true),
        (Locked::Held, Err(ErrorKind::Unsupported), true),
        // The other array has given it back.
        (Locked::Held, Ok(vec![]), false),
        (Locked::Held, Ok(vec![VACANT.get(), 0x1234]), false),
    ] {
        let label = Ok(Label { array_uuid: [8; 16], ..array(true) });
        let mut world = World { label, locked, keys, ..World::new() };
        let end = world.run(Expect::Anything, beside(true));
        let refusal = Err(Refusal::OpenHere { name: "tank".into() });
        assert_eq!(end, if is_refused { refusal } else { Ok(None) }, "{locked:?} {:?}", world.keys);
        if is_refused {
            assert_only_visited(&world);
        }
    }
}

#[test]
fn an_engine_that_was_fenced_out_does_not_even_look() {
    let reserved = Other { end: Err(FenceError::Reserved { key: 7 }), ..ours() };
    let known = Other { is_fenced: true, ..fails(ErrorKind::Device) };
    for lost in [fails(ErrorKind::Fenced), reserved, known] {
        let mut world = World::former(true);
        world.others = vec![vec![ours(), lost.clone()]];
        let end = world.run(Expect::Former, beside(true));
        assert_eq!(end, Err(Refusal::NotHolder { other: 1, error: lost.end.unwrap_err() }));
        assert_eq!(world.asked, [Ask::Others]);
    }
}

#[test]
fn an_engine_that_is_fenced_out_while_it_connects_does_not_push_its_successor_aside() {
    for expect in [Expect::Former, Expect::Unused, Expect::Anything] {
        let mut world = if expect == Expect::Former { World::former(true) } else { World::new() };
        world.others = vec![vec![ours(), ours()], vec![fails(ErrorKind::Fenced), ours()]];
        let end = world.run(expect, beside(true));
        assert!(matches!(end, Err(Refusal::NotHolder { other: 0, .. })), "{expect:?}: {end:?}");
        assert!(world.was_taken_over().is_some() && world.was_left(), "{:?}", world.asked);
        assert_eq!(world.fence(), None, "{expect:?}");
    }
    // One of the others went away meanwhile: nobody knows whose it is.
    let mut world = World::former(true);
    world.others = vec![vec![ours()], vec![fails(ErrorKind::Unreachable)]];
    assert!(world.run(Expect::Former, beside(true)).is_ok());
    let fence = world.fence().unwrap();
    assert!(!fence.may_remove(key_of_holder(&[9; 16], &holder(2)) | 1));
}

#[test]
fn a_successor_that_registers_after_it_was_looked_is_not_pushed_aside() {
    let key = |lock| key_of_holder(&[9; 16], &holder(lock)) | 1;
    let (former, successor) = (key(2), key(3));
    for (before, comes_at) in [(vec![], 0), (vec![former], 0), (vec![former], 2), (vec![former], 3)]
    {
        let mut world = World::former(true);
        let mut device = Device::with(&before);
        let mut steps = Steps::new(SECOND, Expect::Former, beside(true));
        let end = loop {
            match steps.poll() {
                Step::Ask(Ask::Device(access::Ask::Keys)) => {
                    let keys = device.keys.clone();
                    let answer = access::Answer::Keys { keys, is_cut: false };
                    steps.answer(Answer::Device(answer));
                }
                Step::Ask(Ask::Device(access::Ask::FenceKnown { fence, known })) => {
                    device.comes = Some((comes_at, successor));
                    let fencing = FencingSteps::fence_known(Standing::default(), fence, known);
                    let end = run(fencing, &mut device).0;
                    let exclusive = access::Answer::Fenced { exclusive: true };
                    let answer = end.map_or_else(access::Answer::NotFenced, |()| exclusive);
                    steps.answer(Answer::Device(answer));
                }
                Step::Ask(ask) => steps.answer(world.answer(ask)),
                Step::Done(end) => break end,
            }
        };
        let overtaken = FenceError::Overtaken { key: successor };
        assert_eq!(end, Err(Refusal::NotFenced(overtaken)), "{before:x?} {comes_at}");
        assert!(device.keys.contains(&successor), "{before:x?} {comes_at}: {:?}", device.asked);
        assert!(world.was_left());
    }
}

#[test]
fn a_successor_that_had_registered_before_finds_who_joins_there() {
    let successor = key_of_holder(&[9; 16], &holder(3)) | 1;
    for is_found in [true, false] {
        let mut world = World::former(true);
        let mut device = Device::with(&[successor]);
        let (mut standing, mut was_announced) = (Standing::default(), false);
        let mut steps = Steps::new(SECOND, Expect::Former, beside(true));
        let fenced = |end: Result<(), FenceError>, exclusive| {
            let answer = access::Answer::Fenced { exclusive };
            Answer::Device(end.map_or_else(access::Answer::NotFenced, |()| answer))
        };
        let end = loop {
            match steps.poll() {
                Step::Ask(Ask::Device(access::Ask::Keys)) => {
                    let answer = access::Answer::Keys { keys: device.keys.clone(), is_cut: false };
                    steps.answer(Answer::Device(answer));
                }
                Step::Ask(Ask::Device(access::Ask::Announce { fence, known })) => {
                    let announce = FencingSteps::announce(standing, fence, known);
                    let (end, now, _) = run(announce, &mut device);
                    (standing, was_announced) = (now, true);
                    steps.answer(fenced(end, false));
                }
                Step::Ask(ask @ Ask::Others) if was_announced => {
                    // The others are this engine's still; then the successor shuts it out there, and looks at all once more.
                    steps.answer(world.answer(ask));
                    if is_found {
                        device.keys = vec![successor];
                    }
                }
                Step::Ask(Ask::Device(access::Ask::FenceKnown { fence, known })) => {
                    let fencing = FencingSteps::fence_known(standing, fence, known);
                    let end = run(fencing, &mut device).0;
                    steps.answer(fenced(end, true));
                }
                Step::Ask(ask) => steps.answer(world.answer(ask)),
                Step::Done(end) => break end,
            }
        };
        assert!(was_announced);
        let overtaken = FenceError::Overtaken { key: successor };
        assert_eq!(end.is_ok(), !is_found);
        assert_eq!(device.keys.contains(&successor), is_found);
        if is_found {
            assert_eq!(end, Err(Refusal::NotFenced(overtaken)));
            assert!(world.was_left());
        }
    }
}

#[test]
fn engines_are_removed_from_a_member_that_is_back_only_by_who_surely_has_the_array() {
    let dead = Holder { lock: (1, 9), boot_id: [1; 16], ..holder(9) };
    let stranger = Holder { name: "another".into(), machine_id: [6; 16], ..holder(3) };
    let key = |holder: &Holder| key_of_holder(&array(true).array_uuid, holder) | 1;
    let not_fenced = Other { exclusive: false, ..fails(ErrorKind::Fenced) };
    for (expect, others, removes_stranger) in [
        (Expect::Former, vec![ours(), ours()], true),
        (Expect::Former, vec![ours(), not_fenced.clone()], true),
        (Expect::Former, vec![ours(), fails(ErrorKind::Unreachable)], false),
        (Expect::Former, vec![not_fenced], false),
        (Expect::Former, vec![], false),
        (Expect::Anything, vec![], true),
    ] {
        let mut world = World::former(true);
        world.label.as_mut().unwrap().holder = dead.clone();
        world.others = vec![others];
        assert!(world.run(expect, beside(true)).is_ok());
        let fence = world.fence().unwrap();
        assert_eq!(
            fence.may_remove(key(&stranger)),
            removes_stranger,
            "{expect:?} {:?}",
            world.others
        );
        assert!(fence.may_remove(key(&dead)), "its machine was booted anew");
    }
    let mut world = World::new();
    assert!(world.run(Expect::Unused, beside(true)).is_ok());
    assert!(!world.fence().unwrap().may_remove(key(&stranger)), "an unused device is nobody's");
}

#[test]
fn former_identities_of_the_machine_are_told_to_the_device() {
    let mut world = World::former(true);
    let old = Holder { machine_id: [77; 16], boot_id: [3; 16], ..holder(1) };
    world.label.as_mut().unwrap().holder = old;
    let mut beside = beside(true);
    beside.this.boot_id = [3; 16];
    assert!(world.run(Expect::Former, beside).is_ok());
    let taken = world.asked[world.was_taken_over().unwrap()].clone();
    let former = BTreeSet::from([[77; 16]]);
    assert_eq!(taken, Ask::Device(access::Ask::TakeOver { array: [9; 16], former }));
}

#[test]
fn a_device_that_fails_after_it_was_taken_over_is_given_back() {
    for (with_log, expect) in [
        (true, Expect::Unused),
        (true, Expect::Anything),
        (true, Expect::Former),
        (false, Expect::Unused),
        (false, Expect::Former),
    ] {
        let new = || if expect == Expect::Former { World::former(with_log) } else { World::new() };
        let mut whole = new();
        assert!(whole.run(expect, beside(with_log)).is_ok());
        for at in 0..whole.asked.len() {
            let mut world = World { fails_at: Some(at), ..new() };
            let end = world.run(expect, beside(with_log));
            let is_end = matches!(
                world.asked[at],
                Ask::Others | Ask::Device(access::Ask::Close | access::Ask::Keys)
            );
            assert_eq!(end.is_ok(), is_end, "{expect:?}, question {at}: {:?}", world.asked);
            let was_taken_over = world.was_taken_over().is_some_and(|taken| taken < at);
            assert_eq!(world.was_left(), was_taken_over && !is_end, "{:?}", world.asked);
        }
    }
}

/// A list of keys that could not be read would have every key called one that came later.
#[test]
fn keys_that_cannot_be_read_are_not_taken_for_none() {
    let mut whole = World::new();
    assert!(whole.run(Expect::Anything, beside(true)).is_ok());
    let asked = |ask: &Ask| matches!(ask, Ask::Device(access::Ask::Keys));
    let at = whole.asked.iter().position(asked).unwrap();
    for kind in [ErrorKind::Timeout, ErrorKind::Unreachable, ErrorKind::Aborted] {
        let mut world = World { fails_at: Some(at), kind, ..World::new() };
        let end = world.run(Expect::Anything, beside(true));
        assert!(matches!(&end, Err(Refusal::Failed(error)) if error.kind() == kind), "{end:?}");
        assert!(world.was_left());
    }
    // It has no reservations.
    for kind in [ErrorKind::Unsupported, ErrorKind::Device] {
        let mut world = World { fails_at: Some(at), kind, ..World::new() };
        assert!(world.run(Expect::Anything, beside(true)).is_ok());
    }
}

/// Whatever devices answer, whenever they fail.
#[test]
fn anything_may_be_answered() {
    let (mut ready, mut refused) = (0, 0);
    for seed in 0..20_000 {
        let mut rng = StdRng::seed_from_u64(seed);
        let with_log = rng.random();
        let expect =
            [Expect::Unused, Expect::Anything, Expect::Former][rng.random_range(0..3_usize)];
        let mut world = if rng.random_ratio(2, 3) { World::former(with_log) } else { World::new() };
        let rounds = rng.random_range(1..3);
        world.others = (0..rounds).map(|_| any_others(&mut rng)).collect();
        if rng.random_ratio(1, 4) {
            world.fails_at = Some(rng.random_range(0..12));
            world.kind = [ErrorKind::Fenced, ErrorKind::Device, ErrorKind::Medium]
                [rng.random_range(0..3_usize)];
        }
        world.locked =
            [Locked::Taken, Locked::Held, Locked::Impossible][rng.random_range(0..3_usize)];
        if rng.random_ratio(1, 4)
            && let Ok(label) = &mut world.label
        {
            label.array_uuid = [8; 16];
        }
        let end = world.run(expect, beside(with_log));
        check(seed, &world, expect, end.is_ok());
        *(if end.is_ok() { &mut ready } else { &mut refused }) += 1;
    }
    assert!(ready > 1000 && refused > 1000, "{ready} {refused}");
}

fn any_others(rng: &mut StdRng) -> Vec<Other> {
    let kinds = [ErrorKind::Fenced, ErrorKind::Unreachable];
    let other = |rng: &mut StdRng| match rng.random_range(0..12) {
        0 => fails(kinds[rng.random_range(0..2_usize)]),
        1 => Other { exclusive: false, ..ours() },
        _ => ours(),
    };
    (0..rng.random_range(0..4)).map(|_| other(rng)).collect()
}

/// What holds however it ends.
fn check(seed: u64, world: &World, expect: Expect, is_ready: bool) {
    let asked = &world.asked;
    let place = |is_it: fn(&access::Ask) -> bool| world.place(is_it);
    let closed = place(|ask| *ask == access::Ask::Close);
    let taken = world.was_taken_over();
    let fenced = place(|ask| matches!(ask, access::Ask::FenceKnown { .. }));
    let written = place(|ask| {
        matches!(ask, access::Ask::ProveWritable { .. } | access::Ask::ReserveTables(_))
    });
    assert!(taken.is_none() || closed < taken, "{seed}: taken over unseen: {asked:?}");
    assert!(fenced.is_none() || taken < fenced, "{seed}: {asked:?}");
    let known = |at: usize| asked[at - 2..at] == [Ask::Device(access::Ask::Keys), Ask::Others];
    assert!(fenced.is_none_or(known), "{seed}: {asked:?}");
    assert!(
        written.is_none() || fenced < written,
        "{seed}: written before it is fenced: {asked:?}"
    );
    assert!(expect != Expect::Former || written.is_none(), "{seed}: {asked:?}");
    assert!(!is_ready || fenced.is_some(), "{seed}: {asked:?}");
    // What was taken over is used, or given back.
    let was_taken_over = taken.is_some_and(|at| world.fails_at != Some(at));
    assert_eq!(world.was_left(), was_taken_over && !is_ready, "{seed}: {asked:?}");
    let visited = place(|ask| *ask == access::Ask::Visit);
    let was_visited = visited.is_some_and(|at| world.fails_at != Some(at));
    assert_eq!(closed.is_some(), was_visited, "{seed}: {asked:?}");
}
