//! `netraid bench parity`: what XOR, P with Q, and checksums do a second, beside copying, by the size of a
//! buffer and the number of sources; on one processor and on all.

use std::{
    fmt::Write as _,
    hint::black_box,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use netraid_parity::{dual, xor};
use netraid_raid::crc;
use serde::Serialize;

use super::fit::Line;
use crate::{output::Output, pattern, size};

/// Bytes of a buffer, by powers of two.
const LENS: std::ops::RangeInclusive<u32> = 10..=20;
/// Columns that go into a sum.
const SOURCES: [usize; 5] = [1, 2, 4, 8, 16];
/// Bytes of rows between two looks at the clock, at least.
const UNTIMED_LEN: usize = 256 << 10;
/// What has a checksum of its own, in bytes.
const BLOCK_LEN: usize = 4096;
/// How often each point is measured, in turns; the best counts: what disturbs only slows.
const ROUNDS: usize = 3;

#[derive(Debug, Clone, Args)]
pub(super) struct ParityArgs {
    /// Milliseconds of one point in one round
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(super) milliseconds: u64,
    /// Bytes that each processor walks through: more than its caches hold, for the speed of memory;
    /// by default each point uses its own buffers again and again
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(super) walk: Option<u64>,
}

/// What is done to bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Work {
    Copy,
    Checksum,
    Xor,
    PAndQ,
}

impl Work {
    /// It in words.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Checksum => "CRC32C",
            Self::Xor => "XOR",
            Self::PAndQ => "P and Q",
        }
    }

    /// Buffers that it writes.
    const fn results(self) -> usize {
        match self {
            Self::Copy | Self::Checksum | Self::Xor => 1,
            Self::PAndQ => 2,
        }
    }
}

/// One size of buffers.
#[derive(Debug, Serialize)]
pub(super) struct Point {
    pub(super) buffer_bytes: usize,
    /// GB/s of what goes in, of all processors together.
    pub(super) gb_per_s: f64,
}

/// Work with so many sources on so many processors, for all sizes of buffers.
#[derive(Debug, Serialize)]
pub(super) struct Series {
    pub(super) work: Work,
    pub(super) sources: usize,
    pub(super) processors: usize,
    pub(super) points: Vec<Point>,
    /// Time of a buffer of every source as overhead and rate; per processor.
    pub(super) overhead_ns: f64,
    pub(super) peak_gb_per_s: f64,
}

/// All that was measured.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) walk_bytes: Option<u64>,
    pub(super) series: Vec<Series>,
}

pub(super) fn run(args: &ParityArgs, output: Output) -> Result<()> {
    let report = measure_all(args)?;
    output.document(&report, || text(&report))
}

/// Measures all kinds of work, on one processor and on all.
///
/// # Errors
/// When `--walk` is out of range.
pub(super) fn measure_all(args: &ParityArgs) -> Result<Report> {
    if args.walk.is_some_and(|walk| !(1 << 20..=1 << 32).contains(&walk)) {
        bail!("--walk: give 1MiB to 4GiB");
    }
    let all = thread::available_parallelism().context("number of processors")?.get();
    let mut processors = vec![1];
    processors.extend((all > 1).then_some(all));
    let one = vec![1];
    let kinds = [
        (Work::Copy, one.clone()),
        (Work::Checksum, one),
        (Work::Xor, SOURCES.into()),
        (Work::PAndQ, SOURCES.into()),
    ];
    let kinds =
        kinds.iter().flat_map(|(work, sources)| sources.iter().map(|count| (*work, *count)));
    let longest = (SOURCES[SOURCES.len() - 1] + 2) << LENS.end();
    let walk = args.walk.map(usize::try_from).transpose()?;
    let mut memory = vec![0; longest.max(walk.unwrap_or(0))];
    pattern::fill(1, 0, &mut memory);
    let mut memories = vec![memory; all];
    let mut series = Vec::new();
    for processors in processors {
        for (work, sources) in kinds.clone() {
            let memories = &mut memories[..processors];
            series.push(measure(work, sources, memories, walk.unwrap_or(0), args));
        }
    }
    Ok(Report { walk_bytes: args.walk, series })
}

/// Measures all sizes, on as many processors as there are memories.
fn measure(
    work: Work,
    sources: usize,
    memories: &mut [Vec<u8>],
    walk: usize,
    args: &ParityArgs,
) -> Series {
    let patience = Duration::from_millis(args.milliseconds);
    let mut points: Vec<Point> =
        LENS.map(|bits| Point { buffer_bytes: 1 << bits, gb_per_s: 0.0 }).collect();
    for _ in 0..ROUNDS {
        for point in &mut points {
            let rate = rate(work, (sources, point.buffer_bytes), memories, walk, patience);
            point.gb_per_s = point.gb_per_s.max(rate);
        }
    }
    let processors = memories.len();
    let of_bytes = |point: &Point| (point.buffer_bytes * sources) as f64;
    let time = |point: &Point| of_bytes(point) * processors as f64 / point.gb_per_s;
    let line = Line::fit(points.iter().map(|point| (of_bytes(point), time(point))));
    let (overhead_ns, peak_gb_per_s) = (line.overhead, 1.0 / line.each);
    Series { work, sources, processors, points, overhead_ns, peak_gb_per_s }
}

