//! What one stream does, as data that may be sent to another process, and the walk that turns it into
//! requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use hdrhistogram::Histogram;
use netraid_evaluate::{judge::WRONG_BYTES, places::Places, record::Latency};
use serde::{Deserialize, Serialize};

use super::data::{Content, Data, first_wrong};
use crate::{
    nbd_client::{Command, Job, Source},
    pattern,
    signal::Interrupted,
};

/// What a stream does to a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Load {
    /// Whether it writes.
    pub(super) write: bool,
    /// First byte of the file that it touches.
    pub(super) begin: u64,
    /// Bytes from there on that it touches: a multiple of `request`.
    pub(super) bytes: u64,
    /// Bytes of a request.
    pub(super) request: u32,
    /// Requests in flight.
    pub(super) depth: u16,
    /// Random places, from this number; none: in order.
    pub(super) random: Option<u64>,
    /// Begins anew at its end, until its time is over.
    pub(super) repeat: bool,
    /// Longest time in seconds.
    pub(super) seconds: f64,
    /// What is written, or must be found.
    pub(super) content: Content,
    /// Whether a write ends with a flush.
    pub(super) flush: bool,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Done {
    /// Bytes moved.
    pub(super) bytes: u64,
    /// Requests.
    pub(super) requests: u64,
    /// Seconds, flush included.
    pub(super) seconds: f64,
    /// Seconds of the flush.
    pub(super) flush_s: f64,
    /// Bytes from the beginning on without a gap.
    pub(super) reached: u64,
    /// Latencies of single requests.
    pub(super) latency: Latency,
    /// When it began, in seconds since 1970, to lay streams of several processes over one another.
    pub(super) began_s: f64,
}

/// What streams of one process share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) data: Arc<Data>,
    pub(super) stop: Arc<AtomicBool>,
}

impl Shared {
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Fails when it was told to stop.
    pub(super) fn check(&self) -> Result<()> {
        if self.is_stopped() {
            bail!(Interrupted);
        }
        Ok(())
    }

    /// Waits for so long, or until it is told to stop.
    pub(super) fn pause(&self, seconds: f64) -> Result<()> {
        let until = Instant::now() + Duration::from_secs_f64(seconds.max(0.0));
        while Instant::now() < until {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
        self.check()
    }
}

/// What stands at the other end of a stream instead of memory.
pub(super) trait Hook: Send {
    /// Before a request of a write; whether there is one more.
    fn before(&mut self) -> Result<bool>;
    /// The bytes of a write, where they do not come from memory.
    fn fill(&mut self, bytes: &mut [u8]) -> bool;
    /// What a read returned.
    fn after(&mut self, bytes: &[u8]) -> Result<()>;
}

/// The requests of a load: all, or each `stride`th, for one of several threads.
pub(super) struct Walk<'a> {
    load: &'a Load,
    slot: u16,
    places: Option<Places>,
    shared: &'a Shared,
    hook: Option<Box<dyn Hook>>,
    deadline: Instant,
    next: u64,
    stride: u64,
    turn: u64,
    pub(super) bytes: u64,
    pub(super) requests: u64,
    pub(super) latency_us: Histogram<u64>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        load: &'a Load,
        (slot, places): (u16, Option<Places>),
        shared: &'a Shared,
        hook: Option<Box<dyn Hook>>,
        (first, stride): (u64, u64),
    ) -> Result<Self> {
        Ok(Self {
            load,
            slot,
            places,
            shared,
            hook,
            deadline: Instant::now() + Duration::from_secs_f64(load.seconds.max(0.0)),
            next: first,
            stride,
            turn: 0,
            bytes: 0,
            requests: 0,
            latency_us: Histogram::new_with_bounds(1, 600_000_000, 3)?,
        })
    }

    /// Bytes from the beginning on that are done, as far as this walk knows.
    pub(super) fn reached(&self) -> u64 {
        let all = self.load.bytes;
        if self.next >= all / u64::from(self.load.request) {
            return all;
        }
        (self.next / self.stride * self.stride * u64::from(self.load.request)).min(all)
    }

    /// Takes over what another thread did.
    pub(super) fn join(&mut self, other: &Self) -> Result<()> {
        self.bytes += other.bytes;
        self.requests += other.requests;
        self.latency_us.add(&other.latency_us)?;
        Ok(())
    }

    pub(super) fn latency(&self) -> Latency {
        let at = |quantile| self.latency_us.value_at_quantile(quantile);
        let max_us = self.latency_us.max();
        Latency { p50_us: at(0.5), p90_us: at(0.9), p99_us: at(0.99), p99_9_us: at(0.999), max_us }
    }

    fn place(&mut self) -> Option<u64> {
        let request = u64::from(self.load.request);
        let count = (self.load.bytes / request).max(1);
        let number = self.next;
        let within = match self.load.random {
            Some(seed) => pattern::mix(seed ^ pattern::mix(number)) % count,
            None if number >= count && !self.load.repeat => return None,
            None => number % count,
        };
        self.turn = number / count;
        self.next += self.stride;
        let offset = self.load.begin + within * request;
        Some(self.places.map_or(offset, |places| places.at(self.slot, offset)))
    }
}

impl Source for Walk<'_> {
    fn next(&mut self) -> Option<Job> {
        if self.shared.is_stopped() || Instant::now() >= self.deadline {
            return None;
        }
        if self.load.write
            && let Some(hook) = &mut self.hook
            && !hook.before().unwrap_or(false)
        {
            return None;
        }
        let command = if self.load.write { Command::Write } else { Command::Read };
        Some(Job { command, offset: self.place()?, len: self.load.request })
    }

    fn fill(&mut self, job: &Job, data: &mut [u8]) {
        let given = self.hook.as_mut().is_some_and(|hook| hook.fill(data));
        if !given {
            // Random writes come to a place any number of times.
            let turn = if self.load.random.is_some() { self.requests + 1 } else { self.turn };
            self.shared.data.fill(self.load.content, job.offset, turn, data);
        }
    }

    fn done(&mut self, job: &Job, latency: Duration, data: &[u8]) -> Result<()> {
        self.bytes += u64::from(job.len);
        self.requests += 1;
        // Clamped: that is after 584,000 years.
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.latency_us.saturating_record(us);
        if job.command == Command::Read {
            if let Some(at) = first_wrong(self.load.content, job.offset, data) {
                bail!("{WRONG_BYTES} at {at}: what was written there is not what is read");
            }
            if let Some(hook) = &mut self.hook {
                hook.after(data)?;
            }
        }
        Ok(())
    }
}
