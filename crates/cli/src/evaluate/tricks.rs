//! Tests that find tricks: two kinds of work in pairs, one after the other. That of flushes is in [`super::flush`].

use anyhow::Result;
use netraid_evaluate::{
    catalogue::TestId,
    estimate::{PIECE_S, REGION_ROUNDS},
    places::BANDS,
    plan::{self, FILLERS, PIECES, REGION_BANDS},
    record::{PairTable, RegionPoint, TestResult},
    statistics::{Comparison, median},
};

use super::{
    data::Content,
    load::{Done, Load},
    session::{Session, figure, prepare},
    target::{Open, Store},
};
use crate::size;

/// The file that is written in pieces.
pub(super) const SCRATCH: u16 = 3;
/// Pieces are taken in steps of this: none follows the one before, so that reading ahead does not help.
const STEP: u64 = 5;

/// Pieces of a file in several bands of the address range.
pub(super) fn regions(session: &mut Session<'_>, result: &mut TestResult) -> Result<()> {
    prepare(session, TestId::Regions)?;
    let Some(places) = session.target.reach.places()? else { return Ok(()) };
    let file = session.ensure(SCRATCH, plan::largest_file(session.common.settings))?;
    let bytes = plan::piece_bytes(session.common.settings).min(places.piece_bytes());
    let mut rates = vec![Vec::new(); REGION_BANDS.len()];
    for round in 0..usize::from(REGION_ROUNDS) {
        for index in 0..REGION_BANDS.len() {
            // Another order in each round.
            let index = (index * 2 + round) % REGION_BANDS.len();
            let begin = REGION_BANDS[index] * places.piece_bytes();
            if begin + bytes > file.bytes {
                continue;
            }
            let load = Load { begin, bytes, seconds: PIECE_S, ..session.load_of(file) };
            rates[index].push(measure(session, SCRATCH, &load, result)?);
        }
    }
    for (band, rates) in REGION_BANDS.iter().zip(rates) {
        let Some(mb_per_s) = median(&rates) else { continue };
        let position = *band as f64 / BANDS as f64;
        result.regions.push(RegionPoint { position, samples_mb_per_s: rates, mb_per_s });
    }
    let rate = |point: Option<&RegionPoint>| point.map(|point| point.mb_per_s);
    if let (Some(first), Some(last)) = (rate(result.regions.first()), rate(result.regions.last())) {
        result.figure = figure(result.test, first / last.max(1e-9));
    }
    Ok(())
}

/// Zeros and random data, written and read.
pub(super) fn compression(session: &mut Session<'_>, result: &mut TestResult) -> Result<()> {
    prepare(session, TestId::Compression)?;
    let settings = session.common.settings;
    let bytes = plan::piece_bytes(settings);
    let mut tables = ["write", "read"].map(|what| table(what, "random data", "zeros", bytes));
    let random = Content::Marked(session.fresh());
    session.forget(SCRATCH);
    for pair in 0..u64::from(settings.pairs) {
        let base = session.load(true, bytes);
        let mut rates = [[0.0; 2]; 2];
        // Where time was over before the piece was, its end holds what was there before.
        let mut reached = [bytes; 2];
        // Which kind is first alternates, so that what drifts drifts for both.
        let order = if pair % 2 == 0 { [0, 1] } else { [1, 0] };
        for write in [true, false] {
            if !write {
                session.forget_cached(SCRATCH)?;
            }
            for kind in order {
                let begin = (pair * 2 + kind) % PIECES * bytes;
                let content = if kind == 0 { random } else { Content::Zeros };
                let side = usize::from(kind == 1);
                let bytes = reached[side];
                if bytes == 0 {
                    continue;
                }
                let load = Load {
                    begin,
                    bytes,
                    content,
                    write,
                    flush: write,
                    seconds: PIECE_S,
                    ..base.clone()
                };
                let done = piece(session, SCRATCH, &load, result)?;
                rates[usize::from(!write)][side] = size::mb_per_s(done.bytes, done.seconds);
                if write {
                    reached[side] = done.reached;
                }
            }
        }
        if reached.contains(&0) {
            continue;
        }
        for (table, [random, zeros]) in tables.iter_mut().zip(rates) {
            table.pairs.push((random, zeros));
        }
    }
    finish(result, tables.into());
    Ok(())
}

/// Reading for the first time in a while, and again.
pub(super) fn cache(session: &mut Session<'_>, result: &mut TestResult) -> Result<()> {
    prepare(session, TestId::Cache)?;
    let settings = session.common.settings;
    let file = session.ensure(0, settings.file_bytes)?;
    let bytes = plan::piece_bytes(settings);
    for filler in FILLERS {
        let fill = session.load(true, settings.file_bytes);
        result.bytes += session.write(filler, Open::New, &fill)?.bytes;
        if let Some(written) = session.written(filler) {
            let load = session.load_of(written);
            measure(session, filler, &load, result)?;
        }
    }
    let mut pairs = table("read", "first", "again", bytes);
    for pair in 0..u64::from(settings.pairs) {
        let begin = pair * STEP % PIECES * bytes;
        if begin + bytes > file.bytes {
            continue;
        }
        let load = Load { begin, bytes, seconds: PIECE_S, ..session.load_of(file) };
        session.forget_cached(0)?;
        let first = measure(session, 0, &load, result)?;
        session.forget_cached(0)?;
        let again = measure(session, 0, &load, result)?;
        pairs.pairs.push((first, again));
    }
    finish(result, vec![pairs]);
    Ok(())
}

pub(super) fn table(what: &str, base: &str, other: &str, bytes: u64) -> PairTable {
    let [what, base, other] = [what, base, other].map(str::to_owned);
    PairTable { what, base, other, bytes, pairs: Vec::new() }
}

/// Runs one piece and gives its rate.
pub(super) fn measure(
    session: &Session<'_>,
    slot: u16,
    load: &Load,
    result: &mut TestResult,
) -> Result<f64> {
    let done = piece(session, slot, load, result)?;
    Ok(size::mb_per_s(done.bytes, done.seconds))
}

pub(super) fn piece(
    session: &Session<'_>,
    slot: u16,
    load: &Load,
    result: &mut TestResult,
) -> Result<Done> {
    work(session, &mut *session.target.reach.open(slot, Open::Old)?, load, result)
}

/// Runs one piece at what is open already.
pub(super) fn work(
    session: &Session<'_>,
    store: &mut dyn Store,
    load: &Load,
    result: &mut TestResult,
) -> Result<Done> {
    let shared = &session.common.shared;
    let done = store.run(load, shared, None)?;
    shared.check()?;
    result.bytes += done.bytes;
    Ok(done)
}

/// The largest median ratio is the figure.
pub(super) fn finish(result: &mut TestResult, tables: Vec<PairTable>) {
    let ratios = tables.iter().filter_map(|table| Comparison::of(&table.pairs, table.bytes));
    let most = ratios.map(|comparison| comparison.ratio).max_by(f64::total_cmp);
    result.figure = most.and_then(|ratio| figure(result.test, ratio));
    result.pairs = tables;
}
