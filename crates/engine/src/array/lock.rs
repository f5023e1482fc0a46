//! The lock that keeps two engines of one machine from the same array, and who this machine is.

use std::{
    fs::{File, TryLockError},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::OnceLock,
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
        is_outlived(holder, &this_holder(Some(self)))
    }
}

/// Whether who has `lock` proves that the engine of `holder` is dead.
pub(super) fn is_dead(holder: &Holder, lock: (u64, u64)) -> bool {
    is_outlived(holder, &Holder { lock, ..this_holder(None) })
}

/// The identity of this machine by which `holder` made its sessions at the members, where that is not the
/// machine's identity now, and who has `lock` proves that the engine of `holder` is dead.
pub(super) fn former_machine(holder: &Holder, lock: (u64, u64)) -> Option<Uuid> {
    let this = Holder { lock, ..this_holder(None) };
    let is_other = holder.machine_id != this.machine_id;
    (is_other && is_outlived(holder, &this)).then_some(holder.machine_id)
}

/// Whether `this` engine, which has its lock, proves by its own holder record that the engine of `holder` is dead.
fn is_outlived(holder: &Holder, this: &Holder) -> bool {
    let same_name = holder.name == truncated(&this.name);
    let is_same = |held: &Uuid, ours: &Uuid| *held != Uuid::default() && held == ours;
    let same_machine = is_same(&holder.machine_id, &this.machine_id);
    match holder.boot_id == this.boot_id {
        // One kernel is one machine, also where a network device has come meanwhile.
        true => {
            let same_kernel = same_machine || is_same(&holder.boot_id, &this.boot_id);
            same_name && same_kernel && holder.lock == this.lock
        }
        false => same_name && same_machine,
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

    fn holder(machine: u8, boot: u8, lock: u64) -> Holder {
        Holder {
            engine_id: [0; 16],
            machine_id: [machine; 16],
            boot_id: [boot; 16],
            name: "host".into(),
            lock: (1, lock),
        }
    }

    #[test]
    fn a_holder_is_dead_whose_lock_is_ours_or_whose_machine_was_booted_anew() {
        let this = holder(1, 1, 7);
        assert!(is_outlived(&holder(1, 1, 7), &this));
        assert!(!is_outlived(&holder(1, 1, 8), &this), "another mount namespace's");
        assert!(is_outlived(&holder(1, 2, 8), &this));
        assert!(!is_outlived(&holder(2, 2, 7), &this));
        assert!(!is_outlived(&holder(0, 0, 7), &holder(0, 0, 7)), "nothing is known of it");
        assert!(!is_outlived(&holder(1, 0, 8), &holder(1, 0, 7)), "nor of its boot");
        let renamed = Holder { name: "other".into(), ..holder(1, 2, 7) };
        assert!(!is_outlived(&renamed, &this));
        let changed = holder(3, 1, 7);
        assert!(is_outlived(&changed, &this), "the same kernel, with another network device");
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
