//! A disk that may have lost what was not flushed: that is counted before anything ends that comes after.

use super::*;

#[test]
fn a_cache_that_is_lost_under_a_session_is_counted_before_the_next_request_ends() {
    let mut world = World::opened();
    let write = world.write(1, 0x11);
    world.target.medium.lose_cache();
    let read = world.read(1);
    assert_eq!(world.result(read), Ok(full(0)));
    assert_eq!((world.losses_at[&write], world.losses_at[&read]), (0, 1));
}

#[test]
fn what_is_under_way_when_the_cache_is_lost_is_sent_again() {
    let mut world = World::opened();
    world.target.holds = vec![WRITE];
    let write = world.write(1, 0x11);
    world.target.medium.lose_cache();
    // Without an answer.
    world.conn(0).tasks.clear();
    world.target.holds.clear();
    let read = world.read(2);
    world.pass(20 * MILLI);
    assert_eq!(world.result(read), Ok(full(0)));
    world.assert_done(write);
    assert_eq!(world.losses_at[&write], 1);
    assert_eq!(world.count(WRITE), 2);
}

#[test]
fn a_disk_that_remembers_the_session_has_kept_its_cache() {
    let mut world = World::opened();
    let write = world.write(1, 0x11);
    world.cut(0);
    world.pass(SECOND);
    assert_eq!((world.remote.status().reconnects, world.losses()), (1, 0));
    world.assert_done(write);
}

#[test]
fn of_a_disk_that_does_not_tell_that_the_session_was_lost_nothing_is_known() {
    let mut world = World::opened();
    world.target.medium.remembers = false;
    world.cut(0);
    world.pass(SECOND);
    assert_eq!((world.remote.status().reconnects, world.losses()), (1, 1));
}

#[test]
fn a_restart_is_counted_before_anything_ends() {
    let mut world = World::opened();
    world.target.holds = vec![FLUSH];
    world.write(1, 0x11);
    let flush = world.flush();
    world.restart();
    world.target.holds.clear();
    world.pass(SECOND);
    world.assert_done(flush);
    assert_eq!(world.losses_at[&flush], 1);
    assert_eq!(world.losses(), 1);
}

#[test]
fn a_first_session_after_all_others_were_lost_may_meet_a_lost_cache() {
    let mut world = World::opened_with(|settings, _| {
        settings.portals = vec![portal("a"), portal("b")];
        settings.sessions = 2;
    });
    // The second session was there, and what the first wrote is known to nobody else.
    world.pass(SECOND);
    assert_eq!(world.losses(), 0);
    world.restart();
    world.pass(SECOND);
    assert!(world.losses() >= 1);
}

#[test]
fn a_session_that_was_never_there_says_nothing_of_the_cache_while_others_are() {
    let mut world = World::wide(2);
    world.pass(SECOND);
    assert!(world.is_connected(1));
    assert_eq!(world.losses(), 0);
}

#[test]
fn an_error_of_an_earlier_command_is_a_lost_cache() {
    let mut world = World::opened();
    world.target.refuse(READ, 1, Answer::deferred());
    let read = world.read(1);
    assert_eq!(world.result(read), Ok(full(0)));
    assert_eq!(world.losses_at[&read], 1);
}

#[test]
fn what_a_command_tells_that_was_given_up_counts() {
    let mut world = World::opened();
    world.target.holds = vec![READ];
    world.target.aborts = None;
    let read = world.read(1);
    world.pass(TIME);
    world.assert_failed(read, ErrorKind::Timeout);
    assert_eq!(world.losses(), 0);
    world.answer_held(0, Answer::attention(Additional::POWER_ON_OR_RESET));
    assert_eq!(world.losses(), 1);
}

#[test]
fn what_an_order_tells_that_was_given_up_counts() {
    let mut world = World::opened();
    world.target.holds = vec![RESERVE_OUT];
    world.target.aborts = None;
    world.order(1, Order::Register { key: 7, ignore: true });
    world.pass(TIME);
    assert_eq!(world.answer(1), Err(ErrorKind::Timeout));
    world.answer_held(0, Answer::attention(Additional::POWER_ON_OR_RESET));
    assert_eq!(world.losses(), 1);
}

#[test]
fn what_a_disk_tells_an_examination_that_fails_is_not_forgotten() {
    let mut world = World::opened();
    world.target.holds = vec![INQUIRY];
    world.restart();
    world.pass(SECOND);
    assert_eq!(world.losses(), 0, "the session is not made yet");
    // It has told it, and will not tell it again.
    world.target.holds.clear();
    world.cut(0);
    world.pass(SECOND);
    assert_eq!(world.remote.status().reconnects, 1);
    assert_eq!(world.losses(), 1);
}

