//! Whole files, with many requests under way: stripes are written whole, and nothing is read back.

use std::{io, pin::pin, thread};

use futures_util::{
    FutureExt as _, StreamExt as _,
    future::{Fuse, FusedFuture as _},
    stream::FuturesOrdered,
};
use netraid_block::{Buf, Op, Pool, RequestFlags, SgList};
use netraid_cluster::mediator::{SetState, Stored};
use netraid_engine::bytes::ByteRequest;
use netraid_raid::geometry::{Geometry, Level};
use tokio::sync::mpsc;

use crate::{Error, Volume, data};

/// Bytes under way, about.
const WINDOW_LEN: u64 = 32 << 20;
/// Bytes of a piece, about: so many stripes as fit.
const PIECE_LEN: u64 = 2 << 20;
/// After so many bytes they are made stable, while others go on: so that the end does not wait for all.
const STABLE_LEN: u64 = 64 << 20;
/// After so many bytes the mediator is told how far it came.
const CHECKPOINT_LEN: u64 = 256 << 20;
/// Data ends within a block; the rest of that is zeros.
const BLOCK_LEN: u64 = 4096;

/// Writes `source` behind the first `from` bytes, up to `length`, and says how far it came with each
/// `progress`. From time to time what is there is made stable and said to the mediator, so that
/// whoever is interrupted can go on from [`netraid_cluster::mediator::Entry::length_bytes`].
///
/// # Errors
/// When the source ends early, or the array fails.
pub async fn put(
    volume: &Volume,
    source: impl io::Read + Send + 'static,
    (from, length): (u64, u64),
    pool: &Pool,
    mut progress: impl FnMut(u64),
) -> Result<(), Error> {
    let piece_len = piece_len(volume);
    let mut pieces = read_ahead(volume.path(), source, (from, length), piece_len, pool.clone())?;
    let mut under_way = FuturesOrdered::new();
    let (mut next, mut done, mut stable, mut said) = (from, from, from, from);
    let mut ended = false;
    let mut checkpoint = pin!(Fuse::terminated());
    loop {
        let room = next - done < WINDOW_LEN && !ended;
        tokio::select! {
            piece = pieces.recv(), if room => match piece {
                Some(Ok((data, len))) => {
                    let (at, flags) = (next, RequestFlags::default());
                    next += len;
                    let bytes = data.len() as u64;
                    let write = ByteRequest { op: Op::Write, offset: at, len: bytes, flags, data };
                    under_way.push_back(async move {
                        data::request(volume.bytes(), write).await.map(|_| at + len)
                    });
                }
                Some(Err(source)) => {
                    return Err(Error::Local { path: "the source".to_owned(), source });
                }
                None => ended = true,
            },
            Some(end) = under_way.next(), if !under_way.is_empty() => {
                done = end.map_err(|source| io_error(volume, source))?;
                progress(done);
                let is_due = done - stable >= STABLE_LEN && done < length;
                if is_due && checkpoint.is_terminated() {
                    let says = done - said >= CHECKPOINT_LEN;
                    stable = done;
                    said = if says { done } else { said };
                    checkpoint.set(make_stable(volume, says.then_some(done)).fuse());
                }
            }
            end = &mut checkpoint, if !checkpoint.is_terminated() => end?,
            else => break,
        }
    }
    assert_eq!(done, length.max(from), "all that was read is written");
    Ok(())
}

/// Reads bytes `from` up to `length` in order, and gives them to `sink`, which runs on a thread of
/// its own.
///
/// # Errors
/// When the array fails, or the sink does.
pub async fn get(
    volume: &Volume,
    mut sink: impl FnMut(&SgList) -> io::Result<()> + Send + 'static,
    (from, length): (u64, u64),
    mut progress: impl FnMut(u64),
) -> Result<(), Error> {
    let (sender, mut receiver) = mpsc::channel::<SgList>(4);
    let local = |source| Error::Local { path: "the destination".to_owned(), source };
    let writer = thread::Builder::new().name("netraid-sink".to_owned());
    let (result, written) = tokio::sync::oneshot::channel();
    let write = move || {
        let end = std::iter::from_fn(|| receiver.blocking_recv()).try_for_each(|data| sink(&data));
        // Whoever waited has gone.
        let _ = result.send(end);
    };
    writer.spawn(write).map_err(local)?;
    let piece_len = piece_len(volume);
    let mut under_way = FuturesOrdered::new();
    let (mut next, mut done) = (from, from);
    while done < length {
        while next < length && next - done < WINDOW_LEN {
            let (offset, flags) = (next, RequestFlags::default());
            let len = piece_len.min(length - offset);
            next += len;
            let data = SgList::new();
            let read = ByteRequest { op: Op::Read, offset, len, flags, data };
            under_way.push_back(async move {
                data::request(volume.bytes(), read).await.map(|data| (offset + len, data))
            });
        }
        let Some(end) = under_way.next().await else { break };
        let (end, data) = end.map_err(|source| io_error(volume, source))?;
        if sender.send(data).await.is_err() {
            break;
        }
        done = end;
        progress(done);
    }
    drop(sender);
    let gone = || io::Error::other("its thread has ended");
    written.await.unwrap_or_else(|_| Err(gone())).map_err(local)
}

