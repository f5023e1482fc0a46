//! A member of an array with a log that has no space left: users' writes that need new space are
//! refused, and nothing else happens, as long as that is possible.
#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks at what it is about")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation, missing_docs)]

use crate::support::{LEVELS, ROWS, World};
use netraid_block::{ErrorKind, Op};
use netraid_raid::{
    geometry::Level,
    logged::Event,
    member::{ArrayState, MemberIndex, MemberState},
};

impl World {
    pub(crate) fn stripe_blocks(&self) -> usize {
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
            world.full.insert(full, 0);
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
        world.full.insert(1, 0);
        world.write_row(3, 5);
        world.idle();
        assert_eq!(world.machine.member_state(MemberIndex(1)), MemberState::Faulty, "{level:?}");
        assert_eq!(world.machine.state(), ArrayState::Degraded);
        world.read_all();
        // The labels tell of it: what it lacks is not read when the array is opened again.
        world.full.clear();
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
    world.full.insert(1, 0);
    world.write_row(3, 5);
    world.idle();
    assert_eq!(world.machine.state(), ArrayState::Degraded);
    let shortage = world.machine.shortage().unwrap();
    assert_eq!(shortage.members.iter().collect::<Vec<_>>(), [MemberIndex(1)]);
    assert_eq!(shortage.blocks, u64::from(world.geometry.data_columns()));
    world.read_all();
    world.reopen();
    world.read_all();
    world.full.clear();
    world.idle();
    assert_eq!(world.machine.shortage(), None);
    world.read_all();
}

/// Whether the array says that a member lacks space.
fn tells_of_space(events: &[Event]) -> bool {
    let mut notices = events.iter().filter_map(|event| match event {
        Event::Notice(text) => Some(text),
        _ => None,
    });
    notices.any(|text| text.contains("no space left on members"))
}

#[test]
fn more_members_without_space_than_the_level_bears_stop_writes_that_need_it_and_nothing_else() {
    for (level, members) in LEVELS {
        let mut world = World::empty(level, members);
        for stripe in 0..4 {
            world.write_stripe(stripe, stripe as u8 + 1).unwrap();
        }
        world.idle();
        world.full.extend((0..members).map(|member| (member, 0)));
        // Small writes to where nothing is, until the log holds no more of them.
        let count = world.stripe_blocks();
        let mut refused = 0;
        for at in 0..200 {
            let block = 4 * count + at % (4 * count);
            let id = world.begin(Op::Write, block, 1, 1 + at as u8);
            match world.finish(id) {
                Ok(_) => world.model[block] = 1 + at as u8,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{level:?}");
                    refused += 1;
                }
            }
            if at % 7 == 0 {
                world.machine.handle_idle();
            }
        }
        world.idle();
        assert!(refused > 0, "{level:?}");
        assert!(tells_of_space(&world.events), "{level:?}: {:?}", world.events);
        assert_eq!(world.machine.state(), ArrayState::Optimal, "{level:?}: nobody is set aside");
        let shortage = world.machine.shortage().unwrap();
        assert!(shortage.blocks > 0 && !shortage.members.is_empty(), "{shortage:?}");
        world.read_all();
        // It opens as it is, again and again.
        for _ in 0..3 {
            world.reopen();
            world.read_all();
        }
        world.idle();
        assert!(world.machine.shortage().is_some(), "{level:?}");
        // What has its place takes writes, and discards make place.
        let id = world.begin(Op::Write, 1, 1, 200);
        world.finish(id).unwrap();
        world.model[1] = 200;
        for stripe in 1..4 {
            let id = world.begin(Op::Discard, stripe * count, count, 0);
            world.finish(id).unwrap();
            world.model[stripe * count..(stripe + 1) * count].fill(0);
        }
        world.read_all();
        world.idle();
        world.read_all();
        for stripe in 4..8 {
            let id = world.begin(Op::Discard, stripe * count, count, 0);
            world.finish(id).unwrap();
            world.model[stripe * count..(stripe + 1) * count].fill(0);
        }
        world.idle();
        assert_eq!(world.machine.shortage(), None, "{level:?}");
        world.write_row(5, 44);
        world.idle();
        world.read_all();
        world.full.clear();
        world.assert_clean();
        assert_eq!(world.machine.state(), ArrayState::Optimal, "{level:?}");
    }
}

/// One discard of many stripes needs more room in the log than there is until its first part has given space back.
#[test]
fn a_large_discard_makes_its_own_room_where_members_lack_space() {
    for (level, members) in LEVELS {
        let mut world = World::with_log(level, members, 120, 64);
        let count = world.stripe_blocks();
        for stripe in 0..100 {
            world.write(stripe * count, count, stripe as u8 + 1);
        }
        world.idle();
        world.full.extend((0..members).map(|member| (member, 0)));
        let mut refused = 0;
        for at in 0..100 {
            let block = 100 * count + at % (20 * count);
            let id = world.begin(Op::Write, block, 1, 1 + at as u8);
            match world.finish(id) {
                Ok(_) => world.model[block] = 1 + at as u8,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{level:?}");
                    refused += 1;
                }
            }
        }
        world.idle();
        assert!(refused > 0 && world.machine.shortage().is_some(), "{level:?}");
        // The ends are no whole stripes: what is there stays with a discard, and is zeros with zeroes.
        let (first, blocks) = (1, 100 * count - 2);
        for (op, zeros) in
            [(Op::Discard, count..99 * count), (Op::WriteZeroes, first..first + blocks)]
        {
            let id = world.begin(op, first, blocks, 0);
            world.finish(id).unwrap();
            world.model[zeros].fill(0);
        }
        world.read_all();
        world.idle();
        assert_eq!(world.machine.shortage(), None, "{level:?}");
        world.read_all();
        world.full.clear();
        world.assert_clean();
    }
}

