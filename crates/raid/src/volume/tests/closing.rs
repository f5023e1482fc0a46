//! Opening, failing and closing.

use super::*;

#[test]
fn the_machine_closes_once_when_users_requests_have_ended() {
    let mut rig = Rig::opened();
    let ids: Vec<RequestId> = (0..2).map(|user| rig.read(user, 0, 512)[0]).collect();
    rig.volume.handle_close();
    rig.volume.handle_close();
    for id in ids {
        assert!(rig.seen().is_empty() && rig.calls().is_empty(), "a request is under way");
        rig.complete(id, no_data());
        assert_eq!(rig.seen().len(), 1);
    }
    assert_eq!(rig.calls(), [Call::Close]);
    rig.volume.handle_close();
    assert!(rig.seen().is_empty() && rig.calls().is_empty());
    assert!(!rig.volume.is_closed());
    // What the machine still asks for goes on.
    let sent = rig.submit(0, 1, (Op::Flush, 0, 0));
    rig.end(sent[0].tag, no_data());
    assert_eq!(rig.calls().len(), 1);
    rig.machine().events.push_back(Told::Closed);
    assert!(rig.seen().is_empty());
    assert!(rig.volume.is_closed());
    rig.volume.handle_close();
    assert!(rig.seen().is_empty() && rig.calls().is_empty());
    assert!(rig.volume.is_closed());
}

#[test]
fn large_reads_that_wait_end_before_the_machine_closes() {
    let mut rig = Rig::opened_with(|_, config| config.reads_under_way = Some(2 * MIB));
    let mut ids: Vec<RequestId> = (0..4).flat_map(|user| rig.read(user, 0, MIB)).collect();
    rig.volume.handle_close();
    for at in 0..4 {
        assert!(rig.calls().is_empty());
        rig.complete(ids[at], no_data());
        assert_eq!(rig.seen().len(), 1);
        ids.extend(if at < 2 { rig.requests() } else { Vec::new() });
    }
    assert_eq!(rig.calls(), [Call::Close]);
}

#[test]
fn a_failed_array_with_a_log_is_closed_at_once_by_command() {
    let mut rig = Rig::opened();
    rig.fail();
    rig.seen();
    assert!(!rig.volume.is_closed());
    rig.volume.handle_close();
    assert!(rig.seen().is_empty());
    assert!(rig.volume.is_closed());
    assert_eq!(rig.calls(), [Call::Close]);
}

#[test]
fn a_failed_array_without_a_log_closes_when_the_machine_says_so() {
    let mut rig = Rig::opened_with(|script, _| script.has_log = false);
    rig.machine().failure = Some(ErrorKind::Redundancy.into());
    rig.seen();
    rig.volume.handle_close();
    assert!(rig.seen().is_empty());
    assert_eq!(rig.calls(), [Call::Close]);
    assert!(!rig.volume.is_closed());
    rig.machine().events.push_back(Told::Closed);
    rig.seen();
    assert!(rig.volume.is_closed());
}

#[test]
fn a_machine_that_closes_while_it_opens_ends_the_opening_with_its_failure() {
    let mut rig = Rig::opening_with(|_, _| {});
    assert!(rig.seen().is_empty());
    rig.fail();
    assert_eq!(rig.seen(), [Seen::Opened(Err(ErrorKind::Redundancy.into()))]);
    assert!(rig.volume.is_closed() && !rig.volume.accepts());
    rig.volume.handle_close();
    assert!(rig.seen().is_empty());
    assert!(rig.calls().is_empty(), "it has closed");
}

#[test]
fn a_machine_that_closes_without_a_failure_is_closed() {
    let mut rig = Rig::opened();
    rig.machine().events.push_back(Told::Closed);
    assert!(rig.seen().is_empty());
    assert!(rig.volume.is_closed() && !rig.volume.accepts());
}

