//! The audit log: who was refused, and what was changed; one JSON document a line, without secrets
//! (docs/agent.md). A thread writes it, so that nobody waits for the disk. What comes from others is
//! written so many times a second at most, then counted.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
};

use netraid_cluster::now;
use serde_json::{Map, Value, json};

/// Refusals of one second that are written.
const PER_SECOND_MAX: u32 = 100;
/// Lines that wait for the disk.
const QUEUE_MAX: usize = 4096;
/// A file that is longer makes room for a new one; one older is kept.
const FILE_LEN_MAX: u64 = 64 << 20;
/// Characters of what others said.
const TEXT_LEN_MAX: usize = 300;

/// A way to the log; clones lead to the same one.
#[derive(Debug, Clone)]
pub(crate) struct Audit {
    lines: mpsc::SyncSender<String>,
    second: Arc<Mutex<Second>>,
    /// Lines for which there was no room, in the queue or on the disk.
    lost: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Second {
    at: u64,
    count: u32,
    left_out: u64,
}

impl Audit {
    /// The log in this file.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let log = Log::open(path, FILE_LEN_MAX)?;
        let (lines, queue) = mpsc::sync_channel(QUEUE_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let unwritten = Arc::clone(&lost);
        let thread = thread::Builder::new().name("audit".to_owned());
        thread.spawn(move || log.write_all(&queue, &unwritten))?;
        Ok(Self { lines, second: Arc::default(), lost })
    }

    /// Writes what was changed, or decided here.
    pub(crate) fn tell(&self, event: &str, fields: Value) {
        self.line(now().0, event, fields);
    }

    /// Writes what somebody was refused.
    pub(crate) fn refuse(&self, event: &str, fields: Value) {
        let at = now().0;
        let left_out = {
            let mut second = self.second.lock().unwrap_or_else(PoisonError::into_inner);
            if second.at != at / 1000 {
                (second.at, second.count) = (at / 1000, 0);
            }
            second.count += 1;
            if second.count > PER_SECOND_MAX {
                second.left_out += 1;
                return;
            }
            std::mem::take(&mut second.left_out)
        };
        if left_out > 0 {
            self.line(at, "left_out", json!({ "lines": left_out }));
        }
        self.line(at, event, fields);
    }

    fn line(&self, at: u64, event: &str, fields: Value) {
        let mut line = Map::new();
        line.insert("at_ms".to_owned(), at.into());
        line.insert("event".to_owned(), event.into());
        if let Value::Object(fields) = fields {
            line.extend(fields);
        }
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            line.insert("lost_before".to_owned(), lost.into());
        }
        if self.lines.try_send(Value::Object(line).to_string()).is_err() {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
    }
}

/// What somebody said, not too much of it.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(TEXT_LEN_MAX).collect()
}

struct Log {
    path: PathBuf,
    file: File,
    len: u64,
    len_max: u64,
    /// The file ends within a line, of which nothing is to be read.
    is_torn: bool,
}

impl Log {
    fn open(path: &Path, len_max: u64) -> io::Result<Self> {
        use std::os::unix::fs::FileExt as _;
        netraid_private::tighten(&older(path))?;
        let file = netraid_private::open(path, netraid_private::Mode::Append)?;
        let len = file.metadata()?.len();
        let mut last = [b'\n'];
        if let Some(at) = len.checked_sub(1) {
            file.read_exact_at(&mut last, at)?;
        }
        Ok(Self { path: path.to_owned(), file, len, len_max, is_torn: last != [b'\n'] })
    }

    /// Writes lines until nobody sends any more; those that cannot be written are counted.
    fn write_all(mut self, queue: &mpsc::Receiver<String>, lost: &AtomicU64) {
        let mut failed = false;
        for line in queue {
            let written = self.write(&line);
            if let Err(error) = &written {
                lost.fetch_add(1, Ordering::Relaxed);
                if !failed {
                    tracing::error!("audit log {}: {error}", self.path.display());
                }
            }
            failed = written.is_err();
        }
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        if self.len > self.len_max {
            self.turn()?;
        }
        let before = if self.is_torn { "\n" } else { "" };
        let text = format!("{before}{line}\n");
        if let Err(error) = self.file.write_all(text.as_bytes()) {
            // A part of it may be there.
            self.is_torn |= self.file.set_len(self.len).is_err();
            return Err(error);
        }
        self.is_torn = false;
        self.len += text.len() as u64;
        Ok(())
    }

