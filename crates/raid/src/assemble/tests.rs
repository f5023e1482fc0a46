//! Labels that belong together, and what they may be opened to.

use alloc::string::ToString;

use super::*;
use crate::{
    geometry::Level,
    label::tests::{logged_sample, sample},
    lack::Lack,
};

fn labels(level: Level, members: u8) -> Vec<Found> {
    labelled(&sample(level, usize::from(members)))
}

/// With a log, and nobody away.
fn in_sync(level: Level, members: usize) -> Label {
    let mut label = logged_sample(level, members);
    for entry in &mut label.members {
        (entry.state, entry.lack) = (MemberState::InSync, Lack::NOTHING);
    }
    label
}

fn labelled(label: &Label) -> Vec<Found> {
    let members = label.geometry.members();
    let one = |at| {
        let label = Label { index: MemberIndex(at), ..label.clone() };
        Found { address: alloc::format!("m{at}"), label, checkpoint: None }
    };
    (0..members).map(one).collect()
}

fn set_aside(found: &mut [Found], who: usize) {
    for (at, found) in found.iter_mut().enumerate() {
        if at != who {
            found.label.members[who].state = MemberState::Faulty;
            found.label.epoch += 1;
        }
    }
}

#[test]
fn a_member_that_was_set_aside_is_not_current_when_it_comes_back() {
    let mut found = labels(Level::Raid5, 4);
    set_aside(&mut found, 2);
    let assembly = assemble(&found, Permissions::default()).unwrap();
    assert_eq!((assembly.stale.as_slice(), assembly.found[2]), (&[2][..], None));
    assert_eq!(assembly.label.state(MemberIndex(2)), MemberState::Faulty);
}

#[test]
fn with_a_log_a_member_that_was_away_has_its_place_and_does_not_count() {
    let mut found = labelled(&in_sync(Level::Raid5, 4));
    set_aside(&mut found, 2);
    let assembly = assemble(&found, Permissions::default()).unwrap();
    assert_eq!((assembly.stale.as_slice(), assembly.found[2]), (&[][..], Some(2)));
    assert_eq!(assembly.label.state(MemberIndex(2)), MemberState::Faulty);
    found.remove(0);
    let few = assemble(&found, Permissions::default()).unwrap_err();
    assert!(matches!(few, AssembleError::TooFew { current: 2, .. }), "{few}");
}

#[test]
fn with_a_log_an_old_word_of_a_member_that_has_caught_up_is_no_second_history() {
    let mut found = labelled(&in_sync(Level::Raid6, 4));
    // Member 3 was set aside, then member 2, which never heard that 3 is back.
    found[2].label.members[3].state = MemberState::Faulty;
    found[2].label.epoch += 1;
    for other in [0, 1, 3] {
        found[other].label.members[2].state = MemberState::Faulty;
        found[other].label.epoch += 4;
    }
    assert!(assemble(&found, Permissions::default()).is_ok());
    // Two halves of a mirror that went on alone are two histories, log or not.
    let mut found = labelled(&in_sync(Level::Raid1, 2));
    found[0].label.members[1].state = MemberState::Faulty;
    found[0].label.epoch += 1;
    found[1].label.members[0].state = MemberState::Missing;
    found[1].label.generation += 1;
    let error = assemble(&found, Permissions::default()).unwrap_err();
    assert!(matches!(error, AssembleError::Diverged { .. }), "{error}");
}

#[test]
fn pairs_of_a_level_10_decide_what_is_enough_and_who_could_have_gone_on() {
    let label = in_sync(Level::Raid10, 4);
    let all = labelled(&label);
    let pick = |members: &[u8]| -> Vec<Found> {
        members.iter().map(|member| all[usize::from(*member)].clone()).collect()
    };
    let halves: Vec<[u8; 2]> = (0..4).flat_map(|a| (a + 1..4).map(move |b| [a, b])).collect();
    let force = Permissions { force: true, ..Permissions::default() };
    let opened = halves.iter().filter(|half| assemble(&pick(*half), force).is_ok()).count();
    assert_eq!(opened, 4, "one of each pair");
    for half in halves {
        assert!(assemble(&pick(&half), Permissions::default()).is_err(), "{half:?}");
    }
    assert!(assemble(&pick(&[0, 1, 2]), Permissions::default()).is_ok());
}

