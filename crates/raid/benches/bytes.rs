//! How fast bytes are summed up and checked, beside copying them:
//! `cargo bench -p netraid-raid --features hardware-crc`.
//!
//! GB/s of the data that goes in, with a working set that stays in the cache ("near") and one that
//! does not ("far").
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use std::{hint::black_box, time::Instant};

use netraid_block::{Buf, Pool, SgList};
use netraid_raid::{
    bytes,
    code::Code,
    geometry::{Geometry, Level},
};

const CHUNK_LEN: usize = 64 << 10;

/// Columns of chunks, some megabytes of them.
struct Rows {
    name: &'static str,
    columns: Vec<SgList>,
}

impl Rows {
    fn new(name: &'static str, len: usize) -> Self {
        let chunk = |at: usize| {
            let bytes: Vec<u8> = (0..CHUNK_LEN).map(|byte| (byte * at).to_le_bytes()[1]).collect();
            Buf::copy_from(&bytes).into()
        };
        Self { name, columns: (1..=len / CHUNK_LEN).map(chunk).collect() }
    }

    /// Does something to all rows of so many columns, again and again, and prints its best rate.
    fn measure(&self, what: &str, columns: usize, mut act: impl FnMut(&[SgList])) {
        let mut best = f64::INFINITY;
        let rows = self.columns.chunks_exact(columns);
        let len = rows.len() * columns * CHUNK_LEN;
        let laps = ((256 << 20) / len).max(1);
        for _ in 0..7 {
            let begin = Instant::now();
            for _ in 0..laps {
                rows.clone().for_each(&mut act);
            }
            best = best.min(begin.elapsed().as_secs_f64() / laps as f64);
        }
        println!("{:<5} {what:<34} {:6.1} GB/s", self.name, len as f64 / best / 1e9);
    }
}

fn code(level: Level, members: usize) -> Code {
    Code::new(&Geometry::new(level, members, 64 << 10, 512, 16, 0).unwrap())
}

fn main() {
    let pool = Pool::new();
    for rows in [Rows::new("near", 640 << 10), Rows::new("far", 256 << 20)] {
        rows.measure("copy", 1, |row| {
            let mut copy = pool.get(CHUNK_LEN);
            row[0].copy_to(&mut copy);
            black_box(copy.freeze());
        });
        rows.measure("sums", 1, |row| {
            black_box(bytes::sums(&row[0]));
        });
        for (what, level, members) in [
            ("checks, 4 data and P", Level::Raid5, 5),
            ("checks, 10 data and P", Level::Raid5, 11),
            ("checks, 4 data, P and Q", Level::Raid6, 6),
            ("checks, 10 data, P and Q", Level::Raid6, 12),
        ] {
            let code = code(level, members);
            rows.measure(what, usize::from(code.data_columns()), |row| {
                black_box(bytes::checks(&pool, &code, row));
            });
        }
        for (what, lost) in [
            ("a column from P", [0, 5]),
            ("a column from Q", [0, 4]),
            ("a column from P and Q", [0, 1]),
        ] {
            let code = code(Level::Raid6, 6);
            let readable = code.all().without(lost[0]).without(lost[1]);
            let recipe = code.recipe(lost[0], readable).unwrap();
            // As many columns as are summed up stand for those of the recipe.
            rows.measure(what, recipe.len(), |row| {
                let sources: Vec<(u8, &SgList)> =
                    recipe.iter().zip(row).map(|((_, weight), column)| (*weight, column)).collect();
                black_box(bytes::combine(&pool, CHUNK_LEN, &sources));
            });
        }
        for (what, weight) in
            [("update of P, blocks of 4 KiB", 1), ("update of Q, blocks of 4 KiB", 2)]
        {
            rows.measure(what, 2, |row| {
                for at in 0..CHUNK_LEN / 4096 {
                    let [old, new] =
                        [&row[0], &row[1]].map(|column| bytes::block(column, at).into());
                    black_box(bytes::update(&pool, &old, &[(weight, &old, &new)]));
                }
            });
        }
    }
}
