//! Rows of which more is lost than their redundancy: they stay bad alone. The array serves
//! everything else, takes writes to them, opens and closes, and gives members back what it can.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, missing_docs)]

use crate::support::{LEVELS, ROWS, World};
use netraid_raid::{
    geometry::Level,
    label::{Closure, Label},
    logged::{Event, FoundMember, MemberCaps},
    member::{MemberIndex, MemberState},
    pages::PAIR_LEN,
};

/// Spoils block 0 of the volume and all check blocks of its row.
fn lose_row(world: &mut World) -> Vec<usize> {
    let (member, offset, stripe, ..) = world.home(0);
    world.flip(member, offset);
    for column in world.geometry.data_columns()..world.geometry.members() {
        let member = world.geometry.member_of(stripe, column).as_usize();
        world.flip(member, offset);
    }
    vec![0]
}

fn assert_only_these_are_lost(world: &mut World, lost: &[usize]) {
    for block in 0..world.model.len() {
        let read = world.read(block);
        if lost.contains(&block) {
            assert!(read.is_err(), "block {block}");
        } else {
            assert_eq!(read.unwrap(), world.model[block], "block {block}");
        }
    }
}

fn close(world: &mut World) {
    world.events.clear();
    world.machine.handle_close();
    world.settle();
    assert!(world.events.contains(&Event::Closed));
    assert_eq!(world.machine.failure(), None);
}

#[test]
fn a_row_beyond_redundancy_takes_writes_and_stays_bad_alone() {
    for (level, members) in [(Level::Raid5, 5), (Level::Raid6, 6)] {
        let mut world = World::new(level, members);
        let lost = lose_row(&mut world);
        // The row's last data column, which is right.
        let other = (usize::from(world.geometry.data_columns()) - 1) * ROWS as usize;
        for content in 201..240 {
            world.write(other, 1, content);
            world.idle();
            // More than the log holds, elsewhere.
            world.write(world.model.len() - 2, 2, content);
        }
        world.idle();
        assert_eq!(world.machine.failure(), None);
        assert_eq!(world.machine.usage().dirty_blocks, 1);
        assert_only_these_are_lost(&mut world, &lost);
        world.reopen();
        assert_only_these_are_lost(&mut world, &lost);
        close(&mut world);
        assert_eq!(world.machine.label().closure, Closure::Open, "the log is needed");
        world.reopen();
        assert_only_these_are_lost(&mut world, &lost);
        // Who writes what was lost sets it right.
        for block in lost {
            world.write(block, 1, 250);
        }
        world.idle();
        assert_eq!(world.machine.usage().dirty_blocks, 0);
        world.read_all();
        world.assert_clean();
        close(&mut world);
        assert_eq!(world.machine.label().closure, Closure::Clean);
    }
}

#[test]
fn a_stripe_that_is_written_for_the_most_part_keeps_what_is_lost_in_it_apart() {
    let mut world = World::new(Level::Raid5, 5);
    let lost = lose_row(&mut world);
    let stripe = usize::from(world.geometry.data_columns()) * ROWS as usize;
    for block in (0..stripe).filter(|block| !lost.contains(block)) {
        world.write(block, 1, 222);
    }
    world.idle();
    assert_eq!(world.machine.failure(), None);
    assert_only_these_are_lost(&mut world, &lost);
    world.reopen();
    assert_only_these_are_lost(&mut world, &lost);
    world.write(0, stripe, 233);
    world.idle();
    assert_eq!(world.machine.usage().dirty_blocks, 0);
    world.read_all();
    world.assert_clean();
}

#[test]
fn checksums_that_nobody_has_do_not_stop_rounds() {
    for (level, members) in LEVELS {
        let mut world = World::new(level, members);
        let (page, _) = world.all_sum_holders()[0];
        for holder in world.sum_pages().holders(page).iter() {
            let at = world.sum_pages().offset(page, holder) as usize;
            world.disks[holder.as_usize()][at..at + PAIR_LEN as usize].fill(0);
        }
        world.reopen();
        let lost: Vec<usize> =
            (0..world.model.len()).filter(|block| world.read(*block).is_err()).collect();
        assert!(lost.len() > 1);
        world.write(lost[0], 1, 251);
        world.idle();
        assert_eq!(world.machine.failure(), None);
        assert_only_these_are_lost(&mut world, &lost[1..]);
        world.reopen();
        world.idle();
        assert_only_these_are_lost(&mut world, &lost[1..]);
        world.write(0, world.model.len(), 252);
        world.idle();
        assert_eq!(world.machine.usage().dirty_blocks, 0);
        world.read_all();
        world.assert_clean();
    }
}

/// The newest image of a page of checksums is gone from all of its holders, the one before it is
/// not: what changed between the two is lost, and is not what it was before.
#[test]
fn an_older_image_of_checksums_is_not_taken_for_the_newest() {
    for (level, members) in LEVELS {
        let mut world = World::empty(level, members);
        let stripe = usize::from(world.geometry.data_columns()) * ROWS as usize;
        world.write(0, 1, 9);
        world.write(stripe, stripe, 10);
        world.idle();
        // Rows of the same stripe that are written for the first time, and again.
        world.write(1, 2, 11);
        world.write(0, 1, 12);
        world.idle();
        let (page, _) = world.all_sum_holders()[0];
        for holder in world.sum_pages().holders(page).iter() {
            let (at, _) = world.newest_sums(page, holder);
            world.disks[holder.as_usize()][at as usize..at as usize + 4096].fill(0);
        }
        world.reopen();
        let mut lost = 0;
        for block in 0..world.model.len() {
            match world.read(block) {
                Ok(found) => assert_eq!(found, world.model[block], "block {block}"),
                Err(_) => lost += 1,
            }
        }
        assert_eq!(lost, stripe, "the stripe that changed, and no other");
    }
}

#[test]
fn a_member_catches_up_with_all_that_is_not_lost() {
    let mut world = World::new(Level::Raid5, 5);
    let lost = lose_row(&mut world);
    let (_, _, stripe, column, _) = world.home(1);
    let member = world.geometry.member_of(stripe, column + 3);
    world.away.insert(member.as_usize());
    world.machine.handle_gone(member, "unplugged");
    world.settle();
    for block in 0..world.model.len() {
        if block % 7 == 1 {
            world.write(block, 1, 199);
        }
    }
    world.idle();
    world.away.clear();
    world.events.clear();
    world.machine.handle_return(member, found(&world, member));
    world.settle();
    assert!(world.events.contains(&Event::CaughtUp(member)), "{:?}", world.events);
    assert_eq!(world.machine.member_state(member), MemberState::InSync);
    assert_only_these_are_lost(&mut world, &lost);
    for block in lost {
        world.write(block, 1, 198);
    }
    world.idle();
    world.read_all();
}

fn found(world: &World, member: MemberIndex) -> FoundMember {
    let at = netraid_raid::regions::LABEL_OFFSETS[0] as usize;
    let label = Label::decode(&world.disks[member.as_usize()][at..at + 4096], 0).unwrap();
    let caps = MemberCaps { volatile_cache: true, can_discard: false };
    FoundMember { caps, label, checkpoint: None }
}
