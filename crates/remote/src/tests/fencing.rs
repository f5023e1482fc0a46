//! Another host takes over, or the disk forgets who is registered.

use super::*;

fn conflict() -> Answer {
    Answer::status(Scsi::ReservationConflict)
}

fn registered(sessions: u8) -> World {
    let mut world = World::wide(sessions);
    world.pass(SECOND);
    world.register(7);
    world.target.medium.is_reserved = true;
    world
}

#[track_caller]
fn assert_fenced(world: &mut World) {
    assert!(world.remote.status().is_fenced);
    assert_eq!(world.told(|event| *event == Event::Fenced), 1);
    world.sent.clear();
    let later = [world.read(1), world.write(1, 0x11), world.flush()];
    later.into_iter().for_each(|user| world.assert_failed(user, ErrorKind::Fenced));
    let moves =
        |world: &World| world.commands().iter().any(|one| [READ, WRITE, FLUSH].contains(one));
    assert!(!moves(world), "{:?}", world.commands());
    world.pass(10 * SECOND);
    assert!(!moves(world), "{:?}", world.commands());
}

#[test]
fn all_requests_end_when_the_registration_is_gone_and_nothing_more_is_sent() {
    for sessions in [1, 2] {
        let mut world = registered(sessions);
        world.target.holds = vec![WRITE];
        let writes = [world.write(1, 0x11), world.write(2, 0x22)];
        world.target.medium.take_over();
        let read = world.read(3);
        world.release();
        world.pass(SECOND);
        world.assert_failed(read, ErrorKind::Fenced);
        writes.into_iter().for_each(|write| world.assert_failed(write, ErrorKind::Fenced));
        assert_eq!(world.target.medium.contents[512..1024], full(0), "nothing has landed");
        assert_fenced(&mut world);
    }
}

#[test]
fn a_conflict_tells_that_the_registration_is_gone_where_nothing_else_does() {
    let mut world = registered(1);
    world.target.medium.take_over();
    world.target.medium.attentions.values_mut().for_each(std::collections::VecDeque::clear);
    let write = world.write(1, 0x11);
    world.assert_failed(write, ErrorKind::Fenced);
    assert_fenced(&mut world);
}

#[test]
fn a_session_that_is_made_again_learns_that_its_registration_is_gone() {
    let mut world = registered(1);
    world.target.holds = vec![WRITE];
    let write = world.write(1, 0x11);
    world.target.medium.take_over();
    world.target.medium.attentions.values_mut().for_each(std::collections::VecDeque::clear);
    world.cut(0);
    world.release();
    world.pass(SECOND);
    world.assert_failed(write, ErrorKind::Fenced);
    assert_eq!(world.count(WRITE), 1);
    assert_fenced(&mut world);
}

#[test]
fn a_disk_that_was_powered_on_has_forgotten_the_registration_and_nobody_has_taken_over() {
    let mut world = registered(1);
    world.target.holds = vec![WRITE];
    let write = world.write(1, 0x11);
    world.restart();
    world.pass(2 * SECOND + SECOND / 2);
    world.assert_failed(write, ErrorKind::Unreachable);
    assert!(!world.remote.status().is_fenced);
    assert!(world.remote.status().is_gone);
    assert!(world.losses() >= 1);
    assert!(world.remote.last_failure().contains("forgotten"), "{}", world.remote.last_failure());
}

#[test]
fn who_is_registered_after_power_came_on_has_not_taken_over() {
    let mut world = registered(1);
    world.restart();
    world.target.medium.others = vec![99];
    world.pass(SECOND);
    assert!(!world.remote.status().is_fenced);
    assert!(world.remote.last_failure().contains("forgotten"), "{}", world.remote.last_failure());
}

#[test]
fn what_was_under_way_when_another_session_learnt_of_the_takeover_is_not_sent_again() {
    let mut world = registered(2);
    world.target.holds = vec![READ];
    let read = world.read(1);
    assert_eq!(world.places(READ), [0]);
    world.target.medium.take_over();
    world.cut(1);
    world.pass(SECOND);
    assert!(world.remote.status().is_fenced && !world.has_ended(read));
    world.answer_held(0, Answer::status(Scsi::Busy));
    world.pass(SECOND);
    world.assert_failed(read, ErrorKind::Fenced);
    assert_eq!(world.count(READ), 1);
}

#[test]
fn a_disk_that_keeps_registrations_no_longer_than_sessions_has_forgotten_this_one() {
    let mut world = registered(1);
    world.target.medium.registrations.clear();
    world.cut(0);
    world.pass(SECOND);
    assert!(!world.remote.status().is_fenced);
    assert!(world.remote.last_failure().contains("forgotten"), "{}", world.remote.last_failure());
}

#[test]
fn a_disk_that_has_forgotten_this_side_and_knows_a_reader_was_taken_over_by_nobody() {
    for (others, is_fenced) in [(vec![0xff01, 0xff02], false), (vec![0xff01, 99], true)] {
        let mut world = registered(1);
        world.target.medium.registrations.clear();
        world.target.medium.others = others;
        world.cut(0);
        world.pass(SECOND);
        assert_eq!(world.remote.status().is_fenced, is_fenced);
    }
}

