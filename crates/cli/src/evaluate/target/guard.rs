//! What must not be overwritten, and what tells a device from another one of the same name.
//!
//! What cannot be read is refused: only bytes that were seen are no label.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _},
    path::Path,
};

use anyhow::{Context as _, Result, bail};
use netraid_evaluate::record::{TargetInfo, TargetKind};
use netraid_raid::regions::LABEL_OFFSETS;

use super::local;

/// How a netraid label begins.
const LABEL_MAGIC: &[u8] = b"NETRAID\n";
/// Bytes that are read of a label: a block of every device.
pub(super) const LABEL_READ: u32 = 4096;
/// Attributes by which sysfs tells a device from all others; the first that is there counts.
const SYSFS_IDENTITY: [&str; 8] = [
    "wwid",
    "device/wwid",
    "device/serial",
    "serial",
    "dm/uuid",
    "md/uuid",
    "loop/backing_file",
    "device/cid",
];

/// Fails when either copy of a label is there, or cannot be looked at.
pub(super) fn refuse_label(
    shown: &str,
    capacity: u64,
    force: bool,
    mut read: impl FnMut(u64) -> Result<Vec<u8>>,
) -> Result<()> {
    if force {
        return Ok(());
    }
    for offset in LABEL_OFFSETS {
        if offset + u64::from(LABEL_READ) > capacity {
            continue;
        }
        let bytes = read(offset).with_context(|| {
            format!(
                "{shown}: cannot see at {offset} whether it is a netraid member; give --force to destroy it anyway"
            )
        })?;
        if bytes.starts_with(LABEL_MAGIC) {
            bail!(
                "{shown}: bears the label of a netraid member at {offset}; evaluate its array's export, or give \
                 --force to destroy it"
            );
        }
    }
    Ok(())
}

/// What tells a local device or file from another one that comes under the same name.
pub(super) fn identity(path: &Path) -> Result<Option<String>> {
    let metadata = fs::metadata(path).with_context(|| path.display().to_string())?;
    if !metadata.file_type().is_block_device() {
        return Ok(Some(format!("file {} of device {}", metadata.ino(), metadata.dev())));
    }
    let device = metadata.rdev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let sysfs = format!("/sys/dev/block/{major}:{minor}");
    Ok(Some(of_sysfs(Path::new(&sysfs), &boot(), &format!("{major}:{minor}"))))
}