#[test]
fn a_level_that_needs_a_log_is_not_assembled_without_one() {
    for level in [Level::Raid6, Level::Raid10] {
        let refused = assemble(&labels(level, 4), Permissions::default()).unwrap_err();
        assert!(matches!(refused, AssembleError::NoLog { .. }), "{refused}");
    }
}

#[test]
fn a_replaced_member_is_not_taken_for_its_replacement() {
    let mut found = labels(Level::Raid5, 4);
    for other in [0, 1, 3] {
        found[other].label.members[2].uuid = [77; 16];
        found[other].label.epoch += 1;
    }
    assert_eq!(assemble(&found, Permissions::default()).unwrap().stale, [2]);
}

#[test]
fn one_side_of_a_mirror_alone_does_not_open() {
    let mut found = labels(Level::Raid1, 2);
    set_aside(&mut found, 1);
    let stale = found.pop().unwrap();
    assert!(assemble(&found, Permissions::default()).is_ok(), "the survivor knows");
    let error = assemble(core::slice::from_ref(&stale), Permissions::default()).unwrap_err();
    assert!(matches!(error, AssembleError::Contested { .. }), "{error}");
    let dead = Permissions { holder_is_dead: true, ..Permissions::default() };
    let error = assemble(core::slice::from_ref(&stale), dead).unwrap_err();
    assert!(matches!(error, AssembleError::Contested { .. }), "a dead holder is no proof: {error}");
    let force = Permissions { force: true, ..Permissions::default() };
    assert!(assemble(&[stale], force).is_ok());
}

#[test]
fn two_halves_that_went_on_without_each_other_are_not_mixed() {
    let mut found = labels(Level::Raid1, 2);
    found[0].label.members[1].state = MemberState::Faulty;
    found[0].label.epoch += 1;
    found[1].label.members[0].state = MemberState::Missing;
    found[1].label.generation += 1;
    let error = assemble(&found, Permissions::default()).unwrap_err();
    assert!(matches!(error, AssembleError::Diverged { .. }), "{error}");
}

/// Members of an array without a log, one of which has another label: so many epochs later or earlier, with these
/// members set aside.
fn one_says(level: Level, members: u8, who: usize, epoch: i64, faulty: &[usize]) -> Vec<Found> {
    let mut found = labels(level, members);
    let label = &mut found[who].label;
    label.epoch = label.epoch.checked_add_signed(epoch).unwrap();
    for at in faulty {
        label.members[*at].state = MemberState::Faulty;
    }
    found
}

fn is_diverged(found: &[Found]) -> bool {
    matches!(assemble(found, Permissions::default()), Err(AssembleError::Diverged { .. }))
}

#[test]
fn a_label_that_one_member_alone_was_given_is_no_second_history() {
    // The update that sets member 0 aside had reached one of the others when the engine died.
    for (members, who) in [(4, 1), (4, 3), (5, 2)] {
        let found = one_says(Level::Raid5, members, who, 1, &[0]);
        let assembly = assemble(&found, Permissions::default()).unwrap();
        assert!(assembly.found.iter().all(Option::is_some) && assembly.liars.is_empty());
        assert!(assembly.label.members.iter().all(|entry| entry.state == MemberState::InSync));
    }
    // And the next engine died before that one had its label.
    for (members, who) in [(3, 1), (3, 2), (4, 2), (5, 4)] {
        let mut found = one_says(Level::Raid5, members, who, 1, &[0]);
        for at in (0..found.len()).filter(|at| *at != who) {
            (found[at].label.generation, found[at].label.epoch) = (4, 8);
        }
        let assembly = assemble(&found, Permissions::default()).unwrap();
        assert!(assembly.found.iter().all(Option::is_some), "{members} {who}");
    }
}

