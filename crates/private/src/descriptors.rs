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

/// Whether an error says that this process, or this host, has nothing left to open a file or to accept a
/// connection with: neither descriptors nor memory (accept(2)).
#[must_use]
pub fn is_shortage(error: &io::Error) -> bool {
    is_out_of_descriptors(error)
        || matches!(Errno::from_io_error(error), Some(Errno::NOBUFS | Errno::NOMEM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_and_memory_may_be_short() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            assert!(is_shortage(&errno.into()), "{errno:?}");
        }
        assert!(!is_shortage(&Errno::CONNABORTED.into()));
        assert!(is_out_of_descriptors(&Errno::MFILE.into()));
        assert!(!is_out_of_descriptors(&Errno::NOMEM.into()));
    }
}
