//! Registrations, and what else is ordered beside the requests.

use netraid_scsi::cdb::reserve::{Keys, ReservationType, read_keys, reserve};

use super::*;

fn read_keys_order() -> Order {
    Order::Once { cdb: read_keys(64), parameters: Vec::new(), read_len: 64 }
}

const REGISTER: Order = Order::Register { key: 7, ignore: true };

/// Two sessions, of which the second is away while the first is registered.
fn with_late_session() -> World {
    let mut world = World::wide(2);
    world.pass(SECOND);
    world.set_door("a", Door::Lost);
    world.set_door("b", Door::Lost);
    world.cut(1);
    world.order(1, REGISTER);
    world.pass(TIME / 2 - MILLI);
    assert_eq!(world.count(RESERVE_OUT), 0, "the other session is waited for");
    world.pass(20 * MILLI);
    assert_eq!(world.places(RESERVE_OUT), [0]);
    assert_eq!(world.answer(1), Ok(Vec::new()));
    assert_eq!(world.target.medium.registrations.len(), 1);
    world.sent.clear();
    world
}

fn let_in(world: &mut World) {
    world.set_door("a", Door::Open);
    world.set_door("b", Door::Open);
    world.pass(3 * SECOND);
    assert!(world.is_connected(1));
}

#[test]
fn orders_are_carried_out_one_after_the_other() {
    let mut world = World::opened();
    world.target.holds = vec![RESERVE_OUT];
    world.order(1, REGISTER);
    world.order(2, Order::Clear { key: 7 });
    world.order(3, read_keys_order());
    assert_eq!(world.commands(), [RESERVE_OUT]);
    world.release();
    assert_eq!(world.commands(), [RESERVE_OUT, RESERVE_OUT, RESERVE_IN]);
    assert_eq!((world.answer(1), world.answer(2)), (Ok(Vec::new()), Ok(Vec::new())));
    let keys = Keys::decode(&world.answer(3).unwrap()).unwrap();
    assert_eq!(keys.keys, []);
}

#[test]
fn every_session_is_registered_and_an_order_for_one_goes_to_one() {
    let mut world = World::wide(3);
    world.pass(SECOND);
    world.order(1, REGISTER);
    assert_eq!(world.answer(1), Ok(Vec::new()));
    assert_eq!(world.places(RESERVE_OUT), [0, 1, 2]);
    world.order(2, read_keys_order());
    let keys = Keys::decode(&world.answer(2).unwrap()).unwrap();
    assert_eq!(keys.keys, [7, 7, 7]);
    let order = reserve(7, ReservationType::WriteExclusiveAllRegistrants);
    let (cdb, parameters) = (order.cdb, order.parameters);
    world.order(3, Order::Once { cdb, parameters, read_len: 0 });
    assert_eq!(world.answer(3), Ok(Vec::new()));
    assert!(world.target.medium.is_reserved);
    world.order(4, Order::Clear { key: 7 });
    assert_eq!(world.answer(4), Ok(Vec::new()));
    assert!(world.target.medium.registrations.is_empty());
}

#[test]
fn an_order_is_sent_again_when_the_disk_is_busy_or_tells_something_first() {
    let mut world = World::opened();
    world.target.refuse(RESERVE_OUT, 2, Answer::status(Scsi::Busy));
    world.target.medium.tell(Additional::DEVICE_RESET);
    world.order(1, REGISTER);
    world.pass(30 * MILLI);
    assert_eq!(world.answer(1), Ok(Vec::new()));
    assert_eq!(world.count(RESERVE_OUT), 4);
}

#[test]
fn a_late_session_carries_nothing_before_a_witness_has_shown_that_nobody_took_over() {
    let mut world = with_late_session();
    world.target.holds = vec![RESERVE_OUT];
    let_in(&mut world);
    assert_eq!(world.places(RESERVE_OUT), [1]);
    let writes: Vec<u32> = (0..200).map(|block| world.write(block, 0x11)).collect();
    world.pass(SECOND);
    assert!(world.places(WRITE).iter().all(|place| *place == 0));
    world.carry_out_held(1);
    world.drive();
    assert_eq!(world.places(RESERVE_OUT), [1, 0], "the witness comes last");
    world.release();
    writes.into_iter().for_each(|write| world.assert_done(write));
    assert_eq!(world.target.medium.registrations.len(), 2);
    // Now it is one of them.
    world.sent.clear();
    world.set_door("a", Door::Refuses);
    world.cut(0);
    let write = world.write(1, 0x12);
    world.assert_done(write);
    assert_eq!(world.places(WRITE), [1]);
}

