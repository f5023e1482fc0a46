//! Lines on their way to standard error and standard output, from everything that goes on serving.
//!
//! Whoever writes a line only puts it into a bounded [`Backlog`]; a thread of its own writes it. So a reader that
//! stands still, a reader that is gone and a full disk cost lines and nothing else. Lines that could not be
//! written are counted, and said once writing works again.

use std::{
    borrow::Cow,
    collections::VecDeque,
    io::{self, ErrorKind, Write},
    os::fd::{AsFd as _, OwnedFd},
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

use netraid_block::redact_addresses;
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};

/// Bytes of lines that wait to be written.
const WAITING_MAX: usize = 1 << 20;
/// Bytes that are written at once.
const CHUNK: usize = 64 << 10;
/// Bytes that a pipe takes at once when it says that it takes any (PIPE_BUF, pipe(7)).
const PIPE_LEN: usize = 4 << 10;
/// Redrawn bars are left out while more than this waits.
const REDRAWN_MAX: usize = 4 << 10;
/// How often a stream that takes nothing at the moment is tried again.
const RETRY: Duration = Duration::from_millis(20);
/// How long the end of the process waits for a line to leave, and for all of them.
const LINE_PATIENCE: Duration = Duration::from_millis(500);
const END_PATIENCE: Duration = Duration::from_secs(5);

/// Lines of standard error: the log, and what a command says last.
pub(crate) fn errors() -> &'static Lines {
    static LINES: OnceLock<Lines> = OnceLock::new();
    LINES.get_or_init(|| {
        let stream = io::stderr().as_fd().try_clone_to_owned().ok();
        Lines::start(io::stderr(), stream, says_lost)
    })
}

/// Lines of standard output of a process that goes on; `is_json` says in which form lost ones are counted.
pub(crate) fn events(is_json: bool) -> &'static Lines {
    EVENTS.get_or_init(|| {
        let says = if is_json { says_lost_event } else { says_lost };
        // Past the buffer of the standard library, which would keep lines that could not be written.
        match io::stdout().as_fd().try_clone_to_owned() {
            Ok(out) => Lines::start(
                std::fs::File::from(out),
                io::stdout().as_fd().try_clone_to_owned().ok(),
                says,
            ),
            Err(_) => Lines::start(io::stdout(), None, says),
        }
    })
}

static EVENTS: OnceLock<Lines> = OnceLock::new();

/// Waits a bounded time for what was written to leave, before the process ends or writes by another way.
pub(crate) fn finish() {
    errors().finish();
    EVENTS.get().into_iter().for_each(Lines::finish);
}

/// A line without the secrets of addresses in it.
fn without_secrets(line: &[u8]) -> Cow<'_, [u8]> {
    match std::str::from_utf8(line) {
        Ok(text) if text.contains('@') || text.contains(":/") => {
            Cow::Owned(redact_addresses(text).into_bytes())
        }
        Ok(_) | Err(_) => Cow::Borrowed(line),
    }
}

fn says_lost(lines: u64) -> String {
    format!("netraid: {lines} lines could not be written here\n")
}

fn says_lost_event(lines: u64) -> String {
    format!("{{\"event\":\"lines_lost\",\"lines\":{lines}}}\n")
}

/// Lines that wait, and how many there was no room for.
#[derive(Debug, Default)]
struct Backlog {
    lines: VecDeque<Line>,
    bytes: usize,
    /// Lines that came after the last of `lines` and are lost.
    lost: u64,
}

#[derive(Debug)]
struct Line {
    text: Vec<u8>,
    /// So many before it are lost.
    lost_before: u64,
    /// A redrawn bar: nobody misses it.
    is_redrawn: bool,
}

/// What is written at once.
#[derive(Debug, Default, PartialEq, Eq)]
struct Chunk {
    bytes: Vec<u8>,
    /// Where each line ends, and how many lost ones it stands for: itself, and those that it counts.
    ends: Vec<(usize, u64)>,
}

