use std::path::Path;

use netraid_block::{Buf, Device, ErrorKind, Pool, SgList};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;
use crate::completions;

const SIZE: u64 = 3 << 20;

fn options(size: Option<u64>) -> FileOptions {
    FileOptions { size, ..FileOptions::default() }
}

/// Bytes cut into several buffers at random places.
fn scattered(rng: &mut StdRng, bytes: &[u8]) -> SgList {
    let mut list = SgList::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (part, after) = rest.split_at(rng.random_range(1..=rest.len()));
        list.push(Buf::copy_from(part));
        rest = after;
    }
    list
}

#[test]
fn each_thread_is_told_of_lost_writes_for_itself() {
    // The kernel says so once to each open file description; descriptors of one share its flags.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lun");
    for direct in [false, true] {
        let options = FileOptions { direct, block_len: 4096, ..options(Some(SIZE)) };
        let file::Opened { store, .. } = file::open(&path, &options, Pool::new()).unwrap();
        let threads = [(); 2].map(|()| store.open_again().unwrap());
        rustix::fs::fcntl_setfl(threads[0].file(), rustix::fs::OFlags::APPEND).unwrap();
        for file in [threads[1].file(), store.file()] {
            let flags = rustix::fs::fcntl_getfl(file).unwrap();
            assert!(!flags.contains(rustix::fs::OFlags::APPEND), "told together");
            assert_eq!(flags.contains(rustix::fs::OFlags::DIRECT), direct);
        }
    }
}

async fn matches_flat_bytes(device: &Device, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut model = vec![0_u8; usize::try_from(SIZE).unwrap()];
    for _ in 0..400 {
        let most = if rng.random_bool(0.1) { 2500 } else { 40 };
        let blocks = rng.random_range(0..=most);
        let block_len = u64::from(device.info().block_len);
        let blocks = blocks * 512 / block_len;
        let offset = rng.random_range(0..SIZE / block_len - blocks) * block_len;
        let len = blocks * block_len;
        let range = usize::try_from(offset).unwrap()..usize::try_from(offset + len).unwrap();
        match rng.random_range(0..6) {
            0 | 1 => {
                let bytes: Vec<u8> = (0..len).map(|_| rng.random()).collect();
                let data = scattered(&mut rng, &bytes);
                completions::write(device, offset, data, rng.random()).await.unwrap();
                model[range].copy_from_slice(&bytes);
            }
            2 => {
                completions::discard(device, offset, len).await.unwrap();
                model[range].fill(0);
            }
            3 => {
                completions::write_zeroes(device, offset, len).await.unwrap();
                model[range].fill(0);
            }
            4 => completions::flush(device).await.unwrap(),
            _ => {
                let read = completions::read(device, offset, len).await.unwrap();
                assert!(*read.to_contiguous() == model[range], "read of {len} at {offset}");
            }
        }
    }
    for (at, part) in model.chunks(1 << 20).enumerate() {
        let offset = at as u64 * (1 << 20);
        let read = completions::read(device, offset, part.len() as u64).await.unwrap();
        assert!(*read.to_contiguous() == *part);
    }
}

#[tokio::test]
async fn memory_matches_flat_bytes() {
    let device = ram(SIZE, 512, Pool::new()).unwrap();
    matches_flat_bytes(&device, 1).await;
}

#[tokio::test]
async fn a_file_matches_flat_bytes_and_keeps_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    let device = file(&path, &options(Some(SIZE)), Pool::new()).unwrap();
    matches_flat_bytes(&device, 2).await;
    let last = SIZE - 512;
    completions::write(&device, last, Buf::copy_from(&[7; 512]).into(), true).await.unwrap();
    drop(device);
    let device = file(&path, &options(None), Pool::new()).unwrap();
    assert_eq!(device.info().capacity, SIZE);
    let read = completions::read(&device, last, 512).await.unwrap();
    assert_eq!(*read.to_contiguous(), [7; 512]);
}

