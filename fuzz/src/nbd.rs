//! An NBD server of this process, and a client that sends what it likes over a Unix socket, then
//! closes its side: handshake, options, requests, payloads. The server answers or closes, and
//! serves the next client.

use std::cell::RefCell;

use netraid_block::Pool;
use netraid_engine::backings;
use netraid_export::nbd::{NbdAddress, NbdServer};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    runtime::Runtime,
    task::LocalSet,
};

const CAPACITY: u64 = 64 << 10;
const HELLO: [u8; 4] = [0, 0, 0, 3];
const OPTION_MAGIC: &[u8] = b"IHAVEOPT";

struct World {
    runtime: Runtime,
    local: LocalSet,
    path: std::path::PathBuf,
    _directory: tempfile::TempDir,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

/// Takes an input; panics on a finding.
pub fn run(input: &[u8]) {
    WORLD.with_borrow_mut(|world| world.converse(input));
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("nbd");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let local = LocalSet::new();
        let address = NbdAddress::Unix(path.clone());
        let server = local.block_on(&runtime, async {
            let device = backings::ram(CAPACITY, 512, Pool::new()).expect("a device");
            NbdServer::bind(&address, device, "vol", Pool::new()).await.expect("a socket")
        });
        local.spawn_local(server.run(std::future::pending()));
        Self { runtime, local, path, _directory: directory }
    }

    /// A mode with bit 0 goes through the handshake as it should be and spends the input on
    /// requests; bit 1 asks for structured replies.
    fn converse(&mut self, input: &[u8]) {
        let Some((mode, input)) = input.split_first() else { return };
        let mut bytes = HELLO.to_vec();
        if mode & 1 != 0 {
            if mode & 2 != 0 {
                option(&mut bytes, 8, &[]);
            }
            option(&mut bytes, 7, &[0, 0, 0, 0, 0, 0]);
            requests(&mut bytes, input);
        } else if mode & 4 != 0 {
            bytes = input.to_vec();
        } else {
            // Options, one after the other: number, length, and that much of the input.
            let mut rest = input;
            while let [number, len, tail @ ..] = rest {
                let (data, tail) = tail.split_at(usize::from(*len).min(tail.len()));
                option(&mut bytes, u32::from(*number % 12), data);
                rest = tail;
            }
        }
        let path = self.path.clone();
        let answered = self.local.block_on(&self.runtime, async {
            let stream = UnixStream::connect(&path).await.expect("the server listens");
            let (mut from, mut to) = stream.into_split();
            let write = async {
                // The server may have closed already.
                let _ = to.write_all(&bytes).await;
                let _ = to.shutdown().await;
            };
            let read = async {
                let (mut sink, mut total) = ([0; 4096], 0);
                while let Ok(len @ 1..) = from.read(&mut sink).await {
                    total += len;
                }
                total
            };
            tokio::join!(write, read).1
        });
        assert!(answered >= 18, "the server does not greet a client: it has ended");
    }
}

fn option(out: &mut Vec<u8>, number: u32, data: &[u8]) {
    out.extend_from_slice(OPTION_MAGIC);
    out.extend(number.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

/// Requests of eight bytes each: command, flags, offset in bytes or blocks, length.
fn requests(out: &mut Vec<u8>, input: &[u8]) {
    for chunk in input.as_chunks::<8>().0 {
        let [command, flags, high, low, unit, len_high, len_low, broken] = *chunk;
        let mut offset = u64::from(u16::from_be_bytes([high, low]));
        offset <<= unit % 64;
        let mut len = u32::from(u16::from_be_bytes([len_high, len_low])) % 5000;
        if unit & 0x40 != 0 {
            len <<= 18;
        }
        let magic = if broken == 255 { 0 } else { 0x2560_9513_u32 };
        out.extend(magic.to_be_bytes());
        out.extend(u16::from(flags).to_be_bytes());
        out.extend(u16::from(command % 8).to_be_bytes());
        out.extend([*chunk].concat());
        out.extend(offset.to_be_bytes());
        out.extend(len.to_be_bytes());
        if command % 8 == 1 && broken < 250 {
            out.resize(out.len() + len.min(1 << 16) as usize, 0x5a);
        }
    }
}
