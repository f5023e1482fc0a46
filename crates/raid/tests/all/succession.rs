//! A member is copied to another device, by the machine: which writes go to which of the two, when the member leaves, and what
//! the device lacks then.

use netraid_block::{Op, SgList};
use netraid_raid::{
    geometry::Level,
    logged::{Action, Event, MemberCaps, NewDevice, To},
    member::{MemberIndex, MemberState},
};

use crate::support::{ROWS, World};

const MEMBER: MemberIndex = MemberIndex(1);
const OTHER: MemberIndex = MemberIndex(2);
const STRIPES: usize = 8;
const CAPS: MemberCaps = MemberCaps { volatile_cache: true, can_discard: true };
const NEW: NewDevice = NewDevice { uuid: [9; 16], caps: CAPS };

/// An array that copies a member.
struct Copying {
    world: World,
    /// What the device has that it is copied to.
    new: Vec<u8>,
}

impl Copying {
    fn begin() -> Self {
        let mut world = World::empty(Level::Raid5, 4);
        let per_stripe = usize::from(world.geometry.data_columns()) * ROWS as usize;
        for stripe in 0..STRIPES {
            world.write(stripe * per_stripe, per_stripe, u8::try_from(stripe + 1).unwrap());
        }
        world.idle();
        world.events.clear();
        let new = vec![0xee; world.disks[1].len()];
        world.machine.handle_successor(MEMBER, NEW).unwrap();
        Self { world, new }
    }

    fn step(&mut self) -> bool {
        let world = &mut self.world;
        world.poll();
        let Some(action) = world.under_way.pop() else { return false };
        if let Action::Write { io, member: MEMBER, offset, data, to, .. } = &action {
            let at = usize::try_from(*offset).unwrap();
            if *to != To::Member {
                data.copy_to(&mut self.new[at..at + data.len()]);
            }
            if matches!(to, To::Successor(_)) {
                world.machine.handle_io_done(*io, Ok(SgList::new()));
                return true;
            }
        }
        let (io, result) = world.effect(action);
        world.machine.handle_io_done(io, result);
        true
    }

    fn settle(&mut self) {
        while self.step() {}
    }

    /// The device takes the place, but gets no stripe yet; whether it lacks everything.
    fn take(&mut self) -> bool {
        assert_eq!(self.world.machine.member_state(MEMBER), MemberState::Faulty);
        self.world.disks[1].clone_from(&self.new);
        self.world.machine.handle_catch_up_allowance(Some(0));
        self.world.machine.handle_replace(MEMBER, NEW);
        self.world.settle();
        self.world.machine.catch_up(MEMBER).is_none_or(|it| it.lacks_all)
    }

    /// It catches up, and is needed.
    fn check(mut self) {
        self.world.machine.handle_catch_up_allowance(None);
        self.world.settle();
        assert_eq!(self.world.machine.member_state(MEMBER), MemberState::InSync);
        self.world.away.insert(0);
        self.world.reopen();
        self.world.read_all();
    }
}

#[test]
fn a_device_that_has_a_whole_copy_lacks_only_what_changed_since_the_last_checkpoint() {
    let mut copying = Copying::begin();
    // Users write while it is copied.
    for block in 0..40 {
        for _ in 0..30 {
            copying.step();
        }
        copying.world.begin(Op::Write, block * 2, 1, 100);
        copying.world.model[block * 2] = 100;
    }
    copying.settle();
    assert!(!copying.take(), "it has a copy of everything");
    // What is not written again came by the copy.
    copying.check();
}

#[test]
fn a_device_without_a_whole_copy_lacks_everything_as_does_one_of_another_identity() {
    let mut copying = Copying::begin();
    copying.world.machine.handle_catch_up_allowance(Some(2));
    copying.settle();
    assert_eq!(copying.world.machine.member_state(MEMBER), MemberState::InSync, "it is copied");
    copying.world.machine.handle_gone(MEMBER, "lost");
    copying.settle();
    assert!(copying.take());
    copying.check();

    let mut copying = Copying::begin();
    copying.settle();
    copying.world.machine.handle_successor_gone(MEMBER);
    assert!(copying.take(), "what it has counts for nothing");
    copying.check();
}

#[test]
fn a_member_is_not_excluded_for_its_copy_while_another_one_is_away() {
    let mut copying = Copying::begin();
    copying.world.machine.handle_gone(OTHER, "lost");
    copying.settle();
    assert_eq!(copying.world.machine.member_state(MEMBER), MemberState::InSync);
    let waits = |event: &Event| matches!(event, Event::Notice(text) if text.contains("is whole"));
    assert_eq!(copying.world.events.iter().filter(|event| waits(event)).count(), 1);
    copying.world.disks[2].fill(0);
    copying.world.machine.handle_replace(OTHER, NewDevice { uuid: [8; 16], caps: CAPS });
    copying.settle();
    assert_eq!(copying.world.machine.member_state(OTHER), MemberState::InSync);
    assert!(!copying.take(), "it got what was written meanwhile");
    copying.check();
}

#[test]
fn a_row_that_nobody_has_is_told_and_does_not_end_the_copy() {
    let mut copying = Copying::begin();
    // Two columns of a row.
    let place = copying.world.regions.data.offset / 4096;
    copying.world.bad.extend([(1, place), (2, place)]);
    copying.settle();
    let lost = copying.world.events.iter().filter(|event| {
        matches!(event, Event::Lost { member: MEMBER, offset, len: 4096 } if *offset == place * 4096)
    });
    assert_eq!(lost.count(), 1, "{:?}", copying.world.events);
    assert_eq!(copying.world.machine.member_state(MEMBER), MemberState::Faulty, "it goes on");
}
