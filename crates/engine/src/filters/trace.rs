//! Where the ends of requests are told: the log, or a file with a line a request.

use std::{
    fs::File,
    io::{BufWriter, Write as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, TrySendError};
use netraid_block::{Completion, ErrorKind, IoError, Op, Request, SgList};

use super::tap::{Tap, tap};

/// Lines that wait to be written; what comes beyond is counted and left out.
const LINES_MAX: usize = 1 << 16;

/// Where the ends go.
pub(super) enum Sink {
    Log,
    File(Lines),
}

/// Lines on their way to a file.
pub(super) struct Lines {
    started: Instant,
    /// Taken only by `drop`.
    sender: Option<Sender<Line>>,
    writer: Option<JoinHandle<()>>,
    lost: Arc<AtomicU64>,
}

struct Line {
    since_start: Duration,
    asked: About,
    latency: Duration,
    error: Option<ErrorKind>,
}

#[derive(Clone, Copy)]
struct About {
    op: Op,
    offset: u64,
    len: u64,
    fua: bool,
}

struct Traced {
    sink: Arc<Sink>,
    about: About,
    submitted: Instant,
}

/// Has the end of `request` told to `sink`.
pub(super) fn traced(sink: Arc<Sink>, request: Request) -> Request {
    let Request { op, offset, len, flags, .. } = request;
    let about = About { op, offset, len, fua: flags.fua };
    tap(request, Traced { sink, about, submitted: Instant::now() })
}

impl Tap for Traced {
    fn end(self, result: Result<SgList, IoError>, completion: Completion) {
        self.sink.tell(self.about, self.submitted.elapsed(), result.as_ref().err());
        completion.finish(result);
    }
}

impl Sink {
    /// Opens the file, which is made where it is missing; lines come behind those in it. Another
    /// trace may still write to it, the one that this takes the place of. What may stand still, as a pipe,
    /// is refused, since the end of a trace waits for its lines; so are other users' links.
    pub(super) fn open(path: Option<&Path>) -> std::io::Result<Self> {
        let Some(path) = path else { return Ok(Self::Log) };
        let file = netraid_private::open_known_through_links(
            path,
            File::options().append(true).create(true),
        )?;
        let mut file = BufWriter::new(file);
        writeln!(file, "time_us op offset len fua latency_us result")?;
        let (sender, receiver) = crossbeam_channel::bounded(LINES_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let (path, told) = (path.to_path_buf(), lost.clone());
        let writer = std::thread::Builder::new()
            .name("netraid-trace".into())
            .spawn(move || write_lines(file, &path, &receiver, &told))?;
        let (sender, writer) = (Some(sender), Some(writer));
        Ok(Self::File(Lines { started: Instant::now(), sender, writer, lost }))
    }

    fn tell(&self, about: About, latency: Duration, error: Option<&IoError>) {
        let About { op, offset, len, fua } = about;
        match (self, error) {
            (Self::Log, None) => {
                tracing::info!(?op, offset, len, fua, ?latency, "request ended");
            }
            (Self::Log, Some(error)) => {
                tracing::info!(?op, offset, len, fua, ?latency, %error, "request failed");
            }
            (Self::File(lines), error) => {
                let since_start = lines.started.elapsed();
                let error = error.map(IoError::kind);
                lines.push(Line { since_start, asked: about, latency, error });
            }
        }
    }
}

impl Lines {
    fn push(&self, line: Line) {
        let sent = self.sender.as_ref().map(|sender| sender.try_send(line));
        if let Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) = sent {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Lines {
    /// Waits until every line is in the file.
    fn drop(&mut self) {
        drop(self.sender.take());
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

fn write_lines(mut file: BufWriter<File>, path: &Path, lines: &Receiver<Line>, lost: &AtomicU64) {
    let mut write = || {
        while let Ok(first) = lines.recv() {
            for line in std::iter::once(first).chain(lines.try_iter()) {
                let Line { since_start, asked, latency, error } = line;
                let About { op, offset, len, fua } = asked;
                let (time, latency) = (since_start.as_micros(), latency.as_micros());
                let (op, fua) = (format!("{op:?}").to_lowercase(), u8::from(fua));
                let result = error.map_or("ok".into(), |kind| format!("{kind:?}").to_lowercase());
                writeln!(file, "{time} {op} {offset} {len} {fua} {latency} {result}")?;
            }
            file.flush()?;
        }
        match lost.load(Ordering::Relaxed) {
            0 => Ok(()),
            lost => writeln!(file, "# {lost} requests are not here: they came too fast")
                .and_then(|()| file.flush()),
        }
    };
    if let Err(error) = write() {
        tracing::warn!(path = %path.display(), %error, "the trace ends: its file cannot be written");
    }
}
