//! Where the data of segments is: sparse files of a directory, memory, or a disk. Everything here may block.
//!
//! ```text
//! D/segments/MEDIATOR/SEGMENT                 the data
//! D/segments/MEDIATOR/SEGMENT.label           what it is of, in JSON, to be found without the store
//! D/segments/MEDIATOR/SEGMENT.reservations    persistent reservations (docs/formats/reservations.md)
//! ```
//!
//! On a disk (`disk`), data and labels are on the disk itself, and reservations in the state directory.
//!
//! A file without a row in the store was made and not answered, and is removed, unless there is data in it: then
//! the store is not the one that goes with it, and nothing is removed. What belongs to a row that is set aside stays
//! too: the segment serves again once its row can be read.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::{self, File},
    io::{self, ErrorKind, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use netraid_block::Pool;
use netraid_cluster::agent::{Fault, FaultCode, Label};
use netraid_control::units::{AgentId, MediatorId, SegmentId};
use netraid_engine::{
    backings::{Backing, FileOptions},
    target::{Identity, Lun, NotOpened, ReservationStore},
};
use serde::{Deserialize, Serialize};

use crate::{
    book::{BLOCK_LEN, fault},
    disk::Disk,
    records::{Key, SegmentRow},
};

/// Bytes that are read of a label's file: more than any label has.
const LABEL_LEN_MAX: u64 = 1 << 20;
/// Characters of a path that is cut: they fit into a disk's table however they are written.
const CUT_PATH_CHARS: usize = 200;

/// The segments of an agent.
pub(crate) struct Segments {
    agent: AgentId,
    place: Place,
    pool: Pool,
}

enum Place {
    /// The directory `segments`.
    Files(PathBuf),
    Memory {
        held: Mutex<HashMap<Key, Backing>>,
        /// Where reservations are kept.
        state: PathBuf,
    },
    Disk {
        disk: Disk,
        /// Where reservations are kept.
        state: PathBuf,
    },
}

/// Why a segment was not made, or its label not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub(crate) struct Undone {
    code: FaultCode,
    detail: String,
}

impl Undone {
    /// Something of a segment failed with what the system says.
    fn from_io(key: Key, what: &str, error: &io::Error) -> Self {
        let is_full = matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
        let (code, full) = match is_full {
            true => (FaultCode::Full, "its disk is full: "),
            false => (FaultCode::Failed, ""),
        };
        Self { code, detail: format!("{full}segment {}: {what}: {error}", key.1) }
    }

    /// It failed for something else than a full file system.
    pub(crate) const fn other(detail: String) -> Self {
        Self { code: FaultCode::Failed, detail }
    }

    /// What the mediator is told.
    pub(crate) fn fault(self) -> Fault {
        fault(self.code, self.detail)
    }
}

/// A segment's label as it stands beside its file.
#[derive(Serialize)]
struct LabelFile<'a> {
    version: u32,
    agent: AgentId,
    mediator: MediatorId,
    segment: SegmentId,
    len_bytes: u64,
    label: &'a Label,
}

/// Whose data a label says that it is beside.
#[derive(PartialEq, Eq, Deserialize)]
struct Whose {
    agent: AgentId,
    mediator: MediatorId,
    segment: SegmentId,
    len_bytes: u64,
}

impl std::fmt::Debug for Segments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Segments")
    }
}

impl Segments {
    /// Segments in files of `directory`.
    pub(crate) fn in_files(directory: &Path, agent: AgentId) -> io::Result<Self> {
        let root = directory.join("segments");
        make_directory(&root)?;
        Ok(Self { agent, place: Place::Files(root), pool: netraid_engine::pool() })
    }

    /// Segments in memory; what they are reserved for is kept in `state`.
    pub(crate) fn in_memory(state: &Path, agent: AgentId) -> io::Result<Self> {
        let state = state.join("reservations");
        make_directory(&state)?;
        Ok(Self {
            agent,
            place: Place::Memory { held: Mutex::default(), state },
            pool: netraid_engine::pool(),
        })
    }

