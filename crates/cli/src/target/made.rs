//! Files that a command made for LUNs, until it is known that these are served: what is refused leaves
//! none behind.

use std::path::PathBuf;

use netraid_engine::backings::Place;

use crate::lun::LunSpec;

/// Files that were not there before; dropping this removes them.
#[derive(Debug, Default)]
pub(super) struct MadeFiles(Vec<PathBuf>);

impl MadeFiles {
    /// Notes the file that opening this makes, if it makes one.
    pub(super) fn note(&mut self, spec: &LunSpec) {
        // A link that leads nowhere is there, and somebody else made it.
        if let Place::File { path, size: Some(_) } = &spec.place
            && std::fs::symlink_metadata(path)
                .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        {
            self.0.push(path.clone());
        }
    }

    /// They are served from now on.
    pub(super) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for MadeFiles {
    fn drop(&mut self) {
        for path in &self.0 {
            // It may not have come to that.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_not_there_is_removed_and_only_if_it_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let spec = |name: &str, size: &str| -> LunSpec {
            format!("file:{}{size}", path(name).display()).parse().unwrap()
        };
        std::fs::write(path("old"), "x").unwrap();
        for keep in [false, true] {
            let mut made = MadeFiles::default();
            for spec in [spec("old", ":1MiB"), spec("new", ":1MiB"), spec("given", "")] {
                made.note(&spec);
            }
            std::fs::write(path("new"), "x").unwrap();
            std::fs::write(path("given"), "x").unwrap();
            if keep {
                made.keep()
            } else {
                drop(made)
            }
            assert_eq!(path("new").exists(), keep);
            assert!(path("old").exists() && path("given").exists());
        }
    }
}
