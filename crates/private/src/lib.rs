//! Files, directories, sockets and descriptors that are for their owner alone.
//!
//! Every file that holds a secret, and every lock and socket that another user must not take, is
//! made and opened here. Such a file has the permissions 0600 before its first byte is written,
//! whatever the umask and the directory are; a symbolic link in its place is not followed; and an
//! existing file counts only when it belongs to the user who runs this process, or to root, and has
//! no second name. New contents come under a random name that nobody can make beforehand, and take
//! the place of the old ones in one step.
//!
//! The functions block, and decide nothing about what the files hold.

mod descriptors;
mod socket;
#[cfg(test)]
mod tests;

use std::{
    fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions},
    io::{self, Seek as _, Write as _},
    os::unix::fs::{
        DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
    },
    path::{Path, PathBuf},
};

use rustix::{fs::OFlags, io::Errno};
use tempfile::NamedTempFile;

pub use self::{
    descriptors::{
        descriptor_limit, free_descriptors, is_out_of_descriptors, is_shortage,
        raise_descriptor_limit,
    },
    socket::listen,
};

/// What the owner of a private file may do with it, and nobody else.
const FILE_MODE: u32 = 0o600;
/// Random characters of a name that nobody can make beforehand.
const RANDOM_LEN: usize = 16;
/// Longest name of a file, in bytes.
const NAME_LEN_MAX: usize = 255;
/// The same of a directory.
const DIRECTORY_MODE: u32 = 0o700;
/// Most symbolic links that are followed to a key.
const LINKS_MAX: usize = 40;
/// All permissions of the group and of others.
const OTHERS: u32 = 0o077;
/// What the group or others may not do with a key: all but the group's reading.
const KEY_OTHERS: u32 = 0o037;
/// Permissions by which the group or others change what is in a directory.
const OTHERS_WRITE: u32 = 0o022;

/// Why a path is not opened as a private file. An [`io::Error`] of this crate has one of these
/// inside where the system itself refused nothing; whoever shows it puts the path before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotPrivate {
    /// The path is a symbolic link.
    #[error("is a symbolic link, which is not followed here; name the file itself")]
    Link,
    /// The path is a directory, a device, a pipe or a socket.
    #[error("is no regular file; choose another path, or remove what is there")]
    Kind,
    /// Others may read or write the file.
    #[error("can be read or written by others (mode {mode:o}); chmod 600")]
    Readable {
        /// The file's permissions.
        mode: u32,
    },
    /// The file belongs to somebody else.
    #[error(
        "belongs to user {owner}, and this process runs as user {own}; chown it, or remove it if \
         nobody here made it"
    )]
    Owner {
        /// The user id of the file's owner.
        owner: u32,
        /// The effective user id of this process.
        own: u32,
    },
    /// The file has more names than one: what is written to it shows under the others.
    #[error(
        "has {names} names (hard links), and would be changed under all of them; remove this one if \
         nobody here made it, or put a copy in its place"
    )]
    Names {
        /// How many names the file has.
        names: u64,
    },
}

impl From<NotPrivate> for io::Error {
    fn from(reason: NotPrivate) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, reason)
    }
}

/// How [`open`] opens a private file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// To read it; there must be one.
    Read,
    /// To read and write it; an empty one is made where there is none.
    Write,
    /// To read it and to write behind its end; an empty one is made where there is none.
    Append,
}

/// Opens a private file. An existing file that others may read or write is closed to them first.
///
/// # Errors
/// [`NotPrivate`] inside an [`io::Error`] when the path is a symbolic link, no regular file,
/// somebody else's, or a file with several names; else what the system says.
pub fn open(path: &Path, mode: Mode) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).mode(FILE_MODE);
    match mode {
        Mode::Read => {}
        Mode::Write => {
            options.write(true).create(true).truncate(false);
        }
        Mode::Append => {
            options.append(true).create(true);
        }
    }
    let (file, found) = open_as(path, &mut options)?;
    check_names(&found)?;
    // What the umask took away is given back, and what others had is taken away.
    if found.mode() & 0o777 != FILE_MODE {
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    }
    Ok(file)
}

/// Opens a file that a user named and that holds a secret, to read it, and answers its metadata as
/// well. Its permissions are left as they are: the caller judges them.
///
/// # Errors
/// [`NotPrivate`] inside an [`io::Error`] when the path is a symbolic link, no regular file, or
/// somebody else's; else what the system says.
pub fn open_named(path: &Path) -> io::Result<(File, Metadata)> {
    if is_inherited(path) {
        let file = File::open(path)?;
        let found = file.metadata()?;
        return Ok((file, found));
    }
    open_as(path, OpenOptions::new().read(true))
}

