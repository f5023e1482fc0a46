//! When something is due, and how much a scrub and a rebuild are allowed.

use netraid_block::Pool;

use super::*;
use crate::{
    format,
    label::Holder,
    logged::{
        Action as LoggedAction, FoundMember, Limits, MemberCaps as LoggedCaps, OpenConfig,
        ScrubRefusal, ScrubStatus,
    },
    regions::{LABEL_OFFSETS, LoggedShape},
};

const TICK: Duration = Duration::from_millis(20);
/// Bytes that checking a stripe reads.
const STRIPE: u64 = 4 * 16 * KIB;
const START: ScrubOrder = ScrubOrder::Start { from: 0, trust_parity: false };

/// Members of a new array with a log.
fn disks() -> Vec<Vec<u8>> {
    let shape = LoggedShape {
        level: Level::Raid5,
        members: 4,
        chunk_len: 16 << 10,
        block_len: 512,
        logical_stripes: 8,
        physical_stripes: 11,
        log_blocks: 64,
        format: format::Format::Two,
    };
    let layout = shape.layout().unwrap();
    let uuids: Vec<Uuid> = (1..=4).map(|number| [number; 16]).collect();
    let disk = |images: Vec<(u64, Vec<u8>)>| {
        let mut disk = vec![0; narrow(layout.0.data.end())];
        for (offset, image) in images {
            let at: usize = narrow(offset);
            disk[at..at + image.len()].copy_from_slice(&image);
        }
        disk
    };
    format::format(format::Format::Two, layout, "test", [7; 16], &uuids, 99)
        .into_iter()
        .map(disk)
        .collect()
}

fn label_of(disk: &[u8]) -> Label {
    let at: usize = narrow(LABEL_OFFSETS[0]);
    Label::decode(&disk[at..at + 4096], 0).unwrap()
}

/// The label of a member of an array with a log.
pub(super) fn label() -> Label {
    label_of(&disks()[1])
}

/// Does what the machine asks for, until it asks for nothing.
fn settle(machine: &mut LoggedArray, disks: &mut [Vec<u8>]) {
    while let Some(action) = machine.poll_action() {
        match action {
            LoggedAction::Read { io, member, offset, len } => {
                let (at, len): (usize, usize) = (narrow(offset), narrow(len));
                let bytes = &disks[member.as_usize()][at..at + len];
                machine.handle_io_done(io, Ok(Buf::copy_from(bytes).into()));
            }
            LoggedAction::Write { io, member, offset, data, .. } => {
                let at: usize = narrow(offset);
                data.copy_to(&mut disks[member.as_usize()][at..at + data.len()]);
                machine.handle_io_done(io, Ok(SgList::new()));
            }
            LoggedAction::Flush { io, .. } | LoggedAction::Discard { io, .. } => {
                machine.handle_io_done(io, Ok(SgList::new()));
            }
            LoggedAction::Complete { .. } => panic!("nobody asked for anything"),
        }
    }
}

/// Around a machine that can be scrubbed.
fn scrubbed() -> (Rig, Vec<Vec<u8>>) {
    let mut disks = disks();
    let caps = LoggedCaps { volatile_cache: true, can_discard: true };
    let member = |disk: &Vec<u8>| FoundMember { caps, label: label_of(disk), checkpoint: None };
    let mut machine = LoggedArray::open(OpenConfig {
        members: disks.iter().map(|disk| Some(member(disk))).collect(),
        holder: Holder::default(),
        max_io_len: 4 << 20,
        pool: Pool::new(),
        limits: Limits { sum_pages: 2, dirty_blocks: 1000, ..Limits::default() },
    })
    .unwrap();
    settle(&mut machine, &mut disks);
    assert_eq!(machine.failure(), None);
    let mut rig = Rig::opened_with(|script, _| script.scrubbed = Some(Box::new(machine)));
    rig.look();
    (rig, disks)
}