#[tokio::test]
async fn blocks_of_4096_match_flat_bytes() {
    let dir = tempfile::tempdir().unwrap();
    matches_flat_bytes(&ram(SIZE, 4096, Pool::new()).unwrap(), 3).await;
    let options = FileOptions { block_len: 4096, ..options(Some(SIZE)) };
    let device = file(&dir.path().join("volume"), &options, Pool::new()).unwrap();
    matches_flat_bytes(&device, 4).await;
}

/// The requests of this test are cut into buffers at any byte, which direct I/O cannot take.
#[tokio::test]
async fn a_file_without_page_cache_matches_flat_bytes() {
    let dir = tempfile::tempdir().unwrap();
    for (index, sync) in [(0, false), (1, true)] {
        let path = dir.path().join(index.to_string());
        let direct = FileOptions { direct: true, sync, block_len: 4096, ..options(Some(SIZE)) };
        let device = file(&path, &direct, Pool::new()).unwrap();
        matches_flat_bytes(&device, 5 + index).await;
        drop(device);
        let device = file(&path, &options(None), Pool::new()).unwrap();
        assert_eq!(device.info().capacity, SIZE);
    }
}

fn by_ring(size: Option<u64>) -> FileOptions {
    FileOptions { io: Some(IoMethod::Uring), block_len: 4096, ..options(size) }
}

#[tokio::test]
async fn a_file_by_io_uring_matches_flat_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let ways = [(false, false), (true, false), (false, true), (true, true)];
    for ((direct, sync), seed) in ways.into_iter().zip(7..) {
        let path = dir.path().join(seed.to_string());
        let given = FileOptions { direct, sync, ..by_ring(Some(SIZE)) };
        let backing = Backing::file(&path, &given, Pool::new()).unwrap();
        assert_eq!(backing.io_method(), Some(IoMethod::Uring));
        matches_flat_bytes(backing.device(), seed).await;
    }
}

#[test]
fn what_passes_the_page_cache_by_uses_io_uring() {
    let dir = tempfile::tempdir().unwrap();
    for (direct, asked, method) in [
        (true, None, IoMethod::Uring),
        (false, None, IoMethod::Threads),
        (true, Some(IoMethod::Threads), IoMethod::Threads),
        (false, Some(IoMethod::Uring), IoMethod::Uring),
    ] {
        let given = FileOptions { direct, io: asked, ..by_ring(Some(SIZE)) };
        let backing = Backing::file(&dir.path().join("lun"), &given, Pool::new()).unwrap();
        assert_eq!(backing.io_method(), Some(method), "direct {direct}, asked {asked:?}");
    }
}

/// More than the kernel is given at once, of them many that are to be stable, in lists of parts.
#[tokio::test]
async fn a_ring_takes_more_than_it_has_room_for() {
    const COUNT: u64 = 2000;
    let dir = tempfile::tempdir().unwrap();
    for (direct, threads) in [(false, 2), (true, 2), (true, 0)] {
        let given = FileOptions { direct, threads, ..by_ring(Some(COUNT * 8192)) };
        let backing = Backing::file(&dir.path().join("lun"), &given, Pool::new()).unwrap();
        let device = backing.device();
        let (queue, mut ends) = completions::CompletionQueue::channel();
        let bytes = |number: u64| [u8::try_from(number % 251).unwrap(); 4096];
        for number in 0..COUNT {
            let data: SgList = [Buf::copy_from(&bytes(number)), Buf::copy_from(&bytes(number + 1))]
                .into_iter()
                .collect();
            let flags = netraid_block::RequestFlags { fua: number % 3 == 0, ..Default::default() };
            let completion = queue.completion(number);
            let (op, offset, len) = (netraid_block::Op::Write, number * 8192, 8192);
            device.submit(netraid_block::Request { op, offset, len, flags, data, completion });
        }
        for _ in 0..COUNT {
            ends.recv().await.unwrap().1.unwrap();
        }
        for number in 0..COUNT {
            let read = completions::read(device, number * 8192, 8192).await.unwrap();
            assert_eq!(*read.to_contiguous(), [bytes(number), bytes(number + 1)].concat());
        }
    }
}

