//! Counters of what went wrong: when they are read from members, and when they are written.

use super::*;
use crate::{
    faults::{Fault, Faults, FaultsImage},
    regions::HISTORY_OFFSETS,
};

const ARRAY: Uuid = [7; 16];

/// Whose counters are in this member's place.
fn uuid(member: u8) -> Uuid {
    [member + 1; 16]
}

/// Around a machine that knows who its members are.
fn rig() -> Rig {
    Rig::opened_with(|script, _| {
        script.identities = (0..MEMBERS).map(|member| (ARRAY, uuid(member))).collect();
    })
}

fn sent(seen: Vec<Seen>) -> Vec<Sent> {
    let one = |seen| if let Seen::Sent(sent) = seen { Some(sent) } else { None };
    seen.into_iter().filter_map(one).collect()
}

/// Answers what was asked of members with what they have, which is `image` of one of them.
fn answer(rig: &mut Rig, asked: Vec<Sent>, image: Option<(u8, FaultsImage)>) {
    for Sent { tag, member, what: (op, offset, len), .. } in asked {
        assert_eq!((op, len), (Op::Read, 4096));
        assert!(HISTORY_OFFSETS.contains(&offset));
        let there = image.filter(|(of, image)| *of == member && image.offset() == offset);
        let bytes = there.map_or(vec![0; 4096], |(_, image)| image.encode(ARRAY));
        rig.end(tag, Ok(Buf::copy_from(&bytes).into()));
    }
}

fn wrong(count: u64) -> Faults {
    Faults { wrong_blocks: count, ..Faults::default() }
}

fn find(rig: &mut Rig, member: u8, count: u64) {
    let (member, fault) = (MemberIndex(member), Fault::WrongBlocks);
    rig.machine().events.push_back(Told::Found { member, fault, count });
    assert!(rig.seen().is_empty());
}

fn faults(rig: &Rig, member: u8) -> Faults {
    rig.volume.faults(MemberIndex(member))
}

/// With counters that were read: ten wrong blocks of member 2.
fn read() -> Rig {
    let mut rig = rig();
    let asked = sent(rig.look());
    assert_eq!(asked.len(), 2 * usize::from(MEMBERS));
    let image = FaultsImage { counter: 6, member: uuid(2), faults: wrong(10) };
    answer(&mut rig, asked, Some((2, image)));
    assert_eq!(faults(&rig, 2), wrong(10));
    rig
}

#[test]
fn what_was_found_before_and_since_is_told_together_and_written_each_ten_seconds_at_most() {
    let mut rig = read();
    assert!(sent(rig.look()).is_empty(), "nothing has changed");
    find(&mut rig, 2, 3);
    find(&mut rig, 2, 1);
    assert_eq!((faults(&rig, 2), faults(&rig, 1)), (wrong(14), wrong(0)));
    let [write] = &sent(rig.look())[..] else { panic!() };
    assert_eq!((write.member, write.what, write.fua), (2, (Op::Write, 52 << 10, 4096), true));
    let image = FaultsImage::decode(&write.data, ARRAY, 1).unwrap();
    assert_eq!(image, FaultsImage { counter: 7, member: uuid(2), faults: wrong(14) });
    find(&mut rig, 2, 1);
    assert!(sent(rig.look()).is_empty(), "one is under way");
    rig.end(write.tag, no_data());
    let looks = (0..20).take_while(|_| sent(rig.look()).is_empty()).count();
    assert!((7..10).contains(&looks), "{looks} looks");
    assert_eq!(rig.volume.stats(MemberIndex(2)).writes, 0, "it counts nowhere");
}

