//! Pauses: users' requests wait until the array is opened anew, or the time is over.

use super::*;
use crate::logged::Unstable;

const LIMIT: Duration = Duration::from_secs(60);

impl Rig {
    /// Open, with a pause of [`LIMIT`].
    fn pausing() -> Self {
        Self::opened_with(|_, config| config.pause = LIMIT)
    }

    /// The machine fails for want of members; a request of each of these ends by that.
    fn fail_with(&mut self, requests: &[RequestId]) -> Vec<Seen> {
        self.fail_as(ErrorKind::Redundancy, requests)
    }

    fn fail_as(&mut self, kind: ErrorKind, requests: &[RequestId]) -> Vec<Seen> {
        let failure: IoError = kind.into();
        self.machine().failure = Some(failure.clone());
        for request in requests {
            self.complete(*request, Err(failure.clone()));
        }
        self.machine().events.push_back(Told::Other(Event::State(ArrayState::Failed)));
        self.machine().events.push_back(Told::Closed);
        self.seen()
    }

    /// All devices answer an opening anew.
    fn reopen(&mut self, script: Script) {
        let places = (0..MEMBERS).map(|member| Found::Device(device(&address(member))));
        let places = places.collect();
        self.looks.iter_mut().for_each(|look| look.report = Some(report(0)));
        self.volume.handle_reopened(self.now, Ok(Reopened { machine: script, places }));
        self.machine().events.push_back(Told::Opened);
    }

    fn cannot_reopen(&mut self) {
        let reason = "too few members are here".into();
        let refused = NotReopened { reason, is_final: false };
        self.volume.handle_reopened(self.now, Err(refused));
    }

    /// Time passes until the next attempt, or the end; looks at the members come before.
    fn wait(&mut self) -> Vec<Seen> {
        for _ in 0..10 {
            self.now = self.volume.next_timeout().max(self.now);
            let looks = self.looks.clone();
            self.volume.handle_timeout(self.now, &looks);
            let seen = self.seen();
            if !seen.is_empty() {
                return seen;
            }
        }
        panic!("nothing happens until {:?}", self.now)
    }
}

fn cuts_and_reopen() -> Vec<Seen> {
    (0..MEMBERS).map(Seen::Cut).chain([Seen::Reopen(MemberSet::EMPTY)]).collect()
}

#[test]
fn requests_are_made_again_when_the_array_goes_on_and_those_that_came_meanwhile_with_them() {
    let mut rig = Rig::pausing();
    let first = rig.read(1, 0, 4 * KIB)[0];
    assert_eq!(rig.fail_with(&[first]), cuts_and_reopen());
    assert!(rig.volume.is_paused() && rig.volume.accepts());
    let states: Vec<Event> =
        rig.told().into_iter().filter(|told| matches!(told, Event::State(_))).collect();
    assert_eq!(states, [Event::State(ArrayState::Paused)], "it has not failed");

    rig.volume.handle_request(
        rig.now,
        2,
        (Op::Write, 8 * KIB, 4 * KIB),
        RequestFlags::default(),
        pattern(8 * KIB, 4 * KIB),
    );
    assert!(rig.seen().is_empty() && rig.calls().iter().all(|call| *call != Call::Close));
    rig.reopen(Script::new());
    assert!(rig.seen().is_empty());
    let asked: Vec<(Op, u64, u64)> = rig
        .calls()
        .into_iter()
        .filter_map(|call| if let Call::Request { what, .. } = call { Some(what) } else { None })
        .collect();
    assert_eq!(asked, [(Op::Read, 0, 4 * KIB), (Op::Write, 8 * KIB, 4 * KIB)]);
    assert!(!rig.volume.is_paused());
    assert!(rig.told().contains(&Event::State(ArrayState::Optimal)));
    rig.complete(RequestId(0), Ok(pattern(0, 4 * KIB)));
    rig.complete(RequestId(1), no_data());
    assert_eq!(rig.seen().len(), 2);
}

