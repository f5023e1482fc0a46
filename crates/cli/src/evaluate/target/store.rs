//! A file of a run on a target, ready for streams: a file of the operating system, an NBD export, or a
//! LUN over iSCSI.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    sync::Arc,
    thread,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, anyhow};
use netraid_block::{BufMut, Device, Op, Pool, Request, RequestFlags, SgList};
use netraid_engine::{
    completions::{self, CompletionQueue},
    initiator::Remote,
};
use netraid_evaluate::places::Places;
use rustix::fs::Advice;
use tokio::runtime::Runtime;

use super::super::load::{Done, Hook, Load, Shared, Walk};
use crate::nbd_client::{Command, Job, NbdClient, Source};

/// A file on a target.
pub(crate) trait Store: Send {
    /// Works through a load. A hook has a depth of one, and goes at the end.
    fn run(&mut self, load: &Load, shared: &Shared, hook: Option<Box<dyn Hook>>) -> Result<Done>;
    /// Makes stable what was written; returns whether the target knows flushes.
    fn flush(&mut self) -> Result<bool>;
    /// Takes it out of this machine's page cache.
    fn forget(&mut self) -> Result<()>;
}

/// Where the requests of a store go.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    pub(super) slot: u16,
    pub(super) places: Option<Places>,
}

/// A file or block device of the operating system.
pub(super) struct FileStore {
    pub(super) file: File,
    pub(super) name: String,
    pub(super) at: At,
}

/// An NBD export.
pub(super) struct NbdStore {
    pub(super) client: NbdClient,
    pub(super) at: At,
}

/// A LUN, with a session and a runtime of its own.
pub(super) struct LunStore {
    pub(super) runtime: Runtime,
    pub(super) remote: Arc<Remote>,
    pub(super) device: Device,
    pub(super) pool: Pool,
    pub(super) at: At,
}

impl Store for FileStore {
    fn run(
        &mut self,
        load: &Load,
        shared: &Shared,
        mut hook: Option<Box<dyn Hook>>,
    ) -> Result<Done> {
        let began = Began::now();
        let place = (self.at.slot, self.at.places);
        let depth = if hook.is_some() { 1 } else { u64::from(load.depth.max(1)) };
        let mut walks = Vec::new();
        for first in 0..depth {
            walks.push(Walk::new(load, place, shared, hook.take(), (first, depth))?);
        }
        let (file, name) = (&self.file, self.name.as_str());
        let walks: Vec<Walk<'_>> = if let [_] = walks.as_slice() {
            walks.into_iter().map(|walk| work(file, name, load, walk)).collect::<Result<_>>()?
        } else {
            thread::scope(|scope| {
                let start = |walk| scope.spawn(move || work(file, name, load, walk));
                let threads: Vec<_> = walks.into_iter().map(start).collect();
                let end = |thread: thread::ScopedJoinHandle<'_, Result<_>>| {
                    thread.join().map_err(|_| anyhow!("a thread of a stream panicked"))?
                };
                threads.into_iter().map(end).collect::<Result<_>>()
            })?
        };
        let flush_s = timed_flush(self, load)?;
        began.done(walks, flush_s)
    }

    fn flush(&mut self) -> Result<bool> {
        self.file.sync_data().with_context(|| self.name.clone())?;
        Ok(true)
    }

    fn forget(&mut self) -> Result<()> {
        // Only what is clean can be forgotten.
        self.flush()?;
        rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed)
            .with_context(|| self.name.clone())
    }
}

/// One thread's part of a stream to or from a file.
fn work<'a>(file: &File, name: &str, load: &Load, mut walk: Walk<'a>) -> Result<Walk<'a>> {
    let mut buffer = BufMut::zeroed(load.request as usize);
    while let Some(job) = walk.next() {
        if job.command == Command::Write {
            walk.fill(&job, &mut buffer);
        }
        let began = Instant::now();
        let moved = if job.command == Command::Write {
            file.write_all_at(&buffer, job.offset)
        } else {
            file.read_exact_at(&mut buffer, job.offset)
        };
        let Job { command, offset, len } = job;
        moved.with_context(|| format!("{name}: {command:?} of {len} bytes at {offset}"))?;
        walk.done(&job, began.elapsed(), &buffer).with_context(|| name.to_owned())?;
    }
    Ok(walk)
}

impl Store for NbdStore {
    fn run(&mut self, load: &Load, shared: &Shared, hook: Option<Box<dyn Hook>>) -> Result<Done> {
        let began = Began::now();
        let depth = if hook.is_some() { 1 } else { usize::from(load.depth.max(1)) };
        let place = (self.at.slot, self.at.places);
        let mut walk = Walk::new(load, place, shared, hook, (0, 1))?;
        self.client.run(depth, &mut walk)?;
        let flush_s = timed_flush(self, load)?;
        began.done(vec![walk], flush_s)
    }

