//! The list of snapshots of an array that had some: the checkpoint says which list counts, the list says with which
//! number stripes are born, and both go together wherever they go.
#![allow(clippy::cast_possible_truncation, reason = "numbers of small arrays")]

use netraid_block::ErrorKind;
use netraid_raid::{
    checkpoint::{Checkpoint, ListName},
    format::Format,
    geometry::Level,
    logged::{Event, LoggedArray, MemberCaps, NewDevice},
    member::{MemberIndex, MemberState},
    regions::{CHECKPOINT_OFFSETS, LIST_LEN, LIST_OFFSETS},
    snapshots::{Snapshot, SnapshotList},
    stripes::StripePage,
};

use crate::support::{UUID, World, open};

const LEN: usize = 4096;

fn list(counter: u64, next_number: u32) -> SnapshotList {
    SnapshotList { counter, next_number, ..SnapshotList::EMPTY }
}

fn crc_of(image: &[u8], place: u64) -> u32 {
    static CRC: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);
    let mut digest = CRC.digest();
    digest.update(&place.to_le_bytes());
    digest.update(&image[..12]);
    digest.update(&[0; 4]);
    digest.update(&image[16..]);
    digest.finalize()
}

/// The list's image, changed, with its checksum right again.
fn forge(list: &SnapshotList, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let (mut image, _) = list.encode(UUID);
    change(&mut image);
    let crc = crc_of(&image, list.offset());
    image[12..16].copy_from_slice(&crc.to_le_bytes());
    image
}

/// The image of another list with the same name: 32 bits of what is reserved make up for the difference.
fn same_name(list: &SnapshotList, other: &SnapshotList) -> Vec<u8> {
    let (_, ListName { crc: wanted, .. }) = list.encode(UUID);
    let (mut image, _) = other.encode(UUID);
    let flip = |image: &mut [u8], bit: usize| image[80 + bit / 8] ^= 1 << (bit % 8);
    let now = crc_of(&image, list.offset());
    // Which checksum each bit changes by, and by which bits: in a form in which each has a leading bit of its own.
    let mut basis: Vec<(u32, u32)> = Vec::new();
    for bit in 0..32 {
        flip(&mut image, bit);
        let (mut by, mut bits) = (crc_of(&image, list.offset()) ^ now, 1_u32 << bit);
        flip(&mut image, bit);
        for (known, of) in &basis {
            if by ^ known < by {
                (by, bits) = (by ^ known, bits ^ of);
            }
        }
        assert_ne!(by, 0, "32 bits give every checksum");
        basis.push((by, bits));
        basis.sort_unstable_by(|one, two| two.cmp(one));
    }
    let (mut left, mut bits) = (now ^ wanted, 0);
    for (known, of) in &basis {
        if left ^ known < left {
            (left, bits) = (left ^ known, bits ^ of);
        }
    }
    assert_eq!(left, 0);
    (0..32).filter(|bit| bits >> bit & 1 == 1).for_each(|bit| flip(&mut image, bit));
    image[12..16].copy_from_slice(&wanted.to_le_bytes());
    image
}

fn put(disk: &mut [u8], list: &SnapshotList) -> ListName {
    let (image, name) = list.encode(UUID);
    let at = list.offset() as usize;
    disk[at..at + image.len()].copy_from_slice(&image);
    name
}

/// Has every checkpoint of a member name a list.
fn name_it(disk: &mut [u8], name: ListName) {
    for (slot, offset) in CHECKPOINT_OFFSETS.into_iter().enumerate() {
        let at = offset as usize;
        let Ok(found) = Checkpoint::decode(&disk[at..at + LEN], UUID, slot) else { continue };
        let image = Checkpoint { list: name, ..found }.encode(UUID);
        disk[at..at + LEN].copy_from_slice(&image);
    }
}

/// An array that a later version took snapshots of, and deleted them: the next one has this number.
fn with_list(next_number: u32) -> World {
    with_list_of(Level::Raid5, 4, next_number)
}

