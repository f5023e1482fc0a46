//! Members that come back, beside whatever else goes on.

#![allow(missing_docs, reason = "a test")]
#![allow(clippy::unwrap_used, reason = "a test")]

use crate::support::World;
use netraid_block::{ErrorKind, Op};
use netraid_raid::{
    geometry::Level,
    label::Label,
    logged::{Action, Event, FoundMember, MemberCaps},
    member::{MemberIndex, MemberState},
    regions::LABEL_OFFSETS,
};

const CAPS: MemberCaps = MemberCaps { volatile_cache: true, can_discard: true };
const FIRST: MemberIndex = MemberIndex(0);
const SECOND: MemberIndex = MemberIndex(1);

/// The label of a member, as somebody finds it who looks there.
fn label(world: &World, member: MemberIndex) -> Label {
    let at = usize::try_from(LABEL_OFFSETS[0]).unwrap();
    Label::decode(&world.disks[member.as_usize()][at..at + 4096], 0).unwrap()
}

/// Takes out of what is under way what is looked for.
fn hold(world: &mut World, is_it: impl Fn(&Action) -> bool) -> Option<Action> {
    let at = world.under_way.iter().position(is_it)?;
    Some(world.under_way.remove(at))
}

/// Checksums were being read from the one member that had them, while the other one caught up. Then the
/// first one left: they counted as lost everywhere, though the other one had them by then.
#[test]
fn checksums_are_read_from_who_has_caught_up_when_who_was_asked_leaves() {
    let mut world = World::new(Level::Raid1, 2);
    world.write(3, 1, 77);
    world.idle();
    // Nothing is in memory of the checksums then, and no stripe has to be caught up.
    world.away.insert(SECOND.as_usize());
    world.reopen();
    world.away.clear();
    let found = FoundMember { caps: CAPS, label: label(&world, SECOND), checkpoint: None };
    world.machine.handle_return(SECOND, found);
    let pages = world.sum_pages();
    let tables = pages.offset(0, SECOND)..world.regions.data.offset;
    let copies_tables = |action: &Action| matches!(action, Action::Write { member: SECOND, offset, .. } if tables.contains(offset));
    while !world.under_way.iter().any(copies_tables) {
        assert!(world.step(), "tables are copied");
    }
    let place = pages.offset(0, FIRST);
    let reads_page = |action: &Action| matches!(action, Action::Read { member: FIRST, offset, .. } if *offset == place);
    while let Some(of_tables) = hold(&mut world, reads_page) {
        let (io, result) = world.effect(of_tables);
        world.machine.handle_io_done(io, result);
    }
    let read = world.begin(Op::Read, 3, 1, 0);
    world.poll();
    let held = hold(&mut world, reads_page).expect("its checksums are read");
    world.settle();
    assert!(world.events.contains(&Event::CaughtUp(SECOND)));
    assert_eq!(world.machine.member_state(SECOND), MemberState::InSync);
    world.away.insert(FIRST.as_usize());
    let Action::Read { io, .. } = held else { unreachable!("a read was looked for") };
    world.machine.handle_io_done(io, Err(ErrorKind::Unreachable.into()));
    let data = world.finish(read).unwrap().to_contiguous();
    assert!(data.iter().all(|byte| *byte == 77));
}
