//! Requests and answers over one TCP connection and nothing else: what no storage protocol goes below.
//!
//! A request is a header, as long as that of iSCSI, and for a write its data; an answer is the same the
//! other way round. Whatever has come is taken at once, and answered at once. The server's memory is as
//! large as a logical unit, and walked through; the client uses one buffer. Both are threads of this
//! process, which wait in the kernel, and count their own processor time.

use std::{
    io::{self, IoSlice, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use netraid_block::narrow;
use rustix::time::{ClockId, clock_gettime};

use super::measure::Workload;

/// Bytes of a basic header segment (RFC 7143, 11.2).
const HEADER_LEN: usize = 48;
/// What is received at once where requests are small.
const INPUT_LEN: usize = 256 << 10;

/// What one run gave.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) requests: u64,
    pub(super) seconds: f64,
    pub(super) client_cpu_s: f64,
    pub(super) server_cpu_s: f64,
}

/// Runs `workload` with `depth` requests in flight for so long.
pub(super) fn run(
    workload: Workload,
    depth: usize,
    time: Duration,
    memory: &mut [u8],
) -> Result<Run> {
    let listener = TcpListener::bind("127.0.0.1:0").context("loopback")?;
    let client = TcpStream::connect(listener.local_addr()?).context("loopback")?;
    let (server, _) = listener.accept().context("loopback")?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    thread::scope(|scope| {
        let serving = scope.spawn(move || counted(|| serve(&server, workload, memory)));
        let began = Instant::now();
        let asked = counted(|| ask(&client, workload, depth, began + time));
        // The server ends with its connection.
        drop(client);
        let (requests, client_cpu_s) = asked.context("the client of raw TCP")?;
        let seconds = began.elapsed().as_secs_f64();
        let served = serving.join().map_err(|_| io::Error::other("a thread panicked"))?;
        let ((), server_cpu_s) = served.context("the server of raw TCP")?;
        Ok(Run { requests, seconds, client_cpu_s, server_cpu_s })
    })
}

/// Runs `workload` on so many connections at once, each with `depth` requests in flight and a part of
/// `memory`: MB/s of all together.
///
/// # Errors
/// When loopback cannot be used.
pub(super) fn run_many(
    workload: Workload,
    depth: usize,
    time: Duration,
    memory: &mut [u8],
    connections: u8,
) -> Result<f64> {
    let part = (memory.len() / usize::from(connections)).max(1);
    let one = |memory| -> Result<f64> {
        let run = run(workload, depth, time, memory)?;
        Ok(run.requests as f64 * f64::from(workload.len) / 1e6 / run.seconds)
    };
    thread::scope(|scope| {
        let runs: Vec<_> = memory
            .chunks_exact_mut(part)
            .take(connections.into())
            .map(|memory| scope.spawn(|| one(memory)))
            .collect();
        runs.into_iter().try_fold(0.0, |sum, run| {
            Ok(sum + run.join().map_err(|_| anyhow!("a thread of bare TCP panicked"))??)
        })
    })
}

/// Runs `workload` with each request cut into equal parts, one for each connection, and `depth` of them in flight
/// on each. Each connection has a server of its own with a part of `memory`; one thread is their client, and has
/// as many buffers as parts are in flight.
///
/// # Errors
/// When a part would have less than 512 bytes, or loopback cannot be used.
pub(super) fn run_spread(
    workload: Workload,
    depth: usize,
    time: Duration,
    memory: &mut [u8],
    connections: u8,
) -> Result<Run> {
    let each = Workload { len: workload.len / u32::from(connections), ..workload };
    let part = memory.len() / usize::from(connections);
    if each.len < 512 || part < each.len as usize {
        bail!("{connections} connections: each has {} bytes of a request; give fewer", each.len);
    }
    let listener = TcpListener::bind("127.0.0.1:0").context("loopback")?;
    let mut pairs = Vec::new();
    for _ in 0..connections {
        let client = TcpStream::connect(listener.local_addr()?).context("loopback")?;
        let (server, _) = listener.accept().context("loopback")?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        pairs.push((client, server));
    }
    thread::scope(|scope| {
        let (clients, servers): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let serve = |(server, memory): (TcpStream, _)| {
            scope.spawn(move || counted(|| serve(&server, each, memory)))
        };
        let serving: Vec<_> =
            servers.into_iter().zip(memory.chunks_exact_mut(part)).map(serve).collect();
        let began = Instant::now();
        let asked = counted(|| ask_all(&clients, each, depth, began + time));
        // Each server ends with its connection.
        drop(clients);
        let (rounds, client_cpu_s) = asked.context("the client of raw TCP")?;
        let seconds = began.elapsed().as_secs_f64();
        let mut server_cpu_s = 0.0;
        for server in serving {
            let served = server.join().map_err(|_| io::Error::other("a thread panicked"))?;
            server_cpu_s += served.context("a server of raw TCP")?.1;
        }
        Ok(Run { requests: rounds, seconds, client_cpu_s, server_cpu_s })
    })
}

/// Processor seconds of copying a GB from one buffer of a megabyte into `memory`.
pub(super) fn copy_cpu_s(memory: &mut [u8]) -> f64 {
    let from = vec![1; 1 << 20];
    let began = thread_cpu_s();
    let mut bytes = 0;
    for into in memory.chunks_exact_mut(from.len()) {
        into.copy_from_slice(&from);
        bytes += from.len();
    }
    (thread_cpu_s() - began) / (bytes as f64 / 1e9)
}

fn counted<T>(act: impl FnOnce() -> io::Result<T>) -> io::Result<(T, f64)> {
    let began = thread_cpu_s();
    let result = act()?;
    Ok((result, thread_cpu_s() - began))
}

fn thread_cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Bytes that go to the server, and to the client, with each request.
fn lens(workload: Workload) -> (usize, usize) {
    let len = workload.len as usize;
    if workload.write { (HEADER_LEN + len, HEADER_LEN) } else { (HEADER_LEN, HEADER_LEN + len) }
}

/// Keeps so many requests in flight until `end`, and waits for the last: how many there were.
fn ask(mut stream: &TcpStream, workload: Workload, depth: usize, end: Instant) -> io::Result<u64> {
    let (request_len, answer_len) = lens(workload);
    let data = vec![1; workload.len as usize];
    let mut input = vec![0; INPUT_LEN.max(workload.len as usize)];
    let (mut asked, mut answered_bytes) = (0_u64, 0_u64);
    loop {
        let answered = answered_bytes / answer_len as u64;
        if Instant::now() < end {
            let more = depth as u64 - (asked - answered);
            send(stream, more, &data[..request_len - HEADER_LEN])?;
            asked += more;
        } else if asked == answered {
            return Ok(answered);
        }
        match stream.read(&mut input)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => answered_bytes += len as u64,
        }
    }
}

