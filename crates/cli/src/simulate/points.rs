//! Runs points of the model, all seeds of each, on as many threads as there are cores.

use std::{
    collections::BTreeMap,
    num::NonZero,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use anyhow::{Context as _, Result, anyhow, bail};
use netraid_model::{Measures, Model, Operation, Results, summarise, sweep::Point};
use netraid_sim::Seed;
use serde::Serialize;
use serde_json::Value;

use crate::output::Output;

/// Most runs of a command.
const RUNS_MAX: usize = 10_000_000;

/// A point as `--json` gives it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PointResults {
    /// `disks`, `transfer_unit_bytes`, `client_mips`, `operation`, `level`, `reads_in_mix`, and what
    /// was swept, by its path.
    pub(crate) parameters: BTreeMap<String, Value>,
    /// By name: mean, low and high.
    pub(crate) results: Results,
}

/// Runs all points. Which thread runs what has no influence on any result.
pub(crate) fn run(points: &[Point], seeds: u32, output: Output) -> Result<Vec<PointResults>> {
    let seeds = seeds as usize;
    let runs = points.len().saturating_mul(seeds);
    if runs > RUNS_MAX {
        bail!("{runs} runs are more than {RUNS_MAX}; lower --seeds, or sweep fewer values");
    }
    let models: Vec<Model> =
        points.iter().map(|point| Model::new(point.config.clone())).collect::<Result<_, _>>()?;
    let bar = output.progress_of_steps("simulating", runs as u64);
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, Measures)>> {
        let mut done = Vec::new();
        loop {
            let run = next.fetch_add(1, Ordering::Relaxed);
            let (point, seed) = (run / seeds, run % seeds);
            let Some(model) = models.get(point) else { return Ok(done) };
            let measures = model.run(Seed(seed as u64)).with_context(|| describe(&points[point]));
            // The others need not go on when one has failed.
            let measures = measures.inspect_err(|_| next.store(runs, Ordering::Relaxed))?;
            done.push((run, measures));
            bar.inc(1);
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(runs.max(1));
    let mut all: Vec<(usize, Measures)> = thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut all = Vec::new();
        for handle in handles {
            let done = handle.join().map_err(|_| anyhow!("a thread of the simulation panicked"))?;
            all.extend(done?);
        }
        Ok::<_, anyhow::Error>(all)
    })?;
    bar.finish_and_clear();
    all.sort_unstable_by_key(|(run, _)| *run);
    let measures: Vec<Measures> = all.into_iter().map(|(_, measures)| measures).collect();
    Ok(points.iter().zip(measures.chunks(seeds)).map(put_together).collect())
}

fn put_together((point, runs): (&Point, &[Measures])) -> PointResults {
    let config = &point.config;
    let operation = config.operation.map_or("", Operation::name);
    let mut parameters: BTreeMap<String, Value> = point
        .swept
        .iter()
        .map(|(path, value)| (path.clone(), serde_json::to_value(value).unwrap_or_default()))
        .collect();
    parameters.insert("disks".into(), config.disks.into());
    parameters.insert("transfer_unit_bytes".into(), config.transfer_unit_bytes.into());
    parameters.insert("client_mips".into(), config.client.mips.into());
    parameters.insert("operation".into(), operation.into());
    parameters.insert("level".into(), config.level.into());
    parameters.insert("reads_in_mix".into(), config.workload.reads_in_mix.into());
    PointResults { parameters, results: summarise(runs) }
}

fn describe(point: &Point) -> String {
    let swept: Vec<String> =
        point.swept.iter().map(|(path, value)| format!("{path}={value}")).collect();
    let operation = point.config.operation.map_or("", Operation::name);
    format!("operation={operation} {}", swept.join(" ")).trim_end().to_owned()
}
