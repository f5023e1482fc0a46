//! What the members' sessions say, and what happens by the time.

use super::*;
use crate::volume::requests::CACHE_LOST;

fn suspect(member: u8, failure: Option<&str>) -> Event {
    Event::Suspect { member: MemberIndex(member), failure: failure.map(Into::into) }
}

/// Looked at before, so that all were heard of.
fn watched(bears: u32) -> Rig {
    let mut rig = Rig::opened_with(|script, _| script.bears = bears);
    (0..3).for_each(|_| assert!(rig.look().is_empty()));
    rig.calls();
    rig
}

/// Members that are said to be gone since the last time, and why.
fn gone(rig: &mut Rig) -> Vec<(u8, String)> {
    let gone = |call| {
        let Call::Gone(member, reason) = call else { return None };
        Some((member, reason))
    };
    rig.calls().into_iter().filter_map(gone).collect()
}

#[test]
fn a_suspect_is_told_once_and_when_it_is_back() {
    let mut rig = watched(0);
    rig.lose(2);
    rig.look();
    assert_eq!(rig.told(), [suspect(2, Some("a cable is cut"))]);
    let suspects = rig.volume.suspects(&rig.looks);
    assert!(suspects.iter().eq([MemberIndex(2)]));
    for _ in 0..10 {
        rig.look();
        assert!(rig.told().is_empty());
    }
    rig.report(2).is_connected = true;
    assert!(rig.volume.suspects(&rig.looks).is_empty());
    rig.look();
    assert_eq!(rig.told(), [suspect(2, None)]);
    rig.look();
    assert!(rig.told().is_empty());
    assert!(gone(&mut rig).is_empty());
}

#[test]
fn a_member_that_takes_no_part_is_no_suspect() {
    let mut rig = watched(1);
    // Its session is lost when it is set aside already.
    rig.machine().states[2] = MemberState::Faulty;
    rig.lose(2);
    rig.look();
    assert!(rig.volume.suspects(&rig.looks).is_empty());
    assert!(rig.told().is_empty());
    // A suspect that is set aside is not told to be back.
    rig.lose(3);
    rig.look();
    assert_eq!(rig.told().len(), 1);
    rig.machine().states[3] = MemberState::Faulty;
    rig.look();
    assert!(rig.told().is_empty());
}

#[test]
fn overdue_suspects_are_given_up_together_where_the_machine_bears_it() {
    let mut rig = watched(2);
    rig.lose(1);
    rig.look();
    rig.look();
    rig.lose(3);
    // 2/5 of a request's time.
    for _ in 0..4 {
        rig.look();
        assert!(gone(&mut rig).is_empty());
    }
    assert_eq!(rig.look(), [Seen::Part(1), Seen::Part(3)]);
    let reason = |seconds| format!("no session for {seconds} s: a cable is cut");
    assert_eq!(gone(&mut rig), [(1, reason(6)), (3, reason(4))]);
    assert_eq!(rig.volume.stats(MemberIndex(1)).last_error, Some(reason(6)));
    assert_eq!(rig.volume.stats(MemberIndex(3)).last_error, Some(reason(4)));
    // They come back by themselves; their sessions are gone, so that nobody is suspect.
    assert_eq!(rig.look(), [Seen::LookFor(1), Seen::LookFor(3)]);
}

#[test]
fn overdue_suspects_stay_where_the_machine_does_not_bear_the_loss_of_all_of_them() {
    let mut rig = watched(1);
    rig.lose(1);
    rig.lose(3);
    for _ in 0..20 {
        assert!(rig.look().is_empty());
    }
    assert!(gone(&mut rig).is_empty());
    rig.report(3).is_connected = true;
    assert!((0..5).any(|_| rig.look() == [Seen::Part(1)]), "the other one is back");
}

#[test]
fn a_device_that_said_that_it_goes_takes_no_time_to_be_given_up() {
    let mut rig = watched(1);
    rig.lose(1);
    rig.report(1).is_gone = true;
    assert!(rig.look().is_empty());
    assert_eq!(rig.look(), [Seen::Part(1)]);
}

#[test]
fn a_fenced_member_is_suspect_and_never_given_up() {
    let mut rig = watched(1);
    rig.report(1).is_fenced = true;
    rig.report(1).is_gone = true;
    for _ in 0..20 {
        assert!(rig.look().is_empty());
    }
    assert!(gone(&mut rig).is_empty());
    assert!(rig.volume.suspects(&rig.looks).contains(MemberIndex(1)));
}

#[test]
fn lost_caches_are_told_to_the_machine_at_a_look() {
    let mut rig = watched(2);
    rig.report(1).cache_losses = 1;
    rig.report(4).cache_losses = 3;
    assert_eq!(rig.look(), [Seen::Part(1), Seen::Part(4)]);
    assert_eq!(gone(&mut rig), [(1, CACHE_LOST.into()), (4, CACHE_LOST.into())]);
}

#[test]
fn lost_caches_wait_where_the_machine_does_not_bear_the_loss_of_all_of_them() {
    let mut rig = watched(1);
    rig.report(1).cache_losses = 1;
    rig.report(4).cache_losses = 1;
    assert!(rig.look().is_empty());
    assert!(gone(&mut rig).is_empty());
    rig.machine().bears = 2;
    assert_eq!(rig.look(), [Seen::Part(1), Seen::Part(4)]);
}

