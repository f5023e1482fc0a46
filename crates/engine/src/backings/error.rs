//! Why a backing cannot be opened, and what an operating system's error means to a request.

use std::{io, path::PathBuf};

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
    #[error("{}: no such file; give a size to create it", path.display())]
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
    #[error("{}: is not a regular file", path.display())]
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

/// What kind of failure `errno` is to a request.
pub(super) fn kind_of(errno: Errno) -> ErrorKind {
    match errno {
        Errno::NOSPC | Errno::DQUOT => ErrorKind::NoSpace,
        Errno::IO => ErrorKind::Medium,
        Errno::ROFS | Errno::PERM => ErrorKind::ReadOnly,
        Errno::OPNOTSUPP => ErrorKind::Unsupported,
        _ => ErrorKind::Device,
    }
}
