//! Backings as people write them: `ram:SIZE`, `file:PATH[:SIZE]`, `block:PATH`, each with options
//! behind commas.

use std::{fmt, path::PathBuf, str::FromStr};

use netraid_block::{Pool, SizeError, parse_size};
use netraid_scsi::identity::is_serial;

use super::{Backing, BackingError, DiskOptions, FileOptions, IoMethod, THREADS_MAX};

/// Where a volume's bytes are to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In memory; gone with the process.
    Ram {
        /// Bytes.
        size: u64,
    },
    /// In a file; made, sparse, when a size is given and it is not there.
    File {
        /// The file.
        path: PathBuf,
        /// Bytes of a file to create; an existing one must have this size.
        size: Option<u64>,
    },
    /// On a block device.
    Disk {
        /// The device's name in the file system.
        path: PathBuf,
    },
}

/// A backing that can be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackingSpec {
    /// Where its bytes are.
    pub place: Place,
    /// `ro`: refuse writes.
    pub read_only: bool,
    /// `direct`: go around the page cache (files; block devices always do).
    pub direct: bool,
    /// `sync`: a write ends when it is stable.
    pub sync: bool,
    /// `threads=N`: how many requests the operating system is given at once.
    pub threads: Option<usize>,
    /// `io=uring` or `io=threads`: how the operating system is given them.
    pub io: Option<IoMethod>,
    /// `block=512` or `block=4096`: logical block in bytes.
    pub block_len: Option<u32>,
    /// `serial=NUMBER`: the serial number by which initiators know the volume.
    pub serial: Option<String>,
}

/// Why a text is no backing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Another kind of backing, or none.
    #[error("backing '{0}': write ram:SIZE, file:PATH[:SIZE] or block:PATH")]
    Kind(String),
    /// Memory without a valid size.
    #[error("backing '{0}': {1}")]
    Size(String, SizeError),
    /// An option that this kind does not have, or a value that is not possible.
    #[error("backing '{text}': option '{option}' {reason}")]
    Option {
        /// The whole text.
        text: String,
        /// The option.
        option: String,
        /// What is wrong, and what to write.
        reason: &'static str,
    },
}

const OPTIONS: &str = "is not known; options are ro, direct, sync, threads=N, \
                       io=uring|threads, block=512|4096, serial=NUMBER";

impl BackingSpec {
    /// A backing without options.
    #[must_use]
    pub const fn new(place: Place) -> Self {
        Self {
            place,
            read_only: false,
            direct: false,
            sync: false,
            threads: None,
            io: None,
            block_len: None,
            serial: None,
        }
    }

    /// The same for a process in another directory.
    ///
    /// # Errors
    /// When this process has no directory any more.
    pub fn absolute(mut self) -> std::io::Result<Self> {
        match &mut self.place {
            Place::Ram { .. } => {}
            Place::File { path, .. } | Place::Disk { path } => *path = std::path::absolute(&path)?,
        }
        Ok(self)
    }

    /// Opens the backing, in blocks of `block_len` bytes where the spec does not say; `None` is
    /// 512, or what a block device has.
    ///
    /// # Errors
    /// As [`Backing::ram`], [`Backing::file`] and [`Backing::disk`].
    pub fn open(&self, block_len: Option<u32>, pool: Pool) -> Result<Backing, BackingError> {
        let Self { read_only, direct, sync, io, .. } = *self;
        let block_len = self.block_len.or(block_len);
        match &self.place {
            Place::Ram { size } => Backing::ram(*size, block_len.unwrap_or(512), read_only, pool),
            Place::File { path, size } => {
                let mut options = FileOptions { size: *size, io, ..FileOptions::default() };
                options.block_len = block_len.unwrap_or(options.block_len);
                options.threads = self.threads.unwrap_or(options.threads);
                (options.read_only, options.direct, options.sync) = (read_only, direct, sync);
                Backing::file(path, &options, pool)
            }
            Place::Disk { path } => {
                let mut options = DiskOptions { block_len, io, ..DiskOptions::default() };
                options.threads = self.threads.unwrap_or(options.threads);
                (options.read_only, options.sync) = (read_only, sync);
                Backing::disk(path, &options, pool)
            }
        }
    }

