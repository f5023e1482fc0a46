//! Bare TCP over loopback with the requests of a workload, beside the workload and in the same rounds: what
//! nothing that moves as many bytes by a network goes below.

use std::{fmt::Write as _, time::Duration};

use anyhow::Result;
use serde::Serialize;

use super::{
    Options,
    measure::{Figures, Workload},
    raw_tcp::{self, Run},
};

/// Bytes that the server of bare TCP has: more than caches hold.
const MEMORY_LEN: usize = 256 << 20;
/// While bare TCP runs, nobody answers the members: it runs no longer than this.
const SECONDS_MAX: f64 = 2.0;

/// What was measured of bare TCP so far.
pub(super) struct Limits {
    memory: Vec<u8>,
    workloads: Vec<Measured>,
}

struct Measured {
    workload: Workload,
    runs: Vec<Run>,
}

/// Bare TCP with the requests of one workload.
#[derive(Debug, Serialize)]
pub(super) struct LimitFigures {
    workload: String,
    mb_per_s: f64,
    client_cpu_s_per_gb: f64,
    server_cpu_s_per_gb: f64,
}

impl Limits {
    /// For these workloads.
    pub(super) fn new(workloads: impl Iterator<Item = Workload>) -> Self {
        // Written, so that it is memory.
        let memory = vec![1; MEMORY_LEN];
        let workloads = workloads.map(|workload| Measured { workload, runs: Vec::new() });
        Self { memory, workloads: workloads.collect() }
    }

    /// Runs one of them.
    ///
    /// # Errors
    /// When loopback cannot be used.
    pub(super) fn measure(&mut self, at: usize, options: &Options) -> Result<()> {
        let Measured { workload, runs } = &mut self.workloads[at];
        let time = Duration::from_secs_f64(options.seconds.min(SECONDS_MAX));
        let depth = options.depth.into();
        runs.push(match options.limit_connections {
            1 => raw_tcp::run(*workload, depth, time, &mut self.memory)?,
            many => raw_tcp::run_spread(*workload, depth, time, &mut self.memory, many)?,
        });
        Ok(())
    }

    pub(super) fn figures(&self) -> Vec<LimitFigures> {
        self.workloads.iter().map(Measured::figures).collect()
    }
}

impl Measured {
    fn figures(&self) -> LimitFigures {
        let sum = |of: fn(&Run) -> f64| self.runs.iter().map(of).sum::<f64>();
        let gigabytes = sum(|run| run.requests as f64) * f64::from(self.workload.len) / 1e9;
        LimitFigures {
            workload: self.workload.name(),
            mb_per_s: gigabytes * 1e3 / sum(|run| run.seconds),
            client_cpu_s_per_gb: sum(|run| run.client_cpu_s) / gigabytes,
            server_cpu_s_per_gb: sum(|run| run.server_cpu_s) / gigabytes,
        }
    }
}

/// The limits, and what the subject is of them.
pub(super) fn text(limits: &[LimitFigures], subject: &[Figures]) -> String {
    let mut text = String::from(
        "Bare TCP over loopback, the same requests in the same rounds, and what the subject is of it\n\n\
         | workload                  |  MB/s | client CPU s/GB | server CPU s/GB | rate | CPU of all |\n\
         | ------------------------- | ----: | --------------: | --------------: | ---: | ---------: |\n",
    );
    for (limit, figures) in limits.iter().zip(subject) {
        let LimitFigures { workload, mb_per_s, client_cpu_s_per_gb, server_cpu_s_per_gb } = limit;
        let rate = figures.mb_per_s() / mb_per_s;
        let cpu = figures.cpu_s_per_gb() / (client_cpu_s_per_gb + server_cpu_s_per_gb);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {workload:<25} | {mb_per_s:>5.0} | {client_cpu_s_per_gb:>15.2} | \
             {server_cpu_s_per_gb:>15.2} | {rate:>4.2} | {cpu:>10.2} |"
        );
    }
    text
}
