//! A disk of which segments have parts: a table of segments and extents on the disk itself, and marks that say
//! which parts of these were ever written (docs/formats/agent-disk.md).
//!
//! - `block`: what the notes on the disk are made of. `geometry`: where things are. `table`: whose the
//!   extents are. `granules`: the marks. These do no input or output.
//! - `volume`: a segment as a device. `scribe`: who writes the notes.
//! - `format`: whether a disk may be taken, reading it, and formatting it.
//!
//! Invariants: no extent has two owners. Nobody reads what somebody else has written: a granule that its owner never
//! wrote reads as zeros. What is answered as durable is found again, or its segment is lost and not
//! served; it never reads as zeros instead.
//!
//! It does not know what is booked, and keeps no reservations.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, atomic::AtomicBool},
    time::{Duration, Instant},
};

use netraid_block::{Device, Pool};
use netraid_engine::backings::{Backing, BackingError, DiskOptions, FileOptions};

mod block;
mod format;
mod geometry;
mod granules;
mod scribe;
mod table;
mod volume;
mod wait;

pub use self::format::DiskError;
pub(crate) use self::{block::DiskId, format::Wanted, geometry::GRANULE_LEN};
use self::{
    geometry::Geometry,
    granules::Granules,
    scribe::Pen,
    table::{LABEL_LEN_MAX, Table},
    volume::{Handle, Volume},
};
use crate::{book::BLOCK_LEN, records::Key};

/// Requests that a disk is given at a time.
const THREADS: usize = 16;
/// How long a segment that is removed may still be in somebody's hands.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
const CLOSE_LOOK: Duration = Duration::from_millis(5);

/// What volumes, the scribe and the disk share.
struct Shared {
    device: Device,
    geometry: Geometry,
    granules: Granules,
    /// Never held while something is read or written.
    table: Mutex<Table>,
    /// A write of the table has failed.
    failed: AtomicBool,
}

/// A disk that is open.
pub(crate) struct Disk {
    shared: Arc<Shared>,
    pen: Arc<Pen>,
    open: Mutex<HashMap<Key, Weak<Volume>>>,
}

/// A segment that is on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OnDisk {
    pub(crate) key: Key,
    pub(crate) len_bytes: u64,
    pub(crate) label: Vec<u8>,
    /// Bytes that were written, in whole granules.
    pub(crate) written_bytes: u64,
    /// Why it cannot be served.
    pub(crate) lost: Option<&'static str>,
}

/// Opens a block device, or a file that is used as one, for this process alone.
fn open_backing(path: &Path, pool: Pool) -> Result<Backing, BackingError> {
    let is_file = path.metadata().is_ok_and(|found| found.is_file());
    if is_file {
        let options =
            FileOptions { block_len: BLOCK_LEN, threads: THREADS, ..FileOptions::default() };
        return Backing::file(path, &options, pool);
    }
    let options =
        DiskOptions { block_len: Some(BLOCK_LEN), threads: THREADS, ..DiskOptions::default() };
    Backing::disk(path, &options, pool)
}

impl Disk {
    /// Opens a block device, or a file that is used as one, for this process alone. Blocks.
    pub(crate) fn open_path(path: &Path, wanted: Wanted, pool: Pool) -> Result<Self, DiskError> {
        let backing = open_backing(path, pool)?;
        Self::open(backing.device().clone(), &path.display().to_string(), wanted)
    }

    /// Opens what is on a device, or formats it where that is allowed. `name` is for people.
    pub(crate) fn open(device: Device, name: &str, wanted: Wanted) -> Result<Self, DiskError> {
        let shared = Arc::new(format::open(device, name, wanted)?);
        let thread = |source| DiskError::Thread { path: name.to_owned(), source };
        let pen = Pen::start(Arc::clone(&shared)).map_err(thread)?;
        Ok(Self { shared, pen, open: Mutex::default() })
    }

    /// Who it is, as long as it is not formatted again.
    pub(crate) fn id(&self) -> DiskId {
        self.shared.geometry.disk
    }

