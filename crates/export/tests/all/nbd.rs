//! The NBD server against a client that knows only the protocol's text, polite and hostile.
#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test fails by panic")]

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{Arc, Mutex},
    time::Duration,
};

use netraid_block::{BlockDevice, Device, DeviceInfo, Op, Pool, Request};
use netraid_engine::backings::{FileOptions, file, ram};
use netraid_export::{
    InUse, Users,
    nbd::{NbdAddress, NbdError, NbdServer},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{sync::oneshot, task::JoinHandle};

const SIZE: u64 = 64 << 20;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;
const FUA: u16 = 1;
const EPERM: u32 = 1;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;

struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(device: Device) -> Self {
        let any = NbdAddress::Tcp("127.0.0.1:0".parse().unwrap());
        let server = NbdServer::bind(&any, device, "volume", Pool::new()).await.unwrap();
        let NbdAddress::Tcp(address) = *server.address() else { panic!("a TCP address") };
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move { drop(stopped.await) };
        let task = tokio::spawn(async move { server.run(shutdown).await.unwrap() });
        Self { address, stop, task }
    }

    /// Runs `client` beside the server, then ends the server cleanly.
    async fn with(device: Device, client: impl FnOnce(SocketAddr) + Send + 'static) {
        let server = Self::start(device).await;
        let address = server.address;
        tokio::task::spawn_blocking(move || client(address)).await.unwrap();
        server.stop.send(()).unwrap();
        server.task.await.unwrap();
    }
}

fn memory() -> Device {
    ram(SIZE, 512, Pool::new()).unwrap()
}

/// Memory that notes what it is asked to do.
struct Noted(Device, Arc<Mutex<Vec<Op>>>);

impl BlockDevice for Noted {
    fn info(&self) -> DeviceInfo {
        self.0.info().clone()
    }

    fn submit(&self, request: Request) {
        self.1.lock().unwrap().push(request.op);
        self.0.submit(request);
    }
}

struct Client {
    stream: TcpStream,
    structured: bool,
    next: u64,
}

impl Client {
    /// Connected, hello exchanged; options come next.
    fn hello(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut hello = [0; 18];
        stream.read_exact(&mut hello).unwrap();
        assert_eq!(&hello[..16], b"NBDMAGICIHAVEOPT");
        stream.write_all(&3_u32.to_be_bytes()).unwrap();
        Self { stream, structured: false, next: 1 }
    }

    fn connect(address: SocketAddr, structured: bool) -> Self {
        let mut client = Self::hello(address);
        if structured {
            assert_eq!(client.option(8, &[]).0, 1);
            client.structured = true;
        }
        let (kind, info) = client.option(7, &go("volume"));
        assert_eq!((kind, u64::from_be_bytes(info[2..10].try_into().unwrap())), (1, SIZE));
        client
    }

    /// Sends an option; answers the last reply's type, and the first information.
    fn option(&mut self, option: u32, data: &[u8]) -> (u32, Vec<u8>) {
        let mut message = b"IHAVEOPT".to_vec();
        message.extend(option.to_be_bytes());
        message.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
        message.extend_from_slice(data);
        self.stream.write_all(&message).unwrap();
        let mut information = Vec::new();
        loop {
            let mut head = [0; 20];
            self.stream.read_exact(&mut head).unwrap();
            assert_eq!(head[..8], 0x0003_e889_0455_65a9_u64.to_be_bytes());
            assert_eq!(head[8..12], option.to_be_bytes());
            let kind = u32::from_be_bytes(head[12..16].try_into().unwrap());
            let len = u32::from_be_bytes(head[16..].try_into().unwrap());
            let mut data = vec![0; len as usize];
            self.stream.read_exact(&mut data).unwrap();
            if kind == 1 || kind >= 1 << 31 {
                return (kind, information);
            }
            if information.is_empty() {
                information = data;
            }
        }
    }

