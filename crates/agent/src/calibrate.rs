//! What the devices and the network of an agent do, measured while it does not run: requests of two
//! kinds in a file of its own, or in what is free of its disk, and bytes to and from a peer. Simple, and only
//! a part of what came out is given away. It says what there was at that time, and nothing of a device that slows down after hours of writing.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use netraid_block::narrow;
use netraid_cluster::{
    now,
    store::{OpenError, StoreError},
};
use netraid_control::units::Rate;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::{
    disk::{Disk, DiskError, Wanted},
    records::{self, Records},
};

/// Of what was measured, so much is counted on, in percent.
pub const COUNTED_PERCENT: u64 = 90;

/// How long each kind of request is measured.
const TERM: Duration = Duration::from_secs(4);
/// The file that is written and read, at most; and at most this part of what is free.
const FILE_LEN_MAX: u64 = 4 << 30;
const FREE_PART: u64 = 4;
/// Requests at a time.
const THREADS: usize = 4;
const LARGE_LEN: u64 = 1 << 20;
const SMALL_LEN: u64 = 64 << 10;
/// Connections to the peer at a time.
const STREAMS: usize = 4;
/// How long a peer may be silent.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);
/// What a connection asks of the peer.
const TAKE: u8 = b'T';
const GIVE: u8 = b'G';

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calibration {
    /// Of this structure: 1.
    pub version: u32,
    /// Milliseconds since 1970 at which it was measured.
    pub at_ms: u64,
    /// Whether the requests went around the page cache.
    pub direct: bool,
    /// Writes of 1 MiB one after the other, stable at the end.
    pub sequential_write: Rate,
    /// Reads of 1 MiB one after the other.
    pub sequential_read: Rate,
    /// Writes of 64 KiB here and there, stable at the end.
    pub scattered_write: Rate,
    /// Reads of 64 KiB here and there.
    pub scattered_read: Rate,
    /// To and from a peer, the lesser of both; none when there was none.
    pub network: Option<Rate>,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// A file or a connection.
    #[error("{what}: {source}")]
    Io {
        /// Which.
        what: String,
        /// What the system says.
        source: io::Error,
    },
    /// Too little to measure.
    #[error("{path}: {free} bytes are free, too few to measure anything")]
    Space {
        /// Where.
        path: String,
        /// How much is.
        free: u64,
    },
    /// The disk cannot be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The store cannot be opened: perhaps the agent runs.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// What was measured is not kept.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Calibration {
    /// What devices and network may be counted on for.
    #[must_use]
    pub fn capacity(&self) -> (Rate, Option<Rate>) {
        let Self { sequential_write, sequential_read, scattered_write, scattered_read, .. } = *self;
        let device = sequential_write.min(sequential_read).min(scattered_write).min(scattered_read);
        let counted = |rate: Rate| Rate((rate.0 / 100 * COUNTED_PERCENT).max(1));
        (counted(device), self.network.map(counted))
    }
}

/// Measures the file system of a directory, and the way to a peer if there is one, and keeps that, for an
/// agent that does not run now. Blocks for as long.
///
/// # Errors
/// When something cannot be read or written, or the agent of `state` runs.
pub async fn measure(
    directory: &Path,
    state: &Path,
    peer: Option<SocketAddr>,
) -> Result<Calibration, CalibrateError> {
    netraid_private::make_directory(directory).map_err(told(directory))?;
    // Nobody waits for figures that cannot be kept.
    let store = records::open(state)?;
    let mut measured = measure_file(directory)?;
    measured.network = peer.map(measure_network).transpose()?;
    records::put_calibration(&store, measured).await?;
    Ok(measured)
}

/// Measures a disk, and the way to a peer if there is one, and keeps that, for an agent that does not run
/// now. Only what no segment has is written; a disk that is new is formatted for the agent of `state`.
/// Blocks for as long.
///
/// # Errors
/// When something cannot be read or written, or the agent runs, or the disk is not its own.
pub async fn measure_disk(
    path: &Path,
    state: &Path,
    peer: Option<SocketAddr>,
) -> Result<Calibration, CalibrateError> {
    let store = records::open(state)?;
    let Records { agent, disk, .. } = records::load(&store).await?;
    let wanted = Wanted { agent, disk, new: rand::random(), force: false };
    let opened = Disk::open_path(path, wanted, netraid_engine::pool())?;
    if disk != Some(opened.id()) {
        records::put_disk(&store, opened.id()).await?;
    }
    let told = told(path);
    let mut options = File::options();
    let (file, direct) = open(options.read(true).write(true), path).map_err(&told)?;
    let (from, free) = opened.free_range();
    let mut measured = measure_range(path, file, direct, (from, free))?;
    measured.network = peer.map(measure_network).transpose()?;
    records::put_calibration(&store, measured).await?;
    Ok(measured)
}