/// The handle goes while requests are under way: they end, and then the file is free.
#[tokio::test]
async fn a_ring_that_is_dropped_ends_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lun");
    let (queue, mut ends) = completions::CompletionQueue::channel();
    for round in 0..20 {
        let given = FileOptions { direct: true, ..by_ring(Some(SIZE)) };
        let device = file(&path, &given, Pool::new()).unwrap();
        for number in 0..100 {
            let data = Buf::copy_from(&[round; 4096]).into();
            let flags = netraid_block::RequestFlags { fua: number % 7 == 0, ..Default::default() };
            let (op, offset, len) = (netraid_block::Op::Write, number * 4096, 4096);
            let completion = queue.completion(number);
            device.submit(netraid_block::Request { op, offset, len, flags, data, completion });
        }
        drop(device);
        let mut count = 0;
        while let Some((_, result)) = ends.take() {
            result.unwrap();
            count += 1;
        }
        assert_eq!(count, 100, "round {round}: all have ended before the file is free");
    }
    let device = file(&path, &options(None), Pool::new()).unwrap();
    let read = completions::read(&device, 0, 100 * 4096).await.unwrap();
    assert!(read.to_contiguous().iter().all(|byte| *byte == 19));
}

/// The kernel answers such a read in part, or with nothing.
#[tokio::test]
async fn a_file_that_was_cut_fails_to_be_read_by_a_ring() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lun");
    let device = file(&path, &by_ring(Some(SIZE)), Pool::new()).unwrap();
    let data = Buf::copy_from(&[1; 8192]).into();
    completions::write(&device, 0, data, true).await.unwrap();
    File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    for (offset, len) in [(0, 8192), (4096, 4096)] {
        let error = completions::read(&device, offset, len).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Medium, "{error}");
    }
    let read = completions::read(&device, 0, 4096).await.unwrap();
    assert_eq!(*read.to_contiguous(), [1; 4096]);
}

#[test]
fn only_a_file_whose_writes_are_stable_has_no_volatile_cache() {
    let dir = tempfile::tempdir().unwrap();
    let cache = |direct, sync| {
        let path = dir.path().join(format!("{direct} {sync}"));
        let options = FileOptions { direct, sync, block_len: 4096, ..options(Some(SIZE)) };
        file(&path, &options, Pool::new()).unwrap().info().volatile_cache
    };
    assert!(cache(false, false));
    assert!(cache(true, false), "the disk behind it has a cache of its own");
    assert!(!cache(false, true));
    assert!(!cache(true, true));
    assert!(!ram(SIZE, 512, Pool::new()).unwrap().info().volatile_cache);
}

#[tokio::test]
async fn used_bytes_follow_writes_and_discards() {
    let dir = tempfile::tempdir().unwrap();
    let in_file = Backing::file(&dir.path().join("volume"), &options(Some(SIZE)), Pool::new());
    for backing in [in_file.unwrap(), Backing::ram(SIZE, 512, false, Pool::new()).unwrap()] {
        let device = backing.device();
        assert!(backing.used_bytes().unwrap() < SIZE / 2, "a new volume is sparse");
        let data = Buf::copy_from(&vec![1; 2 << 20]);
        completions::write(device, 0, data.into(), true).await.unwrap();
        let used = backing.used_bytes().unwrap();
        assert!(used >= 2 << 20);
        completions::discard(device, 0, 1 << 20).await.unwrap();
        assert!(backing.used_bytes().unwrap() <= used - (1 << 20));
        completions::discard(device, 1 << 20, SIZE - (1 << 20)).await.unwrap();
        assert!(backing.used_bytes().unwrap() < SIZE / 2);
    }
}

