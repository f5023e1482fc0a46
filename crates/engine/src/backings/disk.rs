//! Opening a raw block device: a disk, a partition, a logical volume.
//!
//! It is opened for this process alone and around the page cache, so that nothing is between a
//! request and the device. What the device is comes from the kernel's own description of its
//! queue (`/sys/dev/block`); what that does not say is assumed to be the careful answer.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind as FileErrorKind, Seek as _, SeekFrom},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use netraid_block::{DeviceInfo, Pool};
use rustix::fs::{OFlags, ioctl_blksszget, major, minor};

use super::{
    BackingError, IoMethod, describe,
    error::io_error,
    file::optimal_len,
    store::{Manner, Store},
};

/// How a block device is used.
#[derive(Debug, Clone)]
pub struct DiskOptions {
    /// Logical block in bytes, 512 or 4096, not below the device's own; `None` takes that.
    pub block_len: Option<u32>,
    /// Refuse writes; the device is opened for reading only.
    pub read_only: bool,
    /// A write ends when it is stable: the volume has no volatile cache.
    pub sync: bool,
    /// Number of I/O threads, from 1 to 64; with `io_uring`, of writes and flushes at once that are to
    /// be stable at their end.
    pub threads: usize,
    /// How the operating system is given requests; `None` is `io_uring` where it can be had and the
    /// page cache is passed by, else threads.
    pub io: Option<IoMethod>,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self { block_len: None, read_only: false, sync: false, threads: 16, io: None }
    }
}

/// Opens a block device and describes the volume on it.
pub(super) fn open(
    path: &Path,
    options: &DiskOptions,
    pool: Pool,
) -> Result<(Store, DeviceInfo), BackingError> {
    let file = open_exclusive(path, options.read_only)?;
    let size = size_of(&file).map_err(io_error(path, "examine"))?;
    let own = ioctl_blksszget(&file).map_err(|errno| io_error(path, "examine")(errno.into()))?;
    let block_len = options.block_len.unwrap_or(own);
    if block_len < own {
        return Err(BackingError::SmallBlocks { path: path.to_path_buf(), block_len, own });
    }
    let queue = Queue::of(path);
    // A device whose queue is not described may have a cache that forgets.
    let volatile_cache =
        !options.sync && queue.text("write_cache").is_none_or(|cache| cache != "write through");
    let mut info = describe(&path.display().to_string(), size, block_len, volatile_cache)?;
    info.read_only = options.read_only;
    info.can_map = false;
    // Discarded ranges are zeroed by unmapping them; a device that cannot do both does neither.
    info.can_discard =
        queue.is_above_zero("discard_max_bytes") && queue.is_above_zero("write_zeroes_max_bytes");
    let optimal = queue.number("optimal_io_size").max(queue.number("physical_block_size"));
    info.optimal_len = optimal_len(optimal, info.optimal_len.max(block_len));
    let manner = Manner { block_len, direct: true, sync: options.sync };
    Ok((Store::new(file, path.to_path_buf(), size, manner, pool), info))
}

/// Bytes that the device has now.
pub(super) fn size_of(mut file: &File) -> std::io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

/// What names the device for as long as it exists, where the kernel knows it; a loop device is
/// the file that it shows.
pub(super) fn identity(path: &Path) -> Option<String> {
    let queue = Queue::of(path);
    let whole = queue.whole.as_ref()?;
    let partition = queue.own.as_ref().map(|own| own.join("partition"));
    let partition = partition.and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
    let file = || {
        let file = read(&whole.join("loop/backing_file"))?;
        let offset = read(&whole.join("loop/offset")).unwrap_or_default();
        Some(format!("loop {file} {offset}"))
    };
    ["wwid", "device/wwid", "dm/uuid", "device/serial", "serial"]
        .iter()
        .find_map(|name| read(&whole.join(name)))
        .or_else(file)
        .map(|id| format!("{id} {}", partition.trim()))
}

/// The file that a loop device shows, where this process sees it.
pub(super) fn shown_file(path: &Path) -> Option<PathBuf> {
    let whole = Queue::of(path).whole?;
    read(&whole.join("loop/backing_file")).map(PathBuf::from)
}

fn open_exclusive(path: &Path, read_only: bool) -> Result<File, BackingError> {
    let path_buf = || path.to_path_buf();
    if path.metadata().is_ok_and(|metadata| !metadata.file_type().is_block_device()) {
        return Err(BackingError::NotADisk { path: path_buf() });
    }
    // Some kernels open it for writing all the same, and refuse the writes.
    if !read_only && Queue::of(path).is_write_protected() {
        return Err(BackingError::WriteProtected { path: path_buf() });
    }
    let flags = OFlags::DIRECT | OFlags::EXCL;
    let opened = OpenOptions::new()
        .read(true)
        .write(!read_only)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    opened.map_err(|source| {
        let kind = source.kind();
        if kind == FileErrorKind::ResourceBusy {
            BackingError::Busy { path: path_buf(), holder: holder_of(path) }
        } else if kind == FileErrorKind::NotFound {
            BackingError::MissingDisk { path: path_buf() }
        } else {
            io_error(path, "open")(source)
        }
    })
}

/// Who has the device, as far as that can be seen.
fn holder_of(path: &Path) -> String {
    let Some((major, minor)) = numbers(path) else { return "in use".into() };
    let number = format!("{major}:{minor}");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mount = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(2);
        let found = words.next()? == number;
        words.nth(1).filter(|_| found).map(|place| format!("mounted at {place}"))
    });
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let is_swap = |line: &str| {
        line.split_whitespace().next().is_some_and(|name| numbers(Path::new(name)) == numbers(path))
    };
    let swap = swaps.lines().skip(1).any(is_swap).then(|| "used as swap space".into());
    mount.or(swap).unwrap_or_else(|| "held by a mount, a volume group, an array or a target".into())
}

/// The number of a block device.
fn numbers(path: &Path) -> Option<(u32, u32)> {
    let metadata = path.metadata().ok().filter(|found| found.file_type().is_block_device())?;
    Some((major(metadata.rdev()), minor(metadata.rdev())))
}

/// Where the kernel describes a device.
struct Queue {
    /// The device, or the partition.
    own: Option<PathBuf>,
    /// The whole device.
    whole: Option<PathBuf>,
}

impl Queue {
    fn of(path: &Path) -> Self {
        let own = numbers(path)
            .map(|(major, minor)| format!("/sys/dev/block/{major}:{minor}"))
            .and_then(|link| fs::canonicalize(link).ok());
        let whole = match &own {
            Some(own) if own.join("partition").exists() => own.parent().map(Path::to_path_buf),
            own => own.clone(),
        };
        Self { own, whole }
    }

    fn text(&self, name: &str) -> Option<String> {
        read(&self.whole.as_ref()?.join("queue").join(name))
    }

    fn number(&self, name: &str) -> u64 {
        self.text(name).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    fn is_above_zero(&self, name: &str) -> bool {
        self.number(name) > 0
    }

    fn is_write_protected(&self) -> bool {
        self.own.as_ref().and_then(|own| read(&own.join("ro"))).is_some_and(|flag| flag == "1")
    }
}

/// A line of the kernel's, when there is one that says something.
fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_string())
}
