//! The lock that keeps two engines of one machine from the same array, and who this machine is.

use std::{
    fs::{File, TryLockError},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use netraid_raid::label::{Holder, Label, Uuid};

use super::error::ArrayError;

/// A lock of this machine, of a name that no two things have: one process holds it at a time, and it
/// ends with the process, however it ends.
#[derive(Debug)]
pub struct HostLock {
    file: File,
}

impl HostLock {
    /// Takes the lock `name` of what is shown as `of`. The name is a part of a file's name.
    ///
    /// # Errors
    /// [`ArrayError::Locked`] when another holds it, [`ArrayError::Lock`] when its file cannot be used.
    pub fn take(name: &str, of: &str) -> Result<Self, ArrayError> {
        let dir = directory();
        let path = dir.join(format!("{name}.lock"));
        let failed = |path: &Path, source| {
            let path = path.display().to_string();
            ArrayError::Lock { path, source }
        };
        let fail = |source: io::Error| failed(&path, source);
        netraid_private::make_known_directory(&dir).map_err(|source| failed(&dir, source))?;
        // Who could open it could keep it.
        let file = netraid_private::open(&path, netraid_private::Mode::Write).map_err(fail)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { file }),
            Err(TryLockError::WouldBlock) => {
                Err(ArrayError::Locked { name: of.to_owned(), path: path.display().to_string() })
            }
            Err(TryLockError::Error(source)) => Err(fail(source)),
        }
    }
}

/// Held while an array is open for writing.
#[derive(Debug)]
pub(super) struct ArrayLock(HostLock);

impl ArrayLock {
    /// Takes the lock of the array that `label` belongs to.
    pub(super) fn take(label: &Label) -> Result<Self, ArrayError> {
        HostLock::take(&hex(&label.array_uuid), &label.name).map(Self)
    }

    /// Device and inode of the file: another mount namespace, or another user, has another.
    pub(super) fn id(&self) -> (u64, u64) {
        self.0.file.metadata().map_or((0, 0), |file| (file.dev(), file.ino()))
    }

    /// Whether this lock proves that the labels' holder is dead: it held this very lock, or its
    /// machine was booted anew since.
    pub(super) fn outlives(&self, holder: &Holder) -> bool {
        let this = this_holder(Some(self));
        let same_machine = holder.machine_id != Uuid::default()
            && holder.machine_id == this.machine_id
            && holder.name == truncated(&this.name);
        same_machine && (holder.boot_id != this.boot_id || holder.lock == this.lock)
    }
}

/// A name as labels keep it.
fn truncated(name: &str) -> &str {
    let mut end = name.len().min(31);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

/// Where locks are: for all users where this one may write, else for the user.
fn directory() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return "/run/netraid".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) => PathBuf::from(dir).join("netraid"),
        None => format!("/tmp/netraid-{}", rustix::process::geteuid().as_raw()).into(),
    }
}

/// Whose engine it is, by machine, array and lock: the same for all that held this very lock, which
/// one at a time does.
pub(super) fn fingerprint(array: &Uuid, machine: Uuid, (dev, inode): (u64, u64)) -> u64 {
    let place = dev.to_be_bytes().into_iter().chain(inode.to_be_bytes());
    hash(machine.into_iter().chain(*array).chain(place))
}

/// FNV-1a: it must differ between machines, arrays and places, not be hard to guess.
pub(super) fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// This engine, as labels name it.
pub(super) fn this_holder(lock: Option<&ArrayLock>) -> Holder {
    Holder {
        engine_id: rand::random(),
        machine_id: machine_id(),
        boot_id: read_id("/proc/sys/kernel/random/boot_id"),
        name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        lock: lock.map_or((0, 0), ArrayLock::id),
    }
}

/// The machine's identity; where it has none, that of its boot.
pub(super) fn machine_id() -> Uuid {
    match read_id("/etc/machine-id") {
        id if id == Uuid::default() => read_id("/proc/sys/kernel/random/boot_id"),
        id => id,
    }
}

/// Sixteen bytes in hexadecimal, dashes ignored; zeros when there is no such file.
fn read_id(path: &str) -> Uuid {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let digits: Vec<u8> = text.chars().filter_map(|c| u8::try_from(c.to_digit(16)?).ok()).collect();
    let mut id = Uuid::default();
    if digits.len() == id.len() * 2 {
        for (byte, pair) in id.iter_mut().zip(digits.chunks(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
    }
    id
}

/// An identity as text.
pub(super) fn hex(uuid: &Uuid) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}
