//! How much memory an array with a log may use for what it could also read.

use netraid_raid::logged::Limits;

/// Bytes of a block, and of a page.
const BLOCK: u64 = 4096;
/// Without being told, each cache gets this share of the machine's memory, ...
const SHARE: u64 = 16;
/// ... so many bytes at least, ...
const USUAL_MIN: u64 = 16 << 20;
/// ... and at most.
const USUAL_MAX: u64 = 256 << 20;

/// What an array with a log may keep in memory. What is in use at the moment comes on top, and so
/// does what recovery finds in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Caches {
    /// Bytes of writes that are in the log and not yet where they belong; fewer than
    /// [`Self::WRITE_LEN_MIN`] count as that. None: a sixteenth of the memory, 16 to 256 MiB.
    pub write_len: Option<u64>,
    /// Bytes of pages of checksums that were read and may be needed again; the same when none.
    pub checksum_len: Option<u64>,
}

impl Caches {
    /// Fewest bytes of writes: several of the largest pieces that a request is cut into.
    pub const WRITE_LEN_MIN: u64 = 4 << 20;

    pub(super) fn limits(self) -> Limits {
        let usual = usual(memory());
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
        let limits = Caches { write_len: Some(1), checksum_len: Some(40_960) }.limits();
        assert_eq!((limits.dirty_blocks, limits.sum_pages), (1024, 10));
        assert!(Caches::default().limits().sum_pages >= 4096);
    }
}
