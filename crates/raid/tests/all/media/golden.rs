//! Members of arrays with a log as they were written once, kept in text: what this version makes
//! is still the same, and what earlier ones left behind is still read.
//!
//! There is a directory for each format. A change of what is written is a file of these, made anew with
//! `NETRAID_GOLDEN=write`; those of an earlier format stay as they are for ever.

use std::{env, fs, path::PathBuf};

use netraid_block::Op;
use netraid_raid::{
    checkpoint::Checkpoint,
    format::{Format, format},
    geometry::Level,
    label::{Closure, Label},
    log::{Batch, LOG_BLOCK_LEN, LogKey, Ring, head_blocks},
    member::MemberState,
    regions::{CHECKPOINT_OFFSETS, LoggedShape},
};

use super::{
    array::{self, Array},
    image::{self, Image},
};

pub(crate) const UUID: [u8; 16] = *b"golden array 001";
pub(crate) const SHAPES: [(&str, Level, usize); 5] = [
    ("level0", Level::Raid0, 3),
    ("level1", Level::Raid1, 2),
    ("level5", Level::Raid5, 4),
    ("level6", Level::Raid6, 5),
    ("level10", Level::Raid10, 4),
];

/// Formats, with the directories of their images.
pub(crate) const FORMATS: [(&str, Format); 2] = [("1", Format::One), ("2", Format::Two)];

fn shape(format: Format, level: Level, members: usize) -> LoggedShape {
    LoggedShape {
        level,
        members,
        chunk_len: 8192,
        block_len: 512,
        logical_stripes: 20,
        physical_stripes: 28,
        log_blocks: 128,
        format,
    }
}

/// A new array's members.
pub(crate) fn new_members(kind: Format, level: Level, members: usize) -> Vec<Image> {
    let layout = shape(kind, level, members).layout().unwrap();
    let uuids: Vec<[u8; 16]> = (1..).map(|at| [at; 16]).take(members).collect();
    let images = format(kind, layout, "golden", UUID, &uuids, 0x0123_4567_89ab_cdef);
    let member = |images: Vec<(u64, Vec<u8>)>| {
        let mut image = Image::new(layout.0.data.end());
        images.iter().for_each(|(offset, bytes)| image.write(*offset, bytes));
        image
    };
    images.into_iter().map(member).collect()
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/all/media/images").join(name)
}

/// Whether the files are to be made anew.
fn writes() -> bool {
    env::var("NETRAID_GOLDEN").is_ok_and(|value| value == "write")
}

fn save(name: &str, members: &[Image]) {
    fs::write(path(name), image::to_text(members)).unwrap();
}