    /// Segments on a disk; what they are reserved for is kept in `state`. The pool is the one that the disk
    /// was opened with.
    pub(crate) fn on_disk(
        disk: Disk,
        state: &Path,
        agent: AgentId,
        pool: Pool,
    ) -> io::Result<Self> {
        let state = state.join("reservations");
        make_directory(&state)?;
        Ok(Self { agent, place: Place::Disk { disk, state }, pool })
    }

    pub(crate) fn pool(&self) -> Pool {
        self.pool.clone()
    }

    /// Compares what is there with the rows: those that cannot be served. Files that were made and never answered are
    /// removed, but for those of rows that are set `aside`; what was never written and is not there is made again. Files
    /// are closed to others.
    pub(crate) fn tidy(
        &self,
        rows: &[(Key, SegmentRow)],
        aside: &HashSet<Key>,
    ) -> io::Result<HashSet<Key>> {
        self.remove_strays(
            &rows.iter().map(|(key, _)| *key).chain(aside.iter().copied()).collect(),
        )?;
        for key in aside {
            if let Err(why) = self.take_data(*key)? {
                tracing::error!("segment {} of mediator {}: {why}", key.1, key.0);
            }
        }
        let mut lost = HashSet::new();
        for (key, row) in rows.iter().filter(|(_, row)| !row.removing) {
            let why = match self.take_data(*key)? {
                Err(why) => why,
                Ok(Some(len)) if len == row.len_bytes => match self.mend_label(*key, row)? {
                    Ok(()) => continue,
                    Err(why) => why,
                },
                Ok(None) if row.generation.0 == 0 => {
                    match self.make(*key, row.len_bytes, &row.label) {
                        Ok(()) => continue,
                        Err(why) => why.to_string(),
                    }
                }
                Ok(None) => "its data is gone".to_owned(),
                Ok(Some(len)) => format!("has {len} bytes instead of {}", row.len_bytes),
            };
            let path = &row.label.path;
            tracing::error!(
                "segment {} of {path}: {why}; it is NOT SERVED: what was in it is lost here",
                key.1
            );
            lost.insert(*key);
        }
        Ok(lost)
    }

    /// Makes a segment of zeros; nothing when it is there, and was never written.
    pub(crate) fn make(&self, key: Key, len_bytes: u64, label: &Label) -> Result<(), Undone> {
        let told = |error: io::Error| Undone::from_io(key, "cannot be made", &error);
        match &self.place {
            Place::Files(_) => {
                let path = self.path(key);
                make_directory(parent(&path)).map_err(told)?;
                make_file(&path, len_bytes).map_err(told)?;
            }
            Place::Memory { held, .. } => {
                let backing = Backing::ram(len_bytes, BLOCK_LEN, false, self.pool.clone());
                let backing = backing.map_err(|error| Undone::other(error.to_string()))?;
                lock(held).insert(key, backing);
            }
            // With its label.
            Place::Disk { disk, .. } => {
                let text = self.row_text(key, len_bytes, label).map_err(told)?;
                let made = disk.make(key, len_bytes, &text);
                let told = |why| Undone::other(format!("segment {}: cannot be made: {why}", key.1));
                return made.map_err(told);
            }
        }
        self.write_label(key, len_bytes, label)
    }

    /// Replaces the label that is beside the data.
    pub(crate) fn write_label(
        &self,
        key: Key,
        len_bytes: u64,
        label: &Label,
    ) -> Result<(), Undone> {
        let told = |error: io::Error| Undone::from_io(key, "its label", &error);
        match &self.place {
            Place::Files(_) => {
                let text = self.label_text(key, len_bytes, label).map_err(told)?;
                netraid_private::replace(&self.beside(key, "label"), &text).map_err(told)
            }
            Place::Memory { .. } => Ok(()),
            Place::Disk { disk, .. } => {
                let text = self.row_text(key, len_bytes, label).map_err(told)?;
                let written = disk.write_label(key, &text);
                let told = |why| Undone::other(format!("segment {}: its label: {why}", key.1));
                written.map_err(told)
            }
        }
    }

