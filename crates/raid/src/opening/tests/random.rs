//! Any labels, any keys, and failures at any step.

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{world::Disk, *};
use crate::{label::Closure, member::MemberSet};

const KINDS: [ErrorKind; 5] = [
    ErrorKind::Device,
    ErrorKind::Medium,
    ErrorKind::Unreachable,
    ErrorKind::Unsupported,
    ErrorKind::Fenced,
];
const WHEN: [When; 6] =
    [When::Visit, When::Label, When::TakeOver, When::Fence, When::LabelAgain, When::Read];

fn pick<T: Clone>(rng: &mut StdRng, all: &[T]) -> T {
    all[rng.random_range(0..all.len())].clone()
}

fn holders() -> [Holder; 4] {
    let rebooted = Holder { boot_id: [2; 16], lock: (1, 50), ..this() };
    [Holder { name: "host".into(), ..Holder::default() }, dead(), rebooted, another_machine()]
}

/// Whether the engine of `holder` may be alive, as far as this machine knows.
fn may_live(holder: &Holder) -> bool {
    !crate::fencing::outlives(&dead(), holder)
}

fn any_world(rng: &mut StdRng) -> World {
    let with_log = rng.random();
    let (level, members) = pick(
        rng,
        &[
            (Level::Raid5, 4),
            (Level::Raid5, 3),
            (Level::Raid1, 2),
            (Level::Raid1, 3),
            (Level::Raid0, 2),
        ],
    );
    let mut label = label(level, members, with_log && level != Level::Raid0);
    if rng.random_ratio(1, 2) {
        label.closure = Closure::Open;
    }
    label.holder = pick(rng, &holders());
    let mut world = World::new(&label);
    for disk in &mut world.disks {
        if rng.random_ratio(1, 6) {
            disk.fails = Some((pick(rng, &WHEN), pick(rng, &KINDS)));
        }
        if rng.random_ratio(1, 10) {
            let engine = key(&pick(rng, &holders()));
            disk.keys = vec![pick(rng, &[engine, 0x1234])];
        }
        disk.has_reservations = rng.random_ratio(7, 8);
        if rng.random_ratio(1, 12) {
            disk.images = pick(rng, &[0, 1 << 50]);
        }
        if rng.random_ratio(1, 20) {
            disk.info.capacity = 4096;
        }
        let label = disk.label_mut();
        match rng.random_range(0..40) {
            0 => label.generation += 1,
            1 => label.generation += 1 << 40,
            2 => label.epoch -= 1,
            3 => label.holder = pick(rng, &holders()),
            4 => label.index = MemberIndex(0),
            5 => label.array_uuid = [8; 16],
            6 => label.members[1].state = MemberState::Faulty,
            7 => disk.label = Err(LabelError::Absent),
            _ => {}
        }
    }
    if rng.random_ratio(1, 20) {
        world.lock = Err(ErrorKind::Device);
    }
    world.meanwhile =
        pick(rng, &[None, None, None, None, Some(change as fn(&mut [Disk])), Some(change_all)]);
    world
}

fn change(disks: &mut [Disk]) {
    if let Ok(label) = &mut disks[0].label {
        label.epoch += 1;
    }
}

fn change_all(disks: &mut [Disk]) {
    disks.iter_mut().for_each(|disk| disk.label = Err(LabelError::Absent));
}

#[test]
fn anything_may_be_answered() {
    let (mut opened, mut refused, mut degraded) = (0, 0, 0);
    for seed in 0..6000 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut world = any_world(&mut rng);
        let options = Options {
            read_only: rng.random_ratio(1, 6),
            take_over: rng.random_ratio(1, 6),
            force: rng.random_ratio(1, 6),
            is_placed: rng.random(),
            continues: None,
            wants_all: rng.random_ratio(1, 6),
            spares: rng.random_range(0..3),
            clean_close: None,
            silent: None,
        };
        let before = world.disks.clone();
        let end = world.open(options);
        let places = end.as_ref().ok().map(|opened| opened.places.clone());
        check(seed, &world, &before, options, places.as_deref());
        if let Ok(end) = end {
            opened += 1;
            degraded += u32::from(end.places.contains(&None));
            check_opened(seed, &world, options, &end);
        } else {
            refused += 1;
        }
    }
    assert!(opened > 500 && refused > 500 && degraded > 100, "{opened} {refused} {degraded}");
}

/// What holds however it ends; `used` is which devices the members are, where it has opened.
fn check(
    seed: u64,
    world: &World,
    before: &[Disk],
    options: Options,
    used: Option<&[Option<usize>]>,
) {
    let (taken, fenced) = (world.taken_over(), world.fenced());
    if options.read_only {
        assert!(!world.has_lock && taken.is_empty() && fenced.is_empty(), "{seed}");
    }
    assert!(world.has_lock || taken.is_empty() && fenced.is_empty(), "{seed}: without the lock");
    for (at, disk) in world.disks.iter().enumerate() {
        let is_used = used.is_some_and(|used| used.contains(&Some(at)));
        assert!(!disk.is_taken_over || is_used, "{seed}: device {at} is not given back");
        assert!(!disk.is_fenced || is_used, "{seed}: device {at} stays registered");
        assert!(used.is_some() || !disk.is_visited, "{seed}: the visit of device {at} goes on");
        let is_told = options.take_over || options.force;
        let stays =
            |key: &&u64| holders().iter().any(|one| may_live(one) && self::key(one) == **key);
        let is_stranger = |key: &&u64| **key == 0x1234;
        for key in before[at].keys.iter().filter(|key| stays(key) && !is_told) {
            assert!(disk.keys.contains(key), "{seed}: who may live was removed from {at}");
        }
        for key in before[at].keys.iter().filter(|key| is_stranger(key) && !options.force) {
            assert!(disk.keys.contains(key), "{seed}: a stranger was removed from {at}");
        }
    }
}

fn check_opened(seed: u64, world: &World, options: Options, opened: &Opened<IoError>) {
    assert_eq!(opened.fence.is_some(), !options.read_only, "{seed}");
    for at in opened.places.iter().flatten() {
        let disk = &world.disks[*at];
        assert!(disk.is_visited && !opened.unused.contains(at), "{seed}");
        assert_eq!(disk.is_fenced, !options.read_only, "{seed}: device {at}");
    }
    for at in &opened.unused {
        assert!(world.disks[*at].is_visited, "{seed}: there is no session to device {at}");
    }
    let members = opened.machine.geometry().member_indices();
    let here: MemberSet =
        members.filter(|member| opened.places[member.as_usize()].is_some()).collect();
    assert!(opened.machine.geometry().can_serve_from(here), "{seed}: {here:?}");
}
