//! Random work on a disk that loses power at any request: what was flushed is there, what was not is
//! old or new, and nobody reads what is not their own.

use std::collections::BTreeMap;

use netraid_block::{Device, Op};
use rand::{Rng, SeedableRng as _, rngs::StdRng};

use super::medium::{MIB, Medium, SECTOR, begin, flush, key, read, write};
use crate::disk::Disk;

/// How many runs; more with `NETRAID_AGENT_DISK_RUNS`.
const RUNS: u64 = 40;
/// Entries of its extents are in more than one sector.
const LEN: u64 = 96 * MIB;

/// What a sector of a segment may hold: one value when it is certain.
type Sector = Vec<u64>;

/// What is known of a segment. Sectors that are not listed hold zeros.
#[derive(Default)]
struct Model {
    len: u64,
    sectors: BTreeMap<u64, Sector>,
    /// Whether it is certain that it is there.
    is_there: bool,
}

struct World {
    medium: Medium,
    random: StdRng,
    models: BTreeMap<u8, Model>,
    next_value: u64,
    next_segment: u8,
}

fn sector_of(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(SECTOR / 8)
}

/// It is in more than one sector.
fn label_of(number: u8) -> Vec<u8> {
    vec![number; 1500]
}

impl Model {
    /// The sector may hold this too from now on; it does when it is read before a crash.
    fn write(&mut self, sector: u64, value: u64) {
        self.sectors.entry(sector).or_insert_with(|| vec![0]).push(value);
    }

    /// Only what was written last.
    fn settle(&mut self) {
        for values in self.sectors.values_mut() {
            values.drain(..values.len() - 1);
        }
    }
}

impl World {
    fn device(&self, disk: &Disk, number: u8) -> Device {
        disk.volume(key(number)).unwrap()
    }

    /// Does something; nothing when power was lost.
    fn turn(&mut self, disk: &Disk) -> Option<()> {
        let numbers: Vec<u8> = self.models.keys().copied().collect();
        let number =
            (!numbers.is_empty()).then(|| numbers[self.random.random_range(0..numbers.len())]);
        match (self.random.random_range(0..20), number) {
            (0, _) | (_, None) => self.make(disk),
            (1, Some(number)) => {
                self.models.get_mut(&number).unwrap().is_there = false;
                disk.remove(key(number)).ok()?;
                self.models.remove(&number);
                Some(())
            }
            (2..=5, Some(number)) => {
                flush(&self.device(disk, number)).ok()?;
                self.models.get_mut(&number).unwrap().settle();
                Some(())
            }
            (6..=8, Some(number)) => self.zero(disk, number),
            (9..=11, Some(number)) => {
                self.check(disk, number);
                Some(())
            }
            (_, Some(number)) => self.write(disk, number),
        }
    }

    fn make(&mut self, disk: &Disk) -> Option<()> {
        let number = self.next_segment;
        self.next_segment += 1;
        let len = self.random.random_range(1..=9 * 256) * 4096;
        self.models.insert(number, Model { len, ..Model::default() });
        match disk.make(key(number), len, &label_of(number)) {
            Ok(()) => {
                self.models.get_mut(&number).unwrap().is_there = true;
                Some(())
            }
            Err(why) if why.contains("are free") => {
                self.models.remove(&number);
                Some(())
            }
            Err(_) => None,
        }
    }

    fn range(&mut self, number: u8, most: u64) -> (u64, u64) {
        let sectors = self.models[&number].len / SECTOR as u64;
        let first = self.random.random_range(0..sectors);
        let count = self.random.random_range(1..=most.min(sectors - first));
        (first, count)
    }

