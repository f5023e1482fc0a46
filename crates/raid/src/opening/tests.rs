//! Devices of an array of four that is opened, one rule after another; and devices that answer anything ([`random`]).

mod random;
mod world;

use alloc::{string::ToString, vec};

use netraid_block::ErrorKind;

use super::*;
use crate::{
    fencing::{Removes, VACANT, key_of_holder, keys_of_silent},
    geometry::Level,
    heartbeat::Heartbeat,
    label::tests::{logged_sample, sample},
    lack::Lack,
    member::{MEMBERS_MAX, MemberState},
    volume::Machine as _,
};
use world::{When, World, another_machine, dead, key, label, this};

const PLAIN: Options = Options {
    read_only: false,
    take_over: false,
    force: false,
    clean_close: None,
    is_placed: false,
    continues: None,
    wants_all: false,
    spares: 0,
    silent: None,
};

fn failed(kind: ErrorKind) -> OpenError<IoError> {
    OpenError::Failed(kind.into())
}

#[test]
fn all_members_are_taken_over_and_fenced_under_the_lock_and_looked_at_again() {
    for with_log in [true, false] {
        let mut world = World::of(with_log);
        let opened = world.open(PLAIN).unwrap();
        assert!(world.has_lock && opened.fence.is_some());
        assert_eq!(opened.places, [0, 1, 2, 3].map(Some));
        assert_eq!((opened.liars.len(), opened.unused.len(), opened.notes), (0, 0, vec![]));
        assert!(world.disks.iter().all(|disk| disk.is_taken_over && disk.is_fenced));
        let last = |is_it: fn(&access::Ask) -> bool| {
            world.asked.iter().rposition(|(_, ask)| is_it(ask)).unwrap()
        };
        let fenced = last(|ask| matches!(ask, access::Ask::FenceAgain { .. }));
        assert!(last(|ask| matches!(ask, access::Ask::TakeOver { .. })) < fenced);
        assert!(fenced < last(|ask| *ask == access::Ask::Label), "{:?}", world.asked);
        assert_eq!(opened.machine.has_log(), with_log);
        assert!(opened.can_read_ahead && !opened.info.read_only && opened.info.volatile_cache);
    }
}

#[test]
fn members_are_fenced_once_more_when_all_are() {
    let mut world = World::of(true);
    world.disks[1].has_reservations = false;
    let opened = world.open(PLAIN).unwrap();
    assert_eq!(opened.notes, [Note::NotFenced(1)]);
    let fenced = |(at, ask): &(usize, access::Ask)| {
        matches!(ask, access::Ask::Fence(_) | access::Ask::FenceAgain { .. }).then_some(*at)
    };
    let fenced: Vec<usize> = world.asked.iter().filter_map(fenced).collect();
    assert_eq!(fenced, [0, 1, 2, 3, 0, 2, 3]);
}

#[test]
fn who_only_reads_locks_and_takes_over_nothing() {
    let options = Options { read_only: true, ..PLAIN };
    for with_log in [true, false] {
        let mut world = World::of(with_log);
        world.disks[1].info.read_only = true;
        let opened = world.open(options).unwrap();
        assert!(!world.has_lock && opened.fence.is_none() && opened.info.read_only);
        assert_eq!((world.taken_over(), world.fenced(), world.left()), (vec![], vec![], vec![]));
        assert_eq!(opened.places, [0, 1, 2, 3].map(Some));
        // Others may write later, and the next read is to show that.
        assert!(!opened.can_read_ahead);
    }
    let mut unclean = World::held_by(&dead(), true);
    assert_eq!(unclean.refusal(options), OpenError::NotClosed { name: "tank".into() });
    assert!(!unclean.has_lock);
    // Without a log what is read once grows old as well, where somebody writes.
    let error = World::held_by(&another_machine(), false).refusal(options);
    assert!(matches!(error, OpenError::Assemble(AssembleError::Held { .. })), "{error:?}");
    for options in [Options { take_over: true, ..options }, Options { force: true, ..options }] {
        assert!(World::held_by(&another_machine(), false).open(options).is_ok());
    }
}

