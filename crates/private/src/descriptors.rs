//! How many files and sockets this process may have open.

use std::io;

use rustix::{
    io::Errno,
    process::{Resource, getrlimit, setrlimit},
};

/// Lets this process have as many files and sockets open as the system allows it, and answers how
/// many that are; `u64::MAX` when there is no limit.
pub fn raise_descriptor_limit() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where that is refused, the limit is what it was.
    let _ = setrlimit(Resource::Nofile, limit);
    descriptor_limit()
}

/// How many files and sockets this process may have open; `u64::MAX` when there is no limit.
#[must_use]
pub fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// How many more files and sockets this process may open now; those that it has are not counted where the
/// system does not show them.
#[must_use]
pub fn free_descriptors() -> u64 {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    descriptor_limit().saturating_sub(open as u64)
}

/// Whether an error says that this process, or this host, cannot open one more file or socket.
#[must_use]
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}
