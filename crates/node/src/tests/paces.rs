//! A target that is paced.

use super::*;
use netraid_block::Op;

fn paced() -> (Rc<Site>, Session) {
    let site = Site::new();
    let session = session_with(&site, 1, Setup { paced: true, ..setup() });
    (site, session)
}

/// What was asked for first is granted.
fn grant(session: &mut Session) {
    session.outside.pace().grant();
    session.wake();
}

fn places(session: &Session) -> i32 {
    session.outside.pace().places.get()
}

#[test]
fn a_command_begins_when_it_is_granted_and_gives_its_place_back() {
    let (site, mut session) = paced();
    let tag = session.read(0, 0);
    assert!(!was_submitted(&seen(&site)));
    grant(&mut session);
    assert!(was_submitted(&seen(&site)));
    assert_eq!(places(&session), 1);
    session.finish(Ok(()));
    assert_eq!((session.status(tag), places(&session)), (GOOD, 0));
}

#[test]
fn whoever_takes_its_answer_late_keeps_others_from_nothing() {
    let (site, mut session) = paced();
    session.read(0, 0);
    grant(&mut session);
    session.finish_unheard(Ok(()));
    assert_eq!((places(&session), site.running()), (0, [0, 0]));
}

#[test]
fn a_write_asks_for_its_data_and_begins_by_what_was_granted_then() {
    let (site, mut session) = paced();
    let tag = session.announce_write(0);
    assert!(session.asked.is_empty(), "its data is not asked for before that is granted");
    grant(&mut session);
    assert_eq!((session.asked.len(), places(&session)), (1, 0));
    session.give_data(5);
    let seen = seen(&site);
    assert!(seen.contains(&Seen::Begin) && was_submitted(&seen), "{seen:?}");
    assert_eq!(places(&session), 1);
    session.finish(Ok(()));
    assert_eq!((session.status(tag), places(&session)), (GOOD, 0));
}

#[test]
fn a_task_asks_for_one_grant_at_a_time_each_by_a_number_of_its_own() {
    let (site, mut session) = paced();
    let mut cdb = [0; 16];
    // Longer than a piece of data.
    (cdb[0], cdb[8]) = (0x2a, 32);
    session.command(0, &cdb, (0, 32 * BLOCK_LEN), &[]);
    session.read(0, 0);
    let asked: Vec<_> =
        session.outside.pace().asked.borrow().iter().map(|one| one.number).collect();
    assert_eq!(asked.len(), 2, "one for each: {:?}", seen(&site));
    assert_ne!(asked[0], asked[1]);
}

#[test]
fn what_waits_for_its_grant_is_withdrawn_when_it_is_aborted() {
    let (site, mut session) = paced();
    let tag = session.read(0, 0);
    let number = session.outside.pace().asked.borrow()[0].number;
    session.manage(TaskFunction::AbortTask, 0, tag);
    assert!(seen(&site).contains(&Seen::Withdraw(number)));
    assert_eq!(places(&session), 0);
}

#[test]
fn a_grant_that_comes_after_it_was_withdrawn_is_given_back() {
    let (site, mut session) = paced();
    let tag = session.read(0, 0);
    session.outside.pace().grant();
    session.manage(TaskFunction::AbortTask, 0, tag);
    // The next command has the place of the one that was aborted.
    session.read(0, 0);
    assert_eq!(places(&session), 1);
    session.wake();
    assert!(!was_submitted(&seen(&site)), "it was granted to another command");
    assert_eq!(places(&session), 0);
}

#[test]
fn a_grant_for_data_that_comes_after_it_was_withdrawn_took_no_place() {
    let (_, mut session) = paced();
    let tag = session.announce_write(0);
    session.outside.pace().grant();
    session.manage(TaskFunction::AbortTask, 0, tag);
    session.wake();
    assert_eq!(places(&session), 0);
}

#[test]
fn whoever_waits_for_hours_keeps_no_place() {
    let (site, mut session) = paced();
    session.command(0, &[0x48, 0x02, 0, 0, 0, 0, 0, 0, 0, 0], (0, 0), &[]);
    grant(&mut session);
    let seen = seen(&site);
    assert!(seen.contains(&Seen::Wait(0)), "{seen:?}");
    assert_eq!(places(&session), 0);
    assert!(seen.contains(&Seen::Done), "{seen:?}");
}

#[test]
fn a_command_that_was_aborted_at_the_device_keeps_its_place_until_it_ends() {
    let (_, mut session) = paced();
    let tag = session.read(0, 0);
    grant(&mut session);
    session.manage(TaskFunction::AbortTask, 0, tag);
    assert_eq!(places(&session), 1);
    session.finish(Ok(()));
    assert_eq!(places(&session), 0);
}

#[test]
fn what_waited_for_its_grant_is_decided_anew() {
    let (site, mut session) = paced();
    let mut other = session_with(&site, 2, setup());
    let tag = session.read(0, 0);
    // RESERVE (6).
    assert_eq!(other.run(0, &[0x16, 0, 0, 0, 0, 0]).status, GOOD);
    grant(&mut session);
    assert_eq!(session.status(tag), RESERVATION_CONFLICT);
    assert!(!seen(&site).contains(&Seen::Submit(0, Op::Read, crate::Place::Same)));
    assert_eq!((site.running(), places(&session)), ([0, 0], 0));
}

#[test]
fn a_copy_keeps_no_place_while_it_goes_on() {
    let (site, mut session) = paced();
    let list = copies::list();
    session.command(0, &copies::cdb_of(&list), (0, list.len()), &[]);
    grant(&mut session);
    session.give(list);
    grant(&mut session);
    let seen = seen(&site);
    assert!(seen.contains(&Seen::Done) && was_submitted(&seen), "{seen:?}");
    assert_eq!(places(&session), 0);
}
