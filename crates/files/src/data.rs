//! Bytes of an exact length, by name.

use std::io::SeekFrom;

use netraid_block::{Buf, ErrorKind, IoError, Op, Pool, RequestFlags, SgList, narrow};
use netraid_cluster::mediator::{Create, Kind, Mode};
use netraid_engine::{
    bytes::{ByteDevice, ByteRequest},
    completions::CompletionQueue,
};

use crate::{Cluster, Error, Volume, VolumeOptions};

/// Bytes of one request, at most: a longer read or write gives back how far it came.
const REQUEST_LEN_MAX: usize = 4 << 20;

/// Open data. What was written counts when [`Data::close`] has returned; its length is said then.
/// Dropped instead it is closed in the background, as long as the runtime goes on
/// ([`Cluster::settled`]), and nobody hears of an error.
#[derive(Debug)]
pub struct Data {
    /// None where there are no bytes, nor can be.
    volume: Option<Volume>,
    path: String,
    position: u64,
    length: u64,
    capacity: u64,
    mode: Mode,
}

impl Data {
    /// Opens what has this name.
    ///
    /// # Errors
    /// When there is none, it is a directory or a volume, or nobody may have it now.
    pub async fn open(
        cluster: &Cluster,
        path: &str,
        options: VolumeOptions,
        pool: &Pool,
    ) -> Result<Self, Error> {
        let entry = cluster.stat(path).await?;
        check_kind(path, entry.kind)?;
        let options = VolumeOptions { kind: Some(Kind::Data), ..options };
        let mode = options.mode;
        let has_bytes = entry.stored.is_some() && (mode == Mode::Write || entry.length_bytes > 0);
        let volume = match has_bytes {
            true => Some(Volume::open(cluster, path, options, pool).await?),
            false => None,
        };
        // What was said before it was open may be old.
        let entry = volume.as_ref().map_or(&entry, Volume::entry);
        let (length, capacity) = (entry.length_bytes, entry.capacity_bytes);
        Ok(Self { path: path.to_owned(), position: 0, length, capacity, mode, volume })
    }

    /// Makes data of this name, and opens it to write.
    ///
    /// # Errors
    /// When there is something of that name, something else than data is to be made, or it is refused.
    pub async fn create(
        cluster: &Cluster,
        create: &Create,
        options: VolumeOptions,
        pool: &Pool,
    ) -> Result<Self, Error> {
        check_kind(&create.path, create.kind)?;
        let entry = cluster.create(create).await?;
        Self::open(cluster, &entry.path, VolumeOptions { mode: Mode::Write, ..options }, pool).await
    }

    /// How many bytes there are, with those that were written just now.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// How many bytes there can be.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The open volume below; none where there are no bytes.
    #[must_use]
    pub const fn volume(&self) -> Option<&Volume> {
        self.volume.as_ref()
    }

    /// Reads at a place: as many bytes as fit `into`, or as there are up to the end; none at the end.
    ///
    /// # Errors
    /// When the array cannot give them.
    pub async fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Error> {
        let left = self.length.saturating_sub(offset);
        let len = narrow(left.min(into.len().min(REQUEST_LEN_MAX) as u64));
        let Some(volume) = self.volume.as_ref().filter(|_| len > 0) else { return Ok(0) };
        let bytes = self.ask(volume, Op::Read, offset, len, SgList::new()).await?;
        bytes.copy_to(&mut into[..len]);
        Ok(len)
    }

