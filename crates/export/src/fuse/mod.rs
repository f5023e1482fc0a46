//! A device as one file in a directory, through FUSE; `losetup` makes it a block device.
//!
//! Threads of FUSE's own take requests from the kernel and hand them to the device; each reply
//! leaves from where its request ended, so that many are under way. The kernel caches nothing of
//! the file. Mounting as root needs only /dev/fuse; others need `fusermount3` as well.

mod errno;
mod pieces;
mod replies;
mod volume;

use std::{
    future::Future,
    io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use fuser::{BackgroundSession, Config, Filesystem, MountOption, Session};
use netraid_block::{IoError, Pool};
use rustix::{
    io::Errno,
    mount::{UnmountFlags, unmount},
};
use tokio::{
    sync::{oneshot, watch},
    task::spawn_blocking,
    time::timeout,
};

use self::{replies::Replies, volume::Volume};
use netraid_engine::bytes::ByteDevice;

use crate::{
    flush,
    name::{NameError, check_file_name},
    users::Users,
};

/// Threads that take requests from the kernel.
const THREADS_MAX: usize = 4;
/// How long a file that is in use may stay so when the mount is to end, and how often to look.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// How long unmounting may take altogether before the last flush is begun without its end.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(7);
/// How long requests under way may take before the last flush is begun without them.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a volume cannot be mounted, or not unmounted cleanly.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// The volume's name is no file name.
    #[error("file {0}")]
    Name(#[from] NameError),
    /// The directory is missing, or is none.
    #[error("{}: is not a directory; create it first", dir.display())]
    Directory {
        /// The directory.
        dir: PathBuf,
    },
    /// The operating system refused.
    #[error(
        "{}: cannot mount: {source}; this needs /dev/fuse, and root or fusermount3",
        dir.display()
    )]
    Mount {
        /// The directory.
        dir: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The mount could not be ended.
    #[error("{}: cannot unmount: {source}; end what uses it, then run umount", dir.display())]
    Unmount {
        /// The directory.
        dir: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// What was written could not be made stable.
    #[error("flush at the end failed: {0}")]
    Flush(IoError),
}

/// A mounted volume. Dropping it unmounts without a flush; [`Self::run`] ends it properly.
pub struct FuseMount {
    dir: PathBuf,
    file: PathBuf,
    device: ByteDevice,
    replies: Arc<Replies>,
    session: BackgroundSession,
    ended: watch::Receiver<bool>,
}

impl FuseMount {
    /// Whether a file can be mounted in `dir`: mounts nothing there, and takes that away.
    ///
    /// # Errors
    /// As [`Self::mount`].
    pub fn check(dir: &Path) -> Result<(), FuseError> {
        let dir = directory(dir)?;
        let error = |source| FuseError::Mount { dir: dir.clone(), source };
        Session::new(Nothing, &dir, &config("")).map(drop).map_err(error)
    }

    /// Mounts a file `name` with the device's bytes in `dir`; it can be used from now on. Whoever has
    /// it open is counted in `users`; it cannot be opened any more once that lets exports end.
    ///
    /// # Errors
    /// When `name` is no file name, `dir` no directory, or mounting is not allowed here.
    pub fn mount(
        dir: &Path,
        device: impl Into<ByteDevice>,
        name: &str,
        pool: Pool,
        users: Users,
    ) -> Result<Self, FuseError> {
        check_file_name(name)?;
        let dir = directory(dir)?;
        let error = |source| FuseError::Mount { dir: dir.clone(), source };
        let device = device.into();
        let (sender, ended) = watch::channel(false);
        let replies = Arc::new(Replies::new(pool.clone()));
        let volume = Volume::new(&device, name, pool, replies.clone(), (users, sender));
        let session = Session::new(volume, &dir, &config(name)).map_err(error)?;
        replies.device().set(session.as_fd().try_clone_to_owned().map_err(error)?);
        let session = session.spawn().map_err(error)?;
        Ok(Self { file: dir.join(name), dir, device, replies, session, ended })
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Waits until `shutdown` is ready, or somebody has unmounted the directory; then unmounts
    /// it and flushes the device. A file that stays in use for five seconds is cut off, and so is
    /// a mount that another mount namespace holds: from the last flush on, requests fail there.
    ///
    /// # Errors
    /// When unmounting or the last flush fails.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<(), FuseError> {
        tokio::select! {
            () = shutdown => {}
            _ = self.ended.wait_for(|ended| *ended) => {}
        }
        let (dir, device, replies) = (self.dir.clone(), self.device.clone(), self.replies.clone());
        let unmounted = self.unmount_in_time().await;
        let unmounted = unmounted.map_err(|source| FuseError::Unmount { dir, source });
        let drained = spawn_blocking(move || replies.close(DRAIN_TIMEOUT)).await;
        if !drained.unwrap_or(false) {
            tracing::warn!("the last flush does not cover requests that have not ended");
        }
        // What was lost matters more than what is left mounted.
        flush(device.device()).await.map_err(FuseError::Flush).and(unmounted)
    }

    /// Unmounts on a thread of its own: that waits for the kernel, which may wait for us, or for
    /// whoever else holds the mount; nobody waits for the thread then.
    async fn unmount_in_time(self) -> io::Result<()> {
        let dir = self.dir.clone();
        let (sender, receiver) = oneshot::channel();
        let unmount = move || {
            // Nobody waits any more.
            let _ = sender.send(self.unmount());
        };
        thread::Builder::new().name("netraid-unmount".into()).spawn(unmount)?;
        match timeout(UNMOUNT_TIMEOUT, receiver).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(io::Error::other("the thread that unmounts has died")),
            Err(_) => {
                let dir = dir.display();
                tracing::warn!(%dir, "the mount is held elsewhere, as by a container; cut off");
                Ok(())
            }
        }
    }

    fn unmount(self) -> io::Result<()> {
        let mut waited = Duration::ZERO;
        while !*self.ended.borrow() {
            match unmount(&self.dir, UnmountFlags::empty()) {
                Err(Errno::BUSY) if waited < BUSY_TIMEOUT => {
                    thread::sleep(BUSY_PAUSE);
                    waited += BUSY_PAUSE;
                }
                Err(Errno::BUSY) => {
                    let dir = self.dir.display();
                    tracing::warn!(%dir, "the file is still in use and is cut off");
                    // The connection to the kernel ends with the process.
                    return Ok(unmount(&self.dir, UnmountFlags::DETACH)?);
                }
                // Others than root go through fusermount3, which fuser knows to use.
                Err(Errno::PERM) => return self.session.umount_and_join(),
                // Or somebody else was faster.
                Ok(()) | Err(Errno::INVAL) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        self.session.join()
    }
}

/// A file system without files.
struct Nothing;

impl Filesystem for Nothing {}

/// The whole path of a directory, without a dead mount there.
fn directory(dir: &Path) -> Result<PathBuf, FuseError> {
    detach_dead(dir);
    if !dir.is_dir() {
        return Err(FuseError::Directory { dir: dir.into() });
    }
    dir.canonicalize().map_err(|source| FuseError::Mount { dir: dir.into(), source })
}

fn config(name: &str) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        // Commas separate options.
        MountOption::FSName(format!("netraid:{}", name.replace(',', "_"))),
        MountOption::Subtype("netraid".into()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoExec,
    ];
    let cores = thread::available_parallelism().map_or(1, usize::from);
    config.n_threads = Some(cores.min(THREADS_MAX));
    // The kernel takes a reply only where it gave the request, and replies leave from elsewhere, too.
    config.clone_fd = false;
    config
}

/// Removes what a process that was killed has left mounted here.
fn detach_dead(dir: &Path) {
    let dead = std::fs::metadata(dir)
        .is_err_and(|error| error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()));
    if dead && let Err(error) = unmount(dir, UnmountFlags::DETACH) {
        tracing::warn!(dir = %dir.display(), %error, "cannot remove a dead mount");
    }
}
