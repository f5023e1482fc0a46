//! Users' requests and member requests, both ways.

use super::*;

#[test]
fn a_write_reaches_the_machine_with_its_bytes_and_flags_and_its_end_the_user() {
    let mut rig = Rig::opened();
    let flags = RequestFlags { fua: true, no_unmap: true };
    let data = Buf::copy_from(b"abcd").into();
    rig.volume.handle_request(rig.now, 7, (Op::Write, 8192, 4), flags, data);
    let calls = rig.calls();
    let [Call::Request { id, what, flags: given, data }] = &calls[..] else { panic!("{calls:?}") };
    assert_eq!((*what, *given, &data[..]), ((Op::Write, 8192, 4), flags, &b"abcd"[..]));
    assert!(rig.seen().is_empty());
    assert_eq!(rig.volume.under_way(), (1, 0));
    rig.complete(*id, Err(ErrorKind::NoSpace.into()));
    assert_eq!(rig.seen(), [Seen::Ended(7, Err(ErrorKind::NoSpace.into()))]);
    assert_eq!(rig.volume.under_way(), (0, 0));
}

#[test]
fn each_end_reaches_the_user_whose_request_it_was() {
    let mut rig = Rig::opened();
    let ids: Vec<RequestId> = (0..3).map(|user| rig.read(10 + user, 0, 512)[0]).collect();
    for (at, user) in [(2, 12), (0, 10), (1, 11)] {
        rig.complete(ids[at], Ok(pattern(512 * u64::from(user), 512)));
        let bytes = flat(&pattern(512 * u64::from(user), 512));
        assert_eq!(rig.seen(), [Seen::Ended(user, Ok(bytes))]);
    }
}

#[test]
fn a_request_after_closing_began_ends_as_aborted_without_the_machine() {
    let mut rig = Rig::opened();
    let before = rig.read(1, 0, 512)[0];
    rig.volume.handle_close();
    let aborted = |user| Seen::Ended(user, Err(ErrorKind::Aborted.into()));
    rig.ask(2, Op::Flush, 0, 0);
    assert_eq!(rig.seen(), [aborted(2)]);
    assert!(rig.calls().is_empty());
    rig.complete(before, no_data());
    assert_eq!(rig.seen(), [Seen::Ended(1, Ok(Vec::new()))]);
    rig.ask(3, Op::Read, 0, 512);
    assert_eq!(rig.seen(), [aborted(3)]);
    rig.machine().events.push_back(Told::Closed);
    rig.seen();
    rig.ask(4, Op::Read, 0, 512);
    assert_eq!(rig.seen(), [aborted(4)]);
    assert_eq!(rig.calls(), [Call::Close]);
}

#[test]
fn requests_are_accepted_while_it_is_open_and_fewer_than_the_most_are_under_way() {
    let mut rig = Rig::opening_with(|_, _| {});
    assert!(!rig.volume.accepts(), "it opens yet");
    rig.machine().events.push_back(Told::Opened);
    rig.seen();
    let mut first = None;
    for user in 0..4096 {
        assert!(rig.volume.accepts(), "with {user} under way");
        first = first.or(rig.read(user, 0, 512).pop());
    }
    assert!(!rig.volume.accepts());
    rig.complete(first.unwrap(), no_data());
    rig.seen();
    assert!(rig.volume.accepts());
    rig.volume.handle_close();
    assert!(!rig.volume.accepts());
}

#[test]
fn a_member_request_goes_to_its_device_and_its_end_to_the_machine() {
    let mut rig = Rig::opened();
    let data = pattern(4096, 512);
    let (io, member, op) = (IoId(3), MemberIndex(2), Op::Write);
    let submit = Do::Submit {
        io,
        member,
        op,
        offset: 4096,
        len: 512,
        fua: true,
        data: data.clone(),
        to: To::Both,
    };
    rig.machine().actions.push_back(submit);
    let seen = rig.seen();
    let [Seen::Sent(sent)] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((sent.member, sent.what, sent.fua), (2, (op, 4096, 512), true));
    assert_eq!((sent.tag.member(), &sent.data), (member, &flat(&data)));
    assert_eq!(rig.volume.under_way(), (0, 1));
    rig.end(sent.tag, no_data());
    assert_eq!(rig.calls(), [Call::IoDone(io, Ok(Vec::new()))]);
    assert_eq!(rig.volume.under_way(), (0, 0));
}