#[test]
fn a_late_session_undoes_no_takeover() {
    let mut world = with_late_session();
    world.target.medium.take_over();
    let_in(&mut world);
    world.pass(SECOND);
    let write = world.write(1, 0x11);
    world.pass(SECOND);
    world.assert_failed(write, ErrorKind::Fenced);
    assert!(world.remote.status().is_fenced);
    assert_eq!(world.target.medium.contents[512..1024], full(0));
}

#[test]
fn a_session_that_cannot_be_registered_is_given_up() {
    let mut world = with_late_session();
    world.target.refuse(RESERVE_OUT, 100, Answer::unknown());
    let_in_and_wait(&mut world);
    let not_registered = |event: &Event| matches!(event, Event::NotRegistered { session: 1, .. });
    assert_eq!(world.told(not_registered), 5);
    assert_eq!(world.told(|event| *event == Event::GivenUp { session: 1 }), 1);
    assert!(!world.is_connected(1));
    let write = world.write(1, 0x11);
    world.assert_done(write);
    world.remote.handle_close(world.now);
    world.drive();
    assert!(world.is_closed);
}

fn let_in_and_wait(world: &mut World) {
    world.set_door("a", Door::Open);
    world.set_door("b", Door::Open);
    world.pass(5 * SECOND);
}

#[test]
fn an_order_that_is_not_answered_ends_in_time_and_is_aborted() {
    let mut world = World::opened();
    world.target.holds = vec![RESERVE_OUT];
    world.order(1, REGISTER);
    world.order(2, read_keys_order());
    world.pass(TIME - MILLI);
    assert!(world.answers.is_empty());
    world.pass(MILLI);
    assert_eq!(world.answer(1), Err(ErrorKind::Timeout));
    assert_eq!(world.answer(2), Err(ErrorKind::Timeout));
    assert_eq!(world.got(Opcode::TaskRequest), 1);
}

#[test]
fn an_order_that_was_given_up_bars_requests_until_it_is_dead() {
    let mut world = World::opened();
    world.target.holds = vec![RESERVE_OUT];
    world.target.aborts = None;
    world.order(1, REGISTER);
    world.pass(TIME);
    assert_eq!(world.answer(1), Err(ErrorKind::Timeout));
    world.sent.clear();
    let read = world.read(1);
    assert_eq!(world.commands(), []);
    world.answer_aborts(0);
    assert_eq!(world.result(read), Ok(full(0)));
}

#[test]
fn an_order_whose_connection_is_lost_ends_and_nobody_knows_how() {
    let mut world = World::opened();
    world.target.holds = vec![RESERVE_OUT];
    world.order(1, REGISTER);
    world.cut(0);
    world.drive();
    assert_eq!(world.answer(1), Err(ErrorKind::Unreachable));
    world.pass(SECOND);
    assert_eq!(world.count(RESERVE_OUT), 1, "it is not sent again");
}

#[test]
fn a_registration_is_given_back_when_no_write_is_under_way_any_more() {
    for order in [Order::Register { key: 0, ignore: true }, Order::Clear { key: 7 }] {
        for sessions in [1, 2] {
            let mut world = World::wide(sessions);
            world.pass(SECOND);
            world.order(1, REGISTER);
            assert_eq!(world.answer(1), Ok(Vec::new()));
            world.target.holds = vec![WRITE];
            let (write, before) = (world.write(1, 0x11), world.commands().len());
            world.remote.handle_leaving(world.now);
            world.order(2, order.clone());
            let later = world.write(2, 0x22);
            world.pass(SECOND / 2);
            assert_eq!(
                world.commands().len(),
                before,
                "neither the order nor another write is sent"
            );
            world.release();
            world.assert_done(write);
            assert_eq!(world.answer(2), Ok(Vec::new()));
            world.assert_failed(later, ErrorKind::Aborted);
            assert_eq!(world.commands().iter().filter(|command| **command == WRITE).count(), 1);
        }
    }
}