#[test]
fn what_a_disk_tells_in_the_middle_of_an_examination_that_fails_is_not_forgotten() {
    const READ_CAPACITY: u8 = 0x9e;
    const MODE_SENSE: u8 = 0x1a;
    let mut world = World::opened();
    let power_on = Answer::attention(Additional::POWER_ON);
    world.target.refuse(READ_CAPACITY, 1, power_on);
    world.target.holds = vec![MODE_SENSE];
    world.cut(0);
    world.pass(SECOND);
    assert_eq!(world.losses(), 0, "the session is not made yet");
    world.target.holds.clear();
    world.cut(0);
    world.pass(SECOND);
    assert_eq!((world.remote.status().reconnects, world.losses()), (1, 1));
}

#[test]
fn a_forced_write_that_a_flush_stands_for_is_written_again_after_a_lost_cache() {
    let mut world = World::opened();
    world.target.holds = vec![FLUSH];
    let write = world.write_forced(1, 0x11);
    assert_eq!(world.commands(), [WRITE, FLUSH]);
    world.target.medium.lose_cache();
    world.release();
    world.assert_done(write);
    assert_eq!(world.count(WRITE), 2);
    assert_eq!(world.target.medium.stable[512..1024], full(0x11));
}

#[test]
fn a_forced_write_has_the_bit_where_the_disk_knows_it() {
    let mut world = World::opened_with(|_, target| target.medium.dpofua = true);
    let write = world.write_forced(1, 0x11);
    world.assert_done(write);
    assert_eq!(world.commands(), [WRITE]);
    assert_eq!(world.target.medium.stable[512..1024], full(0x11));
}

#[test]
fn a_disk_that_refuses_the_bit_is_flushed_instead() {
    let mut world = World::opened_with(|_, target| target.medium.dpofua = true);
    let field = Additional::INVALID_FIELD_IN_CDB;
    world.target.refuse(WRITE, 1, Answer::sense(SenseKey::IllegalRequest, field));
    let write = world.write_forced(1, 0x11);
    world.assert_done(write);
    assert_eq!(world.commands(), [WRITE, WRITE, FLUSH]);
    assert_eq!(world.told(|event| *event == Event::NoForcedWrites), 1);
    world.sent.clear();
    world.write_forced(1, 0x12);
    assert_eq!(world.commands(), [WRITE, FLUSH]);
}

#[test]
fn a_flush_that_fails_ends_so() {
    let mut world = World::opened();
    let answer = Answer::sense(SenseKey::MediumError, Additional::WRITE_ERROR);
    world.target.refuse(FLUSH, 1, answer);
    let flush = world.flush();
    world.assert_failed(flush, ErrorKind::Medium);
}

#[test]
fn a_busy_disk_is_asked_again() {
    for status in [Scsi::Busy, Scsi::TaskSetFull, Scsi::TaskAborted] {
        let mut world = World::opened();
        world.target.refuse(WRITE, 3, Answer::status(status));
        let write = world.write(1, 0x11);
        assert!(!world.has_ended(write));
        world.pass(30 * MILLI);
        world.assert_done(write);
        assert_eq!(world.count(WRITE), 4);
    }
}

#[test]
fn what_waits_for_a_disk_that_was_restarted_is_not_sent_where_requests_rely_on_what_it_had() {
    let mut world = World::opened();
    world.remote.handle_reliance(world.now, world.losses());
    world.target.holds = vec![WRITE];
    let under_way = world.write(1, 0x11);
    let waits = world.write(2, 0x22);
    world.restart();
    world.target.holds.clear();
    world.pass(SECOND);
    assert_eq!((world.remote.status().reconnects, world.losses()), (1, 1));
    world.assert_failed(under_way, ErrorKind::Unreachable);
    world.assert_failed(waits, ErrorKind::Unreachable);
    // Nor is what comes later.
    let later = world.write(3, 0x33);
    world.assert_failed(later, ErrorKind::Unreachable);
    assert_eq!(world.count(WRITE), 2);
    // It is told once what it had lost when it was given what counts now.
    world.remote.handle_reliance(world.now, world.losses());
    let anew = world.write(4, 0x44);
    world.assert_done(anew);
}

#[test]
fn a_disk_that_has_lost_its_cache_is_given_nothing_again_that_rests_on_what_it_had() {
    let mut world = World::opened();
    world.remote.handle_reliance(world.now, world.losses());
    world.target.holds = vec![WRITE];
    let write = world.write(1, 0x11);
    world.target.medium.lose_cache();
    // Without an answer.
    world.conn(0).tasks.clear();
    world.target.holds.clear();
    let read = world.read(2);
    world.pass(20 * MILLI);
    world.assert_failed(read, ErrorKind::Unreachable);
    world.assert_failed(write, ErrorKind::Unreachable);
    assert_eq!(world.count(WRITE), 1);
}

#[test]
fn requests_that_rely_on_a_cache_go_on_where_only_the_connection_was_lost() {
    let mut world = World::opened();
    world.remote.handle_reliance(world.now, world.losses());
    world.target.holds = vec![WRITE];
    let write = world.write(1, 0x11);
    world.cut(0);
    world.target.holds.clear();
    world.pass(SECOND);
    assert_eq!(world.losses(), 0);
    world.assert_done(write);
}
