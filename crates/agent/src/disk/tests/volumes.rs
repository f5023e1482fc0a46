//! Segments as devices, on a disk that keeps its power.

use netraid_block::{Op, SgList, extents::Extents};

use super::medium::{MIB, Medium, begin, flush, key, read, write};
use crate::disk::Disk;

const LEN: u64 = 64 * MIB;

fn with_segment(len: u64) -> (Medium, Disk) {
    let medium = Medium::used(LEN);
    let disk = medium.open().unwrap();
    disk.make(key(1), len, b"label").unwrap();
    (medium, disk)
}

fn zeros(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

#[test]
fn what_was_on_the_disk_before_is_never_read() {
    let (_medium, disk) = with_segment(6 * MIB);
    let device = disk.volume(key(1)).unwrap();
    assert!(zeros(&read(&device, 0, 2 * MIB).unwrap()));
    // One block of a granule, and over the seam of two, and at the end.
    for at in [3 * MIB + 4096, 4 * MIB - 512, 6 * MIB - 512] {
        let bytes = vec![7; 1024.min(usize::try_from(6 * MIB - at).unwrap())];
        write(&device, at, &bytes).unwrap();
    }
    let whole: Vec<u8> =
        (0..3).flat_map(|part| read(&device, part * 2 * MIB, 2 * MIB).unwrap()).collect();
    let written = |at: usize| {
        let at = at as u64;
        (3 * MIB + 4096..3 * MIB + 5120).contains(&at)
            || (4 * MIB - 512..4 * MIB + 512).contains(&at)
            || at >= 6 * MIB - 512
    };
    assert!(whole.iter().enumerate().all(|(at, byte)| *byte == if written(at) { 7 } else { 0 }));
}

#[test]
fn what_was_removed_is_not_read_by_whoever_comes_next() {
    let (_medium, disk) = with_segment(8 * MIB);
    {
        let device = disk.volume(key(1)).unwrap();
        for at in 0..4 {
            write(&device, at * 2 * MIB, &vec![9; 2 << 20]).unwrap();
        }
        flush(&device).unwrap();
    }
    assert_eq!(disk.found(key(1)).unwrap().written_bytes, 8 * MIB);
    disk.remove(key(1)).unwrap();
    assert_eq!(disk.found(key(1)), None);
    disk.make(key(2), 8 * MIB, b"").unwrap();
    let device = disk.volume(key(2)).unwrap();
    write(&device, MIB, &[1; 512]).unwrap();
    for at in 0..4 {
        let bytes = read(&device, at * 2 * MIB, 2 * MIB).unwrap();
        let count = bytes.iter().filter(|byte| **byte != 0).count();
        assert_eq!(count, if at == 0 { 512 } else { 0 });
    }
}

#[test]
fn whoever_writes_a_granule_first_does_not_wipe_out_another_ones_bytes() {
    let (medium, disk) = with_segment(4 * MIB);
    let device = disk.volume(key(1)).unwrap();
    medium.hold(Op::WriteZeroes);
    let first = begin(&device, Op::Write, (0, 512), false, &[1; 512]);
    let second = begin(&device, Op::Write, (8192, 512), false, &[2; 512]);
    let over = begin(&device, Op::Write, (MIB - 512, 1024), false, &[3; 1024]);
    assert!(!first.has_ended() && !second.has_ended() && !over.has_ended());
    assert!(medium.held() > 0);
    assert!(zeros(&read(&device, 0, 2 * MIB).unwrap()), "nothing is there before it is answered");
    medium.release();
    for ended in [first, second, over] {
        ended.wait().unwrap();
    }
    let bytes = read(&device, 0, 2 * MIB).unwrap();
    let count = |wanted| bytes.iter().filter(|byte| **byte == wanted).count();
    assert_eq!([1, 2, 3].map(count), [512, 512, 1024]);
}

#[test]
fn a_write_where_something_was_written_is_one_request() {
    let (medium, disk) = with_segment(12 * MIB);
    let device = disk.volume(key(1)).unwrap();
    for at in 0..6 {
        write(&device, at * 2 * MIB, &vec![1; 2 << 20]).unwrap();
    }
    flush(&device).unwrap();
    medium.seen();
    // Over the seam of two extents that are next to each other.
    begin(&device, Op::Write, (4 * MIB - 4096, 8192), true, &[2; 8192]).wait().unwrap();
    read(&device, 4 * MIB - 4096, 8192).unwrap();
    flush(&device).unwrap();
    let seen: Vec<_> = medium.seen().into_iter().map(|(op, _, len)| (op, len)).collect();
    assert_eq!(seen, [(Op::Write, 8192), (Op::Read, 8192), (Op::Flush, 0)]);
}

#[test]
fn extents_that_are_not_next_to_each_other_are_one_device() {
    let medium = Medium::used(LEN);
    let disk = medium.open().unwrap();
    let all = u8::try_from(disk.space_bytes() / (4 * MIB)).unwrap();
    for number in 0..all {
        disk.make(key(number), 4 * MIB, b"").unwrap();
    }
    assert!(disk.make(key(200), 4096, b"").unwrap_err().contains("0 are free"));
    for number in [3, 5, 9] {
        disk.remove(key(number)).unwrap();
    }
    disk.make(key(100), 12 * MIB, b"").unwrap();
    let device = disk.volume(key(100)).unwrap();
    for at in [0, 5, 11] {
        assert!(zeros(&read(&device, at * MIB, MIB).unwrap()));
    }
    let bytes: Vec<u8> = (0..MIB).map(|at| u8::try_from(at % 251).unwrap()).collect();
    write(&device, 4 * MIB - 4096, &bytes).unwrap();
    write(&device, 8 * MIB - MIB / 2, &bytes).unwrap();
    assert_eq!(read(&device, 4 * MIB - 4096, MIB).unwrap(), bytes);
    assert_eq!(read(&device, 8 * MIB - MIB / 2, MIB).unwrap(), bytes);
    for number in (0..all).filter(|number| ![3, 5, 9].contains(number)) {
        let device = disk.volume(key(number)).unwrap();
        assert!(
            zeros(&read(&device, 0, 2 * MIB).unwrap())
                && zeros(&read(&device, 2 * MIB, 2 * MIB).unwrap())
        );
    }
}

#[test]
fn discards_and_zeros_take_marks_away_and_leave_the_rest() {
    for can_discard in [false, true] {
        let medium = Medium::used(LEN);
        medium.set_discard(can_discard);
        let disk = medium.open().unwrap();
        disk.make(key(1), 6 * MIB + 4096, b"").unwrap();
        let device = disk.volume(key(1)).unwrap();
        for at in 0..6 {
            write(&device, at * MIB, &vec![1; 1 << 20]).unwrap();
        }
        write(&device, 6 * MIB, &[1; 4096]).unwrap();
        let zero = |op, offset, len| begin(&device, op, (offset, len), false, &[]).wait().unwrap();
        zero(Op::Discard, MIB / 2, 2 * MIB);
        zero(Op::WriteZeroes, 4 * MIB + 512, 512);
        zero(Op::WriteZeroes, 5 * MIB, MIB + 4096);
        let mut model = vec![1_u8; (6 << 20) + 4096];
        for (at, len) in [(MIB / 2, 2 * MIB), (4 * MIB + 512, 512), (5 * MIB, MIB + 4096)] {
            let at = usize::try_from(at).unwrap();
            model[at..at + usize::try_from(len).unwrap()].fill(0);
        }
        let found: Vec<u8> = (0..7)
            .flat_map(|at| read(&device, at * MIB, MIB.min(6 * MIB + 4096 - at * MIB)).unwrap())
            .collect();
        assert!(found == model, "can_discard {can_discard}");
        let answer = begin(&device, Op::Extents, (0, 6 * MIB + 4096), false, &[]).wait().unwrap();
        let answer = SgList::from(netraid_block::Buf::copy_from(&answer));
        let extents = Extents::decode(&answer, 6 * MIB + 4096).unwrap();
        let runs: Vec<_> = extents.runs().iter().map(|run| (run.len, run.mapped)).collect();
        let (one, two) = ((MIB, true), (MIB, false));
        assert_eq!(runs, [one, two, (3 * MIB, true), (MIB + 4096, false)]);
        assert_eq!(disk.found(key(1)).unwrap().written_bytes, 4 * MIB);
        // Written again, the rest of a granule is zeros.
        write(&device, MIB + 8192, &[5; 512]).unwrap();
        let found = read(&device, MIB, MIB).unwrap();
        assert_eq!(found.iter().filter(|byte| **byte != 0).count(), 512);
    }
}

#[test]
fn a_write_waits_for_a_discard_of_its_granule() {
    let (medium, disk) = with_segment(4 * MIB);
    let device = disk.volume(key(1)).unwrap();
    write(&device, 0, &vec![1; 1 << 20]).unwrap();
    medium.hold(Op::WriteZeroes);
    let discarded = begin(&device, Op::Discard, (0, MIB), false, &[]);
    let written = begin(&device, Op::Write, (0, 4096), false, &[2; 4096]);
    assert!(!discarded.has_ended() && !written.has_ended());
    medium.release();
    discarded.wait().unwrap();
    written.wait().unwrap();
    let bytes = read(&device, 0, MIB).unwrap();
    assert!(bytes[..4096].iter().all(|byte| *byte == 2) && zeros(&bytes[4096..]));
}

#[test]
fn a_segment_in_use_is_not_removed() {
    let (_medium, disk) = with_segment(4 * MIB);
    let disk = std::sync::Arc::new(disk);
    let device = disk.volume(key(1)).unwrap();
    let remover = std::thread::spawn({
        let disk = std::sync::Arc::clone(&disk);
        move || disk.remove(key(1))
    });
    write(&device, 0, &[1; 512]).unwrap();
    assert!(disk.found(key(1)).is_some());
    drop(device);
    remover.join().unwrap().unwrap();
    assert_eq!(disk.found(key(1)), None);
}

#[test]
fn a_segment_that_is_there_is_made_again_as_long_as_it_is_empty() {
    let (_medium, disk) = with_segment(4 * MIB);
    disk.make(key(1), 4 * MIB, b"other").unwrap();
    assert_eq!(disk.found(key(1)).unwrap().label, b"other");
    assert!(disk.make(key(1), 8 * MIB, b"").is_err());
    write(&disk.volume(key(1)).unwrap(), 0, &[1; 512]).unwrap();
    assert!(disk.make(key(1), 4 * MIB, b"").is_err());
}