/// Opens a file that holds no secret, to read it, whoever's it is: over NFS root's own files may be nobody's.
///
/// # Errors
/// [`NotPrivate`] inside an [`io::Error`] when the path is a symbolic link or no regular file; else what
/// the system says.
pub fn open_plain(path: &Path) -> io::Result<File> {
    open_file(path, OpenOptions::new().read(true)).map(|(file, _)| file)
}

/// Opens a file that holds no secret under a name that other users know beforehand, to write it; it is made, as the
/// options say. Its permissions are left as they are.
///
/// # Errors
/// [`NotPrivate`] inside an [`io::Error`] when the path is a symbolic link, no regular file, somebody else's, or a
/// file with several names; else what the system says.
pub fn open_known(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let (file, found) = open_as(path, options)?;
    check_names(&found)?;
    Ok(file)
}

/// The same where links of this user and of root are followed.
///
/// # Errors
/// As [`open_known`], and when a link on the way is somebody else's.
pub fn open_known_through_links(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    open_known(&follow(path)?, options)
}

/// Opens a key that a user named, to read it. Tools for certificates keep keys behind symbolic links and
/// give them to a group: links of this user and of root are followed, and the file's group may read.
///
/// # Errors
/// [`NotPrivate`] inside an [`io::Error`] when the file or a link to it is somebody else's, the path leads
/// to no regular file, or others than its owner and its group may read it; else what the system says.
pub fn open_key(path: &Path) -> io::Result<File> {
    let (file, found) =
        if is_inherited(path) { open_named(path)? } else { open_named(&follow(path)?)? };
    let mode = found.mode() & 0o777;
    if mode & KEY_OTHERS != 0 {
        return Err(NotPrivate::Readable { mode }.into());
    }
    Ok(file)
}

/// Where a path leads by links of this user and of root; there may be nothing.
fn follow(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let found = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path),
            found => found?,
        };
        if !found.is_symlink() {
            return Ok(path);
        }
        check_owner(&found)?;
        path = parent(&path).join(fs::read_link(&path)?);
    }
    Err(Errno::LOOP.into())
}

/// Takes an existing file, if there is one, away from all but its owner; whether there is one.
///
/// # Errors
/// As [`open`].
pub fn tighten(path: &Path) -> io::Result<bool> {
    match open(path, Mode::Read) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Looks whether a file, if there is one, is private already. Does not open the file: whoever closes a file
/// lets go of all locks that this process has on it.
///
/// # Errors
/// [`NotPrivate`] inside an [`io::Error`] when it is not; else what the system says.
pub fn check(path: &Path) -> io::Result<()> {
    let Some(found) = find(path)? else { return Ok(()) };
    check_names(&found)?;
    let mode = found.mode() & 0o777;
    if mode & OTHERS != 0 {
        return Err(NotPrivate::Readable { mode }.into());
    }
    Ok(())
}

/// Whether a path names a pipe or file that this process was started with. The name is a link that nobody
/// planted.
fn is_inherited(path: &Path) -> bool {
    path == Path::new("/dev/stdin") || path.starts_with("/dev/fd")
}

fn open_as(path: &Path, options: &mut OpenOptions) -> io::Result<(File, Metadata)> {
    let (file, found) = open_file(path, options)?;
    check_owner(&found)?;
    Ok((file, found))
}

fn open_file(path: &Path, options: &mut OpenOptions) -> io::Result<(File, Metadata)> {
    // A pipe is not waited for: it is refused below.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = options.custom_flags(flags.bits().cast_signed()).open(path);
    let file = opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP) if is_link(path) => NotPrivate::Link.into(),
        // A socket, or a pipe that nobody reads.
        Some(Errno::NXIO | Errno::ISDIR) => NotPrivate::Kind.into(),
        Some(_) | None => error,
    })?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(NotPrivate::Kind.into());
    }
    Ok((file, found))
}

/// What is known of a file that is this user's or root's; none when there is none.
fn find(path: &Path) -> io::Result<Option<Metadata>> {
    let found = find_file(path)?;
    found.as_ref().map_or(Ok(()), check_owner)?;
    Ok(found)
}

/// What is known of a file; none when there is none.
fn find_file(path: &Path) -> io::Result<Option<Metadata>> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    if found.is_symlink() {
        return Err(NotPrivate::Link.into());
    }
    if !found.is_file() {
        return Err(NotPrivate::Kind.into());
    }
    Ok(Some(found))
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink())
}

fn own_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether what was found belongs to the user who runs this process, or to root.
///
/// # Errors
/// [`NotPrivate::Owner`] when it does not.
pub fn check_owner(found: &Metadata) -> Result<(), NotPrivate> {
    judge_owner(found.uid(), own_id())
}

