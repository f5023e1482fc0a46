//! `netraid load`: writes data that can be made again to an NBD export, or verifies it there.
//! `quickstart --check` runs it as a client process of its own.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::{
    nbd_client::{Command, Job, NbdClient, NbdUri, Source},
    output::Output,
    pattern, size,
};

/// What changes owner when half of the data is rewritten: every second extent of this length.
const EXTENT_LEN: u64 = 1 << 20;
/// Length of one request in bytes.
const REQUEST_LEN: u64 = 512 << 10;
const DEPTH: usize = 16;

#[derive(Debug, Clone, Args)]
pub(crate) struct LoadArgs {
    /// What to do
    #[arg(value_enum)]
    action: Action,
    /// The export: nbd://host:port/name or nbd+unix:///name?socket=PATH
    uri: String,
    /// Bytes from the start of the export
    #[arg(long, value_parser = size::parse)]
    len: u64,
    /// What the data is made from
    #[arg(long)]
    seed: u64,
    /// Rewrite every second MiB from this seed, or expect it there
    #[arg(long, value_name = "SEED")]
    rewritten: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Action {
    Write,
    Verify,
}

/// What a run did.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Loaded {
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) mb_per_s: f64,
}

pub(crate) fn run(args: &LoadArgs, output: Output) -> Result<()> {
    let mut client = NbdClient::connect(NbdUri::parse(&args.uri)?)?;
    if client.size() < args.len {
        bail!(
            "{}: has {} bytes, {} are wanted; give a smaller --len",
            args.uri,
            client.size(),
            args.len
        );
    }
    let mut pass = Pass { args: args.clone(), next: 0, bytes: 0 };
    let started = Instant::now();
    client.run(DEPTH, &mut pass)?;
    if args.action == Action::Write {
        client.run(1, &mut Flush(false))?;
    }
    let seconds = started.elapsed().as_secs_f64();
    client.disconnect()?;
    let mb_per_s = size::mb_per_s(pass.bytes, seconds);
    let loaded = Loaded { bytes: pass.bytes, seconds, mb_per_s };
    output.document(&loaded, || {
        format!(
            "{:?}: {} in {seconds:.2} s, {mb_per_s:.0} MB/s",
            args.action,
            size::show(pass.bytes)
        )
    })
}

/// One way over the data, from the start to the end.
struct Pass {
    args: LoadArgs,
    next: u64,
    bytes: u64,
}

impl Pass {
    fn seed_at(&self, offset: u64) -> u64 {
        let odd = (offset / EXTENT_LEN) % 2 == 1;
        self.args.rewritten.filter(|_| odd).unwrap_or(self.args.seed)
    }
}

impl Source for Pass {
    fn next(&mut self) -> Option<Job> {
        let write = self.args.action == Action::Write;
        let even = (self.next / EXTENT_LEN).is_multiple_of(2);
        if write && self.args.rewritten.is_some() && even {
            self.next = (self.next / EXTENT_LEN + 1) * EXTENT_LEN;
        }
        if self.next >= self.args.len {
            return None;
        }
        let offset = self.next;
        // A request never crosses an extent, so that it has one seed.
        let len = REQUEST_LEN.min(self.args.len - offset);
        self.next += len;
        let command = if write { Command::Write } else { Command::Read };
        Some(Job { command, offset, len: u32::try_from(len).ok()? })
    }

    fn fill(&mut self, job: &Job, data: &mut [u8]) {
        pattern::fill(self.seed_at(job.offset), job.offset, data);
    }

    fn done(&mut self, job: &Job, _latency: Duration, data: &[u8]) -> Result<()> {
        if job.command == Command::Read
            && let Some(place) =
                pattern::first_difference(self.seed_at(job.offset), job.offset, data)
        {
            bail!("{}: wrong byte at {place}", self.args.uri);
        }
        self.bytes += u64::from(job.len);
        Ok(())
    }
}

/// One flush.
struct Flush(bool);

impl Source for Flush {
    fn next(&mut self) -> Option<Job> {
        let first = !std::mem::replace(&mut self.0, true);
        first.then_some(Job { command: Command::Flush, offset: 0, len: 0 })
    }

    fn fill(&mut self, _job: &Job, _data: &mut [u8]) {}

    fn done(&mut self, _job: &Job, _latency: Duration, _data: &[u8]) -> Result<()> {
        Ok(())
    }
}

const _: () = assert!(EXTENT_LEN.is_multiple_of(REQUEST_LEN));
const _: () = assert!(REQUEST_LEN.is_multiple_of(pattern::BLOCK_LEN as u64));