fn load(name: &str) -> Vec<Image> {
    let path = path(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    image::from_text(&text)
}

pub(crate) fn newest_label(image: &Image) -> Label {
    array::label(image).expect("a label")
}

fn newest_checkpoint(image: &Image) -> Checkpoint {
    let slots = (0..2)
        .map(|slot| Checkpoint::decode(image.read(CHECKPOINT_OFFSETS[slot], 4096), UUID, slot));
    slots.filter_map(Result::ok).max_by_key(|one| (one.generation, one.counter)).unwrap()
}

/// Whether there is something in the log that the last checkpoint does not cover.
fn log_goes_on(members: &[Image]) -> bool {
    let label = newest_label(&members[0]);
    let log = label.log.unwrap();
    let tail = newest_checkpoint(&members[0]).tail.end;
    let ring = Ring::new(label.regions.log_blocks());
    let key = LogKey { array_uuid: UUID, salt: log.salt };
    let owner = log.beginnings.owner(tail);
    let offset = label.regions.log.offset + ring.offset(tail);
    members.iter().any(|image| {
        let first = image.read(offset, LOG_BLOCK_LEN as usize);
        head_blocks(first, tail, &key).is_ok_and(|blocks| {
            let head = image.read(offset, (blocks * LOG_BLOCK_LEN) as usize);
            Batch::decode(head, tail, &key).is_ok_and(|(batch, _)| Some(batch.generation) == owner)
        })
    })
}

type Shape = (&'static str, Level, usize);

fn of_all_formats() -> impl Iterator<Item = ((&'static str, Format), Shape)> {
    FORMATS.into_iter().flat_map(|format| SHAPES.map(|shape| (format, shape)))
}

#[test]
fn a_new_array_is_what_it_was() {
    for ((directory, kind), (name, level, members)) in of_all_formats() {
        let name = format!("{directory}/{name}-new.txt");
        let new = new_members(kind, level, members);
        if writes() {
            save(&name, &new);
        }
        assert_eq!(image::to_text(&new), fs::read_to_string(path(&name)).unwrap(), "{name}");
        assert_eq!(load(&name), new);
        for (at, image) in new.iter().enumerate() {
            let label = newest_label(image);
            assert_eq!((label.name.as_str(), label.closure), ("golden", Closure::Clean));
            assert_eq!(label.log.as_ref().map(|log| log.format), Some(kind));
            assert_eq!((label.index.as_usize(), label.members.len()), (at, members));
            assert_eq!((label.geometry.level(), label.geometry.stripes()), (level, 20));
            assert!(label.members.iter().all(|member| member.state == MemberState::InSync));
            assert_eq!(newest_checkpoint(image).counter, 1);
        }
    }
}

/// What users wrote, in this order: block, number of blocks, byte (0: zeroed).
const WRITES: [(u64, u64, u8); 12] = [
    // Whole stripes, of every level here.
    (0, 40, 0x11),
    // Small ones, some of them twice, in stripes that are somewhere and in ones that are not.
    (3, 1, 0x22),
    (3, 1, 0x23),
    (17, 2, 0x24),
    (39, 1, 0x25),
    // Zeroes over both.
    (17, 1, 0),
    (20, 6, 0),
    // Stripes again, elsewhere.
    (8, 12, 0x33),
    (9, 1, 0x34),
    // The last block.
    (u64::MAX, 1, 0x44),
    (30, 2, 0x55),
    (31, 1, 0x56),
];

/// Writes all that users do, of `array`'s volume of so many blocks; what it holds afterwards.
fn expected(blocks: u64) -> Vec<u8> {
    let mut volume = vec![0; usize::try_from(blocks).unwrap()];
    for (first, count, byte) in WRITES {
        let first = usize::try_from(first.min(blocks - 1)).unwrap();
        let count = usize::try_from(count).unwrap().min(volume.len() - first);
        volume[first..first + count].fill(byte);
    }
    volume
}

fn write_all(array: &mut Array) {
    let blocks = array.blocks();
    for (at, (first, count, byte)) in WRITES.into_iter().enumerate() {
        let first = first.min(blocks - 1);
        let op = if byte == 0 { Op::WriteZeroes } else { Op::Write };
        array.request(op, first, count.min(blocks - first), byte).unwrap();
        // What is written before comes home; what is after stays in the log.
        if at == 6 {
            array.idle();
        }
    }
    array.request(Op::Flush, 0, 0, 0).unwrap();
}

fn check_contents(array: &mut Array, name: &str) {
    let volume = expected(array.blocks());
    for (block, byte) in (0..).zip(volume) {
        let read = array.read(block).unwrap();
        assert!(read.iter().all(|one| *one == byte), "{name}: block {block} is not {byte:#x}");
    }
}

/// All that is at rest is what it should be, with these members.
fn scrub(array: &mut Array, name: &str) {
    let status = array.scrub();
    assert!(status.is_complete() && status.checked_blocks > 0, "{name}: {status:?}");
    assert_eq!((status.wrong(), status.unrepaired()), (0, 0), "{name}: {status:?}");
}

/// Arrays that were closed, that a crash left behind, and that lacked a member, are opened as they are, read, written
/// and scrubbed, with all members and with as few as there may be.
#[test]
fn arrays_that_were_in_use_are_read_written_and_scrubbed() {
    for ((directory, kind), (level_name, level, members)) in of_all_formats() {
        for state in ["closed", "crashed", "degraded"] {
            let name = format!("{directory}/{level_name}-{state}.txt");
            let tolerance = shape(kind, level, members).layout().unwrap().1.tolerance();
            if state == "degraded" && tolerance == 0 {
                continue;
            }
            if writes() {
                let mut array = Array::open(new_members(kind, level, members), &[]).unwrap();
                if state == "degraded" {
                    array.lose(1);
                }
                write_all(&mut array);
                let images = if state == "closed" { array.close().unwrap() } else { array.crash() };
                save(&name, &images);
            }
            let images = load(&name);
            let closure = if state == "closed" { Closure::Clean } else { Closure::Open };
            assert_eq!(newest_label(&images[0]).closure, closure, "{name}");
            assert!(newest_checkpoint(&images[0]).round > 0, "{name}: something came home");
            assert_eq!(log_goes_on(&images), state != "closed", "{name}");
            // With all members, and with as few as there may be.
            for away in [0, tolerance as usize] {
                let away: Vec<usize> = (1..=away).collect();
                let mut array = Array::open(images.clone(), &away).unwrap();
                check_contents(&mut array, &name);
                if away.is_empty() && state != "degraded" {
                    scrub(&mut array, &name);
                }
                let images = array.close().unwrap();
                let mut array = Array::open(images, &away).unwrap();
                check_contents(&mut array, &name);
                // What is written now is of the same format, and found again.
                for block in (0..array.blocks()).step_by(3) {
                    array.request(Op::Write, block, 1, 0x77).unwrap();
                }
                array.idle();
                let mut array = Array::open(array.crash(), &away).unwrap();
                for (block, byte) in (0..).zip(expected(array.blocks())) {
                    let byte = if block % 3 == 0 { 0x77 } else { byte };
                    let read = array.read(block).unwrap();
                    assert!(read.iter().all(|one| *one == byte), "{name}: block {block}");
                }
                let images = array.close().unwrap();
                let format = |image| newest_label(image).log.map(|log| log.format);
                assert!(images.iter().all(|image| format(image) == Some(kind)), "{name}");
            }
        }
    }
}
