//! An SQLite store whose changes are committed in groups: what many requests change at one time goes
//! into one transaction, with one wait for the disk.
//!
//! Each change stands or falls alone (a savepoint each), and its answer comes when the transaction that it is part of
//! is durable. Changes are made in the order in which they were asked for. Reads have a thread of their own, see what is
//! durable, and wait for no disk.
//!
//! When it is not certain whether a transaction was stored, the store is broken: everything is refused from then on, and
//! the process is to begin anew from what the store holds.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use tokio::sync::oneshot;

/// Changes of one transaction, at most.
const GROUP_MAX: usize = 512;
/// Changes that wait, at most; who asks for more waits for a place.
const QUEUE_MAX: usize = 4096;

/// Why something was not stored or read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Certainly not.
    #[error("not stored: {0}")]
    Failed(String),
    /// Certainly not: there is no space left on the disk that has the store.
    #[error("not stored, as the disk that has the store is full: {0}")]
    Full(String),
    /// Certainly not: a row that it rests on cannot be read.
    #[error("nothing was stored or read: {0}")]
    Unreadable(String),
    /// Nobody knows.
    #[error(
        "the store is broken, and it is not certain what it holds: {0}; start the daemon again"
    )]
    Broken(String),
}

/// Why a store was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("{}: is in use by another process; one daemon has a directory at a time", .0.display())]
    InUse(PathBuf),
    /// The directory cannot be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The database cannot be used.
    #[error("{}: {source}", path.display())]
    Sql {
        /// Which.
        path: PathBuf,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// It was written by a later program.
    #[error("{}: version {found}, this program knows {known}; use a newer one", path.display())]
    Newer {
        /// Which.
        path: PathBuf,
        /// Its version.
        found: usize,
        /// The last that is known.
        known: usize,
    },
}

type Write = Box<dyn FnOnce(&Connection) -> Ending + Send>;
type Ending = Box<dyn FnOnce(Result<(), StoreError>) + Send>;
type Read = Box<dyn FnOnce(&Connection) + Send>;

/// A store; clones are the same one. It ends, all stored, when the last is dropped.
#[derive(Clone)]
pub struct Store {
    writes: mpsc::SyncSender<Write>,
    reads: mpsc::SyncSender<Read>,
    is_broken: Arc<AtomicBool>,
    is_full: Arc<AtomicBool>,
    /// Keeps others out.
    _lock: Arc<File>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Store")
    }
}

/// Makes a directory for its owner alone, if it is not there.
///
/// # Errors
/// Of the file system.
pub fn make_directory(path: &Path) -> Result<(), OpenError> {
    netraid_private::make_directory(path)
        .map_err(|source| OpenError::Io { path: path.to_owned(), source })
}

