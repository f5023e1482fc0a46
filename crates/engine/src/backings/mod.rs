//! What a volume's bytes are kept in: memory, a file, or a block device.
//!
//! A backing reads as zeros where nothing was written to a new one, and where ranges were
//! discarded. It keeps no state beside the bytes, and never answers for bytes that it could not
//! store. Who submits bounds the number of requests in flight. It is used through its [`Device`];
//! the [`Backing`] itself is for who manages it: how much it uses, and another size for it.
//!
//! A read that the page cache can answer is answered at once; everything else that may block is
//! done by threads of the backing's own, or by one that keeps many requests in flight ([`IoMethod`]).

mod derived;
mod disk;
mod error;
mod file;
mod identity;
mod ram;
mod ring;
mod spec;
mod store;
mod threads;
mod workers;

use std::{fs::File, io, os::unix::fs::MetadataExt as _, path::Path, sync::Arc};

use netraid_block::{Device, DeviceInfo, Op, Pool, Request};
pub use netraid_scsi::identity::Origin;

pub use self::{
    disk::DiskOptions,
    error::BackingError,
    file::FileOptions,
    identity::{FoundIdentity, IdentityError, IdentityOffer},
    spec::{BackingSpec, Place, SpecError},
    workers::IoMethod,
};
use self::{
    error::io_error,
    ram::Ram,
    store::Store,
    threads::THREADS_MAX,
    workers::{Stored, Workers},
};

/// Largest read or write in bytes; also the largest buffer that a pool keeps.
const TRANSFER_LEN_MAX: u32 = 2 << 20;
/// Memory and files are kept in pages of this many bytes.
const OPTIMAL_LEN: u32 = 4096;

/// An open backing.
pub struct Backing {
    kind: Kind,
    device: Device,
    is_new: bool,
}

enum Kind {
    Ram(Arc<Ram>),
    File(Arc<Workers>),
    Disk(Arc<Workers>),
}

/// Whether a resize may cut off what is behind the new end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shrink {
    /// Only a larger size is taken.
    Refuse,
    /// A smaller one is taken too, and what is behind it is lost.
    Allow,
}

impl Backing {
    /// A volume of `size` bytes in memory, in blocks of `block_len` bytes, which ends with the
    /// process. Requests end before `submit` returns.
    ///
    /// # Errors
    /// When `size` is not a positive multiple of `block_len` or above 4 TiB, or `block_len` not
    /// 512 or 4096.
    pub fn ram(
        size: u64,
        block_len: u32,
        read_only: bool,
        pool: Pool,
    ) -> Result<Self, BackingError> {
        let ram = Arc::new(Ram::new(size, block_len, read_only, pool)?);
        Ok(Self { device: Device::new(ram.clone()), kind: Kind::Ram(ram), is_new: true })
    }

    /// A volume in the file at `path`. The file is locked until the last request has ended and
    /// the backing and its devices are dropped.
    ///
    /// # Errors
    /// When the file is missing and no size is given, is no regular file, has another size, is in
    /// use, or cannot be opened in this manner.
    pub fn file(path: &Path, options: &FileOptions, pool: Pool) -> Result<Self, BackingError> {
        let file::Opened { store, info, is_new } = file::open(path, options, pool)?;
        let (workers, device) = start(store, info, options.threads, options.io)?;
        Ok(Self { kind: Kind::File(workers), device, is_new })
    }

    /// A volume on the block device at `path`, which nobody else may have open exclusively until
    /// the last request has ended and the backing and its devices are dropped.
    ///
    /// # Errors
    /// When it is no block device, is in use or write protected, has larger blocks than were
    /// asked for, or cannot be opened.
    pub fn disk(path: &Path, options: &DiskOptions, pool: Pool) -> Result<Self, BackingError> {
        let (store, info) = disk::open(path, options, pool)?;
        let (workers, device) = start(store, info, options.threads, options.io)?;
        Ok(Self { kind: Kind::Disk(workers), device, is_new: false })
    }

    /// The volume, as large as it is now.
    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// Whether nothing was in it when it was opened: memory, and a file that was made or was empty.
    #[must_use]
    pub const fn is_new(&self) -> bool {
        self.is_new
    }

