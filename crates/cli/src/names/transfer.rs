//! `netraid put`, `get`, `cat`: whole files to and from a cluster.

use std::{
    fs::{self, File},
    io::{self, Read, Seek as _, SeekFrom},
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
use serde_json::json;

use crate::{
    cluster::{AccessArgs, LayoutArgs, RateArgs, with_offer},
    output::Output,
    runtime,
    signal::{Interrupted, until_stopped},
    size,
};

/// Ends a name under which something is put, until all of it is there.
const PARTIAL: &str = ".partial";
/// How long `put` waits at its end for members that are being rebuilt.
const WHOLE_LIMIT: Duration = Duration::from_secs(60);
/// After so many bytes a file of this host is given to its disk, while others come.
const WRITE_BACK_LEN: u64 = 64 << 20;
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
    let (source, length) = open_source(args)?;
    let cluster = args.access.cluster()?;
    let is_resumable = matches!(source, Source::File(_));
    let put = put_all(args, &cluster, source, length, output);
    let put = runtime()?.block_on(until_stopped(&cluster, put));
    let entry = put.map_err(|error| match error.is::<Interrupted>() && is_resumable {
        true => error.context("--resume goes on where this ended"),
        false => with_offer(error),
    })?;
    output.document(&entry, || format!("{}: {} bytes", entry.path, entry.length_bytes))
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
    let file = File::open(&args.local).with_context(|| format!("{shown}"))?;
    let meta = file.metadata().with_context(|| format!("{shown}"))?;
    if !meta.is_file() {
        bail!("{shown}: is no regular file; give one, or - and --size");
    }
    if args.size.is_some_and(|size| size != meta.len()) {
        bail!("{shown}: has {} bytes, not what --size says; leave --size out", meta.len());
    }
    Ok((Source::File(file), meta.len()))
}

enum Source {
    File(File),
    Input,
}

/// Under another name until all of it is there: nobody takes a part for the whole.
async fn put_all(
    args: &PutArgs,
    cluster: &Cluster,
    source: Source,
    length: u64,
    output: Output,
) -> Result<Entry> {
    match (find(cluster, &args.path).await?, args.force) {
        (Some(Entry { kind: Kind::Data, .. }), true) | (None, _) => {}
        (Some(Entry { kind: Kind::Data, .. }), false) => {
            bail!("{}: is there already; --force replaces it", args.path)
        }
        (Some(_), _) => bail!("{}: is a directory or a volume; choose another name", args.path),
    }
    let partial = format!("{}{PARTIAL}", args.path);
    let (from, entry) = match find(cluster, &partial).await? {
        Some(entry)
            if args.resume && entry.capacity_bytes >= length && entry.length_bytes <= length =>
        {
            (entry.length_bytes, entry)
        }
        Some(_) if args.resume => {
            bail!("{partial}: is of another size; put it with --force, without --resume")
        }
        before => {
            if before.is_some() {
                cluster.remove(&partial, args.force).await?;
            }
            let create = Create {
                path: partial.clone(),
                kind: Kind::Data,
                size_bytes: length,
                layout: args.layout.layout(&args.rates)?,
                parents: args.parents,
            };
            (0, cluster.create(&create).await?)
        }
    };
    if entry.stored.is_some() && from < length {
        // Whoever was interrupted without a word has it still; nobody else has this name.
        let options = VolumeOptions { take_over: args.resume, ..args.rates.options(Mode::Write) };
        let volume = Volume::open(cluster, &partial, options, &netraid_engine::pool()).await?;
        let from = from / transfer::piece_len(&volume) * transfer::piece_len(&volume);
        let written = write(&volume, source, (from, length), output).await;
        if written.is_ok() && !volume.whole(WHOLE_LIMIT).await? {
            tracing::warn!(
                "{partial}: is stored, and not on all its members: `netraid volume heal {}` when \
                 agents are there again",
                args.path
            );
        }
        match written {
            Ok(()) => volume.close(Some(length)).await?,
            Err(error) => {
                // What is there stays, for --resume.
                let closed = volume.close(None).await;
                return Err(error.context(match closed {
                    Ok(()) => "--resume goes on where this ended".to_owned(),
                    Err(closed) => closed.to_string(),
                }));
            }
        }
    }
    publish(args, cluster, &partial, &entry).await
}

/// Gives it its name. What had that name goes in the same step.
async fn publish(args: &PutArgs, cluster: &Cluster, partial: &str, entry: &Entry) -> Result<Entry> {
    let id = Some(entry.id);
    let named = match args.force {
        true => cluster.replace_name(partial, &args.path, id, false).await,
        false => cluster.rename(partial, &args.path, id).await,
    };
    let path = &args.path;
    let left =
        || format!("what was put is {partial}; `netraid mv` gives it the name: see --replace");
    named.map_err(|error| anyhow::Error::from(error).context(format!("{path}: {}", left())))
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

/// What a name stands for, if anything.
async fn find(cluster: &Cluster, path: &str) -> Result<Option<Entry>, RequestError> {
    match cluster.stat(path).await {
        Ok(entry) => Ok(Some(entry)),
        Err(RequestError::Refused(problem)) if problem.code == Code::Absent => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) fn get(args: &GetArgs, output: Output) -> Result<()> {
    let shown = args.local.display();
    if args.local.exists() && !args.force {
        bail!("{shown}: is there already; --force replaces it");
    }
    let cluster = args.access.cluster()?;
    let entry = runtime()?.block_on(cluster.stat(&args.path))?;
    // Another version has another name: nothing is put together of two.
    let mut name = args.local.file_name().context("no name of a file")?.to_owned();
    name.push(format!(".{}-{}{PARTIAL}", entry.id, entry.changed.0));
    let partial = args.local.with_file_name(name);
    let opened =
        fs::OpenOptions::new().write(true).create(true).truncate(!args.resume).open(&partial);
    let mut file = opened.with_context(|| format!("{}", partial.display()))?;
    let there = file.metadata()?.len() / RESUME_UNIT * RESUME_UNIT;
    file.seek(SeekFrom::Start(there))?;
    let sink = WrittenBack::new(file.try_clone()?, &partial)?;
    let got = read(&cluster, &entry, &args.rates, there, sink, output);
    let length = runtime()?.block_on(until_stopped(&cluster, got)).map_err(with_offer)?;
    file.set_len(length)?;
    file.sync_all()?;
    fs::rename(&partial, &args.local).with_context(|| format!("{shown}"))?;
    let directory = args.local.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
    output.document(&json!({ "path": args.path, "length_bytes": length }), || {
        format!("{shown}: {length} bytes")
    })
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
    let volume =
        Volume::open(cluster, path, rates.options(Mode::Read), &netraid_engine::pool()).await?;
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