    /// Removes all that there is of a segment, durably. Its sessions have ended.
    pub(crate) fn remove(&self, key: Key) -> Result<(), String> {
        let told = |error: io::Error| format!("segment {}: cannot be removed: {error}", key.1);
        gone(fs::remove_file(self.beside(key, "reservations"))).map_err(told)?;
        match &self.place {
            Place::Files(_) => {
                let path = self.path(key);
                gone(fs::remove_file(&path)).map_err(told)?;
                gone(fs::remove_file(self.beside(key, "label"))).map_err(told)?;
                gone(File::open(parent(&path)).and_then(|directory| directory.sync_all()))
                    .map_err(told)
            }
            Place::Memory { held, .. } => {
                lock(held).remove(&key);
                Ok(())
            }
            Place::Disk { disk, .. } => {
                let removed = disk.remove(key);
                removed.map_err(|why| format!("segment {}: cannot be removed: {why}", key.1))
            }
        }
    }

    /// Opens a segment to be served, and says whether something was ever written.
    pub(crate) fn open(&self, key: Key, len_bytes: u64) -> Result<(Lun, bool), NotOpened> {
        let used;
        let device = match &self.place {
            Place::Files(_) => {
                let path = self.path(key);
                // Nobody has put another file there since the start.
                netraid_private::tighten(&path).map_err(|error| NotOpened::from_error(&error))?;
                let options = FileOptions { block_len: BLOCK_LEN, ..FileOptions::default() };
                let backing = Backing::file(&path, &options, self.pool.clone());
                let backing = backing.map_err(|error| NotOpened::from_error(&error))?;
                used = backing.used_bytes();
                backing.device().clone()
            }
            Place::Memory { held, .. } => {
                let held = lock(held);
                let backing = held.get(&key).ok_or("it is not in memory")?;
                used = backing.used_bytes();
                backing.device().clone()
            }
            Place::Disk { disk, .. } => {
                used = disk.found(key).map(|found| found.written_bytes);
                disk.volume(key)?
            }
        };
        let found = device.info().capacity;
        if found != len_bytes {
            return Err(format!("has {found} bytes instead of {len_bytes}").into());
        }
        let reservations = ReservationStore::open(self.beside(key, "reservations"));
        let identity = Identity::for_lun(&format!("{} {} {}", self.agent, key.0, key.1), 0);
        let lun = Lun {
            discard_zeroes: true,
            physical_len: device.info().optimal_len.max(BLOCK_LEN),
            identity: Some(Identity { serial: key.1.to_string(), ..identity }),
            reservations: Some(reservations.map_err(|error| NotOpened::from_error(&error))?),
            ..Lun::from(device)
        };
        Ok((lun, used != Some(0)))
    }

    /// Bytes that a segment has, and takes; none when its data is gone.
    pub(crate) fn found(&self, key: Key) -> Option<(u64, u64)> {
        match &self.place {
            Place::Files(_) => {
                let found = fs::metadata(self.path(key)).ok()?;
                Some((found.len(), used(&found)))
            }
            Place::Memory { held, .. } => {
                let held = lock(held);
                let backing = held.get(&key)?;
                let len_bytes = backing.device().info().capacity;
                Some((len_bytes, backing.used_bytes().unwrap_or(len_bytes)))
            }
            Place::Disk { disk, .. } => {
                let found = disk.found(key)?;
                Some((found.len_bytes, found.written_bytes))
            }
        }
    }

    /// Bytes that the file system or disk has for segments, those that they take among them; none of memory.
    pub(crate) fn space_bytes(&self, rows: &[(Key, SegmentRow)]) -> io::Result<Option<u64>> {
        let root = match &self.place {
            Place::Files(root) => root,
            Place::Memory { .. } => return Ok(None),
            Place::Disk { disk, .. } => return Ok(Some(disk.space_bytes())),
        };
        let found = rustix::fs::statvfs(root)?;
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        let taken = rows.iter().filter_map(|(key, _)| Some(self.found(*key)?.1));
        Ok(Some(taken.fold(free, u64::saturating_add)))
    }

    fn path(&self, (mediator, segment): Key) -> PathBuf {
        match &self.place {
            Place::Files(root) => root.join(mediator.to_string()).join(segment.to_string()),
            Place::Memory { state, .. } | Place::Disk { state, .. } => {
                state.join(format!("{mediator}-{segment}"))
            }
        }
    }

