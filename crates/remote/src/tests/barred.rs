//! What was given up, and may still change the disk.

use super::*;

/// A world in which a write was given up whose abort is not answered.
fn given_up(sessions: u8) -> World {
    let mut world = World::wide(sessions);
    world.pass(SECOND);
    world.target.holds = vec![WRITE];
    world.target.aborts = None;
    let write = world.write(1, 0x11);
    world.pass(TIME);
    world.assert_failed(write, ErrorKind::Timeout);
    assert_eq!(world.got(Opcode::TaskRequest), 1);
    world.stick();
    world.sent.clear();
    world
}

#[test]
fn a_write_that_was_given_up_bars_everything_until_the_abort_is_answered() {
    for sessions in [1, 2] {
        let mut world = given_up(sessions);
        let (read, write) = (world.read(1), world.write(1, 0x22));
        world.pass(SECOND / 2);
        assert_eq!(world.commands(), []);
        world.target.holds = vec![WRITE];
        world.answer_aborts(0);
        assert_eq!(world.result(read), Ok(full(0)));
        world.release();
        world.assert_done(write);
        world.target.carry_out_orphans();
        world.assert_read(1, 0x22);
    }
}

#[test]
fn an_abort_that_is_not_answered_in_a_second_drops_the_session() {
    let mut world = given_up(1);
    world.is_slow = true;
    world.pass(SECOND - MILLI);
    assert!(world.is_connected(0));
    world.pass(MILLI);
    assert!(!world.is_connected(0));
    assert_eq!(world.told(|event| matches!(event, Event::Lost { session: 0, .. })), 1);
}

#[test]
fn a_write_that_was_given_up_bars_everything_until_its_session_is_made_again() {
    let mut world = given_up(2);
    world.is_slow = true;
    world.pass(SECOND);
    assert!(!world.is_connected(0) && world.is_connected(1));
    world.sent.clear();
    let read = world.read(1);
    assert_eq!(world.commands(), [], "the other session is there, and carries nothing");
    world.is_slow = false;
    world.pass(MILLI);
    assert_eq!(world.result(read), Ok(full(0)));
    assert_eq!(world.target.logins.last().unwrap().0, isid(0));
    world.target.carry_out_orphans();
    world.assert_read(1, 0);
}

#[test]
fn a_write_that_is_given_up_without_its_session_bars_everything() {
    let mut world = World::wide(2);
    world.pass(SECOND);
    world.target.holds = vec![WRITE];
    let write = world.write(1, 0x11);
    world.is_slow = true;
    world.cut(0);
    world.target.holds.clear();
    world.pass(SECOND);
    world.assert_read(1, 0);
    world.pass(TIME - SECOND);
    assert!(world.has_ended(write));
    assert_eq!(world.result(write).unwrap_err(), ErrorKind::Timeout);
    world.sent.clear();
    let read = world.read(1);
    assert_eq!(world.commands(), []);
    world.is_slow = false;
    world.pass(SECOND);
    assert_eq!(world.result(read), Ok(full(0)));
}

#[test]
fn a_read_that_was_given_up_bars_nothing() {
    let mut world = World::opened();
    world.target.holds = vec![READ];
    world.target.aborts = None;
    let read = world.read(1);
    world.pass(TIME);
    world.assert_failed(read, ErrorKind::Timeout);
    let write = world.write(1, 0x22);
    world.assert_done(write);
}

#[test]
fn the_late_answer_of_what_was_given_up_ends_the_bar() {
    let mut world = given_up(1);
    let read = world.read(1);
    world.conn(0).answer(0, Answer::good());
    world.drive();
    assert_eq!(world.result(read), Ok(full(0)));
    world.pass(2 * SECOND);
    assert!(world.is_connected(0), "nothing is aborted any more");
}

#[test]
fn a_target_that_refuses_an_abort_loses_its_session() {
    let mut world = World::opened();
    world.target.holds = vec![WRITE];
    world.target.aborts = Some(TaskResponseCode::Unsupported);
    let write = world.write(1, 0x11);
    world.pass(TIME);
    world.assert_failed(write, ErrorKind::Timeout);
    assert_eq!(world.told(|event| matches!(event, Event::Lost { session: 0, .. })), 1);
    world.pass(SECOND);
    assert!(world.is_connected(0));
}

#[test]
fn no_order_is_sent_while_something_may_still_change_the_disk() {
    let mut world = given_up(1);
    world.order(1, Order::Register { key: 7, ignore: true });
    world.pass(SECOND / 2);
    assert_eq!(world.commands(), []);
    world.answer_aborts(0);
    world.pass(SECOND / 2);
    assert_eq!(world.answer(1), Ok(Vec::new()));
}