    fn send(&mut self, kind: u16, flags: u16, offset: u64, len: u32, data: &[u8]) -> u64 {
        let mut message = 0x2560_9513_u32.to_be_bytes().to_vec();
        message.extend(flags.to_be_bytes());
        message.extend(kind.to_be_bytes());
        message.extend(self.next.to_be_bytes());
        message.extend(offset.to_be_bytes());
        message.extend(len.to_be_bytes());
        message.extend_from_slice(data);
        self.stream.write_all(&message).unwrap();
        self.next += 1;
        self.next - 1
    }

    /// Reads a reply: the request's cookie and data, or its error number.
    fn reply(&mut self, read_len: u32) -> io::Result<(u64, Result<Vec<u8>, u32>)> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
        if head[..4] == 0x6744_6698_u32.to_be_bytes() {
            let errno = u32::from_be_bytes(head[4..8].try_into().unwrap());
            if errno != 0 {
                return Ok((cookie, Err(errno)));
            }
            let mut data = vec![0; read_len as usize];
            self.stream.read_exact(&mut data)?;
            return Ok((cookie, Ok(data)));
        }
        assert_eq!(head[..4], 0x668e_33ef_u32.to_be_bytes());
        assert_eq!(head[4..6], [0, 1], "one chunk a reply");
        let mut len = [0; 4];
        self.stream.read_exact(&mut len)?;
        let mut data = vec![0; u32::from_be_bytes(len) as usize];
        self.stream.read_exact(&mut data)?;
        match u16::from_be_bytes(head[6..8].try_into().unwrap()) {
            0 => Ok((cookie, Ok(Vec::new()))),
            1 => Ok((cookie, Ok(data.split_off(8)))),
            0x8001 => {
                let text_len = u16::from_be_bytes(data[4..6].try_into().unwrap());
                assert_eq!(data.len(), 6 + usize::from(text_len));
                Ok((cookie, Err(u32::from_be_bytes(data[..4].try_into().unwrap()))))
            }
            other => panic!("chunk of type {other:#x}"),
        }
    }

    fn call(&mut self, kind: u16, flags: u16, offset: u64, len: u32, data: &[u8]) -> Outcome {
        let cookie = self.send(kind, flags, offset, len, data);
        let (answered, result) = self.reply(if kind == READ { len } else { 0 }).unwrap();
        assert_eq!(answered, cookie);
        result
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Outcome {
        self.call(WRITE, 0, offset, u32::try_from(data.len()).unwrap(), data)
    }

    fn is_closed(&mut self) -> bool {
        // A reset is an end too: unread bytes were left behind.
        matches!(self.stream.read(&mut [0]), Ok(0) | Err(_))
    }
}

type Outcome = Result<Vec<u8>, u32>;

fn go(name: &str) -> Vec<u8> {
    let mut data = u32::try_from(name.len()).unwrap().to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend([0, 0]);
    data
}

