//! Spares, which take the places of members that stay away.

use super::*;

const AFTER: Duration = Duration::from_secs(30);

fn with_spares(addresses: &[&str]) -> Rig {
    let mut rig = Rig::opened();
    let addresses = addresses.iter().map(|address| (*address).into()).collect();
    rig.volume.set_spares(AFTER, addresses);
    rig
}

fn asked(number: usize, member: u8) -> [Seen; 2] {
    asked_as(number, member, Expect::Unused)
}

fn asked_as(number: usize, member: u8, expect: Expect) -> [Seen; 2] {
    [Seen::AskForSpare(number), Seen::Join { member, expect, ends_former: false }]
}

impl Rig {
    /// Seconds pass until a spare is asked for; members that are looked for are not found.
    fn until_asked(&mut self) -> (u32, Vec<Seen>) {
        for seconds in 1..1000 {
            let mut seen = self.look();
            let looked_for: Vec<u8> = seen
                .iter()
                .filter_map(
                    |seen| if let Seen::LookFor(member) = seen { Some(*member) } else { None },
                )
                .collect();
            for member in looked_for {
                seen.extend(self.come_back(member, Err("it is away".into())));
            }
            seen.retain(|seen| !matches!(seen, Seen::LookFor(_)));
            if !seen.is_empty() {
                return (seconds, seen);
            }
        }
        panic!("no spare is asked for")
    }

    fn notices(&mut self) -> Vec<String> {
        let text = |told| if let Event::Notice(text) = told { Some(text) } else { None };
        self.told().into_iter().filter_map(text).collect()
    }

    /// The spare that was asked for cannot be used.
    fn refuse_spare(&mut self, member: u8, reason: &str) {
        self.volume.handle_not_joined(MemberIndex(member));
        self.volume.handle_spare(MemberIndex(member), Some(reason.into()));
        self.seen();
    }
}

#[test]
fn a_spare_takes_the_place_of_a_member_that_stays_away_and_is_none_any_more() {
    let mut rig = with_spares(&["spare 0", "spare 1"]);
    assert!((0..100).all(|_| rig.look().is_empty()), "all members are there");
    rig.leave(1);
    let (seconds, seen) = rig.until_asked();
    assert_eq!((seconds, seen), (31, asked(0, 1).to_vec()));
    rig.volume.handle_joined(MemberIndex(1), candidate("spare 0"));
    assert_eq!(rig.seen(), [Seen::Take(1)]);
    rig.say(1, MemberState::CatchingUp);
    assert_eq!(rig.seen(), [Seen::Joined(1, Ok(()))]);
    rig.volume.handle_spare(MemberIndex(1), None);
    rig.seen();
    assert_eq!(rig.volume.spares().collect::<Vec<_>>(), ["spare 1"]);
    assert!(rig.notices()[0].contains("spare 0 has taken the place of member 1"));
    assert!((0..100).all(|_| rig.look().is_empty()), "one is enough");

    // It is a member now, for which the other one may come.
    rig.leave(1);
    let (_, seen) = rig.until_asked();
    assert_eq!(seen, asked(1, 1));
}

#[test]
fn a_member_that_is_back_in_time_keeps_its_place() {
    let mut rig = with_spares(&["spare 0"]);
    for _ in 0..3 {
        rig.leave(2);
        for _ in 0..20 {
            if rig.look() == [Seen::LookFor(2)] {
                assert!(rig.come_back(2, Err("away".into())).is_empty());
            }
        }
        let is_looked_for = (0..8).any(|_| rig.look() == [Seen::LookFor(2)]);
        assert!(is_looked_for);
        assert_eq!(rig.come_back(2, Ok(candidate(&address(2)))), [Seen::Take(2)]);
        rig.say(2, MemberState::InSync);
        rig.machine().events.push_back(Told::Other(Event::Rebuilt(MemberIndex(2))));
        assert!(rig.seen().is_empty() && rig.look().is_empty());
    }
    assert_eq!(rig.volume.spares().count(), 1);
}

#[test]
fn for_a_member_that_does_not_come_back_by_itself_a_spare_is_taken_at_once() {
    let mut rig = with_spares(&["spare 0"]);
    rig.command_fail(3).unwrap();
    assert_eq!(rig.seen(), [Seen::Part(3)]);
    assert_eq!(rig.look(), asked(0, 3));
}

#[test]
fn a_spare_that_is_refused_is_left_alone_for_a_minute_and_told_of_once() {
    let mut rig = with_spares(&["spare 0", "spare 1"]);
    rig.command_fail(3).unwrap();
    rig.seen();
    assert_eq!(rig.look(), asked(0, 3));
    rig.refuse_spare(3, "it is in use");
    // It may be what had the place before.
    assert_eq!(rig.until_asked(), (5, asked_as(0, 3, Expect::Former).to_vec()));
    rig.refuse_spare(3, "it is not that");
    assert_eq!(rig.until_asked(), (5, asked(1, 3).to_vec()), "the next one");
    rig.refuse_spare(3, "it is too small");
    assert_eq!(rig.until_asked(), (5, asked_as(1, 3, Expect::Former).to_vec()));
    rig.refuse_spare(3, "it is not that");
    assert_eq!(rig.notices().len(), 2);
    let (seconds, seen) = rig.until_asked();
    assert_eq!(seen, asked(0, 3));
    assert!((48..=52).contains(&seconds), "{seconds} s");
    rig.refuse_spare(3, "it is in use");
    assert_eq!(rig.notices(), [""; 0]);
}

#[test]
fn a_member_that_is_back_while_a_spare_waits_for_that_keeps_its_place() {
    let mut rig = with_spares(&["spare 0"]);
    rig.leave(2);
    assert_eq!(rig.look(), [Seen::LookFor(2)]);
    for _ in 0..29 {
        assert!(rig.look().is_empty());
    }
    assert_eq!(rig.look(), [Seen::AskForSpare(0)]);
    let seen = rig.come_back(2, Ok(candidate(&address(2))));
    let refused = Seen::Joined(2, Err(JoinError::Serves(MemberIndex(2))));
    assert_eq!(seen, [refused, Seen::Take(2)]);
    rig.volume.handle_spare(MemberIndex(2), Some("it serves".into()));
    assert_eq!((rig.volume.spares().count(), rig.notices()), (1, vec![]));
}

#[test]
fn no_spare_is_asked_for_while_another_device_is_on_its_way_or_a_member_is_suspect() {
    let mut rig = with_spares(&["spare 0"]);
    rig.join(1, "another", Expect::Unused).unwrap();
    rig.command_fail(3).unwrap();
    rig.seen();
    assert!((0..9).all(|_| rig.look().is_empty()));
    rig.volume.handle_not_joined(MemberIndex(1));
    rig.lose(2);
    assert!(rig.look().is_empty());
    rig.report(2).is_connected = true;
    assert_eq!(rig.look(), asked(0, 3));
    // Nobody else's device comes in between.
    assert_eq!(rig.join(1, "another", Expect::Unused), Err(JoinError::Joining(MemberIndex(3))));
}

#[test]
fn what_is_open_for_reading_takes_no_spares() {
    let mut rig = Rig::opened_with(|script, _| {
        (script.is_read_only, script.states[3]) = (true, MemberState::Missing);
    });
    rig.volume.set_spares(Duration::ZERO, ["spare".into()].into());
    assert!((0..9).all(|_| rig.look().is_empty()));
}
