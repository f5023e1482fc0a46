//! Table, blocks and header: what is damaged is noticed, and nothing makes two owners or a panic.

use std::collections::HashSet;

use netraid_control::units::AgentId;
use rand::{Rng, SeedableRng as _, rngs::StdRng};

use super::medium::{AGENT, MIB, Medium, flush, key, read, write};
use crate::disk::{
    Disk, DiskError, Wanted,
    block::{BLOCK_LEN, Kind, Name, open, payload_mut, seal},
    geometry::{EXTENTS_MAX, Geometry, ROWS_MAX},
    table::Table,
};

const LEN: u64 = 64 * MIB;

fn geometry(len: u64) -> Option<Geometry> {
    Geometry::new([0xD1; 16], AGENT, len)
}

#[test]
fn disks_of_every_length_are_divided_so_that_nothing_overlaps() {
    let lens = [9, 10, 64, 100, 1 << 10, 1 << 20, 1 << 24, 1 << 27, 1 << 34, 1 << 43];
    for len in lens.into_iter().flat_map(|mib| [mib * MIB, mib * MIB + 512, mib * MIB + 7 * 4096]) {
        let found = geometry(len).unwrap();
        assert!(found.extents <= EXTENTS_MAX && found.rows <= ROWS_MAX, "{len}");
        let end = found.extent_offset(found.extents - 1) + found.extent_len;
        let places = (0..found.blocks()).map(|block| found.block_offsets(block));
        let mut seen = HashSet::new();
        for [first, second] in places {
            assert!(first + BLOCK_LEN as u64 <= found.data_offset());
            assert!(second >= end && second + BLOCK_LEN as u64 <= len, "{len}");
            assert!(seen.insert(first) && seen.insert(second));
        }
        // Little of it is lost to anything else.
        let used = u64::from(found.extents) * found.extent_len;
        assert!(used + 3 * found.extent_len + len / 50 >= len.min(1 << 52), "{len}: {used}");
        let mut payload = [0; 4032];
        found.encode(&mut payload);
        assert_eq!(Geometry::decode(found.disk, &payload, len), Ok(found));
        assert!(Geometry::decode(found.disk, &payload, len - 1).is_err());
    }
    assert_eq!(geometry(Geometry::disk_len_min()).unwrap().extents, 1);
    assert_eq!(geometry(Geometry::disk_len_min() - MIB), None);
}

#[test]
fn a_block_counts_only_where_it_was_written() {
    let name = Name { disk: [1; 16], kind: Kind::Row, index: 7 };
    let mut block = vec![0; BLOCK_LEN];
    payload_mut(&mut block).fill(3);
    seal(&mut block, name);
    assert!(open(&block, name).is_ok());
    for other in [
        Name { disk: [2; 16], ..name },
        Name { kind: Kind::Extents, ..name },
        Name { index: 8, ..name },
    ] {
        assert!(open(&block, other).is_err());
    }
    for at in 0..BLOCK_LEN {
        block[at] ^= 1;
        assert!(open(&block, name).is_err(), "byte {at}");
        block[at] ^= 1;
    }
}

fn with_segments() -> (Medium, Disk) {
    let medium = Medium::used(LEN);
    let disk = medium.open().unwrap();
    for number in 1..=3 {
        disk.make(key(number), 9 * MIB, &[number]).unwrap();
        let device = disk.volume(key(number)).unwrap();
        write(&device, 4 * MIB, &[number; 4096]).unwrap();
        flush(&device).unwrap();
    }
    (medium, disk)
}

/// Where a block is, in both copies.
fn places(block: u32) -> [usize; 2] {
    geometry(LEN).unwrap().block_offsets(block).map(|place| usize::try_from(place).unwrap())
}

fn check(disk: &Disk, number: u8) {
    let device = disk.volume(key(number)).unwrap();
    assert_eq!(read(&device, 4 * MIB, 4096).unwrap(), [number; 4096]);
}

#[test]
fn one_damaged_copy_of_any_block_is_made_good() {
    let (medium, disk) = with_segments();
    drop(disk);
    for block in 0..geometry(LEN).unwrap().blocks() {
        for place in places(block) {
            let before = medium.bytes(place, BLOCK_LEN);
            medium.put(place + 1000, &[0xEE; 64]);
            let disk = medium.open().unwrap();
            (1..=3).for_each(|number| check(&disk, number));
            assert_eq!(medium.bytes(place, BLOCK_LEN), before, "block {block}");
        }
    }
}