impl Store {
    /// Opens or makes `NAME.sqlite` in a directory that no other process uses so. `steps` are SQL: each brings a store from one
    /// version to the next, and those that it lacks are done.
    ///
    /// # Errors
    /// When that cannot be done.
    pub fn open(directory: &Path, name: &str, steps: &[&str]) -> Result<Self, OpenError> {
        make_directory(directory)?;
        let lock = lock(&directory.join(format!("{name}.lock")))?;
        let path = directory.join(format!("{name}.sqlite"));
        let sql = |source| OpenError::Sql { path: path.clone(), source };
        make_private(&path)?;
        let mut writer = Connection::open(&path).map_err(sql)?;
        writer.pragma_update(None, "journal_mode", "WAL").map_err(sql)?;
        writer.pragma_update(None, "synchronous", "FULL").map_err(sql)?;
        writer.pragma_update(None, "foreign_keys", "ON").map_err(sql)?;
        // SQLite has made the files beside it by now, and nothing secret is in them yet.
        writer.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())).map_err(sql)?;
        check_private(&path)?;
        migrate(&mut writer, &path, steps)?;
        writer.set_prepared_statement_cache_capacity(128);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let reader = Connection::open_with_flags(&path, flags).map_err(sql)?;
        reader.busy_timeout(Duration::from_secs(5)).map_err(sql)?;
        reader.set_prepared_statement_cache_capacity(128);
        let is_broken = Arc::new(AtomicBool::new(false));
        let (writes, write_queue) = mpsc::sync_channel(QUEUE_MAX);
        let (reads, read_queue) = mpsc::sync_channel::<Read>(QUEUE_MAX);
        let is_full = Arc::default();
        let broken = Arc::clone(&is_broken);
        let io = |source| OpenError::Io { path: path.clone(), source };
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(name.to_owned()).spawn(work).map(drop).map_err(io)
        };
        spawn("store-write", Box::new(move || write_all(&writer, &write_queue, &broken)))?;
        spawn("store-read", Box::new(move || read_queue.iter().for_each(|read| read(&reader))))?;
        Ok(Self { writes, reads, is_broken, is_full, _lock: Arc::new(lock) })
    }

    /// Whether it is of no use any more.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Acquire)
    }

    /// Whether there was no space for what was to be stored last.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Acquire)
    }

    /// Changes something; the answer comes when that is durable. Changes are made in the order of
    /// calls, also when nobody awaits them.
    ///
    /// # Errors
    /// When it is not, or when that is not known.
    pub fn write<T, C>(
        &self,
        change: C,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<T, C>
    where
        T: Send + 'static,
        C: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let is_full = Arc::clone(&self.is_full);
        let write: Write = Box::new(move |connection| {
            let changed = alone(connection, change);
            Box::new(move |committed| {
                let outcome = committed.and(changed);
                is_full.store(matches!(outcome, Err(StoreError::Full(_))), Ordering::Release);
                let _ = sender.send(outcome);
            })
        });
        let sent = self.send(&self.writes, write);
        async move {
            sent?;
            receiver.await.unwrap_or_else(|_| Err(ended()))
        }
    }

    /// Reads what is durable.
    ///
    /// # Errors
    /// When that fails.
    pub fn read<T, Q>(
        &self,
        query: Q,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<T, Q>
    where
        T: Send + 'static,
        Q: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let read: Read = Box::new(move |connection| {
            let answer = query(connection).map_err(|error| certain(&error));
            let _ = sender.send(answer);
        });
        let sent = self.send(&self.reads, read);
        async move {
            sent?;
            receiver.await.unwrap_or_else(|_| Err(ended()))
        }
    }

    /// A queue that is full is an error rather than a wait: who calls must not block.
    fn send<J>(&self, queue: &mpsc::SyncSender<J>, job: J) -> Result<(), StoreError> {
        if self.is_broken() {
            return Err(ended());
        }
        queue.try_send(job).map_err(|error| match error {
            mpsc::TrySendError::Full(_) => {
                StoreError::Failed(format!("{QUEUE_MAX} requests wait already; ask again"))
            }
            mpsc::TrySendError::Disconnected(_) => ended(),
        })
    }
}

fn ended() -> StoreError {
    StoreError::Broken("it has stopped".to_owned())
}

/// Keeps other processes out as long as the file is open.
fn lock(path: &Path) -> Result<File, OpenError> {
    let io = |source| OpenError::Io { path: path.to_owned(), source };
    let file = netraid_private::open(path, netraid_private::Mode::Write).map_err(io)?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::InUse(path.to_owned())),
        Err(error) => Err(io(error.into())),
    }
}

/// What SQLite keeps beside a database; it gives them the permissions of the database.
const BESIDE: [&str; 3] = ["-wal", "-shm", "-journal"];

/// Makes the database if there is none, and takes it, and what a process that was killed left beside it,
/// away from all but its owner. Nobody else has it open: it is locked.
fn make_private(path: &Path) -> Result<(), OpenError> {
    let io = |source| OpenError::Io { path: path.to_owned(), source };
    netraid_private::open(path, netraid_private::Mode::Write).map_err(io)?;
    BESIDE.iter().try_for_each(|ending| {
        let path = beside(path, ending);
        let found = netraid_private::tighten(&path);
        found.map(drop).map_err(|source| OpenError::Io { path, source })
    })
}

