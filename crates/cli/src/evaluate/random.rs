//! Random requests of 4 KiB at several depths.

use anyhow::Result;
use netraid_evaluate::{
    catalogue::TestId,
    record::{RandomPoint, TestResult},
};

use super::{
    load::Load,
    session::{Session, figure, prepare},
    target::Open,
};
use crate::size;

/// Bytes of a request.
const REQUEST: u32 = 4096;

/// Runs all depths; the figure is that of the deepest.
pub(super) fn run(session: &mut Session<'_>, test: TestId, result: &mut TestResult) -> Result<()> {
    let settings = session.common.settings;
    prepare(session, test)?;
    let write = test == TestId::RandomWrite;
    let file = session.ensure(0, settings.file_bytes)?;
    if write && !session.target.info.direct {
        let note = "latencies are those of this machine's page cache: the target takes no O_DIRECT";
        result.notes.push(note.to_owned());
    }
    for depth in &settings.depths {
        // What one depth read is no head start for the next one.
        session.forget_cached(0)?;
        let load = Load {
            write,
            request: REQUEST,
            depth: *depth,
            random: Some(session.fresh()),
            repeat: true,
            seconds: settings.random_s,
            content: file.content,
            flush: write,
            ..session.load_of(file)
        };
        let done =
            session.target.reach.open(0, Open::Old)?.run(&load, &session.common.shared, None)?;
        session.common.shared.check()?;
        result.bytes += done.bytes;
        result.random.push(RandomPoint {
            depth: *depth,
            requests: done.requests,
            seconds: done.seconds,
            iops: done.requests as f64 / done.seconds.max(1e-9),
            mb_per_s: size::mb_per_s(done.bytes, done.seconds),
            latency: done.latency,
        });
    }
    result.figure = result.random.last().and_then(|point| figure(test, point.iops));
    Ok(())
}