fn with_list_of(level: Level, members: usize, next_number: u32) -> World {
    let mut world = World::empty(level, members);
    let list = list(3, next_number);
    for disk in &mut world.disks {
        let name = put(disk, &list);
        name_it(disk, name);
    }
    world.reopen();
    world
}

/// With which numbers the stripes of the newest image of the first page are born, on a member but one.
fn born(world: &World, but: Option<usize>) -> Vec<u32> {
    let table = world.regions.stripe_pages(&world.geometry);
    let holders = table.holders(0);
    let holder = holders.iter().find(|holder| Some(holder.as_usize()) != but).unwrap();
    let image = |slot: u64| {
        let place = table.slot_offset(0, holder, slot);
        let bytes = &world.disks[holder.as_usize()][place as usize..place as usize + LEN];
        StripePage::decode(bytes, Format::Two, UUID, place).ok()
    };
    let newest = (0..2).filter_map(image).max_by_key(|page| page.counter).unwrap();
    let mapped = newest.entries.iter().filter(|entry| entry.logical.is_some());
    mapped.map(|entry| entry.interval.born).collect()
}

fn has_list(world: &World, member: usize, list: &SnapshotList) -> bool {
    let at = list.offset() as usize;
    let bytes = &world.disks[member][at..at + LIST_LEN as usize];
    let slot = usize::from(list.offset() == LIST_OFFSETS[1]);
    SnapshotList::decode(bytes, UUID, slot).is_ok_and(|(found, _)| found == *list)
}

fn failure(machine: LoggedArray, world: &mut World) -> (ErrorKind, String) {
    world.machine = machine;
    world.events.clear();
    world.settle();
    assert!(!world.events.contains(&Event::Opened));
    let error = world.machine.failure().unwrap();
    (error.kind(), error.to_string())
}

#[test]
fn stripes_are_born_with_the_next_number_of_the_list_that_is_named() {
    for (next_number, unnamed) in [(1, false), (1, true), (9, false), (9, true)] {
        let mut world =
            if next_number == 1 { World::empty(Level::Raid5, 4) } else { with_list(next_number) };
        if unnamed {
            // Somebody died while taking a snapshot.
            world.disks[..2]
                .iter_mut()
                .for_each(|disk| assert_eq!(put(disk, &list(4, 10)).counter, 4));
            world.reopen();
        }
        world.write(0, 30, 5);
        world.idle();
        let found = born(&world, None);
        assert!(!found.is_empty() && found.iter().all(|one| *one == next_number), "{found:?}");
        // After a crash it is the log that says which stripes there are.
        world.write(0, 12, 6);
        world.reopen();
        world.idle();
        assert!(born(&world, None).iter().all(|one| *one == next_number));
        world.read_all();
    }
}

#[test]
fn checkpoints_go_on_naming_the_list() {
    let mut world = with_list(9);
    for content in 1..5 {
        world.write(0, 30, content);
        world.idle();
    }
    let (_, name) = list(3, 9).encode(UUID);
    for disk in &world.disks {
        let found = CHECKPOINT_OFFSETS.into_iter().enumerate().map(|(slot, offset)| {
            let at = offset as usize;
            Checkpoint::decode(&disk[at..at + LEN], UUID, slot).unwrap().list
        });
        assert!(found.into_iter().all(|found| found == name));
    }
}