#[test]
fn one_older_label_that_calls_others_set_aside_keeps_no_array_shut() {
    let cases: [(Level, u8, usize, &[usize]); 6] = [
        (Level::Raid5, 3, 1, &[0]),
        (Level::Raid5, 3, 2, &[0]),
        (Level::Raid5, 4, 3, &[0]),
        (Level::Raid5, 6, 5, &[0]),
        (Level::Raid1, 3, 2, &[0]),
        (Level::Raid1, 4, 1, &[0, 2]),
    ];
    for (level, members, who, faulty) in cases {
        for epoch in [-1, -2, -5] {
            let found = one_says(level, members, who, epoch, faulty);
            let assembly = assemble(&found, Permissions::default());
            let assembly = assembly.unwrap_or_else(|error| panic!("{level:?} {who}: {error}"));
            let is_live = |at: u8| assembly.label.state(MemberIndex(at)).is_live();
            assert!((0..members).all(|at| is_live(at) || (usize::from(at) == who && epoch < -1)));
        }
    }
}

#[test]
fn an_older_image_is_not_in_sync_without_a_log_either() {
    for (level, members) in [(Level::Raid1, 2), (Level::Raid1, 3), (Level::Raid5, 3)] {
        let cases = [(0, -1, false), (0, -2, true), (0, -7, true), (-1, -3, true), (-3, -3, false)];
        for (generations, epochs, is_older) in cases {
            let mut found = one_says(level, members, 1, epochs, &[]);
            let generation = &mut found[1].label.generation;
            *generation = generation.checked_add_signed(generations).unwrap();
            let assembly = assemble(&found, Permissions { force: true, ..Permissions::default() });
            let assembly = assembly.unwrap();
            assert_eq!(assembly.stale.contains(&1), is_older, "{level:?} {generations} {epochs}");
            assert_eq!(assembly.found[1].is_none(), is_older, "{level:?} {epochs}");
            assert_ne!(assembly.label.state(MemberIndex(1)).is_live(), is_older);
        }
    }
    // Without the two that were put back nothing could serve: they are told by nothing then.
    let mut found = one_says(Level::Raid5, 3, 1, -4, &[]);
    found[2].label.epoch -= 4;
    let assembly = assemble(&found, Permissions::default());
    assert!(assembly.is_err() || assembly.unwrap().stale.is_empty());
}

/// Without a log, what lies before the mark of a member that catches up is read from it.
#[test]
fn an_older_image_does_not_go_on_catching_up_without_a_log() {
    for (epochs, is_older) in [(-1, false), (-2, true), (-7, true)] {
        let mut found = one_says(Level::Raid5, 3, 1, epochs, &[]);
        for other in [0, 2] {
            let entry = &mut found[other].label.members[1];
            (entry.state, entry.rebuilt_stripes) = (MemberState::CatchingUp, 9);
        }
        let force = Permissions { force: true, ..Permissions::default() };
        let assembly = assemble(&found, force).unwrap();
        assert_eq!(assembly.stale.contains(&1), is_older, "{epochs}");
        let entry = &assembly.label.members[1];
        let expected =
            if is_older { (MemberState::Missing, 0) } else { (MemberState::CatchingUp, 9) };
        assert_eq!((entry.state, entry.rebuilt_stripes), expected, "{epochs}");
    }
}