fn status(rig: &mut Rig) -> ScrubStatus {
    rig.machine().scrubbed.as_ref().unwrap().scrub_status().unwrap()
}

/// Time passes, and what is due is done.
fn pass(rig: &mut Rig, time: Duration) {
    rig.now += time;
    rig.volume.handle_timeout(rig.now, &rig.looks);
    assert!(rig.seen().is_empty());
}

#[test]
fn the_first_look_is_due_at_once_and_each_other_one_a_second_after_the_last() {
    let mut rig = Rig::opened();
    assert_eq!(rig.volume.next_timeout(), Duration::ZERO);
    let looks = |rig: &mut Rig| rig.calls().len();
    pass(&mut rig, Duration::ZERO);
    assert_eq!((looks(&mut rig), rig.volume.next_timeout()), (1, SECOND));
    pass(&mut rig, SECOND - Duration::from_nanos(1));
    assert_eq!((looks(&mut rig), rig.volume.next_timeout()), (0, SECOND), "it is early");
    pass(&mut rig, Duration::from_nanos(1));
    assert_eq!((looks(&mut rig), rig.volume.next_timeout()), (1, 2 * SECOND));
    // Who comes late looks once.
    pass(&mut rig, 10 * SECOND + TICK);
    assert_eq!((looks(&mut rig), rig.volume.next_timeout()), (1, 12 * SECOND + TICK));
}

#[test]
fn a_scrub_is_due_at_once_and_then_each_fiftieth_of_a_second_while_it_runs() {
    let (mut rig, mut disks) = scrubbed();
    let look_at = rig.volume.next_timeout();
    rig.volume.handle_scrub(rig.now, START, None).unwrap();
    assert_eq!(rig.volume.next_timeout(), rig.now);
    pass(&mut rig, Duration::ZERO);
    for _ in 0..3 {
        assert_eq!(rig.volume.next_timeout(), rig.now + TICK);
        pass(&mut rig, TICK);
    }
    pass(&mut rig, TICK * 2);
    assert_eq!(rig.volume.next_timeout(), rig.now + TICK, "after the last one");
    // It ends when the machine says so, ...
    let found = status(&mut rig);
    let ended = Event::Scrubbed { status: found, stripe_len: STRIPE };
    rig.machine().events.push_back(Told::Other(ended.clone()));
    assert!(rig.seen().is_empty());
    assert_eq!(rig.told(), [ended]);
    assert_eq!(rig.volume.next_timeout(), look_at);
    // ... or runs no more.
    let (mut rig, _) = scrubbed();
    rig.volume.handle_scrub(rig.now, START, None).unwrap();
    rig.volume.handle_scrub(rig.now, ScrubOrder::Stop, None).unwrap();
    settle(rig.machine().scrubbed.as_mut().unwrap(), &mut disks);
    assert!(!status(&mut rig).running);
    pass(&mut rig, TICK);
    assert_eq!(rig.volume.next_timeout(), look_at);
}

#[test]
fn a_scrub_is_allowed_what_its_rate_says_and_nothing_while_it_is_paused() {
    let (mut rig, _) = scrubbed();
    // Two stripes a tick.
    let rate = 2 * STRIPE * 50;
    rig.volume.handle_scrub(rig.now, START, Some(rate)).unwrap();
    pass(&mut rig, Duration::ZERO);
    assert_eq!(status(&mut rig).allowance, 0);
    for ticks in 1..=3 {
        pass(&mut rig, TICK);
        assert_eq!(status(&mut rig).allowance, 2 * ticks);
    }
    rig.volume.handle_scrub(rig.now, ScrubOrder::Pause, None).unwrap();
    (0..5).for_each(|_| pass(&mut rig, TICK));
    assert_eq!(status(&mut rig).allowance, 6);
    // Another rate counts from now on.
    rig.volume.handle_scrub(rig.now, ScrubOrder::Resume, Some(0)).unwrap();
    pass(&mut rig, TICK);
    assert_eq!(status(&mut rig).allowance, 6 + u64::from(u32::MAX));
    pass(&mut rig, TICK);
    assert_eq!(status(&mut rig).allowance, 6 + u64::from(u32::MAX), "that is enough");
}

