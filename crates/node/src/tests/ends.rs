//! How commands and sessions end.

use super::*;

#[test]
fn what_was_aborted_does_not_begin_what_is_left_of_it() {
    let site = Site::new();
    let mut session = session(&site, 1);
    let tag = session.compare_and_write(0);
    let function = session.manage(TaskFunction::AbortTask, 0, tag);
    assert!(session.functions.is_empty(), "it is at the device");
    seen(&site);
    session.finish(Ok(()));
    assert_eq!(seen(&site), [Seen::CountAborted, Seen::Leave(0)]);
    assert_eq!(session.functions, [(function, TaskResponseCode::Complete)]);
    assert_eq!(session.try_answer(tag), None);
}

#[test]
fn what_was_aborted_holds_nothing_of_its_unit() {
    let site = Site::new();
    let mut session = session(&site, 1);
    let tag = session.compare_and_write(0);
    session.manage(TaskFunction::AbortTask, 0, tag);
    session.finish(Ok(()));
    seen(&site);
    let tag = session.write(0, 0);
    assert!(was_submitted(&seen(&site)), "{:?}", session.try_answer(tag));
}

#[test]
fn what_was_read_is_sent_in_its_order() {
    let site = Site::new();
    let mut session = session(&site, 1);
    // More than a PDU takes.
    let cdb = build::read(Extent { lba: 0, blocks: 40 }, false);
    let tag = session.command(0, &cdb, (40 * BLOCK_LEN, 0), &[]);
    let (task, _) = session.outside.under_way.remove(0);
    let bytes: Vec<_> = (0..40).flat_map(|block| [block; BLOCK_LEN]).collect();
    let read = Ok(Buf::copy_from(&bytes).into());
    session.service.handle_completed(&mut session.outside, task.index(), read);
    session.service.handle_ends_taken(&mut session.outside);
    session.receive();
    assert_eq!(session.answer(tag), Answer { status: GOOD, sense: None, data: bytes });
}

#[test]
fn a_request_that_was_kept_back_is_decided_anew() {
    let site = Site::new();
    // One command alone may have more.
    let setup = Setup { data_budget: 1, ..setup() };
    let (mut session, mut other) = (session_with(&site, 1, setup), session(&site, 2));
    let (first, second) = (session.read(0, 0), session.read(0, 1));
    assert_eq!(session.outside.under_way.len(), 1, "the second one waits for memory");
    // RESERVE (6).
    assert_eq!(other.run(0, &[0x16, 0, 0, 0, 0, 0]).status, GOOD);
    session.finish(Ok(()));
    assert_eq!(session.status(first), GOOD);
    assert_eq!(session.status(second), RESERVATION_CONFLICT);
    assert_eq!(site.running(), [0, 0]);
}

#[test]
fn a_session_ends_when_its_requests_have_and_leaves_nothing() {
    let site = Site::new();
    let mut session = session_with(&site, 1, Setup { paced: true, ..setup() });
    session.read(0, 0);
    session.outside.pace().grant();
    session.wake();
    session.announce_write(1);
    session.service.handle_disconnect(&mut session.outside);
    assert!(!session.service.is_idle(), "a request is at the device");
    session.finish(Ok(()));
    seen(&site);
    session.close();
    assert_eq!(seen(&site), [Seen::Gone]);
    assert_eq!((site.running(), session.outside.pace().places.get()), ([0, 0], 0));
    assert!(session.outside.pace().asked.borrow().is_empty());
    assert_eq!(site.node.borrow().session_count(), 0);
}

#[test]
fn a_command_is_at_its_device_until_its_request_has_ended_also_without_a_connection() {
    let site = Site::new();
    let mut session = session(&site, 1);
    session.write(0, 0);
    session.service.handle_disconnect(&mut session.outside);
    assert_eq!(site.running(), [1, 0], "whoever takes the device away waits for it");
    session.finish(Ok(()));
    assert_eq!(site.running(), [0, 0]);
}

#[test]
fn a_session_that_broke_off_leaves_nothing_either() {
    let site = Site::new();
    let mut session = session_with(&site, 1, Setup { paced: true, ..setup() });
    session.read(0, 0);
    session.outside.pace().grant();
    session.wake();
    session.announce_write(1);
    seen(&site);
    session.service.end(&mut session.outside);
    let seen = seen(&site);
    let aborted = seen.iter().filter(|one| **one == Seen::CountAborted).count();
    assert_eq!((aborted, seen.last()), (2, Some(&Seen::Gone)));
    assert_eq!((site.running(), session.outside.pace().places.get()), ([0, 0], 0));
    assert!(session.outside.pace().asked.borrow().is_empty());
}

#[test]
fn whoever_has_reserved_a_unit_by_reserve_loses_it_with_its_session() {
    let site = Site::new();
    let (mut session, mut other) = (session(&site, 1), session(&site, 2));
    // RESERVE (6).
    assert_eq!(session.run(0, &[0x16, 0, 0, 0, 0, 0]).status, GOOD);
    assert_eq!(other.run(0, &build::test_unit_ready()).status, RESERVATION_CONFLICT);
    session.close();
    assert_eq!(other.run(0, &build::test_unit_ready()).status, GOOD);
}

#[test]
fn commands_are_known_by_their_tags_until_their_places_are_free() {
    let site = Site::new();
    let mut session = session(&site, 1);
    let (first, second) = (session.read(0, 0), session.announce_write(0));
    let tags = |session: &Session| {
        let mut tags: Vec<_> = session.service.commands().map(|(_, tag)| tag).collect();
        tags.sort_unstable();
        tags
    };
    assert_eq!(tags(&session), [first, second]);
    session.finish(Ok(()));
    assert_eq!(tags(&session), [second]);
}