#[test]
fn who_could_have_gone_on_without_the_truth_is_a_second_history() {
    // It needed nobody: what was acknowledged may be on it alone, and the newer label on too few.
    assert!(is_diverged(&one_says(Level::Raid1, 2, 1, -1, &[0])));
    assert!(is_diverged(&one_says(Level::Raid1, 3, 2, -1, &[0, 1])));
    // Nobody of those that it needed says otherwise: who could is away, or has this label, too.
    for (level, who) in [(Level::Raid5, 2), (Level::Raid1, 2)] {
        let mut found = one_says(level, 3, who, -1, &[0]);
        found.remove(1);
        assert!(is_diverged(&found), "{level:?}");
    }
    // A device that has taken its place since was never asked.
    let mut found = one_says(Level::Raid1, 3, 2, -1, &[0]);
    for other in [0, 1] {
        found[other].label.members[1].uuid = [77; 16];
    }
    assert!(is_diverged(&found));
    // What is older than the truth tells nothing of what was complete before it.
    let mut found = one_says(Level::Raid1, 3, 2, -1, &[0]);
    found[1].label.epoch -= 2;
    assert!(is_diverged(&found));
    // Both halves went on, of three as of two.
    let mut found = labels(Level::Raid1, 3);
    found[0].label.members[1].state = MemberState::Missing;
    found[0].label.members[2].state = MemberState::Missing;
    found[0].label.generation += 2;
    for other in [1, 2] {
        found[other].label.members[0].state = MemberState::Missing;
        found[other].label.generation += 1;
    }
    assert!(is_diverged(&found));
}

/// Three mirrors with a log, with these in sync by the label of each, the oldest first.
fn mirrors(of_each: [&[usize]; 3]) -> Vec<Found> {
    let mut found = labelled(&in_sync(Level::Raid1, 3));
    for (at, in_sync) in of_each.into_iter().enumerate() {
        let label = &mut found[at].label;
        label.epoch += 10 * at as u64;
        for member in (0..3).filter(|member| !in_sync.contains(member)) {
            label.members[member].state = MemberState::Faulty;
        }
    }
    found
}

#[test]
fn mirrors_that_were_set_aside_in_turns_have_one_history() {
    // Member 2 was away while the others went on, came back, went on with member 1, and then alone.
    let in_turns = mirrors([&[0, 1], &[1, 2], &[2]]);
    let assembly = assemble(&in_turns, Permissions::default()).unwrap();
    assert_eq!(assembly.truth, 2);
    assert!(assembly.found.iter().all(Option::is_some) && assembly.liars.is_empty());
    // Without the one that was there both times nobody can tell.
    assert!(is_diverged(&[in_turns[0].clone(), in_turns[2].clone()]));
    // That one went on with the first, and so did the last without them.
    assert!(is_diverged(&mirrors([&[0, 1], &[0, 1], &[2]])));
    // What one of them calls in sync may never have had that label: the first went on alone, beside the others.
    assert!(is_diverged(&mirrors([&[0], &[0, 1, 2], &[2]])));
    // A device that took the place of the one in between since tells nothing.
    let mut replaced = in_turns.clone();
    for at in [1, 2] {
        replaced[at].label.members[1].uuid = [77; 16];
    }
    assert!(is_diverged(&replaced));
    // Nor does one that had its label later.
    let mut later = in_turns;
    later[0].label.epoch += 15;
    assert!(is_diverged(&later));
}

#[test]
fn too_few_foreign_and_doubled_members_are_refused() {
    let mut found = labels(Level::Raid5, 4);
    let few = assemble(&found[..2], Permissions::default()).unwrap_err();
    assert!(few.to_string().contains("2 of 4") && few.to_string().contains("member 3"), "{few}");
    found[3].label.index = MemberIndex(1);
    assert!(matches!(
        assemble(&found, Permissions::default()),
        Err(AssembleError::Twice { index: MemberIndex(1), .. })
    ));
    found[3].label.array_uuid = [5; 16];
    let different = assemble(&found, Permissions::default());
    assert!(matches!(different, Err(AssembleError::DifferentArrays { .. })));
}