#[test]
fn a_scrub_that_is_told_to_wait_or_go_on_keeps_its_times() {
    let (mut rig, _) = scrubbed();
    rig.volume.handle_scrub(rig.now, START, None).unwrap();
    pass(&mut rig, Duration::ZERO);
    let next = rig.now + TICK;
    for order in [ScrubOrder::Pause, ScrubOrder::Resume] {
        rig.now += TICK / 4;
        rig.volume.handle_scrub(rig.now, order, None).unwrap();
        assert_eq!(rig.volume.next_timeout(), next, "{order:?}");
    }
}

#[test]
fn a_scrub_goes_at_the_rate_of_before_when_none_is_given_and_a_refused_order_changes_none() {
    let (mut rig, mut disks) = scrubbed();
    rig.volume.handle_scrub(rig.now, START, Some(STRIPE * 50)).unwrap();
    let refused = rig.volume.handle_scrub(rig.now, START, Some(0));
    assert_eq!(refused, Err(ScrubError::Refused(ScrubRefusal::Running)));
    rig.volume.handle_scrub(rig.now, ScrubOrder::Stop, None).unwrap();
    settle(rig.machine().scrubbed.as_mut().unwrap(), &mut disks);
    rig.volume.handle_scrub(rig.now, START, None).unwrap();
    (0..4).for_each(|_| pass(&mut rig, TICK));
    assert_eq!(status(&mut rig).allowance, 4);
}

#[test]
fn an_array_that_cannot_be_scrubbed_says_so_and_knows_no_limit_for_rebuilds() {
    let mut rig = Rig::opened();
    rig.look();
    let look_at = rig.volume.next_timeout();
    let refused = rig.volume.handle_scrub(rig.now, START, None);
    assert_eq!(refused, Err(ScrubError::NotWritable));
    rig.volume.handle_rebuild_limit(rig.now, Some(1));
    assert_eq!(rig.volume.next_timeout(), look_at);
}

#[test]
fn a_rebuild_is_allowed_what_its_limit_says_until_there_is_none() {
    let (mut rig, _) = scrubbed();
    let look_at = rig.volume.next_timeout();
    let allowance = |rig: &mut Rig| rig.machine().scrubbed.as_ref().unwrap().catch_up_allowance();
    assert_eq!(allowance(&mut rig), None);
    rig.volume.handle_rebuild_limit(rig.now, Some(3 * STRIPE * 50));
    assert_eq!((allowance(&mut rig), rig.volume.next_timeout()), (Some(0), rig.now));
    pass(&mut rig, Duration::ZERO);
    for ticks in 1..=3 {
        assert_eq!(rig.volume.next_timeout(), rig.now + TICK);
        pass(&mut rig, TICK);
        assert_eq!(allowance(&mut rig), Some(3 * ticks));
    }
    rig.volume.handle_rebuild_limit(rig.now, None);
    assert_eq!((allowance(&mut rig), rig.volume.next_timeout()), (None, look_at));
    // No rate at all is a limit, too.
    rig.volume.handle_rebuild_limit(rig.now, Some(0));
    (0..10).for_each(|_| pass(&mut rig, TICK));
    assert_eq!(allowance(&mut rig), Some(0));
}

#[test]
fn a_limit_that_is_told_again_and_again_does_not_stop_a_rebuild() {
    let (mut rig, _) = scrubbed();
    // A stripe takes five ticks.
    for _ in 0..10 {
        rig.volume.handle_rebuild_limit(rig.now, Some(10 * STRIPE));
        pass(&mut rig, TICK);
    }
    let allowed = rig.machine().scrubbed.as_ref().unwrap().catch_up_allowance();
    assert!(allowed.is_some_and(|stripes| stripes > 0), "{allowed:?}");
}
