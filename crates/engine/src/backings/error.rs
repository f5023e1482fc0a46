//! Why a backing cannot be opened, and what an operating system's error means to a request.

use std::{
    io,
    path::{Path, PathBuf},
};

use netraid_block::ErrorKind;
use rustix::io::Errno;

/// Why a backing cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BackingError {
    /// Blocks of this length are not offered.
    #[error("{name}: block length {block_len} is neither 512 nor 4096 bytes")]
    BlockLen {
        /// What was to be opened.
        name: String,
        /// The length in bytes.
        block_len: u32,
    },
    /// The size is zero or no whole number of blocks.
    #[error("{name}: size {size} is not a positive multiple of the block length {block_len}")]
    Size {
        /// What was to be opened.
        name: String,
        /// The size in bytes.
        size: u64,
        /// The block length in bytes.
        block_len: u32,
    },
    /// More memory than a table is kept for.
    #[error("{name}: size {size} is more than a volume in memory can have; use a file")]
    TooLarge {
        /// What was to be opened.
        name: String,
        /// The size in bytes.
        size: u64,
    },
    /// The file does not exist, and no size was given to make it with.
    #[error("{}: no such file; give a size above zero to create it: file:PATH:64GiB", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file exists with another size than the one that was given.
    #[error(
        "{}: is {found} bytes, not {wanted}; leave the size out to use it as it is, or remove it",
        path.display()
    )]
    OtherSize {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        found: u64,
        /// The size that was asked for.
        wanted: u64,
    },
    /// The path names a directory, a device or something else that is not a file.
    #[error("{}: is not a regular file; a block device is block:PATH", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Another process, or this one, has the file open as a backing.
    #[error("{}: is in use by another target; stop that one first", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The path names something that is not a block device.
    #[error("{}: is not a block device; a file is file:PATH[:SIZE]", path.display())]
    NotADisk {
        /// The path.
        path: PathBuf,
    },
    /// There is no such block device.
    #[error("{}: there is no such device", path.display())]
    MissingDisk {
        /// The path.
        path: PathBuf,
    },
    /// Somebody else has the block device.
    #[error("{}: is in use ({holder}); end that use first, the device is not shared", path.display())]
    Busy {
        /// The device.
        path: PathBuf,
        /// Who has it, as far as that can be seen.
        holder: String,
    },
    /// The device refuses writes.
    #[error("{}: is write protected; add ,ro to serve it for reading only", path.display())]
    WriteProtected {
        /// The device.
        path: PathBuf,
    },
    /// The device's own blocks are larger than those asked for.
    #[error("{}: blocks of {block_len} bytes are smaller than the device's own, {own}", path.display())]
    SmallBlocks {
        /// The device.
        path: PathBuf,
        /// What was asked for, in bytes.
        block_len: u32,
        /// What the device has, in bytes.
        own: u32,
    },
    /// The file system has no way around its page cache.
    #[error("{}: the file system does not do direct I/O; leave 'direct' out", path.display())]
    NoDirect {
        /// The file.
        path: PathBuf,
    },
    /// Blocks of this length cannot go around the page cache.
    #[error(
        "{}: direct I/O is not possible in blocks of {block_len} bytes; use blocks of 4096, or \
         leave 'direct' out",
        path.display()
    )]
    Alignment {
        /// The file.
        path: PathBuf,
        /// The block length in bytes.
        block_len: u32,
    },
    /// The volume would become smaller, and nobody said that it may.
    #[error(
        "{name}: {wanted} bytes are fewer than its {found}; what is behind would be lost; --shrink \
         allows that"
    )]
    Shrink {
        /// The backing.
        name: String,
        /// Its size in bytes.
        found: u64,
        /// The size that was asked for.
        wanted: u64,
    },
    /// A new size cannot be made stable; the old one is there again.
    #[error(
        "{}: cannot make the new size stable: {source}; it has {from} bytes as before, and no \
         flush succeeds until it is opened again",
        path.display()
    )]
    SizeNotStable {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
        /// Its size in bytes.
        from: u64,
    },
    /// A new size cannot be made stable, and the old one not restored.
    #[error(
        "{}: cannot make the new size stable: {source}; the volume has {from} bytes as before, but \
         the file is left with {to}: {left}; stop the target, and truncate the file to {from}",
        path.display()
    )]
    SizeLeft {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
        /// Bytes of the volume.
        from: u64,
        /// Bytes of the file.
        to: u64,
        /// Why the old size cannot be restored.
        left: io::Error,
    },
    /// A block device has the size that it has.
    #[error("{}: the device has {found} bytes, not {wanted}; change the device first", path.display())]
    DiskSize {
        /// The device.
        path: PathBuf,
        /// Its size in bytes.
        found: u64,
        /// The size that was asked for.
        wanted: u64,
    },
    /// The backing was opened for reading only.
    #[error("{name}: is open for reading only; its size cannot be changed")]
    ReadOnly {
        /// The backing.
        name: String,
    },
    /// `io_uring` was asked for, and cannot be used.
    #[error(
        "{}: io_uring cannot be used here: {source}; io=threads does without it",
        path.display()
    )]
    Uring {
        /// The file or device.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the operating system said.
        source: io::Error,
    },
}

pub(super) fn io_error(path: &Path, action: &'static str) -> impl Fn(io::Error) -> BackingError {
    let path = path.to_path_buf();
    move |source| BackingError::Io { path: path.clone(), action, source }
}

/// What kind of failure `errno` is to a request.
pub(super) fn kind_of(errno: Errno) -> ErrorKind {
    match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => ErrorKind::NoSpace,
        Errno::IO => ErrorKind::Medium,
        Errno::ROFS | Errno::PERM => ErrorKind::ReadOnly,
        Errno::OPNOTSUPP => ErrorKind::Unsupported,
        _ => ErrorKind::Device,
    }
}
