//! The FUSE export through the kernel. Needs /dev/fuse and root; passes with a note without.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    reason = "a test fails by panic"
)]

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    ops::Range,
    os::unix::fs::FileExt,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use netraid_block::{
    BlockDevice, Complete, Completion, Device, DeviceInfo, ErrorKind, IoError, Op, Pool, Request,
    SgList,
};
use netraid_engine::backings::ram;
use netraid_export::{
    InUse, Users,
    fuse::{FuseError, FuseMount},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rustix::fs::{FallocateFlags, fallocate};
use tokio::sync::oneshot;

const SIZE: u64 = 16 << 20;
/// Longer than an unmount that is held up may take.
const END_TIMEOUT: Duration = Duration::from_secs(15);
const EIO: i32 = 5;
const ESHUTDOWN: i32 = 108;

/// Memory that counts its flushes.
struct Counted(Device, Arc<AtomicUsize>);

impl BlockDevice for Counted {
    fn info(&self) -> DeviceInfo {
        self.0.info().clone()
    }

    fn submit(&self, request: Request) {
        if request.op == Op::Flush {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
        self.0.submit(request);
    }
}

fn counted() -> (Device, Arc<AtomicUsize>) {
    let flushes = Arc::new(AtomicUsize::new(0));
    let memory = memory();
    (Device::new(Arc::new(Counted(memory, flushes.clone()))), flushes)
}

/// Memory of which one block cannot be written, and which writes it was given.
struct Broken(Device, Arc<Mutex<Vec<Range<u64>>>>);

const BROKEN_AT: u64 = 600 << 10;
const WRITES: usize = 200;

impl BlockDevice for Broken {
    fn info(&self) -> DeviceInfo {
        self.0.info().clone()
    }

    fn submit(&self, request: Request) {
        let range = request.offset..request.offset + request.len;
        if request.op == Op::Write {
            self.1.lock().unwrap().push(range.clone());
            if range.contains(&BROKEN_AT) {
                return request.completion.finish(Err(ErrorKind::Medium.into()));
            }
        }
        self.0.submit(request);
    }
}

/// Memory that does no long read before so many are wanted.
struct Together(Device, Mutex<Vec<Request>>);

const READERS: usize = 4;
const LONG_LEN: u64 = 256 << 10;

impl BlockDevice for Together {
    fn info(&self) -> DeviceInfo {
        self.0.info().clone()
    }

    fn submit(&self, request: Request) {
        if request.op != Op::Read || request.len != LONG_LEN {
            return self.0.submit(request);
        }
        let mut held = self.1.lock().unwrap();
        held.push(request);
        if held.len() == READERS {
            held.drain(..).for_each(|request| self.0.submit(request));
        }
    }
}

/// Memory that answers reads in pieces of this many bytes.
struct Pieces(Device, usize);

struct Cut(Mutex<Option<Completion>>, usize);

impl Complete for Cut {
    fn complete(&self, _tag: u64, result: Result<SgList, IoError>) {
        let (completion, len) = (self.0.lock().unwrap().take().unwrap(), self.1);
        completion.finish(result.map(|data| {
            let starts = (0..data.len()).step_by(len);
            let mut pieces = SgList::new();
            starts.for_each(|at| pieces.append(data.slice(at..data.len().min(at + len))));
            pieces
        }));
    }
}

impl BlockDevice for Pieces {
    fn info(&self) -> DeviceInfo {
        self.0.info().clone()
    }

    fn submit(&self, mut request: Request) {
        if request.op == Op::Read {
            let whole = request.completion;
            let cut = Arc::new(Cut(Mutex::new(Some(whole)), self.1));
            request.completion = Completion::new(cut, 0);
        }
        self.0.submit(request);
    }
}

fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && File::open("/dev/fuse").is_ok();
    if !can {
        eprintln!("not run: mounting needs root and /dev/fuse");
    }
    can
}

fn memory() -> Device {
    ram(SIZE, 512, Pool::new()).unwrap()
}

/// Mounts a volume, runs `client` on its file, and unmounts.
async fn mounted(device: Device, client: impl FnOnce(PathBuf) + Send + 'static) {
    let dir = tempfile::tempdir().unwrap();
    let mount =
        FuseMount::mount(dir.path(), device, "volume", Pool::new(), Users::default()).unwrap();
    let file = mount.file().to_path_buf();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(mount.run(async move { drop(stopped.await) }));
    tokio::task::spawn_blocking(move || client(file)).await.unwrap();
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "unmounted");
}