#[test]
fn what_is_longer_than_a_device_takes_is_read_in_pieces_that_come_back_in_order() {
    let mut rig = Rig::opened();
    let (offset, len) = (4 * KIB, 2 * MIB + 512);
    let sent = rig.submit(5, 1, (Op::Read, offset, len));
    let what: Vec<_> = sent.iter().map(|one| one.what).collect();
    let pieces = [(offset, MIB), (offset + MIB, MIB), (offset + 2 * MIB, 512)];
    assert_eq!(what, pieces.map(|(offset, len)| (Op::Read, offset, len)));
    assert_eq!(rig.volume.under_way(), (0, 1));
    for at in [1, 2, 0] {
        assert!(rig.calls().is_empty(), "it ends with its last piece");
        let (_, offset, len) = sent[at].what;
        rig.end(sent[at].tag, Ok(pattern(offset, len)));
    }
    let calls = rig.calls();
    assert!(calls == [Call::IoDone(IoId(5), Ok(flat(&pattern(offset, len))))]);
}

#[test]
fn what_is_longer_than_a_device_takes_is_written_in_pieces_and_fits_in_one_up_to_there() {
    let mut rig = Rig::opened();
    let sent = rig.submit(0, 1, (Op::Write, 512, MIB + 1024));
    let parts = [(512, MIB), (512 + MIB, 1024)];
    assert_eq!(sent.len(), parts.len());
    for (one, (offset, len)) in sent.iter().zip(parts) {
        assert_eq!(one.what, (Op::Write, offset, len));
        assert!(one.data == flat(&pattern(offset, len)));
    }
    let whole = rig.submit(1, 1, (Op::Write, 512, MIB));
    assert_eq!(whole.len(), 1);
    // Only bytes are bounded.
    let discard = rig.submit(2, 1, (Op::Discard, 0, 9 * MIB));
    assert_eq!(discard[0].what, (Op::Discard, 0, 9 * MIB));
    assert_eq!(discard.len(), 1);
}

#[test]
fn the_first_error_of_pieces_counts_and_the_last_piece_ends_the_request() {
    let mut rig = Rig::opened();
    let sent = rig.submit(0, 1, (Op::Read, 0, 4 * MIB));
    rig.end(sent[3].tag, Ok(pattern(0, MIB)));
    rig.end(sent[1].tag, Err(ErrorKind::Medium.into()));
    rig.end(sent[0].tag, Err(ErrorKind::Timeout.into()));
    assert!(rig.calls().is_empty());
    rig.end(sent[2].tag, Ok(pattern(0, MIB)));
    assert_eq!(rig.calls(), [Call::IoDone(IoId(0), Err(ErrorKind::Medium.into()))]);
    assert_eq!(rig.volume.stats(MemberIndex(1)).errors, 1);
}

#[test]
fn a_member_request_without_a_device_fails_as_unreachable_and_never_leaves() {
    let mut rig = Rig::opened();
    rig.leave(1);
    for op in [Op::Read, Op::Write, Op::Flush] {
        assert!(rig.submit(0, 1, (op, 0, 2 * MIB)).is_empty());
        assert_eq!(rig.calls(), [Call::IoDone(IoId(0), Err(ErrorKind::Unreachable.into()))]);
        assert_eq!(rig.volume.under_way(), (0, 0));
    }
}

#[test]
fn a_read_that_is_answered_with_another_length_fails_as_the_devices_error() {
    for wrong in [0, 512, 8192] {
        let mut rig = Rig::opened();
        let sent = rig.submit(0, 1, (Op::Read, 0, 4096));
        rig.end(sent[0].tag, Ok(pattern(0, wrong)));
        let calls = rig.calls();
        let [Call::IoDone(IoId(0), Err(error))] = &calls[..] else { panic!("{calls:?}") };
        assert_eq!(error.kind(), ErrorKind::Device);
        assert_eq!(rig.volume.stats(MemberIndex(1)).last_error, Some(error.to_string()));
    }
    // Also of several pieces together.
    let mut rig = Rig::opened();
    let sent = rig.submit(0, 1, (Op::Read, 0, 2 * MIB));
    rig.end(sent[0].tag, Ok(pattern(0, MIB)));
    rig.end(sent[1].tag, Ok(pattern(0, MIB - 512)));
    let calls = rig.calls();
    let [Call::IoDone(IoId(0), Err(error))] = &calls[..] else { panic!("its pieces lack bytes") };
    assert_eq!(error.kind(), ErrorKind::Device);
}

#[test]
fn what_a_device_answers_that_has_lost_its_cache_is_not_believed() {
    let mut rig = Rig::opened();
    for op in [Op::Read, Op::Write, Op::Flush] {
        let sent = rig.submit(0, 1, (op, 0, 512));
        rig.report(1).cache_losses = 1;
        let answer = if op == Op::Read { pattern(0, 512) } else { SgList::new() };
        rig.end(sent[0].tag, Ok(answer));
        let calls = rig.calls();
        let [Call::IoDone(IoId(0), Err(error))] = &calls[..] else { panic!("{op:?}: {calls:?}") };
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert_eq!(rig.volume.stats(MemberIndex(1)).last_error, Some(error.to_string()));
    }
    // Such a device may come back by itself.
    rig.leave(1);
    assert_eq!(rig.look(), [Seen::LookFor(1)]);
}