#[test]
fn a_new_device_gets_the_list_and_one_that_lost_it_gets_it_at_an_opening_or_a_scrub() {
    let mut world = with_list(9);
    world.write(0, 30, 5);
    world.idle();
    let member = MemberIndex(1);
    world.machine.handle_gone(member, "gone");
    world.settle();
    world.disks[1].fill(0);
    let caps = MemberCaps { volatile_cache: true, can_discard: true };
    world.machine.handle_replace(member, NewDevice { uuid: [9; 16], caps });
    world.settle();
    assert_eq!(world.machine.member_state(member), MemberState::InSync);
    assert!(has_list(&world, 1, &list(3, 9)));

    let at = list(3, 9).offset() as usize;
    world.disks[2][at + 70] ^= 1;
    let status = world.scrub();
    assert_eq!((status.wrong(), status.repaired()), (1, 1), "{status:?}");
    assert!(has_list(&world, 2, &list(3, 9)));
    world.assert_clean();

    world.disks[3][at + 70] ^= 1;
    world.reopen();
    assert!(has_list(&world, 3, &list(3, 9)));
    world.read_all();
}

#[test]
fn an_array_whose_list_is_nowhere_or_has_snapshots_is_not_opened_and_says_what_to_do() {
    let mut world = with_list(9);
    world.write(0, 1, 5);
    let at = list(3, 9).offset() as usize;
    let media = world.media();
    world.disks.iter_mut().for_each(|disk| disk[at + 70] ^= 1);
    let machine = open(&world.disks, &world.away);
    let (kind, text) = failure(machine, &mut world);
    assert_eq!(kind, ErrorKind::Redundancy);
    assert!(text.contains("list of snapshots 3") && text.contains("nobody is away"), "{text}");
    world.away.insert(1);
    let machine = open(&world.disks, &world.away);
    let (_, text) = failure(machine, &mut world);
    assert!(text.contains("bring the members that are away"), "{text}");
    world.away.clear();

    world.restore(&media);
    let name = "before upgrade".into();
    let snapshot =
        Snapshot { number: 8, flags: 0, time_ms: 1, capacity: 1 << 20, uuid: [1; 16], name };
    let list = SnapshotList { snapshots: vec![snapshot], ..list(4, 9) };
    for disk in &mut world.disks {
        let name = put(disk, &list);
        name_it(disk, name);
    }
    let before = world.disks.clone();
    let machine = open(&world.disks, &world.away);
    let (kind, text) = failure(machine, &mut world);
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("has 1 snapshots") && text.contains("use a later version"), "{text}");
    assert!(before == world.disks, "it is left as it is");
}

#[test]
fn the_list_is_taken_from_a_member_that_is_behind_where_no_member_in_sync_can_give_it() {
    let mut world = with_list_of(Level::Raid1, 2, 9);
    world.away.insert(1);
    world.reopen();
    world.write(0, 3, 5);
    world.idle();
    let at = list(3, 9).offset() as usize;
    world.disks[0][at + 70] ^= 1;
    world.away.clear();
    world.reopen();
    assert!((0..2).all(|member| has_list(&world, member, &list(3, 9))));
    world.read_all();
    // A list of another name says nothing, wherever it stands.
    world.away.insert(1);
    world.reopen();
    world.write(0, 3, 6);
    world.idle();
    world.disks[0][at + 70] ^= 1;
    put(&mut world.disks[1], &list(3, 10));
    world.away.clear();
    let machine = open(&world.disks, &world.away);
    let (kind, text) = failure(machine, &mut world);
    assert_eq!(kind, ErrorKind::Redundancy, "{text}");
}

#[test]
fn a_list_of_another_version_asks_for_that_version() {
    let mut world = with_list(9);
    world.write(0, 1, 5);
    let image = forge(&list(3, 9), |bytes| bytes[8] = 2);
    let at = list(3, 9).offset() as usize;
    for disk in &mut world.disks {
        disk[at..at + image.len()].copy_from_slice(&image);
    }
    let machine = open(&world.disks, &world.away);
    let (kind, text) = failure(machine, &mut world);
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("has version 2") && text.contains("use a version"), "{text}");
}