#[test]
fn lost_caches_wait_while_a_member_is_suspect() {
    let mut rig = watched(1);
    rig.lose(3);
    rig.report(1).cache_losses = 1;
    assert!(rig.look().is_empty());
    assert!(gone(&mut rig).is_empty());
    rig.report(3).is_connected = true;
    assert_eq!(rig.look(), [Seen::Part(1)]);
    assert_eq!(gone(&mut rig), [(1, CACHE_LOST.into())]);
}

#[test]
fn a_member_that_has_lost_its_cache_is_set_aside_although_it_gets_no_session() {
    let mut rig = watched(1);
    rig.lose(3);
    rig.report(3).cache_losses = 1;
    assert_eq!(rig.look(), [Seen::Part(3)]);
    assert_eq!(gone(&mut rig), [(3, CACHE_LOST.into())]);
}

#[test]
fn without_a_log_a_lost_cache_is_told_to_the_machine_and_an_absence_is_not() {
    let mut rig = Rig::opened_with(|script, _| (script.bears, script.has_log) = (1, false));
    (0..3).for_each(|_| assert!(rig.look().is_empty()));
    rig.lose(3);
    rig.report(3).is_gone = true;
    (0..10).for_each(|_| assert!(rig.look().is_empty()));
    assert!(gone(&mut rig).is_empty());
    rig.report(3).cache_losses = 1;
    assert_eq!(rig.look(), [Seen::Part(3)]);
    assert_eq!(gone(&mut rig), [(3, CACHE_LOST.into())]);
}

#[test]
fn lost_caches_are_nothing_to_an_array_that_is_read_only() {
    let mut rig = Rig::opened_with(|script, _| script.is_read_only = true);
    rig.report(1).cache_losses = 1;
    assert!(rig.look().is_empty());
    assert!(rig.calls().is_empty());
}

#[test]
fn a_lost_cache_counts_only_of_a_member_that_takes_part_and_since_its_device_came() {
    let mut rig = Rig::opened_with(|script, config| {
        script.states[1] = MemberState::Missing;
        config.places[2] = Found::Device(Device { cache_losses: 5, ..device(&address(2)) });
    });
    rig.report(1).cache_losses = 1;
    rig.report(2).cache_losses = 5;
    rig.look();
    assert!(gone(&mut rig).is_empty());
    rig.report(2).cache_losses = 6;
    assert_eq!(rig.look(), [Seen::Part(2)]);
}

#[test]
fn what_nobody_asks_for_is_brought_home_and_what_is_old_made_stable_at_each_fifth_look() {
    let mut rig = Rig::opened();
    let mut user = 0;
    let mut heard = |rig: &mut Rig, is_busy: bool| {
        if is_busy {
            user += 1;
            rig.ask(user, Op::Flush, 0, 0);
            rig.calls();
        }
        rig.look();
        rig.calls()
    };
    for look in 1..=10 {
        let expected = if look % 5 == 0 { alloc::vec![Call::Age] } else { Vec::new() };
        assert_eq!(heard(&mut rig, true), expected, "look {look}");
    }
    assert_eq!(heard(&mut rig, false), [Call::Idle]);
    assert_eq!(heard(&mut rig, false), [Call::Idle]);
    assert_eq!(heard(&mut rig, true), []);
    assert_eq!(heard(&mut rig, false), [Call::Idle]);
    assert_eq!(heard(&mut rig, false), [Call::Idle], "a fifth look that was not busy");
}

#[test]
fn an_array_that_is_read_only_or_has_no_log_has_nothing_to_bring_home() {
    for (has_log, is_read_only) in [(true, true), (false, false), (false, true)] {
        let mut rig = Rig::opened_with(|script, _| {
            (script.has_log, script.is_read_only) = (has_log, is_read_only);
            script.bears = 0;
        });
        for is_busy in [true, false] {
            for user in 0..10 {
                if is_busy {
                    rig.ask(user, Op::Flush, 0, 0);
                    rig.calls();
                }
                rig.look();
                assert!(rig.calls().is_empty());
            }
        }
        // Its members are watched all the same.
        rig.lose(2);
        rig.look();
        assert_eq!(rig.told(), [suspect(2, Some("a cable is cut"))]);
    }
}

#[test]
fn nothing_is_looked_at_before_it_is_open_nor_when_it_closes_or_has_failed() {
    let opening = Rig::opening_with(|_, _| {});
    let mut closing = Rig::opened();
    closing.ask(1, Op::Flush, 0, 0);
    closing.calls();
    closing.volume.handle_close();
    let mut failed = Rig::opened();
    failed.machine().failure = Some(ErrorKind::Redundancy.into());
    for mut rig in [opening, closing, failed] {
        rig.machine().states[4] = MemberState::Missing;
        rig.looks[4].report = None;
        rig.volume.places[4].device = None;
        rig.report(1).cache_losses = 1;
        assert!(rig.look().is_empty());
        rig.lose(2);
        rig.report(2).is_gone = true;
        for _ in 0..6 {
            assert!(rig.look().is_empty());
        }
        assert!(rig.calls().is_empty() && rig.told().is_empty());
    }
}

#[test]
fn a_machine_that_fails_by_what_a_look_finds_hears_nothing_more() {
    let mut rig = watched(1);
    rig.report(1).cache_losses = 1;
    rig.machine().fails_when_gone = true;
    assert_eq!(rig.look(), [Seen::Part(1)]);
    assert!(matches!(rig.calls()[..], [Call::Gone(..)]), "nothing is brought home");
}
