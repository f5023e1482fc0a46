//! A member that was put back to an older image of itself, told by its checkpoint.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, missing_docs, reason = "a test")]

use crate::support::{UUID, World, open};
use netraid_raid::{
    checkpoint::Checkpoint,
    geometry::Level,
    label::Label,
    logged::{Action, Event},
    member::{MemberIndex, MemberState},
    regions::{CHECKPOINT_OFFSETS, LABEL_OFFSETS},
};

const PAGE: usize = 4096;
/// Whose image it is, where an older one is of a member that was alone.
const OLD: usize = 1;

/// The number of a member's newest checkpoint.
fn checkpoint(disk: &[u8]) -> u64 {
    let read = |slot: usize| {
        let at = CHECKPOINT_OFFSETS[slot] as usize;
        Some(Checkpoint::decode(&disk[at..at + PAGE], UUID, slot).ok()?.counter)
    };
    (0..2).filter_map(read).max().unwrap()
}

/// Goes on until so many members have the next checkpoint; which ones those are.
fn reach_next(world: &mut World, content: u8, count: usize) -> Vec<usize> {
    let next = world.disks.iter().map(|disk| checkpoint(disk)).max().unwrap() + 1;
    world.write(usize::from(content), 1, content);
    for _ in 0..4 {
        world.machine.handle_idle();
        while world.step() {
            let disks = world.disks.iter().enumerate();
            let has_it = disks.filter(|(_, disk)| checkpoint(disk) == next);
            let have_it: Vec<usize> = has_it.map(|(member, _)| member).collect();
            if have_it.len() == count {
                return have_it;
            }
        }
    }
    panic!("the next checkpoint does not come");
}

/// A checkpoint that one member alone has was cut short, and the one before it counts. The image lacked
/// that one by one alone, which is what a member may have that was not reached yet.
#[test]
fn an_image_from_before_a_checkpoint_is_old_where_the_next_one_was_begun() {
    for (level, members) in
        [(Level::Raid1, 3), (Level::Raid5, 3), (Level::Raid5, 5), (Level::Raid6, 5)]
    {
        let mut world = World::new(level, members);
        let images = world.disks.clone();
        reach_next(&mut world, 1, members);
        let begun = reach_next(&mut world, 2, 1);
        world.under_way.clear();
        let old = (0..members).find(|member| !begun.contains(member)).unwrap();
        world.disks[old].clone_from(&images[old]);
        world.reopen();
        let old = MemberIndex(u8::try_from(old).unwrap());
        assert_eq!(world.machine.member_state(old), MemberState::InSync, "{level:?}");
        assert!(world.events.contains(&Event::CaughtUp(old)), "{level:?}: {:?}", world.events);
        world.read_all();
        world.assert_clean();
    }
}

/// The newest label of a member.
fn label(world: &World, member: usize) -> Label {
    let read = |copy: usize| {
        let at = LABEL_OFFSETS[copy] as usize;
        Label::decode(&world.disks[member][at..at + PAGE], copy).ok()
    };
    (0..2).filter_map(read).max_by_key(|label| (label.generation, label.epoch)).unwrap()
}

/// Three mirrors, of which one has an image of itself from when it carried the array alone.
fn with_an_image_of_who_was_alone() -> World {
    let mut world = World::new(Level::Raid1, 3);
    world.away.extend([0, 2]);
    world.reopen();
    world.write(1, 1, 100);
    assert_eq!(label(&world, OLD).in_sync().len(), 1);
    let image = world.disks[OLD].clone();
    world.away.clear();
    world.reopen();
    world.write(2, 1, 101);
    world.idle();
    assert_eq!(label(&world, OLD).in_sync().len(), 3);
    world.disks[OLD] = image;
    world
}

/// The member leaves while the array is being opened, and comes back later.
fn opens_although_it_leaves(mut world: World) {
    world.machine = open(&world.disks, &world.away);
    world.events.clear();
    world.away.insert(OLD);
    world.settle();
    assert!(world.events.contains(&Event::Opened), "{:?}", world.machine.failure());
    world.read_all();
    world.away.clear();
    world.reopen();
    assert!(world.events.contains(&Event::CaughtUp(MemberIndex(1))), "{:?}", world.events);
    world.read_all();
    world.assert_clean();
}

/// By its own label, the image could carry the array alone. The opening failed by that when it left before it was told
/// from a member that is up to date.
#[test]
fn an_older_image_that_leaves_while_the_array_is_opened_takes_nothing_with_it() {
    opens_although_it_leaves(with_an_image_of_who_was_alone());
}

/// The same of one that had come back, and died with the engine before it had heard of that.
#[test]
fn an_older_image_that_had_come_back_leaves_and_takes_nothing_with_it() {
    let mut world = with_an_image_of_who_was_alone();
    world.machine = open(&world.disks, &world.away);
    let state = |world: &World| label(world, 0).state(MemberIndex(1));
    let is_held = |action: &Action| matches!(action, Action::Write { member: MemberIndex(1), offset, .. } if LABEL_OFFSETS.contains(offset));
    while state(&world) != MemberState::CatchingUp {
        world.poll();
        let at = world.under_way.iter().position(|action| !is_held(action)).unwrap();
        let action = world.under_way.remove(at);
        let (io, result) = world.effect(action);
        world.machine.handle_io_done(io, result);
    }
    world.under_way.clear();
    assert_eq!(label(&world, OLD).in_sync().len(), 1, "it was told");
    opens_although_it_leaves(world);
}
