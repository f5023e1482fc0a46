//! A small NBD client: fixed newstyle handshake, simple replies, many requests in flight on one
//! connection. It measures and verifies; it is no general client.

use std::{
    fmt,
    io::{BufReader, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use netraid_block::redact_addresses;

const MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const FIXED_NEWSTYLE: u16 = 1;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
/// Of an export: it knows flushes.
const SEND_FLUSH: u16 = 1 << 2;
const DISCONNECT: u16 = 2;
const HEADER_LEN: usize = 28;
/// Requests up to this length are gathered and sent together.
const GATHER_LEN: usize = 64 << 10;
/// No server of ours is silent for so long; a client that waits for ever helps nobody.
const SILENCE: Duration = Duration::from_secs(60);
/// What a server may say about an export, in bytes.
const INFO_LEN_MAX: u32 = 64 << 10;

/// Where an export is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NbdUri {
    /// `nbd://host:port/name`
    Tcp { address: String, name: String },
    /// `nbd+unix:///name?socket=path`
    Unix { path: String, name: String },
}

impl NbdUri {
    /// Whether `text` looks like one, right or wrong.
    pub(crate) fn claims(text: &str) -> bool {
        text.starts_with("nbd://") || text.starts_with("nbd+unix://")
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            format!(
                "'{}': write nbd://host:port/name or nbd+unix:///name?socket=P",
                redact_addresses(text)
            )
        };
        if let Some(rest) = text.strip_prefix("nbd+unix:///") {
            let (name, path) = rest.split_once("?socket=").with_context(wrong)?;
            return Ok(Self::Unix { path: path.into(), name: name.into() });
        }
        let rest = text.strip_prefix("nbd://").with_context(wrong)?;
        let (address, name) = rest.split_once('/').unwrap_or((rest, ""));
        Ok(Self::Tcp { address: address.into(), name: name.into() })
    }

    fn name(&self) -> &str {
        match self {
            Self::Tcp { name, .. } | Self::Unix { name, .. } => name,
        }
    }
}

/// Without the secret of a login, which none of these addresses can have, and some are typed with.
impl fmt::Display for NbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Tcp { address, name } => format!("nbd://{address}/{name}"),
            Self::Unix { path, name } => format!("nbd+unix:///{name}?socket={path}"),
        };
        f.write_str(&redact_addresses(&text))
    }
}

/// What a request does; the numbers are the protocol's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Read = 0,
    Write = 1,
    Flush = 3,
}

/// One request to make.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    pub(crate) command: Command,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

/// Where jobs come from and go to.
pub(crate) trait Source {
    /// The next job; `None` when there is no more.
    fn next(&mut self) -> Option<Job>;
    /// Makes the data of a write.
    fn fill(&mut self, job: &Job, data: &mut [u8]);
    /// A job has ended; `data` is what a read returned.
    fn done(&mut self, job: &Job, latency: Duration, data: &[u8]) -> Result<()>;
}

/// A connection to an export.
pub(crate) struct NbdClient {
    uri: NbdUri,
    input: BufReader<Stream>,
    output: Stream,
    size: u64,
    flags: u16,
}

/// One request in flight, and its buffer: the header, then the payload of a write.
struct Slot {
    job: Job,
    started: Instant,
    buffer: Vec<u8>,
}

impl NbdClient {
    /// Connects and opens the export.
    pub(crate) fn connect(uri: NbdUri) -> Result<Self> {
        let stream = Stream::connect(&uri).with_context(|| format!("cannot connect to {uri}"))?;
        let input = BufReader::with_capacity(256 << 10, stream.try_clone()?);
        let mut client = Self { uri, input, output: stream, size: 0, flags: 0 };
        client.handshake().with_context(|| format!("NBD handshake with {}", client.uri))?;
        Ok(client)
    }

