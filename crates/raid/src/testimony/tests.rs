//! Labels that lie, against labels that do not.

use alloc::{string::ToString, vec};

use super::*;
use crate::{
    geometry::Level,
    label::tests::logged_sample,
    lack::Lack,
    log::{Begin, Beginnings, Position},
    member::MemberState,
};

/// The labels of all members, all in sync, of generation 40 and epoch 7.
fn labels(level: Level, members: usize) -> Vec<Label> {
    let mut label = logged_sample(level, members);
    for entry in &mut label.members {
        (entry.state, entry.lack) = (MemberState::InSync, Lack::NOTHING);
    }
    let index = (0..label.geometry.members()).map(MemberIndex);
    index.map(|index| Label { index, ..label.clone() }).collect()
}

fn judged(labels: &[Label]) -> Result<Verdict, Unclear> {
    judged_with(labels, &[])
}

fn judged_with(labels: &[Label], checkpoints: &[Option<u64>]) -> Result<Verdict, Unclear> {
    judge(&labels.iter().collect::<Vec<_>>(), checkpoints)
}

fn set_faulty(label: &mut Label, members: &[usize]) {
    members.iter().for_each(|member| label.members[*member].state = MemberState::Faulty);
}

/// What a label is changed to, by name.
type Told = (&'static str, fn(&mut Label));

/// Lies that two against one tell from the truth.
fn lies() -> Vec<Told> {
    vec![
        ("generation 2^60", |label| label.generation = 1 << 60),
        ("generation and epoch", |label| (label.generation, label.epoch) = (1000, 1000)),
        ("epoch 2^60", |label| label.epoch = 1 << 60),
        ("others faulty, newer", |label| {
            label.generation = 1000;
            let others: Vec<usize> =
                (0..label.members.len()).filter(|at| *at != label.index.as_usize()).collect();
            set_faulty(label, &others);
        }),
        ("one other faulty, newer", |label| {
            label.epoch += 900;
            let other = (label.index.as_usize() + 1) % label.members.len();
            set_faulty(label, &[other]);
        }),
        ("another one faulty, of the same age", |label| {
            let other = (label.index.as_usize() + 1) % label.members.len();
            set_faulty(label, &[other]);
        }),
        ("log position 2^60", |label| {
            let begin = Begin { generation: 3, position: Position(1 << 60) };
            if let Some(log) = &mut label.log {
                log.beginnings = Beginnings::new(vec![begin]).unwrap();
            }
        }),
        ("another salt", |label| {
            if let Some(log) = &mut label.log {
                log.salt ^= 1;
            }
        }),
        ("another name", |label| label.name = "other".to_string()),
    ]
}

#[test]
fn one_that_lies_is_named_and_all_others_are_believed() {
    for (level, members) in
        [(Level::Raid5, 3), (Level::Raid5, 5), (Level::Raid6, 4), (Level::Raid10, 4)]
    {
        for (what, lie) in lies() {
            for who in 0..members {
                let mut labels = labels(level, members);
                lie(&mut labels[who]);
                let verdict = judged(&labels).unwrap();
                let liars: Vec<usize> = verdict.liars.iter().map(|liar| liar.at).collect();
                assert_eq!(liars, [who], "{what}, {level:?} of {members}");
                assert_ne!(verdict.truth, who);
                assert_eq!(verdict.generation, 40, "{what}");
            }
        }
    }
}

#[test]
fn two_that_tell_the_same_lie_are_outvoted_where_the_level_bears_two() {
    let mut labels = labels(Level::Raid6, 5);
    for liar in [1, 4] {
        (labels[liar].generation, labels[liar].epoch) = (1 << 59, 1 << 59);
        set_faulty(&mut labels[liar], &[0, 2]);
    }
    let verdict = judged(&labels).unwrap();
    assert_eq!(verdict.liars.iter().map(|liar| liar.at).collect::<Vec<_>>(), [1, 4]);
}

#[test]
fn of_a_mirror_three_tell_a_lead_that_cannot_be_and_two_cannot() {
    let mut three = labels(Level::Raid1, 3);
    three[1].generation = 1 << 60;
    assert!(judged(&three).unwrap().lie(1).is_some());
    let mut two = labels(Level::Raid1, 2);
    two[1].generation = 1 << 60;
    let unclear = judged(&two).unwrap_err();
    assert_eq!(unclear.places(), (1, 0));
    assert!(unclear.to_string().contains("1152921504606846976"), "{unclear}");
    // Also when it calls the other one faulty, or says another thing of the same age.
    set_faulty(&mut two[1], &[0]);
    assert!(matches!(judged(&two), Err(Unclear::Lead { .. })));
    let mut two = labels(Level::Raid1, 2);
    two[1].name = "other".to_string();
    assert!(matches!(judged(&two), Err(Unclear::Contents { .. })));
}

/// Half of a mirror can serve alone, and two of three tell all the same: they are updated together.
#[test]
fn one_mirror_of_three_that_leads_by_a_little_is_outvoted() {
    for members in 3..6 {
        for (generations, epochs) in [(0, 2), (2, 2), (0, 1000), (LEAD_MAX, LEAD_MAX)] {
            let mut labels = labels(Level::Raid1, members);
            (labels[1].generation, labels[1].epoch) = (40 + generations, 7 + epochs);
            let mut checkpoints = vec![Some(9); members];
            for behind in [0, 1, 5] {
                checkpoints[1] = Some(9 - behind);
                let verdict = judged_with(&labels, &checkpoints).unwrap();
                let liars: Vec<usize> = verdict.liars.iter().map(|liar| liar.at).collect();
                assert_eq!((liars, verdict.generation), (vec![1], 40), "{generations}, {epochs}");
            }
            // The others may be older images of one time.
            checkpoints[1] = Some(10);
            assert_eq!(judged_with(&labels, &checkpoints).unwrap().truth, 1);
            // Without a log there are no checkpoints.
            labels.iter_mut().for_each(|label| label.log = None);
            let were_openings = generations <= CUT_SHORT_MAX && epochs <= generations + 1;
            assert_eq!(judged(&labels).unwrap().lie(1).is_none(), were_openings);
        }
    }
}

/// Older images of two members say what they were once, each another thing: the newest label counts alone.
#[test]
fn a_mirror_that_went_on_alone_is_not_outvoted() {
    let mut labels = labels(Level::Raid1, 3);
    (labels[1].epoch, labels[2].epoch) = (4, 5);
    assert_eq!(judged(&labels).unwrap().truth, 0);
    // It had set the others aside, which are as they were then.
    let mut labels = self::labels(Level::Raid1, 3);
    labels[0].epoch += 2;
    set_faulty(&mut labels[0], &[1, 2]);
    assert_eq!(judged(&labels).unwrap().truth, 0);
    // They were replaced, and are given all the same.
    let mut labels = self::labels(Level::Raid1, 3);
    labels[0].epoch += 20;
    labels[0].members[1].uuid = [0xe1; 16];
    labels[0].members[2].uuid = [0xe2; 16];
    assert_eq!(judged(&labels).unwrap().truth, 0);
}

/// One of two that the newest label calls in sync was put back; the other one is old because it was set aside.
#[test]
fn who_is_called_away_does_not_vote() {
    let mut labels = labels(Level::Raid1, 4);
    labels[0].epoch += 2;
    set_faulty(&mut labels[0], &[2, 3]);
    labels[3].epoch += 1;
    set_faulty(&mut labels[3], &[2]);
    let verdict = judged_with(&labels, &[Some(9); 4]).unwrap();
    assert_eq!((verdict.truth, verdict.liars), (0, vec![]));
}

/// Nothing is left that could do without the one that contradicts the others.
#[test]
fn where_nothing_stands_the_two_that_contradict_each_other_are_named() {
    let degraded = |level, members, away: usize| {
        let mut labels = labels(level, members);
        labels.iter_mut().for_each(|label| set_faulty(label, &[away]));
        labels.remove(away);
        labels
    };
    // Of level 10, the other half of the one that is away.
    for (level, members, who) in [(Level::Raid5, 3, 0), (Level::Raid5, 4, 0), (Level::Raid10, 4, 1)]
    {
        for lead in [(1 << 20, 0), (1 << 50, 1 << 50), (0, 2)] {
            let mut labels = degraded(level, members, members - 1);
            (labels[who].generation, labels[who].epoch) = (40 + lead.0, 7 + lead.1);
            let unclear = judged_with(&labels, &vec![Some(9); members - 1]).unwrap_err();
            assert_eq!(unclear.places().0, who, "{level:?} of {members}, {lead:?}");
        }
    }
    // One of level 0 was put back.
    let mut labels = labels(Level::Raid0, 2);
    labels.iter_mut().for_each(|label| label.log = None);
    labels[1].generation -= 1;
    labels[1].epoch -= 4;
    assert!(matches!(judged(&labels), Err(Unclear::Age { .. })));
}

/// The device that has another member's place now is not known to it.
#[test]
fn a_label_from_before_a_replacement_that_leads_all_is_named() {
    let mut labels = labels(Level::Raid5, 3);
    for member in [1, 2] {
        labels[member].members[1].uuid = [0xe1; 16];
    }
    labels[0].epoch += 5;
    assert!(judged_with(&labels, &[Some(9); 3]).unwrap().lie(0).is_some());
    // It may speak for the device that had the place before.
    let unclear = judged_with(&labels, &[Some(10), Some(9), Some(9)]).unwrap_err();
    assert_eq!((unclear.places().0, matches!(unclear, Unclear::Age { .. })), (0, true));
}

/// Two went on without the others, and an update of theirs was cut short.
#[test]
fn who_went_on_is_not_contradicted_by_those_that_were_called_away() {
    let mut labels = labels(Level::Raid6, 4);
    for member in [1, 3] {
        (labels[member].generation, labels[member].epoch) = (41, 10);
        set_faulty(&mut labels[member], &[0, 2]);
    }
    labels[1].epoch += 1;
    for checkpoints in [vec![], vec![Some(9); 4]] {
        let verdict = judged_with(&labels, &checkpoints).unwrap();
        assert!(matches!(verdict.truth, 1 | 3) && verdict.liars.is_empty(), "{verdict:?}");
    }
}

/// Without a log, openings that were cut short may each have come to one member alone.
#[test]
fn openings_that_were_cut_short_are_no_lie_without_a_log_either() {
    for (level, members) in [(Level::Raid1, 3), (Level::Raid5, 3)] {
        let mut labels = labels(level, members);
        labels.iter_mut().for_each(|label| label.log = None);
        (labels[0].generation, labels[0].epoch) = (43, 10);
        assert!(judged(&labels).unwrap().liars.is_empty(), "{level:?}");
    }
}

/// An update that sets a member aside is cut short, and then openings are that do not believe it, and have its member in
/// sync: no label of before is left.
#[test]
fn an_opening_that_was_cut_short_after_an_update_that_was_keeps_no_array_shut() {
    for openings in [vec![(1, 1), (2, 1), (3, 1)], vec![(1, 1), (3, 1)], vec![(1, 2), (3, 1)]] {
        let mut all = labels(Level::Raid5, 5);
        for (at, label) in all.iter_mut().enumerate() {
            (label.log, label.epoch) = (None, label.epoch + 1);
            match openings.iter().find(|(member, _)| *member == at) {
                Some((_, count)) => {
                    label.generation += count;
                    label.epoch += count - 1;
                }
                None => set_faulty(label, &[1]),
            }
        }
        let verdict = judged(&all).unwrap();
        assert!(openings.iter().any(|(member, _)| *member == verdict.truth), "{verdict:?}");
        assert!(verdict.liars.is_empty(), "{verdict:?}");
    }
}

/// As above, but one member alone says so, and may lie.
#[test]
fn one_member_alone_takes_no_update_back_that_set_another_one_aside() {
    let mut all = labels(Level::Raid5, 5);
    all.iter_mut().for_each(|label| label.log = None);
    for at in [0, 2, 4] {
        all[at].epoch += 1;
        set_faulty(&mut all[at], &[1]);
    }
    (all[3].generation, all[3].epoch) = (all[3].generation + 1, all[3].epoch + 1);
    all.remove(1);
    assert!(judged(&all).map_or(true, |verdict| verdict.truth != 2));
}

#[test]
fn two_liars_who_say_different_things_do_not_speak_for_each_other() {
    for lead in [2, 50, 1 << 40] {
        let mut labels = labels(Level::Raid6, 4);
        (labels[0].epoch, labels[3].epoch) = (9, 9 + lead);
        let verdict = judged(&labels).unwrap();
        let liars: Vec<usize> = verdict.liars.iter().map(|liar| liar.at).collect();
        assert_eq!((liars, verdict.generation), (vec![0, 3], 40), "{lead}");
    }
}

/// The others' labels have come near to what it says since it was left out.
#[test]
fn a_member_that_was_away_before_an_update_is_not_in_sync_after_it() {
    for level in [Level::Raid5, Level::Raid1] {
        let mut labels = labels(level, 3);
        for other in [0, 2] {
            set_faulty(&mut labels[other], &[1]);
        }
        labels[1].epoch += 1;
        let verdict = judged_with(&labels, &[Some(9); 3]).unwrap();
        assert_ne!(verdict.truth, 1);
        assert!(verdict.lie(1).is_some(), "{level:?}");
        // One that catches up may have got there.
        for other in [0, 2] {
            labels[other].members[1].state = MemberState::CatchingUp;
        }
        assert!(judged_with(&labels, &[Some(9); 3]).unwrap().liars.is_empty());
    }
}

#[test]
fn a_lead_of_one_opening_after_another_is_believed_up_to_the_bound() {
    let mut two = labels(Level::Raid1, 2);
    for lead in [1, 1000, LEAD_MAX] {
        (two[1].generation, two[1].epoch) = (40 + lead, 7 + lead);
        let verdict = judged(&two).unwrap();
        assert_eq!((verdict.truth, verdict.liars.len(), verdict.generation), (1, 0, 40 + lead));
    }
    two[1].epoch += 1;
    assert!(judged(&two).is_err());
}

/// Nothing rests on a label that not all members have which it calls live: the one before it counts as well,
/// and whoever has the other does not lie.
#[test]
fn a_label_update_that_was_cut_short_is_no_lie() {
    let mut labels = labels(Level::Raid5, 4);
    let next = |label: &mut Label| {
        (label.generation, label.epoch) = (41, 8);
        set_faulty(label, &[3]);
    };
    next(&mut labels[0]);
    let verdict = judged(&labels).unwrap();
    assert_eq!((verdict.liars.len(), verdict.generation), (0, 41));
    assert_eq!(labels[verdict.truth].epoch, 7);
    next(&mut labels[1]);
    next(&mut labels[2]);
    let verdict = judged(&labels).unwrap();
    assert_eq!((labels[verdict.truth].epoch, verdict.liars.len()), (8, 0));
}

/// More than the level bears: then members are not there, and what is there is never taken for all.
#[test]
fn what_was_set_aside_does_not_outvote_those_that_went_on() {
    let mut labels = labels(Level::Raid5, 4);
    for label in &mut labels[..3] {
        label.epoch += 100;
        set_faulty(label, &[3]);
    }
    // Of those that went on one is away.
    labels.remove(2);
    let verdict = judged(&labels).unwrap();
    assert_eq!((labels[verdict.truth].epoch, verdict.liars.len()), (107, 0));
}

#[test]
fn a_member_that_is_an_older_image_of_itself_does_not_lie() {
    for back in [1, 2, 100] {
        let mut labels = labels(Level::Raid5, 3);
        labels[1].epoch = 7_u64.saturating_sub(back);
        labels[1].generation = 40_u64.saturating_sub(back);
        let verdict = judged(&labels).unwrap();
        assert_eq!((verdict.liars.len(), labels[verdict.truth].epoch), (0, 7), "{back}");
    }
}

#[test]
fn two_shapes_that_as_many_members_have_are_told_and_neither_is_chosen() {
    let mut labels = labels(Level::Raid1, 2);
    labels[0].log.as_mut().unwrap().salt ^= 1;
    assert!(matches!(judged(&labels), Err(Unclear::Shape { .. })));
}

/// Two engines died while they wrote their first labels, each without another member: both are of one age.
#[test]
fn of_two_openings_that_were_cut_short_without_different_members_none_is_a_lie() {
    let mut three = labels(Level::Raid5, 3);
    for (at, away) in [(0, 2), (1, 0)] {
        three[at].generation += 1;
        three[at].epoch += 1;
        three[at].members[away].state = MemberState::Missing;
    }
    for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
        let ordered: Vec<Label> = order.iter().map(|at| three[*at].clone()).collect();
        let verdict = judged(&ordered).unwrap();
        assert_eq!(ordered[verdict.truth].index, MemberIndex(1), "{order:?}");
        assert!(verdict.liars.is_empty(), "{order:?}: {:?}", verdict.liars);
    }
}

