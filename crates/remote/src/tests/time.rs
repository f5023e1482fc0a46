//! How long requests may take, and what is done about a disk that does not answer.

use super::*;

const CLEARED: Additional = Additional::COMMANDS_CLEARED_BY_ANOTHER;

#[test]
fn a_request_that_is_not_answered_ends_in_time() {
    let mut world = World::opened();
    world.target.holds = vec![READ];
    let read = world.read(1);
    world.pass(TIME - MILLI);
    assert!(!world.has_ended(read));
    world.pass(MILLI);
    world.assert_failed(read, ErrorKind::Timeout);
}

#[test]
fn a_disk_that_is_silent_is_asked_and_what_somebody_else_cleared_is_sent_again() {
    let mut world = World::opened();
    world.target.holds = vec![WRITE];
    let write = world.write(1, 0x11);
    // Another initiator has them aborted, and they get no answer (TAS 0).
    world.conn(0).tasks.clear();
    world.target.holds.clear();
    world.target.medium.tell(CLEARED);
    world.pass(TIME / 4 - MILLI);
    assert_eq!(world.commands(), [WRITE]);
    world.pass(20 * MILLI);
    assert_eq!(world.commands(), [WRITE, READY, WRITE]);
    world.assert_done(write);
    assert_eq!(world.losses(), 0);
}

#[test]
fn the_question_why_a_disk_is_silent_may_be_cleared_with_the_rest() {
    let mut world = World::opened();
    world.target.holds = vec![WRITE, READY];
    let write = world.write(1, 0x11);
    world.pass(TIME / 4);
    assert_eq!(world.commands(), [WRITE, READY]);
    world.target.medium.lose_cache();
    world.conn(0).tasks.clear();
    world.target.holds.clear();
    let read = world.read(2);
    world.pass(20 * MILLI);
    assert_eq!(world.result(read), Ok(full(0)));
    world.assert_done(write);
}

#[test]
fn a_disk_that_answers_is_not_asked() {
    let mut world = World::opened();
    for at in 0..20 {
        world.target.holds = vec![READ];
        let read = world.read(at);
        world.pass(SECOND);
        world.release();
        assert!(world.has_ended(read));
    }
    assert_eq!(world.count(READY), 0);
}

#[test]
fn a_request_that_moves_has_more_time() {
    let mut world = World::opened();
    world.target.holds = vec![READ];
    let read = world.ask(Op::Read, 0, 2048);
    for _ in 0..4 {
        world.pass(TIME - SECOND);
        world.conn(0).send_part(0, &vec![0; 128 << 10]);
        world.drive();
        assert!(!world.has_ended(read));
    }
    world.release();
    assert_eq!(world.result(read), Ok(vec![0; 1 << 20]));
}

#[test]
fn a_request_that_moves_no_more_ends_in_time() {
    let mut world = World::opened();
    world.target.holds = vec![READ];
    let read = world.ask(Op::Read, 0, 2048);
    world.pass(TIME - SECOND);
    world.conn(0).send_part(0, &vec![0; 128 << 10]);
    world.pass(TIME - MILLI);
    assert!(!world.has_ended(read));
    world.pass(MILLI);
    world.assert_failed(read, ErrorKind::Timeout);
}

#[test]
fn a_byte_now_and_then_gives_no_more_time() {
    let mut world = World::opened();
    world.target.holds = vec![READ];
    let read = world.ask(Op::Read, 0, 2048);
    while !world.has_ended(read) {
        world.conn(0).send_part(0, &[0; 4]);
        world.pass(SECOND);
    }
    assert!(world.now <= 2 * TIME, "{:?}", world.now);
}

#[test]
fn no_request_takes_longer_than_twelve_times_its_time() {
    let mut world = World::opened();
    world.target.holds = vec![READ];
    let read = world.ask(Op::Read, 0, 4096);
    let mut parts = 0;
    while !world.has_ended(read) {
        if parts % 4 == 0 {
            world.conn(0).send_part(0, &vec![0; 65 << 10]);
        }
        parts += 1;
        world.pass(SECOND);
    }
    assert_eq!(world.now, 12 * TIME);
    world.assert_failed(read, ErrorKind::Timeout);
}

#[test]
fn requests_behind_others_have_their_time_from_when_the_disk_went_on_last() {
    let mut world = World::opened();
    world.target.holds = vec![READ];
    let reads: Vec<u32> = (0..10).map(|block| world.read(block)).collect();
    for read in reads {
        world.pass(TIME / 2);
        assert!(!world.has_ended(read));
        world.carry_out_held(0);
        assert_eq!(world.result(read), Ok(full(0)));
    }
}

#[test]
fn small_requests_are_answered_beside_large_ones() {
    let mut world = World::opened();
    world.target.holds = vec![READ];
    world.read(0);
    for at in 0..60 {
        world.ask(Op::Read, at * 64, 256);
    }
    let large = world.count(READ) - 1;
    assert!(large < 60, "large ones have a window while small ones come");
    let small = world.read(1);
    assert_eq!(world.count(READ), large + 2, "small ones do not wait behind them");
    world.release();
    assert!(world.has_ended(small) && world.open.is_empty());
}
