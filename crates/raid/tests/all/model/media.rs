//! Members in memory: what is stable, what a volatile cache still holds, what power loss takes.

use std::collections::BTreeMap;

use rand::{Rng, rngs::StdRng};

const SECTOR: usize = 512;

/// One member's medium.
pub struct Medium {
    current: Vec<u8>,
    /// For each sector that was written and not flushed: what it may fall back to, the stable
    /// contents first, then each later one but the newest.
    cached: BTreeMap<usize, Vec<Vec<u8>>>,
    volatile: bool,
}

impl Medium {
    pub fn new(len: usize, volatile: bool, rng: &mut StdRng) -> Self {
        // Whatever was there before must never show.
        Self { current: vec![rng.random(); len], cached: BTreeMap::new(), volatile }
    }

    pub fn read(&self, offset: u64, len: usize) -> &[u8] {
        &self.current[offset as usize..offset as usize + len]
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8], fua: bool) {
        for (at, new) in bytes.chunks(SECTOR).enumerate() {
            let sector = offset as usize / SECTOR + at;
            let old = &mut self.current[sector * SECTOR..(sector + 1) * SECTOR];
            if fua || !self.volatile {
                self.cached.remove(&sector);
            } else {
                self.cached.entry(sector).or_default().push(old.to_vec());
            }
            old.copy_from_slice(new);
        }
    }

    pub fn flush(&mut self) {
        self.cached.clear();
    }

    /// A write that was in flight when its sender died: any of its sectors may have landed.
    pub fn tear(&mut self, offset: u64, bytes: &[u8], rng: &mut StdRng) {
        for (at, sector) in bytes.chunks(SECTOR).enumerate() {
            if rng.random() {
                self.write(offset + (at * SECTOR) as u64, sector, false);
            }
        }
    }

    /// Each sector that was not flushed keeps its newest contents or falls back to older ones.
    pub fn lose_power(&mut self, rng: &mut StdRng) {
        for (sector, older) in std::mem::take(&mut self.cached) {
            if let Some(back) = older.get(rng.random_range(0..=older.len())) {
                self.current[sector * SECTOR..(sector + 1) * SECTOR].copy_from_slice(back);
            }
        }
    }
}