#[test]
fn a_machine_that_fails_when_it_is_open_stays_until_it_is_told_to_close() {
    let mut rig = Rig::opened();
    rig.fail();
    assert!(rig.seen().is_empty(), "the opening has ended before");
    assert!(!rig.volume.is_closed() && rig.volume.accepts());
    // Requests end with its failure.
    let id = rig.read(1, 0, 512)[0];
    rig.volume.handle_close();
    assert!(rig.seen().is_empty());
    assert!(!rig.volume.is_closed());
    rig.complete(id, Err(ErrorKind::Redundancy.into()));
    assert_eq!(rig.seen().len(), 1);
    assert!(rig.volume.is_closed());
}

#[test]
fn a_machine_that_fails_while_requests_end_is_closed_after_the_last_one() {
    let mut rig = Rig::opened();
    let id = rig.read(1, 0, 512)[0];
    rig.volume.handle_close();
    rig.fail();
    assert!(rig.seen().is_empty());
    assert!(!rig.volume.is_closed());
    rig.complete(id, Err(ErrorKind::Redundancy.into()));
    assert_eq!(rig.seen().len(), 1);
    assert!(rig.volume.is_closed());
    assert_eq!(rig.calls(), [Call::Close]);
}

#[test]
fn a_machine_that_fails_while_it_closes_is_closed() {
    let mut rig = Rig::opened();
    rig.volume.handle_close();
    rig.seen();
    rig.fail();
    assert!(rig.seen().is_empty());
    assert!(rig.volume.is_closed());
    assert_eq!(rig.calls(), [Call::Close]);
}

#[test]
fn a_member_that_is_not_up_to_date_when_the_array_opens_keeps_its_device() {
    let mut rig = Rig::opening_with(|_, _| {});
    rig.say(1, MemberState::Missing);
    assert!(rig.seen().is_empty());
    assert_eq!(rig.submit(0, 1, (Op::Write, 0, 512)).len(), 1);
    rig.machine().events.push_back(Told::Opened);
    rig.seen();
    rig.say(1, MemberState::CatchingUp);
    assert!(rig.seen().is_empty());
    rig.say(1, MemberState::Faulty);
    assert_eq!(rig.seen(), [Seen::Part(1)]);
    // It is told so each time.
    assert_eq!(rig.told().len(), 3);
}

#[test]
fn a_member_that_is_set_aside_while_the_array_opens_is_looked_for_when_it_is_open() {
    let mut rig = Rig::opening_with(|_, _| {});
    rig.say(1, MemberState::Faulty);
    assert_eq!(rig.seen(), [Seen::Part(1)]);
    assert!(rig.look().is_empty());
    rig.machine().events.push_back(Told::Opened);
    assert_eq!(rig.seen(), [Seen::Opened(Ok(()))]);
    assert_eq!(rig.look(), [Seen::LookFor(1)]);
}

#[test]
fn what_is_to_close_while_it_opens_closes_when_it_is_open() {
    let mut rig = Rig::opening_with(|_, _| {});
    rig.volume.handle_close();
    assert!(rig.seen().is_empty() && rig.calls().is_empty());
    rig.machine().events.push_back(Told::Opened);
    assert_eq!(rig.seen(), [Seen::Opened(Ok(()))]);
    assert_eq!(rig.calls(), [Call::Close]);
    rig.machine().events.push_back(Told::Closed);
    rig.seen();
    assert!(rig.volume.is_closed());
}

#[test]
fn what_the_machine_tells_is_told_in_its_order() {
    let mut rig = Rig::opened();
    let notice = |text: &str| Event::Notice(text.into());
    for text in ["a", "b"] {
        rig.machine().events.push_back(Told::Other(notice(text)));
    }
    rig.say(1, MemberState::CatchingUp);
    assert!(rig.seen().is_empty());
    let (member, state) = (MemberIndex(1), MemberState::CatchingUp);
    let changed = Event::Member { member, state, reason: "so it is".into() };
    assert_eq!(rig.told(), [notice("a"), notice("b"), changed]);
}
