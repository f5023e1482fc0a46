//! Members that are away and come back by themselves.

use super::*;

/// Member 1 is away, and its device is looked for.
fn looking() -> Rig {
    let mut rig = Rig::opened();
    rig.leave(1);
    assert_eq!(rig.look(), [Seen::LookFor(1)]);
    rig.calls();
    rig.told();
    rig
}

fn back() -> Result<Candidate, String> {
    Ok(candidate(&address(1)))
}

/// With nobody in member 1's place but `found`, and the machine without that member.
fn without_member(found: Found) -> Rig {
    Rig::opened_with(|script, config| {
        config.places[1] = found;
        script.states[1] = MemberState::Missing;
    })
}

#[test]
fn a_member_that_left_is_looked_for_at_the_next_look_and_once_at_a_time() {
    let mut rig = looking();
    for _ in 0..10 {
        assert!(rig.look().is_empty(), "it is looked for");
    }
    rig.come_back(1, Err("nobody answers".into()));
    assert_eq!(rig.look(), [Seen::LookFor(1)]);
}

#[test]
fn members_that_were_away_when_the_array_was_opened_are_looked_for_where_they_were() {
    let mut rig = without_member(Found::Nobody(Some("there".into())));
    assert_eq!(rig.look(), [Seen::LookFor(1)]);
    assert_eq!(rig.volume.address(MemberIndex(1)), Some("there"));
    // Who does not know where cannot look.
    let mut rig = without_member(Found::Nobody(None));
    assert!(rig.look().is_empty());
    assert_eq!(rig.volume.address(MemberIndex(1)), None);
}

#[test]
fn a_device_that_is_not_believed_is_not_looked_for() {
    let mut rig = without_member(Found::Liar("there".into()));
    assert!(rig.look().is_empty());
    assert_eq!(rig.volume.address(MemberIndex(1)), Some("there"));
}

#[test]
fn a_member_that_is_set_aside_by_command_is_not_looked_for() {
    let mut rig = Rig::opened();
    rig.command_fail(1).unwrap();
    assert_eq!(rig.seen(), [Seen::Part(1)]);
    assert!(rig.look().is_empty());
    // Unless the machine refuses.
    let mut rig = Rig::opened();
    rig.machine().refuses_fail = Some(refusal());
    assert_eq!(rig.command_fail(1), Err(JoinError::Refused(refusal())));
    rig.leave(1);
    assert_eq!(rig.look(), [Seen::LookFor(1)]);
}

#[test]
fn a_member_that_takes_part_is_not_looked_for() {
    // Its device has no place, and the machine takes it for live.
    let mut rig = Rig::opened_with(|_, config| config.places[1] = Found::Nobody(Some("x".into())));
    assert!(rig.look().is_empty());
    rig.say(1, MemberState::Faulty);
    assert!(rig.seen().is_empty(), "nobody is to part with");
    assert_eq!(rig.look(), [Seen::LookFor(1)]);
}

#[test]
fn a_member_is_not_looked_for_while_a_device_is_in_its_place() {
    let mut rig = looking();
    assert_eq!(rig.come_back(1, back()), [Seen::Take(1)]);
    // The machine has not said yet that it takes part.
    assert!(rig.look().is_empty());
    rig.say(1, MemberState::CatchingUp);
    assert!(rig.seen().is_empty());
    assert!(rig.look().is_empty());
}

#[test]
fn a_member_is_not_looked_for_while_a_former_session_ends() {
    let mut rig = Rig::opened();
    rig.leave(1);
    rig.looks[1].is_leaving = true;
    assert!(rig.look().is_empty());
    rig.looks[1].is_leaving = false;
    assert_eq!(rig.look(), [Seen::LookFor(1)]);
}

#[test]
fn nobody_is_looked_for_while_a_member_is_suspect() {
    let mut rig = Rig::opened_with(|script, _| script.bears = 0);
    rig.leave(1);
    rig.lose(2);
    for _ in 0..10 {
        assert!(rig.look().is_empty());
    }
    rig.report(2).is_connected = true;
    assert_eq!(rig.look(), [Seen::LookFor(1)]);
}

#[test]
fn nobody_is_looked_for_while_a_device_that_was_asked_for_waits() {
    let mut rig = looking();
    rig.join(3, "another", Expect::Unused).unwrap();
    rig.leave(2);
    assert!(rig.look().is_empty());
    let join = Seen::Join { member: 3, expect: Expect::Unused, ends_former: false };
    assert_eq!(rig.come_back(1, Err("no".into())), [join]);
    // Nor while it is prepared: it may be the one that is looked for.
    assert!(rig.look().is_empty());
    rig.volume.handle_joined(MemberIndex(3), candidate("another"));
    assert_eq!(rig.seen(), [Seen::Part(3), Seen::Take(3)]);
    assert_eq!(rig.look(), [Seen::LookFor(1), Seen::LookFor(2)]);
}