fn check_names(found: &Metadata) -> Result<(), NotPrivate> {
    let names = found.nlink();
    if names > 1 { Err(NotPrivate::Names { names }) } else { Ok(()) }
}

const fn judge_owner(owner: u32, own: u32) -> Result<(), NotPrivate> {
    if owner == own || owner == 0 { Ok(()) } else { Err(NotPrivate::Owner { owner, own }) }
}

/// Gives a private file these contents, in the place of what had the name: all of them or none,
/// also when power is lost, and durably once this returned. Where the old file has another name, that one
/// keeps the old contents. A process that is killed meanwhile may leave a file whose name is this one,
/// `.new-` and random characters.
///
/// # Errors
/// [`NotPrivate`] inside an [`io::Error`] when the path is a symbolic link, or no regular file; else what
/// the system says; then the old contents are there.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    prepare(path, 0)?.finish(bytes)
}

/// New contents of a private file, on their way: a file under a random name beside it, which goes with this
/// value.
#[derive(Debug)]
pub struct Replacement {
    new: NamedTempFile,
    path: PathBuf,
}

/// Begins [`replace`], with room for `room` bytes: what keeps a file from being written is known before there is
/// anything to write.
///
/// # Errors
/// As [`replace`].
pub fn prepare(path: &Path, room: usize) -> io::Result<Replacement> {
    find_file(path)?;
    let mut prefix = path.file_name().unwrap_or_default().to_owned();
    prefix.push(".new-");
    if prefix.len() + RANDOM_LEN > NAME_LEN_MAX {
        prefix = ".new-".into();
    }
    let mut new = tempfile::Builder::new()
        .prefix(&prefix)
        .rand_bytes(RANDOM_LEN)
        .permissions(Permissions::from_mode(FILE_MODE))
        .tempfile_in(parent(path))?;
    new.as_file().set_permissions(Permissions::from_mode(FILE_MODE))?;

    if room > 0 {
        new.write_all(&vec![0; room])?;
        new.as_file().sync_all()?;
        new.rewind()?;
    }
    Ok(Replacement { new, path: path.to_owned() })
}

impl Replacement {
    /// Gives the file these contents, durably.
    ///
    /// # Errors
    /// What the system says; then the old contents are there, unless only the name's durability is uncertain.
    pub fn finish(mut self, bytes: &[u8]) -> io::Result<()> {
        self.new.write_all(bytes)?;
        self.new.as_file().set_len(bytes.len() as u64)?;
        self.new.as_file().sync_all()?;
        self.new.persist(&self.path)?;
        sync_parent(&self.path)
    }
}

/// Looks whether a path that a user named may be given new contents by [`replace`]: there is nothing, or a
/// file of this user or of root.
///
/// # Errors
/// [`NotPrivate`] inside an [`io::Error`] when the path is a symbolic link, no regular file, or
/// somebody else's; else what the system says.
pub fn check_replaceable(path: &Path) -> io::Result<()> {
    find(path).map(drop)
}

/// Makes what changed of the names beside `path` durable.
///
/// # Errors
/// What the system says.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(parent(path))?.sync_all()
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes a directory for its owner alone, with those above it, if it is not there. One that is there
/// stays as it is.
///
/// # Errors
/// [`NotPrivate`] inside an [`io::Error`] when another user's symbolic link has the name; else what the system
/// says.
pub fn make_directory(path: &Path) -> io::Result<()> {
    check_link(path)?;
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// Refuses a name that is another user's symbolic link: that user chooses what it leads to. What leads there is
/// not looked at.
///
/// # Errors
/// [`NotPrivate::Owner`] inside an [`io::Error`].
pub fn check_link(path: &Path) -> io::Result<()> {
    // A slash behind the name would lead through the link.
    match fs::symlink_metadata(path.components().as_path()) {
        Ok(found) if found.is_symlink() => Ok(check_owner(&found)?),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Makes a directory for its owner alone under a name that other users know beforehand: one that is
/// there must be this user's or root's, no symbolic link, and closed to writes of others.
///
/// # Errors
/// [`NotPrivate`] inside an [`io::Error`] when it is a symbolic link or somebody else's; else what the
/// system says.
pub fn make_known_directory(path: &Path) -> io::Result<()> {
    make_directory(path)?;
    let found = fs::symlink_metadata(path)?;
    if found.is_symlink() {
        return Err(NotPrivate::Link.into());
    }
    check_owner(&found)?;
    if found.mode() & OTHERS_WRITE != 0 {
        fs::set_permissions(path, Permissions::from_mode(DIRECTORY_MODE))?;
    }
    Ok(())
}
