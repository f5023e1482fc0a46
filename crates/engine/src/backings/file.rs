//! A volume in a sparse file of the host's file system.
//!
//! A read that the page cache can answer is answered at once; everything else is done by a few
//! threads of the backing's own, because a file system may block for as long as its disk does.
//! After a failed flush nothing more is called stable: what the page cache has dropped is not
//! known (the kernel marks failed pages clean), so flushes and FUA writes fail from then on.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{ErrorKind as FileErrorKind, IoSlice, IoSliceMut},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use crossbeam_channel::{Receiver, Sender};
use netraid_block::{
    BlockDevice, Buf, Device, DeviceInfo, ErrorKind, IoError, Op, Pool, Request, SgList,
    extents::Extents,
};
use rustix::{
    fs::{FallocateFlags, SeekFrom, fallocate, fdatasync, seek},
    io::{Errno, ReadWriteFlags, preadv2, pwritev2, retry_on_intr},
};

use super::{BackingError, describe, error::kind_of};

/// Most parts of one vectored write (the kernel's limit is 1024).
const PARTS_MAX: usize = 64;
/// Buffer of zeros for file systems that cannot make holes.
const ZEROS_LEN: usize = 256 << 10;

/// How a file is used.
#[derive(Debug, Clone)]
pub struct FileOptions {
    /// Size in bytes of a file to create; an existing one must have this size. `None` uses an
    /// existing file as it is.
    pub size: Option<u64>,
    /// Logical block in bytes: 512 or 4096.
    pub block_len: u32,
    /// Refuse writes; the file is opened for reading only.
    pub read_only: bool,
    /// Number of I/O threads, at least 1.
    pub threads: usize,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self { size: None, block_len: 512, read_only: false, threads: 4 }
    }
}

/// A volume in the file at `path`. The file is locked until the last request has ended and the
/// device is dropped.
///
/// # Errors
/// When the file is missing and no size is given, is no regular file, has another size, is in
/// use, or cannot be opened.
pub fn file(path: &Path, options: &FileOptions, pool: Pool) -> Result<Device, BackingError> {
    let name = path.display().to_string();
    if let Some(size) = options.size {
        // A size that is wrong must not leave a file behind.
        describe(&name, size, options.block_len, true)?;
    }
    let (file, size) = open(path, options)?;
    let mut info = describe(&name, size, options.block_len, true)?;
    info.read_only = options.read_only;
    if file.metadata().is_ok_and(|metadata| metadata.len() == 0) {
        file.set_len(size).map_err(io_error(path, "set the size"))?;
        sync_name(path).map_err(io_error(path, "make the name stable"))?;
    }
    let store = Arc::new(Store {
        file,
        path: path.to_path_buf(),
        pool,
        zeros: Buf::copy_from(&vec![0; ZEROS_LEN]),
        block_len: options.block_len,
        no_wait: AtomicBool::new(true),
        failed: AtomicBool::new(false),
    });
    let (sender, receiver) = crossbeam_channel::unbounded();
    let threads = (0..options.threads.max(1))
        .map(|_| spawn(store.clone(), receiver.clone()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(io_error(path, "start an I/O thread"))?;
    Ok(Device::new(Arc::new(FileBacking { info, store, sender: Some(sender), threads })))
}

fn io_error(path: &Path, action: &'static str) -> impl Fn(std::io::Error) -> BackingError {
    let path = path.to_path_buf();
    move |source| BackingError::Io { path: path.clone(), action, source }
}

/// Opens and locks the file; answers the size that it has, or is to get.
fn open(path: &Path, options: &FileOptions) -> Result<(File, u64), BackingError> {
    let path_buf = || path.to_path_buf();
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return Err(BackingError::NotAFile { path: path_buf() });
    }
    let file = OpenOptions::new()
        .read(true)
        .write(!options.read_only)
        .create(options.size.is_some() && !options.read_only)
        .truncate(false)
        .open(path)
        .map_err(|source| {
            if source.kind() == FileErrorKind::NotFound && options.size.is_none() {
                return BackingError::Missing { path: path_buf() };
            }
            io_error(path, "open")(source)
        })?;
    let locked = if options.read_only { file.try_lock_shared() } else { file.try_lock() };
    match locked {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(BackingError::InUse { path: path_buf() }),
        Err(TryLockError::Error(source)) => return Err(io_error(path, "lock")(source)),
    }
    let found = file.metadata().map_err(io_error(path, "examine"))?.len();
    match options.size {
        Some(wanted) if found == 0 => Ok((file, wanted)),
        Some(wanted) if found != wanted => {
            Err(BackingError::OtherSize { path: path_buf(), found, wanted })
        }
        Some(_) | None => Ok((file, found)),
    }
}

/// Makes the name of a new file stable: flushes of the file do not cover its directory.
fn sync_name(path: &Path) -> std::io::Result<()> {
    let path = path.canonicalize()?;
    let Some(parent) = path.parent() else { return Ok(()) };
    match File::open(parent)?.sync_all() {
        // File systems that cannot do this for a directory say so.
        Err(error) if error.kind() == FileErrorKind::InvalidInput => Ok(()),
        result => result,
    }
}

fn spawn(store: Arc<Store>, receiver: Receiver<Request>) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name("netraid-file".into()).spawn(move || {
        for request in receiver {
            let Request { op, offset, len, flags, data, completion } = request;
            let result = store.execute(op, offset, len, flags.fua, flags.no_unmap, &data);
            // The buffers go back to their pool before the next request is begun.
            drop(data);
            completion.finish(result);
        }
    })
}