#[test]
fn what_is_damaged_twice_is_lost_and_never_zeros() {
    let blocks = geometry(LEN).unwrap();
    // The entries: marks of all are in one block.
    let (medium, disk) = with_segments();
    drop(disk);
    places(blocks.extents_block(0)).iter().for_each(|place| medium.put(place + 500, &[9; 8]));
    let disk = medium.open().unwrap();
    for number in 1..=3 {
        assert!(disk.found(key(number)).unwrap().lost.is_some());
        assert!(disk.volume(key(number)).is_err());
    }
    assert!(disk.make(key(9), 4096, b"").is_err(), "what may be theirs is given to nobody");
    for number in 1..=3 {
        disk.remove(key(number)).unwrap();
    }
    drop(disk);
    let disk = medium.open().unwrap();
    disk.make(key(9), 36 * MIB, b"").unwrap();
    assert!(
        read(&disk.volume(key(9)).unwrap(), 4 * MIB, MIB).unwrap().iter().all(|byte| *byte == 0)
    );

    // A row: the others are there, and its extents are given to nobody.
    let (medium, disk) = with_segments();
    drop(disk);
    places(blocks.row_block(1)).iter().for_each(|place| medium.put(place + 70, &[9; 8]));
    let disk = medium.open().unwrap();
    assert_eq!(disk.found(key(2)), None);
    [1, 3].iter().for_each(|number| check(&disk, *number));
    let free = disk.space_bytes() - 9 * 4 * MIB;
    assert!(disk.make(key(9), free + 4096, b"").is_err());
    disk.make(key(9), free, b"").unwrap();
}

#[test]
fn random_damage_never_panics_and_never_gives_an_extent_to_two() {
    let (medium, disk) = with_segments();
    drop(disk);
    let shape = geometry(LEN).unwrap();
    let all: Vec<_> =
        (1..shape.blocks()).map(|block| medium.bytes(places(block)[0], BLOCK_LEN)).collect();
    let mut random = StdRng::seed_from_u64(5);
    for _ in 0..3000 {
        let mut payloads: Vec<Option<Vec<u8>>> =
            all.iter().map(|block| Some(block[64..].to_vec())).collect();
        for _ in 0..random.random_range(1..20) {
            // Whoever does this also makes the checksums right.
            let used = [0, 1, 2, 3, 4][random.random_range(0..5)];
            let payload = &mut payloads[used];
            match random.random_range(0..12) {
                0 => *payload = None,
                1 if used > 0 => *payload = Some(all[1][64..].to_vec()),
                _ => {
                    let Some(bytes) = payload else { continue };
                    let at = random.random_range(0..if used == 0 { 15 * 24 } else { 56 });
                    bytes[at] = match random.random_range(0..4) {
                        0 => 0xFF,
                        1 => 0,
                        2 => random.random_range(0..8),
                        _ => random.random(),
                    };
                }
            }
        }
        let (entries, rows) = payloads.split_at(shape.extent_blocks() as usize);
        let payload = |payload: &'_ Option<Vec<u8>>| payload.clone();
        let entries: Vec<_> = entries.iter().map(payload).collect();
        let rows: Vec<_> = rows.iter().map(payload).collect();
        let mut table = Table::load(
            shape,
            entries.iter().map(Option::as_deref),
            rows.iter().map(Option::as_deref),
        );
        let (before, free) = (table.rows().count(), table.free());
        let made = (100..).take_while(|made| table.allot(key(*made), 4 * MIB, b"").is_ok()).count();
        assert!(made <= free as usize && table.rows().count() == before + made);
        let mut owned = HashSet::new();
        for extent in
            table.rows().flat_map(|row| &row.extents).filter(|extent| **extent != u32::MAX)
        {
            assert!(
                *extent < shape.extents && owned.insert(*extent),
                "extent {extent} has two owners"
            );
        }
        for row in table.rows().filter(|row| row.lost.is_none()) {
            assert!(!row.extents.contains(&u32::MAX));
        }
    }
}

/// Changes a block in both copies, with the right checksum.
fn forge(medium: &Medium, block: u32, change: impl Fn(&mut [u8])) {
    for place in places(block) {
        let mut bytes = medium.bytes(place, BLOCK_LEN);
        change(payload_mut(&mut bytes));
        seal(&mut bytes, geometry(LEN).unwrap().name(block));
        medium.put(place, &bytes);
    }
}

#[test]
fn no_serial_number_on_a_disk_keeps_it_from_being_opened_or_from_new_segments() {
    let shape = geometry(LEN).unwrap();
    let (last_block, last) = shape.entry_of(shape.extents - 1);
    let half = u64::MAX / 2;
    for serial in [half - 3, half - 2, half - 1, half, u64::MAX - 2, u64::MAX - 1, u64::MAX] {
        let (medium, disk) = with_segments();
        drop(disk);
        // Of an extent that nobody has.
        forge(&medium, shape.extents_block(last_block), |payload| {
            let at = last * shape.entry_len();
            payload[at..at + 8].copy_from_slice(&serial.to_le_bytes());
        });
        for number in 10..13 {
            let disk = medium.open().unwrap();
            disk.make(key(number), MIB, b"").unwrap();
            drop(disk);
            let disk = medium.open().unwrap();
            (1..=3).for_each(|number| check(&disk, number));
            assert_eq!(disk.found(key(number)).unwrap().lost, None, "{serial}");
        }
    }
}