#[test]
fn an_unclean_array_opens_only_on_proof_and_with_all_its_parity() {
    let mut found = labels(Level::Raid5, 4);
    found.iter_mut().for_each(|found| found.label.closure = Closure::Open);
    let held = assemble(&found, Permissions::default()).unwrap_err();
    assert!(matches!(held, AssembleError::Held { .. }));
    let dead = Permissions { holder_is_dead: true, ..Permissions::default() };
    assert!(assemble(&found, dead).unwrap().unclean);
    let error = assemble(&found[..3], dead).unwrap_err();
    assert!(matches!(error, AssembleError::UncleanDegraded { .. }));
}

#[test]
fn a_log_says_what_parity_should_be_when_a_member_is_away() {
    let mut label = Label { closure: Closure::Open, ..logged_sample(Level::Raid5, 4) };
    label.members[3].state = MemberState::InSync;
    let found = labelled(&label);
    let dead = Permissions { holder_is_dead: true, ..Permissions::default() };
    assert!(assemble(&found[..3], dead).unwrap().unclean);
}

#[test]
fn labels_that_differ_in_the_log_are_not_of_one_array() {
    let (logged, plain) = (logged_sample(Level::Raid5, 4), sample(Level::Raid5, 4));
    type Change = fn(&mut Option<crate::label::LogLabel>);
    let changes: [Change; 2] = [|log| log.as_mut().unwrap().salt ^= 1, |log| *log = None];
    for change in changes {
        let mut found = labelled(&logged);
        change(&mut found[2].label.log);
        let error = assemble(&found, Permissions::default()).unwrap_err();
        assert!(matches!(error, AssembleError::Disagree { .. }), "{error}");
    }
    assert!(assemble(&labelled(&plain), Permissions::default()).is_ok());
}

#[test]
fn an_array_is_assembled_without_the_one_that_lies_and_is_not_where_it_is_needed() {
    let lies: [fn(&mut Label); 5] = [
        |label| label.generation = 1 << 60,
        |label| (label.generation, label.epoch) = (1000, 1 << 60),
        |label| label.log.as_mut().unwrap().salt ^= 1,
        |label| label.members[1].state = MemberState::Faulty,
        |label| {
            label.generation = 1000;
            label.members[..3].iter_mut().for_each(|entry| entry.state = MemberState::Faulty);
        },
    ];
    for lie in lies {
        let mut found = labelled(&in_sync(Level::Raid5, 4));
        lie(&mut found[3].label);
        let assembly = assemble(&found, Permissions::default()).unwrap();
        assert_eq!(assembly.found, [Some(0), Some(1), Some(2), None]);
        assert_eq!(assembly.liars.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [3]);
        assert_eq!(assembly.label.state(MemberIndex(3)), MemberState::Missing);
        assert_eq!(assembly.label.generation, 40, "a number of the liar is on nobody else");
        // Three of four, one of which lies: the error has the names of both sides.
        found.remove(0);
        let error = assemble(&found, Permissions::default()).unwrap_err().to_string();
        assert!(error.contains("m3") && error.contains("m1"), "{error}");
    }
}

#[test]
fn half_of_a_mirror_that_lies_is_told_by_whoever_knows_how_it_was_closed_alone() {
    let closed = in_sync(Level::Raid1, 2);
    let mut found = labelled(&closed);
    found[0].label.generation = 1 << 60;
    let error = assemble(&found, Permissions::default()).unwrap_err();
    assert!(matches!(error, AssembleError::Contradict { .. }), "{error}");
    let error = error.to_string();
    assert!(error.contains("m0") && error.contains("m1") && error.contains("1152921504606846976"));
    let assembly = assemble(&found, knowing(&closed)).unwrap();
    assert_eq!((assembly.truth, assembly.found.as_slice()), (1, &[None, Some(1)][..]));
}

#[test]
fn a_member_whose_device_cannot_serve_is_left_out_where_the_level_allows() {
    let found = labelled(&in_sync(Level::Raid5, 4));
    let unfit = |members: &[u8]| Permissions {
        unfit: members.iter().copied().map(MemberIndex).collect(),
        ..Permissions::default()
    };
    let assembly = assemble(&found, unfit(&[2])).unwrap();
    assert_eq!(assembly.found, [Some(0), Some(1), None, Some(3)]);
    assert!(matches!(assemble(&found, unfit(&[1, 2])), Err(AssembleError::TooFew { .. })));
    // It was heard: it has nothing newer.
    let mirror = labelled(&in_sync(Level::Raid1, 2));
    assert!(assemble(&mirror, unfit(&[0])).is_ok());
}

