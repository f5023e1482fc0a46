//! Control sockets of running arrays and targets: one JSON request a line, one JSON answer a line.
//!
//! What can be asked stands in [`ControlRequest`] and [`TargetRequest`]; the answer is
//! `{"ok": ...}` or `{"error": "..."}`. The socket is for its owner only (mode 0600). No answer
//! holds a secret.

mod array;
mod conversations;
mod target;

use std::{
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    time::Instant,
};

use self::conversations::Conversations;
pub use self::{
    array::{
        ArrayStatus, ControlRequest, HandedSecret, LogStatus, MemberStatus, NoSpaceStatus,
        ProgressStatus, ReadAheadStatus, ScrubAction, ScrubMemberStatus, ScrubStatus,
        StandbyStatus,
    },
    target::{
        LunStatus, PaceStatus, RegistrantStatus, SanitizeStatus, SessionStatus, TargetRequest,
        TargetStatus,
    },
};

/// Longest that an answer may take: a replacement must be connected first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest that commands which are being carried out keep a socket that is to end.
const FINISH_LIMIT: Duration = Duration::from_secs(5);
/// How often it is told that clients cannot be accepted, at most.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Clients that wait to be accepted.
const BACKLOG: i32 = 16;

/// Whoever answers at a control socket.
pub trait Service: Clone + Send + Sync + 'static {
    /// What can be asked.
    type Request: DeserializeOwned + Send;

    /// Carries a request out; the error is for people.
    fn answer(&self, request: Self::Request) -> impl Future<Output = Result<Value, String>> + Send;
}

/// Why a command did not reach a running array or target, or was refused.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody listens there.
    #[error(
        "control socket {path}: {source}; check that an array or a target runs with --control there"
    )]
    Connect {
        /// The socket.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The conversation broke.
    #[error("control socket {path}: {reason}")]
    Broken {
        /// The socket.
        path: String,
        /// Why.
        reason: String,
    },
    /// It is refused.
    #[error("{0}")]
    Refused(String),
}

/// Sends one command to a running array or target and awaits its answer.
///
/// # Errors
/// When nobody listens, the conversation breaks or takes over a minute, or the command is refused.
pub async fn call(path: &Path, request: &impl Serialize) -> Result<Value, ControlError> {
    let shown = || path.display().to_string();
    let connected = UnixStream::connect(path).await;
    let stream = connected.map_err(|source| ControlError::Connect { path: shown(), source })?;
    let broken = |reason: String| ControlError::Broken { path: shown(), reason };
    let talk = async {
        let mut stream = BufReader::new(stream);
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        let sent = stream.write_all(line.as_bytes()).await;
        let mut answer = String::new();
        stream.read_line(&mut answer).await?;
        if answer.is_empty() {
            // A refusal may have come before the request was taken.
            sent?;
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "ended without an answer"));
        }
        serde_json::from_str::<Value>(&answer).map_err(io::Error::from)
    };
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, talk).await;
    let answer = answer.map_err(|_| broken(format!("no answer within {ANSWER_TIMEOUT:?}")))?;
    let mut answer = answer.map_err(|error| broken(error.to_string()))?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => Err(ControlError::Refused(error.into())),
        None => Ok(answer.get_mut("ok").map(Value::take).unwrap_or_default()),
    }
}

/// A control socket that listens; removed when dropped.
#[derive(Debug)]
pub struct ControlServer {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket: what stands at the path later may be another's.
    id: Option<(u64, u64)>,
}

impl ControlServer {
    /// Listens at `path`; a socket that a dead process left there is replaced, nothing else is.
    ///
    /// # Errors
    /// When the path is in use or cannot be made.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let listener = UnixListener::from_std(netraid_private::listen(path, BACKLOG)?)?;
        let id = inode(path);
        Ok(Self { listener, path: path.to_path_buf(), id })
    }

    /// Lets `service` answer commands until `end` is ready, or this is dropped; then those that are
    /// carried out are answered still, for at most 5 s. A client that sends no whole request within
    /// 10 s is told so and ended; when all places are taken, the longest idle one gives way.
    pub async fn run(&self, service: &impl Service, end: impl Future<Output = ()>) {
        let mut conversations = Conversations::default();
        let mut told: Option<Instant> = None;
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => break,
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => conversations.begin(stream, service).await,
                    Err(error) => {
                        if told.is_none_or(|told| told.elapsed() >= REPORT_INTERVAL) {
                            tracing::warn!(%error, "control socket does not accept");
                            told = Some(Instant::now());
                        }
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                },
                () = conversations.ended() => {}
            }
        }
        conversations.finish(FINISH_LIMIT).await;
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        if self.id.is_some() && inode(&self.path) == self.id {
            // Somebody else may have removed it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|at| (at.dev(), at.ino()))
}