/// Measures in a file that has no name any more when the first byte is written: it goes with this process.
fn measure_file(directory: &Path) -> Result<Calibration, CalibrateError> {
    let told = told(directory);
    let mut options = File::options();
    options.create_new(true).read(true).write(true).mode(0o600);
    let made = tempfile::Builder::new()
        .prefix("calibration-")
        .make_in(directory, |path| open(&options, path));
    let ((file, direct), name) = made.map_err(&told)?.into_parts();
    name.close().map_err(&told)?;
    let found = rustix::fs::fstatvfs(&file).map_err(|error| told(error.into()))?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    // Not all that is free, as somebody else may need it.
    let len = part_of(free / FREE_PART) * THREADS as u64;
    if len == 0 {
        return Err(CalibrateError::Space { path: directory.display().to_string(), free });
    }
    file.set_len(len).map_err(&told)?;
    measure_range(directory, file, direct, (0, len))
}

/// Bytes for each thread, where so many are free.
fn part_of(free: u64) -> u64 {
    FILE_LEN_MAX.min(free) / THREADS as u64 / LARGE_LEN * LARGE_LEN
}

/// Writes and reads in a range of a file that nobody uses: where it begins, and its length.
fn measure_range(
    path: &Path,
    file: File,
    direct: bool,
    (from, free): (u64, u64),
) -> Result<Calibration, CalibrateError> {
    let told = told(path);
    let part = part_of(free);
    if part == 0 {
        return Err(CalibrateError::Space { path: path.display().to_string(), free });
    }
    let file = Arc::new(file);
    let run = |kind| run(&file, kind).map_err(&told);
    // Only what was written is read: a hole is read quickly.
    let written = Arc::new([const { AtomicU64::new(0) }; THREADS]);
    let kind = |len, writes, scattered| Kind {
        len,
        writes,
        scattered,
        from,
        part,
        written: Arc::clone(&written),
    };
    Ok(Calibration {
        version: 1,
        at_ms: now().0,
        direct,
        sequential_write: run(kind(LARGE_LEN, true, false))?,
        sequential_read: run(kind(LARGE_LEN, false, false))?,
        scattered_write: run(kind(SMALL_LEN, true, true))?,
        scattered_read: run(kind(SMALL_LEN, false, true))?,
        network: None,
    })
}

/// Around the page cache, where the file system has a way.
fn open(options: &OpenOptions, path: &Path) -> io::Result<(File, bool)> {
    let mut direct = options.clone();
    direct.custom_flags(OFlags::DIRECT.bits().cast_signed());
    match direct.open(path) {
        Ok(file) => Ok((file, true)),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            Ok((options.open(path)?, false))
        }
        Err(error) => Err(error),
    }
}

#[derive(Debug, Clone)]
struct Kind {
    len: u64,
    writes: bool,
    scattered: bool,
    /// Where the first thread's begin.
    from: u64,
    /// Bytes of the file for each thread.
    part: u64,
    /// What of its part each thread has written from its beginning.
    written: Arc<[AtomicU64; THREADS]>,
}

fn run(file: &Arc<File>, kind: Kind) -> io::Result<Rate> {
    let begun = Instant::now();
    let threads = (0..THREADS).map(|number| {
        let (file, kind) = (Arc::clone(file), kind.clone());
        thread::spawn(move || requests(&file, &kind, number, begun + TERM))
    });
    let threads: Vec<_> = threads.collect();
    let mut bytes = 0;
    for thread in threads {
        let ended = thread.join().map_err(|_| io::Error::other("a thread ended early"))?;
        bytes += ended?;
    }
    if kind.writes {
        file.sync_all()?;
    }
    Ok(per_second(bytes, begun.elapsed()))
}

/// Requests of one thread, until it is time, or its part is written.
fn requests(file: &File, kind: &Kind, number: usize, end: Instant) -> io::Result<u64> {
    let pool = netraid_engine::pool();
    let mut buf = pool.get(narrow(kind.len));
    // Nothing that a device could leave out.
    rand::fill(&mut *buf);
    let (first, mut bytes) = (kind.from + number as u64 * kind.part, 0);
    let fills = kind.writes && !kind.scattered;
    let reach = if fills { kind.part } else { kind.written[number].load(Ordering::Acquire) };
    let places = reach / kind.len;
    let mut next = 0;
    while places > 0 && Instant::now() < end && !(fills && next == places) {
        let place = if kind.scattered { rand::random_range(0..places) } else { next % places };
        let offset = first + place * kind.len;
        if kind.writes {
            file.write_all_at(&buf, offset)?;
        } else {
            file.read_exact_at(&mut buf, offset)?;
        }
        (next, bytes) = (next + 1, bytes + kind.len);
    }
    if fills {
        kind.written[number].store(bytes, Ordering::Release);
    }
    Ok(bytes)
}