/// Whether the files that SQLite has open are this user's alone: in a directory where
/// others may make files, one of them could have been first.
fn check_private(path: &Path) -> Result<(), OpenError> {
    ["", BESIDE[0], BESIDE[1]].iter().try_for_each(|ending| {
        let path = beside(path, ending);
        let checked = netraid_private::check(&path);
        checked.map_err(|source| OpenError::Io { path, source })
    })
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn migrate(connection: &mut Connection, path: &Path, steps: &[&str]) -> Result<(), OpenError> {
    let sql = |source| OpenError::Sql { path: path.to_owned(), source };
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Exclusive).map_err(sql)?;
    let found: u32 =
        transaction.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(sql)?;
    let found = found as usize;
    if found > steps.len() {
        return Err(OpenError::Newer { path: path.to_owned(), found, known: steps.len() });
    }
    for step in &steps[found..] {
        transaction.execute_batch(step).map_err(sql)?;
    }
    let Ok(known) = u32::try_from(steps.len()) else { unreachable!("there are few steps") };
    transaction.pragma_update(None, "user_version", known).map_err(sql)?;
    transaction.commit().map_err(sql)
}

/// Takes all that waits, up to a limit, into each transaction.
fn write_all(connection: &Connection, queue: &mpsc::Receiver<Write>, broken: &AtomicBool) {
    while let Ok(first) = queue.recv() {
        if broken.load(Ordering::Acquire) {
            continue;
        }
        let group = std::iter::once(first).chain(queue.try_iter()).take(GROUP_MAX);
        let begun = connection.execute_batch("BEGIN IMMEDIATE");
        // Outside of a transaction each change would be stored by itself, and told as not stored.
        if begun.is_err() && connection.execute_batch("BEGIN").is_err() {
            broken.store(true, Ordering::Release);
            tracing::error!("the store failed: no transaction can be begun");
            continue;
        }
        let endings: Vec<Ending> = group.map(|write| write(connection)).collect();
        let committed = begun.and_then(|()| connection.execute_batch("COMMIT"));
        let outcome = committed.map_err(|error| {
            let undone = connection.is_autocommit() || connection.execute_batch("ROLLBACK").is_ok();
            if undone && is_certain(&error) {
                return certain(&error);
            }
            broken.store(true, Ordering::Release);
            tracing::error!("the store failed, and it is not certain what it holds: {error}");
            StoreError::Broken(error.to_string())
        });
        endings.into_iter().for_each(|ending| ending(outcome.clone()));
    }
}

/// Whether nothing can have been stored after such an error.
fn is_certain(error: &rusqlite::Error) -> bool {
    let full_or_busy = [ErrorCode::DiskFull, ErrorCode::DatabaseBusy, ErrorCode::DatabaseLocked];
    error.sqlite_error_code().is_some_and(|code| full_or_busy.contains(&code))
}

