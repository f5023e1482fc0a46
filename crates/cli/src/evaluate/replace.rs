//! Reports come as a whole: whoever reads one has the old one or the new one, and what fails while one is
//! written leaves the old one.

use std::{
    fs::{self, Permissions},
    io::{ErrorKind, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

/// What a file may be that nobody has made yet, before the process's mask.
const MODE: u32 = 0o666;

/// Makes a file hold these bytes. A pipe or device has nothing to keep: they are written to it.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let shown = || format!("{}: cannot be written; give another name", path.display());
    let (real, permissions) = match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => return fs::write(path, bytes).with_context(shown),
        Ok(metadata) => (path.canonicalize().with_context(shown)?, Some(metadata.permissions())),
        Err(error) if error.kind() == ErrorKind::NotFound => (path.to_owned(), None),
        Err(error) => return Err(error).with_context(shown),
    };
    let parent = real.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = parent.map_or_else(|| PathBuf::from("."), Path::to_owned);
    let mut file = tempfile::Builder::new()
        .prefix(".netraid-evaluate-")
        .permissions(Permissions::from_mode(MODE))
        .tempfile_in(directory)
        .with_context(shown)?;
    file.write_all(bytes).with_context(shown)?;
    if let Some(permissions) = permissions {
        file.as_file().set_permissions(permissions).with_context(shown)?;
    }
    // A name must not come to stand for bytes that a loss of power takes away.
    file.as_file().sync_all().with_context(shown)?;
    file.persist(&real).with_context(shown)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, io::Read as _};

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<String> =
            entries.map(|entry| name(entry).into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn who_reads_the_old_report_goes_on_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report");
        replace(&path, b"old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut reader = File::open(&path).unwrap();
        replace(&link, b"new one").unwrap();
        let mut read = String::new();
        reader.read_to_string(&mut read).unwrap();
        assert_eq!(read, "old");
        assert_eq!(fs::read(&path).unwrap(), b"new one");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(names(dir.path()), ["link", "report"]);
    }

    #[test]
    fn what_cannot_be_replaced_is_named_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nowhere/report");
        let error = format!("{:#}", replace(&path, b"new").unwrap_err());
        assert!(error.contains("nowhere/report") && error.contains("another name"), "{error}");
        assert!(replace(dir.path(), b"new").is_err(), "a directory is no report");
        assert!(names(dir.path()).is_empty());
        replace(Path::new("/dev/null"), b"new").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
