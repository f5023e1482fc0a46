//! Devices that take a member's place by command.

use super::*;

const JOINED: Seen = Seen::Joined(1, Ok(()));

fn join_action(expect: Expect, ends_former: bool) -> Seen {
    Seen::Join { member: 1, expect, ends_former }
}

/// Another device is prepared for member 1, which serves or does not.
fn preparing(serves: bool) -> Rig {
    let mut rig = Rig::opened();
    if !serves {
        rig.leave(1);
    }
    rig.join(1, "another", Expect::Unused).unwrap();
    assert_eq!(rig.seen(), [join_action(Expect::Unused, false)]);
    rig.calls();
    rig
}

fn ready(rig: &mut Rig) -> Vec<Seen> {
    rig.volume.handle_joined(MemberIndex(1), candidate("another"));
    rig.seen()
}

/// Another device was handed over for member 1.
fn handed_over() -> Rig {
    let mut rig = preparing(false);
    assert_eq!(ready(&mut rig), [Seen::Take(1)]);
    rig
}

fn not_taken(reason: &str) -> Seen {
    Seen::Joined(1, Err(JoinError::NotTaken(reason.into())))
}

#[test]
fn a_device_that_is_asked_for_waits_until_nobody_is_looked_for() {
    let mut rig = Rig::opened();
    rig.leave(2);
    rig.leave(3);
    assert_eq!(rig.look(), [Seen::LookFor(2), Seen::LookFor(3)]);
    rig.join(1, "another", Expect::Anything).unwrap();
    assert!(rig.seen().is_empty());
    assert_eq!(rig.come_back(2, Ok(candidate(&address(2)))), [Seen::Take(2)]);
    assert!(rig.look().is_empty());
    let join = join_action(Expect::Anything, false);
    assert_eq!(rig.come_back(3, Err("no".into())), [join]);
    assert!(rig.look().len() < 2, "once");
}

#[test]
fn a_member_that_serves_does_so_until_its_successor_is_ready() {
    let mut rig = preparing(true);
    assert_eq!(rig.submit(0, 1, (Op::Write, 0, 512)).len(), 1);
    assert_eq!(ready(&mut rig), [Seen::Part(1), Seen::Take(1)]);
    let calls = rig.calls();
    assert!(matches!(calls[..], [Call::Fail(1), Call::Device { member: 1, .. }]), "{calls:?}");
    rig.say(1, MemberState::CatchingUp);
    assert_eq!(rig.seen(), [JOINED]);
}

#[test]
fn the_session_of_a_member_that_does_not_serve_ends_before_its_own_device_joins() {
    // The machine does not take the device that was there when it was opened.
    let mut rig = Rig::opened_with(|script, _| script.states[1] = MemberState::Missing);
    rig.join(1, &address(1), Expect::Former).unwrap();
    assert_eq!(rig.seen(), [join_action(Expect::Former, true)]);
    assert!(rig.submit(0, 1, (Op::Write, 0, 512)).is_empty());
    rig.calls();
    rig.volume.handle_joined(MemberIndex(1), candidate(&address(1)));
    assert_eq!(rig.seen(), [Seen::Take(1)]);
    let calls = rig.calls();
    assert!(matches!(calls[..], [Call::Device { .. }]), "nobody is to set aside: {calls:?}");
    // Without a device there is no session.
    let mut rig = Rig::opened();
    rig.leave(1);
    rig.join(1, &address(1), Expect::Former).unwrap();
    assert_eq!(rig.seen(), [join_action(Expect::Former, false)]);
}

#[test]
fn a_predecessor_that_failed_while_the_other_was_prepared_is_not_set_aside_again() {
    let mut rig = preparing(true);
    rig.leave(1);
    rig.calls();
    assert_eq!(ready(&mut rig), [Seen::Take(1)]);
    assert!(matches!(rig.calls()[..], [Call::Device { .. }]));
}

#[test]
fn where_the_predecessor_may_not_be_set_aside_the_device_is_let_go() {
    let mut rig = preparing(true);
    rig.machine().refuses_fail = Some(refusal());
    let refused = Seen::Joined(1, Err(refusal().into()));
    assert_eq!(ready(&mut rig), [Seen::LetGo(1), refused]);
    assert_eq!(rig.calls(), [Call::Fail(1)]);
    assert!(rig.look().is_empty());
    // The predecessor serves, and the place is free.
    assert_eq!(rig.submit(0, 1, (Op::Write, 0, 512)).len(), 1);
    rig.join(1, "a third", Expect::Unused).unwrap();
    assert_eq!(rig.seen(), [join_action(Expect::Unused, false)]);
}

