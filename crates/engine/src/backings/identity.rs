//! Where the identity of a volume is kept: in an extended attribute of its file; where the file
//! system has none, in a file beside it; that of a block device in a directory. What is chosen is
//! decided in `crates/scsi/src/identity.rs`.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, ErrorKind, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use netraid_scsi::identity::{
    Birth, Choice, Circumstances, KEPT_LEN_MAX, KeptError, KeptIdentity, Moment, Origin, choose,
};
use rustix::{
    fs::{AtFlags, StatxFlags, XattrFlags, fgetxattr, fsetxattr, statx},
    io::Errno,
};

use super::{
    Backing, Kind,
    derived::{Derived, moment_in, now, text_of},
    disk,
};

/// The attribute of a file that keeps its identity.
const ATTRIBUTE: &str = "user.netraid.identity";
/// The attribute of a directory that says since when identities are kept in it.
const SINCE: &str = "user.netraid.since";

/// Why a kept identity cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// It cannot be read.
    #[error("identity of '{}': cannot be read from {place}: {source}", path.display())]
    Read {
        /// The file or device.
        path: PathBuf,
        /// Where it is kept.
        place: String,
        /// What the system says.
        source: io::Error,
    },
    /// It is not what this program kept.
    #[error(
        "identity of '{}': {place} {source}; give the identity that the disk had: serial=NUMBER \
         behind the backing",
        path.display()
    )]
    Content {
        /// The file or device.
        path: PathBuf,
        /// Where it is kept.
        place: String,
        /// What is wrong.
        source: KeptError,
    },
}

/// What an owner says of a volume's identity.
#[derive(Debug, Clone, Copy)]
pub struct IdentityOffer<'a> {
    /// The serial number that it is to have.
    pub given: Option<&'a str>,
    /// The serial number that programs gave which kept none.
    pub derived: &'a str,
    /// Whether no other machine gives `derived` to other bytes.
    pub derived_is_own: bool,
    /// Where this machine notes which file has a derived identity; it is made where it is missing.
    /// Without it no file gets one.
    pub machine: Option<&'a Path>,
    /// A serial number that nobody has.
    pub random: &'a str,
    /// Where the identities of block devices are kept; it is made where it is missing.
    pub directory: Option<&'a Path>,
}

/// The identity that a volume has.
#[derive(Debug)]
pub struct FoundIdentity {
    /// Its serial number.
    pub serial: String,
    /// Where that comes from.
    pub origin: Origin,
    /// The serial number of the file that this one is a copy of.
    pub copied_from: Option<String>,
    /// The file that it is kept in, by its name, because the file system keeps no attributes.
    pub beside: Option<PathBuf>,
    chosen: Choice,
}

/// Where an identity is kept.
enum Keeper<'b> {
    /// In an attribute of the file, or beside it.
    File { file: &'b File, beside: PathBuf },
    /// In this file.
    Directory(PathBuf),
    /// Memory, and a device without a directory.
    Nowhere,
}

impl Backing {
    /// The identity of the bytes. Nothing is kept by asking, but that this machine gave a derived
    /// identity to this file. May block.
    ///
    /// # Errors
    /// When what is kept cannot be read or understood, and none was given.
    pub fn find_identity(&self, offer: &IdentityOffer<'_>) -> Result<FoundIdentity, IdentityError> {
        let keeper = self.keeper(offer.directory);
        let found = match keeper.load() {
            // What the owner gives takes its place.
            Err(_) if offer.given.is_some() => None,
            found => found.map_err(|(place, failure)| self.unusable(place, failure))?,
        };
        let birth = self.birth();
        let machine = offer.machine.filter(|_| birth.is_some()).map(Derived);
        let noted = machine.and_then(|machine| machine.since().ok());
        let since = [keeper.since(), noted].into_iter().flatten().min();
        let choice = |derived_is_own| {
            choose(&Circumstances {
                given: offer.given,
                kept: found.clone(),
                birth,
                changed: self.changed(),
                is_new: self.is_new(),
                since,
                derived: offer.derived,
                derived_is_own,
                random: offer.random,
            })
        };
        let mut chosen = choice(offer.derived_is_own);
        if let (Origin::Derived, Some(birth)) = (chosen.origin, birth) {
            // Where nothing can be noted, another file may have it.
            let give = |machine: Derived<'_>| machine.give(offer.derived, birth).unwrap_or(false);
            chosen = choice(machine.is_some_and(give));
        }
        let (serial, origin) = (chosen.identity.serial.clone(), chosen.origin);
        let copied_from = found.filter(|_| origin == Origin::Copied).map(|kept| kept.serial);
        Ok(FoundIdentity { serial, origin, copied_from, beside: keeper.beside(), chosen })
    }