#[tokio::test]
async fn the_file_is_the_volume_at_any_alignment() {
    if !can_mount() {
        return;
    }
    mounted(memory(), |path| {
        assert_eq!(fs::metadata(&path).unwrap().len(), SIZE);
        let names: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert_eq!(names.len(), 1);
        let file = File::options().read(true).write(true).truncate(true).open(&path).unwrap();
        let mut rng = StdRng::seed_from_u64(5);
        let mut model = vec![0; usize::try_from(SIZE).unwrap()];
        for _ in 0..300 {
            let start = rng.random_range(0..model.len());
            let len = rng.random_range(1..=(model.len() - start).min(1_500_000));
            let range = start..start + len;
            let (at, count) = (start as u64, len as u64);
            match rng.random_range(0..4) {
                0 | 1 => {
                    let mut data = vec![0; len];
                    rng.fill(&mut data[..]);
                    file.write_all_at(&data, at).unwrap();
                    model[range].copy_from_slice(&data);
                }
                2 => {
                    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    fallocate(&file, how, at, count).unwrap();
                    model[range].fill(0);
                }
                _ => {
                    let mut data = vec![1; len];
                    file.read_exact_at(&mut data, at).unwrap();
                    assert!(data == model[range]);
                }
            }
        }
        file.sync_all().unwrap();
        assert!(fs::read(&path).unwrap() == model);
        // As on a block device: the end stays where it is.
        assert_eq!(file.write_at(&[7; 100], SIZE - 40).unwrap(), 40);
        assert!(file.write_at(&[7; 100], SIZE).is_err());
        assert_eq!(file.read_at(&mut [0; 100], SIZE).unwrap(), 0);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, hole, SIZE + 4096, 4096).unwrap();
        fallocate(&file, hole, SIZE - 100, 4096).unwrap();
        assert!(fallocate(&file, FallocateFlags::ZERO_RANGE, SIZE - 100, 4096).is_err());
        assert!(file.set_len(SIZE * 2).is_err());
        assert_eq!(fs::metadata(&path).unwrap().len(), SIZE);
    })
    .await;
}

#[tokio::test]
async fn a_long_write_alone_is_handed_over_in_parts_and_fails_with_any_of_them() {
    if !can_mount() {
        return;
    }
    let writes = Arc::new(Mutex::new(Vec::new()));
    let device = Device::new(Arc::new(Broken(memory(), writes.clone())));
    mounted(device, |path| {
        let file = File::options().read(true).write(true).open(path).unwrap();
        // Whole pages, or the kernel cuts it.
        let mut data = Pool::new().get(1 << 20);
        data.fill(2);
        let error = file.write_at(&data, 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(EIO));
        // The place of the failed one serves again, with no error left in it; and a write that follows a
        // reply at once is alone, too.
        for _ in 0..WRITES {
            file.write_all_at(&data, 1 << 20).unwrap();
        }
        let mut read = vec![0; 1 << 20];
        file.read_exact_at(&mut read, 1 << 20).unwrap();
        assert!(read.iter().all(|byte| *byte == 2));
    })
    .await;
    let writes = writes.lock().unwrap();
    let second: Vec<_> = writes.iter().filter(|range| range.start >= 1 << 20).collect();
    assert!(second.iter().all(|range| range.start % (256 << 10) == 0), "{second:?}");
    assert!(second.iter().all(|range| range.end - range.start == 256 << 10), "{second:?}");
    assert_eq!(second.len(), 4 * WRITES);
}

#[tokio::test]
async fn long_reads_that_end_beside_others_have_their_data() {
    if !can_mount() {
        return;
    }
    let device = Device::new(Arc::new(Together(memory(), Mutex::default())));
    mounted(device, |path| {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mut data = vec![0; usize::try_from(SIZE).unwrap()];
        StdRng::seed_from_u64(8).fill(&mut data[..]);
        file.write_all_at(&data, 0).unwrap();
        std::thread::scope(|scope| {
            for reader in 0..READERS {
                let (file, data) = (&file, &data);
                scope.spawn(move || {
                    // Whole pages, or the kernel cuts it.
                    let mut read = Pool::new().get(LONG_LEN as usize);
                    for round in 0..100 {
                        let at = (round * 7 + reader * 13) % 60 * read.len();
                        file.read_exact_at(&mut read, at as u64).unwrap();
                        assert!(read[..] == data[at..at + read.len()], "round {round}");
                    }
                });
            }
        });
    })
    .await;
}

#[tokio::test]
async fn reads_that_come_in_pieces_are_whole() {
    if !can_mount() {
        return;
    }
    // Of 1 MiB: 4 pieces, more than have their place at once, and more than one call of the kernel takes.
    for len in [256 << 10, 7_000, 1_000] {
        let device = Device::new(Arc::new(Pieces(memory(), len)));
        mounted(device, move |path| {
            let file = File::options().read(true).write(true).open(path).unwrap();
            let mut data = vec![0; usize::try_from(SIZE).unwrap()];
            StdRng::seed_from_u64(9).fill(&mut data[..]);
            file.write_all_at(&data, 0).unwrap();
            std::thread::scope(|scope| {
                for reader in 0..READERS {
                    let (file, data) = (&file, &data);
                    scope.spawn(move || {
                        // Whole pages, or the kernel cuts it.
                        let mut read = Pool::new().get(1 << 20);
                        for round in 0..20 {
                            let at = (round * 700_001 + reader * 13) % (data.len() - read.len());
                            file.read_exact_at(&mut read, at as u64).unwrap();
                            assert!(read[..] == data[at..at + read.len()], "round {round}");
                        }
                        // The end of the file is in the middle of a request.
                        let mut end = Pool::new().get(1 << 20);
                        let at = data.len() - 300_001;
                        assert_eq!(file.read_at(&mut end, at as u64).unwrap(), 300_001);
                        assert!(end[..300_001] == data[at..]);
                    });
                }
            });
        })
        .await;
    }
}

