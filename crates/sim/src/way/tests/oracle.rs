//! What each block may hold: who wrote it, what was acknowledged, and what a flush has made stable.

use std::collections::BTreeMap;

use netraid_block::narrow;

use super::{BLOCK_LEN, BLOCKS};
use crate::way::{HostId, LineId};

/// When something happened, in the order of the oracle's calls.
pub(super) type Moment = u64;

/// A write of a block, or what there was before.
#[derive(Debug, Clone)]
struct Entry {
    version: u64,
    begun: Moment,
    /// When it had ended for sure: it does not reach the medium later.
    ended: Option<Moment>,
    /// When it was acknowledged, by which line, and how often that line's cache had been lost.
    acknowledged: Option<(Moment, LineId, u64)>,
    /// Since when no read may return it.
    dead: Option<Moment>,
    /// A power loss may bring it back.
    is_lossy: bool,
}

/// The blocks of one host.
pub(super) struct Oracle {
    host: HostId,
    now: Moment,
    blocks: Vec<Vec<Entry>>,
    power_lost: Moment,
}

/// A write of some blocks.
#[derive(Debug, Clone)]
pub(super) struct Write {
    pub(super) first: u64,
    pub(super) blocks: u64,
    pub(super) begun: Moment,
}

impl Oracle {
    pub(super) fn new(host: HostId) -> Self {
        let old = Entry {
            version: 0,
            begun: 0,
            ended: Some(0),
            acknowledged: Some((0, LineId(usize::MAX), 0)),
            dead: None,
            is_lossy: true,
        };
        Self { host, now: 1, blocks: vec![vec![old]; narrow(BLOCKS)], power_lost: 0 }
    }

    pub(super) fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    pub(super) fn begin(&mut self, first: u64, blocks: u64, version: u64) -> Write {
        let begun = self.tick();
        for block in first..first + blocks {
            self.blocks[narrow::<_, usize>(block)].push(Entry {
                version,
                begun,
                ended: None,
                acknowledged: None,
                dead: None,
                is_lossy: true,
            });
        }
        Write { first, blocks, begun }
    }

    /// A write is over, and was not acknowledged: it may have happened, and does not happen later.
    pub(super) fn end(&mut self, write: &Write) {
        let now = self.tick();
        self.each(write, |entries, at| entries[at].ended = Some(now));
    }

    pub(super) fn acknowledge(&mut self, write: &Write, line: LineId, losses: u64) {
        let (now, power_lost) = (self.tick(), self.power_lost);
        self.each(write, |entries, at| {
            entries[at].ended = Some(now);
            entries[at].acknowledged = Some((now, line, losses));
            if power_lost > write.begun {
                return;
            }
            for entry in entries.iter_mut() {
                if entry.ended.is_some_and(|ended| ended < write.begun) {
                    entry.dead.get_or_insert(now);
                }
            }
        });
    }

    fn each(&mut self, write: &Write, mut act: impl FnMut(&mut Vec<Entry>, usize)) {
        for block in write.first..write.first + write.blocks {
            let entries = &mut self.blocks[narrow::<_, usize>(block)];
            let at = entries.iter().position(|entry| entry.begun == write.begun).unwrap();
            act(entries, at);
        }
    }

    /// A flush that began then was acknowledged: what the same line wrote before is there, unless it has heard of a lost
    /// cache meanwhile.
    pub(super) fn flush(&mut self, begun: Moment, line: LineId, losses: u64) {
        let now = self.tick();
        for entries in &mut self.blocks {
            let stable = entries.iter().filter(|entry| {
                entry
                    .acknowledged
                    .is_some_and(|(at, by, lost)| at < begun && by == line && lost == losses)
            });
            let Some(since) = stable.map(|entry| entry.begun).max() else { continue };
            for entry in entries.iter_mut() {
                if entry.ended.is_some_and(|ended| ended < since) {
                    entry.is_lossy = false;
                    entry.dead.get_or_insert(now);
                }
            }
        }
    }

    pub(super) fn lose_power(&mut self) {
        self.power_lost = self.tick();
        for entry in self.blocks.iter_mut().flatten().filter(|entry| entry.is_lossy) {
            entry.dead = None;
        }
    }

    /// A read that began then, of these blocks, has returned this.
    pub(super) fn read(&mut self, begun: Moment, first: u64, data: &[u8]) {
        let now = self.tick();
        for (block, bytes) in (first..).zip(data.chunks_exact(BLOCK_LEN as usize)) {
            let version = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            let is_whole = bytes.chunks_exact(8).all(|word| word == version.to_le_bytes());
            assert!(is_whole, "block {block} of {:?} is torn", self.host);
            let entries = &mut self.blocks[narrow::<_, usize>(block)];
            let may = |entry: &Entry| {
                entry.version == version && entry.dead.is_none_or(|dead| dead > begun)
            };
            let is_allowed = entries.iter().any(may);
            assert!(
                is_allowed,
                "block {block} of {:?} reads as {version}, possible are {entries:?}",
                self.host
            );
            // Nothing may have changed meanwhile: what was read is what is there.
            let is_quiet = self.power_lost < begun
                && entries.iter().all(|entry| entry.ended.is_some_and(|ended| ended < begun));
            if is_quiet {
                for entry in entries.iter_mut().filter(|entry| entry.version != version) {
                    entry.dead.get_or_insert(now);
                }
            }
        }
    }

    /// Forgets what no read and no power loss can bring up, of reads that began at this moment or later.
    pub(super) fn prune(&mut self, oldest_read: Moment) {
        for entries in &mut self.blocks {
            entries.retain(|entry| {
                entry.ended.is_none()
                    || entry.is_lossy
                    || entry.dead.is_none_or(|dead| dead > oldest_read)
            });
        }
    }

    /// What each block has that has one possible content, also after a power loss.
    pub(super) fn certain(&self) -> BTreeMap<u64, u64> {
        let mut certain = BTreeMap::new();
        for (block, entries) in (0..).zip(&self.blocks) {
            let mut possible =
                entries.iter().filter(|entry| entry.dead.is_none() || entry.is_lossy);
            if let (Some(entry), None) = (possible.next(), possible.next()) {
                certain.insert(block, entry.version);
            }
        }
        certain
    }
}
