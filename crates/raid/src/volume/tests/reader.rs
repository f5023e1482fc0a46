//! A volume that only reads: how it hears of a writer.

use super::{super::reader::SILENCE_MAX, *};
use crate::{label::tests::sample, regions::LABEL_OFFSETS};

/// Opened by labels of this generation.
const GENERATION: u64 = 3;

fn label(generation: u64) -> Label {
    let mut label = Label { generation, ..sample(Level::Raid5, MEMBERS.into()) };
    label.holder.name = "writer".into();
    label
}

fn rig() -> Rig {
    let mut rig = Rig::opened_with(|script, _| script.is_read_only = true);
    rig.volume.watch_labels(rig.now, label(GENERATION).array_uuid, GENERATION);
    rig
}

/// The reads of labels that a look sends.
fn reads(rig: &mut Rig) -> Vec<Sent> {
    let read = |seen| {
        let Seen::Sent(sent) = seen else { return None };
        (sent.what == (Op::Read, LABEL_OFFSETS[0], 4096)).then_some(sent)
    };
    rig.look().into_iter().filter_map(read).collect()
}

fn failure(rig: &Rig) -> Option<(ErrorKind, String)> {
    rig.volume.machine().failure().map(|error| (error.kind(), error.to_string()))
}

/// What a user's read comes to, which the machine answers at once.
fn user_reads(rig: &mut Rig, user: u32) -> Result<Vec<u8>, IoError> {
    for request in rig.read(user, 0, 4096) {
        rig.complete(request, Ok(Buf::copy_from(&[7; 4096]).into()));
    }
    let ended = |seen| if let Seen::Ended(ended, end) = seen { Some((ended, end)) } else { None };
    let (ended, end) = rig.seen().into_iter().find_map(ended).unwrap();
    assert_eq!(ended, user);
    end
}

fn shows(generation: u64) -> Result<SgList, IoError> {
    Ok(Buf::copy_from(&label(generation).encode(0)).into())
}

#[test]
fn a_later_generation_ends_a_reader_where_no_more_members_contradict() {
    let mut rig = rig();
    for sent in reads(&mut rig) {
        // A member that was away for long has an older one.
        let seen = if sent.member == 1 { GENERATION - 1 } else { GENERATION };
        rig.end(sent.tag, shows(seen));
    }
    assert_eq!(failure(&rig), None);
    // Two of five lie.
    let again = reads(&mut rig);
    assert_eq!(again.len(), usize::from(MEMBERS));
    for sent in &again[..2] {
        rig.end(sent.tag, shows(GENERATION + 1));
    }
    assert_eq!(failure(&rig), None);
    rig.end(again[4].tag, shows(GENERATION + 1));
    let (kind, text) = failure(&rig).unwrap();
    assert_eq!(kind, ErrorKind::Fenced);
    assert!(text.contains("'writer' has opened") && text.contains("attach it anew"), "{text}");
    assert_eq!(rig.volume.stats(MemberIndex(4)).reads, 0, "it counts nowhere");

    // Another array was made on most of them.
    let mut rig = self::rig();
    let other = Label { array_uuid: [1; 16], ..label(1) };
    for sent in reads(&mut rig).drain(..3) {
        rig.end(sent.tag, Ok(Buf::copy_from(&other.encode(0)).into()));
    }
    assert!(failure(&rig).is_some());
}

#[test]
fn nothing_is_answered_while_members_that_a_writer_could_use_are_not_read() {
    // One member alone cannot carry level 5; two that are not read may be used with those that are.
    for (unread, is_answered) in [(0, true), (1, true), (4, false), (5, false)] {
        let mut rig = rig();
        for _ in 0..4 {
            let sent = reads(&mut rig);
            for sent in sent.iter().filter(|sent| sent.member >= unread) {
                rig.end(sent.tag, shows(GENERATION));
            }
        }
        let sent = user_reads(&mut rig, 7);
        assert_eq!(sent.is_ok(), is_answered, "{unread} are not read: {sent:?}");
    }
    // What was asked for before, and comes after, is not answered either; and the array has not failed.
    let mut rig = rig();
    let request = rig.read(6, 0, 4096).remove(0);
    let labels = reads(&mut rig);
    rig.now += SILENCE_MAX + Duration::from_millis(1);
    rig.complete(request, Ok(Buf::copy_from(&[7; 4096]).into()));
    assert!(matches!(rig.seen()[..], [Seen::Ended(6, Err(_))]));
    assert!(user_reads(&mut rig, 8).is_err() && failure(&rig).is_none());
    for sent in labels {
        rig.end(sent.tag, shows(GENERATION));
    }
    reads(&mut rig).into_iter().for_each(|sent| rig.end(sent.tag, shows(GENERATION)));
    assert!(user_reads(&mut rig, 9).is_ok());
}

#[test]
fn a_registration_that_is_gone_ends_a_reader_and_other_failures_do_not() {
    let mut rig = rig();
    let mut sent = reads(&mut rig);
    rig.end(sent.remove(0).tag, Err(ErrorKind::Medium.into()));
    rig.end(sent.remove(0).tag, Ok(Buf::copy_from(&[0; 4096]).into()));
    assert_eq!(failure(&rig), None);
    let read = rig.submit(0, 2, (Op::Read, 1 << 20, 4096)).remove(0);
    rig.end(read.tag, Err(ErrorKind::Fenced.into()));
    assert!(failure(&rig).unwrap().1.contains("another engine has opened"), "{:?}", failure(&rig));
}

#[test]
fn a_label_that_is_not_read_in_time_is_not_asked_for_twice_and_a_writer_reads_none() {
    let mut rig = rig();
    let first = reads(&mut rig);
    assert!(reads(&mut rig).is_empty());
    rig.end(first[3].tag, Err(ErrorKind::Timeout.into()));
    let again: Vec<u8> = reads(&mut rig).iter().map(|sent| sent.member).collect();
    assert_eq!(again, [3]);
    assert!(reads(&mut Rig::opened()).is_empty());
}
