//! Clients: processes of this program that each run one stream, here or on another host by ssh.
//!
//! ```text
//! parent                               client (`netraid evaluate-client`)
//!   Job, one line of JSON      ->
//!                              <-      {"event":"ready", ...}     it has opened what it needs
//!   "go"                       ->
//!                              <-      {"event":"done", ...} or {"event":"failed", ...}
//! ```
//!
//! All clients of a test are ready before the first one is told to go. A client whose parent is gone sees
//! the end of its input, and ends.

use std::{
    io::{BufRead as _, BufReader, Read as _, Seek as _, Write as _},
    net::{TcpListener, TcpStream, ToSocketAddrs as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::{
    data::{Data, DataFile},
    load::{Done, Hook, Load, Shared},
    target::{Open, Reach},
};

/// Bytes of the word that opens a sink.
const TOKEN_LEN: usize = 16;
/// Bytes that a sink receives at once.
const RECEIVE_LEN: usize = 256 << 10;
/// How long a sink waits for its connection.
const CONNECT: Duration = Duration::from_secs(30);
/// How long a client may take to be ready.
const START: Duration = Duration::from_secs(30);
/// How much longer than its stream a client may take: its requests in flight, and a flush.
const LATE: Duration = Duration::from_secs(120);
/// How often one who waits looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(20);
/// Longest line of a client in bytes.
const LINE_LEN_MAX: u64 = 1 << 20;
/// Longest job in bytes.
const JOB_LEN_MAX: u64 = 1 << 20;

/// What a client does, as it comes on its standard input.
#[derive(Debug, Clone, Args)]
pub(crate) struct ClientArgs {}

/// What a client is to do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "job", rename_all = "snake_case")]
pub(super) enum Job {
    /// A stream between its memory and a target.
    Stream {
        reach: Box<Reach>,
        slot: u16,
        open: Open,
        load: Load,
        /// Where data comes from; none: it is made from the seed.
        data: Option<DataFile>,
        seed: u64,
    },
    /// Takes bytes over TCP, and writes them to a file of its temporary directory that goes with it.
    Sink {
        /// Whether other hosts may connect.
        anywhere: bool,
        /// Bytes after which it begins anew; none: they are thrown away.
        disk_bytes: Option<u64>,
    },
}

/// What a client says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Said {
    Ready { port: Option<u16>, token: Option<String> },
    Done { done: Option<Done>, bytes: u64, seconds: f64 },
    Failed { reason: String },
}

/// A client as its parent has it. Dropping it ends it.
pub(super) struct Client {
    host: String,
    child: Child,
    input: Option<ChildStdin>,
    /// Lines that it says; closed when its output is.
    lines: Receiver<std::io::Result<String>>,
    /// Port and word of a sink.
    sink: Option<(u16, String)>,
}

/// What a sink got.
#[derive(Debug, Clone, Copy)]
pub(super) struct Received {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

impl Client {
    /// Starts a client, on this machine or on `host`, and waits until it is ready.
    pub(super) fn start(host: Option<&str>, job: &Job, shared: &Shared) -> Result<Self> {
        let mut command = match host {
            Some(host) => {
                let mut ssh = Command::new("ssh");
                ssh.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
                ssh.args(["-o", "ServerAliveInterval=5"]);
                ssh.args(["--", host, "netraid", "evaluate-client"]);
                ssh
            }
            None => {
                let mut own = Command::new(std::env::current_exe().context("own executable")?);
                own.arg("evaluate-client");
                own
            }
        };
        // Signals of the terminal are for us; it ends with its input.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let name = host.unwrap_or_default().to_owned();
        let mut child = command.spawn().with_context(|| format!("client {name}"))?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("standard output of a client")?;
        let mut client = Self { host: name, child, input, lines: listen(output), sink: None };
        client.send(&(serde_json::to_string(job)? + "\n"))?;
        match client.hear(START, shared)? {
            Said::Ready { port, token } => client.sink = port.zip(token),
            Said::Failed { reason } => bail!("client{}: {reason}", client.place()),
            Said::Done { .. } => bail!("client{}: it ended before it began", client.place()),
        }
        Ok(client)
    }

    /// Where it runs: empty for this machine.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Tells it to begin.
    pub(super) fn go(&mut self) -> Result<()> {
        self.send("go\n")
    }

    /// Waits for the end of its stream of so many seconds.
    pub(super) fn done(mut self, seconds: f64, shared: &Shared) -> Result<Done> {
        match self.hear(Duration::from_secs_f64(seconds.max(0.0)) + LATE, shared)? {
            Said::Done { done: Some(done), .. } => Ok(done),
            Said::Failed { reason } => bail!("client{}: {reason}", self.place()),
            Said::Done { .. } | Said::Ready { .. } => bail!("client{}: no result", self.place()),
        }
    }

    /// Connects to it as a sink.
    pub(super) fn connect(&self) -> Result<TcpStream> {
        let (port, token) = self.sink.as_ref().context("no sink")?;
        let host = match self.host.as_str() {
            "" => "127.0.0.1".to_owned(),
            host => host_name(host),
        };
        let shown = || format!("sink at {host}:{port}");
        let mut addresses = (host.as_str(), *port).to_socket_addrs().with_context(shown)?;
        let address = addresses.next().with_context(shown)?;
        let mut stream = TcpStream::connect_timeout(&address, CONNECT).with_context(shown)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(CONNECT))?;
        stream.write_all(token.as_bytes())?;
        Ok(stream)
    }

    /// Waits until it has all that was sent, on its disk.
    pub(super) fn received(mut self, shared: &Shared) -> Result<Received> {
        match self.hear(LATE, shared)? {
            Said::Done { bytes, seconds, .. } => Ok(Received { bytes, seconds }),
            Said::Failed { reason } => bail!("client{}: {reason}", self.place()),
            Said::Ready { .. } => bail!("client{}: no result", self.place()),
        }
    }

    /// Its process, which on another host is that of ssh.
    pub(super) fn pid(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    fn send(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("a client that was told to end")?;
        input.write_all(line.as_bytes()).and_then(|()| input.flush()).context("a client has ended")
    }

    /// The next thing that it says, unless time is over or we are told to stop.
    fn hear(&mut self, within: Duration, shared: &Shared) -> Result<Said> {
        let deadline = Instant::now() + within;
        loop {
            shared.check()?;
            match self.lines.recv_timeout(LOOK) {
                Ok(line) => {
                    let line = line.with_context(|| format!("client{}", self.place()))?;
                    return serde_json::from_str(&line)
                        .with_context(|| format!("client{} said {line}", self.place()));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("client{}: ended without a word; see its standard error", self.place())
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(RecvTimeoutError::Timeout) => {
                    bail!("client{}: silent for {} s", self.place(), within.as_secs())
                }
            }
        }
    }

    fn place(&self) -> String {
        if self.host.is_empty() { String::new() } else { format!(" {}", self.host) }
    }
}

/// The name under which the network has a host: it may be an alias in the configuration of ssh.
fn host_name(host: &str) -> String {
    let asked = Command::new("ssh").args(["-G", "--", host]).stdin(Stdio::null()).output();
    let said = asked.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let name = said.ok().and_then(|said| named(&said).map(str::to_owned));
    name.unwrap_or_else(|| host.rsplit_once('@').map_or(host, |(_, host)| host).to_owned())
}

/// The name in what `ssh -G` says.
fn named(said: &str) -> Option<&str> {
    said.lines().find_map(|line| line.strip_prefix("hostname ")).map(str::trim)
}

/// Reads lines until there is none, in a thread of its own: it ends with the client.
fn listen(output: ChildStdout) -> Receiver<std::io::Result<String>> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        loop {
            let mut line = String::new();
            let read = output.by_ref().take(LINE_LEN_MAX).read_line(&mut line);
            let ends = !matches!(read, Ok(len) if len > 0);
            if matches!(read, Ok(0)) || sender.send(read.map(|_| line)).is_err() || ends {
                return;
            }
        }
    });
    lines
}