#[test]
fn who_only_reads_is_refused_beside_who_opens_the_array_for_writing() {
    let options = Options { read_only: true, ..PLAIN };
    for with_log in [true, false] {
        // Its label is not written yet.
        let mut world = World::of(with_log);
        world.disks[2].keys = vec![key(&another_machine())];
        let error = world.refusal(options);
        assert!(matches!(error, OpenError::NotFenced(2, FenceError::Reserved { .. })), "{error:?}");
        assert!(world.open(Options { take_over: true, ..options }).is_ok());
        // Others that read are no writers, and who has closed it is none.
        let label = world.disks[0].label.clone().unwrap();
        let reader = Fence::of_reader(&label, &another_machine(), Removes::Own, 77).key(false);
        world.disks[2].keys = vec![reader.get(), VACANT.get()];
        assert!(world.open(options).is_ok());
        assert!(world.open(PLAIN).is_ok(), "and keep nobody from writing");
    }
}

#[test]
fn an_array_of_which_no_device_has_a_label_is_none() {
    let mut world = World::of(true);
    world.disks.iter_mut().for_each(|disk| disk.label = Err(LabelError::Absent));
    world.disks[2].fails = Some((When::Visit, ErrorKind::Unreachable));
    let refused = world.open(PLAIN).unwrap_err();
    assert_eq!(refused.error, OpenError::NoLabels);
    let absent = |at| Note::NoLabel(at, LabelError::Absent);
    let unreachable = Note::Failed(ErrorKind::Unreachable.into());
    assert_eq!(refused.notes, [unreachable, absent(0), absent(1), absent(3)]);
    assert!(!world.has_lock);
    assert_eq!(world.left(), [0, 1, 3]);
}

#[test]
fn an_array_that_another_machine_may_have_is_not_touched() {
    let mut world = World::held_by(&another_machine(), true);
    let error = world.refusal(PLAIN);
    assert!(matches!(error, OpenError::Assemble(AssembleError::Held { .. })), "{error:?}");
    assert_eq!(world.taken_over(), vec![0; 0]);
    let mut world = World::held_by(&another_machine(), true);
    assert!(world.open(Options { take_over: true, ..PLAIN }).is_ok());

    assert!(World::held_by(&dead(), true).open(PLAIN).is_ok(), "it held this very lock");
    let other_lock = Holder { lock: (1, 78), ..this() };
    assert!(World::held_by(&other_lock, true).open(PLAIN).is_err());

    let mut locked = World::of(true);
    locked.lock = Err(ErrorKind::Device);
    assert_eq!(locked.refusal(PLAIN), failed(ErrorKind::Device));
    assert_eq!(locked.taken_over(), vec![0; 0]);
}

#[test]
fn a_silent_engine_is_taken_over_where_it_is_the_one_that_was_judged_and_can_be_shut_out() {
    let first = another_machine();
    let held = |without: &[usize]| held_by_silent(&first, without);
    // A member that cannot shut it out is left out.
    let (mut world, options) = held(&[1]);
    let opened = world.open(options).unwrap();
    let cannot = OpenError::NotFenced(1, FenceError::CannotShutOut);
    assert_eq!(opened.notes, [Note::LeftOut(MemberIndex(1), cannot.clone())]);
    assert_eq!(opened.places, [Some(0), None, Some(2), Some(3)]);
    assert_eq!((world.fenced(), world.left()), (vec![0, 2, 3], vec![1]));

    // Too few are left, and nobody is removed for that.
    let (mut world, options) = held(&[1, 2]);
    let error = world.refusal(options);
    assert!(matches!(error, OpenError::Assemble(AssembleError::TooFew { .. })), "{error:?}");
    assert_eq!(world.fenced(), vec![0; 0]);
    let (mut world, options) = held(&[1, 2, 3]);
    assert!(matches!(world.refusal(options), OpenError::NotFenced(_, FenceError::CannotShutOut)));
    assert_eq!(world.fenced(), vec![0; 0]);

    // It was not silent, or another engine has come since.
    let (_, options) = held(&[]);
    let silent = options.silent.unwrap();
    for changed in [
        Silent { epoch: silent.epoch - 1, ..silent },
        Silent { generation: silent.generation - 1, ..silent },
        Silent { engine: [8; 16], ..silent },
    ] {
        let (mut world, _) = held(&[]);
        let error = world.refusal(Options { silent: Some(changed), ..PLAIN });
        assert!(matches!(error, OpenError::Assemble(AssembleError::Held { .. })), "{error:?}");
        assert_eq!(world.taken_over(), vec![0; 0]);
    }
    // Nobody else is removed: not an engine that has written no label yet, nor one of the same lock that came since.
    let third = Holder { lock: (1, 3), ..another_machine() };
    for other in [key(&third), key(&first) ^ 0x100] {
        let (mut world, options) = held(&[]);
        world.disks[2].keys.push(other);
        let reserved = FenceError::Reserved { key: other };
        assert_eq!(world.refusal(options), OpenError::NotFenced(2, reserved));
        assert_eq!(world.fenced(), vec![0; 0]);
    }
}