impl Backlog {
    /// Takes a line, unless there is no room. A line that is larger than all room is taken alone.
    fn push(&mut self, text: &[u8], is_redrawn: bool) {
        let limit = if is_redrawn { REDRAWN_MAX } else { WAITING_MAX };
        if !self.lines.is_empty() && self.bytes + text.len() > limit {
            self.lost += u64::from(!is_redrawn);
            return;
        }
        self.bytes += text.len() + size_of::<Line>();
        let lost_before = std::mem::take(&mut self.lost);
        self.lines.push_back(Line { text: text.to_vec(), lost_before, is_redrawn });
    }

    /// The next lines to write; before them, how many were lost: `failed` that were taken already and could not
    /// be written, and those that there was no room for.
    fn take(&mut self, failed: u64, says: fn(u64) -> String) -> Chunk {
        let mut chunk = Chunk::default();
        let mut lost = failed;
        while chunk.bytes.len() < CHUNK
            && let Some(line) = self.lines.pop_front()
        {
            self.bytes -= line.text.len() + size_of::<Line>();
            lost += line.lost_before;
            chunk.say_lost(std::mem::take(&mut lost), says);
            chunk.push(&line.text, u64::from(!line.is_redrawn));
        }
        if self.lines.is_empty() {
            lost += std::mem::take(&mut self.lost);
            chunk.say_lost(lost, says);
        }
        chunk
    }

    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.lost == 0
    }
}

impl Chunk {
    fn push(&mut self, text: &[u8], stands_for: u64) {
        self.bytes.extend_from_slice(text);
        self.ends.push((self.bytes.len(), stands_for));
    }

    fn say_lost(&mut self, lost: u64, says: fn(u64) -> String) {
        if lost > 0 {
            self.push(says(lost).as_bytes(), lost);
        }
    }

    /// Ends the line that was written in part before.
    fn begin_a_line(&mut self) {
        self.bytes.insert(0, b'\n');
        self.ends.iter_mut().for_each(|(end, _)| *end += 1);
    }

    /// How many lines are lost when only so many bytes were written.
    fn lost_after(&self, written: usize) -> u64 {
        self.ends.iter().filter(|(end, _)| *end > written).map(|(_, stands_for)| stands_for).sum()
    }

    /// Whether a line was written in part.
    fn is_torn_after(&self, written: usize) -> bool {
        written > 0 && self.ends.iter().all(|(end, _)| *end != written)
    }
}

/// A way to a stream of lines.
pub(crate) struct Lines {
    shared: Arc<Shared>,
    /// The stream, where the process can have no thread that writes: the end of the process does.
    sink: Mutex<Option<Sink>>,
    says: fn(u64) -> String,
}

/// A stream, and by what it is known whether it takes something.
struct Sink {
    write: Box<dyn Write + Send>,
    stream: Option<OwnedFd>,
}

impl Sink {
    /// Waits until a write does not have to wait; false when that is not soon, and before `end`.
    fn is_ready(&self, end: Instant) -> bool {
        let end = end.min(Instant::now() + LINE_PATIENCE);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Some(stream) = self.stream.as_ref().filter(|_| !left.is_zero()) else {
                return !left.is_zero();
            };
            let left = left.try_into().ok();
            match poll(&mut [PollFd::new(stream, PollFlags::OUT)], left.as_ref()) {
                Ok(0) => return false,
                Err(Errno::INTR) => {}
                // What is wrong, the write tells.
                Ok(_) | Err(_) => return true,
            }
        }
    }

    /// Writes all of `bytes`, or as many as the stream takes until it stands still, or `end`.
    fn write_until(&mut self, end: Instant, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() && self.is_ready(end) {
            let upto = bytes.len().min(at + PIPE_LEN);
            match self.write.write(&bytes[at..upto]) {
                Ok(0) => break,
                Ok(len) => at += len,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(RETRY),
                Err(_) => break,
            }
        }
        at
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    backlog: Backlog,
    /// Lines were taken out of the backlog and are being written.
    is_writing: bool,
    /// Bytes that have left, ever.
    written: u64,
}