/// The same on all connections in turns, one answer of each: how many each has had.
fn ask_all(
    streams: &[TcpStream],
    workload: Workload,
    depth: usize,
    end: Instant,
) -> io::Result<u64> {
    let (request_len, answer_len) = lens(workload);
    let data = vec![1; request_len - HEADER_LEN];
    let mut buffers = vec![vec![0; answer_len]; depth * streams.len()];
    for stream in streams {
        send(stream, depth as u64, &data)?;
    }
    let (mut asked, mut answered) = (depth as u64, 0);
    while answered < asked {
        let more = Instant::now() < end;
        for (at, mut stream) in streams.iter().enumerate() {
            let place = narrow::<_, usize>(answered) % depth * streams.len() + at;
            stream.read_exact(&mut buffers[place])?;
            if more {
                send(stream, 1, &data)?;
            }
        }
        answered += 1;
        asked += u64::from(more);
    }
    Ok(answered)
}

fn serve(stream: &TcpStream, workload: Workload, memory: &mut [u8]) -> io::Result<()> {
    if workload.write && workload.len as usize > INPUT_LEN / 2 {
        return take_large(stream, workload, memory);
    }
    let (request_len, _) = lens(workload);
    let len = workload.len as usize;
    let (places, mut place) = (memory.len() / len, 0);
    let mut input = vec![0; INPUT_LEN];
    let mut filled = 0;
    loop {
        match (&*stream).read(&mut input[filled..])? {
            0 => return Ok(()),
            more => filled += more,
        }
        let requests = filled / request_len;
        let taken = requests * request_len;
        for request in input[..taken].chunks_exact(request_len).filter(|_| workload.write) {
            memory[place * len..][..len].copy_from_slice(&request[HEADER_LEN..]);
            place = (place + 1) % places;
        }
        if workload.write {
            send(stream, requests as u64, &[])?;
        } else {
            for _ in 0..requests {
                send(stream, 1, &memory[place * len..][..len])?;
                place = (place + 1) % places;
            }
        }
        input.copy_within(taken..filled, 0);
        filled -= taken;
    }
}