/// An array of four whose engine was judged, and of whose members some are `without` reservations.
fn held_by_silent(first: &Holder, without: &[usize]) -> (World, Options) {
    let mut world = World::held_by(first, true);
    let label = world.disks[0].label.clone().unwrap();
    let beat = Heartbeat { engine: first.engine_id, generation: label.generation, counter: 7 };
    let mut heartbeats = [0; MEMBERS_MAX];
    heartbeats[..4].fill(beat.digest());
    for (at, disk) in world.disks.iter_mut().enumerate() {
        (disk.keys, disk.heartbeat) = (vec![key(first)], Some(beat));
        if without.contains(&at) {
            (disk.has_reservations, disk.keys) = (false, vec![]);
        }
    }
    let keys = keys_of_silent(&label.array_uuid, first, [key(first)].iter());
    let (engine, generation, epoch) = (first.engine_id, label.generation, label.epoch);
    let silent = Silent { engine, generation, epoch, keys, heartbeats };
    (world, Options { silent: Some(silent), ..PLAIN })
}

#[test]
fn nobody_is_removed_before_all_members_have_answered_and_none_shows_that_the_engine_lives() {
    // A member that hangs is found before another one is fenced.
    for when in [When::TryOut, When::LabelAgain, When::Read] {
        let (mut world, options) = held_by_silent(&another_machine(), &[]);
        world.disks[1].fails = Some((when, ErrorKind::Timeout));
        let opened = world.open(options).unwrap();
        assert_eq!(opened.places[1], None, "{when:?}");
        let first_fenced =
            world.asked.iter().position(|(_, ask)| matches!(ask, access::Ask::Fence(_)));
        let left = world.asked.iter().position(|(_, ask)| *ask == access::Ask::Leave);
        assert!(left < first_fenced, "{when:?}: {:?}", world.asked);
        assert!(!world.fenced().contains(&1));

        let (mut world, options) = held_by_silent(&another_machine(), &[]);
        for at in [1, 2] {
            world.disks[at].fails = Some((when, ErrorKind::Timeout));
        }
        world.refusal(options);
        assert_eq!(world.fenced(), vec![0; 0], "{when:?}: too few are left");
    }
    // It goes on while it is tried out.
    let later: [fn(&mut [world::Disk]); 3] = [
        |disks| disks[2].heartbeat = disks[2].heartbeat.map(|beat| beat.next(beat.engine, 40)),
        |disks| disks[2].heartbeat = None,
        |disks| disks[2].label_mut().epoch += 1,
    ];
    for meanwhile in later {
        let (mut world, options) = held_by_silent(&another_machine(), &[]);
        world.meanwhile = Some(meanwhile);
        world.refusal(options);
        assert_eq!(world.fenced(), vec![0; 0]);
        assert!(world.disks.iter().all(|disk| disk.keys == [key(&another_machine())]));
    }
}

#[test]
fn an_opening_that_is_stopped_gives_everything_back_and_removes_nobody() {
    for stop_at in 0.. {
        let (mut world, options) = held_by_silent(&another_machine(), &[]);
        let limits = Limits::default();
        let engine = Engine { this: this(), random: 7, pool: Pool::new(), limits };
        let mut steps = Steps::open(options, world.names(), engine);
        let mut asked = 0;
        let mut had_removed = false;
        let end = loop {
            if asked == stop_at {
                had_removed = !world.fenced().is_empty();
                steps.stop();
            }
            match steps.poll() {
                Step::Ask(ask) => steps.answer(world.answer(ask)),
                Step::Done(end) => break end,
            }
            asked += 1;
        };
        let Err(refused) = end else {
            assert!(stop_at > 8, "it opened although it was stopped after {stop_at} questions");
            break;
        };
        assert_eq!(refused.error, OpenError::Stopped, "{stop_at}");
        assert!(world.disks.iter().all(|disk| !disk.is_visited && !disk.is_fenced));
        assert!(had_removed || world.fenced().is_empty(), "{stop_at}");
    }
}

