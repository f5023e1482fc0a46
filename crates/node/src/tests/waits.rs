//! Commands that wait for the background work of a LUN.

use super::{
    site::{Bars, FakeGuest},
    *,
};
use crate::Moment;

/// BLOCK ERASE, until it has ended.
const SANITIZE: [u8; 10] = [0x48, 0x02, 0, 0, 0, 0, 0, 0, 0, 0];

fn sanitize(session: &mut Session) -> u32 {
    session.command(0, &SANITIZE, (0, 0), &[])
}

#[test]
fn a_wait_that_has_ended_is_answered_and_not_abandoned() {
    let site = Site::new();
    let mut session = session(&site, 1);
    let tag = sanitize(&mut session);
    assert!(seen(&site).contains(&Seen::Wait(0)));
    session.finish(Ok(()));
    assert_eq!(session.status(tag), GOOD);
    session.service.abandon_waits(&mut session.outside);
    assert!(!seen(&site).contains(&Seen::Abandon(0)));
}

#[test]
fn nobody_is_at_the_device_while_waiting() {
    let site = Site::new();
    let mut session = session(&site, 1);
    sanitize(&mut session);
    assert_eq!(site.running(), [0, 0]);
}

#[test]
fn a_policy_that_denies_the_erasure_is_asked_before_the_wait() {
    let site = Site::new();
    let mut session = session(&site, 1);
    site.lun(0).set_policy(Some(Moment::BeforeData));
    let tag = sanitize(&mut session);
    assert_eq!(session.sense(tag), Additional::ACCESS_DENIED);
    assert!(!seen(&site).contains(&Seen::Wait(0)));
}

#[test]
fn a_policy_that_came_with_the_data_of_an_erasure_is_asked() {
    let site = Site::new();
    let mut session = session(&site, 1);
    // OVERWRITE.
    let cdb = [0x48, 0x01, 0, 0, 0, 0, 0, 0, 5, 0];
    let tag = session.command(0, &cdb, (0, 5), &[]);
    site.lun(0).set_policy(Some(Moment::BeforeData));
    // Once, with a pattern of one byte.
    session.give([1, 0, 0, 1, 0xa5].to_vec());
    assert_eq!(session.sense(tag), Additional::ACCESS_DENIED);
    assert!(!seen(&site).contains(&Seen::Wait(0)));
}

#[test]
fn a_grant_that_ended_while_an_erasure_waited_for_its_place_is_missed() {
    for bars in [Bars::What(Moment::BeforeData), Bars::Needs] {
        let site = Site::new();
        let mut session = session_with(&site, 1, Setup { paced: true, ..setup() });
        session.outside.guest = Some(FakeGuest::new(&site));
        let tag = sanitize(&mut session);
        session.outside.grant().bars.set(bars);
        session.outside.pace().grant();
        session.wake();
        assert_eq!(session.sense(tag), Additional::ACCESS_DENIED, "{bars:?}");
        assert!(!seen(&site).contains(&Seen::Wait(0)));
        assert_eq!(session.outside.pace().places.get(), 0);
    }
}

#[test]
fn a_wait_whose_command_was_aborted_is_abandoned() {
    let site = Site::new();
    let mut session = session(&site, 1);
    let tag = sanitize(&mut session);
    let function = session.manage(TaskFunction::AbortTask, 0, tag);
    assert!(seen(&site).contains(&Seen::Abandon(0)));
    session.finish(Err(ErrorKind::Aborted));
    assert_eq!(session.functions, [(function, TaskResponseCode::Complete)]);
    assert_eq!(session.try_answer(tag), None);
}

#[test]
fn waits_are_abandoned_with_their_session() {
    let site = Site::new();
    let mut session = session(&site, 1);
    sanitize(&mut session);
    session.service.handle_disconnect(&mut session.outside);
    assert!(seen(&site).contains(&Seen::Abandon(0)));
}

#[test]
fn waits_of_a_session_that_broke_off_are_abandoned() {
    let site = Site::new();
    let mut session = session(&site, 1);
    sanitize(&mut session);
    session.service.abandon_waits(&mut session.outside);
    session.service.abandon_waits(&mut session.outside);
    let seen = seen(&site);
    let count = seen.iter().filter(|one| **one == Seen::Abandon(0)).count();
    assert_eq!(count, 1, "each once: {seen:?}");
}