    /// Makes room: the file becomes the older one.
    fn turn(&mut self) -> io::Result<()> {
        match fs::rename(&self.path, older(&self.path)) {
            // It went when no new one could be made.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        *self = Self::open(&self.path, self.len_max)?;
        Ok(())
    }
}

/// Where the lines before those of a log are.
fn older(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of the lines of a file, each of which is whole.
    fn numbers(path: &Path) -> Vec<u64> {
        let text = fs::read_to_string(path).unwrap_or_default();
        assert!(text.is_empty() || text.ends_with('\n'), "{text}");
        let number = |line: &str| serde_json::from_str::<Value>(line).unwrap()["n"].as_u64();
        text.lines().filter_map(number).collect()
    }

    fn line(n: u64) -> String {
        json!({ "event": "test", "n": n }).to_string()
    }

    #[test]
    fn files_stay_bounded_and_no_line_is_lost_between_them() {
        const LEN_MAX: u64 = 1000;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let old = directory.path().join("audit.jsonl.1");
        let mut next = 0;
        // Each turn of this is a start of the agent.
        for count in [7, 90, 1, 45, 300] {
            let mut log = Log::open(&path, LEN_MAX).unwrap();
            for _ in 0..count {
                log.write(&line(next)).unwrap();
                next += 1;
                let all: Vec<u64> = numbers(&old).into_iter().chain(numbers(&path)).collect();
                let first = all[0];
                assert_eq!(all, (first..next).collect::<Vec<_>>());
                for path in [&path, &old] {
                    let len = path.metadata().map_or(0, |found| found.len());
                    assert!(len <= LEN_MAX + 100, "{len}");
                }
            }
        }
        assert!(numbers(&old)[0] > 100, "it never made room");
    }

    #[test]
    fn a_line_that_was_torn_by_a_crash_spoils_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        fs::write(&path, format!("{}\n{}", line(1), &line(2)[..9])).unwrap();
        let mut log = Log::open(&path, 1000).unwrap();
        log.write(&line(3)).unwrap();
        log.write(&line(4)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let whole = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let whole: Vec<_> = whole.map(|line| line["n"].as_u64().unwrap()).collect();
        assert_eq!(whole, [1, 3, 4]);
    }

    #[test]
    fn it_goes_on_when_a_new_file_could_not_be_made() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let mut log = Log::open(&path, 10).unwrap();
        log.write(&line(1)).unwrap();
        // As after a turn of which only the first half was done.
        fs::rename(&path, directory.path().join("audit.jsonl.1")).unwrap();
        log.write(&line(2)).unwrap();
        assert_eq!(numbers(&path), [2]);
    }

    #[test]
    fn lines_that_are_not_written_are_counted_and_told() {
        // A device that is always full.
        let (lines, queue) = mpsc::sync_channel(QUEUE_MAX);
        let audit = Audit { lines, second: Arc::default(), lost: Arc::default() };
        let path = PathBuf::from("/dev/full");
        let file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        let full = Log { path, file, len: 0, len_max: u64::MAX, is_torn: false };
        audit.tell("one", json!({}));
        audit.tell("two", json!({}));
        let Audit { lines, lost, second } = audit;
        drop(lines);
        full.write_all(&queue, &lost);
        let (lines, queue) = mpsc::sync_channel(QUEUE_MAX);
        let audit = Audit { lines, second, lost };
        audit.tell("three", json!({}));
        let said: Value = serde_json::from_str(&queue.recv().unwrap()).unwrap();
        assert_eq!((&said["event"], &said["lost_before"]), (&json!("three"), &json!(2)));
    }
}