#[test]
fn a_member_at_which_a_reader_cannot_register_is_left_out() {
    let options = Options { read_only: true, ..PLAIN };
    let mut world = World::of(true);
    world.disks[2].fails = Some((When::Attend, ErrorKind::Device));
    let opened = world.open(options).unwrap();
    assert_eq!(opened.places, [Some(0), Some(1), None, Some(3)]);
    assert!(matches!(opened.notes[..], [Note::LeftOut(MemberIndex(2), _)]), "{:?}", opened.notes);
    // A volume of a cluster is read ahead of users: the mediator keeps writers away.
    assert!(World::of(true).open(Options { is_placed: true, ..options }).unwrap().can_read_ahead);
}

#[test]
fn a_member_that_fails_is_left_out_and_given_back() {
    for (when, kind) in [
        (When::TakeOver, ErrorKind::Unreachable),
        (When::Fence, ErrorKind::Device),
        (When::LabelAgain, ErrorKind::Medium),
    ] {
        let mut world = World::of(true);
        world.disks[2].fails = Some((when, kind));
        let opened = world.open(PLAIN).unwrap();
        assert_eq!(opened.places, [Some(0), Some(1), None, Some(3)], "{when:?}");
        assert_eq!((world.left(), opened.unused.len()), (vec![2], 0), "{when:?}");
        assert_eq!(world.taken_over(), [0, 1, 2, 3], "nobody is taken over twice");
        let error = match when {
            When::Fence => {
                let reason = kind.into();
                OpenError::NotFenced(2, FenceError::Failed { what: "fencing", reason })
            }
            When::TakeOver
            | When::TryOut
            | When::Attend
            | When::LabelAgain
            | When::Visit
            | When::Label
            | When::Read => failed(kind),
        };
        assert_eq!(opened.notes, [Note::LeftOut(MemberIndex(2), error)]);
    }
}

#[test]
fn too_many_that_fail_are_an_error() {
    let mut world = World::of(true);
    world.disks[1].fails = Some((When::TakeOver, ErrorKind::Unreachable));
    world.disks[2].fails = Some((When::Fence, ErrorKind::Device));
    let error = world.refusal(PLAIN);
    assert!(matches!(error, OpenError::Assemble(AssembleError::TooFew { .. })), "{error:?}");
    // The half of a mirror that cannot be fenced may serve elsewhere.
    let mut mirror = World::new(&label(Level::Raid1, 2, true));
    mirror.disks[1].fails = Some((When::TakeOver, ErrorKind::Unreachable));
    assert_eq!(mirror.refusal(PLAIN), failed(ErrorKind::Unreachable));
}

#[test]
fn who_says_that_somebody_else_has_the_array_ends_it() {
    let mut world = World::of(true);
    world.disks[1].fails = Some((When::TakeOver, ErrorKind::Fenced));
    world.disks[2].fails = Some((When::TakeOver, ErrorKind::Unreachable));
    assert_eq!(world.refusal(PLAIN), failed(ErrorKind::Fenced));
    assert_eq!(world.fenced(), vec![0; 0]);

    for when in [When::Fence, When::LabelAgain] {
        let mut world = World::of(true);
        world.disks[1].fails = Some((when, ErrorKind::Fenced));
        let error = world.refusal(PLAIN);
        let reason = ErrorKind::Fenced.into();
        assert_eq!(
            error,
            match when {
                When::Fence => {
                    OpenError::NotFenced(1, FenceError::Failed { what: "fencing", reason })
                }
                When::TryOut
                | When::Attend
                | When::LabelAgain
                | When::Visit
                | When::Label
                | When::TakeOver
                | When::Read => OpenError::Failed(reason),
            }
        );
    }
}

