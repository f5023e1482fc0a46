//! Commands that a request can do without.

use super::*;

fn thin() -> World {
    let mut world = World::opened_with(|_, target| target.medium.unmaps = true);
    world.write(1, 0x11);
    world.sent.clear();
    world
}

#[test]
fn discards_and_zeros_are_short_commands_where_the_disk_has_them() {
    let mut world = thin();
    let zeroed = world.ask(Op::WriteZeroes, 1, 8);
    world.assert_done(zeroed);
    world.assert_read(1, 0);
    let discarded = world.ask(Op::Discard, 1, 8);
    world.assert_done(discarded);
    assert_eq!(world.commands(), [WRITE_SAME, READ, UNMAP]);
}

#[test]
fn a_disk_that_refuses_a_discard_gets_no_more_of_them() {
    let mut world = thin();
    world.target.refuse(UNMAP, 1, Answer::unknown());
    let discards = [world.ask(Op::Discard, 1, 1), world.ask(Op::Discard, 1, 1)];
    discards.into_iter().for_each(|discard| world.assert_done(discard));
    assert_eq!(world.count(UNMAP), 1);
    let is_meant = |event: &Event| matches!(event, Event::DoneWithout { kind: "UNMAP", .. });
    assert_eq!(world.told(is_meant), 1);
}

#[test]
fn zeros_are_written_as_any_bytes_where_no_shorter_command_is_left() {
    let mut world = thin();
    world.target.refuse(WRITE_SAME, 2, Answer::unknown());
    for _ in 0..2 {
        let zeroed = world.ask(Op::WriteZeroes, 1, 1);
        world.assert_done(zeroed);
    }
    world.assert_read(1, 0);
    // First without unmapping, then as any bytes.
    assert_eq!(world.commands(), [WRITE_SAME, WRITE_SAME, WRITE, WRITE, READ]);
    let cdbs: Vec<u8> = world.sent.iter().take(2).map(|sent| sent.cdb[1]).collect();
    assert_eq!(cdbs, [0x08, 0]);
}

#[test]
fn a_hint_that_the_disk_does_not_get_to_ends_well() {
    let mut world = thin();
    world.target.refuse(UNMAP, 100, Answer::status(Scsi::Busy));
    let discard = world.ask(Op::Discard, 1, 1);
    world.pass(SECOND);
    world.assert_done(discard);
    assert_eq!(world.count(UNMAP), 16);
}

#[test]
fn a_discard_that_is_not_answered_ends_well_and_bars_what_follows_until_it_is_dead() {
    let mut world = thin();
    world.target.holds = vec![UNMAP];
    world.target.aborts = None;
    let discard = world.ask(Op::Discard, 1, 1);
    world.pass(TIME);
    world.assert_done(discard);
    world.sent.clear();
    let write = world.write(1, 0x22);
    assert_eq!(world.commands(), []);
    world.answer_aborts(0);
    world.assert_done(write);
}

#[test]
fn hints_that_are_never_answered_are_sent_no_more() {
    for (op, opcode) in [(Op::Discard, UNMAP), (Op::WriteZeroes, WRITE_SAME)] {
        let mut world = thin();
        world.target.holds = vec![opcode];
        let hint = world.ask(op, 1, 1);
        for _ in 0..3 {
            world.cut(0);
            world.pass(SECOND);
        }
        world.assert_done(hint);
        assert_eq!(world.count(opcode), 3);
        assert_eq!(world.told(|event| matches!(event, Event::Unanswered { .. })), 1);
        let hint = world.ask(op, 1, 1);
        world.assert_done(hint);
        assert_eq!(world.count(opcode), 3);
    }
}

#[test]
fn an_answer_between_shows_that_hints_are_answered() {
    let mut world = thin();
    for _ in 0..4 {
        world.target.holds = vec![UNMAP];
        let hint = world.ask(Op::Discard, 1, 1);
        for _ in 0..2 {
            world.cut(0);
            world.pass(SECOND);
        }
        world.release();
        world.assert_done(hint);
    }
    assert_eq!(world.told(|event| matches!(event, Event::Unanswered { .. })), 0);
}

#[test]
fn a_disk_that_does_not_say_whether_it_has_a_cache_and_does_not_flush_has_none() {
    let mut world = World::opened_with(|_, target| target.refuse(0x1a, 1, Answer::unknown()));
    world.target.refuse(FLUSH, 1, Answer::unknown());
    let flushes = [world.flush(), world.flush()];
    flushes.into_iter().for_each(|flush| world.assert_done(flush));
    assert_eq!(world.count(FLUSH), 1);
    assert_eq!(world.told(|event| matches!(event, Event::NoCache { .. })), 1);
}

#[test]
fn a_disk_that_has_a_cache_and_does_not_flush_fails() {
    let mut world = World::opened();
    world.target.refuse(FLUSH, 1, Answer::unknown());
    let flush = world.flush();
    world.assert_failed(flush, ErrorKind::Unsupported);
}