#[test]
fn nothing_is_written_when_nobody_knows_whether_the_registration_was_given_back() {
    let mut world = World::opened();
    world.order(1, REGISTER);
    assert_eq!(world.answer(1), Ok(Vec::new()));
    world.remote.handle_leaving(world.now);
    world.target.holds = vec![RESERVE_OUT];
    world.order(2, Order::Register { key: 0, ignore: true });
    world.pass(2 * SECOND);
    let write = world.write(1, 0x11);
    world.pass(TIME - 2 * SECOND);
    assert_eq!(world.answer(2), Err(ErrorKind::Timeout));
    world.pass(SECOND);
    world.assert_failed(write, ErrorKind::Aborted);
    assert!(!world.commands().contains(&WRITE));
}

#[test]
fn a_registration_that_is_made_again_waits_for_nothing() {
    let mut world = World::opened();
    world.order(1, REGISTER);
    assert_eq!(world.answer(1), Ok(Vec::new()));
    world.target.holds = vec![WRITE];
    let write = world.write(1, 0x11);
    world.order(2, Order::Register { key: 7, ignore: false });
    assert_eq!(world.answer(2), Ok(Vec::new()));
    world.release();
    world.assert_done(write);
}

#[test]
fn a_registration_waits_for_a_write_no_longer_than_for_what_was_given_up() {
    let mut world = World::opened();
    world.order(1, REGISTER);
    assert_eq!(world.answer(1), Ok(Vec::new()));
    world.target.holds = vec![WRITE];
    let write = world.write(1, 0x11);
    world.pass(SECOND);
    world.remote.handle_leaving(world.now);
    world.order(2, Order::Register { key: 0, ignore: true });
    world.pass(TIME - SECOND);
    world.assert_failed(write, ErrorKind::Timeout);
    world.pass(SECOND / 2);
    assert_eq!(world.answer(2), Ok(Vec::new()), "the write was aborted");
}

#[test]
fn orders_wait_for_a_session_and_no_longer_than_their_time() {
    let mut world = World::opened();
    world.set_door("a", Door::Lost);
    world.cut(0);
    world.order(1, read_keys_order());
    world.pass(TIME - MILLI);
    assert!(world.answers.is_empty());
    world.pass(MILLI);
    assert_eq!(world.answer(1), Err(ErrorKind::Timeout));
}

#[test]
fn no_more_orders_wait_than_can_be_remembered() {
    let mut world = World::opened();
    world.target.holds = vec![RESERVE_OUT];
    (0..70).for_each(|id| world.order(id, REGISTER));
    assert_eq!(world.answers.len(), 5);
    assert_eq!(world.answer(69), Err(ErrorKind::Device));
    world.release();
    assert_eq!(world.answers.len(), 69);
}

#[test]
fn a_disk_without_reservations_does_not_support_what_asks_for_them() {
    let mut world = World::opened();
    let failure = Answer::sense(SenseKey::HardwareError, Additional::INTERNAL_TARGET_FAILURE);
    world.target.refuse(RESERVE_IN, 1, failure.clone());
    world.order(1, read_keys_order());
    assert_eq!(world.answer(1), Err(ErrorKind::Unsupported));
    world.target.refuse(RESERVE_OUT, 1, Answer::unknown());
    world.order(2, REGISTER);
    assert_eq!(world.answer(2), Err(ErrorKind::Unsupported));
    // One that has carried out such a command has them.
    world.register(7);
    world.target.refuse(RESERVE_IN, 1, failure);
    world.order(3, read_keys_order());
    assert_eq!(world.answer(3), Err(ErrorKind::Device));
}