#[test]
fn registrations_of_who_may_be_alive_stay_but_by_an_administrators_word() {
    let stranger = 0x1234;
    let force = Options { force: true, ..PLAIN };
    let take_over = Options { take_over: true, ..PLAIN };
    let own_dead = Holder { machine_id: [5; 16], boot_id: [2; 16], lock: (1, 50), ..this() };
    for (options, registered, is_removed) in [
        (PLAIN, key(&dead()), true),
        (PLAIN, key(&another_machine()), false),
        (PLAIN, key(&own_dead), true),
        (PLAIN, stranger, false),
        (take_over, key(&another_machine()), true),
        (take_over, stranger, false),
        (force, stranger, true),
    ] {
        let mut world = World::of(true);
        // A member that was away knows an earlier engine than the others.
        let label = world.disks[2].label_mut();
        (label.holder, label.epoch) = (own_dead.clone(), label.epoch - 1);
        world.disks[2].keys = vec![registered];
        if is_removed {
            let opened = world.open(options).unwrap();
            assert!(opened.places.contains(&Some(2)), "{registered:x}");
            assert_eq!(world.disks[2].keys, vec![0; 0]);
        } else {
            let error = FenceError::Reserved { key: registered };
            assert_eq!(world.refusal(options), OpenError::NotFenced(2, error), "{options:?}");
            assert_eq!(world.disks[2].keys, [registered]);
        }
    }
}

#[test]
fn labels_that_others_change_before_the_lock_is_held_are_not_gone_by() {
    // Another engine has opened and closed it.
    let mut world = World::of(true);
    world.meanwhile =
        Some(|disks| disks.iter_mut().for_each(|disk| disk.label_mut().generation += 1));
    let error = world.refusal(PLAIN);
    assert_eq!(error, OpenError::Changed { name: "tank".into(), places: vec![0, 1, 2, 3] });
    // It set one aside.
    let mut world = World::of(true);
    world.meanwhile =
        Some(|disks| disks[..3].iter_mut().for_each(|disk| disk.label_mut().epoch += 1));
    let error = world.refusal(PLAIN);
    assert_eq!(error, OpenError::Changed { name: "tank".into(), places: vec![0, 1, 2] });
    // Nobody served with one alone.
    let mut world = World::of(true);
    world.meanwhile = Some(|disks| disks[1].label_mut().epoch += 1);
    let opened = world.open(PLAIN).unwrap();
    let (generation, epoch) = (40, 8);
    let changed = OpenError::LabelChanged { place: 1, generation, epoch };
    assert_eq!(opened.notes, [Note::LeftOut(MemberIndex(1), changed)]);
    assert_eq!(world.left(), [1]);
    // None can have served without most members.
    let mut world = World::new(&label(Level::Raid5, 4, true));
    world.disks.remove(3);
    world.meanwhile = Some(|disks| disks[1].label = Err(LabelError::Absent));
    let error = world.refusal(PLAIN);
    assert!(matches!(error, OpenError::Assemble(AssembleError::TooFew { .. })), "{error:?}");
}

#[test]
fn one_whose_label_is_another_each_time_is_left_out_where_the_others_tell_that_nobody_served() {
    let label = label(Level::Raid0, 2, false);
    let mut world = World::new(&label);
    world.meanwhile = Some(|disks| disks[1].label_mut().epoch += 1);
    let refused = world.open(PLAIN).unwrap_err();
    assert!(matches!(refused.error, OpenError::Assemble(_)), "{refused:?}");
    let changed =
        OpenError::LabelChanged { place: 1, generation: label.generation, epoch: label.epoch + 1 };
    assert_eq!(refused.notes, [Note::LeftOut(MemberIndex(1), changed)]);
    // Where nobody is kept from writing, those that stayed as they were tell nothing.
    let mut world = World::new(&label);
    world.disks[0].has_reservations = false;
    world.meanwhile = Some(|disks| disks[1].label_mut().epoch += 1);
    let error = world.refusal(PLAIN);
    assert_eq!(error, OpenError::Changed { name: "tank".into(), places: vec![1] });
}

