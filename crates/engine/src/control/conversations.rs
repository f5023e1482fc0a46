//! The conversations of a control socket: how many there are at a time, and how long each may
//! keep its place without asking for anything.
//!
//! Invariant: a request that is being carried out is never cut off by another client.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use netraid_block::redact_addresses;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    sync::Notify,
    task::JoinSet,
    time::{Instant, timeout},
};

use super::Service;

/// Longest request in bytes.
pub(super) const REQUEST_LEN_MAX: usize = 64 << 10;
/// Conversations at the same time.
pub(super) const CONVERSATIONS_MAX: usize = 64;
/// How long a client may take for a whole request, and to take its answer.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

const IDLE: &str = "no whole request came within 10 s; connect again when there is one";
const ENDS: &str = "nothing more is carried out: it ends";
const GAVE_WAY: &str = "others needed the place of this idle conversation; connect again";
const ALL_BUSY: &str = "as many commands as possible are being carried out; try again when one \
                        of them has ended";

/// All conversations of one socket; they end when this is dropped.
#[derive(Default)]
pub(super) struct Conversations {
    tasks: JoinSet<()>,
    places: Vec<Weak<Place>>,
    /// No request is taken any more.
    ends: Arc<AtomicBool>,
}

/// What a conversation is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// It waits for a request since then.
    Waits(Instant),
    CarriesOut,
    /// Another one gets its place.
    GivesWay,
}

struct Place {
    doing: Mutex<Doing>,
    gives_way: Notify,
    ends: Arc<AtomicBool>,
}

impl Conversations {
    /// Talks to one more client. When all places are taken, the conversation that has been idle
    /// for longest gives way to it; when none is idle, the client is refused.
    pub(super) async fn begin<S: Service>(&mut self, stream: UnixStream, service: &S) {
        while self.tasks.try_join_next().is_some() {}
        if self.tasks.len() >= CONVERSATIONS_MAX && !self.make_room().await {
            tracing::warn!("control socket: {CONVERSATIONS_MAX} commands are being carried out");
            return refuse(&stream, ALL_BUSY);
        }
        let place = Arc::new(Place {
            doing: Mutex::new(Doing::Waits(Instant::now())),
            gives_way: Notify::new(),
            ends: self.ends.clone(),
        });
        self.places.retain(|place| place.strong_count() > 0);
        self.places.push(Arc::downgrade(&place));
        let service = service.clone();
        self.tasks.spawn(async move {
            if let Err(error) = converse(stream, &service, &place).await {
                tracing::debug!(%error, "control conversation ended");
            }
        });
    }

    /// Waits until a conversation has ended, if there is any; else for ever.
    pub(super) async fn ended(&mut self) {
        if self.tasks.join_next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Ends all conversations: at once those that wait for a request, the others when they are
    /// answered, and by dropping what has not ended by the limit.
    pub(super) async fn finish(mut self, limit: Duration) {
        self.ends.store(true, Ordering::Relaxed);
        for place in self.places.iter().filter_map(Weak::upgrade) {
            place.give_way();
        }
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(limit, all).await.is_err() {
            tracing::warn!("control socket: commands that are carried out are not answered");
        }
    }

    async fn make_room(&mut self) -> bool {
        let places = self.places.iter().filter_map(Weak::upgrade);
        let idle = places.filter_map(|place| place.waits_since().map(|since| (since, place)));
        let longest = idle.min_by_key(|(since, _)| *since);
        if !longest.is_some_and(|(_, place)| place.give_way()) {
            return false;
        }
        // It does nothing any more but say why it ends.
        self.tasks.join_next().await;
        true
    }
}

impl Place {
    fn doing(&self) -> MutexGuard<'_, Doing> {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waits_since(&self) -> Option<Instant> {
        match *self.doing() {
            Doing::Waits(since) => Some(since),
            Doing::CarriesOut | Doing::GivesWay => None,
        }
    }

    /// Takes the place away, unless a request is carried out.
    fn give_way(&self) -> bool {
        let mut doing = self.doing();
        if matches!(*doing, Doing::CarriesOut) {
            return false;
        }
        *doing = Doing::GivesWay;
        self.gives_way.notify_one();
        true
    }

    /// Goes on to something else, unless the place is taken away.
    fn go_on(&self, to: Doing) -> bool {
        let mut doing = self.doing();
        let stays = *doing != Doing::GivesWay;
        if stays {
            *doing = to;
        }
        stays
    }
}

async fn converse<S: Service>(stream: UnixStream, service: &S, place: &Place) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = (&mut stream).take(REQUEST_LEN_MAX as u64);
        let request = timeout(IDLE_LIMIT, limited.read_until(b'\n', &mut line));
        let ends = tokio::select! {
            read = request => match read {
                Ok(read) => match read? {
                    0 => return Ok(()),
                    _ => (!place.go_on(Doing::CarriesOut)).then_some(GAVE_WAY),
                },
                Err(_) => Some(IDLE),
            },
            () = place.gives_way.notified() => {
                Some(if place.ends.load(Ordering::Relaxed) { ENDS } else { GAVE_WAY })
            }
        };
        if let Some(reason) = ends {
            refuse(stream.get_ref(), reason);
            return Ok(());
        }
        let whole = line.len() < REQUEST_LEN_MAX || line.ends_with(b"\n");
        let answer = if whole {
            answer(&line, service).await
        } else {
            json!({ "error": format!("request: is longer than {REQUEST_LEN_MAX} bytes") })
        };
        let mut answer = answer.to_string();
        answer.push('\n');
        place.go_on(Doing::Waits(Instant::now()));
        let write = timeout(IDLE_LIMIT, stream.get_mut().write_all(answer.as_bytes()));
        tokio::select! {
            written = write => written.map_err(|_| io::ErrorKind::TimedOut)??,
            // What is left of the answer is not taken.
            () = place.gives_way.notified() => return Ok(()),
        }
        if !whole || place.ends.load(Ordering::Relaxed) {
            // Where the next request begins is not known, or there is to be none.
            return Ok(());
        }
    }
}