#[test]
fn a_member_is_not_looked_for_where_the_device_of_another_place_is() {
    let mut rig = Rig::opened();
    rig.leave(1);
    rig.leave(3);
    rig.join(3, &address(1), Expect::Anything).unwrap();
    let join = Seen::Join { member: 3, expect: Expect::Anything, ends_former: false };
    assert_eq!(rig.seen(), [join]);
    rig.volume.handle_joined(MemberIndex(3), candidate(&address(1)));
    assert_eq!(rig.seen(), [Seen::Take(3)]);
    // The labels may not say yet that it is another member's.
    assert!(rig.look().is_empty());
    rig.say(3, MemberState::Faulty);
    rig.seen();
    assert!((0..4).any(|_| rig.look().contains(&Seen::LookFor(1))));
}

#[test]
fn a_device_that_is_back_is_let_go_when_the_machine_has_failed() {
    let mut rig = looking();
    rig.fail();
    rig.seen();
    assert_eq!(rig.come_back(1, back()), [Seen::LetGo(1)]);
    assert!(rig.calls().is_empty());
}

#[test]
fn nobody_is_looked_for_by_an_array_that_is_read_only_or_has_no_log() {
    for (has_log, is_read_only) in [(true, true), (false, false), (false, true)] {
        let mut rig = Rig::opened_with(|script, _| {
            (script.has_log, script.is_read_only) = (has_log, is_read_only);
        });
        rig.leave(1);
        for _ in 0..5 {
            assert!(rig.look().is_empty());
        }
    }
}

/// Looks until member 1 is looked for, but for that one.
fn pause(rig: &mut Rig) -> usize {
    let pause = (0..200).take_while(|_| rig.look() != [Seen::LookFor(1)]).count();
    assert!(pause < 200, "it is never looked for");
    pause
}

#[test]
fn pauses_of_a_member_that_leaves_again_and_again_double_until_it_has_caught_up() {
    let mut rig = Rig::opened();
    for expected in [0, 1, 2, 4, 8, 16, 32, 64, 64, 64] {
        rig.leave(1);
        assert_eq!(pause(&mut rig), expected);
        // An attempt that fails is no reason to wait.
        rig.come_back(1, Err("not yet".into()));
        assert_eq!(pause(&mut rig), 0);
        assert_eq!(rig.come_back(1, back()), [Seen::Take(1)]);
        rig.say(1, MemberState::CatchingUp);
        rig.seen();
    }
    rig.machine().events.push_back(Told::Other(Event::Rebuilt(MemberIndex(2))));
    rig.seen();
    rig.leave(1);
    assert_eq!(pause(&mut rig), 64, "another member has caught up");
    rig.come_back(1, back());
    rig.say(1, MemberState::CatchingUp);
    rig.machine().events.push_back(Told::Other(Event::Rebuilt(MemberIndex(1))));
    rig.seen();
    for expected in [0, 1] {
        rig.leave(1);
        assert_eq!(pause(&mut rig), expected);
        rig.come_back(1, back());
        rig.say(1, MemberState::CatchingUp);
        rig.seen();
    }
}

#[test]
fn a_device_that_is_back_is_taken_and_handed_to_the_machine_with_its_label() {
    let mut rig = looking();
    let label = paces::label();
    let found = Candidate { label: Some(label.clone()), ..candidate(&address(1)) };
    assert_eq!(rig.come_back(1, Ok(found.clone())), [Seen::Take(1)]);
    let (uuid, caps) = (found.uuid, found.device.caps);
    let taken = Call::Device { member: 1, uuid, caps, label: Some(Box::new(label)) };
    assert_eq!(rig.calls(), [taken]);
    assert_eq!(rig.submit(0, 1, (Op::Write, 0, 512)).len(), 1);
    assert!(rig.told().is_empty());
}

#[test]
fn a_device_that_is_back_is_let_go_when_its_member_was_set_aside_by_command() {
    let mut rig = looking();
    rig.command_fail(1).unwrap();
    assert!(rig.seen().is_empty());
    rig.calls();
    assert_eq!(rig.come_back(1, back()), [Seen::LetGo(1)]);
    assert!(rig.calls().is_empty());
    assert!(rig.look().is_empty());
}