/// The update after the label of the others, by one member that calls as many others faulty as leave half of them.
#[test]
fn an_update_that_one_of_the_rest_lacks_sets_nobody_aside_who_is_here() {
    for (level, members, faulty) in
        [(Level::Raid5, 3, vec![1]), (Level::Raid6, 4, vec![1, 2]), (Level::Raid1, 3, vec![1])]
    {
        for (generations, epochs) in [(0, 1), (1, 0), (1, 1)] {
            let mut all = labels(level, members);
            all[0].generation += generations;
            all[0].epoch += epochs;
            set_faulty(&mut all[0], &faulty);
            if level == Level::Raid1 {
                // A mirror that calls another one away went on without it; the third one lacks what it says.
                assert_eq!(judged(&all).unwrap().truth, 0);
                continue;
            }
            let verdict = judged(&all).unwrap();
            assert!(verdict.truth != 0 && verdict.liars.is_empty(), "{level:?} {verdict:?}");
            // Who is away, or was set aside long before, is not asked.
            let gone: Vec<Label> =
                (0..members).filter(|at| !faulty.contains(at)).map(|at| all[at].clone()).collect();
            assert_eq!(judged(&gone).unwrap().truth, 0, "{level:?}");
        }
    }
}

/// One of three mirrors has an update that the others lack: a new generation that has written to the log.
#[test]
fn an_update_that_one_mirror_of_three_alone_has_does_not_count() {
    for (generations, epochs) in [(1, 0), (0, 1), (1, 1)] {
        for members in 3..6 {
            let mut all = labels(Level::Raid1, members);
            (all[0].generation, all[0].epoch) = (40 + generations, 7 + epochs);
            for (own, truth_is_first) in [(Some(9), false), (None, false), (Some(10), true)] {
                let mut checkpoints = vec![Some(9); members];
                checkpoints[0] = own;
                let verdict = judged_with(&all, &checkpoints).unwrap();
                assert_eq!(verdict.truth == 0, truth_is_first, "{own:?}");
                assert!(verdict.liars.is_empty(), "it may have been cut short");
            }
        }
    }
}