#[test]
fn orders_find_room_beside_requests_that_would_take_it_all() {
    let mut world = World::opened();
    world.target.holds = vec![READ];
    let reads: Vec<u32> = (0..300).map(|block| world.read(block)).collect();
    let full = world.count(READ);
    assert!(full < reads.len());
    world.order(1, read_keys_order());
    assert_eq!(world.count(RESERVE_IN), 0);
    world.carry_out_held(0);
    world.pass(10 * MILLI);
    assert_eq!(world.commands()[full..], [RESERVE_IN, READ]);
    assert!(world.answer(1).is_ok());
    world.release();
    assert!(reads.iter().all(|read| world.has_ended(*read)));
}

#[test]
fn a_session_that_came_late_does_not_register_anew_in_place_of_those_that_were_removed() {
    for is_at_once in [true, false] {
        let mut world = with_late_session();
        // All are away, and a successor takes over; the late one is back first.
        world.stuck = Some(0);
        world.cut(0);
        world.target.medium.take_over();
        world.set_door("a", Door::Open);
        world.set_door("b", Door::Open);
        if !is_at_once {
            world.pass(SECOND);
        }
        world.order(2, Order::Register { key: 7, ignore: false });
        world.pass(TIME + SECOND);
        assert!(world.answer(2).is_err(), "{is_at_once}");
        assert!(world.target.medium.registrations.is_empty(), "{is_at_once}");
        let contents = world.target.medium.contents.clone();
        world.write(1, 0x11);
        world.pass(TIME);
        assert!(world.target.medium.contents == contents, "{is_at_once}: a late write");
    }
}

#[test]
fn one_session_shows_that_nobody_has_taken_over_while_others_are_away() {
    let mut world = World::wide(2);
    world.pass(SECOND);
    world.order(1, REGISTER);
    for (order, away) in [(2, 1), (3, 0)] {
        world.stuck = Some(away);
        world.cut(away);
        world.pass(SECOND);
        world.order(order, Order::Register { key: 7, ignore: false });
        world.pass(SECOND);
        assert_eq!(world.answer(order), Ok(Vec::new()), "without {away}");
        world.stuck = None;
        world.pass(2 * SECOND);
        assert!(world.is_connected(away));
    }
    assert_eq!(world.target.medium.registrations.len(), 2);
    assert!(!world.remote.status().is_fenced);
}

#[test]
fn a_session_that_alone_is_forgotten_joins_the_others() {
    let mut world = World::wide(2);
    world.pass(SECOND);
    world.order(1, REGISTER);
    world.target.medium.is_reserved = true;
    // What the session before had registered stays with that, and the one that is made anew is another one.
    let first = *world.target.medium.registrations.keys().next().unwrap();
    world.target.medium.registrations.remove(&first);
    world.target.medium.registrations.insert([9; 6], 7);
    world.cut(0);
    world.pass(TIME);
    assert!(world.is_connected(0) && !world.remote.status().is_fenced);
    assert_eq!(world.target.medium.registrations.len(), 3);
    let writes = [world.write(1, 0x11), world.write(2, 0x22)];
    writes.into_iter().for_each(|write| world.assert_done(write));
}

#[test]
fn a_disk_that_cannot_keep_registrations_has_answered() {
    let mut world = World::opened();
    world.target.refuse(RESERVE_OUT, 1, Answer::unreachable_inside());
    world.order(1, REGISTER);
    world.pass(SECOND);
    assert_eq!(world.answer(1), Err(ErrorKind::Device));
}

#[test]
fn a_session_that_was_lost_meanwhile_is_not_registered_anew_in_its_place() {
    let mut world = World::wide(2);
    world.pass(SECOND);
    world.order(1, REGISTER);
    world.target.holds = vec![RESERVE_OUT];
    world.order(2, Order::Register { key: 7, ignore: false });
    world.target.holds.clear();
    // The other session is made anew, and is not the one that was registered.
    let other = *world.target.medium.registrations.keys().next_back().unwrap();
    world.target.medium.registrations.remove(&other);
    world.cut(1);
    world.pass(SECOND);
    assert!(world.is_connected(1));
    world.release();
    world.pass(SECOND);
    assert_eq!(world.answer(2), Err(ErrorKind::Unreachable));
    world.pass(TIME);
    assert_eq!(world.target.medium.registrations.len(), 2, "it joins beside the other one");
}
