//! The test of flushes: bursts with a flush after a pause beside long writes, and, where bursts are faster, the
//! controls that tell why.

use anyhow::Result;
use netraid_evaluate::{
    catalogue::TestId,
    estimate::{LONG_S, PIECE_S, pause_s},
    judge,
    plan::{self, LONG_SLOTS, SHORT_SLOT},
    record::{PairTable, Role, Round, TestResult},
    statistics::median,
};

use super::{
    load::Load,
    session::{Session, prepare},
    streams::stream_of,
    target::{Open, Store},
    tricks::{SCRATCH, finish, measure, piece, table, work},
};
use crate::size;

/// Bursts with a flush after a pause, and long writes with one, all over a file that is there.
pub(super) fn flush(session: &mut Session<'_>, result: &mut TestResult) -> Result<()> {
    prepare(session, TestId::Flush)?;
    // Where making a file costs, writing over one does not: only what was written over is compared.
    session.ensure(SCRATCH, session.common.settings.file_bytes)?;
    let rate = whole(session, result)?;
    let mut tables = bursts(session, result, rate)?;
    let long_rates: Vec<f64> = tables[0].pairs.iter().map(|pair| pair.0).collect();
    let rate = median(&long_rates).unwrap_or(rate);
    if result.rounds.iter().all(|round| judge::is_above(rate, round.mb_per_s)) {
        // Something else may have slowed it down.
        whole(session, result)?;
    }
    if !session.target.reach.open(SCRATCH, Open::Old)?.flush()? {
        result.notes.push(judge::NO_FLUSH.to_owned());
    }
    let controls = match judge::faster_bursts(&tables) {
        Some(bytes) => {
            let rewrites = rewrites(session, result, bytes)?;
            let [shape, pause] = reads(session, result, rate, bytes)?;
            vec![rewrites, shape, pause]
        }
        None => Vec::new(),
    };
    tables.retain(|table| !table.pairs.is_empty());
    finish(result, tables);
    result.pairs.extend(controls);
    Ok(())
}

/// Writes over a whole file, and gives the rate.
fn whole(session: &mut Session<'_>, result: &mut TestResult) -> Result<f64> {
    let load = session.load(true, session.common.settings.file_bytes);
    let done = piece(session, SCRATCH, &load, result)?;
    session.forget(SCRATCH);
    let stream = stream_of(Role::Write, "", &done, None);
    let mb_per_s = stream.mb_per_s;
    result.rounds.push(Round { mb_per_s, streams: vec![stream] });
    Ok(mb_per_s)
}

/// Bursts and small ones, each after a pause, beside long writes. `rate` is that of what was written last.
fn bursts(
    session: &mut Session<'_>,
    result: &mut TestResult,
    mut rate: f64,
) -> Result<Vec<PairTable>> {
    let settings = session.common.settings;
    let (burst, long) = plan::burst_bytes(settings);
    let small = plan::small_burst_bytes(settings);
    let mut of_bursts = table(judge::WRITE, "long", "burst", burst);
    let mut of_small = table(judge::WRITE_SMALL, "long", "small burst", small.unwrap_or(burst));
    let mut flushes = Vec::new();
    // The first pause lets a whole file drain.
    let mut before = settings.file_bytes;
    for pair in 0..u64::from(settings.pairs) {
        // A cache that holds what was written before is to be empty.
        session.common.shared.pause(pause_s(before, rate))?;
        let begin = 3 * long + pair % plan::LONG_TO_BURST * burst;
        let load = write(session, begin, burst, PIECE_S);
        let done = piece(session, SCRATCH, &load, result)?;
        flushes.push(done.flush_s);
        let burst_rate = size::mb_per_s(done.bytes, done.seconds);
        let small_rate = match small {
            Some(small) => {
                session.common.shared.pause(pause_s(burst, rate))?;
                // Where no burst is for some pairs.
                let begin =
                    3 * long + (pair + plan::LONG_TO_BURST / 2) % plan::LONG_TO_BURST * burst;
                let load = write(session, begin, small, PIECE_S);
                Some(measure(session, SCRATCH, &load, result)?)
            }
            None => None,
        };
        let load = write(session, pair % 3 * long, long, LONG_S);
        rate = measure(session, SCRATCH, &load, result)?;
        before = long;
        of_bursts.pairs.push((rate, burst_rate));
        of_small.pairs.extend(small_rate.map(|small_rate| (rate, small_rate)));
    }
    if let Some(seconds) = median(&flushes) {
        result.notes.push(format!("a flush after a burst takes {:.0} us", seconds * 1e6));
    }
    Ok(vec![of_bursts, of_small])
}