/// Serves measurements of the network to peers, one after the other, until the process ends. Whoever
/// reaches the address can make traffic: serve while measuring only.
///
/// # Errors
/// When it cannot be listened.
pub fn serve(
    address: SocketAddr,
    listening: impl FnOnce(SocketAddr),
) -> Result<(), CalibrateError> {
    let told = |source| CalibrateError::Io { what: address.to_string(), source };
    let listener = TcpListener::bind(address).map_err(told)?;
    listening(listener.local_addr().map_err(told)?);
    let busy = Arc::new(AtomicU64::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        if busy.fetch_add(1, Ordering::AcqRel) >= 2 * STREAMS as u64 {
            busy.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let busy = Arc::clone(&busy);
        thread::spawn(move || {
            if let Err(error) = answer(stream) {
                tracing::warn!("measuring the network: {error}");
            }
            busy.fetch_sub(1, Ordering::AcqRel);
        });
    }
    Ok(())
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE_LIMIT))?;
    stream.set_write_timeout(Some(SILENCE_LIMIT))?;
    let mut what = [0];
    stream.read_exact(&mut what)?;
    match what {
        [TAKE] => {
            let bytes = take(&mut stream)?;
            stream.write_all(&bytes.to_le_bytes())
        }
        [GIVE] => give(&mut stream, Instant::now() + TERM),
        _ => Err(io::Error::other("a peer that asks for something else")),
    }
}

/// The lesser of both directions.
fn measure_network(peer: SocketAddr) -> Result<Rate, CalibrateError> {
    let told = |source| CalibrateError::Io { what: peer.to_string(), source };
    let out = streams(peer, |mut stream| {
        stream.write_all(&[TAKE])?;
        give(&mut stream, Instant::now() + TERM)?;
        let mut taken = [0; 8];
        stream.read_exact(&mut taken)?;
        Ok(u64::from_le_bytes(taken))
    });
    let back = streams(peer, |mut stream| {
        stream.write_all(&[GIVE])?;
        take(&mut stream)
    });
    Ok(out.map_err(told)?.min(back.map_err(told)?))
}

fn streams(
    peer: SocketAddr,
    each: impl Fn(TcpStream) -> io::Result<u64> + Copy + Send + 'static,
) -> io::Result<Rate> {
    let begun = Instant::now();
    let threads = (0..STREAMS).map(|_| {
        thread::spawn(move || {
            let stream = TcpStream::connect_timeout(&peer, SILENCE_LIMIT)?;
            stream.set_read_timeout(Some(SILENCE_LIMIT))?;
            stream.set_write_timeout(Some(SILENCE_LIMIT))?;
            each(stream)
        })
    });
    let threads: Vec<_> = threads.collect();
    let mut bytes = 0;
    for thread in threads {
        let ended = thread.join().map_err(|_| io::Error::other("a thread ended early"))?;
        bytes += ended?;
    }
    Ok(per_second(bytes, begun.elapsed()))
}

fn give(stream: &mut TcpStream, end: Instant) -> io::Result<()> {
    let buf = vec![0x5a; 256 << 10];
    while Instant::now() < end {
        stream.write_all(&buf)?;
    }
    stream.shutdown(Shutdown::Write)
}

/// Takes bytes until there are no more, for a bounded time.
fn take(stream: &mut TcpStream) -> io::Result<u64> {
    let (mut buf, mut bytes, end) = (vec![0; 256 << 10], 0, Instant::now() + 2 * TERM);
    while Instant::now() < end {
        match stream.read(&mut buf)? {
            0 => break,
            len => bytes += len as u64,
        }
    }
    Ok(bytes)
}

fn per_second(bytes: u64, elapsed: Duration) -> Rate {
    let ms = elapsed.as_millis().max(1);
    // Clamped: no rate is larger.
    Rate(u64::try_from(u128::from(bytes) * 1000 / ms).unwrap_or(u64::MAX))
}

fn told(path: &Path) -> impl Fn(io::Error) -> CalibrateError + use<> {
    let path: PathBuf = path.to_owned();
    move |source| CalibrateError::Io { what: path.display().to_string(), source }
}