#[test]
fn an_array_that_lacks_space_closes_and_has_everything_when_it_opens() {
    let mut world = World::empty(Level::Raid6, 5);
    world.write_stripe(0, 1).unwrap();
    world.full.extend((0..5).map(|member| (member, 0)));
    world.write_row(3, 5);
    world.idle();
    assert!(world.machine.shortage().is_some());
    world.machine.handle_close();
    world.settle();
    assert!(world.events.contains(&Event::Closed));
    assert_eq!(world.machine.failure(), None);
    world.reopen();
    world.read_all();
    world.full.clear();
    world.idle();
    assert_eq!(world.machine.shortage(), None);
    world.read_all();
}

#[test]
fn an_array_that_lacks_space_is_opened_and_killed_any_number_of_times() {
    for (level, members) in LEVELS {
        let mut world = World::with_log(level, members, 100, 1024);
        let count = world.stripe_blocks();
        world.write_stripe(0, 1).unwrap();
        world.write_stripe(1, 2).unwrap();
        world.idle();
        // More waits for space than each round may log again.
        world.full.extend((0..members).map(|member| (member, 0)));
        for stripe in 10..90 {
            world.write(stripe * count, 1, stripe as u8);
        }
        world.idle();
        let waiting = world.machine.shortage().unwrap().blocks;
        assert_eq!(waiting, 80, "{level:?}");
        // Each attachment writes something, where there is a place for it, and is killed.
        for opened in 0..100_usize {
            world.reopen();
            world.write(opened % count, 1, 100 + opened as u8);
            world.write((10 + opened % 80) * count, 1, 101 + opened as u8);
            if opened % 10 == 0 {
                world.read_all();
            }
        }
        world.read_all();
        world.idle();
        assert_eq!(world.machine.shortage().unwrap().blocks, waiting, "{level:?}");
        // Discards are taken, also after that.
        let id = world.begin(Op::Discard, count, count, 0);
        world.finish(id).unwrap();
        world.model[count..2 * count].fill(0);
        world.full.clear();
        world.assert_clean();
        assert_eq!(world.machine.state(), ArrayState::Optimal, "{level:?}");
        assert_eq!(world.machine.shortage(), None, "{level:?}");
    }
}

#[test]
fn an_array_whose_log_is_full_for_want_of_space_takes_a_discard_each_time_that_it_is_opened() {
    for (level, members) in LEVELS {
        let mut world = World::with_log(level, members, 100, 1024);
        let count = world.stripe_blocks();
        for stripe in 0..40 {
            world.write_stripe(stripe, 1 + stripe as u8).unwrap();
        }
        world.idle();
        world.full.extend((0..members).map(|member| (member, 0)));
        let mut refused = 0;
        for at in 0..60 * count {
            let block = 40 * count + at;
            let id = world.begin(Op::Write, block, 1, at as u8);
            match world.finish(id) {
                Ok(_) => world.model[block] = at as u8,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{level:?}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 0, "{level:?}");
        for stripe in 0..40 {
            world.reopen();
            let id = world.begin(Op::Discard, stripe * count, count, 0);
            world.finish(id).unwrap();
            world.model[stripe * count..(stripe + 1) * count].fill(0);
            world.read_all();
        }
        world.full.clear();
        world.assert_clean();
        assert_eq!(world.machine.shortage(), None, "{level:?}");
    }
}

#[test]
fn an_opening_that_begins_the_log_anew_may_be_cut_short_anywhere() {
    for (level, members) in LEVELS {
        let mut world = World::with_log(level, members, 100, 512);
        let count = world.stripe_blocks();
        for stripe in 0..60 {
            world.write_row(stripe, 1 + stripe as u8);
        }
        world.idle();
        // Rows that were never written, in stripes that have a place: as many as the log takes.
        world.full.extend((0..members).map(|member| (member, 0)));
        let mut refused = 0;
        for block in (0..60 * count).filter(|block| block % ROWS as usize != 0) {
            let content = 100 + (block % 100) as u8;
            let op = if block % 5 == 0 { Op::WriteZeroes } else { Op::Write };
            let id = world.begin(op, block, 1, content);
            match world.finish(id) {
                Ok(_) => world.model[block] = if block % 5 == 0 { 0 } else { content },
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{level:?}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 0, "{level:?}");
        for opened in 0..16 {
            world.reopen();
            // Discards are taken where nothing else is.
            let id = world.begin(Op::Discard, opened * count, count, 0);
            world.finish(id).unwrap();
            world.model[opened * count..(opened + 1) * count].fill(0);
        }
        let media = world.media();
        let mut steps = 0;
        loop {
            world.restore(&media);
            let is_short = world.crash_in_opening(steps);
            world.crash_in_opening(steps);
            world.full.clear();
            world.reopen();
            world.idle();
            assert_eq!(world.machine.shortage(), None, "{level:?}, cut short after {steps}");
            world.read_all();
            if !is_short {
                break;
            }
            steps += 1 + steps / 4;
        }
        assert!(steps > 50, "{level:?}: it was cut short after {steps} at most");
        world.assert_clean();
    }
}