/// What somebody knows who saw this array closed.
fn knowing(label: &Label) -> Permissions {
    Permissions { clean_close: CleanClose::of(label), ..Permissions::default() }
}

/// Members of `all` by number.
fn pick(all: &[Found], members: &[usize]) -> Vec<Found> {
    members.iter().map(|member| all[*member].clone()).collect()
}

#[test]
fn half_of_what_was_closed_in_good_order_opens_to_whoever_knows_that_nobody_went_on() {
    let halves: [(Level, usize, &[usize]); 5] = [
        (Level::Raid1, 2, &[0]),
        (Level::Raid1, 2, &[1]),
        (Level::Raid1, 3, &[1]),
        (Level::Raid10, 4, &[1, 2]),
        (Level::Raid6, 4, &[0, 3]),
    ];
    for (level, members, half) in halves {
        let label = in_sync(level, members);
        let found = pick(&labelled(&label), half);
        let refused = assemble(&found, Permissions::default()).unwrap_err();
        assert!(matches!(refused, AssembleError::Contested { .. }), "{refused}");
        let assembly = assemble(&found, knowing(&label)).unwrap();
        for member in 0..members {
            let is_here = half.contains(&member);
            let state = assembly.label.members[member].state;
            assert_eq!(is_here, state == MemberState::InSync, "{level:?} {half:?} {member}");
        }
        let reads = Permissions { read_only: true, ..knowing(&label) };
        assert!(assemble(&found, reads).is_ok());
    }
}

#[test]
fn knowing_how_an_array_was_closed_does_not_make_up_for_members_that_are_too_few() {
    let label = in_sync(Level::Raid10, 4);
    let pair = pick(&labelled(&label), &[0, 2]);
    let few = assemble(&pair, knowing(&label)).unwrap_err();
    assert!(matches!(few, AssembleError::TooFew { .. }), "{few}");
    let foreign = Label { array_uuid: [5; 16], ..label.clone() };
    let mixed = [pick(&labelled(&label), &[0]), pick(&labelled(&foreign), &[2])].concat();
    let mixed = assemble(&mixed, knowing(&label)).unwrap_err();
    assert!(matches!(mixed, AssembleError::DifferentArrays { .. }), "{mixed}");
}

#[test]
fn what_is_known_of_a_close_counts_for_labels_of_that_close_alone() {
    let closed = in_sync(Level::Raid1, 2);
    let known = knowing(&closed);
    let changes: [fn(&mut Label); 5] = [
        // Somebody opened it since, and went on or not.
        |label| label.generation += 1,
        |label| label.epoch += 1,
        |label| label.closure = Closure::Open,
        // The device was set back to what it was before.
        |label| label.epoch -= 1,
        |label| label.generation -= 1,
    ];
    for change in changes {
        let mut label = closed.clone();
        change(&mut label);
        let half = pick(&labelled(&label), &[0]);
        let refused = assemble(&half, known).unwrap_err();
        assert!(matches!(refused, AssembleError::Contested { .. }), "{refused}");
    }
    // One of several that was set back is enough.
    let closed = in_sync(Level::Raid10, 4);
    let mut half = pick(&labelled(&closed), &[1, 2]);
    assert!(assemble(&half, knowing(&closed)).is_ok());
    half[0].label.epoch -= 1;
    let refused = assemble(&half, knowing(&closed)).unwrap_err();
    assert!(matches!(refused, AssembleError::Contested { .. }), "{refused}");
}

