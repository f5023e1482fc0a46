//! What reads cost while members are away.

#![allow(missing_docs, reason = "a test")]
#![allow(clippy::unwrap_used, reason = "a test")]

use crate::support::{CHUNK, ROWS, World};
use netraid_block::{ErrorKind, Op};
use netraid_raid::{
    geometry::Level,
    logged::{Action, MemberCaps, NewDevice},
    member::{MemberIndex, MemberState},
};

const STRIPES: usize = 8;

/// Bytes of home that each member was asked for while the first stripes were read, a piece of so
/// many blocks at a time.
fn bytes_read(world: &mut World, piece: usize) -> Vec<u64> {
    let data = world.regions.data.offset;
    let per_stripe = usize::from(world.geometry.data_columns()) * ROWS as usize;
    let mut read = vec![0; usize::from(world.geometry.members())];
    for first in (0..STRIPES * per_stripe).step_by(piece) {
        let id = world.begin(Op::Read, first, piece, 0);
        world.poll();
        while !world.under_way.is_empty() {
            let action = world.under_way.remove(0);
            if let Action::Read { member, offset, len, .. } = &action
                && *offset >= data
            {
                read[member.as_usize()] += u64::from(*len);
            }
            let (io, result) = world.effect(action);
            world.machine.handle_io_done(io, result);
            world.poll();
        }
        let found = world.finish(id).unwrap().to_contiguous();
        let expected = u8::try_from(first / per_stripe + 1).unwrap();
        assert!(found.iter().all(|byte| *byte == expected), "blocks from {first}");
    }
    read
}

#[test]
fn no_byte_is_read_twice_for_a_stripe_that_is_read_whole_while_members_are_away() {
    for (level, members, lost) in
        [(Level::Raid5, 4, 1), (Level::Raid5, 8, 1), (Level::Raid6, 6, 2), (Level::Raid10, 4, 1)]
    {
        let mut world = World::empty(level, members);
        let per_stripe = usize::from(world.geometry.data_columns()) * ROWS as usize;
        for stripe in 0..STRIPES {
            let content = u8::try_from(stripe + 1).unwrap();
            world.write(stripe * per_stripe, per_stripe, content);
        }
        world.idle();
        world.away.extend(0..lost);
        world.reopen();
        world.idle();
        let most = STRIPES as u64 * u64::from(CHUNK);
        let whole = bytes_read(&mut world, per_stripe);
        assert!(whole.iter().all(|read| *read <= most), "{level:?}: {whole:?}, {most} are stored");
        // A chunk that is away takes one read of each of the others.
        let alone = bytes_read(&mut world, ROWS as usize);
        let all: u64 = alone.iter().sum();
        let columns = u64::from(world.geometry.data_columns());
        let limit = most * columns * (1 + lost as u64);
        assert!(all <= limit, "{level:?}: {alone:?}, {limit} by the chunk");
    }
}

/// Requests in a row that end within stripes, all under way at once. The bytes of home that members were
/// asked for; of the first `failing` reads none succeeds.
fn bytes_read_at_once(world: &mut World, piece: usize, mut failing: usize) -> Vec<u64> {
    let data = world.regions.data.offset;
    let per_stripe = usize::from(world.geometry.data_columns()) * ROWS as usize;
    let blocks = STRIPES * per_stripe;
    let pieces = (0..blocks).step_by(piece).map(|at| (at, piece.min(blocks - at)));
    let requests: Vec<_> =
        pieces.map(|(at, count)| (at, count, world.begin(Op::Read, at, count, 0))).collect();
    let mut read = vec![0; usize::from(world.geometry.members())];
    world.poll();
    while !world.under_way.is_empty() {
        let action = world.under_way.remove(0);
        let mut is_home = false;
        if let Action::Read { member, offset, len, .. } = &action
            && *offset >= data
        {
            read[member.as_usize()] += u64::from(*len);
            is_home = true;
        }
        let (io, mut result) = world.effect(action);
        if is_home && failing > 0 {
            failing -= 1;
            result = Err(ErrorKind::Medium.into());
        }
        world.machine.handle_io_done(io, result);
        world.poll();
    }
    for (at, count, id) in requests {
        let found = world.finish(id).unwrap().to_contiguous();
        for (block, bytes) in found.chunks(found.len() / count).enumerate() {
            let expected = u8::try_from((at + block) / per_stripe + 1).unwrap();
            assert!(bytes.iter().all(|byte| *byte == expected), "block {}", at + block);
        }
    }
    read
}