#[test]
fn nothing_is_opened_while_a_request_to_a_member_is_under_way() {
    let mut rig = Rig::pausing();
    let sent = rig.submit(0, 1, (Op::Read, 0, 4 * KIB));
    assert_eq!(rig.fail_with(&[]), (0..MEMBERS).map(Seen::Cut).collect::<Vec<_>>());
    rig.end(sent[0].tag, Err(ErrorKind::Aborted.into()));
    assert_eq!(rig.seen(), [Seen::Reopen(MemberSet::EMPTY)]);
}

#[test]
fn a_pause_ends_at_its_limit_with_one_error_that_says_what_the_last_attempt_met() {
    let mut rig = Rig::pausing();
    let first = rig.read(1, 0, 4 * KIB)[0];
    rig.fail_with(&[first]);
    let mut attempts = 1;
    let ended = loop {
        rig.cannot_reopen();
        let seen = match rig.seen() {
            seen if seen.is_empty() => rig.wait(),
            seen => seen,
        };
        if seen == [Seen::Reopen(MemberSet::EMPTY)] {
            attempts += 1;
            assert!(attempts < 100 && rig.now <= LIMIT);
            continue;
        }
        break seen;
    };
    let [Seen::Ended(1, Err(error))] = &ended[..] else { panic!("{ended:?}") };
    assert_eq!(error.kind(), ErrorKind::Redundancy);
    assert!(error.to_string().contains("too few members are here"), "{error}");
    assert_eq!(rig.now, LIMIT, "the last attempt was made when the time was over");
    assert!(attempts > 20, "{attempts}");

    // It has failed: what comes now ends as the machine says, and nothing pauses again.
    let later = rig.read(2, 0, 4 * KIB)[0];
    rig.complete(later, Err(ErrorKind::Redundancy.into()));
    assert!(matches!(rig.seen()[..], [Seen::Ended(2, Err(_))]));
    rig.volume.handle_close();
    rig.seen();
    assert!(rig.volume.is_closed());
}

#[test]
fn an_array_that_another_engine_took_or_that_is_fenced_does_not_wait() {
    let mut rig = Rig::pausing();
    let first = rig.read(1, 0, 4 * KIB)[0];
    rig.fail_with(&[first]);
    let refused = NotReopened { reason: "opened by 'other' meanwhile".into(), is_final: true };
    rig.volume.handle_reopened(rig.now, Err(refused));
    let seen = rig.seen();
    let [Seen::Ended(1, Err(error))] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!(error.kind(), ErrorKind::Fenced);

    let mut rig = Rig::pausing();
    let first = rig.read(1, 0, 4 * KIB)[0];
    let seen = rig.fail_as(ErrorKind::Fenced, &[first]);
    assert!(matches!(seen[..], [Seen::Ended(1, Err(_))]), "{seen:?}");
    assert!(!rig.volume.is_paused());
}

#[test]
fn without_a_log_or_a_limit_the_array_fails_at_once() {
    for has_log in [false, true] {
        let limit = if has_log { Duration::ZERO } else { LIMIT };
        let mut rig = Rig::opened_with(|script, config| {
            (script.has_log, config.pause) = (has_log, limit);
        });
        let first = rig.read(1, 0, 4 * KIB)[0];
        let seen = rig.fail_with(&[first]);
        assert!(matches!(seen[..], [Seen::Ended(1, Err(_))]), "{seen:?}");
    }
}

#[test]
fn a_machine_that_fails_while_it_recovers_is_followed_by_another_attempt() {
    let mut rig = Rig::pausing();
    let first = rig.read(1, 0, 4 * KIB)[0];
    rig.fail_with(&[first]);
    let mut script = Script::new();
    script.failure = Some(ErrorKind::Redundancy.into());
    let places = (0..MEMBERS).map(|member| Found::Device(device(&address(member)))).collect();
    rig.looks.iter_mut().for_each(|look| look.report = Some(report(0)));
    rig.volume.handle_reopened(rig.now, Ok(Reopened { machine: script, places }));
    rig.machine().events.push_back(Told::Closed);
    assert_eq!(rig.seen(), (0..MEMBERS).map(Seen::Cut).collect::<Vec<_>>());
    assert_eq!(rig.wait(), [Seen::Reopen(MemberSet::EMPTY)]);
    rig.reopen(Script::new());
    assert!(rig.seen().is_empty() && !rig.volume.is_paused());
}

