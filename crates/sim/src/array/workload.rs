//! What users of the volume ask for, by the seed.

use core::ops::Range;
use std::collections::BTreeSet;

use netraid_block::Op;

use super::content::SECTORS_PER_BLOCK;
use crate::dice::{Dice, Seed};

/// A request that a user makes, in sectors of 512 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// What.
    pub op: Op,
    /// Where.
    pub sectors: Range<u64>,
    /// Stable when completed.
    pub fua: bool,
}

/// What a run's users like.
#[derive(Debug, Clone)]
struct Taste {
    /// Of each kind so many parts: reads, small writes, block writes, stripe writes, streams, zeroes,
    /// discards, flushes.
    weights: [u32; 8],
    /// One write in so many with FUA; 0: none.
    fua: u32,
    /// One request in so many goes to the hot spot; 0: none.
    hot: u32,
}

/// Users of a volume.
#[derive(Debug)]
pub struct Workload {
    seed: Seed,
    dice: Dice,
    taste: Taste,
    capacity: u64,
    /// Sectors of a stripe.
    stripe: u64,
    /// Smallest request in sectors.
    unit: u64,
    hot_spot: u64,
    /// Where a stream goes on, and how long its requests are: stripes, or what makes up no stripe.
    stream: u64,
    step: u64,
    /// What was written last; one read in so many looks there. 0: none.
    written: Range<u64>,
    read_back: u32,
    reader: Option<Reader>,
    binder: Option<Dice>,
}

/// A user who reads in a row.
#[derive(Debug)]
struct Reader {
    dice: Dice,
    next: u64,
    len: u64,
}

impl Workload {
    /// Users of a volume of `capacity` sectors in stripes of `stripe`, whose logical block has
    /// `unit` sectors.
    #[must_use]
    pub fn new(seed: Seed, capacity: u64, stripe: u64, unit: u64) -> Self {
        let mut dice = seed.dice("workload");
        let mut weight = |most: u64, never: u32| {
            if dice.one_in(never) { 0 } else { 1 + u32::try_from(dice.below(most)).unwrap_or(0) }
        };
        let weights = [
            weight(6, 8),
            weight(6, 4),
            weight(16, 5),
            weight(6, 4),
            weight(4, 2),
            weight(2, 3),
            weight(2, 3),
            weight(3, 6),
        ];
        let fua = [0, 5, 20][dice.index(3)];
        let hot = [0, 2, 5][dice.index(3)];
        let read_back = [0, 1, 3][dice.index(3)];
        Self {
            seed,
            written: 0..0,
            read_back,
            reader: None,
            binder: None,
            taste: Taste { weights, fua, hot },
            capacity,
            stripe,
            unit,
            hot_spot: dice.below(capacity) / SECTORS_PER_BLOCK * SECTORS_PER_BLOCK,
            stream: 0,
            step: stripe,
            dice,
        }
    }

    /// One of them may read in a row, beside what others do.
    #[must_use]
    pub fn with_reader(mut self, reads: bool) -> Self {
        let dice = self.seed.dice("reader");
        self.reader = reads.then_some(Reader { dice, next: 0, len: self.unit });
        self
    }

    /// One of them may write several ranges at once, beside what others do.
    #[must_use]
    pub fn with_atomic_writes(mut self, writes: bool) -> Self {
        self.binder = writes.then_some(self.seed.dice("atomic writes"));
        self
    }

    /// Ranges of whole blocks that are to be written at once, `max` blocks at most, if it is the turn of the one who
    /// does that; ascending, and whether they are to be stable.
    pub fn draw_atomic(&mut self, max: u32) -> Option<(Vec<Range<u64>>, bool)> {
        let dice = self.binder.as_mut().filter(|_| max > 0)?;
        if !dice.one_in(8) {
            return None;
        }
        let blocks = self.capacity / SECTORS_PER_BLOCK;
        let wanted = 1 + dice.below(u64::from(max).min(blocks).min(12));
        let first = dice.below(blocks);
        // Some in a row, some far from each other.
        let near = dice.one_in(2);
        let mut chosen = BTreeSet::new();
        for at in 0..wanted {
            let block = if near { first + at * (1 + dice.below(3)) } else { dice.below(blocks) };
            chosen.insert(block % blocks);
        }
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for block in chosen {
            let sectors = block * SECTORS_PER_BLOCK..(block + 1) * SECTORS_PER_BLOCK;
            match ranges.last_mut() {
                Some(last) if last.end == sectors.start => last.end = sectors.end,
                _ => ranges.push(sectors),
            }
        }
        Some((ranges, dice.one_in(6)))
    }

    /// What the one who reads in a row wants, if it is his turn.
    fn read_on(&mut self) -> Option<Wanted> {
        let Reader { dice, next, len } = self.reader.as_mut()?;
        if !dice.one_in(2) {
            return None;
        }
        if *next >= self.capacity || dice.one_in(20) {
            *next = dice.below(self.capacity) / self.unit * self.unit;
            *len = (1 + dice.below(self.stripe)).next_multiple_of(self.unit);
        }
        let sectors = *next..(*next + *len).min(self.capacity);
        *next = sectors.end;
        Some(Wanted { op: Op::Read, sectors, fua: false })
    }

