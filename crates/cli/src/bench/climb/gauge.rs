//! One point of a rung: its rate, latencies, and whose processor time it took, over all rounds.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures_util::future::try_join_all;

use super::{
    super::{
        measure::{Tally, Until, Used, Workload, cpu_s, machine_busy_s},
        subject::Bench,
    },
    record::Point,
};

/// How much of a point's time it runs before it is measured: caches and allowances that idle time left are
/// used up then.
const RAMP: f64 = 0.1;

/// What is run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) workload: Workload,
    /// Bytes from the start that are used.
    pub(super) span: u64,
    /// Requests in flight, to each subject.
    pub(super) depth: usize,
    pub(super) seconds: f64,
}

impl Run {
    /// Runs it with all of these at once, for so much of its time.
    async fn all(self, benches: &mut [Bench], part: f64) -> Result<Vec<(Tally, f64)>> {
        let Self { workload, span, depth, seconds } = self;
        let until = Until::Time(Instant::now() + Duration::from_secs_f64(seconds * part));
        let each = |bench| Bench::run(bench, workload, span, depth, until);
        try_join_all(benches.iter_mut().map(each)).await
    }
}

/// What the rounds of a point gave so far.
pub(super) struct Gauge {
    tally: Tally,
    seconds: f64,
    cpu_s: f64,
    engine_cpu_s: Option<f64>,
    others_cpu_s: f64,
}

/// Processor time until now.
struct Clock {
    client: Used,
    servers: Used,
    engine_cpu_s: Option<f64>,
    machine_s: f64,
}

impl Clock {
    fn read(bench: &Bench) -> Result<Self> {
        Ok(Self {
            client: Used::by(&[0])?,
            servers: Used::by(&bench.server_pids)?,
            engine_cpu_s: bench.engine_pid.map(|pid| cpu_s(&[pid])).transpose()?,
            machine_s: machine_busy_s()?,
        })
    }
}

impl Gauge {
    pub(super) fn new() -> Result<Self> {
        let tally = Tally::new()?;
        Ok(Self { tally, seconds: 0.0, cpu_s: 0.0, engine_cpu_s: None, others_cpu_s: 0.0 })
    }

    /// Runs a round with all of these subjects at once, which have the same servers.
    pub(super) async fn round(&mut self, benches: &mut [Bench], run: Run) -> Result<()> {
        run.all(benches, RAMP).await?;
        let before = Clock::read(benches.first().context("a subject")?)?;
        let rounds = run.all(benches, 1.0).await?;
        let after = Clock::read(benches.first().context("a subject")?)?;
        let mut all = Tally::new()?;
        rounds.iter().try_for_each(|(round, _)| all.join(round))?;
        let seconds = rounds.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max);
        let used = (after.client.since(before.client), after.servers.since(before.servers));
        let cpu_s = used.0.cpu_s + used.1.cpu_s;
        self.tally.round(&all, seconds, used)?;
        self.seconds += seconds;
        self.cpu_s += cpu_s;
        self.others_cpu_s += (after.machine_s - before.machine_s - cpu_s).max(0.0);
        if let (Some(after), Some(before)) = (after.engine_cpu_s, before.engine_cpu_s) {
            *self.engine_cpu_s.get_or_insert(0.0) += after - before;
        }
        Ok(())
    }

    /// The rate of each round.
    pub(super) fn rounds(&self) -> &[f64] {
        self.tally.rounds()
    }

    pub(super) fn point(&self, workload: Workload) -> Point {
        let figures = self.tally.figures(workload, None);
        let gigabytes = self.tally.bytes() as f64 / 1e9;
        Point {
            median_mb_per_s: figures.median_mb_per_s(),
            figures,
            engine_cpu_s_per_gb: self.engine_cpu_s.map(|cpu_s| cpu_s / gigabytes),
            processors_busy: self.cpu_s / self.seconds,
            processors_others: self.others_cpu_s / self.seconds,
        }
    }
}