/// Makes what members have of the first page of the stripe table an image of a later version: the newest image, or the
/// one before it.
fn make_later(world: &mut World, is_newest: bool) {
    let table = world.regions.stripe_pages(&world.geometry);
    let holders: Vec<MemberIndex> = table.holders(0).iter().collect();
    for holder in holders {
        let disk = &mut world.disks[holder.as_usize()];
        let image = |place: u64| disk[place as usize..place as usize + LEN].to_vec();
        let images = (0..2).map(|slot| table.slot_offset(0, holder, slot));
        let found = images.filter_map(|place| {
            let page = StripePage::decode(&image(place), Format::Two, UUID, place).ok()?;
            Some((page.counter, place))
        });
        let (counter, place) = found.max().unwrap();
        let mut bytes = image(place);
        let mapped = (0..250).find(|entry| bytes[64 + entry * 16..68 + entry * 16] != [0; 4]);
        // Left by snapshot 1: the low bit of the second 28 bits.
        bytes[64 + mapped.unwrap() * 16 + 8 + 3] |= 0x10;
        let counter = if is_newest { counter } else { counter - 1 };
        bytes[40..48].copy_from_slice(&counter.to_le_bytes());
        let place = table.slot_offset(0, holder, counter);
        let crc = crc_of(&bytes, place);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        disk[place as usize..place as usize + LEN].copy_from_slice(&bytes);
    }
}

#[test]
fn images_of_a_later_version_that_were_written_over_keep_nobody_out() {
    for (level, members) in [(Level::Raid6, 5), (Level::Raid5, 4), (Level::Raid1, 3)] {
        let mut world = with_list_of(level, members, 9);
        world.write(0, 3, 5);
        world.idle();
        make_later(&mut world, false);
        world.reopen();
        let in_sync =
            |one: usize| world.machine.member_state(MemberIndex(one as u8)) == MemberState::InSync;
        assert!((0..members).all(in_sync), "{level:?}: {:?}", world.events);
        world.read_all();
    }
}

#[test]
fn stripes_of_a_later_version_on_all_holders_of_a_page_ask_for_that_version() {
    let mut world = with_list_of(Level::Raid6, 5, 9);
    world.write(0, 3, 5);
    world.idle();
    make_later(&mut world, true);
    let machine = open(&world.disks, &world.away);
    let (kind, text) = failure(machine, &mut world);
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("use a later version"), "{text}");
}

/// Something where this version writes zeros is not written over, and is no reason to go on as if it were not there.
#[test]
fn an_array_whose_list_has_more_than_is_known_is_left_as_it_is() {
    let mut world = with_list(9);
    world.write(0, 1, 5);
    let image = forge(&list(4, 9), |bytes| bytes[80] = 1);
    let crc = u32::from_le_bytes(image[12..16].try_into().unwrap());
    for disk in &mut world.disks {
        let at = list(4, 9).offset() as usize;
        disk[at..at + image.len()].copy_from_slice(&image);
        name_it(disk, ListName { counter: 4, crc });
    }
    let before = world.disks.clone();
    let machine = open(&world.disks, &world.away);
    let (kind, text) = failure(machine, &mut world);
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("use a later version"), "{text}");
    assert!(before == world.disks);
}

/// A checksum is no secret: a member can have another list under the same name.
#[test]
fn a_member_with_another_list_under_the_same_name_is_left_out() {
    for liar in 0..4 {
        let mut world = with_list(9);
        world.write(0, 30, 5);
        world.idle();
        let image = same_name(&list(3, 9), &list(3, 200));
        let (_, name) = SnapshotList::decode(&image, UUID, 1).unwrap();
        assert_eq!(name, list(3, 9).encode(UUID).1);
        let at = list(3, 9).offset() as usize;
        world.disks[liar][at..at + image.len()].copy_from_slice(&image);
        world.reopen();
        let state = world.machine.member_state(MemberIndex(liar as u8));
        assert!(!state.is_live(), "member {liar} is {state:?}");
        world.write(0, 30, 6);
        world.idle();
        assert!(born(&world, Some(liar)).iter().all(|one| *one == 9));
        world.read_all();
    }
}
