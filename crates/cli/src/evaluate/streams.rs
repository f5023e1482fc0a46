//! Tests of streams: the two matrices, and those of an array without a member.

use std::{
    sync::Barrier,
    thread::{self, ScopedJoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use netraid_evaluate::{
    catalogue::TestId,
    estimate,
    plan::{self, FigureOf, StreamPlan, StreamsPlan},
    record::{Role, Round, Stream, TapeReport, TestResult},
    statistics::median,
};
use rustix::process::{Pid, Signal, kill_process};

use super::{
    client::{Client, Copy, Job},
    data::Content,
    load::{Done, Hook, Load},
    session::{Session, figure, prepare},
    tape::{self, Tape},
    target::{Open, Store},
};
use crate::size;

/// A tape that is late gets so much longer before its stream is cut off.
const TAPE_PATIENCE: f64 = 1.5;

/// One stream, ready to go.
struct Ready {
    plan: StreamPlan,
    open: Open,
    load: Load,
}

/// Runs all rounds of a test.
pub(super) fn run(session: &mut Session<'_>, test: TestId, result: &mut TestResult) -> Result<()> {
    let settings = session.common.settings;
    let plan = plan::streams(test, settings).context("a test without streams")?;
    prepare(session, test)?;
    let rounds = if estimate::repeats(test) { settings.rounds.max(1) } else { 1 };
    for _ in 0..rounds {
        let round = round(session, &plan, plan::figure_of(test), None)?;
        result.bytes += round.streams.iter().map(|stream| stream.bytes).sum::<u64>();
        result.rounds.push(round);
    }
    let rates: Vec<f64> = result.rounds.iter().map(|round| round.mb_per_s).collect();
    result.figure = median(&rates).and_then(|rate| figure(test, rate));
    Ok(())
}

/// Short streams, to know rates.
pub(super) fn probe(
    session: &mut Session<'_>,
    streams: &[(Role, u16)],
    clients: bool,
    seconds: f64,
) -> Result<Round> {
    let bytes = session.common.settings.file_bytes;
    let streams =
        streams.iter().map(|(role, slot)| StreamPlan { role: *role, slot: *slot, bytes }).collect();
    let plan = StreamsPlan { streams, seconds: None, clients };
    round(session, &plan, FigureOf::Total, Some(seconds))
}

fn round(
    session: &mut Session<'_>,
    plan: &StreamsPlan,
    figure: FigureOf,
    bound_s: Option<f64>,
) -> Result<Round> {
    let mut ready = Vec::new();
    for stream in &plan.streams {
        ready.push(ready_stream(session, *stream, plan.seconds, bound_s)?);
    }
    let done =
        if plan.clients { by_clients(session, &ready) } else { by_threads(session, &ready) }?;
    session.common.shared.check()?;
    for (ready, (_, done)) in ready.iter().zip(&done) {
        if ready.load.write {
            session.note(ready.plan.slot, &ready.load, done);
        }
    }
    let mb_per_s = match figure {
        FigureOf::First => done.first().map_or(0.0, |(stream, _)| stream.mb_per_s),
        FigureOf::Mean => {
            done.iter().map(|(stream, _)| stream.mb_per_s).sum::<f64>() / done.len().max(1) as f64
        }
        FigureOf::Total => total(&done),
    };
    Ok(Round { mb_per_s, streams: done.into_iter().map(|(stream, _)| stream).collect() })
}

/// All bytes over the time from the first start to the last end. Clocks of other hosts are not compared.
fn total(done: &[(Stream, Done)]) -> f64 {
    let bytes = done.iter().map(|(stream, _)| stream.bytes).sum();
    let longest = done.iter().map(|(stream, _)| stream.seconds).fold(0.0, f64::max);
    if done.iter().any(|(stream, _)| !stream.host.is_empty()) {
        return size::mb_per_s(bytes, longest);
    }
    let began = done.iter().map(|(_, done)| done.began_s).fold(f64::INFINITY, f64::min);
    let ended = done.iter().map(|(_, done)| done.began_s + done.seconds).fold(0.0, f64::max);
    size::mb_per_s(bytes, (ended - began).max(longest))
}

fn ready_stream(
    session: &mut Session<'_>,
    plan: StreamPlan,
    seconds: Option<f64>,
    bound_s: Option<f64>,
) -> Result<Ready> {
    let settings = session.common.settings;
    let writes = match plan.role {
        Role::Write | Role::FromTape => true,
        Role::Read | Role::ToTape | Role::RemoteCopy => false,
    };
    let mut load = if writes {
        session.load(true, plan.bytes)
    } else {
        let file = session.written(plan.slot).context("a file that nobody wrote")?;
        if file.bytes == 0 {
            bail!(
                "nothing could be written within {} s; give more --stream-seconds",
                settings.stream_s
            );
        }
        session.forget_cached(plan.slot)?;
        let mut load = session.load_of(file);
        load.bytes = load.bytes.min(plan.bytes);
        load
    };
    match plan.role {
        Role::Write | Role::Read | Role::RemoteCopy => {
            load.repeat = seconds.is_some();
            load.seconds = seconds.unwrap_or(load.seconds);
        }
        Role::ToTape | Role::FromTape => {
            let tape_s = plan::tape_s(settings);
            let request = u64::from(load.request);
            // The tape's own blocks, to the last one.
            load.bytes =
                load.bytes.min(tape_blocks(tape_s, settings.tape_bytes_per_s, request) * request);
            load.seconds = tape_s * TAPE_PATIENCE + 1.0;
            if plan.role == Role::FromTape && settings.tape.is_some() {
                load.content = Content::Any;
            }
        }
    }
    if let Some(bound) = bound_s {
        load.seconds = load.seconds.min(bound);
    }
    Ok(Ready { plan, open: if writes { Open::New } else { Open::Old }, load })
}

fn tape_blocks(seconds: f64, bytes_per_s: u64, request: u64) -> u64 {
    let blocks = Duration::from_secs_f64(seconds).as_millis() * u128::from(bytes_per_s)
        / 1000
        / u128::from(request.max(1));
    // Clamped: no tape is so long.
    u64::try_from(blocks).unwrap_or(u64::MAX).max(1)
}

/// What is recorded of a stream.
pub(super) fn stream_of(role: Role, host: &str, done: &Done, tape: Option<TapeReport>) -> Stream {
    Stream {
        role,
        host: host.to_owned(),
        bytes: done.bytes,
        seconds: done.seconds,
        mb_per_s: size::mb_per_s(done.bytes, done.seconds),
        flush_s: done.flush_s,
        tape,
    }
}

/// Each stream in a process of its own, on the clients' hosts in turn.
fn by_clients(session: &Session<'_>, ready: &[Ready]) -> Result<Vec<(Stream, Done)>> {
    let common = session.common;
    let hosts = &common.settings.clients;
    let mut clients = Vec::new();
    for (index, ready) in ready.iter().enumerate() {
        let job = Job::Stream {
            reach: Box::new(session.target.reach.clone()),
            slot: ready.plan.slot,
            open: ready.open,
            load: ready.load.clone(),
            data: common.data.clone(),
            seed: common.seed,
        };
        let host = (!hosts.is_empty()).then(|| hosts[index % hosts.len()].as_str());
        clients.push(Client::start(host, &job, &common.shared)?);
        common.shared.check()?;
    }
    for client in &mut clients {
        client.go()?;
    }
    let places: Vec<(String, Option<Pid>)> =
        clients.iter().map(|client| (client.host().to_owned(), client.pid())).collect();
    let done = thread::scope(|scope| {
        let waiting: Vec<ScopedJoinHandle<'_, Result<Done>>> = clients
            .into_iter()
            .zip(ready)
            .map(|(client, ready)| {
                scope.spawn(move || client.done(ready.load.seconds, &common.shared))
            })
            .collect();
        while waiting.iter().any(|thread| !thread.is_finished()) {
            if common.shared.is_stopped() {
                let left = waiting.iter().zip(&places).filter(|(thread, _)| !thread.is_finished());
                for (_, (_, pid)) in left {
                    // It may have ended in this moment.
                    let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
                }
            }
            thread::sleep(Duration::from_millis(5));
        }
        waiting.into_iter().map(joined).collect::<Result<Vec<Done>>>()
    });
    common.shared.check()?;
    let streams = done?.into_iter().zip(ready).zip(places);
    Ok(streams
        .map(|((done, ready), (host, _))| (stream_of(ready.plan.role, &host, &done, None), done))
        .collect())
}

/// All streams in threads of this process: those that have a tape or a copy at their other end.
fn by_threads(session: &Session<'_>, ready: &[Ready]) -> Result<Vec<(Stream, Done)>> {
    let mut stores = Vec::new();
    for ready in ready {
        let store = session.target.reach.open(ready.plan.slot, ready.open)?;
        stores.push((ready, store, Other::of(session, ready)?));
    }
    let barrier = Barrier::new(stores.len());
    thread::scope(|scope| {
        let start = |(ready, store, other): (_, Box<dyn Store>, Other)| {
            let barrier = &barrier;
            scope.spawn(move || one(session, ready, store, other, barrier))
        };
        let threads: Vec<_> = stores.into_iter().map(start).collect();
        threads.into_iter().map(joined).collect()
    })
}

fn one(
    session: &Session<'_>,
    ready: &Ready,
    mut store: Box<dyn Store>,
    other: Other,
    barrier: &Barrier,
) -> Result<(Stream, Done)> {
    let shared = &session.common.shared;
    let Other { hook, tape, sink } = other;
    barrier.wait();
    let began = std::time::Instant::now();
    let mut done = store.run(&ready.load, shared, hook)?;
    // Tape and sink end when nothing comes any more: their hook has gone.
    let tape = tape.map(Tape::report).transpose()?;
    if let Some(sink) = sink {
        let received = sink.received(shared)?;
        done.seconds = done.seconds.max(received.seconds);
    }
    if tape.is_some() {
        done.seconds = began.elapsed().as_secs_f64();
    }
    Ok((stream_of(ready.plan.role, "", &done, tape), done))
}

/// What stands at the other end of a stream instead of memory.
struct Other {
    hook: Option<Box<dyn Hook>>,
    tape: Option<Tape>,
    sink: Option<Client>,
}

impl Other {
    fn of(session: &Session<'_>, ready: &Ready) -> Result<Self> {
        let common = session.common;
        let (settings, shared) = (common.settings, &common.shared);
        Ok(match ready.plan.role {
            Role::Write | Role::Read => Self { hook: None, tape: None, sink: None },
            Role::ToTape => {
                let (tape, end) = tape::taking(settings, ready.load.bytes, shared)?;
                Self { hook: Some(Box::new(end)), tape: Some(tape), sink: None }
            }
            Role::FromTape => {
                let (tape, end) = tape::giving(settings, ready.load.bytes, shared)?;
                Self { hook: Some(Box::new(end)), tape: Some(tape), sink: None }
            }
            Role::RemoteCopy => {
                let host = settings.clients.first().map(String::as_str);
                let disk_bytes = Some(ready.load.bytes);
                let job = Job::Sink { anywhere: host.is_some(), disk_bytes };
                let sink = Client::start(host, &job, shared)?;
                let copy = Copy(sink.connect()?);
                Self { hook: Some(Box::new(copy)), tape: None, sink: Some(sink) }
            }
        })
    }
}

fn joined<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread of a stream panicked"))?
}