#[test]
fn a_device_is_handed_over_once_labels_exclude_its_predecessor() {
    let mut rig = preparing(true);
    rig.machine().labels_pending = true;
    assert_eq!(ready(&mut rig), [Seen::Part(1)]);
    assert_eq!(rig.calls(), [Call::Fail(1)]);
    assert!(rig.look().is_empty());
    assert!(rig.submit(0, 1, (Op::Write, 0, 512)).is_empty());
    rig.calls();
    rig.machine().labels_pending = false;
    assert_eq!(rig.seen(), [Seen::Take(1)]);
    let (uuid, caps) = ([9; 16], device("another").caps);
    assert_eq!(rig.calls(), [Call::Device { member: 1, uuid, caps, label: None }]);
    assert_eq!(rig.volume.address(MemberIndex(1)), Some("another"));
    assert_eq!(rig.submit(0, 1, (Op::Write, 0, 512)).len(), 1);
}

#[test]
fn who_asked_is_answered_when_the_member_takes_part() {
    let mut rig = handed_over();
    rig.say(2, MemberState::CatchingUp);
    assert!(rig.seen().is_empty(), "it is another member");
    rig.say(1, MemberState::CatchingUp);
    assert_eq!(rig.seen(), [JOINED]);
    rig.say(1, MemberState::InSync);
    assert!(rig.seen().is_empty(), "once");
}

#[test]
fn who_asked_is_answered_when_the_member_does_not_take_part() {
    let mut rig = handed_over();
    rig.say(1, MemberState::Faulty);
    assert_eq!(rig.seen(), [not_taken("so it is"), Seen::Part(1)]);
    rig.join(1, "a third", Expect::Unused).unwrap();
}

#[test]
fn who_asked_is_answered_when_the_machine_refuses_the_device() {
    let mut rig = preparing(false);
    rig.machine().refuses_device = Some(refusal());
    let refused = Seen::Joined(1, Err(refusal().into()));
    assert_eq!(ready(&mut rig), [Seen::LetGo(1), refused]);
    assert!(rig.submit(0, 1, (Op::Write, 0, 512)).is_empty());
    rig.join(1, "a third", Expect::Unused).unwrap();
}

#[test]
fn who_asked_is_answered_when_the_machine_fails() {
    let mut rig = handed_over();
    rig.fail();
    let failure = IoError::from(ErrorKind::Redundancy).to_string();
    assert_eq!(rig.seen(), [not_taken(&failure)]);
    assert!(rig.seen().is_empty());
}

#[test]
fn who_asked_is_answered_when_the_array_closes() {
    let mut rig = handed_over();
    rig.volume.handle_close();
    assert!(rig.seen().is_empty(), "the machine closes yet, and may take it");
    rig.machine().events.push_back(Told::Closed);
    assert_eq!(rig.seen(), [not_taken("the array was closed")]);
    assert!(rig.volume.is_closed());
}

#[test]
fn another_device_is_refused_while_one_is_on_its_way() {
    let is_refused = |rig: &mut Rig| {
        let joining = Err(JoinError::Joining(MemberIndex(1)));
        for member in [1, 2] {
            assert_eq!(rig.join(member, "a third", Expect::Anything), joining);
        }
        assert_eq!(rig.command_fail(1), joining);
        assert!(rig.calls().is_empty());
    };
    let mut rig = Rig::opened();
    rig.leave(1);
    rig.leave(2);
    assert_eq!(rig.look(), [Seen::LookFor(1), Seen::LookFor(2)]);
    rig.join(1, "another", Expect::Unused).unwrap();
    rig.seen();
    rig.calls();
    is_refused(&mut rig);
    rig.come_back(1, Err("no".into()));
    rig.come_back(2, Err("no".into()));
    is_refused(&mut rig);
    rig.machine().labels_pending = true;
    assert!(ready(&mut rig).is_empty());
    is_refused(&mut rig);
    rig.machine().labels_pending = false;
    assert_eq!(rig.seen(), [Seen::Take(1)]);
    rig.calls();
    is_refused(&mut rig);
    rig.say(1, MemberState::CatchingUp);
    assert_eq!(rig.seen(), [JOINED]);
    rig.join(2, "a third", Expect::Anything).unwrap();
    rig.command_fail(1).unwrap();
}

#[test]
fn other_members_and_one_that_still_serves_may_be_set_aside_while_a_device_is_on_its_way() {
    let mut rig = preparing(true);
    rig.command_fail(3).unwrap();
    rig.command_fail(1).unwrap();
    assert_eq!(rig.seen(), [Seen::Part(3), Seen::Part(1)]);
    assert_eq!(ready(&mut rig), [Seen::Take(1)]);
    // The successor was not set aside, and comes back by itself.
    rig.say(1, MemberState::CatchingUp);
    rig.seen();
    rig.leave(1);
    assert!((0..3).any(|_| rig.look() == [Seen::LookFor(1)]));
}