/// Makes one change; all of it or nothing.
fn alone<T>(
    connection: &Connection,
    change: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> Result<T, StoreError> {
    let run = || {
        connection.execute_batch("SAVEPOINT change")?;
        let changed = change(connection);
        let end =
            if changed.is_ok() { "RELEASE change" } else { "ROLLBACK TO change; RELEASE change" };
        let ended = connection.execute_batch(end);
        // Why the change failed is told before what that led to.
        let changed = changed?;
        ended.map(|()| changed)
    };
    run().map_err(|error| certain(&error))
}

/// An error after which nothing is stored.
fn certain(error: &rusqlite::Error) -> StoreError {
    if let rusqlite::Error::FromSqlConversionFailure(_, _, why) = error {
        return StoreError::Unreadable(why.to_string());
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::Full(error.to_string()),
        Some(_) | None => StoreError::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: &[&str] = &["CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER NOT NULL) STRICT"];

    fn put(id: i64) -> impl FnOnce(&Connection) -> rusqlite::Result<usize> + Send + 'static {
        move |connection| connection.execute("INSERT INTO t VALUES (?1, 1)", [id])
    }

    fn count(connection: &Connection) -> rusqlite::Result<i64> {
        connection.query_row("SELECT count(*) FROM t", [], |row| row.get(0))
    }

    #[tokio::test]
    async fn a_store_without_space_says_so_until_there_is_some() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), "store", STEPS).unwrap();
        // As many pages as there are.
        let limit = |pages: &'static str| {
            store.write(move |connection| {
                connection.execute_batch(&format!("PRAGMA max_page_count = {pages}"))
            })
        };
        limit("1").await.unwrap();
        let fill = || {
            store.write(|connection| {
                let rows =
                    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 10000)";
                connection.execute(&format!("{rows} INSERT INTO t SELECT i, 1 FROM n"), [])
            })
        };
        let refused = fill().await.unwrap_err();
        assert!(matches!(refused, StoreError::Full(_)), "{refused}");
        assert!(store.is_full() && !store.is_broken());
        limit("100000").await.unwrap();
        assert_eq!(fill().await.unwrap(), 10_000);
        assert!(!store.is_full());
    }

    #[tokio::test]
    async fn a_change_that_fails_takes_nothing_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), "store", STEPS).unwrap();
        let [one, again, two] = [put(1), put(1), put(2)].map(|change| store.write(change));
        // Half done, then wrong.
        let half = store.write(|connection| {
            connection.execute("INSERT INTO t VALUES (3, 1)", [])?;
            connection.execute("INSERT INTO t VALUES (1, 1)", [])
        });
        assert!(one.await.is_ok() && two.await.is_ok());
        assert!(matches!(again.await, Err(StoreError::Failed(_))));
        assert!(half.await.is_err());
        assert_eq!(store.read(count).await.unwrap(), 2);
    }

    fn mode_of(path: &Path) -> u32 {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    /// All files of a directory by name, with their permissions.
    fn modes(directory: &Path) -> Vec<(String, u32)> {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
        let mode = |entry: std::fs::DirEntry| {
            (entry.file_name().into_string().unwrap(), mode_of(&entry.path()))
        };
        let mut modes: Vec<_> = entries.map(mode).collect();
        modes.sort();
        modes
    }

    #[tokio::test]
    async fn a_store_is_its_owners_alone_in_a_directory_that_all_may_read() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let names = ["store.lock", "store.sqlite", "store.sqlite-shm", "store.sqlite-wal"];
        let private = names.map(|name| (name.to_owned(), 0o600));
        let store = Store::open(directory.path(), "store", STEPS).unwrap();
        store.write(put(1)).await.unwrap();
        assert_eq!(modes(directory.path()), private);

        // What an earlier program left, with a process that was killed.
        let copy = tempfile::tempdir().unwrap();
        for name in names {
            let path = copy.path().join(name);
            std::fs::copy(directory.path().join(name), &path).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        }
        let store = Store::open(copy.path(), "store", STEPS).unwrap();
        assert_eq!(modes(copy.path()), private);
        assert_eq!(store.read(count).await.unwrap(), 1, "nothing is lost by it");
        store.write(put(2)).await.unwrap();
        assert_eq!(modes(copy.path()), private);
    }

    #[test]
    fn a_store_is_not_made_through_links() {
        let directory = tempfile::tempdir().unwrap();
        let elsewhere = directory.path().join("elsewhere");
        for name in ["store.lock", "store.sqlite", "store.sqlite-wal"] {
            let link = directory.path().join(name);
            std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
            let opened = Store::open(directory.path(), "store", STEPS);
            let error = opened.unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("symbolic link"), "{error}");
            assert!(!elsewhere.exists());
            std::fs::remove_file(&link).unwrap();
        }
    }

    #[tokio::test]
    async fn a_store_has_one_owner_and_no_older_program() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), "store", STEPS).unwrap();
        store.write(put(1)).await.unwrap();
        let again = Store::open(directory.path(), "store", STEPS);
        assert!(matches!(again, Err(OpenError::InUse(_))));
        drop(store);
        let more = [STEPS[0], "ALTER TABLE t ADD COLUMN m INTEGER"];
        let store = Store::open(directory.path(), "store", &more).unwrap();
        assert_eq!(store.read(count).await.unwrap(), 1);
        drop(store);
        let older = Store::open(directory.path(), "store", STEPS);
        assert!(matches!(older, Err(OpenError::Newer { found: 2, known: 1, .. })));
    }
}