struct FileBacking {
    info: DeviceInfo,
    store: Arc<Store>,
    /// Taken only by `drop`.
    sender: Option<Sender<Request>>,
    threads: Vec<JoinHandle<()>>,
}

impl BlockDevice for FileBacking {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn submit(&self, request: Request) {
        if request.op == Op::Read
            && let Some(data) = self.store.read_cached(request.offset, request.len)
        {
            request.completion.finish(Ok(data));
            return;
        }
        if let Some(sender) = &self.sender {
            // Nobody receives only when every thread has died; the request then ends as aborted.
            let _ = sender.send(request);
        }
    }
}

impl Drop for FileBacking {
    /// Waits for what is in flight, so that the file is free to be opened again.
    fn drop(&mut self) {
        drop(self.sender.take());
        for handle in self.threads.drain(..) {
            // A completion may hold the last handle, and end on one of our threads.
            if handle.thread().id() != thread::current().id() {
                let _ = handle.join();
            }
        }
    }
}

struct Store {
    file: File,
    path: PathBuf,
    pool: Pool,
    zeros: Buf,
    block_len: u32,
    /// Whether the file system answers reads without waiting.
    no_wait: AtomicBool,
    /// Whether a flush has failed.
    failed: AtomicBool,
}

impl Store {
    fn execute(
        &self,
        op: Op,
        offset: u64,
        len: u64,
        fua: bool,
        no_unmap: bool,
        data: &SgList,
    ) -> Result<SgList, IoError> {
        match op {
            Op::Read => return self.read(offset, len),
            Op::Write => self.write(offset, data, fua)?,
            Op::Flush => self.flush()?,
            Op::Discard => self.zero(offset, len, false, false)?,
            Op::WriteZeroes => self.zero(offset, len, no_unmap, fua)?,
            Op::Extents => return self.extents(offset, len),
        }
        Ok(SgList::new())
    }