impl Lines {
    fn start(
        sink: impl Write + Send + 'static,
        stream: Option<OwnedFd>,
        says: fn(u64) -> String,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let sink = Arc::new(Mutex::new(Some(Sink { write: Box::new(sink), stream })));
        let (of_thread, taken) = (Arc::clone(&shared), Arc::clone(&sink));
        let builder = thread::Builder::new().name("netraid-lines".to_owned());
        let writer = builder.spawn(move || {
            let sink = taken.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(Sink { write, stream }) = sink {
                drop(stream);
                of_thread.write_all(write, says);
            }
        });
        let left = writer.err().and_then(|_| {
            let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
            sink.take()
        });
        Self { shared, sink: Mutex::new(left), says }
    }

    /// Has a line written, which ends with a newline; never waits.
    pub(crate) fn push(&self, line: &[u8]) {
        self.shared.lock().backlog.push(line, false);
        self.shared.changed.notify_all();
    }

    /// The same for a bar that is drawn anew; left out where lines wait.
    pub(crate) fn redraw(&self, text: &[u8]) {
        self.shared.lock().backlog.push(text, true);
        self.shared.changed.notify_all();
    }

    /// Waits until all lines have left; not for a stream that takes none.
    fn finish(&self) {
        if let Some(sink) = &mut *self.sink.lock().unwrap_or_else(PoisonError::into_inner) {
            return self.write_rest(sink);
        }
        let began = Instant::now();
        let mut state = self.shared.lock();
        let (mut written, mut moved) = (state.written, began);
        while (state.is_writing || !state.backlog.is_empty())
            && began.elapsed() < END_PATIENCE
            && moved.elapsed() < LINE_PATIENCE
        {
            let waited = self.shared.changed.wait_timeout(state, RETRY);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.written != written {
                (written, moved) = (state.written, Instant::now());
            }
        }
    }

    /// Writes what waits, as no thread does; not longer than a stream that stands still is waited for. (A
    /// terminal that is stopped within a line is waited for until it goes on.)
    fn write_rest(&self, sink: &mut Sink) {
        let end = Instant::now() + END_PATIENCE;
        loop {
            let chunk = self.shared.lock().backlog.take(0, self.says);
            if chunk.bytes.is_empty() {
                return;
            }
            let written = sink.write_until(end, &chunk.bytes);
            if written < chunk.bytes.len() {
                self.shared.lock().backlog.lost += chunk.lost_after(written);
                return;
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what comes, for as long as the process lives.
    fn write_all(&self, mut sink: impl Write, says: fn(u64) -> String) {
        let (mut failed, mut is_torn) = (0, false);
        loop {
            let mut state = self.lock();
            while state.backlog.is_empty() {
                state.is_writing = false;
                self.changed.notify_all();
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.is_writing = true;
            let mut chunk = state.backlog.take(std::mem::take(&mut failed), says);
            drop(state);
            if is_torn {
                chunk.begin_a_line();
            }
            let written = self.write(&mut sink, &chunk.bytes);
            failed = chunk.lost_after(written);
            is_torn = if written == 0 { is_torn } else { chunk.is_torn_after(written) };
        }
    }

    /// Writes all of `bytes`, or as many as it can.
    fn write(&self, sink: &mut impl Write, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            match sink.write(&bytes[at..]) {
                Ok(0) => break,
                Ok(len) => {
                    at += len;
                    self.lock().written += len as u64;
                    self.changed.notify_all();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Whoever gave the stream shares it with somebody who does not want to wait.
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(RETRY),
                Err(_) => break,
            }
        }
        at
    }
}

/// The log's way: each event comes in one piece. Whoever logs may quote an address that somebody typed.
impl Write for &'static Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(&without_secrets(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