#[test]
fn a_device_that_serves_as_another_member_is_refused() {
    let mut rig = Rig::opened();
    rig.leave(2);
    let serves = Err(JoinError::Serves(MemberIndex(3)));
    assert_eq!(rig.join(1, &address(3), Expect::Anything), serves);
    assert!(rig.seen().is_empty());
    // It may be the member's own, or that of one that is set aside.
    for (member, of) in [(1, 1), (1, 2)] {
        rig.join(member, &address(of), Expect::Anything).unwrap();
        rig.seen();
        rig.volume.handle_not_joined(MemberIndex(member));
    }
}

#[test]
fn a_members_own_device_is_refused_while_the_member_serves() {
    let mut rig = Rig::opened();
    for state in [MemberState::InSync, MemberState::CatchingUp] {
        rig.machine().states[1] = state;
        let live = CommandError::StillLive(MemberIndex(1), state.name());
        assert_eq!(rig.join(1, &address(1), Expect::Former), Err(live.into()));
    }
    assert!(rig.seen().is_empty());
    rig.leave(1);
    rig.join(1, &address(1), Expect::Former).unwrap();
}

#[test]
fn a_device_is_refused_where_the_machine_cannot_do_without_the_member() {
    let mut rig = Rig::opened();
    rig.machine().refuses_join = Some(refusal());
    assert_eq!(rig.join(1, "another", Expect::Unused), Err(refusal().into()));
    assert!(rig.seen().is_empty());
    rig.machine().refuses_join = None;
    rig.join(1, "another", Expect::Unused).unwrap();
}

#[test]
fn the_place_is_free_again_when_a_device_could_not_be_prepared() {
    let mut rig = preparing(true);
    rig.volume.handle_not_joined(MemberIndex(1));
    assert!(rig.seen().is_empty(), "the shell tells why");
    assert!(rig.calls().is_empty(), "the member serves");
    rig.join(2, "another", Expect::Unused).unwrap();
    assert_eq!(rig.seen().len(), 1);
}

#[test]
#[should_panic(expected = "no device is prepared for member 2")]
fn a_device_that_nobody_asked_for_does_not_join() {
    preparing(true).volume.handle_joined(MemberIndex(2), candidate("another"));
}

#[test]
fn another_device_is_refused_while_the_machine_has_not_said_of_one_that_is_back_whether_it_takes_part()
 {
    let mut rig = Rig::opened();
    rig.leave(1);
    assert_eq!(rig.look(), [Seen::LookFor(1)]);
    assert_eq!(rig.come_back(1, Ok(candidate(&address(1)))), [Seen::Take(1)]);
    for expect in [Expect::Former, Expect::Anything] {
        let asked = rig.join(1, &address(1), expect);
        assert_eq!(asked, Err(JoinError::Joining(MemberIndex(1))));
    }
    assert!(rig.seen().is_empty(), "its session goes on");
    // Nor does the device join at another place, or is set aside.
    rig.leave(2);
    let asked = rig.join(2, &address(1), Expect::Anything);
    assert_eq!(asked, Err(JoinError::Serves(MemberIndex(1))));
    let asked = rig.volume.handle_fail(MemberIndex(1));
    assert_eq!(asked, Err(JoinError::Joining(MemberIndex(1))));
    rig.say(1, MemberState::CatchingUp);
    rig.seen();
    rig.join(1, "another", Expect::Anything).unwrap();
}

#[test]
fn no_device_takes_a_place_of_what_is_not_open() {
    let mut rig = Rig::opening_with(|_, _| {});
    assert_eq!(rig.join(1, "another", Expect::Anything), Err(JoinError::NotOpen));
    assert_eq!(rig.volume.handle_fail(MemberIndex(1)), Err(JoinError::NotOpen));
    rig.machine().events.push_back(Told::Opened);
    rig.seen();
    // Nobody is set aside for a device that comes when the array closes.
    rig.join(1, "another", Expect::Anything).unwrap();
    assert_eq!(rig.seen(), [join_action(Expect::Anything, false)]);
    let id = rig.read(1, 0, 512)[0];
    rig.volume.handle_close();
    assert_eq!(ready(&mut rig), [Seen::LetGo(1), Seen::Joined(1, Err(JoinError::NotOpen))]);
    assert_eq!(rig.join(1, "another", Expect::Anything), Err(JoinError::NotOpen));
    assert!(rig.calls().is_empty());
    rig.complete(id, no_data());
    rig.seen();
    assert_eq!(rig.calls(), [Call::Close]);
}

#[test]
fn what_was_asked_for_and_waits_is_refused_when_the_array_closes() {
    let mut rig = Rig::opened();
    rig.leave(2);
    assert_eq!(rig.look(), [Seen::LookFor(2)]);
    rig.join(1, "another", Expect::Anything).unwrap();
    rig.volume.handle_close();
    let ended = rig.come_back(2, Err("no".into()));
    assert_eq!(ended, [Seen::Joined(1, Err(JoinError::NotOpen))], "nothing is written to it");
}