/// Tells a client why its conversation ends, if it takes that at once.
fn refuse(stream: &UnixStream, reason: &str) {
    let mut line = json!({ "error": reason }).to_string();
    line.push('\n');
    // Whoever does not take it sees the end of the conversation.
    let _ = stream.try_write(line.as_bytes());
}

async fn answer<S: Service>(line: &[u8], service: &S) -> Value {
    match serde_json::from_slice::<S::Request>(line) {
        Ok(request) => match service.answer(request).await {
            Ok(value) => json!({ "ok": value }),
            // It may quote what was typed.
            Err(error) => json!({ "error": redact_addresses(&error) }),
        },
        Err(error) => {
            let error = format!("request is not understood: {error}");
            json!({ "error": redact_addresses(&error) })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::control::{ControlServer, call};

    /// Answers true at once, and never what is false.
    #[derive(Clone)]
    struct Echo;

    impl Service for Echo {
        type Request = bool;

        async fn answer(&self, request: bool) -> Result<Value, String> {
            if !request {
                std::future::pending::<()>().await;
            }
            Ok(json!(request))
        }
    }

    struct Running {
        path: PathBuf,
        _dir: tempfile::TempDir,
        end: Option<tokio::sync::oneshot::Sender<()>>,
        task: tokio::task::JoinHandle<()>,
    }

    impl Running {
        fn start() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("socket");
            let server = ControlServer::bind(&path).unwrap();
            let (end, ended) = tokio::sync::oneshot::channel::<()>();
            let ended = async move { drop(ended.await) };
            let task = tokio::spawn(async move { server.run(&Echo, ended).await });
            Self { path, _dir: dir, end: Some(end), task }
        }

        async fn connect(&self, first: &str) -> UnixStream {
            let mut stream = UnixStream::connect(&self.path).await.unwrap();
            stream.write_all(first.as_bytes()).await.unwrap();
            stream
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            self.task.abort();
        }
    }

    /// All that comes until the server ends the conversation.
    async fn rest(mut stream: UnixStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test(start_paused = true)]
    async fn idle_conversations_do_not_keep_a_command_out() {
        let running = Running::start();
        let mut idle = Vec::new();
        for _ in 0..CONVERSATIONS_MAX {
            // Half a request is none.
            idle.push(running.connect("tru").await);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for _ in 0..3 {
            assert_eq!(call(&running.path, &true).await.unwrap(), json!(true));
        }
        let first = rest(idle.remove(0)).await;
        assert!(first.contains(GAVE_WAY), "the one that was idle for longest: {first}");
        let mut last = idle.pop().unwrap();
        last.write_all(b"e\n").await.unwrap();
        let mut answer = [0; 12];
        last.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"{\"ok\":true}\n", "the others stay");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_no_whole_request_is_ended() {
        let running = Running::start();
        let mut stream = running.connect("true\n").await;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        tokio::time::sleep(IDLE_LIMIT - Duration::from_millis(10)).await;
        stream.write_all(b"true\n").await.unwrap();
        stream.read_exact(&mut answer).await.unwrap();
        let from = Instant::now();
        stream.write_all(b"tr").await.unwrap();
        assert!(rest(stream).await.contains(IDLE));
        assert!(from.elapsed() >= IDLE_LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_carried_out_gives_way_to_nobody() {
        let running = Running::start();
        let mut busy = Vec::new();
        for _ in 0..CONVERSATIONS_MAX {
            busy.push(running.connect("false\n").await);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let refused = call(&running.path, &true).await.unwrap_err().to_string();
        assert!(refused.contains(ALL_BUSY), "{refused}");
        tokio::time::sleep(IDLE_LIMIT * 2).await;
        let mut buf = [0; 1];
        let waits = timeout(Duration::from_secs(1), busy[0].read(&mut buf)).await;
        assert!(waits.is_err(), "the first one still waits for its answer");
        drop(busy);
    }

    /// Answers when it is told to.
    #[derive(Clone)]
    struct Late(std::sync::Arc<Notify>);

    impl Service for Late {
        type Request = bool;

        async fn answer(&self, request: bool) -> Result<Value, String> {
            self.0.notified().await;
            Ok(json!(request))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_that_ends_answers_what_it_carries_out_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let server = ControlServer::bind(&path).unwrap();
        let late = Late(Arc::default());
        let service = late.clone();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            server.run(&service, async move { drop(ended.await) }).await;
        });
        let mut waits = UnixStream::connect(&path).await.unwrap();
        waits.write_all(b"tr").await.unwrap();
        let mut busy = UnixStream::connect(&path).await.unwrap();
        busy.write_all(b"true\nfalse\n").await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        end.send(()).unwrap();
        assert!(rest(waits).await.contains(ENDS));
        late.0.notify_one();
        assert_eq!(rest(busy).await, "{\"ok\":true}\n");
        task.await.unwrap();
        assert!(!path.exists());
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_that_is_never_carried_out_does_not_keep_the_socket() {
        let mut running = Running::start();
        let busy = running.connect("false\n").await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        let from = Instant::now();
        running.end.take().unwrap().send(()).unwrap();
        assert_eq!(rest(busy).await, "");
        assert!(from.elapsed() < Duration::from_secs(6), "{:?}", from.elapsed());
    }
}