#[tokio::test]
async fn zeroes_give_space_back_unless_they_are_to_keep_it() {
    let dir = tempfile::tempdir().unwrap();
    let backing = Backing::file(&dir.path().join("volume"), &options(Some(SIZE)), Pool::new());
    let backing = backing.unwrap();
    let device = backing.device();
    let data = Buf::copy_from(&vec![1; 1 << 20]);
    completions::write(device, 0, data.into(), true).await.unwrap();
    let keep = netraid_block::RequestFlags { no_unmap: true, fua: true };
    let op = netraid_block::Op::WriteZeroes;
    completions::request(device, op, 0, 2 << 20, keep, SgList::new()).await.unwrap();
    assert!(backing.used_bytes().unwrap() >= 2 << 20, "space for all of it is kept");
    let read = completions::read(device, 0, 1 << 20).await.unwrap();
    assert!(read.to_contiguous().iter().all(|byte| *byte == 0));
    completions::write_zeroes(device, 0, 2 << 20).await.unwrap();
    assert!(backing.used_bytes().unwrap() < 1 << 20);
}

/// What is behind the end of a volume that shrank is gone, and is zeros when it grows again.
async fn is_resized(mut backing: Backing) {
    let small = backing.device().clone();
    let data = |byte| Buf::copy_from(&[byte; 512]).into();
    completions::write(&small, SIZE - 512, data(7), false).await.unwrap();
    let large = backing.resize(SIZE * 2, Shrink::Refuse).unwrap();
    assert_eq!(large.info().capacity, SIZE * 2);
    completions::write(&large, SIZE * 2 - 512, data(8), false).await.unwrap();
    let read = completions::read(&large, SIZE - 512, 512).await.unwrap();
    assert_eq!(*read.to_contiguous(), [7; 512]);
    completions::write(&small, 0, data(9), false).await.unwrap();
    let read = completions::read(&large, 0, 512).await.unwrap();
    assert_eq!(*read.to_contiguous(), [9; 512], "the same bytes in both");

    let refused = backing.resize(SIZE, Shrink::Refuse).unwrap_err();
    assert!(matches!(refused, BackingError::Shrink { .. }), "{refused}");
    let refused = backing.resize(SIZE + 100, Shrink::Allow).unwrap_err();
    assert!(matches!(refused, BackingError::Size { .. }), "{refused}");
    assert_eq!(backing.device().info().capacity, SIZE * 2, "as before");

    let part = backing.resize(1 << 20, Shrink::Allow).unwrap();
    let past = completions::read(&part, 1 << 20, 512).await.unwrap_err();
    assert_eq!(past.kind(), ErrorKind::OutOfRange);
    let again = backing.resize(SIZE * 2, Shrink::Refuse).unwrap();
    for at in [SIZE - 512, SIZE * 2 - 512] {
        let read = completions::read(&again, at, 512).await.unwrap();
        assert_eq!(*read.to_contiguous(), [0; 512]);
    }
    let read = completions::read(&again, 0, 512).await.unwrap();
    assert_eq!(*read.to_contiguous(), [9; 512]);
}

#[tokio::test]
async fn memory_is_resized() {
    is_resized(Backing::ram(SIZE, 512, false, Pool::new()).unwrap()).await;
}

#[tokio::test]
async fn a_file_is_resized() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    is_resized(Backing::file(&path, &options(Some(SIZE)), Pool::new()).unwrap()).await;
    assert_eq!(path.metadata().unwrap().len(), SIZE * 2);
}

#[tokio::test]
async fn a_device_that_is_longer_than_its_file_writes_nothing_behind_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    let mut backing = Backing::file(&path, &options(Some(SIZE)), Pool::new()).unwrap();
    let stale = backing.device().clone();
    backing.resize(1 << 20, Shrink::Allow).unwrap();
    let data = Buf::copy_from(&[1; 1024]).into();
    let error = completions::write(&stale, (1 << 20) - 512, data, false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    assert_eq!(path.metadata().unwrap().len(), 1 << 20);
}