/// What sysfs says of a block device; where it has no name of its own, it is the same until the next boot
/// only.
fn of_sysfs(device: &Path, boot: &str, number: &str) -> String {
    let text = |path: &Path, name: &str| {
        let text = fs::read_to_string(path.join(name)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    // A partition's directory stands in that of its disk.
    let parent = fs::canonicalize(device).ok().and_then(|real| real.parent().map(Path::to_owned));
    let (disk, part) = match (text(device, "partition"), parent) {
        (Some(part), Some(parent)) => {
            let start = text(device, "start").unwrap_or_default();
            (parent, format!(" partition {part} at {start}"))
        }
        _ => (device.to_owned(), String::new()),
    };
    let named = SYSFS_IDENTITY.iter().find_map(|name| Some((*name, text(&disk, name)?)));
    match named {
        Some((name, value)) => format!("{name} {value}{part}"),
        None => {
            let sequence = text(&disk, "diskseq").unwrap_or_default();
            format!("boot {boot} device {number} sequence {sequence}{part}")
        }
    }
}

/// This boot of this machine; empty where nobody tells.
pub(super) fn boot() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// Fails when a target is not what an earlier sitting of the same run had there.
pub(in crate::evaluate) fn same(before: Option<&TargetInfo>, now: &TargetInfo) -> Result<()> {
    let shown = &now.address;
    let local = match now.kind {
        TargetKind::File | TargetKind::Block => true,
        TargetKind::Directory | TargetKind::Iscsi | TargetKind::Nbd => false,
    };
    let Some(before) = before else {
        if local {
            bail!(
                "{shown}: the log does not say which device it was; begin a new run without --resume"
            );
        }
        return Ok(());
    };
    let device = before.kind != TargetKind::Directory;
    if before.kind != now.kind || (device && before.capacity_bytes != now.capacity_bytes) {
        bail!(
            "{shown}: was {:?} of {} bytes when the run began, and is {:?} of {}; begin a new run without --resume",
            before.kind,
            before.capacity_bytes,
            now.kind,
            now.capacity_bytes
        );
    }
    if local && (now.identity.is_none() || before.identity != now.identity) {
        let of = |info: &TargetInfo| info.identity.clone().unwrap_or_else(|| "unknown".to_owned());
        bail!(
            "{shown}: was '{}' when the run began, and is '{}'; begin a new run without --resume",
            of(before),
            of(now)
        );
    }
    Ok(())
}

/// Fails when what stands for a tape may not be overwritten, or would wait for ever when it is opened.
pub(in crate::evaluate) fn tape(path: &Path, force: bool) -> Result<()> {
    let shown = || format!("tape {}", path.display());
    let kind = fs::metadata(path).with_context(shown)?.file_type();
    if kind.is_char_device() {
        return Ok(());
    }
    if !kind.is_file() {
        bail!("{}: is neither a tape drive nor a file; give one of these", shown());
    }
    if let Some(device) = local::loop_device_of(path)? {
        bail!("{}: {device} stands on it; detach that, or give another file", shown());
    }
    let file = File::open(path).with_context(shown)?;
    let len = file.metadata().with_context(shown)?.len();
    refuse_label(&shown(), len, force, |offset| {
        let mut bytes = vec![0; LABEL_READ as usize];
        file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_seen_at_both_places_and_what_cannot_be_read_is_refused() {
        let label = |at: u64| {
            move |offset: u64| {
                let mut bytes = vec![0; LABEL_READ as usize];
                if offset == at {
                    bytes[..LABEL_MAGIC.len()].copy_from_slice(LABEL_MAGIC);
                }
                Ok(bytes)
            }
        };
        for offset in LABEL_OFFSETS {
            assert!(refuse_label("d", 1 << 20, false, label(offset)).is_err());
            assert!(refuse_label("d", 1 << 20, true, label(offset)).is_ok());
        }
        assert!(refuse_label("d", 1 << 20, false, label(4096)).is_ok());
        let error = refuse_label("d", 1 << 20, false, |_| bail!("torn")).unwrap_err();
        assert!(error.to_string().contains("--force"), "{error}");
    }

    #[test]
    fn tapes_are_drives_or_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tape");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        assert!(tape(&path, true).is_err(), "a pipe would wait for ever");
        assert!(tape(dir.path(), true).is_err());
        assert!(tape(Path::new("/dev/null"), false).is_ok());
        let path = dir.path().join("file");
        fs::write(&path, [LABEL_MAGIC, &[0; 8192]].concat()).unwrap();
        assert!(tape(&path, false).is_err());
        assert!(tape(&path, true).is_ok());
    }

    #[test]
    fn another_file_of_the_same_name_is_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        fs::write(&path, "one").unwrap();
        let first = identity(&path).unwrap();
        assert_eq!(first, identity(&path).unwrap());
        fs::write(dir.path().join("other"), "two").unwrap();
        fs::rename(dir.path().join("other"), &path).unwrap();
        assert_ne!(first, identity(&path).unwrap());
    }

    #[test]
    fn devices_are_told_by_what_sysfs_says() {
        let sys = tempfile::tempdir().unwrap();
        let disk = sys.path().join("sda");
        fs::create_dir_all(disk.join("sda1")).unwrap();
        assert_eq!(of_sysfs(&disk, "b", "8:0"), "boot b device 8:0 sequence ");
        fs::write(disk.join("wwid"), "naa.5\n").unwrap();
        assert_eq!(of_sysfs(&disk, "b", "8:0"), "wwid naa.5");
        fs::write(disk.join("sda1/partition"), "1\n").unwrap();
        fs::write(disk.join("sda1/start"), "2048\n").unwrap();
        assert_eq!(of_sysfs(&disk.join("sda1"), "b", "8:1"), "wwid naa.5 partition 1 at 2048");
    }
}
