//! The file system that the kernel sees: one directory with one file.

use std::{
    ffi::{OsStr, OsString},
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use netraid_block::{Op, Pool, RequestFlags, SgList, narrow};
use rustix::fs::{FallocateFlags, OFlags};
use tokio::sync::watch;

use super::{
    pieces::ReadReply,
    replies::{Owed, Replies},
};
use crate::users::{Use, Users};
use netraid_engine::bytes::{ByteDevice, ByteRequest, Port};

const DIRECTORY: INodeNo = INodeNo::ROOT;
const FILE: INodeNo = INodeNo(2);
/// What the kernel may remember of names and attributes, which do not change.
const TTL: Duration = Duration::from_secs(3600);
/// Longest write of one request in bytes; the kernel's own limit without special rights.
const WRITE_LEN_MAX: u32 = 1 << 20;
/// A write is handed over in parts of at least this length, if nothing else is under way.
const PART_LEN_MIN: u32 = 256 << 10;
/// Most requests that the kernel sends ahead.
const BACKGROUND_MAX: u16 = 128;
/// Length of a block of the file system's statistics.
const STAT_LEN: u32 = 4096;

pub(super) struct Volume {
    name: OsString,
    capacity: u64,
    /// Where parts of a write end.
    part_len: u64,
    read_only: bool,
    owner: (u32, u32),
    mounted: SystemTime,
    pool: Pool,
    port: Port,
    replies: Arc<Replies>,
    users: Users,
    /// Times that the file is open.
    opened: AtomicUsize,
    /// Set to true when the kernel is done with the file system.
    ended: watch::Sender<bool>,
}

impl Volume {
    pub(super) fn new(
        device: &ByteDevice,
        name: &str,
        pool: Pool,
        replies: Arc<Replies>,
        (users, ended): (Users, watch::Sender<bool>),
    ) -> Self {
        let info = device.device().info();
        Self {
            name: name.into(),
            capacity: info.capacity,
            part_len: u64::from(PART_LEN_MIN.next_multiple_of(info.optimal_len.max(1))),
            read_only: info.read_only,
            owner: (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
            mounted: SystemTime::now(),
            pool,
            port: device.port(replies.clone()),
            replies,
            users,
            opened: AtomicUsize::new(0),
            ended,
        }
    }

    fn attr(&self, ino: INodeNo) -> FileAttr {
        let is_file = ino == FILE;
        let size = if is_file { self.capacity } else { 0 };
        FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: self.mounted,
            mtime: self.mounted,
            ctime: self.mounted,
            crtime: self.mounted,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: match (is_file, self.read_only) {
                (false, _) => 0o500,
                (true, true) => 0o400,
                (true, false) => 0o600,
            },
            nlink: if is_file { 1 } else { 2 },
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: STAT_LEN,
            flags: 0,
        }
    }

    fn submit(&self, owed: Owed, request: ByteRequest) {
        if let Some(tag) = self.replies.owe(owed, 1) {
            self.port.submit(request, tag);
        }
    }

    /// Copies and hands over a write. The device has its first part while the next one is copied, where it would
    /// have nothing to do meanwhile.
    fn submit_write(&self, owed: Owed, offset: u64, data: &[u8], flags: RequestFlags) {
        let is_parted = !flags.fua && self.replies.is_idle();
        let range = offset..offset + data.len() as u64;
        let parts = parts(range, if is_parted { self.part_len } else { u64::MAX });
        let count = narrow(parts.clone().count());
        let Some(tag) = self.replies.owe(owed, count) else { return };
        let mut rest = data;
        for Range { start, end } in parts {
            let len = end - start;
            let (part, after) = rest.split_at(narrow(len));
            let mut buf = self.pool.get(part.len());
            buf.copy_from_slice(part);
            let data = buf.freeze().into();
            self.port.submit(ByteRequest { op: Op::Write, offset: start, len, flags, data }, tag);
            rest = after;
        }
    }

    /// How much of a range is within the file.
    fn clamp(&self, offset: u64, len: u64) -> u64 {
        len.min(self.capacity.saturating_sub(offset))
    }
}

impl Filesystem for Volume {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Each of these only helps; a kernel that has less gets less.
        let _ = config.set_max_write(WRITE_LEN_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        Ok(())
    }

    fn destroy(&mut self) {
        // Of what was cut off, nobody hears that it is closed.
        (0..self.opened.swap(0, Ordering::Relaxed)).for_each(|_| self.users.end(Use::OpenFile));
        self.ended.send_replace(true);
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == DIRECTORY && name == self.name {
            reply.entry(&TTL, &self.attr(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        reply.attr(&TTL, &self.attr(ino));
    }

    /// The size stays: truncating to nothing is taken and has no effect, as on a block device,
    /// because programs open their output with O_TRUNC.
    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let resized = size.is_some_and(|size| size != 0 && size != self.capacity);
        if mode.is_some() || uid.is_some() || gid.is_some() || resized {
            reply.error(Errno::EPERM);
        } else {
            reply.attr(&TTL, &self.attr(ino));
        }
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if !self.users.begin(Use::OpenFile) {
            return reply.error(Errno::ESHUTDOWN);
        }
        self.opened.fetch_add(1, Ordering::Relaxed);
        // The kernel keeps no pages of the file: what other exports write is seen at once.
        let flags = FopenFlags::FOPEN_DIRECT_IO
            | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
            | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(0), flags);
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.opened.fetch_sub(1, Ordering::Relaxed);
        self.users.end(Use::OpenFile);
        reply.ok();
    }

    fn read(
        &self,
        request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = self.clamp(offset, u64::from(size));
        if len == 0 {
            reply.data(&[]);
            return;
        }
        let flags = RequestFlags::default();
        let data = SgList::new();
        let owed = Owed::Read(ReadReply::new(reply, request.unique()));
        self.submit(owed, ByteRequest { op: Op::Read, offset, len, flags, data });
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let len = self.clamp(offset, data.len() as u64);
        if len == 0 && !data.is_empty() {
            reply.error(Errno::ENOSPC);
            return;
        }
        // The reply has no room for more.
        let Ok(written) = u32::try_from(len) else { return reply.error(Errno::EINVAL) };
        // As on a block device, what does not fit is left out.
        let data = &data[..narrow(len)];
        let durable = OFlags::from_bits_retain(flags.0.cast_unsigned()).contains(OFlags::DSYNC);
        let flags = RequestFlags { fua: durable, no_unmap: false };
        self.submit_write(Owed::Write(reply, written), offset, data, flags);
    }

    fn fsync(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        if self.read_only {
            reply.ok();
            return;
        }
        let flags = RequestFlags::default();
        let data = SgList::new();
        let request = ByteRequest { op: Op::Flush, offset: 0, len: 0, flags, data };
        self.submit(Owed::Empty(reply), request);
    }

    fn fallocate(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let within = self.clamp(offset, length) == length;
        // A hole has to read as zeros, which a discard alone does not promise.
        let no_unmap = match mode.difference(FallocateFlags::KEEP_SIZE) {
            FallocateFlags::PUNCH_HOLE => false,
            FallocateFlags::ZERO_RANGE if within || mode.contains(FallocateFlags::KEEP_SIZE) => {
                true
            }
            FallocateFlags::ZERO_RANGE => return reply.error(Errno::ENOSPC),
            allocate if allocate.is_empty() => {
                return if within { reply.ok() } else { reply.error(Errno::ENOSPC) };
            }
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let len = self.clamp(offset, length);
        if len == 0 {
            // Past the end there is nothing to make zero.
            return reply.ok();
        }
        let request = ByteRequest {
            op: Op::WriteZeroes,
            offset,
            len,
            flags: RequestFlags { fua: false, no_unmap },
            data: SgList::new(),
        };
        self.submit(Owed::Empty(reply), request);
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if ino != DIRECTORY {
            return reply.error(Errno::ENOTDIR);
        }
        let entries = [
            (DIRECTORY, FileType::Directory, OsStr::new(".")),
            (DIRECTORY, FileType::Directory, OsStr::new("..")),
            (FILE, FileType::RegularFile, self.name.as_os_str()),
        ];
        // Clamped: nothing is behind the last one.
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, (ino, kind, name)) in entries.into_iter().enumerate().skip(start) {
            // The offset is where to go on after this entry.
            if reply.add(ino, index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let blocks = self.capacity / u64::from(STAT_LEN);
        reply.statfs(blocks, 0, 0, 1, 0, STAT_LEN, 255, STAT_LEN);
    }
}

/// A range cut where multiples of `part_len` are in it; an empty one is one part.
fn parts(range: Range<u64>, part_len: u64) -> impl Iterator<Item = Range<u64>> + Clone {
    let last = range.start.max(range.end.saturating_sub(1)) / part_len;
    (range.start / part_len..=last).map(move |number| {
        let start = number * part_len;
        start.max(range.start)..start.saturating_add(part_len).min(range.end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(range: Range<u64>, part_len: u64) -> Vec<(u64, u64)> {
        parts(range, part_len).map(|part| (part.start, part.end)).collect()
    }

    #[test]
    fn parts_follow_one_another_and_end_where_the_device_likes_it() {
        assert_eq!(cut(0..300, 100), [(0, 100), (100, 200), (200, 300)]);
        assert_eq!(cut(50..250, 100), [(50, 100), (100, 200), (200, 250)]);
        assert_eq!(cut(10..20, 100), [(10, 20)]);
        assert_eq!(cut(100..101, 100), [(100, 101)]);
    }

    #[test]
    fn what_is_empty_or_is_not_to_be_cut_is_one_part() {
        assert_eq!(cut(7..7, 100), [(7, 7)]);
        assert_eq!(cut(100..100, 100), [(100, 100)]);
        assert_eq!(cut(50..250, u64::MAX), [(50, 250)]);
    }
}
