//! Members that are lost while nobody asks for anything.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::*;

/// What the network between the array and a member does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    Open,
    /// Nothing passes, and nothing is closed.
    Silent,
    /// Connections are closed, and refused.
    Shut,
}

/// A member behind a path that changes.
struct Behind {
    member: Member,
    path: watch::Sender<Path>,
    _tasks: JoinSet<()>,
}

impl Behind {
    async fn new() -> Self {
        let mut member = Member::new();
        let uri = &mut member.config.uri;
        let target = SocketAddr::new(uri.host.parse().unwrap(), uri.port);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        uri.port = listener.local_addr().unwrap().port();
        let path = watch::Sender::new(Path::Open);
        let mut tasks = JoinSet::new();
        tasks.spawn(pass_connections(listener, target, path.subscribe()));
        Self { member, path, _tasks: tasks }
    }

    /// Closes the connections, and takes new ones at once.
    async fn cut(&self) {
        self.path.send_replace(Path::Shut);
        sleep(Duration::from_millis(20)).await;
        self.path.send_replace(Path::Open);
    }
}

async fn pass_connections(
    mut listener: TcpListener,
    target: SocketAddr,
    mut path: watch::Receiver<Path>,
) {
    let address = listener.local_addr().unwrap();
    loop {
        let mut relays = JoinSet::new();
        loop {
            tokio::select! {
                client = listener.accept() => {
                    relays.spawn(relay(client.unwrap().0, target, path.clone()));
                }
                () = until(&mut path, |path| path == Path::Shut) => break,
            }
        }
        drop((listener, relays));
        until(&mut path, |path| path != Path::Shut).await;
        listener = TcpListener::bind(address).await.unwrap();
    }
}

async fn relay(client: TcpStream, target: SocketAddr, mut path: watch::Receiver<Path>) {
    until(&mut path, |path| path == Path::Open).await;
    let Ok(server) = TcpStream::connect(target).await else { return };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = pass(from_client, to_server, path.clone()) => {}
        () = pass(from_server, to_client, path) => {}
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut path: watch::Receiver<Path>) {
    let mut bytes = vec![0; 64 << 10];
    loop {
        until(&mut path, |path| path == Path::Open).await;
        let len = tokio::select! {
            biased;
            () = until(&mut path, |path| path != Path::Open) => continue,
            len = from.read(&mut bytes) => len,
        };
        match len {
            Ok(len @ 1..) if to.write_all(&bytes[..len]).await.is_ok() => {}
            Ok(_) | Err(_) => return,
        }
    }
}

async fn until(path: &mut watch::Receiver<Path>, wanted: impl Fn(Path) -> bool) {
    let _ = path.wait_for(|path| wanted(*path)).await;
}

async fn behind(count: usize) -> (Vec<Behind>, Vec<MemberConfig>) {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(Behind::new().await);
    }
    let configs = all.iter().map(|one| one.member.config.clone()).collect();
    (all, configs)
}

fn logged(level: Level) -> CreateOptions {
    CreateOptions { log: Log::On(Some(1 << 20)), ..options(level) }
}

/// The array's state and those of its members, as they are shown.
async fn shown(array: &Array) -> (String, Vec<String>) {
    let status = array.handle().status().await.unwrap();
    (status.state, status.members.into_iter().map(|member| member.state).collect())
}