#[test]
fn a_volume_that_is_to_close_does_not_wait_for_members() {
    let mut rig = Rig::pausing();
    let first = rig.read(1, 0, 4 * KIB)[0];
    rig.fail_with(&[first]);
    rig.volume.handle_close();
    assert!(rig.seen().is_empty(), "an attempt is under way");
    rig.cannot_reopen();
    assert!(matches!(rig.seen()[..], [Seen::Ended(1, Err(_))]));
    assert!(rig.volume.is_closed());

    // An attempt that succeeds is used to close in good order.
    let mut rig = Rig::pausing();
    let first = rig.read(1, 0, 4 * KIB)[0];
    rig.fail_with(&[first]);
    rig.volume.handle_close();
    rig.reopen(Script::new());
    rig.seen();
    rig.complete(RequestId(0), Ok(pattern(0, 4 * KIB)));
    assert_eq!(rig.seen().len(), 1);
    assert!(rig.calls().contains(&Call::Close));
}

#[test]
fn requests_of_a_volume_that_is_to_close_soon_wait_for_one_attempt_only() {
    // Under way when the word comes: nothing, an attempt, or the wait for one.
    for (attempts, is_under_way) in [(0, false), (1, true), (1, false), (2, true)] {
        let mut rig = Rig::pausing();
        let first = rig.read(1, 0, 4 * KIB)[0];
        if attempts == 0 {
            rig.volume.handle_pause_no_more(rig.now);
            let seen = rig.fail_with(&[first]);
            assert!(matches!(seen[..], [Seen::Ended(1, Err(_))]), "{seen:?}");
            continue;
        }
        rig.fail_with(&[first]);
        for _ in 1..attempts {
            rig.cannot_reopen();
            rig.wait();
        }
        if !is_under_way {
            rig.cannot_reopen();
        }
        rig.volume.handle_pause_no_more(rig.now);
        let expected: &[Seen] = if is_under_way { &[] } else { &[Seen::Reopen(MemberSet::EMPTY)] };
        assert_eq!(rig.seen(), expected, "an attempt is made at once, where none is under way");

        rig.cannot_reopen();
        let seen = rig.seen();
        assert!(matches!(seen[..], [Seen::Ended(1, Err(_))]), "{seen:?}");
    }
}

#[test]
fn a_volume_that_is_to_close_soon_goes_on_where_its_last_attempt_succeeds() {
    let mut rig = Rig::pausing();
    let first = rig.read(1, 0, 4 * KIB)[0];
    rig.fail_with(&[first]);
    rig.cannot_reopen();
    rig.volume.handle_pause_no_more(rig.now);
    rig.reopen(Script::new());
    rig.seen();
    rig.complete(RequestId(0), Ok(pattern(0, 4 * KIB)));
    assert!(matches!(rig.seen()[..], [Seen::Ended(1, Ok(_))]));
    assert!(!rig.volume.is_paused());
}

#[test]
fn no_more_than_a_bound_is_kept_of_what_comes_during_a_pause() {
    let mut rig = Rig::pausing();
    rig.fail_with(&[]);
    let mut user = 0;
    while rig.volume.accepts() {
        let write = (Op::Write, 0, 32 * MIB);
        rig.volume.handle_request(
            rig.now,
            user,
            write,
            RequestFlags::default(),
            pattern(0, 32 * MIB),
        );
        user += 1;
        assert!(user < 20, "{user} writes of 32 MiB are kept");
    }
    assert_eq!(user, 8);
    rig.reopen(Script::new());
    rig.seen();
    assert!(rig.volume.accepts());
}

/// An array that had acknowledged a small write, and a whole stripe, without a flush, and whose members lost both.
fn after_a_loss() -> Rig {
    let mut rig = Rig::pausing();
    rig.machine().unstable = Unstable::for_tests(100, 64 * KIB..320 * KIB, 8 * KIB);
    rig.fail_with(&[]);
    let mut script = Script::new();
    script.recovered_upto = Some(Position(10));
    rig.reopen(script);
    rig
}

