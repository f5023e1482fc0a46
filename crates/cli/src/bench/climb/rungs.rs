//! The rungs: what is measured, in which order.

use std::{
    iter,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use indicatif::ProgressBar;
use netraid_raid::geometry::Level;

use super::{
    super::{
        measure::{Until, Workload},
        parity, raw_tcp,
        subject::Bench,
        transport,
    },
    ClimbArgs,
    gauge::{Gauge, Run},
    judge::data_share,
    members::Members,
    record::{DepthPoint, SizePoint, Step, What},
};
use crate::{output::Output, signal::Stop};

/// Bytes of a small request.
const SMALL_LEN: u32 = 4 << 10;
/// How many times longer than a point of a round a volume may be written before it is measured.
const FILL_TIMES: f64 = 4.0;
/// Bytes that bare TCP's servers have together: more than caches hold.
const MEMORY_LEN: usize = 256 << 20;

/// What all rungs give, in the order of the climb.
pub(super) type Measured =
    (parity::Report, transport::Report, Vec<DepthPoint>, Vec<Step>, Vec<SizePoint>);

/// What is climbed, and how.
pub(super) struct Rungs<'a> {
    pub(super) args: &'a ClimbArgs,
    pub(super) members: &'a Members,
    pub(super) stop: &'a Stop,
    pub(super) output: Output,
}

/// A step while its rounds run; what and how many members, whether it writes.
struct Climbing {
    what: What,
    members: u8,
    write: bool,
    rounds: Vec<f64>,
    gauge: Gauge,
}