    fn beside(&self, key: Key, what: &str) -> PathBuf {
        let mut name = self.path(key).into_os_string();
        name.push(".");
        name.push(what);
        name.into()
    }

    fn label_text(&self, key: Key, len_bytes: u64, label: &Label) -> io::Result<Vec<u8>> {
        let (agent, (mediator, segment)) = (self.agent, key);
        let file = LabelFile { version: 1, agent, mediator, segment, len_bytes, label };
        let mut text = serde_json::to_vec_pretty(&file)?;
        text.push(b'\n');
        Ok(text)
    }

    /// A label as it stands in the table of a disk. Where it is too long for that, its path is cut. One of a later
    /// program may be too long still: then the path is left out, which only describes, and what is not known where that
    /// is not enough; the store has all of it.
    fn row_text(&self, key: Key, len_bytes: u64, label: &Label) -> io::Result<Vec<u8>> {
        let (agent, (mediator, segment)) = (self.agent, key);
        let path = label.path.chars().take(CUT_PATH_CHARS).collect();
        let cut = Label { path, ..label.clone() };
        let pathless = Label { path: String::new(), ..label.clone() };
        let known = Label { more: BTreeMap::new(), ..cut.clone() };
        let rest = Label { path: String::new(), ..known.clone() };
        let mut len = 0;
        for label in [label, &cut, &pathless, &known, &rest] {
            let file = LabelFile { version: 1, agent, mediator, segment, len_bytes, label };
            let text = serde_json::to_vec(&file)?;
            if text.len() <= Disk::label_len_max() {
                return Ok(text);
            }
            len = text.len();
        }
        Err(io::Error::other(format!(
            "its label has {len} bytes without path and unknown fields; {} at most fit into the disk's table: set a \
             shorter label, or start the program that wrote it",
            Disk::label_len_max()
        )))
    }

    /// Closes a segment's files to others, and answers how long its data is, if there is any; or why it is
    /// not served.
    fn take_data(&self, key: Key) -> io::Result<Result<Option<u64>, String>> {
        if let Err(why) = take(&self.beside(key, "reservations"))? {
            return Ok(Err(why));
        }
        Ok(match &self.place {
            Place::Files(_) => match take(&self.path(key))? {
                Ok(Some(file)) => Ok(Some(file.metadata()?.len())),
                Ok(None) => Ok(None),
                Err(why) => Err(why),
            },
            Place::Memory { .. } => Ok(None),
            Place::Disk { disk, .. } => match disk.found(key) {
                Some(found) => found.lost.map_or(Ok(Some(found.len_bytes)), |why| Err(why.into())),
                None => Ok(None),
            },
        })
    }

    /// A crash may have come between the row and the file of a label, and what is no label says nothing.
    /// One that says that the data is another segment's stays, and is why this segment is not served.
    fn mend_label(&self, key: Key, row: &SegmentRow) -> io::Result<Result<(), String>> {
        if let Place::Disk { disk, .. } = &self.place {
            let text = self.row_text(key, row.len_bytes, &row.label);
            let written = text.map_err(|error| error.to_string()).and_then(|text| {
                let is_other = disk.found(key).is_some_and(|found| found.label != text);
                if is_other { disk.write_label(key, &text) } else { Ok(()) }
            });
            // The store has the label: what the disk says of it is for whoever has lost the store.
            if let Err(why) = written {
                tracing::error!(
                    "segment {} of mediator {}: the disk keeps the label that it had: {why}",
                    key.1,
                    key.0
                );
            }
            return Ok(Ok(()));
        }
        let text = self.label_text(key, row.len_bytes, &row.label)?;
        let path = self.beside(key, "label");
        let mut found = Vec::new();
        match take(&path)? {
            // What cannot be read is written again.
            Ok(Some(file)) => drop(file.take(LABEL_LEN_MAX).read_to_end(&mut found)),
            Ok(None) => {}
            Err(why) => return Ok(Err(why)),
        }
        if found == text {
            return Ok(Ok(()));
        }
        let (agent, (mediator, segment), len_bytes) = (self.agent, key, row.len_bytes);
        let own = Whose { agent, mediator, segment, len_bytes };
        match serde_json::from_slice::<Whose>(&found) {
            Ok(whose) if whose != own => Ok(Err(format!(
                "its label says segment {} of mediator {}, {} bytes, on agent {}",
                whose.segment, whose.mediator, whose.len_bytes, whose.agent
            ))),
            Ok(_) | Err(_) => netraid_private::replace(&path, &text).map(Ok),
        }
    }