#[tokio::test]
async fn a_growth_that_cannot_be_made_stable_leaves_the_file_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    let mut backing = Backing::file(&path, &options(Some(SIZE)), Pool::new()).unwrap();
    let Kind::File(workers) = &backing.kind else { panic!("no file") };
    let fails = |_: &File| Err(io::ErrorKind::StorageFull.into());
    let error = set_len(&workers.store, SIZE, SIZE * 2, fails).unwrap_err().to_string();
    assert!(error.contains(&format!("has {SIZE} bytes as before")), "{error}");
    assert_eq!(path.metadata().unwrap().len(), SIZE);
    let device = backing.device();
    let data = || Buf::copy_from(&[1; 512]).into();
    completions::write(device, SIZE - 512, data(), false).await.unwrap();
    assert!(completions::flush(device).await.is_err(), "nothing is called stable any more");
    let larger = backing.resize(SIZE * 2, Shrink::Refuse).unwrap();
    completions::write(&larger, SIZE * 2 - 512, data(), false).await.unwrap();
}

#[test]
fn a_shrinkage_that_cannot_be_made_stable_leaves_the_size_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    let file::Opened { store, .. } = file::open(&path, &options(Some(SIZE)), Pool::new()).unwrap();
    let fails = |_: &File| Err(io::ErrorKind::StorageFull.into());
    set_len(&store, SIZE, 4096, fails).unwrap_err();
    assert_eq!(path.metadata().unwrap().len(), SIZE);
}

#[test]
fn a_size_that_can_be_neither_kept_nor_restored_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    drop(file(&path, &options(Some(SIZE)), Pool::new()).unwrap());
    let file::Opened { store, .. } = file::open(&path, &options(None), Pool::new()).unwrap();
    // No file can have this size.
    let fails = |_: &File| Err(io::ErrorKind::StorageFull.into());
    let error = set_len(&store, u64::MAX, SIZE * 2, fails).unwrap_err().to_string();
    assert!(error.contains(&format!("left with {}", SIZE * 2)), "{error}");
}

#[test]
fn a_file_that_cannot_be_used_as_asked_for_is_not_made() {
    // Direct I/O in blocks that the file system's disk does not take, if it is such a one.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("volume");
    let direct = FileOptions { direct: true, ..options(Some(SIZE)) };
    if Backing::file(&path, &direct, Pool::new()).is_err() {
        assert!(path.metadata().map_or(0, |found| found.len()) == 0, "a file of that size is left");
        drop(file(&path, &options(Some(SIZE * 2)), Pool::new()).unwrap());
    }
}

#[test]
fn a_read_only_file_is_not_resized() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    drop(file(&path, &options(Some(SIZE)), Pool::new()).unwrap());
    let read_only = FileOptions { read_only: true, ..options(None) };
    let mut backing = Backing::file(&path, &read_only, Pool::new()).unwrap();
    let error = backing.resize(SIZE * 2, Shrink::Refuse).unwrap_err();
    assert!(matches!(error, BackingError::ReadOnly { .. }), "{error}");
    assert_eq!(path.metadata().unwrap().len(), SIZE);
}

#[test]
fn what_is_no_block_device_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    let open = |path: &Path| Backing::disk(path, &DiskOptions::default(), Pool::new());
    let missing = open(&path).unwrap_err();
    assert!(matches!(missing, BackingError::MissingDisk { .. }), "{missing}");
    std::fs::write(&path, [0; 4096]).unwrap();
    let is_file = open(&path).unwrap_err();
    assert!(matches!(is_file, BackingError::NotADisk { .. }), "{is_file}");
    let is_null = open(Path::new("/dev/null")).unwrap_err();
    assert!(matches!(is_null, BackingError::NotADisk { .. }), "{is_null}");
}