/// Large writes are received where they belong.
fn take_large(mut stream: &TcpStream, workload: Workload, memory: &mut [u8]) -> io::Result<()> {
    let mut header = [0; HEADER_LEN];
    loop {
        for into in memory.chunks_exact_mut(workload.len as usize) {
            match stream.read(&mut header)? {
                0 => return Ok(()),
                len => stream.read_exact(&mut header[len..])?,
            }
            stream.read_exact(into)?;
            send(stream, 1, &[])?;
        }
    }
}

/// Sends so many times a header with `data`, by as few calls as possible.
fn send(mut stream: &TcpStream, count: u64, data: &[u8]) -> io::Result<()> {
    const TOGETHER: usize = 32;
    let header = [7; HEADER_LEN];
    let mut left: usize = narrow(count);
    while left > 0 {
        let now = left.min(TOGETHER);
        let mut slices = [IoSlice::new(&[]); 2 * TOGETHER];
        for pair in slices[..2 * now].chunks_exact_mut(2) {
            (pair[0], pair[1]) = (IoSlice::new(&header), IoSlice::new(data));
        }
        let mut rest = &mut slices[..2 * now];
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let sent = stream.write_vectored(rest)?;
            IoSlice::advance_slices(&mut rest, sent);
        }
        left -= now;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run in which so many requests were answered, or the longest one: a busy machine takes its time.
    fn answered(requests: u64, mut run: impl FnMut(Duration) -> Run) -> Run {
        let mut time = Duration::from_millis(20);
        loop {
            let run = run(time);
            if run.requests >= requests || time > Duration::from_secs(5) {
                return run;
            }
            time *= 4;
        }
    }

    #[test]
    fn all_requests_are_answered_whatever_their_size() {
        let mut memory = vec![9; 8 << 20];
        for write in [false, true] {
            for len in [4 << 10, 64 << 10, 1 << 20] {
                let workload = Workload { write, random: false, len };
                let run = answered(8, |time| run(workload, 8, time, &mut memory).unwrap());
                assert!(run.requests >= 8, "{workload:?} {run:?}");
            }
        }
        assert!(memory.iter().all(|byte| *byte == 1), "data of writes is in its place");
    }

    #[test]
    fn parts_of_requests_go_over_all_connections() {
        let mut memory = vec![9; 8 << 20];
        for write in [false, true] {
            let workload = Workload { write, random: false, len: 192 << 10 };
            let run = answered(4, |time| run_spread(workload, 4, time, &mut memory, 4).unwrap());
            assert!(run.requests >= 4 && run.server_cpu_s > 0.0, "{workload:?} {run:?}");
        }
        // The first place of each server, and all of a small part of each.
        assert!(memory.chunks_exact(2 << 20).all(|part| part[..48 << 10] == [1; 48 << 10]));
        let workload = Workload { write: false, random: false, len: 4096 };
        assert!(run_spread(workload, 4, Duration::ZERO, &mut memory, 32).is_err());
    }
}