#[test]
fn nothing_is_written_to_a_member_whose_counters_could_not_be_read_or_are_of_a_later_version() {
    let mut rig = rig();
    let later = FaultsImage { counter: 1, member: uuid(3), faults: wrong(1) };
    let place = later.offset();
    let later = crate::page::tests::forge(&later.encode(ARRAY), place, |bytes| bytes[8] = 9);
    for Sent { tag, member, what: (_, offset, _), .. } in sent(rig.look()) {
        let end = match (member, offset == place) {
            (1, _) => Err(ErrorKind::Medium.into()),
            (3, true) => Ok(Buf::copy_from(&later).into()),
            _ => Ok(Buf::copy_from(&[0; 4096]).into()),
        };
        rig.end(tag, end);
    }
    (0..MEMBERS).for_each(|member| find(&mut rig, member, 1));
    let members: Vec<u8> = sent(rig.look()).iter().map(|sent| sent.member).collect();
    assert_eq!(members, [0, 2, 4]);
    // It is read again after a minute.
    let again = (0..70).find_map(|_| sent(rig.look()).into_iter().find(|sent| sent.member == 1));
    assert_eq!(again.unwrap().what.0, Op::Read);
    assert_eq!(rig.volume.stats(MemberIndex(1)).errors, 0);
}

#[test]
fn another_member_in_the_place_begins_anew_and_the_same_one_does_not() {
    let mut rig = read();
    for is_other in [false, true] {
        rig.leave(2);
        rig.join(2, "another", Expect::Anything).unwrap();
        rig.seen();
        rig.volume.handle_joined(MemberIndex(2), candidate("another"));
        rig.seen();
        if is_other {
            rig.machine().identities[2] = (ARRAY, [99; 16]);
        }
        rig.say(2, MemberState::CatchingUp);
        rig.seen();
        let asked = sent(rig.look());
        assert_eq!(!asked.is_empty(), is_other || faults(&rig, 2).reconnects > 0);
        if is_other {
            // What stands there is of the member before.
            let image = FaultsImage { counter: 9, member: uuid(2), faults: wrong(10) };
            answer(&mut rig, asked, Some((2, image)));
            assert_eq!(faults(&rig, 2), Faults::default());
            find(&mut rig, 2, 1);
            let [write] = &sent(rig.look())[..] else { panic!() };
            assert_eq!(FaultsImage::decode(&write.data, ARRAY, 0).unwrap().counter, 10);
        } else {
            assert_eq!(faults(&rig, 2).wrong_blocks, 10);
            let [write] = &asked[..] else { panic!("{asked:?}") };
            rig.end(write.tag, no_data());
        }
    }
}

#[test]
fn sessions_that_were_made_again_are_counted() {
    let mut rig = read();
    rig.report(1).reconnects = 2;
    rig.look();
    rig.report(1).reconnects = 3;
    rig.look();
    assert_eq!(faults(&rig, 1).reconnects, 3);
}

#[test]
fn counters_are_cleared_by_command_also_before_they_were_read() {
    let mut rig = read();
    rig.calls();
    rig.try_io(2, Op::Flush, Err(ErrorKind::Timeout.into()));
    assert_eq!(faults(&rig, 2).errors, 1);
    rig.volume.handle_clear_faults(MemberIndex(2));
    assert_eq!(faults(&rig, 2), Faults::default());
    let [write] = &sent(rig.look())[..] else { panic!() };
    assert_eq!(FaultsImage::decode(&write.data, ARRAY, 1).unwrap().faults, Faults::default());

    let mut rig = self::rig();
    let asked = sent(rig.look());
    rig.volume.handle_clear_faults(MemberIndex(2));
    let image = FaultsImage { counter: 6, member: uuid(2), faults: wrong(10) };
    answer(&mut rig, asked, Some((2, image)));
    assert_eq!(faults(&rig, 2), Faults::default());
}

#[test]
fn an_array_that_closes_leaves_its_counters_behind_and_a_read_only_one_writes_none() {
    let mut rig = read();
    find(&mut rig, 4, 2);
    rig.volume.handle_close();
    let writes = sent(rig.seen());
    assert_eq!(writes.iter().map(|sent| sent.member).collect::<Vec<_>>(), [4]);
    let mut rig = read();
    rig.machine().is_read_only = true;
    find(&mut rig, 4, 2);
    assert!(sent(rig.look()).is_empty());
}

#[test]
fn an_array_without_a_log_counts_reads_that_the_medium_did_not_give() {
    let mut rig = read();
    rig.machine().has_log = false;
    rig.calls();
    rig.try_io(0, Op::Read, Err(ErrorKind::Medium.into()));
    let expected = Faults { errors: 1, unreadable_blocks: 1, ..Faults::default() };
    assert_eq!(faults(&rig, 0), expected);
}
