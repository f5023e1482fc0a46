//! Writes of several ranges: a crash at any moment leaves all of them, or none.
#![allow(clippy::cast_possible_truncation, reason = "numbers of small arrays")]

use netraid_block::{Buf, ErrorKind, SgList};
use netraid_raid::{
    geometry::Level,
    logged::{AtomicWrite, RequestId},
    member::MemberIndex,
};

use crate::support::{LEVELS, World};

/// Begins to write one byte to each of these blocks, at once.
fn begin(world: &mut World, blocks: &[usize], content: u8) -> u64 {
    let id = world.next_user;
    world.next_user += 1;
    let range =
        |block: &usize| (*block as u64 * 4096, SgList::from(Buf::copy_from(&[content; 4096])));
    let max = world.machine.atomic_blocks_max();
    let ranges = blocks.iter().map(range).collect();
    let write = AtomicWrite::new(ranges, false, world.machine.capacity(), max).unwrap();
    world.machine.handle_atomic_write(RequestId(id), write);
    id
}

#[test]
fn whatever_moment_an_engine_dies_at_all_ranges_are_new_or_all_are_old() {
    for (level, members) in LEVELS {
        let mut world = World::with_log(level, members, 8, 256);
        let blocks = [0, 1, world.model.len() / 2, world.model.len() - 1];
        assert!(world.machine.atomic_blocks_max() as usize >= blocks.len());
        for block in 0..world.model.len() {
            world.write(block, 1, 1);
        }
        world.idle();
        let media = world.media();
        let mut seen = [0; 2];
        for steps in 0.. {
            world.restore(&media);
            world.reopen();
            // Small writes beside it, so that it shares batches with them, and waits for others.
            let others: Vec<u64> =
                (3..6).map(|block| world.begin(netraid_block::Op::Write, block, 1, 7)).collect();
            let id = begin(&mut world, &blocks, 2);
            let is_short = (0..steps).all(|_| world.step());
            let is_done = world.completed.iter().any(|(one, _)| *one == id);
            world.completed.clear();
            world.under_way.clear();
            drop(others);
            world.reopen();
            let read: Vec<u8> = blocks.iter().map(|block| world.read(*block).unwrap()).collect();
            assert!(read.iter().all(|one| *one == read[0]), "{level:?}, {steps} steps: {read:?}");
            assert!(!is_done || read[0] == 2, "{level:?}: it was acknowledged");
            seen[usize::from(read[0] == 2)] += 1;
            if !is_short {
                break;
            }
        }
        assert!(seen.iter().all(|count| *count > 0), "{level:?}: {seen:?}");
    }
}

#[test]
fn as_many_blocks_as_may_be_are_written_at_once_and_come_home() {
    for log_blocks in [64, 256, 8192] {
        let mut world = World::with_log(Level::Raid5, 4, 40, log_blocks);
        let most = world.machine.atomic_blocks_max();
        let all: usize = world.model.len();
        assert_eq!(most, (log_blocks / 32).min(128) as u32);
        for turn in 0..20 {
            let blocks: Vec<usize> = (0..most as usize).map(|at| (at * 3 + turn) % all).collect();
            let content = turn as u8 + 1;
            let id = begin(&mut world, &blocks, content);
            world.finish(id).unwrap();
            blocks.iter().for_each(|block| world.model[*block] = content);
        }
        world.read_all();
        world.idle();
        world.reopen();
        world.read_all();
        world.assert_clean();
    }
}

#[test]
fn without_space_a_write_of_blocks_that_wait_already_is_taken_whatever_lies_between_them() {
    let mut world = World::empty(Level::Raid5, 4);
    world.away.insert(0);
    world.machine.handle_gone(MemberIndex(0), "gone");
    world.settle();
    world.full.insert(1, 0);
    let first = 3 * world.stripe_blocks();
    let (one, other) = (first, first + 5);
    world.write(one, 1, 5);
    world.write(other, 1, 6);
    world.idle();
    assert_eq!(world.machine.shortage().unwrap().blocks, 2);
    let id = begin(&mut world, &[one, other], 9);
    world.finish(id).unwrap();
    world.model[one] = 9;
    world.model[other] = 9;
    // A block that does not wait needs space of its own.
    let id = begin(&mut world, &[one, first + 1], 10);
    let error = world.finish(id).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    world.read_all();
}