/// GB/s of what goes in, of all processors together. Each walks through rows of its memory, or uses the
/// first one again and again.
fn rate(
    work: Work,
    (sources, len): (usize, usize),
    memories: &mut [Vec<u8>],
    walk: usize,
    patience: Duration,
) -> f64 {
    let row_len = (sources + work.results()) * len;
    let begin = Barrier::new(memories.len());
    let one = |memory: &mut Vec<u8>| {
        let rows = &mut memory[..row_len * (walk / row_len).max(1)];
        act(work, &mut rows[..row_len], len);
        begin.wait();
        // Asking for the time takes as long as a short row.
        let laps = (UNTIMED_LEN / rows.len()).max(1);
        let lap_len = rows.len() / row_len * sources * len;
        let (began, mut bytes) = (Instant::now(), 0_u64);
        loop {
            for _ in 0..laps {
                rows.chunks_exact_mut(row_len).for_each(|row| act(work, row, len));
            }
            bytes += (laps * lap_len) as u64;
            let took = began.elapsed();
            if took >= patience {
                return bytes as f64 / took.as_secs_f64() / 1e9;
            }
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> =
            memories.iter_mut().map(|memory| scope.spawn(|| one(memory))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(0.0)).sum()
    })
}

/// Sums up a row: its results first, then its sources.
fn act(work: Work, row: &mut [u8], len: usize) {
    let (results, sources) = row.split_at_mut(work.results() * len);
    let mut columns = [&[][..]; 16];
    let count = sources.len() / len;
    for (column, source) in columns.iter_mut().zip(sources.chunks_exact(len)) {
        *column = source;
    }
    let columns = &columns[..count];
    match work {
        Work::Copy => results.copy_from_slice(columns[0]),
        // Each block has a checksum of its own.
        Work::Checksum => {
            for block in columns[0].chunks(BLOCK_LEN) {
                results[..4].copy_from_slice(&crc::append(0, block).to_le_bytes());
            }
        }
        Work::Xor => xor(results, columns),
        Work::PAndQ => {
            let (p, q) = results.split_at_mut(len);
            dual::p_and_q(p, q, columns);
        }
    }
    black_box(results);
}

/// The report as tables, in Markdown.
pub(super) fn text(report: &Report) -> String {
    let mut text =
        String::from("GB/s of what goes in; overhead and peak as fitted, of one processor\n");
    let mut processors = 0;
    for series in &report.series {
        if series.processors != processors {
            processors = series.processors;
            let lens = series.points.iter().map(|point| size::show(point.buffer_bytes as u64));
            let lens: String = lens.map(|len| format!(" {len:>7} |")).collect();
            let rule: String = series.points.iter().map(|_| " ------: |").collect();
            let plural = if processors == 1 { "" } else { "s" };
            // Writing to a string cannot fail.
            let _ = write!(text, "\n{processors} processor{plural}\n\n");
            let _ =
                writeln!(text, "| work    | sources |{lens} overhead ns | peak GB/s | of copy |");
            let _ =
                writeln!(text, "| ------- | ------: |{rule} ----------: | --------: | ------: |");
        }
        let rates = series.points.iter().map(|point| format!(" {:>7.1} |", point.gb_per_s));
        let rates: String = rates.collect();
        let copy = report.series.iter().find(|one| one.processors == processors);
        let of_copy = series.peak_gb_per_s / copy.map_or(f64::NAN, |copy| copy.peak_gb_per_s);
        let _ = writeln!(
            text,
            "| {:<7} | {:>7} |{rates} {:>11.0} | {:>9.1} | {of_copy:>7.2} |",
            series.work.name(),
            series.sources,
            series.overhead_ns,
            series.peak_gb_per_s
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_summed_up_from_all_of_its_sources() {
        let mut row = vec![0; 3 * 64];
        row[64..].iter_mut().enumerate().for_each(|(at, byte)| *byte = u8::try_from(at).unwrap());
        act(Work::Xor, &mut row, 64);
        assert!((0..64).all(|at| row[at] == row[64 + at] ^ row[128 + at]));
        row[..64].fill(0);
        act(Work::PAndQ, &mut row, 64);
        assert_eq!(
            row[..128],
            [&row[128..], &row[128..]].concat()[..],
            "one source is its own sum"
        );
    }
}