    /// The bytes, when the page cache has all of them.
    fn read_cached(&self, offset: u64, len: u64) -> Option<SgList> {
        if !self.no_wait.load(Ordering::Relaxed) {
            return None;
        }
        let mut buf = self.pool.get(usize::try_from(len).ok()?);
        let whole = buf.len();
        let parts = &mut [IoSliceMut::new(&mut buf)];
        match preadv2(&self.file, parts, offset, ReadWriteFlags::NOWAIT) {
            Ok(count) if count == whole => Some(buf.freeze().into()),
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                self.no_wait.store(false, Ordering::Relaxed);
                None
            }
            // A part, or nothing, is in memory, or it failed: a thread finds out.
            Ok(_) | Err(_) => None,
        }
    }

    fn read(&self, offset: u64, len: u64) -> Result<SgList, IoError> {
        let len = usize::try_from(len).map_err(|_| IoError::new(ErrorKind::InvalidRequest))?;
        let mut buf = self.pool.get(len);
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            match rustix::io::pread(&self.file, &mut buf[done..], at) {
                Ok(0) => return Err(self.error("read", offset, Errno::IO)),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.error("read", offset, errno)),
            }
        }
        Ok(buf.freeze().into())
    }

    fn write(&self, offset: u64, data: &SgList, fua: bool) -> Result<(), IoError> {
        let flags = if fua { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
        let (mut parts, mut skip, mut at) = (data.parts(), 0, offset);
        while !parts.is_empty() {
            let mut slices = [IoSlice::new(&[]); PARTS_MAX];
            for (index, (slice, part)) in slices.iter_mut().zip(parts).enumerate() {
                *slice = IoSlice::new(if index == 0 { &part[skip..] } else { part });
            }
            let count = parts.len().min(PARTS_MAX);
            match pwritev2(&self.file, &slices[..count], at, flags) {
                Ok(0) => return Err(self.error("write", offset, Errno::IO)),
                Ok(written) => {
                    at += written as u64;
                    (parts, skip) = advance(parts, skip + written);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed_write(offset, fua, errno)),
            }
        }
        if fua { self.check_stable() } else { Ok(()) }
    }

    fn failed_write(&self, offset: u64, fua: bool, errno: Errno) -> IoError {
        let error = self.error("write", offset, errno);
        // The data may have reached the page cache and not the disk.
        if fua && error.kind() == ErrorKind::Medium {
            self.failed.store(true, Ordering::Release);
        }
        error
    }

    fn flush(&self) -> Result<(), IoError> {
        if let Err(errno) = retry_on_intr(|| fdatasync(&self.file)) {
            self.failed.store(true, Ordering::Release);
            return Err(self.error("flush", 0, errno));
        }
        self.check_stable()
    }

    fn check_stable(&self) -> Result<(), IoError> {
        if self.failed.load(Ordering::Acquire) {
            let text = "an earlier flush failed; open the file again and check it";
            let text = format!("{}: {text}", self.path.display());
            return Err(IoError::with_detail(ErrorKind::Device, text));
        }
        Ok(())
    }

    /// Makes a range read as zeros: by a hole, by unwritten space, or by writing them.
    fn zero(&self, offset: u64, len: u64, keep: bool, fua: bool) -> Result<(), IoError> {
        if len == 0 {
            return Ok(());
        }
        let how = if keep { FallocateFlags::ZERO_RANGE } else { FallocateFlags::PUNCH_HOLE };
        loop {
            match fallocate(&self.file, how | FallocateFlags::KEEP_SIZE, offset, len) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.write_zeros(offset, len)?;
                    break;
                }
                Err(errno) => return Err(self.error("write zeroes", offset, errno)),
            }
        }
        if fua { self.flush() } else { Ok(()) }
    }

    fn write_zeros(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let mut done = 0;
        while done < len {
            let part = usize::try_from(len - done).unwrap_or(usize::MAX).min(ZEROS_LEN);
            self.write(offset + done, &self.zeros.slice(0..part).into(), false)?;
            done += part as u64;
        }
        Ok(())
    }

    /// Which bytes the file system keeps space for, by its own blocks; space that is kept for
    /// zeros that were not written may count as unmapped.
    fn extents(&self, offset: u64, len: u64) -> Result<SgList, IoError> {
        let (mut found, mut at, end) = (Extents::new(), offset, offset + len);
        while at < end {
            let data = self.seek(SeekFrom::Data(at), end)?;
            // A logical block of which a part is mapped is mapped.
            let data = (data - data % u64::from(self.block_len)).clamp(at, end);
            if !found.push(data - at, false) || data == end {
                break;
            }
            let hole = self.seek(SeekFrom::Hole(data), end)?;
            let hole = hole.next_multiple_of(u64::from(self.block_len));
            // What was punched between the two questions counts as mapped, so that this goes on.
            let hole = hole.clamp(data + u64::from(self.block_len), end);
            if !found.push(hole - data, true) {
                break;
            }
            at = hole;
        }
        Ok(found.encode())
    }

    /// Where the next data or hole begins; `end` when that is further, or there is none.
    fn seek(&self, wanted: SeekFrom, end: u64) -> Result<u64, IoError> {
        match seek(&self.file, wanted) {
            Ok(found) => Ok(found.min(end)),
            // No data behind this place.
            Err(Errno::NXIO) => Ok(end),
            Err(errno) => Err(self.error("examine", 0, errno)),
        }
    }

    fn error(&self, action: &str, offset: u64, errno: Errno) -> IoError {
        let path = self.path.display();
        let text = format!("{path}: cannot {action} at {offset}: {errno}");
        IoError::with_detail(kind_of(errno), text)
    }
}

/// What is left of `parts` after `done` bytes from the first one's start.
fn advance(mut parts: &[Buf], mut done: usize) -> (&[Buf], usize) {
    while let Some((first, rest)) = parts.split_first() {
        if done < first.len() {
            break;
        }
        done -= first.len();
        parts = rest;
    }
    (parts, done)
}
