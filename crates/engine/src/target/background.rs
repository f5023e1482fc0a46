//! Work of logical units that outlives the command that asked for it: sanitize operations.
//!
//! A task of its own for each LUN that has any does what the unit says, one thing at a time, and
//! ends when there is nothing left; commands that wait for it are woken through their completions.
//! When the target ends first, the marker that is kept makes the next one go on.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use netraid_block::{Completion, ErrorKind, IoError, SgList};
use netraid_iscsi_proto::{machine::TaskId, target::ConnectionId};
use netraid_node::Gate;
use netraid_scsi::{AddUnitError, Background, Marker, MarkerError, UnitConfig};

use super::{cells::Guarded, luns::ServedLun, realm::ServedRealm};
use crate::completions;

/// Longer than any marker, in bytes.
const LEN_MAX: u64 = 8 << 10;
/// Until a logical unit is asked again that waits for its older commands.
const PAUSE: Duration = Duration::from_millis(5);

/// How a LUN can be sanitized: where it is kept that it has to be.
#[derive(Debug, Clone)]
pub struct Sanitizing {
    keeper: Keeper,
    found: Option<Marker>,
}

#[derive(Debug, Clone)]
enum Keeper {
    /// The medium ends with the process, and so does the need.
    Nowhere,
    File(PathBuf),
}

/// Why it is not known whether a medium has to be sanitized.
#[derive(Debug, thiserror::Error)]
pub enum MarkerFileError {
    /// The file cannot be read.
    #[error("{path}: cannot read the marker of a sanitize operation: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file makes no sense.
    #[error(
        "{path}: {source}; the medium may be half erased: remove the file if it is to be used as \
         it is"
    )]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: MarkerError,
    },
}

impl Sanitizing {
    /// Of a medium that ends with the process.
    #[must_use]
    pub const fn volatile() -> Self {
        Self { keeper: Keeper::Nowhere, found: None }
    }