impl Drop for Client {
    fn drop(&mut self) {
        self.input = None;
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            // Its streams look at their stop at every request; a request that hangs is ended with it.
            let deadline = Instant::now() + Duration::from_secs(2);
            while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
                thread::sleep(Duration::from_millis(5));
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Runs as a client: one job from standard input.
pub(crate) fn run(_args: &ClientArgs) -> Result<()> {
    let said = match work() {
        Ok(said) => said,
        Err(error) => Said::Failed { reason: crate::describe(&error) },
    };
    say(&said)
}

fn work() -> Result<Said> {
    let mut input = BufReader::new(std::io::stdin());
    let mut line = String::new();
    input.by_ref().take(JOB_LEN_MAX).read_line(&mut line)?;
    match serde_json::from_str(&line).context("job")? {
        Job::Stream { reach, slot, open, load, data, seed } => {
            let data = match data {
                Some(file) => Data::of_file(&file)?,
                None => Data::new(None, seed)?,
            };
            let shared = Shared { data: Arc::new(data), stop: Arc::new(AtomicBool::new(false)) };
            let mut store = reach.open(slot, open)?;
            say(&Said::Ready { port: None, token: None })?;
            wait_for_go(&mut input)?;
            stop_with_input(input, shared.stop.clone());
            let done = store.run(&load, &shared, None)?;
            Ok(Said::Done { bytes: done.bytes, seconds: done.seconds, done: Some(done) })
        }
        Job::Sink { anywhere, disk_bytes } => sink(anywhere, disk_bytes),
    }
}

fn wait_for_go(input: &mut impl std::io::BufRead) -> Result<()> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    if line != "go\n" { bail!("not told to go") } else { Ok(()) }
}

/// The end of the input is the parent's end, or its wish to stop.
fn stop_with_input(mut input: BufReader<std::io::Stdin>, stop: Arc<AtomicBool>) {
    thread::spawn(move || {
        let mut rest = [0; 64];
        while input.read(&mut rest).is_ok_and(|len| len > 0) {}
        stop.store(true, Ordering::Relaxed);
    });
}

fn sink(anywhere: bool, disk_bytes: Option<u64>) -> Result<Said> {
    let address = if anywhere { "0.0.0.0:0" } else { "127.0.0.1:0" };
    let listener = TcpListener::bind(address).context("sink")?;
    let token: String = format!("{:016x}", rand::random::<u64>());
    let port = listener.local_addr()?.port();
    say(&Said::Ready { port: Some(port), token: Some(token.clone()) })?;
    let mut stream = accept(&listener, &token)?;
    let mut file = disk_bytes.map(|_| tempfile::tempfile()).transpose().context("sink's file")?;
    let mut buffer = vec![0; RECEIVE_LEN];
    let (mut bytes, mut at, began) = (0_u64, 0_u64, Instant::now());
    loop {
        let len = stream.read(&mut buffer).context("sink")?;
        if len == 0 {
            break;
        }
        bytes += len as u64;
        let Some(file) = &mut file else { continue };
        if disk_bytes.is_some_and(|most| at + len as u64 > most) {
            file.rewind()?;
            at = 0;
        }
        file.write_all(&buffer[..len]).context("sink's file")?;
        at += len as u64;
    }
    if let Some(file) = file {
        file.sync_data().context("sink's file")?;
    }
    Ok(Said::Done { done: None, bytes, seconds: began.elapsed().as_secs_f64() })
}

/// The connection that knows the word; any other is closed.
fn accept(listener: &TcpListener, token: &str) -> Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + CONNECT;
    while Instant::now() < deadline {
        match listener.accept() {
            Ok((mut stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(CONNECT))?;
                let mut word = [0; TOKEN_LEN];
                if stream.read_exact(&mut word).is_ok() && word == token.as_bytes() {
                    return Ok(stream);
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(2));
            }
            Err(error) => return Err(error).context("sink"),
        }
    }
    bail!("sink: nobody connected within {} s", CONNECT.as_secs())
}

