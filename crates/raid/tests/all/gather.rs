//! Writes in a row of an array with a log: what several have of one stripe is written whole.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation, missing_docs)]

use crate::support::{LEVELS, ROWS, World};
use netraid_block::{ErrorKind, Op};
use netraid_raid::{
    geometry::Level,
    logged::{Action, Rule},
    member::MemberIndex,
};

/// Writes that are under way at one time, in the order in which they came.
struct Run {
    world: World,
    stripe: usize,
    under_way: Vec<(u64, usize, usize, u8)>,
}

impl Run {
    fn new(level: Level, members: usize) -> Self {
        let world = World::empty(level, members);
        let stripe = usize::from(world.geometry.data_columns()) * ROWS as usize;
        Self { world, stripe, under_way: Vec::new() }
    }

    fn begin(&mut self, block: usize, count: usize, content: u8) -> u64 {
        let id = self.world.begin(Op::Write, block, count, content);
        self.under_way.push((id, block, count, content));
        id
    }

    /// Ends all, in whatever order members answer, and returns how many blocks went to the log.
    fn finish(&mut self) -> usize {
        self.world.settle();
        for (id, block, count, content) in std::mem::take(&mut self.under_way) {
            self.world.finish(id).unwrap();
            self.world.model[block..block + count].fill(content);
        }
        self.world.read_all();
        self.world.machine.usage().dirty_blocks as usize
    }

    fn count(&self, rule: Rule) -> u64 {
        self.world.machine.rules().iter().find(|(one, _)| *one == rule).unwrap().1
    }

    /// Begins some, and members answer none of them until they are let.
    fn hold_back<T>(&mut self, begin: impl FnOnce(&mut Self) -> T) -> Vec<Action> {
        begin(self);
        self.world.poll();
        std::mem::take(&mut self.world.under_way)
    }

    fn is_complete(&self, id: u64) -> bool {
        self.world.completed.iter().any(|(one, _)| *one == id)
    }

    /// Labels say from now on that the array is open, so that nothing else comes between.
    fn wake(&mut self) {
        self.world.write(0, 1, 5);
        self.world.idle();
        assert_eq!(self.world.machine.usage().dirty_blocks, 0);
    }
}

#[test]
fn a_stripe_that_two_writes_in_a_row_share_is_written_whole() {
    for (level, members) in LEVELS {
        let mut run = Run::new(level, members);
        let stripe = run.stripe;
        let part = stripe / 2;
        run.begin(0, stripe, 1);
        run.begin(stripe, stripe + part, 2);
        run.begin(2 * stripe + part, 2 * stripe, 3);
        run.begin(4 * stripe + part, stripe - part, 4);
        assert_eq!(run.finish(), 0, "{level:?}: nothing goes through the log");
        assert_eq!(run.count(Rule::Gathered), 2, "{level:?}");
        // The log has nothing that would bring back what was there before.
        run.world.reopen();
        run.world.read_all();
    }
}

#[test]
fn a_stripe_of_many_small_writes_in_a_row_is_written_whole() {
    for (level, members) in LEVELS {
        let mut run = Run::new(level, members);
        let stripe = run.stripe;
        run.begin(0, stripe, 1);
        for block in stripe..3 * stripe {
            run.begin(block, 1, 2 + block as u8);
        }
        assert_eq!(run.finish(), 0, "{level:?}: nothing goes through the log");
        assert_eq!(run.count(Rule::Gathered), 2, "{level:?}");
        run.world.reopen();
        run.world.read_all();
    }
}

#[test]
fn what_is_not_followed_goes_through_the_log() {
    for (level, members) in LEVELS {
        let mut run = Run::new(level, members);
        let stripe = run.stripe;
        run.begin(0, stripe + 1, 1);
        assert_eq!(run.finish(), 1, "{level:?}: it is in no row");
        assert_eq!(run.count(Rule::LeftBeginning), 0, "{level:?}");
        run.begin(2 * stripe, stripe, 2);
        run.begin(3 * stripe, stripe + 1, 3);
        assert_eq!(run.finish(), 2, "{level:?}: nobody came");
        run.begin(5 * stripe, stripe, 4);
        run.begin(6 * stripe, 1, 5);
        run.begin(6 * stripe + 1, 1, 6);
        run.begin(6 * stripe + 3, 1, 7);
        assert_eq!(run.finish(), 2 + 3, "{level:?}: there is a gap in the row");
        assert_eq!(run.count(Rule::LeftBeginning), 2, "{level:?}");
        assert_eq!(run.count(Rule::Gathered), 0, "{level:?}");
        run.world.reopen();
        run.world.read_all();
    }
}