    /// Of a medium that stays: the marker is kept in the file at `path`, which is read now.
    ///
    /// # Errors
    /// When there is one that cannot be read.
    pub fn kept_in(path: PathBuf) -> Result<Self, MarkerFileError> {
        let found = match read(&path) {
            Ok(bytes) => match Marker::decode(&bytes) {
                Ok(marker) => Some(marker),
                Err(source) => return Err(MarkerFileError::Content { path, source }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(MarkerFileError::Read { path, source }),
        };
        Ok(Self { keeper: Keeper::File(path), found })
    }

    pub(super) fn take_found(&mut self) -> Option<Marker> {
        self.found.take()
    }
}

impl Keeper {
    /// Keeps a marker, or none, durably.
    async fn keep(self, marker: Option<Marker>) -> Result<(), IoError> {
        let Self::File(path) = self else { return Ok(()) };
        let shown = path.display().to_string();
        let work = move || match marker {
            Some(marker) => netraid_private::replace(&path, &marker.encode()),
            None => remove(&path),
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(io::Error::other).and_then(|done| done).map_err(|error| {
            tracing::error!(path = %shown, %error, "cannot keep the marker of a sanitize operation");
            IoError::with_detail(ErrorKind::Device, format!("{shown}: {error}"))
        })
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    netraid_private::open_plain(path)?.take(LEN_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => netraid_private::sync_parent(path),
    }
}

/// A command that waits for its logical unit.
struct Waiter {
    connection: ConnectionId,
    task: TaskId,
    completion: Completion,
}

struct Work {
    keeper: Keeper,
    waiters: Vec<Waiter>,
    is_running: bool,
}

/// The background work of all LUNs that can have any.
#[derive(Default)]
pub(super) struct BackgroundTable {
    works: Guarded<BTreeMap<u16, Work>>,
}

impl BackgroundTable {
    /// Forgets a LUN; commands that wait for it end as aborted.
    pub(super) fn remove(&self, lun: u16) {
        let work = self.works.lock().remove(&lun);
        drop(work);
    }

    /// Ends the wait of a command.
    pub(super) fn abandon(&self, lun: u16, connection: ConnectionId, task: TaskId) {
        let mut works = self.works.lock();
        let Some(work) = works.get_mut(&lun) else { return };
        let is_it = |one: &Waiter| one.connection == connection && one.task == task;
        // The completion is dropped, and ends the command as aborted.
        work.waiters.retain(|waiter| !is_it(waiter));
    }

    fn keeper(&self, lun: u16) -> Option<Keeper> {
        self.works.lock().get(&lun).map(|work| work.keeper.clone())
    }

    /// Whether the work of a LUN was not running, which it is from now on.
    fn begin(&self, lun: u16) -> bool {
        let mut works = self.works.lock();
        works.get_mut(&lun).is_some_and(|work| !core::mem::replace(&mut work.is_running, true))
    }
}

impl ServedRealm {
    /// A command waits for the background work of its LUN, until `completion` ends.
    pub(super) fn wait_for_background(
        self: &Arc<Self>,
        lun: &Arc<ServedLun>,
        connection: ConnectionId,
        task: TaskId,
        completion: Completion,
    ) {
        let mut works = self.background.works.lock();
        let mut units = self.units.lock();
        // Without work of its own the completion is dropped, and ends as aborted.
        let work = works.get_mut(&lun.number()).filter(|_| self.is_current(lun));
        let Some(work) = work else { return };
        work.waiters.push(Waiter { connection, task, completion });
        units.begin_background(lun.number());
        drop((units, works));
        self.start_background(lun);
    }

    /// Takes a logical unit with the work that an earlier target left of it, before any command finds
    /// it; `and` happens before that, too. Whether there is such work.
    pub(super) fn add_unit(
        &self,
        number: u16,
        unit: UnitConfig,
        sanitizing: Option<Sanitizing>,
        and: impl FnOnce(),
    ) -> Result<bool, AddUnitError> {
        let mut works = self.background.works.lock();
        let mut units = self.units.lock();
        units.add(number, unit)?;
        let mut resumes = false;
        if let Some(mut sanitizing) = sanitizing {
            if let Some(marker) = sanitizing.take_found() {
                units.resume_sanitize(number, marker);
                resumes = true;
            }
            let work = Work { keeper: sanitizing.keeper, waiters: Vec::new(), is_running: false };
            works.insert(number, work);
        }
        and();
        Ok(resumes)
    }

    /// Ends the wait of those who wait for a LUN.
    fn wake_waiting(&self, lun: &Arc<ServedLun>, result: Result<(), ErrorKind>) {
        let mut works = self.background.works.lock();
        let units = self.units.lock();
        let work = works.get_mut(&lun.number()).filter(|_| self.is_current(lun));
        let waiters = work.map(|work| core::mem::take(&mut work.waiters)).unwrap_or_default();
        drop((units, works));
        for waiter in waiters {
            waiter.completion.finish(result.map(|()| SgList::new()).map_err(IoError::from));
        }
    }

    /// What is to be done next for a LUN; when that is nothing, its work is not running from now on.
    /// Whoever has more to do meanwhile has told the logical unit before, and asks after.
    fn next_background(&self, lun: &Arc<ServedLun>) -> Option<Background> {
        let mut works = self.background.works.lock();
        let mut units = self.units.lock();
        // Another one has its number, and work of its own.
        if !self.is_current(lun) {
            return None;
        }
        let next = units.poll_background(lun.number());
        if let (None, Some(work)) = (&next, works.get_mut(&lun.number())) {
            work.is_running = false;
        }
        next
    }

    /// Whether this LUN is the one that has its number; as long as the units are locked.
    pub(super) fn is_current(&self, lun: &Arc<ServedLun>) -> bool {
        self.luns.get(lun.number()).is_some_and(|current| Arc::ptr_eq(&current, lun))
    }

    /// Does the background work of a LUN, if there is any.
    pub(super) fn start_background(self: &Arc<Self>, lun: &Arc<ServedLun>) {
        if self.background.begin(lun.number()) {
            tokio::task::spawn_local(run(self.clone(), lun.clone()));
        }
    }
}

async fn run(realm: Arc<ServedRealm>, lun: Arc<ServedLun>) {
    let number = lun.number();
    loop {
        let Some(next) = realm.next_background(&lun) else { return };
        let result = match next {
            Background::Keep(marker) => match realm.background.keeper(number) {
                Some(keeper) => {
                    // Whoever has the LUN's file next has to find what was kept.
                    lun.enter();
                    let kept = match lun.gate() {
                        Gate::Open | Gate::Held => keeper.keep(marker).await,
                        Gate::Leaving => Err(ErrorKind::Aborted.into()),
                    };
                    lun.leave();
                    kept.map(|()| SgList::new())
                }
                None => Err(ErrorKind::Aborted.into()),
            },
            Background::Pause => {
                tokio::time::sleep(PAUSE).await;
                Ok(SgList::new())
            }
            Background::Submit(request) => {
                let gate = enter(&lun).await;
                let result = match lun.device() {
                    Some(device) if gate == Gate::Open => {
                        let netraid_scsi::MediumRequest { op, offset, len, flags, data } = request;
                        completions::request(&device, op, offset, len, flags, data).await
                    }
                    Some(_) | None => Err(ErrorKind::Aborted.into()),
                };
                lun.leave();
                result
            }
            Background::Wake(result) => {
                realm.wake_waiting(&lun, result);
                Ok(SgList::new())
            }
        };
        // A LUN that leaves takes its unfinished work along; its marker stays.
        if lun.gate() == Gate::Leaving {
            return;
        }
        let mut units = realm.units.lock();
        if !realm.is_current(&lun) {
            return;
        }
        units.handle_background_done(number, result);
    }
}

/// Enters a LUN when it is not held: whether it serves then.
async fn enter(lun: &ServedLun) -> Gate {
    loop {
        // Whoever holds it now waits for this, or is seen here.
        lun.enter();
        let gate = lun.gate();
        if gate != Gate::Held {
            return gate;
        }
        lun.leave();
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use netraid_scsi::Method;

    use super::*;

    #[test]
    fn a_marker_is_found_again_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.sanitize");
        let marker = Marker { method: Method::BlockErase, unrestricted: true, failed: false };
        netraid_private::replace(&path, b"older").unwrap();
        netraid_private::replace(&path, &marker.encode()).unwrap();
        assert_eq!(Sanitizing::kept_in(path.clone()).unwrap().take_found(), Some(marker));
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert_eq!(Sanitizing::kept_in(path.clone()).unwrap().take_found(), None);
        fs::write(&path, b"rubbish").unwrap();
        let error = Sanitizing::kept_in(path).unwrap_err().to_string();
        assert!(error.contains("disk.sanitize") && error.contains("remove the file"), "{error}");
    }

    #[test]
    fn a_link_in_the_place_of_a_marker_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("disk.sanitize"), dir.path().join("other"));
        let marker = Marker { method: Method::BlockErase, unrestricted: true, failed: false };
        netraid_private::replace(&other, &marker.encode()).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        let error = Sanitizing::kept_in(path).unwrap_err();
        assert!(matches!(error, MarkerFileError::Read { .. }), "{error}");
    }

    #[test]
    fn a_marker_file_of_any_length_takes_little_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.sanitize");
        fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let error = Sanitizing::kept_in(path).unwrap_err();
        assert!(matches!(error, MarkerFileError::Content { .. }), "{error}");
    }
}