fn say(said: &Said) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(said)?).and_then(|()| out.flush())?;
    Ok(())
}

/// Sends what is read from a target to a sink.
pub(super) struct Copy(pub(super) TcpStream);

impl Hook for Copy {
    fn before(&mut self) -> Result<bool> {
        Ok(true)
    }

    fn fill(&mut self, _bytes: &mut [u8]) -> bool {
        false
    }

    fn after(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.write_all(bytes).context("remote copy")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_hangs_is_not_waited_for_for_ever() {
        let client = |command: &str| {
            let mut child = Command::new("sh")
                .args(["-c", command])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
            Client { host: String::new(), child, input, lines: listen(output), sink: None }
        };
        let data = Arc::new(Data::new(None, 1).unwrap());
        let shared = Shared { data, stop: Arc::new(AtomicBool::new(false)) };
        let hear = |client: &mut Client| {
            client.hear(Duration::from_millis(50), &shared).unwrap_err().to_string()
        };
        // It ends with its input, when it is dropped.
        let mut silent = client("read x");
        assert!(hear(&mut silent).contains("silent"));
        shared.stop.store(true, Ordering::Relaxed);
        let error = silent.hear(Duration::from_secs(3600), &shared).unwrap_err();
        assert!(error.is::<crate::signal::Interrupted>(), "{error}");
    }

    #[test]
    fn a_host_has_the_name_that_ssh_gives_it() {
        assert_eq!(named("host a\nuser root\nhostname 192.0.2.7\nport 22\n"), Some("192.0.2.7"));
        assert_eq!(named("ssh: unknown option\n"), None);
    }

    #[test]
    fn a_sink_takes_only_who_knows_the_word() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let clients = thread::spawn(move || {
            let mut wrong = TcpStream::connect(address).unwrap();
            wrong.write_all(b"0123456789abcdee").unwrap();
            let mut right = TcpStream::connect(address).unwrap();
            right.write_all(b"0123456789abcdefX").unwrap();
            wrong.read(&mut [0]).unwrap()
        });
        let mut stream = accept(&listener, "0123456789abcdef").unwrap();
        let mut rest = [0];
        stream.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"X");
        assert_eq!(clients.join().unwrap(), 0, "the other one is closed");
    }
}
