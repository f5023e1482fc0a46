//! What this machine gives without any target: memory, TCP over loopback, the disk of the temporary
//! directory, and the network to the clients' hosts.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::fs::FileExt as _,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use netraid_block::BufMut;
use netraid_evaluate::{
    record::{Baseline, BaselineKind, Settings},
    statistics::median,
};
use rustix::fs::{Advice, OFlags};

use super::{
    client::{Client, Job},
    data::Content,
    load::Shared,
};

/// Rounds of each.
const ROUNDS: usize = 3;
/// Longest round.
const ROUND: Duration = Duration::from_millis(400);
/// Bytes of a round on a disk: at most.
const DISK_LEN: u64 = 64 << 20;
/// Bytes of a large request.
const REQUEST_LEN: usize = 256 << 10;

/// All of them, interleaved: a disturbance falls on one round of each.
pub(super) fn measure(settings: &Settings, shared: &Shared) -> Result<Vec<Baseline>> {
    let mut disk = Disk::new()?;
    let place = std::env::temp_dir().display().to_string();
    let mut all = vec![
        empty(BaselineKind::Memory, ""),
        empty(BaselineKind::Loopback, ""),
        empty(BaselineKind::DiskWrite, &place),
        empty(BaselineKind::DiskRead, &place),
    ];
    all.extend(settings.clients.iter().map(|host| empty(BaselineKind::Network, host)));
    for _ in 0..ROUNDS {
        for baseline in &mut all {
            shared.check()?;
            let rate = match baseline.kind {
                BaselineKind::Memory => memory(shared),
                BaselineKind::Loopback => loopback(shared)?,
                BaselineKind::DiskWrite => disk.write(shared)?,
                BaselineKind::DiskRead => disk.read()?,
                BaselineKind::Network => network(&baseline.place, shared)?,
            };
            baseline.samples_mb_per_s.push(rate);
        }
    }
    for baseline in &mut all {
        baseline.mb_per_s = median(&baseline.samples_mb_per_s).unwrap_or_default();
    }
    Ok(all)
}

fn empty(kind: BaselineKind, place: &str) -> Baseline {
    Baseline { kind, place: place.to_owned(), samples_mb_per_s: Vec::new(), mb_per_s: 0.0 }
}

fn rate(bytes: u64, began: Instant) -> f64 {
    crate::size::mb_per_s(bytes, began.elapsed().as_secs_f64())
}

/// Copies out of the pool, as streams do.
fn memory(shared: &Shared) -> f64 {
    let mut buffer = BufMut::zeroed(REQUEST_LEN);
    let (began, mut bytes) = (Instant::now(), 0);
    while began.elapsed() < ROUND {
        shared.data.fill(Content::Any, bytes, 0, &mut buffer);
        bytes += REQUEST_LEN as u64;
    }
    rate(bytes, began)
}

fn loopback(shared: &Shared) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0").context("loopback")?;
    let sender = TcpStream::connect(listener.local_addr()?).context("loopback")?;
    let (mut receiver, _) = listener.accept().context("loopback")?;
    let taking = thread::spawn(move || -> std::io::Result<()> {
        let mut buffer = vec![0; REQUEST_LEN];
        while receiver.read(&mut buffer)? > 0 {}
        Ok(())
    });
    let sent = send(sender, shared)?;
    taking.join().map_err(|_| anyhow!("a thread panicked"))??;
    Ok(sent)
}

fn network(host: &str, shared: &Shared) -> Result<f64> {
    let job = Job::Sink { anywhere: true, disk_bytes: None };
    let sink = Client::start(Some(host), &job, shared)?;
    send(sink.connect()?, shared)?;
    let received = sink.received(shared)?;
    Ok(crate::size::mb_per_s(received.bytes, received.seconds))
}

fn send(mut stream: TcpStream, shared: &Shared) -> Result<f64> {
    let mut buffer = vec![0; REQUEST_LEN];
    let (began, mut bytes) = (Instant::now(), 0);
    while began.elapsed() < ROUND {
        shared.data.fill(Content::Any, bytes, 0, &mut buffer);
        stream.write_all(&buffer).context("TCP")?;
        bytes += REQUEST_LEN as u64;
    }
    Ok(rate(bytes, began))
}

/// A file of the temporary directory that nobody else sees.
struct Disk {
    file: std::fs::File,
    written: u64,
}

impl Disk {
    fn new() -> Result<Self> {
        let place = std::env::temp_dir();
        let file = tempfile::tempfile().with_context(|| place.display().to_string())?;
        // Where the file system does not take it, the page cache is emptied instead.
        if let Ok(flags) = rustix::fs::fcntl_getfl(&file) {
            let _ = rustix::fs::fcntl_setfl(&file, flags | OFlags::DIRECT);
        }
        Ok(Self { file, written: 0 })
    }

    fn write(&mut self, shared: &Shared) -> Result<f64> {
        let mut buffer = BufMut::zeroed(REQUEST_LEN);
        let (began, mut bytes) = (Instant::now(), 0);
        while began.elapsed() < ROUND && bytes < DISK_LEN {
            shared.data.fill(Content::Marked(bytes), bytes, 0, &mut buffer);
            self.file.write_all_at(&buffer, bytes).context("temporary file")?;
            bytes += REQUEST_LEN as u64;
        }
        self.file.sync_data().context("temporary file")?;
        self.written = bytes;
        Ok(rate(bytes, began))
    }

    fn read(&mut self) -> Result<f64> {
        rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed)?;
        let mut buffer = BufMut::zeroed(REQUEST_LEN);
        let (began, mut bytes) = (Instant::now(), 0);
        while began.elapsed() < ROUND && bytes < self.written {
            self.file.read_exact_at(&mut buffer, bytes).context("temporary file")?;
            bytes += REQUEST_LEN as u64;
        }
        Ok(rate(bytes, began))
    }
}
