//! Data of a cluster for programs without an async runtime: [`File`] is a `Read`, `Write` and `Seek`.

use std::{
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
};

use netraid_cluster::mediator::{Create, Mode};
use tokio::runtime::{Builder, Runtime};

use crate::{Cluster, Data, VolumeOptions};

/// Open data, with threads of its own that keep it open while its owner does other things.
#[derive(Debug)]
pub struct File {
    runtime: Runtime,
    data: Option<Data>,
}

impl File {
    /// Opens what has this name, with this access file.
    ///
    /// # Errors
    /// When there is none, it is a directory, or nobody may have it now.
    pub fn open(access: &Path, path: &str, mode: Mode) -> io::Result<Self> {
        let runtime = runtime()?;
        let data = runtime.block_on(async {
            let cluster = Cluster::with_access_file(access).map_err(io::Error::other)?;
            Ok::<_, io::Error>(
                Data::open(&cluster, path, VolumeOptions::new(mode), &netraid_engine::pool())
                    .await?,
            )
        })?;
        Ok(Self { runtime, data: Some(data) })
    }

    /// Makes data of this name, and opens it to write.
    ///
    /// # Errors
    /// When there is something of that name, or it is refused.
    pub fn create(access: &Path, create: &Create) -> io::Result<Self> {
        let runtime = runtime()?;
        let data = runtime.block_on(async {
            let cluster = Cluster::with_access_file(access).map_err(io::Error::other)?;
            let options = VolumeOptions::new(Mode::Write);
            Ok::<_, io::Error>(
                Data::create(&cluster, create, options, &netraid_engine::pool()).await?,
            )
        })?;
        Ok(Self { runtime, data: Some(data) })
    }

    /// How many bytes there are.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.data.as_ref().map_or(0, Data::length)
    }

    /// Makes what was written stable, says how long it is, and gives it back. A file that is dropped
    /// is closed as well, and nobody hears of an error.
    ///
    /// # Errors
    /// When the array has failed, or the length could not be said.
    pub fn close(mut self) -> io::Result<()> {
        self.close_now()
    }

    fn close_now(&mut self) -> io::Result<()> {
        match self.data.take() {
            Some(data) => Ok(self.runtime.block_on(data.close())?),
            None => Ok(()),
        }
    }

    fn parts(&mut self) -> io::Result<(&Runtime, &mut Data)> {
        let closed = || io::Error::other("the file is closed");
        Ok((&self.runtime, self.data.as_mut().ok_or_else(closed)?))
    }
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(1).thread_name("netraid-files").enable_all().build()
}

impl Read for File {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (runtime, data) = self.parts()?;
        Ok(runtime.block_on(data.read(into))?)
    }
}

impl Write for File {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let (runtime, data) = self.parts()?;
        Ok(runtime.block_on(data.write(from))?)
    }

    fn flush(&mut self) -> io::Result<()> {
        let (runtime, data) = self.parts()?;
        Ok(runtime.block_on(data.flush())?)
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (_, data) = self.parts()?;
        Ok(data.seek(to)?)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let Err(error) = self.close_now() {
            tracing::error!("data was not closed in good order: {error}");
        }
    }
}