    fn write(&mut self, disk: &Disk, number: u8) -> Option<()> {
        let most = [1, 8, 300, 4096][self.random.random_range(0..4)];
        let (first, count) = self.range(number, most);
        self.next_value += 1;
        let value = u64::from(number) << 32 | self.next_value;
        let fua = self.random.random_range(0..4) == 0;
        let model = self.models.get_mut(&number).unwrap();
        (first..first + count).for_each(|sector| model.write(sector, value));
        let bytes = sector_of(value).repeat(usize::try_from(count).unwrap());
        let range = (first * SECTOR as u64, bytes.len() as u64);
        begin(&self.device(disk, number), Op::Write, range, fua, &bytes).wait().ok()?;
        if fua {
            self.certain(number, first, count, value);
        }
        Some(())
    }

    fn zero(&mut self, disk: &Disk, number: u8) -> Option<()> {
        let most = if self.random.random() { 100 } else { 9000 };
        let (first, count) = self.range(number, most);
        let (op, fua) = match self.random.random_range(0..3) {
            0 => (Op::Discard, false),
            1 => (Op::WriteZeroes, false),
            _ => (Op::WriteZeroes, true),
        };
        let model = self.models.get_mut(&number).unwrap();
        (first..first + count).for_each(|sector| model.write(sector, 0));
        let range = (first * SECTOR as u64, count * SECTOR as u64);
        begin(&self.device(disk, number), op, range, fua, &[]).wait().ok()?;
        if fua {
            self.certain(number, first, count, 0);
        }
        Some(())
    }

    fn certain(&mut self, number: u8, first: u64, count: u64, value: u64) {
        let model = self.models.get_mut(&number).unwrap();
        for sector in first..first + count {
            model.sectors.insert(sector, vec![value]);
        }
    }

    /// Reads a part, which holds what was written last.
    fn check(&mut self, disk: &Disk, number: u8) {
        let (first, count) = self.range(number, 4096);
        let device = self.device(disk, number);
        let found = read(&device, first * SECTOR as u64, count * SECTOR as u64);
        let Ok(found) = found else { return };
        let model = &self.models[&number];
        for (sector, bytes) in (first..).zip(found.chunks(SECTOR)) {
            let value = model.sectors.get(&sector).map_or(0, |values| *values.last().unwrap());
            assert!(bytes == sector_of(value), "segment {number}, sector {sector}");
        }
    }

    /// Power was lost and is back: everything holds what it may, and that is certain from now on.
    fn check_all(&mut self, disk: &Disk) {
        assert_eq!(disk.shared.table().damaged_rows(), 0, "one copy of each is whole");
        let found: Vec<_> = disk.segments();
        for segment in &found {
            assert_eq!(segment.lost, None, "{segment:?}");
            let number = segment.key.1.0[0];
            let model = self.models.get(&number).expect("it was removed, and that was answered");
            assert_eq!(segment.len_bytes, model.len);
            assert_eq!(segment.label, label_of(number));
        }
        let there: Vec<u8> = found.iter().map(|segment| segment.key.1.0[0]).collect();
        self.models.retain(|number, model| {
            let is_found = there.contains(number);
            assert!(is_found || !model.is_there, "segment {number} is gone");
            model.is_there = true;
            is_found
        });
        for (number, model) in &mut self.models {
            let device = disk.volume(key(*number)).unwrap();
            let mut known = BTreeMap::new();
            for at in (0..model.len).step_by(1 << 20) {
                let bytes = read(&device, at, MIB.min(model.len - at)).unwrap();
                for (sector, bytes) in (at / SECTOR as u64..).zip(bytes.chunks(SECTOR)) {
                    let mut value = [0; 8];
                    value.copy_from_slice(&bytes[..8]);
                    let value = u64::from_le_bytes(value);
                    assert!(bytes == sector_of(value), "a sector is whole");
                    let may = model.sectors.get(&sector).map_or(&[0][..], Vec::as_slice);
                    assert!(
                        may.contains(&value),
                        "segment {number}, sector {sector}: {value:x} instead of {may:x?}"
                    );
                    if value != 0 {
                        known.insert(sector, vec![value]);
                    }
                }
            }
            model.sectors = known;
        }
    }
}