/// Member 1's device is set aside with a request under way, and another one takes its place, which has lost its
/// cache so often before.
fn succeed(rig: &mut Rig, losses: u64) -> Tag {
    let sent = rig.submit(0, 1, (Op::Read, 0, 512));
    rig.leave(1);
    rig.join(1, "another", Expect::Unused).unwrap();
    rig.seen();
    let mut next = candidate("another");
    next.device.cache_losses = losses;
    rig.volume.handle_joined(MemberIndex(1), next);
    assert_eq!(rig.seen(), [Seen::Take(1)]);
    rig.say(1, MemberState::CatchingUp);
    assert_eq!(rig.seen(), [Seen::Joined(1, Ok(()))]);
    rig.calls();
    sent[0].tag
}

#[test]
fn a_device_that_took_the_place_is_not_blamed_for_what_was_lost_before_it_came() {
    let mut rig = Rig::opened();
    let late = succeed(&mut rig, 7);
    let sent = rig.submit(1, 1, (Op::Read, 0, 512));
    rig.end(sent[0].tag, Ok(pattern(0, 512)));
    assert_eq!(rig.calls(), [Call::IoDone(IoId(1), Ok(flat(&pattern(0, 512))))]);
    // What the former one answers is not believed: nobody counts any more what it has lost.
    rig.end(late, Ok(pattern(512, 512)));
    assert_eq!(rig.calls(), [Call::IoDone(IoId(0), Err(ErrorKind::Unreachable.into()))]);
    rig.report(1).cache_losses = 8;
    let sent = rig.submit(1, 1, (Op::Read, 0, 512));
    rig.end(sent[0].tag, Ok(pattern(0, 512)));
    assert!(matches!(rig.calls()[..], [Call::IoDone(_, Err(_))]), "it has lost its own");
}

#[test]
fn what_a_device_answers_after_it_was_set_aside_is_not_believed() {
    let mut rig = Rig::opened();
    let sent = [0, 1].map(|io| rig.submit(io, 1, (Op::Read, 0, 512))[0].tag);
    rig.report(1).cache_losses = 1;
    rig.end(sent[0], Ok(pattern(0, 512)));
    assert!(matches!(rig.calls()[..], [Call::IoDone(IoId(0), Err(_))]));
    rig.leave(1);
    // The session ends when its requests have, and nobody counts any more what the device has lost.
    rig.end(sent[1], Ok(pattern(0, 512)));
    assert_eq!(rig.calls(), [Call::IoDone(IoId(1), Err(ErrorKind::Unreachable.into()))]);
    assert_eq!(rig.volume.stats(MemberIndex(1)).errors, 1);
}

#[test]
fn late_ends_of_a_former_device_are_no_errors_of_its_successor() {
    for kind in [ErrorKind::Device, ErrorKind::Timeout] {
        let mut rig = Rig::opened();
        let late = succeed(&mut rig, 0);
        rig.end(late, Err(kind.into()));
        assert_eq!(rig.calls(), [Call::IoDone(IoId(0), Err(kind.into()))]);
        assert_eq!(*rig.volume.stats(MemberIndex(1)), Stats::default());
        // The successor comes back by itself.
        rig.leave(1);
        assert!((0..3).any(|_| rig.look() == [Seen::LookFor(1)]));
    }
}

#[test]
fn requests_are_counted_by_what_they_do_until_a_device_of_another_address_comes() {
    let mut rig = Rig::opened();
    let asked = [
        (Op::Read, 2 * MIB),
        (Op::Read, 512),
        (Op::Write, 1024),
        (Op::Discard, 4096),
        (Op::WriteZeroes, 8192),
        (Op::Flush, 0),
    ];
    for (io, (op, len)) in asked.into_iter().enumerate() {
        for one in rig.submit(io, 2, (op, 0, len)) {
            rig.end(
                one.tag,
                Ok(if op == Op::Read { pattern(0, one.what.2) } else { SgList::new() }),
            );
        }
    }
    rig.calls();
    rig.try_io(2, Op::Flush, Err(ErrorKind::Timeout.into()));
    let stats = Stats {
        reads: 2,
        writes: 3,
        read_bytes: 2 * MIB + 512,
        written_bytes: 13 * KIB,
        late: 0,
        errors: 1,
        last_error: Some(IoError::from(ErrorKind::Timeout).to_string()),
    };
    assert_eq!(*rig.volume.stats(MemberIndex(2)), stats);
    assert_eq!(*rig.volume.stats(MemberIndex(1)), Stats::default());
    for (next, is_kept) in [(address(2), true), ("another".into(), false)] {
        rig.leave(2);
        rig.join(2, &next, Expect::Anything).unwrap();
        rig.seen();
        rig.volume.handle_joined(MemberIndex(2), candidate(&next));
        rig.seen();
        rig.say(2, MemberState::InSync);
        rig.seen();
        assert_eq!(*rig.volume.stats(MemberIndex(2)) == stats, is_kept);
        assert_eq!(rig.volume.address(MemberIndex(2)), Some(&next[..]));
    }
    assert_eq!(*rig.volume.stats(MemberIndex(2)), Stats::default());
}

