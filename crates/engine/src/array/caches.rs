//! How much memory an array may use for what it could also read.

use netraid_raid::logged::Limits;

/// Bytes of a block, and of a page.
const BLOCK: u64 = 4096;
/// Without being told, each cache gets this share of the machine's memory, ...
const SHARE: u64 = 16;
/// ... so many bytes at least, ...
const USUAL_MIN: u64 = 16 << 20;
/// ... and at most.
const USUAL_MAX: u64 = 256 << 20;

/// Bytes for what is read ahead, without being told.
const READ_AHEAD_USUAL: u64 = 16 << 20;

/// What an array may keep in memory. What is in use at the moment comes on top, and so
/// does what recovery finds in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Caches {
    /// With a log: bytes of writes that are in it and not yet where they belong; fewer than
    /// [`Self::WRITE_LEN_MIN`] count as that. None: a sixteenth of the memory, 16 to 256 MiB.
    pub write_len: Option<u64>,
    /// With a log: bytes of pages of checksums that were read and may be needed again; the same when
    /// none.
    pub checksum_len: Option<u64>,
    /// Bytes of what is read ahead of users who read in a row; 16 MiB when none. 0: nothing is.
    pub read_ahead_len: Option<u64>,
}

impl Caches {
    /// Fewest bytes of writes: several of the largest pieces that a request is cut into.
    pub const WRITE_LEN_MIN: u64 = 4 << 20;

    /// Bytes for what is read ahead; none when nothing is.
    pub(super) fn read_ahead_len(self) -> Option<u64> {
        Some(self.read_ahead_len.unwrap_or(READ_AHEAD_USUAL)).filter(|len| *len > 0)
    }

    pub(super) fn limits(self) -> Limits {
        let usual = usual(memory());
        // Clamped: a limit that memory cannot reach is none.
        let blocks = |len: u64| usize::try_from(len / BLOCK).unwrap_or(usize::MAX);
        Limits {
            sum_pages: blocks(self.checksum_len.unwrap_or(usual)),
            dirty_blocks: blocks(self.write_len.unwrap_or(usual).max(Self::WRITE_LEN_MIN)),
            ..Limits::default()
        }
    }
}

fn usual(memory: u64) -> u64 {
    (memory / SHARE).clamp(USUAL_MIN, USUAL_MAX)
}

/// Bytes of memory of this machine.
fn memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(info.mem_unit.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_follows_from_the_memory() {
        assert_eq!(usual(128 << 20), 16 << 20);
        assert_eq!(usual(2 << 30), 128 << 20);
        assert_eq!(usual(1 << 40), 256 << 20);
        assert!(memory() > 64 << 20);
        let caches = Caches { write_len: Some(1), checksum_len: Some(40_960), ..Caches::default() };
        let limits = caches.limits();
        assert_eq!((limits.dirty_blocks, limits.sum_pages), (1024, 10));
        assert!(Caches::default().limits().sum_pages >= 4096);
        assert_eq!(Caches::default().read_ahead_len(), Some(16 << 20));
        let off = Caches { read_ahead_len: Some(0), ..Caches::default() };
        assert_eq!(off.read_ahead_len(), None);
    }
}
