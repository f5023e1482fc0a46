//! The reference: for each sector of the volume, which contents a read may return.
//!
//! Every write puts its tag into each sector. A tag is possible until a write that began after
//! the tag's own end has itself ended; reading is like writing what was seen.

/// Bytes of a sector of the model.
pub const SECTOR: usize = 512;
/// Zeros: what was never written, cleared or zeroed.
pub const ZEROES: u64 = 0;

#[derive(Clone, Copy, Debug)]
struct Record {
    tag: u64,
    start: u64,
    /// None: still in flight.
    end: Option<u64>,
    /// Whether it surely happened, so that what was before it cannot show.
    certain: bool,
    /// When it became stable, if it did.
    stable: Option<u64>,
}

/// Allowed contents of every sector.
pub struct Reference {
    sectors: Vec<Vec<Record>>,
    clock: u64,
    /// When the oldest request in flight began: what it may still see is kept.
    pub horizon: u64,
}

impl Reference {
    pub fn new(sectors: usize) -> Self {
        let zero = Record { tag: ZEROES, start: 0, end: Some(0), certain: true, stable: Some(0) };
        Self { sectors: vec![vec![zero]; sectors], clock: 1, horizon: 0 }
    }

    pub fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A write was submitted.
    pub fn begin(&mut self, sectors: std::ops::Range<usize>, tag: u64) -> u64 {
        let start = self.now();
        for sector in sectors {
            self.sectors[sector].push(Record {
                tag,
                start,
                end: None,
                certain: true,
                stable: None,
            });
        }
        start
    }

    /// The write submitted at `start` was acknowledged.
    pub fn end(&mut self, sectors: std::ops::Range<usize>, start: u64, fua: bool) {
        let now = self.now();
        for sector in sectors {
            for record in self.sectors[sector].iter_mut().filter(|r| r.start == start) {
                record.end = Some(now);
                record.stable = fua.then_some(now);
            }
            self.prune(sector);
        }
    }

    /// The write submitted at `start` ended without an acknowledgement: it may have happened.
    pub fn end_unsure(&mut self, sectors: std::ops::Range<usize>, start: u64) {
        let now = self.now();
        for sector in sectors {
            for record in self.sectors[sector].iter_mut().filter(|r| r.start == start) {
                record.end = Some(now);
                record.certain = false;
            }
        }
    }

    /// A flush submitted at `start` was acknowledged.
    pub fn flushed(&mut self, start: u64) {
        let now = self.now();
        for sector in 0..self.sectors.len() {
            for record in &mut self.sectors[sector] {
                if record.certain && record.end.is_some_and(|end| end < start) {
                    record.stable.get_or_insert(now);
                }
            }
            self.prune(sector);
        }
    }

    /// Power was lost: what was not stable may be gone, all else is past.
    pub fn lose_power(&mut self) {
        let now = self.now();
        for sector in &mut self.sectors {
            for record in sector {
                record.certain &= record.stable.is_some();
                record.end = record.end.or(Some(now));
            }
        }
    }

    /// Whether a read that began at `start` may return `tag`; if so, that is what it is now.
    pub fn check(&mut self, sector: usize, tag: u64, start: u64) -> Result<(), String> {
        let now = self.now();
        let records = &mut self.sectors[sector];
        let superseded = |one: &Record| {
            let end = one.end.unwrap_or(u64::MAX);
            let certain = |two: &Record| two.certain && two.end.is_some_and(|end| end < start);
            records.iter().any(|two| certain(two) && end < two.start)
        };
        if !records.iter().any(|record| record.tag == tag && !superseded(record)) {
            return Err(format!("sector {sector}: read tag {tag}, allowed {records:?}"));
        }
        if records.len() > 1 {
            records.push(Record { tag, start, end: Some(now), certain: true, stable: None });
            self.prune(sector);
        }
        Ok(())
    }

    /// Forgets what can show no more, not even after power loss.
    fn prune(&mut self, sector: usize) {
        let records = &mut self.sectors[sector];
        let past = |r: &&Record| r.stable.is_some() && r.end.is_some_and(|end| end < self.horizon);
        let stable: Vec<Record> = records.iter().filter(past).copied().collect();
        records.retain(|one| {
            let end = one.end.unwrap_or(u64::MAX);
            !stable.iter().any(|two| end < two.start)
        });
    }
}

/// A sector's contents for a tag.
pub fn fill(sector: usize, tag: u64, bytes: &mut [u8]) {
    if tag == ZEROES {
        return bytes.fill(0);
    }
    for (at, word) in bytes.chunks_exact_mut(16).enumerate() {
        word[..8].copy_from_slice(&tag.to_le_bytes());
        word[8..].copy_from_slice(&((sector * 64 + at) as u64).to_le_bytes());
    }
}

/// The tag whose contents these are.
pub fn tag_of(sector: usize, bytes: &[u8]) -> Result<u64, String> {
    let tag = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let mut expected = vec![0; bytes.len()];
    fill(sector, tag, &mut expected);
    match bytes == expected {
        true => Ok(tag),
        false => Err(format!("sector {sector}: bytes of no write: {:x?}", &bytes[..32])),
    }
}
