//! `netraid put`, `get`, `cat`: whole files to and from a cluster.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, TryLockError},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{self, Read, Seek as _, SeekFrom},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use netraid_block::SgList;
use netraid_cluster::{
    Code,
    http::RequestError,
    mediator::{Create, Entry, Kind, Mode},
};
use netraid_files::{Cluster, Volume, VolumeOptions, transfer};
use rustix::{
    fs::{CWD, RenameFlags},
    io::Errno,
};
use serde_json::json;

use crate::{
    cluster::{AccessArgs, LayoutArgs, RateArgs, with_offer},
    output::Output,
    runtime,
    signal::{Interrupted, until_stopped},
    size,
};

/// Ends the name of a file of this host until all of it is there.
const PARTIAL: &str = ".partial";
/// How long `put` waits at its end for members that are being rebuilt.
const WHOLE_LIMIT: Duration = Duration::from_secs(60);
/// After so many bytes a file of this host is given to its disk, while others come.
const WRITE_BACK_LEN: u64 = 64 << 20;
/// Bytes of a file's name on this host, at most.
const LOCAL_NAME_LEN_MAX: usize = 255;
/// What is there of an interrupted `get` is trusted up to a multiple of this.
const RESUME_UNIT: u64 = 1 << 20;

#[derive(Debug, Clone, Args)]
pub(crate) struct PutArgs {
    /// A file of this host; `-` for standard input, with --size
    local: PathBuf,
    /// Absolute path in the cluster
    path: String,
    /// Bytes of standard input
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// Replace what has that name, and what an interrupted `put` left
    #[arg(long)]
    force: bool,
    /// Go on where an interrupted `put` of the same file ended; one that still runs is fenced
    #[arg(long)]
    resume: bool,
    /// Make missing directories above it
    #[arg(short, long)]
    parents: bool,
    #[command(flatten)]
    layout: LayoutArgs,
    #[command(flatten)]
    rates: RateArgs,
    #[command(flatten)]
    access: AccessArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct GetArgs {
    /// Absolute path in the cluster
    path: String,
    /// A file of this host
    local: PathBuf,
    /// Replace the file
    #[arg(long)]
    force: bool,
    /// Go on where an interrupted `get` of the same data ended
    #[arg(long)]
    resume: bool,
    #[command(flatten)]
    rates: RateArgs,
    #[command(flatten)]
    access: AccessArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct CatArgs {
    /// Absolute path in the cluster
    path: String,
    #[command(flatten)]
    rates: RateArgs,
    #[command(flatten)]
    access: AccessArgs,
}

pub(crate) fn put(args: &PutArgs, output: Output) -> Result<()> {
    args.rates.check()?;
    let (source, length) = open_source(args)?;
    let cluster = args.access.cluster()?;
    let is_resumable = matches!(source, Source::File(_));
    let put = put_all(args, &cluster, source, length, output);
    let put = runtime()?.block_on(until_stopped(&cluster, put));
    let entry = put.map_err(|error| match error.is::<Interrupted>() {
        true => error.context(next_of(is_resumable)),
        false => with_offer(error),
    })?;
    output.document(&entry, || format!("{}: {} bytes", entry.path, entry.length_bytes))
}

/// What can be done after a `put` that was cut short.
const fn next_of(is_resumable: bool) -> &'static str {
    match is_resumable {
        true => "--resume goes on where this ended",
        false => "what is stored of it is kept; --force begins anew",
    }
}

/// What is put, and how many bytes of it.
fn open_source(args: &PutArgs) -> Result<(Source, u64)> {
    if args.local == Path::new("-") {
        let length = args.size.context("standard input: give --size, its length in bytes")?;
        if args.resume {
            bail!(
                "standard input: cannot be resumed, since it has no beginning; leave --resume out"
            );
        }
        return Ok((Source::Input, length));
    }
    let shown = args.local.display();
    let mut file = File::open(&args.local).with_context(|| format!("{shown}"))?;
    let meta = file.metadata().with_context(|| format!("{shown}"))?;
    if !meta.is_file() {
        bail!("{shown}: is no regular file; give one, or - and --size");
    }
    if args.size.is_some_and(|size| size != meta.len()) {
        bail!("{shown}: has {} bytes, not what --size says; leave --size out", meta.len());
    }
    // Where something has come behind the end is seen when all is written: of nothing, nothing is.
    if meta.len() == 0 && file.read(&mut [0]).with_context(|| format!("{shown}"))? > 0 {
        bail!("{shown}: does not tell its length, as files of /proc; give it as - with --size");
    }
    Ok((Source::File(file), meta.len()))
}

enum Source {
    File(File),
    Input,
}

/// As an upload until all of it is there, so that nobody takes a part for the whole.
async fn put_all(
    args: &PutArgs,
    cluster: &Cluster,
    source: Source,
    length: u64,
    output: Output,
) -> Result<Entry> {
    let path = &args.path;
    match (found(cluster.stat(path).await)?, args.force) {
        (Some(Entry { kind: Kind::Data, .. }), true) | (None, _) => {}
        (Some(Entry { kind: Kind::Data, .. }), false) => {
            bail!("{path}: is there already; --force replaces it")
        }
        (Some(_), _) => bail!("{path}: is a directory or a volume; choose another name"),
    }
    let (upload, is_new) = begin(args, cluster, length).await?;
    if upload.stored.is_some() {
        let options = VolumeOptions {
            upload: true,
            id: Some(upload.id),
            // Whoever was interrupted without a word has it still.
            take_over: !is_new,
            ..args.rates.options(Mode::Write)
        };
        let opened = Volume::open(cluster, path, options, &netraid_engine::pool()).await;
        let volume = match opened {
            Ok(volume) => volume,
            Err(error) => {
                if is_new {
                    give_up(cluster, &upload).await;
                }
                return Err(error.into());
            }
        };
        fill(args, volume, source, length, output).await?;
    }
    let how = if args.force { "put --resume --force" } else { "put --resume" };
    let left = format!("what was put is kept: `{how}` gives it the name when that can be had");
    let named = cluster.publish(path, upload.id, args.force).await;
    named.map_err(|error| anyhow::Error::from(error).context(format!("{path}: {left}")))
}

/// The upload to go on with, or a new one, and whether it is new. One that somebody began is thrown away
/// by force alone.
async fn begin(args: &PutArgs, cluster: &Cluster, length: u64) -> Result<(Entry, bool)> {
    let path = &args.path;
    let mut replaces = None;
    if let Some(upload) = found(cluster.stat_upload(path).await)? {
        let (there, all) = (upload.length_bytes, upload.upload_bytes.unwrap_or_default());
        match (args.resume, args.force) {
            (true, _) if all == length => return Ok((upload, false)),
            (true, _) => bail!(
                "{path}: what was being put there has {all} bytes, and this has {length}; put it with \
                 --force, without --resume"
            ),
            // The mediator throws it away for the new one, once that is known to be had.
            (false, true) => {
                Volume::check_host(&upload)?;
                replaces = Some(upload.id);
            }
            (false, false) => bail!(
                "{path}: is being put already, or that was interrupted: {there} of {all} bytes are \
                 known to be stored; --resume goes on with it, --force begins anew"
            ),
        }
    }
    let create = Create {
        path: path.clone(),
        kind: Kind::Data,
        size_bytes: length,
        layout: args.layout.layout(&args.rates)?,
        parents: args.parents,
        upload: true,
        replaces,
    };
    Ok((cluster.create(&create).await?, true))
}

/// Takes back an upload of which nothing is stored.
async fn give_up(cluster: &Cluster, upload: &Entry) {
    let removed = cluster.remove_upload(&upload.path, Some(upload.id), false).await;
    if let Err(error) = removed {
        tracing::warn!("{}: an upload of nothing is left: {error}", upload.path);
    }
}

/// Writes what is not stored yet, and closes the upload: then all of it is stored, and nobody has it.
async fn fill(
    args: &PutArgs,
    volume: Volume,
    source: Source,
    length: u64,
    output: Output,
) -> Result<()> {
    let there = volume.entry().length_bytes;
    let from = there / transfer::piece_len(&volume) * transfer::piece_len(&volume);
    let written = match there < length {
        true => write(&volume, source, (from, length), output).await,
        false => Ok(()),
    };
    if written.is_ok() && !volume.whole(WHOLE_LIMIT).await? {
        tracing::warn!(
            "{path}: is stored, and not on all its members: `netraid volume heal {path}` when agents are \
             there again",
            path = args.path
        );
    }
    match written {
        Ok(()) => Ok(volume.close(Some(length)).await?),
        Err(error) => {
            // What is there stays.
            let next = next_of(args.local.as_path() != Path::new("-"));
            let closed = volume.close(None).await;
            Err(error.context(match closed {
                Ok(()) => next.to_owned(),
                Err(closed) => closed.to_string(),
            }))
        }
    }
}

async fn write(
    volume: &Volume,
    source: Source,
    (from, length): (u64, u64),
    output: Output,
) -> Result<()> {
    let bar = output.progress(volume.path(), length);
    bar.set_position(from);
    let source: Box<dyn Read + Send> = match source {
        Source::File(mut file) => {
            file.seek(SeekFrom::Start(from))?;
            Box::new(file)
        }
        Source::Input => Box::new(io::stdin()),
    };
    let pool = netraid_engine::pool();
    let put = transfer::put(volume, source, (from, length), &pool, |done| bar.set_position(done));
    put.await?;
    bar.finish_and_clear();
    Ok(())
}

/// What was found, if anything.
fn found(looked: Result<Entry, RequestError>) -> Result<Option<Entry>, RequestError> {
    match looked {
        Ok(entry) => Ok(Some(entry)),
        Err(RequestError::Refused(problem)) if problem.code == Code::Absent => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) fn get(args: &GetArgs, output: Output) -> Result<()> {
    let shown = args.local.display();
    if let Ok(there) = fs::symlink_metadata(&args.local) {
        if !args.force {
            bail!("{shown}: is there already; --force replaces it");
        }
        // Devices, pipes and sockets are no places for a file's bytes, and nobody means to lose them.
        if !there.is_file() && !there.is_symlink() {
            bail!("{shown}: is no regular file, and is not replaced; name another one");
        }
    }
    let cluster = args.access.cluster()?;
    let entry = runtime()?.block_on(cluster.stat(&args.path))?;
    let name = args.local.file_name().context("no name of a file")?;
    let partial = args.local.with_file_name(partial_name(name, &entry));
    let mut file = open_partial(&partial, args.resume)?;
    let there = file.metadata()?.len() / RESUME_UNIT * RESUME_UNIT;
    file.seek(SeekFrom::Start(there))?;
    let sink = WrittenBack::new(file.try_clone()?, &partial)?;
    let got = read(&cluster, &entry, &args.rates, there, sink, output);
    let got = runtime()?.block_on(until_stopped(&cluster, got));
    if got.is_err() && file.metadata().is_ok_and(|metadata| metadata.len() == 0) {
        // Nothing is there that another one could go on with.
        let _ = fs::remove_file(&partial);
    }
    let length = got.map_err(with_offer)?;
    file.set_len(length)?;
    file.sync_all()?;
    rename_partial(&partial, &args.local, args.force).with_context(|| format!("{shown}"))?;
    let directory = args.local.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
    output.document(&json!({ "path": args.path, "length_bytes": length }), || {
        format!("{shown}: {length} bytes")
    })
}

/// The name of a file until all of it is there. Another version has another one: nothing is put together
/// of two.
fn partial_name(name: &OsStr, entry: &Entry) -> OsString {
    let version = format!(".{}-{}{PARTIAL}", entry.id, entry.changed.0);
    let mut partial = match name.len() + version.len() > LOCAL_NAME_LEN_MAX {
        false => name.to_owned(),
        // The name itself may be as long as names of files can be.
        true => {
            let mut hasher = DefaultHasher::new();
            name.hash(&mut hasher);
            format!(".netraid-{:016x}", hasher.finish()).into()
        }
    };
    partial.push(version);
    partial
}

/// Opens it for this process alone: two that write it would call a file whole that one of them has just
/// begun anew.
fn open_partial(path: &Path, resume: bool) -> Result<File> {
    let shown = path.display();
    // Its name can be known beforehand: what another user put there is not written to.
    let mut options = File::options();
    options.write(true).create(true).truncate(false);
    let file = netraid_private::open_known(path, &mut options);
    let file = file.with_context(|| format!("{shown}"))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            bail!("{shown}: is being written by another `get`; wait for that, or name another file")
        }
        Err(TryLockError::Error(error)) => return Err(error).with_context(|| format!("{shown}")),
    }
    let (own, named) = (file.metadata()?, fs::symlink_metadata(path));
    let is_named = named.is_ok_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino()));
    if !is_named {
        bail!("{shown}: another `get` has just ended; ask again");
    }
    if !resume {
        file.set_len(0).with_context(|| format!("{shown}"))?;
    }
    Ok(file)
}