#[test]
fn a_device_that_answers_with_a_failure_does_not_come_back_by_itself() {
    let cases = [
        (Op::Read, ErrorKind::Device, false),
        (Op::Write, ErrorKind::Device, false),
        (Op::Read, ErrorKind::NoSpace, false),
        (Op::Write, ErrorKind::NoSpace, false),
        (Op::Write, ErrorKind::Medium, false),
        (Op::Flush, ErrorKind::Medium, false),
        // It is repaired.
        (Op::Read, ErrorKind::Medium, true),
        (Op::Write, ErrorKind::Unreachable, true),
        (Op::Write, ErrorKind::Timeout, true),
        (Op::Read, ErrorKind::Corrupt, true),
    ];
    for (op, kind, comes_back) in cases {
        let mut rig = Rig::opened();
        rig.try_io(3, op, Err(kind.into()));
        rig.leave(3);
        let is_looked_for = rig.look() == [Seen::LookFor(3)];
        assert_eq!(is_looked_for, comes_back, "{op:?} that fails with {kind:?}");
    }
}

#[test]
fn large_reads_wait_for_room_and_begin_in_order_before_ends_are_told() {
    let mut rig = Rig::opened_with(|_, config| config.reads_under_way = Some(4 * MIB));
    let mut ids: Vec<RequestId> = (0..8).flat_map(|user| rig.read(user, 0, MIB)).collect();
    assert_eq!(ids.len(), 4, "there is room for four");
    // Small reads and writes wait for none of them.
    assert_eq!(rig.read(100, 0, 64 * KIB - 512).len(), 1);
    let flags = RequestFlags::default();
    rig.volume.handle_request(rig.now, 101, (Op::Write, 0, MIB), flags, pattern(0, MIB));
    assert_eq!(rig.requests().len(), 1);
    assert_eq!(rig.volume.under_way(), (10, 0));
    assert!(rig.seen().is_empty() && rig.calls().is_empty());
    for user in 0..8 {
        rig.complete(ids[user], no_data());
        let first = rig.volume.poll(rig.now).and_then(|action| rig.see(action));
        assert_eq!(first, Some(Seen::Ended(u32::try_from(user).unwrap(), Ok(Vec::new()))));
        let begun = rig.requests();
        assert_eq!(begun.len(), usize::from(user < 4), "the next one has begun already");
        ids.extend(begun);
        assert!(rig.seen().is_empty());
    }
    assert_eq!(rig.volume.under_way(), (2, 0));
}

#[test]
fn a_large_read_counts_until_its_end_is_told() {
    let mut rig = Rig::opened_with(|_, config| config.reads_under_way = Some(4 * MIB));
    let ids: Vec<RequestId> = (0..3).flat_map(|user| rig.read(user, 0, MIB)).collect();
    ids.into_iter().for_each(|id| rig.complete(id, no_data()));
    for left in [2, 1, 0] {
        assert!(matches!(rig.volume.poll(rig.now), Some(Action::Complete { .. })));
        assert_eq!(rig.volume.under_way().0, left);
    }
    assert!(rig.seen().is_empty());
}

#[test]
fn large_reads_that_wait_for_others_that_do_not_end_begin_at_a_look() {
    let mut rig = Rig::opened();
    let (mut user, mut under_way) = (0, VecDeque::new());
    let mut ask = |rig: &mut Rig| {
        user += 1;
        rig.read(user, 0, MIB)
    };
    // Two gigabytes a second, which a bound is tried for.
    let waits = (0..10_000).any(|_| {
        while under_way.len() < 16 {
            match ask(&mut rig)[..] {
                [id] => under_way.push_back(id),
                _ => return true,
            }
        }
        rig.now += Duration::from_micros(500);
        let first = under_way.pop_front().unwrap();
        rig.complete(first, no_data());
        assert_eq!(rig.seen().len(), 1);
        false
    });
    assert!(waits, "none ever waits");
    assert!(rig.seen().is_empty() && rig.requests().is_empty());
    rig.look();
    assert_eq!(rig.requests().len(), 1);
}