    /// Keeps an identity that was found, in the `directory` of the offer where it is a block device's. To be
    /// called when nothing refuses the volume any more. May block.
    ///
    /// # Errors
    /// Why it is not kept; the next start may choose another one then.
    pub fn keep_identity(
        &self,
        found: &FoundIdentity,
        directory: Option<&Path>,
    ) -> Result<(), io::Error> {
        let keeper = self.keeper(directory);
        if found.chosen.is_to_be_kept {
            keeper.save(&found.chosen)?;
        }
        keeper.begin();
        Ok(())
    }

    fn keeper(&self, directory: Option<&Path>) -> Keeper<'_> {
        match &self.kind {
            Kind::Ram(_) => Keeper::Nowhere,
            Kind::File(workers) => {
                let path = workers.store.path();
                let whole = path.canonicalize().unwrap_or_else(|_| path.clone());
                let mut beside = OsString::from(whole);
                beside.push(".identity");
                Keeper::File { file: workers.store.file(), beside: beside.into() }
            }
            Kind::Disk(_) => match (directory, self.identity()) {
                (Some(directory), Some(name)) => {
                    let id = netraid_scsi::Identity::for_lun(&name, 0).naa;
                    Keeper::Directory(directory.join(format!("disk-{id:015x}.identity")))
                }
                (None, _) | (_, None) => Keeper::Nowhere,
            },
        }
    }

    /// The file that the bytes are in; of a loop device the one that it shows.
    fn birth(&self) -> Option<Birth> {
        match &self.kind {
            Kind::Ram(_) => None,
            Kind::File(workers) => birth_of(workers.store.file()),
            Kind::Disk(workers) => {
                let file = disk::shown_file(workers.store.path())?;
                birth_of(&File::open(file).ok()?)
            }
        }
    }

    /// When the file that the bytes are in was last changed; of a loop device not known.
    fn changed(&self) -> Option<Moment> {
        let Kind::File(workers) = &self.kind else { return None };
        let metadata = workers.store.file().metadata().ok()?;
        Some((metadata.ctime(), u32::try_from(metadata.ctime_nsec()).ok()?))
    }

    fn unusable(&self, place: String, failure: Failure) -> IdentityError {
        let path = match &self.kind {
            Kind::Ram(_) => PathBuf::from("ram"),
            Kind::File(workers) | Kind::Disk(workers) => workers.store.path().clone(),
        };
        match failure {
            Failure::Read(source) => IdentityError::Read { path, place, source },
            Failure::Content(source) => IdentityError::Content { path, place, source },
        }
    }
}

enum Failure {
    Read(io::Error),
    Content(KeptError),
}