/// Random requests of any alignment against flat bytes, within the client's own range.
fn exercise(client: &mut Client, start: u64, len: usize, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut model = vec![0; len];
    assert_eq!(client.call(WRITE_ZEROES, 0, start, u32::try_from(len).unwrap(), &[]), Ok(vec![]));
    for _ in 0..300 {
        let from = rng.random_range(0..len);
        let count = rng.random_range(0..=(len - from).min(70_000));
        let round = if rng.random_bool(0.7) { 512 } else { 1 };
        let range = from / round * round..(from + count) / round * round;
        let (at, count) = (start + range.start as u64, u32::try_from(range.len()).unwrap());
        match rng.random_range(0..5) {
            0 | 1 => {
                let data: Vec<u8> = range.clone().map(|_| rng.random()).collect();
                model[range].copy_from_slice(&data);
                let flags = if rng.random() { FUA } else { 0 };
                assert_eq!(client.call(WRITE, flags, at, count, &data), Ok(vec![]));
            }
            2 => {
                model[range].fill(0);
                assert_eq!(client.call(WRITE_ZEROES, 0, at, count, &[]), Ok(vec![]));
            }
            3 => assert_eq!(client.call(FLUSH, 0, 0, 0, &[]), Ok(vec![])),
            _ => assert!(client.call(READ, 0, at, count, &[]).unwrap() == model[range]),
        }
    }
    let all = client.call(READ, 0, start, u32::try_from(len).unwrap(), &[]).unwrap();
    assert!(all == model);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_clients_read_what_they_wrote() {
    Server::with(memory(), |address| {
        let threads: Vec<_> = (0..4_u64)
            .map(|client| {
                std::thread::spawn(move || {
                    // Neighbours share blocks: their ranges begin and end within one.
                    let mut connection = Client::connect(address, client % 2 == 0);
                    exercise(&mut connection, client * 3_000_100, 3_000_100, client);
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    })
    .await;
}

#[tokio::test]
async fn requests_up_to_the_limit_are_split_for_the_device() {
    Server::with(memory(), |address| {
        let mut client = Client::connect(address, true);
        let data: Vec<u8> = (0..32_usize << 20).map(|at| (at / 4096) as u8).collect();
        assert_eq!(client.write(5 << 20, &data), Ok(vec![]));
        assert!(client.call(READ, 0, 5 << 20, 32 << 20, &[]).unwrap() == data);
        assert_eq!(client.call(TRIM, 0, 5 << 20, 1 << 20, &[]), Ok(vec![]));
        let start = client.call(READ, 0, 5 << 20, 2 << 20, &[]).unwrap();
        assert!(
            start[..1 << 20].iter().all(|byte| *byte == 0)
                && start[1 << 20..] == data[1 << 20..2 << 20]
        );
    })
    .await;
}

#[tokio::test]
async fn wrong_requests_are_refused_and_the_connection_goes_on() {
    Server::with(memory(), |address| {
        for structured in [false, true] {
            let mut client = Client::connect(address, structured);
            assert_eq!(client.write(0, &[9; 512]), Ok(vec![]));
            assert_eq!(client.call(READ, 0, SIZE - 100, 200, &[]), Err(EINVAL));
            assert_eq!(client.call(READ, 0, u64::MAX, 200, &[]), Err(EINVAL));
            assert_eq!(client.write(SIZE - 100, &[1; 200]), Err(ENOSPC));
            assert_eq!(client.call(WRITE_ZEROES, 0, SIZE, 1, &[]), Err(ENOSPC));
            assert_eq!(client.call(READ, 0, 0, u32::MAX, &[]), Err(EINVAL));
            assert_eq!(client.call(77, 0, 0, 0, &[]), Err(EINVAL));
            assert_eq!(client.call(READ, 1 << 9, 0, 512, &[]), Err(EINVAL));
            // A refused write's payload is not taken for requests.
            let payload = vec![0xee; 3 << 20];
            assert_eq!(client.call(WRITE, 1 << 9, 0, 3 << 20, &payload), Err(EINVAL));
            assert_eq!(client.call(READ, 0, 0, 512, &[]), Ok(vec![9; 512]));
            assert_eq!(client.call(READ, 0, 0, 0, &[]), Ok(vec![]));
            assert_eq!(client.write(0, &[]), Ok(vec![]));
        }
    })
    .await;
}

#[tokio::test]
async fn a_trim_that_is_to_be_stable_is_flushed_before_its_reply() {
    let ops = Arc::new(Mutex::new(Vec::new()));
    let device = Device::new(Arc::new(Noted(memory(), ops.clone())));
    Server::with(device, move |address| {
        let mut client = Client::connect(address, false);
        assert_eq!(client.call(TRIM, 0, 0, 4096, &[]), Ok(vec![]));
        assert_eq!(*ops.lock().unwrap(), [Op::Discard]);
        assert_eq!(client.call(TRIM, FUA, 0, 4096, &[]), Ok(vec![]));
        assert_eq!(*ops.lock().unwrap(), [Op::Discard, Op::Discard, Op::Flush]);
        assert_eq!(client.call(TRIM, FUA, SIZE, 4096, &[]), Err(EINVAL));
        assert_eq!(ops.lock().unwrap().len(), 3, "a trim that failed needs no flush");
    })
    .await;
}

#[tokio::test]
async fn a_read_only_device_refuses_every_change() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    let options = FileOptions { size: Some(SIZE), ..FileOptions::default() };
    drop(file(&path, &options, Pool::new()).unwrap());
    let options = FileOptions { read_only: true, ..FileOptions::default() };
    Server::with(file(&path, &options, Pool::new()).unwrap(), |address| {
        let mut client = Client::connect(address, false);
        assert_eq!(client.write(0, &[1; 70_000]), Err(EPERM));
        assert_eq!(client.write(3, &[1; 5]), Err(EPERM));
        assert_eq!(client.call(TRIM, 0, 0, 4096, &[]), Err(EPERM));
        assert_eq!(client.call(WRITE_ZEROES, 0, 0, 4096, &[]), Err(EPERM));
        assert_eq!(client.call(READ, 0, 0, 4096, &[]), Ok(vec![0; 4096]));
    })
    .await;
}

#[tokio::test]
async fn hostile_clients_are_sent_away_and_others_served() {
    Server::with(memory(), |address| {
        let mut good = Client::connect(address, true);

        let mut bad_magic = Client::connect(address, false);
        bad_magic.stream.write_all(&[0x5a; 28]).unwrap();
        assert!(bad_magic.is_closed());

        let mut huge_write = Client::connect(address, false);
        huge_write.send(WRITE, 0, 0, u32::MAX, &[1; 100]);
        assert!(huge_write.is_closed());

        let mut huge_option = Client::hello(address);
        huge_option.stream.write_all(b"IHAVEOPT").unwrap();
        huge_option.stream.write_all(&[0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff]).unwrap();
        let mut reply = [0; 20];
        huge_option.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[12..16], 0x8000_0009_u32.to_be_bytes());

        let mut bad_option = Client::hello(address);
        bad_option.stream.write_all(&[1; 16]).unwrap();
        assert!(bad_option.is_closed());

        let mut bad_flags = TcpStream::connect(address).unwrap();
        bad_flags.read_exact(&mut [0; 18]).unwrap();
        bad_flags.write_all(&u32::MAX.to_be_bytes()).unwrap();
        assert!(matches!(bad_flags.read(&mut [0]), Ok(0) | Err(_)));

        let mut many_options = Client::hello(address);
        let listed = (0..128).all(|_| many_options.option(3, &[]).0 == 1);
        assert!(listed && many_options.is_closed());

        let mut cut = Client::connect(address, false);
        cut.send(WRITE, 0, 0, 8192, &[7; 5000]);
        drop(cut);
        let mut unread = Client::connect(address, false);
        unread.send(READ, 0, 0, 1 << 20, &[]);
        drop(unread);

        assert_eq!(good.call(READ, 0, 0, 8192, &[]), Ok(vec![0; 8192]), "half a write is none");
    })
    .await;
}

#[tokio::test]
async fn negotiation_answers_what_was_asked() {
    Server::with(memory(), |address| {
        let mut client = Client::hello(address);
        assert_eq!(client.option(7, &go("other")).0, 0x8000_0006, "unknown export");
        assert_eq!(client.option(7, &[0, 0, 0, 9, 1]).0, 0x8000_0003, "lengths disagree");
        assert_eq!(client.option(5, &[]).0, 0x8000_0001, "no TLS");
        assert_eq!(client.option(10, &[0; 8]).0, 0x8000_0001, "no contexts");
        let (kind, listed) = client.option(3, &[]);
        assert_eq!((kind, &listed[4..]), (1, &b"volume"[..]));
        let (kind, info) = client.option(6, &go(""));
        assert_eq!((kind, info.len()), (1, 12), "the default export");
        assert_eq!(client.option(2, &[]).0, 1);
        assert!(client.is_closed());

        let mut old = Client::hello(address);
        old.stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\x06volume").unwrap();
        let mut answer = [0; 10];
        old.stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..8], SIZE.to_be_bytes());
        assert_eq!(old.write(0, &[3; 512]), Ok(vec![]));
        old.send(DISCONNECT, 0, 0, 0, &[]);
        assert!(old.is_closed());
    })
    .await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_not_read_from() {
    Server::with(memory(), |address| {
        const COUNT: u64 = 600;
        let mut lazy = Client::connect(address, false);
        let mut writer = lazy.stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            for cookie in 0..COUNT {
                let mut head = 0x2560_9513_u32.to_be_bytes().to_vec();
                head.extend([0, 0, 0, 0]);
                head.extend(cookie.to_be_bytes());
                head.extend((cookie % 60 * (1 << 20)).to_be_bytes());
                head.extend((1_u32 << 20).to_be_bytes());
                writer.write_all(&head).unwrap();
            }
        });
        let mut other = Client::connect(address, true);
        assert_eq!(other.write(0, &[1; 4096]), Ok(vec![]), "others are served meanwhile");
        let mut seen = vec![false; 600];
        for _ in 0..COUNT {
            let (cookie, result) = lazy.reply(1 << 20).unwrap();
            assert!(result.is_ok() && !std::mem::replace(&mut seen[cookie as usize], true));
        }
        sender.join().unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_server_that_stops_finishes_what_it_has_begun() {
    let server = Server::start(memory()).await;
    let address = server.address;
    let mut client = tokio::task::spawn_blocking(move || {
        let mut client = Client::connect(address, false);
        // Half a request is not begun.
        let mut idle = Client::connect(address, false);
        idle.send(WRITE, 0, 0, 4096, &[1; 10]);
        assert_eq!(client.write(0, &[5; 4096]), Ok(vec![]));
        (client, idle)
    })
    .await
    .unwrap();
    server.stop.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(5), server.task).await.unwrap().unwrap();
    assert!(client.0.is_closed() && client.1.is_closed());
    assert!(TcpStream::connect(address).is_err());
}

#[tokio::test]
async fn whoever_has_negotiated_uses_the_export() {
    let any = NbdAddress::Tcp("127.0.0.1:0".parse().unwrap());
    let users = Users::default();
    let server = NbdServer::bind(&any, memory(), "volume", Pool::new()).await.unwrap();
    let NbdAddress::Tcp(address) = *server.address() else { panic!("a TCP address") };
    let (stop, stopped) = oneshot::channel::<()>();
    let server = server.counted_by(users.clone());
    let task = tokio::spawn(server.run(async move { drop(stopped.await) }));
    let connect = move || (Client::hello(address), Client::connect(address, true));
    let (_half, mut client) = tokio::task::spawn_blocking(connect).await.unwrap();
    assert_eq!(users.let_end(false), Err(InUse { nbd_clients: 1, ..InUse::default() }));
    client.send(DISCONNECT, 0, 0, 0, &[]);
    tokio::time::timeout(Duration::from_secs(5), users.nobody()).await.unwrap();
    assert_eq!(users.let_end(false), Ok(InUse::default()));
    let late = move || {
        let mut late = Client::hello(address);
        (late.option(7, &go("")).0, late.is_closed())
    };
    assert_eq!(tokio::task::spawn_blocking(late).await.unwrap(), (1, true), "nobody begins to");
    stop.send(()).unwrap();
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn names_that_no_client_can_be_told_are_refused() {
    let any = NbdAddress::Tcp("127.0.0.1:0".parse().unwrap());
    for name in ["a\0b", "a\nb", &"x".repeat(4097)] {
        let error = NbdServer::bind(&any, memory(), name, Pool::new()).await.err().unwrap();
        assert!(matches!(error, NbdError::Name(_)), "{error}");
    }
    let server = NbdServer::bind(&any, memory(), "..", Pool::new()).await.unwrap();
    assert!(server.uri().ends_with('/'), "the default export: {}", server.uri());
}

#[tokio::test]
async fn a_unix_socket_is_cleared_before_and_after() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "left behind by a server that was killed");
    let address = NbdAddress::Unix(path.clone());
    let server = NbdServer::bind(&address, memory(), "volume", Pool::new()).await.unwrap();
    let taken = NbdServer::bind(&address, memory(), "volume", Pool::new()).await.err().unwrap();
    assert!(taken.to_string().contains("cannot listen on unix:"), "{taken}");
    assert!(path.exists(), "one that answers stays");
    server.run(std::future::ready(())).await.unwrap();
    assert!(!path.exists());
}