/// Of two mirrors none can tell from the labels alone.
#[test]
fn a_label_that_leads_the_last_close_lies_however_little_it_leads() {
    let closed = in_sync(Level::Raid1, 2);
    for (generations, epochs) in [(0, 2), (2, 2), (1000, 0), (1 << 40, 1 << 40)] {
        let mut found = labelled(&closed);
        found[0].label.generation += generations;
        found[0].label.epoch += epochs;
        let assembly = assemble(&found, knowing(&closed)).unwrap();
        let liars: Vec<usize> = assembly.liars.iter().map(|(at, _)| *at).collect();
        assert_eq!((liars, assembly.truth), (alloc::vec![0], 1), "{generations}, {epochs}");
        assert_eq!(assembly.found, [None, Some(1)]);
        assert_eq!(assembly.label.generation, closed.generation);
    }
    // Openings since that were cut short are none.
    let mut found = labelled(&closed);
    (found[0].label.generation, found[0].label.epoch) = (closed.generation + 3, closed.epoch + 1);
    assert!(assemble(&found, knowing(&closed)).unwrap().liars.is_empty());
}

#[test]
fn a_member_that_did_not_hold_everything_at_the_close_is_not_vouched_for() {
    let closed = in_sync(Level::Raid1, 2);
    let mut known = knowing(&closed);
    if let Some(close) = &mut known.clean_close {
        close.in_sync.remove(MemberIndex(1));
    }
    assert!(assemble(&pick(&labelled(&closed), &[0]), known).is_ok());
    let refused = assemble(&pick(&labelled(&closed), &[1]), known).unwrap_err();
    assert!(matches!(refused, AssembleError::Contested { .. }), "{refused}");
}

#[test]
fn an_array_that_was_not_closed_in_good_order_has_nothing_to_be_known_of_that() {
    for closure in [Closure::Open, Closure::Unsynced] {
        let label = Label { closure, ..in_sync(Level::Raid1, 2) };
        assert_eq!(CleanClose::of(&label), None);
    }
    let mut label = in_sync(Level::Raid10, 4);
    label.members[3].state = MemberState::Faulty;
    label.members[2].state = MemberState::CatchingUp;
    let close = CleanClose::of(&label).unwrap();
    assert_eq!(close.in_sync, [0, 1].map(MemberIndex).into_iter().collect());
}

#[test]
fn of_arrays_of_one_name_the_one_that_was_opened_is_chosen_and_never_one_of_two() {
    let label = |uuid: u8, generation| Label {
        array_uuid: [uuid; 16],
        generation,
        ..in_sync(Level::Raid6, 4)
    };
    let choose = |labels: &[Label]| choose_array(labels.iter());
    let (new, other, opened) = (label(3, 1), label(4, 1), label(2, 7));
    assert_eq!(choose(&[new.clone(), opened.clone(), other.clone()]), Some([2; 16]));
    assert_eq!(choose(&[new.clone(), other.clone(), new.clone()]), Some([3; 16]));
    assert_eq!(choose(&[opened.clone(), opened.clone()]), Some([2; 16]));
    assert_eq!(choose(&[new.clone(), opened.clone(), label(5, 2)]), None);
    let strange = Label { name: "another".to_string(), ..new };
    assert_eq!(choose(&[opened, strange]), None);
    assert_eq!(choose(&[]), None);
}

#[test]
fn a_label_that_calls_so_many_set_aside_that_the_rest_cannot_serve_makes_no_second_history() {
    for mut found in [labelled(&in_sync(Level::Raid5, 3)), labels(Level::Raid5, 3)] {
        for other in [1, 2] {
            found[0].label.members[other].state = MemberState::Faulty;
        }
        // The others have left it out since.
        for other in [1, 2] {
            found[other].label.members[0].state = MemberState::Faulty;
            found[other].label.generation += 1;
            found[other].label.epoch += 2;
        }
        let assembly = assemble(&found, Permissions::default()).unwrap();
        assert_eq!(assembly.label.state(MemberIndex(0)), MemberState::Faulty);
        assert_eq!(assembly.label.state(MemberIndex(1)), MemberState::InSync);
    }
}