#[tokio::test]
async fn discarded_space_goes_back_to_the_file_system() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    let device = file(&path, &options(Some(SIZE)), Pool::new()).unwrap();
    let used = || std::fs::metadata(&path).unwrap().blocks() * 512;
    assert!(used() < SIZE / 2, "a new file is sparse");
    let data = Buf::copy_from(&vec![1; 2 << 20]);
    completions::write(&device, 0, data.into(), true).await.unwrap();
    assert!(used() >= 2 << 20);
    completions::discard(&device, 0, SIZE).await.unwrap();
    assert!(used() < SIZE / 2);
}

#[test]
fn wrong_files_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    let open = |path: &Path, size| file(path, &options(size), Pool::new());
    assert!(matches!(open(&path, None), Err(BackingError::Missing { .. })));
    assert!(matches!(open(dir.path(), Some(SIZE)), Err(BackingError::NotAFile { .. })));
    assert!(matches!(open(&path, Some(1000)), Err(BackingError::Size { size: 1000, .. })));
    assert!(matches!(open(&path, Some(0)), Err(BackingError::Size { .. })));
    let held = open(&path, Some(SIZE)).unwrap();
    let error = open(&path, None).unwrap_err();
    assert!(matches!(error, BackingError::InUse { .. }));
    assert!(error.to_string().contains(&path.display().to_string()));
    drop(held);
    let other = open(&path, Some(SIZE * 2)).unwrap_err();
    assert!(matches!(other, BackingError::OtherSize { found: SIZE, .. }), "{other}");
    std::fs::write(&path, [0; 700]).unwrap();
    assert!(matches!(open(&path, None), Err(BackingError::Size { size: 700, .. })));
    assert!(matches!(ram(SIZE, 520, Pool::new()), Err(BackingError::BlockLen { .. })));
}

#[tokio::test]
async fn a_read_only_file_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    drop(file(&path, &options(Some(SIZE)), Pool::new()).unwrap());
    let read_only = FileOptions { read_only: true, ..options(None) };
    let first = file(&path, &read_only, Pool::new()).unwrap();
    let second = file(&path, &read_only, Pool::new()).unwrap();
    assert!(completions::read(&second, 0, 512).await.is_ok());
    let data = Buf::copy_from(&[1; 512]).into();
    let error = completions::write(&first, 0, data, false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
}

#[tokio::test]
async fn a_file_cut_short_is_a_medium_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    let device = file(&path, &options(Some(SIZE)), Pool::new()).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let error = completions::read(&device, 8192, 512).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Medium);
    assert!(error.to_string().contains("volume"), "{error}");
}

/// The runs of a whole device, put together from answers that may end early.
async fn map_of(device: &Device) -> Vec<(u64, bool)> {
    let (mut whole, mut at) = (Vec::<(u64, bool)>::new(), 0);
    while at < device.info().capacity {
        let found = completions::extents(device, at, device.info().capacity - at).await.unwrap();
        for run in found.runs() {
            match whole.last_mut() {
                Some(last) if last.1 == run.mapped => last.0 += run.len,
                _ => whole.push((run.len, run.mapped)),
            }
            at += run.len;
        }
    }
    whole
}

