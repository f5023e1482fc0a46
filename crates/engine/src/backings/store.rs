//! An open file or block device, and what each request does to it.
//!
//! Truth about what is stable: a write that ended is in the page cache, or in the disk's own
//! cache; only FUA and flushes make it stable (`sync` makes each write FUA). When a flush fails,
//! what the caches dropped is not known, and the kernel reports it only once: from then on, until
//! the backing is opened again, every flush and every FUA write fails, so that nothing is called
//! stable that may not be. A FUA write flushes as well, and may be the one to fail. Reads and plain
//! writes go on. A write that found no space left fails as such and has cost nothing that was
//! written before.
//!
//! The kernel reports once to each open file description: each thread has one of its own
//! ([`Own`]), so that none calls stable what another one was just told is lost.

use std::{
    fs::{File, OpenOptions},
    io::{IoSlice, IoSliceMut},
    os::fd::{AsRawFd, RawFd},
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use netraid_block::{
    Buf, ErrorKind, IoError, Op, PAGE_LEN, Pool, RequestFlags, SgList, extents::Extents, narrow,
};
use rustix::{
    fs::{FallocateFlags, OFlags, SeekFrom, fallocate, fcntl_getfl, fdatasync, seek},
    io::{Errno, ReadWriteFlags, preadv2, pwritev2, retry_on_intr},
};

use super::error::kind_of;

/// Most parts of one vectored write (the kernel's limit is 1024).
const PARTS_MAX: usize = 64;
/// Buffer of zeros for file systems that cannot make holes.
const ZEROS_LEN: usize = 256 << 10;

/// How a store is used; constant while it is open.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    /// Logical block in bytes.
    pub(super) block_len: u32,
    /// The page cache is passed by: buffers, offsets and lengths have to be aligned.
    pub(super) direct: bool,
    /// Every write is stable when it ends.
    pub(super) sync: bool,
}

pub(super) struct Store {
    /// Holds the lock; told of failures to write back even if a thread's own was told first.
    file: File,
    path: PathBuf,
    pool: Pool,
    manner: Manner,
    zeros: Buf,
    /// Bytes that belong to the volume; nothing is written behind them.
    len: AtomicU64,
    /// Whether the file system answers reads without waiting.
    no_wait: AtomicBool,
    /// Whether a flush has failed.
    failed: AtomicBool,
}

/// The file of a store, opened once more for one thread, or one request at a time.
pub(super) struct Own(File);

impl AsRawFd for Own {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
impl Own {
    pub(super) const fn file(&self) -> &File {
        &self.0
    }
}

impl Store {
    pub(super) fn new(file: File, path: PathBuf, len: u64, manner: Manner, pool: Pool) -> Self {
        Self {
            file,
            path,
            pool,
            manner,
            zeros: Buf::copy_from(&vec![0; ZEROS_LEN]),
            len: AtomicU64::new(len),
            no_wait: AtomicBool::new(!manner.direct),
            failed: AtomicBool::new(false),
        }
    }

    pub(super) const fn file(&self) -> &File {
        &self.file
    }

    /// Opens the file once more, in the same manner, whatever its path leads to by now.
    pub(super) fn open_again(&self) -> std::io::Result<Own> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let flags = fcntl_getfl(&self.file)?;
        let file = OpenOptions::new()
            .read(true)
            .write(flags.contains(OFlags::RDWR))
            .custom_flags((flags & OFlags::DIRECT).bits().cast_signed())
            .open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?;
        Ok(Own(file))
    }

    pub(super) const fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(super) const fn is_direct(&self) -> bool {
        self.manner.direct
    }

    /// Whether every write is stable when it ends.
    pub(super) const fn is_sync(&self) -> bool {
        self.manner.sync
    }

    pub(super) const fn path(&self) -> &PathBuf {
        &self.path
    }