/// Gives it its name; what has that name meanwhile is replaced by force only.
fn rename_partial(partial: &Path, to: &Path, force: bool) -> io::Result<()> {
    if force {
        return fs::rename(partial, to);
    }
    match rustix::fs::renameat_with(CWD, partial, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        // A file system that cannot do it in one step.
        Err(Errno::INVAL | Errno::NOSYS) if fs::symlink_metadata(to).is_err() => {
            fs::rename(partial, to)
        }
        Err(Errno::INVAL | Errno::NOSYS) => Err(io::ErrorKind::AlreadyExists.into()),
        Err(error) => Err(error.into()),
    }
}

/// A file whose bytes are on their way to the disk while others come: the last sync has little to wait for.
struct WrittenBack {
    file: File,
    /// Bytes since the disk was given some.
    waiting: u64,
    begin: mpsc::SyncSender<()>,
}

impl WrittenBack {
    fn new(file: File, path: &Path) -> io::Result<Self> {
        // Opened once more: an error that is seen here is seen by the last sync as well.
        let again = File::open(path)?;
        let (begin, begun) = mpsc::sync_channel(1);
        let write_back = move || {
            for () in begun {
                // The last sync says what is wrong.
                let _ = again.sync_data();
            }
        };
        thread::Builder::new().name("netraid-sync".to_owned()).spawn(write_back)?;
        Ok(Self { file, waiting: 0, begin })
    }
}

