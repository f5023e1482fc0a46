//! What is read ahead of users.

use super::*;

/// A reader of 64 KiB at a time has read three times, which begins to read ahead.
fn reading() -> (Rig, RequestId, core::ops::Range<u64>) {
    let mut rig = Rig::opened_with(|_, config| config.read_ahead = Some(16 * MIB));
    for at in 0..3 {
        rig.ask(at, Op::Read, u64::from(at) * 64 * KIB, 64 * KIB);
        let mut calls = rig.calls();
        let Call::Request { id, what, .. } = calls.remove(0) else { panic!("not a request") };
        rig.complete(id, Ok(pattern(what.1, what.2)));
        assert_eq!(rig.seen(), [Seen::Ended(at, Ok(flat(&pattern(what.1, what.2))))]);
        if at == 2 {
            let [Call::Request { id, what: (Op::Read, offset, len), .. }] = calls[..] else {
                panic!("{calls:?}")
            };
            return (rig, id, offset..offset + len);
        }
        assert!(calls.is_empty());
    }
    unreachable!("the third read returns")
}

fn arrive(rig: &mut Rig, id: RequestId, range: &core::ops::Range<u64>) {
    rig.complete(id, Ok(pattern(range.start, range.end - range.start)));
}

#[test]
fn ends_of_requests_ahead_reach_no_user_and_answer_those_who_come() {
    let (mut rig, id, range) = reading();
    assert_eq!(range.start, 192 * KIB);
    assert_eq!(rig.volume.under_way(), (0, 0), "it counts for no user");
    arrive(&mut rig, id, &range);
    assert!(rig.seen().is_empty());
    rig.ask(9, Op::Read, range.start, 4 * KIB);
    assert_eq!(rig.seen(), [Seen::Ended(9, Ok(flat(&pattern(range.start, 4 * KIB))))]);
    assert_eq!(rig.volume.read_ahead_stats().unwrap().answered, 1);
}

#[test]
fn who_comes_before_a_request_ahead_ends_is_answered_by_its_end() {
    let (mut rig, id, range) = reading();
    rig.ask(9, Op::Read, range.start, 64 * KIB);
    assert!(rig.seen().is_empty());
    arrive(&mut rig, id, &range);
    assert_eq!(rig.seen(), [Seen::Ended(9, Ok(flat(&pattern(range.start, 64 * KIB))))]);
}

#[test]
fn who_waits_for_a_request_ahead_that_fails_has_the_machine_read_for_him() {
    let (mut rig, id, range) = reading();
    rig.ask(9, Op::Read, range.start, 64 * KIB);
    rig.calls();
    rig.complete(id, Err(ErrorKind::Medium.into()));
    assert!(rig.seen().is_empty(), "its failure is nobody's");
    let calls = rig.calls();
    let [Call::Request { id, what, .. }] = &calls[..] else { panic!("{calls:?}") };
    assert_eq!(*what, (Op::Read, range.start, 64 * KIB));
    rig.complete(*id, Err(ErrorKind::Medium.into()));
    assert_eq!(rig.seen(), [Seen::Ended(9, Err(ErrorKind::Medium.into()))]);
}

#[test]
fn what_a_user_changes_is_not_answered_from_before() {
    for op in [Op::Write, Op::WriteZeroes, Op::Discard] {
        let (mut rig, id, range) = reading();
        arrive(&mut rig, id, &range);
        rig.seen();
        let data = if op == Op::Write { pattern(7, 4 * KIB) } else { SgList::new() };
        let flags = RequestFlags::default();
        rig.volume.handle_request(rig.now, 8, (op, range.start, 4 * KIB), flags, data);
        let change = rig.requests()[0];
        rig.ask(9, Op::Read, range.start, 4 * KIB);
        assert!(rig.seen().is_empty(), "{op:?}");
        let reader = rig.requests()[0];
        rig.complete(change, no_data());
        rig.complete(reader, no_data());
        assert_eq!(rig.seen().len(), 2);
        // The change is over: what comes later is read ahead as before.
        rig.ask(10, Op::Read, range.start + 4 * KIB, 4 * KIB);
        assert_eq!(rig.seen().len(), 1);
    }
}

#[test]
fn closing_waits_for_requests_ahead() {
    let (mut rig, id, range) = reading();
    rig.volume.handle_close();
    assert!(rig.seen().is_empty());
    assert!(rig.calls().is_empty(), "one is under way");
    arrive(&mut rig, id, &range);
    assert!(rig.seen().is_empty());
    assert_eq!(rig.calls(), [Call::Close]);
}

#[test]
fn what_was_read_ahead_is_let_go_and_answers_nobody_when_closing_begins() {
    let (mut rig, id, range) = reading();
    arrive(&mut rig, id, &range);
    rig.seen();
    let unused = |rig: &Rig| rig.volume.read_ahead_stats().unwrap().unused_bytes;
    assert_eq!(unused(&rig), 0);
    rig.volume.handle_close();
    assert_eq!(unused(&rig), range.end - range.start);
    rig.ask(9, Op::Read, range.start, 4 * KIB);
    assert_eq!(rig.seen(), [Seen::Ended(9, Err(ErrorKind::Aborted.into()))]);
}

#[test]
fn nothing_is_answered_from_what_was_read_ahead_once_the_machine_has_failed() {
    let (mut rig, id, range) = reading();
    arrive(&mut rig, id, &range);
    rig.seen();
    rig.fail();
    rig.seen();
    rig.ask(9, Op::Read, range.start, 4 * KIB);
    assert!(rig.seen().is_empty());
    let id = rig.requests()[0];
    rig.complete(id, Err(ErrorKind::Redundancy.into()));
    assert_eq!(rig.seen(), [Seen::Ended(9, Err(ErrorKind::Redundancy.into()))]);
}

#[test]
fn what_was_read_ahead_is_dropped_after_two_looks_that_found_nobody_come_for_it() {
    let (mut rig, id, range) = reading();
    arrive(&mut rig, id, &range);
    rig.seen();
    rig.look();
    rig.look();
    rig.ask(9, Op::Read, range.start, 4 * KIB);
    assert!(rig.seen().is_empty());
}

#[test]
fn nothing_is_read_ahead_unless_it_is_wanted() {
    let mut rig = Rig::opened();
    for at in 0..10 {
        assert_eq!(rig.read(at, u64::from(at) * 64 * KIB, 64 * KIB).len(), 1);
    }
    assert!(rig.volume.read_ahead_stats().is_none());
}