    /// Tells how long the volume is from now on.
    pub(super) fn set_len(&self, len: u64) {
        self.len.store(len, Ordering::Release);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Calls nothing stable any more: a flush outside a request has failed.
    pub(super) fn distrust(&self) {
        if !self.failed.swap(true, Ordering::AcqRel) {
            let path = self.path.display();
            tracing::error!(%path, "a flush failed, and so do all from now on: what was written \
                                    before may be lost; open it again and check it");
        }
    }

    pub(super) fn execute(
        &self,
        own: &Own,
        op: Op,
        offset: u64,
        len: u64,
        flags: RequestFlags,
        data: &SgList,
    ) -> Result<SgList, IoError> {
        if op.changes() {
            self.check_end(offset, len)?;
        }
        let fua = flags.fua || self.manner.sync;
        match op {
            Op::Read => return self.read(offset, len),
            Op::Extents => return self.extents(offset, len),
            Op::Write => self.write(own, offset, data, fua)?,
            Op::Flush => self.flush(own)?,
            Op::Discard => self.zero(own, offset, len, false, self.manner.sync)?,
            Op::WriteZeroes => self.zero(own, offset, len, flags.no_unmap, fua)?,
        }
        Ok(SgList::new())
    }

    /// Whether a change is within what belongs to the volume by now.
    pub(super) fn check_end(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let end = self.len.load(Ordering::Acquire);
        if offset + len > end {
            let text = format!("{}: has shrunk to {end} bytes", self.path.display());
            return Err(IoError::with_detail(ErrorKind::OutOfRange, text));
        }
        Ok(())
    }

    /// The bytes, when the page cache has all of them.
    pub(super) fn read_cached(&self, offset: u64, len: u64) -> Option<SgList> {
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

    fn write(&self, own: &Own, offset: u64, data: &SgList, fua: bool) -> Result<(), IoError> {
        match self.realigned(data) {
            Some(whole) => self.write_parts(own, offset, &[whole], fua),
            None => self.write_parts(own, offset, data.parts(), fua),
        }
    }

    /// A copy of the bytes of a write, where the operating system does not take them as they are.
    pub(super) fn realigned(&self, data: &SgList) -> Option<Buf> {
        if !self.manner.direct || data.parts().iter().all(|part| self.is_aligned(part)) {
            return None;
        }
        let mut whole = self.pool.get(data.len());
        data.copy_to(&mut whole);
        Some(whole.freeze())
    }

    /// Whether the operating system takes these bytes as they are, around the page cache.
    fn is_aligned(&self, part: &Buf) -> bool {
        let align = self.manner.block_len as usize;
        debug_assert!(align <= PAGE_LEN);
        part.as_ptr().addr().is_multiple_of(align) && part.len().is_multiple_of(align)
    }

    fn write_parts(
        &self,
        own: &Own,
        offset: u64,
        mut parts: &[Buf],
        fua: bool,
    ) -> Result<(), IoError> {
        let flags = if fua { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
        let (mut skip, mut at) = (0, offset);
        while !parts.is_empty() {
            let mut slices = [IoSlice::new(&[]); PARTS_MAX];
            for (index, (slice, part)) in slices.iter_mut().zip(parts).enumerate() {
                *slice = IoSlice::new(if index == 0 { &part[skip..] } else { part });
            }
            let count = parts.len().min(PARTS_MAX);
            match pwritev2(&own.0, &slices[..count], at, flags) {
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

    /// The error of a write. One with FUA may have failed while it made older writes stable, and
    /// has then used up the only report of that: a disk that loses its cache tells one flush. Only
    /// where there is no space, or the write was refused as such, nothing older can be meant, and
    /// the witness, whom the kernel tells for itself, is asked instead.
    fn failed_write(&self, offset: u64, fua: bool, errno: Errno) -> IoError {
        let error = self.error("write", offset, errno);
        let kind = error.kind();
        let refused =
            matches!(kind, ErrorKind::NoSpace | ErrorKind::ReadOnly | ErrorKind::Unsupported);
        if fua && (!refused || retry_on_intr(|| fdatasync(&self.file)).is_err()) {
            self.distrust();
        }
        error
    }

    fn flush(&self, own: &Own) -> Result<(), IoError> {
        if let Err(errno) = retry_on_intr(|| fdatasync(&own.0)) {
            return Err(self.failed_flush(errno));
        }
        self.check_stable()
    }

    fn failed_flush(&self, errno: Errno) -> IoError {
        self.distrust();
        self.error("flush", 0, errno)
    }

    /// The error of a read, write or flush, `fua` where it was to be stable at its end.
    pub(super) fn failed(&self, op: Op, offset: u64, fua: bool, errno: Errno) -> IoError {
        match op {
            Op::Flush => self.failed_flush(errno),
            Op::Write => self.failed_write(offset, fua, errno),
            Op::Read | Op::Extents => self.error("read", offset, errno),
            Op::Discard | Op::WriteZeroes => self.error("write zeroes", offset, errno),
        }
    }

    /// Nothing is called stable once a flush has failed.
    pub(super) fn check_stable(&self) -> Result<(), IoError> {
        if self.has_failed() {
            let text = "an earlier flush failed; open it again and check it";
            let text = format!("{}: {text}", self.path.display());
            return Err(IoError::with_detail(ErrorKind::Device, text));
        }
        Ok(())
    }

    /// Makes a range read as zeros: by a hole, by unwritten space, or by writing them.
    fn zero(&self, own: &Own, offset: u64, len: u64, keep: bool, fua: bool) -> Result<(), IoError> {
        if len == 0 {
            return Ok(());
        }
        let how = if keep { FallocateFlags::ZERO_RANGE } else { FallocateFlags::PUNCH_HOLE };
        loop {
            match fallocate(&self.file, how | FallocateFlags::KEEP_SIZE, offset, len) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.write_zeros(own, offset, len)?;
                    break;
                }
                Err(errno) => return Err(self.error("write zeroes", offset, errno)),
            }
        }
        if fua { self.flush(own) } else { Ok(()) }
    }

    fn write_zeros(&self, own: &Own, offset: u64, len: u64) -> Result<(), IoError> {
        let mut done = 0;
        while done < len {
            let part = narrow((len - done).min(ZEROS_LEN as u64));
            self.write_parts(own, offset + done, &[self.zeros.slice(0..part)], false)?;
            done += part as u64;
        }
        Ok(())
    }

    /// Which bytes the file system keeps space for, by its own blocks; space that is kept for
    /// zeros that were not written may count as unmapped.
    fn extents(&self, offset: u64, len: u64) -> Result<SgList, IoError> {
        let block_len = u64::from(self.manner.block_len);
        let (mut found, mut at, end) = (Extents::new(), offset, offset + len);
        while at < end {
            let data = self.seek(SeekFrom::Data(at), end)?;
            // A logical block of which a part is mapped is mapped.
            let data = (data - data % block_len).clamp(at, end);
            if !found.push(data - at, false) || data == end {
                break;
            }
            let hole = self.seek(SeekFrom::Hole(data), end)?.next_multiple_of(block_len);
            // What was punched between the two questions counts as mapped, so that this goes on.
            let hole = hole.clamp(data + block_len, end);
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