impl io::Write for WrittenBack {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.waiting += written as u64;
        // Where the last one is still under way the next write asks again.
        if self.waiting >= WRITE_BACK_LEN && self.begin.try_send(()).is_ok() {
            self.waiting = 0;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

pub(crate) fn cat(args: &CatArgs, output: Output) -> Result<()> {
    let cluster = args.access.cluster()?;
    // Bars would stand between the bytes.
    let output = if output.is_json() { output } else { Output::new(true) };
    let got = async {
        let entry = cluster.stat(&args.path).await?;
        read(&cluster, &entry, &args.rates, 0, io::stdout(), output).await
    };
    match runtime()?.block_on(until_stopped(&cluster, got)) {
        // Whoever reads it has enough.
        Err(error) if is_closed_pipe(&error) => Ok(()),
        end => end.map(drop).map_err(with_offer),
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(netraid_files::Error::Local { source, .. }) => {
            source.kind() == io::ErrorKind::BrokenPipe
        }
        _ => false,
    }
}

/// Gives all bytes from a place on to `sink`; how many there are in all.
async fn read(
    cluster: &Cluster,
    entry: &Entry,
    rates: &RateArgs,
    from: u64,
    mut sink: impl io::Write + Send + 'static,
    output: Output,
) -> Result<u64> {
    let path = entry.path.as_str();
    match entry.kind {
        Kind::Data => {}
        Kind::Volume => bail!("{path}: is a volume; `netraid volume attach` exports it"),
        Kind::Directory => bail!("{path}: is a directory; `netraid ls` lists it"),
    }
    if entry.stored.is_none() || entry.length_bytes == 0 {
        return Ok(0);
    }
    let options = VolumeOptions { kind: Some(Kind::Data), ..rates.options(Mode::Read) };
    let volume = Volume::open(cluster, path, options, &netraid_engine::pool()).await?;
    let (length, opened) = (volume.entry().length_bytes, volume.entry());
    if (opened.id, opened.changed) != (entry.id, entry.changed) {
        volume.close(None).await?;
        bail!("{path}: was replaced or changed meanwhile; ask again");
    }
    let bar = output.progress(path, length);
    let write = move |data: &SgList| {
        data.parts().iter().try_for_each(|part| sink.write_all(part))?;
        sink.flush()
    };
    let from = from.min(length);
    let end = transfer::get(&volume, write, (from, length), |done| bar.set_position(done)).await;
    bar.finish_and_clear();
    let closed = volume.close(None).await;
    end?;
    closed?;
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_file_that_another_one_planted_is_not_written_to() {
        let directory = tempfile::tempdir().unwrap();
        let (victim, partial) = (directory.path().join("victim"), directory.path().join("part"));
        fs::write(&victim, "theirs").unwrap();
        fs::hard_link(&victim, &partial).unwrap();
        for resume in [false, true] {
            let refused = format!("{:#}", open_partial(&partial, resume).unwrap_err());
            assert!(refused.contains("part") && refused.contains("hard links"), "{refused}");
        }
        assert_eq!(fs::read(&victim).unwrap(), b"theirs");

        fs::remove_file(&partial).unwrap();
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o666));
        rustix::fs::mknodat(CWD, &partial, kind, mode, 0).unwrap();
        let refused = format!("{:#}", open_partial(&partial, true).unwrap_err());
        assert!(refused.contains("no regular file"), "{refused}");

        fs::remove_file(&partial).unwrap();
        drop(open_partial(&partial, false).unwrap());
        open_partial(&partial, true).unwrap();
    }
}
