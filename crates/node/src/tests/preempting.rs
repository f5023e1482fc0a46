//! PREEMPT AND ABORT.

use super::*;

const REGISTER: u8 = 0;
const PREEMPT_AND_ABORT: u8 = 5;
const REGISTER_AND_IGNORE: u8 = 6;

fn register(session: &mut Session, key: u8) {
    let tag = session.reserve_out(REGISTER, (0, key));
    session.finish(Ok(()));
    assert_eq!(session.status(tag), GOOD);
}

#[test]
fn a_preempting_command_ends_when_what_it_preempted_has() {
    let site = Site::new();
    let (mut first, mut second) = (session(&site, 1), session(&site, 2));
    register(&mut first, 1);
    register(&mut second, 2);
    let read = second.read(0, 0);
    let preempt = first.reserve_out(PREEMPT_AND_ABORT, (1, 2));
    first.finish(Ok(()));
    second.wake();
    first.wake();
    assert_eq!(first.try_answer(preempt), None, "the read is still at the device");
    second.finish(Ok(()));
    first.wake();
    assert_eq!(first.status(preempt), GOOD);
    assert_eq!(second.try_answer(read), None, "what was aborted is not answered");
    assert_eq!(site.running(), [0, 0]);
}

#[test]
fn no_reservation_changes_while_something_that_was_preempted_may_still_be_written() {
    let site = Site::new();
    let [mut dead, mut first] = [session(&site, 1), session(&site, 2)];
    register(&mut dead, 1);
    register(&mut first, 2);
    dead.write(0, 0);
    first.reserve_out(PREEMPT_AND_ABORT, (2, 1));
    first.finish(Ok(()));
    dead.wake();
    // Whoever preempted it waits no longer, and nobody is registered any more who would tell of the write.
    first.close();
    let mut second = session(&site, 3);
    let early = second.reserve_out(REGISTER, (0, 3));
    assert_eq!(second.status(early), BUSY);
    dead.finish(Ok(()));
    register(&mut second, 3);
}

#[test]
fn who_changes_nothing_is_answered_while_something_that_was_preempted_may_still_be_written() {
    let site = Site::new();
    let [mut dead, mut first, mut other] = [1, 2, 3].map(|number| session(&site, number));
    for (number, session) in [(1, &mut dead), (2, &mut first), (3, &mut other)] {
        register(session, number);
    }
    dead.write(0, 0);
    let preempt = first.reserve_out(PREEMPT_AND_ABORT, (2, 1));
    first.finish(Ok(()));
    // As a session makes sure that it is registered still.
    let asks = other.reserve_out(REGISTER, (3, 3));
    assert_eq!(other.status(asks), GOOD);
    let changes = other.reserve_out(REGISTER, (3, 4));
    assert_eq!(other.status(changes), BUSY);
    // As who gave up waiting for what it preempted begins again, with the key that it has.
    let begins = other.reserve_out(REGISTER_AND_IGNORE, (0, 3));
    assert_eq!(other.status(begins), BUSY);
    dead.wake();
    dead.finish(Ok(()));
    first.wake();
    assert_eq!(first.status(preempt), GOOD);
    let asks = other.reserve_out(REGISTER, (3, 4));
    other.finish(Ok(()));
    assert_eq!(other.status(asks), GOOD);
}

#[test]
fn what_a_reset_ended_keeps_no_reservation_from_changing() {
    let site = Site::new();
    let [mut other, mut first] = [session(&site, 1), session(&site, 2)];
    register(&mut other, 1);
    other.write(0, 0);
    first.manage(TaskFunction::LogicalUnitReset, 0, 0);
    other.wake();
    // It is told of the reset first.
    first.run(0, &build::test_unit_ready());
    register(&mut first, 2);
    other.finish(Ok(()));
}

#[test]
fn a_session_whose_commands_were_cleared_by_another_is_told() {
    let site = Site::new();
    let (mut first, mut second) = (session(&site, 1), session(&site, 2));
    second.read(0, 0);
    let function = first.manage(TaskFunction::ClearTaskSet, 0, 0);
    second.wake();
    second.finish(Ok(()));
    first.wake();
    assert_eq!(first.functions, [(function, TaskResponseCode::Complete)]);
    let told = second.run(0, &build::test_unit_ready());
    assert_eq!(told.sense, Some(Additional::COMMANDS_CLEARED_BY_ANOTHER));
    assert_eq!(first.run(0, &build::test_unit_ready()).status, GOOD);
}

#[test]
fn what_ends_commands_of_several_sessions_is_answered_when_all_of_them_have_ended() {
    let site = Site::new();
    let [mut first, mut second, mut third] = [1, 2, 3].map(|number| session(&site, number));
    second.write(0, 0);
    third.write(0, 1);
    let function = first.manage(TaskFunction::ClearTaskSet, 0, 0);
    second.wake();
    third.wake();
    second.finish(Ok(()));
    first.wake();
    assert!(first.functions.is_empty(), "a write of the third session is at the device");
    third.finish(Ok(()));
    first.wake();
    assert_eq!(first.functions, [(function, TaskResponseCode::Complete)]);
}

#[test]
fn a_reset_reaches_the_units_that_it_names() {
    let site = Site::new();
    let functions = [
        (TaskFunction::LogicalUnitReset, [CHECK_CONDITION, GOOD]),
        (TaskFunction::TargetWarmReset, [CHECK_CONDITION; 2]),
    ];
    let mut session = session(&site, 1);
    for (function, expected) in functions {
        session.manage(function, 0, 0);
        let mut told = |lun| session.run(lun, &build::test_unit_ready()).status;
        assert_eq!([told(0), told(1)], expected, "{function:?}");
    }
}