async fn maps_what_was_written(device: &Device) {
    assert_eq!(map_of(device).await, [(SIZE, false)], "nothing was written");
    let data = |len| Buf::copy_from(&vec![1; len]).into();
    completions::write(device, 8192, data(512), false).await.unwrap();
    completions::write(device, 1 << 20, data(8192), true).await.unwrap();
    let written = [
        (8192, false),
        (4096, true),
        ((1 << 20) - 12288, false),
        (8192, true),
        ((2 << 20) - 8192, false),
    ];
    assert_eq!(map_of(device).await, written);
    let part = completions::extents(device, 8192 + 3584, 1024).await.unwrap();
    let runs: Vec<_> = part.runs().iter().map(|run| (run.len, run.mapped)).collect();
    assert_eq!(runs, [(512, true), (512, false)], "a question may begin within a page");
    completions::discard(device, 1 << 20, 4096).await.unwrap();
    completions::discard(device, 8192, 3584).await.unwrap();
    let left = [
        (8192, false),
        (4096, true),
        ((1 << 20) - 8192, false),
        (4096, true),
        ((2 << 20) - 8192, false),
    ];
    assert_eq!(map_of(device).await, left, "a part of a page stays");
    completions::discard(device, 0, SIZE).await.unwrap();
    assert_eq!(map_of(device).await, [(SIZE, false)]);
}

#[tokio::test]
async fn memory_is_mapped_by_the_block() {
    let device = ram(SIZE, 512, Pool::new()).unwrap();
    assert_eq!(map_of(&device).await, [(SIZE, false)], "nothing was written");
    let data = Buf::copy_from(&vec![1; 2 << 20]).into();
    completions::write(&device, 512, data, false).await.unwrap();
    let rest = SIZE - (2 << 20) - 512;
    assert_eq!(map_of(&device).await, [(512, false), (2 << 20, true), (rest, false)]);
    let part = completions::extents(&device, 2 << 20, 1024).await.unwrap();
    let runs: Vec<_> = part.runs().iter().map(|run| (run.len, run.mapped)).collect();
    assert_eq!(runs, [(512, true), (512, false)]);
    completions::discard(&device, 33280, 512).await.unwrap();
    let left =
        [(512, false), (32768, true), (512, false), ((2 << 20) - 33280, true), (rest, false)];
    assert_eq!(map_of(&device).await, left);
    let read = completions::read(&device, 32768, 1536).await.unwrap().to_contiguous();
    assert_eq!((read[511], read[512], read[1023], read[1024]), (1, 0, 0, 1));
    completions::discard(&device, 0, SIZE).await.unwrap();
    assert_eq!(map_of(&device).await, [(SIZE, false)]);
}

#[tokio::test]
async fn a_question_about_much_memory_is_answered_in_parts() {
    let device = ram(1 << 40, 512, Pool::new()).unwrap();
    let first = completions::extents(&device, 0, 1 << 40).await.unwrap();
    assert_eq!(first.runs().len(), 1);
    assert!(!first.runs()[0].mapped);
    assert!(first.len() < 1 << 40);
}

#[tokio::test]
async fn a_file_is_mapped_as_its_file_system_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    maps_what_was_written(&file(&path, &options(Some(SIZE)), Pool::new()).unwrap()).await;
}

#[tokio::test]
async fn a_long_map_is_answered_in_parts() {
    let device = ram(8 << 20, 512, Pool::new()).unwrap();
    for page in (0..2048).step_by(2) {
        let data = Buf::copy_from(&[1; 512]).into();
        completions::write(&device, page * 4096, data, false).await.unwrap();
    }
    let first = completions::extents(&device, 0, 8 << 20).await.unwrap();
    assert_eq!(first.runs().len(), netraid_block::extents::RUNS_MAX);
    assert_eq!(map_of(&device).await.len(), 2048);
}

#[tokio::test]
async fn zeroes_that_keep_their_space_are_mapped_in_memory() {
    let device = ram(SIZE, 512, Pool::new()).unwrap();
    let keep = netraid_block::RequestFlags { no_unmap: true, fua: false };
    let op = netraid_block::Op::WriteZeroes;
    completions::request(&device, op, 4096, 4096, keep, SgList::new()).await.unwrap();
    assert_eq!(map_of(&device).await[..2], [(4096, false), (4096, true)]);
    assert!(
        completions::read(&device, 4096, 4096)
            .await
            .unwrap()
            .to_contiguous()
            .iter()
            .all(|b| *b == 0)
    );
}
