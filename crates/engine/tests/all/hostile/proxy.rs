//! A target that goes wrong at one byte: a real one behind a relay that closes, falls silent, or
//! changes what passes, the first time that so many bytes have gone towards the initiator.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicU16, Ordering},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// What happens at the byte.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// The connection is closed.
    Close,
    /// Nothing more comes, and the connection stays.
    Stall,
    /// These bits of it are changed; all else passes.
    Flip(u8),
}

/// The relay; ends when dropped.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    /// Bytes that have gone towards initiators.
    pub(crate) passed: watch::Receiver<usize>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Goes wrong at byte `at` of all that passes, once.
    pub(crate) async fn start(target: SocketAddr, at: usize, fault: Fault) -> Self {
        let listener = TcpListener::bind((own_address(), 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (passed_out, passed) = watch::channel(0);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut relays = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                relays.spawn(relay(client, target, at, fault, passed_out.clone()));
            }
        });
        Self { address, passed, _tasks: tasks }
    }
}

/// A loopback address that few others have: thousands of relays, one after the other, would leave no
/// port of one address that may be listened at.
fn own_address() -> Ipv4Addr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let [high, low] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    Ipv4Addr::new(127, 1, high, low)
}

async fn relay(
    client: TcpStream,
    target: SocketAddr,
    at: usize,
    fault: Fault,
    passed: watch::Sender<usize>,
) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let forth = tokio::io::copy(&mut from_client, &mut to_server);
    let back = async {
        let mut bytes = [0; 4096];
        while let Ok(len @ 1..) = from_server.read(&mut bytes).await {
            let begin = *passed.borrow();
            passed.send_replace(begin + len);
            let part = &mut bytes[..len];
            if let Some(place) = at.checked_sub(begin).filter(|place| *place < len) {
                match fault {
                    Fault::Flip(bits) => part[place] ^= bits,
                    Fault::Close => {
                        let _ = to_client.write_all(&part[..place]).await;
                        return;
                    }
                    Fault::Stall => {
                        let _ = to_client.write_all(&part[..place]).await;
                        std::future::pending::<()>().await;
                    }
                }
            }
            if to_client.write_all(part).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        _ = forth => {}
        () = back => {}
    }
}
