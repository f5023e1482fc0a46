//! The end of all.

use super::*;

#[test]
fn closing_waits_for_requests_and_then_logs_out() {
    let mut world = World::wide(2);
    world.pass(SECOND);
    world.target.holds = vec![WRITE];
    let write = world.write(1, 0x11);
    world.remote.handle_close(world.now);
    world.pass(SECOND);
    assert!(!world.is_closed);
    assert_eq!(world.got(Opcode::LogoutRequest), 0);
    let late = world.write(2, 0x22);
    world.assert_failed(late, ErrorKind::Aborted);
    world.order(1, Order::Clear { key: 7 });
    assert_eq!(world.answer(1), Err(ErrorKind::Aborted));
    world.release();
    world.assert_done(write);
    assert_eq!(world.got(Opcode::LogoutRequest), 2);
    assert!(world.is_closed && !world.is_connected(0) && !world.is_connected(1));
    assert_eq!(world.remote.next_timeout(), None);
    assert!(!world.remote.status().is_connected);
}

#[test]
fn closing_waits_for_orders() {
    let mut world = World::opened();
    world.target.holds = vec![RESERVE_OUT];
    world.order(1, Order::Register { key: 7, ignore: true });
    world.order(2, Order::Clear { key: 7 });
    world.remote.handle_close(world.now);
    world.pass(SECOND);
    assert!(!world.is_closed);
    world.release();
    assert_eq!((world.answer(1), world.answer(2)), (Ok(Vec::new()), Ok(Vec::new())));
    assert!(world.is_closed);
}

#[test]
fn a_target_that_does_not_answer_a_logout_is_left_alone() {
    let mut world = World::opened();
    world.target.answers_logout = false;
    world.remote.handle_close(world.now);
    world.pass(SECOND - MILLI);
    assert!(!world.is_closed);
    world.pass(MILLI);
    assert!(world.is_closed && !world.is_connected(0));
}

#[test]
fn what_was_to_be_looked_at_is_not_looked_at_during_the_logout() {
    let mut world = World::opened();
    world.target.answers_logout = false;
    world.assert_read(1, 0);
    world.pass(TIME / 4 - SECOND / 2);
    world.remote.handle_close(world.now);
    world.pass(SECOND);
    assert!(world.is_closed);
}

#[test]
fn a_session_that_is_lost_during_the_logout_is_over() {
    let mut world = World::opened();
    world.target.answers_logout = false;
    world.remote.handle_close(world.now);
    world.drive();
    world.cut(0);
    world.drive();
    assert!(world.is_closed);
}

#[test]
fn closing_without_a_session_ends_at_once_or_with_the_last_request() {
    for has_request in [false, true] {
        let mut world = World::opened();
        world.set_door("a", Door::Lost);
        world.cut(0);
        world.drive();
        let write = has_request.then(|| world.write(1, 0x11));
        world.remote.handle_close(world.now);
        world.drive();
        assert_eq!(world.is_closed, !has_request);
        world.pass(TIME);
        assert!(world.is_closed);
        write.into_iter().for_each(|write| world.assert_failed(write, ErrorKind::Unreachable));
    }
}

#[test]
fn closing_waits_until_what_was_given_up_is_dead() {
    let mut world = World::opened();
    world.target.holds = vec![WRITE];
    world.target.aborts = None;
    world.write(1, 0x11);
    world.remote.handle_close(world.now);
    world.pass(TIME);
    assert!(world.open.is_empty() && world.got(Opcode::TaskRequest) == 1);
    world.pass(2 * SECOND);
    assert!(world.is_closed);
}

#[test]
fn a_cut_ends_all_at_once() {
    let mut world = World::wide(2);
    world.pass(SECOND);
    world.target.holds = vec![WRITE, RESERVE_OUT];
    let write = world.write(1, 0x11);
    world.order(1, Order::Register { key: 7, ignore: true });
    world.sent.clear();
    world.remote.handle_cut(world.now);
    world.drive();
    world.assert_failed(write, ErrorKind::Aborted);
    assert_eq!(world.answer(1), Err(ErrorKind::Aborted));
    assert!(world.is_closed && !world.is_connected(0) && !world.is_connected(1));
    assert_eq!(world.sent, [], "nobody is told anything");
    world.remote.handle_cut(world.now);
    world.remote.handle_close(world.now);
    world.pass(SECOND);
}

#[test]
fn a_disk_that_is_closed_while_it_opens_is_over_at_once() {
    for takes_over in [false, true] {
        let mut world = World::opening_with(|settings, _| settings.takes_over = takes_over);
        world.is_slow = true;
        world.drive();
        if takes_over {
            world.connect(0);
            world.drive();
        }
        world.remote.handle_close(world.now);
        world.drive();
        assert!(world.is_closed && matches!(world.opened, Some(Err(_))));
        assert!(world.lines.iter().all(|line| matches!(line, Line::Closed)));
    }
}

#[test]
fn an_order_that_comes_after_closing_ends_alone() {
    let mut world = World::opened();
    world.target.holds = vec![RESERVE_OUT, READ];
    let read = world.read(1);
    world.order(1, Order::Register { key: 7, ignore: true });
    world.remote.handle_close(world.now);
    world.drive();
    world.order(2, Order::Register { key: 8, ignore: true });
    assert_eq!(world.answer(2), Err(ErrorKind::Aborted));
    assert!(!world.answers.contains_key(&OrderId(1)), "it is under way");
    world.release();
    world.pass(SECOND);
    assert_eq!(world.answer(1), Ok(Vec::new()));
    assert!(world.has_ended(read) && world.is_closed);
}