    /// The next request.
    pub fn draw(&mut self) -> Wanted {
        if let Some(wanted) = self.read_on() {
            return wanted;
        }
        let total: u32 = self.taste.weights.iter().sum();
        let mut draw = u32::try_from(self.dice.below(u64::from(total.max(1)))).unwrap_or(0);
        let mut kind = 2;
        for (at, weight) in self.taste.weights.iter().enumerate() {
            if draw < *weight {
                kind = at;
                break;
            }
            draw -= weight;
        }
        if self.dice.one_in(40) {
            self.hot_spot = self.place(SECTORS_PER_BLOCK);
        }
        let fua = self.dice.one_in(self.taste.fua);
        let (op, sectors) = match kind {
            0 if !self.written.is_empty() && self.dice.one_in(self.read_back) => {
                (Op::Read, self.written.clone())
            }
            0 => (Op::Read, self.any_range()),
            1 => {
                let at = self.place(self.unit);
                let len = (1 + self.dice.below(10)).next_multiple_of(self.unit);
                (Op::Write, self.range(at, len))
            }
            2 => {
                let at = self.place(SECTORS_PER_BLOCK);
                let blocks = if self.dice.one_in(3) { 1 + self.dice.below(6) } else { 1 };
                (Op::Write, self.range(at, blocks * SECTORS_PER_BLOCK))
            }
            3 => {
                let at = self.place(self.stripe);
                let stripes = if self.dice.one_in(4) { 1 + self.dice.below(3) } else { 1 };
                (Op::Write, self.range(at, stripes * self.stripe))
            }
            4 => {
                if self.dice.one_in(8) {
                    self.step = self.step();
                }
                let range = self.range(self.stream, self.step);
                self.stream = range.end % self.capacity;
                (Op::Write, range)
            }
            5 => (Op::WriteZeroes, self.some_stripes()),
            6 => (Op::Discard, self.some_stripes()),
            _ => (Op::Flush, 0..0),
        };
        if op.changes() {
            self.written = sectors.clone();
        }
        let fua = fua && matches!(op, Op::Write | Op::WriteZeroes);
        Wanted { op, sectors, fua }
    }

    /// Where the parts of a write's data meet, as an export may have received them.
    pub fn cuts(&mut self, len: usize) -> Vec<usize> {
        if !self.dice.one_in(4) {
            return Vec::new();
        }
        let mut cuts: Vec<usize> =
            (0..1 + self.dice.index(3)).map(|_| self.dice.index(len)).collect();
        cuts.sort_unstable();
        cuts
    }

    fn place(&mut self, align: u64) -> u64 {
        if align <= SECTORS_PER_BLOCK && self.dice.one_in(self.taste.hot) {
            let at = self.hot_spot + self.dice.below(2 * SECTORS_PER_BLOCK);
            return at.min(self.capacity - align) / align * align;
        }
        self.dice.below(self.capacity) / align * align
    }

    fn range(&self, at: u64, len: u64) -> Range<u64> {
        at..(at + len).min(self.capacity)
    }

    /// The length of a stream's requests.
    fn step(&mut self) -> u64 {
        let any = 1 + self.dice.below(2 * self.stripe);
        match self.dice.index(4) {
            0 => self.stripe,
            1 => (self.stripe / 2).next_multiple_of(self.unit),
            2 => any.next_multiple_of(SECTORS_PER_BLOCK),
            _ => any.next_multiple_of(self.unit),
        }
    }

    fn any_range(&mut self) -> Range<u64> {
        let at = self.place(self.unit);
        let most = if self.dice.one_in(4) { 2 * self.stripe } else { 16 };
        let len = (1 + self.dice.below(most)).next_multiple_of(self.unit);
        self.range(at, len)
    }

    fn some_stripes(&mut self) -> Range<u64> {
        if self.dice.one_in(2) {
            return self.any_range();
        }
        let at = self.place(self.stripe);
        let len = self.stripe * (1 + self.dice.below(2));
        self.range(at, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_on_the_volume_and_of_every_kind() {
        let mut kinds = std::collections::BTreeMap::new();
        for seed in 0..30 {
            for unit in [1, 8] {
                let (capacity, stripe) = (8 * 64, 64);
                let mut workload = Workload::new(Seed(seed), capacity, stripe, unit);
                for _ in 0..300 {
                    let wanted = workload.draw();
                    let Wanted { op, sectors, fua } = &wanted;
                    assert!(sectors.end <= capacity && sectors.start % unit == 0, "{wanted:?}");
                    assert!(sectors.end % unit == 0, "{wanted:?}");
                    assert_eq!(sectors.is_empty(), *op == Op::Flush);
                    let whole = sectors.start % stripe == 0 && sectors.end % stripe == 0;
                    let kind = (format!("{op:?}"), *fua, whole && !sectors.is_empty());
                    *kinds.entry(kind).or_insert(0) += 1;
                }
            }
        }
        assert!(kinds.len() >= 11, "{kinds:?}");
    }
}