#[test]
fn members_without_reservations_and_members_that_do_not_fit_are_told_of() {
    let mut world = World::of(true);
    world.disks[0].has_reservations = false;
    world.disks[3].info.capacity = 4096;
    let opened = world.open(PLAIN).unwrap();
    assert_eq!(opened.places, [Some(0), Some(1), Some(2), None]);
    assert_eq!(opened.unused, [3], "it was only visited");
    let needed = label(Level::Raid5, 4, true).regions.data.end();
    let unfit = Unfit { what: "its capacity in bytes", value: 4096, limit: needed };
    let left_out = Note::LeftOut(MemberIndex(3), OpenError::Unfit(3, unfit));
    assert_eq!(opened.notes, [left_out, Note::NotFenced(0)]);
}

#[test]
fn devices_that_were_members_and_liars_are_told_of() {
    let mut world = World::of(false);
    for at in [0, 1, 3] {
        world.disks[at].label_mut().members[2].state = MemberState::Faulty;
        world.disks[at].label_mut().epoch += 1;
    }
    let opened = world.open(PLAIN).unwrap();
    assert_eq!(opened.notes, [Note::NotCurrent(2, MemberIndex(2))]);
    assert_eq!((opened.places[2], opened.unused), (None, vec![2]));

    let mut world = World::of(true);
    world.disks[1].label_mut().generation += 1 << 40;
    let opened = world.open(PLAIN).unwrap();
    let is_liar = matches!(opened.notes[..], [Note::Liar { place: 1, member: MemberIndex(1), .. }]);
    assert!(is_liar, "{:?}", opened.notes);
    assert_eq!((opened.liars, opened.unused), (vec![(MemberIndex(1), 1)], vec![1]));
    assert!(!world.taken_over().contains(&1));
}

#[test]
fn a_device_that_was_replaced_is_told_of_as_that_also_where_its_successor_is_not_there() {
    for is_there in [false, true] {
        let mut world = World::of(true);
        let old = world.disks[2].clone();
        world.labels(|label| {
            label.members[2].uuid = [9; 16];
            label.epoch += 1;
        });
        match is_there {
            true => world.disks.push(old),
            false => world.disks[2] = old,
        }
        let opened = world.open(PLAIN).unwrap();
        let (place, member) = (if is_there { 4 } else { 2 }, MemberIndex(2));
        assert_eq!(opened.notes, [Note::Replaced { place, member, is_served: is_there }]);
        assert_eq!(opened.places[2], is_there.then_some(2));
    }
}

#[test]
fn where_all_are_wanted_an_array_is_not_opened_with_fewer_members_than_took_part_last() {
    let all = Options { wants_all: true, ..PLAIN };
    let fewer = |members: &[u8]| OpenError::Fewer {
        name: "tank".into(),
        members: members.iter().copied().map(MemberIndex).collect(),
    };
    for with_log in [true, false] {
        assert!(World::of(with_log).open(all).is_ok());
        // Away, too small, and without sessions.
        for lacks in 0..3 {
            let mut world = World::of(with_log);
            match lacks {
                0 => world.disks[1].fails = Some((When::Visit, ErrorKind::Unreachable)),
                1 => world.disks[1].info.capacity = 4096,
                _ => world.disks[1].fails = Some((When::TakeOver, ErrorKind::Unreachable)),
            }
            let left = world.clone().refusal(all);
            assert_eq!(left, fewer(&[1]), "{lacks}");
            assert!(world.clone().open(Options { force: true, ..all }).is_ok());
            assert!(world.clone().open(Options { read_only: true, ..all }).is_ok());
            assert!(world.open(PLAIN).is_ok(), "{lacks}");
        }
        // One that was set aside before is not wanted.
        let mut world = World::of(with_log);
        for at in [0, 1, 3] {
            world.disks[at].label_mut().members[2].state = MemberState::Faulty;
            world.disks[at].label_mut().epoch += 1;
        }
        assert!(world.clone().open(all).is_ok());
        world.disks.remove(2);
        assert!(world.open(all).is_ok());
    }
    let mut world = World::of(true);
    world.disks[3].fails = Some((When::Visit, ErrorKind::Unreachable));
    assert_eq!(world.refusal(all), fewer(&[3]));
    assert_eq!((world.taken_over(), world.fenced()), (vec![], vec![]), "nothing is touched");
}