impl Keeper<'_> {
    /// What is kept, if anything is; else where that cannot be read, and why.
    fn load(&self) -> Result<Option<KeptIdentity>, (String, Failure)> {
        let (place, bytes) = match self {
            Self::Nowhere => return Ok(None),
            Self::Directory(path) => (path.display().to_string(), read(path)),
            Self::File { file, beside } => match attribute(file, ATTRIBUTE) {
                Ok(Some(bytes)) => (format!("attribute {ATTRIBUTE}"), Ok(Some(bytes))),
                Ok(None) => (beside.display().to_string(), read(beside)),
                Err(error) => (format!("attribute {ATTRIBUTE}"), Err(error)),
            },
        };
        match bytes {
            Ok(None) => Ok(None),
            Ok(Some(bytes)) => match KeptIdentity::decode(&bytes) {
                Ok(kept) => Ok(Some(kept)),
                Err(source) => Err((place, Failure::Content(source))),
            },
            Err(source) => Err((place, Failure::Read(source))),
        }
    }

    /// Keeps what was chosen, durably.
    fn save(&self, chosen: &Choice) -> io::Result<()> {
        let bytes = chosen.identity.encode();
        match self {
            Self::Nowhere => {
                Err(io::Error::new(ErrorKind::Unsupported, "there is no place for it"))
            }
            Self::Directory(path) => {
                if let Some(directory) = path.parent() {
                    fs::create_dir_all(directory)?;
                }
                netraid_private::replace(path, &bytes)
            }
            Self::File { file, beside } => {
                match fsetxattr(file, ATTRIBUTE, &bytes, XattrFlags::empty()) {
                    Ok(()) => file.sync_all(),
                    // Also where the system refuses: who may not change the file may yet have a
                    // place in its directory.
                    Err(_) => netraid_private::replace(beside, &bytes),
                }
            }
        }
    }

    /// Since when identities are kept where the file is.
    fn since(&self) -> Option<Moment> {
        let Self::File { beside, .. } = self else { return None };
        let directory = File::open(beside.parent()?).ok()?;
        moment_in(&attribute(&directory, SINCE).ok()??)
    }

    /// The file beside, where the file system has no attributes for it.
    fn beside(&self) -> Option<PathBuf> {
        let Self::File { file, beside } = self else { return None };
        let mut none: [u8; 0] = [];
        let end = fgetxattr(file, ATTRIBUTE, &mut none[..]);
        matches!(end, Err(Errno::OPNOTSUPP | Errno::NOSYS)).then(|| beside.clone())
    }

    /// Notes that identities are kept where the file is, from now on. A file that is made later was
    /// not served by a program that kept none, although it may have the number of one that was.
    fn begin(&self) {
        let Self::File { beside, .. } = self else { return };
        let Some(directory) = beside.parent().and_then(|path| File::open(path).ok()) else {
            return;
        };
        let text = text_of(now());
        // Where that cannot be noted, the machine's own moment counts.
        let _ = fsetxattr(&directory, SINCE, text.as_bytes(), XattrFlags::CREATE);
    }
}

/// Which file this is.
fn birth_of(file: &File) -> Option<Birth> {
    let inode = file.metadata().ok()?.ino();
    let found = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok();
    let found = found.filter(|found| found.stx_mask & StatxFlags::BTIME.bits() != 0);
    let born = found.map(|found| (found.stx_btime.tv_sec, found.stx_btime.tv_nsec));
    Some(Birth { inode, born })
}

/// An attribute of a file; none when it has none, or the file system knows of none.
fn attribute(file: &File, name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; KEPT_LEN_MAX];
    match fgetxattr(file, name, &mut bytes[..]) {
        Ok(len) => {
            bytes.truncate(len);
            Ok(Some(bytes))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
        // Longer than any that this program sets: not understood, and said so.
        Err(Errno::RANGE) => Ok(Some(Vec::new())),
        Err(errno) => Err(errno.into()),
    }
}

