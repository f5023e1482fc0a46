//! Many clients of one server, in a time that passes when nobody has anything to do.

use std::path::Path;

use netraid_block::{BlockDevice, Buf, Device, DeviceInfo, Op, Request, SgList};
use netraid_engine::backings::ram;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use super::{
    budget::ALL_BYTES_MAX,
    places::{CLIENTS_MAX, Look},
    *,
};

const LONGEST: u32 = PAYLOAD_LEN_MAX;
const REQUEST_MAGIC: u32 = 0x2560_9513;

struct Server {
    path: PathBuf,
    _dir: tempfile::TempDir,
    _stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(device: Device) -> Self {
        Self::start_within(device, u64::MAX).await
    }

    async fn start_within(device: Device, descriptors: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let address = NbdAddress::Unix(path.clone());
        let server = NbdServer::bind(&address, device, "volume", Pool::new()).await.unwrap();
        let server = server.within_descriptors(descriptors);
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            server.run(async { drop(stopped.await) }).await.unwrap();
        });
        Self { path, _dir: dir, _stop: stop, task }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Client(UnixStream);

impl Client {
    /// Connected; the server has not said anything yet.
    async fn silent(path: &Path) -> Self {
        Self(UnixStream::connect(path).await.unwrap())
    }

    /// Agrees with the server, which waits for requests then.
    async fn negotiate(&mut self) -> io::Result<()> {
        self.0.read_exact(&mut [0; 18]).await?;
        self.0.write_all(&3_u32.to_be_bytes()).await?;
        self.0.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").await?;
        self.0.read_exact(&mut [0; 10]).await.map(drop)
    }

    async fn connect(path: &Path) -> Self {
        let mut client = Self::silent(path).await;
        client.negotiate().await.unwrap();
        client
    }

    async fn send(&mut self, kind: u16, len: u32, data: &[u8]) {
        let mut message = REQUEST_MAGIC.to_be_bytes().to_vec();
        message.extend([0, 0]);
        message.extend(kind.to_be_bytes());
        message.extend([0; 16]);
        message.extend(len.to_be_bytes());
        message.extend_from_slice(data);
        self.0.write_all(&message).await.unwrap();
    }

    async fn read(&mut self, len: u32) {
        self.send(0, len, &[]).await;
        self.answer(len).await.unwrap();
    }

    async fn write(&mut self) {
        self.send(1, 512, &[1; 512]).await;
        self.answer(0).await.unwrap();
    }

    async fn answer(&mut self, len: u32) -> io::Result<()> {
        let mut answer = vec![0; 16 + len as usize];
        self.0.read_exact(&mut answer).await.map(drop)
    }

    /// Whether the server has sent it away; takes all that it had sent before.
    async fn is_gone(&mut self) -> bool {
        let mut sink = vec![0; 1 << 20];
        loop {
            match timeout(Duration::from_millis(1), self.0.read(&mut sink)).await {
                Ok(Ok(0) | Err(_)) => return true,
                Ok(Ok(_)) => {}
                Err(_) => return false,
            }
        }
    }
}

fn memory() -> Device {
    ram(1 << 20, 512, Pool::new()).unwrap()
}

/// All places are taken by clients that have done `first`; then another one comes. After how many
/// seconds it is served, and who had to give way.
async fn comes_late(first: impl AsyncFn(&mut Client), patience: u64) -> Option<(u64, Vec<usize>)> {
    let server = Server::start(memory()).await;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS_MAX {
        let mut client = Client::silent(&server.path).await;
        first(&mut client).await;
        clients.push(client);
    }
    let from = Instant::now();
    let mut late = Client::silent(&server.path).await;
    let served = timeout(Duration::from_secs(patience), async {
        late.negotiate().await.unwrap();
        late.read(4096).await;
    });
    served.await.ok()?;
    let after = from.elapsed().as_secs();
    let mut gone = Vec::new();
    for (at, client) in clients.iter_mut().enumerate() {
        if client.is_gone().await {
            gone.push(at);
        }
    }
    Some((after, gone))
}

#[tokio::test(start_paused = true)]
async fn clients_that_do_not_negotiate_give_way_at_once() {
    let end = comes_late(async |_| {}, 60).await;
    let (after, gone) = end.expect("it is served");
    assert!(after <= 2 && gone.contains(&0), "after {after} s, {gone:?}");
}

#[tokio::test(start_paused = true)]
async fn clients_that_never_ask_for_anything_give_way_after_a_time() {
    let end = comes_late(async |client| client.negotiate().await.unwrap(), 60).await;
    let (after, gone) = end.expect("it is served");
    assert!((9..=12).contains(&after), "after {after} s");
    assert_eq!(gone, [0], "the one that has been silent for longest, and nobody else");
}

#[tokio::test(start_paused = true)]
async fn clients_that_have_only_read_give_way_after_a_longer_time() {
    let reads = async |client: &mut Client| {
        client.negotiate().await.unwrap();
        client.read(4096).await;
    };
    assert_eq!(comes_late(reads, 50).await, None);
    let (after, gone) = comes_late(reads, 120).await.expect("it is served");
    assert!((59..=63).contains(&after) && gone.len() == 1, "after {after} s, {gone:?}");
}

