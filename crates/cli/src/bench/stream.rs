//! `netraid bench stream`: reads or writes data of a cluster as a player or a camera does, at a rate
//! that was promised, with a second of buffer; or as fast as it can, without a promise.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use netraid_block::{Buf, Op, Pool, RequestFlags, SgList};
use netraid_cluster::mediator::Mode;
use netraid_engine::bytes::ByteRequest;
use netraid_files::{Cluster, Volume, VolumeOptions, transfer};
use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use crate::{
    cluster::{AccessArgs, RateArgs, parse_duration, with_offer},
    output::Output,
    signal::until_stopped,
    size,
};

/// How often what the user takes or gives is looked at.
const TICK: Duration = Duration::from_millis(10);
/// Parts of a second that the user's bytes are counted in.
const SECOND: u128 = 1_000_000_000;

#[derive(Debug, Clone, Args)]
pub(super) struct StreamArgs {
    /// Absolute path of data, or of a volume
    path: String,
    /// Write instead of read: what is there is lost
    #[arg(long)]
    write: bool,
    /// How long
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Requests in flight
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    depth: u16,
    /// How long a member may be away before another segment takes its place, where it writes
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    replace_after: Duration,
    #[command(flatten)]
    rates: RateArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// What is said once the stream begins.
#[derive(Debug, Serialize)]
struct Ready<'a> {
    event: &'static str,
    path: &'a str,
    plan: String,
}

/// What a stream got.
#[derive(Debug, Serialize)]
struct Report {
    event: &'static str,
    path: String,
    /// Milliseconds since 1970 at its beginning.
    began_ms: u64,
    /// What was promised; 0 without a promise.
    rate: u64,
    /// Bytes that the user took or gave in each second.
    used: Vec<u64>,
    /// Bytes that arrived, from or at the agents, in each second.
    moved: Vec<u64>,
    /// Bytes of each request.
    request_bytes: u64,
    /// Bytes a second that the user took or gave, over all seconds.
    mean: u64,
}

pub(super) async fn run(args: &StreamArgs, output: Output) -> Result<()> {
    let cluster = args.access.cluster()?;
    until_stopped(&cluster, open_and_stream(args, &cluster, output)).await
}

async fn open_and_stream(args: &StreamArgs, cluster: &Cluster, output: Output) -> Result<()> {
    let mode = if args.write { Mode::Write } else { Mode::Read };
    let pool = netraid_engine::pool();
    let replace_after = Some(args.replace_after);
    let options = VolumeOptions { replace_after, ..args.rates.options(mode) };
    let rate = options.rate.0;
    let opened = Volume::open(cluster, &args.path, options, &pool).await;
    let volume = opened.map_err(|error| with_offer(error.into()))?;
    let plan = volume.plan().to_string();
    output.announce(&Ready { event: "ready", path: &args.path, plan }, || {
        format!("{}: {}/s for {} s", args.path, size::show(rate), args.seconds)
    });
    let streamed = stream(args, &volume, rate, &pool).await;
    let length = args.write.then(|| volume.entry().length_bytes);
    let closed = volume.close(length).await;
    let report = streamed?;
    closed?;
    output.document(&report, || {
        let used: Vec<String> = report.used.iter().map(|used| size::show(*used)).collect();
        format!("{}/s by mean; by second: {}", size::show(report.mean), used.join(", "))
    })
}

async fn stream(args: &StreamArgs, volume: &Volume, rate: u64, pool: &Pool) -> Result<Report> {
    let len = transfer::piece_len(volume);
    let entry = volume.entry();
    let there = if args.write { entry.capacity_bytes } else { entry.length_bytes };
    let pieces = there / len;
    if pieces == 0 {
        bail!("{}: has {there} bytes, a request {len}; give something larger", args.path);
    }
    let data = SgList::from(pattern(pool, len)?);
    let began = Instant::now();
    let began_ms = netraid_cluster::now().0;
    let mut meter = Meter::new((rate, len), args.write, usize::try_from(args.seconds)?);
    let (mut under_way, mut next) = (FuturesUnordered::new(), 0);
    let end = began + Duration::from_secs(args.seconds);
    let mut tick = began;
    loop {
        meter.advance(Instant::now() - began);
        while under_way.len() < usize::from(args.depth) && meter.may_begin() {
            let (offset, flags) = (next % pieces * len, RequestFlags::default());
            next += 1;
            let request = match args.write {
                true => ByteRequest { op: Op::Write, offset, len, flags, data: data.clone() },
                false => ByteRequest { op: Op::Read, offset, len, flags, data: SgList::new() },
            };
            meter.begun += len;
            under_way.push(transfer::request(volume, request));
        }
        tokio::select! {
            Some(end) = under_way.next(), if !under_way.is_empty() => {
                end?;
                meter.moved(len, Instant::now() - began);
            }
            () = sleep_until(tick) => {
                tick = Instant::now() + TICK;
                if Instant::now() >= end {
                    break;
                }
            }
        }
    }
    while let Some(end) = under_way.next().await {
        end?;
    }
    let (path, used) = (args.path.clone(), meter.used_by_second);
    let mean = used.iter().sum::<u64>() / args.seconds;
    let moved = meter.moved_by_second;
    Ok(Report { event: "end", path, began_ms, rate, used, moved, request_bytes: len, mean })
}