#[tokio::test]
async fn concurrent_writers_of_one_block_all_count() {
    if !can_mount() {
        return;
    }
    mounted(memory(), |path| {
        let threads: Vec<_> = (0..8_u64)
            .map(|owner| {
                let path = path.clone();
                std::thread::spawn(move || {
                    let file = File::options().write(true).open(path).unwrap();
                    for place in 0..200 {
                        let at = (place * 8 + owner) * 50;
                        file.write_all_at(&[owner as u8 + 1; 50], at).unwrap();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let bytes = fs::read(&path).unwrap();
        for (index, piece) in bytes[..200 * 8 * 50].chunks(50).enumerate() {
            assert_eq!(piece, [(index % 8) as u8 + 1; 50]);
        }
    })
    .await;
}

#[tokio::test]
async fn a_file_that_stays_open_is_cut_off_after_a_flush() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (device, flushes) = counted();
    let mount =
        FuseMount::mount(dir.path(), device, "volume", Pool::new(), Users::default()).unwrap();
    let path = mount.file().to_path_buf();
    let open = move || File::options().read(true).write(true).open(path).unwrap();
    let file = tokio::task::spawn_blocking(open).await.unwrap();
    let ended = tokio::time::timeout(END_TIMEOUT, mount.run(async {})).await;
    ended.unwrap().unwrap();
    assert_eq!(flushes.load(Ordering::Relaxed), 1);
    let late = move || (file.write_at(&[1; 512], 0), file.sync_all());
    let (written, synced) = tokio::task::spawn_blocking(late).await.unwrap();
    assert_eq!(written.unwrap_err().raw_os_error(), Some(EIO), "nothing would flush it");
    assert_eq!(synced.unwrap_err().raw_os_error(), Some(EIO));
}

#[tokio::test]
async fn whoever_has_the_file_open_uses_the_export() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let users = Users::default();
    let mount = FuseMount::mount(dir.path(), memory(), "volume", Pool::new(), users.clone());
    let mount = mount.unwrap();
    let path = mount.file().to_path_buf();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(mount.run(async move { drop(stopped.await) }));
    let opened = path.clone();
    let open =
        move || (File::open(&opened).unwrap(), File::options().write(true).open(&opened).unwrap());
    let (reads, writes) = tokio::task::spawn_blocking(open).await.unwrap();
    assert_eq!(users.let_end(false), Err(InUse { open_files: 2, ..InUse::default() }));
    tokio::task::spawn_blocking(move || drop(reads)).await.unwrap();
    let copy = writes.try_clone().unwrap();
    tokio::task::spawn_blocking(move || drop(writes)).await.unwrap();
    assert!(users.let_end(false).is_err(), "a copy of the descriptor is left");
    tokio::task::spawn_blocking(move || drop(copy)).await.unwrap();
    // The kernel says so a moment later.
    tokio::time::timeout(END_TIMEOUT, users.nobody()).await.unwrap();
    assert_eq!(users.let_end(false), Ok(InUse::default()));
    let late = tokio::task::spawn_blocking(move || File::open(path)).await.unwrap();
    assert_eq!(late.unwrap_err().raw_os_error(), Some(ESHUTDOWN));
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_mount_that_another_namespace_holds_does_not_hold_up_the_end() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (device, flushes) = counted();
    let mount =
        FuseMount::mount(dir.path(), device, "volume", Pool::new(), Users::default()).unwrap();
    let script = "echo ready; read go; \
        dd if=/dev/zero of=$0 bs=512 count=1 conv=notrunc 2>/dev/null; echo $?";
    let mut holder = Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .arg(mount.file())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    if lines.next().is_none() {
        eprintln!("not run: mount namespaces are not allowed here");
        holder.wait().unwrap();
        return;
    }
    let ended = tokio::time::timeout(END_TIMEOUT, mount.run(async {})).await;
    ended.unwrap().unwrap();
    assert_eq!(flushes.load(Ordering::Relaxed), 1);
    holder.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "1", "a write that nothing would flush");
    holder.wait().unwrap();
}

#[test]
fn wrong_places_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let device = || ram(SIZE, 512, Pool::new()).unwrap();
    let missing = dir.path().join("missing");
    let error = FuseMount::mount(&missing, device(), "volume", Pool::new(), Users::default())
        .err()
        .unwrap();
    assert!(matches!(&error, FuseError::Directory { dir } if *dir == missing), "{error}");
    for name in ["", "a/b", ".", "..", "a\0b", "a\nb", &"x".repeat(256)] {
        let error = FuseMount::mount(dir.path(), device(), name, Pool::new(), Users::default())
            .err()
            .unwrap();
        assert!(matches!(error, FuseError::Name { .. }), "{error}");
    }
}