#[tokio::test(start_paused = true)]
async fn clients_that_have_written_keep_their_places_however_idle() {
    let writes = async |client: &mut Client| {
        client.negotiate().await.unwrap();
        client.write().await;
    };
    assert_eq!(comes_late(writes, 4_000).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_gets_the_place_of_one_that_leaves() {
    let server = Server::start(memory()).await;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS_MAX {
        let mut client = Client::connect(&server.path).await;
        client.write().await;
        clients.push(client);
    }
    let mut late = Client::silent(&server.path).await;
    assert!(timeout(Duration::from_secs(600), late.negotiate()).await.is_err());
    drop(clients.pop());
    // Half of the negotiation may have been done: it is another one that is served.
    let mut later = Client::silent(&server.path).await;
    drop(late);
    timeout(Duration::from_secs(60), later.negotiate()).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn clients_have_half_of_the_descriptors_and_silent_ones_keep_nobody_out() {
    let server = Server::start_within(memory(), 8).await;
    let mut users = Vec::new();
    for _ in 0..3 {
        let mut client = Client::connect(&server.path).await;
        client.write().await;
        users.push(client);
    }
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.push(Client::silent(&server.path).await);
    }
    // Each of them has the last place for a second.
    let mut late = Client::silent(&server.path).await;
    timeout(Duration::from_secs(15), late.negotiate()).await.unwrap().unwrap();
    late.write().await;
    for client in &mut users {
        client.write().await;
    }
    let mut one_more = Client::silent(&server.path).await;
    assert!(timeout(Duration::from_secs(600), one_more.negotiate()).await.is_err());
    drop(users.pop());
    timeout(Duration::from_secs(1), one_more.negotiate()).await.unwrap().unwrap();
}

/// Answers reads with one and the same buffer, and says how long they were.
struct Same(DeviceInfo, Buf, mpsc::UnboundedSender<u64>);

impl BlockDevice for Same {
    fn info(&self) -> DeviceInfo {
        self.0.clone()
    }

    fn submit(&self, request: Request) {
        let mut data = SgList::new();
        if request.op == Op::Read {
            // Nobody counts any more.
            let _ = self.2.send(request.len);
            let mut left = usize::try_from(request.len).unwrap();
            while left > 0 {
                let len = left.min(self.1.len());
                data.push(self.1.slice(0..len));
                left -= len;
            }
        }
        request.completion.finish(Ok(data));
    }
}

#[tokio::test(start_paused = true)]
async fn replies_that_nobody_reads_have_a_bound_and_others_are_served() {
    const CLIENTS: usize = 30;
    let (sender, mut lens) = mpsc::unbounded_channel();
    let info = ram(64 << 20, 512, Pool::new()).unwrap().info().clone();
    let buf = Pool::new().get(1 << 20).freeze();
    let server = Server::start(Device::new(Arc::new(Same(info, buf, sender)))).await;
    let mut modest = Client::connect(&server.path).await;
    modest.read(1 << 20).await;
    let mut lazy = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = Client::connect(&server.path).await;
        for _ in 0..8 {
            client.send(0, LONGEST, &[]).await;
        }
        lazy.push(client);
    }
    let from = Instant::now();
    modest.read(4096).await;
    modest.read(LONGEST).await;
    assert!(from.elapsed() < Duration::from_secs(1), "{:?}", from.elapsed());
    let taken: u64 = std::iter::from_fn(|| lens.try_recv().ok()).sum();
    let own = 4096 + u64::from(LONGEST) + (1 << 20);
    assert!(taken - own <= ALL_BYTES_MAX, "{taken} bytes are read");
    // Of whom nothing is known, the longest are served when those who keep the memory have given way.
    let mut new = Client::connect(&server.path).await;
    new.read(4096).await;
    assert!(from.elapsed() < Duration::from_secs(1), "{:?}", from.elapsed());
    new.read(LONGEST).await;
    // Ten seconds for each three to six of them.
    assert!(from.elapsed() < Duration::from_secs(250), "{:?}", from.elapsed());
    assert!(lazy[0].is_gone().await, "the first has given way");
}

/// A client that did a little for an hour, waited for now and then, is not cut off as it begins to write much.
#[tokio::test(start_paused = true)]
async fn a_client_is_looked_at_also_while_nobody_needs_anything() {
    const KEEPS: u64 = 32 << 20;
    let mut clients = Clients::new(CLIENTS_MAX);
    let meter = Meter::default();
    let task = clients.tasks.spawn(std::future::pending());
    let id = task.id();
    clients.places.handle_begin(id, clients.started.elapsed());
    clients.known.insert(id, (meter.clone(), task));
    let mut look = async |doing, moved, keeps, seconds| {
        sleep(Duration::from_secs(seconds)).await;
        meter.tell(Look { doing, moved, keeps });
        clients.make_room(false);
        let now = clients.started.elapsed();
        clients.places.gives_way(Need::Memory, now).map(|(_, doing)| doing)
    };
    assert_eq!(look(Doing::WaitsForClient, 0, 4096, 0).await, None);
    for second in 1..3600 {
        assert_eq!(look(Doing::IdleWriter, second, 0, 1).await, None);
    }
    assert_eq!(look(Doing::WaitsForClient, 4000, KEEPS, 1).await, None);
    assert_eq!(look(Doing::WaitsForClient, 4000, KEEPS, 9).await, None);
    assert_eq!(look(Doing::WaitsForClient, 4000, KEEPS, 1).await, Some(Doing::WaitsForClient));
}
