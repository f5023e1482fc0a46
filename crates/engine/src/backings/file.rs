//! Opening a volume in a sparse file of the host's file system.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::ErrorKind as FileErrorKind,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

use netraid_block::{DeviceInfo, Pool};
use rustix::{
    fs::{AtFlags, OFlags, StatxFlags, statx},
    io::Errno,
};

use super::{
    BackingError, IoMethod, TRANSFER_LEN_MAX, describe,
    error::io_error,
    store::{Manner, Store},
};

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
    /// Go around the page cache. The disk's own cache stays: writes are stable after a flush.
    pub direct: bool,
    /// A write ends when it is stable: the volume has no volatile cache.
    pub sync: bool,
    /// Number of I/O threads, from 1 to 64; with `io_uring`, of writes and flushes at once that are to
    /// be stable at their end.
    pub threads: usize,
    /// How the operating system is given requests; `None` is `io_uring` where it can be had and the
    /// page cache is passed by, else threads.
    pub io: Option<IoMethod>,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            size: None,
            block_len: 512,
            read_only: false,
            direct: false,
            sync: false,
            threads: 4,
            io: None,
        }
    }
}

/// A file that is open.
pub(super) struct Opened {
    pub(super) store: Store,
    pub(super) info: DeviceInfo,
    /// Whether it was made, or was empty.
    pub(super) is_new: bool,
}

/// Opens a file, makes it where it is missing, and describes the volume in it. The file is locked
/// until the store is dropped.
pub(super) fn open(path: &Path, options: &FileOptions, pool: Pool) -> Result<Opened, BackingError> {
    let name = path.display().to_string();
    if let Some(size) = options.size {
        // A size that is wrong must not leave a file behind.
        describe(&name, size, options.block_len, true)?;
    }
    let (file, size) = open_locked(path, options)?;
    let mut info = describe(&name, size, options.block_len, !options.sync)?;
    info.read_only = options.read_only;
    let metadata = file.metadata().map_err(io_error(path, "examine"))?;
    if options.direct {
        check_alignment(path, &file, options.block_len, &pool)?;
    }
    let is_new = metadata.len() == 0;
    if is_new {
        file.set_len(size).map_err(io_error(path, "set the size"))?;
        sync_name(path).map_err(io_error(path, "make the name stable")).inspect_err(|_| {
            // An empty file takes any size the next time.
            let _ = file.set_len(0);
        })?;
    }
    info.optimal_len = optimal_len(metadata.blksize(), info.optimal_len);
    let manner =
        Manner { block_len: options.block_len, direct: options.direct, sync: options.sync };
    let store = Store::new(file, path.to_path_buf(), size, manner, pool);
    Ok(Opened { store, info, is_new })
}

/// What large requests should be multiples of, where the operating system says `found`.
pub(super) fn optimal_len(found: u64, least: u32) -> u32 {
    let possible = |found: &u32| found.is_power_of_two() && *found <= TRANSFER_LEN_MAX;
    u32::try_from(found).ok().filter(possible).map_or(least, |found| found.max(least))
}

/// Opens and locks the file; answers the size that it has, or is to get.
fn open_locked(path: &Path, options: &FileOptions) -> Result<(File, u64), BackingError> {
    let path_buf = || path.to_path_buf();
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return Err(BackingError::NotAFile { path: path_buf() });
    }
    let flags = if options.direct { OFlags::DIRECT } else { OFlags::empty() };
    let file = OpenOptions::new()
        .read(true)
        .write(!options.read_only)
        .create(options.size.is_some() && !options.read_only)
        .truncate(false)
        // Who may read it reads all that is on the disk.
        .mode(0o600)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .map_err(|source| {
            if source.kind() == FileErrorKind::NotFound && options.size.is_none() {
                BackingError::Missing { path: path_buf() }
            } else if source.kind() == FileErrorKind::InvalidInput && options.direct {
                BackingError::NoDirect { path: path_buf() }
            } else {
                io_error(path, "open")(source)
            }
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

/// Whether blocks of this length can be moved around the page cache.
fn check_alignment(
    path: &Path,
    file: &File,
    block_len: u32,
    pool: &Pool,
) -> Result<(), BackingError> {
    let found = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let aligned = match found {
        Ok(found) if found.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            let needed = found.stx_dio_offset_align.max(found.stx_dio_mem_align);
            // Zero: not for this file.
            needed != 0 && block_len.is_multiple_of(needed)
        }
        // An older kernel: a read of one block tells.
        Ok(_) | Err(_) => {
            let mut block = pool.get(block_len as usize);
            rustix::io::pread(file, &mut *block, u64::from(block_len)) != Err(Errno::INVAL)
        }
    };
    let path = path.to_path_buf();
    if aligned { Ok(()) } else { Err(BackingError::Alignment { path, block_len }) }
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