    fn flush(&mut self) -> Result<bool> {
        let known = self.client.can_flush();
        if known {
            self.client.run(1, &mut OneFlush(false))?;
        }
        Ok(known)
    }

    fn forget(&mut self) -> Result<()> {
        Ok(())
    }
}

/// One flush.
struct OneFlush(bool);

impl Source for OneFlush {
    fn next(&mut self) -> Option<Job> {
        let first = !std::mem::replace(&mut self.0, true);
        first.then_some(Job { command: Command::Flush, offset: 0, len: 0 })
    }

    fn fill(&mut self, _job: &Job, _data: &mut [u8]) {}

    fn done(&mut self, _job: &Job, _latency: std::time::Duration, _data: &[u8]) -> Result<()> {
        Ok(())
    }
}

impl Store for LunStore {
    fn run(&mut self, load: &Load, shared: &Shared, hook: Option<Box<dyn Hook>>) -> Result<Done> {
        let began = Began::now();
        let depth = if hook.is_some() { 1 } else { usize::from(load.depth.max(1)) };
        let place = (self.at.slot, self.at.places);
        let mut walk = Walk::new(load, place, shared, hook, (0, 1))?;
        self.runtime.block_on(drive(&self.device, &self.pool, depth, &mut walk))?;
        let flush_s = timed_flush(self, load)?;
        began.done(vec![walk], flush_s)
    }

    fn flush(&mut self) -> Result<bool> {
        let flushed = completions::request(
            &self.device,
            Op::Flush,
            0,
            0,
            RequestFlags::default(),
            SgList::new(),
        );
        self.runtime.block_on(flushed).with_context(|| self.remote.address().to_owned())?;
        Ok(true)
    }

    fn forget(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Drop for LunStore {
    fn drop(&mut self) {
        self.runtime.block_on(self.remote.close());
    }
}

async fn drive(device: &Device, pool: &Pool, depth: usize, walk: &mut Walk<'_>) -> Result<()> {
    let (queue, mut receiver) = CompletionQueue::channel();
    let unused = Job { command: Command::Flush, offset: 0, len: 0 };
    let mut slots = vec![(unused, Instant::now()); depth];
    let mut free: Vec<usize> = (0..depth).collect();
    let mut ends = Vec::with_capacity(depth);
    let mut contiguous = Vec::new();
    loop {
        while let Some(slot) = free.pop() {
            let Some(job) = walk.next() else {
                free.push(slot);
                break;
            };
            let (op, data) = if job.command == Command::Write {
                let mut buffer = pool.get(job.len as usize);
                walk.fill(&job, &mut buffer);
                (Op::Write, SgList::from(buffer.freeze()))
            } else {
                (Op::Read, SgList::new())
            };
            slots[slot] = (job, Instant::now());
            let completion = queue.completion(slot as u64);
            let (offset, len) = (job.offset, u64::from(job.len));
            let flags = RequestFlags::default();
            device.submit(Request { op, offset, len, flags, data, completion });
        }
        if free.len() == depth {
            return Ok(());
        }
        receiver.recv_many(&mut ends, depth).await;
        for (tag, result) in ends.drain(..) {
            let slot = usize::try_from(tag).context("tag")?;
            let (job, began) = slots[slot];
            let data = result.with_context(|| format!("{:?} at {}", job.command, job.offset))?;
            let latency = began.elapsed();
            match data.parts() {
                [one] => walk.done(&job, latency, one)?,
                _ => {
                    contiguous.resize(data.len(), 0);
                    data.copy_to(&mut contiguous);
                    walk.done(&job, latency, &contiguous)?;
                }
            }
            free.push(slot);
        }
    }
}

fn timed_flush(store: &mut dyn Store, load: &Load) -> Result<f64> {
    if !(load.write && load.flush) {
        return Ok(0.0);
    }
    let began = Instant::now();
    store.flush()?;
    Ok(began.elapsed().as_secs_f64())
}

/// When a load began, by both clocks.
struct Began {
    at: Instant,
    wall_s: f64,
}

impl Began {
    fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { at: Instant::now(), wall_s: since.as_secs_f64() }
    }

    fn done(&self, walks: Vec<Walk<'_>>, flush_s: f64) -> Result<Done> {
        let seconds = self.at.elapsed().as_secs_f64();
        let reached = walks.iter().map(Walk::reached).min().unwrap_or_default();
        let mut walks = walks.into_iter();
        let mut all = walks.next().context("a stream without requests")?;
        walks.try_for_each(|walk| all.join(&walk))?;
        Ok(Done {
            bytes: all.bytes,
            requests: all.requests,
            seconds,
            flush_s,
            reached,
            latency: all.latency(),
            began_s: self.wall_s,
        })
    }
}