#[test]
fn who_left_a_beginning_waits_only_for_what_is_before_it() {
    let mut run = Run::new(Level::Raid5, 4);
    run.wake();
    let stripe = run.stripe;
    // A beginning in the end of a long write, and writes that are in no row.
    let before = run.hold_back(|run| run.begin(0, stripe, 1));
    let long = run.begin(stripe, stripe + 1, 2);
    let (first, second) = (run.begin(4 * stripe, 1, 3), run.begin(4 * stripe + 1, 1, 4));
    run.world.settle();
    assert!(run.is_complete(long) && run.is_complete(first) && run.is_complete(second));
    run.world.under_way = before;
    run.finish();

    // A beginning that is all of a small write, and one that adds to it.
    let elsewhere = run.hold_back(|run| run.begin(7 * stripe, stripe, 99));
    let before = run.hold_back(|run| run.begin(3 * stripe, stripe, 5));
    let (first, second) = (run.begin(4 * stripe, 1, 6), run.begin(4 * stripe + 1, 1, 7));
    run.world.settle();
    assert!(!run.is_complete(first) && !run.is_complete(second), "the one before is under way");
    run.world.under_way = before;
    run.world.settle();
    assert!(run.is_complete(first) && run.is_complete(second));
    run.world.under_way = elsewhere;
    run.finish();
}

#[test]
fn who_left_a_beginning_waits_for_one_write_though_others_end_there_again_and_again() {
    let mut run = Run::new(Level::Raid5, 4);
    run.wake();
    let stripe = run.stripe;
    let elsewhere = run.hold_back(|run| run.begin(7 * stripe, stripe, 99));
    // The last block before it is hot: one write of it is always under way.
    let mut held = run.hold_back(|run| run.begin(stripe - 1, 1, 1));
    let waiting = run.begin(stripe, 1, 2);
    for content in 3..8 {
        run.begin(stripe - 1, 1, content);
        for action in held {
            let (io, result) = run.world.effect(action);
            run.world.machine.handle_io_done(io, result);
        }
        run.world.poll();
        held = std::mem::take(&mut run.world.under_way);
    }
    assert_eq!(run.count(Rule::LeftBeginning), 1);
    assert!(run.is_complete(waiting));
    run.world.under_way = held;
    run.world.under_way.extend(elsewhere);
    run.world.settle();
    assert!(run.under_way.iter().all(|(id, ..)| run.is_complete(*id)));
}

#[test]
fn a_row_that_is_no_deeper_than_a_stripe_waits_for_nothing() {
    let mut run = Run::new(Level::Raid5, 4);
    run.wake();
    let stripe = run.stripe;
    let before = run.hold_back(|run| run.begin(stripe - 1, 1, 1));
    for block in stripe..2 * stripe - 1 {
        run.begin(block, 1, 2);
    }
    run.world.poll();
    assert_eq!(run.count(Rule::LeftBeginning), 0);
    run.world.under_way.extend(before);
    run.world.settle();
    assert!(run.under_way.iter().all(|(id, ..)| run.is_complete(*id)));
}

#[test]
fn a_write_over_what_waits_for_its_row_may_come_first() {
    let mut run = Run::new(Level::Raid5, 4);
    run.wake();
    let stripe = run.stripe;
    let before = run.hold_back(|run| run.begin(0, stripe, 1));
    let waiting = run.begin(stripe, 2, 2);
    let over = run.begin(stripe + 1, 1, 3);
    run.world.settle();
    assert!(run.is_complete(over) && !run.is_complete(waiting));
    run.world.under_way = before;
    run.world.settle();
    assert!(run.is_complete(waiting));
    let block = run.world.read(stripe + 1).unwrap();
    assert!([2, 3].contains(&block), "one of those that were under way at one time: {block}");
    assert_eq!(run.world.read(stripe).unwrap(), 2);
}

#[test]
fn where_a_gathered_stripe_has_no_space_everybody_has_their_own_answer() {
    let mut run = Run::new(Level::Raid5, 4);
    run.wake();
    let stripe = run.stripe;
    let before = run.hold_back(|run| run.begin(0, stripe, 1));
    run.begin(stripe, stripe / 2, 2);
    run.begin(stripe + stripe / 2, stripe - stripe / 2, 3);
    run.world.full.insert(0, 0);
    let mut refused = 0;
    run.world.poll();
    while let Some(action) = run.world.under_way.pop() {
        let (io, result) = run.world.effect(action);
        refused += u32::from(result.as_ref().is_err_and(|e| e.kind() == ErrorKind::NoSpace));
        run.world.machine.handle_io_done(io, result);
        run.world.poll();
    }
    assert!(refused > 0, "the whole stripe had space");
    assert_eq!(run.count(Rule::Gathered), 1);
    for (id, ..) in &run.under_way[1..] {
        let end = run.world.completed.iter().find(|(one, _)| one == id);
        assert!(matches!(end, Some((_, Ok(_)))), "the log has space: {end:?}");
    }
    run.world.full.clear();
    run.world.under_way = before;
    run.finish();
    run.world.idle();
    run.world.read_all();
}

#[test]
fn an_array_that_fails_ends_what_waits_for_its_row() {
    let mut run = Run::new(Level::Raid5, 4);
    run.wake();
    let stripe = run.stripe;
    let before = run.hold_back(|run| run.begin(0, stripe, 1));
    run.begin(stripe, 1, 2);
    run.begin(stripe + 1, 1, 3);
    run.world.settle();
    for member in 0..2 {
        run.world.machine.handle_gone(MemberIndex(member), "it is away");
    }
    run.world.settle();
    run.world.under_way = before;
    run.world.settle();
    for (id, ..) in std::mem::take(&mut run.under_way) {
        assert_eq!(run.world.finish(id).unwrap_err().kind(), ErrorKind::Redundancy);
    }
}
