//! A member of an array with a log that has no space left: users' writes that need new space are
//! refused, and nothing else happens, as long as that is possible.
#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks at what it is about")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation, missing_docs)]

use crate::support::{LEVELS, ROWS, World};
use netraid_block::{ErrorKind, Op};
use netraid_raid::{
    geometry::Level,
    member::{ArrayState, MemberIndex, MemberState},
};

impl World {
    fn stripe_blocks(&self) -> usize {
        usize::from(self.geometry.data_columns()) * ROWS as usize
    }

    /// A whole stripe, in one request.
    fn write_stripe(&mut self, stripe: usize, content: u8) -> Result<(), ErrorKind> {
        let count = self.stripe_blocks();
        let id = self.begin(Op::Write, stripe * count, count, content);
        self.finish(id).map_err(|error| error.kind())?;
        self.model[stripe * count..(stripe + 1) * count].fill(content);
        Ok(())
    }

    /// The first row of a stripe, block by block: it goes home to a free stripe, on all members.
    fn write_row(&mut self, stripe: usize, content: u8) {
        let first = stripe * self.stripe_blocks();
        for column in 0..usize::from(self.geometry.data_columns()) {
            self.write(first + column * ROWS as usize, 1, content);
        }
    }
}

#[test]
fn a_whole_stripe_that_a_member_has_no_space_for_is_refused_and_that_is_all() {
    for (level, members) in LEVELS {
        for full in 0..members {
            let mut world = World::empty(level, members);
            for stripe in 0..4 {
                world.write_stripe(stripe, stripe as u8 + 1).unwrap();
            }
            world.idle();
            world.full = Some((full, 0));
            for _ in 0..3 {
                assert_eq!(world.write_stripe(5, 9), Err(ErrorKind::NoSpace), "{level:?}");
            }
            // What is there can be written: in the log, and in place; also as a whole.
            world.write(2, 1, 77);
            world.idle();
            for stripe in 0..4 {
                world.write_stripe(stripe, 50 + stripe as u8).unwrap();
            }
            world.read_all();
            world.idle();
            world.read_all();
            // Space that is given back can be used again.
            let count = world.stripe_blocks();
            let id = world.begin(Op::Discard, 0, count, 0);
            world.finish(id).unwrap();
            world.model[..count].fill(0);
            world.idle();
            world.write_stripe(6, 10).unwrap();
            let member = MemberIndex(full as u8);
            assert_eq!(world.machine.member_state(member), MemberState::InSync);
            assert_eq!(world.machine.state(), ArrayState::Optimal);
            world.read_all();
            world.reopen();
            world.read_all();
            assert_eq!(world.machine.state(), ArrayState::Optimal);
        }
    }
}

#[test]
fn a_member_without_space_for_what_was_acknowledged_is_set_aside() {
    for (level, members) in LEVELS {
        let mut world = World::empty(level, members);
        world.write_stripe(0, 1).unwrap();
        world.idle();
        world.full = Some((1, 0));
        world.write_row(3, 5);
        world.idle();
        assert_eq!(world.machine.member_state(MemberIndex(1)), MemberState::Faulty, "{level:?}");
        assert_eq!(world.machine.state(), ArrayState::Degraded);
        world.read_all();
        // The labels tell of it: what it lacks is not read when the array is opened again.
        world.full = None;
        world.reopen();
        world.read_all();
    }
}

#[test]
fn an_array_that_has_no_space_anywhere_for_what_was_acknowledged_keeps_it_in_the_log() {
    let mut world = World::empty(Level::Raid5, 4);
    world.write_stripe(0, 1).unwrap();
    world.idle();
    world.away.insert(0);
    world.machine.handle_gone(MemberIndex(0), "gone");
    world.settle();
    world.full = Some((1, 0));
    world.write_row(3, 5);
    world.idle();
    assert_eq!(world.machine.state(), ArrayState::Failed);
    let failure = world.machine.failure().unwrap().to_string();
    assert!(failure.contains("member 1: no space"), "{failure}");
    world.full = None;
    world.reopen();
    world.read_all();
}