#[test]
fn what_is_in_memory_is_written_again_before_users_requests_and_the_rest_reads_as_an_error() {
    let mut rig = after_a_loss();
    rig.ask(1, Op::Flush, 0, 0);
    rig.ask(2, Op::Read, 0, 4 * KIB);
    assert!(rig.seen().is_empty());
    let calls = rig.calls();
    let [Call::Request { id, what: (Op::Write, offset, len), .. }] = calls[..] else {
        panic!("{calls:?}")
    };
    assert_eq!((offset, len), (8 * KIB, 4 * KIB));
    assert!(rig.volume.is_paused(), "not all is written again");
    rig.complete(id, no_data());
    let seen = rig.seen();
    let [Seen::Ended(1, Err(error))] = &seen[..] else { panic!("{seen:?}") };
    assert!(error.to_string().contains("65536 to 327679"), "{error}");
    assert_eq!(rig.requests().len(), 1, "the read is made");

    // It reads as an error until it is written anew, each byte by itself; other flushes succeed.
    rig.ask(3, Op::Read, 60 * KIB, 8 * KIB);
    let seen = rig.seen();
    assert!(matches!(&seen[..], [Seen::Ended(3, Err(error))] if error.kind() == ErrorKind::Medium));
    rig.ask(4, Op::Flush, 0, 0);
    assert_eq!(rig.requests().len(), 1);
    rig.ask(5, Op::WriteZeroes, 64 * KIB, 128 * KIB);
    let id = rig.requests()[0];
    rig.complete(id, no_data());
    rig.seen();
    assert_eq!(rig.read(6, 64 * KIB, 128 * KIB).len(), 1);
    rig.ask(7, Op::Read, 190 * KIB, 4 * KIB);
    assert!(matches!(rig.seen()[..], [Seen::Ended(7, Err(_))]));
    assert_eq!(rig.volume.lost().collect::<Vec<_>>(), vec![192 * KIB..320 * KIB]);
}

#[test]
fn an_attempt_that_fails_after_it_decided_is_not_the_last_word_about_what_is_lost() {
    let mut rig = Rig::pausing();
    rig.machine().unstable = Unstable::for_tests(100, 64 * KIB..320 * KIB, 8 * KIB);
    rig.fail_with(&[]);
    let mut script = Script::new();
    (script.recovered_upto, script.failure) =
        (Some(Position(10)), Some(ErrorKind::Redundancy.into()));
    let places = (0..MEMBERS).map(|member| Found::Device(device(&address(member)))).collect();
    rig.looks.iter_mut().for_each(|look| look.report = Some(report(0)));
    rig.volume.handle_reopened(rig.now, Ok(Reopened { machine: script, places }));
    rig.machine().events.push_back(Told::Closed);
    rig.seen();
    rig.wait();
    // What that one appended lets the next one find more than was acknowledged.
    let mut script = Script::new();
    script.recovered_upto = Some(Position(120));
    rig.reopen(script);
    rig.seen();
    assert_eq!(rig.requests().len(), 1, "the block in memory is written again");
}

#[test]
fn a_request_that_the_array_fails_by_again_and_again_ends_with_that() {
    let mut rig = Rig::pausing();
    let first = rig.read(1, 0, 4 * KIB)[0];
    let mut failures = 0;
    let mut seen = rig.fail_with(&[first]);
    loop {
        failures += 1;
        assert!(failures < 20, "{seen:?}");
        if !seen.contains(&Seen::Reopen(MemberSet::EMPTY)) {
            rig.wait();
        }
        rig.reopen(Script::new());
        seen = rig.seen();
        if let Some(Seen::Ended(1, end)) = seen.first() {
            assert_eq!(end.as_ref().unwrap_err().kind(), ErrorKind::Redundancy);
            break;
        }
        // Others go on meanwhile.
        let other = rig.read(2, 8 * KIB, 4 * KIB);
        let other = other.last().copied().unwrap();
        rig.complete(other, Ok(pattern(8 * KIB, 4 * KIB)));
        rig.seen();
        seen = rig.fail_with(&[first]);
    }
    assert_eq!(failures, 9);
}