fn degraded(level: Level, members: usize, lost: usize) -> World {
    let mut world = World::empty(level, members);
    let per_stripe = usize::from(world.geometry.data_columns()) * ROWS as usize;
    for stripe in 0..STRIPES {
        world.write(stripe * per_stripe, per_stripe, u8::try_from(stripe + 1).unwrap());
    }
    world.idle();
    world.away.extend(0..lost);
    world.reopen();
    world.idle();
    world
}

#[test]
fn no_byte_is_read_twice_for_neighbours_that_are_under_way_together_while_members_are_away() {
    for (level, members, lost) in [(Level::Raid5, 4, 1), (Level::Raid5, 8, 1), (Level::Raid6, 6, 2)]
    {
        let mut world = degraded(level, members, lost);
        let columns = usize::from(world.geometry.data_columns());
        let most = STRIPES as u64 * u64::from(CHUNK);
        for piece in [ROWS as usize, (columns - 1) * ROWS as usize] {
            let read = bytes_read_at_once(&mut world, piece, 0);
            assert!(
                read.iter().all(|read| *read <= most),
                "{level:?}: {read:?}, {most} are stored"
            );
        }
    }
}

#[test]
fn who_took_the_bytes_of_a_read_that_failed_reads_for_itself() {
    for failing in [1, 2, 5] {
        let mut world = degraded(Level::Raid5, 4, 1);
        bytes_read_at_once(&mut world, 2 * ROWS as usize, failing);
        assert!(world.machine.failure().is_none());
    }
}

/// A member that is rebuilt gets as many stripes as are allowed and no more, everybody is served meanwhile,
/// and all of it at once when nothing holds it back any more.
#[test]
fn a_rebuild_goes_as_far_as_it_is_allowed() {
    let mut world = World::empty(Level::Raid5, 4);
    let per_stripe = usize::from(world.geometry.data_columns()) * ROWS as usize;
    for stripe in 0..STRIPES {
        world.write(stripe * per_stripe, per_stripe, u8::try_from(stripe + 1).unwrap());
    }
    world.idle();
    let member = MemberIndex(1);
    world.machine.handle_gone(member, "lost");
    world.settle();
    world.disks[1].fill(0);
    world.machine.handle_catch_up_allowance(Some(0));
    let caps = MemberCaps { volatile_cache: true, can_discard: true };
    world.machine.handle_replace(member, NewDevice { uuid: [9; 16], caps });
    world.settle();
    let data = usize::try_from(world.regions.data.offset).unwrap();
    let chunk = CHUNK as usize;
    let written = |world: &World| {
        let home = world.disks[1][data..].chunks(chunk);
        home.filter(|chunk| chunk.iter().any(|byte| *byte != 0)).count()
    };
    assert_eq!((written(&world), world.machine.member_state(member)), (0, MemberState::CatchingUp));
    let progress = |world: &World| world.machine.catch_up(member).unwrap();
    let walked = progress(&world).walked;
    assert!(progress(&world).lacks_all);
    assert_eq!((walked.done, walked.total, walked.extras_done), (0, STRIPES as u64, 0));
    assert!(walked.extras > 0, "pages of tables");
    for allowed in 1..=3 {
        world.machine.handle_catch_up_allowance(Some(1));
        world.settle();
        assert_eq!(world.machine.catch_up_allowance(), Some(0));
        // A chunk of the parity of stripes of one byte may be zeros: those do not show.
        let walked = progress(&world).walked;
        assert_eq!((walked.done, walked.total), (allowed as u64, STRIPES as u64));
        assert!(written(&world) <= allowed, "{} chunks, {allowed} allowed", written(&world));
        assert_eq!(world.read(0).unwrap(), 1);
    }
    world.machine.handle_catch_up_allowance(None);
    world.settle();
    assert_eq!(world.machine.member_state(member), MemberState::InSync);
    assert_eq!(world.machine.catch_up(member), None);
    world.away.insert(0);
    world.reopen();
    for stripe in 0..STRIPES {
        assert_eq!(usize::from(world.read(stripe * per_stripe).unwrap()), stripe + 1);
    }
}
