//! What members say of the list of snapshots that is not so.

use netraid_raid::{
    checkpoint::{Checkpoint, ListName},
    crc,
    format::Format,
    label::Label,
    regions::{LIST_LEN, LIST_OFFSETS},
    snapshots::{Snapshot, SnapshotList},
};

use super::{
    array::read,
    forge::with_checksum,
    lies::{format_of, newest_checkpoint, write},
};
use crate::{dice::Dice, disk::Disk};

/// Where an image's checksum is.
const CRC_AT: usize = 12;
/// Bytes of an image that stand for nothing: they can give it any checksum.
const SPARE_AT: usize = 124;

/// The list that the newest checkpoint names, with other contents and the same name.
pub(super) fn forge_twin(disk: &mut Disk, label: &Label, dice: &mut Dice) -> bool {
    let Some((newest, list)) = named(disk, label) else { return false };
    let Some(list) = list else { return false };
    let (image, _) = changed(&list, list.counter, dice).encode(label.array_uuid);
    let place = LIST_OFFSETS[newest.list.slot()];
    let checksum = |image: &[u8]| checksum_of(image, place);
    let spots = (CRC_AT, SPARE_AT);
    let Some(image) = with_checksum(image, spots, newest.list.crc, checksum) else { return false };
    write(disk, place, &image);
    true
}

/// The newest checkpoint, naming another list; the member has that list, or nobody has.
pub(super) fn forge_name(disk: &mut Disk, label: &Label, dice: &mut Dice) -> bool {
    let Some((newest, _)) = named(disk, label) else { return false };
    let Some(list) = later_list(disk, label, newest.list.counter, dice) else { return false };
    let lie = Checkpoint { list, ..newest };
    write(disk, lie.offset(), &lie.encode(label.array_uuid));
    true
}

/// The next checkpoint, as if it had been under way, naming another list; the member has that list, or nobody has.
pub(super) fn forge_next(disk: &mut Disk, label: &Label, dice: &mut Dice) -> bool {
    let Some((newest, _)) = named(disk, label) else { return false };
    let Some(list) = later_list(disk, label, newest.list.counter, dice) else { return false };
    let lie = Checkpoint { list, counter: newest.counter + 1, ..newest };
    write(disk, lie.offset(), &lie.encode(label.array_uuid));
    true
}

/// A later list than the one that the newest checkpoint names, and no checkpoint names it.
pub(super) fn forge_unnamed(disk: &mut Disk, label: &Label, dice: &mut Dice) -> bool {
    let Some((newest, list)) = named(disk, label) else { return false };
    let list = list.unwrap_or(SnapshotList::EMPTY);
    let later = changed(&list, newest.list.counter + 1, dice);
    write(disk, later.offset(), &later.encode(label.array_uuid).0);
    true
}

/// A member's newest checkpoint, and the list that it names where the member has it.
fn named(disk: &Disk, label: &Label) -> Option<(Checkpoint, Option<SnapshotList>)> {
    let newest = newest_checkpoint(disk, label)?;
    if format_of(label) != Format::Two {
        return None;
    }
    let slot = newest.list.slot();
    let image = read(disk, LIST_OFFSETS[slot], LIST_LEN.into());
    let found = SnapshotList::decode(&image, label.array_uuid, slot).ok();
    let list = found.filter(|(_, name)| *name == newest.list).map(|(list, _)| list);
    Some((newest, list))
}

/// The name of the list after the one with that counter, which the member may be given.
fn later_list(disk: &mut Disk, label: &Label, counter: u64, dice: &mut Dice) -> Option<ListName> {
    let later = changed(&SnapshotList::EMPTY, counter + 1, dice);
    let (image, name) = later.encode(label.array_uuid);
    if dice.one_in(2) {
        write(disk, later.offset(), &image);
    }
    Some(name)
}

/// A list that says something else.
fn changed(list: &SnapshotList, counter: u64, dice: &mut Dice) -> SnapshotList {
    let next_number = list.next_number + 1 + [1, 5000][dice.index(2)];
    let snapshots = if dice.one_in(2) {
        Vec::new()
    } else {
        let (number, time_ms, capacity) = (list.next_number, 1 << 40, 1 << 20);
        let (uuid, name) = ([7; 16], "of a liar".into());
        vec![Snapshot { number, flags: 0, time_ms, capacity, uuid, name }]
    };
    SnapshotList { counter, next_number, snapshots, ..SnapshotList::EMPTY }
}

/// An image's checksum, as `docs/formats/tables.md` has it.
fn checksum_of(image: &[u8], place: u64) -> u32 {
    let parts = [&place.to_le_bytes()[..], &image[..CRC_AT], &[0; 4], &image[CRC_AT + 4..]];
    parts.iter().fold(0, |crc, part| crc::append(crc, part))
}