#[test]
fn a_row_of_any_serial_number_is_served_and_leads_no_other() {
    let shape = geometry(LEN).unwrap();
    for serial in [1 << 41, u64::MAX / 2, u64::MAX - 1] {
        let (medium, disk) = with_segments();
        drop(disk);
        forge(&medium, shape.row_block(2), |payload| {
            payload[..8].copy_from_slice(&u64::to_le_bytes(serial));
        });
        forge(&medium, shape.extents_block(0), |payload| {
            for entry in payload.chunks_exact_mut(shape.entry_len()) {
                if entry[..8] == 3_u64.to_le_bytes() {
                    entry[..8].copy_from_slice(&serial.to_le_bytes());
                }
            }
        });
        for number in 10..12 {
            let disk = medium.open().unwrap();
            (1..=3).for_each(|number| check(&disk, number));
            disk.make(key(number), MIB, b"").unwrap();
        }
        let disk = medium.open().unwrap();
        assert!((10..12).all(|number| disk.found(key(number)).unwrap().lost.is_none()));
    }
}

#[test]
fn rows_that_contradict_each_other_are_lost_alone() {
    let shape = geometry(LEN).unwrap();
    // A serial number, and a segment, that another row has.
    for (at, bytes) in [(0, 2_u64.to_le_bytes().to_vec()), (24, key(2).1.0.to_vec())] {
        let (medium, disk) = with_segments();
        drop(disk);
        forge(&medium, shape.row_block(2), |payload| {
            payload[at..at + bytes.len()].copy_from_slice(&bytes);
        });
        let disk = medium.open().unwrap();
        check(&disk, 1);
        assert_eq!(disk.found(key(2)), None);
        assert!(disk.volume(key(3)).is_err());
        // What may be theirs is given to nobody, and neither is made again beside them.
        assert!(disk.make(key(2), MIB, b"").is_err());
        let free = disk.space_bytes() - 9 * 4 * MIB;
        assert!(disk.make(key(9), free + 4096, b"").is_err());
        disk.make(key(9), free, b"").unwrap();
        drop(disk);
        let disk = medium.open().unwrap();
        check(&disk, 1);
        assert_eq!(disk.found(key(9)).unwrap().lost, None);
    }
}

#[test]
fn a_row_of_an_impossible_length_takes_nothing_from_others() {
    let shape = geometry(LEN).unwrap();
    let all = u64::from(shape.extents) * shape.extent_len;
    for len in [all, all + 1, u64::MAX, 9 * MIB + 1, 0] {
        let (medium, disk) = with_segments();
        drop(disk);
        forge(&medium, shape.row_block(0), |payload| {
            payload[40..48].copy_from_slice(&u64::to_le_bytes(len));
        });
        let disk = medium.open().unwrap();
        assert!(disk.volume(key(1)).is_err(), "{len}");
        [2, 3].iter().for_each(|number| check(&disk, *number));
    }
}

#[test]
fn disks_that_are_somebody_elses_are_refused() {
    let wanted = |agent, disk| Wanted { agent, disk, new: [7; 16], force: false };
    let open = |medium: &Medium, wanted| Disk::open(medium.device(), "/dev/sdx", wanted);
    let said = |opened: Result<Disk, DiskError>| opened.unwrap_err().to_string();
    // Something at either end.
    let medium = Medium::used(LEN);
    medium.put(1080, &[0x53, 0xEF]);
    assert!(
        said(open(&medium, wanted(AGENT, None)))
            .contains("/dev/sdx: there is an ext2, ext3 or ext4")
    );
    let medium = Medium::used(LEN);
    medium.put(usize::try_from(LEN).unwrap() - 512, b"EFI PART");
    assert!(said(open(&medium, wanted(AGENT, None))).contains("data of unknown kind"));
    let forced = Wanted { force: true, ..wanted(AGENT, None) };
    let disk = open(&medium, forced).unwrap();
    disk.make(key(1), MIB, b"").unwrap();
    drop(disk);
    // Asked for by force again, its own is not formatted.
    let disk = open(&medium, forced).unwrap();
    assert!(disk.found(key(1)).is_some());
    assert_eq!(disk.id(), [7; 16]);
    drop(disk);
    assert!(open(&medium, wanted(AGENT, Some([7; 16]))).is_ok());
    let other = AgentId([1; 16]);
    assert!(said(open(&medium, wanted(other, None))).contains("of agent a6a6"));
    assert!(said(open(&medium, wanted(AGENT, Some([8; 16])))).contains("disk 0808"));
    // It was a disk of the agent, and somebody put a file system on it.
    medium.put(1080, &[0x53, 0xEF]);
    assert!(said(open(&medium, wanted(AGENT, Some([7; 16])))).contains("ext4"));
    medium.put(0, &[0; 4096]);
    medium.put(0x1_0040, b"_BHRfS_M");
    assert!(said(open(&medium, wanted(AGENT, Some([7; 16])))).contains("btrfs"));
    assert_eq!(medium.bytes(0, 4096), [0; 4096], "nothing was mended there");
    // A new disk where segments are said to be elsewhere.
    let blank = Medium::used(LEN);
    assert!(said(open(&blank, wanted(AGENT, Some([7; 16])))).contains("never formatted"));
    assert!(said(open(&Medium::used(4 * MIB), wanted(AGENT, None))).contains("at least"));
}