    /// Writes at a place, which may be behind the end: what is between reads as zeros. How many
    /// bytes were written.
    ///
    /// # Errors
    /// When there is no room, it is open to read only, or the array fails.
    pub async fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<usize, Error> {
        let len = from.len().min(REQUEST_LEN_MAX);
        let end = offset.saturating_add(len as u64);
        if end > self.capacity || self.mode == Mode::Read {
            let limit = if self.mode == Mode::Read { 0 } else { self.capacity };
            let (path, what) = (self.path.clone(), "a write");
            return Err(Error::Beyond { path, what, end, limit });
        }
        let Some(volume) = self.volume.as_ref().filter(|_| len > 0) else { return Ok(0) };
        if offset > self.length {
            let gap = offset - self.length;
            let gap = ByteRequest {
                op: Op::WriteZeroes,
                offset: self.length,
                len: gap,
                flags: RequestFlags::default(),
                data: SgList::new(),
            };
            self.end(request(volume.bytes(), gap).await)?;
        }
        let data = SgList::from(Buf::copy_from(&from[..len]));
        self.ask(volume, Op::Write, offset, len, data).await?;
        self.length = self.length.max(end);
        Ok(len)
    }

    /// Reads at the position, and moves it.
    ///
    /// # Errors
    /// As [`Data::read_at`].
    pub async fn read(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        let len = self.read_at(self.position, into).await?;
        self.position += len as u64;
        Ok(len)
    }

    /// Writes at the position, and moves it.
    ///
    /// # Errors
    /// As [`Data::write_at`].
    pub async fn write(&mut self, from: &[u8]) -> Result<usize, Error> {
        let len = self.write_at(self.position, from).await?;
        self.position += len as u64;
        Ok(len)
    }

    /// Moves the position; where it is now.
    ///
    /// # Errors
    /// When that is before the first byte.
    pub fn seek(&mut self, to: SeekFrom) -> Result<u64, Error> {
        let moved = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.length.checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        let before = || Error::Beyond {
            path: self.path.clone(),
            what: "a position before the first byte",
            end: 0,
            limit: 0,
        };
        self.position = moved.ok_or_else(before)?;
        Ok(self.position)
    }

    /// Makes what was written stable. Its length is said by [`Data::close`].
    ///
    /// # Errors
    /// When the array fails.
    pub async fn flush(&self) -> Result<(), Error> {
        match &self.volume {
            Some(volume) if self.mode == Mode::Write => {
                self.ask(volume, Op::Flush, 0, 0, SgList::new()).await.map(drop)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Makes what was written stable, says how long it is, and gives it back.
    ///
    /// # Errors
    /// When the array has failed, or the length could not be said.
    pub async fn close(mut self) -> Result<(), Error> {
        let length = self.length_to_say();
        match self.volume.take() {
            Some(volume) => volume.close(length).await,
            None => Ok(()),
        }
    }

    fn length_to_say(&self) -> Option<u64> {
        (self.mode == Mode::Write).then_some(self.length)
    }

    async fn ask(
        &self,
        volume: &Volume,
        op: Op,
        offset: u64,
        len: usize,
        data: SgList,
    ) -> Result<SgList, Error> {
        let (len, flags) = (len as u64, RequestFlags::default());
        let end = request(volume.bytes(), ByteRequest { op, offset, len, flags, data }).await;
        self.end(end)
    }

    fn end(&self, end: Result<SgList, IoError>) -> Result<SgList, Error> {
        let lost = self.volume.as_ref().and_then(Volume::lost);
        end.map_err(|source| match lost {
            Some(why) => Error::Lost { path: self.path.clone(), why },
            None => Error::Io { path: self.path.clone(), source },
        })
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        let length = self.length_to_say();
        if let Some(volume) = self.volume.take() {
            volume.let_go(length);
        }
    }
}

/// Whether it has bytes of an exact length.
fn check_kind(path: &str, kind: Kind) -> Result<(), Error> {
    let what = match kind {
        Kind::Data => return Ok(()),
        Kind::Directory => "is a directory",
        Kind::Volume => "is a volume, whose blocks are for `Volume::open`",
    };
    Err(Error::Kind { path: path.to_owned(), what })
}

/// One request for bytes, to its end.
pub(crate) async fn request(bytes: &ByteDevice, request: ByteRequest) -> Result<SgList, IoError> {
    let (queue, mut ends) = CompletionQueue::channel();
    bytes.port(queue.consumer()).submit(request, 0);
    drop(queue);
    ends.recv().await.map_or_else(|| Err(ErrorKind::Aborted.into()), |(_, end)| end)
}
