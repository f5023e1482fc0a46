//! Which error number a program sees; the one place that maps [`ErrorKind`] for FUSE.

use fuser::Errno;
use netraid_block::ErrorKind;

/// The error number of a request that failed.
pub(super) const fn errno_of(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::OutOfRange | ErrorKind::NoSpace => Errno::ENOSPC,
        ErrorKind::Unaligned | ErrorKind::InvalidRequest => Errno::EINVAL,
        ErrorKind::Unsupported => Errno::EOPNOTSUPP,
        ErrorKind::ReadOnly => Errno::EROFS,
        ErrorKind::Fenced => Errno::EPERM,
        ErrorKind::Timeout => Errno::ETIMEDOUT,
        ErrorKind::Medium
        | ErrorKind::Corrupt
        | ErrorKind::Unreachable
        | ErrorKind::Aborted
        | ErrorKind::Redundancy
        | ErrorKind::Device => Errno::EIO,
    }
}