    /// Removes a file beside a segment's data that was being written when the agent was killed, or
    /// whose segment is gone.
    fn remove_beside(
        &self,
        mediator: MediatorId,
        file: &fs::DirEntry,
        rows: &HashSet<Key>,
    ) -> io::Result<()> {
        let name = file.file_name();
        let parts = name.to_str().and_then(|name| name.split_once('.'));
        let Some((Ok(segment), beside)) = parts.map(|(id, rest)| (id.parse(), rest)) else {
            return Ok(());
        };
        let key = (mediator, segment);
        let is_unfinished = beside.contains(".new");
        if is_unfinished || !(rows.contains(&key) || self.path(key).exists()) {
            gone(fs::remove_file(file.path()))?;
        }
        Ok(())
    }

    fn remove_strays(&self, rows: &HashSet<Key>) -> io::Result<()> {
        let root = match &self.place {
            Place::Files(root) => root,
            Place::Memory { .. } => return Ok(()),
            Place::Disk { disk, .. } => return remove_strays_on(disk, rows),
        };
        for mediator in fs::read_dir(root)? {
            let mediator = mediator?;
            let Some(id) = name_as::<MediatorId>(&mediator) else { continue };
            for file in fs::read_dir(mediator.path())? {
                let file = file?;
                let Some(segment) = name_as::<SegmentId>(&file) else {
                    self.remove_beside(id, &file, rows)?;
                    continue;
                };
                if rows.contains(&(id, segment)) {
                    continue;
                }
                let (found, path) = (file.metadata()?, file.path());
                if used(&found) > 0 {
                    tracing::error!(
                        "{}: holds data, and the store does not know it: it is left as it is, and \
                         not served; was the store replaced?",
                        path.display()
                    );
                    if let Err(error) = netraid_private::tighten(&path) {
                        tracing::error!("{}: {error}", path.display());
                    }
                    continue;
                }
                self.remove((id, segment)).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }
}

fn remove_strays_on(disk: &Disk, rows: &HashSet<Key>) -> io::Result<()> {
    for found in disk.segments() {
        let (mediator, segment) = found.key;
        if rows.contains(&found.key) {
            continue;
        }
        if found.written_bytes > 0 || found.lost.is_some() {
            tracing::error!(
                "segment {segment} of mediator {mediator} is on the disk, and the store does not know it: it is \
                 left as it is, and not served; was the store replaced?"
            );
            continue;
        }
        disk.remove(found.key).map_err(io::Error::other)?;
    }
    Ok(())
}

fn name_as<T: std::str::FromStr>(entry: &fs::DirEntry) -> Option<T> {
    entry.file_name().to_str()?.parse().ok()
}

fn used(found: &fs::Metadata) -> u64 {
    // Linux counts in 512 bytes, whatever the file system's block is.
    found.blocks().saturating_mul(512)
}

fn make_file(path: &Path, len_bytes: u64) -> io::Result<()> {
    let file = netraid_private::open(path, netraid_private::Mode::Write)?;
    let found = file.metadata()?;
    if used(&found) > 0 {
        return Err(io::Error::other("there is a file with data already; nothing was changed"));
    }
    file.set_len(len_bytes)?;
    file.sync_all()?;
    File::open(parent(path))?.sync_all()
}

/// Opens a file to read it, if there is one, and closes it to others; or why it is not to be used, which no
/// other file is to suffer from.
fn take(path: &Path) -> io::Result<Result<Option<File>, String>> {
    match netraid_private::open(path, netraid_private::Mode::Read) {
        Ok(file) => Ok(Ok(Some(file))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Ok(None)),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Ok(Err(format!("{}: {error}", path.display())))
        }
        Err(error) => Err(error),
    }
}

/// Makes a directory for its owner alone, durably, if it is not there.
fn make_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    netraid_private::make_directory(path)?;
    netraid_private::sync_parent(path)
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// That there is none is as good as removed.
fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