    /// Bytes that the contents take now: memory, or space in the file system; `None` for a block
    /// device, which is taken whole.
    #[must_use]
    pub fn used_bytes(&self) -> Option<u64> {
        match &self.kind {
            Kind::Ram(ram) => Some(ram.used_bytes()),
            Kind::File(workers) => {
                // Linux counts in 512 bytes, whatever the file system's block is.
                workers.store.file().metadata().ok().map(|metadata| metadata.blocks() * 512)
            }
            Kind::Disk(_) => None,
        }
    }

    /// Bytes that the file system below has left for whoever may take them; `None` for memory, and
    /// for a block device, which has all of its space.
    #[must_use]
    pub fn free_bytes(&self) -> Option<u64> {
        let Kind::File(workers) = &self.kind else { return None };
        let found = rustix::fs::fstatvfs(workers.store.file()).ok()?;
        found.f_bavail.checked_mul(found.f_frsize)
    }

    /// Whether a flush has failed, so that nothing is called stable until it is opened again.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        match &self.kind {
            Kind::Ram(_) => false,
            Kind::File(workers) | Kind::Disk(workers) => workers.store.has_failed(),
        }
    }

    /// How the operating system is given requests; `None` for memory.
    #[must_use]
    pub fn io_method(&self) -> Option<IoMethod> {
        match &self.kind {
            Kind::Ram(_) => None,
            Kind::File(workers) | Kind::Disk(workers) => Some(workers.method()),
        }
    }

    /// What distinguishes the bytes from all others on this machine and stays the same when they
    /// are opened again; `None` where nothing does (memory).
    #[must_use]
    pub fn identity(&self) -> Option<String> {
        match &self.kind {
            Kind::Ram(_) => None,
            Kind::File(workers) => {
                let metadata = workers.store.file().metadata().ok()?;
                Some(format!("file {} {}", metadata.dev(), metadata.ino()))
            }
            Kind::Disk(workers) => {
                let path = || workers.store.path().display().to_string();
                Some(self.name().unwrap_or_else(path))
            }
        }
    }

    /// The name of a block device that goes with its bytes, whichever path leads to it; `None`
    /// where the kernel knows none, so that another device may be at the path the next time, and
    /// for files and memory.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        match &self.kind {
            Kind::Ram(_) | Kind::File(_) => None,
            Kind::Disk(workers) => disk::identity(workers.store.path()),
        }
    }

    /// Changes the size to `size` bytes and answers the volume of that size, over the same open
    /// file. Devices of the size before go on; of a volume that shrinks, they must have nothing
    /// in flight and not be used any more. A block device is taken with the size that it has.
    /// May block for as long as the file system does.
    ///
    /// # Errors
    /// When `size` is no positive multiple of the block length, is smaller and `shrink` does not
    /// allow it, the backing is read-only, or the operating system refuses. The size is then as
    /// before, or the error says what is left. When a new size cannot be made stable, later flushes
    /// fail, and what is behind the new end of a file that was to shrink may be lost.
    pub fn resize(&mut self, size: u64, shrink: Shrink) -> Result<Device, BackingError> {
        let DeviceInfo { capacity, block_len, read_only, .. } = *self.device.info();
        let name = match &self.kind {
            Kind::Ram(_) => "ram".to_string(),
            Kind::File(workers) | Kind::Disk(workers) => workers.store.path().display().to_string(),
        };
        describe(&name, size, block_len, true)?;
        if size < capacity && shrink == Shrink::Refuse {
            return Err(BackingError::Shrink { name, found: capacity, wanted: size });
        }
        if read_only && matches!(self.kind, Kind::File(_)) {
            return Err(BackingError::ReadOnly { name });
        }
        let info = DeviceInfo { capacity: size, ..self.device.info().clone() };
        self.device = match &mut self.kind {
            Kind::Ram(ram) => {
                *ram = Arc::new(ram.resized(size)?);
                Device::new(ram.clone())
            }
            Kind::File(workers) => {
                set_len(&workers.store, capacity, size, File::sync_all)?;
                Device::new(Arc::new(Stored { info, workers: workers.clone() }))
            }
            Kind::Disk(workers) => {
                let path = workers.store.path();
                let found = disk::size_of(workers.store.file());
                let found = found.map_err(io_error(path, "examine"))?;
                if found != size {
                    return Err(BackingError::DiskSize { path: path.clone(), found, wanted: size });
                }
                workers.store.set_len(size);
                Device::new(Arc::new(Stored { info, workers: workers.clone() }))
            }
        };
        Ok(self.device.clone())
    }
}

