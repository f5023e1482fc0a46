//! Members that hold what no engine wrote, under right checksums: whoever opens them is told that
//! something is wrong, or is not told; the program goes on.

use netraid_block::Op;
use netraid_raid::{
    assemble::{Found, Permissions, assemble},
    format::Format,
    geometry::Level,
    label::Label,
    log::LOG_BLOCK_LEN,
    regions::{CHECKPOINT_OFFSETS, LABEL_OFFSETS},
};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    array::{self, Array},
    golden::{SHAPES, new_members, newest_label},
    image::Image,
};

const PAGE: usize = 4096;
/// Where the checksum of everything is.
const CRC: std::ops::Range<usize> = 12..16;

fn crc32c(place: u64, bytes: &[u8]) -> u32 {
    static CRC: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);
    let mut digest = CRC.digest();
    digest.update(&place.to_le_bytes());
    digest.update(bytes);
    digest.finalize()
}

/// Changes a few bytes of a structure that stands at an offset, and mends its checksum.
fn forge(image: &mut Image, offset: u64, len: usize, place: u64, rng: &mut StdRng) {
    let mut bytes = image.read(offset, len).to_vec();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) + 1;
    for _ in 0..rng.random_range(1..4) {
        let at = if rng.random() { rng.random_range(0..used) } else { rng.random_range(0..160) };
        bytes[at] = match rng.random_range(0..4) {
            0 => 0,
            1 => 0xff,
            2 => bytes[at].wrapping_add(1),
            _ => rng.random(),
        };
    }
    bytes[CRC].fill(0);
    let crc = crc32c(place, &bytes);
    bytes[CRC].copy_from_slice(&crc.to_le_bytes());
    image.write(offset, &bytes);
}

/// Changes something on a member.
fn attack(image: &mut Image, label: &Label, rng: &mut StdRng) {
    let (regions, salt) = (label.regions, label.log.as_ref().unwrap().salt);
    let slot = rng.random_range(0..2);
    match rng.random_range(0..5) {
        0 => forge(image, LABEL_OFFSETS[slot], PAGE, LABEL_OFFSETS[slot], rng),
        1 => forge(image, CHECKPOINT_OFFSETS[slot], PAGE, CHECKPOINT_OFFSETS[slot], rng),
        2 => {
            let region = if rng.random() { regions.map } else { regions.sums };
            let pages: Vec<u64> = (0..region.len / PAGE as u64)
                .map(|page| region.offset + page * PAGE as u64)
                .filter(|offset| image.read(*offset, 2) == b"NR")
                .collect();
            if let Some(offset) = pages.get(rng.random_range(0..pages.len().max(1))) {
                forge(image, *offset, PAGE, *offset, rng);
            }
        }
        3 => {
            let heads: Vec<u64> = (0..regions.log_blocks())
                .map(|block| regions.log.offset + block * u64::from(LOG_BLOCK_LEN))
                .filter(|offset| image.read(*offset, 7) == b"NRBATCH")
                .collect();
            // Newer ones are those that count.
            let at = heads.len().saturating_sub(rng.random_range(1..8));
            if let Some(offset) = heads.get(at) {
                let used = image.read(offset + 60, 4);
                let used = u32::from_le_bytes([used[0], used[1], used[2], used[3]]);
                let len = used.div_ceil(LOG_BLOCK_LEN).clamp(1, 4) * LOG_BLOCK_LEN;
                if offset + u64::from(len) <= regions.log.end() {
                    forge(image, *offset, len as usize, salt, rng);
                }
            }
        }
        _ => {
            let offset = rng.random_range(0..image.len() / 512) * 512;
            let sector: Vec<u8> = (0..512).map(|_| rng.random()).collect();
            image.write(offset, &sector);
        }
    }
}

fn change(array: &mut Array, rng: &mut StdRng) {
    let blocks = array.blocks();
    let first = rng.random_range(0..blocks);
    let count = if rng.random_ratio(1, 4) { 20 } else { 2 }.min(blocks - first);
    let op = match rng.random_range(0..8) {
        0..5 => Op::Write,
        5 => Op::WriteZeroes,
        6 => Op::Flush,
        _ => return array.idle(),
    };
    let (first, count) = if op == Op::Flush { (0, 0) } else { (first, count) };
    let _ = array.request(op, first, count, rng.random());
}

/// A member goes, and comes back with something changed, or does not.
fn lose_and_return(array: &mut Array, label: &Label, members: usize, rng: &mut StdRng) {
    let member = u8::try_from(rng.random_range(0..members)).unwrap();
    array.lose(member);
    for _ in 0..rng.random_range(0..8) {
        change(array, rng);
    }
    let mut image = array.image(member);
    for _ in 0..rng.random_range(0..4) {
        attack(&mut image, label, rng);
    }
    array.come_back(member, image);
    for _ in 0..rng.random_range(0..8) {
        change(array, rng);
    }
}

fn is_assembled(images: &[Image]) -> bool {
    let found = images.iter().filter_map(array::label);
    let found = found.map(|label| Found { address: String::new(), label, checkpoint: None });
    let force = Permissions { force: true, ..Permissions::default() };
    assemble(&found.collect::<Vec<_>>(), force).is_ok()
}

/// An array that is written, dies, is attacked, and opened again, a few times over.
fn play(seed: u64, level: Level, members: usize) -> (u32, u32) {
    let mut rng = StdRng::seed_from_u64(seed);
    let new = new_members(Format::Two, level, members);
    let label = newest_label(&new[0]);
    let mut array = Array::open(new, &[]).unwrap();
    let (mut opened, mut refused) = (0, 0);
    for _ in 0..4 {
        for _ in 0..rng.random_range(1..25) {
            change(&mut array, &mut rng);
        }
        if level != Level::Raid0 && rng.random() {
            lose_and_return(&mut array, &label, members, &mut rng);
        }
        let mut images = array.crash();
        let attacked = rng.random_range(1..=images.len());
        for _ in 0..rng.random_range(1..6) {
            let member = rng.random_range(0..attacked);
            attack(&mut images[member], &label, &mut rng);
        }
        // Whoever opens an array weighs the labels first.
        let opening = match is_assembled(&images) {
            true => Array::open(images, &[]).ok(),
            false => None,
        };
        match opening {
            Some(again) => array = again,
            None => {
                refused += 1;
                break;
            }
        }
        opened += 1;
        for block in 0..array.blocks() {
            let _ = array.read(block);
        }
    }
    (opened, refused)
}

#[test]
fn what_members_forge_stops_nothing_but_their_array() {
    let seeds = std::env::var("NETRAID_MODEL_RUNS").ok().and_then(|runs| runs.parse().ok());
    let (mut opened, mut refused, mut findings) = (0, 0, Vec::new());
    for seed in 0..seeds.unwrap_or(60) {
        for (_, level, members) in SHAPES {
            match std::panic::catch_unwind(|| play(seed, level, members)) {
                Ok((more_opened, more_refused)) => {
                    opened += more_opened;
                    refused += more_refused;
                }
                Err(_) => findings.push((seed, level)),
            }
        }
    }
    assert!(findings.is_empty(), "seeds {findings:?}");
    assert!(opened > refused && refused > 0, "{opened} opened, {refused} refused");
}