#[test]
fn a_device_that_is_back_is_let_go_while_another_one_is_asked_for_in_its_place() {
    let mut rig = looking();
    rig.join(1, "another", Expect::Unused).unwrap();
    assert!(rig.seen().is_empty());
    let join = Seen::Join { member: 1, expect: Expect::Unused, ends_former: false };
    assert_eq!(rig.come_back(1, back()), [Seen::LetGo(1), join]);
    assert!(rig.calls().is_empty());
}

#[test]
fn a_device_that_is_back_is_let_go_when_another_one_had_its_place_meanwhile() {
    let mut rig = looking();
    // No command leads there: who asks for a device waits for the end of attempts.
    rig.volume.places[1].number += 1;
    assert_eq!(rig.come_back(1, back()), [Seen::LetGo(1)]);
    assert!(rig.calls().is_empty());
}

#[test]
fn a_device_that_is_back_is_let_go_when_its_member_takes_part() {
    let mut rig = looking();
    rig.say(1, MemberState::InSync);
    rig.seen();
    assert_eq!(rig.come_back(1, back()), [Seen::LetGo(1)]);
    assert!(rig.calls().is_empty());
}

#[test]
fn a_device_that_is_back_is_let_go_when_the_array_closes() {
    let mut rig = looking();
    let id = rig.read(1, 0, 512)[0];
    rig.volume.handle_close();
    assert_eq!(rig.come_back(1, back()), [Seen::LetGo(1)]);
    assert!(rig.calls().is_empty());
    rig.complete(id, no_data());
    rig.seen();
    assert_eq!(rig.calls(), [Call::Close]);
}

#[test]
fn a_device_that_is_back_is_let_go_while_a_member_is_suspect() {
    let mut rig = looking();
    rig.lose(2);
    assert_eq!(rig.come_back(1, back()), [Seen::LetGo(1)]);
    assert!(rig.calls().is_empty());
    rig.report(2).is_connected = true;
    assert_eq!(rig.look(), [Seen::LookFor(1)]);
    assert_eq!(rig.come_back(1, back()), [Seen::Take(1)]);
}

#[test]
fn a_device_that_is_back_and_that_the_machine_refuses_is_let_go() {
    let mut rig = looking();
    rig.machine().refuses_device = Some(refusal());
    assert_eq!(rig.come_back(1, back()), [Seen::LetGo(1)]);
    let told = rig.told();
    let [Event::NotBack { member: MemberIndex(1), reason }] = &told[..] else { panic!("{told:?}") };
    assert!(reason.contains(&refusal().to_string()));
    // That is told once, too.
    assert_eq!(rig.look(), [Seen::LookFor(1)]);
    assert_eq!(rig.come_back(1, back()), [Seen::LetGo(1)]);
    assert!(rig.told().is_empty());
    assert!(rig.submit(0, 1, (Op::Write, 0, 512)).is_empty());
}

#[test]
fn a_device_that_is_back_and_does_not_take_part_leaves_its_place_again() {
    let mut rig = looking();
    assert_eq!(rig.come_back(1, back()), [Seen::Take(1)]);
    rig.say(1, MemberState::Faulty);
    assert_eq!(rig.seen(), [Seen::Part(1)]);
    // It waits longer this time.
    assert_eq!(pause(&mut rig), 1);
}

#[test]
fn why_a_device_cannot_come_back_is_told_once_until_it_is_another_reason() {
    let mut rig = looking();
    let not_back = |reason: &str| Event::NotBack { member: MemberIndex(1), reason: reason.into() };
    let reasons = [("a", true), ("a", false), ("b", true), ("b", false), ("a", true)];
    for (reason, is_told) in reasons {
        assert!(rig.come_back(1, Err(reason.into())).is_empty());
        let expected = if is_told { alloc::vec![not_back(reason)] } else { Vec::new() };
        assert_eq!(rig.told(), expected);
        assert_eq!(rig.look(), [Seen::LookFor(1)]);
    }
    // A member that was back meanwhile fails anew.
    rig.come_back(1, back());
    rig.say(1, MemberState::CatchingUp);
    rig.seen();
    rig.leave(1);
    pause(&mut rig);
    rig.told();
    rig.come_back(1, Err("a".into()));
    assert_eq!(rig.told(), [not_back("a")]);
}

#[test]
#[should_panic(expected = "nobody looked for member 2")]
fn who_is_not_looked_for_does_not_come_back() {
    looking().come_back(2, back());
}
