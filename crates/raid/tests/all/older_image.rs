//! A member that was put back to an older image of itself, told by its checkpoint.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, missing_docs, reason = "a test")]

use crate::support::{UUID, World};
use netraid_raid::{
    checkpoint::Checkpoint,
    geometry::Level,
    logged::Event,
    member::{MemberIndex, MemberState},
    regions::CHECKPOINT_OFFSETS,
};

const PAGE: usize = 4096;

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
