//! A model of how stripes of several widths share a volume (docs/decisions/0014-formats-for-what-comes.md): stripes of
//! layouts with more or fewer data columns, snapshots, discards, and a conversion that is cut short anywhere, against a
//! flat volume.

use std::collections::BTreeMap;

use netraid_raid::stripes::Interval;
use rand::{Rng, SeedableRng, rngs::StdRng};

/// Data columns of each layout, the oldest first.
const COLUMNS: [usize; 3] = [3, 4, 2];
const CHUNKS: usize = 48;

/// A physical stripe: where it belongs, and what its chunks hold; 0: zeros.
#[derive(Clone)]
struct Stripe {
    interval: Interval,
    number: usize,
    chunks: Vec<u32>,
}

impl Stripe {
    fn columns(&self) -> usize {
        COLUMNS[usize::from(self.interval.layout)]
    }

    fn covers(&self, chunk: usize) -> bool {
        chunk / self.columns() == self.number
    }

    fn is_in(&self, snapshot: u32) -> bool {
        let Interval { born, left, .. } = self.interval;
        born <= snapshot && (left == 0 || snapshot < left)
    }
}

#[derive(Default)]
struct Volume {
    slots: Vec<Stripe>,
    next_number: u32,
    snapshots: Vec<u32>,
    newest: u8,
}

impl Volume {
    /// Rule 3: of the stripes that hold a chunk the one of the newest layout counts.
    fn find(&self, chunk: usize, of: impl Fn(&Stripe) -> bool) -> Option<usize> {
        let holds = |at: &usize| self.slots[*at].covers(chunk) && of(&self.slots[*at]);
        (0..self.slots.len()).filter(holds).max_by_key(|at| self.slots[*at].interval.layout)
    }

    fn read_of(&self, chunk: usize, of: impl Fn(&Stripe) -> bool) -> u32 {
        self.find(chunk, of).map_or(0, |at| {
            let stripe = &self.slots[at];
            stripe.chunks[chunk % stripe.columns()]
        })
    }

    fn read(&self, chunk: usize) -> u32 {
        self.read_of(chunk, |stripe| stripe.interval.left == 0)
    }

    fn read_snapshot(&self, chunk: usize, snapshot: u32) -> u32 {
        self.read_of(chunk, |stripe| stripe.is_in(snapshot))
    }

    /// Leaves a stripe: a snapshot keeps it, or it is free.
    fn leave(&mut self, at: usize) {
        self.slots[at].interval.left = self.next_number;
        self.free();
    }

    /// Frees what neither the volume nor a snapshot contains.
    fn free(&mut self) {
        let snapshots = self.snapshots.clone();
        self.slots.retain(|stripe| {
            stripe.interval.left == 0 || snapshots.iter().any(|one| stripe.is_in(*one))
        });
    }

    /// Rules 4 and 5: a stripe of a layout is written as a whole, and what it covers is left.
    fn write_stripe(&mut self, layout: u8, number: usize, change: impl Fn(usize) -> Option<u32>) {
        let columns = COLUMNS[usize::from(layout)];
        let range = number * columns..(number + 1) * columns;
        let chunks = range.map(|chunk| change(chunk).unwrap_or_else(|| self.read(chunk))).collect();
        let same = |stripe: &Stripe| {
            (stripe.interval.left, stripe.interval.layout, stripe.number) == (0, layout, number)
        };
        if let Some(before) = self.slots.iter().position(same) {
            self.leave(before);
        }
        let interval = Interval { layout, ..Interval::open(self.next_number) };
        self.slots.push(Stripe { interval, number, chunks });
        while let Some(covered) = self.slots.iter().position(|stripe| self.is_covered(stripe)) {
            self.leave(covered);
        }
    }

    fn is_covered(&self, stripe: &Stripe) -> bool {
        let columns = stripe.columns();
        let mut chunks = stripe.number * columns..(stripe.number + 1) * columns;
        let is_newer = |other: &Stripe| {
            other.interval.left == 0 && other.interval.layout > stripe.interval.layout
        };
        stripe.interval.left == 0 && chunks.all(|chunk| self.find(chunk, is_newer).is_some())
    }