/// Makes stable what is written, and says to the mediator that it came so far.
async fn make_stable(volume: &Volume, says: Option<u64>) -> Result<(), Error> {
    flush(volume).await?;
    if let Some(done) = says {
        // It is only for whoever goes on after an interruption.
        if let Err(error) = volume.set_state(length_of(done)).await {
            tracing::warn!("how far it came is not known to the mediator: {error}");
        }
    }
    Ok(())
}

/// Makes all that was written stable.
///
/// # Errors
/// When the array fails.
pub async fn flush(volume: &Volume) -> Result<(), Error> {
    let (op, flags, data) = (Op::Flush, RequestFlags::default(), SgList::new());
    let flush = ByteRequest { op, offset: 0, len: 0, flags, data };
    request(volume, flush).await.map(drop)
}

/// One request for bytes, to its end.
///
/// # Errors
/// When the array fails.
pub async fn request(volume: &Volume, request: ByteRequest) -> Result<SgList, Error> {
    let end = data::request(volume.bytes(), request).await;
    end.map_err(|source| io_error(volume, source))
}

fn length_of(done: u64) -> SetState {
    SetState { formatted: false, length_bytes: Some(done), rebuilt: Vec::new() }
}

fn io_error(volume: &Volume, source: netraid_block::IoError) -> Error {
    let path = volume.path().to_owned();
    match volume.lost() {
        Some(why) => Error::Lost { path, why },
        None => Error::Io { path, source },
    }
}

/// Reads pieces on a thread of its own; the last one is filled up with zeros to a whole block. Each
/// comes with how many of its bytes count.
fn read_ahead(
    path: &str,
    mut source: impl io::Read + Send + 'static,
    (from, length): (u64, u64),
    piece_len: u64,
    pool: Pool,
) -> Result<mpsc::Receiver<io::Result<(SgList, u64)>>, Error> {
    let (sender, receiver) = mpsc::channel(4);
    let read = move || {
        let mut at = from;
        while at < length {
            // The first one after an interruption ends where pieces do.
            let len = (piece_len - at % piece_len).min(length - at);
            let piece = read_piece(&mut source, len, &pool);
            let is_over = piece.is_err();
            if sender.blocking_send(piece.map(|data| (data, len))).is_err() || is_over {
                return;
            }
            at += len;
        }
        if let Some(error) = more(&mut source, length) {
            // Nobody waits any more.
            let _ = sender.blocking_send(Err(error));
        }
    };
    let thread = thread::Builder::new().name("netraid-source".to_owned());
    let local = |source| Error::Local { path: path.to_owned(), source };
    thread.spawn(read).map_err(local)?;
    Ok(receiver)
}

/// Why a source is not at its end where it should be, if so.
fn more(source: &mut impl io::Read, length: u64) -> Option<io::Error> {
    let mut byte = [0];
    match source.read(&mut byte) {
        Ok(0) => None,
        Ok(_) => Some(io::Error::other(format!("it has more than {length} bytes"))),
        Err(error) => Some(error),
    }
}

fn read_piece(source: &mut impl io::Read, len: u64, pool: &Pool) -> io::Result<SgList> {
    let too_long = |_| io::Error::other("a piece that is too long");
    let (len, whole) = (
        usize::try_from(len).map_err(too_long)?,
        usize::try_from(len.next_multiple_of(BLOCK_LEN)).map_err(too_long)?,
    );
    let mut buf = pool.get(whole);
    buf[len..].fill(0);
    source.read_exact(&mut buf[..len]).map_err(|error| {
        let is_short = error.kind() == io::ErrorKind::UnexpectedEof;
        if is_short { io::Error::other("it ended early") } else { error }
    })?;
    let buf: Buf = buf.freeze();
    Ok(SgList::from(buf))
}

/// Bytes of the pieces in which files are moved: whole stripes, about 2 MiB.
#[must_use]
pub fn piece_len(volume: &Volume) -> u64 {
    let stripe = volume.entry().stored.as_ref().and_then(stripe_len).unwrap_or(1 << 20);
    (PIECE_LEN / stripe).max(1) * stripe
}

/// Bytes of data in a stripe.
fn stripe_len(stored: &Stored) -> Option<u64> {
    let level = Level::from_number(stored.level)?;
    let geometry = Geometry::new(level, stored.members.len(), stored.chunk_len, 512, 0, 0).ok()?;
    Some(geometry.stripe_data_len())
}