    /// The export's size in bytes.
    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    /// Whether the export takes flushes.
    pub(crate) const fn can_flush(&self) -> bool {
        self.flags & SEND_FLUSH > 0
    }

    /// Works through all jobs, at most `depth` at a time.
    pub(crate) fn run(&mut self, depth: usize, source: &mut dyn Source) -> Result<()> {
        let mut slots: Vec<Slot> = (0..depth).map(|_| Slot::unused()).collect();
        let mut free: Vec<usize> = (0..depth).rev().collect();
        let mut gathered = Vec::with_capacity(GATHER_LEN * 2);
        let mut exhausted = false;
        loop {
            while !exhausted && let Some(index) = free.pop() {
                let Some(job) = source.next() else {
                    exhausted = true;
                    free.push(index);
                    break;
                };
                self.stage(&mut slots[index], index as u64, job, source, &mut gathered)?;
            }
            self.output.write_all(&gathered).with_context(|| self.lost())?;
            gathered.clear();
            if free.len() == depth {
                return Ok(());
            }
            loop {
                free.push(self.receive(&mut slots, source)?);
                if free.len() == depth || self.input.buffer().len() < 16 {
                    break;
                }
            }
        }
    }

    /// Tells the server that this was all.
    pub(crate) fn disconnect(mut self) -> Result<()> {
        let header = header(DISCONNECT, 0, &Job { command: Command::Read, offset: 0, len: 0 });
        self.output.write_all(&header).with_context(|| self.lost())
    }

    fn stage(
        &mut self,
        slot: &mut Slot,
        handle: u64,
        job: Job,
        source: &mut dyn Source,
        gathered: &mut Vec<u8>,
    ) -> Result<()> {
        slot.job = job;
        slot.buffer.resize(HEADER_LEN, 0);
        slot.buffer.copy_from_slice(&header(job.command as u16, handle, &job));
        if job.command == Command::Write {
            slot.buffer.resize(HEADER_LEN + job.len as usize, 0);
            source.fill(&job, &mut slot.buffer[HEADER_LEN..]);
        }
        slot.started = Instant::now();
        if slot.buffer.len() <= GATHER_LEN && gathered.len() <= GATHER_LEN {
            gathered.extend_from_slice(&slot.buffer);
            return Ok(());
        }
        self.output.write_all(gathered).with_context(|| self.lost())?;
        gathered.clear();
        self.output.write_all(&slot.buffer).with_context(|| self.lost())
    }

    /// Takes one reply, and returns which slot it was for.
    fn receive(&mut self, slots: &mut [Slot], source: &mut dyn Source) -> Result<usize> {
        let magic = self.u32()?;
        let error = self.u32()?;
        let handle = self.u64()?;
        let known = usize::try_from(handle).ok().filter(|index| *index < slots.len());
        let index = match known {
            Some(index) if magic == REPLY_MAGIC => index,
            _ => bail!("{}: reply with magic {magic:#x} and handle {handle}", self.uri),
        };
        let Slot { job, started, buffer } = &mut slots[index];
        if error != 0 {
            let Job { command, offset, len } = job;
            // Clamped: an error that is none of the system is EIO.
            let reason = std::io::Error::from_raw_os_error(i32::try_from(error).unwrap_or(5));
            bail!("{}: {command:?} of {len} bytes at {offset}: {reason}", self.uri);
        }
        let data: &[u8] = if job.command == Command::Read {
            buffer.resize(job.len as usize, 0);
            self.input
                .read_exact(buffer)
                .with_context(|| format!("{}: connection lost", self.uri))?;
            buffer
        } else {
            &[]
        };
        source.done(job, started.elapsed(), data)?;
        Ok(index)
    }