/// What a small private file holds; none when there is none.
pub(super) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    match netraid_private::open(path, netraid_private::Mode::Read) {
        Ok(file) => {
            file.take(2 * KEPT_LEN_MAX as u64).read_to_end(&mut bytes)?;
            Ok(Some(bytes))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backings::FileOptions;

    const OFFER: IdentityOffer<'static> = IdentityOffer {
        given: None,
        derived: "derived",
        derived_is_own: true,
        random: "random",
        machine: None,
        directory: None,
    };

    fn open(path: &Path, size: Option<u64>) -> Backing {
        let options = FileOptions { size, ..FileOptions::default() };
        Backing::file(path, &options, crate::pool()).unwrap()
    }

    fn serial(path: &Path, size: Option<u64>, offer: IdentityOffer<'_>) -> String {
        let backing = open(path, size);
        let found = backing.find_identity(&offer).unwrap();
        backing.keep_identity(&found, offer.directory).unwrap();
        found.serial
    }

    #[test]
    fn a_files_identity_goes_with_it_and_not_with_its_name_or_its_copies() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let random = |random| IdentityOffer { random, ..OFFER };
        assert_eq!(serial(&path("a"), Some(1 << 20), random("one")), "one");
        assert_eq!(serial(&path("a"), None, random("two")), "one");
        fs::rename(path("a"), path("b")).unwrap();
        assert_eq!(serial(&path("b"), None, random("three")), "one");
        fs::copy(path("b"), path("c")).unwrap();
        assert_eq!(serial(&path("c"), None, random("four")), "four");
        // A file in another one's place, made by somebody else.
        fs::remove_file(path("b")).unwrap();
        File::create(path("b")).unwrap().set_len(1 << 20).unwrap();
        assert_eq!(serial(&path("b"), None, random("five")), "five");
    }

    #[test]
    fn an_identity_that_is_only_looked_for_is_not_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        assert_eq!(serial(&path, Some(1 << 20), OFFER), "random");
        let given = IdentityOffer { given: Some("of another disk"), ..OFFER };
        assert_eq!(open(&path, None).find_identity(&given).unwrap().serial, "of another disk");
        assert_eq!(serial(&path, None, OFFER), "random");
    }

    /// A directory in which a machine noted that identities are kept since long after now.
    fn machine() -> tempfile::TempDir {
        let machine = tempfile::tempdir().unwrap();
        fs::write(machine.path().join("identities-since"), b"99999999999.0").unwrap();
        machine
    }

    fn make(path: &Path) {
        File::create(path).unwrap().set_len(1 << 20).unwrap();
    }

    #[test]
    fn a_file_that_was_served_before_has_the_identity_that_it_had() {
        let (directory, machine) = (tempfile::tempdir().unwrap(), machine());
        let offer = IdentityOffer { machine: Some(machine.path()), ..OFFER };
        let path = directory.path().join("old");
        make(&path);
        assert_eq!(serial(&path, None, offer), "derived");
        let later = IdentityOffer { derived: "of another name and number", ..offer };
        assert_eq!(serial(&path, None, later), "derived");
        let given = IdentityOffer { given: Some("given"), ..offer };
        assert_eq!(serial(&path, None, given), "given");
        assert_eq!(serial(&path, None, offer), "given");
    }

    #[test]
    fn two_files_of_the_same_numbers_get_one_derived_identity_only_once() {
        let (directory, machine) = (tempfile::tempdir().unwrap(), machine());
        let offer = IdentityOffer { machine: Some(machine.path()), ..OFFER };
        let other = tempfile::tempdir().unwrap();
        let (one, two) = (directory.path().join("a"), other.path().join("b"));
        make(&one);
        assert_eq!(serial(&one, None, offer), "derived");
        fs::remove_file(&one).unwrap();
        make(&two);
        let backing = open(&two, None);
        let found = backing.find_identity(&offer).unwrap();
        assert_eq!((found.serial.as_str(), found.origin), ("random", Origin::Unsure));
    }

    #[test]
    fn a_file_that_is_younger_than_the_machines_first_identity_has_its_own() {
        let (directory, machine) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let offer = IdentityOffer { machine: Some(machine.path()), ..OFFER };
        assert_eq!(serial(&directory.path().join("first"), Some(1 << 20), offer), "random");
        let other = tempfile::tempdir().unwrap();
        let path = other.path().join("later");
        make(&path);
        let found = open(&path, None).find_identity(&offer).unwrap();
        assert_eq!((found.serial.as_str(), found.origin), ("random", Origin::Later));
    }

    #[test]
    fn where_a_machine_can_note_nothing_a_file_gets_no_derived_identity() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("old");
        make(&path);
        let nowhere = IdentityOffer { machine: Some(&path), ..OFFER };
        for offer in [OFFER, nowhere] {
            let found = open(&path, None).find_identity(&offer).unwrap();
            assert_eq!((found.serial.as_str(), found.origin), ("random", Origin::Unsure));
        }
    }

    #[test]
    fn an_identity_beside_a_file_is_found_and_a_damaged_one_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let birth = birth_of(&File::open(&path).unwrap());
        let kept = KeptIdentity { serial: "beside".into(), birth };
        let beside = directory.path().join("disk.identity");
        netraid_private::replace(&beside, &kept.encode()).unwrap();
        assert_eq!(serial(&path, None, OFFER), "beside");
        fs::write(&beside, b"nonsense").unwrap();
        let error = open(&path, None).find_identity(&OFFER).unwrap_err().to_string();
        assert!(error.contains("disk.identity") && error.contains("serial="), "{error}");
        let given = IdentityOffer { given: Some("given"), ..OFFER };
        assert_eq!(serial(&path, None, given), "given");
    }
}
