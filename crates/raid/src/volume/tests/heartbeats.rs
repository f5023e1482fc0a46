//! Heartbeats: to whom they are written, and when.

use super::*;
use crate::{heartbeat::Heartbeat, regions::HEARTBEAT_OFFSETS};

const ARRAY: Uuid = [7; 16];
/// As the machine's labels say.
const ENGINE: Uuid = [3; 16];

/// Around a machine that knows who its members are, and opens.
fn rig() -> Rig {
    let mut rig = Rig::opening_with(|script, _| {
        script.identities = (0..MEMBERS).map(|member| (ARRAY, [member; 16])).collect();
    });
    rig.volume.set_heartbeats(Some(ENGINE));
    rig
}

/// What was written of these, by a look.
fn beats(rig: &mut Rig) -> Vec<(Sent, Heartbeat)> {
    let beat = |seen| {
        let Seen::Sent(sent) = seen else { return None };
        let slot = HEARTBEAT_OFFSETS.iter().position(|offset| *offset == sent.what.1)?;
        let beat = Heartbeat::decode(&sent.data, ARRAY, slot).unwrap();
        Some((sent, beat))
    };
    rig.look().into_iter().filter_map(beat).collect()
}

fn members(beats: &[(Sent, Heartbeat)]) -> Vec<u8> {
    beats.iter().map(|(sent, _)| sent.member).collect()
}

fn end(rig: &mut Rig, beats: Vec<(Sent, Heartbeat)>) {
    for (sent, _) in beats {
        rig.end(sent.tag, no_data());
    }
}

#[test]
fn members_in_sync_get_a_heartbeat_at_each_look_from_the_opening_on_to_the_end() {
    let mut rig = rig();
    rig.machine().states[3] = MemberState::CatchingUp;
    let first = beats(&mut rig);
    assert_eq!(members(&first), [0, 1, 2, 4], "while it opens");
    let expected = Heartbeat { engine: ENGINE, generation: 8, counter: 1 };
    assert!(first.iter().all(|(sent, beat)| *beat == expected && !sent.fua));
    end(&mut rig, first);
    rig.machine().events.push_back(Told::Opened);
    rig.seen();
    let second = beats(&mut rig);
    assert!(second.iter().all(|(_, beat)| beat.counter == 2) && second.len() == 4);
    assert_eq!(rig.volume.stats(MemberIndex(0)).writes, 0, "it counts nowhere");
    end(&mut rig, second);
    rig.volume.handle_close();
    assert_eq!(beats(&mut rig).len(), 4, "what closes may take its time");
}

#[test]
fn a_member_that_does_not_answer_gets_no_second_heartbeat() {
    let mut rig = rig();
    let (hangs, others): (Vec<_>, Vec<_>) =
        beats(&mut rig).into_iter().partition(|(sent, _)| sent.member == 2);
    end(&mut rig, others);
    let second = beats(&mut rig);
    assert_eq!(members(&second), [0, 1, 3, 4]);
    end(&mut rig, hangs);
    end(&mut rig, second);
    assert_eq!(members(&beats(&mut rig)), [0, 1, 2, 3, 4]);
}

#[test]
fn who_failed_or_only_reads_or_was_not_told_to_writes_no_heartbeat() {
    let mut failed = rig();
    failed.machine().failure = Some(ErrorKind::Redundancy.into());
    assert!(beats(&mut failed).is_empty());
    let mut reads = rig();
    reads.machine().is_read_only = true;
    assert!(beats(&mut reads).is_empty());
    let mut usual = rig();
    usual.volume.set_heartbeats(None);
    assert!(beats(&mut usual).is_empty());
}

#[test]
fn an_engine_whose_labels_are_not_written_yet_beats_for_the_next_generation() {
    let mut rig = rig();
    rig.volume.set_heartbeats(Some([4; 16]));
    let expected = Heartbeat { engine: [4; 16], generation: 9, counter: 1 };
    assert!(beats(&mut rig).iter().all(|(_, beat)| *beat == expected));
}