    fn handshake(&mut self) -> Result<()> {
        if self.u64()? != MAGIC || self.u64()? != OPTION_MAGIC {
            bail!("the peer is no newstyle NBD server; check address and port");
        }
        let flags = self.u16()?;
        if flags & FIXED_NEWSTYLE == 0 {
            bail!("the server does not speak fixed newstyle");
        }
        // The flags that the server offered, taken as they are: fixed newstyle, no zeroes.
        let mut hello = u32::from(flags & 3).to_be_bytes().to_vec();
        let name = self.uri.name().as_bytes();
        let name_len = u32::try_from(name.len()).context("export name")?;
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(OPTION_GO.to_be_bytes());
        hello.extend((name_len + 6).to_be_bytes());
        hello.extend(name_len.to_be_bytes());
        hello.extend(name);
        hello.extend(0_u16.to_be_bytes());
        self.output.write_all(&hello)?;
        loop {
            let (magic, option, kind, len) = (self.u64()?, self.u32()?, self.u32()?, self.u32()?);
            if magic != OPTION_REPLY_MAGIC || option != OPTION_GO || len > INFO_LEN_MAX {
                bail!("reply {kind:#x} to option {option}, magic {magic:#x}, {len} bytes long");
            }
            let mut data = vec![0; len as usize];
            self.input.read_exact(&mut data)?;
            match kind {
                REPLY_ACK => return Ok(()),
                REPLY_INFO => self.take_info(&data),
                refused => {
                    let reason = String::from_utf8_lossy(&data);
                    bail!("the server refused the export ({refused:#x}) {reason}");
                }
            }
        }
    }

    fn take_info(&mut self, data: &[u8]) {
        if let Some((kind, rest)) = data.split_first_chunk::<2>()
            && u16::from_be_bytes(*kind) == INFO_EXPORT
            && let Some((size, rest)) = rest.split_first_chunk::<8>()
        {
            self.size = u64::from_be_bytes(*size);
            let flags = rest.first_chunk::<2>().copied().unwrap_or_default();
            self.flags = u16::from_be_bytes(flags);
        }
    }

    fn u16(&mut self) -> Result<u16> {
        self.bytes().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.bytes().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.bytes().map(u64::from_be_bytes)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes).with_context(|| self.lost())?;
        Ok(bytes)
    }

    fn lost(&self) -> String {
        format!("{}: connection lost, or silent for {} s", self.uri, SILENCE.as_secs())
    }
}

impl Slot {
    fn unused() -> Self {
        let job = Job { command: Command::Flush, offset: 0, len: 0 };
        Self { job, started: Instant::now(), buffer: Vec::new() }
    }
}

fn header(kind: u16, handle: u64, job: &Job) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    header[6..8].copy_from_slice(&kind.to_be_bytes());
    header[8..16].copy_from_slice(&handle.to_be_bytes());
    header[16..24].copy_from_slice(&job.offset.to_be_bytes());
    header[24..28].copy_from_slice(&job.len.to_be_bytes());
    header
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn connect(uri: &NbdUri) -> std::io::Result<Self> {
        match uri {
            NbdUri::Tcp { address, .. } => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(SILENCE))?;
                stream.set_write_timeout(Some(SILENCE))?;
                Ok(Self::Tcp(stream))
            }
            NbdUri::Unix { path, .. } => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(SILENCE))?;
                stream.set_write_timeout(Some(SILENCE))?;
                Ok(Self::Unix(stream))
            }
        }
    }

    fn try_clone(&self) -> std::io::Result<Self> {
        match self {
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_they_are_shown() {
        for text in ["nbd://127.0.0.1:10809/v0", "nbd+unix:///v0?socket=/run/v0.sock"] {
            assert_eq!(NbdUri::parse(text).unwrap().to_string(), text);
        }
        let typed = NbdUri::parse("nbd://joe:secret@h:1/v0").unwrap();
        assert_eq!(typed.to_string(), "nbd://joe:***@h:1/v0");
        for bad in ["nbd+unix:///v0", "http://x/y", "nbd:/x"] {
            assert!(NbdUri::parse(bad).is_err(), "{bad}");
        }
    }
}