impl Rungs<'_> {
    /// Climbs all of them.
    ///
    /// # Errors
    /// When a member, a target or the export fails, or a signal came.
    pub(super) async fn climb(&self) -> Result<Measured> {
        let parity = parity::measure_all(&self.args.parity())?;
        self.stop.check()?;
        let transport = transport::measure(&self.args.transport(), self.output, self.stop).await?;
        let member = self.one_member().await?;
        let steps = self.steps().await?;
        let end_to_end = self.end_to_end().await?;
        Ok((parity, transport, member, steps, end_to_end))
    }

    /// One member, by the number of requests in flight.
    async fn one_member(&self) -> Result<Vec<DepthPoint>> {
        let mut runs = Vec::new();
        for len in [self.args.large()?, SMALL_LEN] {
            for write in [true, false] {
                for depth in &self.args.depths {
                    let workload = Workload { write, random: len == SMALL_LEN, len };
                    runs.push((workload, *depth, Gauge::new()?));
                }
            }
        }
        let bar = self.bar("one member", runs.len());
        // What was never written costs a member in memory nothing to read.
        let mut all = self.members.raw(self.members.count()).await?;
        let spans = self.fill(&mut all).await?;
        let span = spans.first().copied().unwrap_or(self.args.span);
        let rest = all.split_off(1);
        close(rest).await?;
        for _ in 0..self.args.rounds {
            for (workload, depth, gauge) in &mut runs {
                let run = self.run(*workload, span, usize::from(*depth))?;
                gauge.round(&mut all, run).await?;
                bar.inc(1);
            }
        }
        close(all).await?;
        bar.finish_and_clear();
        let point = |(workload, depth, gauge): (Workload, u16, Gauge)| DepthPoint {
            write: workload.write,
            request_bytes: workload.len,
            depth,
            point: gauge.point(workload),
        };
        Ok(runs.into_iter().map(point).collect())
    }

    /// One to all members: bare TCP, members at once, volumes. In each round they follow each other by
    /// the number of members, so that neighbours in time are compared.
    async fn steps(&self) -> Result<Vec<Step>> {
        let mut steps = Vec::new();
        for members in 1..=self.members.count() {
            let levels = self.levels();
            let levels =
                levels.iter().filter(|level| self.members.counts(**level).contains(&members));
            let levels = levels.map(|level| What::Level(level.number()));
            let transport = self.members.are_own().then_some(What::Transport);
            for what in transport.into_iter().chain(iter::once(What::Together)).chain(levels) {
                for write in [true, false] {
                    let (rounds, gauge) = (Vec::new(), Gauge::new()?);
                    steps.push(Climbing { what, members, write, rounds, gauge });
                }
            }
        }
        let bar = self.bar("one to all members", steps.len());
        let mut memory = if self.members.are_own() { vec![1; MEMORY_LEN] } else { Vec::new() };
        for _ in 0..self.args.rounds {
            for [write, read] in steps.as_chunks_mut().0 {
                self.stop.check()?;
                match write.what {
                    What::Transport => self.bare_tcp([write, read], &mut memory)?,
                    What::Together => {
                        let mut raw = self.members.raw(write.members).await?;
                        let end = self.both_ways(&mut raw, self.args.span, [write, read]).await;
                        close(raw).await?;
                        end?;
                        self.members.wipe(write.members).await?;
                    }
                    What::Level(level) => self.volume(level, [write, read]).await?,
                }
                bar.inc(2);
            }
        }
        bar.finish_and_clear();
        Ok(finish(&steps, self.large(true)?))
    }

    fn bare_tcp(&self, both: [&mut Climbing; 2], memory: &mut [u8]) -> Result<()> {
        for step in both {
            let run = self.run(self.large(step.write)?, 0, usize::from(self.args.depth))?;
            let time = Duration::from_secs_f64(run.seconds);
            let rate = raw_tcp::run_many(run.workload, run.depth, time, memory, step.members)?;
            step.rounds.push(rate);
        }
        Ok(())
    }

    async fn volume(&self, level: u8, both: [&mut Climbing; 2]) -> Result<()> {
        let Some(level) = Level::from_number(level) else { bail!("level {level}: unknown") };
        let members = both[0].members;
        let mut volume = vec![self.members.volume(level, members, self.stop).await?];
        let end = async {
            let span = self.fill(&mut volume).await?[0];
            self.both_ways(&mut volume, span, both).await
        };
        let end = end.await;
        close(volume).await?;
        end?;
        self.members.wipe(members).await
    }

    async fn both_ways(
        &self,
        benches: &mut [Bench],
        span: u64,
        both: [&mut Climbing; 2],
    ) -> Result<()> {
        for step in both {
            let run = self.run(self.large(step.write)?, span, usize::from(self.args.depth))?;
            step.gauge.round(benches, run).await?;
            step.rounds = step.gauge.rounds().to_vec();
        }
        Ok(())
    }

    /// A volume of all members through its export, by the size of requests.
    async fn end_to_end(&self) -> Result<Vec<SizePoint>> {
        let levels = self.levels();
        let fits = |level: &&Level| self.members.counts(**level).contains(&self.members.count());
        let Some(level) = levels.iter().rev().find(fits) else { return Ok(Vec::new()) };
        let mut runs = Vec::new();
        for len in self.args.sizes()? {
            for write in [true, false] {
                runs.push((Workload { write, random: false, len }, Gauge::new()?));
            }
        }
        let bar = self.bar("end to end", runs.len());
        let mut export = vec![self.members.export(*level).await?];
        let end = async {
            let span = self.fill(&mut export).await?[0];
            for _ in 0..self.args.rounds {
                for (workload, gauge) in &mut runs {
                    let run = self.run(*workload, span, usize::from(self.args.depth))?;
                    gauge.round(&mut export, run).await?;
                    bar.inc(1);
                }
            }
            Ok::<_, anyhow::Error>(())
        };
        let end = end.await;
        close(export).await?;
        end?;
        bar.finish_and_clear();
        let point = |(workload, gauge): (Workload, Gauge)| SizePoint {
            write: workload.write,
            request_bytes: workload.len,
            point: gauge.point(workload),
        };
        Ok(runs.into_iter().map(point).collect())
    }

    /// Level 0 and the one that was asked for.
    fn levels(&self) -> Vec<Level> {
        let mut levels = vec![Level::Raid0, self.args.level];
        levels.dedup();
        levels
    }

    /// Writes what will be used, all subjects at once: what was never written is not read from the
    /// members. How much that is of each: of slow ones, what they take in some time.
    async fn fill(&self, benches: &mut [Bench]) -> Result<Vec<u64>> {
        let len = u64::from(self.args.large()?);
        let most = u64::from(self.args.sizes()?.into_iter().fold(self.args.large()?, u32::max));
        let limit = Duration::from_secs_f64((FILL_TIMES * self.args.seconds).max(1.0));
        let workload = self.large(true)?;
        let fill = async |bench: &mut Bench| {
            let span = self.args.span.min(bench.subject.capacity());
            if span < 2 * most {
                bail!("{}: has {span} bytes; at least {} are needed", bench.what, 2 * most);
            }
            let requests = |bytes: u64| bytes.div_ceil(len).min(span / len);
            let depth = usize::from(self.args.depth);
            let until = Until::First(Instant::now() + limit, requests(span));
            let (tally, _) = bench.run(workload, span, depth, until).await?;
            let filled = tally.bytes();
            if filled >= 2 * most {
                return Ok(filled);
            }
            // Slower than that: what the largest requests need, however long it takes.
            let until = Until::Requests(requests(2 * most));
            bench.run(workload, span, depth, until).await?;
            Ok(2 * most)
        };
        futures_util::future::try_join_all(benches.iter_mut().map(fill)).await
    }

    fn large(&self, write: bool) -> Result<Workload> {
        Ok(Workload { write, random: false, len: self.args.large()? })
    }

    fn run(&self, workload: Workload, span: u64, depth: usize) -> Result<Run> {
        self.stop.check()?;
        Ok(Run { workload, span, depth, seconds: self.args.seconds })
    }

    fn bar(&self, what: &str, points: usize) -> ProgressBar {
        self.output.progress_of_steps(what, points as u64 * u64::from(self.args.rounds))
    }
}

/// The steps, each with the line of one member.
fn finish(steps: &[Climbing], workload: Workload) -> Vec<Step> {
    let one = |write| {
        let is_one =
            |step: &&Climbing| (step.what, step.members, step.write) == (What::Together, 1, write);
        steps.iter().find(is_one).map_or(&[][..], |step| &step.rounds)
    };
    let step = |step: &Climbing| {
        let share = match step.what {
            What::Transport | What::Together => 1.0,
            What::Level(level) => Level::from_number(level)
                .map_or(f64::NAN, |level| data_share(level, step.members, step.write)),
        };
        let workload = Workload { write: step.write, ..workload };
        let point = (step.what != What::Transport).then(|| step.gauge.point(workload));
        let which = (step.what, step.members, step.write);
        Step::new(which, share, one(step.write), &step.rounds, point)
    };
    steps.iter().map(step).collect()
}

async fn close(benches: Vec<Bench>) -> Result<()> {
    for bench in benches {
        bench.close().await?;
    }
    Ok(())
}