async fn until_shown(array: &Array, limit: Duration, wanted: (&str, &[&str])) {
    let found = async {
        loop {
            let (state, members) = shown(array).await;
            if state == wanted.0 && members == wanted.1 {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    if timeout(limit, found).await.is_err() {
        panic!("{wanted:?} within {limit:?}; it is {:?}", shown(array).await);
    }
}

/// Until the array itself asks members for nothing: what is in the log comes home in a few rounds, one a second.
async fn until_idle(array: &Array) {
    let idle = async {
        let (mut before, mut quiet) = (None, 0);
        while quiet < 3 {
            let members = array.handle().status().await.unwrap().members;
            let asked: u64 = members.iter().map(|member| member.reads + member.writes).sum();
            quiet = if before.replace(asked) == Some(asked) { quiet + 1 } else { 0 };
            sleep(Duration::from_secs(1)).await;
        }
    };
    timeout(Duration::from_secs(30), idle).await.expect("it asks for nothing");
}

/// Members that were set aside since this was asked last.
fn set_aside(array: &mut Array) -> Vec<(u8, String)> {
    let mut all = Vec::new();
    while let Some(Some(event)) = futures_util::FutureExt::now_or_never(array.event()) {
        if let Event::Member { member, state: "faulty", reason, .. } = event {
            all.push((member, reason));
        }
    }
    all
}

/// Its process is killed, or stopped in good order, or its host is cut off.
#[derive(Debug, Clone, Copy)]
enum Loss {
    Killed,
    Stopped,
    CutOff,
}

async fn lose_one(loss: Loss) {
    let (mut all, mut configs) = behind(3).await;
    // The usual deadline of requests.
    configs.iter_mut().for_each(|config| config.request_timeout = Duration::from_secs(5));
    create(logged(Level::Raid5), configs.clone(), Pool::new()).await.unwrap();
    let mut array = open(&configs).await;
    write(array.device(), 1).await;
    completions::flush(array.device()).await.unwrap();
    until_idle(&array).await;
    assert_eq!(set_aside(&mut array), []);
    match loss {
        Loss::Killed => all[1].member.kill().await,
        Loss::Stopped => {
            drop(all[1].member.stop.take());
            (&mut all[1].member.task).await.unwrap();
        }
        Loss::CutOff => drop(all[1].path.send_replace(Path::Silent)),
    }
    let first = async {
        while shown(&array).await.0 != "degraded" {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(5), first).await.expect("shown within 5 s");
    let wanted = ["in_sync", "faulty", "in_sync"];
    until_shown(&array, Duration::from_secs(10), ("degraded", &wanted)).await;
    let gone = set_aside(&mut array);
    assert!(matches!(&gone[..], [(1, reason)] if reason.starts_with("no session for")), "{gone:?}");
    let status = array.handle().status().await.unwrap();
    let told = status.members[1].last_error.clone().unwrap_or_default();
    assert!(told.contains("no session for"), "{told}");
    verify(array.device(), 1).await;
    array.close().await.unwrap();
}

/// An idle array took such a member for in sync, until the next one was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_member_that_is_lost_is_set_aside_although_nobody_asks_for_anything() {
    let all = [Loss::Killed, Loss::Stopped, Loss::CutOff].map(|loss| tokio::spawn(lose_one(loss)));
    for one in all {
        one.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_member_that_was_set_aside_unasked_comes_back_by_itself() {
    let (all, configs) = behind(3).await;
    create(logged(Level::Raid5), configs.clone(), Pool::new()).await.unwrap();
    let array = open(&configs).await;
    write(array.device(), 1).await;
    all[2].path.send_replace(Path::Shut);
    let wanted = ["in_sync", "in_sync", "faulty"];
    until_shown(&array, Duration::from_secs(10), ("degraded", &wanted)).await;
    write(array.device(), 2).await;
    all[2].path.send_replace(Path::Open);
    until_shown(&array, Duration::from_secs(20), ("optimal", &["in_sync"; 3])).await;
    all[0].path.send_replace(Path::Shut);
    verify(array.device(), 2).await;
    array.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn sessions_that_are_made_again_at_once_keep_the_member() {
    let (all, configs) = behind(3).await;
    create(logged(Level::Raid5), configs.clone(), Pool::new()).await.unwrap();
    let mut array = open(&configs).await;
    for _ in 0..8 {
        all[0].cut().await;
        sleep(Duration::from_millis(400)).await;
    }
    until_shown(&array, Duration::from_secs(5), ("optimal", &["in_sync"; 3])).await;
    assert_eq!(set_aside(&mut array), []);
    array.close().await.unwrap();
}

/// A switch that restarts: each session is lost, and the array, which has nothing to do, must not write labels
/// to members that do not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn an_idle_array_outlives_that_all_members_are_away_for_a_while() {
    for path in [Path::Silent, Path::Shut] {
        let (all, configs) = behind(3).await;
        create(logged(Level::Raid5), configs.clone(), Pool::new()).await.unwrap();
        let mut array = open(&configs).await;
        write(array.device(), 1).await;
        completions::flush(array.device()).await.unwrap();
        until_idle(&array).await;
        for one in &all {
            one.path.send_replace(path);
            sleep(Duration::from_millis(150)).await;
        }
        until_shown(&array, Duration::from_secs(5), ("degraded", &["suspect"; 3])).await;
        sleep(Duration::from_secs(4)).await;
        assert_eq!(shown(&array).await, ("degraded".into(), vec!["suspect".to_owned(); 3]));
        for one in &all {
            one.path.send_replace(Path::Open);
        }
        until_shown(&array, Duration::from_secs(10), ("optimal", &["in_sync"; 3])).await;
        assert_eq!(set_aside(&mut array), [], "{path:?}");
        verify(array.device(), 1).await;
        array.close().await.unwrap();
    }
}

/// What such an array lost would have to be rebuilt from the beginning, by command.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn an_array_without_a_log_shows_a_member_that_is_away_and_keeps_it() {
    let (all, configs) = behind(3).await;
    create(options(Level::Raid5), configs.clone(), Pool::new()).await.unwrap();
    let mut array = open(&configs).await;
    write(array.device(), 1).await;
    all[1].path.send_replace(Path::Shut);
    let wanted = ["in_sync", "suspect", "in_sync"];
    until_shown(&array, Duration::from_secs(5), ("degraded", &wanted)).await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(shown(&array).await.1, wanted);
    all[1].path.send_replace(Path::Open);
    until_shown(&array, Duration::from_secs(5), ("optimal", &["in_sync"; 3])).await;
    assert_eq!(set_aside(&mut array), []);
    verify(array.device(), 1).await;
    array.close().await.unwrap();
}