    /// New contents of a chunk: where the stripe is that holds it, if no snapshot shares that.
    fn write_chunk(&mut self, chunk: usize, content: u32) {
        let at = self.find(chunk, |stripe| stripe.interval.left == 0);
        let shared = |at: usize| self.snapshots.iter().any(|one| self.slots[at].is_in(*one));
        match at {
            Some(at) if !shared(at) => {
                let stripe = &mut self.slots[at];
                let column = chunk % stripe.columns();
                stripe.chunks[column] = content;
            }
            Some(at) => {
                let (layout, number) = (self.slots[at].interval.layout, self.slots[at].number);
                self.write_stripe(layout, number, |one| (one == chunk).then_some(content));
            }
            None => {
                let number = chunk / COLUMNS[usize::from(self.newest)];
                self.write_stripe(self.newest, number, |one| (one == chunk).then_some(content));
            }
        }
    }

    /// Rule 6: a whole stripe of the newest layout reads zeros, and stays where something is beneath.
    fn discard(&mut self, number: usize) {
        self.write_stripe(self.newest, number, |_| Some(0));
        let columns = COLUMNS[usize::from(self.newest)];
        let mut chunks = number * columns..(number + 1) * columns;
        let is_older =
            |stripe: &Stripe| stripe.interval.left == 0 && stripe.interval.layout < self.newest;
        if chunks.all(|chunk| self.find(chunk, is_older).is_none()) {
            let layout = self.newest;
            let is_it = |stripe: &Stripe| {
                (stripe.interval.left, stripe.interval.layout, stripe.number) == (0, layout, number)
            };
            if let Some(at) = self.slots.iter().position(is_it) {
                self.leave(at);
            }
        }
    }
}

#[test]
fn stripes_of_several_widths_and_snapshots_read_as_a_flat_volume_does() {
    let mut conversions = 0;
    for seed in 0..300 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut volume = Volume { next_number: 1, ..Volume::default() };
        let mut flat = vec![0; CHUNKS];
        let mut kept: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut frontier = 0;
        for content in 1..400 {
            match rng.random_range(0..12) {
                0..=5 => {
                    let chunk = rng.random_range(0..CHUNKS);
                    volume.write_chunk(chunk, content);
                    flat[chunk] = content;
                }
                6 => {
                    let columns = COLUMNS[usize::from(volume.newest)];
                    let number = rng.random_range(0..CHUNKS / columns);
                    volume.discard(number);
                    flat[number * columns..(number + 1) * columns].fill(0);
                }
                7 if volume.snapshots.len() < 4 => {
                    volume.snapshots.push(volume.next_number);
                    kept.insert(volume.next_number, flat.clone());
                    volume.next_number += 1;
                }
                8 if !volume.snapshots.is_empty() => {
                    let at = rng.random_range(0..volume.snapshots.len());
                    kept.remove(&volume.snapshots.remove(at));
                    volume.free();
                }
                9 | 10 => {
                    // A conversion goes on, in ascending order.
                    let columns = COLUMNS[usize::from(volume.newest)];
                    if frontier < CHUNKS / columns {
                        let before = volume.slots.len();
                        volume.write_stripe(volume.newest, frontier, |_| None);
                        frontier += 1;
                        if volume.snapshots.is_empty() {
                            assert!(volume.slots.len() <= before + 1, "seed {seed}");
                        }
                    }
                }
                _ if frontier >= CHUNKS / COLUMNS[usize::from(volume.newest)]
                    && usize::from(volume.newest) + 1 < COLUMNS.len() =>
                {
                    let is_left = |stripe: &Stripe| {
                        stripe.interval.left != 0 || stripe.interval.layout == volume.newest
                    };
                    assert!(volume.slots.iter().all(is_left), "seed {seed}: all is converted");
                    volume.newest += 1;
                    frontier = 0;
                    conversions += 1;
                }
                _ => {}
            }
            let now: Vec<u32> = (0..CHUNKS).map(|chunk| volume.read(chunk)).collect();
            assert_eq!(now, flat, "seed {seed}, step {content}");
            for (snapshot, then) in &kept {
                let read = (0..CHUNKS).map(|chunk| volume.read_snapshot(chunk, *snapshot));
                assert!(read.eq(then.iter().copied()), "seed {seed}, snapshot {snapshot}");
            }
        }
    }
    assert!(conversions > 100, "{conversions}");
}