fn pattern(pool: &Pool, len: u64) -> Result<Buf> {
    let mut buf = pool.get(usize::try_from(len)?);
    rand::RngCore::fill_bytes(&mut rand::rng(), &mut buf);
    Ok(buf.freeze())
}

/// What the user takes from its buffer of a second, or gives to it.
struct Meter {
    /// Bytes a second; as fast as it can when 0.
    rate: u64,
    /// Bytes of a request.
    len: u64,
    is_write: bool,
    begun: u64,
    done: u64,
    /// What the user has taken or given so far.
    used: u64,
    /// What it would have by now beside that, in bytes times [`SECOND`].
    due: u128,
    at: Duration,
    used_by_second: Vec<u64>,
    moved_by_second: Vec<u64>,
}

impl Meter {
    fn new((rate, len): (u64, u64), is_write: bool, seconds: usize) -> Self {
        Self {
            rate,
            len,
            is_write,
            begun: 0,
            done: 0,
            used: 0,
            due: 0,
            at: Duration::ZERO,
            used_by_second: vec![0; seconds],
            moved_by_second: vec![0; seconds],
        }
    }

    /// Time has passed: the user takes what is there, and gives what has room, at its rate. A reader
    /// begins when its buffer is half full, so that a start is no underrun.
    fn advance(&mut self, now: Duration) {
        let passed = now - self.at;
        self.at = now;
        let begins = self.is_write || self.used > 0 || self.done >= self.rate / 2;
        if self.rate == 0 || !begins {
            return;
        }
        let buffer = self.rate.max(2 * self.len);
        let most = if self.is_write { self.done + buffer } else { self.done };
        self.due += u128::from(self.rate) * passed.as_nanos();
        // Clamped: what may be taken is less.
        let wanted = u64::try_from(self.due / SECOND).unwrap_or(u64::MAX);
        self.due %= SECOND;
        let taken = wanted.min(most.saturating_sub(self.used));
        self.used += taken;
        Self::count(&mut self.used_by_second, now, taken);
    }

    /// Whether another request may begin.
    fn may_begin(&self) -> bool {
        match (self.rate, self.is_write) {
            (0, _) => true,
            (_, true) => self.used >= self.begun + self.len,
            // A buffer holds what comes at once, however slowly it is used.
            (rate, false) => self.begun + self.len <= self.used + rate.max(2 * self.len),
        }
    }

    fn moved(&mut self, len: u64, now: Duration) {
        self.done += len;
        Self::count(&mut self.moved_by_second, now, len);
        if self.rate == 0 {
            Self::count(&mut self.used_by_second, now, len);
        }
    }

    fn count(seconds: &mut [u64], now: Duration, bytes: u64) {
        // Clamped: no run is so long, and no such second is counted.
        let at = usize::try_from(now.as_secs()).unwrap_or(usize::MAX);
        if let Some(second) = seconds.get_mut(at) {
            *second += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_gets_its_rate_while_the_buffer_holds_and_no_more() {
        let ms = Duration::from_millis;
        let mut meter = Meter::new((1000, 400), false, 4);
        meter.begun = 600;
        assert!(meter.may_begin());
        meter.begun = 1000;
        assert!(!meter.may_begin());
        meter.advance(ms(10));
        assert_eq!(meter.used, 0, "nothing is there yet");
        meter.moved(1000, ms(500));
        meter.advance(ms(500));
        (0..10).for_each(|tick| meter.advance(ms(510 + tick * 50)));
        // It begins when there is enough, and loses nothing to rounding.
        assert_eq!(meter.used, 950);
        meter.advance(ms(3000));
        assert_eq!(meter.used, 1000, "an underrun");
        assert_eq!(
            (meter.used_by_second.as_slice(), meter.moved_by_second[0]),
            (&[950, 0, 0, 50][..], 1000)
        );
    }
}