    /// Bytes that it has for segments.
    pub(crate) fn space_bytes(&self) -> u64 {
        u64::from(self.shared.geometry.extents) * self.shared.geometry.extent_len
    }

    /// All segments on it.
    pub(crate) fn segments(&self) -> Vec<OnDisk> {
        let table = self.shared.table();
        table.rows().map(|row| self.shared.found(row)).collect()
    }

    pub(crate) fn found(&self, key: Key) -> Option<OnDisk> {
        self.shared.table().row(key).map(|row| self.shared.found(row))
    }

    /// Makes a segment of zeros; nothing but its label when it is there, and was never written.
    pub(crate) fn make(&self, key: Key, len_bytes: u64, label: &[u8]) -> Result<(), String> {
        let label = label.to_vec();
        match self.found(key) {
            Some(OnDisk { lost: Some(why), .. }) => Err(format!("{why}; remove it")),
            Some(found) if found.written_bytes > 0 || found.len_bytes != len_bytes => {
                Err("there is one with data or of another length already; nothing was changed"
                    .to_owned())
            }
            Some(_) => self.pen.ask(move |scribe| scribe.write_label(key, &label)),
            None => self.pen.ask(move |scribe| scribe.make(key, len_bytes, &label)),
        }
    }

    pub(crate) fn write_label(&self, key: Key, label: &[u8]) -> Result<(), String> {
        let label = label.to_vec();
        self.pen.ask(move |scribe| scribe.write_label(key, &label))
    }

    /// Bytes of a label, at most.
    pub(crate) const fn label_len_max() -> usize {
        LABEL_LEN_MAX
    }

    /// Removes a segment, durably. Whoever used it has ended, or will at once.
    pub(crate) fn remove(&self, key: Key) -> Result<(), String> {
        let deadline = Instant::now() + CLOSE_LIMIT;
        while self.is_open(key) {
            if Instant::now() > deadline {
                return Err("it is still in use; ask again".to_owned());
            }
            std::thread::sleep(CLOSE_LOOK);
        }
        self.pen.ask(move |scribe| scribe.remove(key))
    }

    /// A segment as a device; asked again, the same one.
    pub(crate) fn volume(&self, key: Key) -> Result<Device, String> {
        let mut open = self.volumes();
        if let Some(volume) = open.get(&key).and_then(Weak::upgrade) {
            return Ok(Device::new(Arc::new(Handle(volume))));
        }
        open.retain(|_, volume| volume.strong_count() > 0);
        let volume = {
            let table = self.shared.table();
            let row = table.row(key).ok_or("it is not on the disk")?;
            if let Some(why) = row.lost {
                return Err(why.to_owned());
            }
            let (shared, pen) = (Arc::clone(&self.shared), Arc::clone(&self.pen));
            Volume::new(shared, pen, &row.extents, row.len_bytes)
        };
        open.insert(key, Arc::downgrade(&volume));
        Ok(Device::new(Arc::new(Handle(volume))))
    }

    /// The longest range that no segment has: where it begins on the disk, and how many bytes it has.
    pub(crate) fn free_range(&self) -> (u64, u64) {
        let geometry = &self.shared.geometry;
        let (first, count) = self.shared.table().longest_free();
        (geometry.extent_offset(first), u64::from(count) * geometry.extent_len)
    }

    fn is_open(&self, key: Key) -> bool {
        self.volumes().get(&key).is_some_and(|volume| volume.strong_count() > 0)
    }

    fn volumes(&self) -> MutexGuard<'_, HashMap<Key, Weak<Volume>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn found(&self, row: &table::Row) -> OnDisk {
        let known = row.extents.iter().filter(|extent| **extent != u32::MAX);
        let written: u64 = known.map(|extent| self.granules.count_written(*extent)).sum();
        OnDisk {
            key: row.key,
            len_bytes: row.len_bytes,
            label: row.label.clone(),
            written_bytes: written * GRANULE_LEN,
            lost: row.lost,
        }
    }
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Disk").field(&self.shared.geometry).finish()
    }
}

#[cfg(test)]
mod tests;