#[test]
fn an_array_that_fails_by_itself_as_soon_as_it_goes_on_does_so_for_no_longer_than_one_pause() {
    let mut rig = Rig::pausing();
    let mut seen = rig.fail_with(&[]);
    while rig.volume.is_paused() {
        assert!(rig.now <= LIMIT, "{:?}", rig.now);
        if !seen.contains(&Seen::Reopen(MemberSet::EMPTY)) {
            let looks = rig.looks.clone();
            rig.now = rig.volume.next_timeout().max(rig.now);
            rig.volume.handle_timeout(rig.now, &looks);
            seen = rig.seen();
            continue;
        }
        rig.reopen(Script::new());
        rig.seen();
        seen = rig.fail_with(&[]);
    }
    assert!(rig.now >= LIMIT - SECOND, "{:?}", rig.now);
}

#[test]
fn devices_that_answer_with_failures_are_not_waited_for() {
    let mut rig = Rig::pausing();
    for member in [1, 2] {
        rig.try_io(member, Op::Write, Err(ErrorKind::NoSpace.into()));
    }
    let first = rig.read(1, 0, 4 * KIB)[0];
    let seen = rig.fail_with(&[first]);
    assert!(matches!(seen[..], [Seen::Ended(1, Err(_))]), "{seen:?}");
    assert!(!rig.volume.is_paused());
}

#[test]
fn a_device_that_had_no_space_once_is_waited_for_when_it_is_away_later() {
    let mut rig = Rig::pausing();
    for (member, kind) in
        [(1, ErrorKind::NoSpace), (2, ErrorKind::NoSpace), (1, ErrorKind::Timeout)]
    {
        rig.try_io(member, Op::Write, Err(kind.into()));
    }
    assert_eq!(rig.fail_with(&[]).last(), Some(&Seen::Reopen(MemberSet::EMPTY)));
}

#[test]
fn who_was_set_aside_by_command_is_not_looked_for_when_the_array_goes_on() {
    let mut rig = Rig::pausing();
    rig.volume.handle_fail(MemberIndex(3)).unwrap();
    rig.seen();
    let seen = rig.fail_with(&[]);
    let aside = [MemberIndex(3)].into_iter().collect();
    assert_eq!(seen.last(), Some(&Seen::Reopen(aside)));
}

#[test]
fn large_reads_that_wait_for_their_turn_wait_through_a_pause() {
    let mut rig = Rig::opened_with(|_, config| {
        (config.pause, config.reads_under_way) = (LIMIT, Some(2 * MIB));
    });
    let first: Vec<RequestId> = (0..4).flat_map(|user| rig.read(user, 0, MIB)).collect();
    assert_eq!(first.len(), 2);
    rig.fail_with(&first);
    for _ in 0..5 {
        rig.now += SECOND;
        let looks = rig.looks.clone();
        rig.volume.handle_timeout(rig.now, &looks);
        assert!(rig.seen().is_empty() && rig.requests().is_empty());
    }
    rig.reopen(Script::new());
    rig.seen();
    assert_eq!(rig.requests().len(), 2, "two have room at once");
}

#[test]
fn bytes_that_were_lost_before_stay_lost_where_a_part_of_their_block_is_written_again() {
    let mut rig = after_a_loss();
    rig.seen();
    let again = rig.requests()[0];
    rig.complete(again, no_data());
    rig.seen();
    assert_eq!(rig.volume.lost().collect::<Vec<_>>(), vec![64 * KIB..320 * KIB]);
    // A part of a block is written anew, over what was there before; that is lost, too, and in memory.
    rig.volume.handle_request(
        rig.now,
        1,
        (Op::Write, 64 * KIB, 512),
        RequestFlags::default(),
        pattern(64 * KIB, 512),
    );
    let id = rig.requests()[0];
    rig.complete(id, no_data());
    rig.seen();
    rig.machine().unstable = Unstable::for_tests(200, 640 * KIB..896 * KIB, 64 * KIB);
    rig.fail_with(&[]);
    let mut script = Script::new();
    script.recovered_upto = Some(Position(10));
    rig.reopen(script);
    rig.seen();
    let again = rig.requests()[0];
    rig.complete(again, no_data());
    rig.seen();
    let lost = [64 * KIB + 512..320 * KIB, 640 * KIB..896 * KIB];
    assert_eq!(rig.volume.lost().collect::<Vec<_>>(), lost);
}