#[test]
fn labels_that_stand_for_another_member_are_left_out_while_the_rest_can_serve() {
    let found = labelled(&in_sync(Level::Raid5, 4));
    let judge = |change: &dyn Fn(&mut [Label])| {
        let mut labels: Vec<Label> = found.iter().map(|found| found.label.clone()).collect();
        change(&mut labels);
        misplaced(&(0..).map(MemberIndex).zip(&labels).collect::<Vec<_>>())
    };
    assert_eq!(judge(&|_| {}), []);
    assert_eq!(judge(&|labels| labels[2].index = MemberIndex(3)), [2]);
    assert_eq!(judge(&|labels| labels[0].array_uuid = [0xe5; 16]), [0]);
    // Too few are right: then the word of where they are may be wrong.
    assert_eq!(judge(&|labels| labels.swap(1, 2)), []);
    assert_eq!(judge(&|labels| labels.rotate_left(1)), []);
}

#[test]
fn openings_that_were_cut_short_before_a_member_was_lost_are_opened_by_force() {
    // Five of level 5 without a log: member 1 is set aside, and member 2 never hears that; an opening finds that and has
    // all in sync again, which only members 1 and 2 hear. Then member 1 is lost.
    let mut found = labels(Level::Raid5, 5);
    for at in [0, 3, 4] {
        found[at].label.epoch += 1;
        found[at].label.members[1].state = MemberState::Faulty;
    }
    let (generation, epoch) = (found[0].label.generation + 1, found[0].label.epoch);
    for at in [1, 2] {
        (found[at].label.generation, found[at].label.epoch) = (generation, epoch);
    }
    let force = Permissions { force: true, ..Permissions::default() };
    assert!(assemble(&found, force).is_ok(), "nobody is lost");
    found.remove(1);
    let error = assemble(&found, Permissions::default()).unwrap_err();
    assert!(matches!(error, AssembleError::Contradict { is_needed: true, .. }), "{error}");
    assert!(error.to_string().contains("or give --force to believe it"), "{error}");
    let assembly = assemble(&found, force).unwrap();
    assert_eq!(assembly.found, [Some(0), None, Some(1), Some(2), Some(3)]);
    assert_eq!((assembly.label.generation, assembly.liars.len()), (generation, 0));
}

#[test]
fn by_force_no_older_image_and_no_liar_is_believed_that_too_few_are_left_without() {
    let force = Permissions { force: true, ..Permissions::default() };
    let refused = |found: &[Found]| {
        let error = assemble(found, force).unwrap_err();
        assert!(matches!(error, AssembleError::Contradict { is_needed: false, .. }), "{error}");
    };
    // Member 3 is set aside and away, and member 2 was put back to an image of long ago.
    let mut found = labels(Level::Raid5, 4);
    for at in [0, 1] {
        found[at].label.generation += 80;
        found[at].label.epoch += 90;
        found[at].label.members[3].state = MemberState::Faulty;
    }
    found.remove(3);
    refused(&found);
    // Member 2 says a number that nobody writes.
    let mut found = labels(Level::Raid5, 4);
    for at in [1, 2] {
        found[at].label.members[0].state = MemberState::Faulty;
        found[at].label.epoch += 1;
    }
    found[3].label.generation = 1 << 60;
    found.remove(0);
    refused(&found);
    // The member that a newer label has back is here, and has a label of long ago.
    let mut found = labels(Level::Raid5, 5);
    for at in [3, 4] {
        found[at].label.epoch += 9;
        found[at].label.members[1].state = MemberState::Faulty;
    }
    found[2].label.generation += 1;
    found[2].label.epoch += 9;
    found.remove(0);
    refused(&found);
    // Nobody of level 0 is ever set aside.
    let mut found = labels(Level::Raid0, 2);
    found[0].label.generation += 20;
    found[0].label.epoch += 40;
    refused(&found);
}
