//! Directories, files and block devices of this machine.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Seek as _, SeekFrom},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use netraid_block::BufMut;
use netraid_evaluate::record::{TargetInfo, TargetKind};
use rustix::fs::OFlags;

use super::{Allowed, Open, Reach, guard, redundancy};

/// Where direct I/O is tried.
pub(super) const PROBE: &str = "probe";
/// Names of directories of runs begin so.
const PREFIX: &str = ".netraid-evaluate-";
/// File systems that keep their bytes in this machine's memory.
const IN_MEMORY: [&str; 2] = ["tmpfs", "ramfs"];

/// Makes the run's directory, where there is room for its files.
pub(super) fn directory(reach: &mut Reach, info: &mut TargetInfo, run: &str) -> Result<()> {
    let parent = fs::canonicalize(&reach.address).with_context(|| reach.address.clone())?;
    let directory = parent.join(format!("{PREFIX}{run}"));
    reach.directory = Some(directory.clone());
    // What an earlier sitting of this run left when it was killed. The name has the run's own number.
    reach.clean()?;
    let space = rustix::fs::statvfs(&parent).with_context(|| reach.address.clone())?;
    info.capacity_bytes = space.f_bavail.saturating_mul(space.f_frsize);
    let needed = reach.file_bytes.saturating_mul(u64::from(netraid_evaluate::plan::SLOTS));
    if info.capacity_bytes < needed {
        bail!(
            "{}: has {} bytes free, files of {} need {needed}; give smaller ones by --file-size and \
             --net-file-size",
            reach.address,
            info.capacity_bytes,
            reach.file_bytes
        );
    }
    fs::create_dir(&directory).with_context(|| directory.display().to_string())?;
    reach.direct = takes_direct(&directory.join(PROBE))?;
    describe(&parent, reach.direct, info);
    redundancy(&reach.address, info);
    Ok(())
}

/// Opens a file that stands for a device, or a block device that nobody uses.
pub(super) fn device(
    reach: &mut Reach,
    info: &mut TargetInfo,
    allowed: Allowed,
) -> Result<Option<File>> {
    let path = PathBuf::from(&reach.address);
    let shown = || path.display().to_string();
    let mut exclusive = None;
    if reach.kind == TargetKind::Block {
        let flags = OFlags::EXCL.bits().cast_signed();
        let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path);
        exclusive = match opened {
            Ok(file) => Some(file),
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                bail!("{}: is in use (mounted, or part of something); give another one", shown())
            }
            Err(error) => return Err(error).with_context(shown),
        };
    } else if let Some(device) = loop_device_of(&path)? {
        bail!("{}: {device} stands on it; detach that, or give another file", shown());
    }
    let mut file = File::open(&path).with_context(shown)?;
    reach.capacity = file.seek(SeekFrom::End(0)).with_context(shown)?;
    guard::refuse_label(&shown(), reach.capacity, allowed.force, |offset| {
        let mut bytes = vec![0; guard::LABEL_READ as usize];
        file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    })?;
    info.identity = guard::identity(&path)?;
    reach.direct = open_file(&path, Open::Old, true).is_ok_and(|file| reads_direct(&file));
    if reach.kind == TargetKind::File {
        let parent = fs::canonicalize(&path).with_context(shown)?;
        describe(&parent, reach.direct, info);
    }
    info.direct = reach.direct;
    redundancy(&reach.address, info);
    Ok(exclusive)
}

/// What is known of a local target's redundancy.
pub(super) fn redundancy(address: &str, info: &mut TargetInfo) {
    let Ok(metadata) = fs::metadata(address) else { return };
    let device = if info.kind == TargetKind::Block { metadata.rdev() } else { metadata.dev() };
    info.redundancy = redundancy::of_device(device);
}

/// Opens a file of a run, or a device, for reading and writing.
pub(super) fn open_file(path: &Path, how: Open, direct: bool) -> Result<File> {
    if how == Open::New {
        remove(path)?;
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(how == Open::New).mode(0o600);
    let flags = if direct { OFlags::DIRECT } else { OFlags::empty() };
    options.custom_flags(flags.bits().cast_signed());
    options.open(path).with_context(|| path.display().to_string())
}

/// Takes a file away, if it is there.
pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result.with_context(|| path.display().to_string()),
    }
}

/// Whether a file there can be written and read past the page cache.
fn takes_direct(path: &Path) -> Result<bool> {
    let written = open_file(path, Open::New, true).is_ok_and(|file| {
        file.write_all_at(&BufMut::zeroed(4096), 0).is_ok() && reads_direct(&file)
    });
    remove(path)?;
    Ok(written)
}

fn reads_direct(file: &File) -> bool {
    file.read_exact_at(&mut BufMut::zeroed(4096), 0).is_ok()
}

/// File system, and whether it is memory.
fn describe(path: &Path, direct: bool, info: &mut TargetInfo) {
    info.direct = direct;
    info.file_system = file_system(path);
    info.in_memory = info.file_system.as_deref().is_some_and(|name| IN_MEMORY.contains(&name));
}

/// The usual name of the file system that a path is on.
fn file_system(path: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mut found: Option<(usize, String)> = None;
    for line in mounts.lines() {
        // proc_pid_mountinfo(5): the fifth field is the mount point, the type follows a lone dash.
        let mut fields = line.split(' ');
        let Some(point) = fields.nth(4) else { continue };
        let name = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next());
        let longest = found.as_ref().is_none_or(|(len, _)| point.len() >= *len);
        if let Some(name) = name
            && path.starts_with(unescaped(point))
            && longest
        {
            found = Some((point.len(), name.to_owned()));
        }
    }
    found.map(|(_, name)| name)
}

/// Spaces, tabs, line ends and backslashes of mount points stand as octal numbers.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

/// The loop device that stands on a file.
pub(super) fn loop_device_of(path: &Path) -> Result<Option<String>> {
    let wanted = fs::canonicalize(path).with_context(|| path.display().to_string())?;
    let Ok(devices) = fs::read_dir("/sys/block") else { return Ok(None) };
    for device in devices.flatten() {
        let backing = fs::read_to_string(device.path().join("loop/backing_file"));
        if backing.is_ok_and(|backing| Path::new(backing.trim_end()) == wanted) {
            return Ok(Some(format!("/dev/{}", device.file_name().to_string_lossy())));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_as_they_are_written() {
        assert_eq!(unescaped("/mnt/a\\040b"), "/mnt/a b");
        assert!(file_system(Path::new("/proc/self")).is_some_and(|name| name == "proc"));
    }

    #[test]
    fn a_new_file_replaces_one_of_ours_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file-0");
        open_file(&path, Open::New, false).unwrap().write_all_at(b"x", 0).unwrap();
        assert_eq!(open_file(&path, Open::Old, false).unwrap().metadata().unwrap().len(), 1);
        assert_eq!(open_file(&path, Open::New, false).unwrap().metadata().unwrap().len(), 0);
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert!(open_file(&path, Open::Old, false).is_err());
    }
}
