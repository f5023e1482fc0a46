//! The log: a file to which lines are appended, each on the disk before the run goes on.

use std::{
    fs::{File, OpenOptions},
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use netraid_evaluate::{
    log::{self, Entry, Event},
    record::VERSION,
};
use rustix::fs::FlockOperation;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Largest log that is read.
const LOG_BYTES_MAX: u64 = 1 << 30;

/// An open log. One run writes to it at a time.
pub(super) struct Journal {
    file: File,
    path: PathBuf,
    run: String,
}

impl Journal {
    /// Opens a log, or makes it. Its usual name is known beforehand: links of other users are not followed, and what
    /// they put there is not written to.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let shown = || format!("log {}", path.display());
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true);
        let mut file =
            netraid_private::open_known_through_links(path, &mut options).with_context(shown)?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!("{}: another run writes to it; wait for its end, or give another --log", shown());
        }
        let len = file.metadata().with_context(shown)?.len();
        // A line that was cut off must not swallow the next one.
        if len > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1)).with_context(shown)?;
            file.read_exact(&mut last).with_context(shown)?;
            if last != *b"\n" {
                file.write_all(b"\n").with_context(shown)?;
            }
        }
        Ok(Self { file, path: path.to_owned(), run: String::new() })
    }

    /// Everything in it.
    pub(super) fn text(&mut self) -> Result<String> {
        let shown = || format!("log {}", self.path.display());
        let len = self.file.metadata().with_context(shown)?.len();
        if len > LOG_BYTES_MAX {
            bail!("{}: has {len} bytes, more than {LOG_BYTES_MAX}; give another --log", shown());
        }
        self.file.rewind().with_context(shown)?;
        let mut bytes = Vec::new();
        self.file.read_to_end(&mut bytes).with_context(shown)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// What follows belongs to this run.
    pub(super) fn of(&mut self, run: &str) {
        run.clone_into(&mut self.run);
    }

    /// Appends what happened.
    pub(super) fn add(&mut self, event: Event) -> Result<()> {
        let entry = Entry { version: VERSION, run: self.run.clone(), at: now()?, event };
        let line = log::line(&entry)?;
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        written.with_context(|| format!("log {}", self.path.display()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// The time, as records have it.
pub(super) fn now() -> Result<String> {
    let now = OffsetDateTime::now_utc().replace_nanosecond(0)?;
    Ok(now.format(&Rfc3339)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_appended_after_one_that_was_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "{\"version\":1,\"cut").unwrap();
        let mut journal = Journal::open(&path).unwrap();
        journal.of("a");
        journal.add(Event::Resumed {}).unwrap();
        assert!(Journal::open(&path).is_err(), "one run at a time");
        let text = journal.text().unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[1].contains("\"resumed\"") && lines[1].contains("\"run\":\"a\""), "{text}");
    }

    #[test]
    fn a_log_that_is_no_file_of_its_own_is_not_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, path) = (dir.path().join("victim"), dir.path().join("log"));
        std::fs::write(&victim, "{}").unwrap();
        std::fs::hard_link(&victim, &path).unwrap();
        assert!(Journal::open(&path).is_err());
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "{}");
        // A link of the user's own is followed, also before there is a log.
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(dir.path().join("new"), &path).unwrap();
        Journal::open(&path).unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("new")).unwrap(), "");
    }

    #[test]
    fn times_are_rfc_3339() {
        let now = now().unwrap();
        assert!(now.ends_with('Z') && now.len() == 20, "{now}");
    }
}