fn run(seed: u64) {
    let medium = Medium::used(LEN);
    medium.set_discard(!seed.is_multiple_of(3));
    let mut world = World {
        medium: medium.clone(),
        random: StdRng::seed_from_u64(seed),
        models: BTreeMap::new(),
        next_value: 0,
        next_segment: 1,
    };
    let mut disk = medium.open().unwrap();
    for _ in 0..6 {
        let requests = world.random.random_range(1..120);
        world.medium.lose_power_after(requests);
        while world.turn(&disk).is_some() && !world.medium.is_off() {}
        drop(disk);
        world.medium.power_on(&mut world.random);
        // Power may be lost again while the notes are read and mended.
        if world.random.random() {
            world.medium.lose_power_after(world.random.random_range(1..40));
            drop(world.medium.open());
            world.medium.power_on(&mut world.random);
        }
        disk = world.medium.open().unwrap();
        world.check_all(&disk);
        // What is read now does not change any more, whatever was in the cache.
        let all: Vec<u8> = world.models.keys().copied().collect();
        for number in all {
            flush(&disk.volume(key(number)).unwrap()).unwrap();
        }
    }
}

#[test]
fn after_a_loss_of_power_everything_holds_what_it_may() {
    let runs = std::env::var("NETRAID_AGENT_DISK_RUNS").ok().and_then(|runs| runs.parse().ok());
    let first = std::env::var("NETRAID_AGENT_DISK_SEED").ok().and_then(|seed| seed.parse().ok());
    let first = first.unwrap_or(0);
    for seed in first..first + runs.unwrap_or(RUNS) {
        let ran = std::panic::catch_unwind(|| run(seed));
        assert!(ran.is_ok(), "NETRAID_AGENT_DISK_SEED={seed} NETRAID_AGENT_DISK_RUNS=1 shows it");
    }
}

#[test]
fn a_mark_is_not_durable_before_the_zeros_that_it_stands_for() {
    for seed in 0..40 {
        let mut random = StdRng::seed_from_u64(seed);
        let medium = Medium::used(LEN);
        let disk = medium.open().unwrap();
        disk.make(key(1), 8 * MIB, b"").unwrap();
        let device = disk.volume(key(1)).unwrap();
        write(&device, 4096, &[1; 512]).unwrap();
        // Within the flush: data, first copies, second copies.
        medium.lose_power_after(seed % 8);
        let _ = flush(&device);
        drop((device, disk));
        medium.power_on(&mut random);
        let disk = medium.open().unwrap();
        let bytes = read(&disk.volume(key(1)).unwrap(), 0, MIB).unwrap();
        assert!(bytes.iter().all(|byte| [0, 1].contains(byte)), "seed {seed}");
    }
}

#[test]
fn a_mark_that_is_set_during_a_flush_is_not_written_by_it() {
    for seed in 0..30 {
        let mut random = StdRng::seed_from_u64(seed);
        let medium = Medium::used(LEN);
        let disk = medium.open().unwrap();
        disk.make(key(1), 8 * MIB, b"").unwrap();
        let device = disk.volume(key(1)).unwrap();
        write(&device, 4096, &[1; 512]).unwrap();
        medium.hold(Op::Flush);
        let flushed = begin(&device, Op::Flush, (0, 0), false, &[]);
        while medium.held() == 0 {
            std::thread::yield_now();
        }
        write(&device, MIB + 4096, &[1; 512]).unwrap();
        medium.lose_power_after(1 + seed % 4);
        medium.release();
        let is_flushed = flushed.wait().is_ok();
        drop((device, disk));
        medium.power_on(&mut random);
        let disk = medium.open().unwrap();
        let bytes = read(&disk.volume(key(1)).unwrap(), 0, 2 * MIB).unwrap();
        assert!(bytes.iter().all(|byte| [0, 1].contains(byte)), "seed {seed}");
        assert!(!is_flushed || bytes[4096] == 1);
    }
}
