//! Sessions that are lost, and what was under way in them.

use super::*;

#[test]
fn requests_end_once_and_bring_what_was_written() {
    let mut world = World::opened();
    let written = [world.write(1, 0x11), world.write_forced(2, 0x22), world.flush()];
    written.into_iter().for_each(|user| world.assert_done(user));
    world.assert_read(1, 0x11);
    world.assert_read(2, 0x22);
    let zeroed = world.ask(Op::WriteZeroes, 1, 1);
    world.assert_done(zeroed);
    world.assert_read(1, 0);
    let discarded = world.ask(Op::Discard, 1, 1);
    world.assert_done(discarded);
    assert!(world.open.is_empty());
}

#[test]
fn large_requests_are_written_as_they_are_asked_for_and_read_whole() {
    let mut world = World::opened_with(|_, target| target.asks = Some(64 << 10));
    let data: Vec<u8> = (0..300 << 10).map(|at: usize| at.to_le_bytes()[1]).collect();
    let len = data.len() as u64;
    let write = world.request(Op::Write, 0, len, false, data.clone());
    world.drive();
    world.assert_done(write);
    let read = world.request(Op::Read, 0, len, false, Vec::new());
    world.drive();
    assert_eq!(world.result(read), Ok(data));
}

#[test]
fn what_was_under_way_is_sent_again_after_a_login_with_the_same_isid() {
    let mut world = World::opened();
    world.target.holds = vec![READ, WRITE];
    let (write, read) = (world.write(1, 0x11), world.read(2));
    assert_eq!(world.commands(), [WRITE, READ]);
    world.is_slow = true;
    world.cut(0);
    world.drive();
    assert!(!world.remote.status().is_connected);
    world.target.holds.clear();
    world.pass(SECOND);
    assert!(!world.has_ended(write) && !world.has_ended(read));
    world.is_slow = false;
    world.drive();
    world.assert_done(write);
    assert_eq!(world.result(read), Ok(full(0)));
    let logins: Vec<Isid> = world.target.logins.iter().map(|login| login.0).collect();
    assert_eq!(logins, [ISID, ISID]);
    assert_eq!(world.remote.status().reconnects, 1);
    assert_eq!(world.told(|event| matches!(event, Event::Lost { session: 0, .. })), 1);
    assert_eq!(world.told(|event| matches!(event, Event::Reconnected { session: 0 })), 1);
}

#[test]
fn reads_go_over_another_session_at_once_and_writes_wait_for_their_own() {
    let mut world = World::wide(2);
    world.pass(SECOND);
    world.target.holds = vec![READ, WRITE];
    let (write, read) = (world.write(1, 0x11), world.read(2));
    assert_eq!(world.places(WRITE), world.places(READ));
    world.is_slow = true;
    world.sent.clear();
    world.cut(0);
    world.release();
    assert_eq!(world.result(read), Ok(full(0)));
    assert_eq!(world.places(READ), [1]);
    world.pass(SECOND);
    assert!(!world.has_ended(write));
    assert_eq!(world.places(WRITE), []);
    world.is_slow = false;
    world.drive();
    world.assert_done(write);
    assert_eq!(world.target.logins.last().unwrap().0, isid(0));
}

#[test]
fn a_write_of_a_lost_session_is_dead_before_it_is_sent_again() {
    let mut world = World::opened();
    world.target.holds = vec![WRITE];
    let first = world.write(1, 0x11);
    world.cut(0);
    world.release();
    world.pass(SECOND);
    world.assert_done(first);
    let second = world.write(1, 0x22);
    world.assert_done(second);
    world.target.carry_out_orphans();
    world.assert_read(1, 0x22);
}

#[test]
fn what_the_target_said_before_the_connection_broke_counts() {
    let mut world = World::opened();
    world.target.holds = vec![WRITE];
    let write = world.write(1, 0x11);
    let Line::Open(conn) = &mut world.lines[0] else { panic!() };
    conn.carry_out(&mut world.target, 0);
    let (header, body) = conn.output.pop_front().unwrap();
    let link = world.remote.receiver(Place(0), world.now).unwrap();
    receive(link, &header, &body).unwrap();
    world.cut(0);
    world.execute();
    world.assert_done(write);
    world.pass(SECOND);
    assert_eq!(world.count(WRITE), 1);
}

#[test]
fn requests_that_come_while_there_is_no_session_wait_for_one() {
    let mut world = World::opened();
    world.set_door("a", Door::Lost);
    world.cut(0);
    let write = world.write(1, 0x11);
    world.pass(3 * SECOND);
    assert!(!world.has_ended(write));
    world.set_door("a", Door::Open);
    world.pass(5 * SECOND - MILLI);
    world.assert_done(write);
}

#[test]
fn a_target_that_is_silent_under_commands_loses_its_session() {
    let mut world = World::opened();
    world.target.is_silent = true;
    let read = world.read(1);
    world.pass(3 * SECOND - MILLI);
    assert_eq!(world.told(|event| matches!(event, Event::Lost { .. })), 0);
    world.pass(MILLI);
    assert_eq!(world.told(|event| matches!(event, Event::Lost { .. })), 1);
    world.target.is_silent = false;
    world.pass(SECOND);
    assert_eq!(world.result(read), Ok(full(0)));
}

#[test]
fn a_session_whose_end_the_target_asks_for_is_made_again() {
    let mut world = World::opened();
    world.target.holds = vec![WRITE];
    let write = world.write(1, 0x11);
    world.conn(0).ask_for_logout();
    world.drive();
    assert_eq!(world.told(|event| matches!(event, Event::Ending { session: 0 })), 1);
    let read = world.read(1);
    assert_eq!(world.count(READ), 0, "a session that ends gets no more");
    world.release();
    world.assert_done(write);
    assert_eq!(world.got(Opcode::LogoutRequest), 1);
    world.pass(SECOND);
    assert_eq!(world.result(read), Ok(full(0x11)));
    assert_eq!(world.count(WRITE), 1);
}
