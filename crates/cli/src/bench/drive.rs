//! Keeps a device or an NBD export busy with a workload.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use netraid_block::{Buf, Device, Op, Pool, Request, RequestFlags, SgList};
use netraid_engine::completions::CompletionQueue;

use super::measure::{Places, Tally, Until, Workload};
use crate::{
    nbd_client::{Command, Job, NbdClient, Source},
    pattern,
};

/// What is measured.
pub(super) enum Subject {
    /// A device within this process, driven on this runtime.
    Device { device: Device, data: Buf },
    /// An export of another process.
    Nbd(Box<NbdClient>),
}

impl Subject {
    /// A device, and data to write to it that does not compress.
    pub(super) fn device(device: Device, pool: &Pool, len: u32) -> Self {
        let mut data = pool.get(len as usize);
        pattern::fill(1, 0, &mut data);
        Self::Device { device, data: data.freeze() }
    }

    /// Bytes that it holds.
    pub(super) fn capacity(&self) -> u64 {
        match self {
            Self::Device { device, .. } => device.info().capacity,
            Self::Nbd(client) => client.size(),
        }
    }

    /// Runs a workload over the first `span` bytes with `depth` requests in flight; the time that
    /// it took is in seconds.
    pub(super) async fn run(
        &mut self,
        workload: Workload,
        span: u64,
        depth: usize,
        until: Until,
    ) -> Result<(Tally, f64)> {
        let mut tally = Tally::new()?;
        let places = Places::new(workload, span, until);
        let started = Instant::now();
        match self {
            Self::Device { device, data } => {
                drive_device(device, data, workload, places, depth, &mut tally).await?;
            }
            Self::Nbd(client) => {
                client.run(depth, &mut Traffic { workload, places, tally: &mut tally })?;
            }
        }
        Ok((tally, started.elapsed().as_secs_f64()))
    }
}

impl Subject {
    /// Runs one workload beside another one, each with its own depth; a device in this process alone can
    /// tell them apart.
    pub(super) async fn run_beside(
        &self,
        [one, other]: [(Workload, usize); 2],
        span: u64,
        until: Until,
    ) -> Result<([Tally; 2], f64)> {
        let Self::Device { device, data } = self else {
            bail!("--beside: give a member or an array, not an export");
        };
        let mut tallies = [Tally::new()?, Tally::new()?];
        let [tally, other_tally] = &mut tallies;
        let started = Instant::now();
        let drive = |(workload, depth), tally| {
            let places = Places::new(workload, span, until);
            drive_device(device, data, workload, places, depth, tally)
        };
        tokio::try_join!(drive(one, tally), drive(other, other_tally))?;
        Ok((tallies, started.elapsed().as_secs_f64()))
    }
}

async fn drive_device(
    device: &Device,
    data: &Buf,
    workload: Workload,
    mut places: Places,
    depth: usize,
    tally: &mut Tally,
) -> Result<()> {
    let (queue, mut receiver) = CompletionQueue::channel();
    let len = workload.len;
    let mut begun = vec![Instant::now(); depth];
    let mut free: Vec<usize> = (0..depth).collect();
    let mut ends = Vec::with_capacity(depth);
    loop {
        while let Some(slot) = free.pop() {
            let Some(offset) = places.next() else {
                free.push(slot);
                break;
            };
            begun[slot] = Instant::now();
            let (op, data) = if workload.write {
                (Op::Write, SgList::from(data.slice(0..len as usize)))
            } else {
                (Op::Read, SgList::new())
            };
            let completion = queue.completion(slot as u64);
            let flags = RequestFlags::default();
            device.submit(Request { op, offset, len: u64::from(len), flags, data, completion });
        }
        if free.len() == depth {
            return Ok(());
        }
        receiver.recv_many(&mut ends, depth).await;
        for (tag, result) in ends.drain(..) {
            result.context("the device")?;
            let slot = usize::try_from(tag).context("tag")?;
            tally.request(len, begun[slot].elapsed());
            free.push(slot);
        }
    }
}

/// A workload as the NBD client takes it.
struct Traffic<'a> {
    workload: Workload,
    places: Places,
    tally: &'a mut Tally,
}

impl Source for Traffic<'_> {
    fn next(&mut self) -> Option<Job> {
        let command = if self.workload.write { Command::Write } else { Command::Read };
        Some(Job { command, offset: self.places.next()?, len: self.workload.len })
    }

    fn fill(&mut self, _job: &Job, data: &mut [u8]) {
        // Making data anew would be measured too: what the buffer holds from its last use will
        // do, once it is not zeros.
        if data.first() == Some(&0) || data.last() == Some(&0) {
            pattern::fill(1, 0, data);
        }
    }

    fn done(&mut self, job: &Job, latency: Duration, _data: &[u8]) -> Result<()> {
        self.tally.request(job.len, latency);
        Ok(())
    }
}