/// Writes in one place of so many bytes, again and again and each with its flush, directly behind long writes: what
/// is counted by a throttle, and what a cache takes for ever.
fn rewrites(session: &mut Session<'_>, result: &mut TestResult, place: u64) -> Result<PairTable> {
    let settings = session.common.settings;
    let (_, long) = plan::burst_bytes(settings);
    let times = (long / place).max(1);
    let mut pairs = table(judge::REWRITE, "long", "in one place", times * place);
    for pair in 0..u64::from(settings.pairs) {
        // Opened once: a login between the two would be a pause.
        let mut store = session.target.reach.open(SCRATCH, Open::Old)?;
        let load = write(session, pair % 3 * long, long, LONG_S);
        let long_done = work(session, &mut *store, &load, result)?;
        let (mut bytes, mut seconds) = (0, 0.0);
        for time in 0..=times {
            let load = write(session, 3 * long, place, PIECE_S);
            let done = work(session, &mut *store, &load, result)?;
            // By the first one the place comes into a cache that is full of the long write.
            if time > 0 {
                bytes += done.bytes;
                seconds += done.seconds;
            }
            if seconds > LONG_S {
                break;
            }
        }
        let long_rate = size::mb_per_s(long_done.bytes, long_done.seconds);
        pairs.pairs.push((long_rate, size::mb_per_s(bytes, seconds)));
    }
    Ok(pairs)
}

/// Reads of the shape of bursts of `short` bytes and of long writes, of what was not touched for a while; the short
/// ones after a pause and without.
fn reads(
    session: &mut Session<'_>,
    result: &mut TestResult,
    mut rate: f64,
    short: u64,
) -> Result<[PairTable; 2]> {
    let settings = session.common.settings;
    let (_, long) = plan::burst_bytes(settings);
    let shorts = session.ensure(SHORT_SLOT, settings.file_bytes)?;
    for slot in LONG_SLOTS {
        session.ensure(slot, settings.file_bytes)?;
    }
    // What lies between.
    let fill = session.load(true, settings.file_bytes);
    result.bytes += session.write(SCRATCH, Open::New, &fill)?.bytes;
    let mut shape = table(judge::READ, "long", "burst", short);
    let mut pause = table(judge::READ_SHORT, "at once", "after a pause", short);
    for pair in 0..u64::from(settings.pairs) {
        let at = plan::control_reads(pair, settings);
        let longs = session.ensure(at.long_slot, settings.file_bytes)?;
        if at.long_begin + long > longs.bytes || at.rested.max(at.hurried) + short > shorts.bytes {
            continue;
        }
        let of_short = session.load_of(shorts);
        let piece = |begin| Load { begin, bytes: short, seconds: PIECE_S, ..of_short.clone() };
        let (rested, hurried) = (piece(at.rested), piece(at.hurried));
        let at_length =
            Load { begin: at.long_begin, bytes: long, seconds: LONG_S, ..session.load_of(longs) };
        session.forget_cached(at.long_slot)?;
        session.forget_cached(SHORT_SLOT)?;
        // Opened before: a login between the long read and the one behind it would be a pause.
        let reach = &session.target.reach;
        let mut of_shorts = reach.open(SHORT_SLOT, Open::Old)?;
        let mut of_longs = reach.open(at.long_slot, Open::Old)?;
        session.common.shared.pause(pause_s(long, rate))?;
        let mut measure = |store: &mut dyn Store, load| work(session, store, load, result);
        let rested = measure(&mut *of_shorts, &rested)?;
        let long_rate = measure(&mut *of_longs, &at_length)?;
        let hurried = measure(&mut *of_shorts, &hurried)?;
        let [rested, long_rate, hurried] =
            [rested, long_rate, hurried].map(|done| size::mb_per_s(done.bytes, done.seconds));
        rate = long_rate;
        shape.pairs.push((long_rate, rested));
        pause.pairs.push((hurried, rested));
    }
    Ok([shape, pause])
}

/// New bytes for a part of the file: what is there already could be left out.
fn write(session: &mut Session<'_>, begin: u64, bytes: u64, seconds: f64) -> Load {
    Load { begin, bytes, seconds, ..session.load(true, bytes) }
}