/// One of three mirrors leads, and has no checkpoint that says so.
#[test]
fn a_mirror_that_leads_without_a_checkpoint_is_outvoted() {
    let mut all = labels(Level::Raid1, 3);
    all[1].epoch += 2;
    let verdict = judged_with(&all, &[Some(9), None, Some(9)]).unwrap();
    assert!(verdict.truth != 1 && verdict.lie(1).is_some(), "{verdict:?}");
}

/// Of four mirrors one is away, and the update that sets it aside has reached one of the others.
#[test]
fn the_next_label_of_one_mirror_counts_where_it_sets_aside_who_is_away() {
    for (is_here, truth) in [(false, true), (true, false)] {
        let mut all = labels(Level::Raid1, 4);
        all[0].epoch += 1;
        set_faulty(&mut all[0], &[3]);
        all.truncate(if is_here { 4 } else { 3 });
        let verdict = judged_with(&all, &vec![Some(9); all.len()]).unwrap();
        assert_eq!(verdict.truth == 0, truth, "{is_here}");
        assert!(verdict.liars.is_empty());
    }
}

/// A member that was away while an array without a log was open is back, with a label from before, when the array was
/// closed and one of the others lacks that.
#[test]
fn who_was_set_aside_before_makes_no_closing_an_opening() {
    let mut all = labels(Level::Raid5, 3);
    all.iter_mut().for_each(|label| label.log = None);
    for at in [1, 2] {
        (all[at].generation, all[at].epoch) = (41, 8);
        set_faulty(&mut all[at], &[0]);
    }
    all[1].epoch = 9;
    assert_eq!(judged(&all).unwrap().truth, 1);
}