impl std::fmt::Debug for Backing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Backing").field(self.device.info()).finish()
    }
}

/// [`Backing::ram`], for who needs only the volume.
///
/// # Errors
/// As there.
pub fn ram(size: u64, block_len: u32, pool: Pool) -> Result<Device, BackingError> {
    Ok(Backing::ram(size, block_len, false, pool)?.device)
}

/// [`Backing::file`], for who needs only the volume.
///
/// # Errors
/// As there.
pub fn file(path: &Path, options: &FileOptions, pool: Pool) -> Result<Device, BackingError> {
    Ok(Backing::file(path, options, pool)?.device)
}

fn start(
    store: Store,
    info: DeviceInfo,
    threads: usize,
    io: Option<IoMethod>,
) -> Result<(Arc<Workers>, Device), BackingError> {
    let path = store.path().clone();
    let workers = Workers::start(store, threads, io).map_err(|source| match io {
        Some(IoMethod::Uring) => BackingError::Uring { path, source },
        Some(IoMethod::Threads) | None => io_error(&path, "start an I/O thread")(source),
    })?;
    let workers = Arc::new(workers);
    let device = Device::new(Arc::new(Stored { info, workers: workers.clone() }));
    Ok((workers, device))
}

/// Makes a file longer or shorter, and that stable by `sync`; if that fails, it gets its old size
/// back.
fn set_len(
    store: &Store,
    from: u64,
    to: u64,
    sync: impl Fn(&File) -> io::Result<()>,
) -> Result<(), BackingError> {
    // Nothing is written behind the new end any more, before it is cut there.
    store.set_len(from.min(to));
    if let Err(error) = store.file().set_len(to) {
        store.set_len(from);
        return Err(io_error(store.path(), "change the size")(error));
    }
    let Err(source) = sync(store.file()) else {
        store.set_len(to);
        return Ok(());
    };
    store.distrust();
    let path = store.path().clone();
    match store.file().set_len(from) {
        Ok(()) => {
            store.set_len(from);
            // As stable as it can be; that flushes fail from now on is said.
            let _ = sync(store.file());
            Err(BackingError::SizeNotStable { path, source, from })
        }
        Err(left) => Err(BackingError::SizeLeft { path, source, from, to, left }),
    }
}

/// Panics where a request is not what [`Device`] lets pass: it would change what is behind the volume, or other bytes
/// than were meant.
#[inline]
fn check_promised(info: &DeviceInfo, request: &Request) {
    let Request { op, offset, len, ref data, .. } = *request;
    let is_within = offset.checked_add(len).is_some_and(|end| end <= info.capacity);
    assert!(is_within, "{op:?} of {len} bytes at {offset} behind {}", info.capacity);
    let carried = if op == Op::Write { len } else { 0 };
    assert!(data.len() as u64 == carried, "{op:?} of {len} bytes with {}", data.len());
}

/// Checks a geometry and describes it.
fn describe(
    name: &str,
    size: u64,
    block_len: u32,
    volatile_cache: bool,
) -> Result<DeviceInfo, BackingError> {
    if ![512, 4096].contains(&block_len) {
        return Err(BackingError::BlockLen { name: name.into(), block_len });
    }
    if size == 0 || !size.is_multiple_of(u64::from(block_len)) {
        return Err(BackingError::Size { name: name.into(), size, block_len });
    }
    Ok(DeviceInfo {
        capacity: size,
        block_len,
        optimal_len: OPTIMAL_LEN,
        max_transfer_len: TRANSFER_LEN_MAX,
        read_only: false,
        volatile_cache,
        can_discard: true,
        can_map: true,
    })
}

#[cfg(test)]
mod tests;
