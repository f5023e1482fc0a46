//! Which file has an identity that versions derived which kept none, and since when identities are
//! kept on this machine. Such an identity follows from numbers that other files get later: it is given
//! once, and to no file that is younger than what kept none.

use std::{
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use netraid_block::narrow;
use netraid_scsi::identity::{Birth, KeptIdentity, Moment};
use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    time::{ClockId, clock_gettime},
};

use super::identity::read;

/// Says since when identities are kept on this machine.
const SINCE: &str = "identities-since";

/// The directory in which a machine notes both.
#[derive(Debug, Clone, Copy)]
pub(super) struct Derived<'a>(pub(super) &'a Path);

impl Derived<'_> {
    /// Since when identities are kept on this machine: from now on, where that was not noted yet.
    ///
    /// # Errors
    /// When that can be neither read nor noted.
    pub(super) fn since(self) -> io::Result<Moment> {
        let path = self.0.join(SINCE);
        self.note(&path, text_of(now()).as_bytes())?;
        let found = read(&path)?.and_then(|bytes| moment_in(&bytes));
        found.ok_or_else(|| ErrorKind::InvalidData.into())
    }

    /// Gives a derived identity to a file, durably, when no other file has it or had it. Whether the
    /// file has it then; one whose moment is not known is never taken for the file that has it already.
    ///
    /// # Errors
    /// When that can be neither read nor noted.
    pub(super) fn give(self, derived: &str, birth: Birth) -> io::Result<bool> {
        let record = KeptIdentity { serial: derived.to_owned(), birth: Some(birth) };
        // A serial number names a file as it is: see `netraid_scsi::identity::is_serial`.
        let path = self.0.join(format!("derived-{derived}.identity"));
        if self.note(&path, &record.encode())? {
            return Ok(true);
        }
        let found = read(&path)?.and_then(|bytes| KeptIdentity::decode(&bytes).ok());
        let owner = found.and_then(|found| found.birth);
        Ok(birth.born.is_some() && owner.is_some_and(|owner| owner == birth))
    }

    /// Makes a file with these contents, durably, unless there is one; whether there was none.
    fn note(self, path: &Path, bytes: &[u8]) -> io::Result<bool> {
        if path.symlink_metadata().is_ok() {
            return Ok(false);
        }
        fs::create_dir_all(self.0)?;
        let mut new = path.as_os_str().to_owned();
        new.push(format!(".{:016x}", rand::random::<u64>()));
        let new = PathBuf::from(new);
        netraid_private::replace(&new, bytes)?;
        match renameat_with(CWD, &new, CWD, path, RenameFlags::NOREPLACE) {
            Ok(()) => netraid_private::sync_parent(path).map(|()| true),
            Err(errno) => {
                // What failed before is told.
                let _ = fs::remove_file(&new);
                match io::Error::from(errno) {
                    // Another target was quicker.
                    error if error.kind() == ErrorKind::AlreadyExists => Ok(false),
                    error => Err(error),
                }
            }
        }
    }
}

/// The moment by the clock by which file systems note when a file is made.
pub(super) fn now() -> Moment {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    // Less than a billion.
    (now.tv_sec, narrow(now.tv_nsec))
}

/// Seconds, a dot, and nanoseconds.
pub(super) fn text_of((seconds, nanoseconds): Moment) -> String {
    format!("{seconds}.{nanoseconds}")
}

/// Reads what [`text_of`] made.
pub(super) fn moment_in(bytes: &[u8]) -> Option<Moment> {
    let (seconds, nanoseconds) = std::str::from_utf8(bytes).ok()?.split_once('.')?;
    Some((seconds.parse().ok()?, nanoseconds.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Birth = Birth { inode: 12, born: Some((100, 5)) };

    #[test]
    fn a_derived_identity_is_given_to_one_file_for_good() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("made/when/needed");
        let derived = Derived(&path);
        assert!(derived.give("a", FILE).unwrap());
        assert!(derived.give("a", FILE).unwrap());
        assert!(!derived.give("a", Birth { born: Some((200, 0)), ..FILE }).unwrap());
        assert!(derived.give("b", Birth { born: None, ..FILE }).unwrap());
        // A file of that number again, or another one: nothing tells.
        assert!(!derived.give("b", Birth { born: None, ..FILE }).unwrap());
        fs::write(path.join("derived-a.identity"), b"nonsense").unwrap();
        assert!(!derived.give("a", FILE).unwrap());
        assert_eq!(fs::read_dir(&path).unwrap().count(), 2);
    }

    #[test]
    fn the_first_moment_stays() {
        let directory = tempfile::tempdir().unwrap();
        let derived = Derived(directory.path());
        let first = derived.since().unwrap();
        fs::write(directory.path().join(SINCE), b"1.2").unwrap();
        assert_ne!(first, (1, 2));
        assert_eq!(derived.since().unwrap(), (1, 2));
        fs::write(directory.path().join(SINCE), b"nonsense").unwrap();
        derived.since().unwrap_err();
    }
}