    /// Takes one option; false when there is none of this name.
    fn set(&mut self, text: &str, option: &str) -> Result<bool, SpecError> {
        let fail = |reason| {
            let (text, option) = (text.to_string(), option.to_string());
            Err(SpecError::Option { text, option, reason })
        };
        let (is_file, is_ram) = match self.place {
            Place::Ram { .. } => (false, true),
            Place::File { .. } => (true, false),
            Place::Disk { .. } => (false, false),
        };
        match option.split_once('=') {
            None if option == "ro" => self.read_only = true,
            None if option == "direct" && is_file => self.direct = true,
            None if option == "direct" => return fail("is for files; block devices always are"),
            None if option == "sync" && !is_ram => self.sync = true,
            None if option == "sync" => return fail("is for files and block devices"),
            Some(("threads" | "io", _)) if is_ram => return fail("is for files and block devices"),
            Some(("threads", number)) => match number.parse() {
                Ok(number @ 1..=THREADS_MAX) => self.threads = Some(number),
                Ok(_) | Err(_) => return fail("is not a number from 1 to 64"),
            },
            Some(("io", method)) => match method.parse() {
                Ok(method) => self.io = Some(method),
                Err(()) => return fail("is neither uring nor threads"),
            },
            Some(("block", "512")) => self.block_len = Some(512),
            Some(("block", "4096")) => self.block_len = Some(4096),
            Some(("block", _)) => return fail("is neither 512 nor 4096"),
            Some(("serial", serial)) if is_serial(serial) => {
                self.serial = Some(serial.to_string());
            }
            Some(("serial", _)) => {
                return fail(
                    "is not 1 to 64 letters, digits, dashes, dots, colons and underscores",
                );
            }
            None | Some(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Takes all options behind commas; there must be no others.
    fn set_all(mut self, text: &str, options: Option<&str>) -> Result<Self, SpecError> {
        for option in options.into_iter().flat_map(|options| options.split(',')) {
            if !self.set(text, option)? {
                let (text, option) = (text.to_string(), option.to_string());
                return Err(SpecError::Option { text, option, reason: OPTIONS });
            }
        }
        Ok(self)
    }

    /// Takes the known options from the end of a path, which may itself contain commas.
    fn with_path<'t>(
        mut self,
        text: &str,
        mut rest: &'t str,
    ) -> Result<(Self, &'t str), SpecError> {
        while let Some((before, option)) = rest.rsplit_once(',') {
            if before.is_empty() || !self.set(text, option)? {
                break;
            }
            rest = before;
        }
        Ok((self, rest))
    }
}

impl FromStr for BackingSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match kind {
            "ram" => {
                let (size, options) = match rest.split_once(',') {
                    Some((size, options)) => (size, Some(options)),
                    None => (rest, None),
                };
                let size = parse_size(size);
                let size = size.map_err(|error| SpecError::Size(text.to_string(), error))?;
                Self::new(Place::Ram { size }).set_all(text, options)
            }
            "file" if !rest.is_empty() => {
                let place = |path: &str, size| Place::File { path: path.into(), size };
                // A path may contain colons and commas. A size never does: behind one, all must
                // be options.
                if let Some((path, behind)) = rest.rsplit_once(':')
                    && let (size, options) = behind
                        .split_once(',')
                        .map_or((behind, None), |(size, options)| (size, Some(options)))
                    && let (Ok(size), false) = (parse_size(size), path.is_empty())
                {
                    return Self::new(place(path, Some(size))).set_all(text, options);
                }
                let (mut spec, path) = Self::new(place(rest, None)).with_path(text, rest)?;
                spec.place = place(path, None);
                Ok(spec)
            }
            "block" if !rest.is_empty() => {
                let place = |path: &str| Place::Disk { path: path.into() };
                let (mut spec, path) = Self::new(place(rest)).with_path(text, rest)?;
                spec.place = place(path);
                Ok(spec)
            }
            _ => Err(SpecError::Kind(text.to_string())),
        }
    }
}

impl fmt::Display for BackingSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Ram { size } => write!(f, "ram:{size}")?,
            Place::File { path, size: None } => write!(f, "file:{}", path.display())?,
            Place::File { path, size: Some(size) } => {
                write!(f, "file:{}:{size}", path.display())?;
            }
            Place::Disk { path } => write!(f, "block:{}", path.display())?,
        }
        for (set, name) in [(self.read_only, "ro"), (self.direct, "direct"), (self.sync, "sync")] {
            if set {
                write!(f, ",{name}")?;
            }
        }
        if let Some(threads) = self.threads {
            write!(f, ",threads={threads}")?;
        }
        if let Some(io) = self.io {
            write!(f, ",io={io}")?;
        }
        if let Some(block_len) = self.block_len {
            write!(f, ",block={block_len}")?;
        }
        if let Some(serial) = &self.serial {
            write!(f, ",serial={serial}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backings_read_as_they_are_shown() {
        for text in [
            "ram:1048576",
            "ram:1048576,ro,block=4096",
            "ram:1048576,serial=WD-1.a_b",
            "file:/x/y",
            "file:/x:y/z",
            "file:/x:4096",
            "file:/x,y:4096",
            "file:/x,y",
            "file:/x,y,direct",
            "file:/x:4096,ro,direct,sync,threads=64,io=uring,block=512",
            "file:/x,io=threads",
            "block:/dev/sdb",
            "block:/dev/sdb,io=threads",
            "block:/dev/sdb,serial=iqn.x:1",
            "block:/dev/disk/by-path/pci-0:1,ro,sync,threads=1",
        ] {
            assert_eq!(text.parse::<BackingSpec>().unwrap().to_string(), text);
        }
        let sized = Place::File { path: "/a:b".into(), size: Some(2 << 30) };
        assert_eq!("file:/a:b:2GiB".parse::<BackingSpec>().unwrap(), BackingSpec::new(sized));
        let odd = Place::File { path: "/a,b".into(), size: None };
        assert_eq!("file:/a,b".parse::<BackingSpec>().unwrap(), BackingSpec::new(odd));
    }

    #[test]
    fn what_is_no_backing_is_refused_by_name() {
        for bad in [
            "",
            "ram",
            "ram:",
            "ram:0",
            "ram:1MiB,",
            "ram:1MiB,direct",
            "ram:1MiB,sync",
            "ram:1MiB,threads=1",
            "ram:1MiB,io=uring",
            "file:/x:1MiB,io=",
            "file:/x:1MiB,io=aio",
            "file:",
            "file:/x:1MiB,fast",
            "file:/x:1MiB,",
            "file:/x,threads=0",
            "file:/x,threads=65",
            "file:/x,block=520",
            "file:/x,serial=",
            "file:/x,serial=a b",
            "block:",
            "block:/dev/sdb,direct",
            "tape:/dev/st0",
        ] {
            let error = bad.parse::<BackingSpec>().unwrap_err().to_string();
            assert!(error.contains(&format!("backing '{bad}'")), "{error}");
        }
    }
}