#[test]
fn a_disk_where_only_another_session_of_this_side_is_registered_anew_has_forgotten_this_one() {
    let mut world = registered(1);
    let own = world.target.medium.registrations.values().copied().next().unwrap();
    world.target.medium.registrations.clear();
    world.target.medium.registrations.insert([9; 6], own);
    world.cut(0);
    world.pass(SECOND);
    assert!(!world.remote.status().is_fenced);
    assert!(world.remote.last_failure().contains("forgotten"), "{}", world.remote.last_failure());
}

#[test]
fn one_conflict_of_a_session_that_is_registered_is_not_the_end() {
    let mut world = registered(1);
    world.target.refuse(WRITE, 1, conflict());
    let write = world.write(1, 0x11);
    world.assert_done(write);
    // It has been asked whether the session is registered still.
    assert_eq!(world.commands()[..2], [WRITE, RESERVE_OUT]);
    assert!(!world.remote.status().is_fenced);
}

#[test]
fn a_disk_that_contradicts_itself_has_failed_and_nobody_has_taken_over() {
    for sessions in [1, 2] {
        let mut world = registered(sessions);
        world.target.refuse(WRITE, 100, conflict());
        let write = world.write(1, 0x11);
        world.pass(SECOND);
        world.assert_failed(write, ErrorKind::Device);
        assert_eq!(world.count(WRITE), usize::from(sessions) + 1);
        assert!(!world.remote.status().is_fenced);
        world.assert_read(2, 0);
    }
}

#[test]
fn a_conflict_without_a_registration_ends_the_request_alone() {
    let mut world = World::opened();
    world.target.medium.is_reserved = true;
    let write = world.write(1, 0x11);
    world.assert_failed(write, ErrorKind::Fenced);
    assert!(!world.remote.status().is_fenced);
    world.assert_read(1, 0);
}

#[test]
fn nothing_is_written_after_the_registration_was_given_back_and_that_is_no_fencing() {
    let mut world = registered(1);
    world.remote.handle_leaving(world.now);
    world.order(1, Order::Register { key: 0, ignore: true });
    assert_eq!(world.answer(1), Ok(Vec::new()));
    let write = world.write(1, 0x11);
    world.assert_failed(write, ErrorKind::Aborted);
    assert!(!world.remote.status().is_fenced && !world.commands().contains(&WRITE));
}

#[test]
fn a_change_of_others_reservations_is_no_fencing() {
    let mut world = registered(1);
    world.target.medium.tell(Additional::RESERVATIONS_RELEASED);
    let write = world.write(1, 0x11);
    world.assert_done(write);
    assert!(!world.remote.status().is_fenced);
    assert_eq!(world.losses(), 0);
}

/// READ KEYS of a logical unit that is gone.
fn gone() -> Answer {
    Answer::sense(SenseKey::IllegalRequest, Additional::LOGICAL_UNIT_NOT_SUPPORTED)
}

#[test]
fn a_logical_unit_that_goes_before_its_keys_are_read_was_taken_over_by_nobody() {
    let mut world = registered(1);
    world.target.medium.registrations.clear();
    world.target.refuse(RESERVE_IN, 1, gone());
    world.cut(0);
    world.pass(10 * SECOND);
    let status = world.remote.status();
    assert!(!status.is_fenced && !status.is_connected, "{}", world.remote.last_failure());
    assert!(world.remote.last_failure().contains("forgotten"), "the next session has read them");
}

#[test]
fn a_takeover_is_learnt_where_the_logical_unit_went_before_its_keys_were_read() {
    for sessions in [1, 2] {
        let mut world = registered(sessions);
        world.target.medium.take_over();
        world.target.medium.attentions.values_mut().for_each(std::collections::VecDeque::clear);
        world.target.refuse(RESERVE_IN, 1, gone());
        (0..sessions).for_each(|at| world.cut(at.into()));
        world.pass(10 * SECOND);
        assert_fenced(&mut world);
    }
}

#[test]
fn keys_that_a_disk_does_not_tell_count_as_those_of_another_host() {
    for answer in [Answer::unknown(), Answer::data(vec![0; 3])] {
        let mut world = registered(1);
        world.target.medium.registrations.clear();
        world.target.refuse(RESERVE_IN, 1, answer);
        world.cut(0);
        world.pass(10 * SECOND);
        assert_fenced(&mut world);
    }
}

#[test]
fn a_takeover_is_learnt_after_an_examination_that_failed() {
    let mut world = registered(2);
    world.target.holds = vec![RESERVE_OUT, WRITE];
    let write = world.write(1, 0x11);
    world.cut(0);
    world.pass(3 * SECOND);
    world.target.medium.take_over();
    world.target.holds.clear();
    world.pass(10 * SECOND);
    let read = world.read(1);
    world.pass(10 * SECOND);
    assert!(world.has_ended(write) && world.has_ended(read));
    assert!(world.remote.status().is_fenced);
}
