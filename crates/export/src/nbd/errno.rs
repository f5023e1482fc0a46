//! Which error number a client sees; the one place that maps [`ErrorKind`] for NBD.

use netraid_block::{ErrorKind, Op};

pub(super) const EPERM: u32 = 1;
const EIO: u32 = 5;
pub(super) const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const ENOTSUP: u32 = 95;
const ESHUTDOWN: u32 = 108;

/// The error number of a request that failed.
pub(super) const fn errno_of(kind: ErrorKind, op: Op) -> u32 {
    match kind {
        // A write past the end is out of space, a read is not valid (NBD, error values).
        ErrorKind::OutOfRange => match op {
            Op::Write | Op::WriteZeroes => ENOSPC,
            Op::Read | Op::Flush | Op::Discard | Op::Extents => EINVAL,
        },
        ErrorKind::Unaligned | ErrorKind::InvalidRequest => EINVAL,
        ErrorKind::Unsupported => ENOTSUP,
        ErrorKind::ReadOnly | ErrorKind::Fenced => EPERM,
        ErrorKind::NoSpace => ENOSPC,
        ErrorKind::Aborted => ESHUTDOWN,
        ErrorKind::Medium
        | ErrorKind::Corrupt
        | ErrorKind::Timeout
        | ErrorKind::Unreachable
        | ErrorKind::Redundancy
        | ErrorKind::Device => EIO,
    }
}