#[test]
fn labels_that_do_not_stand_where_they_were_given_are_none() {
    let placed = Options { is_placed: true, ..PLAIN };
    let mut world = World::of(true);
    world.disks[3].label_mut().index = MemberIndex(1);
    assert!(World { disks: world.disks.clone(), ..World::of(true) }.open(PLAIN).is_err(), "twice");
    let opened = world.open(placed).unwrap();
    assert_eq!(opened.places, [Some(0), Some(1), Some(2), None]);
    assert_eq!(opened.liars, [(MemberIndex(3), 3)]);
    let (says, name, array) = (MemberIndex(1), "tank".to_string(), [9; 16]);
    let note = Note::Misplaced { place: 3, member: MemberIndex(3), says, name, array };
    assert_eq!(opened.notes, [note]);

    let mut world = World::of(true);
    (world.disks[3].label_mut().array_uuid, world.disks[3].label_mut().generation) = ([8; 16], 1);
    let opened = world.open(placed).unwrap();
    assert_eq!(opened.notes, [Note::NeverOpened { place: 3, name: "tank".into() }]);
    assert_eq!((opened.places[3], opened.liars.len()), (None, 0));
}

#[test]
fn members_whose_written_bits_are_far_ahead_are_left_out_and_given_back() {
    let mut world = World::of(false);
    world.disks[2].images = 1 << 50;
    let opened = world.open(PLAIN).unwrap();
    assert_eq!(opened.places, [Some(0), Some(1), None, Some(3)]);
    let member = MemberIndex(2);
    assert_eq!(opened.notes, [Note::Forger { place: 2, member }]);
    assert_eq!((opened.liars, world.left()), (vec![(member, 2)], vec![2]));
    assert!(!world.disks[2].is_fenced);
    assert_eq!(opened.machine.member_state(member), MemberState::Missing);

    // What it holds would be computed from parity that may be wrong.
    let mut world = World::held_by(&dead(), false);
    world.disks[2].images = 1 << 50;
    let forged = OpenError::Forged { name: "tank".into(), place: 2 };
    assert_eq!(world.refusal(PLAIN), forged);
    let mut world = World::held_by(&dead(), false);
    world.disks[2].images = 1 << 50;
    assert!(world.open(Options { force: true, ..PLAIN }).is_ok());

    let mut mirror = World::new(&label(Level::Raid1, 2, false));
    mirror.disks[0].images = 1 << 50;
    let disagree = OpenError::WrittenBitsDisagree { first: 0, second: 1 };
    assert_eq!(mirror.refusal(PLAIN), disagree);
}

#[test]
fn written_bits_that_are_lost_everywhere_are_an_error() {
    let mut world = World::of(false);
    world.disks.iter_mut().for_each(|disk| disk.images = 0);
    assert_eq!(world.refusal(PLAIN), OpenError::WrittenBits { page: 0 });
    let mut world = World::of(false);
    world.disks.iter_mut().for_each(|disk| disk.images = 0);
    world.disks[1].fails = Some((When::Read, ErrorKind::Medium));
    assert_eq!(world.refusal(PLAIN), failed(ErrorKind::Medium));
    // One image is enough.
    let mut world = World::of(false);
    world.disks[..3].iter_mut().for_each(|disk| disk.images = 0);
    assert!(world.open(PLAIN).is_ok());
}

#[test]
fn a_survey_changes_nothing_and_ends_its_visits() {
    let mut world = World::held_by(&another_machine(), true);
    world.disks[1].fails = Some((When::Visit, ErrorKind::Unreachable));
    let steps = Steps::survey(world.names());
    let survey = world.run(steps).unwrap();
    assert_eq!(survey.places, [Some(0), None, Some(2), Some(3)]);
    assert!(survey.assembly.unclean && !world.has_lock);
    assert_eq!(survey.notes, [Note::Failed(ErrorKind::Unreachable.into())]);
    assert!(world.disks.iter().all(|disk| !disk.is_visited));
    let only_looks = |ask: &access::Ask| {
        matches!(
            ask,
            access::Ask::Visit
                | access::Ask::Label
                | access::Ask::Checkpoint(_)
                | access::Ask::Close
        )
    };
    assert!(world.asked.iter().all(|(_, ask)| only_looks(ask)), "{:?}", world.asked);
}
