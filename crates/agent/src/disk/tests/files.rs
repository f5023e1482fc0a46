//! A file as a disk.

use std::{sync::Arc, thread};

use netraid_block::{Op, Pool};
use netraid_control::units::AgentId;

use rand::{Rng, SeedableRng as _, rngs::StdRng};

use super::medium::{AGENT, MIB, begin, flush, key, read, write};
use crate::disk::{Disk, Wanted};

#[test]
fn a_file_is_a_disk_for_one_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    std::fs::File::create(&path).unwrap().set_len(128 * MIB).unwrap();
    let wanted = Wanted { agent: AGENT, disk: None, new: [3; 16], force: false };
    let open = |wanted| Disk::open_path(&path, wanted, Pool::new());
    let disk = open(wanted).unwrap();
    disk.make(key(1), 20 * MIB, b"one").unwrap();
    let device = disk.volume(key(1)).unwrap();
    for at in [0, 5 * MIB - 4096, 20 * MIB - 8192] {
        write(&device, at, &[5; 8192]).unwrap();
    }
    flush(&device).unwrap();
    assert!(open(wanted).unwrap_err().to_string().contains("in use"));
    drop((device, disk));
    let other = Wanted { agent: AgentId([9; 16]), ..wanted };
    assert!(open(other).unwrap_err().to_string().contains("of agent a6a6"));
    let disk = open(wanted).unwrap();
    let device = disk.volume(key(1)).unwrap();
    for at in [0, 5 * MIB - 4096, 20 * MIB - 8192] {
        assert_eq!(read(&device, at, 8192).unwrap(), [5; 8192]);
    }
    assert!(read(&device, 10 * MIB, MIB).unwrap().iter().all(|byte| *byte == 0));
    assert_eq!(disk.found(key(1)).unwrap().written_bytes, 4 * MIB);
}

const SECTOR: u64 = 4096;
const SHARED: u64 = 24 * MIB;

#[test]
fn many_write_the_same_granules_first_and_keep_all_their_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    // Full of somebody's bytes, but for its ends.
    let mut bytes = vec![0x5E; 64 << 20];
    bytes[..1 << 20].fill(0);
    bytes[63 << 20..].fill(0);
    std::fs::write(&path, bytes).unwrap();
    let wanted = Wanted { agent: AGENT, disk: None, new: [3; 16], force: false };
    let disk = Arc::new(Disk::open_path(&path, wanted, Pool::new()).unwrap());
    disk.make(key(1), SHARED, b"").unwrap();
    let threads = (0..4_u64).map(|number| {
        let disk = Arc::clone(&disk);
        thread::spawn(move || work(&disk, number))
    });
    let threads: Vec<_> = threads.collect();
    let known: Vec<Vec<u8>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let check = |disk: &Disk| {
        let device = disk.volume(key(1)).unwrap();
        for at in (0..SHARED).step_by(1 << 20) {
            let found = read(&device, at, MIB).unwrap();
            for (sector, found) in (at / SECTOR..).zip(found.chunks(4096)) {
                let place = usize::try_from(sector / 4).unwrap();
                let value = known[usize::try_from(sector % 4).unwrap()][place];
                assert!(found.iter().all(|byte| *byte == value), "sector {sector}");
            }
        }
    };
    check(&disk);
    flush(&disk.volume(key(1)).unwrap()).unwrap();
    drop(disk);
    check(&Disk::open_path(&path, wanted, Pool::new()).unwrap());
}

/// Writes every fourth sector, here and there, some of them several times; what each holds then.
fn work(disk: &Disk, number: u64) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(number);
    let device = disk.volume(key(1)).unwrap();
    let mut known = vec![0; usize::try_from(SHARED / SECTOR / 4).unwrap()];
    for _ in 0..600 {
        let place = random.random_range(0..known.len());
        let (at, value) = ((place as u64 * 4 + number) * SECTOR, random.random_range(0..=9));
        let (op, bytes) = match value {
            0 => (Op::WriteZeroes, Vec::new()),
            value => (Op::Write, vec![value; 4096]),
        };
        let fua = random.random_range(0..10) == 0;
        begin(&device, op, (at, SECTOR), fua, &bytes).wait().unwrap();
        known[place] = value;
        let found = read(&device, at, SECTOR).unwrap();
        assert!(found.iter().all(|byte| *byte == value), "sector {}", at / SECTOR);
        if random.random_range(0..50) == 0 {
            flush(&device).unwrap();
        }
    }
    known
}
