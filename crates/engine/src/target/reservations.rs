//! Where persistent reservations survive a restart: one file for each logical unit (the format is
//! in docs/formats/reservations.md).
//!
//! The file is replaced as a whole, and a change is reported as stored once file and directory
//! are stable. A file that is there and cannot be understood is an error: whoever a reservation
//! keeps out must not come in because it was forgotten.

use std::{
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use netraid_block::{Completion, ErrorKind, SgList};
use netraid_scsi::{Reservations, reservation::StateError};

/// Longer than any state, in bytes.
const LEN_MAX: u64 = 1 << 20;

/// Why stored reservations cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReservationsError {
    /// The file cannot be read.
    #[error("reservations '{path}': cannot be read: {source}; make the file readable", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file is not what this program stored.
    #[error(
        "reservations '{path}': the file {source}; restore it, or remove it when no host is to be \
         kept out any more",
        path = path.display()
    )]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: StateError,
    },
}

/// The file of one logical unit, and what it held when it was opened.
#[derive(Debug)]
pub struct ReservationStore {
    pub(super) place: ReservationPlace,
    pub(super) state: Reservations,
}

impl ReservationStore {
    /// Reads the file; that there is none means that nothing is reserved.
    ///
    /// # Errors
    /// When it is there, and cannot be read or understood.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, ReservationsError> {
        let path = path.into();
        let bytes = match read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(ReservationsError::Read { path, source }),
        };
        // An empty file was cut off: nothing to keep means no file.
        let state = match fs::symlink_metadata(&path) {
            Ok(_) if bytes.is_empty() => Err(StateError::Damaged),
            Ok(_) | Err(_) => Reservations::decode(&bytes),
        };
        match state {
            Ok(state) => Ok(Self { place: ReservationPlace(path), state }),
            Err(source) => Err(ReservationsError::State { path, source }),
        }
    }

    /// What was reserved.
    #[must_use]
    pub const fn state(&self) -> &Reservations {
        &self.state
    }
}

/// Where a logical unit's reservations are kept.
#[derive(Debug, Clone)]
pub(super) struct ReservationPlace(PathBuf);

impl ReservationPlace {
    /// Stores these bytes, or that there are none, on a thread that may block.
    pub(super) fn save(&self, bytes: Vec<u8>, completion: Completion) {
        let path = self.0.clone();
        tokio::task::spawn_blocking(move || {
            let result = replace(&path, &bytes).map_err(|error| {
                let path = path.display();
                tracing::error!(%path, %error, "reservations cannot be stored; nothing was changed");
                ErrorKind::Device.into()
            });
            completion.finish(result.map(|()| SgList::new()));
        });
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    netraid_private::open_plain(path)?.take(LEN_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Replaces the file, or removes it when there are no bytes, so that after a loss of power one
/// state or the other is there, and the new one once this returned.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    } else {
        return netraid_private::replace(path, bytes);
    }
    netraid_private::sync_parent(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.reservations");
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        replace(&path, b"").unwrap();
        replace(&path, b"").unwrap();
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    }

    #[test]
    fn no_file_is_no_reservation_and_any_other_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.reservations");
        assert_eq!(ReservationStore::open(&path).unwrap().state(), &Reservations::new(true));
        for bytes in [&b""[..], b"NRPRSRV\n", b"anything", &[0; 4096]] {
            fs::write(&path, bytes).unwrap();
            let error = ReservationStore::open(&path).unwrap_err().to_string();
            assert!(error.contains("x.reservations") && error.contains("restore it"), "{error}");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(ReservationStore::open(&path), Err(ReservationsError::Read { .. })));
    }

    #[test]
    fn a_link_in_the_place_of_the_file_is_refused_before_anything_is_to_be_stored() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("x.reservations"), directory.path().join("y"));
        replace(&other, &Reservations::new(true).encode()).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        let error = ReservationStore::open(&path).unwrap_err();
        assert!(matches!(error, ReservationsError::Read { .. }), "{error}");
    }
}
