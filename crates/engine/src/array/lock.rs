//! The lock that keeps two engines of one machine from the same array, and who this machine is.

use std::{
    fs::{File, TryLockError},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use netraid_raid::{
    fencing::hash,
    label::{Holder, Label, Uuid},
};

use super::error::{ArrayError, Who};

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
                let (name, path) = (of.to_owned(), path.display().to_string());
                Err(ArrayError::Locked { name, path, who: Who(holder_of(&file)) })
            }
            Err(TryLockError::Error(source)) => Err(fail(source)),
        }
    }
}

/// The process that has the lock of a file, as far as this one can see it.
fn holder_of(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let device = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    holder_in(&locks, device, metadata.ino())
}

/// The process that has the lock of a file, by what the kernel says of all locks (proc_locks(5)): none where it is of another
/// namespace, which shows as 0 or -1.
fn holder_in(locks: &str, (major, minor): (u32, u32), inode: u64) -> Option<u32> {
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    // Those who wait for the lock have an arrow before the kind.
    let holder = |line: &str| match line.split_ascii_whitespace().collect::<Vec<_>>().as_slice() {
        [_, "FLOCK", _, _, pid, of, ..] if *of == file => pid.parse().ok().filter(|pid| *pid > 0),
        _ => None,
    };
    locks.lines().find_map(holder)
}

/// Held while an array is open for writing.
#[derive(Debug)]
pub(super) struct ArrayLock {
    lock: HostLock,
    array: Uuid,
}

impl ArrayLock {
    /// Takes the lock of the array that `label` belongs to.
    pub(super) fn take(label: &Label) -> Result<Self, ArrayError> {
        let lock = HostLock::take(&hex(&label.array_uuid), &label.name)?;
        Ok(Self { lock, array: label.array_uuid })
    }

    /// Whether it is the lock of the array that `label` belongs to.
    pub(super) fn is_of(&self, label: &Label) -> bool {
        self.array == label.array_uuid
    }

    /// Device and inode of the file: another mount namespace, or another user, has another.
    pub(super) fn id(&self) -> (u64, u64) {
        self.lock.file.metadata().map_or((0, 0), |file| (file.dev(), file.ino()))
    }
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

/// The machine's identity; where it has none, that of its boot. It stays what it was when this process first
/// asked: sessions, keys and labels follow from it, and network devices come and go.
pub(super) fn machine_id() -> Uuid {
    static IDENTITY: OnceLock<Uuid> = OnceLock::new();
    *IDENTITY.get_or_init(|| match read_id("/etc/machine-id") {
        id if id == Uuid::default() => read_id("/proc/sys/kernel/random/boot_id"),
        id => of_hardware(id, &hardware()),
    })
}

/// `machine_id` on this hardware: a guest that was cloned has the machine-id of the other one.
fn of_hardware(machine_id: Uuid, hardware: &[String]) -> Uuid {
    let bytes = |half: u8| hardware.iter().flat_map(|text| text.bytes()).chain([half]);
    if hardware.is_empty() {
        return machine_id;
    }
    let hashes = [0, 1].map(|half| u128::from(hash(bytes(half))));
    (u128::from_be_bytes(machine_id) ^ (hashes[0] << 64 | hashes[1])).to_be_bytes()
}

/// What a clone of this machine's disks does not have: the identity that the firmware tells root, else the
/// addresses of the network's devices. Nothing where neither is known.
fn hardware() -> Vec<String> {
    let firmware = read_id("/sys/class/dmi/id/product_uuid");
    if firmware != Uuid::default() {
        return vec![hex(&firmware)];
    }
    let devices = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let text = |path: &Path, name| std::fs::read_to_string(path.join(name)).unwrap_or_default();
    // Those without hardware, and those that were not built with an address, get new ones as they are made.
    let of_hardware = |path: &PathBuf| {
        path.join("device").exists() && text(path, "addr_assign_type").trim() == "0"
    };
    let devices = devices.map(|device| device.path()).filter(of_hardware);
    let mut addresses: Vec<String> = devices.map(|path| text(&path, "address")).collect();
    addresses.sort_unstable();
    addresses
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_lock_is_found_among_all_locks() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 00:19:42 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 8 00:1a:42 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 91 00:19:42 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 92 00:19:42 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE -1 00:19:43 0 EOF\n\
                     5: FLOCK";
        assert_eq!(holder_in(locks, (0, 0x19), 42), Some(91));
        assert_eq!(holder_in(locks, (0, 0x1a), 42), Some(8));
        for (device, inode) in [((0, 0x19), 43), ((0, 0x19), 4), ((8, 1), 42)] {
            assert_eq!(holder_in(locks, device, inode), None);
        }
    }

    #[test]
    fn who_finds_a_lock_taken_is_told_which_process_has_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let open = || File::options().write(true).create(true).truncate(false).open(&path).unwrap();
        let held = open();
        held.try_lock().unwrap();
        assert_eq!(holder_of(&open()), Some(std::process::id()));
        drop(held);
        assert_eq!(holder_of(&open()), None);
    }

    #[test]
    fn a_clone_on_other_hardware_is_another_machine() {
        let id = [7; 16];
        let [first, second] = ["02:fc:00:00:00:01", "02:fc:00:00:00:02"].map(str::to_owned);
        let here = of_hardware(id, std::slice::from_ref(&first));
        assert_ne!(here, of_hardware(id, std::slice::from_ref(&second)));
        assert_ne!(here, of_hardware(id, &[first.clone(), second]));
        assert_eq!(here, of_hardware(id, &[first]));
        assert_eq!(of_hardware(id, &[]), id, "nothing is known of the hardware");
    }
}
